//! The terminal phone: commands over [`Phone`].
//!
//! Results go to standard output, as text or with `--json` as one object per line; everything else goes to standard error.

mod answering;
mod args;
mod full;
mod line;
mod notifying;
mod output;
mod pairing;
mod proxying;
mod showing;
mod terminal;
mod watching;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser as _;
use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::args::{Cli, Command, Global};
use self::output::Output;
use self::terminal::InputError;
use crate::client::{Manner, Phone, PhoneError, Until};
use crate::model::answer::AnswerError;
use crate::model::inbox::FindError;
use crate::model::push::PushError;
use crate::model::text;
use crate::registration::RegistrationError;
use crate::store::{Store, StoreError};
use crate::webpush::WebPushError;

/// Time for a command that does not wait for a person, seconds.
const DEFAULT_TIMEOUT_SECS: u64 = 20;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exit {
    Done = 0,
    Refused = 1,
    Trouble = 2,
    TimedOut = 3,
}

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
enum CliError {
    #[error(transparent)]
    Phone(#[from] PhoneError),
    #[error(transparent)]
    Find(#[from] FindError),
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(transparent)]
    Push(#[from] PushError),
    #[error(transparent)]
    WebPush(#[from] WebPushError),
    #[error(transparent)]
    Registration(#[from] RegistrationError),
    /// With its remedy.
    #[error("{0}")]
    Usage(String),
    /// Nothing was sent.
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    TimedOut(String),
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        Self::Phone(error.into())
    }
}

impl CliError {
    fn exit(&self) -> Exit {
        match self {
            Self::Refused(_)
            | Self::Find(FindError::Unknown(_) | FindError::Answered(_))
            | Self::Phone(
                PhoneError::Revoked
                | PhoneError::NotAuthorized
                | PhoneError::PairingRefused(_)
                | PhoneError::Answer(AnswerError::Gone),
            )
            | Self::WebPush(WebPushError::Unreadable) => Exit::Refused,
            Self::Push(error) if !error.is_malformed() => Exit::Refused,
            Self::TimedOut(_) | Self::Phone(PhoneError::TimedOut | PhoneError::Busy) => Exit::TimedOut,
            Self::Phone(_)
            | Self::Find(_)
            | Self::Input(_)
            | Self::Push(_)
            | Self::WebPush(_)
            | Self::Registration(_)
            | Self::Usage(_) => Exit::Trouble,
        }
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(error) = forbid_core_dumps() {
        eprintln!("skald-phone: cannot protect the process's memory: {error}");
        return ExitCode::from(Exit::Trouble as u8);
    }
    let output = Output::new(cli.global.json);
    let exit = run(cli, output).unwrap_or_else(|error| {
        let exit = error.exit();
        let words = text::line(&error.to_string());
        output.object(&Failure { error: &words });
        eprintln!("skald-phone: {words}");
        exit
    });
    ExitCode::from(exit as u8)
}

/// The memory holds the phone's seed and whatever a person types; nobody of the same user may look into it either.
fn forbid_core_dumps() -> std::io::Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    // Also where core dumps are piped to a program, which ignores the limit.
    #[cfg(target_os = "linux")]
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    Ok(())
}

#[derive(Serialize)]
struct Failure<'a> {
    error: &'a str,
}

fn run(cli: Cli, output: Output) -> Result<Exit, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::Usage(format!("cannot start: {error}")))?;
    let (folder, profile) = (folder(&cli.global)?, &cli.global.profile);
    let store = match cli.command {
        Command::NotifyOpen => Store::at(&folder, profile)?,
        _ => Store::open(&folder, profile)?,
    };
    // `pair` first looks whether there is something to pair with.
    if !matches!(cli.command, Command::Pair(_) | Command::Logout(_) | Command::NotifyOpen) {
        notifying::register(&store, &cli.global)?;
    }
    let context = Context { store, output, global: cli.global };
    let exit = runtime.block_on(dispatch(cli.command, &context));
    // A thread may still wait for input that no longer matters.
    runtime.shutdown_background();
    exit
}

async fn dispatch(command: Command, context: &Context) -> Result<Exit, CliError> {
    match command {
        Command::Pair(args) => pairing::pair(context, args).await,
        Command::Logout(args) => pairing::logout(context, &args).await,
        Command::Status(args) => showing::status(context, &args).await,
        Command::Inbox(args) => showing::inbox(context, &args).await,
        Command::Show(args) => showing::show(context, &args).await,
        Command::Watch(args) => watching::watch(context, &args).await,
        Command::Proxy(args) => proxying::proxy(context, &args).await,
        Command::Approve(args) => answering::approve(context, &args).await,
        Command::Reject(args) => answering::reject(context, args).await,
        Command::Answer(args) => answering::answer(context, args).await,
        Command::Reply(args) => answering::reply(context, &args).await,
        Command::NotifyOpen => notifying::open(&context.store, context.output),
    }
}

/// What every command needs.
struct Context {
    store: Store,
    output: Output,
    global: Global,
}

impl Context {
    /// When to give up, from now.
    fn until(&self) -> Until {
        Until::secs(self.global.timeout.unwrap_or(DEFAULT_TIMEOUT_SECS))
    }

    /// A connected phone.
    async fn connect(&self, until: Until) -> Result<Phone, CliError> {
        let mut phone = Phone::open(self.store.clone(), Manner::Command, until).await?;
        let mut told = false;
        let output = self.output;
        phone
            .connect_telling(until, |why| {
                if !std::mem::replace(&mut told, true) {
                    output.progress(&format!("{}; trying again …", text::line(&why.to_string())));
                }
            })
            .await?;
        Ok(phone)
    }
}

/// The folder of all profiles.
fn folder(global: &Global) -> Result<PathBuf, CliError> {
    if let Some(dir) = &global.dir {
        return Ok(dir.clone());
    }
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .map(|state| state.join("skald-phone"))
        .ok_or_else(|| CliError::Usage("there is no home folder; name a folder with --dir or SKALD_PHONE_DIR".into()))
}

/// The wish of a person, or the system, that this program ends.
struct Interrupt {
    int: Signal,
    term: Signal,
}

impl Interrupt {
    fn new() -> Result<Self, CliError> {
        let listen =
            |kind| signal(kind).map_err(|error| CliError::Usage(format!("cannot listen for signals: {error}")));
        Ok(Self { int: listen(SignalKind::interrupt())?, term: listen(SignalKind::terminate())? })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.int.recv() => {}
            _ = self.term.recv() => {}
        }
    }
}

/// Unix milliseconds.
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
