//! Pairing windows, and what the relay's word is worth.

use super::super::api::{PairingStarted, PairingState};
use super::*;

fn arrive(world: &mut World, n: u8, x: u8) {
    world.relay(RelayInput::ClientPaired { ed25519: key(n), x25519: x_key(x), platform: Platform::Android });
}

fn start(world: &mut World) -> PairingStarted {
    let mut reply = world.begin(|reply| Command::PairingStart(None, reply));
    world.relay(RelayInput::PairingReady { ttl: 300 });
    reply.try_recv().unwrap().unwrap()
}

fn code(world: &mut World, code: &str) -> (PairingState, Option<String>) {
    let code = world.ask(|reply| Command::PairingQr(code.into(), reply)).unwrap();
    (code.state, code.json.map(|json| json.to_string()))
}

#[test]
fn a_window_opens_when_the_relay_says_so_and_its_code_carries_the_token() {
    let mut world = World::new();
    let mut reply = world.begin(|reply| Command::PairingStart(Some(60), reply));
    assert!(reply.try_recv().is_err());
    world.relay(RelayInput::PairingReady { ttl: 45 });
    let started = reply.try_recv().unwrap().unwrap();
    assert_eq!(started.expires_at, world.now.unix + 45_000);
    let Some(RelayOrder::StartPairing { token, ttl: 60 }) = world.take_orders().pop() else { panic!("not started") };
    let (state, json) = code(&mut world, &started.code);
    let qr = skald_common::pairing::PairingQr::parse(&json.unwrap()).unwrap();
    assert_eq!(
        (state, qr.pairing_token, qr.relay_url.as_str()),
        (PairingState::Active, token, "ws://relay.test/ns/x/v1/ws")
    );
    assert_eq!((qr.namespace_id, qr.agent_x25519_pub), (names().namespace, names().x25519));
}

#[test]
fn the_token_itself_is_not_on_the_disk() {
    let mut world = World::new();
    let token = world.open_window();
    assert!(world.store.load().unwrap().window.is_some());
    for file in std::fs::read_dir(world.folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!bytes.windows(32).any(|window| window == token.expose()));
        assert!(!bytes.windows(64).any(|window| window == token.expose_hex().as_bytes()));
    }
}

#[test]
fn the_address_in_the_code_can_be_set_with_the_namespace_in_either_form() {
    let mut world = World::new();
    let mut settings = world.settings.clone();
    settings.qr_url = Some("wss://{ns32}.relay.test/ns/{ns}/v1/ws".into());
    world.ask(|reply| Command::Settings(settings, reply)).unwrap();
    let started = start(&mut world);
    let json = code(&mut world, &started.code).1.unwrap();
    let url = skald_common::pairing::PairingQr::parse(&json).unwrap().relay_url;
    let (label, rest) = url.strip_prefix("wss://").unwrap().split_once('.').unwrap();
    assert_eq!(label.len(), 52);
    assert_eq!(rest, format!("relay.test/ns/{}/v1/ws", names().namespace));
}

#[test]
fn without_a_relay_there_is_no_window_and_the_error_says_why() {
    let mut world = World::unconnected();
    let ask = |world: &mut World| world.ask(|reply| Command::PairingStart(None, reply));
    assert!(matches!(ask(&mut world), Err(ApiError::RelayUnreachable(_))));
    world.disconnect();
    assert_eq!(ask(&mut world), Err(ApiError::RelayUnreachable("gone".into())));
    let mut settings = world.settings.clone();
    settings.relay_url = String::new();
    world.ask(|reply| Command::Settings(settings, reply)).unwrap();
    assert_eq!(ask(&mut world), Err(ApiError::NoRelay));
    for ttl in [0, 601] {
        let error = world.ask(|reply| Command::PairingStart(Some(ttl), reply)).unwrap_err();
        assert!(matches!(error, ApiError::InvalidParams(_)));
    }
}

#[test]
fn a_relay_that_does_not_answer_refuses_or_goes_away_ends_the_wait() {
    let mut world = World::new();
    let mut reply = world.begin(|reply| Command::PairingStart(None, reply));
    world.advance(10_000);
    assert_eq!(reply.try_recv().unwrap(), Err(ApiError::RelayTimeout));
    let mut reply = world.begin(|reply| Command::PairingStart(None, reply));
    world.relay(RelayInput::Complaint("bad_request".into()));
    assert!(matches!(reply.try_recv().unwrap(), Err(ApiError::RelayUnreachable(_))));
    let mut reply = world.begin(|reply| Command::PairingStart(None, reply));
    world.disconnect();
    assert!(matches!(reply.try_recv().unwrap(), Err(ApiError::RelayUnreachable(_))));
    arrive(&mut world, 1, 1);
    assert!(world.device(1).is_none(), "none of these windows counts");
}

#[test]
fn a_device_that_pairs_waits_for_an_ok_and_the_others_are_told() {
    let mut world = World::new();
    world.phone(1);
    let started = start(&mut world);
    world.take_orders();
    arrive(&mut world, 2, 2);
    let device = world.device(2).unwrap();
    assert_eq!(device.state, DeviceState::Pending);
    assert_eq!(code(&mut world, &started.code), (PairingState::Consumed, None));
    let sent = world.accept_all();
    assert!(sent.len() == 1 && sent[0].to == key(1) && sent[0].json["kind"] == "notification");
    assert!(sent[0].json["body"].as_str().unwrap().contains(&device.fingerprint));
    assert!(world.told_lists().is_empty(), "the relay is told nothing yet");
    let paired = Event::DevicePaired { pubkey: key(2), fingerprint: device.fingerprint, authorized: false };
    assert!(world.events.contains(&paired));
}

#[test]
fn without_confirmation_it_is_authorized_at_once_and_the_others_are_told() {
    let mut world = World::new();
    world.phone(1);
    let mut settings = world.settings.clone();
    settings.require_device_confirmation = false;
    world.ask(|reply| Command::Settings(settings, reply)).unwrap();
    world.accept_all();
    start(&mut world);
    world.take_orders();
    arrive(&mut world, 2, 2);
    assert_eq!(world.device(2).unwrap().state, DeviceState::Authorized);
    assert_eq!(world.told_lists(), [Some(vec![key(1), key(2)])]);
    let sent = world.accept_all();
    assert!(sent.iter().any(|sent| sent.to == key(1) && sent.json["kind"] == "notification"));
    assert!(sent.iter().any(|sent| sent.to == key(2) && sent.is_snapshot()));
}

#[test]
fn the_relays_word_counts_only_while_a_window_is_open_and_unused() {
    let mut world = World::new();
    arrive(&mut world, 1, 1);
    start(&mut world);
    world.ask(Command::PairingStop).unwrap();
    assert!(matches!(world.take_orders().pop(), Some(RelayOrder::StopPairing)));
    arrive(&mut world, 1, 1);
    start(&mut world);
    world.advance(300_000);
    arrive(&mut world, 1, 1);
    assert!(world.device(1).is_none());
    start(&mut world);
    arrive(&mut world, 1, 1);
    arrive(&mut world, 2, 2);
    assert!(world.device(1).is_some() && world.device(2).is_none(), "one device per window");
    start(&mut world);
    world.relay(RelayInput::ClientPaired { ed25519: names().ed25519, x25519: x_key(3), platform: Platform::Ios });
    assert!(world.store.load().unwrap().window.is_some(), "the agent's own key is no device");
}

#[test]
fn a_newer_window_replaces_an_older_one_and_old_codes_say_what_became_of_them() {
    let mut world = World::new();
    let first = start(&mut world);
    let second = start(&mut world);
    assert_eq!(code(&mut world, &first.code), (PairingState::Superseded, None));
    world.advance(300_000);
    assert_eq!(code(&mut world, &second.code), (PairingState::Expired, None));
    assert_eq!(world.ask(|reply| Command::PairingQr("nonsense".into(), reply)).unwrap_err(), ApiError::NoSuchCode);
}

#[test]
fn a_window_survives_a_restart() {
    let mut world = World::new();
    world.open_window();
    let mut world = world.restart();
    world.relay(RelayInput::Connected { url: "ws://relay.test/v1/ws".into(), tells_push: true });
    arrive(&mut world, 1, 1);
    assert_eq!(world.device(1).unwrap().state, DeviceState::Pending);
    let mut world = world.restart();
    world.connect();
    arrive(&mut world, 2, 2);
    assert!(world.device(2).is_none(), "and its use does too");
}

#[test]
fn an_authorized_device_that_pairs_again_with_the_same_keys_stays_so_and_only_its_own_counter_begins_anew() {
    let mut world = World::new();
    world.phone(1);
    world.phone(2);
    world.phone_says(1, "inbox_request", "");
    world.relay(RelayInput::Reserve { device: key(1), upto: u64::MAX >> 2 });
    world.accept_all();
    start(&mut world);
    world.take_orders();
    arrive(&mut world, 1, 1);
    assert_eq!(world.device(1).unwrap().state, DeviceState::Authorized);
    let orders = world.take_orders();
    let partner = orders.iter().find_map(|order| match order {
        RelayOrder::SetPartner(partner) => Some(partner),
        _ => None,
    });
    let partner = partner.unwrap();
    assert_eq!((partner.received, partner.send_from), (0, (u64::MAX >> 2) + 1));
    assert!(orders.iter().any(|order| matches!(order, RelayOrder::SetAuthorized(Some(list)) if list.len() == 2)));
    let sent = world.accept_all();
    let told: Vec<_> = sent.iter().filter(|sent| sent.json["kind"] == "notification").map(|sent| sent.to).collect();
    assert_eq!(told, [key(2)]);
    world.counter = 1;
    world.phone_says(1, "inbox_request", "");
    assert!(world.take_sent().iter().any(Sent::is_live), "counter 2 is heard");
}

#[test]
fn an_authorized_device_that_pairs_again_when_the_window_is_over_is_owed_the_inbox_that_the_relay_threw_away() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host("skald");
    let id = world.shown_approval(&skald, 1);
    world.take_orders();
    arrive(&mut world, 1, 1);
    assert_eq!(world.told_lists(), [Some(vec![key(1)])]);
    let sent = world.accept_all();
    let snapshot = sent.iter().find(|sent| sent.is_snapshot()).expect("a snapshot");
    assert_eq!((snapshot.to, snapshot.ids(), snapshot.is_live()), (key(1), vec![id], false));
}

#[test]
fn another_agreement_key_under_a_known_name_is_a_new_pending_device() {
    let mut world = World::new();
    world.phone(1);
    start(&mut world);
    world.take_orders();
    arrive(&mut world, 1, 99);
    let device = world.device(1).unwrap();
    assert_eq!(device.state, DeviceState::Pending);
    let orders = world.take_orders();
    assert!(orders.iter().any(|order| matches!(order, RelayOrder::RemovePartner(gone) if *gone == key(1))));
    assert!(orders.iter().any(|order| matches!(order, RelayOrder::SetAuthorized(Some(list)) if list.is_empty())));
}

#[test]
fn a_pending_device_that_the_relay_announces_again_does_not_use_up_another_window() {
    let mut world = World::new();
    world.pair(1, Platform::Android);
    start(&mut world);
    world.disconnect();
    world.relay(RelayInput::Connected { url: "ws://relay.test/v1/ws".into(), tells_push: true });
    arrive(&mut world, 1, 1);
    assert!(world.store.load().unwrap().window.is_some());
    world.relay(RelayInput::Authorized);
    arrive(&mut world, 2, 2);
    assert!(world.device(2).is_some());
}

#[test]
fn a_rejected_device_stays_out_until_it_uses_a_new_window() {
    let mut world = World::new();
    world.pair(1, Platform::Android);
    let rejected = world.ask(|reply| Command::DevicesRevoke(key(1).to_hex(), reply)).unwrap();
    assert!(rejected.applied);
    arrive(&mut world, 1, 1);
    start(&mut world);
    world.disconnect();
    world.relay(RelayInput::Connected { url: "ws://relay.test/v1/ws".into(), tells_push: true });
    arrive(&mut world, 1, 1);
    assert!(world.device(1).is_none(), "announced again by the relay");
    world.relay(RelayInput::Authorized);
    arrive(&mut world, 1, 1);
    assert_eq!(world.device(1).unwrap().state, DeviceState::Pending, "paired anew");
}
