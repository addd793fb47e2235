//! Apple's push service (push protocol, APNs).

use super::credentials::Apns;
use super::http::{Answer, Request};
use super::json;
use super::jwt::window_secs;
use super::payload::{self, Names, Payload};
use super::verdict::{Reason, Verdict};
use super::{Job, MESSAGE_LIFE_SECS};

/// Bounds of a device token, bytes; Apple calls the length variable, and gives 32.
const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=256;

/// The push. `id` names it to Apple.
pub(super) fn request(apns: &Apns, job: &Job, id: [u8; 16], now_ms: u64) -> Result<Request, Reason> {
    // It becomes part of a path.
    let token = &job.target.token;
    let is_hex = token.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !is_hex || !token.len().is_multiple_of(2) || !TOKEN_BYTES.contains(&(token.len() / 2)) {
        return Err(Reason::Malformed);
    }
    let mut headers = vec![
        ("authorization", format!("bearer {}", bearer(apns, now_ms))),
        ("apns-topic", apns.topic.clone()),
        ("apns-push-type", "alert".to_owned()),
        ("apns-priority", "10".to_owned()),
        ("apns-expiration", (now_ms / 1000).saturating_add(MESSAGE_LIFE_SECS).to_string()),
        ("apns-id", uuid(id)),
        ("content-type", "application/json".to_owned()),
    ];
    headers.extend(payload::collapse(job).map(|id| ("apns-collapse-id", id)));
    let body = body(job).into_bytes();
    Ok(Request { url: format!("{}/3/device/{token}", apns.origin), headers, body })
}

/// The token of everybody who has this key, in this half hour.
fn bearer(apns: &Apns, now_ms: u64) -> String {
    let header = json::object(|header| {
        header.text("alg", "ES256");
        header.text("kid", &apns.key_id);
    });
    let claims = json::object(|claims| {
        claims.text("iss", &apns.team_id);
        claims.number("iat", window_secs(now_ms));
    });
    apns.key.token(&header, &claims)
}

/// The alert is what shows if the app does nothing: never content.
fn body(job: &Job) -> String {
    let payload = Payload::of(job);
    json::object(|body| {
        body.object("aps", |aps| {
            aps.object("alert", |alert| {
                alert.text("title", "Skald");
                alert.text("body", "Action required");
            });
            aps.number("badge", 1);
            aps.text("sound", "default");
            match payload {
                Payload::Content => {
                    aps.number("mutable-content", 1);
                    aps.text("category", "skald_inbox");
                }
                Payload::Wake => aps.number("content-available", 1),
            }
        });
        body.object("d", |data| payload.data(job, Names::OURS, data));
    })
}

/// Random bytes as a UUID of version 4.
fn uuid(mut bytes: [u8; 16]) -> String {
    let [_, _, _, _, _, _, version, _, variant, ..] = &mut bytes;
    *version = *version & 0x0f | 0x40;
    *variant = *variant & 0x3f | 0x80;
    let mut text = hex::encode(bytes);
    for at in [20, 16, 12, 8] {
        text.insert(at, '-');
    }
    text
}

/// What Apple's answer means. `None`: once more, with a new token.
pub(super) fn judge(answer: &Answer, now_ms: u64) -> Option<Verdict> {
    let status = answer.status;
    let json = answer.json();
    let reason = json.as_ref().and_then(|json| json.text("reason")).unwrap_or_default();
    Some(match (status, reason) {
        (200, _) => Verdict::sent(status),
        (410, _) => Verdict::gone(Reason::Unregistered, status),
        (400, "BadDeviceToken" | "DeviceTokenNotForTopic") => Verdict::gone(Reason::BadToken, status),
        (403, "ExpiredProviderToken") => return None,
        (400, "BadTopic" | "MissingTopic" | "TopicDisallowed") => Verdict::refused(Reason::Topic, status),
        // Apple's word for a key that may not push to this environment or topic.
        (403, "BadEnvironmentKeyInToken" | "UnrelatedKeyIdInToken") => Verdict::refused(Reason::Credentials, status),
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
    use crate::push::jwt::tests::verified;
    use crate::push::tests::{NOW_MS, credentials, header, job};
    use crate::push::{Credentials, Outcome};

    const TOKEN: &str = "00fc13adff785122b4ad28809a3420982341241421348097878e577c991de8f0";

    fn built(credentials: &Credentials, job: &Job, now_ms: u64) -> Result<Request, Reason> {
        request(credentials.apns.as_ref().unwrap(), job, [0xab; 16], now_ms)
    }

    fn judged(status: u16, body: &str) -> Option<Verdict> {
        judge(&Answer { status, retry_after: None, body: body.into() }, 0)
    }

    #[test]
    fn a_content_push_is_what_the_protocol_says() {
        let mut job = job(1, TOKEN, 100);
        job.collapse = Some([0x5a; 16]);
        let request = built(&credentials(), &job, NOW_MS).unwrap();
        assert_eq!(request.url, format!("https://api.push.apple.com/3/device/{TOKEN}"));
        assert_eq!(header(&request, "apns-topic"), "org.example.skald");
        assert_eq!(header(&request, "apns-push-type"), "alert");
        assert_eq!(header(&request, "apns-priority"), "10");
        assert_eq!(header(&request, "apns-expiration"), (NOW_MS / 1000 + 604_800).to_string());
        assert_eq!(header(&request, "apns-id"), "abababab-abab-4bab-abab-abababababab");
        assert_eq!(header(&request, "apns-collapse-id"), "5a".repeat(16));
        let expected = r#"{"aps":{"alert":{"title":"Skald","body":"Action required"},"badge":1,"sound":"default","mutable-content":1,"category":"skald_inbox"},
            "d":{"ns":"NS","from":"FROM","n":"NONCE","c":"CIPHERTEXT"}}"#
            .replace("NS", &"11".repeat(32))
            .replace("FROM", &"22".repeat(32))
            .replace("NONCE", &"33".repeat(12))
            .replace("CIPHERTEXT", &STANDARD.encode([0x44; 100]));
        let expected: Value = serde_json::from_str(&expected).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&request.body).unwrap(), expected);
    }

    #[test]
    fn a_wake_push_says_nothing_but_the_namespace() {
        let request = built(&credentials(), &job(1, TOKEN, 2626), NOW_MS).unwrap();
        assert!(request.headers.iter().all(|(name, _)| *name != "apns-collapse-id"));
        let expected = r#"{"aps":{"alert":{"title":"Skald","body":"Action required"},"badge":1,"sound":"default","content-available":1},
            "d":{"ns":"NS","wake":true}}"#
            .replace("NS", &"11".repeat(32));
        let expected: Value = serde_json::from_str(&expected).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&request.body).unwrap(), expected);
    }

    #[test]
    fn no_body_is_larger_than_apple_takes() {
        for length in [0, 2625, 2626, 100_000] {
            assert!(built(&credentials(), &job(1, TOKEN, length), NOW_MS).unwrap().body.len() <= 4096);
        }
    }

    #[test]
    fn everybody_presents_the_same_token_for_half_an_hour() {
        let start = NOW_MS / 1_800_000 * 1_800_000;
        let at = |now| header(&built(&credentials(), &job(1, TOKEN, 1), now).unwrap(), "authorization");
        let first = at(start);
        assert_eq!(first, at(start + 1_799_999), "each call has credentials of its own, as each object has");
        assert_ne!(first, at(start + 1_800_000));
        let credentials = credentials();
        let public = URL_SAFE_NO_PAD.decode(credentials.apns.as_ref().unwrap().key.public()).unwrap();
        let (header, claims) = verified(first.strip_prefix("bearer ").unwrap(), &public);
        assert_eq!(header, json!({"alg": "ES256", "kid": "KEY1234567"}));
        assert_eq!(claims, json!({"iss": "TEAM123456", "iat": start / 1000}));
    }

    #[test]
    fn a_forwarder_can_stand_between() {
        let credentials = crate::push::tests::credentials_with(&[("APNS_HOST", "http://127.0.0.1:8010")]);
        let request = built(&credentials, &job(1, TOKEN, 1), NOW_MS).unwrap();
        assert_eq!(request.url, format!("http://127.0.0.1:8010/3/device/{TOKEN}"));
    }

    #[test]
    fn tokens_that_are_dead_are_told_from_everything_else() {
        let gone = |status, body| judged(status, body).unwrap().outcome == Outcome::TokenGone;
        assert!(
            gone(410, r#"{"reason":"Unregistered","timestamp":1700000000000}"#) && gone(410, "") && gone(410, "<html>")
        );
        assert!(gone(400, r#"{"reason":"BadDeviceToken"}"#) && gone(400, r#"{"reason":"DeviceTokenNotForTopic"}"#));
        for (status, body, reason) in [
            (400, r#"{"reason":"BadTopic"}"#, Reason::Topic),
            (400, r#"{"reason":"PayloadEmpty"}"#, Reason::Rejected),
            (400, "BadDeviceToken", Reason::Rejected),
            (400, r#"{"reason":["BadDeviceToken"]}"#, Reason::Rejected),
            (403, r#"{"reason":"InvalidProviderToken"}"#, Reason::Credentials),
            (404, r#"{"reason":"BadPath"}"#, Reason::Rejected),
            (405, r#"{"reason":"MethodNotAllowed"}"#, Reason::Rejected),
            (413, r#"{"reason":"PayloadTooLarge"}"#, Reason::TooLarge),
            (302, "", Reason::Redirect),
        ] {
            assert_eq!(judged(status, body), Some(Verdict::refused(reason, status)), "{status} {body}");
        }
        for (status, body, reason) in [
            (429, r#"{"reason":"TooManyProviderTokenUpdates"}"#, Reason::Busy),
            (429, r#"{"reason":"TooManyRequests"}"#, Reason::Busy),
            (500, r#"{"reason":"InternalServerError"}"#, Reason::Broken),
            (503, r#"{"reason":"Shutdown"}"#, Reason::Broken),
            (502, "<html>bad gateway", Reason::Broken),
            (204, "", Reason::Nonsense),
            (101, "", Reason::Nonsense),
        ] {
            assert_eq!(judged(status, body), Some(Verdict::unavailable(reason, status, None)), "{status} {body}");
        }
        assert_eq!(judged(403, r#"{"reason":"ExpiredProviderToken"}"#), None, "once more");
        assert_eq!(judged(200, ""), Some(Verdict::sent(200)));
    }

    proptest! {
        #[test]
        fn a_token_of_any_bytes_is_hexadecimal_or_goes_nowhere(token in prop_oneof![
            any::<String>(), "[0-9a-f]{0,600}", r"[0-9a-f]{32}[/\\?#%.\r\n]{1,3}[0-9a-f]*"
        ]) {
            let fine = token.len() >= 32 && token.len() <= 512 && token.len() % 2 == 0
                && token.chars().all(|digit| digit.is_ascii_hexdigit());
            match built(&credentials(), &job(1, &token, 1), NOW_MS) {
                Ok(request) => {
                    prop_assert!(fine);
                    prop_assert_eq!(request.url, format!("https://api.push.apple.com/3/device/{token}"));
                    prop_assert!(request.headers.iter().all(|(_, value)| !value.contains(&token)));
                }
                Err(reason) => prop_assert!(!fine && reason == Reason::Malformed),
            }
        }
    }
}
