//! From host and path to what serves it (wire protocol, Endpoints). Nothing outside maps to an internal path, on which alone
//! an object believes an identity; front and objects all use this module, so they cannot disagree.

use skald_common::{
    ids::NamespaceId,
    wire::{CONTROL_PATH, PIPE_PATH},
};

/// Where an object takes a connection that the front has authenticated. No outside request reaches it.
pub const INTERNAL_CONTROL: &str = "/internal/ws";
/// Carries the verified `Auth` frame, base64url, on [`INTERNAL_CONTROL`]; meaningless anywhere else.
pub const VERIFIED_AUTH_HEADER: &str = "x-skald-verified-auth";
/// Where a namespace's object takes the end of a pipe. No outside request reaches it.
pub const INTERNAL_PIPE: &str = "/internal/pipe";
/// Carries the verified answer of the pipe end's client, base64url, on [`INTERNAL_PIPE`].
pub const PIPE_AUTH_HEADER: &str = "x-skald-pipe-auth";
/// Names the object of the pipe end on [`INTERNAL_PIPE`].
pub const PIPE_END_HEADER: &str = "x-skald-pipe-end";
/// Where a pipe end takes the link of the other end. No outside request reaches it.
pub const INTERNAL_LINK: &str = "/internal/link";
/// The connection id of the pipe, in hexadecimal, on [`INTERNAL_LINK`].
pub const PIPE_HEADER: &str = "x-skald-pipe";

/// Where browsers get the key that they subscribe to pushes with.
pub const WEBPUSH_KEY: &str = "/v1/webpush-key";

/// Length of a namespace in base32 without padding.
const BASE32_LEN: usize = 52;

/// The two kinds of socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Socket {
    /// Frames of the wire protocol.
    Control,
    /// The pipe data plane.
    Pipe,
}

/// What serves a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// `/healthz`.
    Health,
    /// `/v1/webpush-key`.
    WebPushKey,
    /// The namespace is not known before `Auth`: the Worker, or a pipe's end, runs the challenge.
    Front(Socket),
    /// The namespace is in the path or the host: the object runs the challenge.
    Direct(NamespaceId, Socket),
    /// 404.
    Unknown,
}

/// Finds the route. `host` without port; `wildcard_parent`: the domain whose subdomains are namespaces, if there is one.
pub fn route(host: &str, path: &str, wildcard_parent: Option<&str>) -> Route {
    if path == "/healthz" {
        return Route::Health;
    }
    if path == WEBPUSH_KEY {
        return Route::WebPushKey;
    }
    if let Some(socket) = socket(path) {
        let namespace = wildcard_parent.and_then(|parent| namespace_of_host(host, parent));
        return namespace.map_or(Route::Front(socket), |namespace| Route::Direct(namespace, socket));
    }
    direct(path).unwrap_or(Route::Unknown)
}

fn socket(path: &str) -> Option<Socket> {
    match path {
        CONTROL_PATH => Some(Socket::Control),
        PIPE_PATH => Some(Socket::Pipe),
        _ => None,
    }
}

fn direct(path: &str) -> Option<Route> {
    let rest = path.strip_prefix("/ns/")?;
    let (name, _) = rest.split_once('/')?;
    let socket = socket(rest.strip_prefix(name)?)?;
    Some(Route::Direct(NamespaceId::from_hex(name).ok()?, socket))
}

fn namespace_of_host(host: &str, parent: &str) -> Option<NamespaceId> {
    let host = host.to_ascii_lowercase();
    let label = host.strip_suffix(&parent.to_ascii_lowercase())?.strip_suffix('.')?;
    decode_base32(label)
}

/// RFC 4648 base32 in lower case without padding, of exactly 32 bytes; spare bits must be zero.
fn decode_base32(text: &str) -> Option<NamespaceId> {
    if text.len() != BASE32_LEN {
        return None;
    }
    let (mut bytes, mut bits, mut pending) = (Vec::with_capacity(NamespaceId::LEN), 0u32, 0u32);
    for digit in text.bytes() {
        let value = match digit {
            b'a'..=b'z' => digit - b'a',
            b'2'..=b'7' => digit - b'2' + 26,
            _ => return None,
        };
        pending = (pending << 5) | u32::from(value);
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(pending >> bits).ok()?);
            pending &= (1 << bits) - 1;
        }
    }
    if pending != 0 {
        return None;
    }
    NamespaceId::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: &str = "abababababababababababababababababababababababababababababababab";
    /// 32 times 0xab.
    const LABEL: &str = "vov2xk5lvov2xk5lvov2xk5lvov2xk5lvov2xk5lvov2xk5lvovq";

    fn namespace() -> NamespaceId {
        NamespaceId::from_hex(NAMESPACE).unwrap()
    }

    #[test]
    fn every_documented_path_has_its_route() {
        let at = |path: &str| route("relay.example", path, None);
        assert_eq!(at("/healthz"), Route::Health);
        assert_eq!(at("/v1/webpush-key"), Route::WebPushKey);
        assert_eq!(at("/v1/ws"), Route::Front(Socket::Control));
        assert_eq!(at("/v1/pipe"), Route::Front(Socket::Pipe));
        assert_eq!(at(&format!("/ns/{NAMESPACE}/v1/ws")), Route::Direct(namespace(), Socket::Control));
        assert_eq!(at(&format!("/ns/{}/v1/pipe", NAMESPACE.to_uppercase())), Route::Direct(namespace(), Socket::Pipe));
    }

    #[test]
    fn any_other_path_is_unknown_and_internal_ones_are_among_them() {
        for path in [
            "",
            "/",
            "/v1",
            "/v1/ws/",
            "/v1/webpush-key/",
            "/V1/ws",
            "//v1/ws",
            INTERNAL_CONTROL,
            INTERNAL_PIPE,
            INTERNAL_LINK,
            "/internal",
            "/ns/",
            "/ns//v1/ws",
            "/ns/abab/v1/ws",
            &format!("/ns/{NAMESPACE}"),
            &format!("/ns/{NAMESPACE}/"),
            &format!("/ns/{NAMESPACE}/v1/other"),
            &format!("/ns/{NAMESPACE}/v1/ws/"),
            &format!("/ns/{NAMESPACE}/internal/ws"),
            &format!("/ns/{NAMESPACE}ab/v1/ws"),
            &format!("/ns/{}/v1/ws", "xy".repeat(32)),
            &format!("/ns/{}/v1/ws", "é".repeat(32)),
        ] {
            for parent in [None, Some("relay.example")] {
                assert_eq!(route(&format!("{LABEL}.relay.example"), path, parent), Route::Unknown, "{path}");
            }
        }
    }

    #[test]
    fn a_namespace_host_is_a_direct_route_where_the_parent_is_configured() {
        let direct = Route::Direct(namespace(), Socket::Control);
        let at = |host: &str, parent| route(host, "/v1/ws", parent);
        assert_eq!(at(&format!("{LABEL}.relay.example"), Some("relay.example")), direct);
        assert_eq!(at(&format!("{}.Relay.Example", LABEL.to_uppercase()), Some("relay.example")), direct);
        for host in [
            "relay.example".to_owned(),
            format!("{LABEL}.other.example"),
            format!("{LABEL}relay.example"),
            format!("{LABEL}.x.relay.example"),
            format!("{LABEL}a.relay.example"),
            format!("{}r.relay.example", &LABEL[..51]),
            format!("{}1.relay.example", &LABEL[..51]),
        ] {
            assert_eq!(at(&host, Some("relay.example")), Route::Front(Socket::Control), "{host}");
        }
        assert_eq!(at(&format!("{LABEL}.relay.example"), None), Route::Front(Socket::Control));
    }
}
