//! Sending, refusing and closing.

use skald_common::ids::Ed25519Public;
use skald_common::wire::{self, Accepted, CloseCode, Error, ErrorCode, Features, Frame, PeerOffline};

use super::{ConnId, Engine, Output, Refusal, Turn, attachment};
use crate::store::Sql;

/// A peer that provokes errors and does not read them is cut off at this many waiting bytes.
const MAX_UNREAD: u64 = 8 * 1024 * 1024;

impl<S: Sql> Engine<S> {
    pub(super) fn send(&mut self, id: ConnId, frame: Frame) {
        self.send_bytes(id, wire::encode(frame).into());
    }

    pub(super) fn send_bytes(&mut self, id: ConnId, bytes: bytes::Bytes) {
        *self.sent.entry(id).or_default() += bytes.len() as u64;
        self.outputs.push_back(Output::Send { conn: id, bytes });
    }

    /// Bytes written to a connection and not on their way.
    pub(super) fn unsent(&self, turn: Turn<'_>, id: ConnId) -> u64 {
        turn.links.buffered(id).saturating_add(self.sent.get(&id).copied().unwrap_or(0))
    }

    /// Ends a handshake: `AuthError`, close.
    pub(super) fn refuse(&mut self, id: ConnId, refusal: Refusal) {
        self.send_bytes(id, refusal.frame().into());
        self.conns.remove(&id);
        self.close(id, refusal.close_code());
    }

    /// Closes a socket that is no connection of the engine's any more.
    pub(super) fn close(&mut self, id: ConnId, code: CloseCode) {
        self.close_with(id, code.code(), code.reason());
    }

    pub(super) fn close_with(&mut self, id: ConnId, code: u16, reason: &'static str) {
        self.closing.insert(id);
        self.outputs.push_back(Output::Attach { conn: id, bytes: attachment::closed(id).into() });
        self.outputs.push_back(Output::Close { conn: id, code, reason });
    }

    /// A frame of a member was refused; its connection lives. `reference` is 0 unless the sender has RECEIPTS.
    pub(super) fn tell_error(&mut self, turn: Turn<'_>, id: ConnId, code: ErrorCode, message: &str, reference: u64) {
        let error = Error { code: code.to_string(), message: message.to_owned(), r#ref: reference };
        self.send(id, Frame::Error(error));
        if self.unsent(turn, id) > MAX_UNREAD {
            self.end(turn, id, Some(CloseCode::Refused));
        }
    }

    pub(super) fn tell_too_large(&mut self, turn: Turn<'_>, id: ConnId, reference: u64) {
        self.tell_error(turn, id, ErrorCode::PayloadTooLarge, "frame too large", reference);
        self.end(turn, id, Some(CloseCode::TooBig));
    }

    /// A message is durable, or, live, written.
    pub(super) fn tell_accepted(&mut self, id: ConnId, reference: u64, queued: bool) {
        if reference != 0 && self.session(id).is_some_and(|session| session.has(Features::RECEIPTS)) {
            self.send(id, Frame::Accepted(Accepted { r#ref: reference, queued }));
        }
    }

    /// A live message found nobody.
    pub(super) fn tell_offline(&mut self, id: ConnId, peer: Ed25519Public, reference: u64) {
        if self.session(id).is_some() {
            self.send(id, Frame::PeerOffline(PeerOffline { peer: peer.to_vec(), r#ref: reference }));
        }
    }
}
