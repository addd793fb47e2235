//! What phones are sent, and when (socket API, Snapshots and push policy).
//!
//! Per device two things can be owed: to *ring*, when an item is due that no ringing snapshot to this device had in it,
//! and a *realignment*, when the device is [stale](super::durable::DeviceRow::stale). Both are settled by one stored
//! snapshot of the newest state; while one is on its way nothing more is sent, so bursts become one. What a device was
//! sent counts when the relay has accepted it; a failure leaves the debt as it was, with a pause.

use std::collections::{BTreeMap, VecDeque};

use skald_common::ids::Ed25519Public;
use skald_common::payload::{Ack, Notification, Outcome, Payload, ToDevice};
use skald_common::peer::{Delivery, Millis};
use zeroize::Zeroizing;

use super::api::{ApiError, NotificationSent};
use super::durable::{Shown, Sight, Write};
use super::effects::{Effect, Token};
use super::items::ItemId;
use super::snapshots::{self, Envelope, Form, Snapshot};
use super::{Ctx, Failure, Hub, Now, text};

/// The collapse tag of snapshots: a newer one replaces an older one that was not delivered.
const TAG: &[u8] = b"inbox";
/// Stored snapshots to one device: so many at once, then one in each interval.
const BURST: Millis = 10;
const INTERVAL_MS: Millis = 2_000;
/// Pauses after a refusal: doubled each time.
const PAUSE_MS: Millis = 5_000;
const LONGEST_PAUSE_MS: Millis = 15 * 60_000;
/// Notifications and acks that may wait.
const MAX_WAITING: usize = 256;
/// After so many refusals a notification or ack is given up.
const MAX_ATTEMPTS: u32 = 8;
/// After the disk has refused a write: how long until it is tried to write down that every device is owed a snapshot.
const REALIGN_MS: Millis = 5_000;
/// Bounds of a notification, characters.
const MAX_TITLE: usize = 200;
const MAX_BODY: usize = 4_000;

/// One device's turn.
#[derive(Debug, Default)]
struct Turn {
    /// The stored snapshot on its way.
    flying: Option<Token>,
    /// It became stale again meanwhile.
    again: bool,
    not_before: Millis,
    refusals: u32,
    /// When the budget is whole again.
    whole_at: Millis,
    /// Shown by the last live snapshot, which no receipt has proved.
    unproved: Vec<ItemId>,
}

impl Turn {
    fn may_send_at(&self) -> Millis {
        self.not_before.max(self.whole_at.saturating_sub((BURST - 1) * INTERVAL_MS))
    }

    fn pause(&mut self, now: Millis) {
        self.not_before = now + pause(self.refusals);
        self.refusals += 1;
    }
}

fn pause(refusals: u32) -> Millis {
    (PAUSE_MS << refusals.min(16)).min(LONGEST_PAUSE_MS)
}

/// A payload on its way.
#[derive(Debug)]
struct Flight {
    to: Ed25519Public,
    cargo: Cargo,
}

#[derive(Debug)]
enum Cargo {
    Stored {
        full: Vec<ItemId>,
        /// Not all of it had room for all of its content.
        cut: bool,
        /// What it rings for.
        rings: Vec<ItemId>,
    },
    Live {
        full: Vec<ItemId>,
        revision: u64,
        /// A miss must be made good by a stored one.
        owed: bool,
    },
    Text(Text),
}

/// A notification or an ack.
#[derive(Debug)]
struct Text {
    to: Ed25519Public,
    json: Zeroizing<Vec<u8>>,
    quiet: bool,
    attempts: u32,
    not_before: Millis,
    /// The step in which it was called for.
    step: u64,
}

/// Everything that is owed or on its way.
#[derive(Debug, Default)]
pub(crate) struct Pushes {
    turns: BTreeMap<Ed25519Public, Turn>,
    flights: BTreeMap<Token, Flight>,
    texts: VecDeque<Text>,
    /// When every device is to be owed a realignment.
    realign_at: Option<Millis>,
    last_token: u64,
    /// Counts steps.
    step: u64,
}

impl Pushes {
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [(&'static str, usize, usize); 2] {
        [
            ("notifications", self.texts.len(), MAX_WAITING),
            ("payloads on their way", self.flights.len(), 2 * MAX_WAITING),
        ]
    }

    fn turn(&mut self, device: Ed25519Public) -> &mut Turn {
        self.turns.entry(device).or_default()
    }
}

impl Hub {
    // What is owed.

    /// The device must get a new snapshot.
    pub(super) fn mark_stale(&mut self, key: &Ed25519Public) {
        let Some(device) = self.devices.authorized_mut(key) else { return };
        let fresh = !std::mem::replace(&mut device.row.stale, true);
        if fresh {
            self.write(Write::Stale { device: *key, stale: true });
        }
        let turn = self.pushes.turn(*key);
        turn.again |= turn.flying.is_some();
    }

    pub(super) fn mark_all_stale(&mut self) {
        for key in self.devices.authorized_keys() {
            self.mark_stale(&key);
        }
    }

    /// An item is gone: devices that have it must learn so; the others were never troubled.
    pub(super) fn item_left_view(&mut self, item: &str) {
        for key in self.devices.authorized_keys() {
            if self.devices.get_mut(&key).is_some_and(|device| device.sights.remove(item).is_some()) {
                self.mark_stale(&key);
            }
        }
    }

    /// An answered item is gone: the snapshot that its answer made due takes it from every device, nobody is owed another.
    pub(super) fn forget_sights(&mut self, item: &str) {
        for key in self.devices.authorized_keys() {
            if let Some(device) = self.devices.get_mut(&key) {
                device.sights.remove(item);
            }
        }
    }

    /// Items that the device should ring for.
    fn rings_for(&self, device: &Ed25519Public, now: Now) -> Vec<ItemId> {
        let sights = self.devices.get(device).map(|device| &device.sights);
        let rang = |id: &str| sights.and_then(|sights| sights.get(id)).is_some_and(|sight| sight.rang);
        let due = self.pending().filter(|held| held.notify_at <= now.mono && !rang(&held.row.item.id));
        due.map(|held| held.row.item.id.clone()).collect()
    }

    // Sending.

    /// Sends whatever is owed and may go now.
    pub(super) fn flush(&mut self, ctx: &mut Ctx<'_>) {
        if !self.relay.is_connected() || self.date(ctx.now).is_none() {
            return;
        }
        for key in self.devices.authorized_keys() {
            self.flush_snapshot(ctx, key);
        }
        let (due, later) =
            std::mem::take(&mut self.pushes.texts).into_iter().partition(|text| text.not_before <= ctx.now.mono);
        self.pushes.texts = later;
        for text in Vec::from_iter::<VecDeque<Text>>(due) {
            let (to, json) = (text.to, text.json.clone());
            let delivery = Delivery::Stored { collapse: None, quiet: text.quiet };
            self.send(to, json, delivery, Cargo::Text(text));
        }
    }

    fn flush_snapshot(&mut self, ctx: &mut Ctx<'_>, key: Ed25519Public) {
        let Some(device) = self.devices.get(&key) else { return };
        let stale = device.row.stale;
        let turn = self.pushes.turn(key);
        if turn.flying.is_some() || turn.may_send_at() > ctx.now.mono {
            return;
        }
        let rings = self.rings_for(&key, ctx.now);
        if rings.is_empty() && !stale {
            return;
        }
        let snapshot = self.snapshot(ctx, &key, Form::Stored);
        self.note_sent(key, &snapshot);
        let delivery = Delivery::Stored { collapse: Some(TAG.to_vec()), quiet: rings.is_empty() };
        let cargo = Cargo::Stored { full: snapshot.full, cut: !snapshot.partial.is_empty(), rings };
        let token = self.send(key, Zeroizing::new(snapshot.json), delivery, cargo);
        let turn = self.pushes.turn(key);
        turn.flying = Some(token);
        turn.again = false;
        turn.whole_at = turn.whole_at.max(ctx.now.mono) + INTERVAL_MS;
    }

    /// Sends everything that is pending, now. `owed`: if it does not get through, a stored snapshot takes its place.
    pub(super) fn send_live(&mut self, ctx: &mut Ctx<'_>, key: Ed25519Public, owed: bool) {
        if !self.relay.is_connected() {
            if owed {
                self.mark_stale(&key);
            }
            return;
        }
        let snapshot = self.snapshot(ctx, &key, Form::Live);
        self.note_sent(key, &snapshot);
        let revision = self.revision;
        let cargo = Cargo::Live { full: snapshot.full, revision, owed };
        self.send(key, Zeroizing::new(snapshot.json), Delivery::Live, cargo);
    }

    fn snapshot(&self, ctx: &mut Ctx<'_>, key: &Ed25519Public, form: Form) -> Snapshot {
        let envelope = Envelope { id: ctx.uuid(), ts: self.date(ctx.now).unwrap_or(ctx.now.unix) };
        let items: Vec<_> = self.pending().map(|held| &held.row.item).collect();
        let compression =
            self.devices.get(key).map_or(skald_common::framing::Compression::Off, super::devices::Device::compression);
        snapshots::build(&items, &envelope, form, compression)
    }

    fn send(&mut self, to: Ed25519Public, json: Zeroizing<Vec<u8>>, delivery: Delivery, cargo: Cargo) -> Token {
        self.pushes.last_token += 1;
        let token = Token(self.pushes.last_token);
        self.pushes.flights.insert(token, Flight { to, cargo });
        self.effect(Effect::Send { token, to, json, delivery });
        token
    }

    // Notifications and acks.

    /// `notification.send`.
    pub(super) fn notify_all(
        &mut self,
        ctx: &mut Ctx<'_>,
        notification: &Notification,
    ) -> Result<NotificationSent, ApiError> {
        for (name, text, max) in [("title", &notification.title, MAX_TITLE), ("body", &notification.body, MAX_BODY)] {
            if text.chars().count() > max {
                return Err(ApiError::InvalidParams(format!("{name}: at most {max} characters")));
            }
        }
        if notification.title.trim().is_empty() && notification.body.trim().is_empty() {
            return Err(ApiError::InvalidParams("title and body: at least one must say something".into()));
        }
        let keys = self.devices.authorized_keys();
        for key in &keys {
            self.queue_notification(ctx, *key, notification);
        }
        let queued = if self.relay.is_connected() { 0 } else { keys.len() };
        Ok(NotificationSent { devices: keys.len(), queued })
    }

    pub(super) fn queue_notification(&mut self, ctx: &mut Ctx<'_>, to: Ed25519Public, notification: &Notification) {
        let notification = Notification { title: text::escape(&notification.title), body: notification.body.clone() };
        self.queue_text(ctx, to, ToDevice::Notification(notification), false);
    }

    /// Tells one of our own phones what became of its answer; deployed ones raise an error for kinds they do not know.
    pub(super) fn queue_ack(
        &mut self,
        ctx: &mut Ctx<'_>,
        to: Ed25519Public,
        payload: &str,
        outcome: Outcome,
        answered_by: Option<String>,
    ) {
        if self.devices.get(&to).is_some_and(super::devices::Device::is_ours) {
            let ack = Ack { ref_id: payload.to_owned(), outcome: Some(outcome), answered_by };
            self.queue_text(ctx, to, ToDevice::Ack(ack), true);
        }
    }

    fn queue_text(&mut self, ctx: &mut Ctx<'_>, to: Ed25519Public, content: ToDevice, quiet: bool) {
        let json = Payload { id: ctx.uuid(), ts: self.date(ctx.now).unwrap_or(ctx.now.unix), content }.to_json();
        let step = self.pushes.step;
        self.wait_for_relay(Text { to, json, quiet, attempts: 0, not_before: 0, step });
    }

    /// A step begins: what was called for before has happened.
    pub(super) fn pushes_settled(&mut self) {
        self.pushes.step += 1;
    }

    /// The step under way could not be stored: the answer that came with it does not count, whatever its phone was to be
    /// told. What is announced to people is still told: better once too often.
    pub(super) fn forget_fresh_acks(&mut self) {
        let step = self.pushes.step;
        let fresh = |text: &Text| text.quiet && text.step == step;
        self.pushes.texts.retain(|text| !fresh(text));
        self.pushes.flights.retain(|_, flight| !matches!(&flight.cargo, Cargo::Text(text) if fresh(text)));
    }

    fn wait_for_relay(&mut self, text: Text) {
        if self.pushes.texts.len() == MAX_WAITING {
            tracing::warn!("too many notifications wait for the relay: the oldest is dropped");
            self.pushes.texts.pop_front();
        }
        self.pushes.texts.push_back(text);
    }

    // What became of it.

    /// The relay has it.
    pub(super) fn accepted(&mut self, ctx: &mut Ctx<'_>, token: Token, queued: Option<bool>) {
        let Some(Flight { to, cargo }) = self.pushes.flights.remove(&token) else { return };
        match cargo {
            Cargo::Stored { full, cut, rings } => {
                let turn = self.pushes.turn(to);
                (turn.flying, turn.refusals, turn.not_before) = (None, 0, 0);
                let again = std::mem::take(&mut turn.again);
                self.note_accepted(to, &full, &rings);
                self.set_stale(to, again);
                let here = self.devices.get(&to).is_some_and(|device| match queued {
                    Some(queued) => !queued,
                    None => device.online,
                });
                // It has the short form before its eyes: the details follow.
                if here && cut {
                    self.send_live(ctx, to, false);
                }
            }
            Cargo::Live { full, revision, .. } => {
                self.note_accepted(to, &full, &[]);
                if queued.is_none() {
                    self.pushes.turn(to).unproved = full;
                }
                let flying = self.pushes.turn(to).flying.is_some();
                if !flying && revision == self.revision {
                    self.set_stale(to, false);
                }
            }
            Cargo::Text(_) => {}
        }
    }

    fn set_stale(&mut self, key: Ed25519Public, stale: bool) {
        if let Some(device) = self.devices.get_mut(&key)
            && device.row.stale != stale
        {
            device.row.stale = stale;
            self.write(Write::Stale { device: key, stale });
        }
    }

    /// A snapshot is about to be sent: notes what the device may come to see.
    fn note_sent(&mut self, key: Ed25519Public, snapshot: &Snapshot) {
        let sent = |shown| move |id: &ItemId| (id.clone(), shown);
        let all = snapshot.full.iter().map(sent(Shown::Wholly)).chain(snapshot.partial.iter().map(sent(Shown::Partly)));
        self.update_sights(key, all.collect(), |known, sent| match known {
            None => Sight { shown: sent, rang: false },
            Some(known @ Sight { shown: Shown::Surely, .. }) => known,
            Some(known) => Sight { shown: known.shown.min(sent), ..known },
        });
    }

    /// The relay has accepted a snapshot.
    fn note_accepted(&mut self, key: Ed25519Public, full: &[ItemId], rings: &[ItemId]) {
        let full = full.iter().map(|id| (id.clone(), ())).collect();
        self.update_sights(key, full, |known, ()| Sight {
            shown: Shown::Surely,
            rang: known.is_some_and(|known| known.rang),
        });
        // Also for what is only counted in the badge, since it did not fit.
        let rings = rings.iter().map(|id| (id.clone(), ())).collect();
        self.update_sights(key, rings, |known, ()| Sight {
            shown: known.map_or(Shown::Partly, |known| known.shown),
            rang: true,
        });
    }

    /// Changes what a device was sent of items that are still pending.
    fn update_sights<T: Copy>(
        &mut self,
        key: Ed25519Public,
        items: Vec<(ItemId, T)>,
        change: impl Fn(Option<Sight>, T) -> Sight,
    ) {
        let pending = self.pending_ids();
        let Some(device) = self.devices.get_mut(&key) else { return };
        for (item, what) in items.into_iter().filter(|(item, _)| pending.contains(item)) {
            let known = device.sights.get(&item).copied();
            let sight = change(known, what);
            if known != Some(sight) {
                device.sights.insert(item.clone(), sight);
                self.step.writes.push(Write::PutSight { device: key, item, sight });
            }
        }
    }

    /// It did not get through.
    pub(super) fn failed(&mut self, now: Now, token: Token, why: Failure) {
        let Some(Flight { to, cargo }) = self.pushes.flights.remove(&token) else { return };
        match cargo {
            Cargo::Stored { .. } => {
                let turn = self.pushes.turn(to);
                turn.flying = None;
                turn.pause(now.mono);
            }
            Cargo::Live { owed, .. } => {
                if why == Failure::Offline {
                    self.presence(to, false, now);
                }
                if owed || why == Failure::RateLimited {
                    self.mark_stale(&to);
                }
                if why == Failure::RateLimited {
                    self.pushes.turn(to).pause(now.mono);
                }
            }
            Cargo::Text(mut text) => {
                text.attempts += 1;
                if why == Failure::Other || text.attempts == MAX_ATTEMPTS {
                    tracing::warn!(device = %to.short(), ?why, "a notification was given up");
                    return;
                }
                text.not_before = now.mono + pause(text.attempts - 1);
                self.wait_for_relay(text);
            }
        }
    }

    /// A relay without receipts says that a live payload did not arrive.
    pub(super) fn live_missed(&mut self, key: &Ed25519Public) {
        let unseen = std::mem::take(&mut self.pushes.turn(*key).unproved);
        if let Some(device) = self.devices.get_mut(key) {
            device.online = false;
        }
        let unseen = unseen.into_iter().map(|id| (id, ())).collect();
        self.update_sights(*key, unseen, |known, ()| Sight {
            shown: Shown::Partly,
            rang: known.is_some_and(|known| known.rang),
        });
        self.mark_stale(key);
    }

    /// The relay has taken our list: whom it did not know before, it knows now.
    pub(super) fn retry_unknown_devices(&mut self, now: Now) {
        for turn in self.pushes.turns.values_mut() {
            turn.not_before = turn.not_before.min(now.mono);
        }
    }

    /// A device is gone, and whatever is meant for it.
    pub(super) fn forget_pushes(&mut self, key: &Ed25519Public) {
        self.pushes.turns.remove(key);
        self.pushes.flights.retain(|_, flight| flight.to != *key);
        self.pushes.texts.retain(|text| text.to != *key);
    }

    /// Nothing that was on its way will arrive: it is owed again.
    pub(super) fn pushes_reset(&mut self) {
        for flight in std::mem::take(&mut self.pushes.flights).into_values() {
            match flight.cargo {
                Cargo::Text(text) => self.wait_for_relay(text),
                Cargo::Live { owed: true, .. } => self.mark_stale(&flight.to),
                // Still owed: nothing was noted yet.
                Cargo::Live { .. } | Cargo::Stored { .. } => {}
            }
        }
        for turn in self.pushes.turns.values_mut() {
            *turn = Turn { whole_at: turn.whole_at, ..Turn::default() };
        }
    }

    /// The disk has refused a step. What devices were owed by it is forgotten, so that each is owed the newest state.
    pub(super) fn realign_soon(&mut self, now: Now) {
        self.pushes.realign_at = Some(now.mono + REALIGN_MS);
    }

    pub(super) fn pushes_timeouts(&mut self, now: Now) {
        if self.pushes.realign_at.take_if(|at| *at <= now.mono).is_some() {
            self.mark_all_stale();
        }
    }

    pub(super) fn pushes_deadline(&self, now: Now) -> Option<Millis> {
        if !self.relay.is_connected() || self.date(now).is_none() {
            return self.pushes.realign_at;
        }
        let texts = self.pushes.texts.iter().map(|text| text.not_before).min();
        let next_due = self.pending().map(|held| held.notify_at).filter(|at| *at > now.mono).min();
        let held_back = self.devices.authorized().filter_map(|device| {
            let turn = self.pushes.turns.get(&device.row.ed25519)?;
            let owes = device.row.stale || !self.rings_for(&device.row.ed25519, now).is_empty();
            (turn.flying.is_none() && owes).then(|| turn.may_send_at())
        });
        texts.into_iter().chain(next_due).chain(held_back.min()).chain(self.pushes.realign_at).min()
    }
}
