//! Wrong input on every edge: it gets a clear error, loses nothing, and the next right thing works.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};
use skald_common::wire::{self, Frame};
use skald_tests::{
    Daemon, DaemonOptions, Finished, Host, Phone, Process, RawSocket, Relay, Rpc, Skaldctl, World, mode,
};

/// One line that names each of these; no panic and no trace of the insides.
fn is_clear(finished: &Finished, words: &[&str]) {
    assert_ne!(finished.code(), 0, "{finished}");
    for word in words {
        assert!(finished.err.contains(word), "{word:?} is missing: {finished}");
    }
    assert!(!finished.err.contains("panicked") && !finished.err.contains("RUST_BACKTRACE"), "{finished}");
}

/// Starts a daemon that must refuse to run.
async fn refuses(daemon: &Daemon, words: &[&str]) -> Finished {
    let finished = daemon.spawn().finished().await;
    is_clear(&finished, words);
    finished
}

fn idle() -> Daemon {
    Daemon::prepare("", &DaemonOptions::default())
}

#[tokio::test]
async fn the_hosts_socket_says_what_is_wrong_and_where() {
    let mut world = World::new().await;
    let socket = world.daemon.hosts_socket();
    let rpc = Rpc::connect(&socket).await;
    assert_eq!(rpc.call("inbox.sync", json!({})).await.expect_err("hello first").code, -32000);
    let other = rpc.call("hello", json!({"protocol": 2, "name": "x", "version": "1"})).await.expect_err("protocol");
    assert_eq!((other.code, &other.data["supported"]), (-32001, &json!([1])));
    for name in ["", "Skald", "a b", "ümlaut", &"x".repeat(33)] {
        let hello = json!({"protocol": 1, "name": name, "version": "1"});
        let failure = rpc.call("hello", hello).await.expect_err(name);
        assert_eq!(failure.code, -32602, "{failure:?}");
        assert!(failure.message.contains("name"), "{failure:?}");
    }
    rpc.call("hello", json!({"protocol": 1, "name": "skald", "version": "1"})).await.expect("at last");

    let approval = |extra: Value| {
        let mut item = Host::approval(1, "Deploy", &json!({}));
        item.as_object_mut().expect("an object").extend(extra.as_object().cloned().expect("an object"));
        json!({"kind": "approval", "item": item})
    };
    for (method, params, code, word) in [
        ("inbox.raise", json!({}), -32601, "inbox.raise"),
        ("devices.list", json!({}), -32601, "devices.list"),
        ("inbox.answer", json!({"id": "1", "decision": "approved"}), -32601, "inbox.answer"),
        ("inbox.requested", json!({}), -32602, ""),
        ("inbox.requested", json!([1, 2]), -32602, ""),
        ("inbox.requested", json!({"kind": "wish", "item": {}}), -32602, ""),
        ("inbox.requested", json!({"kind": "approval", "item": []}), -32602, ""),
        ("inbox.requested", json!({"kind": "approval", "item": {"request_id": 1}}), -32602, "tool_name"),
        ("inbox.requested", approval(json!({"request_id": ""})), -32602, "request_id"),
        ("inbox.requested", approval(json!({"request_id": 1.5})), -32602, "request_id"),
        ("inbox.requested", approval(json!({"request_id": "x".repeat(300)})), -32602, "request_id"),
        ("inbox.requested", approval(json!({"summary": 7})), -32602, "summary"),
        ("inbox.requested", approval(json!({"created_at": "yesterday"})), -32602, "created_at"),
        ("inbox.requested", approval(json!({"expires_at": -1})), -32602, "expires_at"),
        ("inbox.requested", json!({"kind": "clarification", "item": {"request_id": 1}}), -32602, "question"),
        ("inbox.requested", json!({"kind": "elicitation", "item": {"request_id": 1}}), -32602, "server_name"),
        (
            "inbox.sync",
            json!({"approvals": [Host::approval(1, "Fine", &json!({})), {"request_id": 2}], "clarifications": [], "elicitations": []}),
            -32602,
            "approvals",
        ),
        ("inbox.resolved", json!({"kind": "approval"}), -32602, "request_id"),
        ("notification.send", json!({"title": "no body"}), -32602, "body"),
    ] {
        let failure = rpc.call(method, params.clone()).await.expect_err(method);
        assert_eq!(failure.code, code, "{method} {params}: {failure:?}");
        assert!(failure.message.contains(word), "{method} {params}: {failure:?}");
    }
    assert_eq!(world.control.inbox().await, Vec::<Value>::new(), "all or nothing");
    rpc.call("inbox.requested", approval(json!({}))).await.expect("the connection still works");
    world.pending(1).await;
}

#[tokio::test]
async fn lines_that_are_no_requests_are_answered_and_endless_ones_end_the_connection() {
    let world = World::new().await;
    let socket = world.daemon.hosts_socket();
    let mut rpc = Rpc::connect(&socket).await;
    for (line, code) in [
        ("not json", -32700),
        ("{\"jsonrpc\":\"2.0\"", -32700),
        ("\u{0}", -32700),
        ("[]", -32600),
        ("42", -32600),
        ("{}", -32600),
        (r#"{"jsonrpc":"1.0","id":1,"method":"hello"}"#, -32600),
    ] {
        rpc.send_line(line).await;
        let answer = rpc.next().await.expect(line);
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(code), &Value::Null), "{line}: {answer}");
    }
    rpc.call("hello", json!({"protocol": 1, "name": "skald", "version": "1"})).await.expect("it still listens");
    let big = |size: usize| {
        let text = "x".repeat(size);
        json!({"jsonrpc": "2.0", "method": "notification.send", "params": {"title": "t", "body": text}}).to_string()
    };
    rpc.send_line(&big(4 * 1024 * 1024 + 1)).await;
    let rest = rpc.closed().await;
    assert_eq!(rest.last().expect("an error first")["error"]["code"], -32700);
    let rpc = Rpc::connect(&socket).await;
    rpc.call("hello", json!({"protocol": 1, "name": "skald", "version": "1"})).await.expect("others are welcome");
}

#[tokio::test]
async fn deeply_nested_and_oversized_items_are_refused_or_shown_but_never_harmful() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let nested = "[".repeat(50_000) + &"]".repeat(50_000);
    let line = |id: &str, arguments: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":"{id}","method":"inbox.requested","params":{{"kind":"approval","item":{{"request_id":"{id}","tool_name":"t","summary":"s","arguments":{arguments}}}}}}}"#
        )
    };
    host.rpc().send_line(&line("deep", &nested)).await;
    let answer = host.rpc().next().await.expect("an answer");
    assert_eq!(answer["id"], "deep", "{answer}");
    host.rpc().send_line(&line("big", &format!("\"{}\"", "x".repeat(1024 * 1024)))).await;
    let answer = host.rpc().next().await.expect("an answer");
    assert!(answer["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{answer}");
    host.sync(&[Host::approval(1, "Deploy", &json!({}))], &[], &[]).await;
    world.pending(1).await;
}

#[tokio::test]
async fn the_control_socket_says_what_is_wrong_too() {
    let world = World::new().await;
    for (method, params, code) in [
        ("inbox.sync", json!({"approvals": [], "clarifications": [], "elicitations": []}), -32601),
        ("pairing.start", json!({"ttl": "long"}), -32602),
        ("pairing.start", json!({"ttl": 601}), -32602),
        ("pairing.start", json!({"ttl": 0}), -32602),
        ("pairing.qr", json!({"code": "x", "format": "gif"}), -32602),
        ("pairing.qr", json!({"code": "no such", "format": "json"}), -32010),
        ("devices.authorize", json!({}), -32602),
        ("devices.authorize", json!({"pubkey": "deadbeef"}), -32010),
        ("devices.revoke", json!({"pubkey": "deadbeef"}), -32010),
        ("inbox.answer", json!({"id": "x"}), -32602),
        ("inbox.answer", json!({"id": "x", "decision": "approved"}), -32010),
        ("config.set", json!({"relay-url": "ws://x"}), -32602),
        ("config.set", json!({"relay_url": "http://x"}), -32602),
        ("config.set", json!({"pairing_ttl": 601}), -32602),
        ("config.set", json!({"require_device_confirmation": "perhaps"}), -32602),
    ] {
        let failure = world.control.try_call(method, params.clone()).await.expect_err(method);
        assert_eq!(failure.code, code, "{method} {params}: {failure:?}");
        assert!(!failure.message.is_empty());
    }
    let config = world.control.call("config.get", json!({})).await;
    assert_eq!(config["pairing_ttl"], 300, "nothing was changed: {config}");
}

#[tokio::test]
async fn the_owner_cannot_approve_on_the_hosts_socket_and_the_files_are_closed_to_others() {
    let world = World::new().await;
    for name in ["agentd.sock", "control.sock"] {
        assert_eq!(mode(&world.daemon.sockets().join(name)), 0o600, "{name}");
    }
    let state = world.daemon.state();
    assert_eq!(mode(&state), 0o700);
    for (path, _) in skald_tests::read_all(&state) {
        assert_eq!(mode(&path) & 0o077, 0, "{}", path.display());
    }
    assert_eq!(std::fs::metadata(state.join("seed")).expect("there").len(), 32);
    let phone = Phone::new("Pocket");
    phone.run(&["inbox"]).await;
    assert_eq!(mode(&phone.state()) & 0o077, 0);
}

#[tokio::test]
async fn a_wrong_settings_file_is_named_with_what_would_be_right() {
    for (content, words) in [
        ("relay_url = \"https://relay.example\"", &["relay_url", "wss://"][..]),
        ("pairing_ttl = 100000", &["pairing_ttl", "600"]),
        ("require_device_confirmation = \"maybe\"", &["require_device_confirmation"]),
        ("notify_delay_secs = -1", &["notify_delay_secs"]),
        ("relay = \"wss://relay.example\"", &["relay"]),
        ("relay_url = ", &["config.toml"]),
        ("\u{0}\u{1}", &["config.toml"]),
    ] {
        let daemon = idle();
        std::fs::write(daemon.config(), content).expect("written");
        let finished = refuses(&daemon, words).await;
        assert!(finished.err.contains("config.toml"), "it names the file: {finished}");
        assert!(!daemon.state().join("seed").exists(), "nothing was begun");
    }
    let daemon = idle();
    let mut command = daemon.command();
    command.env("SKALD_AGENTD_PAIRING_TTL", "long");
    is_clear(&Process::spawn("skald-agentd", command).finished().await, &["SKALD_AGENTD_PAIRING_TTL"]);
}

#[tokio::test]
async fn a_seed_of_the_wrong_size_is_an_error_and_stays_as_it_is() {
    for size in [0, 31, 33, 4096] {
        let daemon = idle();
        std::fs::create_dir_all(daemon.state()).expect("a folder");
        let seed = daemon.state().join("seed");
        let content = vec![7; size];
        std::fs::write(&seed, &content).expect("written");
        std::fs::set_permissions(&seed, std::fs::Permissions::from_mode(0o600)).expect("changed");
        refuses(&daemon, &["seed", "32"]).await;
        assert_eq!(std::fs::read(&seed).expect("still there"), content);
    }
}

#[tokio::test]
async fn a_seed_that_cannot_be_read_is_an_error_and_is_never_replaced() {
    let daemon = idle();
    let seed = daemon.state().join("seed");
    // A folder in its place is unreadable for root too.
    std::fs::create_dir_all(&seed).expect("a folder");
    refuses(&daemon, &["seed"]).await;
    assert!(seed.is_dir());
}

#[tokio::test]
async fn a_seed_that_others_can_read_is_refused_until_it_is_closed_to_them() {
    let mut daemon = idle();
    std::fs::create_dir_all(daemon.state()).expect("a folder");
    let seed = daemon.state().join("seed");
    std::fs::write(&seed, [7; 32]).expect("written");
    std::fs::set_permissions(&seed, std::fs::Permissions::from_mode(0o644)).expect("changed");
    refuses(&daemon, &["seed", "600"]).await;
    std::fs::set_permissions(&seed, std::fs::Permissions::from_mode(0o600)).expect("changed");
    daemon.start_again().await;
    assert_eq!(std::fs::read(&seed).expect("still there"), [7; 32]);
}

#[tokio::test]
async fn a_socket_path_over_the_platforms_limit_is_refused_at_the_start() {
    let daemon = idle();
    let mut command = daemon.command();
    command.env("SKALD_AGENTD_DIR", daemon.folder().join("x".repeat(120)));
    is_clear(&Process::spawn("skald-agentd", command).finished().await, &["SKALD_AGENTD_DIR", "bytes"]);
}

#[tokio::test]
async fn a_stale_socket_file_is_replaced() {
    let mut daemon = idle();
    daemon.start_again().await;
    daemon.kill().await;
    assert!(daemon.hosts_socket().exists(), "left behind by the kill");
    daemon.start_again().await;
    daemon.host("skald").await;
}

#[tokio::test]
async fn a_daemon_without_a_relay_serves_its_sockets_and_says_what_is_missing() {
    let mut daemon = idle();
    daemon.start_again().await;
    let control = daemon.control().await;
    assert_eq!(control.status().await["relay"]["connected"], false);
    let failure = control.try_call("pairing.start", json!({})).await.expect_err("no relay");
    assert!(failure.message.contains("relay_url"), "{failure:?}");

    let relay = Relay::shared().await;
    let mut control = daemon.control().await;
    control.call("config.set", json!({"relay_url": relay.url()})).await;
    control.connected().await;
    let config = std::fs::read_to_string(daemon.config()).expect("the file");
    assert!(config.contains(relay.url()), "written down for the next start: {config}");
}

#[tokio::test]
async fn an_unreachable_relay_is_told_and_tried_again() {
    let mut daemon = Daemon::prepare("ws://127.0.0.1:1/v1/ws", &DaemonOptions::default());
    daemon.start_again().await;
    let mut control = daemon.control().await;
    let told = |status: &Value| status["relay"]["last_error"].is_string();
    control.until("the reason", "status", told).await;
    let failure = control.try_call("pairing.start", json!({})).await.expect_err("unreachable");
    assert_eq!(failure.data["reason"], "relay_unreachable", "{failure:?}");
    let host = daemon.host("skald").await;
    host.request("approval", &Host::approval(1, "Deploy", &json!({}))).await;
    assert_eq!(control.inbox().await.len(), 1, "items are held meanwhile");
}

#[tokio::test]
async fn wrong_pairing_codes_are_told_apart_without_being_quoted() {
    let mut world = World::new().await;
    let phone = Phone::new("Pocket");
    let qr = world.control.pairing_code().await;
    let code: Value = serde_json::from_str(&qr).expect("JSON");
    let fields: Vec<&str> = code.as_object().expect("an object").keys().map(String::as_str).collect();
    let expected = ["v", "relay_url", "namespace_id", "agent_ed25519_pub", "agent_x25519_pub", "pairing_token"];
    assert!(expected.iter().all(|field| fields.contains(field)) && fields.len() == expected.len(), "{fields:?}");
    assert!(expected.iter().map(|field| qr.find(&format!("\"{field}\""))).is_sorted(), "the order is fixed: {qr}");
    let token = code["pairing_token"].as_str().expect("hex").to_owned();
    let with = |field: &str, value: Value| {
        let mut code = code.clone();
        code[field] = value;
        code.to_string()
    };
    for (text, word) in [
        (String::new(), "input"),
        ("https://example.org".to_owned(), "pairing code"),
        (qr[..qr.len() - 1].to_owned(), "pairing code"),
        (with("v", json!(2)), "version 2"),
        (with("namespace_id", json!("00".repeat(32))), "namespace"),
        (with("agent_ed25519_pub", json!("00".repeat(31))), "pairing code"),
        (with("pairing_token", json!(7)), "pairing code"),
        (with("relay_url", json!("http://127.0.0.1/v1/ws")), "ws://"),
        (with("agent_x25519_pub", json!("00".repeat(32))), "key"),
    ] {
        let finished = phone.run_with(&["pair", "-"], &text).await;
        is_clear(&finished, &[word]);
        assert_eq!(finished.code(), 2, "{finished}");
        assert!(!finished.says(&token), "the token is a secret: {finished}");
    }
    let wrong = phone.run_with(&["pair", "-"], &with("pairing_token", json!("00".repeat(32)))).await;
    assert_eq!(wrong.code(), 1, "{wrong}");
    is_clear(&wrong, &["pairing code"]);
    let gone = phone.run_with(&["pair", "--timeout", "5", "-"], &with("relay_url", json!("ws://127.0.0.1:1"))).await;
    is_clear(&gone, &["relay"]);
    phone.pair(&qr).await.ok();
}

#[tokio::test]
async fn the_command_lines_name_what_they_do_not_understand() {
    let world = World::new().await;
    let skaldctl = world.skaldctl();
    for (arguments, word) in [
        (&["frobnicate"][..], "frobnicate"),
        (&["status", "--jsno"], "--jsno"),
        (&["authorize"], ""),
        (&["authorize", "zz"], ""),
        (&["revoke", "deadbeef"], "deadbeef"),
        (&["ask"], ""),
        (&["ask", "approval"], ""),
        (&["notify"], ""),
    ] {
        let finished = skaldctl.run(arguments).await;
        is_clear(&finished, &[word]);
        assert_eq!(finished.code(), 2, "{arguments:?}: {finished}");
    }
    let phone = Phone::new("Pocket");
    for (arguments, words) in [
        (&["frobnicate"][..], &["frobnicate"][..]),
        (&["approve"], &[]),
        (&["approve", "x"], &["not paired"]),
        (&["--profile", "../x", "inbox"], &["profile"]),
        (&["pair", "@/nowhere/at/all"], &["/nowhere/at/all"]),
    ] {
        let finished = phone.run(arguments).await;
        is_clear(&finished, words);
        assert_eq!(finished.code(), 2, "{arguments:?}: {finished}");
    }
    let daemon = Process::spawn("skald-agentd", {
        let mut command = idle().command();
        command.arg("--frobnicate");
        command
    });
    is_clear(&daemon.finished().await, &["--frobnicate"]);
}

#[tokio::test]
async fn without_a_daemon_the_command_line_says_how_to_start_one() {
    let finished = Skaldctl::of(&idle()).run(&["status"]).await;
    assert_eq!(finished.code(), 2, "{finished}");
    is_clear(&finished, &["skald-agentd"]);
}

#[tokio::test]
async fn a_wrong_id_on_the_phone_answers_nothing() {
    let mut world = World::new().await;
    let host = world.host("skald").await;
    let phone = world.phone("Pocket").await;
    host.request("approval", &Host::approval("call-1", "One", &json!({}))).await;
    host.request("approval", &Host::approval("call-2", "Two", &json!({}))).await;
    for (arguments, code) in [
        (&["approve", "nothing"][..], 1),
        (&["approve", "call-"], 2),
        (&["answer", "call-1", "Yes"], 2),
        (&["reply", "call-1", "--yes"], 2),
        (&["approve", "call-1", "--bypass", "86401"], 2),
    ] {
        let finished = phone.run(arguments).await;
        is_clear(&finished, &[]);
        assert_eq!(finished.code(), code, "{arguments:?}: {finished}");
    }
    assert_eq!(phone.inbox().await["badge"], 2);
}

#[tokio::test]
async fn frames_without_sense_harm_neither_the_relay_nor_the_daemon() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    host.request("approval", &Host::approval(1, "Deploy", &json!({}))).await;
    let id = phone.item("approvals").await["request_id"].clone();
    phone.disconnect().await;

    let status = world.control.status().await;
    let namespace = status["namespace_id"].as_str().and_then(|hex| hex.parse().ok()).expect("hex");
    let agent = hex_bytes(status["agent_ed25519_pub"].as_str().expect("hex"));
    let mut socket = RawSocket::client(world.relay.url(), phone.seed(), &namespace).await;
    // Malformed for the relay: an error each, and the connection lives.
    for bytes in [&b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"[..], b"\x12", b"\x62\xff\xff\xff\xff\x0f"] {
        socket.send_bytes(bytes.to_vec()).await;
        let answer = error(&mut socket).await;
        assert_eq!(answer, "bad_request");
    }
    // Unknown or empty: ignored.
    socket.send_bytes(Vec::new()).await;
    socket.send_bytes(b"\xea\x04\x01x".to_vec()).await;
    socket.send_text("hello").await;
    socket.send_text("ping").await;
    socket.text("pong").await;
    // Not for a device's role.
    socket.send(Frame::Authorize(wire::Authorize { clients: Vec::new() })).await;
    assert_eq!(error(&mut socket).await, "bad_request");
    socket.send(Frame::PairingStart(wire::PairingStart { pairing_token: vec![0; 32], ttl: 60 })).await;
    assert_eq!(error(&mut socket).await, "bad_request");
    // Well formed, and nothing that the daemon can open: it drops each and goes on.
    let message = |ciphertext: Vec<u8>, nonce: Vec<u8>, live| {
        Frame::Message(wire::Message {
            ciphertext: ciphertext.into(),
            nonce,
            peer: agent.clone(),
            live,
            ..Default::default()
        })
    };
    for live in [false, true] {
        for size in [0, 15, 16, 60_000] {
            socket.send(message(skald_tests::random::<60_000>()[..size].to_vec(), vec![0xff; 12], live)).await;
            let mut nonce = vec![0, 0, 0, 2];
            nonce.extend_from_slice(&u64::MAX.to_be_bytes());
            socket.send(message(vec![0; size], nonce, live)).await;
        }
    }
    socket.send(message(vec![1; 32], vec![0; 11], false)).await;
    assert_eq!(error(&mut socket).await, "bad_request");
    drop(socket);

    phone.connect().await;
    phone.decide(&id, "approved").await;
    assert_eq!(host.answered().await["decision"], "approved", "the counter was not moved by what did not verify");
    assert_eq!(world.control.status().await["devices"]["authorized"], 1);
}

/// The code of the next error, skipping other frames.
async fn error(socket: &mut RawSocket) -> String {
    loop {
        match socket.next().await.expect("the connection lives") {
            Frame::Error(error) => return error.code,
            Frame::Message(_) | Frame::PresenceEvent(_) | Frame::PeerOffline(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn hex_bytes(hex: &str) -> Vec<u8> {
    skald_common::ids::Ed25519Public::from_hex(hex).expect("64 digits").to_vec()
}
