//! One end against a relay of the tests' own, and two ends through it.

use std::time::Duration;

use futures_util::{FutureExt, SinkExt};
use skald_common::ids::ChallengeNonce;
use skald_common::pipe::PipeClose;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::Message;

use super::stand_in::{Relay, identity, soon};
use super::*;

const CHUNK: usize = PIPE_CHUNK;
/// What another implementation makes of nothing, as the first frame to the agent of the stand-in.
const EMPTY_FIRST_FRAME: [u8; 16] =
    [0xa2, 0x1f, 0xd5, 0x53, 0xfe, 0x88, 0x52, 0xd3, 0x64, 0xc3, 0x64, 0x02, 0xea, 0xeb, 0x47, 0x10];

/// Bytes in which a place shows.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((at + (at >> 16)) % 251).unwrap()).collect()
}

async fn receive(receiver: &mut PipeReceiver, length: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < length {
        all.extend(soon(receiver.recv()).await.unwrap());
    }
    all
}

/// Everything until the end, and how that came.
async fn receive_all(receiver: &mut PipeReceiver) -> (Vec<u8>, PipeEnding) {
    let mut all = Vec::new();
    loop {
        match soon(receiver.recv()).await {
            Ok(bytes) => all.extend(bytes),
            Err(ending) => return (all, ending),
        }
    }
}

#[test]
fn the_pipes_address_follows_from_the_control_sockets() {
    for (control, pipe) in [
        ("ws://h/v1/ws", Some("ws://h/v1/pipe")),
        ("wss://h:8/ns/12/v1/ws", Some("wss://h:8/ns/12/v1/pipe")),
        ("wss://h/v1/ws/v1/ws?a=/v1/ws", Some("wss://h/v1/ws/v1/pipe?a=/v1/ws")),
        ("wss://h/other", None),
        ("wss://h/v1/ws/", None),
    ] {
        assert_eq!(pipe_url(control).as_deref(), pipe);
    }
}

#[tokio::test]
async fn the_challenge_is_answered_on_the_pipes_path_with_flow_control_offered() {
    let relay = Relay::start().await;
    let (_pipe, end, _) = relay.agent().await;
    assert_eq!(end.path, "/ns/1234/v1/pipe");
    assert_eq!(end.auth.pubkey, identity(1).ed25519_pub());
    assert_eq!(end.auth.dest, auth::dest_hash(&identity(2).ed25519_pub()));
    assert_eq!(end.auth.namespace, identity(1).namespace_id());
    assert!(end.auth.flow);
}

#[tokio::test]
async fn bytes_of_any_number_go_both_ways_at_once() {
    let relay = Relay::start().await;
    let (mine, yours) = relay.both().await;
    let ((mut a_out, mut a_in), (mut b_out, mut b_in)) = (mine.split(), yours.split());
    for length in [1, 100, CHUNK, CHUNK + 1, 3_000_000] {
        let bytes = pattern(length);
        let (sent, back, there, here) = tokio::join!(
            a_out.send(&bytes),
            b_out.send(&bytes),
            receive(&mut b_in, length),
            receive(&mut a_in, length)
        );
        assert_eq!((sent, back), (Ok(()), Ok(())));
        assert!(there == bytes && here == bytes, "{length} bytes have changed");
    }
}

#[tokio::test]
async fn what_is_sent_before_the_other_end_comes_waits_at_the_relay() {
    let relay = Relay::start().await;
    let (pipe, mut end, mut phone) = relay.agent().await;
    let (mut out, _in) = pipe.split();
    for n in 0..10_u8 {
        out.send(&[n]).await.unwrap();
    }
    for n in 0..10_u8 {
        assert_eq!(phone.open(&end.frame().await).unwrap(), [n]);
    }
}

#[tokio::test]
async fn a_frame_holds_at_most_64_kib_and_nothing_is_no_frame() {
    let relay = Relay::start().await;
    let (pipe, mut end, mut phone) = relay.agent().await;
    let (mut out, _in) = pipe.split();
    out.send(&[]).await.unwrap();
    out.send(&pattern(2 * CHUNK + 1)).await.unwrap();
    let mut lengths = vec![];
    for _ in 0..3 {
        lengths.push(phone.open(&end.frame().await).unwrap().len());
    }
    assert_eq!(lengths, [CHUNK, CHUNK, 1]);
}

/// The relay has said `pause`, and this end has read it.
async fn paused(
    end: &mut super::stand_in::End,
    phone: &mut skald_common::crypto::PipeCipher,
    inward: &mut PipeReceiver,
) {
    end.send(Message::text("pause")).await;
    end.send_frames([phone.seal(b"behind it").unwrap()]).await;
    assert_eq!(&*inward.recv().await.unwrap(), b"behind it");
}

#[tokio::test]
async fn a_paused_sender_holds_16_frames_and_then_waits_until_it_may_go_on() {
    let relay = Relay::start().await;
    let (pipe, mut end, mut phone) = relay.agent().await;
    let (mut out, mut inward) = pipe.split();
    paused(&mut end, &mut phone, &mut inward).await;
    for n in 0..16_u8 {
        out.send(&[n]).await.unwrap();
    }
    assert_eq!(out.send(b"x").now_or_never(), None, "a 17th");
    // Nothing has left: the answer to a ping comes before any frame.
    end.send(Message::Ping("now".into())).await;
    assert_eq!(end.next().await, Message::Pong("now".into()));
    end.send(Message::text("resume")).await;
    out.send(b"last").await.unwrap();
    for n in 0..16_u8 {
        assert_eq!(phone.open(&end.frame().await).unwrap(), [n]);
    }
    assert_eq!(phone.open(&end.frame().await).unwrap(), b"last", "what was given up has not been sent");
}

#[tokio::test]
async fn a_pause_stops_a_sender_in_the_middle_of_a_stream() {
    let relay = Relay::start().await;
    let (pipe, mut end, mut phone) = relay.agent().await;
    let (mut out, mut inward) = pipe.split();
    let sending = tokio::spawn(async move {
        for _ in 0..400 {
            out.send(&pattern(CHUNK)).await.unwrap();
        }
        out
    });
    let mut got = 0;
    for _ in 0..5 {
        got += phone.open(&end.frame().await).unwrap().len();
    }
    paused(&mut end, &mut phone, &mut inward).await;
    end.send(Message::Ping("now".into())).await;
    loop {
        match end.next().await {
            Message::Binary(frame) => got += phone.open(&frame).unwrap().len(),
            Message::Pong(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(got < 300 * CHUNK, "{got} bytes, as if nobody had said pause");
    end.send(Message::text("resume")).await;
    while got < 400 * CHUNK {
        got += phone.open(&end.frame().await).unwrap().len();
    }
    sending.await.unwrap();
}

#[tokio::test]
async fn a_relay_that_does_not_read_stops_the_sender_and_gets_everything_later() {
    let relay = Relay::start().await;
    let (pipe, mut end, mut phone) = relay.agent().await;
    let (mut out, _in) = pipe.split();
    let chunk = pattern(CHUNK);
    let mut sent = 0;
    while tokio::time::timeout(Duration::from_secs(1), out.send(&chunk)).await.is_ok() {
        sent += 1;
        assert!(sent < 1000, "62 MiB wait somewhere");
    }
    for _ in 0..sent {
        assert!(phone.open(&end.frame().await).unwrap() == chunk);
    }
}

#[tokio::test]
async fn a_receiver_that_stops_slows_the_relay_and_gets_everything_later() {
    let relay = Relay::start().await;
    let (pipe, mut end, mut phone) = relay.agent().await;
    let (_out, mut inward) = pipe.split();
    let chunk = pattern(CHUNK);
    let mut sent = 0;
    loop {
        end.socket.feed(Message::Binary(phone.seal(&chunk).unwrap().into())).await.unwrap();
        sent += 1;
        if tokio::time::timeout(Duration::from_secs(1), end.socket.flush()).await.is_err() {
            break;
        }
        assert!(sent < 1000, "62 MiB wait somewhere");
    }
    let all = receive(&mut inward, (sent - 1) * CHUNK);
    let (all, flushed) = tokio::join!(all, end.socket.flush());
    flushed.unwrap();
    assert!(all.chunks(CHUNK).all(|part| part == chunk), "a chunk has changed");
}

#[tokio::test]
async fn a_close_is_told_to_the_other_end_behind_everything_and_confirmed() {
    let relay = Relay::start().await;
    let (mine, yours) = relay.both().await;
    let ((mut out, mut back), (_b_out, mut inward)) = (mine.split(), yours.split());
    let bytes = pattern(4_000_000);
    let sending = async {
        out.send(&bytes).await.unwrap();
        out.close().await
    };
    let (closed, (all, ending)) = tokio::join!(sending, receive_all(&mut inward));
    assert_eq!((closed, ending), (Ok(()), PipeEnding::Closed));
    assert!(all == bytes);
    assert_eq!(back.recv().await, Err(PipeEnding::Here));
    assert_eq!(back.recv().await, Err(PipeEnding::Here), "as often as it is asked");
    assert_eq!(PipeEnded::from(PipeEnding::Closed), PipeEnded::InOrder);
}

#[tokio::test]
async fn what_the_other_end_still_sends_after_a_close_is_received() {
    let relay = Relay::start().await;
    let (pipe, mut end, mut phone) = relay.agent().await;
    let (mut out, mut inward) = pipe.split();
    out.send(b"last words").await.unwrap();
    let relay_side = async {
        assert_eq!(phone.open(&end.frame().await).unwrap(), b"last words");
        // The library would answer the close as soon as it reads it: so this is sent before.
        end.send_frames((0..30).map(|_| phone.seal(&pattern(CHUNK)).unwrap())).await;
        end.closed().await
    };
    let (closed, code, (all, ending)) = tokio::join!(out.close(), relay_side, receive_all(&mut inward));
    assert_eq!((closed, code, ending), (Ok(()), Some(1000), PipeEnding::Here));
    assert_eq!(all.len(), 30 * CHUNK);
}

#[tokio::test]
async fn everything_before_the_relays_close_arrives_and_then_its_reason_in_words() {
    for (code, ending, words) in [
        (4400, PipeEnding::Refused(PipeClose::BadAuth), "the relay did not understand this end (4400)"),
        (4401, PipeEnding::Refused(PipeClose::BadSignature), "the relay refused this end's signature (4401)"),
        (4403, PipeEnding::Refused(PipeClose::NotMember), "not authorized, or not any more (4403)"),
        (
            4404,
            PipeEnding::Refused(PipeClose::Mismatch),
            "the other end did not come, or was not the expected one (4404)",
        ),
        (4408, PipeEnding::Refused(PipeClose::Idle), "idle for too long (4408)"),
        (4409, PipeEnding::Refused(PipeClose::AlreadyMatched), "the pipe has two ends already (4409)"),
        (4413, PipeEnding::Refused(PipeClose::TooLarge), "a frame was too large (4413)"),
        (4429, PipeEnding::Refused(PipeClose::TooMany), "too many pipes at once, or too much data (4429)"),
        (1013, PipeEnding::Refused(PipeClose::PeerTooSlow), "the other end is too slow (1013)"),
        (1001, PipeEnding::Refused(PipeClose::GoingAway), "the other end or the relay went away (1001)"),
        (4999, PipeEnding::Code(4999), "closed with code 4999"),
        (1000, PipeEnding::Closed, "closed by the other end"),
    ] {
        let relay = Relay::start().await;
        let (pipe, mut end, mut phone) = relay.agent().await;
        let (mut out, mut inward) = pipe.split();
        end.send_frames((0..3).map(|_| phone.seal(&pattern(CHUNK)).unwrap())).await;
        end.close(code).await;
        let (all, told) = receive_all(&mut inward).await;
        assert_eq!((all.len(), told), (3 * CHUNK, ending));
        assert_eq!(told.to_string(), words);
        assert_eq!(out.send(b"x").await, Err(ending), "the sender's reason");
        assert_eq!(out.close().await, Err(ending), "none of it may have arrived");
        assert_eq!(PipeEnded::from(told) == PipeEnded::InOrder, code == 1000);
        assert_eq!(end.closed().await, Some(code), "the relay's close is answered");
    }
}

#[tokio::test]
async fn a_close_without_a_code_as_of_other_relays_is_in_order() {
    let relay = Relay::start().await;
    let (pipe, mut end, _) = relay.agent().await;
    end.send(Message::Close(None)).await;
    let (_out, mut inward) = pipe.split();
    assert_eq!(inward.recv().await, Err(PipeEnding::Closed));
}

#[tokio::test]
async fn a_connection_that_breaks_gives_what_came_and_is_no_close() {
    let relay = Relay::start().await;
    let (pipe, mut end, mut phone) = relay.agent().await;
    let (mut out, mut inward) = pipe.split();
    end.send_frames([phone.seal(b"one").unwrap()]).await;
    drop(end);
    assert_eq!(receive_all(&mut inward).await, (b"one".to_vec(), PipeEnding::Lost));
    assert_eq!(out.send(b"x").await, Err(PipeEnding::Lost));
    assert!(matches!(PipeEnded::from(PipeEnding::Lost), PipeEnded::Broken(_)));
}

#[tokio::test]
async fn a_dropped_sender_breaks_the_pipe_for_both_ends() {
    let relay = Relay::start().await;
    let (mine, yours) = relay.both().await;
    let ((out, mut back), (_b_out, mut inward)) = (mine.split(), yours.split());
    drop(out);
    assert_eq!(soon(inward.recv()).await, Err(PipeEnding::Refused(PipeClose::GoingAway)));
    assert_eq!(soon(back.recv()).await, Err(PipeEnding::Dropped));
}

#[tokio::test]
async fn a_dropped_pipe_breaks_even_while_it_is_paused_and_full() {
    let relay = Relay::start().await;
    let (pipe, mut end, mut phone) = relay.agent().await;
    let (mut out, mut inward) = pipe.split();
    paused(&mut end, &mut phone, &mut inward).await;
    for _ in 0..QUEUE {
        out.send(&pattern(CHUNK)).await.unwrap();
    }
    drop((out, inward));
    assert_eq!(end.closed().await, Some(1001));
}

#[tokio::test]
async fn without_its_receiver_a_sender_goes_on_and_what_comes_is_thrown_away() {
    let relay = Relay::start().await;
    let (pipe, mut end, mut phone) = relay.agent().await;
    let (mut out, inward) = pipe.split();
    drop(inward);
    // Far more than any buffer holds.
    end.send_frames((0..300).map(|_| phone.seal(&pattern(CHUNK)).unwrap())).await;
    out.send(b"still here").await.unwrap();
    assert_eq!(phone.open(&end.frame().await).unwrap(), b"still here");
    let (closed, code) = tokio::join!(out.close(), end.closed());
    assert_eq!((closed, code), (Ok(()), Some(1000)));
}

#[tokio::test]
async fn a_frame_that_does_not_open_ends_the_pipe_after_what_came_before() {
    let relay = Relay::start().await;
    let (pipe, mut end, mut phone) = relay.agent().await;
    let (mut out, mut inward) = pipe.split();
    let one = phone.seal(b"one").unwrap();
    end.send_frames([one.clone(), one, phone.seal(b"two").unwrap()]).await;
    assert_eq!(receive_all(&mut inward).await, (b"one".to_vec(), PipeEnding::Unreadable));
    assert_eq!(inward.recv().await, Err(PipeEnding::Unreadable));
    assert_eq!(end.closed().await, Some(1001));
    assert_eq!(out.send(b"x").await, Err(PipeEnding::Unreadable));
}

#[tokio::test]
async fn an_empty_frame_of_another_peer_is_passed_over() {
    let relay = Relay::start().await;
    let (pipe, mut end, mut phone) = relay.agent().await;
    let (_out, mut inward) = pipe.split();
    // The seal of nothing under the first number, made with another implementation: ours refuses.
    let _ = phone.seal(b"takes the first number").unwrap();
    end.send_frames([EMPTY_FIRST_FRAME.to_vec(), phone.seal(b"two").unwrap()]).await;
    assert_eq!(&*inward.recv().await.unwrap(), b"two");
}

#[tokio::test]
async fn a_frame_over_1_mib_ends_the_pipe() {
    let relay = Relay::start().await;
    let (pipe, mut end, _) = relay.agent().await;
    let (_out, mut inward) = pipe.split();
    end.socket.feed(Message::Binary(vec![0; PIPE_MAX_FRAME + 1].into())).await.unwrap();
    let (ending, _) = tokio::join!(inward.recv(), end.socket.flush());
    assert!(matches!(ending, Err(PipeEnding::Protocol(_))), "{ending:?}");
}

#[tokio::test]
async fn a_receive_that_is_given_up_loses_nothing() {
    let relay = Relay::start().await;
    let (pipe, mut end, mut phone) = relay.agent().await;
    let (_out, mut inward) = pipe.split();
    let sending = tokio::spawn(async move {
        for n in 0..200_u8 {
            end.send_frames([phone.seal(&[n]).unwrap()]).await;
        }
        end
    });
    let mut all = vec![];
    while all.len() < 200 {
        tokio::select! {
            biased;
            got = inward.recv() => all.extend(got.unwrap()),
            () = tokio::task::yield_now() => {}
        }
    }
    assert_eq!(all, (0..200).collect::<Vec<u8>>());
    sending.await.unwrap();
}

#[tokio::test]
async fn a_refused_upgrade_a_close_and_nonsense_instead_of_a_challenge_are_told_apart() {
    let relay = Relay::start().await;
    let (refused, ()) = tokio::join!(relay.attempt(), async {
        let mut tcp = relay.tcp().await;
        let _ = tcp.read(&mut [0; 2048]).await.unwrap();
        tcp.write_all(b"HTTP/1.1 429 Too Many\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    });
    assert_eq!(refused.unwrap_err(), PipeError::Dial(Disconnect::Http(429)));

    let nonce = auth::encode_challenge(&ChallengeNonce::new([1; 32]));
    let close = |code: u16| {
        let frame = tokio_tungstenite::tungstenite::protocol::CloseFrame { code: code.into(), reason: "".into() };
        Message::Close(Some(frame))
    };
    for (message, expected) in [
        (close(4429), PipeError::Ended(PipeEnding::Refused(PipeClose::TooMany))),
        (Message::text("hello"), PipeError::Protocol("something else than a challenge")),
        (Message::Binary(nonce[..20].to_vec().into()), PipeError::Protocol("a malformed challenge")),
    ] {
        let (refused, _socket) = tokio::join!(relay.attempt(), async {
            let mut socket = relay.upgrade().await.0;
            socket.send(message).await.unwrap();
            socket
        });
        assert_eq!(refused.unwrap_err(), expected);
    }
    assert_eq!(
        connect("ws://h/else", &identity(1), identity(1).namespace_id(), super::stand_in::agreed().0)
            .await
            .unwrap_err(),
        PipeError::Address
    );
}

#[tokio::test]
async fn a_relay_that_does_not_challenge_is_given_up() {
    let relay = Relay::start().await;
    let (refused, _socket) = tokio::join!(relay.attempt(), async {
        let socket = relay.upgrade().await;
        tokio::time::pause();
        socket
    });
    assert_eq!(refused.unwrap_err(), PipeError::Dial(Disconnect::Timeout("its challenge")));
}

#[tokio::test]
async fn a_relay_that_does_not_upgrade_is_given_up() {
    let relay = Relay::start().await;
    let (refused, _tcp) = tokio::join!(relay.attempt(), async {
        let tcp = relay.tcp().await;
        tokio::time::pause();
        tcp
    });
    assert_eq!(refused.unwrap_err(), PipeError::Dial(Disconnect::Timeout("connecting")));
}

#[tokio::test]
async fn a_quiet_pipe_lives_as_long_as_the_relay_answers_pings() {
    let relay = Relay::start().await;
    let (pipe, mut end, mut phone) = relay.agent().await;
    let (_out, mut inward) = pipe.split();
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    while began.elapsed() < Duration::from_mins(10) {
        assert!(matches!(end.next().await, Message::Ping(_)));
    }
    end.send_frames([phone.seal(b"awake").unwrap()]).await;
    assert_eq!(&*inward.recv().await.unwrap(), b"awake");
}

#[tokio::test]
async fn a_pipe_to_a_relay_that_says_nothing_at_all_is_given_up_after_two_minutes() {
    let relay = Relay::start().await;
    let (pipe, _end, _) = relay.agent().await;
    let (mut out, mut inward) = pipe.split();
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    assert_eq!(soon(inward.recv()).await, Err(PipeEnding::Silent));
    assert!((119..=125).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert_eq!(out.send(b"x").await, Err(PipeEnding::Silent));
}

#[tokio::test]
async fn a_receiver_that_takes_nothing_for_long_is_no_silence_of_the_relay() {
    let relay = Relay::start().await;
    let (pipe, mut end, mut phone) = relay.agent().await;
    let (_out, mut inward) = pipe.split();
    let frames: Vec<_> = (0..20).map(|_| phone.seal(&pattern(CHUNK)).unwrap()).collect();
    // More than the room that there is, so that the socket is not read until the receiver takes something.
    end.send_frames(frames).await;
    assert_eq!(inward.recv().await.unwrap().len(), CHUNK);
    tokio::time::pause();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(receive(&mut inward, 19 * CHUNK).await.len(), 19 * CHUNK);
}

#[tokio::test]
async fn a_close_that_the_relay_does_not_answer_is_not_waited_for_for_ever() {
    let relay = Relay::start().await;
    let (pipe, _end, _) = relay.agent().await;
    let (out, _in) = pipe.split();
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    assert_eq!(soon(out.close()).await, Err(PipeEnding::Silent));
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}
