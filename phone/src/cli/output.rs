//! Printing: text for people, JSON for programs.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};

use serde::Serialize;
use skald_common::payload::{Approval, Clarification, Elicitation, RawJson};

use crate::model::account::{About, Account, Notice, Sent, Verdict};
use crate::model::inbox::AsOf;
use crate::model::item::{Entry, Item, Kind};
use crate::model::text;

/// Where and how to print.
#[derive(Debug, Clone, Copy)]
pub(super) struct Output {
    pub(super) json: bool,
    /// Columns, on a terminal.
    pub(super) width: Option<usize>,
}

impl Output {
    pub(super) fn new(json: bool) -> Self {
        let stdout = std::io::stdout();
        let columns = || rustix::termios::tcgetwinsize(&stdout).ok().map(|size| usize::from(size.ws_col));
        Self { json, width: if stdout.is_terminal() { columns().filter(|width| *width > 20) } else { None } }
    }

    /// Prints text that is safe to show, unless JSON is wanted.
    pub(super) fn text(self, text: &str) {
        if !self.json {
            write(text);
        }
    }

    /// Prints an object on one line, if JSON is wanted.
    pub(super) fn object(self, object: &impl Serialize) {
        if self.json {
            // Strings, numbers and JSON values alone: serialization cannot fail.
            write(&text::json_line(&serde_json::to_string(object).unwrap_or_default()));
        }
    }

    /// Tells a person how things go, where it cannot disturb a program.
    pub(super) fn progress(self, text: &str) {
        if !self.json {
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }
}

/// A reader that went away, as `head` does, ends the program quietly.
fn write(text: &str) {
    let mut stdout = std::io::stdout().lock();
    if writeln!(stdout, "{text}").and_then(|()| stdout.flush()).is_err() {
        std::process::exit(super::Exit::Trouble as i32);
    }
}

/// An item as JSON.
#[derive(Debug, Serialize)]
pub(super) struct JsonItem<'a> {
    kind: Kind,
    #[serde(flatten)]
    approval: Option<&'a Approval>,
    #[serde(flatten)]
    clarification: Option<&'a Clarification>,
    #[serde(flatten)]
    elicitation: Option<&'a Elicitation>,
    /// Fields that this build does not know.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: &'a BTreeMap<String, RawJson>,
}

impl<'a> From<&'a Entry> for JsonItem<'a> {
    fn from(entry: &'a Entry) -> Self {
        let (mut approval, mut clarification, mut elicitation) = (None, None, None);
        match &entry.item {
            Item::Approval(item) => approval = Some(item),
            Item::Clarification(item) => clarification = Some(item),
            Item::Elicitation(item) => elicitation = Some(item),
        }
        Self { kind: entry.kind(), approval, clarification, elicitation, extra: &entry.extra }
    }
}

/// What is pending, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct JsonInbox<'a> {
    badge: u32,
    as_of: Option<AsOf>,
    items: Vec<JsonItem<'a>>,
}

impl<'a> From<&'a Account> for JsonInbox<'a> {
    fn from(account: &'a Account) -> Self {
        let inbox = &account.inbox;
        Self { badge: inbox.badge(), as_of: inbox.as_of(), items: inbox.pending().map(JsonItem::from).collect() }
    }
}

/// The line of a notice, safe to show.
pub(super) fn notice_line(notice: &Notice, now: u64) -> String {
    let what = match &notice.about {
        About::Notification(told) if told.title.is_empty() => text::line(&told.body),
        About::Notification(told) => format!("{}: {}", text::line(&told.title), text::line(&told.body)),
        About::Verdict { sent, verdict } => verdict_line(sent, verdict),
    };
    format!("{what} ({})", age(notice.at, now))
}

fn verdict_line(sent: &Sent, verdict: &Verdict) -> String {
    let what = match verdict {
        Verdict::Accepted | Verdict::Received => "the agent has it".to_owned(),
        Verdict::TooLate(Some(by)) => format!("too late: answered by {} first", text::short_line(by, 60)),
        Verdict::TooLate(None) => "too late: it was answered or withdrawn before".to_owned(),
        Verdict::NotShown => "not counted: its content had not reached this phone in full".to_owned(),
        Verdict::Expired => "not counted: it was too old when it arrived".to_owned(),
    };
    format!("{} {} \"{}\": {what}", sent.word, sent.kind.word(), text::short_line(&sent.title, 60))
}

/// How long ago, in words; both in Unix milliseconds.
pub(super) fn age(at: u64, now: u64) -> String {
    let secs = now.saturating_sub(at) / 1000;
    match secs {
        0..=4 => "just now".into(),
        5..=99 => format!("{secs} s ago"),
        100..=5_999 => format!("{} min ago", secs / 60),
        6_000..=172_799 => format!("{} h ago", secs / 3600),
        _ => format!("{} days ago", secs / 86_400),
    }
}

/// The list of what is pending.
pub(super) fn list(account: &Account, now: u64, width: Option<usize>) -> String {
    let inbox = &account.inbox;
    let mut lines = vec![match inbox.badge() {
        0 => "Nothing is pending.".to_owned(),
        1 => "1 item is pending:".to_owned(),
        count => format!("{count} items are pending:"),
    }];
    for entry in inbox.pending() {
        lines.push(String::new());
        lines.push(headline(entry, now));
        lines.push(format!("  {}", text::short_line(entry.title(), width.unwrap_or(120).saturating_sub(3))));
    }
    lines.join("\n")
}

/// Kind, id, origin and age of an item on one line.
pub(super) fn headline(entry: &Entry, now: u64) -> String {
    let from = text::short_line(entry.from(), 40);
    format!("{}  {}  ({from}, {})", entry.kind().word(), text::line(entry.id()), age(entry.created_at(), now))
}

#[cfg(test)]
mod tests {
    use skald_common::ids::{Ed25519Public, X25519Public};
    use skald_common::payload::Notification;

    use super::*;
    use crate::model::account::AgentKeys;

    const NOW: u64 = 1_750_000_000_000;

    fn account() -> Account {
        let agent = AgentKeys { ed25519: Ed25519Public::new([1; 32]), x25519: X25519Public::new([2; 32]) };
        let mut account = Account::new(agent, "ws://relay.example".into(), "Phone".into(), NOW);
        let json = format!(
            r#"{{"v":1,"kind":"inbox_update","id":"x","ts":{NOW},"badge":1,"approvals":[{{"request_id":"a.1","tool_name":"t",
            "agent_label":"Skald\u001b[2J","summary":"Do \u202ethis","arguments":{{"n":1.10}},"created_at":{},"blocks":[1e2]}}],
            "clarifications":[]}}"#,
            NOW - 120_000
        );
        account.receive(1, true, json.as_bytes(), NOW);
        account
    }

    #[test]
    fn the_list_shows_nothing_that_a_terminal_obeys() {
        let list = list(&account(), NOW, None);
        assert_eq!(list, "1 item is pending:\n\napproval  a.1  (Skald\\u{1b}[2J, 2 min ago)\n  Do \\u{202e}this");
    }

    #[test]
    fn json_keeps_numbers_and_unknown_fields() {
        let account = account();
        let json = serde_json::to_string(&JsonInbox::from(&account)).unwrap();
        assert!(json.contains(r#""arguments":{"n":1.10}"#), "{json}");
        assert!(json.contains(r#""extra":{"blocks":[1e2]}"#), "{json}");
        assert!(json.contains(r#""kind":"approval","request_id":"a.1""#), "{json}");
    }

    #[test]
    fn ages_are_in_words() {
        for (ms, words) in [
            (0, "just now"),
            (99_000, "99 s ago"),
            (100_000, "1 min ago"),
            (7_200_000, "2 h ago"),
            (864_000_000, "10 days ago"),
        ] {
            assert_eq!(age(NOW - ms, NOW), words);
        }
        assert_eq!(age(NOW + 5000, NOW), "just now", "clocks differ");
    }

    #[test]
    fn notices_are_safe_lines() {
        let about = About::Notification(Notification { title: "A\u{7}".into(), body: "b\nc".into() });
        let notice = Notice { at: NOW, about, shown: false };
        assert_eq!(notice_line(&notice, NOW), "A\\u{7}: b\\nc (just now)");
    }
}
