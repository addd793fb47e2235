//! The main job with the real phone: each kind of item is shown in full, answered by a command, and reaches the host.

use serde_json::{Value, json};
use skald_tests::{DaemonOptions, Host, Phone, Stream, World};

/// The id of the only pending item, as the phone lists it.
async fn only_item(phone: &Phone) -> Value {
    let inbox = phone.inbox().await;
    assert_eq!(inbox["badge"], 1, "{inbox}");
    inbox["items"][0].clone()
}

fn id(item: &Value) -> String {
    item["request_id"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn an_approval_is_shown_in_full_and_approved() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let phone = world.phone("Pocket").await;
    let command = "tar czf /backup/www.tgz /srv/www && rsync -a /backup/ vault:/backup/";
    let item = json!({
        "request_id": "call-9", "tool_name": "execute_cmd", "summary": "Back up the site", "agent_label": "Night shift",
        "detail": "Nightly backup\nbefore the migration", "arguments": {"command": command, "timeout": 90},
    });
    host.request("approval", &item).await;
    let shown = only_item(&phone).await;
    for field in ["tool_name", "summary", "agent_label", "detail", "arguments"] {
        assert_eq!(shown[field], item[field], "{field}");
    }
    let id = id(&shown);
    assert!(id.starts_with("call-9.") && id.len() == "call-9.".len() + 16, "{id}");

    let approving = phone.start(&["approve", &id, "--bypass", "900"]);
    let answer = host.answered().await;
    let approved = approving.finished().await.ok();
    assert!(approved.out.contains(command) && approved.out.contains("before the migration"), "{approved}");
    assert!(approved.out.contains("approved; the agent has it"), "{approved}");
    assert_eq!(
        [&answer["kind"], &answer["request_id"], &answer["decision"], &answer["reason"], &answer["bypass_secs"]],
        [&json!("approval"), &json!("call-9"), &json!("approved"), &Value::Null, &json!(900)]
    );
    assert_eq!(answer["device"]["name"], "Pocket");
    assert!(answer["answer_id"].as_str().is_some_and(|id| !id.is_empty()));
    assert_eq!(phone.inbox().await["badge"], 0);
}

#[tokio::test]
async fn a_rejection_carries_its_reason() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let phone = world.phone("Pocket").await;
    host.request("approval", &Host::approval(42, "Send the invoice", &json!({"to": "mario@acme.example"}))).await;
    let id = id(&only_item(&phone).await);
    let rejecting = phone.start(&["reject", &id, "--reason", "not on a Friday – wait until “Monday”"]);
    let answer = host.answered().await;
    rejecting.finished().await.ok();
    assert_eq!(
        [&answer["request_id"], &answer["decision"], &answer["reason"], &answer["bypass_secs"]],
        [&json!(42), &json!("rejected"), &json!("not on a Friday – wait until “Monday”"), &Value::Null]
    );
}

#[tokio::test]
async fn a_question_is_answered_freely_or_by_a_suggestion() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let phone = world.phone("Pocket").await;
    let question = Host::question(1, "Proceed with the €240 payment?", &["Yes, proceed", "No, cancel"]);
    host.request("clarification", &question).await;
    let answering = phone.start(&["answer", &id(&only_item(&phone).await), "Only half of it"]);
    let answer = host.answered().await;
    let told = answering.finished().await.ok();
    assert!(told.out.contains("Proceed with the €240 payment?") && told.out.contains("No, cancel"), "{told}");
    assert_eq!([&answer["kind"], &answer["answer"]], [&json!("clarification"), &json!("Only half of it")]);

    host.request("clarification", &Host::question(2, "Which branch?", &["main", "next"])).await;
    let answering = phone.start(&["answer", &id(&only_item(&phone).await), "--choice", "2"]);
    assert_eq!(host.answered().await["answer"], "next");
    answering.finished().await.ok();
}

#[tokio::test]
async fn a_prompt_gets_its_secret_a_refusal_or_a_confirmation() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let phone = world.phone("Pocket").await;
    let secret = "correct horse \"battery\" staple ✓";
    host.request("elicitation", &Host::secret(1, "Password for deploy@host", "password")).await;
    let mut replying = phone.start(&["reply", &id(&only_item(&phone).await)]);
    replying.write(&format!("{secret}\n"));
    replying.close_stdin();
    let answer = host.answered().await;
    let told = replying.finished().await.ok();
    assert!(told.out.contains("Password for deploy@host"), "{told}");
    assert!(!told.says(secret), "the secret is not shown: {told}");
    assert_eq!([&answer["action"], &answer["content"]], [&json!("accept"), &json!({"password": secret})]);

    for (option, action) in [("--decline", "decline"), ("--cancel", "cancel")] {
        host.request("elicitation", &Host::secret(option, "Passphrase", "passphrase")).await;
        let replying = phone.start(&["reply", &id(&only_item(&phone).await), option]);
        let answer = host.answered().await;
        replying.finished().await.ok();
        assert_eq!([&answer["action"], &answer["content"]], [&json!(action), &Value::Null]);
    }

    let confirmation = json!({
        "request_id": 4, "server_name": "ssh", "message": "Trust the new host key?", "sensitive": false,
        "is_confirmation": true,
    });
    host.request("elicitation", &confirmation).await;
    let replying = phone.start(&["reply", &id(&only_item(&phone).await), "--yes"]);
    let answer = host.answered().await;
    replying.finished().await.ok();
    assert_eq!([&answer["action"], &answer["content"]], [&json!("accept"), &Value::Null]);
}

#[tokio::test]
async fn a_large_approval_is_shown_whole_before_it_is_approved() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let phone = world.phone("Pocket").await;
    let noise = |line| format!("echo {line} {:016x}", u64::from_le_bytes(skald_tests::random()));
    let script = (0..2_000).map(noise).collect::<Vec<String>>().join("\n");
    host.request("approval", &Host::approval(1, "Run the script", &json!({"script": script}))).await;
    let id = id(&only_item(&phone).await);
    let approving = phone.start(&["approve", &id, "--json"]);
    assert_eq!(host.answered().await["decision"], "approved");
    let told = approving.finished().await.ok();
    assert_eq!(told.json()["item"]["arguments"]["script"], script.as_str());
}

#[tokio::test]
async fn numbers_and_unknown_fields_travel_as_they_were_written() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let phone = world.phone("Pocket").await;
    let item = r#"{"request_id":7,"tool_name":"pay","summary":"Pay","arguments":{"amount":1.10,"id":123456789012345678901234567890},"blocks":[{"t":1e2}]}"#;
    let line = format!(
        r#"{{"jsonrpc":"2.0","method":"inbox.requested","params":{{"kind":"approval","item":{item}}},"id":"raw"}}"#
    );
    host.rpc().send_line(&line).await;
    let reply = host.rpc().next().await.expect("an answer");
    assert!(reply.get("error").is_none(), "{reply}");
    let inbox = phone.run(&["inbox", "--json"]).await.ok();
    for text in [r#""amount":1.10"#, r#""id":123456789012345678901234567890"#, r#"{"blocks":[{"t":1e2}]}"#] {
        assert!(inbox.out.contains(text), "{text}: {inbox}");
    }
}

#[tokio::test]
async fn arguments_that_are_no_object_are_wrapped_and_long_summaries_cut() {
    let mut world = World::new().await;
    let host = world.host("skald").await;
    let phone = world.phone("Pocket").await;
    let item = json!({
        "request_id": "x", "tool_name": "t", "summary": format!("👩‍💻{}\u{202e}end", "é".repeat(300)),
        "arguments": ["ls", "-l"],
    });
    host.request("approval", &item).await;
    let shown = only_item(&phone).await;
    assert_eq!(shown["arguments"], json!({"value": ["ls", "-l"]}));
    let summary = shown["summary"].as_str().expect("a text");
    assert!(summary.chars().count() <= 125 && summary.starts_with("👩‍💻"), "{summary}");
    assert!(!summary.contains('\u{202e}'));
}

#[tokio::test]
async fn a_watching_phone_sees_items_come_and_go_and_lends_its_connection() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let phone = world.phone("Pocket").await;
    let watch = phone.start(&["watch", "--json"]);
    watch.wrote(Stream::Out, r#""event":"connected""#).await;
    host.request("approval", &Host::approval(1, "Deploy", &json!({"target": "prod"}))).await;
    let added = watch.wrote_after(Stream::Out, 0, r#""event":"added""#).await;
    assert!(added.contains(r#""target":"prod""#), "{added}");
    host.call("notification.send", json!({"title": "Skald", "body": "Nightly job completed"})).await;
    watch.wrote(Stream::Out, "Nightly job completed").await;

    let approving = phone.start(&["approve", &id(&only_item(&phone).await)]);
    assert_eq!(host.answered().await["decision"], "approved");
    approving.finished().await.ok();
    watch.wrote(Stream::Out, r#""event":"removed""#).await;
    watch.terminate();
    watch.finished().await.ok();
}

#[tokio::test]
async fn the_second_of_two_phones_is_told_that_it_was_too_late() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let ann = world.phone("Ann").await;
    let bob = world.phone("Bob").await;
    host.request("approval", &Host::approval(1, "Deploy", &json!({}))).await;
    let id = id(&only_item(&ann).await);
    let approving = ann.start(&["approve", &id]);
    assert_eq!(host.answered().await["device"]["name"], "Ann");
    approving.finished().await.ok();
    let late = bob.run(&["reject", &id]).await;
    assert_eq!(late.code(), 1, "{late}");
    assert_eq!(bob.inbox().await["badge"], 0);
}

#[tokio::test]
async fn a_person_authorizes_a_phone_after_comparing_its_fingerprint() {
    let mut world = World::with(&DaemonOptions { confirm: true, ..Default::default() }).await;
    let phone = Phone::new("Pocket");
    let qr = world.control.pairing_code().await;
    let mut pairing = phone.start(&["pair", "-", "--name", "Pocket"]);
    pairing.write(&qr);
    pairing.close_stdin();
    let paired = world.control.event("device.paired").await;
    assert_eq!(paired["authorized"], false);
    pairing.wrote(Stream::Out, paired["fingerprint"].as_str().expect("a fingerprint")).await;
    assert!(!pairing.has_ended(), "it waits for the owner");
    world.authorize(paired["pubkey"].as_str().expect("a key")).await;
    pairing.finished().await.ok();
    let named = |devices: &Value| devices[0]["name"] == "Pocket";
    world.control.until("the phone's name", "devices.list", named).await;
}

#[tokio::test]
async fn a_phone_that_logs_out_forgets_and_is_forgotten() {
    let mut world = World::new().await;
    let phone = world.phone("Pocket").await;
    phone.run(&["logout"]).await.ok();
    world.control.until("the device to be gone", "devices.list", |devices| *devices == json!([])).await;
    let inbox = phone.run(&["inbox"]).await;
    assert_eq!(inbox.code(), 2, "{inbox}");
    assert!(inbox.err.contains("not paired"), "{inbox}");
    // And it may pair again.
    let qr = world.control.pairing_code().await;
    phone.pair(&qr).await.ok();
    assert_eq!(phone.inbox().await["badge"], 0);
}

#[tokio::test]
async fn a_revoked_phone_says_so() {
    let mut world = World::new().await;
    let phone = world.phone("Pocket").await;
    let key = world.control.devices().await[0]["pubkey"].clone();
    world.control.call("devices.revoke", json!({"pubkey": key})).await;
    let inbox = phone.run(&["inbox"]).await;
    assert_eq!(inbox.code(), 1, "{inbox}");
    // The same phone pairs again with the same keys: the counters on both sides go on.
    let qr = world.control.pairing_code().await;
    phone.run_with(&["pair", "--again", "--name", "Pocket", "-"], &qr).await.ok();
    let mut host = world.host("skald").await;
    host.request("approval", &Host::approval(1, "Deploy", &json!({}))).await;
    let approving = phone.start(&["approve", &id(&only_item(&phone).await)]);
    assert_eq!(host.answered().await["decision"], "approved");
    approving.finished().await.ok();
}

#[tokio::test]
async fn one_phone_holds_several_pairings() {
    let mut home = World::new().await;
    let mut work = World::new().await;
    let phone = Phone::new("Pocket");
    for (world, profile) in [(&mut home, "home"), (&mut work, "work")] {
        let qr = world.control.pairing_code().await;
        phone.run_with(&["--profile", profile, "pair", "-"], &qr).await.ok();
    }
    let host = work.host("skald").await;
    host.request("approval", &Host::approval(1, "At work", &json!({}))).await;
    let inbox = phone.run(&["--profile", "work", "inbox", "--json"]).await.ok().json();
    assert_eq!(inbox["items"][0]["summary"], "At work");
    let inbox = phone.run(&["--profile", "home", "inbox", "--json"]).await.ok().json();
    assert_eq!(inbox["badge"], 0);
}

#[tokio::test]
async fn an_answer_given_while_the_agent_is_offline_arrives_later() {
    let mut world = World::new().await;
    let host = world.host("skald").await;
    let phone = world.phone("Pocket").await;
    let deploy = Host::approval(1, "Deploy", &json!({"target": "prod"}));
    host.sync(std::slice::from_ref(&deploy), &[], &[]).await;
    let id = id(&only_item(&phone).await);
    drop(host);
    world.daemon.stop().await;
    let approved = phone.run(&["approve", &id]).await.ok();
    assert!(approved.out.contains("offline"), "{approved}");
    world.daemon.start_again().await;
    world.reconnect().await;
    let mut host = Host::connect(&world.daemon.hosts_socket(), "skald").await;
    host.sync(&[deploy], &[], &[]).await;
    assert_eq!(host.answered().await["decision"], "approved");
}
