//! Pushes as they are sent: an [`Attempt`] says what to fetch, errand.js fetches it, and the verdict goes to the object that
//! asked, to the log, and to the [`push_log`](super::push_log). Nothing of it runs in the turn that asks for a push, and
//! nothing outlives the requests.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use skald_common::ids::NamespaceId;
use worker::js_sys::{Array, Object, Reflect, Uint8Array};
use worker::wasm_bindgen::JsValue;
use worker::wasm_bindgen::closure::Closure;
use worker::wasm_bindgen::prelude::wasm_bindgen;
use worker::{Env, Result};

use super::{js, push_log, wires};
use crate::push::{Access, Answer, Attempt, Credentials, Entropy, Failure, Job, Kind, Reason, Service, Step, Verdict};

/// How long an attempt may take, all its requests together, milliseconds. The engine's lease is twice that.
const TIMEOUT_MS: f64 = 30_000.0;

mod raw {
    use super::{JsValue, wasm_bindgen};

    #[wasm_bindgen(module = "/src/worker/errand.js")]
    extern "C" {
        pub(super) fn errand(awaken: &JsValue, next: &JsValue, delay_ms: f64) -> JsValue;
    }
}

thread_local! {
    static CREDENTIALS: OnceCell<Rc<Credentials>> = const { OnceCell::new() };
    /// The access token that all objects of this isolate share.
    static ACCESS: RefCell<Option<Access>> = const { RefCell::new(None) };
}

/// What this relay can push with, read once: the secrets of a deployment do not change. What is wrong is told in the log.
pub(super) fn credentials(env: &Env) -> Rc<Credentials> {
    let read = || {
        let credentials = Credentials::from_lookup(|name| js::variable(env, name));
        for error in credentials.errors() {
            worker::console_error!("{error}");
        }
        Rc::new(credentials)
    };
    CREDENTIALS.with(|credentials| Rc::clone(credentials.get_or_init(read)))
}

/// What an attempt needs of the object that asks for it.
pub(super) trait Asker {
    /// The bindings.
    fn env(&self) -> &Env;
    /// The access token in the object's storage.
    fn stored_access(&self) -> Option<Access>;
    /// Keeps an access token there.
    fn store_access(&self, access: &Access);
    /// The attempt has ended.
    fn pushed(&self, id: u64, verdict: Verdict);
}

/// Begins an attempt, after the turn that asks for it. `asker` gives `None` when the object is no more.
pub(super) fn start<A: Asker>(credentials: &Rc<Credentials>, job: Job, asker: impl Fn() -> Option<A> + 'static) {
    let mut errand = Errand {
        id: job.id,
        namespace: job.namespace,
        service: Service::of_platform(job.target.platform),
        started_ms: js::now_ms(),
        credentials: Rc::clone(credentials),
        attempt: None,
        job: Some(job),
        asker,
    };
    let next = Closure::<dyn FnMut(u32, u16, Option<String>, Option<Uint8Array>) -> JsValue>::own_aborting(
        move |kind, status, retry_after, bytes: Option<Uint8Array>| {
            errand.next(kind, status, retry_after, bytes.map(|bytes| bytes.to_vec())).unwrap_or_default()
        },
    );
    raw::errand(&wires::awaken(), &next.into_js_value(), TIMEOUT_MS);
}

/// A message was tried as often as any is.
pub(super) fn given_up(env: &Env, platform: i32) {
    if let Some(service) = Service::of_platform(platform) {
        worker::console_log!("push service={} outcome={}", service.name(), Kind::GivenUp.name());
        push_log::note(env, service, Kind::GivenUp, Reason::Exhausted);
    }
}

struct Errand<F> {
    id: u64,
    namespace: NamespaceId,
    service: Option<Service>,
    started_ms: u64,
    credentials: Rc<Credentials>,
    job: Option<Job>,
    attempt: Option<Attempt>,
    asker: F,
}

impl<A: Asker, F: Fn() -> Option<A>> Errand<F> {
    /// From what has happened to what comes next; `None` at the end, and when nobody wants to know any more.
    fn next(&mut self, kind: u32, status: u16, retry_after: Option<String>, bytes: Option<Vec<u8>>) -> Option<JsValue> {
        let asker = (self.asker)()?;
        let now = js::now_ms();
        let step = match (kind, &mut self.attempt) {
            (0, attempt) => {
                let attempt = attempt.insert(begin(&self.credentials, self.job.take()?, &asker).ok()?);
                attempt.begin(now, js::href)
            }
            (1, Some(attempt)) => {
                attempt.answered(now, Ok(Answer { status, retry_after, body: bytes.unwrap_or_default() }))
            }
            (2, Some(attempt)) => attempt.signed(bytes.as_deref()),
            (3, Some(attempt)) => attempt.answered(now, Err(Failure::Network)),
            (_, Some(attempt)) => attempt.answered(now, Err(Failure::Timeout)),
            (_, None) => return None,
        };
        match step {
            Step::Fetch(request) => {
                let headers = request.headers.iter().map(|(name, value)| Array::of2(&(*name).into(), &value.into()));
                let body = Uint8Array::from(request.body.as_slice());
                let headers: Array = headers.collect();
                object(&[("url", request.url.into()), ("headers", headers.into()), ("body", body.into())])
            }
            Step::Sign(input) => {
                let key = Uint8Array::from(self.credentials.fcm_key()?);
                object(&[("key", key.into()), ("input", input.into())])
            }
            Step::Done(verdict) => {
                self.done(&asker, now, verdict);
                None
            }
        }
    }

    fn done(&self, asker: &A, now: u64, verdict: Verdict) {
        if let Some(access) = self.attempt.as_ref().and_then(Attempt::fresh_access) {
            ACCESS.with_borrow_mut(|known| *known = Some(access.clone()));
            asker.store_access(access);
        }
        if let Some(service) = self.service {
            let (outcome, reason, status) = (verdict.kind().name(), verdict.reason.code(), verdict.status);
            let (namespace, ms) = (self.namespace.short(), now.saturating_sub(self.started_ms));
            let service_name = service.name();
            worker::console_log!(
                "push ns={namespace} service={service_name} outcome={outcome} reason={reason} status={status} ms={ms}"
            );
            push_log::note(asker.env(), service, verdict.kind(), verdict.reason);
        }
        asker.pushed(self.id, verdict);
    }
}

fn begin(credentials: &Rc<Credentials>, job: Job, asker: &impl Asker) -> Result<Attempt> {
    let known = || ACCESS.with_borrow(Clone::clone).or_else(|| asker.stored_access());
    let access = (Service::of_platform(job.target.platform) == Some(Service::Fcm)).then(known).flatten();
    Ok(Attempt::new(Rc::clone(credentials), job, Entropy(js::random()?), access))
}

fn object(fields: &[(&str, JsValue)]) -> Option<JsValue> {
    let object = Object::new();
    for (name, value) in fields {
        Reflect::set(&object, &(*name).into(), value).ok()?;
    }
    Some(object.into())
}
