//! Every value of the published vectors, `testdata/vectors.json`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::*;
use crate::framing::{Body, Compression, frame_json, unframe};
use crate::ids::{ChallengeNonce, ConnectionId, MessageNonce, Signature, X25519Public};

fn vectors() -> Value {
    serde_json::from_str(include_str!("../../testdata/vectors.json")).unwrap()
}

impl Identity {
    fn of(vectors: &Value, name: &str) -> Self {
        Self::new(&Seed::from_slice(&bytes(&vectors["inputs"][name])).unwrap())
    }
}

fn bytes(value: &Value) -> Vec<u8> {
    hex::decode(value.as_str().unwrap()).unwrap()
}

fn array(value: &Value) -> [u8; 32] {
    bytes(value).try_into().unwrap()
}

#[test]
fn identities() {
    let v = vectors();
    for (name, seed) in [("agent", "seed_agent"), ("client", "seed_client")] {
        let identity = Identity::of(&v, seed);
        let of = |what: &str| &v["identity"][format!("{name}_{what}")];
        let seed = bytes(&v["inputs"][seed]);
        assert_eq!(hex::encode(*hkdf32(&seed, KDF_SALT, KDF_INFO_X25519)), *of("x25519_priv"));
        assert_eq!(hex::encode(*hkdf32(&seed, KDF_SALT, KDF_INFO_ED25519)), *of("ed25519_priv"));
        assert_eq!(identity.x25519_pub().to_hex(), *of("x25519_pub"));
        assert_eq!(identity.ed25519_pub().to_hex(), *of("ed25519_pub"));
    }
    assert_eq!(Identity::of(&v, "seed_agent").namespace_id().to_hex(), v["identity"]["namespace_id"]);
}

#[test]
fn sessions_in_both_directions() {
    let v = vectors();
    let (agent, client) = (Identity::of(&v, "seed_agent"), Identity::of(&v, "seed_client"));
    let shared = agent.agree(&client.x25519_pub()).unwrap();
    assert_eq!(hex::encode(*shared), v["session"]["shared_secret"]);
    assert_eq!(*shared, *client.agree(&agent.x25519_pub()).unwrap());
    assert_eq!(hex::encode(*hkdf32(shared.as_ref(), SESSION_SALT, SESSION_INFO)), v["session"]["aes_key"]);

    let ns = agent.namespace_id();
    let key = |me: &Identity, peer: &Identity, sends| {
        SessionKey::agree(me, peer.ed25519_pub(), &peer.x25519_pub(), ns, sends).unwrap()
    };
    let agents = key(&agent, &client, Direction::AgentToClient);
    let clients = key(&client, &agent, Direction::ClientToAgent);
    let counter = v["inputs"]["counter"].as_u64().unwrap();
    for (from, to, name) in [(&agents, &clients, "agent_to_client"), (&clients, &agents, "client_to_agent")] {
        let expected = &v["session"][name];
        let payload = v["inputs"][format!("payload_{name}")].as_str().unwrap();
        let framed = frame_json(payload.as_bytes(), Compression::Off);
        assert_eq!(hex::encode(&*framed), expected["framed_plaintext"]);
        assert_eq!(hex::encode(from.aad_to_peer()), expected["aad"]);
        let (nonce, sealed) = from.seal(counter, &framed).unwrap();
        assert_eq!(nonce.to_hex(), expected["nonce"]);
        assert_eq!(STANDARD.encode(&sealed), expected["sealed_base64"]);
        let (opened_counter, opened) = to.open(&nonce, &sealed).unwrap();
        assert_eq!((opened_counter, &*opened), (counter, &*framed));
        assert_eq!(unframe(&opened), Ok(Body::Json(zeroize::Zeroizing::new(payload.into()))));
    }
}

#[test]
fn the_relays_challenge() {
    let v = vectors();
    assert_eq!(v["relay_auth"]["signer"], "client");
    let client = Identity::of(&v, "seed_client");
    let nonce = ChallengeNonce::new(array(&v["inputs"]["challenge_nonce"]));
    assert_eq!(hex::encode(challenge_message(&nonce)), v["relay_auth"]["message"]);
    let signature = client.sign_challenge(&nonce);
    assert_eq!(signature.to_hex(), v["relay_auth"]["signature"]);
    assert_eq!(verify_challenge(&client.ed25519_pub(), &nonce, &signature), Ok(()));
}

#[test]
fn pipes() {
    let v = vectors();
    let p = &v["pipe"];
    let (agent, client) = (Identity::of(&v, "seed_agent"), Identity::of(&v, "seed_client"));
    let initiator = PipeSecret::new(array(&p["initiator_ephemeral_priv"]));
    let responder = PipeSecret::new(array(&p["responder_ephemeral_priv"]));
    let (initiator_pub, responder_pub) = (initiator.public(), responder.public());
    assert_eq!(initiator_pub.to_hex(), p["initiator_ephemeral_pub"]);
    assert_eq!(responder_pub.to_hex(), p["responder_ephemeral_pub"]);
    let shared = x25519_dalek::x25519(array(&p["initiator_ephemeral_priv"]), *responder_pub.as_bytes());
    assert_eq!(hex::encode(shared), p["shared_secret"]);
    assert_eq!(hex::encode(*hkdf32(&shared, PIPE_KDF_SALT, PIPE_KDF_INFO)), p["pipe_key"]);

    let connection = ConnectionId::new(array(&p["connection_id"]));
    let nonce = ChallengeNonce::new(array(&p["relay_nonce"]));
    let signature = agent.sign_pipe(&nonce, &connection);
    assert_eq!(signature.to_hex(), p["agent_signature"]);
    assert_eq!(verify_pipe(&agent.ed25519_pub(), &nonce, &connection, &signature), Ok(()));
    assert!(verify_challenge(&agent.ed25519_pub(), &nonce, &signature).is_err());
    let dest: [u8; 32] = Sha256::digest(client.ed25519_pub()).into();
    assert_eq!(hex::encode(dest), p["dest_sha256_of_client_ed25519_pub"]);

    let mut initiator = initiator.agree(&responder_pub, connection, PipeEnd::Initiator).unwrap();
    let mut responder = responder.agree(&initiator_pub, connection, PipeEnd::Responder).unwrap();
    check_frame(&mut initiator, &mut responder, &p["initiator_frame_1"]);
    check_frame(&mut responder, &mut initiator, &p["responder_frame_1"]);
}

fn check_frame(from: &mut PipeCipher, to: &mut PipeCipher, expected: &Value) {
    let plain = expected["plaintext"].as_str().unwrap();
    assert_eq!(hex::encode(from.next_nonce()), expected["nonce"]);
    let sealed = from.seal(plain.as_bytes()).unwrap();
    assert_eq!(hex::encode(&sealed), expected["sealed"]);
    assert_eq!(to.open(&sealed).unwrap(), plain.as_bytes());
}

#[test]
fn one_changed_bit_anywhere_opens_nothing() {
    let v = vectors();
    let (agent, client) = (Identity::of(&v, "seed_agent"), Identity::of(&v, "seed_client"));
    let ns = agent.namespace_id();
    let agents =
        SessionKey::agree(&agent, client.ed25519_pub(), &client.x25519_pub(), ns, Direction::AgentToClient).unwrap();
    let clients =
        SessionKey::agree(&client, agent.ed25519_pub(), &agent.x25519_pub(), ns, Direction::ClientToAgent).unwrap();
    let (nonce, sealed) = agents.seal(5, b"\x01\x00{}").unwrap();
    for at in 0..sealed.len() * 8 {
        let mut bad = sealed.clone();
        bad[at / 8] ^= 1 << (at % 8);
        assert_eq!(clients.open(&nonce, &bad), Err(OpenError::Tag));
    }
    for at in 0..96 {
        let mut bad = *nonce.as_bytes();
        bad[at / 8] ^= 1 << (at % 8);
        let expected = if at < 32 { OpenError::Direction } else { OpenError::Tag };
        assert_eq!(clients.open(&MessageNonce::new(bad), &sealed), Err(expected));
    }
    assert_eq!(clients.open(&nonce, &sealed[..15]), Err(OpenError::Length));
    assert_eq!(agents.open(&nonce, &sealed), Err(OpenError::Direction), "one's own message");
}

#[test]
fn keys_and_signatures_that_prove_nothing_are_refused() {
    let v = vectors();
    let agent = Identity::of(&v, "seed_agent");
    assert!(agent.agree(&X25519Public::new([0; 32])).is_none());
    let nonce = ChallengeNonce::new([9; 32]);
    let mut forged = [0; 64];
    forged[0] = 1;
    for key in [
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    ] {
        let key = crate::ids::Ed25519Public::from_hex(key).unwrap();
        assert!(verify_challenge(&key, &nonce, &Signature::new(forged)).is_err(), "{key}");
    }
    let signature = agent.sign_challenge(&nonce);
    assert!(verify_challenge(&agent.ed25519_pub(), &ChallengeNonce::new([8; 32]), &signature).is_err());
    let mut bad = *signature.as_bytes();
    bad[63] |= 0x80;
    assert!(verify_challenge(&agent.ed25519_pub(), &nonce, &Signature::new(bad)).is_err(), "a non-canonical scalar");
}
