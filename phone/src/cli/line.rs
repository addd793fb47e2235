//! What becomes of the connection, as `watch` and `proxy` tell of it while they run.

use serde::Serialize;

use super::output::Output;
use super::unix_ms;
use crate::client::PhoneEvent;
use crate::model::text;

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum JsonEvent<'a> {
    Connected { url: &'a str },
    Disconnected { why: String, retry_in_ms: u128 },
    SteppedAside,
    AgentOnline { online: bool },
}

/// Tells of an event of the connection; of others nothing.
pub(super) fn connection(output: Output, event: &PhoneEvent) {
    let (object, words) = match event {
        PhoneEvent::Connected { url } => (JsonEvent::Connected { url }, "connected".to_owned()),
        PhoneEvent::Disconnected { why, retry_in } => {
            let why = text::line(&why.to_string());
            let words = format!("{why}; trying again in {} s", retry_in.as_secs().max(1));
            (JsonEvent::Disconnected { why, retry_in_ms: retry_in.as_millis() }, words)
        }
        PhoneEvent::SteppedAside => (JsonEvent::SteppedAside, "another command uses the connection".to_owned()),
        PhoneEvent::AgentOnline(online) => {
            let words = if *online { "the agent is online" } else { "the agent is offline" };
            (JsonEvent::AgentOnline { online: *online }, words.to_owned())
        }
        _ => return,
    };
    output.object(&object);
    event_line(output, "-", &words);
}

/// A line with the time of day before it.
pub(super) fn event_line(output: Output, mark: &str, text: &str) {
    output.text(&format!("{} {mark} {text}", time_of_day(unix_ms())));
}

/// The time of day in UTC.
fn time_of_day(unix_ms: u64) -> String {
    let secs = unix_ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}Z", secs / 3600, secs / 60 % 60, secs % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_day_is_utc() {
        assert_eq!(time_of_day(1_750_000_000_000), "15:06:40Z");
    }
}
