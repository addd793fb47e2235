//! JSON (RFC 8259), as little of it as pushes need: this relay's size is bounded, and a general library costs a tenth of it.
//! Numbers are whole ones or nothing; of two members of one name the last counts. The tests compare it with `serde_json`.

use std::fmt::Write as _;

/// Deeper values are no JSON here: subscriptions and answers have three levels.
const MAX_DEPTH: usize = 32;

/// A value that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Json {
    /// `null`, `true`, `false`, and numbers that are not whole, negative or above 2^64.
    Other,
    Number(u64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Reads one value and nothing behind it; `None` if it is no JSON.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader { rest: std::str::from_utf8(bytes).ok()? };
        let value = reader.value(0)?;
        reader.space();
        reader.rest.is_empty().then_some(value)
    }

    /// A member of an object.
    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        let Self::Object(members) = self else { return None };
        members.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// A member that is text.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(Self::as_text)
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(super) const fn as_number(&self) -> Option<u64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    /// The values of a list; of anything else, none.
    pub(super) fn list(&self) -> &[Self] {
        if let Self::List(values) = self { values } else { &[] }
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    /// Takes what comes next if it is this, after white space.
    fn takes(&mut self, token: &str) -> bool {
        self.space();
        self.takes_here(token)
    }

    fn takes_here(&mut self, token: &str) -> bool {
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn value(&mut self, depth: usize) -> Option<Json> {
        if depth > MAX_DEPTH {
            return None;
        }
        if self.takes("{") {
            return self.members(depth);
        }
        if self.takes("[") {
            return self.values(depth);
        }
        if self.takes("\"") {
            return self.string().map(Json::Text);
        }
        if ["null", "true", "false"].into_iter().any(|word| self.takes(word)) {
            return Some(Json::Other);
        }
        self.number()
    }

    fn members(&mut self, depth: usize) -> Option<Json> {
        let mut members = Vec::new();
        if self.takes("}") {
            return Some(Json::Object(members));
        }
        loop {
            let name = self.takes("\"").then(|| self.string()).flatten()?;
            let value = self.takes(":").then(|| self.value(depth + 1)).flatten()?;
            members.push((name, value));
            if self.takes("}") {
                return Some(Json::Object(members));
            }
            self.takes(",").then_some(())?;
        }
    }

    fn values(&mut self, depth: usize) -> Option<Json> {
        let mut values = Vec::new();
        if self.takes("]") {
            return Some(Json::List(values));
        }
        loop {
            values.push(self.value(depth + 1)?);
            if self.takes("]") {
                return Some(Json::List(values));
            }
            self.takes(",").then_some(())?;
        }
    }

    /// Behind the first quote.
    fn string(&mut self) -> Option<String> {
        let mut text = String::new();
        loop {
            let special = self.rest.find(|c: char| c == '"' || c == '\\' || c < ' ')?;
            let (plain, rest) = self.rest.split_at_checked(special)?;
            text.push_str(plain);
            self.rest = rest;
            if self.takes_here("\"") {
                return Some(text);
            }
            self.takes_here("\\").then_some(())?;
            text.push(self.escaped()?);
        }
    }

    fn escaped(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let escape = chars.next()?;
        self.rest = chars.as_str();
        Some(match escape {
            '"' | '\\' | '/' => escape,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let unit = self.unit()?;
                // Characters beyond the basic plane are two units; a half of one is no character.
                let (0xd800..=0xdbff) = unit else { return char::from_u32(unit) };
                let low = self.takes_here("\\u").then(|| self.unit()).flatten()?;
                let (0xdc00..=0xdfff) = low else { return None };
                char::from_u32(0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00))?
            }
            _ => return None,
        })
    }

    fn unit(&mut self) -> Option<u32> {
        let (digits, rest) = self.rest.split_at_checked(4)?;
        self.rest = rest;
        let hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        hexadecimal.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
    }

    fn number(&mut self) -> Option<Json> {
        let negative = self.takes_here("-");
        let whole = self.digits();
        if whole.is_empty() || whole.len() > 1 && whole.starts_with('0') {
            return None;
        }
        let mut fine = !negative;
        if self.takes_here(".") {
            fine = false;
            (!self.digits().is_empty()).then_some(())?;
        }
        if self.takes_here("e") || self.takes_here("E") {
            fine = false;
            let _sign = self.takes_here("+") || self.takes_here("-");
            (!self.digits().is_empty()).then_some(())?;
        }
        let number = whole.parse().ok().filter(|_| fine);
        Some(number.map_or(Json::Other, Json::Number))
    }

    fn digits(&mut self) -> &'a str {
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at_checked(end).unwrap_or_default();
        self.rest = rest;
        digits
    }
}

/// Writes one JSON text.
#[derive(Default)]
pub(super) struct Writer {
    text: String,
}

/// Writes the members of an object.
pub(super) struct Members<'a> {
    writer: &'a mut Writer,
    first: bool,
}

/// The text of an object.
pub(super) fn object(members: impl FnOnce(&mut Members<'_>)) -> String {
    let mut writer = Writer::default();
    writer.object(members);
    writer.text
}

impl Writer {
    fn object(&mut self, members: impl FnOnce(&mut Members<'_>)) {
        self.text.push('{');
        members(&mut Members { writer: self, first: true });
        self.text.push('}');
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for c in text.chars() {
            match c {
                '"' | '\\' => self.text.extend(['\\', c]),
                // Writing to a string does not fail.
                c if c < ' ' => drop(write!(self.text, "\\u{:04x}", u32::from(c))),
                c => self.text.push(c),
            }
        }
        self.text.push('"');
    }
}

impl Members<'_> {
    fn name(&mut self, name: &str) -> &mut Writer {
        if !std::mem::take(&mut self.first) {
            self.writer.text.push(',');
        }
        self.writer.string(name);
        self.writer.text.push(':');
        self.writer
    }

    /// A member that is text.
    pub(super) fn text(&mut self, name: &str, text: &str) {
        self.name(name).string(text);
    }

    /// A member that is a number.
    pub(super) fn number(&mut self, name: &str, number: u64) {
        self.raw(name, &number.to_string());
    }

    /// A member that is JSON already.
    pub(super) fn raw(&mut self, name: &str, json: &str) {
        self.name(name).text.push_str(json);
    }

    /// A member that is an object.
    pub(super) fn object(&mut self, name: &str, members: impl FnOnce(&mut Members<'_>)) {
        self.name(name).object(members);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn same(ours: &Json, theirs: &Value) -> bool {
        match (ours, theirs) {
            (Json::Number(number), Value::Number(other)) => other.as_u64() == Some(*number),
            (Json::Other, Value::Number(other)) => other.as_u64().is_none(),
            (Json::Other, Value::Null | Value::Bool(_)) => true,
            (Json::Text(text), Value::String(other)) => text == other,
            (Json::List(values), Value::Array(others)) => {
                values.len() == others.len() && values.iter().zip(others).all(|(value, other)| same(value, other))
            }
            (Json::Object(members), Value::Object(others)) => {
                members.iter().all(|(name, _)| others.contains_key(name))
                    && others.iter().all(|(name, other)| ours.get(name).is_some_and(|value| same(value, other)))
            }
            _ => false,
        }
    }

    fn agree(text: &[u8]) {
        match (Json::parse(text), serde_json::from_slice::<Value>(text)) {
            (Some(ours), Ok(theirs)) => assert!(same(&ours, &theirs), "{ours:?} {theirs}"),
            (None, Err(_)) => {}
            // What is beyond the floating numbers is a number to us.
            (Some(_), Err(error)) => assert!(error.to_string().contains("out of range"), "we read {text:?}: {error}"),
            (None, Ok(theirs)) => panic!("we do not read {theirs}"),
        }
    }

    #[test]
    fn every_form_is_read_as_serde_json_reads_it() {
        for text in [
            "null",
            " true ",
            "false",
            "tru",
            "truex",
            "nulll",
            "0",
            "-0",
            "01",
            "1.",
            ".5",
            "1.5",
            "-1.5e+10",
            "1e",
            "1E-2",
            "+1",
            "18446744073709551615",
            "18446744073709551616",
            "\"\"",
            "\"a\\u00e9\\ud83d\\ude00\\n\\/\"",
            "\"\\ud83d\"",
            "\"\\ude00\"",
            "\"\\ud83dx\"",
            "\"\\ud83d\\u0041\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"\\u+123\"",
            "\"\u{1}\"",
            "\"",
            "\"\\",
            "[]",
            "[1,]",
            "[1 2]",
            "[,1]",
            "[[],[[]]]",
            "{}",
            "{\"a\":1,}",
            "{\"a\":1,\"a\":2}",
            "{\"a\" : [ {\"b\":null} ] }",
            "{a:1}",
            "{\"a\"}",
            "{1:2}",
            "",
            " ",
            "1 1",
            "\u{feff}1",
            "\"\u{2028}\"",
            "nan",
            "Infinity",
            "'a'",
            "// x\n1",
            "\u{a0}1",
        ] {
            agree(text.as_bytes());
        }
        agree(b"\"\xff\"");
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(Json::parse(nested(MAX_DEPTH + 1).as_bytes()).is_some());
        assert!(Json::parse(nested(MAX_DEPTH + 2).as_bytes()).is_none());
        assert!(Json::parse("[".repeat(1_000_000).as_bytes()).is_none());
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_serde_json_writes_is_read_and_what_it_does_not_read_is_not(
            value in value(), cut in any::<prop::sample::Index>(), with in any::<char>(),
        ) {
            let text = value.to_string();
            agree(text.as_bytes());
            agree(serde_json::to_string_pretty(&value).unwrap().as_bytes());
            let mut changed: Vec<char> = text.chars().collect();
            changed[cut.index(text.chars().count())] = with;
            agree(changed.iter().collect::<String>().as_bytes());
        }

        #[test]
        fn nothing_is_read_otherwise(text in r#"[\[\]{}:,"\\0-9eE.+\-ntfu ]{0,12}"#, bytes in any::<Vec<u8>>()) {
            agree(text.as_bytes());
            agree(&bytes);
        }

        #[test]
        fn what_is_written_is_read_the_same(name in any::<String>(), text in any::<String>(), number in any::<u64>()) {
            let written = object(|members| {
                members.text(&name, &text);
                members.object("o", |members| members.number("n", number));
                members.raw("r", "[true]");
                members.text("t", &text);
            });
            let read: Value = serde_json::from_str(&written).unwrap();
            prop_assert_eq!(&read["r"][0], &Value::from(true));
            prop_assert_eq!(&read["t"], &Value::from(text.clone()));
            prop_assert_eq!(&read["o"]["n"], &Value::from(number));
            prop_assert!(["o", "r", "t"].contains(&name.as_str()) || read[&name] == text);
        }
    }
}
