//! A panic of the relay's wasm takes the memory of every object in the isolate, but none of their sockets: whoever loses a
//! pipe or a connection that way must learn of it.

use std::time::Duration;

use bytes::Bytes;
use skald_common::wire::{Frame, Message};
use skald_tests::{Members, RawSocket, Relay, Way};

/// So that a pipe on which nobody speaks is found out soon.
const IDLE: &str = "RELAY_PIPE_IDLE_TIMEOUT_SECS=10";

#[tokio::test]
async fn a_panic_in_one_end_ends_the_pipes_of_others_and_new_ones_open_at_once() {
    if !Relay::controllable() {
        return;
    }
    let relay = Relay::forgetful(&["RELAY_PANIC_AT=before-handling-pipe-text", IDLE]).await;
    let others = Members::new(relay.url(), Way::Direct).await;
    let (mut speaks, mut listens) = others.pipe().await;
    let (leaves, mut stays) = others.pipe().await;
    let (mut silent, mut silent_too) = others.pipe().await;

    // Text, which no client of a pipe may send.
    let (mut panics, _other) = Members::new(relay.url(), Way::Front).await.pipe().await;
    panics.send_text("x").await;
    while !relay.log().contains("crash point") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    assert_eq!(panics.closed().await, 1001);
    speaks.try_send(Bytes::from_static(b"lost")).await;
    assert_eq!((speaks.closed().await, listens.closed().await), (1001, 1001), "{}", relay.report());
    leaves.close(1000).await;
    assert_eq!(stays.closed().await, 1001);
    let (mut one, mut other) = others.pipe().await;
    one.passes_to(&mut other).await;
    assert_eq!((silent.closed().await, silent_too.closed().await), (1001, 1001), "at the end of the idle time");
}

/// The front's connections have closures in the wasm that is gone; those of a namespace's object do not.
#[tokio::test]
async fn a_panic_ends_the_connections_through_the_front_when_they_next_speak_and_no_others() {
    if !Relay::controllable() {
        return;
    }
    let relay = Relay::forgetful(&["RELAY_PANIC_AT=before-handling-message"]).await;
    let mut front = Members::new(relay.url(), Way::Front).await;
    let mut direct = Members::new(relay.url(), Way::Direct).await;
    let mut unknown = RawSocket::open(relay.url()).await;
    assert!(matches!(unknown.next().await, Some(Frame::Challenge(_))));

    let mut panics = Members::new(relay.url(), Way::Direct).await;
    let (peer, nonce) = (panics.phone.ed25519_pub().to_vec(), vec![0; 12]);
    panics
        .control
        .send(Frame::Message(Message { peer, nonce, ciphertext: vec![0; 16].into(), ..Message::default() }))
        .await;
    while !relay.log().contains("crash point") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    front.control.send_text("ping").await;
    unknown.send_text("ping").await;
    assert_eq!((front.control.closed().await, unknown.closed().await), (1001, 1001), "{}", relay.report());
    assert_eq!(direct.control.presence().await.len(), 1);
    let mut again = Members::new(relay.url(), Way::Front).await;
    assert_eq!(again.control.presence().await.len(), 1);
}
