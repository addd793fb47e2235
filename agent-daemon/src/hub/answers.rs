//! Answers: from a phone or the command line, through the disk, to the host (socket API, Daemon → host).
//!
//! The first valid answer to a pending item counts; it is written down with the message counter before the host is called,
//! and stays until the host has answered the call. An item whose answer waits is no longer pending for anybody. The values
//! of elicitations are the exception: they are held in memory alone and wiped; lost with a crash, the item is pending
//! again.

use std::collections::BTreeMap;

use skald_common::ids::Ed25519Public;
use skald_common::payload::{Decision, ElicitationAction, Outcome};
use skald_common::peer::Millis;

use super::api::{
    AnswerContent, AnsweringDevice, ApiError, CallId, CallOutcome, HostRequest, ResolveParams, SessionId,
};
use super::durable::{AnswerRow, Answerer, Write};
use super::events::Event;
use super::hosts::{Call, Held};
use super::items::{Item, ItemId, Kind};
use super::trouble::Cause;
use super::{Ctx, Hub, Now};

/// An answer older than this is not acted on, and one that its host has not taken for so long is dropped; milliseconds.
const MAX_AGE_MS: u64 = 24 * 3600 * 1000;
/// Longest bypass, seconds.
const MAX_BYPASS_SECS: u64 = 86_400;
/// How long it is remembered who was first; milliseconds.
const DECIDED_LIFE_MS: u64 = 7 * 24 * 3600 * 1000;
/// Decisions remembered.
const MAX_DECIDED: usize = 2_000;
/// First pause after a host has answered a call with an error; doubled each time, up to the longest.
const RETRY_MS: Millis = 5_000;
const LONGEST_RETRY_MS: Millis = 10 * 60_000;
/// The name of the command line as a device.
const HERE: &str = "skaldctl";

/// An answer that its host has not confirmed.
#[derive(Debug)]
struct Answer {
    row: AnswerRow,
    /// The call that is under way.
    call: Option<(SessionId, CallId)>,
    refusals: u32,
    not_before: Millis,
}

/// Answers under way, and who was first.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    waiting: BTreeMap<ItemId, Answer>,
    /// The value that the step under way holds in memory alone.
    fresh: Option<ItemId>,
    decided: BTreeMap<ItemId, Answerer>,
}

impl Answers {
    #[cfg(test)]
    pub(super) fn sizes(&self, items: usize) -> [(&'static str, usize, usize); 2] {
        [("answers", self.waiting.len(), items), ("decisions", self.decided.len(), MAX_DECIDED)]
    }

    /// Whether the item has its answer.
    pub(crate) fn waits(&self, item: &str) -> bool {
        self.waiting.contains_key(item)
    }

    fn first(&self, item: &str) -> Option<&Answerer> {
        self.waiting.get(item).map(|answer| &answer.row.by).or_else(|| self.decided.get(item))
    }
}

/// What is to be done with an answer from a device.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// It counts.
    Counts(AnswerContent),
    /// It does not, and why; the device is shown what is so.
    Void(Outcome),
    /// It makes no sense.
    Malformed(&'static str),
}

impl Hub {
    // From devices.

    pub(super) fn answer_from_device(
        &mut self,
        ctx: &mut Ctx<'_>,
        from: Ed25519Public,
        payload: &str,
        ts: u64,
        item: &str,
        content: AnswerContent,
    ) {
        let outcome = match self.judge(ctx.now, from, payload, ts, item, content) {
            Verdict::Counts(content) => {
                let name = self.devices.get(&from).map(super::devices::Device::name).unwrap_or_default();
                let by = Answerer { device: from, name, payload_id: payload.to_owned(), at: ctx.now.unix };
                self.take_answer(ctx, item, by, content);
                self.went_well(Cause::Age);
                Outcome::Accepted
            }
            Verdict::Void(outcome) => {
                self.note_age(ctx.now, from, ts, outcome);
                outcome
            }
            Verdict::Malformed(why) => {
                tracing::warn!(device = %from.short(), why, "answer dropped");
                return self.send_live(ctx, from, true);
            }
        };
        if let Some(device) = self.devices.get_mut(&from) {
            device.remember(payload, Some(outcome));
        }
        self.tell_outcome(ctx, from, payload, item, outcome);
    }

    /// An answer that seems old was given just now if one of the two clocks is wrong; only a person can tell.
    fn note_age(&mut self, now: Now, from: Ed25519Public, ts: u64, outcome: Outcome) {
        let age = now.unix.saturating_sub(ts);
        if outcome == Outcome::Expired && age > MAX_AGE_MS {
            let (name, hours) = (self.device_words(&from), age / 3_600_000);
            let what = format!(
                "{name} gave an answer {hours} hours ago, too long to act on it; if not, set the clock here or there"
            );
            self.went_wrong(Cause::Age, what, now);
        }
    }

    /// The same payload again, under a new counter: the device has not heard what became of it.
    pub(super) fn repeated(&mut self, ctx: &mut Ctx<'_>, from: Ed25519Public, payload: &str, outcome: Option<Outcome>) {
        if let Some(outcome) = outcome {
            self.queue_ack(ctx, from, payload, outcome, None);
            self.send_live(ctx, from, true);
        }
    }

    fn tell_outcome(&mut self, ctx: &mut Ctx<'_>, to: Ed25519Public, payload: &str, item: &str, outcome: Outcome) {
        let first = self.answers.first(item).filter(|first| first.device != to);
        let by = first.map(|first| first.name.clone()).filter(|_| outcome == Outcome::Superseded);
        self.queue_ack(ctx, to, payload, outcome, by);
        if outcome != Outcome::Accepted {
            // It has taken the item off its list already: show it what is so, with everything it needs to decide.
            self.send_live(ctx, to, true);
        }
    }

    fn judge(
        &self,
        now: Now,
        from: Ed25519Public,
        payload: &str,
        ts: u64,
        item: &str,
        content: AnswerContent,
    ) -> Verdict {
        if self.answers.first(item).is_some_and(|first| first.device == from && first.payload_id == payload) {
            return Verdict::Void(Outcome::Accepted);
        }
        if now.is_trusted() && now.unix.saturating_sub(ts) > MAX_AGE_MS {
            return Verdict::Void(Outcome::Expired);
        }
        let Some(held) = self.pending_item(item).filter(|held| held.row.item.kind == content.kind()) else {
            return Verdict::Void(Outcome::Superseded);
        };
        if held.row.item.is_expired(now.unix) {
            return Verdict::Void(Outcome::Expired);
        }
        let content = match check(&held.row.item, content) {
            Ok(content) => content,
            Err(why) => return Verdict::Malformed(why),
        };
        let approves = matches!(content, AnswerContent::Approval { decision: Decision::Approved, .. });
        let shown = self
            .devices
            .get(&from)
            .and_then(|device| device.sights.get(item))
            .is_some_and(|sight| sight.shown.is_whole());
        if approves && !shown { Verdict::Void(Outcome::NotShown) } else { Verdict::Counts(content) }
    }

    // From the command line.

    /// `inbox.answer`: `id` whole, or a prefix that fits one pending item.
    pub(super) fn answer_here(&mut self, ctx: &mut Ctx<'_>, id: &str, content: AnswerContent) -> Result<(), ApiError> {
        let held = self.find_pending(id)?;
        let item = &held.row.item;
        if item.kind != content.kind() {
            let what = format!("this item is of kind {}, the answer of kind {}", item.kind, content.kind());
            return Err(ApiError::InvalidParams(what));
        }
        let content = check(item, content).map_err(|why| ApiError::InvalidParams(why.to_owned()))?;
        let id = item.id.clone();
        let device = self.names.ed25519;
        let by = Answerer { device, name: HERE.to_owned(), payload_id: String::new(), at: ctx.now.unix };
        self.take_answer(ctx, &id, by, content);
        Ok(())
    }

    fn find_pending(&self, id: &str) -> Result<&Held, ApiError> {
        if let Some(held) = self.pending_item(id) {
            return Ok(held);
        }
        let mut matching = self.pending().filter(|held| !id.is_empty() && held.row.item.id.starts_with(id));
        match (matching.next(), matching.count()) {
            (Some(held), 0) => Ok(held),
            (Some(_), _) => {
                Err(ApiError::InvalidParams("more than one pending item has such an id: give more of it".into()))
            }
            (None, _) => Err(ApiError::NoSuchItem),
        }
    }

    // To the host.

    /// The first valid answer: down to the disk, then to the host, and everybody learns that the item is gone.
    fn take_answer(&mut self, ctx: &mut Ctx<'_>, item: &str, by: Answerer, content: AnswerContent) {
        let kind = content.kind();
        let row = AnswerRow { item: item.to_owned(), answer_id: ctx.uuid(), by: by.clone(), content };
        if kind == Kind::Elicitation {
            self.answers.fresh = Some(item.to_owned());
        } else {
            self.write(Write::PutAnswer(row.clone()));
            self.decide(item, by.clone());
        }
        self.answers.waiting.insert(item.to_owned(), Answer { row, call: None, refusals: 0, not_before: 0 });
        self.revision += 1;
        self.mark_all_stale();
        self.emit(Event::InboxAnswered { id: item.to_owned(), kind, device: by.name });
        self.deliver(ctx, item);
    }

    /// Calls the host, if an answer to this item waits and the host's live session has named the item.
    pub(super) fn deliver(&mut self, ctx: &Ctx<'_>, item: &str) {
        let Some(held) = self.items.iter().find(|held| held.row.item.id == item) else { return };
        let (Some(session), Some(answer)) = (held.asserted, self.answers.waiting.get(item)) else { return };
        if answer.call.is_some() || answer.not_before > ctx.now.mono {
            return;
        }
        let params = ResolveParams {
            answer_id: answer.row.answer_id.clone(),
            request_id: held.row.item.request_id.clone(),
            device: AnsweringDevice { pubkey: answer.row.by.device, name: answer.row.by.name.clone() },
            answer: answer.row.content.clone(),
        };
        let call = self.call_host(session, Call::Resolve(item.to_owned()), HostRequest::Resolve(params));
        if let Some(answer) = self.answers.waiting.get_mut(item) {
            answer.call = call.map(|call| (session, call));
        }
    }

    /// The host has answered `inbox.resolve`.
    pub(super) fn resolve_done(&mut self, ctx: &Ctx<'_>, call: (SessionId, CallId), item: &str, outcome: &CallOutcome) {
        let Some(answer) = self.answers.waiting.get_mut(item).filter(|answer| answer.call == Some(call)) else {
            return;
        };
        answer.call = None;
        match outcome {
            CallOutcome::Resolved(_) => {
                let by = answer.row.by.clone();
                if answer.row.content.kind() == Kind::Elicitation {
                    self.decide(item, by);
                }
                self.remove_item(item);
                self.went_well(Cause::Host);
            }
            CallOutcome::Failed(code) => {
                answer.not_before = ctx.now.mono + (RETRY_MS << answer.refusals.min(16)).min(LONGEST_RETRY_MS);
                answer.refusals += 1;
                let what = format!("a host answered inbox.resolve with error {code}: it is asked again");
                self.went_wrong(Cause::Host, what, ctx.now);
            }
            CallOutcome::Pong => {}
        }
    }

    /// A host's connection has ended: its calls will not be answered.
    pub(super) fn calls_lost(&mut self, session: SessionId) {
        for answer in self.answers.waiting.values_mut() {
            if answer.call.is_some_and(|(with, _)| with == session) {
                (answer.call, answer.not_before) = (None, 0);
            }
        }
    }

    /// The answer is done with: delivered, or of no use any more.
    pub(super) fn drop_answer(&mut self, item: &str) {
        if let Some(answer) = self.answers.waiting.remove(item)
            && answer.row.content.kind() != Kind::Elicitation
        {
            self.write(Write::RemoveAnswer(item.to_owned()));
        }
    }

    // Who was first.

    fn decide(&mut self, item: &str, by: Answerer) {
        self.write(Write::PutDecided(item.to_owned(), by.clone()));
        self.answers.decided.insert(item.to_owned(), by);
        if self.answers.decided.len() > MAX_DECIDED {
            let oldest = self.answers.decided.iter().min_by_key(|(_, by)| by.at).map(|(id, _)| id.clone());
            if let Some(id) = oldest {
                self.forget_decision(&id);
            }
        }
    }

    pub(super) fn forget_decision(&mut self, item: &str) {
        if self.answers.decided.remove(item).is_some() {
            self.write(Write::RemoveDecided(item.to_owned()));
        }
    }

    /// The step before is on the disk.
    pub(super) fn answers_settled(&mut self) {
        self.answers.fresh = None;
    }

    pub(super) fn load_answers(&mut self, rows: Vec<AnswerRow>, decided: Vec<(ItemId, Answerer)>) {
        let mut before = std::mem::take(&mut self.answers.waiting);
        for row in rows {
            let old = before.remove(&row.item);
            let (call, refusals, not_before) = old.map_or((None, 0, 0), |old| (old.call, old.refusals, old.not_before));
            self.answers.waiting.insert(row.item.clone(), Answer { row, call, refusals, not_before });
        }
        // Held in memory alone: they stay, as long as their items do. But what came with the step that failed did not come.
        let fresh = self.answers.fresh.take();
        for (item, answer) in before {
            let secret = answer.row.content.kind() == Kind::Elicitation;
            if secret && fresh.as_ref() != Some(&item) && self.items.iter().any(|held| held.row.item.id == item) {
                self.answers.waiting.insert(item, answer);
            }
        }
        self.answers.decided = decided.into_iter().collect();
    }

    // Time.

    pub(super) fn answers_deadline(&self, now: Now) -> Option<Millis> {
        let idle = self.answers.waiting.values().filter(|answer| answer.call.is_none());
        let drops = idle.map(|answer| now.mono_at(answer.row.by.at + MAX_AGE_MS + 1));
        let retries =
            self.answers.waiting.values().filter(|answer| answer.call.is_none() && answer.not_before > now.mono);
        drops.chain(retries.map(|answer| answer.not_before)).min()
    }

    pub(super) fn answers_timeouts(&mut self, ctx: &Ctx<'_>) {
        let now = ctx.now;
        let old = |by: &Answerer, life: u64| now.unix.saturating_sub(by.at) > life;
        let late: Vec<ItemId> = self
            .answers
            .waiting
            .iter()
            // One that its host has been called with may have been acted on.
            .filter(|(_, answer)| answer.call.is_none() && old(&answer.row.by, MAX_AGE_MS))
            .map(|(id, _)| id.clone())
            .collect();
        for id in late {
            // Nobody can say any more that this is still wanted: the item is pending again.
            self.drop_answer(&id);
            self.forget_decision(&id);
            self.revision += 1;
            self.mark_all_stale();
        }
        let retries: Vec<ItemId> = self.answers.waiting.keys().cloned().collect();
        for id in retries {
            self.deliver(ctx, &id);
        }
        let forgotten: Vec<ItemId> =
            self.answers.decided.iter().filter(|(_, by)| old(by, DECIDED_LIFE_MS)).map(|(id, _)| id.clone()).collect();
        for id in forgotten {
            self.forget_decision(&id);
        }
    }
}

/// Whether an answer fits its item; what the rules do not allow in it is left out, if it can be without changing what was
/// decided.
fn check(item: &Item, content: AnswerContent) -> Result<AnswerContent, &'static str> {
    match content {
        AnswerContent::Approval { decision: Decision::Rejected, reason, .. } => {
            Ok(AnswerContent::Approval { decision: Decision::Rejected, reason, bypass_secs: None })
        }
        AnswerContent::Approval { bypass_secs: Some(secs), .. } if secs > MAX_BYPASS_SECS => {
            Err("bypass_secs must be 0 to 86400")
        }
        AnswerContent::Elicitation { action: ElicitationAction::Accept, content } => {
            let fields = item.fields();
            let confirms = fields.get("is_confirmation").is_some_and(|value| value == "true");
            let Some(name) = item.text("field_name").filter(|_| !confirms) else {
                let content = content.filter(|_| !confirms);
                return Ok(AnswerContent::Elicitation { action: ElicitationAction::Accept, content });
            };
            let content = content.ok_or("content is missing")?;
            if content.expose().len() != 1 || !content.expose().contains_key(&name) {
                return Err("content must have one key, the item's field_name");
            }
            Ok(AnswerContent::Elicitation { action: ElicitationAction::Accept, content: Some(content) })
        }
        AnswerContent::Elicitation { action, .. } => Ok(AnswerContent::Elicitation { action, content: None }),
        content => Ok(content),
    }
}
