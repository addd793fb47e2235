//! A paired phone on its relay connection.
//!
//! A [`Phone`] has no task of its own: it lives while one of its async methods is awaited, so whoever waits for something
//! else (a person, say) goes on awaiting [`Phone::next_event`] meanwhile. All of them are cancel safe.
//!
//! The relay allows one connection per key, and processes may share a pairing. A [`Manner::Command`] holds the pairing's
//! turn while it exists; a [`Manner::Watch`] steps aside for commands and comes back after them. Whoever seals claims its
//! counters on disk first, and begins anew above them if another process has claimed some since: no counter is ever used
//! twice under one key (protocol, Message key, nonce, AAD).

mod drive;
mod error;
mod pair;
mod pipes;
mod settle;
#[cfg(test)]
mod tests;
mod until;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use skald_common::crypto::{Identity, Seed, fingerprint};
use skald_common::framing::Compression;
use skald_common::payload::{Notification, Payload, PayloadError, ToAgent};
use skald_common::peer::{
    Config, Delivery, Disconnect, Drop, Millis, Partner, Peer, Role, Routes, SendFailure, SendId, first_send_counter,
};
use skald_common::wire::{Features, Platform};
use skald_link::debug::crash_point;
use skald_link::{Clock, Link};
use zeroize::Zeroizing;

pub use error::PhoneError;
pub use pair::{Pairing, new_web_push_keys};
pub use pipes::{NotOpened, OpenedPipe, PipeFailure, PipeId};
pub use settle::Settled;
pub use until::Until;

use crate::model::account::{Account, Sent, Standing, Verdict};
use crate::model::answer::Answer;
use crate::model::inbox::{Change, Inbox};
use crate::store::{Held, Store, Turn};

/// How a [`Phone`] shares its pairing with other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Takes the connection, and keeps it until it is dropped.
    Command,
    /// Has the connection while no command needs it: `watch`, `proxy`. One per pairing.
    Watch,
}

/// Names an answer that was sent: the id of its payload.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AnswerId(String);

impl AnswerId {
    /// The payload's id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What happened.
#[derive(Debug)]
pub enum PhoneEvent {
    /// The relay has let this phone in.
    Connected {
        /// The address that worked.
        url: String,
    },
    /// There is no connection, or not any more.
    Disconnected {
        /// Why.
        why: Disconnect,
        /// Until the next attempt.
        retry_in: Duration,
    },
    /// Another command needs the connection.
    SteppedAside,
    /// A snapshot came, or what is pending changed otherwise.
    Inbox {
        /// What changed since the last event; empty for a snapshot that says nothing new.
        changes: Vec<Change>,
    },
    /// A notification.
    Notification(Notification),
    /// What became of an answer.
    Verdict {
        /// The answer.
        sent: Sent,
        /// What became of it.
        verdict: Verdict,
    },
    /// The relay has the answer.
    Accepted {
        /// Which one.
        id: AnswerId,
        /// Whether the agent has no connection; `None` where the relay does not say.
        queued: Option<bool>,
    },
    /// The answer did not leave; its item is pending again.
    NotSent {
        /// Which one.
        id: AnswerId,
        /// Why.
        why: SendFailure,
    },
    /// The agent came (`true`) or went.
    AgentOnline(bool),
    /// Both sides have agreed on a pipe.
    PipeOpened {
        /// Which one.
        id: PipeId,
        /// To be connected within 30 s.
        pipe: Box<OpenedPipe>,
    },
    /// A pipe was not opened.
    PipeFailed {
        /// Which one.
        id: PipeId,
        /// Why.
        why: NotOpened,
    },
    /// A message was dropped unread.
    Dropped(Drop),
    /// A message was read and makes no sense.
    Invalid(PayloadError),
}

/// What an inbox request came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refreshed {
    /// The agent has answered: the inbox is as it is now.
    Fresh,
    /// The agent is not connected: the inbox is as it was.
    AgentOffline,
    /// The agent did not answer in time.
    NoAnswer,
}

/// A paired phone; see the [module](self).
#[derive(Debug)]
pub struct Phone {
    store: Store,
    /// As saved last, by this process or another.
    account: Account,
    seed: Seed,
    /// What the relay is handed to wake this phone.
    waking: Waking,
    manner: Manner,
    held: Option<Held>,
    peer: Peer,
    link: Link,
    clock: Clock,
    /// The mark on disk that the peer's counters begin above, or that it has claimed itself.
    claimed: u64,
    line: Line,
    /// The address that this or the last connection goes to.
    url: String,
    agent_online: Option<bool>,
    asked: Asked,
    opening: pipes::Opening,
    /// When to try again, earlier than the engine would.
    impatient: Option<Millis>,
    /// How often the relay has refused this phone while it waits for its authorization.
    refusals: u32,
    outgoing: Vec<Outgoing>,
    answers: BTreeMap<AnswerId, settle::Progress>,
    /// Why the last attempt failed, until someone has asked.
    failed: Option<Disconnect>,
    /// Not yet given out by `next_event`.
    events: VecDeque<PhoneEvent>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Idle,
    Up,
    /// Another command has the connection.
    Aside,
}

/// The inbox request of this connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    No,
    Waiting {
        /// The request; `None` once the relay has confirmed it without more.
        request: SendId,
        /// When a snapshot came that may be an older one: relays without features do not tell live ones apart.
        maybe: Option<Millis>,
    },
    Done(Refreshed),
}

/// A stored message that the relay has not accepted yet. Kept unsealed, to be sealed anew if its counter is no longer good.
#[derive(Debug)]
struct Outgoing {
    id: Option<SendId>,
    json: Zeroizing<Vec<u8>>,
    purpose: Purpose,
    /// The relay was busy: not before this.
    not_before: Millis,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Purpose {
    Hello,
    Answer(AnswerId),
    Logout,
}

impl Phone {
    /// Opens a pairing; nothing is dialled yet. Needs a tokio runtime.
    pub async fn open(store: Store, manner: Manner, until: Until) -> Result<Self, PhoneError> {
        let turn = match manner {
            Manner::Command => Turn::Connection,
            Manner::Watch => Turn::Watch,
        };
        let held = match (drive::take_turn(&store, turn, manner, until).await?, manner) {
            (Some(held), _) => held,
            (None, Manner::Command) => return Err(PhoneError::Busy),
            (None, Manner::Watch) => return Err(PhoneError::AlreadyWatching),
        };
        let account = saved(&store)?;
        let seed = store.seed()?;
        Self::with(store, account, seed, manner, held)
    }

    fn with(store: Store, account: Account, seed: Seed, manner: Manner, held: Held) -> Result<Self, PhoneError> {
        let claimed = account.counters.reserved;
        let waking = Waking::of(&store)?;
        let peer = new_peer(&account, &seed, &waking)?;
        Ok(Self {
            store,
            account,
            seed,
            waking,
            manner,
            held: Some(held),
            peer,
            link: Link::new(),
            clock: Clock::start(),
            claimed,
            line: Line::Idle,
            url: String::new(),
            agent_online: None,
            asked: Asked::No,
            opening: pipes::Opening::default(),
            impatient: None,
            refusals: 0,
            outgoing: Vec::new(),
            answers: BTreeMap::new(),
            failed: None,
            events: VecDeque::new(),
        })
    }

    /// What this phone remembers.
    pub const fn account(&self) -> &Account {
        &self.account
    }

    /// What is pending.
    pub const fn inbox(&self) -> &Inbox {
        &self.account.inbox
    }

    /// Where it is saved.
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// This phone's public keys as people compare them.
    pub fn fingerprint(&self) -> String {
        let identity = Identity::new(&self.seed);
        fingerprint(&identity.ed25519_pub(), &identity.x25519_pub())
    }

    /// This phone's name on the wire.
    pub fn public_key(&self) -> skald_common::ids::Ed25519Public {
        Identity::new(&self.seed).ed25519_pub()
    }

    /// Whether there is a connection.
    pub fn is_connected(&self) -> bool {
        self.peer.is_connected()
    }

    /// What the connected relay can do beyond the deployed protocol.
    pub const fn features(&self) -> Features {
        self.peer.features()
    }

    /// Whether the agent is connected, if that is known.
    pub const fn agent_online(&self) -> Option<bool> {
        self.agent_online
    }

    /// Begins to connect, in [`next_event`](Self::next_event).
    pub fn start(&mut self) {
        if self.line == Line::Idle {
            self.line = Line::Up;
            self.peer.start(self.clock.now());
        }
    }

    /// Connects. Gives up when the time is over, or the pairing has ended; `told` hears of each attempt that failed.
    pub async fn connect_telling(&mut self, until: Until, mut told: impl FnMut(&Disconnect)) -> Result<(), PhoneError> {
        self.start();
        let mut last = None;
        while !self.is_connected() {
            let advanced = until.within(self.advance()).await;
            if let Some(why) = self.failed.take() {
                told(&why);
                if let Some(error) = error::ends_the_pairing(&why, self.account.standing) {
                    return Err(error);
                }
                last = Some(why);
            }
            match advanced {
                Some(advanced) => advanced?,
                None => return Err(error::no_connection(last, self.line == Line::Aside)),
            }
        }
        Ok(())
    }

    /// Connects. Gives up when the time is over, or the pairing has ended.
    pub async fn connect(&mut self, until: Until) -> Result<(), PhoneError> {
        self.connect_telling(until, |_| ()).await
    }

    /// The next event. Waits for ever before [`start`](Self::start).
    pub async fn next_event(&mut self) -> Result<PhoneEvent, PhoneError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            self.advance().await?;
        }
    }

    /// Waits for the answer to the inbox request that each connection begins with, or asks again.
    pub async fn refresh(&mut self, until: Until) -> Result<Refreshed, PhoneError> {
        if let Asked::No | Asked::Done(_) = self.asked {
            self.ask();
        }
        loop {
            let until = match self.asked {
                Asked::No => return Ok(Refreshed::NoAnswer),
                Asked::Done(refreshed) => return Ok(refreshed),
                Asked::Waiting { maybe: Some(at), .. } => until.or_after(self.clock, at + drive::QUIET_MS),
                Asked::Waiting { maybe: None, .. } => until,
            };
            match until.within(self.advance()).await {
                Some(advanced) => advanced?,
                None if matches!(self.asked, Asked::Waiting { maybe: Some(_), .. }) => {
                    self.asked = Asked::Done(Refreshed::Fresh);
                }
                None => return Ok(Refreshed::NoAnswer),
            }
        }
    }

    /// Waits until the relay has this phone's `hello`. False if it has not by then; the next connection tries again.
    pub async fn greet(&mut self, until: Until) -> Result<bool, PhoneError> {
        while !self.account.hello_sent {
            match until.within(self.advance()).await {
                Some(advanced) => advanced?,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Answers a pending item: taken away here at once, and on its way as soon as there is a connection.
    pub fn answer(&mut self, request_id: &str, answer: Answer) -> Result<AnswerId, PhoneError> {
        let id = AnswerId(drive::uuid());
        let now = drive::unix_ms();
        crash_point("before-committing-answer");
        let payload = self.change(|account| account.answer(request_id, answer, id.0.clone(), now))??;
        crash_point("after-committing-answer");
        self.answers.insert(id.clone(), settle::Progress::new(request_id));
        if let Err(error) = self.send(&payload, Purpose::Answer(id.clone())) {
            self.answers.remove(&id);
            self.change(|account| account.answer_failed(&id.0))?;
            return Err(error);
        }
        Ok(id)
    }

    /// Leaves the agent's devices and forgets the pairing. If the relay takes no farewell in time, nothing is forgotten.
    pub async fn logout(mut self, until: Until) -> Result<(), PhoneError> {
        let payload = Payload { id: drive::uuid(), ts: drive::unix_ms(), content: ToAgent::Logout };
        self.send(&payload, Purpose::Logout)?;
        while self.outgoing.iter().any(|message| message.purpose == Purpose::Logout) && !self.is_revoked() {
            match until.within(self.advance()).await {
                Some(advanced) => advanced?,
                None => return Err(error::no_connection(None, self.line == Line::Aside)),
            }
        }
        // The agent answers by revoking this phone; a relay without receipts shows only so that it has passed it on.
        if self.agent_online != Some(false) {
            let parting = Until::secs(3);
            while self.is_connected() && parting.within(self.advance()).await.is_some_and(|advanced| advanced.is_ok()) {
            }
        }
        let store = self.store.clone();
        self.close().await;
        Ok(store.forget()?)
    }

    fn is_revoked(&self) -> bool {
        self.account.standing == Standing::Revoked
    }

    /// Everything told so far has been shown to the owner.
    pub fn mark_shown(&mut self) -> Result<(), PhoneError> {
        if self.account.unshown().next().is_some() {
            self.change(Account::mark_shown)?;
        }
        Ok(())
    }

    /// Disconnects, when what was sent has left.
    pub async fn close(mut self) {
        // Receipts are bundled for a moment; this connection has no later one.
        self.peer.on_timeout(self.clock.now() + drive::RECEIPTS_MS);
        self.peer.stop();
        while let Some(output) = self.peer.poll_output() {
            self.link.carry_out(output);
        }
        self.link.finish().await;
        drop(self.held.take());
    }

    /// Sends a stored message, and again until the relay has it.
    fn send(&mut self, payload: &Payload<ToAgent>, purpose: Purpose) -> Result<(), PhoneError> {
        let json = payload.to_json();
        let agent = self.account.agent.ed25519;
        let id = self.peer.send(self.clock.now(), &agent, &json, Delivery::STORED)?;
        self.outgoing.push(Outgoing { id: Some(id), json, purpose, not_before: 0 });
        Ok(())
    }

    /// Asks for the inbox, live.
    fn ask(&mut self) {
        let payload = Payload { id: drive::uuid(), ts: drive::unix_ms(), content: ToAgent::InboxRequest };
        let agent = self.account.agent.ed25519;
        self.asked = match self.peer.send(self.clock.now(), &agent, &payload.to_json(), Delivery::Live) {
            Ok(request) => Asked::Waiting { request, maybe: None },
            Err(_) => Asked::No,
        };
    }

    /// Changes the saved account.
    fn change<T>(&mut self, change: impl FnOnce(&mut Account) -> T) -> Result<T, PhoneError> {
        let (account, result) = self.store.update(change)?;
        self.adopt(account)?;
        Ok(result)
    }

    /// Takes over what is saved, and tells what another process has changed.
    fn adopt(&mut self, account: Account) -> Result<(), PhoneError> {
        if account.agent != self.account.agent {
            return Err(PhoneError::Changed);
        }
        self.account = account;
        Ok(())
    }
}

/// What the relay is handed to wake this phone.
#[derive(PartialEq, Eq)]
struct Waking {
    platform: Platform,
    token: Zeroizing<String>,
}

impl Waking {
    /// As it was registered. Without a registration there is no token: what a terminal is told, it is told while it runs.
    fn of(store: &Store) -> Result<Self, PhoneError> {
        Ok(match store.registration()? {
            Some(registration) => Self { platform: registration.platform(), token: registration.device_token() },
            None => Self { platform: Platform::Android, token: Zeroizing::default() },
        })
    }
}

impl std::fmt::Debug for Waking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waking").field("platform", &self.platform).finish_non_exhaustive()
    }
}

fn saved(store: &Store) -> Result<Account, PhoneError> {
    let account = store.load()?;
    Ok(account.ok_or_else(|| crate::store::StoreError::NotPaired { profile: store.profile().to_owned() })?)
}

/// A peer whose counters begin above everything that may have been used.
fn new_peer(account: &Account, seed: &Seed, waking: &Waking) -> Result<Peer, PhoneError> {
    let namespace = account.agent.namespace();
    let mut peer = Peer::new(Config {
        identity: Identity::new(seed),
        role: Role::Client { namespace, device_token: waking.token.to_string(), platform: waking.platform },
        routes: Routes::new(&account.relay_url, &namespace)?,
        offer: Features::ALL,
        jitter_seed: rand::random(),
    });
    peer.set_partner(Partner {
        ed25519: account.agent.ed25519,
        x25519: account.agent.x25519,
        send_from: first_send_counter(account.counters.reserved, 0, drive::unix_ms()),
        received: account.counters.received,
        compression: Compression::WhenSmaller,
    })?;
    Ok(peer)
}
