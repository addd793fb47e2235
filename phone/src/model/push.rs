//! What a push carries, opened and put into words, without changing anything (protocol, Push).
//!
//! An app's notification part runs while the app itself may be running, often in a process of its own. So it reads and
//! never writes: no counter is noted and nothing is acknowledged. The message will come once more, over the connection.
//! What is shown here can therefore be shown twice, and what was put into words is all that a push may do.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use skald_common::crypto::{Direction, Identity, SessionKey};
use skald_common::framing::{Body, unframe};
use skald_common::ids::{Ed25519Public, MessageNonce, NamespaceId};
use skald_common::payload::{InboxUpdate, Notification, Payload, PayloadError, ToDevice, describe};

use super::account::Account;
use super::item::{Entry, entries};
use super::text;

/// Largest body of a push, bytes. Apple's, Google's and the browsers' services end at 4,096.
pub const MAX_BODY: usize = 16 * 1024;
/// Lines that a notification has at most.
const MAX_LINES: usize = 8;
/// Characters that a title or a line has at most.
const MAX_LINE: usize = 240;

/// What a push says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// Whom it is for.
    pub namespace: NamespaceId,
    /// What it carries.
    pub cargo: Cargo,
}

/// What a [`Push`] carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cargo {
    /// Nothing: the app is to connect.
    Wake,
    /// A message.
    Sealed {
        /// Its sender, so the relay says.
        from: Ed25519Public,
        /// Its nonce.
        nonce: MessageNonce,
        /// Ciphertext and tag.
        ciphertext: Vec<u8>,
    },
}

/// What is to be shown. All texts are safe: control characters, and characters that are invisible or change the direction
/// of text, are escapes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// What it is about.
    pub kind: ShownKind,
    /// One line.
    pub title: String,
    /// The body, a few lines; the newest first.
    pub lines: Vec<String>,
    /// How many items are pending, where that was said: the number for the app's icon.
    pub items: Option<usize>,
    /// The app has had this message already: nothing is new.
    pub seen: bool,
}

/// What a [`Shown`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ShownKind {
    /// What is pending.
    Inbox,
    /// A notification of the agent.
    Notification,
    /// The push did not say: the app is to be opened.
    Wake,
}

/// Why a push shows nothing. Never quotes it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// Larger than any service delivers.
    #[error("the push is longer than {MAX_BODY} bytes")]
    Size,
    /// Not JSON, or not an object.
    #[error("the push {0}")]
    Json(String),
    /// A field is missing.
    #[error("the push has no field \"{0}\"")]
    Missing(&'static str),
    /// A field is not what it must be.
    #[error("the push's field \"{field}\" is not {expected}")]
    Field {
        /// Which.
        field: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// It is for another namespace.
    #[error("the push is for another pairing (namespace {}…)", .0.short())]
    OtherPairing(NamespaceId),
    /// Another member of the namespace has sent it, or the relay says so.
    #[error("the push is not from this phone's agent but from {}…", .0.short())]
    OtherSender(Ed25519Public),
    /// Not sealed by the agent for this phone, or changed on the way.
    #[error("the message in the push does not open: it is not from the agent, not for this phone, or was changed")]
    Unreadable,
    /// It says nothing that this build understands, or is too old.
    #[error("the message in the push cannot be shown: {0}")]
    Payload(#[from] PayloadError),
    /// A valid message that is nothing for a person.
    #[error("the message in the push is nothing to be shown")]
    Nothing,
}

impl PushError {
    /// Whether the push itself is malformed, rather than for somebody else or of no interest.
    pub const fn is_malformed(&self) -> bool {
        matches!(self, Self::Size | Self::Json(_) | Self::Missing(_) | Self::Field { .. })
    }
}

impl Push {
    /// Reads the JSON of a push: an APNs body, the data map of an FCM message, or what a Web Push was decrypted to.
    pub fn parse(json: &[u8]) -> Result<Self, PushError> {
        if json.len() > MAX_BODY {
            return Err(PushError::Size);
        }
        let fields = Fields::read(json)?;
        let namespace = hex(fields.ns.as_deref(), "ns", "64 hex digits", NamespaceId::from_hex)?;
        if fields.wakes()? {
            return Ok(Self { namespace, cargo: Cargo::Wake });
        }
        // FCM keeps the word "from" for itself, and may put its own sender there.
        let (sender, name) =
            fields.sender.as_deref().map_or((fields.from.as_deref(), "from"), |it| (Some(it), "sender"));
        let from = hex(sender, name, "64 hex digits", Ed25519Public::from_hex)?;
        let nonce = hex(fields.n.as_deref(), "n", "24 hex digits", MessageNonce::from_hex)?;
        let sealed = fields.c.ok_or(PushError::Missing("c"))?;
        let ciphertext = STANDARD
            .decode(sealed)
            .map_err(|_| PushError::Field { field: "c", expected: "base64 with its padding" })?;
        Ok(Self { namespace, cargo: Cargo::Sealed { from, nonce, ciphertext } })
    }

    /// Opens it for the phone with this pairing and these keys, and puts it into words. `now` in Unix milliseconds.
    pub fn show(&self, account: &Account, identity: &Identity, now: u64) -> Result<Shown, PushError> {
        let agent = account.agent;
        if self.namespace != agent.namespace() {
            return Err(PushError::OtherPairing(self.namespace));
        }
        let (from, nonce, ciphertext) = match &self.cargo {
            Cargo::Wake => return Ok(wake()),
            Cargo::Sealed { from, nonce, ciphertext } => (from, nonce, ciphertext),
        };
        if *from != agent.ed25519 {
            return Err(PushError::OtherSender(*from));
        }
        let key = SessionKey::agree(identity, agent.ed25519, &agent.x25519, self.namespace, Direction::ClientToAgent);
        let opened = key.map_err(|_| PushError::Unreadable)?.open(nonce, ciphertext);
        let (counter, framed) = opened.map_err(|_| PushError::Unreadable)?;
        let Ok(Body::Json(json)) = unframe(&framed) else { return Err(PushError::Nothing) };
        let seen = counter <= account.counters.received;
        match Payload::<ToDevice>::parse(&json, now)?.content {
            ToDevice::InboxUpdate(update) => Ok(inbox(update, &json, seen)),
            ToDevice::Notification(notification) => Ok(notice(&notification, seen)),
            ToDevice::Ack(_) => Err(PushError::Nothing),
        }
    }
}

fn hex<T, E>(
    text: Option<&str>,
    field: &'static str,
    expected: &'static str,
    read: impl Fn(&str) -> Result<T, E>,
) -> Result<T, PushError> {
    let text = text.ok_or(PushError::Missing(field))?;
    read(text).map_err(|_| PushError::Field { field, expected })
}

fn wake() -> Shown {
    let lines = vec!["Action required: open the app".to_owned()];
    Shown { kind: ShownKind::Wake, title: "Skald".into(), lines, items: None, seen: false }
}

fn inbox(update: InboxUpdate, json: &[u8], seen: bool) -> Shown {
    let entries = entries(update, json);
    let title = match entries.len() {
        0 => "Nothing is pending".to_owned(),
        1 => "1 item is pending".to_owned(),
        count => format!("{count} items are pending"),
    };
    let lines = at_most(entries.iter().rev().map(entry_line), entries.len());
    Shown { kind: ShownKind::Inbox, title, lines, items: Some(entries.len()), seen }
}

/// Kind, origin and title, as in the list of what is pending.
fn entry_line(entry: &Entry) -> String {
    let from = text::short_line(entry.from(), 40);
    format!("{} ({from}): {}", entry.kind().word(), text::short_line(entry.title(), MAX_LINE - 60))
}

fn notice(notification: &Notification, seen: bool) -> Shown {
    let title = text::short_line(&notification.title, MAX_LINE);
    let title = if title.is_empty() { "Skald".to_owned() } else { title };
    let body = text::lines(&notification.body);
    let lines = at_most(body.iter().map(|line| text::short_line(line, MAX_LINE)), body.len());
    Shown { kind: ShownKind::Notification, title, lines, items: None, seen }
}

fn at_most(lines: impl Iterator<Item = String>, count: usize) -> Vec<String> {
    if count <= MAX_LINES {
        return lines.collect();
    }
    let rest = count - (MAX_LINES - 1);
    lines.take(MAX_LINES - 1).chain([format!("… and {rest} more")]).collect()
}

/// What a wrapping has, if it is one.
#[derive(Deserialize)]
struct Wrapping<'a> {
    #[serde(borrow)]
    d: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Fields {
    ns: Option<String>,
    from: Option<String>,
    sender: Option<String>,
    n: Option<String>,
    c: Option<String>,
    wake: Option<Wake>,
}

/// In FCM's data map all values are text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Wake {
    Is(bool),
    Text(String),
}

impl Fields {
    /// Reads the object, without its wrapping or within.
    fn read(json: &[u8]) -> Result<Self, PushError> {
        let object = |json: &[u8]| json.trim_ascii_start().first() == Some(&b'{');
        let malformed = |error: serde_json::Error| PushError::Json(describe(&error));
        if !object(json) {
            return Err(PushError::Json("is not a JSON object".into()));
        }
        let Wrapping { d } = serde_json::from_slice(json).map_err(malformed)?;
        let inner = d.map_or(json, |inner| inner.get().as_bytes());
        if !object(inner) {
            return Err(PushError::Field { field: "d", expected: "an object" });
        }
        serde_json::from_slice(inner).map_err(malformed)
    }

    fn wakes(&self) -> Result<bool, PushError> {
        match &self.wake {
            None | Some(Wake::Is(false)) => Ok(false),
            Some(Wake::Is(true)) => Ok(true),
            Some(Wake::Text(text)) => match text.as_str() {
                "true" => Ok(true),
                "false" => Ok(false),
                _ => Err(PushError::Field { field: "wake", expected: "true or false" }),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use skald_common::crypto::Seed;
    use skald_common::framing::{Compression, frame_json, frame_pipe_signal};

    use super::*;
    use crate::model::account::AgentKeys;

    const NOW: u64 = 1_750_000_000_000;

    fn agent() -> Identity {
        Identity::new(&Seed::new([1; 32]))
    }

    fn phone() -> Identity {
        Identity::new(&Seed::new([2; 32]))
    }

    fn account() -> Account {
        let agent = AgentKeys { ed25519: agent().ed25519_pub(), x25519: agent().x25519_pub() };
        Account::new(agent, "ws://relay.example".into(), "Phone".into(), NOW)
    }

    fn sealed_by(from: &Identity, counter: u64, framed: &[u8]) -> (MessageNonce, Vec<u8>) {
        let phone = phone();
        let namespace = agent().namespace_id();
        SessionKey::agree(from, phone.ed25519_pub(), &phone.x25519_pub(), namespace, Direction::AgentToClient)
            .unwrap()
            .seal(counter, framed)
            .unwrap()
    }

    fn data(counter: u64, framed: &[u8]) -> serde_json::Value {
        let (nonce, sealed) = sealed_by(&agent(), counter, framed);
        json!({"ns": agent().namespace_id(), "from": agent().ed25519_pub(), "n": nonce, "c": STANDARD.encode(sealed)})
    }

    fn show(json: &serde_json::Value) -> Result<Shown, PushError> {
        Push::parse(json.to_string().as_bytes())?.show(&account(), &phone(), NOW)
    }

    fn payload(kind: &str, fields: &str) -> Vec<u8> {
        format!(r#"{{"v":1,"kind":"{kind}","id":"x","ts":{NOW},{fields}}}"#).into_bytes()
    }

    fn shown(kind: &str, fields: &str) -> Result<Shown, PushError> {
        show(&data(5, &frame_json(&payload(kind, fields), Compression::Off)))
    }

    fn approvals(count: usize) -> String {
        let one = |n: usize| {
            format!(
                r#"{{"request_id":"a.{n}","tool_name":"t","agent_label":"Skald","summary":"Do {n}","created_at":{n}}}"#
            )
        };
        let all: Vec<String> = (0..count).map(one).collect();
        format!(r#""badge":{count},"approvals":[{}],"clarifications":[]"#, all.join(","))
    }

    #[test]
    fn each_services_wrapping_says_the_same() {
        let framed = frame_json(&payload("notification", r#""title":"Backup","body":"done""#), Compression::Off);
        let data = data(5, &framed);
        let apns =
            json!({"aps": {"alert": {"title": "Skald", "body": "Action required"}, "mutable-content": 1}, "d": data});
        let expected = Shown {
            kind: ShownKind::Notification,
            title: "Backup".into(),
            lines: vec!["done".into()],
            items: None,
            seen: false,
        };
        assert_eq!(show(&apns), Ok(expected.clone()));
        assert_eq!(show(&data), Ok(expected.clone()), "Web Push has no wrapping");
        let mut fcm = data.clone();
        fcm["sender"] = fcm["from"].take();
        assert_eq!(show(&fcm), Ok(expected.clone()), "FCM calls the sender otherwise");
        fcm["from"] = "123456789012".into();
        assert_eq!(show(&fcm), Ok(expected.clone()), "and may name its own");
        let mut more = data.clone();
        more["google.sent_time"] = "5".into();
        more["ns"] = data["ns"].as_str().unwrap().to_uppercase().into();
        assert_eq!(show(&more), Ok(expected), "unknown fields and upper case");
    }

    #[test]
    fn a_wake_says_to_open_the_app() {
        let ns = agent().namespace_id();
        let expected = show(&json!({"ns": ns, "wake": true})).unwrap();
        assert_eq!((expected.kind, expected.lines.len()), (ShownKind::Wake, 1));
        assert_eq!(show(&json!({"ns": ns, "wake": "true"})), Ok(expected.clone()));
        assert_eq!(show(&json!({"aps": {"content-available": 1}, "d": {"ns": ns, "wake": true}})), Ok(expected));
        let other = phone().namespace_id();
        assert_eq!(show(&json!({"ns": other, "wake": true})), Err(PushError::OtherPairing(other)));
    }

    #[test]
    fn items_are_shown_as_in_the_inbox_and_a_prompt_without_its_value() {
        let fields = r#""badge":3,
            "approvals":[{"request_id":"a","tool_name":"execute_cmd","agent_label":"Skald\u001b[2J","summary":"Run \u202eit","created_at":1,"arguments":{"secret":"hunter2"}}],
            "clarifications":[{"request_id":"q","question":"Pay\n€240?","agent_label":"Skald","created_at":2}],
            "elicitations":[{"request_id":"e","server_name":"ssh","message":"Password of deploy","field_name":"password","sensitive":true,"is_confirmation":false,"created_at":3,"value":"hunter2"}]"#;
        let shown = shown("inbox_update", fields).unwrap();
        assert_eq!((shown.kind, shown.items, shown.title.as_str()), (ShownKind::Inbox, Some(3), "3 items are pending"));
        let lines = [
            "prompt (ssh): Password of deploy",
            "question (Skald): Pay\\n€240?",
            "approval (Skald\\u{1b}[2J): Run \\u{202e}it",
        ];
        assert_eq!(shown.lines, lines);
    }

    #[test]
    fn long_content_is_bounded_and_compressed_content_is_read() {
        let json = payload("inbox_update", &approvals(30));
        let packed = frame_json(&json, Compression::WhenSmaller);
        assert!(packed.len() < json.len());
        let inbox = show(&data(5, &packed)).unwrap();
        assert_eq!((inbox.items, inbox.lines.len()), (Some(30), MAX_LINES));
        assert_eq!((inbox.lines[0].as_str(), inbox.lines[7].as_str()), ("approval (Skald): Do 29", "… and 23 more"));
        let exactly = shown("inbox_update", &approvals(MAX_LINES)).unwrap();
        assert_eq!((exactly.lines.len(), exactly.lines[7].as_str()), (MAX_LINES, "approval (Skald): Do 0"));
        assert_eq!(shown("inbox_update", &approvals(1)).unwrap().title, "1 item is pending");
        let none = shown("inbox_update", &approvals(0)).unwrap();
        assert_eq!((none.items, none.title.as_str()), (Some(0), "Nothing is pending"));
        let body = format!(r#""title":"","body":"{}{}""#, "x".repeat(1000), "\\ny".repeat(20));
        let notice = shown("notification", &body).unwrap();
        assert_eq!((notice.title.as_str(), notice.lines.len()), ("Skald", MAX_LINES));
        assert!(notice.lines.iter().all(|line| line.chars().count() <= MAX_LINE), "{notice:?}");
    }

    #[test]
    fn what_the_app_has_had_is_nothing_new() {
        let mut account = account();
        account.counters.received = 5;
        let framed = frame_json(&payload("notification", r#""title":"T","body":"B""#), Compression::Off);
        for (counter, seen) in [(4, true), (5, true), (6, false)] {
            let push = Push::parse(data(counter, &framed).to_string().as_bytes()).unwrap();
            assert_eq!(push.show(&account, &phone(), NOW).unwrap().seen, seen, "{counter}");
        }
    }

    #[test]
    fn only_the_agents_own_message_for_this_phone_is_shown() {
        let framed = frame_json(&payload("notification", r#""title":"T","body":"B""#), Compression::Off);
        let good = data(5, &framed);
        let changed = |field: &str, value: serde_json::Value| {
            let mut data = good.clone();
            data[field] = value;
            show(&data).unwrap_err()
        };
        let stranger = Identity::new(&Seed::new([3; 32]));
        let ns = stranger.namespace_id();
        assert_eq!(changed("ns", json!(ns)), PushError::OtherPairing(ns));
        let key = stranger.ed25519_pub();
        assert_eq!(changed("from", json!(key)), PushError::OtherSender(key));
        let (nonce, sealed) = sealed_by(&stranger, 5, &framed);
        assert_eq!(changed("c", json!(STANDARD.encode(sealed))), PushError::Unreadable);
        assert_eq!(changed("c", json!(STANDARD.encode([0; 15]))), PushError::Unreadable);
        assert_eq!(changed("c", json!("")), PushError::Unreadable);
        assert_eq!(changed("n", json!("00000002000000000000000a")), PushError::Unreadable, "{nonce}");
        // What this phone itself has sealed, sent back to it.
        let (agent, namespace) = (agent(), agent().namespace_id());
        let key =
            SessionKey::agree(&phone(), agent.ed25519_pub(), &agent.x25519_pub(), namespace, Direction::ClientToAgent);
        let (nonce, sealed) = key.unwrap().seal(5, &framed).unwrap();
        let mut reflected = good.clone();
        (reflected["n"], reflected["c"]) = (json!(nonce), json!(STANDARD.encode(sealed)));
        assert_eq!(show(&reflected), Err(PushError::Unreadable));
    }

    #[test]
    fn a_message_that_is_old_unknown_or_for_nobodys_eyes_says_so_without_being_quoted() {
        let framed = frame_json(&payload("notification", r#""title":"hunter2","body":"B""#), Compression::Off);
        let push = Push::parse(data(5, &framed).to_string().as_bytes()).unwrap();
        let late = NOW + 7 * 24 * 3_600_000 + 1;
        assert_eq!(push.show(&account(), &phone(), late), Err(PushError::Payload(PayloadError::Stale)));
        assert_eq!(shown("later", r#""a":1"#), Err(PushError::Payload(PayloadError::Kind)));
        assert_eq!(shown("ack", r#""ref_id":"x""#), Err(PushError::Nothing));
        assert_eq!(show(&data(5, &frame_pipe_signal(b"x"))), Err(PushError::Nothing));
        assert_eq!(show(&data(5, b"\x07\x00{}")), Err(PushError::Nothing));
        let error = shown("notification", r#""title":"hunter2","body":5"#).unwrap_err();
        assert!(matches!(error, PushError::Payload(PayloadError::Malformed(_))) && !error.is_malformed());
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    #[test]
    fn a_malformed_push_is_named_by_its_field_and_not_quoted() {
        let good = data(5, b"\x01\x00{}");
        let bad = |field: &str, value: serde_json::Value| {
            let mut data = good.clone();
            data[field] = value;
            data
        };
        let without = |field: &str| {
            let mut data = good.clone();
            data.as_object_mut().unwrap().remove(field);
            data
        };
        for (push, words) in [
            (without("ns"), "no field \"ns\""),
            (without("from"), "no field \"from\""),
            (without("n"), "no field \"n\""),
            (without("c"), "no field \"c\""),
            (bad("ns", json!("hunter2")), "\"ns\" is not 64 hex digits"),
            (bad("from", json!("ab".repeat(33))), "\"from\" is not 64 hex digits"),
            (bad("sender", json!("hunter2")), "\"sender\" is not 64 hex digits"),
            (bad("n", json!("zz".repeat(12))), "\"n\" is not 24 hex digits"),
            (bad("n", json!("é".repeat(12))), "\"n\" is not 24 hex digits"),
            (bad("c", json!("hunter2")), "\"c\" is not base64"),
            (bad("c", json!("AAAA\nAAAA")), "\"c\" is not base64"),
            (bad("c", json!("AA")), "\"c\" is not base64"),
            (bad("c", json!("AB==")), "\"c\" is not base64"),
            (bad("c", json!("_-==")), "\"c\" is not base64"),
            (bad("c", json!(5)), "wrong type"),
            (bad("wake", json!("hunter2")), "\"wake\" is not true or false"),
            (bad("wake", json!(1)), "wrong type"),
            (json!({"d": "hunter2"}), "\"d\" is not an object"),
            (json!({"d": [1]}), "\"d\" is not an object"),
            (json!({"d": {}}), "no field \"ns\""),
            (json!(["hunter2", "b", "c", "d"]), "is not a JSON object"),
            (json!("hunter2"), "is not a JSON object"),
        ] {
            let error = show(&push).unwrap_err();
            assert!(error.is_malformed() && error.to_string().contains(words), "{error}, not {words}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        for (text, words) in [
            ("", "is not a JSON object"),
            ("\u{feff}{}", "is not a JSON object"),
            ("{", "ends too early"),
            ("{\"ns\":\"hunter2", "ends too early"),
            ("{\"ns\":\"a\",\"ns\":\"b\"}", "missing field or one of the wrong type"),
            ("{} {}", "is not JSON"),
        ] {
            let error = Push::parse(text.as_bytes()).unwrap_err();
            assert!(error.is_malformed() && error.to_string().contains(words), "{text}: {error}");
        }
        assert_eq!(Push::parse(&vec![b' '; MAX_BODY + 1]), Err(PushError::Size));
        assert!(
            Push::parse(&[b"{\"a\":".repeat(2000), vec![b'1']].concat()).unwrap_err().is_malformed(),
            "deep nesting"
        );
    }
}
