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
/// How long the opener of a pipe waits for an answer, and the invited side for its application, milliseconds.
pub const PIPE_OPEN_MS: u64 = 30_000;
/// Plaintext of one frame of a pipe, bytes: what this implementation sends. Received frames may have [`PIPE_MAX_FRAME`].
pub const PIPE_CHUNK: usize = 64 * 1024;
/// Largest frame of a pipe, tag included, bytes.
pub const PIPE_MAX_FRAME: usize = 1024 * 1024;
/// Largest challenge, and largest answer to one, on a pipe, bytes.
pub const PIPE_MAX_AUTH: usize = 4096;
/// Largest pipe signal, bytes.
pub const PIPE_MAX_SIGNAL: usize = 32 * 1024;
/// How long the relay waits for the answer to its challenge, and an end for the challenge, milliseconds.
pub const PIPE_AUTH_MS: u64 = 30_000;
/// How long one end waits for the other at the relay, milliseconds.
pub const PIPE_PENDING_MS: u64 = 30_000;
/// How long a pipe lives without a frame in either direction, milliseconds.
pub const PIPE_IDLE_MS: u64 = 120_000;
/// Pipes of a namespace at once, pending ones counted.
pub const PIPE_MAX_PER_NAMESPACE: usize = 32;
/// Pipes that one partner may be opening at once, in either direction.
pub const PIPE_MAX_OPENING: usize = 32;
/// Pipes that all partners together may be opening at once.
pub const PIPE_MAX_OPENING_ALL: usize = 256;
