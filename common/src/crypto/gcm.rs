//! AES-256-GCM as sessions and pipes use it: a 12-byte nonce, and the 16-byte tag behind the ciphertext.

use aes_gcm::aead::AeadInOut;
use aes_gcm::aead::inout::InOutBuf;
use aes_gcm::{Aes256Gcm, Nonce, Tag};

use super::session::{OpenError, SealError};

/// Length of the authentication tag, bytes.
const TAG_LEN: usize = 16;

/// The ciphertext and its tag.
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
