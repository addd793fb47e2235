//! Phones: each has a seed, reads what comes, and answers what it has been shown, now or much later, once or twice.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};
use skald_common::crypto::{Direction, Identity, Seed, SessionKey, split_nonce};
use skald_common::framing::{Body, Compression, frame_json, frame_pipe_signal, unframe};
use skald_common::ids::{ConnectionId, Ed25519Public, MessageNonce, X25519Public};
use skald_common::pipe::signal::{Handshake, Invite, Signal};
use skald_common::wire::Platform;

use super::relay::Sealed;
use crate::hub::items::Kind;
use crate::hub::tests::names;

/// The lists of a snapshot, and where the text that names the item stands in each.
const LISTS: [(Kind, &str, &str); 3] = [
    (Kind::Approval, "approvals", "summary"),
    (Kind::Clarification, "clarifications", "question"),
    (Kind::Elicitation, "elicitations", "message"),
];

/// An item as a phone was shown it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) id: String,
    /// The words of the host, different for each content.
    pub(super) tag: String,
    pub(super) kind: Kind,
    /// With everything that belongs to it.
    pub(super) whole: bool,
}

/// Something that a phone wants to say.
#[derive(Debug, Clone)]
pub(super) struct Letter {
    pub(super) sealed: Sealed,
    pub(super) live: bool,
}

/// What came to a phone.
#[derive(Debug)]
pub(super) enum News {
    Inbox,
    Ack { payload: String, outcome: String },
    Other,
}

pub(super) struct Phone {
    pub(super) key: Ed25519Public,
    pub(super) x25519: X25519Public,
    session: SessionKey,
    pub(super) platform: Platform,
    /// Says hello as a phone of ours, which is told what became of its answers.
    pub(super) ours: bool,
    /// It wants to be connected.
    pub(super) awake: bool,
    sent: u64,
    received: u64,
    pub(super) inbox: Vec<Shown>,
    /// Everything that it was ever shown.
    pub(super) known: BTreeMap<String, Shown>,
    /// Not taken by the relay yet.
    pub(super) outbox: VecDeque<Letter>,
    /// The last payload, to be said again under another counter, and the last letter, to be sent again as it is.
    pub(super) last: Option<(String, String)>,
    pub(super) last_letter: Option<Letter>,
}

impl Phone {
    /// The phone with this number; equal numbers are the same phone.
    pub(super) fn new(number: u8) -> Self {
        let identity = Identity::new(&Seed::new([number + 1; 32]));
        let agent = names();
        let session =
            SessionKey::agree(&identity, agent.ed25519, &agent.x25519, agent.namespace, Direction::ClientToAgent);
        Self {
            key: identity.ed25519_pub(),
            x25519: identity.x25519_pub(),
            session: session.unwrap(),
            platform: if number.is_multiple_of(2) { Platform::Android } else { Platform::Ios },
            ours: number % 3 != 1,
            awake: false,
            sent: 1,
            received: 0,
            inbox: Vec::new(),
            known: BTreeMap::new(),
            outbox: VecDeque::new(),
            last: None,
            last_letter: None,
        }
    }

    /// What it has from an earlier pairing is forgotten; counters go on.
    pub(super) fn forget(&mut self) {
        self.inbox.clear();
        self.known.clear();
        self.outbox.clear();
        (self.last, self.last_letter) = (None, None);
    }

    /// Seals a payload and puts it into the outbox.
    pub(super) fn say(&mut self, json: &str, live: bool) {
        self.seal(&frame_json(json.as_bytes(), Compression::Off), live);
    }

    fn seal(&mut self, framed: &[u8], live: bool) {
        self.sent += 1;
        let (nonce, ciphertext) = self.session.seal(self.sent, framed).unwrap();
        let sealed = Sealed { nonce: nonce.to_vec(), ciphertext: ciphertext.into() };
        self.outbox.push_back(Letter { sealed, live });
    }

    /// Asks for a pipe.
    pub(super) fn invite(&mut self, connection: ConnectionId, stream_type: &str, live: bool) {
        let invite = Signal::Invite(Invite {
            connection,
            handshake: Handshake::X25519(X25519Public::new([9; 32])),
            stream_type: stream_type.to_owned(),
            compress: vec!["none".to_owned()],
            headers: BTreeMap::new(),
        });
        self.seal(&frame_pipe_signal(&invite.encode()), live);
    }

    /// What a message to this phone says; `None`: it is not for its keys.
    pub(super) fn open(&self, sealed: &Sealed) -> Option<(u64, Value)> {
        let nonce = MessageNonce::from_slice(&sealed.nonce).unwrap();
        let (counter, framed) = self.session.open(&nonce, &sealed.ciphertext).ok()?;
        Some(match unframe(&framed).unwrap() {
            Body::Json(json) => (counter, serde_json::from_slice(&json).unwrap()),
            Body::PipeSignal(signal) => {
                let accept = matches!(Signal::decode(&signal).unwrap(), Signal::Accept(_));
                (counter, json!({"kind": if accept { "accept" } else { "reject" }}))
            }
        })
    }

    /// Reads what has come. Answers what the phone believes to have answered stays away until a snapshot shows it again.
    pub(super) fn read(&mut self, sealed: &Sealed) -> News {
        let Some((counter, json)) = self.open(sealed) else { return News::Other };
        if counter <= self.received {
            return News::Other;
        }
        self.received = counter;
        match json["kind"].as_str().unwrap() {
            "inbox_update" => {
                self.inbox = items(&json);
                for item in &self.inbox {
                    let known = self.known.entry(item.id.clone()).or_insert_with(|| item.clone());
                    known.whole |= item.whole;
                }
                News::Inbox
            }
            "ack" => News::Ack {
                payload: json["ref_id"].as_str().unwrap().to_owned(),
                outcome: json["outcome"].as_str().unwrap().to_owned(),
            },
            _ => News::Other,
        }
    }
}

/// The items of a snapshot.
pub(super) fn items(json: &Value) -> Vec<Shown> {
    let mut found = Vec::new();
    for (kind, list, tag) in LISTS {
        for item in json[list].as_array().unwrap() {
            let text = |name: &str| item[name].as_str().unwrap().to_owned();
            let (id, tag) = (text("request_id"), text(tag));
            found.push(Shown { id, tag, kind, whole: item.get("partial").is_none() });
        }
    }
    found
}

/// The counter of a sealed message.
pub(super) fn counter(sealed: &Sealed) -> u64 {
    split_nonce(&MessageNonce::from_slice(&sealed.nonce).unwrap()).1
}
