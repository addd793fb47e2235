use tokio::io::DuplexStream;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;

/// Frames that a direction of a [`pipe`] holds.
const ROOM: usize = 4;

/// One direction, in memory: what is dropped without a word has broken.
struct Out(mpsc::Sender<Result<Bytes, PipeEnded>>);
struct In(mpsc::Receiver<Result<Bytes, PipeEnded>>);

impl PipeOut for Out {
    async fn send(&mut self, bytes: &[u8]) -> Result<(), PipeEnded> {
        self.0.send(Ok(Bytes::copy_from_slice(bytes))).await.map_err(|_| PipeEnded::Broken("gone".into()))
    }

    async fn close(self) -> Result<(), PipeEnded> {
        self.0.send(Err(PipeEnded::InOrder)).await.map_err(|_| PipeEnded::Broken("gone".into()))
    }
}

impl PipeIn for In {
    async fn recv(&mut self) -> Result<Bytes, PipeEnded> {
        self.0.recv().await.unwrap_or(Err(PipeEnded::Broken("gone".into())))
    }
}

impl In {
    async fn all(&mut self) -> (Vec<u8>, PipeEnded) {
        let mut all = Vec::new();
        loop {
            match self.recv().await {
                Ok(bytes) => all.extend_from_slice(&bytes),
                Err(end) => return (all, end),
            }
        }
    }
}

/// Both ends of a pipe.
fn pipe() -> ((Out, In), (Out, In)) {
    let (near, from_near) = mpsc::channel(ROOM);
    let (far, from_far) = mpsc::channel(ROOM);
    ((Out(near), In(from_far)), (Out(far), In(from_near)))
}

impl Local for DuplexStream {
    type Read = tokio::io::ReadHalf<Self>;
    type Write = tokio::io::WriteHalf<Self>;

    fn halves(self) -> (Self::Read, Self::Write) {
        tokio::io::split(self)
    }

    /// Says what happened, where it can.
    async fn broken(mut write: Self::Write, why: &str, untouched: bool) -> bool {
        if untouched {
            write.write_all(format!("sorry: {why}").as_bytes()).await.unwrap();
            write.shutdown().await.unwrap();
        }
        untouched
    }
}

struct World<L> {
    /// The other side of the local connection.
    user: L,
    out: Out,
    inward: In,
    traffic: Arc<Traffic>,
    end: JoinHandle<SpliceEnd>,
}

fn start<L: Local + Send + 'static>(local: L, user: L, end: LocalEnd) -> World<L> {
    let (near, (out, inward)) = pipe();
    let traffic = Arc::new(Traffic::default());
    let end = tokio::spawn(splice(local, near, end, Arc::clone(&traffic)));
    World { user, out, inward, traffic, end }
}

async fn tcp(end: LocalEnd) -> World<TcpStream> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let user = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    start(listener.accept().await.unwrap().0, user, end)
}

/// With a clock that passes by itself where nothing else happens.
fn memory(end: LocalEnd) -> World<DuplexStream> {
    let (local, user) = tokio::io::duplex(CHUNK);
    start(local, user, end)
}

fn noise(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(2_654_435_761) >> 11).to_le_bytes()[0] ^ seed).collect()
}

#[tokio::test]
async fn both_directions_carry_megabytes_at_once_unchanged() {
    let mut world = tcp(LocalEnd::Final).await;
    let (up, down) = (noise(8 << 20, 1), noise(8 << 20, 2));
    let (mut read, mut write) = world.user.split();
    let user = async {
        let writes = async {
            write.write_all(&up).await.unwrap();
        };
        let reads = async {
            let mut got = vec![0; down.len()];
            read.read_exact(&mut got).await.unwrap();
            got
        };
        tokio::join!(writes, reads).1
    };
    let far = async {
        for piece in down.chunks(CHUNK) {
            world.out.send(piece).await.unwrap();
        }
    };
    let received = async {
        let mut all = Vec::new();
        while all.len() < up.len() {
            all.extend_from_slice(&world.inward.recv().await.unwrap());
        }
        all
    };
    let (read, (), received) = tokio::join!(user, far, received);
    assert!(read == down && received == up);
    assert_eq!(world.traffic.sent(), up.len() as u64);
}

#[tokio::test]
async fn what_a_server_sent_before_it_closed_arrives_before_the_pipe_is_closed_in_order() {
    let mut world = tcp(LocalEnd::Final).await;
    let response = noise(1 << 20, 3);
    let server = async {
        world.user.write_all(&response).await.unwrap();
        world.user.shutdown().await.unwrap();
    };
    let ((), (all, end)) = tokio::join!(server, world.inward.all());
    assert!(all == response);
    assert_eq!(end, PipeEnded::InOrder);
    assert!(matches!(world.end.await.unwrap(), SpliceEnd::Local));
}

#[tokio::test]
async fn what_came_before_a_pipe_was_closed_is_written_and_the_connection_ends_in_order() {
    let World { mut user, mut out, end, traffic, .. } = tcp(LocalEnd::Final).await;
    let request = noise(1 << 20, 4);
    let far = async {
        for piece in request.chunks(CHUNK) {
            out.send(piece).await.unwrap();
        }
        out.close().await.unwrap();
    };
    let mut all = Vec::new();
    let ((), read) = tokio::join!(far, user.read_to_end(&mut all));
    read.unwrap();
    assert!(all == request);
    drop(user);
    assert!(matches!(end.await.unwrap(), SpliceEnd::Pipe));
    assert_eq!(traffic.received(), request.len() as u64);
}

#[tokio::test]
async fn a_broken_pipe_resets_the_connection_after_what_came_before_was_written() {
    let World { mut user, mut out, end, .. } = tcp(LocalEnd::MayWait).await;
    out.send(b"half of it").await.unwrap();
    let mut half = [0; 10];
    user.read_exact(&mut half).await.unwrap();
    assert_eq!(&half, b"half of it");
    drop(out);
    let error = user.read(&mut half).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    let SpliceEnd::PipeBroke(why) = end.await.unwrap() else { panic!("not broken") };
    assert_eq!(why, "gone");
}

#[tokio::test]
async fn a_pipe_that_breaks_before_anything_came_lets_the_connection_say_so() {
    let World { mut user, out, inward, end, .. } = memory(LocalEnd::MayWait);
    drop((out, inward));
    let mut all = String::new();
    user.read_to_string(&mut all).await.unwrap();
    assert_eq!(all, "sorry: gone");
    drop(user);
    assert!(matches!(end.await.unwrap(), SpliceEnd::PipeBroke(_)));

    let World { mut user, mut out, inward, .. } = memory(LocalEnd::MayWait);
    out.send(b"something").await.unwrap();
    drop((out, inward));
    all.clear();
    user.read_to_string(&mut all).await.unwrap();
    assert_eq!(all, "something");
}

#[tokio::test]
async fn a_connection_that_breaks_breaks_the_pipe() {
    let World { user, mut inward, out, end, .. } = tcp(LocalEnd::MayWait).await;
    user.set_zero_linger().unwrap();
    drop(user);
    assert!(matches!(inward.all().await, (_, PipeEnded::Broken(_))));
    assert!(matches!(end.await.unwrap(), SpliceEnd::LocalBroke(_)));
    drop(out);
}

#[tokio::test]
async fn a_client_that_is_still_sending_when_the_server_closes_gets_the_whole_response() {
    let World { mut user, mut out, mut inward, end, .. } = tcp(LocalEnd::MayWait).await;
    user.write_all(b"the first of many").await.unwrap();
    assert_eq!(inward.recv().await.unwrap(), "the first of many");
    out.send(b"too large, thank you").await.unwrap();
    out.close().await.unwrap();
    // The pipe has ended: nobody takes the rest of the upload, of which the client sends all before it reads: more than sockets hold.
    drop(inward);
    user.write_all(&vec![7; 16 << 20]).await.unwrap();
    user.shutdown().await.unwrap();
    let mut all = String::new();
    user.read_to_string(&mut all).await.unwrap();
    assert_eq!(all, "too large, thank you");
    assert!(matches!(end.await.unwrap(), SpliceEnd::Pipe));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_closes_its_half_after_its_request_gets_the_response() {
    let mut world = memory(LocalEnd::MayWait);
    world.user.write_all(b"request").await.unwrap();
    world.user.shutdown().await.unwrap();
    assert_eq!(world.inward.recv().await.unwrap(), "request");
    // The server thinks, and then sends in pieces with pauses.
    for piece in ["one", "two", "three"] {
        sleep(WAITING * 9 / 10).await;
        world.out.send(piece.as_bytes()).await.unwrap();
    }
    world.out.close().await.unwrap();
    let mut response = String::new();
    world.user.read_to_string(&mut response).await.unwrap();
    assert_eq!(response, "onetwothree");
    assert!(matches!(world.end.await.unwrap(), SpliceEnd::Pipe));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_left_frees_its_pipe_soon_and_one_that_may_wait_after_a_silence() {
    for (answered, patience) in [(true, ANSWERED), (false, WAITING)] {
        let mut world = memory(LocalEnd::MayWait);
        world.user.write_all(b"request").await.unwrap();
        assert_eq!(world.inward.recv().await.unwrap(), "request");
        if answered {
            world.out.send(b"response").await.unwrap();
            world.user.read_exact(&mut [0; 8]).await.unwrap();
        }
        let before = Instant::now();
        world.user.shutdown().await.unwrap();
        assert_eq!(world.inward.recv().await.unwrap_err(), PipeEnded::InOrder);
        assert!((patience..patience * 2).contains(&before.elapsed()), "{:?}", before.elapsed());
        assert!(matches!(world.end.await.unwrap(), SpliceEnd::Local));
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_stops_holds_its_own_direction_alone_and_within_bounds() {
    let mut world = memory(LocalEnd::Final);
    let (mut read, mut write) = tokio::io::split(world.user);
    let piece = vec![7; CHUNK];
    let mut pieces = 0;
    // The clock moves on when nothing else can.
    while timeout(Duration::from_secs(1), write.write_all(&piece)).await.is_ok() {
        pieces += 1;
    }
    assert!(pieces <= ROOM + 3, "{pieces} pieces were taken that nobody reads");
    world.out.send(b"the other way").await.unwrap();
    let mut other = [0; 13];
    read.read_exact(&mut other).await.unwrap();
    assert_eq!(&other, b"the other way");
}

#[tokio::test]
async fn dropping_a_splice_ends_both_sides_at_once() {
    let World { mut user, mut inward, out, end, .. } = tcp(LocalEnd::MayWait).await;
    end.abort();
    assert!(matches!(inward.all().await, (_, PipeEnded::Broken(_))));
    assert!(matches!(user.read(&mut [0; 1]).await, Ok(0) | Err(_)));
    drop(out);
}
