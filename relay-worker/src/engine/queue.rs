//! The index of one recipient's queue: everything but the messages themselves.

use std::collections::BTreeMap;

use skald_common::ids::Ed25519Public;

use crate::store::{Indexed, Tag};

/// In order of number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Queue {
    rows: BTreeMap<u32, Indexed>,
}

impl Queue {
    pub(super) fn new(rows: impl IntoIterator<Item = Indexed>) -> Self {
        Self { rows: rows.into_iter().map(|row| (row.seq, row)).collect() }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn first(&self) -> Option<u32> {
        self.rows.first_key_value().map(|(seq, _)| *seq)
    }

    pub(super) fn last(&self) -> Option<u32> {
        self.rows.last_key_value().map(|(seq, _)| *seq)
    }

    /// The next after a cursor.
    pub(super) fn after(&self, cursor: u32) -> Option<&Indexed> {
        self.beyond(cursor).next()
    }

    /// All after a cursor.
    pub(super) fn beyond(&self, cursor: u32) -> impl Iterator<Item = &Indexed> {
        let from = (std::ops::Bound::Excluded(cursor), std::ops::Bound::Unbounded);
        self.rows.range(from).map(|(_, row)| row)
    }

    /// What a message of this sender with this tag replaces.
    pub(super) fn collapsing(&self, sender: &Ed25519Public, tag: &Tag) -> Option<&Indexed> {
        self.rows.values().find(|row| row.sender == *sender && row.tag.as_ref() == Some(tag))
    }

    pub(super) fn push(&mut self, row: Indexed) {
        self.rows.insert(row.seq, row);
    }

    pub(super) fn remove(&mut self, seq: u32) {
        self.rows.remove(&seq);
    }

    pub(super) fn remove_up_to(&mut self, last: u32) {
        self.rows.retain(|seq, _| *seq > last);
    }
}
