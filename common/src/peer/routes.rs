//! Which addresses to try: the namespace's direct route first, then the path that every relay has (wire protocol,
//! Endpoints).

use crate::ids::NamespaceId;
use crate::wire::CONTROL_PATH;

/// Longest relay address, bytes.
pub const MAX_URL: usize = 2048;

/// An address is not one of a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// Neither ws:// nor wss://.
    #[error("the relay's address must begin with wss:// or ws://")]
    Scheme,
    /// Nothing between the scheme and the path.
    #[error("the relay's address has no host")]
    Host,
    /// A user name, a query, a fragment, white space or control characters.
    #[error("the relay's address may only have a host, a port and a path")]
    Extra,
    /// Longer than [`MAX_URL`].
    #[error("the relay's address is too long")]
    Long,
}

/// The addresses of one relay for one namespace, in order of preference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routes {
    urls: Vec<String>,
    at: usize,
    tried: usize,
}

impl Routes {
    /// From a configured or scanned address, placeholders filled in by [`with_namespace`]. Without a path, or with the
    /// common one, the direct route is tried first; any other path is taken as it is.
    pub fn new(url: &str, namespace: &NamespaceId) -> Result<Self, RouteError> {
        let url = with_namespace(url.trim(), namespace);
        if url.len() > MAX_URL {
            return Err(RouteError::Long);
        }
        let (scheme, rest) = url.split_once("://").ok_or(RouteError::Scheme)?;
        if !(scheme.eq_ignore_ascii_case("ws") || scheme.eq_ignore_ascii_case("wss")) {
            return Err(RouteError::Scheme);
        }
        if rest.contains(|c: char| "@?#\\".contains(c) || c.is_whitespace() || c.is_control()) {
            return Err(RouteError::Extra);
        }
        let (host, path) = rest.split_once('/').map_or((rest, ""), |(host, path)| (host, path));
        if host.is_empty() || host.starts_with(':') {
            return Err(RouteError::Host);
        }
        let origin = format!("{}://{host}", scheme.to_ascii_lowercase());
        let common = CONTROL_PATH.trim_start_matches('/');
        let urls = if path.is_empty() || path == common {
            vec![format!("{origin}/ns/{namespace}/{common}"), format!("{origin}/{common}")]
        } else {
            vec![format!("{origin}/{path}")]
        };
        Ok(Self { urls, at: 0, tried: 0 })
    }

    /// The address to dial.
    pub fn current(&self) -> &str {
        self.urls.get(self.at).map_or("", String::as_str)
    }

    /// The current address has no relay behind it: on to the next. False once all have been tried.
    pub(super) fn advance(&mut self) -> bool {
        self.tried += 1;
        self.at = (self.at + 1) % self.urls.len().max(1);
        let more = self.tried < self.urls.len();
        if !more {
            self.tried = 0;
            self.at = 0;
        }
        more
    }

    /// The current address works.
    pub(super) fn confirm(&mut self) {
        self.tried = 0;
    }
}

/// Fills in an address: `{ns}` stands for the namespace in hexadecimal, `{ns32}` for its host label.
pub fn with_namespace(url: &str, namespace: &NamespaceId) -> String {
    url.replace("{ns32}", &namespace.to_base32()).replace("{ns}", &namespace.to_hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NS: NamespaceId = NamespaceId::new([0xab; 32]);

    fn urls(url: &str) -> Vec<String> {
        Routes::new(url, &NS).unwrap().urls
    }

    #[test]
    fn the_direct_route_is_tried_before_the_common_one() {
        let direct = format!("wss://relay.example:8443/ns/{}/v1/ws", "ab".repeat(32));
        for url in ["wss://relay.example:8443/v1/ws", "WSS://relay.example:8443", " wss://relay.example:8443/ "] {
            assert_eq!(urls(url), [direct.clone(), "wss://relay.example:8443/v1/ws".into()], "{url}");
        }
    }

    #[test]
    fn other_paths_are_taken_as_they_are() {
        assert_eq!(urls("ws://h/ns/{ns}/v1/ws"), [format!("ws://h/ns/{}/v1/ws", "ab".repeat(32))]);
        assert_eq!(urls("ws://h/own/v1/ws"), ["ws://h/own/v1/ws"]);
        assert_eq!(urls("ws://{ns32}.h/v1/ws")[1], format!("ws://{}.h/v1/ws", NS.to_base32()));
    }

    #[test]
    fn what_is_no_relays_address_is_refused() {
        for (url, error) in [
            ("", RouteError::Scheme),
            ("https://h/v1/ws", RouteError::Scheme),
            ("relay.example", RouteError::Scheme),
            ("ws://", RouteError::Host),
            ("ws:///v1/ws", RouteError::Host),
            ("ws://:80/", RouteError::Host),
            ("ws://user:secret@h/", RouteError::Extra),
            ("ws://h/?q", RouteError::Extra),
            ("ws://h/#f", RouteError::Extra),
            ("ws://h /", RouteError::Extra),
        ] {
            assert_eq!(Routes::new(url, &NS), Err(error), "{url}");
        }
        assert_eq!(Routes::new(&format!("ws://{}", "h".repeat(MAX_URL)), &NS), Err(RouteError::Long));
    }

    #[test]
    fn every_address_is_tried_once_per_round() {
        let mut routes = Routes::new("ws://h", &NS).unwrap();
        assert!(routes.advance());
        assert_eq!(routes.current(), "ws://h/v1/ws");
        assert!(!routes.advance());
        assert_eq!(routes.current(), urls("ws://h")[0]);
        assert!(routes.advance());
        routes.confirm();
        assert_eq!(routes.current(), "ws://h/v1/ws");
        assert!(routes.advance(), "a relay that lost the working address gets a full round");
        assert_eq!(routes.current(), urls("ws://h")[0]);
    }
}
