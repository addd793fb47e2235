//! Methods of the hosts' socket (socket API, Host → daemon).

use serde::{Deserialize, Serialize};
use skald_common::ids::NamespaceId;
use skald_common::payload::RawJson;

use super::reply::{Reply, done, ok};
use super::{Context, VERSION};
use crate::hub::api::{DeviceCounts, InboxSet, PendingCounts, RelayStatus, SessionId};
use crate::hub::items::{Kind, RequestId};
use crate::rpc::{Call, RpcError, codes};

const METHODS: [&str; 6] = ["hello", "inbox.sync", "inbox.requested", "inbox.resolved", "notification.send", "status"];

#[derive(Deserialize)]
struct Sync {
    approvals: Vec<RawJson>,
    clarifications: Vec<RawJson>,
    #[serde(default)]
    elicitations: Vec<RawJson>,
}

#[derive(Deserialize)]
struct Requested {
    kind: Kind,
    item: RawJson,
}

#[derive(Deserialize)]
struct Resolved {
    kind: Kind,
    request_id: RequestId,
}

#[derive(Deserialize)]
struct Notification {
    title: String,
    body: String,
}

/// What a host may know: whether asking makes sense now.
#[derive(Serialize)]
struct ShortStatus {
    version: &'static str,
    pid: u32,
    namespace_id: NamespaceId,
    relay: RelayStatus,
    devices: DeviceCounts,
    pending: PendingCounts,
}

/// Serves a call after `hello`.
pub(super) async fn call(call: &Call, session: SessionId, context: &Context) -> Reply {
    let hub = &context.hub;
    match call.method.as_str() {
        "inbox.sync" => {
            let Sync { approvals, clarifications, elicitations } = call.params()?;
            hub.inbox_sync(session, InboxSet { approvals, clarifications, elicitations }).await?;
            done()
        }
        "inbox.requested" => {
            let Requested { kind, item } = call.params()?;
            hub.inbox_requested(session, kind, item).await?;
            done()
        }
        "inbox.resolved" => {
            let Resolved { kind, request_id } = call.params()?;
            hub.inbox_resolved(session, kind, request_id).await?;
            done()
        }
        "notification.send" => {
            let Notification { title, body } = call.params()?;
            ok(&hub.notify(title, body).await?)
        }
        "status" => {
            let status = hub.status().await?;
            ok(&ShortStatus {
                version: VERSION,
                pid: std::process::id(),
                namespace_id: status.namespace_id,
                relay: status.relay,
                devices: status.devices,
                pending: status.pending,
            })
        }
        "hello" => Err(RpcError::new(codes::INVALID_REQUEST, "hello was said already")),
        other => Err(RpcError::method_not_found(other, &METHODS)),
    }
}
