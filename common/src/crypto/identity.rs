//! An actor's secret seed and the keys that follow from it.

use std::fmt;

use ed25519_compact as ed;
use sha2::{Digest, Sha256};
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::{KDF_INFO_ED25519, KDF_INFO_X25519, KDF_SALT, NS_DOMAIN, challenge_message, hkdf32, pipe_message};
use crate::ids::{ChallengeNonce, ConnectionId, Ed25519Public, IdError, NamespaceId, Signature, X25519Public};

/// 32 random bytes, the one secret of an actor (protocol, Identity). Wiped when dropped, never shown.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Seed([u8; 32]);

impl Seed {
    /// From random bytes.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// From a seed file's content; any other length than 32 is an error.
    pub fn from_slice(bytes: &[u8]) -> Result<Self, IdError> {
        bytes.try_into().map(Self).map_err(|_| IdError::Length { expected: 32, got: bytes.len() })
    }

    /// The secret itself, for storing it.
    pub const fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(…)")
    }
}

/// The key pairs derived from a [`Seed`]. The signing and the agreement key are independent.
pub struct Identity {
    ed25519: ed::KeyPair,
    x25519: StaticSecret,
    ed25519_pub: Ed25519Public,
    x25519_pub: X25519Public,
}

impl Identity {
    /// Derives both key pairs.
    pub fn new(seed: &Seed) -> Self {
        let ed_seed = hkdf32(seed.expose(), KDF_SALT, KDF_INFO_ED25519);
        let x_secret = hkdf32(seed.expose(), KDF_SALT, KDF_INFO_X25519);
        let ed25519 = ed::KeyPair::from_seed(ed::Seed::new(*ed_seed));
        let x25519 = StaticSecret::from(*x_secret);
        let ed25519_pub = Ed25519Public::new(*ed25519.pk);
        let x25519_pub = X25519Public::new(PublicKey::from(&x25519).to_bytes());
        Self { ed25519, x25519, ed25519_pub, x25519_pub }
    }

    /// The signing key's public half, which names this actor.
    pub const fn ed25519_pub(&self) -> Ed25519Public {
        self.ed25519_pub
    }

    /// The agreement key's public half.
    pub const fn x25519_pub(&self) -> X25519Public {
        self.x25519_pub
    }

    /// The namespace that this identity owns, if it is an agent's.
    pub fn namespace_id(&self) -> NamespaceId {
        namespace_id(&self.ed25519_pub)
    }

    /// The signature that answers a relay's challenge.
    pub fn sign_challenge(&self, nonce: &ChallengeNonce) -> Signature {
        // Deterministic signing: no randomness, the vectors depend on it.
        Signature::new(*self.ed25519.sk.sign(challenge_message(nonce), None))
    }

    /// The signature that answers a pipe's challenge.
    pub fn sign_pipe(&self, nonce: &ChallengeNonce, connection: &ConnectionId) -> Signature {
        Signature::new(*self.ed25519.sk.sign(pipe_message(nonce, connection), None))
    }

    /// X25519 with a peer; `None` for a small-order key.
    pub(crate) fn agree(&self, peer: &X25519Public) -> Option<zeroize::Zeroizing<[u8; 32]>> {
        shared_secret(&self.x25519, peer)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("ed25519_pub", &self.ed25519_pub).finish_non_exhaustive()
    }
}

/// X25519; `None` for the all-zero result that a small-order key forces.
pub(super) fn shared_secret(secret: &StaticSecret, peer: &X25519Public) -> Option<zeroize::Zeroizing<[u8; 32]>> {
    let shared = secret.diffie_hellman(&PublicKey::from(*peer.as_bytes()));
    shared.was_contributory().then(|| zeroize::Zeroizing::new(*shared.as_bytes()))
}

/// `SHA-256(NS_DOMAIN ‖ 00 ‖ agent key)`.
pub fn namespace_id(agent: &Ed25519Public) -> NamespaceId {
    let mut hash = Sha256::new();
    hash.update(NS_DOMAIN);
    hash.update([0]);
    hash.update(agent.as_bytes());
    NamespaceId::new(hash.finalize().into())
}
