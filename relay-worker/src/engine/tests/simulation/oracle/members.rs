//! Who belongs, who is let in, pairing, presence, the end of connections, deadlines.

use skald_common::ids::Ed25519Public;
use skald_common::wire::{AuthOk, ClientPaired, CloseCode, ErrorCode, Features, Frame, PresenceEvent, Status};

use super::super::super::super::ConnId;
use super::super::history::{Oddity, PEERS};
use super::super::platform::{Event, Outcome, Platform};
use super::super::{Broken, DAY, Verdict, demand};
use super::{Cause, Claim, Line, Oracle, Truth, written};

/// The windows that may be open: tokens are numbers of the run, 0 is a wrong one.
#[derive(Debug, Default)]
pub(super) struct Windows {
    /// Token, and until when.
    open: Vec<(u64, u64)>,
    /// The only one in `open` surely is open.
    sure: bool,
}

impl Windows {
    pub(super) fn close(&mut self) {
        self.open.clear();
        self.sure = false;
    }

    /// One that is over may have been swept away, and does not come back when the clock does.
    pub(super) fn expire(&mut self, now: u64) {
        self.sure &= self.open.iter().all(|(_, until)| now < *until);
    }
}

/// A device shows a token.
#[derive(Debug)]
pub(in super::super) struct Attempt {
    pub(in super::super) device: usize,
    pub(in super::super) token: u64,
    /// A window with this token may have been open.
    plausible: bool,
    /// The device was told yes, or no.
    answer: Option<bool>,
}

impl Attempt {
    pub(in super::super) const fn new(device: usize, token: u64) -> Self {
        Self { device, token, plausible: false, answer: None }
    }
}

impl Oracle {
    pub(super) fn standing_of(&self, peer: usize) -> Truth {
        if peer == 0 { self.exists } else { self.standing[peer] }
    }

    pub(in super::super) fn attempts(&mut self, attempt: Attempt) -> usize {
        self.attempts.push(attempt);
        self.attempts.len() - 1
    }

    /// The attempt, made now.
    pub(in super::super) fn tries(&mut self, attempt: usize) {
        let now = self.now;
        let open = &self.window.open;
        let attempt = &mut self.attempts[attempt];
        attempt.plausible = open.iter().any(|(token, until)| *token == attempt.token && now < *until);
    }

    pub(in super::super) fn authorized(&self) -> impl Iterator<Item = usize> {
        (1..PEERS).filter(|peer| self.standing[*peer] == Truth::Yes)
    }

    // --- the handshake ---

    pub(super) fn let_in(&mut self, conn: ConnId, ok: &AuthOk, cause: &Cause, outcome: &Outcome) -> Verdict {
        let Some(line) = self.lines.get(&conn) else { return Ok(()) };
        let (peer, claim, features) = (line.peer, line.claim, line.features);
        demand!(
            !line.member && matches!(cause, Cause::Presented(own) if *own == conn),
            "AuthOk answers Auth",
            "{conn:?}"
        );
        match claim {
            Claim::Fraud => Err(Broken::new("no fraud is let in", format!("{conn:?}"))),
            Claim::Pairing(attempt) => self.paired(conn, attempt, outcome),
            Claim::Member => {
                if peer == 0 {
                    self.exists = Truth::Yes;
                } else {
                    let may = self.exists != Truth::No && self.listed != Truth::No && self.standing[peer] != Truth::No;
                    demand!(may, "only the authorized are let in", "peer {peer}");
                }
                let known = if peer == 0 { Features::AGENT } else { Features::ALL };
                let same = ok.features == features.intersection(known).bits();
                demand!(same, "no feature that was not offered", "{ok:?}");
                if let Some(line) = self.lines.get_mut(&conn) {
                    (line.member, line.challenged) = (true, false);
                }
                self.offer_taken(peer);
                Ok(())
            }
        }
    }

    pub(super) fn refused(&mut self, conn: ConnId, code: &str, cause: &Cause, outcome: &Outcome) -> Verdict {
        let Some(line) = self.lines.get_mut(&conn) else { return Ok(()) };
        let (peer, claim) = (line.peer, line.claim);
        line.challenged = false;
        let asked = matches!(cause, Cause::Presented(own) if *own == conn);
        let fair = match (ErrorCode::parse(code), claim) {
            (Some(ErrorCode::ChallengeTimeout), _) => self.now >= line.opened_at + self.limits.challenge_timeout,
            (Some(ErrorCode::RateLimited), _) => !asked,
            (_, Claim::Fraud) => asked,
            (Some(ErrorCode::Unauthorized), Claim::Member) => asked && peer != 0 && self.standing[peer] != Truth::Yes,
            (Some(ErrorCode::NotFound), Claim::Member) => {
                asked && peer != 0 && (self.exists != Truth::Yes || self.listed != Truth::Yes)
            }
            (Some(ErrorCode::PairingClosed), Claim::Pairing(attempt)) => {
                let attempt = &mut self.attempts[attempt];
                attempt.answer = Some(false);
                let right = attempt.plausible && self.window.sure && attempt.device != 0;
                asked && !(right && outcome.clean())
            }
            // A relay that panicked over the handshake does not know the peer.
            (Some(ErrorCode::BadRequest), _) => self.crashes > 0,
            _ => false,
        };
        demand!(fair, "nobody is refused without reason", "peer {peer}, {claim:?}: {code}");
        Ok(())
    }

    /// After credentials were presented.
    pub(super) fn after_presented(&mut self, conn: ConnId, outcome: &Outcome) -> Verdict {
        let Some(line) = self.lines.get(&conn) else { return Ok(()) };
        let (peer, claim, member) = (line.peer, line.claim, line.member);
        let answered = written(outcome, conn).next().is_some();
        if outcome.clean() {
            demand!(answered || line.closed, "Auth is answered", "peer {peer}, {claim:?}");
            if member && peer == 0 {
                self.alarm_lost = false;
                self.check_announcements(conn, outcome)?;
            }
            return Ok(());
        }
        match claim {
            Claim::Member if peer == 0 && !member && self.exists == Truth::No => self.exists = Truth::Maybe,
            Claim::Member if !member => self.offer_unsure(peer),
            Claim::Pairing(attempt) if self.attempts[attempt].answer.is_none() && self.attempts[attempt].plausible => {
                // Stored as pending, with its queue purged, or not.
                let device = self.attempts[attempt].device;
                if device != 0 && self.standing[device] == Truth::Yes {
                    self.standing[device] = Truth::Maybe;
                }
                self.excuse_all(device);
                self.pending.clear();
                self.window.sure = false;
            }
            _ => {}
        }
        Ok(())
    }

    fn check_announcements(&self, conn: ConnId, outcome: &Outcome) -> Verdict {
        let told: Vec<usize> = written(outcome, conn).filter_map(announced).collect();
        let all = self.pending.iter().all(|(attempt, _)| told.contains(attempt));
        demand!(all, "the agent learns of every pending device", "{told:?} of {:?}", self.pending);
        Ok(())
    }

    // --- pairing ---

    /// The device was told yes.
    fn paired(&mut self, conn: ConnId, attempt: usize, outcome: &Outcome) -> Verdict {
        self.takes_effect(attempt, true)?;
        if let Some((agent, _)) = self.line_of(0)
            && outcome.clean()
        {
            let told = written(outcome, agent).filter_map(announced).any(|other| other == attempt);
            demand!(told, "the agent learns of every pending device", "attempt {attempt} on {conn:?}");
        }
        Ok(())
    }

    /// A pairing is seen to have worked; `just_now`: by this very input, and not by one that a panic cut short.
    fn takes_effect(&mut self, attempt: usize, just_now: bool) -> Verdict {
        let Attempt { token, plausible, answer, device } = self.attempts[attempt];
        let may = plausible && answer != Some(false) && device != 0;
        demand!(may, "only an open window pairs", "{:?}", self.attempts[attempt]);
        if answer == Some(true) {
            return Ok(());
        }
        let used = self.attempts.iter().any(|other| other.token == token && other.answer == Some(true));
        demand!(!used, "a token is used once", "{:?}", self.attempts[attempt]);
        self.attempts[attempt].answer = Some(true);
        self.standing[device] = Truth::No;
        self.purge(device);
        self.push.paired(device, attempt);
        if just_now {
            self.window.close();
            self.note_pending(attempt);
        }
        Ok(())
    }

    /// Of too many pending devices the oldest is forgotten.
    fn note_pending(&mut self, attempt: usize) {
        let (now, life) = (self.now, self.limits.pending_life);
        let device = self.attempts[attempt].device;
        let attempts = &self.attempts;
        self.pending.retain(|(other, at)| attempts[*other].device != device && at + life > now);
        self.pending.push((attempt, now));
        self.pending.sort_by_key(|(_, at)| *at);
        let most = usize::try_from(self.limits.pending).unwrap_or(usize::MAX);
        while self.pending.len() > most {
            // Of two that came in the same millisecond either may count as the older; and the newest always stays.
            let (oldest, at) = self.pending.remove(0);
            if oldest == attempt || self.pending.iter().any(|(_, other)| *other == at) {
                self.pending.clear();
            }
        }
    }

    pub(super) fn announced(&mut self, conn: ConnId, paired: &ClientPaired, cause: &Cause) -> Verdict {
        let strange = || Broken::new("only pairings are announced", format!("{paired:?}"));
        let to = self.lines.get(&conn).map(|line| line.peer);
        let attempt = announced_by(paired).filter(|at| *at < self.attempts.len()).ok_or_else(strange)?;
        let device = self.attempts[attempt].device;
        let right = to == Some(0) && paired.client_ed25519_pub == self.keys[device].to_vec();
        demand!(right, "only pairings are announced", "{paired:?}");
        let by = |conn: &ConnId| self.lines.get(conn).is_some_and(|line| line.claim == Claim::Pairing(attempt));
        let just_now = matches!(cause, Cause::Presented(conn) if by(conn));
        let may = just_now || self.standing[device] != Truth::Yes;
        demand!(may, "no authorized device is announced", "{device}");
        self.takes_effect(attempt, just_now)
    }

    pub(super) fn window_holds(&mut self, cause: &Cause, ttl: u32) -> Verdict {
        let Cause::OpenWindow(token, until) = cause else {
            return Err(Broken::new("PairingReady answers PairingStart", String::new()));
        };
        demand!(self.now + u64::from(ttl) * 1000 == *until, "a window has its length", "{ttl}");
        self.window.open = vec![(*token, *until)];
        self.window.sure = true;
        Ok(())
    }

    /// After the agent asked for a window, or for none.
    pub(super) fn after_window(&mut self, window: Option<(u64, u64)>, outcome: &Outcome) {
        if !outcome.clean() {
            self.window.sure = false;
            self.window.open.extend(window);
        }
    }

    // --- the list ---

    pub(super) fn list_holds(&mut self, cause: &Cause, authorized: u32) -> Verdict {
        let Cause::List(list) = cause else {
            return Err(Broken::new("AuthorizeOk answers Authorize", String::new()));
        };
        let count = list.iter().skip(1).filter(|on| **on).count();
        demand!(authorized as usize == count, "AuthorizeOk counts the list", "{authorized} of {count}");
        self.listed = Truth::Yes;
        for (peer, on) in list.iter().enumerate().skip(1) {
            match (self.standing[peer], on) {
                (Truth::Yes | Truth::Maybe, false) => {
                    self.purge(peer);
                    self.standing[peer] = Truth::No;
                    let alive = self.line_of(peer).map(|(conn, _)| conn);
                    demand!(alive.is_none(), "whoever is revoked is cut off", "peer {peer}, {alive:?}");
                }
                (Truth::Maybe | Truth::No, true) => {
                    let attempts = &self.attempts;
                    if self.standing[peer] == Truth::Maybe
                        || !self.pending.iter().any(|(attempt, _)| attempts[*attempt].device == peer)
                    {
                        // What it brought when it paired may have been forgotten.
                        self.push.forget_address(peer);
                    }
                    self.standing[peer] = Truth::Yes;
                    self.pending.retain(|(attempt, _)| attempts[*attempt].device != peer);
                }
                (Truth::Yes, true) | (Truth::No, false) => {}
            }
        }
        Ok(())
    }

    /// After the list was sent: without an answer it may hold, or not.
    pub(super) fn after_list(&mut self, list: [bool; PEERS], outcome: &Outcome) {
        if outcome.events.iter().any(|event| matches!(event, Event::Wrote { frame: Frame::AuthorizeOk(_), .. })) {
            return;
        }
        self.pending.clear();
        if self.listed == Truth::No {
            self.listed = Truth::Maybe;
        }
        for (peer, on) in list.iter().enumerate().skip(1) {
            let same = self.standing[peer] == if *on { Truth::Yes } else { Truth::No };
            if !same {
                self.standing[peer] = Truth::Maybe;
                self.excuse_all(peer);
            }
        }
    }

    // --- presence ---

    pub(super) fn presence(&self, event: &PresenceEvent) -> Verdict {
        let peer = self.keys.iter().position(|key| key.to_vec() == event.pubkey);
        let there = peer.is_some_and(|peer| self.line_of(peer).is_some());
        let told = event.status == Status::Online as i32;
        demand!(peer.is_some() && there == told, "presence is true when it is told", "{peer:?}: {there}, told {told}");
        Ok(())
    }

    pub(super) fn after_presence(&mut self, conn: ConnId, outcome: &Outcome) -> Verdict {
        let list = written(outcome, conn).find_map(|frame| match frame {
            Frame::PresenceList(list) => Some(list.online.clone()),
            _ => None,
        });
        let limited = written(outcome, conn)
            .any(|frame| matches!(frame, Frame::Error(error) if error.code == ErrorCode::RateLimited.as_str()));
        self.count(conn, limited, outcome)?;
        let open = self.lines.get(&conn).is_some_and(Line::open);
        let Some(list) = list else {
            demand!(limited || !open || !outcome.clean(), "whoever asks is told who is there", "{conn:?}");
            return Ok(());
        };
        let mut told: Vec<_> = list.iter().filter_map(|key| Ed25519Public::from_slice(key).ok()).collect();
        told.sort();
        let mut there: Vec<_> =
            (0..PEERS).filter(|peer| self.line_of(*peer).is_some()).map(|peer| self.keys[peer]).collect();
        there.sort();
        demand!(!outcome.clean() || !open || told == there, "the list is who is there", "{told:?} for {there:?}");
        Ok(())
    }

    // --- the end of connections ---

    pub(super) fn closed(
        &mut self,
        platform: &Platform,
        conn: ConnId,
        code: u16,
        cause: &Cause,
        before: &[Event],
    ) -> Verdict {
        let Some(line) = self.lines.get_mut(&conn) else { return Ok(()) };
        let was = line.open().then_some(line.peer).filter(|_| code != CloseCode::Replaced.code());
        let already = std::mem::replace(&mut line.closed, true);
        self.queued_anew(was, code == CloseCode::Restarting.code());
        let line = &self.lines[&conn];
        let told = |event: &Event| matches!(event, Event::Wrote { conn: to, frame: Frame::Error(_) | Frame::AuthError(_), .. } if *to == conn);
        let why = [
            CloseCode::Normal,
            CloseCode::Restarting,
            CloseCode::Refused,
            CloseCode::Replaced,
            CloseCode::Revoked,
            CloseCode::Idle,
            CloseCode::TooBig,
        ];
        let fair = match why.into_iter().find(|why| why.code() == code) {
            Some(CloseCode::Normal) => matches!(line.claim, Claim::Pairing(_)),
            Some(CloseCode::Restarting) => self.crashes + self.refusals > 0,
            Some(CloseCode::Refused) => before.iter().any(told),
            Some(CloseCode::Replaced) => {
                let by = |conn: &ConnId| self.lines.get(conn).is_some_and(|newer| newer.peer == line.peer);
                self.crashes > 0 || matches!(cause, Cause::Presented(newer) if *newer != conn && by(newer))
            }
            Some(CloseCode::Revoked) => line.member && self.revoking(line.peer, cause),
            Some(CloseCode::Idle) => {
                let keeps_alive = line.has(Features::KEEPALIVE);
                let ping = platform.last_ping(conn).unwrap_or(0).max(line.opened_at);
                // After a jump the relay cannot know better.
                let silent = keeps_alive && (ping + self.limits.keepalive_dead <= self.now || self.jumps > 0);
                silent || platform.buffered(conn) > 0
            }
            Some(CloseCode::TooBig) => {
                let large =
                    matches!(cause, Cause::Odd(own, Oddity::StoredTooLarge | Oddity::LiveTooLarge) if *own == conn);
                large || line.claim == Claim::Fraud
            }
            None => false,
        };
        demand!(already || fair, "no connection ends without reason", "peer {}, {code} after {cause:?}", line.peer);
        Ok(())
    }

    /// Whether a device may be losing its place now.
    pub(super) fn revoking(&self, peer: usize, cause: &Cause) -> bool {
        let unlisted = matches!(cause, Cause::List(list) if !list[peer]);
        self.standing_of(peer) != Truth::Yes || unlisted
    }

    /// A member has sent something odd.
    pub(super) fn after_oddity(&mut self, conn: ConnId, oddity: Oddity, outcome: &Outcome) -> Verdict {
        let counts = matches!(
            oddity,
            Oddity::ShortNonce
                | Oddity::NoCiphertext
                | Oddity::LongTag
                | Oddity::ToNobody
                | Oddity::ToOneself
                | Oddity::StoredTooLarge
        );
        let Some(line) = self.lines.get(&conn) else { return Ok(()) };
        let tags = line.has(Features::COLLAPSE);
        let codes: Vec<&str> = written(outcome, conn)
            .filter_map(|frame| if let Frame::Error(error) = frame { Some(error.code.as_str()) } else { None })
            .collect();
        let limited = codes.contains(&ErrorCode::RateLimited.as_str());
        let closed = line.closed;
        if counts {
            self.count(conn, limited, outcome)?;
        }
        if !outcome.clean() || limited {
            return Ok(());
        }
        let expected = match oddity {
            Oddity::Malformed | Oddity::Misplaced | Oddity::ShortNonce | Oddity::NoCiphertext => Some("bad_request"),
            Oddity::LongTag => Some(if tags { "bad_request" } else { "not_found" }),
            Oddity::ToNobody | Oddity::ToOneself => Some("not_found"),
            Oddity::StoredTooLarge | Oddity::LiveTooLarge => Some("payload_too_large"),
            Oddity::Unknown | Oddity::Empty | Oddity::Word | Oddity::AckOfNothing => None,
        };
        let fatal = matches!(oddity, Oddity::StoredTooLarge | Oddity::LiveTooLarge);
        // It may have been ended for another reason at the same moment: then the reason was judged there.
        let answered = closed || codes.first().copied() == expected;
        demand!(answered, "what is wrong is told, what is unknown is ignored", "{oddity:?}: {codes:?}");
        demand!(closed || !fatal, "a frame over the limit ends its connection", "{oddity:?}");
        Ok(())
    }

    // --- deadlines and the end of a namespace ---

    pub(super) fn check_deadlines(&self, platform: &Platform) -> Verdict {
        let challenged = self.lines.values().filter(|line| line.challenged && !line.closed);
        if let Some(first) = challenged.map(|line| line.opened_at + self.limits.challenge_timeout).min() {
            let timer = platform.timer;
            let set = timer.is_some_and(|at| at <= first.max(self.now));
            demand!(set, "the timer is never late", "{timer:?} for {first}");
        }
        if self.exists != Truth::Yes || self.alarm_lost {
            return Ok(());
        }
        let pending = self.pending.iter().map(|(_, at)| at + self.limits.pending_life).min();
        let over = self.latest + self.limits.namespace_life;
        let due = [pending, self.sweep_due(), Some(over)].into_iter().flatten().min().unwrap_or(over);
        // The sweep is a second off at most.
        let set = platform.alarm.is_some_and(|at| at <= due.max(self.now) + 1000);
        demand!(set, "the alarm is never late", "{:?} for {due}, now {}", platform.alarm, self.now);
        Ok(())
    }

    pub(super) fn deleted_all(&mut self) -> Verdict {
        let there: Vec<usize> = (0..PEERS).filter(|peer| self.line_of(*peer).is_some()).collect();
        let alive = there.is_empty() && self.open_sides() == 0;
        demand!(alive, "a namespace with a connection is alive", "{there:?}");
        let slack = match (self.rough, self.jumps) {
            (false, _) => 0,
            (true, 0) => 31 * DAY,
            // A month for the clock may have been a moment for the relay.
            (true, _) => self.limits.namespace_life,
        };
        let absent = self.now.saturating_sub(self.last_member);
        demand!(absent + slack >= self.limits.namespace_life, "a namespace lives 90 days", "{absent} ms");
        (self.exists, self.listed) = (Truth::No, Truth::No);
        self.window.close();
        self.pending.clear();
        for peer in 0..PEERS {
            self.standing[peer] = Truth::No;
            self.purge(peer);
        }
        Ok(())
    }
}

/// The attempt that a frame announces.
fn announced(frame: &Frame) -> Option<usize> {
    if let Frame::ClientPaired(paired) = frame { announced_by(paired) } else { None }
}

fn announced_by(paired: &ClientPaired) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(*paired.client_x25519_pub.first_chunk()?)).ok()
}
