//! One namespace as a Durable Object: turns the platform's events into inputs of the [`Engine`] and carries its outputs
//! out, one full drain per event and no await in between, so that events cannot interleave. The engine is rebuilt from
//! SQL and the sockets' attachments whenever memory was lost; hibernation, a crash and a deployment are one case.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use skald_common::ids::ChallengeNonce;
use skald_common::wire::{PING, PONG};
use worker::js_sys::Uint8Array;
use worker::wasm_bindgen::JsValue;
use worker::wasm_bindgen::prelude::wasm_bindgen;
use worker::{
    DurableObject, Env, Error, Request, Response, Result, State, WebSocket, WebSocketPair, durable_object, web_sys,
};

use super::js::{self, BROKEN};
use super::pushes::Asker;
use super::sql::ObjectSql;
use super::{crash, front, pushes};
use crate::engine::{ConnId, EndId, Engine, Input, Limits, Links, Origin, Output, conn_of};
use crate::front::routes::{
    INTERNAL_CONTROL, INTERNAL_PIPE, PIPE_AUTH_HEADER, PIPE_END_HEADER, Route, Socket, VERIFIED_AUTH_HEADER,
};
use crate::push::{Access, Credentials, Job, Verdict};
use crate::store::Store;

/// See the module.
#[durable_object(fetch)]
pub struct Namespace {
    object: Rc<Object>,
}

/// What timers share with the platform's entry points.
struct Object {
    state: State,
    env: Env,
    limits: Limits,
    credentials: Rc<Credentials>,
    memory: RefCell<Option<Memory>>,
    timer: RefCell<Option<js::Timer>>,
}

/// All that an eviction takes.
struct Memory {
    engine: Engine<ObjectSql>,
    sockets: HashMap<ConnId, WebSocket>,
    known: js::Known,
}

impl DurableObject for Namespace {
    fn new(state: State, env: Env) -> Self {
        crash::arm(&env);
        if let Err(error) = js::answer_automatically(&state, PING, PONG) {
            worker::console_error!("auto-response: {error}");
        }
        let (limits, credentials) = (js::limits(&env), pushes::credentials(&env));
        let (memory, timer) = (RefCell::default(), RefCell::default());
        Self { object: Rc::new(Object { state, env, limits, credentials, memory, timer }) }
    }

    async fn fetch(&self, request: Request) -> Result<Response> {
        let (_, path) = js::host_and_path(&request)?;
        let origin = if path == INTERNAL_CONTROL {
            Origin::Verified { auth: decoded(&request, VERIFIED_AUTH_HEADER)?.into() }
        } else if path == INTERNAL_PIPE {
            let Some(end) = request.headers().get(PIPE_END_HEADER)?.and_then(|id| EndId::parse(&id)) else {
                return Response::error("no such end", 400);
            };
            Origin::Pipe { auth: decoded(&request, PIPE_AUTH_HEADER)?.into(), end }
        } else if let Route::Direct(namespace, Socket::Control) = front::route(&request, &self.object.env)? {
            Origin::Direct { challenge: ChallengeNonce::new(js::random()?), namespace }
        } else {
            return Response::error("not found", 404);
        };
        if !front::wants_upgrade(&request)? {
            return front::upgrade_required();
        }
        let pair = WebSocketPair::new()?;
        js::accept_hibernating(&self.object.state, &pair.server)?;
        // Below 2^53, so that JavaScript can carry it as a number.
        let conn = ConnId(u64::from_le_bytes(js::random()?) >> 11);
        self.object.turn(Some((conn, pair.server)), Input::Opened { conn, origin });
        Response::from_websocket(pair.client)
    }
}

/// The handlers of a hibernating object. They are not the macro's, which would wrap each message in a promise and a
/// microtask of its own: a fifth of what a live message costs.
#[wasm_bindgen]
impl Namespace {
    /// The alarm is due.
    pub fn alarm(&self) {
        self.object.turn(None, Input::Alarm);
    }

    /// A message: an `ArrayBuffer` or text.
    #[wasm_bindgen(js_name = webSocketMessage)]
    #[allow(clippy::needless_pass_by_value)] // the shape of the platform's call
    pub fn message(&self, socket: web_sys::WebSocket, message: JsValue) {
        let socket = WebSocket::from(socket);
        let Some(conn) = self.object.conn_of(&socket) else {
            return js::close(&socket, BROKEN, "");
        };
        let input = if message.is_string() {
            Input::Text { conn }
        } else {
            Input::Frame { conn, bytes: Uint8Array::new(&message).to_vec().into() }
        };
        self.object.turn(Some((conn, socket)), input);
    }

    /// The peer has closed, or its connection broke.
    #[wasm_bindgen(js_name = webSocketClose)]
    #[allow(clippy::needless_pass_by_value)]
    pub fn close(&self, socket: web_sys::WebSocket, code: u16, reason: String) {
        self.ended(&socket.into(), code, &reason);
    }

    /// The connection failed.
    #[wasm_bindgen(js_name = webSocketError)]
    pub fn error(&self, socket: web_sys::WebSocket) {
        self.ended(&socket.into(), BROKEN, "");
    }
}

impl Namespace {
    fn ended(&self, socket: &WebSocket, code: u16, reason: &str) {
        if let Some(conn) = self.object.conn_of(socket) {
            self.object.turn(Some((conn, socket.clone())), Input::Closed { conn, code });
        }
        // The platform leaves the answer to us; without it the peer waits for its own timeout.
        js::close(socket, code, reason);
    }
}

impl Object {
    /// One input, then a full drain. `socket`: the one that the input is about.
    fn turn(self: &Rc<Self>, socket: Option<(ConnId, WebSocket)>, input: Input) {
        let Ok(mut memory) = self.memory.try_borrow_mut() else {
            worker::console_error!("an event inside another one's turn was lost");
            return;
        };
        let Memory { engine, sockets, known } = memory.get_or_insert_with(|| self.restore());
        if let Some((conn, socket)) = socket {
            sockets.entry(conn).or_insert_with(|| {
                known.insert(&socket, conn);
                socket
            });
        }
        let ended = match input {
            Input::Closed { conn, .. } => Some(conn),
            _ => None,
        };
        let turn = crash::Turn::of(&input);
        turn.point("before-handling");
        engine.handle(js::now_ms(), &LinkStates { state: &self.state, sockets }, input);
        turn.point("after-handling");
        while let Some(output) = engine.poll() {
            self.carry_out(sockets, output);
        }
        turn.point("after-sending-for");
        if let Some(socket) = ended.and_then(|conn| sockets.remove(&conn)) {
            known.remove(&socket);
        }
        if cfg!(feature = "evict") {
            *memory = None;
        }
    }

    fn conn_of(&self, socket: &WebSocket) -> Option<ConnId> {
        let known = self.memory.try_borrow().ok()?.as_ref().and_then(|memory| memory.known.get(socket));
        known.or_else(|| conn_of(&js::attachment(socket)?))
    }

    fn restore(&self) -> Memory {
        let listed = js::sockets(&self.state).unwrap_or_else(|error| {
            worker::console_error!("sockets: {error}");
            Vec::new()
        });
        let known: Vec<_> = listed
            .into_iter()
            .filter_map(|socket| {
                let attachment = js::attachment(&socket)?;
                Some((conn_of(&attachment)?, attachment, socket))
            })
            .collect();
        if !known.is_empty() {
            // The one trace that hibernation leaves; a test waits for it.
            worker::console_log!("woke up with {} connections", known.len());
        }
        let attachments = known.iter().map(|(conn, attachment, _)| (*conn, attachment));
        let engine =
            Engine::restore(self.limits.clone(), self.credentials.services(), ObjectSql::new(&self.state), attachments);
        let memory = Memory { engine, sockets: HashMap::new(), known: js::Known::default() };
        known.into_iter().fold(memory, |mut memory, (conn, _, socket)| {
            memory.known.insert(&socket, conn);
            memory.sockets.insert(conn, socket);
            memory
        })
    }

    fn carry_out(self: &Rc<Self>, sockets: &HashMap<ConnId, WebSocket>, output: Output) {
        match output {
            // A peer that is gone is told by its own event.
            Output::Send { conn, bytes } => with(sockets, conn, "send", |socket| socket.send_with_bytes(&bytes)),
            Output::Attach { conn, bytes } => with(sockets, conn, "attach", |socket| js::attach(socket, &bytes)),
            Output::Close { conn, code, reason } => with(sockets, conn, "close", |socket| {
                js::close(socket, code, reason);
                Ok(())
            }),
            Output::WakeAt { at_ms } => js::set_alarm(&self.state.storage(), at_ms),
            Output::Timer { at_ms } => self.set_timer(at_ms),
            Output::DeleteAll => js::delete_all(&self.state.storage()),
            Output::Push(job) => self.push(*job),
            Output::PushGivenUp { platform } => pushes::given_up(&self.env, platform),
            Output::Fault { error } => worker::console_error!("{error}"),
        }
    }

    /// Begins a push when this turn is over. It keeps the object no longer than its requests take.
    fn push(self: &Rc<Self>, job: Job) {
        let object = Rc::downgrade(self);
        pushes::start(&self.credentials, job, move || object.upgrade());
    }

    /// Replaces the pending timer. While one is pending the object cannot hibernate.
    fn set_timer(self: &Rc<Self>, at_ms: Option<u64>) {
        let timer = at_ms.and_then(|at_ms| {
            // A strong reference would keep an object alive that the platform has dropped.
            let object = Rc::downgrade(self);
            let wake = move || {
                if let Some(object) = object.upgrade() {
                    object.turn(None, Input::Wake);
                }
            };
            js::after(at_ms.saturating_sub(js::now_ms()), wake)
                .inspect_err(|error| worker::console_error!("timer: {error}"))
                .ok()
        });
        self.timer.replace(timer);
    }
}

impl Asker for Rc<Object> {
    fn env(&self) -> &Env {
        &self.env
    }

    fn stored_access(&self) -> Option<Access> {
        let stored = Store::new(ObjectSql::new(&self.state)).access();
        stored.inspect_err(|error| worker::console_error!("{error}")).ok().flatten()
    }

    fn store_access(&self, access: &Access) {
        if let Err(error) = Store::new(ObjectSql::new(&self.state)).put_access(access) {
            worker::console_error!("{error}");
        }
    }

    fn pushed(&self, id: u64, verdict: Verdict) {
        self.turn(None, Input::Pushed { id, outcome: verdict.outcome });
    }
}

/// What a header carries, base64url.
fn decoded(request: &Request, header: &str) -> Result<Vec<u8>> {
    let text = request.headers().get(header)?.unwrap_or_default();
    URL_SAFE_NO_PAD.decode(text).map_err(|error| Error::RustError(error.to_string()))
}

fn with(sockets: &HashMap<ConnId, WebSocket>, conn: ConnId, what: &str, work: impl FnOnce(&WebSocket) -> Result<()>) {
    let done = sockets.get(&conn).map_or(Ok(()), work);
    if let Err(error) = done {
        worker::console_debug!("{what}: {error}");
    }
}

/// What the engine may ask about sockets.
struct LinkStates<'a> {
    state: &'a State,
    sockets: &'a HashMap<ConnId, WebSocket>,
}

impl Links for LinkStates<'_> {
    fn buffered(&self, conn: ConnId) -> u64 {
        self.sockets.get(&conn).map_or(0, js::buffered)
    }

    fn last_ping(&self, conn: ConnId) -> Option<u64> {
        js::last_automatic_answer(self.state, self.sockets.get(&conn)?)
    }
}
