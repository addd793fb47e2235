//! The inbox snapshot and its items.

use serde::{Deserialize, Serialize};

use super::RawJson;

/// Everything that is pending; replaces what the device had.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct InboxUpdate {
    /// How many items are pending.
    pub badge: u32,
    /// Tool calls that want a yes or no.
    pub approvals: Vec<Approval>,
    /// Questions.
    pub clarifications: Vec<Clarification>,
    /// Prompts of MCP servers. Deployed senders may leave the field out.
    #[serde(default)]
    pub elicitations: Vec<Elicitation>,
}

/// A tool call that wants a yes or no.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Approval {
    /// Names the item in answers; opaque.
    pub request_id: String,
    /// Which tool.
    pub tool_name: String,
    /// Who asks.
    pub agent_label: String,
    /// One line for the card, at most about 120 characters.
    pub summary: String,
    /// More text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The raw arguments as they were written: what is approved. An object, by the protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<RawJson>,
    /// Unix milliseconds.
    pub created_at: u64,
}

/// A question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Clarification {
    /// Names the item in answers; opaque.
    pub request_id: String,
    /// The question.
    pub question: String,
    /// What it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// Answers to tap; free text is always possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suggested_answers: Option<Vec<String>>,
    /// Who asks.
    pub agent_label: String,
    /// Unix milliseconds.
    pub created_at: u64,
}

/// A prompt of an MCP server. Never carries the value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Elicitation {
    /// Names the item in answers; opaque.
    pub request_id: String,
    /// Which MCP server.
    pub server_name: String,
    /// The prompt.
    pub message: String,
    /// The key of the value in the answer; absent for a confirmation.
    #[serde(default)]
    pub field_name: Option<String>,
    /// The value is a secret: no echo, no copy.
    pub sensitive: bool,
    /// Yes or no, without a value.
    pub is_confirmation: bool,
    /// Unix milliseconds.
    pub created_at: u64,
}

impl InboxUpdate {
    /// How many items there are.
    pub fn count(&self) -> usize {
        self.approvals.len() + self.clarifications.len() + self.elicitations.len()
    }
}
