//! Alarm, sweep and the end of a namespace.

use super::*;

fn last_active(world: &World) -> u64 {
    Store::new(Rc::clone(&world.sql)).namespace().unwrap().unwrap().last_active
}

#[test]
fn the_alarm_stands_from_the_beginning_and_a_message_to_a_connected_recipient_leaves_it_alone() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    assert_eq!(world.alarm, Some(START + 90 * DAY));
    let phone = world.client(1);
    world.say(agent, device(1), "x");
    assert_eq!(world.alarm, Some(START + 90 * DAY));
    world.now += HOUR;
    world.hang_up(phone, 1006);
    assert_eq!(world.alarm, Some(START + HOUR + DAY), "what it left unproved will be swept");
}

#[test]
fn the_sweep_drops_what_is_a_week_old_and_stops_when_nothing_is_left() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    world.say(agent, device(1), "x");
    world.pass(6 * DAY);
    assert_eq!(world.queued_rows(), 1);
    world.say(agent, device(1), "y");
    world.pass(DAY);
    assert_eq!(world.queued_rows(), 1);
    world.pass(7 * DAY);
    assert_eq!(world.queued_rows(), 0);
    assert!(world.alarm.unwrap() > world.now + 20 * DAY, "no daily alarm any more");
}

#[test]
fn a_namespace_without_any_connection_for_90_days_is_gone_and_begins_anew() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    world.say(agent, device(1), "x");
    world.pass(DAY);
    world.hang_up(agent, 1000);
    assert_eq!(last_active(&world), START + DAY);
    world.pass(90 * DAY - 1);
    assert_eq!(world.deleted, 0);
    world.pass(1);
    assert_eq!((world.deleted, world.alarm), (1, None));
    assert_eq!(world.refused_client(1), "not_found");
    let agent = world.agent(&[1]);
    let phone = world.client(1);
    assert_eq!(world.texts(phone), [""; 0]);
    world.say(agent, device(1), "again");
    assert_eq!(world.texts(phone), ["again"]);
}

#[test]
fn a_namespace_with_an_open_connection_is_not_idle_however_silent() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    world.pass(400 * DAY);
    assert_eq!((world.deleted, world.closed(agent)), (0, None));
    assert!(world.now - last_active(&world) <= 30 * DAY, "a crash now would be seen as at most a month of absence");
}

#[test]
fn any_return_starts_the_90_days_anew() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    world.hang_up(agent, 1000);
    world.pass(80 * DAY);
    let phone = world.client(1);
    world.sockets.remove(&phone); // the relay was killed: no close event
    world.evict();
    world.pass(80 * DAY);
    assert_eq!(world.deleted, 0);
    world.pass(10 * DAY);
    assert_eq!(world.deleted, 1);
}

#[test]
fn an_alarm_that_never_came_is_made_up_for_by_whatever_comes() {
    let mut world = World::remembering();
    let agent = world.agent(&[1]);
    world.say(agent, device(1), "x");
    world.alarm = None;
    world.now += 8 * DAY;
    world.send_raw(agent, b"");
    assert_eq!(world.queued_rows(), 0);
    assert!(world.alarm.is_some());
}

#[test]
fn an_alarm_that_a_panic_swallowed_is_set_again_when_the_agent_returns() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    world.say(agent, device(1), "x");
    let due = world.alarm.take();
    assert_eq!(due, Some(START + DAY));
    world.modern_agent(&[1]);
    assert_eq!(world.alarm, due);
}

#[test]
fn a_wake_in_an_object_without_namespace_does_nothing() {
    let mut world = World::new();
    world.step(Input::Wake);
    world.step(Input::Alarm);
    assert_eq!((world.alarm, world.timer, world.sql.rows_written()), (None, None, 0));
}

#[test]
fn an_idle_hour_with_an_agent_and_two_phones_wakes_nobody_and_touches_no_row() {
    let mut world = World::remembering();
    let agent = world.modern_agent(&[1, 2]);
    let phones = [world.modern_client(1), world.client(2)];
    world.say(agent, device(1), "x");
    let delivery = world.messages(phones[0])[0].delivery;
    world.ack(phones[0], delivery);
    world.say_live(phones[1], AGENT_KEY, "y");
    world.evict();
    let (wakes, read, written) = (world.wakes, world.sql.rows_read(), world.sql.rows_written());
    let end = world.now + HOUR;
    while world.now < end {
        world.pass(25 * SECOND);
        // Answered by the platform, which asks nobody.
        for conn in [agent, phones[0]] {
            world.sockets.get_mut(&conn).unwrap().last_ping = Some(world.now);
        }
    }
    assert_eq!((world.wakes, world.sql.rows_read(), world.sql.rows_written()), (wakes, read, written));
    assert_eq!(world.online(agent), [device(1), device(2), AGENT_KEY]);
}

#[test]
fn an_idle_namespace_with_open_sockets_asks_for_no_timer() {
    let mut world = World::remembering();
    let agent = world.modern_agent(&[1]);
    let phone = world.modern_client(1);
    world.say(agent, device(1), "x");
    world.say_live(phone, AGENT_KEY, "y");
    assert_eq!(world.timer, None);
}

#[test]
fn a_clock_that_jumps_back_loses_nothing() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    world.say(agent, device(1), "0");
    world.now -= 100 * DAY;
    let phone = world.modern_client(1);
    world.say(agent, device(1), "1");
    assert_eq!(world.texts(phone), ["0", "1"]);
    world.step(Input::Alarm);
    world.hang_up(phone, 1006);
    let phone = world.client(1);
    assert_eq!(world.texts(phone), ["0", "1"]);
}

#[test]
fn an_alarm_that_comes_too_early_is_set_again() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    world.say(agent, device(1), "x");
    let due = world.alarm.take().unwrap();
    world.now = due - 1;
    world.step(Input::Alarm);
    assert!(world.alarm.is_some_and(|at| at > world.now && at <= world.now + DAY));
}

#[test]
fn a_connection_that_outlived_its_namespace_ends_without_a_fault() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    let phone = world.client(1);
    world.sql.delete_all().unwrap();
    world.hang_up(phone, 1006);
    assert_eq!(world.closed(agent), Some(4003), "it belongs nowhere any more");
    assert!(world.faults.is_empty(), "{:?}", world.faults);
}
