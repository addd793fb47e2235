//! The relay as its operator meets it: it starts, says where, answers, and stops.

use std::sync::Arc;
use std::time::{Duration, Instant};

use skald_common::ids::NamespaceId;
use skald_common::wire::Frame;
use skald_tests::{DaemonOptions, RawSocket, Relay, World};

#[tokio::test]
async fn a_relay_says_that_it_is_well_and_nothing_of_what_is_not_there() {
    if !Relay::controllable() {
        return;
    }
    let relay = Relay::shared().await;
    assert!(relay.get("/healthz").await.starts_with("HTTP/1.1 200"));
    for path in ["/", "/v1", "/internal/ns", "/v1/ws/", "/ns/xyz/v1/ws", "/healthz/x"] {
        assert!(relay.get(path).await.starts_with("HTTP/1.1 404"), "{path}");
    }
    assert!(relay.get("/v1/ws").await.starts_with("HTTP/1.1 426"), "no upgrade");
}

#[tokio::test]
async fn a_relay_says_which_pushes_it_is_set_up_for_and_what_is_wrong_without_quoting_it() {
    if !Relay::controllable() {
        return;
    }
    let relay = Relay::own(&[]).await;
    let off = r#""push":{"apns":{"state":"off"},"fcm":{"state":"off"},"web":{"state":"off"}}"#;
    assert!(relay.get("/healthz").await.contains(off));
    assert!(relay.get("/v1/webpush-key").await.starts_with("HTTP/1.1 404"), "no key");

    // The private key of the example in RFC 8291, A, and what belongs to it.
    let (private, public) = (
        "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94",
        "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
    );
    let secrets = tempfile::tempdir().unwrap();
    for (name, value) in [
        ("VAPID_PRIVATE_KEY", private),
        ("VAPID_SUBJECT", "mailto:operator@example.org\n"),
        ("APNS_KEY", "hunter2"),
        ("APNS_KEY_ID", "hunter2"),
        ("FCM_SERVICE_ACCOUNT", r#"{"private_key":"hunter2"}"#),
    ] {
        std::fs::write(secrets.path().join(name), value).unwrap();
    }
    let relay = Relay::with(&["--secrets", secrets.path().to_str().unwrap()]).await;
    let health = relay.get("/healthz").await;
    let wrong = r#""push":{"apns":{"state":"misconfigured"},"fcm":{"state":"misconfigured"},"web":{"state":"on"}}"#;
    assert!(health.contains(wrong), "{health}");
    let key = relay.get("/v1/webpush-key").await;
    assert!(key.starts_with("HTTP/1.1 200") && key.ends_with(&format!("\r\n\r\n{public}")), "{key}");
    assert!(key.to_lowercase().contains("access-control-allow-origin: *"), "{key}");
    let log = relay.log();
    for told in [
        "APNS_TEAM_ID is missing; pushes by apns are off",
        "APNS_TOPIC is missing; pushes by apns are off",
        "FCM_SERVICE_ACCOUNT has no client_email; pushes by fcm are off",
    ] {
        assert!(log.contains(told), "{told}: {log}");
    }
    assert!(!log.contains("hunter2") && !log.contains(private), "{log}");
}

#[tokio::test]
async fn a_relay_told_to_stop_ends_within_five_seconds_although_peers_are_connected() {
    if !Relay::controllable() {
        return;
    }
    let mut relay = Relay::own(&[]).await;
    let mut socket = RawSocket::open(relay.url()).await;
    assert!(matches!(socket.next().await, Some(Frame::Challenge(_))));
    let told = Instant::now();
    let finished = relay.stop().await;
    assert!(told.elapsed() < Duration::from_secs(5), "{:?}", told.elapsed());
    assert_eq!(finished.code(), 0, "{finished}");
    assert!(socket.next().await.is_none());
    relay.start_again().await;
    let mut socket = RawSocket::open(relay.url()).await;
    assert!(matches!(socket.next().await, Some(Frame::Challenge(_))), "and it starts again on the same port");
}

/// The runtime evicts an object ten seconds after its last event, and tells nobody: there is no event to await. When it
/// wakes up it says so in the relay's log, which may reach this test after the answer that woke it.
#[tokio::test]
async fn an_idle_namespace_leaves_memory_and_its_connections_live_on() {
    if !Relay::controllable() {
        return;
    }
    let relay = Arc::new(Relay::own(&[]).await);
    let mut world = World::on(Arc::clone(&relay), &DaemonOptions::default()).await;
    let mut phone = world.paired_raw_phone().await;
    phone.connect().await;
    let wakings = || relay.log().matches("woke up with").count();
    let before = wakings();
    for pause in [12, 14, 18, 26] {
        tokio::time::sleep(Duration::from_secs(pause)).await;
        assert_eq!(phone.inbox().await["badge"], 0, "asked and answered over the connections from before");
        if wakings() > before {
            return;
        }
    }
    panic!("never evicted: {}", relay.report());
}

/// An evicted object is dropped outside of any event, where most of the runtime refuses to be called; a refusal that is not
/// caught ends the isolate, and with it the memory of every namespace.
#[tokio::test]
async fn a_timer_that_an_evicted_object_leaves_behind_ends_nobody_elses_memory() {
    if !Relay::controllable() {
        return;
    }
    let relay = Relay::own(&["RELAY_CHALLENGE_TIMEOUT_SECS=1"]).await;
    let direct = |n: u8| relay.url().replace("/v1/ws", &format!("/ns/{}/v1/ws", NamespaceId::new([n; 32])));
    let mut sockets = Vec::new();
    for n in 0..20 {
        sockets.push(RawSocket::open(&direct(n)).await);
    }
    for mut socket in sockets {
        assert!(matches!(socket.next().await, Some(Frame::Challenge(_))));
        assert!(matches!(socket.next().await, Some(Frame::AuthError(error)) if error.code == "challenge_timeout"));
    }
    // Longer than the runtime keeps an idle object; nothing tells when it has gone.
    tokio::time::sleep(Duration::from_secs(13)).await;
    for n in 0..200 {
        // Garbage, so that it is collected.
        drop(RawSocket::open(&direct(n)).await);
    }
    assert!(!relay.log().contains("Critical error"), "{}", relay.report());
}
