//! Readers that stop or are slow: they cost the sender time, never the relay memory or the namespace its control plane. On
//! both routes, with senders that obey the relay's `pause` and senders that know no such word, each at a relay of its own
//! whose memory and whose answers are watched all the while.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{SinkExt, StreamExt};
use skald_common::pipe::PipeClose;
use skald_common::pipe::auth::{PAUSE, RESUME};
use skald_tests::{Members, Pattern, RawPipe, Received, Relay, Way, checksum};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, frame::coding::CloseCode};

const MIB: u64 = 1024 * 1024;
/// What a stopped pipe may cost a relay (pipe protocol, Backpressure).
const MEMORY: u64 = 64 * MIB;
/// What it may cost the answers of its namespace's control plane.
const LATENCY: Duration = Duration::from_millis(100);

/// How long a reader stops.
const STOP: Duration = Duration::from_mins(1);

/// A sender by what it does when the relay says `pause`, and its route.
#[derive(Debug, Clone, Copy)]
struct Case {
    way: Way,
    flow: bool,
}

fn cases() -> impl Iterator<Item = Case> {
    Way::ALL.into_iter().flat_map(|way| [true, false].map(|flow| Case { way, flow }))
}

/// A namespace at a relay of its own, and another one elsewhere that has nothing to do.
struct Watched {
    relay: Relay,
    members: Members,
    idle: u64,
}

/// A namespace without pipes, which shows how fast this machine can be at the moment.
struct Yardstick {
    _relay: Relay,
    members: Mutex<Members>,
}

const VARS: [&str; 2] = ["RELAY_AGENT_RATE_PER_MINUTE=100000", "RELAY_PIPE_IDLE_TIMEOUT_SECS=300"];

impl Yardstick {
    async fn new() -> Arc<Self> {
        let relay = Relay::own(&VARS).await;
        let members = Mutex::new(Members::new(relay.url(), Way::Direct).await);
        Arc::new(Self { _relay: relay, members })
    }
}

impl Watched {
    async fn new(way: Way, more: &[&str]) -> Self {
        let relay = Relay::own(&[&VARS, more].concat()).await;
        let members = Members::new(relay.url(), way).await;
        // Warm: what a first pipe takes is no cost of a stopped one.
        let (mut agent, phone) = members.pipe().await;
        phone.close(1000).await;
        agent.closed().await;
        let idle = relay.resident();
        Self { relay, members, idle }
    }

    /// Takes samples until all is done, beside whatever else a test does; gives what they say.
    fn watch(self, yardstick: &Arc<Yardstick>, stage: &watch::Sender<Stage>) -> JoinHandle<Cost> {
        tokio::spawn(self.samples(Arc::clone(yardstick), stage.subscribe()))
    }

    async fn samples(mut self, yardstick: Arc<Yardstick>, mut stage: watch::Receiver<Stage>) -> Cost {
        let mut samples = Vec::new();
        let mut pause = interval(Duration::from_millis(100));
        pause.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            pause.tick().await;
            let stage = *stage.borrow_and_update();
            if stage == Stage::Done {
                return Cost { samples };
            }
            let memory = self.relay.resident().saturating_sub(self.idle);
            let mut other = yardstick.members.lock().await;
            let (here, there) = tokio::join!(timed(&mut self.members), timed(&mut other));
            samples.push(Sample { stage, memory, here, there });
        }
    }
}

async fn timed(members: &mut Members) -> Duration {
    let asked = Instant::now();
    members.control.presence().await;
    asked.elapsed()
}

/// What the reader does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Not read.
    Stopped,
    /// Read, slowly.
    Reading,
    /// Read what has been held back, as fast as it can: busy, for as long as it takes.
    CatchingUp,
    /// It has read everything.
    Done,
}

/// What a pipe has cost.
struct Cost {
    samples: Vec<Sample>,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    stage: Stage,
    /// Above idle, bytes.
    memory: u64,
    /// How long the control plane took to answer.
    here: Duration,
    /// The same, of the yardstick, at the same moment.
    there: Duration,
}

impl Sample {
    fn delay(&self) -> Duration {
        self.here.saturating_sub(self.there)
    }
}

impl Cost {
    /// Holds it to the limits. Of twenty answers one may be late: on a busy machine that says nothing, and a relay that makes
    /// its namespace wait does so for as long as its reader is slow. A pipe that moves leaves garbage behind, which the
    /// runtime collects when it likes; the limit on memory is for one that stands still.
    fn must_be_within_limits(self, case: Case) {
        for stage in [Stage::Stopped, Stage::Reading, Stage::CatchingUp] {
            let mut samples: Vec<_> = self.samples.iter().filter(|sample| sample.stage == stage).copied().collect();
            samples.sort_by_key(Sample::delay);
            let (Some(slowest), Some(most)) = (samples.last(), samples.iter().map(|sample| sample.memory).max()) else {
                continue;
            };
            let usual = samples[(samples.len() - 1) * 19 / 20];
            eprintln!(
                "{case:?}, {stage:?}: at most {} MiB above idle; control plane {:?} slower than the yardstick in 19 of 20 of \
                 {} answers, at most {:?}",
                most / MIB,
                usual.delay(),
                samples.len(),
                slowest.delay(),
            );
            assert!(stage != Stage::Stopped || most < MEMORY, "{case:?}: {} MiB above idle", most / MIB);
            let held_back = stage != Stage::CatchingUp;
            assert!(!held_back || usual.delay() < LATENCY, "{case:?}, {stage:?}: {usual:?}");
        }
    }
}

/// What a sender has lived through.
#[derive(Debug, Default)]
struct Sent {
    bytes: u64,
    /// The relay's last word; it may repeat it.
    paused: bool,
    pauses: u32,
    closed: Option<u16>,
}

/// Sends all chunks as fast as the socket takes them, and closes. One that obeys sends nothing from `pause` to `resume`.
async fn send(end: RawPipe, chunks: impl Iterator<Item = Bytes>, flow: bool, sent: &watch::Sender<Sent>) {
    let (mut sink, mut source) = end.stream.split();
    let sending = async {
        let mut told = sent.subscribe();
        for chunk in chunks {
            let length = chunk.len() as u64;
            let go_on = |sent: &Sent| !flow || !sent.paused;
            told.wait_for(go_on).await.expect("its sender is here");
            if sink.send(Message::Binary(chunk)).await.is_err() {
                break;
            }
            sent.send_modify(|sent| sent.bytes += length);
        }
        let frame = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        let _ = sink.send(Message::Close(Some(frame))).await;
        std::future::pending::<()>().await;
    };
    let listening = async {
        while sent.borrow().closed.is_none() {
            let Some(received) = Received::from(source.next().await) else { continue };
            sent.send_modify(|sent| match received {
                Received::Text(text) if text == PAUSE => {
                    sent.pauses += u32::from(!sent.paused);
                    sent.paused = true;
                }
                Received::Text(text) if text == RESUME => sent.paused = false,
                Received::Closed(code) => sent.closed = Some(code),
                other => panic!("the relay said {other:?}"),
            });
        }
    };
    tokio::select! {
        () = sending => {}
        () = listening => {}
    }
}

/// Reads to the end, a chunk with each tick; the checksum and the close code.
async fn read(mut end: RawPipe, mut pace: Option<Interval>) -> (String, u16) {
    let mut chunks = Vec::new();
    loop {
        if let Some(pace) = &mut pace {
            pace.tick().await;
        }
        match end.next().await {
            Received::Bytes(bytes) => chunks.push(bytes),
            Received::Closed(code) => return (checksum(chunks), code),
            Received::Text(text) => panic!("the relay said {text:?}"),
        }
    }
}

/// A reader that stops for a minute, and then reads what it was sent.
async fn stopped(case: Case, yardstick: &Arc<Yardstick>) {
    const TOTAL: u64 = 64 * MIB;
    let watched = Watched::new(case.way, &[]).await;
    let (agent, phone) = watched.members.pipe_with(case.flow).await;
    let (pattern, sent, stage) =
        (Pattern::new(), watch::Sender::new(Sent::default()), watch::Sender::new(Stage::Stopped));
    let reader = async {
        tokio::time::sleep(STOP).await;
        {
            let sent = sent.borrow();
            assert!(sent.bytes < TOTAL && sent.closed.is_none(), "{case:?}: the sender waits: {sent:?}");
            assert_eq!(sent.paused, case.flow, "{case:?}: and is told, if it understands");
            eprintln!("{case:?}: {} MiB sent to a reader that has stopped", sent.bytes / MIB);
        }
        stage.send_replace(Stage::CatchingUp);
        assert_eq!(read(phone, None).await, (pattern.checksum(TOTAL), 1000), "{case:?}: all of it arrives");
        stage.send_replace(Stage::Done);
    };
    let sender = send(agent, pattern.chunks(TOTAL), case.flow, &sent);
    let watching = watched.watch(yardstick, &stage);
    tokio::join!(reader, sender);
    // That it was told to go on shows in that all of it arrived; a last word before the end may be `pause`.
    assert_eq!(sent.borrow().pauses > 0, case.flow, "{case:?}");
    watching.await.expect("no panic").must_be_within_limits(case);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_stops_for_a_minute_costs_the_sender_time_and_neither_memory_nor_answers_of_the_relay() {
    if !Relay::controllable() {
        return;
    }
    let yardstick = Yardstick::new().await;
    join_all(cases().map(|case| stopped(case, &yardstick))).await;
}

/// A reader that never reads on.
async fn given_up(case: Case, yardstick: &Arc<Yardstick>) {
    let watched = Watched::new(case.way, &["RELAY_PIPE_STALL_SECS=5"]).await;
    let (mut other_agent, mut other_phone) = watched.members.pipe().await;
    let (agent, phone) = watched.members.pipe_with(case.flow).await;
    let (pattern, sent, stage) =
        (Pattern::new(), watch::Sender::new(Sent::default()), watch::Sender::new(Stage::Stopped));
    let watching = watched.watch(yardstick, &stage);
    send(agent, pattern.chunks(1024 * MIB), case.flow, &sent).await;
    assert_eq!(sent.borrow().closed, Some(PipeClose::PeerTooSlow.code()), "{case:?}: the sender learns it");
    stage.send_replace(Stage::CatchingUp);
    // The reader learns it as well, once it reads what was on its way.
    assert_eq!(read(phone, None).await.1, PipeClose::PeerTooSlow.code(), "{case:?}");
    other_agent.passes_to(&mut other_phone).await;
    stage.send_replace(Stage::Done);
    watching.await.expect("no panic").must_be_within_limits(case);
}

/// A reader of 1 MiB a second.
async fn slow(case: Case, yardstick: &Arc<Yardstick>) {
    const TOTAL: u64 = 40 * MIB;
    let watched = Watched::new(case.way, &[]).await;
    let (agent, phone) = watched.members.pipe_with(case.flow).await;
    let (pattern, sent, stage) =
        (Pattern::new(), watch::Sender::new(Sent::default()), watch::Sender::new(Stage::Reading));
    let reader = async {
        let pace = interval(Duration::from_secs(1) / 16);
        assert_eq!(read(phone, Some(pace)).await, (pattern.checksum(TOTAL), 1000), "{case:?}: all of it arrives");
        stage.send_replace(Stage::Done);
    };
    let sender = send(agent, pattern.chunks(TOTAL), case.flow, &sent);
    let watching = watched.watch(yardstick, &stage);
    tokio::join!(reader, sender);
    assert!(sent.borrow().pauses > 0 || !case.flow, "{case:?}: it was too fast for a while");
    watching.await.expect("no panic").must_be_within_limits(case);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_gets_everything_and_one_that_never_reads_is_given_up_at_both_ends() {
    if !Relay::controllable() {
        return;
    }
    let yardstick = Yardstick::new().await;
    tokio::join!(
        join_all(cases().map(|case| slow(case, &yardstick))),
        join_all(cases().map(|case| given_up(case, &yardstick))),
    );
}
