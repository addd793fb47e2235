//! A relay that is not to be trusted changes, repeats, reorders and forges what it passes on: phone and daemon notice, end
//! the pipe, and nothing of it reaches whoever is behind them.

use std::collections::BTreeMap;
use std::sync::Arc;

use skald_common::crypto::{PipeEnd, PipeSecret};
use skald_common::ids::{ConnectionId, X25519Public};
use skald_common::pipe::signal::{Handshake, Invite, Signal};
use skald_tests::{From, Meddler, Proxy, RawPhone, Relay, Trick, Tunnel, World, random, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A connection through the tunnel: what the phone's side holds, and what came in at home.
struct Line {
    phone: TcpStream,
    home: TcpStream,
}

impl Line {
    async fn open(proxy: &Proxy, home: &TcpListener) -> Self {
        let mut phone = TcpStream::connect(proxy.address()).await.expect("the proxy listens");
        phone.write_all(b"first words").await.expect("the proxy reads");
        let (home, _) = within("the connection at home", home.accept()).await.expect("a connection");
        let mut line = Self { phone, home };
        within("the first words", line.home.read_exact(&mut [0; 11])).await.expect("they arrive");
        line.home.write_all(b"first answer").await.expect("the daemon reads");
        within("the first answer", line.phone.read_exact(&mut [0; 12])).await.expect("it arrives");
        line
    }
}

/// Whatever arrives until the connection ends, well or badly.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    let _ = within("the end of the connection", stream.read_to_end(&mut rest)).await;
    rest
}

#[tokio::test]
async fn whatever_is_done_to_a_frame_its_pipe_ends_at_both_ends_and_nothing_false_comes_out() {
    if !Relay::controllable() {
        return;
    }
    let relay = Arc::new(Relay::own(&[]).await);
    let home = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let (daemons, phones) = (Meddler::in_front_of(relay.url()).await, Meddler::in_front_of(relay.url()).await);
    let mut options = Tunnel::options(home.local_addr().expect("it is bound").port());
    options.settings = format!("{}qr_url = {:?}\n", options.settings, phones.url());
    let mut world = World::through(daemons.url(), relay, &options).await;
    let phone = world.phone("Ann").await;
    let proxy = Proxy::start(&phone).await;
    for trick in Trick::ALL {
        for to_the_daemon in [true, false] {
            let mut line = Line::open(&proxy, &home).await;
            // What reflects a frame sits before the one who gets it back.
            let meddler = if to_the_daemon && trick == Trick::Reflect { &daemons } else { &phones };
            let from = match (trick, to_the_daemon) {
                (Trick::Reflect, _) | (_, true) => From::Peer,
                (_, false) => From::Relay,
            };
            let mut meddled = meddler.meddle(from, trick);
            let (said, then) = (random::<500>(), random::<500>());
            // The words of the one whose frame it is.
            let phone_speaks = to_the_daemon != (trick == Trick::Reflect);
            let Line { phone: at_phone, home: at_home } = &mut line;
            let (speaker, listener) = if phone_speaks { (at_phone, at_home) } else { (at_home, at_phone) };
            speaker.write_all(&said).await.expect("an open connection");
            meddled.done().await;
            // Of no interest to most: their pipe has ended, or is about to.
            let _ = speaker.write_all(&then).await;
            let heard = rest(listener).await;
            assert!(rest(speaker).await.is_empty(), "{trick:?}, {to_the_daemon}: its own words, or forged ones");
            match trick {
                // The first copy is true; who gets back what it said has said it.
                Trick::Repeat | Trick::Reflect => {
                    let true_words = [&said[..], &then].concat();
                    assert!(true_words.starts_with(&heard), "{trick:?}, {to_the_daemon}");
                }
                _ => assert_eq!(heard, [0; 0], "{trick:?}, {to_the_daemon}"),
            }
        }
    }
    Line::open(&proxy, &home).await;
    assert!(!proxy.process.has_ended() && !world.daemon.process().has_ended());
}

/// Opens a pipe to the web page, as far as the daemon's consent; its key.
async fn negotiate(phone: &mut RawPhone, connection: ConnectionId, secret: &PipeSecret) -> X25519Public {
    let invite = Signal::Invite(Invite {
        connection,
        handshake: Handshake::X25519(secret.public()),
        stream_type: "http-local-proxy".to_owned(),
        compress: vec!["none".to_owned()],
        // Where to is nothing that a device decides.
        headers: BTreeMap::from(
            [("host", "192.0.2.1"), ("port", "1")].map(|(name, value)| (name.into(), value.into())),
        ),
    });
    phone.send_signal(&invite).await;
    match phone.signal().await {
        Signal::Accept(accept) if accept.connection == connection => match accept.handshake {
            Handshake::X25519(key) => key,
            Handshake::Unknown { suite } => panic!("the daemon wants {suite}"),
        },
        other => panic!("the daemon says {other:?}"),
    }
}

#[tokio::test]
async fn a_phone_with_the_wrong_key_or_at_the_wrong_end_is_not_heard_at_home() {
    let home = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let mut world = World::with(&Tunnel::options(home.local_addr().expect("it is bound").port())).await;
    let mut phone = world.raw_phone("Ann").await;
    for (right_key, end) in [(true, PipeEnd::Initiator), (false, PipeEnd::Initiator), (true, PipeEnd::Responder)] {
        let (connection, random_bytes) = (ConnectionId::new(random()), random());
        let key = negotiate(&mut phone, connection, &PipeSecret::new(random_bytes)).await;
        let (mut at_home, _) = within("the connection at home", home.accept()).await.expect("a connection");
        let secret = PipeSecret::new(if right_key { random_bytes } else { random() });
        let mut cipher = secret.agree(&key, connection, end).expect("a usable key");
        let mut pipe = phone.pipe(connection).await;
        pipe.send(cipher.seal(b"some words").expect("short")).await;
        if right_key && end == PipeEnd::Initiator {
            let mut heard = [0; 10];
            within("the words at home", at_home.read_exact(&mut heard)).await.expect("they arrive");
            assert_eq!(&heard, b"some words", "the harness seals rightly");
            at_home.write_all(b"an answer").await.expect("the daemon reads");
            assert_eq!(cipher.open(&pipe.bytes().await).expect("sealed for this end"), b"an answer");
        } else {
            pipe.closed().await;
            assert_eq!(rest(&mut at_home).await, [0; 0], "{right_key} {end:?}");
        }
    }
}
