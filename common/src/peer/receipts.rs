//! Which deliveries may be acknowledged, and when (wire protocol, Delivery guarantee).

use std::collections::BTreeSet;

use super::Millis;

/// Acknowledge at the latest after so many messages …
const EVERY: u32 = 16;
/// … or so long after the first unacknowledged one.
const WITHIN_MS: Millis = 100;

/// The deliveries of one connection. `Ack` is cumulative, so it never passes a message that is still being handled.
#[derive(Debug, Default)]
pub(super) struct Receipts {
    open: BTreeSet<u64>,
    highest: u64,
    acked: u64,
    waiting: u32,
    due: Option<Millis>,
}

impl Receipts {
    /// A delivery arrived; 0 means that the relay numbers nothing. Gives the number under which it is to be handled: 0, too,
    /// for one that does not rise, since another message of that number may still be open.
    pub(super) fn arrived(&mut self, delivery: u64) -> u64 {
        if delivery <= self.highest {
            return 0;
        }
        self.highest = delivery;
        self.open.insert(delivery);
        delivery
    }

    /// A delivery was durably handled or deliberately dropped.
    pub(super) fn handled(&mut self, now: Millis, delivery: u64) {
        if self.open.remove(&delivery) {
            self.waiting += 1;
            self.due.get_or_insert(now + WITHIN_MS);
        }
    }

    /// The number to acknowledge now, if it is time.
    pub(super) fn take_due(&mut self, now: Millis) -> Option<u64> {
        let due = self.due?;
        if now < due && self.waiting < EVERY {
            return None;
        }
        self.due = None;
        self.waiting = 0;
        let mark = self.open.first().map_or(self.highest, |lowest| lowest - 1);
        (mark > self.acked).then(|| {
            self.acked = mark;
            mark
        })
    }

    pub(super) fn deadline(&self) -> Option<Millis> {
        self.due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ack_waits_for_sixteen_messages_or_a_tenth_of_a_second() {
        let mut receipts = Receipts::default();
        for n in 1..=15 {
            receipts.arrived(n);
            receipts.handled(0, n);
        }
        assert_eq!((receipts.take_due(99), receipts.deadline()), (None, Some(100)));
        receipts.arrived(16);
        receipts.handled(0, 16);
        assert_eq!(receipts.take_due(0), Some(16));
        assert_eq!((receipts.take_due(1000), receipts.deadline()), (None, None));
        receipts.arrived(20);
        receipts.handled(1000, 20);
        assert_eq!(receipts.take_due(1100), Some(20));
    }

    #[test]
    fn an_ack_never_passes_a_message_that_is_still_being_handled() {
        let mut receipts = Receipts::default();
        for n in [5, 7, 9] {
            receipts.arrived(n);
        }
        receipts.handled(0, 9);
        receipts.handled(0, 5);
        assert_eq!(receipts.take_due(100), Some(6));
        receipts.handled(200, 7);
        assert_eq!(receipts.take_due(300), Some(9));
    }

    #[test]
    fn unnumbered_and_repeated_deliveries_are_nothing() {
        let mut receipts = Receipts::default();
        assert_eq!(receipts.arrived(0), 0);
        receipts.handled(0, 0);
        assert_eq!(receipts.deadline(), None);
        assert_eq!(receipts.arrived(3), 3);
        receipts.handled(0, 3);
        assert_eq!(receipts.take_due(100), Some(3));
        assert_eq!(receipts.arrived(3), 0);
        receipts.handled(200, 3);
        assert_eq!(receipts.deadline(), None);
    }
}
