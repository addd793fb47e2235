//! The daemon as a process: what it keeps others from seeing, which signals it takes, and what systemd is told.

use std::io;

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, setrlimit, umask};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Files for us alone, and no core dump: the memory holds the seed and session keys.
pub fn harden() -> io::Result<()> {
    umask(Mode::from_raw_mode(0o077));
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    // Also when a core pattern pipes dumps to a program, which ignores the limit; and nobody of the same user may trace us.
    #[cfg(target_os = "linux")]
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    Ok(())
}

/// What we are asked to do by signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// SIGTERM or SIGINT.
    Stop,
    /// SIGHUP: read the settings again.
    Reload,
}

/// The signals that we take.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    /// From now on they no longer end the process by themselves.
    pub fn take() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// The next one. Cancel safe.
    pub async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.terminate.recv() => Request::Stop,
            _ = self.interrupt.recv() => Request::Stop,
            _ = self.hang_up.recv() => Request::Reload,
        }
    }
}

/// Tells systemd, if it wants to know (`NOTIFY_SOCKET`).
pub fn notify(state: sd_notify::NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "systemd could not be told");
    }
}
