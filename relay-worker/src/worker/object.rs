//! One namespace as a Durable Object: turns the platform's events into inputs of the [`Engine`] and carries its outputs
//! out, one full drain per event and no await in between, so that events cannot interleave. The engine is rebuilt from
//! SQL and the sockets' attachments whenever memory was lost; hibernation, a crash and a deployment are one case.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use skald_common::ids::ChallengeNonce;
use skald_common::wire::{PING, PONG};
use worker::{
    DurableObject, Env, Error, Request, Response, Result, State, WebSocket, WebSocketIncomingMessage, WebSocketPair,
    durable_object,
};

use super::sql::ObjectSql;
use super::{front, js};
use crate::engine::{ConnId, Engine, Input, Limits, Links, Origin, Output, conn_of};
use crate::front::routes::{INTERNAL_CONTROL, Route, Socket, VERIFIED_AUTH_HEADER};

/// The code of a connection that ended without one.
const BROKEN: u16 = 1006;

/// See the module.
#[durable_object]
pub struct Namespace {
    object: Rc<Object>,
    env: Env,
}

/// What timers share with the platform's entry points.
struct Object {
    state: State,
    limits: Limits,
    memory: RefCell<Option<Memory>>,
    timer: RefCell<Option<js::Timer>>,
}

/// All that an eviction takes.
struct Memory {
    engine: Engine<ObjectSql>,
    sockets: HashMap<ConnId, WebSocket>,
}

impl DurableObject for Namespace {
    fn new(state: State, env: Env) -> Self {
        if let Err(error) = js::answer_automatically(&state, PING, PONG) {
            worker::console_error!("auto-response: {error}");
        }
        let object = Object { state, limits: js::limits(&env), memory: RefCell::default(), timer: RefCell::default() };
        Self { object: Rc::new(object), env }
    }

    async fn fetch(&self, request: Request) -> Result<Response> {
        let origin = if request.url()?.path() == INTERNAL_CONTROL {
            let header = request.headers().get(VERIFIED_AUTH_HEADER)?.unwrap_or_default();
            let auth = URL_SAFE_NO_PAD.decode(header).map_err(|error| Error::RustError(error.to_string()))?;
            Origin::Verified { auth: auth.into() }
        } else if let Route::Direct(namespace, Socket::Control) = front::route(&request, &self.env)? {
            Origin::Direct { challenge: ChallengeNonce::new(js::random()?), namespace }
        } else {
            return Response::error("not found", 404);
        };
        if !front::wants_upgrade(&request)? {
            return front::upgrade_required();
        }
        let pair = WebSocketPair::new()?;
        js::accept_hibernating(&self.object.state, &pair.server)?;
        let conn = ConnId(u64::from_le_bytes(js::random()?));
        self.object.turn(Some((conn, pair.server)), Input::Opened { conn, origin });
        Response::from_websocket(pair.client)
    }

    async fn alarm(&self) -> Result<Response> {
        self.object.turn(None, Input::Alarm);
        Response::empty()
    }

    async fn websocket_message(&self, socket: WebSocket, message: WebSocketIncomingMessage) -> Result<()> {
        let Some(conn) = conn_of_socket(&socket) else {
            js::close(&socket, BROKEN, "");
            return Ok(());
        };
        let input = match message {
            WebSocketIncomingMessage::Binary(bytes) => Input::Frame { conn, bytes: Bytes::from(bytes) },
            WebSocketIncomingMessage::String(_) => Input::Text { conn },
        };
        self.object.turn(Some((conn, socket)), input);
        Ok(())
    }

    async fn websocket_close(&self, socket: WebSocket, code: usize, reason: String, _clean: bool) -> Result<()> {
        let code = u16::try_from(code).unwrap_or(BROKEN);
        self.closed(&socket, code);
        // The platform leaves the answer to us; without it the peer waits for its own timeout.
        js::close(&socket, code, &reason);
        Ok(())
    }

    async fn websocket_error(&self, socket: WebSocket, _error: Error) -> Result<()> {
        self.closed(&socket, BROKEN);
        js::close(&socket, BROKEN, "");
        Ok(())
    }
}

impl Namespace {
    fn closed(&self, socket: &WebSocket, code: u16) {
        if let Some(conn) = conn_of_socket(socket) {
            self.object.turn(Some((conn, socket.clone())), Input::Closed { conn, code });
        }
    }
}

impl Object {
    /// One input, then a full drain. `socket`: the one that the input is about.
    fn turn(self: &Rc<Self>, socket: Option<(ConnId, WebSocket)>, input: Input) {
        let Ok(mut memory) = self.memory.try_borrow_mut() else {
            worker::console_error!("an event inside another one's turn was lost");
            return;
        };
        let Memory { engine, sockets } = memory.get_or_insert_with(|| self.restore());
        sockets.extend(socket);
        let ended = match input {
            Input::Closed { conn, .. } => Some(conn),
            _ => None,
        };
        engine.handle(js::now_ms(), &LinkStates { state: &self.state, sockets }, input);
        while let Some(output) = engine.poll() {
            self.carry_out(sockets, output);
        }
        if let Some(conn) = ended {
            sockets.remove(&conn);
        }
        if cfg!(feature = "evict") {
            *memory = None;
        }
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
        Memory {
            engine: Engine::restore(self.limits.clone(), ObjectSql::new(&self.state), attachments),
            sockets: known.iter().map(|(conn, _, socket)| (*conn, socket.clone())).collect(),
        }
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
            Output::Fault { error } => worker::console_error!("{error}"),
        }
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

fn conn_of_socket(socket: &WebSocket) -> Option<ConnId> {
    conn_of(&js::attachment(socket)?)
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
