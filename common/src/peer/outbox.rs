//! Sealed messages on their way to the relay. A stored one stays until the relay has accepted it and is repeated,
//! identically and in order, after a lost connection (wire protocol, Delivery guarantee).

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

    /// Takes out a message that no connection has seen.
    pub(super) fn cancel(&mut self, id: SendId) -> bool {
        let at = self.entries.iter().position(|entry| entry.id == id && entry.written == Written::Never);
        at.and_then(|at| self.entries.remove(at)).is_some()
    }

    /// Drops everything for a partner that is gone.
    pub(super) fn forget(&mut self, to: &Ed25519Public) {
        self.entries.retain(|entry| entry.to != *to);
    }

    /// The connection ended: stored messages will be repeated, live ones have failed and are returned.
    pub(super) fn connection_ended(&mut self) -> Vec<Entry> {
        let (live, stored) =
            std::mem::take(&mut self.entries).into_iter().partition(|entry| entry.delivery == Delivery::Live);
        self.entries = stored;
        for entry in &mut self.entries {
            if entry.written == Written::Now {
                entry.written = Written::Before;
            }
        }
        Vec::from_iter::<VecDeque<Entry>>(live)
    }
}

impl Entry {
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
