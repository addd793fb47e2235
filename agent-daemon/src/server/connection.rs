//! One connection: reads lines, serves calls in order, makes the hub's calls, and ends.
//!
//! One task, no locks. Calls of the other side are served one at a time, in order: a host's `inbox.resolved` must not
//! overtake its `inbox.requested`. Its answers to our calls are taken at any time, also while a call of its own is served.
//! Nothing is waited for: what the other side does not read is bounded by [`Output`], what it sends by not reading on.

use std::collections::{HashMap, VecDeque};
use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use skald_link::debug::crash_point;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use super::output::Output;
use super::reply::Reply;
use super::{Context, Socket, control, hello, host};
use crate::hub::api::{CallId, CallOutcome, HostCall, HostRequest, HostSession, SessionId};
use crate::hub::events::Event;
use crate::rpc::{self, Call, LineReader, MAX_LINE, Message, RpcError, TooLong, codes, encode};

/// Calls of the other side that may wait before we stop reading.
const MOST_WAITING: usize = 32;

/// How long a connection may exist without `hello`.
const OPENING: Duration = Duration::from_secs(30);

/// How long the last lines may take.
const CLOSING: Duration = Duration::from_secs(5);

/// [`CallOutcome::Failed`] for an answer that is a result, but not `{resolved}`.
const NO_RESULT: i64 = codes::INVALID_REQUEST;

/// Serves a connection until it ends, by either side or by `stop`.
pub(super) async fn run(stream: UnixStream, socket: Socket, context: Context, mut stop: watch::Receiver<bool>) {
    let (input, output) = stream.into_split();
    let mut input = Input { stream: input, reader: LineReader::new(), ended: false };
    let mut connection = Connection {
        socket,
        context,
        output: Output::new(output),
        session: Session::Opening,
        waiting: VecDeque::new(),
        serving: None,
        asked: HashMap::new(),
        end: End::Open,
        deadline: Some(Instant::now() + OPENING),
    };
    while connection.go_on(&input) {
        let deadline = connection.deadline();
        let open = connection.end == End::Open;
        let busy = connection.output.is_full();
        let reads = open && !busy && !input.ended && connection.waiting.len() < MOST_WAITING;
        let Connection { output, session, serving, .. } = &mut connection;
        let writes = !output.is_empty();
        // Each branch is cancel safe, and the state changes in the bodies alone.
        tokio::select! {
            more = input.fill(), if reads => match more {
                Ok(()) => connection.take_lines(&mut input).await,
                Err(error) => connection.cut(&error.to_string()),
            },
            written = output.write_some(), if writes => if let Err(error) = written {
                connection.cut(&error.to_string());
            },
            done = finish(serving) => connection.served(done),
            from_hub = next_from_hub(session, busy), if open => match from_hub {
                FromHub::Call(call) => connection.ask_host(call),
                FromHub::Event(event) => connection.tell(event),
            },
            () = until(deadline) => connection.too_late(),
            () = stopped(&mut stop), if open => connection.close(),
        }
    }
}

struct Input {
    stream: OwnedReadHalf,
    reader: LineReader,
    ended: bool,
}

impl Input {
    async fn fill(&mut self) -> std::io::Result<()> {
        self.ended = !self.reader.fill(&mut self.stream).await?;
        Ok(())
    }
}

/// What the connection is for.
enum Session {
    /// Before `hello`.
    Opening,
    /// A host.
    Host(HostSession),
    /// The owner, who may listen to events.
    Control(Option<broadcast::Receiver<Event>>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Not yet.
    Open,
    /// Nothing more is read; what waits is written.
    Closing,
    /// Now.
    Cut,
}

/// A call of the other side, being served. Owns all that it needs.
type Serving = Pin<Box<dyn Future<Output = Done> + Send>>;

struct Done {
    id: Option<String>,
    reply: Reply,
    session: Option<Session>,
}

struct Connection {
    socket: Socket,
    context: Context,
    output: Output,
    session: Session,
    waiting: VecDeque<Call>,
    serving: Option<Serving>,
    /// Our calls that wait for an answer.
    asked: HashMap<u64, Asked>,
    end: End,
    /// For `hello` or the last lines.
    deadline: Option<Instant>,
}

#[derive(Clone, Copy)]
enum Asked {
    Ping,
    Resolve,
}

#[derive(Deserialize)]
struct Resolved {
    resolved: bool,
}

impl Connection {
    /// Starts the next call if none is being served. Whether there is anything left to wait for.
    fn go_on(&mut self, input: &Input) -> bool {
        if self.end == End::Open
            && self.serving.is_none()
            && let Some(call) = self.waiting.pop_front()
        {
            self.serving = Some(self.serve(call));
        }
        let finished = self.serving.is_none() && self.waiting.is_empty() && self.output.is_empty();
        match self.end {
            End::Open => !(input.ended && finished),
            End::Closing => !self.output.is_empty(),
            End::Cut => false,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline.into_iter().chain(self.output.give_up_at()).min()
    }

    async fn take_lines(&mut self, input: &mut Input) {
        while self.end == End::Open
            && let Some(line) = input.reader.next_line()
        {
            match line.map(|line| Message::parse(&line)) {
                Ok(Ok(Message::Call(call))) => self.waiting.push_back(call),
                Ok(Ok(Message::Reply(reply))) => self.answered(reply).await,
                Ok(Err(error)) => self.output.push(encode::error(encode::NO_ID, &error)),
                Err(too_long @ TooLong) => {
                    let error = RpcError::new(codes::PARSE, too_long.to_string());
                    self.output.push(encode::error(encode::NO_ID, &error));
                    self.close();
                }
            }
        }
    }

    fn serve(&self, call: Call) -> Serving {
        let context = self.context.clone();
        match (&self.session, self.socket) {
            (Session::Opening, Socket::Hosts) => Box::pin(open_host(call, context)),
            (Session::Opening, Socket::Control) => Box::pin(open_control(call, context)),
            (Session::Host(session), _) => Box::pin(serve_host(call, session.id, context)),
            (Session::Control(_), _) => Box::pin(serve_control(call, context)),
        }
    }

    fn served(&mut self, done: Done) {
        self.serving = None;
        let Done { id, reply, session } = done;
        if let Some(session) = session {
            self.session = session;
            self.deadline = None;
        }
        // What the hub called the host with before it answered goes out before the answer: a host that gives a request_id
        // to something new must not take an answer to the old one for an answer to that.
        while let Session::Host(session) = &mut self.session
            && let Ok(call) = session.calls.try_recv()
        {
            self.ask_host(Some(call));
        }
        // A notification is never answered, not even with an error.
        let Some(id) = id else { return };
        let line = match reply {
            Ok(result) => encode::result(&id, &result),
            Err(error) => encode::error(&id, &error),
        };
        self.output.push(if line.len() > MAX_LINE { encode::error(&id, &too_large()) } else { line });
    }

    /// The hub calls the host; `None`: the hub has closed the session.
    fn ask_host(&mut self, call: Option<HostCall>) {
        let Some(HostCall { id: CallId(id), request }) = call else { return self.close() };
        let (asked, line) = match request {
            HostRequest::Ping => (Asked::Ping, encode::request(id, "ping", &json!({}))),
            HostRequest::Resolve(params) => (Asked::Resolve, encode::request(id, "inbox.resolve", &params)),
        };
        self.asked.insert(id, asked);
        if matches!(asked, Asked::Resolve) {
            crash_point("before-calling-host");
        }
        self.output.push(line);
    }

    /// The other side has answered a call of ours.
    async fn answered(&mut self, reply: rpc::Reply) {
        let Session::Host(session) = &self.session else { return };
        let Some((id, asked)) = reply.id.and_then(|id| self.asked.remove_entry(&id)) else {
            tracing::debug!("a host answered a call that was not made");
            return;
        };
        if matches!(asked, Asked::Resolve) {
            crash_point("on-hosts-answer");
        }
        let outcome = match (asked, reply.outcome) {
            (Asked::Ping, _) => CallOutcome::Pong,
            (Asked::Resolve, Ok(result)) => match rpc::parse_params(&result) {
                Ok(Resolved { resolved }) => CallOutcome::Resolved(resolved),
                Err(_) => CallOutcome::Failed(NO_RESULT),
            },
            (Asked::Resolve, Err(error)) => CallOutcome::Failed(error.code),
        };
        if self.context.hub.call_done(session.id, CallId(id), outcome).await.is_err() {
            self.close();
        }
    }

    fn tell(&mut self, event: Result<Event, broadcast::error::RecvError>) {
        use broadcast::error::RecvError;
        let outcome = match event {
            Ok(event) => self.output.push_event(encode::notification("event", &event)),
            Err(RecvError::Lagged(lost)) => Err(usize::try_from(lost).unwrap_or(usize::MAX)),
            Err(RecvError::Closed) => return self.close(),
        };
        if let Err(dropped) = outcome {
            tracing::info!(dropped, "a subscriber is too slow and is cut off");
            let dropped = dropped.saturating_add(self.output.drop_events());
            self.output.push(encode::notification("event", &Lagged { kind: "lagged", dropped }));
            self.close();
        }
    }

    /// Writes what waits and ends.
    fn close(&mut self) {
        self.end = End::Closing;
        self.deadline = Some(Instant::now() + CLOSING);
    }

    fn cut(&mut self, why: &str) {
        tracing::debug!(socket = self.socket.name(), why, "a connection was cut");
        self.end = End::Cut;
    }

    fn too_late(&mut self) {
        match (self.end, &self.session) {
            (End::Open, Session::Opening) if self.output.is_empty() => {
                let error = RpcError::new(codes::HELLO_FIRST, "hello first: none came in time");
                self.output.push(encode::error(encode::NO_ID, &error));
                self.close();
            }
            _ => self.cut("the other side does not read"),
        }
    }
}

#[derive(Serialize)]
struct Lagged {
    #[serde(rename = "type")]
    kind: &'static str,
    dropped: usize,
}

fn too_large() -> RpcError {
    RpcError::new(codes::REFUSED, format!("the answer is longer than a line may be ({MAX_LINE} bytes)"))
        .with_data(json!({"reason": "too_large"}))
}

async fn open_host(call: Call, context: Context) -> Done {
    match hello::host(&call, &context).await {
        Ok((session, reply)) => Done { id: call.id, reply, session: Some(Session::Host(session)) },
        Err(error) => Done { id: call.id, reply: Err(error), session: None },
    }
}

async fn open_control(call: Call, context: Context) -> Done {
    let reply = hello::control(&call, &context).await;
    let session = reply.is_ok().then_some(Session::Control(None));
    Done { id: call.id, reply, session }
}

async fn serve_host(call: Call, session: SessionId, context: Context) -> Done {
    let reply = host::call(&call, session, &context).await;
    Done { id: call.id, reply, session: None }
}

async fn serve_control(call: Call, context: Context) -> Done {
    let (reply, events) = control::call(&call, &context).await;
    Done { id: call.id, reply, session: events.map(|events| Session::Control(Some(events))) }
}

async fn finish(serving: &mut Option<Serving>) -> Done {
    match serving {
        Some(serving) => serving.await,
        None => pending().await,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => pending().await,
    }
}

enum FromHub {
    Call(Option<HostCall>),
    Event(Result<Event, broadcast::error::RecvError>),
}

/// Calls wait while the host does not read; events do not.
async fn next_from_hub(session: &mut Session, busy: bool) -> FromHub {
    match session {
        Session::Host(session) if !busy => FromHub::Call(session.calls.recv().await),
        Session::Control(Some(events)) => FromHub::Event(events.recv().await),
        _ => pending().await,
    }
}

/// The daemon stops.
pub(super) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, which is the end as well.
    let _ = stop.wait_for(|stop| *stop).await;
}
