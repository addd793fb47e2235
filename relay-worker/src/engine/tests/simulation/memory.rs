//! How much a namespace keeps in memory, counted, and how much it may. This looks into the engine; the oracle never does.

use super::super::super::conn::Phase;
use super::super::super::{Engine, Limits};
use super::{Verdict, demand};
use crate::store::Sql;

/// Everything that can grow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// Connections, and those being closed.
    connections: u64,
    /// Live messages waiting behind drains: on one connection.
    held: u64,
    held_bytes: u64,
    /// Messages under way: on one connection.
    flight: u64,
    /// Index entries of one queue, without content.
    index: u64,
    /// Queues whose index is in memory.
    queues: u64,
    /// What one device's pushes are remembered by.
    pushes: u64,
    members: u64,
    /// Outputs, and notes for the turn, that outlive the turn.
    left_over: u64,
}

/// Unproved messages that a connection without RECEIPTS may have; with RECEIPTS the window is smaller.
const UNPROVED: u64 = 200;

/// Tags without a message that are remembered for their spacing, and pushes under way.
const PUSHED: u64 = 64 + 6;

pub(super) fn measure<S: Sql>(engine: &Engine<S>) -> Memory {
    let mut memory = Memory {
        connections: (engine.conns.len() + engine.closing.len()) as u64,
        left_over: (engine.outputs.len() + engine.dirty.len() + engine.left.len() + engine.sent.len()) as u64,
        members: engine.known_space().map_or(0, |space| space.members.len() as u64),
        ..Memory::default()
    };
    for conn in engine.conns.values() {
        if let Phase::Member(session) = &conn.phase {
            memory.held = memory.held.max(session.held.len());
            memory.held_bytes = memory.held_bytes.max(session.held.bytes());
            memory.flight = memory.flight.max(session.flight.len());
        }
    }
    (memory.queues, memory.index) = engine.cache.sizes();
    memory.pushes = engine.cache.pushes.iter().flatten().map(|(_, device)| device.len() as u64).max().unwrap_or(0);
    memory
}

/// What is allowed with so many sockets.
pub(super) fn bound(limits: &Limits, sockets: u64) -> Memory {
    let devices = limits.devices + limits.pending;
    // Rows that were written to the connection do not count toward the queue's limit.
    let index = limits.queue_messages + UNPROVED.max(limits.window_messages) + 1;
    Memory {
        connections: sockets,
        held: limits.held_messages,
        held_bytes: limits.held_bytes.max(limits.max_live_frame),
        flight: UNPROVED.max(limits.window_messages),
        index,
        pushes: index + PUSHED,
        queues: devices + 1,
        members: devices,
        left_over: 0,
    }
}

impl Memory {
    pub(super) fn within(&self, bound: &Self) -> Verdict {
        let pairs = [
            (self.connections, bound.connections),
            (self.held, bound.held),
            (self.held_bytes, bound.held_bytes),
            (self.flight, bound.flight),
            (self.index, bound.index),
            (self.queues, bound.queues),
            (self.pushes, bound.pushes),
            (self.members, bound.members),
            (self.left_over, bound.left_over),
        ];
        demand!(pairs.iter().all(|(is, may)| is <= may), "memory is bounded", "{self:?}, at most {bound:?}");
        Ok(())
    }
}
