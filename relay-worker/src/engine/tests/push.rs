//! When devices are pushed to. Unless a test says otherwise the phone has a token of Google's, is not connected, and all
//! services are on.

use sha2::{Digest, Sha256};
use skald_common::wire::{Platform, Push, PushState};

use super::*;
use crate::push::{Job, Outcome};
use crate::store::Value;

const ANDROID: i32 = Platform::Android as i32;
const WEB: i32 = Platform::Web as i32;
const MINUTE: u64 = 60 * SECOND;
const UNAVAILABLE: Outcome = Outcome::Unavailable { retry_after_ms: None };
const NO_KEEPALIVE: Features = Features::from_bits(3);

/// A world whose relay has all services, with the agent's connection; the phone has been here and left its token.
fn sleeping_phone() -> (World, ConnId) {
    sleeping(World::new(), ANDROID)
}

fn sleeping(mut world: World, platform: i32) -> (World, ConnId) {
    world.services = Services { apns: true, fcm: true, web: true };
    // One that is not judged dead while time passes.
    let agent = world.agent_with(NO_KEEPALIVE);
    world.authorize(agent, &[1]);
    let phone = world.phone(Features::ALL, "token", platform);
    world.hang_up(phone, 1000);
    world.read(agent);
    (world, agent)
}

fn tagged(tag: &str, body: &str) -> Message {
    Message { collapse: tag.into(), ..message(device(1), body) }
}

fn quiet(tag: &str, body: &str) -> Message {
    Message { quiet: true, ..tagged(tag, body) }
}

impl World {
    /// Phone 1 comes with a token.
    fn phone(&mut self, features: Features, token: &str, platform: i32) -> ConnId {
        let role = AuthClient { device_token: token.to_owned(), platform, ..Self::client_role(1, features) };
        let conn = self.authenticate(Role::Client(role));
        self.expect_auth_ok(conn);
        conn
    }

    fn say_to_phone(&mut self, agent: ConnId, message: Message) {
        self.send(agent, Frame::Message(message));
    }

    /// The only push that the services were asked for since the last look.
    fn push(&mut self) -> Job {
        let job = self.pushes.pop_front().expect("a push");
        assert_eq!(self.pushes, [], "one alone");
        job
    }

    /// The bodies of all of them.
    fn pushed(&mut self) -> Vec<String> {
        let body = |job: Job| String::from_utf8_lossy(&job.sealed.ciphertext).into_owned();
        self.pushes.drain(..).map(body).collect()
    }

    fn answer(&mut self, job: &Job, outcome: Outcome) {
        self.step(Input::Pushed { id: job.id, outcome });
    }

    /// All pushes are taken, until there are no more; their bodies.
    fn taken(&mut self) -> Vec<String> {
        let mut bodies = Vec::new();
        while let Some(job) = self.pushes.pop_front() {
            self.answer(&job, Outcome::Sent);
            bodies.push(String::from_utf8_lossy(&job.sealed.ciphertext).into_owned());
        }
        bodies
    }

    fn push_rows(&self) -> Option<i64> {
        match self.sql.exec("SELECT count(*) FROM push", &[]).ok()?.remove(0).remove(0) {
            Value::Int(n) => Some(n),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_message_for_a_phone_that_is_away_is_pushed_as_it_is_queued() {
    let (mut world, agent) = sleeping_phone();
    world.say_to_phone(agent, Message { nonce: vec![9; 12], ..tagged("inbox", "sealed") });
    let job = world.push();
    assert_eq!((job.target.platform, job.target.token.as_str()), (ANDROID, "token"));
    assert_eq!((job.namespace, job.sealed.sender), (namespace(), AGENT_KEY));
    assert_eq!((job.sealed.nonce, &job.sealed.ciphertext[..]), ([9; 12], &b"sealed"[..]));
    let hash = Sha256::new()
        .chain_update(namespace().as_bytes())
        .chain_update(AGENT_KEY.as_bytes())
        .chain_update(b"inbox")
        .finalize();
    assert_eq!(job.collapse.as_ref().map(|id| &id[..]), Some(&hash[..16]));
    world.say(agent, device(1), "without a tag");
    assert_eq!(world.push().collapse, None);
}

#[test]
fn what_is_live_or_quiet_or_for_the_agent_or_for_a_connected_phone_is_not_pushed() {
    let (mut world, agent) = sleeping_phone();
    world.say_live(agent, device(1), "live");
    world.say_to_phone(agent, quiet("inbox", "cleared"));
    let phone = world.phone(Features::ALL, "token", ANDROID);
    world.say(agent, device(1), "here");
    world.hang_up(agent, 1000);
    world.say(phone, AGENT_KEY, "answer");
    assert_eq!((world.pushed().len(), world.push_rows()), (0, None));
}

#[test]
fn a_phone_without_a_token_or_whose_service_is_off_costs_nothing() {
    let off = Services { fcm: false, apns: true, web: true };
    for (services, token, platform) in [
        (Services { fcm: true, ..off }, "", ANDROID),
        (off, "token", ANDROID),
        (Services { fcm: true, ..off }, "token", 0),
        (Services { fcm: true, ..off }, "token", 77),
        (Services::default(), "token", WEB),
    ] {
        let mut world = World::new();
        world.services = services;
        let agent = world.modern_agent(&[1]);
        for features in [Features::NONE, Features::ALL] {
            let phone = world.phone(features, token, platform);
            let before = world.sql.rows_written();
            world.say(agent, device(1), "x");
            assert_eq!(world.sql.rows_written() - before, 1, "{services:?}");
            assert_eq!(world.alarm, Some(START + if features == Features::NONE { 90 * DAY } else { DAY }));
            world.hang_up(phone, 1006);
        }
        assert_eq!((world.pushed().len(), world.push_rows()), (0, None));
    }
}

#[test]
fn a_connected_phone_with_keepalive_costs_no_row_and_no_alarm_more() {
    let mut world = World::new();
    world.services = Services { apns: true, fcm: true, web: true };
    let agent = world.modern_agent(&[1]);
    let phone = world.phone(Features::ALL, "token", ANDROID);
    let before = world.sql.rows_written();
    for n in 0..5 {
        world.say(agent, device(1), "x");
        let delivery = world.messages(phone)[0].delivery;
        world.ack(phone, delivery);
        assert_eq!(world.sql.rows_written() - before, 2 * (n + 1));
    }
    world.hang_up(phone, 1006);
    assert_eq!((world.push_rows(), world.pushed().len()), (None, 0));
    assert_eq!(world.alarm, Some(START + 90 * DAY));
}

#[test]
fn a_push_costs_a_row_before_it_and_a_row_after_it_and_then_wakes_nobody() {
    let (mut world, agent) = sleeping_phone();
    world.say(agent, device(1), "the day's alarm is set");
    world.taken();
    let before = world.sql.rows_written();
    world.say(agent, device(1), "x");
    assert_eq!(world.alarm, Some(START + MINUTE), "the lease");
    assert_eq!(world.taken(), ["x"]);
    assert_eq!(world.sql.rows_written() - before, 1 + 2);
    assert_eq!(world.alarm, Some(START + DAY));
}

#[test]
fn what_a_connection_leaves_unproved_is_pushed_however_it_ends() {
    for code in [1006, 1000, 1001] {
        let (mut world, agent) = sleeping_phone();
        let phone = world.phone(Features::ALL, "token", ANDROID);
        for body in ["proved", "a", "b"] {
            world.say(agent, device(1), body);
        }
        world.say_to_phone(agent, quiet("tag", "quiet"));
        let first = world.messages(phone)[0].delivery;
        world.ack(phone, first);
        assert_eq!(world.pushed(), [""; 0]);
        world.hang_up(phone, code);
        assert_eq!(world.taken(), ["a", "b"]);
        world.pass(HOUR);
        assert_eq!(world.pushed(), [""; 0], "they ring once");
    }
}

#[test]
fn a_connection_that_is_judged_dead_leaves_a_phone_that_is_away() {
    let (mut world, agent) = sleeping_phone();
    world.phone(Features::ALL, "token", ANDROID);
    world.say(agent, device(1), "swallowed");
    world.pass(122 * SECOND);
    world.say(agent, device(1), "found out");
    assert_eq!(world.pushed(), ["swallowed", "found out"]);
}

#[test]
fn a_phone_that_redials_after_it_was_dead_for_long_is_not_pushed_to() {
    let (mut world, agent) = sleeping_phone();
    world.phone(Features::ALL, "token", ANDROID);
    world.say(agent, device(1), "x");
    // Before timer and alarm come.
    world.now += 122 * SECOND;
    let phone = world.phone(Features::ALL, "token", ANDROID);
    assert_eq!((world.texts(phone), world.pushed()), (vec!["x".to_owned()], vec![]));
}

#[test]
fn what_is_cleared_as_the_phone_is_found_dead_is_not_pushed() {
    let (mut world, agent) = sleeping_phone();
    world.phone(Features::ALL, "token", ANDROID);
    world.say_to_phone(agent, tagged("inbox", "x"));
    // Before timer and alarm come.
    world.now += 122 * SECOND;
    world.say_to_phone(agent, quiet("inbox", "cleared"));
    assert_eq!(world.pushed(), [""; 0]);
}

#[test]
fn a_connection_that_is_replaced_leaves_nothing_to_push() {
    let (mut world, agent) = sleeping_phone();
    let old = world.phone(Features::ALL, "token", ANDROID);
    world.say(agent, device(1), "x");
    let new = world.phone(Features::ALL, "token", ANDROID);
    world.hang_up(old, 1006);
    assert_eq!((world.texts(new), world.pushed()), (vec!["x".to_owned()], vec![]));
}

#[test]
fn without_keepalive_what_is_unproved_for_a_minute_is_pushed_once_for_each_connection() {
    let (mut world, agent) = sleeping_phone();
    let phone = world.phone(NO_KEEPALIVE, "token", ANDROID);
    world.say(agent, device(1), "half open");
    world.pass(MINUTE - 1);
    assert_eq!(world.pushed(), [""; 0]);
    world.pass(1);
    assert_eq!(world.taken(), ["half open"]);
    world.pass(HOUR);
    world.say(agent, device(1), "later");
    world.pass(MINUTE);
    assert_eq!(world.taken(), ["later"]);
    world.pass(5 * SECOND);
    world.hang_up(phone, 1006);
    assert_eq!(world.taken(), ["half open", "later"], "now they are as if just queued");
    world.phone(NO_KEEPALIVE, "token", ANDROID);
    world.pass(MINUTE);
    assert_eq!(world.taken(), ["half open", "later"], "a new connection that may be half open");
}

#[test]
fn without_keepalive_what_is_proved_within_the_minute_is_not_pushed() {
    let (mut world, agent) = sleeping_phone();
    let phone = world.phone(Features::NONE, "token", ANDROID);
    world.say(agent, device(1), "x");
    world.pass(2 * SECOND);
    world.send_raw(phone, b"");
    world.say_to_phone(agent, quiet("tag", "quiet"));
    world.pass(DAY);
    assert_eq!((world.pushed().len(), world.push_rows()), (0, None));
}

#[test]
fn without_keepalive_the_minute_of_a_waiting_message_begins_with_the_connection() {
    let (mut world, agent) = sleeping_phone();
    world.say(agent, device(1), "x");
    world.taken();
    world.pass(HOUR);
    world.phone(NO_KEEPALIVE, "token", ANDROID);
    assert_eq!(world.alarm, Some(world.now + MINUTE));
    world.pass(MINUTE);
    assert_eq!(world.taken(), ["x"]);
}

/// When a phone with KEEPALIVE that was last heard now is dead.
const DEAD: u64 = 121 * SECOND + 1;

#[test]
fn a_phone_with_keepalive_that_acknowledges_nothing_any_more_is_judged_without_anybody_else_and_pushed_to() {
    for mut world in [World::new(), World::remembering()] {
        world.services = Services { fcm: true, ..Services::default() };
        let agent = world.agent_with(NO_KEEPALIVE);
        world.authorize(agent, &[1]);
        let phone = world.phone(Features::ALL, "token", ANDROID);
        let heard = world.now;
        world.pass(100 * SECOND);
        let alarm = world.alarm;
        world.say(agent, device(1), "half open");
        assert_eq!(world.alarm, alarm, "not before the acknowledgement is late");
        world.pass(10 * SECOND);
        assert_eq!((world.alarm, world.timer, world.pushed().len()), (Some(heard + DEAD), None, 0));
        world.pass(heard + DEAD - world.now);
        assert_eq!((world.closed(phone), world.taken()), (Some(4008), vec!["half open".to_owned()]));
    }
}

impl World {
    fn ping(&mut self, conn: ConnId) -> u64 {
        self.sockets.get_mut(&conn).unwrap().last_ping = Some(self.now);
        self.now
    }
}

#[test]
fn a_ping_that_may_have_crossed_the_message_proves_nothing_and_a_later_one_that_the_phone_lives() {
    let (mut world, agent) = sleeping_phone();
    let phone = world.phone(Features::ALL, "token", ANDROID);
    world.say(agent, device(1), "slow");
    world.pass(9 * SECOND);
    let crossed = world.ping(phone);
    world.pass(2 * SECOND);
    assert_eq!(world.alarm, Some(crossed + DEAD));
    world.pass(SECOND);
    world.ping(phone);
    world.pass(DEAD);
    assert_eq!((world.closed(phone), world.pushed().len()), (None, 0));
    let wakes = world.wakes;
    world.pass(HOUR);
    assert_eq!(world.wakes, wakes, "it is judged once");
}

#[test]
fn a_phone_with_keepalive_that_acknowledges_late_is_judged_no_more() {
    let (mut world, agent) = sleeping_phone();
    let phone = world.phone(Features::ALL, "token", ANDROID);
    world.say(agent, device(1), "slow");
    world.pass(20 * SECOND);
    let delivery = world.messages(phone)[0].delivery;
    world.send(phone, Frame::Ack(Ack { delivery }));
    assert!(world.alarm > Some(world.now + HOUR), "{:?}", world.alarm);
    assert_eq!((world.timer, world.pushed().len()), (None, 0));
}

#[test]
fn a_phone_with_keepalive_that_acknowledges_at_once_costs_no_wake_up() {
    let (mut world, agent) = sleeping(World::remembering(), ANDROID);
    let phone = world.phone(Features::ALL, "token", ANDROID);
    let (alarm, wakes) = (world.alarm, world.wakes);
    world.say(agent, device(1), "x");
    assert_eq!(world.timer, Some(world.now + 10 * SECOND));
    world.pass(9 * SECOND);
    let delivery = world.messages(phone)[0].delivery;
    world.send(phone, Frame::Ack(Ack { delivery }));
    assert_eq!((world.alarm, world.timer), (alarm, None));
    world.pass(HOUR);
    assert_eq!((world.wakes, world.push_rows()), (wakes, None));
}

#[test]
fn what_is_quiet_or_for_a_phone_that_cannot_be_pushed_to_puts_no_connection_in_doubt() {
    let (mut world, agent) = sleeping_phone();
    world.phone(Features::ALL, "token", ANDROID);
    let (alarm, wakes) = (world.alarm, world.wakes);
    world.say_to_phone(agent, quiet("tag", "cleared"));
    world.pass(HOUR);
    assert_eq!(world.alarm, alarm);
    assert!(world.wakes <= wakes + 1, "the timer alone");
    world.services = Services::default();
    world.say(agent, device(1), "x");
    assert_eq!(world.timer, None);
}

#[test]
fn a_tag_has_one_push_under_way_and_then_the_newest_five_seconds_after_the_last() {
    let (mut world, agent) = sleeping_phone();
    for n in 0..4 {
        world.say_to_phone(agent, tagged("inbox", &n.to_string()));
        world.pass(SECOND);
    }
    let first = world.push();
    assert_eq!(&first.sealed.ciphertext[..], b"0");
    world.pass(20 * SECOND);
    assert_eq!(world.pushed(), [""; 0], "the first is still under way");
    world.answer(&first, Outcome::Sent);
    assert_eq!(world.taken(), ["3"]);
    world.say_to_phone(agent, tagged("inbox", "4"));
    world.say_to_phone(agent, tagged("other", "beside it"));
    assert_eq!(world.taken(), ["beside it"]);
    world.pass(5 * SECOND - 1);
    assert_eq!(world.pushed(), [""; 0]);
    world.pass(1);
    assert_eq!(world.taken(), ["4"]);
}

#[test]
fn a_cleared_item_rings_nobody() {
    let (mut world, agent) = sleeping_phone();
    world.say_to_phone(agent, tagged("inbox", "0"));
    let first = world.push();
    world.say_to_phone(agent, tagged("inbox", "1"));
    world.say_to_phone(agent, quiet("inbox", "2"));
    world.answer(&first, UNAVAILABLE);
    world.pass(DAY - SECOND);
    assert_eq!(world.pushed(), [""; 0]);
    world.say_to_phone(agent, tagged("inbox", "3"));
    assert_eq!(world.taken(), ["3"]);
}

#[test]
fn what_is_proved_in_the_meantime_is_not_pushed() {
    let (mut world, agent) = sleeping_phone();
    for body in ["0", "1"] {
        world.say_to_phone(agent, tagged("inbox", body));
    }
    let first = world.push();
    let phone = world.phone(Features::ALL, "token", ANDROID);
    world.answer(&first, UNAVAILABLE);
    let delivery = world.messages(phone)[0].delivery;
    world.ack(phone, delivery);
    world.hang_up(phone, 1000);
    world.pass(DAY);
    assert_eq!(world.pushed(), [""; 0]);
}

#[test]
fn a_connected_phone_stops_the_retries_and_its_end_begins_them_anew() {
    let (mut world, agent) = sleeping_phone();
    world.say(agent, device(1), "x");
    let job = world.push();
    world.answer(&job, UNAVAILABLE);
    assert_eq!(world.alarm, Some(START + 5 * SECOND));
    let phone = world.phone(Features::ALL, "token", ANDROID);
    assert_eq!(world.alarm, Some(START + DAY), "nobody is woken for it");
    world.pass(10 * SECOND);
    assert_eq!(world.pushed(), [""; 0]);
    world.hang_up(phone, 1006);
    assert_eq!(world.taken(), ["x"]);
}

#[test]
fn an_unavailable_service_is_asked_five_times_ever_later_and_then_no_more() {
    let (mut world, agent) = sleeping_phone();
    world.say(agent, device(1), "x");
    let mut at = vec![world.now];
    for _ in 0..4 {
        let job = world.push();
        world.answer(&job, UNAVAILABLE);
        let due = world.alarm.unwrap();
        world.pass(due - world.now);
        at.push(world.now);
    }
    let waits: Vec<u64> = at.windows(2).map(|pair| (pair[1] - pair[0]) / SECOND).collect();
    assert_eq!(waits, [5, 30, 120, 600]);
    assert_eq!(world.given_up, 0);
    let job = world.push();
    world.answer(&job, UNAVAILABLE);
    assert_eq!(world.given_up, 1);
    world.pass(8 * DAY);
    assert_eq!(world.pushed(), [""; 0]);
}

#[test]
fn a_longer_retry_after_is_obeyed_up_to_an_hour() {
    for (asked, waited) in [(1, 5 * SECOND), (MINUTE, MINUTE), (9 * HOUR, HOUR), (u64::MAX, HOUR)] {
        let (mut world, agent) = sleeping_phone();
        world.say(agent, device(1), "x");
        let job = world.push();
        world.pass(SECOND);
        world.answer(&job, Outcome::Unavailable { retry_after_ms: Some(asked) });
        world.pass(waited - 1);
        assert_eq!(world.pushed(), [""; 0], "{asked}");
        world.pass(1);
        assert_eq!(world.taken(), ["x"], "{asked}");
    }
}

#[test]
fn newer_content_waits_for_its_service_as_long_as_older_would_and_has_tries_of_its_own() {
    let (mut world, agent) = sleeping_phone();
    world.say_to_phone(agent, tagged("inbox", "0"));
    let job = world.push();
    world.answer(&job, Outcome::Unavailable { retry_after_ms: Some(10 * MINUTE) });
    world.say_to_phone(agent, tagged("inbox", "1"));
    world.pass(10 * MINUTE - 1);
    assert_eq!(world.pushed(), [""; 0]);
    world.pass(1);
    for _ in 0..5 {
        let job = world.push();
        assert_eq!(&job.sealed.ciphertext[..], b"1");
        world.answer(&job, UNAVAILABLE);
        world.pass(world.alarm.unwrap() - world.now);
    }
    assert_eq!(world.pushed(), [""; 0]);
}

#[test]
fn what_a_service_refuses_is_not_offered_again_and_what_comes_next_is() {
    let (mut world, agent) = sleeping_phone();
    world.say_to_phone(agent, tagged("inbox", "0"));
    let job = world.push();
    world.answer(&job, Outcome::Refused);
    let phone = world.phone(Features::ALL, "token", ANDROID);
    world.pass(MINUTE);
    world.hang_up(phone, 1006);
    world.pass(DAY);
    assert_eq!(world.pushed(), [""; 0]);
    world.say_to_phone(agent, tagged("inbox", "1"));
    assert_eq!(world.taken(), ["1"]);
}

#[test]
fn an_attempt_without_an_answer_is_made_again_after_a_minute_and_five_are_enough() {
    let (mut world, agent) = sleeping_phone();
    world.say(agent, device(1), "x");
    let mut ids = HashSet::new();
    for _ in 0..5 {
        ids.insert(world.push().id);
        world.pass(MINUTE - 1);
        assert_eq!(world.pushed(), [""; 0]);
        world.pass(1);
    }
    assert_eq!((ids.len(), world.given_up), (5, 1));
    world.pass(DAY);
    assert_eq!(world.pushed(), [""; 0]);
}

#[test]
fn answers_that_are_late_or_double_or_of_nothing_do_no_harm() {
    let (mut world, agent) = sleeping_phone();
    for id in [0, 1, u64::MAX] {
        world.step(Input::Pushed { id, outcome: Outcome::TokenGone });
    }
    world.say(agent, device(1), "x");
    let lost = world.push();
    world.pass(MINUTE);
    let second = world.push();
    world.answer(&lost, Outcome::TokenGone);
    world.answer(&second, Outcome::Sent);
    world.answer(&second, UNAVAILABLE);
    world.pass(HOUR);
    assert_eq!(world.pushed(), [""; 0]);
    world.say(agent, device(1), "y");
    assert_eq!(world.taken(), ["y"]);
}

#[test]
fn an_old_answer_is_not_taken_for_one_about_a_message_with_the_same_place_in_the_queue() {
    let (mut world, agent) = sleeping_phone();
    world.say(agent, device(1), "old");
    let old = world.push();
    let phone = world.phone(Features::ALL, "token", ANDROID);
    let delivery = world.messages(phone)[0].delivery;
    world.ack(phone, delivery);
    world.hang_up(phone, 1000);
    world.say(agent, device(1), "new");
    let new = world.push();
    assert_eq!(&new.sealed.ciphertext[..], b"new", "an attempt for another message is none for this one");
    world.answer(&old, Outcome::Sent);
    world.pass(MINUTE);
    assert_eq!(world.taken(), ["new"]);
}

#[test]
fn few_pushes_are_under_way_to_a_device_at_a_time_and_all_get_their_turn() {
    let (mut world, agent) = sleeping_phone();
    for n in 0..20 {
        world.say(agent, device(1), &n.to_string());
    }
    assert_eq!(world.pushes.len(), 6);
    assert_eq!(world.taken(), numbered(0..20));
}

#[test]
fn a_browser_gets_ten_pushes_in_any_minute_and_the_rest_later() {
    let (mut world, agent) = sleeping(World::new(), WEB);
    for n in 0..15 {
        world.say(agent, device(1), &n.to_string());
        world.pass(SECOND);
        world.pushes.make_contiguous().sort_by_key(|job| job.id);
        let bodies = world.taken();
        assert_eq!(bodies.len(), usize::from(n < 10));
    }
    for n in 0..5 {
        world.pass((START + MINUTE + n * SECOND - 1) - world.now);
        assert_eq!(world.pushed(), [""; 0], "{n}");
        world.pass(1);
        assert_eq!(world.taken(), [(10 + n).to_string()]);
    }
}

#[test]
fn a_dead_token_is_forgotten_for_good_and_a_new_one_is_not() {
    let (mut world, agent) = sleeping_phone();
    world.say(agent, device(1), "x");
    world.say(agent, device(1), "y");
    let dead = world.pushes.pop_front().unwrap();
    world.answer(&dead, Outcome::TokenGone);
    let other = world.push();
    world.answer(&other, UNAVAILABLE);
    world.pass(HOUR);
    let phone = world.phone(Features::ALL, "token", ANDROID);
    world.hang_up(phone, 1006);
    world.say(agent, device(1), "z");
    world.pass(HOUR);
    assert_eq!(world.pushed(), [""; 0]);
    let rows = world.sql.exec("SELECT token FROM member UNION ALL SELECT hex(state) FROM push", &[]).unwrap();
    let token = "746F6B656E";
    assert!(
        rows.iter()
            .flatten()
            .all(|value| !matches!(value, Value::Text(text) if text == "token" || text.contains(token)))
    );

    let phone = world.phone(Features::ALL, "another", ANDROID);
    world.hang_up(phone, 1006);
    assert_eq!(world.pushes[0].target.token, "another");
    assert_eq!(world.taken(), ["x", "y", "z"]);
}

#[test]
fn a_verdict_on_an_old_token_says_nothing_of_the_new_one() {
    for outcome in [Outcome::TokenGone, Outcome::Refused] {
        let (mut world, agent) = sleeping_phone();
        world.say(agent, device(1), "x");
        let old = world.push();
        let phone = world.phone(Features::ALL, "new", ANDROID);
        world.hang_up(phone, 1006);
        assert_eq!(world.pushed(), [""; 0], "one is still under way");
        world.answer(&old, outcome);
        world.pass(5 * SECOND);
        assert_eq!(world.push().target.token, "new", "{outcome:?}");
    }
}

#[test]
fn whoever_is_revoked_or_pairs_again_is_pushed_no_more_and_nothing_is_remembered() {
    let (mut world, agent) = sleeping_phone();
    world.say(agent, device(1), "x");
    let job = world.push();
    world.answer(&job, UNAVAILABLE);
    world.authorize(agent, &[]);
    assert_eq!(world.push_rows(), Some(0));
    world.pass(DAY);
    assert_eq!(world.pushed(), [""; 0]);

    let (mut world, agent) = sleeping_phone();
    world.say(agent, device(1), "x");
    let job = world.push();
    world.open_window(agent, 60);
    assert_eq!(world.pair(1), None);
    assert_eq!(world.push_rows(), Some(0));
    world.answer(&job, UNAVAILABLE);
    world.say(agent, device(1), "not to one that waits for the agent's word");
    world.pass(HOUR);
    assert_eq!(world.pushed(), [""; 0]);
    world.read(agent);
    world.authorize(agent, &[1]);
    world.say(agent, device(1), "y");
    assert_eq!(world.push().target.token, "token 1");
}

#[test]
fn what_has_expired_is_not_pushed() {
    let (mut world, agent) = sleeping_phone();
    world.say(agent, device(1), "x");
    let job = world.push();
    world.alarm = None;
    world.now += 7 * DAY;
    world.answer(&job, UNAVAILABLE);
    world.pass(DAY);
    assert_eq!(world.pushed(), [""; 0]);
}

#[test]
fn a_push_that_could_not_be_noted_is_not_made_and_its_message_not_accepted() {
    let mut checked = 0;
    for statement in 0..12 {
        let (mut world, agent) = sleeping(World::remembering(), ANDROID);
        world.say_to_phone(agent, tagged("inbox", "0"));
        world.taken();
        world.pass(10 * SECOND);
        world.sql.fail_after(statement);
        world.say_to_phone(agent, Message { r#ref: 1, ..tagged("inbox", "1") });
        if world.sql.heal() {
            break;
        }
        checked += 1;
        assert_eq!((world.read(agent), world.closed(agent)), (vec![], Some(1001)), "{statement}");
        let agent = world.modern_agent(&[1]);
        world.say_to_phone(agent, Message { r#ref: 1, ..tagged("inbox", "1") });
        assert!(world.read(agent).iter().any(|frame| matches!(frame, Frame::Accepted(_))));
        world.pass(MINUTE);
        assert!(world.taken().contains(&"1".to_owned()), "{statement}");
    }
    assert!(checked >= 4, "{checked}");
}

#[test]
fn the_end_of_a_connection_that_could_not_be_noted_is_made_up_for() {
    let (mut world, agent) = sleeping(World::remembering(), ANDROID);
    let phone = world.phone(Features::ALL, "token", ANDROID);
    world.say(agent, device(1), "x");
    world.sql.fail_after(1);
    world.hang_up(phone, 1006);
    assert!(!world.sql.heal());
    assert_eq!(world.pushed(), [""; 0]);
    world.pass(10 * MINUTE);
    assert_eq!(world.taken(), ["x"]);
}

#[test]
fn an_agent_that_returns_finds_what_a_panic_left_silent() {
    let (mut world, agent) = sleeping_phone();
    world.say(agent, device(1), "0");
    world.taken();
    // The object died between the message's row and the push's.
    let row = crate::store::Indexed { seq: 2, at: START, size: 1, sender: AGENT_KEY, tag: None, quiet: false };
    let nonce = skald_common::ids::MessageNonce::new([1; 12]);
    let queued = crate::store::Queued { sender: AGENT_KEY, nonce, ciphertext: Bytes::from_static(b"1") };
    Store::new(Rc::clone(&world.sql)).enqueue(1, &row, &queued).unwrap();
    world.hang_up(agent, 1006);
    world.modern_agent(&[1]);
    assert_eq!(world.taken(), ["1"]);
}

#[test]
fn a_database_from_before_there_were_pushes_gets_their_table_with_the_first() {
    let mut world = World::new();
    let agent = world.modern_agent(&[1]);
    let phone = world.phone(Features::ALL, "token", ANDROID);
    world.hang_up(phone, 1006);
    world.say(agent, device(1), "queued by a relay that could not push");
    assert_eq!((world.push_rows(), world.pushed().len()), (None, 0));
    world.services = Services { apns: true, fcm: true, web: true };
    world.say(agent, device(1), "queued by one that can");
    assert_eq!(world.push_rows(), Some(1));
    assert_eq!(world.taken(), ["queued by a relay that could not push", "queued by one that can"]);
    world.authorize(agent, &[]);
    assert_eq!((world.push_rows(), world.faults.len()), (Some(0), 0));
}

#[test]
fn a_row_that_cannot_be_read_is_as_good_as_none() {
    let (mut world, agent) = sleeping_phone();
    world.say(agent, device(1), "0");
    world.taken();
    world.sql.exec("UPDATE push SET state = x'ffffff'", &[]).unwrap();
    world.say(agent, device(1), "1");
    assert!(world.taken().contains(&"1".to_owned()));
    assert_eq!(world.faults, []);
}

#[test]
fn a_clock_that_goes_back_does_not_silence_a_phone_for_long() {
    let (mut world, agent) = sleeping_phone();
    world.say_to_phone(agent, tagged("inbox", "0"));
    world.taken();
    world.now -= 300 * DAY;
    world.say_to_phone(agent, tagged("inbox", "1"));
    world.pass(HOUR);
    assert_eq!(world.taken(), ["1"]);
}

// --- what the agent is told ---

fn states(frames: &[Frame]) -> Vec<Push> {
    let of = |frame: &Frame| match frame {
        Frame::PushStatus(status) => status.devices.iter().map(PushState::push).collect(),
        _ => Vec::new(),
    };
    frames.iter().flat_map(of).collect()
}

#[test]
fn an_agent_that_asks_for_it_learns_of_all_devices_after_its_list_and_of_each_change() {
    let (mut world, _) = sleeping_phone();
    world.services.apns = false;
    let agent = world.agent_with(Features::AGENT);
    let list = |devices: &[u8]| Authorize { clients: devices.iter().map(|n| device(*n).to_vec()).collect() };
    world.send(agent, Frame::Authorize(list(&[1, 2])));
    let frames = world.read(agent);
    let [.., Frame::AuthorizeOk(_), Frame::PushStatus(status)] = frames.as_slice() else { panic!("{frames:?}") };
    let mut told: Vec<_> =
        status.devices.iter().map(|state| (state.client_ed25519_pub.clone(), state.push())).collect();
    told.sort();
    assert_eq!(told, [(device(1).to_vec(), Push::Ready), (device(2).to_vec(), Push::None)]);

    let comes = |world: &mut World, token: &str, platform: i32| {
        let phone = world.phone(Features::ALL, token, platform);
        world.hang_up(phone, 1006);
        states(&world.read(agent))
    };
    assert_eq!(comes(&mut world, "token", ANDROID), []);
    assert_eq!(comes(&mut world, "other", ANDROID), [], "ready as before");
    assert_eq!(comes(&mut world, "apple", 1), [Push::Off]);
    assert_eq!(comes(&mut world, "google", ANDROID), [Push::Ready]);
    world.say(agent, device(1), "x");
    let job = world.push();
    world.answer(&job, Outcome::TokenGone);
    assert_eq!(states(&world.read(agent)), [Push::Gone]);
    assert_eq!(comes(&mut world, "google", ANDROID), [], "the same dead token");
    assert_eq!(comes(&mut world, "", 0), []);

    let agent = world.agent_with(Features::AGENT);
    world.send(agent, Frame::Authorize(list(&[1])));
    assert_eq!(states(&world.read(agent)), [Push::Gone], "after a restart too");
    let phone = world.phone(Features::ALL, "new", ANDROID);
    world.hang_up(phone, 1006);
    assert_eq!(states(&world.read(agent)), [Push::Ready]);
}

#[test]
fn an_agent_that_does_not_ask_for_it_and_every_client_are_told_nothing() {
    let (mut world, agent) = sleeping_phone();
    world.authorize(agent, &[1]);
    let phone = world.phone(Features::from_bits(u32::MAX), "new", 1);
    world.hang_up(phone, 1006);
    world.say(agent, device(1), "x");
    let job = world.push();
    world.answer(&job, Outcome::TokenGone);
    assert_eq!(states(&world.read(agent)), []);
    let phone = world.authenticate(Role::Client(World::client_role(1, Features::from_bits(u32::MAX))));
    let Some(Frame::AuthOk(ok)) = world.read(phone).into_iter().next() else { panic!("not let in") };
    assert_eq!(ok.features, 7);
}
