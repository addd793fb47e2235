//! What is pending on the agent, as far as this phone knows (protocol, Payloads, Inbox state machine).
//!
//! The newest snapshot is the truth and replaces everything. Between two snapshots an answered item is taken away at once,
//! and comes back if the next snapshot still has it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use skald_common::payload::InboxUpdate;

use super::item::{Entry, entries};

/// The pending items and the badge.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Inbox {
    badge: u32,
    entries: Vec<Entry>,
    answered: BTreeSet<String>,
    as_of: Option<AsOf>,
}

/// Which snapshot an [`Inbox`] shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AsOf {
    /// Message counter of the snapshot.
    pub counter: u64,
    /// When the agent made it, Unix milliseconds by the agent's clock.
    pub made_at: u64,
    /// Whether it came live. A snapshot that was stored may leave out `arguments` and `detail` to fit into a push.
    pub live: bool,
}

/// How an item in the inbox changed between two moments.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// It is new.
    Added(Entry),
    /// It shows other content than before (more of it, as a rule).
    Updated(Entry),
    /// It was answered here, and the agent still waits for an answer.
    Returned(Entry),
    /// It is no longer pending.
    Removed(Entry),
}

impl Change {
    /// The item, in its latest form.
    pub const fn entry(&self) -> &Entry {
        match self {
            Self::Added(entry) | Self::Updated(entry) | Self::Returned(entry) | Self::Removed(entry) => entry,
        }
    }
}

/// Why an id names no single pending item.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FindError {
    /// Nothing pending begins like this.
    #[error("no pending item has an id that begins with \"{0}\": it was answered or withdrawn, or is mistyped")]
    Unknown(String),
    /// It was answered here already.
    #[error("\"{0}\" was answered from this phone already; the agent has not confirmed it yet")]
    Answered(String),
    /// More than one begins like this.
    #[error("\"{prefix}\" could be any of: {}; write more of the id", .ids.join(", "))]
    Ambiguous {
        /// What was given.
        prefix: String,
        /// The ids that begin with it.
        ids: Vec<String>,
    },
}

impl Inbox {
    /// The items that want an answer, oldest first.
    pub fn pending(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| !self.answered.contains(entry.id()))
    }

    /// The number for the badge: the agent's, minus what was answered since.
    pub fn badge(&self) -> u32 {
        let answered = self.entries.iter().filter(|entry| self.answered.contains(entry.id())).count();
        self.badge.saturating_sub(u32::try_from(answered).unwrap_or(u32::MAX))
    }

    /// Which snapshot this is; `None` before the first.
    pub const fn as_of(&self) -> Option<AsOf> {
        self.as_of
    }

    /// The pending item of exactly this id.
    pub fn get(&self, id: &str) -> Option<&Entry> {
        self.pending().find(|entry| entry.id() == id)
    }

    /// The one pending item whose id is, or begins with, `prefix`.
    pub fn find(&self, prefix: &str) -> Result<&Entry, FindError> {
        if let Some(entry) = self.get(prefix) {
            return Ok(entry);
        }
        let matches: Vec<&Entry> = self.pending().filter(|entry| entry.id().starts_with(prefix)).collect();
        match matches[..] {
            [entry] if !prefix.is_empty() => Ok(entry),
            [] if self.answered.iter().any(|id| id.starts_with(prefix)) => {
                Err(FindError::Answered(super::text::short_line(prefix, 64)))
            }
            [] => Err(FindError::Unknown(super::text::short_line(prefix, 64))),
            _ => Err(FindError::Ambiguous {
                prefix: super::text::short_line(prefix, 64),
                ids: matches.iter().map(|entry| super::text::short_line(entry.id(), 64)).collect(),
            }),
        }
    }

    /// Takes a snapshot, unless a newer one is known. `json` is the payload it was read from.
    pub(super) fn replace(&mut self, update: InboxUpdate, json: &[u8], as_of: AsOf) {
        if self.as_of.is_some_and(|known| known.counter >= as_of.counter) {
            return;
        }
        let badge = update.badge;
        let mut entries = entries(update, json);
        if !as_of.live {
            for entry in &mut entries {
                if let Some(older) = self.entries.iter().find(|older| older.id() == entry.id()) {
                    entry.complete_from(older);
                }
            }
        }
        *self = Self { badge, entries, answered: BTreeSet::new(), as_of: Some(as_of) };
    }

    /// Takes an item away until the next snapshot.
    pub(super) fn hide(&mut self, id: &str) {
        self.answered.insert(id.to_owned());
    }

    /// Brings an item back whose answer did not count.
    pub(super) fn restore(&mut self, id: &str) {
        self.answered.remove(id);
    }

    /// What changed from `before` to now.
    pub fn changes_since(&self, before: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        for entry in before.pending() {
            if self.get(entry.id()).is_none() {
                changes.push(Change::Removed(entry.clone()));
            }
        }
        for entry in self.pending() {
            match before.entries.iter().find(|older| older.id() == entry.id()) {
                None => changes.push(Change::Added(entry.clone())),
                Some(_) if before.answered.contains(entry.id()) => changes.push(Change::Returned(entry.clone())),
                Some(older) if older != entry => changes.push(Change::Updated(entry.clone())),
                Some(_) => {}
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::item::Item;

    fn approval(id: &str, arguments: &str) -> String {
        format!(
            r#"{{"request_id":"{id}","tool_name":"t","agent_label":"S","summary":"do {id}","created_at":1{arguments}}}"#
        )
    }

    fn take(inbox: &mut Inbox, counter: u64, live: bool, approvals: &[String]) {
        let json =
            format!(r#"{{"badge":{},"approvals":[{}],"clarifications":[]}}"#, approvals.len(), approvals.join(","));
        let update = serde_json::from_str(&json).unwrap();
        inbox.replace(update, json.as_bytes(), AsOf { counter, made_at: counter, live });
    }

    fn ids(inbox: &Inbox) -> Vec<&str> {
        inbox.pending().map(Entry::id).collect()
    }

    fn arguments(inbox: &Inbox, id: &str) -> Option<String> {
        let Item::Approval(item) = &inbox.get(id).unwrap().item else { panic!("no approval") };
        item.arguments.as_ref().map(|arguments| arguments.get().to_owned())
    }

    #[test]
    fn the_newest_snapshot_replaces_everything_and_an_older_one_nothing() {
        let mut inbox = Inbox::default();
        take(&mut inbox, 5, true, &[approval("a", ""), approval("b", "")]);
        take(&mut inbox, 4, true, &[approval("z", "")]);
        assert_eq!(ids(&inbox), ["a", "b"]);
        take(&mut inbox, 6, false, &[approval("c", "")]);
        assert_eq!(ids(&inbox), ["c"]);
        assert_eq!(inbox.badge(), 1);
    }

    #[test]
    fn an_answered_item_leaves_list_and_badge_and_returns_with_the_next_snapshot_that_has_it() {
        let mut inbox = Inbox::default();
        take(&mut inbox, 1, true, &[approval("a", ""), approval("b", "")]);
        inbox.hide("a");
        inbox.hide("not in the snapshot");
        assert_eq!((ids(&inbox), inbox.badge()), (vec!["b"], 1));
        let before = inbox.clone();
        take(&mut inbox, 2, true, &[approval("a", ""), approval("b", "")]);
        assert_eq!((ids(&inbox), inbox.badge()), (vec!["a", "b"], 2));
        assert!(matches!(&inbox.changes_since(&before)[..], [Change::Returned(entry)] if entry.id() == "a"));
    }

    #[test]
    fn changes_name_what_came_went_and_grew() {
        let mut inbox = Inbox::default();
        take(&mut inbox, 1, false, &[approval("a", ""), approval("b", "")]);
        let before = inbox.clone();
        take(&mut inbox, 2, true, &[approval("b", r#","arguments":{"x":1}"#), approval("c", "")]);
        let changes = inbox.changes_since(&before);
        assert!(
            matches!(&changes[..], [Change::Removed(a), Change::Updated(b), Change::Added(c)]
                if a.id() == "a" && b.id() == "b" && c.id() == "c"),
            "{changes:?}"
        );
        assert!(inbox.changes_since(&inbox.clone()).is_empty());
    }

    #[test]
    fn a_stored_snapshot_without_arguments_keeps_those_that_came_before_and_a_live_one_does_not() {
        let mut inbox = Inbox::default();
        take(&mut inbox, 1, true, &[approval("a", r#","arguments":{"x":1},"detail":"d""#)]);
        take(&mut inbox, 2, false, &[approval("a", "")]);
        assert_eq!(arguments(&inbox, "a").as_deref(), Some(r#"{"x":1}"#));
        take(&mut inbox, 3, false, &[approval("a", r#","detail":"too large to show""#)]);
        assert_eq!(arguments(&inbox, "a"), None);
        take(&mut inbox, 4, true, &[approval("a", r#","arguments":{"x":1}"#)]);
        take(&mut inbox, 5, true, &[approval("a", "")]);
        assert_eq!(arguments(&inbox, "a"), None);
    }

    #[test]
    fn content_of_another_call_under_the_same_id_is_not_mixed_in() {
        let mut inbox = Inbox::default();
        take(&mut inbox, 1, true, &[approval("a", r#","arguments":{"x":1}"#)]);
        take(&mut inbox, 2, false, &[approval("a", "").replace("do a", "do another")]);
        assert_eq!(arguments(&inbox, "a"), None);
    }

    #[test]
    fn a_prefix_finds_an_item_when_it_is_the_only_one() {
        let mut inbox = Inbox::default();
        take(&mut inbox, 1, true, &[approval("ab.1", ""), approval("ab.12", ""), approval("c", "")]);
        assert_eq!(inbox.find("c").unwrap().id(), "c");
        assert_eq!(inbox.find("ab.1").unwrap().id(), "ab.1", "an exact id wins");
        assert_eq!(
            inbox.find("ab"),
            Err(FindError::Ambiguous { prefix: "ab".into(), ids: vec!["ab.1".into(), "ab.12".into()] })
        );
        assert_eq!(inbox.find("x\u{1b}"), Err(FindError::Unknown("x\\u{1b}".into())));
        inbox.hide("c");
        assert_eq!(inbox.find("c"), Err(FindError::Answered("c".into())));
        inbox.hide("ab.1");
        assert!(inbox.find("").is_err(), "nothing is not an id");
    }
}
