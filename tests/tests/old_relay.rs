//! The same work through a relay that offers no features and knows only the common path, as deployed ones are.

use serde_json::{Value, json};
use skald_tests::{DaemonOptions, Host, OldRelay, Relay, World};

async fn old_world() -> (World, OldRelay) {
    let relay = Relay::shared().await;
    let old = OldRelay::in_front_of(relay.url()).await;
    let world = World::through(old.url(), relay, &DaemonOptions::default()).await;
    (world, old)
}

#[tokio::test]
async fn items_of_every_kind_are_answered_without_any_feature() {
    let (mut world, old) = old_world().await;
    assert!(world.control.status().await["relay"]["url"].as_str().is_some_and(|url| url.ends_with("/v1/ws")));
    let mut host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    host.request("approval", &Host::approval(1, "Deploy", &json!({"target": "prod"}))).await;
    host.request("clarification", &Host::question(2, "Which branch?", &["main"])).await;
    host.request("elicitation", &Host::secret(3, "Password", "password")).await;
    let update = phone.snapshot(3).await;
    let tap = phone.decide(&update["approvals"][0]["request_id"], "approved").await;
    assert_eq!(phone.ack(&tap).await["outcome"], "accepted");
    assert_eq!(host.answered().await["decision"], "approved");
    let question = &update["clarifications"][0]["request_id"];
    phone.send("clarification_response", json!({"request_id": question, "answer": "main"})).await;
    assert_eq!(host.answered().await["answer"], "main");
    let prompt = &update["elicitations"][0]["request_id"];
    let secret = json!({"request_id": prompt, "action": "accept", "content": {"password": "hunter2"}});
    phone.send("elicitation_response", secret).await;
    assert_eq!(host.answered().await["content"]["password"], "hunter2");
    phone.snapshot(0).await;
    assert_eq!(old.offences(), Vec::<String>::new(), "nobody used what was not offered");
}

#[tokio::test]
async fn the_terminal_phone_pairs_asks_and_answers_too() {
    let (mut world, old) = old_world().await;
    let mut host = world.host("skald").await;
    let phone = world.phone("Pocket").await;
    host.request("approval", &Host::approval(1, "Deploy", &json!({"target": "prod"}))).await;
    assert_eq!(world.control.devices().await[0].get("push"), None, "an old relay does not say");
    let id = phone.inbox().await["items"][0]["request_id"].clone();
    let approving = phone.start(&["approve", id.as_str().expect("an id")]);
    assert_eq!(host.answered().await["decision"], "approved");
    approving.finished().await.ok();
    assert_eq!(old.offences(), Vec::<String>::new());
}

#[tokio::test]
async fn a_burst_stays_within_the_rate_at_which_old_relays_close() {
    let (mut world, old) = old_world().await;
    let host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    for n in 1..=150 {
        host.request("approval", &Host::approval(n, "Deploy", &json!({"n": n}))).await;
    }
    let update = phone.snapshot(150).await;
    assert_eq!(update["approvals"].as_array().map(Vec::len), Some(150), "coalesced, and in time");
    assert_eq!(world.control.status().await["relay"]["connected"], true);
    assert_eq!(old.offences(), Vec::<String>::new());
}

#[tokio::test]
async fn a_phone_that_was_away_finds_what_was_stored() {
    let (mut world, _old) = old_world().await;
    let host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    phone.disconnect().await;
    world.control.until("the phone to be offline", "status", |status| status["devices"]["online"] == 0).await;
    host.request("clarification", &Host::question(1, "Which branch?", &[])).await;
    host.call("notification.send", json!({"title": "Skald", "body": "Stored"})).await;
    phone.connect().await;
    let payloads = phone.payloads_until("notification", |payload| payload["body"] == "Stored").await;
    let stored = |payload: &Value| payload["clarifications"][0]["question"] == "Which branch?";
    assert!(payloads.iter().any(stored), "{payloads:?}");
}
