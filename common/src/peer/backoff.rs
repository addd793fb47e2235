//! When to dial again: exponential with jitter, so that a restarted relay is not met by everybody at once, and the long
//! pause of an agent whose twin keeps replacing it.

use std::collections::VecDeque;

use super::Millis;

const MAX_SECS: u64 = 60;
const FLAP_WINDOW_MS: Millis = 60_000;
const FLAPS: usize = 3;
const PARK_MS: Millis = 5 * 60_000;
/// A connection that lived so long ends the streak of failures.
const STABLE_MS: Millis = 10_000;

#[derive(Debug)]
pub(super) struct Backoff {
    attempt: u32,
    jitter: u64,
    replaced: VecDeque<Millis>,
}

impl Backoff {
    pub(super) fn new(seed: u64) -> Self {
        Self { attempt: 0, jitter: seed, replaced: VecDeque::new() }
    }

    /// The pause before the next attempt: min(60, 2^n) s plus up to half of it.
    pub(super) fn next_pause(&mut self) -> Millis {
        let base = 1_u64.checked_shl(self.attempt).unwrap_or(MAX_SECS).min(MAX_SECS) * 1000;
        self.attempt = self.attempt.saturating_add(1);
        base + self.random() % (base / 2 + 1)
    }

    /// A connection ended that had been authenticated for `lived`.
    pub(super) fn connection_ended(&mut self, lived: Millis) {
        if lived >= STABLE_MS {
            self.attempt = 0;
        }
    }

    /// Forgets past failures: the user has changed something.
    pub(super) fn reset(&mut self) {
        self.attempt = 0;
        self.replaced.clear();
    }

    /// Notes that a twin has replaced this connection; the pause to make if it keeps doing so.
    pub(super) fn replaced(&mut self, now: Millis) -> Option<Millis> {
        self.replaced.push_back(now);
        self.replaced.retain(|&at| now.saturating_sub(at) < FLAP_WINDOW_MS);
        if self.replaced.len() < FLAPS {
            return None;
        }
        self.replaced.clear();
        Some(PARK_MS)
    }

    /// `SplitMix64`: spreads attempts, protects nothing.
    fn random(&mut self) -> u64 {
        self.jitter = self.jitter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.jitter;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute_with_up_to_half_on_top() {
        let mut backoff = Backoff::new(7);
        for secs in [1, 2, 4, 8, 16, 32, 60, 60, 60] {
            let pause = backoff.next_pause();
            assert!((secs * 1000..=secs * 1500).contains(&pause), "{secs}: {pause}");
        }
        backoff.connection_ended(STABLE_MS - 1);
        assert!(backoff.next_pause() >= 60_000);
        backoff.connection_ended(STABLE_MS);
        assert!(backoff.next_pause() <= 1500);
    }

    #[test]
    fn two_peers_do_not_pause_alike() {
        assert_ne!(Backoff::new(1).next_pause(), Backoff::new(2).next_pause());
    }

    #[test]
    fn three_replacements_in_a_minute_park() {
        let mut backoff = Backoff::new(7);
        assert_eq!(backoff.replaced(0), None);
        assert_eq!(backoff.replaced(30_000), None);
        assert_eq!(backoff.replaced(61_000), None, "the first is forgotten");
        assert_eq!(backoff.replaced(62_000), Some(PARK_MS));
        assert_eq!(backoff.replaced(63_000), None, "the count begins anew");
    }
}
