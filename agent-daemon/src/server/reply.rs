//! What a method gives: a result as JSON, or an error.

use serde::Serialize;
use serde_json::json;

use crate::config::{ChangeError, ConfigError};
use crate::hub::api::ApiError;
use crate::rpc::{RpcError, SecretBuf, codes, encode};

/// The outcome of a call.
pub(super) type Reply = Result<SecretBuf, RpcError>;

/// A result.
#[expect(clippy::unnecessary_wraps, reason = "every method ends in a reply")]
pub(super) fn ok(value: &impl Serialize) -> Reply {
    Ok(encode::value(value))
}

/// The result of methods that have nothing to say.
pub(super) fn done() -> Reply {
    ok(&json!({}))
}

impl From<ApiError> for RpcError {
    fn from(error: ApiError) -> Self {
        let code = match error {
            ApiError::NameTaken(_) => codes::NAME_TAKEN,
            ApiError::InvalidParams(_) | ApiError::BadDevicePrefix => codes::INVALID_PARAMS,
            _ => codes::REFUSED,
        };
        Self::new(code, error.to_string()).with_data(json!({"reason": error.reason()}))
    }
}

impl From<ChangeError> for RpcError {
    fn from(error: ChangeError) -> Self {
        let message = error.to_string();
        match error {
            ChangeError::Hub(error) => error.into(),
            ChangeError::Config(ConfigError::InCall(_) | ConfigError::Overridden { .. }) => {
                Self::invalid_params(message).with_data(json!({"reason": "invalid_params"}))
            }
            ChangeError::Config(_) => Self::new(codes::REFUSED, message).with_data(json!({"reason": "config_file"})),
        }
    }
}
