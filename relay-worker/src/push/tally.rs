//! Outcomes counted in one isolate, on their way to the one object that keeps the counts of the whole relay. The first of a
//! kind is told at once, later ones at most once a minute, by the next outcome: no timer waits for anything.

use std::collections::BTreeMap;

use super::json::{self, Json};
use super::verdict::{Kind, Reason, Service};

/// From one report of a kind to the next, milliseconds.
const INTERVAL_MS: u64 = 60_000;
/// Longest report that is read.
const MAX_ENTRIES: usize = 64;

/// The outcomes of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Whose.
    pub service: Service,
    /// Which.
    pub kind: Kind,
    /// How many.
    pub count: u64,
    /// When the last was, Unix milliseconds.
    pub at_ms: u64,
    /// Why the last was.
    pub reason: String,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Tally {
    kinds: BTreeMap<(Service, Kind), Waiting>,
}

#[derive(Debug)]
struct Waiting {
    count: u64,
    at_ms: u64,
    reason: Reason,
    told_ms: Option<u64>,
}

impl Tally {
    /// Counts an outcome. What is to be told now, and is not counted here any more; [`Self::take_back`] if it fails.
    pub fn note(&mut self, now_ms: u64, service: Service, kind: Kind, reason: Reason) -> Vec<Entry> {
        let fresh = Waiting { count: 0, at_ms: now_ms, reason, told_ms: None };
        let waiting = self.kinds.entry((service, kind)).or_insert(fresh);
        waiting.count = waiting.count.saturating_add(1);
        (waiting.at_ms, waiting.reason) = (now_ms, reason);
        self.kinds.iter_mut().filter_map(|((service, kind), waiting)| waiting.tell(now_ms, *service, *kind)).collect()
    }

    /// A report did not arrive: its counts go with the next one.
    pub fn take_back(&mut self, report: &[Entry]) {
        for entry in report {
            if let Some(waiting) = self.kinds.get_mut(&(entry.service, entry.kind)) {
                waiting.count = waiting.count.saturating_add(entry.count);
            }
        }
    }
}

impl Waiting {
    fn tell(&mut self, now_ms: u64, service: Service, kind: Kind) -> Option<Entry> {
        // A clock that went back delays nothing.
        let told = |at: u64| (at..at.saturating_add(INTERVAL_MS)).contains(&now_ms);
        if self.count == 0 || self.told_ms.is_some_and(told) {
            return None;
        }
        self.told_ms = Some(now_ms);
        let count = std::mem::take(&mut self.count);
        Some(Entry { service, kind, count, at_ms: self.at_ms, reason: self.reason.code().to_owned() })
    }
}

/// Entries as JSON, for the way between objects.
pub fn write(entries: &[Entry]) -> String {
    let entry = |entry: &Entry| {
        json::object(|members| {
            members.text("service", entry.service.name());
            members.text("kind", entry.kind.name());
            members.number("count", entry.count);
            members.number("at", entry.at_ms);
            members.text("reason", &entry.reason);
        })
    };
    format!("[{}]", entries.iter().map(entry).collect::<Vec<_>>().join(","))
}

/// Entries from JSON; what is none is left out.
pub fn read(json: &str) -> Vec<Entry> {
    let json = Json::parse(json.as_bytes());
    let entry = |json: &Json| {
        let number = |name| json.get(name).and_then(Json::as_number);
        Some(Entry {
            service: Service::named(json.text("service")?)?,
            kind: Kind::named(json.text("kind")?)?,
            count: number("count")?,
            at_ms: number("at")?,
            reason: json.text("reason")?.to_owned(),
        })
    };
    json.iter().flat_map(Json::list).take(MAX_ENTRIES).filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(report: &[Entry]) -> Vec<(Service, Kind, u64)> {
        report.iter().map(|entry| (entry.service, entry.kind, entry.count)).collect()
    }

    #[test]
    fn the_first_of_a_kind_is_told_at_once_and_later_ones_with_an_outcome_a_minute_later() {
        let mut tally = Tally::default();
        let mut note = |now, service, kind| counts(&tally.note(now, service, kind, Reason::Accepted));
        assert_eq!(note(1000, Service::Fcm, Kind::Sent), [(Service::Fcm, Kind::Sent, 1)]);
        assert_eq!(note(1000, Service::Fcm, Kind::Sent), []);
        assert_eq!(note(60_999, Service::Fcm, Kind::Sent), []);
        assert_eq!(note(60_999, Service::Fcm, Kind::Refused), [(Service::Fcm, Kind::Refused, 1)], "another kind");
        // Any outcome carries what waits.
        let both = [(Service::Apns, Kind::Sent, 1), (Service::Fcm, Kind::Sent, 2)];
        assert_eq!(note(61_000, Service::Apns, Kind::Sent), both);
        assert_eq!(note(61_001, Service::Fcm, Kind::Sent), []);
        assert_eq!(note(5, Service::Fcm, Kind::Sent), [(Service::Fcm, Kind::Sent, 2)], "a clock that went back");
    }

    #[test]
    fn counts_of_a_report_that_did_not_arrive_go_with_the_next() {
        let mut tally = Tally::default();
        let report = tally.note(0, Service::Web, Kind::Sent, Reason::Accepted);
        tally.take_back(&report);
        assert_eq!(
            tally.note(1, Service::Web, Kind::Sent, Reason::Accepted),
            [],
            "a log that fails is not asked more often"
        );
        let next = tally.note(60_000, Service::Web, Kind::Sent, Reason::Accepted);
        assert_eq!(counts(&next), [(Service::Web, Kind::Sent, 3)]);
    }

    #[test]
    fn what_is_written_reads_the_same_and_nonsense_is_left_out() {
        let mut tally = Tally::default();
        let mut entries = Vec::new();
        for service in Service::ALL {
            for kind in Kind::ALL {
                entries.extend(tally.note(7, service, kind, Reason::Network));
            }
        }
        assert_eq!(entries.len(), 15);
        assert_eq!(read(&write(&entries)), entries);
        for nonsense in [
            "",
            "{}",
            "[{}]",
            r#"[{"service":"apns","kind":"sent","count":-1,"at":0,"reason":""}]"#,
            r#"[{"service":"x","kind":"sent","count":1,"at":0,"reason":""}]"#,
        ] {
            assert_eq!(read(nonsense), []);
        }
    }
}
