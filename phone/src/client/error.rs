//! What can go wrong, with what to do about it.

use skald_common::crypto::SealError;
use skald_common::pairing::QrError;
use skald_common::peer::{Disconnect, RouteError, SendError};
use skald_common::wire::{CloseCode, ErrorCode};

use crate::model::account::Standing;
use crate::model::answer::AnswerError;
use crate::store::StoreError;

/// Why a phone cannot do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum PhoneError {
    /// The folder of the pairing.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The pairing code.
    #[error("{0}; show a new one on the agent (`skaldctl pair`)")]
    Qr(#[from] QrError),
    /// The relay's address in the pairing code.
    #[error("{0}; correct the agent's relay_url or qr_url and show a new pairing code")]
    Route(#[from] RouteError),
    /// The agent's key in the pairing code.
    #[error("{0}; show a new pairing code on the agent")]
    Key(#[from] SealError),
    /// No randomness for a seed.
    #[error("the system gives no random numbers: {0}")]
    Random(String),
    /// The profile has a pairing.
    #[error(
        "profile \"{0}\" is paired with this agent already; add --again to pair it anew, or --profile NAME for another phone"
    )]
    AlreadyPaired(String),
    /// The profile belongs to another agent.
    #[error("profile \"{0}\" is paired with another agent; use --profile NAME, or `skald-phone logout` first")]
    OtherAgent(String),
    /// Another command has the connection.
    #[error("another command of this profile is using the connection; end it, or wait longer with --timeout")]
    Busy,
    /// There is a watch, or a proxy.
    #[error("another `watch` or `proxy` of this profile is running; end it first, or pair another --profile")]
    AlreadyWatching,
    /// The relay refused to pair.
    #[error("{}", pairing_refused(.0))]
    PairingRefused(Disconnect),
    /// The agent's owner has not authorized this phone.
    #[error(
        "this phone is not authorized yet; authorize it on the agent (`skaldctl devices`, `skaldctl authorize`), then try again"
    )]
    NotAuthorized,
    /// The agent's owner has removed this phone.
    #[error(
        "this phone was revoked; pair it again with `skald-phone pair --again`, or forget it with `skald-phone logout --local`"
    )]
    Revoked,
    /// No connection, and why.
    #[error("no connection: {0}; check the network and that the relay runs")]
    NoConnection(Disconnect),
    /// The time was over before anything could be said.
    #[error("no answer from the relay in time; try again, or wait longer with --timeout")]
    TimedOut,
    /// The answer does not fit the item.
    #[error(transparent)]
    Answer(#[from] AnswerError),
    /// The message cannot be sent.
    #[error("{}", not_sendable(*.0))]
    Send(#[from] SendError),
    /// Paired anew by another command.
    #[error("this profile was paired with another agent meanwhile; start again")]
    Changed,
}

/// The error for a connection that did not come about in time.
pub(super) fn no_connection(last: Option<Disconnect>, aside: bool) -> PhoneError {
    match last {
        _ if aside => PhoneError::Busy,
        Some(Disconnect::Refused(Some(ErrorCode::Unauthorized), _)) => PhoneError::NotAuthorized,
        Some(why) => PhoneError::NoConnection(why),
        None => PhoneError::TimedOut,
    }
}

/// The error for an end that trying again does not change. A phone that waits for its authorization is refused in the
/// same words as one that has lost it.
pub(super) fn ends_the_pairing(why: &Disconnect, standing: Standing) -> Option<PhoneError> {
    (standing != Standing::Pending && is_revocation(why)).then_some(PhoneError::Revoked)
}

pub(super) fn is_revocation(why: &Disconnect) -> bool {
    match why {
        Disconnect::Closed(Some(code)) => *code == CloseCode::Revoked.code(),
        Disconnect::Refused(code, _) => *code == Some(ErrorCode::Unauthorized),
        _ => false,
    }
}

fn pairing_refused(why: &Disconnect) -> String {
    match why {
        Disconnect::Refused(Some(ErrorCode::PairingClosed), _) => {
            "the pairing code was used already, has expired or was replaced; show a new one on the agent (`skaldctl pair`)"
                .into()
        }
        Disconnect::Refused(Some(ErrorCode::NotFound), _) => {
            "the relay does not know this agent; check that it is connected (`skaldctl status`)".into()
        }
        other => format!("cannot pair: {other}; check the network and that the relay runs, then try again"),
    }
}

fn not_sendable(error: SendError) -> String {
    match error {
        SendError::TooLarge { .. } => "the answer is too long; at most about 60,000 bytes fit".into(),
        other => format!("{other}; try again"),
    }
}
