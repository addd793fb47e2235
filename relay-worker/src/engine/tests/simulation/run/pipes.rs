//! Pipes, as the namespace sees them: control sockets of their ends.

use skald_common::ids::{ConnectionId, Signature};
use skald_common::pipe::PipeAuth;
use skald_common::pipe::auth::dest_hash;

use super::super::super::super::{Input, Origin};
use super::super::Verdict;
use super::super::history::PEERS;
use super::super::oracle::{Cause, end_of};
use super::Run;

/// No history uses this one.
const LAST: u8 = u8::MAX;

impl Run {
    /// The end of a peer's client announces it.
    pub(super) fn join(&mut self, pipe: u8, peer: usize, partner: usize) -> Verdict {
        let conn = self.platform.accept_side();
        self.oracle.joins(conn, pipe, peer, partner);
        let auth = PipeAuth {
            connection: ConnectionId::new([pipe; 32]),
            pubkey: self.key(peer),
            dest: dest_hash(&self.key(partner)),
            namespace: self.namespace(),
            signature: Signature::new([1; 64]),
            flow: true,
        };
        let origin = Origin::Pipe { auth: auth.encode().into(), end: end_of(conn) };
        let outcome = self.turn(&Cause::Joins(conn), Input::Opened { conn, origin })?;
        if outcome.crashed {
            // The upgrade failed, and the end never saw the socket.
            self.platform.abandon(conn);
        }
        Ok(())
    }

    /// The client of a side is gone.
    pub(super) fn part(&mut self, pipe: u8, peer: usize) -> Verdict {
        self.oracle.side_of(pipe, peer).map_or(Ok(()), |conn| self.ended(conn, 1006))
    }

    /// All pipes end but one, which stays open.
    pub(super) fn open_pipe(&mut self) -> Verdict {
        for pipe in 0..LAST {
            for peer in 0..PEERS {
                self.part(pipe, peer)?;
            }
        }
        let Some(device) = self.oracle.authorized().next() else { return Ok(()) };
        self.join(LAST, 0, device)?;
        self.join(LAST, device, 0)
    }
}
