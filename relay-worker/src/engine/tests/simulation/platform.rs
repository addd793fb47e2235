//! The platform under a run: sockets with attachments and buffers, alarm, timer, clock, database, evictions and panics.
//! It knows nothing of the protocol, and judges only what the engine owes the platform.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use bytes::Bytes;
use skald_common::wire::{Frame, decode};

use super::super::super::{ConnId, Engine, Input, Limits, Links, MAX_ATTACHMENT, Output, conn_of};
use super::history::Wire;
use super::memory;
use super::{Broken, START, Verdict, demand};
use crate::push::{Job, Services};
use crate::store::native::{NativeSql, Trap};

/// What a panic inside an operation destroys, or what storage refuses.
#[derive(Debug, Clone, Copy)]
pub(super) enum Mishap {
    Statement(u32, Trap),
    /// The panic comes when so many outputs of one drain have been carried out.
    AfterOutputs(u32),
}

/// What the engine did that others can see, in order.
#[derive(Debug, Clone)]
pub(super) enum Event {
    Wrote {
        conn: ConnId,
        frame: Frame,
        size: u64,
    },
    /// To the end of a pipe.
    Told {
        conn: ConnId,
        bytes: Bytes,
    },
    Closed {
        conn: ConnId,
        code: u16,
    },
    DeletedAll,
    Fault(String),
    /// A push service was asked.
    Asked(Box<Job>),
    /// A message is pushed no more.
    GivenUp,
}

/// One input and what came of it.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    pub(super) events: Vec<Event>,
    /// The object panicked, as it was told to.
    pub(super) crashed: bool,
    /// Storage failed, as it was told to, and the turn went on.
    pub(super) refused: bool,
}

impl Outcome {
    /// Nothing went wrong.
    pub(super) const fn clean(&self) -> bool {
        !self.crashed && !self.refused
    }
}

/// A frame that has arrived.
pub(super) struct Arrival {
    /// When the relay wrote it.
    pub(super) at: u64,
    pub(super) frame: Frame,
}

pub(super) struct Socket {
    /// Of a pipe's end.
    side: bool,
    attachment: Option<Vec<u8>>,
    wire: Wire,
    buffer: VecDeque<(Arrival, u64)>,
    buffered: u64,
    pub(super) inbox: VecDeque<Arrival>,
    pub(super) closed: Option<u16>,
    last_ping: Option<u64>,
    /// The peer is gone, and the platform has not noticed.
    abandoned: bool,
}

impl Socket {
    const fn new(side: bool) -> Self {
        Self {
            side,
            attachment: None,
            wire: Wire::Open,
            buffer: VecDeque::new(),
            buffered: 0,
            inbox: VecDeque::new(),
            closed: None,
            last_ping: None,
            abandoned: false,
        }
    }

    fn write(&mut self, arrival: Arrival, size: u64) {
        match &mut self.wire {
            Wire::Open => self.inbox.push_back(arrival),
            Wire::Slow => {
                self.buffer.push_back((arrival, size));
                self.buffered += size;
            }
            Wire::Dead { room } => match u64::from(*room).checked_sub(size) {
                Some(rest) => *room = u32::try_from(rest).unwrap_or(0),
                None => self.buffered += size,
            },
        }
    }

    fn trickle(&mut self, bytes: u64) {
        let mut left = bytes;
        while let Some((_, size)) = self.buffer.front()
            && let Some(rest) = left.checked_sub(*size)
            && let Some((arrival, size)) = self.buffer.pop_front()
        {
            self.inbox.push_back(arrival);
            self.buffered -= size;
            left = rest;
        }
    }
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

pub(super) struct Platform {
    pub(super) now: u64,
    pub(super) limits: Limits,
    services: Services,
    pub(super) sql: Rc<NativeSql>,
    engine: Option<Engine<Rc<NativeSql>>>,
    sockets: BTreeMap<ConnId, Socket>,
    pub(super) alarm: Option<u64>,
    pub(super) timer: Option<u64>,
    /// For the next input that it can spoil.
    mishap: Option<Mishap>,
    next_conn: u64,
}

impl Platform {
    pub(super) fn new(limits: Limits, services: Services) -> Self {
        let sql = Rc::new(NativeSql::new().unwrap());
        let sockets = BTreeMap::new();
        Self {
            now: START,
            limits,
            services,
            sql,
            engine: None,
            sockets,
            alarm: None,
            timer: None,
            mishap: None,
            next_conn: 0,
        }
    }

    pub(super) fn arm(&mut self, mishap: Mishap) {
        self.disarm();
        self.mishap = Some(mishap);
        if let Mishap::Statement(after, trap) = mishap {
            self.sql.trap_after(after, trap);
        }
    }

    pub(super) fn disarm(&mut self) {
        self.mishap = None;
        self.sql.heal();
    }

    /// The memory is gone, and with it the timer.
    pub(super) fn evict(&mut self) {
        self.engine = None;
        self.timer = None;
    }

    /// One input, then a full drain, unless the object panics on the way.
    pub(super) fn turn(&mut self, input: Input) -> Verdict<Outcome> {
        let mut outcome = Outcome { events: Vec::new(), crashed: false, refused: false };
        let trapped = |mishap: Option<Mishap>| matches!(mishap, Some(Mishap::Statement(..)));
        let had_trap = trapped(self.mishap);
        let engine = self.engine.take();
        let handled = {
            let Self { now, limits, services, sql, sockets, .. } = &*self;
            catch_unwind(AssertUnwindSafe(|| {
                let mut engine = engine.unwrap_or_else(|| {
                    let listed = sockets.iter().filter_map(|(id, socket)| Some((*id, socket.attachment.clone()?)));
                    Engine::restore(limits.clone(), *services, Rc::clone(sql), listed)
                });
                engine.handle(*now, &View(sockets), input);
                engine
            }))
        };
        if had_trap && !self.sql.heal() {
            self.mishap = None;
            outcome.refused = handled.is_ok();
        } else if had_trap {
            // Still to come, where it was to come.
            self.rearm();
        }
        let mut engine = match handled {
            Ok(engine) => engine,
            Err(panic) if panic.is::<Trap>() => {
                outcome.crashed = true;
                self.timer = None;
                return Ok(outcome);
            }
            Err(panic) => return Err(Broken::new("nothing panics", panic_text(panic.as_ref()))),
        };
        let mut left = match self.mishap {
            Some(Mishap::AfterOutputs(outputs)) => outputs,
            _ => u32::MAX,
        };
        while let Some(output) = engine.poll() {
            if left == 0 {
                outcome.crashed = true;
                self.mishap = None;
                self.timer = None;
                return Ok(outcome);
            }
            left -= 1;
            self.obey(output, &mut outcome.events)?;
        }
        memory::measure(&engine).within(&memory::bound(&self.limits, self.sockets.len() as u64))?;
        self.engine = Some(engine);
        Ok(outcome)
    }

    fn rearm(&mut self) {
        if let Some(mishap) = self.mishap {
            self.arm(mishap);
        }
    }

    fn obey(&mut self, output: Output, events: &mut Vec<Event>) -> Verdict {
        match output {
            Output::Send { conn, bytes } => {
                let size = bytes.len() as u64;
                if let Some(socket) = self.sockets.get(&conn).filter(|socket| socket.side) {
                    demand!(socket.closed.is_none(), "nothing is sent after a close", "{conn:?}: {bytes:?}");
                    events.push(Event::Told { conn, bytes });
                    return Ok(());
                }
                let frame = decode(bytes).ok().flatten();
                let Some(frame) = frame else {
                    return Err(Broken::new("every frame can be read", format!("{conn:?}")));
                };
                let now = self.now;
                let Some(socket) = self.sockets.get_mut(&conn) else {
                    return Err(Broken::new("sends go to sockets that exist", format!("{conn:?}")));
                };
                demand!(socket.closed.is_none(), "nothing is sent after a close", "{conn:?}: {frame:?}");
                socket.write(Arrival { at: now, frame: frame.clone() }, size);
                events.push(Event::Wrote { conn, frame, size });
            }
            Output::Attach { conn, bytes } => {
                demand!(bytes.len() <= MAX_ATTACHMENT, "an attachment is small", "{} bytes", bytes.len());
                demand!(conn_of(&bytes) == Some(conn), "an attachment names its connection", "{conn:?}");
                if let Some(socket) = self.sockets.get_mut(&conn) {
                    socket.attachment = Some(bytes.to_vec());
                }
            }
            Output::Close { conn, code, .. } => {
                if let Some(socket) = self.sockets.get_mut(&conn).filter(|socket| socket.closed.is_none()) {
                    socket.closed = Some(code);
                    events.push(Event::Closed { conn, code });
                }
            }
            Output::WakeAt { at_ms } => self.alarm = Some(at_ms),
            Output::Timer { at_ms } => self.timer = at_ms,
            Output::DeleteAll => {
                self.sql.delete_all().unwrap();
                self.alarm = None;
                events.push(Event::DeletedAll);
            }
            Output::Fault { error } => events.push(Event::Fault(error.to_string())),
            Output::Push(job) => events.push(Event::Asked(job)),
            Output::PushGivenUp { .. } => events.push(Event::GivenUp),
        }
        Ok(())
    }

    // --- sockets ---

    pub(super) fn accept(&mut self) -> ConnId {
        self.accept_as(false)
    }

    /// The control socket of a pipe's end.
    pub(super) fn accept_side(&mut self) -> ConnId {
        self.accept_as(true)
    }

    fn accept_as(&mut self, side: bool) -> ConnId {
        self.next_conn += 1;
        let conn = ConnId(self.next_conn << 40);
        self.sockets.insert(conn, Socket::new(side));
        conn
    }

    pub(super) fn socket(&mut self, conn: ConnId) -> Option<&mut Socket> {
        self.sockets.get_mut(&conn)
    }

    /// Whether bytes get through in both directions.
    pub(super) fn alive(&self, conn: ConnId) -> bool {
        let open = |socket: &Socket| socket.closed.is_none() && !matches!(socket.wire, Wire::Dead { .. });
        self.sockets.get(&conn).is_some_and(open)
    }

    pub(super) fn buffered(&self, conn: ConnId) -> u64 {
        View(&self.sockets).buffered(conn)
    }

    pub(super) fn last_ping(&self, conn: ConnId) -> Option<u64> {
        View(&self.sockets).last_ping(conn)
    }

    pub(super) fn set_wire(&mut self, conn: ConnId, wire: Wire) {
        let Some(socket) = self.sockets.get_mut(&conn) else { return };
        if matches!(socket.wire, Wire::Dead { .. }) {
            return; // what was swallowed does not come back
        }
        socket.wire = wire;
        match wire {
            Wire::Open => socket.trickle(u64::MAX),
            Wire::Slow => {}
            Wire::Dead { .. } => socket.buffer.clear(),
        }
    }

    pub(super) fn trickle(&mut self, conn: ConnId, bytes: u64) {
        if let Some(socket) = self.sockets.get_mut(&conn) {
            socket.trickle(bytes);
        }
    }

    /// The peer is gone without a word.
    pub(super) fn abandon(&mut self, conn: ConnId) {
        self.set_wire(conn, Wire::Dead { room: 2000 });
        if let Some(socket) = self.sockets.get_mut(&conn) {
            socket.abandoned = true;
        }
    }

    /// The next socket that the platform finds without a peer.
    pub(super) fn abandoned(&self) -> Option<ConnId> {
        self.sockets.iter().find(|(_, socket)| socket.abandoned && socket.closed.is_none()).map(|(conn, _)| *conn)
    }

    /// Sockets that the relay has closed, with the code.
    pub(super) fn closing(&self) -> Vec<(ConnId, u16)> {
        self.sockets.iter().filter_map(|(conn, socket)| Some((*conn, socket.closed?))).collect()
    }

    pub(super) fn remove(&mut self, conn: ConnId) {
        self.sockets.remove(&conn);
    }

    /// Those that keep the socket alive do so now.
    pub(super) fn ping(&mut self, conns: &[ConnId]) {
        let now = self.now;
        for conn in conns {
            if self.alive(*conn)
                && let Some(socket) = self.sockets.get_mut(conn)
            {
                socket.last_ping = Some(now);
            }
        }
    }

    pub(super) fn queued_rows(&self) -> u64 {
        use crate::store::{Sql as _, Value};
        match self.sql.exec("SELECT count(*) FROM queue", &[]).map(|mut rows| rows.remove(0).remove(0)) {
            Ok(Value::Int(n)) => n.unsigned_abs(),
            _ => 0, // no tables
        }
    }
}

/// A frame for [`Input::Frame`].
pub(super) fn bytes(frame: Frame) -> Bytes {
    skald_common::wire::encode(frame).into()
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
