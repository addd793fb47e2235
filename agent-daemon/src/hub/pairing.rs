//! Pairing windows, and the devices that come through them (socket API, Control).
//!
//! The relay knows the token, so its word that a device has paired counts only while a window of ours is open and unused,
//! and the person who compares fingerprints has the last one.

use std::collections::VecDeque;

use sha2::{Digest, Sha256};
use skald_common::ids::{Ed25519Public, PairingToken, X25519Public};
use skald_common::limits::PAIRING_TTL_MAX_SECS;
use skald_common::pairing::PairingQr;
use skald_common::peer::{Millis, with_namespace};
use skald_common::wire::Platform;

use super::api::{ApiError, DeviceState, PairingCode, PairingStarted, PairingState, Responder};
use super::durable::{DeviceRow, WindowRow, Write};
use super::effects::{Effect, RelayOrder};
use super::events::Event;
use super::{Ctx, Hub, Now};

/// How long `pairing.start` waits for the relay.
const READY_MS: Millis = 10_000;
/// Windows remembered after their end, so that an old picture can say what became of it.
const REMEMBERED: usize = 16;

/// A window of this run of the daemon.
#[derive(Debug)]
struct Window {
    /// Names it; not the token.
    code: String,
    /// Gone once the window is.
    token: Option<PairingToken>,
    expires_at: u64,
    state: PairingState,
}

/// A `pairing.start` that waits for the relay.
#[derive(Debug)]
struct Starting {
    code: String,
    until: Millis,
    reply: Responder<PairingStarted>,
}

/// The windows.
#[derive(Debug, Default)]
pub(crate) struct Pairing {
    windows: VecDeque<Window>,
    /// What is on disk: the window that is open and unused, perhaps from an earlier run.
    open: Option<WindowRow>,
    starting: Option<Starting>,
    /// Devices that were rejected here, whom the relay may announce again when the connection comes back.
    rejected: VecDeque<(Ed25519Public, X25519Public)>,
}

#[cfg(test)]
impl Pairing {
    pub(super) fn sizes(&self) -> [(&'static str, usize, usize); 2] {
        [("windows", self.windows.len(), REMEMBERED), ("rejected devices", self.rejected.len(), REMEMBERED)]
    }
}

/// What a `ClientPaired` means.
#[derive(Debug, PartialEq, Eq)]
enum Arrival {
    /// Nothing new, or not allowed.
    Ignored(&'static str),
    /// An authorized device has paired again with the same keys.
    Again,
    /// A device that waits for a person, or is authorized without one.
    New,
}

impl Hub {
    pub(super) fn load_window(&mut self, window: Option<WindowRow>) {
        self.pairing.open = window;
    }

    pub(super) fn start_pairing(&mut self, ctx: &mut Ctx<'_>, ttl: Option<u32>, reply: Responder<PairingStarted>) {
        let ttl = ttl.unwrap_or(self.settings.pairing_ttl);
        let refused = if ttl == 0 || ttl > PAIRING_TTL_MAX_SECS {
            Some(ApiError::InvalidParams(format!("ttl must be 1 to {PAIRING_TTL_MAX_SECS} seconds")))
        } else {
            self.relay.unreachable(&self.settings)
        };
        if let Some(error) = refused {
            return self.reply(reply, Err(error));
        }
        self.close_windows(PairingState::Superseded);
        self.fail_pairing_start(&ApiError::Limit("a newer pairing.start has replaced this one".into()));
        let token = PairingToken::new(ctx.bytes());
        let code = hex::encode(ctx.bytes::<16>());
        let expires_at = ctx.now.unix + u64::from(ttl) * 1000;
        self.set_open(Some(WindowRow { token_hash: hash(&token), expires_at }));
        self.effect(Effect::Relay(RelayOrder::StartPairing { token: token.clone(), ttl }));
        if self.pairing.windows.len() == REMEMBERED {
            self.pairing.windows.pop_front();
        }
        let window = Window { code: code.clone(), token: Some(token), expires_at, state: PairingState::Active };
        self.pairing.windows.push_back(window);
        self.emit(Event::PairingChanged { code: code.clone(), state: PairingState::Active });
        self.pairing.starting = Some(Starting { code, until: ctx.now.mono + READY_MS, reply });
    }

    /// The relay has opened the window, for so many seconds.
    pub(super) fn pairing_ready(&mut self, ttl: u32, now: Now) {
        let Some(starting) = self.pairing.starting.take() else { return };
        let Some(window) = self.pairing.windows.iter_mut().find(|window| window.code == starting.code) else { return };
        window.expires_at = now.unix + u64::from(ttl) * 1000;
        let (code, expires_at) = (window.code.clone(), window.expires_at);
        if let Some(open) = self.pairing.open {
            self.set_open(Some(WindowRow { expires_at, ..open }));
        }
        self.reply(starting.reply, Ok(PairingStarted { code, expires_at }));
    }

    pub(super) fn stop_pairing(&mut self) {
        if self.pairing.open.is_none() {
            return;
        }
        self.close_windows(PairingState::Expired);
        if self.relay.is_connected() {
            self.effect(Effect::Relay(RelayOrder::StopPairing));
        }
    }

    pub(super) fn pairing_code(&self, now: Now, code: &str) -> Result<PairingCode, ApiError> {
        let window = self.pairing.windows.iter().find(|window| window.code == code).ok_or(ApiError::NoSuchCode)?;
        let state = match window.state {
            PairingState::Active if window.expires_at <= now.unix => PairingState::Expired,
            state => state,
        };
        let json = match (&window.token, state) {
            (Some(token), PairingState::Active) => {
                let names = &self.names;
                let qr = PairingQr::new(self.pairing_url(), names.ed25519, names.x25519, token.clone());
                Some(qr.to_json())
            }
            _ => None,
        };
        Ok(PairingCode { state, json })
    }

    /// Where phones are sent: `qr_url`, or the address that worked.
    fn pairing_url(&self) -> String {
        match &self.settings.qr_url {
            Some(url) => with_namespace(url, &self.names.namespace),
            None => self.relay.url(&self.settings).to_owned(),
        }
    }

    /// The relay says that a device has used the window's token.
    pub(super) fn client_paired(
        &mut self,
        ctx: &mut Ctx<'_>,
        ed25519: Ed25519Public,
        x25519: X25519Public,
        platform: Platform,
    ) {
        match self.arrival(ctx.now, &ed25519, &x25519) {
            Arrival::Ignored(why) => {
                tracing::info!(device = %ed25519.short(), why, "pairing announced by the relay ignored");
                if self.devices.get(&ed25519).is_some_and(super::devices::Device::is_authorized) {
                    // The relay holds it as pending now, and would let nothing through to it until it is told again; and what
                    // waited for it there is gone.
                    self.mark_stale(&ed25519);
                    self.tell_relay_list();
                }
                return;
            }
            Arrival::Again => self.paired_again(ctx, ed25519, platform),
            Arrival::New => self.paired_new(ctx, ed25519, x25519, platform),
        }
        self.pairing.rejected.retain(|(key, _)| *key != ed25519);
        self.close_windows(PairingState::Consumed);
    }

    fn arrival(&self, now: Now, ed25519: &Ed25519Public, x25519: &X25519Public) -> Arrival {
        if *ed25519 == self.names.ed25519 {
            return Arrival::Ignored("the agent's own key");
        }
        if self.pairing.open.is_none_or(|window| window.expires_at <= now.unix) {
            return Arrival::Ignored("no window of ours is open");
        }
        // Before it has taken our list, the relay repeats whom it still holds as pending.
        let repeated = !self.relay.is_settled();
        if repeated && self.pairing.rejected.contains(&(*ed25519, *x25519)) {
            return Arrival::Ignored("it was rejected");
        }
        match self.devices.get(ed25519) {
            Some(known) if known.row.x25519 != *x25519 => Arrival::New,
            Some(known) if known.is_authorized() => Arrival::Again,
            Some(_) if repeated => Arrival::Ignored("it is known and waits"),
            _ => Arrival::New,
        }
    }

    /// Same keys, so the same session key: the device begins to count anew, this side never does.
    fn paired_again(&mut self, ctx: &mut Ctx<'_>, key: Ed25519Public, platform: Platform) {
        let Some(device) = self.devices.get(&key) else { return };
        let mut row = device.row.clone();
        row.received = 0;
        row.platform = platform;
        row.stale = true;
        self.put_device(row);
        self.set_partner(key, ctx.now);
        // The relay holds it as pending until it is told again.
        self.tell_relay_list();
        let device = self.device_words(&key);
        self.announce(ctx, Some(key), &format!("{device} has paired again with the same keys."));
        self.tell_paired(key, true);
    }

    fn paired_new(&mut self, ctx: &mut Ctx<'_>, ed25519: Ed25519Public, x25519: X25519Public, platform: Platform) {
        let replaced = self.devices.get(&ed25519).is_some();
        if replaced {
            // Other keys under a known name: nothing of the old device is left to trust.
            self.remove_device(ed25519);
        }
        self.put_device(DeviceRow {
            ed25519,
            x25519,
            state: DeviceState::Pending,
            platform,
            info: None,
            paired_at: ctx.now.unix,
            last_seen: None,
            reserved: 0,
            received: 0,
            stale: false,
        });
        let authorized = !self.settings.require_device_confirmation && self.authorize_key(ctx, ed25519).is_ok();
        let device = self.device_words(&ed25519);
        let announcement = if authorized {
            format!("{device} has paired and may now read your inbox and answer.")
        } else {
            format!("{device} has paired and waits for your OK on the computer.")
        };
        self.announce(ctx, Some(ed25519), &announcement);
        self.tell_paired(ed25519, authorized);
    }

    fn tell_paired(&mut self, pubkey: Ed25519Public, authorized: bool) {
        if let Some(device) = self.devices.get(&pubkey) {
            let fingerprint = device.fingerprint();
            self.emit(Event::DevicePaired { pubkey, fingerprint, authorized });
        }
    }

    /// A pending device was turned away: it needs a new window.
    pub(super) fn reject_pairing(&mut self, row: &DeviceRow) {
        if self.pairing.rejected.len() == REMEMBERED {
            self.pairing.rejected.pop_front();
        }
        self.pairing.rejected.push_back((row.ed25519, row.x25519));
    }

    /// Ends the open window, if there is one.
    fn close_windows(&mut self, state: PairingState) {
        let active = self.pairing.windows.iter_mut().filter(|window| window.state == PairingState::Active);
        let mut codes = Vec::new();
        for window in active {
            window.state = state;
            window.token = None;
            codes.push(window.code.clone());
        }
        for code in codes {
            self.emit(Event::PairingChanged { code, state });
        }
        if self.pairing.open.is_some() {
            self.set_open(None);
        }
    }

    fn set_open(&mut self, open: Option<WindowRow>) {
        self.pairing.open = open;
        self.write(Write::SetWindow(open));
    }

    /// The window that was asked for does not come about.
    pub(super) fn pairing_start_failed(&mut self, error: &ApiError) {
        if self.pairing.starting.is_some() {
            self.fail_pairing_start(error);
            self.close_windows(PairingState::Expired);
        }
    }

    pub(super) fn fail_pairing_start(&mut self, error: &ApiError) {
        if let Some(starting) = self.pairing.starting.take() {
            // An asker that has gone does not mind.
            let _ = starting.reply.send(Err(error.clone()));
        }
    }

    pub(super) fn pairing_deadline(&self, now: Now) -> Option<Millis> {
        let ready = self.pairing.starting.as_ref().map(|starting| starting.until);
        let expiry = self.pairing.open.map(|window| now.mono_at(window.expires_at));
        ready.into_iter().chain(expiry).min()
    }

    pub(super) fn pairing_timeouts(&mut self, ctx: &Ctx<'_>) {
        if self.pairing.starting.as_ref().is_some_and(|starting| starting.until <= ctx.now.mono) {
            self.pairing_start_failed(&ApiError::RelayTimeout);
            self.effect(Effect::Relay(RelayOrder::StopPairing));
        }
        if self.pairing.open.is_some_and(|window| window.expires_at <= ctx.now.unix) {
            self.close_windows(PairingState::Expired);
        }
    }
}

fn hash(token: &PairingToken) -> [u8; 32] {
    Sha256::digest(token.expose()).into()
}
