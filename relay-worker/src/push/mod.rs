//! Push (push protocol): what the engine asks for, how a service is asked for it, and what came of it. The engine decides
//! when, and knows nothing of the services. Everything here is without I/O: [`Attempt`] says which request comes next and
//! judges the answers, the glue fetches.
//!
//! | module | |
//! |---|---|
//! | [`credentials`] | what the operator has set up |
//! | [`attempt`] | one attempt at one push, step by step |
//! | `apns`, `fcm`, `web` | the requests and answers of each service |
//! | `payload`, `jwt`, `encrypt` | what they share: content or wake, tokens, encryption for browsers |
//! | `json`, `der` | the little that is needed of two formats |
//! | [`endpoint`] | where a Web Push may go |
//! | [`http`], [`verdict`] | requests, answers, and what they mean |
//! | [`tally`], [`ledger`] | outcomes, counted for `/healthz` |

mod apns;
pub mod attempt;
pub mod credentials;
mod der;
mod encrypt;
pub mod endpoint;
mod fcm;
pub mod http;
mod json;
mod jwt;
pub mod ledger;
mod payload;
pub mod tally;
pub mod verdict;
mod web;

use std::fmt;

use bytes::Bytes;
use skald_common::ids::{Ed25519Public, NamespaceId};

pub use attempt::{Attempt, Entropy, Step};
pub use credentials::{Credentials, Setup};
pub use fcm::Access;
pub use http::{Answer, Failure, Request};
pub use verdict::{Kind, Reason, Service, Verdict};

/// How long a service keeps a push for a device that it cannot reach, seconds: as long as the message is queued here.
const MESSAGE_LIFE_SECS: u64 = 7 * 24 * 3600;

/// The services that this relay has credentials for. For the others nothing is noted and nothing is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Services {
    /// Apple's, for platform IOS.
    pub apns: bool,
    /// Google's, for platform ANDROID.
    pub fcm: bool,
    /// Those of browsers, for platform WEB.
    pub web: bool,
}

/// One push to one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Names the attempt within its object; comes back with the [`Outcome`].
    pub id: u64,
    /// Where it goes.
    pub target: Target,
    /// Whose agent and devices.
    pub namespace: NamespaceId,
    /// Collapse id: the first 16 bytes of SHA-256(namespace ‖ sender ‖ tag), for messages with a collapse tag.
    pub collapse: Option<[u8; 16]>,
    /// The queued message. Whether it travels along or only wakes the device, its size decides.
    pub sealed: Sealed,
}

/// A device, as its push service knows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    /// The wire's platform number.
    pub platform: i32,
    /// The device token, or a browser's subscription as JSON; at most 4,096 bytes, never empty. Untrusted.
    pub token: String,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({}, {} bytes)", self.platform, self.token.len())
    }
}

/// A message as it is queued.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed {
    /// Who sealed it: the agent.
    pub sender: Ed25519Public,
    /// Its nonce.
    pub nonce: [u8; 12],
    /// The sealed bytes.
    pub ciphertext: Bytes,
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealed({} bytes)", self.ciphertext.len())
    }
}

/// What came of a [`Job`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The service took it.
    Sent,
    /// The service knows this token no more: forget it.
    TokenGone,
    /// The service, or our own check of the token, says no, and would say so again.
    Refused,
    /// Not now: an overloaded or broken service, a network error, no answer in time.
    Unavailable {
        /// What the service asked to wait, milliseconds.
        retry_after_ms: Option<u64>,
    },
}

#[cfg(test)]
mod tests {
    use aes_gcm::Aes128Gcm;
    use aes_gcm::aead::{Aead as _, KeyInit as _};
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use hkdf::Hkdf;
    use p256::elliptic_curve::sec1::ToSec1Point as _;
    use p256::{PublicKey, SecretKey};
    use sha2::Sha256;

    use super::*;

    /// 2025-12-01 03:04:05 UTC.
    pub(super) const NOW_MS: u64 = 1_764_558_245_000;

    /// Keys that were made for these tests.
    pub(super) const SETTINGS: [(&str, &str); 7] = [
        ("APNS_KEY", include_str!("../../testdata/apns_key.pem")),
        ("APNS_KEY_ID", "KEY1234567"),
        ("APNS_TEAM_ID", "TEAM123456"),
        ("APNS_TOPIC", "org.example.skald"),
        ("FCM_SERVICE_ACCOUNT", include_str!("../../testdata/service_account.json")),
        ("VAPID_PRIVATE_KEY", "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94"),
        ("VAPID_SUBJECT", "mailto:push@example.org"),
    ];

    /// What the browser of the tests keeps to itself.
    const BROWSER: [u8; 32] = [2; 32];
    const AUTH: [u8; 16] = [3; 16];

    /// The settings, with some others in their place; an empty one is missing.
    pub(super) fn credentials_with(changed: &[(&str, &str)]) -> Credentials {
        Credentials::from_lookup(|name| {
            let all = changed.iter().chain(&SETTINGS);
            all.into_iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    pub(super) fn credentials() -> Credentials {
        credentials_with(&[])
    }

    pub(super) fn job(platform: i32, token: &str, length: usize) -> Job {
        let ciphertext = vec![0x44; length].into();
        Job {
            id: 1,
            target: Target { platform, token: token.to_owned() },
            namespace: NamespaceId::new([0x11; 32]),
            collapse: None,
            sealed: Sealed { sender: Ed25519Public::new([0x22; 32]), nonce: [0x33; 12], ciphertext },
        }
    }

    pub(super) fn header(request: &Request, name: &str) -> String {
        let mut found = request.headers.iter().filter(|(known, _)| *known == name);
        let (_, value) = found.next().unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(found.next(), None, "two of {name}");
        value.clone()
    }

    /// A WHATWG parser that is not the platform's.
    pub(super) fn href(text: &str) -> Option<String> {
        url::Url::parse(text).ok().map(String::from)
    }

    /// A browser's subscription, as `JSON.stringify` writes it.
    pub(super) fn subscription(endpoint: &str) -> String {
        let key = SecretKey::from_slice(&BROWSER).unwrap().public_key().to_sec1_point(false);
        let (key, auth) = (URL_SAFE_NO_PAD.encode(key.as_bytes()), URL_SAFE_NO_PAD.encode(AUTH));
        let endpoint = serde_json::to_string(endpoint).unwrap();
        format!(r#"{{"endpoint":{endpoint},"keys":{{"p256dh":"{key}","auth":"{auth}"}}}}"#)
    }

    /// What the browser of [`subscription`] reads (RFC 8291, 3.4; RFC 8188, 2).
    pub(super) fn open(body: &[u8]) -> Vec<u8> {
        let (salt, rest) = body.split_at(16);
        assert_eq!(rest[..5], [0, 0, 16, 0, 65]);
        let (theirs, sealed) = rest[5..].split_at(65);
        let secret = SecretKey::from_slice(&BROWSER).unwrap();
        let shared = secret.diffie_hellman(&PublicKey::from_sec1_bytes(theirs).unwrap());
        let ours = secret.public_key().to_sec1_point(false);
        let info = [b"WebPush: info\0".as_slice(), ours.as_bytes(), theirs].concat();
        let (mut input, mut key, mut nonce) = ([0; 32], [0; 16], [0; 12]);
        Hkdf::<Sha256>::new(Some(&AUTH), shared.raw_secret_bytes()).expand(&info, &mut input).unwrap();
        let keys = Hkdf::<Sha256>::new(Some(salt), &input);
        keys.expand(b"Content-Encoding: aes128gcm\0", &mut key).unwrap();
        keys.expand(b"Content-Encoding: nonce\0", &mut nonce).unwrap();
        let mut plain = Aes128Gcm::new(&key.into()).decrypt(&nonce.into(), sealed).expect("the tag fits");
        assert_eq!(plain.pop(), Some(2), "the mark of the last record");
        plain
    }
}
