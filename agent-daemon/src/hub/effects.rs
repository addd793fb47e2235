//! What the hub wants done: writes, then everything that may only happen once they are on disk.

use std::fmt;

use skald_common::ids::{ConnectionId, Ed25519Public, PairingToken};
use skald_common::peer::{Delivery, Partner};
use tokio::sync::broadcast;
use zeroize::Zeroizing;

use super::api::{ApiError, CallOutcome, Command, HostCall, HostRequest, HostSession, Responder, SessionId};
use super::durable::Write;
use super::events::Event;
use super::{Failure, Input, RelayInput, TunnelNews, TunnelOrder};

/// The hub's answer to one input: carry out `writes` as one transaction, then `effects` in order. If the transaction
/// fails, none of the effects happen: their replies are failed, and the hub is reloaded from the disk.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Step {
    pub(crate) writes: Vec<Write>,
    pub(crate) effects: Vec<Effect>,
}

/// Names a payload on its way to the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Token(pub(crate) u64);

/// One thing to do.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Answer a command.
    Reply(Reply),
    /// Make the channel of a new host session and hand its receiving end out.
    OpenSession(SessionId, Responder<HostSession>),
    /// Close a host's channel.
    CloseSession(SessionId),
    /// Call a host. If its channel is full or gone, its session ends.
    CallHost(SessionId, HostCall),
    /// Seal a payload and send it; its fate comes back under the token.
    Send { token: Token, to: Ed25519Public, json: Zeroizing<Vec<u8>>, delivery: Delivery },
    /// Seal a signal about a pipe and send it live; a failure comes back.
    Signal { to: Ed25519Public, connection: ConnectionId, signal: Vec<u8> },
    /// Something for the relay connection.
    Relay(RelayOrder),
    /// Something for the tunnels.
    Tunnel(TunnelOrder),
    /// Tell the subscribers.
    Emit(Event),
    /// Hand out a receiver of events.
    Subscribe(Responder<broadcast::Receiver<Event>>),
}

impl Effect {
    /// Its step was not stored, so that it does not happen: whoever waits for an answer is told `why`. What comes back is
    /// for the hub, which believes that it did happen.
    pub(crate) fn undo(self, why: &str) -> Option<Input> {
        /// JSON-RPC's code for trouble inside.
        const INTERNAL: i64 = -32603;
        let error = ApiError::Storage(why.to_owned());
        match self {
            Self::Reply(reply) => reply.fail(error),
            // Askers that have gone do not mind.
            Self::Subscribe(reply) => drop(reply.send(Err(error))),
            Self::OpenSession(session, reply) => {
                drop(reply.send(Err(error)));
                return Some(Input::HostClosed(session));
            }
            Self::CallHost(session, call) => {
                let outcome = match call.request {
                    // Without a probe, the older connection has the benefit of the doubt.
                    HostRequest::Ping => CallOutcome::Pong,
                    HostRequest::Resolve(_) => CallOutcome::Failed(INTERNAL),
                };
                return Some(Input::Command(Command::CallDone(session, call.id, outcome)));
            }
            Self::Send { token, .. } => {
                return Some(Input::Relay(RelayInput::Failed { token, why: Failure::RateLimited }));
            }
            Self::Signal { connection, .. } => {
                return Some(Input::Relay(RelayInput::SignalFailed(connection)));
            }
            Self::Tunnel(TunnelOrder::Dial { connection, .. }) => {
                return Some(Input::Tunnel(TunnelNews::Refused(connection)));
            }
            Self::Tunnel(TunnelOrder::Open { agreed, .. }) => {
                return Some(Input::Relay(RelayInput::SignalFailed(agreed.connection)));
            }
            Self::Relay(RelayOrder::Connect { .. } | RelayOrder::Disconnect) => {
                return Some(Input::Relay(RelayInput::Reset));
            }
            Self::Relay(_) | Self::Tunnel(TunnelOrder::End(_)) | Self::CloseSession(_) | Self::Emit(_) => {}
        }
        None
    }
}

/// Something for the relay connection.
#[derive(Debug)]
pub(crate) enum RelayOrder {
    /// Begin anew with this address, these partners and this list; whatever was under way is forgotten.
    Connect { url: String, partners: Vec<Partner>, authorized: Option<Vec<Ed25519Public>> },
    /// Disconnect and stay so.
    Disconnect,
    /// Add or replace a partner. A key that cannot be agreed with is reported.
    SetPartner(Partner),
    /// Forget a partner.
    RemovePartner(Ed25519Public),
    /// The list of authorized devices; `None`: send none.
    SetAuthorized(Option<Vec<Ed25519Public>>),
    /// Open a pairing window.
    StartPairing { token: PairingToken, ttl: u32 },
    /// Close it.
    StopPairing,
    /// Ask who is online.
    RequestPresence,
}

/// The answer to a command, not yet sent: it waits for the writes before it.
pub(crate) struct Reply(Box<dyn FnOnce(Result<(), ApiError>) + Send>);

impl Reply {
    /// `value` for `to`, unless the writes fail.
    pub(crate) fn new<T: Send + 'static>(to: Responder<T>, value: Result<T, ApiError>) -> Self {
        Self(Box::new(move |outcome| {
            // An asker that has gone does not mind.
            let _ = to.send(outcome.and(value));
        }))
    }

    /// The writes are on disk.
    pub(crate) fn deliver(self) {
        (self.0)(Ok(()));
    }

    /// The writes have failed.
    pub(crate) fn fail(self, error: ApiError) {
        (self.0)(Err(error));
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reply(…)")
    }
}
