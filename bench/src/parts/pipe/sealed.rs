//! One end's library to the other's, sealed: both ends in this process, on a thread each.

use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use anyhow::Context as _;
use skald_common::crypto::{Identity, PipeEnd, PipeSecret};
use skald_common::ids::{ConnectionId, Ed25519Public, NamespaceId};
use skald_common::pipe::Agreed;
use skald_link::pipe::{self, Pipe, PipeReceiver, PipeSender};
use tokio::task::JoinSet;

use super::{CHUNK, Load, PER_MIB, mib};
use crate::members::{Member, Route, identity};
use crate::parts::{Plan, progress};
use crate::processes::Server;
use crate::report::{Bound, Report, Section};
use crate::stats::median;
use crate::usage::{self, Cpu};

/// What the deployed system reaches on this kind of machine, MiB a second.
const AIM_MIB: f64 = 292.0;

/// What one end does on its pipes while the clock runs.
#[derive(Debug, Clone, Copy)]
struct Duties {
    sends: bool,
    receives: bool,
}

/// See the module.
pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let relay = Server::relay().await?;
    let mut all: Vec<(Load, Vec<[f64; 4]>)> = Load::ALL.map(|load| (load, Vec::new())).into();
    for (load, _) in &all {
        run(&relay, *load, plan.chunks / 4 + 1)?;
    }
    for round in 1..=plan.rounds {
        progress(&format!("sealed pipes, round {round} of {}", plan.rounds));
        for (load, runs) in &mut all {
            runs.push(run(&relay, *load, plan.chunks)?);
        }
    }
    let mut section = Section::new("pipes", "End to end through the relay, sealed, direct");
    for (load, runs) in &all {
        let middle = |figure: usize| median(&runs.iter().map(|run| run[figure]).collect::<Vec<_>>());
        section.line(
            load.name(),
            &[("mib_per_second", middle(0)), ("server_cpu_us_per_mib", middle(1)), ("ends_cpu_us_per_mib", middle(2))],
        );
        if load.pipes == 1 && !load.both_ways {
            report.aim("one sealed pipe, one way", middle(0), "MiB a second", Bound::AtLeast(AIM_MIB));
        }
    }
    report.add(section);
    Ok(())
}

/// MiB a second; what of the relay's and of this process's processor a MiB took, microseconds; the relay's resident memory
/// at the end, MiB.
fn run(relay: &Server, load: Load, chunks: usize) -> anyhow::Result<[f64; 4]> {
    let (agent, device) = (identity(), identity());
    let mut member = Member::agent(relay, Route::Direct, &agent)?;
    member.authorize(&[device.ed25519_pub()])?;
    let namespace = agent.namespace_id();
    let (names, url) = ([agent.ed25519_pub(), device.ed25519_pub()], relay.direct_url(&namespace));
    let (mut for_agent, mut for_device) = (Vec::new(), Vec::new());
    for _ in 0..load.pipes {
        let [one, other] = agreed(names)?;
        for_agent.push(one);
        for_device.push(other);
    }
    let lanes = load.lanes();
    let each = (chunks / lanes).max(1);
    let barrier = Arc::new(Barrier::new(3));
    let end = |identity, agreed, duties| {
        let end = End { identity, namespace, url: url.clone(), agreed, duties, chunks: each };
        end.on_a_thread(Arc::clone(&barrier))
    };
    let sender = end(agent, for_agent, Duties { sends: true, receives: load.both_ways })?;
    let receiver = end(device, for_device, Duties { sends: load.both_ways, receives: true })?;
    let cpu = || (Cpu::of(&[relay.pid]), Cpu::of(&[usage::this()]));
    // An end that fails lets nobody wait here for ever: it comes to the barrier too.
    barrier.wait();
    let (before, began) = (cpu(), Instant::now());
    barrier.wait();
    let took = began.elapsed();
    let after = cpu();
    let memory = usage::memory(relay.pid).map_or(f64::NAN, |memory| memory.resident / 1024.0);
    for thread in [sender, receiver] {
        thread.join().map_err(|_| anyhow::anyhow!("an end has panicked"))??;
    }
    let per_mib = |now: Option<Cpu>, then: Option<Cpu>| match (now, then) {
        (Some(now), Some(then)) => now.us_each(then, each * lanes) * PER_MIB,
        _ => f64::NAN,
    };
    let rate = mib(each * lanes) / took.as_secs_f64();
    Ok([rate, per_mib(after.0, before.0), per_mib(after.1, before.1), memory])
}

/// The two ends' keys of a fresh pipe, without the signals by which they would agree on them.
fn agreed([agent, device]: [Ed25519Public; 2]) -> anyhow::Result<[Agreed; 2]> {
    let connection = ConnectionId::new(skald_tests::random());
    let (one, other) = (PipeSecret::new(skald_tests::random()), PipeSecret::new(skald_tests::random()));
    let (one_public, other_public) = (one.public(), other.public());
    Ok([
        Agreed { connection, partner: device, cipher: one.agree(&other_public, connection, PipeEnd::Initiator)? },
        Agreed { connection, partner: agent, cipher: other.agree(&one_public, connection, PipeEnd::Responder)? },
    ])
}

/// One end of all pipes.
struct End {
    identity: Identity,
    namespace: NamespaceId,
    url: String,
    agreed: Vec<Agreed>,
    duties: Duties,
    chunks: usize,
}

impl End {
    fn on_a_thread(self, barrier: Arc<Barrier>) -> anyhow::Result<JoinHandle<anyhow::Result<()>>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(thread::spawn(move || runtime.block_on(self.run(barrier))))
    }

    async fn run(self, barrier: Arc<Barrier>) -> anyhow::Result<()> {
        let (duties, chunks) = (self.duties, self.chunks);
        let pipes = self.open().await;
        meet(&barrier).await?;
        let done = match pipes {
            Ok(pipes) => transfer(pipes, duties, chunks).await,
            Err(error) => Err(error),
        };
        // The pipes stay open until both ends are through.
        meet(&barrier).await?;
        done.map(drop)
    }

    /// Dials all of them, and waits until a byte has come through each from the other end.
    async fn open(self) -> anyhow::Result<Vec<(PipeSender, PipeReceiver)>> {
        let mut pipes = Vec::new();
        for agreed in self.agreed {
            let (mut sender, receiver) =
                pipe::connect(&self.url, &self.identity, self.namespace, agreed).await.map(Pipe::split)?;
            sender.send(&[0]).await?;
            pipes.push((sender, receiver));
        }
        for (_, receiver) in &mut pipes {
            receiver.recv().await?;
        }
        Ok(pipes)
    }
}

/// Waits for the others, while what was sent leaves.
async fn meet(barrier: &Arc<Barrier>) -> anyhow::Result<()> {
    let barrier = Arc::clone(barrier);
    Ok(tokio::task::spawn_blocking(move || barrier.wait()).await.map(drop)?)
}

/// Sends and receives on all pipes at once; gives them back when all has come.
async fn transfer(
    pipes: Vec<(PipeSender, PipeReceiver)>,
    duties: Duties,
    chunks: usize,
) -> anyhow::Result<Vec<(PipeSender, PipeReceiver)>> {
    let (mut senders, mut receivers) = (JoinSet::new(), JoinSet::new());
    for (mut sender, mut receiver) in pipes {
        senders.spawn(async move {
            let chunk = vec![0x5a; CHUNK];
            for _ in 0..if duties.sends { chunks } else { 0 } {
                sender.send(&chunk).await?;
            }
            anyhow::Ok(sender)
        });
        receivers.spawn(async move {
            let mut left = if duties.receives { chunks * CHUNK } else { 0 };
            while left > 0 {
                let come = receiver.recv().await?.len();
                left = left.checked_sub(come).context("more has come than was sent")?;
            }
            anyhow::Ok(receiver)
        });
    }
    let senders = senders.join_all().await.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let receivers = receivers.join_all().await.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    Ok(senders.into_iter().zip(receivers).collect())
}
