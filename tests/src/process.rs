//! A child process whose output is kept and can be awaited. It runs in a process group of its own, which is killed when
//! the [`Process`] is dropped; where util-linux is installed it also ends with the test program, however that ends.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, mpsc};
use std::thread;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::sync::watch;

use crate::within;

/// How much of a process's output a failing test prints, bytes from the end.
const SHOWN: usize = 24 * 1024;

/// Which output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error: the logs.
    Err,
}

/// A running child, or one that has ended.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: Pid,
    /// `None` once reaped, so that no signal reaches a later process with the same number.
    child: Arc<Mutex<Option<Child>>>,
    stdin: Option<ChildStdin>,
    transcript: watch::Receiver<Transcript>,
}

/// What it wrote, and how it ended.
#[derive(Debug, Default)]
struct Transcript {
    out: String,
    err: String,
    status: Option<ExitStatus>,
}

/// How a process ended.
#[derive(Debug, Clone)]
pub struct Finished {
    /// Its exit status.
    pub status: ExitStatus,
    /// All of its standard output.
    pub out: String,
    /// All of its standard error.
    pub err: String,
}

impl Finished {
    /// Whether SIGKILL ended it.
    pub fn was_killed(&self) -> bool {
        self.status.signal() == Some(Signal::KILL.as_raw())
    }

    /// The exit code; panics if a signal ended it.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("ended by a signal: {self}"))
    }

    /// Itself, if the exit code is 0; panics with the output otherwise.
    #[allow(clippy::return_self_not_must_use, reason = "often the check is all that is wanted")]
    pub fn ok(self) -> Self {
        assert!(self.status.success(), "failed: {self}");
        self
    }

    /// The standard output as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("no JSON ({error}): {self}"))
    }

    /// Whether either output contains `text`.
    pub fn says(&self, text: &str) -> bool {
        self.out.contains(text) || self.err.contains(text)
    }
}

impl std::fmt::Display for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\n-- stdout\n{}\n-- stderr\n{}", self.status, self.out, self.err)
    }
}

/// A command without the caller's environment, except for what finding programs takes.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear();
    for name in ["PATH", "LANG", "TMPDIR"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

impl Process {
    /// Starts it. `name` stands above its output when a test fails.
    pub fn spawn(name: &str, command: Command) -> Self {
        let program = command.get_program().to_owned();
        let mut child = spawn(command).unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display()));
        let pid = Pid::from_child(&child);
        let stdin = child.stdin.take();
        let (sender, transcript) = watch::channel(Transcript::default());
        let sender = Arc::new(sender);
        let out = child.stdout.take().map(|pipe| collect(pipe, Stream::Out, Arc::clone(&sender)));
        let err = child.stderr.take().map(|pipe| collect(pipe, Stream::Err, Arc::clone(&sender)));
        let child = Arc::new(Mutex::new(Some(child)));
        let owner = Arc::clone(&child);
        thread::spawn(move || {
            // Told of the end without reaping: until the lock is held, the number stays the child's own.
            while waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).is_err() {}
            let mut owned = owner.lock().unwrap_or_else(PoisonError::into_inner).take();
            let status = owned.as_mut().and_then(|child| child.wait().ok());
            for reader in [out, err].into_iter().flatten() {
                let _ = reader.join();
            }
            sender.send_modify(|transcript| transcript.status = status);
        });
        Self { name: name.to_owned(), pid, child, stdin, transcript }
    }

    /// Its number.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Writes to its standard input.
    pub fn write(&mut self, text: &str) {
        self.write_bytes(text.as_bytes());
    }

    /// The same, of any bytes.
    pub fn write_bytes(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().expect("standard input was closed before");
        stdin.write_all(bytes).and_then(|()| stdin.flush()).expect("the process reads its input");
    }

    /// The same, unless it has died.
    pub fn write_if_alive(&mut self, text: &str) {
        let stdin = self.stdin.as_mut().expect("standard input was closed before");
        let _ = stdin.write_all(text.as_bytes()).and_then(|()| stdin.flush());
    }

    /// Ends its standard input.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Everything it wrote so far.
    pub fn text(&self, stream: Stream) -> String {
        self.transcript.borrow().get(stream).to_owned()
    }

    /// Waits until it has written `text`.
    pub async fn wrote(&self, stream: Stream, text: &str) {
        self.wrote_after(stream, 0, text).await;
    }

    /// Waits until it has written `text` after the first `from` bytes of its output; gives the rest from `text` on.
    pub async fn wrote_after(&self, stream: Stream, from: usize, text: &str) -> String {
        self.wrote_or_ended(stream, from, text).await.unwrap_or_else(|| {
            panic!("{} ended ({:?}) without writing {text:?}", self.name, self.transcript.borrow().status)
        })
    }

    /// The same; `None` if it ends without writing `text`.
    pub async fn wrote_or_ended(&self, stream: Stream, from: usize, text: &str) -> Option<String> {
        let mut transcript = self.transcript.clone();
        let written = |t: &Transcript| t.get(stream).get(from..).and_then(|tail| tail.find(text)).map(|at| from + at);
        let what = format!("{:?} from {}", text, self.name);
        let seen = within(&what, transcript.wait_for(|t| written(t).is_some() || t.status.is_some())).await;
        let seen = seen.expect("the transcript ends with a status");
        written(&seen).map(|at| seen.get(stream)[at..].to_owned())
    }

    /// Waits, as long as it takes, until it has written `text`, or for ever if it ends before. Cancel safe.
    pub(crate) async fn writes(&self, stream: Stream, text: &str) {
        if self.transcript.clone().wait_for(|t| t.get(stream).contains(text)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits, as long as it takes, until it has ended. Cancel safe.
    pub async fn ends(&self) {
        // The transcript ends with a status.
        let _ = self.transcript.clone().wait_for(|t| t.status.is_some()).await;
    }

    /// Waits until it has ended.
    pub async fn finished(&self) -> Finished {
        let mut transcript = self.transcript.clone();
        let ended = within(&format!("the end of {}", self.name), transcript.wait_for(|t| t.status.is_some())).await;
        let ended = ended.expect("the transcript ends with a status");
        Finished { status: ended.status.expect("just seen"), out: ended.out.clone(), err: ended.err.clone() }
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.transcript.borrow().status.is_some()
    }

    /// SIGTERM to its group.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// SIGKILL to its group.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Any signal to its group.
    pub fn signal(&self, signal: Signal) {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        if child.is_some() {
            // It may have ended a moment ago, which is what was wanted.
            let _ = kill_process_group(self.pid, signal);
        }
    }

    /// Its output as a failing test shows it.
    pub fn report(&self) -> String {
        let transcript = self.transcript.borrow();
        let mut report = String::new();
        for (stream, text) in [("stdout", &transcript.out), ("stderr", &transcript.err)] {
            if !text.is_empty() {
                let start = text.len().saturating_sub(SHOWN);
                let start = (start..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(0);
                report += &["---- ", &self.name, " ", stream, "\n", text[start..].trim_end(), "\n"].concat();
            }
        }
        report
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            eprint!("{}", self.report());
        }
    }
}

impl Transcript {
    fn get(&self, stream: Stream) -> &str {
        match stream {
            Stream::Out => &self.out,
            Stream::Err => &self.err,
        }
    }
}

fn collect(
    mut pipe: impl Read + Send + 'static,
    stream: Stream,
    transcript: Arc<watch::Sender<Transcript>>,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut buffer = [0; 8192];
        let mut partial = Vec::new();
        while let Ok(count @ 1..) = pipe.read(&mut buffer) {
            partial.extend_from_slice(&buffer[..count]);
            // A character may be cut in two; the rest of it comes with the next read.
            let whole = match std::str::from_utf8(&partial) {
                Err(error) if error.error_len().is_none() => error.valid_up_to(),
                _ => partial.len(),
            };
            let text = String::from_utf8_lossy(&partial[..whole]).into_owned();
            partial.drain(..whole);
            transcript.send_modify(|transcript| match stream {
                Stream::Out => transcript.out += &text,
                Stream::Err => transcript.err += &text,
            });
        }
    })
}

type Spawned = std::io::Result<Child>;
type Job = (Command, mpsc::Sender<Spawned>);

/// Starts a command from a thread that lives as long as the program: "end with your parent" means its thread.
fn spawn(command: Command) -> Spawned {
    static SPAWNER: LazyLock<Mutex<mpsc::Sender<Job>>> = LazyLock::new(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        thread::spawn(move || {
            let tied = Command::new("setpriv").args(["--pdeathsig", "KILL", "true"]).output();
            let tied = tied.is_ok_and(|output| output.status.success());
            for (command, reply) in jobs {
                let _ = reply.send(spawn_here(command, tied));
            }
        });
        Mutex::new(sender)
    });
    let (reply, spawned) = mpsc::channel();
    let sender = SPAWNER.lock().unwrap_or_else(PoisonError::into_inner).clone();
    sender.send((command, reply)).map_err(|_| std::io::Error::other("the spawner has ended"))?;
    spawned.recv().map_err(|_| std::io::Error::other("the spawner has ended"))?
}

fn spawn_here(command: Command, tied: bool) -> Spawned {
    let mut command = if tied { tie(&command) } else { command };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn()
}

/// The same command behind `setpriv`, which becomes it.
fn tie(command: &Command) -> Command {
    let mut tied = Command::new("setpriv");
    tied.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args()).env_clear();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            tied.env(name, value);
        }
    }
    if let Some(folder) = command.get_current_dir() {
        tied.current_dir(folder);
    }
    tied
}
