//! Pairing windows and the devices that come through them (wire protocol, Handshake).

use skald_common::ids::PairingToken;
use skald_common::wire::{
    AuthOk, ClientPaired, CloseCode, ErrorCode, Frame, PairingReady, PairingStart, PairingStopOk,
};

use super::auth::Pairing;
use super::conn::AGENT;
use super::{ConnId, Engine, Refusal, Turn};
use crate::store::{Member, Sql, SqlError, Standing, Window};

impl<S: Sql> Engine<S> {
    /// Opens a window; an older one, and its token, are void.
    pub(super) fn on_pairing_start(
        &mut self,
        turn: Turn<'_>,
        id: ConnId,
        start: &PairingStart,
    ) -> Result<(), SqlError> {
        let Ok(token) = PairingToken::from_slice(&start.pairing_token) else {
            self.tell_error(turn, id, ErrorCode::BadRequest, "a pairing token has 32 bytes", 0);
            return Ok(());
        };
        let asked = if start.ttl == 0 { self.limits.pairing_ttl } else { u64::from(start.ttl) * 1000 };
        let granted = asked.min(self.limits.pairing_ttl_max);
        let until = turn.now.saturating_add(granted);
        self.change_row(|row| row.window = Some(Window { token, until }))?;
        let ttl = u32::try_from(granted / 1000).unwrap_or(u32::MAX);
        self.send(id, Frame::PairingReady(PairingReady { ttl }));
        Ok(())
    }

    pub(super) fn on_pairing_stop(&mut self, id: ConnId) -> Result<(), SqlError> {
        self.change_row(|row| row.window = None)?;
        self.send(id, Frame::PairingStopOk(PairingStopOk {}));
        Ok(())
    }

    /// A device shows a token. Every reason to refuse it has the same answer.
    pub(super) fn pair(&mut self, turn: Turn<'_>, id: ConnId, pairing: Pairing) -> Result<(), SqlError> {
        let open = self.space()?.filter(|space| {
            let window = space.row.window.as_ref();
            space.row.agent != pairing.key
                && window.is_some_and(|window| turn.now < window.until && window.token == pairing.token)
        });
        let Some(space) = open else {
            self.refuse(id, Refusal::new(ErrorCode::PairingClosed, "no pairing is open for this device"));
            return Ok(());
        };
        let before = space.device(&pairing.key).cloned();
        let device = Member {
            no: before.as_ref().map_or_else(|| space.next_number(), |member| member.no),
            key: pairing.key,
            x25519: Some(pairing.x25519),
            standing: Standing::Pending,
            token: pairing.push.token,
            platform: pairing.push.platform,
            paired_at: turn.now,
        };
        self.store_pending(turn, &device)?;
        if before.is_some()
            && let Some(old) = self.online.get(&device.no).copied()
        {
            self.end(turn, old, Some(CloseCode::Replaced));
        }
        self.end_lost_pipes()?;
        if let Some(agent) = self.online.get(&AGENT).copied() {
            self.announce(agent, &device);
        }
        self.ensure_alarm(turn, turn.now.saturating_add(self.limits.pending_life))?;
        self.send(id, Frame::AuthOk(AuthOk { namespace_id: pairing.namespace.to_vec(), features: 0 }));
        self.conns.remove(&id);
        self.close(id, CloseCode::Normal);
        Ok(())
    }

    /// In one step: the token is used up, the device is pending, its old queue is gone, and of too many pending devices
    /// the oldest are forgotten.
    fn store_pending(&mut self, turn: Turn<'_>, device: &Member) -> Result<(), SqlError> {
        let Some(space) = self.space()? else { return Ok(()) };
        let mut after = space.clone();
        after.row.window = None;
        after.put(device.clone());
        let pending = after.pending();
        let life = self.limits.pending_life;
        let late = |member: &Member| member.paired_at.saturating_add(life) <= turn.now;
        let surplus = pending.len().saturating_sub(usize::try_from(self.limits.pending).unwrap_or(usize::MAX));
        let forgotten: Vec<u32> = pending
            .iter()
            .enumerate()
            .filter(|(at, member)| member.no != device.no && (*at < surplus || late(member)))
            .map(|(_, member)| member.no)
            .collect();
        after.members.retain(|member| !forgotten.contains(&member.no));
        self.store.transaction(|| {
            self.store.put_namespace(&after.row)?;
            self.store.purge_queue(device.no)?;
            self.store.delete_push(device.no)?;
            for no in &forgotten {
                self.store.delete_member(*no)?;
            }
            self.store.put_member(device)
        })?;
        self.set_space(after);
        self.forget_queue(device.no);
        Ok(())
    }

    /// Tells the agent of every device that waits for its word.
    pub(super) fn announce_pending(&mut self, turn: Turn<'_>, agent: ConnId) -> Result<(), SqlError> {
        let life = self.limits.pending_life;
        let pending = self.space()?.map(super::space::Space::pending).unwrap_or_default();
        for device in pending.iter().filter(|device| device.paired_at.saturating_add(life) > turn.now) {
            self.announce(agent, device);
        }
        Ok(())
    }

    fn announce(&mut self, agent: ConnId, device: &Member) {
        let paired = ClientPaired {
            client_ed25519_pub: device.key.to_vec(),
            client_x25519_pub: device.x25519.map(|key| key.to_vec()).unwrap_or_default(),
            platform: device.platform,
        };
        self.send(agent, Frame::ClientPaired(paired));
    }
}
