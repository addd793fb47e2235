//! The devices in memory: each with its row and what is known of it besides, and the table of all.

use std::collections::{BTreeMap, VecDeque};

use skald_common::crypto::fingerprint;
use skald_common::framing::Compression;
use skald_common::ids::Ed25519Public;
use skald_common::payload::Outcome;
use skald_common::peer::{Millis, Partner, first_send_counter};
use skald_common::wire::{Platform, Push};

use crate::hub::Now;
use crate::hub::api::{ApiError, Applied, DeviceEntry, DeviceState, DeviceTable, PushState, Responder};
use crate::hub::durable::{DeviceRow, Origin, Sight};
use crate::hub::items::ItemId;

/// Payload ids remembered per device, against repeats under a new counter.
const RECENT: usize = 256;
/// Shortest prefix that names a device, hex digits.
const MIN_PREFIX: usize = 8;

/// A payload that came from a device.
#[derive(Debug)]
pub(crate) struct Recent {
    payload: String,
    /// What became of it, if it was an answer.
    pub(crate) outcome: Option<Outcome>,
}

/// A device, and what is known of it in memory.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) row: DeviceRow,
    /// What it was sent of each pending item.
    pub(crate) sights: BTreeMap<ItemId, Sight>,
    pub(crate) online: bool,
    pub(super) recent: VecDeque<Recent>,
}

impl Device {
    pub(super) fn new(row: DeviceRow) -> Self {
        Self { row, sights: BTreeMap::new(), online: false, recent: VecDeque::new() }
    }

    pub(crate) fn is_authorized(&self) -> bool {
        self.row.state == DeviceState::Authorized
    }

    /// What people call it: its own words, or platform and key.
    pub(crate) fn name(&self) -> String {
        let own = self.row.info.as_ref().and_then(|info| info.device_name.as_deref().or(info.model.as_deref()));
        match own {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => format!("{} {}", platform_name(self.row.platform), self.row.ed25519.short()),
        }
    }

    /// Whether it knows the kinds that deployed phones raise an error for.
    pub(crate) fn is_ours(&self) -> bool {
        let version = self.row.info.as_ref().and_then(|info| info.app_version.as_deref());
        version.is_some_and(|version| version.starts_with("skald-phone/") || version.starts_with("skald-web/"))
    }

    /// The deployed phone app cannot read compressed bodies (wire protocol, Known peers).
    pub(crate) const fn compression(&self) -> Compression {
        match self.row.platform {
            Platform::Ios | Platform::Unspecified => Compression::Off,
            Platform::Android | Platform::Web => Compression::WhenSmaller,
        }
    }

    /// The payload with this id, if it came before.
    pub(crate) fn recent(&self, payload: &str) -> Option<&Recent> {
        self.recent.iter().find(|recent| recent.payload == payload)
    }

    pub(crate) fn remember(&mut self, payload: &str, outcome: Option<Outcome>) {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(Recent { payload: payload.to_owned(), outcome });
    }

    fn entry(&self, push: Option<PushState>) -> DeviceEntry {
        let row = &self.row;
        let hex = row.ed25519.to_hex();
        DeviceEntry {
            pubkey: row.ed25519,
            fingerprint: self.fingerprint(),
            short_key: (row.platform == Platform::Ios).then(|| format!("{}…{}", &hex[..6], &hex[58..])),
            state: row.state,
            platform: platform_word(row.platform),
            name: self.name(),
            device_info: row.info.clone(),
            paired_at: row.paired_at,
            last_seen: row.last_seen,
            online: self.online,
            push,
        }
    }

    pub(crate) fn fingerprint(&self) -> String {
        fingerprint(&self.row.ed25519, &self.row.x25519)
    }
}

const fn push_state(push: Push) -> Option<PushState> {
    match push {
        Push::Unspecified => None,
        Push::None => Some(PushState::None),
        Push::Ready => Some(PushState::Ready),
        Push::Gone => Some(PushState::Gone),
        Push::Off => Some(PushState::Off),
    }
}

const fn platform_word(platform: Platform) -> &'static str {
    match platform {
        Platform::Ios => "ios",
        Platform::Android => "android",
        Platform::Web => "web",
        Platform::Unspecified => "unknown",
    }
}

const fn platform_name(platform: Platform) -> &'static str {
    match platform {
        Platform::Ios => "iPhone",
        Platform::Android => "Android",
        Platform::Web => "Browser",
        Platform::Unspecified => "Device",
    }
}

/// All devices, and where the table came from.
#[derive(Debug)]
pub(crate) struct Devices {
    pub(super) map: BTreeMap<Ed25519Public, Device>,
    pub(super) origin: Origin,
    pub(super) high_water: u64,
    /// What the relay has said of pushes to authorized devices. Not in their rows, nor beside them: a write that fails
    /// brings back a row, and the relay does not repeat itself for that.
    push: BTreeMap<Ed25519Public, PushState>,
    /// Commands that wait for the relay to take the list, and until when.
    pub(super) waiting: Vec<(Millis, Responder<Applied>)>,
}

impl Devices {
    #[cfg(test)]
    pub(crate) fn sizes(&self) -> [(&'static str, usize, usize); 3] {
        use skald_common::limits::{MAX_DEVICES, MAX_PENDING};
        let recent = self.map.values().map(|device| device.recent.len()).max().unwrap_or_default();
        let most = MAX_DEVICES + MAX_PENDING;
        [
            ("devices", self.map.len(), most),
            ("words of the relay on pushes", self.push.len(), most),
            ("payload ids of one device", recent, RECENT),
        ]
    }

    pub(crate) const fn new(origin: Origin) -> Self {
        Self { map: BTreeMap::new(), origin, high_water: 0, push: BTreeMap::new(), waiting: Vec::new() }
    }

    pub(crate) fn get(&self, key: &Ed25519Public) -> Option<&Device> {
        self.map.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: &Ed25519Public) -> Option<&mut Device> {
        self.map.get_mut(key)
    }

    /// A device that may read and answer.
    pub(crate) fn authorized_mut(&mut self, key: &Ed25519Public) -> Option<&mut Device> {
        self.map.get_mut(key).filter(|device| device.is_authorized())
    }

    pub(crate) fn authorized(&self) -> impl Iterator<Item = &Device> {
        self.map.values().filter(|device| device.is_authorized())
    }

    pub(crate) fn authorized_keys(&self) -> Vec<Ed25519Public> {
        self.authorized().map(|device| device.row.ed25519).collect()
    }

    pub(super) fn entries(&self) -> Vec<DeviceEntry> {
        self.map.values().map(|device| device.entry(self.push(device))).collect()
    }

    /// What pushing to a device comes to; `None`: the relay has not said, or in a word that is not known here.
    pub(super) fn push(&self, device: &Device) -> Option<PushState> {
        self.push.get(&device.row.ed25519).copied().filter(|_| device.is_authorized())
    }

    /// The relay says what pushing to a device comes to. Gives what is news.
    pub(super) fn set_push(&mut self, key: &Ed25519Public, push: Push) -> Option<PushState> {
        if !self.map.get(key).is_some_and(Device::is_authorized) {
            return None;
        }
        let map = &self.map;
        self.push.retain(|key, _| map.contains_key(key));
        let Some(push) = push_state(push) else {
            self.push.remove(key);
            return None;
        };
        (self.push.insert(*key, push) != Some(push)).then_some(push)
    }

    /// What the relay has said of pushes may no longer be so, and it will not say.
    pub(crate) fn forget_push(&mut self) {
        self.push.clear();
    }

    /// One line for each device that its owner believes to be woken, and that is not.
    pub(crate) fn push_notices(&self) -> impl Iterator<Item = String> {
        self.authorized().filter(|device| self.push(device) == Some(PushState::Gone)).map(|device| {
            format!(
                "{} gets no pushes any more, its push token is no longer valid: open the app on it once",
                device.name()
            )
        })
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.origin == Origin::Lost
    }

    pub(crate) const fn table(&self) -> DeviceTable {
        match self.origin {
            Origin::Normal => DeviceTable::Normal,
            Origin::Backup => DeviceTable::LoadedFromBackup,
            Origin::Lost => DeviceTable::Lost,
        }
    }

    pub(crate) fn notice(&self) -> Option<String> {
        match self.origin {
            Origin::Normal => None,
            Origin::Backup => Some(
                "the database was gone or old: the devices were taken from devices.json beside it; compare them with \
                 `skaldctl devices`"
                    .into(),
            ),
            Origin::Lost => Some(
                "the database and devices.json are gone: no list of devices is sent to the relay, so that no phone is \
                 revoked; put devices.json back and call devices.restore, or call devices.clear to revoke all"
                    .into(),
            ),
        }
    }

    /// By key or unambiguous prefix.
    pub(super) fn find(&self, prefix: &str) -> Result<Ed25519Public, ApiError> {
        let digits = prefix.to_ascii_lowercase();
        if digits.len() < MIN_PREFIX || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(ApiError::BadDevicePrefix);
        }
        let mut matching = self.map.keys().filter(|key| key.to_hex().starts_with(&digits));
        match (matching.next(), matching.count()) {
            (None, _) => Err(ApiError::NoSuchDevice(digits)),
            (Some(key), 0) => Ok(*key),
            (Some(_), more) => Err(ApiError::AmbiguousDevice { prefix: digits, count: more + 1 }),
        }
    }

    pub(crate) fn partner(&self, key: &Ed25519Public, now: Now) -> Option<Partner> {
        let device = self.map.get(key)?;
        Some(Partner {
            ed25519: *key,
            x25519: device.row.x25519,
            send_from: first_send_counter(device.row.reserved, self.high_water, now.unix),
            received: device.row.received,
            compression: device.compression(),
        })
    }

    pub(crate) fn partners(&self, now: Now) -> Vec<Partner> {
        self.authorized().filter_map(|device| self.partner(&device.row.ed25519, now)).collect()
    }

    /// What the relay is told; `None`: nothing.
    pub(crate) fn list(&self) -> Option<Vec<Ed25519Public>> {
        (!self.is_lost()).then(|| self.authorized_keys())
    }
}
