//! How the relay wakes this phone: what it is handed as push token, at pairing and with every connection (protocol, Push).

use std::fmt;

use serde::{Deserialize, Serialize};
use skald_common::limits::MAX_DEVICE_TOKEN;
use skald_common::wire::Platform;
use zeroize::Zeroizing;

use crate::webpush::WebPushKeys;

/// Version of the saved form.
const FORMAT: u32 = 1;

/// Why something is no registration. Never quotes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RegistrationError {
    /// Not an endpoint.
    #[error(
        "an endpoint for Web Push is an https address with a host, on port 443, of at most {MAX_ENDPOINT} characters"
    )]
    Endpoint,
    /// Not `PLATFORM:TOKEN`.
    #[error("a push token is written as ios:TOKEN, android:TOKEN or web:SUBSCRIPTION")]
    Platform,
    /// Not a token of that platform.
    #[error("a push token for {platform} {form}")]
    Token {
        /// The platform.
        platform: &'static str,
        /// What one looks like.
        form: &'static str,
    },
    /// The saved form cannot be read.
    #[error("it is not what this version saves")]
    Saved,
}

/// Leaves room for the keys within what a relay takes.
const MAX_ENDPOINT: usize = 2048;

/// A push token, and where it comes from. Wiped when dropped.
#[derive(Clone)]
pub enum Registration {
    /// A Web Push subscription of this phone's own.
    WebPush {
        /// Where the push service takes messages.
        endpoint: Zeroizing<String>,
        /// What opens them.
        keys: WebPushKeys,
    },
    /// A token that somebody else receives pushes for.
    Token {
        /// Where it leads.
        platform: Platform,
        /// As the relay gets it.
        token: Zeroizing<String>,
    },
}

/// The saved form. A token, or an endpoint with its keys in hex.
#[derive(Serialize, Deserialize)]
struct Saved {
    format: u32,
    platform: Word,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<Zeroizing<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    endpoint: Option<Zeroizing<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    private: Option<Zeroizing<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    auth: Option<Zeroizing<String>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    Ios,
    Android,
    Web,
}

/// A browser's `PushSubscription` as JSON.
#[derive(Deserialize)]
struct Subscription {
    #[expect(dead_code, reason = "has to be there")]
    endpoint: String,
    #[expect(dead_code, reason = "has to be there")]
    keys: SubscriptionKeys,
}

#[derive(Deserialize)]
struct SubscriptionKeys {
    #[expect(dead_code, reason = "has to be there")]
    p256dh: String,
    #[expect(dead_code, reason = "has to be there")]
    auth: String,
}

impl Registration {
    /// A Web Push subscription at this endpoint; `keys` are fresh ones. The relay has rules of its own besides, such as the
    /// push services it sends to at all.
    pub fn web_push(endpoint: &str, keys: WebPushKeys) -> Result<Self, RegistrationError> {
        if !is_endpoint(endpoint) {
            return Err(RegistrationError::Endpoint);
        }
        Ok(Self::WebPush { endpoint: Zeroizing::new(endpoint.to_owned()), keys })
    }

    /// Reads `PLATFORM:TOKEN`.
    pub fn parse(text: &str) -> Result<Self, RegistrationError> {
        let (platform, token) = text.split_once(':').ok_or(RegistrationError::Platform)?;
        let platform = match platform {
            "ios" => Platform::Ios,
            "android" => Platform::Android,
            "web" => Platform::Web,
            _ => return Err(RegistrationError::Platform),
        };
        Self::token_of(platform, Zeroizing::new(token.to_owned()))
    }

    fn token_of(platform: Platform, token: Zeroizing<String>) -> Result<Self, RegistrationError> {
        let fits = (1..=MAX_DEVICE_TOKEN).contains(&token.len());
        let (name, form, good) = match platform {
            Platform::Ios => {
                ("ios", "has hex digits alone, two for each byte", is_hex(&token) && token.len().is_multiple_of(2))
            }
            Platform::Web => {
                ("web", "is the JSON of a PushSubscription", serde_json::from_str::<Subscription>(&token).is_ok())
            }
            Platform::Android | Platform::Unspecified => {
                ("android", "has visible ASCII characters alone", token.bytes().all(|byte| byte.is_ascii_graphic()))
            }
        };
        if fits && good {
            Ok(Self::Token { platform, token })
        } else {
            Err(RegistrationError::Token { platform: name, form })
        }
    }

    /// The platform for the relay.
    pub const fn platform(&self) -> Platform {
        match self {
            Self::WebPush { .. } => Platform::Web,
            Self::Token { platform, .. } => *platform,
        }
    }

    /// The token for the relay (protocol, Tokens).
    pub fn device_token(&self) -> Zeroizing<String> {
        match self {
            Self::Token { token, .. } => token.clone(),
            Self::WebPush { endpoint, keys } => {
                let (p256dh, auth) = keys.public();
                let subscription =
                    serde_json::json!({"endpoint": &**endpoint, "keys": {"p256dh": p256dh, "auth": auth}});
                Zeroizing::new(subscription.to_string())
            }
        }
    }

    /// For people: the platform, and of an endpoint its host.
    pub fn words(&self) -> String {
        match self {
            Self::WebPush { endpoint, .. } => {
                let host = endpoint.parse::<http::Uri>().ok().and_then(|uri| uri.host().map(str::to_owned));
                format!("web ({})", host.unwrap_or_default())
            }
            Self::Token { platform: Platform::Ios, .. } => "ios".to_owned(),
            Self::Token { platform: Platform::Web, .. } => "web".to_owned(),
            Self::Token { .. } => "android".to_owned(),
        }
    }

    /// Whether it is a subscription of this phone's own at that endpoint.
    pub fn is_at(&self, url: &str) -> bool {
        matches!(self, Self::WebPush { endpoint, .. } if endpoint.as_str() == url)
    }

    /// What opens the bodies of Web Push, if they come to this phone.
    pub const fn keys(&self) -> Option<&WebPushKeys> {
        match self {
            Self::WebPush { keys, .. } => Some(keys),
            Self::Token { .. } => None,
        }
    }

    /// To be saved.
    pub fn to_json(&self) -> Zeroizing<Vec<u8>> {
        let mut saved =
            Saved { format: FORMAT, platform: Word::Web, token: None, endpoint: None, private: None, auth: None };
        match self {
            Self::WebPush { endpoint, keys } => {
                let (private, auth) = keys.expose();
                saved.endpoint = Some(endpoint.clone());
                saved.private = Some(Zeroizing::new(hex::encode(private.as_slice())));
                saved.auth = Some(Zeroizing::new(hex::encode(auth)));
            }
            Self::Token { platform, token } => {
                saved.platform = match platform {
                    Platform::Ios => Word::Ios,
                    Platform::Web => Word::Web,
                    Platform::Android | Platform::Unspecified => Word::Android,
                };
                saved.token = Some(token.clone());
            }
        }
        // Its full size from the start, so that nothing is left behind by growing: quotes in a token double at most.
        let mut json = Zeroizing::new(Vec::with_capacity(2 * MAX_DEVICE_TOKEN + 1024));
        // Strings and a number alone: serialization cannot fail.
        let _ = serde_json::to_writer(&mut *json, &saved);
        json
    }

    /// From the saved form.
    pub fn from_json(json: &[u8]) -> Result<Self, RegistrationError> {
        let saved: Saved = serde_json::from_slice(json).map_err(|_| RegistrationError::Saved)?;
        if saved.format != FORMAT {
            return Err(RegistrationError::Saved);
        }
        let platform = match saved.platform {
            Word::Ios => Platform::Ios,
            Word::Android => Platform::Android,
            Word::Web => Platform::Web,
        };
        match (saved.token, saved.endpoint, saved.private, saved.auth) {
            (Some(token), None, None, None) => Self::token_of(platform, token),
            (None, Some(endpoint), Some(private), Some(auth)) if platform == Platform::Web => {
                let (mut private_bytes, mut auth_bytes) = (Zeroizing::new([0; 32]), Zeroizing::new([0; 16]));
                hex::decode_to_slice(private.as_str(), private_bytes.as_mut()).map_err(|_| RegistrationError::Saved)?;
                hex::decode_to_slice(auth.as_str(), auth_bytes.as_mut()).map_err(|_| RegistrationError::Saved)?;
                let keys = WebPushKeys::new(&private_bytes, &auth_bytes).ok_or(RegistrationError::Saved)?;
                Self::web_push(&endpoint, keys)
            }
            _ => Err(RegistrationError::Saved),
        }
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration({})", self.words())
    }
}

fn is_endpoint(url: &str) -> bool {
    let Ok(uri) = url.parse::<http::Uri>() else { return false };
    let Some(authority) = uri.authority() else { return false };
    url.len() <= MAX_ENDPOINT
        && uri.scheme() == Some(&http::uri::Scheme::HTTPS)
        && !authority.host().is_empty()
        // No user, and no port but the usual one.
        && matches!(authority.as_str().strip_prefix(authority.host()), Some("" | ":443"))
        && !url.contains('#')
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUBSCRIPTION: &str =
        r#"{"endpoint":"https://a.example/x","expirationTime":null,"keys":{"p256dh":"B","auth":"a"}}"#;

    fn keys() -> WebPushKeys {
        WebPushKeys::new(&[1; 32], &[2; 16]).unwrap()
    }

    #[test]
    fn a_token_is_read_for_its_platform_and_comes_back_as_it_was() {
        for (text, platform, token) in [
            ("ios:00aaFF", Platform::Ios, "00aaFF"),
            ("android:a:b-_c", Platform::Android, "a:b-_c"),
            (&format!("web:{SUBSCRIPTION}"), Platform::Web, SUBSCRIPTION),
        ] {
            let registration = Registration::parse(text).unwrap();
            let again = Registration::from_json(&registration.to_json()).unwrap();
            for registration in [registration, again] {
                assert_eq!((registration.platform(), registration.device_token().as_str()), (platform, token));
                assert!(registration.keys().is_none());
                assert!(!format!("{registration:?}").contains(token), "{registration:?}");
            }
        }
    }

    #[test]
    fn an_own_subscription_is_one_as_browsers_give_it_and_comes_back_with_its_keys() {
        let endpoint = "https://updates.push.example/wpush/v2/abc?x=1";
        let registration = Registration::web_push(endpoint, keys()).unwrap();
        let token: serde_json::Value = serde_json::from_str(&registration.device_token()).unwrap();
        let (p256dh, auth) = keys().public();
        assert_eq!(token, serde_json::json!({"endpoint": endpoint, "keys": {"p256dh": p256dh, "auth": auth}}));
        let again = Registration::from_json(&registration.to_json()).unwrap();
        assert_eq!((again.device_token(), again.platform()), (registration.device_token(), Platform::Web));
        assert!(again.is_at(endpoint) && !again.is_at("https://updates.push.example/"));
        assert_eq!(again.keys().map(WebPushKeys::expose), Some(keys().expose()));
        assert_eq!(format!("{again:?}"), "Registration(web (updates.push.example))");
    }

    #[test]
    fn what_is_no_token_or_endpoint_is_refused_without_being_quoted() {
        let long = "a".repeat(MAX_DEVICE_TOKEN + 1);
        for text in [
            "hunter2",
            "IOS:00",
            "palm:hunter2",
            "ios:",
            "ios:hunter2",
            "ios:000",
            "android:",
            "android:hunter2 x",
            "android:hünter2",
            "web:hunter2",
            r#"web:{"endpoint":"https://hunter2"}"#,
            &format!("android:{long}"),
        ] {
            let error = Registration::parse(text).unwrap_err().to_string();
            assert!(!error.contains("hunter2") && !error.contains("aaaa"), "{error}");
        }
        for url in [
            "",
            "hunter2",
            "http://push.example/x",
            "wss://push.example/x",
            "https://",
            "https:///x",
            "https://user@push.example/x",
            "https://user:hunter2@push.example/x",
            "https://push.example:8443/x",
            "https://push.example:/x",
            "https://push.example:99999/x",
            "https://push.example/x#y",
            "https://push.example/ x",
            "https://pusch\u{e4}.example/x",
            &format!("https://push.example/{}", "a".repeat(MAX_ENDPOINT)),
        ] {
            let refused = Registration::web_push(url, keys()).map(drop);
            assert_eq!(refused, Err(RegistrationError::Endpoint), "{url}");
        }
        for url in ["https://push.example", "https://push.example:443/x", "https://[2001:db8::1]/x?y=z"] {
            assert!(Registration::web_push(url, keys()).is_ok(), "{url}");
        }
        let longest = format!("https://push.example/{}", "a".repeat(MAX_ENDPOINT - 21));
        assert!(Registration::web_push(&longest, keys()).unwrap().device_token().len() <= MAX_DEVICE_TOKEN);
    }

    #[test]
    fn a_damaged_file_is_no_registration() {
        let good = String::from_utf8(Registration::web_push("https://a.example", keys()).unwrap().to_json().to_vec());
        let good = good.unwrap();
        for bad in [
            "",
            "{}",
            "[]",
            &good[..good.len() - 1],
            &good.replace("\"format\":1", "\"format\":2"),
            &good.replace("0101", "01"),
            &good.replace("web", "ios"),
            &good.replace("https", "http"),
            &good.replace(&"01".repeat(32), &"00".repeat(32)),
            r#"{"format":1,"platform":"ios"}"#,
            r#"{"format":1,"platform":"ios","token":"xx"}"#,
            r#"{"format":1,"platform":"web","token":"x","endpoint":"https://a.example"}"#,
        ] {
            assert!(Registration::from_json(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
