//! Everything a phone remembers of one pairing, and what an opened payload does to it.
//!
//! An [`Account`] is saved as a whole after each change. It never holds a secret: the seed is kept elsewhere, and the value
//! of a prompt passes through without being kept.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use skald_common::crypto::namespace_id;
use skald_common::ids::{Ed25519Public, NamespaceId, X25519Public};
use skald_common::payload::{
    Ack, DeviceInfo, Hello, InboxUpdate, Notification, Outcome, Payload, PayloadError, ToAgent, ToDevice,
};

use super::answer::{Answer, AnswerError};
use super::inbox::{AsOf, Inbox};
use super::item::Kind;

/// Version of the saved form.
pub const FORMAT: u32 = 1;
/// `app_version` begins with this: agents send their acks only to apps that know them.
pub const APP: &str = concat!("skald-phone/", env!("CARGO_PKG_VERSION"));

const MAX_NOTICES: usize = 50;
const MAX_SENT: usize = 64;
const MAX_SEEN: usize = 128;

/// One pairing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Account {
    format: u32,
    /// Whom this phone belongs to.
    pub agent: AgentKeys,
    /// Address of the relay as the pairing code gave it.
    pub relay_url: String,
    /// The name that the agent shows for this phone.
    pub device_name: String,
    /// Unix milliseconds.
    pub paired_at: u64,
    /// What the relay last said of this phone.
    pub standing: Standing,
    /// Whether the relay has taken this phone's `hello`.
    pub hello_sent: bool,
    /// Message counters.
    pub counters: Counters,
    /// What is pending.
    pub inbox: Inbox,
    notices: VecDeque<Notice>,
    sent: VecDeque<Sent>,
    /// Ids of notifications and acks, newest last.
    seen: VecDeque<String>,
}

/// The agent's public keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentKeys {
    /// Its name.
    pub ed25519: Ed25519Public,
    /// Its agreement key.
    pub x25519: X25519Public,
}

impl AgentKeys {
    /// The agent's namespace.
    pub fn namespace(&self) -> NamespaceId {
        namespace_id(&self.ed25519)
    }
}

/// What the relay last said of this phone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Paired; the agent's owner has not authorized it yet.
    Pending,
    /// It has been let in.
    Authorized,
    /// It was let in once, and is not any more.
    Revoked,
}

/// Message counters (protocol, Message key, nonce, AAD).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Send counters up to this may have been used.
    pub reserved: u64,
    /// The last counter accepted from the agent.
    pub received: u64,
}

/// Something to tell the owner once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// When the agent sent it, Unix milliseconds by the agent's clock.
    pub at: u64,
    /// What.
    pub about: About,
    /// Whether it has been shown.
    pub shown: bool,
}

/// What a [`Notice`] is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum About {
    /// A notification of the agent.
    Notification(Notification),
    /// What became of an answer that this phone gave.
    Verdict {
        /// The answer.
        sent: Sent,
        /// What became of it.
        verdict: Verdict,
    },
}

/// An answer on its way, without its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// The payload's id, which the agent's ack names.
    pub id: String,
    /// The item.
    pub request_id: String,
    /// What kind of item it is.
    pub kind: Kind,
    /// The item's title.
    pub title: String,
    /// The answer in a word: `approved`, `rejected`, `answered`, …
    pub word: String,
    /// When, Unix milliseconds.
    pub at: u64,
}

/// What became of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It counts.
    Accepted,
    /// The agent has it; it does not say what it makes of it.
    Received,
    /// Another answer was first, or the item was withdrawn; the other device's name, if it was one.
    TooLate(Option<String>),
    /// The item's content had not reached this phone in full; it is still pending.
    NotShown,
    /// The answer was too old when it arrived.
    Expired,
}

/// What a payload did.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// A snapshot replaced the inbox.
    Snapshot {
        /// Whether it came live.
        live: bool,
    },
    /// A notification.
    Notification(Notification),
    /// An answer's fate.
    Verdict {
        /// The answer.
        sent: Sent,
        /// What became of it.
        verdict: Verdict,
    },
    /// The message had been handled before, by this process or another.
    Repeat,
    /// Valid, and of no interest here.
    Nothing,
    /// Dropped.
    Invalid(PayloadError),
}

impl Account {
    /// A new pairing. `now` in Unix milliseconds.
    pub fn new(agent: AgentKeys, relay_url: String, device_name: String, now: u64) -> Self {
        Self {
            format: FORMAT,
            agent,
            relay_url,
            device_name,
            paired_at: now,
            standing: Standing::Pending,
            hello_sent: false,
            counters: Counters::default(),
            inbox: Inbox::default(),
            notices: VecDeque::new(),
            sent: VecDeque::new(),
            seen: VecDeque::new(),
        }
    }

    /// The same phone, paired again with the same agent: the counters go on, everything else starts anew.
    #[must_use]
    pub fn paired_again(&self, relay_url: String, device_name: String, now: u64) -> Self {
        Self { counters: self.counters, ..Self::new(self.agent, relay_url, device_name, now) }
    }

    /// Whether this build can read the saved form.
    pub const fn is_readable(&self) -> bool {
        self.format == FORMAT
    }

    /// Does what an opened payload says, once. `now` in Unix milliseconds. To be saved before the message is accepted.
    pub fn receive(&mut self, counter: u64, live: bool, json: &[u8], now: u64) -> Effect {
        if counter <= self.counters.received {
            return Effect::Repeat;
        }
        self.counters.received = counter;
        let payload = match Payload::<ToDevice>::parse(json, now) {
            Ok(payload) => payload,
            Err(error) => return Effect::Invalid(error),
        };
        match payload.content {
            ToDevice::InboxUpdate(update) => {
                self.on_snapshot(update, json, AsOf { counter, made_at: payload.ts, live })
            }
            ToDevice::Notification(_) | ToDevice::Ack(_) if self.seen.contains(&payload.id) => Effect::Repeat,
            ToDevice::Notification(notification) => {
                self.note_id(payload.id);
                self.note(payload.ts, About::Notification(notification.clone()));
                Effect::Notification(notification)
            }
            ToDevice::Ack(ack) => {
                self.note_id(payload.id);
                self.on_ack(payload.ts, ack)
            }
        }
    }

    fn on_snapshot(&mut self, update: InboxUpdate, json: &[u8], as_of: AsOf) -> Effect {
        self.inbox.replace(update, json, as_of);
        Effect::Snapshot { live: as_of.live }
    }

    fn on_ack(&mut self, at: u64, ack: Ack) -> Effect {
        let Some(index) = self.sent.iter().position(|sent| sent.id == ack.ref_id) else { return Effect::Nothing };
        let Some(sent) = self.sent.remove(index) else { return Effect::Nothing };
        let verdict = match ack.outcome {
            Some(Outcome::Accepted) => Verdict::Accepted,
            Some(Outcome::Superseded) => Verdict::TooLate(ack.answered_by),
            Some(Outcome::NotShown) => Verdict::NotShown,
            Some(Outcome::Expired) => Verdict::Expired,
            None => Verdict::Received,
        };
        if matches!(verdict, Verdict::NotShown | Verdict::Expired) {
            self.inbox.restore(&sent.request_id);
        }
        if !matches!(verdict, Verdict::Received) {
            self.note(at, About::Verdict { sent: sent.clone(), verdict: verdict.clone() });
        }
        Effect::Verdict { sent, verdict }
    }

    /// The first message after a pairing (protocol, Payloads, hello). `id` is a fresh UUID, `now` Unix milliseconds.
    pub fn hello(&self, os_version: Option<String>, id: String, now: u64) -> Payload<ToAgent> {
        let device_info = DeviceInfo {
            // The platform that deployed relays and agents know and that reads compressed messages.
            platform: "android".into(),
            model: Some("Terminal".into()),
            os_version,
            app_version: Some(APP.into()),
            device_name: Some(self.device_name.clone()),
        };
        Payload { id, ts: now, content: ToAgent::Hello(Hello { device_info }) }
    }

    /// Answers a pending item: takes it away, and gives the payload to send. `id` is a fresh UUID, `now` Unix milliseconds.
    pub fn answer(
        &mut self,
        request_id: &str,
        answer: Answer,
        id: String,
        now: u64,
    ) -> Result<Payload<ToAgent>, AnswerError> {
        let entry = self.inbox.get(request_id).ok_or(AnswerError::Gone)?;
        let word = answer.word().to_owned();
        let content = answer.content(entry)?;
        let sent = Sent {
            id: id.clone(),
            request_id: request_id.to_owned(),
            kind: entry.kind(),
            title: entry.title().to_owned(),
            word,
            at: now,
        };
        self.inbox.hide(request_id);
        self.sent.push_back(sent);
        while self.sent.len() > MAX_SENT {
            self.sent.pop_front();
        }
        Ok(Payload { id, ts: now, content })
    }

    /// The answer did not leave: the item is pending again. `id` as given to [`answer`](Self::answer).
    pub fn answer_failed(&mut self, id: &str) {
        if let Some(index) = self.sent.iter().position(|sent| sent.id == id)
            && let Some(sent) = self.sent.remove(index)
        {
            self.inbox.restore(&sent.request_id);
        }
    }

    /// The answer with this payload id, while its fate is unknown.
    pub fn sent(&self, id: &str) -> Option<&Sent> {
        self.sent.iter().find(|sent| sent.id == id)
    }

    /// What has not been shown yet, oldest first.
    pub fn unshown(&self) -> impl Iterator<Item = &Notice> {
        self.notices.iter().filter(|notice| !notice.shown)
    }

    /// Everything told so far has been shown.
    pub fn mark_shown(&mut self) {
        self.notices.iter_mut().for_each(|notice| notice.shown = true);
    }

    /// The fate of this answer has been shown.
    pub fn mark_verdict_shown(&mut self, id: &str) {
        for notice in &mut self.notices {
            notice.shown |= matches!(&notice.about, About::Verdict { sent, .. } if sent.id == id);
        }
    }

    fn note(&mut self, at: u64, about: About) {
        self.notices.push_back(Notice { at, about, shown: false });
        while self.notices.len() > MAX_NOTICES {
            self.notices.pop_front();
        }
    }

    fn note_id(&mut self, id: String) {
        self.seen.push_back(id);
        while self.seen.len() > MAX_SEEN {
            self.seen.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_750_000_000_000;

    fn account() -> Account {
        let agent = AgentKeys { ed25519: Ed25519Public::new([1; 32]), x25519: X25519Public::new([2; 32]) };
        Account::new(agent, "ws://relay.example/v1/ws".into(), "Phone".into(), NOW)
    }

    fn payload(kind: &str, id: &str, fields: &str) -> String {
        format!(r#"{{"v":1,"kind":"{kind}","id":"{id}","ts":{NOW},{fields}}}"#)
    }

    fn with_approval(account: &mut Account, counter: u64) {
        let json = payload(
            "inbox_update",
            &counter.to_string(),
            r#""badge":1,"approvals":[{"request_id":"a.1","tool_name":"t","agent_label":"S","summary":"Do it","created_at":1}],"clarifications":[]"#,
        );
        assert_eq!(account.receive(counter, true, json.as_bytes(), NOW), Effect::Snapshot { live: true });
    }

    fn answered(account: &mut Account, id: &str) {
        account.answer("a.1", Answer::Approve { bypass_secs: None }, id.into(), NOW).unwrap();
    }

    fn ack(account: &mut Account, counter: u64, fields: &str) -> Effect {
        let json = payload("ack", &format!("ack-{counter}"), fields);
        account.receive(counter, true, json.as_bytes(), NOW)
    }

    #[test]
    fn a_message_counts_once_by_its_counter_and_a_notification_once_by_its_id() {
        let mut account = account();
        let json = payload("notification", "n1", r#""title":"T","body":"B""#);
        let notification = Notification { title: "T".into(), body: "B".into() };
        assert_eq!(account.receive(5, false, json.as_bytes(), NOW), Effect::Notification(notification));
        assert_eq!(account.receive(5, false, json.as_bytes(), NOW), Effect::Repeat);
        assert_eq!(account.receive(4, false, json.as_bytes(), NOW), Effect::Repeat);
        assert_eq!(account.receive(6, false, json.as_bytes(), NOW), Effect::Repeat, "sealed anew, told once");
        assert_eq!(account.counters.received, 6);
        assert_eq!(account.unshown().count(), 1);
        account.mark_shown();
        assert_eq!(account.unshown().count(), 0);
    }

    #[test]
    fn what_is_stale_unknown_or_malformed_changes_nothing_but_the_counter() {
        let mut account = account();
        with_approval(&mut account, 1);
        let inbox = account.inbox.clone();
        let week = 7 * 24 * 3600 * 1000;
        let clears = payload("inbox_update", "x", r#""badge":0,"approvals":[],"clarifications":[]"#);
        assert_eq!(account.receive(2, true, clears.as_bytes(), NOW + week + 1), Effect::Invalid(PayloadError::Stale));
        let unknown = payload("later", "x", r#""badge":0"#);
        assert_eq!(account.receive(3, true, unknown.as_bytes(), NOW), Effect::Invalid(PayloadError::Kind));
        assert!(matches!(account.receive(4, true, b"hunter2", NOW), Effect::Invalid(PayloadError::Malformed(_))));
        assert_eq!((account.inbox.clone(), account.counters.received), (inbox, 4));
        assert_eq!(account.receive(5, true, clears.as_bytes(), NOW + week), Effect::Snapshot { live: true });
        assert_eq!(account.inbox.badge(), 0);
    }

    #[test]
    fn an_accepted_answer_is_told_and_its_item_stays_away() {
        let mut account = account();
        with_approval(&mut account, 1);
        answered(&mut account, "p1");
        assert_eq!(account.inbox.pending().count(), 0);
        assert!(account.sent("p1").is_some());
        let effect = ack(&mut account, 2, r#""ref_id":"p1","outcome":"accepted""#);
        assert!(matches!(effect, Effect::Verdict { sent, verdict: Verdict::Accepted } if sent.request_id == "a.1"));
        assert_eq!(account.inbox.pending().count(), 0);
        assert_eq!(account.unshown().count(), 1);
        account.mark_verdict_shown("p1");
        assert_eq!(account.unshown().count(), 0);
        assert_eq!(ack(&mut account, 3, r#""ref_id":"p1","outcome":"accepted""#), Effect::Nothing);
    }

    #[test]
    fn an_answer_that_did_not_count_says_why_and_brings_back_what_is_still_pending() {
        for (fields, verdict, pending) in [
            (r#""outcome":"superseded","answered_by":"Tablet""#, Verdict::TooLate(Some("Tablet".into())), 0),
            (r#""outcome":"superseded""#, Verdict::TooLate(None), 0),
            (r#""outcome":"not_shown""#, Verdict::NotShown, 1),
            (r#""outcome":"expired""#, Verdict::Expired, 1),
        ] {
            let mut account = account();
            with_approval(&mut account, 1);
            answered(&mut account, "p1");
            let effect = ack(&mut account, 2, &format!(r#""ref_id":"p1",{fields}"#));
            assert!(matches!(effect, Effect::Verdict { verdict: told, .. } if told == verdict), "{fields}");
            assert_eq!(account.inbox.pending().count(), pending, "{fields}");
        }
    }

    #[test]
    fn an_answer_that_never_left_leaves_the_item_pending() {
        let mut account = account();
        with_approval(&mut account, 1);
        answered(&mut account, "p1");
        account.answer_failed("p1");
        assert_eq!(account.inbox.badge(), 1);
        assert!(account.sent("p1").is_none());
    }

    #[test]
    fn what_is_remembered_survives_a_save_and_is_bounded() {
        let mut account = account();
        for n in 0..200 {
            let json = payload("notification", &format!("n{n}"), r#""title":"T","body":"B""#);
            account.receive(n + 1, false, json.as_bytes(), NOW);
        }
        with_approval(&mut account, 300);
        answered(&mut account, "p1");
        assert_eq!((account.notices.len(), account.seen.len()), (MAX_NOTICES, MAX_SEEN));
        let saved = serde_json::to_vec(&account).unwrap();
        assert_eq!(serde_json::from_slice::<Account>(&saved).unwrap(), account);
    }

    #[test]
    fn pairing_again_keeps_the_counters_and_greets_again() {
        let mut account = account();
        with_approval(&mut account, 7);
        account.counters.reserved = 99;
        account.hello_sent = true;
        let again = account.paired_again("ws://other".into(), "New".into(), NOW + 1);
        assert_eq!(again.counters, Counters { reserved: 99, received: 7 });
        assert!(!again.hello_sent);
        assert_eq!(again.inbox.pending().count(), 0);
    }

    #[test]
    fn hello_names_the_app_by_which_agents_know_that_acks_are_welcome() {
        let hello = account().hello(None, "id".into(), NOW);
        let json: serde_json::Value = serde_json::from_slice(&hello.to_json()).unwrap();
        assert_eq!(json["kind"], "hello");
        assert!(json["device_info"]["app_version"].as_str().unwrap().starts_with("skald-phone/"));
        assert_eq!(json["device_info"]["device_name"], "Phone");
    }
}
