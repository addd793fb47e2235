//! Devices with push tokens, and the services that answer for them, late or not at all.

use super::super::super::super::Input;
use super::super::Verdict;
use super::super::history;
use super::super::oracle::Cause;
use super::Run;
use crate::push::Outcome;

impl Run {
    /// Another token, or none.
    pub(super) fn equip(&mut self, device: usize, platform: i32) {
        self.tokens += 1;
        let token = if platform == 0 { String::new() } else { format!("push {}", self.tokens) };
        self.peers[device].address = (token, platform);
    }

    pub(super) fn answer(&mut self, nth: u8, verdict: history::Verdict, again: bool) -> Verdict {
        let from = if again { &mut self.answered } else { &mut self.asked };
        if from.is_empty() {
            return Ok(());
        }
        // The newest first: of the old ones most have been given up.
        let at = from.len() - 1 - usize::from(nth) % from.len();
        let id = from.remove(at);
        self.answered.push(id);
        let outcome = match verdict {
            history::Verdict::Sent => Outcome::Sent,
            history::Verdict::Gone => Outcome::TokenGone,
            history::Verdict::Refused => Outcome::Refused,
            history::Verdict::Busy(0) => Outcome::Unavailable { retry_after_ms: None },
            history::Verdict::Busy(ms) => Outcome::Unavailable { retry_after_ms: Some(ms) },
        };
        self.turn(&Cause::Answer(id, outcome), Input::Pushed { id, outcome }).map(drop)
    }
}
