//! The fuzzer's bytes as a sequence of choices. A tape never runs out: it goes on with zeros, and says that it has ended.

/// Reads choices off a fuzzer's input.
#[derive(Debug)]
pub struct Tape<'a>(&'a [u8]);

impl<'a> Tape<'a> {
    /// From its beginning.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether everything has been read.
    pub const fn ended(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// One of `n` choices, counted from 0.
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n
    }

    /// Two bytes as a number.
    pub fn short(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// Eight bytes as a number.
    pub fn long(&mut self) -> u64 {
        (0..8).fold(0, |number, _| (number << 8) | u64::from(self.byte()))
    }

    /// A number of any magnitude from two bytes: a few bits, shifted.
    pub fn number(&mut self) -> u64 {
        let shift = self.byte() % 64;
        u64::from(self.byte()) << shift
    }

    /// Bytes behind their length.
    pub fn bytes(&mut self) -> &'a [u8] {
        let length = usize::from(self.short());
        self.take(length)
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// 32 bytes; the same byte all over where only one is there to tell them apart.
    pub fn key(&mut self) -> [u8; 32] {
        [self.byte(); 32]
    }

    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// Writes what a [`Tape`] reads.
#[derive(Debug, Default)]
pub struct Recorder(pub Vec<u8>);

impl Recorder {
    /// Single bytes.
    #[must_use]
    pub fn then(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Bytes behind their length.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let length = u16::try_from(bytes.len()).expect("a seed's parts are short");
        self.then(&length.to_be_bytes()).then(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tape_reads_what_was_recorded_and_goes_on_with_zeros() {
        let record = Recorder::default().then(&[7, 1, 2]).bytes(b"abc").then(&[3, 1]);
        let mut tape = Tape::new(&record.0);
        assert_eq!((tape.byte(), tape.short(), tape.bytes()), (7, 0x0102, &b"abc"[..]));
        assert_eq!(tape.number(), 8);
        assert!(tape.ended());
        assert_eq!((tape.byte(), tape.bytes(), tape.long()), (0, &b""[..], 0));
    }
}
