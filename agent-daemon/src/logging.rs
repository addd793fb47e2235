//! Where messages go: to the journal under systemd, else to standard error.
//!
//! The daemon logs with `tracing`. The journal's logger is one of the `log` crate, and `tracing` (feature `log`) speaks to
//! `log` by itself as long as no subscriber of its own is installed: so it is one or the other. Messages of libraries are
//! shown from `warn` up, whatever the level. No content, no secret and no whole key is ever logged.

use std::io::IsTerminal;

use systemd_journal_logger::{JournalLog, connected_to_journal};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Our crates as `tracing` and `log` name them.
const OURS: [&str; 4] = ["skald_agentd", "skald_common", "skald_link", "skaldctl"];

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Level {
    /// What went wrong.
    Error,
    /// Also what should be looked at.
    Warn,
    /// Also what happens, in few words.
    Info,
    /// Also why.
    Debug,
    /// Everything.
    Trace,
}

/// Starts logging for this process. The error is for standard error: there is no log yet.
pub fn start(level: Level) -> Result<(), String> {
    if connected_to_journal() {
        let journal = JournalLog::new().map_err(|error| format!("the journal cannot be reached: {error}"))?;
        let level = level.for_log();
        log::set_boxed_logger(Box::new(OursFirst { journal, level })).map_err(|error| error.to_string())?;
        log::set_max_level(level);
        return Ok(());
    }
    let ours = LevelFilter::from(level.for_tracing());
    let directives = OURS.map(|target| format!("{target}={ours}")).join(",");
    let filter = EnvFilter::builder().parse(format!("warn,{directives}")).map_err(|error| error.to_string())?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .try_init()
        .map_err(|error| error.to_string())
}

impl Level {
    const fn for_log(self) -> log::LevelFilter {
        match self {
            Self::Error => log::LevelFilter::Error,
            Self::Warn => log::LevelFilter::Warn,
            Self::Info => log::LevelFilter::Info,
            Self::Debug => log::LevelFilter::Debug,
            Self::Trace => log::LevelFilter::Trace,
        }
    }

    const fn for_tracing(self) -> tracing::Level {
        match self {
            Self::Error => tracing::Level::ERROR,
            Self::Warn => tracing::Level::WARN,
            Self::Info => tracing::Level::INFO,
            Self::Debug => tracing::Level::DEBUG,
            Self::Trace => tracing::Level::TRACE,
        }
    }
}

/// The journal, with libraries held to warnings.
struct OursFirst {
    journal: JournalLog,
    level: log::LevelFilter,
}

impl log::Log for OursFirst {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        passes(metadata.target(), metadata.level(), self.level)
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            self.journal.log(record);
        }
    }

    fn flush(&self) {
        self.journal.flush();
    }
}

fn passes(target: &str, message: log::Level, limit: log::LevelFilter) -> bool {
    let crate_name = target.split("::").next().unwrap_or_default();
    message <= if OURS.contains(&crate_name) { limit } else { limit.min(log::LevelFilter::Warn) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_held_to_warnings() {
        let limit = log::LevelFilter::Debug;
        assert!(passes("skald_agentd::hub", log::Level::Debug, limit));
        assert!(!passes("skald_agentd::hub", log::Level::Trace, limit));
        assert!(passes("rustls::client", log::Level::Warn, limit));
        assert!(!passes("rustls::client", log::Level::Info, limit));
        assert!(!passes("skald_agentdx", log::Level::Info, limit));
        assert!(!passes("rustls", log::Level::Warn, log::LevelFilter::Error));
    }
}
