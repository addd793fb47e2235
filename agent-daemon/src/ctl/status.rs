//! `skaldctl status`.

use serde::Deserialize;
use serde_json::json;

use super::output::{ago, now, safe, span};
use super::{Exit, Failure, Session};
use crate::rpc::parse_params;

#[derive(Deserialize)]
struct Status {
    version: String,
    pid: u32,
    uptime_secs: u64,
    namespace_id: String,
    relay: Relay,
    devices: Devices,
    pending: Pending,
    hosts: Vec<Host>,
    last_error: Option<String>,
    last_error_at: Option<u64>,
    #[serde(default)]
    notices: Vec<String>,
}

#[derive(Deserialize)]
struct Relay {
    url: String,
    connected: bool,
    since: u64,
    last_error: Option<String>,
}

#[derive(Deserialize)]
struct Devices {
    authorized: usize,
    pending: usize,
    online: usize,
}

#[derive(Deserialize)]
struct Pending {
    approvals: usize,
    clarifications: usize,
    elicitations: usize,
}

#[derive(Deserialize)]
struct Host {
    name: String,
    version: String,
}

pub(super) async fn run(session: &Session) -> Result<Exit, Failure> {
    let mut client = session.control().await?;
    let text = client.call_text("status", &json!({})).await?;
    session.output.either(&text, || {
        let status = parse_params(&text).map_err(|error| Failure::Unusable(error.message))?;
        Ok(show(&status, now()))
    })?;
    Ok(Exit::Done)
}

fn show(status: &Status, now: u64) -> String {
    let Status { version, pid, uptime_secs, namespace_id, relay, devices, pending, hosts, notices, .. } = status;
    let hosts: Vec<String> = hosts.iter().map(|host| safe(&format!("{} {}", host.name, host.version))).collect();
    let mut lines = vec![
        format!("daemon     {}, pid {pid}, up {}", safe(version), span(*uptime_secs)),
        format!("relay      {}", show_relay(relay, now)),
        format!("namespace  {}", safe(namespace_id)),
        format!(
            "devices    {} authorized ({} online), {} waiting",
            devices.authorized, devices.online, devices.pending
        ),
        format!(
            "pending    {}, {}, {}",
            count(pending.approvals, "approval"),
            count(pending.clarifications, "question"),
            count(pending.elicitations, "prompt")
        ),
        format!("hosts      {}", if hosts.is_empty() { "none".to_owned() } else { hosts.join(", ") }),
    ];
    if let Some(error) = &status.last_error {
        let when = status.last_error_at.map(|at| format!(" ({})", ago(at, now))).unwrap_or_default();
        lines.push(format!("last error {}{when}", safe(error)));
    }
    lines.extend(notices.iter().map(|notice| format!("note       {}", safe(notice))));
    lines.join("\n")
}

fn show_relay(relay: &Relay, now: u64) -> String {
    let (url, time) = (safe(&relay.url), span(now.saturating_sub(relay.since) / 1000));
    match (&relay.last_error, relay.connected) {
        _ if relay.url.is_empty() => "none: set one with `skaldctl config set relay_url wss://…`".to_owned(),
        (_, true) => format!("connected to {url} for {time}"),
        (Some(error), false) => format!("not connected to {url} for {time}: {}", safe(error)),
        (None, false) => format!("not connected to {url} for {time}"),
    }
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(relay: &serde_json::Value) -> Status {
        serde_json::from_value(json!({
            "version": "1", "pid": 7, "uptime_secs": 180, "namespace_id": "ab", "relay": relay,
            "devices": {"authorized": 2, "pending": 1, "online": 0},
            "pending": {"approvals": 1, "clarifications": 2, "elicitations": 0},
            "hosts": [{"name": "skald", "version": "2\u{1b}[31m"}], "last_error": "no", "last_error_at": 60_000, "notices": ["look"],
        }))
        .unwrap()
    }

    #[test]
    fn status_is_a_few_lines_safe_for_a_terminal() {
        let relay = json!({"url": "ws://r", "connected": false, "since": 60_000, "last_error": "refused"});
        let expected = "\
daemon     1, pid 7, up 3 min
relay      not connected to ws://r for 2 min: refused
namespace  ab
devices    2 authorized (0 online), 1 waiting
pending    1 approval, 2 questions, 0 prompts
hosts      skald 2\\u001b[31m
last error no (2 min ago)
note       look";
        assert_eq!(show(&status(&relay), 180_000), expected);
        let idle = json!({"url": "", "connected": false, "since": 0, "last_error": null});
        assert!(show(&status(&idle), 0).contains("skaldctl config set relay_url"));
    }
}
