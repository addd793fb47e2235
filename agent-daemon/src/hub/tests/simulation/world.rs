//! The daemon's core between its hosts, its phones, its relay and its disk, and the time that passes.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use skald_common::crypto::Seed;
use skald_common::wire::Push;
use tokio::sync::{mpsc, oneshot};

use super::acts::Meaning;
use super::disk::{Disk, Loss};
use super::history::{ALL, Dice, Step};
use super::host::Host;
use super::oracle::Oracle;
use super::phone::{News, Phone};
use super::relay::{Relay, Wire};
use super::tunnels::{Machine, Tubes};
use super::{Crash, START, demand};
use crate::core::{Beginning, Surroundings};
use crate::hub::Now;
use crate::hub::api::{ApiError, Command, DeviceState, PushState, Responder, SessionId, Settings};
use crate::hub::durable::Durable;
use crate::hub::tests::names;
use crate::relay::Connection;
use crate::store::StoreError;

type Core = crate::core::Core<Disk, Wire, Tubes, Nature>;

/// Time and chance as the world deals them out.
pub(super) struct Nature(Rc<RefCell<(Now, Dice)>>);

impl Surroundings for Nature {
    fn now(&self) -> Now {
        self.0.borrow().0
    }

    fn random(&mut self, bytes: &mut [u8]) {
        let dice = &mut self.0.borrow_mut().1;
        bytes.fill_with(|| dice.below(u8::MAX));
    }
}

/// A command whose answer has not come.
struct Ask {
    meaning: Meaning,
    poll: Box<dyn FnMut() -> Heard>,
}

enum Heard {
    Nothing,
    Answer(Result<(), ApiError>),
    /// It is dropped without an answer.
    Dropped,
}

pub(super) struct World {
    pub(super) core: Core,
    nature: Rc<RefCell<(Now, Dice)>>,
    pub(super) dice: Dice,
    pub(super) disk: Disk,
    pub(super) relay: Rc<RefCell<Relay>>,
    pub(super) machine: Rc<RefCell<Machine>>,
    pub(super) hosts: Vec<Host>,
    pub(super) phones: Vec<Phone>,
    pub(super) oracle: Oracle,
    pub(super) settings: Settings,
    /// Answers are numbered.
    pub(super) said: u64,
    closings: mpsc::UnboundedReceiver<SessionId>,
    asks: Vec<Ask>,
    /// The clock has gone back, or every mark of counters but the clock was lost: never both.
    went_back: bool,
    marks_lost: bool,
    /// Phones may have to ask for their inbox.
    pub(super) unnoted: bool,
}

/// How long the daemon waits before it notes again what it owes to phones.
const REALIGN_MS: u64 = 5_000;

impl World {
    pub(super) fn new(seed: u64, disk: Disk) -> Self {
        let now = Now { mono: 1_000, unix: START };
        let nature = Rc::new(RefCell::new((now, Dice(seed))));
        let relay = Rc::new(RefCell::new(Relay::new(disk.clone())));
        let settings = Settings { relay_url: "ws://relay.test/v1/ws".into(), ..Settings::default() };
        let (sender, closings) = mpsc::unbounded_channel();
        let durable = disk.get().durable.clone();
        let machine = Rc::default();
        let core = begin(&settings, &disk, &relay, &machine, &nature, durable, sender);
        let mut world = Self {
            core,
            nature,
            dice: Dice(!seed),
            disk,
            relay,
            machine,
            hosts: ["skald", "ssh", "ci"].map(Host::new).into(),
            phones: (0..4).map(Phone::new).collect(),
            oracle: Oracle::default(),
            settings,
            said: 0,
            closings,
            asks: Vec::new(),
            went_back: false,
            marks_lost: false,
            unnoted: false,
        };
        world.oracle.time(now);
        world.call(Core::start);
        world
    }

    pub(super) fn step(&mut self, step: Step) {
        self.forget_expired();
        self.act(step.0);
        self.flow(step.1);
        self.rest();
    }

    /// Everything that two runs of one history must have in common.
    pub(super) fn trace(&self) -> String {
        format!("{:?} {:?} {}", self.disk.get().durable, self.now(), self.said)
    }

    pub(super) fn now(&self) -> Now {
        self.nature.borrow().0
    }

    // The core.

    /// The core does something; whatever shows of it is looked at.
    pub(super) fn call(&mut self, work: impl FnOnce(&mut Core) -> Result<(), StoreError>) {
        let core = &mut self.core;
        match catch_unwind(AssertUnwindSafe(|| work(core))) {
            Ok(result) => result.unwrap(),
            Err(payload) if payload.is::<Crash>() => self.die(Loss::Nothing),
            Err(payload) => resume_unwind(payload),
        }
        self.look();
    }

    fn look(&mut self) {
        self.oracle.look(&self.disk.get(), self.settings.require_device_confirmation);
        let seen = self.relay.borrow_mut().take_seen();
        for seen in seen {
            self.oracle.wire(seen, &self.disk.get(), &self.phones);
        }
        self.hear(false);
        self.machine.borrow().check(&self.settings, &self.oracle);
        while let Ok(session) = self.closings.try_recv() {
            self.call(|core| core.host_closed(session));
        }
    }

    /// Sends a command whose answer means something.
    pub(super) fn ask<T: 'static>(&mut self, meaning: Meaning, command: impl FnOnce(Responder<T>) -> Command) {
        let (sender, mut receiver) = oneshot::channel::<Result<T, ApiError>>();
        let poll = move || match receiver.try_recv() {
            Ok(answer) => Heard::Answer(answer.map(drop)),
            Err(oneshot::error::TryRecvError::Empty) => Heard::Nothing,
            Err(oneshot::error::TryRecvError::Closed) => Heard::Dropped,
        };
        self.asks.push(Ask { meaning, poll: Box::new(poll) });
        self.call(|core| core.command(command(sender)));
    }

    /// Hears the answers that have come. What the dying daemon did not say is never heard.
    fn hear(&mut self, dying: bool) {
        for mut ask in std::mem::take(&mut self.asks) {
            match (ask.poll)() {
                Heard::Answer(answer) => self.heard(ask.meaning, answer),
                Heard::Nothing if !dying => self.asks.push(ask),
                Heard::Nothing => {}
                Heard::Dropped => demand(dying, || "a command is dropped without an answer".into()),
            }
        }
        for host in 0..self.hosts.len() {
            let Some(opening) = &mut self.hosts[host].opening else { continue };
            match opening.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => continue,
                Err(oneshot::error::TryRecvError::Closed) => demand(dying, || "hello is not answered".into()),
                Ok(Ok(session)) => self.hosts[host].session = Some(session),
                Ok(Err(_)) => {}
            }
            self.hosts[host].opening = None;
            if !dying && self.hosts[host].session.is_some() {
                self.sync(host);
            }
        }
    }

    /// The process dies, and is started again on what the files hold.
    pub(super) fn die(&mut self, loss: Loss) {
        let loss = self.allowed(loss);
        let refused = self.disk.get().refused_at;
        // The disk refused a note of what is owed to phones, and before it could be made again the process dies.
        self.unnoted |= refused.is_some_and(|at| self.now().mono <= at + REALIGN_MS);
        self.oracle.look(&self.disk.get(), self.settings.require_device_confirmation);
        let seen = self.relay.borrow_mut().take_seen();
        for seen in seen {
            self.oracle.wire(seen, &self.disk.get(), &self.phones);
        }
        self.hear(true);
        for host in 0..self.hosts.len() {
            // What was on its way to a host may or may not have left the process.
            if self.dice.below(2) == 0 {
                self.act_on_calls(host);
            }
            (self.hosts[host].session, self.hosts[host].opening) = (None, None);
        }
        self.relay.borrow_mut().hang_up();
        self.relay.borrow_mut().crash_in = None;
        self.relay.borrow_mut().told_nobody();
        self.machine.borrow_mut().restart();
        let durable = self.disk.reopen(loss, self.now().unix);
        let lost = matches!(loss, Loss::Database | Loss::Both);
        self.oracle.restarted(loss == Loss::PowerCut, lost);
        let (sender, closings) = mpsc::unbounded_channel();
        self.closings = closings;
        self.core = begin(&self.settings, &self.disk, &self.relay, &self.machine, &self.nature, durable, sender);
        self.call(Core::start);
    }

    /// With every mark of counters lost the clock alone keeps them apart, and it must not have gone back.
    fn allowed(&mut self, loss: Loss) -> Loss {
        let all = loss == Loss::Both || (loss == Loss::Database && !self.disk.has_backup());
        if all && self.went_back {
            return Loss::Nothing;
        }
        self.marks_lost |= all;
        loss
    }

    // The wire.

    /// The daemon reads so many frames of the relay; phones read and send all that they can.
    pub(super) fn flow(&mut self, frames: u8) {
        let mut left = frames;
        loop {
            let moved = self.phones_move();
            if left == 0 {
                return;
            }
            let event = self.relay.borrow_mut().next_event();
            match event {
                Some(event) => {
                    left -= u8::from(frames != ALL);
                    self.call(|core| core.relay_event(event));
                }
                None if !moved => return,
                None => {}
            }
        }
    }

    fn phones_move(&mut self) -> bool {
        let mut moved = false;
        for at in 0..self.phones.len() {
            let phone = &mut self.phones[at];
            let mut relay = self.relay.borrow_mut();
            if !phone.awake || !relay.come(phone.key) {
                continue;
            }
            while let Some(letter) = phone.outbox.pop_front() {
                relay.hear(phone.key, letter.sealed, letter.live);
                moved = true;
            }
            while let Some(sealed) = relay.next_for(&phone.key) {
                moved = true;
                if let News::Ack { payload, outcome } = phone.read(&sealed) {
                    self.oracle.told(&payload, &outcome);
                }
            }
        }
        moved
    }

    // Time.

    /// The daemon has nothing to do at once: what is due is done, and no deadline stays behind.
    fn rest(&mut self) {
        for _ in 0..50 {
            let now = self.now().mono;
            if self.core.deadline().is_none_or(|at| at > now) {
                self.bounds();
                return self.pushes_are_shown();
            }
            self.call(Core::timeout);
        }
        demand(false, || "a deadline stays in the past, whatever is done".into());
    }

    /// Time passes on both clocks. The daemon is woken when it asked to be.
    pub(super) fn wait(&mut self, ms: u64) {
        let end = self.now().mono + ms;
        loop {
            let now = self.now().mono;
            let due = self.core.deadline();
            let next = due.map_or(end, |at| at.clamp(now, end));
            self.nature.borrow_mut().0.mono = next;
            self.nature.borrow_mut().0.unix += next - now;
            self.disk.time(next);
            self.oracle.time(self.now());
            if due.is_some_and(|at| at <= next) {
                self.call(Core::timeout);
                self.flow(ALL);
                self.rest();
            } else if next == end {
                return self.flow(ALL);
            }
        }
    }

    pub(super) fn jump(&mut self, ms: i64) {
        if ms < 0 && self.marks_lost {
            return;
        }
        self.went_back |= ms < 0;
        let earliest = super::super::BUILD_DATE - 40 * super::super::HOUR;
        let unix = self.now().unix.saturating_add_signed(ms).max(earliest);
        self.nature.borrow_mut().0.unix = unix;
        self.oracle.time(self.now());
    }

    /// What the relay has said of pushes last is what the owner sees, and nothing else.
    fn pushes_are_shown(&self) {
        let relay = self.relay.borrow();
        for device in self.core.hub.device_list().into_iter().filter(|_| relay.is_calm()) {
            let said = match relay.told_of(&device.pubkey) {
                _ if device.state == DeviceState::Pending => None,
                Push::None => Some(PushState::None),
                Push::Ready => Some(PushState::Ready),
                Push::Gone => Some(PushState::Gone),
                Push::Off => Some(PushState::Off),
                Push::Unspecified => None,
            };
            demand(device.push == said, || format!("the relay has said {said:?} of pushes, {device:?} is shown"));
        }
    }

    /// Memory is bounded, whatever hosts, phones and relay do.
    fn bounds(&self) {
        let sizes = self.core.hub.sizes();
        for (what, size, most) in sizes {
            demand(size <= most, || format!("{size} {what} in memory, at most {most} are allowed"));
        }
    }
}

fn begin(
    settings: &Settings,
    disk: &Disk,
    relay: &Rc<RefCell<Relay>>,
    machine: &Rc<RefCell<Machine>>,
    nature: &Rc<RefCell<(Now, Dice)>>,
    durable: Durable,
    closings: mpsc::UnboundedSender<SessionId>,
) -> Core {
    let (settings, disk) = (settings.clone(), disk.clone());
    let beginning = Beginning { names: names(), settings, disk, durable, notices: Vec::new() };
    let connection = Connection::new(Seed::new([9; 32]), Wire(Rc::clone(relay)));
    Core::new(beginning, connection, Tubes(Rc::clone(machine)), Nature(Rc::clone(nature)), closings)
}
