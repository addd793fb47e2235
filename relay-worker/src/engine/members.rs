//! Who belongs: the agent's list (wire protocol, Authorize).

use std::collections::BTreeSet;

use skald_common::ids::{Ed25519Public, IdError};
use skald_common::wire::{Authorize, AuthorizeOk, CloseCode, ErrorCode, Frame};

use super::{ConnId, Engine, Turn};
use crate::store::{Member, Sql, SqlError, Standing};

impl<S: Sql> Engine<S> {
    /// The list replaces the stored one, in one step; a wrong one changes nothing.
    pub(super) fn on_authorize(&mut self, turn: Turn<'_>, id: ConnId, list: &Authorize) -> Result<(), SqlError> {
        let keys: Result<BTreeSet<Ed25519Public>, IdError> =
            list.clients.iter().map(|key| Ed25519Public::from_slice(key)).collect();
        let Ok(mut keys) = keys else {
            self.tell_error(turn, id, ErrorCode::BadRequest, "a key has 32 bytes", 0);
            return Ok(());
        };
        // The agent's own key is no device.
        if let Some(session) = self.session(id) {
            keys.remove(&session.key);
        }
        if keys.len() as u64 > self.limits.devices {
            self.tell_error(turn, id, ErrorCode::BadRequest, "too many devices", 0);
            return Ok(());
        }
        for revoked in self.replace_list(turn, &keys)? {
            if let Some(conn) = self.online.get(&revoked).copied() {
                self.end(turn, conn, Some(CloseCode::Revoked));
            }
        }
        self.end_lost_pipes()?;
        let authorized = u32::try_from(keys.len()).unwrap_or(u32::MAX);
        self.send(id, Frame::AuthorizeOk(AuthorizeOk { authorized }));
        self.tell_push_states(id)
    }

    /// Writes what the list changes; the numbers of those it revokes.
    fn replace_list(&mut self, turn: Turn<'_>, keys: &BTreeSet<Ed25519Public>) -> Result<Vec<u32>, SqlError> {
        let Some(space) = self.space()? else { return Ok(Vec::new()) };
        let before = space.clone();
        let mut after = space.clone();
        after.row.authorized = true;
        let revoked: Vec<u32> =
            before.authorized().filter(|member| !keys.contains(&member.key)).map(|member| member.no).collect();
        after.members.retain(|member| !revoked.contains(&member.no));
        let life = self.limits.pending_life;
        let mut changed = Vec::new();
        for key in keys {
            let device = match before.device(key) {
                Some(known) if known.standing == Standing::Authorized => continue,
                // Forgotten already, though its row may still be there: of its push address nothing is to come back.
                Some(late) if late.paired_at.saturating_add(life) <= turn.now => stranger(late.no, *key),
                Some(pending) => Member { standing: Standing::Authorized, ..pending.clone() },
                // Never seen, or lost: a relay that lost a namespace gets its devices back this way.
                None => stranger(after.next_number(), *key),
            };
            after.put(device.clone());
            changed.push(device);
        }
        if before == after {
            return Ok(revoked);
        }
        self.store.transaction(|| {
            if before.row != after.row {
                self.store.put_namespace(&after.row)?;
            }
            for no in &revoked {
                self.store.delete_member(*no)?;
            }
            changed.iter().try_for_each(|device| self.store.put_member(device))
        })?;
        self.set_space(after);
        for no in &revoked {
            self.forget_queue(*no);
        }
        Ok(revoked)
    }

    /// Writes one device.
    pub(super) fn put_member(&mut self, member: Member) -> Result<(), SqlError> {
        self.store.put_member(&member)?;
        self.know_member(member)
    }

    /// A device's row has been written.
    pub(super) fn know_member(&mut self, member: Member) -> Result<(), SqlError> {
        if let Some(space) = self.space()? {
            let mut space = space.clone();
            space.put(member);
            self.set_space(space);
        }
        Ok(())
    }
}

/// A device of which only the key is known.
fn stranger(no: u32, key: Ed25519Public) -> Member {
    Member { no, key, x25519: None, standing: Standing::Authorized, token: String::new(), platform: 0, paired_at: 0 }
}
