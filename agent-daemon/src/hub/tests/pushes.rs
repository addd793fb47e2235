//! What phones are sent, and when.

use super::*;

fn snapshots(sent: &[Sent]) -> Vec<&Sent> {
    sent.iter().filter(|sent| sent.is_snapshot()).collect()
}

#[test]
fn a_new_approval_rings_only_after_the_delay_and_an_elicitation_at_once() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host("skald");
    let id = world.approval(&skald, 1);
    world.advance(19_999);
    assert!(world.take_sent().is_empty());
    world.advance(1);
    let sent = world.accept_all();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].delivery, Delivery::Stored { collapse: Some(b"inbox".to_vec()), quiet: false });
    assert_eq!(sent[0].ids(), [id]);
    world.request(&skald, Kind::Elicitation, ELICITATION).unwrap();
    let sent = world.accept_all();
    assert!(sent.len() == 1 && !sent[0].is_quiet());
    assert_eq!((sent[0].ids().len(), &sent[0].json["badge"]), (2, &2.into()));
    world.advance(HOUR);
    assert!(world.take_sent().is_empty(), "and never again");
}

#[test]
fn what_is_resolved_within_the_delay_troubles_nobody() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host("skald");
    world.approval(&skald, 1);
    world.advance(10_000);
    world.resolved(&skald, Kind::Approval, "1");
    world.advance(HOUR);
    assert!(world.take_sent().is_empty());
}

#[test]
fn what_was_pushed_and_then_resolved_is_cleared_quietly() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host("skald");
    world.shown_approval(&skald, 1);
    world.resolved(&skald, Kind::Approval, "1");
    let sent = world.accept_all();
    assert!(sent.len() == 1 && sent[0].is_quiet() && sent[0].ids().is_empty());
}

#[test]
fn what_a_phone_fetched_before_it_was_due_is_cleared_too_and_only_there() {
    let mut world = World::new();
    world.phone(1);
    world.phone(2);
    let skald = world.host("skald");
    world.approval(&skald, 1);
    world.phone_says(1, "inbox_request", "");
    let sent = world.accept_all();
    assert!(sent.len() == 1 && sent[0].is_live() && sent[0].ids().len() == 1);
    world.resolved(&skald, Kind::Approval, "1");
    let sent = world.accept_all();
    assert_eq!(sent.iter().map(|sent| sent.to).collect::<Vec<_>>(), [key(1)]);
}

#[test]
fn a_resolution_that_crosses_the_push_is_sent_after_it() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host("skald");
    world.approval(&skald, 1);
    world.advance(20_000);
    world.resolved(&skald, Kind::Approval, "1");
    let sent = world.accept_all();
    assert_eq!(
        sent.iter().map(|sent| (sent.ids().len(), sent.is_quiet())).collect::<Vec<_>>(),
        [(1, false), (0, true)]
    );
}

#[test]
fn neither_a_restart_nor_a_repeated_sync_rings_again() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host("skald");
    world.shown_approval(&skald, 1);
    world.sync(&skald, &[&approval(1)]).unwrap();
    world.advance(HOUR);
    assert!(world.take_sent().is_empty());
    drop(skald);
    let mut world = world.restart();
    world.connect();
    let skald = world.host("skald");
    world.sync(&skald, &[&approval(1)]).unwrap();
    world.advance(HOUR);
    assert!(world.take_sent().is_empty());
}

#[test]
fn a_ring_that_the_relay_had_not_accepted_is_made_good_after_a_restart() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host("skald");
    world.approval(&skald, 1);
    world.advance(20_000);
    assert_eq!(world.take_sent().len(), 1);
    drop(skald);
    let mut world = world.restart();
    world.connect();
    let sent = world.accept_all();
    assert!(sent.len() == 1 && !sent[0].is_quiet());
}

#[test]
fn the_delay_goes_on_where_it_was_after_a_restart() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host("skald");
    world.approval(&skald, 1);
    world.advance(15_000);
    drop(skald);
    let mut world = world.restart();
    world.connect();
    world.advance(4_999);
    assert!(world.take_sent().is_empty());
    world.advance(1);
    assert_eq!(world.take_sent().len(), 1);
}

#[test]
fn a_clearing_that_a_crash_prevented_is_made_good() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host("skald");
    world.shown_approval(&skald, 1);
    world.resolved(&skald, Kind::Approval, "1");
    assert_eq!(world.take_sent().len(), 1, "on its way, not accepted");
    drop(skald);
    let mut world = world.restart();
    world.connect();
    let sent = world.accept_all();
    assert!(sent.len() == 1 && sent[0].is_quiet() && sent[0].ids().is_empty());
}

#[test]
fn without_a_connection_nothing_is_sent_and_then_one_snapshot_of_the_newest_state() {
    let mut world = World::new();
    world.phone(1);
    world.disconnect();
    let skald = world.host("skald");
    for n in 1..=5 {
        world.approval(&skald, n);
    }
    world.advance(60_000);
    world.resolved(&skald, Kind::Approval, "3");
    assert!(world.take_sent().is_empty());
    world.connect();
    let sent = world.accept_all();
    assert!(sent.len() == 1 && !sent[0].is_quiet() && sent[0].ids().len() == 4);
}

#[test]
fn a_burst_becomes_one_snapshot_behind_the_one_on_its_way() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host("skald");
    for n in 0..20 {
        let item = ELICITATION.replace("e1", &format!("e{n}"));
        world.request(&skald, Kind::Elicitation, &item).unwrap();
    }
    let sent = world.accept_all();
    assert_eq!(sent.iter().map(|sent| sent.ids().len()).collect::<Vec<_>>(), [1, 20]);
}

#[test]
fn a_host_that_never_rests_does_not_use_up_the_relays_patience() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host("skald");
    let mut count = 0;
    for n in 0..600 {
        let item = ELICITATION.replace("e1", &format!("e{n}"));
        world.request(&skald, Kind::Elicitation, &item).unwrap();
        count += world.accept_all().len();
        world.resolved(&skald, Kind::Elicitation, &format!("\"e{n}\""));
        count += world.accept_all().len();
        world.advance(100);
        count += world.accept_all().len();
    }
    assert!((30..=45).contains(&count), "{count} in a minute");
    world.advance(10_000);
    let last = world.accept_all();
    assert!(last.last().is_none_or(|last| last.ids().is_empty()));
}

#[test]
fn a_refused_snapshot_is_sent_again_after_a_growing_pause_in_its_newest_form() {
    for why in [Failure::RateLimited, Failure::QueueFull, Failure::NotFound] {
        let mut world = World::new();
        world.phone(1);
        let skald = world.host("skald");
        world.approval(&skald, 1);
        world.advance(20_000);
        let first = world.take_sent().remove(0);
        world.fail(&first, why);
        world.advance(4_999);
        assert!(world.take_sent().is_empty(), "{why:?}");
        world.approval(&skald, 2);
        world.advance(1);
        let second = world.take_sent().remove(0);
        assert_eq!((second.ids().len(), second.is_quiet()), (2, false));
        world.fail(&second, why);
        world.advance(9_999);
        assert!(world.take_sent().is_empty());
        world.advance(1);
        assert_eq!(world.accept_all().len(), 1);
    }
}

#[test]
fn a_device_that_the_relay_did_not_know_is_tried_again_as_soon_as_it_has_our_list() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host("skald");
    world.approval(&skald, 1);
    world.advance(20_000);
    let sent = world.take_sent().remove(0);
    world.fail(&sent, Failure::NotFound);
    world.relay(RelayInput::Authorized);
    assert_eq!(world.take_sent().len(), 1);
}

#[test]
fn a_request_is_answered_live_to_the_one_who_asked_with_everything() {
    let mut world = World::new();
    world.phone(1);
    world.phone(2);
    let skald = world.host("skald");
    world.approval(&skald, 1);
    world.phone_says(2, "inbox_request", "");
    let sent = world.accept_all();
    assert_eq!(sent.len(), 1);
    assert!(sent[0].is_live() && sent[0].to == key(2));
    assert_eq!(sent[0].json["approvals"][0]["arguments"], serde_json::json!({"n": 1}));
    world.advance(20_000);
    assert_eq!(world.accept_all().len(), 2, "it still rings on both when it is due");
}

#[test]
fn a_request_whose_answer_finds_nobody_owes_nothing() {
    let mut world = World::new();
    world.phone(1);
    world.phone_says(1, "inbox_request", "");
    let sent = world.take_sent().remove(0);
    world.fail(&sent, Failure::Offline);
    world.advance(HOUR);
    assert!(world.take_sent().is_empty());
}

#[test]
fn after_an_answer_all_phones_get_a_fresh_quiet_snapshot() {
    let mut world = World::new();
    world.phone(1);
    world.phone(2);
    let skald = world.host("skald");
    let id = world.shown_approval(&skald, 1);
    world.approve(1, &id);
    let sent = world.accept_all();
    let mut to: Vec<_> = snapshots(&sent).iter().map(|sent| sent.to).collect();
    to.sort();
    assert_eq!(to, [key(1), key(2)]);
    assert!(sent.iter().all(|sent| sent.is_quiet() && sent.ids().is_empty()));
}

#[test]
fn a_loser_that_is_away_gets_its_snapshot_stored() {
    let mut world = World::new();
    world.phone(1);
    world.phone_says(1, "clarification_response", r#""request_id":"gone.0","answer":"x""#);
    let sent = world.take_sent();
    assert!(sent.len() == 1 && sent[0].is_live());
    world.fail(&sent[0], Failure::Offline);
    let sent = world.accept_all();
    assert!(sent.len() == 1 && sent[0].is_quiet());
}

#[test]
fn the_details_follow_live_when_the_short_form_reached_a_phone_that_is_there() {
    let mut world = World::new();
    world.phone_on(1, Platform::Ios);
    let skald = world.host("skald");
    let item = format!(r#"{{"request_id":1,"tool_name":"t","summary":"s","detail":"{}"}}"#, "x".repeat(3_000));
    world.request(&skald, Kind::Approval, &item).unwrap();
    world.advance(20_000);
    let sent = world.accept_all();
    assert_eq!(sent.iter().map(Sent::is_live).collect::<Vec<_>>(), [false, true]);
    assert!(sent[0].json["approvals"][0].get("detail").is_none());
    assert_eq!(sent[1].json["approvals"][0]["detail"].as_str().unwrap().len(), 3_000);
}

#[test]
fn without_receipts_a_live_snapshot_that_missed_does_not_count_as_shown() {
    let mut world = World::new();
    world.phone(1);
    let mut skald = world.host("skald");
    let id = world.approval(&skald, 1);
    world.phone_says(1, "inbox_request", "");
    let live = world.take_sent().remove(0);
    world.relay(RelayInput::Accepted { token: live.token, queued: None });
    world.relay(RelayInput::Offline(key(1)));
    world.approve(1, &id);
    assert!(skald.calls().is_empty());
}

#[test]
fn a_notification_goes_to_every_authorized_device_and_is_repeated_if_refused() {
    let mut world = World::new();
    world.phone(1);
    world.phone(2);
    world.pair(3, Platform::Android);
    world.accept_all();
    let note = skald_common::payload::Notification { title: "Done".into(), body: "All of it".into() };
    let result = world.ask(|reply| Command::Notify(note.clone(), reply)).unwrap();
    assert_eq!((result.devices, result.queued), (2, 0));
    let sent = world.take_sent();
    assert_eq!(sent.len(), 2);
    assert_eq!((&sent[0].json["kind"], &sent[0].json["title"]), (&"notification".into(), &"Done".into()));
    assert_eq!(sent[0].delivery, Delivery::STORED);
    world.relay(RelayInput::Accepted { token: sent[0].token, queued: Some(true) });
    world.fail(&sent[1], Failure::RateLimited);
    world.advance(5_000);
    let again = world.accept_all();
    assert_eq!(again.iter().map(|sent| sent.to).collect::<Vec<_>>(), [sent[1].to]);
    world.disconnect();
    let result = world.ask(|reply| Command::Notify(note, reply)).unwrap();
    assert_eq!((result.devices, result.queued), (2, 2));
    world.connect();
    assert_eq!(world.accept_all().len(), 2);
}

#[test]
fn a_notification_must_say_something_within_bounds() {
    let mut world = World::new();
    for (title, body) in [("", " "), (&*"x".repeat(201), ""), ("t", &*"x".repeat(4_001))] {
        let note = skald_common::payload::Notification { title: title.into(), body: body.into() };
        assert!(matches!(world.ask(|reply| Command::Notify(note, reply)), Err(ApiError::InvalidParams(_))));
    }
}

#[test]
fn when_the_engine_is_begun_anew_what_was_on_its_way_is_sent_again() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host("skald");
    world.approval(&skald, 1);
    world.advance(20_000);
    assert_eq!(world.take_sent().len(), 1);
    world.relay(RelayInput::Reset);
    assert!(matches!(world.take_orders().last(), Some(RelayOrder::Connect { .. })));
    world.connect();
    let sent = world.accept_all();
    assert!(sent.len() == 1 && !sent[0].is_quiet());
}

#[test]
fn an_answered_item_is_cleared_by_one_snapshot_whenever_its_host_takes_the_answer() {
    for host_is_quick in [true, false] {
        let mut world = World::new();
        world.phone(1);
        let mut skald = world.host("skald");
        let id = world.shown_approval(&skald, 1);
        world.approve(1, &id);
        let (call, _) = skald.answer();
        let mut sent = if host_is_quick { Vec::new() } else { world.accept_all() };
        world.done(&skald, call, CallOutcome::Resolved(true));
        sent.extend(world.accept_all());
        world.advance(HOUR);
        sent.extend(world.accept_all());
        let snapshots: Vec<_> = sent.iter().filter(|sent| sent.is_snapshot()).map(Sent::ids).collect();
        assert_eq!(snapshots, [Vec::<String>::new()], "host_is_quick: {host_is_quick}");
    }
}
