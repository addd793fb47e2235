//! Peers that keep to no rule but the test's: a phone on the protocol's own engine that says anything, and a socket that
//! sends any bytes.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use skald_common::crypto::{Identity, Seed};
use skald_common::framing::{Body, Compression};
use skald_common::ids::{ChallengeNonce, ConnectionId, Ed25519Public, NamespaceId};
use skald_common::pairing::PairingQr;
use skald_common::payload::uuid_v4;
use skald_common::peer::{
    Config, Delivery, Disconnect, Event, Millis, Output, Partner, Peer, Role, Routes, SendError, SendId,
    first_send_counter,
};
use skald_common::pipe::signal::Signal;
use skald_common::wire::{self, Features, Frame, Platform};
use skald_link::{Clock, Link, feed};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::pipes::RawPipe;
use crate::{random, unix_ms, within};

/// A phone that says what it is told, valid or not.
#[derive(Debug)]
pub struct RawPhone {
    seed: Seed,
    qr: PairingQr,
    driver: Option<Driver>,
    /// The last counter accepted, over all connections.
    received: u64,
    /// Payloads that came while an ack was awaited, and acks that came while something else was.
    waiting: VecDeque<Value>,
    acks: Vec<Value>,
    /// What came about pipes.
    signals: VecDeque<Signal>,
}

/// What a message was.
enum Heard {
    Payload(Value),
    Signal,
}

/// The engine on its socket; it moves only while something is awaited from it.
#[derive(Debug)]
struct Driver {
    peer: Peer,
    link: Link,
    clock: Clock,
    events: VecDeque<Event>,
}

impl Driver {
    fn start(identity: Identity, role: Role, url: &str, namespace: &NamespaceId) -> Self {
        let routes = Routes::new(url, namespace).expect("the code's address is one");
        let jitter_seed = u64::from_le_bytes(random());
        let peer = Peer::new(Config { identity, role, routes, offer: Features::ALL, jitter_seed });
        let mut driver = Self { peer, link: Link::new(), clock: Clock::start(), events: VecDeque::new() };
        driver.peer.start(driver.clock.now());
        driver
    }

    /// Carries out what the engine wants.
    fn drain(&mut self) {
        while let Some(output) = self.peer.poll_output() {
            if let Some(Output::Event(event)) = self.link.carry_out(output) {
                self.events.push_back(event);
            }
        }
    }

    async fn next(&mut self) -> Event {
        loop {
            self.drain();
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            tokio::select! {
                event = self.link.next() => feed(&mut self.peer, self.clock.now(), event),
                () = self.clock.sleep_until(self.peer.deadline()) => self.peer.on_timeout(self.clock.now()),
            }
        }
    }
}

impl RawPhone {
    /// Pairs by the content of a QR code, as a new device.
    pub async fn pair(qr: &str) -> Self {
        Self::pair_as(Seed::new(random()), qr).await.unwrap_or_else(|why| panic!("not paired: {why}"))
    }

    /// Pairs with this identity.
    pub async fn pair_as(seed: Seed, qr: &str) -> Result<Self, Disconnect> {
        let qr = PairingQr::parse(qr).expect("the daemon's code is valid");
        let role = Role::Pairing {
            namespace: qr.namespace_id,
            token: qr.pairing_token.clone(),
            device_token: String::new(),
            platform: Platform::Android,
        };
        let mut driver = Driver::start(Identity::new(&seed), role, &qr.relay_url, &qr.namespace_id);
        loop {
            match within("the pairing", driver.next()).await {
                Event::Paired => break,
                Event::Disconnected { why, .. } => return Err(why),
                _ => {}
            }
        }
        driver.link.finish().await;
        Ok(Self {
            seed,
            qr,
            driver: None,
            received: 0,
            waiting: VecDeque::new(),
            acks: Vec::new(),
            signals: VecDeque::new(),
        })
    }

    /// Its seed, for a twin of it.
    pub const fn seed(&self) -> &Seed {
        &self.seed
    }

    /// Its name.
    pub fn key(&self) -> Ed25519Public {
        Identity::new(&self.seed).ed25519_pub()
    }

    /// Connects as a device and waits until the relay lets it in.
    pub async fn connect(&mut self) {
        self.begin();
        loop {
            if let Event::Connected { .. } = within("the raw phone's connection", self.driver().next()).await {
                break;
            }
        }
    }

    /// Begins to connect as a device; gives why the relay does not let it in.
    pub async fn refused(&mut self) -> Disconnect {
        self.begin();
        loop {
            match within("the refusal of the raw phone", self.driver().next()).await {
                Event::Disconnected { why, .. } => return why,
                Event::Connected { .. } => panic!("the relay let the phone in"),
                _ => {}
            }
        }
    }

    fn begin(&mut self) {
        let qr = &self.qr;
        let role =
            Role::Client { namespace: qr.namespace_id, device_token: String::new(), platform: Platform::Android };
        let mut driver = Driver::start(Identity::new(&self.seed), role, &qr.relay_url, &qr.namespace_id);
        let partner = Partner {
            ed25519: qr.agent_ed25519_pub,
            x25519: qr.agent_x25519_pub,
            send_from: first_send_counter(0, 0, unix_ms()),
            received: self.received,
            compression: Compression::WhenSmaller,
        };
        driver.peer.set_partner(partner).expect("the daemon's key is usable");
        self.driver = Some(driver);
    }

    /// Ends its connection politely.
    pub async fn disconnect(&mut self) {
        if let Some(mut driver) = self.driver.take() {
            driver.link.finish().await;
        }
    }

    fn driver(&mut self) -> &mut Driver {
        self.driver.as_mut().expect("the raw phone was connected")
    }

    /// Waits until its connection ends; gives why.
    pub async fn disconnected(&mut self) -> Disconnect {
        loop {
            if let Event::Disconnected { why, .. } = within("the end of the connection", self.driver().next()).await {
                return why;
            }
        }
    }

    /// Sends a payload with a fresh envelope; fields given here win over the envelope's. Gives its id.
    pub async fn send(&mut self, kind: &str, fields: Value) -> String {
        let id = uuid_v4(random());
        let mut payload = json!({"v": 1, "kind": kind, "id": id, "ts": unix_ms()});
        if let Value::Object(fields) = fields {
            payload.as_object_mut().expect("an object").extend(fields);
        }
        self.send_bytes(payload.to_string().as_bytes(), Delivery::STORED).await;
        id
    }

    /// Seals and sends any bytes as a JSON body, and waits until the relay has them.
    pub async fn send_bytes(&mut self, body: &[u8], delivery: Delivery) {
        let agent = self.qr.agent_ed25519_pub;
        self.send_by(|peer, now| peer.send(now, &agent, body, delivery)).await;
    }

    /// Seals and sends a signal, live, and waits until the relay has passed it on.
    pub async fn send_signal(&mut self, signal: &Signal) {
        let (agent, signal) = (self.qr.agent_ed25519_pub, signal.encode());
        self.send_by(|peer, now| peer.send_signal(now, &agent, &signal)).await;
    }

    /// The next signal of the daemon.
    pub async fn signal(&mut self) -> Signal {
        let search = async {
            loop {
                if let Some(signal) = self.signals.pop_front() {
                    return signal;
                }
                if let Heard::Payload(payload) = self.hear().await {
                    self.waiting.push_back(payload);
                }
            }
        };
        within("a signal", search).await
    }

    /// Its end of a pipe to the daemon, which nothing has been said about yet.
    pub async fn pipe(&self, connection: ConnectionId) -> RawPipe {
        let url = self.qr.relay_url.replace(wire::CONTROL_PATH, wire::PIPE_PATH);
        let agent = &self.qr.agent_ed25519_pub;
        RawPipe::join(&url, &Identity::new(&self.seed), agent, self.qr.namespace_id, connection, false).await
    }

    async fn send_by(&mut self, send: impl FnOnce(&mut Peer, Millis) -> Result<SendId, SendError>) {
        let driver = self.driver();
        let now = driver.clock.now();
        let sent = send(&mut driver.peer, now).expect("the message can be sent");
        // Events that come meanwhile stay for whoever waits for them.
        let mut meanwhile = VecDeque::new();
        loop {
            match within("the relay to accept a message", driver.next()).await {
                Event::Accepted { id, .. } if id == sent => break,
                Event::SendFailed { id, why, .. } if id == sent => panic!("not sent: {why:?}"),
                event => meanwhile.push_back(event),
            }
        }
        meanwhile.append(&mut driver.events);
        driver.events = meanwhile;
    }

    /// The next payload of this kind, skipping others.
    pub async fn payload(&mut self, kind: &str) -> Value {
        self.payload_where(kind, |_| true).await
    }

    /// The next payload of this kind that fits, skipping others.
    pub async fn payload_where(&mut self, kind: &str, fits: impl Fn(&Value) -> bool) -> Value {
        self.payloads_until(kind, fits).await.pop().expect("it ends with the one awaited")
    }

    /// All payloads up to the next of this kind that fits, which is the last. Acks are kept apart.
    pub async fn payloads_until(&mut self, kind: &str, fits: impl Fn(&Value) -> bool) -> Vec<Value> {
        let search = async {
            let mut payloads = Vec::new();
            loop {
                let payload = match self.waiting.pop_front() {
                    Some(payload) => payload,
                    None => self.any_payload().await,
                };
                if payload["kind"] == "ack" {
                    self.acks.push(payload);
                    continue;
                }
                let found = payload["kind"] == kind && fits(&payload);
                payloads.push(payload);
                if found {
                    return payloads;
                }
            }
        };
        within(&format!("a payload of kind {kind}"), search).await
    }

    async fn any_payload(&mut self) -> Value {
        loop {
            if let Heard::Payload(payload) = self.hear().await {
                return payload;
            }
        }
    }

    /// The next message; a signal is kept for whoever waits for one.
    async fn hear(&mut self) -> Heard {
        loop {
            let Event::Message { receipt, body, .. } = self.driver().next().await else { continue };
            self.received = receipt.counter;
            let driver = self.driver();
            driver.peer.accept(driver.clock.now(), receipt);
            driver.drain();
            match body {
                Body::Json(json) => {
                    return Heard::Payload(serde_json::from_slice(&json).expect("the daemon sends JSON"));
                }
                Body::PipeSignal(signal) => {
                    self.signals.push_back(Signal::decode(&signal).expect("the daemon sends signals"));
                    return Heard::Signal;
                }
            }
        }
    }

    /// The next snapshot with so many items.
    pub async fn snapshot(&mut self, badge: u64) -> Value {
        self.payload_where("inbox_update", |update| update["badge"] == badge).await
    }

    /// Waits for a snapshot with an item in this list (`approvals`, …); gives the first.
    pub async fn item(&mut self, list: &str) -> Value {
        let update = self.payload_where("inbox_update", |update| update[list].get(0).is_some()).await;
        update[list][0].clone()
    }

    /// The daemon's ack of this payload, whether it came already or comes.
    pub async fn ack(&mut self, id: &str) -> Value {
        let search = async {
            loop {
                if let Some(at) = self.acks.iter().position(|ack| ack["ref_id"] == id) {
                    return self.acks.remove(at);
                }
                let payload = self.any_payload().await;
                if payload["kind"] == "ack" {
                    self.acks.push(payload);
                } else {
                    self.waiting.push_back(payload);
                }
            }
        };
        within("an ack", search).await
    }

    /// Asks for the inbox, live, and waits for a snapshot that was made after.
    pub async fn inbox(&mut self) -> Value {
        let asked = unix_ms();
        let body = json!({"v": 1, "kind": "inbox_request", "id": uuid_v4(random()), "ts": asked}).to_string();
        self.send_bytes(body.as_bytes(), Delivery::Live).await;
        self.payload_where("inbox_update", |update| update["ts"].as_u64() >= Some(asked)).await
    }

    /// Says hello as a phone of this name, by which it becomes one that gets acks.
    pub async fn hello(&mut self, name: &str) {
        let info = json!({"platform": "android", "app_version": "skald-phone/tests", "device_name": name});
        self.send("hello", json!({"device_info": info})).await;
    }

    /// Answers an approval: `approved` or `rejected`. Gives the payload's id.
    pub async fn decide(&mut self, request_id: &Value, decision: &str) -> String {
        self.send("approval_response", json!({"request_id": request_id, "decision": decision})).await
    }
}

/// A WebSocket to the relay below every engine.
#[derive(Debug)]
pub struct RawSocket {
    stream: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

impl RawSocket {
    /// Opens it.
    pub async fn open(url: &str) -> Self {
        let (stream, _) = within("a socket", Box::pin(connect_async(url))).await.expect("the relay answers");
        Self { stream }
    }

    /// Opens it and authenticates as a device of this namespace.
    pub async fn client(url: &str, seed: &Seed, namespace: &NamespaceId) -> Self {
        Self::client_with_token(url, seed, namespace, Platform::Android, "").await
    }

    /// The same, with a push token.
    pub async fn client_with_token(
        url: &str,
        seed: &Seed,
        namespace: &NamespaceId,
        platform: Platform,
        device_token: &str,
    ) -> Self {
        let identity = Identity::new(seed);
        let client = wire::AuthClient {
            namespace_id: namespace.to_vec(),
            client_ed25519_pub: identity.ed25519_pub().to_vec(),
            device_token: device_token.to_owned(),
            platform: platform as i32,
            ..Default::default()
        };
        Self::authenticated(url, &identity, wire::Role::Client(client)).await
    }

    /// Opens it, authenticates as an agent, and authorizes these devices.
    pub async fn agent(url: &str, identity: &Identity, devices: &[Ed25519Public]) -> Self {
        let agent = wire::AuthAgent { agent_ed25519_pub: identity.ed25519_pub().to_vec(), features: 0 };
        let mut socket = Self::authenticated(url, identity, wire::Role::Agent(agent)).await;
        socket.authorize(devices).await;
        socket
    }

    /// Authorizes these devices and no others, as the agent.
    pub async fn authorize(&mut self, devices: &[Ed25519Public]) {
        let clients = devices.iter().map(Ed25519Public::to_vec).collect();
        self.send(Frame::Authorize(wire::Authorize { clients })).await;
        while !matches!(self.next().await.expect("an open socket"), Frame::AuthorizeOk(_)) {}
    }

    /// A question of the control plane and its answer: the relay has read what was sent before.
    pub async fn presence(&mut self) -> Vec<Vec<u8>> {
        self.send(Frame::PresenceRequest(wire::PresenceRequest {})).await;
        loop {
            if let Frame::PresenceList(list) = self.next().await.expect("an open socket") {
                return list.online;
            }
        }
    }

    async fn authenticated(url: &str, identity: &Identity, role: wire::Role) -> Self {
        let mut socket = Self::open(url).await;
        let Some(Frame::Challenge(challenge)) = socket.next().await else { panic!("no challenge") };
        let nonce = ChallengeNonce::from_slice(&challenge.nonce).expect("32 bytes");
        let signature = identity.sign_challenge(&nonce).to_vec();
        socket.send(Frame::Auth(wire::Auth { signature, role: Some(role) })).await;
        let answer = socket.next().await;
        assert!(matches!(answer, Some(Frame::AuthOk(_))), "{answer:?}");
        socket
    }

    /// Sends a frame.
    pub async fn send(&mut self, frame: Frame) {
        self.send_bytes(wire::encode(frame)).await;
    }

    /// Sends any bytes as a binary message.
    pub async fn send_bytes(&mut self, bytes: impl Into<Bytes>) {
        self.stream.send(Message::Binary(bytes.into())).await.expect("the relay reads");
    }

    /// Sends a text message.
    pub async fn send_text(&mut self, text: &str) {
        self.stream.send(Message::text(text)).await.expect("the relay reads");
    }

    /// The next frame; `None` once the relay has closed the socket.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            match within("a frame of the relay", self.stream.next()).await? {
                Ok(Message::Binary(bytes)) => return wire::decode(bytes).expect("the relay sends frames"),
                Ok(Message::Close(_)) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// Ends it politely, and waits until the relay has heard it.
    pub async fn close(mut self) {
        self.stream.close(None).await.expect("the relay reads");
        self.closed().await;
    }

    /// Waits until the relay closes the socket; its code, 1006 when there was none.
    pub async fn closed(&mut self) -> u16 {
        loop {
            match within("the socket's end", self.stream.next()).await {
                Some(Ok(Message::Close(Some(frame)))) => return frame.code.into(),
                Some(Ok(Message::Close(None)) | Err(_)) | None => return 1006,
                Some(Ok(_)) => {}
            }
        }
    }

    /// Waits for this text message.
    pub async fn text(&mut self, expected: &str) {
        loop {
            match within("a text of the relay", self.stream.next()).await {
                Some(Ok(Message::Text(text))) if text.as_str() == expected => return,
                Some(Ok(_)) => {}
                end => panic!("the socket ended: {end:?}"),
            }
        }
    }
}
