//! `skald-agentd`: starts the parts in order, waits for a signal, and stops them in the opposite order.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use sd_notify::NotifyState;
use skald_agentd::config::{ConfigHandle, ConfigStore, Keeper};
use skald_agentd::daemon::Daemon;
use skald_agentd::logging::{self, Level};
use skald_agentd::paths::{Mode, config_file, process_env, socket_dir};
use skald_agentd::process::{Request, Signals, harden, notify};
use skald_agentd::server::{Context, Inherited, VERSION, listen, serve};
use skald_agentd::state_dir;
use tokio::sync::watch;

/// The agent's side of Skald Remote: takes questions from programs on this machine, and answers from paired phones.
#[derive(Debug, Parser)]
#[command(name = "skald-agentd", version, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  SKALD_AGENTD_RELAY_URL=wss://relay.example/v1/ws skald-agentd run
  skald-agentd run --config ./config.toml --log-level debug

Then `skaldctl pair` pairs a phone.
SIGHUP reads the settings again; SIGTERM and Ctrl-C stop the daemon.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run in the foreground
    #[command(after_help = ENVIRONMENT)]
    Run(Run),
    /// Print the version
    Version,
}

#[derive(Debug, Args)]
struct Run {
    /// Settings file
    ///
    /// Default: `$SKALD_AGENTD_CONFIG`, else ~/.config/skald-agentd/config.toml, or /etc/skald-agentd/config.toml with
    /// --system. It need not exist.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How much to log: to the journal under systemd, else to standard error
    #[arg(long, value_name = "LEVEL", value_enum, default_value = "info", env = "SKALD_AGENTD_LOG")]
    log_level: Level,
    /// Run for the whole machine
    ///
    /// Sockets in /run/skald-agentd for the groups skald (ask) and skald-admin (answer, pair, configure), state in
    /// /var/lib/skald-agentd.
    #[arg(long)]
    system: bool,
}

const ENVIRONMENT: &str = "\
Environment:
  SKALD_AGENTD_DIR        folder of the sockets
  SKALD_AGENTD_STATE_DIR  folder of the seed and the database
  SKALD_AGENTD_CONFIG     settings file
  SKALD_AGENTD_<SETTING>  overrides a setting of the file: SKALD_AGENTD_RELAY_URL, …_QR_URL,
                          …_PAIRING_TTL, …_REQUIRE_DEVICE_CONFIRMATION,
                          …_NOTIFY_DELAY_SECS, …_WEB_PORT";

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Version => {
            println!("skald-agentd {VERSION}");
            ExitCode::SUCCESS
        }
        Command::Run(options) => match start(&options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("skald-agentd: {error:#}");
                ExitCode::FAILURE
            }
        },
    }
}

fn start(options: &Run) -> anyhow::Result<()> {
    harden().context("cannot protect the process's memory and files")?;
    logging::start(options.log_level).map_err(anyhow::Error::msg).context("cannot start logging")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(run(options))
}

async fn run(options: &Run) -> anyhow::Result<()> {
    let started = Instant::now();
    let mode = if options.system { Mode::System } else { Mode::User };
    let mut signals = Signals::take().context("cannot take signals")?;
    let file = options.config.clone().map_or_else(|| config_file(mode, &process_env), Ok)?;
    let settings = ConfigStore::open(&file, &process_env)?;
    tracing::info!(version = VERSION, settings = %file.display(), "starting");
    let listeners = listen(&socket_dir(mode, &process_env)?, mode, Inherited::from_env()?).await?;
    let state = state_dir::default_path(mode, &process_env)?;
    let mut daemon = Daemon::start(&state, settings.current().into())?;
    let (keeper, config) = Keeper::new(settings, daemon.handle());
    let keeper = tokio::spawn(keeper.run());
    let (stop, stopped) = watch::channel(false);
    let context = Context { hub: daemon.handle(), config: config.clone(), started };
    let server = tokio::spawn(serve(listeners, context, stopped));
    tracing::info!("ready");
    notify(NotifyState::Ready);

    let outcome = wait(&mut daemon, &mut signals, &config).await;

    tracing::info!("stopping");
    notify(NotifyState::Stopping);
    // An error means that the server is gone already.
    let _ = stop.send(true);
    server.await.context("the socket server failed")?;
    drop(config);
    keeper.await.context("the keeper of the settings failed")?;
    let stopped = daemon.shutdown().await.context("the daemon did not stop well");
    tracing::info!("stopped");
    outcome.and(stopped)
}

/// Until a signal says stop, or the daemon cannot go on.
async fn wait(daemon: &mut Daemon, signals: &mut Signals, config: &ConfigHandle) -> anyhow::Result<()> {
    loop {
        let request = tokio::select! {
            request = signals.next() => request,
            ended = daemon.stopped() => return ended.context("the daemon cannot go on"),
        };
        match request {
            Request::Stop => return Ok(()),
            Request::Reload => match config.reload().await {
                Ok(_) => tracing::info!("settings read again"),
                Err(error) => tracing::error!(%error, "the settings stay as they are"),
            },
        }
    }
}
