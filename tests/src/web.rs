//! A web server of the tests' own: what a page at home may ask of a tunnel, and a record of who came by.
//!
//! | path | |
//! |---|---|
//! | `/` | a greeting, with the number of the connection in [`CONNECTION`] |
//! | `/chunks` | [`PIECES`] pieces without a length given |
//! | `/events` | server-sent events, one for each [`Site::event`] and each request of `/ring` |
//! | `/ws` | a WebSocket that sends back what it gets |
//! | `/slow` | answers when [`Site::release`] says so |
//! | `/down/N` | N bytes of the site's [`Pattern`] |
//! | `/up` | takes any number of bytes; answers with their [`checksum`] |
//! | `/page` | a page of 30 resources, events and a WebSocket, whose outcome is [`Site::report`] |

use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CONNECTION as CONNECTION_OPTION, CONTENT_LENGTH, CONTENT_TYPE, SEC_WEBSOCKET_ACCEPT, UPGRADE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::sync::{broadcast, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::{random, within};

/// A body of a request or response.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The header with the number of the server's connection, counted from 1.
pub const CONNECTION: &str = "x-connection";
/// How many pieces `/chunks` has.
pub const PIECES: usize = 200;
/// How much a stream of the pattern sends at a time.
const CHUNK: usize = 64 * 1024;

/// Bytes without end that nobody keeps: chunks of one random block, each from a place that its number names.
#[derive(Debug, Clone)]
pub struct Pattern {
    block: Bytes,
}

impl Pattern {
    /// Another one each time.
    pub fn new() -> Self {
        let seed = random::<32>();
        let words =
            (0..2 * Self::PERIOD as u64 / 32).map(|n| Sha256::new().chain_update(seed).chain_update(n.to_le_bytes()));
        Self { block: words.flat_map(|word| <[u8; 32]>::from(word.finalize())).collect() }
    }

    const PERIOD: usize = 1024 * 1024;

    /// Its first bytes, in chunks.
    pub fn chunks(&self, total: u64) -> impl Iterator<Item = Bytes> + Send + use<> {
        let block = self.block.clone();
        (0..total.div_ceil(CHUNK as u64)).map(move |n| {
            // A prime, so that the chunks of one period are all different.
            let start = usize::try_from(n * 7919 % Self::PERIOD as u64).expect("small");
            let length = usize::try_from(total - n * CHUNK as u64).map_or(CHUNK, |left| left.min(CHUNK));
            block.slice(start..start + length)
        })
    }

    /// The checksum of its first bytes.
    pub fn checksum(&self, total: u64) -> String {
        checksum(self.chunks(total))
    }

    /// Its first bytes as a body of no known length.
    pub fn body(&self, total: u64) -> Body {
        streamed(stream::iter(self.chunks(total)))
    }
}

impl Default for Pattern {
    fn default() -> Self {
        Self::new()
    }
}

/// SHA-256 of these bytes, in base64.
pub fn checksum(chunks: impl IntoIterator<Item = Bytes>) -> String {
    let sum = chunks.into_iter().fold(Sha256::new(), Sha256::chain_update);
    STANDARD.encode(sum.finalize())
}

/// A body that is known already.
pub fn full(content: impl Into<Bytes>) -> Body {
    Full::new(content.into()).boxed_unsync()
}

fn streamed(chunks: impl stream::Stream<Item = Bytes> + Send + 'static) -> Body {
    StreamBody::new(chunks.map(|chunk| Ok(Frame::data(chunk)))).boxed_unsync()
}

/// The server; it ends when dropped, and its connections with it.
#[derive(Debug)]
pub struct Site {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    pattern: Pattern,
    visits: watch::Sender<Visits>,
    events: broadcast::Sender<String>,
    released: watch::Sender<bool>,
    reports: watch::Sender<Option<String>>,
}

/// Who came by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Visits {
    /// Connections so far.
    pub opened: u64,
    /// Connections that have not ended.
    pub open: u64,
    /// Requests whose head has come.
    pub requests: u64,
}

impl Site {
    /// On a free port of 127.0.0.1.
    pub async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            pattern: Pattern::new(),
            visits: watch::Sender::default(),
            events: broadcast::Sender::new(16),
            released: watch::Sender::new(false),
            reports: watch::Sender::default(),
        });
        let task = tokio::spawn(serve(listener, Arc::clone(&shared)));
        Self { address, shared, task }
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What `/down` sends.
    pub fn pattern(&self) -> &Pattern {
        &self.shared.pattern
    }

    /// Who came by so far.
    pub fn visits(&self) -> Visits {
        *self.shared.visits.borrow()
    }

    /// Waits until its record fits.
    pub async fn until(&self, what: &str, fits: impl Fn(&Visits) -> bool) -> Visits {
        let mut visits = self.shared.visits.subscribe();
        let seen = within(what, visits.wait_for(|visits| fits(visits))).await;
        *seen.expect("the site lives")
    }

    /// Sends an event to everybody who listens.
    pub fn event(&self, text: &str) {
        self.shared.events.send(text.to_owned()).expect("somebody listens");
    }

    /// Lets `/slow` answer, now and later.
    pub fn release(&self) {
        self.shared.released.send_replace(true);
    }

    /// Waits for what the page says of itself.
    pub async fn report(&self) -> String {
        let mut reports = self.shared.reports.subscribe();
        let report = within("the page's report", reports.wait_for(Option::is_some)).await.expect("the site lives");
        report.clone().expect("just seen")
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One connection, for as long as anything of it is alive.
struct Visit {
    number: u64,
    shared: Arc<Shared>,
}

impl Visit {
    fn begin(shared: &Arc<Shared>) -> Arc<Self> {
        let mut number = 0;
        shared.visits.send_modify(|visits| {
            visits.opened += 1;
            visits.open += 1;
            number = visits.opened;
        });
        Arc::new(Self { number, shared: Arc::clone(shared) })
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.shared.visits.send_modify(|visits| visits.open -= 1);
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let visit = Visit::begin(&shared);
        connections.spawn(async move {
            let service = service_fn(|request| answer(request, Arc::clone(&visit)));
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // A connection that breaks off is the test's business.
            let _ = connection.with_upgrades().await;
        });
    }
}

async fn answer(request: Request<Incoming>, visit: Arc<Visit>) -> Result<Response<Body>, Infallible> {
    let shared = &visit.shared;
    shared.visits.send_modify(|visits| visits.requests += 1);
    let path = request.uri().path().to_owned();
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", &path));
    let mut response = match (request.method(), folder, name) {
        (_, "", "") => Response::new(full("hello")),
        (_, "", "chunks") => Response::new(pieces()),
        (_, "", "events") => typed("text/event-stream", events(shared)),
        (_, "", "ring") => {
            let heard = shared.events.send("rung".to_owned()).unwrap_or(0);
            Response::new(full(heard.to_string()))
        }
        (_, "", "ws") => upgrade(request, Arc::clone(&visit)),
        (_, "", "slow") => {
            let _ = shared.released.subscribe().wait_for(|released| *released).await;
            Response::new(full("at last"))
        }
        (_, "/down", total) => download(&shared.pattern, total.parse().unwrap_or(0)),
        (&Method::POST, "", "up") => Response::new(full(sum_of(request.into_body()).await.unwrap_or_default())),
        (_, "", "page") => typed("text/html", full(page())),
        (_, "/script", n) => {
            typed("text/javascript", full(format!("loaded.scripts += {}", usize::from(!n.is_empty()))))
        }
        (_, "/image", _) => typed("image/svg+xml", full(IMAGE)),
        (_, "/data", n) => typed("application/json", full(format!("{{\"name\": {n:?}}}"))),
        (&Method::POST, "", "report") => {
            let report =
                request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            shared.reports.send_replace(Some(String::from_utf8_lossy(&report).into_owned()));
            Response::new(full(""))
        }
        _ => {
            let mut response = Response::new(full("no such page"));
            *response.status_mut() = StatusCode::NOT_FOUND;
            response
        }
    };
    response.headers_mut().insert(CONNECTION, visit.number.into());
    Ok(response)
}

fn typed(kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, kind.try_into().expect("a media type"));
    response
}

/// One of the pieces of `/chunks`.
pub fn piece(n: usize) -> String {
    format!("piece {n}: {}\n", "x".repeat(n))
}

fn pieces() -> Body {
    streamed(stream::iter((0..PIECES).map(|n| piece(n).into())))
}

fn events(shared: &Shared) -> Body {
    let texts = stream::unfold(shared.events.subscribe(), |mut events| async {
        let text = events.recv().await.ok()?;
        Some((Bytes::from(format!("data: {text}\n\n")), events))
    });
    // A line at once, by which a listener knows that it listens.
    streamed(stream::once(async { Bytes::from_static(b": listening\n\n") }).chain(texts))
}

fn download(pattern: &Pattern, total: u64) -> Response<Body> {
    let mut response = Response::new(pattern.body(total));
    response.headers_mut().insert(CONTENT_LENGTH, total.into());
    response
}

/// The checksum of a body, which is never kept.
pub async fn sum_of(mut body: Incoming) -> Result<String, hyper::Error> {
    let mut sum = Sha256::new();
    while let Some(frame) = body.frame().await.transpose()? {
        if let Some(data) = frame.data_ref() {
            sum.update(data);
        }
    }
    Ok(STANDARD.encode(sum.finalize()))
}

fn upgrade(mut request: Request<Incoming>, visit: Arc<Visit>) -> Response<Body> {
    let mut response = Response::new(full(""));
    let Some(key) = request.headers().get("sec-websocket-key") else {
        *response.status_mut() = StatusCode::UPGRADE_REQUIRED;
        return response;
    };
    let accept = derive_accept_key(key.as_bytes()).try_into().expect("base64");
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgraded.await else { return };
        let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
        let (mut sink, mut source) = socket.split();
        while let Some(Ok(message)) = source.next().await {
            let echo = message.is_text() || message.is_binary();
            if echo && sink.send(message).await.is_err() {
                break;
            }
        }
        drop(visit);
    });
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(CONNECTION_OPTION, "upgrade".try_into().expect("ASCII"));
    response.headers_mut().insert(UPGRADE, "websocket".try_into().expect("ASCII"));
    response.headers_mut().insert(SEC_WEBSOCKET_ACCEPT, accept);
    response
}

const IMAGE: &str =
    r#"<svg xmlns="http://www.w3.org/2000/svg" width="8" height="8"><rect width="8" height="8"/></svg>"#;

/// What the page reports if everything of it worked.
pub const PAGE_WORKED: &str = r#"{"scripts":10,"images":10,"data":10,"event":"rung","echo":"said through a socket"}"#;

fn page() -> String {
    let mut page = String::from(
        "<!doctype html><title>page</title><body><script>const loaded = {scripts: 0, images: 0};</script>\n",
    );
    for n in 0..10 {
        let _ = writeln!(page, "<script src=/script/{n}></script><img src=/image/{n} onload='loaded.images += 1'>");
    }
    page + r#"<script>
const event = new Promise((done, fail) => {
  const events = new EventSource("/events");
  events.onopen = () => fetch("/ring");
  events.onmessage = (message) => { events.close(); done(message.data); };
});
const echo = new Promise((done, fail) => {
  const socket = new WebSocket(`ws://${location.host}/ws`);
  socket.onopen = () => socket.send("said through a socket");
  socket.onmessage = (message) => { socket.close(); done(message.data); };
  socket.onerror = () => fail(new Error("the socket failed"));
});
const data = Promise.all(Array.from({length: 10}, async (_, n) => {
  const {name} = await (await fetch(`/data/${n}`)).json();
  if (name !== `${n}`) throw new Error(`data ${n} is ${name}`);
}));
const complete = new Promise((done) => { onload = done; });
Promise.all([data, event, echo, complete])
  .then(async () => ({scripts: loaded.scripts, images: loaded.images, data: (await data).length, event: await event, echo: await echo}))
  .catch((error) => ({error: `${error}`}))
  .then((report) => fetch("/report", {method: "POST", body: JSON.stringify(report)}));
</script>"#
}
