//! `proxy`: the web page of the agent's machine, on an address of this one. Every TCP connection becomes one pipe.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use skald_common::limits::PIPE_MAX_PER_NAMESPACE;
use skald_common::pipe::PipeFailure;
use skald_link::splice::{Local, LocalEnd, SpliceEnd, Traffic, hear_out, splice};
use tokio::io::AsyncWriteExt as _;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::args::ProxyArgs;
use super::{CliError, Context, Exit, Interrupt, line};
use crate::client::{Manner, NotOpened, OpenedPipe, Phone, PhoneError, PhoneEvent, PipeId, Until};
use crate::model::account::Standing;
use crate::model::text;

const STREAM_TYPE: &str = "http-local-proxy";
/// Connections that have a pipe, or are getting one: what a relay lets through.
const MAX_TUNNELS: usize = PIPE_MAX_PER_NAMESPACE;
/// Connections that wait for one of the others to end.
const MAX_QUEUE: usize = 256;
/// And how long they do.
const QUEUE_PATIENCE: Duration = Duration::from_secs(30);
const TOO_MANY: &str = "too many connections at once";
/// The same trouble is not told again for so long.
const TOLD_FOR: Duration = Duration::from_mins(1);
/// After the system could not accept a connection: it may have no file left, and is asked again later.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum JsonEvent<'a> {
    Listening { url: &'a str },
    Refused { why: &'a str },
}

pub(super) async fn proxy(context: &Context, args: &ProxyArgs) -> Result<Exit, CliError> {
    if !args.listen.ip().is_loopback() && !args.allow_remote {
        return Err(CliError::Usage(format!(
            "{} can be reached from other machines, which would get the agent's web page; add --allow-remote if that is \
             meant, or listen on 127.0.0.1",
            args.listen.ip()
        )));
    }
    let until = context.global.timeout.map_or(Until::NEVER, Until::secs);
    let mut phone = Phone::open(context.store.clone(), Manner::Watch, until).await?;
    let mut interrupt = Interrupt::new()?;
    let cannot = |error| CliError::Usage(format!("cannot listen on {}: {error}; choose another --listen", args.listen));
    let listener = TcpListener::bind(args.listen).await.map_err(cannot)?;
    let url = format!("http://{}/", listener.local_addr().map_err(cannot)?);
    context.output.object(&JsonEvent::Listening { url: &url });
    context.output.text(&format!("Listening on {url}"));
    context.output.progress("Connecting; end with Ctrl-C.");
    phone.start();
    let mut proxy = Proxy::new(context);
    let ended = loop {
        let patience = proxy.patience();
        tokio::select! {
            event = until.within(phone.next_event()) => {
                let Some(event) = event else { break Ok(Exit::Done) };
                if proxy.event(event?) && phone.account().standing == Standing::Revoked {
                    break Err(PhoneError::Revoked.into());
                }
            }
            client = accept(&listener) => proxy.came(client),
            Some(ended) = proxy.tunnels.join_next() => proxy.ended(ended.ok().flatten()),
            () = tokio::time::sleep_until(patience.unwrap_or_else(Instant::now)), if patience.is_some() => {}
            () = interrupt.wait() => break Ok(Exit::Done),
        }
        proxy.open(&mut phone)?;
    };
    drop(proxy);
    phone.close().await;
    ended
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((client, _)) => return client,
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// The connections. Dropped, it ends them all.
struct Proxy<'a> {
    context: &'a Context,
    /// Wait for a tunnel to become free, and until when.
    queue: VecDeque<(TcpStream, Instant)>,
    /// Wait for their pipe.
    opening: HashMap<PipeId, TcpStream>,
    /// Have one. Each gives why it came to nothing, if it did.
    tunnels: JoinSet<Option<String>>,
    /// Refused ones are shown why.
    refusals: JoinSet<()>,
    told: Option<(String, Instant)>,
}

impl<'a> Proxy<'a> {
    fn new(context: &'a Context) -> Self {
        Self {
            context,
            queue: VecDeque::new(),
            opening: HashMap::new(),
            tunnels: JoinSet::new(),
            refusals: JoinSet::new(),
            told: None,
        }
    }

    fn came(&mut self, client: TcpStream) {
        // Without it bytes wait for one another, which only costs time.
        let _ = client.set_nodelay(true);
        if self.queue.len() < MAX_QUEUE {
            self.queue.push_back((client, Instant::now() + QUEUE_PATIENCE));
        } else {
            self.refuse(client, 503, TOO_MANY);
        }
    }

    /// Opens as many pipes as may be, and gives up on those that have waited long enough.
    fn open(&mut self, phone: &mut Phone) -> Result<(), PhoneError> {
        while self.opening.len() + self.tunnels.len() < MAX_TUNNELS {
            let Some((client, _)) = self.queue.pop_front() else { break };
            self.opening.insert(phone.open_pipe(STREAM_TYPE, BTreeMap::new())?, client);
        }
        let now = Instant::now();
        while let Some((client, _)) = self.queue.pop_front_if(|(_, until)| *until <= now) {
            self.refuse(client, 503, TOO_MANY);
        }
        while self.refusals.try_join_next().is_some() {}
        Ok(())
    }

    /// When the first of the queue has waited long enough.
    fn patience(&self) -> Option<Instant> {
        self.queue.front().map(|(_, until)| *until)
    }

    /// Whether it tells of a lost connection.
    fn event(&mut self, event: PhoneEvent) -> bool {
        line::connection(self.context.output, &event);
        match event {
            PhoneEvent::PipeOpened { id, pipe } => {
                if let Some(client) = self.opening.remove(&id) {
                    self.tunnels.spawn(tunnel(client, *pipe));
                }
            }
            PhoneEvent::PipeFailed { id, why } => {
                if let Some(client) = self.opening.remove(&id) {
                    let status = if matches!(why, NotOpened::Failed(PipeFailure::Rejected(_))) { 502 } else { 503 };
                    self.refuse(client, status, &with_remedy(&why));
                }
            }
            PhoneEvent::Disconnected { .. } => return true,
            _ => {}
        }
        false
    }

    fn ended(&mut self, why: Option<String>) {
        if let Some(why) = why {
            self.tell(&why);
        }
    }

    fn refuse(&mut self, client: TcpStream, status: u16, why: &str) {
        self.tell(why);
        if self.refusals.len() >= MAX_QUEUE {
            return;
        }
        let page = page(status, why);
        self.refusals.spawn(async move {
            let (mut read, mut write) = client.into_split();
            // Whoever has gone does not mind.
            if write.write_all(&page).await.is_ok() && write.shutdown().await.is_ok() {
                hear_out(&mut read).await;
            }
        });
    }

    /// Says why a connection came to nothing, once for all that come to it in the same way.
    fn tell(&mut self, why: &str) {
        let now = Instant::now();
        if self.told.as_ref().is_some_and(|(told, at)| told == why && now < *at + TOLD_FOR) {
            return;
        }
        self.told = Some((why.to_owned(), now));
        self.context.output.object(&JsonEvent::Refused { why });
        line::event_line(self.context.output, "!", &format!("a connection was refused: {why}"));
    }
}

/// Passes the bytes of one connection. Gives why there were none, if there were none.
async fn tunnel(client: TcpStream, pipe: OpenedPipe) -> Option<String> {
    let traffic = Arc::new(Traffic::default());
    let why = match pipe.connect().await {
        Ok(pipe) => match splice(Client(client), pipe.split(), LocalEnd::MayWait, Arc::clone(&traffic)).await {
            SpliceEnd::PipeBroke(why) if traffic.received() == 0 => why,
            _ => return None,
        },
        Err(error) => {
            let why = error.to_string();
            let (mut read, write) = Client(client).halves();
            if Client::broken(write, &why, true).await {
                hear_out(&mut read).await;
            }
            why
        }
    };
    Some(text::line(&why))
}

/// A connection that is shown a page if its pipe breaks before it was sent anything.
struct Client(TcpStream);

impl Local for Client {
    type Read = OwnedReadHalf;
    type Write = OwnedWriteHalf;

    fn halves(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        self.0.into_split()
    }

    async fn broken(mut write: OwnedWriteHalf, why: &str, untouched: bool) -> bool {
        if untouched {
            let page = page(502, &text::line(why));
            return write.write_all(&page).await.is_ok() && write.shutdown().await.is_ok();
        }
        TcpStream::broken(write, why, untouched).await
    }
}

fn with_remedy(why: &NotOpened) -> String {
    let remedy = match why {
        NotOpened::Failed(PipeFailure::Rejected(reason)) => match reason.as_str() {
            "proxy disabled" => "; its owner can switch it on: `skaldctl config set web_port PORT`",
            "local server unreachable" => "; is the web server on its machine running?",
            _ => "",
        },
        _ => "",
    };
    format!("{why}{remedy}")
}

/// What a browser shows. `why` is one safe line.
fn page(status: u16, why: &str) -> Vec<u8> {
    let reason = if status == 502 { "Bad Gateway" } else { "Service Unavailable" };
    let body = format!("The web page of the agent cannot be reached: {why}\n");
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n\
         Content-Length: {}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
        body.len()
    );
    [head, body].concat().into_bytes()
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// A browser, and the connection that it made.
    async fn client() -> (TcpStream, OwnedReadHalf, OwnedWriteHalf) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let browser = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (read, write) = Client(listener.accept().await.unwrap().0).halves();
        (browser, read, write)
    }

    #[tokio::test]
    async fn a_pipe_that_breaks_before_anything_came_is_told_as_a_page() {
        let (mut browser, _read, write) = client().await;
        assert!(Client::broken(write, "the agent\u{202e} is gone", true).await);
        let mut page = String::new();
        browser.read_to_string(&mut page).await.unwrap();
        let (head, body) = page.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{head}");
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
        assert_eq!(body, "The web page of the agent cannot be reached: the agent\\u{202e} is gone\n");
    }

    #[tokio::test]
    async fn a_pipe_that_breaks_in_the_middle_of_a_response_resets_the_connection() {
        let (mut browser, read, mut write) = client().await;
        write.write_all(b"HTTP/1.1 200 OK\r\n\r\nhalf").await.unwrap();
        browser.read_exact(&mut [0; 23]).await.unwrap();
        assert!(!Client::broken(write, "gone", false).await);
        drop(read);
        assert!(browser.read(&mut [0; 1]).await.is_err(), "half a page looks like a whole one");
    }

    #[test]
    fn each_reason_says_what_to_do_where_something_can_be_done() {
        let rejected = |reason: &str| with_remedy(&NotOpened::Failed(PipeFailure::Rejected(reason.into())));
        assert!(rejected("proxy disabled").contains("skaldctl config set web_port"));
        assert!(rejected("local server unreachable").contains("running?"));
        assert_eq!(rejected("evil\r\nSet-Cookie: x"), "the agent says: evil\\r\\nSet-Cookie: x");
        assert_eq!(with_remedy(&NotOpened::Failed(PipeFailure::Offline)), "the agent is offline");
    }
}
