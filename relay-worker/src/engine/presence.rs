//! Who is connected (wire protocol, Presence and Keepalive).

use skald_common::ids::Ed25519Public;
use skald_common::wire::{CloseCode, ErrorCode, Features, Frame, PresenceEvent, PresenceList, Status};

use super::conn::{Phase, Session};
use super::rate::Bucket;
use super::{ConnId, Engine, Turn};
use crate::store::Sql;

/// How exactly an attachment knows when the peer was last heard, milliseconds.
const HEARD_GRAIN: u64 = 1000;

impl<S: Sql> Engine<S> {
    pub(super) fn on_presence_request(&mut self, turn: Turn<'_>, id: ConnId) {
        if !self.within_rate(turn, id) {
            self.tell_error(turn, id, ErrorCode::RateLimited, "too many frames", 0);
            return;
        }
        self.judge_all(turn);
        let online = self.online.values().filter_map(|id| self.session(*id)).map(|session| session.key.to_vec());
        let online = online.collect();
        self.send(id, Frame::PresenceList(PresenceList { online }));
    }

    /// Takes one `Message` or `PresenceRequest` out of a connection's budget.
    pub(super) fn within_rate(&mut self, turn: Turn<'_>, id: ConnId) -> bool {
        let (device, agent) = (self.limits.rate_per_minute, self.limits.agent_rate_per_minute);
        let Some(session) = self.session_mut(id) else { return false };
        let per_minute = if session.is_agent() { agent } else { device };
        session.bucket.get_or_insert_with(|| Bucket::new(per_minute, turn.now)).take(turn.now)
    }

    /// Tells everybody else that a member has come or gone.
    pub(super) fn broadcast(&mut self, but: ConnId, key: Ed25519Public, status: Status) {
        let others: Vec<ConnId> = self.online.values().copied().filter(|id| *id != but).collect();
        for other in others {
            let event = PresenceEvent { pubkey: key.to_vec(), status: status as i32 };
            self.send(other, Frame::PresenceEvent(event));
        }
    }

    /// The peer has sent something.
    pub(super) fn heard(&mut self, turn: Turn<'_>, id: ConnId) {
        let Some(session) = self.session_mut(id) else { return };
        session.heard_at = turn.now;
        if session.has(Features::KEEPALIVE) && turn.now.abs_diff(session.saved_heard_at) >= HEARD_GRAIN {
            session.saved_heard_at = turn.now;
            self.dirty.insert(id);
        }
    }

    /// The live connection of a member. One that has been silent for too long is found out here.
    pub(super) fn connected(&mut self, turn: Turn<'_>, member: u32) -> Option<ConnId> {
        let id = self.online.get(&member).copied()?;
        if self.is_dead(turn, id) {
            self.end(turn, id, Some(CloseCode::Idle));
            return None;
        }
        Some(id)
    }

    /// Ends every connection that has been silent for too long.
    pub(super) fn judge_all(&mut self, turn: Turn<'_>) {
        let dead: Vec<ConnId> = self.online.values().copied().filter(|id| self.is_dead(turn, *id)).collect();
        for id in dead {
            self.end(turn, id, Some(CloseCode::Idle));
        }
    }

    /// When a connection with KEEPALIVE is dead if it stays silent. `None` if it was heard after `since`.
    pub(super) fn dies_at(&self, turn: Turn<'_>, id: ConnId, since: u64) -> Option<u64> {
        let heard = self.session(id)?.heard_at.max(turn.links.last_ping(id).unwrap_or(0));
        (heard <= since).then(|| heard.saturating_add(self.limits.keepalive_dead + HEARD_GRAIN + 1))
    }

    fn is_dead(&self, turn: Turn<'_>, id: ConnId) -> bool {
        let long_ago = |at: u64| turn.now.saturating_sub(at) > self.limits.keepalive_dead + HEARD_GRAIN;
        // The platform is asked last: most have just been heard, and this is on the way of every message.
        let silent = |session: &Session| long_ago(session.heard_at) && turn.links.last_ping(id).is_none_or(long_ago);
        self.session(id).is_some_and(|session| session.has(Features::KEEPALIVE) && silent(session))
    }

    /// A connection is over: the peer closed, or the engine closes with `code`. What was written to it and not proved is
    /// queued again, the others are told, live messages that waited for it have found nobody. An unknown one is closed.
    pub(super) fn end(&mut self, turn: Turn<'_>, id: ConnId, code: Option<CloseCode>) {
        let conn = self.conns.remove(&id);
        if let Some(code) = code
            && !self.closing.contains(&id)
        {
            self.close(id, code);
        }
        let Some(Phase::Member(mut session)) = conn.map(|conn| conn.phase) else { return };
        self.online.remove(&session.member);
        while let Some(held) = session.held.pop() {
            self.tell_offline(held.sender, session.key, held.reference);
        }
        self.broadcast(id, session.key, Status::Offline);
        if let Err(error) = self.after_end(turn, session.member) {
            self.report(turn, error);
        }
    }
}
