//! The key that an agent and a device share, and sealing with it (protocol, Message key, nonce, AAD).

use std::fmt;

use aes_gcm::{Aes256Gcm, KeyInit};

use super::{Identity, SESSION_INFO, SESSION_SALT, gcm, hkdf32};
use crate::ids::{Ed25519Public, MessageNonce, NamespaceId, X25519Public};

/// Who a message goes to: the first four bytes of its nonce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the agent to a device.
    AgentToClient,
    /// From a device to the agent.
    ClientToAgent,
}

impl Direction {
    /// The nonce prefix.
    pub const fn prefix(self) -> [u8; 4] {
        match self {
            Self::AgentToClient => [0, 0, 0, 1],
            Self::ClientToAgent => [0, 0, 0, 2],
        }
    }

    /// The other one.
    #[must_use]
    pub const fn reversed(self) -> Self {
        match self {
            Self::AgentToClient => Self::ClientToAgent,
            Self::ClientToAgent => Self::AgentToClient,
        }
    }
}

/// The peer's key gives no secret (a small-order point), or the message has a length that is not sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// X25519 gave zero.
    #[error("the peer's X25519 key is not usable")]
    WeakKey,
    /// Longer than the cipher or the protocol allows.
    #[error("the message is too long to seal")]
    TooLong,
    /// An empty frame of a pipe.
    #[error("a frame of a pipe is never empty")]
    Empty,
}

/// Why a sealed message was dropped. For tests and counters; the peer is told nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Shorter than a tag.
    #[error("too short")]
    Length,
    /// The nonce has another direction's prefix.
    #[error("wrong direction")]
    Direction,
    /// The tag does not verify.
    #[error("does not verify")]
    Tag,
    /// An earlier frame of the same pipe did not open.
    #[error("the pipe has failed before")]
    Dead,
}

/// `direction ‖ counter`.
pub fn nonce(direction: Direction, counter: u64) -> MessageNonce {
    let mut bytes = [0; 12];
    let (prefix, rest) = bytes.split_at_mut(4);
    prefix.copy_from_slice(&direction.prefix());
    rest.copy_from_slice(&counter.to_be_bytes());
    MessageNonce::new(bytes)
}

/// The prefix and the counter of a nonce.
pub fn split_nonce(nonce: &MessageNonce) -> ([u8; 4], u64) {
    let [a, b, c, d, counter @ ..] = *nonce.as_bytes();
    ([a, b, c, d], u64::from_be_bytes(counter))
}

/// The AES-256-GCM key of one agent–device pair, bound to both names. Static for the life of a pairing; the cipher's key
/// schedule is wiped when dropped.
pub struct SessionKey {
    cipher: Aes256Gcm,
    namespace: NamespaceId,
    me: Ed25519Public,
    peer: Ed25519Public,
    sends: Direction,
}

impl SessionKey {
    /// Agrees on the key of `me` and `peer`. `sends` is the direction of what `me` seals. Fails for a key that makes the
    /// shared secret zero.
    pub fn agree(
        me: &Identity,
        peer: Ed25519Public,
        peer_x25519: &X25519Public,
        namespace: NamespaceId,
        sends: Direction,
    ) -> Result<Self, SealError> {
        let shared = me.agree(peer_x25519).ok_or(SealError::WeakKey)?;
        let key = hkdf32(shared.as_ref(), SESSION_SALT, SESSION_INFO);
        let cipher = Aes256Gcm::new((&*key).into());
        Ok(Self { cipher, namespace, me: me.ed25519_pub(), peer, sends })
    }

    /// Seals a framed plaintext under `counter`: the nonce, and ciphertext ‖ tag. The caller never uses a counter twice.
    pub fn seal(&self, counter: u64, framed: &[u8]) -> Result<(MessageNonce, Vec<u8>), SealError> {
        let nonce = nonce(self.sends, counter);
        let sealed = gcm::seal(&self.cipher, *nonce.as_bytes(), &self.aad(&self.me, &self.peer), framed)?;
        Ok((nonce, sealed))
    }

    /// Opens what the peer sealed: its counter and the framed plaintext, which is wiped when dropped (it may be a
    /// secret). The caller checks the counter against the last one accepted.
    pub fn open(&self, nonce: &MessageNonce, sealed: &[u8]) -> Result<(u64, zeroize::Zeroizing<Vec<u8>>), OpenError> {
        let (prefix, counter) = split_nonce(nonce);
        if prefix != self.sends.reversed().prefix() {
            return Err(OpenError::Direction);
        }
        let (body, tag) = gcm::split(sealed)?;
        let mut plain = zeroize::Zeroizing::new(body.to_vec());
        gcm::open(&self.cipher, *nonce.as_bytes(), &self.aad(&self.peer, &self.me), &mut plain, tag)?;
        Ok((counter, plain))
    }

    #[cfg(test)]
    pub(super) fn aad_to_peer(&self) -> [u8; 96] {
        self.aad(&self.me, &self.peer)
    }

    /// `namespace_id ‖ from ‖ to`: a relay that relabels a message makes it unreadable.
    fn aad(&self, from: &Ed25519Public, to: &Ed25519Public) -> [u8; 96] {
        let mut aad = [0; 96];
        for (part, value) in aad.chunks_mut(32).zip([self.namespace.as_bytes(), from.as_bytes(), to.as_bytes()]) {
            part.copy_from_slice(value);
        }
        aad
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionKey").field("me", &self.me).field("peer", &self.peer).finish_non_exhaustive()
    }
}
