//! All who take part in an answer, each a process that can die: relay, daemon, phones and host, with a [`Tap`] on either leg.
//! Items are raised and answered while they die, whoever is dead is started again at once, and in the end the books must
//! balance.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::daemon::{Daemon, DaemonOptions};
use crate::files::{copy_files, delete_files};
use crate::phone::Phone;
use crate::process::{Finished, Process};
use crate::relay::Relay;
use crate::sockets::Host;
use crate::tap::{Moment, Nonces, Sprung, Tap, Then};
use crate::test_host::{Noted, TestHost};
use crate::{PATIENCE, within};

/// Their protocol clocks, against the wall's, in tests that kill: nobody waits long for a relay that comes back.
const SPEED: u32 = 10;
/// Who finds the agent away looks again after this.
const PAUSE: Duration = Duration::from_millis(100);
/// How often an item is answered in vain before the test gives up.
const TRIES: usize = 12;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An approval.
    Approval,
    /// A question.
    Question,
    /// A secret, which the daemon holds in memory alone.
    Secret,
}

/// What can be struck at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// The daemon.
    Daemon,
    /// The relay.
    Relay,
    /// The host.
    Host,
    /// The phone that is answering.
    Phone,
    /// All connections of the daemon's leg: they fall silent.
    DaemonLink,
    /// All connections of the phones' leg.
    PhoneLink,
}

/// Who dies in a round, and where.
#[derive(Debug, Clone, Copy)]
pub enum Blow {
    /// Nobody.
    None,
    /// The daemon, at a point of its own.
    Daemon(&'static str),
    /// The phone, at a point of its own.
    Phone(&'static str),
    /// The host, at a point of its own.
    Host(&'static str),
    /// The relay, at a point of its own.
    Relay(&'static str),
    /// The relay, when this passes on the daemon's leg.
    RelayAtDaemon(Moment),
    /// The relay, when this passes on the phone's leg.
    RelayAtPhone(Moment),
}

/// Everybody.
#[derive(Debug)]
pub struct Parties {
    /// The relay.
    pub relay: Relay,
    /// The daemon.
    pub daemon: Daemon,
    /// The phones, paired.
    pub phones: Vec<Phone>,
    /// The host.
    pub host: TestHost,
    /// Between daemon and relay.
    pub daemon_leg: Tap,
    /// Between phones and relay.
    pub phone_leg: Tap,
    /// What was sealed.
    pub nonces: Nonces,
    items: BTreeMap<u64, Kind>,
    sprung: Option<Sprung>,
    /// The next one first.
    strikes: Vec<(Instant, Victim)>,
    deaths: usize,
    saved: Option<TempDir>,
}

/// Who has died, or is to.
enum Death {
    Daemon,
    Host,
    RelayStandsStill,
    Strike(Victim),
}

/// An answer that a phone was told to give.
struct Attempt {
    word: String,
    finished: Finished,
}

impl Parties {
    /// On a relay of the forgetful build, which has points to die at.
    pub async fn gather(phones: &[&str]) -> Self {
        Self::at_speed(SPEED, Relay::forgetful(VARS).await, phones).await
    }

    /// On the relay as it is deployed, with protocol clocks that run so much faster than the wall's.
    pub async fn hurry(speed: u32, phones: &[&str]) -> Self {
        Self::at_speed(speed, Relay::own(VARS).await, phones).await
    }

    async fn at_speed(speed: u32, relay: Relay, phones: &[&str]) -> Self {
        let nonces = Nonces::default();
        let daemon_leg = Tap::in_front_of(relay.url(), &nonces).await;
        let phone_leg = Tap::in_front_of(relay.url(), &nonces).await;
        let settings = format!("qr_url = {:?}\n", phone_leg.url());
        let options = DaemonOptions { settings, speed, ..DaemonOptions::default() };
        let daemon = Daemon::start(daemon_leg.url(), &options).await;
        let host = TestHost::start(&daemon.hosts_socket());
        let phones = phones.iter().map(|name| Phone::new(name).at_speed(speed)).collect();
        let parties = Self {
            relay,
            daemon,
            phones,
            host,
            daemon_leg,
            phone_leg,
            nonces,
            items: BTreeMap::new(),
            sprung: None,
            strikes: Vec::new(),
            deaths: 0,
            saved: None,
        };
        for phone in &parties.phones {
            let qr = parties.daemon.control().await.pairing_code().await;
            phone.pair(&qr).await.ok();
        }
        parties
    }

    /// How many deaths there were.
    pub const fn deaths(&self) -> usize {
        self.deaths
    }

    /// One item from the question to the answer, with a blow in between, which must have fallen in the end.
    pub async fn round(&mut self, kind: Kind, blow: Blow) {
        let (before, began) = (self.deaths, Instant::now());
        self.arm(blow).await;
        let id = self.ask(kind);
        let point = if let Blow::Phone(point) = blow { point } else { "" };
        self.decide(id, point).await;
        if !matches!(blow, Blow::None | Blow::Phone(_)) {
            let falls = async {
                while self.deaths == before {
                    let death = self.somebody_dies().await;
                    self.revive(death, None).await;
                }
            };
            within(&format!("the blow {blow:?}"), falls).await;
        }
        self.daemon_leg.relax();
        self.phone_leg.relax();
        eprintln!("item {id}, {kind:?}, {blow:?}: {} ms", began.elapsed().as_millis());
    }

    async fn arm(&mut self, blow: Blow) {
        if matches!(blow, Blow::Relay(_) | Blow::RelayAtDaemon(_) | Blow::RelayAtPhone(_)) {
            self.daemon.control().await.connected().await;
            // So long must a connection have lived that the daemon dials soon again, and not ever later.
            tokio::time::sleep(Duration::from_secs(10) / SPEED).await;
        }
        match blow {
            Blow::None | Blow::Phone(_) => {}
            Blow::Daemon(point) => {
                self.daemon.kill().await;
                self.daemon.start_again_to_die_at(point).await;
            }
            Blow::Host(point) => self.host.start_again_to_die_at(point).await,
            Blow::Relay(point) => {
                self.relay.kill().await;
                self.relay.start_again_to_die_at(point).await;
            }
            Blow::RelayAtDaemon(moment) => self.sprung = Some(self.daemon_leg.lie_in_wait(freezing(moment))),
            Blow::RelayAtPhone(moment) => self.sprung = Some(self.phone_leg.lie_in_wait(freezing(moment))),
        }
    }

    /// Has the host raise an item.
    pub fn ask(&mut self, kind: Kind) -> u64 {
        let id = u64::try_from(self.items.len()).expect("few");
        self.items.insert(id, kind);
        match kind {
            Kind::Approval => self.host.ask("approval", &Host::approval(id, &title(id), &json!({"n": id}))),
            Kind::Question => self.host.ask("clarification", &Host::question(id, &title(id), &[])),
            Kind::Secret => self.host.ask("elicitation", &Host::secret(id, &title(id), "password")),
        }
        id
    }

    /// How long it takes here, undisturbed, from a question until its host has acted on the answer.
    pub async fn usual_time(&mut self) -> Duration {
        let began = Instant::now();
        let id = self.ask(Kind::Question);
        self.decide(id, "").await;
        began.elapsed()
    }

    /// Somebody will be killed, so long from now.
    pub fn strike_after(&mut self, delay: Duration, victim: Victim) {
        let at = Instant::now() + delay;
        let later = self.strikes.partition_point(|(other, _)| *other <= at);
        self.strikes.insert(later, (at, victim));
    }

    /// Waits until all strikes have fallen: some answers are faster than what was to hit them.
    pub async fn struck(&mut self) {
        while !self.strikes.is_empty() {
            let death = self.somebody_dies().await;
            self.revive(death, None).await;
        }
    }

    /// Answers an item until its host has acted on an answer. The first attempt is of a phone that dies at `point`.
    pub async fn decide(&mut self, id: u64, point: &str) {
        let kind = self.items[&id];
        let mut attempts: Vec<Attempt> = Vec::new();
        let give_up = Instant::now() + PATIENCE;
        let took = loop {
            if let Some(took) = self.host.took(id) {
                break took;
            }
            let told = || attempts.iter().map(|attempt| attempt.finished.to_string()).collect::<String>();
            assert!(Instant::now() < give_up, "item {id} was never answered; the phones said: {}", told());
            let at = usize::try_from(id).expect("few") % self.phones.len();
            match self.look(at, id).await {
                Some(Look::Pending(item)) => {
                    assert!(attempts.len() < TRIES, "item {id} is pending again and again: {}", told());
                    let point = if attempts.is_empty() { point } else { "" };
                    attempts.push(self.answer(at, kind, &item, point).await);
                }
                // Counted: the host hears of it, whoever is killed.
                Some(Look::Gone) if !attempts.is_empty() => break self.taken(id).await,
                // Not there yet, or the agent was not.
                _ => self.pause().await,
            }
        };
        for attempt in &attempts {
            let counts = attempt.finished.out.contains("the agent has it");
            // A secret that counts goes with the daemon; then the item is pending again.
            if counts && kind != Kind::Secret {
                assert!(attempt.gave(&took), "the host got {took}, a phone was told: {}", attempt.finished);
            }
        }
        let given = attempts.iter().any(|attempt| attempt.gave(&took));
        assert!(given, "nobody gave {took}");
    }

    /// Waits until the host has acted on an answer.
    async fn taken(&mut self, id: u64) -> Value {
        let waits = async {
            loop {
                if let Some(took) = self.host.took(id) {
                    return took;
                }
                let told = format!("took {id}\n");
                tokio::select! {
                    () = self.host.process().writes(crate::Stream::Out, &told) => {}
                    death = Self::death(&self.daemon, &self.host, &self.relay, &mut self.sprung, self.strikes.first()) => {
                        self.revive(death, None).await;
                    }
                }
            }
        };
        within(&format!("the answer to {id}, which is pending nowhere any more"), waits).await
    }

    /// What a phone shows of an item; `None` if it cannot ask the agent.
    async fn look(&mut self, phone: usize, id: u64) -> Option<Look> {
        let process = self.phones[phone].start(&["inbox", "--json"]);
        let finished = self.attend(&process).await;
        let inbox: Value = serde_json::from_str(&finished.out).ok()?;
        let title = title(id);
        let shows =
            |item: &&Value| ["summary", "question", "message"].iter().any(|field| item[field] == title.as_str());
        let item = inbox["items"].as_array()?.iter().find(shows);
        match (item, inbox["source"].as_str()) {
            (Some(item), _) => Some(Look::Pending(item["request_id"].as_str()?.to_owned())),
            (None, Some("agent")) => Some(Look::Gone),
            (None, _) => None,
        }
    }

    async fn answer(&mut self, phone: usize, kind: Kind, item: &str, point: &str) -> Attempt {
        let mut word = format!("word-{:016x}", u64::from_le_bytes(crate::random()));
        let phone = &self.phones[phone];
        let process = match kind {
            Kind::Approval if phone.name().len().is_multiple_of(2) => {
                "approved".clone_into(&mut word);
                phone.start_to_die_at(point, &["approve", item])
            }
            Kind::Approval => phone.start_to_die_at(point, &["reject", "--reason", &word, item]),
            Kind::Question => phone.start_to_die_at(point, &["answer", item, &word]),
            Kind::Secret => {
                let mut process = phone.start_to_die_at(point, &["reply", item]);
                process.write_if_alive(&word);
                process.close_stdin();
                process
            }
        };
        let finished = self.attend(&process).await;
        if !point.is_empty() {
            assert!(finished.was_killed(), "the phone did not come by {point}: {finished}");
            self.deaths += 1;
        }
        Attempt { word, finished }
    }

    /// Waits for the end of a phone's command, and starts again whoever dies meanwhile.
    async fn attend(&mut self, phone: &Process) -> Finished {
        let mut finished = pin!(phone.finished());
        loop {
            let strike = self.strikes.first();
            tokio::select! {
                finished = &mut finished => return finished,
                death = Self::death(&self.daemon, &self.host, &self.relay, &mut self.sprung, strike) => {
                    self.revive(death, Some(phone)).await;
                }
            }
        }
    }

    async fn pause(&mut self) {
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            death = Self::death(&self.daemon, &self.host, &self.relay, &mut self.sprung, self.strikes.first()) => {
                self.revive(death, None).await;
            }
        }
    }

    async fn somebody_dies(&mut self) -> Death {
        Self::death(&self.daemon, &self.host, &self.relay, &mut self.sprung, self.strikes.first()).await
    }

    async fn death(
        daemon: &Daemon,
        host: &TestHost,
        relay: &Relay,
        sprung: &mut Option<Sprung>,
        strike: Option<&(Instant, Victim)>,
    ) -> Death {
        let moment = async {
            match sprung {
                Some(sprung) => sprung.wait_patiently().await,
                None => std::future::pending().await,
            }
        };
        let struck = async {
            match strike {
                Some((at, victim)) => {
                    tokio::time::sleep_until(*at).await;
                    *victim
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = daemon.process().ends() => Death::Daemon,
            () = host.process().ends() => Death::Host,
            () = relay.stands_still() => Death::RelayStandsStill,
            () = moment => Death::RelayStandsStill,
            victim = struck => Death::Strike(victim),
        }
    }

    async fn revive(&mut self, death: Death, phone: Option<&Process>) {
        self.deaths += 1;
        match death {
            Death::Daemon => {
                self.daemon.died().await;
                self.daemon.start_again().await;
            }
            Death::Host => self.host.start_again().await,
            Death::RelayStandsStill => {
                self.sprung = None;
                self.relay.kill().await;
                self.relay.start_again().await;
            }
            Death::Strike(victim) => {
                self.strikes.remove(0);
                match (victim, phone) {
                    (Victim::Daemon, _) => {
                        self.daemon.kill().await;
                        self.daemon.start_again().await;
                    }
                    (Victim::Relay, _) => {
                        self.relay.kill().await;
                        self.relay.start_again().await;
                    }
                    (Victim::Host, _) => self.host.start_again().await,
                    (Victim::Phone, Some(phone)) => phone.kill(),
                    (Victim::Phone, None) => {}
                    (Victim::DaemonLink, _) => self.daemon_leg.silence(),
                    (Victim::PhoneLink, _) => self.phone_leg.silence(),
                }
            }
        }
    }

    /// Keeps a copy of the daemon's and the first phone's files, for [`restore`](Self::restore).
    pub async fn save(&mut self) {
        self.daemon.kill().await;
        let saved = tempfile::Builder::new().prefix("skald-saved-").tempdir().expect("a temporary folder");
        for (name, folder) in [("daemon", self.daemon.state()), ("phone", self.phones[0].state().join("default"))] {
            copy_files(&folder, &saved.path().join(name), &|_| true);
        }
        self.saved = Some(saved);
        self.daemon.start_again().await;
    }

    /// Has somebody lose a state, or get an older one back: another one for each number.
    pub async fn restore(&mut self, number: usize) {
        let saved = self.saved.as_ref().expect("something was saved").path().to_owned();
        let (state, phone) = (self.daemon.state(), self.phones[0].state().join("default"));
        self.daemon.kill().await;
        let is_database = |name: &str| name.starts_with("agentd.db");
        match number % 5 {
            0 => delete_files(&state, &is_database),
            1 => {
                delete_files(&state, &is_database);
                copy_files(&saved.join("daemon"), &state, &is_database);
            }
            2 => {
                delete_files(&state, &is_database);
                copy_files(&saved.join("daemon"), &state, &|name| is_database(name) || name == "devices.json");
            }
            3 => copy_files(&saved.join("phone"), &phone, &|name| name == "state.json"),
            _ => {}
        }
        self.daemon.start_again().await;
        if number % 5 == 4 {
            let qr = self.daemon.control().await.pairing_code().await;
            self.phones[0].run_with(&["pair", "--again", "--name", self.phones[0].name(), "-"], &qr).await.ok();
        }
    }

    /// The books: each item was acted on once, each call named the one answer, nothing is pending, and no key has seen a
    /// nonce twice.
    pub async fn balance(&mut self) {
        let noted = self.host.noted();
        for (id, kind) in &self.items {
            let of_item = |call: &&Value| call["request_id"] == *id;
            let saw = |noted: &Noted| if let Noted::Saw(call) = noted { Some(call.clone()) } else { None };
            let took: Vec<_> = noted.iter().filter_map(Noted::took).filter(of_item).collect();
            assert_eq!(took.len(), 1, "item {id} was acted on once: {took:?}");
            let seen: Vec<Value> = noted.iter().filter_map(saw).filter(|call| of_item(&call)).collect();
            // A secret that its host never acted on is lost with the daemon, and given anew.
            let same = |call: &Value| call["answer_id"] == took[0]["answer_id"] || *kind == Kind::Secret;
            assert!(seen.iter().all(same), "item {id} had more answers than one: {seen:?}");
        }
        let mut control = self.daemon.control().await;
        let empty = |inbox: &Value| inbox.as_array().is_some_and(Vec::is_empty);
        control.until("an empty inbox", "inbox.list", empty).await;
        let (sealed, reused) = self.nonces.count();
        assert_eq!(reused, 0, "of {sealed} messages");
        assert!(sealed > 3 * self.items.len(), "the taps have seen {sealed} messages");
    }
}

/// What a phone shows.
enum Look {
    /// The item is pending, under this id.
    Pending(String),
    /// The agent says that it is not.
    Gone,
}

impl Attempt {
    /// Whether this is the answer that the host got.
    fn gave(&self, call: &Value) -> bool {
        let words = [&call["reason"], &call["answer"], &call["content"]["password"], &call["decision"]];
        words.contains(&&Value::from(self.word.as_str()))
    }
}

impl Noted {
    fn took(&self) -> Option<&Value> {
        if let Self::Took(call) = self { Some(call) } else { None }
    }
}

/// Nobody is slowed down for asking a lot.
const VARS: &[&str] = &["RELAY_RATE_PER_MINUTE=100000", "RELAY_AGENT_RATE_PER_MINUTE=100000"];

fn title(id: u64) -> String {
    format!("item {id} of the tests")
}

fn freezing(moment: Moment) -> Moment {
    Moment { then: Then::Freeze, ..moment }
}
