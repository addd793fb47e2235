//! Joins a TCP connection and a pipe: what comes out of one goes into the other, each direction in a task of its own, so
//! that neither ever waits for the other. Daemon and phone use it alike.
//!
//! How it ends:
//!
//! * **The local side has sent everything** (it closed, or half-closed). All of it goes into the pipe. A server
//!   ([`LocalEnd::Final`]) is done with that, and the pipe is closed. A client ([`LocalEnd::MayWait`]) may have closed its
//!   half alone and wait for its response, which TCP does not tell apart from having gone: the pipe stays open for as long
//!   as something keeps coming out of it, and is closed after a silence of 30 s if the client was the last to speak, of 1 s
//!   if the server was.
//! * **The pipe was closed.** Everything that came before is written, then the local connection ends, in order.
//! * **The pipe broke.** Everything that came before is written, then the local connection is reset: whoever reads until
//!   the end must not take half a response for a whole one.
//! * **The local connection broke.** The pipe is dropped, which breaks it for the other end as well.
//!
//! Dropping the future of [`splice`] ends both sides at once.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Read from the local side at once, bytes: what one frame of a pipe holds.
const CHUNK: usize = 64 * 1024;
/// Silence after which a client that has closed its half and asked something is given up.
const WAITING: Duration = Duration::from_secs(30);
/// Silence after which a client that has closed its half and had its answer is believed to have gone.
const ANSWERED: Duration = Duration::from_secs(1);
/// How long the local side may take to read what came before the pipe ended.
const DRAIN: Duration = Duration::from_mins(1);
/// How long what the local side still sends is thrown away before the connection is closed under it: closing at once
/// could cost it the end of what it was sent.
const GOODBYE: Duration = Duration::from_secs(2);

/// How a pipe ended, as either of its halves tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PipeEnded {
    /// Closed by the other end, which had sent everything.
    InOrder,
    /// In any other way; in words.
    Broken(String),
}

/// The half of a pipe that sends.
pub trait PipeOut: Send + 'static {
    /// Sends, and waits while the pipe is full or paused.
    fn send(&mut self, bytes: &[u8]) -> impl Future<Output = Result<(), PipeEnded>> + Send;
    /// Closes the pipe when everything has left.
    fn close(self) -> impl Future<Output = Result<(), PipeEnded>> + Send;
}

/// The half of a pipe that receives.
pub trait PipeIn: Send + 'static {
    /// The next bytes, or how the pipe ended.
    fn recv(&mut self) -> impl Future<Output = Result<Bytes, PipeEnded>> + Send;
}

/// A local connection: a [`TcpStream`], unless a test has something else in mind.
pub trait Local {
    /// Its half that reads.
    type Read: AsyncRead + Unpin + Send + 'static;
    /// Its half that writes.
    type Write: AsyncWrite + Unpin + Send + 'static;
    /// Both halves.
    fn halves(self) -> (Self::Read, Self::Write);
    /// The pipe broke, as `why` says in words, before anything was written here if `untouched`. Ends the connection in a way
    /// that the other side cannot take for an orderly one, or says what happened and ends it in order; gives whether in
    /// order.
    fn broken(write: Self::Write, why: &str, untouched: bool) -> impl Future<Output = bool> + Send;
}

impl Local for TcpStream {
    type Read = OwnedReadHalf;
    type Write = OwnedWriteHalf;

    fn halves(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        self.into_split()
    }

    async fn broken(write: OwnedWriteHalf, _: &str, _: bool) -> bool {
        // If that fails, the connection is gone already.
        let _ = write.as_ref().set_zero_linger();
        // Dropped, it would say goodbye in order, whatever its linger.
        write.forget();
        false
    }
}

/// What the end of the local side's bytes means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalEnd {
    /// It is done: a server has closed after its last response.
    Final,
    /// It may still wait for an answer: a client.
    MayWait,
}

/// Bytes that have passed, for whoever asks meanwhile.
#[derive(Debug, Default)]
pub struct Traffic {
    sent: AtomicU64,
    received: AtomicU64,
    last_was_sent: AtomicBool,
}

impl Traffic {
    /// Into the pipe, bytes.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Out of the pipe and written, bytes.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    fn add_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        self.last_was_sent.store(true, Ordering::Relaxed);
    }

    fn add_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
        self.last_was_sent.store(false, Ordering::Relaxed);
    }
}

/// How a splice ended.
#[derive(Debug)]
pub enum SpliceEnd {
    /// The local side was done, and what it sent has left.
    Local,
    /// The pipe was closed, and the local connection after it.
    Pipe,
    /// The pipe broke: in words.
    PipeBroke(String),
    /// The local connection broke, or did not take in time what was left for it.
    LocalBroke(io::Error),
}

impl fmt::Display for SpliceEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("closed here"),
            Self::Pipe => f.write_str("closed by the other end"),
            Self::PipeBroke(why) => write!(f, "broken: {why}"),
            Self::LocalBroke(error) => write!(f, "the local connection broke: {error}"),
        }
    }
}

/// The end of one direction, with what it no longer needs.
enum Half<R, W, O> {
    /// The local side has sent everything.
    Sent(O),
    /// The pipe takes nothing any more.
    NotTaken(R),
    /// The local side cannot be read.
    ReadBroke(io::Error),
    /// The pipe was closed, all of it written, and the end as well.
    Received(W),
    /// The pipe broke; what came before is written.
    PipeBroke(W, String),
    /// The local side cannot be written to.
    WriteBroke(io::Error),
}

type Halves<L, O> = JoinSet<Half<<L as Local>::Read, <L as Local>::Write, O>>;

/// Passes bytes until the end; see the [module](self). Needs a tokio runtime.
pub async fn splice<L: Local, O: PipeOut>(
    local: L,
    (out, inward): (O, impl PipeIn),
    end: LocalEnd,
    traffic: Arc<Traffic>,
) -> SpliceEnd {
    let (read, write) = local.halves();
    let mut halves: Halves<L, O> = JoinSet::new();
    halves.spawn(send_all(read, out, Arc::clone(&traffic)));
    halves.spawn(receive_all(inward, write, Arc::clone(&traffic)));
    match next::<L, O>(&mut halves).await {
        Half::Sent(out) => {
            if end == LocalEnd::MayWait {
                tokio::select! {
                    second = next::<L, O>(&mut halves) => return finish::<L, O>(second, None, halves, &traffic).await,
                    () = silence(&traffic) => {}
                }
            }
            // What comes out of the pipe meanwhile is still written. Whoever has closed it first does not mind.
            let _ = out.close().await;
            SpliceEnd::Local
        }
        Half::NotTaken(read) => match timeout(DRAIN, next::<L, O>(&mut halves)).await {
            Ok(second) => finish::<L, O>(second, Some(read), halves, &traffic).await,
            Err(_) => SpliceEnd::LocalBroke(io::Error::new(io::ErrorKind::TimedOut, "nobody reads what is left")),
        },
        first => finish::<L, O>(first, None, halves, &traffic).await,
    }
}

async fn next<L: Local, O: PipeOut>(halves: &mut Halves<L, O>) -> Half<L::Read, L::Write, O> {
    match halves.join_next().await {
        Some(Ok(half)) => half,
        // A task that panicked has dropped its end of both sides.
        Some(Err(_)) | None => Half::ReadBroke(io::Error::other("a task of the tunnel has crashed")),
    }
}

/// Ends the local connection as the pipe has ended. `read`, if it is known already, is where nobody takes from any more.
async fn finish<L: Local, O: PipeOut>(
    half: Half<L::Read, L::Write, O>,
    read: Option<L::Read>,
    mut halves: Halves<L, O>,
    traffic: &Traffic,
) -> SpliceEnd {
    let end = match half {
        Half::Received(_) => SpliceEnd::Pipe,
        Half::PipeBroke(write, why) => {
            let in_order = L::broken(write, &why, traffic.received() == 0).await;
            let end = SpliceEnd::PipeBroke(why);
            if !in_order {
                return end;
            }
            end
        }
        Half::ReadBroke(error) | Half::WriteBroke(error) => return SpliceEnd::LocalBroke(error),
        Half::Sent(_) | Half::NotTaken(_) => return SpliceEnd::Local,
    };
    let goodbye = async {
        let read = match read {
            Some(read) => Some(read),
            // It may be about to find out that nobody takes what it reads.
            None => match next::<L, O>(&mut halves).await {
                Half::NotTaken(read) => Some(read),
                _ => None,
            },
        };
        if let Some(mut read) = read {
            discard(&mut read).await;
        }
    };
    let _ = timeout(GOODBYE, goodbye).await;
    end
}

/// Before a connection is closed that was sent its last bytes and may still be sending: throws away what comes, for 2 s or
/// until its end.
pub async fn hear_out(read: &mut (impl AsyncRead + Unpin)) {
    let _ = timeout(GOODBYE, discard(read)).await;
}

async fn send_all<R: AsyncRead + Unpin, W, O: PipeOut>(
    mut read: R,
    mut out: O,
    traffic: Arc<Traffic>,
) -> Half<R, W, O> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let length = match read.read(&mut buffer).await {
            Ok(0) => return Half::Sent(out),
            Ok(length) => length,
            Err(error) => return Half::ReadBroke(error),
        };
        if out.send(&buffer[..length]).await.is_err() {
            // The other direction knows why, once it has written what came before.
            return Half::NotTaken(read);
        }
        traffic.add_sent(length);
    }
}

async fn receive_all<R, W: AsyncWrite + Unpin, O>(
    mut inward: impl PipeIn,
    mut write: W,
    traffic: Arc<Traffic>,
) -> Half<R, W, O> {
    loop {
        let written = match inward.recv().await {
            Ok(bytes) => {
                let written = write.write_all(&bytes).await;
                traffic.add_received(bytes.len());
                written
            }
            Err(PipeEnded::InOrder) => match write.shutdown().await {
                Ok(()) => return Half::Received(write),
                broken => broken,
            },
            Err(PipeEnded::Broken(why)) => return Half::PipeBroke(write, why),
        };
        if let Err(error) = written {
            return Half::WriteBroke(error);
        }
    }
}

/// Returns when nothing has come out of the pipe for long enough.
async fn silence(traffic: &Traffic) {
    let asked = traffic.last_was_sent.load(Ordering::Relaxed);
    let patience = if asked { WAITING } else { ANSWERED };
    loop {
        let before = traffic.received();
        sleep(patience).await;
        if traffic.received() == before {
            return;
        }
    }
}

async fn discard(read: &mut (impl AsyncRead + Unpin)) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(1..) = read.read(&mut buffer).await {}
}

#[cfg(test)]
mod tests;
