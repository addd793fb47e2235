//! From the pairing code on the screen to the first answer at the program that asked, with the terminal phone's library
//! and a daemon that wants no confirmation: no person is in the way.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use serde_json::json;
use skald_common::pairing::PairingQr;
use skald_phone::client::{Pairing, Phone, Refreshed, Until};
use skald_phone::model::answer::Answer;
use skald_phone::store::Store;
use skald_tests::Host;

use super::{Plan, progress};
use crate::processes::{Daemon, Server};
use crate::report::{Report, Section};
use crate::stats::median;

/// Each step is far shorter.
const PATIENCE: u64 = 30;
const STEPS: [&str; 4] = ["code shown to paired", "to connected", "to the inbox", "to the answer at the program"];

/// See the module.
pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    progress("pairing");
    let relay = Server::relay().await?;
    let mut steps = vec![Vec::new(); STEPS.len()];
    let mut whole = Vec::new();
    for _ in 0..plan.pairings {
        let times = once(&relay).await?;
        whole.push(times.iter().sum::<f64>());
        for (step, time) in steps.iter_mut().zip(times) {
            step.push(time);
        }
    }
    let mut section = Section::new("pairing", "Pairing to first answer");
    for (name, times) in STEPS.iter().zip(&steps) {
        section.line(*name, &[("p50_ms", median(times))]);
    }
    section.line("all of it", &[("p50_ms", median(&whole))]);
    report.add(section);
    Ok(())
}

/// The time of each step, milliseconds.
async fn once(relay: &Server) -> anyhow::Result<Vec<f64>> {
    let (daemon, mut control) = Daemon::connected(relay).await?;
    let mut host = daemon.host().await;
    host.request("approval", &Host::approval("first", "Deploy release 1.4?", &json!({"to": "production"}))).await;
    let qr = PairingQr::parse(&control.pairing_code().await)?;
    let folder = tempfile::tempdir()?;
    let store = Store::open(folder.path(), "default")?;
    let mut times = Vec::new();
    let mut since = Instant::now();
    let mut step = || {
        times.push(since.elapsed().as_secs_f64() * 1e3);
        since = Instant::now();
    };
    let pairing = Pairing { name: "Bench".into(), again: false };
    let mut phone = Phone::pair(store, &qr, pairing, Until::secs(PATIENCE)).await?;
    step();
    phone.connect(Until::secs(PATIENCE)).await?;
    step();
    ensure!(phone.refresh(Until::secs(PATIENCE)).await? == Refreshed::Fresh, "the daemon gave no inbox");
    step();
    let id = phone.inbox().pending().next().map(|entry| entry.id().to_owned()).context("the inbox is empty")?;
    let sent = phone.answer(&id, Answer::Approve { bypass_secs: None })?;
    let (_, settled) = tokio::join!(host.answered(), phone.settle(&sent, Until::secs(PATIENCE)));
    settled?;
    step();
    phone.close().await;
    Ok(times)
}
