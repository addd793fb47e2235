//! Who may read and answer, and what the relay is told of it.

use super::*;

fn authorize(world: &mut World, n: u8) -> oneshot::Receiver<Result<super::super::api::Applied, ApiError>> {
    world.begin(|reply| Command::DevicesAuthorize(key(n).to_hex(), reply))
}

fn authorize_only(world: &mut World, n: u8) {
    drop(authorize(world, n));
}

#[test]
fn authorizing_tells_the_relay_the_whole_list_and_sends_the_inbox() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host("skald");
    let id = world.approval(&skald, 1);
    world.pair(2, Platform::Android);
    world.take_orders();
    world.accept_all();
    let mut reply = authorize(&mut world, 2);
    assert!(reply.try_recv().is_err(), "it waits for the relay");
    let partner = world.orders.iter().position(|order| matches!(order, RelayOrder::SetPartner(_)));
    assert!(partner.is_some());
    assert_eq!(world.told_lists(), [Some(vec![key(1), key(2)])]);
    let sent = world.accept_all();
    let snapshot = sent.iter().find(|sent| sent.is_snapshot()).unwrap();
    assert_eq!((snapshot.to, snapshot.ids()), (key(2), vec![id]));
    world.relay(RelayInput::Authorized);
    assert!(reply.try_recv().unwrap().unwrap().applied);
    assert_eq!(world.device(2).unwrap().state, DeviceState::Authorized);
}

#[test]
fn without_the_relay_it_holds_at_once_and_the_answer_says_that_the_relay_does_not_know_yet() {
    let mut world = World::new();
    world.phone(1);
    world.pair(2, Platform::Android);
    world.disconnect();
    assert!(!authorize(&mut world, 2).try_recv().unwrap().unwrap().applied);
    assert_eq!(world.device(2).unwrap().state, DeviceState::Authorized);
    let revoked = world.ask(|reply| Command::DevicesRevoke(key(1).to_hex(), reply)).unwrap();
    assert!(!revoked.applied);
    assert_eq!(world.told_lists().pop(), Some(Some(vec![key(2)])));
}

#[test]
fn a_relay_that_does_not_answer_or_goes_away_leaves_it_noted() {
    let mut world = World::new();
    world.pair(1, Platform::Android);
    let mut reply = authorize(&mut world, 1);
    world.advance(10_000);
    assert!(!reply.try_recv().unwrap().unwrap().applied);
    let mut reply = world.begin(|reply| Command::DevicesRevoke(key(1).to_hex(), reply));
    world.disconnect();
    assert!(!reply.try_recv().unwrap().unwrap().applied);
}

#[test]
fn a_revoked_device_is_forgotten_with_everything_meant_for_it() {
    let mut world = World::new();
    world.phone(1);
    world.phone(2);
    let mut skald = world.host("skald");
    let id = world.shown_approval(&skald, 1);
    world.take_orders();
    world.tell(|reply| Command::DevicesRevoke(key(1).to_hex(), reply));
    assert!(world.orders.iter().any(|order| matches!(order, RelayOrder::RemovePartner(gone) if *gone == key(1))));
    assert_eq!(world.told_lists(), [Some(vec![key(2)])]);
    world.approve(1, &id);
    assert!(skald.calls().is_empty());
    world.approval(&skald, 2);
    world.advance(HOUR);
    assert!(world.accept_all().iter().all(|sent| sent.to == key(2)));
    assert!(world.device(1).is_none());
    assert!(world.events.contains(&Event::DeviceRevoked { pubkey: key(1) }));
}

#[test]
fn a_device_may_leave_by_itself() {
    let mut world = World::new();
    world.phone(1);
    world.phone_says(1, "logout", "");
    assert!(world.device(1).is_none());
    assert_eq!(world.told_lists(), [Some(vec![])]);
}

#[test]
fn a_device_is_named_by_a_prefix_of_8_digits_that_fits_one() {
    let mut world = World::new();
    world.phone(1);
    world.open_window();
    let mut twin = [1; 32];
    twin[31] = 2;
    let ed25519 = Ed25519Public::new(twin);
    world.relay(RelayInput::ClientPaired { ed25519, x25519: x_key(7), platform: Platform::Web });
    let mut revoke = |prefix: &str| world.begin(|reply| Command::DevicesRevoke(prefix.into(), reply)).try_recv();
    assert_eq!(revoke("0101").unwrap(), Err(ApiError::BadDevicePrefix));
    assert_eq!(revoke("zzzzzzzz").unwrap(), Err(ApiError::BadDevicePrefix));
    assert_eq!(revoke("ffffffff").unwrap(), Err(ApiError::NoSuchDevice("ffffffff".into())));
    assert!(matches!(revoke("01010101").unwrap(), Err(ApiError::AmbiguousDevice { count: 2, .. })));
    assert!(revoke(&ed25519.to_hex().to_uppercase()).unwrap().is_ok());
    assert!(world.device(1).is_some());
}

#[test]
fn hello_gives_the_device_its_name_and_its_words_are_made_safe() {
    let mut world = World::new();
    world.phone_on(1, Platform::Ios);
    assert_eq!(world.device(1).unwrap().name, "iPhone 01010101");
    assert_eq!(world.device(1).unwrap().short_key.as_deref(), Some("010101…010101"));
    let info = format!(r#""device_info":{{"platform":"ios","device_name":"My\u202e\n{}"}}"#, "x".repeat(500));
    world.phone_says(1, "hello", &info);
    let device = world.device(1).unwrap();
    assert!(device.name.starts_with("My\\u202e\\nxxx") && device.name.chars().count() <= 128, "{}", device.name);
    assert_eq!(device.platform, "ios");
    assert!(world.events.contains(&Event::DeviceChanged { pubkey: key(1) }));
    world.events.clear();
    world.phone_says(1, "hello", &info);
    assert_eq!(world.events, [], "the same again is no news");
    let mut world = world.restart();
    assert_eq!(world.device(1).unwrap().name, device.name);
}

#[test]
fn the_64th_device_is_the_last() {
    let mut world = World::new();
    for n in 1..=64 {
        world.phone(n);
    }
    world.pair(65, Platform::Android);
    assert_eq!(authorize(&mut world, 65).try_recv().unwrap(), Err(ApiError::TooManyDevices));
}

#[test]
fn presence_is_told_once_and_forgotten_with_the_connection() {
    let mut world = World::new();
    world.phone(1);
    world.events.clear();
    world.relay(RelayInput::PresenceList(vec![key(1), names().ed25519]));
    world.relay(RelayInput::Presence(key(1), true));
    assert!(world.device(1).unwrap().online);
    assert_eq!(world.status().devices.online, 1);
    assert_eq!(world.events, [Event::DeviceOnline { pubkey: key(1) }]);
    world.disconnect();
    assert!(!world.device(1).unwrap().online);
    assert!(world.events.contains(&Event::DeviceOffline { pubkey: key(1) }));
}

#[test]
fn what_pushing_comes_to_is_shown_until_a_relay_does_not_tell_it() {
    use skald_common::wire::Push;
    let said =
        |states: &[(u8, Push)]| RelayInput::PushStatus(states.iter().map(|(n, push)| (key(*n), *push)).collect());
    let mut world = World::new();
    world.phone(1);
    world.phone(2);
    world.pair(3, Platform::Ios);
    world.events.clear();
    assert_eq!(world.device(1).unwrap().push, None);
    world.relay(said(&[(1, Push::Ready), (2, Push::None), (3, Push::Ready), (9, Push::Gone)]));
    assert_eq!(
        world.events,
        [
            Event::DevicePush { pubkey: key(1), push: PushState::Ready },
            Event::DevicePush { pubkey: key(2), push: PushState::None },
        ],
        "strangers and pending devices have none"
    );
    world.events.clear();
    world.relay(said(&[(1, Push::Ready), (2, Push::Off)]));
    assert_eq!(world.events, [Event::DevicePush { pubkey: key(2), push: PushState::Off }], "told once");
    let healthy = world.status();
    assert_eq!((healthy.devices.push_gone, healthy.notices.len()), (0, 0));
    world.relay(said(&[(1, Push::Gone)]));
    assert_eq!(world.device(1).unwrap().push, Some(PushState::Gone));
    assert!(world.device(3).unwrap().push.is_none());
    let status = world.status();
    assert_eq!(status.devices.push_gone, 1);
    assert!(status.notices.len() == 1 && status.notices[0].contains("open the app on it once"), "{status:?}");
    // A word of a later relay is not known here, and is not what was said before.
    world.relay(said(&[(2, Push::Unspecified)]));
    assert_eq!(world.device(2).unwrap().push, None);

    world.disconnect();
    assert_eq!(world.device(1).unwrap().push, Some(PushState::Gone), "it is no better without a connection");
    world.connect();
    assert_eq!(world.device(1).unwrap().push, Some(PushState::Gone));
    world.full = true;
    world.phone_says(1, "inbox_request", "");
    assert_eq!(world.device(1).unwrap().push, Some(PushState::Gone), "and the disk has no part in it");
    world.full = false;
    world.relay(RelayInput::Connected { url: "ws://relay.test/v1/ws".into(), tells_push: false });
    assert_eq!(world.device(1).unwrap().push, None);
    assert!(world.status().notices.is_empty());
}

#[test]
fn what_was_said_of_pushes_goes_with_the_device_and_with_the_relay() {
    use skald_common::wire::Push;
    let mut world = World::new();
    world.phone(1);
    world.relay(RelayInput::PushStatus(vec![(key(1), Push::Gone)]));
    world.full = true;
    world.tell(|reply| Command::DevicesRevoke(key(1).to_hex(), reply));
    world.full = false;
    assert_eq!(world.device(1).unwrap().push, Some(PushState::Gone), "it was not revoked after all");
    let settings = Settings { relay_url: "ws://other.test".into(), ..world.settings.clone() };
    world.ask(|reply| Command::Settings(settings, reply)).unwrap();
    assert_eq!(world.device(1).unwrap().push, None);
    world.connect();
    world.relay(RelayInput::PushStatus(vec![(key(1), Push::Gone)]));
    world.tell(|reply| Command::DevicesRevoke(key(1).to_hex(), reply));
    assert!(world.status().notices.is_empty());
}

#[test]
fn send_counters_begin_above_everything_that_may_have_been_used() {
    let mut world = World::new();
    world.phone(1);
    let high = world.now.unix * 4096 + 1_000_000;
    world.relay(RelayInput::Reserve { device: key(1), upto: high });
    let mut world = world.restart();
    assert_eq!(world.partner(1).unwrap().send_from, high + 1);
    world.connect();
    world.pair(2, Platform::Android);
    authorize_only(&mut world, 2);
    assert_eq!(world.partner(2).unwrap().send_from, high + 1, "also for another device");
    world.now.unix += HOUR;
    let mut world = world.restart();
    let from = world.partner(1).unwrap().send_from;
    assert_eq!(from, world.now.unix * 4096 + 1, "and above what the clock says");
}

#[test]
fn only_devices_that_can_read_them_get_compressed_bodies() {
    use skald_common::framing::Compression;
    let mut world = World::new();
    for (n, platform, expected) in [
        (1, Platform::Ios, Compression::Off),
        (2, Platform::Android, Compression::WhenSmaller),
        (3, Platform::Web, Compression::WhenSmaller),
        (4, Platform::Unspecified, Compression::Off),
    ] {
        world.pair(n, platform);
        authorize_only(&mut world, n);
        assert_eq!(world.partner(n).unwrap().compression, expected);
    }
}

#[test]
fn changes_of_security_settings_are_announced_and_others_not() {
    let mut world = World::new();
    world.phone(1);
    let mut settings = world.settings.clone();
    settings.notify_delay_secs = 5;
    world.ask(|reply| Command::Settings(settings.clone(), reply)).unwrap();
    assert!(world.accept_all().is_empty());
    settings.require_device_confirmation = false;
    world.ask(|reply| Command::Settings(settings.clone(), reply)).unwrap();
    let sent = world.accept_all();
    assert!(sent.len() == 1 && sent[0].json["body"].as_str().unwrap().contains("without confirmation"));
    settings.relay_url = "ws://other.test".into();
    world.take_orders();
    world.ask(|reply| Command::Settings(settings.clone(), reply)).unwrap();
    assert!(matches!(&world.take_orders()[..], [RelayOrder::Connect { url, .. }] if url == "ws://other.test"));
    world.connect();
    assert!(world.accept_all()[0].json["body"].as_str().unwrap().contains("ws://other.test"));
    settings.relay_url = String::new();
    world.ask(|reply| Command::Settings(settings, reply)).unwrap();
    assert!(matches!(world.take_orders().pop(), Some(RelayOrder::Disconnect)));
    assert!(!world.status().relay.connected);
}

#[test]
fn authorizing_is_announced_to_the_others() {
    let mut world = World::new();
    world.phone(1);
    world.pair(2, Platform::Android);
    world.accept_all();
    authorize_only(&mut world, 2);
    let sent = world.accept_all();
    let told: Vec<_> = sent.iter().filter(|sent| sent.json["kind"] == "notification").collect();
    assert!(told.len() == 1 && told[0].to == key(1), "{told:?}");
    let fingerprint = world.device(2).unwrap().fingerprint;
    assert!(told[0].json["body"].as_str().unwrap().contains(&fingerprint));
}

#[test]
fn a_device_whose_key_cannot_be_agreed_with_is_removed() {
    let mut world = World::new();
    world.phone(1);
    world.relay(RelayInput::PartnerRefused(key(1)));
    assert!(world.device(1).is_none());
    assert!(world.status().last_error.unwrap().contains("unusable key"));
}

#[test]
fn pending_devices_are_forgotten_after_a_day_and_the_oldest_of_more_than_16_at_once() {
    let mut world = World::new();
    for n in 1..=17 {
        world.pair(n, Platform::Android);
        world.advance(1);
    }
    assert!(world.device(1).is_none() && world.device(2).is_some());
    world.advance(24 * HOUR);
    assert_eq!(world.status().devices.pending, 0);
}

#[test]
fn status_says_when_another_daemon_has_the_same_seed_and_when_the_clock_is_wrong() {
    let mut world = World::new();
    world.relay(RelayInput::Disconnected { why: "replaced".into(), parked: true });
    let status = world.status();
    assert!(status.relay.parked && status.notices[0].contains("same seed"), "{status:?}");
    world.connect();
    assert!(world.status().notices.is_empty());
    world.now.unix = 0;
    assert!(world.status().notices[0].contains("clock"));
}
