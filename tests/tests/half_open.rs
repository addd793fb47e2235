//! Links that die without a word, as behind a router that lost its table: on either leg, at any moment, everybody concerned
//! notices by the protocol's liveness rules and dials anew, and nothing that was accepted is lost or acted on twice. The
//! protocol's clock runs faster here than the one on the wall (docs/testing.md).

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use skald_tests::{
    DaemonOptions, Dice, From, Host, Kind, Moment, Nonces, OldRelay, Parties, Phone, Process, RawPhone, Relay, Stream,
    Tap, Then, Victim, What, World,
};

/// The protocol's clock, against the one on the wall: a minute of silence is six seconds.
const SPEED: u32 = 10;
/// Seconds on the wall that a phone has.
const PATIENT: [&str; 2] = ["--timeout", "80"];

/// A world with a tap on either leg.
struct Legs {
    world: World,
    daemon: Tap,
    phone: Tap,
}

impl Legs {
    async fn new(vars: &[&str]) -> Self {
        let relay = Arc::new(Relay::own(vars).await);
        let nonces = Nonces::default();
        let (daemon, phone) =
            (Tap::in_front_of(relay.url(), &nonces).await, Tap::in_front_of(relay.url(), &nonces).await);
        let settings = format!("qr_url = {:?}\n", phone.url());
        let options = DaemonOptions { settings, speed: SPEED, ..DaemonOptions::default() };
        let world = World::through(daemon.url(), relay, &options).await;
        Self { world, daemon, phone }
    }

    async fn phone(&mut self, name: &str) -> Phone {
        let phone = Phone::new(name).at_speed(SPEED);
        let qr = self.world.control.pairing_code().await;
        phone.pair(&qr).await.ok();
        phone
    }

    /// The daemon notices that its link has died, and has another one.
    async fn daemon_comes_back(&mut self) {
        self.world.control.event_where("relay.disconnected", is_silence).await;
        self.world.control.connected().await;
    }
}

fn is_silence(event: &Value) -> bool {
    event["reason"].as_str().is_some_and(|reason| reason.contains("no sign of life"))
}

/// This frame of the sender, and all that comes after, arrives no more.
const fn lost(from: From, what: What) -> Moment {
    Moment { from, what, arrives: false, then: Then::Silence }
}

async fn connected_watch(phone: &Phone) -> Process {
    let watch = phone.start(&["--json", "watch"]);
    watch.wrote(Stream::Out, "\"connected\"").await;
    watch
}

/// Whether this test can be run: with processes of our own, whose clock can be sped up.
fn possible() -> bool {
    if !cfg!(debug_assertions) {
        eprintln!("skipped: the clock of release builds cannot be sped up");
    }
    cfg!(debug_assertions) && Relay::controllable()
}

/// The host asks for an approval; the phone has seen it.
async fn asked(host: &Host, phone: &mut RawPhone, id: u64) -> Value {
    let summary = format!("Deploy {id}");
    host.request("approval", &Host::approval(id, &summary, &json!({"n": id}))).await;
    let shows = |update: &Value| update["approvals"][0]["summary"] == summary.as_str();
    phone.payload_where("inbox_update", shows).await["approvals"][0]["request_id"].clone()
}

#[tokio::test]
async fn a_daemon_whose_link_dies_with_an_answer_on_it_notices_and_gets_the_answer() {
    if !possible() {
        return;
    }
    let mut legs = Legs::new(&[]).await;
    let mut host = legs.world.host("skald").await;
    let mut phone = legs.world.raw_phone("Ann").await;
    let item = asked(&host, &mut phone, 1).await;
    let mut died = legs.daemon.lie_in_wait(lost(From::Relay, What::Stored));
    let tap = phone.decide(&item, "approved").await;
    died.wait().await;
    legs.daemon_comes_back().await;
    assert_eq!(host.answered().await["decision"], "approved");
    assert_eq!(phone.ack(&tap).await["outcome"], "accepted");
}

#[tokio::test]
async fn an_answer_whose_receipt_is_lost_comes_again_and_is_acted_on_once() {
    if !possible() {
        return;
    }
    let mut legs = Legs::new(&[]).await;
    let mut host = legs.world.host("skald").await;
    let mut phone = legs.world.raw_phone("Ann").await;
    let item = asked(&host, &mut phone, 1).await;
    let mut died = legs.daemon.lie_in_wait(lost(From::Peer, What::Ack));
    phone.decide(&item, "approved").await;
    died.wait().await;
    assert_eq!(host.answered().await["request_id"], 1);
    legs.daemon_comes_back().await;
    let item = asked(&host, &mut phone, 2).await;
    phone.decide(&item, "rejected").await;
    assert_eq!(host.answered().await["request_id"], 2, "and not the first one again");
}

/// Each frame that an answer needs on the phone's leg is the last one in turn.
#[tokio::test]
async fn a_phone_whose_link_dies_under_its_answer_notices_and_the_answer_counts_once() {
    if !possible() {
        return;
    }
    let mut legs = Legs::new(&[]).await;
    let mut host = legs.world.host("skald").await;
    let phone = legs.phone("Ann").await;
    let last = [
        (From::Peer, What::Live),
        (From::Relay, What::Live),
        (From::Peer, What::Stored),
        (From::Relay, What::Accepted),
    ];
    for (n, (from, what)) in (1..).zip(last) {
        host.request("approval", &Host::approval(n, "Deploy", &json!({"n": n}))).await;
        let item = legs.world.control.inbox().await[0]["id"].as_str().expect("an id").to_owned();
        let before = legs.phone.connections();
        let mut died = legs.phone.lie_in_wait(lost(from, what));
        let approving = phone.start(&[&PATIENT[..], &["approve", &item]].concat());
        died.wait().await;
        assert_eq!(host.answered().await["request_id"], n, "not an earlier one again, after {from:?} {what:?}");
        assert!(approving.finished().await.ok().says("the agent has it"));
        assert!(legs.phone.connections() > before + 1, "it has dialled anew");
    }
}

#[tokio::test]
async fn a_watch_whose_link_has_died_notices_and_shows_what_it_missed() {
    if !possible() {
        return;
    }
    let mut legs = Legs::new(&[]).await;
    let host = legs.world.host("skald").await;
    let phone = legs.phone("Ann").await;
    let watch = connected_watch(&phone).await;
    legs.phone.silence();
    host.request("clarification", &Host::question(1, "Which branch?", &[])).await;
    let notified = host.call("notification.send", json!({"title": "Skald", "body": "Built in vain"})).await;
    assert_eq!(notified["devices"], 1);
    watch.wrote(Stream::Out, "Which branch?").await;
    watch.wrote(Stream::Out, "Built in vain").await;
}

/// Not even the relay is told. It takes a device for connected as long as the protocol says, and loses nothing over that.
#[tokio::test]
async fn a_relay_gives_a_silent_phone_up_and_keeps_what_it_took_for_it() {
    if !possible() {
        return;
    }
    let mut legs = Legs::new(&["RELAY_KEEPALIVE_DEAD_SECS=2", "RELAY_AGENT_RATE_PER_MINUTE=100000"]).await;
    let host = legs.world.host("skald").await;
    let mut phone = legs.world.raw_phone("Ann").await;
    legs.phone.silence();
    let mut sent = 0;
    while legs.world.control.status().await["devices"]["online"] != 0 {
        host.call("notification.send", json!({"title": "Skald", "body": format!("No. {sent}")})).await;
        sent += 1;
        // The relay learns of it by sending, and judges by its clock: there is no event to await.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(sent > 1, "it took a while");
    phone.connect().await;
    for n in 0..sent {
        assert_eq!(phone.payload("notification").await["body"], format!("No. {n}"), "all of them, in order");
    }
}

/// Deployed relays know no text `ping`: there the daemon sends WebSocket's own.
#[tokio::test]
async fn a_daemon_on_a_relay_without_features_notices_too() {
    if !possible() {
        return;
    }
    let relay = Relay::shared().await;
    let old = OldRelay::in_front_of(relay.url()).await;
    let leg = Tap::in_front_of(old.url(), &Nonces::default()).await;
    let options = DaemonOptions { speed: SPEED, ..DaemonOptions::default() };
    let mut world = World::through(leg.url(), relay, &options).await;
    leg.silence();
    world.control.event_where("relay.disconnected", is_silence).await;
    world.control.connected().await;
    assert_eq!(old.offences(), Vec::<String>::new());
}

/// The other side of the same rule.
#[tokio::test]
async fn a_link_that_only_idles_is_kept() {
    if !possible() {
        return;
    }
    let mut legs = Legs::new(&[]).await;
    let phone = legs.phone("Ann").await;
    let watch = connected_watch(&phone).await;
    let before = (legs.daemon.connections(), legs.phone.connections());
    // Every 25 seconds of the protocol's clock: two minutes, twice what would end a silent link.
    tokio::join!(legs.daemon.pings(5), legs.phone.pings(5));
    assert_eq!((legs.daemon.connections(), legs.phone.connections()), before);
    assert!(!watch.has_ended());
}

#[tokio::test]
async fn answers_survive_links_that_die_at_random_moments() {
    if !possible() {
        return;
    }
    let mut dice = Dice::thrown();
    let mut parties = Parties::hurry(SPEED, &["Ann", "Dora"]).await;
    let usual = parties.usual_time().await;
    for _ in 0..3 {
        let items = [Kind::Approval, Kind::Question, Kind::Secret].map(|kind| parties.ask(kind));
        for id in items {
            let link = if dice.coin() { Victim::DaemonLink } else { Victim::PhoneLink };
            parties.strike_after(dice.within(usual), link);
            parties.decide(id, "").await;
            parties.struck().await;
        }
    }
    parties.balance().await;
    assert_eq!(parties.deaths(), 9);
}
