//! The relay as the daemon sees it: queues, receipts, members, a pairing window, on both ends of a wire that can be cut.
//! With and without the features that deployed relays lack.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use bytes::Bytes;
use skald_common::ids::{Ed25519Public, PairingToken, X25519Public};
use skald_common::peer::{DialFailure, Output};
use skald_common::wire::{self, ErrorCode, Features, Frame, Platform};
use skald_link::LinkEvent;

use super::disk::Disk;
use super::{Crash, demand};
use crate::hub::tests::names;
use crate::relay::Socket;

/// A sealed message.
#[derive(Debug, Clone)]
pub(super) struct Sealed {
    pub(super) nonce: Vec<u8>,
    pub(super) ciphertext: Bytes,
}

/// A message of a device that the agent has not acknowledged.
#[derive(Debug)]
struct Waiting {
    delivery: u64,
    from: Ed25519Public,
    sealed: Sealed,
}

/// A message to a device that it has not read.
#[derive(Debug)]
struct Kept {
    sealed: Sealed,
    collapse: Vec<u8>,
}

/// What the oracle wants to know of the wire.
#[derive(Debug)]
pub(super) enum Seen {
    /// The agent has written a message to this device; the disk had this mark of counters then.
    Sent { to: Ed25519Public, sealed: Sealed, mark: u64 },
    /// The relay has taken it, for now or for later.
    Taken { to: Ed25519Public, sealed: Sealed },
    /// A message of a device was put before the agent.
    Heard { from: Ed25519Public, sealed: Sealed },
    /// The agent has said that it is done with a message.
    Acked { from: Ed25519Public, sealed: Sealed },
    /// The agent has told its list.
    Listed(Vec<Ed25519Public>),
}

/// The relay.
pub(super) struct Relay {
    /// The daemon's, to see what was on it when something was sent.
    disk: Disk,
    /// Whether it can be reached.
    pub(super) up: bool,
    /// Whether it has the features beyond the deployed protocol.
    pub(super) modern: bool,
    /// So many further messages of the agent are refused.
    pub(super) refuse: u8,
    /// The process dies at the output after so many.
    pub(super) crash_in: Option<u8>,
    authorized: Vec<Ed25519Public>,
    /// How many lists have come: what it says of pushes changes with each.
    lists: u8,
    /// What of that the daemon has read since it was started; a relay that does not tell takes it back.
    told: BTreeMap<Ed25519Public, wire::Push>,
    pending: Vec<(Ed25519Public, X25519Public, Platform)>,
    pub(super) window: Option<PairingToken>,
    online: Vec<Ed25519Public>,
    to_devices: BTreeMap<Ed25519Public, VecDeque<Kept>>,
    queue: VecDeque<Waiting>,
    last_delivery: u64,
    /// The agent's socket is open, and what it has of our features.
    agent: Option<Agent>,
    /// On the wire to the agent.
    to_agent: VecDeque<LinkEvent>,
    seen: Vec<Seen>,
}

#[derive(Debug)]
struct Agent {
    authenticated: bool,
    modern: bool,
}

/// The daemon's end of the wire.
#[derive(Clone)]
pub(super) struct Wire(pub(super) Rc<RefCell<Relay>>);

impl Socket for Wire {
    fn carry_out(&mut self, output: Output) -> Option<Output> {
        if matches!(output, Output::Reserve { .. } | Output::Event(_)) {
            return Some(output);
        }
        let mut relay = self.0.borrow_mut();
        match relay.crash_in {
            Some(0) => {
                relay.crash_in = None;
                drop(relay);
                Crash::now();
            }
            Some(left) => relay.crash_in = Some(left - 1),
            None => {}
        }
        match output {
            Output::Dial { .. } => relay.dial(),
            Output::Send(bytes) => relay.read(bytes.into()),
            Output::SendPing | Output::SendNativePing if relay.agent.is_some() => {
                relay.to_agent.push_back(LinkEvent::Activity);
            }
            Output::Close => relay.hang_up(),
            _ => {}
        }
        None
    }

    fn close(&mut self) {
        self.0.borrow_mut().hang_up();
    }
}

impl Relay {
    /// Nobody knows it yet.
    pub(super) fn new(disk: Disk) -> Self {
        Self {
            disk,
            up: false,
            modern: true,
            refuse: 0,
            crash_in: None,
            authorized: Vec::new(),
            lists: 0,
            told: BTreeMap::new(),
            pending: Vec::new(),
            window: None,
            online: Vec::new(),
            to_devices: BTreeMap::new(),
            queue: VecDeque::new(),
            last_delivery: 0,
            agent: None,
            to_agent: VecDeque::new(),
            seen: Vec::new(),
        }
    }

    // The wire.

    pub(super) fn dial(&mut self) {
        self.hang_up();
        if !self.up {
            let failure = DialFailure { http_status: None, why: "no relay there".into() };
            return self.to_agent.push_back(LinkEvent::DialFailed(failure));
        }
        self.agent = Some(Agent { authenticated: false, modern: self.modern });
        self.to_agent.push_back(LinkEvent::Open);
        self.write(Frame::Challenge(wire::Challenge { nonce: vec![7; 32] }));
    }

    /// The agent's socket is gone, with all that was on the wire.
    pub(super) fn hang_up(&mut self) {
        self.agent = None;
        self.to_agent.clear();
    }

    /// Cuts the wire; the agent notices.
    pub(super) fn cut(&mut self, code: Option<u16>) {
        if self.agent.is_some() {
            self.hang_up();
            self.to_agent.push_back(LinkEvent::Closed(code));
        }
    }

    /// What comes to the agent next.
    pub(super) fn next_event(&mut self) -> Option<LinkEvent> {
        let event = self.to_agent.pop_front()?;
        if let LinkEvent::Binary(bytes) = &event {
            match wire::decode(bytes.clone()) {
                Ok(Some(Frame::AuthOk(ok))) if ok.features == 0 => self.told.clear(),
                Ok(Some(Frame::PushStatus(status))) => {
                    let told = |state: &wire::PushState| {
                        (Ed25519Public::from_slice(&state.client_ed25519_pub).unwrap(), state.push())
                    };
                    self.told.extend(status.devices.iter().map(told));
                }
                _ => {}
            }
        }
        Some(event)
    }

    /// The daemon has died: it knows nothing of what it was told.
    pub(super) fn told_nobody(&mut self) {
        self.told.clear();
    }

    /// What the daemon has been told last of pushes to this device.
    pub(super) fn told_of(&self, key: &Ed25519Public) -> wire::Push {
        self.told.get(key).copied().unwrap_or_default()
    }

    pub(super) fn take_seen(&mut self) -> Vec<Seen> {
        std::mem::take(&mut self.seen)
    }

    /// How many messages of devices the agent has not acknowledged.
    pub(super) fn unacknowledged(&self) -> usize {
        self.queue.len()
    }

    /// The agent's connection is open and authenticated, and nothing is on the wire.
    pub(super) fn is_calm(&self) -> bool {
        self.agent.as_ref().is_some_and(|agent| agent.authenticated) && self.to_agent.is_empty()
    }

    fn write(&mut self, frame: Frame) {
        self.to_agent.push_back(LinkEvent::Binary(wire::encode(frame).into()));
    }

    fn tell(&mut self, frame: Frame) {
        if self.agent.as_ref().is_some_and(|agent| agent.authenticated) {
            self.write(frame);
        }
    }

    /// A frame of the agent.
    pub(super) fn read(&mut self, bytes: Bytes) {
        let frame = wire::decode(bytes).unwrap().unwrap();
        if let Frame::Message(message) = &frame {
            let sealed = Sealed { nonce: message.nonce.clone(), ciphertext: message.ciphertext.clone() };
            let (to, mark) = (Ed25519Public::from_slice(&message.peer).unwrap(), self.disk.get().durable.high_water);
            self.seen.push(Seen::Sent { to, sealed, mark });
        }
        // Written to a socket that the relay has given up already.
        let Some(agent) = &self.agent else { return };
        let modern = agent.modern;
        match frame {
            Frame::Auth(_) => self.authenticate(modern),
            Frame::Authorize(list) => self.authorize(&list.clients, modern),
            Frame::PairingStart(start) => {
                self.window = PairingToken::from_slice(&start.pairing_token).ok();
                self.tell(Frame::PairingReady(wire::PairingReady { ttl: start.ttl }));
            }
            Frame::PairingStop(_) => {
                self.window = None;
                self.tell(Frame::PairingStopOk(wire::PairingStopOk {}));
            }
            Frame::PresenceRequest(_) => {
                let online = self.online.iter().map(Ed25519Public::to_vec).collect();
                self.tell(Frame::PresenceList(wire::PresenceList { online }));
            }
            Frame::Message(message) => self.message(message, modern),
            Frame::Ack(ack) => {
                while self.queue.front().is_some_and(|first| first.delivery <= ack.delivery) {
                    let done = self.queue.pop_front().unwrap();
                    self.seen.push(Seen::Acked { from: done.from, sealed: done.sealed });
                }
            }
            frame => demand(false, || format!("the agent sends {frame:?}")),
        }
    }

    fn authenticate(&mut self, modern: bool) {
        self.agent = Some(Agent { authenticated: true, modern });
        let features = if modern { Features::AGENT } else { Features::NONE }.bits();
        self.write(Frame::AuthOk(wire::AuthOk { namespace_id: names().namespace.to_vec(), features }));
        for (ed25519, x25519, platform) in self.pending.clone() {
            self.announce(ed25519, x25519, platform);
        }
        let waiting: Vec<_> = self.queue.iter().map(|one| (one.delivery, one.from, one.sealed.clone())).collect();
        for (delivery, from, sealed) in waiting {
            self.deliver(if modern { delivery } else { 0 }, from, sealed, false);
        }
        if !modern {
            self.queue.clear();
        }
    }

    fn announce(&mut self, ed25519: Ed25519Public, x25519: X25519Public, platform: Platform) {
        self.tell(Frame::ClientPaired(wire::ClientPaired {
            client_ed25519_pub: ed25519.to_vec(),
            client_x25519_pub: x25519.to_vec(),
            platform: platform as i32,
        }));
    }

    fn authorize(&mut self, clients: &[Vec<u8>], modern: bool) {
        self.authorized = clients.iter().map(|key| Ed25519Public::from_slice(key).unwrap()).collect();
        let authorized = &self.authorized;
        self.pending.retain(|(key, _, _)| !authorized.contains(key));
        self.to_devices.retain(|key, _| authorized.contains(key));
        self.online.retain(|key| authorized.contains(key));
        self.queue.retain(|waiting| authorized.contains(&waiting.from));
        self.seen.push(Seen::Listed(self.authorized.clone()));
        let authorized = u32::try_from(self.authorized.len()).unwrap();
        self.tell(Frame::AuthorizeOk(wire::AuthorizeOk { authorized }));
        self.lists = self.lists.wrapping_add(1);
        if modern {
            let state = |key: &Ed25519Public, push| wire::PushState { client_ed25519_pub: key.to_vec(), push };
            let mut devices: Vec<_> = self.authorized.iter().map(|key| state(key, self.push_of(key))).collect();
            // Of whom the agent may know nothing.
            devices.extend(self.pending.iter().map(|(key, _, _)| state(key, 3)));
            devices.push(state(&Ed25519Public::new([0xee; 32]), 3));
            self.tell(Frame::PushStatus(wire::PushStatus { devices }));
        }
    }

    /// What it says of pushes to this device: one of the words of the schema, or one of a later one.
    fn push_of(&self, key: &Ed25519Public) -> i32 {
        i32::from((key.as_bytes()[0] ^ self.lists) % 6)
    }

    fn message(&mut self, message: wire::Message, modern: bool) {
        let to = Ed25519Public::from_slice(&message.peer).unwrap();
        let sealed = Sealed { nonce: message.nonce, ciphertext: message.ciphertext };
        let number = message.r#ref;
        let refused = match (self.refuse, self.authorized.contains(&to)) {
            (1.., _) => {
                self.refuse -= 1;
                Some(if self.refuse.is_multiple_of(2) { ErrorCode::RateLimited } else { ErrorCode::QueueFull })
            }
            (_, false) => Some(ErrorCode::NotFound),
            _ => None,
        };
        if let Some(code) = refused {
            let (code, message) = (code.as_str().to_owned(), String::new());
            return self.tell(Frame::Error(wire::Error { code, message, r#ref: number }));
        }
        let online = self.online.contains(&to);
        if message.live && !online {
            return self.tell(Frame::PeerOffline(wire::PeerOffline { peer: to.to_vec(), r#ref: number }));
        }
        let queue = self.to_devices.entry(to).or_default();
        if !message.collapse.is_empty() {
            queue.retain(|kept| kept.collapse != message.collapse);
        }
        queue.push_back(Kept { sealed: sealed.clone(), collapse: message.collapse });
        self.seen.push(Seen::Taken { to, sealed });
        if modern {
            self.tell(Frame::Accepted(wire::Accepted { r#ref: number, queued: !online }));
        }
    }

    // Devices.

    /// A device connects, if it may.
    pub(super) fn come(&mut self, key: Ed25519Public) -> bool {
        if !self.up || !self.authorized.contains(&key) {
            return false;
        }
        if !self.online.contains(&key) {
            self.online.push(key);
            self.presence(key, wire::Status::Online);
        }
        true
    }

    pub(super) fn go(&mut self, key: Ed25519Public) {
        if self.online.contains(&key) {
            self.online.retain(|online| *online != key);
            self.presence(key, wire::Status::Offline);
        }
    }

    fn presence(&mut self, key: Ed25519Public, status: wire::Status) {
        let event = wire::PresenceEvent { pubkey: key.to_vec(), status: status as i32 };
        self.tell(Frame::PresenceEvent(event));
    }

    pub(super) fn is_online(&self, key: &Ed25519Public) -> bool {
        self.up && self.online.contains(key)
    }

    /// What the device reads next, if it is connected.
    pub(super) fn next_for(&mut self, key: &Ed25519Public) -> Option<Sealed> {
        if !self.is_online(key) {
            return None;
        }
        self.to_devices.get_mut(key)?.pop_front().map(|kept| kept.sealed)
    }

    /// A device that is connected says something.
    pub(super) fn hear(&mut self, from: Ed25519Public, sealed: Sealed, live: bool) {
        let modern = match &self.agent {
            Some(agent) if agent.authenticated => Some(agent.modern),
            _ => None,
        };
        match modern {
            Some(modern) if live || !modern => self.deliver(0, from, sealed, live),
            None if live => {}
            here => {
                self.last_delivery += 1;
                let delivery = self.last_delivery;
                self.queue.push_back(Waiting { delivery, from, sealed: sealed.clone() });
                if here.is_some() {
                    self.deliver(delivery, from, sealed, false);
                }
            }
        }
    }

    fn deliver(&mut self, delivery: u64, from: Ed25519Public, sealed: Sealed, live: bool) {
        self.seen.push(Seen::Heard { from, sealed: sealed.clone() });
        self.tell(Frame::Message(wire::Message {
            ciphertext: sealed.ciphertext,
            nonce: sealed.nonce,
            peer: from.to_vec(),
            live,
            delivery,
            ..Default::default()
        }));
    }

    /// A device uses the pairing window, if one is open.
    pub(super) fn pair(&mut self, ed25519: Ed25519Public, x25519: X25519Public, platform: Platform) -> bool {
        if !self.up || self.window.take().is_none() {
            return false;
        }
        self.authorized.retain(|key| *key != ed25519);
        self.online.retain(|key| *key != ed25519);
        self.to_devices.remove(&ed25519);
        self.pending.retain(|(key, _, _)| *key != ed25519);
        self.pending.push((ed25519, x25519, platform));
        self.announce(ed25519, x25519, platform);
        true
    }

    /// The relay's machine goes down or comes back; what it stored stays.
    pub(super) fn power(&mut self, up: bool) {
        self.up = up;
        if !up {
            self.online.clear();
            self.cut(None);
        }
    }
}
