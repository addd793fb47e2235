//! What the engine knows of one connection.

use std::collections::VecDeque;

use bytes::Bytes;
use skald_common::ids::{ChallengeNonce, Ed25519Public, NamespaceId};
use skald_common::wire::Features;

use super::io::ConnId;
use super::pipes::Side;
use super::rate::Bucket;

/// The agent's member number.
pub(super) const AGENT: u32 = 0;

/// A connection that is open as far as anybody knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Conn {
    /// When, Unix milliseconds.
    pub(super) opened_at: u64,
    pub(super) phase: Phase,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    /// Has been sent a challenge.
    Challenged { challenge: ChallengeNonce, namespace: NamespaceId },
    /// Has authenticated as agent or client.
    Member(Box<Session>),
    /// The control socket of a pipe's end.
    Pipe(Box<Side>),
}

/// A member's connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) member: u32,
    pub(super) key: Ed25519Public,
    pub(super) features: Features,
    /// When the peer last sent anything that reached the engine, Unix milliseconds.
    pub(super) heard_at: u64,
    /// The last number of its queue that was written to this connection: the one cursor of the recipient.
    pub(super) cursor: u32,
    /// What was written and is not proved, oldest first.
    pub(super) flight: Flight,
    /// Up to this number of its queue what was unproved for too long has been pushed. Without KEEPALIVE only.
    pub(super) rung: u32,
    /// Whether the others have been told that it is online.
    pub(super) greeted: bool,
    /// Waits for the socket to drain.
    pub(super) stall: Option<Stall>,
    /// Live messages waiting behind the drain. In memory only.
    pub(super) held: Held,
    /// In memory only.
    pub(super) bucket: Option<Bucket>,
    /// What the saved attachment says of `heard_at`.
    pub(super) saved_heard_at: u64,
}

impl Session {
    pub(super) fn new(member: u32, key: Ed25519Public, features: Features, now: u64) -> Self {
        Self {
            member,
            key,
            features,
            heard_at: now,
            cursor: 0,
            flight: Flight::default(),
            rung: 0,
            greeted: false,
            stall: None,
            held: Held::default(),
            bucket: None,
            saved_heard_at: now,
        }
    }

    pub(super) const fn is_agent(&self) -> bool {
        self.member == AGENT
    }

    pub(super) const fn has(&self, feature: Features) -> bool {
        self.features.contains(feature)
    }
}

/// A socket that does not drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stall {
    /// Since when it has made no progress, Unix milliseconds.
    pub(super) since: u64,
    /// The fewest bytes seen waiting.
    pub(super) buffered: u64,
}

/// A message written to the connection and not proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) seq: u32,
    pub(super) size: u32,
    /// When, Unix milliseconds.
    pub(super) at: u64,
}

/// The messages under way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Flight {
    sent: VecDeque<Sent>,
    bytes: u64,
}

impl Flight {
    pub(super) fn push(&mut self, sent: Sent) {
        self.bytes += u64::from(sent.size);
        self.sent.push_back(sent);
    }

    pub(super) fn pop(&mut self) -> Option<Sent> {
        let sent = self.sent.pop_front()?;
        self.bytes -= u64::from(sent.size);
        Some(sent)
    }

    /// Takes out one that was replaced.
    pub(super) fn remove(&mut self, seq: u32) {
        if let Some(at) = self.sent.iter().position(|sent| sent.seq == seq)
            && let Some(sent) = self.sent.remove(at)
        {
            self.bytes -= u64::from(sent.size);
        }
    }

    /// Takes the oldest out for as long as they match; the number of the last one.
    pub(super) fn settle(&mut self, proved: impl Fn(&Sent) -> bool) -> Option<u32> {
        let mut last = None;
        while self.sent.front().is_some_and(&proved) {
            last = self.pop().map(|sent| sent.seq);
        }
        last
    }

    /// The oldest of those that the last so many bytes may belong to.
    pub(super) fn within_last(&self, mut bytes: u64) -> Option<u32> {
        let mut first = None;
        for sent in self.sent.iter().rev() {
            if bytes == 0 {
                break;
            }
            bytes = bytes.saturating_sub(sent.size.into());
            first = Some(sent.seq);
        }
        first
    }

    pub(super) fn oldest(&self) -> Option<&Sent> {
        self.sent.front()
    }

    pub(super) fn len(&self) -> u64 {
        self.sent.len() as u64
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Sent> {
        self.sent.iter()
    }
}

/// A live message that waits behind the drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldLive {
    /// Goes after this number of the queue and before the next.
    pub(super) after: u32,
    /// The whole frame for the recipient.
    pub(super) frame: Bytes,
    /// Whom to tell what became of it.
    pub(super) sender: ConnId,
    /// The sender's number for it; 0 for none.
    pub(super) reference: u64,
    /// When it came, Unix milliseconds.
    pub(super) at: u64,
}

/// All of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Held {
    waiting: VecDeque<HeldLive>,
    bytes: u64,
}

impl Held {
    pub(super) fn push(&mut self, held: HeldLive) {
        self.bytes += held.frame.len() as u64;
        self.waiting.push_back(held);
    }

    pub(super) fn pop(&mut self) -> Option<HeldLive> {
        let held = self.waiting.pop_front()?;
        self.bytes -= held.frame.len() as u64;
        Some(held)
    }

    pub(super) fn first(&self) -> Option<&HeldLive> {
        self.waiting.front()
    }

    pub(super) fn last(&self) -> Option<&HeldLive> {
        self.waiting.back()
    }

    pub(super) fn len(&self) -> u64 {
        self.waiting.len() as u64
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }
}
