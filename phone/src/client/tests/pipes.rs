//! Pipes: what the phone asks for, and what becomes of it.

use skald_common::crypto::{PipeCipher, PipeEnd, PipeSecret};
use skald_common::framing::{Body, frame_pipe_signal};
use skald_common::ids::ChallengeNonce;
use skald_common::limits::PIPE_OPEN_MS;
use skald_common::pipe::signal::{Accept, Handshake, Invite, Reject, Signal};
use skald_common::pipe::{PipeAuth, auth};

use super::*;

impl World {
    /// A signal of the agent.
    fn signal(&self, signal: &Signal) -> Frame {
        let counter = self.counter.fetch_add(1, Ordering::Relaxed);
        let (nonce, sealed) = self.session().0.seal(counter, &frame_pipe_signal(&signal.encode())).unwrap();
        Frame::Message(wire::Message {
            ciphertext: sealed.into(),
            nonce: nonce.to_vec(),
            peer: self.agent.ed25519_pub().to_vec(),
            live: true,
            ..Default::default()
        })
    }
}

impl Socket<'_> {
    /// The phone's next frame, which must be a live invite, and its number.
    async fn invite(&mut self) -> (Invite, u64) {
        let frame = self.frame().await;
        let Frame::Message(message) = frame else { panic!("no message: {frame:?}") };
        let nonce = MessageNonce::from_slice(&message.nonce).unwrap();
        let (_, framed) = self.world.session().0.open(&nonce, &message.ciphertext).unwrap();
        let Body::PipeSignal(signal) = unframe(&framed).unwrap() else { panic!("no signal") };
        let Signal::Invite(invite) = Signal::decode(&signal).unwrap() else { panic!("no invite") };
        assert!(message.live);
        (invite, message.r#ref)
    }

    /// Accepts; gives the agent's end of the pipe.
    async fn agree(&mut self, invite: &Invite) -> PipeCipher {
        let Handshake::X25519(theirs) = invite.handshake else { panic!("an unknown suite") };
        let secret = PipeSecret::new([6; 32]);
        let handshake = Handshake::X25519(secret.public());
        let accept = Accept { connection: invite.connection, handshake, compress: "none".into() };
        self.send(self.world.signal(&Signal::Accept(accept))).await;
        secret.agree(&theirs, invite.connection, PipeEnd::Responder).unwrap()
    }
}

/// The pipe's end, opened or not.
async fn end(phone: &mut Phone, of: PipeId) -> Result<OpenedPipe, NotOpened> {
    let waiting = async {
        loop {
            match phone.next_event().await.unwrap() {
                PhoneEvent::PipeOpened { id, pipe } if id == of => return Ok(*pipe),
                PhoneEvent::PipeFailed { id, why } if id == of => return Err(why),
                _ => {}
            }
        }
    };
    tokio::time::timeout(Duration::from_mins(1), waiting).await.expect("nothing came of the pipe")
}

fn open(phone: &mut Phone) -> PipeId {
    phone.open_pipe("http-local-proxy", BTreeMap::new()).unwrap()
}

#[tokio::test]
async fn an_open_that_waited_for_the_connection_ends_in_a_pipe_at_the_relay() {
    let world = World::paired(Standing::Authorized).await;
    let mut phone = world.phone(Manner::Watch).await;
    phone.start();
    let wanted = open(&mut phone);
    let relay = async {
        let (mut socket, _) = world.let_in(ALL).await;
        let (invite, _) = socket.invite().await;
        assert_eq!((invite.stream_type.as_str(), &invite.compress[..]), ("http-local-proxy", &["none".to_owned()][..]));
        let cipher = socket.agree(&invite).await;
        (socket, invite, cipher)
    };
    let ((socket, invite, mut cipher), opened) = tokio::join!(relay, end(&mut phone, wanted));
    let opened = opened.unwrap();
    let far = async {
        let (tcp, _) = world.listener.accept().await.unwrap();
        let mut pipe = accept_async(tcp).await.unwrap();
        let nonce = ChallengeNonce::new([3; 32]);
        pipe.send(Message::Binary(auth::encode_challenge(&nonce).into())).await.unwrap();
        let Message::Binary(answer) = pipe.next().await.unwrap().unwrap() else { panic!("no answer") };
        let answer = PipeAuth::decode(&answer).unwrap();
        assert!(answer.verify(&nonce));
        assert_eq!((answer.connection, answer.pubkey), (invite.connection, phone.public_key()));
        pipe.send(Message::Binary(cipher.seal(b"hello").unwrap().into())).await.unwrap();
        pipe
    };
    let near = async {
        let (sender, mut receiver) = opened.connect().await.unwrap().split();
        (receiver.recv().await.unwrap(), sender)
    };
    // The phone itself is not driven meanwhile.
    let (_far, (hello, _sender)) = tokio::join!(far, near);
    assert_eq!(hello, "hello");
    drop(socket);
}

#[tokio::test]
async fn an_open_that_fails_says_why() {
    let world = World::paired(Standing::Authorized).await;
    let mut phone = world.phone(Manner::Watch).await;
    phone.start();
    let (rejected, offline) = (open(&mut phone), open(&mut phone));
    let relay = async {
        let (mut socket, _) = world.let_in(ALL).await;
        let (invite, _) = socket.invite().await;
        let (_, number) = socket.invite().await;
        let reason = "proxy disabled".to_owned();
        socket.send(world.signal(&Signal::Reject(Reject { connection: invite.connection, reason }))).await;
        let peer = world.agent.ed25519_pub().to_vec();
        socket.send(Frame::PeerOffline(wire::PeerOffline { peer, r#ref: number })).await;
        socket
    };
    let failures = async { (end(&mut phone, rejected).await, end(&mut phone, offline).await) };
    let (_socket, failures) = tokio::join!(relay, failures);
    let (Err(rejected), Err(offline)) = failures else { panic!("{failures:?}") };
    assert_eq!(rejected.to_string(), "the agent says: proxy disabled");
    assert_eq!(offline.to_string(), "the agent is offline");
}

#[tokio::test]
async fn an_open_whose_connection_is_lost_is_asked_for_anew() {
    for taken in [false, true] {
        lost_in_the_middle(taken).await;
    }
}

/// The connection ends after the invite, which the relay has `taken` or not.
async fn lost_in_the_middle(taken: bool) {
    let world = World::paired(Standing::Authorized).await;
    let mut phone = world.phone(Manner::Watch).await;
    phone.start();
    let wanted = open(&mut phone);
    let relay = async {
        let (mut socket, _) = world.let_in(ALL).await;
        let (first, number) = socket.invite().await;
        if taken {
            socket.send(Frame::Accepted(wire::Accepted { r#ref: number, queued: false })).await;
        }
        socket.close(1001).await;
        drop(socket);
        let (mut socket, _) = world.let_in(ALL).await;
        let (second, _) = socket.invite().await;
        assert_ne!(first.connection, second.connection, "an id is used once");
        // Too late for the first; the second counts.
        socket.agree(&first).await;
        socket.agree(&second).await;
        socket
    };
    let (_socket, opened) = tokio::join!(relay, end(&mut phone, wanted));
    assert!(opened.is_ok());
}

#[tokio::test]
async fn an_open_waits_while_a_command_has_the_turn() {
    let world = World::paired(Standing::Authorized).await;
    let command = world.phone(Manner::Command).await;
    let mut phone = world.phone(Manner::Watch).await;
    phone.start();
    let wanted = open(&mut phone);
    until(&mut phone, |event| matches!(event, PhoneEvent::SteppedAside)).await;
    command.close().await;
    let relay = async {
        let (mut socket, _) = world.let_in(ALL).await;
        let (invite, _) = socket.invite().await;
        socket.agree(&invite).await;
        socket
    };
    let (_socket, opened) = tokio::join!(relay, end(&mut phone, wanted));
    assert!(opened.is_ok());
}

#[tokio::test]
async fn an_open_does_not_wait_for_ever() {
    let world = World::paired(Standing::Authorized).await;
    let command = world.phone(Manner::Command).await;
    let mut phone = world.phone(Manner::Watch).await;
    phone.start();
    let wanted = open(&mut phone);
    until(&mut phone, |event| matches!(event, PhoneEvent::SteppedAside)).await;
    // Nothing but time is waited for from here on.
    tokio::time::pause();
    let before = tokio::time::Instant::now();
    let patience = Duration::from_millis(PIPE_OPEN_MS + 100);
    let ended = tokio::time::timeout(patience, end(&mut phone, wanted)).await.expect("it waits for ever");
    assert_eq!(ended.unwrap_err(), NotOpened::Busy);
    assert!(before.elapsed() >= Duration::from_millis(PIPE_OPEN_MS / 2), "it hardly waits");
    drop(command);
}

#[tokio::test]
async fn more_opens_than_may_wait_are_refused_at_once() {
    let world = World::paired(Standing::Authorized).await;
    let mut phone = world.phone(Manner::Watch).await;
    let ids: Vec<_> = (0..129).map(|_| open(&mut phone)).collect();
    assert_eq!(end(&mut phone, ids[128]).await.unwrap_err(), NotOpened::TooMany);
}
