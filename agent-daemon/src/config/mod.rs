//! The daemon's settings (socket API, Settings).
//!
//! A [`Config`] is valid by construction: defaults, then the file, then the environment, each value checked on its way
//! in. [`ConfigStore`] reads and writes the file; [`Keeper`] is the task that owns the store while the daemon runs.

mod file;
mod keeper;
mod value;

use std::fmt;

use serde::Serialize;
use skald_common::limits::PAIRING_TTL_SECS;

pub use file::{ConfigError, ConfigStore};
pub use keeper::{ChangeError, ConfigHandle, Keeper};
pub use value::Value;

use crate::hub::api::Settings;

/// Longest pairing window, seconds.
const MAX_PAIRING_TTL: u32 = 600;

/// Longest delay before a push, seconds: a day.
const MAX_NOTIFY_DELAY: u32 = 86_400;

/// All settings, valid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Config {
    /// WebSocket address of the relay; empty: the daemon stays idle.
    pub relay_url: String,
    /// The address that pairing codes show instead of the one that worked.
    pub qr_url: Option<String>,
    /// Default life of a pairing window, seconds.
    pub pairing_ttl: u32,
    /// Whether a person must authorize each new device.
    pub require_device_confirmation: bool,
    /// How long an approval or clarification waits before it is pushed, seconds.
    pub notify_delay_secs: u32,
    /// Local port that devices may reach through the reverse proxy; `None`: no proxy.
    pub web_port: Option<u16>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            relay_url: String::new(),
            qr_url: None,
            pairing_ttl: PAIRING_TTL_SECS,
            require_device_confirmation: true,
            notify_delay_secs: 20,
            web_port: None,
        }
    }
}

impl From<&Config> for Settings {
    fn from(config: &Config) -> Self {
        Self {
            relay_url: config.relay_url.clone(),
            qr_url: config.qr_url.clone(),
            pairing_ttl: config.pairing_ttl,
            require_device_confirmation: config.require_device_confirmation,
            notify_delay_secs: config.notify_delay_secs,
            web_port: config.web_port,
        }
    }
}

/// Names a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setting {
    /// [`Config::relay_url`].
    RelayUrl,
    /// [`Config::qr_url`].
    QrUrl,
    /// [`Config::pairing_ttl`].
    PairingTtl,
    /// [`Config::require_device_confirmation`].
    RequireDeviceConfirmation,
    /// [`Config::notify_delay_secs`].
    NotifyDelaySecs,
    /// [`Config::web_port`].
    WebPort,
}

/// A setting cannot have this value, or there is no such setting: which, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {what}")]
pub struct InvalidSetting {
    /// Its name as it was given.
    pub setting: String,
    /// What is wrong.
    pub what: String,
}

impl Setting {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::RelayUrl,
        Self::QrUrl,
        Self::PairingTtl,
        Self::RequireDeviceConfirmation,
        Self::NotifyDelaySecs,
        Self::WebPort,
    ];

    /// Its name in files and calls.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RelayUrl => "relay_url",
            Self::QrUrl => "qr_url",
            Self::PairingTtl => "pairing_ttl",
            Self::RequireDeviceConfirmation => "require_device_confirmation",
            Self::NotifyDelaySecs => "notify_delay_secs",
            Self::WebPort => "web_port",
        }
    }

    /// By its name.
    pub fn by_name(name: &str) -> Result<Self, InvalidSetting> {
        Self::ALL.into_iter().find(|setting| setting.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            let setting = name.chars().take(64).collect();
            InvalidSetting { setting, what: format!("there is no such setting; there are {known}") }
        })
    }

    /// The environment variable that overrides it.
    pub fn variable(self) -> String {
        format!("SKALD_AGENTD_{}", self.name().to_uppercase())
    }

    fn invalid(self, what: impl Into<String>) -> InvalidSetting {
        InvalidSetting { setting: self.name().to_owned(), what: what.into() }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Config {
    /// Changes one setting; [`Value::Unset`] brings back its default.
    pub fn set(&mut self, setting: Setting, value: &Value) -> Result<(), InvalidSetting> {
        let wrong = |what| setting.invalid(what);
        if *value == Value::Unset {
            self.reset(setting);
            return Ok(());
        }
        match setting {
            Setting::RelayUrl => {
                let url = value.text().map_err(wrong)?;
                check_url(url).map_err(wrong)?;
                url.clone_into(&mut self.relay_url);
            }
            Setting::QrUrl => {
                let url = value.text().map_err(wrong)?;
                check_url(url).map_err(wrong)?;
                self.qr_url = Some(url.to_owned()).filter(|url| !url.is_empty());
            }
            Setting::PairingTtl => self.pairing_ttl = value.number(1, MAX_PAIRING_TTL).map_err(wrong)?,
            Setting::RequireDeviceConfirmation => self.require_device_confirmation = value.boolean().map_err(wrong)?,
            Setting::NotifyDelaySecs => self.notify_delay_secs = value.number(0, MAX_NOTIFY_DELAY).map_err(wrong)?,
            Setting::WebPort => self.web_port = Some(value.number(1, u16::MAX).map_err(wrong)?),
        }
        Ok(())
    }

    fn reset(&mut self, setting: Setting) {
        let default = Self::default();
        match setting {
            Setting::RelayUrl => self.relay_url = default.relay_url,
            Setting::QrUrl => self.qr_url = default.qr_url,
            Setting::PairingTtl => self.pairing_ttl = default.pairing_ttl,
            Setting::RequireDeviceConfirmation => {
                self.require_device_confirmation = default.require_device_confirmation;
            }
            Setting::NotifyDelaySecs => self.notify_delay_secs = default.notify_delay_secs,
            Setting::WebPort => self.web_port = default.web_port,
        }
    }
}

/// A relay's address: ws:// or wss://, with a host, without user, query or fragment; `{ns}` and `{ns32}` stand for the
/// namespace. Empty means none.
fn check_url(url: &str) -> Result<(), String> {
    if url.is_empty() {
        return Ok(());
    }
    let plain = url.replace("{ns}", "ns").replace("{ns32}", "ns");
    if plain.contains(['{', '}']) {
        return Err("the only placeholders are {ns} and {ns32}".into());
    }
    if plain.contains('#') {
        return Err("a fragment (#…) has no meaning here".into());
    }
    let uri: http::Uri = plain.parse().map_err(|_| "is no address like wss://relay.example/v1/ws".to_owned())?;
    if !matches!(uri.scheme_str(), Some("ws" | "wss")) {
        return Err("must begin with wss:// or ws://".into());
    }
    match uri.authority() {
        Some(authority) if authority.as_str().contains('@') => Err("must not hold a user or a password".into()),
        Some(authority) if !authority.host().is_empty() => Ok(()),
        _ => Err("names no host".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(setting: Setting, value: &Value) -> String {
        let mut config = Config::default();
        let error = config.set(setting, value).expect_err("accepted");
        assert_eq!(config, Config::default());
        error.to_string()
    }

    #[test]
    fn each_wrong_value_is_named_with_what_would_be_right() {
        let text = |text: &str| Value::Text(text.into());
        for (setting, value, expected) in [
            (Setting::RelayUrl, text("https://relay.example"), "relay_url: must begin with wss:// or ws://"),
            (Setting::RelayUrl, text("relay.example"), "relay_url: must begin with wss:// or ws://"),
            (Setting::RelayUrl, text("wss://"), "relay_url: is no address"),
            (Setting::RelayUrl, text("wss://a b"), "relay_url: is no address"),
            (Setting::RelayUrl, text("wss://u:p@relay.example"), "relay_url: must not hold a user"),
            (Setting::RelayUrl, text("wss://relay.example/#x"), "relay_url: a fragment"),
            (Setting::RelayUrl, text("wss://relay.example/{name}"), "relay_url: the only placeholders"),
            (Setting::RelayUrl, Value::Integer(1), "relay_url: must be a text"),
            (Setting::QrUrl, text("x"), "qr_url: must begin"),
            (Setting::PairingTtl, Value::Integer(0), "pairing_ttl: must be a whole number from 1 to 600"),
            (Setting::PairingTtl, Value::Integer(601), "pairing_ttl: must be a whole number from 1 to 600"),
            (Setting::PairingTtl, Value::Boolean(true), "pairing_ttl: must be a whole number"),
            (
                Setting::RequireDeviceConfirmation,
                Value::Integer(1),
                "require_device_confirmation: must be true or false",
            ),
            (Setting::RequireDeviceConfirmation, text("maybe"), "require_device_confirmation: must be true or false"),
            (Setting::NotifyDelaySecs, Value::Integer(-1), "notify_delay_secs: must be a whole number from 0 to 86400"),
            (Setting::NotifyDelaySecs, Value::Other, "notify_delay_secs: must be a whole number"),
            (Setting::WebPort, Value::Integer(65_536), "web_port: must be a whole number from 1 to 65535"),
            (Setting::WebPort, Value::Integer(0), "web_port: must be a whole number from 1 to 65535"),
        ] {
            let error = wrong(setting, &value);
            assert!(error.starts_with(expected), "{value:?}: {error}");
        }
        let error = Setting::by_name("relay-url").unwrap_err().to_string();
        assert!(error.starts_with("relay-url: there is no such setting; there are relay_url, "), "{error}");
    }

    #[test]
    fn right_values_are_taken_and_unset_brings_back_the_default() {
        let mut config = Config::default();
        for url in ["", "ws://127.0.0.1:8787/v1/ws", "wss://[::1]/v1/ws", "wss://{ns32}.relay.example/ns/{ns}/v1/ws"] {
            config.set(Setting::RelayUrl, &Value::Text(url.into())).unwrap();
            assert_eq!(config.relay_url, url);
        }
        config.set(Setting::WebPort, &Value::Text("8080".into())).unwrap();
        config.set(Setting::RequireDeviceConfirmation, &Value::Text("false".into())).unwrap();
        config.set(Setting::PairingTtl, &Value::Integer(600)).unwrap();
        assert_eq!((config.web_port, config.require_device_confirmation, config.pairing_ttl), (Some(8080), false, 600));
        for setting in Setting::ALL {
            config.set(setting, &Value::Unset).unwrap();
        }
        assert_eq!(config, Config::default());
    }
}
