//! Pipes: end-to-end encrypted byte streams between two members of a namespace, spliced by the relay (protocol, Pipes).
//!
//! * [`signal`]: `Invite`, `Accept`, `Reject`, which go sealed over the control plane.
//! * [`auth`]: the challenge and the answer with which a socket joins a pipe, and the texts of flow control.
//! * [`Pipes`]: how the two sides come to agree, sans-IO.
//! * [`PipeClose`]: how pipe sockets end.
//!
//! Keys and frames are in [`crypto`](crate::crypto).

pub mod auth;
mod close;
mod msgpack;
#[cfg(feature = "peer")]
mod pipes;
#[cfg(all(test, feature = "peer"))]
mod pipes_tests;
pub mod signal;
#[cfg(test)]
mod tests;

pub use auth::PipeAuth;
pub use close::PipeClose;
pub use msgpack::PipeDecodeError;
#[cfg(feature = "peer")]
pub use pipes::{Agreed, InvitationGone, OpenPipeError, PipeFailure, PipeOutput, Pipes, SignalDrop};
