//! The content of the pairing QR code (protocol, Pairing).

use serde::{Deserialize, Serialize};

use crate::crypto::namespace_id;
use crate::ids::{Ed25519Public, NamespaceId, PairingToken, X25519Public};

/// What a phone needs to pair: where the relay is, whom to trust, and the token. The token is a bearer secret: shown on a
/// screen, never logged, never on disk. Field order is fixed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairingQr {
    v: u32,
    /// WebSocket URL of the relay's control socket.
    pub relay_url: String,
    /// The agent's namespace.
    pub namespace_id: NamespaceId,
    /// The agent's signing key.
    pub agent_ed25519_pub: Ed25519Public,
    /// The agent's agreement key.
    pub agent_x25519_pub: X25519Public,
    /// Single use.
    pub pairing_token: PairingToken,
}

/// Why a pairing code was refused. Says nothing of its content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QrError {
    /// Not the JSON object of a pairing code.
    #[error("this is no pairing code: {0}")]
    Malformed(String),
    /// Another version.
    #[error("this pairing code has version {0}; only version 1 is known")]
    Version(u64),
    /// The namespace is not the agent's.
    #[error("this pairing code contradicts itself: the namespace does not belong to the agent's key")]
    Namespace,
    /// Not a ws:// or wss:// address.
    #[error("this pairing code names a relay that is no ws:// or wss:// address")]
    Url,
}

impl PairingQr {
    /// A code for the given agent, version 1.
    pub fn new(relay_url: String, ed25519: Ed25519Public, x25519: X25519Public, token: PairingToken) -> Self {
        Self {
            v: 1,
            relay_url,
            namespace_id: namespace_id(&ed25519),
            agent_ed25519_pub: ed25519,
            agent_x25519_pub: x25519,
            pairing_token: token,
        }
    }

    /// Reads a scanned code and checks that it is consistent.
    pub fn parse(text: &str) -> Result<Self, QrError> {
        #[derive(Deserialize)]
        struct Version {
            v: u64,
        }
        let malformed = |error: serde_json::Error| QrError::Malformed(crate::payload::describe(&error));
        let version: Version = serde_json::from_str(text).map_err(malformed)?;
        if version.v != 1 {
            return Err(QrError::Version(version.v));
        }
        let code: Self = serde_json::from_str(text).map_err(malformed)?;
        if namespace_id(&code.agent_ed25519_pub) != code.namespace_id {
            return Err(QrError::Namespace);
        }
        if !(code.relay_url.starts_with("wss://") || code.relay_url.starts_with("ws://")) {
            return Err(QrError::Url);
        }
        Ok(code)
    }

    /// The JSON that the QR code carries.
    pub fn to_json(&self) -> zeroize::Zeroizing<String> {
        // Strings and integers alone: serialization cannot fail.
        zeroize::Zeroizing::new(serde_json::to_string(self).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code() -> PairingQr {
        PairingQr::new(
            "wss://relay.example/v1/ws".into(),
            Ed25519Public::new([1; 32]),
            X25519Public::new([2; 32]),
            PairingToken::new([3; 32]),
        )
    }

    #[test]
    fn fields_stand_in_the_fixed_order_in_lower_case_hex() {
        let expected = format!(
            r#"{{"v":1,"relay_url":"wss://relay.example/v1/ws","namespace_id":"{}","agent_ed25519_pub":"{}","agent_x25519_pub":"{}","pairing_token":"{}"}}"#,
            namespace_id(&Ed25519Public::new([1; 32])),
            "01".repeat(32),
            "02".repeat(32),
            "03".repeat(32)
        );
        assert_eq!(*code().to_json(), expected);
        assert_eq!(PairingQr::parse(&expected), Ok(code()));
    }

    #[test]
    fn unknown_fields_are_ignored_and_wrong_ones_are_named_without_their_content() {
        let json = code().to_json();
        assert_eq!(PairingQr::parse(&json.replace("{\"v\"", "{\"new\":1,\"v\"")), Ok(code()));
        assert_eq!(PairingQr::parse(&json.replace("\"v\":1", "\"v\":2")), Err(QrError::Version(2)));
        assert_eq!(PairingQr::parse(&json.replace(&"01".repeat(32), &"04".repeat(32))), Err(QrError::Namespace));
        assert_eq!(PairingQr::parse(&json.replace("wss:", "http:")), Err(QrError::Url));
        for text in ["", "{}", "[]", "https://example", &json[..40], &json.replace(&"03".repeat(32), &"03".repeat(31))]
        {
            let error = PairingQr::parse(text).unwrap_err();
            assert!(matches!(error, QrError::Malformed(_)), "{text}");
            assert!(!error.to_string().contains("0303"), "{error}");
        }
    }
}
