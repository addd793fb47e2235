//! Whatever comes in, nothing panics and nobody else is hurt.

use proptest::prelude::*;
use skald_common::ids::ChallengeNonce;

use super::*;

#[test]
fn every_entry_point_tolerates_a_connection_that_it_does_not_know() {
    let mut world = World::new();
    let unknown = ConnId(42);
    world.sockets.insert(unknown, Socket::default());
    world.step(Input::Closed { conn: unknown, code: 1000 });
    assert_eq!(world.closed(unknown), None);
    world.step(Input::Text { conn: unknown });
    assert_eq!(world.closed(unknown), Some(1001), "one that speaks is to redial");
    world.step(Input::Frame { conn: unknown, bytes: Bytes::from_static(b"x") });
    let other = ConnId(43);
    world.sockets.insert(other, Socket { attachment: Some(vec![0xff; 9]), ..Socket::default() });
    world.step(Input::Frame { conn: other, bytes: Bytes::from_static(b"x") });
    assert_eq!(world.closed(other), Some(1001), "its attachment makes no sense");
}

/// Valid frames, so that mutations get deep.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let frames = vec![
        Frame::Message(message(device(1), "x")),
        Frame::Message(Message { live: true, collapse: vec![1], r#ref: 7, ..message(AGENT_KEY, "x") }),
        Frame::Authorize(Authorize { clients: vec![device(1).to_vec()] }),
        Frame::PairingStart(PairingStart { pairing_token: TOKEN.to_vec(), ttl: 9 }),
        Frame::PresenceRequest(PresenceRequest {}),
        Frame::Ack(Ack { delivery: 1 }),
        Frame::Auth(Auth { role: Some(Role::Client(World::client_role(1, Features::ALL))), signature: vec![0; 64] }),
    ];
    let valid = prop::sample::select(frames).prop_map(encode);
    let mutated = (valid.clone(), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(mut bytes, at, byte)| {
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bytes
    });
    let cut = (valid.clone(), any::<prop::sample::Index>()).prop_map(|(mut bytes, at)| {
        bytes.truncate(at.index(bytes.len()));
        bytes
    });
    prop_oneof![valid, mutated, cut, prop::collection::vec(any::<u8>(), 0..80)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn noise_never_panics_and_hurts_nobody(noise in prop::collection::vec((0..3_usize, frame()), 1..30)) {
        let mut world = World::new();
        let agent = world.agent(&[1, 2]);
        let witness = world.modern_client(2);
        let phone = world.client(1);
        let direct = world.open(Origin::Direct { challenge: ChallengeNonce::new([1; 32]), namespace: namespace() });
        for (who, bytes) in noise {
            let conn = [phone, direct, witness][who];
            if who < 2 {
                world.send_raw(conn, &bytes);
            } else {
                world.open(Origin::Verified { auth: bytes.into() });
            }
        }
        prop_assert_eq!(world.closed(agent).unwrap_or(4001), 4001);
        prop_assert_eq!(world.closed(witness).unwrap_or(4001), 4001);
    }

    #[test]
    fn noise_for_an_attachment_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut world = World::new();
        let agent = world.agent(&[1]);
        let odd = ConnId(7);
        world.sockets.insert(odd, Socket { attachment: Some(bytes), ..Socket::default() });
        prop_assert!(world.online(agent).contains(&AGENT_KEY));
    }
}
