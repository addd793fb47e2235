//! A real browser, through the tunnel: a page of thirty resources, with server-sent events and a WebSocket.

use std::net::SocketAddr;

use skald_tests::{PAGE_WORKED, Process, Site, Tunnel, command};
use tempfile::TempDir;

/// Debian's and other systems' names for it.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// A browser with a page open; it ends when dropped.
struct Browser {
    process: Process,
    _home: TempDir,
}

impl Browser {
    /// The program, if this machine has one.
    fn installed() -> Option<&'static str> {
        let works = |name: &&str| command(name).arg("--version").output().is_ok_and(|output| output.status.success());
        let found = NAMES.into_iter().find(works);
        if found.is_none() {
            eprintln!("skipped: no Chromium on this machine (on Debian: apt-get install chromium)");
        }
        found
    }

    fn open(program: &str, address: SocketAddr) -> Self {
        let home = tempfile::Builder::new().prefix("skald-browser-").tempdir().expect("a temporary folder");
        let mut chromium = command(program);
        // Root has no sandbox; and nothing of it needs another network.
        chromium
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .arg(format!("--user-data-dir={}", home.path().display()))
            // So that it stays until it is killed.
            .arg("--remote-debugging-port=0")
            .arg(format!("http://{address}/page"))
            .env("HOME", home.path());
        Self { process: Process::spawn("chromium", chromium), _home: home }
    }
}

#[tokio::test]
async fn without_a_tunnel_the_page_of_these_tests_works_in_chromium() {
    let Some(program) = Browser::installed() else { return };
    let site = Site::open().await;
    let _browser = Browser::open(program, site.address());
    assert_eq!(site.report().await, PAGE_WORKED);
}

#[tokio::test]
async fn chromium_loads_a_page_of_thirty_resources_with_events_and_a_socket_through_the_tunnel() {
    let Some(program) = Browser::installed() else { return };
    let tunnel = Tunnel::new().await;
    let browser = Browser::open(program, tunnel.address());
    assert_eq!(tunnel.site.report().await, PAGE_WORKED);
    browser.process.kill();
    tunnel.site.until("the browser's connections to end", |visits| visits.open == 0).await;
}
