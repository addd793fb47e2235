//! The frames between a peer and the relay (wire protocol). [`proto`] is generated from `proto/relay.proto`; the rest
//! names its codes and bits, and encodes and decodes whole WebSocket messages.

mod codes;

use bytes::Bytes;
use prost::Message as _;

pub use codes::{CloseCode, ErrorCode, Features};
pub use proto::relay_frame::Frame;
pub use proto::{
    Accepted, Ack, Auth, AuthAgent, AuthClient, AuthError, AuthOk, AuthPairing, Authorize, AuthorizeOk, Challenge,
    ClientPaired, Error, Message, PairingReady, PairingStart, PairingStop, PairingStopOk, PeerOffline, Platform,
    PresenceEvent, PresenceList, PresenceRequest, Push, PushState, PushStatus, Status, auth::Role,
};

/// Generated from `proto/relay.proto`, package `skald.relay.v2`.
#[allow(missing_docs, clippy::pedantic, unreachable_pub)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/skald.relay.v2.rs"));
}

/// Path of the control socket that every peer knows.
pub const CONTROL_PATH: &str = "/v1/ws";
/// Path of the pipe data plane.
pub const PIPE_PATH: &str = "/v1/pipe";
/// The keepalive text message, answered by the platform with [`PONG`].
pub const PING: &str = "ping";
/// The answer to [`PING`].
pub const PONG: &str = "pong";

/// The bytes are no `RelayFrame`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed frame: {0}")]
pub struct DecodeError(prost::DecodeError);

/// Encodes one frame as one binary WebSocket message.
pub fn encode(frame: Frame) -> Vec<u8> {
    proto::RelayFrame { frame: Some(frame) }.encode_to_vec()
}

/// Decodes one binary WebSocket message. `Ok(None)`: an empty frame, or one that this build does not know; both are
/// ignored (wire protocol, Messages). The ciphertext shares the given buffer.
pub fn decode(bytes: Bytes) -> Result<Option<Frame>, DecodeError> {
    proto::RelayFrame::decode(bytes).map(|frame| frame.frame).map_err(DecodeError)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &'static [u8]) -> Result<Option<Frame>, DecodeError> {
        decode(Bytes::from_static(bytes))
    }

    #[test]
    fn empty_and_unknown_frames_are_nothing_and_malformed_ones_are_errors() {
        assert_eq!(parse(b""), Ok(None));
        assert_eq!(parse(b"\x98\x06\x01"), Ok(None), "an unknown varint");
        assert_eq!(parse(b"\xea\x04\x01x"), Ok(None), "an unknown frame");
        for bad in [
            &b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"[..],
            b"\x12",
            b"\x62\xff\xff\xff\xff\x0f",
            b"\x0b",
            b"\x62\x05\x0a\x7f",
        ] {
            assert!(parse(bad).is_err(), "{bad:02x?}");
        }
    }

    #[test]
    fn our_fields_have_the_numbers_of_the_specification() {
        let frame = encode(Frame::Message(Message {
            r#ref: 1,
            delivery: 2,
            collapse: vec![3],
            quiet: true,
            ..Default::default()
        }));
        assert_eq!(hex::encode(&frame[2..]), "a80601b00602ba060103c00601");
        assert_eq!(hex::encode(encode(Frame::Accepted(Accepted { r#ref: 1, queued: true }))), "aa060408011001");
        assert_eq!(hex::encode(encode(Frame::Ack(Ack { delivery: 5 }))), "b206020805");
        let states = [Push::None, Push::Ready, Push::Gone, Push::Off];
        assert_eq!(states.map(|state| state as i32), [1, 2, 3, 4]);
        let state = PushState { client_ed25519_pub: vec![7], push: Push::Gone as i32 };
        assert_eq!(hex::encode(encode(Frame::PushStatus(PushStatus { devices: vec![state] }))), "ba06070a050a01071003");
        assert_eq!(Platform::Web as i32, 101);
    }

    #[test]
    fn push_states_are_read_as_written_and_unknown_ones_do_no_harm() {
        let states = [Push::Unspecified, Push::None, Push::Ready, Push::Gone, Push::Off].map(|state| state as i32);
        let devices = states
            .into_iter()
            .chain([5, 1000, i32::MAX, -1])
            .map(|push| PushState { client_ed25519_pub: vec![7; 32], push });
        let frame = Frame::PushStatus(PushStatus { devices: devices.collect() });
        let read = decode(encode(frame.clone()).into());
        assert_eq!(read, Ok(Some(frame)));
        let Ok(Some(Frame::PushStatus(status))) = read else { panic!("another frame") };
        let known: Vec<_> = status.devices.iter().map(|state| Push::try_from(state.push).ok()).collect();
        assert_eq!(known[..5], [Push::Unspecified, Push::None, Push::Ready, Push::Gone, Push::Off].map(Some));
        assert!(known[5..].iter().all(Option::is_none), "{known:?}");
        assert!(status.devices[5..].iter().all(|state| state.push() == Push::Unspecified));
    }
}
