//! The socket below the sans-IO [`Peer`]: one WebSocket at a time, dialled, read and written by a task of its own.
//!
//! Daemon and phone run the same loop around it:
//!
//! ```text
//! loop {
//!     while let Some(output) = peer.poll_output() {
//!         match link.carry_out(output) {
//!             Some(Output::Reserve { peer, upto }) => …,   // durable before the outputs behind it
//!             Some(Output::Event(event)) => …,
//!             _ => {}                                      // the link has done it
//!         }
//!     }
//!     select! {
//!         event = link.next() => feed(&mut peer, clock.now(), event),
//!         () = clock.sleep_until(peer.deadline()) => peer.on_timeout(clock.now()),
//!     }
//! }
//! ```
//!
//! [`pipe`] is one end of a byte stream through the relay; [`splice`](mod@splice) joins a local connection and a pipe.
//!
//! Knows nothing of frames, except where a test of a debug build names one ([`debug`]). TLS is rustls with ring, trusting the system's roots and, where there are none, webpki's.

mod clock;
pub mod debug;
pub mod pipe;
mod socket;
pub mod splice;

pub use clock::Clock;
use skald_common::peer::{Millis, Peer};
pub use socket::{Link, LinkEvent};

/// Hands what the link saw to the engine.
pub fn feed(peer: &mut Peer, now: Millis, event: LinkEvent) {
    match event {
        LinkEvent::Open => peer.on_open(now),
        LinkEvent::DialFailed(failure) => peer.on_dial_failed(now, failure),
        LinkEvent::Binary(bytes) => peer.on_binary(now, bytes),
        LinkEvent::Activity => peer.on_activity(now),
        LinkEvent::Closed(code) => peer.on_closed(now, code),
    }
}
