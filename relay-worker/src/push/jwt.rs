//! JSON Web Tokens, as far as push services want them: ES256 with deterministic signatures (RFC 6979), so that everybody
//! who holds the key makes the same token of the same claims; and of RS256 what is to be signed.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use p256::SecretKey;
use p256::ecdsa::signature::Signer as _;
use p256::ecdsa::{Signature, SigningKey};
use p256::elliptic_curve::sec1::ToSec1Point as _;

/// How long one token serves, milliseconds. Apple accepts one for an hour, and a new one not more often than every 20
/// minutes; the objects of a relay cannot talk to each other, so all of them take the window that the clock says.
const WINDOW_MS: u64 = 30 * 60 * 1000;

/// The beginning of the window that this moment is in, seconds.
pub(super) const fn window_secs(now_ms: u64) -> u64 {
    now_ms / WINDOW_MS * (WINDOW_MS / 1000)
}

/// A private key on P-256.
pub(super) struct Es256(SecretKey);

impl Es256 {
    pub(super) const fn new(key: SecretKey) -> Self {
        Self(key)
    }

    /// The public key, uncompressed: 65 bytes, base64url.
    pub(super) fn public(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0.public_key().to_sec1_point(false).as_bytes())
    }

    /// A signed token.
    pub(super) fn token(&self, header: &str, claims: &str) -> String {
        let input = signing_input(header, claims);
        let signature: Signature = SigningKey::from(&self.0).sign(input.as_bytes());
        signed(input, signature.to_bytes().as_slice())
    }
}

/// What is signed.
pub(super) fn signing_input(header: &str, claims: &str) -> String {
    format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims))
}

/// The token, of what was signed and the signature.
pub(super) fn signed(input: String, signature: &[u8]) -> String {
    input + "." + &URL_SAFE_NO_PAD.encode(signature)
}

#[cfg(test)]
pub(super) mod tests {
    use p256::ecdsa::VerifyingKey;
    use p256::ecdsa::signature::Verifier as _;
    use serde_json::{Value, json};

    use super::*;

    /// Header and claims of a token whose signature fits the key.
    pub(in super::super) fn verified(token: &str, public: &[u8]) -> (Value, Value) {
        let (input, signature) = token.rsplit_once('.').unwrap();
        let signature = Signature::from_slice(&URL_SAFE_NO_PAD.decode(signature).unwrap()).unwrap();
        let key = VerifyingKey::from_sec1_bytes(public).unwrap();
        key.verify(input.as_bytes(), &signature).expect("the signature fits");
        let (header, claims) = input.split_once('.').unwrap();
        let part = |text| serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).unwrap()).unwrap();
        (part(header), part(claims))
    }

    #[test]
    fn the_same_claims_make_the_same_token_which_verifies() {
        let key = || Es256::new(SecretKey::from_slice(&[7; 32]).unwrap());
        let claims = json!({"iss": "TEAM", "iat": 1_700_000_000});
        let token = key().token(r#"{"alg":"ES256","kid":"K"}"#, &claims.to_string());
        assert_eq!(token, key().token(r#"{"alg":"ES256","kid":"K"}"#, &claims.to_string()));
        let public = URL_SAFE_NO_PAD.decode(key().public()).unwrap();
        assert_eq!(verified(&token, &public), (json!({"alg": "ES256", "kid": "K"}), claims));
    }

    #[test]
    fn signatures_are_those_of_rfc_6979() {
        // RFC 6979, A.2.5: P-256, SHA-256, message "sample".
        let hex = |text: &str| hex::decode(text).unwrap();
        let key =
            SecretKey::from_slice(&hex("C9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721")).unwrap();
        let signature: Signature = SigningKey::from(&key).sign(b"sample");
        let expected = hex(concat!(
            "EFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716",
            "F7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8",
        ));
        assert_eq!(signature.to_bytes().as_slice(), expected);
    }

    #[test]
    fn windows_are_half_hours_and_never_ahead_of_the_clock() {
        assert_eq!(window_secs(0), 0);
        assert_eq!(window_secs(1_799_999), 0);
        assert_eq!(window_secs(1_800_000), 1800);
        for now in [1_764_557_999_999, 1_764_558_000_000, 1_764_558_000_001] {
            let start = window_secs(now) * 1000;
            assert!(start <= now && now < start + WINDOW_MS);
        }
    }
}
