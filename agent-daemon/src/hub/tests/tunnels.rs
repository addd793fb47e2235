use std::collections::BTreeMap;

use skald_common::crypto::{PipeEnd, PipeSecret};
use skald_common::limits::PIPE_OPEN_MS;
use skald_common::pipe::signal::{Handshake, Invite};

use super::*;
use crate::hub::tunnels::MAX_TUNNELS;
use crate::hub::{Passed, TunnelNews};

const PAGE: &str = "http-local-proxy";

fn pipe(n: u8) -> ConnectionId {
    ConnectionId::new([n; 32])
}

impl World {
    /// With two phones and a web page.
    fn with_page() -> Self {
        let mut world = Self::new();
        world.phone(1);
        world.phone(2);
        world.set_port(Some(8080));
        world
    }

    fn set_port(&mut self, web_port: Option<u16>) {
        self.settings.web_port = web_port;
        let settings = self.settings.clone();
        self.ask(|reply| Command::Settings(settings, reply)).unwrap();
    }

    /// Phone `n` asks for a pipe; its secret. False: that could not be stored.
    fn invite(&mut self, n: u8, connection: ConnectionId, stream_type: &str) -> bool {
        let invite = Signal::Invite(Invite {
            connection,
            handshake: Handshake::X25519(PipeSecret::new([n; 32]).public()),
            stream_type: stream_type.to_owned(),
            compress: vec!["none".to_owned()],
            headers: BTreeMap::from([("host".to_owned(), "10.0.0.1:22".to_owned())]),
        });
        self.counter += 1;
        let (from, counter) = (key(n), self.counter);
        self.relay(RelayInput::Signal { from, counter, signal: Zeroizing::new(invite.encode()) })
    }

    fn news(&mut self, news: TunnelNews) {
        self.input(Input::Tunnel(news));
    }

    /// An open tunnel.
    fn tunnel(&mut self, n: u8, connection: ConnectionId) {
        self.invite(n, connection, PAGE);
        self.news(TunnelNews::Dialled(connection));
        self.signals.clear();
        self.tunnels.clear();
    }

    fn take_tunnels(&mut self) -> Vec<String> {
        let words = |order| match order {
            TunnelOrder::Dial { connection, port } => format!("dial {} {port}", connection.as_bytes()[0]),
            TunnelOrder::Open { agreed, .. } => format!("open {}", agreed.connection.as_bytes()[0]),
            TunnelOrder::End(connection) => format!("end {}", connection.as_bytes()[0]),
        };
        self.tunnels.drain(..).map(words).collect()
    }

    /// What devices were told, and which.
    fn take_signals(&mut self) -> Vec<(Ed25519Public, String)> {
        let words = |signal| match signal {
            Signal::Invite(_) => "invite".to_owned(),
            Signal::Accept(_) => "accept".to_owned(),
            Signal::Reject(reject) => reject.reason,
        };
        self.signals.drain(..).map(|(to, _, signal)| (to, words(signal))).collect()
    }

    fn open(&mut self) -> usize {
        self.status().proxy.tunnels.iter().map(|tunnel| tunnel.open).sum()
    }
}

#[test]
fn a_pipe_is_accepted_once_the_local_server_stands_and_then_joined() {
    let mut world = World::with_page();
    assert!(world.invite(1, pipe(7), PAGE));
    assert_eq!(world.take_tunnels(), ["dial 7 8080"]);
    assert_eq!((world.take_signals(), world.open()), (vec![], 0), "nothing is promised yet");
    world.news(TunnelNews::Dialled(pipe(7)));
    let Some(TunnelOrder::Open { url, agreed }) = world.tunnels.pop() else { panic!("not joined") };
    assert_eq!((url.as_str(), agreed.partner), ("ws://relay.test/ns/x/v1/ws", key(1)));
    let Some((to, connection, Signal::Accept(accept))) = world.signals.pop() else { panic!("not accepted") };
    assert_eq!((to, connection), (key(1), pipe(7)));
    let Handshake::X25519(theirs) = accept.handshake else { panic!() };
    let mut phone = PipeSecret::new([1; 32]).agree(&theirs, pipe(7), PipeEnd::Initiator).unwrap();
    let mut daemon = agreed.cipher;
    assert_eq!(phone.open(&daemon.seal(b"both have one key").unwrap()).unwrap(), b"both have one key");
    assert_eq!(world.open(), 1);
    world.news(TunnelNews::Ended(pipe(7)));
    assert_eq!(world.open(), 0);
}

#[test]
fn what_gets_no_pipe_is_told_why_and_other_kinds_are_left_to_others() {
    let mut world = World::with_page();
    world.invite(1, pipe(1), PAGE);
    world.news(TunnelNews::Refused(pipe(1)));
    assert_eq!(world.take_signals(), [(key(1), "local server unreachable".to_owned())]);
    world.invite(1, pipe(2), "files");
    assert_eq!(world.take_signals(), []);
    world.set_port(None);
    world.invite(1, pipe(3), PAGE);
    assert_eq!(world.take_signals(), [(key(1), "proxy disabled".to_owned())]);
    assert_eq!(world.take_tunnels(), ["dial 1 8080"]);
    assert!(world.hub.deadline(world.now).is_none(), "nothing is left to wait for");
}

#[test]
fn a_fresh_daemon_has_no_proxy() {
    let mut world = World::new();
    world.phone(1);
    assert_eq!(world.status().proxy.web_port, None);
    world.invite(1, pipe(1), PAGE);
    assert_eq!(world.take_signals(), [(key(1), "proxy disabled".to_owned())]);
}

#[test]
fn only_an_authorized_device_gets_a_pipe_and_each_signal_counts_once() {
    let mut world = World::with_page();
    world.pair(3, Platform::Android);
    assert!(world.invite(3, pipe(1), PAGE));
    assert!(world.invite(4, pipe(2), PAGE));
    assert_eq!(world.take_tunnels(), Vec::<String>::new());
    world.invite(1, pipe(3), PAGE);
    world.counter -= 1;
    world.invite(1, pipe(4), PAGE);
    assert_eq!(world.take_tunnels(), ["dial 3 8080"], "the second is a replay");
    assert_eq!(world.take_signals(), []);
}

#[test]
fn a_signals_counter_is_on_disk_before_anything_comes_of_it() {
    let mut world = World::with_page();
    world.full = true;
    assert!(!world.invite(1, pipe(1), PAGE));
    assert_eq!(world.take_tunnels(), Vec::<String>::new());
    world.full = false;
    world.advance(PIPE_OPEN_MS);
    assert_eq!(world.open(), 0);
    assert!(world.invite(1, pipe(2), PAGE));
    let row = world.store.load().unwrap().devices.into_iter().find(|row| row.ed25519 == key(1)).unwrap();
    assert_eq!(row.received, world.counter);
    assert_eq!(world.take_tunnels(), ["dial 2 8080"]);
}

#[test]
fn revoking_a_device_ends_its_tunnels_at_once_and_no_others() {
    let mut world = World::with_page();
    world.tunnel(1, pipe(1));
    world.tunnel(2, pipe(2));
    world.invite(1, pipe(3), PAGE);
    world.take_tunnels();
    // The relay has not taken the new list, and need not.
    let mut reply = world.begin(|reply| Command::DevicesRevoke(key(1).to_hex(), reply));
    assert!(reply.try_recv().is_err());
    assert_eq!(world.take_tunnels(), ["end 1", "end 3"]);
    assert_eq!(world.open(), 1);
    world.news(TunnelNews::Dialled(pipe(3)));
    assert_eq!((world.take_tunnels(), world.take_signals()), (vec![], vec![]), "it is too late for that");
    world.disconnect();
    world.connect();
    assert_eq!(world.take_tunnels(), Vec::<String>::new(), "the control connection is another socket");
    world.phone_says(2, "logout", "");
    assert_eq!(world.take_tunnels(), ["end 2"]);
}

#[test]
fn a_revocation_that_could_not_be_stored_ends_the_tunnels_all_the_same() {
    let mut world = World::with_page();
    world.tunnel(1, pipe(1));
    world.full = true;
    world.tell(|reply| Command::DevicesRevoke(key(1).to_hex(), reply));
    assert_eq!(world.take_tunnels(), ["end 1"]);
    assert_eq!(world.open(), 0);
}

#[test]
fn switching_the_proxy_off_or_over_ends_what_is_open_and_declines_what_is_not() {
    for port in [None, Some(8081)] {
        let mut world = World::with_page();
        world.tunnel(1, pipe(1));
        world.invite(2, pipe(2), PAGE);
        world.take_tunnels();
        world.set_port(port);
        assert_eq!(world.take_tunnels(), ["end 1", "end 2"]);
        assert_eq!(world.take_signals(), [(key(2), "proxy disabled".to_owned())]);
        assert_eq!((world.open(), world.status().proxy.web_port), (0, port));
        world.set_port(Some(8080));
        world.invite(1, pipe(3), PAGE);
        assert_eq!(world.take_tunnels(), ["dial 3 8080"]);
    }
}

#[test]
fn authorized_devices_are_told_when_the_page_can_be_reached_and_when_not() {
    let mut world = World::with_page();
    let told = |world: &mut World| -> Vec<_> {
        let sent = world.accept_all().into_iter().filter(|sent| sent.json["kind"] == "notification");
        sent.map(|sent| (sent.to, sent.json["body"].as_str().unwrap().to_owned())).collect()
    };
    let on = "Authorized devices can now reach the web page on port 8080 of the computer.";
    assert_eq!(told(&mut world), [(key(1), on.to_owned()), (key(2), on.to_owned())]);
    world.set_port(None);
    assert!(told(&mut world).iter().all(|(_, words)| words.starts_with("Devices can no longer")));
    world.set_port(None);
    assert_eq!(told(&mut world), []);
}

#[test]
fn other_settings_leave_tunnels_alone() {
    let mut world = World::with_page();
    world.tunnel(1, pipe(1));
    world.settings.notify_delay_secs = 7;
    world.set_port(Some(8080));
    assert_eq!((world.take_tunnels(), world.open()), (vec![], 1));
}

#[test]
fn there_are_32_tunnels_at_most() {
    let mut world = World::with_page();
    for n in 0..=32 {
        world.invite(1 + n % 2, pipe(n), PAGE);
        if n.is_multiple_of(3) {
            world.news(TunnelNews::Dialled(pipe(n)));
        }
    }
    assert_eq!(MAX_TUNNELS, 32);
    let refused: Vec<_> = world.take_signals().into_iter().filter(|(_, words)| words != "accept").collect();
    assert_eq!(refused, [(key(1), "too many tunnels".to_owned())]);
    world.news(TunnelNews::Ended(pipe(0)));
    world.take_tunnels();
    world.invite(1, pipe(99), PAGE);
    assert_eq!(world.take_tunnels(), ["dial 99 8080"]);
}

#[test]
fn a_server_that_says_nothing_and_a_device_that_is_gone_cost_no_tunnel() {
    let mut world = World::with_page();
    world.invite(1, pipe(1), PAGE);
    world.tunnel(1, pipe(2));
    world.relay(RelayInput::SignalFailed(pipe(2)));
    assert_eq!(world.take_tunnels(), ["end 2"]);
    world.advance(PIPE_OPEN_MS);
    assert_eq!(world.take_tunnels(), ["end 1"]);
    assert!(world.hub.deadline(world.now).is_none());
}

#[test]
fn status_counts_open_tunnels_and_their_bytes_by_device() {
    let mut world = World::with_page();
    for (n, connection) in [(1, 1), (1, 2), (2, 3)] {
        world.tunnel(n, pipe(connection));
        world.advance(1_000);
    }
    world.invite(2, pipe(4), PAGE);
    let began = world.now.unix - 3_000;
    let passed = Passed::from([(pipe(1), (10, 1)), (pipe(2), (20, 2)), (pipe(3), (30, 3)), (pipe(9), (90, 9))]);
    let (sender, mut receiver) = oneshot::channel();
    world.input(Input::Status(passed, sender));
    let proxy = receiver.try_recv().unwrap().unwrap().proxy;
    assert_eq!(proxy.web_port, Some(8080));
    let rows: Vec<_> = proxy
        .tunnels
        .iter()
        .map(|tunnel| (tunnel.device, tunnel.open, tunnel.since, tunnel.to_device, tunnel.from_device))
        .collect();
    assert_eq!(rows, [(key(1), 2, began, 30, 3), (key(2), 1, began + 2_000, 30, 3)]);
    assert_eq!(proxy.tunnels[0].name, format!("Android {}", key(1).short()));
}
