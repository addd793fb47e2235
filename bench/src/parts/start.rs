//! The daemon: from its start to a socket that answers, and what it holds in memory.

use super::{Plan, progress};
use crate::processes::{Daemon, Server};
use crate::report::{Bound, Report, Section};
use crate::stats::median;
use crate::usage::{self, Memory};

/// From the start to an answer, milliseconds.
const AIM_START_MS: f64 = 50.0;
/// Resident, MiB.
const AIM_RESIDENT_MIB: f64 = 12.0;

/// See the module.
pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    progress("starting the daemon");
    let mut section = Section::new("daemon", "The daemon");
    let (mut first, mut later) = (Vec::new(), Vec::new());
    for _ in 0..plan.starts {
        // The first start makes seed and database; what users wait for is any later one.
        let mut daemon = Daemon::prepare("")?;
        first.push(daemon.start().await?.as_secs_f64() * 1e3);
        daemon.stop().await;
        later.push(daemon.start().await?.as_secs_f64() * 1e3);
        daemon.stop().await;
    }
    section.line("first start to an answer on the socket", &[("p50_ms", median(&first))]);
    section.line("any later start to an answer on the socket", &[("p50_ms", median(&later))]);
    report.aim("daemon's start to a socket that answers, p50", median(&later), "ms", Bound::Below(AIM_START_MS));

    let mut daemon = Daemon::prepare("")?;
    daemon.start().await?;
    let alone = usage::memory(daemon.pid());
    daemon.stop().await;
    let relay = Server::relay().await?;
    let (daemon, mut control) = Daemon::connected(&relay).await?;
    let connected = usage::memory(daemon.pid());
    let mut phone = super::roundtrip::paired(&mut control).await?;
    let paired = usage::memory(daemon.pid());
    phone.disconnect().await;
    for (name, memory) in [("without a relay", alone), ("connected", connected), ("with a phone", paired)] {
        let Some(Memory { resident, proportional }) = memory else { continue };
        let figures = [("resident_kib", resident), ("proportional_kib", proportional.unwrap_or(f64::NAN))];
        section.line(format!("memory, {name}"), &figures);
    }
    if let Some(memory) = paired {
        report.aim("daemon's resident memory", memory.resident / 1024.0, "MiB", Bound::Below(AIM_RESIDENT_MIB));
    }
    report.add(section);
    Ok(())
}
