//! Carries a history out: peers old and new on the platform, and the oracle that watches them.

mod pipes;
mod push;
mod rest;
mod wrong;

use std::collections::VecDeque;

use bytes::Bytes;
use skald_common::crypto::{Identity, Seed, namespace_id};
use skald_common::ids::{ChallengeNonce, Ed25519Public, NamespaceId};
use skald_common::wire::{
    Ack, Auth, AuthAgent, AuthClient, AuthPairing, Authorize, Features, Frame, Message, PairingStart, PairingStop,
    PresenceRequest, Role,
};

use super::super::super::{ConnId, Input, Limits, Origin};
use super::history::{Exit, History, Op, PEERS, Route, Setup, Text, Token};
use super::oracle::{Attempt, Cause, Claim, Oracle, body, nonce};
use super::platform::{Event, Mishap, Outcome, Platform, bytes};
use super::{START, Verdict, demand};
use crate::push::Services;
use crate::store::native::Trap;

/// A peer's view of its connection.
struct Link {
    conn: ConnId,
    features: Features,
    /// The highest delivery number read.
    read: u64,
}

/// A peer, with what outlives its connections.
#[derive(Default)]
struct Peer {
    link: Option<Link>,
    /// The highest message handled from each sender: what is not above is dropped.
    seen: [Option<u64>; PEERS],
    /// Stored messages that the relay has not accepted yet.
    outbox: VecDeque<u64>,
    /// Its push token and where that leads; none at first.
    address: (String, i32),
}

/// What is going on.
pub(super) struct Run {
    platform: Platform,
    oracle: Oracle,
    peers: [Peer; PEERS],
    identities: [Identity; PEERS],
    /// The agent's list, and whether it has one yet.
    list: [bool; PEERS],
    has_list: bool,
    tokens: u64,
    /// Pushes that the services were asked for and have not answered, and those that they have.
    asked: Vec<u64>,
    answered: Vec<u64>,
    /// How often the relay was woken without anybody's doing, by timer and by alarm.
    woken: [u32; 2],
}

/// What it takes to prove an identity.
enum Credentials {
    Member(Features),
    /// The attempt, and its token.
    Pairing(usize, u64),
}

impl Run {
    pub(super) fn new(setup: &Setup) -> Self {
        let identity = |peer: usize| Identity::new(&Seed::new([u8::try_from(peer).unwrap() + 1; 32]));
        let identities: [Identity; PEERS] = std::array::from_fn(identity);
        let limits = Limits {
            window_messages: setup.window,
            window_bytes: setup.window_bytes,
            held_messages: setup.held,
            queue_messages: setup.queue,
            queue_bytes: setup.queue_bytes,
            rate_per_minute: setup.rate,
            agent_rate_per_minute: setup.rate * 4,
            pending: setup.pending,
            pipes: setup.pipes,
            ..Limits::default()
        };
        let keys = std::array::from_fn(|peer| identities[peer].ed25519_pub());
        let on = |bit: u8| setup.services & bit != 0;
        let services = Services { apns: on(1), fcm: on(2), web: on(4) };
        Self {
            oracle: Oracle::new(limits.clone(), services, keys),
            platform: Platform::new(limits, services),
            peers: std::array::from_fn(|_| Peer::default()),
            identities,
            list: [false; PEERS],
            has_list: false,
            tokens: 0,
            asked: Vec::new(),
            answered: Vec::new(),
            woken: [0; 2],
        }
    }

    /// The whole history, and then everybody comes to rest.
    pub(super) fn all(history: &History) -> Verdict {
        let mut run = Self::new(&history.setup);
        for op in &history.ops {
            run.one(op)?;
        }
        run.platform.disarm();
        run.rest()
    }

    fn one(&mut self, op: &Op) -> Verdict {
        match *op {
            Op::Evict => {
                self.evict();
                return Ok(());
            }
            Op::Fault { statement, done } => {
                let trap = if done { Trap::Belie } else { Trap::Refuse };
                self.platform.arm(Mishap::Statement(statement, trap));
                return Ok(());
            }
            Op::CrashAtStatement { statement } => {
                self.platform.arm(Mishap::Statement(statement, Trap::Crash));
                return Ok(());
            }
            Op::CrashAfterOutputs { outputs } => {
                self.platform.arm(Mishap::AfterOutputs(outputs));
                return Ok(());
            }
            _ => {}
        }
        let done = self.happen(op);
        self.platform.disarm();
        done
    }

    fn happen(&mut self, op: &Op) -> Verdict {
        match *op {
            Op::Connect { peer, features, route } => self.connect(peer, Features::from_bits(features), route),
            Op::Impostor { peer, fraud } => self.impostor(peer, fraud),
            Op::Leave { peer, exit } => self.leave(peer, exit),
            Op::Say(text) => self.say(text),
            Op::OneShot(text) => self.one_shot(text),
            Op::Flood { peer, frames } => (0..frames).try_for_each(|_| self.ask_presence(peer)),
            Op::Odd { peer, oddity } => self.odd(peer, oddity),
            Op::Presence { peer } => self.ask_presence(peer),
            Op::Read { peer, frames } => {
                (0..frames).for_each(|_| self.hear(peer));
                Ok(())
            }
            Op::Ack { peer } => self.acknowledge(peer),
            Op::SetWire { peer, wire } => {
                if let Some(conn) = self.conn(peer) {
                    self.platform.set_wire(conn, wire);
                }
                Ok(())
            }
            Op::Trickle { peer, bytes } => {
                if let Some(conn) = self.conn(peer) {
                    self.platform.trickle(conn, bytes.into());
                }
                Ok(())
            }
            Op::Authorize { device, on } => {
                self.list[device] = on;
                self.has_list = true;
                self.send_list()
            }
            Op::OpenWindow { ttl } => self.open_window(ttl),
            Op::CloseWindow => self.agent_sends(Frame::PairingStop(PairingStop {}), &Cause::CloseWindow),
            Op::Pair { device, token, route } => self.pair(device, token, route),
            Op::Join { pipe, peer, partner } => self.join(pipe, peer, partner),
            Op::Part { pipe, peer } => self.part(pipe, peer),
            Op::Equip { device, platform } => {
                self.equip(device, platform);
                Ok(())
            }
            Op::Answer { nth, verdict, again } => self.answer(nth, verdict, again),
            Op::Pass { ms } => self.pass(ms),
            Op::Jump { ms } => {
                self.platform.now = self.platform.now.saturating_add_signed(ms).max(START / 2);
                self.oracle.jumped();
                self.oracle.clock(self.platform.now);
                Ok(())
            }
            Op::Reap => self.reap(),
            Op::Notice => self.platform.abandoned().map_or(Ok(()), |conn| self.ended(conn, 1006)),
            Op::Evict | Op::Fault { .. } | Op::CrashAtStatement { .. } | Op::CrashAfterOutputs { .. } => Ok(()),
        }
    }

    // --- the platform ---

    fn turn(&mut self, cause: &Cause, input: Input) -> Verdict<Outcome> {
        let outcome = self.platform.turn(input)?;
        self.asked.extend(outcome.events.iter().filter_map(|event| match event {
            Event::Asked(job) => Some(job.id),
            _ => None,
        }));
        if std::env::var_os("SIMULATION_TRACE").is_some() {
            eprintln!(
                "{} {cause:?} -> {outcome:?}\n   timer {:?} alarm {:?}",
                self.platform.now, self.platform.timer, self.platform.alarm
            );
        }
        self.oracle.judge(&self.platform, cause, &outcome)?;
        Ok(outcome)
    }

    fn evict(&mut self) {
        self.platform.evict();
        self.oracle.forgotten();
    }

    fn pass(&mut self, ms: u64) -> Verdict {
        let end = self.platform.now + ms;
        let mut wakes = 0;
        while let Some(due) = self.platform.timer.into_iter().chain(self.platform.alarm).filter(|at| *at <= end).min() {
            wakes += 1;
            demand!(wakes < 1000, "nothing wakes the relay over and over", "{due} of {end}");
            self.set_clock(due.max(self.platform.now));
            if self.platform.timer == Some(due) {
                self.platform.timer = None;
                self.woken[0] += 1;
                self.turn(&Cause::Time, Input::Wake)?;
            } else {
                self.platform.alarm = None;
                self.woken[1] += 1;
                let outcome = self.turn(&Cause::Time, Input::Alarm)?;
                if outcome.crashed {
                    // The platform tries again by itself.
                    self.platform.alarm = Some(self.platform.now + 2000);
                }
            }
        }
        self.set_clock(end);
        Ok(())
    }

    fn set_clock(&mut self, now: u64) {
        self.platform.now = now;
        let keeps_alive = |link: &&Link| link.features.contains(Features::KEEPALIVE);
        let conns: Vec<ConnId> =
            self.peers.iter().filter_map(|peer| peer.link.as_ref()).filter(keeps_alive).map(|link| link.conn).collect();
        self.platform.ping(&conns);
        self.oracle.clock(now);
    }

    /// A socket is gone.
    fn ended(&mut self, conn: ConnId, code: u16) -> Verdict {
        let outcome = self.turn(&Cause::Ended(conn), Input::Closed { conn, code });
        self.platform.remove(conn);
        outcome.map(drop)
    }

    fn reap(&mut self) -> Verdict {
        for (conn, code) in self.platform.closing() {
            for peer in &mut self.peers {
                peer.link.take_if(|link| link.conn == conn);
            }
            self.ended(conn, code)?;
        }
        Ok(())
    }

    // --- coming and going ---

    fn key(&self, peer: usize) -> Ed25519Public {
        self.identities[peer].ed25519_pub()
    }

    fn namespace(&self) -> NamespaceId {
        namespace_id(&self.key(0))
    }

    fn conn(&self, peer: usize) -> Option<ConnId> {
        self.peers[peer].link.as_ref().map(|link| link.conn)
    }

    /// The connection of a peer that is about to send: one that the relay has closed is noticed now, and whoever has no
    /// RECEIPTS has read what came two seconds ago. `None` too if nothing would arrive.
    fn sending(&mut self, peer: usize) -> Option<(ConnId, Features)> {
        let (conn, features) = self.peers[peer].link.as_ref().map(|link| (link.conn, link.features))?;
        if self.platform.socket(conn).is_none_or(|socket| socket.closed.is_some()) {
            self.peers[peer].link = None;
            return None;
        }
        if !features.contains(Features::RECEIPTS) {
            self.read_old(peer);
        }
        Some((conn, features))
    }

    fn auth(&self, peer: usize, credentials: &Credentials, challenge: &ChallengeNonce) -> Frame {
        let key = self.key(peer).to_vec();
        let namespace_id = self.namespace().to_vec();
        let role = match *credentials {
            Credentials::Member(features) if peer == 0 => {
                Role::Agent(AuthAgent { agent_ed25519_pub: key, features: features.bits() })
            }
            Credentials::Member(features) => Role::Client(AuthClient {
                namespace_id,
                client_ed25519_pub: key,
                device_token: self.peers[peer].address.0.clone(),
                platform: self.peers[peer].address.1,
                features: features.bits(),
            }),
            Credentials::Pairing(attempt, token) => Role::Pairing(AuthPairing {
                namespace_id,
                client_ed25519_pub: key,
                client_x25519_pub: thirty_two(attempt as u64),
                pairing_token: thirty_two(token),
                device_token: format!("token {attempt}"),
                platform: 2,
            }),
        };
        let signature = self.identities[peer].sign_challenge(challenge).to_vec();
        Frame::Auth(Auth { role: Some(role), signature })
    }

    /// Dials and proves who it is; the connection, if the peer was told `AuthOk`.
    fn dial(&mut self, peer: usize, credentials: &Credentials, route: Route) -> Verdict<Option<ConnId>> {
        let conn = self.platform.accept();
        let (features, claim) = match *credentials {
            Credentials::Member(features) => (features, Claim::Member),
            Credentials::Pairing(attempt, _) => (Features::NONE, Claim::Pairing(attempt)),
        };
        self.oracle.dialled(conn, peer, features, claim, route == Route::Direct);
        let outcome = match route {
            Route::Front => {
                self.presenting(peer, credentials);
                let auth = bytes(self.auth(peer, credentials, &ChallengeNonce::new([0; 32])));
                let outcome =
                    self.turn(&Cause::Presented(conn), Input::Opened { conn, origin: Origin::Verified { auth } })?;
                if outcome.crashed {
                    // The upgrade failed, and the peer never saw the socket.
                    self.platform.abandon(conn);
                    return Ok(None);
                }
                outcome
            }
            Route::Direct => {
                let Some(challenge) = self.open_direct(conn)? else { return Ok(None) };
                self.presenting(peer, credentials);
                let auth = bytes(self.auth(peer, credentials, &challenge));
                self.turn(&Cause::Presented(conn), Input::Frame { conn, bytes: auth })?
            }
        };
        let first = self.platform.socket(conn).and_then(|socket| socket.inbox.pop_front());
        if first.is_some_and(|arrival| matches!(arrival.frame, Frame::AuthOk(_))) {
            return Ok(Some(conn));
        }
        if outcome.crashed {
            self.platform.abandon(conn);
        }
        Ok(None)
    }

    fn presenting(&mut self, peer: usize, credentials: &Credentials) {
        match *credentials {
            Credentials::Pairing(attempt, _) => self.oracle.tries(attempt),
            Credentials::Member(_) => self.oracle.offers(peer, self.peers[peer].address.clone()),
        }
    }

    /// Opens a socket on the direct route; the challenge, if one came.
    fn open_direct(&mut self, conn: ConnId) -> Verdict<Option<ChallengeNonce>> {
        let challenge = ChallengeNonce::from_slice(&thirty_two(conn.0)).unwrap();
        let origin = Origin::Direct { challenge, namespace: self.namespace() };
        let outcome = self.turn(&Cause::Dialled(conn), Input::Opened { conn, origin })?;
        let came = self.platform.socket(conn).and_then(|socket| socket.inbox.pop_front());
        if outcome.crashed || came.is_none() {
            self.platform.abandon(conn);
            return Ok(None);
        }
        Ok(Some(challenge))
    }

    fn connect(&mut self, peer: usize, features: Features, route: Route) -> Verdict {
        if let Some(link) = self.peers[peer].link.take() {
            self.platform.abandon(link.conn);
        }
        let Some(conn) = self.dial(peer, &Credentials::Member(features), route)? else { return Ok(()) };
        self.peers[peer].link = Some(Link { conn, features, read: 0 });
        if peer == 0 && self.has_list {
            self.send_list()?;
        }
        if !features.contains(Features::RECEIPTS) {
            self.peers[peer].outbox.clear();
        }
        self.forget_replaced(peer);
        for message in self.peers[peer].outbox.clone() {
            // What ended this connection ends the repetition.
            if self.conn(peer) == Some(conn) {
                self.transmit(peer, message)?;
            }
        }
        Ok(())
    }

    /// What a newer message of its tag has replaced is not repeated.
    fn forget_replaced(&mut self, peer: usize) {
        let all = self.peers[peer].outbox.clone();
        let replaced = |old: u64| {
            let old_text = self.oracle.text(old);
            all.iter().any(|new| *new > old && self.oracle.text(*new).replaces(&old_text))
        };
        self.peers[peer].outbox.retain(|old| !replaced(*old));
    }

    fn leave(&mut self, peer: usize, exit: Exit) -> Verdict {
        if exit == Exit::Normal && self.conn(peer).is_some_and(|conn| self.platform.alive(conn)) {
            self.read_old(peer);
        }
        let Some(Link { conn, .. }) = self.peers[peer].link.take() else { return Ok(()) };
        let code = match exit {
            Exit::Normal => 1000,
            Exit::Away => 1001,
            Exit::Cut => 1006,
            Exit::Vanish => 0,
        };
        if exit == Exit::Vanish || !self.platform.alive(conn) {
            self.platform.abandon(conn);
            return Ok(());
        }
        self.ended(conn, code)
    }

    // --- messages ---

    fn say(&mut self, text: Text) -> Verdict {
        let Some((_, features)) = self.sending(text.from) else { return Ok(()) };
        let message = self.oracle.writes(text);
        if features.contains(Features::RECEIPTS) && !text.live {
            self.peers[text.from].outbox.push_back(message);
        }
        self.transmit(text.from, message)
    }

    fn transmit(&mut self, peer: usize, message: u64) -> Verdict {
        let sending = self.sending(peer).filter(|(conn, _)| self.platform.alive(*conn));
        let Some((conn, features)) = sending else { return Ok(()) };
        let text = self.oracle.text(message);
        let copy = self.oracle.sends(message, features);
        let frame = Frame::Message(Message {
            ciphertext: Bytes::from(body(message, text.size)),
            nonce: nonce(message),
            peer: self.key(text.to).to_vec(),
            live: text.live,
            r#ref: message + 1,
            collapse: text.tag.map(|tag| vec![tag]).unwrap_or_default(),
            quiet: text.quiet,
            ..Message::default()
        });
        self.turn(&Cause::Message(conn, copy), Input::Frame { conn, bytes: bytes(frame) }).map(drop)
    }

    fn one_shot(&mut self, text: Text) -> Verdict {
        self.connect(text.from, Features::NONE, Route::Front)?;
        self.say(text)?;
        let Some(Link { conn, .. }) = self.peers[text.from].link.take() else { return Ok(()) };
        if self.platform.alive(conn) { self.ended(conn, 1000) } else { Ok(()) }
    }

    /// Reads one frame.
    fn hear(&mut self, me: usize) {
        let peer = &mut self.peers[me];
        let Some(link) = &mut peer.link else { return };
        let arrival = self.platform.socket(link.conn).and_then(|socket| socket.inbox.pop_front());
        match arrival.map(|arrival| arrival.frame) {
            Some(Frame::Message(message)) => {
                link.read = link.read.max(message.delivery);
                let content = String::from_utf8_lossy(&message.ciphertext).into_owned();
                let Some(number) = content.split(' ').next().and_then(|number| number.parse().ok()) else { return };
                let seen = &mut peer.seen[self.oracle.text(number).from];
                if seen.is_none_or(|seen| seen < number) {
                    *seen = Some(number);
                    self.oracle.acts(number);
                }
            }
            Some(Frame::Accepted(accepted)) => {
                let number = accepted.r#ref - 1;
                let replaced =
                    |other: u64| other < number && self.oracle.text(number).replaces(&self.oracle.text(other));
                peer.outbox.retain(|other| *other != number && !replaced(*other));
            }
            Some(Frame::Error(error)) => peer.outbox.retain(|number| number + 1 != error.r#ref),
            _ => {}
        }
    }

    /// Reads what was written two seconds ago or earlier.
    fn read_old(&mut self, peer: usize) {
        let Some(conn) = self.conn(peer) else { return };
        let now = self.platform.now;
        let Some(socket) = self.platform.socket(conn) else { return };
        // After a jump of the clock what is old may lie behind what is not.
        let last = socket.inbox.iter().rposition(|arrival| arrival.at + 2000 <= now);
        (0..last.map_or(0, |last| last + 1)).for_each(|_| self.hear(peer));
    }

    fn acknowledge(&mut self, peer: usize) -> Verdict {
        let Some((conn, features)) = self.sending(peer) else { return Ok(()) };
        let delivery = self.peers[peer].link.as_ref().map_or(0, |link| link.read);
        if delivery == 0 || !features.contains(Features::RECEIPTS) || !self.platform.alive(conn) {
            return Ok(());
        }
        let input = Input::Frame { conn, bytes: bytes(Frame::Ack(Ack { delivery })) };
        self.turn(&Cause::Ack(conn, delivery), input).map(drop)
    }

    fn ask_presence(&mut self, peer: usize) -> Verdict {
        let Some((conn, _)) = self.sending(peer).filter(|(conn, _)| self.platform.alive(*conn)) else { return Ok(()) };
        let input = Input::Frame { conn, bytes: bytes(Frame::PresenceRequest(PresenceRequest {})) };
        self.turn(&Cause::Presence(conn), input).map(drop)
    }

    // --- the agent ---

    fn agent_sends(&mut self, frame: Frame, cause: &Cause) -> Verdict {
        let Some((conn, _)) = self.sending(0).filter(|(conn, _)| self.platform.alive(*conn)) else { return Ok(()) };
        self.turn(cause, Input::Frame { conn, bytes: bytes(frame) }).map(drop)
    }

    fn send_list(&mut self) -> Verdict {
        let list = self.list;
        let clients = (1..PEERS).filter(|peer| list[*peer]).map(|peer| self.key(peer).to_vec()).collect();
        self.agent_sends(Frame::Authorize(Authorize { clients }), &Cause::List(list))
    }

    fn open_window(&mut self, ttl: u32) -> Verdict {
        self.tokens += 1;
        let token = self.tokens;
        let granted = if ttl == 0 { 300 } else { ttl.min(600) };
        let until = self.platform.now + u64::from(granted) * 1000;
        let start = PairingStart { pairing_token: thirty_two(token), ttl };
        self.agent_sends(Frame::PairingStart(start), &Cause::OpenWindow(token, until))
    }

    fn pair(&mut self, device: usize, token: Token, route: Route) -> Verdict {
        let token = match token {
            Token::Newest => self.tokens,
            Token::Older => self.tokens.saturating_sub(1),
            Token::Wrong => 0,
        };
        let attempt = self.oracle.attempts(Attempt::new(device, token));
        self.dial(device, &Credentials::Pairing(attempt, token), route).map(drop)
    }
}

/// A number as 32 bytes.
fn thirty_two(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; 32];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}
