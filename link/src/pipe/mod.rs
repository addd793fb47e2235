//! One end of a pipe: a WebSocket of its own to the relay, and the sealed frames on it (protocol, Pipes).
//!
//! [`connect`] answers the relay's challenge and gives a [`Pipe`], whose halves work apart. A task of the pipe's own drives
//! the socket in both directions, obeys the relay's `pause` and `resume`, answers pings and closes, and asks for a sign of
//! life when nothing comes. Sealing and opening are done in the tasks that send and receive.
//!
//! There is no word that the other end has come: whatever is sent before waits at the relay.
//!
//! # How it ends
//!
//! * [`PipeSender::close`]: everything sent before arrives, then the other end is told [`PipeEnding::Closed`]. A WebSocket has no
//!   half-closed state: the other direction ends as well, though what is on its way can still be received.
//! * The sender is dropped without `close`, alone or with the receiver: the pipe breaks at once, whatever still waits, and the
//!   other end is told [`PipeClose::GoingAway`].
//! * The receiver alone is dropped: whatever comes is thrown away, and the sender goes on.
//! * The other end or the relay closes, the connection breaks or falls silent, a frame does not open: the receiver gets
//!   everything that came before, then the reason; the sender fails with the same reason.
//!
//! # Bounds
//!
//! 16 frames of up to 64 KiB wait for the socket, and one batch of the socket's own (128 KiB); about 1 MiB of received frames
//! waits for the receiver. While those wait the socket is not read, so that TCP slows the relay down; a `pause` behind them is
//! then not seen either, and a sender may go on until the relay ends the pipe ([`PipeClose::PeerTooSlow`]).

mod driver;
#[cfg(test)]
mod stand_in;
#[cfg(test)]
mod tests;

use std::fmt;

use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use skald_common::crypto::{Identity, PipeOpener, PipeSealer};
use skald_common::ids::NamespaceId;
use skald_common::limits::{PIPE_AUTH_MS, PIPE_CHUNK, PIPE_MAX_FRAME};
use skald_common::peer::{DialFailure, Disconnect, Millis};
use skald_common::pipe::{Agreed, PipeAuth, PipeClose, auth};
use skald_common::wire::{CONTROL_PATH, PIPE_PATH};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use crate::Clock;
use crate::socket::{self, Stream};
use crate::splice::{PipeEnded, PipeIn, PipeOut};
use driver::{Incoming, Outgoing, Shared};

/// Connecting, TLS and upgrade together may take so long.
const DIAL_MS: Millis = 20_000;
/// Frames that wait for the socket.
const QUEUE: usize = 16;
/// Two frames are written at once, and one is read: more only costs memory.
const WRITE: usize = 128 * 1024;
const READ: usize = 64 * 1024;

/// Why there is no pipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PipeError {
    /// The control socket's address does not end in `/v1/ws`, so none for pipes follows from it.
    Address,
    /// No connection to the relay.
    Dial(Disconnect),
    /// The relay broke the protocol.
    Protocol(&'static str),
    /// The relay closed before its challenge was answered.
    Ended(PipeEnding),
}

impl fmt::Display for PipeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address => write!(f, "the relay's address does not end in {CONTROL_PATH}"),
            Self::Dial(why) => why.fmt(f),
            Self::Protocol(what) => write!(f, "the relay broke the protocol: {what}"),
            Self::Ended(ending) => ending.fmt(f),
        }
    }
}

impl std::error::Error for PipeError {}

/// How a pipe ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PipeEnding {
    /// The other end closed it; everything that it sent has arrived.
    Closed,
    /// This end closed it.
    Here,
    /// This end's sender was dropped.
    Dropped,
    /// Closed for a reason that the relay knows: see [`PipeClose`].
    Refused(PipeClose),
    /// Closed with another code.
    Code(u16),
    /// The connection to the relay broke.
    Lost,
    /// Nothing came from the relay for two minutes, not even an answer to a ping.
    Silent,
    /// A frame was changed, repeated, left out, or made with another key.
    Unreadable,
    /// The relay or the other end broke the protocol.
    Protocol(&'static str),
}

impl PipeEnding {
    /// The meaning of a WebSocket's close code. Other relays than ours close without one.
    fn of_code(code: Option<u16>) -> Self {
        match (code, code.and_then(PipeClose::from_code)) {
            (None, _) | (_, Some(PipeClose::Normal)) => Self::Closed,
            (_, Some(close)) => Self::Refused(close),
            (Some(code), None) => Self::Code(code),
        }
    }

    /// Whether one of the ends closed it, with everything sent.
    pub const fn is_in_order(self) -> bool {
        matches!(self, Self::Closed | Self::Here)
    }
}

impl fmt::Display for PipeEnding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed by the other end"),
            Self::Here => f.write_str("closed here"),
            Self::Dropped => f.write_str("given up here"),
            Self::Refused(close) => write!(f, "{close} ({})", close.code()),
            Self::Code(code) => write!(f, "closed with code {code}"),
            Self::Lost => f.write_str("the connection to the relay broke"),
            Self::Silent => f.write_str("the relay does not answer any more"),
            Self::Unreadable => f.write_str("a frame does not open: changed, repeated or lost on its way"),
            Self::Protocol(what) => write!(f, "the protocol was broken: {what}"),
        }
    }
}

impl std::error::Error for PipeEnding {}

impl From<PipeEnding> for PipeEnded {
    fn from(ending: PipeEnding) -> Self {
        if ending.is_in_order() { Self::InOrder } else { Self::Broken(ending.to_string()) }
    }
}

/// An open end; see the [module](self).
#[derive(Debug)]
pub struct Pipe {
    sender: PipeSender,
    receiver: PipeReceiver,
}

impl Pipe {
    /// Both directions, for two tasks.
    pub fn split(self) -> (PipeSender, PipeReceiver) {
        (self.sender, self.receiver)
    }
}

/// Dials the relay for one end of a pipe: `control_url` is the address at which the control socket works. Returns as soon as
/// the relay's challenge is answered; a refusal comes as the end of the pipe. Needs a tokio runtime.
pub async fn connect(
    control_url: &str,
    identity: &Identity,
    namespace: NamespaceId,
    agreed: Agreed,
) -> Result<Pipe, PipeError> {
    let url = pipe_url(control_url).ok_or(PipeError::Address)?;
    let clock = Clock::start();
    let mut stream = tokio::select! {
        dialled = socket::connect(&url, config()) => dialled.map_err(failed_dial)?,
        () = clock.sleep_until(Some(DIAL_MS)) => return Err(PipeError::Dial(Disconnect::Timeout("connecting"))),
    };
    let Agreed { connection, partner, cipher } = agreed;
    let until = Some(clock.now() + PIPE_AUTH_MS);
    let answered = async {
        let nonce = challenge(&mut stream).await?;
        let auth = PipeAuth::new(identity, &nonce, connection, &partner, namespace, true);
        let sent = stream.send(Message::Binary(auth.encode().into())).await;
        sent.map_err(|_| PipeError::Ended(PipeEnding::Lost))
    };
    tokio::select! {
        answered = answered => answered?,
        () = clock.sleep_until(until) => return Err(PipeError::Dial(Disconnect::Timeout("its challenge"))),
    }

    let (outgoing, to_send) = mpsc::channel(QUEUE);
    let (incoming, received) = mpsc::unbounded_channel();
    let shared = Shared::new();
    tokio::spawn(driver::run(stream, to_send, incoming, shared.clone(), clock));
    let (sealer, opener) = cipher.split();
    Ok(Pipe {
        sender: PipeSender { outgoing, sealer, unless_closed: Guard(Some(shared.clone())), shared: shared.clone() },
        receiver: PipeReceiver { incoming: received, opener, shared },
    })
}

/// `/v1/ws` at the end of the path becomes `/v1/pipe`; a query stays.
fn pipe_url(control_url: &str) -> Option<String> {
    let (path, query) = control_url.split_at(control_url.find(['?', '#']).unwrap_or(control_url.len()));
    Some(format!("{}{PIPE_PATH}{query}", path.strip_suffix(CONTROL_PATH)?))
}

fn config() -> WebSocketConfig {
    let limit = Some(PIPE_MAX_FRAME);
    WebSocketConfig::default()
        .max_message_size(limit)
        .max_frame_size(limit)
        .read_buffer_size(READ)
        .write_buffer_size(WRITE)
}

fn failed_dial(failure: DialFailure) -> PipeError {
    PipeError::Dial(match failure.http_status {
        Some(status) => Disconnect::Http(status),
        None => Disconnect::Dial(failure.why),
    })
}

async fn challenge(stream: &mut Stream) -> Result<skald_common::ids::ChallengeNonce, PipeError> {
    loop {
        return match stream.next().await {
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
            Some(Ok(Message::Binary(message))) => {
                auth::decode_challenge(&message).map_err(|_| PipeError::Protocol("a malformed challenge"))
            }
            Some(Ok(Message::Close(frame))) => {
                Err(PipeError::Ended(PipeEnding::of_code(frame.map(|frame| frame.code.into()))))
            }
            Some(Ok(_)) => Err(PipeError::Protocol("something else than a challenge")),
            Some(Err(_)) | None => Err(PipeError::Ended(PipeEnding::Lost)),
        };
    }
}

/// The half that sends.
#[derive(Debug)]
pub struct PipeSender {
    outgoing: mpsc::Sender<Outgoing>,
    sealer: PipeSealer,
    shared: Shared,
    unless_closed: Guard,
}

/// Breaks the pipe when dropped, unless it was taken away.
#[derive(Debug)]
struct Guard(Option<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.abort(PipeEnding::Dropped);
        }
    }
}

impl PipeSender {
    /// Sends, in frames of at most [`PIPE_CHUNK`] bytes. Waits while the relay has said `pause` or 16 frames wait already;
    /// what it has returned for may still be lost with the pipe.
    ///
    /// Cancel safe for up to [`PIPE_CHUNK`] bytes: dropped before it is ready, it has sent nothing. Of more bytes it may have
    /// sent any number of whole chunks.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), PipeEnding> {
        for chunk in bytes.chunks(PIPE_CHUNK) {
            let permit = self.outgoing.reserve().await.map_err(|_| self.shared.ending())?;
            let mut frame = BytesMut::new();
            // Nothing but 2⁶⁴ frames could make this fail.
            self.sealer.seal_into(chunk, &mut frame).map_err(|_| PipeEnding::Protocol("too many frames"))?;
            permit.send(Outgoing::Frame(frame.freeze()));
        }
        Ok(())
    }

    /// Closes the pipe once everything has left, and waits until the relay has confirmed that, for 10 s at most. An error
    /// says that some of it may not have arrived, be it that the other end closed first. Dropped meanwhile, it goes on alone, unless it still waited for its place
    /// behind frames that wait: then the pipe breaks.
    pub async fn close(self) -> Result<(), PipeEnding> {
        let Self { outgoing, shared, mut unless_closed, .. } = self;
        let ending = if outgoing.send(Outgoing::Finish).await.is_ok() {
            unless_closed.0 = None;
            shared.ended().await
        } else {
            shared.ending()
        };
        if ending == PipeEnding::Here { Ok(()) } else { Err(ending) }
    }
}

/// The half that receives.
#[derive(Debug)]
pub struct PipeReceiver {
    incoming: mpsc::UnboundedReceiver<Incoming>,
    opener: PipeOpener,
    shared: Shared,
}

impl PipeReceiver {
    /// The next bytes, one frame's, never none; at the end, how the pipe ended, as often as it is asked. Cancel safe: dropped
    /// before it is ready, it has lost nothing.
    pub async fn recv(&mut self) -> Result<Bytes, PipeEnding> {
        while let Some(Incoming { frame, room }) = self.incoming.recv().await {
            drop(room);
            // The socket's buffer is usually shared with the frames behind this one, and then a copy is needed.
            let mut frame = frame.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&*shared));
            if self.opener.open_in_place(&mut frame).is_err() {
                self.incoming.close();
                return Err(self.shared.abort(PipeEnding::Unreadable));
            }
            if !frame.is_empty() {
                return Ok(frame.freeze());
            }
        }
        Err(self.shared.ending())
    }
}

impl PipeOut for PipeSender {
    async fn send(&mut self, bytes: &[u8]) -> Result<(), PipeEnded> {
        Ok(Self::send(self, bytes).await?)
    }

    async fn close(self) -> Result<(), PipeEnded> {
        Ok(Self::close(self).await?)
    }
}

impl PipeIn for PipeReceiver {
    async fn recv(&mut self) -> Result<Bytes, PipeEnded> {
        Ok(Self::recv(self).await?)
    }
}
