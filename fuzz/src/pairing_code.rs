//! The text of a pairing code, scanned from anywhere, and the relay's address in it.

use skald_common::crypto::namespace_id;
use skald_common::ids::NamespaceId;
use skald_common::pairing::{PairingQr, QrError};
use skald_common::peer::{MAX_URL, Routes};

use crate::quiet::{JSON, assert_quiet};

/// The target.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    address(text, &NamespaceId::new([0xab; 32]));
    match PairingQr::parse(text) {
        Ok(code) => {
            assert_eq!(code.namespace_id, namespace_id(&code.agent_ed25519_pub), "contradicts itself");
            assert_eq!(PairingQr::parse(&code.to_json()), Ok(code.clone()), "written otherwise than read");
            let shown = format!("{code:?}");
            assert!(!shown.contains(&code.pairing_token.expose_hex()), "shows the token");
            address(&code.relay_url, &code.namespace_id);
        }
        Err(QrError::Malformed(what)) => assert_quiet(&what, &JSON),
        Err(_) => {}
    }
}

/// Whatever is dialled is a WebSocket address without credentials, and of bounded length.
fn address(url: &str, namespace: &NamespaceId) {
    let Ok(routes) = Routes::new(url, namespace) else { return };
    let url = routes.current();
    assert!(url.starts_with("ws://") || url.starts_with("wss://"), "{url}");
    assert!(url.len() <= MAX_URL + "/ns//v1/ws".len() + 64, "too long to dial");
    let strange = |c: char| c.is_whitespace() || c.is_control() || "@?#\\".contains(c);
    assert!(!url.contains(strange), "{url:?}");
    let again = Routes::new(url, namespace).expect("what is dialled is an address");
    assert_eq!(again.current(), url, "another address the second time");
}
