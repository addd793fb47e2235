//! Asking a person, or standard input.
//!
//! Reading blocks, so it happens in a thread of its own while the phone's connection is kept alive. What is read may be a
//! secret: it goes past the standard library's buffers, and is wiped.

use std::io::{IsTerminal, Write};

use rustix::termios::{LocalModes, OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcsetattr};
use tokio::sync::oneshot;
use zeroize::{Zeroize, Zeroizing};

/// Longest input, bytes: more than fits into a message.
const MAX_INPUT: usize = 64 * 1024;

/// Why nothing was read.
#[derive(Debug, thiserror::Error)]
pub(super) enum InputError {
    #[error("cannot read from {from}: {source}")]
    Io { from: &'static str, source: std::io::Error },
    #[error("the input is longer than {MAX_INPUT} bytes")]
    Long,
    #[error("the input is not UTF-8 text")]
    Text,
    #[error("the input ended before anything was entered")]
    Ended,
}

/// How far to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// One line.
    Line,
    /// Everything; a line feed at the end does not count.
    All,
}

/// Whether there is a person to ask: standard input is a terminal.
pub(super) fn is_interactive() -> bool {
    std::io::stdin().is_terminal()
}

/// Writes a question, on the terminal alone. What was typed before it is dropped: it answers something else.
pub(super) fn question(text: &str) {
    if is_interactive() {
        let _ = tcflush(std::io::stdin(), QueueSelector::IFlush);
    }
    let mut stderr = std::io::stderr();
    let _ = write!(stderr, "{text}").and_then(|()| stderr.flush());
}

/// Reads from standard input in the background.
pub(super) fn read(extent: Extent) -> oneshot::Receiver<Result<Zeroizing<String>, InputError>> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || sender.send(read_now(extent)));
    receiver
}

/// Reads from standard input.
pub(super) fn read_now(extent: Extent) -> Result<Zeroizing<String>, InputError> {
    let stdin = std::io::stdin();
    // Its full size from the start: growing would leave copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_INPUT + 1));
    let mut next = [0];
    let mut ended = false;
    while bytes.len() <= MAX_INPUT {
        match rustix::io::read(&stdin, &mut next) {
            Ok(0) => {
                ended = true;
                break;
            }
            Ok(_) if extent == Extent::Line && next[0] == b'\n' => break,
            Ok(_) => bytes.push(next[0]),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(InputError::Io { from: "standard input", source: error.into() }),
        }
    }
    next.zeroize();
    if bytes.len() > MAX_INPUT {
        return Err(InputError::Long);
    }
    if ended && bytes.is_empty() && extent == Extent::Line {
        return Err(InputError::Ended);
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    if bytes.last() == Some(&b'\r') {
        bytes.pop();
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| InputError::Text)?;
    Ok(Zeroizing::new(text.to_owned()))
}

/// While it lives, the terminal does not show what is typed.
#[derive(Debug)]
pub(super) struct NoEcho(Option<Termios>);

impl NoEcho {
    /// Switches the echo off, where standard input is a terminal.
    pub(super) fn begin() -> Result<Self, InputError> {
        if !is_interactive() {
            return Ok(Self(None));
        }
        let failed = |error: rustix::io::Errno| InputError::Io { from: "the terminal", source: error.into() };
        let before = tcgetattr(std::io::stdin()).map_err(failed)?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        silent.local_modes.insert(LocalModes::ECHONL);
        // What was typed ahead was shown, and is not meant for a secret: flushed.
        tcsetattr(std::io::stdin(), OptionalActions::Flush, &silent).map_err(failed)?;
        Ok(Self(Some(before)))
    }
}

impl Drop for NoEcho {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}
