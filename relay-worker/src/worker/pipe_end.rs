//! One end of a pipe as a Durable Object: holds the client's socket, so that it can stop reading from it, and turns the
//! platform's events into inputs of the [`End`]. It writes nothing and does not hibernate: an idle pipe is over after two
//! minutes. Without its memory a pipe cannot go on, and [`Wires`] closes the sockets.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use skald_common::ids::{ChallengeNonce, ConnectionId};
use skald_common::pipe::PipeAuth;
use worker::js_sys::Uint8Array;
use worker::wasm_bindgen::JsValue;
use worker::wasm_bindgen_futures::spawn_local;
use worker::{DurableObject, Env, Headers, Request, Response, Result, State, WebSocket, WebSocketPair, durable_object};

use super::wires::{self, Event, Wires};
use super::{crash, front, js};
use crate::engine::{EndId, Limits};
use crate::front::routes::{
    INTERNAL_LINK, INTERNAL_PIPE, PIPE_AUTH_HEADER, PIPE_END_HEADER, PIPE_HEADER, Route, Socket,
};
use crate::pipe::{Buffered, End, Input, Output};

/// The sockets' numbers on the wires.
const CLIENT: u32 = 0;
const LINK: u32 = 1;
const CONTROL: u32 = 2;

/// See the module.
#[durable_object(fetch)]
pub struct PipeEnd(Rc<Object>);

struct Object {
    state: State,
    env: Env,
    limits: Limits,
    wires: Wires,
    live: RefCell<Option<Live>>,
}

/// The end, once its client is there.
struct Live {
    end: End,
    client: WebSocket,
    link: Option<WebSocket>,
    /// Messages that wait for the link.
    kept: Vec<JsValue>,
}

impl DurableObject for PipeEnd {
    fn new(state: State, env: Env) -> Self {
        crash::arm(&env);
        let limits = js::limits(&env);
        Self(Rc::new_cyclic(|object: &Weak<Object>| {
            let object = Weak::clone(object);
            // An object that the platform has dropped hears nothing any more.
            let handler = move |event| {
                if let Some(object) = object.upgrade() {
                    object.on_event(event);
                }
            };
            Object { state, env, limits, wires: Wires::new(handler), live: RefCell::default() }
        }))
    }

    async fn fetch(&self, request: Request) -> Result<Response> {
        let object = &self.0;
        if !front::wants_upgrade(&request)? {
            return front::upgrade_required();
        }
        if js::host_and_path(&request)?.1 == INTERNAL_LINK {
            return object.accept_link(&request);
        }
        let namespace = match front::route(&request, &object.env)? {
            Route::Front(Socket::Pipe) => None,
            Route::Direct(namespace, Socket::Pipe) => Some(namespace),
            _ => return Response::error("not found", 404),
        };
        if object.live.borrow().is_some() {
            return Response::error("taken", 409);
        }
        let pair = WebSocketPair::new()?;
        let client = object.wires.add(CLIENT, pair.server)?;
        let end = End::new(object.limits.clone(), js::now_ms(), ChallengeNonce::new(js::random()?), namespace);
        let mut live = Live { end, client, link: None, kept: Vec::new() };
        object.drain(&mut live, None);
        object.live.replace(Some(live));
        Response::from_websocket(pair.client)
    }
}

impl Object {
    fn on_event(self: &Rc<Self>, event: Event) {
        match event {
            Event::Timer => self.turn(Input::Timer, None),
            Event::Closed { which: CLIENT, code } => self.turn(Input::ClientClosed { code }, None),
            Event::Closed { which: LINK, code } => self.turn(Input::LinkClosed { code }, None),
            Event::Closed { code, .. } => self.turn(Input::ControlClosed { code }, None),
            Event::Message { which, size, data } => self.on_message(which, size, &data),
        }
    }

    fn on_message(self: &Rc<Self>, which: u32, size: u64, data: &JsValue) {
        let text = if size == 0 { data.as_string() } else { None };
        match (which, text) {
            (CLIENT, Some(_)) => self.turn(Input::Text, None),
            (CLIENT, None) if self.awaits_auth(size) => {
                self.turn(Input::Auth(&Uint8Array::new(data).to_vec()), None);
            }
            (CLIENT, None) => self.turn(Input::Message { size }, Some(data)),
            (LINK, Some(text)) => self.turn(Input::LinkText(&text), None),
            (LINK, None) => self.turn(Input::LinkMessage { size }, Some(data)),
            (_, None) => self.turn(Input::Told(&Uint8Array::new(data).to_vec()), None),
            (_, Some(_)) => {}
        }
    }

    fn awaits_auth(&self, size: u64) -> bool {
        self.live.try_borrow().is_ok_and(|live| live.as_ref().is_some_and(|live| live.end.awaits_auth(size)))
    }

    /// One input, then a full drain. `message`: the one that the input is about.
    fn turn(self: &Rc<Self>, input: Input<'_>, message: Option<&JsValue>) {
        let Ok(mut live) = self.live.try_borrow_mut() else {
            worker::console_error!("an event inside another one's turn was lost");
            return;
        };
        if let Some(live) = live.as_mut() {
            let subject = message.map(|data| (data, matches!(input, Input::LinkMessage { .. })));
            crash::Turn::of_pipe(&input).point("before-handling");
            live.end.handle(js::now_ms(), live.buffered(), input);
            self.drain(live, subject);
        }
    }

    /// Carries everything out. `subject`: a message, and whether the other end sent it.
    fn drain(self: &Rc<Self>, live: &mut Live, subject: Option<(&JsValue, bool)>) {
        while let Some(output) = live.end.poll() {
            if let Err(error) = self.carry_out(live, output, subject) {
                // A socket that is gone is told by its own event.
                worker::console_debug!("pipe: {error}");
            }
        }
    }

    fn carry_out(self: &Rc<Self>, live: &mut Live, output: Output, subject: Option<(&JsValue, bool)>) -> Result<()> {
        match output {
            Output::Pass => live.pass(subject)?,
            Output::Keep => live.kept.extend(subject.map(|(data, _)| data.clone())),
            Output::Release => {
                for data in std::mem::take(&mut live.kept) {
                    live.pass(Some((&data, false)))?;
                }
            }
            Output::Challenge(bytes) => live.client.send_with_bytes(bytes)?,
            Output::Tell(text) => live.client.send_with_str(text)?,
            Output::Signal(text) => live.link.as_ref().map_or(Ok(()), |link| link.send_with_str(text))?,
            Output::Brake { ms } => wires::hold(&self.state, ms),
            Output::Join(auth) => self.open(CONTROL, async move |object| object.join(&auth).await),
            Output::Dial { end, connection } => {
                self.open(LINK, async move |object| object.dial(&end, &connection).await);
            }
            Output::Close { code, reason } => {
                live.kept.clear();
                self.wires.close(code, reason);
            }
            Output::Abort => {
                js::call(self.state.as_raw(), "abort", &[&"the client of a closed pipe reads nothing".into()])?;
            }
            Output::Timer { at_ms } => self.wires.wake(at_ms.map(|at| at.saturating_sub(js::now_ms()))),
        }
        Ok(())
    }

    /// Opens a socket to another object, and takes it in.
    fn open(self: &Rc<Self>, which: u32, dial: impl AsyncFnOnce(&Self) -> Result<WebSocket> + 'static) {
        let object = Rc::clone(self);
        spawn_local(async move {
            let opened = dial(&object).await.and_then(|socket| object.wires.add(which, socket));
            match opened {
                Ok(socket) if which == LINK => object.linked(socket),
                Ok(_) => object.turn(Input::Joined, None),
                Err(error) => {
                    worker::console_error!("pipe: {error}");
                    object.turn(Input::Unreachable, None);
                }
            }
        });
    }

    /// To the namespace's object, on the one path where it believes what an end says.
    async fn join(&self, auth: &PipeAuth) -> Result<WebSocket> {
        let headers = Headers::new();
        headers.set(PIPE_AUTH_HEADER, &URL_SAFE_NO_PAD.encode(auth.encode()))?;
        headers.set(PIPE_END_HEADER, &self.state.id().to_string())?;
        front::connect(&front::object(&self.env, &auth.namespace)?, INTERNAL_PIPE, headers).await
    }

    /// To the other end.
    async fn dial(&self, end: &EndId, connection: &ConnectionId) -> Result<WebSocket> {
        let headers = Headers::new();
        headers.set(PIPE_HEADER, &connection.to_hex())?;
        front::connect(&front::pipe_end(&self.env, end)?, INTERNAL_LINK, headers).await
    }

    /// The other end dials. It knows this object's id from the namespace alone, and is to know the pipe.
    fn accept_link(self: &Rc<Self>, request: &Request) -> Result<Response> {
        let pipe = request.headers().get(PIPE_HEADER)?.and_then(|hex| ConnectionId::from_hex(&hex).ok());
        let expected = |live: &Live| pipe.is_some_and(|pipe| live.end.expects(&pipe));
        if !self.live.borrow().as_ref().is_some_and(expected) {
            return Response::error("no such pipe", 404);
        }
        let pair = WebSocketPair::new()?;
        let link = self.wires.add(LINK, pair.server)?;
        self.linked(link);
        Response::from_websocket(pair.client)
    }

    fn linked(self: &Rc<Self>, link: WebSocket) {
        if let Ok(mut live) = self.live.try_borrow_mut()
            && let Some(live) = live.as_mut()
        {
            live.link = Some(link);
        }
        self.turn(Input::Linked, None);
    }
}

impl Live {
    fn buffered(&self) -> Buffered {
        Buffered { client: js::buffered(&self.client), link: self.link.as_ref().map_or(0, js::buffered) }
    }

    fn pass(&self, subject: Option<(&JsValue, bool)>) -> Result<()> {
        let to = |from_link: bool| if from_link { Some(&self.client) } else { self.link.as_ref() };
        let ways = subject.and_then(|(data, from_link)| Some((data, to(from_link)?)));
        ways.map_or(Ok(()), |(data, to)| wires::forward(data, to))
    }
}
