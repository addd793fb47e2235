//! The JSON that agent and devices exchange, sealed end to end (protocol, Payloads).
//!
//! A [`Payload`] is an envelope (`v`, `kind`, `id`, `ts`) around a [`ToDevice`] or a [`ToAgent`]. Unknown fields are
//! ignored; unknown kinds and other versions are errors that the receiver drops. Errors never quote content.

mod items;
mod raw;
mod secret;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

pub use items::{Approval, Clarification, Elicitation, InboxUpdate};
pub use raw::RawJson;
pub use secret::SecretObject;

use crate::limits::MESSAGE_LIFE_MS;

/// The only payload version.
pub const VERSION: u64 = 1;

/// A payload with its envelope.
#[derive(Debug, Clone, PartialEq)]
pub struct Payload<K> {
    /// UUID v4, unique per payload.
    pub id: String,
    /// When the sender made it, Unix milliseconds by its own clock.
    pub ts: u64,
    /// What it says.
    pub content: K,
}

/// What an agent sends to a device.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToDevice {
    /// The whole inbox; replaces what the device had.
    InboxUpdate(InboxUpdate),
    /// Something to know.
    Notification(Notification),
    /// An answer was taken, or was too late.
    Ack(Ack),
}

/// What a device sends to its agent.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToAgent {
    /// Who the device is; first message after pairing.
    Hello(Hello),
    /// Asks for the snapshot.
    InboxRequest,
    /// Decides an approval.
    ApprovalResponse(ApprovalResponse),
    /// Answers a question.
    ClarificationResponse(ClarificationResponse),
    /// Answers a prompt of an MCP server.
    ElicitationResponse(ElicitationResponse),
    /// Leaves the namespace.
    Logout,
    /// Confirms a payload.
    Ack(Ack),
}

/// A title and a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notification {
    /// One line.
    pub title: String,
    /// The text.
    pub body: String,
}

/// Confirms the payload with id `ref_id`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// The confirmed payload's `id`.
    pub ref_id: String,
    /// Ours: what became of an answer. Absent: received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Ours: with [`Outcome::Superseded`], the name of the device whose answer was first, if another device's was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered_by: Option<String>,
}

/// What became of an answer (ours; only in acks to devices).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It counts.
    Accepted,
    /// Another answer was first, or the item is gone.
    Superseded,
    /// The item's content had not reached the device in full; it is still pending.
    NotShown,
    /// Too old; the item, if any, is still pending.
    Expired,
}

/// First message of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Details that the relay does not learn.
    pub device_info: DeviceInfo,
}

/// What a device says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// `ios`, `android`, …
    pub platform: String,
    /// Hardware model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Version of the operating system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_version: Option<String>,
    /// Version of the app.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_version: Option<String>,
    /// The name its owner gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_name: Option<String>,
}

/// Decides an approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalResponse {
    /// The item's id as the snapshot gave it.
    pub request_id: String,
    /// Yes or no.
    pub decision: Decision,
    /// Why; typically with a rejection.
    #[serde(default)]
    pub reason: Option<String>,
    /// With an approval: let similar calls pass for so many seconds; 0 means for the entire run of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bypass_secs: Option<u64>,
}

/// Yes or no.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// Do it.
    Approved,
    /// Do not.
    Rejected,
}

/// Answers a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClarificationResponse {
    /// The item's id as the snapshot gave it.
    pub request_id: String,
    /// Free text.
    pub answer: String,
}

/// Answers a prompt of an MCP server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ElicitationResponse {
    /// The item's id as the snapshot gave it.
    pub request_id: String,
    /// What to do.
    pub action: ElicitationAction,
    /// With `accept` of a value prompt: the value under the item's `field_name`. May be a secret.
    #[serde(default)]
    pub content: Option<SecretObject>,
}

/// What to do with a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ElicitationAction {
    /// Here is the value, or yes.
    Accept,
    /// No.
    Decline,
    /// Abort the whole request.
    Cancel,
}

/// Why a payload was dropped. Never quotes content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// No JSON object with an envelope, or a field is missing or of the wrong type.
    #[error("malformed payload: {0}")]
    Malformed(String),
    /// Another version.
    #[error("payload version {0} is unknown")]
    Version(u64),
    /// A kind that this side does not take.
    #[error("payload kind is unknown")]
    Kind,
    /// `ts` is more than 7 days off.
    #[error("payload is more than 7 days off")]
    Stale,
}

#[derive(Deserialize)]
struct Head {
    v: u64,
    kind: String,
    id: String,
    ts: u64,
}

#[derive(Serialize)]
struct Whole<'a, K> {
    v: u64,
    id: &'a str,
    ts: u64,
    #[serde(flatten)]
    content: &'a K,
}

/// The kinds of one direction. Read by name first and then in one pass: buffering the whole (as serde's tagged enums do)
/// would lose numbers as they were written.
pub trait Kind: Serialize + Sized {
    /// The kind's own fields; `None` for a kind that this side does not take.
    fn read(kind: &str, json: &[u8]) -> Option<Result<Self, serde_json::Error>>;
}

fn fields<'de, T: Deserialize<'de>, K>(json: &'de [u8], make: fn(T) -> K) -> Result<K, serde_json::Error> {
    serde_json::from_slice(json).map(make)
}

impl Kind for ToDevice {
    fn read(kind: &str, json: &[u8]) -> Option<Result<Self, serde_json::Error>> {
        Some(match kind {
            "inbox_update" => fields(json, Self::InboxUpdate),
            "notification" => fields(json, Self::Notification),
            "ack" => fields(json, Self::Ack),
            _ => return None,
        })
    }
}

impl Kind for ToAgent {
    fn read(kind: &str, json: &[u8]) -> Option<Result<Self, serde_json::Error>> {
        Some(match kind {
            "hello" => fields(json, Self::Hello),
            "inbox_request" => Ok(Self::InboxRequest),
            "approval_response" => fields(json, Self::ApprovalResponse),
            "clarification_response" => fields(json, Self::ClarificationResponse),
            "elicitation_response" => fields(json, Self::ElicitationResponse),
            "logout" => Ok(Self::Logout),
            "ack" => fields(json, Self::Ack),
            _ => return None,
        })
    }
}

impl<K: Kind> Payload<K> {
    /// Reads and validates an opened payload; `now` in Unix milliseconds (protocol, Freshness).
    pub fn parse(json: &[u8], now: u64) -> Result<Self, PayloadError> {
        let malformed = |error: serde_json::Error| PayloadError::Malformed(describe(&error));
        let head: Head = serde_json::from_slice(json).map_err(malformed)?;
        if head.v != VERSION {
            return Err(PayloadError::Version(head.v));
        }
        let content = K::read(&head.kind, json).ok_or(PayloadError::Kind)?.map_err(malformed)?;
        if head.id.is_empty() || head.id.len() > 64 {
            return Err(PayloadError::Malformed("id is empty or too long".into()));
        }
        if now.abs_diff(head.ts) > MESSAGE_LIFE_MS {
            return Err(PayloadError::Stale);
        }
        Ok(Self { id: head.id, ts: head.ts, content })
    }

    /// The JSON to seal. Wiped when dropped: it may carry a secret.
    pub fn to_json(&self) -> Zeroizing<Vec<u8>> {
        let whole = Whole { v: VERSION, id: &self.id, ts: self.ts, content: &self.content };
        // Measured first: a buffer that grows leaves copies behind that nobody wipes. Strings, integers and JSON values
        // alone: serialization cannot fail.
        let mut length = Length(0);
        let _ = serde_json::to_writer(&mut length, &whole);
        let mut json = Zeroizing::new(Vec::with_capacity(length.0));
        let _ = serde_json::to_writer(&mut *json, &whole);
        json
    }
}

/// Counts what is written to it.
struct Length(usize);

impl std::io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A UUID v4 from 16 random bytes.
pub fn uuid_v4(random: [u8; 16]) -> String {
    uuid::Builder::from_random_bytes(random).into_uuid().to_string()
}

/// What is wrong with a JSON text, and where, without quoting any of it (serde's own messages quote values).
pub fn describe(error: &serde_json::Error) -> String {
    use serde_json::error::Category;
    let what = match error.classify() {
        Category::Io => "cannot be read",
        Category::Syntax => "is not JSON",
        Category::Data => "has a missing field or one of the wrong type",
        Category::Eof => "ends too early",
    };
    format!("{what} (line {}, column {})", error.line(), error.column())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_750_000_000_000;

    fn to_agent(kind: &str, fields: &str) -> Result<ToAgent, PayloadError> {
        let json = format!(r#"{{"v":1,"kind":"{kind}","id":"a","ts":{NOW}{fields}}}"#);
        Payload::<ToAgent>::parse(json.as_bytes(), NOW).map(|payload| payload.content)
    }

    #[test]
    fn each_kind_from_a_device_is_read() {
        assert_eq!(to_agent("inbox_request", ""), Ok(ToAgent::InboxRequest));
        assert_eq!(to_agent("logout", r#","new":[1]"#), Ok(ToAgent::Logout));
        assert_eq!(
            to_agent(
                "approval_response",
                r#","request_id":"1.a","decision":"approved","reason":null,"bypass_secs":900"#
            ),
            Ok(ToAgent::ApprovalResponse(ApprovalResponse {
                request_id: "1.a".into(),
                decision: Decision::Approved,
                reason: None,
                bypass_secs: Some(900)
            }))
        );
        assert_eq!(
            to_agent("clarification_response", r#","request_id":"1","answer":"Yes""#),
            Ok(ToAgent::ClarificationResponse(ClarificationResponse { request_id: "1".into(), answer: "Yes".into() }))
        );
        let Ok(ToAgent::ElicitationResponse(answer)) =
            to_agent("elicitation_response", r#","request_id":"1","action":"accept","content":{"password":"hunter2"}"#)
        else {
            panic!("not read");
        };
        assert_eq!(answer.content.as_ref().unwrap().expose().get("password").unwrap(), "hunter2");
        assert!(!format!("{answer:?}").contains("hunter2"));
        let Ok(ToAgent::Hello(hello)) = to_agent("hello", r#","device_info":{"platform":"ios","device_name":"Phone"}"#)
        else {
            panic!("not read");
        };
        assert_eq!(hello.device_info.device_name.as_deref(), Some("Phone"));
    }

    #[test]
    fn what_is_wrong_is_said_without_the_content() {
        assert_eq!(to_agent("inbox_update", ""), Err(PayloadError::Kind));
        assert_eq!(to_agent("later", ""), Err(PayloadError::Kind));
        for fields in [
            r#","request_id":"1","decision":"maybe-hunter2""#,
            r#","request_id":1,"decision":"approved""#,
            r#","decision":"approved""#,
            r#","request_id":"1","decision":"approved","bypass_secs":-1"#,
        ] {
            let error = to_agent("approval_response", fields).unwrap_err();
            assert!(matches!(error, PayloadError::Malformed(_)), "{fields}");
            assert!(!error.to_string().contains("hunter2"));
        }
        assert!(to_agent("elicitation_response", r#","request_id":"1","action":"accept","content":"bare""#).is_err());
        let parse = |json: &str| Payload::<ToAgent>::parse(json.as_bytes(), NOW).unwrap_err();
        assert_eq!(parse(r#"{"v":2,"kind":"logout","id":"a","ts":1}"#), PayloadError::Version(2));
        let old = format!(r#"{{"v":1,"kind":"logout","id":"a","ts":{}}}"#, NOW - MESSAGE_LIFE_MS - 1);
        assert_eq!(parse(&old), PayloadError::Stale);
        for text in ["", "[]", "{}", "\u{feff}{}", r#"{"v":1,"kind":"logout","id":"","ts":1750000000000}"#] {
            assert!(matches!(parse(text), PayloadError::Malformed(_)), "{text}");
        }
    }

    #[test]
    fn arguments_of_a_snapshot_stay_as_they_were_written() {
        let arguments = r#"{"z": 1.10, "a":123456789012345678901234567890}"#;
        let json = format!(
            r#"{{"v":1,"id":"a","ts":{NOW},"kind":"inbox_update","badge":1,"approvals":[{{"request_id":"1","tool_name":"t","agent_label":"Skald","summary":"s","arguments":{arguments},"created_at":5,"blocks":[{{"t":"x"}}]}}],"clarifications":[]}}"#
        );
        let payload = Payload::<ToDevice>::parse(json.as_bytes(), NOW).unwrap();
        let ToDevice::InboxUpdate(inbox) = &payload.content else { panic!("not a snapshot") };
        assert_eq!((inbox.count(), inbox.approvals[0].arguments.as_ref().unwrap().get()), (1, arguments));
        assert_eq!(Payload::<ToDevice>::parse(&payload.to_json(), NOW), Ok(payload));
    }

    #[test]
    fn json_that_may_hold_a_secret_is_written_without_growing() {
        let content = ToAgent::ElicitationResponse(ElicitationResponse {
            request_id: "1".into(),
            action: ElicitationAction::Accept,
            content: Some(SecretObject::single("password", "x".repeat(10_000))),
        });
        let json = Payload { id: "a".into(), ts: NOW, content }.to_json();
        assert_eq!(json.capacity(), json.len());
    }

    #[test]
    fn a_uuid_has_version_4() {
        assert_eq!(uuid_v4([0xff; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }
}
