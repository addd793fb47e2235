//! `inbox`, `show` and `status`.

use serde::Serialize;
use skald_common::crypto::fingerprint;

use super::args::{InboxArgs, ItemArgs, StatusArgs};
use super::full::full;
use super::output::{self, JsonInbox, JsonItem};
use super::{CliError, Context, Exit, unix_ms};
use crate::client::{Phone, Refreshed};
use crate::model::account::{Account, Notice, Standing};
use crate::model::text;
use crate::store::StoreError;

/// Where what is shown comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Source {
    /// The agent, just now.
    Agent,
    /// This phone: the agent is offline.
    AgentOffline,
    /// This phone: the agent did not answer.
    NoAnswer,
    /// This phone, as asked.
    Local,
}

impl From<Refreshed> for Source {
    fn from(refreshed: Refreshed) -> Self {
        match refreshed {
            Refreshed::Fresh => Self::Agent,
            Refreshed::AgentOffline => Self::AgentOffline,
            Refreshed::NoAnswer => Self::NoAnswer,
        }
    }
}

#[derive(Serialize)]
struct JsonShown<'a> {
    source: Source,
    #[serde(flatten)]
    inbox: JsonInbox<'a>,
    notices: Vec<&'a Notice>,
}

pub(super) async fn inbox(context: &Context, args: &InboxArgs) -> Result<Exit, CliError> {
    if args.offline {
        let account = saved(context)?;
        tell_inbox(context, &account, Source::Local, args.full);
        if account.unshown().next().is_some() {
            context.store.update(Account::mark_shown)?;
        }
        return Ok(Exit::Done);
    }
    let until = context.until();
    let mut phone = context.connect(until).await?;
    let source = phone.refresh(until).await?.into();
    tell_inbox(context, phone.account(), source, args.full);
    phone.mark_shown()?;
    phone.close().await;
    Ok(Exit::Done)
}

fn tell_inbox(context: &Context, account: &Account, source: Source, in_full: bool) {
    let (output, now) = (context.output, unix_ms());
    output.object(&JsonShown { source, inbox: account.into(), notices: account.unshown().collect() });
    for notice in account.unshown() {
        output.text(&format!("* {}", output::notice_line(notice, now)));
    }
    output.text(&output::list(account, now, output.width));
    if in_full {
        for entry in account.inbox.pending() {
            output.text(&format!("\n{}", full(entry, account.inbox.as_of(), now, output.width)));
        }
    }
    tell_source(context, account, source, now);
}

fn tell_source(context: &Context, account: &Account, source: Source, now: u64) {
    let since = account.inbox.as_of().map_or_else(
        || "nothing has come from the agent yet".to_owned(),
        |as_of| format!("this is as of {}", output::age(as_of.made_at, now)),
    );
    match source {
        Source::Agent => {}
        Source::AgentOffline => context.output.text(&format!("(The agent is offline; {since}.)")),
        Source::NoAnswer => context.output.text(&format!("(The agent did not answer in time; {since}.)")),
        Source::Local => context.output.text(&format!("(Not asked the agent; {since}.)")),
    }
}

pub(super) async fn show(context: &Context, args: &ItemArgs) -> Result<Exit, CliError> {
    if args.offline {
        let account = saved(context)?;
        tell_item(context, &account, Source::Local, &args.id)?;
        return Ok(Exit::Done);
    }
    let until = context.until();
    let mut phone = context.connect(until).await?;
    let source = phone.refresh(until).await?.into();
    let told = tell_item(context, phone.account(), source, &args.id);
    phone.close().await;
    told.map(|()| Exit::Done)
}

fn tell_item(context: &Context, account: &Account, source: Source, id: &str) -> Result<(), CliError> {
    let entry = account.inbox.find(id)?;
    let (output, now) = (context.output, unix_ms());
    output.object(&JsonItem::from(entry));
    output.text(&full(entry, account.inbox.as_of(), now, output.width));
    tell_source(context, account, source, now);
    Ok(())
}

fn saved(context: &Context) -> Result<Account, CliError> {
    let not_paired = || StoreError::NotPaired { profile: context.store.profile().to_owned() };
    Ok(context.store.load()?.ok_or_else(not_paired)?)
}

#[derive(Serialize)]
struct JsonStatus<'a> {
    profile: &'a str,
    device_name: &'a str,
    standing: Standing,
    fingerprint: &'a str,
    public_key: String,
    namespace_id: String,
    agent_fingerprint: String,
    relay_url: &'a str,
    folder: String,
    paired_at: u64,
    badge: u32,
    connected: Option<bool>,
    agent_online: Option<bool>,
    error: Option<String>,
    /// The platform of the push token, and of a Web Push address its host.
    push: Option<&'a str>,
}

pub(super) async fn status(context: &Context, args: &StatusArgs) -> Result<Exit, CliError> {
    let account = saved(context)?;
    let seed = context.store.seed()?;
    let keys = skald_common::crypto::Identity::new(&seed);
    let mut state = State { account, connected: None, agent_online: None, error: None };
    let mut exit = Exit::Done;
    if !args.offline {
        match reach(context).await {
            Ok(phone) => {
                state.account = phone.account().clone();
                (state.connected, state.agent_online) = (Some(true), phone.agent_online());
                phone.close().await;
            }
            Err(error) => {
                exit = error.exit();
                state.account = saved(context)?;
                (state.connected, state.error) = (Some(false), Some(text::line(&error.to_string())));
            }
        }
    }
    let push = context.store.registration()?.map(|registration| text::line(&registration.words()));
    let own = fingerprint(&keys.ed25519_pub(), &keys.x25519_pub());
    tell_status(context, &state, push.as_deref(), &own, &keys.ed25519_pub().to_hex());
    Ok(exit)
}

async fn reach(context: &Context) -> Result<Phone, CliError> {
    let until = context.until();
    let mut phone = context.connect(until).await?;
    phone.refresh(until).await?;
    Ok(phone)
}

struct State {
    account: Account,
    connected: Option<bool>,
    agent_online: Option<bool>,
    error: Option<String>,
}

fn tell_status(context: &Context, state: &State, push: Option<&str>, own: &str, public_key: &str) {
    let account = &state.account;
    let agent = &account.agent;
    context.output.object(&JsonStatus {
        profile: context.store.profile(),
        device_name: &account.device_name,
        standing: account.standing,
        fingerprint: own,
        public_key: public_key.to_owned(),
        namespace_id: agent.namespace().to_hex(),
        agent_fingerprint: fingerprint(&agent.ed25519, &agent.x25519),
        relay_url: &account.relay_url,
        folder: context.store.folder().display().to_string(),
        paired_at: account.paired_at,
        badge: account.inbox.badge(),
        connected: state.connected,
        agent_online: state.agent_online,
        error: state.error.clone(),
        push,
    });
    let standing = match account.standing {
        Standing::Pending => "paired, not authorized yet",
        Standing::Authorized => "authorized",
        Standing::Revoked => "revoked",
    };
    let relay = match (state.connected, &state.error) {
        (Some(true), _) => "connected".to_owned(),
        (_, Some(error)) => error.clone(),
        _ => "not asked".to_owned(),
    };
    let online = match state.agent_online {
        Some(true) => "online",
        Some(false) => "offline",
        None => "not known",
    };
    context.output.text(&format!(
        "profile      {}\nname         {}\nstanding     {standing}\nfingerprint  {own}\nrelay        {}\nconnection   {relay}\n\
         agent        {online}, fingerprint {}\npending      {}\npush         {}\nfolder       {}",
        context.store.profile(),
        text::line(&account.device_name),
        text::line(&account.relay_url),
        fingerprint(&agent.ed25519, &agent.x25519),
        account.inbox.badge(),
        push.unwrap_or("none: nothing wakes this phone while it is not connected"),
        text::line(&context.store.folder().display().to_string()),
    ));
}
