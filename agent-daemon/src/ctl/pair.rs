//! `skaldctl pair`: shows a code, waits for a device, and authorizes it.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::{Instant, sleep_until};
use zeroize::Zeroizing;

use super::args::Pair;
use super::client::Client;
use super::events::{self, Event};
use super::output::{now, safe, short, span};
use super::{Exit, Failure, Session, devices, output, prompt};
use crate::qr::{self, Paint, Picture};

/// After the window's end, for an event that is on its way.
const GRACE: Duration = Duration::from_secs(3);

#[derive(Serialize)]
struct Start {
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<u32>,
}

#[derive(Deserialize)]
struct Started {
    code: String,
    expires_at: u64,
}

#[derive(Deserialize)]
struct Shown {
    data: Option<Zeroizing<String>>,
}

#[derive(Deserialize)]
struct Applied {
    applied: bool,
}

pub(super) async fn run(session: &Session, options: Pair) -> Result<Exit, Failure> {
    let mut client = session.control().await?;
    // First of all, so that no event is missed.
    events::subscribe(&mut client).await?;
    let window: Started = client.call("pairing.start", &Start { ttl: options.ttl }).await?;
    let exit = tokio::select! {
        exit = wait(session, &mut client, &options, &window) => exit,
        _ = tokio::signal::ctrl_c() => Ok(Exit::Interrupted),
    };
    if matches!(exit, Ok(Exit::Interrupted)) {
        // On a connection of its own: the first may be in the middle of a call.
        session.control().await?.call_text("pairing.stop", &json!({})).await?;
    }
    exit
}

async fn wait(session: &Session, client: &mut Client, options: &Pair, window: &Started) -> Result<Exit, Failure> {
    let shown: Shown = client.call("pairing.qr", &json!({"code": window.code, "format": "json"})).await?;
    let left = Duration::from_millis(window.expires_at.saturating_sub(now()));
    let Some(code) = shown.data else { return Err(Failure::Unusable("the code is void already".into())) };
    show_code(session, options, &code, left)?;
    let end = Instant::now() + left + GRACE;
    let mut paired: Option<String> = None;
    loop {
        let event = tokio::select! {
            event = events::next(client) => event?,
            () = sleep_until(end), if paired.is_none() => return Ok(too_late()),
        };
        if session.output.json {
            output::line(event.text())?;
        }
        match (event.kind(), &paired) {
            ("device.paired", None) if session.output.json && !event.flag("authorized") => {
                paired = Some(event.field("pubkey").to_owned());
                if options.yes {
                    let params = json!({"pubkey": event.field("pubkey")});
                    client.call_text("devices.authorize", &params).await?;
                }
            }
            ("device.paired", None) => return introduce(session, client, options, &event).await,
            ("device.authorized", Some(key)) if key == event.field("pubkey") => return Ok(Exit::Done),
            ("device.revoked", Some(key)) if key == event.field("pubkey") => return Ok(Exit::No),
            ("pairing.changed", None) if event.field("code") == window.code => match event.field("state") {
                "expired" => return Ok(too_late()),
                "superseded" => return Err(Failure::Unusable("a newer code replaced this one".into())),
                _ => {}
            },
            ("lagged", _) => return Err(Failure::Unusable("the daemon has dropped events: start again".into())),
            _ => {}
        }
    }
}

fn show_code(session: &Session, options: &Pair, code: &str, left: Duration) -> Result<(), Failure> {
    let unusable = |error: qr::TooLong| Failure::Unusable(error.to_string());
    if let Some(path) = &options.png {
        write_file(path, &qr::png(Picture::Code(code)).map_err(unusable)?)?;
    }
    if let Some(path) = &options.svg {
        write_file(path, qr::svg(Picture::Code(code)).map_err(unusable)?.as_bytes())?;
    }
    if session.output.json {
        return output::secret(code.as_bytes());
    }
    // Asking the daemon has taken a moment: 299 s are 5 minutes.
    let left = span(left.as_secs().next_multiple_of(10));
    if options.png.is_some() || options.svg.is_some() {
        return output::line(&format!("The code is written; it is valid for {left} and for one device."));
    }
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let paint = if plain { Paint::Plain } else { Paint::Ansi };
    let picture = qr::terminal(Picture::Code(code), paint).map_err(unusable)?;
    output::secret(picture.trim_end_matches('\n').as_bytes())?;
    output::line(&format!("Scan this with the phone within {left}. Show it to nobody else. Ctrl-C makes it void."))
}

/// The token is in the picture: for nobody else's eyes.
fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let failed = |error| Failure::File { path: path.to_owned(), error };
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).map_err(failed)?;
    file.write_all(bytes).map_err(failed)
}

/// Shows the device, asks, and authorizes or rejects it.
async fn introduce(session: &Session, client: &mut Client, options: &Pair, event: &Event) -> Result<Exit, Failure> {
    let key = event.field("pubkey");
    if event.flag("authorized") {
        if !session.output.json {
            output::line(&format!("Device {} is paired and authorized.", safe(&short(key))))?;
        }
        return Ok(Exit::Done);
    }
    let Some(device) = devices::find(client, key).await? else {
        return Err(Failure::Unusable("the device has left already".into()));
    };
    output::line(&device.introduction())?;
    let yes = if options.yes {
        Some(true)
    } else {
        prompt::confirm("Does the phone show the same fingerprint? Authorize it?").await?
    };
    let params = json!({"pubkey": key});
    match yes {
        Some(true) => {
            let Applied { applied } = client.call("devices.authorize", &params).await?;
            output::line(&devices::sentence("The device is authorized", applied))?;
            Ok(Exit::Done)
        }
        Some(false) => {
            client.call_text("devices.revoke", &params).await?;
            output::line("The device is rejected.")?;
            Ok(Exit::No)
        }
        None => {
            output::line(&format!("The device waits: `skaldctl authorize {}`.", safe(&short(key))))?;
            Ok(Exit::No)
        }
    }
}

fn too_late() -> Exit {
    output::note("skaldctl: no device came in time; start again for a new code");
    Exit::TimedOut
}
