//! The device table: who is paired, who may read and answer, and what the relay is told of it.
//!
//! The hub's list is the authority: a change holds here at once, and the relay is told the whole list. When the table was
//! lost, nothing is told, since an empty list would revoke every phone (socket API, Control).

mod table;

use skald_common::ids::Ed25519Public;
use skald_common::limits::{MAX_DEVICES, MAX_PENDING};
use skald_common::payload::{DeviceInfo, Notification};
use skald_common::peer::Millis;
use skald_common::wire::Push;

pub(crate) use table::{Device, Devices};

use super::api::{ApiError, Applied, DeviceCounts, DeviceEntry, DeviceState, PushState, Responder};
use super::durable::{Backup, DeviceRow, Durable, Origin, Write};
use super::effects::{Effect, RelayOrder};
use super::events::Event;
use super::trouble::Cause;
use super::{Ctx, Hub, Now, text};

/// How long a command waits for the relay to take a new list.
const APPLY_MS: Millis = 10_000;
/// A pending device is forgotten after this, as on the relay; milliseconds.
const PENDING_LIFE_MS: u64 = 24 * 3600 * 1000;
/// Longest text that a device may say of itself, characters.
const MAX_INFO: usize = 128;

impl Hub {
    pub(super) fn load_devices(&mut self, durable: &Durable) {
        self.devices.origin = durable.origin;
        self.devices.high_water = self.devices.high_water.max(durable.high_water);
        let mut before = std::mem::take(&mut self.devices.map);
        for row in &durable.devices {
            let mut device = Device::new(row.clone());
            if let Some(old) = before.remove(&row.ed25519) {
                // Not what came lately: of that, the last did not come after all.
                device.online = old.online;
            }
            self.devices.high_water = self.devices.high_water.max(row.reserved);
            self.devices.map.insert(row.ed25519, device);
        }
    }

    pub(super) fn device_list(&self) -> Vec<DeviceEntry> {
        self.devices.entries()
    }

    pub(super) fn device_counts(&self) -> DeviceCounts {
        let authorized = self.devices.authorized().count();
        let online = self.devices.authorized().filter(|device| device.online).count();
        let is_gone = |device: &&Device| self.devices.push(device) == Some(PushState::Gone);
        let push_gone = self.devices.authorized().filter(is_gone).count();
        DeviceCounts { authorized, pending: self.devices.map.len() - authorized, online, push_gone }
    }

    // Commands.

    pub(super) fn authorize(&mut self, ctx: &mut Ctx<'_>, prefix: &str, reply: Responder<Applied>) {
        match self.devices.find(prefix).and_then(|key| self.authorize_key(ctx, key).map(|()| key)) {
            Ok(key) => {
                let device = self.device_words(&key);
                self.announce(ctx, Some(key), &format!("{device} may now read your inbox and answer."));
                self.reply_when_applied(ctx.now, reply);
            }
            Err(error) => self.reply(reply, Err(error)),
        }
    }

    /// Lets a device read and answer: here at once, and the relay is told.
    pub(super) fn authorize_key(&mut self, ctx: &mut Ctx<'_>, key: Ed25519Public) -> Result<(), ApiError> {
        if self.devices.is_lost() {
            return Err(ApiError::DevicesUnconfirmed);
        }
        let others = self.devices.authorized().filter(|device| device.row.ed25519 != key).count();
        if others >= MAX_DEVICES {
            return Err(ApiError::TooManyDevices);
        }
        let Some(device) = self.devices.map.get_mut(&key) else {
            return Err(ApiError::NoSuchDevice(key.short()));
        };
        device.row.state = DeviceState::Authorized;
        // Owes it the inbox.
        device.row.stale = true;
        let row = device.row.clone();
        self.write(Write::PutDevice(row));
        self.devices_are_normal();
        self.set_partner(key, ctx.now);
        self.tell_relay_list();
        self.emit(Event::DeviceAuthorized { pubkey: key });
        Ok(())
    }

    pub(super) fn revoke(&mut self, ctx: &mut Ctx<'_>, prefix: &str, reply: Responder<Applied>) {
        match self.devices.find(prefix) {
            Ok(key) => {
                let listed = self.devices.get(&key).is_some_and(Device::is_authorized);
                self.remove_device(key);
                if listed {
                    self.reply_when_applied(ctx.now, reply);
                } else {
                    // The relay was never told of it: there is nothing to take back.
                    self.reply(reply, Ok(Applied { applied: true }));
                }
            }
            Err(error) => self.reply(reply, Err(error)),
        }
    }

    /// Forgets a device: revoked, rejected, or gone by itself.
    pub(super) fn remove_device(&mut self, key: Ed25519Public) {
        let Some(device) = self.devices.map.remove(&key) else { return };
        self.write(Write::RemoveDevice(key));
        self.devices_are_normal();
        self.forget_pushes(&key);
        self.end_tunnels_of(&key);
        self.effect(Effect::Relay(RelayOrder::RemovePartner(key)));
        if device.is_authorized() {
            self.tell_relay_list();
        } else {
            self.reject_pairing(&device.row);
        }
        self.emit(Event::DeviceRevoked { pubkey: key });
    }

    pub(super) fn clear_devices(&mut self, ctx: &mut Ctx<'_>, reply: Responder<Applied>) {
        let keys: Vec<_> = self.devices.map.keys().copied().collect();
        for key in keys {
            self.remove_device(key);
        }
        self.set_origin(Origin::Normal);
        self.tell_relay_list();
        self.reply_when_applied(ctx.now, reply);
    }

    /// Takes the devices of the backup in place of a lost table.
    pub(super) fn restore_devices(&mut self, ctx: &mut Ctx<'_>, backup: Option<Backup>, reply: Responder<Applied>) {
        let Some(backup) = backup.filter(|_| self.devices.is_lost()) else {
            return self.reply(reply, Err(ApiError::NoBackup));
        };
        self.devices.high_water = self.devices.high_water.max(backup.high_water);
        for row in backup.devices {
            // One that paired since the loss has the newer keys.
            if self.devices.map.contains_key(&row.ed25519) {
                continue;
            }
            self.write(Write::PutDevice(row.clone()));
            let (key, authorized) = (row.ed25519, row.state == DeviceState::Authorized);
            self.devices.map.insert(key, Device::new(row));
            if authorized {
                self.set_partner(key, ctx.now);
                self.mark_stale(&key);
            }
        }
        self.set_origin(Origin::Backup);
        self.tell_relay_list();
        self.reply_when_applied(ctx.now, reply);
    }

    fn set_origin(&mut self, origin: Origin) {
        if self.devices.origin != origin {
            self.devices.origin = origin;
            self.write(Write::SetOrigin(origin));
        }
    }

    /// The owner has worked with the table: what was taken from the backup is now the table.
    fn devices_are_normal(&mut self) {
        if self.devices.origin == Origin::Backup {
            self.set_origin(Origin::Normal);
        }
    }

    // Pairing.

    /// A device has paired: adds it, or replaces the one with its signing key.
    pub(super) fn put_device(&mut self, row: DeviceRow) {
        self.write(Write::PutDevice(row.clone()));
        let device = self.devices.map.entry(row.ed25519).or_insert_with(|| Device::new(row.clone()));
        device.row = row;
        device.recent.clear();
        self.drop_oldest_pending();
    }

    fn drop_oldest_pending(&mut self) {
        let pending = || self.devices.map.values().filter(|device| !device.is_authorized());
        if pending().count() > MAX_PENDING
            && let Some(oldest) = pending().min_by_key(|device| device.row.paired_at)
        {
            let key = oldest.row.ed25519;
            self.remove_device(key);
        }
    }

    /// The relay's engine cannot agree on a key with this device: it can never be written to.
    pub(super) fn partner_refused(&mut self, key: Ed25519Public, now: Now) {
        let what = format!("device {} has an unusable key and was removed", key.short());
        self.went_wrong(Cause::Device, what, now);
        self.remove_device(key);
    }

    pub(super) fn set_partner(&mut self, key: Ed25519Public, now: Now) {
        if let Some(partner) = self.devices.partner(&key, now) {
            self.effect(Effect::Relay(RelayOrder::SetPartner(partner)));
        }
    }

    pub(super) fn tell_relay_list(&mut self) {
        let list = self.devices.list();
        self.effect(Effect::Relay(RelayOrder::SetAuthorized(list)));
    }

    // From devices and the relay.

    /// `hello`: what the device says of itself.
    pub(super) fn hello(&mut self, from: Ed25519Public, info: &DeviceInfo) {
        let line = |text: &str| text::line(text, MAX_INFO);
        let optional = |text: &Option<String>| text.as_deref().map(line);
        let info = DeviceInfo {
            platform: line(&info.platform),
            model: optional(&info.model),
            os_version: optional(&info.os_version),
            app_version: optional(&info.app_version),
            device_name: optional(&info.device_name),
        };
        if let Some(device) = self.devices.get_mut(&from)
            && device.row.info.as_ref() != Some(&info)
        {
            device.row.info = Some(info);
            let row = device.row.clone();
            self.write(Write::PutDevice(row));
            self.emit(Event::DeviceChanged { pubkey: from });
        }
    }

    /// A message of an authorized device was opened.
    pub(super) fn received(&mut self, from: Ed25519Public, counter: u64, now: Now) {
        if let Some(device) = self.devices.get_mut(&from) {
            device.row.received = device.row.received.max(counter);
            device.row.last_seen = Some(now.unix);
            let counter = device.row.received;
            self.write(Write::Received { device: from, counter, last_seen: now.unix });
        }
    }

    /// Counters up to this one may be used from now on.
    pub(super) fn reserve(&mut self, device: Ed25519Public, upto: u64) {
        self.devices.high_water = self.devices.high_water.max(upto);
        if let Some(known) = self.devices.get_mut(&device) {
            known.row.reserved = known.row.reserved.max(upto);
        }
        self.write(Write::Reserved { device, upto });
    }

    pub(super) fn presence(&mut self, key: Ed25519Public, online: bool, now: Now) {
        let Some(device) = self.devices.get_mut(&key) else { return };
        if device.online == online {
            return;
        }
        device.online = online;
        device.row.last_seen = Some(now.unix);
        self.emit(if online { Event::DeviceOnline { pubkey: key } } else { Event::DeviceOffline { pubkey: key } });
    }

    pub(super) fn presence_list(&mut self, online: &[Ed25519Public], now: Now) {
        let keys: Vec<_> = self.devices.map.keys().copied().collect();
        for key in keys {
            self.presence(key, online.contains(&key), now);
        }
    }

    /// What the relay says of pushes. It is shown, and nothing depends on it.
    pub(super) fn push_status(&mut self, states: &[(Ed25519Public, Push)]) {
        for (key, push) in states {
            if let Some(push) = self.devices.set_push(key, *push) {
                self.emit(Event::DevicePush { pubkey: *key, push });
            }
        }
    }

    // Words and waiting.

    /// A device as announcements call it.
    pub(super) fn device_words(&self, key: &Ed25519Public) -> String {
        match self.devices.get(key) {
            Some(device) => format!("{} (fingerprint {})", device.name(), device.fingerprint()),
            None => key.short(),
        }
    }

    /// Tells all authorized devices but one what happened to their security.
    pub(super) fn announce(&mut self, ctx: &mut Ctx<'_>, except: Option<Ed25519Public>, body: &str) {
        let notification = Notification { title: "Skald Remote".into(), body: body.to_owned() };
        for key in self.devices.authorized_keys() {
            if Some(key) != except {
                self.queue_notification(ctx, key, &notification);
            }
        }
    }

    /// Answers when the relay has taken the list; at once, if there is no relay to wait for.
    fn reply_when_applied(&mut self, now: Now, reply: Responder<Applied>) {
        if self.relay.is_connected() && !self.devices.is_lost() {
            self.devices.waiting.push((now.mono + APPLY_MS, reply));
        } else {
            self.reply(reply, Ok(Applied { applied: false }));
        }
    }

    /// The relay has taken the list, or will not any more.
    pub(super) fn list_applied(&mut self, applied: bool) {
        for (_, reply) in std::mem::take(&mut self.devices.waiting) {
            self.reply(reply, Ok(Applied { applied }));
        }
    }

    pub(super) fn fail_waiters(&mut self, error: &ApiError) {
        for (_, reply) in std::mem::take(&mut self.devices.waiting) {
            // An asker that has gone does not mind.
            let _ = reply.send(Err(error.clone()));
        }
        self.fail_pairing_start(error);
    }

    pub(super) fn devices_deadline(&self, now: Now) -> Option<Millis> {
        let waiting = self.devices.waiting.iter().map(|(until, _)| *until).min();
        let pending = self.devices.map.values().filter(|device| !device.is_authorized());
        let forgotten = pending.map(|device| now.mono_at(device.row.paired_at + PENDING_LIFE_MS)).min();
        waiting.into_iter().chain(forgotten).min()
    }

    pub(super) fn devices_timeouts(&mut self, ctx: &Ctx<'_>) {
        let now = ctx.now;
        let (late, waiting) =
            std::mem::take(&mut self.devices.waiting).into_iter().partition(|(at, _)| *at <= now.mono);
        self.devices.waiting = waiting;
        for (_, reply) in Vec::from_iter::<Vec<(Millis, Responder<Applied>)>>(late) {
            self.reply(reply, Ok(Applied { applied: false }));
        }
        let old: Vec<_> = self
            .devices
            .map
            .values()
            .filter(|device| !device.is_authorized() && device.row.paired_at + PENDING_LIFE_MS <= now.unix)
            .map(|device| device.row.ed25519)
            .collect();
        for key in old {
            self.remove_device(key);
        }
    }
}
