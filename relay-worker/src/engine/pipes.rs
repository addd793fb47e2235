//! Pipes, seen from their namespace (pipe protocol, Data plane): who may open one, how many there may be, which two sides
//! belong together, and when they must end. Each side is the control socket of a pipe end, an object of its own that holds
//! the client and has verified its signature. No byte of a pipe comes here, no row is written for one, and an open one
//! needs no wake-up: what is known of it is in the attachments.
//!
//! What a side's end is told, as a binary message: the object of the other end, to which it is to open the link; or
//! nothing, in an empty message: the other side is gone, and if the link has not come by then, it never will.

use std::collections::BTreeMap;

use skald_common::crypto::namespace_id;
use skald_common::ids::{ConnectionId, Signature};
use skald_common::pipe::{PipeAuth, PipeClose};

use super::conn::{Conn, Phase};
use super::io::EndId;
use super::{ConnId, Engine, Output, Turn, attachment};
use crate::store::{Sql, SqlError};

/// One side of a pipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Side {
    /// What its client said. What is verified or concerns its end alone is not kept.
    pub(super) auth: PipeAuth,
    /// The object that holds its client.
    pub(super) end: EndId,
    /// Whether the two sides have found each other.
    pub(super) matched: bool,
}

/// What becomes of a newcomer.
enum Join {
    /// Waits for its other side.
    First,
    /// Belongs to this one.
    Second(ConnId),
    /// Expects somebody else than this one, or is not expected by it.
    Stranger(ConnId),
    Refused(PipeClose),
}

impl<S: Sql> Engine<S> {
    /// A pipe end announces its client, whose signature it has verified.
    pub(super) fn on_side(&mut self, turn: Turn<'_>, id: ConnId, auth: &[u8], end: EndId) -> Result<(), SqlError> {
        let Ok(auth) = PipeAuth::decode(auth) else {
            self.close_side(id, PipeClose::BadAuth);
            return Ok(());
        };
        let join = self.join(&auth)?;
        match join {
            Join::Refused(why) => self.close_side(id, why),
            Join::Stranger(other) => {
                self.close_side(id, PipeClose::Mismatch);
                self.close_side(other, PipeClose::Mismatch);
            }
            Join::First => {
                self.add_side(turn, id, Side { auth: unsigned(&auth), end, matched: false });
                self.dirty.insert(id);
            }
            Join::Second(other) => {
                self.add_side(turn, id, Side { auth: unsigned(&auth), end, matched: true });
                self.splice(id, other);
            }
        }
        Ok(())
    }

    fn join(&mut self, auth: &PipeAuth) -> Result<Join, SqlError> {
        if !self.belongs(auth)? {
            return Ok(Join::Refused(PipeClose::NotMember));
        }
        let mut there = self.sides().filter(|(_, side)| side.auth.connection == auth.connection);
        Ok(match (there.next(), there.next()) {
            (None, _) if self.pipes() >= self.limits.pipes => Join::Refused(PipeClose::TooMany),
            (None, _) => Join::First,
            (Some((other, side)), None) if !side.matched && side.auth.matches(auth) => Join::Second(other),
            (Some((other, side)), None) if !side.matched => Join::Stranger(other),
            (Some(_), _) => Join::Refused(PipeClose::AlreadyMatched),
        })
    }

    /// Whether this is the agent or an authorized device of this namespace.
    fn belongs(&mut self, auth: &PipeAuth) -> Result<bool, SqlError> {
        Ok(self.space()?.is_some_and(|space| {
            namespace_id(&space.row.agent) == auth.namespace && space.number_of(&auth.pubkey).is_some()
        }))
    }

    fn add_side(&mut self, turn: Turn<'_>, id: ConnId, side: Side) {
        self.conns.insert(id, Conn { opened_at: turn.now, phase: Phase::Pipe(Box::new(side)) });
    }

    /// `newer`, which has just come and surely listens, is told where the other end is. Both are saved first: a panic in
    /// between leaves two sides that disagree, or no newer one.
    fn splice(&mut self, newer: ConnId, other: ConnId) {
        let Some(Phase::Pipe(side)) = self.conns.get_mut(&other).map(|conn| &mut conn.phase) else { return };
        side.matched = true;
        let end = side.end.to_bytes();
        for id in [newer, other] {
            if let Some(conn) = self.conns.get(&id) {
                self.outputs.push_back(Output::Attach { conn: id, bytes: attachment::encode(id, conn).into() });
            }
        }
        self.send_bytes(newer, end);
    }

    /// A side's end has closed: its client is gone, or the pipe has ended. The ends tell each other over their link, behind
    /// the last byte; only a link that was never opened cannot.
    pub(super) fn on_side_closed(&mut self, id: ConnId) {
        let Some(Phase::Pipe(gone)) = self.conns.get(&id).map(|conn| &conn.phase) else { return };
        let is_other = |other: ConnId, side: &Side| other != id && side.auth.connection == gone.auth.connection;
        let other = self.sides().find(|(other, side)| gone.matched && is_other(*other, side)).map(|(other, _)| other);
        self.conns.remove(&id);
        if let Some(other) = other {
            self.send_bytes(other, bytes::Bytes::new());
        }
    }

    /// After a restore, or when the list has changed: ends the pipes of those that do not belong, both sides, and those
    /// whose sides disagree about their match, which only a panic leaves.
    pub(super) fn end_lost_pipes(&mut self) -> Result<(), SqlError> {
        let mut lost: BTreeMap<ConnectionId, PipeClose> = BTreeMap::new();
        let mut matched = BTreeMap::new();
        let sides: Vec<_> = self.sides().map(|(_, side)| (side.auth.clone(), side.matched)).collect();
        for (auth, is_matched) in sides {
            if !self.belongs(&auth)? {
                lost.insert(auth.connection, PipeClose::NotMember);
            } else if *matched.entry(auth.connection).or_insert(is_matched) != is_matched {
                lost.entry(auth.connection).or_insert(PipeClose::GoingAway);
            }
        }
        self.end_sides(|_, side| lost.get(&side.auth.connection).copied());
        Ok(())
    }

    /// Ends the sides that have waited too long for the other one.
    pub(super) fn expire_sides(&mut self, turn: Turn<'_>) {
        let wait = self.limits.pipe_pending;
        let late = |conn: &Conn, side: &Side| !side.matched && turn.now >= conn.opened_at.saturating_add(wait);
        self.end_sides(|conn, side| late(conn, side).then_some(PipeClose::Mismatch));
    }

    fn end_sides(&mut self, ends: impl Fn(&Conn, &Side) -> Option<PipeClose>) {
        let why = |conn: &Conn| if let Phase::Pipe(side) = &conn.phase { ends(conn, side) } else { None };
        let over: Vec<_> = self.conns.iter().filter_map(|(id, conn)| Some((*id, why(conn)?))).collect();
        for (id, why) in over {
            self.close_side(id, why);
        }
    }

    fn close_side(&mut self, id: ConnId, why: PipeClose) {
        self.conns.remove(&id);
        self.close_with(id, why.code(), why.reason());
    }

    fn sides(&self) -> impl Iterator<Item = (ConnId, &Side)> {
        self.conns.iter().filter_map(|(id, conn)| match &conn.phase {
            Phase::Pipe(side) => Some((*id, &**side)),
            Phase::Challenged { .. } | Phase::Member(_) => None,
        })
    }

    /// How many pipes there are, pending ones counted.
    fn pipes(&self) -> u64 {
        let mut all: Vec<_> = self.sides().map(|(_, side)| side.auth.connection).collect();
        all.sort_unstable();
        all.dedup();
        all.len() as u64
    }
}

fn unsigned(auth: &PipeAuth) -> PipeAuth {
    PipeAuth { signature: Signature::new([0; Signature::LEN]), flow: false, ..auth.clone() }
}
