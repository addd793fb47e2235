//! What is inside a sealed message: the seal, the framing, and the zlib stream that may be a bomb.

use skald_common::crypto::{Direction, Identity, Seed, SessionKey, nonce};
use skald_common::framing::{Body, Compression, FramingError, frame_json, frame_pipe_signal, unframe};
use skald_common::ids::MessageNonce;
use skald_common::limits::MAX_INFLATED;

use crate::tape::Tape;

/// The target.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    match tape.below(3) {
        0 => read(tape.rest()),
        1 => round_trip(tape.rest()),
        _ => seal(&mut tape),
    }
}

fn bytes(body: &Body) -> &Vec<u8> {
    match body {
        Body::Json(body) | Body::PipeSignal(body) => body,
    }
}

fn read(framed: &[u8]) {
    match unframe(framed) {
        Ok(body) => {
            let inside = bytes(&body);
            assert!(inside.len() <= MAX_INFLATED.max(framed.len()) && inside.capacity() <= 2 * MAX_INFLATED);
            let again = match &body {
                Body::Json(json) => frame_json(json, Compression::WhenSmaller),
                Body::PipeSignal(signal) => frame_pipe_signal(signal),
            };
            assert_eq!(unframe(&again).as_ref(), Ok(&body));
        }
        Err(FramingError::Version(version)) => assert!(!matches!(version, 1 | 2)),
        Err(FramingError::Short) => assert!(framed.len() < 2),
        Err(FramingError::Inflate | FramingError::Bomb) => assert!(framed.starts_with(&[1, 1])),
        Err(FramingError::Compression(_)) => {}
    }
}

fn round_trip(body: &[u8]) {
    for compression in [Compression::Off, Compression::WhenSmaller] {
        let framed = frame_json(body, compression);
        assert!(framed.len() <= body.len() + 2, "framing made it longer");
        let Ok(Body::Json(again)) = unframe(&framed) else { panic!("does not come back") };
        assert_eq!(&**again, body);
    }
}

/// Nothing opens but what was sealed, under its own counter.
fn seal(tape: &mut Tape<'_>) {
    let (agent, phone) = (Identity::new(&Seed::new([1; 32])), Identity::new(&Seed::new([2; 32])));
    let namespace = agent.namespace_id();
    let key = |me: &Identity, peer: &Identity, sends| {
        SessionKey::agree(me, peer.ed25519_pub(), &peer.x25519_pub(), namespace, sends).expect("good keys")
    };
    let agents = key(&agent, &phone, Direction::AgentToClient);
    let phones = key(&phone, &agent, Direction::ClientToAgent);
    let counter = tape.long();
    let (at, flip) = (usize::from(tape.short()), tape.byte().max(1));
    let noise = MessageNonce::from_slice(&[tape.key(), tape.key()].concat()[26..38]).expect("12 bytes");
    let body = tape.rest();

    assert!(agents.open(&noise, body).is_err(), "noise opens");
    assert!(agents.open(&nonce(Direction::ClientToAgent, counter), body).is_err(), "noise opens");
    let (sealed_under, mut sealed) = phones.seal(counter, body).expect("short");
    let (read, plain) = agents.open(&sealed_under, &sealed).expect("opens what was sealed");
    assert_eq!((read, &**plain), (counter, body));
    assert!(phones.open(&sealed_under, &sealed).is_err(), "one's own message opens");
    let other = nonce(Direction::ClientToAgent, counter ^ u64::from(flip));
    assert!(agents.open(&other, &sealed).is_err(), "opens under another counter");
    let length = sealed.len();
    sealed[at % length] ^= flip;
    assert!(agents.open(&sealed_under, &sealed).is_err(), "opens though changed");
    sealed.truncate(at % length);
    assert!(agents.open(&sealed_under, &sealed).is_err(), "opens though cut");
}
