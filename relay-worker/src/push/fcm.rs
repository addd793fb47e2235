//! Google's push service, the HTTP v1 API (push protocol, FCM).

use super::credentials::Fcm;
use super::http::{Answer, Request};
use super::json::{self, Json};
use super::jwt::{signed, signing_input};
use super::payload::{self, Names, Payload};
use super::verdict::{Reason, Verdict};
use super::{Job, MESSAGE_LIFE_SECS};

const SCOPE: &str = "https://www.googleapis.com/auth/firebase.messaging";
/// How long an assertion is valid, seconds; Google allows an hour.
const ASSERTION_SECS: u64 = 3600;
/// An access token is not used for this long before it expires, milliseconds.
const MARGIN_MS: u64 = 5 * 60 * 1000;
/// What is believed of `expires_in`, seconds.
const MAX_EXPIRES_IN: u64 = 24 * 3600;
/// Longest access token that is believed to be one, bytes.
const MAX_ACCESS: usize = 8192;

/// A token that Google gave us for our assertion.
#[derive(Clone, PartialEq, Eq)]
pub struct Access {
    /// Whose: [`super::Credentials::fcm_identity`].
    pub identity: [u8; 16],
    /// Visible ASCII.
    pub token: String,
    /// Not to be used from then on, Unix milliseconds.
    pub until_ms: u64,
}

/// A secret.
impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Access(until {})", self.until_ms)
    }
}

impl Access {
    /// From where it was kept; `None` if it is of no use.
    pub(super) fn usable(self, fcm: &Fcm, now_ms: u64) -> Option<Self> {
        // A clock that went back must not make it live for ever.
        let live = now_ms < self.until_ms && self.until_ms <= now_ms.saturating_add(MAX_EXPIRES_IN * 1000);
        (self.identity == fcm.identity && live && is_bearer(&self.token)).then_some(self)
    }
}

fn is_bearer(token: &str) -> bool {
    (1..=MAX_ACCESS).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic())
}

/// What is to be signed with RS256, to get an access token.
pub(super) fn assertion(fcm: &Fcm, now_ms: u64) -> String {
    let issued = now_ms / 1000;
    let header = json::object(|header| {
        header.text("alg", "RS256");
        header.text("typ", "JWT");
        header.text("kid", &fcm.key_id);
    });
    let claims = json::object(|claims| {
        claims.text("iss", &fcm.email);
        claims.text("scope", SCOPE);
        claims.text("aud", &fcm.token_uri);
        claims.number("iat", issued);
        claims.number("exp", issued.saturating_add(ASSERTION_SECS));
    });
    signing_input(&header, &claims)
}

/// The exchange of a signed assertion.
pub(super) fn exchange(fcm: &Fcm, input: String, signature: &[u8]) -> Request {
    let headers = vec![("content-type", "application/x-www-form-urlencoded".to_owned())];
    let grant = "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=";
    let body = format!("{grant}{}", signed(input, signature)).into_bytes();
    Request { url: fcm.token_uri.clone(), headers, body }
}

/// The access token, or what becomes of the push without one.
pub(super) fn exchanged(fcm: &Fcm, answer: &Answer, now_ms: u64) -> Result<Access, Verdict> {
    match answer.status {
        200..=299 => {}
        // Whatever is wrong with an assertion, it is about who we are.
        400..=404 => return Err(Verdict::refused(Reason::Credentials, answer.status)),
        _ => return Err(answer.judge(now_ms)),
    }
    let json = answer.json();
    let member = |name| json.as_ref().and_then(|json| json.get(name));
    let token = member("access_token").and_then(Json::as_text).filter(|token| is_bearer(token));
    let life = member("expires_in").and_then(Json::as_number).map(|secs| secs.min(MAX_EXPIRES_IN));
    let (Some(token), Some(life)) = (token, life) else {
        return Err(answer.not_now(Reason::Nonsense, now_ms));
    };
    // One that lives shorter than the margin serves this push alone.
    let until_ms = now_ms.saturating_add((life * 1000).saturating_sub(MARGIN_MS));
    Ok(Access { identity: fcm.identity, token: token.to_owned(), until_ms })
}

/// The push.
pub(super) fn request(fcm: &Fcm, job: &Job, access: &Access) -> Request {
    let body = json::object(|body| {
        body.object("message", |message| {
            message.text("token", &job.target.token);
            message.object("android", |android| {
                android.text("priority", "high");
                if let Some(id) = payload::collapse(job) {
                    android.text("collapse_key", &id);
                }
                android.text("ttl", &format!("{MESSAGE_LIFE_SECS}s"));
            });
            message.object("data", |data| Payload::of(job).data(job, Names::FCM, data));
        });
    });
    let headers =
        vec![("authorization", format!("Bearer {}", access.token)), ("content-type", "application/json".to_owned())];
    Request { url: fcm.url.clone(), headers, body: body.into_bytes() }
}

/// What Google's answer means. `None`: once more, with a new access token.
pub(super) fn judge(answer: &Answer, now_ms: u64) -> Option<Verdict> {
    let status = answer.status;
    if status == 200 {
        return Some(Verdict::sent(status));
    }
    let json = answer.json();
    let details = json.as_ref().and_then(|json| json.get("error")?.get("details"));
    let code = details.into_iter().flat_map(Json::list).find_map(|detail| detail.text("errorCode"));
    Some(match (status, code.unwrap_or_default()) {
        (404, _) | (400..=499, "UNREGISTERED") => Verdict::gone(Reason::Unregistered, status),
        (401, _) => return None,
        (403, "SENDER_ID_MISMATCH") => Verdict::refused(Reason::Sender, status),
        // No other 2xx exists.
        (201..=299, _) => answer.not_now(Reason::Nonsense, now_ms),
        _ => answer.judge(now_ms),
    })
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::push::tests::{NOW_MS, credentials, header, job};
    use crate::push::{Credentials, Outcome};

    fn fcm(credentials: &Credentials) -> &Fcm {
        credentials.fcm.as_ref().unwrap()
    }

    fn access(credentials: &Credentials) -> Access {
        Access { identity: fcm(credentials).identity, token: "ya29.token".to_owned(), until_ms: NOW_MS + 1 }
    }

    fn built(job: &Job) -> Request {
        let credentials = credentials();
        request(fcm(&credentials), job, &access(&credentials))
    }

    fn message(request: &Request) -> Value {
        serde_json::from_slice(&request.body).unwrap()
    }

    #[test]
    fn a_content_push_is_what_the_protocol_says() {
        let mut job = job(2, "device:token", 100);
        job.collapse = Some([0x5a; 16]);
        let request = built(&job);
        assert_eq!(request.url, "https://fcm.googleapis.com/v1/projects/skald-test/messages:send");
        assert_eq!(header(&request, "authorization"), "Bearer ya29.token");
        let expected = r#"{"message":{"token":"device:token","android":{"priority":"high","collapse_key":"COLLAPSE","ttl":"604800s"},
            "data":{"ns":"NS","sender":"FROM","n":"NONCE","c":"CIPHERTEXT"}}}"#
            .replace("NS", &"11".repeat(32))
            .replace("FROM", &"22".repeat(32))
            .replace("NONCE", &"33".repeat(12))
            .replace("CIPHERTEXT", &STANDARD.encode([0x44; 100]))
            .replace("COLLAPSE", &"5a".repeat(16));
        assert_eq!(message(&request), serde_json::from_str::<Value>(&expected).unwrap());
    }

    #[test]
    fn a_wake_push_says_nothing_but_the_namespace() {
        let expected = r#"{"message":{"token":"t","android":{"priority":"high","ttl":"604800s"},"data":{"ns":"NS","wake":"true"}}}"#
            .replace("NS", &"11".repeat(32));
        assert_eq!(message(&built(&job(2, "t", 2626))), serde_json::from_str::<Value>(&expected).unwrap());
    }

    #[test]
    fn the_assertion_is_exchanged_as_google_says() {
        let credentials = credentials();
        let input = assertion(fcm(&credentials), NOW_MS);
        let part = |at| -> Value {
            let text = input.split('.').nth(at).unwrap();
            serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).unwrap()).unwrap()
        };
        assert_eq!(part(0), json!({"alg": "RS256", "typ": "JWT", "kid": "abcdef0123456789"}));
        let now = NOW_MS / 1000;
        let email = "push@skald-test.iam.gserviceaccount.com";
        let claims = json!({"iss": email, "scope": SCOPE, "aud": "https://oauth2.googleapis.com/token", "iat": now, "exp": now + 3600});
        assert_eq!(part(1), claims);
        let request = exchange(fcm(&credentials), input.clone(), &[0xff; 3]);
        assert_eq!(request.url, "https://oauth2.googleapis.com/token");
        assert_eq!(header(&request, "content-type"), "application/x-www-form-urlencoded");
        let body = String::from_utf8(request.body).unwrap();
        let fields: Vec<_> = url::form_urlencoded::parse(body.as_bytes()).collect();
        assert_eq!(fields[0], ("grant_type".into(), "urn:ietf:params:oauth:grant-type:jwt-bearer".into()));
        assert_eq!(fields[1], ("assertion".into(), format!("{input}.____").into()));
        assert_eq!(fields.len(), 2);
    }

    #[test]
    fn an_access_token_is_kept_until_five_minutes_before_its_end_and_for_its_account_alone() {
        let credentials = credentials();
        let fcm = fcm(&credentials);
        let answer = |body: &str| Answer { status: 200, retry_after: None, body: body.into() };
        let good = answer(r#"{"access_token":"ya29.x","expires_in":3599,"token_type":"Bearer"}"#);
        let access = exchanged(fcm, &good, NOW_MS).unwrap();
        assert_eq!(access.until_ms, NOW_MS + 3_299_000);
        assert!(access.clone().usable(fcm, NOW_MS + 3_298_999).is_some());
        assert!(access.clone().usable(fcm, NOW_MS + 3_299_000).is_none(), "over");
        assert!(access.clone().usable(fcm, 0).is_none(), "from a future that is too far away");
        let other = Access { identity: [0; 16], ..access.clone() };
        assert!(other.usable(fcm, NOW_MS).is_none(), "of another account");
        assert!(!format!("{access:?}").contains("ya29"));
        for nonsense in [
            "",
            "{}",
            "[]",
            r#"{"access_token":"ya29.x"}"#,
            r#"{"access_token":"","expires_in":3599}"#,
            r#"{"access_token":"a\r\nx: y","expires_in":3599}"#,
            r#"{"access_token":"a b","expires_in":3599}"#,
            r#"{"access_token":1,"expires_in":3599}"#,
            r#"{"access_token":"a","expires_in":-1}"#,
        ] {
            let verdict = exchanged(fcm, &answer(nonsense), NOW_MS).unwrap_err();
            assert_eq!(verdict, Verdict::unavailable(Reason::Nonsense, 200, None), "{nonsense}");
        }
        let refused = Answer { status: 400, retry_after: None, body: br#"{"error":"invalid_grant"}"#.to_vec() };
        assert_eq!(exchanged(fcm, &refused, NOW_MS).unwrap_err(), Verdict::refused(Reason::Credentials, 400));
        let down = Answer { status: 503, retry_after: Some("7".to_owned()), body: Vec::new() };
        assert_eq!(exchanged(fcm, &down, NOW_MS).unwrap_err(), Verdict::unavailable(Reason::Broken, 503, Some(7000)));
    }

    #[test]
    fn answers_mean_what_google_documents() {
        let error = |status: &str, code: &str| {
            format!(
                r#"{{"error":{{"code":1,"message":"m","status":"{status}","details":[{{"@type":"x"}},{{"@type":"type.googleapis.com/google.firebase.fcm.v1.FcmError","errorCode":"{code}"}}]}}}}"#
            )
        };
        let judged = |status, body: &str| judge(&Answer { status, retry_after: None, body: body.into() }, 0);
        let gone = Some(Verdict::gone(Reason::Unregistered, 404));
        assert_eq!(judged(404, &error("NOT_FOUND", "UNREGISTERED")), gone);
        assert_eq!(judged(404, "nonsense"), gone);
        assert_eq!(judged(400, &error("X", "UNREGISTERED")).unwrap().outcome, Outcome::TokenGone);
        assert_eq!(
            judged(400, &error("INVALID_ARGUMENT", "INVALID_ARGUMENT")),
            Some(Verdict::refused(Reason::Rejected, 400))
        );
        assert_eq!(
            judged(403, &error("PERMISSION_DENIED", "SENDER_ID_MISMATCH")),
            Some(Verdict::refused(Reason::Sender, 403))
        );
        assert_eq!(judged(403, ""), Some(Verdict::refused(Reason::Credentials, 403)));
        assert_eq!(judged(401, &error("UNAUTHENTICATED", "THIRD_PARTY_AUTH_ERROR")), None, "once more");
        for (status, code, reason) in [
            (429, "QUOTA_EXCEEDED", Reason::Busy),
            (500, "INTERNAL", Reason::Broken),
            (503, "UNAVAILABLE", Reason::Broken),
            // Not even a broken service makes a token dead.
            (500, "UNREGISTERED", Reason::Broken),
        ] {
            assert_eq!(judged(status, &error("X", code)), Some(Verdict::unavailable(reason, status, None)));
        }
        assert_eq!(judged(200, ""), Some(Verdict::sent(200)));
        assert_eq!(judged(204, ""), Some(Verdict::unavailable(Reason::Nonsense, 204, None)));
        for nonsense in [r#"{"error":{"details":{"errorCode":"UNREGISTERED"}}}"#, r#"{"error":[]}"#, "[[[[", "\u{0}"] {
            assert_eq!(judged(400, nonsense), Some(Verdict::refused(Reason::Rejected, 400)));
        }
    }

    proptest! {
        #[test]
        fn a_token_of_any_bytes_is_nowhere_but_in_its_field(token in any::<String>()) {
            let request = built(&job(2, &token, 10));
            let plain = built(&job(2, "x", 10));
            prop_assert_eq!(&request.url, &plain.url);
            prop_assert_eq!(&request.headers, &plain.headers);
            let mut message = message(&request);
            prop_assert_eq!(message["message"]["token"].take(), Value::String(token));
            let mut plain = self::message(&plain);
            plain["message"]["token"].take();
            prop_assert_eq!(message, plain);
        }
    }
}
