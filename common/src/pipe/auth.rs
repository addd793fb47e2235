//! How a socket joins a pipe: the relay's challenge, the peer's answer, and the texts of flow control (pipe protocol, Data
//! plane and Backpressure).

use sha2::{Digest, Sha256};

use super::msgpack::{PipeDecodeError, Value, Writer};
use crate::crypto::{Identity, verify_pipe};
use crate::ids::{ChallengeNonce, ConnectionId, DestHash, Ed25519Public, NamespaceId, Signature};
use crate::limits::PIPE_MAX_AUTH;

/// The relay's text message that tells a peer with [`PipeAuth::flow`] to stop sending.
pub const PAUSE: &str = "pause";
/// The relay's text message that ends [`PAUSE`].
pub const RESUME: &str = "resume";

/// `{nonce}`: the first message on every pipe socket.
pub fn encode_challenge(nonce: &ChallengeNonce) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.map(1).text("nonce").bytes(nonce.as_bytes());
    writer.finish()
}

/// Reads the relay's challenge. At most [`PIPE_MAX_AUTH`] bytes.
pub fn decode_challenge(message: &[u8]) -> Result<ChallengeNonce, PipeDecodeError> {
    let map = Value::whole(message, PIPE_MAX_AUTH)?.map("challenge")?;
    map.get("nonce")?.bytes("nonce").map(ChallengeNonce::new)
}

/// `{connection_id, pubkey, dest, namespace_id, signature, flow}`: the answer to a challenge, and the last message on a pipe
/// socket that the relay reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipeAuth {
    /// The pipe.
    pub connection: ConnectionId,
    /// Who joins it.
    pub pubkey: Ed25519Public,
    /// The hash of the key that must be at the other end.
    pub dest: DestHash,
    /// The namespace of both.
    pub namespace: NamespaceId,
    /// Proves `pubkey`, for this pipe and challenge alone.
    pub signature: Signature,
    /// Whether the peer obeys [`PAUSE`] and [`RESUME`]. *Addition*: absent from deployed peers.
    pub flow: bool,
}

impl PipeAuth {
    /// The answer of `me`, which expects `partner` at the other end.
    pub fn new(
        me: &Identity,
        nonce: &ChallengeNonce,
        connection: ConnectionId,
        partner: &Ed25519Public,
        namespace: NamespaceId,
        flow: bool,
    ) -> Self {
        Self {
            connection,
            pubkey: me.ed25519_pub(),
            dest: dest_hash(partner),
            namespace,
            signature: me.sign_pipe(nonce, &connection),
            flow,
        }
    }

    /// As one binary message; `flow` is written only if it is set.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.map(if self.flow { 6 } else { 5 });
        writer.text("connection_id").bytes(self.connection.as_bytes());
        writer.text("pubkey").bytes(self.pubkey.as_bytes());
        writer.text("dest").bytes(self.dest.as_bytes());
        writer.text("namespace_id").bytes(self.namespace.as_bytes());
        writer.text("signature").bytes(self.signature.as_bytes());
        if self.flow {
            writer.text("flow").flag(true);
        }
        writer.finish()
    }

    /// Reads an answer: byte fields as arrays of integers or as bin, unknown keys ignored, at most [`PIPE_MAX_AUTH`] bytes.
    /// Says nothing of its signature.
    pub fn decode(message: &[u8]) -> Result<Self, PipeDecodeError> {
        let map = Value::whole(message, PIPE_MAX_AUTH)?.map("auth")?;
        let flow = match map.find("flow")? {
            Some(value) => value.flag("flow")?,
            None => false,
        };
        Ok(Self {
            connection: ConnectionId::new(map.get("connection_id")?.bytes("connection_id")?),
            pubkey: Ed25519Public::new(map.get("pubkey")?.bytes("pubkey")?),
            dest: DestHash::new(map.get("dest")?.bytes("dest")?),
            namespace: NamespaceId::new(map.get("namespace_id")?.bytes("namespace_id")?),
            signature: Signature::new(map.get("signature")?.bytes("signature")?),
            flow,
        })
    }

    /// Whether the signature is `pubkey`'s, over this challenge and this connection id.
    #[must_use]
    pub fn verify(&self, nonce: &ChallengeNonce) -> bool {
        verify_pipe(&self.pubkey, nonce, &self.connection, &self.signature).is_ok()
    }

    /// Whether these are the two ends of one pipe: each expects the other's key, and connection, namespace are the same.
    /// One key is never both ends.
    #[must_use]
    pub fn matches(&self, other: &Self) -> bool {
        self.connection == other.connection
            && self.namespace == other.namespace
            && self.pubkey != other.pubkey
            && self.dest == dest_hash(&other.pubkey)
            && other.dest == dest_hash(&self.pubkey)
    }
}

/// `SHA-256(key)`: how an answer names the other end.
pub fn dest_hash(key: &Ed25519Public) -> DestHash {
    DestHash::new(Sha256::digest(key.as_bytes()).into())
}
