//! Push tokens and subscriptions, which devices make up, and what services answer, as the relay's attempts at a push read
//! them.

use std::rc::Rc;

use serde_json::{Value, json};
use skald_common::ids::{Ed25519Public, NamespaceId};
use skald_common::wire::Platform;
use skald_relay_worker::push::{
    Access, Answer, Attempt, Credentials, Entropy, Failure, Job, Outcome, Request, Sealed, Step, Target, Verdict,
};

use crate::tape::Tape;

const APNS: &str = "https://api.push.apple.com/3/device/";
const TOKEN_URI: &str = "https://oauth2.googleapis.com/token";
const FCM: &str = "https://fcm.googleapis.com/v1/projects/skald-test/messages:send";
/// A push with a new access token, refused, and once more with another.
const MAX_REQUESTS: usize = 4;
const DAY_MS: u64 = 24 * 3_600_000;

/// The target.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let job = job(&mut tape);
    let credentials = Rc::new(credentials());
    let access = (tape.byte() % 2 == 1).then(|| Access {
        identity: credentials.fcm_identity().expect("FCM is set up"),
        token: String::from_utf8_lossy(tape.bytes()).into_owned(),
        until_ms: tape.number(),
    });
    let mut now = tape.number();
    // Never the one draw in 2^32 that makes no key.
    let entropy = Entropy([tape.byte() & 0x7f | 1; Entropy::LEN]);
    let mut attempt = Attempt::new(credentials, job.clone(), entropy, access);
    let mut step = attempt.begin(now, |text| url::Url::parse(text).ok().map(String::from));
    let (mut requests, mut last) = (0, 0);
    loop {
        now = now.saturating_add(tape.number());
        step = match step {
            Step::Fetch(request) => {
                requests += 1;
                assert!(requests <= MAX_REQUESTS, "asks for ever");
                check(&job, &request);
                let answer = answer(&mut tape);
                last = answer.as_ref().map_or(0, |answer| answer.status);
                attempt.answered(now, answer)
            }
            Step::Sign(_) => {
                let signature = tape.bytes();
                attempt.signed((!signature.is_empty()).then_some(signature))
            }
            Step::Done(verdict) => return judge(requests, last, verdict),
        };
    }
}

fn job(tape: &mut Tape<'_>) -> Job {
    let platforms = [Platform::Ios, Platform::Android, Platform::Web, Platform::Unspecified];
    let platform = platforms[tape.below(platforms.len())];
    let text = String::from_utf8_lossy(tape.bytes()).into_owned();
    // A good subscription but for its endpoint, so that this is reached too.
    let token = match tape.byte() % 2 {
        1 => json!({"endpoint": text, "keys": {"p256dh": KEY, "auth": "AwMDAwMDAwMDAwMDAwMDAw"}}).to_string(),
        _ => text,
    };
    let ciphertext = vec![0x44; usize::from(tape.short())].into();
    Job {
        id: 1,
        target: Target { platform: platform as i32, token },
        namespace: NamespaceId::new([0x11; 32]),
        collapse: (tape.byte() % 2 == 1).then_some([0x5a; 16]),
        sealed: Sealed { sender: Ed25519Public::new([0x22; 32]), nonce: [0x33; 12], ciphertext },
    }
}

/// The example of RFC 8291.
const KEY: &str = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";

fn credentials() -> Credentials {
    let credentials = Credentials::from_lookup(|name| {
        let value = match name {
            "APNS_KEY" => include_str!("../../relay-worker/testdata/apns_key.pem"),
            "APNS_KEY_ID" | "APNS_TEAM_ID" | "APNS_TOPIC" => "X",
            "FCM_SERVICE_ACCOUNT" => include_str!("../../relay-worker/testdata/service_account.json"),
            "VAPID_PRIVATE_KEY" => "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94",
            "VAPID_SUBJECT" => "mailto:a@example.org",
            "WEBPUSH_ALLOW" => "example.org",
            "RELAY_HOST" => "relay.example.org",
            _ => return None,
        };
        Some(value.to_owned())
    });
    assert_eq!(credentials.errors(), []);
    credentials
}

fn answer(tape: &mut Tape<'_>) -> Result<Answer, Failure> {
    let status = tape.short();
    match status {
        0 => Err(Failure::Network),
        1 => Err(Failure::Timeout),
        _ => {
            let text = String::from_utf8_lossy(tape.bytes()).into_owned();
            let retry_after = Some(text).filter(|text| !text.is_empty());
            Ok(Answer { status, retry_after, body: tape.bytes().to_vec() })
        }
    }
}

/// It goes where it may go, and what a device has made up is in its place alone.
fn check(job: &Job, request: &Request) {
    let token = &job.target.token;
    for (name, value) in &request.headers {
        assert!(value.bytes().all(|byte| (0x20..0x7f).contains(&byte)), "{name}: {value:?}");
    }
    let url = url::Url::parse(&request.url).expect("an absolute URL");
    assert_eq!(url.as_str(), request.url, "fetched otherwise than checked");
    if job.target.platform == Platform::Ios as i32 {
        assert_eq!(request.url, format!("{APNS}{token}"));
        assert!(token.bytes().all(|digit| digit.is_ascii_hexdigit()), "{token:?} in a path");
        assert!(request.body.len() <= 4096);
        let _body: Value = serde_json::from_slice(&request.body).expect("JSON");
    } else if job.target.platform == Platform::Android as i32 {
        if request.url != TOKEN_URI {
            assert_eq!(request.url, FCM);
            let body: Value = serde_json::from_slice(&request.body).expect("JSON");
            assert_eq!(body["message"]["token"], Value::from(token.clone()));
            assert_eq!(body["message"].as_object().map(serde_json::Map::len), Some(3), "a token brings more along");
        }
    } else {
        let url::Host::Domain(host) = url.host().expect("a host") else { panic!("an address: {url}") };
        let below = |parent: &str| host.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'));
        let known = ["fcm.googleapis.com", "android.googleapis.com", "example.org"].contains(&host)
            || ["push.services.mozilla.com", "notify.windows.com", "push.apple.com", "example.org"]
                .into_iter()
                .any(below);
        assert!(known && host != "relay.example.org" && !below("relay.example.org"), "a push to {url}");
        assert_eq!((url.scheme(), url.port(), url.username(), url.password()), ("https", None, "", None));
        assert!(request.body.len() <= 4096);
    }
}

/// No push is called sent that no service took, and no token dead that no service called so.
fn judge(requests: usize, last: u16, verdict: Verdict) {
    match verdict.outcome {
        Outcome::Sent => assert!((200..300).contains(&last), "sent, by {last}"),
        Outcome::TokenGone => assert!((400..500).contains(&last), "gone, by {last}"),
        Outcome::Unavailable { retry_after_ms } => {
            assert!(requests > 0, "nobody was asked");
            assert!(retry_after_ms.is_none_or(|wait| wait <= DAY_MS), "waits for {retry_after_ms:?} ms");
        }
        Outcome::Refused => {}
    }
    let code = verdict.reason.code();
    assert!(code.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'), "{code:?} in a log");
}
