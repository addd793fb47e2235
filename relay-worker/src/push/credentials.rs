//! What the operator has set up (push protocol, Secrets): each service is off, on, or misconfigured, which is off and told.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use p256::SecretKey;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::Services;
use super::der;
use super::endpoint::Rules;
use super::json::Json;
use super::jwt::Es256;
use super::verdict::Service;

const APNS_HOST: &str = "api.push.apple.com";
const FCM_HOST: &str = "fcm.googleapis.com";

/// Everything that pushes need. Holds secrets.
#[derive(Default)]
pub struct Credentials {
    pub(super) apns: Option<Apns>,
    pub(super) fcm: Option<Fcm>,
    pub(super) web: Option<Web>,
    wrong: Vec<SetupError>,
}

pub(super) struct Apns {
    pub(super) key: Es256,
    pub(super) key_id: String,
    pub(super) team_id: String,
    pub(super) topic: String,
    pub(super) origin: String,
}

pub(super) struct Fcm {
    pub(super) email: String,
    pub(super) key_id: String,
    /// PKCS #8, DER.
    pub(super) key: Zeroizing<Vec<u8>>,
    pub(super) token_uri: String,
    /// Where messages go.
    pub(super) url: String,
    pub(super) identity: [u8; 16],
}

pub(super) struct Web {
    pub(super) key: Es256,
    pub(super) subject: String,
    pub(super) rules: Rules,
}

/// The state of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setup {
    /// Nothing is configured.
    Off,
    /// Pushes are sent.
    On,
    /// Something is missing or wrong; the log says what.
    Misconfigured,
}

impl Setup {
    /// For `/healthz`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Misconfigured => "misconfigured",
        }
    }
}

/// A variable keeps a service off. Quotes no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable} {what}; pushes by {} are off", service.name())]
pub struct SetupError {
    /// Whose.
    pub service: Service,
    /// Its name.
    pub variable: &'static str,
    /// What is wrong.
    pub what: &'static str,
}

impl Credentials {
    /// From the variables and secrets of a deployment. Those that are wrong are in [`Self::errors`].
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let read = |name: &str| lookup(name).map(Zeroizing::new).filter(|value| !value.trim().is_empty());
        let mut credentials = Self::default();
        let setup = Reader { read: &read, wrong: &mut credentials.wrong };
        credentials.apns = setup.apns();
        let setup = Reader { read: &read, wrong: &mut credentials.wrong };
        credentials.fcm = setup.fcm();
        let setup = Reader { read: &read, wrong: &mut credentials.wrong };
        credentials.web = setup.web();
        credentials
    }

    /// For the log.
    pub fn errors(&self) -> &[SetupError] {
        &self.wrong
    }

    /// Which pushes can be sent.
    pub const fn services(&self) -> Services {
        Services { apns: self.apns.is_some(), fcm: self.fcm.is_some(), web: self.web.is_some() }
    }

    /// The state of a service.
    pub fn setup(&self, service: Service) -> Setup {
        let on = match service {
            Service::Apns => self.apns.is_some(),
            Service::Fcm => self.fcm.is_some(),
            Service::Web => self.web.is_some(),
        };
        match on {
            true => Setup::On,
            false if self.wrong.iter().any(|error| error.service == service) => Setup::Misconfigured,
            false => Setup::Off,
        }
    }

    /// The public key that browsers subscribe with, uncompressed, base64url.
    pub fn webpush_key(&self) -> Option<String> {
        self.web.as_ref().map(|web| web.key.public())
    }

    /// The private key that signs for FCM: PKCS #8, DER.
    pub fn fcm_key(&self) -> Option<&[u8]> {
        self.fcm.as_ref().map(|fcm| fcm.key.as_slice())
    }

    /// Names the account that access tokens are for; nothing else.
    pub fn fcm_identity(&self) -> Option<[u8; 16]> {
        self.fcm.as_ref().map(|fcm| fcm.identity)
    }
}

type Lookup<'a> = &'a dyn Fn(&str) -> Option<Zeroizing<String>>;

/// Reads the variables of one service.
struct Reader<'a> {
    read: Lookup<'a>,
    wrong: &'a mut Vec<SetupError>,
}

impl Reader<'_> {
    fn apns(self) -> Option<Apns> {
        const SECRETS: [&str; 4] = ["APNS_KEY", "APNS_KEY_ID", "APNS_TEAM_ID", "APNS_TOPIC"];
        self.group(Service::Apns, SECRETS, |read, [key, key_id, team_id, topic]| {
            let der = pem(&key).ok_or(("APNS_KEY", "is no PEM (the .p8 file that Apple gave you)"))?;
            let key = der::p256_secret(&der).and_then(|secret| SecretKey::from_slice(secret).ok());
            let key = key.ok_or(("APNS_KEY", "is no PKCS #8 key on P-256"))?;
            let id = |name, text: &str| {
                is_id(text).then(|| text.to_owned()).ok_or((name, "has characters that it never has"))
            };
            let (key_id, team_id) = (id("APNS_KEY_ID", &key_id)?, id("APNS_TEAM_ID", &team_id)?);
            let topic = id("APNS_TOPIC", &topic)?;
            let origin = origin(read("APNS_HOST").as_ref(), APNS_HOST).ok_or(("APNS_HOST", NO_HOST))?;
            Ok(Apns { key: Es256::new(key), key_id, team_id, topic, origin })
        })
    }

    fn fcm(self) -> Option<Fcm> {
        self.group(Service::Fcm, ["FCM_SERVICE_ACCOUNT"], |read, [account]| {
            let wrong = |what| ("FCM_SERVICE_ACCOUNT", what);
            let json = Json::parse(account.as_bytes()).ok_or(wrong("is no JSON"))?;
            let text = |name| json.text(name).map(str::to_owned);
            let email = text("client_email").ok_or(wrong("has no client_email"))?;
            let key_id = text("private_key_id").ok_or(wrong("has no private_key_id"))?;
            let project = text("project_id").filter(|id| is_id(id)).ok_or(wrong("has no project_id"))?;
            let token_uri = text("token_uri").filter(|uri| is_https(uri)).ok_or(wrong("has no https token_uri"))?;
            let pem_text = Zeroizing::new(text("private_key").ok_or(wrong("has no private_key"))?);
            let key = pem(&pem_text).ok_or(wrong("has a private_key that is no PEM"))?;
            if !der::is_rsa(&key) {
                return Err(wrong("has a private_key that is no PKCS #8 key for RSA"));
            }
            let origin = origin(read("FCM_HOST").as_ref(), FCM_HOST).ok_or(("FCM_HOST", NO_HOST))?;
            let url = format!("{origin}/v1/projects/{project}/messages:send");
            let identity = Sha256::digest(account.as_bytes()).first_chunk().copied().unwrap_or_default();
            Ok(Fcm { email, key_id, key, token_uri, url, identity })
        })
    }

    fn web(self) -> Option<Web> {
        self.group(Service::Web, ["VAPID_PRIVATE_KEY", "VAPID_SUBJECT"], |read, [key, subject]| {
            let bytes = URL_SAFE_NO_PAD.decode(key.trim().trim_end_matches('=')).map(Zeroizing::new);
            let key = bytes.ok().and_then(|bytes| SecretKey::from_slice(&bytes).ok());
            let key =
                key.ok_or(("VAPID_PRIVATE_KEY", "is no private key of 32 bytes in base64url (scripts/vapid-keys)"))?;
            let subject = subject.trim().to_owned();
            if !(subject.starts_with("mailto:") || subject.starts_with("https://")) {
                return Err(("VAPID_SUBJECT", "must begin with mailto: or https://"));
            }
            let list = |name| read(name).unwrap_or_default();
            let own = [list("RELAY_HOST").as_str(), list("RELAY_WILDCARD_HOST").as_str()].join(",");
            Rules::new("", &own).map_err(|_| ("RELAY_HOST", "is no list of host names"))?;
            let rules =
                Rules::new(&list("WEBPUSH_ALLOW"), &own).map_err(|_| ("WEBPUSH_ALLOW", "is no list of host names"))?;
            Ok(Web { key: Es256::new(key), subject, rules })
        })
    }

    /// All of a group's secrets, or none of them.
    fn group<const N: usize, T>(
        self,
        service: Service,
        secrets: [&'static str; N],
        parse: impl FnOnce(Lookup<'_>, [Zeroizing<String>; N]) -> Result<T, (&'static str, &'static str)>,
    ) -> Option<T> {
        let values = secrets.map(|name| (name, (self.read)(name)));
        if values.iter().all(|(_, value)| value.is_none()) {
            return None;
        }
        let mut error = |variable, what| self.wrong.push(SetupError { service, variable, what });
        let missing: Vec<&'static str> =
            values.iter().filter(|(_, value)| value.is_none()).map(|(name, _)| *name).collect();
        if !missing.is_empty() {
            for name in missing {
                error(name, "is missing");
            }
            return None;
        }
        parse(self.read, values.map(|(_, value)| value.unwrap_or_default()))
            .inspect_err(|(variable, what)| error(variable, what))
            .ok()
    }
}

const NO_HOST: &str = "is no host[:port], and no http:// or https:// origin";

/// What ids of keys, teams, bundles and projects consist of.
fn is_id(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    (1..=255).contains(&text.len()) && text.bytes().all(plain)
}

fn is_https(uri: &str) -> bool {
    uri.starts_with("https://") && uri.bytes().all(|byte| byte.is_ascii_graphic())
}

/// `host`, `host:port`, or an origin with its scheme, which alone may be http: a forwarder of one's own.
fn origin(value: Option<&Zeroizing<String>>, default: &str) -> Option<String> {
    let value = value.map_or(default, |value| value.trim());
    let value = value.strip_suffix('/').unwrap_or(value);
    let (scheme, host) = match value.split_once("://") {
        Some((scheme @ ("http" | "https"), host)) => (scheme, host),
        Some(_) => return None,
        None => ("https", value),
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    (!host.is_empty() && host.bytes().all(plain)).then(|| format!("{scheme}://{host}"))
}

/// The one block of a PEM text. Consoles and shells lose line ends, or write them as `\n`.
fn pem(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    let text = Zeroizing::new(text.replace("\\n", "\n"));
    let (_, text) = text.split_once("-----BEGIN PRIVATE KEY-----")?;
    let (body, _) = text.split_once("-----END PRIVATE KEY-----")?;
    let body = Zeroizing::new(body.split_ascii_whitespace().collect::<String>());
    STANDARD.decode(body.as_bytes()).ok().map(Zeroizing::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::tests::{SETTINGS, credentials, credentials_with};

    #[test]
    fn nothing_configured_is_off_and_no_error() {
        let credentials = Credentials::from_lookup(|_| None);
        assert_eq!(credentials.services(), Services::default());
        assert!(credentials.errors().is_empty());
        assert!(Service::ALL.iter().all(|service| credentials.setup(*service) == Setup::Off));
        assert_eq!(credentials.webpush_key(), None);
    }

    #[test]
    fn everything_configured_is_on() {
        let credentials = credentials();
        assert_eq!(credentials.errors(), []);
        assert_eq!(credentials.services(), Services { apns: true, fcm: true, web: true });
        assert!(Service::ALL.iter().all(|service| credentials.setup(*service) == Setup::On));
    }

    #[test]
    fn a_group_that_is_not_complete_is_off_and_told_and_the_others_are_on() {
        for (name, _) in SETTINGS {
            let credentials = credentials_with(&[(name, "")]);
            let others = Service::ALL.iter().filter(|service| credentials.setup(**service) == Setup::On).count();
            assert_eq!(others, 2, "{name}");
            if name == "FCM_SERVICE_ACCOUNT" {
                assert_eq!(credentials.setup(Service::Fcm), Setup::Off, "the whole group is missing");
                continue;
            }
            let [error] = credentials.errors() else { panic!("{:?}", credentials.errors()) };
            assert_eq!((error.variable, error.what), (name, "is missing"));
            assert_eq!(credentials.setup(error.service), Setup::Misconfigured);
        }
    }

    #[test]
    fn what_is_wrong_is_told_by_name_and_never_quoted() {
        let account = |from: &str, to: &str| {
            let (_, account) = SETTINGS.iter().find(|(name, _)| *name == "FCM_SERVICE_ACCOUNT").unwrap();
            assert!(account.contains(from));
            account.replace(from, to)
        };
        let (_, ec_key) = SETTINGS.iter().find(|(name, _)| *name == "APNS_KEY").unwrap();
        for (name, value) in [
            ("APNS_KEY", "hunter2hunter2".to_owned()),
            ("APNS_KEY", "-----BEGIN PRIVATE KEY-----\nhunter2hunter2\n-----END PRIVATE KEY-----".to_owned()),
            ("APNS_KEY_ID", "hunter2\r\nx: y".to_owned()),
            ("APNS_TOPIC", "hunter2 \"".to_owned()),
            ("APNS_HOST", "http://hunter2/path".to_owned()),
            ("APNS_HOST", "ftp://hunter2".to_owned()),
            ("APNS_HOST", "hunter2@x".to_owned()),
            ("FCM_HOST", "hunter2 x".to_owned()),
            ("FCM_SERVICE_ACCOUNT", "hunter2".to_owned()),
            ("FCM_SERVICE_ACCOUNT", "{\"hunter2\":1}".to_owned()),
            ("FCM_SERVICE_ACCOUNT", account("skald-test\"", "../hunter2\"")),
            ("FCM_SERVICE_ACCOUNT", account("https://oauth2", "http://hunter2")),
            ("FCM_SERVICE_ACCOUNT", account("-----BEGIN", "hunter2")),
            ("FCM_SERVICE_ACCOUNT", serde_json::json!({
                "client_email": "a@b", "private_key_id": "hunter2", "project_id": "p", "token_uri": "https://x/", "private_key": ec_key,
            }).to_string()),
            ("VAPID_PRIVATE_KEY", "hunter2".to_owned()),
            ("VAPID_PRIVATE_KEY", "A".repeat(43)),
            ("VAPID_SUBJECT", "hunter2@example.org".to_owned()),
            ("WEBPUSH_ALLOW", "hunter2".to_owned()),
            ("RELAY_HOST", "hunter2".to_owned()),
        ] {
            let credentials = credentials_with(&[(name, &value)]);
            let [error] = credentials.errors() else { panic!("{name}={value}: {:?}", credentials.errors()) };
            assert_eq!(error.variable, name, "{value}");
            assert_eq!(credentials.setup(error.service), Setup::Misconfigured);
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_pem_survives_what_consoles_do_to_line_ends() {
        let (_, key) = SETTINGS.iter().find(|(name, _)| *name == "APNS_KEY").unwrap();
        let public = |key: &str| credentials_with(&[("APNS_KEY", key)]).apns.map(|apns| apns.key.public());
        let expected = public(key);
        assert!(expected.is_some());
        for mangled in
            [key.replace('\n', "\\n"), key.replace('\n', " "), key.replace('\n', "\r\n"), format!("\n  {key}\n")]
        {
            assert_eq!(public(&mangled), expected);
        }
    }

    #[test]
    fn hosts_are_https_unless_the_operator_says_otherwise() {
        let at = |host: &str| credentials_with(&[("APNS_HOST", host)]).apns.map(|apns| apns.origin);
        assert_eq!(at("").as_deref(), Some("https://api.push.apple.com"));
        assert_eq!(at("api.sandbox.push.apple.com").as_deref(), Some("https://api.sandbox.push.apple.com"));
        assert_eq!(at("push.example:2197").as_deref(), Some("https://push.example:2197"));
        assert_eq!(at("https://push.example/").as_deref(), Some("https://push.example"));
        assert_eq!(at("http://[::1]:8010").as_deref(), Some("http://[::1]:8010"));
    }
}
