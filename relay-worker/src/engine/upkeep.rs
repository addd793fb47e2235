//! Deadlines (wire protocol, Limits): the one alarm, the timer, what is swept out, and the end of a namespace.
//!
//! The alarm is a row, so it is set only when it must be earlier than the known one, and never on the hot path: a message to
//! a connected recipient needs none. Exact expiry is judged wherever it matters; the sweep only tidies up.

use skald_common::wire::CloseCode;

use super::conn::{Conn, Phase};
use super::delivery::HELD_LIFE;
use super::{Engine, Output, Turn};
use crate::store::{Sql, SqlError, Standing};

const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;
/// After storage has failed, milliseconds; and where it cannot even tell what the alarm was set to.
const RETRY_AFTER: u64 = HOUR / 6;
const RETRY_SOON: u64 = 60_000;
/// How soon to look again at a socket that does not drain, at first and later, milliseconds.
const POLL_SOON: u64 = 50;
const POLL_LATER: u64 = 1000;

impl<S: Sql> Engine<S> {
    /// What every turn begins with: overdue work.
    pub(super) fn begin(&mut self, turn: Turn<'_>, alarm: bool) -> Result<(), SqlError> {
        if alarm {
            (self.alarm, self.retry_at) = (None, None);
        }
        if !self.checked {
            for id in self.strangers()? {
                self.end(turn, id, Some(CloseCode::Revoked));
            }
            self.end_lost_pipes()?;
            self.checked = true;
        }
        self.expire_challenges(turn);
        self.expire_sides(turn);
        let due = self.known_space().and_then(|space| space.row.alarm_at);
        if !alarm && due.is_some_and(|at| at <= turn.now) { self.sweep(turn) } else { Ok(()) }
    }

    /// What a panic, or a fault of storage, may have left lying though its recipient is connected.
    pub(super) fn feed_all(&mut self, turn: Turn<'_>) {
        let connected: Vec<_> = self.online.values().copied().collect();
        for id in connected {
            self.feed(turn, id);
        }
    }

    /// The timer: sockets to look at again.
    pub(super) fn on_wake(&mut self, turn: Turn<'_>) {
        self.judge_all(turn);
        self.retry(turn);
    }

    /// The alarm, on time or not: it has to be set again in any case. Only here does a namespace end, because nothing
    /// else in the turn can bring it back before [`Output::DeleteAll`] is carried out.
    pub(super) fn on_alarm(&mut self, turn: Turn<'_>) -> Result<(), SqlError> {
        self.on_wake(turn);
        self.judge_all(turn);
        let (now, life) = (turn.now, self.limits.namespace_life);
        let nobody = self.is_deserted();
        match self.space()? {
            Some(space) if nobody && space.row.last_active.saturating_add(life) <= now => {
                self.outputs.push_back(Output::DeleteAll);
                self.forget_everything();
                Ok(())
            }
            Some(space) => {
                // It may have come for a push alone.
                if space.row.alarm_at.is_none_or(|at| at <= now) {
                    self.sweep(turn)?;
                }
                self.restore_alarm(turn)
            }
            None => Ok(()),
        }
    }

    /// The alarm has come, or an agent: whatever is due to ring, and the alarm anew. A panic may have come between a
    /// deadline's row and the alarm, or before either.
    pub(super) fn restore_alarm(&mut self, turn: Turn<'_>) -> Result<(), SqlError> {
        if let Some(first) = self.first_deadline(turn)? {
            self.ensure_alarm(turn, first)?;
        }
        self.ring_all(turn)?;
        match self.known_space().and_then(|space| space.row.alarm_at) {
            Some(at) => self.wake_at(turn, at),
            None => Ok(()),
        }
    }

    /// When something is to be swept out next, if there is anything.
    fn first_deadline(&mut self, turn: Turn<'_>) -> Result<Option<u64>, SqlError> {
        let Some(space) = self.space()? else { return Ok(None) };
        let first = space.pending().first().map(|device| device.paired_at);
        let pending = first.map(|at| at.saturating_add(self.limits.pending_life));
        let sweep = self.store.any_queued()?.then(|| turn.now.saturating_add(self.sweep_every()));
        Ok(pending.into_iter().chain(sweep).min())
    }

    /// Storage failed: a deadline may be missing, and the alarm, if it was here, does not come again by itself.
    pub(super) fn retry_alarm(&mut self, turn: Turn<'_>) {
        let retry_at = turn.now.saturating_add(RETRY_AFTER);
        self.retry_at = Some(retry_at);
        if self.wake_at(turn, retry_at).is_err() {
            let soon = turn.now.saturating_add(RETRY_SOON);
            self.set_alarm(self.alarm.map_or(soon, |set| set.min(soon)));
        }
    }

    /// The work that the alarm is for.
    fn sweep(&mut self, turn: Turn<'_>) -> Result<(), SqlError> {
        self.judge_all(turn);
        let (now, life) = (turn.now, self.limits.namespace_life);
        let nobody = self.is_deserted();
        self.forget_queues();
        self.store.sweep(now.saturating_sub(self.limits.message_life))?;
        self.forget_late_devices(turn)?;
        let first = self.first_deadline(turn)?;
        self.change_row(|row| {
            if row.window.as_ref().is_some_and(|window| window.until <= now) {
                row.window = None;
            }
            // With a member connected the namespace is alive now; a crash later would leave no other trace of it.
            let over = if nobody {
                row.last_active.saturating_add(life)
            } else {
                row.last_active = now;
                now.saturating_add(life / 3)
            };
            let next = first.map_or(over, |first| first.min(over));
            row.alarm_at = Some(next.max(now.saturating_add(1000)));
        })?;
        match self.known_space().and_then(|space| space.row.alarm_at) {
            Some(at) => self.wake_at(turn, at),
            None => Ok(()),
        }
    }

    fn forget_late_devices(&mut self, turn: Turn<'_>) -> Result<(), SqlError> {
        let Some(space) = self.space()? else { return Ok(()) };
        let mut after = space.clone();
        let life = self.limits.pending_life;
        let late: Vec<u32> = after
            .members
            .iter()
            .filter(|device| device.standing == Standing::Pending)
            .filter(|device| device.paired_at.saturating_add(life) <= turn.now)
            .map(|device| device.no)
            .collect();
        if !late.is_empty() {
            self.store.transaction(|| late.iter().try_for_each(|no| self.store.delete_member(*no)))?;
            after.members.retain(|device| !late.contains(&device.no));
            self.set_space(after);
        }
        Ok(())
    }

    /// A day, or less where messages live less.
    pub(super) fn sweep_every(&self) -> u64 {
        DAY.min(self.limits.message_life)
    }

    /// The alarm is to fire by `at`.
    pub(super) fn ensure_alarm(&mut self, turn: Turn<'_>, at: u64) -> Result<(), SqlError> {
        let known = self.space()?.map(|space| space.row.alarm_at);
        if let Some(alarm) = known
            && alarm.is_none_or(|alarm| alarm > at)
        {
            let at = at.max(turn.now);
            self.change_row(|row| row.alarm_at = Some(at))?;
            self.wake_at(turn, at)?;
        }
        Ok(())
    }

    /// The same for a push, whose own row knows when.
    pub(super) fn remind(&mut self, turn: Turn<'_>, at: u64) -> Result<(), SqlError> {
        let Some(space) = self.space()? else { return Ok(()) };
        let kept = space.row.alarm_at;
        if kept.into_iter().chain(self.alarm).any(|set| set <= at) { Ok(()) } else { self.wake_at(turn, at) }
    }

    /// A deadline of a push has gone: the alarm that was for it would wake the namespace for nothing.
    pub(super) fn put_off(&mut self, turn: Turn<'_>) -> Result<(), SqlError> {
        let Some(kept) = self.space()?.and_then(|space| space.row.alarm_at) else { return Ok(()) };
        let next = self.next_push(turn)?.map_or(kept, |next| next.min(kept));
        if self.alarm.is_none_or(|set| set < next) { self.wake_at(turn, next) } else { Ok(()) }
    }

    /// Sets the alarm to `at`, or before that to the first push that is due.
    pub(super) fn wake_at(&mut self, turn: Turn<'_>, at: u64) -> Result<(), SqlError> {
        let first = self.next_push(turn)?.into_iter().chain(self.retry_at).fold(at, u64::min);
        self.set_alarm(first);
        Ok(())
    }

    /// One alarm for a turn is enough.
    fn set_alarm(&mut self, at: u64) {
        self.alarm = Some(at);
        let asked = self.outputs.iter_mut().find_map(|output| match output {
            Output::WakeAt { at_ms } => Some(at_ms),
            _ => None,
        });
        match asked {
            Some(at_ms) => *at_ms = at,
            None => self.outputs.push_back(Output::WakeAt { at_ms: at }),
        }
    }

    /// A member is active: noted once a day.
    pub(super) fn touch(&mut self, turn: Turn<'_>) -> Result<(), SqlError> {
        self.space()?;
        self.change_row(|row| {
            if turn.now.abs_diff(row.last_active) >= DAY {
                row.last_active = turn.now;
            }
        })
    }

    /// Whether nobody is connected, be it to a pipe.
    fn is_deserted(&self) -> bool {
        self.conns.values().all(|conn| matches!(conn.phase, Phase::Challenged { .. }))
    }

    /// A member's connection is over.
    pub(super) fn after_end(&mut self, turn: Turn<'_>, member: u32) -> Result<(), SqlError> {
        if self.space()?.is_none() {
            // A connection that outlived its namespace: without tables there is no queue to look at.
            return Ok(());
        }
        self.left.insert(member);
        self.wait_for_recipient(turn, member)?;
        if self.online.is_empty() {
            self.change_row(|row| row.last_active = turn.now)?;
            self.ensure_alarm(turn, turn.now.saturating_add(self.limits.namespace_life))?;
        }
        Ok(())
    }

    /// When the engine wants to be woken while it is in memory.
    pub(super) fn next_timer(&self, turn: Turn<'_>) -> Option<u64> {
        self.conns.values().filter_map(|conn| self.timer_of(turn, conn)).min()
    }

    fn timer_of(&self, turn: Turn<'_>, conn: &Conn) -> Option<u64> {
        match &conn.phase {
            Phase::Challenged { .. } => Some(conn.opened_at.saturating_add(self.limits.challenge_timeout)),
            Phase::Pipe(side) => (!side.matched).then(|| conn.opened_at.saturating_add(self.limits.pipe_pending)),
            Phase::Member(session) => {
                let poll = session.stall.map(|stall| {
                    let early = turn.now.saturating_sub(stall.since) < POLL_LATER * 2;
                    turn.now.saturating_add(if early { POLL_SOON } else { POLL_LATER })
                });
                let held = session.held.first().map(|held| held.at.min(turn.now).saturating_add(HELD_LIFE));
                poll.into_iter().chain(held).chain(self.doubts_at(turn, session)).min()
            }
        }
    }
}
