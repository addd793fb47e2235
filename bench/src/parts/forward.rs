//! The relay's object beside a bare one in JavaScript: the same load, the same two routes, in the same minute.

use std::collections::VecDeque;
use std::time::Instant;

use super::{IN_FLIGHT, Plan, progress};
use crate::members::{CONTENT, Ends, Route};
use crate::processes::Server;
use crate::report::{Bound, Report, Section};
use crate::stats::{Collector, Samples, median};
use crate::usage::{self, Cpu};

/// What the object is to reach of the bare one, percent.
const AIM_PCT: f64 = 80.0;

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Relay,
    Bare,
    Echo,
}

impl Subject {
    const fn name(self) -> &'static str {
        match self {
            Self::Relay => "relay",
            Self::Bare => "bare object",
            Self::Echo => "native echo",
        }
    }
}

/// All runs of one subject on one route with so many in flight.
struct Series {
    subject: Subject,
    route: Route,
    in_flight: usize,
    runs: Vec<Run>,
}

struct Run {
    samples: Samples,
    server_us: f64,
    load_us: f64,
}

struct Servers {
    relay: Server,
    bare: Server,
    echo: Server,
}

/// See the module.
pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let servers = Servers { relay: Server::relay().await?, bare: Server::bare().await?, echo: Server::echo().await? };
    let mut all = series();
    // The first runs warm everything up, and count for nothing.
    for series in &all {
        servers.run(series, plan.messages / 5)?;
    }
    for round in 1..=plan.rounds {
        progress(&format!("forwarding, round {round} of {}", plan.rounds));
        for series in &mut all {
            let run = servers.run(series, plan.messages)?;
            series.runs.push(run);
        }
    }
    let title = format!("Forwarding {CONTENT} bytes, sealed, from one socket of an object to another, live");
    let mut section = Section::new("forward", title);
    for series in &all {
        let of_bare = of_bare(&all, series);
        section.line(
            format!("{}, {} in flight: {}", series.route.name(), series.in_flight, series.subject.name()),
            &[
                ("per_second", series.middle(|run| run.samples.per_second())),
                ("p50_us", series.middle(|run| run.samples.percentile_us(0.5))),
                ("p99_us", series.middle(|run| run.samples.percentile_us(0.99))),
                ("server_cpu_us", series.middle(|run| run.server_us)),
                ("load_cpu_us", series.middle(|run| run.load_us)),
                ("of_bare_pct", of_bare),
            ],
        );
        if series.subject == Subject::Relay {
            let what = format!("relay's object, {}, {} in flight", series.route.name(), series.in_flight);
            report.aim(what, of_bare, "% of the bare object", Bound::AtLeast(AIM_PCT));
        }
    }
    report.add(section);
    Ok(())
}

fn series() -> Vec<Series> {
    let mut all = Vec::new();
    for in_flight in [1, IN_FLIGHT] {
        for route in [Route::Direct, Route::Front] {
            for subject in [Subject::Bare, Subject::Relay] {
                all.push(Series { subject, route, in_flight, runs: Vec::new() });
            }
        }
        all.push(Series { subject: Subject::Echo, route: Route::Direct, in_flight, runs: Vec::new() });
    }
    all
}

/// The share of the bare object's messages a second, percent: of each round by itself, since what else the machine does
/// changes from round to round.
fn of_bare(all: &[Series], series: &Series) -> f64 {
    let like = |other: &&Series| other.route == series.route && other.in_flight == series.in_flight;
    let bare = all.iter().filter(like).find(|other| other.subject == Subject::Bare);
    let Some(bare) = bare.filter(|_| series.subject != Subject::Bare) else { return f64::NAN };
    let rounds = series.runs.iter().zip(&bare.runs);
    median(
        &rounds.map(|(ours, bare)| 100.0 * ours.samples.per_second() / bare.samples.per_second()).collect::<Vec<_>>(),
    )
}

impl Series {
    fn middle(&self, of: impl Fn(&Run) -> f64) -> f64 {
        median(&self.runs.iter().map(of).collect::<Vec<_>>())
    }
}

impl Servers {
    fn of(&self, subject: Subject) -> &Server {
        match subject {
            Subject::Relay => &self.relay,
            Subject::Bare => &self.bare,
            Subject::Echo => &self.echo,
        }
    }

    fn run(&self, series: &Series, messages: usize) -> anyhow::Result<Run> {
        let server = self.of(series.subject);
        let mut ends = match series.subject {
            Subject::Relay => Ends::of_relay(server, series.route)?,
            Subject::Bare => Ends::of_bare(server, series.route)?,
            Subject::Echo => Ends::of_echo(server)?,
        };
        // The way through everything once, before the clock runs.
        load(&mut ends, series.in_flight, series.in_flight)?;
        let (pids, own) = ([server.pid], [usage::this()]);
        let before = (Cpu::of(&pids), Cpu::of(&own));
        let samples = load(&mut ends, messages, series.in_flight)?;
        let each = |pids, before: Option<Cpu>| match (Cpu::of(pids), before) {
            (Some(now), Some(before)) => now.us_each(before, messages),
            _ => f64::NAN,
        };
        Ok(Run { samples, server_us: each(&pids, before.0), load_us: each(&own, before.1) })
    }
}

/// Keeps so many messages under way until `count` have arrived.
pub(super) fn load(ends: &mut Ends, count: usize, in_flight: usize) -> anyhow::Result<Samples> {
    let frames = ends.frames(in_flight);
    let frame = frames.len() / in_flight;
    let mut under_way: VecDeque<Instant> = VecDeque::with_capacity(in_flight);
    let mut collector = Collector::begin(count);
    let (mut sent, mut arrived) = (0, 0);
    while arrived < count {
        let room = (in_flight - under_way.len()).min(count - sent);
        if room > 0 {
            under_way.extend(std::iter::repeat_n(Instant::now(), room));
            ends.send(&frames[..room * frame])?;
            sent += room;
        }
        let arrivals = ends.arrivals();
        loop {
            arrivals.next()?;
            arrived += 1;
            if let Some(since) = under_way.pop_front() {
                collector.note(since);
            }
            // What has come together is made up for together.
            if !arrivals.has_next()? {
                break;
            }
        }
    }
    Ok(collector.end())
}
