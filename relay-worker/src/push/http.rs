//! Requests and answers as plain data, and what all services' answers have in common.

use std::fmt;
use std::time::UNIX_EPOCH;

use super::json::Json;
use super::verdict::{Reason, Verdict};

/// The longest `Retry-After` that is taken at its word, milliseconds.
const MAX_RETRY_AFTER: u64 = 24 * 3_600_000;

/// One POST. Redirects are not followed.
#[derive(Clone, PartialEq, Eq)]
pub struct Request {
    /// Absolute, in the form that a URL parser gives it.
    pub url: String,
    /// Names and values; visible ASCII and spaces alone.
    pub headers: Vec<(&'static str, String)>,
    /// All of it.
    pub body: Vec<u8>,
}

/// Nothing of a request may stand in a log.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({} headers, {} bytes)", self.headers.len(), self.body.len())
    }
}

/// What a service answered.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The header `Retry-After`.
    pub retry_after: Option<String>,
    /// The body, or its beginning.
    pub body: Vec<u8>,
}

/// May quote a token.
impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Answer({}, {} bytes)", self.status, self.body.len())
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No connection, or it broke.
    Network,
    /// Not in time.
    Timeout,
}

impl Answer {
    /// The body as JSON.
    pub(super) fn json(&self) -> Option<Json> {
        Json::parse(&self.body)
    }

    /// What any service means by a status that says nothing of tokens. A service that is overloaded or broken may be asked
    /// again, and so may whatever stands between us and answers with nonsense; everything else would be refused again.
    pub(super) fn judge(&self, now_ms: u64) -> Verdict {
        match self.status {
            200..=299 => Verdict::sent(self.status),
            300..=399 => Verdict::refused(Reason::Redirect, self.status),
            401 | 403 => Verdict::refused(Reason::Credentials, self.status),
            408 => self.not_now(Reason::Timeout, now_ms),
            413 => Verdict::refused(Reason::TooLarge, self.status),
            425 | 429 => self.not_now(Reason::Busy, now_ms),
            400..=499 => Verdict::refused(Reason::Rejected, self.status),
            500..=599 => self.not_now(Reason::Broken, now_ms),
            _ => self.not_now(Reason::Nonsense, now_ms),
        }
    }

    /// To be asked again, when the service says.
    pub(super) fn not_now(&self, reason: Reason, now_ms: u64) -> Verdict {
        Verdict::unavailable(reason, self.status, self.retry_after_ms(now_ms))
    }

    /// Seconds or a date (RFC 9110, 10.2.3); what is neither counts as absent.
    fn retry_after_ms(&self, now_ms: u64) -> Option<u64> {
        let text = self.retry_after.as_deref()?.trim();
        let wait = if !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit()) {
            text.parse().map_or(u64::MAX, |seconds: u64| seconds.saturating_mul(1000))
        } else {
            let at = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
            u64::try_from(at.as_millis()).ok()?.saturating_sub(now_ms)
        };
        Some(wait.min(MAX_RETRY_AFTER))
    }
}

impl From<Failure> for Verdict {
    fn from(failure: Failure) -> Self {
        let reason = match failure {
            Failure::Network => Reason::Network,
            Failure::Timeout => Reason::Timeout,
        };
        Self::unavailable(reason, 0, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::Outcome;

    fn asked_to_wait(retry_after: &str, now_ms: u64) -> Option<u64> {
        let answer = Answer { status: 503, retry_after: Some(retry_after.to_owned()), body: Vec::new() };
        match answer.judge(now_ms).outcome {
            Outcome::Unavailable { retry_after_ms } => retry_after_ms,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn retry_after_is_read_as_seconds_and_as_a_date_and_is_bounded() {
        assert_eq!(asked_to_wait("120", 0), Some(120_000));
        assert_eq!(asked_to_wait(" 0 ", 0), Some(0));
        // The example of RFC 9110, which is 1994-11-06 08:49:37 UTC, in all three forms.
        for date in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(asked_to_wait(date, 784_111_770_000), Some(7000), "{date}");
            assert_eq!(asked_to_wait(date, 784_111_999_000), Some(0), "a date that is over");
        }
        assert_eq!(asked_to_wait("99999999999999999999999", 0), Some(MAX_RETRY_AFTER));
        assert_eq!(asked_to_wait("Fri, 31 Dec 9999 23:59:59 GMT", 0), Some(MAX_RETRY_AFTER));
        for nonsense in ["", "-1", "1.5", "soon", "Sun, 99 Nov 1994 08:49:37 GMT", "Wed, 01 Jan 1969 00:00:00 GMT"] {
            assert_eq!(asked_to_wait(nonsense, 0), None, "{nonsense}");
        }
    }

    #[test]
    fn every_status_has_its_verdict() {
        for status in 0..=u16::MAX {
            let verdict = Answer { status, ..Answer::default() }.judge(0);
            assert_eq!(verdict.status, status);
            match status {
                200..=299 => assert_eq!(verdict.outcome, Outcome::Sent),
                408 | 425 | 429 | 0..=199 | 500.. => assert!(matches!(verdict.outcome, Outcome::Unavailable { .. })),
                _ => assert_eq!(verdict.outcome, Outcome::Refused, "{status}"),
            }
        }
    }
}
