//! [`Wires`]: the sockets and the timer of an object that does not hibernate, held by a few lines of JavaScript, which close
//! the sockets if this wasm instance is gone; and the same guard for a single socket of the front.

use worker::js_sys::{ArrayBuffer, Function};
use worker::wasm_bindgen::prelude::wasm_bindgen;
use worker::wasm_bindgen::{JsCast as _, JsValue, closure::Closure};
use worker::{Result, State, WebSocket, web_sys};

use super::js;

mod raw {
    use super::{Function, JsValue, wasm_bindgen, web_sys};

    #[wasm_bindgen(module = "/src/worker/wires.js")]
    extern "C" {
        pub(super) type Wires;
        #[wasm_bindgen(constructor)]
        pub(super) fn new(awaken: &JsValue, handler: &JsValue) -> Wires;
        #[wasm_bindgen(method, catch)]
        pub(super) fn add(this: &Wires, which: u32, socket: &web_sys::WebSocket) -> Result<(), JsValue>;
        #[wasm_bindgen(method)]
        pub(super) fn wake(this: &Wires, delay_ms: f64);
        #[wasm_bindgen(method)]
        pub(super) fn close(this: &Wires, code: u16, reason: &str);
        pub(super) fn hold(state: &JsValue, delay_ms: f64);
        pub(super) fn guarded(socket: Option<&web_sys::WebSocket>, awaken: &JsValue, handler: &JsValue) -> Function;
    }
}

thread_local! {
    /// A call into this wasm that does nothing; what for, wires.js says.
    static AWAKEN: JsValue = Closure::<dyn Fn()>::own_aborting(|| {}).into_js_value();
}

/// What happened on a wire.
pub(super) enum Event {
    /// A message: an `ArrayBuffer` of so many bytes, or text.
    Message { which: u32, size: u64, data: JsValue },
    /// A socket has ended; 1006 when it broke.
    Closed { which: u32, code: u16 },
    /// The timer is due.
    Timer,
}

/// See the module.
pub(super) struct Wires(raw::Wires);

impl Wires {
    /// `handler` gets every event, for as long as the sockets live.
    pub(super) fn new(handler: impl Fn(Event) + 'static) -> Self {
        let closure = Closure::<dyn Fn(u32, u32, f64, JsValue)>::own_aborting(move |kind, which, value, data| {
            handler(match kind {
                0 => Event::Message { which, size: js::millis(value), data },
                1 => Event::Closed { which, code: u16::try_from(js::millis(value)).unwrap_or(js::BROKEN) },
                _ => Event::Timer,
            });
        });
        Self(AWAKEN.with(|awaken| raw::Wires::new(awaken, &closure.into_js_value())))
    }

    /// Takes a socket in, accepts it, and gives it back for sending. `which` names it in events.
    pub(super) fn add(&self, which: u32, socket: WebSocket) -> Result<WebSocket> {
        self.0.add(which, socket.as_ref())?;
        Ok(socket)
    }

    /// An [`Event::Timer`] after so many milliseconds, or none; in place of the one that is pending.
    pub(super) fn wake(&self, delay_ms: Option<u64>) {
        // Longer waits are cut short, which is harmless.
        let delay = delay_ms.map_or(-1, |ms| i32::try_from(ms).unwrap_or(i32::MAX));
        self.0.wake(delay.into());
    }

    /// Closes all of them, after what was sent; one that is closed already is no error.
    pub(super) fn close(&self, code: u16, reason: &str) {
        self.0.close(js::sendable(code), reason);
    }
}

/// A call into this wasm that does nothing, for JavaScript that is to call a closure much later.
pub(super) fn awaken() -> JsValue {
    AWAKEN.with(Clone::clone)
}

/// `handler` as a listener of a socket, which is closed if this wasm instance is gone; or of a timer.
pub(super) fn guarded(socket: Option<&web_sys::WebSocket>, handler: &JsValue) -> Function {
    AWAKEN.with(|awaken| raw::guarded(socket, awaken, handler))
}

/// Has the runtime take no event of this object for so long.
#[allow(clippy::cast_precision_loss)] // seconds at most
pub(super) fn hold(state: &State, delay_ms: u64) {
    raw::hold(state.as_raw(), delay_ms as f64);
}

/// Sends a message on as it came, without copying it into this module's memory.
pub(super) fn forward(data: &JsValue, to: &WebSocket) -> Result<()> {
    let to: &web_sys::WebSocket = to.as_ref();
    Ok(to.send_with_array_buffer(data.unchecked_ref::<ArrayBuffer>())?)
}
