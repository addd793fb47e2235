//! The relay: one of our own on the real runtime, or the one that `RELAY_URL` names.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use crate::build::root;
use crate::process::{Process, Stream, command};
use crate::within;

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
    arguments: Vec<String>,
    build: Build,
    process: Process,
}

/// Which of the relay's two builds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Build {
    /// The one that is deployed.
    Plain,
    /// The one whose objects forget their memory between any two events, and die where a test says.
    Forgetful,
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
        Self::build(Build::Plain, &variables(vars)).await
    }

    /// The same, of the build whose objects forget all memory between any two events, and which can be told where to
    /// [die](Self::start_again_to_die_at).
    pub async fn forgetful(vars: &[&str]) -> Self {
        Self::build(Build::Forgetful, &variables(vars)).await
    }

    /// The same as [`Self::own`], with these arguments of `scripts/relay`.
    pub async fn with(arguments: &[&str]) -> Self {
        Self::build(Build::Plain, arguments).await
    }

    /// The same as [`Self::forgetful`], with these arguments of `scripts/relay`.
    pub async fn forgetful_with(arguments: &[&str]) -> Self {
        Self::build(Build::Forgetful, arguments).await
    }

    async fn build(build: Build, arguments: &[&str]) -> Self {
        let home = tempfile::Builder::new().prefix("skald-relay-").tempdir().expect("a temporary folder");
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let (process, port) = serve(0, home.path(), build, &arguments).await;
        let local = Local { port, home, arguments, build, process };
        Self { url: format!("ws://127.0.0.1:{port}/v1/ws"), local: Some(local) }
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

    /// One GET of a relay of our own; the whole response.
    pub async fn get(&self, path: &str) -> String {
        let host = format!("127.0.0.1:{}", self.local().port);
        let mut stream = TcpStream::connect(&host).await.expect("the relay listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("the relay reads");
        let mut response = String::new();
        within("the response", stream.read_to_string(&mut response)).await.expect("the relay answers");
        response
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

    /// Waits until a relay of our own has logged this.
    pub async fn logged(&self, text: &str) {
        self.local().process.wrote(Stream::Out, text).await;
    }

    /// What a failing test shows of it.
    pub fn report(&self) -> String {
        self.local.as_ref().map(|local| local.process.report()).unwrap_or_default()
    }

    /// How much memory its runtime holds right now, bytes; of a relay of our own.
    pub fn resident(&self) -> u64 {
        let script = self.local().process.pid();
        let runtime =
            descendants(script).into_iter().find(|&pid| status_of(pid, "Name:").as_deref() == Some("workerd"));
        let resident = runtime.and_then(|pid| status_of(pid, "VmRSS:")).expect("the runtime is a child of the script");
        let kib: u64 = resident.trim_end_matches(" kB").parse().expect("a number of kB");
        kib * 1024
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
        self.serve_again(None).await;
    }

    /// The same, to stand still at this point (`POINT` or `POINT:N`) until it is killed.
    pub async fn start_again_to_die_at(&mut self, point: &str) {
        self.serve_again(Some(format!("--var=RELAY_CRASH_AT={point}"))).await;
    }

    async fn serve_again(&mut self, further: Option<String>) {
        let local = self.local.as_mut().expect("a relay of our own");
        assert!(further.is_none() || local.build == Build::Forgetful, "the plain build has no points to die at");
        let arguments: Vec<String> = local.arguments.iter().cloned().chain(further).collect();
        (local.process, _) = serve(local.port, local.home.path(), local.build, &arguments).await;
    }

    /// Waits, as long as it takes, until it stands still at the point where it is to die. Cancel safe.
    pub async fn stands_still(&self) {
        self.local().process.writes(Stream::Out, "crash point ").await;
    }

    fn local(&self) -> &Local {
        self.local.as_ref().expect("a relay of our own")
    }
}

/// A process and all that it has started, and they.
fn descendants(pid: i32) -> Vec<i32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    [pid].into_iter().chain(children.flat_map(descendants)).collect()
}

/// A line of a process's status, without its name.
fn status_of(pid: i32, name: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(status.lines().find_map(|line| line.strip_prefix(name))?.trim().to_owned())
}

/// Arguments that set variables.
fn variables<'a>(vars: &[&'a str]) -> Vec<&'a str> {
    vars.iter().flat_map(|&var| ["--var", var]).collect()
}

/// The data folder's name.
const DATA: &str = "data";

async fn serve(port: u16, home: &Path, build: Build, arguments: &[String]) -> (Process, u16) {
    let mut relay = command(root().join("scripts/relay"));
    if build == Build::Forgetful {
        relay.arg("--build").arg(build_forgetful());
    }
    relay.args(["--port", &port.to_string(), "--data"]).arg(home.join(DATA)).args(arguments).env("TMPDIR", home);
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

/// The folder of the forgetful build, which is made if it is missing or older than its sources; it is taken as it is where
/// the other programs are.
fn build_forgetful() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let folder = root().join("relay-worker/build-evict");
        let as_it_is = std::env::var_os("SKALD_TEST_BIN_DIR").is_some() && folder.is_dir();
        if !as_it_is {
            let script = root().join("scripts/build-relay");
            let output =
                std::process::Command::new(script).arg("--debug-eviction").output().expect("the script starts");
            assert!(output.status.success(), "the relay does not build: {}", String::from_utf8_lossy(&output.stderr));
        }
        folder
    };
    FOLDER.get_or_init(build).clone()
}
