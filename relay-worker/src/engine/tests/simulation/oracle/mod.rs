//! What must hold. The oracle keeps a record of its own of what was asked, answered, written and acted on; it never reads the
//! engine. After an input that went wrong half-way (a panic, a failing disk) some of its knowledge is a *maybe*, until an
//! answer of the relay settles it.
//!
//! * [`members`]: who belongs, who is let in, pairing, presence, the end of connections, deadlines.
//! * [`messages`]: what becomes of each message.
//! * [`push`]: which messages ring, when, and how often.
//! * [`pipes`]: which sides of pipes belong together, and when they end.

mod members;
mod messages;
mod pipes;
mod push;

use std::collections::{BTreeMap, BTreeSet};

use skald_common::ids::Ed25519Public;
use skald_common::wire::{Features, Frame};

pub(super) use members::Attempt;
pub(super) use messages::{Sent, body, nonce};
pub(super) use pipes::end_of;

use super::super::super::{ConnId, Limits};
use super::history::{Oddity, PEERS};
use super::platform::{Event, Outcome, Platform};
use super::{START, Verdict, demand};
use crate::push::Services;

/// What is known of a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Truth {
    No,
    Yes,
    Maybe,
}

/// What a connection claims to be, with valid credentials, or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// The agent, or a client.
    Member,
    /// A pairing device: the number of the attempt.
    Pairing(usize),
    Fraud,
}

/// What a peer or the platform did.
#[derive(Debug, Clone)]
pub(super) enum Cause {
    /// Dialled by a direct route: the challenge is to come.
    Dialled(ConnId),
    /// Presented its credentials.
    Presented(ConnId),
    /// A message: the number of the copy.
    Message(ConnId, u64),
    Presence(ConnId),
    Ack(ConnId, u64),
    /// The whole list, by peer.
    List([bool; PEERS]),
    /// The token, and until when.
    OpenWindow(u64, u64),
    CloseWindow,
    Odd(ConnId, Oddity),
    /// A side of a pipe comes in.
    Joins(ConnId),
    /// A push service has answered.
    Answer(u64, crate::push::Outcome),
    /// The socket ended.
    Ended(ConnId),
    Time,
}

/// A connection, from outside.
#[derive(Debug)]
struct Line {
    peer: usize,
    features: Features,
    claim: Claim,
    opened_at: u64,
    /// Has been sent `AuthOk` as agent or client.
    member: bool,
    /// Waits for a peer's credentials.
    challenged: bool,
    closed: bool,
    /// The highest copy written, and the one at the beginning of the turn.
    last: u64,
    mark: u64,
    last_delivery: u64,
    mark_delivery: u64,
    /// Written and not acknowledged: copy and size, by delivery number. With RECEIPTS only.
    outstanding: BTreeMap<u64, (u64, u64)>,
    /// When, by delivery number.
    written_at: BTreeMap<u64, u64>,
    /// When a frame last came from it.
    heard_at: u64,
    /// Delivery numbers of this turn.
    fresh: Vec<u64>,
    /// Messages written.
    wrote: BTreeSet<u64>,
    /// Stored ones in order, for peers without RECEIPTS.
    unproved: Vec<u64>,
    /// Frames that count toward the rate, and how many of them were let through, since the relay's memory began.
    counted: u64,
    passed: u64,
    /// How long that is, milliseconds.
    counted_for: u64,
    /// Deliveries or an acknowledgement went down with a panic: what the relay thinks is under way is not known.
    unsure: bool,
}

impl Line {
    const fn open(&self) -> bool {
        self.member && !self.closed
    }

    const fn has(&self, feature: Features) -> bool {
        self.features.contains(feature)
    }
}

/// The record.
pub(super) struct Oracle {
    limits: Limits,
    keys: [Ed25519Public; PEERS],
    now: u64,
    /// The latest that the clock ever showed.
    latest: u64,
    jumps: u32,
    crashes: u32,
    refusals: u32,
    lines: BTreeMap<ConnId, Line>,
    // Members.
    exists: Truth,
    listed: Truth,
    standing: [Truth; PEERS],
    window: members::Windows,
    attempts: Vec<Attempt>,
    /// Pending devices that the agent must be told of: the attempt, and when.
    pending: Vec<(usize, u64)>,
    /// When a member was last connected.
    last_member: u64,
    /// The relay may be wrong about when that was, or about its alarm.
    rough: bool,
    alarm_lost: bool,
    // Pipes.
    sides: BTreeMap<ConnId, pipes::Side>,
    /// What must become of the side that is coming in.
    fate: pipes::Fate,
    // Messages.
    sent: Vec<Sent>,
    copies: Vec<messages::Copy>,
    /// Messages that must be acted on.
    owed: BTreeSet<u64>,
    /// Copies that may lie in a recipient's queue.
    stored: [BTreeSet<u64>; PEERS],
    /// How often a recipient's queue was emptied for good.
    life: [u32; PEERS],
    push: push::Pushes,
}

impl Oracle {
    pub(super) fn new(limits: Limits, services: Services, keys: [Ed25519Public; PEERS]) -> Self {
        Self {
            limits,
            keys,
            now: START,
            latest: START,
            jumps: 0,
            crashes: 0,
            refusals: 0,
            lines: BTreeMap::new(),
            exists: Truth::No,
            listed: Truth::No,
            standing: [Truth::No; PEERS],
            window: members::Windows::default(),
            attempts: Vec::new(),
            pending: Vec::new(),
            last_member: START,
            rough: false,
            alarm_lost: false,
            sides: BTreeMap::new(),
            fate: pipes::Fate::Unknown,
            sent: Vec::new(),
            copies: Vec::new(),
            owed: BTreeSet::new(),
            stored: std::array::from_fn(|_| BTreeSet::new()),
            life: [0; PEERS],
            push: push::Pushes::new(services),
        }
    }

    // --- what is told before it happens ---

    pub(super) fn dialled(&mut self, conn: ConnId, peer: usize, features: Features, claim: Claim, direct: bool) {
        let line = Line {
            peer,
            features,
            claim,
            opened_at: self.now,
            member: false,
            challenged: direct,
            closed: false,
            last: 0,
            mark: 0,
            last_delivery: 0,
            mark_delivery: 0,
            outstanding: BTreeMap::new(),
            written_at: BTreeMap::new(),
            heard_at: self.now,
            fresh: Vec::new(),
            wrote: BTreeSet::new(),
            unproved: Vec::new(),
            counted: 0,
            passed: 0,
            counted_for: 0,
            unsure: false,
        };
        self.lines.insert(conn, line);
    }

    /// The clock shows something else.
    pub(super) fn clock(&mut self, now: u64) {
        let passed = now.saturating_sub(self.now);
        if self.lines.values().any(Line::open) {
            self.last_member = now;
        }
        self.now = now;
        self.latest = self.latest.max(now);
        self.lines.values_mut().for_each(|line| line.counted_for += passed);
        self.expire();
        self.window.expire(now);
    }

    pub(super) const fn jumped(&mut self) {
        self.jumps += 1;
    }

    /// The relay's memory is gone.
    pub(super) fn forgotten(&mut self) {
        for line in self.lines.values_mut() {
            (line.counted, line.passed, line.counted_for) = (0, 0, 0);
        }
    }

    // --- what happened ---

    /// Judges one input and what came of it.
    pub(super) fn judge(&mut self, platform: &Platform, cause: &Cause, outcome: &Outcome) -> Verdict {
        for line in self.lines.values_mut() {
            (line.mark, line.mark_delivery) = (line.last, line.last_delivery);
            line.fresh.clear();
        }
        if let Cause::Message(conn, _) | Cause::Presence(conn) | Cause::Ack(conn, _) | Cause::Odd(conn, _) = cause
            && let Some(line) = self.lines.get_mut(conn)
        {
            line.heard_at = self.now;
        }
        if outcome.refused {
            self.refusals += 1;
            self.rough = true;
        }
        self.begins(cause, outcome);
        for (at, event) in outcome.events.iter().enumerate() {
            match event {
                Event::Told { conn, bytes } => self.side_told(*conn, bytes, cause)?,
                Event::Wrote { conn, frame, size } => self.wrote(*conn, frame, *size, cause, outcome)?,
                Event::Closed { conn, code } => {
                    let before = outcome.events.get(..at).unwrap_or_default();
                    self.closed(platform, *conn, *code, cause, before)?;
                    self.side_closed(*conn, *code, cause)?;
                }
                Event::DeletedAll => self.deleted_all()?,
                Event::Asked(_) | Event::GivenUp => {} // judged when the turn is over
                Event::Fault(error) => demand!(outcome.refused, "storage fails only when told to", "{error}"),
            }
        }
        if outcome.crashed {
            self.crashed(cause);
        }
        self.ends(platform, cause, outcome)?;
        self.judge_pushes(cause, outcome)?;
        if outcome.clean() {
            self.check_rings(platform)?;
            self.check_deadlines(platform)?;
            self.check_progress(platform)?;
            self.check_sides(platform)?;
        }
        if self.lines.values().any(Line::open) {
            self.last_member = self.now;
        }
        Ok(())
    }

    fn crashed(&mut self, cause: &Cause) {
        self.crashes += 1;
        (self.rough, self.alarm_lost) = (true, true);
        self.forgotten();
        for line in self.lines.values_mut() {
            (line.last, line.last_delivery) = (line.mark, line.mark_delivery);
            for delivery in std::mem::take(&mut line.fresh) {
                line.outstanding.remove(&delivery);
                line.unsure = true;
            }
        }
        if let Cause::Dialled(conn) = cause
            && let Some(line) = self.lines.get_mut(conn)
        {
            line.challenged = false; // the relay may not know of it
        }
        if let Cause::Ack(conn, _) = cause
            && let Some(line) = self.lines.get_mut(conn)
        {
            line.unsure = true;
        }
    }

    /// A frame was written to a connection.
    fn wrote(&mut self, conn: ConnId, frame: &Frame, size: u64, cause: &Cause, outcome: &Outcome) -> Verdict {
        let Some(line) = self.lines.get(&conn) else { return Ok(()) };
        let (peer, member) = (line.peer, line.member);
        if member && self.standing_of(peer) == Truth::No {
            demand!(false, "nothing goes to a key that is not authorized", "peer {peer}: {frame:?}");
        }
        let receipts = line.has(Features::RECEIPTS);
        match frame {
            Frame::Challenge(_) | Frame::AuthError(_) => {
                demand!(!member, "the handshake is over after AuthOk", "peer {peer}: {frame:?}");
                if let Frame::AuthError(error) = frame {
                    self.refused(conn, &error.code, cause, outcome)?;
                }
            }
            Frame::AuthOk(ok) => self.let_in(conn, ok, cause, outcome)?,
            _ => demand!(member, "AuthOk comes first", "peer {peer}: {frame:?}"),
        }
        match frame {
            Frame::Message(message) => self.delivered(conn, message, size)?,
            Frame::Accepted(accepted) => {
                demand!(receipts, "no frame that the peer does not know", "peer {peer}: {frame:?}");
                self.accepted(conn, accepted)?;
            }
            Frame::Error(error) => {
                demand!(receipts || error.r#ref == 0, "no field that the peer does not know", "{error:?}");
            }
            Frame::PeerOffline(offline) => {
                demand!(receipts || offline.r#ref == 0, "no field that the peer does not know", "{offline:?}");
            }
            Frame::AuthorizeOk(ok) => self.list_holds(cause, ok.authorized)?,
            Frame::PairingReady(ready) => self.window_holds(cause, ready.ttl)?,
            Frame::PairingStopOk(_) => self.window.close(),
            Frame::ClientPaired(paired) => self.announced(conn, paired, cause)?,
            Frame::PresenceEvent(event) => self.presence(event)?,
            _ => {}
        }
        Ok(())
    }

    /// Before the events of a turn are looked at: what they may already rest on.
    fn begins(&mut self, cause: &Cause, outcome: &Outcome) {
        self.side_begins(cause);
        if let Cause::Ended(conn) = cause
            && let Some(line) = self.lines.get_mut(conn)
        {
            let was = line.open().then_some(line.peer);
            line.closed = true;
            self.queued_anew(was, false);
        }
        if let Cause::Answer(id, answer) = cause {
            self.push_answered(*id, *answer, outcome.clean());
        }
        if let Cause::Ack(conn, delivery) = cause {
            self.acknowledged(*conn, *delivery, outcome.clean());
        }
    }

    /// After the events: what they say together, and what should have been among them.
    fn ends(&mut self, platform: &Platform, cause: &Cause, outcome: &Outcome) -> Verdict {
        match cause {
            Cause::Message(conn, copy) => self.after_message(platform, *conn, *copy, outcome),
            Cause::Presence(conn) => self.after_presence(*conn, outcome),
            Cause::Presented(conn) => self.after_presented(*conn, outcome),
            Cause::Joins(conn) => self.after_side(*conn, outcome),
            Cause::List(list) => {
                self.after_list(*list, outcome);
                Ok(())
            }
            Cause::OpenWindow(token, until) => {
                self.after_window(Some((*token, *until)), outcome);
                Ok(())
            }
            Cause::CloseWindow => {
                self.after_window(None, outcome);
                Ok(())
            }
            Cause::Odd(conn, oddity) => self.after_oddity(*conn, *oddity, outcome),
            Cause::Ack(..) | Cause::Answer(..) | Cause::Dialled(_) | Cause::Ended(_) | Cause::Time => Ok(()),
        }
    }

    /// The open connection of a member.
    fn line_of(&self, peer: usize) -> Option<(ConnId, &Line)> {
        self.lines.iter().find(|(_, line)| line.peer == peer && line.open()).map(|(conn, line)| (*conn, line))
    }
}

/// The frames that an outcome has for a connection.
fn written(outcome: &Outcome, to: ConnId) -> impl Iterator<Item = &Frame> {
    outcome.events.iter().filter_map(move |event| match event {
        Event::Wrote { conn, frame, .. } if *conn == to => Some(frame),
        _ => None,
    })
}
