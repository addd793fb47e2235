//! What almost every test begins with: a relay, a daemon with a namespace of its own, and the owner's connection to it.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::daemon::{Daemon, DaemonOptions};
use crate::phone::Phone;
use crate::raw::RawPhone;
use crate::relay::Relay;
use crate::skaldctl::Skaldctl;
use crate::sockets::{Control, Host};

/// A relay, a daemon, its owner.
#[derive(Debug)]
pub struct World {
    /// The owner's connection. After a restart of the daemon: [`World::reconnect`].
    pub control: Control,
    /// The daemon.
    pub daemon: Daemon,
    /// The relay.
    pub relay: Arc<Relay>,
}

impl World {
    /// With a daemon that authorizes every device and pushes at once, on the shared relay.
    pub async fn new() -> Self {
        Self::with(&DaemonOptions::default()).await
    }

    /// With a daemon of this kind, on the shared relay.
    pub async fn with(options: &DaemonOptions) -> Self {
        Self::on(Relay::shared().await, options).await
    }

    /// On this relay.
    pub async fn on(relay: Arc<Relay>, options: &DaemonOptions) -> Self {
        let url = relay.url().to_owned();
        Self::through(&url, relay, options).await
    }

    /// On this relay, reached by another address.
    pub async fn through(url: &str, relay: Arc<Relay>, options: &DaemonOptions) -> Self {
        let daemon = Daemon::start(url, options).await;
        let mut control = daemon.control().await;
        control.connected().await;
        Self { control, daemon, relay }
    }

    /// The owner's connection anew, and the daemon connected: after the daemon was restarted.
    pub async fn reconnect(&mut self) {
        self.control = self.daemon.control().await;
        self.control.connected().await;
    }

    /// SIGKILL to the daemon, and a new start on the same folders.
    pub async fn crash(&mut self) {
        self.daemon.kill().await;
        self.daemon.start_again().await;
        self.reconnect().await;
    }

    /// A host of this name.
    pub async fn host(&self, name: &str) -> Host {
        self.daemon.host(name).await
    }

    /// The daemon's command line.
    pub fn skaldctl(&self) -> Skaldctl {
        Skaldctl::of(&self.daemon)
    }

    /// A paired phone; authorized, unless the daemon wants confirmation.
    pub async fn phone(&mut self, name: &str) -> Phone {
        let phone = Phone::new(name);
        let qr = self.control.pairing_code().await;
        phone.pair(&qr).await.ok();
        phone
    }

    /// A paired, authorized and connected raw phone that has said hello.
    pub async fn raw_phone(&mut self, name: &str) -> RawPhone {
        let mut phone = self.paired_raw_phone().await;
        phone.connect().await;
        phone.hello(name).await;
        // Its answer comes behind the hello.
        phone.inbox().await;
        phone
    }

    /// A paired raw phone; authorized, unless the daemon wants confirmation.
    pub async fn paired_raw_phone(&mut self) -> RawPhone {
        let qr = self.control.pairing_code().await;
        let phone = RawPhone::pair(&qr).await;
        let key = phone.key().to_hex();
        self.control.event_where("device.paired", |event| event["pubkey"] == key.as_str()).await;
        phone
    }

    /// `devices.authorize`.
    pub async fn authorize(&self, key: &str) {
        let answer = self.control.call("devices.authorize", json!({"pubkey": key})).await;
        assert_eq!(answer["applied"], true, "the relay has been told");
    }

    /// Waits until so many devices are authorized.
    pub async fn authorized(&mut self, devices: u64) {
        let enough = |status: &Value| status["devices"]["authorized"] == devices;
        self.control.until(&format!("{devices} authorized devices"), "status", enough).await;
    }

    /// Waits until so many items are pending.
    pub async fn pending(&mut self, items: usize) {
        let enough = |inbox: &Value| inbox.as_array().is_some_and(|inbox| inbox.len() == items);
        self.control.until(&format!("{items} pending items"), "inbox.list", enough).await;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprint!("{}", self.relay.report());
        }
    }
}
