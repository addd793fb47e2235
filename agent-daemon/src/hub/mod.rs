//! The hub: the one owner of the daemon's state.

pub mod api;
pub mod events;
pub mod items;
