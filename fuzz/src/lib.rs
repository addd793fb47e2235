//! Fuzz targets for whatever reads bytes that somebody else has written. Each target is a function here, so that it can be
//! run, debugged and replayed without a fuzzer; `targets/` hands them to libFuzzer. A target does not only wait for a panic:
//! it states what must hold of whatever comes out.
//!
//! | target | what is read |
//! |---|---|
//! | [`relay_engine`] | any sequence of inputs, by a relay's namespace |
//! | [`relay_restore`] | attachments and rows, by a relay after an eviction |
//! | [`peer`] | whatever a relay says, by daemon and phone |
//! | [`push_services`] | push tokens and subscriptions, and what push services answer |
//! | [`wire`] | frames, and the front's check of `Auth` |
//! | [`sealed`] | seals, framing, zlib |
//! | [`pipe_auth`] | how a socket joins a pipe |
//! | [`pipe_signal`] | how a pipe is asked for |
//! | [`pipes`] | whole histories of asking, by both sides |
//! | [`pipe_frames`] | a pipe's frames, in any order and state |
//! | [`payload`] | the JSON between agent and device |
//! | [`pairing_code`] | pairing codes and relay addresses |
//! | [`routes`] | host and path of a request to the relay |
//! | [`socket_lines`] | the daemon's sockets |
//! | [`config`] | the daemon's settings file |
//! | [`phone_state`] | a phone's state file, and what it shows of what an agent sends |
//! | [`push_body`] | what a push service delivers to a phone, and what the phone keeps of its push token |
//!
//! The daemon's backup of devices is read by a private function, which has its property test beside it.

#![forbid(unsafe_code)]

pub mod config;
mod msgpack;
pub mod pairing_code;
pub mod payload;
pub mod peer;
pub mod phone_state;
pub mod pipe_auth;
pub mod pipe_frames;
pub mod pipe_signal;
pub mod pipes;
pub mod push_body;
pub mod push_services;
mod quiet;
pub mod relay_engine;
pub mod relay_restore;
pub mod relay_world;
pub mod routes;
pub mod sealed;
pub mod seeds;
pub mod socket_lines;
pub mod tape;
pub mod wire;
