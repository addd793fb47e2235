//! Switches for tests of crashes and of long waits: the process kills itself with SIGKILL where it comes by a point that a
//! variable names, or the [`Clock`](crate::Clock) runs so many times as fast as another one says. They exist in debug builds
//! alone. A release build neither reads these variables nor contains their names, which is why this does not say them either:
//! docs/testing.md does.
//!
//! What waits for a person or a file keeps to the clock on the wall, and so do the times in messages.

use tokio_tungstenite::tungstenite::Message;

#[cfg(debug_assertions)]
mod armed {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use rustix::process::{Signal, getpid, kill_process};
    use skald_common::wire::{self, Frame};

    use super::Message;

    struct Armed {
        point: String,
        left: AtomicU32,
    }

    pub(super) fn pass(point: &str) {
        static ARMED: LazyLock<Option<Armed>> = LazyLock::new(|| {
            let text = std::env::var("SKALD_CRASH_AT").ok()?;
            let (point, left) = text.split_once(':').unwrap_or((&text, "1"));
            Some(Armed { point: point.to_owned(), left: AtomicU32::new(left.parse().ok()?) })
        });
        if let Some(armed) = &*ARMED
            && armed.point == point
            && armed.left.fetch_sub(1, Ordering::SeqCst) == 1
        {
            let _ = kill_process(getpid(), Signal::KILL);
            loop {
                std::thread::park();
            }
        }
    }

    pub(super) fn speed() -> u32 {
        static SPEED: LazyLock<u32> = LazyLock::new(|| {
            let speed = std::env::var("SKALD_CLOCK_SPEED").ok().and_then(|speed| speed.parse().ok());
            speed.filter(|speed| *speed > 0).unwrap_or(1)
        });
        *SPEED
    }

    /// The frames that points are named after; a message that is not stored is `live`.
    pub(super) fn kind(message: &Message) -> Option<&'static str> {
        let Message::Binary(bytes) = message else { return None };
        Some(match wire::decode(bytes.clone()).ok()?? {
            Frame::Message(message) if message.live => "live",
            Frame::Message(_) => "message",
            Frame::Ack(_) => "ack",
            Frame::Accepted(_) => "accepted",
            Frame::Auth(_) => "auth",
            Frame::Authorize(_) => "authorize",
            Frame::AuthorizeOk(_) => "authorize-ok",
            _ => return None,
        })
    }
}

/// A point at which a test may want this process to die.
#[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "a release build has no such points"))]
#[inline]
pub fn crash_point(name: &str) {
    #[cfg(debug_assertions)]
    armed::pass(name);
}

/// The same, with a name of two parts.
#[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "a release build has no such points"))]
#[inline]
pub fn crash_point_of(moment: &str, what: &str) {
    #[cfg(debug_assertions)]
    armed::pass(&format!("{moment}-{what}"));
}

/// How much faster than the clock on the wall the protocol's clock runs.
#[inline]
pub(crate) fn clock_speed() -> u32 {
    #[cfg(debug_assertions)]
    let speed = armed::speed();
    #[cfg(not(debug_assertions))]
    let speed = 1;
    speed
}

/// What is being written together, for the points before and after it.
#[derive(Default)]
pub(crate) struct Writing {
    #[cfg(debug_assertions)]
    kinds: Vec<&'static str>,
}

#[cfg_attr(
    not(debug_assertions),
    expect(clippy::unused_self, unused_variables, reason = "a release build has no such points")
)]
impl Writing {
    /// `message` is about to be written.
    #[inline]
    pub(crate) fn begin(&mut self, message: &Message) {
        #[cfg(debug_assertions)]
        if let Some(kind) = armed::kind(message) {
            crash_point_of("before-sending", kind);
            self.kinds.push(kind);
        }
    }

    /// The system has taken all of it.
    #[inline]
    pub(crate) fn done(self) {
        #[cfg(debug_assertions)]
        for kind in self.kinds {
            crash_point_of("after-sending", kind);
        }
    }
}

/// `message` has arrived and nobody knows of it yet.
#[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "a release build has no such points"))]
#[inline]
pub(crate) fn received(message: &Message) {
    #[cfg(debug_assertions)]
    if let Some(kind) = armed::kind(message) {
        crash_point_of("on-receiving", kind);
    }
}
