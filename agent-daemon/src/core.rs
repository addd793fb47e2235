//! One thing after the other: hands each input to the hub and carries out the step that comes back, in order.
//!
//! It does no I/O of its own. [`Disk`], [`Socket`], [`Tunnels`] and [`Surroundings`] are handed in: the [daemon](crate::daemon)'s
//! thread runs it on the real ones, the simulation of the hub's tests on ones that fail, forget and crash at will.

use std::collections::{HashMap, VecDeque};

use skald_common::peer::Millis;
use skald_link::LinkEvent;
use skald_link::debug::crash_point_of;
use tokio::sync::{broadcast, mpsc};

use crate::hub::api::{Command, HOST_CALL_QUEUE, HostCall, HostSession, PushState, SessionId, Settings};
use crate::hub::durable::{Backup, Durable, Write};
use crate::hub::effects::{Effect, Step};
use crate::hub::events::{EVENT_QUEUE, Event};
use crate::hub::{Ctx, Hub, Input, Names, Now, RelayInput, TunnelNews, TunnelOrder};
use crate::relay::{Connection, FromRelay, Socket};
use crate::store::{Store, StoreError};
use crate::tunnels::Tunnels;

/// How long the connection stays down after the disk has refused a write that it needs.
const DISK_PAUSE_MS: Millis = 10_000;

/// What survives the end of the process.
pub(crate) trait Disk {
    /// Carries out a list of changes, all or none.
    fn apply(&mut self, writes: &[Write]) -> Result<(), StoreError>;
    /// Everything that it holds.
    fn load(&self) -> Result<Durable, StoreError>;
    /// The backup of devices as it is now; `None`: there is none, or it is of no use.
    fn read_backup(&self) -> Option<Backup>;
}

impl Disk for Store {
    fn apply(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        crash_points("before-committing", writes);
        let stored = Self::apply(self, writes);
        crash_points("after-committing", writes);
        stored
    }

    fn load(&self) -> Result<Durable, StoreError> {
        Self::load(self)
    }

    fn read_backup(&self) -> Option<Backup> {
        Self::read_backup(self)
    }
}

/// Where a test may want the daemon to die, by what is being stored.
fn crash_points(moment: &str, writes: &[Write]) {
    for write in writes.iter().filter(|_| cfg!(debug_assertions)) {
        let what = match write {
            Write::PutItem(_) => "item",
            Write::PutAnswer(_) => "answer",
            Write::Received { .. } => "receipt",
            Write::Reserved { .. } => "counters",
            Write::RemoveItem(_) => "removal",
            _ => continue,
        };
        crash_point_of(moment, what);
    }
}

/// Time and chance.
pub(crate) trait Surroundings {
    fn now(&self) -> Now;
    fn random(&mut self, bytes: &mut [u8]);
}

/// The hub, with everything that its steps are carried out on.
pub(crate) struct Core<D, L, T, S> {
    pub(crate) hub: Hub,
    pub(crate) disk: D,
    pub(crate) relay: Connection<L>,
    pub(crate) tunnels: T,
    surroundings: S,
    hosts: HashMap<SessionId, mpsc::Sender<HostCall>>,
    closings: mpsc::UnboundedSender<SessionId>,
    events: broadcast::Sender<Event>,
    /// What effects have led to: handled after the step that they belong to.
    follow_ups: VecDeque<Input>,
    /// When to connect again after a failed write.
    reconnect_at: Option<Millis>,
}

/// What a [`Core`] begins with.
pub(crate) struct Beginning<D> {
    pub(crate) names: Names,
    pub(crate) settings: Settings,
    pub(crate) disk: D,
    /// What the disk holds.
    pub(crate) durable: Durable,
    pub(crate) notices: Vec<String>,
}

/// The step's writes have failed, and the hub is what the disk holds.
struct NotStored;

impl<D: Disk, L: Socket, T: Tunnels, S: Surroundings> Core<D, L, T, S> {
    /// `closings` is told of host sessions that were dropped.
    pub(crate) fn new(
        beginning: Beginning<D>,
        relay: Connection<L>,
        tunnels: T,
        surroundings: S,
        closings: mpsc::UnboundedSender<SessionId>,
    ) -> Self {
        let Beginning { names, settings, disk, durable, notices } = beginning;
        Self {
            hub: Hub::new(names, settings, durable, notices, surroundings.now()),
            disk,
            relay,
            tunnels,
            surroundings,
            hosts: HashMap::new(),
            closings,
            events: broadcast::Sender::new(EVENT_QUEUE),
            follow_ups: VecDeque::new(),
            reconnect_at: None,
        }
    }

    /// The first step: connects.
    pub(crate) fn start(&mut self) -> Result<(), StoreError> {
        let step = self.with_context(Hub::start);
        let _ = self.carry_out(step)?;
        self.settle()
    }

    /// A command of a socket's client.
    pub(crate) fn command(&mut self, command: Command) -> Result<(), StoreError> {
        self.input(match command {
            Command::DevicesRestore(reply) => Input::Restore(self.disk.read_backup(), reply),
            Command::Status(reply) => Input::Status(self.tunnels.passed(), reply),
            command => Input::Command(command),
        })?;
        self.settle()
    }

    /// A host's connection has ended.
    pub(crate) fn host_closed(&mut self, session: SessionId) -> Result<(), StoreError> {
        self.input(Input::HostClosed(session))?;
        self.settle()
    }

    /// Something happened on the relay's socket.
    pub(crate) fn relay_event(&mut self, event: LinkEvent) -> Result<(), StoreError> {
        self.relay.feed(self.surroundings.now().mono, event);
        self.settle()
    }

    /// Something became of a tunnel.
    pub(crate) fn tunnel_news(&mut self, news: TunnelNews) -> Result<(), StoreError> {
        self.input(Input::Tunnel(news))?;
        self.settle()
    }

    /// [`deadline`](Self::deadline) has come.
    pub(crate) fn timeout(&mut self) -> Result<(), StoreError> {
        let now = self.surroundings.now().mono;
        self.relay.on_timeout(now);
        if self.reconnect_at.is_some_and(|at| at <= now) {
            self.reconnect_at = None;
            self.input(Input::Relay(RelayInput::Reset))?;
        }
        self.input(Input::Timeout)?;
        self.settle()
    }

    /// When [`timeout`](Self::timeout) is due, on the monotonic clock.
    pub(crate) fn deadline(&self) -> Option<Millis> {
        let hub = self.hub.deadline(self.surroundings.now());
        [hub, self.relay.deadline(), self.reconnect_at].into_iter().flatten().min()
    }

    /// Works off what the relay connection has to say and what effects have led to.
    fn settle(&mut self) -> Result<(), StoreError> {
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

    fn relay_says(&mut self, found: FromRelay) -> Result<(), StoreError> {
        match found {
            FromRelay::Hub(input, receipt) => {
                let paired = matches!(input, RelayInput::ClientPaired { .. });
                let step = self.with_context(|hub, ctx| hub.handle(ctx, Input::Relay(input)));
                let stored = self.carry_out(step)?;
                let now = self.surroundings.now().mono;
                match (stored, receipt) {
                    (Ok(()), Some(receipt)) => self.relay.accept(now, receipt),
                    (Err(NotStored), Some(receipt)) => self.relay.reject(now, receipt),
                    // The relay says it again on the next connection.
                    (Err(NotStored), None) if paired => self.connect_later(),
                    (_, None) => {}
                }
            }
            FromRelay::Reserve(input) => {
                let step = self.with_context(|hub, ctx| hub.handle(ctx, Input::Relay(input)));
                if let Err(NotStored) = self.carry_out(step)? {
                    // The bytes behind it must not leave: a counter that is not on the disk could be used twice.
                    self.connect_later();
                }
            }
        }
        Ok(())
    }

    /// Ends the connection, and begins anew when the disk has had time to come back.
    fn connect_later(&mut self) {
        self.relay.disconnect();
        self.reconnect_at = Some(self.surroundings.now().mono + DISK_PAUSE_MS);
        let why = "the state could not be stored".to_owned();
        self.follow_ups.push_back(Input::Relay(RelayInput::Disconnected { why, parked: false }));
    }

    fn input(&mut self, input: Input) -> Result<(), StoreError> {
        let step = self.with_context(|hub, ctx| hub.handle(ctx, input));
        // Whoever asked has been told.
        let _ = self.carry_out(step)?;
        Ok(())
    }

    fn with_context(&mut self, work: impl FnOnce(&mut Hub, &mut Ctx<'_>) -> Step) -> Step {
        let now = self.surroundings.now();
        let mut random = |bytes: &mut [u8]| self.surroundings.random(bytes);
        work(&mut self.hub, &mut Ctx { now, random: &mut random })
    }

    /// Writes, then everything that hangs on it.
    fn carry_out(&mut self, step: Step) -> Result<Result<(), NotStored>, StoreError> {
        if let Err(error) = self.disk.apply(&step.writes) {
            tracing::error!(%error, "the state could not be stored");
            let why = error.to_string();
            let durable = self.disk.load()?;
            self.hub.reload(durable, &why, self.surroundings.now());
            for effect in step.effects {
                match &effect {
                    // The hub has forgotten these in any case.
                    Effect::CloseSession(session) => drop(self.hosts.remove(session)),
                    Effect::Tunnel(TunnelOrder::End(connection)) => self.tunnels.order(TunnelOrder::End(*connection)),
                    _ => {}
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
                let _ = reply.send(Ok(HostSession::new(id, calls, self.closings.clone())));
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
                let now = self.surroundings.now().mono;
                if let Err(why) = self.relay.send(now, token, &to, &json, delivery) {
                    self.follow_ups.push_back(Input::Relay(RelayInput::Failed { token, why }));
                }
            }
            Effect::Signal { to, connection, signal } => {
                let now = self.surroundings.now().mono;
                let failed = self.relay.signal(now, &to, connection, &signal);
                self.follow_ups.extend(failed.map(Input::Relay));
            }
            Effect::Tunnel(order) => self.tunnels.order(order),
            Effect::Relay(order) => {
                let mut seed = [0; 8];
                self.surroundings.random(&mut seed);
                let now = self.surroundings.now().mono;
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
        Event::DevicePush { pubkey, push: PushState::Gone } => {
            tracing::info!(device = %pubkey.short(), "the device's push token is no longer valid");
        }
        Event::PairingChanged { state, .. } => tracing::info!(?state, "pairing window"),
        Event::DeviceChanged { .. }
        | Event::DeviceOnline { .. }
        | Event::DeviceOffline { .. }
        | Event::DevicePush { .. }
        | Event::InboxChanged { .. }
        | Event::InboxAnswered { .. } => {}
    }
}
