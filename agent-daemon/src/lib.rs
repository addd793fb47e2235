//! The agent's side of Skald Remote: everything of the daemon but its command lines.
//!
//! * `daemon`: starts the parts and ties them together.
//! * [`hub`]: the one owner of state: items, answers, devices, pairing. Without I/O; [`hub::api`] is the way in.
//! * `store`: the database and the backup of devices beside it.
//! * `relay`: the connection to the relay.
//! * `identity`, `state_dir`: the seed file, the state folder and its lock.
//! * [`rpc`]: JSON-RPC 2.0 in lines, for both ends of the sockets.
//! * [`server`]: the two Unix sockets.
//! * [`config`], [`paths`], [`logging`]: settings, where things are, and where messages go.
//! * [`ctl`]: what `skaldctl` does; a client of the sockets like any other.
//! * [`qr`]: pairing codes as pictures.

pub mod config;
pub mod hub;
pub mod logging;
pub mod paths;
pub mod qr;
pub mod rpc;
pub mod server;
