//! How pipes come about, for both sides: one table of negotiations, without I/O.
//!
//! # Contract
//!
//! As with [`Peer`](crate::peer::Peer): one call, then [`Pipes::poll`] until it is empty, then the next input or
//! [`Pipes::deadline`]. Times are milliseconds of a monotonic clock, random bytes are handed in.
//!
//! ```text
//! while let Some(output) = pipes.poll() {
//!     match output {
//!         PipeOutput::Send { to, connection, signal } => {
//!             let sent = peer.send_signal(now, &to, &signal);
//!             pipes.on_sent(&connection, sent);                    // and on_send_failed with Event::SendFailed
//!         }
//!         PipeOutput::Invited { connection, .. } => …,             // → accept, reject or ignore, within 30 s
//!         PipeOutput::Opened(agreed) => …,                         // dial the relay
//!         PipeOutput::Failed { connection, why } => …,
//!     }
//! }
//! ```
//!
//! # Rules
//!
//! * Each connection id ends in exactly one of `Opened`, `Failed` and silence after [`Pipes::reject`] or [`Pipes::ignore`].
//! * A signal counts only from the partner that the negotiation is with. A late one, a second answer and an invitation with
//!   an id that is or was in use change nothing.
//! * Without a consumer ([`Pipes::set_listening`]) invitations are rejected; with one, what to make of a stream type is the
//!   application's decision, and ignoring is the answer to an unknown one.
//! * At most 32 negotiations with a partner and 256 in all.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use zeroize::Zeroizing;

use super::msgpack::PipeDecodeError;
use super::signal::{Accept, Handshake, Invite, Reject, Signal, UNCOMPRESSED};
use crate::crypto::{PipeCipher, PipeEnd, PipeSecret};
use crate::ids::{ConnectionId, Ed25519Public, X25519Public};
use crate::limits::{PIPE_MAX_OPENING, PIPE_MAX_OPENING_ALL, PIPE_MAX_SIGNAL, PIPE_OPEN_MS};
use crate::peer::{Millis, SendError, SendFailure, SendId};
use crate::wire::ErrorCode;

/// Ids that are remembered after their negotiation, so that an invitation cannot use one again.
const REMEMBERED: usize = 256;

/// What the application does next.
#[derive(Debug)]
pub enum PipeOutput {
    /// Send this live, then report with [`Pipes::on_sent`].
    Send {
        /// To whom.
        to: Ed25519Public,
        /// The pipe that it is about.
        connection: ConnectionId,
        /// For [`Peer::send_signal`](crate::peer::Peer::send_signal).
        signal: Vec<u8>,
    },
    /// A partner asks for a pipe.
    Invited {
        /// Who asks.
        from: Ed25519Public,
        /// For the answer.
        connection: ConnectionId,
        /// What it is for.
        stream_type: String,
        /// The application's own.
        headers: BTreeMap<String, String>,
    },
    /// Both sides agree: dial the relay.
    Opened(Agreed),
    /// No pipe comes of it, of either side's.
    Failed {
        /// Which.
        connection: ConnectionId,
        /// Why.
        why: PipeFailure,
    },
}

/// What two members have agreed on.
#[derive(Debug)]
pub struct Agreed {
    /// The pipe.
    pub connection: ConnectionId,
    /// Who is at the other end.
    pub partner: Ed25519Public,
    /// Its frames.
    pub cipher: PipeCipher,
}

/// Why a pipe did not come about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PipeFailure {
    /// The partner is not connected.
    Offline,
    /// This side could not send.
    NotSent(SendError),
    /// The relay refused the question. `None`: with a code of another relay.
    Refused(Option<ErrorCode>),
    /// The partner declined, in its words.
    Rejected(String),
    /// No answer within 30 s, of the partner or, if it was invited, of the application.
    NoAnswer,
    /// The partner's side of the agreement cannot be used.
    Unusable(&'static str),
    /// The partner is none any more.
    Forgotten,
}

impl fmt::Display for PipeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Offline => f.write_str("the other side is not connected"),
            Self::NotSent(error) => write!(f, "could not ask: {error}"),
            Self::Refused(Some(code)) => write!(f, "the relay refused: {code}"),
            Self::Refused(None) => f.write_str("the relay refused"),
            Self::Rejected(reason) => {
                let reason: String = reason.chars().take(200).collect();
                write!(f, "declined: {}", reason.escape_debug())
            }
            Self::NoAnswer => write!(f, "no answer within {} s", PIPE_OPEN_MS / 1000),
            Self::Unusable(what) => write!(f, "no agreement: {what}"),
            Self::Forgotten => f.write_str("the other side is not authorized any more"),
        }
    }
}

/// Why [`Pipes::open`] did not even ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenPipeError {
    /// Too many negotiations.
    #[error("too many pipes are being opened at once")]
    TooMany,
    /// Stream type and headers do not fit a signal.
    #[error("the request for a pipe is too large: {got} bytes, at most {PIPE_MAX_SIGNAL}")]
    TooLarge {
        /// The signal's size, bytes.
        got: usize,
    },
    /// The random bytes are those of an earlier pipe.
    #[error("the random bytes repeat")]
    Repeated,
}

/// The invitation is gone: timed out, withdrawn, answered, or its partner forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the invitation is gone")]
pub struct InvitationGone;

/// Why a received signal changed nothing: for counters and logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignalDrop {
    /// Not a signal.
    #[error("a malformed pipe signal: {0}")]
    Malformed(#[from] PipeDecodeError),
    /// An invitation with an id that is or was in use.
    #[error("an invitation to a pipe that exists already")]
    Known,
    /// An answer to nothing, or to what has ended.
    #[error("a late pipe signal")]
    Late,
    /// About another partner's pipe.
    #[error("a signal about another's pipe")]
    Stranger,
}

struct Negotiation {
    partner: Ed25519Public,
    until: Millis,
    state: State,
}

enum State {
    /// Asked the partner.
    Asked { secret: PipeSecret, sent: Option<SendId> },
    /// The partner asks the application.
    Invited { key: X25519Public },
}

/// All negotiations of this peer; see the [module](self) for the contract.
#[derive(Default)]
pub struct Pipes {
    listening: bool,
    open: BTreeMap<ConnectionId, Negotiation>,
    used: VecDeque<ConnectionId>,
    out: VecDeque<PipeOutput>,
}

impl Pipes {
    /// No negotiation, and no consumer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether anything here takes pipes at all; if not, invitations are rejected at once.
    pub fn set_listening(&mut self, listening: bool) {
        self.listening = listening;
    }

    /// The next thing to do; drain it after every call.
    pub fn poll(&mut self) -> Option<PipeOutput> {
        self.out.pop_front()
    }

    /// When [`on_timeout`](Self::on_timeout) is due; `None`: never, as things are.
    pub fn deadline(&self) -> Option<Millis> {
        self.open.values().map(|negotiation| negotiation.until).min()
    }

    /// How many negotiations there are.
    pub fn negotiations(&self) -> usize {
        self.open.len()
    }

    // The opener.

    /// Asks a partner for a pipe: `Send` now, `Opened` or `Failed` within 30 s. `random` becomes the connection id and the
    /// ephemeral secret; it is never used again.
    pub fn open(
        &mut self,
        now: Millis,
        to: Ed25519Public,
        stream_type: &str,
        headers: BTreeMap<String, String>,
        random: &Zeroizing<[u8; 64]>,
    ) -> Result<ConnectionId, OpenPipeError> {
        let (id, secret) = halves(random);
        let (connection, secret) = (ConnectionId::new(id), PipeSecret::new(secret));
        if self.is_known(&connection) {
            return Err(OpenPipeError::Repeated);
        }
        if self.is_full(&to) {
            return Err(OpenPipeError::TooMany);
        }
        let invite = Signal::Invite(Invite {
            connection,
            handshake: Handshake::X25519(secret.public()),
            stream_type: stream_type.to_owned(),
            compress: vec![UNCOMPRESSED.to_owned()],
            headers,
        });
        let signal = invite.encode();
        if signal.len() > PIPE_MAX_SIGNAL {
            return Err(OpenPipeError::TooLarge { got: signal.len() });
        }
        self.begin(now, connection, to, State::Asked { secret, sent: None });
        self.out.push_back(PipeOutput::Send { to, connection, signal });
        Ok(connection)
    }

    /// What became of a [`PipeOutput::Send`].
    pub fn on_sent(&mut self, connection: &ConnectionId, result: Result<SendId, SendError>) {
        let Some(Negotiation { state: State::Asked { sent, .. }, .. }) = self.open.get_mut(connection) else { return };
        match result {
            Ok(id) => *sent = Some(id),
            Err(error) => self.fail(*connection, PipeFailure::NotSent(error)),
        }
    }

    /// A signal did not get through. Ids of other messages are harmless.
    pub fn on_send_failed(&mut self, id: SendId, why: &SendFailure) {
        let asked = self.open.iter().find(|(_, negotiation)| match &negotiation.state {
            State::Asked { sent, .. } => *sent == Some(id),
            State::Invited { .. } => false,
        });
        if let Some(connection) = asked.map(|(connection, _)| *connection) {
            self.fail(
                connection,
                match why {
                    SendFailure::Offline => PipeFailure::Offline,
                    SendFailure::Refused(code) => PipeFailure::Refused(*code),
                },
            );
        }
    }

    /// A live message did not reach this partner, says a relay that cannot say which.
    pub fn on_offline(&mut self, partner: &Ed25519Public) {
        self.fail_all(&PipeFailure::Offline, |negotiation| {
            negotiation.partner == *partner && matches!(negotiation.state, State::Asked { .. })
        });
    }

    // The invited side.

    /// Agrees to an invitation: `Send`, then `Opened`. `secret` is 32 random bytes. The partner's key may turn out to be of no
    /// use: then the invitation is rejected, and `Failed` follows.
    pub fn accept(&mut self, connection: &ConnectionId, secret: &Zeroizing<[u8; 32]>) -> Result<(), InvitationGone> {
        let (partner, key) = self.take_invitation(connection)?;
        let secret = PipeSecret::new(**secret);
        let handshake = Handshake::X25519(secret.public());
        let Ok(cipher) = secret.agree(&key, *connection, PipeEnd::Responder) else {
            self.send_reject(partner, *connection, "unusable key");
            self.fail(*connection, PipeFailure::Unusable("the opener's key"));
            return Ok(());
        };
        let accept = Accept { connection: *connection, handshake, compress: UNCOMPRESSED.to_owned() };
        self.send(partner, &Signal::Accept(accept));
        self.out.push_back(PipeOutput::Opened(Agreed { connection: *connection, partner, cipher }));
        Ok(())
    }

    /// Declines an invitation; the reason is shown to people.
    pub fn reject(&mut self, connection: &ConnectionId, reason: &str) -> Result<(), InvitationGone> {
        let (partner, _) = self.take_invitation(connection)?;
        self.send_reject(partner, *connection, reason);
        Ok(())
    }

    /// Leaves an invitation unanswered: its stream type is unknown here.
    pub fn ignore(&mut self, connection: &ConnectionId) -> Result<(), InvitationGone> {
        self.take_invitation(connection).map(|_| ())
    }

    // Both.

    /// A signal arrived, sealed by `from`.
    pub fn on_signal(&mut self, now: Millis, from: Ed25519Public, signal: &[u8]) -> Result<(), SignalDrop> {
        match Signal::decode(signal)? {
            Signal::Invite(invite) => self.on_invite(now, from, invite),
            Signal::Accept(accept) => self.on_accept(from, &accept),
            Signal::Reject(reject) => self.on_reject(from, reject),
        }
    }

    /// [`deadline`](Self::deadline) has come; harmless at any other time.
    pub fn on_timeout(&mut self, now: Millis) {
        self.fail_all(&PipeFailure::NoAnswer, |negotiation| now >= negotiation.until);
    }

    /// The partner was revoked: all its negotiations fail, and nothing more is sent to it.
    pub fn forget(&mut self, partner: &Ed25519Public) {
        self.fail_all(&PipeFailure::Forgotten, |negotiation| negotiation.partner == *partner);
        self.out.retain(|output| !matches!(output, PipeOutput::Send { to, .. } if to == partner));
    }

    fn on_invite(&mut self, now: Millis, from: Ed25519Public, invite: Invite) -> Result<(), SignalDrop> {
        let connection = invite.connection;
        if self.is_known(&connection) {
            return Err(SignalDrop::Known);
        }
        let refusal = match invite.handshake {
            _ if !self.listening => "no pipes here",
            Handshake::Unknown { .. } => "unknown suite",
            _ if !invite.compress.iter().any(|form| form == UNCOMPRESSED) => "only uncompressed pipes here",
            _ if self.is_full(&from) => "too many pipes are being opened",
            Handshake::X25519(key) => {
                self.begin(now, connection, from, State::Invited { key });
                let Invite { stream_type, headers, .. } = invite;
                self.out.push_back(PipeOutput::Invited { from, connection, stream_type, headers });
                return Ok(());
            }
        };
        self.send_reject(from, connection, refusal);
        Ok(())
    }

    fn on_accept(&mut self, from: Ed25519Public, accept: &Accept) -> Result<(), SignalDrop> {
        let connection = accept.connection;
        let negotiation = self.open.remove(&connection).ok_or(SignalDrop::Late)?;
        let secret = match negotiation.state {
            State::Asked { secret, .. } if negotiation.partner == from => secret,
            state => {
                self.open.insert(connection, Negotiation { state, ..negotiation });
                return Err(SignalDrop::Stranger);
            }
        };
        let agreed = match &accept.handshake {
            Handshake::Unknown { .. } => Err("another suite than asked for"),
            _ if accept.compress != UNCOMPRESSED => Err("another compression than asked for"),
            Handshake::X25519(key) => {
                secret.agree(key, connection, PipeEnd::Initiator).map_err(|_| "the other side's key")
            }
        };
        match agreed {
            Ok(cipher) => {
                self.remember(connection);
                self.out.push_back(PipeOutput::Opened(Agreed { connection, partner: from, cipher }));
            }
            Err(what) => self.fail(connection, PipeFailure::Unusable(what)),
        }
        Ok(())
    }

    /// The partner declines, or takes its own invitation back.
    fn on_reject(&mut self, from: Ed25519Public, reject: Reject) -> Result<(), SignalDrop> {
        let negotiation = self.open.get(&reject.connection).ok_or(SignalDrop::Late)?;
        if negotiation.partner != from {
            return Err(SignalDrop::Stranger);
        }
        self.fail(reject.connection, PipeFailure::Rejected(reject.reason));
        Ok(())
    }

    fn begin(&mut self, now: Millis, connection: ConnectionId, partner: Ed25519Public, state: State) {
        self.open.insert(connection, Negotiation { partner, until: now + PIPE_OPEN_MS, state });
    }

    fn is_known(&self, connection: &ConnectionId) -> bool {
        self.open.contains_key(connection) || self.used.contains(connection)
    }

    fn is_full(&self, partner: &Ed25519Public) -> bool {
        let with_partner = self.open.values().filter(|negotiation| negotiation.partner == *partner).count();
        with_partner >= PIPE_MAX_OPENING || self.open.len() >= PIPE_MAX_OPENING_ALL
    }

    fn take_invitation(&mut self, connection: &ConnectionId) -> Result<(Ed25519Public, X25519Public), InvitationGone> {
        let Some(Negotiation { partner, state: State::Invited { key }, .. }) = self.open.get(connection) else {
            return Err(InvitationGone);
        };
        let taken = (*partner, *key);
        self.open.remove(connection);
        self.remember(*connection);
        Ok(taken)
    }

    fn send_reject(&mut self, to: Ed25519Public, connection: ConnectionId, reason: &str) {
        self.send(to, &Signal::Reject(Reject { connection, reason: reason.to_owned() }));
    }

    fn send(&mut self, to: Ed25519Public, signal: &Signal) {
        self.out.push_back(PipeOutput::Send { to, connection: signal.connection(), signal: signal.encode() });
    }

    fn fail(&mut self, connection: ConnectionId, why: PipeFailure) {
        self.open.remove(&connection);
        self.remember(connection);
        self.out.push_back(PipeOutput::Failed { connection, why });
    }

    fn fail_all(&mut self, why: &PipeFailure, which: impl Fn(&Negotiation) -> bool) {
        let ended: Vec<ConnectionId> =
            self.open.iter().filter(|(_, negotiation)| which(negotiation)).map(|(connection, _)| *connection).collect();
        for connection in ended {
            self.fail(connection, why.clone());
        }
    }

    fn remember(&mut self, connection: ConnectionId) {
        if self.used.len() == REMEMBERED {
            self.used.pop_front();
        }
        self.used.push_back(connection);
    }
}

impl fmt::Debug for Pipes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipes").field("negotiations", &self.open.len()).finish_non_exhaustive()
    }
}

fn halves(random: &[u8; 64]) -> ([u8; 32], [u8; 32]) {
    let (mut id, mut secret) = ([0; 32], [0; 32]);
    let (first, second) = random.split_at(32);
    id.copy_from_slice(first);
    secret.copy_from_slice(second);
    (id, secret)
}
