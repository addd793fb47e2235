//! One namespace of the relay as a state machine: it opens no socket, reads no clock, draws no randomness, awaits nothing.
//!
//! # Contract
//!
//! One input, then a full drain, without an await in between:
//!
//! ```ignore
//! let (limits, errors) = Limits::from_lookup(|name| env_var(name));
//! let mut engine = Engine::restore(limits, sql, attachments.map(|(conn, bytes)| ...)); // sql: impl Sql
//! engine.handle(now_ms, &links, input);
//! while let Some(output) = engine.poll() {
//!     match output {
//!         Output::Send { conn, bytes } => ...,       // one binary message; a peer that is gone is no error
//!         Output::Attach { conn, bytes } => ...,     // serialize_attachment; always comes before the Close it belongs to
//!         Output::Close { conn, code, reason } => ..., // after what was sent; a second close must be harmless
//!         Output::WakeAt { at_ms } => ...,           // set_alarm, replacing the one that is set
//!         Output::Timer { at_ms } => ...,            // setTimeout; one at a time, the earliest counts
//!         Output::DeleteAll => ...,                  // delete_all and delete_alarm
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
//! * [`Output::WakeAt`] is persistent (the alarm), and asked for only when it must be earlier than the one that is known;
//!   [`Output::Timer`] lives in memory only. Both come back as [`Input::Wake`]; one too many is harmless.
//!
//! # When storage fails
//!
//! Nothing is reported accepted that is not durable. Each change is one transaction; when it fails, what the engine
//! remembers of the rows is dropped and read anew, [`Output::Fault`] is emitted, and the connection whose event it was is
//! closed with 1001 (a member redials and repeats what was not accepted). Other connections live on.

mod limits;

use std::fmt;

use bytes::Bytes;
use skald_common::ids::{ChallengeNonce, NamespaceId};

use crate::store::SqlError;

pub use limits::{LimitError, Limits};

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
    /// The alarm or the timer.
    Wake,
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
    /// Wake the engine then, while it is in memory; an earlier one that is pending stays.
    Timer {
        /// Unix milliseconds.
        at_ms: u64,
    },
    /// Delete everything stored, the alarm included.
    DeleteAll,
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
