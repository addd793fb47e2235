//! Messages for a phone that is away: into the relay's queue, and out of it. Once with the relay alone, whose members send
//! frames made beforehand, and once from the daemon's socket to a phone that opens them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::{Value, json};
use skald_common::wire::{self, Frame};
use skald_tests::{Control, Host, RpcFailure};
use tokio::sync::oneshot;

use super::forward::load;
use super::{IN_FLIGHT, Plan, progress};
use crate::members::{Ends, Member, Route, identity, message};
use crate::phone::Phone;
use crate::processes::{Daemon, Place, Server};
use crate::report::{Bound, Report, Section};
use crate::stats::{Collector, Samples, median, per_second};
use crate::wire::masked;

/// Into the queue and out of it, a second.
const AIM_PER_SECOND: f64 = 2000.0;
/// The daemon holds at most 256 messages that the relay has not accepted.
const BATCH: usize = 200;
/// Receipts are bundled like this by our peers.
const ACK_EVERY: usize = 16;

/// See the module.
pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let mut section = Section::new("stored", format!("{} messages for a phone that is away", plan.stored));
    for place in [Place::Disk, Place::Memory] {
        if place.exists() {
            in_place(place, plan, report, &mut section).await?;
        }
    }
    report.add(section);
    Ok(())
}

async fn in_place(place: Place, plan: &Plan, report: &mut Report, section: &mut Section) -> anyhow::Result<()> {
    let place_name = match place {
        Place::Disk => "disk",
        Place::Memory => "memory",
    };
    progress(&format!("storing and draining, {place_name}"));
    let mut line = |name: &str, figures: &[(&'static str, f64)]| section.line(format!("{place_name}, {name}"), figures);
    let bare = Server::bare_in(place).await?;
    let kept = load(&mut Ends::of_keeper(&bare)?, plan.stored, IN_FLIGHT)?.per_second();
    line("bare object that writes a row: stored", &[("per_second", kept)]);
    drop(bare);

    let relay = Server::relay_in(place).await?;
    let (into, out) = relay_alone(&relay, plan.stored)?;
    line("relay alone: stored", &[("per_second", into), ("of_bare_pct", 100.0 * into / kept)]);
    line("relay alone: drained", &[("per_second", out)]);
    let mut aim = |what: &str, value| {
        report.aim(format!("{place_name}: messages {what}"), value, "a second", Bound::AtLeast(AIM_PER_SECOND));
    };
    aim("stored by the relay", into);
    aim("drained from the relay", out);

    let (daemon, mut control) = Daemon::connected_in(place, &relay).await?;
    let mut phone = super::roundtrip::paired(&mut control).await?;
    let mut host = daemon.host().await;
    let online = one_way(&host, &mut phone, plan.stored / 4).await?;
    phone.disconnect().await;
    let into = notify(&mut host, &control, &phone, plan.stored).await?;
    line("daemon to relay: stored", &[("per_second", into)]);
    let began = Instant::now();
    phone.connect().await?;
    for _ in 0..plan.stored {
        phone.receive_kind("notification").await?;
    }
    let out = per_second(plan.stored, began.elapsed());
    line("relay to phone: drained", &[("per_second", out)]);
    aim("stored by the daemon", into);
    aim("drained by the phone", out);
    let (p50, p99) = (online.percentile_us(0.5), online.percentile_us(0.99));
    line("program, daemon, relay, phone that is there: one way", &[("p50_us", p50), ("p99_us", p99)]);
    Ok(())
}

/// Stores so many messages, and drains them. A second each.
fn relay_alone(relay: &Server, count: usize) -> anyhow::Result<(f64, f64)> {
    let (owner, phone) = (identity(), identity());
    let mut agent = Member::agent(relay, Route::Direct, &owner)?;
    agent.authorize(&[phone.ed25519_pub()])?;
    let frames: Vec<_> = (1..=count as u64).map(|n| masked(&message(&phone.ed25519_pub(), false, n))).collect();
    let began = Instant::now();
    let (mut sent, mut accepted) = (0, 0);
    while accepted < count {
        let upto = count.min(accepted + IN_FLIGHT);
        if upto > sent {
            agent.wire.send(&frames[sent..upto].concat())?;
            sent = upto;
        }
        loop {
            if let Frame::Accepted(receipt) = agent.next()? {
                ensure!(receipt.queued, "the phone is away");
                accepted += 1;
            }
            if !agent.wire.has_next()? {
                break;
            }
        }
    }
    let into = per_second(count, began.elapsed());

    let began = Instant::now();
    let mut device = Member::device(relay, Route::Direct, &owner.namespace_id(), &phone)?;
    for drained in 1..=count {
        let Frame::Message(message) = device.next()? else { continue };
        if drained % ACK_EVERY == 0 || drained == count {
            device.send(Frame::Ack(wire::Ack { delivery: message.delivery }))?;
        }
    }
    // Behind the last receipt: the queue is empty when this is answered.
    device.send(Frame::PresenceRequest(wire::PresenceRequest {}))?;
    device.skip_to(|frame| matches!(frame, Frame::PresenceList(_)))?;
    Ok((into, per_second(count, began.elapsed())))
}

/// From the call on the daemon's socket until the phone has opened it, one after the other.
async fn one_way(host: &Host, phone: &mut Phone, count: usize) -> anyhow::Result<Samples> {
    let mut collector = Collector::begin(count);
    for _ in 0..count {
        let since = Instant::now();
        host.call("notification.send", notification()).await;
        phone.receive_kind("notification").await?;
        collector.note(since);
    }
    Ok(collector.end())
}

/// Sends so many notifications, and waits until the relay has them. A second.
async fn notify(host: &mut Host, control: &Control, phone: &Phone, count: usize) -> anyhow::Result<f64> {
    let mut alone = Vec::new();
    for _ in 0..5 {
        alone.push(relay_has_all(control, phone).await?.as_secs_f64());
    }
    let began = Instant::now();
    let mut pauses = Duration::ZERO;
    for batch in (0..count).step_by(BATCH) {
        let mut answers = VecDeque::new();
        for _ in batch..count.min(batch + BATCH) {
            if answers.len() == IN_FLIGHT {
                taken(answers.pop_front()).await?;
            }
            answers.push_back(host.rpc().begin("notification.send", notification()).await);
        }
        while !answers.is_empty() {
            taken(answers.pop_front()).await?;
        }
        // What asking takes by itself is not the messages' time.
        let asked = relay_has_all(control, phone).await?;
        pauses += asked.min(Duration::from_secs_f64(median(&alone)));
    }
    Ok(per_second(count, began.elapsed().saturating_sub(pauses)))
}

/// The relay answers in order: when it has taken the list of devices once more, it has everything before.
async fn relay_has_all(control: &Control, phone: &Phone) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let answer = control.call("devices.authorize", json!({"pubkey": phone.key()})).await;
    ensure!(answer["applied"] == true, "the relay has not taken the list of devices: {answer}");
    Ok(began.elapsed())
}

async fn taken(answer: Option<oneshot::Receiver<Result<Value, RpcFailure>>>) -> anyhow::Result<()> {
    match answer {
        Some(answer) => answer.await?.map(drop).map_err(|failure| anyhow::anyhow!("{failure:?}")),
        None => Ok(()),
    }
}

/// With the envelope it has about the length that everything is measured with.
fn notification() -> Value {
    json!({"title": "Backup", "body": "x".repeat(180)})
}
