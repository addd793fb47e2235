//! One WebSocket at a time. The task behind it owns the socket; the handle talks to it by channels, and what an older
//! socket still had to say is never heard once a newer one is dialled or the link closed.

use std::fmt::Write as _;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use skald_common::limits::MAX_LIVE_FRAME;
use skald_common::peer::{DialFailure, Output};
use skald_common::wire::{PING, PONG};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use crate::debug;

/// What happened on the socket.
#[derive(Debug)]
pub enum LinkEvent {
    /// It is open.
    Open,
    /// It did not come about.
    DialFailed(DialFailure),
    /// A binary message.
    Binary(Bytes),
    /// A pong of either kind.
    Activity,
    /// It ended; with the close code, if one came.
    Closed(Option<u16>),
}

/// Events that may wait for the application; the socket is not read while it is full, so a slow application brakes the
/// relay and never grows.
const EVENTS: usize = 64;
/// Frames of the largest kind, with their envelope.
const MAX_MESSAGE: usize = MAX_LIVE_FRAME + 64 * 1024;

/// The socket's handle.
#[derive(Debug, Default)]
pub struct Link {
    socket: Option<Socket>,
}

#[derive(Debug)]
struct Socket {
    events: mpsc::Receiver<LinkEvent>,
    /// Unbounded, since the engine bounds what it has in flight.
    outgoing: mpsc::UnboundedSender<Message>,
    task: JoinHandle<()>,
}

impl Link {
    /// No socket yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Carries out what is the link's to do; gives back what is not.
    pub fn carry_out(&mut self, output: Output) -> Option<Output> {
        match output {
            Output::Dial { url } => self.dial(url),
            Output::Send(bytes) => self.send(Message::Binary(bytes.into())),
            Output::SendPing => self.send(Message::text(PING)),
            Output::SendNativePing => self.send(Message::Ping(Bytes::new())),
            Output::Close => self.close(),
            Output::Reserve { .. } | Output::Event(_) => return Some(output),
        }
        None
    }

    /// Opens a socket; an older one is dropped. Needs a tokio runtime.
    pub fn dial(&mut self, url: String) {
        self.close();
        let (event_sender, events) = mpsc::channel(EVENTS);
        let (outgoing, to_send) = mpsc::unbounded_channel();
        let task = tokio::spawn(run(url, event_sender, to_send));
        self.socket = Some(Socket { events, outgoing, task });
    }

    /// Closes the socket politely, in the background; nothing more of it is heard.
    pub fn close(&mut self) {
        // The task sees its channels end, writes what was given to it and says goodbye, within a bound.
        self.socket = None;
    }

    /// Closes the socket politely and waits until that is done: before a program ends.
    pub async fn finish(&mut self) {
        if let Some(Socket { events, outgoing, task }) = self.socket.take() {
            drop((events, outgoing));
            // The task's own failure would have been told as an event.
            let _ = task.await;
        }
    }

    /// The next event; waits for ever without a socket. Cancel safe.
    pub async fn next(&mut self) -> LinkEvent {
        let Some(socket) = &mut self.socket else { return std::future::pending().await };
        // A task that ended without a word has panicked: the socket is gone all the same.
        let event = socket.events.recv().await.unwrap_or(LinkEvent::Closed(None));
        if matches!(event, LinkEvent::Closed(_) | LinkEvent::DialFailed(_)) {
            self.socket = None;
        }
        event
    }

    fn send(&mut self, message: Message) {
        if let Some(socket) = &self.socket {
            // An ended task has told so, or is about to.
            let _ = socket.outgoing.send(message);
        }
    }
}

pub(crate) type Stream = WebSocketStream<MaybeTlsStream<TcpStream>>;

async fn run(url: String, events: mpsc::Sender<LinkEvent>, mut to_send: mpsc::UnboundedReceiver<Message>) {
    let config = WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE)).max_frame_size(Some(MAX_MESSAGE));
    let dialled = tokio::select! {
        dialled = connect(&url, config) => dialled,
        () = events.closed() => return,
    };
    let mut stream = match dialled {
        Ok(stream) => stream,
        Err(failure) => {
            let _ = events.send(LinkEvent::DialFailed(failure)).await;
            return;
        }
    };
    if events.send(LinkEvent::Open).await.is_ok() {
        let code = pump(&mut stream, &events, &mut to_send).await;
        let _ = events.send(LinkEvent::Closed(code)).await;
    }
    // Closed by this side: a goodbye, but no waiting for one that may never come.
    let _ = tokio::time::timeout(std::time::Duration::from_secs(2), goodbye(&mut stream)).await;
}

/// Ends when the socket does, with its close code, or when the handle is gone.
async fn pump(
    stream: &mut Stream,
    events: &mpsc::Sender<LinkEvent>,
    to_send: &mut mpsc::UnboundedReceiver<Message>,
) -> Option<u16> {
    loop {
        tokio::select! {
            biased;
            message = to_send.recv() => match message {
                Some(message) => write(stream, message, to_send).await?,
                None => return None,
            },
            permit = events.reserve() => {
                let Ok(permit) = permit else { return None };
                tokio::select! {
                    biased;
                    message = to_send.recv() => match message {
                        Some(message) => write(stream, message, to_send).await?,
                        None => return None,
                    },
                    message = stream.next() => match message {
                        Some(Ok(message)) => match translate(message) {
                            Translated::Event(event) => permit.send(event),
                            Translated::Closed(code) => return code,
                            Translated::Nothing => {}
                        },
                        Some(Err(_)) | None => return None,
                    },
                }
            }
        }
    }
}

/// What was queued together leaves together. `None`: the socket has ended.
async fn write(stream: &mut Stream, first: Message, to_send: &mut mpsc::UnboundedReceiver<Message>) -> Option<()> {
    let mut writing = debug::Writing::default();
    let mut next = Some(first);
    while let Some(message) = next {
        writing.begin(&message);
        stream.feed(message).await.ok()?;
        next = to_send.try_recv().ok();
    }
    stream.flush().await.ok()?;
    writing.done();
    Some(())
}

enum Translated {
    Event(LinkEvent),
    Closed(Option<u16>),
    Nothing,
}

fn translate(message: Message) -> Translated {
    debug::received(&message);
    match message {
        Message::Binary(bytes) => Translated::Event(LinkEvent::Binary(bytes)),
        Message::Text(text) if text.as_str() == PONG => Translated::Event(LinkEvent::Activity),
        Message::Pong(_) | Message::Ping(_) => Translated::Event(LinkEvent::Activity),
        Message::Close(frame) => Translated::Closed(frame.map(|frame| frame.code.into())),
        Message::Text(_) | Message::Frame(_) => Translated::Nothing,
    }
}

async fn goodbye(stream: &mut Stream) {
    let frame = tokio_tungstenite::tungstenite::protocol::CloseFrame { code: CloseCode::Normal, reason: "".into() };
    if stream.close(Some(frame)).await.is_ok() {
        // The relay answers the goodbye; reading on lets TCP end cleanly, so that nothing sent before it is cut off.
        while let Some(Ok(_)) = stream.next().await {}
    }
}

/// Opens a WebSocket; its TCP sends at once, whatever there is.
pub(crate) async fn connect(url: &str, config: WebSocketConfig) -> Result<Stream, DialFailure> {
    match connect_async_with_config(url, Some(config), true).await {
        Ok((stream, _)) => Ok(stream),
        Err(Error::Http(response)) => {
            Err(DialFailure { http_status: Some(response.status().as_u16()), why: "no upgrade".to_owned() })
        }
        Err(error) => Err(DialFailure { http_status: None, why: with_causes(&error) }),
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            let _ = write!(text, ": {inner_text}");
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio_tungstenite::accept_async;

    use super::*;

    async fn server() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        (listener, url)
    }

    #[tokio::test]
    async fn messages_go_both_ways_in_order_and_pongs_are_activity() {
        let (listener, url) = server().await;
        let mut link = Link::new();
        link.dial(url);
        let (tcp, _) = listener.accept().await.unwrap();
        let mut peer = accept_async(tcp).await.unwrap();
        assert!(matches!(link.next().await, LinkEvent::Open));
        for n in 0..3_u8 {
            assert!(link.carry_out(Output::Send(vec![n])).is_none());
        }
        link.carry_out(Output::SendPing);
        for n in 0..3_u8 {
            assert_eq!(peer.next().await.unwrap().unwrap(), Message::Binary(vec![n].into()));
        }
        assert_eq!(peer.next().await.unwrap().unwrap(), Message::text("ping"));
        peer.send(Message::text("pong")).await.unwrap();
        peer.send(Message::text("other")).await.unwrap();
        peer.send(Message::Binary(vec![9].into())).await.unwrap();
        assert!(matches!(link.next().await, LinkEvent::Activity));
        assert!(matches!(link.next().await, LinkEvent::Binary(bytes) if *bytes == [9]));
    }

    #[tokio::test]
    async fn what_was_sent_before_a_close_arrives_and_the_close_is_polite() {
        let (listener, url) = server().await;
        let mut link = Link::new();
        link.dial(url);
        let (tcp, _) = listener.accept().await.unwrap();
        let mut peer = accept_async(tcp).await.unwrap();
        assert!(matches!(link.next().await, LinkEvent::Open));
        link.carry_out(Output::Send(vec![1]));
        link.carry_out(Output::Close);
        assert_eq!(peer.next().await.unwrap().unwrap(), Message::Binary(vec![1].into()));
        let Message::Close(Some(frame)) = peer.next().await.unwrap().unwrap() else { panic!("no close") };
        assert_eq!(u16::from(frame.code), 1000);
    }

    #[tokio::test]
    async fn the_relays_close_code_is_told() {
        let (listener, url) = server().await;
        let mut link = Link::new();
        link.dial(url);
        let (tcp, _) = listener.accept().await.unwrap();
        let mut peer = accept_async(tcp).await.unwrap();
        let frame = tokio_tungstenite::tungstenite::protocol::CloseFrame { code: 4001.into(), reason: "".into() };
        peer.close(Some(frame)).await.unwrap();
        assert!(matches!(link.next().await, LinkEvent::Open));
        assert!(matches!(link.next().await, LinkEvent::Closed(Some(4001))));
    }

    #[tokio::test]
    async fn a_refused_upgrade_names_its_status_and_a_dead_port_its_reason() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (listener, url) = server().await;
        let mut link = Link::new();
        link.dial(url.clone());
        let (mut tcp, _) = listener.accept().await.unwrap();
        let _ = tcp.read(&mut [0; 2048]).await.unwrap();
        tcp.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        assert!(matches!(link.next().await, LinkEvent::DialFailed(failure) if failure.http_status == Some(404)));
        drop((tcp, listener));
        link.dial(url.clone());
        let LinkEvent::DialFailed(failure) = link.next().await else { panic!("dialled a dead port") };
        assert!(failure.http_status.is_none() && !failure.why.is_empty());
    }

    #[tokio::test]
    async fn a_server_without_tls_fails_a_wss_dial_with_a_reason() {
        use tokio::io::AsyncWriteExt;
        let (listener, url) = server().await;
        let mut link = Link::new();
        link.dial(url.replace("ws://", "wss://"));
        let (mut tcp, _) = listener.accept().await.unwrap();
        tcp.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let LinkEvent::DialFailed(failure) = link.next().await else { panic!("no TLS, yet open") };
        assert!(failure.why.contains("TLS") || failure.why.contains("corrupt"), "{}", failure.why);
    }
}
