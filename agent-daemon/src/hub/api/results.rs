//! What commands are answered with; each serializes as the result in the socket API.

use serde::Serialize;
use skald_common::ids::{Ed25519Public, NamespaceId, X25519Public};
use skald_common::payload::{DeviceInfo, RawJson};
use zeroize::Zeroizing;

use crate::hub::items::Kind;

/// Result of `notification.send`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct NotificationSent {
    /// Authorized devices it is meant for.
    pub devices: usize,
    /// How many copies wait to go out because the relay is not connected now.
    pub queued: usize,
}

/// Result of `pairing.start`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PairingStarted {
    /// Names the window towards `pairing.qr`; not the token.
    pub code: String,
    /// Unix milliseconds.
    pub expires_at: u64,
}

/// What has become of a pairing window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PairingState {
    /// Open, unused.
    Active,
    /// A device used it.
    Consumed,
    /// Its time is over, or it was stopped.
    Expired,
    /// A newer window replaced it.
    Superseded,
}

/// Result of `pairing.qr`: the server makes the picture.
#[derive(Debug)]
pub struct PairingCode {
    /// What has become of the window.
    pub state: PairingState,
    /// The JSON that the code carries, while active; holds the token.
    pub json: Option<Zeroizing<String>>,
}

/// State of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceState {
    /// Waits for a person's OK.
    Pending,
    /// May read and answer.
    Authorized,
}

/// What pushing to a device comes to. The relay's word, and of no consequence but that a person is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PushState {
    /// The device has given no token.
    None,
    /// It has a token, and the relay knows how to use it.
    Ready,
    /// The push service says that the token is dead.
    Gone,
    /// It has a token for a service that the relay has no credentials for.
    Off,
}

/// One row of `devices.list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceEntry {
    /// Signing key: the device's name.
    pub pubkey: Ed25519Public,
    /// What people compare (protocol, Fingerprint).
    pub fingerprint: String,
    /// For platform IOS: first and last 6 hex digits of the key, which is what that app shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub short_key: Option<String>,
    /// Pending or authorized.
    pub state: DeviceState,
    /// `ios`, `android`, `web` or `unknown`.
    pub platform: &'static str,
    /// For people.
    pub name: String,
    /// From its `hello`.
    pub device_info: Option<DeviceInfo>,
    /// Unix milliseconds.
    pub paired_at: u64,
    /// Unix milliseconds of its last message or connection.
    pub last_seen: Option<u64>,
    /// Whether it is connected to the relay now, as far as the relay has said.
    pub online: bool,
    /// What pushing to it comes to; `None`: the relay has not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub push: Option<PushState>,
}

/// Result of `devices.authorize`, `devices.revoke`, `devices.clear`, `devices.restore`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// `false`: it holds here at once, and the relay will be told when it is back.
    pub applied: bool,
}

/// One row of `inbox.list`.
#[derive(Debug, Clone, Serialize)]
pub struct InboxEntry {
    /// The id that phones see, and that [`HubHandle::inbox_answer`](super::HubHandle::inbox_answer) takes.
    pub id: String,
    /// The host that raised it.
    pub host: String,
    /// What it is.
    pub kind: Kind,
    /// The whole item as phones get it.
    pub item: RawJson,
    /// Unix milliseconds.
    pub created_at: u64,
    /// Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
}

/// The relay connection, for `hello` and `status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RelayStatus {
    /// The address that works, or is tried; empty: none configured.
    pub url: String,
    /// Whether there is a connection.
    pub connected: bool,
    /// Since when that is so, Unix milliseconds.
    pub since: u64,
    /// Why the last connection or attempt ended.
    pub last_error: Option<String>,
    /// Another daemon with the same seed keeps taking over: waiting 5 minutes.
    pub parked: bool,
}

/// Pending items per kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct PendingCounts {
    /// Approvals.
    pub approvals: usize,
    /// Clarifications.
    pub clarifications: usize,
    /// Elicitations.
    pub elicitations: usize,
}

/// Devices per state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct DeviceCounts {
    /// May read and answer.
    pub authorized: usize,
    /// Wait for a person's OK.
    pub pending: usize,
    /// Of the authorized, connected to the relay now.
    pub online: usize,
    /// Of the authorized, no longer woken by pushes, as their tokens are dead.
    pub push_gone: usize,
}

/// A host in `status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostStatus {
    /// Its name.
    pub name: String,
    /// Its own version.
    pub version: String,
}

/// The reverse proxy, for `status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ProxyStatus {
    /// Port of the web page on 127.0.0.1; `None`: the proxy is off.
    pub web_port: Option<u16>,
    /// Open tunnels, by device.
    pub tunnels: Vec<TunnelStatus>,
}

/// The open tunnels of one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TunnelStatus {
    /// Its signing key.
    pub device: Ed25519Public,
    /// For people.
    pub name: String,
    /// How many.
    pub open: usize,
    /// When the oldest of them began, Unix milliseconds.
    pub since: u64,
    /// Bytes through them to the device.
    pub to_device: u64,
    /// Bytes through them from the device.
    pub from_device: u64,
}

/// Where the device table came from, for `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceTable {
    /// The database, as usual.
    Normal,
    /// The database was gone; the devices come from the backup beside it.
    LoadedFromBackup,
    /// Database and backup are gone: nothing is told to the relay until `devices.restore` or `devices.clear`.
    Lost,
}

/// Result of `status`. Version, pid and uptime are the server's to add.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The agent's namespace.
    pub namespace_id: NamespaceId,
    /// The agent's signing key.
    pub agent_ed25519_pub: Ed25519Public,
    /// The agent's agreement key.
    pub agent_x25519_pub: X25519Public,
    /// The relay connection.
    pub relay: RelayStatus,
    /// Devices per state.
    pub devices: DeviceCounts,
    /// Where the device table came from.
    pub device_table: DeviceTable,
    /// Pending items per kind.
    pub pending: PendingCounts,
    /// Connected hosts.
    pub hosts: Vec<HostStatus>,
    /// The web page that devices may reach.
    pub proxy: ProxyStatus,
    /// The last trouble that a person should know of, in words; none once it is over.
    pub last_error: Option<String>,
    /// When that was, Unix milliseconds.
    pub last_error_at: Option<u64>,
    /// Things that a person should know of, in words: one line each.
    pub notices: Vec<String>,
}
