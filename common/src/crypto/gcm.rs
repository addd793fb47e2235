//! AES-256-GCM as sessions and pipes use it: a 12-byte nonce, and the 16-byte tag behind the ciphertext.

use aes_gcm::aead::AeadInOut;
use aes_gcm::aead::inout::InOutBuf;
use aes_gcm::{Aes256Gcm, Nonce, Tag};

use super::session::{OpenError, SealError};

/// Length of the authentication tag, bytes.
pub(super) const TAG_LEN: usize = 16;

/// The ciphertext and its tag, of a message.
pub(super) fn seal(cipher: &Aes256Gcm, nonce: [u8; 12], aad: &[u8], plain: &[u8]) -> Result<Vec<u8>, SealError> {
    let mut sealed = Vec::with_capacity(plain.len() + TAG_LEN);
    sealed.extend_from_slice(plain);
    let tag = cipher
        .encrypt_inout_detached(&Nonce::from(nonce), aad, InOutBuf::from(sealed.as_mut_slice()))
        .map_err(|_| SealError::TooLong)?;
    sealed.extend_from_slice(&tag);
    Ok(sealed)
}

/// The ciphertext and the tag of what [`seal`] made.
pub(super) fn split(sealed: &[u8]) -> Result<(&[u8], [u8; TAG_LEN]), OpenError> {
    let (body, tag) = sealed.split_last_chunk().ok_or(OpenError::Length)?;
    Ok((body, *tag))
}

/// Turns the ciphertext into the plaintext, if the tag verifies.
pub(super) fn open(
    cipher: &Aes256Gcm,
    nonce: [u8; 12],
    aad: &[u8],
    body: &mut [u8],
    tag: [u8; TAG_LEN],
) -> Result<(), OpenError> {
    cipher
        .decrypt_inout_detached(&Nonce::from(nonce), aad, InOutBuf::from(body), &Tag::from(tag))
        .map_err(|_| OpenError::Tag)
}

/// The key of a pipe, through which whole downloads go: with feature `ring` sealed by that library, about three times as fast.
/// The same bytes either way. Wiped when dropped.
#[cfg(not(feature = "ring"))]
pub(super) struct BulkKey(Aes256Gcm);

#[cfg(not(feature = "ring"))]
impl BulkKey {
    #[allow(clippy::unnecessary_wraps)] // ring's may fail
    pub(super) fn new(key: &[u8; 32]) -> Option<Self> {
        use aes_gcm::KeyInit;
        Some(Self(Aes256Gcm::new(key.into())))
    }

    pub(super) fn seal(&self, nonce: [u8; 12], aad: &[u8], body: &mut [u8]) -> Result<[u8; TAG_LEN], SealError> {
        let tag = self.0.encrypt_inout_detached(&Nonce::from(nonce), aad, InOutBuf::from(body));
        tag.map(Into::into).map_err(|_| SealError::TooLong)
    }

    pub(super) fn open(
        &self,
        nonce: [u8; 12],
        aad: &[u8],
        body: &mut [u8],
        tag: [u8; TAG_LEN],
    ) -> Result<(), OpenError> {
        open(&self.0, nonce, aad, body, tag)
    }
}

#[cfg(feature = "ring")]
pub(super) use with_ring::BulkKey;

#[cfg(feature = "ring")]
mod with_ring {
    use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};

    use super::{OpenError, SealError, TAG_LEN};

    pub(in super::super) struct BulkKey(LessSafeKey);

    impl BulkKey {
        pub(in super::super) fn new(key: &[u8; 32]) -> Option<Self> {
            // 32 bytes is the length that the algorithm has.
            UnboundKey::new(&AES_256_GCM, key).ok().map(|key| Self(LessSafeKey::new(key)))
        }

        pub(in super::super) fn seal(
            &self,
            nonce: [u8; 12],
            aad: &[u8],
            body: &mut [u8],
        ) -> Result<[u8; TAG_LEN], SealError> {
            let nonce = Nonce::assume_unique_for_key(nonce);
            let tag = self.0.seal_in_place_separate_tag(nonce, Aad::from(aad), body).map_err(|_| SealError::TooLong)?;
            tag.as_ref().try_into().map_err(|_| SealError::TooLong)
        }

        pub(in super::super) fn open(
            &self,
            nonce: [u8; 12],
            aad: &[u8],
            body: &mut [u8],
            tag: [u8; TAG_LEN],
        ) -> Result<(), OpenError> {
            let nonce = Nonce::assume_unique_for_key(nonce);
            self.0
                .open_in_place_separate_tag(nonce, Aad::from(aad), Tag::from(tag), body, 0..)
                .map(|_| ())
                .map_err(|_| OpenError::Tag)
        }
    }

    impl Drop for BulkKey {
        /// The library does not wipe its keys, so this one is written over.
        fn drop(&mut self) {
            if let Some(blank) = Self::blank() {
                self.0 = blank;
                std::hint::black_box(&mut self.0);
            }
        }
    }

    impl BulkKey {
        fn blank() -> Option<LessSafeKey> {
            UnboundKey::new(&AES_256_GCM, &[0; 32]).ok().map(LessSafeKey::new)
        }
    }
}

#[cfg(all(test, feature = "ring"))]
mod tests {
    use aes_gcm::KeyInit;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn both_libraries_seal_alike(key: [u8; 32], nonce: [u8; 12], aad: [u8; 32], plain in proptest::collection::vec(any::<u8>(), 0..5000)) {
            let slow = seal(&Aes256Gcm::new(&key.into()), nonce, &aad, &plain).unwrap();
            let fast = BulkKey::new(&key).unwrap();
            let mut body = plain.clone();
            let tag = fast.seal(nonce, &aad, &mut body).unwrap();
            prop_assert_eq!([&body[..], &tag].concat(), slow);
            fast.open(nonce, &aad, &mut body, tag).unwrap();
            prop_assert_eq!(body, plain);
        }
    }
}
