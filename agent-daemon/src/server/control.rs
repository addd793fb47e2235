//! Methods of the control socket (socket API, Control).

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use skald_common::payload::{Decision, ElicitationAction, SecretObject};
use tokio::sync::broadcast;
use zeroize::Zeroizing;

use super::reply::{Reply, done, ok};
use super::{Context, PROTOCOL, VERSION};
use crate::config::Value;
use crate::hub::api::{AnswerContent, PairingCode, PairingState, Status};
use crate::hub::events::Event;
use crate::qr::{self, Paint, Picture};
use crate::rpc::{Call, RpcError, codes};

const METHODS: [&str; 15] = [
    "hello",
    "status",
    "pairing.start",
    "pairing.qr",
    "pairing.stop",
    "devices.list",
    "devices.authorize",
    "devices.revoke",
    "devices.clear",
    "devices.restore",
    "config.get",
    "config.set",
    "inbox.list",
    "inbox.answer",
    "events.subscribe",
];

#[derive(Serialize)]
struct FullStatus {
    protocol: u64,
    version: &'static str,
    pid: u32,
    uptime_secs: u64,
    #[serde(flatten)]
    status: Status,
}

#[derive(Deserialize)]
struct PairingStart {
    ttl: Option<u32>,
}

#[derive(Deserialize)]
struct PairingQr {
    code: String,
    format: Format,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    Png,
    Svg,
    Utf8,
    Json,
}

#[derive(Serialize)]
struct Shown {
    state: PairingState,
    /// Base64 of the file for `png`, text for the others; `None` for `json` when there is nothing to scan.
    data: Option<Zeroizing<String>>,
}

#[derive(Deserialize)]
struct Device {
    pubkey: String,
}

/// The fields of one kind of answer. Flat, so that a secret goes from the line to its place without being buffered.
#[derive(Deserialize)]
struct AnswerParams {
    #[serde(alias = "request_id")]
    id: String,
    decision: Option<Decision>,
    reason: Option<String>,
    bypass_secs: Option<u64>,
    answer: Option<String>,
    action: Option<ElicitationAction>,
    content: Option<SecretObject>,
}

/// Serves a call after `hello`; `events.subscribe` also gives the events.
pub(super) async fn call(call: &Call, context: &Context) -> (Reply, Option<broadcast::Receiver<Event>>) {
    if call.method != "events.subscribe" {
        return (plain(call, context).await, None);
    }
    match context.hub.subscribe().await {
        Ok(events) => (done(), Some(events)),
        Err(error) => (Err(error.into()), None),
    }
}

async fn plain(call: &Call, context: &Context) -> Reply {
    let Context { hub, config, .. } = context;
    match call.method.as_str() {
        "status" => status(context).await,
        "pairing.start" => {
            let PairingStart { ttl } = call.params()?;
            ok(&hub.pairing_start(ttl).await?)
        }
        "pairing.qr" => {
            let PairingQr { code, format } = call.params()?;
            ok(&show(&hub.pairing_qr(code).await?, format)?)
        }
        "pairing.stop" => {
            hub.pairing_stop().await?;
            done()
        }
        "devices.list" => ok(&hub.devices().await?),
        "devices.authorize" => ok(&hub.authorize(device(call)?).await?),
        "devices.revoke" => ok(&hub.revoke(device(call)?).await?),
        "devices.clear" => ok(&hub.clear_devices().await?),
        "devices.restore" => ok(&hub.restore_devices().await?),
        "config.get" => ok(&config.get().await?),
        "config.set" => {
            let changes: BTreeMap<String, Value> = call.params()?;
            ok(&config.set(changes).await?)
        }
        "inbox.list" => ok(&hub.inbox().await?),
        "inbox.answer" => {
            let (id, answer) = answer(call.params()?)?;
            hub.inbox_answer(id, answer).await?;
            done()
        }
        "hello" => Err(RpcError::new(codes::INVALID_REQUEST, "hello was said already")),
        other => Err(RpcError::method_not_found(other, &METHODS)),
    }
}

async fn status(context: &Context) -> Reply {
    let status = context.hub.status().await?;
    let uptime_secs = context.started.elapsed().as_secs();
    ok(&FullStatus { protocol: PROTOCOL, version: VERSION, pid: std::process::id(), uptime_secs, status })
}

fn device(call: &Call) -> Result<String, RpcError> {
    call.params().map(|Device { pubkey }| pubkey)
}

fn show(code: &PairingCode, format: Format) -> Result<Shown, RpcError> {
    let picture = match (&code.json, code.state) {
        (Some(json), _) => Picture::Code(json),
        (None, PairingState::Consumed) => Picture::Words("This pairing code\nwas used"),
        (None, PairingState::Superseded) => Picture::Words("A newer pairing code\nreplaced this one"),
        (None, PairingState::Active | PairingState::Expired) => Picture::Words("This pairing code\nhas expired"),
    };
    let data = match format {
        Format::Png => qr::png(picture).map(|file| Some(Zeroizing::new(STANDARD.encode(&*file)))),
        Format::Svg => qr::svg(picture).map(Some),
        Format::Utf8 => qr::terminal(picture, Paint::Plain).map(Some),
        Format::Json => Ok(code.json.clone()),
    };
    let data = data.map_err(|error| RpcError::new(codes::REFUSED, error.to_string()))?;
    Ok(Shown { state: code.state, data })
}

/// Which kind is answered follows from the fields; the hub checks that it is the item's kind.
fn answer(params: AnswerParams) -> Result<(String, AnswerContent), RpcError> {
    let AnswerParams { id, decision, reason, bypass_secs, answer, action, content } = params;
    let answer = match (decision, answer, action) {
        (Some(decision), None, None) => AnswerContent::Approval { decision, reason, bypass_secs },
        (None, Some(answer), None) => AnswerContent::Clarification { answer },
        (None, None, Some(action)) => AnswerContent::Elicitation { action, content },
        _ => {
            let text = "exactly one of decision (approval), answer (clarification) and action (elicitation) is needed";
            return Err(RpcError::invalid_params(text));
        }
    };
    Ok((id, answer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::parse_params;

    fn read(params: &str) -> Result<(String, AnswerContent), RpcError> {
        answer(parse_params(params)?)
    }

    #[test]
    fn the_kind_of_an_answer_follows_from_its_fields() {
        let (id, content) = read(r#"{"id":"1.ab","decision":"approved","bypass_secs":9}"#).unwrap();
        let approved = AnswerContent::Approval { decision: Decision::Approved, reason: None, bypass_secs: Some(9) };
        assert_eq!((id.as_str(), content), ("1.ab", approved));
        let (id, content) = read(r#"{"request_id":"2.ab","answer":"Yes"}"#).unwrap();
        assert_eq!((id.as_str(), content), ("2.ab", AnswerContent::Clarification { answer: "Yes".into() }));
        let (_, content) = read(r#"{"id":"3","action":"accept","content":{"password":"hunter2"}}"#).unwrap();
        let expected = Some(SecretObject::single("password", "hunter2".into()));
        assert_eq!(content, AnswerContent::Elicitation { action: ElicitationAction::Accept, content: expected });
    }

    #[test]
    fn a_wrong_answer_is_refused_without_quoting_it() {
        for params in [
            "{}",
            r#"{"id":"1"}"#,
            r#"{"id":"1","decision":"hunter2"}"#,
            r#"{"id":"1","answer":"hunter2","action":"accept"}"#,
            r#"{"id":"1","action":"accept","content":"hunter2"}"#,
        ] {
            let error = read(params).unwrap_err();
            assert_eq!(error.code, codes::INVALID_PARAMS, "{params}");
            assert!(!error.message.contains("hunter2"), "{}", error.message);
        }
    }

    #[test]
    fn a_closed_window_is_shown_in_words_that_tell_the_states_apart() {
        let shown = |state, format| show(&PairingCode { state, json: None }, format).unwrap();
        let text = |state| shown(state, Format::Utf8).data.unwrap().to_string();
        assert!(text(PairingState::Consumed).contains("used"));
        assert!(text(PairingState::Expired).contains("expired"));
        assert!(text(PairingState::Superseded).contains("newer"));
        assert!(shown(PairingState::Consumed, Format::Json).data.is_none());
        let png = |state| shown(state, Format::Png).data.unwrap().to_string();
        assert_ne!(png(PairingState::Consumed), png(PairingState::Expired));
        assert!(shown(PairingState::Expired, Format::Svg).data.unwrap().contains("has expired"));
    }
}
