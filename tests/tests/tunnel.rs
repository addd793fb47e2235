//! What a web page does, through `skald-phone proxy`, the relay and the daemon, to a real web server: and what both ends
//! learn when any of them goes away in the middle of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{SinkExt, StreamExt};
use hyper::body::Incoming;
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use skald_tests::{
    CONNECTION, Http, PIECES, Pattern, Proxy, Relay, Site, Stream, Tunnel, World, checksum, full, next_piece, piece,
    random, sum_of, text, within,
};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

/// So many connections at once, which is also as many pipes as a namespace has.
const AT_ONCE: u64 = 32;
/// Bytes that go each way at once.
const LOAD: u64 = 256 * 1024 * 1024;

fn number(response: &Response<Incoming>) -> u64 {
    let number = response.headers().get(CONNECTION).and_then(|number| number.to_str().ok()?.parse().ok());
    number.expect("the site counts connections")
}

async fn stays_alive(address: SocketAddr) {
    let mut http = Http::connect(address).await;
    let mut numbers = Vec::new();
    for _ in 0..20 {
        let response = http.get("/").await.expect("an answer");
        numbers.push(number(&response));
        assert_eq!(text(response).await.expect("whole"), "hello");
    }
    numbers.dedup();
    assert_eq!(numbers.len(), 1, "one connection of the site for one of the client: {numbers:?}");
}

async fn many_at_once(address: SocketAddr, site: &Site) {
    site.until("the connections of before to end", |visits| visits.open == 0).await;
    let requests = site.visits().requests;
    let held = (0..AT_ONCE).map(|_| async {
        let mut http = Http::connect(address).await;
        let response = http.get("/slow").await.expect("an answer");
        (number(&response), text(response).await.expect("whole"))
    });
    let together = async {
        site.until("all connections at once", |visits| visits.requests == requests + AT_ONCE).await;
        assert_eq!(site.visits().open, AT_ONCE);
        site.release();
    };
    let (answers, ()) = tokio::join!(join_all(held), together);
    assert!(answers.iter().all(|(_, text)| text == "at last"));
    let mut numbers: Vec<u64> = answers.into_iter().map(|(number, _)| number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len() as u64, AT_ONCE);
}

async fn in_pieces(address: SocketAddr) {
    let mut http = Http::connect(address).await;
    let response = http.get("/chunks").await.expect("an answer");
    assert!(response.headers().get("content-length").is_none(), "of no known length");
    let expected: String = (0..PIECES).map(piece).collect();
    assert_eq!(text(response).await.expect("whole"), expected);
    // The connection is at the end of the answer, not in the middle of it.
    assert_eq!(text(http.get("/").await.expect("an answer")).await.expect("whole"), "hello");
}

/// A stream of events that is open: its first line has come.
struct Events {
    response: Response<Incoming>,
    http: Http,
}

impl Events {
    async fn open(address: SocketAddr) -> Self {
        let mut http = Http::connect(address).await;
        let mut response = http.get("/events").await.expect("an answer");
        assert_eq!(next_piece(&mut response).await.expect("a sound stream").as_deref(), Some(&b": listening\n\n"[..]));
        Self { response, http }
    }

    /// Each event has arrived before the next one is sent.
    async fn arrive(&mut self, site: &Site) {
        for n in 0..10 {
            site.event(&format!("event {n}"));
            let piece = next_piece(&mut self.response).await.expect("a sound stream");
            assert_eq!(piece, Some(Bytes::from(format!("data: event {n}\n\n"))));
        }
    }

    /// Waits for its end, before which nothing comes.
    async fn end(mut self) {
        if let Ok(Some(more)) = next_piece(&mut self.response).await {
            panic!("this came through: {more:?}");
        }
        self.http.ended().await;
    }
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

async fn socket(address: SocketAddr) -> Socket {
    let url = format!("ws://{address}/ws");
    within("an upgrade", Box::pin(connect_async(url))).await.expect("the site upgrades").0
}

async fn echoes(socket: &mut Socket) {
    let said = Message::binary(random::<1000>().to_vec());
    socket.send(said.clone()).await.expect("an open socket");
    let heard = within("an echo", socket.next()).await.expect("an open socket").expect("a sound one");
    assert_eq!(heard, said);
}

/// So many bytes down and up, at once, over two connections that are there already.
async fn down_and_up(address: SocketAddr, site: &Site, total: u64) {
    let (mut down, mut up) = (Http::connect(address).await, Http::connect(address).await);
    for http in [&mut down, &mut up] {
        assert_eq!(text(http.get("/").await.expect("an answer")).await.expect("whole"), "hello");
    }
    let pattern = Pattern::new();
    let loading = async {
        let response = down.get(&format!("/down/{total}")).await.expect("an answer");
        sum_of(response.into_body()).await.expect("whole")
    };
    let storing = async {
        let response = up.post("/up", pattern.body(total)).await.expect("an answer");
        text(response).await.expect("whole")
    };
    let (loaded, stored) = tokio::join!(loading, storing);
    assert_eq!(loaded, site.pattern().checksum(total), "down");
    assert_eq!(stored, pattern.checksum(total), "up");
}

/// Whether a new connection gets an answer of the site.
async fn answers(address: SocketAddr) -> bool {
    let mut http = Http::connect(address).await;
    let Ok(response) = http.get("/").await else { return false };
    text(response).await.is_ok_and(|text| text == "hello")
}

/// Waits until the daemon says that so many of its tunnels are open.
async fn tunnels(world: &World, open: u64) {
    let count = |status: &Value| {
        let devices = status["proxy"]["tunnels"].as_array().expect("a list");
        devices.iter().map(|device| device["open"].as_u64().expect("a number")).sum::<u64>()
    };
    // No event tells of them.
    let search = async {
        while count(&world.control.status().await) != open {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within("the daemon's tunnels", search).await;
}

#[tokio::test]
async fn without_a_tunnel_the_site_and_the_client_of_these_tests_do_all_of_this() {
    let site = Site::open().await;
    let address = site.address();
    stays_alive(address).await;
    many_at_once(address, &site).await;
    in_pieces(address).await;
    Events::open(address).await.arrive(&site).await;
    echoes(&mut socket(address).await).await;
    down_and_up(address, &site, 1_000_000).await;
    assert_eq!(checksum([]), "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=", "SHA-256 of nothing");
    assert_ne!(site.pattern().checksum(1_000_000), Pattern::new().checksum(1_000_000));
    let mut http = Http::connect(address).await;
    assert_eq!(
        text(http.post("/up", full("abc")).await.expect("an answer")).await.expect("whole"),
        checksum([Bytes::from("abc")])
    );
}

#[tokio::test]
async fn keep_alive_chunks_events_and_thirty_two_connections_at_once_are_as_without_a_tunnel() {
    let tunnel = Tunnel::new().await;
    let address = tunnel.address();
    stays_alive(address).await;
    in_pieces(address).await;
    Events::open(address).await.arrive(&tunnel.site).await;
    echoes(&mut socket(address).await).await;
    many_at_once(address, &tunnel.site).await;
    tunnel.site.until("no connection to be left", |visits| visits.open == 0).await;
}

#[tokio::test]
async fn a_download_and_an_upload_of_256_mib_at_once_arrive_bit_for_bit() {
    let tunnel = Tunnel::new().await;
    down_and_up(tunnel.address(), &tunnel.site, LOAD).await;
}

#[tokio::test]
async fn an_upgraded_connection_stays_as_long_as_it_talks_and_a_silent_one_is_closed() {
    if !Relay::controllable() {
        return;
    }
    let relay = Relay::own(&["RELAY_PIPE_IDLE_TIMEOUT_SECS=3"]).await;
    let tunnel = Tunnel::on(Arc::new(relay)).await;
    let mut talking = socket(tunnel.address()).await;
    let mut silent = socket(tunnel.address()).await;
    echoes(&mut silent).await;
    let mut pause = tokio::time::interval(Duration::from_millis(300));
    // The limit is over for the silent one, which was opened last: it is over for the other one too.
    loop {
        tokio::select! {
            end = silent.next() => {
                assert!(!matches!(end, Some(Ok(Message::Binary(_)))), "{end:?}");
                break;
            }
            _ = pause.tick() => echoes(&mut talking).await,
        }
    }
    echoes(&mut talking).await;
    tunnel.site.until("the silent connection to end", |visits| visits.open == 1).await;
}

#[tokio::test]
async fn a_server_that_is_down_and_a_proxy_that_is_off_are_told_apart_by_the_phone() {
    // A port that is taken and on which nobody listens.
    let taken = TcpSocket::new_v4().expect("a socket");
    taken.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let port = taken.local_addr().expect("it is bound").port();
    let down = World::with(&Tunnel::options(port)).await;
    for (mut world, why) in [(down, "local server unreachable"), (World::new().await, "proxy disabled")] {
        let phone = world.phone("Ann").await;
        let proxy = Proxy::start(&phone).await;
        let mut http = Http::connect(proxy.address()).await;
        let response = http.get("/").await.expect("the phone answers itself");
        assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
        let page = text(response).await.expect("whole");
        assert!(page.contains(why), "{page}");
        proxy.process.wrote(Stream::Out, why).await;
        assert!(!proxy.process.has_ended(), "the next try may be luckier");
    }
}

#[tokio::test]
async fn a_revoked_devices_connections_end_at_both_ends_and_nothing_more_passes() {
    let tunnel = Tunnel::new().await;
    let mut events = Events::open(tunnel.address()).await;
    events.arrive(&tunnel.site).await;
    let device = tunnel.world.control.devices().await[0]["pubkey"].clone();
    tunnel.world.control.call("devices.revoke", json!({"pubkey": device})).await;
    events.end().await;
    tunnel.site.until("the site to be told", |visits| visits.open == 0).await;
    tunnels(&tunnel.world, 0).await;
    let phone = tunnel.proxy.process.finished().await;
    assert!(!phone.status.success() && phone.says("revoked"), "the phone says why: {phone}");
    let again = tunnel.phone.run(&["proxy", "--listen", "127.0.0.1:0"]).await;
    assert!(!again.status.success() && again.says("revoked"), "{again}");
    assert_eq!(tunnel.site.visits().opened, 1, "nothing more has come by");
}

#[tokio::test]
async fn stopping_or_killing_the_daemon_ends_its_connections_at_once_and_a_new_start_has_new_ones() {
    let mut tunnel = Tunnel::new().await;
    for kill in [false, true] {
        let mut events = Events::open(tunnel.address()).await;
        events.arrive(&tunnel.site).await;
        if kill {
            tunnel.world.daemon.kill().await;
        } else {
            tunnel.world.daemon.stop().await;
        }
        events.end().await;
        tunnel.site.until("the site to be told", |visits| visits.open == 0).await;
        assert!(!answers(tunnel.address()).await, "nobody is at home");
        tunnel.world.daemon.start_again().await;
        tunnel.world.reconnect().await;
        assert!(answers(tunnel.address()).await);
    }
}

#[tokio::test]
async fn a_relay_that_dies_ends_every_connection_and_a_new_one_has_new_ones() {
    if !Relay::controllable() {
        return;
    }
    let Tunnel { proxy, site, mut world, phone: _phone } = Tunnel::on(Arc::new(Relay::own(&[]).await)).await;
    let mut events = Events::open(proxy.address()).await;
    events.arrive(&site).await;
    world.relay.kill().await;
    events.end().await;
    site.until("the site to be told", |visits| visits.open == 0).await;
    Arc::get_mut(&mut world.relay).expect("it is ours alone").start_again().await;
    world.control.connected().await;
    // The phone dials anew in its own time.
    within("the phone to come back", async { while !answers(proxy.address()).await {} }).await;
}

#[tokio::test]
async fn a_phone_that_dies_ends_its_connections_at_the_site() {
    let mut tunnel = Tunnel::new().await;
    let mut events = Events::open(tunnel.address()).await;
    events.arrive(&tunnel.site).await;
    tunnels(&tunnel.world, 1).await;
    tunnel.proxy.process.kill();
    tunnel.site.until("the site to be told", |visits| visits.open == 0).await;
    tunnels(&tunnel.world, 0).await;
    events.end().await;
    tunnel.proxy = Proxy::start(&tunnel.phone).await;
    assert!(answers(tunnel.address()).await, "it can be started again");
}
