//! How other tasks talk to the hub: a cloneable [`HubHandle`], the commands behind it, and their answers and errors.
//!
//! Each call is one [`Command`] in a bounded queue with a oneshot for the reply; a full queue makes callers wait, which is
//! the back-pressure on socket clients. Replies come after what they promise is on disk. Nothing here knows JSON-RPC: the
//! socket server maps [`ApiError`] to codes, and its requests to these calls (socket API, all sections).

use std::fmt;

use serde::Serialize;
use skald_common::ids::{Ed25519Public, NamespaceId, X25519Public};
use skald_common::payload::{DeviceInfo, ElicitationAction, RawJson, SecretObject};
use tokio::sync::{broadcast, mpsc, oneshot};
use zeroize::Zeroizing;

use super::events::Event;
use super::items::{Kind, RequestId};

/// Commands that may wait for the hub.
const QUEUE: usize = 64;

/// Calls that may wait for a host connection to take them; a host further behind is treated as gone.
pub const HOST_CALL_QUEUE: usize = 64;

/// The hub's runtime settings (socket API, Settings).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The relay's control socket; empty: stay idle.
    pub relay_url: String,
    /// What the pairing code shows instead of the address that worked; may contain `{ns}` or `{ns32}`.
    pub qr_url: Option<String>,
    /// Default life of a pairing window, seconds, 1 to 600.
    pub pairing_ttl: u32,
    /// Whether a person must authorize each new device.
    pub require_device_confirmation: bool,
    /// How long an approval or clarification waits before it is pushed, seconds.
    pub notify_delay_secs: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            relay_url: String::new(),
            qr_url: None,
            pairing_ttl: skald_common::limits::PAIRING_TTL_SECS,
            require_device_confirmation: true,
            notify_delay_secs: 20,
        }
    }
}

/// Why the hub did not do what was asked. `Display` is one line for the person who asked, without content or secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// Another live connection has this host name (-32002).
    #[error("a host named {0:?} is already connected")]
    NameTaken(String),
    /// Something in the parameters is wrong: what, and where (-32602).
    #[error("{0}")]
    InvalidParams(String),
    /// A bound on what one host or the daemon holds is reached.
    #[error("{0}")]
    Limit(String),
    /// The host session is closed: it was replaced, or fell too far behind.
    #[error("this session is closed")]
    SessionClosed,
    /// No device has such a key.
    #[error("no device has a key that begins with {0:?}")]
    NoSuchDevice(String),
    /// More than one device has such a key.
    #[error("{count} devices have a key that begins with {prefix:?}: give more digits")]
    AmbiguousDevice {
        /// What was asked for.
        prefix: String,
        /// How many match.
        count: usize,
    },
    /// The prefix is too short or not hexadecimal.
    #[error("a device is named by its key, or at least the first 8 hexadecimal digits of it")]
    BadDevicePrefix,
    /// No such item is pending.
    #[error("no such item is pending")]
    NoSuchItem,
    /// No such pairing code was ever given out by this run of the daemon.
    #[error("no such pairing code")]
    NoSuchCode,
    /// `relay_url` is empty.
    #[error("no relay is configured: set relay_url")]
    NoRelay,
    /// There is no connection to the relay: why.
    #[error("the relay cannot be reached: {0}")]
    RelayUnreachable(String),
    /// The relay did not do its part in time.
    #[error("the relay did not answer in time")]
    RelayTimeout,
    /// `devices.restore` without a backup, or with nothing to restore.
    #[error("there is no backup of devices to restore")]
    NoBackup,
    /// Authorized devices are at the protocol's limit of 64.
    #[error("64 devices are authorized already, which is the limit: revoke one first")]
    TooManyDevices,
    /// The device table was lost and not yet restored or cleared.
    #[error("the device table was lost: confirm with devices.restore or devices.clear first")]
    DevicesUnconfirmed,
    /// The database could not be written; nothing was changed.
    #[error("the state could not be stored: {0}")]
    Storage(String),
    /// The daemon is stopping.
    #[error("the daemon is stopping")]
    Stopping,
}

impl ApiError {
    /// A stable word for programs (socket API, Errors).
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NameTaken(_) => "name_taken",
            Self::InvalidParams(_) => "invalid_params",
            Self::Limit(_) => "limit",
            Self::SessionClosed => "session_closed",
            Self::NoSuchDevice(_) => "no_such_device",
            Self::AmbiguousDevice { .. } => "ambiguous_device",
            Self::BadDevicePrefix => "bad_device_prefix",
            Self::NoSuchItem => "no_such_item",
            Self::NoSuchCode => "no_such_code",
            Self::NoRelay => "no_relay",
            Self::RelayUnreachable(_) => "relay_unreachable",
            Self::RelayTimeout => "relay_timeout",
            Self::NoBackup => "no_backup",
            Self::TooManyDevices => "too_many_devices",
            Self::DevicesUnconfirmed => "devices_unconfirmed",
            Self::Storage(_) => "storage",
            Self::Stopping => "stopping",
        }
    }
}

/// Names one connection of a host, for the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub(crate) u64);

/// Names one call to a host; unique for the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub(crate) u64);

/// What a host says of itself in `hello`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostHello {
    /// `[a-z0-9-]{1,32}`; checked by the hub.
    pub name: String,
    /// The program's own version.
    pub version: String,
    /// Default `agent_label` of its items.
    pub label: Option<String>,
    /// How long its items stay after its connection ended, seconds; default 86,400.
    pub linger_secs: Option<u64>,
}

/// An open host session. Dropping it closes it: the host's items then stay for its `linger_secs`.
#[derive(Debug)]
pub struct HostSession {
    /// For the calls of [`HubHandle`].
    pub id: SessionId,
    /// Calls to make on the host's connection, in order. `None` from `recv`: the hub closed the session; close the
    /// connection.
    pub calls: mpsc::Receiver<HostCall>,
    closings: mpsc::UnboundedSender<SessionId>,
}

impl Drop for HostSession {
    fn drop(&mut self) {
        // An error means that the hub is gone, and the session with it.
        let _ = self.closings.send(self.id);
    }
}

/// A call to make on a host's connection; report the outcome with [`HubHandle::call_done`].
#[derive(Debug)]
pub struct HostCall {
    /// Names the call.
    pub id: CallId,
    /// What to call.
    pub request: HostRequest,
}

/// What a host is asked.
#[derive(Debug)]
pub enum HostRequest {
    /// `ping {}`: is anyone there? Report within 3 s.
    Ping,
    /// `inbox.resolve`; `params` serializes as its parameters.
    Resolve(ResolveParams),
}

/// Parameters of `inbox.resolve` (socket API, Daemon → host). May hold a secret: `Debug` shows no answer, and the JSON
/// that it becomes must be wiped after writing.
#[derive(Clone, Serialize)]
pub struct ResolveParams {
    /// Same for each repetition of this answer.
    pub answer_id: String,
    /// As the host gave it: string or integer.
    pub request_id: RequestId,
    /// Whose answer it is.
    pub device: AnsweringDevice,
    /// The answer.
    #[serde(flatten)]
    pub answer: AnswerContent,
}

impl fmt::Debug for ResolveParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResolveParams").field("answer_id", &self.answer_id).finish_non_exhaustive()
    }
}

/// Who answered. For an answer from the command line: the agent's own key, and the name `skaldctl`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AnsweringDevice {
    /// Its signing key.
    pub pubkey: Ed25519Public,
    /// Its name, from its `hello`; else its platform and the beginning of its key.
    pub name: String,
}

/// The answer to an item. `Debug` shows the kind alone.
#[derive(Clone, PartialEq, Serialize, serde::Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum AnswerContent {
    /// To an approval.
    Approval {
        /// Yes or no.
        decision: skald_common::payload::Decision,
        /// Why.
        reason: Option<String>,
        /// With `approved`: let similar calls pass for so many seconds, 0 to 86,400.
        bypass_secs: Option<u64>,
    },
    /// To a clarification.
    Clarification {
        /// Free text.
        answer: String,
    },
    /// To an elicitation; the content may be a secret.
    Elicitation {
        /// What to do.
        action: ElicitationAction,
        /// With `accept` of a value prompt.
        content: Option<SecretObject>,
    },
}

impl AnswerContent {
    /// Which kind of item it answers.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Approval { .. } => Kind::Approval,
            Self::Clarification { .. } => Kind::Clarification,
            Self::Elicitation { .. } => Kind::Elicitation,
        }
    }
}

impl fmt::Debug for AnswerContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnswerContent({})", self.kind())
    }
}

/// What became of a [`HostCall`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallOutcome {
    /// `ping` was answered, in whatever way.
    Pong,
    /// `inbox.resolve` was answered; `false`: it was no longer pending.
    Resolved(bool),
    /// `inbox.resolve` was answered with an error (its JSON-RPC code), or with something else than `{resolved}`.
    Failed(i64),
}

/// The whole pending set of a host, items as they were written.
#[derive(Debug, Default)]
pub struct InboxSet {
    /// Items of kind approval.
    pub approvals: Vec<RawJson>,
    /// Items of kind clarification.
    pub clarifications: Vec<RawJson>,
    /// Items of kind elicitation.
    pub elicitations: Vec<RawJson>,
}

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
    /// The id that phones see, and that [`HubHandle::inbox_answer`] takes.
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
}

/// A host in `status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostStatus {
    /// Its name.
    pub name: String,
    /// Its own version.
    pub version: String,
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
    /// The last trouble that a person should know of, in words.
    pub last_error: Option<String>,
    /// Things that a person should know of, in words: one line each.
    pub notices: Vec<String>,
}

/// The reply side of a command.
pub(crate) type Responder<T> = oneshot::Sender<Result<T, ApiError>>;

/// What the hub can be asked. Made by [`HubHandle`] alone.
#[derive(Debug)]
pub(crate) enum Command {
    OpenHost(HostHello, Responder<HostSession>),
    InboxSync(SessionId, InboxSet, Responder<()>),
    InboxRequested(SessionId, Kind, RawJson, Responder<()>),
    InboxResolved(SessionId, Kind, RequestId, Responder<()>),
    Notify(skald_common::payload::Notification, Responder<NotificationSent>),
    CallDone(SessionId, CallId, CallOutcome),
    PairingStart(Option<u32>, Responder<PairingStarted>),
    PairingQr(String, Responder<PairingCode>),
    PairingStop(Responder<()>),
    DevicesList(Responder<Vec<DeviceEntry>>),
    DevicesAuthorize(String, Responder<Applied>),
    DevicesRevoke(String, Responder<Applied>),
    DevicesClear(Responder<Applied>),
    DevicesRestore(Responder<Applied>),
    InboxList(Responder<Vec<InboxEntry>>),
    InboxAnswer(String, AnswerContent, Responder<()>),
    Status(Responder<Status>),
    Settings(Settings, Responder<()>),
    Subscribe(Responder<broadcast::Receiver<Event>>),
}

/// The receiving ends of a [`HubHandle`], for the task that owns the hub.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) closings: mpsc::UnboundedReceiver<SessionId>,
    pub(crate) closings_sender: mpsc::UnboundedSender<SessionId>,
}

/// Talks to the hub. Cheap to clone. Every call fails with [`ApiError::Stopping`] once the daemon stops.
#[derive(Debug, Clone)]
pub struct HubHandle {
    commands: mpsc::Sender<Command>,
}

impl HubHandle {
    pub(crate) fn new() -> (Self, Inbox) {
        let (sender, commands) = mpsc::channel(QUEUE);
        let (closings_sender, closings) = mpsc::unbounded_channel();
        (Self { commands: sender }, Inbox { commands, closings, closings_sender })
    }

    async fn ask<T>(&self, command: impl FnOnce(Responder<T>) -> Command) -> Result<T, ApiError> {
        let (sender, receiver) = oneshot::channel();
        self.commands.send(command(sender)).await.map_err(|_| ApiError::Stopping)?;
        receiver.await.map_err(|_| ApiError::Stopping)?
    }

    /// `hello` on the hosts' socket. Takes up to 3 s when the name is taken: the older connection is probed, and closed if
    /// it does not answer.
    pub async fn open_host(&self, hello: HostHello) -> Result<HostSession, ApiError> {
        self.ask(|reply| Command::OpenHost(hello, reply)).await
    }

    /// `inbox.sync`. All or nothing: one bad item refuses the whole set.
    pub async fn inbox_sync(&self, session: SessionId, set: InboxSet) -> Result<(), ApiError> {
        self.ask(|reply| Command::InboxSync(session, set, reply)).await
    }

    /// `inbox.requested`. The same item again is not an error.
    pub async fn inbox_requested(&self, session: SessionId, kind: Kind, item: RawJson) -> Result<(), ApiError> {
        self.ask(|reply| Command::InboxRequested(session, kind, item, reply)).await
    }

    /// `inbox.resolved`. An unknown id is not an error.
    pub async fn inbox_resolved(&self, session: SessionId, kind: Kind, id: RequestId) -> Result<(), ApiError> {
        self.ask(|reply| Command::InboxResolved(session, kind, id, reply)).await
    }

    /// `notification.send`, also `skaldctl notify`.
    pub async fn notify(&self, title: String, body: String) -> Result<NotificationSent, ApiError> {
        let notification = skald_common::payload::Notification { title, body };
        self.ask(|reply| Command::Notify(notification, reply)).await
    }

    /// Reports what became of a [`HostCall`].
    pub async fn call_done(&self, session: SessionId, call: CallId, outcome: CallOutcome) -> Result<(), ApiError> {
        self.commands.send(Command::CallDone(session, call, outcome)).await.map_err(|_| ApiError::Stopping)
    }

    /// `pairing.start`; `ttl` in seconds, at most 600. Waits for the relay, up to 10 s.
    pub async fn pairing_start(&self, ttl: Option<u32>) -> Result<PairingStarted, ApiError> {
        self.ask(|reply| Command::PairingStart(ttl, reply)).await
    }

    /// `pairing.qr`.
    pub async fn pairing_qr(&self, code: String) -> Result<PairingCode, ApiError> {
        self.ask(|reply| Command::PairingQr(code, reply)).await
    }

    /// `pairing.stop`. Without an open window nothing happens.
    pub async fn pairing_stop(&self) -> Result<(), ApiError> {
        self.ask(Command::PairingStop).await
    }

    /// `devices.list`.
    pub async fn devices(&self) -> Result<Vec<DeviceEntry>, ApiError> {
        self.ask(Command::DevicesList).await
    }

    /// `devices.authorize` by key or prefix. Waits for the relay, up to 10 s.
    pub async fn authorize(&self, pubkey: String) -> Result<Applied, ApiError> {
        self.ask(|reply| Command::DevicesAuthorize(pubkey, reply)).await
    }

    /// `devices.revoke` by key or prefix; rejects a pending device. Waits for the relay, up to 10 s.
    pub async fn revoke(&self, pubkey: String) -> Result<Applied, ApiError> {
        self.ask(|reply| Command::DevicesRevoke(pubkey, reply)).await
    }

    /// `devices.clear`: revokes all.
    pub async fn clear_devices(&self) -> Result<Applied, ApiError> {
        self.ask(Command::DevicesClear).await
    }

    /// `devices.restore`: takes the devices of the backup.
    pub async fn restore_devices(&self) -> Result<Applied, ApiError> {
        self.ask(Command::DevicesRestore).await
    }

    /// `inbox.list`, oldest first.
    pub async fn inbox(&self) -> Result<Vec<InboxEntry>, ApiError> {
        self.ask(Command::InboxList).await
    }

    /// `inbox.answer`: `id` as [`InboxEntry::id`] or an unambiguous prefix of it.
    pub async fn inbox_answer(&self, id: String, answer: AnswerContent) -> Result<(), ApiError> {
        self.ask(|reply| Command::InboxAnswer(id, answer, reply)).await
    }

    /// `status`, and what `hello` tells.
    pub async fn status(&self) -> Result<Status, ApiError> {
        self.ask(Command::Status).await
    }

    /// New runtime settings, already validated and written by the caller. Announces changes of security settings to the
    /// authorized devices; redials when `relay_url` changed.
    pub async fn apply_settings(&self, settings: Settings) -> Result<(), ApiError> {
        self.ask(|reply| Command::Settings(settings, reply)).await
    }

    /// `events.subscribe`. A receiver that lags gets `RecvError::Lagged(n)` from `recv`: tell `lagged`, then cut it off.
    pub async fn subscribe(&self) -> Result<broadcast::Receiver<Event>, ApiError> {
        self.ask(Command::Subscribe).await
    }
}

impl HostSession {
    pub(crate) const fn new(
        id: SessionId,
        calls: mpsc::Receiver<HostCall>,
        closings: mpsc::UnboundedSender<SessionId>,
    ) -> Self {
        Self { id, calls, closings }
    }
}
