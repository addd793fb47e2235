//! What an agent is told of the pushes to its devices (wire protocol, `PushStatus`).

use skald_common::wire::{Features, Frame, Push, PushState, PushStatus};

use super::super::conn::{AGENT, Session};
use super::super::{ConnId, Engine};
use super::is_on;
use crate::store::{Member, Sql, SqlError};

impl<S: Sql> Engine<S> {
    /// The agent has said who belongs: all of them.
    pub(in super::super) fn tell_push_states(&mut self, agent: ConnId) -> Result<(), SqlError> {
        if !self.session(agent).is_some_and(wants) {
            return Ok(());
        }
        let devices: Vec<Member> = self.space()?.map(|space| space.authorized().cloned().collect()).unwrap_or_default();
        let devices: Vec<PushState> =
            devices.iter().map(|device| self.push_state(device)).collect::<Result<_, SqlError>>()?;
        if !devices.is_empty() {
            self.send(agent, Frame::PushStatus(PushStatus { devices }));
        }
        Ok(())
    }

    /// A device's address has changed.
    pub(in super::super) fn tell_push_change(&mut self, before: &Member, after: &Member) -> Result<(), SqlError> {
        let state = self.push_state(after)?;
        if state != self.push_state(before)? {
            self.tell_push_state(state);
        }
        Ok(())
    }

    pub(super) fn tell_push_state(&mut self, state: PushState) {
        if let Some(agent) = self.online.get(&AGENT).copied().filter(|agent| self.session(*agent).is_some_and(wants)) {
            self.send(agent, Frame::PushStatus(PushStatus { devices: vec![state] }));
        }
    }

    pub(super) fn push_state(&mut self, device: &Member) -> Result<PushState, SqlError> {
        let push = match device.token.as_str() {
            "" if self.device(device.no)?.gone.is_empty() => Push::None,
            "" => Push::Gone,
            _ if is_on(self.services, device.platform) => Push::Ready,
            _ => Push::Off,
        };
        Ok(PushState { client_ed25519_pub: device.key.to_vec(), push: push as i32 })
    }
}

const fn wants(session: &Session) -> bool {
    session.has(Features::PUSH_STATUS)
}
