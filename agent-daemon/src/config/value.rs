//! A setting's value before it is checked, from TOML, JSON, the environment or a command line.

use serde::{Deserialize, Deserializer};

/// A value of whatever type the source had. Text also stands for numbers and truth values, because the environment and
/// command lines have nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Back to the default.
    Unset,
    /// Text.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// A truth value.
    Boolean(bool),
    /// Anything else; fits no setting.
    Other,
}

impl Value {
    pub(super) fn text(&self) -> Result<&str, String> {
        match self {
            Self::Text(text) => Ok(text.trim()),
            _ => Err("must be a text".into()),
        }
    }

    pub(super) fn boolean(&self) -> Result<bool, String> {
        match self {
            Self::Boolean(value) => Ok(*value),
            Self::Text(text) if text == "true" => Ok(true),
            Self::Text(text) if text == "false" => Ok(false),
            _ => Err("must be true or false".into()),
        }
    }

    pub(super) fn number<T>(&self, least: T, most: T) -> Result<T, String>
    where
        T: TryFrom<i64> + PartialOrd + Copy + std::fmt::Display,
    {
        let number = match self {
            Self::Integer(number) => Some(*number),
            Self::Text(text) => text.trim().parse().ok(),
            _ => None,
        };
        let fits = number.and_then(|number| T::try_from(number).ok()).filter(|value| *value >= least && *value <= most);
        fits.ok_or_else(|| format!("must be a whole number from {least} to {most}"))
    }
}

impl From<&toml_edit::Item> for Value {
    fn from(item: &toml_edit::Item) -> Self {
        if let Some(text) = item.as_str() {
            Self::Text(text.to_owned())
        } else if let Some(number) = item.as_integer() {
            Self::Integer(number)
        } else {
            item.as_bool().map_or(Self::Other, Self::Boolean)
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::Null => Self::Unset,
            serde_json::Value::String(text) => Self::Text(text),
            serde_json::Value::Bool(value) => Self::Boolean(value),
            serde_json::Value::Number(number) => number.as_i64().map_or(Self::Other, Self::Integer),
            serde_json::Value::Array(_) | serde_json::Value::Object(_) => Self::Other,
        })
    }
}
