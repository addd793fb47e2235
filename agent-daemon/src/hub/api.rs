//! How other tasks talk to the hub: a cloneable [`HubHandle`], the commands behind it, and their answers and errors.
//!
//! Each call is one `Command` in a bounded queue with a oneshot for the reply; a full queue makes callers wait, which is
//! the back-pressure on socket clients. Replies come after what they promise is on disk. Nothing here knows JSON-RPC: the
//! socket server maps [`ApiError`] to codes, and its requests to these calls (socket API, all sections).

mod error;
mod hosts;
mod results;

pub use error::ApiError;
pub use hosts::{
    AnswerContent, AnsweringDevice, CallId, CallOutcome, HostCall, HostHello, HostRequest, HostSession, ResolveParams,
    SessionId,
};
pub use results::{
    Applied, DeviceCounts, DeviceEntry, DeviceState, DeviceTable, HostStatus, InboxEntry, NotificationSent,
    PairingCode, PairingStarted, PairingState, PendingCounts, ProxyStatus, PushState, RelayStatus, Status,
    TunnelStatus,
};
use skald_common::payload::RawJson;
use tokio::sync::{broadcast, mpsc, oneshot};

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
    /// Port of the web page on 127.0.0.1 that authorized devices may reach through pipes; `None`: no page.
    pub web_port: Option<u16>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            relay_url: String::new(),
            qr_url: None,
            pairing_ttl: skald_common::limits::PAIRING_TTL_SECS,
            require_device_confirmation: true,
            notify_delay_secs: 20,
            web_port: None,
        }
    }
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
