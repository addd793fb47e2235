//! The [`Peer`]: one relay connection after the other, and the sealed messages that go over them.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::backoff::Backoff;
use super::counter::SendCounter;
use super::outbox::Outbox;
use super::receipts::Receipts;
use super::{
    Config, Delivery, Disconnect, Drop, Event, Millis, Output, Partner, Receipt, Role, SendError, SendFailure, SendId,
};
use crate::crypto::{Direction, SealError, SessionKey};
use crate::framing::{Compression, frame_json, frame_pipe_signal, unframe};
use crate::ids::{ChallengeNonce, Ed25519Public, MessageNonce, NamespaceId, PairingToken, X25519Public};
use crate::limits::{MAX_COLLAPSE, MAX_DEVICES, MAX_SEALED_LIVE, MAX_SEALED_STORED};
use crate::wire::{self, ErrorCode, Features, Frame, Platform};

/// Each step from dialling to `AuthOk` may take so long.
const STEP_MS: Millis = 20_000;
/// With KEEPALIVE: a `ping` this often, dead after this much silence.
const KEEPALIVE: Liveness = Liveness { ping_every: 25_000, dead_after: 60_000 };
/// Without: native pings, as deployed agents do.
const PLAIN: Liveness = Liveness { ping_every: 20_000, dead_after: 75_000 };
/// A relay without features closes after 60 frames a minute: stay below.
const PLAIN_BURST: u64 = 50;
const PLAIN_INTERVAL_MS: Millis = 1_000;

#[derive(Debug, Clone, Copy)]
struct Liveness {
    ping_every: Millis,
    dead_after: Millis,
}

/// The sans-IO engine of one peer; see the [module](super) for its contract.
#[derive(Debug)]
pub struct Peer {
    config: Config,
    namespace: NamespaceId,
    sends: Direction,
    state: State,
    backoff: Backoff,
    /// Rises with each dial: receipts of older connections are told apart by it.
    connection: u64,
    features: Features,
    sessions: BTreeMap<Ed25519Public, Session>,
    outbox: Outbox,
    last_id: u64,
    authorized: Option<Vec<Ed25519Public>>,
    out: VecDeque<Output>,
}

#[derive(Debug)]
enum State {
    Stopped,
    Waiting { until: Millis },
    Dialling { since: Millis },
    AwaitingChallenge { since: Millis },
    AwaitingAuthOk { since: Millis },
    Open(Open),
}

/// What lives as long as an authenticated connection.
#[derive(Debug)]
struct Open {
    since: Millis,
    last_inbound: Millis,
    last_ping: Millis,
    receipts: Receipts,
    unanswered_authorizes: u32,
    /// Theoretical arrival time of the next frame within the rate of a relay without features.
    rate: Millis,
}

#[derive(Debug)]
struct Session {
    key: SessionKey,
    send: SendCounter,
    compression: Compression,
    /// Highest counter opened; repeats are dropped.
    seen: u64,
    /// Highest counter whose message was handled durably.
    durable: u64,
}

/// Why no connection came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DialFailure {
    /// The relay's answer to the upgrade, if it gave one.
    pub http_status: Option<u16>,
    /// In words, without secrets.
    pub why: String,
}

impl Peer {
    /// A peer that does nothing until [`start`](Self::start).
    pub fn new(config: Config) -> Self {
        let (namespace, sends) = match &config.role {
            Role::Agent => (config.identity.namespace_id(), Direction::AgentToClient),
            Role::Client { namespace, .. } | Role::Pairing { namespace, .. } => (*namespace, Direction::ClientToAgent),
        };
        Self {
            backoff: Backoff::new(config.jitter_seed),
            namespace,
            sends,
            config,
            state: State::Stopped,
            connection: 0,
            features: Features::NONE,
            sessions: BTreeMap::new(),
            outbox: Outbox::default(),
            last_id: 0,
            authorized: None,
            out: VecDeque::new(),
        }
    }

    /// Begins to connect, and stays connected until [`stop`](Self::stop). While it waits for its next attempt: makes it
    /// now.
    pub fn start(&mut self, now: Millis) {
        if matches!(self.state, State::Stopped | State::Waiting { .. }) {
            self.backoff.reset();
            self.dial(now);
        }
    }

    /// Disconnects and stays so.
    pub fn stop(&mut self) {
        if !matches!(self.state, State::Stopped | State::Waiting { .. }) {
            self.out.push_back(Output::Close);
        }
        self.end_connection();
        self.state = State::Stopped;
    }

    /// Whether the handshake is done and the connection lives.
    pub fn is_connected(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// What both sides of the current connection have.
    pub const fn features(&self) -> Features {
        self.features
    }

    /// The namespace that this peer belongs to.
    pub const fn namespace(&self) -> NamespaceId {
        self.namespace
    }

    /// How many messages the relay has not accepted yet.
    pub fn pending(&self) -> usize {
        self.outbox.len()
    }

    /// The next thing to do; drain it after every call.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// When [`on_timeout`](Self::on_timeout) is due; `None`: never, as things are.
    pub fn deadline(&self) -> Option<Millis> {
        match &self.state {
            State::Stopped => None,
            State::Waiting { until } => Some(*until),
            State::Dialling { since } | State::AwaitingChallenge { since } | State::AwaitingAuthOk { since } => {
                Some(since + STEP_MS)
            }
            State::Open(open) => {
                let live = self.liveness();
                let rate = (self.outbox.has_unwritten() && !self.features.contains(Features::RECEIPTS))
                    .then(|| open.rate.saturating_sub((PLAIN_BURST - 1) * PLAIN_INTERVAL_MS));
                [
                    Some(open.last_ping + live.ping_every),
                    Some(open.last_inbound + live.dead_after),
                    open.receipts.deadline(),
                    rate,
                ]
                .into_iter()
                .flatten()
                .min()
            }
        }
    }

    // Partners and messages.

    /// Adds a partner, or replaces its keys and counters. Fails for a key that gives no secret.
    pub fn set_partner(&mut self, partner: Partner) -> Result<(), SealError> {
        let key =
            SessionKey::agree(&self.config.identity, partner.ed25519, &partner.x25519, self.namespace, self.sends)?;
        let session = Session {
            key,
            send: SendCounter::starting_at(partner.send_from),
            compression: partner.compression,
            seen: partner.received,
            durable: partner.received,
        };
        self.sessions.insert(partner.ed25519, session);
        Ok(())
    }

    /// Forgets a partner and what waits for it.
    pub fn remove_partner(&mut self, partner: &Ed25519Public) {
        self.sessions.remove(partner);
        self.outbox.forget(partner);
    }

    /// Raises the send counter to at least `send_from` and sets the last accepted counter: after a pairing, or when
    /// another process has used the same state. The send counter is never lowered.
    pub fn restart_counters(&mut self, partner: &Ed25519Public, send_from: u64, received: u64) {
        if let Some(session) = self.sessions.get_mut(partner) {
            session.send.raise(send_from);
            session.seen = received;
            session.durable = received;
        }
    }

    /// Seals a JSON body and sends it. A stored message waits for a connection if there is none.
    pub fn send(
        &mut self,
        now: Millis,
        to: &Ed25519Public,
        json: &[u8],
        delivery: Delivery,
    ) -> Result<SendId, SendError> {
        let compression = self.sessions.get(to).ok_or(SendError::UnknownPartner)?.compression;
        self.send_framed(now, to, &frame_json(json, compression), delivery)
    }

    /// Seals a pipe signal and sends it live. A partner's arrives as [`Event::Message`] with
    /// [`Body::PipeSignal`](crate::framing::Body::PipeSignal).
    pub fn send_signal(&mut self, now: Millis, to: &Ed25519Public, signal: &[u8]) -> Result<SendId, SendError> {
        self.send_framed(now, to, &frame_pipe_signal(signal), Delivery::Live)
    }

    fn send_framed(
        &mut self,
        now: Millis,
        to: &Ed25519Public,
        framed: &[u8],
        delivery: Delivery,
    ) -> Result<SendId, SendError> {
        let connected = self.is_connected();
        let session = self.sessions.get_mut(to).ok_or(SendError::UnknownPartner)?;
        let max = match &delivery {
            Delivery::Live if !connected => return Err(SendError::NotConnected),
            Delivery::Live => MAX_SEALED_LIVE,
            Delivery::Stored { collapse: Some(tag), .. } if tag.is_empty() || tag.len() > MAX_COLLAPSE => {
                return Err(SendError::Tag);
            }
            Delivery::Stored { .. } => MAX_SEALED_STORED,
        };
        let sealed = sealed_len(framed.len());
        if sealed > max {
            return Err(SendError::TooLarge { sealed, max });
        }
        if self.outbox.is_full() {
            return Err(SendError::Full);
        }
        let taken = session.send.take().ok_or(SendError::Full)?;
        if let Some(upto) = taken.reserve {
            self.out.push_back(Output::Reserve { peer: *to, upto });
        }
        let (nonce, ciphertext) =
            session.key.seal(taken.counter, framed).map_err(|_| SendError::TooLarge { sealed, max })?;
        self.last_id += 1;
        let id = SendId(self.last_id);
        self.outbox.push(id, *to, nonce, ciphertext.into(), delivery);
        self.flush(now);
        Ok(id)
    }

    /// The sealed size of a JSON body towards this partner, bytes: to choose what to leave out before sending.
    pub fn sealed_size(&self, to: &Ed25519Public, json: &[u8]) -> Option<usize> {
        let session = self.sessions.get(to)?;
        Some(sealed_len(frame_json(json, session.compression).len()))
    }

    /// Takes back a stored message that no connection has seen. False if it is too late, or there is none.
    pub fn cancel(&mut self, id: SendId) -> bool {
        self.outbox.cancel(id)
    }

    /// The message was handled durably, its counter stored with what it did: it may be acknowledged.
    pub fn accept(&mut self, now: Millis, receipt: Receipt) {
        if let Some(session) = self.sessions.get_mut(&receipt.from) {
            session.durable = session.durable.max(receipt.counter);
        }
        self.acknowledge(now, receipt.connection, receipt.delivery);
    }

    /// The message could not be handled durably: the connection is dropped, and the relay delivers it again on the next.
    pub fn reject(&mut self, now: Millis, receipt: Receipt) {
        if receipt.connection == self.connection && self.is_connected() {
            self.disconnect(now, Disconnect::Rejected);
        }
    }

    // What only an agent sends.

    /// Sets the list of authorized devices: sent now if connected, and on every connect. `None`: none is sent, which
    /// leaves the relay's list as it is.
    pub fn set_authorized(&mut self, devices: Option<Vec<Ed25519Public>>) {
        self.authorized = devices;
        self.send_authorize();
    }

    /// Opens a pairing window; `ttl` in seconds.
    pub fn start_pairing(&mut self, token: &PairingToken, ttl: u32) -> Result<(), SendError> {
        let frame = wire::PairingStart { pairing_token: token.expose().to_vec(), ttl };
        self.send_frame_now(Frame::PairingStart(frame))
    }

    /// Closes the pairing window.
    pub fn stop_pairing(&mut self) -> Result<(), SendError> {
        self.send_frame_now(Frame::PairingStop(wire::PairingStop {}))
    }

    /// Asks who is connected: [`Event::PresenceList`].
    pub fn request_presence(&mut self) -> Result<(), SendError> {
        if let State::Open(open) = &mut self.state {
            open.rate += PLAIN_INTERVAL_MS;
        }
        self.send_frame_now(Frame::PresenceRequest(wire::PresenceRequest {}))
    }

    // Inputs.

    /// The socket is open.
    pub fn on_open(&mut self, now: Millis) {
        if matches!(self.state, State::Dialling { .. }) {
            self.state = State::AwaitingChallenge { since: now };
        }
    }

    /// No socket came about.
    pub fn on_dial_failed(&mut self, now: Millis, failure: DialFailure) {
        if !matches!(self.state, State::Dialling { .. }) {
            return;
        }
        let why = match failure.http_status {
            // Busy or broken relays say nothing about the path; any other answer is no relay at this address.
            Some(status) if status != 429 && status < 500 && self.config.routes.advance() => return self.dial(now),
            Some(status) => Disconnect::Http(status),
            None => Disconnect::Dial(failure.why),
        };
        self.ended(now, why);
    }

    /// A binary message arrived.
    pub fn on_binary(&mut self, now: Millis, bytes: Bytes) {
        if let State::Open(open) = &mut self.state {
            open.last_inbound = now;
        }
        match wire::decode(bytes) {
            Ok(Some(frame)) => self.on_frame(now, frame),
            Ok(None) => {}
            Err(_) => self.disconnect(now, Disconnect::Protocol("a malformed frame")),
        }
    }

    /// A pong, of either kind, or any other sign of life.
    pub fn on_activity(&mut self, now: Millis) {
        if let State::Open(open) = &mut self.state {
            open.last_inbound = now;
        }
    }

    /// The socket ended; with the close code, if one came.
    pub fn on_closed(&mut self, now: Millis, code: Option<u16>) {
        if !matches!(self.state, State::Stopped | State::Waiting { .. }) {
            self.ended(now, Disconnect::Closed(code));
        }
    }

    /// [`deadline`](Self::deadline) has come; harmless at any other time.
    pub fn on_timeout(&mut self, now: Millis) {
        match &self.state {
            State::Waiting { until } if now >= *until => self.dial(now),
            State::Dialling { since } if now >= since + STEP_MS => {
                self.disconnect(now, Disconnect::Timeout("connecting"));
            }
            State::AwaitingChallenge { since } if now >= since + STEP_MS => {
                self.disconnect(now, Disconnect::Timeout("its challenge"));
            }
            State::AwaitingAuthOk { since } if now >= since + STEP_MS => {
                self.disconnect(now, Disconnect::Timeout("its answer to the handshake"));
            }
            State::Open(_) => self.on_open_timeout(now),
            _ => {}
        }
    }

    fn on_open_timeout(&mut self, now: Millis) {
        let live = self.liveness();
        let State::Open(open) = &mut self.state else { return };
        if now >= open.last_inbound + live.dead_after {
            return self.disconnect(now, Disconnect::Timeout("no sign of life"));
        }
        if now >= open.last_ping + live.ping_every {
            open.last_ping = now;
            let text = self.features.contains(Features::KEEPALIVE);
            self.out.push_back(if text { Output::SendPing } else { Output::SendNativePing });
        }
        self.send_due_ack(now);
        self.flush(now);
    }

    // Frames.

    fn on_frame(&mut self, now: Millis, frame: Frame) {
        match (&self.state, frame) {
            (State::AwaitingChallenge { .. }, Frame::Challenge(challenge)) => self.on_challenge(now, &challenge),
            (State::AwaitingAuthOk { .. }, Frame::AuthOk(ok)) => self.on_auth_ok(now, &ok),
            (State::AwaitingChallenge { .. } | State::AwaitingAuthOk { .. }, Frame::AuthError(error)) => {
                let words = error.code.chars().take(40).collect();
                self.disconnect(now, Disconnect::Refused(ErrorCode::parse(&error.code), words));
            }
            (State::AwaitingChallenge { .. } | State::AwaitingAuthOk { .. }, _) => {
                self.disconnect(now, Disconnect::Protocol("an unexpected frame in the handshake"));
            }
            (State::Open(_), frame) => self.on_open_frame(now, frame),
            _ => {}
        }
    }

    fn on_challenge(&mut self, now: Millis, challenge: &wire::Challenge) {
        let Ok(nonce) = ChallengeNonce::from_slice(&challenge.nonce) else {
            return self.disconnect(now, Disconnect::Protocol("a challenge of the wrong length"));
        };
        let identity = &self.config.identity;
        let features = self.config.offer.bits();
        let role = match &self.config.role {
            Role::Agent => {
                wire::Role::Agent(wire::AuthAgent { agent_ed25519_pub: identity.ed25519_pub().to_vec(), features })
            }
            Role::Client { namespace, device_token, platform } => wire::Role::Client(wire::AuthClient {
                namespace_id: namespace.to_vec(),
                client_ed25519_pub: identity.ed25519_pub().to_vec(),
                device_token: device_token.clone(),
                platform: *platform as i32,
                features,
            }),
            Role::Pairing { namespace, token, device_token, platform } => wire::Role::Pairing(wire::AuthPairing {
                namespace_id: namespace.to_vec(),
                client_ed25519_pub: identity.ed25519_pub().to_vec(),
                client_x25519_pub: identity.x25519_pub().to_vec(),
                pairing_token: token.expose().to_vec(),
                device_token: device_token.clone(),
                platform: *platform as i32,
            }),
        };
        let signature = identity.sign_challenge(&nonce).to_vec();
        self.out.push_back(Output::Send(wire::encode(Frame::Auth(wire::Auth { signature, role: Some(role) }))));
        self.state = State::AwaitingAuthOk { since: now };
    }

    fn on_auth_ok(&mut self, now: Millis, ok: &wire::AuthOk) {
        if ok.namespace_id != self.namespace.as_bytes() {
            return self.disconnect(now, Disconnect::Protocol("another namespace than the key's"));
        }
        self.config.routes.confirm();
        if matches!(self.config.role, Role::Pairing { .. }) {
            self.out.push_back(Output::Close);
            self.state = State::Stopped;
            self.out.push_back(Output::Event(Event::Paired));
            return;
        }
        self.features = self.config.offer.intersection(Features::from_bits(ok.features));
        self.state = State::Open(Open {
            since: now,
            last_inbound: now,
            last_ping: now,
            receipts: Receipts::default(),
            unanswered_authorizes: 0,
            rate: now,
        });
        let url = self.config.routes.current().to_owned();
        self.out.push_back(Output::Event(Event::Connected { url, features: self.features }));
        // The list goes first: a relay that lost the namespace knows no recipient before it.
        self.send_authorize();
        self.flush(now);
    }

    fn on_open_frame(&mut self, now: Millis, frame: Frame) {
        match frame {
            Frame::Message(message) => self.on_message(now, &message),
            Frame::Accepted(accepted) => {
                for entry in self.outbox.accepted(SendId(accepted.r#ref)) {
                    self.event(Event::Accepted { id: entry.id, queued: Some(accepted.queued) });
                }
            }
            Frame::PeerOffline(offline) => self.on_peer_offline(&offline),
            Frame::Error(error) => self.on_error(&error),
            Frame::AuthorizeOk(ok) => {
                if let State::Open(open) = &mut self.state {
                    open.unanswered_authorizes = open.unanswered_authorizes.saturating_sub(1);
                    if open.unanswered_authorizes == 0 {
                        self.event(Event::Authorized { devices: ok.authorized });
                    }
                }
            }
            Frame::PairingReady(ready) => self.event(Event::PairingReady { ttl: ready.ttl }),
            Frame::PairingStopOk(_) => self.event(Event::PairingStopped),
            Frame::ClientPaired(paired) => {
                let keys = (
                    Ed25519Public::from_slice(&paired.client_ed25519_pub),
                    X25519Public::from_slice(&paired.client_x25519_pub),
                );
                if let (Ok(ed25519), Ok(x25519)) = keys {
                    let platform = Platform::try_from(paired.platform).unwrap_or(Platform::Unspecified);
                    self.event(Event::ClientPaired { ed25519, x25519, platform });
                }
            }
            Frame::PresenceList(list) => {
                let online = list.online.iter().filter_map(|key| Ed25519Public::from_slice(key).ok()).collect();
                self.event(Event::PresenceList(online));
            }
            Frame::PresenceEvent(presence) => {
                if let Ok(key) = Ed25519Public::from_slice(&presence.pubkey) {
                    self.event(Event::Presence(key, presence.status() == wire::Status::Online));
                }
            }
            Frame::PushStatus(status) if self.features.contains(Features::PUSH_STATUS) => self.on_push_status(&status),
            // A handshake frame, or one that only peers send: of no meaning here.
            _ => {}
        }
    }

    /// More devices than there can be say nothing that could be trusted; an entry without a key says nothing at all.
    fn on_push_status(&mut self, status: &wire::PushStatus) {
        if status.devices.len() > MAX_DEVICES {
            return;
        }
        let named =
            |state: &wire::PushState| Some((Ed25519Public::from_slice(&state.client_ed25519_pub).ok()?, state.push()));
        let states: Vec<_> = status.devices.iter().filter_map(named).collect();
        if !states.is_empty() {
            self.event(Event::PushStatus(states));
        }
    }

    fn on_peer_offline(&mut self, offline: &wire::PeerOffline) {
        if let Some(entry) = self.outbox.remove(SendId(offline.r#ref)) {
            self.event(Event::SendFailed { id: entry.id, to: entry.to, why: SendFailure::Offline });
        } else if let Ok(peer) = Ed25519Public::from_slice(&offline.peer) {
            self.event(Event::RelayError { code: None, offline: Some(peer) });
        }
    }

    fn on_error(&mut self, error: &wire::Error) {
        let code = ErrorCode::parse(&error.code);
        match self.outbox.remove(SendId(error.r#ref)) {
            Some(entry) => {
                self.event(Event::SendFailed { id: entry.id, to: entry.to, why: SendFailure::Refused(code) });
            }
            None => self.event(Event::RelayError { code, offline: None }),
        }
    }

    fn on_message(&mut self, now: Millis, message: &wire::Message) {
        let connection = self.connection;
        let State::Open(open) = &mut self.state else { return };
        let delivery = open.receipts.arrived(message.delivery);
        let from = Ed25519Public::from_slice(&message.peer).ok();
        match self.open_message(from, message) {
            Ok((from, counter, body)) => {
                let receipt = Receipt { from, counter, delivery, connection };
                self.event(Event::Message { receipt, body, live: message.live });
            }
            Err(why) => {
                self.event(Event::Dropped { from, why });
                // Dropped on purpose: it would be no better the next time.
                self.acknowledge(now, connection, delivery);
            }
        }
    }

    fn open_message(
        &mut self,
        from: Option<Ed25519Public>,
        message: &wire::Message,
    ) -> Result<(Ed25519Public, u64, crate::framing::Body), Drop> {
        let from = from.ok_or(Drop::UnknownSender)?;
        let session = self.sessions.get_mut(&from).ok_or(Drop::UnknownSender)?;
        let nonce = MessageNonce::from_slice(&message.nonce).map_err(|_| Drop::Unreadable)?;
        if crate::crypto::split_nonce(&nonce).1 <= session.seen {
            return Err(Drop::Replay);
        }
        let (counter, framed) = session.key.open(&nonce, &message.ciphertext).map_err(|_| Drop::Unreadable)?;
        // Only now is the counter the partner's own word.
        session.seen = counter;
        let body = unframe(&framed).map_err(|_| Drop::Framing)?;
        Ok((from, counter, body))
    }

    // Connections.

    fn dial(&mut self, now: Millis) {
        self.connection += 1;
        self.state = State::Dialling { since: now };
        self.out.push_back(Output::Dial { url: self.config.routes.current().to_owned() });
    }

    /// Ends the connection from this side.
    fn disconnect(&mut self, now: Millis, why: Disconnect) {
        self.out.push_back(Output::Close);
        self.ended(now, why);
    }

    /// The connection is no more: tells so and plans the next.
    fn ended(&mut self, now: Millis, why: Disconnect) {
        if let State::Open(open) = &self.state {
            self.backoff.connection_ended(now.saturating_sub(open.since));
        }
        self.end_connection();
        if matches!(self.config.role, Role::Pairing { .. }) {
            self.state = State::Stopped;
            return self.event(Event::Disconnected { why, retry_at: None, parked: false });
        }
        let replaced = matches!(self.config.role, Role::Agent)
            && why == Disconnect::Closed(Some(wire::CloseCode::Replaced.code()));
        let park = if replaced { self.backoff.replaced(now) } else { None };
        let until = now + park.unwrap_or_else(|| self.backoff.next_pause());
        self.state = State::Waiting { until };
        self.event(Event::Disconnected { why, retry_at: Some(until), parked: park.is_some() });
    }

    fn end_connection(&mut self) {
        self.features = Features::NONE;
        for session in self.sessions.values_mut() {
            // What was opened but not handled will be delivered again, and must not count as a repeat.
            session.seen = session.durable;
        }
        let (replaced, failed) = self.outbox.connection_ended();
        for entry in replaced {
            self.event(Event::Accepted { id: entry.id, queued: None });
        }
        for entry in failed {
            self.event(Event::SendFailed { id: entry.id, to: entry.to, why: SendFailure::Offline });
        }
    }

    fn liveness(&self) -> Liveness {
        if self.features.contains(Features::KEEPALIVE) { KEEPALIVE } else { PLAIN }
    }

    // Output.

    fn event(&mut self, event: Event) {
        self.out.push_back(Output::Event(event));
    }

    fn send_frame_now(&mut self, frame: Frame) -> Result<(), SendError> {
        if !self.is_connected() {
            return Err(SendError::NotConnected);
        }
        self.out.push_back(Output::Send(wire::encode(frame)));
        Ok(())
    }

    fn send_authorize(&mut self) {
        let State::Open(open) = &mut self.state else { return };
        if let (Role::Agent, Some(devices)) = (&self.config.role, &self.authorized) {
            open.unanswered_authorizes += 1;
            let clients = devices.iter().map(Ed25519Public::to_vec).collect();
            self.out.push_back(Output::Send(wire::encode(Frame::Authorize(wire::Authorize { clients }))));
        }
    }

    /// Writes what waits, within the rate that the relay allows.
    fn flush(&mut self, now: Millis) {
        let State::Open(open) = &mut self.state else { return };
        let receipts = self.features.contains(Features::RECEIPTS);
        while self.outbox.has_unwritten() {
            if !receipts {
                if open.rate > now + (PLAIN_BURST - 1) * PLAIN_INTERVAL_MS {
                    return;
                }
                open.rate = open.rate.max(now) + PLAIN_INTERVAL_MS;
            }
            let Some((bytes, done)) = self.outbox.next_frame(self.features) else { return };
            self.out.push_back(Output::Send(bytes));
            if let Some(id) = done {
                self.out.push_back(Output::Event(Event::Accepted { id, queued: None }));
            }
        }
    }

    fn acknowledge(&mut self, now: Millis, connection: u64, delivery: u64) {
        if connection != self.connection {
            return;
        }
        if let State::Open(open) = &mut self.state {
            open.receipts.handled(now, delivery);
            self.send_due_ack(now);
        }
    }

    fn send_due_ack(&mut self, now: Millis) {
        let State::Open(open) = &mut self.state else { return };
        if let Some(delivery) = open.receipts.take_due(now) {
            self.out.push_back(Output::Send(wire::encode(Frame::Ack(wire::Ack { delivery }))));
        }
    }
}

/// Framed plaintext plus tag.
const fn sealed_len(framed: usize) -> usize {
    framed + 16
}
