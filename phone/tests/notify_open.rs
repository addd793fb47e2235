//! `notify-open` as a process: what a push says, whatever else the phone is doing, and nothing changed by it. And the options
//! that say how the relay is to wake this phone.

mod support;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use aes_gcm::aead::Aead as _;
use aes_gcm::{Aes128Gcm, KeyInit as _, Nonce};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use hkdf::Hkdf;
use p256::elliptic_curve::sec1::ToSec1Point as _;
use serde_json::{Value, json};
use sha2::Sha256;
use skald_common::crypto::{Direction, Identity, Seed, SessionKey};
use skald_common::framing::{Compression, frame_json};
use skald_phone::model::account::{Account, AgentKeys};
use skald_phone::store::Store;
use support::run;
use zeroize::Zeroizing;

fn opened(folder: &Path, push: &[u8]) -> Value {
    let output = run(folder, &["--json", "notify-open"], push);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The exit status and the one line on standard error.
fn refused(folder: &Path, push: &[u8]) -> (Option<i32>, String) {
    let output = run(folder, &["notify-open"], push);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!((text.lines().count(), output.stdout.len()), (1, 0), "{text}");
    (output.status.code(), text)
}

fn now() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

fn agent() -> Identity {
    Identity::new(&Seed::new([1; 32]))
}

/// A folder with a paired phone.
fn paired() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), "default").unwrap();
    store.seed_or_new(|| Zeroizing::new([5; 32])).unwrap();
    let agent = AgentKeys { ed25519: agent().ed25519_pub(), x25519: agent().x25519_pub() };
    store.create(&Account::new(agent, "ws://127.0.0.1:1/v1/ws".into(), "Phone".into(), now())).unwrap();
    folder
}

/// A message of the agent for this phone as pushes carry it.
fn data(payload: &Value) -> Value {
    let (agent, phone) = (agent(), Identity::new(&Seed::new([5; 32])));
    let namespace = agent.namespace_id();
    let key = SessionKey::agree(&agent, phone.ed25519_pub(), &phone.x25519_pub(), namespace, Direction::AgentToClient)
        .unwrap();
    let framed = frame_json(payload.to_string().as_bytes(), Compression::WhenSmaller);
    let (nonce, sealed) = key.seal(7, &framed).unwrap();
    json!({"ns": namespace, "from": agent.ed25519_pub(), "n": nonce, "c": STANDARD.encode(sealed)})
}

fn snapshot() -> Value {
    json!({"v": 1, "kind": "inbox_update", "id": "x", "ts": now(), "badge": 2,
        "approvals": [{"request_id": "a.1", "tool_name": "t", "agent_label": "Skald", "summary": "Run \u{202e}it\u{1b}[2J",
                       "created_at": 1, "arguments": {"to": "hunter2"}}],
        "clarifications": [],
        "elicitations": [{"request_id": "e.1", "server_name": "ssh", "message": "Password?", "field_name": "pw",
                          "sensitive": true, "is_confirmation": false, "created_at": 2}]})
}

fn apns(d: &Value) -> Vec<u8> {
    let aps = json!({"alert": {"title": "Skald", "body": "Action required"}, "badge": 1, "mutable-content": 1});
    json!({"aps": aps, "d": d}).to_string().into_bytes()
}

/// Everything in a folder: names, contents, and when it was changed last.
fn everything(folder: &Path) -> BTreeMap<String, (Vec<u8>, SystemTime)> {
    let entry = |file: std::io::Result<std::fs::DirEntry>| {
        let file = file.unwrap();
        let changed = file.metadata().unwrap().modified().unwrap();
        (file.file_name().into_string().unwrap(), (std::fs::read(file.path()).unwrap(), changed))
    };
    std::fs::read_dir(folder).unwrap().map(entry).collect()
}

#[test]
fn a_push_is_shown_whichever_service_brought_it() {
    let folder = paired();
    let data = data(&snapshot());
    let expected = json!({"kind": "inbox", "title": "2 items are pending", "items": 2, "seen": false,
        "lines": ["prompt (ssh): Password?", "approval (Skald): Run \\u{202e}it\\u{1b}[2J"]});
    assert_eq!(opened(folder.path(), &apns(&data)), expected);
    assert_eq!(opened(folder.path(), data.to_string().as_bytes()), expected);
    let text = run(folder.path(), &["notify-open"], data.to_string().as_bytes());
    let text = String::from_utf8(text.stdout).unwrap();
    assert_eq!(text, "2 items are pending\n  prompt (ssh): Password?\n  approval (Skald): Run \\u{202e}it\\u{1b}[2J\n");
    let wake = json!({"ns": agent().namespace_id(), "wake": "true"}).to_string();
    let wake = opened(folder.path(), wake.as_bytes());
    assert!(wake["kind"] == "wake" && wake["lines"][0].as_str().unwrap().contains("open the app"), "{wake}");
}

#[test]
fn it_changes_nothing_and_waits_for_nobody_while_a_watch_runs() {
    let folder = paired();
    let profile = folder.path().join("default");
    let mut watch = Command::new(env!("CARGO_BIN_EXE_skald-phone"))
        .args(["watch", "--json"])
        .env("SKALD_PHONE_DIR", folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Its first line comes once it has its lock.
    assert!(BufReader::new(watch.stdout.take().unwrap()).lines().next().unwrap().unwrap().contains("inbox"));
    let locks: Vec<File> = ["lock", "connection.lock"]
        .map(|name| File::options().create(true).truncate(false).write(true).open(profile.join(name)).unwrap())
        .into();
    // And whatever else could be in the midst of something.
    for lock in &locks {
        lock.lock().unwrap();
    }
    let before = everything(&profile);
    let shown = opened(folder.path(), &apns(&data(&snapshot())));
    assert_eq!(shown["items"], 2);
    assert_eq!(opened(folder.path(), &apns(&data(&snapshot()))), shown, "as often as one likes");
    assert_eq!(everything(&profile), before);
    watch.kill().unwrap();
    watch.wait().unwrap();
}

#[test]
fn a_push_that_is_not_this_phones_ends_with_1_and_a_malformed_one_with_2() {
    let folder = paired();
    let good = data(&snapshot());
    let with = |field: &str, value: Value| {
        let mut data = good.clone();
        data[field] = value;
        data.to_string().into_bytes()
    };
    let late = json!({"v": 1, "kind": "notification", "id": "x", "ts": 5, "title": "hunter2", "body": "b"});
    for (push, code, words) in [
        (with("ns", json!("ab".repeat(32))), 1, "another pairing (namespace abababab…)"),
        (with("from", json!("ab".repeat(32))), 1, "not from this phone's agent but from abababab…"),
        (with("c", json!(STANDARD.encode("hunter2 hunter2 hunter2"))), 1, "does not open"),
        (apns(&data(&late)), 1, "cannot be shown"),
        (with("c", json!("hunter2")), 2, "\"c\" is not base64"),
        (with("n", json!("hunter2")), 2, "\"n\" is not 24 hex digits"),
        (b"".to_vec(), 2, "is not a JSON object"),
        (b"hunter2".to_vec(), 2, "is not a JSON object"),
        (b"{\"hunter2\":".to_vec(), 2, "ends too early"),
        (b"\xff\xfe\x00hunter2".to_vec(), 2, "is not a JSON object"),
        (vec![b'{'; 16 * 1024 + 1], 2, "longer than 16384 bytes"),
        (vec![b' '; 10_000_000], 2, "longer than 16384 bytes"),
    ] {
        let (status, complaint) = refused(folder.path(), &push);
        assert!(status == Some(code) && complaint.contains(words), "{status:?} {complaint}, not {words}");
        assert!(!complaint.contains("hunter2"), "{complaint}");
    }
    let output = run(folder.path(), &["--json", "notify-open"], b"hunter2");
    let error: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(error["error"].as_str().unwrap().contains("JSON object"), "{error}");
}

#[test]
fn without_a_pairing_it_says_so_and_makes_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (status, complaint) = refused(folder.path(), b"{}");
    assert!(status == Some(2) && complaint.contains("skald-phone pair"), "{complaint}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

const ENDPOINT: &str = "https://updates.push.example/wpush/v2/hunter2";

fn status(folder: &Path, more: &[&str]) -> Value {
    let output = run(folder, &[&["status", "--offline", "--json"], more].concat(), b"");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn token(folder: &Path) -> String {
    Store::at(folder, "default").unwrap().registration().unwrap().unwrap().device_token().to_string()
}

/// Encrypts for a subscription as RFC 8291 has it.
fn encrypted(subscription: &str, plain: &[u8]) -> Vec<u8> {
    let subscription: Value = serde_json::from_str(subscription).unwrap();
    let key = |name: &str| URL_SAFE_NO_PAD.decode(subscription["keys"][name].as_str().unwrap()).unwrap();
    let (receiver, auth) = (key("p256dh"), key("auth"));
    let server = p256::SecretKey::from_slice(&[7; 32]).unwrap();
    let sender = server.public_key().to_sec1_point(false).as_bytes().to_vec();
    let shared = server.diffie_hellman(&p256::PublicKey::from_sec1_bytes(&receiver).unwrap());
    let mut secret = [0; 32];
    let info = [b"WebPush: info\0", &receiver[..], &sender].concat();
    Hkdf::<Sha256>::new(Some(&auth), shared.raw_secret_bytes()).expand(&info, &mut secret).unwrap();
    let salt = [9; 16];
    let (mut key, mut nonce) = ([0; 16], [0; 12]);
    let hkdf = Hkdf::<Sha256>::new(Some(&salt), &secret);
    hkdf.expand(b"Content-Encoding: aes128gcm\0", &mut key).unwrap();
    hkdf.expand(b"Content-Encoding: nonce\0", &mut nonce).unwrap();
    let record = Aes128Gcm::new(&key.into()).encrypt(&Nonce::from(nonce), &[plain, b"\x02\0\0"].concat()[..]).unwrap();
    [&salt[..], &4096_u32.to_be_bytes(), &[65], &sender, &record].concat()
}

#[test]
fn a_web_push_for_this_phones_own_subscription_is_opened_as_it_comes() {
    let folder = paired();
    let push = data(&snapshot()).to_string();
    let (code, complaint) = refused(folder.path(), &encrypted(&subscription_of_another(), push.as_bytes()));
    assert!(code == Some(2) && complaint.contains("--push-url"), "{complaint}");
    status(folder.path(), &["--push-url", ENDPOINT]);
    let body = encrypted(&token(folder.path()), push.as_bytes());
    assert_eq!(opened(folder.path(), &body)["items"], 2);
    for (body, code) in [
        (encrypted(&subscription_of_another(), push.as_bytes()), 1),
        (body[..body.len() - 1].to_vec(), 1),
        (body[..90].to_vec(), 2),
        (encrypted(&token(folder.path()), b"hunter2"), 2),
    ] {
        let (status, complaint) = refused(folder.path(), &body);
        assert!(status == Some(code) && !complaint.contains("hunter2"), "{status:?} {complaint}");
    }
}

fn subscription_of_another() -> String {
    let keys = skald_phone::webpush::WebPushKeys::new(&[1; 32], &[2; 16]).unwrap();
    skald_phone::registration::Registration::web_push(ENDPOINT, keys).unwrap().device_token().to_string()
}

#[test]
fn the_push_options_are_kept_for_the_profile_until_others_are_given() {
    let folder = paired();
    assert_eq!(status(folder.path(), &[])["push"], Value::Null);
    assert_eq!(status(folder.path(), &["--push-url", ENDPOINT])["push"], "web (updates.push.example)");
    let first = token(folder.path());
    for same in [&[][..], &["--push-url", ""], &["--push-token", ""], &["--push-url", ENDPOINT]] {
        assert_eq!(status(folder.path(), same)["push"], "web (updates.push.example)");
        assert_eq!(token(folder.path()), first, "the same keys");
    }
    let other = ENDPOINT.replace("hunter2", "other");
    status(folder.path(), &["--push-url", &other]);
    let second: Value = serde_json::from_str(&token(folder.path())).unwrap();
    assert_eq!(second["endpoint"], other.as_str());
    assert_ne!(second["keys"], serde_json::from_str::<Value>(&first).unwrap()["keys"], "another subscription");
    assert_eq!(status(folder.path(), &["--push-token", "ios:00aa"])["push"], "ios");
    assert_eq!(token(folder.path()), "00aa");
    // What is no push token changes nothing, and is not repeated.
    for bad in [
        &["--push-url", "http://hunter2.example"][..],
        &["--push-token", "ios:hunter2"],
        &["--push-token", "hunter2"],
        &["--push-token", "ios:00", "--push-url", ENDPOINT],
    ] {
        let output = run(folder.path(), &[&["inbox", "--offline"], bad].concat(), b"");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && !complaint.contains("hunter2"), "{complaint}");
    }
    assert_eq!(token(folder.path()), "00aa");
}

#[test]
fn the_push_options_make_nothing_where_nothing_is_paired() {
    let folder = tempfile::tempdir().unwrap();
    for command in [&["inbox"][..], &["pair", "no code"], &["logout"]] {
        let output = run(folder.path(), &[command, &["--push-url", ENDPOINT]].concat(), b"");
        assert_eq!(output.status.code(), Some(2));
    }
    assert!(!folder.path().join("default/push.json").exists());
}
