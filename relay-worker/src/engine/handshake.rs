//! From the challenge to `AuthOk` (wire protocol, Handshake). Nothing is written before the signature is verified.

use bytes::Bytes;
use skald_common::crypto::namespace_id;
use skald_common::ids::{Ed25519Public, NamespaceId};
use skald_common::wire::{AuthOk, Challenge, CloseCode, ErrorCode, Features, Frame};

use super::auth::{self, Claim, PushAddress};
use super::conn::{AGENT, Conn, Phase, Session};
use super::space::Space;
use super::{ConnId, Engine, Origin, Output, Refusal, Turn, attachment};
use crate::store::{Member, Namespace, Sql, SqlError};

/// The peer's namespace is not the one that it came to.
const OTHER_NAMESPACE: Refusal = Refusal::new(ErrorCode::NotFound, "another namespace");

impl<S: Sql> Engine<S> {
    pub(super) fn on_opened(&mut self, turn: Turn<'_>, id: ConnId, origin: Origin) -> Result<(), SqlError> {
        match origin {
            Origin::Direct { challenge, namespace } => {
                let phase = Phase::Challenged { challenge, namespace };
                self.conns.insert(id, Conn { opened_at: turn.now, phase });
                self.dirty.insert(id);
                self.send(id, Frame::Challenge(Challenge { nonce: challenge.to_vec() }));
                self.bound_unauthenticated(id);
                Ok(())
            }
            Origin::Pipe { auth, end } => self.on_side(turn, id, &auth, end),
            Origin::Verified { auth } => {
                if let Some(claim) = Claim::decode(auth) {
                    self.admit(turn, id, claim)
                } else {
                    self.refuse(id, auth::MALFORMED);
                    Ok(())
                }
            }
        }
    }

    /// Closes the oldest socket without authentication if `newest` is one too many.
    fn bound_unauthenticated(&mut self, newest: ConnId) {
        let waiting = || self.conns.iter().filter(|(_, conn)| matches!(conn.phase, Phase::Challenged { .. }));
        if waiting().count() as u64 > self.limits.unauthenticated
            && let Some((oldest, _)) = waiting().filter(|(id, _)| **id != newest).min_by_key(|(_, conn)| conn.opened_at)
        {
            self.refuse(*oldest, Refusal::new(ErrorCode::RateLimited, "too many connections wait for authentication"));
        }
    }

    /// Ends the handshakes that took too long.
    pub(super) fn expire_challenges(&mut self, turn: Turn<'_>) {
        let late = |conn: &Conn| {
            matches!(conn.phase, Phase::Challenged { .. })
                && turn.now >= conn.opened_at.saturating_add(self.limits.challenge_timeout)
        };
        let late: Vec<_> = self.conns.iter().filter(|(_, conn)| late(conn)).map(|(id, _)| *id).collect();
        for id in late {
            self.refuse(id, Refusal::new(ErrorCode::ChallengeTimeout, "no authentication in time"));
        }
    }

    /// The first frame of a connection on a direct route.
    pub(super) fn on_auth(&mut self, turn: Turn<'_>, id: ConnId, bytes: Bytes) -> Result<(), SqlError> {
        match self.verify(id, bytes) {
            Ok(claim) => self.admit(turn, id, claim),
            Err(refusal) => {
                self.refuse(id, refusal);
                Ok(())
            }
        }
    }

    fn verify(&self, id: ConnId, bytes: Bytes) -> Result<Claim, Refusal> {
        let Some(Phase::Challenged { challenge, namespace }) = self.conns.get(&id).map(|conn| &conn.phase) else {
            return Err(auth::MALFORMED);
        };
        let claim = auth::verify_auth(bytes, challenge, &self.limits)?.into_claim();
        if claim.namespace() != *namespace {
            return Err(OTHER_NAMESPACE);
        }
        Ok(claim)
    }

    /// Lets a verified peer in, or says why not.
    fn admit(&mut self, turn: Turn<'_>, id: ConnId, claim: Claim) -> Result<(), SqlError> {
        self.judge_all(turn);
        let namespace = claim.namespace();
        if self.space()?.is_some_and(|space| namespace_id(&space.row.agent) != namespace) {
            self.refuse(id, OTHER_NAMESPACE);
            return Ok(());
        }
        match claim {
            Claim::Agent { key, features } => {
                if self.space()?.is_none() {
                    self.found(turn, key)?;
                }
                self.enter(turn, id, AGENT, key, namespace, features)
            }
            Claim::Client { key, push, features, .. } => match self.client(&key)? {
                Ok(member) => {
                    let no = member.no;
                    self.refresh(&member, push)?;
                    self.enter(turn, id, no, key, namespace, features)
                }
                Err(refusal) => {
                    self.refuse(id, refusal);
                    Ok(())
                }
            },
            Claim::Pairing(pairing) => self.pair(turn, id, pairing),
        }
    }

    /// The device that may come in as a client with this key.
    fn client(&mut self, key: &Ed25519Public) -> Result<Result<Member, Refusal>, SqlError> {
        let Some(space) = self.space()?.filter(|space| space.row.authorized) else {
            // Not "unauthorized": the agent may still come back and say who belongs.
            return Ok(Err(Refusal::new(ErrorCode::NotFound, "no such namespace yet")));
        };
        let known = space.device(key).filter(|_| space.number_of(key).is_some_and(|no| no != AGENT));
        Ok(known.cloned().ok_or(Refusal::new(ErrorCode::Unauthorized, "this device is not authorized")))
    }

    /// Creates the namespace of an agent.
    fn found(&mut self, turn: Turn<'_>, agent: Ed25519Public) -> Result<(), SqlError> {
        let alarm_at = turn.now.saturating_add(self.limits.namespace_life);
        let row = Namespace { agent, authorized: false, window: None, last_active: turn.now, alarm_at: Some(alarm_at) };
        self.store.transaction(|| {
            self.store.create()?;
            self.store.put_namespace(&row)
        })?;
        self.set_space(Space { row, members: Vec::new() });
        self.wake_at(turn, alarm_at)
    }

    /// Keeps a returning device's push address up to date; an empty token, one known to be dead, or no platform keeps what
    /// is there.
    fn refresh(&mut self, member: &Member, push: PushAddress) -> Result<(), SqlError> {
        let mut fresh = member.clone();
        let is_news = !push.token.is_empty() && push.token != member.token;
        if is_news && !self.is_dead_token(member.no, &push.token)? {
            fresh.token = push.token;
        }
        if push.platform != 0 {
            fresh.platform = push.platform;
        }
        if fresh != *member {
            self.moved(member.no)?;
            self.put_member(fresh.clone())?;
            self.tell_push_change(member, &fresh)?;
        }
        Ok(())
    }

    /// A member is in: replaces its older connection, welcomes it and starts its drain.
    fn enter(
        &mut self,
        turn: Turn<'_>,
        id: ConnId,
        member: u32,
        key: Ed25519Public,
        namespace: NamespaceId,
        offered: Features,
    ) -> Result<(), SqlError> {
        let features = offered.intersection(if member == AGENT { Features::AGENT } else { Features::ALL });
        let mut session = Session::new(member, key, features, turn.now);
        if let Some(older) = self.online.get(&member).copied() {
            if let Some(older) = self.session_mut(older) {
                session.held = std::mem::take(&mut older.held);
            }
            self.conns.remove(&older);
            self.close(older, CloseCode::Replaced);
        }
        self.conns.insert(id, Conn { opened_at: turn.now, phase: Phase::Member(Box::new(session)) });
        self.online.insert(member, id);
        // Until the session is saved, at the end of the turn, a panic ends the connection: nobody else would tell a peer
        // that has read AuthOk.
        self.outputs.push_back(Output::Attach { conn: id, bytes: attachment::closed(id).into() });
        self.send(id, Frame::AuthOk(AuthOk { namespace_id: namespace.to_vec(), features: features.bits() }));
        if member == AGENT {
            self.announce_pending(turn, id)?;
            self.restore_alarm(turn)?;
        }
        self.feed(turn, id);
        self.hush(turn, member)?;
        self.touch(turn)
    }
}
