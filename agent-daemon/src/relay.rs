//! The relay connection's I/O: drives the shared engine over a WebSocket and turns what it says into inputs of the hub.
//!
//! One engine at a time. What must be on the disk first comes out as [`FromRelay::Hub`] before the bytes behind it are
//! written, because outputs are taken in order and one at a time.

use std::collections::HashMap;

use skald_common::crypto::{Identity, Seed};
use skald_common::framing::Body;
use skald_common::ids::{ConnectionId, Ed25519Public, NamespaceId};
use skald_common::peer::{
    Config, Delivery, Event, Millis, Output, Partner, Peer, Receipt, Role, Routes, SendError, SendFailure, SendId,
};
use skald_common::wire::{ErrorCode, Features};
use skald_link::{Link, LinkEvent, feed};

use crate::hub::effects::{RelayOrder, Token};
use crate::hub::{Failure, RelayInput};

/// What comes from the connection.
#[derive(Debug)]
pub(crate) enum FromRelay {
    /// For the hub. With a receipt: to be accepted or rejected afterwards.
    Hub(RelayInput, Option<Receipt>),
    /// Counters that must be on the disk before anything else is sent.
    Reserve(RelayInput),
}

/// What the connection sends and dials through: a [`Link`], unless a test has something else in mind.
pub(crate) trait Socket {
    /// Carries out what is the socket's to do; gives back what is not.
    fn carry_out(&mut self, output: Output) -> Option<Output>;
    /// Closes it; nothing more of it is heard.
    fn close(&mut self);
}

impl Socket for Link {
    fn carry_out(&mut self, output: Output) -> Option<Output> {
        Self::carry_out(self, output)
    }

    fn close(&mut self) {
        Self::close(self);
    }
}

/// What was given to the engine.
#[derive(Debug, Clone, Copy)]
enum Sent {
    Payload(Token),
    /// About this pipe.
    Signal(ConnectionId),
}

/// The connection.
#[derive(Debug)]
pub(crate) struct Connection<L> {
    seed: Seed,
    namespace: NamespaceId,
    peer: Option<Peer>,
    link: L,
    sends: HashMap<SendId, Sent>,
    /// After a rejected message, what else came over that connection is not looked at: it will come again, in order.
    rejecting: bool,
}

impl Connection<Link> {
    /// The next socket event; for ever pending without a socket. Cancel safe.
    pub(crate) async fn next(&mut self) -> LinkEvent {
        self.link.next().await
    }

    /// Says goodbye to the relay.
    pub(crate) async fn finish(&mut self) {
        self.peer = None;
        self.link.finish().await;
    }
}

impl<L: Socket> Connection<L> {
    pub(crate) fn new(seed: Seed, link: L) -> Self {
        let namespace = Identity::new(&seed).namespace_id();
        Self { seed, namespace, peer: None, link, sends: HashMap::new(), rejecting: false }
    }

    pub(crate) fn feed(&mut self, now: Millis, event: LinkEvent) {
        if let Some(peer) = &mut self.peer {
            feed(peer, now, event);
        }
    }

    pub(crate) fn deadline(&self) -> Option<Millis> {
        self.peer.as_ref().and_then(Peer::deadline)
    }

    pub(crate) fn on_timeout(&mut self, now: Millis) {
        if let Some(peer) = &mut self.peer {
            peer.on_timeout(now);
        }
    }

    /// Writes what is to be written, up to the next thing that is not this module's.
    pub(crate) fn poll(&mut self) -> Option<FromRelay> {
        while let Some(output) = self.peer.as_mut()?.poll_output() {
            match self.link.carry_out(output) {
                Some(Output::Reserve { peer: device, upto }) => {
                    return Some(FromRelay::Reserve(RelayInput::Reserve { device, upto }));
                }
                Some(Output::Event(event)) => {
                    if let Some(found) = self.translate(event) {
                        return Some(found);
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// The message is on the disk with all that it did.
    pub(crate) fn accept(&mut self, now: Millis, receipt: Receipt) {
        if let Some(peer) = &mut self.peer {
            peer.accept(now, receipt);
        }
    }

    /// The message could not be stored: the relay keeps it.
    pub(crate) fn reject(&mut self, now: Millis, receipt: Receipt) {
        if let Some(peer) = &mut self.peer {
            self.rejecting = peer.is_connected();
            peer.reject(now, receipt);
        }
    }

    /// Seals and sends; an error is a failure like one that the relay reports.
    pub(crate) fn send(
        &mut self,
        now: Millis,
        token: Token,
        to: &Ed25519Public,
        json: &[u8],
        delivery: Delivery,
    ) -> Result<(), Failure> {
        let peer = self.peer.as_mut().ok_or(Failure::Offline)?;
        match peer.send(now, to, json, delivery) {
            Ok(id) => {
                self.sends.insert(id, Sent::Payload(token));
                Ok(())
            }
            Err(SendError::NotConnected) => Err(Failure::Offline),
            Err(SendError::Full) => Err(Failure::RateLimited),
            Err(error @ (SendError::UnknownPartner | SendError::TooLarge { .. } | SendError::Tag)) => {
                tracing::error!(device = %to.short(), %error, "a payload cannot be sent");
                Err(Failure::Other)
            }
        }
    }

    /// Seals and sends a signal about a pipe. The input that comes back, if any, is for the hub.
    pub(crate) fn signal(
        &mut self,
        now: Millis,
        to: &Ed25519Public,
        connection: ConnectionId,
        signal: &[u8],
    ) -> Option<RelayInput> {
        match self.peer.as_mut().map(|peer| peer.send_signal(now, to, signal)) {
            Some(Ok(id)) => {
                self.sends.insert(id, Sent::Signal(connection));
                None
            }
            Some(Err(_)) | None => Some(RelayInput::SignalFailed(connection)),
        }
    }

    /// Carries out an order of the hub. The input that comes back, if any, is for the hub.
    pub(crate) fn order(&mut self, now: Millis, order: RelayOrder, jitter_seed: u64) -> Option<RelayInput> {
        match order {
            RelayOrder::Connect { url, partners, authorized } => {
                return self.connect(now, &url, &partners, authorized, jitter_seed);
            }
            RelayOrder::Disconnect => self.disconnect(),
            RelayOrder::SetPartner(partner) => return self.set_partner(&partner),
            RelayOrder::RemovePartner(key) => {
                if let Some(peer) = &mut self.peer {
                    peer.remove_partner(&key);
                }
            }
            RelayOrder::SetAuthorized(list) => {
                if let Some(peer) = &mut self.peer {
                    peer.set_authorized(list);
                }
            }
            RelayOrder::StartPairing { token, ttl } => {
                let started = self.peer.as_mut().map(|peer| peer.start_pairing(&token, ttl));
                if !matches!(started, Some(Ok(()))) {
                    return Some(RelayInput::Complaint("not connected".into()));
                }
            }
            // Without a connection there is nobody to tell or to ask; both are made good on the next one.
            RelayOrder::StopPairing => {
                let _ = self.peer.as_mut().map(Peer::stop_pairing);
            }
            RelayOrder::RequestPresence => {
                let _ = self.peer.as_mut().map(Peer::request_presence);
            }
        }
        None
    }

    fn connect(
        &mut self,
        now: Millis,
        url: &str,
        partners: &[Partner],
        authorized: Option<Vec<Ed25519Public>>,
        jitter_seed: u64,
    ) -> Option<RelayInput> {
        self.disconnect();
        let routes = match Routes::new(url, &self.namespace) {
            Ok(routes) => routes,
            Err(error) => return Some(RelayInput::Disconnected { why: error.to_string(), parked: false }),
        };
        let identity = Identity::new(&self.seed);
        let mut peer = Peer::new(Config { identity, role: Role::Agent, routes, offer: Features::AGENT, jitter_seed });
        let mut refused = None;
        for partner in partners {
            if peer.set_partner(*partner).is_err() {
                refused = Some(RelayInput::PartnerRefused(partner.ed25519));
            }
        }
        peer.set_authorized(authorized);
        peer.start(now);
        self.peer = Some(peer);
        refused
    }

    fn set_partner(&mut self, partner: &Partner) -> Option<RelayInput> {
        let refused = self.peer.as_mut()?.set_partner(*partner).is_err();
        refused.then_some(RelayInput::PartnerRefused(partner.ed25519))
    }

    /// Drops engine and socket; nothing that waits in them is sent.
    pub(crate) fn disconnect(&mut self) {
        self.link.close();
        self.peer = None;
        self.sends.clear();
        self.rejecting = false;
    }

    fn translate(&mut self, event: Event) -> Option<FromRelay> {
        let input = match event {
            Event::Connected { url, features } => {
                tracing::debug!(?features, "the relay's features");
                RelayInput::Connected { url, tells_push: features.contains(Features::PUSH_STATUS) }
            }
            Event::Disconnected { why, parked, .. } => {
                self.rejecting = false;
                RelayInput::Disconnected { why: why.to_string(), parked }
            }
            Event::Authorized { .. } => RelayInput::Authorized,
            Event::PairingReady { ttl } => RelayInput::PairingReady { ttl },
            Event::ClientPaired { ed25519, x25519, platform } => RelayInput::ClientPaired { ed25519, x25519, platform },
            Event::Message { .. } if self.rejecting => return None,
            Event::Message { receipt, body, .. } => {
                let (from, counter) = (receipt.from, receipt.counter);
                let input = match body {
                    Body::Json(json) => RelayInput::Message { from, counter, json },
                    Body::PipeSignal(signal) => RelayInput::Signal { from, counter, signal },
                };
                return Some(FromRelay::Hub(input, Some(receipt)));
            }
            Event::Accepted { id, queued } => match self.sends.remove(&id)? {
                Sent::Payload(token) => RelayInput::Accepted { token, queued },
                Sent::Signal(_) => return None,
            },
            Event::SendFailed { id, why, .. } => match self.sends.remove(&id)? {
                Sent::Payload(token) => RelayInput::Failed { token, why: failure(&why) },
                Sent::Signal(connection) => RelayInput::SignalFailed(connection),
            },
            Event::PresenceList(online) => RelayInput::PresenceList(online),
            Event::Presence(key, online) => RelayInput::Presence(key, online),
            Event::PushStatus(states) => RelayInput::PushStatus(states),
            Event::RelayError { offline: Some(key), .. } => RelayInput::Offline(key),
            Event::RelayError { code, .. } => {
                RelayInput::Complaint(code.map_or_else(|| "an unknown code".to_owned(), |code| code.to_string()))
            }
            Event::Dropped { from, why } => {
                let device = from.map(|key| key.short());
                tracing::warn!(?device, ?why, "a message was dropped unread");
                return None;
            }
            Event::PairingStopped | Event::Paired => return None,
        };
        Some(FromRelay::Hub(input, None))
    }
}

const fn failure(why: &SendFailure) -> Failure {
    match why {
        SendFailure::Offline => Failure::Offline,
        SendFailure::Refused(Some(ErrorCode::RateLimited)) => Failure::RateLimited,
        SendFailure::Refused(Some(ErrorCode::QueueFull)) => Failure::QueueFull,
        SendFailure::Refused(Some(ErrorCode::NotFound)) => Failure::NotFound,
        SendFailure::Refused(_) => Failure::Other,
    }
}
