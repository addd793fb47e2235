//! The item that `skaldctl ask` raises.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};
use skald_common::payload::RawJson;

use super::arguments;
use crate::ctl::args::What;

/// One item and its name.
pub(super) struct Question {
    /// Ours alone: the host's name is random.
    pub(super) request_id: String,
    item: Item,
}

enum Item {
    Approval(Approval),
    Clarification(Clarification),
    Elicitation(Elicitation),
}

#[derive(Serialize)]
struct Approval {
    request_id: String,
    tool_name: String,
    summary: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    arguments: BTreeMap<String, RawJson>,
    created_at: u64,
}

#[derive(Serialize)]
struct Clarification {
    request_id: String,
    question: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    suggested_answers: Vec<String>,
    created_at: u64,
}

#[derive(Serialize)]
struct Elicitation {
    request_id: String,
    server_name: String,
    message: String,
    field_name: String,
    sensitive: bool,
    is_confirmation: bool,
    created_at: u64,
}

/// Parameters of `inbox.sync`: this item and nothing else.
#[derive(Serialize)]
pub(super) struct Sync<'a> {
    approvals: Vec<&'a Approval>,
    clarifications: Vec<&'a Clarification>,
    elicitations: Vec<&'a Elicitation>,
}

impl Question {
    /// From the command line; `created_at` in Unix milliseconds. The error is for the person who typed it.
    pub(super) fn new(what: &What, created_at: u64) -> Result<Self, String> {
        let request_id = format!("{:06x}", rand::random::<u32>() & 0xff_ffff);
        let id = request_id.clone();
        let item = match what {
            What::Approval { tool, summary, detail, arguments } => Item::Approval(Approval {
                request_id: id,
                tool_name: tool.clone(),
                summary: summary.clone(),
                detail: detail.clone(),
                arguments: arguments::parse(arguments)?,
                created_at,
            }),
            What::Question { question, context, suggest } => Item::Clarification(Clarification {
                request_id: id,
                question: question.clone(),
                context: context.clone(),
                suggested_answers: suggest.clone(),
                created_at,
            }),
            What::Secret { message, server, field } => Item::Elicitation(Elicitation {
                request_id: id,
                server_name: server.clone(),
                message: message.clone(),
                field_name: field.clone(),
                sensitive: true,
                is_confirmation: false,
                created_at,
            }),
        };
        Ok(Self { request_id, item })
    }

    /// For `inbox.sync`.
    pub(super) fn sync(&self) -> Sync<'_> {
        let mut sync = Sync { approvals: vec![], clarifications: vec![], elicitations: vec![] };
        match &self.item {
            Item::Approval(item) => sync.approvals.push(item),
            Item::Clarification(item) => sync.clarifications.push(item),
            Item::Elicitation(item) => sync.elicitations.push(item),
        }
        sync
    }

    /// For `inbox.resolved`.
    pub(super) fn withdrawal(&self) -> Value {
        let kind = match self.item {
            Item::Approval(_) => "approval",
            Item::Clarification(_) => "clarification",
            Item::Elicitation(_) => "elicitation",
        };
        json!({"kind": kind, "request_id": self.request_id})
    }
}
