//! The task that owns the socket: one loop per direction, both polled by the one task, so that a direction that waits never
//! holds up the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use skald_common::peer::Millis;
use skald_common::pipe::PipeClose;
use skald_common::pipe::auth::{PAUSE, RESUME};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::PipeEnding;
use crate::Clock;
use crate::socket::Stream;

/// Received bytes that may wait for the receiver.
const ROOM: u32 = 1024 * 1024;
/// What a frame takes of them besides its own bytes.
const OVERHEAD: usize = 64;
/// After so much silence the relay is pinged, again and again.
const PING_MS: Millis = 25_000;
/// After so much silence it is given up: as long as the relay's own limit, since a ping may wait behind all that a slow link
/// has taken.
const SILENT_MS: Millis = 120_000;
/// How long the answer to a goodbye is waited for.
const CLOSE_MS: Millis = 10_000;
/// How long a goodbye may take that nobody waits for.
const GOODBYE: Duration = Duration::from_secs(2);

/// What the sender hands over.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// A sealed frame.
    Frame(Bytes),
    /// Nothing more, in order.
    Finish,
}

/// What the receiver gets.
#[derive(Debug)]
pub(super) struct Incoming {
    /// A sealed frame.
    pub(super) frame: Bytes,
    /// Its part of [`ROOM`].
    pub(super) room: OwnedSemaphorePermit,
}

/// How the pipe ended, known to both halves and to the task.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    ending: watch::Sender<Option<PipeEnding>>,
    abort: Arc<Notify>,
}

impl Shared {
    pub(super) fn new() -> Self {
        Self { ending: watch::Sender::new(None), abort: Arc::new(Notify::new()) }
    }

    /// The first word counts.
    fn end(&self, ending: PipeEnding) -> PipeEnding {
        self.ending.send_if_modified(|known| {
            let first = known.is_none();
            known.get_or_insert(ending);
            first
        });
        self.ending()
    }

    /// Ends the pipe from one of its halves.
    pub(super) fn abort(&self, why: PipeEnding) -> PipeEnding {
        self.abort.notify_one();
        self.end(why)
    }

    /// Why the task takes or gives nothing any more. A write that failed is told before its reason is known.
    pub(super) fn ending(&self) -> PipeEnding {
        self.ending.borrow().unwrap_or(PipeEnding::Lost)
    }

    pub(super) async fn ended(&self) -> PipeEnding {
        match self.ending.subscribe().wait_for(Option::is_some).await {
            Ok(ending) => ending.unwrap_or(PipeEnding::Lost),
            Err(_) => PipeEnding::Lost,
        }
    }
}

/// What one direction tells the other, within the task.
struct Common {
    clock: Clock,
    paused: watch::Sender<bool>,
    /// When something last came; [`NOT_READING`] while silence means nothing.
    heard: AtomicU64,
}

const NOT_READING: Millis = Millis::MAX;

impl Common {
    fn hear(&self) {
        self.heard.store(self.clock.now(), Ordering::Relaxed);
    }

    fn heard_or_now(&self) -> Millis {
        match self.heard.load(Ordering::Relaxed) {
            NOT_READING => self.clock.now(),
            heard => heard,
        }
    }
}

/// Why the writing ended.
enum WriteEnd {
    /// Everything is written.
    Finished,
    /// The sender was dropped.
    Dropped,
    /// The socket takes nothing any more; what it still gives says why.
    Broken,
}

type Sink = SplitSink<Stream, Message>;

/// Drives the socket until the end.
pub(super) async fn run(
    stream: Stream,
    mut to_send: mpsc::Receiver<Outgoing>,
    received: mpsc::UnboundedSender<Incoming>,
    shared: Shared,
    clock: Clock,
) {
    let (mut sink, mut stream) = stream.split();
    let common = Common { clock, paused: watch::Sender::new(false), heard: clock.now().into() };
    let ending = {
        let reading = read(&mut stream, &received, &common);
        tokio::pin!(reading);
        tokio::select! {
            biased;
            ending = &mut reading => ending,
            () = shared.abort.notified() => shared.ending(),
            ending = write(&mut sink, &mut to_send, &common) => match ending {
                WriteEnd::Finished => finish(&mut sink, reading, clock).await,
                WriteEnd::Dropped => PipeEnding::Dropped,
                WriteEnd::Broken => tokio::select! {
                    ending = reading => ending,
                    () = silence(&common) => PipeEnding::Lost,
                },
            },
            () = silence(&common) => PipeEnding::Silent,
        }
    };
    // Both halves ask for the reason when their channel ends, so it is told first.
    shared.end(ending);
    drop((to_send, received));
    if ending != PipeEnding::Silent {
        let _ = tokio::time::timeout(GOODBYE, goodbye(&mut sink, &mut stream)).await;
    }
}

/// Ends when the socket does, with the reason.
async fn read(
    stream: &mut SplitStream<Stream>,
    received: &mpsc::UnboundedSender<Incoming>,
    common: &Common,
) -> PipeEnding {
    let room = Arc::new(Semaphore::new(ROOM as usize));
    loop {
        let message = stream.next().await;
        common.hear();
        match message {
            Some(Ok(Message::Binary(frame))) => {
                let needs = u32::try_from(frame.len() + OVERHEAD).unwrap_or(ROOM).min(ROOM);
                common.heard.store(NOT_READING, Ordering::Relaxed);
                let Ok(room) = Arc::clone(&room).acquire_many_owned(needs).await else { return PipeEnding::Lost };
                common.hear();
                // Without a receiver it is thrown away.
                let _ = received.send(Incoming { frame, room });
            }
            Some(Ok(Message::Text(text))) => match text.as_str() {
                PAUSE => drop(common.paused.send_replace(true)),
                RESUME => drop(common.paused.send_replace(false)),
                _ => {}
            },
            Some(Ok(Message::Close(frame))) => return PipeEnding::of_code(frame.map(|frame| frame.code.into())),
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
            Some(Err(Error::Capacity(_))) => return PipeEnding::Protocol("a frame over 1 MiB"),
            Some(Err(_)) | None => return PipeEnding::Lost,
        }
    }
}

/// Ends when nothing more is to be written, or can be.
async fn write(sink: &mut Sink, to_send: &mut mpsc::Receiver<Outgoing>, common: &Common) -> WriteEnd {
    let mut paused = common.paused.subscribe();
    let mut pinged = 0;
    loop {
        let ping_at = common.heard_or_now().max(pinged) + PING_MS;
        let written = tokio::select! {
            biased;
            next = unpaused(&mut paused, to_send) => match next {
                Some(next) => write_batch(sink, next, to_send, common).await,
                None => return WriteEnd::Dropped,
            },
            () = common.clock.sleep_until(Some(ping_at)) => {
                let now = common.clock.now();
                if now < common.heard_or_now() + PING_MS {
                    continue;
                }
                pinged = now;
                sink.send(Message::Ping(Bytes::new())).await.map(|()| false)
            }
        };
        match written {
            Ok(false) => {}
            Ok(true) => return WriteEnd::Finished,
            Err(_) => return WriteEnd::Broken,
        }
    }
}

/// The next of the sender, once the relay lets it. `None`: the sender is gone.
async fn unpaused(paused: &mut watch::Receiver<bool>, to_send: &mut mpsc::Receiver<Outgoing>) -> Option<Outgoing> {
    loop {
        paused.wait_for(|paused| !paused).await.ok()?;
        tokio::select! {
            biased;
            _ = paused.changed() => {}
            next = to_send.recv() => return next,
        }
    }
}

/// What waits together leaves together. True: that was all.
async fn write_batch(
    sink: &mut Sink,
    first: Outgoing,
    to_send: &mut mpsc::Receiver<Outgoing>,
    common: &Common,
) -> Result<bool, Error> {
    let mut next = Some(first);
    let mut finished = false;
    while let Some(outgoing) = next {
        match outgoing {
            Outgoing::Frame(frame) => sink.feed(Message::Binary(frame)).await?,
            Outgoing::Finish => finished = true,
        }
        next = if finished || *common.paused.borrow() { None } else { to_send.try_recv().ok() };
    }
    sink.flush().await?;
    Ok(finished)
}

/// Says that this end is done, and waits for the answer, which comes behind all that the other end still sent.
async fn finish(sink: &mut Sink, reading: impl Future<Output = PipeEnding>, clock: Clock) -> PipeEnding {
    let until = Some(clock.now() + CLOSE_MS);
    let answered = async {
        tokio::pin!(reading);
        tokio::select! {
            biased;
            ending = &mut reading => ending,
            _ = sink.send(close_frame(PipeClose::Normal)) => reading.await,
        }
    };
    tokio::select! {
        ending = answered => if ending == PipeEnding::Closed { PipeEnding::Here } else { ending },
        () = clock.sleep_until(until) => PipeEnding::Silent,
    }
}

async fn silence(common: &Common) {
    loop {
        let until = common.heard_or_now() + SILENT_MS;
        if common.clock.now() >= until {
            return;
        }
        common.clock.sleep_until(Some(until)).await;
    }
}

/// Closes the socket, whoever began: reading on lets TCP end cleanly, so that nothing sent before is cut off.
async fn goodbye(sink: &mut Sink, stream: &mut SplitStream<Stream>) {
    // Behind a close of either side this only writes what is left to write.
    let _ = sink.send(close_frame(PipeClose::GoingAway)).await;
    while let Some(Ok(_)) = stream.next().await {}
}

fn close_frame(close: PipeClose) -> Message {
    Message::Close(Some(CloseFrame { code: close.code().into(), reason: close.reason().into() }))
}
