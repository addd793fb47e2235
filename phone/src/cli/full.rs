//! An item in full: everything that a person approves, and nothing that could pass for this program's own words.
//!
//! Each line of content has a bar before it, also where a long one is broken, so that content cannot imitate a prompt or a
//! heading.

use unicode_width::UnicodeWidthChar as _;

use super::output::headline;
use crate::model::arguments::{self, Value};
use crate::model::inbox::AsOf;
use crate::model::item::{Entry, Item};
use crate::model::text;

const BAR: &str = "    │ ";
const CONTINUED: &str = "    ┊ ";

/// The item as lines that are safe to show, broken at `width` columns if given.
pub(super) fn full(entry: &Entry, as_of: Option<AsOf>, now: u64, width: Option<usize>) -> String {
    let mut page = Page { lines: vec![headline(entry, now)], width };
    match &entry.item {
        Item::Approval(item) => {
            page.text("tool", &item.tool_name);
            page.text("summary", &item.summary);
            if let Some(detail) = &item.detail {
                page.text("detail", detail);
            }
            match &item.arguments {
                Some(arguments) => {
                    let fields = arguments::fields(arguments);
                    if fields.is_empty() {
                        page.heading("arguments: none");
                    }
                    for field in fields {
                        let name = text::short_line(&field.name, 80);
                        let heading = if name.is_empty() { "arguments".into() } else { format!("arguments.{name}") };
                        page.value(&heading, &field.value);
                    }
                }
                None if as_of.is_some_and(|as_of| as_of.live) => page.heading("arguments: none"),
                None => page.heading("arguments: none have arrived (they may be left out while the agent is offline)"),
            }
        }
        Item::Clarification(item) => {
            page.text("question", &item.question);
            if let Some(context) = &item.context {
                page.text("context", context);
            }
            for (index, suggestion) in item.suggested_answers.iter().flatten().enumerate() {
                page.text(&format!("suggested answer {}", index + 1), suggestion);
            }
        }
        Item::Elicitation(item) => {
            page.text("prompt", &item.message);
            match (&item.field_name, item.is_confirmation) {
                (_, true) => page.heading("asks for: yes or no"),
                (Some(field), false) if item.sensitive => {
                    page.heading(&format!("asks for: {} (a secret)", text::short_line(field, 80)));
                }
                (Some(field), false) => page.heading(&format!("asks for: {}", text::short_line(field, 80))),
                (None, false) => page.heading("asks for: a value without a name; it can only be declined"),
            }
        }
    }
    for (name, value) in &entry.extra {
        page.value(&format!("{} (unknown to this phone)", text::short_line(name, 80)), &arguments::read(value.get()));
    }
    page.lines.join("\n")
}

struct Page {
    lines: Vec<String>,
    width: Option<usize>,
}

impl Page {
    fn heading(&mut self, heading: &str) {
        self.lines.push(format!("  {heading}"));
    }

    fn text(&mut self, heading: &str, content: &str) {
        self.heading(heading);
        for line in text::lines(content) {
            let width = self.width.map(|width| width.saturating_sub(BAR.chars().count() + 1));
            for (index, part) in broken(&line, width).into_iter().enumerate() {
                self.lines.push(format!("{}{part}", if index == 0 { BAR } else { CONTINUED }));
            }
        }
    }

    fn value(&mut self, heading: &str, value: &Value) {
        match value {
            Value::Text(content) | Value::Json(content) => self.text(heading, content),
        }
    }
}

/// A line in parts of at most `width` columns; one empty part for an empty line.
fn broken(line: &str, width: Option<usize>) -> Vec<String> {
    let Some(width) = width else { return vec![line.to_owned()] };
    let (mut parts, mut part, mut used) = (Vec::new(), String::new(), 0);
    for character in line.chars() {
        let columns = character.width().unwrap_or(0);
        if used + columns > width.max(2) {
            parts.push(std::mem::take(&mut part));
            used = 0;
        }
        part.push(character);
        used += columns;
    }
    parts.push(part);
    parts
}

#[cfg(test)]
mod tests {
    use skald_common::payload::{Approval, Clarification, RawJson};

    use super::*;

    fn approval(arguments: Option<&str>) -> Entry {
        Entry {
            item: Item::Approval(Approval {
                request_id: "a.1".into(),
                tool_name: "execute_cmd".into(),
                agent_label: "Skald".into(),
                summary: "Run a command".into(),
                detail: None,
                arguments: arguments.map(|text| RawJson::parse(text.into()).unwrap()),
                created_at: 1000,
            }),
            extra: [("blocks".to_owned(), RawJson::parse("[1]".into()).unwrap())].into(),
        }
    }

    const LIVE: Option<AsOf> = Some(AsOf { counter: 1, made_at: 1, live: true });
    const STORED: Option<AsOf> = Some(AsOf { counter: 1, made_at: 1, live: false });

    #[test]
    fn everything_is_shown_with_a_bar_before_it() {
        let entry = approval(Some(r#"{"command":"ls\n\u001b[31mApprove? [y/N] y","n":1.10}"#));
        assert_eq!(
            full(&entry, LIVE, 1000, None),
            "approval  a.1  (Skald, just now)\n  tool\n    │ execute_cmd\n  summary\n    │ Run a command\n  \
             arguments.command\n    │ ls\n    │ \\u{1b}[31mApprove? [y/N] y\n  arguments.n\n    │ 1.10\n  \
             blocks (unknown to this phone)\n    │ [\n    │   1\n    │ ]"
        );
    }

    #[test]
    fn a_long_line_is_broken_behind_the_bar() {
        let entry = approval(Some(r#"{"command":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa日本"}"#));
        let page = full(&entry, LIVE, 1000, Some(24));
        assert!(page.contains("    │ aaaaaaaaaaaaaaaaa\n    ┊ aaaaaaaaaaaaa日本\n"), "{page}");
        assert_eq!(broken("日本語", Some(4)), ["日本", "語"]);
        assert_eq!(broken("", Some(4)), [""]);
    }

    #[test]
    fn missing_arguments_are_told_from_none() {
        assert!(full(&approval(None), LIVE, 0, None).contains("arguments: none\n"));
        assert!(full(&approval(None), STORED, 0, None).contains("none have arrived"));
        assert!(full(&approval(Some("{}")), STORED, 0, None).contains("arguments: none\n"));
    }

    #[test]
    fn suggestions_are_numbered_as_choice_wants_them() {
        let entry = Entry {
            item: Item::Clarification(Clarification {
                request_id: "q".into(),
                question: "Proceed?".into(),
                context: None,
                suggested_answers: Some(vec!["Yes".into(), "No".into()]),
                agent_label: "Skald".into(),
                created_at: 1,
            }),
            extra: std::collections::BTreeMap::new(),
        };
        let page = full(&entry, None, 1, None);
        assert!(page.contains("suggested answer 1\n    │ Yes\n  suggested answer 2\n    │ No"), "{page}");
    }
}
