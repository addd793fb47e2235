//! The harness of the end to end tests: relay, daemon and phone as real processes, and the peers that talk to them.
//!
//! * [`World`]: a relay, a daemon of its own and its control socket; what almost every test begins with.
//! * [`Relay`], [`Daemon`], [`Phone`], [`Skaldctl`]: processes, each with folders of its own, killed when dropped.
//! * [`Host`], [`Control`]: JSON-RPC clients of the daemon's two sockets.
//! * [`RawPhone`], [`RawSocket`]: a phone that says what no honest phone would, and a socket that sends any bytes.
//! * [`OldRelay`]: a proxy that makes the relay look like one without our features.
//! * [`Tap`]: a proxy that notes what is sealed, and falls silent when told.
//! * [`Site`], [`Http`]: a web server and a web client of the tests' own, for what goes through a tunnel.
//! * [`Tunnel`], [`Proxy`]: a daemon that lets phones at the site, a phone of it, and its `skald-phone proxy`.
//! * [`Members`], [`RawPipe`]: an agent and a phone that are nothing but keys, and their ends of pipes.
//! * [`Meddler`]: a proxy that tampers with the frames of pipes.
//! * [`Pushing`], [`PushServices`]: a relay that pushes, and stand-ins for the services that it pushes by.
//! * [`Parties`]: all of them, dying and coming back while items are answered.
//!
//! | variable | |
//! |---|---|
//! | `RELAY_URL` | another relay (`wss://relay.example/v1/ws`) instead of one of our own; what needs control over it is skipped |
//! | `SKALD_TEST_BIN_DIR` | where the programs under test are taken from as they are; else cargo builds them |
//! | `SKALD_TEST_SEED` | repeats what a failed test with dice did |
//!
//! Nothing here sleeps: a test awaits lines of output, answers and events, each within [`PATIENCE`]. What a
//! process wrote is printed when its test fails.

mod build;
mod canary;
mod clock;
mod daemon;
mod dice;
mod files;
mod http;
mod meddler;
mod old_relay;
mod parties;
mod phone;
mod pipes;
mod process;
mod push;
mod raw;
mod relay;
mod rpc;
mod skaldctl;
mod sockets;
mod tap;
mod test_host;
mod tunnel;
mod web;
mod world;

use std::future::Future;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use canary::{canary, traces};
pub use clock::shift_clock;
pub use daemon::{Daemon, DaemonOptions};
pub use dice::Dice;
pub use files::{containing, mode, read_all};
pub use http::{Http, next_piece, text};
pub use meddler::{Meddled, Meddler, Trick};
pub use old_relay::OldRelay;
pub use parties::{Blow, Kind, Parties, Victim};
pub use phone::Phone;
pub use pipes::{Members, RawPipe, Received, Way};
pub use process::{Finished, Process, Stream, command};
pub use push::{PushDevice, PushServices, Pushed, Pushing, Service};
pub use raw::{RawPhone, RawSocket};
pub use relay::Relay;
pub use rpc::{Rpc, RpcFailure};
pub use skaldctl::Skaldctl;
pub use sockets::{Call, Control, Host};
pub use tap::{From, Moment, Nonces, Sprung, Tap, Then, What};
pub use test_host::{Noted, TestHost};
pub use tunnel::{Proxy, Tunnel};
pub use web::{Body, CONNECTION, PAGE_WORKED, PIECES, Pattern, Site, Visits, checksum, full, piece, sum_of};
pub use world::World;

/// How long a test waits for anything: far longer than it takes on a busy machine, so that only what never comes fails.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// The output of `future`, or a panic that names what was awaited.
pub async fn within<F: Future>(what: &str, future: F) -> F::Output {
    let Ok(output) = tokio::time::timeout(PATIENCE, future).await else {
        panic!("waited {} s in vain for {what}", PATIENCE.as_secs())
    };
    output
}

/// Unix milliseconds.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    u64::try_from(since.as_millis()).expect("a clock before the year 584,556,019")
}

/// Fresh random bytes.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::fill(&mut bytes);
    bytes
}
