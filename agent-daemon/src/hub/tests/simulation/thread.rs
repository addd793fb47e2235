//! The daemon's real thread on a disk that refuses for a while: the real socket, clock and database, with a relay and a
//! phone of the simulation at the other end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use skald_link::LinkEvent;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::disk::Disk;
use super::phone::{News, Phone};
use super::relay::{Relay, Seen};
use crate::core;
use crate::daemon::Daemon;
use crate::hub::api::{ApiError, CallOutcome, HostHello, HostRequest, HostSession, HubHandle, Settings};
use crate::hub::durable::{Backup, Durable, Write};
use crate::hub::items::Kind;
use crate::hub::tests::{approval, raw};
use crate::store::{Store, StoreError};

/// Longer than every pause of the daemon, also on a busy machine.
const PATIENCE: Duration = Duration::from_mins(2);

/// A switch: while it is on, nothing can be written.
#[derive(Clone, Default)]
struct Full {
    on: Arc<AtomicBool>,
    refused: Arc<AtomicU64>,
}

impl Full {
    fn set(&self, on: bool) {
        self.on.store(on, Ordering::SeqCst);
    }

    fn refused(&self) -> u64 {
        self.refused.load(Ordering::SeqCst)
    }
}

struct SwitchedStore {
    store: Store,
    full: Full,
}

impl core::Disk for SwitchedStore {
    fn apply(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        if !writes.is_empty() && self.full.on.load(Ordering::SeqCst) {
            self.full.refused.fetch_add(1, Ordering::SeqCst);
            let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
            return Err(StoreError::Database(rusqlite::Error::SqliteFailure(full, None)));
        }
        self.store.apply(writes)
    }

    fn load(&self) -> Result<Durable, StoreError> {
        self.store.load()
    }

    fn read_backup(&self) -> Option<Backup> {
        self.store.read_backup()
    }
}

/// A daemon, and the far end of its connection.
struct Far {
    daemon: Option<Daemon>,
    full: Full,
    folder: tempfile::TempDir,
    listener: TcpListener,
    socket: Option<WebSocketStream<TcpStream>>,
    relay: Relay,
    phone: Phone,
    acks: Vec<String>,
    notes: u64,
    /// Messages of the daemon that were on the wire.
    sent: u64,
}

fn start(folder: &tempfile::TempDir, listener: &TcpListener, full: &Full) -> Daemon {
    let seed = folder.path().join(crate::identity::SEED);
    if !seed.exists() {
        // The simulation's phones know this one.
        let mut options = std::fs::OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.write(true).create_new(true).open(seed).unwrap();
        std::io::Write::write_all(&mut file, &[9; 32]).unwrap();
    }
    let settings = Settings {
        relay_url: format!("ws://{}/v1/ws", listener.local_addr().unwrap()),
        require_device_confirmation: false,
        notify_delay_secs: 0,
        ..Settings::default()
    };
    let full = full.clone();
    Daemon::start_on(folder.path(), settings, |store| SwitchedStore { store, full }).unwrap()
}

impl Far {
    /// With a phone that is paired, authorized and up to date.
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let full = Full::default();
        let mut relay = Relay::new(Disk::model());
        relay.up = true;
        let mut far = Self {
            daemon: Some(start(&folder, &listener, &full)),
            full,
            folder,
            listener,
            socket: None,
            relay,
            phone: Phone::new(0),
            acks: Vec::new(),
            notes: 0,
            sent: 0,
        };
        far.until(|far| far.relay.is_calm()).await;
        // A seed without a database is a lost table, which its owner has to confirm.
        let handle = far.handle();
        far.during(async move { handle.clear_devices().await }).await.unwrap();
        loop {
            let handle = far.handle();
            match far.during(async move { handle.pairing_start(None).await }).await {
                Ok(_) => break,
                // The daemon has not read yet that it is let in; then it asks who is there.
                Err(ApiError::RelayUnreachable(_)) => far.turn().await,
                Err(error) => panic!("{error}"),
            }
        }
        let (key, x25519, platform) = (far.phone.key, far.phone.x25519, far.phone.platform);
        assert!(far.relay.pair(key, x25519, platform));
        far.phone.awake = true;
        far.phone.say(
            r#"{"v":1,"kind":"hello","id":"h","ts":TS,"device_info":{"platform":"android","app_version":"skald-phone/0.1"}}"#
                .replace("TS", &unix_ms().to_string())
                .as_str(),
            false,
        );
        far.until(|far| far.relay.is_online(&far.phone.key) && far.relay.unacknowledged() == 0 && far.sent > 0).await;
        far
    }

    fn handle(&self) -> HubHandle {
        self.daemon.as_ref().unwrap().handle()
    }

    async fn stop(&mut self) {
        let daemon = self.daemon.take().unwrap();
        self.during(daemon.shutdown()).await.unwrap();
    }

    async fn restart(&mut self) {
        self.stop().await;
        self.socket = None;
        self.relay.hang_up();
        self.daemon = Some(start(&self.folder, &self.listener, &self.full));
        self.until(|far| far.relay.is_calm()).await;
    }

    /// Moves everything until this holds.
    async fn until(&mut self, holds: impl Fn(&Self) -> bool) {
        let moving = async {
            while !holds(self) {
                self.turn().await;
            }
        };
        tokio::time::timeout(PATIENCE, moving).await.expect("it comes about");
    }

    /// Moves everything while something else is waited for.
    async fn during<T: Send + 'static>(&mut self, work: impl Future<Output = T> + Send + 'static) -> T {
        let mut task = tokio::spawn(work);
        let moving = async {
            loop {
                tokio::select! {
                    done = &mut task => return done.unwrap(),
                    () = self.turn() => {}
                }
            }
        };
        tokio::time::timeout(PATIENCE, moving).await.expect("it is answered")
    }

    /// Waits for one thing that happens on the wire, and what follows from it. Cancel safe.
    async fn turn(&mut self) {
        self.flow().await;
        let Some(socket) = &mut self.socket else {
            let (stream, _) = self.listener.accept().await.unwrap();
            self.socket = tokio_tungstenite::accept_async(stream).await.ok();
            self.relay.dial();
            return;
        };
        match socket.next().await {
            Some(Ok(Message::Binary(bytes))) => self.relay.read(bytes),
            Some(Ok(Message::Text(_))) => {
                let _ = socket.send(Message::text("pong")).await;
            }
            Some(Ok(_)) => {}
            None | Some(Err(_)) => {
                self.socket = None;
                self.relay.hang_up();
            }
        }
        self.flow().await;
    }

    async fn flow(&mut self) {
        if self.phone.awake && self.relay.come(self.phone.key) {
            while let Some(letter) = self.phone.outbox.pop_front() {
                self.relay.hear(self.phone.key, letter.sealed, letter.live);
            }
            while let Some(sealed) = self.relay.next_for(&self.phone.key) {
                match self.phone.read(&sealed) {
                    News::Ack { outcome, .. } => self.acks.push(outcome),
                    News::Inbox => {}
                    News::Other => self.notes += 1,
                }
            }
        }
        self.sent += self.relay.take_seen().iter().filter(|seen| matches!(seen, Seen::Sent { .. })).count() as u64;
        while let Some(event) = self.relay.next_event() {
            if let (LinkEvent::Binary(bytes), Some(socket)) = (event, &mut self.socket) {
                // A socket that the daemon has closed is noticed by the next read.
                let _ = socket.send(Message::Binary(bytes)).await;
            }
        }
    }

    async fn host(&mut self) -> HostSession {
        let handle = self.handle();
        let hello = HostHello { name: "skald".into(), version: "1".into(), label: None, linger_secs: None };
        self.during(async move { handle.open_host(hello).await }).await.unwrap()
    }

    async fn request(&mut self, host: &HostSession, n: u64) -> Result<(), ApiError> {
        let (handle, id) = (self.handle(), host.id);
        self.during(async move { handle.inbox_requested(id, Kind::Approval, raw(&approval(n))).await }).await
    }

    fn approve(&mut self) {
        let (id, ts) = (self.phone.inbox[0].id.clone(), unix_ms());
        let json = format!(
            r#"{{"v":1,"kind":"approval_response","id":"tap","ts":{ts},"request_id":"{id}","decision":"approved"}}"#
        );
        self.phone.say(&json, false);
    }
}

fn unix_ms() -> u64 {
    u64::try_from(std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap()
}

#[tokio::test]
async fn an_answer_that_the_disk_refuses_comes_again_and_counts_once() {
    let mut far = Far::new().await;
    let mut host = far.host().await;
    far.request(&host, 1).await.unwrap();
    far.until(|far| !far.phone.inbox.is_empty()).await;
    far.full.set(true);
    far.approve();
    // Also when it comes for the second time.
    far.until(|far| far.full.refused() >= 2).await;
    assert_eq!(far.relay.unacknowledged(), 1, "the relay keeps it");
    assert!(host.calls.try_recv().is_err() && far.acks.is_empty());
    far.full.set(false);
    far.until(|far| !far.acks.is_empty()).await;
    assert_eq!(far.acks, ["accepted"]);
    let call = host.calls.try_recv().unwrap();
    assert!(matches!(call.request, HostRequest::Resolve(_)));
    far.handle().call_done(host.id, call.id, CallOutcome::Resolved(true)).await.unwrap();
    far.until(|far| far.relay.unacknowledged() == 0 && far.phone.inbox.is_empty()).await;
    assert!(host.calls.try_recv().is_err(), "once");
    far.stop().await;
}

#[tokio::test]
async fn bytes_whose_counters_the_disk_refuses_do_not_leave() {
    let mut far = Far::new().await;
    // After a start no counters are reserved yet.
    far.restart().await;
    let (sent, notes) = (far.sent, far.notes);
    far.full.set(true);
    let handle = far.handle();
    far.during(async move { handle.notify("t".into(), "b".into()).await }).await.unwrap();
    far.until(|far| far.full.refused() > 0 && far.socket.is_none()).await;
    assert_eq!(far.sent, sent, "nothing left");
    far.full.set(false);
    // The snapshot comes last: after a write that was refused every phone is owed one.
    far.until(|far| far.sent > sent + 1).await;
    assert_eq!(far.notes, notes + 1, "it arrives, once");
    far.stop().await;
}

#[tokio::test]
async fn a_host_is_told_what_the_disk_refuses_and_loses_nothing() {
    let mut far = Far::new().await;
    let host = far.host().await;
    far.request(&host, 1).await.unwrap();
    far.full.set(true);
    assert!(matches!(far.request(&host, 2).await, Err(ApiError::Storage(_))));
    let handle = far.handle();
    let status = handle.status().await.unwrap();
    assert_eq!(status.pending.approvals, 1, "what was there is there");
    assert!(status.last_error.unwrap().contains("could not be stored"));
    far.full.set(false);
    far.request(&host, 2).await.unwrap();
    far.until(|far| far.phone.inbox.len() == 2).await;
    far.stop().await;
}
