//! What a phone knows, without I/O: inbox, answers, counters, and what is worth telling its owner.
//!
//! Nothing here reads a clock, draws randomness or touches a disk or a socket, so that the terminal phone and a web app can
//! share it. Texts are kept as they came; [`text`] makes them safe to show.

pub mod account;
pub mod answer;
pub mod arguments;
pub mod inbox;
pub mod item;
pub mod push;
pub mod text;
