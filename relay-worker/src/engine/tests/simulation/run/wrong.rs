//! Peers that lie, and members that send what is wrong or odd.

use bytes::Bytes;
use skald_common::crypto::{Identity, Seed};
use skald_common::ids::ChallengeNonce;
use skald_common::wire::{Ack, Auth, AuthAgent, AuthOk, Features, Frame, Message, PresenceRequest, Role};

use super::super::super::super::Input;
use super::super::Verdict;
use super::super::history::{Fraud, Oddity};
use super::super::oracle::{Cause, Claim};
use super::super::platform::bytes;
use super::{Credentials, Run};

impl Run {
    pub(super) fn impostor(&mut self, peer: usize, fraud: Fraud) -> Verdict {
        let conn = self.platform.accept();
        self.oracle.dialled(conn, peer, Features::ALL, Claim::Fraud, true);
        let Some(challenge) = self.open_direct(conn)? else { return Ok(()) };
        let member = Credentials::Member(Features::ALL);
        let other = ChallengeNonce::new([9; 32]);
        let bytes = match fraud {
            Fraud::Silence => return Ok(()),
            Fraud::Chat => {
                return self.turn(&Cause::Presented(conn), Input::Text { conn }).map(drop);
            }
            Fraud::Noise => Bytes::from_static(b"\xff\xff\xff"),
            Fraud::Huge => Bytes::from(vec![0; 70_000]),
            Fraud::Forged => bytes(self.auth(peer, &member, &other)),
            Fraud::Astray => {
                let stranger = Identity::new(&Seed::new([99; 32]));
                let key = stranger.ed25519_pub().to_vec();
                let role = Role::Agent(AuthAgent { agent_ed25519_pub: key, features: 7 });
                let signature = stranger.sign_challenge(&challenge).to_vec();
                bytes(Frame::Auth(Auth { role: Some(role), signature }))
            }
            Fraud::Early => bytes(Frame::PresenceRequest(PresenceRequest {})),
        };
        self.turn(&Cause::Presented(conn), Input::Frame { conn, bytes }).map(drop)
    }

    pub(super) fn odd(&mut self, peer: usize, oddity: Oddity) -> Verdict {
        let Some((conn, _)) = self.sending(peer).filter(|(conn, _)| self.platform.alive(*conn)) else { return Ok(()) };
        let to = if peer == 0 { self.key(1) } else { self.key(0) };
        let message = |message: Message| {
            let peer = if message.peer.is_empty() { to.to_vec() } else { message.peer.clone() };
            let nonce = if message.nonce.is_empty() { vec![7; 12] } else { message.nonce.clone() };
            bytes(Frame::Message(Message { peer, nonce, ..message }))
        };
        let text = Bytes::from_static(b"odd");
        let input = match oddity {
            Oddity::Word => return self.turn(&Cause::Odd(conn, oddity), Input::Text { conn }).map(drop),
            Oddity::Malformed => Bytes::from_static(b"\xff\xff\xff"),
            Oddity::Unknown => Bytes::from_static(b"\xca\x3e\x01\x00"),
            Oddity::Empty => Bytes::new(),
            Oddity::Misplaced => bytes(Frame::AuthOk(AuthOk::default())),
            Oddity::ShortNonce => message(Message { ciphertext: text, nonce: vec![7; 11], ..Message::default() }),
            Oddity::NoCiphertext => message(Message::default()),
            Oddity::LongTag => {
                let nobody = vec![0xee; 32];
                message(Message { ciphertext: text, collapse: vec![1; 17], peer: nobody, ..Message::default() })
            }
            Oddity::ToNobody => message(Message { ciphertext: text, peer: vec![0xee; 32], ..Message::default() }),
            Oddity::ToOneself => {
                message(Message { ciphertext: text, peer: self.key(peer).to_vec(), ..Message::default() })
            }
            Oddity::AckOfNothing => bytes(Frame::Ack(Ack { delivery: 0 })),
            Oddity::StoredTooLarge => message(Message { ciphertext: vec![0; 70_000].into(), ..Message::default() }),
            Oddity::LiveTooLarge => {
                message(Message { ciphertext: vec![0; 530_000].into(), live: true, ..Message::default() })
            }
        };
        self.turn(&Cause::Odd(conn, oddity), Input::Frame { conn, bytes: input }).map(drop)
    }
}
