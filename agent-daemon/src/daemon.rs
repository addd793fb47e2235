//! Starts the parts and ties them together: one thread owns hub, database and relay connection, and carries out what the
//! hub decides, in order.
//!
//! The thread has its own runtime: a write that waits for the disk never holds up a socket client that only asks.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rand::TryRng as _;
use rand::rngs::SysRng;
use skald_common::crypto::Identity;
use skald_common::peer::Millis;
use skald_link::Clock;
use tokio::sync::{broadcast, mpsc, oneshot};
use zeroize::Zeroizing;

use crate::hub::api::{Command, HOST_CALL_QUEUE, HostCall, HostSession, HubHandle, Inbox, SessionId, Settings};
use crate::hub::effects::{Effect, Step};
use crate::hub::events::{EVENT_QUEUE, Event};
use crate::hub::{Ctx, Hub, Input, Names, Now, RelayInput};
use crate::identity::{self, SeedError};
use crate::relay::{Connection, FromRelay};
use crate::state_dir::{StateDir, StateDirError};
use crate::store::{Opened, Store, StoreError};

/// How long the connection stays down after the disk has refused a write that it needs.
const DISK_PAUSE_MS: Millis = 10_000;

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
        drop(identity);
        let opened = Store::open(state_dir.path(), names.namespace, new, unix_ms())?;
        for notice in &opened.notices {
            tracing::warn!("{notice}");
        }
        let (handle, inbox) = HubHandle::new();
        let (stop, stopped) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(DaemonError::Thread)?;
        let run = move || {
            let result = runtime.block_on(async {
                let mut core = Core::new(names, settings, opened, Connection::new(seed), inbox);
                core.run(stopped).await
            });
            drop(state_dir);
            // Nobody may be listening any more.
            let _ = end.send(result);
        };
        std::thread::Builder::new().name("hub".into()).spawn(run).map_err(DaemonError::Thread)?;
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

/// Everything that the thread owns.
struct Core {
    hub: Hub,
    store: Store,
    relay: Connection,
    clock: Clock,
    inbox: Inbox,
    hosts: HashMap<SessionId, mpsc::Sender<HostCall>>,
    events: broadcast::Sender<Event>,
    /// What effects have led to: handled after the step that they belong to.
    follow_ups: VecDeque<Input>,
    /// When to connect again after a failed write.
    reconnect_at: Option<Millis>,
}

/// The step's writes have failed, and the hub is what the disk holds.
struct NotStored;

impl Core {
    fn new(names: Names, settings: Settings, opened: Opened, relay: Connection, inbox: Inbox) -> Self {
        let clock = Clock::start();
        let now = Now { mono: clock.now(), unix: unix_ms() };
        Self {
            hub: Hub::new(names, settings, opened.durable, opened.notices, now),
            store: opened.store,
            relay,
            clock,
            inbox,
            hosts: HashMap::new(),
            events: broadcast::Sender::new(EVENT_QUEUE),
            follow_ups: VecDeque::new(),
            reconnect_at: None,
        }
    }

    async fn run(&mut self, mut stop: oneshot::Receiver<()>) -> Result<(), DaemonError> {
        let step = self.with_context(Hub::start);
        let _ = self.carry_out(step)?;
        loop {
            self.settle()?;
            let now = self.now();
            let deadline =
                [self.hub.deadline(now), self.relay.deadline(), self.reconnect_at].into_iter().flatten().min();
            let clock = self.clock;
            tokio::select! {
                _ = &mut stop => break,
                command = self.inbox.commands.recv() => match command {
                    Some(command) => self.command(command)?,
                    None => break,
                },
                Some(session) = self.inbox.closings.recv() => self.input(Input::HostClosed(session))?,
                event = self.relay.next() => self.relay.feed(self.clock.now(), event),
                () = clock.sleep_until(deadline) => self.timeout()?,
            }
        }
        self.relay.finish().await;
        Ok(())
    }

    fn command(&mut self, command: Command) -> Result<(), DaemonError> {
        let input = match command {
            Command::DevicesRestore(reply) => Input::Restore(self.store.read_backup(), reply),
            command => Input::Command(command),
        };
        self.input(input)
    }

    fn timeout(&mut self) -> Result<(), DaemonError> {
        let now = self.clock.now();
        self.relay.on_timeout(now);
        if self.reconnect_at.is_some_and(|at| at <= now) {
            self.reconnect_at = None;
            self.input(Input::Relay(RelayInput::Reset))?;
        }
        self.input(Input::Timeout)
    }

    /// Works off what the relay connection has to say and what effects have led to.
    fn settle(&mut self) -> Result<(), DaemonError> {
        loop {
            if let Some(input) = self.follow_ups.pop_front() {
                self.input(input)?;
            } else if let Some(found) = self.relay.poll() {
                self.relay_says(found)?;
            } else {
                return Ok(());
            }
        }
    }

    fn relay_says(&mut self, found: FromRelay) -> Result<(), DaemonError> {
        match found {
            FromRelay::Hub(input, receipt) => {
                let step = self.with_context(|hub, ctx| hub.handle(ctx, Input::Relay(input)));
                let stored = self.carry_out(step)?;
                let now = self.clock.now();
                match (stored, receipt) {
                    (Ok(()), Some(receipt)) => self.relay.accept(now, receipt),
                    (Err(NotStored), Some(receipt)) => self.relay.reject(now, receipt),
                    (_, None) => {}
                }
            }
            FromRelay::Reserve(input) => {
                let step = self.with_context(|hub, ctx| hub.handle(ctx, Input::Relay(input)));
                if let Err(NotStored) = self.carry_out(step)? {
                    // The bytes behind it must not leave: a counter that is not on the disk could be used twice.
                    self.relay.disconnect();
                    self.reconnect_at = Some(self.clock.now() + DISK_PAUSE_MS);
                    let why = "the state could not be stored".to_owned();
                    self.follow_ups.push_back(Input::Relay(RelayInput::Disconnected { why, parked: false }));
                }
            }
        }
        Ok(())
    }

    fn input(&mut self, input: Input) -> Result<(), DaemonError> {
        let step = self.with_context(|hub, ctx| hub.handle(ctx, input));
        // Whoever asked has been told.
        let _ = self.carry_out(step)?;
        Ok(())
    }

    fn now(&self) -> Now {
        Now { mono: self.clock.now(), unix: unix_ms() }
    }

    fn with_context(&mut self, work: impl FnOnce(&mut Hub, &mut Ctx<'_>) -> Step) -> Step {
        let now = self.now();
        let mut random = |bytes: &mut [u8]| {
            // An operating system that stops giving random numbers leaves nothing safe to do.
            SysRng.try_fill_bytes(bytes).expect("the system gives random numbers");
        };
        work(&mut self.hub, &mut Ctx { now, random: &mut random })
    }

    /// Writes, then everything that hangs on it.
    fn carry_out(&mut self, step: Step) -> Result<Result<(), NotStored>, DaemonError> {
        if let Err(error) = self.store.apply(&step.writes) {
            tracing::error!(%error, "the state could not be stored");
            let why = error.to_string();
            let durable = self.store.load()?;
            let now = self.now();
            self.hub.reload(durable, &why, now);
            for effect in step.effects {
                // The hub has forgotten this session in any case.
                if let Effect::CloseSession(session) = &effect {
                    self.hosts.remove(session);
                }
                self.follow_ups.extend(effect.undo(&why));
            }
            return Ok(Err(NotStored));
        }
        for effect in step.effects {
            self.effect(effect);
        }
        Ok(Ok(()))
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::Reply(reply) => reply.deliver(),
            Effect::OpenSession(id, reply) => {
                let (sender, calls) = mpsc::channel(HOST_CALL_QUEUE);
                self.hosts.insert(id, sender);
                // If the asker has gone, the session is dropped here, and closes itself.
                let _ = reply.send(Ok(HostSession::new(id, calls, self.inbox.closings_sender.clone())));
            }
            Effect::CloseSession(id) => {
                self.hosts.remove(&id);
            }
            Effect::CallHost(id, call) => {
                if self.hosts.get(&id).is_none_or(|host| host.try_send(call).is_err()) {
                    self.follow_ups.push_back(Input::HostClosed(id));
                }
            }
            Effect::Send { token, to, json, delivery } => {
                let now = self.clock.now();
                if let Err(why) = self.relay.send(now, token, &to, &json, delivery) {
                    self.follow_ups.push_back(Input::Relay(RelayInput::Failed { token, why }));
                }
            }
            Effect::Relay(order) => {
                let mut seed = [0; 8];
                // Only spreads reconnections; zeros would do.
                let _ = SysRng.try_fill_bytes(&mut seed);
                let now = self.clock.now();
                if let Some(input) = self.relay.order(now, order, u64::from_le_bytes(seed)) {
                    self.follow_ups.push_back(Input::Relay(input));
                }
            }
            Effect::Emit(event) => {
                log(&event);
                // Without subscribers there is nobody to tell.
                let _ = self.events.send(event);
            }
            Effect::Subscribe(reply) => {
                let _ = reply.send(Ok(self.events.subscribe()));
            }
        }
    }
}

/// What an operator wants to see in the log. Of items not even the ids: hosts choose them.
fn log(event: &Event) {
    match event {
        Event::RelayConnected { url } => tracing::info!(%url, "connected to the relay"),
        Event::RelayDisconnected { reason, parked } => tracing::info!(%reason, parked, "no connection to the relay"),
        Event::DevicePaired { pubkey, authorized, .. } => {
            tracing::info!(device = %pubkey.short(), authorized, "a device has paired");
        }
        Event::DeviceAuthorized { pubkey } => tracing::info!(device = %pubkey.short(), "device authorized"),
        Event::DeviceRevoked { pubkey } => tracing::info!(device = %pubkey.short(), "device revoked, rejected or gone"),
        Event::PairingChanged { state, .. } => tracing::info!(?state, "pairing window"),
        Event::DeviceOnline { .. }
        | Event::DeviceOffline { .. }
        | Event::InboxChanged { .. }
        | Event::InboxAnswered { .. } => {}
    }
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
