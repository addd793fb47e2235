//! The driver against a scripted relay and agent: what leaves, in which order, and what is on disk by then.

mod pipes;

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{SinkExt as _, StreamExt as _};
use skald_common::crypto::{Direction, SessionKey};
use skald_common::framing::{frame_json, unframe};
use skald_common::ids::{Ed25519Public, MessageNonce, PairingToken, X25519Public};
use skald_common::pairing::PairingQr;
use skald_common::wire::{self, Frame};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::{WebSocketStream, accept_async};

use super::*;
use crate::model::account::AgentKeys;
use crate::model::item::Entry;

const NONE: Features = Features::NONE;
const ALL: Features = Features::ALL;

/// A relay and an agent, played by the test, and the folder of a phone.
struct World {
    listener: TcpListener,
    url: String,
    agent: Identity,
    counter: AtomicU64,
    store: Store,
    _folder: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        Self {
            url: format!("ws://{}/relay/v1/ws", listener.local_addr().unwrap()),
            listener,
            agent: Identity::new(&Seed::new([9; 32])),
            counter: AtomicU64::new(100),
            store: Store::open(folder.path(), "default").unwrap(),
            _folder: folder,
        }
    }

    fn keys(&self) -> AgentKeys {
        AgentKeys { ed25519: self.agent.ed25519_pub(), x25519: self.agent.x25519_pub() }
    }

    /// With a phone that is paired, and greeted the agent before.
    async fn paired(standing: Standing) -> Self {
        let world = Self::new().await;
        world.store.seed_or_new(|| Zeroizing::new([5; 32])).unwrap();
        let mut account = Account::new(world.keys(), world.url.clone(), "Phone".into(), 1);
        account.standing = standing;
        account.hello_sent = standing != Standing::Pending;
        world.store.create(&account).unwrap();
        world
    }

    async fn phone(&self, manner: Manner) -> Phone {
        Phone::open(self.store.clone(), manner, Until::secs(5)).await.unwrap()
    }

    fn session(&self) -> (SessionKey, Ed25519Public) {
        let phone = Identity::new(&self.store.seed().unwrap());
        let namespace = self.agent.namespace_id();
        let key = SessionKey::agree(
            &self.agent,
            phone.ed25519_pub(),
            &phone.x25519_pub(),
            namespace,
            Direction::AgentToClient,
        );
        (key.unwrap(), phone.ed25519_pub())
    }

    /// A message of the agent as the relay delivers it.
    fn message(&self, live: bool, delivery: u64, kind: &str, fields: &str) -> Frame {
        let counter = self.counter.fetch_add(1, Ordering::Relaxed);
        let json = format!(r#"{{"v":1,"kind":"{kind}","id":"agent-{counter}","ts":{},{fields}}}"#, drive::unix_ms());
        let (nonce, sealed) =
            self.session().0.seal(counter, &frame_json(json.as_bytes(), Compression::WhenSmaller)).unwrap();
        Frame::Message(wire::Message {
            ciphertext: sealed.into(),
            nonce: nonce.to_vec(),
            peer: self.agent.ed25519_pub().to_vec(),
            live,
            delivery,
            ..Default::default()
        })
    }

    fn snapshot(&self, live: bool, delivery: u64, ids: &[&str]) -> Frame {
        let items: Vec<String> = ids
            .iter()
            .map(|id| {
                format!(
                    r#"{{"request_id":"{id}","tool_name":"t","agent_label":"S","summary":"{id}","created_at":1,"arguments":{{}}}}"#
                )
            })
            .collect();
        let fields = format!(r#""badge":{},"approvals":[{}],"clarifications":[]"#, ids.len(), items.join(","));
        self.message(live, delivery, "inbox_update", &fields)
    }

    /// Waits for the next connection and its handshake up to the challenge's answer.
    async fn accept(&self) -> (Socket<'_>, wire::Auth) {
        let (tcp, _) = self.listener.accept().await.unwrap();
        let mut socket = Socket { world: self, stream: accept_async(tcp).await.unwrap() };
        socket.send(Frame::Challenge(wire::Challenge { nonce: vec![7; 32] })).await;
        let Frame::Auth(auth) = socket.frame().await else { panic!("no Auth") };
        (socket, auth)
    }

    /// Waits for the next connection and lets it in; gives the live inbox request that it begins with as well.
    async fn let_in(&self, features: Features) -> (Socket<'_>, Sent) {
        let (mut socket, auth) = self.accept().await;
        assert!(matches!(auth.role, Some(wire::Role::Client(_))));
        socket.ok(features).await;
        assert!(matches!(socket.frame().await, Frame::PresenceRequest(_)));
        let request = socket.message().await;
        assert_eq!((request.kind(), request.live), ("inbox_request", true));
        (socket, request)
    }
}

struct Socket<'a> {
    world: &'a World,
    stream: WebSocketStream<TcpStream>,
}

/// A message of the phone, opened.
struct Sent {
    counter: u64,
    live: bool,
    number: u64,
    json: serde_json::Value,
}

impl Sent {
    fn kind(&self) -> &str {
        self.json["kind"].as_str().unwrap()
    }

    fn id(&self) -> &str {
        self.json["id"].as_str().unwrap()
    }
}

impl Socket<'_> {
    async fn send(&mut self, frame: Frame) {
        self.stream.send(Message::Binary(wire::encode(frame).into())).await.unwrap();
    }

    async fn ok(&mut self, features: Features) {
        let namespace_id = self.world.agent.namespace_id().to_vec();
        self.send(Frame::AuthOk(wire::AuthOk { namespace_id, features: features.bits() })).await;
    }

    async fn refuse(&mut self, code: &str) {
        self.send(Frame::AuthError(wire::AuthError { code: code.into(), message: String::new() })).await;
    }

    async fn accepted(&mut self, sent: &Sent, queued: bool) {
        self.send(Frame::Accepted(wire::Accepted { r#ref: sent.number, queued })).await;
    }

    async fn close(&mut self, code: u16) {
        let _ = self.stream.close(Some(CloseFrame { code: code.into(), reason: "".into() })).await;
    }

    /// The next frame; `None` once the phone has closed.
    async fn try_frame(&mut self) -> Option<Frame> {
        while let Some(Ok(message)) = self.stream.next().await {
            if let Message::Binary(bytes) = message {
                return Some(wire::decode(bytes).unwrap().unwrap());
            }
        }
        None
    }

    async fn frame(&mut self) -> Frame {
        self.try_frame().await.expect("the phone closed")
    }

    /// The next frame, which must be a message.
    async fn message(&mut self) -> Sent {
        let frame = self.frame().await;
        let Frame::Message(message) = frame else { panic!("no message: {frame:?}") };
        let nonce = MessageNonce::from_slice(&message.nonce).unwrap();
        let (counter, framed) = self.world.session().0.open(&nonce, &message.ciphertext).unwrap();
        let skald_common::framing::Body::Json(json) = unframe(&framed).unwrap() else { panic!("no JSON") };
        let json = serde_json::from_slice(&json).unwrap();
        Sent { counter, live: message.live, number: message.r#ref, json }
    }

    /// The number of the next receipt.
    async fn receipt(&mut self) -> u64 {
        let frame = self.frame().await;
        let Frame::Ack(ack) = frame else { panic!("no receipt: {frame:?}") };
        ack.delivery
    }
}

fn ids(phone: &Phone) -> Vec<&str> {
    phone.inbox().pending().map(Entry::id).collect()
}

/// Drives the phone until `done`.
async fn until(phone: &mut Phone, mut done: impl FnMut(&PhoneEvent) -> bool) {
    let waiting = async {
        loop {
            if done(&phone.next_event().await.unwrap()) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("the event did not come");
}

const SOON: fn() -> Until = || Until::secs(10);

#[tokio::test]
async fn the_first_connection_greets_and_later_ones_do_not_again() {
    let world = World::paired(Standing::Pending).await;
    for round in 0..2 {
        let mut phone = world.phone(Manner::Command).await;
        let relay = async {
            let (mut socket, _) = world.accept().await;
            socket.ok(ALL).await;
            if round == 0 {
                let hello = socket.message().await;
                assert_eq!((hello.kind(), hello.live), ("hello", false));
                assert_eq!(hello.json["device_info"]["device_name"], "Phone");
                socket.accepted(&hello, false).await;
            }
            assert!(matches!(socket.frame().await, Frame::PresenceRequest(_)));
            assert_eq!(socket.message().await.kind(), "inbox_request");
            socket
        };
        let client = async {
            phone.connect(SOON()).await.unwrap();
            assert!(phone.greet(SOON()).await.unwrap());
        };
        let (_socket, ()) = tokio::join!(relay, client);
        assert_eq!(world.store.load().unwrap().unwrap().standing, Standing::Authorized);
        phone.close().await;
    }
}

#[tokio::test]
async fn what_was_received_is_on_disk_before_its_receipt_and_told_once_over_restarts() {
    let world = World::paired(Standing::Authorized).await;
    let told = world.message(false, 7, "notification", r#""title":"T","body":"B""#);
    let mut phone = world.phone(Manner::Command).await;
    let relay = async {
        let (mut socket, _) = world.let_in(ALL).await;
        socket.send(told.clone()).await;
        assert_eq!(socket.receipt().await, 7);
        let saved = world.store.load().unwrap().unwrap();
        assert_eq!((saved.counters.received, saved.unshown().count()), (100, 1));
        socket
    };
    phone.start();
    let (_socket, ()) = tokio::join!(relay, async {
        until(&mut phone, |event| matches!(event, PhoneEvent::Notification(told) if told.title == "T")).await;
        // Receipts wait for more to come.
        let _ = Until::after(Duration::from_millis(300)).within(phone.next_event()).await;
    });
    phone.close().await;
    let mut phone = world.phone(Manner::Command).await;
    phone.start();
    let relay = async {
        let (mut socket, _) = world.let_in(ALL).await;
        socket.send(told.clone()).await;
        socket
    };
    let (_socket, ()) = tokio::join!(
        relay,
        until(&mut phone, |event| {
            assert!(!matches!(event, PhoneEvent::Notification(_)));
            matches!(event, PhoneEvent::Dropped(Drop::Replay))
        })
    );
    assert_eq!(world.store.load().unwrap().unwrap().unshown().count(), 1);
}

#[tokio::test]
async fn a_message_that_cannot_be_saved_is_not_acknowledged() {
    let world = World::paired(Standing::Authorized).await;
    let mut phone = world.phone(Manner::Command).await;
    phone.start();
    let relay = async {
        let (mut socket, _) = world.let_in(ALL).await;
        std::fs::write(world.store.folder().join("state.json"), b"damaged").unwrap();
        socket.send(world.snapshot(false, 1, &["a"])).await;
        assert!(socket.try_frame().await.is_none(), "dropped without a receipt");
    };
    let client = async {
        let error = loop {
            if let Err(error) = phone.next_event().await {
                break error;
            }
        };
        assert!(error.to_string().contains("damaged"), "{error}");
        // The engine closes the connection with its next output.
        let _ = Until::after(Duration::from_millis(200)).within(phone.next_event()).await;
    };
    tokio::join!(relay, client);
}

#[tokio::test]
async fn an_answer_is_settled_by_the_agents_ack() {
    for (fields, settled) in [
        (r#","outcome":"accepted""#, Settled::Accepted),
        (r#","outcome":"superseded","answered_by":"Tablet""#, Settled::TooLate(Some("Tablet".into()))),
        (r#","outcome":"not_shown""#, Settled::NotShown),
        ("", Settled::Received),
    ] {
        let world = World::paired(Standing::Authorized).await;
        let mut phone = world.phone(Manner::Command).await;
        let relay = async {
            let (mut socket, _) = world.let_in(ALL).await;
            socket.send(world.snapshot(true, 0, &["a.1", "b.2"])).await;
            let answer = socket.message().await;
            assert_eq!((answer.kind(), answer.live), ("approval_response", false));
            assert_eq!((&answer.json["decision"], &answer.json["request_id"]), (&"approved".into(), &"a.1".into()));
            socket.accepted(&answer, false).await;
            socket.send(world.snapshot(true, 0, &["b.2"])).await;
            let ack = format!(r#""ref_id":"{}"{fields}"#, answer.id());
            socket.send(world.message(true, 0, "ack", &ack)).await;
            socket
        };
        let client = async {
            phone.connect(SOON()).await.unwrap();
            assert_eq!(phone.refresh(SOON()).await.unwrap(), Refreshed::Fresh);
            assert_eq!(ids(&phone), ["a.1", "b.2"]);
            let id = phone.answer("a.1", Answer::Approve { bypass_secs: None }).unwrap();
            assert_eq!(ids(&phone), ["b.2"], "taken away at once");
            phone.settle(&id, SOON()).await.unwrap()
        };
        let (_socket, told) = tokio::join!(relay, client);
        assert_eq!(told, settled);
        assert_eq!(phone.account().unshown().count(), 0, "told by the command, so not again");
    }
}

#[tokio::test]
async fn an_answer_to_an_absent_agent_is_queued_and_repeated_after_a_lost_connection() {
    let world = World::paired(Standing::Authorized).await;
    let mut phone = world.phone(Manner::Command).await;
    let relay = async {
        let (mut socket, request) = world.let_in(ALL).await;
        let agent = world.agent.ed25519_pub().to_vec();
        socket.send(world.snapshot(false, 1, &["a.1"])).await;
        socket.send(Frame::PeerOffline(wire::PeerOffline { peer: agent, r#ref: request.number })).await;
        let first = loop {
            match socket.frame().await {
                Frame::Ack(_) => {}
                frame => break frame,
            }
        };
        drop(socket);
        let (mut socket, auth) = world.accept().await;
        assert!(matches!(auth.role, Some(wire::Role::Client(_))));
        socket.ok(ALL).await;
        assert_eq!(socket.frame().await, first, "identical, and before anything new");
        let Frame::Message(message) = first else { panic!("no message") };
        socket.send(Frame::Accepted(wire::Accepted { r#ref: message.r#ref, queued: true })).await;
        socket
    };
    let client = async {
        phone.connect(SOON()).await.unwrap();
        assert_eq!(phone.refresh(SOON()).await.unwrap(), Refreshed::AgentOffline);
        assert_eq!(ids(&phone), ["a.1"], "what was stored is there");
        let id = phone.answer("a.1", Answer::Reject { reason: None }).unwrap();
        phone.settle(&id, SOON()).await.unwrap()
    };
    let (_socket, settled) = tokio::join!(relay, client);
    assert_eq!(settled, Settled::Queued);
}

#[tokio::test]
async fn an_answer_that_the_relay_refuses_leaves_the_item_pending() {
    let world = World::paired(Standing::Authorized).await;
    let mut phone = world.phone(Manner::Command).await;
    let relay = async {
        let (mut socket, _) = world.let_in(ALL).await;
        socket.send(world.snapshot(true, 0, &["a.1"])).await;
        let answer = socket.message().await;
        let refusal = wire::Error { code: "queue_full".into(), message: String::new(), r#ref: answer.number };
        socket.send(Frame::Error(refusal)).await;
        socket
    };
    let client = async {
        phone.connect(SOON()).await.unwrap();
        phone.refresh(SOON()).await.unwrap();
        let id = phone.answer("a.1", Answer::Approve { bypass_secs: None }).unwrap();
        phone.settle(&id, SOON()).await.unwrap()
    };
    let (_socket, settled) = tokio::join!(relay, client);
    let queue_full = skald_common::wire::ErrorCode::QueueFull;
    assert_eq!(settled, Settled::NotSent(Some(SendFailure::Refused(Some(queue_full)))));
    assert_eq!(ids(&phone), ["a.1"]);
}

#[tokio::test]
async fn without_features_the_last_of_several_snapshots_counts() {
    let world = World::paired(Standing::Authorized).await;
    let mut phone = world.phone(Manner::Command).await;
    let relay = async {
        let (mut socket, _) = world.let_in(NONE).await;
        socket.send(world.snapshot(false, 0, &["old"])).await;
        socket.send(world.snapshot(false, 0, &["new"])).await;
        socket
    };
    let client = async {
        phone.connect(SOON()).await.unwrap();
        phone.refresh(SOON()).await.unwrap()
    };
    let (_socket, refreshed) = tokio::join!(relay, client);
    assert_eq!((refreshed, ids(&phone)), (Refreshed::Fresh, vec!["new"]));
}

#[tokio::test]
async fn a_watch_lends_its_connection_to_a_command_and_comes_back_above_its_counters() {
    let world = World::paired(Standing::Authorized).await;
    let aside = tokio::sync::Notify::new();
    let mut watch = world.phone(Manner::Watch).await;
    watch.start();
    let relay = async {
        let (mut first, request) = world.let_in(ALL).await;
        first.send(world.snapshot(true, 0, &["a.1"])).await;
        let (mut second, _) = world.let_in(ALL).await;
        first.close(4001).await;
        second.send(world.snapshot(true, 0, &["a.1"])).await;
        let answer = second.message().await;
        assert!(answer.counter > request.counter + 1, "not out of the watch's block");
        second.accepted(&answer, false).await;
        second.send(world.snapshot(true, 0, &[])).await;
        let ack = format!(r#""ref_id":"{}","outcome":"accepted""#, answer.id());
        second.send(world.message(true, 0, "ack", &ack)).await;
        while second.try_frame().await.is_some() {}
        let (third, again) = world.let_in(ALL).await;
        assert!(again.counter > answer.counter, "above what the command has used");
        third
    };
    let command = async {
        let mut phone = world.phone(Manner::Command).await;
        phone.connect(SOON()).await.unwrap();
        phone.refresh(SOON()).await.unwrap();
        let id = phone.answer("a.1", Answer::Approve { bypass_secs: None }).unwrap();
        assert_eq!(phone.settle(&id, SOON()).await.unwrap(), Settled::Accepted);
        aside.notified().await;
        phone.close().await;
    };
    let mut seen = Vec::new();
    let watching = async {
        until(&mut watch, |event| matches!(event, PhoneEvent::Inbox { changes } if !changes.is_empty())).await;
        let watched = until(&mut watch, |event| {
            seen.push(match event {
                PhoneEvent::Connected { .. } => "connected",
                PhoneEvent::Disconnected { .. } => "disconnected",
                PhoneEvent::SteppedAside => {
                    aside.notify_one();
                    "aside"
                }
                PhoneEvent::Inbox { changes } if matches!(changes[..], [Change::Removed(_)]) => "removed",
                _ => "",
            });
            seen.last() == Some(&"connected")
        });
        tokio::join!(watched, command);
    };
    let _ = tokio::join!(relay, watching);
    seen.retain(|word| !word.is_empty());
    assert_eq!(seen, ["disconnected", "aside", "removed", "connected"]);
    assert!(ids(&watch).is_empty());
}

#[tokio::test]
async fn what_was_to_be_sealed_under_counters_that_another_process_claimed_never_leaves() {
    let world = World::paired(Standing::Authorized).await;
    let mut watch = world.phone(Manner::Watch).await;
    watch.start();
    let relay = async {
        let (mut first, _) = world.accept().await;
        // While the watch is in its handshake, another process claims a block.
        let (account, ()) = world.store.update(|account| account.counters.reserved = 1 << 60).unwrap();
        first.ok(ALL).await;
        while let Some(frame) = first.try_frame().await {
            assert!(!matches!(frame, Frame::Message(_)), "sealed under a counter that may have been used");
        }
        let (second, request) = world.let_in(ALL).await;
        assert!(request.counter > account.counters.reserved);
        second
    };
    let connected_again = async {
        for _ in 0..2 {
            until(&mut watch, |event| matches!(event, PhoneEvent::Connected { .. })).await;
        }
    };
    let (_socket, ()) = tokio::join!(relay, connected_again);
}

#[tokio::test]
async fn a_second_watch_and_a_second_command_are_told() {
    let world = World::paired(Standing::Authorized).await;
    let _watch = world.phone(Manner::Watch).await;
    let second = Phone::open(world.store.clone(), Manner::Watch, Until::NEVER).await;
    assert!(matches!(second, Err(PhoneError::AlreadyWatching)));
    let command = world.phone(Manner::Command).await;
    let wait = Until::after(Duration::from_millis(10));
    assert!(matches!(Phone::open(world.store.clone(), Manner::Command, wait).await, Err(PhoneError::Busy)));
    command.close().await;
    world.phone(Manner::Command).await;
}

#[tokio::test]
async fn a_phone_waits_for_its_authorization_and_knows_when_it_has_lost_it() {
    let world = World::paired(Standing::Pending).await;
    let mut phone = world.phone(Manner::Command).await;
    let relay = async {
        for code in ["unauthorized", "not_found"] {
            world.accept().await.0.refuse(code).await;
        }
        let (mut socket, _) = world.accept().await;
        socket.ok(ALL).await;
        socket
    };
    let (socket, connected) = tokio::join!(relay, phone.connect(SOON()));
    connected.unwrap();
    drop(socket);
    phone.close().await;
    let mut phone = world.phone(Manner::Command).await;
    let relay = async { world.accept().await.0.refuse("unauthorized").await };
    let ((), refused) = tokio::join!(relay, phone.connect(SOON()));
    assert!(matches!(refused, Err(PhoneError::Revoked)));
    assert_eq!(world.store.load().unwrap().unwrap().standing, Standing::Revoked);
}

fn code(world: &World) -> PairingQr {
    PairingQr::new(world.url.clone(), world.keys().ed25519, world.keys().x25519, PairingToken::new([3; 32]))
}

fn pairing(again: bool) -> Pairing {
    Pairing { name: "Phone".into(), again }
}

#[tokio::test]
async fn pairing_hands_over_the_keys_and_saves_when_the_relay_has_them() {
    let world = World::new().await;
    let relay = async {
        let (mut socket, auth) = world.accept().await;
        let Some(wire::Role::Pairing(role)) = auth.role else { panic!("not pairing") };
        assert_eq!((role.pairing_token, role.device_token.as_str()), (vec![3; 32], ""));
        assert_eq!(role.platform, Platform::Android as i32);
        assert!(world.store.load().unwrap().is_none(), "not before the relay has them");
        socket.ok(NONE).await;
        (role.client_ed25519_pub, role.client_x25519_pub)
    };
    let qr = code(&world);
    let ((ed25519, x25519), phone) = tokio::join!(relay, Phone::pair(world.store.clone(), &qr, pairing(false), SOON()));
    let phone = phone.unwrap();
    let keys = (Ed25519Public::from_slice(&ed25519).unwrap(), X25519Public::from_slice(&x25519).unwrap());
    assert_eq!(phone.fingerprint(), fingerprint(&keys.0, &keys.1));
    phone.close().await;
    let again = Phone::pair(world.store.clone(), &qr, pairing(false), SOON()).await;
    assert!(matches!(again, Err(PhoneError::AlreadyPaired(_))));
    let other = PairingQr::new(
        world.url.clone(),
        Identity::new(&Seed::new([1; 32])).ed25519_pub(),
        world.keys().x25519,
        PairingToken::new([3; 32]),
    );
    let other = Phone::pair(world.store.clone(), &other, pairing(true), SOON()).await;
    assert!(matches!(other, Err(PhoneError::OtherAgent(_))));
}

fn register(world: &World, token: &str) {
    use crate::registration::Registration;
    world.store.register(|_| Ok::<_, crate::store::StoreError>(Some(Registration::parse(token).unwrap()))).unwrap();
}

#[tokio::test]
async fn the_relay_gets_the_push_token_at_pairing_and_with_every_connection() {
    let world = World::new().await;
    register(&world, "ios:00aabb");
    let relay = async {
        let (mut socket, auth) = world.accept().await;
        let Some(wire::Role::Pairing(role)) = auth.role else { panic!("not pairing") };
        assert_eq!((role.device_token.as_str(), role.platform), ("00aabb", Platform::Ios as i32));
        socket.ok(NONE).await;
    };
    let qr = code(&world);
    let ((), phone) = tokio::join!(relay, Phone::pair(world.store.clone(), &qr, pairing(false), SOON()));
    let phone = phone.unwrap();
    assert!(!format!("{phone:?}").contains("00aabb"), "nor in its debug output: {phone:?}");
    phone.close().await;

    let mut watch = world.phone(Manner::Watch).await;
    watch.start();
    let relay = async {
        assert_eq!(comes_with(&world).await, ("00aabb".to_owned(), Platform::Ios as i32, ALL.bits()));
        // Another command was given another token, and did not come this far.
        register(&world, "android:other");
        assert_eq!(comes_with(&world).await, ("other".to_owned(), Platform::Android as i32, ALL.bits()));
    };
    let client = async {
        for _ in 0..2 {
            until(&mut watch, |event| matches!(event, PhoneEvent::Connected { .. })).await;
            until(&mut watch, |event| matches!(event, PhoneEvent::Disconnected { .. })).await;
        }
    };
    tokio::join!(relay, client);
}

/// Lets a phone in, and out again: its push token, platform and features.
async fn comes_with(world: &World) -> (String, i32, u32) {
    let (mut socket, auth) = world.accept().await;
    let Some(wire::Role::Client(role)) = auth.role else { panic!("not a client") };
    socket.ok(ALL).await;
    socket.close(1001).await;
    (role.device_token, role.platform, role.features)
}

#[tokio::test]
async fn a_used_up_code_pairs_nothing_and_says_what_to_do() {
    let world = World::new().await;
    let relay = async { world.accept().await.0.refuse("pairing_closed").await };
    let qr = code(&world);
    let ((), refused) = tokio::join!(relay, Phone::pair(world.store.clone(), &qr, pairing(false), SOON()));
    let error = refused.unwrap_err();
    assert!(matches!(error, PhoneError::PairingRefused(_)));
    assert!(error.to_string().contains("skaldctl pair"), "{error}");
    assert!(world.store.load().unwrap().is_none());
}

#[tokio::test]
async fn logging_out_tells_the_agent_and_leaves_nothing_behind() {
    let world = World::paired(Standing::Authorized).await;
    let mut phone = world.phone(Manner::Command).await;
    let relay = async {
        let (mut socket, _) = world.let_in(ALL).await;
        let farewell = socket.message().await;
        assert_eq!((farewell.kind(), farewell.live), ("logout", false));
        socket.accepted(&farewell, false).await;
        socket.close(4003).await;
    };
    let client = async {
        phone.connect(SOON()).await.unwrap();
        phone.logout(SOON()).await.unwrap();
    };
    tokio::join!(relay, client);
    assert!(world.store.load().unwrap().is_none());
    assert!(!world.store.folder().join("seed").exists());
}

#[tokio::test]
async fn a_secret_value_is_in_no_file_of_the_phone() {
    let world = World::paired(Standing::Authorized).await;
    let mut phone = world.phone(Manner::Command).await;
    let relay = async {
        let (mut socket, _) = world.let_in(ALL).await;
        let prompt = r#""badge":1,"approvals":[],"clarifications":[],"elicitations":[{"request_id":"p.1","server_name":"ssh",
            "message":"Password?","field_name":"password","sensitive":true,"is_confirmation":false,"created_at":1}]"#;
        socket.send(world.message(true, 0, "inbox_update", prompt)).await;
        let reply = socket.message().await;
        assert_eq!(reply.json["content"], serde_json::json!({"password": "canary-hunter2"}));
        socket.accepted(&reply, true).await;
        socket
    };
    let client = async {
        phone.connect(SOON()).await.unwrap();
        phone.refresh(SOON()).await.unwrap();
        let value = crate::model::answer::Secret::new("canary-hunter2".into());
        let id = phone.answer("p.1", Answer::Value(value)).unwrap();
        phone.settle(&id, SOON()).await.unwrap()
    };
    let (_socket, settled) = tokio::join!(relay, client);
    assert_eq!(settled, Settled::Queued);
    assert!(!format!("{phone:?}").contains("canary"), "nor in its debug output");
    let mut files = 0;
    for file in std::fs::read_dir(world.store.folder()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!bytes.windows(6).any(|window| window == b"canary"));
        files += 1;
    }
    assert!(files >= 3);
}
