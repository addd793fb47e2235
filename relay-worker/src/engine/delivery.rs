//! From the queue to the recipient (wire protocol, Delivery guarantee): one cursor per recipient, a paced drain, proof of
//! receipt, and live messages that never pass what was stored before them.
//!
//! A connection's cursor starts before the queue's first row, so a new connection gets every row that is not deleted yet.
//! Rows up to the cursor have been written to this very connection; rows beyond it have not. A row is deleted when its
//! receipt is proved. When a connection ends there is nothing to do: without a cursor all rows are as if just queued, and
//! [`Engine::wait_for_recipient`] is where that becomes known.

use skald_common::wire::{self, CloseCode, ErrorCode, Features, Frame, Message};

use super::conn::{Sent, Session, Stall};
use super::{ConnId, Engine, Turn};
use crate::store::{Indexed, Queued, Sql, SqlError};

/// A frame proves, for a peer without RECEIPTS, what was sent at least this long before it, milliseconds.
const PROOF_AGE: u64 = 2000;
/// A socket that takes nothing for this long is dead, milliseconds.
const STALL_LIMIT: u64 = 60_000;
/// A live message that waits for this long has found nobody, milliseconds.
pub(super) const HELD_LIFE: u64 = 30_000;
/// Unproved messages on a connection; beyond them the oldest are forgotten. With RECEIPTS there are never as many.
const MAX_UNPROVED: u64 = 200;

/// Whether a connection takes more.
enum Room {
    Open,
    /// The peer must acknowledge first.
    Unacknowledged,
    /// The socket must drain first.
    Unsent,
}

impl<S: Sql> Engine<S> {
    /// The peer says that it has handled everything up to a number.
    pub(super) fn on_ack(&mut self, turn: Turn<'_>, id: ConnId, delivery: u64) -> Result<(), SqlError> {
        if self.session(id).is_some_and(|session| session.has(Features::RECEIPTS)) {
            self.settle(turn, id, |sent| u64::from(sent.seq) <= delivery)?;
            self.feed(turn, id);
        }
        Ok(())
    }

    /// A frame, or a close with 1000, has come from the peer: without RECEIPTS that proves what was sent long enough ago.
    pub(super) fn prove_by_age(&mut self, turn: Turn<'_>, id: ConnId) -> Result<(), SqlError> {
        let Some(session) = self.session(id).filter(|session| !session.has(Features::RECEIPTS)) else { return Ok(()) };
        // What the platform still holds back has not crossed anything.
        let waiting = session.flight.within_last(self.unsent(turn, id));
        self.settle(turn, id, |sent| {
            sent.at.saturating_add(PROOF_AGE) <= turn.now && waiting.is_none_or(|first| sent.seq < first)
        })?;
        Ok(())
    }

    fn settle(&mut self, turn: Turn<'_>, id: ConnId, proved: impl Fn(&Sent) -> bool) -> Result<(), SqlError> {
        let doubted = self.is_doubted(turn, id);
        let Some(session) = self.session_mut(id) else { return Ok(()) };
        let member = session.member;
        if let Some(last) = session.flight.settle(proved) {
            self.dirty.insert(id);
            self.delete_up_to(member, last)?;
            // Nothing is to be judged any more.
            if doubted && !self.is_doubted(turn, id) {
                self.put_off(turn)?;
            }
        }
        Ok(())
    }

    /// A peer that sends other traffic and does not acknowledge for too long is cut off.
    pub(super) fn judge_acks(&mut self, turn: Turn<'_>, id: ConnId) {
        let limit = self.limits.ack_timeout;
        let late = |session: &Session| {
            session.has(Features::RECEIPTS)
                && session.flight.oldest().is_some_and(|sent| sent.at.saturating_add(limit) <= turn.now)
        };
        if self.session(id).is_some_and(late) {
            self.tell_error(turn, id, ErrorCode::BadRequest, "deliveries are not acknowledged", 0);
            self.end(turn, id, Some(CloseCode::Refused));
        }
    }

    /// Writes to a connection what waits for it, as far as there is room. A failure is the recipient's: it redials.
    pub(super) fn feed(&mut self, turn: Turn<'_>, id: ConnId) {
        self.feed_fresh(turn, id, None);
    }

    /// The same, with the message at hand that was stored under the last number.
    pub(super) fn feed_fresh(&mut self, turn: Turn<'_>, id: ConnId, fresh: Option<(u32, Queued)>) {
        if let Err(error) = self.drain(turn, id, fresh) {
            self.report(turn, error);
            self.end(turn, id, Some(CloseCode::Restarting));
        }
    }

    fn drain(&mut self, turn: Turn<'_>, id: ConnId, mut fresh: Option<(u32, Queued)>) -> Result<(), SqlError> {
        while let Some(session) = self.session(id) {
            let (member, cursor) = (session.member, session.cursor);
            let held = session.held.first().map(|held| (held.after, held.frame.len() as u64));
            let next = self.queue(member)?.after(cursor).cloned();
            if let Some(expired) = next.as_ref().filter(|row| self.expired(turn, row)) {
                self.store.dequeue(member, expired.seq, expired.seq)?;
                self.queue(member)?.remove(expired.seq);
                continue;
            }
            if let Some((_, size)) = held.filter(|(after, _)| next.as_ref().is_none_or(|row| row.seq > *after)) {
                if self.socket_is_full(turn, id, size) {
                    self.stall(turn, id);
                    return Ok(());
                }
                self.deliver_held(id);
                continue;
            }
            let Some(row) = next else {
                self.caught_up(id);
                return Ok(());
            };
            match self.room(turn, id, row.size.into()) {
                Room::Open => {}
                Room::Unacknowledged => {
                    self.unstall(id);
                    return Ok(());
                }
                Room::Unsent => {
                    self.stall(turn, id);
                    return Ok(());
                }
            }
            let message = match fresh.take() {
                Some((seq, message)) if seq == row.seq => Some(message),
                other => {
                    fresh = other;
                    self.store.queued(member, row.seq)?
                }
            };
            match message {
                Some(message) => self.deliver(turn, id, &row, message)?,
                None => self.queue(member)?.remove(row.seq),
            }
        }
        Ok(())
    }

    fn expired(&self, turn: Turn<'_>, row: &Indexed) -> bool {
        row.at.saturating_add(self.limits.message_life) <= turn.now
    }

    fn room(&self, turn: Turn<'_>, id: ConnId, size: u64) -> Room {
        let Some(session) = self.session(id) else { return Room::Unsent };
        let flight = &session.flight;
        if self.socket_is_full(turn, id, size) {
            Room::Unsent
        } else if session.has(Features::RECEIPTS)
            && flight.len() > 0
            && (flight.len() >= self.limits.window_messages || flight.bytes() + size > self.limits.window_bytes)
        {
            Room::Unacknowledged
        } else {
            Room::Open
        }
    }

    fn socket_is_full(&self, turn: Turn<'_>, id: ConnId, size: u64) -> bool {
        let unsent = self.unsent(turn, id);
        unsent > 0 && unsent.saturating_add(size) > self.limits.window_bytes
    }

    /// Writes a stored message to the connection and moves the cursor.
    fn deliver(&mut self, turn: Turn<'_>, id: ConnId, row: &Indexed, message: Queued) -> Result<(), SqlError> {
        let Some(session) = self.session_mut(id) else { return Ok(()) };
        let receipts = session.has(Features::RECEIPTS);
        let member = session.member;
        session.cursor = row.seq;
        session.stall = None; // there was room: it drains
        session.flight.push(Sent { seq: row.seq, size: row.size, at: turn.now });
        let forgotten = if session.flight.len() > MAX_UNPROVED { session.flight.pop() } else { None };
        self.dirty.insert(id);
        self.send(
            id,
            Frame::Message(Message {
                ciphertext: message.ciphertext,
                nonce: message.nonce.to_vec(),
                peer: message.sender.to_vec(),
                delivery: if receipts { row.seq.into() } else { 0 },
                ..Message::default()
            }),
        );
        match forgotten {
            Some(oldest) => self.delete_up_to(member, oldest.seq),
            None => Ok(()),
        }
    }

    fn deliver_held(&mut self, id: ConnId) {
        self.unstall(id);
        if let Some(held) = self.session_mut(id).and_then(|session| session.held.pop()) {
            self.send_bytes(id, held.frame);
            self.tell_accepted(held.sender, held.reference, false);
        }
    }

    /// The drain has reached the end.
    fn caught_up(&mut self, id: ConnId) {
        self.unstall(id);
        let newcomer = self.session_mut(id).filter(|session| !session.greeted).map(|session| {
            session.greeted = true;
            session.key
        });
        if let Some(key) = newcomer {
            self.dirty.insert(id);
            self.broadcast(id, key, wire::Status::Online);
        }
    }

    /// The socket does not drain: look again soon, and give up on it if it makes no progress at all.
    fn stall(&mut self, turn: Turn<'_>, id: ConnId) {
        let unsent = self.unsent(turn, id);
        // What was written in this very turn is no sign of a dead socket.
        let stuck = turn.links.buffered(id);
        let Some(session) = self.session_mut(id) else { return };
        match session.stall {
            // The clock may have gone back since.
            Some(stall) if stuck > 0 && stuck >= stall.buffered && stall.since <= turn.now => {
                if turn.now >= stall.since.saturating_add(STALL_LIMIT) {
                    self.end(turn, id, Some(CloseCode::Idle));
                }
            }
            _ => {
                session.stall = Some(Stall { since: turn.now.max(1), buffered: unsent });
                self.dirty.insert(id);
            }
        }
    }

    fn unstall(&mut self, id: ConnId) {
        if self.session_mut(id).is_some_and(|session| session.stall.take().is_some()) {
            self.dirty.insert(id);
        }
    }

    /// Looks again at the sockets that did not drain, and gives up on live messages that have waited too long.
    pub(super) fn retry(&mut self, turn: Turn<'_>) {
        let waiting: Vec<ConnId> = self.online.values().copied().collect();
        for id in waiting {
            if self.session(id).is_some_and(|session| session.stall.is_some()) {
                self.feed(turn, id);
            }
            let late = |session: &mut Session| {
                let first = session.held.first()?;
                // The clock may have gone back since.
                let late = first.at > turn.now || first.at.saturating_add(HELD_LIFE) <= turn.now;
                late.then_some(())?;
                session.held.pop().map(|held| (session.key, held))
            };
            while let Some((key, held)) = self.session_mut(id).and_then(late) {
                self.tell_offline(held.sender, key, held.reference);
            }
        }
    }

    /// A stored message has become queued for a member that is not connected: just stored, or left unproved by a
    /// connection that ended.
    pub(super) fn wait_for_recipient(&mut self, turn: Turn<'_>, member: u32) -> Result<(), SqlError> {
        if self.queue(member)?.first().is_some() {
            self.ensure_alarm(turn, turn.now.saturating_add(self.sweep_every()))?;
        }
        Ok(())
    }
}
