//! Keys and frames of a pipe (pipe protocol, Pipe key and frames): a fresh X25519 pair per pipe and side, so that a pipe
//! stays closed to whoever learns the seeds later.

use std::fmt;

use aes_gcm::{Aes256Gcm, KeyInit};
use x25519_dalek::{PublicKey, StaticSecret};

use super::identity::shared_secret;
use super::session::{OpenError, SealError};
use super::{PIPE_KDF_INFO, PIPE_KDF_SALT, gcm, hkdf32};
use crate::ids::{ConnectionId, X25519Public};

/// One side's secret for one pipe. Used up by [`agree`](Self::agree), wiped when dropped.
pub struct PipeSecret(StaticSecret);

impl PipeSecret {
    /// From 32 random bytes.
    pub fn new(random: [u8; 32]) -> Self {
        Self(StaticSecret::from(random))
    }

    /// The half that the sealed signal carries.
    pub fn public(&self) -> X25519Public {
        X25519Public::new(PublicKey::from(&self.0).to_bytes())
    }

    /// The cipher of this pipe, for the side that `end` says.
    pub fn agree(self, peer: &X25519Public, connection: ConnectionId, end: PipeEnd) -> Result<PipeCipher, SealError> {
        let shared = shared_secret(&self.0, peer).ok_or(SealError::WeakKey)?;
        let key = hkdf32(shared.as_ref(), PIPE_KDF_SALT, PIPE_KDF_INFO);
        Ok(PipeCipher { cipher: Aes256Gcm::new((&*key).into()), connection, end, sent: 0, received: 0 })
    }
}

impl fmt::Debug for PipeSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PipeSecret(…)")
    }
}

/// Which side of a pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PipeEnd {
    /// Sent the invitation.
    Initiator,
    /// Accepted it.
    Responder,
}

impl PipeEnd {
    const fn prefix(self) -> [u8; 4] {
        match self {
            Self::Initiator => [0, 0, 0, 3],
            Self::Responder => [0, 0, 0, 4],
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Responder,
            Self::Responder => Self::Initiator,
        }
    }
}

/// Seals and opens the frames of one pipe. Counters are not transmitted: each side counts from 1, so a lost, repeated or
/// reordered frame does not open.
pub struct PipeCipher {
    cipher: Aes256Gcm,
    connection: ConnectionId,
    end: PipeEnd,
    sent: u64,
    received: u64,
}

impl PipeCipher {
    /// Seals the next frame.
    pub fn seal(&mut self, plain: &[u8]) -> Result<Vec<u8>, SealError> {
        let count = self.sent.checked_add(1).ok_or(SealError::TooLong)?;
        let sealed = gcm::seal(&self.cipher, pipe_nonce(self.end, count), self.connection.as_bytes(), plain)?;
        self.sent = count;
        Ok(sealed)
    }

    #[cfg(test)]
    pub(super) fn next_nonce(&self) -> [u8; 12] {
        pipe_nonce(self.end, self.sent + 1)
    }

    /// Opens the peer's next frame in place; after an error the pipe is of no use any more.
    pub fn open(&mut self, mut sealed: Vec<u8>) -> Result<Vec<u8>, OpenError> {
        let count = self.received.checked_add(1).ok_or(OpenError::Length)?;
        let (body, tag) = gcm::split(&sealed)?;
        let length = body.len();
        sealed.truncate(length);
        gcm::open(&self.cipher, pipe_nonce(self.end.other(), count), self.connection.as_bytes(), &mut sealed, tag)?;
        self.received = count;
        Ok(sealed)
    }
}

impl fmt::Debug for PipeCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipeCipher")
            .field("connection", &self.connection)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

fn pipe_nonce(end: PipeEnd, count: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    let (prefix, rest) = nonce.split_at_mut(4);
    prefix.copy_from_slice(&end.prefix());
    rest.copy_from_slice(&count.to_be_bytes());
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ConnectionId = ConnectionId::new([7; 32]);

    fn pair() -> (PipeCipher, PipeCipher) {
        let (a, b) = (PipeSecret::new([1; 32]), PipeSecret::new([2; 32]));
        let (a_pub, b_pub) = (a.public(), b.public());
        (a.agree(&b_pub, ID, PipeEnd::Initiator).unwrap(), b.agree(&a_pub, ID, PipeEnd::Responder).unwrap())
    }

    #[test]
    fn frames_open_in_order_and_only_at_the_other_end() {
        let (mut a, mut b) = pair();
        let (one, two) = (a.seal(b"one").unwrap(), a.seal(b"two").unwrap());
        assert_eq!(a.open(one.clone()), Err(OpenError::Tag), "one's own frame");
        assert_eq!(b.open(two.clone()), Err(OpenError::Tag), "out of order");
        assert_eq!(b.open(one.clone()).unwrap(), b"one");
        assert_eq!(b.open(one), Err(OpenError::Tag), "a repeat");
        assert_eq!(b.open(two).unwrap(), b"two");
        assert_eq!(b.open(vec![0; 15]), Err(OpenError::Length));
    }

    #[test]
    fn a_small_order_key_gives_no_pipe() {
        let weak = PipeSecret::new([1; 32]).agree(&X25519Public::new([0; 32]), ID, PipeEnd::Initiator);
        assert_eq!(weak.unwrap_err(), SealError::WeakKey);
    }
}
