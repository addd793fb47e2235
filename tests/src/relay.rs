//! The relay: one of our own on the real runtime, or the one that `RELAY_URL` names.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use tempfile::TempDir;
use tokio::sync::Mutex;

use crate::build::root;
use crate::process::{Process, Stream, command};

/// A relay and where it is.
#[derive(Debug)]
pub struct Relay {
    url: String,
    local: Option<Local>,
}

#[derive(Debug)]
struct Local {
    port: u16,
    /// Holds the data folder, and what the script leaves behind when it is killed.
    home: TempDir,
    vars: Vec<String>,
    process: Process,
}

impl Relay {
    /// The relay that the tests of one program share; it lives as long as any of them uses it.
    pub async fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Relay>> = Mutex::const_new(Weak::new());
        let mut shared = SHARED.lock().await;
        if let Some(relay) = shared.upgrade() {
            return relay;
        }
        let relay = Arc::new(match Self::external() {
            Some(url) => Self { url, local: None },
            None => Self::own(&[]).await,
        });
        *shared = Arc::downgrade(&relay);
        relay
    }

    /// A relay of this test alone, which it may stop; `vars` as `NAME=VALUE`. Ask [`Self::controllable`] before.
    pub async fn own(vars: &[&str]) -> Self {
        let home = tempfile::Builder::new().prefix("skald-relay-").tempdir().expect("a temporary folder");
        let vars: Vec<String> = vars.iter().map(|&var| var.to_owned()).collect();
        let (process, port) = serve(0, home.path(), &vars).await;
        Self { url: format!("ws://127.0.0.1:{port}/v1/ws"), local: Some(Local { port, home, vars, process }) }
    }

    /// Whether tests have relays of their own; if not, says that the calling test is skipped.
    pub fn controllable() -> bool {
        let controllable = Self::external().is_none();
        if !controllable {
            eprintln!("skipped: needs control over the relay, and RELAY_URL names another one");
        }
        controllable
    }

    fn external() -> Option<String> {
        std::env::var("RELAY_URL").ok().filter(|url| !url.is_empty())
    }

    /// Its control socket, for daemons and phones.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where it keeps namespaces.
    pub fn data(&self) -> Option<PathBuf> {
        self.local.as_ref().map(|local| local.home.path().join(DATA))
    }

    /// What it wrote to its log.
    pub fn log(&self) -> String {
        let Some(local) = &self.local else { return String::new() };
        local.process.text(Stream::Out) + &local.process.text(Stream::Err)
    }

    /// What a failing test shows of it.
    pub fn report(&self) -> String {
        self.local.as_ref().map(|local| local.process.report()).unwrap_or_default()
    }

    /// SIGKILL, as in a power cut; what it has accepted must be on disk.
    pub async fn kill(&self) {
        let process = &self.local().process;
        process.kill();
        process.finished().await;
    }

    /// SIGTERM, as its operator would; gives how it ended.
    pub async fn stop(&self) -> crate::Finished {
        let process = &self.local().process;
        process.terminate();
        process.finished().await
    }

    /// Starts it again on the same port and folder after [`Self::kill`] or [`Self::stop`].
    pub async fn start_again(&mut self) {
        let local = self.local.as_mut().expect("a relay of our own");
        (local.process, _) = serve(local.port, local.home.path(), &local.vars).await;
    }

    fn local(&self) -> &Local {
        self.local.as_ref().expect("a relay of our own")
    }
}

/// The data folder's name.
const DATA: &str = "data";

async fn serve(port: u16, home: &Path, vars: &[String]) -> (Process, u16) {
    let mut relay = command(root().join("scripts/relay"));
    relay.args(["--port", &port.to_string(), "--data"]).arg(home.join(DATA)).env("TMPDIR", home);
    for var in vars {
        relay.args(["--var", var]);
    }
    // The script finds (and, the first time, builds) the relay with the caller's tools.
    for name in ["HOME", "XDG_CACHE_HOME", "CARGO_HOME", "RUSTUP_HOME"] {
        if let Some(value) = std::env::var_os(name) {
            relay.env(name, value);
        }
    }
    let process = Process::spawn("relay", relay);
    let line = process.wrote_after(Stream::Out, 0, "listening on http://").await;
    let port = line.lines().next().and_then(|line| line.rsplit(':').next()).and_then(|port| port.parse().ok());
    (process, port.expect("the relay says its port"))
}
