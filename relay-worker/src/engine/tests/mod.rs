//! The engine's rules, each test named for what it proves. The [`World`] stands in for the platform: sockets with
//! attachments, alarm, timer, clock. By default it drops the engine between any two events, as an eviction does; what
//! rests on memory is tested in a world that does not.

mod delivery;
mod faults;
mod handshake;
mod messages;
mod noise;
mod pairing;
mod pipes;
mod presence;
mod push;
mod simulation;
mod upkeep;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use skald_common::crypto::namespace_id;
use skald_common::ids::{Ed25519Public, NamespaceId};
use skald_common::wire::{
    Ack, Auth, AuthAgent, AuthClient, AuthPairing, Authorize, Features, Message, PairingStart, PresenceRequest, Role,
    Status, decode, encode,
};

use super::*;
use crate::store::native::NativeSql;

const START: u64 = 1_800_000_000_000;
const SECOND: u64 = 1000;
const HOUR: u64 = 3600 * SECOND;
const DAY: u64 = 24 * HOUR;
const AGENT_KEY: Ed25519Public = Ed25519Public::new([0xa9; 32]);
const TOKEN: [u8; 32] = [0x70; 32];

/// A device's key.
fn device(n: u8) -> Ed25519Public {
    Ed25519Public::new([n; 32])
}

fn namespace() -> NamespaceId {
    namespace_id(&AGENT_KEY)
}

#[derive(Default)]
struct Socket {
    attachment: Option<Vec<u8>>,
    inbox: VecDeque<Frame>,
    /// What a pipe's end was told; other sockets get frames.
    told: Option<VecDeque<Bytes>>,
    closed: Option<u16>,
    /// What the test says is waiting in the socket.
    buffered: u64,
    last_ping: Option<u64>,
}

struct World {
    now: u64,
    limits: Limits,
    services: Services,
    sql: Rc<NativeSql>,
    engine: Option<Engine<Rc<NativeSql>>>,
    sockets: BTreeMap<ConnId, Socket>,
    evicts: bool,
    alarm: Option<u64>,
    timer: Option<u64>,
    faults: Vec<SqlError>,
    /// What the push services were asked for.
    pushes: VecDeque<crate::push::Job>,
    given_up: u32,
    deleted: u32,
    frames_in: u64,
    /// How often timer and alarm fired.
    wakes: u64,
    next_conn: u64,
}

struct View<'a>(&'a BTreeMap<ConnId, Socket>);

impl Links for View<'_> {
    fn buffered(&self, conn: ConnId) -> u64 {
        self.0.get(&conn).map_or(0, |socket| socket.buffered)
    }

    fn last_ping(&self, conn: ConnId) -> Option<u64> {
        self.0.get(&conn)?.last_ping
    }
}

impl World {
    /// Drops the engine between any two events.
    fn new() -> Self {
        Self::with(Limits::default(), true)
    }

    /// Keeps the engine.
    fn remembering() -> Self {
        Self::with(Limits::default(), false)
    }

    fn with(limits: Limits, evicts: bool) -> Self {
        Self {
            now: START,
            limits,
            services: Services::default(),
            sql: Rc::new(NativeSql::new().unwrap()),
            engine: None,
            sockets: BTreeMap::new(),
            evicts,
            alarm: None,
            timer: None,
            faults: Vec::new(),
            pushes: VecDeque::new(),
            given_up: 0,
            deleted: 0,
            frames_in: 0,
            wakes: 0,
            next_conn: 0,
        }
    }

    // --- the platform ---

    fn step(&mut self, input: Input) {
        let mut engine = self.engine.take().unwrap_or_else(|| {
            let attachments = self.sockets.iter().filter_map(|(id, socket)| Some((*id, socket.attachment.clone()?)));
            Engine::restore(self.limits.clone(), self.services, Rc::clone(&self.sql), attachments)
        });
        engine.handle(self.now, &View(&self.sockets), input);
        while let Some(output) = engine.poll() {
            self.obey(output);
        }
        if !self.evicts {
            self.engine = Some(engine);
        }
    }

    fn obey(&mut self, output: Output) {
        match output {
            Output::Send { conn, bytes } => {
                let socket = self.sockets.get_mut(&conn).expect("sends to a socket that exists");
                assert_eq!(socket.closed, None, "nothing is sent after a close");
                match &mut socket.told {
                    Some(told) => told.push_back(bytes),
                    None => socket.inbox.push_back(decode(bytes).unwrap().expect("a frame")),
                }
            }
            Output::Attach { conn, bytes } => {
                assert!(bytes.len() <= MAX_ATTACHMENT, "{}", bytes.len());
                assert_eq!(conn_of(&bytes), Some(conn));
                self.sockets.get_mut(&conn).unwrap().attachment = Some(bytes.to_vec());
            }
            Output::Close { conn, code, reason } => {
                let socket = self.sockets.get_mut(&conn).unwrap();
                // A restored engine closes once more what was being closed.
                assert!(socket.closed.is_none() || code == 1001, "closed twice: {reason}");
                socket.closed.get_or_insert(code);
            }
            Output::WakeAt { at_ms } => self.alarm = Some(at_ms),
            Output::Timer { at_ms } => self.timer = at_ms,
            Output::DeleteAll => {
                self.sql.delete_all().unwrap();
                self.alarm = None;
                self.deleted += 1;
            }
            Output::Fault { error } => self.faults.push(error),
            Output::Push(job) => self.pushes.push_back(*job),
            Output::PushGivenUp { .. } => self.given_up += 1,
        }
    }

    /// Time passes; timer and alarm fire on the way.
    fn pass(&mut self, ms: u64) {
        let end = self.now + ms;
        while let Some(due) = self.timer.into_iter().chain(self.alarm).filter(|at| *at <= end).min() {
            self.now = self.now.max(due);
            self.wakes += 1;
            if self.timer == Some(due) {
                self.timer = None;
                self.step(Input::Wake);
            } else {
                self.alarm = None;
                self.step(Input::Alarm);
            }
        }
        self.now = end;
    }

    /// The memory is gone, and with it the timer.
    fn evict(&mut self) {
        self.engine = None;
        self.timer = None;
    }

    fn open(&mut self, origin: Origin) -> ConnId {
        self.next_conn += 1;
        let conn = ConnId(self.next_conn << 40);
        let told = matches!(origin, Origin::Pipe { .. }).then(VecDeque::new);
        self.sockets.insert(conn, Socket { told, ..Socket::default() });
        self.step(Input::Opened { conn, origin });
        conn
    }

    /// The peer closes, or its connection breaks (1006).
    fn hang_up(&mut self, conn: ConnId, code: u16) {
        self.step(Input::Closed { conn, code });
        self.sockets.remove(&conn);
    }

    fn send(&mut self, conn: ConnId, frame: Frame) {
        self.frames_in += 1;
        self.step(Input::Frame { conn, bytes: encode(frame).into() });
    }

    fn send_raw(&mut self, conn: ConnId, bytes: &[u8]) {
        self.step(Input::Frame { conn, bytes: Bytes::copy_from_slice(bytes) });
    }

    // --- what a peer sees ---

    /// Everything that came in since the last look.
    fn read(&mut self, conn: ConnId) -> Vec<Frame> {
        self.sockets.get_mut(&conn).unwrap().inbox.drain(..).collect()
    }

    fn one(&mut self, conn: ConnId) -> Frame {
        let mut frames = self.read(conn);
        assert_eq!(frames.len(), 1, "{frames:?}");
        frames.remove(0)
    }

    fn closed(&self, conn: ConnId) -> Option<u16> {
        self.sockets[&conn].closed
    }

    /// The bodies of the messages that came in, in order; other frames are dropped.
    fn texts(&mut self, conn: ConnId) -> Vec<String> {
        self.messages(conn).iter().map(text).collect()
    }

    fn messages(&mut self, conn: ConnId) -> Vec<Message> {
        let frames = self.read(conn).into_iter();
        frames.filter_map(|frame| if let Frame::Message(message) = frame { Some(message) } else { None }).collect()
    }

    /// The code of the error or refusal that came in alone.
    fn refusal(&mut self, conn: ConnId) -> String {
        match self.one(conn) {
            Frame::AuthError(error) => error.code,
            Frame::Error(error) => error.code,
            other => panic!("{other:?}"),
        }
    }

    // --- what a peer does ---

    fn authenticate(&mut self, role: Role) -> ConnId {
        let auth = Frame::Auth(Auth { role: Some(role), signature: vec![0; 64] });
        self.open(Origin::Verified { auth: encode(auth).into() })
    }

    fn agent_with(&mut self, features: Features) -> ConnId {
        let conn = self
            .authenticate(Role::Agent(AuthAgent { agent_ed25519_pub: AGENT_KEY.to_vec(), features: features.bits() }));
        self.expect_auth_ok(conn);
        conn
    }

    /// An agent without features that has authorized these devices.
    fn agent(&mut self, devices: &[u8]) -> ConnId {
        let conn = self.agent_with(Features::NONE);
        self.authorize(conn, devices);
        conn
    }

    /// An agent with all features that has authorized these devices.
    fn modern_agent(&mut self, devices: &[u8]) -> ConnId {
        let conn = self.agent_with(Features::ALL);
        self.authorize(conn, devices);
        conn
    }

    fn authorize(&mut self, agent: ConnId, devices: &[u8]) {
        self.send(
            agent,
            Frame::Authorize(Authorize { clients: devices.iter().map(|n| device(*n).to_vec()).collect() }),
        );
        let answer = self.read(agent).pop();
        assert!(matches!(answer, Some(Frame::AuthorizeOk(ok)) if ok.authorized as usize == devices.len()));
    }

    fn client_role(n: u8, features: Features) -> AuthClient {
        AuthClient {
            namespace_id: namespace().to_vec(),
            client_ed25519_pub: device(n).to_vec(),
            features: features.bits(),
            ..AuthClient::default()
        }
    }

    /// A client connection that was let in; what follows `AuthOk` is still to be read.
    fn client_with(&mut self, n: u8, features: Features) -> ConnId {
        let conn = self.authenticate(Role::Client(Self::client_role(n, features)));
        self.expect_auth_ok(conn);
        conn
    }

    fn client(&mut self, n: u8) -> ConnId {
        self.client_with(n, Features::NONE)
    }

    fn modern_client(&mut self, n: u8) -> ConnId {
        self.client_with(n, Features::ALL)
    }

    /// The client is refused; with which code.
    fn refused_client(&mut self, n: u8) -> String {
        let conn = self.authenticate(Role::Client(Self::client_role(n, Features::NONE)));
        assert_eq!(self.closed(conn), Some(4000));
        self.refusal(conn)
    }

    fn expect_auth_ok(&mut self, conn: ConnId) {
        match self.sockets.get_mut(&conn).unwrap().inbox.pop_front() {
            Some(Frame::AuthOk(ok)) => assert_eq!(ok.namespace_id, namespace().to_vec()),
            other => panic!("{other:?}"),
        }
    }

    fn open_window(&mut self, agent: ConnId, ttl: u32) -> u32 {
        self.send(agent, Frame::PairingStart(PairingStart { pairing_token: TOKEN.to_vec(), ttl }));
        match self.read(agent).pop() {
            Some(Frame::PairingReady(ready)) => ready.ttl,
            other => panic!("{other:?}"),
        }
    }

    fn pairing_role(n: u8) -> AuthPairing {
        AuthPairing {
            namespace_id: namespace().to_vec(),
            client_ed25519_pub: device(n).to_vec(),
            client_x25519_pub: vec![n ^ 0xff; 32],
            pairing_token: TOKEN.to_vec(),
            device_token: format!("token {n}"),
            platform: 2,
        }
    }

    /// Shows the token; the answer, `None` for `AuthOk` and a normal close.
    fn pair(&mut self, n: u8) -> Option<String> {
        let conn = self.authenticate(Role::Pairing(Self::pairing_role(n)));
        match self.one(conn) {
            Frame::AuthOk(_) => {
                assert_eq!(self.closed(conn), Some(1000));
                None
            }
            Frame::AuthError(error) => {
                assert_eq!(self.closed(conn), Some(4000));
                Some(error.code)
            }
            other => panic!("{other:?}"),
        }
    }

    fn say(&mut self, from: ConnId, to: Ed25519Public, body: &str) {
        self.send(from, Frame::Message(message(to, body)));
    }

    fn say_live(&mut self, from: ConnId, to: Ed25519Public, body: &str) {
        self.send(from, Frame::Message(Message { live: true, ..message(to, body) }));
    }

    fn ack(&mut self, conn: ConnId, delivery: u64) {
        self.send(conn, Frame::Ack(Ack { delivery }));
    }

    /// Asks who is online and returns the answer; everything before it is put back.
    fn online(&mut self, conn: ConnId) -> Vec<Ed25519Public> {
        let before = self.read(conn);
        self.send(conn, Frame::PresenceRequest(PresenceRequest {}));
        let mut after = self.read(conn);
        let Some(Frame::PresenceList(list)) = after.pop() else { panic!("no list") };
        self.sockets.get_mut(&conn).unwrap().inbox.extend(before.into_iter().chain(after));
        let mut online: Vec<_> = list.online.iter().map(|key| Ed25519Public::from_slice(key).unwrap()).collect();
        online.sort();
        online
    }

    fn queued_rows(&self) -> u64 {
        match self.sql.exec("SELECT count(*) FROM queue", &[]).unwrap().remove(0).remove(0) {
            crate::store::Value::Int(n) => n.try_into().unwrap(),
            other => panic!("{other:?}"),
        }
    }
}

/// A message with the body as its ciphertext.
fn message(to: Ed25519Public, body: &str) -> Message {
    Message {
        ciphertext: Bytes::copy_from_slice(body.as_bytes()),
        nonce: vec![7; 12],
        peer: to.to_vec(),
        ..Message::default()
    }
}

fn text(message: &Message) -> String {
    String::from_utf8_lossy(&message.ciphertext).into_owned()
}

/// The presence events among frames, as (key, online).
fn events(frames: &[Frame]) -> Vec<(Ed25519Public, bool)> {
    let event = |frame: &Frame| match frame {
        Frame::PresenceEvent(event) => {
            Some((Ed25519Public::from_slice(&event.pubkey).unwrap(), event.status == Status::Online as i32))
        }
        _ => None,
    };
    frames.iter().filter_map(event).collect()
}

fn numbered(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}
