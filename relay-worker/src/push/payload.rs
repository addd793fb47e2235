//! What a push carries, for all services: the sealed message, or only word that there is one.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::Job;
use super::json::Members;

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

    /// The object `d` (push protocol).
    pub(super) fn data(self, job: &Job, names: Names, members: &mut Members<'_>) {
        members.text("ns", &job.namespace.to_hex());
        match self {
            Self::Content => {
                members.text(names.from, &job.sealed.sender.to_hex());
                members.text("n", &hex::encode(job.sealed.nonce));
                members.text("c", &STANDARD.encode(&job.sealed.ciphertext));
            }
            Self::Wake => members.raw("wake", names.wake),
        }
    }
}

/// What differs between services.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    /// What the sender is called.
    from: &'static str,
    /// The mark of a wake push, in JSON.
    wake: &'static str,
}

impl Names {
    /// Where we may choose.
    pub(super) const OURS: Self = Self { from: "from", wake: "true" };
    /// FCM has strings alone, and refuses a member `from`, which it keeps for itself.
    pub(super) const FCM: Self = Self { from: "sender", wake: r#""true""# };
}

/// The collapse id as services know it: 32 hexadecimal digits.
pub(super) fn collapse(job: &Job) -> Option<String> {
    job.collapse.map(hex::encode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::json::object;
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
        let data = object(|data| Payload::Content.data(&job(2, "x", 2625), Names::OURS, data));
        let data: serde_json::Value = serde_json::from_str(&data).unwrap();
        assert_eq!(data["c"].as_str().unwrap().len(), 3500);
    }
}
