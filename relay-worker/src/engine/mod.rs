//! One namespace of the relay as a state machine: it opens no socket, reads no clock, draws no randomness, awaits nothing.
//!
//! # Contract
//!
//! One input, then a full drain, without an await in between:
//!
//! ```text
//! let (limits, errors) = Limits::from_lookup(|name| env_var(name));
//! let mut engine = Engine::restore(limits, services, sql, attachments.map(|(conn, bytes)| ...)); // sql: impl Sql
//! engine.handle(now_ms, &links, input);
//! while let Some(output) = engine.poll() {
//!     match output {
//!         Output::Send { conn, bytes } => ...,       // one binary message; a peer that is gone is no error
//!         Output::Attach { conn, bytes } => ...,     // serialize_attachment; always comes before the Close it belongs to
//!         Output::Close { conn, code, reason } => ..., // after what was sent; a second close must be harmless
//!         Output::WakeAt { at_ms } => ...,           // set_alarm, replacing the one that is set
//!         Output::Timer { at_ms } => ...,            // setTimeout, replacing the pending one; None: clearTimeout
//!         Output::DeleteAll => ...,                  // delete_all and delete_alarm
//!         Output::Push(job) => ...,                  // ask the push service, detached; its answer is an Input::Pushed,
//!                                                    // or never comes
//!         Output::PushGivenUp { platform } => ...,   // one line in the log
//!         Output::Fault { error } => ...,            // one line in the log
//!     }
//! }
//! ```
//!
//! * [`Engine::restore`] builds the engine from SQL and the attachments of all sockets that the platform lists. It may be
//!   dropped after any drain and restored on the next event: eviction, panic and deploy are one case. What goes with the
//!   memory: rate buckets, live messages that wait behind a drain, the timers (asked for again on the next event).
//! * An attachment carries its [`ConnId`] ([`conn_of`]), so that the platform's listing can be mapped without tags.
//! * A connection that the engine has closed carries an attachment that says so. It may be listed again; it is ignored.
//! * Every entry point tolerates a connection that it does not know.
//! * Before a successful `Auth` nothing is written: no table, no row, no alarm.
//! * `now_ms` is Unix milliseconds. It may stand still or jump; nothing panics, nothing is lost, deadlines move with it.
//! * [`Output::WakeAt`] is persistent (the alarm), and asked for only when it must be earlier than the one that is known, or
//!   when what that was for has gone; [`Output::Timer`] lives in memory only. They come back as [`Input::Alarm`] and [`Input::Wake`]; one too many is
//!   harmless.
//!
//! # When storage fails
//!
//! Nothing is reported accepted that is not durable. Each change is one transaction; when it fails, what the engine
//! remembers of the rows is dropped and read anew, [`Output::Fault`] is emitted, and the connection whose event it was is
//! closed with 1001 (a member redials and repeats what was not accepted). Other connections live on.

mod attachment;
mod auth;
mod conn;
mod delivery;
mod handshake;
mod io;
mod limits;
mod members;
mod messages;
mod pairing;
mod pipes;
mod presence;
mod push;
mod queue;
mod rate;
mod reply;
mod space;
mod upkeep;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use bytes::Bytes;
use skald_common::wire::{self, CloseCode, ErrorCode, Frame};

use crate::push::Services;
use crate::store::{Sql, SqlError, Store};

pub use attachment::conn_of;
pub use auth::{Refusal, Verified, verify_auth};
pub use io::{ConnId, EndId, Input, Links, MAX_ATTACHMENT, Origin, Output};
pub use limits::{LimitError, Limits};

use conn::{Conn, Phase, Session};
use space::Cache;

/// One namespace. See the module's contract.
pub struct Engine<S> {
    limits: Limits,
    /// What can be pushed at all.
    services: Services,
    store: Store<S>,
    cache: Cache,
    conns: BTreeMap<ConnId, Conn>,
    /// The connection of each member that is connected, by member number.
    online: BTreeMap<u32, ConnId>,
    /// Closed by the engine, and not yet reported closed.
    closing: HashSet<ConnId>,
    /// Whose attachment has changed in this turn.
    dirty: BTreeSet<ConnId>,
    /// Whose connection has ended in this turn. What it left rings when the turn is over: by then it may be replaced, or its
    /// member connected again.
    left: BTreeSet<u32>,
    /// Bytes given to a connection in this turn, which the platform's figure does not know yet.
    sent: BTreeMap<ConnId, u64>,
    outputs: VecDeque<Output>,
    /// When the pending timer fires.
    timer: Option<u64>,
    /// What the alarm is set to, if that was done since the engine was restored.
    alarm: Option<u64>,
    /// Since storage has failed: when a missing deadline is to be looked for.
    retry_at: Option<u64>,
    /// Whether the sessions have been checked against the rows since the engine was restored, or storage failed.
    checked: bool,
}

/// What one turn of the engine knows of the world.
#[derive(Clone, Copy)]
struct Turn<'a> {
    now: u64,
    links: &'a dyn Links,
}

impl<S: Sql> Engine<S> {
    /// Builds the engine from the database and the attachments of all sockets that the platform lists. An attachment that
    /// cannot be read leaves a connection that the engine does not know, which is closed when it speaks.
    pub fn restore<B: AsRef<[u8]>>(
        limits: Limits,
        services: Services,
        sql: S,
        sockets: impl IntoIterator<Item = (ConnId, B)>,
    ) -> Self {
        let mut engine = Self {
            limits,
            services,
            store: Store::new(sql),
            cache: Cache::default(),
            conns: BTreeMap::new(),
            online: BTreeMap::new(),
            closing: HashSet::new(),
            dirty: BTreeSet::new(),
            left: BTreeSet::new(),
            sent: BTreeMap::new(),
            outputs: VecDeque::new(),
            timer: None,
            alarm: None,
            retry_at: None,
            checked: false,
        };
        for (id, bytes) in sockets {
            match attachment::decode(bytes.as_ref()) {
                Some(attachment::Saved::Open(conn)) => engine.adopt(id, conn),
                // Closed once more: a panic may have come before the close, and nothing would end the connection then.
                Some(attachment::Saved::Closed) => {
                    engine.closing.insert(id);
                    let (code, reason) = (CloseCode::Restarting.code(), CloseCode::Restarting.reason());
                    engine.outputs.push_back(Output::Close { conn: id, code, reason });
                }
                None => {}
            }
        }
        engine
    }

    /// Takes a connection over from before an eviction. Of two with the same key the newer one is the member's.
    fn adopt(&mut self, id: ConnId, conn: Conn) {
        if let Phase::Member(session) = &conn.phase {
            let rival = self.online.get(&session.member).copied();
            if let Some(rival) = rival {
                let newer = self.conns.get(&rival).is_none_or(|other| other.opened_at <= conn.opened_at);
                let loser = if newer { rival } else { id };
                self.conns.remove(&loser);
                self.close(loser, CloseCode::Replaced);
                if !newer {
                    return;
                }
            }
            self.online.insert(session.member, id);
        }
        self.conns.insert(id, conn);
    }

    /// Takes one input in. Drain [`Engine::poll`] afterwards.
    pub fn handle(&mut self, now_ms: u64, links: &dyn Links, input: Input) {
        let turn = Turn { now: now_ms, links };
        let subject = subject(&input);
        let gone = matches!(input, Input::Closed { .. });
        let alarm = matches!(input, Input::Alarm);
        let restored = !self.checked;
        if let Err(error) = self.begin(turn, alarm).and_then(|()| self.dispatch(turn, input)) {
            self.report(turn, error);
            if let Some(id) = subject {
                self.end(turn, id, (!gone).then_some(CloseCode::Restarting));
            }
            if alarm {
                self.retry_alarm(turn);
            }
        }
        if restored {
            self.feed_all(turn);
            if let Err(error) = self.doubt_all(turn) {
                self.report(turn, error);
            }
        }
        self.ring_left(turn);
        if let Some(id) = subject.filter(|_| gone) {
            // Whatever in this turn may have wanted to close it: it does not come again.
            self.closing.remove(&id);
        }
        self.finish(turn);
    }

    /// The next thing to do; `None` when the turn is over.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn dispatch(&mut self, turn: Turn<'_>, input: Input) -> Result<(), SqlError> {
        match input {
            Input::Opened { conn, origin } => self.on_opened(turn, conn, origin),
            Input::Frame { conn, bytes } => self.on_bytes(turn, conn, bytes),
            Input::Text { conn } => {
                self.on_text(turn, conn);
                Ok(())
            }
            Input::Closed { conn, code } => self.on_closed(turn, conn, code),
            Input::Alarm => self.on_alarm(turn),
            Input::Wake => {
                self.on_wake(turn);
                self.doubt_all(turn)
            }
            Input::Pushed { id, outcome } => self.on_pushed(turn, id, outcome),
        }
    }

    fn on_bytes(&mut self, turn: Turn<'_>, id: ConnId, bytes: Bytes) -> Result<(), SqlError> {
        match self.conns.get(&id).map(|conn| &conn.phase) {
            Some(Phase::Challenged { .. }) => self.on_auth(turn, id, bytes),
            Some(Phase::Member(_)) => self.on_frame(turn, id, bytes),
            // An end has nothing to say.
            Some(Phase::Pipe(_)) => Ok(()),
            None => {
                self.disown(id);
                Ok(())
            }
        }
    }

    fn on_text(&mut self, turn: Turn<'_>, id: ConnId) {
        match self.conns.get(&id).map(|conn| &conn.phase) {
            Some(Phase::Challenged { .. }) => {
                self.refuse(id, Refusal::new(ErrorCode::BadRequest, "text before authentication"));
            }
            Some(Phase::Member(_)) => self.heard(turn, id),
            Some(Phase::Pipe(_)) => {}
            None => self.disown(id),
        }
    }

    fn on_closed(&mut self, turn: Turn<'_>, id: ConnId, code: u16) -> Result<(), SqlError> {
        if code == CloseCode::Normal.code() {
            self.prove_by_age(turn, id)?;
        }
        self.on_side_closed(id);
        self.end(turn, id, None);
        Ok(())
    }

    /// A connection speaks that the engine has no memory of: its attachment was lost. It is to redial.
    fn disown(&mut self, id: ConnId) {
        if !self.closing.contains(&id) {
            self.close(id, CloseCode::Restarting);
        }
    }

    /// A frame of a member.
    fn on_frame(&mut self, turn: Turn<'_>, id: ConnId, bytes: Bytes) -> Result<(), SqlError> {
        self.heard(turn, id);
        self.prove_by_age(turn, id)?;
        let size = bytes.len() as u64;
        if size > self.limits.max_live_frame {
            self.tell_too_large(turn, id, 0);
            return Ok(());
        }
        match wire::decode(bytes) {
            Err(_) => self.tell_error(turn, id, ErrorCode::BadRequest, "malformed frame", 0),
            Ok(None) => {}
            Ok(Some(frame)) => self.on_member_frame(turn, id, size, frame)?,
        }
        self.touch(turn)
    }

    fn on_member_frame(&mut self, turn: Turn<'_>, id: ConnId, size: u64, frame: Frame) -> Result<(), SqlError> {
        let is_ack = matches!(frame, Frame::Ack(_));
        let large = size > self.limits.max_frame;
        let is_agent = self.session(id).is_some_and(Session::is_agent);
        match frame {
            Frame::Message(message) => self.on_message(turn, id, message, large)?,
            _ if large => self.tell_too_large(turn, id, 0),
            Frame::PresenceRequest(_) => self.on_presence_request(turn, id),
            Frame::Ack(ack) => self.on_ack(turn, id, ack.delivery)?,
            Frame::Authorize(authorize) if is_agent => self.on_authorize(turn, id, &authorize)?,
            Frame::PairingStart(start) if is_agent => self.on_pairing_start(turn, id, &start)?,
            Frame::PairingStop(_) if is_agent => self.on_pairing_stop(id)?,
            _ => self.tell_error(turn, id, ErrorCode::BadRequest, "not for this role", 0),
        }
        if !is_ack {
            self.judge_acks(turn, id);
        }
        Ok(())
    }

    /// Storage failed: what is remembered of the rows may be wrong, and a deadline may be missing among them. Whoever's event
    /// it was is to redial.
    fn report(&mut self, turn: Turn<'_>, error: SqlError) {
        if self.known_space().is_some() {
            self.retry_alarm(turn);
        }
        self.cache = Cache::default();
        // What was reported failed may have been done: who belongs is to be checked again.
        self.checked = false;
        self.outputs.push_back(Output::Fault { error });
    }

    /// Saves what changed and asks for the next timer.
    fn finish(&mut self, turn: Turn<'_>) {
        self.sent.clear();
        for id in std::mem::take(&mut self.dirty) {
            if let Some(conn) = self.conns.get(&id) {
                let bytes = attachment::encode(id, conn).into();
                self.outputs.push_back(Output::Attach { conn: id, bytes });
            }
        }
        let next = self.next_timer(turn);
        let pending = self.timer.filter(|pending| *pending > turn.now);
        // One that fires too early is harmless, so a later wish waits for it.
        let stays = match (pending, next) {
            (Some(pending), Some(next)) => pending <= next,
            (pending, next) => pending == next,
        };
        if !stays {
            self.outputs.push_back(Output::Timer { at_ms: next });
        }
        self.timer = if stays { pending } else { next };
    }

    /// A member's connection.
    fn session(&self, id: ConnId) -> Option<&Session> {
        match &self.conns.get(&id)?.phase {
            Phase::Member(session) => Some(session),
            Phase::Challenged { .. } | Phase::Pipe(_) => None,
        }
    }

    fn session_mut(&mut self, id: ConnId) -> Option<&mut Session> {
        match &mut self.conns.get_mut(&id)?.phase {
            Phase::Member(session) => Some(session),
            Phase::Challenged { .. } | Phase::Pipe(_) => None,
        }
    }
}

fn subject(input: &Input) -> Option<ConnId> {
    match input {
        Input::Opened { conn, .. } | Input::Frame { conn, .. } | Input::Text { conn } | Input::Closed { conn, .. } => {
            Some(*conn)
        }
        Input::Alarm | Input::Wake | Input::Pushed { .. } => None,
    }
}
