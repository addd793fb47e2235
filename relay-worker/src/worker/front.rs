//! The stateless Worker: finds the route, counts connections per address, hands direct upgrades to their object and is
//! out of the path then, and runs a [`session`](super::session) for those who name their namespace only in `Auth`.

use std::cell::RefCell;

use skald_common::ids::NamespaceId;
use worker::{Env, Headers, Method, Request, RequestInit, Response, Result, Stub, WebSocket};

use super::{js, push_log, pushes, session};
use crate::engine::EndId;
use crate::front::address_limit::AddressLimit;
use crate::front::routes::{self, Route, Socket};

/// The Durable Object binding of wrangler.toml.
const NAMESPACES: &str = "NAMESPACE";
/// The platform's own counter of connections per address; optional.
const CONNECTIONS: &str = "CONNECTIONS";
/// The Durable Object binding of the ends of pipes.
const PIPE_ENDS: &str = "PIPE_END";
/// The platform's own counter of pipe sockets per address; optional.
const PIPE_CONNECTIONS: &str = "PIPE_CONNECTIONS";
/// The variable with the parent domain of namespace hosts.
const WILDCARD_HOST: &str = "RELAY_WILDCARD_HOST";
/// Set by Cloudflare on every request from outside; elsewhere absent unless a proxy sets it.
const CLIENT_ADDRESS: &str = "CF-Connecting-IP";

thread_local! {
    static ADDRESSES: [RefCell<AddressLimit>; 2] = Default::default();
}

/// Answers one request.
pub(super) async fn serve(request: Request, env: Env) -> Result<Response> {
    match route(&request, &env)? {
        Route::Health => health(&env).await,
        Route::WebPushKey => webpush_key(&env),
        Route::Unknown => Response::error("not found", 404),
        Route::Front(_) | Route::Direct(..) if !wants_upgrade(&request)? => upgrade_required(),
        Route::Front(socket) | Route::Direct(_, socket) if !admitted(&request, &env, socket).await? => {
            Response::error("too many connections from this address", 429)
        }
        // An object for each socket, which is the only way to slow a sender down (pipe protocol, Backpressure).
        Route::Front(Socket::Pipe) | Route::Direct(_, Socket::Pipe) => {
            env.durable_object(PIPE_ENDS)?.unique_id()?.get_stub()?.fetch_with_request(request).await
        }
        Route::Direct(namespace, Socket::Control) => object(&env, &namespace)?.fetch_with_request(request).await,
        Route::Front(Socket::Control) => session::open(env),
    }
}

/// The object of a namespace. Nothing exists there before a successful `Auth`.
pub(super) fn object(env: &Env, namespace: &NamespaceId) -> Result<Stub> {
    env.durable_object(NAMESPACES)?.get_by_name(&namespace.to_hex())
}

/// The object of an end of a pipe; its id is known to the namespace and to the end itself.
pub(super) fn pipe_end(env: &Env, end: &EndId) -> Result<Stub> {
    env.durable_object(PIPE_ENDS)?.id_from_string(end.as_str())?.get_stub()
}

/// The route of a request; front and object see the same URL on direct routes, and come to the same result.
pub(super) fn route(request: &Request, env: &Env) -> Result<Route> {
    let (host, path) = js::host_and_path(request)?;
    let parent = js::variable(env, WILDCARD_HOST);
    Ok(routes::route(&host, &path, parent.as_deref()))
}

/// A socket to an object, on an internal path.
pub(super) async fn connect(object: &Stub, path: &str, headers: Headers) -> Result<WebSocket> {
    headers.set("Upgrade", "websocket")?;
    let mut init = RequestInit::new();
    init.with_method(Method::Get).with_headers(headers);
    let request = Request::new_with_init(&format!("https://object{path}"), &init)?;
    let response = object.fetch_with_request(request).await?;
    let status = response.status_code();
    response.websocket().ok_or_else(|| worker::Error::RustError(format!("the object answered {status}")))
}

/// Whether this is a WebSocket upgrade.
pub(super) fn wants_upgrade(request: &Request) -> Result<bool> {
    Ok(request.headers().get("Upgrade")?.is_some_and(|value| value.eq_ignore_ascii_case("websocket")))
}

/// A socket path was asked for without an upgrade.
pub(super) fn upgrade_required() -> Result<Response> {
    let response = Response::error("this is a WebSocket", 426)?;
    response.headers().set("Upgrade", "websocket")?;
    Ok(response)
}

async fn health(env: &Env) -> Result<Response> {
    let response = Response::ok(push_log::health(env).await)?;
    response.headers().set("content-type", "application/json")?;
    Ok(response)
}

/// The key that browsers subscribe with; web apps of any origin may ask for it.
fn webpush_key(env: &Env) -> Result<Response> {
    let response = match pushes::credentials(env).webpush_key() {
        Some(key) => Response::ok(key)?,
        None => Response::error("no Web Push here", 404)?,
    };
    response.headers().set("content-type", "text/plain")?;
    response.headers().set("access-control-allow-origin", "*")?;
    Ok(response)
}

/// Counts a connection: in this isolate, and in the whole data centre where the platform counts. Pipes count apart.
async fn admitted(request: &Request, env: &Env, socket: Socket) -> Result<bool> {
    let Some(address) = request.headers().get(CLIENT_ADDRESS)? else { return Ok(true) };
    let limits = js::limits(env);
    let (at, limit, counter) = match socket {
        Socket::Control => (0, limits.connections_per_minute, CONNECTIONS),
        Socket::Pipe => (1, limits.pipe_connections_per_minute, PIPE_CONNECTIONS),
    };
    let here = ADDRESSES.with(|addresses| {
        addresses.get(at).is_none_or(|addresses| addresses.borrow_mut().admit(js::now_ms(), &address, limit))
    });
    if !here {
        return Ok(false);
    }
    match env.rate_limiter(counter) {
        // A counter that fails must not shut everybody out.
        Ok(counter) => Ok(counter.limit(address).await.map_or(true, |outcome| outcome.success)),
        Err(_) => Ok(true),
    }
}
