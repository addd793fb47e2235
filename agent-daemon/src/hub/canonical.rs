//! JSON in one form: keys sorted at every level, strings with one way of escaping, no white space, numbers as they were
//! written. What a person is shown and what a decision is bound to are both made from it.
//!
//! A key that stands twice is an error: readers differ in which of the two they take, and a person must see what the host
//! will do.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Deepest nesting of objects and arrays in an item.
const MAX_DEPTH: usize = 64;

/// Why a JSON text has no canonical form. Quotes keys at most, never values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CanonicalError {
    /// Not the JSON it should be.
    #[error("{0}")]
    Json(String),
    /// Objects and arrays nested too deeply.
    #[error("nested more than {MAX_DEPTH} levels deep")]
    Depth,
}

/// An object's fields by name, each as canonical JSON text.
pub(crate) type Fields = BTreeMap<String, String>;

/// The fields of an object.
pub(crate) fn fields(json: &str) -> Result<Fields, CanonicalError> {
    read_object(json)?.into_iter().map(|(key, value)| Ok((key, canonical(value.get(), 1)?))).collect()
}

/// The object with these fields.
pub(crate) fn object(fields: &Fields) -> String {
    join('{', '}', fields.iter().map(|(key, value)| format!("{}:{value}", string(key))))
}

/// A string's JSON text.
pub(crate) fn string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn canonical(json: &str, depth: usize) -> Result<String, CanonicalError> {
    match json.as_bytes().first() {
        Some(b'{' | b'[') if depth >= MAX_DEPTH => Err(CanonicalError::Depth),
        Some(b'{') => {
            let mut sorted = Fields::new();
            for (key, value) in read_object(json)? {
                sorted.insert(key, canonical(value.get(), depth + 1)?);
            }
            Ok(object(&sorted))
        }
        Some(b'[') => {
            let values: Vec<&RawValue> = serde_json::from_str(json).map_err(|error| malformed(&error))?;
            let values: Result<Vec<String>, _> = values.iter().map(|value| canonical(value.get(), depth + 1)).collect();
            Ok(join('[', ']', values?.into_iter()))
        }
        Some(b'"') => {
            // Lone surrogates and the like are refused here; a raw value alone would let them pass.
            let text: String = serde_json::from_str(json).map_err(|error| malformed(&error))?;
            Ok(string(&text))
        }
        _ => Ok(json.to_owned()),
    }
}

fn join(open: char, close: char, parts: impl Iterator<Item = String>) -> String {
    let mut text = String::from(open);
    for (n, part) in parts.enumerate() {
        if n > 0 {
            text.push(',');
        }
        text.push_str(&part);
    }
    text.push(close);
    text
}

fn malformed(error: &serde_json::Error) -> CanonicalError {
    CanonicalError::Json(skald_common::payload::describe(error))
}

fn read_object(json: &str) -> Result<BTreeMap<String, &RawValue>, CanonicalError> {
    let object: Object<'_> = serde_json::from_str(json).map_err(|error| malformed(&error))?;
    match object.repeated {
        Some(key) => Err(CanonicalError::Json(format!("has the key {} twice", string(&key)))),
        None => Ok(object.fields),
    }
}

struct Object<'a> {
    fields: BTreeMap<String, &'a RawValue>,
    repeated: Option<String>,
}

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut object = Object { fields: BTreeMap::new(), repeated: None };
                while let Some((key, value)) = map.next_entry::<String, &'de RawValue>()? {
                    if key.len() > 1024 {
                        return Err(A::Error::custom("key too long"));
                    }
                    if object.fields.insert(key.clone(), value).is_some() {
                        object.repeated = Some(key);
                    }
                }
                Ok(object)
            }
        }

        deserializer.deserialize_map(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(json: &str) -> Result<String, CanonicalError> {
        fields(json).map(|fields| object(&fields))
    }

    #[test]
    fn keys_are_sorted_at_every_level_and_white_space_goes() {
        assert_eq!(
            one(r#" { "b" : [ { "z":1, "a":2 } , null, true ], "a" : { "d":{}, "c":[] } } "#).unwrap(),
            r#"{"a":{"c":[],"d":{}},"b":[{"a":2,"z":1},null,true]}"#
        );
    }

    #[test]
    fn numbers_keep_every_digit() {
        let json = r#"{"a":1.0,"b":1e400,"c":12345678901234567890123,"d":-0,"e":0.1000}"#;
        assert_eq!(one(json).unwrap(), json);
    }

    #[test]
    fn strings_that_mean_the_same_are_the_same() {
        assert_eq!(one(r#"{"a":"\u0041\/\u00e9"}"#).unwrap(), one(r#"{"\u0061":"A/é"}"#).unwrap());
    }

    #[test]
    fn a_repeated_key_is_refused_at_every_level() {
        for json in [r#"{"a":1,"a":1}"#, r#"{"x":{"a":1,"\u0061":2}}"#, r#"{"x":[{"a":1,"a":2}]}"#] {
            assert!(one(json).unwrap_err().to_string().contains(r#""a" twice"#), "{json}");
        }
    }

    #[test]
    fn other_things_than_objects_and_half_ones_are_refused_without_being_quoted() {
        for json in ["", "[]", "1", "null", r#"{"a":"hunter2"#, r#"{"hunter2":}"#, r#"{"a":"\ud800hunter2"}"#] {
            let error = one(json).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn nesting_has_a_limit() {
        let nested = |depth: usize| format!(r#"{{"a":{}1{}}}"#, "[".repeat(depth), "]".repeat(depth));
        assert!(one(&nested(MAX_DEPTH - 1)).is_ok());
        assert_eq!(one(&nested(MAX_DEPTH)), Err(CanonicalError::Depth));
        assert_eq!(one(&nested(100_000)), Err(CanonicalError::Depth));
    }
}
