//! Host and path of a request, as the front reads them, and its count of connections per address.

use skald_relay_worker::front::address_limit::AddressLimit;
use skald_relay_worker::front::routes::{INTERNAL_CONTROL, Route, Socket, route};

use crate::tape::Tape;

const PARENT: &str = "relay.example";

/// The target.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let host = String::from_utf8_lossy(tape.bytes()).into_owned();
    let path = String::from_utf8_lossy(tape.bytes()).into_owned();
    for parent in [None, Some(PARENT)] {
        let found = route(&host, &path, parent);
        check(&host, &path, parent, found);
    }
    count(&mut tape);
}

fn check(host: &str, path: &str, parent: Option<&str>, found: Route) {
    if path.starts_with("/internal") || path.contains(INTERNAL_CONTROL) {
        assert_eq!(found, Route::Unknown, "an internal path is reached from outside");
    }
    let name = |socket| if socket == Socket::Control { "/v1/ws" } else { "/v1/pipe" };
    match found {
        Route::Direct(namespace, socket) => {
            // One of the two spellings of exactly this namespace, and no other.
            let in_path = format!("/ns/{namespace}{}", name(socket));
            let by_host = parent.is_some_and(|parent| {
                host.eq_ignore_ascii_case(&format!("{}.{parent}", namespace.to_base32())) && path == name(socket)
            });
            assert!(by_host || path.eq_ignore_ascii_case(&in_path), "{host:?} {path:?} leads to {namespace}");
            assert_eq!(route("x", &in_path, parent), found);
            assert_eq!(route(&format!("{}.{PARENT}", namespace.to_base32()), name(socket), Some(PARENT)), found);
        }
        Route::Front(socket) => assert_eq!(path, name(socket)),
        Route::Health => assert_eq!(path, "/healthz"),
        Route::WebPushKey => assert_eq!(path, "/v1/webpush-key"),
        Route::Unknown => {}
    }
}

/// No minute of a steady clock admits an address more often than the limit says.
fn count(tape: &mut Tape<'_>) {
    let (mut limit, mut now) = (AddressLimit::default(), 0);
    let mut admitted: Vec<(u8, u64)> = Vec::new();
    while !tape.ended() {
        now += u64::from(tape.byte()) << 8;
        let who = tape.byte() % 3;
        if limit.admit(now, &who.to_string(), 3) {
            admitted.push((who, now));
        }
    }
    for (who, at) in &admitted {
        // Windows begin with a connection, so two of them may meet within any one minute.
        let near = admitted.iter().filter(|(other, then)| other == who && (*at..*at + 60_000).contains(then));
        assert!(near.count() <= 6, "more than the limit");
    }
}
