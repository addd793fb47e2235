//! The daemon as a process: what it keeps others from seeing, which signals it takes, and what systemd is told.

use std::any::Any;
use std::io::{self, Write as _};

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, setrlimit, umask};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Files for us alone, no core dump, and a crash that tells where but not what: the memory holds the seed, session keys and
/// answers.
pub fn harden() -> io::Result<()> {
    umask(Mode::from_raw_mode(0o077));
    keep_memory_private()
}

/// No core dump, and a crash that tells where but not what.
pub fn keep_memory_private() -> io::Result<()> {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(|place| format!(" at {place}")).unwrap_or_default();
        let what = crash_words(panic.payload());
        // Without standard error there is nobody to tell.
        let _ = writeln!(io::stderr(), "crashed{place}: {what}. This is a mistake in the program: please report it");
    }));
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    // Also when a core pattern pipes dumps to a program, which ignores the limit; and nobody of the same user may trace us.
    #[cfg(target_os = "linux")]
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    Ok(())
}

/// The message of a panic, if it was written by us and not made up at run time: then it may quote anything.
fn crash_words(payload: &(dyn Any + Send)) -> &str {
    payload.downcast_ref::<&'static str>().copied().unwrap_or("the message is withheld, as it may quote content")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_shows_our_own_words_and_nothing_made_up_at_run_time() {
        let words = |panic: fn()| {
            let payload = std::panic::catch_unwind(panic).unwrap_err();
            crash_words(&*payload).to_owned()
        };
        assert_eq!(words(|| panic!("the list is empty")), "the list is empty");
        let quoting = words(|| panic!("unexpected {:?}", std::hint::black_box("canary")));
        assert!(quoting.contains("withheld") && !quoting.contains("canary"), "{quoting}");
    }
}
