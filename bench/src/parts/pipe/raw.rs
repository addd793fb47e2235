//! The relay's splice beside a bare object's: bytes that are not sealed, on sockets that cost next to nothing.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use skald_common::crypto::Identity;
use skald_common::ids::{ConnectionId, NamespaceId};
use skald_common::pipe::auth::{PipeAuth, decode_challenge};

use super::{AHEAD, CHUNK, Load, PER_MIB, mib};
use crate::members::{Member, Route, bare_path, identity};
use crate::parts::{Plan, progress};
use crate::processes::Server;
use crate::report::{Bound, Report, Section};
use crate::stats::median;
use crate::usage::Cpu;
use crate::wire::{Sender, Wire, masked};

/// What the relay is to reach of the bare splice, percent.
const AIM_PCT: f64 = 80.0;

/// What carries the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Bare,
    Relay(Route),
}

impl Subject {
    const ALL: [Self; 3] = [Self::Bare, Self::Relay(Route::Direct), Self::Relay(Route::Front)];

    const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare object",
            Self::Relay(Route::Direct) => "relay, direct",
            Self::Relay(Route::Front) => "relay, front",
        }
    }
}

/// All runs of one subject under one load: MiB a second, and what of the server's processor a MiB took.
struct Series {
    subject: Subject,
    load: Load,
    rates: Vec<f64>,
    server_us: Vec<f64>,
}

struct Servers {
    relay: Server,
    bare: Server,
}

/// See the module.
pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let servers = Servers { relay: Server::relay().await?, bare: Server::bare().await? };
    let mut all = Vec::new();
    for load in Load::ALL {
        for subject in Subject::ALL {
            all.push(Series { subject, load, rates: Vec::new(), server_us: Vec::new() });
        }
    }
    for series in &mut all {
        // The first runs warm everything up, and count for nothing.
        servers.run(series.subject, series.load, plan.chunks / 4 + 1)?;
    }
    for round in 1..=plan.rounds {
        progress(&format!("splicing, round {round} of {}", plan.rounds));
        for series in &mut all {
            let (rate, server_us) = servers.run(series.subject, series.load, plan.chunks)?;
            series.rates.push(rate);
            series.server_us.push(server_us);
        }
    }
    let title = format!("Splicing frames of {} KiB that are not sealed", CHUNK / 1024);
    let mut section = Section::new("splice", title);
    for series in &all {
        let of_bare = of_bare(&all, series);
        let name = format!("{}: {}", series.load.name(), series.subject.name());
        section.line(
            &name,
            &[
                ("mib_per_second", median(&series.rates)),
                ("server_cpu_us_per_mib", median(&series.server_us)),
                ("of_bare_pct", of_bare),
            ],
        );
        if series.subject != Subject::Bare {
            report.aim(format!("splice, {name}"), of_bare, "% of the bare object", Bound::AtLeast(AIM_PCT));
        }
    }
    report.add(section);
    Ok(())
}

/// Round by round, since what else the machine does changes from round to round.
fn of_bare(all: &[Series], series: &Series) -> f64 {
    let bare = all.iter().find(|other| other.load == series.load && other.subject == Subject::Bare);
    let Some(bare) = bare.filter(|_| series.subject != Subject::Bare) else { return f64::NAN };
    let rounds = series.rates.iter().zip(&bare.rates);
    median(&rounds.map(|(ours, bare)| 100.0 * ours / bare).collect::<Vec<_>>())
}

impl Servers {
    fn run(&self, subject: Subject, load: Load, chunks: usize) -> anyhow::Result<(f64, f64)> {
        let server = if subject == Subject::Bare { &self.bare } else { &self.relay };
        let pipes = match subject {
            Subject::Bare => (0..load.pipes).map(|_| bare_pipe(&self.bare)).collect::<anyhow::Result<_>>()?,
            Subject::Relay(route) => relay_pipes(&self.relay, route, load.pipes)?,
        };
        let mut halves = pipes.into_iter().map(Ends::split).collect::<anyhow::Result<Vec<_>>>()?;
        let mut lanes = Vec::new();
        for [there, back] in &mut halves {
            lanes.push(there);
            if load.both_ways {
                lanes.push(back);
            }
        }
        let each = (chunks / lanes.len()).max(1);
        let all = each * lanes.len();
        let before = Cpu::of(&[server.pid]);
        let took = pass(lanes, each)?;
        let server_us = match (Cpu::of(&[server.pid]), before) {
            (Some(now), Some(before)) => now.us_each(before, all) * PER_MIB,
            _ => f64::NAN,
        };
        Ok((mib(all) / took.as_secs_f64(), server_us))
    }
}

/// The two sockets of a pipe.
struct Ends(Wire, Wire);

impl Ends {
    /// Each of its two directions by itself.
    fn split(self) -> anyhow::Result<[Lane; 2]> {
        let ((one_out, one_in), (other_out, other_in)) = (self.0.split()?, self.1.split()?);
        Ok([Lane { from: one_out, to: other_in }, Lane { from: other_out, to: one_in }])
    }
}

/// Two sockets of a bare object of their own.
fn bare_pipe(bare: &Server) -> anyhow::Result<Ends> {
    let path = bare_path(Route::Direct, &format!("{:016x}", u64::from_le_bytes(skald_tests::random())));
    Ok(Ends(Wire::open(bare.address, &path)?, Wire::open(bare.address, &path)?))
}

/// Pipes between an agent and a device of one namespace.
fn relay_pipes(relay: &Server, route: Route, count: usize) -> anyhow::Result<Vec<Ends>> {
    let (agent, device) = (identity(), identity());
    let mut member = Member::agent(relay, route, &agent)?;
    member.authorize(&[device.ed25519_pub()])?;
    let namespace = agent.namespace_id();
    (0..count)
        .map(|_| {
            let connection = ConnectionId::new(skald_tests::random());
            let end = |own, other| pipe_end(relay, route, &namespace, connection, own, other);
            Ok(Ends(end(&agent, &device)?, end(&device, &agent)?))
        })
        .collect()
}

fn pipe_end(
    relay: &Server,
    route: Route,
    namespace: &NamespaceId,
    connection: ConnectionId,
    own: &Identity,
    other: &Identity,
) -> anyhow::Result<Wire> {
    let mut wire = Wire::open(relay.address, &route.pipe_path(namespace))?;
    let nonce = decode_challenge(wire.next()?)?;
    let auth = PipeAuth::new(own, &nonce, connection, &other.ed25519_pub(), *namespace, true);
    wire.send(&masked(&auth.encode()))?;
    Ok(wire)
}

/// One direction of a pipe.
struct Lane {
    from: Sender,
    to: Wire,
}

impl Lane {
    /// Passes so many chunks through, a bounded number of them at a time.
    fn pass(&mut self, chunks: usize) -> anyhow::Result<()> {
        let Self { from, to } = self;
        let window = Window::default();
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let frame = masked(&vec![0x5a; CHUNK]);
                (0..chunks).try_for_each(|_| {
                    window.take();
                    from.send(&frame)
                })
            });
            let read = (0..chunks).try_for_each(|_| {
                let length = to.next()?.len();
                anyhow::ensure!(length == CHUNK, "a frame of {length} bytes");
                window.give();
                Ok(())
            });
            if read.is_err() {
                window.open();
            }
            sender.join().map_err(|_| anyhow::anyhow!("the sender has panicked"))??;
            read
        })
    }
}

/// All lanes at once.
fn pass(lanes: Vec<&mut Lane>, chunks: usize) -> anyhow::Result<Duration> {
    let began = Instant::now();
    std::thread::scope(|scope| {
        let lanes: Vec<_> = lanes.into_iter().map(|lane| scope.spawn(move || lane.pass(chunks))).collect();
        lanes.into_iter().try_for_each(|lane| lane.join().map_err(|_| anyhow::anyhow!("a lane has panicked"))?)
    })?;
    Ok(began.elapsed())
}

/// How far a sender may be ahead of its reader.
struct Window {
    left: Mutex<usize>,
    more: Condvar,
}

impl Default for Window {
    fn default() -> Self {
        Self { left: Mutex::new(AHEAD), more: Condvar::new() }
    }
}

impl Window {
    fn take(&self) {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left = self.more.wait_while(left, |left| *left == 0).unwrap_or_else(PoisonError::into_inner);
        *left -= 1;
    }

    fn give(&self) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.more.notify_one();
    }

    /// Nobody reads any more: the sender finds that out by itself.
    fn open(&self) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = usize::MAX;
        self.more.notify_one();
    }
}
