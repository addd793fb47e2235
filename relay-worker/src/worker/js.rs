//! The few things of the platform that the `worker` crate lacks, or offers only in forms that panic.

use std::cell::OnceCell;
use std::rc::Rc;

use worker::js_sys::{ArrayBuffer, Date, Function, Map, Object, Promise, Reflect, Uint8Array};
use worker::wasm_bindgen::prelude::wasm_bindgen;
use worker::wasm_bindgen::{JsCast, JsValue, closure::Closure};
use worker::{Env, Error, Request, Result, State, WebSocket, durable, web_sys, worker_sys};

use super::wires;
use crate::engine::{ConnId, Limits};

/// The code of a connection that ended without one.
pub(super) const BROKEN: u16 = 1006;

/// Unix milliseconds. The platform's clock stands still while code runs and moves with every event.
pub(super) fn now_ms() -> u64 {
    millis(Date::now())
}

/// Milliseconds from a JavaScript number; what is no date counts as 0.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(super) fn millis(number: f64) -> u64 {
    number as u64
}

/// A variable of wrangler.toml; empty counts as absent.
pub(super) fn variable(env: &Env, name: &str) -> Option<String> {
    env.var(name).ok().map(|value| value.to_string()).filter(|value| !value.is_empty())
}

thread_local! {
    static LIMITS: OnceCell<Limits> = const { OnceCell::new() };
}

/// The limits of this relay, read once: the variables of a deployment do not change. Wrong values are told in the log and
/// leave their default.
pub(super) fn limits(env: &Env) -> Limits {
    let read = || {
        let (limits, errors) = Limits::from_lookup(|name| variable(env, name));
        for error in errors {
            worker::console_error!("{error}");
        }
        limits
    };
    LIMITS.with(|limits| limits.get_or_init(read).clone())
}

/// Fresh bytes from the platform's generator.
pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let array = Uint8Array::new_with_length(u32::try_from(N).map_err(|error| Error::RustError(error.to_string()))?);
    let crypto = Reflect::get(&worker::js_sys::global(), &"crypto".into())?;
    call(&crypto, "getRandomValues", &[array.as_ref()])?;
    let mut bytes = [0; N];
    array.copy_to(&mut bytes);
    Ok(bytes)
}

mod raw {
    use super::{JsValue, wasm_bindgen};

    #[wasm_bindgen]
    extern "C" {
        #[wasm_bindgen(js_name = URL)]
        pub(super) type Url;
        #[wasm_bindgen(constructor, js_class = "URL", catch)]
        pub(super) fn new(text: &str) -> Result<Url, JsValue>;
        #[wasm_bindgen(method, getter)]
        pub(super) fn hostname(this: &Url) -> String;
        #[wasm_bindgen(method, getter)]
        pub(super) fn pathname(this: &Url) -> String;
        #[wasm_bindgen(method, getter)]
        pub(super) fn href(this: &Url) -> String;
    }
}

/// The host, without port, and the path of a request. The platform parses what `Request::url` would parse with tables
/// that are a tenth of this module's size.
pub(super) fn host_and_path(request: &Request) -> Result<(String, String)> {
    let url = raw::Url::new(&request.inner().url())?;
    Ok((url.hostname(), url.pathname()))
}

/// What the platform makes of a URL (WHATWG); nothing if it is none.
pub(super) fn href(text: &str) -> Option<String> {
    Some(raw::Url::new(text).ok()?.href())
}

/// Calls a method of any JavaScript value.
pub(super) fn call(this: &JsValue, method: &str, arguments: &[&JsValue]) -> Result<JsValue> {
    let function: Function = Reflect::get(this, &method.into())?.dyn_into()?;
    let list = worker::js_sys::Array::new();
    for argument in arguments {
        list.push(argument);
    }
    Ok(function.apply(this, &list)?)
}

/// Lets a promise run on without anybody waiting; a failure is logged.
pub(super) fn detach(what: &'static str, promise: std::result::Result<Promise, JsValue>) {
    match promise {
        Ok(promise) => worker::wasm_bindgen_futures::spawn_local(async move {
            if let Err(error) = worker::wasm_bindgen_futures::JsFuture::from(promise).await {
                worker::console_error!("{what}: {}", Error::from(error));
            }
        }),
        Err(error) => worker::console_error!("{what}: {}", Error::from(error)),
    }
}

/// Runs `work` after `delay_ms`; the handle cancels it when dropped.
pub(super) fn after(delay_ms: u64, work: impl FnMut() + 'static) -> Result<Timer> {
    let closure = Closure::<dyn FnMut()>::own_aborting(work);
    let scope: web_sys::WorkerGlobalScope = worker::js_sys::global().unchecked_into();
    let delay = i32::try_from(delay_ms).unwrap_or(i32::MAX);
    let function = wires::guarded(None, closure.as_ref());
    let id = scope.set_timeout_with_callback_and_timeout_and_arguments_0(&function, delay)?;
    Ok(Timer { id, _closure: closure })
}

/// A pending `setTimeout`.
pub(super) struct Timer {
    id: i32,
    _closure: Closure<dyn FnMut()>,
}

impl Drop for Timer {
    fn drop(&mut self) {
        // An evicted object is dropped by the garbage collector, outside of any event, where the runtime refuses this
        // call; a refusal that is not caught would take the whole isolate down. The timer is gone by then anyway.
        let _ = call(&worker::js_sys::global(), "clearTimeout", &[&self.id.into()]);
    }
}

/// Hands a socket to the object's hibernation machinery.
pub(super) fn accept_hibernating(state: &State, socket: &WebSocket) -> Result<()> {
    Ok(state.as_raw().accept_websocket(socket.as_ref())?)
}

/// All sockets of the object, closing ones included.
pub(super) fn sockets(state: &State) -> Result<Vec<WebSocket>> {
    Ok(state.as_raw().get_websockets()?.into_iter().map(WebSocket::from).collect())
}

/// Has the platform answer one text with another, without waking the object.
pub(super) fn answer_automatically(state: &State, request: &str, response: &str) -> Result<()> {
    let pair = worker_sys::WebSocketRequestResponsePair::new(request, response)?;
    Ok(state.as_raw().set_websocket_auto_response(&pair)?)
}

/// When the platform last answered automatically on a socket, Unix milliseconds.
pub(super) fn last_automatic_answer(state: &State, socket: &WebSocket) -> Option<u64> {
    let date = call(state.as_raw(), "getWebSocketAutoResponseTimestamp", &[socket.as_ref()]).ok()?;
    Some(millis(date.dyn_into::<Date>().ok()?.get_time()))
}

/// Bytes written to a socket and not yet on their way.
pub(super) fn buffered(socket: &WebSocket) -> u64 {
    let socket: &web_sys::WebSocket = socket.as_ref();
    socket.buffered_amount().into()
}

/// Which connection a socket is, without asking its attachment: that would be decoded anew for every message.
#[derive(Default)]
pub(super) struct Known(Map);

impl Known {
    /// From now on, `socket` is `conn`.
    pub(super) fn insert(&self, socket: &WebSocket, conn: ConnId) {
        // Ids stay below 2^53, see `ConnId` in the object.
        #[allow(clippy::cast_precision_loss)]
        self.0.set(socket.as_ref(), &JsValue::from_f64(conn.0 as f64));
    }

    /// Forgets a socket.
    pub(super) fn remove(&self, socket: &WebSocket) {
        self.0.delete(socket.as_ref());
    }

    /// The connection of a socket.
    pub(super) fn get(&self, socket: &WebSocket) -> Option<ConnId> {
        self.0.get(socket.as_ref()).as_f64().map(|id| ConnId(millis(id)))
    }
}

/// The bytes saved with a socket.
pub(super) fn attachment(socket: &WebSocket) -> Option<Vec<u8>> {
    use worker_sys::ext::WebSocketExt as _;
    let socket: &web_sys::WebSocket = socket.as_ref();
    Some(socket.deserialize_attachment().ok()?.dyn_into::<Uint8Array>().ok()?.to_vec())
}

/// Saves bytes with a socket, in place of what was saved before.
pub(super) fn attach(socket: &WebSocket, bytes: &[u8]) -> Result<()> {
    use worker_sys::ext::WebSocketExt as _;
    let socket: &web_sys::WebSocket = socket.as_ref();
    Ok(socket.serialize_attachment(Uint8Array::from(bytes).into())?)
}

/// Has a socket deliver binary messages as `ArrayBuffer`, whatever the compatibility date says.
pub(super) fn deliver_buffers(socket: &WebSocket) {
    let socket: &web_sys::WebSocket = socket.as_ref();
    socket.set_binary_type(web_sys::BinaryType::Arraybuffer);
}

/// What a socket that this Worker has accepted reports.
pub(super) enum Event {
    /// A message came.
    Message(web_sys::MessageEvent),
    /// It has ended; 1006 when it broke.
    Closed { code: u16, reason: String },
}

/// Hands every event of a socket to `handler`, until it is dropped.
pub(super) fn listen(socket: &WebSocket, handler: impl Fn(Event) + 'static) -> Result<Listener> {
    let handler = Rc::new(handler);
    let socket: &web_sys::WebSocket = socket.as_ref();
    let on_message = Closure::own_aborting({
        let handler = Rc::clone(&handler);
        move |event: web_sys::MessageEvent| handler(Event::Message(event))
    });
    let on_close = Closure::own_aborting({
        let handler = Rc::clone(&handler);
        move |event: web_sys::CloseEvent| handler(Event::Closed { code: event.code(), reason: event.reason() })
    });
    let on_error = Closure::own_aborting(move |_: web_sys::Event| {
        handler(Event::Closed { code: BROKEN, reason: String::new() });
    });
    let functions = [
        ("message", wires::guarded(Some(socket), on_message.as_ref())),
        ("close", wires::guarded(Some(socket), on_close.as_ref())),
        ("error", wires::guarded(Some(socket), on_error.as_ref())),
    ];
    for (name, function) in &functions {
        socket.add_event_listener_with_callback(name, function)?;
    }
    Ok(Listener { socket: socket.clone(), functions, _closures: (on_message, on_close, on_error) })
}

/// A pending [`listen`].
pub(super) struct Listener {
    socket: web_sys::WebSocket,
    functions: [(&'static str, Function); 3],
    _closures: Closures,
}

type Closures = (
    Closure<dyn FnMut(web_sys::MessageEvent)>,
    Closure<dyn FnMut(web_sys::CloseEvent)>,
    Closure<dyn FnMut(web_sys::Event)>,
);

impl Drop for Listener {
    fn drop(&mut self) {
        for (name, function) in &self.functions {
            // Outside of any event the runtime refuses this; the socket is gone by then.
            let _ = self.socket.remove_event_listener_with_callback(name, function);
        }
    }
}

/// Passes a message on as it came, without copying it into this module's memory.
pub(super) fn forward(message: &web_sys::MessageEvent, to: &WebSocket) -> Result<()> {
    let data = message.data();
    let to: &web_sys::WebSocket = to.as_ref();
    match data.dyn_into::<ArrayBuffer>() {
        Ok(buffer) => to.send_with_array_buffer(&buffer)?,
        Err(text) => to.send_with_str(&text.as_string().unwrap_or_default())?,
    }
    Ok(())
}

/// A code that may be sent for one that was received: 1005 (none), 1006 (broken) and 1015 (TLS) exist only on one side,
/// and none of them may turn into 1000, which would prove receipt (wire protocol, Delivery guarantee).
pub(super) fn sendable(code: u16) -> u16 {
    match code {
        1000..=1003 | 1007..=1014 | 3000..=4999 => code,
        _ => 1001,
    }
}

/// Closes a socket; one that is closed already is no error.
pub(super) fn close(socket: &WebSocket, code: u16, reason: &str) {
    if let Err(error) = socket.close(Some(sendable(code)), Some(reason)) {
        worker::console_debug!("close: {error}");
    }
}

/// The alarm, in place of the one that is set.
pub(super) fn set_alarm(storage: &durable::Storage, at_ms: u64) {
    #[allow(clippy::cast_precision_loss)]
    let at = Date::new(&JsValue::from_f64(at_ms as f64));
    detach("setAlarm", storage.as_raw().set_alarm(at, Object::new()));
}

/// Deletes all rows and the alarm.
pub(super) fn delete_all(storage: &durable::Storage) {
    detach("deleteAlarm", storage.as_raw().delete_alarm(Object::new()));
    detach("deleteAll", storage.as_raw().delete_all());
}
