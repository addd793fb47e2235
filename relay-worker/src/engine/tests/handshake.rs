//! Handshake on both origins.

use skald_common::crypto::{Identity, Seed};
use skald_common::ids::ChallengeNonce;

use super::*;

const CHALLENGE: ChallengeNonce = ChallengeNonce::new([0xc4; 32]);

fn identity(n: u8) -> Identity {
    Identity::new(&Seed::from_slice(&[n; 32]).unwrap())
}

fn direct(world: &mut World, namespace: NamespaceId) -> ConnId {
    let conn = world.open(Origin::Direct { challenge: CHALLENGE, namespace });
    match world.one(conn) {
        Frame::Challenge(challenge) => assert_eq!(challenge.nonce, CHALLENGE.to_vec()),
        other => panic!("{other:?}"),
    }
    conn
}

fn agent_auth(me: &Identity, nonce: &ChallengeNonce) -> Frame {
    let role = Role::Agent(AuthAgent { agent_ed25519_pub: me.ed25519_pub().to_vec(), features: 0xffff_ffff });
    Frame::Auth(Auth { role: Some(role), signature: me.sign_challenge(nonce).to_vec() })
}

fn tables(world: &World) -> usize {
    world.sql.exec("SELECT name FROM sqlite_master", &[]).unwrap().len()
}

#[test]
fn a_direct_agent_is_challenged_and_owns_the_namespace_of_its_key() {
    let (mut world, me) = (World::new(), identity(1));
    let conn = direct(&mut world, me.namespace_id());
    assert_eq!((tables(&world), world.sql.rows_written(), world.alarm), (0, 0, None), "nothing is written before Auth");
    assert_eq!(world.timer, Some(START + 30 * SECOND));
    world.send(conn, agent_auth(&me, &CHALLENGE));
    match world.one(conn) {
        Frame::AuthOk(ok) => assert_eq!((ok.namespace_id, ok.features), (me.namespace_id().to_vec(), 15)),
        other => panic!("{other:?}"),
    }
    assert!(tables(&world) > 0);
}

#[test]
fn once_nobody_waits_for_authentication_no_timer_is_left() {
    let (mut world, me) = (World::remembering(), identity(1));
    let conn = direct(&mut world, me.namespace_id());
    world.send(conn, agent_auth(&me, &CHALLENGE));
    assert_eq!(world.timer, None);
}

#[test]
fn a_wrong_signature_is_told_before_anything_else_and_writes_nothing() {
    let (mut world, me) = (World::new(), identity(1));
    let other = ChallengeNonce::new([9; 32]);
    // Of another challenge, even though the namespace is wrong too.
    let conn = direct(&mut world, namespace());
    world.send(conn, agent_auth(&me, &other));
    assert_eq!(world.refusal(conn), "invalid_signature");
    assert_eq!(world.closed(conn), Some(4000));
    assert_eq!((tables(&world), world.alarm), (0, None));
}

#[test]
fn a_peer_of_another_namespace_than_the_paths_is_not_found() {
    let (mut world, me) = (World::new(), identity(1));
    let conn = direct(&mut world, namespace());
    world.send(conn, agent_auth(&me, &CHALLENGE));
    assert_eq!(world.refusal(conn), "not_found");
    assert_eq!(tables(&world), 0);
}

#[test]
fn anything_but_an_auth_first_is_a_bad_request() {
    let me = identity(1);
    let short = |key: usize, signature: usize| {
        let role = Role::Agent(AuthAgent { agent_ed25519_pub: vec![1; key], features: 0 });
        encode(Frame::Auth(Auth { role: Some(role), signature: vec![1; signature] }))
    };
    let no_role = encode(Frame::Auth(Auth { role: None, signature: vec![0; 64] }));
    let other = encode(Frame::PresenceRequest(PresenceRequest {}));
    let cases =
        [vec![], vec![0xff; 3], vec![0x12], other, no_role, short(0, 64), short(31, 64), short(33, 64), short(32, 63)];
    for bytes in cases {
        let mut world = World::new();
        let conn = direct(&mut world, me.namespace_id());
        world.send_raw(conn, &bytes);
        assert_eq!(world.refusal(conn), "bad_request", "{bytes:02x?}");
        assert_eq!(world.closed(conn), Some(4000));
    }
    let mut world = World::new();
    let conn = direct(&mut world, me.namespace_id());
    world.step(Input::Text { conn });
    assert_eq!(world.refusal(conn), "bad_request");
}

#[test]
fn a_first_frame_over_64_kib_is_too_large() {
    let mut world = World::new();
    let conn = direct(&mut world, namespace());
    world.send_raw(conn, &vec![0; 65_537]);
    assert_eq!(world.refusal(conn), "payload_too_large");
    assert_eq!(world.closed(conn), Some(4009));
}

#[test]
fn no_auth_in_time_is_a_challenge_timeout() {
    let mut world = World::new();
    let conn = direct(&mut world, namespace());
    world.pass(30 * SECOND - 1);
    assert_eq!(world.closed(conn), None);
    world.pass(1);
    assert_eq!(world.refusal(conn), "challenge_timeout");
    assert_eq!((tables(&world), world.alarm), (0, None));
}

#[test]
fn a_challenge_timer_that_was_lost_is_made_up_for_on_the_next_event() {
    let mut world = World::new();
    let late = direct(&mut world, namespace());
    world.evict();
    world.now += 31 * SECOND;
    let next = direct(&mut world, namespace());
    assert_eq!(world.refusal(late), "challenge_timeout");
    assert_eq!((world.closed(next), world.timer), (None, Some(world.now + 30 * SECOND)));
}

#[test]
fn of_seventeen_unauthenticated_sockets_the_oldest_is_closed_and_members_are_not_touched() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    let mut waiting = Vec::new();
    for _ in 0..17 {
        waiting.push(direct(&mut world, namespace()));
        world.now += 1;
    }
    assert_eq!(world.closed(waiting[0]), Some(4000));
    assert!(waiting[1..].iter().all(|conn| world.closed(*conn).is_none()));
    assert_eq!(world.online(agent), [AGENT_KEY]);
}

#[test]
fn a_verified_auth_is_believed_and_a_malformed_one_is_not() {
    let mut world = World::new();
    for auth in [vec![], vec![0xff], encode(Frame::Auth(Auth { role: None, signature: vec![] }))] {
        let conn = world.open(Origin::Verified { auth: auth.into() });
        assert_eq!(world.refusal(conn), "bad_request");
    }
    world.agent(&[]);
}

#[test]
fn a_client_needs_a_namespace_then_a_list_then_a_place_on_it() {
    let mut world = World::new();
    assert_eq!(world.refused_client(1), "not_found");
    assert_eq!(tables(&world), 0, "a client creates nothing");
    let agent = world.agent_with(Features::NONE);
    assert_eq!(world.refused_client(1), "not_found", "the agent has not said who belongs");
    world.authorize(agent, &[2]);
    assert_eq!(world.refused_client(1), "unauthorized");
    world.client(2);
}

#[test]
fn only_the_refusal_of_a_stranger_says_the_word_that_ends_a_phones_pairing() {
    let mut world = World::new();
    world.agent(&[]);
    let stranger = world.authenticate(Role::Client(World::client_role(1, Features::NONE)));
    let closed = world.authenticate(Role::Pairing(World::pairing_role(1)));
    for (conn, ends) in [(stranger, true), (closed, false)] {
        let Frame::AuthError(error) = world.one(conn) else { panic!() };
        assert_eq!(format!("{} {}", error.code, error.message).contains("unauthorized"), ends);
    }
}

#[test]
fn a_client_of_another_namespace_is_not_found_and_of_wrong_lengths_a_bad_request() {
    let mut world = World::new();
    world.agent(&[1]);
    let right = World::client_role(1, Features::NONE);
    let other = AuthClient { namespace_id: vec![5; 32], ..right.clone() };
    let short = AuthClient { namespace_id: vec![5; 31], ..right.clone() };
    let token = AuthClient { device_token: "x".repeat(4097), ..right.clone() };
    for (role, code) in [(other, "not_found"), (short, "bad_request"), (token, "bad_request")] {
        let conn = world.authenticate(Role::Client(role));
        assert_eq!(world.refusal(conn), code);
    }
    let conn = world.authenticate(Role::Client(AuthClient { device_token: "x".repeat(4096), ..right }));
    assert!(matches!(world.one(conn), Frame::AuthOk(_)));
}

#[test]
fn the_agents_own_key_is_no_device() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    world.open_window(agent, 60);
    let client = AuthClient { client_ed25519_pub: AGENT_KEY.to_vec(), ..World::client_role(1, Features::NONE) };
    let pairing = AuthPairing { client_ed25519_pub: AGENT_KEY.to_vec(), ..World::pairing_role(1) };
    for (role, code) in [(Role::Client(client), "unauthorized"), (Role::Pairing(pairing), "pairing_closed")] {
        let conn = world.authenticate(role);
        assert_eq!(world.refusal(conn), code);
    }
    assert_eq!(world.online(agent), [AGENT_KEY]);
    world.send(agent, Frame::Authorize(Authorize { clients: vec![AGENT_KEY.to_vec(), device(1).to_vec()] }));
    assert!(matches!(world.one(agent), Frame::AuthorizeOk(ok) if ok.authorized == 1));
}

#[test]
fn a_newer_connection_replaces_the_older_and_the_word_of_the_older_counts_no_more() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    let old = world.client(1);
    let new = world.client(1);
    assert_eq!((world.closed(old), world.closed(new)), (Some(4001), None));
    world.read(agent);
    world.say(old, AGENT_KEY, "from the grave");
    assert_eq!(world.read(agent), []);
    world.hang_up(old, 1000);
    assert_eq!(world.online(agent), [device(1), AGENT_KEY]);
    let twin = world.agent_with(Features::NONE);
    assert_eq!((world.closed(agent), world.closed(twin)), (Some(4001), None));
}

#[test]
fn features_are_an_intersection_and_absent_for_a_peer_that_offers_none() {
    let mut world = World::new();
    for (offered, agreed) in [(0, 0), (1 << 20, 0), (5 | 1 << 31, 5), (7, 7)] {
        let role = AuthAgent { agent_ed25519_pub: AGENT_KEY.to_vec(), features: offered };
        let conn = world.authenticate(Role::Agent(role));
        assert!(matches!(world.one(conn), Frame::AuthOk(ok) if ok.features == agreed));
    }
}

#[test]
fn a_push_address_is_refreshed_and_an_empty_one_keeps_what_is_there() {
    let mut world = World::new();
    world.agent(&[1]);
    let mut come = |token: &str, platform| {
        let role = AuthClient { device_token: token.into(), platform, ..World::client_role(1, Features::NONE) };
        world.authenticate(Role::Client(role));
        let before = world.sql.rows_written();
        let member = Store::new(Rc::clone(&world.sql)).members().unwrap().remove(0);
        (member.token, member.platform, before)
    };
    assert_eq!(come("a", 1), ("a".into(), 1, 4), "the namespace, the list's first word, the device, its address");
    let (token, platform, rows) = come("", 0);
    assert_eq!((token.as_str(), platform), ("a", 1));
    assert_eq!(come("a", 1), ("a".into(), 1, rows), "the same address writes nothing");
    assert_eq!(come("b", 101).0, "b");
    assert_eq!(come("b", -5).1, -5, "a platform that this relay does not know is kept as it is");
}

#[test]
fn of_two_connections_of_a_key_that_outlived_a_crash_the_newer_is_the_members() {
    for swap in [false, true] {
        let mut world = World::new();
        let agent = world.agent(&[1]);
        let mut old = world.client(1);
        let saved = world.sockets[&old].attachment.clone();
        world.now += 1;
        let mut new = world.client(1);
        // The object died before it closed the older one.
        world.sockets.get_mut(&old).unwrap().attachment = saved;
        world.sockets.get_mut(&old).unwrap().closed = None;
        if swap {
            // Whichever the platform lists first.
            let (a, b) = (world.sockets.remove(&old).unwrap(), world.sockets.remove(&new).unwrap());
            world.sockets.insert(old, b);
            world.sockets.insert(new, a);
            std::mem::swap(&mut old, &mut new);
        }
        assert_eq!(world.online(agent), [device(1), AGENT_KEY]);
        assert_eq!((world.closed(old), world.closed(new)), (Some(4001), None));
    }
}
