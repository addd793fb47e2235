//! Pipes: who may have one, which two sides belong together, how many there are, and when they end.

use std::collections::BTreeSet;

use super::super::super::super::{ConnId, EndId};
use super::super::platform::{Event, Outcome, Platform};
use super::super::{Verdict, demand};
use super::{Cause, Claim, Oracle, Truth};

const GOING_AWAY: u16 = 1001;
const NOT_MEMBER: u16 = 4403;
const MISMATCH: u16 = 4404;
const ALREADY_MATCHED: u16 = 4409;
const TOO_MANY: u16 = 4429;

/// One side of a pipe, from outside.
#[derive(Debug)]
pub(super) struct Side {
    pipe: u8,
    peer: usize,
    /// Whom it expects.
    partner: usize,
    opened_at: u64,
    /// Whom it was matched with.
    other: Option<ConnId>,
    closed: Option<u16>,
    /// Its end has gone.
    ended: bool,
    /// The object panicked while it came in: its end never saw the socket, and the relay may know of it.
    lost: bool,
    /// The object panicked while it was being matched: it may be, or not.
    unsure: bool,
}

impl Side {
    const fn open(&self) -> bool {
        self.closed.is_none() && !self.ended && !self.lost
    }

    const fn expects(&self, other: &Self) -> bool {
        self.partner == other.peer && other.partner == self.peer && self.peer != other.peer
    }
}

/// What must become of a newcomer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Waits,
    Matched(ConnId),
    Mismatched(ConnId),
    Refused(u16),
    /// What came before went wrong half-way.
    Unknown,
}

/// The object of the end behind a side.
pub(in super::super) fn end_of(conn: ConnId) -> EndId {
    EndId::parse(&format!("{:064x}", conn.0)).unwrap()
}

impl Oracle {
    pub(in super::super) fn joins(&mut self, conn: ConnId, pipe: u8, peer: usize, partner: usize) {
        let opened_at = self.now;
        let side = Side {
            pipe,
            peer,
            partner,
            opened_at,
            other: None,
            closed: None,
            ended: false,
            lost: false,
            unsure: false,
        };
        self.sides.insert(conn, side);
    }

    /// An open side of a peer.
    pub(in super::super) fn side_of(&self, pipe: u8, peer: usize) -> Option<ConnId> {
        let is = |side: &Side| side.open() && side.pipe == pipe && side.peer == peer;
        self.sides.iter().find(|(_, side)| is(side)).map(|(conn, _)| *conn)
    }

    fn overdue(&self, side: &Side) -> bool {
        side.other.is_none() && self.now >= side.opened_at + self.limits.pipe_pending
    }

    /// Whether a peer surely may have pipes.
    fn belongs(&self, peer: usize) -> Truth {
        match (self.exists, self.standing_of(peer)) {
            (Truth::No, _) | (_, Truth::No) => Truth::No,
            (Truth::Yes, Truth::Yes) => Truth::Yes,
            _ => Truth::Maybe,
        }
    }

    /// The peer of the other side while that is there, else its own.
    fn other_peer(&self, side: &Side) -> usize {
        let other = side.other.and_then(|other| self.sides.get(&other)).filter(|other| other.open());
        other.map_or(side.peer, |other| other.peer)
    }

    /// How many pipes there surely are, and how many there may be, in the relay's eyes; without that of the newcomer.
    fn pipes(&self, but: u8) -> (u64, u64) {
        let (mut sure, mut maybe) = (BTreeSet::new(), BTreeSet::new());
        for side in self.sides.values().filter(|side| side.pipe != but && side.closed.is_none() && !side.ended) {
            maybe.insert(side.pipe);
            let partner = self.other_peer(side);
            let there = self.belongs(side.peer) == Truth::Yes && self.belongs(partner) == Truth::Yes;
            if there && !side.lost && !side.unsure && !self.overdue(side) {
                sure.insert(side.pipe);
            }
        }
        (sure.len() as u64, maybe.len() as u64)
    }

    /// What must become of the side that has just come.
    fn fate(&self, conn: ConnId) -> Fate {
        let Some(me) = self.sides.get(&conn) else { return Fate::Unknown };
        match self.belongs(me.peer) {
            Truth::No => return Fate::Refused(NOT_MEMBER),
            Truth::Maybe => return Fate::Unknown,
            Truth::Yes => {}
        }
        // One that a panic left may have been matched.
        let waited = |side: &Side| !side.unsure && self.overdue(side);
        let there = |(other, side): &(&ConnId, &Side)| {
            **other != conn && side.pipe == me.pipe && side.closed.is_none() && !side.ended && !waited(side)
        };
        let others: Vec<_> = self.sides.iter().filter(there).collect();
        let doubtful = |(_, side): &(&ConnId, &Side)| {
            let partner = self.other_peer(side);
            side.lost || side.unsure || self.belongs(side.peer) != Truth::Yes || self.belongs(partner) != Truth::Yes
        };
        if others.iter().any(doubtful) {
            return Fate::Unknown;
        }
        let (sure, maybe) = self.pipes(me.pipe);
        match others.as_slice() {
            [] if sure >= self.limits.pipes => Fate::Refused(TOO_MANY),
            [] if maybe < self.limits.pipes => Fate::Waits,
            [] => Fate::Unknown,
            [(other, side)] if side.other.is_none() && side.expects(me) => Fate::Matched(**other),
            [(other, side)] if side.other.is_none() => Fate::Mismatched(**other),
            _ => Fate::Refused(ALREADY_MATCHED),
        }
    }

    pub(super) fn side_begins(&mut self, cause: &Cause) {
        match cause {
            Cause::Joins(conn) => self.fate = self.fate(*conn),
            Cause::Ended(conn) => {
                if let Some(side) = self.sides.get_mut(conn) {
                    side.ended = true;
                }
            }
            _ => {}
        }
    }

    /// An end is told something.
    pub(super) fn side_told(&mut self, conn: ConnId, bytes: &[u8], cause: &Cause) -> Verdict {
        let Some(me) = self.sides.get(&conn) else { return Ok(()) };
        if bytes.is_empty() {
            let over = |side: &Side| side.ended || side.lost || side.closed.is_some();
            let alone = self.sides.iter().any(|(other, side)| {
                *other != conn && side.pipe == me.pipe && over(side) && (side.other == Some(conn) || self.crashes > 0)
            });
            demand!(alone, "whoever is told to be alone is", "{me:?}");
            return Ok(());
        }
        let other = self.sides.iter().find(|(other, _)| end_of(**other).to_bytes() == bytes);
        let Some((other, side)) = other.map(|(conn, side)| (*conn, side)) else {
            demand!(false, "an end is told of an end", "{bytes:?}");
            return Ok(());
        };
        // Of one that a panic lost the relay cannot know: whoever is sent to it finds nobody, and gives up.
        let there = side.open() || side.lost && !side.ended;
        let may = there && side.pipe == me.pipe && side.expects(me) && side.other.is_none();
        let newer = matches!(cause, Cause::Joins(own) if *own == conn);
        demand!(may && newer && me.other.is_none(), "two sides that expect each other are matched", "{me:?}, {side:?}");
        let belong = self.belongs(me.peer) != Truth::No && self.belongs(side.peer) != Truth::No;
        demand!(belong, "no pipe for a key that is not authorized", "{me:?}, {side:?}");
        for (conn, other) in [(conn, other), (other, conn)] {
            if let Some(side) = self.sides.get_mut(&conn) {
                side.other = Some(other);
            }
        }
        Ok(())
    }

    /// The relay closes a side.
    pub(super) fn side_closed(&mut self, conn: ConnId, code: u16, cause: &Cause) -> Verdict {
        let Some(me) = self.sides.get(&conn) else { return Ok(()) };
        let newer = matches!(cause, Cause::Joins(own) if *own == conn);
        let joining = if let Cause::Joins(conn) = cause { self.sides.get(conn) } else { None };
        let same = || self.sides.iter().filter(|(other, side)| **other != conn && side.pipe == me.pipe);
        let fair = match code {
            NOT_MEMBER => self.losing(me.peer, cause) || same().any(|(_, side)| self.losing(side.peer, cause)),
            MISMATCH => {
                let strange = |newer: &Side| {
                    newer.pipe == me.pipe && same().any(|(_, side)| !newer.expects(side) || !newer.expects(me))
                };
                self.overdue(me) || me.unsure || joining.is_some_and(strange)
            }
            ALREADY_MATCHED => newer && same().any(|(_, side)| side.closed.is_none()),
            TOO_MANY => newer && self.pipes(me.pipe).1 >= self.limits.pipes,
            GOING_AWAY => self.crashes + self.refusals > 0,
            _ => false,
        };
        demand!(me.closed.is_some() || fair, "no side of a pipe ends without reason", "{me:?}: {code} after {cause:?}");
        if let Some(me) = self.sides.get_mut(&conn) {
            me.closed.get_or_insert(code);
        }
        Ok(())
    }

    /// Whether a peer may be losing its pipes now.
    fn losing(&self, peer: usize, cause: &Cause) -> bool {
        let pairs = |conn: &ConnId| match self.lines.get(conn).map(|line| line.claim) {
            Some(Claim::Pairing(attempt)) => self.attempts[attempt].device == peer,
            _ => false,
        };
        self.belongs(peer) != Truth::Yes
            || self.revoking(peer, cause)
            || matches!(cause, Cause::Presented(conn) if pairs(conn))
    }

    /// After a side has come.
    pub(super) fn after_side(&mut self, conn: ConnId, outcome: &Outcome) -> Verdict {
        let fate = std::mem::replace(&mut self.fate, Fate::Unknown);
        if outcome.crashed {
            let pipe = self.sides.get(&conn).map(|side| side.pipe);
            for (other, side) in self.sides.iter_mut().filter(|(_, side)| Some(side.pipe) == pipe) {
                side.lost |= *other == conn;
                side.unsure = true;
            }
        }
        if !outcome.clean() {
            return Ok(());
        }
        let closed = |conn: ConnId| self.sides.get(&conn).map(|side| side.closed);
        let other = self.sides.get(&conn).and_then(|side| side.other);
        let told = outcome.events.iter().any(|event| matches!(event, Event::Told { conn: to, .. } if *to == conn));
        let right = match fate {
            Fate::Unknown => true,
            Fate::Waits => closed(conn) == Some(None) && !told,
            Fate::Matched(with) => other == Some(with) && told && closed(conn) == Some(None),
            Fate::Mismatched(with) => closed(conn) == Some(Some(MISMATCH)) && closed(with) == Some(Some(MISMATCH)),
            Fate::Refused(code) => closed(conn) == Some(Some(code)),
        };
        demand!(right, "each side of a pipe has its fate", "{fate:?}: {:?}", self.sides.get(&conn));
        Ok(())
    }

    /// After every input that went well.
    pub(super) fn check_sides(&self, platform: &Platform) -> Verdict {
        let open = || self.sides.values().filter(|side| side.open());
        for side in open() {
            let partner = self.other_peer(side);
            let gone = [side.peer, partner].into_iter().find(|peer| self.standing_of(*peer) == Truth::No);
            demand!(gone.is_none(), "whoever is revoked has no pipes", "{side:?}");
            demand!(side.unsure || !self.overdue(side), "whoever finds no partner is told in time", "{side:?}");
        }
        let pipes: BTreeSet<u8> = open().map(|side| side.pipe).collect();
        demand!(pipes.len() as u64 <= self.limits.pipes, "there are only so many pipes", "{pipes:?}");
        let waiting = open().filter(|side| side.other.is_none() && !side.unsure);
        if let Some(first) = waiting.map(|side| side.opened_at + self.limits.pipe_pending).min() {
            let set = platform.timer.is_some_and(|at| at <= first.max(self.now));
            demand!(set, "the timer is never late", "{:?} for a pipe at {first}", platform.timer);
        }
        Ok(())
    }

    /// How many sides are open and matched.
    pub(in super::super) fn open_sides(&self) -> usize {
        self.sides.values().filter(|side| side.open() && side.other.is_some()).count()
    }
}
