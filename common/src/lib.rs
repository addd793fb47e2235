//! The protocol of Skald Remote: everything that relay, daemon and phone must do alike, byte for byte.
//!
//! * [`ids`]: a type for each key, id, token and nonce, so that swapping two does not compile.
//! * [`crypto`]: identities, sealing, challenge signatures, fingerprints.
//! * [`framing`]: what stands inside a sealed message.
//! * [`wire`]: the protobuf frames between a peer and the relay, and their codes.
//! * [`limits`]: sizes, rates and times of the protocol.
//! * [`pairing`]: the content of the pairing QR code.
//! * [`payload`]: the JSON that agent and devices exchange end to end.
//! * [`pipe`]: byte streams between two members: signals, joining, negotiation.
//! * [`peer`]: the sans-IO engine that agent and phone share.
//!
//! Nothing here opens a socket, reads a clock, draws randomness or touches a disk.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)
)]

pub mod crypto;
pub mod framing;
pub mod ids;
pub mod limits;
#[cfg(feature = "peer")]
pub mod pairing;
#[cfg(feature = "peer")]
pub mod payload;
#[cfg(feature = "peer")]
pub mod peer;
pub mod pipe;
pub mod wire;
