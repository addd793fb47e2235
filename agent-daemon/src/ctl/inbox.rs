//! `skaldctl inbox`: what is pending, in full.

use serde::Deserialize;
use serde_json::{Value, json};
use skald_common::payload::RawJson;

use super::client::Client;
use super::output::{ago, now, safe, safe_block};
use super::{Exit, Failure, Session};
use crate::rpc::parse_params;

/// A row of `inbox.list`.
#[derive(Debug, Deserialize)]
pub(super) struct Entry {
    pub(super) id: String,
    host: String,
    kind: String,
    item: RawJson,
    created_at: u64,
}

/// The fields of an item that we show.
#[derive(Debug, Default, Deserialize)]
struct Item {
    tool_name: Option<String>,
    agent_label: Option<String>,
    summary: Option<String>,
    detail: Option<String>,
    arguments: Option<RawJson>,
    question: Option<String>,
    context: Option<String>,
    suggested_answers: Option<Vec<String>>,
    server_name: Option<String>,
    message: Option<String>,
    field_name: Option<String>,
}

pub(super) async fn run(session: &Session) -> Result<Exit, Failure> {
    let mut client = session.control().await?;
    let text = client.call_text("inbox.list", &json!({})).await?;
    session.output.either(&text, || {
        let entries: Vec<Entry> = parse_params(&text).map_err(|error| Failure::Unusable(error.message))?;
        Ok(show(&entries, now()))
    })?;
    Ok(Exit::Done)
}

/// The name of the value that the item with this id, or beginning of an id, asks for.
pub(super) async fn field_name(client: &mut Client, id: &str) -> Result<String, Failure> {
    let entries: Vec<Entry> = client.call("inbox.list", &json!({})).await?;
    let mut found = entries.iter().filter(|entry| entry.id.starts_with(id));
    let entry = match (entries.iter().find(|entry| entry.id == id), found.next(), found.next()) {
        (Some(entry), ..) | (None, Some(entry), None) => entry,
        (None, None, _) => return Err(Failure::Usage(format!("no item has the id {id:?}: see `skaldctl inbox`"))),
        (None, Some(_), Some(_)) => {
            return Err(Failure::Usage(format!("several items have an id that begins with {id:?}: give more of it")));
        }
    };
    let item: Item = parse_params(entry.item.get()).unwrap_or_default();
    item.field_name.ok_or_else(|| Failure::Usage(format!("{} asks for no value", safe(&entry.id))))
}

fn show(entries: &[Entry], now: u64) -> String {
    if entries.is_empty() {
        return "Nothing is pending.".to_owned();
    }
    entries.iter().map(|entry| show_entry(entry, now)).collect::<Vec<_>>().join("\n")
}

fn show_entry(entry: &Entry, now: u64) -> String {
    let item: Item = parse_params(entry.item.get()).unwrap_or_default();
    let age = ago(entry.created_at, now);
    let from = [item.agent_label.as_deref().unwrap_or_default(), &entry.host].map(safe);
    let mut lines = vec![format!("{}  {} from {} ({}), {age}\n", safe(&entry.id), safe(&entry.kind), from[0], from[1])];
    let mut part = |name: &str, value: Option<&str>| {
        if let Some(value) = value {
            let block = safe_block(value, "             ");
            lines.push(format!("  {name:<10} {}\n", block.trim()));
        }
    };
    part("tool", item.tool_name.as_deref());
    part("summary", item.summary.as_deref());
    part("detail", item.detail.as_deref());
    part("arguments", item.arguments.as_ref().map(pretty).as_deref());
    part("question", item.question.as_deref());
    part("context", item.context.as_deref());
    part("suggested", item.suggested_answers.map(|answers| answers.join("\n")).as_deref());
    part("for", item.server_name.as_deref());
    part("prompt", item.message.as_deref());
    part("value", item.field_name.as_deref());
    lines.concat()
}

/// Indented, unless that would change a number.
fn pretty(json: &RawJson) -> String {
    let same = |value: &Value| serde_json::to_string(value).is_ok_and(|text| text.len() == json.get().len());
    match serde_json::from_str::<Value>(json.get()) {
        Ok(value) if same(&value) => serde_json::to_string_pretty(&value).unwrap_or_else(|_| json.get().to_owned()),
        _ => json.get().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_shown_in_full_and_safe_for_a_terminal() {
        let entries: Vec<Entry> = serde_json::from_str(
            r#"[{"id":"1.ab","host":"skald","kind":"approval","created_at":0,"item":{"agent_label":"Skald",
            "tool_name":"rm","summary":"Delete","detail":"one\ntwo\u001b[2J","arguments":{"n":1.10},"created_at":0}}]"#,
        )
        .unwrap();
        let expected = "\
1.ab  approval from Skald (skald), 3 min ago
  tool       rm
  summary    Delete
  detail     one
             two\\u001b[2J
  arguments  {\"n\":1.10}
";
        assert_eq!(show(&entries, 180_000), expected);
        assert_eq!(show(&[], 0), "Nothing is pending.");
    }
}
