//! The loop between engine, socket and disk.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use skald_common::framing::Body;
use skald_common::payload::uuid_v4;
use skald_common::peer::{Delivery, Disconnect, Event, Millis, Output, Receipt, SendFailure, SendId};
use skald_common::wire::{ErrorCode, Features};
use skald_link::debug::crash_point;
use skald_link::feed;

use super::error::is_revocation;
use super::settle::AtRelay;
use super::{Asked, Line, Manner, Phone, PhoneError, PhoneEvent, Purpose, Refreshed, Until, Waking, new_peer, saved};
use crate::model::account::{Account, Effect, Standing};
use crate::store::{Held, Store, Turn};

/// A relay without features sends nothing live: a snapshot that nothing follows for so long is the newest.
pub(super) const QUIET_MS: Millis = 700;
/// Longest delay of a receipt.
pub(super) const RECEIPTS_MS: Millis = 100;
/// A lock gives no sign when it becomes free.
const TURN_POLL: Duration = Duration::from_millis(50);
/// The relay was busy: again after this.
const BUSY_MS: Millis = 5_000;
/// A phone that waits for its authorization may have it in a moment, or has a person before it: it tries again this soon
/// at first, twice as late each time up to a second, and after some attempts with longer pauses. A relay takes 30
/// connections a minute from an address.
const EAGER_MS: Millis = 100;
const EAGER_MAX_MS: Millis = 1_000;
const EAGER_ATTEMPTS: u32 = 11;
const PATIENT_MS: Millis = 4_000;

impl Phone {
    /// Carries out what is to be done, or else waits for one input.
    pub(super) async fn advance(&mut self) -> Result<(), PhoneError> {
        if self.drain()? {
            return Ok(());
        }
        if self.line == Line::Aside {
            tokio::time::sleep(TURN_POLL).await;
            self.pipes_timeout()?;
            if self.store.try_turn(Turn::Connection)?.is_some() {
                self.begin_anew()?;
            }
            return Ok(());
        }
        let deadlines = [self.peer.deadline(), self.next_retry(), self.impatient, self.pipes_deadline()];
        let deadline = deadlines.into_iter().flatten().min();
        tokio::select! {
            event = self.link.next() => feed(&mut self.peer, self.clock.now(), event),
            () = self.clock.sleep_until(deadline) => {
                let now = self.clock.now();
                if self.impatient.take_if(|at| *at <= now).is_some() {
                    self.peer.start(now);
                }
                self.peer.on_timeout(now);
                self.resend(now)?;
                self.pipes_timeout()?;
            }
        }
        self.drain()?;
        Ok(())
    }

    /// Whether there was anything to do.
    fn drain(&mut self) -> Result<bool, PhoneError> {
        let mut any = false;
        while let Some(output) = self.peer.poll_output() {
            any = true;
            match output {
                Output::Dial { .. } if !self.may_dial()? => {}
                Output::Reserve { upto, .. } => {
                    if !self.claim(upto)? {
                        self.begin_anew()?;
                    }
                }
                other => {
                    if let Some(Output::Event(event)) = self.link.carry_out(other) {
                        self.on_event(event)?;
                    }
                }
            }
        }
        Ok(any)
    }

    /// A watch dials only while no command has the turn, with counters that no command has used, and with the push token
    /// that was registered last.
    fn may_dial(&mut self) -> Result<bool, PhoneError> {
        if self.manner == Manner::Command {
            return Ok(true);
        }
        if self.store.try_turn(Turn::Connection)?.is_none() {
            self.peer.stop();
            self.line = Line::Aside;
            self.lost_connection();
            self.events.push_back(PhoneEvent::SteppedAside);
            return Ok(false);
        }
        let account = saved(&self.store)?;
        let used = account.counters != self.account.counters || account.counters.reserved != self.claimed;
        self.take_over(account)?;
        let outdated = used || Waking::of(&self.store)? != self.waking;
        if outdated {
            self.begin_anew()?;
        }
        Ok(!outdated)
    }

    /// Claims counters on disk. False if another process has claimed some since: those of this peer are no longer good.
    fn claim(&mut self, upto: u64) -> Result<bool, PhoneError> {
        let known = self.claimed;
        crash_point("before-committing-counters");
        let claimed = self.store.update(|account| {
            let mine = account.counters.reserved == known;
            if mine {
                account.counters.reserved = account.counters.reserved.max(upto);
            }
            mine
        });
        crash_point("after-committing-counters");
        match claimed {
            Ok((_, false)) => Ok(false),
            Ok((account, true)) => {
                self.take_over(account)?;
                self.claimed = self.account.counters.reserved;
                Ok(true)
            }
            Err(error) => {
                // What was sealed behind this must not leave.
                self.peer.stop();
                while self.peer.poll_output().is_some() {}
                self.link.close();
                self.line = Line::Idle;
                Err(error.into())
            }
        }
    }

    /// Drops the engine with everything it has sealed, and goes on with a new one above all counters used so far.
    fn begin_anew(&mut self) -> Result<(), PhoneError> {
        self.take_over(saved(&self.store)?)?;
        self.link.close();
        self.lost_connection();
        self.waking = Waking::of(&self.store)?;
        self.peer = new_peer(&self.account, &self.seed, &self.waking)?;
        self.claimed = self.account.counters.reserved;
        self.line = Line::Up;
        let now = self.clock.now();
        self.outgoing.iter_mut().for_each(|message| message.id = None);
        self.resend(now)?;
        self.peer.start(now);
        Ok(())
    }

    /// Takes over what is saved, and tells what another process has changed in the inbox.
    fn take_over(&mut self, account: Account) -> Result<(), PhoneError> {
        let changes = account.inbox.changes_since(&self.account.inbox);
        self.adopt(account)?;
        if !changes.is_empty() {
            self.events.push_back(PhoneEvent::Inbox { changes });
        }
        Ok(())
    }

    fn lost_connection(&mut self) {
        self.agent_online = None;
        self.asked = Asked::No;
        self.pipes_disconnected();
    }

    fn next_retry(&self) -> Option<Millis> {
        self.outgoing.iter().filter(|message| message.id.is_none()).map(|message| message.not_before).min()
    }

    /// Sends what has no place in the engine (yet, or any more).
    fn resend(&mut self, now: Millis) -> Result<(), PhoneError> {
        let agent = self.account.agent.ed25519;
        for message in &mut self.outgoing {
            if message.id.is_none() && message.not_before <= now {
                message.id = Some(self.peer.send(now, &agent, &message.json, Delivery::STORED)?);
            }
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event) -> Result<(), PhoneError> {
        match event {
            Event::Connected { url, .. } => self.on_connected(url)?,
            Event::Disconnected { why, retry_at, .. } => self.on_disconnected(why, retry_at)?,
            Event::Message { receipt, body, live } => self.on_message(receipt, &body, live)?,
            Event::Accepted { id, queued } => self.on_accepted(id, queued)?,
            Event::SendFailed { id, why, .. } => self.on_send_failed(id, why)?,
            Event::PresenceList(online) => self.on_presence(online.contains(&self.account.agent.ed25519)),
            Event::Presence(key, online) if key == self.account.agent.ed25519 => {
                self.on_presence(online);
                if online && self.is_connected() {
                    // It may have missed what happened while it was away, and so may this phone.
                    self.ask();
                }
            }
            Event::RelayError { offline: Some(key), .. } if key == self.account.agent.ed25519 => {
                self.on_presence(false);
                self.pipes_offline()?;
            }
            Event::Dropped { why, .. } => self.events.push_back(PhoneEvent::Dropped(why)),
            // Of no meaning for a phone.
            Event::Presence(..)
            | Event::RelayError { .. }
            | Event::Authorized { .. }
            | Event::PairingReady { .. }
            | Event::PairingStopped
            | Event::ClientPaired { .. }
            | Event::PushStatus(_)
            | Event::Paired => {}
        }
        Ok(())
    }

    /// Each connection begins with `hello` until the relay has it, the list of who is there, and an inbox request
    /// (protocol, Known peers).
    fn on_connected(&mut self, url: String) -> Result<(), PhoneError> {
        if self.account.standing != Standing::Authorized {
            self.change(|account| account.standing = Standing::Authorized)?;
        }
        let greeting = self.outgoing.iter().any(|message| message.purpose == Purpose::Hello);
        if !self.account.hello_sent && !greeting {
            let hello = self.account.hello(Some(std::env::consts::OS.to_owned()), uuid(), unix_ms());
            self.send(&hello, Purpose::Hello)?;
        }
        // Fails only without a connection, and then there is another event soon.
        let _ = self.peer.request_presence();
        self.ask();
        self.url.clone_from(&url);
        self.events.push_back(PhoneEvent::Connected { url });
        self.move_pipes()
    }

    fn on_disconnected(&mut self, why: Disconnect, retry_at: Option<Millis>) -> Result<(), PhoneError> {
        self.lost_connection();
        self.impatient = None;
        if is_revocation(&why) && self.account.standing == Standing::Authorized {
            self.change(|account| account.standing = Standing::Revoked)?;
        }
        let now = self.clock.now();
        let mut retry_at = retry_at.unwrap_or(now);
        if self.account.standing == Standing::Pending && matches!(why, Disconnect::Refused(..)) {
            retry_at = retry_at.min(now + pause_after(self.refusals));
            self.refusals += 1;
            self.impatient = Some(retry_at);
        }
        let retry_in = Duration::from_millis(retry_at.saturating_sub(now));
        self.failed = Some(why.clone());
        self.events.push_back(PhoneEvent::Disconnected { why, retry_in });
        Ok(())
    }

    fn on_message(&mut self, receipt: Receipt, body: &Body, live: bool) -> Result<(), PhoneError> {
        let now = self.clock.now();
        let json = match body {
            Body::Json(json) => json,
            Body::PipeSignal(signal) => {
                // Its counter need not be on disk: a signal is about a negotiation of this process, and means nothing to
                // the next one. Within this one the engine drops repeats.
                self.peer.accept(now, receipt);
                return self.on_pipe_signal(receipt.from, signal);
            }
        };
        let before = self.account.inbox.clone();
        crash_point("before-committing-message");
        let effect = self.change(|account| account.receive(receipt.counter, live, json, unix_ms()));
        crash_point("after-committing-message");
        match &effect {
            Ok(_) => self.peer.accept(now, receipt),
            Err(_) => self.peer.reject(now, receipt),
        }
        let effect = effect?;
        let snapshot = matches!(effect, Effect::Snapshot { .. });
        match effect {
            Effect::Snapshot { live } => self.on_snapshot(now, live),
            Effect::Notification(notification) => self.events.push_back(PhoneEvent::Notification(notification)),
            Effect::Verdict { sent, verdict } => {
                if let Some(progress) = self.answers.iter_mut().find(|(id, _)| id.0 == sent.id) {
                    progress.1.verdict = Some(verdict.clone());
                }
                self.events.push_back(PhoneEvent::Verdict { sent, verdict });
            }
            Effect::Invalid(error) => self.events.push_back(PhoneEvent::Invalid(error)),
            Effect::Repeat | Effect::Nothing => {}
        }
        let changes = self.account.inbox.changes_since(&before);
        if snapshot || !changes.is_empty() {
            self.events.push_back(PhoneEvent::Inbox { changes });
        }
        Ok(())
    }

    fn on_snapshot(&mut self, now: Millis, live: bool) {
        if let Asked::Waiting { request, .. } = self.asked {
            let tells_live = self.features().contains(Features::RECEIPTS);
            match (live, tells_live) {
                (true, _) => self.asked = Asked::Done(Refreshed::Fresh),
                (false, false) => self.asked = Asked::Waiting { request, maybe: Some(now) },
                (false, true) => {}
            }
        }
        for progress in self.answers.values_mut() {
            let gone = self.account.inbox.get(&progress.request_id).is_none();
            progress.gone = if gone { progress.gone.or(Some(now)) } else { None };
        }
    }

    fn on_presence(&mut self, online: bool) {
        if !online && let Asked::Waiting { .. } = self.asked {
            self.asked = Asked::Done(Refreshed::AgentOffline);
        }
        if self.agent_online.replace(online) != Some(online) {
            self.events.push_back(PhoneEvent::AgentOnline(online));
        }
    }

    fn on_accepted(&mut self, id: SendId, queued: Option<bool>) -> Result<(), PhoneError> {
        let Some(at) = self.outgoing.iter().position(|message| message.id == Some(id)) else { return Ok(()) };
        match self.outgoing.remove(at).purpose {
            Purpose::Hello => self.change(|account| account.hello_sent = true)?,
            Purpose::Answer(id) => {
                if let Some(progress) = self.answers.get_mut(&id) {
                    progress.relay = AtRelay::Taken { agent_offline: queued };
                }
                self.events.push_back(PhoneEvent::Accepted { id, queued });
            }
            Purpose::Logout => {}
        }
        Ok(())
    }

    fn on_send_failed(&mut self, id: SendId, why: SendFailure) -> Result<(), PhoneError> {
        if matches!(self.asked, Asked::Waiting { request, .. } if request == id) {
            if why == SendFailure::Offline && self.is_connected() {
                self.on_presence(false);
            }
            self.asked = Asked::Done(match why {
                SendFailure::Offline => Refreshed::AgentOffline,
                SendFailure::Refused(_) => Refreshed::NoAnswer,
            });
            return Ok(());
        }
        let Some(at) = self.outgoing.iter().position(|message| message.id == Some(id)) else {
            return self.pipe_not_sent(id, &why);
        };
        if why == SendFailure::Refused(Some(ErrorCode::RateLimited)) {
            let message = &mut self.outgoing[at];
            message.id = None;
            message.not_before = self.clock.now() + BUSY_MS;
            return Ok(());
        }
        match self.outgoing.remove(at).purpose {
            Purpose::Answer(id) => {
                self.change(|account| account.answer_failed(id.as_str()))?;
                if let Some(progress) = self.answers.get_mut(&id) {
                    progress.failed = Some(why.clone());
                }
                self.events.push_back(PhoneEvent::NotSent { id, why });
            }
            // The next connection greets again; a farewell that failed is told by what follows from it.
            Purpose::Hello | Purpose::Logout => {}
        }
        Ok(())
    }
}

/// How long a phone that waits for its authorization pauses, having been refused so many times before.
fn pause_after(refusals: u32) -> Millis {
    if refusals < EAGER_ATTEMPTS { (EAGER_MS << refusals).min(EAGER_MAX_MS) } else { PATIENT_MS }
}

/// Waits for a turn. A second watch does not wait: the first may run for days.
pub(super) async fn take_turn(
    store: &Store,
    turn: Turn,
    manner: Manner,
    until: Until,
) -> Result<Option<Held>, PhoneError> {
    loop {
        let held = store.try_turn(turn)?;
        if held.is_some() || manner == Manner::Watch || until.is_over() {
            return Ok(held);
        }
        tokio::time::sleep(TURN_POLL).await;
    }
}

/// Unix milliseconds.
pub(super) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A fresh id for a payload.
pub(super) fn uuid() -> String {
    uuid_v4(rand::random())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_pause_is_short_and_a_minute_of_them_stays_within_what_a_relay_takes() {
        let pauses: Vec<_> = (0..30).map(pause_after).collect();
        assert_eq!(pauses[..6], [100, 200, 400, 800, 1_000, 1_000]);
        let eager = EAGER_ATTEMPTS as usize;
        let patience: Millis = pauses[..eager].iter().sum();
        assert!((8_000..9_000).contains(&patience), "{pauses:?}");
        assert_eq!(pauses[eager..], [PATIENT_MS; 30][eager..]);
        // One more for the pairing itself, and one for a route that a relay does not have.
        let mut time = 0;
        let dials = 2 + pauses.iter().take_while(|pause| (time += **pause, time).1 < 60_000).count();
        assert!(dials < 30, "{dials} connections in the first minute");
    }
}
