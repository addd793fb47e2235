//! What the platform would charge for, counted around the real relay in its real runtime, and held to the budget.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use skald_common::ids::NamespaceId;
use skald_common::wire::{Frame, PING, PONG};
use skald_tests::{DaemonOptions, Host, RawPhone, RawSocket, Relay, World};

/// What is counted.
const ALL: [&str; 10] =
    ["requests", "frames", "texts", "closes", "alarms", "wakings", "rowsRead", "rowsWritten", "alarmsSet", "wipes"];

/// A relay whose objects are counted.
async fn metered() -> World {
    let meter = concat!(env!("CARGO_MANIFEST_DIR"), "/meter/meter.js");
    let relay = Arc::new(Relay::with(&["--around", meter]).await);
    World::on(relay, &DaemonOptions::default()).await
}

/// Everything since the relay started.
#[derive(Debug)]
struct Counts(Value);

impl Counts {
    async fn of(world: &World) -> Self {
        let response = world.relay.get("/meter").await;
        let body = response.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
        Self(body.and_then(|body| serde_json::from_str(&body).ok()).unwrap_or_else(|| panic!("no sums: {response}")))
    }

    /// What has been counted since `earlier`, without what is zero.
    fn since(&self, earlier: &Self) -> Vec<(&'static str, u64)> {
        let count = |counts: &Self, name| counts.0[name].as_u64().unwrap_or_else(|| panic!("{name} in {counts:?}"));
        let differences = ALL.map(|name| (name, count(self, name) - count(earlier, name)));
        differences.into_iter().filter(|(_, count)| *count > 0).collect()
    }
}

/// One approval from the host's request to the empty inbox on the phone.
async fn approve(host: &mut Host, phone: &mut RawPhone, n: u64) {
    host.request("approval", &Host::approval(n, "Deploy", &json!({"target": "prod"}))).await;
    let id = phone.item("approvals").await["request_id"].clone();
    phone.decide(&id, "approved").await;
    assert_eq!(host.answered().await["decision"], "approved");
    phone.snapshot(0).await;
}

/// Waits until both sides have acknowledged everything, which they do at their leisure; nothing tells when. Gives how
/// often the phone asked for its inbox.
async fn settle(world: &World, phone: &mut RawPhone) -> u64 {
    let (mut questions, mut quiet) = (0, 0);
    while quiet < 10 {
        let before = Counts::of(world).await;
        phone.inbox().await;
        questions += 1;
        tokio::time::sleep(Duration::from_millis(200)).await;
        quiet = if Counts::of(world).await.since(&before) == [("frames", 2)] { quiet + 1 } else { 0 };
    }
    questions
}

/// Rows written and inbound frames of an approval from request to empty inbox (design, The namespace engine).
const BUDGET: u64 = 6;

#[tokio::test]
async fn an_approval_costs_six_rows_and_six_frames_and_a_live_message_one_frame_and_no_row() {
    // With the one before, as many snapshots as a phone is sent without a pause.
    const TIMES: u64 = 4;
    if !Relay::controllable() {
        return;
    }
    let mut world = metered().await;
    let mut host = world.host("skald").await;
    // As a deployed app: without the acks that newer phones ask for.
    let mut phone = world.paired_raw_phone().await;
    phone.connect().await;
    settle(&world, &mut phone).await;
    let before = Counts::of(&world).await;
    for n in 0..TIMES {
        approve(&mut host, &mut phone, n).await;
    }
    let questions = settle(&world, &mut phone).await;
    let spent = Counts::of(&world).await.since(&before);
    let count = |name| spent.iter().find(|(counted, _)| *counted == name).map_or(0, |(_, count)| *count);
    assert_eq!(count("rowsWritten"), BUDGET * TIMES, "{spent:?}");
    // Several acknowledgements may travel as one; a live question and its answer are two frames.
    assert!(count("frames") <= BUDGET * TIMES + 2 * questions, "{questions} questions: {spent:?}");
    assert!(count("rowsRead") <= 2 * BUDGET * TIMES, "{spent:?}");
    let only = ["frames", "rowsRead", "rowsWritten"];
    assert!(spent.iter().all(|(name, _)| only.contains(name)), "no alarm, no waking, no request: {spent:?}");

    let before = Counts::of(&world).await;
    for _ in 0..10 {
        phone.inbox().await;
    }
    assert_eq!(Counts::of(&world).await.since(&before), [("frames", 20)], "a live message costs one frame");
}

/// Pings of an hour, at one in 25 s.
const AN_HOUR: u32 = 144;

#[tokio::test]
async fn an_agent_and_two_phones_that_are_connected_and_silent_cost_nothing_however_they_ping() {
    if !Relay::controllable() {
        return;
    }
    let mut world = metered().await;
    let namespace = world.control.status().await["namespace_id"].as_str().map(NamespaceId::from_hex);
    let namespace = namespace.expect("text").expect("hex");
    let mut phones = Vec::new();
    for _ in 0..2 {
        let mut paired = world.paired_raw_phone().await;
        paired.connect().await;
        // Whatever pairing owes it.
        settle(&world, &mut paired).await;
        paired.disconnect().await;
        phones.push(RawSocket::client(world.relay.url(), paired.seed(), &namespace).await);
    }
    world.control.until("both phones", "status", |status| status["devices"]["online"] == 2).await;
    let before = Counts::of(&world).await;
    // Longer than the runtime keeps an idle object; nothing tells when it has gone.
    tokio::time::sleep(Duration::from_secs(13)).await;
    for _ in 0..AN_HOUR {
        for phone in &mut phones {
            phone.send_text(PING).await;
            phone.text(PONG).await;
        }
    }
    assert_eq!(Counts::of(&world).await.since(&before), [], "nobody was woken");

    let host = world.host("skald").await;
    host.call("notification.send", json!({"title": "Skald", "body": "Hello"})).await;
    for phone in &mut phones {
        while !matches!(phone.next().await, Some(Frame::Message(_))) {}
    }
    let woken = Counts::of(&world).await.since(&before);
    assert!(
        woken.contains(&("frames", 2)) && woken.contains(&("rowsWritten", 2)),
        "what happens is counted: {woken:?}"
    );
}
