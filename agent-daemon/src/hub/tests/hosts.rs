//! Sessions, and what hosts raise and take back.

use super::*;

fn ids(world: &mut World) -> Vec<String> {
    world.inbox().into_iter().map(|entry| entry.id.split('.').next().unwrap().to_owned()).collect()
}

#[test]
fn a_sync_replaces_what_the_host_had_and_leaves_other_hosts_alone() {
    let mut world = World::new();
    let (skald, other) = (world.host("skald"), world.host("other"));
    world.sync(&skald, &[&approval(1), &approval(2)]).unwrap();
    world.sync(&other, &[&approval(9)]).unwrap();
    world.sync(&skald, &[&approval(2), &approval(3)]).unwrap();
    assert_eq!(ids(&mut world), ["2", "9", "3"]);
}

#[test]
fn a_sync_with_one_bad_item_changes_nothing_and_says_which() {
    let mut world = World::new();
    let skald = world.host("skald");
    world.sync(&skald, &[&approval(1)]).unwrap();
    let error = world.sync(&skald, &[&approval(2), r#"{"request_id":3,"tool_name":"t"}"#]).unwrap_err();
    assert_eq!(error, ApiError::InvalidParams("approvals[1]: summary is missing".into()));
    let error = world.sync(&skald, &[&approval(2), &approval(2)]).unwrap_err();
    assert!(error.to_string().contains("approvals[1]: request_id is used twice"), "{error}");
    assert_eq!(ids(&mut world), ["1"]);
}

#[test]
fn two_hosts_may_use_the_same_request_id_and_resolve_only_their_own() {
    let mut world = World::new();
    let (skald, other) = (world.host("skald"), world.host("other"));
    world.request(&skald, Kind::Approval, &approval(1)).unwrap();
    world.request(&other, Kind::Approval, &approval(1)).unwrap();
    let inbox = world.inbox();
    assert_ne!(inbox[0].id, inbox[1].id);
    world.resolved(&skald, Kind::Approval, "1");
    assert_eq!(world.inbox().iter().map(|entry| entry.host.as_str()).collect::<Vec<_>>(), ["other"]);
}

#[test]
fn the_same_item_twice_is_one_and_another_content_under_its_id_takes_its_place() {
    let mut world = World::new();
    let skald = world.host("skald");
    let first = world.approval(&skald, 1);
    assert_eq!(world.approval(&skald, 1), first);
    world.request(&skald, Kind::Approval, r#"{"request_id":1,"tool_name":"t","summary":"another"}"#).unwrap();
    let inbox = world.inbox();
    assert_eq!(inbox.len(), 1);
    assert_ne!(inbox[0].id, first);
}

#[test]
fn resolving_what_is_not_there_or_of_another_kind_is_no_error_and_does_nothing() {
    let mut world = World::new();
    let skald = world.host("skald");
    world.approval(&skald, 1);
    world.resolved(&skald, Kind::Clarification, "1");
    world.resolved(&skald, Kind::Approval, r#""1""#);
    assert_eq!(ids(&mut world), ["1"]);
}

#[test]
fn items_linger_after_the_host_has_left_and_then_go() {
    let mut world = World::new();
    let (stays, goes) = (world.host_lingering("stays", None), world.host_lingering("goes", Some(60)));
    world.approval(&stays, 1);
    world.approval(&goes, 2);
    world.leave(stays);
    world.leave(goes);
    world.advance(59_000);
    assert_eq!(ids(&mut world), ["1", "2"]);
    world.advance(1_000);
    assert_eq!(ids(&mut world), ["1"]);
    world.advance(24 * HOUR);
    assert!(ids(&mut world).is_empty());
}

#[test]
fn items_of_a_host_that_lingers_for_zero_seconds_go_with_it() {
    let mut world = World::new();
    let ask = world.host_lingering("ask-0", Some(0));
    world.approval(&ask, 1);
    world.leave(ask);
    assert!(ids(&mut world).is_empty());
}

#[test]
fn a_host_that_comes_back_finds_its_items_and_they_stay() {
    let mut world = World::new();
    let host = world.host_lingering("skald", Some(60));
    let id = world.approval(&host, 1);
    world.leave(host);
    world.advance(30_000);
    let host = world.host_lingering("skald", Some(60));
    world.advance(HOUR);
    assert_eq!(world.inbox()[0].id, id);
    world.sync(&host, &[]).unwrap();
    assert!(ids(&mut world).is_empty());
}

#[test]
fn after_a_restart_items_are_there_and_even_a_foreground_host_has_time_to_come_back() {
    let mut world = World::new();
    let (skald, ask) = (world.host("skald"), world.host_lingering("ask-0", Some(0)));
    world.approval(&skald, 1);
    world.approval(&ask, 2);
    drop((skald, ask));
    let mut world = world.restart();
    assert_eq!(ids(&mut world), ["1", "2"]);
    world.advance(16_000);
    assert_eq!(ids(&mut world), ["1"]);
}

#[test]
fn an_expired_item_leaves_and_one_that_comes_expired_is_not_shown() {
    let mut world = World::new();
    let skald = world.host("skald");
    let item = |n: u64, at: u64| format!(r#"{{"request_id":{n},"question":"q","expires_at":{at}}}"#);
    let now = world.now.unix;
    world.request(&skald, Kind::Clarification, &item(1, now + 5_000)).unwrap();
    world.request(&skald, Kind::Clarification, &item(2, now)).unwrap();
    assert_eq!(ids(&mut world), ["1"]);
    world.advance(5_000);
    assert!(ids(&mut world).is_empty());
}

#[test]
fn a_taken_name_is_refused_while_its_holder_answers_the_probe() {
    let mut world = World::new();
    let mut holder = world.host("skald");
    let mut newcomer = world.begin(|reply| Command::OpenHost(hello("skald", None), reply));
    let probe = holder.calls().remove(0);
    assert!(matches!(probe.request, HostRequest::Ping));
    assert!(newcomer.try_recv().is_err(), "it waits");
    let mut third = world.begin(|reply| Command::OpenHost(hello("skald", None), reply));
    assert_eq!(third.try_recv().unwrap().unwrap_err(), ApiError::NameTaken("skald".into()));
    world.done(&holder, probe.id, CallOutcome::Pong);
    assert_eq!(newcomer.try_recv().unwrap().unwrap_err(), ApiError::NameTaken("skald".into()));
}

#[test]
fn a_holder_that_does_not_answer_for_3_seconds_makes_room_and_its_items_stay() {
    let mut world = World::new();
    let mut holder = world.host("skald");
    let id = world.approval(&holder, 1);
    let mut newcomer = world.begin(|reply| Command::OpenHost(hello("skald", None), reply));
    world.advance(2_999);
    assert!(newcomer.try_recv().is_err());
    world.advance(1);
    let session = newcomer.try_recv().unwrap().unwrap();
    holder.calls();
    assert!(matches!(holder.session.calls.try_recv(), Err(mpsc::error::TryRecvError::Disconnected)));
    assert_eq!(world.request(&holder, Kind::Approval, &approval(2)), Err(ApiError::SessionClosed));
    assert_eq!(world.inbox()[0].id, id);
    drop(session);
}

#[test]
fn a_holder_that_leaves_during_the_probe_makes_room_at_once() {
    let mut world = World::new();
    let holder = world.host("skald");
    let mut newcomer = world.begin(|reply| Command::OpenHost(hello("skald", None), reply));
    world.leave(holder);
    assert!(newcomer.try_recv().unwrap().is_ok());
}

#[test]
fn names_labels_and_lingering_are_checked() {
    let mut world = World::new();
    for name in ["", "Skald", "a b", "ü", &"a".repeat(33)] {
        let error = world.ask(|reply| Command::OpenHost(hello(name, None), reply)).unwrap_err();
        assert!(error.to_string().starts_with("name:"), "{name:?}: {error}");
    }
    let label = HostHello { label: Some("a\u{202e}b".into()), ..hello("a", None) };
    assert!(world.ask(|reply| Command::OpenHost(label, reply)).is_err());
    assert!(world.ask(|reply| Command::OpenHost(hello("a", Some(u64::MAX)), reply)).is_err());
}

#[test]
fn a_host_has_a_limit_of_items_and_so_have_all_together() {
    let mut world = World::new();
    let hosts: Vec<Host> = ["a", "b", "c"].map(|name| world.host(name)).into();
    let many: Vec<String> = (0..201).map(approval).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(matches!(world.sync(&hosts[0], &many), Err(ApiError::Limit(_))));
    world.sync(&hosts[0], &many[..200]).unwrap();
    assert!(matches!(world.request(&hosts[0], Kind::Approval, &approval(999)), Err(ApiError::Limit(_))));
    world.sync(&hosts[1], &many[..200]).unwrap();
    assert!(matches!(world.sync(&hosts[2], &many[..101]), Err(ApiError::Limit(_))));
    world.sync(&hosts[2], &many[..100]).unwrap();
}

#[test]
fn subscribers_hear_that_the_inbox_changed_and_how_many_wait() {
    let mut world = World::new();
    let skald = world.host("skald");
    world.events.clear();
    world.approval(&skald, 1);
    world.approval(&skald, 1);
    assert_eq!(world.events, [Event::InboxChanged { pending: 1 }]);
}
