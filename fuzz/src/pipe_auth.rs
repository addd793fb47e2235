//! The challenge and the answer with which a socket joins a pipe.

use skald_common::ids::ChallengeNonce;
use skald_common::limits::PIPE_MAX_AUTH;
use skald_common::pipe::PipeAuth;
use skald_common::pipe::auth::{decode_challenge, encode_challenge};

use crate::msgpack::{bin, key, map};

/// The target.
pub fn run(data: &[u8]) {
    if let Ok(auth) = PipeAuth::decode(data) {
        assert!(data.len() <= PIPE_MAX_AUTH);
        let again = auth.encode();
        assert_eq!(PipeAuth::decode(&again).as_ref(), Ok(&auth), "written otherwise than read");
        assert_eq!(PipeAuth::decode(&as_bin(&auth)).as_ref(), Ok(&auth), "bin is read otherwise than arrays");
        assert!(PipeAuth::decode(&again[..again.len() - 1]).is_err(), "half an answer is one");
        assert!(PipeAuth::decode(&[&again[..], &[0]].concat()).is_err(), "more than an answer is one");
        assert!(!auth.verify(&ChallengeNonce::new([7; 32])), "a signature out of nothing");
        assert!(!auth.matches(&auth), "an end matches itself");
    }
    if let Ok(nonce) = decode_challenge(data) {
        assert_eq!(decode_challenge(&encode_challenge(&nonce)), Ok(nonce));
        let written = [map(1), key("nonce"), bin(nonce.as_bytes())].concat();
        assert_eq!(decode_challenge(&written), Ok(nonce));
    }
}

/// As deployed phones write it.
pub(crate) fn as_bin(auth: &PipeAuth) -> Vec<u8> {
    let mut out = map(if auth.flow { 6 } else { 5 });
    for (name, value) in [
        ("connection_id", &auth.connection.as_bytes()[..]),
        ("pubkey", auth.pubkey.as_bytes()),
        ("dest", auth.dest.as_bytes()),
        ("namespace_id", auth.namespace.as_bytes()),
        ("signature", auth.signature.as_bytes()),
    ] {
        out.extend([key(name), bin(value)].concat());
    }
    if auth.flow {
        out.extend([key("flow"), vec![0xc3]].concat());
    }
    out
}
