//! Where each corpus begins: valid messages, made by the product's own code, and short histories of what usually happens.

use skald_common::crypto::{Identity, Seed};
use skald_common::framing::{Compression, frame_json};
use skald_common::ids::{ChallengeNonce, ConnectionId, Ed25519Public, PairingToken, X25519Public};
use skald_common::pairing::PairingQr;
use skald_common::payload::{
    Ack, ApprovalResponse, ClarificationResponse, Decision, DeviceInfo, ElicitationAction, ElicitationResponse, Hello,
    Kind, Notification, Outcome, Payload, SecretObject, ToAgent, ToDevice,
};
use skald_common::pipe::signal::{Accept, Handshake, Invite, Reject, Signal};
use skald_common::pipe::{self, PipeAuth};
use skald_common::wire::{self, Frame, Role, encode};

use crate::tape::Recorder;
use crate::{pipe_auth, pipe_signal, push_body};

const NOW: u64 = 1_750_000_000_000;

/// A file of a corpus.
#[derive(Debug)]
pub struct SeedFile {
    /// Whose corpus.
    pub target: &'static str,
    /// Its name there.
    pub name: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// All of them.
pub fn all() -> Vec<SeedFile> {
    let mut seeds = Vec::new();
    let mut add = |target, name: &str, bytes: Vec<u8>| {
        seeds.push(SeedFile { target, name: format!("seed-{name}"), bytes });
    };
    for (name, bytes) in relay_histories() {
        add("relay_engine", name, bytes);
    }
    for (name, bytes) in forgeries() {
        add("relay_restore", name, bytes);
    }
    for (name, bytes) in connections() {
        add("peer", name, bytes);
    }
    for (name, frame) in frames() {
        add("wire", name, encode(frame));
    }
    for (name, json) in payloads() {
        add("payload", name, [&[0], &*json].concat());
    }
    for (name, bytes) in sealed() {
        add("sealed", name, bytes);
    }
    let code = code();
    add("pairing_code", "code", code.as_bytes().to_vec());
    add("pairing_code", "address", b"wss://relay.example:8443/ns/{ns}/v1/ws".to_vec());
    for (name, host, path) in requests() {
        let record = Recorder::default().bytes(host.as_bytes()).bytes(path.as_bytes()).then(&[9, 0, 9, 0, 9, 0, 9, 0]);
        add("routes", name, record.0);
    }
    for (name, line) in LINES {
        add("socket_lines", name, [&[7], line.as_bytes(), b"\n\n\r\n{\n"].concat());
    }
    for (name, change, text) in SETTINGS {
        add("config", name, [change, text.as_bytes()].concat());
    }
    add("phone_state", "life", phone());
    for (name, bytes) in pushes() {
        add("push_body", name, bytes);
    }
    for (name, bytes) in attempts() {
        add("push_services", name, bytes);
    }
    let (auth, challenge) = joining();
    add("pipe_auth", "arrays", auth.encode());
    add("pipe_auth", "bin", pipe_auth::as_bin(&auth));
    add("pipe_auth", "challenge", challenge);
    for (name, signal) in signals() {
        add("pipe_signal", name, signal.encode());
        add("pipe_signal", &format!("{name}-bin"), pipe_signal::as_bin(&signal));
    }
    for (name, bytes) in negotiations() {
        add("pipes", name, bytes);
    }
    for (name, bytes) in pipe_wires() {
        add("pipe_frames", name, bytes);
    }
    seeds
}

/// Operations and operands as `relay_engine` reads them.
fn relay_histories() -> Vec<(&'static str, Vec<u8>)> {
    let start = Recorder::default()
        .then(&[1, 0, 0, 7]) // the agent comes
        .then(&[6, 4, 0b1110, 0]) // and authorizes three devices
        .then(&[1, 1, 1, 7, 2]); // one of which comes
    let start = start.0;
    let with = |rest: &[&[u8]]| [&start[..], &rest.concat()].concat();
    let message = |to: u8, flags: u8, from: u8| {
        let numbers: &[u8] = if flags & 2 == 2 { &[0, 1] } else { &[] };
        [&[6, 0, to, flags, 65, 0, 16], numbers, &[from]].concat()
    };
    vec![
        ("messages", with(&[&message(1, 2, 0), &message(0, 2, 1), &[6, 6, 0, 1, 1], &message(1, 1, 0)])),
        ("queue", with(&[&message(2, 2, 0), &message(2, 0b10_1010, 0), &[16], &[1, 1, 2, 0, 1], &[14, 20, 99]])),
        ("pairing", with(&[&[6, 5, 7, 0, 60, 0], &[1, 3, 4, 0, 7, 2], &[6, 4, 0b1_0110, 0], &[1, 2, 4, 7, 1]])),
        ("challenge", with(&[&[0, 5, 0], &[4, 2, 1, 2, 7, 1, 0], &[12, 0, 1], &[0, 6, 0], &[14, 10, 99]])),
        ("slow", with(&[&[17, 21, 255, 1, 0], &message(1, 0, 0), &message(1, 1, 0), &[14, 8, 250], &[17, 0, 0, 1, 0]])),
        ("faults", with(&[&[18, 0], &message(1, 2, 0), &[18, 1], &[6, 4, 0b0110, 0], &[13, 0], &[13, 1]])),
        (
            "push",
            with(&[
                &[1, 1, 1, 5, 2], // the device comes again, with a token
                &[12, 2, 3],      // and is cut off
                &message(1, 0, 0),
                &[20, 0, 3],  // not now
                &[14, 6, 99], // later
                &[20, 1, 0],
                &message(1, 64, 0),
                &[20, 2, 1], // the token is dead
                &message(1, 0, 0),
            ]),
        ),
        ("presence", with(&[&[6, 7, 0, 0], &[11, 1], &[12, 1, 0], &[6, 7, 1, 0], &[5, 0, 0, 2, 255, 255, 0]])),
    ]
}

fn forgeries() -> Vec<(&'static str, Vec<u8>)> {
    // As `relay_restore` reads them: fields of a record, and columns of a row.
    let member = [0, 1, 0, 1, 4, 4, 0, 1, 5, 0, 1, 6, 1, 3, 6, 0, 7, 0, 3, 5, 1];
    let row = [1, 2, 65, 66, 67, 68, 69, 70, 71, 1, 6, 1, 7, 1, 7, 0, 0, 3, 3, 2, 0, 12];
    // What is remembered of pushes to device 1: up to number 7, one wanted at the end of time, one under way.
    let pushes = [
        8, 7, 18, 14, 8, 1, 24, 1, 40, 255, 255, 255, 255, 255, 255, 255, 127, 18, 11, 8, 2, 57, 1, 0, 0, 0, 0, 0, 0, 0,
    ];
    let push = [
        &[1, 3, 65, 66, 0, 7, 1, 2, 0, u8::try_from(pushes.len()).expect("a seed is short")][..],
        &pushes,
        &[3, 13, 0, 3, 13, 1],
    ]
    .concat();
    // A connection that was opened at the end of time.
    let late = [&[0, 0, 9, 1, 3, 1, 0][..], &[255; 8], &[2, 0, 1, 3, 0, 1, 3, 13, 0, 3, 13, 1]].concat();
    vec![
        ("late", late),
        ("push", push),
        ("attachment", [&member[..], &[3, 14, 10, 99], &[3, 6, 4, 2, 0]].concat()),
        ("row", [&row[..], b"nonce nonce!", &[2, 0, 3, b'a', b'b', b'c'], &[4, 1, 1, 0, 7, 2]].concat()),
    ]
}

/// Operations and operands as `peer` reads them.
fn connections() -> Vec<(&'static str, Vec<u8>)> {
    let hello = [&[0, 0][..], &[3, 0, 7, 0], &[3, 2, 0, 0]].concat();
    let says = |counter: u8, delivery: u8| [7, 0, counter, 0, delivery, 0, 2, b'{', b'}', 1];
    let with = |rest: &[&[u8]]| [&hello[..], &rest.concat()].concat();
    vec![
        ("messages", with(&[&says(5, 1), &says(6, 2), &[13, 0, 0], &[13, 0, 0], &[11, 0], &says(6, 3)])),
        ("sends", with(&[&[12, 2, 65, 9], &[12, 0, 66, 9], &[3, 5, 0, 1, 1], &[10, 1], &[11, 0], &hello[1..]])),
        ("plain", [&[1, 0][..], &[3, 0, 7, 0], &[3, 2, 0, 255], &[12, 2, 65, 9], &says(5, 0), &[13, 0, 0]].concat()),
        ("pushes", with(&[&[3, 11, 0, 32], &[7; 32], &[3, 2], &[3, 11, 0, 0, 2, 69], &[3, 11, 0, 0, 9, 65]])),
        ("refused", [&[0, 0][..], &[3, 0, 7, 0], &[3, 4, 0, 12], b"unauthorized", &[11, 0]].concat()),
    ]
}

fn frames() -> Vec<(&'static str, Frame)> {
    let me = Identity::new(&Seed::new([1; 32]));
    let signature = me.sign_challenge(&ChallengeNonce::new([7; 32])).to_vec();
    let key = me.ed25519_pub().to_vec();
    let agent = wire::AuthAgent { agent_ed25519_pub: key.clone(), features: 7 };
    let client = wire::AuthClient {
        namespace_id: vec![9; 32],
        client_ed25519_pub: key.clone(),
        device_token: "token".into(),
        platform: 2,
        features: 7,
    };
    let pairing = wire::AuthPairing {
        namespace_id: vec![9; 32],
        client_ed25519_pub: key.clone(),
        client_x25519_pub: vec![8; 32],
        pairing_token: vec![7; 32],
        ..wire::AuthPairing::default()
    };
    let pushed = wire::PushState { client_ed25519_pub: key.clone(), push: wire::Push::Gone as i32 };
    let auth = |role| Frame::Auth(wire::Auth { role: Some(role), signature: signature.clone() });
    let message = wire::Message {
        ciphertext: bytes::Bytes::from_static(b"ciphertext"),
        nonce: vec![1; 12],
        peer: key.clone(),
        r#ref: 1,
        delivery: 2,
        collapse: vec![3],
        ..wire::Message::default()
    };
    vec![
        ("agent", auth(Role::Agent(agent))),
        ("client", auth(Role::Client(client))),
        ("pairing", auth(Role::Pairing(pairing))),
        ("message", Frame::Message(message)),
        ("authorize", Frame::Authorize(wire::Authorize { clients: vec![key.clone(), vec![2; 32]] })),
        ("error", Frame::Error(wire::Error { code: "queue_full".into(), message: "full".into(), r#ref: 3 })),
        ("push-status", Frame::PushStatus(wire::PushStatus { devices: vec![pushed] })),
        ("presence", Frame::PresenceList(wire::PresenceList { online: vec![key] })),
    ]
}

fn json<K: Kind>(content: K) -> Vec<u8> {
    Payload { id: "5f0c".into(), ts: NOW, content }.to_json().to_vec()
}

const APPROVAL: &str = r#"{"request_id":"1.a","tool_name":"deploy","agent_label":"Skald","summary":"Deploy?","detail":"to production","arguments":{"n":1.50,"t":"a\u001bb","l":[1,{"x":null}]},"created_at":5,"new":[true]}"#;
const QUESTION: &str = r#"{"request_id":"1.b","question":"Which?","context":"of two","suggested_answers":["a","b"],"agent_label":"Skald","created_at":6}"#;
const PROMPT: &str = r#"{"request_id":"1.c","server_name":"mcp","message":"Password?","field_name":"password","sensitive":true,"is_confirmation":false,"created_at":7}"#;

fn snapshot() -> Vec<u8> {
    format!(
        r#"{{"v":1,"kind":"inbox_update","id":"5f0d","ts":{NOW},"badge":3,"approvals":[{APPROVAL}],"clarifications":[{QUESTION}],"elicitations":[{PROMPT}]}}"#
    )
    .into_bytes()
}

fn payloads() -> Vec<(&'static str, Vec<u8>)> {
    let answer = ApprovalResponse {
        request_id: "1.a".into(),
        decision: Decision::Approved,
        reason: Some("fine".into()),
        bypass_secs: Some(900),
    };
    let secret = ElicitationResponse {
        request_id: "1.c".into(),
        action: ElicitationAction::Accept,
        content: Some(SecretObject::single("password", "value".into())),
    };
    let device_info = DeviceInfo { platform: "ios".into(), device_name: Some("Phone".into()), ..DeviceInfo::default() };
    let outcome = Some(Outcome::Superseded);
    let ack = Ack { ref_id: "5f0c".into(), outcome, answered_by: Some("Other".into()) };
    let reply = ClarificationResponse { request_id: "1.b".into(), answer: "a".into() };
    vec![
        ("snapshot", snapshot()),
        ("notification", json(ToDevice::Notification(Notification { title: "t".into(), body: "b".into() }))),
        ("ack", json(ToDevice::Ack(ack))),
        ("hello", json(ToAgent::Hello(Hello { device_info }))),
        ("approval", json(ToAgent::ApprovalResponse(answer))),
        ("clarification", json(ToAgent::ClarificationResponse(reply))),
        ("elicitation", json(ToAgent::ElicitationResponse(secret))),
        ("logout", json(ToAgent::Logout)),
    ]
}

fn sealed() -> Vec<(&'static str, Vec<u8>)> {
    let packed = frame_json(&b"{\"a\":1}".repeat(200), Compression::WhenSmaller);
    let plain = frame_json(b"{}", Compression::Off);
    let seal = [&[2, 0, 0, 0, 0, 0, 0, 0, 9, 0, 3, 1, 1, 2][..], b"{\"a\":1}"].concat();
    vec![
        ("packed", [&[0], &**packed].concat()),
        ("plain", [&[0], &**plain].concat()),
        ("body", [&[1], &*b"{\"a\":1}".repeat(150)].concat()),
        ("seal", seal),
    ]
}

/// As `push_services` reads them: a job, the time, and what is answered to each request.
fn attempts() -> Vec<(&'static str, Vec<u8>)> {
    let job = |platform, token: &str, wrapped| {
        let record = Recorder::default().then(&[platform]).bytes(token.as_bytes());
        record.then(&[wrapped, 0, 100, 1, 0, 40, 1, 5])
    };
    let answer = |record: Recorder, status: u16, retry_after: &str, body: &str| {
        record.then(&[0, 0]).then(&status.to_be_bytes()).bytes(retry_after.as_bytes()).bytes(body.as_bytes())
    };
    let access = |record: Recorder| {
        let signed = record.then(&[0, 0]).bytes(b"signature");
        answer(signed, 200, "", r#"{"access_token":"ya29.x","expires_in":3599,"token_type":"Bearer"}"#)
    };
    let apns = answer(job(0, &"ab".repeat(32), 0), 403, "", r#"{"reason":"ExpiredProviderToken"}"#);
    let unregistered = r#"{"error":{"details":[{"@type":"x","errorCode":"UNREGISTERED"}]}}"#;
    vec![
        ("apns", answer(apns, 503, "Sun, 06 Nov 1994 08:49:37 GMT", "").0),
        ("apns-gone", answer(job(0, &"ab".repeat(32), 0), 400, "", r#"{"reason":"BadDeviceToken"}"#).0),
        ("fcm", answer(access(answer(access(job(1, "d:APA91", 0)), 401, "", "")), 404, "", unregistered).0),
        ("fcm-busy", answer(access(job(1, "d:APA91", 0)), 429, "120", "").0),
        ("web", answer(job(2, "https://fcm.googleapis.com/fcm/send/x", 1), 201, "", "").0),
        ("web-elsewhere", job(2, "https://fcm.googleapis.com@127.0.0.1\\.example.org:443/", 1).0),
    ]
}

/// As `push_body` reads them: a body; what the agent seals, with wrapping and counter; a Web Push; a registration.
fn pushes() -> Vec<(&'static str, Vec<u8>)> {
    use skald_phone::registration::Registration;
    let notification = json(ToDevice::Notification(Notification { title: "t\u{202e}".into(), body: "a\nb".into() }));
    let framed = |json: &[u8]| frame_json(json, Compression::WhenSmaller).to_vec();
    let ns = push_body::agent().namespace_id();
    let from = push_body::agent().ed25519_pub();
    let data =
        serde_json::json!({"ns": ns, "from": from, "n": "000000010000000000000005", "c": "AAAAAAAAAAAAAAAAAAAAAA=="});
    let fcm = data.to_string().replace("\"from\"", "\"sender\"").into_bytes();
    let apns = serde_json::json!({"aps": {"alert": {"title": "Skald"}}, "d": data}).to_string().into_bytes();
    let wake = serde_json::json!({"ns": ns, "wake": "true"}).to_string().into_bytes();
    let encrypted = [&[9; 16][..], &[0, 0, 16, 0, 65, 4], &[7; 64], &[5; 40]].concat();
    let endpoint = "https://push.example/x";
    let saved = Registration::web_push(endpoint, push_body::keys()).expect("an endpoint").to_json();
    let registered = |text: &str, saved: &[u8]| Recorder::default().then(&[3]).bytes(text.as_bytes()).then(saved).0;
    let subscription = r#"web:{"endpoint":"https://a","keys":{"p256dh":"B","auth":"a"}}"#;
    vec![
        ("apns", [&[0], &*apns].concat()),
        ("fcm", [&[0], &*fcm].concat()),
        ("wake", [&[0], &*wake].concat()),
        ("snapshot", [&[1, 0, 0, 5], &*framed(&snapshot())].concat()),
        ("notification", [&[1, 1, 10, 9], &*framed(&notification)].concat()),
        ("encrypted", [&[2], &*encrypted].concat()),
        ("own", registered(endpoint, &saved)),
        ("token", registered("ios:00aabb", br#"{"format":1,"platform":"android","token":"a:b"}"#)),
        ("subscription", registered(subscription, b"")),
    ]
}

fn joining() -> (PipeAuth, Vec<u8>) {
    let (me, you) = (Identity::new(&Seed::new([1; 32])), Identity::new(&Seed::new([2; 32])));
    let nonce = ChallengeNonce::new([7; 32]);
    // Answered to another challenge than the target's.
    let answered = ChallengeNonce::new([0xc8; 32]);
    let id = ConnectionId::new([4; 32]);
    let auth = PipeAuth::new(&me, &answered, id, &you.ed25519_pub(), me.namespace_id(), true);
    (auth, pipe::auth::encode_challenge(&nonce))
}

fn signals() -> Vec<(&'static str, Signal)> {
    let connection = ConnectionId::new([0xc8; 32]);
    let handshake = Handshake::X25519(X25519Public::new([2; 32]));
    let invite = Invite {
        connection,
        handshake: handshake.clone(),
        stream_type: "http-local-proxy".into(),
        compress: vec!["none".into(), "zlib".into()],
        headers: [("a".to_owned(), "b".to_owned())].into(),
    };
    vec![
        ("invite", Signal::Invite(invite)),
        ("accept", Signal::Accept(Accept { connection, handshake, compress: "none".into() })),
        ("reject", Signal::Reject(Reject { connection, reason: "no".into() })),
    ]
}

/// Operations and operands as `pipes` reads them.
fn negotiations() -> Vec<(&'static str, Vec<u8>)> {
    let many: Vec<u8> = (0..40).flat_map(|n| [1, 0, n, 2, 1]).collect();
    vec![
        ("asked", vec![0, 1, 7, 2, 1, 7, 2, 1, 2, 1, 7, 2, 1]),
        ("invited", vec![10, 0, 1, 0, 5, 2, 1, 5, 5, 1, 0, 5, 2, 1, 1, 1, 6, 0, 1, 5, 6]),
        ("refused", vec![1, 0, 5, 2, 1, 10, 0, 1, 0, 6, 1, 1, 1, 0, 7, 2, 0, 6, 7, 7, 8]),
        ("late", vec![0, 1, 7, 0, 2, 8, 11, 200, 0, 2, 1, 7, 2, 1, 3, 2, 8, 8, 9, 9, 1, 0, 9, 1, 1]),
        ("many", [&[10, 0][..], &many, &[9, 0, 1]].concat()),
        ("noise", Recorder::default().then(&[4, 0]).bytes(&[0x81, 0xa6]).0),
    ]
}

/// Operations and operands as `pipe_frames` reads them.
fn pipe_wires() -> Vec<(&'static str, Vec<u8>)> {
    let sent = |record: Recorder, which: u8, plain: &[u8]| record.then(&[which, 0]).bytes(plain);
    let two = || sent(sent(Recorder::default().then(&[1]), 0, b"one"), 0, b"two");
    vec![
        ("ordered", sent(two(), 1, b"back").then(&[0, 2, 0, 2, 1, 2]).0),
        ("repeated", two().then(&[0, 2, 0, 5, 0, 0, 2]).0),
        ("left-out", two().then(&[0, 3, 0, 2, 0, 2]).0),
        ("changed", two().then(&[0, 4, 0, 1, 0, 1, 0, 2, 0, 2]).0),
        ("reflected", two().then(&[1, 6]).0),
        ("strangers", sent(Recorder::default().then(&[0]), 0, b"one").then(&[0, 2]).0),
    ]
}

fn code() -> String {
    let token = PairingToken::new([3; 32]);
    let (ed25519, x25519) = (Ed25519Public::new([1; 32]), X25519Public::new([2; 32]));
    PairingQr::new("wss://relay.example/v1/ws".into(), ed25519, x25519, token).to_json().to_string()
}

fn requests() -> Vec<(&'static str, String, String)> {
    let namespace = Identity::new(&Seed::new([1; 32])).namespace_id();
    let host = format!("{}.relay.example", namespace.to_base32());
    // Spare bits of the last digit that are not zero: no second spelling.
    let spare = host.replacen("q.relay", "r.relay", 1);
    vec![
        ("spare", spare, "/v1/ws".into()),
        ("front", "relay.example".into(), "/v1/ws".into()),
        ("path", "relay.example".into(), format!("/ns/{namespace}/v1/pipe")),
        ("host", host, "/v1/ws".into()),
        ("internal", "relay.example".into(), "/internal/ws".into()),
        ("health", "relay.example".into(), "/healthz".into()),
    ]
}

const LINES: [(&str, &str); 6] = [
    ("notify", r#"{"jsonrpc":"2.0","id":1,"method":"notification.send","params":{"title":"t","body":"b"}}"#),
    (
        "answer",
        r#"{"jsonrpc":"2.0","id":"a","method":"m","params":{"kind":"approval","decision":"rejected","reason":"no"}}"#,
    ),
    ("settings", r#"{"jsonrpc":"2.0","id":null,"method":"config.set","params":{"pairing_ttl":60,"qr_url":null}}"#),
    ("result", r#"{"jsonrpc":"2.0","id":7,"result":{"resolved":true}}"#),
    ("error", r#"{"jsonrpc":"2.0","id":8,"error":{"code":-32602,"message":"no","data":{"reason":"x"}}}"#),
    ("batch", r#"[{"jsonrpc":"2.0","method":"m"}]"#),
];

/// What is changed, as `config` reads it, and the file.
const SETTINGS: [(&str, &[u8], &str); 4] = [
    (
        "all",
        &[4, 2, 0, 9],
        "# mine\nrelay_url = \"wss://relay.example/v1/ws\" # here\npairing_ttl = 60\nrequire_device_confirmation = false\nnotify_delay_secs = 0\nweb_port = 8080\n",
    ),
    ("text", &[0, 1, 0, 6, b'w', b's', b':', b'/', b'/', b'h'], "qr_url = 'ws://h'\n"),
    ("unset", &[2, 0], "pairing_ttl = 60\n"),
    ("wrong", &[3, 3, 1], "pairing_ttl = \"x\"\n[table]\n"),
];

/// A state file, a snapshot, a notification, an ack.
fn phone() -> Vec<u8> {
    use skald_phone::model::account::{Account, AgentKeys};
    let agent = AgentKeys { ed25519: Ed25519Public::new([1; 32]), x25519: X25519Public::new([2; 32]) };
    let account = Account::new(agent, "ws://relay.example".into(), "Phone".into(), NOW);
    let state = serde_json::to_vec(&account).expect("an account can be saved");
    let ack = Ack { ref_id: "answer 1".into(), outcome: Some(Outcome::Expired), answered_by: None };
    Recorder::default()
        .bytes(&state)
        .then(&[0, 5, 0])
        .bytes(&snapshot())
        .then(&[1])
        .then(&[0, 6, 1])
        .bytes(&json(ToDevice::Notification(Notification { title: "t".into(), body: "b".into() })))
        .then(&[3])
        .then(&[0, 7, 0])
        .bytes(&json(ToDevice::Ack(ack)))
        .then(&[0])
        .0
}
