//! What stands inside a sealed message: `version ‖ compression ‖ body` (protocol, Plaintext framing).

use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::{decompress_to_vec_with_limit, decompress_to_vec_zlib_with_limit};
use zeroize::Zeroizing;

use crate::limits::{COMPRESS_ABOVE, MAX_INFLATED};

const JSON: u8 = 0x01;
const PIPE_SIGNAL: u8 = 0x02;
const PLAIN: u8 = 0x00;
const ZLIB: u8 = 0x01;
/// miniz's balanced level: snapshots are small, and a higher one gains little.
const LEVEL: u8 = 6;

/// The body of a sealed message. Wiped when dropped: it may carry a secret.
#[derive(Clone, PartialEq, Eq)]
pub enum Body {
    /// A JSON payload, UTF-8 not yet checked.
    Json(Zeroizing<Vec<u8>>),
    /// A pipe signal in `MessagePack`.
    PipeSignal(Zeroizing<Vec<u8>>),
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Json(body) => write!(f, "Json({} bytes)", body.len()),
            Self::PipeSignal(body) => write!(f, "PipeSignal({} bytes)", body.len()),
        }
    }
}

/// Why a frame was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FramingError {
    /// Fewer than two bytes.
    #[error("shorter than its header")]
    Short,
    /// A version this build does not know.
    #[error("unknown version {0:#04x}")]
    Version(u8),
    /// A compression this build does not know, or one that the version forbids.
    #[error("unknown compression {0:#04x}")]
    Compression(u8),
    /// Not a zlib or DEFLATE stream.
    #[error("does not inflate")]
    Inflate,
    /// Inflates to more than 8 MiB.
    #[error("inflates to more than {MAX_INFLATED} bytes")]
    Bomb,
}

/// Whether a body may be compressed: the deployed phone app cannot read compressed ones (protocol, Known peers).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Never.
    Off,
    /// When the body is longer than 1,024 bytes and gets smaller.
    WhenSmaller,
}

/// Frames a JSON body for sealing.
pub fn frame_json(body: &[u8], compression: Compression) -> Zeroizing<Vec<u8>> {
    if compression == Compression::WhenSmaller && body.len() > COMPRESS_ABOVE {
        let packed = Zeroizing::new(compress_to_vec_zlib(body, LEVEL));
        if packed.len() < body.len() {
            return with_header(JSON, ZLIB, &packed);
        }
    }
    with_header(JSON, PLAIN, body)
}

/// Frames a pipe signal; signals are never compressed.
pub fn frame_pipe_signal(body: &[u8]) -> Zeroizing<Vec<u8>> {
    with_header(PIPE_SIGNAL, PLAIN, body)
}

/// Takes a frame apart. Accepts zlib-wrapped and raw DEFLATE bodies, and stops at 8 MiB of output.
pub fn unframe(framed: &[u8]) -> Result<Body, FramingError> {
    let [version, compression, body @ ..] = framed else {
        return Err(FramingError::Short);
    };
    match (*version, *compression) {
        (JSON, PLAIN) => Ok(Body::Json(Zeroizing::new(body.to_vec()))),
        (JSON, ZLIB) => inflate(body).map(Body::Json),
        (PIPE_SIGNAL, PLAIN) => Ok(Body::PipeSignal(Zeroizing::new(body.to_vec()))),
        (JSON | PIPE_SIGNAL, other) => Err(FramingError::Compression(other)),
        (other, _) => Err(FramingError::Version(other)),
    }
}

fn with_header(version: u8, compression: u8, body: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut framed = Vec::with_capacity(body.len() + 2);
    framed.extend_from_slice(&[version, compression]);
    framed.extend_from_slice(body);
    Zeroizing::new(framed)
}

fn inflate(body: &[u8]) -> Result<Zeroizing<Vec<u8>>, FramingError> {
    use miniz_oxide::inflate::TINFLStatus::HasMoreOutput;
    let wrapped = decompress_to_vec_zlib_with_limit(body, MAX_INFLATED);
    match wrapped {
        Ok(plain) => Ok(Zeroizing::new(plain)),
        Err(error) if error.status == HasMoreOutput => Err(FramingError::Bomb),
        Err(_) => match decompress_to_vec_with_limit(body, MAX_INFLATED) {
            Ok(plain) => Ok(Zeroizing::new(plain)),
            Err(error) if error.status == HasMoreOutput => Err(FramingError::Bomb),
            Err(_) => Err(FramingError::Inflate),
        },
    }
}

#[cfg(test)]
mod tests {
    use miniz_oxide::deflate::compress_to_vec;
    use proptest::prelude::*;

    use super::*;

    fn json(body: &[u8]) -> Body {
        Body::Json(Zeroizing::new(body.to_vec()))
    }

    #[test]
    fn short_bodies_stay_as_they_are_and_long_ones_shrink() {
        assert_eq!(&**frame_json(b"{}", Compression::WhenSmaller), b"\x01\x00{}");
        let long = vec![b'a'; 1025];
        assert!(frame_json(&long, Compression::WhenSmaller).len() < 100);
        assert_eq!(frame_json(&long[..1024], Compression::WhenSmaller).len(), 1026);
        assert_eq!(frame_json(&long, Compression::Off).len(), 1027);
    }

    #[test]
    fn raw_deflate_is_read_like_zlib() {
        let body = vec![b'a'; 5000];
        let mut raw = vec![1, 1];
        raw.extend(compress_to_vec(&body, 6));
        assert_eq!(unframe(&raw), Ok(json(&body)));
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        let mut bomb = vec![1, 1];
        bomb.extend(compress_to_vec_zlib(&vec![0; MAX_INFLATED + 1], 6));
        assert_eq!(unframe(&bomb), Err(FramingError::Bomb));
        let mut fits = vec![1, 1];
        fits.extend(compress_to_vec_zlib(&vec![0; MAX_INFLATED], 6));
        assert_eq!(unframe(&fits), Ok(json(&vec![0; MAX_INFLATED])));
    }

    #[test]
    fn unknown_headers_are_named() {
        assert_eq!(unframe(b""), Err(FramingError::Short));
        assert_eq!(unframe(b"\x01"), Err(FramingError::Short));
        assert_eq!(unframe(b"\x03\x00"), Err(FramingError::Version(3)));
        assert_eq!(unframe(b"\x01\x02x"), Err(FramingError::Compression(2)));
        assert_eq!(unframe(b"\x02\x01x"), Err(FramingError::Compression(1)));
        assert_eq!(unframe(b"\x01\x01garbage"), Err(FramingError::Inflate));
    }

    proptest! {
        #[test]
        fn what_is_framed_comes_back(body in proptest::collection::vec(any::<u8>(), 0..4000), repeat in 1usize..4) {
            let body = body.repeat(repeat);
            prop_assert_eq!(unframe(&frame_json(&body, Compression::WhenSmaller)), Ok(json(&body)));
            prop_assert_eq!(unframe(&frame_pipe_signal(&body)), Ok(Body::PipeSignal(Zeroizing::new(body))));
        }

        #[test]
        fn noise_never_panics(noise in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = unframe(&noise);
        }
    }
}
