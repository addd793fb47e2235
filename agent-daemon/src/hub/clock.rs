//! The time, and what to do while this machine does not know it (started without a battery-backed clock, say).
//!
//! Phones drop what is dated more than 7 days off. So as long as the clock is that far behind the date of this build,
//! payloads are dated by what a phone has said last; before any has, nothing is pushed: it is owed, and goes out once the
//! time is known.

use skald_common::limits::MESSAGE_LIFE_MS;
use skald_common::peer::Millis;

use super::Hub;

/// When the toolchain of rust-toolchain.toml was released, Unix seconds: nobody has built this earlier.
const TOOLCHAIN: u64 = 1_776_297_600;

/// When this build was made at the earliest, Unix milliseconds: a clock that shows less is wrong, and nothing is dropped by
/// it. Not the compiler's clock, so that a build can be repeated to the byte; packagers who set `SOURCE_DATE_EPOCH` have
/// named a better date already.
pub(super) const BUILD_DATE: u64 = 1000 * later(TOOLCHAIN, option_env!("SOURCE_DATE_EPOCH"));

/// How soon to look again whether the clock was set: nothing tells us.
const LOOK_AGAIN_MS: Millis = 60_000;

const fn later(toolchain: u64, source_date: Option<&str>) -> u64 {
    let Some(text) = source_date else { return toolchain };
    match u64::from_str_radix(text, 10) {
        Ok(date) if date > toolchain => date,
        Ok(_) => toolchain,
        Err(_) => panic!("SOURCE_DATE_EPOCH is no number of seconds"),
    }
}

/// The time, on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Now {
    /// Monotonic: for everything that waits.
    pub(crate) mono: Millis,
    /// Unix milliseconds: for everything that is written down or comes from others.
    pub(crate) unix: u64,
}

impl Now {
    /// Whether the wall clock can be right.
    pub(crate) const fn is_trusted(self) -> bool {
        self.unix >= BUILD_DATE
    }

    /// When the wall clock will show `unix`, on the monotonic clock.
    pub(super) const fn mono_at(self, unix: u64) -> Millis {
        self.mono + unix.saturating_sub(self.unix)
    }
}

/// A phone's date, and when it came.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heard {
    ts: u64,
    at: Millis,
}

impl Heard {
    const fn date(self, now: Now) -> u64 {
        self.ts.saturating_add(now.mono.saturating_sub(self.at))
    }
}

impl Hub {
    /// A phone has dated a payload.
    pub(super) fn heard_date(&mut self, ts: u64, now: Now) {
        if self.heard.is_none_or(|heard| heard.date(now) < ts) {
            self.heard = Some(Heard { ts, at: now.mono });
        }
    }

    /// The date for payloads, Unix milliseconds, if it is known.
    pub(super) fn date(&self, now: Now) -> Option<u64> {
        let accepted = now.unix + MESSAGE_LIFE_MS >= BUILD_DATE;
        if accepted { Some(now.unix) } else { self.heard.map(|heard| heard.date(now)) }
    }

    /// When to look again, while it is not.
    pub(super) fn date_deadline(&self, now: Now) -> Option<Millis> {
        self.date(now).is_none().then_some(now.mono + LOOK_AGAIN_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::later;

    #[test]
    fn the_later_of_toolchain_and_source_date_counts() {
        assert_eq!(later(7, None), 7);
        assert_eq!(later(7, Some("9")), 9);
        assert_eq!(later(7, Some("1")), 7);
    }
}
