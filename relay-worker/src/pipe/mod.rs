//! One end of a pipe as a state machine: it opens no socket, reads no clock, draws no randomness, awaits nothing (pipe
//! protocol, Data plane and Backpressure).
//!
//! # Contract
//!
//! One input, then a full drain. An end has three sockets: its *client's*, a *control* socket to the namespace, and, once
//! the two sides of the pipe have found each other, the *link*, straight to the other end. The bytes of a message never come
//! here, only its size; the outputs say what becomes of the message that the input was about.
//!
//! ```text
//! let mut end = End::new(limits, now_ms, challenge, namespace_of_the_route);
//! loop {
//!     while let Some(output) = end.poll() { ... }        // see [`Output`]
//!     end.handle(now_ms, buffered, input);               // see [`Input`]
//! }
//! ```
//!
//! * `buffered` are the bytes that wait in the sockets before this input's message is sent on.
//! * What was sent before a close arrives before it: the sockets see to that.
//! * [`Output::Timer`] asks for [`Input::Timer`]; one too many, or too early, is harmless.
//! * Nothing of it survives the object. Whoever loses an end's memory must close its sockets.

mod flow;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use skald_common::ids::{ChallengeNonce, ConnectionId, NamespaceId};
use skald_common::limits::PIPE_MAX_AUTH;
use skald_common::pipe::auth::{PAUSE, RESUME, encode_challenge};
use skald_common::pipe::{PipeAuth, PipeClose};

use crate::engine::{EndId, Limits};
use flow::{Brake, Queue, Rate};

/// How much longer than the namespace an end waits for the other side, milliseconds: the namespace may have forgotten.
const GRACE: u64 = 2000;
/// How long a closed client may take nothing of what waits for it, or leave the close unanswered, milliseconds.
const CLOSING: u64 = 30_000;
/// Most bytes that may wait anywhere.
const MAX_WAITING: u64 = 32 * 1024 * 1024;
/// How soon to look again at a socket that drains, at first and at last, milliseconds.
const POLL_SOON: u64 = 2;
const POLL_LATER: u64 = 200;
/// The same for a client that is to answer a close, milliseconds.
const POLL_CLOSING: u64 = 1000;

/// What happened.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// The client's first message, while [`End::awaits_auth`] and if it is not larger than an answer may be.
    Auth(&'a [u8]),
    /// A message from the client.
    Message {
        /// Its size, bytes.
        size: u64,
    },
    /// Text from the client.
    Text,
    /// The client has closed, or its connection broke (1006).
    ClientClosed {
        /// The close code.
        code: u16,
    },
    /// What the namespace tells: the other end, or nothing if the other side is gone.
    Told(&'a [u8]),
    /// The namespace has closed the control socket, or it broke.
    ControlClosed {
        /// The close code.
        code: u16,
    },
    /// The control socket is there.
    Joined,
    /// The link is there: dialled, or accepted after [`End::expects`].
    Linked,
    /// The namespace, or the other end, could not be reached.
    Unreachable,
    /// A message from the other end.
    LinkMessage {
        /// Its size, bytes.
        size: u64,
    },
    /// Text from the other end.
    LinkText(&'a str),
    /// The other end has closed, or the link broke.
    LinkClosed {
        /// The close code.
        code: u16,
    },
    /// The timer fired.
    Timer,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send this binary message to the client.
    Challenge(Vec<u8>),
    /// Open the control socket to the namespace of this answer, which is verified.
    Join(Box<PipeAuth>),
    /// Open the link to this end, for this pipe.
    Dial {
        /// The object.
        end: EndId,
        /// The pipe.
        connection: ConnectionId,
    },
    /// Hold this input's message.
    Keep,
    /// Send all that is held, in order, to the other end.
    Release,
    /// Send this input's message on: the client's to the other end, the other end's to the client.
    Pass,
    /// Send this text to the client.
    Tell(&'static str),
    /// Send this text to the other end.
    Signal(&'static str),
    /// Take no event of this object for so long.
    Brake {
        /// Milliseconds.
        ms: u64,
    },
    /// Close all sockets, after what was sent.
    Close {
        /// Close code.
        code: u16,
        /// Close reason.
        reason: &'static str,
    },
    /// Cut all sockets: the client takes nothing any more.
    Abort,
    /// Wake the end then, in place of the timer that is pending.
    Timer {
        /// Unix milliseconds; `None`: no timer is needed.
        at_ms: Option<u64>,
    },
}

/// Bytes written to the sockets and not yet on their way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Buffered {
    /// To the client.
    pub client: u64,
    /// To the other end.
    pub link: u64,
}

/// One end. See the module's contract.
pub struct End {
    limits: Limits,
    phase: Phase,
    /// The client obeys `pause` and `resume`.
    flow: bool,
    /// To the client, and to the other end.
    down: Queue,
    up: Queue,
    /// The other end has said `pause`.
    held_back: bool,
    /// The client may not send: what it was told, or how it is braked.
    brake: Option<Brake>,
    rate: Rate,
    /// When a message last passed in either direction, or the other end gave a sign of life.
    active_at: u64,
    /// When the other end was last told `pause`.
    paused_at: u64,
    /// How soon to look at the queues again.
    poll: u64,
    /// When the pending timer fires.
    timer: Option<u64>,
    outputs: VecDeque<Output>,
}

enum Phase {
    /// The client has been sent a challenge. On a direct route the namespace is known.
    Challenged { nonce: ChallengeNonce, namespace: Option<NamespaceId>, since: u64 },
    /// The other side is to come; what the client sends is held for it. A client that leaves while this end dials is not
    /// forgotten before the link is there.
    Pending { connection: ConnectionId, since: u64, dialling: bool, left: Option<u16> },
    /// Linked.
    Open,
    /// Everything is closed; the client has not answered.
    Closing,
    /// The client is gone too.
    Over,
}

impl End {
    /// The end of a client whose socket has just been accepted. `challenge`: 32 fresh random bytes; `namespace`: the one
    /// that the route names, if it does.
    pub fn new(limits: Limits, now_ms: u64, challenge: ChallengeNonce, namespace: Option<NamespaceId>) -> Self {
        let mut end = Self {
            rate: Rate::new(&limits, now_ms),
            limits,
            phase: Phase::Challenged { nonce: challenge, namespace, since: now_ms },
            flow: false,
            down: Queue::default(),
            up: Queue::default(),
            held_back: false,
            brake: None,
            active_at: now_ms,
            paused_at: 0,
            poll: POLL_SOON,
            timer: None,
            outputs: VecDeque::new(),
        };
        end.outputs.push_back(Output::Challenge(encode_challenge(&challenge)));
        end.arm(now_ms);
        end
    }

    /// Whether the client's next message is its answer to the challenge, to be handed in as [`Input::Auth`].
    pub const fn awaits_auth(&self, size: u64) -> bool {
        matches!(self.phase, Phase::Challenged { .. }) && size <= PIPE_MAX_AUTH as u64
    }

    /// Whether another end may link to this one for this pipe. Once: [`Input::Linked`] must follow.
    pub fn expects(&self, other: &ConnectionId) -> bool {
        matches!(&self.phase, Phase::Pending { connection, dialling: false, .. } if connection == other)
    }

    /// The next thing to do; `None` when there is none.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Takes one input in. Drain [`End::poll`] afterwards.
    pub fn handle(&mut self, now_ms: u64, buffered: Buffered, input: Input<'_>) {
        match input {
            Input::Auth(bytes) => self.on_auth(now_ms, bytes),
            Input::Message { size } => self.on_message(now_ms, size),
            Input::Text => self.close(now_ms, PipeClose::BadAuth),
            Input::ClientClosed { code } => self.on_client_closed(now_ms, PipeClose::passed_on(code)),
            Input::Told(bytes) => self.on_told(now_ms, bytes),
            Input::Joined => self.close_late(),
            Input::Linked => self.on_linked(now_ms),
            Input::Unreachable => self.close(now_ms, PipeClose::GoingAway),
            Input::LinkMessage { size } if self.is_open() => {
                self.active_at = now_ms;
                self.down.give(size);
                self.outputs.push_back(Output::Pass);
            }
            Input::LinkText(text) if self.is_open() => {
                self.active_at = now_ms;
                match text {
                    PAUSE => self.held_back = true,
                    RESUME => self.held_back = false,
                    _ => {}
                }
            }
            Input::LinkMessage { .. } | Input::LinkText(_) => {}
            Input::ControlClosed { code } | Input::LinkClosed { code } => {
                let code = PipeClose::passed_on(code);
                self.close_with(now_ms, code, PipeClose::from_code(code).map_or("", PipeClose::reason));
            }
            Input::Timer => self.timer = None,
        }
        self.look(now_ms, buffered);
        self.expire(now_ms);
        self.arm(now_ms);
    }

    const fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    fn on_auth(&mut self, now: u64, bytes: &[u8]) {
        let Phase::Challenged { nonce, namespace, .. } = &self.phase else { return };
        let refusal = match PipeAuth::decode(bytes) {
            Err(_) => PipeClose::BadAuth,
            Ok(auth) if !auth.verify(nonce) => PipeClose::BadSignature,
            Ok(auth) if namespace.is_some_and(|namespace| namespace != auth.namespace) => PipeClose::NotMember,
            Ok(auth) => {
                self.flow = auth.flow;
                self.phase = Phase::Pending { connection: auth.connection, since: now, dialling: false, left: None };
                self.outputs.push_back(Output::Join(Box::new(auth)));
                return;
            }
        };
        self.close(now, refusal);
    }

    fn on_message(&mut self, now: u64, size: u64) {
        match self.phase {
            Phase::Challenged { .. } => return self.close(now, PipeClose::BadAuth),
            Phase::Pending { .. } | Phase::Open if size > self.limits.pipe_frame => {
                return self.close(now, PipeClose::TooLarge);
            }
            Phase::Pending { .. } | Phase::Open if !self.rate.admits(now, size) => {
                return self.close(now, PipeClose::TooMany);
            }
            Phase::Pending { .. } => {
                self.up.give(size);
                self.outputs.push_back(Output::Keep);
            }
            Phase::Open => {
                self.active_at = now;
                self.up.give(size);
                self.outputs.push_back(Output::Pass);
            }
            Phase::Closing | Phase::Over => return,
        }
        if let Some(brake) = &mut self.brake
            && !self.flow
        {
            self.outputs.push_back(Output::Brake { ms: brake.next() });
        }
    }

    fn on_told(&mut self, now: u64, bytes: &[u8]) {
        let Phase::Pending { connection, dialling, .. } = &mut self.phase else { return };
        match EndId::from_bytes(bytes) {
            Some(end) => {
                *dialling = true;
                self.outputs.push_back(Output::Dial { end, connection: *connection });
            }
            None => self.close(now, PipeClose::GoingAway),
        }
    }

    fn on_linked(&mut self, now: u64) {
        let Phase::Pending { left, .. } = self.phase else { return self.close_late() };
        self.phase = Phase::Open;
        self.active_at = now;
        self.up.give_again();
        self.outputs.push_back(Output::Release);
        if let Some(code) = left {
            self.on_client_closed(now, code);
        }
    }

    fn on_client_closed(&mut self, now: u64, code: u16) {
        if let Phase::Pending { dialling: true, left, .. } = &mut self.phase {
            *left = Some(code);
            return;
        }
        self.close_with(now, code, "");
        self.phase = Phase::Over;
    }

    // --- flow ---

    /// Looks at what waits, and says `pause` and `resume` where that is due.
    fn look(&mut self, now: u64, buffered: Buffered) {
        let is_pending = matches!(self.phase, Phase::Pending { .. });
        let was_full = self.down.is_full();
        let down = self.down.look(now, buffered.client);
        let up = self.up.look(now, if is_pending { self.up.held() } else { buffered.link });
        if down.max(up) > MAX_WAITING && (is_pending || self.is_open()) {
            return self.close(now, PipeClose::PeerTooSlow);
        }
        match (was_full, self.down.is_full()) {
            _ if !self.is_open() => {}
            (false, true) => self.signal(now, PAUSE),
            (true, false) => self.signal(now, RESUME),
            (true, true) if self.is_sign_of_life_due(now) => self.signal(now, PAUSE),
            _ => {}
        }
        self.restrain();
    }

    /// A client that reads slowly keeps the other end silent for long: that is to know that this one lives.
    const fn is_sign_of_life_due(&self, now: u64) -> bool {
        now >= self.paused_at.saturating_add(self.limits.pipe_idle / 4) && self.down.moved_at() > self.paused_at
    }

    fn signal(&mut self, now: u64, text: &'static str) {
        self.paused_at = now;
        self.poll = POLL_SOON;
        self.outputs.push_back(Output::Signal(text));
    }

    /// Whether the client may send, and that it knows.
    fn restrain(&mut self) {
        let may_send = !(self.held_back || self.up.is_full());
        match (&self.brake, may_send, &self.phase) {
            (None, false, Phase::Pending { .. } | Phase::Open) => self.brake = Some(Brake::default()),
            (Some(_), true, Phase::Pending { .. } | Phase::Open) => self.brake = None,
            _ => return,
        }
        self.poll = POLL_SOON;
        if self.flow {
            self.outputs.push_back(Output::Tell(if may_send { RESUME } else { PAUSE }));
        }
    }

    // --- the end ---

    fn close(&mut self, now: u64, why: PipeClose) {
        self.close_with(now, why.code(), why.reason());
    }

    fn close_with(&mut self, now: u64, code: u16, reason: &'static str) {
        if !matches!(self.phase, Phase::Closing | Phase::Over) {
            self.phase = Phase::Closing;
            self.down.restart(now);
            self.outputs.push_back(Output::Close { code, reason });
        }
    }

    /// A socket that was on its way has come too late.
    fn close_late(&mut self) {
        if matches!(self.phase, Phase::Closing | Phase::Over) {
            let why = PipeClose::GoingAway;
            self.outputs.push_back(Output::Close { code: why.code(), reason: why.reason() });
        }
    }

    /// What is overdue.
    fn expire(&mut self, now: u64) {
        let Some((_, end)) = self.deadline().filter(|(at, _)| now >= *at) else { return };
        if let Some(why) = end {
            self.close(now, why);
        } else {
            self.phase = Phase::Over;
            self.outputs.push_back(Output::Abort);
        }
    }

    /// Until when this may go on as it is, and how it ends then; without a code if everything is closed already.
    fn deadline(&self) -> Option<(u64, Option<PipeClose>)> {
        let after = |since: u64, wait: u64| since.saturating_add(wait);
        match self.phase {
            Phase::Challenged { since, .. } => {
                Some((after(since, self.limits.challenge_timeout), Some(PipeClose::Idle)))
            }
            Phase::Pending { since, .. } => {
                Some((after(since, self.limits.pipe_pending + GRACE), Some(PipeClose::Mismatch)))
            }
            Phase::Open => {
                let stalled = [&self.down, &self.up].into_iter().filter_map(Queue::full_and_still_since).min();
                Some(stalled.map_or((after(self.active_at, self.limits.pipe_idle), Some(PipeClose::Idle)), |since| {
                    (after(since, self.limits.pipe_stall), Some(PipeClose::PeerTooSlow))
                }))
            }
            Phase::Closing => Some((after(self.down.moved_at(), CLOSING), None)),
            Phase::Over => None,
        }
    }

    /// Asks for the timer that is needed next.
    fn arm(&mut self, now: u64) {
        let deadline = self.deadline().map(|(at, _)| at);
        let draining = match self.phase {
            Phase::Open if self.down.is_full() || self.up.is_full() => Some(self.poll),
            Phase::Closing => Some(POLL_CLOSING),
            _ => None,
        };
        let pending = self.timer.filter(|at| *at > now);
        if pending.is_none() {
            self.poll = (self.poll * 2).min(POLL_LATER);
        }
        let poll = draining.map(|wait| now.saturating_add(wait));
        let next = deadline.into_iter().chain(poll).min();
        // One that fires too early is harmless, so a later wish waits for it.
        if let (Some(pending), Some(next)) = (pending, next)
            && pending <= next
        {
            return;
        }
        if next != pending {
            self.outputs.push_back(Output::Timer { at_ms: next });
        }
        self.timer = next;
    }
}
