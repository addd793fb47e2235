//! The machine behind the tunnels: a local server that answers, refuses or says nothing, and pipes that end when they like.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use skald_common::ids::{ConnectionId, Ed25519Public};
use tokio::sync::oneshot;

use super::demand;
use super::oracle::Oracle;
use super::world::World;
use crate::hub::api::{Command, Settings};
use crate::hub::{Passed, TunnelNews, TunnelOrder};
use crate::tunnels::Tunnels;

/// How far a tunnel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Dialling,
    /// The server has answered.
    Dialled,
    Open,
}

/// Who asked for which pipe, and what the daemon was told to do about it.
#[derive(Default)]
pub(super) struct Machine {
    /// Never looked at by the daemon.
    asked: Vec<Ed25519Public>,
    tunnels: BTreeMap<ConnectionId, State>,
}

/// The daemon's end.
#[derive(Clone)]
pub(super) struct Tubes(pub(super) Rc<RefCell<Machine>>);

impl Tunnels for Tubes {
    fn order(&mut self, order: TunnelOrder) {
        let tunnels = &mut self.0.borrow_mut().tunnels;
        match order {
            TunnelOrder::Dial { connection, port } => {
                demand(port == 8080, || format!("port {port} is dialled"));
                let before = tunnels.insert(connection, State::Dialling);
                demand(before.is_none(), || "one pipe is dialled twice".into());
            }
            TunnelOrder::Open { agreed, .. } => {
                let before = tunnels.insert(agreed.connection, State::Open);
                demand(before == Some(State::Dialled), || format!("a pipe is accepted when it is {before:?}"));
            }
            TunnelOrder::End(connection) => drop(tunnels.remove(&connection)),
        }
    }

    fn passed(&self) -> Passed {
        Passed::new()
    }
}

impl Machine {
    /// A device makes up a connection id.
    pub(super) fn invited(&mut self, by: Ed25519Public) -> ConnectionId {
        self.asked.push(by);
        id(self.asked.len())
    }

    pub(super) fn last_invited(&self, by: &Ed25519Public) -> Option<ConnectionId> {
        self.asked.iter().rposition(|asked| asked == by).map(|at| id(at + 1))
    }

    fn in_state(&self, state: State) -> Vec<ConnectionId> {
        self.tunnels.iter().filter(|(_, is)| **is == state).map(|(connection, _)| *connection).collect()
    }

    pub(super) fn dialling(&self) -> Vec<ConnectionId> {
        self.in_state(State::Dialling)
    }

    pub(super) fn open(&self) -> Vec<ConnectionId> {
        self.in_state(State::Open)
    }

    pub(super) fn answers(&mut self, connection: ConnectionId, well: bool) -> TunnelNews {
        if well {
            self.tunnels.insert(connection, State::Dialled);
            TunnelNews::Dialled(connection)
        } else {
            self.tunnels.remove(&connection);
            TunnelNews::Refused(connection)
        }
    }

    pub(super) fn ends(&mut self, connection: ConnectionId) -> TunnelNews {
        self.tunnels.remove(&connection);
        TunnelNews::Ended(connection)
    }

    /// The daemon's process has ended, and with it all its tunnels.
    pub(super) fn restart(&mut self) {
        self.tunnels.clear();
    }

    /// What must hold whenever the daemon rests.
    pub(super) fn check(&self, settings: &Settings, oracle: &Oracle) {
        demand(self.tunnels.is_empty() || settings.web_port.is_some(), || "a tunnel without a proxy".into());
        for connection in self.tunnels.keys() {
            let number = u64::from_be_bytes(connection.as_bytes()[..8].try_into().unwrap());
            let device = &self.asked[usize::try_from(number).unwrap() - 1];
            demand(!oracle.is_out(device), || format!("{device:?} is revoked and has a tunnel"));
        }
    }
}

/// The `number`-th connection id.
fn id(number: usize) -> ConnectionId {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&u64::try_from(number).unwrap().to_be_bytes());
    ConnectionId::new(bytes)
}

impl World {
    /// The daemon lists those tunnels that there are.
    pub(super) fn no_tunnel_is_forgotten(&mut self) {
        let (sender, mut receiver) = oneshot::channel();
        self.call(|core| core.command(Command::Status(sender)));
        let listed: usize = receiver.try_recv().unwrap().unwrap().proxy.tunnels.iter().map(|of| of.open).sum();
        let machine = self.machine.borrow();
        let (open, all) = (machine.open().len(), machine.tunnels.len());
        demand(listed == open, || format!("{listed} tunnels are listed, {open} are open"));
        demand(open == all, || "a tunnel is neither open nor given up".into());
    }
}
