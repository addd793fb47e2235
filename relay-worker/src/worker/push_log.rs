//! The counts of pushes of the whole relay: one object keeps them, all others report to it, and `/healthz` asks it. A push
//! and `/healthz` do without it when it does not answer.

use std::cell::RefCell;

use worker::wasm_bindgen::prelude::wasm_bindgen;
use worker::wasm_bindgen::{JsValue, closure::Closure};
use worker::wasm_bindgen_futures::JsFuture;
use worker::{DurableObject, Env, Method, Request, Response, Result, State, Stub, durable_object, js_sys::Promise};

use super::sql::ObjectSql;
use super::{js, pushes, wires};
use crate::push::{Kind, Reason, Service, ledger, tally};

/// The Durable Object binding, and the name of the only object.
const BINDING: &str = "PUSH_LOG";
const NAME: &str = "log";
/// How long `/healthz` waits for it, milliseconds.
const PATIENCE_MS: f64 = 1000.0;
/// How long its answer serves, milliseconds.
const FRESH_MS: u64 = 2000;

mod raw {
    use super::{JsValue, Promise, wasm_bindgen};

    #[wasm_bindgen(module = "/src/worker/errand.js")]
    extern "C" {
        pub(super) fn report(awaken: &JsValue, object: &JsValue, body: &str, failed: &JsValue) -> JsValue;
        pub(super) fn ask(object: &JsValue, delay_ms: f64) -> Promise;
    }
}

thread_local! {
    static TALLY: RefCell<tally::Tally> = RefCell::default();
    /// What was answered last, and when.
    static KNOWN: RefCell<Option<(u64, String)>> = const { RefCell::new(None) };
}

/// See the module.
#[durable_object(fetch)]
pub struct PushLog {
    state: State,
}

impl DurableObject for PushLog {
    fn new(state: State, _env: Env) -> Self {
        Self { state }
    }

    /// Reached by this Worker's own objects alone.
    async fn fetch(&self, mut request: Request) -> Result<Response> {
        let sql = ObjectSql::new(&self.state);
        let done = if request.method() == Method::Post {
            let report = tally::read(&request.text().await?);
            ledger::add(&sql, &report).map(|()| String::new())
        } else {
            ledger::all(&sql).map(|counts| tally::write(&counts))
        };
        match done {
            Ok(body) => Response::ok(body),
            Err(error) => {
                worker::console_error!("push log: {error}");
                Response::error("storage", 500)
            }
        }
    }
}

/// Counts an outcome, and reports what is due. Nobody waits for it.
pub(super) fn note(env: &Env, service: Service, kind: Kind, reason: Reason) {
    let due = TALLY.with_borrow_mut(|tally| tally.note(js::now_ms(), service, kind, reason));
    if due.is_empty() {
        return;
    }
    let report = tally::write(&due);
    let failed = move || TALLY.with_borrow_mut(|tally| tally.take_back(&due));
    match object(env) {
        Ok(object) => {
            let failed = Closure::<dyn Fn()>::own_aborting(failed).into_js_value();
            raw::report(&wires::awaken(), &object, &report, &failed);
        }
        Err(_) => failed(),
    }
}

/// The answer of `/healthz`.
pub(super) async fn health(env: &Env) -> String {
    let credentials = pushes::credentials(env);
    let counts = if ledger::counts(&credentials) { counts(env).await } else { Some(String::new()) };
    let counts = counts.map(|counts| tally::read(&counts));
    ledger::health(env!("CARGO_PKG_VERSION"), &credentials, counts.as_deref())
}

async fn counts(env: &Env) -> Option<String> {
    let now = js::now_ms();
    let known = KNOWN.with_borrow(Clone::clone);
    if let Some((_, counts)) = known.filter(|(at, _)| (*at..at.saturating_add(FRESH_MS)).contains(&now)) {
        return Some(counts);
    }
    let counts = JsFuture::from(raw::ask(&object(env).ok()?, PATIENCE_MS)).await.ok()?.as_string()?;
    KNOWN.with_borrow_mut(|known| *known = Some((now, counts.clone())));
    Some(counts)
}

fn object(env: &Env) -> Result<JsValue> {
    let stub: Stub = env.durable_object(BINDING)?.get_by_name(NAME)?;
    Ok(stub.into_rpc())
}
