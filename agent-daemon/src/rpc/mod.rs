//! JSON-RPC 2.0, one JSON object per line, both directions at once (socket API).
//!
//! [`LineReader`] cuts a byte stream into lines, [`Message::parse`] reads one, the functions of [`encode`] write one. Lines
//! may carry a secret (the value that a person typed into a phone), so every buffer here is wiped when it is dropped or
//! outgrown, and no error quotes what it is about. No socket is opened here: server and command line share this.

pub mod encode;
mod error;
mod line;
mod message;
mod secret;

pub use error::{RpcError, codes};
pub use line::{LineReader, MAX_LINE, TooLong};
pub use message::{Call, Message, Reply, parse_params};
pub use secret::SecretBuf;
