//! The two Unix sockets (socket API): who may connect, what may be called, and what the daemon calls in turn.
//!
//! * [`listen`]: makes the sockets, or takes them from systemd.
//! * `connection`: one task per connection; its queues, limits and end.
//! * `hello`, `host`, `control`: the methods.
//!
//! State is the hub's; nothing is kept here but what belongs to a connection.

mod access;
mod connection;
mod control;
mod hello;
mod host;
mod inherited;
mod listen;
mod output;
mod reply;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::UnixStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

pub use inherited::{Inherited, InheritedError};
pub use listen::{ListenError, Listener, Socket, listen};

use crate::config::ConfigHandle;
use crate::hub::api::HubHandle;
use crate::rpc::{RpcError, codes, encode};

/// Version of the protocol on the sockets.
pub const PROTOCOL: u64 = 1;

/// This program's version, as `hello` and `status` tell it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Connections at once on each socket.
const MOST_CONNECTIONS: usize = 256;

/// How long connections may take to write their last lines when the daemon stops.
const FAREWELL: Duration = Duration::from_secs(2);

/// Before the next try, when the system has no file descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// What the methods work with.
#[derive(Debug, Clone)]
pub struct Context {
    /// The owner of all state.
    pub hub: HubHandle,
    /// The owner of the settings.
    pub config: ConfigHandle,
    /// When the daemon started.
    pub started: Instant,
}

/// Serves both sockets until `stop` turns true, or its sender is dropped; then lets the connections finish what they are
/// writing, and removes the sockets.
pub async fn serve(listeners: Vec<Listener>, context: Context, stop: watch::Receiver<bool>) {
    let mut servers = JoinSet::new();
    for listener in listeners {
        servers.spawn(serve_one(listener, context.clone(), stop.clone()));
    }
    servers.join_all().await;
}

async fn serve_one(listener: Listener, context: Context, mut stop: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.inner.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(socket = listener.socket.name(), %error, "cannot take a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            () = connection::stopped(&mut stop) => break,
            Some(_) = connections.join_next() => continue,
        };
        let permit = match refusal(&listener, &stream) {
            None => Arc::clone(&places).try_acquire_owned().map_err(|_| "too many connections".to_owned()),
            Some(why) => Err(why),
        };
        match permit {
            Ok(permit) => {
                let connection = connection::run(stream, listener.socket, context.clone(), stop.clone());
                connections.spawn(async move {
                    connection.await;
                    drop(permit);
                });
            }
            Err(why) => refuse(&stream, listener.socket, why),
        }
    }
    // The socket goes first, so that nobody connects to a daemon that is leaving.
    drop(listener);
    let finished = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(FAREWELL, finished).await;
}

fn refusal(listener: &Listener, stream: &UnixStream) -> Option<String> {
    match stream.peer_cred() {
        Ok(peer) if listener.access.permits(peer) => None,
        Ok(peer) => Some(format!("user {} may not use {}", peer.uid(), listener.socket.name())),
        Err(error) => Some(format!("the caller's user cannot be found out: {error}")),
    }
}

/// Says why, if that goes at once, and closes.
fn refuse(stream: &UnixStream, socket: Socket, why: String) {
    tracing::warn!(socket = socket.name(), %why, "refused a connection");
    let error = RpcError::new(codes::REFUSED, why).with_data(serde_json::json!({"reason": "not_permitted"}));
    let _ = stream.try_write(&encode::error(encode::NO_ID, &error));
}
