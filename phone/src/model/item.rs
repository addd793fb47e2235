//! One pending item: an approval, a question or a prompt, with every field that came along.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use skald_common::payload::{Approval, Clarification, Elicitation, InboxUpdate, RawJson};

/// What an item asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Yes or no to a tool call.
    Approval,
    /// An answer to a question.
    Clarification,
    /// A value, maybe a secret, or a confirmation.
    Elicitation,
}

impl Kind {
    /// The word for people.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Approval => "approval",
            Self::Clarification => "question",
            Self::Elicitation => "prompt",
        }
    }
}

/// A pending item as the protocol defines it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Item {
    /// Yes or no to a tool call.
    Approval(Approval),
    /// A question.
    Clarification(Clarification),
    /// A prompt of an MCP server.
    Elicitation(Elicitation),
}

/// An [`Item`] and the fields that this build does not know. They are part of what a person approves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The known fields.
    pub item: Item,
    /// The others, as they were written.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, RawJson>,
}

impl Entry {
    /// The id that answers name.
    pub fn id(&self) -> &str {
        match &self.item {
            Item::Approval(item) => &item.request_id,
            Item::Clarification(item) => &item.request_id,
            Item::Elicitation(item) => &item.request_id,
        }
    }

    /// What it asks for.
    pub const fn kind(&self) -> Kind {
        match self.item {
            Item::Approval(_) => Kind::Approval,
            Item::Clarification(_) => Kind::Clarification,
            Item::Elicitation(_) => Kind::Elicitation,
        }
    }

    /// The line for a list; as it came, not yet made safe to show.
    pub fn title(&self) -> &str {
        match &self.item {
            Item::Approval(item) => &item.summary,
            Item::Clarification(item) => &item.question,
            Item::Elicitation(item) => &item.message,
        }
    }

    /// Who asks; as it came, not yet made safe to show.
    pub fn from(&self) -> &str {
        match &self.item {
            Item::Approval(item) => &item.agent_label,
            Item::Clarification(item) => &item.agent_label,
            Item::Elicitation(item) => &item.server_name,
        }
    }

    /// Unix milliseconds, by the agent's clock.
    pub const fn created_at(&self) -> u64 {
        match &self.item {
            Item::Approval(item) => item.created_at,
            Item::Clarification(item) => item.created_at,
            Item::Elicitation(item) => item.created_at,
        }
    }

    /// Takes over `arguments` and `detail` of an older copy of the same item, where this one lacks them: agents leave them
    /// out of snapshots that must fit into a push.
    pub(super) fn complete_from(&mut self, older: &Self) {
        let (Item::Approval(new), Item::Approval(old)) = (&mut self.item, &older.item) else { return };
        let same = new.request_id == old.request_id
            && new.tool_name == old.tool_name
            && new.agent_label == old.agent_label
            && new.summary == old.summary
            && new.created_at == old.created_at
            && self.extra == older.extra;
        // A detail of its own says what the agent wants said now.
        if same && new.arguments.is_none() && (new.detail.is_none() || new.detail == old.detail) {
            new.arguments.clone_from(&old.arguments);
            new.detail.clone_from(&old.detail);
        }
    }
}

/// The entries of a snapshot, oldest first; a repeated id counts once. `json` is the payload that `update` was read from.
pub(super) fn entries(update: InboxUpdate, json: &[u8]) -> Vec<Entry> {
    let mut extras: Extras = serde_json::from_slice(json).unwrap_or_default();
    let mut entries: Vec<Entry> = Vec::with_capacity(update.count());
    let approvals = update.approvals.into_iter().map(Item::Approval).zip(extras.approvals.drain(..).chain(empty()));
    let questions =
        update.clarifications.into_iter().map(Item::Clarification).zip(extras.clarifications.drain(..).chain(empty()));
    let prompts =
        update.elicitations.into_iter().map(Item::Elicitation).zip(extras.elicitations.drain(..).chain(empty()));
    for (item, mut extra) in approvals.chain(questions).chain(prompts) {
        extra.retain(|name, _| !known(&item).contains(&name.as_str()));
        let entry = Entry { item, extra };
        if entries.iter().all(|other| other.id() != entry.id()) {
            entries.push(entry);
        }
    }
    entries.sort_by_key(Entry::created_at);
    entries
}

type Fields = BTreeMap<String, RawJson>;

#[derive(Deserialize, Default)]
#[serde(default)]
struct Extras {
    approvals: Vec<Fields>,
    clarifications: Vec<Fields>,
    elicitations: Vec<Fields>,
}

fn empty() -> impl Iterator<Item = Fields> {
    std::iter::repeat_with(Fields::new)
}

const fn known(item: &Item) -> &'static [&'static str] {
    match item {
        Item::Approval(_) => {
            &["request_id", "tool_name", "agent_label", "summary", "detail", "arguments", "created_at"]
        }
        Item::Clarification(_) => {
            &["request_id", "question", "context", "suggested_answers", "agent_label", "created_at"]
        }
        Item::Elicitation(_) => {
            &["request_id", "server_name", "message", "field_name", "sensitive", "is_confirmation", "created_at"]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Vec<Entry> {
        entries(serde_json::from_str(json).unwrap(), json.as_bytes())
    }

    #[test]
    fn unknown_fields_and_numbers_stay_as_they_were_written_through_a_save() {
        let json = r#"{"badge":3,"approvals":[{"request_id":"a","tool_name":"t","agent_label":"S","summary":"s",
            "arguments":{"z":1.10,"a":12345678901234567890},"created_at":3,"blocks":[1e2]}],
            "clarifications":[{"request_id":"b","question":"q","agent_label":"S","created_at":1,"new":null}],
            "elicitations":[{"request_id":"c","server_name":"ssh","message":"m","sensitive":true,"is_confirmation":false,"created_at":2}]}"#;
        let entries = read(json);
        assert_eq!(entries.iter().map(Entry::id).collect::<Vec<_>>(), ["b", "c", "a"], "oldest first");
        assert_eq!(entries[2].extra["blocks"].get(), "[1e2]");
        assert_eq!(entries[0].extra["new"].get(), "null");
        assert!(entries[1].extra.is_empty());
        let saved = serde_json::to_string(&entries).unwrap();
        let back: Vec<Entry> = serde_json::from_str(&saved).unwrap();
        assert_eq!(back, entries);
        let Item::Approval(approval) = &back[2].item else { panic!("no approval") };
        assert_eq!(approval.arguments.as_ref().unwrap().get(), r#"{"z":1.10,"a":12345678901234567890}"#);
    }

    #[test]
    fn an_id_that_comes_twice_counts_once() {
        let json = r#"{"badge":2,"approvals":[
            {"request_id":"a","tool_name":"t","agent_label":"S","summary":"first","created_at":3},
            {"request_id":"a","tool_name":"t","agent_label":"S","summary":"second","created_at":3}],"clarifications":[]}"#;
        let entries = read(json);
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].title(), "first");
    }
}
