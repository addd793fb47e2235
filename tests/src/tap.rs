//! A proxy on the way to a relay: it passes bytes on as they come and reads along. What peers seal is noted for good, and
//! at a moment of the test's choice it falls silent, as a network does that lost its route: nothing arrives any more, and
//! nobody is told.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use skald_common::wire::{self, Frame, Role};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_tungstenite::tungstenite::protocol::frame::FrameHeader;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use crate::within;

/// Everything that was sealed and sent, over all taps and for as long as the test lasts: no key may see a nonce twice.
#[derive(Debug, Clone, Default)]
pub struct Nonces(Arc<Mutex<Sealed>>);

#[derive(Debug, Default)]
struct Sealed {
    /// By sender, recipient (together they name the key) and nonce.
    seen: BTreeMap<(Bytes, Bytes, Bytes), Bytes>,
    reused: usize,
}

impl Nonces {
    /// Different messages, and how many of them had a nonce that another one had before. A message that is repeated as it
    /// was is the same message.
    pub fn count(&self) -> (usize, usize) {
        let sealed = self.0.lock().expect("no panic");
        (sealed.seen.len(), sealed.reused)
    }

    fn note(&self, sender: &Bytes, message: wire::Message) {
        let mut sealed = self.0.lock().expect("no panic");
        let name = (sender.clone(), message.peer.into(), message.nonce.into());
        match sealed.seen.get(&name) {
            Some(before) if *before != message.ciphertext => sealed.reused += 1,
            Some(_) => {}
            None => {
                sealed.seen.insert(name, message.ciphertext);
            }
        }
    }
}

/// Whose bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// A daemon's or a phone's.
    Peer,
    /// The relay's.
    Relay,
}

/// Which frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A stored message.
    Stored,
    /// A live message.
    Live,
    /// A receipt of a recipient.
    Ack,
    /// A receipt of the relay.
    Accepted,
}

/// What happens to a connection from the moment on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Nothing arrives any more, in neither direction, and nothing closes.
    Silence,
    /// Nothing arrives any more, but the end of one side ends the other: time to kill one of them.
    Freeze,
}

/// A moment, by the frame that passes.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Whose frame.
    pub from: From,
    /// Which.
    pub what: What,
    /// Whether this frame still arrives.
    pub arrives: bool,
    /// What comes then.
    pub then: Then,
}

/// The proxy; it ends when dropped, and its connections with it.
#[derive(Debug)]
pub struct Tap {
    url: String,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    upstream: String,
    nonces: Nonces,
    trap: Mutex<Option<Moment>>,
    sprung: watch::Sender<u32>,
    /// Connections so far; those up to the second number are silent.
    opened: watch::Sender<u64>,
    silent_up_to: Mutex<u64>,
    /// Texts of peers.
    pings: watch::Sender<u64>,
}

impl Tap {
    /// In front of the relay at `upstream`, noting in `nonces`.
    pub async fn in_front_of(upstream: &str, nonces: &Nonces) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let rest = upstream.strip_prefix("ws://").expect("the taps are for relays of our own");
        let (host, path) = rest.split_once('/').expect("an address with a path");
        let url = format!("ws://{}/{path}", listener.local_addr().expect("it is bound"));
        let shared = Arc::new(Shared {
            upstream: host.to_owned(),
            nonces: nonces.clone(),
            trap: Mutex::default(),
            sprung: watch::Sender::new(0),
            opened: watch::Sender::new(0),
            silent_up_to: Mutex::default(),
            pings: watch::Sender::new(0),
        });
        let task = tokio::spawn(serve(listener, Arc::clone(&shared)));
        Self { url, shared, task }
    }

    /// Its control socket.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// All connections of now fall silent; later ones do not.
    pub fn silence(&self) {
        *self.shared.silent_up_to.lock().expect("no panic") = *self.shared.opened.borrow();
    }

    /// Lies in wait for a moment; the returned handle tells when it has come.
    pub fn lie_in_wait(&self, moment: Moment) -> Sprung {
        let mut sprung = self.shared.sprung.subscribe();
        sprung.mark_unchanged();
        *self.shared.trap.lock().expect("no panic") = Some(moment);
        Sprung(sprung)
    }

    /// Waits for no moment any more.
    pub fn relax(&self) {
        *self.shared.trap.lock().expect("no panic") = None;
    }

    /// Waits until peers have sent this many further `ping`s.
    pub async fn pings(&self, further: u64) {
        let mut pings = self.shared.pings.subscribe();
        let enough = *pings.borrow_and_update() + further;
        within("pings", pings.wait_for(|pings| *pings >= enough)).await.expect("the tap lives");
    }

    /// How many connections were opened so far.
    pub fn connections(&self) -> u64 {
        *self.shared.opened.borrow()
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Tells when a moment has come.
#[derive(Debug)]
pub struct Sprung(watch::Receiver<u32>);

impl Sprung {
    /// Waits for it.
    pub async fn wait(&mut self) {
        within("the moment at the tap", self.0.changed()).await.expect("the tap lives");
    }

    /// Waits for it as long as it takes; cancel safe.
    pub async fn wait_patiently(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let mut number = 0;
        shared.opened.send_modify(|opened| {
            *opened += 1;
            number = *opened;
        });
        connections.spawn(splice(stream, number, Arc::clone(&shared)));
    }
}

/// Either side's end ends both, unless the connection is silent.
async fn splice(peer: TcpStream, number: u64, shared: Arc<Shared>) {
    let Ok(relay) = TcpStream::connect(&shared.upstream).await else { return };
    let _ = (peer.set_nodelay(true), relay.set_nodelay(true));
    let (from_peer, to_peer) = peer.into_split();
    let (from_relay, to_relay) = relay.into_split();
    let connection = Connection { number, shared, fate: Mutex::default(), sender: Mutex::default() };
    tokio::select! {
        () = carry(&connection, From::Peer, from_peer, to_relay) => {}
        () = carry(&connection, From::Relay, from_relay, to_peer) => {}
    }
}

struct Connection {
    number: u64,
    shared: Arc<Shared>,
    fate: Mutex<Option<Then>>,
    /// The key that the peer has authenticated with.
    sender: Mutex<Bytes>,
}

impl Connection {
    fn fate(&self) -> Option<Then> {
        let silent = self.number <= *self.shared.silent_up_to.lock().expect("no panic");
        if silent { Some(Then::Silence) } else { *self.fate.lock().expect("no panic") }
    }

    /// Reads a frame along; whether it arrives.
    fn look(&self, from: From, unit: &Unit) -> bool {
        let mut arrives = self.fate().is_none();
        if unit.is_text && from == From::Peer {
            self.shared.pings.send_modify(|pings| *pings += 1);
        }
        let Some(frame) = &unit.frame else { return arrives };
        if from == From::Peer {
            self.note(frame);
        }
        let what = what(frame);
        let mut trap = self.shared.trap.lock().expect("no panic");
        if arrives && let Some(moment) = trap.take_if(|moment| moment.from == from && Some(moment.what) == what) {
            *self.fate.lock().expect("no panic") = Some(moment.then);
            arrives = moment.arrives;
            self.shared.sprung.send_modify(|sprung| *sprung += 1);
        }
        arrives
    }

    fn note(&self, frame: &Frame) {
        let mut sender = self.sender.lock().expect("no panic");
        match frame {
            Frame::Auth(auth) => {
                *sender = match &auth.role {
                    Some(Role::Agent(agent)) => agent.agent_ed25519_pub.clone().into(),
                    Some(Role::Client(client)) => client.client_ed25519_pub.clone().into(),
                    _ => Bytes::new(),
                }
            }
            Frame::Message(message) => self.shared.nonces.note(&sender, message.clone()),
            _ => {}
        }
    }
}

fn what(frame: &Frame) -> Option<What> {
    match frame {
        Frame::Message(message) if message.live => Some(What::Live),
        Frame::Message(_) => Some(What::Stored),
        Frame::Ack(_) => Some(What::Ack),
        Frame::Accepted(_) => Some(What::Accepted),
        _ => None,
    }
}

async fn carry(connection: &Connection, from: From, mut source: OwnedReadHalf, mut sink: OwnedWriteHalf) {
    let mut reader = Reader::default();
    while let Ok(1..) = source.read_buf(&mut reader.buffer).await {
        while let Some(unit) = reader.next() {
            if connection.look(from, &unit) && sink.write_all(&unit.bytes).await.is_err() {
                break;
            }
        }
    }
    if connection.fate() == Some(Then::Silence) {
        // Its other side is never told.
        std::future::pending::<()>().await;
    }
}

/// What is passed on, or swallowed, as a whole: the HTTP head, or one WebSocket frame.
struct Unit {
    bytes: Bytes,
    frame: Option<Frame>,
    is_text: bool,
}

/// Cuts a stream into units.
#[derive(Default)]
struct Reader {
    buffer: BytesMut,
    stage: Stage,
}

#[derive(Default)]
enum Stage {
    #[default]
    Head,
    Frames,
    /// No upgrade came about.
    Raw,
}

impl Reader {
    fn next(&mut self) -> Option<Unit> {
        match self.stage {
            Stage::Head => {
                let end = self.buffer.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
                let bytes = self.buffer.split_to(end).freeze();
                let upgraded = bytes.starts_with(b"GET ") || bytes.starts_with(b"HTTP/1.1 101 ");
                self.stage = if upgraded { Stage::Frames } else { Stage::Raw };
                Some(Unit { bytes, frame: None, is_text: false })
            }
            Stage::Frames => self.next_frame(),
            Stage::Raw if self.buffer.is_empty() => None,
            Stage::Raw => Some(Unit { bytes: self.buffer.split().freeze(), frame: None, is_text: false }),
        }
    }

    fn next_frame(&mut self) -> Option<Unit> {
        let mut cursor = Cursor::new(&self.buffer[..]);
        let (header, length) = FrameHeader::parse(&mut cursor).expect("a WebSocket frame")?;
        let start = usize::try_from(cursor.position()).expect("small");
        let length = usize::try_from(length).expect("small");
        if self.buffer.len() < start + length {
            return None;
        }
        assert!(header.is_final, "neither side cuts its messages");
        let bytes = self.buffer.split_to(start + length).freeze();
        let mut content = BytesMut::from(&bytes[start..]);
        if let Some(mask) = header.mask {
            content.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
        }
        let binary = header.opcode == OpCode::Data(Data::Binary);
        let frame = if binary { wire::decode(content.freeze()).expect("a frame") } else { None };
        Some(Unit { bytes, frame, is_text: header.opcode == OpCode::Data(Data::Text) })
    }
}
