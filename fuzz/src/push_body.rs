//! What a push service delivers to a phone, and what the phone shows of it; and what a phone keeps of its push token.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use skald_common::crypto::{Direction, Identity, Seed, SessionKey};
use skald_common::payload::PayloadError;
use skald_phone::model::account::{Account, AgentKeys};
use skald_phone::model::push::{Push, PushError, Shown, ShownKind};
use skald_phone::registration::Registration;
use skald_phone::webpush::WebPushKeys;

use crate::phone_state::harmless;
use crate::quiet::{JSON, assert_quiet};
use crate::tape::Tape;

const NOW: u64 = 1_750_000_000_000;
/// The last counter that the phone has accepted.
const RECEIVED: u64 = 1000;
/// What relays take, bytes.
const MAX_TOKEN: usize = 4096;

/// The agent whose pushes are shown.
pub fn agent() -> Identity {
    Identity::new(&Seed::new([1; 32]))
}

/// The phone that shows them.
pub fn phone() -> Identity {
    Identity::new(&Seed::new([2; 32]))
}

/// The keys of its Web Push subscription.
pub fn keys() -> WebPushKeys {
    WebPushKeys::new(&[3; 32], &[4; 16]).expect("a private key")
}

/// The target.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    match tape.below(4) {
        0 => anything(tape.rest()),
        1 => sealed(&mut tape),
        2 => encrypted(tape.rest()),
        _ => registered(&mut tape),
    }
}

fn account() -> Account {
    let agent = AgentKeys { ed25519: agent().ed25519_pub(), x25519: agent().x25519_pub() };
    let mut account = Account::new(agent, "ws://relay.example".into(), "Phone".into(), NOW);
    account.counters.received = RECEIVED;
    account
}

fn shown(push: &[u8]) -> Result<Shown, PushError> {
    Push::parse(push)?.show(&account(), &phone(), NOW)
}

/// Whatever comes, nothing is shown but a wake: nobody else can seal.
fn anything(body: &[u8]) {
    match shown(body) {
        Ok(shown) => assert_eq!(shown.kind, ShownKind::Wake, "shown without the agent's seal"),
        Err(error) => says_nothing(&error),
    }
}

/// What the agent has sealed is shown, or is said to be nothing for people.
fn sealed(tape: &mut Tape<'_>) {
    let (wrapping, counter) = (tape.byte(), tape.number());
    let (agent, phone) = (agent(), phone());
    let namespace = agent.namespace_id();
    let key = SessionKey::agree(&agent, phone.ed25519_pub(), &phone.x25519_pub(), namespace, Direction::AgentToClient);
    let (nonce, ciphertext) = key.expect("good keys").seal(counter, tape.rest()).expect("short");
    let data = json!({"ns": namespace, "from": agent.ed25519_pub(), "n": nonce, "c": STANDARD.encode(&ciphertext)});
    let push = if wrapping & 1 == 0 { data } else { json!({"aps": {"badge": 1}, "d": data}) };
    match shown(push.to_string().as_bytes()) {
        Ok(shown) => {
            assert_eq!(shown.seen, counter <= RECEIVED);
            assert!(shown.lines.len() <= 8 && shown.kind != ShownKind::Wake);
            for line in std::iter::once(&shown.title).chain(&shown.lines) {
                harmless(line);
                assert!(line.chars().count() <= 240, "{line:?}");
            }
        }
        Err(error) => {
            let expected = matches!(error, PushError::Payload(_) | PushError::Nothing | PushError::Size);
            assert!(expected, "the agent's own message is refused: {error}");
            says_nothing(&error);
        }
    }
}

/// Nobody has the keys to encrypt by chance; and no body can be taken for JSON.
fn encrypted(body: &[u8]) {
    if WebPushKeys::looks_encrypted(body) {
        assert!(shown(body).is_err(), "JSON that looks encrypted");
    }
    assert!(keys().open(body).is_err(), "noise opens");
}

/// What is kept can be read again, and is what a relay takes.
fn registered(tape: &mut Tape<'_>) {
    let text = String::from_utf8_lossy(tape.bytes()).into_owned();
    let given =
        [Registration::parse(&text), Registration::web_push(&text, keys()), Registration::from_json(tape.rest())];
    for registration in given.into_iter().filter_map(Result::ok) {
        let token = registration.device_token();
        assert!((1..=MAX_TOKEN).contains(&token.len()), "no relay takes it");
        let again = Registration::from_json(&registration.to_json()).expect("what was saved can be read");
        assert_eq!((again.device_token(), again.platform()), (token, registration.platform()));
        harmless(&registration.words());
    }
}

/// Errors repeat nothing of what was read, but the beginnings of names.
fn says_nothing(error: &PushError) {
    match error {
        PushError::Json(what) if what == "is not a JSON object" => {}
        PushError::Json(what) | PushError::Payload(PayloadError::Malformed(what)) if !what.starts_with("id is ") => {
            assert_quiet(what, &JSON);
        }
        _ => assert!(error.to_string().len() < 200, "{error}"),
    }
}
