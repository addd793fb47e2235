//! Counts new connections per client address, in memory (wire protocol, Limits). It serves where the platform has no
//! counter of its own and bounds what one isolate takes elsewhere. Times are passed in.

use std::collections::HashMap;

/// How long an address is counted, milliseconds.
const WINDOW_MS: u64 = 60_000;
/// Addresses remembered; beyond that the whole count begins anew, so that a flood from everywhere costs no memory.
const MAX_ADDRESSES: usize = 10_000;

/// A counter per address, over a minute that begins with its first connection.
#[derive(Debug, Default)]
pub struct AddressLimit {
    counts: HashMap<String, Count>,
}

#[derive(Debug)]
struct Count {
    since_ms: u64,
    connections: u64,
}

impl AddressLimit {
    /// Counts a connection from `address`; false when it is one too many.
    pub fn admit(&mut self, now_ms: u64, address: &str, limit: u64) -> bool {
        if self.counts.len() >= MAX_ADDRESSES && !self.counts.contains_key(address) {
            self.counts.retain(|_, count| count.current(now_ms));
            if self.counts.len() >= MAX_ADDRESSES {
                self.counts.clear();
            }
        }
        let count = self.counts.entry(address.to_owned()).or_insert(Count { since_ms: now_ms, connections: 0 });
        if !count.current(now_ms) {
            *count = Count { since_ms: now_ms, connections: 0 };
        }
        if count.connections >= limit {
            return false;
        }
        count.connections += 1;
        true
    }
}

impl Count {
    /// A clock that went back ends the window too: better than one that never ends.
    fn current(&self, now_ms: u64) -> bool {
        (self.since_ms..self.since_ms.saturating_add(WINDOW_MS)).contains(&now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_admitted_up_to_the_limit_and_again_after_a_minute() {
        let mut limit = AddressLimit::default();
        let admitted = |limit: &mut AddressLimit, now, address| (0..5).filter(|_| limit.admit(now, address, 3)).count();
        assert_eq!(admitted(&mut limit, 1000, "a"), 3);
        assert_eq!(admitted(&mut limit, 60_999, "a"), 0);
        assert_eq!(admitted(&mut limit, 60_999, "b"), 3, "each address has its own count");
        assert_eq!(admitted(&mut limit, 61_000, "a"), 3);
        assert_eq!(admitted(&mut limit, 500, "a"), 3, "a clock that went back locks nobody out");
    }

    #[test]
    fn memory_is_bounded_however_many_addresses_there_are() {
        let mut limit = AddressLimit::default();
        for i in 0..3 * MAX_ADDRESSES {
            assert!(limit.admit(0, &i.to_string(), 1));
            assert!(limit.counts.len() <= MAX_ADDRESSES);
        }
        assert!(!limit.admit(0, &(3 * MAX_ADDRESSES - 1).to_string(), 1), "the newest are still counted");
    }
}
