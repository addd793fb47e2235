//! The hub under a simulated driver: fake time, counted randomness, the real database in a temporary folder.

mod answers;
mod clock;
mod devices;
mod hosts;
mod pairing;
mod pushes;
mod simulation;
mod storage;
mod tunnels;

use serde_json::Value;
use skald_common::crypto::{Identity, Seed};
use skald_common::ids::{ConnectionId, Ed25519Public, PairingToken, X25519Public};
use skald_common::payload::RawJson;
use skald_common::peer::{Delivery, Partner};
use skald_common::pipe::signal::Signal;
use skald_common::wire::Platform;
use tokio::sync::{mpsc, oneshot};
use zeroize::Zeroizing;

use super::api::{
    AnswerContent, ApiError, CallId, CallOutcome, Command, DeviceEntry, DeviceState, HostCall, HostHello, HostRequest,
    HostSession, InboxEntry, InboxSet, PushState, ResolveParams, Responder, SessionId, Settings, Status,
};
use super::clock::BUILD_DATE;
use super::effects::{Effect, RelayOrder, Step, Token};
use super::events::Event;
use super::items::{Kind, RequestId};
use super::{Ctx, Failure, Hub, Input, Names, Now, RelayInput, TunnelOrder};
use crate::store::{Opened, Store};

const HOUR: u64 = 3_600_000;

/// A payload that the hub wants sent.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    token: Token,
    to: Ed25519Public,
    json: Value,
    delivery: Delivery,
}

impl Sent {
    fn is_snapshot(&self) -> bool {
        self.json["kind"] == "inbox_update"
    }

    fn is_live(&self) -> bool {
        self.delivery == Delivery::Live
    }

    fn is_quiet(&self) -> bool {
        matches!(self.delivery, Delivery::Stored { quiet: true, .. })
    }

    /// Ids of the items in a snapshot, of all kinds.
    fn ids(&self) -> Vec<String> {
        ["approvals", "clarifications", "elicitations"]
            .iter()
            .flat_map(|list| self.json[list].as_array().unwrap())
            .map(|item| item["request_id"].as_str().unwrap().to_owned())
            .collect()
    }
}

/// A host as the server would hold it.
pub(super) struct Host {
    session: HostSession,
    seen: Vec<HostCall>,
}

pub(super) struct World {
    hub: Hub,
    store: Store,
    folder: tempfile::TempDir,
    now: Now,
    seed: u8,
    settings: Settings,
    sent: Vec<Sent>,
    orders: Vec<RelayOrder>,
    signals: Vec<(Ed25519Public, ConnectionId, Signal)>,
    tunnels: Vec<TunnelOrder>,
    events: Vec<Event>,
    closings: mpsc::UnboundedReceiver<SessionId>,
    closings_sender: mpsc::UnboundedSender<SessionId>,
    channels: std::collections::HashMap<SessionId, mpsc::Sender<HostCall>>,
    /// The disk refuses.
    full: bool,
    follow_ups: Vec<Input>,
    counter: u64,
    payloads: u64,
}

fn names() -> Names {
    let identity = Identity::new(&Seed::new([9; 32]));
    Names { namespace: identity.namespace_id(), ed25519: identity.ed25519_pub(), x25519: identity.x25519_pub() }
}

fn key(n: u8) -> Ed25519Public {
    Ed25519Public::new([n; 32])
}

fn x_key(n: u8) -> X25519Public {
    X25519Public::new([n; 32])
}

impl World {
    /// A new identity, a relay configured, connected with all features.
    pub(super) fn new() -> Self {
        let mut world = Self::unconnected();
        world.connect();
        world
    }

    fn unconnected() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { relay_url: "ws://relay.test/v1/ws".into(), ..Settings::default() };
        let now = Now { mono: 1_000, unix: BUILD_DATE + HOUR };
        let opened = Store::open(folder.path(), names().namespace, true, now.unix).unwrap();
        Self::with(folder, settings, now, opened)
    }

    fn with(folder: tempfile::TempDir, settings: Settings, now: Now, opened: Opened) -> Self {
        let (closings_sender, closings) = mpsc::unbounded_channel();
        let mut world = Self {
            hub: Hub::new(names(), settings.clone(), opened.durable, opened.notices, now),
            store: opened.store,
            folder,
            now,
            seed: 0,
            settings,
            sent: Vec::new(),
            orders: Vec::new(),
            signals: Vec::new(),
            tunnels: Vec::new(),
            events: Vec::new(),
            closings,
            closings_sender,
            channels: std::collections::HashMap::new(),
            full: false,
            follow_ups: Vec::new(),
            counter: 0,
            payloads: 0,
        };
        let step = world.call(Hub::start);
        world.carry_out(step);
        world
    }

    /// The daemon is killed and started again, not connected yet; `prepare` works on its folder meanwhile.
    fn restart_with(self, new_identity: bool, prepare: impl FnOnce(&std::path::Path)) -> Self {
        let Self { store, folder, settings, mut now, counter, payloads, .. } = self;
        drop(store);
        prepare(folder.path());
        now.mono = 500;
        let opened = Store::open(folder.path(), names().namespace, new_identity, now.unix).unwrap();
        let mut world = Self::with(folder, settings, now, opened);
        (world.counter, world.payloads) = (counter, payloads);
        world
    }

    fn restart(self) -> Self {
        self.restart_with(false, |_| {})
    }

    fn call(&mut self, work: impl FnOnce(&mut Hub, &mut Ctx<'_>) -> Step) -> Step {
        let seed = &mut self.seed;
        let mut random = |bytes: &mut [u8]| {
            *seed = seed.wrapping_add(1);
            bytes.fill(*seed);
        };
        work(&mut self.hub, &mut Ctx { now: self.now, random: &mut random })
    }

    /// One input, carried out as the daemon does. False: the disk refused.
    fn input(&mut self, input: Input) -> bool {
        let step = self.call(|hub, ctx| hub.handle(ctx, input));
        let stored = self.carry_out(step);
        while let Ok(session) = self.closings.try_recv() {
            self.input(Input::HostClosed(session));
        }
        if let Some(input) = self.follow_ups.pop() {
            self.input(input);
        }
        stored
    }

    fn carry_out(&mut self, step: Step) -> bool {
        if self.full && !step.writes.is_empty() {
            self.hub.reload(self.store.load().unwrap(), "disk full", self.now);
            for effect in step.effects {
                if let Effect::Tunnel(TunnelOrder::End(connection)) = &effect {
                    self.tunnels.push(TunnelOrder::End(*connection));
                }
                self.follow_ups.extend(effect.undo("disk full"));
            }
            return false;
        }
        self.store.apply(&step.writes).unwrap();
        for effect in step.effects {
            match effect {
                Effect::Reply(reply) => reply.deliver(),
                Effect::OpenSession(id, reply) => {
                    let (sender, calls) = mpsc::channel(8);
                    self.channels.insert(id, sender);
                    let _ = reply.send(Ok(HostSession::new(id, calls, self.closings_sender.clone())));
                }
                Effect::CloseSession(id) => {
                    self.channels.remove(&id);
                }
                Effect::CallHost(id, call) => self.channels[&id].try_send(call).unwrap(),
                Effect::Send { token, to, json, delivery } => {
                    let json = serde_json::from_slice(&json).unwrap();
                    self.sent.push(Sent { token, to, json, delivery });
                }
                Effect::Signal { to, connection, signal } => {
                    self.signals.push((to, connection, Signal::decode(&signal).unwrap()));
                }
                Effect::Tunnel(order) => self.tunnels.push(order),
                Effect::Relay(order) => self.orders.push(order),
                Effect::Emit(event) => self.events.push(event),
                Effect::Subscribe(_) => {}
            }
        }
        true
    }

    fn relay(&mut self, input: RelayInput) -> bool {
        self.input(Input::Relay(input))
    }

    fn connect(&mut self) {
        self.relay(RelayInput::Connected { url: "ws://relay.test/ns/x/v1/ws".into(), tells_push: true });
        self.relay(RelayInput::Authorized);
    }

    fn disconnect(&mut self) {
        self.relay(RelayInput::Disconnected { why: "gone".into(), parked: false });
    }

    /// Lets time pass, waking the hub whenever it asked to be woken.
    fn advance(&mut self, ms: u64) {
        let end = self.now.mono + ms;
        loop {
            let next = self.hub.deadline(self.now).map_or(end, |at| at.max(self.now.mono + 1));
            let step = next.min(end) - self.now.mono;
            self.now.mono += step;
            self.now.unix += step;
            self.input(Input::Timeout);
            if self.now.mono == end {
                return;
            }
        }
    }

    fn begin<T>(&mut self, command: impl FnOnce(Responder<T>) -> Command) -> oneshot::Receiver<Result<T, ApiError>> {
        let (sender, receiver) = oneshot::channel();
        self.input(Input::Command(command(sender)));
        receiver
    }

    /// Asks, and does not wait for the answer.
    fn tell<T>(&mut self, command: impl FnOnce(Responder<T>) -> Command) {
        drop(self.begin(command));
    }

    fn ask<T>(&mut self, command: impl FnOnce(Responder<T>) -> Command) -> Result<T, ApiError> {
        self.begin(command).try_recv().expect("answered at once")
    }

    fn status(&mut self) -> Status {
        self.ask(Command::Status).unwrap()
    }

    fn inbox(&mut self) -> Vec<InboxEntry> {
        self.ask(Command::InboxList).unwrap()
    }

    fn device(&mut self, n: u8) -> Option<DeviceEntry> {
        let list = self.ask(Command::DevicesList).unwrap();
        list.into_iter().find(|device| device.pubkey == key(n))
    }

    fn take_sent(&mut self) -> Vec<Sent> {
        std::mem::take(&mut self.sent)
    }

    /// The relay accepts everything that was sent so far, and whatever that leads to. Returns all of it.
    fn accept_all(&mut self) -> Vec<Sent> {
        let mut all = Vec::new();
        loop {
            let sent = self.take_sent();
            if sent.is_empty() {
                return all;
            }
            for one in &sent {
                self.relay(RelayInput::Accepted { token: one.token, queued: Some(false) });
            }
            all.extend(sent);
        }
    }

    fn fail(&mut self, sent: &Sent, why: Failure) {
        self.relay(RelayInput::Failed { token: sent.token, why });
    }

    fn take_orders(&mut self) -> Vec<RelayOrder> {
        std::mem::take(&mut self.orders)
    }

    /// The lists that the relay was told since the last look.
    fn told_lists(&mut self) -> Vec<Option<Vec<Ed25519Public>>> {
        let lists = self.take_orders().into_iter().filter_map(|order| match order {
            RelayOrder::SetAuthorized(list) | RelayOrder::Connect { authorized: list, .. } => Some(list),
            _ => None,
        });
        lists.collect()
    }

    fn partner(&mut self, n: u8) -> Option<Partner> {
        let found = self.take_orders().into_iter().filter_map(|order| match order {
            RelayOrder::SetPartner(partner) => Some(vec![partner]),
            RelayOrder::Connect { partners, .. } => Some(partners),
            _ => None,
        });
        found.flatten().collect::<Vec<_>>().into_iter().rfind(|partner| partner.ed25519 == key(n))
    }

    // Devices.

    fn open_window(&mut self) -> PairingToken {
        let mut reply = self.begin(|reply| Command::PairingStart(None, reply));
        self.relay(RelayInput::PairingReady { ttl: 300 });
        reply.try_recv().unwrap().unwrap();
        let started = self.take_orders().into_iter().find_map(|order| match order {
            RelayOrder::StartPairing { token, .. } => Some(token),
            _ => None,
        });
        started.unwrap()
    }

    fn pair(&mut self, n: u8, platform: Platform) {
        self.open_window();
        self.relay(RelayInput::ClientPaired { ed25519: key(n), x25519: x_key(n), platform });
    }

    /// Device `n`, paired, authorized, and settled.
    fn phone(&mut self, n: u8) {
        self.phone_on(n, Platform::Android);
    }

    fn phone_on(&mut self, n: u8, platform: Platform) {
        self.pair(n, platform);
        self.tell(|reply| Command::DevicesAuthorize(key(n).to_hex(), reply));
        self.relay(RelayInput::Authorized);
        self.accept_all();
        self.take_orders();
    }

    /// A phone of ours, which gets acks.
    fn our_phone(&mut self, n: u8) {
        self.phone(n);
        let info = format!(
            r#""device_info":{{"platform":"android","app_version":"skald-phone/0.1","device_name":"Phone {n}"}}"#
        );
        self.phone_says(n, "hello", &info);
    }

    fn payload(&mut self, kind: &str, fields: &str) -> String {
        self.payloads += 1;
        let comma = if fields.is_empty() { "" } else { "," };
        format!(r#"{{"v":1,"kind":"{kind}","id":"p{}","ts":{}{comma}{fields}}}"#, self.payloads, self.now.unix)
    }

    /// A sealed message of device `n` arrives. False: it could not be stored.
    fn phone_says(&mut self, n: u8, kind: &str, fields: &str) -> bool {
        let json = self.payload(kind, fields);
        self.deliver(n, &json)
    }

    fn deliver(&mut self, n: u8, json: &str) -> bool {
        self.counter += 1;
        let (from, counter) = (key(n), self.counter);
        self.relay(RelayInput::Message { from, counter, json: Zeroizing::new(json.as_bytes().to_vec()) })
    }

    fn approve(&mut self, n: u8, id: &str) -> bool {
        self.phone_says(n, "approval_response", &format!(r#""request_id":"{id}","decision":"approved""#))
    }

    // Hosts.

    fn host(&mut self, name: &str) -> Host {
        self.host_lingering(name, None)
    }

    fn host_lingering(&mut self, name: &str, linger_secs: Option<u64>) -> Host {
        let hello = hello(name, linger_secs);
        let session = self.ask(|reply| Command::OpenHost(hello, reply)).unwrap();
        Host { session, seen: Vec::new() }
    }

    /// The host's connection ends.
    fn leave(&mut self, host: Host) {
        drop(host);
        self.input(Input::Timeout);
    }

    fn request(&mut self, host: &Host, kind: Kind, json: &str) -> Result<(), ApiError> {
        let (id, item) = (host.session.id, raw(json));
        self.ask(|reply| Command::InboxRequested(id, kind, item, reply))
    }

    fn sync(&mut self, host: &Host, approvals: &[&str]) -> Result<(), ApiError> {
        let set = InboxSet { approvals: approvals.iter().map(|json| raw(json)).collect(), ..InboxSet::default() };
        self.ask(|reply| Command::InboxSync(host.session.id, set, reply))
    }

    fn resolved(&mut self, host: &Host, kind: Kind, id: &str) {
        let id = RequestId::from_json(id).unwrap();
        self.ask(|reply| Command::InboxResolved(host.session.id, kind, id, reply)).unwrap();
    }

    /// Raises an approval and returns the id that phones see.
    fn approval(&mut self, host: &Host, n: u64) -> String {
        self.request(host, Kind::Approval, &approval(n)).unwrap();
        let inbox = self.inbox();
        inbox.iter().rfind(|entry| entry.id.starts_with(&format!("{n}."))).unwrap().id.clone()
    }

    /// An approval that is on every phone in full.
    fn shown_approval(&mut self, host: &Host, n: u64) -> String {
        let id = self.approval(host, n);
        self.advance(20_000);
        self.accept_all();
        id
    }

    fn done(&mut self, host: &Host, call: CallId, outcome: CallOutcome) {
        self.input(Input::Command(Command::CallDone(host.session.id, call, outcome)));
    }
}

impl Host {
    /// Calls that have come since the last look.
    fn calls(&mut self) -> Vec<HostCall> {
        while let Ok(call) = self.session.calls.try_recv() {
            self.seen.push(call);
        }
        std::mem::take(&mut self.seen)
    }

    /// The one `inbox.resolve` that has come.
    fn answer(&mut self) -> (CallId, ResolveParams) {
        let mut calls = self.calls();
        assert_eq!(calls.len(), 1, "{calls:?}");
        match calls.remove(0) {
            HostCall { id, request: HostRequest::Resolve(params) } => (id, params),
            call => panic!("{call:?}"),
        }
    }
}

fn hello(name: &str, linger_secs: Option<u64>) -> HostHello {
    HostHello { name: name.into(), version: "1".into(), label: None, linger_secs }
}

fn raw(json: &str) -> RawJson {
    RawJson::parse(json.to_owned()).unwrap()
}

fn approval(n: u64) -> String {
    format!(r#"{{"request_id":{n},"tool_name":"t","summary":"s","arguments":{{"n":{n}}}}}"#)
}

const ELICITATION: &str = r#"{"request_id":"e1","server_name":"ssh","message":"Password?","field_name":"password","sensitive":true,"is_confirmation":false}"#;
