//! Frames as they come off a socket, and the `Auth` among them that the front checks before it reaches any object.

use bytes::Bytes;
use skald_common::ids::ChallengeNonce;
use skald_common::wire::{Frame, decode, encode};
use skald_relay_worker::engine::{Limits, verify_auth};

/// The target.
pub fn run(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    if let Ok(Some(frame)) = decode(bytes.clone()) {
        let again = encode(frame.clone());
        assert_eq!(decode(again.into()).as_ref(), Ok(&Some(frame)), "written otherwise than read");
    }
    let nonce = ChallengeNonce::new([7; 32]);
    match verify_auth(bytes.clone(), &nonce, &Limits::default()) {
        Ok(verified) => {
            // What goes on to the object says the same, and nothing that is not known.
            let passed = decode(Bytes::copy_from_slice(verified.frame()));
            assert!(matches!(passed, Ok(Some(Frame::Auth(_)))));
            assert_eq!(passed, decode(bytes), "passed on otherwise than it came");
            assert!(verify_auth(verified.frame().to_vec().into(), &nonce, &Limits::default()).is_ok());
            let other = ChallengeNonce::new([8; 32]);
            assert!(verify_auth(verified.frame().to_vec().into(), &other, &Limits::default()).is_err());
        }
        Err(refusal) => {
            let told = decode(refusal.frame().into());
            assert!(matches!(told, Ok(Some(Frame::AuthError(_)))), "a refusal that cannot be read");
        }
    }
}
