//! Starts the parts and ties them together: one thread owns hub, database and relay connection, and runs the core that
//! carries out what the hub decides.
//!
//! The thread has its own runtime: a write that waits for the disk never holds up a socket client that only asks.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rand::TryRng as _;
use rand::rngs::SysRng;
use skald_common::crypto::{Identity, Seed};
use skald_link::{Clock, Link};
use tokio::sync::oneshot;
use zeroize::Zeroizing;

use crate::core::{Beginning, Core, Disk, Surroundings};
use crate::hub::api::{HubHandle, Inbox, Settings};
use crate::hub::{Names, Now};
use crate::identity::{self, SeedError};
use crate::relay::Connection;
use crate::state_dir::{StateDir, StateDirError};
use crate::store::{Opened, Store, StoreError};
use crate::tunnels::TunnelThread;

/// Why the daemon does not run.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The state folder.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// The seed file.
    #[error(transparent)]
    Seed(#[from] SeedError),
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The thread.
    #[error("no thread can be started: {0}")]
    Thread(std::io::Error),
    /// The thread has ended without a word.
    #[error("the daemon's core has crashed")]
    Crashed,
}

/// A running daemon, without its sockets.
#[derive(Debug)]
pub struct Daemon {
    handle: HubHandle,
    stop: Option<oneshot::Sender<()>>,
    ended: oneshot::Receiver<Result<(), DaemonError>>,
}

impl Daemon {
    /// Takes the state folder, loads or makes the identity, opens the database and begins to connect.
    pub fn start(state_dir: &Path, settings: Settings) -> Result<Self, DaemonError> {
        Self::start_on(state_dir, settings, |store| store)
    }

    /// The same, on whatever is made of the database.
    pub(crate) fn start_on<D: Disk + Send + 'static>(
        state_dir: &Path,
        settings: Settings,
        disk: impl FnOnce(Store) -> D,
    ) -> Result<Self, DaemonError> {
        let state_dir = StateDir::open(state_dir)?;
        let (seed, new) = identity::load_or_create(state_dir.path(), || {
            let mut bytes = Zeroizing::new([0; 32]);
            SysRng.try_fill_bytes(bytes.as_mut()).is_ok().then_some(bytes)
        })?;
        let identity = Identity::new(&seed);
        let names = Names {
            namespace: identity.namespace_id(),
            ed25519: identity.ed25519_pub(),
            x25519: identity.x25519_pub(),
        };
        let Opened { store, durable, notices } = Store::open(state_dir.path(), names.namespace, new, unix_ms())?;
        for notice in &notices {
            tracing::warn!("{notice}");
        }
        let beginning = Beginning { names, settings, disk: disk(store), durable, notices };
        let tunnels = TunnelThread::start(identity).map_err(DaemonError::Thread)?;
        let (handle, inbox) = HubHandle::new();
        let (stop, stopped) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(DaemonError::Thread)?;
        let thread = move || {
            let result = runtime.block_on(run(beginning, seed, tunnels, inbox, stopped)).map_err(DaemonError::Store);
            drop(state_dir);
            // Nobody may be listening any more.
            let _ = end.send(result);
        };
        std::thread::Builder::new().name("hub".into()).spawn(thread).map_err(DaemonError::Thread)?;
        Ok(Self { handle, stop: Some(stop), ended })
    }

    /// For every part that talks to the hub.
    pub fn handle(&self) -> HubHandle {
        self.handle.clone()
    }

    /// Waits until the daemon ends by itself, which only trouble with its database makes it do.
    pub async fn stopped(&mut self) -> Result<(), DaemonError> {
        (&mut self.ended).await.unwrap_or(Err(DaemonError::Crashed))
    }

    /// Says goodbye to the relay, closes the database and lets go of the state folder.
    pub async fn shutdown(mut self) -> Result<(), DaemonError> {
        drop(self.stop.take());
        self.stopped().await
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The real ones.
struct Machine {
    clock: Clock,
}

impl Surroundings for Machine {
    fn now(&self) -> Now {
        Now { mono: self.clock.now(), unix: unix_ms() }
    }

    fn random(&mut self, bytes: &mut [u8]) {
        // An operating system that stops giving random numbers leaves nothing safe to do.
        SysRng.try_fill_bytes(bytes).expect("the system gives random numbers");
    }
}

/// The thread's work: waits for whatever happens next, and lets the core handle it.
async fn run<D: Disk>(
    beginning: Beginning<D>,
    seed: Seed,
    tunnels: TunnelThread,
    mut inbox: Inbox,
    mut stop: oneshot::Receiver<()>,
) -> Result<(), StoreError> {
    let clock = Clock::start();
    let connection = Connection::new(seed, Link::new());
    let mut core = Core::new(beginning, connection, tunnels, Machine { clock }, inbox.closings_sender.clone());
    core.start()?;
    loop {
        let deadline = core.deadline();
        tokio::select! {
            _ = &mut stop => break,
            command = inbox.commands.recv() => match command {
                Some(command) => core.command(command)?,
                None => break,
            },
            Some(session) = inbox.closings.recv() => core.host_closed(session)?,
            event = core.relay.next() => core.relay_event(event)?,
            news = core.tunnels.next() => core.tunnel_news(news)?,
            () = clock.sleep_until(deadline) => core.timeout()?,
        }
    }
    core.tunnels.stop();
    core.relay.finish().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::api::{ApiError, HostHello};

    fn start(folder: &Path) -> Result<Daemon, DaemonError> {
        Daemon::start(folder, Settings::default())
    }

    #[tokio::test]
    async fn it_keeps_its_identity_and_holds_its_folder_until_it_has_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = start(folder.path()).unwrap();
        let first = daemon.handle().status().await.unwrap();
        let error = start(folder.path()).unwrap_err();
        assert!(matches!(error, DaemonError::StateDir(StateDirError::Running { .. })), "{error}");
        let handle = daemon.handle();
        daemon.shutdown().await.unwrap();
        assert_eq!(handle.status().await, Err(ApiError::Stopping));
        let again = start(folder.path()).unwrap();
        assert_eq!(again.handle().status().await.unwrap().namespace_id, first.namespace_id);
        again.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn a_dropped_session_frees_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = start(folder.path()).unwrap();
        let hello = || HostHello { name: "skald".into(), version: "1".into(), label: None, linger_secs: None };
        let session = daemon.handle().open_host(hello()).await.unwrap();
        assert_eq!(daemon.handle().status().await.unwrap().hosts.len(), 1);
        drop(session);
        // Whether it is seen before the next opening or during its probe: the name is free at once.
        let opened = tokio::time::timeout(std::time::Duration::from_secs(2), daemon.handle().open_host(hello())).await;
        assert!(opened.unwrap().is_ok());
        daemon.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn a_seed_that_cannot_be_used_stops_the_start() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(identity::SEED), "short").unwrap();
        assert!(matches!(start(folder.path()), Err(DaemonError::Seed(_))));
    }
}
