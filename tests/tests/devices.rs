//! The life of a device: paired, confirmed or rejected, away and back, revoked, gone by itself.

use std::sync::Arc;

use serde_json::{Value, json};
use skald_common::crypto::Seed;
use skald_common::peer::Disconnect;
use skald_common::wire::ErrorCode;
use skald_tests::{DaemonOptions, Host, RawPhone, Relay, World};

fn confirming() -> DaemonOptions {
    DaemonOptions { confirm: true, ..Default::default() }
}

/// Whether the relay refused the device, now or by closing its connection.
fn is_refusal(why: &Disconnect) -> bool {
    matches!(
        why,
        Disconnect::Refused(Some(ErrorCode::Unauthorized | ErrorCode::NotFound), _) | Disconnect::Closed(Some(4003))
    )
}

#[tokio::test]
async fn a_new_device_sees_nothing_until_a_person_authorizes_it() {
    let mut world = World::with(&confirming()).await;
    let host = world.host("skald").await;
    host.request("approval", &Host::approval(1, "Deploy", &json!({}))).await;
    let mut phone = world.paired_raw_phone().await;
    let device = world.control.devices().await.remove(0);
    assert_eq!(device["state"], "pending");
    assert_eq!(device["pubkey"], phone.key().to_hex());
    let refusal = phone.refused().await;
    assert!(is_refusal(&refusal), "{refusal:?}");

    let key = phone.key().to_hex();
    world.authorize(&key[..8]).await;
    world.control.event_where("device.authorized", |event| event["pubkey"] == key.as_str()).await;
    phone.connect().await;
    assert_eq!(phone.item("approvals").await["summary"], "Deploy", "the snapshot comes by itself");
}

#[tokio::test]
async fn both_sides_show_the_same_fingerprint() {
    use skald_common::crypto::{Identity, fingerprint};
    let mut world = World::with(&confirming()).await;
    let phone = world.paired_raw_phone().await;
    let identity = Identity::new(phone.seed());
    let device = world.control.devices().await.remove(0);
    assert_eq!(device["fingerprint"], fingerprint(&identity.ed25519_pub(), &identity.x25519_pub()));
}

#[tokio::test]
async fn without_confirmation_a_device_is_authorized_by_the_code_alone() {
    let mut world = World::new().await;
    let mut phone = world.paired_raw_phone().await;
    phone.connect().await;
    assert_eq!(phone.inbox().await["badge"], 0);
    assert_eq!(world.control.devices().await[0]["state"], "authorized");
}

#[tokio::test]
async fn a_rejected_device_stays_out_until_a_new_window() {
    let mut world = World::with(&confirming()).await;
    let mut phone = world.paired_raw_phone().await;
    let key = phone.key().to_hex();
    world.control.call("devices.revoke", json!({"pubkey": key})).await;
    assert_eq!(world.control.devices().await, Vec::<Value>::new());
    let refusal = phone.refused().await;
    assert!(is_refusal(&refusal), "{refusal:?}");
    // The relay announces devices that still wait whenever the daemon connects: this one was rejected.
    world.crash().await;
    assert_eq!(world.control.devices().await, Vec::<Value>::new());

    let qr = world.control.pairing_code().await;
    let again = RawPhone::pair_as(phone.seed().clone(), &qr).await.expect("a new code, a new chance");
    world.control.event_where("device.paired", |event| event["pubkey"] == again.key().to_hex()).await;
    assert_eq!(world.control.devices().await[0]["state"], "pending");
}

#[tokio::test]
async fn a_code_works_once_and_only_while_its_window_is_open() {
    let mut world = World::new().await;
    world.control.connected().await;
    let first = world.control.call("pairing.start", json!({})).await;
    let old = world.control.qr(&first["code"]).await;
    let newer = world.control.pairing_code().await;
    let state = |code: &Value| json!({"code": code, "format": "json"});
    let superseded = world.control.call("pairing.qr", state(&first["code"])).await;
    assert_eq!(superseded["state"], "superseded");
    assert!(!superseded.to_string().contains("pairing_token"), "no token any more: {superseded}");
    let closed = |result: Result<RawPhone, Disconnect>| match result.map(|phone| phone.key()) {
        Err(Disconnect::Refused(Some(ErrorCode::PairingClosed), _)) => {}
        other => panic!("not refused: {other:?}"),
    };
    closed(RawPhone::pair_as(Seed::new(skald_tests::random()), &old).await);
    RawPhone::pair_as(Seed::new(skald_tests::random()), &newer).await.expect("the newer code works");
    closed(RawPhone::pair_as(Seed::new(skald_tests::random()), &newer).await);

    let third = world.control.call("pairing.start", json!({})).await;
    let stopped = world.control.qr(&third["code"]).await;
    world.control.call("pairing.stop", json!({})).await;
    closed(RawPhone::pair_as(Seed::new(skald_tests::random()), &stopped).await);
    let short = world.control.call("pairing.start", json!({"ttl": 1})).await;
    let expired = world.control.qr(&short["code"]).await;
    let is_over = |event: &Value| event["code"] == short["code"] && event["state"] == "expired";
    world.control.event_where("pairing.changed", is_over).await;
    closed(RawPhone::pair_as(Seed::new(skald_tests::random()), &expired).await);
    assert_eq!(world.control.devices().await.len(), 1);
}

#[tokio::test]
async fn the_other_phones_are_told_of_a_device_that_wants_in() {
    let mut world = World::new().await;
    let mut phone = world.raw_phone("Ann").await;
    world.control.call("config.set", json!({"require_device_confirmation": true})).await;
    phone.payload("notification").await;
    world.paired_raw_phone().await;
    let told = phone.payload("notification").await;
    assert!(told["body"].as_str().is_some_and(|body| !body.is_empty()), "{told}");
}

#[tokio::test]
async fn a_revoked_device_is_cut_off_at_once_and_its_answers_count_no_more() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let mut lost = world.raw_phone("Lost").await;
    let mut kept = world.raw_phone("Kept").await;
    host.request("approval", &Host::approval(1, "Deploy", &json!({}))).await;
    let id = lost.item("approvals").await["request_id"].clone();
    let answer = world.control.call("devices.revoke", json!({"pubkey": lost.key().to_hex()})).await;
    assert_eq!(answer["applied"], true);
    let why = lost.disconnected().await;
    assert!(is_refusal(&why), "{why:?}");
    let why = lost.refused().await;
    assert!(is_refusal(&why), "{why:?}");
    kept.decide(&id, "rejected").await;
    assert_eq!(host.answered().await["device"]["name"], "Kept");
    assert_eq!(world.control.devices().await.len(), 1);
}

#[tokio::test]
async fn a_revocation_while_the_relay_is_away_holds_at_once_and_is_told_when_it_is_back() {
    if !skald_tests::Relay::controllable() {
        return;
    }
    let relay = std::sync::Arc::new(skald_tests::Relay::own(&[]).await);
    let mut world = World::on(relay, &DaemonOptions::default()).await;
    let mut phone = world.raw_phone("Ann").await;
    world.relay.kill().await;
    world.control.event("relay.disconnected").await;
    let answer = world.control.call("devices.revoke", json!({"pubkey": phone.key().to_hex()})).await;
    assert_eq!(answer["applied"], false, "the relay will be told");
    assert_eq!(world.control.devices().await, Vec::<Value>::new());
    std::sync::Arc::get_mut(&mut world.relay).expect("nobody else uses it").start_again().await;
    world.control.event("relay.connected").await;
    let why = phone.refused().await;
    assert!(is_refusal(&why), "{why:?}");
}

#[tokio::test]
async fn a_device_that_logs_out_is_gone_everywhere() {
    let mut world = World::new().await;
    let mut phone = world.raw_phone("Ann").await;
    phone.send("logout", json!({})).await;
    phone.disconnected().await;
    assert_eq!(world.control.devices().await, Vec::<Value>::new());
    let why = phone.refused().await;
    assert!(is_refusal(&why), "{why:?}");
}

#[tokio::test]
async fn a_phone_that_was_away_finds_one_snapshot_and_every_notification() {
    let mut world = World::new().await;
    let host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    phone.disconnect().await;
    world.control.until("the phone to be offline", "status", |status| status["devices"]["online"] == 0).await;
    for n in 1..=20 {
        host.request("approval", &Host::approval(n, "Deploy", &json!({"n": n}))).await;
    }
    for n in 1..=19 {
        host.resolved("approval", n).await;
    }
    let bodies = ["one", "two", "three"];
    for body in bodies {
        host.call("notification.send", json!({"title": "Skald", "body": body})).await;
    }
    phone.connect().await;
    let last = |payload: &Value| payload["body"] == "three";
    let mut payloads = phone.payloads_until("notification", last).await;
    let notified: Vec<Value> =
        payloads.iter().filter(|payload| payload["kind"] == "notification").map(|n| n["body"].clone()).collect();
    assert_eq!(notified, bodies, "in order, each once");
    payloads.push(phone.inbox().await);
    let snapshots: Vec<&Value> = payloads.iter().filter(|payload| payload["kind"] == "inbox_update").collect();
    assert!(snapshots.len() <= 3, "a burst is one snapshot, not forty: {snapshots:?}");
    let newest = snapshots.last().expect("just asked for");
    assert_eq!((&newest["badge"], &newest["approvals"][0]["arguments"]), (&json!(1), &json!({"n": 20})));
}

#[tokio::test]
async fn a_device_is_named_by_enough_of_its_key_and_by_nothing_else() {
    let mut world = World::new().await;
    let phone = world.paired_raw_phone().await;
    let key = phone.key().to_hex();
    for wrong in ["", &key[..7], "zzzzzzzz", "deadbeefdeadbeef", &format!("{key}00")] {
        let failure = world.control.try_call("devices.revoke", json!({"pubkey": wrong})).await;
        assert!(!failure.expect_err(wrong).message.is_empty());
    }
    assert_eq!(world.control.devices().await.len(), 1);
    world.control.call("devices.revoke", json!({"pubkey": key[..12].to_uppercase()})).await;
    assert_eq!(world.control.devices().await, Vec::<Value>::new());
}

/// Waits until `devices.list` says this of the pushes to a device.
async fn pushed(world: &mut World, key: &str, push: &str) {
    let says = |list: &Value| {
        let device = list.as_array().and_then(|list| list.iter().find(|device| device["pubkey"] == key));
        device.is_some_and(|device| device["push"] == push)
    };
    world.control.until(&format!("pushes to be {push}"), "devices.list", says).await;
}

#[tokio::test]
async fn the_owner_sees_which_devices_can_be_woken() {
    // A relay without credentials for any push service.
    if !Relay::controllable() {
        return;
    }
    let relay = Arc::new(Relay::own(&[]).await);
    let mut world = World::on(relay, &DaemonOptions::default()).await;
    let phone = world.phone("Pocket").await;
    let status = phone.run(&["status", "--json"]).await.ok().json();
    let key = status["public_key"].as_str().expect("a key").to_owned();
    pushed(&mut world, &key, "none").await;
    // It is told by the very connection that brings the token.
    let inbox = phone.run(&["inbox", "--push-url", "https://updates.push.services.mozilla.com/wpush/v2/canary"]).await;
    inbox.ok();
    world.control.event_where("device.push", |event| event["push"] == "off" && event["pubkey"] == key.as_str()).await;
    pushed(&mut world, &key, "off").await;
    let list = world.skaldctl().run(&["devices"]).await.ok().out;
    assert!(list.contains("push: the relay has no credentials"), "{list}");
    // And again to a daemon that comes back, and forgets nothing that it cannot ask for.
    world.crash().await;
    pushed(&mut world, &key, "off").await;
}
