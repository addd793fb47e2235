//! Answers that a person can give, and which items they fit.

use skald_common::payload::{
    ApprovalResponse, ClarificationResponse, Decision, ElicitationAction, ElicitationResponse, SecretObject, ToAgent,
};
use zeroize::Zeroizing;

use super::item::{Entry, Item, Kind};

/// Longest bypass that an approval may ask for, seconds.
pub const MAX_BYPASS_SECS: u64 = 86_400;

/// What a person decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Do it.
    Approve {
        /// Let similar calls pass for so many seconds; 0: for the entire run of the agent.
        bypass_secs: Option<u64>,
    },
    /// Do not.
    Reject {
        /// Why.
        reason: Option<String>,
    },
    /// An answer to a question.
    Text(String),
    /// The value that a prompt asks for. May be a secret.
    Value(Secret),
    /// Yes, to a prompt that asks for nothing else.
    Confirm,
    /// No, to a prompt.
    Decline,
    /// No to a prompt, and to the request behind it.
    Cancel,
}

/// A value that is shown by no `Debug` and wiped when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes it over.
    pub fn new(value: String) -> Self {
        Self(Zeroizing::new(value))
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Why an answer was not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// The item is not pending.
    #[error("the item is no longer pending: it was answered or withdrawn")]
    Gone,
    /// The answer is for another kind of item.
    #[error("this is {}, which is answered with `{}`", with_article(*.0), command(*.0))]
    Kind(Kind),
    /// The prompt wants a yes or no.
    #[error("this prompt asks for yes or no, not for a value")]
    NoValue,
    /// The prompt wants a value.
    #[error("this prompt asks for a value, not for yes or no")]
    NeedsValue,
    /// The prompt does not say under which name it wants the value.
    #[error("this prompt names no field for its value, so it can only be declined or cancelled")]
    NoField,
    /// Over [`MAX_BYPASS_SECS`].
    #[error("a bypass lasts at most {MAX_BYPASS_SECS} seconds (a day), or 0 for the entire run of the agent")]
    Bypass,
}

impl Answer {
    /// What it is, in the past tense.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Approve { .. } => "approved",
            Self::Reject { .. } => "rejected",
            Self::Text(_) | Self::Value(_) => "answered",
            Self::Confirm => "confirmed",
            Self::Decline => "declined",
            Self::Cancel => "cancelled",
        }
    }

    /// Whether it could be given to this item.
    pub fn fits(&self, entry: &Entry) -> Result<(), AnswerError> {
        match (&entry.item, self) {
            (Item::Approval(_), Self::Approve { bypass_secs: Some(secs) }) if *secs > MAX_BYPASS_SECS => {
                Err(AnswerError::Bypass)
            }
            (Item::Elicitation(prompt), Self::Value(_)) if prompt.is_confirmation => Err(AnswerError::NoValue),
            (Item::Elicitation(prompt), Self::Value(_)) if prompt.field_name.is_none() => Err(AnswerError::NoField),
            (Item::Elicitation(prompt), Self::Confirm) if !prompt.is_confirmation => Err(AnswerError::NeedsValue),
            (Item::Approval(_), Self::Approve { .. } | Self::Reject { .. })
            | (Item::Clarification(_), Self::Text(_))
            | (Item::Elicitation(_), Self::Value(_) | Self::Confirm | Self::Decline | Self::Cancel) => Ok(()),
            _ => Err(AnswerError::Kind(entry.kind())),
        }
    }

    /// The payload's content.
    pub(super) fn content(self, entry: &Entry) -> Result<ToAgent, AnswerError> {
        self.fits(entry)?;
        let request_id = entry.id().to_owned();
        let prompt = |action, content| {
            ToAgent::ElicitationResponse(ElicitationResponse { request_id: entry.id().to_owned(), action, content })
        };
        Ok(match self {
            Self::Approve { bypass_secs } => ToAgent::ApprovalResponse(ApprovalResponse {
                request_id,
                decision: Decision::Approved,
                reason: None,
                bypass_secs,
            }),
            Self::Reject { reason } => ToAgent::ApprovalResponse(ApprovalResponse {
                request_id,
                decision: Decision::Rejected,
                reason,
                bypass_secs: None,
            }),
            Self::Text(answer) => ToAgent::ClarificationResponse(ClarificationResponse { request_id, answer }),
            Self::Value(mut value) => {
                let Item::Elicitation(item) = &entry.item else { return Err(AnswerError::Kind(entry.kind())) };
                let field = item.field_name.as_deref().ok_or(AnswerError::NoField)?;
                // Moved, not copied: the object wipes it.
                let content = SecretObject::single(field, std::mem::take(&mut *value.0));
                prompt(ElicitationAction::Accept, Some(content))
            }
            Self::Confirm => prompt(ElicitationAction::Accept, None),
            Self::Decline => prompt(ElicitationAction::Decline, None),
            Self::Cancel => prompt(ElicitationAction::Cancel, None),
        })
    }
}

const fn with_article(kind: Kind) -> &'static str {
    match kind {
        Kind::Approval => "an approval",
        Kind::Clarification => "a question",
        Kind::Elicitation => "a prompt",
    }
}

const fn command(kind: Kind) -> &'static str {
    match kind {
        Kind::Approval => "approve` or `reject",
        Kind::Clarification => "answer",
        Kind::Elicitation => "reply",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use skald_common::payload::{Approval, Clarification, Elicitation, Payload};

    use super::*;

    fn approval() -> Entry {
        entry(Item::Approval(Approval {
            request_id: "a".into(),
            tool_name: "t".into(),
            agent_label: "S".into(),
            summary: "s".into(),
            detail: None,
            arguments: None,
            created_at: 1,
        }))
    }

    fn question() -> Entry {
        entry(Item::Clarification(Clarification {
            request_id: "q".into(),
            question: "?".into(),
            context: None,
            suggested_answers: None,
            agent_label: "S".into(),
            created_at: 1,
        }))
    }

    fn prompt(is_confirmation: bool, field_name: Option<&str>) -> Entry {
        entry(Item::Elicitation(Elicitation {
            request_id: "p".into(),
            server_name: "ssh".into(),
            message: "m".into(),
            field_name: field_name.map(Into::into),
            sensitive: true,
            is_confirmation,
            created_at: 1,
        }))
    }

    fn entry(item: Item) -> Entry {
        Entry { item, extra: BTreeMap::new() }
    }

    fn json(answer: Answer, entry: &Entry) -> serde_json::Value {
        let payload = Payload { id: "i".into(), ts: 1, content: answer.content(entry).unwrap() };
        serde_json::from_slice(&payload.to_json()).unwrap()
    }

    #[test]
    fn answers_have_the_fields_of_the_protocol() {
        let value = json(Answer::Approve { bypass_secs: Some(900) }, &approval());
        assert_eq!(value["decision"], "approved");
        assert_eq!(value["bypass_secs"], 900);
        let value = json(Answer::Approve { bypass_secs: None }, &approval());
        assert!(value.get("bypass_secs").is_none());
        let value = json(Answer::Reject { reason: Some("no".into()) }, &approval());
        assert_eq!((&value["decision"], &value["reason"]), (&"rejected".into(), &"no".into()));
        assert_eq!(json(Answer::Text("42".into()), &question())["answer"], "42");
        let value = json(Answer::Value(Secret::new("hunter2".into())), &prompt(false, Some("password")));
        assert_eq!(value["content"], serde_json::json!({"password": "hunter2"}));
        assert_eq!(value["action"], "accept");
        let value = json(Answer::Confirm, &prompt(true, None));
        assert_eq!((&value["action"], &value["content"]), (&"accept".into(), &serde_json::Value::Null));
        assert_eq!(json(Answer::Cancel, &prompt(false, Some("x")))["action"], "cancel");
    }

    #[test]
    fn an_answer_of_the_wrong_kind_is_refused_with_the_right_command() {
        let error = Answer::Text("yes".into()).fits(&approval()).unwrap_err();
        assert_eq!(error, AnswerError::Kind(Kind::Approval));
        assert!(error.to_string().contains("approve"));
        let approve = Answer::Approve { bypass_secs: None };
        assert_eq!(approve.fits(&question()), Err(AnswerError::Kind(Kind::Clarification)));
        assert_eq!(Answer::Decline.fits(&approval()), Err(AnswerError::Kind(Kind::Approval)));
        let value = Answer::Value(Secret::new("x".into()));
        assert_eq!(value.fits(&prompt(true, Some("f"))), Err(AnswerError::NoValue));
        assert_eq!(value.fits(&prompt(false, None)), Err(AnswerError::NoField));
        assert_eq!(Answer::Confirm.fits(&prompt(false, Some("f"))), Err(AnswerError::NeedsValue));
        let long = Answer::Approve { bypass_secs: Some(MAX_BYPASS_SECS + 1) };
        assert_eq!(long.fits(&approval()), Err(AnswerError::Bypass));
    }

    #[test]
    fn a_secret_is_shown_by_no_debug() {
        let answer = Answer::Value(Secret::new("hunter2".into()));
        assert!(!format!("{answer:?}").contains("hunter2"));
        let content = answer.content(&prompt(false, Some("password"))).unwrap();
        assert!(!format!("{content:?}").contains("hunter2"));
    }
}
