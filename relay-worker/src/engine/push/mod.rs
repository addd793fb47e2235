//! When a sleeping device is pushed to (push protocol): for a stored message that is not quiet, once it waits for a client
//! that is not connected, and once it is unproved for a minute on one that says nothing by itself (no KEEPALIVE).
//!
//! * Messages *ring*: [`Engine::ring`] when they wait, [`Engine::ring_overdue`] when they are unproved. What rings is pushed
//!   at once, or, after another push of its tag, a failure, or too many of a browser's, later. It is pushed no more when it
//!   is not queued any more, and not while its device is connected, which then has it.
//! * A client with KEEPALIVE acknowledges at once. Where it does not, the timer notices, and the alarm is set for the moment
//!   when it has pinged again or is dead: nothing else might wake the namespace by then. One that pings and never
//!   acknowledges is alive.
//! * A push that was taken by its service rings once. When a connection ends, all that it leaves is as if just queued and
//!   rings again.
//! * An attempt is noted before it is asked for, with a lease: no answer by then is a failed attempt like others. What was
//!   about to be noted when storage failed or the object panicked is above the device's mark, and rings with the next alarm
//!   or when the agent connects.
//! * All of it is one row for each device, with the next deadline in it, and the alarm: nothing is written for devices
//!   without a token, or whose service is off, and nothing for connected ones with KEEPALIVE.

mod device;
mod status;

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};
use skald_common::crypto::namespace_id;
use skald_common::ids::NamespaceId;
use skald_common::wire::{Features, Platform};

use super::conn::{AGENT, Session};
use super::{ConnId, Engine, Output, Turn};
use crate::push::{Job, Outcome, Sealed, Services, Target};
use crate::store::{Indexed, Member, Queued, Sql, SqlError};

pub(super) use device::Device;
use device::Ringing;

/// So long an acknowledgement may take before the connection is doubted, milliseconds.
const DOUBT: u64 = 10_000;

/// Whether a device has its messages without a push.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// It is not connected.
    Absent,
    /// It is. Up to this number its messages have been unproved for too long.
    Connected(u32),
}

impl<S: Sql> Engine<S> {
    /// Messages wait for a device that is not connected: they ring, save those that have. If a connection of the device has
    /// ended in this turn all of them are as if just queued.
    pub(super) fn ring(&mut self, turn: Turn<'_>, member: u32) -> Result<(), SqlError> {
        let anew = self.left.remove(&member);
        if self.target(member)?.is_none() || self.online.contains_key(&member) {
            return Ok(());
        }
        let rung = if anew { 0 } else { self.device(member)?.mark };
        let fresh = self.ringing(turn, member, rung)?;
        self.advance(turn, member, |device| fresh.into_iter().for_each(|message| device.want(message)))
    }

    /// Connections have ended in this turn.
    pub(super) fn ring_left(&mut self, turn: Turn<'_>) {
        while let Some(member) = self.left.first().copied() {
            if let Err(error) = self.ring(turn, member) {
                self.report(turn, error);
            }
        }
    }

    /// A device has connected: it gets its messages.
    pub(super) fn hush(&mut self, turn: Turn<'_>, member: u32) -> Result<(), SqlError> {
        if self.target(member)?.is_none() {
            return Ok(());
        }
        self.advance(turn, member, |_| {})?;
        self.watch(turn, member)
    }

    /// Messages are with a connected device, or wait for it: whether they are to be looked at again.
    pub(super) fn watch(&mut self, turn: Turn<'_>, member: u32) -> Result<(), SqlError> {
        match self.overdue_at(turn, member)? {
            Some(at) => self.remind(turn, at),
            None => Ok(()),
        }
    }

    /// Messages that are unproved for too long ring.
    fn ring_overdue(&mut self, turn: Turn<'_>, member: u32) -> Result<(), SqlError> {
        let Some((conn, rung, opened_at)) = self.unsure(member) else { return Ok(()) };
        let rows = self.rows(turn, member, rung)?;
        let late = rows.iter().rev().find(|row| self.unproved_until(row, opened_at) <= turn.now);
        let Some(last) = late.map(|row| row.seq) else { return Ok(()) };
        let mut late = self.ringing(turn, member, rung)?;
        late.retain(|message| message.seq <= last);
        if let Some(session) = self.session_mut(conn) {
            session.rung = last;
            self.dirty.insert(conn);
        }
        self.advance(turn, member, |device| late.into_iter().for_each(|message| device.want(message)))
    }

    /// The alarm, or the agent's return: whatever is due, and whatever a panic or a failing disk may have kept from ringing.
    pub(super) fn ring_all(&mut self, turn: Turn<'_>) -> Result<(), SqlError> {
        for (member, _) in self.targets()? {
            if self.online.contains_key(&member) {
                self.ring_overdue(turn, member)?;
                self.advance(turn, member, |_| {})?;
            } else {
                self.ring(turn, member)?;
            }
        }
        Ok(())
    }

    /// What came of a push.
    pub(super) fn on_pushed(&mut self, turn: Turn<'_>, attempt: u64, outcome: Outcome) -> Result<(), SqlError> {
        let knows = |(member, device): (&u32, &Device)| Some((*member, device.knows(attempt)?));
        let Some((member, current)) = self.devices()?.iter().find_map(knows) else { return Ok(()) };
        if outcome == Outcome::TokenGone && current {
            return self.lose_token(turn, member, attempt);
        }
        self.advance(turn, member, |device| device.ended(attempt, outcome, turn.now))
    }

    /// The service says that a device's token is dead: it is forgotten, and known again if the device brings it once more.
    fn lose_token(&mut self, turn: Turn<'_>, member: u32, attempt: u64) -> Result<(), SqlError> {
        let found = self.space()?.and_then(|space| space.members.iter().find(|known| known.no == member)).cloned();
        let Some(mut known) = found else { return Ok(()) };
        let mut device = self.device(member)?;
        device.lost_token(attempt, fingerprint(&known.token));
        known.token.clear();
        self.store.transaction(|| {
            self.store.put_member(&known)?;
            self.store.put_push(member, &device.row())
        })?;
        self.devices()?.insert(member, device);
        self.know_member(known.clone())?;
        let state = self.push_state(&known)?;
        self.tell_push_state(state);
        self.put_off(turn)
    }

    /// Whether a token is the one of the device that its service called dead.
    pub(super) fn is_dead_token(&mut self, member: u32, token: &str) -> Result<bool, SqlError> {
        Ok(self.device(member)?.gone == fingerprint(token))
    }

    /// A device has another address: what an old one is still asked says nothing of it.
    pub(super) fn moved(&mut self, member: u32) -> Result<(), SqlError> {
        let before = self.device(member)?;
        let mut device = before.clone();
        device.moved();
        self.put_device(member, &before, device)
    }

    /// Numbers up to this one are not given to new messages of a member.
    pub(super) fn push_floor(&mut self, member: u32) -> Result<u32, SqlError> {
        if self.target(member)?.is_some() { Ok(self.device(member)?.floor()) } else { Ok(0) }
    }

    /// Brings a device's pushes in line with its queue and its connection after a change: starts what may start, notes it,
    /// and sees to the alarm.
    fn advance(&mut self, turn: Turn<'_>, member: u32, change: impl FnOnce(&mut Device)) -> Result<(), SqlError> {
        let target = self.target(member)?;
        let web = target.as_ref().is_some_and(is_web);
        let before = self.device(member)?;
        let mut device = before.clone();
        change(&mut device);
        if device == Device::default() {
            return Ok(());
        }
        let queued: BTreeSet<u32> = self.rows(turn, member, 0)?.into_iter().map(|row| row.seq).collect();
        let reach = self.reach(member);
        let may = |seq: u32| {
            let waits = match reach {
                Reach::Absent => true,
                Reach::Connected(rung) => seq <= rung,
            };
            target.is_some() && waits && queued.contains(&seq)
        };
        let given_up = device.tidy(turn.now, |seq| queued.contains(&seq), may);
        let mut jobs = Vec::new();
        while let Some(seq) = device.next(turn.now, web) {
            match (&target, self.store.queued(member, seq)?) {
                (Some(target), Some(message)) => {
                    jobs.push(self.start(turn, &mut device, seq, target.clone(), message)?);
                }
                _ => device.miss(seq),
            }
        }
        let (was, is) = (before.due(web), device.due(web));
        self.put_device(member, &before, device)?;
        self.outputs.extend(jobs.into_iter().map(|job| Output::Push(Box::new(job))));
        let platform = target.map_or(0, |target| target.platform);
        self.outputs.extend((0..given_up).map(|_| Output::PushGivenUp { platform }));
        // Also for what has not changed: while the device had no address that counts, the alarm forgot it.
        if let Some(at) = is {
            self.remind(turn, at)?;
        }
        if was.is_some() && was < is.or(Some(u64::MAX)) { self.put_off(turn) } else { Ok(()) }
    }

    /// Begins an attempt.
    fn start(
        &mut self,
        turn: Turn<'_>,
        device: &mut Device,
        seq: u32,
        target: Target,
        message: Queued,
    ) -> Result<Job, SqlError> {
        let Some(namespace) = self.space()?.map(|space| namespace_id(&space.row.agent)) else {
            return Err(SqlError("a push outside a namespace".to_owned()));
        };
        let id = attempt_id(device.last, turn.now, seq, &target, &message);
        let collapse = device.begin(seq, id, turn.now, is_web(&target));
        let nonce = *message.nonce.as_bytes();
        let sealed = Sealed { sender: message.sender, nonce, ciphertext: message.ciphertext };
        Ok(Job { id, target, namespace, collapse, sealed })
    }

    /// Where a device can be pushed to; `None` if it is none, or not authorized, or has no token, or its service is off.
    fn target(&mut self, member: u32) -> Result<Option<Target>, SqlError> {
        if member == AGENT || self.services == Services::default() {
            return Ok(None);
        }
        let device = self.space()?.and_then(|space| space.authorized().find(|device| device.no == member)).cloned();
        let device = device.filter(|device| self.can_push_to(device));
        Ok(device.map(|device| Target { platform: device.platform, token: device.token }))
    }

    fn can_push_to(&self, device: &Member) -> bool {
        !device.token.is_empty() && is_on(self.services, device.platform)
    }

    fn reach(&self, member: u32) -> Reach {
        match (self.online.contains_key(&member), self.unsure(member)) {
            (false, _) => Reach::Absent,
            (true, Some((_, rung, _))) => Reach::Connected(rung),
            (true, None) => Reach::Connected(0),
        }
    }

    /// A device's connection that would die without a word: its id, what has rung on it, and since when it is open.
    fn unsure(&self, member: u32) -> Option<(ConnId, u32, u64)> {
        let id = *self.online.get(&member)?;
        let rung = self.session(id).filter(|session: &&Session| !session.has(Features::KEEPALIVE))?.rung;
        Some((id, rung, self.conns.get(&id)?.opened_at))
    }

    /// When the first message is unproved for too long on such a connection, or a doubted one is alive or dead.
    fn overdue_at(&mut self, turn: Turn<'_>, member: u32) -> Result<Option<u64>, SqlError> {
        if self.target(member)?.is_none() {
            return Ok(None);
        }
        let Some((_, rung, opened_at)) = self.unsure(member) else {
            let doubted = self.online.get(&member).copied().filter(|id| self.is_doubted(turn, *id));
            let oldest = doubted.and_then(|id| Some((id, self.session(id)?.flight.oldest()?.at)));
            let waits = oldest.is_some() && !self.rows(turn, member, 0)?.is_empty();
            return Ok(oldest.filter(|_| waits).and_then(|(id, at)| self.dies_at(turn, id, at.saturating_add(DOUBT))));
        };
        let rows = self.rows(turn, member, rung)?;
        Ok(rows.iter().map(|row| self.unproved_until(row, opened_at)).min())
    }

    /// Whether a client with KEEPALIVE has not acknowledged for too long.
    pub(super) fn is_doubted(&self, turn: Turn<'_>, id: ConnId) -> bool {
        let oldest = self.session(id).filter(|session| session.has(Features::KEEPALIVE));
        // The clock may have gone back since.
        let late = |at: u64| at > turn.now || at.saturating_add(DOUBT) <= turn.now;
        oldest.and_then(|session| session.flight.oldest()).is_some_and(|sent| late(sent.at))
    }

    /// When to see whether a client with KEEPALIVE has acknowledged, if a push would be for it.
    pub(super) fn doubts_at(&self, turn: Turn<'_>, session: &Session) -> Option<u64> {
        let sent = session.flight.oldest().filter(|_| session.has(Features::KEEPALIVE))?;
        let at = sent.at.saturating_add(DOUBT);
        let known = self.known_space()?.authorized().find(|device| device.no == session.member)?;
        (sent.at <= turn.now && turn.now < at && self.can_push_to(known)).then_some(at)
    }

    /// Sees to the alarm for whoever is doubted.
    pub(super) fn doubt_all(&mut self, turn: Turn<'_>) -> Result<(), SqlError> {
        let doubted: Vec<u32> =
            self.online.iter().filter(|(_, id)| self.is_doubted(turn, **id)).map(|(member, _)| *member).collect();
        doubted.into_iter().try_for_each(|member| self.watch(turn, member))
    }

    /// The messages of a member's queue beyond a number that are worth a push.
    fn rows(&mut self, turn: Turn<'_>, member: u32, beyond: u32) -> Result<Vec<Indexed>, SqlError> {
        let life = self.limits.message_life;
        let rows = self.queue(member)?.beyond(beyond);
        Ok(rows.filter(|row| !row.quiet && row.at.saturating_add(life) > turn.now).cloned().collect())
    }

    /// The same, as what rings.
    fn ringing(&mut self, turn: Turn<'_>, member: u32, beyond: u32) -> Result<Vec<Ringing>, SqlError> {
        let rows = self.rows(turn, member, beyond)?;
        let Some(namespace) = self.space()?.map(|space| namespace_id(&space.row.agent)) else { return Ok(Vec::new()) };
        Ok(rows.iter().map(|row| Ringing { seq: row.seq, collapse: collapse_id(&namespace, row) }).collect())
    }

    /// What is remembered of all devices, read if need be.
    fn devices(&mut self) -> Result<&mut BTreeMap<u32, Device>, SqlError> {
        if self.cache.pushes.is_none() {
            let rows = self.store.pushes()?;
            self.cache.pushes = Some(rows.into_iter().map(|(member, row)| (member, Device::read(&row))).collect());
        }
        Ok(self.cache.pushes.get_or_insert_default())
    }

    fn device(&mut self, member: u32) -> Result<Device, SqlError> {
        Ok(self.devices()?.get(&member).cloned().unwrap_or_default())
    }

    /// Writes what is remembered of a device, if that has changed.
    fn put_device(&mut self, member: u32, before: &Device, device: Device) -> Result<(), SqlError> {
        if device != *before {
            self.store.put_push(member, &device.row())?;
            self.devices()?.insert(member, device);
        }
        Ok(())
    }

    /// When the alarm must fire for a push.
    pub(super) fn next_push(&mut self, turn: Turn<'_>) -> Result<Option<u64>, SqlError> {
        let mut next: Option<u64> = None;
        for (member, web) in self.targets()? {
            let due = self.devices()?.get(&member).and_then(|device| device.due(web));
            let overdue = self.overdue_at(turn, member)?;
            next = next.into_iter().chain(due).chain(overdue).min();
        }
        Ok(next)
    }

    /// All devices that can be pushed to, and whether it is a browser.
    fn targets(&mut self) -> Result<Vec<(u32, bool)>, SqlError> {
        let services = self.services;
        if services == Services::default() {
            return Ok(Vec::new());
        }
        let Some(space) = self.space()? else { return Ok(Vec::new()) };
        let can = space.authorized().filter(|device| !device.token.is_empty() && is_on(services, device.platform));
        Ok(can.map(|device| (device.no, device.platform == Platform::Web as i32)).collect())
    }

    /// Until when a message may be unproved on a connection that was opened then.
    fn unproved_until(&self, row: &Indexed, opened_at: u64) -> u64 {
        row.at.max(opened_at).saturating_add(self.limits.push_unproved)
    }
}

/// Whether this relay has credentials for the service of a platform.
const fn is_on(services: Services, platform: i32) -> bool {
    const IOS: i32 = Platform::Ios as i32;
    const ANDROID: i32 = Platform::Android as i32;
    const WEB: i32 = Platform::Web as i32;
    match platform {
        IOS => services.apns,
        ANDROID => services.fcm,
        WEB => services.web,
        _ => false,
    }
}

const fn is_web(target: &Target) -> bool {
    target.platform == Platform::Web as i32
}

/// The first 16 bytes of SHA-256(namespace, sender, tag); nothing for a message without a tag.
fn collapse_id(namespace: &NamespaceId, row: &Indexed) -> Vec<u8> {
    let Some(tag) = &row.tag else { return Vec::new() };
    let hash = Sha256::new()
        .chain_update(namespace.as_bytes())
        .chain_update(row.sender.as_bytes())
        .chain_update(tag.as_bytes())
        .finalize();
    hash.first_chunk::<16>().map_or_else(Vec::new, |id| id.to_vec())
}

/// A number that no other attempt of the namespace has, not even one that is forgotten: of a chain of hashes, since there is
/// no randomness here and the clock may go back.
fn attempt_id(last: u64, now: u64, seq: u32, target: &Target, message: &Queued) -> u64 {
    let hash = Sha256::new()
        .chain_update(last.to_le_bytes())
        .chain_update(now.to_le_bytes())
        .chain_update(seq.to_le_bytes())
        .chain_update(message.nonce.as_bytes())
        .chain_update(&target.token)
        .finalize();
    hash.first_chunk().map_or(1, |first| u64::from_le_bytes(*first).max(1))
}

/// What is kept of a dead token.
fn fingerprint(token: &str) -> Vec<u8> {
    Sha256::digest(token).first_chunk::<16>().map_or_else(Vec::new, |first| first.to_vec())
}
