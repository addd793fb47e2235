//! `approve`, `reject`, `answer` and `reply`: show an item in full, learn what the person decides, send it, and tell what
//! became of it.

use serde::Serialize;
use skald_common::peer::SendFailure;
use tokio::sync::oneshot;
use zeroize::Zeroizing;

use super::args::{AnswerArgs, ApproveArgs, RejectArgs, ReplyArgs};
use super::full::full;
use super::output::JsonItem;
use super::terminal::{self, Extent, InputError, NoEcho};
use super::{CliError, Context, Exit, Interrupt, unix_ms};
use crate::client::{Phone, Refreshed, Settled, Until};
use crate::model::answer::{Answer, AnswerError, Secret};
use crate::model::item::{Entry, Item};
use crate::model::text;

pub(super) async fn approve(context: &Context, args: &ApproveArgs) -> Result<Exit, CliError> {
    let answer = Answer::Approve { bypass_secs: args.bypass };
    let mut session = Session::begin(context, &args.id, &answer).await?;
    if !args.yes && terminal::is_interactive() {
        let more = match args.bypass {
            None => String::new(),
            Some(0) => ", and similar calls for the entire run of the agent".into(),
            Some(secs) => format!(", and similar calls for {secs} s"),
        };
        if !session.yes_or_no(&format!("Approve this{more}? [y/N] ")).await? {
            return session.refused("nothing was approved; the item is still pending").await;
        }
    }
    session.finish(answer).await
}

pub(super) async fn reject(context: &Context, args: RejectArgs) -> Result<Exit, CliError> {
    let answer = Answer::Reject { reason: args.reason };
    Session::begin(context, &args.id, &answer).await?.finish(answer).await
}

pub(super) async fn answer(context: &Context, args: AnswerArgs) -> Result<Exit, CliError> {
    let mut session = Session::begin(context, &args.id, &Answer::Text(String::new())).await?;
    let text = match (args.text, args.choice) {
        (_, Some(choice)) => suggestion(&session.entry, choice)?,
        (Some(text), None) if text != "-" => text,
        (None, None) if terminal::is_interactive() => session.read("Answer: ", Extent::Line).await?.to_string(),
        (_, None) => session.read("", Extent::All).await?.to_string(),
    };
    if text.trim().is_empty() {
        return session.refused("the answer is empty; nothing was sent").await;
    }
    session.finish(Answer::Text(text)).await
}

fn suggestion(entry: &Entry, choice: u32) -> Result<String, CliError> {
    let Item::Clarification(item) = &entry.item else { return Err(phone(AnswerError::Kind(entry.kind()))) };
    let suggested = item.suggested_answers.as_deref().unwrap_or_default();
    let index = usize::try_from(choice).unwrap_or(usize::MAX).saturating_sub(1);
    suggested.get(index).cloned().ok_or_else(|| {
        CliError::Usage(format!("there is no suggested answer {choice}; the question has {}", suggested.len()))
    })
}

pub(super) async fn reply(context: &Context, args: &ReplyArgs) -> Result<Exit, CliError> {
    let fixed = match (args.decline, args.cancel, args.yes) {
        (true, ..) => Some(Answer::Decline),
        (_, true, _) => Some(Answer::Cancel),
        (.., true) => Some(Answer::Confirm),
        _ => None,
    };
    let mut session = Session::begin(context, &args.id, fixed.as_ref().unwrap_or(&Answer::Decline)).await?;
    if let Some(answer) = fixed {
        return session.finish(answer).await;
    }
    let Item::Elicitation(prompt) = session.entry.item.clone() else {
        return Err(phone(AnswerError::Kind(session.entry.kind())));
    };
    if prompt.is_confirmation {
        let yes = session.yes_or_no("Confirm? [y/N] ").await?;
        return session.finish(if yes { Answer::Confirm } else { Answer::Decline }).await;
    }
    let Some(field) = &prompt.field_name else { return Err(phone(AnswerError::NoField)) };
    let value = session.read_value(field, prompt.sensitive).await?;
    if value.is_empty() {
        return session.refused("the value is empty; nothing was sent (--decline refuses the prompt)").await;
    }
    session.finish(Answer::Value(value)).await
}

fn phone(error: AnswerError) -> CliError {
    CliError::Phone(error.into())
}

/// A connected phone and the item that the person has been shown.
struct Session<'a> {
    context: &'a Context,
    phone: Phone,
    entry: Entry,
}

#[derive(Serialize)]
struct JsonResult<'a> {
    result: &'a str,
    answer: &'a str,
    request_id: &'a str,
    /// The device whose answer was first.
    #[serde(skip_serializing_if = "Option::is_none")]
    answered_by: Option<&'a str>,
    message: &'a str,
    item: JsonItem<'a>,
}

impl<'a> Session<'a> {
    /// Connects, asks the agent for what is pending now, and shows the item in full. `answer` is of the kind to be given.
    async fn begin(context: &'a Context, id: &str, answer: &Answer) -> Result<Self, CliError> {
        let until = context.until();
        let mut phone = context.connect(until).await?;
        let refreshed = phone.refresh(until).await?;
        let found = phone.inbox().find(id).cloned();
        let entry = match found {
            Ok(entry) => entry,
            Err(error) => {
                phone.close().await;
                return Err(error.into());
            }
        };
        if let Err(error) = answer.fits(&entry) {
            phone.close().await;
            return Err(self::phone(error));
        }
        let session = Self { context, phone, entry };
        session.show();
        match refreshed {
            Refreshed::Fresh => {}
            Refreshed::AgentOffline => context.output.progress("(The agent is offline; this is what it sent before.)"),
            Refreshed::NoAnswer => {
                context.output.progress("(The agent did not answer in time; this is what it sent before.)");
            }
        }
        Ok(session)
    }

    fn show(&self) {
        let output = self.context.output;
        let page = full(&self.entry, self.phone.inbox().as_of(), unix_ms(), output.width);
        output.text(&format!("{page}\n"));
        if output.json && terminal::is_interactive() {
            // Standard output is for the program that reads the JSON; whoever decides must see it all the same.
            eprintln!("{page}\n");
        }
    }

    async fn yes_or_no(&mut self, question: &str) -> Result<bool, CliError> {
        loop {
            let line = self.read(question, Extent::Line).await?;
            match line.trim().to_ascii_lowercase().as_str() {
                "y" | "yes" => return Ok(true),
                "n" | "no" | "" => return Ok(false),
                _ if terminal::is_interactive() => {}
                _ => return Err(CliError::Usage("the input is neither yes nor no; nothing was sent".into())),
            }
        }
    }

    async fn read_value(&mut self, field: &str, sensitive: bool) -> Result<Secret, CliError> {
        let field = text::short_line(field, 60);
        let (question, extent) = match (terminal::is_interactive(), sensitive) {
            (true, true) => (format!("{field} (not shown): "), Extent::Line),
            (true, false) => (format!("{field}: "), Extent::Line),
            (false, _) => (String::new(), Extent::All),
        };
        let silent = if sensitive { Some(NoEcho::begin()?) } else { None };
        let mut value = self.read(&question, extent).await?;
        drop(silent);
        Ok(Secret::new(std::mem::take(&mut *value)))
    }

    /// Reads from the person, or standard input, while the connection is kept alive; ends when the item does.
    async fn read(&mut self, question: &str, extent: Extent) -> Result<Zeroizing<String>, CliError> {
        if !question.is_empty() && terminal::is_interactive() {
            terminal::question(question);
        }
        let mut input: oneshot::Receiver<_> = terminal::read(extent);
        // Caught, so that an echo that is switched off comes back.
        let mut interrupt = Interrupt::new()?;
        loop {
            tokio::select! {
                read = &mut input => return Ok(read.unwrap_or(Err(InputError::Ended))?),
                event = self.phone.next_event() => {
                    event?;
                    self.still_as_shown().inspect_err(|_| terminal::question("\n"))?;
                }
                () = interrupt.wait() => {
                    terminal::question("\n");
                    return Err(CliError::Refused("interrupted; nothing was sent".into()));
                }
            }
        }
    }

    /// The item is pending, with the content that was shown.
    fn still_as_shown(&self) -> Result<(), CliError> {
        match self.phone.inbox().get(self.entry.id()) {
            Some(entry) if *entry == self.entry => Ok(()),
            Some(_) => {
                Err(CliError::Refused("the item has changed meanwhile; nothing was sent; look at it again".into()))
            }
            None => {
                Err(CliError::Refused("too late: answered elsewhere or withdrawn meanwhile; nothing was sent".into()))
            }
        }
    }

    async fn refused(self, why: &str) -> Result<Exit, CliError> {
        self.phone.close().await;
        Err(CliError::Refused(why.to_owned()))
    }

    /// Sends the answer, waits for its fate, and tells it.
    async fn finish(mut self, answer: Answer) -> Result<Exit, CliError> {
        self.still_as_shown()?;
        let word = answer.word();
        let until = self.context.until();
        let sent = self.phone.answer(self.entry.id(), answer)?;
        let settled = self.phone.settle(&sent, until).await?;
        if settled == Settled::NotSent(None) {
            self.phone.abandon(&sent)?;
        }
        if settled == Settled::NotShown {
            self.show_again().await?;
        }
        let (exit, result, message) = verdict(word, &settled);
        let answered_by = match &settled {
            Settled::TooLate(by) => by.as_deref(),
            _ => None,
        };
        let output = self.context.output;
        output.text(&message);
        output.object(&JsonResult {
            result,
            answer: word,
            request_id: self.entry.id(),
            answered_by,
            message: &message,
            item: (&self.entry).into(),
        });
        self.phone.close().await;
        Ok(exit)
    }

    /// The agent holds that this phone had not got everything; it sends it now.
    async fn show_again(&mut self) -> Result<(), CliError> {
        self.phone.refresh(Until::secs(5)).await?;
        if let Some(entry) = self.phone.inbox().get(self.entry.id()) {
            self.entry = entry.clone();
            self.show();
        }
        Ok(())
    }
}

/// Exit status, word and sentence for an answer's fate.
fn verdict(word: &str, settled: &Settled) -> (Exit, &'static str, String) {
    match settled {
        Settled::Accepted => (Exit::Done, "accepted", format!("{word}; the agent has it")),
        Settled::Received => {
            (Exit::Done, "received", format!("{word}; the agent has it, and the item is no longer pending"))
        }
        Settled::Queued => (Exit::Done, "queued", format!("{word}: sent; the agent is offline and will get it")),
        Settled::TooLate(Some(by)) => {
            (Exit::Refused, "too_late", format!("too late: answered by {} first", text::short_line(by, 60)))
        }
        Settled::TooLate(None) => {
            (Exit::Refused, "too_late", "too late: it was answered or withdrawn before".to_owned())
        }
        Settled::NotShown => (
            Exit::Refused,
            "not_shown",
            format!("not shown in full: shown again, nothing {}", if word == "approved" { "approved" } else { "done" }),
        ),
        Settled::Expired => (
            Exit::Refused,
            "expired",
            "too old when it reached the agent: nothing was done; check the clocks of both machines".to_owned(),
        ),
        Settled::Unconfirmed => (
            Exit::TimedOut,
            "unconfirmed",
            "sent; the relay has it, but the agent has not confirmed it in time; `inbox` tells what became of it"
                .into(),
        ),
        Settled::NotSent(None | Some(SendFailure::Offline)) => (
            Exit::TimedOut,
            "not_sent",
            "the relay has not confirmed it in time; look at `inbox` before trying again".to_owned(),
        ),
        Settled::NotSent(Some(SendFailure::Refused(code))) => {
            let why = code.map_or_else(|| "an unknown reason".to_owned(), |code| code.to_string());
            (Exit::Trouble, "not_sent", format!("not sent: the relay refused it ({why}); try again later"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fate_has_its_own_words_and_status() {
        let fates = [
            (Settled::Accepted, Exit::Done, "approved; the agent has it"),
            (Settled::Queued, Exit::Done, "approved: sent; the agent is offline and will get it"),
            (
                Settled::TooLate(Some("Tablet\u{202e}".into())),
                Exit::Refused,
                "too late: answered by Tablet\\u{202e} first",
            ),
            (Settled::NotShown, Exit::Refused, "not shown in full: shown again, nothing approved"),
        ];
        for (settled, exit, words) in fates {
            let (told, _, message) = verdict("approved", &settled);
            assert_eq!((told, message.as_str()), (exit, words));
        }
        assert_eq!(verdict("approved", &Settled::Unconfirmed).0, Exit::TimedOut);
        assert_eq!(verdict("approved", &Settled::NotSent(Some(SendFailure::Refused(None)))).0, Exit::Trouble);
    }
}
