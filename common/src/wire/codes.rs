//! Error codes, close codes and feature bits of the wire protocol.

use std::fmt;

/// Why the relay refuses (wire protocol, Handshake and Limits).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    /// No `Auth` within 30 s.
    ChallengeTimeout,
    /// The signature is not the claimed key's.
    InvalidSignature,
    /// The key is not authorized. Phones take this as the end of their pairing: never for a passing fault.
    Unauthorized,
    /// No such namespace or recipient.
    NotFound,
    /// No window, wrong, expired or used token: the same answer for each.
    PairingClosed,
    /// Too many frames.
    RateLimited,
    /// The frame is too big.
    PayloadTooLarge,
    /// The recipient's queue is full.
    QueueFull,
    /// Malformed, or not for this role.
    BadRequest,
}

impl ErrorCode {
    const ALL: [Self; 9] = [
        Self::ChallengeTimeout,
        Self::InvalidSignature,
        Self::Unauthorized,
        Self::NotFound,
        Self::PairingClosed,
        Self::RateLimited,
        Self::PayloadTooLarge,
        Self::QueueFull,
        Self::BadRequest,
    ];

    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ChallengeTimeout => "challenge_timeout",
            Self::InvalidSignature => "invalid_signature",
            Self::Unauthorized => "unauthorized",
            Self::NotFound => "not_found",
            Self::PairingClosed => "pairing_closed",
            Self::RateLimited => "rate_limited",
            Self::PayloadTooLarge => "payload_too_large",
            Self::QueueFull => "queue_full",
            Self::BadRequest => "bad_request",
        }
    }

    /// The code for a word; `None` for words of other relays.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.as_str() == word)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Close codes of this relay; deployed ones close without a code (wire protocol, Limits).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum CloseCode {
    /// Done: a pairing device after its `AuthOk`.
    Normal = 1000,
    /// The relay restarts.
    Restarting = 1001,
    /// An error was told before.
    Refused = 4000,
    /// A newer connection of the same key.
    Replaced = 4001,
    /// No longer authorized.
    Revoked = 4003,
    /// Silent for too long.
    Idle = 4008,
    /// A frame over the limit.
    TooBig = 4009,
}

impl CloseCode {
    /// The number on the wire.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The reason text that goes with it.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Normal => "",
            Self::Restarting => "restarting",
            Self::Refused => "refused",
            Self::Replaced => "replaced",
            Self::Revoked => "revoked",
            Self::Idle => "idle",
            Self::TooBig => "too big",
        }
    }
}

/// Feature bits beyond the deployed protocol (wire protocol, Features).
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Features(u32);

impl Features {
    /// The deployed protocol alone.
    pub const NONE: Self = Self(0);
    /// Delivery numbers, `Ack`, `Accepted`.
    pub const RECEIPTS: Self = Self(1);
    /// Collapse tags and quiet messages.
    pub const COLLAPSE: Self = Self(2);
    /// The text `ping` every 25 s.
    pub const KEEPALIVE: Self = Self(4);
    /// `PushStatus`: what an agent alone offers.
    pub const PUSH_STATUS: Self = Self(8);
    /// Everything that is for agents and clients alike.
    pub const ALL: Self = Self(1 | 2 | 4);
    /// Everything that is for agents.
    pub const AGENT: Self = Self(Self::ALL.0 | Self::PUSH_STATUS.0);

    /// From the wire; unknown bits are kept until intersected.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// For the wire.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// What both have.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether every bit of `other` is there.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Features({:#06b})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_read_back_and_only_one_ends_a_phones_pairing() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::parse(code.as_str()), Some(code));
            assert_eq!(code.as_str().contains("unauthorized"), code == ErrorCode::Unauthorized);
        }
        assert_eq!(ErrorCode::parse("else"), None);
    }

    #[test]
    fn what_is_for_agents_alone_is_offered_by_no_client() {
        assert_eq!((Features::ALL.bits(), Features::AGENT.bits()), (7, 15));
        assert!(Features::AGENT.contains(Features::ALL) && !Features::ALL.contains(Features::PUSH_STATUS));
    }
}
