//! Hosts: programs that raise items, act on the first answer, and may die at any moment.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::oneshot;

use crate::hub::api::{ApiError, HostCall, HostHello, HostSession, InboxSet, ResolveParams};
use crate::hub::items::Kind;
use crate::hub::tests::raw;

/// An item that a host waits for.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) json: String,
    pub(super) tag: String,
    pub(super) expires_at: Option<u64>,
}

pub(super) struct Host {
    pub(super) name: &'static str,
    pub(super) linger_secs: Option<u64>,
    pub(super) session: Option<HostSession>,
    /// `hello` waits for its answer.
    pub(super) opening: Option<oneshot::Receiver<Result<HostSession, ApiError>>>,
    /// By kind and the host's own number.
    pub(super) open: BTreeMap<(Kind, u8), Asked>,
    /// Answers that it has acted on, by id.
    pub(super) acted: BTreeSet<String>,
}

impl Host {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, linger_secs: None, session: None, opening: None, open: BTreeMap::new(), acted: BTreeSet::new() }
    }

    pub(super) fn hello(&self) -> HostHello {
        HostHello { name: self.name.into(), version: "1".into(), label: None, linger_secs: self.linger_secs }
    }

    /// Everything that it waits for.
    pub(super) fn set(&self) -> InboxSet {
        let of = |wanted: Kind| {
            let found = self.open.iter().filter(|((kind, _), _)| *kind == wanted);
            found.map(|(_, asked)| raw(&asked.json)).collect()
        };
        InboxSet {
            approvals: of(Kind::Approval),
            clarifications: of(Kind::Clarification),
            elicitations: of(Kind::Elicitation),
        }
    }

    /// The next call that has come; `None` without one. The flag: the session is closed.
    pub(super) fn next_call(&mut self) -> (Option<HostCall>, bool) {
        let Some(session) = &mut self.session else { return (None, false) };
        match session.calls.try_recv() {
            Ok(call) => (Some(call), false),
            Err(tokio::sync::mpsc::error::TryRecvError::Empty) => (None, false),
            Err(tokio::sync::mpsc::error::TryRecvError::Disconnected) => (None, true),
        }
    }

    /// The host's own number for what an answer names.
    pub(super) fn number(params: &ResolveParams) -> (Kind, u8) {
        (params.answer.kind(), params.request_id.json().parse().unwrap())
    }
}

/// An item with content of its own.
pub(super) fn asked(host: &str, kind: Kind, number: u8, content: u8, large: bool, expires_at: Option<u64>) -> Asked {
    let size = if large { " large" } else { "" };
    let until = expires_at.map(|at| format!(" until {at}")).unwrap_or_default();
    let tag = format!("{host} {kind} {number} {content}{size}{until}");
    let noise = if large { noise(content) } else { String::new() };
    let fields = match kind {
        Kind::Approval => format!(r#""tool_name":"t","summary":"{tag}","arguments":{{"noise":"{noise}"}}"#),
        Kind::Clarification => format!(r#""question":"{tag}""#),
        Kind::Elicitation => format!(
            r#""server_name":"s","message":"{tag}","field_name":"password","sensitive":true,"is_confirmation":false"#
        ),
    };
    let expiry = expires_at.map(|at| format!(r#","expires_at":{at}"#)).unwrap_or_default();
    let json = format!(r#"{{"request_id":{number},{fields}{expiry}}}"#);
    Asked { json, tag, expires_at }
}

/// More than a push can carry, also compressed.
fn noise(seed: u8) -> String {
    let mut state = u32::from(seed) + 1;
    let letter = |state: &mut u32| {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'!' + u8::try_from(*state >> 25).unwrap() % 90)
    };
    (0..4_500).map(|_| letter(&mut state)).filter(|c| !matches!(c, '"' | '\\')).collect()
}
