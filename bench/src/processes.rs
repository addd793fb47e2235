//! What is measured, as processes with folders of their own: the relay, the bare object, the native echo, the daemon.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::json;
use skald_common::ids::NamespaceId;
use skald_tests::{Control, Host, Process, Rpc, Stream, command};
use tempfile::TempDir;

use crate::usage;

/// What a bench needs more of than any person.
const RELAY_VARIABLES: [&str; 4] = [
    "RELAY_RATE_PER_MINUTE=1000000",
    "RELAY_AGENT_RATE_PER_MINUTE=1000000",
    "RELAY_QUEUE_MAX_MESSAGES=10000",
    "RELAY_QUEUE_MAX_BYTES=67108864",
];

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// A program beside this one: built in the same profile.
pub(crate) fn beside(name: &str) -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name(name);
    anyhow::ensure!(program.is_file(), "{} is missing; scripts/bench builds it", program.display());
    Ok(program)
}

/// Where processes keep their files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the folder for temporary files.
    Disk,
    /// In the memory, where the system offers that: nothing waits for a disk.
    Memory,
}

const IN_MEMORY: &str = "/dev/shm";

impl Place {
    /// Whether this system has it.
    pub(crate) fn exists(self) -> bool {
        self == Self::Disk || Path::new(IN_MEMORY).is_dir()
    }

    fn folder(self, name: &str) -> anyhow::Result<TempDir> {
        let mut builder = tempfile::Builder::new();
        // Short: the path of a Unix socket must fit in 103 bytes.
        let prefix = format!("skald-bench-{name}-");
        let builder = builder.prefix(&prefix);
        Ok(match self {
            Self::Disk => builder.tempdir()?,
            Self::Memory => builder.tempdir_in(IN_MEMORY)?,
        })
    }
}

/// A server with a WebSocket.
#[derive(Debug)]
pub(crate) struct Server {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// The process that does the work.
    pub(crate) pid: i32,
    _process: Process,
    _folder: TempDir,
}

impl Server {
    /// Our relay, in its release build.
    pub(crate) async fn relay() -> anyhow::Result<Self> {
        Self::relay_in(Place::Disk).await
    }

    /// Our relay with its data there.
    pub(crate) async fn relay_in(place: Place) -> anyhow::Result<Self> {
        let folder = place.folder("relay")?;
        let mut relay = command(root().join("scripts/relay"));
        relay.arg("--data").arg(folder.path().join("data")).env("TMPDIR", folder.path());
        for variable in RELAY_VARIABLES {
            relay.args(["--var", variable]);
        }
        for name in ["HOME", "XDG_CACHE_HOME"] {
            if let Some(value) = std::env::var_os(name) {
                relay.env(name, value);
            }
        }
        let process = Process::spawn("relay", relay);
        let address = listening(&process).await?;
        // A script runs a script that runs it.
        let pid = usage::descendant(process.pid(), "workerd").context("the relay's runtime is not to be found")?;
        Ok(Self { address, pid, _process: process, _folder: folder })
    }

    /// The bare object in the same runtime.
    pub(crate) async fn bare() -> anyhow::Result<Self> {
        Self::bare_in(Place::Disk).await
    }

    /// The bare objects with their data there.
    pub(crate) async fn bare_in(place: Place) -> anyhow::Result<Self> {
        same_runtime()?;
        let folder = place.folder("bare")?;
        let mut bare = command(workerd());
        let data = folder.path().to_str().context("the temporary folder's name is no text")?;
        bare.arg("serve").arg(root().join("bench/baseline/config.capnp"));
        bare.args([&format!("--directory-path=data={data}"), "--control-fd=1"]);
        let process = Process::spawn("bare object", bare);
        let event = process.wrote_after(Stream::Out, 0, r#""port":"#).await;
        let port: String = event.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
        let address = SocketAddr::from(([127, 0, 0, 1], port.parse()?));
        Ok(Self { address, pid: process.pid(), _process: process, _folder: folder })
    }

    /// This program as a native echo.
    pub(crate) async fn echo() -> anyhow::Result<Self> {
        let folder = Place::Disk.folder("echo")?;
        let mut echo = command(std::env::current_exe()?);
        echo.arg("echo");
        let process = Process::spawn("native echo", echo);
        let address = listening(&process).await?;
        Ok(Self { address, pid: process.pid(), _process: process, _folder: folder })
    }

    /// The address of the direct route to a namespace.
    pub(crate) fn direct_url(&self, namespace: &NamespaceId) -> String {
        format!("ws://{}/ns/{}/v1/ws", self.address, namespace.to_hex())
    }

    /// The address for daemons and phones.
    pub(crate) fn url(&self) -> String {
        format!("ws://{}/v1/ws", self.address)
    }
}

async fn listening(process: &Process) -> anyhow::Result<SocketAddr> {
    const SAYS: &str = "listening on http://";
    let line = process.wrote_after(Stream::Out, 0, SAYS).await;
    let address = line.lines().next().unwrap_or_default();
    address.strip_prefix(SAYS).unwrap_or_default().parse().with_context(|| format!("no address: {address}"))
}

fn workerd() -> PathBuf {
    let system = if cfg!(target_os = "macos") { "darwin" } else { "linux" };
    let machine = if cfg!(target_arch = "aarch64") { "arm64" } else { "64" };
    root().join(format!("node_modules/@cloudflare/workerd-{system}-{machine}/bin/workerd"))
}

/// A comparison under other rules of the runtime would be none.
fn same_runtime() -> anyhow::Result<()> {
    let ours = std::fs::read_to_string(root().join("wrangler.toml"))?;
    let bare = std::fs::read_to_string(root().join("bench/baseline/config.capnp"))?;
    for (name, theirs) in [("compatibility_date", "compatibilityDate"), ("compatibility_flags", "compatibilityFlags")] {
        anyhow::ensure!(
            setting(&ours, name).is_some() && setting(&ours, name) == setting(&bare, theirs),
            "bench/baseline/config.capnp must have the {theirs} of wrangler.toml"
        );
    }
    Ok(())
}

/// The value behind `name =`, without what the two formats end lines with.
fn setting<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(name))?;
    Some(line.trim_start().strip_prefix('=')?.trim().trim_end_matches(','))
}

/// `skald-agentd` with folders of its own, and no delay before items are pushed.
#[derive(Debug)]
pub(crate) struct Daemon {
    folder: TempDir,
    program: PathBuf,
    process: Option<Process>,
}

impl Daemon {
    /// Its folders and its settings; an empty address leaves it without a relay.
    pub(crate) fn prepare(relay_url: &str) -> anyhow::Result<Self> {
        Self::prepare_with(relay_url, "")
    }

    /// The same with more settings.
    pub(crate) fn prepare_with(relay_url: &str, settings: &str) -> anyhow::Result<Self> {
        Self::prepare_in(Place::Disk, relay_url, settings)
    }

    fn prepare_in(place: Place, relay_url: &str, more: &str) -> anyhow::Result<Self> {
        let folder = place.folder("daemon")?;
        let settings =
            format!("relay_url = {relay_url:?}\nrequire_device_confirmation = false\nnotify_delay_secs = 0\n{more}");
        std::fs::write(folder.path().join("config.toml"), settings)?;
        Ok(Self { folder, program: beside("skald-agentd")?, process: None })
    }

    /// The same, started and connected.
    pub(crate) async fn connected(relay: &Server) -> anyhow::Result<(Self, Control)> {
        Self::connected_in(Place::Disk, relay).await
    }

    /// The same, with its files there.
    pub(crate) async fn connected_in(place: Place, relay: &Server) -> anyhow::Result<(Self, Control)> {
        let mut daemon = Self::prepare_in(place, &relay.url(), "")?;
        daemon.start().await?;
        let mut control = daemon.control().await;
        control.connected().await;
        Ok((daemon, control))
    }

    /// Starts it. Gives the time until its socket has answered a greeting.
    pub(crate) async fn start(&mut self) -> anyhow::Result<Duration> {
        let mut daemon = command(&self.program);
        daemon
            .args(["run", "--config"])
            .arg(self.folder.path().join("config.toml"))
            .env("SKALD_AGENTD_DIR", self.folder.path().join("run"))
            .env("SKALD_AGENTD_STATE_DIR", self.folder.path().join("state"))
            .env("HOME", self.folder.path());
        let began = Instant::now();
        let process = self.process.insert(Process::spawn("skald-agentd", daemon));
        let socket = self.folder.path().join("run/control.sock");
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            anyhow::ensure!(!process.has_ended(), "the daemon does not start:\n{}", process.report());
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        let rpc = Rpc::connect(&socket).await;
        let greeting = json!({"protocol": 1, "name": "bench", "version": "1"});
        rpc.call("hello", greeting).await.map_err(|failure| anyhow::anyhow!("hello: {failure:?}"))?;
        Ok(began.elapsed())
    }

    /// Stops it, and waits for that.
    pub(crate) async fn stop(&mut self) {
        if let Some(process) = self.process.take() {
            process.terminate();
            process.finished().await;
        }
    }

    /// The owner's connection.
    pub(crate) async fn control(&self) -> Control {
        Control::connect(&self.folder.path().join("run/control.sock")).await
    }

    /// A host with nothing pending.
    pub(crate) async fn host(&self) -> Host {
        let host = Host::connect(&self.folder.path().join("run/agentd.sock"), "bench").await;
        host.sync(&[], &[], &[]).await;
        host
    }

    /// Its process's number.
    pub(crate) fn pid(&self) -> i32 {
        self.process.as_ref().map_or(0, Process::pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_baseline_runs_under_the_same_rules_as_the_relay() {
        same_runtime().unwrap();
        assert_eq!(setting("a = 1\n  compatibilityDate = \"x\",\n", "compatibilityDate"), Some("\"x\""));
        assert_eq!(setting("a = 1", "b"), None);
    }
}
