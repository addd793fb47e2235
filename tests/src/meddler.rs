//! A proxy on the way to a relay that tampers with the frames of pipes, as a relay could that is not to be trusted. Whatever
//! it does, an end must notice, end the pipe, and pass nothing on.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use skald_common::wire::{CONTROL_PATH, PIPE_PATH};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, accept_hdr_async, connect_async};

use crate::tap::From;
use crate::within;

/// What happens to a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trick {
    /// One bit of it is another.
    Flip,
    /// Its last byte is missing.
    Cut,
    /// Shorter than a seal.
    Stump,
    /// Nothing is left of it.
    Empty,
    /// It comes twice.
    Repeat,
    /// It comes after the next one.
    Swap,
    /// It does not come; the next one does.
    Lose,
    /// Its sender gets it back, as if the other end had sealed it.
    Reflect,
    /// In its place comes one of an earlier pipe, of the same end and with the same number: of another key.
    Foreign,
}

impl Trick {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Flip,
        Self::Cut,
        Self::Stump,
        Self::Empty,
        Self::Repeat,
        Self::Swap,
        Self::Lose,
        Self::Reflect,
        Self::Foreign,
    ];
}

/// The proxy; it ends when dropped, and its connections with it.
#[derive(Debug)]
pub struct Meddler {
    url: String,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    upstream: String,
    plan: Mutex<Option<(From, Trick)>>,
    done: watch::Sender<u32>,
    /// All frames so far, with whose they are and their number in their pipe.
    seen: Mutex<Vec<(From, u32, Bytes)>>,
}

impl Meddler {
    /// In front of the relay with this control address.
    pub async fn in_front_of(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("ws://{}{CONTROL_PATH}", listener.local_addr().expect("it is bound"));
        let shared = Arc::new(Shared {
            upstream: upstream.strip_suffix(CONTROL_PATH).expect("the relay's own address").to_owned(),
            plan: Mutex::default(),
            done: watch::Sender::new(0),
            seen: Mutex::default(),
        });
        let task = tokio::spawn(serve(listener, Arc::clone(&shared)));
        Self { url, shared, task }
    }

    /// Its control socket.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Does this to the next frame on any pipe; the handle tells when it has come.
    pub fn meddle(&self, from: From, trick: Trick) -> Meddled {
        let mut done = self.shared.done.subscribe();
        done.mark_unchanged();
        *self.shared.plan.lock().expect("no panic") = Some((from, trick));
        Meddled(done)
    }
}

impl Drop for Meddler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Tells when a frame was tampered with.
#[derive(Debug)]
pub struct Meddled(watch::Receiver<u32>);

impl Meddled {
    /// Waits for it.
    pub async fn done(&mut self) {
        within("a frame to tamper with", self.0.changed()).await.expect("the proxy lives");
    }
}

type Peer = WebSocketStream<TcpStream>;
type Relay = WebSocketStream<MaybeTlsStream<TcpStream>>;

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(splice(stream, Arc::clone(&shared)));
    }
}

#[expect(clippy::result_large_err, reason = "the signature is the library's")]
async fn splice(stream: TcpStream, shared: Arc<Shared>) {
    let mut path = String::new();
    let see_path = |request: &Request, response: Response| -> Result<Response, ErrorResponse> {
        request.uri().path().clone_into(&mut path);
        Ok(response)
    };
    let Ok(peer) = accept_hdr_async(stream, see_path).await else { return };
    let Ok((relay, _)) = connect_async(format!("{}{path}", shared.upstream)).await else { return };
    let ((to_peer, from_peer), (to_relay, from_relay)) = (peer.split(), relay.split());
    let is_pipe = path.ends_with(PIPE_PATH);
    let (back, reflected) = mpsc::unbounded_channel();
    // Each direction ends with a close or a cut; the other one may still have something to say, the close's answer at least.
    tokio::join!(
        carry(From::Peer, from_peer, to_relay, is_pipe.then_some(&*shared), Some(back), None),
        carry(From::Relay, from_relay, to_peer, is_pipe.then_some(&*shared), None, Some(reflected)),
    );
}

trait Source: futures_util::Stream<Item = Result<Message, tokio_tungstenite::tungstenite::Error>> + Unpin {}
impl Source for SplitStream<Peer> {}
impl Source for SplitStream<Relay> {}
trait Sink: futures_util::Sink<Message, Error = tokio_tungstenite::tungstenite::Error> + Unpin {}
impl Sink for SplitSink<Peer, Message> {}
impl Sink for SplitSink<Relay, Message> {}

/// One direction, until it closes. The first binary message of a pipe is the handshake's.
async fn carry(
    from: From,
    mut source: impl Source,
    mut sink: impl Sink,
    pipe: Option<&Shared>,
    back: Option<mpsc::UnboundedSender<Bytes>>,
    mut reflected: Option<mpsc::UnboundedReceiver<Bytes>>,
) {
    let (mut binary, mut held) = (0, None);
    loop {
        let message = tokio::select! {
            message = source.next() => message,
            Some(frame) = next_of(&mut reflected) => {
                if sink.send(Message::Binary(frame)).await.is_err() {
                    break;
                }
                continue;
            }
        };
        let Some(Ok(message)) = message else { break };
        binary += u32::from(message.is_binary());
        let outgoing = match (pipe, message) {
            (Some(shared), Message::Binary(frame)) if binary > 1 => {
                shared.tamper((from, binary), frame, &mut held, back.as_ref())
            }
            // Each leg answers its own.
            (_, Message::Ping(_) | Message::Pong(_)) => Vec::new(),
            (_, message) => vec![message],
        };
        for message in outgoing {
            let closing = message.is_close();
            if sink.send(message).await.is_err() || closing {
                return;
            }
        }
    }
    let _ = sink.close().await;
}

async fn next_of(reflected: &mut Option<mpsc::UnboundedReceiver<Bytes>>) -> Option<Bytes> {
    match reflected {
        Some(reflected) => reflected.recv().await,
        None => None,
    }
}

impl Shared {
    /// What goes on instead of this frame. `held`: what waits for the next one.
    fn tamper(
        &self,
        (from, number): (From, u32),
        frame: Bytes,
        held: &mut Option<Bytes>,
        back: Option<&mpsc::UnboundedSender<Bytes>>,
    ) -> Vec<Message> {
        let mut seen = self.seen.lock().expect("no panic");
        let foreign = seen.iter().find(|(whose, place, _)| *whose == from && *place == number);
        let foreign = foreign.map(|(_, _, frame)| frame.clone());
        seen.push((from, number, frame.clone()));
        let binary =
            |frames: &[&[u8]]| frames.iter().map(|&frame| Message::Binary(Bytes::copy_from_slice(frame))).collect();
        if let Some(before) = held.take() {
            return binary(&[&frame, &before]);
        }
        let Some((_, trick)) = self.plan.lock().expect("no panic").take_if(|(whose, _)| *whose == from) else {
            return binary(&[&frame]);
        };
        let frames = match trick {
            Trick::Flip => {
                let mut other = frame.to_vec();
                other[frame.len() / 2] ^= 1;
                binary(&[&other])
            }
            Trick::Cut => binary(&[&frame[..frame.len() - 1]]),
            Trick::Stump => binary(&[&frame[..5]]),
            Trick::Empty => binary(&[&[]]),
            Trick::Repeat => binary(&[&frame, &frame]),
            Trick::Swap => {
                *held = Some(frame);
                Vec::new()
            }
            Trick::Lose => Vec::new(),
            Trick::Reflect => {
                let back = back.expect("only a peer gets back what it sent");
                back.send(frame.clone()).expect("the other direction lives");
                binary(&[&frame])
            }
            Trick::Foreign => binary(&[&foreign.expect("another pipe was there before")]),
        };
        self.done.send_modify(|done| *done += 1);
        frames
    }
}
