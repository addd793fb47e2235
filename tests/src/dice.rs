//! Chance that can be repeated.

use std::time::Duration;

/// Chooses what happens, the same for the same seed.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    /// From `SKALD_TEST_SEED`, or random; printed when the test fails.
    pub fn thrown() -> Self {
        let seed = std::env::var("SKALD_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| u64::from_le_bytes(crate::random()));
        eprintln!("SKALD_TEST_SEED={seed}");
        Self(seed)
    }

    /// A number from 0 up to, and without, `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// A moment of a stretch of time.
    pub fn within(&mut self, stretch: Duration) -> Duration {
        let micros = u64::try_from(stretch.as_micros()).expect("not ages");
        Duration::from_micros(self.below(micros.max(1)))
    }

    /// Heads or tails.
    pub fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    /// One of several.
    pub fn one_of<'a, T>(&mut self, several: &'a [T]) -> &'a T {
        let at = self.below(u64::try_from(several.len()).expect("few"));
        &several[usize::try_from(at).expect("few")]
    }
}
