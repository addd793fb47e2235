//! A control connection on `/v1/ws`: the Worker runs the challenge itself, so that floods never reach an object, then opens
//! a socket to the namespace's object with the verified `Auth` and passes every message on, both ways, untouched.

use std::cell::OnceCell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use futures_channel::mpsc::{UnboundedReceiver, unbounded};
use futures_util::StreamExt as _;
use futures_util::future::{Either, select};
use skald_common::ids::ChallengeNonce;
use skald_common::wire::{self, Challenge, CloseCode, ErrorCode, Frame, PING, PONG};
use worker::wasm_bindgen::JsCast as _;
use worker::wasm_bindgen_futures::spawn_local;
use worker::{Delay, Env, Headers, Response, Result, WebSocket, WebSocketPair, js_sys};

use super::js::{BROKEN, Event};
use super::{front, js};
use crate::engine::{Limits, Refusal, Verified, verify_auth};
use crate::front::routes::{INTERNAL_CONTROL, VERIFIED_AUTH_HEADER};

/// How long the other side may take to answer a Close.
const CLOSING: Duration = Duration::from_secs(10);

/// One of the two sockets of a session.
struct Leg {
    socket: WebSocket,
    /// Where its messages go at once; until that is set they wait in `events`.
    other: Rc<OnceCell<WebSocket>>,
    events: UnboundedReceiver<Event>,
    _listener: js::Listener,
}

impl Leg {
    /// Listens to a socket and accepts it.
    fn new(socket: WebSocket) -> Result<Self> {
        js::deliver_buffers(&socket);
        let other = Rc::new(OnceCell::<WebSocket>::new());
        let (sender, events) = unbounded();
        let listener = js::listen(&socket, {
            let other = Rc::clone(&other);
            // Messages go straight on: a queue and a task between would double what each costs.
            move |event| {
                let event = match (event, other.get()) {
                    (Event::Message(message), Some(other)) => match js::forward(&message, other) {
                        Ok(()) => return,
                        Err(_) => Event::Closed { code: BROKEN, reason: String::new() },
                    },
                    (event, _) => event,
                };
                // Nobody waits any more: the session is over.
                let _ = sender.unbounded_send(event);
            }
        })?;
        socket.accept()?;
        Ok(Self { socket, other, events, _listener: listener })
    }

    /// What came first and is not passed on.
    async fn next(&mut self) -> Event {
        self.events.next().await.unwrap_or(Event::Closed { code: BROKEN, reason: String::new() })
    }

    /// From now on messages go to `other`, those that have waited before all others. Returns how the leg has ended if it
    /// has, which nothing can follow.
    fn pass_on_to(&mut self, other: &WebSocket) -> Result<Option<Event>> {
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::Message(message) => js::forward(&message, other)?,
                Event::Closed { .. } => return Ok(Some(event)),
            }
        }
        // Set once, here.
        let _ = self.other.set(other.clone());
        Ok(None)
    }
}

/// Accepts the upgrade; everything else happens on the socket.
pub(super) fn open(env: Env) -> Result<Response> {
    let pair = WebSocketPair::new()?;
    let server = pair.server;
    spawn_local(async move {
        if let Err(error) = run(&server, &env).await {
            worker::console_error!("front: {error}");
            js::close(&server, CloseCode::Restarting.code(), CloseCode::Restarting.reason());
        }
    });
    Response::from_websocket(pair.client)
}

async fn run(client: &WebSocket, env: &Env) -> Result<()> {
    let mut client = Leg::new(client.clone())?;
    let limits = js::limits(env);
    let nonce = ChallengeNonce::new(js::random()?);
    client.socket.send_with_bytes(wire::encode(Frame::Challenge(Challenge { nonce: nonce.to_vec() })))?;
    let auth = match authenticate(&mut client, &nonce, &limits).await? {
        Opening::Verified(auth) => auth,
        Opening::Refused(refusal) => {
            let close = refusal.close_code();
            client.socket.send_with_bytes(refusal.frame())?;
            js::close(&client.socket, close.code(), close.reason());
            ended(&mut client).await;
            return Ok(());
        }
        Opening::Gone(code) => {
            js::close(&client.socket, code, "");
            return Ok(());
        }
    };
    let mut object = Leg::new(connect(env, &auth).await?)?;
    pump(&mut client, &mut object).await
}

enum Opening {
    Verified(Box<Verified>),
    Refused(Refusal),
    Gone(u16),
}

/// Waits for the first message, which must be a valid `Auth`. The text `ping` is answered in every state.
async fn authenticate(client: &mut Leg, nonce: &ChallengeNonce, limits: &Limits) -> Result<Opening> {
    let mut timeout = Delay::from(Duration::from_millis(limits.challenge_timeout));
    let refused = |code, message| Opening::Refused(Refusal::new(code, message));
    loop {
        let message = match select(client.events.next(), &mut timeout).await {
            Either::Right(_) => return Ok(refused(ErrorCode::ChallengeTimeout, "no authentication in time")),
            Either::Left((Some(Event::Message(message)), _)) => message.data(),
            Either::Left((Some(Event::Closed { code, .. }), _)) => return Ok(Opening::Gone(code)),
            Either::Left((None, _)) => return Ok(Opening::Gone(BROKEN)),
        };
        match message.dyn_ref::<js_sys::ArrayBuffer>() {
            None if message.as_string().as_deref() == Some(PING) => client.socket.send_with_str(PONG)?,
            None => return Ok(refused(ErrorCode::BadRequest, "text before authentication")),
            Some(buffer) => {
                let frame = Bytes::from(js_sys::Uint8Array::new(buffer).to_vec());
                return Ok(verify_auth(frame, nonce, limits)
                    .map_or_else(Opening::Refused, |auth| Opening::Verified(Box::new(auth))));
            }
        }
    }
}

/// A socket to the object, on the one path where it believes what the front says.
async fn connect(env: &Env, auth: &Verified) -> Result<WebSocket> {
    let headers = Headers::new();
    headers.set(VERIFIED_AUTH_HEADER, &URL_SAFE_NO_PAD.encode(auth.frame()))?;
    front::connect(&front::object(env, &auth.namespace())?, INTERNAL_CONTROL, headers).await
}

/// Passes messages on until one side closes, then closes the other with the same code, and answers the first.
async fn pump(client: &mut Leg, object: &mut Leg) -> Result<()> {
    let (event, upwards) = match (client.pass_on_to(&object.socket)?, object.pass_on_to(&client.socket)?) {
        (Some(event), _) => (event, true),
        (None, Some(event)) => (event, false),
        (None, None) => match select(pin!(client.next()), pin!(object.next())).await {
            Either::Left((event, _)) => (event, true),
            Either::Right((event, _)) => (event, false),
        },
    };
    let (code, reason) = match event {
        Event::Closed { code, reason } => (code, reason),
        Event::Message(_) => (BROKEN, String::new()),
    };
    js::close(&object.socket, code, &reason);
    js::close(&client.socket, code, &reason);
    ended(if upwards { object } else { client }).await;
    Ok(())
}

/// Waits until the other side has answered our Close, or long enough.
async fn ended(leg: &mut Leg) {
    let mut enough = Delay::from(CLOSING);
    while let Either::Left((Some(Event::Message(_)), _)) = select(leg.events.next(), &mut enough).await {}
}
