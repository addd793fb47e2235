//! `skaldctl ask`: raises an item as a host of its own, waits, and prints the answer; and `skaldctl notify`.
//!
//! The host's name is `ask-` and 16 random hexadecimal digits, its items go with its connection. If the daemon restarts in
//! between, the item is raised again on a new connection: same host, same content, so the same item for the phones.

mod arguments;
mod item;

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use skald_common::payload::{Decision, ElicitationAction, SecretObject};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, sleep_until};

use self::item::Question;
use super::args::{Ask, What};
use super::client::{Client, ClientError, Hello};
use super::output::safe;
use super::{Exit, Failure, Session, output};
use crate::rpc::Call;

/// How long a daemon may be away, as in a restart, before we give up.
const ABSENCE: Duration = Duration::from_secs(10);

/// Between two tries to reach it.
const RETRY: Duration = Duration::from_millis(500);

/// How long the daemon may take to note that the question is withdrawn.
const WITHDRAWAL: Duration = Duration::from_secs(2);

/// Parameters of `inbox.resolve`.
#[derive(Deserialize)]
struct Resolve {
    request_id: String,
    decision: Option<Decision>,
    reason: Option<String>,
    bypass_secs: Option<u64>,
    answer: Option<String>,
    action: Option<ElicitationAction>,
    content: Option<SecretObject>,
    device: Device,
}

#[derive(Deserialize)]
struct Device {
    pubkey: String,
    name: String,
}

/// The daemon's short status.
#[derive(Deserialize)]
struct Status {
    relay: Relay,
    devices: Devices,
}

#[derive(Deserialize)]
struct Relay {
    connected: bool,
}

#[derive(Deserialize)]
struct Devices {
    authorized: usize,
}

pub(super) async fn run(session: &Session, options: Ask) -> Result<Exit, Failure> {
    let name = format!("ask-{:016x}", rand::random::<u64>());
    let hello = Hello::foreground(&name, &options.label);
    let question = Question::new(&options.what, output::now()).map_err(Failure::Usage)?;
    let end = options.timeout.map(|secs| Instant::now() + Duration::from_secs(secs));
    let mut client = session.host(&hello).await?;
    warn(session, &mut client).await?;
    let exit = tokio::select! {
        resolve = answered(session, &mut client, &hello, &question) => {
            return show(session, &options.what, &resolve?);
        }
        () = until(end) => Exit::TimedOut,
        () = interrupted() => Exit::Interrupted,
    };
    withdraw(&mut client, &question).await;
    tell_unanswered(session, exit)
}

/// `skaldctl notify`.
pub(super) async fn notify(session: &Session, title: &str, body: &str) -> Result<Exit, Failure> {
    #[derive(Deserialize)]
    struct Sent {
        devices: usize,
        queued: usize,
    }
    let name = format!("notify-{:016x}", rand::random::<u64>());
    let mut client = session.host(&Hello::foreground(&name, "skaldctl")).await?;
    let text = client.call_text("notification.send", &json!({"title": title, "body": body})).await?;
    session.output.either(&text, || {
        let Sent { devices, queued } =
            crate::rpc::parse_params(&text).map_err(|error| Failure::Unusable(error.message))?;
        Ok(match (devices, queued) {
            (0, _) => "No device is authorized: nobody gets it. Pair one with `skaldctl pair`.".to_owned(),
            (_, 0) => format!("Sent to {devices} device(s)."),
            _ => format!("For {devices} device(s); it waits for the connection to the relay."),
        })
    })?;
    Ok(Exit::Done)
}

/// Says so at once if nobody is likely to answer.
async fn warn(session: &Session, client: &mut Client) -> Result<(), Failure> {
    let status: Status = client.call("status", &json!({})).await?;
    if status.devices.authorized == 0 {
        output::note("skaldctl: no device is authorized: pair one with `skaldctl pair`; waiting all the same");
    } else if !status.relay.connected {
        output::note("skaldctl: the daemon is not connected to its relay: see `skaldctl status`; waiting all the same");
    } else {
        session.output.hint("Waiting for an answer; Ctrl-C withdraws the question.");
    }
    Ok(())
}

/// Raises the question and waits for its answer, over as many connections as it takes.
async fn answered(
    session: &Session,
    client: &mut Client,
    hello: &Hello<'_>,
    question: &Question,
) -> Result<Resolve, Failure> {
    loop {
        match answered_on(client, question).await {
            Err(Failure::Client(ClientError::Closed | ClientError::Silent)) => {
                output::note("skaldctl: the daemon is gone; waiting for it to come back");
                *client = reconnect(session, hello).await?;
            }
            outcome => return outcome,
        }
    }
}

async fn answered_on(client: &mut Client, question: &Question) -> Result<Resolve, Failure> {
    client.call_text("inbox.sync", &question.sync()).await?;
    loop {
        let call = client.next_call().await?;
        if let Some(resolve) = take(client, &call, question).await? {
            return Ok(resolve);
        }
    }
}

async fn take(client: &mut Client, call: &Call, question: &Question) -> Result<Option<Resolve>, Failure> {
    if call.method != "inbox.resolve" {
        return Ok(None);
    }
    let resolve: Resolve = call
        .params()
        .map_err(|error| ClientError::Unreadable { method: "the question".into(), what: error.message })?;
    let resolved = resolve.request_id == question.request_id;
    client.answer(call, &json!({"resolved": resolved})).await?;
    Ok(resolved.then_some(resolve))
}

async fn reconnect(session: &Session, hello: &Hello<'_>) -> Result<Client, Failure> {
    let end = Instant::now() + ABSENCE;
    loop {
        sleep(RETRY).await;
        match session.host(hello).await {
            Ok(client) => return Ok(client),
            Err(failure) if Instant::now() >= end => return Err(failure),
            Err(_) => {}
        }
    }
}

/// The phones should not go on showing it. The end of the connection does the same; this is only sooner.
async fn withdraw(client: &mut Client, question: &Question) {
    let params = question.withdrawal();
    let _ = tokio::time::timeout(WITHDRAWAL, client.call_text("inbox.resolved", &params)).await;
}

fn show(session: &Session, what: &What, resolve: &Resolve) -> Result<Exit, Failure> {
    let by = json!({"pubkey": resolve.device.pubkey, "name": resolve.device.name});
    match (what, resolve.decision, &resolve.answer, resolve.action) {
        (What::Approval { .. }, Some(decision), ..) => {
            let (exit, word) = match decision {
                Decision::Approved => (Exit::Done, "approved"),
                Decision::Rejected => (Exit::No, "rejected"),
            };
            if session.output.json {
                let (reason, bypass_secs) = (&resolve.reason, resolve.bypass_secs);
                output::value(&json!({
                    "outcome": word, "decision": decision, "reason": reason, "bypass_secs": bypass_secs, "device": by,
                }))?;
            } else {
                let reason = resolve.reason.as_ref().map(|reason| format!(": {}", safe(reason))).unwrap_or_default();
                output::line(&format!("{word}{reason}"))?;
            }
            Ok(exit)
        }
        (What::Question { .. }, _, Some(answer), _) => {
            if session.output.json {
                output::value(&json!({"outcome": "answered", "answer": answer, "device": by}))?;
            } else {
                output::line(answer)?;
            }
            Ok(Exit::Done)
        }
        (What::Secret { field, .. }, _, _, Some(action)) => show_secret(session, field, action, resolve),
        _ => Err(Failure::Unusable("the answer does not fit the question".into())),
    }
}

fn show_secret(session: &Session, field: &str, action: ElicitationAction, resolve: &Resolve) -> Result<Exit, Failure> {
    let word = match action {
        ElicitationAction::Accept => "answered",
        ElicitationAction::Decline => "declined",
        ElicitationAction::Cancel => "cancelled",
    };
    if action != ElicitationAction::Accept {
        if session.output.json {
            output::value(&json!({"outcome": word, "action": action}))?;
        } else {
            output::note(&format!("skaldctl: {word}"));
        }
        return Ok(Exit::No);
    }
    let value = resolve.content.as_ref().and_then(|content| content.expose().get(field));
    let Some(value) = value.and_then(serde_json::Value::as_str) else {
        return Err(Failure::Unusable("the answer holds no value".into()));
    };
    if session.output.json {
        #[derive(serde::Serialize)]
        struct Secret<'a> {
            outcome: &'a str,
            action: ElicitationAction,
            value: &'a str,
        }
        output::value(&Secret { outcome: word, action, value })?;
    } else {
        output::secret(value.as_bytes())?;
    }
    Ok(Exit::Done)
}

fn tell_unanswered(session: &Session, exit: Exit) -> Result<Exit, Failure> {
    let (word, text) = match exit {
        Exit::TimedOut => ("timed_out", "nobody answered in time; the question is withdrawn"),
        _ => ("withdrawn", "interrupted; the question is withdrawn"),
    };
    if session.output.json {
        output::value(&json!({"outcome": word}))?;
    } else {
        output::note(&format!("skaldctl: {text}"));
    }
    Ok(exit)
}

async fn until(end: Option<Instant>) {
    match end {
        Some(end) => sleep_until(end).await,
        None => std::future::pending().await,
    }
}

/// Ctrl-C, or a supervisor that wants us gone.
async fn interrupted() {
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        // Then the signal ends the process, and the connection with it.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
