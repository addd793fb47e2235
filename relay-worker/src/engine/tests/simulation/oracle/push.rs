//! Which messages ring, when, and how often. A *slot* is what is pushed one at a time: a tag of a sender, or a message
//! without one.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};
use skald_common::crypto::namespace_id;
use skald_common::wire::{Features, Frame, Push, PushState};

use super::super::super::super::ConnId;
use super::super::history::PEERS;
use super::super::platform::{Event, Outcome, Platform};
use super::super::{Verdict, demand};
use super::{Cause, Oracle, Truth};
use crate::push::{Job, Outcome as Answer, Services};

/// Between two pushes of a slot.
const SPACING: u64 = 5000;
/// An answer that has not come by then does not count.
const LEASE: u64 = 60_000;
/// Attempts for a message.
const TRIES: u32 = 5;
/// After the first, second, … failed attempt.
const BACKOFF: [u64; 5] = [5000, 30_000, 120_000, 600_000, 600_000];
const LONGEST: u64 = 3_600_000;
/// A message unproved for this long without KEEPALIVE rings.
const UNPROVED: u64 = 60_000;
/// One unacknowledged for this long with KEEPALIVE puts its connection in doubt.
const DOUBT: u64 = 10_000;
/// How exactly it is known when that was last heard.
const GRAIN: u64 = 1000;
/// Pushes of a browser in a minute, and of any device at the same time.
const PER_MINUTE: usize = 10;
const AT_ONCE: usize = 6;
const MINUTE: u64 = 60_000;
/// A relay whose disk failed looks again after so long.
const RETRY: u64 = 600_000;

/// A push token and its platform.
type Address = (String, i32);

/// What the relay knows of a device's address.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Known {
    Surely(Option<Address>),
    Unsure,
}

#[derive(Debug)]
struct Phone {
    /// What it presents.
    offer: Address,
    known: Known,
    /// How often that has changed.
    moves: u32,
    /// Tokens that were called dead, and those of which the relay may not have heard it.
    dead: BTreeSet<String>,
    maybe_dead: BTreeSet<String>,
    /// How often what waits for it was as if just queued.
    epoch: u32,
    /// When it was pushed to as a browser, and after how many jumps of the clock.
    recent: Vec<(u64, u32)>,
    /// What the agent was told of it.
    told: Option<Push>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Slot {
    to: usize,
    from: usize,
    tag: Option<u8>,
    /// Of a message without a tag.
    message: Option<u64>,
}

/// The last push of a slot.
#[derive(Debug, Clone, Copy)]
struct Last {
    id: u64,
    began: u64,
    jumps: u32,
    under_way: bool,
    /// The next is not before and, for a message that is to be tried again, not after.
    earliest: u64,
    latest: u64,
}

/// A push that was asked for.
#[derive(Debug, Clone)]
struct Asked {
    slot: Slot,
    message: u64,
    token: String,
    moves: u32,
    epoch: u32,
    at: u64,
}

/// How a message has rung since it was queued.
#[derive(Debug, Clone, Copy, Default)]
struct Rung {
    tries: u32,
    sent: bool,
    refused: bool,
    maybe_refused: bool,
    /// A panic, or a failing disk: what the relay remembers is not known.
    unsure: bool,
    /// On this connection, for being unproved.
    on: Option<ConnId>,
}

impl Rung {
    /// Its message is as if just queued.
    fn anew(self) -> Self {
        Self { refused: self.refused, maybe_refused: self.maybe_refused, ..Self::default() }
    }
}

#[derive(Debug)]
pub(super) struct Pushes {
    services: Services,
    phones: [Phone; PEERS],
    slots: BTreeMap<Slot, Last>,
    asked: BTreeMap<u64, Asked>,
    rung: BTreeMap<u64, Rung>,
    /// Attempts that nobody saw may be under way until then.
    shaky_until: u64,
}

impl Pushes {
    pub(super) fn new(services: Services) -> Self {
        let phone = |_| Phone {
            offer: (String::new(), 0),
            known: Known::Surely(None),
            moves: 0,
            dead: BTreeSet::new(),
            maybe_dead: BTreeSet::new(),
            epoch: 0,
            recent: Vec::new(),
            told: None,
        };
        Self {
            services,
            phones: std::array::from_fn(phone),
            slots: BTreeMap::new(),
            asked: BTreeMap::new(),
            rung: BTreeMap::new(),
            shaky_until: 0,
        }
    }

    const fn is_on(&self, platform: i32) -> bool {
        match platform {
            1 => self.services.apns,
            2 => self.services.fcm,
            101 => self.services.web,
            _ => false,
        }
    }

    /// What is remembered of a device may be gone.
    pub(super) fn excuse(&mut self, peer: usize, messages: &[u64]) {
        for message in messages {
            self.rung.insert(*message, Rung { unsure: true, ..Rung::default() });
        }
        self.slots.retain(|slot, _| slot.to != peer);
        self.asked.retain(|_, asked| asked.slot.to != peer);
        let phone = &mut self.phones[peer];
        phone.recent.clear();
        phone.maybe_dead.append(&mut phone.dead);
        phone.epoch += 1;
        self.forget_address(peer);
    }

    /// It is gone, and may have been before.
    pub(super) fn purge(&mut self, peer: usize) {
        let phone = &mut self.phones[peer];
        phone.known = Known::Surely(None);
        phone.maybe_dead.clear();
    }

    pub(super) fn forget_address(&mut self, peer: usize) {
        let phone = &mut self.phones[peer];
        phone.moves += 1;
        (phone.known, phone.told) = (Known::Unsure, None);
    }

    /// A device has paired, and brought a token.
    pub(super) fn paired(&mut self, peer: usize, attempt: usize) {
        self.phones[peer].known = Known::Surely(Some((format!("token {attempt}"), 2)));
    }

    /// What the agent would be told; `None` if that is not known.
    fn state(&self, peer: usize) -> Option<Push> {
        let phone = &self.phones[peer];
        match &phone.known {
            Known::Unsure => None,
            Known::Surely(None) if !phone.maybe_dead.is_empty() => None,
            Known::Surely(None) => Some(if phone.dead.is_empty() { Push::None } else { Push::Gone }),
            Known::Surely(Some((_, platform))) => Some(if self.is_on(*platform) { Push::Ready } else { Push::Off }),
        }
    }
}

impl Oracle {
    /// A device is about to present itself with this address.
    pub(in super::super) fn offers(&mut self, peer: usize, address: Address) {
        self.push.phones[peer].offer = address;
    }

    /// It was let in.
    pub(super) fn offer_taken(&mut self, peer: usize) {
        let phone = &mut self.push.phones[peer];
        let (token, platform) = phone.offer.clone();
        let known = phone.dead.contains(&token);
        if token.is_empty() || known {
            return;
        }
        let offer = Known::Surely(Some((token.clone(), platform)));
        if phone.maybe_dead.contains(&token) {
            phone.known = Known::Unsure;
        } else if phone.known != offer {
            let before = std::mem::replace(&mut phone.known, offer);
            phone.moves += 1;
            let theirs = |number: &u64| self.sent[usize::try_from(*number).unwrap()].text.to == peer;
            for (_, rung) in self.push.rung.iter_mut().filter(|(number, rung)| rung.refused && theirs(number)) {
                // What an old address was refused, a new one may be worth.
                (rung.refused, rung.maybe_refused) = (false, before == Known::Unsure);
            }
        }
    }

    /// It may have been let in.
    pub(super) fn offer_unsure(&mut self, peer: usize) {
        if !self.push.phones[peer].offer.0.is_empty() {
            self.push.forget_address(peer);
        }
    }

    /// A connection of a peer is over, and with it whatever has rung so far. `lost`: the relay may not know that it was one.
    pub(super) fn queued_anew(&mut self, peer: Option<usize>, lost: bool) {
        let Some(peer) = peer else { return };
        if lost {
            for number in self.surely_queued(peer) {
                self.push.rung.entry(number).or_default();
            }
        }
        self.push.phones[peer].epoch += 1;
        let sent = &self.sent;
        let theirs = |number: &u64| sent[usize::try_from(*number).unwrap()].text.to == peer;
        for (_, rung) in self.push.rung.iter_mut().filter(|(number, _)| theirs(number)) {
            *rung = Rung { unsure: lost, ..rung.anew() };
        }
    }

    /// A push service has answered; `clean`: and the relay has noted it.
    pub(super) fn push_answered(&mut self, id: u64, answer: Answer, clean: bool) {
        let now = self.now;
        let Some(asked) = self.push.asked.remove(&id) else { return };
        if !clean {
            // It may come again, and count then.
            self.push.asked.insert(id, asked.clone());
        }
        let several = self.is_repeated(asked.message);
        let Some(last) = self.push.slots.get_mut(&asked.slot).filter(|last| last.id == id || several) else { return };
        // The relay may have counted it as lost already, or have heard it before.
        let awaited = std::mem::take(&mut last.under_way);
        let certain = clean && awaited && !several && now < last.began + LEASE && last.jumps == self.jumps;
        let rung = self.push.rung.entry(asked.message).or_default();
        let phone = &mut self.push.phones[asked.slot.to];
        let current = asked.moves == phone.moves;
        // Back at an address that it had, or at one that it may have had all the time.
        let same = matches!(&phone.known, Known::Surely(Some((token, _))) if *token == asked.token);
        let unsure = phone.known == Known::Unsure;
        if !certain || same != current || unsure {
            rung.unsure = true;
            rung.maybe_refused |= matches!(answer, Answer::Refused | Answer::TokenGone);
            last.latest = now + LONGEST;
            if answer == Answer::TokenGone && (current || same || unsure) {
                phone.maybe_dead.insert(asked.token);
                self.push.forget_address(asked.slot.to);
            }
            return;
        }
        match answer {
            Answer::Sent => rung.sent |= asked.epoch == phone.epoch,
            Answer::Unavailable { retry_after_ms } => {
                let asked_for = retry_after_ms.unwrap_or(0).min(LONGEST);
                let tries = usize::try_from(rung.tries).unwrap();
                last.earliest = last.earliest.max(now + asked_for.max(BACKOFF[0]));
                last.latest = last.latest.max(now + asked_for.max(BACKOFF[tries.clamp(1, 5) - 1]));
            }
            Answer::TokenGone if current => {
                phone.dead.insert(asked.token);
                phone.known = Known::Surely(None);
                phone.moves += 1;
            }
            _ => rung.refused |= current,
        }
    }

    /// The pushes of a turn, and what the agent was told of its devices' addresses.
    pub(super) fn judge_pushes(&mut self, cause: &Cause, outcome: &Outcome) -> Verdict {
        if !outcome.clean() {
            let wait = if outcome.refused { RETRY + MINUTE + SPACING } else { MINUTE + SPACING };
            self.push.shaky_until = self.push.shaky_until.max(self.now + wait);
            for number in 0..self.sent.len() as u64 {
                self.push.rung.entry(number).or_default();
            }
            self.push.rung.values_mut().for_each(|rung| rung.unsure = true);
            self.push.phones.iter_mut().for_each(|phone| phone.told = None);
        }
        for event in &outcome.events {
            match event {
                Event::Asked(job) => self.asked_for(job)?,
                Event::GivenUp => {
                    // Of some that a panic cut short only the relay knows.
                    let tried = self.push.rung.values().any(|rung| rung.tries >= TRIES);
                    demand!(tried || self.crashes + self.refusals > 0, "no push is given up early", "{cause:?}");
                }
                Event::Wrote { conn, frame: Frame::PushStatus(status), .. } => {
                    let line = &self.lines[conn];
                    let known = line.peer == 0 && line.has(Features::PUSH_STATUS);
                    demand!(known, "no frame that the peer does not know", "{status:?} to {}", line.peer);
                    for state in &status.devices {
                        self.state_told(state)?;
                    }
                }
                _ => {}
            }
        }
        self.check_told(outcome)
    }

    fn state_told(&mut self, state: &PushState) -> Verdict {
        let peer = self.keys.iter().position(|key| key.to_vec() == state.client_ed25519_pub);
        let peer = peer.filter(|peer| *peer > 0 && self.standing[*peer] != Truth::No);
        demand!(peer.is_some(), "the agent is told of its devices", "{state:?}");
        let Some(peer) = peer else { return Ok(()) };
        let actual = self.push.state(peer);
        let right = actual.is_none_or(|actual| actual == state.push());
        demand!(right, "the agent is told the truth of pushes", "{peer}: {state:?}, {actual:?}");
        self.push.phones[peer].told = Some(state.push());
        Ok(())
    }

    /// An agent that has been told something is told when it changes.
    fn check_told(&mut self, outcome: &Outcome) -> Verdict {
        if !self.line_of(0).is_some_and(|(_, line)| line.has(Features::PUSH_STATUS)) {
            self.push.phones.iter_mut().for_each(|phone| phone.told = None);
        }
        for peer in 1..PEERS {
            let (told, actual) = (self.push.phones[peer].told, self.push.state(peer));
            let stale = outcome.clean() && self.standing[peer] == Truth::Yes;
            let right = told.is_none() || actual.is_none() || told == actual;
            demand!(right || !stale, "the agent learns of every change", "{peer}: {told:?}, {actual:?}");
        }
        Ok(())
    }

    /// Whether a message was sent again: it may be several for the relay, each with pushes of its own.
    fn is_repeated(&self, number: u64) -> bool {
        self.sent[usize::try_from(number).unwrap()].copies.len() > 1
    }

    /// A push service was asked.
    fn asked_for(&mut self, job: &Job) -> Verdict {
        let number = self.with_content(&job.sealed.ciphertext, &job.sealed.nonce);
        let right = number.is_some_and(|number| {
            self.keys[self.text(number).from] == job.sealed.sender && namespace_id(&self.keys[0]) == job.namespace
        });
        demand!(right, "a push carries what was sent", "{job:?}");
        let Some(number) = number else { return Ok(()) };
        let text = self.text(number);
        let peer = text.to;
        demand!(peer > 0 && self.standing[peer] != Truth::No, "only the authorized are pushed to", "{peer}: {job:?}");
        self.check_address(peer, job)?;
        let queued = self.in_queue(number);
        demand!(!text.live && !queued.is_empty(), "only what is queued is pushed", "{number}: {text:?}");
        let loud: Vec<_> = queued.iter().filter(|copy| !copy.quiet).collect();
        demand!(!loud.is_empty(), "what is quiet is not pushed", "{number}: {text:?}");
        let tag = text.tag.filter(|_| loud.iter().any(|copy| copy.tagged) && job.collapse.is_some());
        let id = tag.map(|tag| {
            let namespace = job.namespace;
            Sha256::new()
                .chain_update(namespace.as_bytes())
                .chain_update(self.keys[text.from].as_bytes())
                .chain_update([tag])
                .finalize()[..16]
                .to_vec()
        });
        let plain = tag.is_some() || loud.iter().any(|copy| !copy.tagged);
        let as_tagged = plain && id == job.collapse.map(|id| id.to_vec());
        demand!(as_tagged, "a push collapses as its message does", "{number}: {job:?}");
        let since = loud.iter().map(|copy| copy.at).min().unwrap_or(0);
        let jumped = loud.iter().any(|copy| copy.jumped);
        self.check_absent(peer, number, since, jumped)?;
        let message = Some(number).filter(|_| tag.is_none());
        let alone = !self.is_repeated(number);
        let slot = Slot { to: peer, from: text.from, tag, message };
        self.note_push(job, slot, number, alone)
    }

    fn check_address(&self, peer: usize, job: &Job) -> Verdict {
        let phone = &self.push.phones[peer];
        let target = (job.target.token.clone(), job.target.platform);
        let right = match &phone.known {
            Known::Surely(known) => *known == Some(target.clone()),
            Known::Unsure => true,
        };
        demand!(right, "a push goes to the device's address", "{target:?}: {phone:?}");
        demand!(self.push.is_on(target.1), "no push goes to a service that is off", "{target:?}");
        demand!(!phone.dead.contains(&target.0), "a dead token is dead", "{target:?}");
        Ok(())
    }

    /// Not to a connected device, unless it may be half open.
    fn check_absent(&mut self, peer: usize, number: u64, since: u64, jumped: bool) -> Verdict {
        let Some((conn, line)) = self.line_of(peer) else { return Ok(()) };
        let unproved = self.now.saturating_sub(since.max(line.opened_at));
        let silent = !line.has(Features::KEEPALIVE) && (unproved >= UNPROVED || jumped);
        let lost = self.crashes + self.refusals > 0;
        demand!(silent || lost, "nothing is pushed to a device that is there", "{number}: {unproved} ms");
        let rung = self.push.rung.entry(number).or_default();
        if silent && rung.on != Some(conn) {
            *rung = Rung { on: Some(conn), unsure: rung.unsure, ..rung.anew() };
        }
        Ok(())
    }

    fn note_push(&mut self, job: &Job, slot: Slot, number: u64, alone: bool) -> Verdict {
        let (now, jumps) = (self.now, self.jumps);
        if let Some(last) = self.push.slots.get(&slot).filter(|last| alone && last.jumps == jumps) {
            let over = !last.under_way || now >= last.began + LEASE;
            demand!(over, "one push of a tag is under way", "{slot:?}: {last:?}, now {now}");
            let apart = now >= last.began + SPACING && now >= last.earliest;
            demand!(apart, "pushes of a tag are apart", "{slot:?}: {last:?}, now {now}");
        }
        let rung = self.push.rung.entry(number).or_default();
        rung.tries += 1;
        let fresh = !rung.sent && !rung.refused && rung.tries <= TRIES;
        demand!(!alone || fresh || rung.unsure, "what was pushed, refused or given up is not pushed again", "{rung:?}");
        let phone = &mut self.push.phones[slot.to];
        phone.recent.retain(|(at, jumped)| now < at + MINUTE && *jumped == jumps);
        if job.target.platform == 101 {
            phone.recent.push((now, jumps));
        }
        demand!(phone.recent.len() <= PER_MINUTE, "a browser is not flooded", "{:?}", phone.recent);
        let asked = Asked {
            slot,
            message: number,
            token: job.target.token.clone(),
            moves: phone.moves,
            epoch: phone.epoch,
            at: now,
        };
        demand!(self.push.asked.insert(job.id, asked).is_none(), "an attempt has a name of its own", "{job:?}");
        let (began, soon) = (now, now + SPACING);
        let last = Last { id: job.id, began, jumps, under_way: true, earliest: soon, latest: soon };
        self.push.slots.insert(slot, last);
        Ok(())
    }

    /// What must ring has rung, or the alarm will see to it in time.
    pub(super) fn check_rings(&self, platform: &Platform) -> Verdict {
        if self.exists != Truth::Yes || self.alarm_lost {
            return Ok(());
        }
        for peer in 1..PEERS {
            let phone = &self.push.phones[peer];
            let Known::Surely(Some((token, target))) = &phone.known else { continue };
            let can = self.standing[peer] == Truth::Yes && self.push.is_on(*target);
            if !can || phone.dead.contains(token) || phone.maybe_dead.contains(token) {
                continue;
            }
            self.check_doubt(peer, platform)?;
            for number in self.surely_queued(peer) {
                let Some(due) = self.rings_at(peer, number, *target == 101) else { continue };
                let due = due.max(self.push.shaky_until).max(self.now);
                let set = platform.alarm.is_some_and(|at| at <= due);
                let rung = self.push.rung.get(&number);
                demand!(
                    set,
                    "what must ring rings in time",
                    "{number}: {:?}, {rung:?}, due {due}, now {}, alarm {:?}",
                    self.text(number),
                    self.now,
                    platform.alarm
                );
            }
        }
        Ok(())
    }

    /// Who may be dead, and is owed a push then, is judged by the time that it is.
    fn check_doubt(&self, peer: usize, platform: &Platform) -> Verdict {
        let line = self.line_of(peer).filter(|(_, line)| line.has(Features::KEEPALIVE) && !line.unsure);
        let Some((conn, line)) = line.filter(|_| self.jumps == 0) else { return Ok(()) };
        let queued: BTreeSet<u64> = self.surely_queued(peer).into_iter().collect();
        let rings = |copy: u64| {
            let copy = self.copy(copy);
            !copy.quiet && queued.contains(&copy.message) && !self.is_repeated(copy.message)
        };
        let Some(oldest) = line.outstanding.keys().next().filter(|_| line.outstanding.values().any(|(c, _)| rings(*c)))
        else {
            return Ok(());
        };
        let late = line.written_at[oldest] + DOUBT;
        let heard = platform.last_ping(conn).unwrap_or(0).max(line.heard_at);
        let looks = platform.timer.is_some_and(|at| at <= late.max(self.now));
        let dead = (heard + self.limits.keepalive_dead + GRAIN + 1).max(self.now).max(self.push.shaky_until);
        let judged = self.now >= late && (heard > late || platform.alarm.is_some_and(|at| at <= dead));
        let (timer, alarm) = (platform.timer, platform.alarm);
        demand!(
            looks || judged,
            "who acknowledges nothing is judged in time",
            "{conn:?}: late {late}, dead {dead}, {timer:?}, {alarm:?}"
        );
        Ok(())
    }

    /// When a message must be pushed; `None` if it need not.
    fn rings_at(&self, peer: usize, number: u64, web: bool) -> Option<u64> {
        let queued = self.in_queue(number);
        let [copy] = queued.as_slice() else { return None };
        if self.is_repeated(number) {
            return None;
        }
        let mut rung = self.push.rung.get(&number).copied().unwrap_or_default();
        let mut due = 0;
        if let Some((conn, line)) = self.line_of(peer) {
            if line.has(Features::KEEPALIVE) {
                return None;
            }
            if rung.on != Some(conn) {
                due = copy.at.max(line.opened_at) + UNPROVED;
                (rung.sent, rung.tries) = (false, 0);
            }
        }
        if copy.quiet || rung.unsure || rung.sent || rung.refused || rung.maybe_refused || rung.tries >= TRIES {
            return None;
        }
        let text = self.text(number);
        let tag = text.tag.filter(|_| copy.tagged);
        let slot = Slot { to: peer, from: text.from, tag, message: Some(number).filter(|_| tag.is_none()) };
        if let Some(last) = self.push.slots.get(&slot) {
            let lost = last.began + LEASE;
            due = due.max(if last.under_way && self.now < lost { lost } else { last.latest });
        }
        let under_way = |asked: &&Asked| asked.slot.to == peer && self.now < asked.at + LEASE;
        let leases: Vec<u64> = self.push.asked.values().filter(under_way).map(|asked| asked.at + LEASE).collect();
        if leases.len() >= AT_ONCE {
            // After a jump of the clock it is not known which of them are over.
            let free = if self.jumps > 0 { leases.iter().max() } else { leases.iter().min() };
            due = due.max(free.copied().unwrap_or(0));
        }
        let recent = &self.push.phones[peer].recent;
        let full = recent.len().checked_sub(PER_MINUTE).map(|at| recent[at].0 + MINUTE);
        // Those from before a jump of the clock count until the relay has seen it, and then from there.
        let full = if self.jumps > 0 { Some(self.latest + MINUTE) } else { full };
        Some(due.max(full.filter(|_| web).unwrap_or(0)))
    }
}
