//! The limits of the wire protocol, each with its default and the variable that an operator may set.
//!
//! | variable | unit | default |
//! |---|---|---|
//! | `RELAY_MAX_FRAME_BYTES` | bytes, before `AuthOk` and for stored messages | 65,536 |
//! | `RELAY_MAX_LIVE_FRAME_BYTES` | bytes, live messages | 524,288 |
//! | `RELAY_CONNECTIONS_PER_MINUTE` | new control connections per address and minute; kept by the front | 30 |
//! | `RELAY_RATE_PER_MINUTE` | frames a minute and burst, per connection of a device | 60 |
//! | `RELAY_AGENT_RATE_PER_MINUTE` | the same for an agent | 240 |
//! | `RELAY_QUEUE_MAX_MESSAGES` | messages per recipient | 200 |
//! | `RELAY_QUEUE_MAX_BYTES` | bytes per recipient | 4,194,304 |
//! | `RELAY_MESSAGE_LIFE_SECS` | seconds in the queue | 604,800 |
//! | `RELAY_NAMESPACE_LIFE_SECS` | seconds without any connection | 7,776,000 |
//! | `RELAY_PAIRING_TTL_SECS` | seconds of a pairing window that names no time | 300 |
//! | `RELAY_PAIRING_TTL_MAX_SECS` | seconds at most | 600 |
//! | `RELAY_PENDING_MAX` | pending devices per namespace | 16 |
//! | `RELAY_PENDING_LIFE_SECS` | seconds until a pending device is forgotten | 86,400 |
//! | `RELAY_DEVICES_MAX` | authorized devices per namespace | 64 |
//! | `RELAY_CHALLENGE_TIMEOUT_SECS` | seconds from the challenge to `Auth` | 30 |
//! | `RELAY_UNAUTHENTICATED_MAX` | sockets per object before `AuthOk` | 16 |
//! | `RELAY_KEEPALIVE_DEAD_SECS` | seconds of silence that end a KEEPALIVE connection | 120 |
//! | `RELAY_ACK_TIMEOUT_SECS` | seconds that a delivery may stay unacknowledged beside other traffic | 60 |
//! | `RELAY_PUSH_UNPROVED_SECS` | seconds unproved, on a client without KEEPALIVE, after which a message is pushed | 60 |
//! | `RELAY_WINDOW_MESSAGES` | deliveries unacknowledged at a time | 64 |
//! | `RELAY_WINDOW_BYTES` | bytes unacknowledged or unsent at a time | 1,048,576 |
//! | `RELAY_HELD_LIVE_MAX` | live messages waiting behind a drain | 16 |
//! | `RELAY_HELD_LIVE_BYTES` | bytes of them | 1,048,576 |
//! | `RELAY_PIPE_CONNECTIONS_PER_MINUTE` | new pipe sockets per address and minute; kept by the front | 120 |
//! | `RELAY_PIPE_PENDING_TTL_SECS` | seconds that one side of a pipe waits for the other | 30 |
//! | `RELAY_PIPE_IDLE_TIMEOUT_SECS` | seconds without a message that end a pipe | 120 |
//! | `RELAY_PIPE_STALL_SECS` | seconds without a byte read that end a pipe whose reader has stopped | 120 |
//! | `RELAY_PIPE_MAX_PER_NS` | pipes per namespace, pending ones counted | 32 |
//! | `RELAY_PIPE_MAX_FRAME_BYTES` | bytes of a pipe's message | 1,048,576 |
//! | `RELAY_PIPE_MAX_BPS` | bytes a second from one end of a pipe; 0: no limit | 0 |

use skald_common::limits as protocol;

macro_rules! limits {
    ($($(#[$doc:meta])* $field:ident = $var:literal, $default:expr, max $max:expr;)*) => {
        /// What a relay allows; durations in milliseconds.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Limits {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Default for Limits {
            fn default() -> Self {
                Self { $($field: $default * scale($var),)* }
            }
        }

        impl Limits {
            /// The limits from an operator's variables. A variable that is absent or empty leaves the default; one that is
            /// no whole number from 1 (0 where that is the default) to its bound leaves it too, and is told.
            pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> (Self, Vec<LimitError>) {
                let mut errors = Vec::new();
                let limits = Self {
                    $($field: read(&lookup, $var, $default, $max, &mut errors) * scale($var),)*
                };
                (limits, errors)
            }
        }
    };
}

/// The largest duration that may be configured: ten years, in seconds.
const MAX_SECS: u64 = 10 * 365 * 24 * 3600;
/// The largest message that the platform stores in one row, with room for the other columns.
const MAX_STORED: u64 = 1024 * 1024;
/// The largest message that the platform delivers.
const MAX_MESSAGE: u64 = 32 * 1024 * 1024;

limits! {
    /// Bytes of a frame before `AuthOk`, and of a stored message's.
    max_frame = "RELAY_MAX_FRAME_BYTES", protocol::MAX_FRAME as u64, max MAX_STORED;
    /// Bytes of a live message's frame.
    max_live_frame = "RELAY_MAX_LIVE_FRAME_BYTES", protocol::MAX_LIVE_FRAME as u64, max MAX_MESSAGE;
    /// New control connections per address and minute; kept by the front.
    connections_per_minute = "RELAY_CONNECTIONS_PER_MINUTE", 30, max 1_000_000;
    /// `Message` and `PresenceRequest` frames a minute, and burst, of a device's connection.
    rate_per_minute = "RELAY_RATE_PER_MINUTE", 60, max 1_000_000;
    /// The same for an agent.
    agent_rate_per_minute = "RELAY_AGENT_RATE_PER_MINUTE", 240, max 1_000_000;
    /// Messages queued per recipient.
    queue_messages = "RELAY_QUEUE_MAX_MESSAGES", 200, max 10_000;
    /// Bytes queued per recipient.
    queue_bytes = "RELAY_QUEUE_MAX_BYTES", 4 * 1024 * 1024, max 64 * 1024 * 1024;
    /// Life of a queued message.
    message_life = "RELAY_MESSAGE_LIFE_SECS", protocol::MESSAGE_LIFE_MS / 1000, max MAX_SECS;
    /// Life of a namespace without any connection.
    namespace_life = "RELAY_NAMESPACE_LIFE_SECS", 90 * 24 * 3600, max MAX_SECS;
    /// Life of a pairing window that names none.
    pairing_ttl = "RELAY_PAIRING_TTL_SECS", u64::from(protocol::PAIRING_TTL_SECS), max 24 * 3600;
    /// Longest life of a pairing window.
    pairing_ttl_max = "RELAY_PAIRING_TTL_MAX_SECS", u64::from(protocol::PAIRING_TTL_MAX_SECS), max 24 * 3600;
    /// Pending devices per namespace.
    pending = "RELAY_PENDING_MAX", protocol::MAX_PENDING as u64, max 1000;
    /// Life of a pending device.
    pending_life = "RELAY_PENDING_LIFE_SECS", 24 * 3600, max MAX_SECS;
    /// Authorized devices per namespace.
    devices = "RELAY_DEVICES_MAX", protocol::MAX_DEVICES as u64, max 1000;
    /// From the challenge to `Auth`.
    challenge_timeout = "RELAY_CHALLENGE_TIMEOUT_SECS", 30, max 3600;
    /// Sockets per object before `AuthOk`.
    unauthenticated = "RELAY_UNAUTHENTICATED_MAX", 16, max 10_000;
    /// Silence that ends a KEEPALIVE connection.
    keepalive_dead = "RELAY_KEEPALIVE_DEAD_SECS", 120, max MAX_SECS;
    /// How long a delivery may stay unacknowledged beside other traffic.
    ack_timeout = "RELAY_ACK_TIMEOUT_SECS", 60, max MAX_SECS;
    /// How long a message may be unproved on a client without KEEPALIVE before it is pushed.
    push_unproved = "RELAY_PUSH_UNPROVED_SECS", 60, max MAX_SECS;
    /// Deliveries unacknowledged at a time.
    window_messages = "RELAY_WINDOW_MESSAGES", 64, max 64;
    /// Bytes unacknowledged or unsent at a time.
    window_bytes = "RELAY_WINDOW_BYTES", 1024 * 1024, max 16 * 1024 * 1024;
    /// Live messages waiting behind a drain.
    held_messages = "RELAY_HELD_LIVE_MAX", 16, max 1000;
    /// Bytes of live messages waiting behind a drain.
    held_bytes = "RELAY_HELD_LIVE_BYTES", 1024 * 1024, max 16 * 1024 * 1024;
    /// New pipe sockets per address and minute; kept by the front.
    pipe_connections_per_minute = "RELAY_PIPE_CONNECTIONS_PER_MINUTE", 120, max 1_000_000;
    /// How long one side of a pipe waits for the other.
    pipe_pending = "RELAY_PIPE_PENDING_TTL_SECS", protocol::PIPE_PENDING_MS / 1000, max 3600;
    /// How long a pipe may be silent.
    pipe_idle = "RELAY_PIPE_IDLE_TIMEOUT_SECS", protocol::PIPE_IDLE_MS / 1000, max MAX_SECS;
    /// How long a reader that has stopped may take none of what waits for it.
    pipe_stall = "RELAY_PIPE_STALL_SECS", 120, max MAX_SECS;
    /// Pipes per namespace, pending ones counted.
    pipes = "RELAY_PIPE_MAX_PER_NS", protocol::PIPE_MAX_PER_NAMESPACE as u64, max 1000;
    /// Bytes of a pipe's message.
    pipe_frame = "RELAY_PIPE_MAX_FRAME_BYTES", protocol::PIPE_MAX_FRAME as u64, max MAX_MESSAGE / 2;
    /// Bytes a second from one end of a pipe; 0: no limit.
    pipe_rate = "RELAY_PIPE_MAX_BPS", 0, max 1 << 40;
}

/// A variable of the operator was not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable} must be a whole number from {min} to {max}, not {value:?}; using {default}")]
pub struct LimitError {
    /// Its name.
    pub variable: &'static str,
    /// What it said.
    pub value: String,
    /// The smallest value allowed.
    pub min: u64,
    /// The largest value allowed.
    pub max: u64,
    /// What holds instead.
    pub default: u64,
}

/// Milliseconds for variables in seconds, 1 for others.
const fn scale(variable: &str) -> u64 {
    let bytes = variable.as_bytes();
    match bytes {
        [.., b'_', b'S', b'E', b'C', b'S'] => 1000,
        _ => 1,
    }
}

fn read(
    lookup: &impl Fn(&str) -> Option<String>,
    variable: &'static str,
    default: u64,
    max: u64,
    errors: &mut Vec<LimitError>,
) -> u64 {
    let Some(value) = lookup(variable).filter(|value| !value.trim().is_empty()) else { return default };
    let min = default.min(1);
    match value.trim().parse() {
        Ok(number) if (min..=max).contains(&number) => number,
        _ => {
            errors.push(LimitError { variable, value, min, max, default });
            default
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_the_protocol() {
        let limits = Limits::default();
        assert_eq!((limits.max_frame, limits.max_live_frame), (65_536, 524_288));
        assert_eq!((limits.queue_messages, limits.queue_bytes), (200, 4_194_304));
        assert_eq!(limits.message_life, 7 * 24 * 3_600_000);
        assert_eq!(limits.namespace_life, 90 * 24 * 3_600_000);
        assert_eq!((limits.pairing_ttl, limits.pairing_ttl_max), (300_000, 600_000));
    }

    #[test]
    fn a_variable_replaces_its_default_and_seconds_become_milliseconds() {
        let (limits, errors) = Limits::from_lookup(|name| match name {
            "RELAY_PENDING_MAX" => Some("3".to_owned()),
            "RELAY_PENDING_LIFE_SECS" => Some(" 7 ".to_owned()),
            "RELAY_DEVICES_MAX" => Some(String::new()),
            _ => None,
        });
        assert!(errors.is_empty());
        assert_eq!(limits, Limits { pending: 3, pending_life: 7000, ..Limits::default() });
    }

    #[test]
    fn a_wrong_value_is_told_and_leaves_the_default() {
        for wrong in ["x", "-1", "0", "1.5", "1e3", "99999999999999999999"] {
            let (limits, errors) =
                Limits::from_lookup(|name| (name == "RELAY_QUEUE_MAX_MESSAGES").then(|| wrong.to_owned()));
            assert_eq!(limits, Limits::default());
            let [error] = errors.as_slice() else { panic!("{errors:?}") };
            assert!(error.to_string().contains("RELAY_QUEUE_MAX_MESSAGES") && error.to_string().contains(wrong));
        }
    }
}
