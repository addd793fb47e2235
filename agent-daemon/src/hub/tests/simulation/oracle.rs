//! What must hold after every step. The oracle keeps a record of its own: what phones, hosts, relay and owner said and
//! saw, and what the disk came to hold. It never looks into the hub.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use skald_common::ids::{Ed25519Public, X25519Public};
use skald_common::payload::{Decision, ElicitationAction};

use super::demand;
use super::disk::Model;
use super::phone::{Phone, Shown, counter, items};
use super::relay::{Sealed, Seen};
use crate::hub::Now;
use crate::hub::api::{AnswerContent, DeviceState, ResolveParams};
use crate::hub::items::Kind;
use crate::hub::tests::names;

/// An answer older than this may be dropped; milliseconds.
const DAY_MS: u64 = 24 * 3_600_000;

/// What somebody answered, and what became of it.
#[derive(Debug)]
struct Answer {
    by: Ed25519Public,
    item: String,
    tag: String,
    kind: Kind,
    /// Which life of the item it was given in, and when.
    life: u64,
    at: u64,
    /// Said again under another counter, or perhaps forgotten with a power cut: its verdict is not the last.
    loose: bool,
    verdict: Option<String>,
}

/// What a host was called with.
#[derive(Debug)]
struct Delivered {
    answer_id: String,
    words: String,
    /// When it was given.
    at: u64,
    losses: u64,
    restarts: u64,
}

/// From raising an item to acting on it or taking it back.
#[derive(Debug, Default)]
struct Life {
    number: u64,
    open: bool,
    delivered: Option<Delivered>,
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Oracle {
    /// By payload id.
    answers: BTreeMap<String, Answer>,
    lives: BTreeMap<String, Life>,
    /// Devices that were reported to be revoked, and not let in since.
    revoked: BTreeSet<Ed25519Public>,
    /// How often each device was let in, in whatever way.
    let_in: BTreeMap<Ed25519Public, u64>,
    /// Every (device, counter) that was ever on the wire, with what it sealed.
    used: HashMap<(Ed25519Public, u64), Bytes>,
    /// Who was sent which item whole.
    whole: BTreeSet<(Ed25519Public, String)>,
    /// Answers that were on the disk, by id.
    stored: BTreeSet<String>,
    /// The highest counter of each device that was on the disk.
    received: BTreeMap<Ed25519Public, u64>,
    /// Devices that the daemon can read, by their keys, and since which write.
    readable: BTreeMap<Ed25519Public, (X25519Public, u64)>,
    /// After which write a message was last put on the wire to the daemon.
    heard: HashMap<(Ed25519Public, u64), u64>,
    looked: u64,
    seen_let_in: usize,
    /// The time that the clock shows, and the latest that it has shown.
    now: u64,
    latest: u64,
    losses: u64,
    restarts: u64,
    /// A relay without receipts was used: what was written to it counts as sent.
    pub(super) old_relay: bool,
}

impl Oracle {
    pub(super) fn time(&mut self, now: Now) {
        let now = now.unix;
        if now < self.now {
            // It may be by this time that the daemon reckons the age of what it took, or takes.
            self.answers.values_mut().for_each(|answer| answer.at = answer.at.min(now));
            let delivered = self.lives.values_mut().filter_map(|life| life.delivered.as_mut());
            delivered.for_each(|delivered| delivered.at = delivered.at.min(now));
        }
        self.now = now;
        self.latest = self.latest.max(now);
    }

    /// The daemon was started again.
    pub(super) fn restarted(&mut self, power_cut: bool, database_lost: bool) {
        self.restarts += 1;
        self.losses += u64::from(database_lost);
        if power_cut || database_lost {
            self.answers.values_mut().for_each(|answer| answer.loose = true);
        }
    }

    // Items and answers.

    pub(super) fn raised(&mut self, tag: &str) {
        let life = self.lives.entry(tag.to_owned()).or_default();
        if !life.open {
            *life = Life { number: life.number + 1, open: true, delivered: None };
        }
    }

    pub(super) fn ended(&mut self, tag: &str) {
        if let Some(life) = self.lives.get_mut(tag) {
            life.open = false;
        }
    }

    /// Somebody answers: a device, or the owner at the command line.
    pub(super) fn answered(&mut self, payload: &str, by: Ed25519Public, shown: &Shown) {
        let life = self.lives.get(&shown.tag).map_or(0, |life| life.number);
        let Shown { id: item, tag, kind, .. } = shown.clone();
        let answer = Answer { by, item, tag, kind, life, at: self.now, loose: false, verdict: None };
        self.answers.insert(payload.to_owned(), answer);
    }

    pub(super) fn said_again(&mut self, payload: &str) {
        if let Some(answer) = self.answers.get_mut(payload) {
            answer.loose = true;
        }
    }

    /// Whoever answered was told what became of it.
    pub(super) fn told(&mut self, payload: &str, outcome: &str) {
        let answer = self.answers.get_mut(payload);
        demand(answer.is_some(), || format!("an ack of {payload}, which nobody said"));
        if let Some(answer) = answer.filter(|answer| answer.verdict.is_none()) {
            answer.verdict = Some(outcome.to_owned());
        }
    }

    /// A host is called for the item that it knows by this tag.
    pub(super) fn called(&mut self, tag: &str, params: &ResolveParams) {
        let by = params.device.pubkey;
        let durable = params.answer.kind() == Kind::Elicitation || self.stored.contains(&params.answer_id);
        demand(durable, || format!("{tag}: the host is called with what is not on the disk"));
        let Some(payload) = payload(&params.answer) else {
            // A refusal has no words of its own: it must be one of this device's.
            let refusals = self.answers.values().filter(|answer| (answer.tag.as_str(), answer.by) == (tag, by));
            let given = refusals.map(|answer| answer.at).min();
            demand(given.is_some(), || format!("{tag}: refused by nobody"));
            return self.only_one(tag, "a refusal", given.unwrap_or_default(), params);
        };
        let Some(answer) = self.answers.get(&payload) else {
            return demand(false, || format!("{tag}: the host gets {payload}, which nobody said"));
        };
        let fits = answer.tag == tag && answer.by == by && answer.kind == params.answer.kind();
        demand(fits, || format!("{tag}: the host gets {payload}, which was {answer:?}"));
        let approves = matches!(params.answer, AnswerContent::Approval { decision: Decision::Approved, .. });
        let seen = by == names().ed25519 || self.whole.contains(&(by, answer.item.clone()));
        demand(!approves || seen, || format!("{tag}: {payload} approves what was not sent whole"));
        let void = answer.verdict.as_deref().is_some_and(|verdict| verdict != "accepted") && !answer.loose;
        demand(!void, || format!("{tag}: the host gets {payload}, which was told to be {:?}", answer.verdict));
        let given = answer.at;
        self.only_one(tag, &payload, given, params);
    }

    /// Of all answers in one life of an item one is ever delivered, under one id. How long that holds is reckoned from when
    /// the answer was given: the host may have left the call unread for a day.
    fn only_one(&mut self, tag: &str, words: &str, at: u64, params: &ResolveParams) {
        let (latest, losses, restarts) = (self.latest, self.losses, self.restarts);
        let secret = params.answer.kind() == Kind::Elicitation;
        let life = self.lives.entry(tag.to_owned()).or_default();
        let number = life.number;
        if let Some(before) = &life.delivered {
            let same = before.answer_id == params.answer_id && before.words == words;
            let forgotten = before.losses != losses
                || (secret && before.restarts != restarts)
                || latest.saturating_sub(before.at) > DAY_MS;
            demand(same || forgotten, || format!("{tag}: first {before:?}, then {words} as {}", params.answer_id));
            if same {
                return;
            }
        }
        let answer_id = params.answer_id.clone();
        life.delivered = Some(Delivered { answer_id, words: words.to_owned(), at, losses, restarts });
        if secret || losses > 0 {
            return;
        }
        let rival = |(other, answer): &(&String, &Answer)| {
            other.as_str() != words
                && (answer.tag.as_str(), answer.life) == (tag, number)
                && answer.verdict.as_deref() == Some("accepted")
                && latest.saturating_sub(answer.at) <= DAY_MS
        };
        let promised = self.answers.iter().find(rival).map(|(payload, _)| payload);
        demand(promised.is_none(), || format!("{tag}: {words} is delivered, {promised:?} was promised"));
    }

    // Devices.

    /// The device may be written to from now on, or perhaps.
    pub(super) fn let_in(&mut self, key: Ed25519Public) {
        self.revoked.remove(&key);
        *self.let_in.entry(key).or_default() += 1;
    }

    pub(super) fn times_let_in(&self, key: &Ed25519Public) -> u64 {
        self.let_in.get(key).copied().unwrap_or_default()
    }

    /// The owner was told that this device is out; it had been let in so many times when that was asked for.
    pub(super) fn revoked(&mut self, key: Ed25519Public, let_in: u64) {
        if self.times_let_in(&key) == let_in {
            self.revoked.insert(key);
        }
    }

    /// Whether the owner was told that this device is out, and nobody has let it in since.
    pub(super) fn is_out(&self, key: &Ed25519Public) -> bool {
        self.revoked.contains(key)
    }

    // The disk.

    /// Looks at what the disk holds after each call of the daemon.
    /// Without confirmation, whoever pairs is let in by the daemon itself.
    pub(super) fn look(&mut self, disk: &Model, confirms: bool) {
        if self.looked == disk.made {
            return;
        }
        self.looked = disk.made;
        let let_in = disk.let_in.iter().skip(std::mem::replace(&mut self.seen_let_in, disk.let_in.len()));
        for key in let_in.filter(|_| !confirms) {
            self.revoked.remove(key);
        }
        for row in &disk.durable.answers {
            if !self.stored.insert(row.answer_id.clone()) {
                continue;
            }
            let by = row.by.device;
            demand(!self.revoked.contains(&by), || format!("an answer of the revoked {by:?} counts"));
            let Some(words) = payload(&row.content) else { continue };
            let fits = self.answers.get(&words).is_some_and(|answer| (&answer.item, answer.by) == (&row.item, by));
            demand(fits, || format!("{words} counts for {}: {:?}", row.item, self.answers.get(&words)));
        }
        let mut readable = BTreeMap::new();
        for row in &disk.durable.devices {
            let highest = self.received.entry(row.ed25519).or_default();
            *highest = row.received.max(*highest);
            if row.state == DeviceState::Authorized {
                let before = self.readable.get(&row.ed25519).filter(|(keys, _)| *keys == row.x25519);
                readable.insert(row.ed25519, before.copied().unwrap_or((row.x25519, disk.made)));
            }
        }
        self.readable = readable;
    }

    // The wire.

    pub(super) fn wire(&mut self, seen: Seen, disk: &Model, phones: &[Phone]) {
        match seen {
            Seen::Sent { to, sealed, mark } => self.sent(to, &sealed, mark, phones),
            Seen::Taken { to, sealed } => self.note_whole(to, &sealed, phones),
            Seen::Heard { from, sealed } => {
                self.heard.insert((from, counter(&sealed)), disk.made);
            }
            Seen::Acked { from, sealed } => self.acked(from, counter(&sealed), phones),
            Seen::Listed(list) => {
                let wrong = list.iter().find(|key| self.revoked.contains(key));
                demand(wrong.is_none(), || format!("{wrong:?} is revoked and on the list"));
            }
        }
    }

    fn sent(&mut self, to: Ed25519Public, sealed: &Sealed, mark: u64, phones: &[Phone]) {
        let number = counter(sealed);
        demand(!self.revoked.contains(&to), || format!("{to:?} is revoked and sent counter {number}"));
        let before = self.used.insert((to, number), sealed.ciphertext.clone());
        let again = before.is_none_or(|before| before == sealed.ciphertext);
        demand(again, || format!("counter {number} towards {to:?} seals two messages"));
        demand(number <= mark, || format!("counter {number} leaves, the disk knows of {mark}"));
        if self.old_relay {
            self.note_whole(to, sealed, phones);
        }
    }

    fn note_whole(&mut self, to: Ed25519Public, sealed: &Sealed, phones: &[Phone]) {
        let Some((_, json)) = phones.iter().find(|phone| phone.key == to).and_then(|phone| phone.open(sealed)) else {
            return;
        };
        if json["kind"] == "inbox_update" {
            self.whole.extend(items(&json).into_iter().filter(|item| item.whole).map(|item| (to, item.id)));
        }
    }

    /// The daemon lets the relay forget a message: what it did must be on the disk, unless it could not be read.
    fn acked(&mut self, from: Ed25519Public, number: u64, phones: &[Phone]) {
        let heard = self.heard.get(&(from, number)).copied().unwrap_or_default();
        let own = phones.iter().find(|phone| phone.key == from).map(|phone| phone.x25519);
        let readable = self.readable.get(&from).is_some_and(|(keys, since)| Some(*keys) == own && *since < heard);
        let durable = self.received.get(&from).is_some_and(|highest| *highest >= number);
        demand(durable || !readable, || format!("counter {number} of {from:?} is acknowledged and not on the disk"));
    }
}

/// The id of the payload that said this: all words of the simulation are such ids.
fn payload(answer: &AnswerContent) -> Option<String> {
    match answer {
        AnswerContent::Approval { reason, .. } => reason.clone(),
        AnswerContent::Clarification { answer } => Some(answer.clone()),
        AnswerContent::Elicitation { action: ElicitationAction::Accept, content } => {
            let content = content.as_ref()?.expose();
            Some(content.get("password")?.as_str()?.to_owned())
        }
        AnswerContent::Elicitation { .. } => None,
    }
}
