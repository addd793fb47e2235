//! A machine that does not know the time.

use super::*;

const TODAY: u64 = BUILD_DATE + 30 * 24 * HOUR;

/// A daemon that begins in 1970 with a paired phone and a pending approval.
fn in_1970() -> (World, Host) {
    let mut world = World::new();
    world.phone(1);
    world.now.unix = 5_000;
    let mut world = world.restart();
    world.connect();
    let skald = world.host("skald");
    world.approval(&skald, 1);
    world.advance(HOUR);
    assert!(world.accept_all().is_empty(), "what is dated so is dropped by phones");
    (world, skald)
}

fn dates(sent: &[Sent]) -> Vec<u64> {
    sent.iter().map(|sent| sent.json["ts"].as_u64().unwrap()).collect()
}

#[test]
fn until_the_time_is_known_nothing_is_pushed_and_then_phones_ring() {
    let (mut world, _skald) = in_1970();
    assert!(world.status().notices.iter().any(|notice| notice.contains("set it")), "{:?}", world.status());
    world.now.unix = TODAY;
    world.advance(60_000);
    let sent = world.accept_all();
    assert!(sent.iter().any(|sent| sent.is_snapshot() && !sent.is_quiet()), "{sent:?}");
    assert!(dates(&sent).iter().all(|date| *date >= TODAY), "{sent:?}");
    assert!(world.status().notices.is_empty());
}

#[test]
fn a_phone_tells_the_time_and_is_answered_in_it() {
    let (mut world, mut skald) = in_1970();
    let ask = |world: &mut World, kind: &str, fields: &str, date: u64| {
        let json = world.payload(kind, fields);
        let dated = json.replace(&format!("\"ts\":{}", world.now.unix), &format!("\"ts\":{date}"));
        world.deliver(1, &dated);
    };
    ask(&mut world, "inbox_request", "", TODAY);
    let sent = world.accept_all();
    let id = sent.iter().find(|sent| sent.is_live()).expect("its answer").ids().remove(0);
    assert!(dates(&sent).iter().all(|date| *date == TODAY), "{sent:?}");
    world.advance(HOUR);
    let approve = format!(r#""request_id":"{id}","decision":"approved""#);
    ask(&mut world, "approval_response", &approve, TODAY + HOUR);
    assert_eq!(skald.calls().len(), 1);
    assert!(dates(&world.accept_all()).iter().all(|date| *date == TODAY + HOUR));
}

#[test]
fn an_answer_that_seems_too_old_is_told_to_the_owner_until_one_counts() {
    let mut world = World::new();
    world.our_phone(1);
    let mut skald = world.host("skald");
    let id = world.shown_approval(&skald, 1);
    world.now.unix += 25 * HOUR;
    let approve = format!(r#""request_id":"{id}","decision":"approved""#);
    let json = world.payload("approval_response", &approve);
    let (ours, theirs) = (world.now.unix, world.now.unix - 25 * HOUR);
    world.deliver(1, &json.replace(&format!("\"ts\":{ours}"), &format!("\"ts\":{theirs}")));
    let error = world.status().last_error.expect("something to know");
    assert!(error.contains("Phone 1") && error.contains("25 hours ago") && error.contains("set the clock"), "{error}");
    assert!(skald.calls().is_empty());
    assert!(world.approve(1, &id));
    assert_eq!((skald.calls().len(), world.status().last_error), (1, None));
}
