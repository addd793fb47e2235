//! Daemon and command line as processes, in a temporary folder.

#[cfg(target_os = "linux")]
pub(crate) mod disk;

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};

/// How long anything may take before the test fails.
const PATIENCE: Duration = Duration::from_mins(1);

/// A child whose lines of one stream can be awaited. Killed when dropped.
pub(crate) struct Running {
    child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
    seen: Vec<String>,
}

/// Which stream [`Running`] reads.
#[derive(Clone, Copy)]
pub(crate) enum Stream {
    Out,
    Err,
}

impl Running {
    pub(crate) fn start(mut command: Command, stream: Stream) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Self::with_streams(command, stream)
    }

    /// The other streams are the caller's.
    pub(crate) fn with_streams(mut command: Command, stream: Stream) -> Self {
        match stream {
            Stream::Out => command.stdout(Stdio::piped()),
            Stream::Err => command.stderr(Stdio::piped()),
        };
        let mut child = command.spawn().expect("the program starts");
        let pipe: Box<dyn Read + Send> = match stream {
            Stream::Out => Box::new(child.stdout.take().expect("a pipe")),
            Stream::Err => Box::new(child.stderr.take().expect("a pipe")),
        };
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { stdin: child.stdin.take(), child, lines, seen: Vec::new() }
    }

    /// The next line that contains `text`.
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        loop {
            let Ok(line) = self.lines.recv_timeout(PATIENCE) else {
                panic!("no line with {text:?}, but:\n{}", self.seen.join("\n"));
            };
            self.seen.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).expect("it is alive");
    }

    /// Ends it by a signal; its exit code.
    pub(crate) fn finish_by(self, signal: rustix::process::Signal) -> Option<i32> {
        self.signal(signal);
        self.finish().0
    }

    /// Waits for the end: the exit code, and all lines.
    pub(crate) fn finish(mut self) -> (Option<i32>, Vec<String>) {
        drop(self.stdin.take());
        // The reader ends with the process.
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            self.seen.push(line);
        }
        let status = self.child.wait().expect("it ends");
        (status.code(), std::mem::take(&mut self.seen))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder for one daemon.
pub(crate) struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn sockets(&self) -> PathBuf {
        self.path("run")
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.path("config.toml")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("COLUMNS", "100")
            .env("HOME", self.folder.path())
            .env("SKALD_AGENTD_DIR", self.sockets());
        command
    }

    pub(crate) fn agentd(&self) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_skald-agentd"));
        command.env("SKALD_AGENTD_STATE_DIR", self.path("state")).env("SKALD_AGENTD_CONFIG", self.config());
        command
    }

    /// A daemon that answers on its sockets.
    pub(crate) fn daemon(&self) -> Running {
        let mut command = self.agentd();
        command.args(["run", "--log-level", "debug"]);
        let mut daemon = Running::start(command, Stream::Err);
        daemon.wait_for("ready");
        daemon
    }

    pub(crate) fn skaldctl(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_skaldctl"));
        command.args(arguments);
        command
    }

    /// Runs skaldctl to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Finished {
        Finished::of(self.skaldctl(arguments).stdin(Stdio::null()).output().expect("it runs"))
    }

    /// The same, with something on its standard input.
    pub(crate) fn run_with(&self, arguments: &[&str], input: &str) -> Finished {
        let mut command = self.skaldctl(arguments);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
        Finished::of(child.wait_with_output().expect("it ends"))
    }

    /// Starts skaldctl; its standard output can be awaited.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        Running::start(self.skaldctl(arguments), Stream::Out)
    }
}

/// A connection to the control socket that listens to events.
pub(crate) struct Control {
    stream: UnixStream,
    lines: Lines<BufReader<UnixStream>>,
}

impl Control {
    pub(crate) fn connect(home: &Home) -> Self {
        let stream = UnixStream::connect(home.sockets().join("control.sock")).expect("the daemon listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        let lines = BufReader::new(stream.try_clone().expect("a second handle")).lines();
        let mut control = Self { stream, lines };
        control.call("hello", &json!({"protocol": 1, "name": "test", "version": "0"}));
        control.call("events.subscribe", &json!({}));
        control
    }

    /// Waits until something is pending: its id.
    pub(crate) fn pending(&mut self) -> String {
        loop {
            let inbox = self.call("inbox.list", &json!({}));
            if let Some(id) = inbox[0]["id"].as_str() {
                return id.to_owned();
            }
            while self.receive()["params"]["type"] != "inbox.changed" {}
        }
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        writeln!(self.stream, "{call}").expect("the daemon reads");
        loop {
            // Events that come before the answer are older than what it says.
            let mut message = self.receive();
            if message["id"] == 1 {
                return message["result"].take();
            }
        }
    }

    fn receive(&mut self) -> Value {
        let line = self.lines.next().expect("the connection lasts").expect("an answer in time");
        serde_json::from_str(&line).expect("JSON")
    }
}

/// How a program ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Finished {
    pub(crate) fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

pub(crate) fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).expect("it exists").permissions().mode() & 0o7777
}
