//! Verifying challenge signatures, strictly: non-canonical and small-order inputs are refused.

use ed25519_compact as ed;

use super::{challenge_message, pipe_message};
use crate::ids::{ChallengeNonce, ConnectionId, Ed25519Public, Signature};

/// The signature does not belong to this key and challenge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the signature does not verify")]
pub struct VerifyError;

/// Checks the answer to a challenge (protocol, Challenge signature).
pub fn verify_challenge(key: &Ed25519Public, nonce: &ChallengeNonce, signature: &Signature) -> Result<(), VerifyError> {
    verify(key, &challenge_message(nonce), signature)
}

/// Checks the answer to a pipe's challenge (protocol, Challenge signature).
pub fn verify_pipe(
    key: &Ed25519Public,
    nonce: &ChallengeNonce,
    connection: &ConnectionId,
    signature: &Signature,
) -> Result<(), VerifyError> {
    verify(key, &pipe_message(nonce, connection), signature)
}

pub(super) fn verify(key: &Ed25519Public, message: &[u8], signature: &Signature) -> Result<(), VerifyError> {
    let key = ed::PublicKey::new(*key.as_bytes());
    let signature = ed::Signature::from_slice(signature.as_bytes()).map_err(|_| VerifyError)?;
    key.verify(message, &signature).map_err(|_| VerifyError)
}
