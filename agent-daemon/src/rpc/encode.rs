//! Writes messages as lines, newline included.

use std::io::Write;

use serde::Serialize;

use super::{RpcError, SecretBuf};

/// `null` as the id of an answer to something that could not be read.
pub const NO_ID: &str = "null";

/// A call that wants an answer.
pub fn request(id: u64, method: &str, params: &impl Serialize) -> SecretBuf {
    line(|out| {
        write!(out, r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":"#)?;
        put(out, params)
    })
}

/// A call that wants none.
pub fn notification(method: &str, params: &impl Serialize) -> SecretBuf {
    line(|out| {
        write!(out, r#"{{"jsonrpc":"2.0","method":"{method}","params":"#)?;
        put(out, params)
    })
}

/// The answer to the request with this id (JSON text), given a result that is JSON already.
pub fn result(id: &str, result: &[u8]) -> SecretBuf {
    line(|out| {
        write!(out, r#"{{"jsonrpc":"2.0","id":{id},"result":"#)?;
        out.write_all(result)
    })
}

/// The error answer to the request with this id (JSON text).
pub fn error(id: &str, error: &RpcError) -> SecretBuf {
    line(|out| {
        write!(out, r#"{{"jsonrpc":"2.0","id":{id},"error":"#)?;
        put(out, error)
    })
}

/// A value as JSON.
pub fn value(value: &impl Serialize) -> SecretBuf {
    let mut out = SecretBuf::new();
    put(&mut out, value).expect(CANNOT_FAIL);
    out
}

/// Writing goes to memory, and what we send has string keys and no failing `Serialize`.
const CANNOT_FAIL: &str = "serialization to memory";

fn line(write: impl FnOnce(&mut SecretBuf) -> std::io::Result<()>) -> SecretBuf {
    let mut out = SecretBuf::new();
    write(&mut out).expect(CANNOT_FAIL);
    out.extend(b"}\n");
    out
}

fn put(out: &mut SecretBuf, value: &impl Serialize) -> std::io::Result<()> {
    serde_json::to_writer(out, value).map_err(Into::into)
}
