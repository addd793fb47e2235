//! Crashes and losses: of the relay, the daemon, its host, its database. No answer is lost, none counts twice, and nobody
//! is revoked by accident.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use skald_tests::{DaemonOptions, Host, Relay, World};

#[tokio::test]
async fn a_daemon_killed_after_it_took_an_answer_delivers_it_with_the_same_answer_id() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    let deploy = Host::approval(1, "Deploy", &json!({"target": "prod"}));
    host.sync(std::slice::from_ref(&deploy), &[], &[]).await;
    let id = phone.item("approvals").await["request_id"].clone();
    let tap = phone.decide(&id, "approved").await;
    let call = host.next_call().await;
    let before = call.params.clone();
    assert_eq!(phone.ack(&tap).await["outcome"], "accepted");

    // The host never says that it has the answer.
    world.crash().await;
    drop((call, host));
    let mut host = Host::connect(&world.daemon.hosts_socket(), "skald").await;
    host.sync(&[deploy], &[], &[]).await;
    let again = host.answered().await;
    assert_eq!(again["answer_id"], before["answer_id"], "by which a host knows the repetition");
    assert_eq!((&again["request_id"], &again["decision"]), (&json!(1), &json!("approved")));
    assert_eq!(again["device"], before["device"]);

    // Taken at last, it is not delivered a third time.
    host.sync(&[Host::approval(2, "Next", &json!({}))], &[], &[]).await;
    let next = phone.payload_where("inbox_update", |update| update["approvals"][0]["summary"] == "Next").await;
    phone.decide(&next["approvals"][0]["request_id"], "rejected").await;
    assert_eq!(host.answered().await["request_id"], 2);
}

#[tokio::test]
async fn an_answer_that_waits_for_an_absent_host_survives_a_crash_and_stays_the_first() {
    let mut world = World::new().await;
    let host = world.host("skald").await;
    let mut ann = world.raw_phone("Ann").await;
    let mut bob = world.raw_phone("Bob").await;
    let question = Host::question("q", "Which branch?", &["main", "next"]);
    host.sync(&[], std::slice::from_ref(&question), &[]).await;
    let id = ann.item("clarifications").await["request_id"].clone();
    drop(host);
    world.control.until("the host to be gone", "status", |status| status["hosts"] == json!([])).await;
    let first = ann.send("clarification_response", json!({"request_id": id, "answer": "main"})).await;
    assert_eq!(ann.ack(&first).await["outcome"], "accepted");

    world.crash().await;
    let second = bob.send("clarification_response", json!({"request_id": id, "answer": "next"})).await;
    let ack = bob.ack(&second).await;
    assert_eq!((&ack["outcome"], &ack["answered_by"]), (&json!("superseded"), &json!("Ann")));
    let mut host = Host::connect(&world.daemon.hosts_socket(), "skald").await;
    host.sync(&[], &[question], &[]).await;
    assert_eq!(host.answered().await["answer"], "main");
}

#[tokio::test]
async fn answers_given_while_the_daemon_is_down_reach_the_host_when_it_is_back() {
    let mut world = World::new().await;
    let host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    let items = [Host::approval(1, "Deploy", &json!({})), Host::approval(2, "Delete", &json!({}))];
    host.sync(&items, &[], &[]).await;
    let shown = phone.snapshot(2).await["approvals"].clone();
    world.daemon.kill().await;
    drop(host);
    phone.decide(&shown[0]["request_id"], "approved").await;
    phone.decide(&shown[1]["request_id"], "rejected").await;
    phone.disconnect().await;

    world.daemon.start_again().await;
    world.reconnect().await;
    let mut host = Host::connect(&world.daemon.hosts_socket(), "skald").await;
    host.sync(&items, &[], &[]).await;
    let mut answers = [host.answered().await, host.answered().await];
    answers.sort_by_key(|answer| answer["request_id"].as_u64());
    let decisions = answers.map(|answer| (answer["request_id"].clone(), answer["decision"].clone()));
    assert_eq!(decisions, [(json!(1), json!("approved")), (json!(2), json!("rejected"))]);
}

#[tokio::test]
async fn a_secret_lost_with_a_crash_is_asked_for_again() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    let prompt = Host::secret(1, "Password for deploy@host", "password");
    host.sync(&[], &[], std::slice::from_ref(&prompt)).await;
    let id = phone.item("elicitations").await["request_id"].clone();
    let answer = json!({"request_id": id, "action": "accept", "content": {"password": "hunter2"}});
    phone.send("elicitation_response", answer.clone()).await;
    let call = host.next_call().await;
    assert_eq!(call.params["content"]["password"], "hunter2");
    world.crash().await;
    drop((call, host));
    let mut host = Host::connect(&world.daemon.hosts_socket(), "skald").await;
    host.sync(&[], &[], &[prompt]).await;
    assert_eq!(phone.inbox().await["elicitations"][0]["request_id"], id, "still pending");
    phone.send("elicitation_response", answer).await;
    assert_eq!(host.answered().await["content"]["password"], "hunter2");
}

#[tokio::test]
async fn an_item_that_was_notified_does_not_ring_again_after_a_restart() {
    let mut world = World::new().await;
    let host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    let deploy = Host::approval(1, "Deploy", &json!({}));
    host.sync(std::slice::from_ref(&deploy), &[], &[]).await;
    phone.snapshot(1).await;
    phone.inbox().await;
    world.crash().await;
    drop(host);
    let host = Host::connect(&world.daemon.hosts_socket(), "skald").await;
    host.sync(&[deploy], &[], &[]).await;
    host.call("notification.send", json!({"title": "Skald", "body": "Back"})).await;
    let payloads = phone.payloads_until("notification", |_| true).await;
    assert_eq!(payloads.len(), 1, "no stored snapshot came again: {payloads:?}");
}

#[tokio::test]
async fn a_relay_that_restarts_is_found_again_and_what_it_had_taken_arrives() {
    if !Relay::controllable() {
        return;
    }
    let relay = Relay::own(&[]).await;
    let mut world = World::on(Arc::new(relay), &DaemonOptions::default()).await;
    let mut host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    phone.disconnect().await;
    host.request("approval", &Host::approval(1, "Deploy", &json!({}))).await;
    let accepted = |status: &Value| status["devices"]["online"] == 0;
    world.control.until("the phone to be offline", "status", accepted).await;
    // The relay confirms a presence list after it has taken the snapshot before it: what it took is on its disk.
    host.call("notification.send", json!({"title": "Skald", "body": "Stored"})).await;
    let mut twin = world.paired_raw_phone().await;
    twin.connect().await;

    for power_cut in [true, false] {
        let relay = Arc::get_mut(&mut world.relay).expect("nobody else uses it");
        if power_cut {
            relay.kill().await;
        } else {
            relay.stop().await;
        }
        world.control.event("relay.disconnected").await;
        let relay = Arc::get_mut(&mut world.relay).expect("nobody else uses it");
        relay.start_again().await;
        world.control.event("relay.connected").await;
    }
    phone.connect().await;
    let id = phone.item("approvals").await["request_id"].clone();
    phone.payload_where("notification", |payload| payload["body"] == "Stored").await;
    phone.decide(&id, "approved").await;
    assert_eq!(host.answered().await["decision"], "approved");
}

/// Forgets the database as a restored backup or a slip of the hand would.
fn remove_database(state: &Path) {
    let mut found = false;
    for name in ["agentd.db", "agentd.db-wal", "agentd.db-shm"] {
        found |= std::fs::remove_file(state.join(name)).is_ok();
    }
    assert!(found, "there was a database in {}", state.display());
}

#[tokio::test]
async fn a_daemon_without_its_database_keeps_its_devices_by_the_backup_beside_it() {
    let mut world = World::new().await;
    let mut phone = world.raw_phone("Ann").await;
    world.daemon.stop().await;
    remove_database(&world.daemon.state());
    world.daemon.start_again().await;
    world.reconnect().await;
    let status = world.control.status().await;
    assert_eq!(status["device_table"], "loaded_from_backup", "{status}");
    assert_eq!(status["devices"]["authorized"], 1);

    // The phone's connection has not been closed, and the counters are not reused: it reads what comes.
    let mut host = world.host("skald").await;
    host.request("approval", &Host::approval(1, "Deploy", &json!({}))).await;
    let id = phone.item("approvals").await["request_id"].clone();
    phone.decide(&id, "approved").await;
    assert_eq!(host.answered().await["decision"], "approved");
}

#[tokio::test]
async fn a_daemon_that_lost_all_it_knew_of_its_devices_revokes_nobody_until_its_owner_says_so() {
    let mut world = World::new().await;
    let mut phone = world.raw_phone("Ann").await;
    world.daemon.stop().await;
    remove_database(&world.daemon.state());
    std::fs::remove_file(world.daemon.state().join("devices.json")).expect("there was a backup");
    world.daemon.start_again().await;
    world.reconnect().await;
    let status = world.control.status().await;
    assert_eq!(status["device_table"], "lost", "{status}");
    assert!(status["notices"].as_array().is_some_and(|notices| !notices.is_empty()), "it says so in words: {status}");
    // The relay still lets the phone in: nothing was said about devices.
    phone.disconnect().await;
    phone.connect().await;
    let refused = world.control.try_call("devices.restore", json!({})).await.expect_err("there is no backup");
    assert!(refused.message.contains("backup"), "{refused:?}");

    world.control.call("devices.clear", json!({})).await;
    phone.disconnected().await;
    let status = world.control.status().await;
    assert_eq!(status["device_table"], "normal", "{status}");
}

#[tokio::test]
async fn a_damaged_database_is_set_aside_and_kept() {
    let mut world = World::new().await;
    let mut phone = world.raw_phone("Ann").await;
    world.daemon.stop().await;
    let state = world.daemon.state();
    remove_database(&state);
    std::fs::write(
        state.join("agentd.db"),
        b"This is no database, it is a text of more than a hundred bytes. ".repeat(64),
    )
    .expect("written");
    world.daemon.start_again().await;
    world.reconnect().await;
    assert_eq!(world.control.status().await["devices"]["authorized"], 1, "the devices come from the backup");
    assert_eq!(skald_tests::containing(&state, "This is no database").len(), 1, "a copy is kept");
    let mut host = world.host("skald").await;
    host.request("approval", &Host::approval(1, "Deploy", &json!({}))).await;
    let id = phone.item("approvals").await["request_id"].clone();
    phone.decide(&id, "approved").await;
    assert_eq!(host.answered().await["decision"], "approved");
}

#[tokio::test]
async fn a_daemon_with_an_older_database_revokes_nobody_and_is_still_heard() {
    let mut world = World::new().await;
    let mut ann = world.raw_phone("Ann").await;
    world.daemon.stop().await;
    let state = world.daemon.state();
    let old = std::fs::read(state.join("agentd.db")).expect("a database at rest");
    world.daemon.start_again().await;
    world.reconnect().await;
    let mut bob = world.raw_phone("Bob").await;
    let host = world.host("skald").await;
    host.call("notification.send", json!({"title": "Skald", "body": "Before"})).await;
    for phone in [&mut ann, &mut bob] {
        phone.payload_where("notification", |payload| payload["body"] == "Before").await;
    }
    drop(host);

    world.daemon.stop().await;
    remove_database(&state);
    std::fs::write(state.join("agentd.db"), old).expect("written");
    world.daemon.start_again().await;
    world.reconnect().await;
    let mut host = world.host("skald").await;
    host.request("approval", &Host::approval(1, "Deploy", &json!({}))).await;
    // The relay lets both in, and no counter is used again: they read what comes.
    for phone in [&mut ann, &mut bob] {
        phone.disconnect().await;
        phone.connect().await;
    }
    ann.item("approvals").await;
    assert_eq!(world.control.status().await["devices"]["authorized"], 2, "the backup knows of the newer one");
    let id = bob.inbox().await["approvals"][0]["request_id"].clone();
    bob.decide(&id, "approved").await;
    assert_eq!(host.answered().await["decision"], "approved");
}

#[tokio::test]
async fn what_is_to_be_told_while_the_relay_is_away_is_told_when_it_is_back() {
    if !Relay::controllable() {
        return;
    }
    let mut world = World::on(Arc::new(Relay::own(&[]).await), &DaemonOptions::default()).await;
    let host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    world.relay.kill().await;
    world.control.event("relay.disconnected").await;
    let sent = host.call("notification.send", json!({"title": "Skald", "body": "Meanwhile"})).await;
    assert_eq!((&sent["devices"], &sent["queued"]), (&json!(1), &json!(1)));
    host.request("clarification", &Host::question(1, "Which branch?", &[])).await;
    Arc::get_mut(&mut world.relay).expect("nobody else uses it").start_again().await;
    phone.connect().await;
    phone.payload_where("notification", |payload| payload["body"] == "Meanwhile").await;
    assert_eq!(phone.inbox().await["clarifications"][0]["question"], "Which branch?");
}
