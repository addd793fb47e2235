//! The receiving end of Web Push: a subscription's keys, and opening what was encrypted for it (RFC 8291, RFC 8188).
//!
//! A browser does this for a web page; this is for phones that have an endpoint of their own, as
//! `UnifiedPush` gives.

use std::fmt;

use aes_gcm::aead::AeadInOut;
use aes_gcm::aead::inout::InOutBuf;
use aes_gcm::{Aes128Gcm, KeyInit, Nonce, Tag};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hkdf::Hkdf;
use p256::elliptic_curve::sec1::ToSec1Point;
use p256::{PublicKey, SecretKey};
use sha2::Sha256;
use zeroize::Zeroizing;

/// A public key, uncompressed: what begins every body.
const POINT: usize = 65;
/// Salt, record size, length of the key.
const HEADER: usize = 16 + 4 + 1;
const TAG: usize = 16;
/// What stands behind the content of the last record, before its padding.
const LAST: u8 = 2;

/// Why a body does not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WebPushError {
    /// Not `aes128gcm` as Web Push has it: one record, and the sender's public key before it.
    #[error("the body is not encrypted as Web Push prescribes")]
    Form,
    /// Encrypted for another subscription, or changed on the way.
    #[error("the body does not open: it was encrypted for another subscription, or was changed")]
    Unreadable,
}

/// The secret half of a subscription. Wiped when dropped.
#[derive(Clone)]
pub struct WebPushKeys {
    private: SecretKey,
    auth: Zeroizing<[u8; 16]>,
}

impl WebPushKeys {
    /// From 32 and 16 random or saved bytes. `None` if the first are no private key, as about one in 2^32 are not.
    pub fn new(private: &[u8; 32], auth: &[u8; 16]) -> Option<Self> {
        let private = SecretKey::from_slice(private).ok()?;
        Some(Self { private, auth: Zeroizing::new(*auth) })
    }

    /// To be saved: the private key, and the auth secret.
    pub fn expose(&self) -> (Zeroizing<[u8; 32]>, &[u8; 16]) {
        (Zeroizing::new(self.private.to_bytes().into()), &self.auth)
    }

    /// `keys.p256dh` and `keys.auth` of the subscription.
    pub fn public(&self) -> (String, String) {
        (URL_SAFE_NO_PAD.encode(self.point()), URL_SAFE_NO_PAD.encode(*self.auth))
    }

    /// Whether this could be a body of Web Push. No JSON text has the 04 of an uncompressed point in it.
    pub fn looks_encrypted(body: &[u8]) -> bool {
        matches!(body.get(HEADER - 1..=HEADER), Some([65, 4]))
    }

    /// Opens a body.
    pub fn open(&self, body: &[u8]) -> Result<Zeroizing<Vec<u8>>, WebPushError> {
        let (salt, rest) = body.split_first_chunk::<16>().ok_or(WebPushError::Form)?;
        let (size, rest) = rest.split_first_chunk::<4>().ok_or(WebPushError::Form)?;
        let Some((&[length], rest)) = rest.split_first_chunk::<1>() else { return Err(WebPushError::Form) };
        let (point, record) = rest.split_first_chunk::<POINT>().ok_or(WebPushError::Form)?;
        let size = usize::try_from(u32::from_be_bytes(*size)).unwrap_or(usize::MAX);
        // RFC 8291, Section 4: a single record, which is the last.
        if usize::from(length) != POINT || point[0] != 4 || record.len() <= TAG || record.len() > size {
            return Err(WebPushError::Form);
        }
        let sender = PublicKey::from_sec1_bytes(point).map_err(|_| WebPushError::Form)?;
        let (key, nonce) = self.derive(&sender, point, salt);
        let (content, tag) = record.split_last_chunk::<TAG>().ok_or(WebPushError::Form)?;
        let mut plain = Zeroizing::new(content.to_vec());
        Aes128Gcm::new((&*key).into())
            .decrypt_inout_detached(&Nonce::from(nonce), b"", InOutBuf::from(plain.as_mut_slice()), &Tag::from(*tag))
            .map_err(|_| WebPushError::Unreadable)?;
        let end = plain.iter().rposition(|byte| *byte != 0).ok_or(WebPushError::Form)?;
        if plain[end] != LAST {
            return Err(WebPushError::Form);
        }
        plain.truncate(end);
        Ok(plain)
    }

    /// Key and nonce of the one record (RFC 8291, Section 3.4).
    fn derive(&self, sender: &PublicKey, point: &[u8; POINT], salt: &[u8; 16]) -> (Zeroizing<[u8; 16]>, [u8; 12]) {
        let shared = self.private.diffie_hellman(sender);
        let info = [b"WebPush: info\0", &self.point()[..], point].concat();
        let input = expand::<32>(&*self.auth, shared.raw_secret_bytes(), &info);
        let key = expand(salt, input.as_ref(), b"Content-Encoding: aes128gcm\0");
        let nonce = expand(salt, input.as_ref(), b"Content-Encoding: nonce\0");
        (key, *nonce)
    }

    fn point(&self) -> Vec<u8> {
        self.private.public_key().to_sec1_point(false).as_bytes().to_vec()
    }
}

impl fmt::Debug for WebPushKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebPushKeys(…)")
    }
}

fn expand<const N: usize>(salt: &[u8], secret: &[u8], info: &[u8]) -> Zeroizing<[u8; N]> {
    let mut out = Zeroizing::new([0; N]);
    let expanded = Hkdf::<Sha256>::new(Some(salt), secret).expand(info, out.as_mut());
    debug_assert!(expanded.is_ok(), "32 bytes is within HKDF's limit");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8291, Section 5 and Appendix A.
    const PRIVATE: &str = "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94";
    const AUTH: &str = "BTBZMqHH6r4Tts7J_aSIgg";
    const PUBLIC: &str = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
    const BODY: &str = "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN";

    fn bytes(text: &str) -> Vec<u8> {
        URL_SAFE_NO_PAD.decode(text).unwrap()
    }

    fn keys() -> WebPushKeys {
        WebPushKeys::new(&bytes(PRIVATE).try_into().unwrap(), &bytes(AUTH).try_into().unwrap()).unwrap()
    }

    /// Encrypts as an application server does, with any record size and any end of the content.
    fn encrypt(keys: &WebPushKeys, size: u32, padded: &[u8]) -> Vec<u8> {
        let server = SecretKey::from_slice(&[7; 32]).unwrap();
        let point: [u8; POINT] = server.public_key().to_sec1_point(false).as_bytes().try_into().unwrap();
        let salt = [9; 16];
        // The agreement is the same from both sides.
        let (key, nonce) = keys.derive(&server.public_key(), &point, &salt);
        let mut record = padded.to_vec();
        let tag = Aes128Gcm::new((&*key).into())
            .encrypt_inout_detached(&Nonce::from(nonce), b"", InOutBuf::from(record.as_mut_slice()))
            .unwrap();
        [&salt[..], &size.to_be_bytes(), &[65], &point, &record, &tag].concat()
    }

    #[test]
    fn the_example_of_the_rfc_opens() {
        let keys = keys();
        assert_eq!(keys.public(), (PUBLIC.to_owned(), AUTH.to_owned()));
        let body = bytes(BODY);
        assert!(WebPushKeys::looks_encrypted(&body));
        assert_eq!(&**keys.open(&body).unwrap(), b"When I grow up, I want to be a watermelon");
        let (private, auth) = keys.expose();
        let again = WebPushKeys::new(&private, auth).unwrap();
        assert!(again.open(&body).is_ok());
        assert_eq!(format!("{keys:?}"), "WebPushKeys(…)");
    }

    #[test]
    fn a_body_changed_in_any_byte_or_cut_anywhere_does_not_open() {
        let (keys, body) = (keys(), bytes(BODY));
        for at in 0..body.len() {
            let mut changed = body.clone();
            changed[at] ^= 1;
            // A larger record size is no part of what is authenticated, and harmless.
            let size = u32::from_be_bytes(changed[16..20].try_into().unwrap());
            let harmless = (16..20).contains(&at) && size >= 4096;
            assert_eq!(keys.open(&changed).is_ok(), harmless, "byte {at}");
            assert!(keys.open(&body[..at]).is_err(), "{at} bytes");
        }
        let other = WebPushKeys::new(&[1; 32], &bytes(AUTH).try_into().unwrap()).unwrap();
        assert_eq!(other.open(&body), Err(WebPushError::Unreadable));
        let other = WebPushKeys::new(&bytes(PRIVATE).try_into().unwrap(), &[0; 16]).unwrap();
        assert_eq!(other.open(&body), Err(WebPushError::Unreadable));
    }

    #[test]
    fn padding_is_taken_off_and_only_one_last_record_is_read() {
        let keys = keys();
        let open = |size, padded: &[u8]| keys.open(&encrypt(&keys, size, padded)).map(|plain| plain.to_vec());
        assert_eq!(open(4096, b"{}\x02"), Ok(b"{}".to_vec()));
        assert_eq!(open(4096, b"{}\x02\0\0\0"), Ok(b"{}".to_vec()));
        assert_eq!(open(4096, b"\x02"), Ok(vec![]));
        assert_eq!(open(19, b"{}\x02"), Ok(b"{}".to_vec()), "exactly one record");
        for (size, padded) in [(18, &b"{}\x02"[..]), (4096, b"{}\x01"), (4096, b"{}"), (4096, b"\0\0"), (4096, b"")] {
            assert_eq!(open(size, padded), Err(WebPushError::Form), "{size} {padded:?}");
        }
    }

    #[test]
    fn json_does_not_look_encrypted_and_a_key_off_the_curve_is_refused() {
        for text in ["", "{}", "{\"aps\":{\"alert\":{\"AAAAAAAAAAAAAAAAA", &" ".repeat(100)] {
            assert!(!WebPushKeys::looks_encrypted(text.as_bytes()));
            assert_eq!(keys().open(text.as_bytes()), Err(WebPushError::Form));
        }
        let mut body = bytes(BODY);
        body[22..86].fill(1);
        assert_eq!(keys().open(&body), Err(WebPushError::Form));
        assert!(WebPushKeys::new(&[0; 32], &[0; 16]).is_none() && WebPushKeys::new(&[255; 32], &[0; 16]).is_none());
    }
}
