//! A byte buffer that leaves no copies behind.

use std::io;
use std::ops::Deref;

use zeroize::{Zeroize, Zeroizing};

/// Bytes that are wiped when dropped, and also when they move because the buffer grows (a plain `Vec` would leave the old
/// place as it was). `Debug` shows the length alone.
#[derive(Default)]
pub struct SecretBuf(Zeroizing<Vec<u8>>);

impl SecretBuf {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends.
    pub fn extend(&mut self, bytes: &[u8]) {
        let needed = self.0.len() + bytes.len();
        if needed > self.0.capacity() {
            let mut larger = Zeroizing::new(Vec::with_capacity(needed.max(self.0.capacity() * 2)));
            larger.extend_from_slice(&self.0);
            self.0 = larger;
        }
        self.0.extend_from_slice(bytes);
    }

    /// Wipes the content; the buffer can be used again.
    pub fn clear(&mut self) {
        self.0.zeroize();
    }
}

impl Deref for SecretBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl io::Write for SecretBuf {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl std::fmt::Debug for SecretBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SecretBuf({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_keeps_the_content_and_debug_does_not_show_it() {
        let mut buffer = SecretBuf::new();
        let mut expected = Vec::new();
        for round in 0..200_u8 {
            buffer.extend(&[round; 7]);
            expected.extend_from_slice(&[round; 7]);
        }
        assert_eq!(*buffer, *expected);
        assert_eq!(format!("{buffer:?}"), "SecretBuf(1400 bytes)");
        buffer.clear();
        assert!(buffer.is_empty());
    }
}
