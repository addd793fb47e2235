//! Inbox items: what hosts ask of a person, and what they are called.

mod item;

use std::fmt;

#[cfg(test)]
pub(crate) use item::MAX_ITEM;
pub(crate) use item::{Item, ItemId, Origin};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::value::RawValue;

/// Items that one host may have pending.
pub(crate) const MAX_ITEMS_PER_HOST: usize = 200;
/// Items that may be pending in all.
pub(crate) const MAX_ITEMS: usize = 500;
/// Longest `request_id`, bytes of its JSON text.
const MAX_REQUEST_ID: usize = 256;

/// What a host can ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A tool call that wants a yes or no.
    Approval,
    /// A question.
    Clarification,
    /// A prompt of an MCP server, often for a secret.
    Elicitation,
}

impl Kind {
    /// Its word in JSON and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Approval => "approval",
            Self::Clarification => "clarification",
            Self::Elicitation => "elicitation",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A host's name for an item: a string or an integer, kept as it was given. Equal only if written as the same value: the
/// string `"1"` and the integer `1` are different.
///
/// Reads and writes itself as raw JSON: deserialize it from text directly, not through a `serde_json::Value`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(String);

/// A `request_id` that is neither a string nor an integer, is empty, or is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("request_id must be an integer or a string of 1 to 250 bytes")]
pub struct RequestIdError;

impl RequestId {
    /// From its JSON text.
    pub fn from_json(text: &str) -> Result<Self, RequestIdError> {
        if text.len() > MAX_REQUEST_ID {
            return Err(RequestIdError);
        }
        if text.starts_with('"') {
            let name: String = serde_json::from_str(text).map_err(|_| RequestIdError)?;
            return if name.is_empty() { Err(RequestIdError) } else { Ok(Self::from_name(&name)) };
        }
        let digits = text.strip_prefix('-').unwrap_or(text);
        let integer = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if integer { Ok(Self(text.to_owned())) } else { Err(RequestIdError) }
    }

    /// The string `name`; a text of its own so that equal names are equal however their escapes were written.
    fn from_name(name: &str) -> Self {
        Self(serde_json::Value::from(name).to_string())
    }

    /// Its JSON text.
    pub fn json(&self) -> &str {
        &self.0
    }

    /// Without quotes: what phones see before the dot.
    pub fn display(&self) -> String {
        serde_json::from_str::<String>(&self.0).unwrap_or_else(|_| self.0.clone())
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for RequestId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw = RawValue::from_string(self.0.clone()).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RequestId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Self::from_json(raw.get()).map_err(de::Error::custom)
    }
}
