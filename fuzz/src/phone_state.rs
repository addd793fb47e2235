//! What a phone keeps, reads back, and shows: its state file, the payloads that an agent sends, and the lines on a screen
//! that a text of an agent must not take over.

use skald_common::payload::RawJson;
use skald_phone::model::account::{Account, AgentKeys, Effect};
use skald_phone::model::answer::Answer;
use skald_phone::model::arguments::{Value, fields};
use skald_phone::model::item::{Entry, Item};
use skald_phone::model::text;

use crate::tape::Tape;

const NOW: u64 = 1_750_000_000_000;

/// The target.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let loaded = serde_json::from_slice::<Account>(tape.bytes()).ok().filter(Account::is_readable);
    let mut account = loaded.unwrap_or_else(fresh);
    saved(&account);
    for _ in 0..8 {
        if tape.ended() {
            break;
        }
        receive(&mut account, &mut tape);
        saved(&account);
    }
}

fn fresh() -> Account {
    use skald_common::ids::{Ed25519Public, X25519Public};
    let agent = AgentKeys { ed25519: Ed25519Public::new([1; 32]), x25519: X25519Public::new([2; 32]) };
    Account::new(agent, "ws://relay.example".into(), "Phone".into(), NOW)
}

/// Whatever is known can be saved and comes back as it was.
fn saved(account: &Account) {
    let text = serde_json::to_vec(account).expect("what is known can be saved");
    let again: Account = serde_json::from_slice(&text).expect("what was saved can be read");
    assert_eq!(&again, account, "comes back otherwise");
}

fn receive(account: &mut Account, tape: &mut Tape<'_>) {
    let (counter, live) = (tape.number(), tape.byte() & 1 == 0);
    let known = account.counters.received;
    let effect = account.receive(counter, live, tape.bytes(), NOW);
    assert!(matches!(effect, Effect::Repeat) || counter > known, "a repeat was handled");
    assert_eq!(account.counters.received, known.max(counter));
    let entries: Vec<Entry> = account.inbox.pending().cloned().collect();
    for entry in &entries {
        show(entry);
    }
    let Some(first) = entries.first() else { return };
    answer(account, first, tape.byte());
}

/// An answer takes the item away; one that failed brings it back.
fn answer(account: &mut Account, entry: &Entry, choice: u8) {
    let answer = match &entry.item {
        Item::Approval(_) => Answer::Approve { bypass_secs: None },
        Item::Clarification(_) => Answer::Text("yes".into()),
        Item::Elicitation(_) => Answer::Decline,
    };
    let id = format!("answer {choice}");
    if account.sent(&id).is_none() && account.answer(entry.id(), answer, id.clone(), NOW).is_ok() {
        assert!(account.inbox.get(entry.id()).is_none(), "answered and still pending");
        if choice & 1 == 0 {
            account.answer_failed(&id);
            assert!(account.inbox.get(entry.id()).is_some(), "an answer that failed is lost");
        }
    }
}

fn show(entry: &Entry) {
    for shown in [entry.title(), entry.from(), entry.id()] {
        harmless(&text::line(shown));
        harmless(&text::lines(shown).concat());
        let short = text::short_line(shown, 20);
        harmless(&short);
        assert!(short.chars().count() <= 20);
    }
    let Item::Approval(approval) = &entry.item else { return };
    if let Some(arguments) = &approval.arguments {
        same_meaning(arguments);
    }
}

/// Arguments are approved as they are read: nothing is hidden, merged or changed.
fn same_meaning(arguments: &RawJson) {
    let line = text::json_line(arguments.get());
    harmless(&line);
    let value: serde_json::Result<serde_json::Value> = serde_json::from_str(arguments.get());
    if let Ok(value) = &value {
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).ok().as_ref(), Some(value), "{line}");
    }
    for field in fields(arguments) {
        match field.value {
            Value::Text(text) => harmless(&text::lines(&text).concat()),
            Value::Json(json) => {
                if value.is_ok() {
                    serde_json::from_str::<serde_json::Value>(&json).expect("indented JSON is JSON");
                }
            }
        }
    }
}

/// No character of a line moves the cursor, colours the screen or turns the text around.
pub(crate) fn harmless(line: &str) {
    let bad = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert!(!line.contains(bad), "{line:?}");
}
