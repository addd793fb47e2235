//! From the sender to the queue, or, live, to the recipient (wire protocol, Messages).

use skald_common::ids::{Ed25519Public, MessageNonce};
use skald_common::wire::{self, ErrorCode, Features, Frame, Message};

use super::conn::HeldLive;
use super::{ConnId, Engine, Turn};
use crate::store::{Indexed, Queued, Sql, SqlError, Tag};

/// A message that is in order, for a member that exists.
struct Letter {
    from: ConnId,
    message: Queued,
    /// The recipient.
    to: u32,
    to_key: Ed25519Public,
    reference: u64,
    tag: Option<Tag>,
    quiet: bool,
}

impl<S: Sql> Engine<S> {
    /// `large`: beyond the size of stored messages.
    pub(super) fn on_message(
        &mut self,
        turn: Turn<'_>,
        id: ConnId,
        message: Message,
        large: bool,
    ) -> Result<(), SqlError> {
        let Some(session) = self.session(id) else { return Ok(()) };
        let reference = if session.has(Features::RECEIPTS) { message.r#ref } else { 0 };
        if !self.within_rate(turn, id) {
            self.tell_error(turn, id, ErrorCode::RateLimited, "too many frames", reference);
            return Ok(());
        }
        let live = message.live;
        if large && !live {
            self.tell_too_large(turn, id, reference);
            return Ok(());
        }
        match self.letter(id, message, reference)? {
            Ok(letter) if live => self.forward(turn, letter),
            Ok(letter) => self.store_message(turn, letter),
            Err((code, message)) => {
                self.tell_error(turn, id, code, message, reference);
                Ok(())
            }
        }
    }

    fn letter(
        &mut self,
        from: ConnId,
        message: Message,
        reference: u64,
    ) -> Result<Result<Letter, (ErrorCode, &'static str)>, SqlError> {
        const NOBODY: (ErrorCode, &str) = (ErrorCode::NotFound, "no such member");
        let Some(session) = self.session(from) else { return Ok(Err(NOBODY)) };
        let sender = session.key;
        let collapses = session.has(Features::COLLAPSE);
        let (Ok(nonce), Ok(to_key)) =
            (MessageNonce::from_slice(&message.nonce), Ed25519Public::from_slice(&message.peer))
        else {
            return Ok(Err((ErrorCode::BadRequest, "a nonce has 12 bytes, a key 32")));
        };
        if message.ciphertext.is_empty() {
            return Ok(Err((ErrorCode::BadRequest, "no ciphertext")));
        }
        let tag = if collapses && !message.live && !message.collapse.is_empty() {
            let Some(tag) = Tag::new(message.collapse) else {
                return Ok(Err((ErrorCode::BadRequest, "a collapse tag has 1 to 16 bytes")));
            };
            Some(tag)
        } else {
            None
        };
        let recipient = self.space()?.and_then(|space| space.number_of(&to_key)).filter(|_| to_key != sender);
        Ok(recipient.ok_or(NOBODY).map(|to| Letter {
            from,
            message: Queued { sender, nonce, ciphertext: message.ciphertext },
            to,
            to_key,
            reference,
            tag,
            quiet: collapses && message.quiet,
        }))
    }

    /// A live message: behind what is queued for the recipient, or to nobody.
    fn forward(&mut self, turn: Turn<'_>, letter: Letter) -> Result<(), SqlError> {
        let Some(to) = self.connected(turn, letter.to) else {
            self.tell_offline(letter.from, letter.to_key, letter.reference);
            return Ok(());
        };
        let queued_last = self.queue(letter.to)?.last().unwrap_or(0);
        let frame = wire::encode(Frame::Message(Message {
            ciphertext: letter.message.ciphertext,
            nonce: letter.message.nonce.to_vec(),
            peer: letter.message.sender.to_vec(),
            live: true,
            ..Message::default()
        }));
        let (most, most_bytes) = (self.limits.held_messages, self.limits.held_bytes);
        let Some(session) = self.session_mut(to) else { return Ok(()) };
        let held = &mut session.held;
        if held.len() > 0 && (held.len() >= most || held.bytes() + frame.len() as u64 > most_bytes) {
            self.tell_offline(letter.from, letter.to_key, letter.reference);
            return Ok(());
        }
        held.push(HeldLive {
            after: queued_last.max(session.cursor),
            frame: frame.into(),
            sender: letter.from,
            reference: letter.reference,
            at: turn.now,
        });
        self.feed(turn, to);
        Ok(())
    }

    /// A stored message: durable first, then on its way if the recipient is connected, then accepted.
    fn store_message(&mut self, turn: Turn<'_>, letter: Letter) -> Result<(), SqlError> {
        let to = self.connected(turn, letter.to);
        let session = to.and_then(|to| self.session(to));
        let cursor = session.map_or(0, |session| session.cursor);
        let held = session.and_then(|session| session.held.last()).map_or(0, |held| held.after);
        let size = u32::try_from(letter.message.ciphertext.len()).unwrap_or(u32::MAX);
        let (most, most_bytes) = (self.limits.queue_messages, self.limits.queue_bytes);

        let queue = self.queue(letter.to)?;
        let replaced = letter.tag.as_ref().and_then(|tag| queue.collapsing(&letter.message.sender, tag)).cloned();
        if let Some(old) = replaced.as_ref().filter(|old| old.size == size)
            && self.store.queued(letter.to, old.seq)?.as_ref() == Some(&letter.message)
        {
            // A repetition after a lost connection. It keeps its place: behind newer messages its recipient would drop it.
            self.after_stored(turn, letter.to)?;
            let queued = !self.online.contains_key(&letter.to);
            self.tell_accepted(letter.from, letter.reference, queued);
            return Ok(());
        }
        let replaced = replaced.map(|old| old.seq);
        let floor = self.push_floor(letter.to)?;
        let queue = self.queue(letter.to)?;
        let (mut waiting, mut waiting_bytes) = (0, 0);
        for row in queue.beyond(cursor).filter(|row| Some(row.seq) != replaced) {
            waiting += 1;
            waiting_bytes += u64::from(row.size);
        }
        // Behind what is queued, what this connection was given, the live messages that wait, and what was pushed.
        let free = queue.last().unwrap_or(0).max(cursor).max(held).max(floor).checked_add(1);
        let fits = waiting < most && (waiting == 0 || waiting_bytes + u64::from(size) <= most_bytes);
        let Some(seq) = free.filter(|_| fits) else {
            self.tell_error(turn, letter.from, ErrorCode::QueueFull, "the recipient's queue is full", letter.reference);
            return Ok(());
        };
        let row =
            Indexed { seq, at: turn.now, size, sender: letter.message.sender, tag: letter.tag, quiet: letter.quiet };
        self.insert(letter.to, row, replaced, &letter.message)?;
        if let Some(to) = to {
            if let Some(replaced) = replaced {
                self.replaced_under_way(to, replaced);
            }
            self.feed_fresh(turn, to, Some((seq, letter.message)));
        }
        self.after_stored(turn, letter.to)?;
        // The recipient's connection may have proved dead just now.
        let queued = !self.online.contains_key(&letter.to);
        self.tell_accepted(letter.from, letter.reference, queued);
        Ok(())
    }

    /// A message is in the queue: if its recipient does not prove it, the device is to ring.
    fn after_stored(&mut self, turn: Turn<'_>, to: u32) -> Result<(), SqlError> {
        if self.online.contains_key(&to) {
            return self.watch(turn, to);
        }
        self.wait_for_recipient(turn, to)?;
        self.ring(turn, to)
    }

    /// Writes a row, in one step with the deletion of the one that it replaces.
    fn insert(&mut self, to: u32, row: Indexed, replaced: Option<u32>, message: &Queued) -> Result<(), SqlError> {
        match replaced {
            Some(old) => self.store.transaction(|| {
                self.store.dequeue(to, old, old)?;
                self.store.enqueue(to, &row, message)
            })?,
            None => self.store.enqueue(to, &row, message)?,
        }
        let queue = self.queue(to)?;
        if let Some(old) = replaced {
            queue.remove(old);
        }
        queue.push(row);
        Ok(())
    }

    /// A message that was written to a connection has been replaced. A peer with RECEIPTS acknowledges it all the same;
    /// without, it must not count among those that beyond 200 are forgotten.
    fn replaced_under_way(&mut self, to: ConnId, seq: u32) {
        if let Some(session) = self.session_mut(to)
            && !session.has(Features::RECEIPTS)
        {
            session.flight.remove(seq);
            self.dirty.insert(to);
        }
    }
}
