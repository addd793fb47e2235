//! Sockets that systemd made for us (socket activation).
//!
//! systemd names each one (`FileDescriptorName=`): `agentd.sock` or `control.sock`. Their files stay systemd's.

use std::io;

use listenfd::ListenFd;
use tokio::net::UnixListener;

use super::listen::Socket;

/// What systemd passed cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InheritedError {
    /// A name that we do not know.
    #[error("systemd passed a socket named {0:?}: set FileDescriptorName= to agentd.sock or control.sock in its unit")]
    Name(String),
    /// Not a Unix stream socket that listens.
    #[error("systemd passed {name} as something else than a listening Unix socket: {error}")]
    Kind {
        /// Which.
        name: &'static str,
        /// Why.
        error: io::Error,
    },
}

/// The sockets that systemd passed.
pub struct Inherited {
    sockets: ListenFd,
    /// By position.
    names: Vec<Socket>,
}

impl Inherited {
    /// None.
    pub fn none() -> Self {
        Self { sockets: ListenFd::empty(), names: Vec::new() }
    }

    /// From this process's environment.
    pub fn from_env() -> Result<Self, InheritedError> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        // Sees to it that they are meant for this process.
        let sockets = ListenFd::from_env();
        let names = if sockets.len() == 0 { Vec::new() } else { parse(&names, sockets.len())? };
        Ok(Self { sockets, names })
    }

    pub(super) fn has(&self, socket: Socket) -> bool {
        self.names.contains(&socket)
    }

    pub(super) fn take(&mut self, socket: Socket) -> Result<Option<UnixListener>, InheritedError> {
        let Some(position) = self.names.iter().position(|name| *name == socket) else { return Ok(None) };
        let kind = |error| InheritedError::Kind { name: socket.name(), error };
        let Some(listener) = self.sockets.take_unix_listener(position).map_err(kind)? else { return Ok(None) };
        listener.set_nonblocking(true).map_err(kind)?;
        UnixListener::from_std(listener).map(Some).map_err(kind)
    }
}

fn parse(names: &str, count: usize) -> Result<Vec<Socket>, InheritedError> {
    let mut sockets = Vec::new();
    for position in 0..count {
        let name = names.split(':').nth(position).unwrap_or_default();
        let socket = Socket::BOTH.into_iter().find(|socket| socket.name() == name);
        sockets.push(socket.ok_or_else(|| InheritedError::Name(name.to_owned()))?);
    }
    Ok(sockets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_matched_by_position_and_unknown_ones_refused() {
        let both = parse("control.sock:agentd.sock", 2).unwrap();
        assert_eq!(both, [Socket::Control, Socket::Hosts]);
        let error = parse("control.sock", 2).unwrap_err().to_string();
        assert!(error.contains("\"\"") && error.contains("FileDescriptorName="), "{error}");
        assert!(parse("skald-agentd.socket", 1).is_err());
    }
}
