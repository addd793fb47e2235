//! The delivery guarantee: nothing accepted is lost, nothing newer comes before something older.

use super::*;

/// Sends `range` to device 1 as stored messages.
fn fill(world: &mut World, agent: ConnId, range: std::ops::Range<u32>) {
    for n in range {
        world.say(agent, device(1), &n.to_string());
    }
}

#[test]
fn the_queue_comes_first_in_first_out_right_after_auth_ok() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    fill(&mut world, agent, 0..20);
    let phone = world.client(1);
    assert_eq!(world.texts(phone), numbered(0..20));
    assert_eq!(world.queued_rows(), 20, "written to a socket is not received");
}

#[test]
fn an_agent_has_a_queue_too() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    let phone = world.client(1);
    world.hang_up(agent, 1000);
    world.say(phone, AGENT_KEY, "answer");
    let agent = world.agent_with(Features::NONE);
    assert_eq!(world.texts(agent), ["answer"]);
}

#[test]
fn deliveries_are_numbered_for_peers_with_receipts_and_acks_are_cumulative() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    fill(&mut world, agent, 0..10);
    let phone = world.modern_client(1);
    let messages = world.messages(phone);
    assert!(messages.is_sorted_by(|a, b| a.delivery < b.delivery));
    world.ack(phone, messages[8].delivery);
    world.hang_up(phone, 1006);
    let phone = world.modern_client(1);
    assert_eq!(world.texts(phone), ["9"]);
}

#[test]
fn numbers_keep_rising_on_a_connection_whose_queue_is_empty_again() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    let phone = world.modern_client(1);
    let mut last = 0;
    for n in 0..5 {
        world.say(agent, device(1), &n.to_string());
        let delivery = world.messages(phone).pop().unwrap().delivery;
        assert!(delivery > last);
        last = delivery;
        world.ack(phone, delivery);
        assert_eq!(world.queued_rows(), 0);
    }
}

#[test]
fn an_ack_touches_only_what_was_sent_to_its_own_key_on_its_own_connection() {
    let mut world = World::new();
    let agent = world.agent(&[1, 2]);
    fill(&mut world, agent, 0..3);
    let two = world.modern_client(2);
    let old = world.modern_client(1);
    for n in 0..50 {
        world.ack(two, n);
    }
    let new = world.modern_client(1);
    world.ack(old, 3); // replaced
    assert_eq!(world.queued_rows(), 3);
    world.ack(new, u64::MAX);
    assert_eq!(world.queued_rows(), 0);
}

#[test]
fn an_ack_beyond_what_was_sent_touches_nothing_that_was_not() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    fill(&mut world, agent, 0..100);
    let phone = world.modern_client(1);
    assert_eq!(world.texts(phone), numbered(0..64));
    world.ack(phone, u64::MAX);
    assert_eq!(world.texts(phone), numbered(64..100));
    assert_eq!(world.queued_rows(), 36);
}

#[test]
fn an_ack_from_a_peer_without_receipts_means_nothing() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    fill(&mut world, agent, 0..1);
    let phone = world.client(1);
    world.ack(phone, 99);
    assert_eq!(world.queued_rows(), 1);
}

#[test]
fn without_receipts_a_frame_proves_only_what_was_sent_two_seconds_before_it() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    fill(&mut world, agent, 0..1);
    let phone = world.client(1);
    world.pass(SECOND);
    fill(&mut world, agent, 1..2);
    world.pass(SECOND - 1);
    world.say(phone, AGENT_KEY, "one-shot answer");
    assert_eq!(world.queued_rows(), 2 + 1, "1,999 ms prove nothing (one more row is the answer)");
    world.pass(1);
    world.send_raw(phone, b"");
    assert_eq!(world.queued_rows(), 1 + 1);
    world.hang_up(phone, 1006);
    let phone = world.client(1);
    assert_eq!(world.texts(phone), ["1"]);
}

#[test]
fn without_receipts_only_a_close_with_1000_after_two_seconds_proves() {
    for (age, code, proves) in [(2000, 1000, true), (1999, 1000, false), (2000, 1001, false), (60_000, 1006, false)] {
        let mut world = World::new();
        let agent = world.agent(&[1]);
        fill(&mut world, agent, 0..1);
        let phone = world.client(1);
        world.pass(age);
        world.hang_up(phone, code);
        assert_eq!(world.queued_rows(), u64::from(!proves), "{age} ms, {code}");
    }
}

#[test]
fn with_receipts_neither_age_nor_a_close_proves() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    fill(&mut world, agent, 0..1);
    let phone = world.modern_client(1);
    world.pass(10 * SECOND);
    world.online(phone);
    world.hang_up(phone, 1000);
    assert_eq!(world.queued_rows(), 1);
}

#[test]
fn age_and_replacement_prove_nothing() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    fill(&mut world, agent, 0..3);
    let old = world.client(1);
    world.pass(HOUR);
    let new = world.client(1);
    assert_eq!(world.texts(new), numbered(0..3));
    world.hang_up(old, 1000);
    assert_eq!(world.queued_rows(), 3);
}

#[test]
fn a_dead_socket_swallows_nothing() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    let dead = world.modern_client(1);
    fill(&mut world, agent, 0..50);
    world.hang_up(dead, 1006);
    let phone = world.modern_client(1);
    assert_eq!(world.texts(phone), numbered(0..50));
}

#[test]
fn the_drain_is_paced_and_nothing_passes_it() {
    let mut world = World::remembering();
    let agent = world.modern_agent(&[1]);
    fill(&mut world, agent, 0..90);
    let phone = world.modern_client(1);
    let mut seen = world.messages(phone);
    assert_eq!(seen.len(), 64);
    world.send(agent, Frame::Message(Message { live: true, r#ref: 1, ..message(device(1), "live") }));
    fill(&mut world, agent, 90..91);
    assert_eq!(world.read(phone), []);
    assert_eq!(world.read(agent), [], "neither accepted yet, nor told that the phone is online");
    assert_eq!(world.online(agent), [device(1), AGENT_KEY], "but it is in the list");
    for _ in 0..3 {
        let last = seen.iter().map(|message| message.delivery).max().unwrap();
        world.ack(phone, last);
        seen.extend(world.messages(phone));
    }
    let expected: Vec<_> = numbered(0..90).into_iter().chain(["live".into(), "90".into()]).collect();
    assert_eq!(seen.iter().map(text).collect::<Vec<_>>(), expected);
    let told = world.read(agent);
    assert!(
        matches!(told.as_slice(), [Frame::Accepted(accepted), Frame::PresenceEvent(_)]
        if accepted.r#ref == 1 && !accepted.queued),
        "{told:?}"
    );
}

#[test]
fn the_window_is_also_one_mebibyte() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    let big = "x".repeat(65_000);
    for _ in 0..30 {
        world.say(agent, device(1), &big);
    }
    let phone = world.modern_client(1);
    let first = world.messages(phone);
    assert_eq!(first.len(), 16);
    world.ack(phone, first[15].delivery);
    assert_eq!(world.messages(phone).len(), 14);
}

#[test]
fn without_receipts_the_window_is_what_the_socket_has_not_sent() {
    let mut world = World::remembering();
    let agent = world.agent(&[1]);
    let big = "x".repeat(65_000);
    for _ in 0..40 {
        world.say(agent, device(1), &big);
    }
    let phone = world.client(1);
    assert_eq!(world.messages(phone).len(), 16);
    world.sockets.get_mut(&phone).unwrap().buffered = 1 << 20;
    world.pass(SECOND);
    assert_eq!(world.messages(phone).len(), 0);
    world.sockets.get_mut(&phone).unwrap().buffered = 0;
    world.pass(SECOND);
    assert_eq!(world.messages(phone).len(), 24);
    assert_eq!(world.timer, None);
}

#[test]
fn a_stalled_drain_goes_on_after_an_eviction() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    let big = "x".repeat(65_000);
    for _ in 0..20 {
        world.say(agent, device(1), &big);
    }
    let phone = world.client(1);
    assert_eq!(world.messages(phone).len(), 16);
    world.evict();
    world.send_raw(agent, b"");
    assert_eq!(world.messages(phone).len(), 4, "by whatever comes first");
}

#[test]
fn a_socket_that_takes_nothing_for_a_minute_is_dead_and_loses_nothing() {
    let mut world = World::new();
    let agent = world.modern_agent(&[1]);
    let phone = world.client(1);
    world.sockets.get_mut(&phone).unwrap().buffered = 2 << 20;
    fill(&mut world, agent, 0..3);
    world.pass(59 * SECOND);
    assert_eq!(world.closed(phone), None);
    world.sockets.get_mut(&phone).unwrap().buffered -= 1;
    world.pass(59 * SECOND);
    assert_eq!(world.closed(phone), None, "slow is not dead");
    world.pass(3 * SECOND);
    assert_eq!(world.closed(phone), Some(4008));
    let phone = world.client(1);
    assert_eq!(world.texts(phone), numbered(0..3));
}

#[test]
fn live_messages_wait_in_their_place_up_to_16() {
    let mut world = World::remembering();
    let agent = world.modern_agent(&[1]);
    fill(&mut world, agent, 0..65);
    let phone = world.modern_client(1);
    let last = world.messages(phone).pop().unwrap().delivery;
    for n in 0..17 {
        let live = Message { live: true, r#ref: n + 1, ..message(device(1), &format!("live {n}")) };
        world.send(agent, Frame::Message(live));
    }
    assert!(matches!(world.one(agent), Frame::PeerOffline(told) if told.r#ref == 17));
    world.ack(phone, last);
    let expected: Vec<_> = ["64".to_owned()].into_iter().chain((0..16).map(|n| format!("live {n}"))).collect();
    assert_eq!(world.texts(phone), expected);
    let accepted = |frame: &Frame| if let Frame::Accepted(accepted) = frame { Some(accepted.r#ref) } else { None };
    assert_eq!(world.read(agent).iter().filter_map(accepted).collect::<Vec<_>>(), (1..=16).collect::<Vec<_>>());
}

#[test]
fn live_messages_wait_up_to_one_mebibyte() {
    let mut world = World::remembering();
    let agent = world.modern_agent(&[1]);
    fill(&mut world, agent, 0..65);
    world.modern_client(1);
    for _ in 0..3 {
        world.say_live(agent, device(1), &"x".repeat(500_000));
    }
    assert!(matches!(world.one(agent), Frame::PeerOffline(_)));
}

#[test]
fn live_messages_that_wait_in_vain_have_found_nobody() {
    let mut world = World::remembering();
    let agent = world.modern_agent(&[1]);
    fill(&mut world, agent, 0..65);
    let phone = world.modern_client(1);
    world.say_live(agent, device(1), "in vain");
    world.pass(30 * SECOND - 1);
    assert_eq!(world.read(agent), []);
    world.pass(1);
    assert!(matches!(world.one(agent), Frame::PeerOffline(_)));
    world.say_live(agent, device(1), "cut off");
    world.hang_up(phone, 1006);
    assert!(matches!(world.read(agent).as_slice(), [Frame::PeerOffline(_), Frame::PresenceEvent(_)]));
}

#[test]
fn live_messages_that_wait_move_to_the_connection_that_replaces() {
    let mut world = World::remembering();
    let agent = world.modern_agent(&[1]);
    fill(&mut world, agent, 0..65);
    let old = world.modern_client(1);
    world.say_live(agent, device(1), "live");
    let last = world.messages(old).pop().unwrap().delivery;
    let new = world.modern_client(1);
    fill(&mut world, agent, 65..66);
    let mut texts = world.texts(new);
    world.ack(new, last);
    texts.extend(world.texts(new));
    let expected: Vec<_> = numbered(0..65).into_iter().chain(["live".into(), "65".into()]).collect();
    assert_eq!(texts, expected);
}

#[test]
fn a_peer_that_talks_and_never_acknowledges_is_cut_off_after_a_minute() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    let phone = world.modern_client(1);
    fill(&mut world, agent, 0..2);
    world.read(phone);
    world.pass(59 * SECOND);
    world.online(phone);
    assert_eq!(world.closed(phone), None);
    world.pass(SECOND);
    world.say(phone, AGENT_KEY, "still talking");
    assert_eq!((world.refusal(phone), world.closed(phone)), ("bad_request".into(), Some(4000)));
    assert_eq!(world.texts(agent), ["still talking"], "what it said is not lost");
    let phone = world.modern_client(1);
    assert_eq!(world.texts(phone), numbered(0..2));
}

#[test]
fn an_ack_that_comes_late_is_welcome() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    let phone = world.modern_client(1);
    fill(&mut world, agent, 0..1);
    let delivery = world.messages(phone)[0].delivery;
    world.pass(HOUR);
    world.sockets.get_mut(&phone).unwrap().last_ping = Some(world.now);
    world.ack(phone, delivery);
    assert_eq!((world.closed(phone), world.queued_rows()), (None, 0));
}

#[test]
fn after_a_week_a_message_is_dropped_even_if_no_alarm_came() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    fill(&mut world, agent, 0..2);
    world.now += DAY;
    fill(&mut world, agent, 2..3);
    world.alarm = None;
    world.now += 6 * DAY;
    let phone = world.client(1);
    assert_eq!(world.texts(phone), ["2"]);
}

#[test]
fn request_answer_and_clearing_cost_six_rows_and_six_frames_and_live_costs_no_row() {
    // Rows read: in memory, none but those that are written. An object that wakes up for every frame reads its namespace, its
    // device and what is queued each time as well.
    for (mut world, reads, live_reads) in [(World::remembering(), 6, 0), (World::new(), 33, 4)] {
        let agent = world.modern_agent(&[1]);
        let phone = world.modern_client(1);
        world.read(agent);
        let before = (world.sql.rows_written(), world.frames_in, world.sql.rows_read());
        let cost = |world: &World| {
            (world.sql.rows_written() - before.0, world.frames_in - before.1, world.sql.rows_read() - before.2)
        };
        for (from, to_key, to) in [(agent, device(1), phone), (phone, AGENT_KEY, agent), (agent, device(1), phone)] {
            world.say(from, to_key, "x");
            let delivery = world.messages(to)[0].delivery;
            world.ack(to, delivery);
        }
        let (rows, frames, read) = cost(&world);
        assert_eq!((rows, frames), (6, 6));
        assert!(read <= reads, "{read} rows read");
        world.say_live(phone, AGENT_KEY, "pull");
        assert_eq!(world.texts(agent), ["pull"]);
        let (rows, frames, live_read) = cost(&world);
        assert_eq!((rows, frames), (6, 7));
        assert!(live_read - read <= live_reads, "{} rows read", live_read - read);
    }
}

#[test]
fn a_message_stored_after_a_waiting_live_one_stays_behind_it_even_when_the_queue_was_swept_in_between() {
    let mut world = World::remembering();
    let agent = world.modern_agent(&[1]);
    fill(&mut world, agent, 0..65);
    world.sockets.get_mut(&agent).unwrap().last_ping = Some(START + 7 * DAY);
    world.pass(7 * DAY - SECOND);
    let phone = world.modern_client(1);
    let last = world.messages(phone).pop().unwrap().delivery;
    world.say_live(agent, device(1), "live");
    world.pass(SECOND);
    assert_eq!(world.queued_rows(), 0);
    world.say(agent, device(1), "new");
    world.ack(phone, last);
    assert_eq!(world.texts(phone), ["live", "new"]);
}

#[test]
fn replaced_snapshots_do_not_push_a_message_out_that_waits_for_its_proof() {
    let mut world = World::with(Limits { agent_rate_per_minute: 1000, ..Limits::default() }, false);
    let agent = world.modern_agent(&[1]);
    let phone = world.client(1);
    world.say(agent, device(1), "keep");
    for n in 0..250 {
        let snapshot = Message { collapse: b"inbox".to_vec(), ..message(device(1), &n.to_string()) };
        world.send(agent, Frame::Message(snapshot));
    }
    world.hang_up(phone, 1006);
    let phone = world.client(1);
    assert_eq!(world.texts(phone), ["keep", "249"]);
}
