//! The agent's side of Skald Remote: everything of the daemon but its command lines.
//!
//! * [`daemon`]: starts the parts and ties them together; `core`: hands inputs to the hub and carries out its steps.
//! * [`hub`]: the one owner of state: items, answers, devices, pairing. Without I/O; [`hub::api`] is the way in.
//! * [`store`]: the database and the backup of devices beside it.
//! * `relay`: the connection to the relay; `tunnels`: where the bytes of pipes pass.
//! * [`identity`], [`state_dir`]: the seed file, the state folder and its lock.
//! * [`rpc`]: JSON-RPC 2.0 in lines, for both ends of the sockets.
//! * [`server`]: the two Unix sockets.
//! * [`config`], [`paths`], [`logging`], [`process`]: settings, where things are, where messages go, signals.
//! * [`ctl`]: what `skaldctl` does; a client of the sockets like any other.
//! * [`qr`]: pairing codes as pictures.

pub mod config;
mod core;
pub mod ctl;
pub mod daemon;
pub mod hub;
pub mod identity;
pub mod logging;
pub mod paths;
pub mod process;
pub mod qr;
mod relay;
mod remedy;
pub mod rpc;
pub mod server;
pub mod state_dir;
pub mod store;
mod tunnels;
