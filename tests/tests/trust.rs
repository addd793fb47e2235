//! What a phone may not do, whatever it sends: approve what it was not shown, decide by an old tap or an old answer, or
//! harm anyone by nonsense.

use serde_json::{Value, json};
use skald_common::peer::Delivery;
use skald_tests::{Host, RawPhone, World, canary, random, unix_ms};

/// Hexadecimal noise, which compresses to a little more than half.
fn long_text(bytes: usize) -> String {
    let noise = (0..bytes.div_ceil(16)).map(|_| format!("{:016x}", u64::from_le_bytes(random())));
    noise.collect::<Vec<String>>().concat()
}

/// Raises an item and answers it from this phone: whatever the host was called for before would show up first.
async fn nothing_else_reached(host: &mut Host, phone: &mut RawPhone) {
    let marker = canary("marker");
    host.request("approval", &Host::approval(marker.as_str(), "Marker", &json!({}))).await;
    let is_marker = |item: &Value| item["request_id"].as_str().is_some_and(|id| id.starts_with(&marker));
    let has_marker = |update: &Value| update["approvals"].as_array().is_some_and(|items| items.iter().any(is_marker));
    let update = phone.payload_where("inbox_update", has_marker).await;
    let item = update["approvals"].as_array().and_then(|items| items.iter().find(|item| is_marker(item))).cloned();
    phone.decide(&item.expect("just found")["request_id"], "rejected").await;
    assert_eq!(host.answered().await["request_id"], marker.as_str());
}

/// Ends a phone's connection and waits until the daemon knows: what it is sent now is stored, in its short form.
async fn send_away(world: &mut World, phone: &mut RawPhone) {
    phone.disconnect().await;
    let key = phone.key().to_hex();
    let away = |devices: &Value| {
        let devices = devices.as_array().expect("a list");
        devices.iter().any(|device| device["pubkey"] == key.as_str() && device["online"] == false)
    };
    world.control.until("the phone to be away", "devices.list", away).await;
}

#[tokio::test]
async fn an_approval_whose_arguments_did_not_reach_the_phone_is_not_approved() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    send_away(&mut world, &mut phone).await;
    let command = long_text(6_000);
    host.request("approval", &Host::approval(7, "Run it", &json!({"command": command}))).await;

    phone.connect().await;
    let item = phone.item("approvals").await;
    assert!(item.get("arguments").is_none(), "left out so that a push stays readable");
    let tap = phone.decide(&item["request_id"], "approved").await;
    assert_eq!(phone.ack(&tap).await["outcome"], "not_shown");
    assert_eq!(world.control.inbox().await.len(), 1, "it is still pending");

    let has_arguments = |update: &Value| update["approvals"][0].get("arguments").is_some();
    let update = phone.payload_where("inbox_update", has_arguments).await;
    assert_eq!(update["approvals"][0]["arguments"]["command"], command.as_str(), "the content follows by itself");
    let tap = phone.decide(&update["approvals"][0]["request_id"], "approved").await;
    assert_eq!(phone.ack(&tap).await["outcome"], "accepted");
    let answer = host.answered().await;
    assert_eq!((&answer["request_id"], &answer["decision"]), (&json!(7), &json!("approved")));
    nothing_else_reached(&mut host, &mut phone).await;
}

#[tokio::test]
async fn the_content_that_one_phone_has_seen_does_not_count_for_another() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let mut reader = world.raw_phone("Reader").await;
    let mut blind = world.raw_phone("Blind").await;
    send_away(&mut world, &mut blind).await;
    host.request("approval", &Host::approval(1, "Run it", &json!({"command": long_text(6_000)}))).await;
    let has_arguments = |update: &Value| update["approvals"][0].get("arguments").is_some();
    reader.payload_where("inbox_update", has_arguments).await;

    blind.connect().await;
    let item = blind.item("approvals").await;
    let tap = blind.decide(&item["request_id"], "approved").await;
    assert_eq!(blind.ack(&tap).await["outcome"], "not_shown");
    let tap = reader.decide(&item["request_id"], "approved").await;
    assert_eq!(reader.ack(&tap).await["outcome"], "accepted");
    assert_eq!(host.answered().await["device"]["name"], "Reader");
}

#[tokio::test]
async fn what_was_not_shown_in_full_may_still_be_rejected() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    send_away(&mut world, &mut phone).await;
    host.request("approval", &Host::approval(1, "Run it", &json!({"command": long_text(6_000)}))).await;
    phone.connect().await;
    let item = phone.item("approvals").await;
    assert!(item.get("arguments").is_none());
    phone.decide(&item["request_id"], "rejected").await;
    assert_eq!(host.answered().await["decision"], "rejected");
}

#[tokio::test]
async fn a_connected_phone_gets_the_whole_content_without_asking() {
    let mut world = World::new().await;
    let host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    let command = long_text(6_000);
    host.request("approval", &Host::approval(1, "Run it", &json!({"command": command}))).await;
    let has_arguments = |update: &Value| update["approvals"][0]["arguments"]["command"] == command.as_str();
    phone.payload_where("inbox_update", has_arguments).await;
}

#[tokio::test]
async fn what_fits_no_message_is_shown_with_a_note_and_cannot_be_approved_there() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    send_away(&mut world, &mut phone).await;
    for n in 0..6 {
        let item = Host::approval(n, "Run it", &json!({"n": n, "command": long_text(200_000)}));
        host.request("approval", &item).await;
    }
    phone.connect().await;
    let update = phone.inbox().await;
    assert_eq!(update["badge"], 6);
    let (whole, cut): (Vec<Value>, Vec<Value>) = update["approvals"]
        .as_array()
        .expect("a list")
        .iter()
        .cloned()
        .partition(|item| item.get("arguments").is_some());
    assert!(!whole.is_empty() && !cut.is_empty(), "{} whole, {} cut", whole.len(), cut.len());
    assert!(cut.iter().all(|item| item["detail"].as_str().is_some_and(|detail| !detail.is_empty())), "a note says why");
    let tap = phone.decide(&cut[0]["request_id"], "approved").await;
    assert_eq!(phone.ack(&tap).await["outcome"], "not_shown");
    assert_eq!(world.control.inbox().await.len(), 6);
    phone.decide(&whole[0]["request_id"], "approved").await;
    assert_eq!(host.answered().await["request_id"], whole[0]["arguments"]["n"]);
}

#[tokio::test]
async fn an_old_tap_never_approves_a_new_call_under_the_same_id() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    host.request("approval", &Host::approval("call-1", "Read the file", &json!({"path": "/etc/motd"}))).await;
    let harmless = phone.item("approvals").await["request_id"].clone();

    host.resolved("approval", "call-1").await;
    host.request("approval", &Host::approval("call-1", "Remove everything", &json!({"path": "/"}))).await;
    let is_new = |update: &Value| update["approvals"][0]["summary"] == "Remove everything";
    let update = phone.payload_where("inbox_update", is_new).await;
    let harmful = update["approvals"][0]["request_id"].clone();
    assert_ne!(harmless, harmful, "the id that phones see is bound to the content");

    let tap = phone.decide(&harmless, "approved").await;
    assert_eq!(phone.ack(&tap).await["outcome"], "superseded");
    assert_eq!(world.control.inbox().await[0]["id"], harmful, "the new call is still pending");
    phone.decide(&harmful, "rejected").await;
    assert_eq!(host.answered().await["decision"], "rejected", "the old tap reached nobody");
}

#[tokio::test]
async fn content_changed_by_a_sync_makes_another_item_too() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    host.sync(&[Host::approval(5, "Pay", &json!({"amount": 24}))], &[], &[]).await;
    let old = phone.item("approvals").await["request_id"].clone();
    host.sync(&[Host::approval(5, "Pay", &json!({"amount": 24_000}))], &[], &[]).await;
    let other = |update: &Value| update["badge"] == 1 && update["approvals"][0]["request_id"] != old;
    let new = phone.payload_where("inbox_update", other).await["approvals"][0]["request_id"].clone();
    let tap = phone.decide(&old, "approved").await;
    assert_eq!(phone.ack(&tap).await["outcome"], "superseded");
    phone.decide(&new, "rejected").await;
    assert_eq!(host.answered().await["decision"], "rejected");
}

#[tokio::test]
async fn an_answer_that_is_a_day_old_is_not_acted_on() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    host.request("approval", &Host::approval(1, "Deploy", &json!({}))).await;
    let id = phone.item("approvals").await["request_id"].clone();
    let hour = 3_600_000;
    let held_back = json!({"request_id": id, "decision": "approved", "ts": unix_ms() - 25 * hour});
    let tap = phone.send("approval_response", held_back).await;
    assert_eq!(phone.ack(&tap).await["outcome"], "expired");
    assert_eq!(world.control.inbox().await.len(), 1, "the item simply stays");
    // Older than a week: dropped unread, like anything of that age.
    let ancient = json!({"request_id": id, "decision": "approved", "ts": unix_ms() - 8 * 24 * hour});
    phone.send("approval_response", ancient).await;

    let recent = json!({"request_id": id, "decision": "rejected", "ts": unix_ms() - 23 * hour});
    phone.send("approval_response", recent).await;
    assert_eq!(host.answered().await["decision"], "rejected");
}

#[tokio::test]
async fn an_answer_to_nothing_brings_a_fresh_snapshot_and_reaches_nobody() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    host.request("clarification", &Host::question(1, "Which branch?", &[])).await;
    let question = phone.item("clarifications").await["request_id"].clone();
    for wrong in ["1", "", "1.0000000000000000", "clarification:1", &"x".repeat(5000)] {
        phone.send("clarification_response", json!({"request_id": wrong, "answer": "main"})).await;
        assert_eq!(phone.snapshot(1).await["clarifications"][0]["request_id"], question, "{wrong:?}");
    }
    // The right id, the wrong kind of answer.
    phone.decide(&question, "approved").await;
    phone.send("elicitation_response", json!({"request_id": question, "action": "accept"})).await;
    nothing_else_reached(&mut host, &mut phone).await;
    assert_eq!(world.control.inbox().await.len(), 1);
}

#[tokio::test]
async fn an_answer_counts_once_however_often_it_is_sent() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    host.request("approval", &Host::approval(1, "Deploy", &json!({}))).await;
    let id = phone.item("approvals").await["request_id"].clone();
    let answer = json!({"request_id": id, "decision": "approved", "id": "0c5bb0a2-0000-4000-8000-000000000001"});
    for _ in 0..3 {
        phone.send("approval_response", answer.clone()).await;
    }
    let taps = [phone.decide(&id, "approved").await, phone.decide(&id, "rejected").await];
    assert_eq!(host.answered().await["decision"], "approved");
    for tap in taps {
        assert_eq!(phone.ack(&tap).await["outcome"], "superseded");
    }
    nothing_else_reached(&mut host, &mut phone).await;
}

#[tokio::test]
async fn malformed_answers_change_nothing_and_lose_nothing() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    host.request("approval", &Host::approval(1, "Deploy", &json!({}))).await;
    let id = phone.item("approvals").await["request_id"].clone();

    for body in [&b""[..], b"{", b"[]", b"null", b"\xff\xfe\x00", b"{\"v\":1}", "\u{feff}{}".as_bytes()] {
        phone.send_bytes(body, Delivery::STORED).await;
    }
    let nested = "[".repeat(100_000) + &"]".repeat(100_000);
    phone.send_bytes(format!("{{\"v\":1,\"kind\":\"hello\",\"x\":{nested}}}").as_bytes(), Delivery::STORED).await;
    for fields in [
        json!({"request_id": id}),
        json!({"request_id": id, "decision": "maybe"}),
        json!({"request_id": id, "decision": "Approved"}),
        json!({"request_id": id, "decision": true}),
        json!({"request_id": 1, "decision": "approved"}),
        json!({"request_id": id, "decision": "approved", "bypass_secs": -1}),
        json!({"request_id": id, "decision": "approved", "bypass_secs": 86_401}),
        json!({"request_id": id, "decision": "approved", "bypass_secs": "900"}),
        json!({"request_id": id, "decision": "approved", "v": 2}),
        json!({"request_id": id, "decision": "approved", "kind": "approve"}),
        json!({"request_id": id, "decision": "approved", "ts": "now"}),
        json!({"request_id": id, "decision": "approved", "id": ""}),
    ] {
        phone.send("approval_response", fields).await;
    }
    phone.send("hello", json!({"device_info": {"platform": 7}})).await;
    phone.send("notification", json!({"title": "From below", "body": "A phone does not notify"})).await;

    nothing_else_reached(&mut host, &mut phone).await;
    phone.send("approval_response", json!({"request_id": id, "decision": "approved", "new": {"later": 1}})).await;
    assert_eq!(host.answered().await["decision"], "approved", "fields of later versions do no harm");
}
