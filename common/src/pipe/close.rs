//! How pipe sockets end (pipe protocol, Close codes).

use std::fmt;

/// Close codes of pipe sockets. Whatever one end sends, and this build does not know, is passed on all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum PipeClose {
    /// An end is done.
    Normal = 1000,
    /// The other end or the relay went away without a word.
    GoingAway = 1001,
    /// The other end does not read, and too much waits for it.
    PeerTooSlow = 1013,
    /// The answer to the challenge was malformed, or a peer sent text.
    BadAuth = 4400,
    /// The signature is not the claimed key's.
    BadSignature = 4401,
    /// The key is no member of the namespace, or not any more.
    NotMember = 4403,
    /// The two ends do not expect each other, or no second end came within 30 s.
    Mismatch = 4404,
    /// Nothing was sent for the idle time, or no answer to the challenge came within 30 s.
    Idle = 4408,
    /// Both ends of this pipe are taken.
    AlreadyMatched = 4409,
    /// A frame over the limit.
    TooLarge = 4413,
    /// Too many pipes in this namespace, or bytes over the rate.
    TooMany = 4429,
}

impl PipeClose {
    const ALL: [Self; 11] = [
        Self::Normal,
        Self::GoingAway,
        Self::PeerTooSlow,
        Self::BadAuth,
        Self::BadSignature,
        Self::NotMember,
        Self::Mismatch,
        Self::Idle,
        Self::AlreadyMatched,
        Self::TooLarge,
        Self::TooMany,
    ];

    /// The number on the wire.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The code of a number; `None` for numbers of others.
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|close| close.code() == code)
    }

    /// The reason text that goes with it.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Normal => "",
            Self::GoingAway => "going away",
            Self::PeerTooSlow => "peer too slow",
            Self::BadAuth => "bad auth",
            Self::BadSignature => "bad signature",
            Self::NotMember => "not a member",
            Self::Mismatch => "mismatch",
            Self::Idle => "idle",
            Self::AlreadyMatched => "already matched",
            Self::TooLarge => "too large",
            Self::TooMany => "too many",
        }
    }

    /// The code with which one end's close is passed on to the other: the same, save those that only stand for a missing
    /// one and cannot be sent (1005, 1006, 1015).
    pub const fn passed_on(code: u16) -> u16 {
        match code {
            1005 | 1006 | 1015 => Self::GoingAway.code(),
            other => other,
        }
    }
}

impl fmt::Display for PipeClose {
    /// For people: what happened.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Normal => "closed",
            Self::GoingAway => "the other end or the relay went away",
            Self::PeerTooSlow => "the other end is too slow",
            Self::BadAuth => "the relay did not understand this end",
            Self::BadSignature => "the relay refused this end's signature",
            Self::NotMember => "not authorized, or not any more",
            Self::Mismatch => "the other end did not come, or was not the expected one",
            Self::Idle => "idle for too long",
            Self::AlreadyMatched => "the pipe has two ends already",
            Self::TooLarge => "a frame was too large",
            Self::TooMany => "too many pipes at once, or too much data",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_read_back_and_codes_that_cannot_be_sent_are_passed_on_as_going_away() {
        for close in PipeClose::ALL {
            assert_eq!(PipeClose::from_code(close.code()), Some(close));
            assert_eq!(PipeClose::passed_on(close.code()), close.code());
        }
        assert_eq!(PipeClose::from_code(4999), None);
        for code in [1005, 1006, 1015] {
            assert_eq!(PipeClose::passed_on(code), 1001);
        }
        assert_eq!(PipeClose::passed_on(4999), 4999);
    }
}
