//! What `skaldctl` does: a client of the daemon's sockets like any other program (socket API).
//!
//! * `args`: the command line and its help.
//! * [`client`]: connects, says hello, calls, takes calls.
//! * one module per group of commands; `output` for what they print.
//!
//! Exit codes: 0 done, approved or answered; 1 rejected or declined; 2 trouble, told in one line with the remedy; 3 timed
//! out; 130 interrupted. A reader that goes away, as `head` does, is trouble that nobody needs to be told of.

mod answer;
mod args;
mod ask;
pub mod client;
mod config;
mod devices;
mod events;
mod inbox;
mod output;
mod pair;
mod prompt;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use client::{Client, ClientError};
use output::Output;

use crate::process::keep_memory_private;
use crate::server::Socket;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done, approved, answered.
    Done,
    /// Rejected, declined.
    No,
    /// It did not come to an answer; told on standard error.
    Trouble,
    /// Nobody answered in time.
    TimedOut,
    /// Ctrl-C.
    Interrupted,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::No => 1,
            Exit::Trouble => 2,
            Exit::TimedOut => 3,
            Exit::Interrupted => 130,
        })
    }
}

/// Why a command failed, in one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The daemon, or the way to it.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The command line makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A file could not be written.
    #[error("cannot write {}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Standard output or the terminal.
    #[error("cannot {what}: {error}")]
    Terminal {
        /// What was tried.
        what: &'static str,
        /// Why not.
        error: std::io::Error,
    },
    /// What the daemon gave cannot be shown.
    #[error("{0}")]
    Unusable(String),
}

impl Failure {
    /// Whoever read our output has gone.
    fn is_lost_reader(&self) -> bool {
        matches!(self, Self::Terminal { error, .. } if error.kind() == std::io::ErrorKind::BrokenPipe)
    }
}

/// Runs `skaldctl` with the process's arguments.
pub fn main() -> ExitCode {
    // Answers pass through here, and so do pairing codes.
    if let Err(error) = keep_memory_private() {
        output::note(&format!("skaldctl: cannot protect the process's memory: {error}"));
        return Exit::Trouble.into();
    }
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::note(&format!("skaldctl: cannot start: {error}"));
            return Exit::Trouble.into();
        }
    };
    let exit = match runtime.block_on(run(cli)) {
        Ok(exit) => exit,
        Err(failure) => {
            if !failure.is_lost_reader() {
                output::note(&format!("skaldctl: {failure}"));
            }
            Exit::Trouble
        }
    };
    // A thread may still be waiting for a line from the terminal.
    runtime.shutdown_background();
    exit.into()
}

async fn run(cli: Cli) -> Result<Exit, Failure> {
    let session = Session { dir: cli.dir, output: Output::new(cli.json) };
    match cli.command {
        Command::Status => status::run(&session).await,
        Command::Pair(options) => pair::run(&session, options).await,
        Command::Devices { action } => devices::run(&session, action.unwrap_or_default()).await,
        Command::Authorize { device } => devices::authorize(&session, &device).await,
        Command::Revoke { device } => devices::revoke(&session, &device).await,
        Command::Inbox => inbox::run(&session).await,
        Command::Answer { id, answer } => answer::run(&session, &id, answer).await,
        Command::Notify { title, body } => ask::notify(&session, &title, &body).await,
        Command::Ask(options) => ask::run(&session, options).await,
        Command::Config { action } => config::run(&session, action).await,
        Command::Events => events::run(&session).await,
    }
}

/// What all commands share.
struct Session {
    dir: Option<PathBuf>,
    output: Output,
}

impl Session {
    /// The owner's socket.
    async fn control(&self) -> Result<Client, Failure> {
        let client = Client::connect(Socket::Control, self.dir.as_deref(), &client::Hello::new("skaldctl")).await?;
        warn_of_other_version(&client);
        Ok(client)
    }

    /// The hosts' socket.
    async fn host(&self, hello: &client::Hello<'_>) -> Result<Client, Failure> {
        let client = Client::connect(Socket::Hosts, self.dir.as_deref(), hello).await?;
        warn_of_other_version(&client);
        Ok(client)
    }
}

fn warn_of_other_version(client: &Client) {
    let (ours, theirs) = (crate::server::VERSION, client.daemon_version());
    if ours != theirs {
        let theirs = output::safe(theirs);
        output::note(&format!("skaldctl is version {ours}, the daemon {theirs}: restart the daemon after an update"));
    }
}
