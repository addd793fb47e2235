//! What commands print: for people, or JSON for programs.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::Failure;
use crate::rpc::{SecretBuf, encode};

/// Standard output, and what form it takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Output {
    /// JSON, for programs.
    pub(super) json: bool,
}

impl Output {
    pub(super) const fn new(json: bool) -> Self {
        Self { json }
    }

    /// JSON text as one line, or through `show` for people.
    pub(super) fn either(self, json: &str, show: impl FnOnce() -> Result<String, Failure>) -> Result<(), Failure> {
        if self.json {
            return write(json.as_bytes(), b"\n");
        }
        write(show()?.trim_end_matches('\n').as_bytes(), b"\n")
    }

    /// A hint that only makes sense to someone who watches.
    pub(super) fn hint(self, text: &str) {
        if !self.json && io::stderr().is_terminal() {
            note(text);
        }
    }
}

/// One line for people.
pub(super) fn line(text: &str) -> Result<(), Failure> {
    write(text.as_bytes(), b"\n")
}

/// One JSON line.
pub(super) fn value(value: &impl Serialize) -> Result<(), Failure> {
    secret(&encode::value(value))
}

/// One line that may hold a secret: written without passing a buffer that would keep it.
pub(super) fn secret(text: &[u8]) -> Result<(), Failure> {
    let mut line = SecretBuf::new();
    line.extend(text);
    line.extend(b"\n");
    write(&line, b"")
}

/// Something for people to know that is no result: on standard error.
pub(super) fn note(text: &str) {
    // Nobody reads it: then nobody needs it.
    let _ = writeln!(io::stderr(), "{text}");
}

fn write(text: &[u8], end: &[u8]) -> Result<(), Failure> {
    let written = (|| {
        let mut stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        stdout.write_all(text)?;
        stdout.write_all(end)
    })();
    written.map_err(|error| Failure::Terminal { what: "write the result", error })
}

/// Text from elsewhere, made safe for a terminal.
pub(super) fn safe(text: &str) -> String {
    crate::hub::text::escape(text)
}

/// Text of several lines from elsewhere, made safe, each line indented.
pub(super) fn safe_block(text: &str, indent: &str) -> String {
    text.lines().flat_map(|line| [indent, &safe(line), "\n"].map(str::to_owned)).collect()
}

/// The first digits of a key: enough to name a device.
pub(super) fn short(key: &str) -> String {
    key.chars().take(8).collect()
}

/// Unix milliseconds, by this machine's clock.
pub(super) fn now() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
}

/// How long ago a time in Unix milliseconds is, in words.
pub(super) fn ago(then: u64, now: u64) -> String {
    let secs = now.saturating_sub(then) / 1000;
    if secs < 5 { "just now".to_owned() } else { format!("{} ago", span(secs)) }
}

/// Seconds in words.
pub(super) fn span(secs: u64) -> String {
    match secs {
        0..120 => format!("{secs} s"),
        120..7_200 => format!("{} min", secs / 60),
        7_200..172_800 => format!("{} h", secs / 3600),
        _ => format!("{} days", secs / 86_400),
    }
}

/// A table for people: columns as wide as their widest cell.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_words() {
        let now = 1_000_000_000_000;
        for (secs, text) in
            [(0, "just now"), (90, "90 s ago"), (180, "3 min ago"), (7200, "2 h ago"), (200_000, "2 days ago")]
        {
            assert_eq!(ago(now - secs * 1000, now), text);
        }
        assert_eq!(ago(now + 5000, now), "just now");
    }

    #[test]
    fn tables_are_aligned() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        assert_eq!(table(&[row(["a", "one"]), row(["bcd", ""]), row(["ä", "x"])]), "a    one\nbcd\nä    x\n");
    }
}
