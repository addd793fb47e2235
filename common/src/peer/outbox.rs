//! Sealed messages on their way to the relay. A stored one stays until the relay has accepted it and is repeated,
//! identically and in order, after a lost connection (wire protocol, Delivery guarantee). What a newer message of the same
//! tag replaces is not repeated: the relay would put it in the newer one's place.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{Delivery, SendId};
use crate::ids::{Ed25519Public, MessageNonce};
use crate::wire::{self, Features, Frame};

/// Messages that may wait for the relay.
const MAX_WAITING: usize = 256;

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: SendId,
    pub(super) to: Ed25519Public,
    pub(super) nonce: MessageNonce,
    pub(super) ciphertext: Bytes,
    pub(super) delivery: Delivery,
    written: Written,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    Never,
    /// On a connection that has ended.
    Before,
    Now,
}

#[derive(Debug, Default)]
pub(super) struct Outbox {
    entries: VecDeque<Entry>,
}

impl Outbox {
    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= MAX_WAITING
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn push(
        &mut self,
        id: SendId,
        to: Ed25519Public,
        nonce: MessageNonce,
        ciphertext: Bytes,
        delivery: Delivery,
    ) {
        self.entries.push_back(Entry { id, to, nonce, ciphertext, delivery, written: Written::Never });
    }

    pub(super) fn has_unwritten(&self) -> bool {
        self.entries.iter().any(|entry| entry.written != Written::Now)
    }

    /// The next frame to write on this connection. With receipts the entry stays; without, it is done once written, and
    /// its id is returned as the second part.
    pub(super) fn next_frame(&mut self, features: Features) -> Option<(Vec<u8>, Option<SendId>)> {
        let at = self.entries.iter().position(|entry| entry.written != Written::Now)?;
        let entry = self.entries.get_mut(at)?;
        entry.written = Written::Now;
        let bytes = entry.encode(features);
        if features.contains(Features::RECEIPTS) {
            return Some((bytes, None));
        }
        self.entries.remove(at).map(|entry| (bytes, Some(entry.id)))
    }

    /// Takes out the message with this id.
    pub(super) fn remove(&mut self, id: SendId) -> Option<Entry> {
        let at = self.entries.iter().position(|entry| entry.id == id)?;
        self.entries.remove(at)
    }

    /// The relay has accepted the message with this id: takes it out, and before it the older ones that it replaced.
    pub(super) fn accepted(&mut self, id: SendId) -> Vec<Entry> {
        let Some(at) = self.entries.iter().position(|entry| entry.id == id) else { return Vec::new() };
        let mut newer = self.entries.split_off(at);
        let accepted = newer.pop_front();
        let replaced = |entry: &Entry| accepted.as_ref().is_some_and(|accepted| accepted.replaces(entry));
        let (done, rest): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.entries).into_iter().partition(replaced);
        self.entries = rest;
        self.entries.append(&mut newer);
        done.into_iter().chain(accepted).collect()
    }

    /// Takes out a message that no connection has seen.
    pub(super) fn cancel(&mut self, id: SendId) -> bool {
        let at = self.entries.iter().position(|entry| entry.id == id && entry.written == Written::Never);
        at.and_then(|at| self.entries.remove(at)).is_some()
    }

    /// Drops everything for a partner that is gone.
    pub(super) fn forget(&mut self, to: &Ed25519Public) {
        self.entries.retain(|entry| entry.to != *to);
    }

    /// The connection ended: stored messages will be repeated, unless they are replaced; live ones have failed. Both are
    /// returned, in this order.
    pub(super) fn connection_ended(&mut self) -> (Vec<Entry>, Vec<Entry>) {
        let (live, stored): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.entries).into_iter().partition(|entry| entry.delivery == Delivery::Live);
        let mut replaced = Vec::new();
        for entry in stored.into_iter().rev() {
            if self.entries.iter().any(|newer| newer.replaces(&entry)) {
                replaced.insert(0, entry);
            } else {
                self.entries.push_front(entry);
            }
        }
        for entry in &mut self.entries {
            if entry.written == Written::Now {
                entry.written = Written::Before;
            }
        }
        (replaced, live)
    }
}

impl Entry {
    /// Whether this one, the newer, takes the other's place.
    fn replaces(&self, other: &Self) -> bool {
        let tagged = matches!(self.delivery, Delivery::Stored { collapse: Some(_), .. });
        let tag = |entry: &Self| match &entry.delivery {
            Delivery::Stored { collapse, .. } => collapse.clone(),
            Delivery::Live => None,
        };
        tagged && self.to == other.to && tag(self) == tag(other)
    }

    fn encode(&self, features: Features) -> Vec<u8> {
        let (live, collapse, quiet) = match &self.delivery {
            Delivery::Live => (true, None, false),
            Delivery::Stored { collapse, quiet } => (false, collapse.clone(), *quiet),
        };
        let collapses = features.contains(Features::COLLAPSE);
        wire::encode(Frame::Message(wire::Message {
            ciphertext: self.ciphertext.clone(),
            nonce: self.nonce.to_vec(),
            peer: self.to.to_vec(),
            live,
            r#ref: if features.contains(Features::RECEIPTS) { self.id.0 } else { 0 },
            delivery: 0,
            collapse: collapse.filter(|_| collapses).unwrap_or_default(),
            quiet: quiet && collapses,
        }))
    }
}
