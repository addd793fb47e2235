//! The opening of a connection (socket API, Opening).

use serde::{Deserialize, Serialize};
use serde_json::json;
use skald_common::ids::{Ed25519Public, NamespaceId, X25519Public};

use super::reply::{Reply, ok};
use super::{Context, PROTOCOL, VERSION};
use crate::hub::api::{HostHello, HostSession, RelayStatus};
use crate::rpc::{Call, RpcError, codes};

/// Longest `name`.
const LONGEST_NAME: usize = 32;

#[derive(Deserialize)]
struct Version {
    protocol: u64,
}

#[derive(Deserialize)]
struct Params {
    name: String,
    version: String,
    label: Option<String>,
    linger_secs: Option<u64>,
}

#[derive(Serialize)]
struct Welcome {
    protocol: u64,
    daemon: Daemon,
    namespace_id: NamespaceId,
    agent_ed25519_pub: Ed25519Public,
    agent_x25519_pub: X25519Public,
    relay: RelayStatus,
}

#[derive(Serialize)]
struct Daemon {
    version: &'static str,
    pid: u32,
}

/// On the hosts' socket: opens a session of the hub.
pub(super) async fn host(call: &Call, context: &Context) -> Result<(HostSession, Reply), RpcError> {
    let Params { name, version, label, linger_secs } = read(call)?;
    let session = context.hub.open_host(HostHello { name, version, label, linger_secs }).await?;
    Ok((session, welcome(context).await))
}

/// On the control socket: several callers may have the same name.
pub(super) async fn control(call: &Call, context: &Context) -> Reply {
    read(call)?;
    welcome(context).await
}

fn read(call: &Call) -> Result<Params, RpcError> {
    if call.method != "hello" {
        return Err(RpcError::new(codes::HELLO_FIRST, "hello first"));
    }
    let Version { protocol } = call.params()?;
    if protocol != PROTOCOL {
        let text = format!("protocol {protocol} is not supported; this daemon ({VERSION}) speaks {PROTOCOL}");
        return Err(RpcError::new(codes::PROTOCOL, text).with_data(json!({"supported": [PROTOCOL]})));
    }
    let params: Params = call.params()?;
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if params.name.is_empty() || params.name.len() > LONGEST_NAME || !params.name.bytes().all(allowed) {
        return Err(RpcError::invalid_params(format!(
            "name: must be 1 to {LONGEST_NAME} lower-case letters, digits and hyphens"
        )));
    }
    Ok(params)
}

async fn welcome(context: &Context) -> Reply {
    let status = context.hub.status().await?;
    ok(&Welcome {
        protocol: PROTOCOL,
        daemon: Daemon { version: VERSION, pid: std::process::id() },
        namespace_id: status.namespace_id,
        agent_ed25519_pub: status.agent_ed25519_pub,
        agent_x25519_pub: status.agent_x25519_pub,
        relay: status.relay,
    })
}
