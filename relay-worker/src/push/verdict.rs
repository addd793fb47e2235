//! What came of a push, typed: for the engine an [`Outcome`], for logs and counts besides a [`Reason`] and the status.
//! Reasons are our own words: what a service says may quote a token.

use super::Outcome;
use super::endpoint::EndpointError;

/// The three kinds of push service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Service {
    /// Apple's.
    Apns,
    /// Google's.
    Fcm,
    /// Those of browsers, and `UnifiedPush`.
    Web,
}

impl Service {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Apns, Self::Fcm, Self::Web];

    /// For logs and `/healthz`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Apns => "apns",
            Self::Fcm => "fcm",
            Self::Web => "web",
        }
    }

    /// The one of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// The one of the wire's platform number.
    pub const fn of_platform(platform: i32) -> Option<Self> {
        use skald_common::wire::Platform;
        const IOS: i32 = Platform::Ios as i32;
        const ANDROID: i32 = Platform::Android as i32;
        const WEB: i32 = Platform::Web as i32;
        match platform {
            IOS => Some(Self::Apns),
            ANDROID => Some(Self::Fcm),
            WEB => Some(Self::Web),
            _ => None,
        }
    }
}

/// The kinds of outcome that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The service took it.
    Sent,
    /// The token is dead.
    Gone,
    /// Never.
    Refused,
    /// Not now; tried again.
    Unavailable,
    /// A message that was tried as often as any is.
    GivenUp,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Sent, Self::Gone, Self::Refused, Self::Unavailable, Self::GivenUp];

    /// For logs and `/healthz`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Gone => "gone",
            Self::Refused => "refused",
            Self::Unavailable => "unavailable",
            Self::GivenUp => "given-up",
        }
    }

    /// The one of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }
}

/// Why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The service took it.
    Accepted,
    /// The service knew the token once, or never.
    Unregistered,
    /// The service says that the token is none, or one for another app.
    BadToken,
    /// What the device gave us is no token of its platform; nothing was sent.
    Malformed,
    /// What the device gave us leads where no push goes; nothing was sent.
    Endpoint(EndpointError),
    /// No credentials for this platform; nothing was sent.
    Off,
    /// The service does not accept who we are.
    Credentials,
    /// The service does not accept our token because of its time.
    Expired,
    /// The service does not let us push to this app.
    Topic,
    /// The token belongs to another project, or another key.
    Sender,
    /// Too large for the service.
    TooLarge,
    /// The service sent us elsewhere, where nobody follows.
    Redirect,
    /// The service says no for another reason.
    Rejected,
    /// The service has had enough of us for now.
    Busy,
    /// The service has a fault.
    Broken,
    /// The service answered something that it never should.
    Nonsense,
    /// No connection, or it broke.
    Network,
    /// No answer in time.
    Timeout,
    /// Tried as often as any message is.
    Exhausted,
    /// A fault of our own.
    Internal,
}

impl Reason {
    /// For logs and `/healthz`.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Unregistered => "unregistered",
            Self::BadToken => "bad-token",
            Self::Malformed => "malformed-token",
            Self::Endpoint(error) => error.code(),
            Self::Off => "off",
            Self::Credentials => "credentials",
            Self::Expired => "expired-credentials",
            Self::Topic => "topic",
            Self::Sender => "sender",
            Self::TooLarge => "too-large",
            Self::Redirect => "redirect",
            Self::Rejected => "rejected",
            Self::Busy => "busy",
            Self::Broken => "broken",
            Self::Nonsense => "nonsense",
            Self::Network => "network",
            Self::Timeout => "timeout",
            Self::Exhausted => "exhausted",
            Self::Internal => "internal",
        }
    }
}

/// The end of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// For the engine.
    pub outcome: Outcome,
    /// Why.
    pub reason: Reason,
    /// The last HTTP status; 0 if there was none.
    pub status: u16,
}

impl Verdict {
    pub(super) const fn sent(status: u16) -> Self {
        Self { outcome: Outcome::Sent, reason: Reason::Accepted, status }
    }

    pub(super) const fn gone(reason: Reason, status: u16) -> Self {
        Self { outcome: Outcome::TokenGone, reason, status }
    }

    pub(super) const fn refused(reason: Reason, status: u16) -> Self {
        Self { outcome: Outcome::Refused, reason, status }
    }

    /// Not now.
    pub const fn unavailable(reason: Reason, status: u16, retry_after_ms: Option<u64>) -> Self {
        Self { outcome: Outcome::Unavailable { retry_after_ms }, reason, status }
    }

    /// What it counts as.
    pub const fn kind(&self) -> Kind {
        match self.outcome {
            Outcome::Sent => Kind::Sent,
            Outcome::TokenGone => Kind::Gone,
            Outcome::Refused => Kind::Refused,
            Outcome::Unavailable { .. } => Kind::Unavailable,
        }
    }
}
