//! The relay of Skald Remote.
//!
//! * [`engine`]: one namespace as a state machine without I/O: members, pairing, queues, delivery, presence, limits.
//! * [`store`]: the SQL text and rows behind it, over the small [`store::Sql`] trait.
//! * [`front`]: what the stateless Worker decides: routes, and how many connections an address may open.
//! * [`push`]: what a push is, between engine and services.
//! * [`pipe`]: one end of a pipe as a state machine without I/O: challenge, flow control, deadlines.
//! * `worker` (wasm only): the glue for Cloudflare Workers. It alone knows sockets, clocks and randomness.
//!
//! The relay is blind to content: it sees keys, sizes, times and push tokens, never payloads.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)
)]

pub mod engine;
pub mod front;
pub mod pipe;
pub mod push;
pub mod store;
#[cfg(target_arch = "wasm32")]
mod worker;
