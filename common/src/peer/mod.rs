//! The peer's side of the relay protocol, without I/O: handshake, features, counters, sealing, receipts, keepalive and
//! reconnection for agent and phone alike.
//!
//! # Contract
//!
//! A [`Peer`] never reads a clock, draws randomness, opens a socket or writes to a disk. Whoever drives it makes one call
//! (an input or a command), then carries out [`Peer::poll_output`] **in order** until it is empty, then waits for the next
//! input or for [`Peer::deadline`]:
//!
//! ```text
//! peer.start(now);
//! loop {
//!     while let Some(output) = peer.poll_output() {
//!         match output {
//!             Output::Dial { url } => dial(url),              // → on_open, or on_dial_failed
//!             Output::Send(bytes) => socket.send(bytes),
//!             Output::Reserve { peer, upto } => disk.reserve(peer, upto)?, // durable BEFORE the outputs behind it
//!             Output::Event(event) => application(event, &mut peer),
//!             …
//!         }
//!     }
//!     select! { input = socket.next() => peer.on_…(now, input), () = sleep_until(peer.deadline()) => peer.on_timeout(now) }
//! }
//! ```
//!
//! * **Times** are milliseconds of a monotonic clock.
//! * **Counters.** A counter is used only after an [`Output::Reserve`] that covers it: the storage keeps the highest
//!   reserved number, and the next start begins above it (protocol, Message key, nonce, AAD).
//! * **Receiving.** Each [`Event::Message`] carries a [`Receipt`]. The application handles the message durably together
//!   with `receipt.counter`, then calls [`Peer::accept`]; only then is the message acknowledged. If it cannot,
//!   [`Peer::reject`] drops the connection, and the relay delivers again.
//! * **Sending.** A stored message is held until the relay has accepted it, and repeated, identically and in order, after
//!   a lost connection, unless a newer one has taken its place. A live message is sent now or fails.
//! * **Sockets.** There is one at a time. After [`Output::Close`] the driver forgets it and reports nothing more of it;
//!   inputs of a socket that is not the newest are not passed on.

mod backoff;
mod connection;
mod counter;
mod outbox;
mod receipts;
mod routes;
#[cfg(test)]
mod tests;

use std::fmt;

pub use connection::{DialFailure, Peer};
pub use counter::first_send_counter;
pub use routes::{MAX_URL, RouteError, Routes, with_namespace};

use crate::crypto::Identity;
use crate::framing::{Body, Compression};
use crate::ids::{Ed25519Public, NamespaceId, PairingToken, X25519Public};
use crate::wire::{ErrorCode, Features, Platform, Push};

/// Milliseconds of a monotonic clock with an arbitrary start.
pub type Millis = u64;

/// Who this peer is towards the relay. Its `Debug` shows no push token.
pub enum Role {
    /// The owner of the identity's namespace.
    Agent,
    /// An authorized device.
    Client {
        /// The agent's namespace.
        namespace: NamespaceId,
        /// Push token; empty keeps what the relay has.
        device_token: String,
        /// Where the token leads.
        platform: Platform,
    },
    /// A device with a pairing token. Ends after [`Event::Paired`] or the first refusal.
    Pairing {
        /// The agent's namespace.
        namespace: NamespaceId,
        /// From the QR code.
        token: PairingToken,
        /// Push token, may be empty.
        device_token: String,
        /// Where the token leads.
        platform: Platform,
    },
}

impl fmt::Debug for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agent => f.write_str("Agent"),
            Self::Client { namespace, device_token, platform } => f
                .debug_struct("Client")
                .field("namespace", namespace)
                .field("device_token", &format_args!("{} bytes", device_token.len()))
                .field("platform", platform)
                .finish(),
            Self::Pairing { namespace, device_token, platform, .. } => f
                .debug_struct("Pairing")
                .field("namespace", namespace)
                .field("device_token", &format_args!("{} bytes", device_token.len()))
                .field("platform", platform)
                .finish_non_exhaustive(),
        }
    }
}

/// What a [`Peer`] needs to know at birth.
#[derive(Debug)]
pub struct Config {
    /// Keys of this peer.
    pub identity: Identity,
    /// Its role.
    pub role: Role,
    /// Where to dial, in order of preference.
    pub routes: Routes,
    /// Features to offer: [`Features::AGENT`], or for a client [`Features::ALL`], unless a test wants an old peer.
    pub offer: Features,
    /// Seeds the jitter of the backoff; not a secret.
    pub jitter_seed: u64,
}

/// A peer to exchange sealed messages with.
#[derive(Debug, Clone, Copy)]
pub struct Partner {
    /// Its name.
    pub ed25519: Ed25519Public,
    /// Its agreement key.
    pub x25519: X25519Public,
    /// The next send counter may be this, at the lowest: see [`first_send_counter`].
    pub send_from: u64,
    /// Last counter accepted from it; 0 for none.
    pub received: u64,
    /// Whether it can read compressed bodies (no, for platform IOS).
    pub compression: Compression,
}

/// Names a message that was given to [`Peer::send`]; unique for the life of the `Peer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SendId(pub(crate) u64);

/// How to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// Now or never.
    Live,
    /// Kept by the relay until the recipient has it.
    Stored {
        /// Replaces an undelivered message with this tag (1 to 16 bytes), where the relay can.
        collapse: Option<Vec<u8>>,
        /// Never pushed, where the relay can.
        quiet: bool,
    },
}

impl Delivery {
    /// Stored, without a tag.
    pub const STORED: Self = Self::Stored { collapse: None, quiet: false };
}

/// Why [`Peer::send`] took nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No [`Partner`] of this name.
    #[error("no such device")]
    UnknownPartner,
    /// The sealed form would be over the protocol's limit.
    #[error("the message is too large: {sealed} bytes sealed, at most {max}")]
    TooLarge {
        /// Its sealed size, bytes.
        sealed: usize,
        /// The limit, bytes.
        max: usize,
    },
    /// A live message without a connection.
    #[error("not connected to the relay")]
    NotConnected,
    /// Too many messages wait for the relay.
    #[error("too many messages wait for the relay")]
    Full,
    /// A collapse tag of a length other than 1 to 16 bytes.
    #[error("a collapse tag has 1 to 16 bytes")]
    Tag,
}

/// Why a message that was sent did not get through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendFailure {
    /// A live message found nobody, or the connection ended before the relay said what became of it.
    Offline,
    /// The relay refused; send anew (under a new counter) if it is still wanted. `None`: a code of another relay.
    Refused(Option<ErrorCode>),
}

/// Names a received message for [`Peer::accept`] and [`Peer::reject`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// Who sent it.
    pub from: Ed25519Public,
    /// Its counter: store it with what the message did.
    pub counter: u64,
    pub(crate) delivery: u64,
    pub(crate) connection: u64,
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disconnect {
    /// No connection came about: the driver's words.
    Dial(String),
    /// The relay answered the upgrade with this HTTP status.
    Http(u16),
    /// The relay refused the handshake. `None`: a code of another relay, in its words.
    Refused(Option<ErrorCode>, String),
    /// A step of the handshake, or any sign of life, took too long.
    Timeout(&'static str),
    /// The relay broke the protocol.
    Protocol(&'static str),
    /// The socket ended; the close code, if one came.
    Closed(Option<u16>),
    /// The application rejected a message.
    Rejected,
}

impl fmt::Display for Disconnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dial(why) => write!(f, "cannot reach the relay: {why}"),
            Self::Http(404) => f.write_str("the relay answered HTTP 404: is the path of the relay's address right?"),
            Self::Http(429) => f.write_str("the relay answered HTTP 429: too many connections from this address"),
            Self::Http(status) => write!(f, "the relay answered HTTP {status}"),
            Self::Refused(Some(code), _) => write!(f, "the relay refused: {code}"),
            Self::Refused(None, words) => write!(f, "the relay refused: {}", words.escape_debug()),
            Self::Timeout(step) => write!(f, "the relay took too long: {step}"),
            Self::Protocol(what) => write!(f, "the relay broke the protocol: {what}"),
            Self::Closed(Some(4001)) => f.write_str("replaced by a newer connection with the same key"),
            Self::Closed(Some(4003)) => f.write_str("revoked"),
            Self::Closed(Some(code)) => write!(f, "the relay closed the connection ({code})"),
            Self::Closed(None) => f.write_str("the connection broke"),
            Self::Rejected => f.write_str("a message could not be stored"),
        }
    }
}

/// What happened, for the application.
#[derive(Debug)]
pub enum Event {
    /// The handshake is done.
    Connected {
        /// The address that worked.
        url: String,
        /// What both sides have.
        features: Features,
    },
    /// There is no connection any more, or none came about. Told once per attempt.
    Disconnected {
        /// Why.
        why: Disconnect,
        /// When the next attempt is made; `None`: none will be (pairing).
        retry_at: Option<Millis>,
        /// Another agent with this seed keeps replacing this one: waiting 5 minutes.
        parked: bool,
    },
    /// The relay has taken every `Authorize` sent so far.
    Authorized {
        /// How many devices it counts.
        devices: u32,
    },
    /// The pairing window is open.
    PairingReady {
        /// Seconds granted.
        ttl: u32,
    },
    /// The pairing window is closed.
    PairingStopped,
    /// A device has used the window's token, so the relay says.
    ClientPaired {
        /// Its signing key.
        ed25519: Ed25519Public,
        /// Its agreement key.
        x25519: X25519Public,
        /// Its platform, as it says; unknown numbers become unspecified.
        platform: Platform,
    },
    /// This device has paired; an authorization must follow.
    Paired,
    /// A message was opened. It must be accepted or rejected.
    Message {
        /// For [`Peer::accept`] or [`Peer::reject`].
        receipt: Receipt,
        /// The content.
        body: Body,
        /// Whether it came live.
        live: bool,
    },
    /// The relay has the message.
    Accepted {
        /// Which one.
        id: SendId,
        /// Whether the recipient has no live connection; `None` from relays without receipts, which only shows that the
        /// message was written.
        queued: Option<bool>,
    },
    /// The message did not get through.
    SendFailed {
        /// Which one.
        id: SendId,
        /// Its recipient.
        to: Ed25519Public,
        /// Why.
        why: SendFailure,
    },
    /// Everyone who is connected, this peer included.
    PresenceList(Vec<Ed25519Public>),
    /// A member came (`true`) or went.
    Presence(Ed25519Public, bool),
    /// What pushing to these devices has come to, so the relay says: to be shown, and nothing else.
    PushStatus(Vec<(Ed25519Public, Push)>),
    /// The relay complains of something that was not a numbered message.
    RelayError {
        /// Its code; `None`: a code of another relay.
        code: Option<ErrorCode>,
        /// Whom a live message did not reach, from relays without receipts.
        offline: Option<Ed25519Public>,
    },
    /// A message was dropped unread: for counters and logs.
    Dropped {
        /// Its sender as the relay says.
        from: Option<Ed25519Public>,
        /// Why.
        why: Drop,
    },
}

/// Why a received message was dropped unread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drop {
    /// No such partner.
    UnknownSender,
    /// Counter not above the last accepted: a repeat.
    Replay,
    /// Direction, length or tag.
    Unreadable,
    /// Version, compression or inflation.
    Framing,
}

/// What the driver does next.
#[derive(Debug)]
pub enum Output {
    /// Open a WebSocket to this address, then [`Peer::on_open`] or [`Peer::on_dial_failed`].
    Dial {
        /// `ws://` or `wss://`.
        url: String,
    },
    /// Send a binary message.
    Send(Vec<u8>),
    /// Send the text `ping`.
    SendPing,
    /// Send a native WebSocket ping.
    SendNativePing,
    /// Close the socket, or stop dialling.
    Close,
    /// Make durable that counters up to and including `upto` may have been used towards `peer`.
    Reserve {
        /// The recipient.
        peer: Ed25519Public,
        /// The highest counter of the block.
        upto: u64,
    },
    /// Tell the application.
    Event(Event),
}
