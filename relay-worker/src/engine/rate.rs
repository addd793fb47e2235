//! A token bucket per connection. In memory only: an eviction fills it.

/// Counts frames; fills evenly over a minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bucket {
    /// In units of which a frame costs [`COST`] and `per_minute` flow in each millisecond.
    level: u64,
    per_minute: u64,
    at: u64,
}

/// One frame, in units of which `per_minute` flow in each millisecond.
const COST: u64 = 60_000;

impl Bucket {
    /// A full one: the burst is a minute's worth.
    pub(super) const fn new(per_minute: u64, now: u64) -> Self {
        Self { level: per_minute.saturating_mul(COST), per_minute, at: now }
    }

    /// Takes one frame out; false if there is none.
    pub(super) fn take(&mut self, now: u64) -> bool {
        let flowed = now.saturating_sub(self.at).saturating_mul(self.per_minute);
        self.level = self.level.saturating_add(flowed).min(self.per_minute.saturating_mul(COST));
        self.at = now;
        match self.level.checked_sub(COST) {
            Some(rest) => {
                self.level = rest;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_a_minutes_worth_and_then_one_a_second() {
        let mut bucket = Bucket::new(60, 1000);
        assert_eq!((0..90).filter(|_| bucket.take(1000)).count(), 60);
        assert!(!bucket.take(1999));
        assert!(bucket.take(2000));
        assert!(!bucket.take(2000));
        assert_eq!((0..90).filter(|_| bucket.take(1_000_000)).count(), 60, "no more than the burst is saved up");
    }

    #[test]
    fn a_clock_that_jumps_back_gives_nothing_and_breaks_nothing() {
        let mut bucket = Bucket::new(1, 10_000);
        assert!(bucket.take(10_000));
        assert!(!bucket.take(0));
        assert!(bucket.take(60_000));
    }
}
