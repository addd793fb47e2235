//! From the challenge to `AuthOk` (wire protocol, Handshake). The signature is verified before anything else is looked at,
//! and nothing is written before it is.

use bytes::Bytes;
use skald_common::crypto::{namespace_id, verify_challenge};
use skald_common::ids::{Ed25519Public, NamespaceId, PairingToken, Signature, X25519Public};
use skald_common::limits::MAX_DEVICE_TOKEN;
use skald_common::wire::{self, Auth, AuthOk, Challenge, CloseCode, ErrorCode, Features, Frame, Role};

use super::conn::{AGENT, Conn, Phase, Session};
use super::space::Space;
use super::{ConnId, Engine, Origin, Turn};
use crate::store::{Member, Namespace, Sql, SqlError};

/// What a peer says it is, every field of the right form.
enum Claim {
    Agent { key: Ed25519Public, features: Features },
    Client { namespace: NamespaceId, key: Ed25519Public, push: PushAddress, features: Features },
    Pairing(Pairing),
}

/// Where a device can be woken.
pub(super) struct PushAddress {
    /// Empty for none.
    pub(super) token: String,
    /// The wire's number.
    pub(super) platform: i32,
}

/// A device that has scanned a code.
pub(super) struct Pairing {
    pub(super) namespace: NamespaceId,
    pub(super) key: Ed25519Public,
    pub(super) x25519: X25519Public,
    pub(super) token: PairingToken,
    pub(super) push: PushAddress,
}

impl Claim {
    /// `None` if a field is missing or of the wrong length.
    fn parse(role: Role) -> Option<Self> {
        let push =
            |token: String, platform: i32| (token.len() <= MAX_DEVICE_TOKEN).then_some(PushAddress { token, platform });
        Some(match role {
            Role::Agent(agent) => Self::Agent {
                key: Ed25519Public::from_slice(&agent.agent_ed25519_pub).ok()?,
                features: Features::from_bits(agent.features),
            },
            Role::Client(client) => Self::Client {
                namespace: NamespaceId::from_slice(&client.namespace_id).ok()?,
                key: Ed25519Public::from_slice(&client.client_ed25519_pub).ok()?,
                push: push(client.device_token, client.platform)?,
                features: Features::from_bits(client.features),
            },
            Role::Pairing(pairing) => Self::Pairing(Pairing {
                namespace: NamespaceId::from_slice(&pairing.namespace_id).ok()?,
                key: Ed25519Public::from_slice(&pairing.client_ed25519_pub).ok()?,
                x25519: X25519Public::from_slice(&pairing.client_x25519_pub).ok()?,
                token: PairingToken::from_slice(&pairing.pairing_token).ok()?,
                push: push(pairing.device_token, pairing.platform)?,
            }),
        })
    }

    fn namespace(&self) -> NamespaceId {
        match self {
            Self::Agent { key, .. } => namespace_id(key),
            Self::Client { namespace, .. } => *namespace,
            Self::Pairing(pairing) => pairing.namespace,
        }
    }
}

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
            Origin::Verified { auth } => {
                let claim = match wire::decode(auth) {
                    Ok(Some(Frame::Auth(Auth { role: Some(role), .. }))) => Claim::parse(role),
                    _ => None,
                };
                if let Some(claim) = claim {
                    self.admit(turn, id, claim)
                } else {
                    self.refuse(id, ErrorCode::BadRequest, "malformed authentication");
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
            self.refuse(*oldest, ErrorCode::RateLimited, "too many connections wait for authentication");
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
            self.refuse(id, ErrorCode::ChallengeTimeout, "no authentication in time");
        }
    }

    /// The first frame of a connection on a direct route.
    pub(super) fn on_auth(&mut self, turn: Turn<'_>, id: ConnId, bytes: Bytes) -> Result<(), SqlError> {
        match self.verify(id, bytes) {
            Ok(claim) => self.admit(turn, id, claim),
            Err((code, message)) => {
                self.refuse(id, code, message);
                Ok(())
            }
        }
    }

    fn verify(&self, id: ConnId, bytes: Bytes) -> Result<Claim, (ErrorCode, &'static str)> {
        const MALFORMED: (ErrorCode, &str) = (ErrorCode::BadRequest, "malformed authentication");
        let Some(Phase::Challenged { challenge, namespace }) = self.conns.get(&id).map(|conn| &conn.phase) else {
            return Err(MALFORMED);
        };
        if bytes.len() as u64 > self.limits.max_frame {
            return Err((ErrorCode::PayloadTooLarge, "frame too large"));
        }
        let Ok(Some(Frame::Auth(Auth { role: Some(role), signature }))) = wire::decode(bytes) else {
            return Err((ErrorCode::BadRequest, "expected authentication"));
        };
        let key = match &role {
            Role::Agent(agent) => &agent.agent_ed25519_pub,
            Role::Client(client) => &client.client_ed25519_pub,
            Role::Pairing(pairing) => &pairing.client_ed25519_pub,
        };
        let key = Ed25519Public::from_slice(key).map_err(|_| MALFORMED)?;
        let signature = Signature::from_slice(&signature).map_err(|_| MALFORMED)?;
        verify_challenge(&key, challenge, &signature)
            .map_err(|_| (ErrorCode::InvalidSignature, "the signature does not verify"))?;
        let claim = Claim::parse(role).ok_or(MALFORMED)?;
        if claim.namespace() != *namespace {
            return Err((ErrorCode::NotFound, "another namespace"));
        }
        Ok(claim)
    }

    /// Lets a verified peer in, or says why not.
    fn admit(&mut self, turn: Turn<'_>, id: ConnId, claim: Claim) -> Result<(), SqlError> {
        self.judge_all(turn);
        let namespace = claim.namespace();
        if self.space()?.is_some_and(|space| namespace_id(&space.row.agent) != namespace) {
            self.refuse(id, ErrorCode::NotFound, "another namespace");
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
                Err((code, message)) => {
                    self.refuse(id, code, message);
                    Ok(())
                }
            },
            Claim::Pairing(pairing) => self.pair(turn, id, pairing),
        }
    }

    /// The device that may come in as a client with this key.
    fn client(&mut self, key: &Ed25519Public) -> Result<Result<Member, (ErrorCode, &'static str)>, SqlError> {
        let Some(space) = self.space()?.filter(|space| space.row.authorized) else {
            // Not "unauthorized": the agent may still come back and say who belongs.
            return Ok(Err((ErrorCode::NotFound, "no such namespace yet")));
        };
        let known = space.device(key).filter(|_| space.number_of(key).is_some_and(|no| no != AGENT));
        Ok(known.cloned().ok_or((ErrorCode::Unauthorized, "this device is not authorized")))
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
        self.wake_at(alarm_at);
        Ok(())
    }

    /// Keeps a returning device's push address up to date; an empty token or no platform keeps what is there.
    fn refresh(&mut self, member: &Member, push: PushAddress) -> Result<(), SqlError> {
        let mut fresh = member.clone();
        if !push.token.is_empty() {
            fresh.token = push.token;
        }
        if push.platform != 0 {
            fresh.platform = push.platform;
        }
        if fresh != *member {
            self.put_member(fresh)?;
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
        let features = offered.intersection(Features::ALL);
        let mut session = Session::new(member, key, features, turn.now);
        if let Some(older) = self.online.get(&member).copied() {
            // Nothing of the new connection has a number yet: what waits goes behind what is queued now.
            let last = self.queue(member)?.last().unwrap_or(0);
            if let Some(older) = self.session_mut(older) {
                session.held = std::mem::take(&mut older.held);
                session.held.cap_after(last);
            }
            self.conns.remove(&older);
            self.close(older, CloseCode::Replaced);
        }
        self.conns.insert(id, Conn { opened_at: turn.now, phase: Phase::Member(Box::new(session)) });
        self.online.insert(member, id);
        self.dirty.insert(id);
        self.send(id, Frame::AuthOk(AuthOk { namespace_id: namespace.to_vec(), features: features.bits() }));
        if member == AGENT {
            self.announce_pending(turn, id)?;
        }
        self.feed(turn, id);
        self.touch(turn)
    }
}
