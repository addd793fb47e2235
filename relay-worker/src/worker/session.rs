//! A control connection on `/v1/ws`: the Worker runs the challenge itself, so that floods never reach an object, then opens
//! a socket to the namespace's object with the verified `Auth` and passes every message on, both ways, untouched.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::{Either, select};
use skald_common::ids::ChallengeNonce;
use skald_common::wire::{self, Challenge, CloseCode, ErrorCode, Frame, PING, PONG};
use worker::wasm_bindgen_futures::spawn_local;
use worker::{
    Delay, Env, EventStream, Headers, Method, Request, RequestInit, Response, Result, WebSocket, WebSocketPair,
    WebsocketEvent,
};

use super::{front, js};
use crate::engine::{Limits, Refusal, Verified, verify_auth};
use crate::front::routes::{INTERNAL_CONTROL, VERIFIED_AUTH_HEADER};

/// How long the other side may take to answer a Close.
const CLOSING: Duration = Duration::from_secs(10);
/// The close code of a connection that broke, or whose code cannot be sent.
const BROKEN: u16 = 1006;

/// Accepts the upgrade; everything else happens on the socket.
pub(super) fn open(env: Env) -> Result<Response> {
    let pair = WebSocketPair::new()?;
    js::deliver_buffers(&pair.server);
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
    let mut from_client = client.events()?;
    client.accept()?;
    let limits = js::limits(env);
    let nonce = ChallengeNonce::new(js::random()?);
    client.send_with_bytes(wire::encode(Frame::Challenge(Challenge { nonce: nonce.to_vec() })))?;
    let auth = match authenticate(client, &mut from_client, &nonce, &limits).await? {
        Opening::Verified(auth) => auth,
        Opening::Refused(refusal) => {
            let close = refusal.close_code();
            client.send_with_bytes(refusal.frame())?;
            js::close(client, close.code(), close.reason());
            ended(&mut from_client).await;
            return Ok(());
        }
        Opening::Gone(code) => {
            js::close(client, code, "");
            return Ok(());
        }
    };
    let object = connect(env, &auth).await?;
    js::deliver_buffers(&object);
    let mut from_object = object.events()?;
    object.accept()?;
    pump(client, &mut from_client, &object, &mut from_object).await;
    Ok(())
}

enum Opening {
    Verified(Box<Verified>),
    Refused(Refusal),
    Gone(u16),
}

/// Waits for the first message, which must be a valid `Auth`. The text `ping` is answered in every state.
async fn authenticate(
    client: &WebSocket,
    from_client: &mut EventStream<'_>,
    nonce: &ChallengeNonce,
    limits: &Limits,
) -> Result<Opening> {
    let mut timeout = Delay::from(Duration::from_millis(limits.challenge_timeout));
    let refused = |code, message| Opening::Refused(Refusal::new(code, message));
    loop {
        let message = match select(from_client.next(), &mut timeout).await {
            Either::Right(_) => return Ok(refused(ErrorCode::ChallengeTimeout, "no authentication in time")),
            Either::Left((Some(Ok(WebsocketEvent::Message(message))), _)) => message,
            Either::Left((event, _)) => return Ok(Opening::Gone(close_of(event).0)),
        };
        match message.text() {
            Some(text) if text == PING => client.send_with_str(PONG)?,
            Some(_) => return Ok(refused(ErrorCode::BadRequest, "text before authentication")),
            None => {
                let frame = Bytes::from(message.bytes().unwrap_or_default());
                return Ok(verify_auth(frame, nonce, limits)
                    .map_or_else(Opening::Refused, |auth| Opening::Verified(Box::new(auth))));
            }
        }
    }
}

/// A socket to the object, on the one path where it believes what the front says.
async fn connect(env: &Env, auth: &Verified) -> Result<WebSocket> {
    let headers = Headers::new();
    headers.set("Upgrade", "websocket")?;
    headers.set(VERIFIED_AUTH_HEADER, &URL_SAFE_NO_PAD.encode(auth.frame()))?;
    let mut init = RequestInit::new();
    init.with_method(Method::Get).with_headers(headers);
    let request = Request::new_with_init(&format!("https://namespace{INTERNAL_CONTROL}"), &init)?;
    let response = front::object(env, &auth.namespace())?.fetch_with_request(request).await?;
    let status = response.status_code();
    response.websocket().ok_or_else(|| worker::Error::RustError(format!("the object answered {status}")))
}

/// Passes messages on until one side closes, then closes the other with the same code, and answers the first.
async fn pump(
    client: &WebSocket,
    from_client: &mut EventStream<'_>,
    object: &WebSocket,
    from_object: &mut EventStream<'_>,
) {
    loop {
        let (event, other, upwards) = match select(from_client.next(), from_object.next()).await {
            Either::Left((event, _)) => (event, object, true),
            Either::Right((event, _)) => (event, client, false),
        };
        let (code, reason) = match event {
            Some(Ok(WebsocketEvent::Message(message))) => match js::forward(&message, other) {
                Ok(()) => continue,
                Err(_) => (BROKEN, String::new()),
            },
            event => close_of(event),
        };
        js::close(object, code, &reason);
        js::close(client, code, &reason);
        return if upwards { ended(from_object).await } else { ended(from_client).await };
    }
}

/// Waits until the other side has answered our Close, or long enough.
async fn ended(events: &mut EventStream<'_>) {
    let mut enough = Delay::from(CLOSING);
    while let Either::Left((Some(Ok(WebsocketEvent::Message(_))), _)) = select(events.next(), &mut enough).await {}
}

fn close_of(event: Option<Result<WebsocketEvent>>) -> (u16, String) {
    match event {
        Some(Ok(WebsocketEvent::Close(close))) => (close.code(), close.reason()),
        _ => (BROKEN, String::new()),
    }
}
