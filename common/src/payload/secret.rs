//! A JSON object that may hold a secret.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use zeroize::Zeroize;

/// The content of an elicitation answer: shown by no `Debug`, its strings wiped when dropped.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretObject(Map<String, Value>);

impl SecretObject {
    /// One value under one name.
    pub fn single(name: &str, value: String) -> Self {
        Self(Map::from_iter([(name.to_owned(), Value::String(value))]))
    }

    /// The object itself, for handing it on.
    pub const fn expose(&self) -> &Map<String, Value> {
        &self.0
    }
}

impl Drop for SecretObject {
    fn drop(&mut self) {
        self.0.values_mut().for_each(wipe);
    }
}

fn wipe(value: &mut Value) {
    match value {
        Value::String(text) => text.zeroize(),
        Value::Array(values) => values.iter_mut().for_each(wipe),
        Value::Object(fields) => fields.values_mut().for_each(wipe),
        Value::Null | Value::Bool(_) | Value::Number(_) => *value = Value::Null,
    }
}

impl fmt::Debug for SecretObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretObject(…)")
    }
}
