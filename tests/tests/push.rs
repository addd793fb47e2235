//! Push, end to end: daemon, phone and relay as they are, services that are stand-ins, and the forwarder to Apple. What is
//! shown here holds with everything in between; the rules one by one are the engine's and the services' own tests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::join_all;
use serde_json::{Value, json};
use skald_common::crypto::{Identity, Seed};
use skald_common::ids::NamespaceId;
use skald_common::wire::{self, Frame, Platform};
use skald_tests::{
    DaemonOptions, Finished, Host, Nonces, Phone, PushDevice, PushServices, Pushed, Pushing, RawSocket, Relay, Service,
    Stream, Tap, World, random, traces, unix_ms, within,
};

/// A paired phone that is not connected, and where it is reached.
struct Sleeper {
    phone: Phone,
    device: PushDevice,
}

impl Sleeper {
    async fn at(service: Service, pushing: &Pushing, world: &mut World) -> Self {
        let device = pushing.services.device(service).await;
        let phone = Phone::new(&format!("{service:?}"));
        let qr = world.control.pairing_code().await;
        phone.pair_to_be_woken(&qr, "--push-token", &device.argument()).await.ok();
        Self { phone, device }
    }

    /// Its key.
    async fn key(&self) -> String {
        let status = self.phone.run(&["status", "--offline", "--json"]).await.ok().json();
        status["public_key"].as_str().expect("a key").to_owned()
    }

    /// Waits for a push whose notification says this; gives all pushes up to it, and the notification.
    async fn told(&self, pushing: &Pushing, text: &str) -> (Vec<Pushed>, Finished) {
        let mut seen = 0;
        loop {
            let mut pushes = pushing.services.pushes(&self.device, seen + 1).await;
            while seen < pushes.len() {
                seen += 1;
                let opened = pushes[seen - 1].opened_by(&self.phone).await;
                if opened.out.contains(text) {
                    pushes.truncate(seen);
                    return (pushes, opened);
                }
            }
        }
    }

    /// How many pushes came so far.
    async fn pushes(&self, pushing: &Pushing) -> usize {
        pushing.services.pushes(&self.device, 0).await.len()
    }

    /// It is told something that needs no answer, by a push of its own.
    async fn marker(&self, pushing: &Pushing, host: &Host, text: &str) -> Vec<Pushed> {
        notify(host, text).await;
        self.told(pushing, text).await.0
    }
}

async fn notify(host: &Host, text: &str) {
    host.call("notification.send", json!({"title": "Skald", "body": text})).await;
}

async fn sleepers(pushing: &Pushing, world: &mut World) -> Vec<Sleeper> {
    let mut sleepers = Vec::new();
    for service in pushing.services.reachable() {
        sleepers.push(Sleeper::at(service, pushing, world).await);
    }
    sleepers
}

/// The id of the only pending item.
async fn item(world: &World) -> String {
    world.control.inbox().await[0]["id"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn a_sleeping_phone_is_told_of_an_approval_by_each_service_and_answers_it() {
    let Some(pushing) = Pushing::shared().await else { return };
    let mut world = pushing.world().await;
    let mut host = world.host("skald").await;
    let sleepers = sleepers(&pushing, &mut world).await;
    for (n, sleeper) in (1..).zip(&sleepers) {
        let summary = format!("Deploy no. {n}");
        host.request("approval", &Host::approval(n, &summary, &json!({"target": "prod"}))).await;
        let told = sleepers.iter().map(|sleeper| sleeper.told(&pushing, &summary));
        for (pushes, opened) in join_all(told).await {
            assert_eq!(opened.json()["kind"], "inbox", "{opened}");
            assert_eq!(pushes.last().expect("just seen").data["ns"], world.control.status().await["namespace_id"]);
        }
        let id = item(&world).await;
        sleeper.phone.run(&["approve", "--yes", &id]).await.ok();
        let answer = host.answered().await;
        assert_eq!((&answer["request_id"], &answer["decision"]), (&json!(n), &json!("approved")));
    }
    pushing.is_beyond_reproach().await;
}

#[tokio::test]
async fn a_subscription_of_the_phones_own_is_opened_by_nobody_else() {
    let Some(pushing) = Pushing::shared().await else { return };
    let mut world = pushing.world().await;
    let host = world.host("skald").await;
    let device = pushing.services.device_with(Service::Web, json!({"keys": false})).await;
    let phone = Phone::new("Laptop");
    let qr = world.control.pairing_code().await;
    phone.pair_to_be_woken(&qr, "--push-url", &device.token).await.ok();
    let sleeper = Sleeper { phone, device };
    host.request("clarification", &Host::question(1, "Which branch?", &[])).await;
    let (pushes, _) = sleeper.told(&pushing, "Which branch?").await;
    let stranger = Sleeper::at(Service::Web, &pushing, &mut world).await;
    let opened = pushes.last().expect("just seen").opened_by(&stranger.phone).await;
    assert!(!opened.status.success() && !opened.says("branch"), "{opened}");
    pushing.is_beyond_reproach().await;
}

#[tokio::test]
async fn a_snapshot_too_large_to_travel_along_wakes_the_phone_which_fetches_it() {
    let Some(pushing) = Pushing::shared().await else { return };
    let mut world = pushing.world().await;
    let mut host = world.host("skald").await;
    let sleepers = sleepers(&pushing, &mut world).await;
    // Nothing makes it smaller, and it is no detail that could be left out.
    let noise = STANDARD.encode(random::<6000>());
    host.request("clarification", &Host::question(1, &noise, &[])).await;
    for sleeper in &sleepers {
        let mut seen = 0;
        let waking = loop {
            let pushes = pushing.services.pushes(&sleeper.device, seen + 1).await;
            seen = pushes.len();
            if let Some(push) = pushes.into_iter().find(Pushed::wakes) {
                break push;
            }
        };
        assert_eq!(waking.opened_by(&sleeper.phone).await.ok().json()["kind"], "wake");
    }
    let inbox = sleepers[0].phone.inbox().await;
    assert!(inbox.to_string().contains(&noise), "it is all there");
    sleepers[0].phone.run(&["answer", &item(&world).await, "I see"]).await.ok();
    assert_eq!(host.answered().await["answer"], "I see");
    pushing.is_beyond_reproach().await;
}

#[tokio::test]
async fn a_revoked_device_gets_none() {
    let Some(pushing) = Pushing::shared().await else { return };
    let mut world = pushing.world().await;
    let host = world.host("skald").await;
    let lost = Sleeper::at(Service::Fcm, &pushing, &mut world).await;
    let kept = Sleeper::at(Service::Web, &pushing, &mut world).await;
    lost.marker(&pushing, &host, "Both are told").await;
    world.control.call("devices.revoke", json!({"pubkey": lost.key().await})).await;
    let before = lost.pushes(&pushing).await;
    host.request("approval", &Host::approval(1, "Deploy", &json!({}))).await;
    kept.told(&pushing, "Deploy").await;
    kept.marker(&pushing, &host, "One is told").await;
    assert_eq!(lost.pushes(&pushing).await, before);
    pushing.is_beyond_reproach().await;
}

/// From one push of a tag to the next, seconds, as the clocks of two programs show it.
const SPACING: f64 = 4.9;

#[tokio::test]
async fn thirty_snapshots_make_one_notification_and_the_last_one_is_right() {
    let Some(pushing) = Pushing::shared().await else { return };
    let mut world = pushing.world().await;
    let host = world.host("skald").await;
    let sleepers = sleepers(&pushing, &mut world).await;
    for n in 1..=30 {
        host.request("clarification", &Host::question(n, &format!("Question {n:02}"), &[])).await;
    }
    for sleeper in &sleepers {
        let mut pushes = sleeper.told(&pushing, "Question 01").await.0;
        // What comes last is the newest, whatever came before; too long to travel along or not.
        while !says_all(pushes.last().expect("just seen"), sleeper).await {
            pushes = pushing.services.pushes(&sleeper.device, pushes.len() + 1).await;
        }
        // What was said of the phones that paired behind this one has no tag.
        pushes.retain(|push| push.collapse.is_some());
        assert!(pushes.iter().all(|push| push.collapse == pushes[0].collapse), "one notification: {pushes:?}");
        assert!(pushes.windows(2).all(|pair| pair[1].at - pair[0].at >= SPACING), "{pushes:?}");
        assert!(pushes.len() <= 4, "{} pushes", pushes.len());
    }
    pushing.is_beyond_reproach().await;
}

async fn says_all(push: &Pushed, sleeper: &Sleeper) -> bool {
    push.wakes() || push.opened_by(&sleeper.phone).await.ok().json()["items"] == 30
}

#[tokio::test]
async fn a_cleared_item_rings_nobody() {
    let Some(pushing) = Pushing::shared().await else { return };
    let mut world = pushing.world().await;
    let host = world.host("skald").await;
    let sleeper = Sleeper::at(Service::Web, &pushing, &mut world).await;
    let watch = sleeper.phone.start(&["--json", "watch"]);
    watch.wrote(Stream::Out, "\"connected\"").await;
    host.request("clarification", &Host::question(1, "Which branch?", &[])).await;
    watch.wrote(Stream::Out, "Which branch?").await;
    watch.terminate();
    watch.finished().await;
    world.control.until("nobody online", "status", |status| status["devices"]["online"] == 0).await;
    let mut witness = world.raw_phone("Awake").await;
    let before = sleeper.marker(&pushing, &host, "Before").await;
    // Whatever was pushed of snapshots until now would hold a further one up.
    let held_up_until = before.iter().filter(|push| push.collapse.is_some()).map(|push| push.at + 5.5);
    let now = Duration::from_millis(unix_ms()).as_secs_f64();
    let pause = held_up_until.map(|until| until - now).fold(0.0, f64::max);
    tokio::time::sleep(Duration::from_secs_f64(pause)).await;
    host.resolved("clarification", 1).await;
    witness.snapshot(0).await;
    // Behind the snapshot that cleared it, on the same socket.
    sleeper.marker(&pushing, &host, "After").await;
    let after = sleeper.marker(&pushing, &host, "Afterwards").await;
    assert_eq!(after.len(), before.len() + 2, "nothing but what is said after it: {after:?}");
    pushing.is_beyond_reproach().await;
}

#[tokio::test]
async fn a_phone_whose_socket_died_without_a_close_is_pushed() {
    // Both are far shorter than they are in the field. The phone's clock runs as much faster.
    let vars = ["--var=RELAY_KEEPALIVE_DEAD_SECS=4", "--var=RELAY_PUSH_UNPROVED_SECS=2"];
    let Some(pushing) = Pushing::with(&vars).await else { return };
    if !cfg!(debug_assertions) {
        eprintln!("skipped: the clock of release builds cannot be sped up");
        return;
    }
    let tap = Tap::in_front_of(pushing.relay.url(), &Nonces::default()).await;
    let settings = format!("qr_url = {:?}\n", tap.url());
    let options = DaemonOptions { settings, ..DaemonOptions::default() };
    let mut world = World::on(Arc::clone(&pushing.relay), &options).await;
    let host = world.host("skald").await;

    let device = pushing.services.device(Service::Web).await;
    let phone = Phone::new("Pocket").at_speed(10);
    let qr = world.control.pairing_code().await;
    phone.pair_to_be_woken(&qr, "--push-token", &device.argument()).await.ok();
    let sleeper = Sleeper { phone, device };
    let watch = sleeper.phone.start(&["--json", "watch"]);
    watch.wrote(Stream::Out, "\"connected\"").await;
    tap.pings(1).await;
    notify(&host, "Seen").await;
    watch.wrote(Stream::Out, "Seen").await;
    watch.signal(rustix::process::Signal::STOP);
    tap.silence();
    // Nothing else wakes the namespace: it finds the phone dead by itself.
    notify(&host, "Lost").await;
    sleeper.told(&pushing, "Lost").await;

    // One without KEEPALIVE is taken for connected as long as its socket is open; it proves nothing by saying nothing.
    let namespace = world.control.status().await["namespace_id"].as_str().map(NamespaceId::from_hex);
    let namespace = namespace.expect("text").expect("hex");
    let mut old = world.paired_raw_phone().await;
    // The relay has heard that it belongs to us.
    old.connect().await;
    old.disconnect().await;
    let device = pushing.services.device(Service::Fcm).await;
    let mut socket =
        RawSocket::client_with_token(pushing.relay.url(), old.seed(), &namespace, Platform::Android, &device.token)
            .await;
    let at = unix_ms();
    notify(&host, "Unproved").await;
    let pushes = pushing.services.pushes(&device, 1).await;
    let waited = Duration::from_secs_f64(pushes[0].at).saturating_sub(Duration::from_millis(at));
    assert!(waited >= Duration::from_millis(1900), "{waited:?}");
    socket.presence().await;
    pushing.is_beyond_reproach().await;
}

#[tokio::test]
async fn a_dead_token_shows_and_is_left_alone_and_a_new_one_heals() {
    let Some(pushing) = Pushing::shared().await else { return };
    join_all(pushing.services.reachable().into_iter().map(|service| dies_and_heals(service, &pushing))).await;
    pushing.is_beyond_reproach().await;
}

async fn dies_and_heals(service: Service, pushing: &Pushing) {
    let reason = match service {
        Service::Apns => "Unregistered",
        Service::Fcm => "UNREGISTERED",
        Service::Web => "gone",
    };
    let mut world = pushing.world().await;
    let host = world.host("skald").await;
    let witness = Sleeper::at(Service::Fcm, pushing, &mut world).await;
    let mut sleeper = Sleeper::at(service, pushing, &mut world).await;
    let key = sleeper.key().await;
    let is = |push: &'static str| {
        let key = key.clone();
        move |event: &Value| event["push"] == push && event["pubkey"] == key.as_str()
    };
    sleeper.marker(pushing, &host, "There").await;
    pushing.services.uninstall(&sleeper.device).await;
    notify(&host, "To nobody").await;
    world.control.event_where("device.push", is("gone")).await;
    let list = world.skaldctl().run(&["devices"]).await.ok().out;
    assert!(list.contains("push: token no longer valid"), "{list}");
    let refused = pushing.services.refusals(service, reason, 1).await;
    witness.marker(pushing, &host, "Without it").await;
    witness.marker(pushing, &host, "Again without it").await;
    assert_eq!(pushing.services.refusals(service, reason, 0).await, refused, "not once more");

    sleeper.device = pushing.services.device(service).await;
    sleeper.phone.run(&["inbox", "--push-token", &sleeper.device.argument()]).await.ok();
    world.control.event_where("device.push", is("ready")).await;
    sleeper.marker(pushing, &host, "Healed").await;
}

/// Far less than a fetch may take, and than the pause before the next try.
const PROMPT: Duration = Duration::from_secs(4);

async fn delays_nothing(pushing: &Pushing) {
    let mut world = pushing.world().await;
    let mut host = world.host("skald").await;
    let down = Sleeper::at(Service::Web, pushing, &mut world).await;
    let slow = Sleeper::at(Service::Fcm, pushing, &mut world).await;
    pushing.services.order(&down.device, json!({"times": null, "drop": "before"})).await;
    pushing.services.order(&slow.device, json!({"times": null, "hold": true})).await;
    let mut phone = world.raw_phone("Awake").await;
    let began = Instant::now();
    host.request("approval", &Host::approval(1, "Deploy", &json!({}))).await;
    let id = phone.item("approvals").await["request_id"].clone();
    phone.decide(&id, "approved").await;
    assert_eq!(host.answered().await["decision"], "approved");
    assert!(began.elapsed() < PROMPT, "{:?}", began.elapsed());
    host.request("approval", &Host::approval(2, "Deploy again", &json!({}))).await;
    let failed = pushing.services.pushes(&down.device, 1).await.len();
    pushing.services.pushes(&slow.device, 1).await;
    phone.item("approvals").await;
    // It comes up again, and is told of what still waits.
    pushing.services.withdraw(&down.device).await;
    pushing.services.ask("release", json!({})).await;
    let (pushes, _) = down.told(pushing, "Deploy again").await;
    assert!(pushes.len() > failed && pushes.last().is_some_and(|push| push.status == 201), "{pushes:?}");
    slow.told(pushing, "Deploy again").await;
    pushing.is_beyond_reproach().await;
}

#[tokio::test]
async fn a_service_that_is_down_delays_nothing_and_is_tried_again() {
    let Some(pushing) = Pushing::shared().await else { return };
    delays_nothing(&pushing).await;
}

#[tokio::test]
async fn so_it_is_when_the_object_forgets_everything_in_between() {
    let Some(pushing) = Pushing::forgetful(&[]).await else { return };
    delays_nothing(&pushing).await;
}

#[tokio::test]
async fn retry_after_is_obeyed() {
    let Some(pushing) = Pushing::shared().await else { return };
    let mut world = pushing.world().await;
    let host = world.host("skald").await;
    let tries = [(Service::Fcm, 429, "QUOTA_EXCEEDED"), (Service::Web, 503, "busy")];
    let mut sleepers = Vec::new();
    for (service, status, reason) in tries {
        let sleeper = Sleeper::at(service, &pushing, &mut world).await;
        sleeper.marker(&pushing, &host, &format!("{reason} is to come")).await;
        let answer = json!({"status": status, "reason": reason, "headers": {"retry-after": "9"}});
        pushing.services.order(&sleeper.device, answer).await;
        sleepers.push(sleeper);
    }
    notify(&host, "At last").await;
    for sleeper in &sleepers {
        let mut pushes = Vec::new();
        // The one that was refused, and the same message once more.
        let (first, second) = loop {
            pushes = pushing.services.pushes(&sleeper.device, pushes.len() + 1).await;
            let refused = pushes.iter().find(|push| push.status >= 429);
            let again =
                |first: &&Pushed| pushes.iter().find(|push| push.status < 300 && push.data["n"] == first.data["n"]);
            if let Some((first, second)) = refused.and_then(|first| Some((first, again(&first)?))) {
                break (first.at, second.at);
            }
        };
        assert!((8.9..30.0).contains(&(second - first)), "{pushes:?}");
    }
    pushing.is_beyond_reproach().await;
}

/// An agent with one device, as keys and sockets alone.
struct Namespace {
    agent: Identity,
    phone: Seed,
}

impl Namespace {
    fn new() -> Self {
        Self { agent: Identity::new(&Seed::new(random())), phone: Seed::new(random()) }
    }

    async fn agent(&self, relay: &Relay) -> RawSocket {
        RawSocket::agent(relay.url(), &self.agent, &[Identity::new(&self.phone).ed25519_pub()]).await
    }

    /// The device comes, says how it is to be woken, and goes.
    async fn register(&self, relay: &Relay, platform: Platform, token: &str) {
        let namespace = self.agent.namespace_id();
        let mut socket = RawSocket::client_with_token(relay.url(), &self.phone, &namespace, platform, token).await;
        socket.presence().await;
        socket.close().await;
    }

    /// The agent sends the device a message.
    async fn send(&self, socket: &mut RawSocket) {
        let message = wire::Message {
            ciphertext: random::<40>().to_vec().into(),
            nonce: random::<12>().to_vec(),
            peer: Identity::new(&self.phone).ed25519_pub().to_vec(),
            ..wire::Message::default()
        };
        socket.send(Frame::Message(message)).await;
        socket.presence().await;
    }
}

const NAMESPACES: usize = 24;
const HALF_HOUR: u64 = 30 * 60 * 1000;

#[tokio::test]
async fn many_namespaces_present_one_token_to_apple_and_so_does_a_relay_that_was_restarted() {
    let Some(pushing) = Pushing::with(&[]).await else { return };
    if !pushing.services.has(Service::Apns) {
        return;
    }
    let Pushing { services, relay } = pushing;
    let mut relay = Arc::into_inner(relay).expect("nobody else uses it");
    let began = unix_ms() / HALF_HOUR;
    let namespaces: Vec<_> = (0..NAMESPACES).map(|_| Namespace::new()).collect();
    let mut devices = Vec::new();
    for namespace in &namespaces {
        let device = services.device(Service::Apns).await;
        let mut agent = namespace.agent(&relay).await;
        namespace.register(&relay, Platform::Ios, &device.token).await;
        namespace.send(&mut agent).await;
        devices.push(device);
    }
    for device in &devices {
        assert_eq!(services.pushes(device, 1).await[0].status, 200);
    }
    relay.kill().await;
    relay.start_again().await;
    for namespace in &namespaces {
        let mut agent = namespace.agent(&relay).await;
        namespace.send(&mut agent).await;
    }
    for device in &devices {
        assert!(services.pushes(device, 2).await.iter().all(|push| push.status == 200));
    }
    // If the half hour turns meanwhile there is another one, for all.
    let turned = unix_ms() / HALF_HOUR - began;
    let tokens = services.provider_tokens().await;
    assert!((1..=1 + turned).contains(&tokens), "{tokens} tokens");
    assert_eq!(services.offences().await, Vec::<String>::new());
}

#[tokio::test]
async fn an_access_token_is_kept_until_it_expires_even_over_a_restart() {
    let Some(pushing) = Pushing::with(&[]).await else { return };
    let Pushing { services, relay } = pushing;
    let mut relay = Arc::into_inner(relay).expect("nobody else uses it");
    let namespace = Namespace::new();
    let device = services.device(Service::Fcm).await;
    let mut agent = namespace.agent(&relay).await;
    namespace.register(&relay, Platform::Android, &device.token).await;
    let mut pushes = 0;
    for _ in 0..3 {
        namespace.send(&mut agent).await;
        pushes += 1;
        services.pushes(&device, pushes).await;
        // Then it is noted.
        relay.logged("outcome=sent").await;
    }
    assert_eq!(services.access_tokens().await, 1);
    relay.kill().await;
    relay.start_again().await;
    let mut agent = namespace.agent(&relay).await;
    namespace.send(&mut agent).await;
    pushes += 1;
    services.pushes(&device, pushes).await;
    assert_eq!(services.access_tokens().await, 1, "it is on the disk");
    services.ask("access", json!({"expire": true})).await;
    namespace.send(&mut agent).await;
    pushes += 1;
    assert_eq!(services.pushes(&device, pushes).await.last().map(|push| push.status), Some(200));
    assert_eq!(services.access_tokens().await, 2);
    assert_eq!(services.offences().await, Vec::<String>::new());
}

/// What devices hand in as subscriptions, each leading where no push may go.
const FORBIDDEN: [&str; 18] = [
    "http://updates.push.services.mozilla.com/x",
    "https://updates.push.services.mozilla.com:8443/x",
    "https://updates.push.services.mozilla.com@127.0.0.1/x",
    "https://user:password@updates.push.services.mozilla.com/x",
    "https://127.0.0.1/x",
    "https://[::1]/x",
    "https://2130706433/x",
    "https://0x7f.1/x",
    "https://localhost/x",
    "https://relay.example/x",
    "https://169.254.169.254/latest/meta-data",
    "https://updates.push.services.mozilla.com.example.com/x",
    "https://evilpush.services.mozilla.com.attacker.example/x",
    "https://xn--fcm-googleapis.com/fcm/send/x",
    "https://storage.googleapis.com/x",
    "https://web.push.apple.com.example/x",
    "file:///etc/passwd",
    "//updates.push.services.mozilla.com/x",
];

#[tokio::test]
async fn a_push_goes_to_no_address_that_a_device_makes_up_and_follows_no_redirect() {
    let Some(pushing) = Pushing::shared().await else { return };
    let keys: Value = serde_json::from_str(&pushing.services.device(Service::Web).await.token).expect("JSON");
    let namespaces: Vec<_> = FORBIDDEN.iter().map(|_| Namespace::new()).collect();
    for (namespace, endpoint) in namespaces.iter().zip(FORBIDDEN) {
        let mut agent = namespace.agent(&pushing.relay).await;
        let subscription = json!({"endpoint": endpoint, "keys": keys["keys"]}).to_string();
        namespace.register(&pushing.relay, Platform::Web, &subscription).await;
        namespace.send(&mut agent).await;
    }
    let namespace = Namespace::new();
    let device = pushing.services.device(Service::Web).await;
    let mut agent = namespace.agent(&pushing.relay).await;
    namespace.register(&pushing.relay, Platform::Web, &device.token).await;
    let elsewhere = json!({"status": 307, "headers": {"location": "https://updates.push.services.mozilla.com/else"}});
    pushing.services.order(&device, elsewhere).await;
    for pushes in 1..=2 {
        namespace.send(&mut agent).await;
        pushing.services.pushes(&device, pushes).await;
    }
    let statuses: Vec<u64> = pushing.services.pushes(&device, 2).await.iter().map(|push| push.status).collect();
    assert_eq!(statuses, [307, 201]);
    pushing.is_beyond_reproach().await;
}

#[tokio::test]
async fn nothing_that_a_push_carries_is_in_a_log() {
    let Some(pushing) = Pushing::with(&["--verbose"]).await else { return };
    let mut world = pushing.world().await;
    let host = world.host("skald").await;
    let sleepers = sleepers(&pushing, &mut world).await;
    let mut secrets = Vec::new();
    for sleeper in &sleepers {
        sleeper.marker(&pushing, &host, "It works").await;
        // Words that a service may say back, in every field that there is.
        let says = json!({
            "status": 400, "headers": {"x-token": sleeper.device.token.replace('"', "'")},
            "body": json!({"reason": sleeper.device.name, "error": {"status": sleeper.device.name, "message": sleeper.device.name}}).to_string(),
        });
        pushing.services.order(&sleeper.device, says).await;
        pushing.services.order(&sleeper.device, json!({"garbage": true})).await;
        pushing.services.order(&sleeper.device, json!({"drop": "middle"})).await;
        pushing.services.order(&sleeper.device, json!({"status": 503, "reason": "busy"})).await;
    }
    for n in 0..4 {
        notify(&host, &format!("It fails {n}")).await;
    }
    for sleeper in &sleepers {
        let pushes = pushing.services.pushes(&sleeper.device, 5).await;
        assert!(
            pushes.iter().any(|push| push.status == 400) && pushes.iter().any(|push| push.status == 0),
            "{pushes:?}"
        );
        for push in &pushes {
            for field in ["n", "c"] {
                secrets.extend(push.data[field].as_str().map(str::to_owned));
            }
        }
        pushing.services.uninstall(&sleeper.device).await;
    }
    notify(&host, "Nobody is there").await;
    for sleeper in &sleepers {
        let key = sleeper.key().await;
        let gone = |event: &Value| event["push"] == "gone" && event["pubkey"] == key.as_str();
        world
            .control
            .until("a dead token", "devices.list", |list| {
                list.as_array().is_some_and(|list| {
                    list.iter().any(|device| gone(&json!({"push": device["push"], "pubkey": device["pubkey"]})))
                })
            })
            .await;
        secrets.push(sleeper.device.name.clone());
        if sleeper.device.service == Service::Web {
            let subscription: Value = serde_json::from_str(&sleeper.device.token).expect("JSON");
            let path = sleeper.device.name.rsplit('/').next().expect("a path");
            secrets.push(path.to_owned());
            for key in ["p256dh", "auth"] {
                secrets.push(subscription["keys"][key].as_str().expect("a key").to_owned());
            }
        }
    }
    secrets.extend(pushing.services.credentials().await);
    let account: Value = serde_json::from_str(pushing.services.secret("FCM_SERVICE_ACCOUNT")).expect("JSON");
    let keys = [pushing.services.secret("APNS_KEY"), account["private_key"].as_str().expect("a key")];
    secrets.extend(keys.iter().map(|pem| pem.lines().nth(1).expect("a line of the key").to_owned()));
    secrets.push(pushing.services.secret("VAPID_PRIVATE_KEY").to_owned());
    assert!(secrets.len() > 20, "{}", secrets.len());
    world.daemon.stop().await;
    pushing.relay.stop().await;
    let (relay, forwarder) = (pushing.relay.log(), pushing.services.forwarders_log());
    assert!(relay.contains("outcome="), "what came of pushes is in the log");
    for secret in &secrets {
        for (whose, log) in [("relay", &relay), ("daemon", &world.daemon.log()), ("forwarder", &forwarder)] {
            assert_eq!(traces(log.as_bytes(), secret), [""; 0], "the {whose} logged {secret}");
        }
    }
    pushing.is_beyond_reproach().await;
}

/// What `/healthz` says of pushes, once it fits.
async fn health(relay: &Relay, fits: impl Fn(&Value) -> bool) -> Value {
    let fitting = async {
        loop {
            let response = relay.get("/healthz").await;
            let body = response.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            let health: Value = serde_json::from_str(body.trim()).expect("JSON");
            assert_eq!(health["status"], "ok");
            if fits(&health["push"]) {
                return health;
            }
            // The counts come a little behind, and say nothing by themselves.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    within("the relay's health", fitting).await
}

#[tokio::test]
async fn the_relays_health_shows_what_is_set_up_and_what_came_of_pushes_and_names_nobody() {
    let Some(pushing) = Pushing::with(&["--var=APNS_TOPIC="]).await else { return };
    let before = health(&pushing.relay, |_| true).await;
    let state = |health: &Value| ["apns", "fcm", "web"].map(|service| health["push"][service]["state"].clone());
    assert_eq!(state(&before), ["misconfigured", "on", "on"], "{before}");
    assert!(pushing.relay.log().contains("APNS_TOPIC is missing"), "the log says why");

    let mut world = pushing.world().await;
    let host = world.host("skald").await;
    let sleeper = Sleeper::at(Service::Fcm, &pushing, &mut world).await;
    sleeper.marker(&pushing, &host, "One").await;
    let sent = health(&pushing.relay, |push| push["fcm"]["sent"]["count"].as_u64() >= Some(1)).await;
    assert!(sent["push"]["fcm"]["sent"]["last"].is_string() && sent["push"]["web"].get("sent").is_none(), "{sent}");
    pushing.services.uninstall(&sleeper.device).await;
    notify(&host, "Nobody is there").await;
    let gone = health(&pushing.relay, |push| push["fcm"].get("gone").is_some()).await;
    assert_eq!(gone["push"]["fcm"]["gone"]["reason"], "unregistered");
    let namespace = world.control.status().await["namespace_id"].as_str().expect("text").to_owned();
    for name in [sleeper.device.name.as_str(), &sleeper.key().await, &namespace[..8]] {
        assert!(!gone.to_string().contains(name), "{gone}");
    }

    let key = pushing.relay.get("/v1/webpush-key").await;
    let key = key.split_once("\r\n\r\n").map_or("", |(_, key)| key.trim());
    assert_eq!(key, pushing.services.webpush_key());
    let without = Relay::shared().await;
    assert_eq!(state(&health(&without, |_| true).await), ["off", "off", "off"]);
    assert!(without.get("/v1/webpush-key").await.starts_with("HTTP/1.1 404 "));
    pushing.is_beyond_reproach().await;
}

/// With made-up tokens: a service that accepts who we are says that it does not know them.
#[tokio::test]
async fn push_smoke_tells_a_service_that_accepts_the_operator_from_one_that_does_not() {
    if !Relay::controllable() {
        return;
    }
    let Some(services) = PushServices::start().await else { return };
    let names: Vec<&str> = services.reachable().into_iter().map(Service::name).collect();
    let finished = services.smoke(None, &names).await.ok();
    for name in names {
        let told = finished.out.lines().any(|line| {
            line.strip_prefix(name).is_some_and(|told| told.starts_with(": gone") || told == ": refused, rejected")
        });
        assert!(told, "{name}: {finished}");
    }
    let mut account: Value = serde_json::from_str(services.secret("FCM_SERVICE_ACCOUNT")).expect("JSON");
    account["client_email"] = "somebody@else.example".into();
    let finished = services.smoke(Some(("FCM_SERVICE_ACCOUNT", &account.to_string())), &["fcm"]).await;
    assert_eq!(finished.code(), 1, "{finished}");
    assert!(finished.out.contains("fcm: refused, credentials"), "{finished}");
    let finished = services.smoke(Some(("VAPID_SUBJECT", "nobody")), &["web"]).await;
    assert_eq!(finished.code(), 2, "{finished}");
    assert!(finished.out.contains("VAPID_SUBJECT must begin with mailto: or https://"), "{finished}");
}

async fn meter(relay: &Relay) -> Value {
    let response = relay.get("/meter").await;
    let body = response.split_once("\r\n\r\n").expect("a body").1;
    serde_json::from_str(body).expect("JSON")
}

#[tokio::test]
async fn a_push_keeps_nothing_awake_and_wakes_nothing_again() {
    let around = concat!(env!("CARGO_MANIFEST_DIR"), "/meter/meter.js");
    let Some(pushing) = Pushing::with(&["--around", around]).await else { return };
    let mut world = pushing.world().await;
    let host = world.host("skald").await;
    let sleeper = Sleeper::at(Service::Web, &pushing, &mut world).await;
    sleeper.marker(&pushing, &host, "Before").await;
    // The answer to the push, and what is left to be done within the spacing; nothing tells when it is done.
    tokio::time::sleep(Duration::from_secs(7)).await;
    let before = meter(&pushing.relay).await;
    // Longer than the runtime keeps an idle object.
    tokio::time::sleep(Duration::from_secs(13)).await;
    let rested = meter(&pushing.relay).await;
    assert_eq!(rested, before, "nobody was woken");
    sleeper.marker(&pushing, &host, "After").await;
    let woken = meter(&pushing.relay).await;
    let count = |counts: &Value, name: &str| counts[name].as_u64().expect("a number");
    assert!(count(&woken, "wakings") > count(&rested, "wakings"), "the object had gone to sleep: {rested} {woken}");
    pushing.is_beyond_reproach().await;
}
