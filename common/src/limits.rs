//! Sizes, rates and times that the protocol fixes (protocol, Limits). What an operator may change on a relay has its
//! default here and its value in the relay's configuration.

/// Largest frame before authentication, and largest stored message frame, bytes.
pub const MAX_FRAME: usize = 64 * 1024;
/// Largest frame with a live message after authentication, bytes.
pub const MAX_LIVE_FRAME: usize = 512 * 1024;
/// Largest sealed stored message, tag included, bytes.
pub const MAX_SEALED_STORED: usize = 65_000;
/// Largest sealed live message, tag included, bytes.
pub const MAX_SEALED_LIVE: usize = 524_000;
/// Largest push token, bytes.
pub const MAX_DEVICE_TOKEN: usize = 4096;
/// Longest collapse tag, bytes.
pub const MAX_COLLAPSE: usize = 16;
/// Where inflating stops, bytes.
pub const MAX_INFLATED: usize = 8 * 1024 * 1024;
/// JSON bodies up to this are sent as they are, bytes.
pub const COMPRESS_ABOVE: usize = 1024;
/// Default life of a pairing window, seconds.
pub const PAIRING_TTL_SECS: u32 = 300;
/// Longest life of a pairing window, seconds.
pub const PAIRING_TTL_MAX_SECS: u32 = 600;
/// Life of a queued message and bound on the age of a payload, milliseconds.
pub const MESSAGE_LIFE_MS: u64 = 7 * 24 * 3600 * 1000;
/// Authorized devices per namespace.
pub const MAX_DEVICES: usize = 64;
/// Pending devices per namespace.
pub const MAX_PENDING: usize = 16;
