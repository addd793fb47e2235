//! What one member says to another to open a pipe, after its seal was opened.

use skald_common::ids::ConnectionId;
use skald_common::limits::PIPE_MAX_SIGNAL;
use skald_common::pipe::signal::{Handshake, SUITE, Signal};

use crate::msgpack::{bin, key, list, map, text};

/// The target.
pub fn run(data: &[u8]) {
    let Ok(signal) = Signal::decode(data) else { return };
    assert!(data.len() <= PIPE_MAX_SIGNAL);
    let again = signal.encode();
    let written = as_bin(&signal);
    // A signal that just fits may be written in more bytes than it came in.
    for form in [again, written].into_iter().filter(|form| form.len() <= PIPE_MAX_SIGNAL) {
        assert!(Signal::decode(&form).as_ref() == Ok(&signal), "{signal:?} is written otherwise than read");
        assert!(Signal::decode(&form[..form.len() - 1]).is_err(), "half a signal is one");
        assert!(Signal::decode(&[&form[..], &[0]].concat()).is_err(), "more than a signal is one");
    }
    let shown = format!("{signal:?}");
    assert!(shown.len() < 60, "{shown}");
}

/// As deployed phones write it.
pub(crate) fn as_bin(signal: &Signal) -> Vec<u8> {
    let tagged = |tag: &str, fields: usize, id: &ConnectionId| {
        [map(1), key(tag), map(fields), key("connection_id"), bin(id.as_bytes())].concat()
    };
    match signal {
        Signal::Invite(invite) => {
            let mut out = tagged("Invite", 6, &invite.connection);
            out.extend(handshake(&invite.handshake));
            out.extend([key("stream_type"), text(&invite.stream_type), key("compress")].concat());
            out.extend(list(invite.compress.len()));
            out.extend(invite.compress.iter().flat_map(|form| text(form)));
            out.extend([key("headers"), map(invite.headers.len())].concat());
            out.extend(invite.headers.iter().flat_map(|(name, value)| [text(name), text(value)].concat()));
            out
        }
        Signal::Accept(accept) => {
            let mut out = tagged("Accept", 4, &accept.connection);
            out.extend(handshake(&accept.handshake));
            out.extend([key("compress"), text(&accept.compress)].concat());
            out
        }
        Signal::Reject(reject) => {
            [tagged("Reject", 2, &reject.connection), key("reason"), text(&reject.reason)].concat()
        }
    }
}

fn handshake(handshake: &Handshake) -> Vec<u8> {
    let (suite, value) = match handshake {
        Handshake::X25519(key) => (SUITE, bin(key.as_bytes())),
        Handshake::Unknown { suite } => (&**suite, vec![0xc0]),
    };
    [key("suite"), text(suite), key("handshake"), value].concat()
}
