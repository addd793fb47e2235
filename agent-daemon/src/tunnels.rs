//! Where the bytes of tunnels pass: a thread of its own, so that neither the hub nor the disk ever waits behind them.
//!
//! Each tunnel is a task: connects to the server on 127.0.0.1, waits for the hub's word, joins the pipe, and passes bytes
//! both ways ([`skald_link::splice`]). Dropping it, which [`TunnelOrder::End`] and the end of the thread do, ends it at
//! once. The rules are the hub's.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use skald_common::crypto::Identity;
use skald_common::ids::{ConnectionId, NamespaceId};
use skald_common::limits::PIPE_OPEN_MS;
use skald_common::pipe::Agreed;
use skald_link::pipe;
use skald_link::splice::{LocalEnd, Traffic, splice};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::hub::{Passed, TunnelNews, TunnelOrder};

/// How long the local server may take to answer: the opener waits for 30 s in all.
const DIAL: Duration = Duration::from_secs(5);
/// After the connection stands, the hub either agrees or ends the tunnel; longer than it may take for that.
const AGREE: Duration = Duration::from_millis(2 * PIPE_OPEN_MS);

/// What carries the tunnels: a [`TunnelThread`], unless a test has something else in mind.
pub(crate) trait Tunnels {
    /// Begins to carry out an order; never waits.
    fn order(&mut self, order: TunnelOrder);
    /// What has passed through each tunnel.
    fn passed(&self) -> Passed;
}

/// The thread's handle. Dropped, it ends every tunnel.
#[derive(Debug)]
pub(crate) struct TunnelThread {
    orders: Option<mpsc::UnboundedSender<Order>>,
    /// At most two for each tunnel.
    news: mpsc::UnboundedReceiver<TunnelNews>,
    traffic: HashMap<ConnectionId, Arc<Traffic>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Debug)]
enum Order {
    Dial(ConnectionId, u16, Arc<Traffic>),
    Open(String, Box<Agreed>),
    End(ConnectionId),
}

impl TunnelThread {
    /// Starts it, for the agent of this identity.
    pub(crate) fn start(identity: Identity) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (orders, received) = mpsc::unbounded_channel();
        let (tell, news) = mpsc::unbounded_channel();
        let thread = std::thread::Builder::new().name("tunnels".into()).spawn(move || {
            runtime.block_on(run(identity, received, tell));
            // A name that is still being resolved is nothing to wait for.
            runtime.shutdown_background();
        })?;
        Ok(Self { orders: Some(orders), news, traffic: HashMap::new(), thread: Some(thread) })
    }

    /// Ends every tunnel, at once.
    pub(crate) fn stop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // One that has crashed has dropped its tunnels as well.
            let _ = thread.join();
        }
    }

    /// The next news. Cancel safe.
    pub(crate) async fn next(&mut self) -> TunnelNews {
        let Some(news) = self.news.recv().await else { return std::future::pending().await };
        if let TunnelNews::Refused(connection) | TunnelNews::Ended(connection) = news {
            self.traffic.remove(&connection);
        }
        news
    }
}

impl Tunnels for TunnelThread {
    fn order(&mut self, order: TunnelOrder) {
        let order = match order {
            TunnelOrder::Dial { connection, port } => {
                let traffic = Arc::new(Traffic::default());
                self.traffic.insert(connection, Arc::clone(&traffic));
                Order::Dial(connection, port, traffic)
            }
            TunnelOrder::Open { url, agreed } => Order::Open(url, agreed),
            TunnelOrder::End(connection) => {
                self.traffic.remove(&connection);
                Order::End(connection)
            }
        };
        // A thread that has ended carries nothing any more.
        let _ = self.orders.as_ref().map(|orders| orders.send(order));
    }

    fn passed(&self) -> Passed {
        let both = |traffic: &Traffic| (traffic.sent(), traffic.received());
        self.traffic.iter().map(|(connection, traffic)| (*connection, both(traffic))).collect()
    }
}

impl Drop for TunnelThread {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A tunnel's task, and how it hears that the pipe is agreed on.
struct Task {
    abort: AbortHandle,
    agreed: Option<oneshot::Sender<(String, Box<Agreed>)>>,
}

async fn run(identity: Identity, mut orders: mpsc::UnboundedReceiver<Order>, news: mpsc::UnboundedSender<TunnelNews>) {
    let identity = Arc::new(identity);
    let mut running = JoinSet::new();
    let mut tasks: HashMap<ConnectionId, Task> = HashMap::new();
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                Some(Order::Dial(connection, port, traffic)) => {
                    let (agreed, agreement) = oneshot::channel();
                    let (identity, news) = (Arc::clone(&identity), news.clone());
                    let abort = running.spawn(async move {
                        let ended = tunnel(connection, port, agreement, &identity, traffic, &news).await;
                        (connection, ended)
                    });
                    tasks.insert(connection, Task { abort, agreed: Some(agreed) });
                }
                Some(Order::Open(url, agreed)) => {
                    let task = tasks.get_mut(&agreed.connection).and_then(|task| task.agreed.take());
                    // A tunnel that has ended meanwhile has said so.
                    let _ = task.map(|task| task.send((url, agreed)));
                }
                Some(Order::End(connection)) => {
                    if let Some(task) = tasks.remove(&connection) {
                        task.abort.abort();
                    }
                }
                None => return,
            },
            // One that was aborted is in no table any more.
            Some(ended) = running.join_next() => if let Ok((connection, ended)) = ended {
                tasks.remove(&connection);
                // Without the hub there is nobody to tell.
                let _ = news.send(ended);
            },
        }
    }
}

/// A tunnel from its beginning to its end.
async fn tunnel(
    connection: ConnectionId,
    port: u16,
    agreement: oneshot::Receiver<(String, Box<Agreed>)>,
    identity: &Identity,
    traffic: Arc<Traffic>,
    news: &mpsc::UnboundedSender<TunnelNews>,
) -> TunnelNews {
    let Some(server) = dial(port).await else { return TunnelNews::Refused(connection) };
    let _ = news.send(TunnelNews::Dialled(connection));
    let ended = TunnelNews::Ended(connection);
    let Ok(Ok((url, agreed))) = timeout(AGREE, agreement).await else { return ended };
    let device = agreed.partner.short();
    let namespace: NamespaceId = identity.namespace_id();
    match pipe::connect(&url, identity, namespace, *agreed).await {
        Ok(pipe) => {
            tracing::debug!(%device, "a tunnel is open");
            let end = splice(server, pipe.split(), LocalEnd::Final, traffic).await;
            tracing::debug!(%device, %end, "a tunnel has ended");
        }
        Err(error) => tracing::warn!(%device, %error, "a tunnel could not be opened"),
    }
    ended
}

/// The local server; `None`: it refuses, or does not answer.
async fn dial(port: u16) -> Option<TcpStream> {
    let server = timeout(DIAL, TcpStream::connect((Ipv4Addr::LOCALHOST, port))).await.ok()?.ok()?;
    // Without it bytes wait for one another, which only costs time.
    let _ = server.set_nodelay(true);
    Some(server)
}

#[cfg(test)]
mod tests {
    use futures_util::{SinkExt as _, StreamExt as _};
    use skald_common::crypto::{PipeCipher, PipeEnd, PipeSecret, Seed};
    use skald_common::ids::ChallengeNonce;
    use skald_common::pipe::{PipeAuth, auth};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_tungstenite::WebSocketStream;
    use tokio_tungstenite::tungstenite::Message;

    use super::*;

    const PIPE: ConnectionId = ConnectionId::new([7; 32]);

    /// The local server, the relay, and the device at the other end of the pipe.
    struct World {
        thread: TunnelThread,
        server: TcpListener,
        relay: TcpListener,
    }

    /// What is awaited comes at once, and not after one of the long waits.
    async fn soon<T>(what: impl Future<Output = T>) -> T {
        timeout(Duration::from_secs(15), what).await.expect("it comes soon")
    }

    async fn listen() -> TcpListener {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap()
    }

    fn identity(n: u8) -> Identity {
        Identity::new(&Seed::new([n; 32]))
    }

    fn agreed() -> (Box<Agreed>, PipeCipher) {
        let (ours, theirs) = (PipeSecret::new([1; 32]), PipeSecret::new([2; 32]));
        let (our_half, their_half) = (ours.public(), theirs.public());
        let cipher = ours.agree(&their_half, PIPE, PipeEnd::Responder).unwrap();
        let agreed = Agreed { connection: PIPE, partner: identity(2).ed25519_pub(), cipher };
        (Box::new(agreed), theirs.agree(&our_half, PIPE, PipeEnd::Initiator).unwrap())
    }

    impl World {
        async fn new() -> Self {
            let thread = TunnelThread::start(identity(1)).unwrap();
            Self { thread, server: listen().await, relay: listen().await }
        }

        async fn dialled(&mut self) -> TcpStream {
            let port = self.server.local_addr().unwrap().port();
            self.thread.order(TunnelOrder::Dial { connection: PIPE, port });
            assert_eq!(self.thread.next().await, TunnelNews::Dialled(PIPE));
            self.server.accept().await.unwrap().0
        }

        async fn open(&mut self) -> (TcpStream, WebSocketStream<TcpStream>, PipeCipher) {
            let server = self.dialled().await;
            let (agreed, cipher) = agreed();
            let url = format!("ws://{}/v1/ws", self.relay.local_addr().unwrap());
            self.thread.order(TunnelOrder::Open { url, agreed });
            let (tcp, _) = self.relay.accept().await.unwrap();
            let mut relay = tokio_tungstenite::accept_async(tcp).await.unwrap();
            let nonce = ChallengeNonce::new([3; 32]);
            relay.send(Message::Binary(auth::encode_challenge(&nonce).into())).await.unwrap();
            let Message::Binary(answer) = relay.next().await.unwrap().unwrap() else { panic!("no answer") };
            let answer = PipeAuth::decode(&answer).unwrap();
            assert!(answer.verify(&nonce) && answer.flow);
            assert_eq!((answer.connection, answer.pubkey), (PIPE, identity(1).ed25519_pub()));
            (server, relay, cipher)
        }
    }

    #[tokio::test]
    async fn request_and_response_pass_and_the_pipe_is_closed_after_the_server() {
        let mut world = World::new().await;
        let (mut server, mut relay, mut cipher) = world.open().await;
        relay.send(Message::Binary(cipher.seal(b"GET /").unwrap().into())).await.unwrap();
        let mut request = [0; 5];
        server.read_exact(&mut request).await.unwrap();
        assert_eq!(&request, b"GET /");
        server.write_all(&vec![8; 300_000]).await.unwrap();
        drop(server);
        let mut response = Vec::new();
        let code = loop {
            match soon(relay.next()).await.unwrap().unwrap() {
                Message::Binary(frame) => response.extend(cipher.open(&frame).unwrap()),
                Message::Close(frame) => break frame.map(|frame| u16::from(frame.code)),
                _ => {}
            }
        };
        assert!(response == vec![8; 300_000]);
        assert_eq!(code, Some(1000));
        assert_eq!(world.thread.passed(), Passed::from([(PIPE, (300_000, 5))]));
        drop(relay);
        assert_eq!(world.thread.next().await, TunnelNews::Ended(PIPE));
        assert_eq!(world.thread.passed(), Passed::new());
    }

    #[tokio::test]
    async fn a_server_that_is_down_is_told_at_once() {
        let mut thread = TunnelThread::start(identity(1)).unwrap();
        let port = listen().await.local_addr().unwrap().port();
        thread.order(TunnelOrder::Dial { connection: PIPE, port });
        assert_eq!(thread.next().await, TunnelNews::Refused(PIPE));
        assert_eq!(thread.passed(), Passed::new());
    }

    #[tokio::test]
    async fn ended_by_the_hub_or_with_the_daemon_both_sides_are_closed_at_once() {
        for with_the_daemon in [false, true] {
            let mut world = World::new().await;
            let (mut server, mut relay, _) = world.open().await;
            if with_the_daemon {
                world.thread.stop();
            } else {
                world.thread.order(TunnelOrder::End(PIPE));
                assert_eq!(world.thread.passed(), Passed::new());
            }
            assert!(matches!(soon(server.read(&mut [0; 1])).await, Ok(0) | Err(_)));
            while let Some(Ok(message)) = soon(relay.next()).await {
                assert!(!message.is_binary());
            }
        }
    }

    #[tokio::test]
    async fn a_tunnel_that_is_ended_before_it_was_agreed_on_lets_go_of_the_server() {
        let mut world = World::new().await;
        let mut server = world.dialled().await;
        world.thread.order(TunnelOrder::End(PIPE));
        assert!(matches!(soon(server.read(&mut [0; 1])).await, Ok(0) | Err(_)));
    }

    #[tokio::test]
    async fn a_relay_that_cannot_be_reached_ends_the_tunnel() {
        let mut world = World::new().await;
        let mut server = world.dialled().await;
        let nowhere = listen().await.local_addr().unwrap();
        world.thread.order(TunnelOrder::Open { url: format!("ws://{nowhere}/v1/ws"), agreed: agreed().0 });
        assert_eq!(world.thread.next().await, TunnelNews::Ended(PIPE));
        assert!(matches!(soon(server.read(&mut [0; 1])).await, Ok(0) | Err(_)));
    }
}
