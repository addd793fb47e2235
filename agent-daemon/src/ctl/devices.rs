//! `skaldctl devices`, `authorize`, `revoke`.

use serde::Deserialize;
use serde_json::json;

use super::args::Devices;
use super::client::Client;
use super::output::{ago, now, safe, short, table};
use super::{Exit, Failure, Session};
use crate::rpc::parse_params;

/// A row of `devices.list`.
#[derive(Debug, Deserialize)]
pub(super) struct Device {
    pub(super) pubkey: String,
    fingerprint: String,
    short_key: Option<String>,
    pub(super) state: String,
    platform: String,
    name: String,
    last_seen: Option<u64>,
    online: bool,
    /// Daemons and relays of the first versions do not say.
    #[serde(default)]
    push: Option<String>,
}

#[derive(Deserialize)]
struct Applied {
    applied: bool,
}

impl Device {
    /// What a person compares before authorizing.
    pub(super) fn introduction(&self) -> String {
        let name = format!("{} ({}, key {}…)", safe(&self.name), safe(&self.platform), safe(&short(&self.pubkey)));
        let key = self.short_key.as_ref().map(|key| format!("\nthe app shows {}", safe(key))).unwrap_or_default();
        format!("device        {name}\nfingerprint   {}{key}", safe(&self.fingerprint))
    }

    /// Why pushes do not wake it although its owner may believe so, and what to do about it.
    fn push_trouble(&self) -> Option<String> {
        let why = match self.push.as_deref()? {
            "gone" => "token no longer valid — open the app once",
            "off" => "the relay has no credentials for this kind of device — ask its operator, or keep the app open",
            _ => return None,
        };
        Some(format!("{} ({}): push: {why}", safe(&self.name), safe(&short(&self.pubkey))))
    }
}

pub(super) async fn run(session: &Session, action: Devices) -> Result<Exit, Failure> {
    match action {
        Devices::List => show_list(session).await,
        Devices::Clear => change(session, "devices.clear", json!({}), "All devices are revoked").await,
        Devices::Restore => change(session, "devices.restore", json!({}), "The devices of the backup are back").await,
    }
}

pub(super) async fn authorize(session: &Session, device: &str) -> Result<Exit, Failure> {
    change(session, "devices.authorize", json!({"pubkey": device}), "The device is authorized").await
}

pub(super) async fn revoke(session: &Session, device: &str) -> Result<Exit, Failure> {
    change(session, "devices.revoke", json!({"pubkey": device}), "The device is revoked").await
}

/// The device with this key.
pub(super) async fn find(client: &mut Client, pubkey: &str) -> Result<Option<Device>, Failure> {
    let devices: Vec<Device> = client.call("devices.list", &json!({})).await?;
    Ok(devices.into_iter().find(|device| device.pubkey == pubkey))
}

async fn show_list(session: &Session) -> Result<Exit, Failure> {
    let mut client = session.control().await?;
    let text = client.call_text("devices.list", &json!({})).await?;
    session.output.either(&text, || {
        let devices: Vec<Device> = parse_params(&text).map_err(|error| Failure::Unusable(error.message))?;
        Ok(show(&devices, now()))
    })?;
    Ok(Exit::Done)
}

fn show(devices: &[Device], now: u64) -> String {
    if devices.is_empty() {
        return "No devices: pair one with `skaldctl pair`.".to_owned();
    }
    let head = ["KEY", "STATE", "NAME", "PLATFORM", "PUSH", "SEEN", "FINGERPRINT"].map(str::to_owned).to_vec();
    let rows = devices.iter().map(|device| {
        let seen = match device.last_seen {
            _ if device.online => "online".to_owned(),
            Some(then) => ago(then, now),
            None => "never".to_owned(),
        };
        let state = if device.state == "pending" { "waiting" } else { &device.state };
        let key = short(&device.pubkey);
        let push = device.push.as_deref().unwrap_or("-");
        let cells = [key.as_str(), state, &device.name, &device.platform, push, &seen, &device.fingerprint];
        cells.map(safe).to_vec()
    });
    let mut page = table(&std::iter::once(head).chain(rows).collect::<Vec<_>>());
    for trouble in devices.iter().filter_map(Device::push_trouble) {
        page.push('\n');
        page.push_str(&trouble);
    }
    page
}

async fn change(session: &Session, method: &str, params: serde_json::Value, what: &str) -> Result<Exit, Failure> {
    let mut client = session.control().await?;
    let text = client.call_text(method, &params).await?;
    session.output.either(&text, || {
        let Applied { applied } = parse_params(&text).map_err(|error| Failure::Unusable(error.message))?;
        Ok(sentence(what, applied))
    })?;
    Ok(Exit::Done)
}

/// A change, and whether the relay knows of it.
pub(super) fn sentence(what: &str, applied: bool) -> String {
    let later = if applied { "" } else { " here; the relay will be told when it is back" };
    format!("{what}{later}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_a_table_safe_for_a_terminal() {
        let devices: Vec<Device> = serde_json::from_value(json!([
            {"pubkey": "ab".repeat(32), "fingerprint": "0123 4567", "state": "authorized", "platform": "ios",
             "name": "A\u{202e}B", "last_seen": null, "online": true, "short_key": "ababab…ababab", "push": "ready"},
            {"pubkey": "cd".repeat(32), "fingerprint": "89ab cdef", "state": "pending", "platform": "android",
             "name": "C", "last_seen": 0, "online": false},
        ]))
        .unwrap();
        let expected = "\
KEY       STATE       NAME      PLATFORM  PUSH   SEEN       FINGERPRINT
abababab  authorized  A\\u202eB  ios       ready  online     0123 4567
cdcdcdcd  waiting     C         android   -      3 min ago  89ab cdef
";
        assert_eq!(show(&devices, 180_000), expected);
        assert!(devices[0].introduction().ends_with("fingerprint   0123 4567\nthe app shows ababab…ababab"));
        assert!(show(&[], 0).contains("skaldctl pair"));
    }

    #[test]
    fn a_device_that_pushes_do_not_wake_is_told_with_what_to_do() {
        let device = |n: &str, name: &str, push: &str| {
            json!({"pubkey": n.repeat(32), "fingerprint": "f", "state": "authorized", "platform": "ios", "name": name,
                   "last_seen": 0, "online": false, "push": push})
        };
        let devices: Vec<Device> = serde_json::from_value(json!([
            device("aa", "Old\u{7}", "gone"),
            device("bb", "Browser", "off"),
            device("cc", "Terminal", "none"),
            device("dd", "Later", "\u{1b}later"),
        ]))
        .unwrap();
        let expected = "\
KEY       STATE       NAME       PLATFORM  PUSH         SEEN       FINGERPRINT
aaaaaaaa  authorized  Old\\u0007  ios       gone         3 min ago  f
bbbbbbbb  authorized  Browser    ios       off          3 min ago  f
cccccccc  authorized  Terminal   ios       none         3 min ago  f
dddddddd  authorized  Later      ios       \\u001blater  3 min ago  f

Old\\u0007 (aaaaaaaa): push: token no longer valid — open the app once
Browser (bbbbbbbb): push: the relay has no credentials for this kind of device — ask its operator, or keep the app open";
        assert_eq!(show(&devices, 180_000), expected);
    }
}
