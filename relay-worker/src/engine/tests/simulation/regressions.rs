//! Histories that once failed, shrunk and printed by the simulation, each named for what went wrong.

use super::history::Exit::{Away, Cut};
use super::history::Op::*;
use super::history::Route::{Direct, Front};
use super::history::Token::Newest;
use super::history::Verdict::Refused;
use super::history::{Setup, Text};
use super::holds;

const SETUP: Setup = Setup {
    window: 6,
    window_bytes: 4096,
    held: 16,
    queue: 20,
    queue_bytes: 20_000,
    rate: 9999,
    pending: 16,
    pipes: 3,
    services: 0,
};

const fn text(from: usize, to: usize, size: u32) -> Text {
    Text { from, to, size, live: false, tag: None, quiet: false }
}

const fn tagged(from: usize, to: usize, size: u32) -> Text {
    Text { tag: Some(0), ..text(from, to, size) }
}

#[test]
fn a_list_that_was_stored_though_its_commit_was_reported_failed_lets_no_old_connection_take_a_new_device_s_place() {
    for statement in 0..10 {
        let ops = vec![
            Connect { peer: 0, features: 7, route: Front },
            Authorize { device: 1, on: true },
            Authorize { device: 2, on: true },
            Connect { peer: 2, features: 0, route: Direct },
            Say(text(2, 0, 20)),
            Pass { ms: 3_456_000_000 },
            Say(text(0, 3, 20)),
            Connect { peer: 1, features: 4, route: Front },
            OneShot(text(2, 0, 300)),
            Authorize { device: 1, on: false },
            Authorize { device: 3, on: true },
            Authorize { device: 2, on: false },
            Fault { statement, done: true },
            Connect { peer: 0, features: 7, route: Front },
            Authorize { device: 1, on: true },
        ];
        holds(SETUP, ops);
    }
}

#[test]
fn a_panic_before_the_session_is_saved_leaves_no_peer_that_believes_it_is_connected() {
    for outputs in 0..8 {
        let ops = vec![
            Authorize { device: 4, on: true },
            Connect { peer: 0, features: 0, route: Front },
            Connect { peer: 4, features: 7, route: Direct },
            CrashAfterOutputs { outputs },
            Connect { peer: 0, features: 3, route: Direct },
            Say(text(4, 0, 100)),
        ];
        holds(SETUP, ops);
    }
}

#[test]
fn a_repeated_snapshot_keeps_its_place_before_what_was_sent_after_it() {
    let ops = vec![
        Authorize { device: 2, on: true },
        Connect { peer: 0, features: 7, route: Front },
        Say(tagged(0, 2, 1500)),
        Say(text(0, 2, 20)),
    ];
    holds(SETUP, ops);
}

#[test]
fn a_snapshot_that_another_replaced_is_not_repeated_in_its_place() {
    let ops = vec![
        Connect { peer: 0, features: 4, route: Direct },
        Authorize { device: 3, on: true },
        Connect { peer: 3, features: 7, route: Front },
        Say(text(3, 0, 300)),
        Say(tagged(3, 0, 1500)),
        Say(tagged(3, 0, 20)),
        Say(text(3, 0, 20)),
    ];
    holds(Setup { window: 1, ..SETUP }, ops);
}

#[test]
fn what_was_written_in_the_same_turn_does_not_make_a_socket_look_dead() {
    let ops = vec![
        Connect { peer: 0, features: 7, route: Front },
        Authorize { device: 1, on: true },
        Authorize { device: 3, on: true },
        Connect { peer: 1, features: 0, route: Front },
        Say(text(1, 0, 1500)),
        Say(text(1, 0, 1500)),
        Evict,
        Connect { peer: 3, features: 0, route: Front },
        Evict,
        Pass { ms: 60_232 },
        Connect { peer: 3, features: 7, route: Front },
    ];
    holds(Setup { window: 3, window_bytes: 600, ..SETUP }, ops);
}

#[test]
fn a_connection_that_ends_while_storage_fails_leaves_nothing_behind_in_memory() {
    for statement in 0..8 {
        let ops = vec![
            Authorize { device: 4, on: true },
            Connect { peer: 0, features: 4, route: Front },
            Connect { peer: 4, features: 3, route: Front },
            Evict,
            Fault { statement, done: true },
            Leave { peer: 4, exit: Cut },
        ];
        holds(SETUP, ops);
        let ops = vec![
            Authorize { device: 1, on: true },
            Connect { peer: 0, features: 4, route: Front },
            Connect { peer: 1, features: 7, route: Front },
            Fault { statement, done: true },
            Authorize { device: 1, on: false },
            Leave { peer: 1, exit: Away },
        ];
        holds(SETUP, ops);
    }
}

#[test]
fn an_agent_that_returns_after_the_end_of_its_namespace_is_not_deleted_with_it() {
    let ops = vec![
        Connect { peer: 0, features: 7, route: Front },
        Authorize { device: 2, on: true },
        Leave { peer: 0, exit: Cut },
        Jump { ms: 8_640_000_000 },
        Connect { peer: 0, features: 7, route: Front },
        OpenWindow { ttl: 60 },
        Pair { device: 1, token: Newest, route: Front },
        Say(text(0, 2, 20)),
    ];
    holds(SETUP, ops);
}

#[test]
fn a_clock_that_goes_back_under_a_stalled_drain_makes_no_busy_timer() {
    use super::history::Wire::Slow;
    let ops = vec![
        Authorize { device: 2, on: true },
        Connect { peer: 0, features: 7, route: Front },
        Say(text(0, 2, 1500)),
        Connect { peer: 2, features: 7, route: Direct },
        Jump { ms: -3_600_000 },
        SetWire { peer: 2, wire: Slow },
        Connect { peer: 0, features: 7, route: Front },
        Pass { ms: 3_177_395 },
    ];
    holds(Setup { window: 2, window_bytes: 600, ..SETUP }, ops);
}

#[test]
fn an_old_peer_proves_nothing_that_still_waits_in_the_platforms_buffer() {
    use super::history::Wire::Slow;
    let ops = vec![
        Connect { peer: 0, features: 7, route: Front },
        Authorize { device: 1, on: true },
        Connect { peer: 1, features: 0, route: Front },
        SetWire { peer: 1, wire: Slow },
        Say(text(0, 1, 300)),
        Pass { ms: 2500 },
        Presence { peer: 1 },
        Leave { peer: 1, exit: Cut },
    ];
    holds(SETUP, ops);
}

#[test]
fn an_alarm_that_was_put_off_while_a_device_had_no_address_that_counts_is_set_when_it_has_one_again() {
    let ops = vec![
        Connect { peer: 0, features: 7, route: Front },
        Equip { device: 1, platform: 77 },
        Authorize { device: 3, on: true },
        Equip { device: 3, platform: 2 },
        Say(tagged(0, 3, 300)),
        Connect { peer: 0, features: 4, route: Front },
        OpenWindow { ttl: 60 },
        OneShot(text(3, 0, 300)),
        Pair { device: 1, token: Newest, route: Front },
        Authorize { device: 1, on: true },
        Say(text(0, 1, 20)),
        Answer { nth: 6, verdict: Refused, again: false },
        Pass { ms: 437 },
        Connect { peer: 1, features: 15, route: Front },
        Say(text(0, 3, 20)),
        Equip { device: 1, platform: 1 },
        Connect { peer: 0, features: 5, route: Front },
        OneShot(text(1, 0, 20)),
    ];
    holds(Setup { services: 7, ..SETUP }, ops);
}

#[test]
fn what_a_cleared_item_replaces_does_not_ring_when_its_device_is_found_dead_in_the_same_turn() {
    let ops = vec![
        Equip { device: 4, platform: 101 },
        Authorize { device: 4, on: true },
        Connect { peer: 0, features: 7, route: Front },
        Say(tagged(0, 4, 20)),
        Connect { peer: 4, features: 7, route: Front },
        Jump { ms: 200_000 },
        Say(Text { quiet: true, ..tagged(0, 4, 100) }),
    ];
    holds(Setup { services: 7, ..SETUP }, ops);
}

#[test]
fn a_device_that_comes_back_is_not_pushed_to_for_the_connection_that_it_left_behind() {
    use super::history::Exit::Vanish;
    let ops = vec![
        Equip { device: 4, platform: 101 },
        Connect { peer: 0, features: 15, route: Front },
        Authorize { device: 4, on: true },
        Connect { peer: 4, features: 7, route: Direct },
        Equip { device: 4, platform: 101 },
        Leave { peer: 4, exit: Vanish },
        Say(tagged(0, 4, 300)),
        Pass { ms: 2_560_912 },
        Connect { peer: 4, features: 15, route: Front },
    ];
    holds(Setup { services: 7, ..SETUP }, ops);
}

#[test]
fn an_attempt_at_the_same_millisecond_of_a_clock_that_was_put_back_has_another_name() {
    let ops = vec![
        Connect { peer: 0, features: 7, route: Front },
        Authorize { device: 3, on: true },
        Equip { device: 3, platform: 1 },
        Say(text(0, 3, 1500)),
        Pass { ms: 88_091 },
        OneShot(text(3, 0, 100)),
        Jump { ms: -3_600_000 },
        Connect { peer: 3, features: 1, route: Front },
        Pass { ms: 27_649_015 },
    ];
    holds(Setup { services: 5, ..SETUP }, ops);
}

#[test]
fn a_live_message_does_not_wait_behind_one_from_before_the_clock_went_back() {
    let live = |size| Text { live: true, ..text(2, 0, size) };
    let ops = vec![
        Authorize { device: 3, on: true },
        Connect { peer: 0, features: 15, route: Front },
        Connect { peer: 3, features: 7, route: Front },
        Say(text(3, 0, 20)),
        Authorize { device: 2, on: true },
        Connect { peer: 2, features: 1, route: Front },
        Say(text(2, 0, 100)),
        Say(live(300)),
        Jump { ms: -3_600_000 },
        Say(live(100)),
        Pass { ms: 34_675 },
    ];
    holds(Setup { window: 1, held: 2, ..SETUP }, ops);
}

#[test]
fn a_pipe_that_a_panic_left_matched_at_one_side_keeps_others_out() {
    let ops = vec![
        Authorize { device: 3, on: true },
        Connect { peer: 0, features: 4, route: Front },
        Join { pipe: 5, peer: 0, partner: 3 },
        CrashAfterOutputs { outputs: 2 },
        Join { pipe: 5, peer: 3, partner: 0 },
        Pass { ms: 86_326 },
        Join { pipe: 5, peer: 0, partner: 1 },
    ];
    holds(Setup { pipes: 1, ..SETUP }, ops);
}
