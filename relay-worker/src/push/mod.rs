//! Push (push protocol): what the engine asks for, and what came of it. The engine decides when; it never reads what is
//! sealed, and knows nothing of the services.

use std::fmt;

use bytes::Bytes;
use skald_common::ids::{Ed25519Public, NamespaceId};

/// The services that this relay has credentials for. For the others nothing is noted and nothing is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Services {
    /// Apple's, for platform IOS.
    pub apns: bool,
    /// Google's, for platform ANDROID.
    pub fcm: bool,
    /// Those of browsers, for platform WEB.
    pub web: bool,
}

/// One push to one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Names the attempt within its object; comes back with the [`Outcome`].
    pub id: u64,
    /// Where it goes.
    pub target: Target,
    /// Whose agent and devices.
    pub namespace: NamespaceId,
    /// Collapse id: the first 16 bytes of SHA-256(namespace ‖ sender ‖ tag), for messages with a collapse tag.
    pub collapse: Option<[u8; 16]>,
    /// The queued message. Whether it travels along or only wakes the device, its size decides.
    pub sealed: Sealed,
}

/// A device, as its push service knows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    /// The wire's platform number.
    pub platform: i32,
    /// The device token, or a browser's subscription as JSON; at most 4,096 bytes, never empty. Untrusted.
    pub token: String,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({}, {} bytes)", self.platform, self.token.len())
    }
}

/// A message as it is queued.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed {
    /// Who sealed it: the agent.
    pub sender: Ed25519Public,
    /// Its nonce.
    pub nonce: [u8; 12],
    /// The sealed bytes.
    pub ciphertext: Bytes,
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealed({} bytes)", self.ciphertext.len())
    }
}

/// What came of a [`Job`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The service took it.
    Sent,
    /// The service knows this token no more: forget it.
    TokenGone,
    /// The service, or our own check of the token, says no, and would say so again.
    Refused,
    /// Not now: an overloaded or broken service, a network error, no answer in time.
    Unavailable {
        /// What the service asked to wait, milliseconds.
        retry_after_ms: Option<u64>,
    },
}
