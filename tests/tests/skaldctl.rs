//! The owner's command line, and any script that asks a person with it.

use serde_json::{Value, json};
use skald_tests::{DaemonOptions, Phone, Process, RawPhone, Stream, World};

/// Starts `skaldctl ask …` and waits until the phone has the item; gives its id there.
async fn ask(world: &World, phone: &mut RawPhone, list: &str, arguments: &[&str]) -> (Process, Value) {
    let asking = world.skaldctl().start(&[&["ask"], arguments].concat());
    let item = phone.item(list).await;
    (asking, item)
}

#[tokio::test]
async fn ask_approval_ends_with_0_if_approved_and_1_if_rejected() {
    let mut world = World::new().await;
    let mut phone = world.raw_phone("Ann").await;
    let question = ["approval", "--tool", "deploy", "--summary", "Deploy to production?", "--detail", "Release 1.4"];
    let arguments = ["--", "target=prod", "replicas:=3", "ratio:=1.10", "note=a=b"];
    let (asking, item) = ask(&world, &mut phone, "approvals", &[&question[..], &arguments[..]].concat()).await;
    assert_eq!(
        [&item["tool_name"], &item["summary"], &item["detail"]],
        ["deploy", "Deploy to production?", "Release 1.4"]
    );
    let arguments = &item["arguments"];
    assert_eq!(
        [&arguments["target"], &arguments["replicas"], &arguments["note"]],
        [&json!("prod"), &json!(3), &json!("a=b")]
    );
    let hosts = world.control.status().await["hosts"].clone();
    let name = hosts[0]["name"].as_str().expect("the asking host");
    assert!(name.strip_prefix("ask-").is_some_and(|hex| hex.len() == 16), "{name}");
    phone.decide(&item["request_id"], "approved").await;
    let finished = asking.finished().await;
    assert_eq!((finished.code(), finished.out.trim()), (0, "approved"), "{finished}");
    phone.snapshot(0).await;

    let (asking, item) = ask(&world, &mut phone, "approvals", &question).await;
    let no = json!({"request_id": item["request_id"], "decision": "rejected", "reason": "Not on a Friday"});
    phone.send("approval_response", no).await;
    let finished = asking.finished().await;
    assert_eq!(finished.code(), 1, "{finished}");
    assert!(finished.out.contains("rejected") && finished.out.contains("Not on a Friday"), "{finished}");
}

#[tokio::test]
async fn ask_question_prints_the_answer_and_nothing_else() {
    let mut world = World::new().await;
    let mut phone = world.raw_phone("Ann").await;
    let question = ["question", "Which branch?", "--context", "Release 1.4", "--suggest", "main", "--suggest", "next"];
    let (asking, item) = ask(&world, &mut phone, "clarifications", &question).await;
    assert_eq!([&item["question"], &item["context"]], ["Which branch?", "Release 1.4"]);
    assert_eq!(item["suggested_answers"], json!(["main", "next"]));
    phone.send("clarification_response", json!({"request_id": item["request_id"], "answer": "next, maybe"})).await;
    let finished = asking.finished().await;
    assert_eq!((finished.code(), finished.out.as_str()), (0, "next, maybe\n"), "{finished}");
}

#[tokio::test]
async fn ask_secret_prints_the_value_or_ends_with_1_if_declined() {
    let mut world = World::new().await;
    let mut phone = world.raw_phone("Ann").await;
    let prompt = ["secret", "Password of deploy@host", "--server", "ssh", "--field", "password"];
    let (asking, item) = ask(&world, &mut phone, "elicitations", &prompt).await;
    assert_eq!(
        [&item["message"], &item["server_name"], &item["field_name"]],
        ["Password of deploy@host", "ssh", "password"]
    );
    assert_eq!(item["sensitive"], true);
    let answer = json!({"request_id": item["request_id"], "action": "accept", "content": {"password": "hunter 2"}});
    phone.send("elicitation_response", answer).await;
    let finished = asking.finished().await;
    assert_eq!((finished.code(), finished.out.as_str()), (0, "hunter 2\n"), "{finished}");
    phone.snapshot(0).await;

    for action in ["decline", "cancel"] {
        let (asking, item) = ask(&world, &mut phone, "elicitations", &prompt).await;
        phone.send("elicitation_response", json!({"request_id": item["request_id"], "action": action})).await;
        let finished = asking.finished().await;
        assert_eq!(finished.code(), 1, "{action}: {finished}");
        assert!(!finished.says("hunter"), "{finished}");
        phone.snapshot(0).await;
    }
}

#[tokio::test]
async fn ask_ends_with_3_when_nobody_answers_in_time_and_takes_the_question_back() {
    let mut world = World::new().await;
    let mut phone = world.raw_phone("Ann").await;
    let (asking, _) = ask(&world, &mut phone, "clarifications", &["question", "Anyone?", "--timeout", "2"]).await;
    let finished = asking.finished().await;
    assert_eq!((finished.code(), finished.out.as_str()), (3, ""), "{finished}");
    phone.snapshot(0).await;
    world.pending(0).await;
}

#[tokio::test]
async fn ask_that_is_killed_takes_the_question_back_too() {
    let mut world = World::new().await;
    let mut phone = world.raw_phone("Ann").await;
    let (asking, _) = ask(&world, &mut phone, "clarifications", &["question", "Anyone?"]).await;
    asking.kill();
    phone.snapshot(0).await;
    let (asking, _) = ask(&world, &mut phone, "clarifications", &["question", "Anyone else?"]).await;
    asking.terminate();
    phone.snapshot(0).await;
    world.pending(0).await;
}

#[tokio::test]
async fn ask_ends_with_2_in_trouble() {
    let mut world = World::new().await;
    let finished = world.skaldctl().run(&["ask", "approval", "--tool", "t", "--summary", "s", "--", "no equals"]).await;
    assert_eq!(finished.code(), 2, "{finished}");
    let mut phone = world.raw_phone("Ann").await;
    let (asking, _) = ask(&world, &mut phone, "clarifications", &["question", "Anyone?"]).await;
    world.daemon.kill().await;
    let finished = asking.finished().await;
    assert_eq!(finished.code(), 2, "the daemon is gone: {finished}");
    assert!(!finished.err.is_empty());
}

#[tokio::test]
async fn ask_as_json_is_one_object() {
    let mut world = World::new().await;
    let mut phone = world.raw_phone("Ann").await;
    let question = ["approval", "--tool", "deploy", "--summary", "Deploy?", "--json"];
    let (asking, item) = ask(&world, &mut phone, "approvals", &question).await;
    phone.decide(&item["request_id"], "approved").await;
    let finished = asking.finished().await.ok();
    let answer = finished.json();
    assert_eq!(answer["decision"], "approved", "{answer}");
}

#[tokio::test]
async fn pair_shows_a_code_waits_for_the_device_and_authorizes_it() {
    let mut world = World::with(&DaemonOptions { confirm: true, ..Default::default() }).await;
    let phone = Phone::new("Pocket");
    let pairing = world.skaldctl().start(&["pair", "--json", "--yes"]);
    pairing.wrote(Stream::Out, "\n").await;
    let code = pairing.text(Stream::Out).lines().next().expect("a line").to_owned();
    let paired = phone.pair(&code).await.ok();
    let finished = pairing.finished().await.ok();
    let fingerprint = world.control.devices().await[0]["fingerprint"].as_str().expect("one").to_owned();
    assert!(finished.out.contains(&fingerprint) && paired.out.contains(&fingerprint), "{finished}\n{paired}");
    world.authorized(1).await;
}

#[tokio::test]
async fn pair_asks_before_it_authorizes() {
    for (answer, code, devices) in [("y\n", 0, 1), ("n\n", 1, 0)] {
        let mut world = World::with(&DaemonOptions { confirm: true, ..Default::default() }).await;
        let mut pairing = world.skaldctl().start(&["pair"]);
        let opened = world.control.event("pairing.changed").await;
        let qr = world.control.qr(&opened["code"]).await;
        let mut phone = RawPhone::pair(&qr).await;
        let paired = world.control.event("device.paired").await;
        let fingerprint = paired["fingerprint"].as_str().expect("one");
        let shown = async {
            tokio::select! {
                () = pairing.wrote(Stream::Out, fingerprint) => {}
                () = pairing.wrote(Stream::Err, fingerprint) => {}
            }
        };
        shown.await;
        assert_eq!(world.control.status().await["devices"]["authorized"], 0, "not before the answer");
        pairing.write(answer);
        let finished = pairing.finished().await;
        assert_eq!(finished.code(), code, "{finished}");
        world.authorized(devices).await;
        if devices == 1 {
            phone.connect().await;
        } else {
            phone.refused().await;
        }
    }
}

#[tokio::test]
async fn a_code_on_the_command_line_can_be_piped_into_the_phone() {
    let mut world = World::with(&DaemonOptions { confirm: true, ..Default::default() }).await;
    let mut pairing = world.skaldctl().start(&["pair", "--json", "--yes"]);
    pairing.close_stdin();
    pairing.wrote(Stream::Out, "\n").await;
    let phone = Phone::new("Pocket");
    let mut paired = phone.start(&["pair", "-"]);
    // As a pipe would be: open as long as skaldctl runs.
    paired.write(pairing.text(Stream::Out).split_inclusive('\n').next().expect("a line"));
    paired.finished().await.ok();
    pairing.finished().await.ok();
    world.authorized(1).await;
}

#[tokio::test]
async fn devices_are_listed_authorized_and_revoked() {
    let mut world = World::with(&DaemonOptions { confirm: true, ..Default::default() }).await;
    let mut phone = world.paired_raw_phone().await;
    let key = phone.key().to_hex();
    let skaldctl = world.skaldctl();
    let listed = skaldctl.run(&["devices", "--json"]).await.ok().json();
    assert_eq!((&listed[0]["pubkey"], &listed[0]["state"]), (&json!(key), &json!("pending")), "{listed}");
    let shown = skaldctl.run(&["devices"]).await.ok();
    assert!(shown.out.contains(listed[0]["fingerprint"].as_str().expect("one")), "{shown}");
    skaldctl.run(&["authorize", &key[..8]]).await.ok();
    phone.connect().await;
    skaldctl.run(&["revoke", &key[..8]]).await.ok();
    phone.disconnected().await;
    assert_eq!(skaldctl.run(&["devices", "--json"]).await.ok().json(), json!([]));
}

#[tokio::test]
async fn the_inbox_is_shown_and_answered_from_the_command_line() {
    let mut world = World::new().await;
    let mut host = world.host("skald").await;
    let mut phone = world.raw_phone("Ann").await;
    let skaldctl = world.skaldctl();
    host.request("approval", &skald_tests::Host::approval("call-1", "Deploy", &json!({"target": "prod"}))).await;
    let inbox = skaldctl.run(&["inbox"]).await.ok();
    assert!(inbox.out.contains("call-1.") && inbox.out.contains("prod"), "{inbox}");
    let answering = skaldctl.start(&["answer", "call-1", "reject", "--reason", "Later"]);
    let answer = host.answered().await;
    answering.finished().await.ok();
    assert_eq!([&answer["decision"], &answer["reason"], &answer["device"]["name"]], ["rejected", "Later", "skaldctl"]);
    phone.snapshot(0).await;
    assert_eq!(skaldctl.run(&["inbox", "--json"]).await.ok().json(), json!([]));

    host.request("elicitation", &skald_tests::Host::secret(2, "Password", "password")).await;
    let mut answering = skaldctl.start(&["answer", "2", "value"]);
    answering.write("hunter2\n");
    answering.close_stdin();
    assert_eq!(host.answered().await["content"]["password"], "hunter2");
    assert!(!answering.finished().await.ok().says("hunter2"));
}

#[tokio::test]
async fn status_notify_and_settings_work_from_the_command_line() {
    let mut world = World::new().await;
    let mut phone = world.raw_phone("Ann").await;
    let skaldctl = world.skaldctl();
    let status = skaldctl.run(&["status", "--json"]).await.ok().json();
    assert_eq!(
        (&status["relay"]["connected"], &status["devices"]["authorized"]),
        (&json!(true), &json!(1)),
        "{status}"
    );
    let shown = skaldctl.run(&["status"]).await.ok();
    assert!(shown.out.contains("connected"), "{shown}");
    skaldctl.run(&["notify", "Backup", "Finished in 12 minutes."]).await.ok();
    assert_eq!(phone.payload("notification").await["body"], "Finished in 12 minutes.");
    skaldctl.run(&["config", "set", "pairing_ttl", "60"]).await.ok();
    let config = skaldctl.run(&["config", "get", "--json"]).await.ok().json();
    assert_eq!(config["pairing_ttl"], 60, "{config}");
    let wrong = skaldctl.run(&["config", "set", "pairing_ttl", "601"]).await;
    assert_eq!(wrong.code(), 2, "{wrong}");
    assert!(wrong.err.contains("600"), "{wrong}");
}
