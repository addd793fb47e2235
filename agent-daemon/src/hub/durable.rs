//! What survives a restart, as rows, and the changes to it. The hub keeps the same in memory; the [store](crate::store)
//! carries out one list of [`Write`]s as one transaction.

use skald_common::ids::{Ed25519Public, X25519Public};
use skald_common::payload::DeviceInfo;
use skald_common::wire::Platform;

use super::api::{AnswerContent, DeviceState};
use super::items::{Item, ItemId};

/// A device.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DeviceRow {
    pub(crate) ed25519: Ed25519Public,
    pub(crate) x25519: X25519Public,
    pub(crate) state: DeviceState,
    pub(crate) platform: Platform,
    pub(crate) info: Option<DeviceInfo>,
    /// Unix milliseconds.
    pub(crate) paired_at: u64,
    /// Unix milliseconds.
    pub(crate) last_seen: Option<u64>,
    /// Highest send counter that may have been used.
    pub(crate) reserved: u64,
    /// Last receive counter accepted.
    pub(crate) received: u64,
    /// It shows items that are gone, or does not know of an answer: owes it a snapshot.
    pub(crate) stale: bool,
}

/// A pending item, with what its host's absence means for it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ItemRow {
    pub(crate) item: Item,
    /// How long it stays after its host's connection ended, seconds.
    pub(crate) linger_secs: u64,
    /// When it leaves, Unix milliseconds; `None`: its host is connected.
    pub(crate) leaves_at: Option<u64>,
}

/// What a device was sent of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sight {
    pub(crate) shown: Shown,
    /// A snapshot that may ring for it was accepted by the relay.
    pub(crate) rang: bool,
}

/// How much of an item a device can have seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shown {
    /// A snapshot without some of its content was sent; none with all of it is known to have arrived at the relay.
    Partly,
    /// Every snapshot with it that was sent had all of it. Whether one arrived is not known, but a device that names the
    /// item must have got one: its id is in nothing else.
    Wholly,
    /// The relay has accepted a snapshot with all of it.
    Surely,
}

impl Shown {
    /// Whether an approval from this device counts.
    pub(crate) fn is_whole(self) -> bool {
        self > Self::Partly
    }
}

/// An answer that its host has not confirmed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AnswerRow {
    pub(crate) item: ItemId,
    /// Same for each repetition towards the host.
    pub(crate) answer_id: String,
    pub(crate) by: Answerer,
    /// Never that of an elicitation: those are held in memory alone.
    pub(crate) content: AnswerContent,
}

/// Whose answer was first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answerer {
    /// The agent's own key: the command line.
    pub(crate) device: Ed25519Public,
    /// For people.
    pub(crate) name: String,
    /// The `id` of the payload that brought it; empty from the command line.
    pub(crate) payload_id: String,
    /// When it counted, Unix milliseconds.
    pub(crate) at: u64,
}

/// An open pairing window that no device has used yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WindowRow {
    /// SHA-256 of the token.
    pub(crate) token_hash: [u8; 32],
    /// Unix milliseconds.
    pub(crate) expires_at: u64,
}

/// How far the device table can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It is the one that this seed has always had.
    Normal,
    /// It comes from the backup, since the database was gone or older.
    Backup,
    /// It was lost: no list may be sent until the owner has spoken.
    Lost,
}

/// Everything that survives a restart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Durable {
    pub(crate) origin: Origin,
    /// Highest send counter ever reserved, over all devices ever.
    pub(crate) high_water: u64,
    pub(crate) devices: Vec<DeviceRow>,
    /// In the order of their arrival.
    pub(crate) items: Vec<ItemRow>,
    pub(crate) sights: Vec<(Ed25519Public, ItemId, Sight)>,
    pub(crate) answers: Vec<AnswerRow>,
    /// First answers of items that are gone, to tell those who come later.
    pub(crate) decided: Vec<(ItemId, Answerer)>,
    pub(crate) window: Option<WindowRow>,
}

/// One change.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Write {
    /// Adds or replaces a device. Sights are kept.
    PutDevice(DeviceRow),
    /// Forgets a device and what it was sent.
    RemoveDevice(Ed25519Public),
    /// A message of this device was handled.
    Received { device: Ed25519Public, counter: u64, last_seen: u64 },
    /// Counters up to this one may be used.
    Reserved { device: Ed25519Public, upto: u64 },
    /// See [`DeviceRow::stale`].
    Stale { device: Ed25519Public, stale: bool },
    /// Adds or replaces an item.
    PutItem(ItemRow),
    /// Forgets an item and who was sent it.
    RemoveItem(ItemId),
    /// The host of these items came or went.
    Leaves { host: String, leaves_at: Option<u64>, linger_secs: u64 },
    /// What a device was sent of an item.
    PutSight { device: Ed25519Public, item: ItemId, sight: Sight },
    /// An answer counts.
    PutAnswer(AnswerRow),
    /// Its host has confirmed it, or it is dropped; the content is wiped.
    RemoveAnswer(ItemId),
    /// Remembers who was first.
    PutDecided(ItemId, Answerer),
    /// Forgets who was first.
    RemoveDecided(ItemId),
    /// The pairing window, if one is open and unused.
    SetWindow(Option<WindowRow>),
    /// See [`Origin`].
    SetOrigin(Origin),
}

impl Write {
    /// Whether somebody is told that this is safe: it must survive a power cut. Lost with one, the others only cost a
    /// repetition: a snapshot is sent again, or a message without effect is heard again.
    pub(crate) const fn is_promise(&self) -> bool {
        !matches!(self, Self::Received { .. } | Self::Stale { .. } | Self::PutSight { .. })
    }

    /// Whether content is to be gone from the disk with this change.
    pub(crate) const fn wipes(&self) -> bool {
        matches!(self, Self::RemoveItem(_) | Self::RemoveAnswer(_))
    }

    /// Whether the backup of devices must follow this change.
    pub(crate) const fn is_backed_up(&self) -> bool {
        matches!(self, Self::PutDevice(_) | Self::RemoveDevice(_) | Self::Reserved { .. } | Self::SetOrigin(_))
    }
}

/// A device as the backup beside the database keeps it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Backup {
    pub(crate) high_water: u64,
    pub(crate) devices: Vec<DeviceRow>,
}
