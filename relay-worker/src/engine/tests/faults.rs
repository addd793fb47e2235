//! Storage that fails: nothing is reported accepted that is not durable, nothing panics, everything goes on after a redial.

use skald_common::ids::MessageNonce;

use super::*;
use crate::store::{Indexed, Queued};

#[test]
fn a_message_that_cannot_be_stored_is_not_accepted_and_its_sender_redials() {
    let mut world = World::remembering();
    let agent = world.modern_agent(&[1]);
    world.say(agent, device(1), "0");
    world.sql.fail_after(0);
    world.send(agent, Frame::Message(Message { r#ref: 1, ..message(device(1), "1") }));
    assert_eq!((world.read(agent), world.closed(agent)), (vec![], Some(1001)));
    assert_eq!(world.faults.len(), 1);
    let agent = world.modern_agent(&[1]);
    world.send(agent, Frame::Message(Message { r#ref: 1, ..message(device(1), "1") }));
    assert!(matches!(world.one(agent), Frame::Accepted(_)));
    let phone = world.client(1);
    assert_eq!(world.texts(phone), ["0", "1"]);
}

#[test]
fn a_collapse_that_fails_half_way_loses_neither_message() {
    for statement in 0..2 {
        let mut world = World::remembering();
        let agent = world.modern_agent(&[1]);
        let tagged = |body| Frame::Message(Message { collapse: b"t".to_vec(), ..message(device(1), body) });
        world.send(agent, tagged("old"));
        world.sql.fail_after(statement);
        world.send(agent, tagged("new"));
        assert_eq!(world.closed(agent), Some(1001));
        let phone = world.client(1);
        assert_eq!(world.texts(phone), ["old"]);
    }
}

#[test]
fn a_list_that_fails_half_way_changes_nothing() {
    for statement in 0..4 {
        let mut world = World::remembering();
        let agent = world.agent(&[1, 2]);
        let phone = world.client(1);
        world.sql.fail_after(statement);
        world.send(agent, Frame::Authorize(Authorize { clients: vec![device(2).to_vec(), device(3).to_vec()] }));
        world.sql.heal();
        if world.closed(agent).is_some() {
            assert_eq!(world.closed(phone), None);
            assert_eq!(world.refused_client(3), "unauthorized");
        } else {
            assert_eq!(world.closed(phone), Some(4003));
        }
    }
}

#[test]
fn a_pairing_that_fails_half_way_leaves_the_token_usable() {
    for statement in 0..3 {
        let mut world = World::remembering();
        let agent = world.agent(&[]);
        world.open_window(agent, 60);
        world.sql.fail_after(statement);
        let conn = world.authenticate(Role::Pairing(World::pairing_role(1)));
        assert_eq!((world.read(conn), world.closed(conn)), (vec![], Some(1001)));
        assert_eq!(world.pair(1), None);
    }
}

#[test]
fn a_recipient_whose_queue_cannot_be_read_redials_and_the_sender_is_none_the_worse() {
    let mut world = World::new();
    let mut agent = world.modern_agent(&[1]);
    for n in 0..3 {
        world.say(agent, device(1), &n.to_string());
    }
    for statements in 0..30 {
        world.sql.fail_after(statements);
        let conn = world.authenticate(Role::Client(World::client_role(1, Features::ALL)));
        let failed = !world.sql.heal();
        if let (None, Some(code)) = (world.closed(conn), world.closed(agent)) {
            assert_eq!((failed, code), (true, 1001), "it was the agent's own queue");
            agent = world.modern_agent(&[1]);
            continue;
        }
        assert_eq!((world.closed(conn), world.closed(agent)), (failed.then_some(1001), None), "after {statements}");
        if !failed {
            assert!(statements > 5);
            break;
        }
    }
    let phone = world.client(1);
    assert_eq!(world.texts(phone), numbered(0..3));
}

#[test]
fn an_ack_that_cannot_be_stored_brings_the_message_again() {
    let mut world = World::remembering();
    let agent = world.agent(&[1]);
    world.say(agent, device(1), "x");
    let phone = world.modern_client(1);
    let delivery = world.messages(phone)[0].delivery;
    world.sql.fail_after(0);
    world.ack(phone, delivery);
    assert_eq!(world.closed(phone), Some(1001));
    let phone = world.modern_client(1);
    assert_eq!(world.texts(phone), ["x"]);
}

#[test]
fn an_alarm_that_fails_anywhere_is_tried_again() {
    for statement in 0..20 {
        let mut world = World::new();
        let agent = world.agent(&[1]);
        world.say(agent, device(1), "x");
        world.hang_up(agent, 1000);
        world.now += 8 * DAY;
        world.alarm = None;
        world.sql.fail_after(statement);
        world.step(Input::Alarm);
        let failed = !world.sql.heal();
        assert_eq!(world.faults.len(), usize::from(failed));
        assert!(world.alarm.is_some(), "after {statement}");
        world.pass(HOUR);
        assert_eq!(world.queued_rows(), 0);
        if !failed {
            assert!(statement > 4);
            break;
        }
    }
}

#[test]
fn tables_of_a_newer_relay_are_left_alone() {
    let mut world = World::new();
    world.agent(&[1]);
    world.sql.exec("UPDATE namespace SET version = 2", &[]).unwrap();
    let conn = world.authenticate(Role::Client(World::client_role(1, Features::NONE)));
    assert_eq!((world.read(conn), world.closed(conn)), (vec![], Some(1001)));
    assert!(world.faults[0].to_string().contains("version 2"));
}

#[test]
fn a_message_that_was_stored_before_a_crash_goes_out_with_whatever_comes_next() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    let phone = world.client(1);
    // The object died between the row and its delivery; an old phone or agent does not send it again.
    let row = Indexed { seq: 1, at: START, size: 1, sender: AGENT_KEY, tag: None, quiet: false };
    let x = Queued { sender: AGENT_KEY, nonce: MessageNonce::new([7; 12]), ciphertext: Bytes::from_static(b"x") };
    Store::new(Rc::clone(&world.sql)).enqueue(1, &row, &x).unwrap();
    world.send_raw(agent, b"");
    assert_eq!(world.texts(phone), ["x"]);
}

#[test]
fn a_revocation_that_was_stored_but_not_carried_out_holds_after_a_crash() {
    let mut world = World::new();
    let agent = world.agent(&[1, 2]);
    let phone = world.client(1);
    // The object died between the commit and the close.
    world.sql.exec("DELETE FROM member WHERE no = 1", &[]).unwrap();
    world.say(phone, AGENT_KEY, "I am still here");
    assert_eq!((world.closed(phone), world.texts(agent)), (Some(4003), vec![]));
}
