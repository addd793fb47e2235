//! Who is told that who is there.

use super::*;

#[test]
fn the_list_has_everyone_once_the_asker_included() {
    let mut world = World::new();
    let agent = world.agent(&[1, 2]);
    assert_eq!(world.online(agent), [AGENT_KEY]);
    let phone = world.client(1);
    assert_eq!(world.online(phone), [device(1), AGENT_KEY]);
}

#[test]
fn coming_and_going_is_told_to_all_others() {
    let mut world = World::new();
    let agent = world.agent(&[1, 2]);
    let other = world.client(2);
    world.read(agent);
    for code in [1000, 1006] {
        let phone = world.client(1);
        assert_eq!(world.read(phone), []);
        world.hang_up(phone, code);
        for conn in [agent, other] {
            assert_eq!(events(&world.read(conn)), [(device(1), true), (device(1), false)]);
        }
    }
}

#[test]
fn a_replaced_connection_causes_no_offline() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    let old = world.client(1);
    world.read(agent);
    world.client(1);
    world.hang_up(old, 1006);
    assert_eq!(events(&world.read(agent)), [(device(1), true)]);
}

#[test]
fn a_keepalive_connection_that_is_silent_for_two_minutes_is_found_dead_when_it_matters() {
    let mut world = World::new();
    let agent = world.modern_agent(&[1, 2, 3]);
    let (silent, pinging, old) = (world.modern_client(1), world.modern_client(2), world.client(3));
    world.read(agent);
    world.now += 125 * SECOND;
    for conn in [agent, pinging] {
        world.sockets.get_mut(&conn).unwrap().last_ping = Some(world.now - 5 * SECOND);
    }
    world.read(pinging);
    world.read(old);
    assert_eq!(world.closed(silent), None, "judged lazily");
    world.send(agent, Frame::Message(Message { r#ref: 1, ..message(device(1), "x") }));
    assert_eq!(world.closed(silent), Some(4008));
    let told = world.read(agent);
    assert!(matches!(told.as_slice(), [Frame::PresenceEvent(_), Frame::Accepted(accepted)] if accepted.queued));
    for conn in [pinging, old] {
        assert_eq!(events(&world.read(conn)), [(device(1), false)]);
    }
    assert_eq!(world.online(agent), [device(2), device(3), AGENT_KEY]);
    let back = world.modern_client(1);
    assert_eq!(world.texts(back), ["x"]);
}

#[test]
fn frames_keep_a_keepalive_connection_alive_as_pings_do() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    let phone = world.modern_client(1);
    for _ in 0..10 {
        world.now += 100 * SECOND;
        world.step(Input::Text { conn: phone });
    }
    assert_eq!(world.online(agent), [device(1), AGENT_KEY]);
}

#[test]
fn the_dead_are_not_listed_nor_given_live_messages() {
    let mut world = World::new();
    let agent = world.agent(&[1, 2]);
    world.modern_client(1);
    world.modern_client(2);
    world.now += 125 * SECOND;
    world.read(agent);
    world.say_live(agent, device(1), "x");
    assert!(matches!(world.read(agent).as_slice(), [Frame::PresenceEvent(_), Frame::PeerOffline(_)]));
    assert_eq!(world.online(agent), [AGENT_KEY]);
}

#[test]
fn any_arrival_finds_the_dead() {
    let mut world = World::new();
    let agent = world.agent(&[1, 2]);
    world.modern_client(1);
    world.now += 125 * SECOND;
    world.read(agent);
    world.client(2);
    assert_eq!(events(&world.read(agent)), [(device(1), false), (device(2), true)]);
}
