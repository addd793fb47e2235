//! Reading and verifying `Auth` (wire protocol, Handshake): the same code for the engine, on direct routes, and for the
//! front, which answers the challenge before any object is reached. The signature is verified before anything else is
//! looked at.

use bytes::Bytes;
use skald_common::crypto::{namespace_id, verify_challenge};
use skald_common::ids::{ChallengeNonce, Ed25519Public, NamespaceId, PairingToken, Signature, X25519Public};
use skald_common::limits::MAX_DEVICE_TOKEN;
use skald_common::wire::{self, Auth, AuthError, CloseCode, ErrorCode, Features, Frame, Role};

use super::Limits;

/// Why a peer is not let in, and what it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The word on the wire.
    pub code: ErrorCode,
    /// For people. Never with the word "unauthorized", which ends a phone's pairing.
    pub message: &'static str,
}

/// The answer to an `Auth` that makes no sense.
pub(super) const MALFORMED: Refusal = Refusal::new(ErrorCode::BadRequest, "malformed authentication");

impl Refusal {
    /// A reason to refuse.
    pub const fn new(code: ErrorCode, message: &'static str) -> Self {
        Self { code, message }
    }

    /// The whole binary message that says so.
    pub fn frame(&self) -> Vec<u8> {
        wire::encode(Frame::AuthError(AuthError { code: self.code.to_string(), message: self.message.to_owned() }))
    }

    /// How the connection is closed after it.
    pub const fn close_code(&self) -> CloseCode {
        match self.code {
            ErrorCode::PayloadTooLarge => CloseCode::TooBig,
            _ => CloseCode::Refused,
        }
    }
}

/// An `Auth` whose signature answers the challenge and whose fields are all of the right form.
pub struct Verified {
    claim: Claim,
    frame: Vec<u8>,
}

impl Verified {
    /// The namespace that the peer belongs to, or says it belongs to: only the agent's is proved by its key.
    pub fn namespace(&self) -> NamespaceId {
        self.claim.namespace()
    }

    /// The `RelayFrame` with the known fields of the `Auth`, for [`super::Origin::Verified`].
    pub fn frame(&self) -> &[u8] {
        &self.frame
    }

    pub(super) fn into_claim(self) -> Claim {
        self.claim
    }
}

/// Checks the answer to a challenge.
pub fn verify_auth(bytes: Bytes, challenge: &ChallengeNonce, limits: &Limits) -> Result<Verified, Refusal> {
    if bytes.len() as u64 > limits.max_frame {
        return Err(Refusal::new(ErrorCode::PayloadTooLarge, "frame too large"));
    }
    let Ok(Some(Frame::Auth(auth))) = wire::decode(bytes) else {
        return Err(Refusal::new(ErrorCode::BadRequest, "expected authentication"));
    };
    let Some(role) = &auth.role else { return Err(MALFORMED) };
    let key = match role {
        Role::Agent(agent) => &agent.agent_ed25519_pub,
        Role::Client(client) => &client.client_ed25519_pub,
        Role::Pairing(pairing) => &pairing.client_ed25519_pub,
    };
    let key = Ed25519Public::from_slice(key).map_err(|_| MALFORMED)?;
    let signature = Signature::from_slice(&auth.signature).map_err(|_| MALFORMED)?;
    verify_challenge(&key, challenge, &signature)
        .map_err(|_| Refusal::new(ErrorCode::InvalidSignature, "the signature does not verify"))?;
    let claim = Claim::parse(role.clone()).ok_or(MALFORMED)?;
    Ok(Verified { claim, frame: wire::encode(Frame::Auth(auth)) })
}

/// What a peer says it is, every field of the right form.
pub(super) enum Claim {
    Agent { key: Ed25519Public, features: Features },
    Client { namespace: NamespaceId, key: Ed25519Public, push: PushAddress, features: Features },
    Pairing(Pairing),
}

/// Where a device can be woken.
pub(super) struct PushAddress {
    /// Empty for none.
    pub(super) token: String,
    /// The wire's number.
    pub(super) platform: i32,
}

/// A device that has scanned a code.
pub(super) struct Pairing {
    pub(super) namespace: NamespaceId,
    pub(super) key: Ed25519Public,
    pub(super) x25519: X25519Public,
    pub(super) token: PairingToken,
    pub(super) push: PushAddress,
}

impl Claim {
    /// From a `RelayFrame` that was verified elsewhere.
    pub(super) fn decode(frame: Bytes) -> Option<Self> {
        match wire::decode(frame) {
            Ok(Some(Frame::Auth(Auth { role: Some(role), .. }))) => Self::parse(role),
            _ => None,
        }
    }

    /// `None` if a field is missing or of the wrong length.
    fn parse(role: Role) -> Option<Self> {
        let push =
            |token: String, platform: i32| (token.len() <= MAX_DEVICE_TOKEN).then_some(PushAddress { token, platform });
        Some(match role {
            Role::Agent(agent) => Self::Agent {
                key: Ed25519Public::from_slice(&agent.agent_ed25519_pub).ok()?,
                features: Features::from_bits(agent.features),
            },
            Role::Client(client) => Self::Client {
                namespace: NamespaceId::from_slice(&client.namespace_id).ok()?,
                key: Ed25519Public::from_slice(&client.client_ed25519_pub).ok()?,
                push: push(client.device_token, client.platform)?,
                features: Features::from_bits(client.features),
            },
            Role::Pairing(pairing) => Self::Pairing(Pairing {
                namespace: NamespaceId::from_slice(&pairing.namespace_id).ok()?,
                key: Ed25519Public::from_slice(&pairing.client_ed25519_pub).ok()?,
                x25519: X25519Public::from_slice(&pairing.client_x25519_pub).ok()?,
                token: PairingToken::from_slice(&pairing.pairing_token).ok()?,
                push: push(pairing.device_token, pairing.platform)?,
            }),
        })
    }

    pub(super) fn namespace(&self) -> NamespaceId {
        match self {
            Self::Agent { key, .. } => namespace_id(key),
            Self::Client { namespace, .. } => *namespace,
            Self::Pairing(pairing) => pairing.namespace,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skald_common::crypto::{Identity, Seed};
    use skald_common::wire::{AuthAgent, AuthClient, Challenge};

    const NONCE: ChallengeNonce = ChallengeNonce::new([7; 32]);

    fn identity() -> Identity {
        Identity::new(&Seed::from_slice(&[1; 32]).unwrap())
    }

    fn check(role: Role, nonce: &ChallengeNonce) -> Result<Verified, Refusal> {
        let signature = identity().sign_challenge(nonce).to_vec();
        let bytes = wire::encode(Frame::Auth(Auth { role: Some(role), signature })).into();
        verify_auth(bytes, &NONCE, &Limits::default())
    }

    fn agent() -> Role {
        Role::Agent(AuthAgent { agent_ed25519_pub: identity().ed25519_pub().to_vec(), features: 7 })
    }

    fn client(token: &str) -> Role {
        Role::Client(AuthClient {
            namespace_id: vec![9; 32],
            client_ed25519_pub: identity().ed25519_pub().to_vec(),
            device_token: token.to_owned(),
            ..AuthClient::default()
        })
    }

    fn refusal(result: Result<Verified, Refusal>) -> Refusal {
        result.err().expect("must be refused")
    }

    #[test]
    fn a_signed_auth_is_verified_and_passed_on_without_unknown_fields() {
        let verified = check(agent(), &NONCE).ok().unwrap();
        assert_eq!(verified.namespace(), identity().namespace_id());
        assert!(matches!(Claim::decode(verified.frame().to_vec().into()), Some(Claim::Agent { .. })));

        let role = client("");
        let signature = identity().sign_challenge(&NONCE).to_vec();
        let known = wire::encode(Frame::Auth(Auth { role: Some(role), signature }));
        let mut padded = known.clone();
        padded.extend_from_slice(b"\xea\x04\x05hello");
        let verified = verify_auth(padded.into(), &NONCE, &Limits::default()).ok().unwrap();
        assert_eq!(verified.namespace(), NamespaceId::new([9; 32]));
        assert_eq!(verified.frame(), known);
    }

    #[test]
    fn each_way_to_be_wrong_has_its_refusal() {
        assert_eq!(refusal(check(agent(), &ChallengeNonce::new([8; 32]))).code, ErrorCode::InvalidSignature);
        assert_eq!(refusal(check(client(&"x".repeat(MAX_DEVICE_TOKEN + 1)), &NONCE)), MALFORMED);
        let short = Role::Agent(AuthAgent { agent_ed25519_pub: vec![1; 31], features: 0 });
        assert_eq!(refusal(check(short, &NONCE)), MALFORMED);
        let code = |bytes: Vec<u8>| refusal(verify_auth(bytes.into(), &NONCE, &Limits::default())).code;
        assert_eq!(code(b"\xff".to_vec()), ErrorCode::BadRequest);
        assert_eq!(code(Vec::new()), ErrorCode::BadRequest);
        assert_eq!(code(wire::encode(Frame::Auth(Auth::default()))), ErrorCode::BadRequest);
        assert_eq!(code(wire::encode(Frame::Challenge(Challenge::default()))), ErrorCode::BadRequest);
        assert_eq!(code(vec![0; 65_537]), ErrorCode::PayloadTooLarge);
    }

    #[test]
    fn no_refusal_ends_a_phones_pairing_and_size_has_its_own_close_code() {
        for refusal in [MALFORMED, Refusal::new(ErrorCode::PayloadTooLarge, "frame too large")] {
            let text = String::from_utf8_lossy(&refusal.frame()).into_owned();
            assert!(text.contains(refusal.code.as_str()) && !text.contains("unauthorized"));
        }
        assert_eq!(MALFORMED.close_code(), CloseCode::Refused);
        assert_eq!(Refusal::new(ErrorCode::PayloadTooLarge, "").close_code(), CloseCode::TooBig);
    }
}
