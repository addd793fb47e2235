//! Reads one line as a JSON-RPC message, and the parameters of a call.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use zeroize::Zeroizing;

use super::{RpcError, codes};

/// A message from the other side.
#[derive(Debug, PartialEq)]
pub enum Message {
    /// It calls us.
    Call(Call),
    /// It answers a call of ours.
    Reply(Reply),
}

/// A call. Owns its parameters as text, which is wiped when dropped.
#[derive(PartialEq)]
pub struct Call {
    /// JSON text of the id, to be repeated in the answer; `None`: a notification, never answered.
    pub id: Option<String>,
    /// What is called.
    pub method: String,
    params: Zeroizing<String>,
}

/// The answer to a call of ours.
#[derive(PartialEq)]
pub struct Reply {
    /// The call's id; `None` if it is none of ours (we number from 0).
    pub id: Option<u64>,
    /// Its result as JSON text, or its error.
    pub outcome: Result<Zeroizing<String>, RpcError>,
}

impl Message {
    /// Reads a line. The error is what to answer, with the id `null`.
    pub fn parse(line: &[u8]) -> Result<Self, RpcError> {
        let text = std::str::from_utf8(line).map_err(|_| RpcError::new(codes::PARSE, "the line is not UTF-8"))?;
        if text.trim_start().starts_with('[') {
            // Still JSON or not: an array is either broken or a batch, and we take neither.
            return Err(RpcError::new(codes::INVALID_REQUEST, "batches are not supported: one object per line"));
        }
        let envelope: Envelope<'_> = serde_json::from_str(text).map_err(|error| unreadable(&error))?;
        envelope.classify()
    }
}

impl Call {
    /// The parameters as `T`; the error says what is wrong and where, and quotes nothing.
    pub fn params<T: DeserializeOwned>(&self) -> Result<T, RpcError> {
        parse_params(&self.params)
    }

    /// The parameters as JSON text.
    pub fn raw_params(&self) -> &str {
        &self.params
    }
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("id", &self.id).field("method", &self.method).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reply").field("id", &self.id).field("ok", &self.outcome.is_ok()).finish_non_exhaustive()
    }
}

/// Reads JSON text as `T`; the error (-32602) says what is wrong and where, and quotes nothing of the text.
pub fn parse_params<T: DeserializeOwned>(text: &str) -> Result<T, RpcError> {
    let mut source = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut source).map_err(|error| {
        let path = error.path().to_string();
        let what = expectation(&error.into_inner());
        let place = if path == "." { String::new() } else { format!("{path}: ") };
        RpcError::invalid_params(format!("{place}{what}"))
    })
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(default)]
    jsonrpc: Option<String>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(default)]
    method: Option<String>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(default)]
    error: Option<RpcError>,
}

/// Unlike the standard reading of an `Option`, tells `null` from a missing field.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

impl Envelope<'_> {
    fn classify(self) -> Result<Message, RpcError> {
        let invalid = |what: &str| Err(RpcError::new(codes::INVALID_REQUEST, what));
        if self.jsonrpc.as_deref() != Some("2.0") {
            return invalid("\"jsonrpc\" must be \"2.0\"");
        }
        match (self.method, self.result, self.error) {
            (Some(method), None, None) => {
                let id = match self.id.map(RawValue::get) {
                    Some(id) if id.starts_with(['{', '[', 't', 'f']) => {
                        return invalid("\"id\" must be a string or a number");
                    }
                    id => id.map(str::to_owned),
                };
                let params = match self.params.map(RawValue::get) {
                    None | Some("null") => "{}",
                    Some(params) => params,
                };
                Ok(Message::Call(Call { id, method, params: Zeroizing::new(params.to_owned()) }))
            }
            (None, Some(result), None) => {
                Ok(Message::Reply(Reply { id: number(self.id), outcome: Ok(Zeroizing::new(result.get().to_owned())) }))
            }
            (None, None, Some(error)) => Ok(Message::Reply(Reply { id: number(self.id), outcome: Err(error) })),
            _ => invalid("neither a call (\"method\") nor an answer (\"result\" or \"error\")"),
        }
    }
}

fn number(id: Option<&RawValue>) -> Option<u64> {
    id?.get().parse().ok()
}

fn unreadable(error: &serde_json::Error) -> RpcError {
    let column = error.column();
    if error.is_data() {
        let what = expectation(error);
        RpcError::new(codes::INVALID_REQUEST, format!("no JSON-RPC message: {what} (column {column})"))
    } else {
        RpcError::new(codes::PARSE, format!("the line is not JSON (column {column})"))
    }
}

/// What serde expected, without what it got: its own messages quote values, which may be secrets.
fn expectation(error: &serde_json::Error) -> String {
    if !error.is_data() {
        return skald_common::payload::describe(error);
    }
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    if !["invalid type: ", "invalid value: ", "invalid length ", "unknown "].iter().any(|start| text.starts_with(start))
    {
        // A missing or duplicate field, or a message of our own types, which quote nothing.
        return text.to_owned();
    }
    match text.rsplit_once(", expected ") {
        // A struct's name in the program means nothing to the caller.
        Some((_, expected)) if expected.starts_with("struct ") => "expected an object".to_owned(),
        Some((_, expected)) => format!("expected {expected}"),
        None => "the value is not valid".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use skald_common::payload::{RawJson, SecretObject};

    use super::*;

    fn call(line: &str) -> Call {
        match Message::parse(line.as_bytes()) {
            Ok(Message::Call(call)) => call,
            other => panic!("{other:?}"),
        }
    }

    fn code(line: &str) -> i64 {
        Message::parse(line.as_bytes()).expect_err(line).code
    }

    #[test]
    fn ids_come_back_as_they_were_written() {
        for id in ["1", "-7", "1.50", "\"a\\u0062\"", "null", "12345678901234567890123"] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m","new":1}}"#);
            assert_eq!(call(&line).id.as_deref(), Some(id));
        }
        assert_eq!(call(r#"{"jsonrpc":"2.0","method":"m"}"#).id, None);
    }

    #[test]
    fn what_is_no_message_is_told_apart_from_what_is_no_json() {
        for line in ["", "x", "{", r#"{"jsonrpc":"2.0","method":"m""#, r#"{"jsonrpc":"2.0"}}"#] {
            assert_eq!(code(line), codes::PARSE, "{line}");
        }
        assert_eq!(Message::parse(b"{\"jsonrpc\":\"2.0\",\"method\":\"\xff\"}").unwrap_err().code, codes::PARSE);
        for line in [
            "[]",
            "5",
            "{}",
            r#"{"method":"m"}"#,
            r#"{"jsonrpc":"1.0","method":"m"}"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
            r#"{"jsonrpc":"2.0","id":{},"method":"m"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":5}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"m","result":1}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":""}}"#,
        ] {
            assert_eq!(code(line), codes::INVALID_REQUEST, "{line}");
        }
    }

    #[test]
    fn replies_are_matched_by_number() {
        let reply = |line: &str| match Message::parse(line.as_bytes()) {
            Ok(Message::Reply(reply)) => reply,
            other => panic!("{other:?}"),
        };
        let ok = reply(r#"{"jsonrpc":"2.0","id":7,"result":null}"#);
        assert_eq!((ok.id, ok.outcome.unwrap().as_str()), (Some(7), "null"));
        let failed = reply(r#"{"jsonrpc":"2.0","id":8,"error":{"code":-1,"message":"no","data":[1]}}"#);
        assert_eq!((failed.id, failed.outcome.unwrap_err().code), (Some(8), -1));
        assert_eq!(reply(r#"{"jsonrpc":"2.0","id":"x","result":1}"#).id, None);
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct Params {
        count: u32,
        #[serde(default)]
        items: Vec<Item>,
        #[serde(default)]
        secret: Option<SecretObject>,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct Item {
        raw: RawJson,
        kind: skald_common::payload::Decision,
    }

    #[test]
    fn wrong_parameters_are_named_with_their_place_and_without_their_content() {
        let error = |params: &str| {
            let line = format!(r#"{{"jsonrpc":"2.0","method":"m","params":{params}}}"#);
            let error = call(&line).params::<Params>().unwrap_err();
            assert_eq!(error.code, codes::INVALID_PARAMS);
            assert!(!error.message.contains("hunter2"), "{}", error.message);
            error.message
        };
        assert_eq!(error("{}"), "missing field `count`");
        assert_eq!(error(r#"{"count":"hunter2"}"#), "count: expected u32");
        assert_eq!(error(r#"{"count":-1}"#), "count: expected u32");
        assert_eq!(error("[]"), "expected an object");
        assert_eq!(error(r#""hunter2, expected hunter""#), "expected an object");
        assert_eq!(
            error(r#"{"count":1,"items":[{"raw":{},"kind":"approved"},{"raw":{},"kind":"hunter2"}]}"#),
            "items[1].kind: expected `approved` or `rejected`"
        );
        assert_eq!(error(r#"{"count":1,"secret":"hunter2"}"#), "secret: expected a map");
        let fine =
            call(r#"{"jsonrpc":"2.0","method":"m","params":{"count":1,"items":[{"raw":1.50,"kind":"approved"}]}}"#);
        assert_eq!(fine.params::<Params>().unwrap().items[0].raw.get(), "1.50");
        assert!(
            call(r#"{"jsonrpc":"2.0","method":"m","params":null}"#).params::<serde_json::Value>().unwrap().is_object()
        );
    }

    proptest! {
        #[test]
        fn noise_never_panics(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Message::parse(&line);
        }

        #[test]
        fn mangled_messages_never_panic(at in 0..90_usize, byte: u8) {
            let mut line = br#"{"jsonrpc":"2.0","id":1,"method":"inbox.sync","params":{"approvals":[{"a":[1,{"b":2}]}]}}"#.to_vec();
            if let Some(place) = line.get_mut(at) {
                *place = byte;
            }
            if let Ok(Message::Call(call)) = Message::parse(&line) {
                let _ = call.params::<Params>();
            }
        }
    }

    #[test]
    fn deep_nesting_is_an_error_and_no_overflow() {
        let deep =
            format!(r#"{{"jsonrpc":"2.0","method":"m","params":{}{}}}"#, "[".repeat(200_000), "]".repeat(200_000));
        if let Ok(Message::Call(call)) = Message::parse(deep.as_bytes()) {
            assert!(call.params::<serde_json::Value>().is_err());
        }
    }
}
