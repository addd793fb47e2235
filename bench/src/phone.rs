//! A phone on the protocol's own engine and link, with its counters on the disk: what a phone must do for every message,
//! without the files that the terminal phone keeps beside.
//!
//! The rules of the disk are the daemon's: counters that are about to be used are synced before the message leaves, the
//! counter of a received message is written before it is acknowledged.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use serde::Deserialize;
use serde_json::{Value, json};
use skald_common::crypto::{Identity, Seed};
use skald_common::framing::{Body, Compression};
use skald_common::pairing::PairingQr;
use skald_common::payload::uuid_v4;
use skald_common::peer::{Config, Delivery, Drop, Event, Output, Partner, Peer, Role, Routes, first_send_counter};
use skald_common::wire::{Features, Platform};
use skald_link::{Clock, Link, feed};
use skald_tests::{random, unix_ms};

/// Longer than it takes to be let in.
const PATIENCE: Duration = Duration::from_mins(1);

/// A paired phone.
#[derive(Debug)]
pub(crate) struct Phone {
    seed: Seed,
    qr: PairingQr,
    counters: Counters,
    driver: Option<Driver>,
}

/// The engine on its socket.
#[derive(Debug)]
struct Driver {
    peer: Peer,
    link: Link,
    clock: Clock,
    events: VecDeque<Event>,
}

/// Two numbers in a file.
#[derive(Debug)]
struct Counters {
    file: File,
    received: u64,
}

/// What a bench wants to know of a payload.
#[derive(Debug, Deserialize)]
pub(crate) struct Payload {
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) ref_id: Option<String>,
    #[serde(default)]
    pub(crate) outcome: Option<String>,
    #[serde(default)]
    pub(crate) approvals: Vec<Approval>,
    /// The length of the whole, bytes.
    #[serde(skip)]
    pub(crate) length: usize,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Approval {
    pub(crate) request_id: String,
}

impl Counters {
    fn new() -> anyhow::Result<Self> {
        Ok(Self { file: tempfile::tempfile()?, received: 0 })
    }

    fn reserve(&self, upto: u64) -> anyhow::Result<()> {
        self.file.write_all_at(&upto.to_be_bytes(), 0)?;
        Ok(self.file.sync_data()?)
    }

    fn receive(&mut self, counter: u64) -> anyhow::Result<()> {
        self.received = counter;
        Ok(self.file.write_all_at(&counter.to_be_bytes(), 8)?)
    }
}

impl Driver {
    fn start(seed: &Seed, role: Role, qr: &PairingQr) -> anyhow::Result<Self> {
        let routes = Routes::new(&qr.relay_url, &qr.namespace_id)?;
        let jitter_seed = u64::from_le_bytes(random());
        let peer = Peer::new(Config { identity: Identity::new(seed), role, routes, offer: Features::ALL, jitter_seed });
        Ok(Self { peer, link: Link::new(), clock: Clock::start(), events: VecDeque::new() })
    }

    fn drain(&mut self, counters: Option<&Counters>) -> anyhow::Result<()> {
        while let Some(output) = self.peer.poll_output() {
            match (self.link.carry_out(output), counters) {
                (Some(Output::Event(event)), _) => self.events.push_back(event),
                (Some(Output::Reserve { upto, .. }), Some(counters)) => counters.reserve(upto)?,
                _ => {}
            }
        }
        Ok(())
    }

    async fn next(&mut self, counters: Option<&Counters>) -> anyhow::Result<Event> {
        loop {
            self.drain(counters)?;
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            tokio::select! {
                event = self.link.next() => feed(&mut self.peer, self.clock.now(), event),
                () = self.clock.sleep_until(self.peer.deadline()) => self.peer.on_timeout(self.clock.now()),
            }
        }
    }
}

impl Phone {
    /// Pairs by the content of a QR code.
    pub(crate) async fn pair(qr: &str) -> anyhow::Result<Self> {
        let seed = Seed::new(random());
        let qr = PairingQr::parse(qr)?;
        let role = Role::Pairing {
            namespace: qr.namespace_id,
            token: qr.pairing_token.clone(),
            device_token: String::new(),
            platform: Platform::Android,
        };
        let mut driver = Driver::start(&seed, role, &qr)?;
        driver.peer.start(driver.clock.now());
        loop {
            match driver.next(None).await? {
                Event::Paired => break,
                Event::Disconnected { why, .. } => bail!("not paired: {why}"),
                _ => {}
            }
        }
        driver.drain(None)?;
        driver.link.finish().await;
        Ok(Self { seed, qr, counters: Counters::new()?, driver: None })
    }

    /// Its name in hexadecimal.
    pub(crate) fn key(&self) -> String {
        Identity::new(&self.seed).ed25519_pub().to_hex()
    }

    /// Connects as a device; again, if the relay has not yet heard that it may.
    pub(crate) async fn connect(&mut self) -> anyhow::Result<()> {
        let qr = &self.qr;
        let role =
            Role::Client { namespace: qr.namespace_id, device_token: String::new(), platform: Platform::Android };
        let mut driver = Driver::start(&self.seed, role, qr)?;
        driver.peer.set_partner(Partner {
            ed25519: qr.agent_ed25519_pub,
            x25519: qr.agent_x25519_pub,
            send_from: first_send_counter(0, 0, unix_ms()),
            received: self.counters.received,
            compression: Compression::WhenSmaller,
        })?;
        driver.peer.start(driver.clock.now());
        let connected = async {
            while !matches!(driver.next(Some(&self.counters)).await?, Event::Connected { .. }) {}
            anyhow::Ok(())
        };
        tokio::time::timeout(PATIENCE, connected).await.context("the phone is not let in")??;
        self.driver = Some(driver);
        Ok(())
    }

    /// Says who it is, as a phone that is told what became of its answers.
    pub(crate) async fn hello(&mut self) -> anyhow::Result<()> {
        let info = json!({"platform": "android", "app_version": "skald-phone/bench", "device_name": "bench"});
        self.send(&payload("hello", json!({"device_info": info})).1, Delivery::STORED)?;
        while self.driver()?.peer.pending() > 0 {
            self.event().await?;
        }
        Ok(())
    }

    /// Ends its connection politely.
    pub(crate) async fn disconnect(&mut self) {
        if let Some(mut driver) = self.driver.take() {
            driver.link.finish().await;
        }
    }

    /// Seals and sends a payload to the agent; it leaves with the next thing that is awaited.
    pub(crate) fn send(&mut self, json: &[u8], delivery: Delivery) -> anyhow::Result<()> {
        let agent = self.qr.agent_ed25519_pub;
        let driver = self.driver()?;
        driver.peer.send(driver.clock.now(), &agent, json, delivery)?;
        Ok(())
    }

    /// The next payload.
    pub(crate) async fn receive(&mut self) -> anyhow::Result<Payload> {
        loop {
            if let Event::Message { body: Body::Json(json), .. } = self.event().await? {
                let payload = serde_json::from_slice::<Payload>(&json).context("a payload that is none")?;
                return Ok(Payload { length: json.len(), ..payload });
            }
        }
    }

    /// The next payload of this kind.
    pub(crate) async fn receive_kind(&mut self, kind: &str) -> anyhow::Result<Payload> {
        loop {
            let payload = self.receive().await?;
            if payload.kind == kind {
                return Ok(payload);
            }
        }
    }

    /// The next event; a message is accepted, so that no later one waits for its receipt.
    async fn event(&mut self) -> anyhow::Result<Event> {
        let driver = self.driver.as_mut().ok_or_else(|| anyhow!("the phone is not connected"))?;
        let event = driver.next(Some(&self.counters)).await?;
        if let Event::Message { receipt, .. } = &event {
            self.counters.receive(receipt.counter)?;
            driver.peer.accept(driver.clock.now(), *receipt);
        }
        match event {
            Event::Disconnected { why, .. } => bail!("the phone's connection has ended: {why}"),
            Event::SendFailed { why, .. } => bail!("a message was not sent: {why:?}"),
            // What was not acknowledged when the last connection ended comes again.
            Event::Dropped { why, .. } if why != Drop::Replay => bail!("a message was dropped: {why:?}"),
            event => Ok(event),
        }
    }

    fn driver(&mut self) -> anyhow::Result<&mut Driver> {
        self.driver.as_mut().ok_or_else(|| anyhow!("the phone is not connected"))
    }
}

/// A payload with its envelope, and its id.
pub(crate) fn payload(kind: &str, fields: Value) -> (String, Vec<u8>) {
    let id = uuid_v4(random());
    let mut payload = json!({"v": 1, "kind": kind, "id": id, "ts": unix_ms()});
    if let (Value::Object(payload), Value::Object(fields)) = (&mut payload, fields) {
        payload.extend(fields);
    }
    (id, payload.to_string().into_bytes())
}

/// The same, filled up to this length with a field that receivers ignore.
pub(crate) fn padded(kind: &str, fields: Value, length: usize) -> (String, Vec<u8>) {
    let mut fields = fields;
    fields["pad"] = Value::from("");
    let bare = payload(kind, fields.clone()).1.len();
    fields["pad"] = Value::from("x".repeat(length.saturating_sub(bare)));
    payload(kind, fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_padded_payload_has_the_length_asked_for() {
        let (id, json) = padded("inbox_request", json!({}), 300);
        assert_eq!(json.len(), 300);
        let read: Value = serde_json::from_slice(&json).unwrap();
        assert_eq!((&read["id"], &read["kind"], &read["v"]), (&json!(id), &json!("inbox_request"), &json!(1)));
    }
}
