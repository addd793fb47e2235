//! Who may have a tunnel to the web page of this machine, and when one ends: the rules of `http-local-proxy` (pipe
//! protocol). Bytes pass elsewhere ([`crate::tunnels`]); here is the negotiation, and the list of what is open.
//!
//! A tunnel begins with a device's invite, goes on when the local server has answered, and ends with its pipe, its server,
//! its device's authorization, or the setting. The server is the one on 127.0.0.1 and [`Settings::web_port`]; nothing that
//! a device says has a part in that.

use std::collections::BTreeMap;

use skald_common::ids::{ConnectionId, Ed25519Public};
use skald_common::limits::PIPE_MAX_PER_NAMESPACE;
use skald_common::peer::Millis;
use skald_common::pipe::{Agreed, InvitationGone, PipeOutput, Pipes};
use zeroize::Zeroizing;

use super::api::{ProxyStatus, Settings, TunnelStatus};
use super::devices::{Device, Devices};
use super::effects::Effect;
use super::{Ctx, Hub};

/// The one kind of pipe that the daemon knows.
const STREAM_TYPE: &str = "http-local-proxy";
/// Tunnels of all devices, those included whose server has not answered yet: what a relay lets through.
pub(crate) const MAX_TUNNELS: usize = PIPE_MAX_PER_NAMESPACE;

/// Why a device gets no tunnel, in words that it shows.
const DISABLED: &str = "proxy disabled";
const UNREACHABLE: &str = "local server unreachable";
const TOO_MANY: &str = "too many tunnels";

/// Something for the tunnels' thread.
#[derive(Debug)]
pub(crate) enum TunnelOrder {
    /// Connect to the server on this port of 127.0.0.1, and say what came of it.
    Dial { connection: ConnectionId, port: u16 },
    /// Join the pipe by way of the relay at this control address, and pass bytes until the end.
    Open { url: String, agreed: Box<Agreed> },
    /// End it at once, in whatever state it is; nothing more is to be said of it.
    End(ConnectionId),
}

/// What the tunnels' thread says. Of a tunnel that the hub has ended it may still say one thing, which means nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TunnelNews {
    /// The connection to the server stands.
    Dialled(ConnectionId),
    /// It does not.
    Refused(ConnectionId),
    /// The tunnel has ended.
    Ended(ConnectionId),
}

/// Bytes that have passed through each tunnel: to the device, and from it.
pub(crate) type Passed = BTreeMap<ConnectionId, (u64, u64)>;

/// The tunnels.
#[derive(Debug)]
pub(crate) struct Tunnels {
    table: Pipes,
    open: BTreeMap<ConnectionId, Tunnel>,
}

#[derive(Debug, Clone, Copy)]
struct Tunnel {
    device: Ed25519Public,
    /// Unix milliseconds.
    since: u64,
    /// The pipe is agreed on.
    agreed: bool,
}

impl Tunnels {
    pub(super) fn new() -> Self {
        let mut table = Pipes::new();
        table.set_listening(true);
        Self { table, open: BTreeMap::new() }
    }

    /// See [`Hub::sizes`].
    #[cfg(test)]
    pub(super) fn sizes(&self) -> Vec<(&'static str, usize, usize)> {
        vec![("tunnels", self.open.len(), MAX_TUNNELS)]
    }

    pub(super) fn status(&self, settings: &Settings, devices: &Devices, passed: &Passed) -> ProxyStatus {
        let mut tunnels: BTreeMap<Ed25519Public, TunnelStatus> = BTreeMap::new();
        for (connection, tunnel) in self.open.iter().filter(|(_, tunnel)| tunnel.agreed) {
            let status = tunnels.entry(tunnel.device).or_insert_with(|| TunnelStatus {
                device: tunnel.device,
                name: devices.get(&tunnel.device).map(Device::name).unwrap_or_default(),
                open: 0,
                since: tunnel.since,
                to_device: 0,
                from_device: 0,
            });
            let (to_device, from_device) = passed.get(connection).copied().unwrap_or_default();
            status.open += 1;
            status.since = status.since.min(tunnel.since);
            status.to_device += to_device;
            status.from_device += from_device;
        }
        ProxyStatus { web_port: settings.web_port, tunnels: tunnels.into_values().collect() }
    }
}

impl Hub {
    /// A device's signal, opened. Its counter is used up, whatever it says.
    pub(super) fn signal(&mut self, ctx: &mut Ctx<'_>, from: Ed25519Public, counter: u64, signal: &[u8]) {
        let Some(device) = self.devices.authorized_mut(&from) else { return };
        if counter <= device.row.received {
            return;
        }
        device.online = true;
        self.received(from, counter, ctx.now);
        if let Err(why) = self.tunnels.table.on_signal(ctx.now.mono, from, signal) {
            tracing::debug!(device = %from.short(), %why, "a pipe signal changes nothing");
        }
        self.negotiate(ctx);
    }

    /// A signal did not reach its device, or never will.
    pub(super) fn signal_failed(&mut self, ctx: &mut Ctx<'_>, connection: ConnectionId) {
        self.end_tunnels(|of, _| *of == connection);
        self.negotiate(ctx);
    }

    pub(super) fn tunnel_news(&mut self, ctx: &mut Ctx<'_>, news: TunnelNews) {
        match news {
            TunnelNews::Dialled(connection) => {
                // The invitation is gone if the tunnel is.
                let secret = Zeroizing::new(ctx.bytes());
                self.answered(connection, |table| table.accept(&connection, &secret));
            }
            TunnelNews::Refused(connection) => {
                if self.tunnels.open.remove(&connection).is_some() {
                    self.answered(connection, |table| table.reject(&connection, UNREACHABLE));
                }
            }
            TunnelNews::Ended(connection) => drop(self.tunnels.open.remove(&connection)),
        }
        self.negotiate(ctx);
    }

    pub(super) fn tunnels_deadline(&self) -> Option<Millis> {
        self.tunnels.table.deadline()
    }

    pub(super) fn tunnels_timeouts(&mut self, ctx: &mut Ctx<'_>) {
        self.tunnels.table.on_timeout(ctx.now.mono);
        self.negotiate(ctx);
    }

    /// Ends every tunnel of a device, and what it was about to open.
    pub(super) fn end_tunnels_of(&mut self, device: &Ed25519Public) {
        self.tunnels.table.forget(device);
        self.end_tunnels(|_, of| of == device);
    }

    /// The proxy is another one, or none.
    pub(super) fn proxy_changed(&mut self, ctx: &mut Ctx<'_>) {
        let unanswered = self.tunnels.open.iter().filter(|(_, tunnel)| !tunnel.agreed);
        for connection in unanswered.map(|(connection, _)| *connection).collect::<Vec<_>>() {
            self.answered(connection, |table| table.reject(&connection, DISABLED));
        }
        self.end_tunnels(|_, _| true);
        self.negotiate(ctx);
    }

    fn end_tunnels(&mut self, which: impl Fn(&ConnectionId, &Ed25519Public) -> bool) {
        let ended: Vec<_> =
            self.tunnels.open.extract_if(.., |connection, tunnel| which(connection, &tunnel.device)).collect();
        for (connection, _) in ended {
            self.effect(Effect::Tunnel(TunnelOrder::End(connection)));
        }
    }

    /// Works off what the negotiation has to say.
    fn negotiate(&mut self, ctx: &mut Ctx<'_>) {
        while let Some(output) = self.tunnels.table.poll() {
            match output {
                PipeOutput::Send { to, connection, signal } => {
                    self.effect(Effect::Signal { to, connection, signal });
                }
                PipeOutput::Invited { from, connection, stream_type, .. } => {
                    self.invited(ctx, from, connection, &stream_type);
                }
                PipeOutput::Opened(agreed) => self.agreed(agreed),
                PipeOutput::Failed { connection, .. } => self.end_tunnels(|of, _| *of == connection),
            }
        }
    }

    fn invited(&mut self, ctx: &Ctx<'_>, device: Ed25519Public, connection: ConnectionId, stream_type: &str) {
        // Another consumer's, if there ever is one.
        if stream_type != STREAM_TYPE {
            return self.answered(connection, |table| table.ignore(&connection));
        }
        let Some(port) = self.settings.web_port else {
            return self.answered(connection, |table| table.reject(&connection, DISABLED));
        };
        if self.tunnels.open.len() >= MAX_TUNNELS {
            return self.answered(connection, |table| table.reject(&connection, TOO_MANY));
        }
        self.tunnels.open.insert(connection, Tunnel { device, since: ctx.now.unix, agreed: false });
        self.effect(Effect::Tunnel(TunnelOrder::Dial { connection, port }));
    }

    /// Answers an invitation. One that is gone has no tunnel any more.
    fn answered(&mut self, connection: ConnectionId, answer: impl FnOnce(&mut Pipes) -> Result<(), InvitationGone>) {
        if answer(&mut self.tunnels.table).is_err() {
            self.end_tunnels(|of, _| *of == connection);
        }
    }

    fn agreed(&mut self, agreed: Agreed) {
        let Some(tunnel) = self.tunnels.open.get_mut(&agreed.connection) else { return };
        tunnel.agreed = true;
        let url = self.relay.url(&self.settings).to_owned();
        self.effect(Effect::Tunnel(TunnelOrder::Open { url, agreed: Box::new(agreed) }));
    }
}
