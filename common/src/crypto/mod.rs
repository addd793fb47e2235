//! Keys, sealing, signatures and fingerprints (protocol, Cryptography). Everything is fixed by deployed peers; the tests
//! check each value of the published vectors.

mod fingerprint;
mod gcm;
mod identity;
mod pipe;
mod session;
#[cfg(test)]
mod vectors;
mod verify;
#[cfg(test)]
mod wycheproof;

pub use fingerprint::fingerprint;
pub use identity::{Identity, Seed, namespace_id};
pub use pipe::{PipeCipher, PipeEnd, PipeOpener, PipeSealer, PipeSecret};
pub use session::{Direction, OpenError, SealError, SessionKey, nonce, split_nonce};
pub use verify::{VerifyError, verify_challenge, verify_pipe};

use hkdf::Hkdf;
use sha2::Sha256;

pub(crate) const KDF_SALT: &[u8] = b"skald-kdf-v1";
pub(crate) const KDF_INFO_X25519: &[u8] = b"x25519";
pub(crate) const KDF_INFO_ED25519: &[u8] = b"ed25519";
pub(crate) const SESSION_SALT: &[u8] = b"skald-session-v1";
pub(crate) const SESSION_INFO: &[u8] = b"aes-256-gcm";
pub(crate) const NS_DOMAIN: &[u8] = b"skald-namespace-v1";
pub(crate) const AUTH_DOMAIN: &[u8] = b"skald-relay-auth-v1";
pub(crate) const PIPE_AUTH_DOMAIN: &[u8] = b"skald-pipe-auth-v1";
pub(crate) const PIPE_KDF_SALT: &[u8] = b"skald-pipe-v1";
pub(crate) const PIPE_KDF_INFO: &[u8] = b"pipe-aes-256-gcm";
pub(crate) const FINGERPRINT_DOMAIN: &[u8] = b"skald-fingerprint-v1";

/// HKDF-SHA-256 to 32 bytes, a length that the algorithm always has.
pub(crate) fn hkdf32(secret: &[u8], salt: &[u8], info: &[u8]) -> zeroize::Zeroizing<[u8; 32]> {
    let mut out = zeroize::Zeroizing::new([0; 32]);
    let expanded = Hkdf::<Sha256>::new(Some(salt), secret).expand(info, out.as_mut());
    debug_assert!(expanded.is_ok(), "32 bytes is within HKDF's limit");
    out
}

/// `AUTH_DOMAIN ‖ 00 ‖ nonce`: what is signed to answer a challenge.
pub(crate) fn challenge_message(nonce: &crate::ids::ChallengeNonce) -> Vec<u8> {
    [AUTH_DOMAIN, &[0], nonce.as_bytes()].concat()
}

/// `PIPE_AUTH_DOMAIN ‖ 00 ‖ nonce ‖ connection_id`: what is signed to join a pipe.
pub(crate) fn pipe_message(nonce: &crate::ids::ChallengeNonce, connection: &crate::ids::ConnectionId) -> Vec<u8> {
    [PIPE_AUTH_DOMAIN, &[0], nonce.as_bytes(), connection.as_bytes()].concat()
}
