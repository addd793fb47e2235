//! JSON-RPC error objects and our codes.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The codes of error objects (socket API, Errors).
pub mod codes {
    /// No JSON, or a line over the limit.
    pub const PARSE: i64 = -32700;
    /// JSON, but no JSON-RPC 2.0 message.
    pub const INVALID_REQUEST: i64 = -32600;
    /// This socket has no such method.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// The parameters are wrong: the message says what and where.
    pub const INVALID_PARAMS: i64 = -32602;
    /// The first call was not `hello`.
    pub const HELLO_FIRST: i64 = -32000;
    /// Another protocol version; `data.supported` lists ours.
    pub const PROTOCOL: i64 = -32001;
    /// A live connection has this name.
    pub const NAME_TAKEN: i64 = -32002;
    /// The daemon could not do it; `data.reason` names why.
    pub const REFUSED: i64 = -32010;
}

/// An error object, as sent and as received.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct RpcError {
    /// One of [`codes`], as far as we sent it.
    pub code: i64,
    /// One line for a person.
    pub message: String,
    /// For programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl RpcError {
    /// Without data.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// With data.
    #[must_use]
    pub fn with_data(self, data: Value) -> Self {
        Self { data: Some(data), ..self }
    }

    /// -32602.
    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(codes::INVALID_PARAMS, message)
    }

    /// -32601.
    pub fn method_not_found(method: &str, known: &[&str]) -> Self {
        let method: String = method.chars().take(64).collect();
        Self::new(codes::METHOD_NOT_FOUND, format!("no method {method:?} on this socket; it has {}", known.join(", ")))
    }
}
