//! Questions to the person at the terminal.

use std::io::{self, BufRead, IsTerminal, Read, Write};

use zeroize::Zeroizing;

use super::Failure;

/// Longest secret read from standard input, bytes.
const LONGEST_SECRET: u64 = 64 * 1024;

/// Asks for a yes; anything else is no, the end of input is `None`.
pub(super) async fn confirm(question: &str) -> Result<Option<bool>, Failure> {
    let question = format!("{question} [y/N] ");
    let read = tokio::task::spawn_blocking(move || {
        let mut terminal = io::stderr();
        terminal.write_all(question.as_bytes())?;
        terminal.flush()?;
        let mut line = String::new();
        let count = io::stdin().lock().read_line(&mut line)?;
        let yes = matches!(line.trim().to_lowercase().as_str(), "y" | "yes");
        io::Result::Ok((count > 0).then_some(yes))
    });
    outcome(read.await)
}

/// Reads a secret: without echo from a terminal, else all of standard input but a last newline.
pub(super) async fn secret(prompt: &str) -> Result<Zeroizing<String>, Failure> {
    let prompt = format!("{prompt}: ");
    let read = tokio::task::spawn_blocking(move || {
        if io::stdin().is_terminal() {
            return rpassword::prompt_password(prompt).map(Zeroizing::new);
        }
        // As large as it can get, so that it never moves and leaves a copy.
        let capacity = usize::try_from(LONGEST_SECRET).unwrap_or_default() + 1;
        let mut text = Zeroizing::new(String::with_capacity(capacity));
        io::stdin().lock().take(LONGEST_SECRET).read_to_string(&mut text)?;
        let end = text.strip_suffix('\n').map_or(text.len(), str::len);
        let end = text.get(..end).and_then(|text| text.strip_suffix('\r')).map_or(end, str::len);
        text.truncate(end);
        Ok(text)
    });
    outcome(read.await)
}

fn outcome<T>(read: Result<io::Result<T>, tokio::task::JoinError>) -> Result<T, Failure> {
    read.map_err(io::Error::other)
        .and_then(|read| read)
        .map_err(|error| Failure::Terminal { what: "read from the terminal", error })
}
