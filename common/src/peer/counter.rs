//! Send counters: no (key, counter) pair is ever used twice, whatever is restored, cloned or paired again (protocol,
//! Message key, nonce, AAD).

/// How many counters one [`Output::Reserve`](super::Output::Reserve) covers: one disk write for so many messages.
const BLOCK: u64 = 1024;
/// Unix milliseconds beyond this (the year 10,889) are a broken clock and do not raise the counter.
const MAX_CLOCK_MS: u64 = 1 << 48;
/// Counters stay storable as signed 64-bit integers.
const MAX_COUNTER: u64 = i64::MAX as u64;

/// The lowest counter that may be used after a start or a pairing: above the stored value, above the highest mark over
/// all devices ever, and above what the clock says that an older life of this seed may have reached. At least 2, since
/// the deployed phone app drops counter 1. All arguments are "may have been used" marks; 0 for none.
pub fn first_send_counter(stored: u64, high_water: u64, unix_ms: u64) -> u64 {
    let clock = if unix_ms > MAX_CLOCK_MS { 0 } else { unix_ms * 4096 };
    stored.max(high_water).max(clock).max(1).saturating_add(1)
}

/// One recipient's counter.
#[derive(Debug, Clone, Copy)]
pub(super) struct SendCounter {
    next: u64,
    reserved: u64,
}

/// A counter to use, and the mark that must be durable first, if a new block was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) counter: u64,
    pub(super) reserve: Option<u64>,
}

impl SendCounter {
    pub(super) fn starting_at(first: u64) -> Self {
        Self { next: first, reserved: first.saturating_sub(1) }
    }

    /// `None` once the numbers are used up, which takes a forged database.
    pub(super) fn take(&mut self) -> Option<Taken> {
        let counter = self.next;
        if counter > MAX_COUNTER - BLOCK {
            return None;
        }
        self.next += 1;
        let reserve = (counter > self.reserved).then(|| {
            self.reserved = counter + BLOCK - 1;
            self.reserved
        });
        Some(Taken { counter, reserve })
    }

    /// Begins anew at `first`, or goes on where it is if that is higher.
    pub(super) fn raise(&mut self, first: u64) {
        if first > self.next {
            *self = Self::starting_at(first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_counter_is_above_every_mark() {
        assert_eq!(first_send_counter(0, 0, 0), 2);
        assert_eq!(first_send_counter(7, 5, 0), 8);
        assert_eq!(first_send_counter(5, 7, 0), 8);
        assert_eq!(first_send_counter(5, 7, 1_750_000_000_000), 1_750_000_000_000 * 4096 + 1);
        assert_eq!(first_send_counter(5, 7, u64::MAX), 8, "a broken clock uses nothing up");
    }

    #[test]
    fn a_block_is_reserved_before_its_first_counter_and_once() {
        let mut counter = SendCounter::starting_at(2);
        assert_eq!(counter.take(), Some(Taken { counter: 2, reserve: Some(1 + BLOCK) }));
        for expected in 3..=1 + BLOCK {
            assert_eq!(counter.take(), Some(Taken { counter: expected, reserve: None }));
        }
        assert_eq!(counter.take(), Some(Taken { counter: 2 + BLOCK, reserve: Some(1 + 2 * BLOCK) }));
    }

    #[test]
    fn raising_never_lowers() {
        let mut counter = SendCounter::starting_at(100);
        counter.raise(50);
        assert_eq!(counter.take().unwrap().counter, 100);
        counter.raise(5000);
        assert_eq!(counter.take(), Some(Taken { counter: 5000, reserve: Some(5000 + BLOCK - 1) }));
    }

    #[test]
    fn used_up_is_no_panic() {
        assert_eq!(SendCounter::starting_at(u64::MAX).take(), None);
    }
}
