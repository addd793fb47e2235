//! `watch`: what is pending, and every change.

use serde::Serialize;

use super::args::WatchArgs;
use super::full::full;
use super::output::{self, JsonInbox, JsonItem, headline};
use super::{CliError, Context, Exit, Interrupt, unix_ms};
use crate::client::{Manner, Phone, PhoneError, PhoneEvent, Until};
use crate::model::account::{About, Notice, Standing};
use crate::model::inbox::Change;
use crate::model::text;

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum JsonEvent<'a> {
    Inbox(JsonInbox<'a>),
    Connected { url: &'a str },
    Disconnected { why: String, retry_in_ms: u128 },
    SteppedAside,
    AgentOnline { online: bool },
    Added { badge: u32, item: JsonItem<'a> },
    Updated { badge: u32, item: JsonItem<'a> },
    Returned { badge: u32, item: JsonItem<'a> },
    Removed { badge: u32, item: JsonItem<'a> },
    Notice { at: u64, about: &'a About },
}

pub(super) async fn watch(context: &Context, args: &WatchArgs) -> Result<Exit, CliError> {
    let until = context.timeout.map_or(Until::NEVER, Until::secs);
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
        let output = self.context.output;
        match event {
            PhoneEvent::Connected { url } => {
                output.object(&JsonEvent::Connected { url });
                self.line("-", "connected");
            }
            PhoneEvent::Disconnected { why, retry_in } => {
                let why = text::line(&why.to_string());
                self.line("-", &format!("{why}; trying again in {} s", retry_in.as_secs().max(1)));
                output.object(&JsonEvent::Disconnected { why, retry_in_ms: retry_in.as_millis() });
            }
            PhoneEvent::SteppedAside => {
                output.object(&JsonEvent::SteppedAside);
                self.line("-", "another command uses the connection");
            }
            PhoneEvent::AgentOnline(online) => {
                output.object(&JsonEvent::AgentOnline { online: *online });
                self.line("-", if *online { "the agent is online" } else { "the agent is offline" });
            }
            PhoneEvent::Inbox { changes } => changes.iter().for_each(|change| self.change(phone, change)),
            // Told as notices, or of no interest to a person.
            PhoneEvent::Notification(_)
            | PhoneEvent::Verdict { .. }
            | PhoneEvent::Accepted { .. }
            | PhoneEvent::NotSent { .. }
            | PhoneEvent::Dropped(_)
            | PhoneEvent::Invalid(_) => {}
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
        self.context.output.text(&format!("{} {mark} {text}", time_of_day(unix_ms())));
    }
}

/// The time of day in UTC.
fn time_of_day(unix_ms: u64) -> String {
    let secs = unix_ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}Z", secs / 3600, secs / 60 % 60, secs % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_day_is_utc() {
        assert_eq!(time_of_day(1_750_000_000_000), "15:06:40Z");
    }
}
