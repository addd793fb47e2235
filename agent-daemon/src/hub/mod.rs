//! The hub: the one owner of the daemon's state. Hosts, items, answers, snapshots, devices and pairing are decided here.
//!
//! It is a state machine without I/O, clocks or randomness: the caller passes in the time and a source of random bytes,
//! calls `Hub::handle` with one `Input`, and carries out the `Step` that comes back: its writes as one transaction,
//! then its effects in order. `Hub::deadline` says when `Input::Timeout` is due.
//!
//! **A write that fails is a crash that did not happen.** None of the step's effects take place, and the caller hands the
//! hub what the disk holds (`Hub::reload`): memory and disk never differ for longer than that.
//!
//! Each module holds one subject and its part of `impl Hub`:
//! `hosts` (sessions and what they raise), [`items`], `answers`, `snapshots` and `pushes` (what phones are sent),
//! `devices`, `pairing`, `relay` (the connection), `tunnels` (pipes to the local web page), [`events`]; [`api`] is the way in, `durable` what survives.

mod answers;
pub mod api;
mod canonical;
mod clock;
mod devices;
pub(crate) mod durable;
pub(crate) mod effects;
pub mod events;
mod hosts;
pub mod items;
mod pairing;
mod pushes;
mod relay;
mod snapshots;
pub(crate) mod text;
mod trouble;
mod tunnels;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use skald_common::ids::{Ed25519Public, NamespaceId, X25519Public};
use skald_common::peer::Millis;

use answers::Answers;
use api::{ApiError, Applied, Command, InboxEntry, PendingCounts, Responder, SessionId, Settings, Status};
use clock::Heard;
pub(crate) use clock::Now;
use devices::Devices;
use durable::{Backup, Durable, Write};
use effects::{Effect, Reply, Step};
use events::Event;
use hosts::Hosts;
use items::{ItemId, Kind};
use pairing::Pairing;
use pushes::Pushes;
use relay::Relay;
pub(crate) use relay::{Failure, RelayInput};
use trouble::{Cause, Trouble};
use tunnels::Tunnels;
pub(crate) use tunnels::{Passed, TunnelNews, TunnelOrder};

/// What a call to the hub brings with it.
pub(crate) struct Ctx<'a> {
    pub(crate) now: Now,
    /// Fills a slice with random bytes.
    pub(crate) random: &'a mut dyn FnMut(&mut [u8]),
}

impl Ctx<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        (self.random)(&mut bytes);
        bytes
    }

    fn uuid(&mut self) -> String {
        skald_common::payload::uuid_v4(self.bytes())
    }
}

/// One thing that happened.
#[derive(Debug)]
pub(crate) enum Input {
    /// A command; all but `DevicesRestore` and `Status`, which come with what others know.
    Command(Command),
    /// `devices.restore`, and what the backup holds.
    Restore(Option<Backup>, Responder<Applied>),
    /// A host's connection ended, or could not keep up.
    HostClosed(SessionId),
    /// Something from the relay connection.
    Relay(RelayInput),
    /// Something became of a tunnel.
    Tunnel(TunnelNews),
    /// `status`, and what has passed through the tunnels.
    Status(Passed, Responder<Status>),
    /// [`Hub::deadline`] has come.
    Timeout,
}

/// The agent's own names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names {
    pub(crate) namespace: NamespaceId,
    pub(crate) ed25519: Ed25519Public,
    pub(crate) x25519: X25519Public,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Hub {
    names: Names,
    settings: Settings,
    hosts: Hosts,
    items: Vec<hosts::Held>,
    answers: Answers,
    devices: Devices,
    pairing: Pairing,
    pushes: Pushes,
    relay: Relay,
    tunnels: Tunnels,
    heard: Option<Heard>,
    last_error: Option<Trouble>,
    /// What a person should know of since the start.
    notices: Vec<String>,
    /// Rises whenever the set of pending items changes.
    revision: u64,
    told_revision: u64,
    step: Step,
    /// The last step had writes: unless [`Hub::reload`] comes next, they are on the disk.
    wrote: bool,
}

impl Hub {
    /// A hub with what the disk holds. `notices` are lines for `status`.
    pub(crate) fn new(names: Names, settings: Settings, durable: Durable, notices: Vec<String>, now: Now) -> Self {
        let mut hub = Self {
            names,
            relay: Relay::new(now),
            tunnels: Tunnels::new(),
            heard: None,
            settings,
            hosts: Hosts::default(),
            items: Vec::new(),
            answers: Answers::default(),
            devices: Devices::new(durable.origin),
            pairing: Pairing::default(),
            pushes: Pushes::default(),
            last_error: None,
            notices,
            revision: 0,
            told_revision: 0,
            step: Step::default(),
            wrote: false,
        };
        hub.load(durable, now);
        if hub.items.iter().any(|held| held.row.item.kind == Kind::Elicitation) {
            // One may have had its answer, which was in memory alone: phones were told that it is gone, and it is not.
            hub.mark_all_stale();
        }
        hub
    }

    /// The first step: connects.
    pub(crate) fn start(&mut self, ctx: &mut Ctx<'_>) -> Step {
        self.connect(ctx.now);
        self.finish(ctx)
    }

    /// Takes one input.
    pub(crate) fn handle(&mut self, ctx: &mut Ctx<'_>, input: Input) -> Step {
        self.answers_settled();
        self.pushes_settled();
        if std::mem::take(&mut self.wrote) {
            self.went_well(Cause::Storage);
        }
        match input {
            Input::Command(command) => self.command(ctx, command),
            Input::Restore(backup, reply) => self.restore_devices(ctx, backup, reply),
            Input::HostClosed(session) => self.close_host(ctx, session),
            Input::Relay(input) => self.relay_input(ctx, input),
            Input::Tunnel(news) => self.tunnel_news(ctx, news),
            Input::Status(passed, reply) => {
                let status = self.status(ctx.now, &passed);
                self.reply(reply, Ok(status));
            }
            Input::Timeout => {}
        }
        self.timeouts(ctx);
        self.finish(ctx)
    }

    /// When to call again with [`Input::Timeout`], on the monotonic clock.
    pub(crate) fn deadline(&self, now: Now) -> Option<Millis> {
        [
            self.hosts_deadline(now),
            self.answers_deadline(now),
            self.devices_deadline(now),
            self.pairing_deadline(now),
            self.pushes_deadline(now),
            self.tunnels_deadline(),
            self.date_deadline(now),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// How much is held of what outsiders could make it hold without end, each with its bound.
    #[cfg(test)]
    pub(crate) fn sizes(&self) -> Vec<(&'static str, usize, usize)> {
        let mut sizes = vec![("items", self.items.len(), items::MAX_ITEMS)];
        sizes.extend(self.hosts.sizes());
        sizes.extend(self.answers.sizes(self.items.len()));
        sizes.extend(self.devices.sizes());
        sizes.extend(self.pairing.sizes());
        sizes.extend(self.pushes.sizes());
        sizes.extend(self.tunnels.sizes());
        sizes
    }

    /// A step's writes have failed: goes back to what the disk holds. What lives in memory alone stays, as far as it still
    /// fits.
    pub(crate) fn reload(&mut self, durable: Durable, why: &str, now: Now) {
        self.load(durable, now);
        self.wrote = false;
        self.went_wrong(Cause::Storage, format!("the state could not be stored: {why}"), now);
        let error = ApiError::Storage(why.to_owned());
        self.fail_waiters(&error);
        self.forget_fresh_acks();
        self.realign_soon(now);
        self.step = Step::default();
    }

    fn load(&mut self, durable: Durable, now: Now) {
        self.load_devices(&durable);
        self.load_items(durable.items, now);
        self.load_answers(durable.answers, durable.decided);
        for (device, item, sight) in durable.sights {
            if let Some(device) = self.devices.get_mut(&device) {
                device.sights.insert(item, sight);
            }
        }
        self.load_window(durable.window);
        self.revision += 1;
    }

    fn timeouts(&mut self, ctx: &mut Ctx<'_>) {
        self.hosts_timeouts(ctx);
        self.answers_timeouts(ctx);
        self.devices_timeouts(ctx);
        self.pairing_timeouts(ctx);
        self.pushes_timeouts(ctx.now);
        self.tunnels_timeouts(ctx);
    }

    fn finish(&mut self, ctx: &mut Ctx<'_>) -> Step {
        self.flush(ctx);
        if self.revision != self.told_revision {
            self.told_revision = self.revision;
            let pending = self.pending().count();
            self.emit(Event::InboxChanged { pending });
        }
        self.wrote = !self.step.writes.is_empty();
        std::mem::take(&mut self.step)
    }

    fn command(&mut self, ctx: &mut Ctx<'_>, command: Command) {
        match command {
            Command::OpenHost(hello, reply) => self.open_host(ctx, hello, reply),
            Command::InboxSync(session, set, reply) => {
                let result = self.sync(ctx, session, &set);
                self.reply(reply, result);
            }
            Command::InboxRequested(session, kind, item, reply) => {
                let result = self.requested(ctx, session, kind, &item);
                self.reply(reply, result);
            }
            Command::InboxResolved(session, kind, id, reply) => {
                let result = self.resolved(session, kind, &id);
                self.reply(reply, result);
            }
            Command::Notify(notification, reply) => {
                let result = self.notify_all(ctx, &notification);
                self.reply(reply, result);
            }
            Command::CallDone(session, call, outcome) => self.call_done(ctx, session, call, &outcome),
            Command::PairingStart(ttl, reply) => self.start_pairing(ctx, ttl, reply),
            Command::PairingQr(code, reply) => {
                let result = self.pairing_code(ctx.now, &code);
                self.reply(reply, result);
            }
            Command::PairingStop(reply) => {
                self.stop_pairing();
                self.reply(reply, Ok(()));
            }
            Command::DevicesList(reply) => {
                let list = self.device_list();
                self.reply(reply, Ok(list));
            }
            Command::DevicesAuthorize(prefix, reply) => self.authorize(ctx, &prefix, reply),
            Command::DevicesRevoke(prefix, reply) => self.revoke(ctx, &prefix, reply),
            Command::DevicesClear(reply) => self.clear_devices(ctx, reply),
            Command::DevicesRestore(reply) => self.restore_devices(ctx, None, reply),
            Command::InboxList(reply) => {
                let list = self.inbox_list();
                self.reply(reply, list);
            }
            Command::InboxAnswer(id, answer, reply) => {
                let result = self.answer_here(ctx, &id, answer);
                self.reply(reply, result);
            }
            Command::Status(reply) => {
                let status = self.status(ctx.now, &Passed::new());
                self.reply(reply, Ok(status));
            }
            Command::Settings(settings, reply) => {
                self.apply_settings(ctx, settings);
                self.reply(reply, Ok(()));
            }
            Command::Subscribe(reply) => self.effect(Effect::Subscribe(reply)),
        }
    }

    /// Items that wait for an answer, oldest first.
    fn pending(&self) -> impl Iterator<Item = &hosts::Held> {
        self.items.iter().filter(|held| !self.answers.waits(&held.row.item.id))
    }

    fn pending_item(&self, id: &str) -> Option<&hosts::Held> {
        self.pending().find(|held| held.row.item.id == id)
    }

    fn pending_ids(&self) -> BTreeSet<ItemId> {
        self.pending().map(|held| held.row.item.id.clone()).collect()
    }

    fn inbox_list(&self) -> Result<Vec<InboxEntry>, ApiError> {
        let entry = |held: &hosts::Held| {
            let item = &held.row.item;
            let json = skald_common::payload::RawJson::parse(item.json.clone())
                .map_err(|_| ApiError::Storage("an item in the database is damaged".into()))?;
            let (id, host) = (item.id.clone(), item.host.clone());
            let (created_at, expires_at) = (item.created_at, item.expires_at);
            Ok(InboxEntry { id, host, kind: item.kind, item: json, created_at, expires_at })
        };
        self.pending().map(entry).collect()
    }

    fn status(&self, now: Now, passed: &Passed) -> Status {
        let mut counts: BTreeMap<Kind, usize> = BTreeMap::new();
        for held in self.pending() {
            *counts.entry(held.row.item.kind).or_default() += 1;
        }
        let count = |kind| counts.get(&kind).copied().unwrap_or_default();
        Status {
            namespace_id: self.names.namespace,
            agent_ed25519_pub: self.names.ed25519,
            agent_x25519_pub: self.names.x25519,
            relay: self.relay.status(&self.settings),
            devices: self.device_counts(),
            device_table: self.devices.table(),
            pending: PendingCounts {
                approvals: count(Kind::Approval),
                clarifications: count(Kind::Clarification),
                elicitations: count(Kind::Elicitation),
            },
            hosts: self.hosts.status(),
            proxy: self.tunnels.status(&self.settings, &self.devices, passed),
            last_error: self.last_error.as_ref().map(|error| error.what.clone()),
            last_error_at: self.last_error.as_ref().map(|error| error.at),
            notices: self.all_notices(now),
        }
    }

    fn all_notices(&self, now: Now) -> Vec<String> {
        let mut notices = self.notices.clone();
        notices.extend(self.devices.notice());
        notices.extend(self.devices.push_notices());
        if self.relay.is_parked() {
            notices.push(
                "another daemon with the same seed keeps taking over the relay connection: waiting 5 minutes; stop one \
                 of the two"
                    .into(),
            );
        }
        if !now.is_trusted() {
            notices.push(
                "this machine's clock is behind the date of this version: set it; until a phone has told the time, phones \
                 are sent nothing, and the age of answers is not checked"
                    .into(),
            );
        }
        notices
    }

    // The step under way.

    fn write(&mut self, write: Write) {
        self.step.writes.push(write);
    }

    fn effect(&mut self, effect: Effect) {
        self.step.effects.push(effect);
    }

    fn emit(&mut self, event: Event) {
        self.effect(Effect::Emit(event));
    }

    fn reply<T: Send + 'static>(&mut self, to: Responder<T>, value: Result<T, ApiError>) {
        self.effect(Effect::Reply(Reply::new(to, value)));
    }
}
