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
    /// Daemons of the first version have none.
    #[serde(default)]
    proxy: Proxy,
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

#[derive(Default, Deserialize)]
struct Proxy {
    web_port: Option<u16>,
    tunnels: Vec<Tunnels>,
}

#[derive(Deserialize)]
struct Tunnels {
    name: String,
    open: usize,
    since: u64,
    to_device: u64,
    from_device: u64,
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
    lines.extend(show_proxy(&status.proxy, now));
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

/// The reverse proxy, and who uses it.
fn show_proxy(proxy: &Proxy, now: u64) -> Vec<String> {
    let Some(port) = proxy.web_port else { return vec!["web page   off".to_owned()] };
    let open = proxy.tunnels.iter().map(|tunnels| tunnels.open).sum();
    let mut lines = vec![format!("web page   port {port}, {}", count(open, "tunnel"))];
    lines.extend(proxy.tunnels.iter().map(|tunnels| {
        format!(
            "           {}: {} for {}, {} to it, {} from it",
            safe(&tunnels.name),
            tunnels.open,
            span(now.saturating_sub(tunnels.since) / 1000),
            size(tunnels.to_device),
            size(tunnels.from_device)
        )
    }));
    lines
}

/// Bytes, in the unit that leaves one to three digits before the point.
fn size(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..1_000 => return format!("{bytes} bytes"),
        1_000..1_000_000 => (1_000, "kB"),
        1_000_000..1_000_000_000 => (1_000_000, "MB"),
        _ => (1_000_000_000, "GB"),
    };
    format!("{}.{} {name}", bytes / unit, bytes % unit / (unit / 10))
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
            "hosts": [{"name": "skald", "version": "2\u{1b}[31m"}], "proxy": {"web_port": 8080, "tunnels": [
                {"device": "ab", "name": "Anna's\u{7}", "open": 2, "since": 60_000, "to_device": 1_250_000, "from_device": 999},
                {"device": "cd", "name": "Tablet", "open": 1, "since": 179_000, "to_device": 0, "from_device": 3_210_000_000_u64},
            ]},
            "last_error": "no", "last_error_at": 60_000, "notices": ["look"],
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
web page   port 8080, 3 tunnels
           Anna's\\u0007: 2 for 2 min, 1.2 MB to it, 999 bytes from it
           Tablet: 1 for 1 s, 0 bytes to it, 3.2 GB from it
last error no (2 min ago)
note       look";
        assert_eq!(show(&status(&relay), 180_000), expected);
        let idle = json!({"url": "", "connected": false, "since": 0, "last_error": null});
        let mut idle = status(&idle);
        assert!(show(&idle, 0).contains("skaldctl config set relay_url"));
        idle.proxy = Proxy::default();
        assert!(show(&idle, 0).contains("\nweb page   off\n"));
    }
}
