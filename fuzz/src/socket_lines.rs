//! The byte stream of a client of the daemon's sockets: lines, JSON-RPC messages, parameters.

use serde_json::Value;
use skald_agentd::hub::api::AnswerContent;
use skald_agentd::rpc::{Call, LineReader, Message, RpcError, codes, encode};
use skald_common::payload::{Notification, RawJson};

use crate::tape::Tape;

/// The target.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let cut = usize::from(tape.byte());
    let stream = tape.rest();
    let whole = lines(std::iter::once(stream));
    let parts = lines(stream.chunks(cut.max(1)));
    assert_eq!(whole, parts, "lines depend on how the stream was cut");
    for line in whole {
        assert!(!line.contains(&b'\n'));
        read(&line);
    }
}

fn lines<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let mut reader = LineReader::new();
    let mut lines = Vec::new();
    for part in parts {
        reader.push(part);
        while let Some(line) = reader.next_line() {
            lines.push(line.expect("shorter than the limit").to_vec());
        }
    }
    lines
}

fn read(line: &[u8]) {
    match Message::parse(line) {
        Ok(Message::Call(call)) => answer(&call),
        Ok(Message::Reply(reply)) => {
            if let Ok(result) = &reply.outcome {
                serde_json::from_str::<&serde_json::value::RawValue>(result).expect("a result is JSON");
            }
        }
        Err(error) => {
            assert!(matches!(error.code, codes::PARSE | codes::INVALID_REQUEST));
            complain("null", &error);
        }
    }
}

/// Whatever can be called can be answered: one line of JSON with the caller's own id.
fn answer(call: &Call) {
    if let Some(id) = &call.id {
        let line = encode::result(id, b"{}");
        let read: Value = one_line(&line);
        assert_eq!(Some(&read["id"]), serde_json::from_str(id).ok().as_ref());
    }
    complain(call.id.as_deref().unwrap_or("null"), &RpcError::method_not_found(&call.method, &["status"]));
    // The shapes that the methods take.
    let errors = [
        call.params::<Notification>().err(),
        call.params::<RawJson>().err(),
        call.params::<AnswerContent>().err(),
        call.params::<Vec<u32>>().err(),
        call.params::<std::collections::BTreeMap<String, skald_agentd::config::Value>>().err(),
    ];
    for error in errors.into_iter().flatten() {
        assert_eq!(error.code, codes::INVALID_PARAMS);
        complain("null", &error);
    }
}

fn complain(id: &str, error: &RpcError) {
    let read: Value = one_line(&encode::error(id, error));
    assert_eq!(read["error"]["code"], error.code);
}

fn one_line(line: &[u8]) -> Value {
    let text = line.strip_suffix(b"\n").expect("a line ends");
    assert!(!text.contains(&b'\n'), "an answer of two lines");
    serde_json::from_slice(text).expect("an answer is JSON")
}
