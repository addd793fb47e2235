//! A relay's platform for one namespace, which checks each output of the engine as it obeys it. What it knows of the
//! members' doings it keeps for itself: it never asks the engine what is right.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::sync::OnceLock;

use bytes::Bytes;
use skald_common::crypto::{Identity, Seed};
use skald_common::ids::{ChallengeNonce, Ed25519Public, NamespaceId};
use skald_common::wire::{self, ErrorCode, Frame};
use skald_relay_worker::engine::{ConnId, Engine, Input, Limits, Links, MAX_ATTACHMENT, Origin, Output, conn_of};
use skald_relay_worker::push::{Job, Services};
use skald_relay_worker::store::Sql as _;
use skald_relay_worker::store::native::NativeSql;

/// The agent, four devices, and an agent of another namespace.
pub const PEOPLE: usize = 6;
/// The agent among them.
pub const AGENT: usize = 0;

/// Who they are, derived once.
pub fn person(n: usize) -> &'static Identity {
    static PERSONS: OnceLock<[Identity; PEOPLE]> = OnceLock::new();
    let make = || [1, 2, 3, 4, 5, 6].map(|n| Identity::new(&Seed::new([n; 32])));
    &PERSONS.get_or_init(make)[n % PEOPLE]
}

/// The namespace under test.
pub fn namespace() -> NamespaceId {
    person(AGENT).namespace_id()
}

/// Small ones, so that short inputs reach them.
pub fn limits() -> Limits {
    Limits {
        max_frame: 2048,
        max_live_frame: 4096,
        queue_messages: 4,
        queue_bytes: 4096,
        pending: 2,
        devices: 3,
        unauthenticated: 3,
        window_messages: 3,
        window_bytes: 2048,
        held_messages: 2,
        held_bytes: 2048,
        ..Limits::default()
    }
}

/// All of them, so that every device with a token is pushed to.
const SERVICES: Services = Services { apns: true, fcm: true, web: true };

/// Written and not proved, for a peer without receipts: the engine's own bound.
const MAX_UNPROVED: u64 = 200;
/// No turn of this small namespace has reason to put out more.
const MAX_OUTPUTS: usize = 4000;

/// A socket as the platform and the test know it.
#[derive(Debug, Default)]
pub struct Socket {
    /// What survives an eviction.
    pub attachment: Option<Vec<u8>>,
    /// What the relay wants signed.
    pub challenge: Option<ChallengeNonce>,
    /// Whether `AuthOk` was sent.
    pub admitted: bool,
    /// The engine has closed it.
    pub closed: bool,
    /// What the test says is waiting in it.
    pub buffered: u64,
    /// When the platform answered its last ping.
    pub last_ping: Option<u64>,
    /// Frames that came in during this turn.
    inbox: Vec<Frame>,
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

/// How much of what the engine does can be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Oracle {
    /// Everything: what is stored is the engine's own doing.
    Strict,
    /// Rows and attachments are the fuzzer's: the engine may fail, misjudge and misdeliver, but not panic or run away.
    Forged,
}

/// The platform.
pub struct World {
    /// Unix milliseconds.
    pub now: u64,
    /// The database.
    pub sql: Rc<NativeSql>,
    /// All sockets that the platform lists.
    pub sockets: BTreeMap<ConnId, Socket>,
    /// What the test can judge.
    pub oracle: Oracle,
    /// Messages that arrived.
    pub delivered: u32,
    /// Devices that the agent was told of.
    pub announced: u32,
    /// Pushes that services were asked for.
    pub asked: Vec<u64>,
    engine: Option<Engine<Rc<NativeSql>>>,
    limits: Limits,
    alarm: Option<u64>,
    timer: Option<u64>,
    next_conn: u64,
    /// Whether this turn began with an engine that had to be restored.
    restored: bool,
    /// Whether storage was told to fail.
    failing: bool,
    founded: bool,
    /// Ciphertexts that went in: whoever gets one must have been meant.
    posted: HashSet<(Vec<u8>, Bytes)>,
}

impl World {
    /// An empty namespace.
    pub fn new() -> Self {
        Self {
            now: 1_800_000_000_000,
            sql: Rc::new(NativeSql::new().expect("a database in memory")),
            sockets: BTreeMap::new(),
            oracle: Oracle::Strict,
            delivered: 0,
            announced: 0,
            asked: Vec::new(),
            engine: None,
            limits: limits(),
            alarm: None,
            timer: None,
            next_conn: 0,
            restored: false,
            failing: false,
            founded: false,
            posted: HashSet::new(),
        }
    }

    /// One turn: an input, then every output.
    pub fn step(&mut self, input: Input) {
        self.restored = self.engine.is_none();
        let mut engine = self.engine.take().unwrap_or_else(|| {
            let attachments = self.sockets.iter().filter_map(|(id, socket)| Some((*id, socket.attachment.clone()?)));
            Engine::restore(self.limits.clone(), SERVICES, Rc::clone(&self.sql), attachments)
        });
        let malformed = self.malformed(&input);
        engine.handle(self.now, &View(&self.sockets), input);
        let mut outputs = 0;
        while let Some(output) = engine.poll() {
            self.obey(output);
            outputs += 1;
            assert!(outputs < MAX_OUTPUTS, "the turn does not end");
        }
        self.engine = Some(engine);
        if let Some(conn) = malformed {
            self.expect_complaint(conn);
        }
        self.sockets.values_mut().for_each(|socket| socket.inbox.clear());
        if self.oracle == Oracle::Strict {
            self.check_rows();
        }
    }

    /// A member's frame that means nothing must be answered.
    fn malformed(&self, input: &Input) -> Option<ConnId> {
        let Input::Frame { conn, bytes } = input else { return None };
        let socket = self.sockets.get(conn).filter(|socket| socket.admitted && !socket.closed)?;
        let answered = socket.attachment.is_some() && self.oracle == Oracle::Strict;
        (answered && wire::decode(bytes.clone()).is_err()).then_some(*conn)
    }

    fn expect_complaint(&self, conn: ConnId) {
        let socket = &self.sockets[&conn];
        let code = |frame: &Frame| if let Frame::Error(error) = frame { ErrorCode::parse(&error.code) } else { None };
        let told = socket
            .inbox
            .iter()
            .filter_map(code)
            .any(|code| matches!(code, ErrorCode::BadRequest | ErrorCode::PayloadTooLarge));
        assert!(told || socket.closed, "a malformed frame was passed over");
    }

    fn obey(&mut self, output: Output) {
        match output {
            Output::Send { conn, bytes } => self.on_send(conn, bytes),
            Output::Attach { conn, bytes } => {
                // The platform keeps 16 KiB; a forged attachment may hold what the engine never writes.
                let most = if self.oracle == Oracle::Strict { MAX_ATTACHMENT } else { 16 * 1024 };
                assert!(bytes.len() <= most, "an attachment of {} bytes", bytes.len());
                assert_eq!(conn_of(&bytes), Some(conn), "an attachment names another connection");
                if let Some(socket) = self.sockets.get_mut(&conn) {
                    socket.attachment = Some(bytes.to_vec());
                }
            }
            Output::Close { conn, code, reason } => {
                assert!((1000..5000).contains(&code) && reason.len() <= 123, "a close that cannot be sent");
                let socket = self.sockets.get_mut(&conn).expect("closes a socket that exists");
                // A panic may have come between the attachment that says so and the close itself.
                assert!(!socket.closed || self.restored, "closed twice: {reason}");
                socket.closed = true;
            }
            Output::WakeAt { at_ms } => self.alarm = Some(at_ms),
            Output::Timer { at_ms } => self.timer = at_ms,
            Output::DeleteAll => {
                self.sql.delete_all().expect("nothing told it to fail");
                self.alarm = None;
            }
            Output::Push(job) => self.on_push(&job),
            Output::PushGivenUp { .. } => {}
            Output::Fault { error } => {
                assert!(self.failing || self.oracle == Oracle::Forged, "storage failed by itself: {error}");
                self.failing = false;
                // The agent may have been let in and not told so.
                self.founded = true;
            }
        }
    }

    fn on_push(&mut self, job: &Job) {
        let token = &job.target.token;
        assert!(!token.is_empty() && (token.len() <= 4096 || self.oracle == Oracle::Forged), "no token");
        assert!(matches!(job.target.platform, 1 | 2 | 101), "a push to nowhere");
        if self.oracle == Oracle::Strict {
            assert_eq!(job.namespace, namespace());
            let key = (job.sealed.sender.to_vec(), job.sealed.ciphertext.clone());
            assert!(self.posted.contains(&key), "a push of what its sender never sent");
            assert!(!self.asked.contains(&job.id), "two attempts of one name");
        }
        self.asked.push(job.id);
    }

    fn on_send(&mut self, conn: ConnId, bytes: Bytes) {
        assert!(bytes.len() as u64 <= self.limits.max_live_frame + 256, "a frame of {} bytes", bytes.len());
        let socket = self.sockets.get_mut(&conn).expect("sends to a socket that exists");
        assert!(!socket.closed, "sent after the close");
        let frame = wire::decode(bytes).expect("sends what can be read").expect("sends what is known");
        match &frame {
            Frame::Challenge(challenge) => {
                assert!(!socket.admitted && socket.challenge.is_none(), "one challenge, at the beginning");
                socket.challenge = ChallengeNonce::from_slice(&challenge.nonce).ok();
            }
            Frame::AuthOk(_) => {
                assert!(!socket.admitted, "admitted twice");
                socket.admitted = true;
                self.founded = true;
            }
            Frame::AuthError(_) => assert!(!socket.admitted, "refused after it was let in"),
            Frame::Message(message) if self.oracle == Oracle::Strict => {
                assert!(socket.admitted, "a message for somebody who was not let in");
                let key = (message.peer.clone(), message.ciphertext.clone());
                assert!(self.posted.contains(&key), "a message that its sender never sent");
            }
            _ => assert!(socket.admitted || self.oracle == Oracle::Forged, "{frame:?} before AuthOk"),
        }
        self.delivered += u32::from(matches!(frame, Frame::Message(_)));
        self.announced += u32::from(matches!(frame, Frame::ClientPaired(_)));
        socket.inbox.push(frame);
    }

    /// What is stored stays within the limits, and before anybody has proved who he is there is nothing.
    fn check_rows(&self) {
        if self.failing {
            return;
        }
        if !self.founded {
            assert_eq!(self.sql.rows_written(), 0, "written before anybody was let in");
            return;
        }
        let Ok(rows) = self.sql.exec("SELECT count(*) FROM queue GROUP BY key >> 32", &[]) else { return };
        for row in rows {
            assert!(int(&row[0]) <= self.limits.queue_messages + MAX_UNPROVED, "a queue without bound");
        }
        let rows = self.sql.exec("SELECT authorized, count(*) FROM member GROUP BY authorized", &[]);
        for row in rows.expect("as readable as the other table") {
            let most = if int(&row[0]) == 0 { self.limits.pending } else { self.limits.devices };
            assert!(int(&row[1]) <= most, "more members than allowed");
        }
    }

    /// The memory is gone, and with it the timer.
    pub fn evict(&mut self) {
        self.engine = None;
        self.timer = None;
    }

    /// Lets some statements run and one fail.
    pub fn fail_storage(&mut self, after: u32) {
        self.sql.fail_after(after);
        self.failing = true;
    }

    /// A socket is accepted.
    pub fn open(&mut self, origin: Origin) -> ConnId {
        self.next_conn += 1;
        let conn = ConnId(self.next_conn << 40);
        self.sockets.insert(conn, Socket::default());
        self.step(Input::Opened { conn, origin });
        conn
    }

    /// A frame from a peer.
    pub fn say(&mut self, from: ConnId, speaker: Option<Ed25519Public>, bytes: Vec<u8>) {
        let bytes = Bytes::from(bytes);
        if let (Some(key), Ok(Some(Frame::Message(message)))) = (speaker, wire::decode(bytes.clone())) {
            self.posted.insert((key.to_vec(), message.ciphertext));
        }
        self.step(Input::Frame { conn: from, bytes });
    }

    /// The socket is gone.
    pub fn hang_up(&mut self, conn: ConnId, code: u16) {
        self.step(Input::Closed { conn, code });
        self.sockets.remove(&conn);
    }

    /// The clock moves, and whatever is due fires.
    pub fn pass(&mut self, ms: u64) {
        let end = self.now.saturating_add(ms);
        // Whatever asks to be woken at once for ever is caught here.
        for _ in 0..64 {
            let due = [self.timer, self.alarm].into_iter().flatten().min().filter(|at| *at <= end);
            let Some(due) = due else { break };
            self.now = self.now.max(due);
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

    /// The `n`th connection, counted around.
    pub fn nth(&self, n: usize) -> Option<ConnId> {
        let count = self.sockets.len();
        (count > 0).then(|| self.sockets.keys().copied().nth(n % count)).flatten()
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

fn int(value: &skald_relay_worker::store::Value) -> u64 {
    match value {
        skald_relay_worker::store::Value::Int(n) => u64::try_from(*n).expect("a count"),
        other => panic!("{other:?} is no count"),
    }
}
