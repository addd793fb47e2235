//! A site at home, a daemon that lets its phones at it, and a phone with a door to it.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::daemon::DaemonOptions;
use crate::phone::Phone;
use crate::process::{Process, Stream};
use crate::relay::Relay;
use crate::web::Site;
use crate::world::World;

/// `skald-phone proxy`, running.
#[derive(Debug)]
pub struct Proxy {
    /// Its process.
    pub process: Process,
    address: SocketAddr,
}

impl Proxy {
    /// Starts it on a free port and waits until it listens.
    pub async fn start(phone: &Phone) -> Self {
        let process = phone.start(&["proxy", "--listen", "127.0.0.1:0"]);
        let line = process.wrote_after(Stream::Out, 0, "http://").await;
        let address =
            line.trim_start_matches("http://").split(|c: char| !(c.is_ascii_digit() || ".:".contains(c))).next();
        let address = address.and_then(|address| address.parse().ok());
        Self { address: address.unwrap_or_else(|| panic!("no address: {line}")), process }
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

/// All of it.
#[derive(Debug)]
pub struct Tunnel {
    /// The phone's door.
    pub proxy: Proxy,
    /// The phone.
    pub phone: Phone,
    /// What is behind the tunnel.
    pub site: Site,
    /// Relay and daemon.
    pub world: World,
}

impl Tunnel {
    /// On the shared relay.
    pub async fn new() -> Self {
        Self::on(Relay::shared().await).await
    }

    /// On this relay.
    pub async fn on(relay: Arc<Relay>) -> Self {
        let url = relay.url().to_owned();
        Self::through(&url, relay).await
    }

    /// On this relay, reached by another address.
    pub async fn through(url: &str, relay: Arc<Relay>) -> Self {
        let site = Site::open().await;
        let mut world = World::through(url, relay, &Self::options(site.address().port())).await;
        let phone = world.phone("Ann").await;
        let proxy = Proxy::start(&phone).await;
        Self { proxy, phone, site, world }
    }

    /// A daemon that lets its phones at this port.
    pub fn options(web_port: u16) -> DaemonOptions {
        DaemonOptions { settings: format!("web_port = {web_port}\n"), ..DaemonOptions::default() }
    }

    /// The phone's door.
    pub const fn address(&self) -> SocketAddr {
        self.proxy.address()
    }
}
