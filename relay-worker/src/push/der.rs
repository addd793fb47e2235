//! Private keys in PKCS #8 (RFC 5208), as far as they can be told apart and taken out: a DER reader of a few lines, where a
//! general one would cost more of this relay's size than everything else about a push.

/// `id-ecPublicKey`, then `prime256v1`.
const EC: &[u8] = &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const P256: &[u8] = &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
/// `rsaEncryption`.
const RSA: &[u8] = &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];

const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const SEQUENCE: u8 = 0x30;

/// The secret number of a key on P-256, 32 bytes.
pub(super) fn p256_secret(pkcs8: &[u8]) -> Option<&[u8]> {
    let (algorithm, key) = private_key(pkcs8)?;
    algorithm.strip_prefix(EC)?.starts_with(P256).then_some(())?;
    // ECPrivateKey (RFC 5915): version 1, the number, and maybe more.
    let (mut fields, _) = element(key, SEQUENCE)?;
    (take(&mut fields, INTEGER)? == [1]).then_some(())?;
    take(&mut fields, OCTETS).filter(|secret| secret.len() == 32)
}

/// Whether this is a key for RSA.
pub(super) fn is_rsa(pkcs8: &[u8]) -> bool {
    private_key(pkcs8).is_some_and(|(algorithm, _)| algorithm.starts_with(RSA))
}

/// Algorithm and key of a `PrivateKeyInfo`, of version 0 or 1.
fn private_key(pkcs8: &[u8]) -> Option<(&[u8], &[u8])> {
    let (mut fields, rest) = element(pkcs8, SEQUENCE)?;
    let version = take(&mut fields, INTEGER)?;
    let algorithm = take(&mut fields, SEQUENCE)?;
    let key = take(&mut fields, OCTETS)?;
    (rest.is_empty() && matches!(version, [0 | 1])).then_some((algorithm, key))
}

fn take<'a>(fields: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let (content, rest) = element(fields, tag)?;
    *fields = rest;
    Some(content)
}

/// The content of the first element, which has this tag, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0x00..=0x7f => (usize::from(*first), rest),
        0x81 | 0x82 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    (*found == tag).then(|| rest.split_at_checked(length)).flatten()
}

#[cfg(test)]
mod tests {
    use p256::pkcs8::EncodePrivateKey as _;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_key_on_p256_is_taken_out_and_is_not_one_for_rsa() {
        let secret = [0x17; 32];
        let key = p256::SecretKey::from_slice(&secret).unwrap();
        let der = key.to_pkcs8_der().unwrap();
        assert_eq!(p256_secret(der.as_bytes()), Some(secret.as_slice()));
        assert!(!is_rsa(der.as_bytes()));
        for end in 0..der.as_bytes().len() {
            assert_eq!(p256_secret(&der.as_bytes()[..end]), None, "cut at {end}");
        }
        assert_eq!(p256_secret(&[der.as_bytes(), &[0]].concat()), None, "something behind it");
    }

    #[test]
    fn a_key_on_another_curve_is_none() {
        let key = p256::SecretKey::from_slice(&[0x17; 32]).unwrap().to_pkcs8_der().unwrap();
        // secp256k1's identifier ends otherwise, and is shorter.
        let other = key.as_bytes().to_vec().into_iter().map(|byte| if byte == 0x07 { 0x0a } else { byte });
        assert_eq!(p256_secret(&other.collect::<Vec<_>>()), None);
    }

    proptest! {
        #[test]
        fn no_bytes_do_any_harm(bytes in any::<Vec<u8>>()) {
            let _ = (p256_secret(&bytes), is_rsa(&bytes));
        }
    }
}
