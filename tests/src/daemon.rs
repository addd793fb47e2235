//! `skald-agentd` as a process with folders of its own: state, sockets, settings, home.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::build::program;
use crate::process::{Finished, Process, Stream, command};
use crate::sockets::{Control, Host};

/// How a daemon under test differs from the default one.
#[derive(Debug, Clone)]
pub struct DaemonOptions {
    /// Whether a person must authorize each new device.
    pub confirm: bool,
    /// How long approvals and clarifications wait before they are pushed, seconds.
    pub notify_delay_secs: u32,
    /// Further lines of its settings file.
    pub settings: String,
    /// How much faster than the wall's its protocol clock runs.
    pub speed: u32,
}

impl Default for DaemonOptions {
    /// No confirmation and no delay.
    fn default() -> Self {
        Self { confirm: false, notify_delay_secs: 0, settings: String::new(), speed: 1 }
    }
}

/// A daemon, running or not.
#[derive(Debug)]
pub struct Daemon {
    folder: TempDir,
    process: Option<Process>,
    /// What earlier lives of it logged.
    past: String,
    /// How much faster than the wall's its protocol clock runs.
    speed: u32,
}

impl Daemon {
    /// Its folders and its settings, without starting it.
    pub fn prepare(relay_url: &str, options: &DaemonOptions) -> Self {
        let folder = tempfile::Builder::new().prefix("skald-daemon-").tempdir().expect("a temporary folder");
        let daemon = Self { folder, process: None, past: String::new(), speed: options.speed };
        let DaemonOptions { confirm, notify_delay_secs, settings, .. } = options;
        let config = format!(
            "relay_url = {relay_url:?}\nrequire_device_confirmation = {confirm}\nnotify_delay_secs = {notify_delay_secs}\n{settings}"
        );
        std::fs::write(daemon.config(), config).expect("the settings file can be written");
        daemon
    }

    /// Starts it and waits until its sockets answer.
    pub async fn start(relay_url: &str, options: &DaemonOptions) -> Self {
        let mut daemon = Self::prepare(relay_url, options);
        daemon.start_again().await;
        daemon
    }

    /// Starts it on the folders that it has, and waits until its sockets answer.
    pub async fn start_again(&mut self) {
        self.start_by(self.command()).await;
    }

    /// The same, by a command made from [`Self::command`].
    pub async fn start_by(&mut self, command: std::process::Command) {
        let process = Process::spawn("skald-agentd", command);
        process.wrote(Stream::Err, "ready").await;
        self.process = Some(process);
        self.control().await;
    }

    /// The same, to kill itself at this point (`POINT` or `POINT:N`).
    pub async fn start_again_to_die_at(&mut self, point: &str) {
        let mut command = self.command();
        command.env("SKALD_CRASH_AT", point);
        let process = Process::spawn("skald-agentd", command);
        process.wrote_or_ended(Stream::Err, 0, "ready").await;
        self.process = Some(process);
    }

    /// Starts another process on the same folders and waits for nothing.
    pub fn spawn(&self) -> Process {
        Process::spawn("skald-agentd", self.command())
    }

    /// The command that starts it; further arguments may be added.
    pub fn command(&self) -> std::process::Command {
        let mut command = command(program("skald-agentd"));
        command
            .args(["run", "--log-level", "trace", "--config"])
            .arg(self.config())
            .env("SKALD_AGENTD_DIR", self.sockets())
            .env("SKALD_AGENTD_STATE_DIR", self.state())
            .env("SKALD_CLOCK_SPEED", self.speed.to_string())
            .env("HOME", self.folder.path());
        command
    }

    /// SIGKILL.
    pub async fn kill(&mut self) {
        self.process().kill();
        self.end().await;
    }

    /// Buries it after it has died at the point that it was told.
    pub async fn died(&mut self) {
        let finished = self.end().await;
        assert!(finished.was_killed(), "the daemon ended otherwise: {finished}");
    }

    /// SIGTERM; it must end by itself, and well.
    pub async fn stop(&mut self) {
        self.process().terminate();
        let finished = self.end().await;
        assert!(finished.status.success(), "the daemon did not stop well: {finished}");
    }

    /// Waits for its end, which something else brings about.
    pub async fn end(&mut self) -> Finished {
        let process = self.process.take().expect("the daemon runs");
        let finished = process.finished().await;
        self.past += &finished.err;
        self.past += &finished.out;
        finished
    }

    /// Its process.
    pub fn process(&self) -> &Process {
        self.process.as_ref().expect("the daemon runs")
    }

    /// Everything it has logged, over all its lives.
    pub fn log(&self) -> String {
        let now = self.process.as_ref().map(|process| process.text(Stream::Err) + &process.text(Stream::Out));
        self.past.clone() + &now.unwrap_or_default()
    }

    /// A connection to its control socket, greeted and subscribed to events.
    pub async fn control(&self) -> Control {
        Control::connect(&self.sockets().join("control.sock")).await
    }

    /// A host of this name, greeted, with nothing pending.
    pub async fn host(&self, name: &str) -> Host {
        let host = Host::connect(&self.hosts_socket(), name).await;
        host.sync(&[], &[], &[]).await;
        host
    }

    /// The hosts' socket.
    pub fn hosts_socket(&self) -> PathBuf {
        self.sockets().join("agentd.sock")
    }

    /// The folder of its sockets.
    pub fn sockets(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// The folder of its state: seed, database, backup.
    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Its settings file.
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("config.toml")
    }

    /// All of its folders.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
