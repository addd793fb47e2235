//! The messages of pipes, byte by byte, in both encodings of byte fields and with everything that must be refused.

use proptest::prelude::*;

use super::auth::{PAUSE, RESUME, decode_challenge, dest_hash, encode_challenge};
use super::signal::{Accept, Handshake, Invite, Reject, SUITE, Signal, UNCOMPRESSED};
use super::*;
use crate::crypto::{Identity, Seed};
use crate::ids::{ChallengeNonce, ConnectionId, DestHash, Ed25519Public, NamespaceId, Signature, X25519Public};
use crate::limits::{PIPE_MAX_AUTH, PIPE_MAX_SIGNAL};

/// Hex with spaces, `[n*xx]` for n bytes, and `"text"`s as fixstr.
fn pack(text: &str) -> Vec<u8> {
    let mut out = vec![];
    for word in text.split_whitespace() {
        if let Some(text) = word.strip_prefix('"') {
            let text = text.strip_suffix('"').unwrap();
            out.push(0xa0 + u8::try_from(text.len()).unwrap());
            out.extend(text.as_bytes());
        } else if let Some((count, byte)) = word.split_once('*') {
            out.extend(hex::decode(byte).unwrap().repeat(count.parse().unwrap()));
        } else {
            out.extend(hex::decode(word).unwrap());
        }
    }
    out
}

fn auth() -> PipeAuth {
    PipeAuth {
        connection: ConnectionId::new([0x11; 32]),
        pubkey: Ed25519Public::new([0x7f; 32]),
        dest: DestHash::new([0x80; 32]),
        namespace: NamespaceId::new([0; 32]),
        signature: Signature::new([0xff; 64]),
        flow: false,
    }
}

/// As the deployed agent writes it.
const AUTH_ARRAYS: &str = r#"85 "connection_id" dc0020 32*11 "pubkey" dc0020 32*7f "dest" dc0020 32*cc80
    "namespace_id" dc0020 32*00 "signature" dc0040 64*ccff"#;
/// As the deployed phone app writes it.
const AUTH_BIN: &str = r#"85 "connection_id" c420 32*11 "pubkey" c420 32*7f "dest" c420 32*80
    "namespace_id" c420 32*00 "signature" c440 64*ff"#;

#[test]
fn an_answer_is_written_as_arrays_and_read_in_either_encoding() {
    assert_eq!(auth().encode(), pack(AUTH_ARRAYS));
    assert_eq!(PipeAuth::decode(&pack(AUTH_ARRAYS)), Ok(auth()));
    assert_eq!(PipeAuth::decode(&pack(AUTH_BIN)), Ok(auth()));
    let flow = PipeAuth { flow: true, ..auth() };
    let with_flow = pack(&format!(r#"{} "flow" c3"#, AUTH_ARRAYS.replacen("85", "86", 1)));
    assert_eq!(flow.encode(), with_flow);
    assert_eq!(PipeAuth::decode(&with_flow), Ok(flow));
}

#[test]
fn an_answer_in_the_widest_forms_and_with_extra_keys_of_any_kind_is_the_same() {
    // map32, str8 keys, bin32 and array32, integers of 64 bits; a key that is no string, an extension, nested values.
    let wide = pack(
        r#"df0000000a d90d 636f6e6e656374696f6e5f6964 c600000020 32*11 "pubkey" dd00000020 32*cf000000000000007f
        "dest" c50020 32*80 "namespace_id" c420 32*00 "signature" c440 64*ff
        "flow" c2 05 c0 "more" 82 "a" 93 01 02 cb0000000000000000 "b" 81 "c" c7020001ff "ext" d8 01 16*00 "n" d3ffffffffffffffff"#,
    );
    assert_eq!(PipeAuth::decode(&wide), Ok(auth()));
}

#[test]
fn each_defect_of_an_answer_is_named() {
    use PipeDecodeError as E;
    let change = |from: &str, to: &str| PipeAuth::decode(&pack(&AUTH_BIN.replacen(from, to, 1))).unwrap_err();
    assert_eq!(PipeAuth::decode(b""), Err(E::Malformed));
    assert_eq!(PipeAuth::decode(b"\xc1"), Err(E::Malformed));
    assert_eq!(PipeAuth::decode(b"\x80"), Err(E::Missing { field: "connection_id" }));
    assert_eq!(PipeAuth::decode(b"\x90"), Err(E::Type { field: "auth" }));
    assert_eq!(PipeAuth::decode(&[pack(AUTH_BIN), vec![0]].concat()), Err(E::Trailing));
    assert_eq!(change("\"dest\"", "\"dust\""), E::Missing { field: "dest" });
    assert_eq!(
        change("\"dest\" c420 32*80", "\"dest\" c41f 31*80"),
        E::Length { field: "dest", expected: 32, got: 31 }
    );
    assert_eq!(change("c440 64*ff", "c441 65*ff"), E::Length { field: "signature", expected: 64, got: 65 });
    assert_eq!(change("\"dest\" c420 32*80", "\"dest\" d920 32*61"), E::Type { field: "dest" }, "text");
    assert_eq!(change("\"dest\" c420 32*80", "\"dest\" dc0020 31*01 cd0100"), E::Type { field: "dest" }, "256");
    assert_eq!(change("\"dest\" c420 32*80", "\"dest\" dc0020 31*01 ff"), E::Type { field: "dest" }, "-1");
    assert_eq!(change("85", "86").to_string(), "not MessagePack", "one pair short");
    let twice = pack(&format!(r#"{} "dest" c420 32*80"#, AUTH_BIN.replacen("85", "86", 1)));
    assert_eq!(PipeAuth::decode(&twice), Err(E::Repeated { field: "dest" }));
    let flow = pack(&format!(r#"{} "flow" 01"#, AUTH_BIN.replacen("85", "86", 1)));
    assert_eq!(PipeAuth::decode(&flow), Err(E::Type { field: "flow" }));
    let padded = pack(&format!(r#"{} "pad" c51000 4096*00"#, AUTH_BIN.replacen("85", "86", 1)));
    assert_eq!(PipeAuth::decode(&padded), Err(E::TooLong { max: PIPE_MAX_AUTH, got: padded.len() }));
}

#[test]
fn lengths_that_lie_and_deep_nests_end_at_once() {
    for liar in [
        "df ffffffff",
        "dd ffffffff",
        "81 \"nonce\" c6 ffffffff",
        "81 \"nonce\" dd ffffffff 00",
        "c9 ffffffff 00",
        "db ffffffff",
    ] {
        assert_eq!(decode_challenge(&pack(liar)), Err(PipeDecodeError::Malformed), "{liar}");
    }
    let nested = |depth: usize| [vec![0x91; depth], vec![0]].concat();
    let inside = |value: Vec<u8>| [pack(r#"82 "nonce" c420 32*05 "x""#), value].concat();
    assert!(decode_challenge(&inside(nested(7))).is_ok());
    assert_eq!(decode_challenge(&inside(nested(8))), Err(PipeDecodeError::Malformed));
    assert_eq!(decode_challenge(&inside(nested(3000))), Err(PipeDecodeError::Malformed));
}

#[test]
fn a_challenge_is_a_named_map_of_32_bytes_in_either_encoding() {
    let nonce = ChallengeNonce::new([0x90; 32]);
    assert_eq!(encode_challenge(&nonce), pack(r#"81 "nonce" dc0020 32*cc90"#));
    assert_eq!(decode_challenge(&encode_challenge(&nonce)), Ok(nonce));
    assert_eq!(decode_challenge(&pack(r#"81 "nonce" c420 32*90"#)), Ok(nonce));
    assert_eq!(
        decode_challenge(&pack(r#"81 "nonce" c410 16*90"#)),
        Err(PipeDecodeError::Length { field: "nonce", expected: 32, got: 16 })
    );
    assert_eq!((PAUSE, RESUME), ("pause", "resume"));
}

#[test]
fn an_answer_verifies_for_its_own_challenge_connection_and_key_alone() {
    let (me, you) = (Identity::new(&Seed::new([1; 32])), Identity::new(&Seed::new([2; 32])));
    let nonce = ChallengeNonce::new([3; 32]);
    let id = ConnectionId::new([4; 32]);
    let auth = PipeAuth::new(&me, &nonce, id, &you.ed25519_pub(), me.namespace_id(), true);
    assert!(auth.verify(&nonce));
    assert!(!auth.verify(&ChallengeNonce::new([5; 32])));
    assert!(!PipeAuth { connection: ConnectionId::new([5; 32]), ..auth.clone() }.verify(&nonce));
    assert!(!PipeAuth { pubkey: you.ed25519_pub(), ..auth.clone() }.verify(&nonce));
    // What proves a control connection proves no pipe.
    assert!(!PipeAuth { signature: me.sign_challenge(&nonce), ..auth }.verify(&nonce));
}

#[test]
fn two_answers_match_only_if_each_expects_the_other() {
    let (me, you) = (Identity::new(&Seed::new([1; 32])), Identity::new(&Seed::new([2; 32])));
    let nonce = ChallengeNonce::new([3; 32]);
    let join = |who: &Identity, partner: &Identity| {
        let id = ConnectionId::new([4; 32]);
        PipeAuth::new(who, &nonce, id, &partner.ed25519_pub(), me.namespace_id(), false)
    };
    let (mine, yours) = (join(&me, &you), join(&you, &me));
    assert!(mine.matches(&yours) && yours.matches(&mine));
    assert!(!join(&me, &me).matches(&join(&me, &me)), "both ends the same key");
    assert!(!mine.matches(&PipeAuth { namespace: you.namespace_id(), ..yours.clone() }));
    assert!(!mine.matches(&PipeAuth { connection: ConnectionId::new([9; 32]), ..yours.clone() }));
    let other = dest_hash(&Ed25519Public::new([9; 32]));
    assert!(
        !mine.matches(&PipeAuth { dest: other, ..yours.clone() }) && !PipeAuth { dest: other, ..yours }.matches(&mine)
    );
}

fn invite() -> Signal {
    Signal::Invite(Invite {
        connection: ConnectionId::new([0x11; 32]),
        handshake: Handshake::X25519(X25519Public::new([0xee; 32])),
        stream_type: "http-local-proxy".into(),
        compress: vec![UNCOMPRESSED.into()],
        headers: [("a".to_owned(), "b".to_owned())].into(),
    })
}

const INVITE: &str = r#"81 "Invite" 86 "connection_id" dc0020 32*11 "suite" "x25519-sealed" "handshake" dc0020 32*ccee
    "stream_type" "http-local-proxy" "compress" 91 "none" "headers" 81 "a" "b""#;
const ACCEPT: &str =
    r#"81 "Accept" 84 "connection_id" dc0020 32*11 "suite" "x25519-sealed" "handshake" dc0020 32*05 "compress" "none""#;
const REJECT: &str = r#"81 "Reject" 82 "connection_id" dc0020 32*11 "reason" "no""#;

#[test]
fn signals_are_externally_tagged_named_maps_with_bytes_as_arrays() {
    let connection = ConnectionId::new([0x11; 32]);
    let accept = Signal::Accept(Accept {
        connection,
        handshake: Handshake::X25519(X25519Public::new([5; 32])),
        compress: "none".into(),
    });
    let reject = Signal::Reject(Reject { connection, reason: "no".into() });
    for (signal, text) in [(invite(), INVITE), (accept, ACCEPT), (reject, REJECT)] {
        assert_eq!(signal.encode(), pack(text));
        assert_eq!(Signal::decode(&pack(text)), Ok(signal.clone()));
        let bin = text.replace("dc0020", "c420").replace("ccee", "ee");
        assert_eq!(Signal::decode(&pack(&bin)), Ok(signal));
    }
}

#[test]
fn headers_may_be_absent_or_nil_and_extra_keys_are_ignored() {
    let bare = Signal::decode(&pack(&INVITE.replace(r#""headers" 81 "a" "b""#, r#""more" c0"#))).unwrap();
    assert_eq!(Signal::decode(&pack(&INVITE.replace(r#"81 "a" "b""#, "c0"))), Ok(bare.clone()));
    let Signal::Invite(bare) = bare else { panic!("no invitation") };
    assert!(bare.headers.is_empty());
}

#[test]
fn an_unknown_suite_is_read_whatever_its_handshake_is() {
    let text = INVITE.replace(r#""x25519-sealed""#, r#""other""#).replace("dc0020 32*ccee", "c0");
    let Ok(Signal::Invite(invite)) = Signal::decode(&pack(&text)) else { panic!("no invitation") };
    assert_eq!(invite.handshake, Handshake::Unknown { suite: "other".into() });
}

#[test]
fn each_defect_of_a_signal_is_named() {
    use PipeDecodeError as E;
    let change = |text: &str, from: &str, to: &str| Signal::decode(&pack(&text.replacen(from, to, 1))).unwrap_err();
    assert_eq!(Signal::decode(b"\x80"), Err(E::Type { field: "signal" }));
    assert_eq!(Signal::decode(&pack(r#"82 "Reject" 80 "Accept" 80"#)), Err(E::Type { field: "signal" }));
    assert_eq!(Signal::decode(&pack(r#"81 "Reject" c0"#)), Err(E::Type { field: "signal" }));
    assert_eq!(Signal::decode(&pack(r#"81 "Resume" 80"#)), Err(E::Unknown));
    assert_eq!(Signal::decode(&pack(r#"81 "Reject" 80"#)), Err(E::Missing { field: "connection_id" }));
    assert_eq!(change(REJECT, "\"no\"", "07"), E::Type { field: "reason" });
    assert_eq!(
        change(INVITE, "dc0020 32*11", "dc0010 16*11"),
        E::Length { field: "connection_id", expected: 32, got: 16 }
    );
    assert_eq!(change(INVITE, "dc0020 32*ccee", "c421 33*ee"), E::Length { field: "handshake", expected: 32, got: 33 });
    assert_eq!(change(INVITE, "91 \"none\"", "\"none\""), E::Type { field: "compress" });
    assert_eq!(change(INVITE, "91 \"none\"", "91 00"), E::Type { field: "compress" });
    assert_eq!(change(INVITE, "81 \"a\" \"b\"", "81 \"a\" 00"), E::Type { field: "headers" });
    assert_eq!(change(ACCEPT, "\"compress\" \"none\"", "\"compress\" 91 \"none\""), E::Type { field: "compress" });
    assert_eq!(change(REJECT, "\"no\"", "a2fffe"), E::Type { field: "reason" }, "not UTF-8");
    let long = Signal::Reject(Reject { connection: ConnectionId::new([1; 32]), reason: "x".repeat(PIPE_MAX_SIGNAL) });
    assert!(matches!(Signal::decode(&long.encode()), Err(E::TooLong { .. })));
}

#[test]
fn debug_shows_neither_headers_nor_reasons() {
    assert_eq!(format!("{:?}", invite()), "Invite(ConnectionId(11111111…))");
}

prop_compose! {
    fn any_id()(bytes in any::<[u8; 32]>()) -> [u8; 32] { bytes }
}

fn any_handshake() -> impl Strategy<Value = Handshake> {
    prop_oneof![
        any_id().prop_map(|key| Handshake::X25519(X25519Public::new(key))),
        "[a-z]{0,20}".prop_filter("known", |suite| suite != SUITE).prop_map(|suite| Handshake::Unknown { suite }),
    ]
}

fn any_signal() -> impl Strategy<Value = Signal> {
    let headers = proptest::collection::btree_map(".{0,40}", ".{0,300}", 0..20);
    let invite = (any_id(), any_handshake(), ".{0,40}", proptest::collection::vec(".{0,9}", 0..20), headers);
    prop_oneof![
        invite.prop_map(|(id, handshake, stream_type, compress, headers)| Signal::Invite(Invite {
            connection: ConnectionId::new(id),
            handshake,
            stream_type,
            compress,
            headers
        })),
        (any_id(), any_handshake(), ".{0,9}").prop_map(|(id, handshake, compress)| Signal::Accept(Accept {
            connection: ConnectionId::new(id),
            handshake,
            compress
        })),
        (any_id(), ".{0,300}")
            .prop_map(|(id, reason)| Signal::Reject(Reject { connection: ConnectionId::new(id), reason })),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read(signal in any_signal(), keys in any::<[[u8; 32]; 4]>(), sig in any::<[u8; 32]>(), flow: bool) {
        prop_assert_eq!(Signal::decode(&signal.encode()), Ok(signal));
        let [connection, pubkey, dest, namespace] = keys;
        let auth = PipeAuth {
            connection: ConnectionId::new(connection),
            pubkey: Ed25519Public::new(pubkey),
            dest: DestHash::new(dest),
            namespace: NamespaceId::new(namespace),
            signature: Signature::from_slice(&[sig, sig].concat()).unwrap(),
            flow,
        };
        prop_assert_eq!(PipeAuth::decode(&auth.encode()), Ok(auth));
    }

    #[test]
    fn noise_and_damage_never_panic(noise in proptest::collection::vec(any::<u8>(), 0..200), signal in any_signal(), at: usize, byte: u8) {
        for bytes in [noise, signal.encode(), auth().encode()] {
            let mut bytes = bytes;
            let place = at % bytes.len().max(1);
            if let Some(there) = bytes.get_mut(place) {
                *there = byte;
            }
            let _ = (Signal::decode(&bytes), PipeAuth::decode(&bytes), decode_challenge(&bytes));
            let _ = (Signal::decode(&bytes[..place.min(bytes.len())]), PipeAuth::decode(&bytes[..place.min(bytes.len())]));
        }
    }
}
