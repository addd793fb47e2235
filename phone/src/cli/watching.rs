//! `watch`: what is pending, and every change.

use serde::Serialize;

use super::args::WatchArgs;
use super::full::full;
use super::output::{self, JsonInbox, JsonItem, headline};
use super::{CliError, Context, Exit, Interrupt, line, unix_ms};
use crate::client::{Manner, Phone, PhoneError, PhoneEvent, Until};
use crate::model::account::{About, Notice, Standing};
use crate::model::inbox::Change;
use crate::model::text;

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum JsonEvent<'a> {
    Inbox(JsonInbox<'a>),
    Added { badge: u32, item: JsonItem<'a> },
    Updated { badge: u32, item: JsonItem<'a> },
    Returned { badge: u32, item: JsonItem<'a> },
    Removed { badge: u32, item: JsonItem<'a> },
    Notice { at: u64, about: &'a About },
}

pub(super) async fn watch(context: &Context, args: &WatchArgs) -> Result<Exit, CliError> {
    let until = context.global.timeout.map_or(Until::NEVER, Until::secs);
    let mut phone = Phone::open(context.store.clone(), Manner::Watch, until).await?;
    let view = View { context, in_full: args.full };
    view.begin(&phone);
    phone.start();
    let mut interrupt = Interrupt::new()?;
    loop {
        view.notices(&mut phone)?;
        let event = tokio::select! {
            event = until.within(phone.next_event()) => event,
            () = interrupt.wait() => None,
        };
        let Some(event) = event else { break };
        let event = event?;
        view.event(&phone, &event);
        if let PhoneEvent::Disconnected { .. } = event
            && phone.account().standing == Standing::Revoked
        {
            phone.close().await;
            return Err(PhoneError::Revoked.into());
        }
    }
    phone.close().await;
    Ok(Exit::Done)
}

struct View<'a> {
    context: &'a Context,
    in_full: bool,
}

impl View<'_> {
    fn begin(&self, phone: &Phone) {
        let (output, account) = (self.context.output, phone.account());
        output.object(&JsonEvent::Inbox(account.into()));
        output.text(&output::list(account, unix_ms(), output.width));
        output.text("");
        output.progress("Connecting; end with Ctrl-C.");
    }

    /// Shows what the agent wanted told, once, whichever process received it.
    fn notices(&self, phone: &mut Phone) -> Result<(), CliError> {
        for notice in phone.account().unshown() {
            let Notice { at, about, .. } = notice;
            self.context.output.object(&JsonEvent::Notice { at: *at, about });
            self.line("*", &output::notice_line(notice, unix_ms()));
        }
        Ok(phone.mark_shown()?)
    }

    fn event(&self, phone: &Phone, event: &PhoneEvent) {
        line::connection(self.context.output, event);
        // The rest is told as notices, or of no interest to a person.
        if let PhoneEvent::Inbox { changes } = event {
            for change in changes {
                self.change(phone, change);
            }
        }
    }

    fn change(&self, phone: &Phone, change: &Change) {
        let (output, inbox, now) = (self.context.output, phone.inbox(), unix_ms());
        let (badge, item) = (inbox.badge(), JsonItem::from(change.entry()));
        let (mark, object) = match change {
            Change::Added(_) => ("+", JsonEvent::Added { badge, item }),
            Change::Updated(_) => ("~", JsonEvent::Updated { badge, item }),
            Change::Returned(_) => ("+", JsonEvent::Returned { badge, item }),
            Change::Removed(_) => ("✓", JsonEvent::Removed { badge, item }),
        };
        output.object(&object);
        let entry = change.entry();
        let gone = matches!(change, Change::Removed(_));
        if self.in_full && !gone {
            self.line(mark, &full(entry, inbox.as_of(), now, output.width));
        } else {
            let title = text::short_line(entry.title(), output.width.unwrap_or(120).saturating_sub(3));
            let suffix = if gone { " no longer pending" } else { "" };
            self.line(mark, &format!("{}{suffix}\n  {title}", headline(entry, now)));
        }
    }

    fn line(&self, mark: &str, text: &str) {
        line::event_line(self.context.output, mark, text);
    }
}
