//! Ends of pipes below every engine: sockets that join as they are told, and send what they like when they like.

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use skald_common::crypto::{Identity, Seed};
use skald_common::ids::{ChallengeNonce, ConnectionId, Ed25519Public, NamespaceId};
use skald_common::pipe::{PipeAuth, auth};
use skald_common::wire::{CONTROL_PATH, PIPE_PATH};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::raw::RawSocket;
use crate::{random, within};

/// Which of the relay's routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// `/v1/…`, the route of deployed peers.
    Front,
    /// `/ns/{namespace}/v1/…`.
    Direct,
}

impl Way {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Front, Self::Direct];

    fn prefix(self, namespace: &NamespaceId) -> String {
        match self {
            Self::Front => String::new(),
            Self::Direct => format!("/ns/{namespace}"),
        }
    }
}

/// An agent with an authorized phone, that are nothing but keys and the agent's control socket.
#[derive(Debug)]
pub struct Members {
    /// The agent's key.
    pub agent: Identity,
    /// The phone's key.
    pub phone: Identity,
    /// The agent's control socket.
    pub control: RawSocket,
    way: Way,
    base: String,
}

impl Members {
    /// New ones, at the relay with this control address.
    pub async fn new(relay_url: &str, way: Way) -> Self {
        let (agent, phone) = (Identity::new(&Seed::new(random())), Identity::new(&Seed::new(random())));
        let base = relay_url.strip_suffix(CONTROL_PATH).expect("the relay's own address").to_owned();
        let url = format!("{base}{}{CONTROL_PATH}", way.prefix(&agent.namespace_id()));
        let control = RawSocket::agent(&url, &agent, &[phone.ed25519_pub()]).await;
        Self { agent, phone, control, way, base }
    }

    /// Where their pipes are.
    pub fn url(&self) -> String {
        format!("{}{}{PIPE_PATH}", self.base, self.way.prefix(&self.agent.namespace_id()))
    }

    /// The agent's end of a pipe.
    pub async fn agents_end(&self, connection: ConnectionId, flow: bool) -> RawPipe {
        self.end(&self.agent, &self.phone.ed25519_pub(), connection, flow).await
    }

    /// The phone's end of a pipe.
    pub async fn phones_end(&self, connection: ConnectionId, flow: bool) -> RawPipe {
        self.end(&self.phone, &self.agent.ed25519_pub(), connection, flow).await
    }

    /// A member's end of a pipe, with the other end that it wants.
    pub async fn end(&self, me: &Identity, other: &Ed25519Public, connection: ConnectionId, flow: bool) -> RawPipe {
        RawPipe::join(&self.url(), me, other, self.agent.namespace_id(), connection, flow).await
    }

    /// A pipe through which something has gone each way: the agent's end and the phone's, neither of which can be paused.
    pub async fn pipe(&self) -> (RawPipe, RawPipe) {
        self.pipe_with(false).await
    }

    /// The same; whether the agent's end obeys the relay's `pause`.
    pub async fn pipe_with(&self, flow: bool) -> (RawPipe, RawPipe) {
        let connection = ConnectionId::new(random());
        let (mut agent, mut phone) =
            (self.agents_end(connection, flow).await, self.phones_end(connection, false).await);
        works(&mut agent, &mut phone).await;
        (agent, phone)
    }
}

/// Something goes through each way.
async fn works(one: &mut RawPipe, other: &mut RawPipe) {
    one.passes_to(other).await;
    other.passes_to(one).await;
}

/// One end.
#[derive(Debug)]
pub struct RawPipe {
    /// The socket itself.
    pub stream: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

/// What comes out of an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// What the other end has sent.
    Bytes(Bytes),
    /// A word of the relay.
    Text(String),
    /// The end, with its close code; 1006 without one.
    Closed(u16),
}

impl RawPipe {
    /// A socket that has been challenged and has not answered.
    pub async fn open(url: &str) -> (Self, ChallengeNonce) {
        let (stream, _) = within("a pipe socket", Box::pin(connect_async(url))).await.expect("the relay upgrades");
        let mut end = Self { stream };
        let Received::Bytes(challenge) = end.next().await else { panic!("no challenge") };
        (end, auth::decode_challenge(&challenge).expect("a challenge"))
    }

    /// A socket that has answered the challenge; nothing has been said about that yet.
    pub async fn join(
        url: &str,
        me: &Identity,
        other: &Ed25519Public,
        namespace: NamespaceId,
        connection: ConnectionId,
        flow: bool,
    ) -> Self {
        let (mut end, nonce) = Self::open(url).await;
        end.send(PipeAuth::new(me, &nonce, connection, other, namespace, flow).encode()).await;
        end
    }

    /// Sends a binary message and waits until the socket has taken it.
    pub async fn send(&mut self, bytes: impl Into<Bytes>) {
        let sent = within("a pipe to take a message", self.stream.send(Message::Binary(bytes.into()))).await;
        sent.expect("the relay reads");
    }

    /// The same; whether the socket was still open.
    pub async fn try_send(&mut self, bytes: impl Into<Bytes>) -> bool {
        within("a pipe to take a message", self.stream.send(Message::Binary(bytes.into()))).await.is_ok()
    }

    /// Sends a text message.
    pub async fn send_text(&mut self, text: &str) {
        self.stream.send(Message::text(text)).await.expect("the relay reads");
    }

    /// What comes next.
    pub async fn next(&mut self) -> Received {
        within("a message from a pipe", self.next_patiently()).await
    }

    /// The same, as long as it takes. Cancel safe.
    pub async fn next_patiently(&mut self) -> Received {
        loop {
            if let Some(received) = Received::from(self.stream.next().await) {
                return received;
            }
        }
    }

    /// The next binary message.
    pub async fn bytes(&mut self) -> Bytes {
        loop {
            match self.next().await {
                Received::Bytes(bytes) => return bytes,
                Received::Text(_) => {}
                Received::Closed(code) => panic!("the pipe has been closed with {code}"),
            }
        }
    }

    /// Waits for the end, whatever comes before; its close code, 1006 without one.
    pub async fn closed(&mut self) -> u16 {
        loop {
            if let Received::Closed(code) = self.next().await {
                return code;
            }
        }
    }

    /// Sends something and sees it come out at the other end.
    pub async fn passes_to(&mut self, other: &mut Self) {
        let something = Bytes::copy_from_slice(&random::<100>());
        self.send(something.clone()).await;
        assert_eq!(other.bytes().await, something);
    }

    /// Closes it with this code, and waits until the relay has answered.
    pub async fn close(mut self, code: u16) {
        let frame = CloseFrame { code: code.into(), reason: "".into() };
        self.stream.close(Some(frame)).await.expect("the relay reads");
        self.closed().await;
    }
}

impl Received {
    /// `None`: nothing of interest.
    pub fn from(message: Option<Result<Message, Error>>) -> Option<Self> {
        match message {
            Some(Ok(Message::Binary(bytes))) => Some(Self::Bytes(bytes)),
            Some(Ok(Message::Text(text))) => Some(Self::Text(text.to_string())),
            Some(Ok(Message::Close(frame))) => Some(Self::Closed(frame.map_or(1006, |frame| frame.code.into()))),
            Some(Ok(_)) => None,
            Some(Err(_)) | None => Some(Self::Closed(1006)),
        }
    }
}
