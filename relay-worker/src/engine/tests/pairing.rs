//! Pairing windows, pending devices, and the agent's list.

use skald_common::wire::PairingStop;

use super::*;

fn announced(frames: &[Frame]) -> Vec<Ed25519Public> {
    let paired = |frame: &Frame| match frame {
        Frame::ClientPaired(paired) => Some(Ed25519Public::from_slice(&paired.client_ed25519_pub).unwrap()),
        _ => None,
    };
    frames.iter().filter_map(paired).collect()
}

#[test]
fn the_agent_learns_the_device_and_the_device_waits_for_its_word() {
    let mut world = World::new();
    let agent = world.agent(&[]);
    world.open_window(agent, 60);
    assert_eq!(world.pair(1), None);
    match world.one(agent) {
        Frame::ClientPaired(paired) => {
            assert_eq!(paired.client_ed25519_pub, device(1).to_vec());
            assert_eq!((paired.client_x25519_pub, paired.platform), (vec![0xfe; 32], 2));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(world.refused_client(1), "unauthorized");
    world.say(agent, device(1), "not yet");
    assert_eq!(world.refusal(agent), "not_found");
    world.authorize(agent, &[1]);
    world.client(1);
}

#[test]
fn a_token_lets_one_device_in_once() {
    let mut world = World::new();
    let agent = world.agent(&[]);
    world.open_window(agent, 60);
    assert_eq!(world.pair(1), None);
    assert_eq!(world.pair(2).as_deref(), Some("pairing_closed"));
}

#[test]
fn every_reason_to_refuse_a_token_has_the_same_answer() {
    let mut world = World::new();
    assert_eq!(world.pair(1).as_deref(), Some("pairing_closed"), "no namespace");
    let agent = world.agent(&[]);
    assert_eq!(world.pair(1).as_deref(), Some("pairing_closed"), "no window");
    world.open_window(agent, 60);
    let wrong = AuthPairing { pairing_token: vec![1; 32], ..World::pairing_role(1) };
    let conn = world.authenticate(Role::Pairing(wrong));
    assert_eq!(world.refusal(conn), "pairing_closed", "wrong");
    world.pass(60 * SECOND);
    assert_eq!(world.pair(1).as_deref(), Some("pairing_closed"), "expired");
    world.open_window(agent, 60);
    world.send(agent, Frame::PairingStop(PairingStop {}));
    assert!(matches!(world.one(agent), Frame::PairingStopOk(_)));
    assert_eq!(world.pair(1).as_deref(), Some("pairing_closed"), "stopped");
}

#[test]
fn a_wrong_token_does_not_use_the_right_one_up() {
    let mut world = World::new();
    let agent = world.agent(&[]);
    world.open_window(agent, 60);
    let wrong = AuthPairing { pairing_token: vec![1; 32], ..World::pairing_role(1) };
    world.authenticate(Role::Pairing(wrong));
    assert_eq!(world.pair(1), None);
}

#[test]
fn a_newer_window_voids_the_older_token() {
    let mut world = World::new();
    let agent = world.agent(&[]);
    world.open_window(agent, 60);
    world.send(agent, Frame::PairingStart(PairingStart { pairing_token: vec![1; 32], ttl: 60 }));
    assert_eq!(world.pair(1).as_deref(), Some("pairing_closed"));
}

#[test]
fn the_life_of_a_window_has_a_default_and_a_bound() {
    let mut world = World::new();
    let agent = world.agent(&[]);
    for (asked, granted) in [(0, 300), (1, 1), (600, 600), (601, 600), (u32::MAX, 600)] {
        assert_eq!(world.open_window(agent, asked), granted);
    }
    world.pass(600 * SECOND - 1);
    assert_eq!(world.pair(1), None);
}

#[test]
fn a_pairing_field_of_wrong_length_is_a_bad_request() {
    let mut world = World::new();
    let agent = world.agent(&[]);
    world.open_window(agent, 60);
    let right = World::pairing_role(1);
    let no_token = AuthPairing { pairing_token: vec![], ..right.clone() };
    let short = AuthPairing { client_x25519_pub: vec![1; 31], ..right };
    for role in [no_token, short] {
        let conn = world.authenticate(Role::Pairing(role));
        assert_eq!(world.refusal(conn), "bad_request");
    }
    world.send(agent, Frame::PairingStart(PairingStart { pairing_token: vec![1; 31], ttl: 0 }));
    assert_eq!(world.refusal(agent), "bad_request");
    assert_eq!(world.pair(1), None, "the window is still open");
}

#[test]
fn a_device_that_pairs_while_the_agent_is_away_is_told_on_each_return_until_it_is_authorized() {
    let mut world = World::new();
    let agent = world.agent(&[9]);
    world.open_window(agent, 60);
    world.hang_up(agent, 1000);
    assert_eq!(world.pair(1), None);
    let phone = world.client(9);
    world.say(phone, AGENT_KEY, "answer");
    for _ in 0..2 {
        let agent = world.agent_with(Features::NONE);
        let frames = world.read(agent);
        assert!(matches!(frames.as_slice(), [Frame::ClientPaired(_), Frame::Message(_)]), "{frames:?}");
    }
    let agent = world.agent(&[1, 9]);
    world.hang_up(agent, 1006);
    let agent = world.agent_with(Features::NONE);
    assert_eq!(announced(&world.read(agent)), []);
}

#[test]
fn of_seventeen_pending_devices_the_first_is_forgotten() {
    let mut world = World::new();
    let agent = world.agent(&[]);
    for n in 1..=17 {
        world.open_window(agent, 60);
        assert_eq!(world.pair(n), None);
    }
    world.hang_up(agent, 1000);
    let agent = world.agent_with(Features::NONE);
    assert_eq!(announced(&world.read(agent)), (2..=17).map(device).collect::<Vec<_>>());
}

#[test]
fn a_pending_device_is_forgotten_after_a_day_and_then_is_like_one_never_seen() {
    let mut world = World::new();
    let agent = world.agent(&[]);
    world.open_window(agent, 60);
    world.pair(1);
    world.read(agent);
    world.now += DAY; // the alarm is late
    let agent = world.agent_with(Features::NONE);
    assert_eq!(announced(&world.read(agent)), []);
    world.authorize(agent, &[1]);
    let member = Store::new(Rc::clone(&world.sql)).members().unwrap().remove(0);
    assert_eq!((member.token.as_str(), member.x25519), ("", None), "nothing of its address comes back");
}

#[test]
fn the_alarm_forgets_pending_devices_and_closed_windows() {
    let mut world = World::new();
    let agent = world.agent(&[]);
    world.open_window(agent, 60);
    world.pair(1);
    world.open_window(agent, 60);
    assert_eq!(world.alarm, Some(START + DAY));
    world.pass(DAY);
    let store = Store::new(Rc::clone(&world.sql));
    assert_eq!((store.members().unwrap(), store.namespace().unwrap().unwrap().window), (vec![], None));
}

#[test]
fn pairing_again_ends_the_old_life_of_a_key() {
    let mut world = World::new();
    let agent = world.agent(&[1, 2]);
    let (old, other) = (world.modern_client(1), world.client(2));
    world.say(agent, device(1), "of the old life");
    world.open_window(agent, 60);
    world.read(other);
    assert_eq!(world.pair(1), None);
    assert_eq!(world.closed(old), Some(4001));
    assert_eq!(events(&world.read(other)), [(device(1), false)]);
    assert_eq!((world.queued_rows(), world.refused_client(1)), (0, "unauthorized".into()));
    world.authorize(agent, &[1, 2]);
    let new = world.client(1);
    assert_eq!(world.texts(new), [""; 0]);
}

#[test]
fn the_list_replaces_the_stored_one_and_says_how_many() {
    let mut world = World::new();
    let agent = world.agent(&[1, 2]);
    world.authorize(agent, &[2, 3]);
    assert_eq!(world.refused_client(1), "unauthorized");
    world.client(2);
    world.client(3);
    let twice = vec![device(2).to_vec(), device(2).to_vec()];
    world.send(agent, Frame::Authorize(Authorize { clients: twice }));
    assert!(matches!(world.read(agent).pop(), Some(Frame::AuthorizeOk(ok)) if ok.authorized == 1));
}

#[test]
fn a_revoked_device_is_cut_off_and_nothing_of_it_is_left() {
    let mut world = World::new();
    let agent = world.agent(&[1, 2]);
    let (phone, other) = (world.client(1), world.client(2));
    world.say(agent, device(1), "secret of yesterday");
    world.read(other);
    world.authorize(agent, &[2]);
    assert_eq!(world.closed(phone), Some(4003));
    assert_eq!(events(&world.read(other)), [(device(1), false)]);
    world.read(phone);
    world.say(agent, device(1), "gone");
    assert_eq!(world.refusal(agent), "not_found");
    assert_eq!((world.queued_rows(), world.read(phone)), (0, vec![]));
    world.authorize(agent, &[1, 2]);
    let back = world.client(1);
    assert_eq!(world.texts(back), [""; 0]);
}

#[test]
fn the_number_of_a_revoked_device_may_go_to_another_but_nothing_else_of_it() {
    let mut world = World::remembering();
    let agent = world.agent(&[1]);
    let phone = world.client(1);
    world.say(agent, device(1), "for the first");
    world.authorize(agent, &[2]);
    assert_eq!(world.closed(phone), Some(4003));
    world.say(phone, AGENT_KEY, "I am the second");
    let second = world.client(2);
    assert_eq!(world.texts(second), [""; 0]);
    assert_eq!(world.texts(agent), [""; 0]);
}

#[test]
fn a_pending_device_survives_a_list_without_it() {
    let mut world = World::new();
    let agent = world.agent(&[]);
    world.open_window(agent, 60);
    world.pair(1);
    world.authorize(agent, &[]);
    world.authorize(agent, &[1]);
    let member = Store::new(Rc::clone(&world.sql)).members().unwrap().remove(0);
    assert_eq!(member.token, "token 1");
}

#[test]
fn a_wrong_list_changes_nothing() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    let phone = world.client(1);
    world.read(agent);
    let many = (100..165).map(|n| device(n).to_vec()).collect();
    for clients in [many, vec![vec![1; 31]], vec![vec![]]] {
        world.send(agent, Frame::Authorize(Authorize { clients }));
        assert_eq!(world.refusal(agent), "bad_request");
    }
    assert_eq!((world.closed(phone), world.online(agent)), (None, vec![device(1), AGENT_KEY]));
    world.authorize(agent, &(100..164).collect::<Vec<_>>());
}

#[test]
fn a_list_that_changes_nothing_writes_nothing() {
    let mut world = World::new();
    let agent = world.agent(&[1, 2]);
    let before = world.sql.rows_written();
    world.authorize(agent, &[2, 1]);
    assert_eq!(world.sql.rows_written(), before);
}

#[test]
fn what_is_the_agents_is_a_bad_request_from_a_client() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    let phone = world.client(1);
    let frames = [
        Frame::Authorize(Authorize { clients: vec![] }),
        Frame::PairingStart(PairingStart { pairing_token: TOKEN.to_vec(), ttl: 60 }),
        Frame::PairingStop(PairingStop {}),
        Frame::Auth(Auth { role: None, signature: vec![] }),
        Frame::PresenceList(skald_common::wire::PresenceList { online: vec![] }),
    ];
    for frame in frames {
        world.send(phone, frame);
        assert_eq!(world.refusal(phone), "bad_request");
    }
    assert_eq!(world.online(agent), [device(1), AGENT_KEY]);
    assert_eq!(world.pair(2).as_deref(), Some("pairing_closed"));
}
