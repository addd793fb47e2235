//! What the hub knows of the relay connection, what comes over it, and what a change of settings means for it.

use skald_common::ids::{ConnectionId, Ed25519Public, X25519Public};
use skald_common::payload::{DeviceInfo, ElicitationAction, Payload, PayloadError, ToAgent};
use skald_common::wire::{Platform, Push};
use zeroize::Zeroizing;

use super::api::{AnswerContent, ApiError, RelayStatus, Settings};
use super::effects::{Effect, RelayOrder, Token};
use super::events::Event;
use super::{Ctx, Hub, Now};

/// Something from the relay connection.
#[derive(Debug)]
pub(crate) enum RelayInput {
    /// The handshake is done. `tells_push`: this relay says what pushing to devices comes to.
    Connected { url: String, tells_push: bool },
    /// There is no connection any more, or none came about.
    Disconnected { why: String, parked: bool },
    /// The relay has taken every list it was told.
    Authorized,
    /// The pairing window is open.
    PairingReady { ttl: u32 },
    /// A device has used the window, so the relay says.
    ClientPaired { ed25519: Ed25519Public, x25519: X25519Public, platform: Platform },
    /// A device's message was opened. The step's writes must be on disk before it is acknowledged.
    Message { from: Ed25519Public, counter: u64, json: Zeroizing<Vec<u8>> },
    /// A device's signal about a pipe was opened. As with a message, the step's writes come first.
    Signal { from: Ed25519Public, counter: u64, signal: Zeroizing<Vec<u8>> },
    /// A signal about this pipe did not get through.
    SignalFailed(ConnectionId),
    /// The relay has a payload. `queued`: its recipient is away; `None`: this relay does not say.
    Accepted { token: Token, queued: Option<bool> },
    /// A payload did not get through.
    Failed { token: Token, why: Failure },
    /// A member came or went.
    Presence(Ed25519Public, bool),
    /// Everyone who is connected.
    PresenceList(Vec<Ed25519Public>),
    /// What pushing to these devices has come to.
    PushStatus(Vec<(Ed25519Public, Push)>),
    /// A live payload did not reach this device (relays without receipts).
    Offline(Ed25519Public),
    /// The relay complained of something else.
    Complaint(String),
    /// Counters up to this one are about to be used.
    Reserve { device: Ed25519Public, upto: u64 },
    /// No key can be agreed with this device.
    PartnerRefused(Ed25519Public),
    /// The connection's engine is begun anew: whatever was under way is lost.
    Reset,
}

/// Why a payload did not get through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A live payload found nobody.
    Offline,
    /// Too much at once.
    RateLimited,
    /// The recipient's queue is full.
    QueueFull,
    /// The relay does not know the recipient as authorized.
    NotFound,
    /// Anything else: sending it again would not help.
    Other,
}

/// The connection.
#[derive(Debug)]
pub(crate) struct Relay {
    /// The address that worked last.
    worked: Option<String>,
    connected: bool,
    /// It has taken our list since it connected.
    settled: bool,
    parked: bool,
    since: u64,
    last_error: Option<String>,
}

impl Relay {
    pub(crate) const fn new(now: Now) -> Self {
        Self { worked: None, connected: false, settled: false, parked: false, since: now.unix, last_error: None }
    }

    pub(crate) const fn is_connected(&self) -> bool {
        self.connected
    }

    pub(crate) const fn is_settled(&self) -> bool {
        self.settled
    }

    pub(crate) const fn is_parked(&self) -> bool {
        self.parked
    }

    /// The address that worked, or else the one that is configured.
    pub(crate) fn url<'a>(&'a self, settings: &'a Settings) -> &'a str {
        self.worked.as_deref().unwrap_or(&settings.relay_url)
    }

    /// Why nothing can be asked of the relay now.
    pub(crate) fn unreachable(&self, settings: &Settings) -> Option<ApiError> {
        if self.connected {
            None
        } else if settings.relay_url.is_empty() {
            Some(ApiError::NoRelay)
        } else {
            let why = self.last_error.clone().unwrap_or_else(|| "still connecting".into());
            Some(ApiError::RelayUnreachable(why))
        }
    }

    pub(crate) fn status(&self, settings: &Settings) -> RelayStatus {
        RelayStatus {
            url: self.url(settings).to_owned(),
            connected: self.connected,
            since: self.since,
            last_error: self.last_error.clone(),
            parked: self.parked,
        }
    }

    fn ended(&mut self, now: Now) {
        if self.connected {
            self.since = now.unix;
        }
        self.connected = false;
        self.settled = false;
    }
}

impl Hub {
    /// Connects with the configured relay, if there is one.
    pub(super) fn connect(&mut self, now: Now) {
        if self.settings.relay_url.is_empty() {
            return self.effect(Effect::Relay(RelayOrder::Disconnect));
        }
        let url = self.settings.relay_url.clone();
        let (partners, authorized) = (self.devices.partners(now), self.devices.list());
        self.effect(Effect::Relay(RelayOrder::Connect { url, partners, authorized }));
    }

    pub(super) fn apply_settings(&mut self, ctx: &mut Ctx<'_>, settings: Settings) {
        let old = std::mem::replace(&mut self.settings, settings);
        let new = &self.settings;
        let mut changes = Vec::new();
        if old.require_device_confirmation != new.require_device_confirmation {
            changes.push(if new.require_device_confirmation {
                "New devices must now be confirmed on the computer.".to_owned()
            } else {
                "New devices are now authorized without confirmation.".to_owned()
            });
        }
        if old.relay_url != new.relay_url {
            changes.push(format!("The relay is now {:?}.", new.relay_url));
        }
        if old.qr_url != new.qr_url {
            changes.push("The address in pairing codes has changed.".to_owned());
        }
        if old.web_port != new.web_port {
            changes.push(match new.web_port {
                Some(port) => format!("Authorized devices can now reach the web page on port {port} of the computer."),
                None => "Devices can no longer reach the web page of the computer.".to_owned(),
            });
        }
        for change in changes {
            self.announce(ctx, None, &change);
        }
        if (&old.relay_url, old.web_port) != (&self.settings.relay_url, self.settings.web_port) {
            self.proxy_changed(ctx);
        }
        if old.relay_url != self.settings.relay_url {
            self.relay_reset(ctx.now);
            // Another relay has other credentials, and other tokens.
            self.devices.forget_push();
            self.relay.worked = None;
            self.relay.last_error = None;
            self.relay.parked = false;
            self.connect(ctx.now);
        }
    }

    pub(super) fn relay_input(&mut self, ctx: &mut Ctx<'_>, input: RelayInput) {
        match input {
            RelayInput::Connected { url, tells_push } => self.relay_connected(ctx.now, url, tells_push),
            RelayInput::Disconnected { why, parked } => self.relay_disconnected(ctx.now, why, parked),
            RelayInput::Authorized => {
                self.relay.settled = true;
                self.list_applied(true);
                self.retry_unknown_devices(ctx.now);
            }
            RelayInput::PairingReady { ttl } => self.pairing_ready(ttl, ctx.now),
            RelayInput::ClientPaired { ed25519, x25519, platform } => {
                self.client_paired(ctx, ed25519, x25519, platform);
            }
            RelayInput::Message { from, counter, json } => self.message(ctx, from, counter, &json),
            RelayInput::Signal { from, counter, signal } => self.signal(ctx, from, counter, &signal),
            RelayInput::SignalFailed(connection) => self.signal_failed(ctx, connection),
            RelayInput::Accepted { token, queued } => self.accepted(ctx, token, queued),
            RelayInput::Failed { token, why } => self.failed(ctx.now, token, why),
            RelayInput::Presence(key, online) => self.presence(key, online, ctx.now),
            RelayInput::PresenceList(online) => self.presence_list(&online, ctx.now),
            RelayInput::PushStatus(states) => self.push_status(&states),
            RelayInput::Offline(key) => self.live_missed(&key),
            RelayInput::Complaint(code) => self.relay_complaint(&code),
            RelayInput::Reserve { device, upto } => self.reserve(device, upto),
            RelayInput::PartnerRefused(key) => self.partner_refused(key, ctx.now),
            RelayInput::Reset => {
                self.relay_reset(ctx.now);
                self.connect(ctx.now);
            }
        }
    }

    fn relay_connected(&mut self, now: Now, url: String, tells_push: bool) {
        let relay = &mut self.relay;
        (relay.connected, relay.settled, relay.parked) = (true, false, false);
        relay.since = now.unix;
        relay.last_error = None;
        relay.worked = Some(url.clone());
        if !tells_push {
            self.devices.forget_push();
        }
        self.effect(Effect::Relay(RelayOrder::RequestPresence));
        self.emit(Event::RelayConnected { url });
    }

    fn relay_disconnected(&mut self, now: Now, why: String, parked: bool) {
        self.relay.ended(now);
        self.relay.parked = parked;
        self.relay.last_error = Some(why.clone());
        self.list_applied(false);
        self.pairing_start_failed(&ApiError::RelayUnreachable(why.clone()));
        self.presence_list(&[], now);
        self.emit(Event::RelayDisconnected { reason: why, parked });
    }

    /// What was on its way to the relay will not arrive.
    fn relay_reset(&mut self, now: Now) {
        self.relay.ended(now);
        self.list_applied(false);
        self.pairing_start_failed(&ApiError::RelayUnreachable("the connection is begun anew".into()));
        self.presence_list(&[], now);
        self.pushes_reset();
    }

    /// Errors that belong to no payload: the only thing under way that has no number is the opening of a window.
    fn relay_complaint(&mut self, code: &str) {
        self.relay.last_error = Some(format!("the relay complains: {code}"));
        self.pairing_start_failed(&ApiError::RelayUnreachable(format!("it refused: {code}")));
    }

    /// A message of a device, opened. Whatever it says, its counter is used up.
    fn message(&mut self, ctx: &mut Ctx<'_>, from: Ed25519Public, counter: u64, json: &[u8]) {
        let Some(device) = self.devices.authorized_mut(&from) else { return };
        if counter <= device.row.received {
            return;
        }
        device.online = true;
        self.received(from, counter, ctx.now);
        let payload = match parse(json, ctx.now) {
            Ok(payload) => payload,
            Err(error) => {
                tracing::warn!(device = %from.short(), %error, "payload dropped");
                return;
            }
        };
        let Payload { id, ts, content } = payload;
        self.heard_date(ts, ctx.now);
        let before = self.devices.get(&from).and_then(|device| device.recent(&id));
        if let Some(outcome) = before.map(|recent| recent.outcome) {
            return self.repeated(ctx, from, &id, outcome);
        }
        let (item, answer) = match content {
            ToAgent::Hello(hello) => return self.hello_from(from, &id, &hello.device_info),
            ToAgent::InboxRequest => return self.send_live(ctx, from, false),
            ToAgent::Logout => return self.remove_device(from),
            ToAgent::Ack(_) => return,
            ToAgent::ApprovalResponse(response) => {
                let (decision, reason, bypass_secs) = (response.decision, response.reason, response.bypass_secs);
                (response.request_id, AnswerContent::Approval { decision, reason, bypass_secs })
            }
            ToAgent::ClarificationResponse(response) => {
                (response.request_id, AnswerContent::Clarification { answer: response.answer })
            }
            ToAgent::ElicitationResponse(response) => {
                let content = response.content.filter(|_| response.action == ElicitationAction::Accept);
                (response.request_id, AnswerContent::Elicitation { action: response.action, content })
            }
        };
        self.answer_from_device(ctx, from, &id, ts, &item, answer);
    }

    fn hello_from(&mut self, from: Ed25519Public, id: &str, info: &DeviceInfo) {
        self.hello(from, info);
        if let Some(device) = self.devices.get_mut(&from) {
            device.remember(id, None);
        }
    }
}

/// Reads a payload. Its age is not judged by a clock that is known to be wrong.
fn parse(json: &[u8], now: Now) -> Result<Payload<ToAgent>, PayloadError> {
    #[derive(serde::Deserialize)]
    struct Sent {
        ts: u64,
    }
    let clock = match serde_json::from_slice::<Sent>(json) {
        Ok(sent) if !now.is_trusted() => sent.ts,
        _ => now.unix,
    };
    Payload::parse(json, clock)
}
