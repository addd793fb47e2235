//! Message encryption for Web Push: aes128gcm (RFC 8188) with keys by RFC 8291, one record.

use aes_gcm::Aes128Gcm;
use aes_gcm::aead::{Aead as _, KeyInit as _};
use hkdf::Hkdf;
use p256::elliptic_curve::sec1::ToSec1Point as _;
use p256::{PublicKey, Sec1Point, SecretKey};
use sha2::Sha256;

/// The largest body that every push service takes, bytes; the record size as well.
pub(super) const MAX_BODY: usize = 4096;
/// Salt, record size, length of the key, key.
const HEADER: usize = 16 + 4 + 1 + 65;
/// What marks the last record, and the tag.
const TRAILER: usize = 1 + 16;
/// The longest plaintext, bytes.
pub(super) const MAX_PLAINTEXT: usize = MAX_BODY - HEADER - TRAILER;

/// Whom a message is encrypted for.
pub(super) struct Recipient {
    pub(super) key: PublicKey,
    pub(super) auth: [u8; 16],
}

/// The body for one recipient. `ephemeral` and `salt` serve once. `None` if the plaintext is too long.
pub(super) fn encrypt(
    recipient: &Recipient,
    ephemeral: &SecretKey,
    salt: [u8; 16],
    plaintext: &[u8],
) -> Option<Vec<u8>> {
    if plaintext.len() > MAX_PLAINTEXT {
        return None;
    }
    let (ours, theirs) = (point(&ephemeral.public_key()), point(&recipient.key));
    let shared = ephemeral.diffie_hellman(&recipient.key);
    let info = [b"WebPush: info\0".as_slice(), theirs.as_bytes(), ours.as_bytes()].concat();
    let secret: [u8; 32] = derive(&recipient.auth, shared.raw_secret_bytes(), &info)?;
    let key: [u8; 16] = derive(&salt, &secret, b"Content-Encoding: aes128gcm\0")?;
    let nonce: [u8; 12] = derive(&salt, &secret, b"Content-Encoding: nonce\0")?;
    let sealed = Aes128Gcm::new(&key.into()).encrypt(&nonce.into(), [plaintext, &[2]].concat().as_slice()).ok()?;
    let record_size = u32::try_from(MAX_BODY).ok()?.to_be_bytes();
    let key_length = [u8::try_from(ours.as_bytes().len()).ok()?];
    Some([&salt, record_size.as_slice(), &key_length, ours.as_bytes(), &sealed].concat())
}

/// Uncompressed, 65 bytes.
fn point(key: &PublicKey) -> Sec1Point {
    key.to_sec1_point(false)
}

fn derive<const N: usize>(salt: &[u8], secret: &[u8], info: &[u8]) -> Option<[u8; N]> {
    let mut out = [0; N];
    Hkdf::<Sha256>::new(Some(salt), secret).expand(info, &mut out).ok()?;
    Some(out)
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;

    fn bytes(text: &str) -> Vec<u8> {
        URL_SAFE_NO_PAD.decode(text).unwrap()
    }

    #[test]
    fn the_example_of_rfc_8291_comes_out_byte_for_byte() {
        let recipient = Recipient {
            key: PublicKey::from_sec1_bytes(&bytes(
                "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
            ))
            .unwrap(),
            auth: bytes("BTBZMqHH6r4Tts7J_aSIgg").try_into().unwrap(),
        };
        let ephemeral = SecretKey::from_slice(&bytes("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw")).unwrap();
        let salt = bytes("DGv6ra1nlYgDCS1FRnbzlw").try_into().unwrap();
        let body = encrypt(&recipient, &ephemeral, salt, b"When I grow up, I want to be a watermelon").unwrap();
        let expected = concat!(
            "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27ml",
            "mlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6cVPT",
            "pK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN",
        );
        assert_eq!(URL_SAFE_NO_PAD.encode(body), expected);
    }

    #[test]
    fn the_longest_plaintext_fills_a_body_and_no_longer_one_is_taken() {
        let ephemeral = SecretKey::from_slice(&[1; 32]).unwrap();
        let recipient = Recipient { key: SecretKey::from_slice(&[2; 32]).unwrap().public_key(), auth: [3; 16] };
        let body = |length| encrypt(&recipient, &ephemeral, [4; 16], &vec![b'x'; length]);
        assert_eq!(body(MAX_PLAINTEXT).unwrap().len(), MAX_BODY);
        assert!(body(MAX_PLAINTEXT + 1).is_none());
    }
}
