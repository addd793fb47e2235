//! The real server on sockets in a temporary folder; the test plays the hub.

use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};
use skald_common::ids::{Ed25519Public, NamespaceId, X25519Public};
use skald_common::payload::{ElicitationAction, SecretObject};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinHandle;

use super::*;
use crate::config::{ConfigStore, Keeper};
use crate::hub::api::{
    AnswerContent, AnsweringDevice, ApiError, CallId, CallOutcome, Command, DeviceCounts, DeviceTable, HostCall,
    HostRequest, HostSession, Inbox, PendingCounts, ProxyStatus, RelayStatus, ResolveParams, SessionId, Status,
};
use crate::hub::events::Event;
use crate::hub::items::{Kind, RequestId};
use crate::paths::Mode;
use crate::rpc::{LineReader, MAX_LINE};

/// What the test holds of a running server.
struct Fixture {
    dir: tempfile::TempDir,
    hub: Inbox,
    stop: watch::Sender<bool>,
    server: JoinHandle<()>,
}

impl Fixture {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (handle, hub) = HubHandle::new();
        let store = ConfigStore::open(&dir.path().join("config.toml"), &|_| None).unwrap();
        let (keeper, config) = Keeper::new(store, handle.clone());
        tokio::spawn(keeper.run());
        let listeners = listen(dir.path(), Mode::User, Inherited::none()).await.unwrap();
        let (stop, stopped) = watch::channel(false);
        let context = Context { hub: handle, config, started: Instant::now() };
        let server = tokio::spawn(serve(listeners, context, stopped));
        Self { dir, hub, stop, server }
    }

    fn path(&self, socket: Socket) -> PathBuf {
        self.dir.path().join(socket.name())
    }

    async fn connect(&self, socket: Socket) -> Client {
        let stream = UnixStream::connect(self.path(socket)).await.unwrap();
        Client { stream, reader: LineReader::new() }
    }

    /// A connection after `hello`, on the control socket.
    async fn control(&mut self) -> Client {
        let mut client = self.connect(Socket::Control).await;
        client.send(&hello("skaldctl")).await;
        self.answer_status().await;
        assert_eq!(client.receive().await["result"]["protocol"], 1);
        client
    }

    /// A connection after `hello`, on the hosts' socket, and the hub's end of it.
    async fn host(&mut self) -> (Client, mpsc::Sender<HostCall>) {
        let mut client = self.connect(Socket::Hosts).await;
        client.send(&hello("skald")).await;
        let Command::OpenHost(hello, reply) = self.command().await else { panic!("no session is opened") };
        assert_eq!((hello.name.as_str(), hello.version.as_str(), hello.linger_secs), ("skald", "9", None));
        let (calls, receiver) = mpsc::channel(8);
        let session = HostSession::new(SessionId(7), receiver, self.hub.closings_sender.clone());
        assert!(reply.send(Ok(session)).is_ok());
        self.answer_status().await;
        assert_eq!(client.receive().await["result"]["namespace_id"], "03".repeat(32));
        (client, calls)
    }

    async fn command(&mut self) -> Command {
        self.hub.commands.recv().await.unwrap()
    }

    async fn answer_status(&mut self) {
        let Command::Status(reply) = self.command().await else { panic!("status is not asked for") };
        assert!(reply.send(Ok(status())).is_ok());
    }
}

struct Client {
    stream: UnixStream,
    reader: LineReader,
}

impl Client {
    async fn send(&mut self, message: &Value) {
        self.write(format!("{message}\n").as_bytes()).await;
    }

    async fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    async fn receive(&mut self) -> Value {
        self.try_receive().await.expect("the connection ended")
    }

    /// `None` at the end of the connection.
    async fn try_receive(&mut self) -> Option<Value> {
        loop {
            if let Some(line) = self.reader.next_line() {
                return Some(serde_json::from_slice(&line.unwrap()).unwrap());
            }
            if !self.reader.fill(&mut self.stream).await.unwrap() {
                return None;
            }
        }
    }

    async fn error(&mut self, message: &Value) -> (i64, String) {
        self.send(message).await;
        let answer = self.receive().await;
        assert_eq!(answer["id"], message["id"]);
        (answer["error"]["code"].as_i64().unwrap(), answer["error"]["message"].as_str().unwrap().to_owned())
    }
}

fn hello(name: &str) -> Value {
    call(0, "hello", json!({"protocol": 1, "name": name, "version": "9", "unknown": true}))
}

fn call(id: u64, method: &str, params: impl Into<Value>) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params.into()})
}

fn status() -> Status {
    Status {
        namespace_id: NamespaceId::new([3; 32]),
        agent_ed25519_pub: Ed25519Public::new([1; 32]),
        agent_x25519_pub: X25519Public::new([2; 32]),
        relay: RelayStatus { url: "ws://relay".into(), connected: true, since: 5, last_error: None, parked: false },
        devices: DeviceCounts { authorized: 2, pending: 0, online: 1, push_gone: 0 },
        device_table: DeviceTable::Normal,
        pending: PendingCounts { approvals: 1, clarifications: 0, elicitations: 0 },
        proxy: ProxyStatus::default(),
        hosts: vec![],
        last_error: None,
        last_error_at: None,
        notices: vec![],
    }
}

#[tokio::test]
async fn nothing_works_before_hello_and_each_wrong_hello_says_why() {
    let mut server = Fixture::start().await;
    for socket in Socket::BOTH {
        let mut client = server.connect(socket).await;
        assert_eq!(client.error(&call(1, "status", json!({}))).await, (codes::HELLO_FIRST, "hello first".into()));
        let (code, text) = client.error(&call(2, "hello", json!({"name": "a"}))).await;
        assert_eq!((code, text.as_str()), (codes::INVALID_PARAMS, "missing field `protocol`"));
        client.send(&call(3, "hello", json!({"protocol": 2, "name": "a", "version": "1"}))).await;
        let error = &client.receive().await["error"];
        assert_eq!((&error["code"], &error["data"]["supported"]), (&json!(codes::PROTOCOL), &json!([1])));
        for name in ["", "Skald", "a b", "ä", &"x".repeat(33)] {
            let (code, text) = client.error(&hello(name)).await;
            assert!(code == codes::INVALID_PARAMS && text.starts_with("name: "), "{text}");
        }
    }
    // And the right one still works, with all that the caller should know.
    let mut client = server.connect(Socket::Control).await;
    client.error(&call(1, "status", json!({}))).await;
    client.send(&hello("skaldctl")).await;
    server.answer_status().await;
    let result = client.receive().await["result"].clone();
    assert_eq!(result["daemon"], json!({"version": VERSION, "pid": std::process::id()}));
    assert_eq!(result["agent_ed25519_pub"], "01".repeat(32));
    assert_eq!(result["relay"]["url"], "ws://relay");
    assert_eq!(client.error(&hello("skaldctl")).await.0, codes::INVALID_REQUEST);
}

#[tokio::test]
async fn each_socket_has_its_own_methods() {
    let mut server = Fixture::start().await;
    let (mut host, _calls) = server.host().await;
    for method in ["pairing.start", "devices.authorize", "inbox.answer", "inbox.list", "config.set", "events.subscribe"]
    {
        assert_eq!(host.error(&call(1, method, json!({}))).await.0, codes::METHOD_NOT_FOUND, "{method}");
    }
    let mut control = server.control().await;
    for method in ["inbox.sync", "inbox.requested", "inbox.resolved", "inbox.resolve", "nonsense"] {
        let (code, text) = control.error(&call(1, method, json!({}))).await;
        assert!(code == codes::METHOD_NOT_FOUND && text.contains(method) && text.contains("devices.list"), "{text}");
    }
}

#[tokio::test]
async fn status_is_short_for_hosts_and_full_for_the_owner() {
    let mut server = Fixture::start().await;
    let (mut host, _calls) = server.host().await;
    host.send(&call(1, "status", json!({}))).await;
    server.answer_status().await;
    let short = host.receive().await["result"].clone();
    assert_eq!((&short["relay"]["connected"], &short["pending"]["approvals"]), (&json!(true), &json!(1)));
    assert!(short.get("hosts").is_none());
    let mut control = server.control().await;
    control.send(&call(1, "status", Value::Null)).await;
    server.answer_status().await;
    let full = control.receive().await["result"].clone();
    assert_eq!(
        (&full["hosts"], &full["devices"]["authorized"], &full["version"]),
        (&json!([]), &json!(2), &json!(VERSION))
    );
    assert!(full["uptime_secs"].is_u64());
}

#[tokio::test]
async fn calls_are_served_in_order_and_notifications_are_not_answered() {
    let mut server = Fixture::start().await;
    let (mut host, _calls) = server.host().await;
    let item = json!({"request_id": 1, "tool_name": "t"});
    host.send(&json!({"jsonrpc": "2.0", "method": "inbox.requested", "params": {"kind": "approval", "item": item}}))
        .await;
    host.send(&json!({"jsonrpc": "2.0", "method": "nonsense"})).await;
    host.send(&call(5, "inbox.resolved", json!({"kind": "approval", "request_id": 1}))).await;
    let Command::InboxRequested(SessionId(7), Kind::Approval, item, requested) = server.command().await else {
        panic!("not in order");
    };
    assert_eq!(item.get(), r#"{"request_id":1,"tool_name":"t"}"#);
    assert!(server.hub.commands.try_recv().is_err(), "the second call overtook the first");
    requested.send(Ok(())).unwrap();
    let Command::InboxResolved(_, Kind::Approval, id, resolved) = server.command().await else {
        panic!("not in order")
    };
    assert_eq!(id, RequestId::from_json("1").unwrap());
    resolved.send(Ok(())).unwrap();
    assert_eq!(host.receive().await, json!({"jsonrpc": "2.0", "id": 5, "result": {}}));
}

#[tokio::test]
async fn wrong_parameters_and_refusals_are_told_with_place_and_reason() {
    let mut server = Fixture::start().await;
    let (mut host, _calls) = server.host().await;
    for (method, params, expected) in [
        ("inbox.sync", json!({"approvals": []}), "missing field `clarifications`"),
        ("inbox.sync", json!({"approvals": 5, "clarifications": []}), "approvals: expected a sequence"),
        ("inbox.requested", json!({"kind": "wish", "item": {}}), "kind: expected one of `approval`"),
        ("inbox.resolved", json!({"kind": "approval", "request_id": 1.5}), "request_id: request_id must be an integer"),
        ("notification.send", json!([]), "expected an object"),
    ] {
        let (code, text) = host.error(&call(1, method, params)).await;
        assert!(code == codes::INVALID_PARAMS && text.starts_with(expected), "{text}");
    }
    let mut control = server.control().await;
    control.send(&call(2, "devices.revoke", json!({"pubkey": "01020304"}))).await;
    let Command::DevicesRevoke(prefix, reply) = server.command().await else { panic!("no revoke") };
    reply.send(Err(ApiError::NoSuchDevice(prefix))).unwrap();
    let error = control.receive().await["error"].clone();
    assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(codes::REFUSED), &json!("no_such_device")));
    assert!(error["message"].as_str().unwrap().contains("01020304"));
}

#[tokio::test]
async fn a_taken_name_is_refused_with_its_own_code() {
    let mut server = Fixture::start().await;
    let mut client = server.connect(Socket::Hosts).await;
    client.send(&hello("skald")).await;
    let Command::OpenHost(hello, reply) = server.command().await else { panic!("no session is opened") };
    assert!(reply.send(Err(ApiError::NameTaken(hello.name))).is_ok());
    assert_eq!(client.receive().await["error"]["code"], codes::NAME_TAKEN);
}

#[tokio::test]
async fn what_is_no_json_is_answered_and_the_connection_goes_on() {
    let mut server = Fixture::start().await;
    let mut client = server.control().await;
    client.write(b"nonsense\n\xff\xfe\n\n[]\n{\"jsonrpc\":\"2.0\",\"id\":1,\"metho").await;
    for code in [codes::PARSE, codes::PARSE, codes::INVALID_REQUEST] {
        let answer = client.receive().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &json!(code)));
    }
    client.write(b"d\":\"status\"}\n").await;
    server.answer_status().await;
    assert_eq!(client.receive().await["id"], 1);
}

#[tokio::test]
async fn a_line_over_the_limit_is_answered_and_ends_the_connection() {
    let server = Fixture::start().await;
    let mut client = server.connect(Socket::Hosts).await;
    let (mut reading, mut writing) = client.stream.split();
    let long = vec![b'x'; MAX_LINE + 1];
    // The server stops reading at the limit, so the end of the line may not get through.
    let (_, answer) = tokio::join!(writing.write_all(&long), async {
        let mut text = String::new();
        let _ = reading.read_to_string(&mut text).await;
        text
    });
    let answer: Value = serde_json::from_str(answer.trim()).expect("one line, then the end");
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &json!(codes::PARSE)));
}

#[tokio::test]
async fn what_a_host_is_called_with_before_it_is_answered_comes_before_the_answer() {
    let mut server = Fixture::start().await;
    let (mut host, calls) = server.host().await;
    for id in 1..=30 {
        host.send(&call(id, "inbox.requested", json!({"kind": "approval", "item": {"request_id": 1}}))).await;
        let Command::InboxRequested(_, _, _, reply) = server.command().await else { panic!("no item") };
        // Both are there when the connection looks.
        calls.try_send(HostCall { id: CallId(id), request: HostRequest::Ping }).unwrap();
        reply.send(Ok(())).unwrap();
        assert_eq!(host.receive().await["method"], "ping");
        assert_eq!(host.receive().await["id"], id);
        host.send(&json!({"jsonrpc": "2.0", "id": id, "result": {}})).await;
        let Command::CallDone(..) = server.command().await else { panic!("no outcome") };
    }
}

#[tokio::test]
async fn the_daemon_calls_a_host_while_it_serves_a_call_of_it() {
    let mut server = Fixture::start().await;
    let (mut host, calls) = server.host().await;
    host.send(&call(1, "inbox.sync", json!({"approvals": [], "clarifications": []}))).await;
    let Command::InboxSync(_, set, sync) = server.command().await else { panic!("no sync") };
    assert!(set.approvals.is_empty() && set.elicitations.is_empty());

    calls.send(HostCall { id: CallId(40), request: HostRequest::Ping }).await.unwrap();
    let params = ResolveParams {
        answer_id: "a".into(),
        request_id: RequestId::from_json("12345678901234567890").unwrap(),
        device: AnsweringDevice { pubkey: Ed25519Public::new([9; 32]), name: "Phone".into() },
        answer: AnswerContent::Elicitation {
            action: ElicitationAction::Accept,
            content: Some(SecretObject::single("password", "hunter2".into())),
        },
    };
    for id in [41, 42, 43] {
        let request = HostRequest::Resolve(params.clone());
        calls.send(HostCall { id: CallId(id), request }).await.unwrap();
    }
    assert_eq!(host.receive().await["method"], "ping");
    let resolve = host.receive().await;
    assert_eq!((&resolve["id"], &resolve["method"]), (&json!(41), &json!("inbox.resolve")));
    let expected = json!({
        "answer_id": "a", "request_id": 12_345_678_901_234_567_890_u64, "kind": "elicitation", "action": "accept",
        "content": {"password": "hunter2"}, "device": {"pubkey": "09".repeat(32), "name": "Phone"},
    });
    assert_eq!(resolve["params"], expected);

    // Answers in another order; a ping is answered by any answer.
    host.send(&json!({"jsonrpc": "2.0", "id": 41, "result": {"resolved": false}})).await;
    host.send(&json!({"jsonrpc": "2.0", "id": 40, "error": {"code": -32601, "message": "what?"}})).await;
    host.send(&json!({"jsonrpc": "2.0", "id": 42, "error": {"code": -5, "message": "no"}})).await;
    host.send(&json!({"jsonrpc": "2.0", "id": 43, "result": true})).await;
    host.send(&json!({"jsonrpc": "2.0", "id": 41, "result": {"resolved": true}})).await;
    for (id, expected) in [
        (41, CallOutcome::Resolved(false)),
        (40, CallOutcome::Pong),
        (42, CallOutcome::Failed(-5)),
        (43, CallOutcome::Failed(codes::INVALID_REQUEST)),
    ] {
        let Command::CallDone(SessionId(7), done, outcome) = server.command().await else { panic!("not reported") };
        assert_eq!((done, outcome), (CallId(id), expected));
    }
    sync.send(Ok(())).unwrap();
    assert_eq!([host.receive().await, host.receive().await, host.receive().await][2]["id"], 1);
}

#[tokio::test]
async fn the_end_of_a_hosts_connection_closes_its_session_and_the_other_way_round() {
    let mut server = Fixture::start().await;
    let (host, _calls) = server.host().await;
    drop(host);
    assert_eq!(server.hub.closings.recv().await, Some(SessionId(7)));

    let (mut host, calls) = server.host().await;
    drop(calls);
    assert_eq!(host.try_receive().await, None);
}

#[tokio::test]
async fn calls_sent_before_the_writing_end_closes_are_still_answered() {
    let mut server = Fixture::start().await;
    let mut client = server.control().await;
    client.write(br#"{"jsonrpc":"2.0","id":1,"method":"status"}"#).await;
    client.stream.shutdown().await.unwrap();
    server.answer_status().await;
    assert_eq!(client.receive().await["id"], 1);
    assert_eq!(client.try_receive().await, None);
}

#[tokio::test]
async fn a_subscriber_gets_events_and_a_slow_one_is_told_what_it_lost_and_cut_off() {
    let mut server = Fixture::start().await;
    let (events, _) = broadcast::channel(256);
    let mut subscribers = Vec::new();
    for _ in 0..2 {
        let mut client = server.control().await;
        client.send(&call(1, "events.subscribe", json!({}))).await;
        let Command::Subscribe(reply) = server.command().await else { panic!("no subscription") };
        reply.send(Ok(events.subscribe())).unwrap();
        assert_eq!(client.receive().await["result"], json!({}));
        subscribers.push(client);
    }
    let mut slow = subscribers.pop().unwrap();
    let mut quick = subscribers.pop().unwrap();
    // Enough to fill the socket's buffers and the queue behind them.
    let count = 3000;
    for pending in 0..count {
        events.send(Event::InboxChanged { pending }).unwrap();
        let event = quick.receive().await;
        assert_eq!(
            (&event["method"], &event["params"]),
            (&json!("event"), &json!({"type": "inbox.changed", "pending": pending}))
        );
    }
    let mut got = 0;
    let last = loop {
        let event = slow.receive().await["params"].clone();
        if event["type"] == "lagged" {
            break event;
        }
        assert_eq!(event["pending"], got);
        got += 1;
    };
    assert!(got < count && last["dropped"].as_u64().unwrap() > 0, "{got} {last}");
    assert_eq!(slow.try_receive().await, None);
}

#[tokio::test]
async fn a_setting_is_checked_written_and_then_applied() {
    let mut server = Fixture::start().await;
    let mut client = server.control().await;
    let (code, text) = client.error(&call(1, "config.set", json!({"pairing_ttl": 601}))).await;
    assert_eq!((code, text.as_str()), (codes::INVALID_PARAMS, "pairing_ttl: must be a whole number from 1 to 600"));
    client.send(&call(2, "config.set", json!({"pairing_ttl": 60, "web_port": null}))).await;
    let Command::Settings(settings, reply) = server.command().await else { panic!("not applied") };
    assert_eq!(settings.pairing_ttl, 60);
    let written = std::fs::read_to_string(server.dir.path().join("config.toml")).unwrap();
    assert_eq!(written, "pairing_ttl = 60\n");
    reply.send(Ok(())).unwrap();
    assert_eq!(client.receive().await["result"]["pairing_ttl"], 60);
    client.send(&call(3, "config.get", json!({}))).await;
    let expected = json!({
        "relay_url": "", "qr_url": null, "pairing_ttl": 60, "require_device_confirmation": true,
        "notify_delay_secs": 20, "web_port": null,
    });
    assert_eq!(client.receive().await["result"], expected);
}

#[tokio::test]
async fn stopping_ends_connections_and_removes_the_sockets() {
    let mut server = Fixture::start().await;
    let mut client = server.control().await;
    server.stop.send(true).unwrap();
    assert_eq!(client.try_receive().await, None);
    (&mut server.server).await.unwrap();
    for socket in Socket::BOTH {
        assert!(!server.path(socket).exists());
    }
}

#[tokio::test]
async fn noise_on_the_socket_leaves_the_server_alive() {
    use proptest::strategy::{Strategy, ValueTree};
    let mut server = Fixture::start().await;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let noise = proptest::collection::vec(proptest::prelude::any::<u8>(), 1..4000);
    for _ in 0..50 {
        let mut client = server.connect(Socket::Hosts).await;
        // The server may have closed already.
        let _ = client.stream.write_all(&noise.new_tree(&mut runner).unwrap().current()).await;
    }
    let mut client = server.control().await;
    client.send(&call(1, "status", json!({}))).await;
    server.answer_status().await;
    assert_eq!(client.receive().await["id"], 1);
}
