//! Keys and frames of a pipe (pipe protocol, Pipe key and frames): a fresh X25519 pair per pipe and side, so that a pipe
//! stays closed to whoever learns the seeds later.

use std::fmt;
use std::sync::Arc;

use bytes::BytesMut;
use x25519_dalek::{PublicKey, StaticSecret};

use super::gcm::{BulkKey, TAG_LEN};
use super::identity::shared_secret;
use super::session::{OpenError, SealError};
use super::{PIPE_KDF_INFO, PIPE_KDF_SALT, gcm, hkdf32};
use crate::ids::{ConnectionId, X25519Public};
use crate::limits::PIPE_MAX_FRAME;

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
        let key = Arc::new(BulkKey::new(&key).ok_or(SealError::WeakKey)?);
        let sealer = PipeSealer { key: Arc::clone(&key), connection, end, sent: 0 };
        Ok(PipeCipher { sealer, opener: PipeOpener { key, connection, end: end.other(), received: Some(0) } })
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
/// reordered frame does not open, and after one that does not open nothing does.
#[derive(Debug)]
pub struct PipeCipher {
    sealer: PipeSealer,
    opener: PipeOpener,
}

impl PipeCipher {
    /// The two directions, for two tasks.
    pub fn split(self) -> (PipeSealer, PipeOpener) {
        (self.sealer, self.opener)
    }

    /// Seals the next frame.
    pub fn seal(&mut self, plain: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut frame = BytesMut::new();
        self.sealer.seal_into(plain, &mut frame)?;
        Ok(frame.into())
    }

    /// Opens the peer's next frame.
    pub fn open(&mut self, sealed: &[u8]) -> Result<Vec<u8>, OpenError> {
        let mut frame = BytesMut::from(sealed);
        self.opener.open_in_place(&mut frame)?;
        Ok(frame.into())
    }

    #[cfg(test)]
    pub(super) fn next_nonce(&self) -> [u8; 12] {
        pipe_nonce(self.sealer.end, self.sealer.sent + 1)
    }
}

/// The sending half of a [`PipeCipher`].
pub struct PipeSealer {
    key: Arc<BulkKey>,
    connection: ConnectionId,
    end: PipeEnd,
    sent: u64,
}

impl PipeSealer {
    /// Seals the next frame and puts it behind what is in `out` already; the frame is `plain` and 16 bytes. Refuses an empty
    /// one, which deployed peers take for an error, and one over [`PIPE_MAX_FRAME`].
    pub fn seal_into(&mut self, plain: &[u8], out: &mut BytesMut) -> Result<(), SealError> {
        if plain.is_empty() {
            return Err(SealError::Empty);
        }
        if plain.len() > PIPE_MAX_FRAME - TAG_LEN {
            return Err(SealError::TooLong);
        }
        let count = self.sent.checked_add(1).ok_or(SealError::TooLong)?;
        let start = out.len();
        out.reserve(plain.len() + TAG_LEN);
        out.extend_from_slice(plain);
        let body = out.get_mut(start..).unwrap_or_default();
        let tag = self.key.seal(pipe_nonce(self.end, count), self.connection.as_bytes(), body)?;
        out.extend_from_slice(&tag);
        self.sent = count;
        Ok(())
    }
}

/// The receiving half of a [`PipeCipher`].
pub struct PipeOpener {
    key: Arc<BulkKey>,
    connection: ConnectionId,
    /// Whose frames these are.
    end: PipeEnd,
    /// `None` once a frame did not open.
    received: Option<u64>,
}

impl PipeOpener {
    /// Opens the peer's next frame where it is, and cuts off its tag. A peer may send an empty one. After an error the pipe is
    /// dead: nothing opens any more.
    pub fn open_in_place(&mut self, frame: &mut BytesMut) -> Result<(), OpenError> {
        let count = self.received.take().and_then(|received| received.checked_add(1)).ok_or(OpenError::Dead)?;
        let length = frame.len().checked_sub(TAG_LEN).ok_or(OpenError::Length)?;
        let tag = gcm::split(frame)?.1;
        frame.truncate(length);
        self.key.open(pipe_nonce(self.end, count), self.connection.as_bytes(), frame, tag)?;
        self.received = Some(count);
        Ok(())
    }
}

impl fmt::Debug for PipeSealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipeSealer")
            .field("connection", &self.connection)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for PipeOpener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipeOpener").field("connection", &self.connection).finish_non_exhaustive()
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
        assert_eq!(a.open(&one), Err(OpenError::Tag), "one's own frame");
        assert_eq!(pair().1.open(&two), Err(OpenError::Tag), "out of order");
        assert_eq!(pair().1.open(&one[..15]), Err(OpenError::Length));
        assert_eq!(pair().1.open(&one[..18]), Err(OpenError::Tag), "truncated");
        assert_eq!(b.open(&one).unwrap(), b"one");
        assert_eq!(b.open(&two).unwrap(), b"two");
        assert_eq!(b.open(&two), Err(OpenError::Tag), "a repeat");
    }

    #[test]
    fn nothing_opens_after_a_frame_that_did_not() {
        let (mut a, mut b) = pair();
        let one = a.seal(b"one").unwrap();
        for bad in [vec![0; 20], vec![0; 3]] {
            let mut b = pair().1;
            assert!(b.open(&bad).is_err());
            assert_eq!(b.open(&one), Err(OpenError::Dead));
        }
        assert_eq!(b.open(&one).unwrap(), b"one");
    }

    #[test]
    fn halves_work_apart_and_frames_gather_in_one_buffer() {
        let (a, b) = pair();
        let ((mut seal, _), (_, mut open)) = (a.split(), b.split());
        let mut wire = BytesMut::new();
        seal.seal_into(b"one", &mut wire).unwrap();
        seal.seal_into(b"twotwo", &mut wire).unwrap();
        assert_eq!(wire.len(), 3 + 6 + 2 * 16);
        let mut one = wire.split_to(19);
        open.open_in_place(&mut one).unwrap();
        open.open_in_place(&mut wire).unwrap();
        assert_eq!((&one[..], &wire[..]), (&b"one"[..], &b"twotwo"[..]));
    }

    #[test]
    fn an_empty_frame_is_never_sent_but_read_and_a_frame_has_at_most_1_mib() {
        let (mut a, mut b) = pair();
        assert_eq!(a.seal(b""), Err(SealError::Empty));
        assert_eq!(a.seal(&vec![0; PIPE_MAX_FRAME - 15]), Err(SealError::TooLong));
        let largest = a.seal(&vec![7; PIPE_MAX_FRAME - 16]).unwrap();
        assert_eq!(largest.len(), PIPE_MAX_FRAME, "what was refused took no counter");
        assert_eq!(b.open(&largest).unwrap(), vec![7; PIPE_MAX_FRAME - 16]);
        // As a peer that sends empty ones would.
        let (a, mut b) = pair();
        let tag = a.sealer.key.seal(pipe_nonce(PipeEnd::Initiator, 1), ID.as_bytes(), &mut []).unwrap();
        assert_eq!(b.open(&tag).unwrap(), b"");
    }

    #[test]
    fn a_small_order_key_gives_no_pipe() {
        let weak = PipeSecret::new([1; 32]).agree(&X25519Public::new([0; 32]), ID, PipeEnd::Initiator);
        assert_eq!(weak.unwrap_err(), SealError::WeakKey);
    }
}
