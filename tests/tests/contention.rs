//! Several at once: phones that answer the same item, hosts that ask at the same time, hosts that come again.

use serde_json::{Value, json};
use skald_tests::{Host, World};

#[tokio::test]
async fn the_first_of_two_phones_wins_and_the_other_learns_who_was_first() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let mut ann = world.raw_phone("Ann").await;
    let mut bob = world.raw_phone("Bob").await;
    host.request("approval", &Host::approval(1, "Deploy", &json!({"target": "prod"}))).await;
    let id = ann.item("approvals").await["request_id"].clone();
    assert_eq!(bob.item("approvals").await["request_id"], id, "both see the same item");

    let first = ann.decide(&id, "approved").await;
    assert_eq!(ann.ack(&first).await["outcome"], "accepted");
    // The host has been called and has not answered yet: the decision stands already.
    let call = host.next_call().await;
    let second = bob.decide(&id, "rejected").await;
    let ack = bob.ack(&second).await;
    assert_eq!((&ack["outcome"], &ack["answered_by"]), (&json!("superseded"), &json!("Ann")));
    let answer = call.answer(true).await;
    assert_eq!((&answer["decision"], &answer["device"]["name"]), (&json!("approved"), &json!("Ann")));
    assert_eq!(bob.inbox().await["badge"], 0, "and the item is gone for both");
    assert_eq!(ann.inbox().await["badge"], 0);

    let late = bob.decide(&id, "rejected").await;
    let ack = bob.ack(&late).await;
    assert_eq!((&ack["outcome"], &ack["answered_by"]), (&json!("superseded"), &json!("Ann")), "later too");
    assert_eq!(bob.snapshot(0).await["badge"], 0, "with a fresh snapshot");
}

#[tokio::test]
async fn of_answers_at_the_same_instant_exactly_one_reaches_the_host() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let mut phones = Vec::new();
    for name in ["One", "Two", "Three", "Four"] {
        phones.push(world.raw_phone(name).await);
    }
    for round in 0..3 {
        host.request("approval", &Host::approval(round, "Deploy", &json!({"round": round}))).await;
        let mut id = Value::Null;
        for phone in &mut phones {
            let fresh = |update: &Value| update["approvals"][0]["arguments"]["round"] == round;
            id = phone.payload_where("inbox_update", fresh).await["approvals"][0]["request_id"].clone();
        }
        let [one, two, three, four] = phones.as_mut_slice() else { panic!("four phones") };
        let taps = tokio::join!(
            one.decide(&id, "approved"),
            two.decide(&id, "rejected"),
            three.decide(&id, "approved"),
            four.decide(&id, "rejected"),
        );
        let answer = host.answered().await;
        assert_eq!(answer["request_id"], round, "no second answer of the round before");
        let mut accepted = Vec::new();
        for (phone, tap) in phones.iter_mut().zip([taps.0, taps.1, taps.2, taps.3]) {
            let ack = phone.ack(&tap).await;
            match ack["outcome"].as_str() {
                Some("accepted") => accepted.push(phone.key().to_hex()),
                Some("superseded") => assert_eq!(ack["answered_by"], answer["device"]["name"]),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(accepted, [answer["device"]["pubkey"].as_str().expect("a key")], "one was told that it counts");
    }
}

#[tokio::test]
async fn two_hosts_ask_at_once_and_each_gets_its_own_answer() {
    let mut world = World::new().await;
    let mut skald = world.host("skald").await;
    let mut backup = world.host("backup").await;
    let mut phone = world.raw_phone("Ann").await;
    // The same id and the same content: only the host differs.
    skald.request("clarification", &Host::question(1, "Go on?", &["Yes", "No"])).await;
    backup.request("clarification", &Host::question(1, "Go on?", &["Yes", "No"])).await;
    let update = phone.snapshot(2).await;
    let label = |label: &str| {
        let questions = update["clarifications"].as_array().expect("a list");
        questions.iter().find(|item| item["agent_label"] == label).expect("each says who asks")["request_id"].clone()
    };
    let (of_skald, of_backup) = (label("skald of the tests"), label("backup of the tests"));
    assert_ne!(of_skald, of_backup);
    phone.send("clarification_response", json!({"request_id": of_backup, "answer": "To backup"})).await;
    assert_eq!(backup.answered().await["answer"], "To backup");
    phone.send("clarification_response", json!({"request_id": of_skald, "answer": "To skald"})).await;
    assert_eq!(skald.answered().await["answer"], "To skald");
    assert_eq!(phone.snapshot(0).await["badge"], 0);
}

#[tokio::test]
async fn a_host_that_comes_again_finds_its_items_as_they_were() {
    let mut world = World::new().await;
    let host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    let (deploy, delete) =
        (Host::approval(1, "Deploy", &json!({})), Host::approval(2, "Delete", &json!({"path": "/srv"})));
    host.sync(&[deploy.clone(), delete.clone()], &[], &[]).await;
    let before = phone.snapshot(2).await["approvals"].clone();
    drop(host);
    world.control.until("the host to be gone", "status", |status| status["hosts"] == json!([])).await;
    assert_eq!(world.control.inbox().await.len(), 2, "its items stay while it is away");

    let mut host = Host::connect(&world.daemon.hosts_socket(), "skald").await;
    host.sync(&[deploy, delete], &[], &[]).await;
    assert_eq!(phone.inbox().await["approvals"], before, "the same ids, the same order, nothing twice");
    phone.decide(&before[1]["request_id"], "approved").await;
    assert_eq!(host.answered().await["request_id"], 2);
    host.sync(&[], &[], &[]).await;
    assert_eq!(phone.snapshot(0).await["badge"], 0, "what a sync leaves out is gone");
}

#[tokio::test]
async fn an_answer_for_a_host_that_is_away_waits_for_it() {
    let mut world = World::new().await;
    let host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    let (kept, dropped) = (Host::approval(1, "Deploy", &json!({})), Host::approval(2, "Delete", &json!({})));
    host.sync(&[kept.clone(), dropped], &[], &[]).await;
    let items = phone.snapshot(2).await["approvals"].clone();
    drop(host);
    world.control.until("the host to be gone", "status", |status| status["hosts"] == json!([])).await;
    for item in items.as_array().expect("a list") {
        let tap = phone.decide(&item["request_id"], "approved").await;
        assert_eq!(phone.ack(&tap).await["outcome"], "accepted");
    }

    let mut host = Host::connect(&world.daemon.hosts_socket(), "skald").await;
    host.sync(&[kept], &[], &[]).await;
    let answer = host.answered().await;
    assert_eq!((&answer["request_id"], &answer["decision"]), (&json!(1), &json!("approved")));
    // The other is no longer pending there: its answer is dropped, so that the next call is for the next item.
    host.request("approval", &Host::approval(3, "Restart", &json!({}))).await;
    let id = phone.payload_where("inbox_update", |update| update["approvals"][0]["summary"] == "Restart").await;
    phone.decide(&id["approvals"][0]["request_id"], "rejected").await;
    assert_eq!(host.answered().await["request_id"], 3);
}

#[tokio::test]
async fn the_items_of_a_host_that_does_not_linger_leave_with_it() {
    let mut world = World::new().await;
    let mut phone = world.raw_phone("Ann").await;
    let hello = json!({"protocol": 1, "name": "ask-1", "version": "1", "linger_secs": 0});
    let (host, greeted) = Host::connect_with(&world.daemon.hosts_socket(), hello).await;
    greeted.expect("greeted");
    host.request("approval", &Host::approval(1, "Deploy", &json!({}))).await;
    phone.snapshot(1).await;
    drop(host);
    assert_eq!(phone.snapshot(0).await["approvals"], json!([]));
}

#[tokio::test]
async fn a_name_belongs_to_the_host_that_lives_and_not_to_one_that_hangs() {
    let mut world = World::new().await;
    let mut first = world.host("skald").await;
    let hello = json!({"protocol": 1, "name": "skald", "version": "2"});
    let (_, refused) = Host::connect_with(&world.daemon.hosts_socket(), hello.clone()).await;
    assert_eq!(refused.expect_err("the name is taken").code, -32002);
    first.sync(&[Host::approval(1, "Deploy", &json!({}))], &[], &[]).await;

    first.rpc().play_deaf();
    let (second, greeted) = Host::connect_with(&world.daemon.hosts_socket(), hello).await;
    greeted.expect("the older one does not answer");
    first.rpc().closed().await;
    second.sync(&[Host::approval(1, "Deploy", &json!({}))], &[], &[]).await;
    world.pending(1).await;
}

#[tokio::test]
async fn what_was_resolved_at_the_computer_in_time_never_rings_on_a_phone() {
    let mut world = World::with(&skald_tests::DaemonOptions { notify_delay_secs: 3600, ..Default::default() }).await;
    let host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    phone.inbox().await;
    host.request("approval", &Host::approval(1, "Deploy", &json!({}))).await;
    host.request("clarification", &Host::question(2, "Which branch?", &[])).await;
    host.resolved("approval", 1).await;
    host.resolved("clarification", 2).await;
    let sent = host.call("notification.send", json!({"title": "Skald", "body": "Nightly job completed"})).await;
    assert_eq!(sent["devices"], 1);
    let payloads = phone.payloads_until("notification", |_| true).await;
    assert_eq!(payloads.len(), 1, "nothing before it: {payloads:?}");

    // A prompt is never answered at the computer: it does not wait.
    host.request("elicitation", &Host::secret(3, "Password for deploy@host", "password")).await;
    assert_eq!(phone.snapshot(1).await["elicitations"][0]["field_name"], "password");
}

#[tokio::test]
async fn a_secret_for_a_host_that_is_away_waits_in_memory() {
    let mut world = World::new().await;
    let host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    let prompt = Host::secret(1, "Password", "password");
    host.sync(&[], &[], std::slice::from_ref(&prompt)).await;
    let id = phone.item("elicitations").await["request_id"].clone();
    drop(host);
    world.control.until("the host to be gone", "status", |status| status["hosts"] == json!([])).await;
    let answer = json!({"request_id": id, "action": "accept", "content": {"password": "hunter2"}});
    let reply = phone.send("elicitation_response", answer).await;
    assert_eq!(phone.ack(&reply).await["outcome"], "accepted");
    assert_eq!(skald_tests::containing(world.daemon.folder(), "hunter2"), Vec::<std::path::PathBuf>::new());
    let mut host = Host::connect(&world.daemon.hosts_socket(), "skald").await;
    host.sync(&[], &[], &[prompt]).await;
    assert_eq!(host.answered().await["content"]["password"], "hunter2");
}

#[tokio::test]
async fn an_item_leaves_when_its_time_is_over_and_an_answer_is_not_delivered() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    let mut short_lived = Host::approval(1, "Deploy", &json!({}));
    short_lived["expires_at"] = (skald_tests::unix_ms() + 3_000).into();
    host.request("approval", &short_lived).await;
    let id = phone.item("approvals").await["request_id"].clone();
    phone.snapshot(0).await;
    let tap = phone.decide(&id, "approved").await;
    let outcome = phone.ack(&tap).await["outcome"].clone();
    assert!(outcome == "expired" || outcome == "superseded", "{outcome}");
    host.request("approval", &Host::approval(2, "Next", &json!({}))).await;
    let id = phone.item("approvals").await["request_id"].clone();
    phone.decide(&id, "rejected").await;
    assert_eq!(host.answered().await["request_id"], 2, "the late answer reached nobody");
}
