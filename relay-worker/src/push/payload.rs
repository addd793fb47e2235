//! What a push carries, for all services: the sealed message, or only word that there is one.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::Job;

/// The longest base64 text of a sealed message that travels along. Deployed relays decide on this very number.
const MAX_CONTENT: usize = 3500;

/// How much of the message goes along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Payload {
    /// The sealed message.
    Content,
    /// Nothing: the device is to connect.
    Wake,
}

impl Payload {
    pub(super) fn of(job: &Job) -> Self {
        let length = base64::encoded_len(job.sealed.ciphertext.len(), true);
        if length.is_some_and(|length| length <= MAX_CONTENT) { Self::Content } else { Self::Wake }
    }

    /// The object `d` (push protocol): the same names for every service, save one for FCM. `wake` is what the mark of a wake push is.
    pub(super) fn data(self, job: &Job, wake: impl Into<Value>) -> Value {
        let namespace = job.namespace.to_hex();
        match self {
            Self::Content => json!({
                "ns": namespace,
                "from": job.sealed.sender.to_hex(),
                "n": hex::encode(job.sealed.nonce),
                "c": STANDARD.encode(&job.sealed.ciphertext),
            }),
            Self::Wake => json!({"ns": namespace, "wake": wake.into()}),
        }
    }
}

/// The collapse id as services know it: 32 hexadecimal digits.
pub(super) fn collapse(job: &Job) -> Option<String> {
    job.collapse.map(hex::encode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::tests::job;

    #[test]
    fn a_message_travels_along_up_to_3500_characters_of_base64() {
        // 2,625 bytes are exactly 3,500 characters.
        for (length, payload) in [
            (0, Payload::Content),
            (2624, Payload::Content),
            (2625, Payload::Content),
            (2626, Payload::Wake),
            (65_536, Payload::Wake),
        ] {
            assert_eq!(Payload::of(&job(2, "x", length)), payload, "{length}");
        }
        let Value::Object(data) = Payload::Content.data(&job(2, "x", 2625), true) else { panic!() };
        assert_eq!(data["c"].as_str().unwrap().len(), 3500);
    }
}
