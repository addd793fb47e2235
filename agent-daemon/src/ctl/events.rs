//! `skaldctl events`: what happens, as it happens.

use serde_json::{Map, Value, json};

use super::client::Client;
use super::output::safe;
use super::{Exit, Failure, Session};
use crate::rpc::Call;

pub(super) async fn run(session: &Session) -> Result<Exit, Failure> {
    let mut client = session.control().await?;
    subscribe(&mut client).await?;
    session.output.hint("Waiting for events; end with Ctrl-C.");
    loop {
        let event = tokio::select! {
            event = next(&mut client) => event?,
            _ = tokio::signal::ctrl_c() => return Ok(Exit::Interrupted),
        };
        session.output.either(event.text(), || Ok(event.line()))?;
        if event.kind() == "lagged" {
            return Err(Failure::Unusable("too slow: the daemon has dropped events and cut this off".into()));
        }
    }
}

/// An event of the daemon.
pub(super) struct Event {
    call: Call,
    fields: Map<String, Value>,
}

pub(super) async fn subscribe(client: &mut Client) -> Result<(), Failure> {
    client.call_text("events.subscribe", &json!({})).await?;
    Ok(())
}

/// The next event. Cancel safe.
pub(super) async fn next(client: &mut Client) -> Result<Event, Failure> {
    loop {
        let call = client.next_call().await?;
        if call.method == "event"
            && let Ok(fields) = call.params()
        {
            return Ok(Event { call, fields });
        }
    }
}

impl Event {
    /// As JSON.
    pub(super) fn text(&self) -> &str {
        self.call.raw_params()
    }

    /// What happened.
    pub(super) fn kind(&self) -> &str {
        self.field("type")
    }

    /// A field that is text.
    pub(super) fn field(&self, name: &str) -> &str {
        self.fields.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// A field that is a truth value.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.fields.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    fn line(&self) -> String {
        let fields = self.fields.iter().filter(|(name, _)| *name != "type").map(|(name, value)| match value {
            Value::String(text) => format!("  {}={}", safe(name), safe(text)),
            other => format!("  {}={}", safe(name), safe(&other.to_string())),
        });
        std::iter::once(safe(self.kind())).chain(fields).collect()
    }
}
