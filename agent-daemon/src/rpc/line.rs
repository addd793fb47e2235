//! Cuts a byte stream into lines of bounded length.

use std::collections::VecDeque;
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};
use zeroize::Zeroize;

use super::SecretBuf;

/// Longest line, in bytes, without its newline (socket API).
pub const MAX_LINE: usize = 4 * 1024 * 1024;

/// How much is read at once.
const CHUNK: usize = 16 * 1024;

/// A line exceeds [`MAX_LINE`]; nothing after it can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a line is longer than {MAX_LINE} bytes")]
pub struct TooLong;

/// Collects bytes as they come and gives lines, without their newline, in order. Blank lines are skipped.
#[derive(Debug)]
pub struct LineReader {
    lines: VecDeque<SecretBuf>,
    partial: SecretBuf,
    too_long: bool,
    chunk: Box<[u8]>,
}

impl Default for LineReader {
    fn default() -> Self {
        Self::new()
    }
}

impl LineReader {
    /// Nothing read yet.
    pub fn new() -> Self {
        Self {
            lines: VecDeque::new(),
            partial: SecretBuf::new(),
            too_long: false,
            chunk: vec![0; CHUNK].into_boxed_slice(),
        }
    }

    /// Reads what is there, waiting for at least one byte; `false` at the end of the stream. Cancel safe.
    pub async fn fill(&mut self, source: &mut (impl AsyncRead + Unpin)) -> io::Result<bool> {
        let count = source.read(&mut self.chunk).await?;
        let mut chunk = std::mem::take(&mut self.chunk);
        self.push(&chunk[..count]);
        chunk[..count].zeroize();
        self.chunk = chunk;
        if count == 0 {
            self.finish();
        }
        Ok(count > 0)
    }

    /// Takes bytes of the stream, cut anywhere.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while !self.too_long && !bytes.is_empty() {
            let newline = bytes.iter().position(|&byte| byte == b'\n');
            let (part, rest) = match newline {
                Some(at) => (&bytes[..at], &bytes[at + 1..]),
                None => (bytes, &[][..]),
            };
            if self.partial.len() + part.len() > MAX_LINE {
                self.too_long = true;
                self.partial.clear();
                return;
            }
            self.partial.extend(part);
            if newline.is_some() {
                self.finish();
            }
            bytes = rest;
        }
    }

    /// The next whole line; `None`: more bytes are needed. After [`TooLong`] there is nothing more to come.
    pub fn next_line(&mut self) -> Option<Result<SecretBuf, TooLong>> {
        match self.lines.pop_front() {
            Some(line) => Some(Ok(line)),
            None if self.too_long => Some(Err(TooLong)),
            None => None,
        }
    }

    /// Whether [`LineReader::next_line`] has something to give.
    pub fn has_line(&self) -> bool {
        self.too_long || !self.lines.is_empty()
    }

    /// Ends the current line, as the end of the stream does.
    fn finish(&mut self) {
        let line = std::mem::take(&mut self.partial);
        if !line.iter().all(u8::is_ascii_whitespace) {
            self.lines.push_back(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drain(reader: &mut LineReader) -> Vec<Result<Vec<u8>, TooLong>> {
        let mut lines = Vec::new();
        while let Some(line) = reader.next_line() {
            let end = line.is_err();
            lines.push(line.map(|line| line.to_vec()));
            if end {
                break;
            }
        }
        lines
    }

    proptest! {
        #[test]
        fn any_split_of_any_bytes_gives_the_same_lines(
            text in proptest::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..400),
            cuts in proptest::collection::vec(0..400_usize, 0..20),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|&cut| cut < text.len()).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let mut reader = LineReader::new();
            let mut lines = Vec::new();
            for pair in cuts.windows(2) {
                reader.push(&text[pair[0]..pair[1]]);
                lines.extend(drain(&mut reader));
            }
            let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(&[][..], |end| &text[..end]);
            let expected: Vec<_> = whole
                .split(|&byte| byte == b'\n')
                .filter(|line| !line.iter().all(u8::is_ascii_whitespace))
                .map(|line| Ok(line.to_vec()))
                .collect();
            prop_assert_eq!(lines, expected);
        }
    }

    #[test]
    fn a_line_of_the_limit_passes_and_one_byte_more_ends_the_stream() {
        let mut reader = LineReader::new();
        reader.push(&vec![b'x'; MAX_LINE]);
        reader.push(b"\nnext\n");
        let lines = drain(&mut reader);
        assert_eq!(lines[0].as_ref().map(Vec::len), Ok(MAX_LINE));
        assert_eq!(lines[1], Ok(b"next".to_vec()));

        reader.push(&vec![b'x'; MAX_LINE]);
        reader.push(b"y");
        reader.push(b"\nnever\n");
        assert_eq!(drain(&mut reader), [Err(TooLong)]);
        assert_eq!(drain(&mut reader), [Err(TooLong)]);
    }

    #[tokio::test]
    async fn the_last_line_counts_without_its_newline() {
        let mut reader = LineReader::new();
        let mut source = &b"one\n\r\n  \ntwo"[..];
        while reader.fill(&mut source).await.unwrap() {}
        assert_eq!(drain(&mut reader), [Ok(b"one".to_vec()), Ok(b"two".to_vec())]);
    }
}
