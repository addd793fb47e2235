//! What goes into the engine and what comes out of it.

use std::fmt;

use bytes::Bytes;
use skald_common::ids::{ChallengeNonce, NamespaceId};

use crate::push::{Job, Outcome};
use crate::store::SqlError;

/// Names a connection within one namespace for its life. The glue draws it at random and tells it with [`Input::Opened`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

impl fmt::Debug for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnId({:x})", self.0)
    }
}

/// How a connection came in.
#[derive(Debug, Clone)]
pub enum Origin {
    /// On a direct route: the engine runs the challenge.
    Direct {
        /// 32 fresh random bytes.
        challenge: ChallengeNonce,
        /// The namespace that the path or the host names.
        namespace: NamespaceId,
    },
    /// From the front, on the internal path: the challenge is answered and the signature verified.
    Verified {
        /// The `RelayFrame` with the peer's `Auth`, as it came.
        auth: Bytes,
    },
    /// From an end of a pipe, on the internal path: the challenge is answered and the signature verified.
    Pipe {
        /// The client's answer (`skald_common::pipe::PipeAuth`).
        auth: Bytes,
        /// The object that holds the client.
        end: EndId,
    },
}

/// Names the object that holds one end of a pipe, in the platform's own text form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndId(String);

impl EndId {
    /// Hexadecimal digits of an id.
    const LEN: usize = 64;

    /// From text; `None` if it is no id.
    pub fn parse(text: &str) -> Option<Self> {
        let is_id = text.len() == Self::LEN && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_id.then(|| Self(text.to_owned()))
    }

    /// From the message that told it.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::parse(std::str::from_utf8(bytes).ok()?)
    }

    /// For the message that tells it.
    pub fn to_bytes(&self) -> Bytes {
        Bytes::copy_from_slice(self.0.as_bytes())
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What happened.
#[derive(Debug, Clone)]
pub enum Input {
    /// A socket was accepted.
    Opened {
        /// Unused so far.
        conn: ConnId,
        /// How it came in.
        origin: Origin,
    },
    /// A binary message.
    Frame {
        /// From.
        conn: ConnId,
        /// The whole message.
        bytes: Bytes,
    },
    /// A text message that the platform did not answer itself.
    Text {
        /// From.
        conn: ConnId,
    },
    /// The peer closed, or the socket broke.
    Closed {
        /// Which.
        conn: ConnId,
        /// The peer's close code; 1006 when there was none.
        code: u16,
    },
    /// The persistent alarm fired, on time or not.
    Alarm,
    /// The timer fired.
    Wake,
    /// What came of a push. One that never comes, because its object was dropped, is made up for by the alarm; one that
    /// comes twice or is of no push known here is ignored.
    Pushed {
        /// The job's.
        id: u64,
        /// Its end.
        outcome: Outcome,
    },
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send a binary message.
    Send {
        /// To.
        conn: ConnId,
        /// The whole message.
        bytes: Bytes,
    },
    /// Save with the socket; at most [`MAX_ATTACHMENT`] bytes.
    Attach {
        /// Whose.
        conn: ConnId,
        /// Opaque.
        bytes: Bytes,
    },
    /// Close, after what was sent.
    Close {
        /// Which.
        conn: ConnId,
        /// Close code.
        code: u16,
        /// Close reason.
        reason: &'static str,
    },
    /// Set the persistent alarm, in place of the one that is set.
    WakeAt {
        /// Unix milliseconds.
        at_ms: u64,
    },
    /// Wake the engine then, while it is in memory; in place of the timer that is pending.
    Timer {
        /// Unix milliseconds; `None`: no timer is needed, so that the object can hibernate.
        at_ms: Option<u64>,
    },
    /// Delete everything stored, the alarm included.
    DeleteAll,
    /// Ask a push service, once, within half a minute; the answer comes back as [`Input::Pushed`]. Nothing else waits for
    /// it.
    Push(Box<Job>),
    /// A message is still queued, and will not be pushed any more after so many failures; for the log.
    PushGivenUp {
        /// The wire's platform number.
        platform: i32,
    },
    /// Storage failed; for the log.
    Fault {
        /// What the database said.
        error: SqlError,
    },
}

/// What the engine asks about sockets.
pub trait Links {
    /// Bytes written to the socket and not yet on their way (`bufferedAmount`).
    fn buffered(&self, conn: ConnId) -> u64;
    /// When the platform last answered the text `ping` on it, Unix milliseconds.
    fn last_ping(&self, conn: ConnId) -> Option<u64>;
}

/// Largest attachment, bytes (the platform allows 16 KiB).
pub const MAX_ATTACHMENT: usize = 2048;
