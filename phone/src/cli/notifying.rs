//! `notify-open`: what a push says. And `--push-url`, `--push-token`: how the relay is to wake this phone.

use std::io::Read as _;

use skald_common::crypto::Identity;
use zeroize::Zeroizing;

use super::args::Global;
use super::output::Output;
use super::terminal::InputError;
use super::{CliError, Exit, unix_ms};
use crate::client::new_web_push_keys;
use crate::model::push::{MAX_BODY, Push, PushError};
use crate::registration::Registration;
use crate::store::{Store, StoreError};
use crate::webpush::WebPushKeys;

/// Shows what the push on standard input says. Whatever else this phone does at this moment goes on: nothing is written, and
/// no lock is taken.
pub(super) fn open(store: &Store, output: Output) -> Result<Exit, CliError> {
    let account = store.peek()?.ok_or_else(|| StoreError::NotPaired { profile: store.profile().to_owned() })?;
    let body = read()?;
    let json = if WebPushKeys::looks_encrypted(&body) { decrypt(store, &body)? } else { body };
    let push = Push::parse(&json)?;
    let shown = push.show(&account, &Identity::new(&store.seed()?), unix_ms())?;
    output.object(&shown);
    let mut lines = vec![shown.title];
    lines.extend(shown.lines.iter().map(|line| format!("  {line}")));
    if shown.seen {
        lines.push("(This phone has had it already.)".to_owned());
    }
    output.text(&lines.join("\n"));
    Ok(Exit::Done)
}

fn read() -> Result<Zeroizing<Vec<u8>>, CliError> {
    let mut body = Zeroizing::new(Vec::with_capacity(MAX_BODY + 1));
    let most = u64::try_from(MAX_BODY + 1).unwrap_or(u64::MAX);
    std::io::stdin()
        .lock()
        .take(most)
        .read_to_end(&mut body)
        .map_err(|source| InputError::Io { from: "standard input", source })?;
    if body.len() > MAX_BODY {
        return Err(PushError::Size.into());
    }
    Ok(body)
}

fn decrypt(store: &Store, body: &[u8]) -> Result<Zeroizing<Vec<u8>>, CliError> {
    let registration = store.registration()?;
    let keys = registration.as_ref().and_then(Registration::keys).ok_or_else(|| {
        CliError::Usage(
            "this is an encrypted Web Push, and this phone has no subscription of its own; register one with --push-url"
                .into(),
        )
    })?;
    Ok(keys.open(body)?)
}

/// Keeps what the options say, for a phone that is paired. An empty option says nothing. The relay hears of it with the next
/// connection.
pub(super) fn register(store: &Store, global: &Global) -> Result<(), CliError> {
    if is_given(global) && store.peek()?.is_some() { register_anyway(store, global) } else { Ok(()) }
}

/// The same, for a phone that is about to be paired.
pub(super) fn register_anyway(store: &Store, global: &Global) -> Result<(), CliError> {
    match (given(global.push_url.as_ref()), given(global.push_token.as_ref())) {
        // The same address keeps its keys: what is on its way was encrypted for them.
        (Some(url), _) => store.register(|saved| match saved {
            Some(saved) if saved.is_at(url) => Ok(None),
            _ => Ok(Some(Registration::web_push(url, new_web_push_keys()?)?)),
        }),
        (None, Some(token)) => store.register(|_| Ok(Some(Registration::parse(token)?))),
        (None, None) => Ok(()),
    }
}

fn is_given(global: &Global) -> bool {
    given(global.push_url.as_ref()).or(given(global.push_token.as_ref())).is_some()
}

fn given(option: Option<&String>) -> Option<&str> {
    option.map(String::as_str).filter(|text| !text.is_empty())
}
