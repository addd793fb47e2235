//! `pair` and `logout`.

use std::io::Read as _;

use serde::Serialize;
use skald_common::pairing::PairingQr;
use zeroize::Zeroizing;

use super::args::{LogoutArgs, PairArgs};
use super::terminal::{self, Extent};
use super::{CliError, Context, Exit};
use crate::client::{Manner, Pairing, Phone, PhoneError, Until};
use crate::model::text;

/// Longest file with a pairing code, bytes.
const MAX_CODE: u64 = 16 * 1024;
const MAX_NAME: usize = 64;
/// The relay takes the greeting within this, or with the next connection.
const GREETING_SECS: u64 = 10;

#[derive(Serialize)]
struct JsonPairing<'a> {
    paired: bool,
    /// Printed with `false` once paired, and with `true` once authorized.
    authorized: bool,
    profile: &'a str,
    device_name: &'a str,
    fingerprint: &'a str,
    public_key: String,
    namespace_id: String,
    relay_url: &'a str,
}

pub(super) async fn pair(context: &Context, args: PairArgs) -> Result<Exit, CliError> {
    let output = context.output;
    let code = read_code(&args.code)?;
    let qr = PairingQr::parse(code.trim()).map_err(PhoneError::from)?;
    let name = device_name(args.name)?;
    super::notifying::register_anyway(&context.store, &context.global)?;
    let pairing = Pairing { name, again: args.again };
    let mut phone = Phone::pair(context.store.clone(), &qr, pairing, context.until()).await?;
    let fingerprint = phone.fingerprint();
    output.text(&format!(
        "Paired as \"{}\". Fingerprint of this phone:\n\n    {fingerprint}\n",
        phone.account().device_name
    ));
    tell(context, &phone, &fingerprint, false);
    if args.no_wait {
        output.text("The agent's owner has yet to compare it and to authorize this phone (`skaldctl authorize`).");
        return Ok(Exit::Done);
    }
    output.progress("Waiting until the agent's owner has compared it and authorized this phone …");
    let until = context.global.timeout.map_or(Until::NEVER, Until::secs);
    match phone.connect(until).await {
        Err(PhoneError::NotAuthorized) => {
            return Err(CliError::TimedOut(
                "paired, but not authorized in time; compare the fingerprint and authorize this phone on the agent"
                    .into(),
            ));
        }
        connected => connected?,
    }
    phone.greet(Until::secs(GREETING_SECS)).await?;
    phone.refresh(Until::secs(GREETING_SECS)).await?;
    output.text(&format!("Authorized. {} pending; see `skald-phone inbox`.", phone.inbox().badge()));
    tell(context, &phone, &fingerprint, true);
    phone.close().await;
    Ok(Exit::Done)
}

fn tell(context: &Context, phone: &Phone, fingerprint: &str, authorized: bool) {
    let account = phone.account();
    context.output.object(&JsonPairing {
        paired: true,
        authorized,
        profile: context.store.profile(),
        device_name: &account.device_name,
        fingerprint,
        public_key: phone.public_key().to_hex(),
        namespace_id: account.agent.namespace().to_hex(),
        relay_url: &account.relay_url,
    });
}

/// The code itself, from a file, or from standard input. It holds a bearer secret.
fn read_code(code: &str) -> Result<Zeroizing<String>, CliError> {
    if code == "-" {
        // `skaldctl pair --json` prints the code on one line and then goes on in the same pipe.
        let line = terminal::read_now(Extent::Line)?;
        if serde_json::from_str::<serde::de::IgnoredAny>(&line).is_ok() {
            return Ok(line);
        }
        let rest = terminal::read_now(Extent::All)?;
        return Ok(Zeroizing::new([line.as_str(), "\n", rest.as_str()].concat()));
    }
    let Some(path) = code.strip_prefix('@') else { return Ok(Zeroizing::new(code.to_owned())) };
    let mut text = Zeroizing::new(String::new());
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_CODE).read_to_string(&mut text))
        .map_err(|error| CliError::Usage(format!("cannot read the pairing code from {path}: {error}")))?;
    Ok(text)
}

fn device_name(given: Option<String>) -> Result<String, CliError> {
    let Some(name) = given else {
        let host = text::line(&rustix::system::uname().nodename().to_string_lossy());
        return Ok(text::short_line(&format!("Terminal on {host}"), MAX_NAME));
    };
    let name = name.trim();
    if name.is_empty() || name.chars().count() > MAX_NAME || text::line(name) != name {
        return Err(CliError::Usage(format!(
            "a device name has 1 to {MAX_NAME} characters, none of them invisible; choose another --name"
        )));
    }
    Ok(name.to_owned())
}

#[derive(Serialize)]
struct LoggedOut {
    logged_out: bool,
    told_agent: bool,
}

pub(super) async fn logout(context: &Context, args: &LogoutArgs) -> Result<Exit, CliError> {
    let until = context.until();
    if args.local {
        forget_damaged_or_not(context, until).await?;
        context.output.text("Forgotten here. The agent still lists this phone until it is revoked there.");
    } else {
        let phone = context.connect(until).await?;
        phone.logout(until).await?;
        context.output.text("Logged out: the agent was told, and this pairing is forgotten.");
    }
    context.output.object(&LoggedOut { logged_out: true, told_agent: !args.local });
    Ok(Exit::Done)
}

/// Forgets the pairing, whatever state it is in. A watch would go on with keys that are gone.
async fn forget_damaged_or_not(context: &Context, until: Until) -> Result<(), CliError> {
    match Phone::open(context.store.clone(), Manner::Command, until).await {
        Err(PhoneError::Busy) => return Err(PhoneError::Busy.into()),
        opened => {
            context.store.forget()?;
            drop(opened);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_visible() {
        assert_eq!(device_name(Some(" Anna's laptop ".into())).unwrap(), "Anna's laptop");
        for name in ["", "  ", "a\u{202e}b", "a\nb", &"x".repeat(65)] {
            assert!(device_name(Some(name.into())).is_err(), "{name:?}");
        }
        let default = device_name(None).unwrap();
        assert!(default.starts_with("Terminal on ") && default.chars().count() <= MAX_NAME, "{default}");
    }

    #[test]
    fn a_code_comes_from_the_command_line_or_a_file() {
        assert_eq!(*read_code("{}").unwrap(), "{}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("code");
        std::fs::write(&path, "{\"v\":1}\n").unwrap();
        assert_eq!(*read_code(&format!("@{}", path.display())).unwrap(), "{\"v\":1}\n");
        let error = read_code("@/nowhere/code").unwrap_err().to_string();
        assert!(error.contains("/nowhere/code"), "{error}");
    }
}
