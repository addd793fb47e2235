//! The terminal phone as a program.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs it on a state folder, with this on its standard input.
pub(crate) fn run(folder: &Path, arguments: &[&str], input: impl AsRef<[u8]>) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_skald-phone"))
        .args(arguments)
        .env("SKALD_PHONE_DIR", folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // One that has refused before it has read everything closes the pipe.
    let _ = child.stdin.take().unwrap().write_all(input.as_ref());
    child.wait_with_output().unwrap()
}
