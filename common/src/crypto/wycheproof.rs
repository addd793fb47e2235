//! Wycheproof's vectors against our own functions.
//!
//! | set | ours | not run, because ours cannot be asked |
//! |---|---|---|
//! | Ed25519 | the verification behind every challenge | none |
//! | X25519 | the agreement behind sessions and pipes | none |
//! | AES-GCM | sealing and opening of sessions and pipes | keys other than 256 bits, nonces other than 96 |
//! | HKDF-SHA-256 | the derivation of every key: always 32 bytes, of which a vector's output is compared as far as both go | outputs over the algorithm's limit |
//!
//! "Acceptable" is said of X25519 alone, of public keys on the twist, of non-canonical ones and of those of small order.
//! RFC 7748 wants all but the last computed, and so they are; where the shared secret is zero there is none.

use aes_gcm::{Aes256Gcm, KeyInit};
use wycheproof::TestResult;
use wycheproof::{aead, eddsa, hkdf, xdh};
use x25519_dalek::StaticSecret;

use super::identity::shared_secret;
use super::verify::{verify, verify_challenge};
use super::{gcm, hkdf32};
use crate::ids::{ChallengeNonce, Ed25519Public, Signature, X25519Public};

#[test]
fn ed25519_accepts_the_valid_signatures_and_no_other() {
    let set = eddsa::TestSet::load(eddsa::TestName::Ed25519).unwrap();
    let (mut valid, mut invalid) = (0, 0);
    for group in &set.test_groups {
        let key = Ed25519Public::from_slice(&group.key.pk).unwrap();
        for test in &group.tests {
            let verified =
                Signature::from_slice(&test.sig).is_ok_and(|signature| verify(&key, &test.msg, &signature).is_ok());
            assert_eq!(verified, test.result == TestResult::Valid, "{} {}", test.tc_id, test.comment);
            *(if verified { &mut valid } else { &mut invalid }) += 1;
        }
    }
    assert_eq!((valid, invalid), (88, 63));
}

/// Points whose order divides 8, each in every encoding that a decoder might take: y, then the other sign, then y + p.
const SMALL_ORDER: [&str; 14] = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
];

/// With such a key, and zero as the scalar, one signature in eight at the least fits the equation whoever made it.
#[test]
fn a_small_order_key_or_commitment_answers_no_challenge() {
    for key in SMALL_ORDER.map(|key| Ed25519Public::from_hex(key).unwrap()) {
        for commitment in SMALL_ORDER {
            let signature = Signature::from_hex(&format!("{commitment}{}", "00".repeat(32))).unwrap();
            for n in 0..32 {
                let verified = verify_challenge(&key, &ChallengeNonce::new([n; 32]), &signature);
                assert!(verified.is_err(), "{key} {commitment} {n}");
            }
        }
    }
}

#[test]
fn x25519_agrees_where_there_is_a_secret_and_refuses_where_there_is_none() {
    let set = xdh::TestSet::load(xdh::TestName::X25519).unwrap();
    let (mut agreed, mut refused) = (0, 0);
    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        let secret = StaticSecret::from(<[u8; 32]>::try_from(&**test.private_key).unwrap());
        let shared = shared_secret(&secret, &X25519Public::from_slice(&test.public_key).unwrap());
        if test.flags.contains(&xdh::TestFlag::ZeroSharedSecret) {
            assert_eq!((shared, test.result), (None, TestResult::Acceptable), "{} {}", test.tc_id, test.comment);
            refused += 1;
        } else {
            assert_eq!(&*shared.unwrap(), &**test.shared_secret, "{} {}", test.tc_id, test.comment);
            assert_ne!(test.result, TestResult::Invalid);
            agreed += 1;
        }
    }
    assert_eq!((agreed, refused), (487, 31));
}

#[test]
fn aes_256_gcm_seals_as_the_vectors_do_and_opens_nothing_forged() {
    let set = aead::TestSet::load(aead::TestName::AesGcm).unwrap();
    let ours = set.test_groups.iter().filter(|group| group.key_size == 256 && group.nonce_size == 96);
    let (mut valid, mut invalid) = (0, 0);
    for test in ours.flat_map(|group| &group.tests) {
        let cipher = Aes256Gcm::new_from_slice(&test.key).unwrap();
        let nonce = <[u8; 12]>::try_from(&**test.nonce).unwrap();
        let sealed = [&**test.ct, &**test.tag].concat();
        let (body, tag) = gcm::split(&sealed).unwrap();
        let mut plain = body.to_vec();
        let opened = gcm::open(&cipher, nonce, &test.aad, &mut plain, tag);
        assert_eq!(opened.is_ok(), test.result == TestResult::Valid, "{} {}", test.tc_id, test.comment);
        let again = gcm::seal(&cipher, nonce, &test.aad, &test.pt).unwrap();
        if opened.is_ok() {
            assert_eq!((&*plain, &*again), (&**test.pt, &*sealed), "{} {}", test.tc_id, test.comment);
            valid += 1;
        } else {
            assert_ne!(again, sealed);
            invalid += 1;
        }
    }
    assert_eq!((valid, invalid), (39, 27));
}

#[test]
fn hkdf_derives_what_the_vectors_derive() {
    let set = hkdf::TestSet::load(hkdf::TestName::HkdfSha256).unwrap();
    let (mut whole, mut begun, mut oversize) = (0, 0, 0);
    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        if test.result == TestResult::Invalid {
            assert!(test.flags.contains(&hkdf::TestFlag::SizeTooLarge));
            oversize += 1;
            continue;
        }
        // The output for a length begins with the output for any shorter one.
        let common = test.okm.len().min(32);
        let key = hkdf32(&test.ikm, &test.salt, &test.info);
        assert_eq!(key[..common], test.okm[..common], "{} {}", test.tc_id, test.comment);
        *(if common == 32 { &mut whole } else { &mut begun }) += 1;
    }
    assert_eq!((whole, begun, oversize), (65, 18, 3));
}
