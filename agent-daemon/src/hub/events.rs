//! What happens, for subscribers of the control socket (socket API, Control, `events.subscribe`). Events name items and
//! devices, and never carry content.

use serde::Serialize;
use skald_common::ids::Ed25519Public;

use super::api::PushState;
use super::items::Kind;

/// Events that may wait for a subscriber before it is told that it lags.
pub(crate) const EVENT_QUEUE: usize = 256;

/// One event; serializes as the parameters of the notification `event`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type")]
pub enum Event {
    /// The handshake with the relay is done.
    #[serde(rename = "relay.connected")]
    RelayConnected {
        /// The address that worked.
        url: String,
    },
    /// The connection to the relay ended, or an attempt failed.
    #[serde(rename = "relay.disconnected")]
    RelayDisconnected {
        /// Why.
        reason: String,
        /// Another daemon with the same seed keeps taking over.
        parked: bool,
    },
    /// A device has used the pairing window.
    #[serde(rename = "device.paired")]
    DevicePaired {
        /// Its signing key.
        pubkey: Ed25519Public,
        /// What people compare.
        fingerprint: String,
        /// `false`: it waits for `devices.authorize`.
        authorized: bool,
    },
    /// A device may read and answer.
    #[serde(rename = "device.authorized")]
    DeviceAuthorized {
        /// Its signing key.
        pubkey: Ed25519Public,
    },
    /// A device says something else of itself than before: its name, or what it runs.
    #[serde(rename = "device.changed")]
    DeviceChanged {
        /// Its signing key.
        pubkey: Ed25519Public,
    },
    /// A device was revoked, rejected, or left.
    #[serde(rename = "device.revoked")]
    DeviceRevoked {
        /// Its signing key.
        pubkey: Ed25519Public,
    },
    /// A device connected to the relay.
    #[serde(rename = "device.online")]
    DeviceOnline {
        /// Its signing key.
        pubkey: Ed25519Public,
    },
    /// A device's connection to the relay ended.
    #[serde(rename = "device.offline")]
    DeviceOffline {
        /// Its signing key.
        pubkey: Ed25519Public,
    },
    /// What pushing to a device comes to has changed, as the relay says.
    #[serde(rename = "device.push")]
    DevicePush {
        /// Its signing key.
        pubkey: Ed25519Public,
        /// What it comes to now.
        push: PushState,
    },
    /// Items came or went.
    #[serde(rename = "inbox.changed")]
    InboxChanged {
        /// How many are pending.
        pending: usize,
    },
    /// An answer counts.
    #[serde(rename = "inbox.answered")]
    InboxAnswered {
        /// The id that phones see.
        id: String,
        /// What it is.
        kind: Kind,
        /// Who answered, for people.
        device: String,
    },
    /// The pairing window opened, was used, or closed.
    #[serde(rename = "pairing.changed")]
    PairingChanged {
        /// The window's code.
        code: String,
        /// What has become of it.
        state: super::api::PairingState,
    },
}
