//! What is to be pushed to one device, and what is under way: plain state that lives in one row, as a protobuf message of
//! our own. Times are Unix milliseconds.

use prost::Message;

use crate::push::Outcome;

/// From one push of a tag to the next, milliseconds.
const SPACING: u64 = 5000;
/// An attempt that has not ended by then is lost, milliseconds. The glue's own timeout is half of it.
pub(super) const LEASE: u64 = 60_000;
/// Attempts for one message, lost ones included.
const TRIES: u32 = 5;
/// After the first, second, … failed attempt, milliseconds.
const BACKOFF: [u64; 4] = [5000, 30_000, 120_000, 600_000];
/// The longest that a service's Retry-After is obeyed, milliseconds.
const MAX_WAIT: u64 = 3_600_000;
/// Attempts under way to one device: the platform opens no more connections at a time for one event.
const AT_ONCE: usize = 6;
/// Pushes to a browser's subscription in any [`MINUTE`]: its endpoint is untrusted.
const WEB_PER_MINUTE: usize = 10;
const MINUTE: u64 = 60_000;
/// Tags that are remembered only for their spacing.
const MAX_IDLE: usize = 64;

/// A device.
#[derive(Clone, PartialEq, Message)]
pub(in super::super) struct Device {
    /// Up to this number of the queue every message has been considered. Numbers up to it do not come again.
    #[prost(uint32, tag = "1")]
    pub(super) mark: u32,
    #[prost(message, repeated, tag = "2")]
    slots: Vec<Slot>,
    /// When the last pushes began, for browsers.
    #[prost(uint64, repeated, tag = "3")]
    recent: Vec<u64>,
    /// The token that its service called dead, hashed; empty for none.
    #[prost(bytes = "vec", tag = "4")]
    pub(super) gone: Vec<u8>,
    /// The last attempt that was begun.
    #[prost(fixed64, tag = "5")]
    pub(super) last: u64,
}

/// What is pushed one at a time: a collapse tag of a sender, or a message without one.
#[derive(Clone, PartialEq, Message)]
struct Slot {
    /// The message that was pushed last, or is to be pushed next.
    #[prost(uint32, tag = "1")]
    seq: u32,
    /// Collapse id; empty for none.
    #[prost(bytes = "vec", tag = "2")]
    collapse: Vec<u8>,
    /// It is to be pushed, after what is under way.
    #[prost(bool, tag = "3")]
    wanted: bool,
    /// Attempts begun for it since it was queued.
    #[prost(uint32, tag = "4")]
    tries: u32,
    /// Nothing of this slot is pushed earlier.
    #[prost(uint64, tag = "5")]
    not_before: u64,
    /// The service will not have it.
    #[prost(bool, tag = "6")]
    refused: bool,
    /// The attempt under way; 0 for none.
    #[prost(fixed64, tag = "7")]
    attempt: u64,
    /// Its message.
    #[prost(uint32, tag = "8")]
    attempted: u32,
    /// When it is lost.
    #[prost(uint64, tag = "9")]
    lease: u64,
    /// It went to an address that is not the device's any more.
    #[prost(bool, tag = "10")]
    stale: bool,
}

/// A message that rings.
pub(super) struct Ringing {
    pub(super) seq: u32,
    /// Collapse id; empty for none.
    pub(super) collapse: Vec<u8>,
}

impl Device {
    /// From its row. One that cannot be read is as good as none: at worst something rings twice.
    pub(in super::super) fn read(row: &[u8]) -> Self {
        Self::decode(row).unwrap_or_default()
    }

    /// Its row.
    pub(in super::super) fn row(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    /// New messages get numbers above this one, so that none is taken for another.
    pub(in super::super) fn floor(&self) -> u32 {
        self.slots.iter().map(|slot| slot.seq.max(slot.attempted)).fold(self.mark, u32::max)
    }

    /// A message is to be pushed, from its first attempt on.
    pub(super) fn want(&mut self, message: Ringing) {
        self.mark = self.mark.max(message.seq);
        let same = |slot: &&mut Slot| match message.collapse.as_slice() {
            [] => slot.collapse.is_empty() && slot.seq == message.seq,
            collapse => slot.collapse == collapse,
        };
        if let Some(slot) = self.slots.iter_mut().find(same) {
            if slot.seq == message.seq && slot.refused {
                return;
            }
            (slot.seq, slot.wanted, slot.tries, slot.refused) = (message.seq, true, 0, false);
        } else {
            self.slots.push(Slot { seq: message.seq, collapse: message.collapse, wanted: true, ..Slot::default() });
        }
    }

    /// Drops what has no meaning any more. `queued`: what still may ring one day; `may`: what may be pushed now. Returns how
    /// many messages are given up.
    pub(super) fn tidy(&mut self, now: u64, queued: impl Fn(u32) -> bool, may: impl Fn(u32) -> bool) -> u64 {
        let mut given_up = 0;
        for slot in &mut self.slots {
            // The clock may have gone back since.
            slot.not_before = slot.not_before.min(now.saturating_add(MAX_WAIT));
            slot.lease = slot.lease.min(now.saturating_add(LEASE));
            if slot.attempt != 0 && slot.lease <= now {
                slot.over().again();
            }
            let exhausted = slot.tries >= TRIES;
            given_up += u64::from(slot.wanted && exhausted && may(slot.seq));
            slot.wanted &= !exhausted && may(slot.seq);
        }
        self.slots.retain(|slot| {
            let waits = slot.not_before > now && (!slot.collapse.is_empty() || queued(slot.seq));
            slot.is_busy() || slot.refused && queued(slot.seq) || waits
        });
        let idle = self.slots.iter().filter(|slot| !slot.is_busy() && !queued(slot.seq)).count();
        for _ in MAX_IDLE..idle {
            let oldest = self.slots.iter().enumerate().filter(|(_, slot)| !slot.is_busy() && !queued(slot.seq));
            if let Some((at, _)) = oldest.min_by_key(|(_, slot)| slot.not_before) {
                self.slots.remove(at);
            }
        }
        // Those of a clock that has gone back count from now on.
        self.recent.iter_mut().for_each(|at| *at = now.min(*at));
        self.recent.retain(|at| now.saturating_sub(*at) < MINUTE);
        given_up
    }

    /// The next message to push at once.
    pub(super) fn next(&self, now: u64, web: bool) -> Option<u32> {
        let free = self.under_way() < AT_ONCE && !(web && self.recent.len() >= WEB_PER_MINUTE);
        let due = self.slots.iter().filter(|slot| slot.is_waiting() && slot.not_before <= now);
        due.map(|slot| slot.seq).min().filter(|_| free)
    }

    /// It is not in the queue after all.
    pub(super) fn miss(&mut self, seq: u32) {
        self.slots.iter_mut().filter(|slot| slot.seq == seq).for_each(|slot| slot.wanted = false);
    }

    /// An attempt begins; the collapse id, if the message has one.
    pub(super) fn begin(&mut self, seq: u32, attempt: u64, now: u64, web: bool) -> Option<[u8; 16]> {
        if web {
            self.recent.push(now);
        }
        self.last = attempt;
        let slot = self.slots.iter_mut().find(|slot| slot.seq == seq && slot.is_waiting())?;
        slot.wanted = false;
        slot.tries += 1;
        slot.not_before = now.saturating_add(SPACING);
        (slot.attempt, slot.attempted, slot.stale) = (attempt, seq, false);
        slot.lease = now.saturating_add(LEASE);
        slot.collapse.as_slice().try_into().ok()
    }

    /// Whether this is an attempt under way to the device's present address; `None` if it is none at all.
    pub(super) fn knows(&self, attempt: u64) -> Option<bool> {
        self.slots.iter().find(|slot| attempt != 0 && slot.attempt == attempt).map(|slot| !slot.stale)
    }

    /// An attempt has ended.
    pub(super) fn ended(&mut self, attempt: u64, outcome: Outcome, now: u64) {
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.attempt == attempt) else { return };
        let stale = slot.stale;
        let ended = slot.over();
        match outcome {
            Outcome::Sent => {}
            Outcome::Unavailable { retry_after_ms } => {
                let tries = usize::try_from(ended.slot.tries).unwrap_or(usize::MAX);
                let backoff = BACKOFF.get(tries.saturating_sub(1)).or(BACKOFF.last()).copied().unwrap_or(MAX_WAIT);
                let wait = backoff.max(retry_after_ms.unwrap_or(0).min(MAX_WAIT));
                ended.slot.not_before = ended.slot.not_before.max(now.saturating_add(wait));
                ended.again();
            }
            // Refused, or the token gone. What an old address is refused, the new one may be worth.
            _ if stale => ended.again(),
            _ => ended.never_again(),
        }
    }

    /// The service says that the token is dead. What is under way is awaited all the same.
    pub(super) fn lost_token(&mut self, attempt: u64, hash: Vec<u8>) {
        self.gone = hash;
        self.slots.iter_mut().filter(|slot| slot.attempt == attempt).for_each(|slot| slot.attempt = 0);
        self.slots.iter_mut().for_each(|slot| slot.wanted = false);
        self.moved();
    }

    /// The device has another address.
    pub(super) fn moved(&mut self) {
        for slot in &mut self.slots {
            slot.refused = false;
            slot.stale = slot.attempt != 0;
        }
    }

    /// When there is something to do.
    pub(super) fn due(&self, web: bool) -> Option<u64> {
        let leases = self.slots.iter().filter(|slot| slot.attempt != 0).map(|slot| slot.lease);
        let full = self.recent.len().checked_sub(WEB_PER_MINUTE).filter(|_| web);
        let free = full.and_then(|at| self.recent.get(at)).map_or(0, |at| at.saturating_add(MINUTE));
        let waiting = self.slots.iter().filter(|slot| slot.is_waiting() && self.under_way() < AT_ONCE);
        leases.chain(waiting.map(|slot| slot.not_before.max(free))).min()
    }

    fn under_way(&self) -> usize {
        self.slots.iter().filter(|slot| slot.attempt != 0).count()
    }

    #[cfg(test)]
    pub(in super::super) fn len(&self) -> usize {
        self.slots.len()
    }
}

/// A slot whose attempt is over.
struct Over<'a> {
    slot: &'a mut Slot,
    /// The attempt was for the message that the slot is about now.
    current: bool,
}

impl Slot {
    const fn is_busy(&self) -> bool {
        self.wanted || self.attempt != 0
    }

    /// To be pushed as soon as it may.
    const fn is_waiting(&self) -> bool {
        self.wanted && self.attempt == 0
    }

    const fn over(&mut self) -> Over<'_> {
        self.attempt = 0;
        self.stale = false;
        let current = self.attempted == self.seq;
        Over { slot: self, current }
    }
}

impl Over<'_> {
    /// Its message is to be tried again, if it was for the newest.
    fn again(self) {
        self.slot.wanted |= self.current;
    }

    /// Its message is not to be tried again.
    fn never_again(self) {
        if self.current {
            (self.slot.wanted, self.slot.refused) = (false, true);
        }
    }
}
