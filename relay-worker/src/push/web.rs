//! Web Push: RFC 8030, with VAPID (RFC 8292) and encrypted content (RFC 8291). The device token is the JSON of a browser's
//! `PushSubscription`, which anybody can have made up.

use super::credentials::Web;
use super::encrypt::{MAX_PLAINTEXT, Recipient, encrypt};
use super::endpoint::{Endpoint, EndpointError};
use super::http::{Answer, Request};
use super::json::{self, Json};
use super::jwt::window_secs;
use super::payload::{self, Names, Payload};
use super::verdict::{Reason, Verdict};
use super::{Job, MESSAGE_LIFE_SECS};
use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use p256::{PublicKey, SecretKey};

/// How long a VAPID token is valid, seconds; a day at most.
const VAPID_SECS: u64 = 12 * 3600;
/// The header of RFC 8292's example.
const VAPID_HEADER: &str = r#"{"typ":"JWT","alg":"ES256"}"#;
/// Length of a key of a subscription, uncompressed, bytes.
const KEY_LEN: usize = 65;

/// Browsers write no padding; some libraries do.
const BASE64URL: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A subscription that a push may go to.
pub(super) struct Subscription {
    pub(super) endpoint: Endpoint,
    pub(super) recipient: Recipient,
}

impl Subscription {
    /// From a device token. `href`: what a WHATWG parser makes of a URL.
    pub(super) fn parse(web: &Web, token: &str, href: impl FnOnce(&str) -> Option<String>) -> Result<Self, Reason> {
        let json = Json::parse(token.as_bytes()).ok_or(Reason::Malformed)?;
        let href =
            href(json.text("endpoint").ok_or(Reason::Malformed)?).ok_or(Reason::Endpoint(EndpointError::Malformed))?;
        let endpoint = Endpoint::check(href, &web.rules).map_err(Reason::Endpoint)?;
        let key = |name| json.get("keys").and_then(|keys| keys.text(name)).ok_or(Reason::Malformed);
        let bytes = |name| BASE64URL.decode(key(name)?).map_err(|_| Reason::Malformed);
        let key = bytes("p256dh")?;
        let key = PublicKey::from_sec1_bytes(&key).ok().filter(|_| key.len() == KEY_LEN).ok_or(Reason::Malformed)?;
        let auth = bytes("auth")?.try_into().map_err(|_| Reason::Malformed)?;
        Ok(Self { endpoint, recipient: Recipient { key, auth } })
    }
}

/// The push. `ephemeral` and `salt` serve once.
pub(super) fn request(
    web: &Web,
    job: &Job,
    subscription: &Subscription,
    ephemeral: &SecretKey,
    salt: [u8; 16],
    now_ms: u64,
) -> Option<Request> {
    let data = |payload: Payload| json::object(|data| payload.data(job, Names::OURS, data));
    let content = Some(data(Payload::of(job))).filter(|content| content.len() <= MAX_PLAINTEXT);
    let plaintext = content.unwrap_or_else(|| data(Payload::Wake));
    let body = encrypt(&subscription.recipient, ephemeral, salt, plaintext.as_bytes())?;
    let mut headers = vec![
        ("authorization", authorization(web, subscription.endpoint.origin(), now_ms)),
        ("content-encoding", "aes128gcm".to_owned()),
        ("content-type", "application/octet-stream".to_owned()),
        ("ttl", MESSAGE_LIFE_SECS.to_string()),
        ("urgency", "high".to_owned()),
    ];
    headers.extend(payload::collapse(job).map(|id| ("topic", id)));
    Some(Request { url: subscription.endpoint.href().to_owned(), headers, body })
}

fn authorization(web: &Web, origin: &str, now_ms: u64) -> String {
    let expires = window_secs(now_ms).saturating_add(VAPID_SECS);
    let claims = json::object(|claims| {
        claims.text("aud", origin);
        claims.number("exp", expires);
        claims.text("sub", &web.subject);
    });
    let token = web.key.token(VAPID_HEADER, &claims);
    format!("vapid t={token}, k={}", web.key.public())
}

/// What a push service's answer means.
pub(super) fn judge(answer: &Answer, now_ms: u64) -> Verdict {
    match answer.status {
        404 | 410 => Verdict::gone(Reason::Unregistered, answer.status),
        _ => answer.judge(now_ms),
    }
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    use p256::elliptic_curve::sec1::ToSec1Point;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::push::jwt::tests::verified;
    use crate::push::tests::{NOW_MS, credentials, header, href, job, open, subscription};
    use crate::push::{Credentials, Outcome};

    const WEB: i32 = skald_common::wire::Platform::Web as i32;
    const ENDPOINT: &str = "https://updates.push.services.mozilla.com/wpush/v2/abc";

    fn web(credentials: &Credentials) -> &Web {
        credentials.web.as_ref().unwrap()
    }

    fn parse(token: &str) -> Result<Subscription, Reason> {
        Subscription::parse(web(&credentials()), token, href)
    }

    fn built(job: &Job) -> Request {
        let subscription = parse(&job.target.token).unwrap();
        let ephemeral = SecretKey::from_slice(&[9; 32]).unwrap();
        request(web(&credentials()), job, &subscription, &ephemeral, [8; 16], NOW_MS).unwrap()
    }

    #[test]
    fn a_content_push_is_what_the_protocol_says() {
        let mut job = job(WEB, &subscription(ENDPOINT), 100);
        job.collapse = Some([0x5a; 16]);
        let request = built(&job);
        assert_eq!(request.url, ENDPOINT);
        assert_eq!(header(&request, "ttl"), "604800");
        assert_eq!(header(&request, "urgency"), "high");
        assert_eq!(header(&request, "topic"), "5a".repeat(16));
        assert_eq!(header(&request, "content-encoding"), "aes128gcm");
        let data: Value = serde_json::from_slice(&open(&request.body)).unwrap();
        let expected = json!({
            "ns": "11".repeat(32), "from": "22".repeat(32), "n": "33".repeat(12), "c": STANDARD.encode([0x44; 100]),
        });
        assert_eq!(data, expected);
        let authorization = header(&request, "authorization");
        let (token, key) = authorization.strip_prefix("vapid t=").unwrap().split_once(", k=").unwrap();
        assert_eq!(Some(key.to_owned()), credentials().webpush_key());
        let (header, claims) = verified(token, &URL_SAFE_NO_PAD.decode(key).unwrap());
        assert_eq!(header, json!({"typ": "JWT", "alg": "ES256"}));
        let expires = NOW_MS / 1_800_000 * 1800 + 43_200;
        let audience = "https://updates.push.services.mozilla.com";
        assert_eq!(claims, json!({"aud": audience, "exp": expires, "sub": "mailto:push@example.org"}));
    }

    #[test]
    fn a_wake_push_says_nothing_but_the_namespace() {
        let request = built(&job(WEB, &subscription(ENDPOINT), 2626));
        let data: Value = serde_json::from_slice(&open(&request.body)).unwrap();
        assert_eq!(data, json!({"ns": "11".repeat(32), "wake": true}));
        assert!(request.headers.iter().all(|(name, _)| *name != "topic"));
    }

    #[test]
    fn no_body_is_larger_than_4096_bytes() {
        for length in [0, 2625, 2626, 60_000] {
            assert!(built(&job(WEB, &subscription(ENDPOINT), length)).body.len() <= 4096, "{length}");
        }
    }

    #[test]
    fn the_token_of_rfc_8292_is_made_of_the_same_bytes_and_verifies() {
        // RFC 8292, 2.4: its key signs, we make what is signed.
        let token = concat!(
            "eyJ0eXAiOiJKV1QiLCJhbGciOiJFUzI1NiJ9.eyJhdWQiOiJodHRwczovL3B1c2guZXhhbXBsZS5uZXQiLCJleHAiOjE0NTM1MjM3NjgsInN1",
            "YiI6Im1haWx0bzpwdXNoQGV4YW1wbGUuY29tIn0.i3CYb7t4xfxCDquptFOepC9GAu_HLGkMlMuCGSK2rpiUfnK9ojFwDXb1JrErtmysazNjjvW2",
            "L9OkSSHzvoD1oA",
        );
        let key = "BA1Hxzyi1RUM1b5wjxsn7nGxAszw2u61m164i3MrAIxHF6YK5h4SDYic-dRuU_RCPCfA5aq9ojSwk5Y2EmClBPs";
        let claims = json!({"aud": "https://push.example.net", "exp": 1_453_523_768, "sub": "mailto:push@example.com"});
        let (_, signed) = verified(token, &URL_SAFE_NO_PAD.decode(key).unwrap());
        assert_eq!(signed, claims);
        let ours = crate::push::jwt::signing_input(VAPID_HEADER, &claims.to_string());
        assert_eq!(ours, token.rsplit_once('.').unwrap().0);
    }

    #[test]
    fn subscriptions_that_are_none_are_refused_without_a_request() {
        let good = subscription(ENDPOINT);
        assert!(parse(&good).is_ok());
        let with = |pointer: &str, value: Value| {
            let mut json: Value = serde_json::from_str(&good).unwrap();
            *json.pointer_mut(pointer).unwrap() = value;
            parse(&json.to_string()).err()
        };
        let compressed = SecretKey::from_slice(&[2; 32]).unwrap().public_key();
        let compressed = URL_SAFE_NO_PAD.encode(ToSec1Point::to_sec1_point(&compressed, true).as_bytes());
        for value in [
            json!(null),
            json!(""),
            json!("AAAA"),
            json!(URL_SAFE_NO_PAD.encode([4; 65])),
            json!(compressed),
            json!("!"),
        ] {
            assert_eq!(with("/keys/p256dh", value.clone()), Some(Reason::Malformed), "{value}");
        }
        for value in
            [json!(null), json!(""), json!(URL_SAFE_NO_PAD.encode([1; 15])), json!(URL_SAFE_NO_PAD.encode([1; 17]))]
        {
            assert_eq!(with("/keys/auth", value.clone()), Some(Reason::Malformed), "{value}");
        }
        assert_eq!(with("/endpoint", json!(7)), Some(Reason::Malformed));
        assert_eq!(with("/endpoint", json!("no url")), Some(Reason::Endpoint(EndpointError::Malformed)));
        assert_eq!(with("/endpoint", json!("https://127.0.0.1/")), Some(Reason::Endpoint(EndpointError::Address)));
        for nonsense in ["", "null", "[]", "{", "0", &"[".repeat(4000)] {
            assert_eq!(parse(nonsense).err(), Some(Reason::Malformed), "{nonsense}");
        }
    }

    #[test]
    fn subscriptions_with_padding_and_with_more_in_them_pass() {
        let padded = subscription(ENDPOINT).replace(r#""}}"#, r#"=="},"expirationTime":null}"#);
        assert!(parse(&padded).is_ok(), "{padded}");
    }

    #[test]
    fn only_404_and_410_make_a_subscription_dead() {
        for status in 0..=999 {
            let verdict = judge(&Answer { status, ..Answer::default() }, 0);
            assert_eq!(verdict.outcome == Outcome::TokenGone, status == 404 || status == 410, "{status}");
            assert_eq!(verdict.outcome == Outcome::Sent, (200..300).contains(&status));
        }
    }

    proptest! {
        #[test]
        fn a_subscription_of_any_bytes_is_sent_to_a_push_service_or_nowhere(
            token in any::<String>(), endpoint in r"(https://)?[ -~\t\n]{0,30}(fcm\.googleapis\.com)?[ -~]{0,30}",
        ) {
            prop_assert!(parse(&token).is_err());
            let token = subscription(&endpoint);
            if parse(&token).is_ok() {
                let request = built(&job(WEB, &token, 10));
                let url = url::Url::parse(&request.url).unwrap();
                prop_assert_eq!(url.host_str(), Some("fcm.googleapis.com"));
                prop_assert!(request.headers.iter().all(|(_, value)| value.bytes().all(|byte| (0x20..0x7f).contains(&byte))));
            }
        }
    }
}
