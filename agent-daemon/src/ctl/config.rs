//! `skaldctl config`.

use serde_json::{Map, Value, json};

use super::args::Config;
use super::output::safe;
use super::{Exit, Failure, Session};
use crate::config::Setting;

pub(super) async fn run(session: &Session, action: Config) -> Result<Exit, Failure> {
    let known =
        |name: &str| Setting::by_name(name).map(Setting::name).map_err(|error| Failure::Usage(error.to_string()));
    let (method, params, only) = match &action {
        Config::Get { name } => ("config.get", json!({}), name.as_deref().map(known).transpose()?),
        Config::Set { name, value } => ("config.set", json!({known(name)?: value}), Some(known(name)?)),
        Config::Unset { name } => ("config.set", json!({known(name)?: null}), Some(known(name)?)),
    };
    let mut client = session.control().await?;
    let mut settings: Map<String, Value> = client.call(method, &params).await?;
    match only {
        None => session.output.either(&json!(settings).to_string(), || Ok(show(&settings)))?,
        Some(name) => {
            let value = settings.remove(name).unwrap_or(Value::Null);
            session.output.either(&value.to_string(), || Ok(plain(&value)))?;
        }
    }
    Ok(Exit::Done)
}

fn show(settings: &Map<String, Value>) -> String {
    let lines: Vec<String> =
        settings.iter().map(|(name, value)| format!("{} = {}", safe(name), plain(value))).collect();
    lines.join("\n")
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "(unset)".to_owned(),
        Value::String(text) if text.is_empty() => "(empty)".to_owned(),
        Value::String(text) => safe(text),
        other => safe(&other.to_string()),
    }
}
