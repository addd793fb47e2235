//! One attempt at one push, from the first request to the verdict: which request comes next, and when a second try with new
//! credentials is due. It sends nothing itself.

use std::rc::Rc;

use p256::SecretKey;

use super::credentials::Credentials;
use super::fcm::{self, Access};
use super::http::{Answer, Failure, Request};
use super::verdict::{Reason, Service, Verdict};
use super::web::{self, Subscription};
use super::{Job, apns};

/// What to do next.
#[derive(Debug)]
pub enum Step {
    /// Send it, and hand the answer to [`Attempt::answered`].
    Fetch(Request),
    /// Sign it by RS256 with [`Credentials::fcm_key`], and hand the signature to [`Attempt::signed`].
    Sign(String),
    /// That was it.
    Done(Verdict),
}

/// Bytes of the platform's generator, for one attempt.
pub struct Entropy(pub [u8; Self::LEN]);

impl Entropy {
    /// Bytes needed.
    pub const LEN: usize = 48;
}

/// See the module. Call [`Self::begin`], then what each [`Step`] says, until [`Step::Done`].
pub struct Attempt {
    credentials: Rc<Credentials>,
    job: Job,
    entropy: Entropy,
    state: State,
    /// The second try with new credentials is under way.
    again: bool,
    access: Option<Access>,
    fresh: bool,
}

enum State {
    Sending,
    Signing(String),
    Exchanging,
}

impl Attempt {
    /// One attempt at `job`. `access`: the access token that is known, if any.
    pub const fn new(credentials: Rc<Credentials>, job: Job, entropy: Entropy, access: Option<Access>) -> Self {
        Self { credentials, job, entropy, state: State::Sending, again: false, access, fresh: false }
    }

    /// The service that the job is for.
    pub const fn service(&self) -> Option<Service> {
        Service::of_platform(self.job.target.platform)
    }

    /// The access token that this attempt has got, to be kept.
    pub fn fresh_access(&self) -> Option<&Access> {
        self.access.as_ref().filter(|_| self.fresh)
    }

    /// The first step. `href`: what a WHATWG parser makes of a URL.
    pub fn begin(&mut self, now_ms: u64, href: impl FnOnce(&str) -> Option<String>) -> Step {
        let credentials = Rc::clone(&self.credentials);
        match self.service() {
            Some(Service::Apns) => self.send_apns(now_ms),
            Some(Service::Fcm) => {
                let Some(fcm) = &credentials.fcm else { return refused(Reason::Off) };
                self.access = self.access.take().and_then(|access| access.usable(fcm, now_ms));
                self.send_fcm(now_ms)
            }
            Some(Service::Web) => {
                let Some(web) = &credentials.web else { return refused(Reason::Off) };
                match Subscription::parse(web, &self.job.target.token, href) {
                    Ok(subscription) => self.send_web(web, &subscription, now_ms),
                    Err(reason) => refused(reason),
                }
            }
            None => refused(Reason::Off),
        }
    }

    /// After [`Step::Fetch`].
    pub fn answered(&mut self, now_ms: u64, answer: Result<Answer, Failure>) -> Step {
        let answer = match answer {
            Ok(answer) => answer,
            Err(failure) => return Step::Done(failure.into()),
        };
        let credentials = Rc::clone(&self.credentials);
        if matches!(self.state, State::Exchanging) {
            let Some(fcm) = &credentials.fcm else { return refused(Reason::Off) };
            return match fcm::exchanged(fcm, &answer, now_ms) {
                Ok(access) => {
                    (self.access, self.fresh) = (Some(access), true);
                    self.send_fcm(now_ms)
                }
                Err(verdict) => Step::Done(verdict),
            };
        }
        let verdict = match self.service() {
            Some(Service::Apns) => apns::judge(&answer, now_ms),
            Some(Service::Fcm) => fcm::judge(&answer, now_ms),
            Some(Service::Web) => Some(web::judge(&answer, now_ms)),
            None => return refused(Reason::Off),
        };
        match verdict {
            Some(verdict) => Step::Done(verdict),
            None if self.again => {
                let apns = self.service() == Some(Service::Apns);
                let reason = if apns { Reason::Expired } else { Reason::Credentials };
                // What the service has just refused twice is not worth keeping.
                self.fresh = false;
                Step::Done(Verdict::refused(reason, answer.status))
            }
            None => {
                self.again = true;
                self.access = None;
                if self.service() == Some(Service::Apns) { self.send_apns(now_ms) } else { self.send_fcm(now_ms) }
            }
        }
    }

    /// After [`Step::Sign`]; `None` if the key does not sign.
    pub fn signed(&mut self, signature: Option<&[u8]>) -> Step {
        let credentials = Rc::clone(&self.credentials);
        let state = std::mem::replace(&mut self.state, State::Exchanging);
        match (state, signature, &credentials.fcm) {
            (State::Signing(input), Some(signature), Some(fcm)) => Step::Fetch(fcm::exchange(fcm, input, signature)),
            _ => refused(Reason::Credentials),
        }
    }

    fn send_apns(&self, now_ms: u64) -> Step {
        let Some(apns) = &self.credentials.apns else { return refused(Reason::Off) };
        // A second request is another one to Apple.
        let id = if self.again { self.entropy.0.last_chunk() } else { self.entropy.0.first_chunk() };
        let id = id.copied().unwrap_or_default();
        match apns::request(apns, &self.job, id, now_ms) {
            Ok(request) => Step::Fetch(request),
            Err(reason) => refused(reason),
        }
    }

    fn send_fcm(&mut self, now_ms: u64) -> Step {
        let Some(fcm) = &self.credentials.fcm else { return refused(Reason::Off) };
        if let Some(access) = &self.access {
            self.state = State::Sending;
            return Step::Fetch(fcm::request(fcm, &self.job, access));
        }
        let input = fcm::assertion(fcm, now_ms);
        self.state = State::Signing(input.clone());
        Step::Sign(input)
    }

    fn send_web(&self, web: &super::credentials::Web, subscription: &Subscription, now_ms: u64) -> Step {
        let salt = self.entropy.0.first_chunk().copied().unwrap_or_default();
        // One in 2^32 draws is no key; the next attempt has another.
        let ephemeral = self.entropy.0.last_chunk::<32>().and_then(|bytes| SecretKey::from_slice(bytes).ok());
        let request =
            ephemeral.and_then(|ephemeral| web::request(web, &self.job, subscription, &ephemeral, salt, now_ms));
        match request {
            Some(request) => Step::Fetch(request),
            None => Step::Done(Verdict::unavailable(Reason::Internal, 0, None)),
        }
    }
}

fn refused(reason: Reason) -> Step {
    Step::Done(Verdict::refused(reason, 0))
}

#[cfg(test)]
mod tests {
    use skald_common::wire::Platform;

    use super::*;
    use crate::push::tests::{NOW_MS, credentials, header, href, job, subscription};
    use crate::push::{Outcome, Target};

    const APNS: i32 = Platform::Ios as i32;
    const FCM: i32 = Platform::Android as i32;
    const WEB: i32 = Platform::Web as i32;

    fn attempt(platform: i32, token: &str, access: Option<Access>) -> Attempt {
        Attempt::new(Rc::new(credentials()), job(platform, token, 10), Entropy([5; 48]), access)
    }

    fn answer(status: u16, body: &str) -> Answer {
        Answer { status, retry_after: None, body: body.into() }
    }

    fn fetch(step: Step) -> Request {
        match step {
            Step::Fetch(request) => request,
            other => panic!("{other:?}"),
        }
    }

    fn sign(step: Step) -> String {
        match step {
            Step::Sign(input) => input,
            other => panic!("{other:?}"),
        }
    }

    fn done(step: Step) -> Verdict {
        match step {
            Step::Done(verdict) => verdict,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_apns_push_is_one_request_and_a_second_one_for_an_expired_token() {
        let entropy = Entropy(std::array::from_fn(|at| u8::try_from(at).unwrap()));
        let job = job(APNS, &"ab".repeat(32), 10);
        let mut attempt = Attempt::new(Rc::new(credentials()), job, entropy, None);
        let first = fetch(attempt.begin(NOW_MS, href));
        let expired = || answer(403, r#"{"reason":"ExpiredProviderToken"}"#);
        let second = fetch(attempt.answered(NOW_MS + 1_800_000, Ok(expired())));
        assert_ne!(header(&first, "authorization"), header(&second, "authorization"), "by the clock as it is now");
        assert_ne!(header(&first, "apns-id"), header(&second, "apns-id"));
        assert_eq!(done(attempt.answered(NOW_MS, Ok(expired()))), Verdict::refused(Reason::Expired, 403));
    }

    #[test]
    fn an_fcm_push_gets_an_access_token_first_and_keeps_it() {
        let mut attempt = attempt(FCM, "t", None);
        let input = sign(attempt.begin(NOW_MS, href));
        let exchange = fetch(attempt.signed(Some(b"signature")));
        assert!(String::from_utf8(exchange.body).unwrap().contains(&input));
        let push = fetch(attempt.answered(NOW_MS, Ok(answer(200, r#"{"access_token":"A1","expires_in":3600}"#))));
        assert_eq!(header(&push, "authorization"), "Bearer A1");
        assert_eq!(done(attempt.answered(NOW_MS, Ok(answer(200, "{}")))).outcome, Outcome::Sent);
        let access = attempt.fresh_access().cloned();

        let mut next = self::attempt(FCM, "t", access);
        assert_eq!(header(&fetch(next.begin(NOW_MS + 1, href)), "authorization"), "Bearer A1");
        assert_eq!(next.fresh_access(), None, "nothing new to keep");
    }

    #[test]
    fn an_access_token_that_is_refused_is_replaced_once() {
        let known =
            Access { identity: credentials().fcm_identity().unwrap(), token: "OLD".into(), until_ms: NOW_MS + 9 };
        let mut attempt = attempt(FCM, "t", Some(known));
        assert_eq!(header(&fetch(attempt.begin(NOW_MS, href)), "authorization"), "Bearer OLD");
        sign(attempt.answered(NOW_MS, Ok(answer(401, ""))));
        fetch(attempt.signed(Some(b"signature")));
        let push = fetch(attempt.answered(NOW_MS, Ok(answer(200, r#"{"access_token":"NEW","expires_in":3600}"#))));
        assert_eq!(header(&push, "authorization"), "Bearer NEW");
        assert_eq!(done(attempt.answered(NOW_MS, Ok(answer(401, "")))), Verdict::refused(Reason::Credentials, 401));
        assert_eq!(attempt.fresh_access(), None, "one that does not work is not kept");
    }

    #[test]
    fn a_key_that_does_not_sign_is_a_matter_of_credentials() {
        let mut attempt = attempt(FCM, "t", None);
        sign(attempt.begin(NOW_MS, href));
        assert_eq!(done(attempt.signed(None)), Verdict::refused(Reason::Credentials, 0));
    }

    #[test]
    fn a_web_push_is_one_request_with_fresh_keys() {
        let token = subscription("https://fcm.googleapis.com/wp/x");
        let with = |byte| {
            let entropy = Entropy([byte; 48]);
            fetch(Attempt::new(Rc::new(credentials()), job(WEB, &token, 10), entropy, None).begin(NOW_MS, href)).body
        };
        assert_ne!(with(1), with(2));
        let mut attempt = attempt(WEB, &token, None);
        fetch(attempt.begin(NOW_MS, href));
        assert_eq!(done(attempt.answered(NOW_MS, Ok(answer(410, "")))), Verdict::gone(Reason::Unregistered, 410));
    }

    #[test]
    fn no_answer_is_a_reason_to_try_again_later() {
        for (failure, reason) in [(Failure::Network, Reason::Network), (Failure::Timeout, Reason::Timeout)] {
            let mut attempt = attempt(APNS, &"ab".repeat(32), None);
            fetch(attempt.begin(NOW_MS, href));
            assert_eq!(done(attempt.answered(NOW_MS, Err(failure))), Verdict::unavailable(reason, 0, None));
        }
    }

    #[test]
    fn without_credentials_nothing_is_sent() {
        for platform in [APNS, FCM, WEB, 0, 99] {
            let job = job(platform, &"ab".repeat(32), 1);
            let credentials = Rc::new(Credentials::from_lookup(|_| None));
            let mut attempt = Attempt::new(credentials, job, Entropy([0; 48]), None);
            assert_eq!(done(attempt.begin(NOW_MS, href)), Verdict::refused(Reason::Off, 0));
        }
    }

    #[test]
    fn no_debug_text_shows_what_no_log_may_have() {
        let token = subscription("https://fcm.googleapis.com/wp/capability");
        let request = fetch(attempt(WEB, &token, None).begin(NOW_MS, href));
        let target = Target { platform: WEB, token };
        let shown = format!("{request:?} {target:?} {:?}", answer(200, "capability"));
        assert!(!shown.contains("capability"), "{shown}");
    }
}
