//! Host sessions, and the calls that the hub makes on them.

use std::fmt;

use serde::Serialize;
use skald_common::ids::Ed25519Public;
use skald_common::payload::{ElicitationAction, SecretObject};
use tokio::sync::mpsc;

use crate::hub::items::{Kind, RequestId};

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
    /// For the calls of [`HubHandle`](super::HubHandle).
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

/// A call to make on a host's connection; report the outcome with [`HubHandle::call_done`](super::HubHandle::call_done).
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

impl HostSession {
    pub(crate) const fn new(
        id: SessionId,
        calls: mpsc::Receiver<HostCall>,
        closings: mpsc::UnboundedSender<SessionId>,
    ) -> Self {
        Self { id, calls, closings }
    }
}
