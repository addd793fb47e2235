//! Skald's web page on the phone: from the wish for a pipe to the first byte of an answer, and a page of 30 resources.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use skald_common::pairing::PairingQr;
use skald_phone::client::{Manner, Pairing, Phone, PhoneEvent, Until};
use skald_phone::store::Store;
use skald_tests::{Control, Http, Process, Site, Stream, command, text};
use tempfile::TempDir;

use crate::parts::{Plan, progress};
use crate::processes::{Daemon, Server, beside};
use crate::report::{Bound, Report, Section};
use crate::stats::{Collector, Samples};

/// Each step is far shorter.
const PATIENCE: u64 = 30;
/// What a browser opens to one site.
const CONNECTIONS: usize = 6;
const RESOURCES: [&str; 3] = ["script", "image", "data"];
const OF_EACH: usize = 10;
/// From the invitation to the first byte of the answer, milliseconds.
const AIM_FIRST_BYTE_MS: f64 = 10.0;

/// See the module.
pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    progress("a page through the tunnel");
    let (relay, site) = (Server::relay().await?, Site::open().await);
    let mut daemon = Daemon::prepare_with(&relay.url(), &format!("web_port = {}\n", site.address().port()))?;
    daemon.start().await?;
    let mut control = daemon.control().await;
    control.connected().await;
    let home = Home::paired(&mut control).await?;

    let mut section = Section::new("tunnel", "A web page at home, through phone, relay and daemon");
    let first = home.first_bytes(plan.pages).await?;
    add(&mut section, "invitation to the first byte of an answer", &first);
    report.aim("pipe to the first byte, p50", first.percentile_us(0.5) / 1e3, "ms", Bound::Below(AIM_FIRST_BYTE_MS));
    site.until("the end of its connections", |visits| visits.open == 0).await;
    let proxy = Proxy::start(&home).await?;
    for (name, address) in [("directly", site.address()), ("through the tunnel", proxy.address)] {
        load(address).await?;
        site.until("the end of its connections", |visits| visits.open == 0).await;
        let mut collector = Collector::begin(plan.pages);
        for _ in 0..plan.pages {
            let since = Instant::now();
            load(address).await?;
            collector.note(since);
            // A tunnel outlives its client by a second, and there are not so many at a time.
            site.until("the end of its connections", |visits| visits.open == 0).await;
        }
        let resources = RESOURCES.len() * OF_EACH;
        add(
            &mut section,
            &format!("page of {resources} resources, {CONNECTIONS} connections, {name}"),
            &collector.end(),
        );
    }
    report.add(section);
    Ok(())
}

fn add(section: &mut Section, name: &str, samples: &Samples) {
    section.line(name, &[("p50_ms", samples.percentile_us(0.5) / 1e3), ("p99_ms", samples.percentile_us(0.99) / 1e3)]);
}

/// A paired phone's folder.
struct Home {
    folder: TempDir,
}

impl Home {
    async fn paired(control: &mut Control) -> anyhow::Result<Self> {
        let qr = PairingQr::parse(&control.pairing_code().await)?;
        let home = Self { folder: tempfile::tempdir()? };
        let pairing = Pairing { name: "Bench".into(), again: false };
        let mut phone = Phone::pair(home.store()?, &qr, pairing, Until::secs(PATIENCE)).await?;
        phone.connect(Until::secs(PATIENCE)).await?;
        phone.close().await;
        Ok(home)
    }

    fn store(&self) -> anyhow::Result<Store> {
        Ok(Store::open(self.folder.path(), "default")?)
    }

    /// One pipe after the other, each until the first byte of an answer has come.
    async fn first_bytes(&self, count: usize) -> anyhow::Result<Samples> {
        let mut phone = Phone::open(self.store()?, Manner::Command, Until::secs(PATIENCE)).await?;
        phone.connect(Until::secs(PATIENCE)).await?;
        first_byte(&mut phone).await?;
        let mut collector = Collector::begin(count);
        for _ in 0..count {
            let since = Instant::now();
            first_byte(&mut phone).await?;
            collector.note(since);
        }
        phone.close().await;
        Ok(collector.end())
    }
}

async fn first_byte(phone: &mut Phone) -> anyhow::Result<()> {
    phone.open_pipe("http-local-proxy", BTreeMap::new())?;
    let opened = loop {
        let event = Until::secs(PATIENCE).within(phone.next_event()).await.context("no pipe in time")??;
        match event {
            PhoneEvent::PipeOpened { pipe, .. } => break pipe,
            PhoneEvent::PipeFailed { why, .. } => bail!("no pipe: {why}"),
            _ => {}
        }
    };
    let (mut sender, mut receiver) = opened.connect().await?.split();
    sender.send(b"GET / HTTP/1.1\r\nHost: bench\r\n\r\n").await?;
    receiver.recv().await?;
    // The other side's end of it is not waited for: it takes none of the next one's time.
    drop((sender, receiver));
    Ok(())
}

/// `skald-phone proxy`.
struct Proxy {
    address: SocketAddr,
    _process: Process,
}

impl Proxy {
    async fn start(home: &Home) -> anyhow::Result<Self> {
        let mut phone = command(beside("skald-phone")?);
        phone.args(["proxy", "--listen", "127.0.0.1:0"]).env("SKALD_PHONE_DIR", home.folder.path());
        let process = Process::spawn("skald-phone", phone);
        let said = process.wrote_after(Stream::Out, 0, "http://").await;
        let address = said.split("http://").nth(1).context("no address")?;
        let end = address.find(|c: char| !(c.is_ascii_digit() || ".:".contains(c))).unwrap_or(address.len());
        Ok(Self { address: address[..end].trim_end_matches('.').parse()?, _process: process })
    }
}

/// As a browser that has nothing of it yet: the page, then its resources on several connections.
async fn load(address: SocketAddr) -> anyhow::Result<()> {
    let mut first = Http::connect(address).await;
    fetch(&mut first, "/page").await?;
    let mut lanes = vec![first];
    while lanes.len() < CONNECTIONS {
        lanes.push(Http::connect(address).await);
    }
    let paths: Vec<_> = RESOURCES.iter().flat_map(|kind| (0..OF_EACH).map(move |n| format!("/{kind}/{n}"))).collect();
    let lanes = lanes.into_iter().enumerate().map(|(lane, mut http)| {
        let paths = paths.iter().skip(lane).step_by(CONNECTIONS);
        async move {
            for path in paths {
                fetch(&mut http, path).await?;
            }
            anyhow::Ok(())
        }
    });
    let loaded = tokio::time::timeout(Duration::from_secs(PATIENCE), futures_util::future::try_join_all(lanes)).await;
    loaded.context("the page does not load")?.map(drop)
}

async fn fetch(http: &mut Http, path: &str) -> anyhow::Result<()> {
    let response = http.get(path).await?;
    let status = response.status();
    let said = text(response).await?;
    ensure!(status.is_success(), "{path}: {status}: {said}");
    Ok(())
}
