//! Push services that are not the real ones ([`PushServices`], programs in Python under `tests/standins`), the forwarder
//! that leads to the one of Apple, and a relay that pushes by them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::TcpListener;
use std::process::Command;
use std::sync::{Arc, Weak};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use skald_common::wire::Platform;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use crate::build::{program, root};
use crate::daemon::DaemonOptions;
use crate::phone::Phone;
use crate::process::{Finished, Process, Stream, command};
use crate::relay::Relay;
use crate::within;
use crate::world::World;

/// A kind of push service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// Apple's. It is reached only where Caddy is installed.
    Apns,
    /// Google's.
    Fcm,
    /// Those of browsers.
    Web,
}

impl Service {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Apns, Self::Fcm, Self::Web];

    /// The wire's platform.
    pub const fn on_the_wire(self) -> Platform {
        match self {
            Self::Apns => Platform::Ios,
            Self::Fcm => Platform::Android,
            Self::Web => Platform::Web,
        }
    }

    /// As scripts call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Apns => "apns",
            Self::Fcm => "fcm",
            Self::Web => "web",
        }
    }

    /// The platform that `skald-phone --push-token` names.
    const fn platform(self) -> &'static str {
        match self {
            Self::Apns => "ios",
            Self::Fcm => "android",
            Self::Web => "web",
        }
    }
}

/// A device as its push service knows it.
#[derive(Debug, Clone)]
pub struct PushDevice {
    /// Whose.
    pub service: Service,
    /// What the relay is handed: a token, or a subscription as JSON.
    pub token: String,
    /// How the stand-in calls it: the token, or the subscription's endpoint.
    pub name: String,
}

impl PushDevice {
    /// As `skald-phone --push-token` wants it.
    pub fn argument(&self) -> String {
        format!("{}:{}", self.service.platform(), self.token)
    }
}

/// A correct request that a stand-in has got.
#[derive(Clone)]
pub struct Pushed {
    /// When, Unix seconds.
    pub at: f64,
    /// The collapse id, collapse key or topic.
    pub collapse: Option<String>,
    /// The object that every push carries; null if only the phone can open it.
    pub data: Value,
    /// What an app's notification part is handed.
    pub delivered: Vec<u8>,
    /// What was answered; 0 if nothing was.
    pub status: u64,
}

impl fmt::Debug for Pushed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.wakes() { "wake" } else { "content" };
        write!(f, "{:.3} {what} {:?} {}", self.at, self.collapse, self.status)
    }
}

impl Pushed {
    fn read(entry: &Value) -> Self {
        let delivered = entry["delivered"].as_str().unwrap_or_default();
        Self {
            at: entry["at"].as_f64().expect("a time"),
            collapse: entry["collapse"].as_str().map(str::to_owned),
            data: entry["data"].clone(),
            delivered: STANDARD.decode(delivered).expect("base64"),
            status: entry["status"].as_u64().expect("a status"),
        }
    }

    /// Whether it only wakes.
    pub fn wakes(&self) -> bool {
        self.data.get("wake").is_some()
    }

    /// What a phone's notification part makes of it.
    pub async fn opened_by(&self, phone: &Phone) -> Finished {
        phone.run_with_bytes(&["--json", "notify-open"], &self.delivered).await
    }
}

/// The stand-ins, and the forwarder if there is one.
#[derive(Debug)]
pub struct PushServices {
    control: u16,
    outbound: u16,
    variables: BTreeMap<String, String>,
    webpush_key: String,
    forwarder: Option<Forwarder>,
    _process: Process,
    /// Holds what the process leaves behind when it is killed.
    _home: TempDir,
}

#[derive(Debug)]
struct Forwarder {
    port: u16,
    process: Process,
}

impl PushServices {
    /// Starts them; `None`, after saying so, where there is no Python for them.
    pub async fn start() -> Option<Self> {
        let mut services = command(root().join("scripts/push-services"));
        knows_the_cache(&mut services);
        let home = tempfile::Builder::new().prefix("skald-push-").tempdir().expect("a temporary folder");
        services.env("TMPDIR", home.path());
        let process = Process::spawn("push services", services);
        let Some(line) = process.wrote_or_ended(Stream::Out, 0, "}}\n").await.map(|_| process.text(Stream::Out)) else {
            let ended = process.finished().await;
            assert_eq!(ended.code(), 64, "{ended}");
            eprintln!("skipped: the stand-ins for push services need Python 3.11 with venv, and pip");
            return None;
        };
        let facts: Value = serde_json::from_str(line.trim()).expect("the stand-ins say where they are");
        let port = |name: &str| u16::try_from(facts[name].as_u64().expect("a port")).expect("a port");
        let variables = serde_json::from_value(facts["variables"].clone()).expect("a relay's variables");
        let webpush_key = facts["webpush_key"].as_str().expect("a key").to_owned();
        let authority = facts["authority"].as_str().expect("a path");
        let forwarder = Forwarder::start(port("apns"), authority).await;
        Some(Self {
            control: port("control"),
            outbound: port("outbound"),
            variables,
            webpush_key,
            forwarder,
            _process: process,
            _home: home,
        })
    }

    /// Whether this service can be reached; if not, says so.
    pub fn has(&self, service: Service) -> bool {
        let has = service != Service::Apns || self.forwarder.is_some();
        if !has {
            eprintln!("skipped: Apple's push service is reached by Caddy, which is not installed");
        }
        has
    }

    /// The services that can be reached.
    pub fn reachable(&self) -> Vec<Service> {
        Service::ALL.into_iter().filter(|&service| self.has(service)).collect()
    }

    /// Arguments of `scripts/relay` for a relay that pushes by them.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![format!("--outbound=127.0.0.1:{}", self.outbound)];
        arguments.extend(self.variables.iter().map(|(name, value)| format!("--var={name}={value}")));
        if let Some(forwarder) = &self.forwarder {
            arguments.push(format!("--var=APNS_HOST=http://127.0.0.1:{}", forwarder.port));
        }
        arguments
    }

    /// The public key that belongs to the relay's `VAPID_PRIVATE_KEY`.
    pub fn webpush_key(&self) -> &str {
        &self.webpush_key
    }

    /// `scripts/push-smoke` with a relay's variables, of which one may have another value, for some services or for all.
    pub async fn smoke(&self, other: Option<(&str, &str)>, services: &[&str]) -> Finished {
        let folder = tempfile::Builder::new().prefix("skald-secrets-").tempdir().expect("a temporary folder");
        for (name, value) in &self.variables {
            let value = other.filter(|(changed, _)| changed == name).map_or(value.as_str(), |(_, value)| value);
            std::fs::write(folder.path().join(name), value).expect("a secret is written");
        }
        let mut smoke = command("node");
        // Without the shell script around it, which builds what the tests have built.
        smoke.arg(root().join("scripts/push-smoke.mjs")).arg("--secrets").arg(folder.path());
        smoke.arg(format!("--outbound=127.0.0.1:{}", self.outbound));
        if let Some(forwarder) = &self.forwarder {
            smoke.arg(format!("--var=APNS_HOST=http://127.0.0.1:{}", forwarder.port));
        }
        knows_the_cache(&mut smoke);
        smoke.args(services).env("BIN", program("skaldctl").parent().expect("a folder"));
        Process::spawn("push-smoke", smoke).finished().await
    }

    /// A secret of the relay's.
    pub fn secret(&self, name: &str) -> &str {
        &self.variables[name]
    }

    /// Asks the stand-ins something, or tells them (`tests/standins/push_services/control.py`).
    pub async fn ask(&self, what: &str, mut question: Value) -> Value {
        question["do"] = what.into();
        let stream = TcpStream::connect(("127.0.0.1", self.control)).await.expect("the stand-ins listen");
        let mut stream = BufReader::new(stream);
        stream.write_all(format!("{question}\n").as_bytes()).await.expect("the stand-ins read");
        let mut line = String::new();
        let what = format!("the stand-ins' answer to {question}");
        within(&what, stream.read_line(&mut line)).await.expect("the stand-ins answer");
        let answer: Value = serde_json::from_str(&line).expect("JSON");
        assert!(answer.get("error").is_none(), "{question}: {answer}");
        answer
    }

    /// A new device.
    pub async fn device(&self, service: Service) -> PushDevice {
        self.device_with(service, json!({})).await
    }

    /// A new device, with further wishes.
    pub async fn device_with(&self, service: Service, mut wishes: Value) -> PushDevice {
        wishes["service"] = service.name().into();
        let device = self.ask("device", wishes).await;
        let text = |name: &str| device[name].as_str().expect("text").to_owned();
        PushDevice { service, token: text("token"), name: text("name") }
    }

    /// The app is deleted there.
    pub async fn uninstall(&self, device: &PushDevice) {
        self.ask("uninstall", json!({"service": device.service.name(), "name": device.name})).await;
    }

    /// What the next correct pushes to this device are answered (`Order` of the stand-ins); `times` null: for good.
    pub async fn order(&self, device: &PushDevice, mut answer: Value) {
        answer["service"] = device.service.name().into();
        answer["token"] = device.name.as_str().into();
        self.ask("order", answer).await;
    }

    /// What was ordered for this device does not stand any more.
    pub async fn withdraw(&self, device: &PushDevice) {
        self.ask("withdraw", json!({"token": device.name})).await;
    }

    /// Waits until so many pushes came to this device, and gives all of them.
    pub async fn pushes(&self, device: &PushDevice, at_least: usize) -> Vec<Pushed> {
        let of = json!({"service": device.service.name(), "token": device.name, "at_least": at_least});
        let entries = self.ask("entries", of).await;
        entries.as_array().expect("a list").iter().map(Pushed::read).collect()
    }

    /// Waits until so many requests about a device that the service does not know any more were refused.
    pub async fn refusals(&self, service: Service, reason: &str, at_least: usize) -> usize {
        let of = json!({"service": service.name(), "refused": reason, "at_least": at_least});
        self.ask("entries", of).await.as_array().expect("a list").len()
    }

    /// What came of pushes that no correct relay would have sent.
    pub async fn offences(&self) -> Vec<String> {
        serde_json::from_value(self.ask("offences", json!({})).await).expect("a list of texts")
    }

    /// How many different tokens Apple has been presented with.
    pub async fn provider_tokens(&self) -> u64 {
        self.ask("provider_tokens", json!({})).await.as_u64().expect("a number")
    }

    /// How many access tokens Google has given out.
    pub async fn access_tokens(&self) -> u64 {
        self.ask("access", json!({})).await.as_u64().expect("a number")
    }

    /// Every token that the relay has authorized itself by.
    pub async fn credentials(&self) -> Vec<String> {
        serde_json::from_value(self.ask("credentials", json!({})).await).expect("a list of texts")
    }

    /// What the forwarder has logged.
    pub fn forwarders_log(&self) -> String {
        self.forwarder.as_ref().map(|forwarder| forwarder.process.text(Stream::Err)).unwrap_or_default()
    }
}

/// Scripts find their tools in the user's cache.
fn knows_the_cache(script: &mut Command) {
    for name in ["HOME", "XDG_CACHE_HOME"] {
        if let Some(value) = std::env::var_os(name) {
            script.env(name, value);
        }
    }
}

impl Forwarder {
    /// The one that operators are told to use, aimed at the stand-in.
    async fn start(upstream: u16, authority: &str) -> Option<Self> {
        let found = command("caddy").arg("version").output();
        if !found.is_ok_and(|output| output.status.success()) {
            return None;
        }
        // Caddy cannot say which port it has taken.
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port();
        let mut caddy = command("caddy");
        caddy.args(["run", "--adapter", "caddyfile", "--config"]).arg(root().join("docs/Caddyfile.apns"));
        caddy.env("APNS_FORWARDER_PORT", port.to_string()).env("APNS_UPSTREAM", format!("localhost:{upstream}"));
        // Where the runtime of Caddy's language looks for whom it trusts.
        caddy.env("SSL_CERT_FILE", authority).env("HOME", root().join("target"));
        let process = Process::spawn("forwarder", caddy);
        process.wrote(Stream::Err, "serving initial configuration").await;
        Some(Self { port, process })
    }
}

/// A relay that pushes, and the services that it pushes by.
#[derive(Debug)]
pub struct Pushing {
    /// The stand-ins.
    pub services: PushServices,
    /// The relay.
    pub relay: Arc<Relay>,
}

impl Pushing {
    /// The one that the tests of a program share; `None` where there can be none, after saying so.
    pub async fn shared() -> Option<Arc<Self>> {
        static SHARED: Mutex<Weak<Pushing>> = Mutex::const_new(Weak::new());
        let mut shared = SHARED.lock().await;
        if let Some(pushing) = shared.upgrade() {
            return Some(pushing);
        }
        let pushing = Arc::new(Self::with(&[]).await?);
        *shared = Arc::downgrade(&pushing);
        Some(pushing)
    }

    /// One of this test alone, with further arguments of `scripts/relay`.
    pub async fn with(arguments: &[&str]) -> Option<Self> {
        Self::build(arguments, false).await
    }

    /// The same, whose relay's objects forget all memory between any two events.
    pub async fn forgetful(arguments: &[&str]) -> Option<Self> {
        Self::build(arguments, true).await
    }

    async fn build(arguments: &[&str], forgetful: bool) -> Option<Self> {
        if !Relay::controllable() {
            return None;
        }
        let services = PushServices::start().await?;
        let own = services.arguments();
        let all: Vec<&str> = own.iter().map(String::as_str).chain(arguments.iter().copied()).collect();
        let relay = if forgetful { Relay::forgetful_with(&all).await } else { Relay::with(&all).await };
        Some(Self { services, relay: Arc::new(relay) })
    }

    /// A daemon on the relay.
    pub async fn world(&self) -> World {
        World::on(Arc::clone(&self.relay), &DaemonOptions::default()).await
    }

    /// Ends a test: nothing came that no correct relay would have sent.
    pub async fn is_beyond_reproach(&self) {
        assert_eq!(self.services.offences().await, Vec::<String>::new());
    }
}
