//! What became of an answer: from the relay's receipt, the agent's ack, and the snapshots that follow.

use skald_common::peer::{Millis, SendFailure};

use super::{AnswerId, Phone, PhoneError, Until};
use crate::model::account::{Account, Verdict};

/// An agent of ours sends an ack along with the snapshot that lacks the item; others send none.
const ACK_GRACE_MS: Millis = 2_000;

/// The end of an answer's way, as far as this phone can tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// The agent has it, and it counts.
    Accepted,
    /// The agent has it, or the item is gone from its inbox: agents of other makes say no more.
    Received,
    /// The relay has it and the agent is offline: it will get it.
    Queued,
    /// Another answer was first, or the item was withdrawn; the other device's name, if it was one.
    TooLate(Option<String>),
    /// The item's content had not reached this phone in full. It is pending again.
    NotShown,
    /// It was too old when it arrived. The item, if still pending, shows again.
    Expired,
    /// The relay has it; the agent, though connected, has said nothing in time.
    Unconfirmed,
    /// The relay refused it, or took it not in time. The item is pending.
    NotSent(Option<SendFailure>),
}

/// How far an answer is.
#[derive(Debug, Clone)]
pub(super) struct Progress {
    pub(super) request_id: String,
    pub(super) relay: AtRelay,
    pub(super) verdict: Option<Verdict>,
    pub(super) failed: Option<SendFailure>,
    /// When a snapshot came without the item.
    pub(super) gone: Option<Millis>,
}

/// What the relay has said of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AtRelay {
    /// Nothing.
    Unknown,
    /// It has it; whether the agent is offline, if it says so.
    Taken { agent_offline: Option<bool> },
}

impl Progress {
    pub(super) fn new(request_id: &str) -> Self {
        Self { request_id: request_id.to_owned(), relay: AtRelay::Unknown, verdict: None, failed: None, gone: None }
    }

    /// The end, if it is reached.
    fn settled(&self, now: Millis, agent_online: Option<bool>) -> Option<Settled> {
        if let Some(verdict) = &self.verdict {
            return Some(match verdict.clone() {
                Verdict::Accepted => Settled::Accepted,
                Verdict::Received => Settled::Received,
                Verdict::TooLate(by) => Settled::TooLate(by),
                Verdict::NotShown => Settled::NotShown,
                Verdict::Expired => Settled::Expired,
            });
        }
        if let Some(why) = &self.failed {
            return Some(Settled::NotSent(Some(why.clone())));
        }
        match self.relay {
            AtRelay::Unknown => None,
            AtRelay::Taken { agent_offline: Some(true) } => Some(Settled::Queued),
            AtRelay::Taken { agent_offline: None } if agent_online == Some(false) => Some(Settled::Queued),
            AtRelay::Taken { .. } => self.gone.is_some_and(|at| now >= at + ACK_GRACE_MS).then_some(Settled::Received),
        }
    }
}

impl Phone {
    /// Waits until it is known what became of an answer, or the time is over. An answer that the relay had not taken by
    /// then is still on its way while this `Phone` exists.
    pub async fn settle(&mut self, id: &AnswerId, until: Until) -> Result<Settled, PhoneError> {
        loop {
            let Some(progress) = self.answers.get(id) else { return Ok(Settled::NotSent(None)) };
            if let Some(settled) = progress.settled(self.clock.now(), self.agent_online) {
                self.answers.remove(id);
                self.change(|account| account.mark_verdict_shown(id.as_str()))?;
                return Ok(settled);
            }
            let known = (progress.relay != AtRelay::Unknown, progress.gone);
            let soon = known.1.map_or(until, |at| until.or_after(self.clock, at + ACK_GRACE_MS));
            match soon.within(self.advance()).await {
                Some(advanced) => advanced?,
                None if until.is_over() => {
                    return Ok(match known {
                        (true, Some(_)) => Settled::Received,
                        (true, None) => Settled::Unconfirmed,
                        (false, _) => Settled::NotSent(None),
                    });
                }
                None => {}
            }
        }
    }

    /// Gives up an answer that the relay has not taken: its item is pending again.
    pub fn abandon(&mut self, id: &AnswerId) -> Result<(), PhoneError> {
        self.outgoing.retain(|message| message.purpose != super::Purpose::Answer(id.clone()));
        self.answers.remove(id);
        self.change(|account: &mut Account| account.answer_failed(id.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ack_says_more_than_receipt_and_snapshot() {
        let mut progress = Progress::new("a");
        assert_eq!(progress.settled(0, Some(false)), None, "the relay does not have it yet");
        progress.relay = AtRelay::Taken { agent_offline: Some(false) };
        assert_eq!(progress.settled(0, Some(true)), None);
        progress.gone = Some(100);
        assert_eq!(progress.settled(100 + ACK_GRACE_MS - 1, Some(true)), None, "an ack may follow");
        assert_eq!(progress.settled(100 + ACK_GRACE_MS, Some(true)), Some(Settled::Received));
        progress.verdict = Some(Verdict::TooLate(Some("Tablet".into())));
        assert_eq!(progress.settled(100, Some(true)), Some(Settled::TooLate(Some("Tablet".into()))));
    }

    #[test]
    fn an_agent_that_is_offline_will_get_it_later() {
        let mut progress = Progress::new("a");
        progress.relay = AtRelay::Taken { agent_offline: Some(true) };
        assert_eq!(progress.settled(0, None), Some(Settled::Queued));
        progress.relay = AtRelay::Taken { agent_offline: None };
        assert_eq!(progress.settled(0, None), None, "a relay without receipts does not say");
        assert_eq!(progress.settled(0, Some(false)), Some(Settled::Queued));
    }

    #[test]
    fn a_refusal_of_the_relay_ends_it() {
        let mut progress = Progress::new("a");
        progress.failed = Some(SendFailure::Refused(None));
        assert_eq!(progress.settled(0, None), Some(Settled::NotSent(Some(SendFailure::Refused(None)))));
    }
}
