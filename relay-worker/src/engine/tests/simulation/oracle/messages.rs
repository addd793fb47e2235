//! What becomes of each message. A *message* has a number of its own, rising over the run, which stands for the counter that
//! receivers go by; a *copy* is one sending of it, numbered likewise.

use skald_common::wire::{Accepted, ErrorCode, Features, Frame, Message};

use super::super::super::super::ConnId;
use super::super::history::{PEERS, Text};
use super::super::platform::{Outcome, Platform};
use super::super::{Broken, DAY, Verdict, demand};
use super::{Line, Oracle, Truth, written};

/// A message.
#[derive(Debug)]
pub(in super::super) struct Sent {
    pub(in super::super) text: Text,
    /// When it was sent for the first time.
    at: u64,
    pub(super) copies: Vec<u64>,
    acted: bool,
    /// Need not come any more: expired, purged, or beyond what is kept for an old peer.
    excused: bool,
    /// The relay panicked over it, refused it or dropped it: a later repetition comes behind newer ones, and is dropped.
    spoiled: bool,
    /// Messages that may have taken its place.
    replaced_by: Vec<u64>,
}

/// One sending of a message.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) message: u64,
    at: u64,
    jumps: u32,
    life: u32,
    /// Whether its tag counts.
    tagged: bool,
    /// Whether it is quiet, and its sender may say so.
    pub(super) quiet: bool,
    written: bool,
    /// A newer one of its tag was accepted.
    replaced: bool,
}

/// A copy in a queue.
pub(super) struct InQueue {
    pub(super) at: u64,
    pub(super) tagged: bool,
    pub(super) quiet: bool,
    /// The clock has jumped since.
    pub(super) jumped: bool,
}

/// How many messages to a connection of an old peer may be unproved.
const MAX_UNPROVED: usize = 200;
/// A live message that waits for longer has found nobody.
const HELD_LIFE: u64 = 30_000;

/// The ciphertext of a message.
pub(in super::super) fn body(message: u64, size: u32) -> String {
    let mut body = format!("{message} ");
    while body.len() < size as usize {
        body.push('.');
    }
    body
}

/// The nonce of a message.
pub(in super::super) fn nonce(message: u64) -> Vec<u8> {
    let mut nonce = vec![7; 12];
    nonce[..8].copy_from_slice(&message.to_le_bytes());
    nonce
}

impl Oracle {
    /// A peer writes a message; its number.
    pub(in super::super) fn writes(&mut self, text: Text) -> u64 {
        let sent = Sent {
            text,
            at: self.now,
            copies: Vec::new(),
            acted: false,
            excused: false,
            spoiled: false,
            replaced_by: Vec::new(),
        };
        self.sent.push(sent);
        self.sent.len() as u64 - 1
    }

    pub(in super::super) fn text(&self, message: u64) -> Text {
        self.message(message).text
    }

    /// A peer sends it, again or for the first time; the number of the copy. Copies count from 1.
    pub(in super::super) fn sends(&mut self, message: u64, features: Features) -> u64 {
        let text = self.text(message);
        let tagged = text.tag.is_some() && !text.live && features.contains(Features::COLLAPSE);
        let life = self.life[text.to];
        let quiet = text.quiet && features.contains(Features::COLLAPSE);
        let (at, jumps) = (self.now, self.jumps);
        let copy = Copy { message, at, jumps, life, tagged, quiet, written: false, replaced: false };
        self.copies.push(copy);
        let number = self.copies.len() as u64;
        let sent = self.message_mut(message);
        sent.copies.push(number);
        // It may have waited for a connection, while the clock went back.
        sent.at = sent.at.min(at);
        number
    }

    /// A peer has handled it, for good.
    pub(in super::super) fn acts(&mut self, message: u64) {
        self.message_mut(message).acted = true;
        self.owed.remove(&message);
    }

    fn message(&self, number: u64) -> &Sent {
        &self.sent[usize::try_from(number).unwrap()]
    }

    fn message_mut(&mut self, number: u64) -> &mut Sent {
        &mut self.sent[usize::try_from(number).unwrap()]
    }

    pub(super) fn copy(&self, number: u64) -> &Copy {
        &self.copies[usize::try_from(number - 1).unwrap()]
    }

    fn copy_mut(&mut self, number: u64) -> &mut Copy {
        &mut self.copies[usize::try_from(number - 1).unwrap()]
    }

    /// A message was written to a connection.
    pub(super) fn delivered(&mut self, conn: ConnId, message: &Message, size: u64) -> Verdict {
        let strange = || Broken::new("messages come as they were sent", format!("{message:?}"));
        let content = String::from_utf8_lossy(&message.ciphertext);
        let which = content.split(' ').next().and_then(|number| number.parse::<u64>().ok());
        let which = which.filter(|number| *number < self.sent.len() as u64).ok_or_else(strange)?;
        let Some(line) = self.lines.get(&conn) else { return Err(strange()) };
        let sent = self.message(which);
        let text = sent.text;
        let as_sent = content == body(which, text.size)
            && message.nonce == nonce(which)
            && message.peer == self.keys[text.from].to_vec()
            && message.live == text.live;
        demand!(as_sent, "messages come as they were sent", "{message:?} of {sent:?}");
        demand!(line.peer == text.to, "messages go to their recipient", "{text:?} went to {}", line.peer);
        let number = self.which_copy(line, sent)?;
        let receipts = line.has(Features::RECEIPTS);
        let ours = message.r#ref == 0 && message.collapse.is_empty() && !message.quiet;
        let numbered = (message.delivery > 0) == (receipts && !text.live);
        demand!(ours && numbered, "no field that the peer does not know", "{message:?}");
        if text.live {
            let copy = self.copy(number);
            let waited = self.now.saturating_sub(copy.at);
            // One from before the clock went back may keep its place before it until the clock is there again.
            let longest = if self.jumps > 0 { 2 * HELD_LIFE } else { HELD_LIFE };
            let in_time = waited <= longest || copy.jumps != self.jumps;
            demand!(in_time, "a live message is not late", "{waited} ms");
        }
        let (live, delivery) = (text.live, message.delivery);
        self.note_delivery(conn, number, which, live, delivery);
        self.check_window(conn, size)
    }

    /// The copy that was written: the first of its message that may come now.
    fn which_copy(&self, line: &Line, sent: &Sent) -> Verdict<u64> {
        let mut left = sent.copies.clone();
        left.retain(|copy| self.copy(*copy).life == self.life[sent.text.to]);
        demand!(!left.is_empty(), "no message outlives a revocation", "{sent:?}");
        left.retain(|copy| !self.copy(*copy).replaced);
        demand!(!left.is_empty(), "what was replaced does not come", "{sent:?}");
        left.retain(|copy| sent.text.live || self.copy(*copy).at + self.limits.message_life > self.now);
        demand!(!left.is_empty(), "what has expired does not come", "{sent:?}");
        left.retain(|copy| *copy > line.last);
        demand!(!left.is_empty(), "a connection is written in order", "after copy {}: {sent:?}", line.last);
        Ok(left[0])
    }

    fn note_delivery(&mut self, conn: ConnId, number: u64, which: u64, live: bool, delivery: u64) {
        self.copy_mut(number).written = true;
        let size = u64::from(self.message(which).text.size.max(1));
        let Some(line) = self.lines.get_mut(&conn) else { return };
        line.last = number;
        line.wrote.insert(which);
        if delivery > 0 {
            line.outstanding.insert(delivery, (number, size));
            line.written_at.insert(delivery, self.now);
            line.fresh.push(delivery);
        } else if !live {
            line.unproved.push(which);
            if let Some(forgotten) = line.unproved.len().checked_sub(MAX_UNPROVED + 1) {
                let forgotten = line.unproved[forgotten];
                self.excuse(forgotten);
            }
        }
    }

    fn check_window(&self, conn: ConnId, size: u64) -> Verdict {
        let Some(line) = self.lines.get(&conn) else { return Ok(()) };
        let bytes: u64 = line.outstanding.values().map(|(_, size)| size).sum();
        let few = line.outstanding.len() as u64 <= self.limits.window_messages;
        let small = line.outstanding.len() <= 1 || bytes <= self.limits.window_bytes;
        let numbers: Vec<_> = line.outstanding.keys().collect();
        demand!(few && small, "the window bounds what is under way", "{numbers:?}, {bytes} bytes, the last {size}");
        Ok(())
    }

    /// The peer has acknowledged; what it has acknowledged is no longer under way, whether the relay noticed or not.
    pub(super) fn acknowledged(&mut self, conn: ConnId, delivery: u64, clean: bool) {
        let Some(line) = self.lines.get_mut(&conn) else { return };
        let rest = line.outstanding.split_off(&(delivery + 1));
        let proved = std::mem::replace(&mut line.outstanding, rest);
        let peer = line.peer;
        if clean {
            line.unsure = false;
            for (copy, _) in proved.values() {
                self.stored[peer].remove(copy);
            }
        }
    }

    /// The relay says that a message is accepted.
    pub(super) fn accepted(&mut self, conn: ConnId, accepted: &Accepted) -> Verdict {
        let number = accepted.r#ref.wrapping_sub(1);
        let known = number < self.sent.len() as u64
            && self.lines.get(&conn).is_some_and(|line| line.peer == self.text(number).from);
        demand!(known, "only what was sent is accepted", "{accepted:?}");
        let text = self.text(number);
        if text.live {
            let written = self.message(number).copies.iter().any(|copy| self.copy(*copy).written);
            demand!(written && !accepted.queued, "a live message is accepted when it is written", "{accepted:?}");
        } else {
            self.owe(number);
        }
        Ok(())
    }

    fn owe(&mut self, number: u64) {
        let sent = self.message(number);
        if !sent.spoiled && !sent.acted && !sent.text.live {
            self.owed.insert(number);
        }
    }

    fn excuse(&mut self, number: u64) {
        let sent = self.message_mut(number);
        sent.excused = true;
        sent.spoiled |= !sent.copies.is_empty();
        self.owed.remove(&number);
    }

    /// A recipient's queue may have been emptied: nothing that lay in it need come.
    pub(super) fn excuse_all(&mut self, to: usize) {
        let theirs: Vec<u64> = (0..self.sent.len() as u64).filter(|number| self.text(*number).to == to).collect();
        for number in &theirs {
            self.excuse(*number);
        }
        self.push.excuse(to, &theirs);
    }

    /// A recipient's queue has been emptied: nothing that lay in it may come.
    pub(super) fn purge(&mut self, to: usize) {
        self.excuse_all(to);
        self.life[to] += 1;
        self.stored[to].clear();
        self.push.purge(to);
    }

    /// The copies of a message that may lie in the queue, as far as pushes go.
    pub(super) fn in_queue(&self, number: u64) -> Vec<InQueue> {
        let sent = self.message(number);
        let to = sent.text.to;
        let copies = sent.copies.iter().filter(|copy| self.stored[to].contains(copy)).map(|copy| self.copy(*copy));
        let copies = copies.filter(|copy| {
            copy.life == self.life[to] && !copy.replaced && copy.at + self.limits.message_life > self.now
        });
        let as_queued = |copy: &Copy| InQueue {
            at: copy.at,
            tagged: copy.tagged,
            quiet: copy.quiet,
            jumped: copy.jumps != self.jumps,
        };
        copies.map(as_queued).collect()
    }

    /// What surely waits for a peer, or is with it and unproved, and that nothing may have replaced.
    pub(super) fn surely_queued(&self, to: usize) -> Vec<u64> {
        let theirs = self.owed.iter().copied().filter(|number| self.text(*number).to == to);
        theirs.filter(|number| !self.may_be_replaced(*number)).collect()
    }

    /// The message with this content.
    pub(super) fn with_content(&self, ciphertext: &[u8], message_nonce: &[u8]) -> Option<u64> {
        let content = String::from_utf8_lossy(ciphertext);
        let number = content.split(' ').next()?.parse::<u64>().ok()?;
        let text = self.sent.get(usize::try_from(number).ok()?)?.text;
        (content == body(number, text.size) && message_nonce == nonce(number)).then_some(number)
    }

    /// What is too old is nobody's concern any more.
    pub(super) fn expire(&mut self) {
        let (now, life) = (self.now, self.limits.message_life);
        let late = |number: &u64| self.message(*number).at + life <= now;
        let late: Vec<u64> = self.owed.iter().copied().filter(late).collect();
        for number in late {
            self.excuse(number);
        }
        let pending_life = self.limits.pending_life;
        self.pending.retain(|(_, at)| at + pending_life > now);
    }

    /// The relay may have, or has, stored a copy: what it replaces.
    fn replaces(&mut self, number: u64, copy: u64, certain: bool) {
        let new = self.copy(copy);
        if !new.tagged {
            return;
        }
        let (text, life) = (self.text(number), new.life);
        for at in 1..copy {
            let before = self.copy(at);
            let (other, same_life) = (before.message, before.life == life);
            let old = self.text(other);
            if other == number || !before.tagged || (old.from, old.to, old.tag) != (text.from, text.to, text.tag) {
                continue;
            }
            self.message_mut(other).replaced_by.push(number);
            if certain && same_life {
                self.copy_mut(at).replaced = true;
                self.stored[text.to].remove(&at);
            }
        }
    }

    /// A message has been sent: what became of it at once.
    pub(super) fn after_message(&mut self, platform: &Platform, conn: ConnId, copy: u64, outcome: &Outcome) -> Verdict {
        let number = self.copy(copy).message;
        let text = self.text(number);
        let Some(line) = self.lines.get(&conn) else { return Ok(()) };
        let (receipts, closed) = (line.has(Features::RECEIPTS), line.closed);
        let told: Vec<&Frame> = written(outcome, conn).filter(|frame| about(frame, number, receipts)).collect();
        let error = told.iter().find_map(|frame| match frame {
            Frame::Error(error) => Some(error.code.clone()),
            _ => None,
        });
        let accepted = told.iter().any(|frame| matches!(frame, Frame::Accepted(_)));
        let offline = told.iter().any(|frame| matches!(frame, Frame::PeerOffline(_)));
        self.count(conn, error.as_deref() == Some(ErrorCode::RateLimited.as_str()), outcome)?;
        if outcome.crashed || error.is_some() {
            self.message_mut(number).spoiled = true;
        }
        if !outcome.clean() || closed {
            // Stored or not: only an answer would tell.
            if !text.live && error.is_none() {
                self.stored[text.to].insert(copy);
                self.replaces(number, copy, accepted);
            }
            return Ok(());
        }
        let possible = if text.to == text.from { Truth::No } else { self.standing_of(text.to) };
        if let Some(code) = error {
            return self.check_refusal(&code, possible, text);
        }
        demand!(possible != Truth::No, "only members are sent to", "{text:?}");
        if text.live {
            return self.check_live(platform, copy, text, offline);
        }
        // Without numbers, a word of this turn may be about a live message that waited.
        let no_other = !(receipts && offline);
        demand!(accepted == receipts && no_other, "a stored message is accepted", "{text:?}: {told:?}");
        self.stored[text.to].insert(copy);
        self.replaces(number, copy, true);
        self.owe(number);
        if receipts {
            let queued = self.line_of(text.to).is_none();
            let told = told.iter().any(|frame| matches!(frame, Frame::Accepted(accepted) if accepted.queued == queued));
            demand!(told, "the sender learns whether the recipient is there", "{queued}: {text:?}");
        }
        // A repetition may be in the queue already.
        if self.message(number).copies.len() == 1 { self.check_queue_limit(text.to) } else { Ok(()) }
    }

    /// One of the frames that count toward the rate has been sent.
    pub(super) fn count(&mut self, conn: ConnId, limited: bool, outcome: &Outcome) -> Verdict {
        let limits = &self.limits;
        let Some(line) = self.lines.get_mut(&conn) else { return Ok(()) };
        if outcome.crashed || line.closed {
            return Ok(());
        }
        let rate = if line.peer == 0 { limits.agent_rate_per_minute } else { limits.rate_per_minute };
        line.counted += 1;
        line.passed += u64::from(!limited);
        demand!(
            !limited || line.counted > rate,
            "nobody is limited below the rate",
            "frame {} of {rate}",
            line.counted
        );
        let most = rate + line.counted_for * rate / 60_000 + 1;
        demand!(line.passed <= most, "nobody gets beyond the rate", "{} of {most}", line.passed);
        Ok(())
    }

    fn check_refusal(&self, code: &str, possible: Truth, text: Text) -> Verdict {
        match ErrorCode::parse(code) {
            Some(ErrorCode::RateLimited) => Ok(()),
            Some(ErrorCode::NotFound) => {
                demand!(possible != Truth::Yes, "a member can be sent to", "{text:?}");
                Ok(())
            }
            Some(ErrorCode::QueueFull) if !text.live => {
                let stored = &self.stored[text.to];
                let bytes: u64 = stored.iter().map(|copy| u64::from(self.text(self.copy(*copy).message).size)).sum();
                let full = stored.len() as u64 >= self.limits.queue_messages
                    || bytes + u64::from(text.size) > self.limits.queue_bytes;
                demand!(full, "a queue is full only when it is", "{} messages, {bytes} bytes: {text:?}", stored.len());
                Ok(())
            }
            _ => Err(Broken::new("a message in order is taken", format!("{code}: {text:?}"))),
        }
    }

    fn check_live(&self, platform: &Platform, copy: u64, text: Text, offline: bool) -> Verdict {
        let Some((conn, line)) = self.line_of(text.to) else {
            demand!(offline, "a live message to nobody is told", "{text:?}");
            return Ok(());
        };
        let free =
            line.outstanding.is_empty() && !line.unsure && platform.buffered(conn) == 0 && !self.looks_soon(platform);
        demand!(!free || self.copy(copy).written, "a live message goes through at once", "{text:?}");
        Ok(())
    }

    /// What waits for a recipient without a connection is all in its queue.
    fn check_queue_limit(&self, to: usize) -> Verdict {
        if self.line_of(to).is_none() {
            let waiting =
                self.owed.iter().filter(|number| self.text(**number).to == to && !self.may_be_replaced(**number));
            let waiting = waiting.count() as u64;
            demand!(waiting <= self.limits.queue_messages, "a queue has its limit", "{waiting} for {to}");
        }
        Ok(())
    }

    fn may_be_replaced(&self, number: u64) -> bool {
        !self.message(number).replaced_by.is_empty()
    }

    /// Whether anything surely waits in the queue of a recipient.
    pub(super) fn waits_for(&self, to: usize) -> bool {
        self.owed.iter().any(|number| self.text(*number).to == to && !self.may_be_replaced(*number))
    }

    /// Whether the relay is about to look at sockets that do not drain.
    fn looks_soon(&self, platform: &Platform) -> bool {
        platform.timer.is_some_and(|at| at <= self.now + 1000)
    }

    /// Whoever is connected and has room has been written everything that it is owed, or the relay will look again soon.
    pub(super) fn check_progress(&self, platform: &Platform) -> Verdict {
        if self.looks_soon(platform) {
            return Ok(());
        }
        for peer in 0..PEERS {
            let Some((conn, line)) = self.line_of(peer).filter(|(_, line)| !line.unsure) else { continue };
            let bytes: u64 = line.outstanding.values().map(|(_, size)| size).sum();
            let next = self.owed.iter().find(|number| {
                self.text(**number).to == peer && !line.wrote.contains(number) && !self.may_be_replaced(**number)
            });
            let Some(next) = next else { continue };
            // Something larger may wait before it.
            let ahead = self.stored[peer].range(line.last + 1..).map(|copy| self.text(self.copy(*copy).message).size);
            let size = u64::from(ahead.max().unwrap_or(0));
            let room = line.outstanding.is_empty()
                || (line.outstanding.len() as u64) < self.limits.window_messages
                    && bytes + size + 64 <= self.limits.window_bytes;
            demand!(
                !room,
                "nothing waits that could go",
                "message {next} for {peer} on {conn:?}: {:?}",
                self.text(*next)
            );
        }
        Ok(())
    }

    /// Everybody has come back, read and acknowledged everything.
    pub(in super::super) fn check_nothing_lost(&self) -> Verdict {
        for number in &self.owed {
            let sent = self.message(*number);
            let replaced = sent.replaced_by.iter().any(|other| {
                let other = self.message(*other);
                other.acted
                    || other.excused
                    || other.spoiled
                    || other.replaced_by.iter().any(|newer| self.message(*newer).acted)
            });
            demand!(replaced, "what was accepted comes", "message {number} is lost: {sent:?}");
        }
        Ok(())
    }

    /// The alarm that what waits needs: it is swept once a day.
    pub(super) fn sweep_due(&self) -> Option<u64> {
        let waits = |peer: usize| self.line_of(peer).is_none() && self.waits_for(peer);
        (0..PEERS).any(waits).then_some(self.latest + DAY)
    }
}

/// Whether a frame answers a message. Without RECEIPTS there are no numbers to go by.
fn about(frame: &Frame, number: u64, receipts: bool) -> bool {
    match frame {
        Frame::Accepted(accepted) => accepted.r#ref == number + 1,
        Frame::Error(error) => !receipts || error.r#ref == number + 1,
        Frame::PeerOffline(offline) => !receipts || offline.r#ref == number + 1,
        _ => false,
    }
}
