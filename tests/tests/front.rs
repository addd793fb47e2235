//! The routes to a namespace on the real runtime: whom an object believes, and what a lost connection proves.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use skald_common::crypto::{Identity, Seed};
use skald_common::ids::{ChallengeNonce, Ed25519Public, NamespaceId};
use skald_common::wire::{self, Auth, AuthAgent, AuthClient, Authorize, Frame, PresenceRequest, Role, Status};
use skald_relay_worker::front::routes::{INTERNAL_CONTROL, VERIFIED_AUTH_HEADER};
use skald_tests::{Relay, random, within};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, frame::coding::CloseCode};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

const CONTROL: &str = "/v1/ws";
/// A frame proves what was sent at least 2 s before it (wire protocol, Delivery guarantee). Only the clock tells.
const PROOF_AGE: Duration = Duration::from_millis(2100);

/// A peer that offers no features.
struct Plain {
    stream: WebSocketStream<TcpStream>,
}

impl Plain {
    /// Connects under any host name; the error is the relay's answer to the upgrade.
    async fn open(relay: &Relay, host: &str, path: &str, claim: Option<&str>) -> Result<Self, Error> {
        let address = relay.url().trim_start_matches("ws://").trim_end_matches(CONTROL).to_owned();
        let mut request = format!("ws://{host}{path}").into_client_request()?;
        if let Some(claim) = claim {
            request.headers_mut().insert(VERIFIED_AUTH_HEADER, HeaderValue::from_str(claim)?);
        }
        let socket = TcpStream::connect(address).await?;
        let (stream, _) = within("the upgrade", Box::pin(client_async(request, socket))).await?;
        Ok(Self { stream })
    }

    async fn signed_in(relay: &Relay, host: &str, path: &str, identity: &Identity, role: Role) -> Self {
        let mut peer = Self::open(relay, host, path, None).await.expect("the relay upgrades");
        let answer = peer.authenticate(identity, role).await;
        assert!(matches!(answer, Frame::AuthOk(_)), "{answer:?}");
        peer
    }

    async fn authenticate(&mut self, identity: &Identity, role: Role) -> Frame {
        let Frame::Challenge(challenge) = self.frame().await else { panic!("no challenge") };
        let nonce = ChallengeNonce::from_slice(&challenge.nonce).expect("32 bytes");
        let signature = identity.sign_challenge(&nonce).to_vec();
        self.send(Frame::Auth(Auth { signature, role: Some(role) })).await;
        self.frame().await
    }

    async fn send(&mut self, frame: Frame) {
        self.stream.send(Message::Binary(wire::encode(frame).into())).await.expect("the relay reads");
    }

    async fn frame(&mut self) -> Frame {
        match self.message().await {
            Message::Binary(bytes) => wire::decode(bytes).expect("a frame").expect("one that we know"),
            other => panic!("no frame: {other:?}"),
        }
    }

    async fn message(&mut self) -> Message {
        within("a message of the relay", self.stream.next()).await.expect("an open socket").expect("a sound one")
    }

    /// The next frame that `pick` takes, skipping others.
    async fn until<T>(&mut self, pick: impl Fn(Frame) -> Option<T>) -> T {
        loop {
            if let Some(found) = pick(self.frame().await) {
                return found;
            }
        }
    }

    async fn offline(&mut self, key: Ed25519Public) {
        let is_it = |frame| match frame {
            Frame::PresenceEvent(event) => event.pubkey == key.as_bytes() && event.status == Status::Offline as i32,
            _ => false,
        };
        self.until(|frame| is_it(frame).then_some(())).await;
    }

    /// Ends the TCP connection without a closing handshake.
    fn cut(self) {
        drop(self.stream);
    }

    async fn close_normally(mut self) {
        let frame = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        self.stream.close(Some(frame)).await.expect("the relay reads");
        while let Some(Ok(_)) = within("the closing handshake", self.stream.next()).await {}
    }
}

fn identity() -> Identity {
    Identity::new(&Seed::new(random()))
}

fn agent_role(agent: &Identity) -> Role {
    Role::Agent(AuthAgent { agent_ed25519_pub: agent.ed25519_pub().to_vec(), features: 0 })
}

fn client_role(agent: &Identity, phone: &Identity) -> Role {
    Role::Client(AuthClient {
        namespace_id: agent.namespace_id().to_vec(),
        client_ed25519_pub: phone.ed25519_pub().to_vec(),
        ..AuthClient::default()
    })
}

fn direct(namespace: &NamespaceId) -> String {
    format!("/ns/{namespace}{CONTROL}")
}

/// The lower-case base32 of a namespace, as in a host name.
fn label(namespace: &NamespaceId) -> String {
    let bits: Vec<u8> = namespace.as_bytes().iter().flat_map(|byte| (0..8).rev().map(move |i| byte >> i & 1)).collect();
    let digit = |chunk: &[u8]| (0..5).fold(0, |n, i| n << 1 | chunk.get(i).copied().unwrap_or(0));
    bits.chunks(5).map(|chunk| char::from(b"abcdefghijklmnopqrstuvwxyz234567"[usize::from(digit(chunk))])).collect()
}

#[tokio::test]
async fn an_identity_claimed_in_a_header_from_outside_is_not_believed_on_any_route() {
    if !Relay::controllable() {
        return;
    }
    let relay = Relay::own(&["RELAY_WILDCARD_HOST=relay.example"]).await;
    let victim = identity();
    let namespace = victim.namespace_id();
    let frame = wire::encode(Frame::Auth(Auth { signature: vec![1; 64], role: Some(agent_role(&victim)) }));
    let claim = URL_SAFE_NO_PAD.encode(frame);
    let wildcard = format!("{}.relay.example", label(&namespace));
    for (host, path) in [("relay.example", CONTROL), ("relay.example", &direct(&namespace)), (&wildcard, CONTROL)] {
        let mut peer = Plain::open(&relay, host, path, Some(&claim)).await.expect("the relay upgrades");
        assert!(matches!(peer.frame().await, Frame::Challenge(_)), "{host}{path}");
        peer.send(Frame::PresenceRequest(PresenceRequest {})).await;
        let Frame::AuthError(error) = peer.frame().await else { panic!("let in at {host}{path}") };
        assert_eq!(error.code, "bad_request");
    }
    for host in ["relay.example", "namespace", &wildcard] {
        for path in [INTERNAL_CONTROL, &format!("/ns/{namespace}{INTERNAL_CONTROL}"), "/x/../internal/ws"] {
            match Plain::open(&relay, host, path, Some(&claim)).await {
                Err(Error::Http(response)) => assert_eq!(response.status(), 404, "{host}{path}"),
                Err(error) => panic!("{host}{path}: {error}"),
                Ok(_) => panic!("{host}{path} was upgraded"),
            }
        }
    }
}

#[tokio::test]
async fn a_host_named_after_a_namespace_leads_to_its_object_and_to_no_other() {
    if !Relay::controllable() {
        return;
    }
    let relay = Relay::own(&["RELAY_WILDCARD_HOST=relay.example"]).await;
    let agent = identity();
    let host = format!("{}.relay.example", label(&agent.namespace_id()));
    let mut first = Plain::signed_in(&relay, &host, CONTROL, &agent, agent_role(&agent)).await;
    let path = direct(&agent.namespace_id());
    let _second = Plain::signed_in(&relay, "relay.example", &path, &agent, agent_role(&agent)).await;
    let Message::Close(Some(close)) = first.message().await else { panic!("not replaced: another object") };
    assert_eq!(u16::from(close.code), 4001);

    let stranger = identity();
    let mut peer = Plain::open(&relay, &host, CONTROL, None).await.expect("the relay upgrades");
    let Frame::AuthError(error) = peer.authenticate(&stranger, agent_role(&stranger)).await else {
        panic!("a stranger was let in")
    };
    assert_eq!(error.code, "not_found");
}

#[tokio::test]
async fn a_cut_connection_proves_nothing_and_a_normal_close_does_on_either_route() {
    if !Relay::controllable() {
        return;
    }
    let relay = Relay::shared().await;
    let agent = identity();
    for path in [CONTROL.to_owned(), direct(&agent.namespace_id())] {
        let phone = identity();
        let mut host = Plain::signed_in(&relay, "relay.example", &path, &agent, agent_role(&agent)).await;
        host.send(Frame::Authorize(Authorize { clients: vec![phone.ed25519_pub().to_vec()] })).await;
        host.until(|frame| matches!(frame, Frame::AuthorizeOk(_)).then_some(())).await;
        let connect = || Plain::signed_in(&relay, "relay.example", &path, &phone, client_role(&agent, &phone));
        let text = |frame| match frame {
            Frame::Message(message) => Some(message.ciphertext),
            _ => None,
        };

        let mut first = connect().await;
        let sealed = Bytes::from_static(b"sealed, says its length");
        host.send(Frame::Message(wire::Message {
            ciphertext: sealed.clone(),
            nonce: vec![0; 12],
            peer: phone.ed25519_pub().to_vec(),
            ..wire::Message::default()
        }))
        .await;
        assert_eq!(first.until(text).await, sealed);
        tokio::time::sleep(PROOF_AGE).await;
        first.cut();
        host.offline(phone.ed25519_pub()).await;

        let mut second = connect().await;
        assert_eq!(second.until(text).await, sealed, "{path}: what a cut connection had swallowed comes again");
        tokio::time::sleep(PROOF_AGE).await;
        second.close_normally().await;
        host.offline(phone.ed25519_pub()).await;

        let mut third = connect().await;
        third.send(Frame::PresenceRequest(PresenceRequest {})).await;
        let next = third.until(|frame| (!matches!(frame, Frame::PresenceEvent(_))).then_some(frame)).await;
        assert!(matches!(next, Frame::PresenceList(_)), "{path}: proved, and yet sent again");
    }
}
