//! `skald-phone` as a process with a folder of its own: one process per command, as a person would run it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::build::program;
use crate::process::{Finished, Process, command};

/// A phone's folder, and the commands run on it.
#[derive(Debug)]
pub struct Phone {
    folder: TempDir,
    name: String,
    /// How much faster than the wall's its protocol clock runs.
    speed: u32,
}

impl Phone {
    /// A phone that is not paired.
    pub fn new(name: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("skald-phone-").tempdir().expect("a temporary folder");
        Self { folder, name: name.to_owned(), speed: 1 }
    }

    /// With a protocol clock that runs so much faster than the wall's.
    #[must_use]
    pub fn at_speed(self, speed: u32) -> Self {
        Self { speed, ..self }
    }

    /// The name it gives itself when it pairs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts a command.
    pub fn start<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Process {
        self.start_to_die_at("", arguments)
    }

    /// Starts a command that is to kill itself at this point (`POINT` or `POINT:N`).
    pub fn start_to_die_at<S: AsRef<OsStr>>(&self, point: &str, arguments: &[S]) -> Process {
        let mut phone = self.command(arguments);
        phone.env("SKALD_CRASH_AT", point);
        Process::spawn(&format!("skald-phone of {}", self.name), phone)
    }

    /// A command, to be started by the caller.
    pub fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut phone = command(program("skald-phone"));
        phone
            .args(arguments)
            .env("SKALD_PHONE_DIR", self.state())
            .env("SKALD_CLOCK_SPEED", self.speed.to_string())
            .env("HOME", self.folder.path())
            .env("XDG_STATE_HOME", self.folder.path().join("xdg"));
        phone
    }

    /// Runs a command to its end without input.
    pub async fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Finished {
        self.run_with(arguments, "").await
    }

    /// Runs a command to its end with this input.
    pub async fn run_with<S: AsRef<OsStr>>(&self, arguments: &[S], input: &str) -> Finished {
        self.run_with_bytes(arguments, input.as_bytes()).await
    }

    /// Runs a command to its end with this input.
    pub async fn run_with_bytes<S: AsRef<OsStr>>(&self, arguments: &[S], input: &[u8]) -> Finished {
        let mut process = self.start(arguments);
        if !input.is_empty() {
            process.write_bytes(input);
        }
        process.close_stdin();
        process.finished().await
    }

    /// Pairs by the content of a QR code, read from standard input.
    pub async fn pair(&self, qr: &str) -> Finished {
        self.run_with(&["pair", "--name", &self.name, "-"], qr).await
    }

    /// Pairs, and hands the relay this to push with: `--push-token`, or `--push-url`, and what it says.
    pub async fn pair_to_be_woken(&self, qr: &str, option: &str, value: &str) -> Finished {
        self.run_with(&["pair", "--name", &self.name, option, value, "-"], qr).await
    }

    /// `inbox --json`.
    pub async fn inbox(&self) -> serde_json::Value {
        self.run(&["inbox", "--json"]).await.ok().json()
    }

    /// Where it keeps its pairings.
    pub fn state(&self) -> PathBuf {
        self.folder.path().join("phone")
    }

    /// All of its folders.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
