//! Pipes: byte streams between this phone and its agent (pipe protocol).
//!
//! The phone only opens them. An open is asked for at once where there is a connection, and waits for one where there is
//! not: while the network is away, or another command has the turn. It is asked for once more if the connection was lost
//! before the answer, and given up 30 s after it was wanted. What came of it is a [`PhoneEvent`]; the pipe itself lives on a socket of
//! its own, and has no need of the [`Phone`].

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use skald_common::crypto::Identity;
use skald_common::ids::{ConnectionId, Ed25519Public, NamespaceId};
use skald_common::limits::{PIPE_MAX_OPENING, PIPE_OPEN_MS};
use skald_common::peer::{Millis, SendError, SendFailure, SendId};
use skald_common::pipe::{Agreed, OpenPipeError, PipeOutput, Pipes};
use skald_link::pipe::{Pipe, PipeError, connect};

use super::pair::system_random;
use super::{Line, Phone, PhoneError, PhoneEvent};

pub use skald_common::pipe::PipeFailure;

/// Opens that may wait for a connection.
const MAX_WAITING: usize = 128;

/// Names a pipe that is being opened; unique for the life of the [`Phone`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PipeId(u64);

/// A pipe that both sides have agreed on. It has 30 s to be [connected](Self::connect), at either end.
pub struct OpenedPipe {
    identity: Identity,
    namespace: NamespaceId,
    url: String,
    agreed: Agreed,
}

impl OpenedPipe {
    /// Joins the pipe by way of the relay. Needs a tokio runtime, and nothing of the [`Phone`].
    pub async fn connect(self) -> Result<Pipe, PipeError> {
        connect(&self.url, &self.identity, self.namespace, self.agreed).await
    }
}

impl fmt::Debug for OpenedPipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedPipe").field("connection", &self.agreed.connection).finish_non_exhaustive()
    }
}

/// Why a pipe was not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotOpened {
    /// There was no connection to the relay in time.
    NoConnection,
    /// Another command had the connection all the while.
    Busy,
    /// Too many are being opened.
    TooMany,
    /// What the agent or the relay said.
    Failed(PipeFailure),
}

impl fmt::Display for NotOpened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoConnection => f.write_str("no connection to the relay"),
            Self::Busy => f.write_str("another command of this profile is using the connection"),
            Self::TooMany => f.write_str("too many pipes are being opened at once"),
            Self::Failed(PipeFailure::Offline) => f.write_str("the agent is offline"),
            Self::Failed(PipeFailure::NoAnswer) => {
                f.write_str("the agent did not answer; does it know of pipes, and is its reverse proxy on?")
            }
            Self::Failed(PipeFailure::Rejected(reason)) => {
                write!(f, "the agent says: {}", crate::model::text::short_line(reason, 200))
            }
            Self::Failed(other) => other.fmt(f),
        }
    }
}

/// A pipe that somebody waits for.
#[derive(Debug)]
struct Wanted {
    id: PipeId,
    stream_type: String,
    headers: BTreeMap<String, String>,
    until: Millis,
}

/// The pipes that are being opened.
#[derive(Debug, Default)]
pub(super) struct Opening {
    table: Pipes,
    last_id: u64,
    waiting: VecDeque<Wanted>,
    asked: BTreeMap<ConnectionId, Wanted>,
}

impl Phone {
    /// Wants a pipe to the agent. [`PhoneEvent::PipeOpened`] or [`PhoneEvent::PipeFailed`] follows within 30 s, as long as
    /// events are awaited.
    pub fn open_pipe(&mut self, stream_type: &str, headers: BTreeMap<String, String>) -> Result<PipeId, PhoneError> {
        let opening = &mut self.opening;
        opening.last_id += 1;
        let id = PipeId(opening.last_id);
        if opening.waiting.len() >= MAX_WAITING {
            self.events.push_back(PhoneEvent::PipeFailed { id, why: NotOpened::TooMany });
            return Ok(id);
        }
        let until = self.clock.now() + PIPE_OPEN_MS;
        opening.waiting.push_back(Wanted { id, stream_type: stream_type.to_owned(), headers, until });
        self.move_pipes()?;
        Ok(id)
    }

    /// When [`pipes_timeout`](Self::pipes_timeout) is due.
    pub(super) fn pipes_deadline(&self) -> Option<Millis> {
        let Opening { table, waiting, asked, .. } = &self.opening;
        waiting.iter().chain(asked.values()).map(|wanted| wanted.until).chain(table.deadline()).min()
    }

    pub(super) fn pipes_timeout(&mut self) -> Result<(), PhoneError> {
        let now = self.clock.now();
        let Opening { table, waiting, asked, .. } = &mut self.opening;
        table.on_timeout(now);
        // An agent that still answers one of these finds nobody at the relay.
        let unanswered = asked.extract_if(.., |_, wanted| wanted.until <= now);
        let no_answer = NotOpened::Failed(PipeFailure::NoAnswer);
        let mut failed: Vec<_> = unanswered.map(|(_, wanted)| (wanted.id, no_answer.clone())).collect();
        let no_connection = if self.line == Line::Aside { NotOpened::Busy } else { NotOpened::NoConnection };
        waiting.retain(|wanted| {
            let late = wanted.until <= now;
            failed.extend(late.then(|| (wanted.id, no_connection.clone())));
            !late
        });
        self.events.extend(failed.into_iter().map(|(id, why)| PhoneEvent::PipeFailed { id, why }));
        self.move_pipes()
    }

    /// The agent's signal.
    pub(super) fn on_pipe_signal(&mut self, from: Ed25519Public, signal: &[u8]) -> Result<(), PhoneError> {
        // What changes nothing is no news to anybody.
        let _ = self.opening.table.on_signal(self.clock.now(), from, signal);
        self.move_pipes()
    }

    /// A message did not get through; one that has nothing to do with pipes is harmless.
    pub(super) fn pipe_not_sent(&mut self, id: SendId, why: &SendFailure) -> Result<(), PhoneError> {
        if *why == SendFailure::Offline && !self.is_connected() {
            // Not the agent is away, but this phone.
            self.pipes_disconnected();
            return Ok(());
        }
        self.opening.table.on_send_failed(id, why);
        self.move_pipes()
    }

    /// A live message did not reach the agent, says a relay that does not say which.
    pub(super) fn pipes_offline(&mut self) -> Result<(), PhoneError> {
        self.opening.table.on_offline(&self.account.agent.ed25519);
        self.move_pipes()
    }

    /// Whatever was asked for, and not answered, is asked for anew on the next connection: the answer would be lost.
    pub(super) fn pipes_disconnected(&mut self) {
        let Opening { table, waiting, asked, .. } = &mut self.opening;
        table.forget(&self.account.agent.ed25519);
        // Nothing but what that forgot: everything else was worked off when it came.
        while table.poll().is_some() {}
        for (_, wanted) in std::mem::take(asked) {
            waiting.push_back(wanted);
        }
    }

    /// Asks for what waits, if there is somebody to ask, and works off what the negotiation has to say.
    pub(super) fn move_pipes(&mut self) -> Result<(), PhoneError> {
        let (now, agent) = (self.clock.now(), self.account.agent.ed25519);
        while self.is_connected() && self.opening.table.negotiations() < PIPE_MAX_OPENING {
            let Some(wanted) = self.opening.waiting.pop_front() else { break };
            let (stream_type, headers) = (&wanted.stream_type, wanted.headers.clone());
            let opened = self.opening.table.open(now, agent, stream_type, headers, &system_random()?);
            match opened {
                Ok(connection) => drop(self.opening.asked.insert(connection, wanted)),
                Err(OpenPipeError::TooMany) => {
                    self.opening.waiting.push_front(wanted);
                    break;
                }
                Err(error @ (OpenPipeError::TooLarge { .. } | OpenPipeError::Repeated)) => {
                    let why = NotOpened::Failed(PipeFailure::Unusable(match error {
                        OpenPipeError::TooLarge { .. } => "the request is too large",
                        _ => "the system's random numbers repeat",
                    }));
                    self.events.push_back(PhoneEvent::PipeFailed { id: wanted.id, why });
                }
            }
        }
        while let Some(output) = self.opening.table.poll() {
            match output {
                PipeOutput::Send { to, connection, signal } => {
                    let sent = self.peer.send_signal(now, &to, &signal);
                    self.opening.table.on_sent(&connection, sent);
                }
                PipeOutput::Opened(agreed) => self.pipe_opened(agreed),
                PipeOutput::Failed { connection, why } => self.pipe_failed(&connection, why),
                // Nothing here takes pipes: the table has declined.
                PipeOutput::Invited { .. } => {}
            }
        }
        Ok(())
    }

    fn pipe_opened(&mut self, agreed: Agreed) {
        let Some(wanted) = self.opening.asked.remove(&agreed.connection) else { return };
        let opened = OpenedPipe {
            identity: Identity::new(&self.seed),
            namespace: self.account.agent.namespace(),
            url: self.url.clone(),
            agreed,
        };
        self.events.push_back(PhoneEvent::PipeOpened { id: wanted.id, pipe: Box::new(opened) });
    }

    fn pipe_failed(&mut self, connection: &ConnectionId, why: PipeFailure) {
        let Some(wanted) = self.opening.asked.remove(connection) else { return };
        if why == PipeFailure::NotSent(SendError::NotConnected) {
            self.opening.waiting.push_front(wanted);
            return;
        }
        self.events.push_back(PhoneEvent::PipeFailed { id: wanted.id, why: NotOpened::Failed(why) });
    }
}
