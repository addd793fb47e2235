//! `skaldctl answer`: answers a pending item from here.

use serde::Serialize;
use serde_json::json;
use skald_common::payload::{Decision, ElicitationAction, SecretObject};

use super::args::Answer;
use super::{Exit, Failure, Session, inbox, output, prompt};

/// Parameters of `inbox.answer`.
#[derive(Default, Serialize)]
struct Params<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<Decision>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bypass_secs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<ElicitationAction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<SecretObject>,
}

pub(super) async fn run(session: &Session, id: &str, answer: Answer) -> Result<Exit, Failure> {
    let mut client = session.control().await?;
    let empty = Params { id, ..Params::default() };
    let params = match answer {
        Answer::Approve { bypass } => Params { decision: Some(Decision::Approved), bypass_secs: bypass, ..empty },
        Answer::Reject { reason } => Params { decision: Some(Decision::Rejected), reason, ..empty },
        Answer::Text { answer } => Params { answer: Some(answer), ..empty },
        Answer::Value => {
            let field = inbox::field_name(&mut client, id).await?;
            let value = prompt::secret(&output::safe(&field)).await?;
            let content = Some(SecretObject::single(&field, value.as_str().to_owned()));
            Params { action: Some(ElicitationAction::Accept), content, ..empty }
        }
        Answer::Accept => Params { action: Some(ElicitationAction::Accept), ..empty },
        Answer::Decline => Params { action: Some(ElicitationAction::Decline), ..empty },
        Answer::Cancel => Params { action: Some(ElicitationAction::Cancel), ..empty },
    };
    client.call_text("inbox.answer", &params).await?;
    session.output.either(&json!({}).to_string(), || Ok("Answered.".to_owned()))?;
    Ok(Exit::Done)
}
