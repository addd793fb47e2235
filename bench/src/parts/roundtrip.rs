//! Phone, relay, daemon, relay, phone, with everything on: sealing, counters on both disks, receipts.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use serde_json::json;
use skald_common::peer::Delivery;
use skald_tests::{Control, Host};
use tokio::sync::mpsc;

use super::{IN_FLIGHT, Plan, progress};
use crate::members::CONTENT;
use crate::phone::{Phone, padded, payload};
use crate::processes::{Daemon, Server};
use crate::report::{Bound, Report, Section};
use crate::stats::{Collector, Samples, median};
use crate::usage::{self, Cpu};

/// The round trip of one at a time is to be shorter, microseconds.
const AIM_P50_US: f64 = 900.0;
/// With many in flight there are to be more, a second.
const AIM_PER_SECOND: f64 = 2400.0;

/// What goes there and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trip {
    /// `inbox_request` and the snapshot that answers it, both live.
    Live,
    /// An answer to an item that is gone, and the `ack` that says so, both stored; a live snapshot comes along.
    Stored,
}

impl Trip {
    /// How many: stored ones wait for the relay's disk.
    const fn count(self, plan: &Plan) -> usize {
        match self {
            Self::Live => plan.trips,
            Self::Stored => plan.trips / 4,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Live => "live: inbox_request, inbox_update",
            Self::Stored => "stored: approval_response, ack",
        }
    }

    fn begin(self, phone: &mut Phone) -> anyhow::Result<String> {
        let (id, json, delivery) = match self {
            Self::Live => {
                let (id, json) = padded("inbox_request", json!({}), CONTENT);
                (id, json, Delivery::Live)
            }
            Self::Stored => {
                let fields = json!({"request_id": "gone", "decision": "approved"});
                let (id, json) = padded("approval_response", fields, CONTENT);
                (id, json, Delivery::STORED)
            }
        };
        phone.send(&json, delivery)?;
        Ok(id)
    }

    /// Waits for the answer to `id`; gives its length.
    async fn end(self, phone: &mut Phone, id: &str) -> anyhow::Result<usize> {
        match self {
            Self::Live => Ok(phone.receive_kind("inbox_update").await?.length),
            Self::Stored => {
                let ack = phone.receive_kind("ack").await?;
                ensure!(ack.ref_id.as_deref() == Some(id), "the acks come in another order than the answers");
                Ok(ack.length)
            }
        }
    }
}

struct Run {
    samples: Samples,
    reply: usize,
    relay_us: f64,
    daemon_us: f64,
    phone_us: f64,
}

struct Path {
    relay: Server,
    daemon: Daemon,
    phone: Phone,
}

/// A phone that has paired and is connected.
pub(crate) async fn paired(control: &mut Control) -> anyhow::Result<Phone> {
    let qr = control.pairing_code().await;
    let mut phone = Phone::pair(&qr).await?;
    let key = phone.key();
    control.event_where("device.paired", |event| event["pubkey"] == key.as_str()).await;
    phone.connect().await?;
    phone.hello().await?;
    Ok(phone)
}

/// See the module.
pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let relay = Server::relay().await?;
    let (daemon, mut control) = Daemon::connected(&relay).await?;
    let phone = paired(&mut control).await?;
    let mut path = Path { relay, daemon, phone };
    let host = path.daemon.host().await;
    // So that a snapshot has about the length of the request.
    host.request("approval", &Host::approval("pending", "Deploy release 1.4?", &json!({"to": "production"}))).await;
    let mut section =
        Section::new("roundtrip", format!("Phone, daemon, phone: {CONTENT} bytes to the daemon, sealed both ways"));
    for trip in [Trip::Live, Trip::Stored] {
        for in_flight in [1, IN_FLIGHT] {
            progress(&format!("{}, {in_flight} in flight", trip.name()));
            path.run(trip, in_flight, trip.count(plan) / 5).await?;
            let mut runs = Vec::new();
            for _ in 0..plan.rounds {
                runs.push(path.run(trip, in_flight, trip.count(plan)).await?);
            }
            let middle = |of: &dyn Fn(&Run) -> f64| median(&runs.iter().map(of).collect::<Vec<_>>());
            let p50 = middle(&|run| run.samples.percentile_us(0.5));
            let per_second = middle(&|run| run.samples.per_second());
            #[expect(clippy::cast_precision_loss, reason = "a length")]
            section.line(
                format!("{}, {in_flight} in flight", trip.name()),
                &[
                    ("per_second", per_second),
                    ("p50_us", p50),
                    ("p99_us", middle(&|run| run.samples.percentile_us(0.99))),
                    ("relay_cpu_us", middle(&|run| run.relay_us)),
                    ("daemon_cpu_us", middle(&|run| run.daemon_us)),
                    ("phone_cpu_us", middle(&|run| run.phone_us)),
                    ("reply_bytes", middle(&|run| run.reply as f64)),
                ],
            );
            match (trip, in_flight) {
                (Trip::Live, 1) => report.aim("round trip, p50", p50 / 1000.0, "ms", Bound::Below(AIM_P50_US / 1000.0)),
                (Trip::Live, _) => {
                    let what = format!("round trips, {in_flight} in flight");
                    report.aim(what, per_second, "a second", Bound::AtLeast(AIM_PER_SECOND));
                }
                (Trip::Stored, _) => {}
            }
        }
    }
    report.add(section);
    answers(plan, &mut path, host, report).await
}

impl Path {
    async fn run(&mut self, trip: Trip, in_flight: usize, count: usize) -> anyhow::Result<Run> {
        let pids = [[self.relay.pid], [self.daemon.pid()], [usage::this()]];
        let before = pids.map(|pid| Cpu::of(&pid));
        let phone = &mut self.phone;
        let mut under_way: VecDeque<(String, Instant)> = VecDeque::new();
        let mut collector = Collector::begin(count);
        let (mut begun, mut reply) = (0, 0);
        loop {
            while begun < count && under_way.len() < in_flight {
                let now = Instant::now();
                under_way.push_back((trip.begin(phone)?, now));
                begun += 1;
            }
            let Some((id, since)) = under_way.pop_front() else { break };
            reply = trip.end(phone, &id).await?;
            collector.note(since);
        }
        let samples = collector.end();
        let [relay_us, daemon_us, phone_us] = std::array::from_fn(|at| match (Cpu::of(&pids[at]), before[at]) {
            (Some(now), Some(before)) => now.us_each(before, count),
            _ => f64::NAN,
        });
        Ok(Run { samples, reply, relay_us, daemon_us, phone_us })
    }
}

/// Answers to items that are pending: to the daemon's disk, to the program that asked, and back that it counts.
async fn answers(plan: &Plan, path: &mut Path, mut host: Host, report: &mut Report) -> anyhow::Result<()> {
    let phone = &mut path.phone;
    for n in 0..plan.answers {
        host.request("approval", &Host::approval(n, "Deploy release 1.4?", &json!({"to": "production"}))).await;
    }
    phone.send(&payload("inbox_request", json!({})).1, Delivery::Live)?;
    let items = loop {
        let update = phone.receive_kind("inbox_update").await?;
        if update.approvals.len() > plan.answers {
            break update.approvals;
        }
    };
    let (told, mut at_host) = mpsc::unbounded_channel();
    let program = tokio::spawn(async move {
        loop {
            let call = host.next_call().await;
            if told.send(Instant::now()).is_err() {
                return;
            }
            call.answer(true).await;
        }
    });
    let (mut to_host, mut to_ack) = (Vec::new(), Collector::begin(plan.answers));
    for item in items.iter().take(plan.answers) {
        let fields = json!({"request_id": item.request_id, "decision": "approved"});
        let (id, json) = padded("approval_response", fields, CONTENT);
        let since = Instant::now();
        phone.send(&json, Delivery::STORED)?;
        let ack = phone.receive_kind("ack").await?;
        ensure!(ack.ref_id == Some(id) && ack.outcome.as_deref() == Some("accepted"), "the answer did not count");
        to_ack.note(since);
        let arrived: Instant = at_host.recv().await.context("the host has ended")?;
        to_host.push((arrived - since).as_secs_f64() * 1e6);
    }
    drop(at_host);
    program.abort();
    let samples = to_ack.end();
    let mut section = Section::new("answers", "An approval, from the phone (waits for the disk)");
    section.line("to the program that asked", &[("p50_us", median(&to_host))]);
    section
        .line("to the phone's ack", &[("p50_us", samples.percentile_us(0.5)), ("p99_us", samples.percentile_us(0.99))]);
    section.line("one write to this disk, synced", &[("p50_us", synced_write()?)]);
    report.add(section);
    Ok(())
}

/// What the disk takes by itself, microseconds.
fn synced_write() -> anyhow::Result<f64> {
    use std::os::unix::fs::FileExt as _;
    let file = tempfile::tempfile()?;
    let mut collector = Collector::begin(50);
    for n in 0..50 {
        let since = Instant::now();
        file.write_all_at(&[n; 4096], 0)?;
        file.sync_data()?;
        collector.note(since);
    }
    Ok(collector.end().percentile_us(0.5))
}
