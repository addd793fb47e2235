//! A type for each fixed-length value of the protocol.
//!
//! Parse, don't validate: whoever holds an [`Ed25519Public`] holds 32 bytes. In text all of them are hexadecimal, read in
//! either case and written in lower case (protocol, Encodings). `Debug` shows the first 8 digits, which is all that logs
//! may show, and nothing at all of a secret.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// A value had the wrong length or was not hexadecimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Not as many bytes as the type has.
    #[error("expected {expected} bytes, got {got}")]
    Length {
        /// What the type needs.
        expected: usize,
        /// What was given.
        got: usize,
    },
    /// Not hexadecimal text of the right length.
    #[error("expected {expected} hexadecimal digits")]
    Hex {
        /// Digits that the type needs.
        expected: usize,
    },
}

fn parse_hex<const N: usize>(text: &str) -> Result<[u8; N], IdError> {
    let mut bytes = [0; N];
    hex::decode_to_slice(text, &mut bytes).map_err(|_| IdError::Hex { expected: N * 2 })?;
    Ok(bytes)
}

fn parse_bytes<const N: usize>(bytes: &[u8]) -> Result<[u8; N], IdError> {
    bytes.try_into().map_err(|_| IdError::Length { expected: N, got: bytes.len() })
}

macro_rules! public_id {
    ($(#[$doc:meta])* $name:ident, $len:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; $len]);

        impl $name {
            /// Length in bytes.
            pub const LEN: usize = $len;

            /// From raw bytes.
            pub const fn new(bytes: [u8; $len]) -> Self {
                Self(bytes)
            }

            /// From a wire field; any other length is an error.
            pub fn from_slice(bytes: &[u8]) -> Result<Self, IdError> {
                parse_bytes(bytes).map(Self)
            }

            /// From hexadecimal text in either case.
            pub fn from_hex(text: &str) -> Result<Self, IdError> {
                parse_hex(text).map(Self)
            }

            /// The raw bytes.
            pub const fn as_bytes(&self) -> &[u8; $len] {
                &self.0
            }

            /// The raw bytes as the wire's type.
            pub fn to_vec(&self) -> Vec<u8> {
                self.0.to_vec()
            }

            /// Lower-case hexadecimal.
            pub fn to_hex(&self) -> String {
                hex::encode(self.0)
            }

            /// The first 8 hexadecimal digits: what logs may show.
            pub fn short(&self) -> String {
                self.to_hex().chars().take(8).collect()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.to_hex())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({}…)", stringify!($name), self.short())
            }
        }

        impl std::str::FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::from_hex(text)
            }
        }

        impl TryFrom<&[u8]> for $name {
            type Error = IdError;
            fn try_from(bytes: &[u8]) -> Result<Self, IdError> {
                Self::from_slice(bytes)
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.to_hex())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                Self::from_hex(&text).map_err(de::Error::custom)
            }
        }
    };
}

public_id!(
    /// A person's zone on a relay: the hash of the agent's signing key (protocol, Identity).
    NamespaceId,
    32
);
impl NamespaceId {
    /// Lower-case base32 without padding (RFC 4648), 52 characters: a namespace as a host name's label (wire protocol,
    /// Endpoints).
    pub fn to_base32(&self) -> String {
        base32(&self.0)
    }
}

fn base32(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let digit = |five: u32| char::from(ALPHABET.get((five & 31) as usize).copied().unwrap_or_default());
    let mut text = String::new();
    let (mut bits, mut held) = (0_u32, 0_u32);
    for byte in bytes {
        bits = (bits << 8) | u32::from(*byte);
        held += 8;
        while held >= 5 {
            held -= 5;
            text.push(digit(bits >> held));
        }
    }
    if held > 0 {
        text.push(digit(bits << (5 - held)));
    }
    text
}

public_id!(
    /// A signing key; names a member of a namespace.
    Ed25519Public,
    32
);
public_id!(
    /// A key-agreement key.
    X25519Public,
    32
);
public_id!(
    /// A challenge of the relay, fresh per connection.
    ChallengeNonce,
    32
);
public_id!(
    /// Names one pipe, single use.
    ConnectionId,
    32
);
public_id!(
    /// The hash of the key that must be at the other end of a pipe.
    DestHash,
    32
);
public_id!(
    /// An Ed25519 signature.
    Signature,
    64
);
public_id!(
    /// The nonce of a sealed message: direction (4) and counter (8, big endian).
    MessageNonce,
    12
);

/// A pairing token: a bearer secret, single use, compared in constant time (protocol, Pairing token).
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct PairingToken([u8; 32]);

impl PairingToken {
    /// From random bytes.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// From a wire field; any other length than 32 is an error.
    pub fn from_slice(bytes: &[u8]) -> Result<Self, IdError> {
        parse_bytes(bytes).map(Self)
    }

    /// From hexadecimal text in either case.
    pub fn from_hex(text: &str) -> Result<Self, IdError> {
        parse_hex(text).map(Self)
    }

    /// The secret itself.
    pub const fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// The secret in lower-case hexadecimal, for the QR code alone.
    pub fn expose_hex(&self) -> String {
        hex::encode(self.0)
    }
}

impl PartialEq for PairingToken {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for PairingToken {}

impl fmt::Debug for PairingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PairingToken(…)")
    }
}

impl Serialize for PairingToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.expose_hex())
    }
}

impl<'de> Deserialize<'de> for PairingToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::from_hex(&text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_is_read_in_either_case_and_written_in_lower() {
        let upper = "AB".repeat(32);
        let id = NamespaceId::from_hex(&upper).unwrap();
        assert_eq!(id.to_hex(), upper.to_lowercase());
        assert_eq!(id.to_string(), upper.to_lowercase());
    }

    #[test]
    fn wrong_lengths_and_digits_are_refused() {
        for text in ["", "ab", &"ab".repeat(31), &"ab".repeat(33), &"xy".repeat(32), &format!(" {}", "ab".repeat(32))] {
            assert_eq!(Ed25519Public::from_hex(text), Err(IdError::Hex { expected: 64 }), "{text:?}");
        }
        assert_eq!(MessageNonce::from_slice(&[0; 11]), Err(IdError::Length { expected: 12, got: 11 }));
    }

    #[test]
    fn base32_is_the_standards() {
        for (bytes, text) in [("", ""), ("f", "my"), ("fo", "mzxq"), ("foobar", "mzxw6ytboi")] {
            assert_eq!(base32(bytes.as_bytes()), text);
        }
        assert_eq!(NamespaceId::new([0xff; 32]).to_base32().len(), 52);
    }

    #[test]
    fn debug_shows_eight_digits_of_a_key_and_nothing_of_a_token() {
        assert_eq!(format!("{:?}", X25519Public::new([0xab; 32])), "X25519Public(abababab…)");
        assert_eq!(format!("{:?}", PairingToken::new([0xab; 32])), "PairingToken(…)");
    }
}
