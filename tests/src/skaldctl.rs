//! `skaldctl` as a process, on the sockets of one daemon.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use crate::build::program;
use crate::daemon::Daemon;
use crate::process::{Finished, Process, command};

/// The command line of one daemon.
#[derive(Debug)]
pub struct Skaldctl {
    sockets: PathBuf,
}

impl Skaldctl {
    /// For this daemon, running or not.
    pub fn of(daemon: &Daemon) -> Self {
        Self { sockets: daemon.sockets() }
    }

    /// Starts a command.
    pub fn start<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Process {
        Process::spawn("skaldctl", self.command(arguments))
    }

    /// A command, to be started by the caller.
    pub fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut skaldctl = command(program("skaldctl"));
        skaldctl.args(arguments).env("SKALD_AGENTD_DIR", &self.sockets);
        skaldctl
    }

    /// Runs a command to its end without input.
    pub async fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Finished {
        let mut process = self.start(arguments);
        process.close_stdin();
        process.finished().await
    }
}
