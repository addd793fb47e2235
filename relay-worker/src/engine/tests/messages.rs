//! Sending: who may write to whom, limits, collapse, rates.

use super::*;

fn with_ref(to: Ed25519Public, body: &str, reference: u64) -> Frame {
    Frame::Message(Message { r#ref: reference, ..message(to, body) })
}

fn tagged(to: Ed25519Public, body: &str, tag: &[u8]) -> Frame {
    Frame::Message(Message { collapse: tag.to_vec(), ..message(to, body) })
}

#[test]
fn messages_go_both_ways_untouched_with_the_senders_key() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    let phone = world.client(1);
    world.read(agent);
    for live in [false, true] {
        let sent = Message { live, ciphertext: vec![0, 255, 7].into(), ..message(device(1), "") };
        world.send(agent, Frame::Message(sent.clone()));
        assert_eq!(world.one(phone), Frame::Message(Message { peer: AGENT_KEY.to_vec(), ..sent.clone() }));
        world.send(phone, Frame::Message(Message { peer: AGENT_KEY.to_vec(), ..sent.clone() }));
        assert_eq!(world.one(agent), Frame::Message(Message { peer: device(1).to_vec(), ..sent }));
    }
}

#[test]
fn members_write_to_each_other_and_to_nobody_else() {
    let mut world = World::new();
    let agent = world.agent(&[1, 2]);
    let (one, two) = (world.client(1), world.client(2));
    world.read(one);
    for (from, to) in [(one, device(9)), (agent, device(9)), (one, device(1)), (agent, AGENT_KEY)] {
        world.read(from);
        world.say(from, to, "?");
        assert_eq!(world.refusal(from), "not_found");
        world.say_live(from, to, "?");
        assert_eq!(world.refusal(from), "not_found");
    }
    world.say(one, device(2), "hello");
    assert_eq!(world.texts(two), ["hello"]);
}

#[test]
fn a_message_of_wrong_form_is_a_bad_request_and_the_connection_lives() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    let right = message(device(1), "x");
    let wrong = [
        Message { nonce: vec![0; 11], ..right.clone() },
        Message { nonce: vec![], ..right.clone() },
        Message { peer: vec![1; 31], ..right.clone() },
        Message { ciphertext: Bytes::new(), ..right.clone() },
    ];
    for message in wrong {
        world.send(agent, Frame::Message(message));
        assert_eq!(world.refusal(agent), "bad_request");
    }
    assert_eq!(world.closed(agent), None);
}

#[test]
fn live_to_nobody_is_told_and_not_kept() {
    let mut world = World::new();
    let agent = world.modern_agent(&[1]);
    world.send(agent, Frame::Message(Message { live: true, r#ref: 3, ..message(device(1), "now or never") }));
    match world.one(agent) {
        Frame::PeerOffline(told) => assert_eq!((told.peer, told.r#ref), (device(1).to_vec(), 3)),
        other => panic!("{other:?}"),
    }
    let phone = world.client(1);
    assert_eq!(world.texts(phone), [""; 0]);
}

#[test]
fn accepted_says_whether_the_message_was_queued_and_returns_any_number_exactly() {
    let mut world = World::new();
    let agent = world.modern_agent(&[1]);
    let accepted = |world: &mut World, frame| {
        world.send(agent, frame);
        match world.read(agent).pop() {
            Some(Frame::Accepted(accepted)) => (accepted.r#ref, accepted.queued),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(accepted(&mut world, with_ref(device(1), "x", u64::MAX)), (u64::MAX, true));
    world.client(1);
    assert_eq!(accepted(&mut world, with_ref(device(1), "x", (1 << 53) + 1)), ((1 << 53) + 1, false));
    let live = Message { live: true, r#ref: 9, ..message(device(1), "x") };
    assert_eq!(accepted(&mut world, Frame::Message(live)), (9, false));
}

#[test]
fn without_a_number_nothing_is_accepted_aloud() {
    let mut world = World::new();
    let agent = world.modern_agent(&[1]);
    world.say(agent, device(1), "x");
    assert_eq!(world.read(agent), []);
}

#[test]
fn an_error_names_the_number() {
    let mut world = World::new();
    let agent = world.modern_agent(&[1]);
    world.send(agent, with_ref(device(9), "x", 9));
    assert!(matches!(world.one(agent), Frame::Error(error) if error.code == "not_found" && error.r#ref == 9));
}

#[test]
fn an_old_senders_new_fields_mean_nothing_and_an_old_receiver_sees_none() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    for tag in [&b"t"[..], b"t", &[b'x'; 17]] {
        let new = Message { r#ref: 5, collapse: tag.to_vec(), quiet: true, ..message(device(1), "n") };
        world.send(agent, Frame::Message(new));
    }
    assert_eq!(world.read(agent), []);
    world.send(agent, with_ref(device(9), "x", 9));
    assert!(matches!(world.one(agent), Frame::Error(error) if error.r#ref == 0));
    let phone = world.client(1);
    let messages = world.messages(phone);
    assert_eq!(messages.len(), 3);
    let plain = Message { peer: AGENT_KEY.to_vec(), ..message(device(1), "n") };
    assert!(messages.iter().all(|message| *message == plain));
}

#[test]
fn of_a_tag_only_the_newest_comes_and_everything_else_stays() {
    let mut world = World::new();
    let agent = world.modern_agent(&[1, 2]);
    let one = world.modern_client(1);
    world.hang_up(one, 1006);
    for n in 0..5 {
        world.send(agent, tagged(device(1), &format!("snapshot {n}"), b"inbox"));
        if n == 2 {
            world.say(agent, device(1), "note");
            world.send(agent, tagged(device(1), "other tag", b"x"));
            world.send(agent, tagged(device(2), "other recipient", b"inbox"));
        }
    }
    let two = world.modern_client(2);
    assert_eq!(world.texts(two), ["other recipient"]);
    world.send(two, tagged(device(1), "other sender", b"inbox"));
    let one = world.modern_client(1);
    assert_eq!(world.texts(one), ["note", "other tag", "snapshot 4", "other sender"]);
}

#[test]
fn a_collapse_tag_has_at_most_16_bytes() {
    let mut world = World::new();
    let agent = world.modern_agent(&[1]);
    world.send(agent, tagged(device(1), "x", &[1; 16]));
    assert_eq!(world.read(agent), []);
    world.send(agent, tagged(device(1), "x", &[1; 17]));
    assert_eq!(world.refusal(agent), "bad_request");
}

#[test]
fn a_message_under_way_collapses_too() {
    let mut world = World::new();
    let agent = world.modern_agent(&[1]);
    for features in [Features::ALL, Features::NONE] {
        let phone = world.client_with(1, features);
        world.send(agent, tagged(device(1), "one", b"t"));
        world.send(agent, tagged(device(1), "two", b"t"));
        assert_eq!(world.texts(phone), ["one", "two"]);
        world.hang_up(phone, 1006);
        let phone = world.modern_client(1);
        let messages = world.messages(phone);
        assert_eq!(messages.iter().map(text).collect::<Vec<_>>(), ["two"]);
        world.ack(phone, messages[0].delivery);
        world.hang_up(phone, 1000);
    }
}

#[test]
fn two_hundred_wait_and_the_next_is_refused_unless_it_takes_the_place_of_one() {
    let mut world = World::new();
    let agent = world.modern_agent(&[1]);
    world.send(agent, tagged(device(1), "old snapshot", b"inbox"));
    for n in 0..199 {
        world.say(agent, device(1), &n.to_string());
    }
    assert_eq!(world.read(agent), []);
    world.send(agent, with_ref(device(1), "too many", 1));
    assert!(matches!(world.one(agent), Frame::Error(error) if error.code == "queue_full" && error.r#ref == 1));
    world.send(agent, tagged(device(1), "new snapshot", b"inbox"));
    assert_eq!(world.read(agent), []);
    let phone = world.client(1);
    let expected: Vec<_> = numbered(0..199).into_iter().chain(["new snapshot".to_owned()]).collect();
    assert_eq!(world.texts(phone), expected);
}

#[test]
fn a_queue_holds_four_mebibytes() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    let big = "x".repeat(65_000);
    for _ in 0..64 {
        world.say(agent, device(1), &big);
    }
    assert_eq!(world.read(agent), []);
    world.say(agent, device(1), &big);
    assert_eq!(world.refusal(agent), "queue_full");
    world.say(agent, device(1), "a small one fits");
    assert_eq!(world.read(agent), []);
}

#[test]
fn what_is_under_way_does_not_count_toward_the_limit() {
    let mut world = World::remembering();
    let agent = world.agent(&[1]);
    let phone = world.client(1);
    for n in 0..230 {
        world.say(agent, device(1), &n.to_string());
    }
    assert_eq!(world.texts(phone), numbered(0..230));
    let complaints: Vec<_> = world.read(agent).into_iter().filter(|frame| matches!(frame, Frame::Error(_))).collect();
    assert_eq!(complaints, []);
    assert_eq!(world.queued_rows(), 200, "beyond 200 unproved the oldest are forgotten");
    world.hang_up(phone, 1006);
    let phone = world.client(1);
    assert_eq!(world.texts(phone), numbered(30..230));
}

#[test]
fn a_stored_message_over_64_kib_and_a_live_one_over_512_kib_are_too_large() {
    let mut world = World::new();
    let agent = world.modern_agent(&[1]);
    let phone = world.client(1);
    let sized = |size: usize, live| Message { live, r#ref: 4, ..message(device(1), &"x".repeat(size)) };
    for (size, live) in [(65_000, false), (524_000, true)] {
        world.send(agent, Frame::Message(sized(size, live)));
        assert_eq!(world.messages(phone).pop().map(|message| message.ciphertext.len()), Some(size));
    }
    for (size, live, reference) in [(66_000, false, 4), (525_000, true, 0)] {
        let agent = world.modern_agent(&[1]);
        world.send(agent, Frame::Message(sized(size, live)));
        match world.one(agent) {
            Frame::Error(error) => assert_eq!((error.code.as_str(), error.r#ref), ("payload_too_large", reference)),
            other => panic!("{other:?}"),
        }
        assert_eq!(world.closed(agent), Some(4009));
        assert_eq!(world.messages(phone), []);
    }
}

#[test]
fn a_device_has_60_frames_a_minute_and_the_agent_240_and_what_is_dropped_is_told() {
    let mut world = World::remembering();
    let agent = world.modern_agent(&[1]);
    let phone = world.client_with(1, Features::RECEIPTS);
    world.read(agent);
    for (conn, to, budget) in [(phone, AGENT_KEY, 60), (agent, device(1), 240)] {
        world.read(conn);
        for n in 0..budget {
            world.send(conn, Frame::Message(Message { live: n % 2 == 0, ..message(to, "x") }));
        }
        assert!(world.read(conn).iter().all(|frame| !matches!(frame, Frame::Error(_))));
        world.send(conn, with_ref(to, "x", 5));
        assert!(matches!(world.one(conn), Frame::Error(error) if error.code == "rate_limited" && error.r#ref == 5));
        world.send(conn, Frame::PresenceRequest(PresenceRequest {}));
        assert_eq!(world.refusal(conn), "rate_limited");
        world.now += SECOND;
        world.send(conn, Frame::PresenceRequest(PresenceRequest {}));
        assert!(matches!(world.one(conn), Frame::PresenceList(_)), "the connection lives");
    }
}

#[test]
fn unknown_is_ignored_and_malformed_is_told() {
    let mut world = World::new();
    let agent = world.agent(&[]);
    for unknown in [&b""[..], b"\xea\x04\x01x", b"\x9a\x01\x00", b"\x98\x06\x01"] {
        world.send_raw(agent, unknown);
        assert_eq!(world.read(agent), [], "{unknown:02x?}");
    }
    world.step(Input::Text { conn: agent });
    assert_eq!(world.read(agent), []);
    for malformed in [&[0xff; 11][..], b"\x62\xff\xff\xff\xff\x0f", b"\x0b", b"\x62\x05\x0a\x7f"] {
        world.send_raw(agent, malformed);
        assert_eq!(world.refusal(agent), "bad_request", "{malformed:02x?}");
    }
    assert_eq!(world.closed(agent), None);
}

#[test]
fn a_peer_that_provokes_errors_and_reads_none_is_cut_off() {
    let mut world = World::new();
    let agent = world.agent(&[]);
    world.sockets.get_mut(&agent).unwrap().buffered = 9 << 20;
    world.send_raw(agent, &[0xff; 11]);
    assert_eq!(world.closed(agent), Some(4000));
}

#[test]
fn a_quiet_message_is_marked_so_in_the_queue() {
    let mut world = World::new();
    let agent = world.modern_agent(&[1]);
    world.send(agent, Frame::Message(Message { quiet: true, ..message(device(1), "hush") }));
    world.say(agent, device(1), "ring");
    let rows = Store::new(Rc::clone(&world.sql)).queue(1).unwrap();
    assert_eq!(rows.iter().map(|row| row.quiet).collect::<Vec<_>>(), [true, false]);
}
