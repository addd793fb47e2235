//! JSON arguments for reading: every key, digit and order as it was written, with strings as plain text.

use std::fmt::{self, Write as _};

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use skald_common::payload::RawJson;

/// A field of an object.
#[derive(Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Value,
}

/// A value, for reading.
#[derive(Debug, PartialEq, Eq)]
pub enum Value {
    /// A string, decoded.
    Text(String),
    /// Anything else: JSON, indented, each token as it was written.
    Json(String),
}

/// A JSON value taken apart for reading: an object's fields in their order (repeated ones too), or one nameless value.
pub fn fields(json: &RawJson) -> Vec<Field> {
    match serde_json::from_str::<Object>(json.get()) {
        Ok(Object(fields)) => {
            fields.into_iter().map(|(name, value)| Field { name, value: read(value.get()) }).collect()
        }
        Err(_) => vec![Field { name: String::new(), value: read(json.get()) }],
    }
}

/// One value for reading.
pub fn read(json: &str) -> Value {
    match serde_json::from_str::<String>(json) {
        Ok(text) => Value::Text(text),
        Err(_) => Value::Json(indent(json)),
    }
}

/// An object's fields in order. A map type would merge repeated ones and so hide what another reader may pick.
struct Object(Vec<(String, RawJson)>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Object;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Object(fields))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// Valid JSON with two spaces per level; tokens stay as they are.
fn indent(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let mut depth = 0_usize;
    let mut characters = json.chars().filter(|c| *c >= ' ').peekable();
    let new_line = |out: &mut String, depth: usize| {
        let _ = write!(out, "\n{:width$}", "", width = depth * 2);
    };
    while let Some(character) = characters.next() {
        match character {
            '"' => {
                out.push('"');
                while let Some(inner) = characters.next() {
                    out.push(inner);
                    match inner {
                        '\\' => out.extend(characters.next()),
                        '"' => break,
                        _ => {}
                    }
                }
            }
            '{' | '[' => {
                out.push(character);
                while characters.next_if_eq(&' ').is_some() {}
                if let Some(end) = characters.next_if(|next| matches!(next, '}' | ']')) {
                    out.push(end);
                } else {
                    depth += 1;
                    new_line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut out, depth);
                out.push(character);
            }
            ',' => {
                out.push(',');
                new_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            ' ' => {}
            _ => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn raw(text: &str) -> RawJson {
        RawJson::parse(text.to_owned()).unwrap()
    }

    #[test]
    fn strings_are_decoded_and_everything_else_keeps_each_digit_and_its_order() {
        let fields = fields(&raw(
            "{\"z\": \"rm -rf /\\n\\u202e\", \"n\":1.10e2, \"o\":{\"b\":[1 ,\n2],\"a\":{},\"e\":[ ]}, \"z\":null}",
        ));
        let told: Vec<_> = fields.iter().map(|field| (field.name.as_str(), &field.value)).collect();
        assert_eq!(told[0], ("z", &Value::Text("rm -rf /\n\u{202e}".into())));
        assert_eq!(told[1], ("n", &Value::Json("1.10e2".into())));
        let object = "{\n  \"b\": [\n    1,\n    2\n  ],\n  \"a\": {},\n  \"e\": []\n}";
        assert_eq!(told[2], ("o", &Value::Json(object.into())));
        assert_eq!(told[3], ("z", &Value::Json("null".into())), "a repeated field is shown too");
    }

    #[test]
    fn what_is_no_object_is_one_value_without_a_name() {
        assert_eq!(fields(&raw("[1]")), [Field { name: String::new(), value: Value::Json("[\n  1\n]".into()) }]);
        assert_eq!(fields(&raw("\"x\"")), [Field { name: String::new(), value: Value::Text("x".into()) }]);
    }

    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            ".*".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
                proptest::collection::hash_map(".*", inner, 0..5)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn indented_json_means_the_same(value in any_json()) {
            let again: serde_json::Value = serde_json::from_str(&indent(&value.to_string())).unwrap();
            prop_assert_eq!(again, value);
        }
    }
}
