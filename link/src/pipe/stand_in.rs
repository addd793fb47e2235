//! A relay of the tests' own: it challenges, checks the answer, and leaves the socket to the test or splices two.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use skald_common::crypto::{Identity, PipeCipher, PipeEnd, PipeSecret, Seed};
use skald_common::ids::{ChallengeNonce, ConnectionId};
use skald_common::pipe::{Agreed, PipeAuth, PipeClose, auth};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

use super::{Pipe, PipeError, connect};

pub(super) const ID: ConnectionId = ConnectionId::new([7; 32]);

/// Fails a test that would wait for ever. Longer than anything here takes, on either clock.
pub(super) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_mins(5), what).await.expect("waits for ever")
}

pub(super) fn identity(n: u8) -> Identity {
    Identity::new(&Seed::new([n; 32]))
}

/// What the agent (1) and the phone (2), which has asked, have agreed on.
pub(super) fn agreed() -> (Agreed, Agreed) {
    let (a, b) = (PipeSecret::new([1; 32]), PipeSecret::new([2; 32]));
    let (to_a, to_b) = (a.public(), b.public());
    let agreed =
        |partner: u8, cipher: PipeCipher| Agreed { connection: ID, partner: identity(partner).ed25519_pub(), cipher };
    let agent = agreed(2, a.agree(&to_b, ID, PipeEnd::Responder).unwrap());
    (agent, agreed(1, b.agree(&to_a, ID, PipeEnd::Initiator).unwrap()))
}

/// The relay's side of one socket.
pub(super) struct End {
    pub(super) socket: WebSocketStream<TcpStream>,
    pub(super) auth: PipeAuth,
    pub(super) path: String,
}

impl End {
    pub(super) async fn next(&mut self) -> Message {
        soon(self.socket.next()).await.expect("the socket has ended").expect("the socket has failed")
    }

    /// The next frame, past what is no data.
    pub(super) async fn frame(&mut self) -> Vec<u8> {
        loop {
            match self.next().await {
                Message::Binary(frame) => return frame.into(),
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("{other:?} instead of a frame"),
            }
        }
    }

    pub(super) async fn send(&mut self, message: Message) {
        self.socket.send(message).await.unwrap();
    }

    pub(super) async fn send_frames(&mut self, frames: impl IntoIterator<Item = Vec<u8>>) {
        for frame in frames {
            self.socket.feed(Message::Binary(frame.into())).await.unwrap();
        }
        self.socket.flush().await.unwrap();
    }

    pub(super) async fn close(&mut self, code: u16) {
        self.send(Message::Close(Some(CloseFrame { code: code.into(), reason: "".into() }))).await;
    }

    /// The code with which the other side closes, past what it still sends. Answers the close.
    pub(super) async fn closed(&mut self) -> Option<u16> {
        let mut code = Some(1006);
        while let Some(Ok(message)) = soon(self.socket.next()).await {
            if let Message::Close(frame) = message {
                code = frame.map(|frame| frame.code.into());
            }
        }
        code
    }
}

pub(super) struct Relay {
    listener: TcpListener,
    pub(super) url: String,
}

impl Relay {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/ns/1234/v1/ws", listener.local_addr().unwrap());
        Self { listener, url }
    }

    pub(super) async fn tcp(&self) -> TcpStream {
        self.listener.accept().await.unwrap().0
    }

    /// The upgrade alone.
    #[expect(clippy::result_large_err, reason = "the library's own type")]
    pub(super) async fn upgrade(&self) -> (WebSocketStream<TcpStream>, String) {
        let mut path = String::new();
        let look = |request: &Request, response: Response| -> Result<Response, ErrorResponse> {
            request.uri().path().clone_into(&mut path);
            Ok(response)
        };
        let socket = accept_hdr_async(self.tcp().await, look).await.unwrap();
        (socket, path)
    }

    /// Upgrade, challenge, answer.
    pub(super) async fn accept(&self) -> End {
        let (mut socket, path) = self.upgrade().await;
        let nonce = ChallengeNonce::new([9; 32]);
        socket.send(Message::Binary(auth::encode_challenge(&nonce).into())).await.unwrap();
        let Some(Ok(Message::Binary(answer))) = socket.next().await else { panic!("no answer") };
        let auth = PipeAuth::decode(&answer).unwrap();
        assert!(auth.verify(&nonce), "the answer does not verify");
        End { socket, auth, path }
    }

    /// One end, of the agent, and the relay's side of it.
    pub(super) async fn agent(&self) -> (Pipe, End, PipeCipher) {
        let (agent, phone) = agreed();
        let me = identity(1);
        let (pipe, end) = tokio::join!(connect(&self.url, &me, me.namespace_id(), agent), self.accept());
        (pipe.unwrap(), end, phone.cipher)
    }

    /// The agent's attempt, while the test plays the relay.
    pub(super) async fn attempt(&self) -> Result<Pipe, PipeError> {
        connect(&self.url, &identity(1), identity(1).namespace_id(), agreed().0).await
    }

    /// Both ends, spliced.
    pub(super) async fn both(&self) -> (Pipe, Pipe) {
        let (agent, phone) = agreed();
        let namespace = identity(1).namespace_id();
        let (me, you) = (identity(1), identity(2));
        let (mine, a) = tokio::join!(connect(&self.url, &me, namespace, agent), self.accept());
        let (yours, b) = tokio::join!(connect(&self.url, &you, namespace, phone), self.accept());
        assert!(a.auth.matches(&b.auth), "the two ends do not match");
        tokio::spawn(splice(a, b));
        (mine.unwrap(), yours.unwrap())
    }
}

/// Passes everything on, message by message, and a close with its code.
async fn splice(a: End, b: End) {
    let ((mut to_a, mut from_a), (mut to_b, mut from_b)) = (a.socket.split(), b.socket.split());
    tokio::join!(pass(&mut from_a, &mut to_b), pass(&mut from_b, &mut to_a));
}

async fn pass(
    from: &mut (impl StreamExt<Item = Result<Message, tokio_tungstenite::tungstenite::Error>> + Unpin),
    to: &mut (impl SinkExt<Message> + Unpin),
) {
    loop {
        let code = match from.next().await {
            Some(Ok(message @ Message::Binary(_))) => {
                if to.send(message).await.is_err() {
                    return;
                }
                continue;
            }
            Some(Ok(Message::Close(frame))) => frame.map_or(1005, |frame| frame.code.into()),
            Some(Ok(_)) => continue,
            Some(Err(_)) | None => 1006,
        };
        let code = PipeClose::passed_on(code).into();
        let _ = to.send(Message::Close(Some(CloseFrame { code, reason: "".into() }))).await;
        // The library answers the close only while the socket is read.
        while let Some(Ok(_)) = from.next().await {}
        return;
    }
}
