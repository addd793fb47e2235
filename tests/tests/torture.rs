//! Whatever is killed, and whenever: each item gets one decision, the host hears it, and no phone is told otherwise.

use std::sync::Arc;

use serde_json::{Value, json};
use skald_tests::{DaemonOptions, Dice, Finished, Host, Phone, Relay, Stream, World};

const ROUNDS: u64 = 8;

/// A phone that always gives the same answer.
struct Voter {
    phone: Phone,
    command: &'static str,
    decision: &'static str,
}

impl Voter {
    /// Starts voting; `finished` tells how it went.
    fn vote(&self, id: &str) -> skald_tests::Process {
        self.phone.start(&[self.command, id])
    }

    /// Whether it was told that its vote counts.
    fn won(&self, finished: &Finished) -> bool {
        finished.out.contains(&format!("{}; the agent has it", self.decision))
    }
}

/// Kills what the dice say, and starts it again.
async fn strike(world: &mut World, dice: &mut Dice) -> &'static str {
    let what = ["nothing", "the daemon", "the relay", "the daemon and the relay"];
    let what = what[usize::try_from(dice.below(4)).expect("small")];
    let (daemon, relay) = (what.contains("daemon"), what.contains("relay"));
    if daemon {
        world.daemon.kill().await;
    }
    if relay {
        world.relay.kill().await;
        Arc::get_mut(&mut world.relay).expect("nobody else uses it").start_again().await;
    }
    if daemon {
        world.daemon.start_again().await;
    }
    if daemon || relay {
        world.reconnect().await;
    }
    what
}

async fn host_again(world: &World, item: &Value) -> Host {
    let host = Host::connect(&world.daemon.hosts_socket(), "skald").await;
    host.sync(std::slice::from_ref(item), &[], &[]).await;
    host
}

#[tokio::test]
async fn every_item_is_decided_once_whatever_is_killed_meanwhile() {
    if !Relay::controllable() {
        return;
    }
    let mut dice = Dice::thrown();
    let mut world = World::on(Arc::new(Relay::own(&[]).await), &DaemonOptions::default()).await;
    let ann = Voter { phone: world.phone("Ann").await, command: "approve", decision: "approved" };
    let bob = Voter { phone: world.phone("Bob").await, command: "reject", decision: "rejected" };
    for round in 0..ROUNDS {
        let item = Host::approval(round, "Deploy", &json!({"round": round}));
        let mut host = host_again(&world, &item).await;
        let id = world.control.inbox().await[0]["id"].as_str().expect("an id").to_owned();
        for voter in [&ann, &bob] {
            assert_eq!(voter.phone.inbox().await["badge"], 1, "the phone has seen it");
        }

        let (approving, rejecting) = (ann.vote(&id), bob.vote(&id));
        if dice.coin() {
            // Connected and about to send, instead of anywhere on the way there.
            let shown = if dice.coin() { &approving } else { &rejecting };
            shown.wrote_or_ended(Stream::Out, 0, &id).await;
        }
        let killed = strike(&mut world, &mut dice).await;
        if killed.contains("daemon") {
            host = host_again(&world, &item).await;
        }
        let mut votes = vec![(&ann, approving.finished().await), (&bob, rejecting.finished().await)];
        // 0: it counts, or waits at the relay. 1: too late. Anything else may be tried again.
        for _ in 0..5 {
            if votes.iter().any(|(_, vote)| matches!(vote.code(), 0 | 1)) {
                break;
            }
            votes.push((&ann, ann.vote(&id).finished().await));
        }

        let mut call = host.next_call().await;
        if dice.coin() {
            // The host dies with the answer in its hands, before it has said that it has it.
            let first = call.params.clone();
            drop((call, host));
            if dice.coin() {
                world.crash().await;
            }
            host = host_again(&world, &item).await;
            call = host.next_call().await;
            assert_eq!(call.params, first, "the same answer, under the same id");
        }
        let answer = call.answer(true).await;
        assert_eq!(answer["request_id"], round, "after {killed} was killed: no answer to another item");
        for (voter, vote) in &votes {
            let told = format!("after {killed} was killed, the host got {answer}; {}: {vote}", voter.phone.name());
            assert!(!voter.won(vote) || answer["decision"] == voter.decision, "{told}");
            assert!(matches!(vote.code(), 0 | 1 | 3), "{told}");
        }
        world.pending(0).await;
    }
}
