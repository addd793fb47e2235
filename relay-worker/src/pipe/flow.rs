//! What waits in one direction of a pipe, and how a sender is held back (pipe protocol, Backpressure).

use crate::engine::Limits;

/// More than this many bytes in a queue: the sender must stop. Fewer than that: it may go on.
const FULL: u64 = 1024 * 1024;
const FREE: u64 = 256 * 1024;
/// How long a message of a client that knows no pause holds its end, at first and at last, milliseconds.
const BRAKE_FIRST: u64 = 20;
const BRAKE_LAST: u64 = 1000;

/// What was given to one socket, and what it took.
#[derive(Debug, Default)]
pub(super) struct Queue {
    given: u64,
    /// Of that, what was given since the last look.
    fresh: u64,
    taken: u64,
    /// When it last took anything, or became full.
    moved_at: u64,
    full: bool,
}

impl Queue {
    /// So many bytes go in.
    pub(super) const fn give(&mut self, size: u64) {
        self.given = self.given.saturating_add(size);
        self.fresh = self.fresh.saturating_add(size);
    }

    /// What was held until now goes in.
    pub(super) const fn give_again(&mut self) {
        self.fresh = self.given;
    }

    /// What was held before this turn.
    pub(super) const fn held(&self) -> u64 {
        self.given.saturating_sub(self.fresh)
    }

    /// So many bytes were waiting in the socket before what is given in this turn; how many are waiting now.
    pub(super) fn look(&mut self, now: u64, before: u64) -> u64 {
        let waiting = before.saturating_add(std::mem::take(&mut self.fresh));
        let taken = self.given.saturating_sub(waiting);
        let is_full = if self.full { waiting >= FREE } else { waiting > FULL };
        if taken > self.taken || is_full && !self.full {
            self.moved_at = now;
        }
        self.taken = self.taken.max(taken);
        self.full = is_full;
        waiting
    }

    pub(super) const fn is_full(&self) -> bool {
        self.full
    }

    pub(super) const fn moved_at(&self) -> u64 {
        self.moved_at
    }

    /// Since when it has taken nothing, if it is full.
    pub(super) fn full_and_still_since(&self) -> Option<u64> {
        self.full.then_some(self.moved_at)
    }

    /// From now on it is to take what waits.
    pub(super) const fn restart(&mut self, now: u64) {
        self.moved_at = now;
    }
}

/// Holds one message after the other back, each a little longer.
#[derive(Debug)]
pub(super) struct Brake(u64);

impl Default for Brake {
    fn default() -> Self {
        Self(BRAKE_FIRST)
    }
}

impl Brake {
    /// How long the next message holds its end, milliseconds.
    pub(super) fn next(&mut self) -> u64 {
        let ms = self.0;
        self.0 = (ms * 2).min(BRAKE_LAST);
        ms
    }
}

/// Bytes a second, with a second's worth at once, and one message in any case.
#[derive(Debug)]
pub(super) struct Rate {
    /// 0: no limit.
    per_second: u64,
    room: u64,
    /// In thousandths of a byte, so that slow rates and short times lose nothing.
    left: u64,
    at: u64,
}

impl Rate {
    pub(super) fn new(limits: &Limits, now: u64) -> Self {
        let per_second = limits.pipe_rate;
        let room = per_second.max(limits.pipe_frame).saturating_mul(1000);
        Self { per_second, room, left: room, at: now }
    }

    /// Takes a message out of the budget; whether there was enough.
    pub(super) fn admits(&mut self, now: u64, size: u64) -> bool {
        if self.per_second == 0 {
            return true;
        }
        let earned = now.saturating_sub(self.at).saturating_mul(self.per_second);
        self.at = now;
        self.left = self.left.saturating_add(earned).min(self.room);
        match self.left.checked_sub(size.saturating_mul(1000)) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}
