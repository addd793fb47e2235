//! From a phone, through the disk, to the host: once, and never to anything else than what was shown.

use super::*;

fn acks(sent: &[Sent], n: u8) -> Vec<(String, Value)> {
    let acks = sent.iter().filter(|sent| sent.to == key(n) && sent.json["kind"] == "ack");
    acks.map(|ack| (ack.json["outcome"].as_str().unwrap().to_owned(), ack.json["answered_by"].clone())).collect()
}

/// Text that neither compresses nor fits a push.
fn noise() -> String {
    let numbers: Vec<String> = (0..1_200_u32).map(|n| format!("{:08x}", n.wrapping_mul(2_654_435_761))).collect();
    numbers.concat()
}

#[test]
fn an_approval_reaches_the_host_with_who_gave_it_and_is_done_when_the_host_says_so() {
    let mut world = World::new();
    world.our_phone(1);
    let mut skald = world.host("skald");
    let id = world.shown_approval(&skald, 7);
    world.phone_says(
        1,
        "approval_response",
        &format!(r#""request_id":"{id}","decision":"approved","reason":"ok","bypass_secs":900"#),
    );
    let (call, params) = skald.answer();
    let json = serde_json::to_value(&params).unwrap();
    assert_eq!(json["kind"], "approval");
    assert_eq!(json["request_id"], 7, "an integer, as the host gave it");
    assert_eq!(
        (&json["decision"], &json["reason"], &json["bypass_secs"]),
        (&"approved".into(), &"ok".into(), &900.into())
    );
    assert_eq!((&json["device"]["pubkey"], &json["device"]["name"]), (&key(1).to_hex().into(), &"Phone 1".into()));
    assert!(world.inbox().is_empty());
    assert_eq!(acks(&world.accept_all(), 1), [("accepted".into(), Value::Null)]);
    assert_eq!(world.store.load().unwrap().answers.len(), 1);
    world.done(&skald, call, CallOutcome::Resolved(true));
    let durable = world.store.load().unwrap();
    assert_eq!((durable.answers.len(), durable.items.len(), durable.decided.len()), (0, 0, 1));
    assert!(
        world.events.iter().any(|event| matches!(event, Event::InboxAnswered { device, .. } if device == "Phone 1"))
    );
}

#[test]
fn the_first_of_two_phones_wins_and_the_other_learns_who_was_first() {
    let mut world = World::new();
    world.our_phone(1);
    world.our_phone(2);
    let mut skald = world.host("skald");
    let id = world.shown_approval(&skald, 1);
    world.approve(1, &id);
    world.accept_all();
    world.phone_says(2, "approval_response", &format!(r#""request_id":"{id}","decision":"rejected""#));
    let (call, params) = skald.answer();
    assert_eq!(params.device.pubkey, key(1));
    let sent = world.accept_all();
    assert_eq!(acks(&sent, 2), [("superseded".into(), "Phone 1".into())]);
    let fresh = sent.iter().find(|sent| sent.to == key(2) && sent.is_snapshot() && sent.is_live()).unwrap();
    assert!(fresh.ids().is_empty());
    world.done(&skald, call, CallOutcome::Resolved(true));
    world.phone_says(2, "approval_response", &format!(r#""request_id":"{id}","decision":"rejected""#));
    assert_eq!(acks(&world.accept_all(), 2), [("superseded".into(), "Phone 1".into())], "also when it is long done");
    assert!(skald.calls().is_empty());
}

#[test]
fn a_deployed_phone_gets_a_snapshot_and_never_an_ack() {
    let mut world = World::new();
    world.phone_on(1, Platform::Ios);
    let skald = world.host("skald");
    let id = world.shown_approval(&skald, 1);
    world.approve(1, &id);
    world.approve(1, "unknown.0");
    let sent = world.accept_all();
    assert!(sent.iter().all(Sent::is_snapshot) && !sent.is_empty());
}

#[test]
fn an_old_tap_does_not_approve_a_new_call_under_the_same_id() {
    let mut world = World::new();
    world.our_phone(1);
    let mut skald = world.host("skald");
    let old = world.shown_approval(&skald, 1);
    world.request(&skald, Kind::Approval, r#"{"request_id":1,"tool_name":"t","summary":"worse"}"#).unwrap();
    world.approve(1, &old);
    assert!(skald.calls().is_empty());
    assert_eq!(world.inbox().len(), 1);
    assert_eq!(acks(&world.accept_all(), 1), [("superseded".into(), Value::Null)]);
}

#[test]
fn an_approval_of_what_was_not_shown_in_full_is_void_and_the_whole_is_sent() {
    let mut world = World::new();
    world.our_phone(1);
    let mut skald = world.host("skald");
    let noise = noise();
    let item = format!(r#"{{"request_id":1,"tool_name":"t","summary":"s","arguments":{{"x":"{noise}"}}}}"#);
    world.request(&skald, Kind::Approval, &item).unwrap();
    let id = world.inbox()[0].id.clone();
    world.approve(1, &id);
    assert!(skald.calls().is_empty(), "never sent at all");
    let sent = world.take_sent();
    assert_eq!(acks(&sent, 1), [("not_shown".into(), Value::Null)]);
    let live = sent.iter().find(|sent| sent.is_live()).unwrap();
    assert_eq!(live.json["approvals"][0]["arguments"]["x"], noise.as_str());
    world.relay(RelayInput::Accepted { token: live.token, queued: Some(false) });
    world.approve(1, &id);
    assert_eq!(skald.answer().1.device.pubkey, key(1));
}

#[test]
fn a_push_without_the_details_does_not_make_them_approvable_but_rejectable() {
    let mut world = World::new();
    world.our_phone(1);
    let mut skald = world.host("skald");
    let noise = noise();
    let item = format!(r#"{{"request_id":1,"tool_name":"t","summary":"s","arguments":{{"x":"{noise}"}}}}"#);
    world.request(&skald, Kind::Approval, &item).unwrap();
    world.advance(20_000);
    let sent = world.take_sent();
    let push = sent.iter().find(|sent| sent.is_snapshot()).unwrap();
    assert!(push.json["approvals"][0].get("arguments").is_none());
    world.relay(RelayInput::Accepted { token: push.token, queued: Some(true) });
    assert!(world.take_sent().is_empty(), "it is away: nothing follows");
    let id = world.inbox()[0].id.clone();
    world.approve(1, &id);
    assert!(skald.calls().is_empty());
    world.phone_says(1, "approval_response", &format!(r#""request_id":"{id}","decision":"rejected","bypass_secs":5"#));
    let json = serde_json::to_value(skald.answer().1).unwrap();
    assert_eq!((&json["decision"], &json["bypass_secs"]), (&"rejected".into(), &Value::Null));
}

#[test]
fn a_device_that_names_an_item_has_seen_the_whole_if_nothing_less_was_ever_sent() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host("skald");
    let id = world.approval(&skald, 1);
    world.advance(20_000);
    assert_eq!(world.take_sent().len(), 1, "sent, and the daemon dies before the relay's word reaches it");
    drop(skald);
    let mut world = world.restart();
    world.connect();
    let mut skald = world.host("skald");
    world.sync(&skald, &[&approval(1)]).unwrap();
    world.approve(1, &id);
    assert_eq!(skald.calls().len(), 1);
}

#[test]
fn a_whole_snapshot_that_may_be_lost_does_not_make_up_for_a_short_one() {
    let mut world = World::new();
    world.phone_on(1, Platform::Ios);
    let mut skald = world.host("skald");
    let item = format!(r#"{{"request_id":1,"tool_name":"t","summary":"s","detail":"{}"}}"#, noise());
    world.request(&skald, Kind::Approval, &item).unwrap();
    world.advance(20_000);
    let push = world.take_sent().remove(0);
    world.relay(RelayInput::Accepted { token: push.token, queued: Some(false) });
    let live = world.take_sent().remove(0);
    assert!(live.is_live());
    let id = world.inbox()[0].id.clone();
    world.approve(1, &id);
    assert!(skald.calls().is_empty(), "only the push is known to have arrived");
    world.relay(RelayInput::Accepted { token: live.token, queued: Some(false) });
    world.approve(1, &id);
    assert_eq!(skald.calls().len(), 1);
}

#[test]
fn what_was_shown_is_remembered_over_a_restart() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host("skald");
    let id = world.shown_approval(&skald, 1);
    drop(skald);
    let mut world = world.restart();
    world.connect();
    let mut skald = world.host("skald");
    world.sync(&skald, &[&approval(1)]).unwrap();
    world.approve(1, &id);
    assert_eq!(skald.answer().1.device.pubkey, key(1));
}

#[test]
fn an_answer_of_yesterday_is_not_acted_on_unless_the_clock_is_wrong() {
    let mut world = World::new();
    world.our_phone(1);
    let mut skald = world.host("skald");
    let id = world.shown_approval(&skald, 1);
    let answer = |world: &mut World, age: u64| {
        let json = world.payload("approval_response", &format!(r#""request_id":"{id}","decision":"approved""#));
        let (from, to) = (world.now.unix.to_string(), (world.now.unix - age).to_string());
        json.replace(&format!("\"ts\":{from}"), &format!("\"ts\":{to}"))
    };
    let json = answer(&mut world, 24 * HOUR + 1);
    world.deliver(1, &json);
    assert!(skald.calls().is_empty());
    assert_eq!(acks(&world.accept_all(), 1), [("expired".into(), Value::Null)]);
    assert_eq!(world.inbox().len(), 1, "the item stays");
    world.now.unix = BUILD_DATE - 1;
    let json = answer(&mut world, 30 * 24 * HOUR);
    world.deliver(1, &json);
    assert_eq!(skald.calls().len(), 1);
}

#[test]
fn an_answer_of_just_under_a_day_counts_and_one_of_over_7_days_is_dropped_unread() {
    let mut world = World::new();
    world.our_phone(1);
    let mut skald = world.host("skald");
    let id = world.shown_approval(&skald, 1);
    let now = world.now.unix;
    let json = |ts: u64, id: &str| {
        format!(
            r#"{{"v":1,"kind":"approval_response","id":"x{ts}","ts":{ts},"request_id":"{id}","decision":"approved"}}"#
        )
    };
    world.deliver(1, &json(now - 7 * 24 * HOUR - 1, &id));
    assert!(world.accept_all().is_empty() && skald.calls().is_empty());
    world.deliver(1, &json(now - 24 * HOUR, &id));
    assert_eq!(skald.calls().len(), 1);
}

#[test]
fn an_answer_survives_the_daemon_being_killed_and_goes_out_with_the_same_answer_id() {
    let mut world = World::new();
    world.phone(1);
    let mut skald = world.host("skald");
    let id = world.shown_approval(&skald, 1);
    world.approve(1, &id);
    let (_, first) = skald.answer();
    drop(skald);
    let mut world = world.restart();
    assert!(world.inbox().is_empty(), "it has its answer");
    world.connect();
    let mut skald = world.host("skald");
    assert!(skald.calls().is_empty(), "not before the host has said that it is still pending");
    world.sync(&skald, &[&approval(1)]).unwrap();
    let (call, again) = skald.answer();
    assert_eq!(again.answer_id, first.answer_id);
    world.sync(&skald, &[&approval(1)]).unwrap();
    assert!(skald.calls().is_empty(), "the call is under way");
    world.done(&skald, call, CallOutcome::Resolved(false));
    assert!(world.store.load().unwrap().answers.is_empty());
}

#[test]
fn an_answer_for_a_host_that_is_away_is_dropped_if_it_comes_back_without_the_item() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host("skald");
    let id = world.shown_approval(&skald, 1);
    world.leave(skald);
    world.approve(1, &id);
    assert_eq!(world.store.load().unwrap().answers.len(), 1);
    let mut skald = world.host("skald");
    world.sync(&skald, &[&approval(2)]).unwrap();
    assert!(skald.calls().is_empty());
    assert!(world.store.load().unwrap().answers.is_empty());
}

#[test]
fn an_answer_waits_a_day_for_its_host_also_when_the_item_no_longer_lingers() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host_lingering("skald", Some(60));
    let id = world.shown_approval(&skald, 1);
    world.leave(skald);
    world.approve(1, &id);
    world.advance(24 * HOUR - 1);
    let mut skald = world.host("skald");
    world.sync(&skald, &[&approval(1)]).unwrap();
    assert_eq!(skald.calls().len(), 1);
}

#[test]
fn an_answer_that_no_host_took_for_a_day_is_dropped_and_the_item_is_pending_again() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host_lingering("skald", Some(10 * 24 * 3600));
    let id = world.shown_approval(&skald, 1);
    world.leave(skald);
    world.approve(1, &id);
    assert!(world.inbox().is_empty());
    world.advance(24 * HOUR + 1);
    assert_eq!(world.inbox()[0].id, id);
    let mut skald = world.host("skald");
    world.sync(&skald, &[&approval(1)]).unwrap();
    assert!(skald.calls().is_empty());
    world.approve(1, &id);
    assert_eq!(skald.calls().len(), 1, "a new answer counts");
}

#[test]
fn a_host_that_answers_with_an_error_is_asked_again_later_with_the_same_answer() {
    let mut world = World::new();
    world.phone(1);
    let mut skald = world.host("skald");
    let id = world.shown_approval(&skald, 1);
    world.approve(1, &id);
    let (call, first) = skald.answer();
    world.done(&skald, call, CallOutcome::Failed(-32603));
    world.advance(4_999);
    assert!(skald.calls().is_empty());
    world.advance(1);
    let (call, again) = skald.answer();
    assert_eq!(again.answer_id, first.answer_id);
    assert!(world.status().last_error.unwrap().contains("-32603"));
    world.done(&skald, call, CallOutcome::Resolved(true));
    assert_eq!((world.status().last_error, world.status().last_error_at), (None, None), "it is over");
    world.advance(HOUR);
    assert!(skald.calls().is_empty());
}

#[test]
fn a_clarification_is_answered_in_free_text() {
    let mut world = World::new();
    world.phone(1);
    let mut skald = world.host("skald");
    world.request(&skald, Kind::Clarification, r#"{"request_id":"c","question":"q"}"#).unwrap();
    let id = world.inbox()[0].id.clone();
    world.phone_says(1, "clarification_response", &format!(r#""request_id":"{id}","answer":"Yes, do""#));
    let json = serde_json::to_value(skald.answer().1).unwrap();
    assert_eq!(
        (&json["kind"], &json["answer"], &json["request_id"]),
        (&"clarification".into(), &"Yes, do".into(), &"c".into())
    );
}

#[test]
fn an_answer_of_another_kind_than_the_item_does_nothing() {
    let mut world = World::new();
    world.our_phone(1);
    let mut skald = world.host("skald");
    let id = world.shown_approval(&skald, 1);
    world.phone_says(1, "clarification_response", &format!(r#""request_id":"{id}","answer":"approved""#));
    assert!(skald.calls().is_empty());
    assert_eq!(world.inbox().len(), 1);
}

#[test]
fn a_bypass_over_a_day_makes_the_answer_malformed() {
    let mut world = World::new();
    world.our_phone(1);
    let mut skald = world.host("skald");
    let id = world.shown_approval(&skald, 1);
    let answer = |secs: u64| format!(r#""request_id":"{id}","decision":"approved","bypass_secs":{secs}"#);
    world.phone_says(1, "approval_response", &answer(86_401));
    assert!(skald.calls().is_empty());
    assert!(
        world.accept_all().iter().any(|sent| sent.is_live() && sent.ids() == [id.clone()]),
        "it is shown what is so"
    );
    world.phone_says(1, "approval_response", &answer(86_400));
    assert_eq!(skald.calls().len(), 1);
}

#[test]
fn the_same_payload_again_under_a_new_counter_is_acted_on_once_and_acked_again() {
    let mut world = World::new();
    world.our_phone(1);
    let mut skald = world.host("skald");
    let id = world.shown_approval(&skald, 1);
    let json = world.payload("approval_response", &format!(r#""request_id":"{id}","decision":"approved""#));
    world.deliver(1, &json);
    world.accept_all();
    world.deliver(1, &json);
    assert_eq!(skald.calls().len(), 1);
    assert_eq!(acks(&world.accept_all(), 1), [("accepted".into(), Value::Null)]);
    let mut world = world.restart();
    world.connect();
    world.deliver(1, &json);
    assert_eq!(acks(&world.accept_all(), 1), [("accepted".into(), Value::Null)], "also after a restart");
}

#[test]
fn a_message_with_an_old_counter_is_ignored() {
    let mut world = World::new();
    world.phone(1);
    let mut skald = world.host("skald");
    let id = world.shown_approval(&skald, 1);
    world.phone_says(1, "inbox_request", "");
    world.counter -= 1;
    world.approve(1, &id);
    assert!(skald.calls().is_empty());
}

#[test]
fn the_value_of_an_elicitation_is_never_on_the_disk_and_is_asked_for_again_after_a_crash() {
    let mut world = World::new();
    world.phone(1);
    let mut ssh = world.host("ssh");
    world.request(&ssh, Kind::Elicitation, ELICITATION).unwrap();
    let id = world.inbox()[0].id.clone();
    let answer = format!(r#""request_id":"{id}","action":"accept","content":{{"password":"canary-hunter2"}}"#);
    world.phone_says(1, "elicitation_response", &answer);
    let (call, params) = ssh.answer();
    let json = serde_json::to_value(&params).unwrap();
    assert_eq!((&json["action"], &json["content"]["password"]), (&"accept".into(), &"canary-hunter2".into()));
    assert!(!format!("{:?} {params:?}", world.hub).contains("canary"), "no debug output shows it");
    for file in std::fs::read_dir(world.folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!bytes.windows(6).any(|window| window == b"canary"));
    }
    drop(ssh);
    let mut world = world.restart();
    assert_eq!(world.inbox()[0].id, id, "pending again");
    world.connect();
    let mut ssh = world.host("ssh");
    let set = InboxSet { elicitations: vec![raw(ELICITATION)], ..InboxSet::default() };
    world.ask(|reply| Command::InboxSync(ssh.session.id, set, reply)).unwrap();
    assert!(ssh.calls().is_empty());
    world.phone_says(1, "elicitation_response", &answer);
    let (again, _) = ssh.answer();
    world.done(&ssh, again, CallOutcome::Resolved(true));
    assert!(world.inbox().is_empty());
    let _ = call;
}

#[test]
fn the_content_of_an_elicitation_must_fit_its_field() {
    let mut world = World::new();
    world.our_phone(1);
    let mut ssh = world.host("ssh");
    world.request(&ssh, Kind::Elicitation, ELICITATION).unwrap();
    let id = world.inbox()[0].id.clone();
    for content in [
        r#","content":null"#,
        "",
        r#","content":{}"#,
        r#","content":{"other":"x"}"#,
        r#","content":{"password":"x","y":1}"#,
        r#","content":"x""#,
    ] {
        world.phone_says(1, "elicitation_response", &format!(r#""request_id":"{id}","action":"accept"{content}"#));
        assert!(ssh.calls().is_empty(), "{content}");
    }
    world.phone_says(
        1,
        "elicitation_response",
        &format!(r#""request_id":"{id}","action":"decline","content":{{"password":"x"}}"#),
    );
    let json = serde_json::to_value(ssh.answer().1).unwrap();
    assert_eq!((&json["action"], &json["content"]), (&"decline".into(), &Value::Null));
}

#[test]
fn a_confirmation_carries_no_content() {
    let mut world = World::new();
    world.phone(1);
    let mut ssh = world.host("ssh");
    let item = r#"{"request_id":1,"server_name":"s","message":"Sure?","field_name":null,"sensitive":false,"is_confirmation":true}"#;
    world.request(&ssh, Kind::Elicitation, item).unwrap();
    let id = world.inbox()[0].id.clone();
    world.phone_says(
        1,
        "elicitation_response",
        &format!(r#""request_id":"{id}","action":"accept","content":{{"x":"y"}}"#),
    );
    let json = serde_json::to_value(ssh.answer().1).unwrap();
    assert_eq!((&json["action"], &json["content"]), (&"accept".into(), &Value::Null));
}

#[test]
fn the_owner_answers_from_the_command_line_as_a_device_would() {
    let mut world = World::new();
    world.our_phone(1);
    let mut skald = world.host("skald");
    let id = world.shown_approval(&skald, 1);
    let approve = || AnswerContent::Approval {
        decision: skald_common::payload::Decision::Approved,
        reason: None,
        bypass_secs: None,
    };
    let wrong = AnswerContent::Clarification { answer: "x".into() };
    assert!(matches!(
        world.ask(|reply| Command::InboxAnswer(id.clone(), wrong, reply)),
        Err(ApiError::InvalidParams(_))
    ));
    let nothing = world.ask(|reply| Command::InboxAnswer("nothing".into(), approve(), reply));
    assert_eq!(nothing, Err(ApiError::NoSuchItem));
    world.ask(|reply| Command::InboxAnswer(id[..6].to_owned(), approve(), reply)).unwrap();
    let (_, params) = skald.answer();
    assert_eq!((params.device.pubkey, params.device.name.as_str()), (names().ed25519, "skaldctl"));
    world.approve(1, &id);
    assert_eq!(acks(&world.accept_all(), 1), [("superseded".into(), "skaldctl".into())]);
}

#[test]
fn an_item_that_its_host_takes_back_takes_its_answer_with_it() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host("skald");
    let id = world.shown_approval(&skald, 1);
    world.leave(skald);
    world.approve(1, &id);
    let mut skald = world.host("skald");
    world.resolved(&skald, Kind::Approval, "1");
    world.sync(&skald, &[&approval(1)]).unwrap();
    assert!(skald.calls().is_empty(), "raised again, it waits for an answer of its own");
    assert_eq!(world.inbox().len(), 1);
}

#[test]
fn an_answer_for_an_expired_item_is_not_delivered() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host("skald");
    let at = world.now.unix + 60_000;
    let item = format!(r#"{{"request_id":1,"question":"q","expires_at":{at}}}"#);
    world.request(&skald, Kind::Clarification, &item).unwrap();
    let id = world.inbox()[0].id.clone();
    world.leave(skald);
    world.phone_says(1, "clarification_response", &format!(r#""request_id":"{id}","answer":"a""#));
    world.advance(60_000);
    let mut skald = world.host("skald");
    let set = InboxSet { clarifications: vec![raw(&item)], ..InboxSet::default() };
    world.ask(|reply| Command::InboxSync(skald.session.id, set, reply)).unwrap();
    assert!(skald.calls().is_empty());
}

#[test]
fn garbage_from_a_device_is_dropped_and_uses_its_counter_up() {
    let mut world = World::new();
    world.phone(1);
    for json in
        ["", "{}", "[1]", r#"{"v":2,"kind":"logout","id":"a","ts":1}"#, r#"{"v":1,"kind":"later","id":"a","ts":1}"#]
    {
        world.deliver(1, json);
    }
    assert!(world.accept_all().is_empty());
    assert!(world.device(1).is_some());
    assert_eq!(world.store.load().unwrap().devices[0].received, world.counter);
}
