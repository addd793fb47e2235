//! Everybody is killed with SIGKILL, at each point that has a name and at random moments, while answers flow. No answer is
//! lost without showing again as pending on the phone, none reaches the host under two ids, and no key sees a nonce twice.
//! Which points there are, and how a relay dies at one: docs/testing.md.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use skald_tests::{Blow, Dice, From, Kind, Moment, Parties, Relay, Then, Victim, What};

/// Kill while the daemon handles items and answers.
const DAEMON: &[&str] = &[
    "before-committing-item",
    "after-committing-item",
    "before-committing-answer",
    "after-committing-answer",
    "before-committing-receipt",
    "after-committing-receipt",
    "before-committing-counters",
    "after-committing-counters",
    "before-committing-removal",
    "after-committing-removal",
    "before-calling-host",
    "on-hosts-answer",
    "before-sending-ack",
    "after-sending-ack",
    "before-sending-message",
    "after-sending-message",
    "before-sending-live",
    "after-sending-live",
    "on-receiving-message",
    "on-receiving-accepted",
    "on-receiving-live",
];

/// Kill while the phone learns of an item and answers it.
const PHONE: &[&str] = &[
    "before-committing-message",
    "after-committing-message",
    "before-committing-answer",
    "after-committing-answer",
    "before-committing-counters",
    "after-committing-counters",
    "before-sending-live",
    "after-sending-live",
    "before-sending-message",
    "after-sending-message",
    "on-receiving-live",
    "on-receiving-accepted",
];

const HOST: &[&str] = &[
    "before-asking",
    "after-asking",
    "before-taking-the-answer",
    "after-taking-the-answer",
    "after-answering-the-daemon",
];

/// Inside the relay's turn about a frame: before and after its rows are written, and after its answers are given out.
const RELAY: &[&str] = &[
    "before-handling-message",
    "after-handling-message",
    "after-sending-for-message",
    "before-handling-live",
    "after-handling-live",
    "before-handling-ack",
    "after-handling-ack",
    "after-sending-for-ack",
];

/// What passes when the relay is killed, on which leg: it has committed what it sent.
const fn moments() -> [Blow; 8] {
    const fn moment(from: From, what: What, arrives: bool) -> Moment {
        Moment { from, what, arrives, then: Then::Freeze }
    }
    [
        Blow::RelayAtPhone(moment(From::Peer, What::Stored, false)),
        Blow::RelayAtPhone(moment(From::Peer, What::Stored, true)),
        Blow::RelayAtPhone(moment(From::Relay, What::Accepted, false)),
        Blow::RelayAtPhone(moment(From::Relay, What::Accepted, true)),
        Blow::RelayAtDaemon(moment(From::Relay, What::Stored, false)),
        Blow::RelayAtDaemon(moment(From::Relay, What::Stored, true)),
        Blow::RelayAtDaemon(moment(From::Peer, What::Ack, false)),
        Blow::RelayAtDaemon(moment(From::Peer, What::Ack, true)),
    ]
}

/// How many answers all tests here get together, from `SKALD_TEST_ANSWERS`; 100 if it is not set. Gives what that makes
/// of so many for one of them.
fn answers(usual: usize) -> usize {
    let wanted = std::env::var("SKALD_TEST_ANSWERS").ok().and_then(|wanted| wanted.parse::<usize>().ok());
    wanted.map_or(usual, |wanted| (usual * wanted).div_ceil(100))
}

/// Whether this test can be run: with processes of our own, which know where to die.
fn possible() -> bool {
    if !cfg!(debug_assertions) {
        eprintln!("skipped: release builds have no points to die at");
    }
    cfg!(debug_assertions) && Relay::controllable()
}

/// Goes through the blows, over and over, until there are enough answers.
async fn deal(blows: &[Blow], answers: usize) {
    let mut parties = Parties::gather(&["Ann", "Dora"]).await;
    for (n, blow) in blows.iter().cycle().take(answers.max(blows.len())).enumerate() {
        let kinds: &[Kind] = match blow {
            // A secret is never written.
            Blow::Daemon(point) if point.ends_with("committing-answer") => &[Kind::Approval, Kind::Question],
            _ => &[Kind::Approval, Kind::Question, Kind::Secret],
        };
        parties.round(kinds[n % kinds.len()], *blow).await;
    }
    parties.balance().await;
}

#[tokio::test]
async fn an_answer_survives_a_daemon_that_dies_at_any_point() {
    if possible() {
        let blows: Vec<_> = DAEMON.iter().map(|point| Blow::Daemon(point)).collect();
        deal(&blows, answers(21)).await;
    }
}

#[tokio::test]
async fn an_answer_survives_a_phone_that_dies_at_any_point_or_is_pending_on_it_again() {
    if possible() {
        let blows: Vec<_> = PHONE.iter().map(|point| Blow::Phone(point)).collect();
        deal(&blows, answers(12)).await;
    }
}

#[tokio::test]
async fn an_answer_survives_a_host_that_dies_at_any_point() {
    if possible() {
        let blows: Vec<_> = HOST.iter().map(|point| Blow::Host(point)).collect();
        deal(&blows, answers(10)).await;
    }
}

#[tokio::test]
async fn an_answer_survives_a_relay_that_dies_at_any_point() {
    if possible() {
        let blows: Vec<_> = RELAY.iter().map(|point| Blow::Relay(point)).chain(moments()).collect();
        deal(&blows, answers(16)).await;
    }
}

/// Also what was restored from a backup, or paired anew, uses no nonce again.
#[tokio::test]
async fn answers_survive_deaths_at_random_moments_and_no_restored_state_uses_a_nonce_again() {
    const VICTIMS: [Victim; 4] = [Victim::Daemon, Victim::Relay, Victim::Host, Victim::Phone];
    if !possible() {
        return;
    }
    let mut dice = Dice::thrown();
    let mut parties = Parties::gather(&["Ann", "Dora"]).await;
    let usual = parties.usual_time().await;
    parties.save().await;
    let rounds = answers(42).div_ceil(3);
    for round in 0..rounds {
        let items = [Kind::Approval, Kind::Question, Kind::Secret].map(|kind| parties.ask(kind));
        for id in items {
            parties.strike_after(dice.within(usual), *dice.one_of(&VICTIMS));
            parties.decide(id, "").await;
            parties.struck().await;
        }
        // With nothing under way: what has not reached its host is lost with the state that holds it.
        if round % 2 == 0 {
            parties.balance().await;
            parties.restore(round / 2).await;
        }
    }
    parties.balance().await;
    assert_eq!(parties.deaths(), 3 * rounds);
}

/// All switches are in one crate: compiled as for a release it contains the name of none, compiled as here of all.
#[test]
fn release_builds_have_no_switches() {
    for (assertions, expected) in [("false", false), ("true", true)] {
        let library = std::fs::read(compiled_link(assertions)).expect("cargo says where it is");
        for name in ["SKALD_CRASH_AT", "SKALD_CLOCK_SPEED"] {
            let found = library.windows(name.len()).any(|window| window == name.as_bytes());
            assert_eq!(found, expected, "{name} with debug-assertions = {assertions}");
        }
    }
}

/// Compiles `link` in this way, and nothing else of the workspace; gives the library.
fn compiled_link(assertions: &str) -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    let output = Command::new(cargo)
        .args(["rustc", "--quiet", "--locked", "--lib", "--profile", profile, "--message-format", "json"])
        .args(["--config", &format!("profile.{profile}.package.skald-link.debug-assertions={assertions}")])
        .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/../link/Cargo.toml")])
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut artifacts = messages.lines().map(|line| serde_json::from_str::<Value>(line).expect("cargo writes JSON"));
    let warned = |message: &Value| message["reason"] == "compiler-message";
    assert!(!artifacts.clone().any(|message| warned(&message)), "warnings: {messages}");
    let link = artifacts.rfind(|message| message["target"]["name"] == "skald_link").expect("it was compiled");
    link["filenames"][0].as_str().expect("a file").into()
}
