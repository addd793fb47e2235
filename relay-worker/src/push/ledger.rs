//! The counts of the whole relay, in one table, and how `/healthz` shows them. No identifier is in it, and none can be.

use super::credentials::{Credentials, Setup};
use super::json;
use super::tally::Entry;
use super::verdict::{Kind, Service};
use crate::store::{Param, Sql, SqlError, Value as Column};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS outcome (
    service TEXT NOT NULL,
    kind TEXT NOT NULL,
    count INTEGER NOT NULL,
    at INTEGER NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (service, kind)
) STRICT, WITHOUT ROWID";

/// The largest number that is kept.
const MAX: u64 = 1 << 52;

/// Adds a report.
pub fn add(sql: &impl Sql, report: &[Entry]) -> Result<(), SqlError> {
    sql.transaction(|| {
        sql.exec(TABLE, &[])?;
        for entry in report {
            // The latest word of several isolates is the one with the latest time.
            let statement = "INSERT INTO outcome (service, kind, count, at, reason) VALUES (?, ?, ?, ?, ?)
                ON CONFLICT (service, kind) DO UPDATE SET
                    count = min(count + excluded.count, 4503599627370496),
                    reason = CASE WHEN excluded.at >= at THEN excluded.reason ELSE reason END,
                    at = max(at, excluded.at)";
            let number = |n: u64| Param::Int(i64::try_from(n.min(MAX)).unwrap_or_default());
            let (service, kind) = (Param::Text(entry.service.name()), Param::Text(entry.kind.name()));
            let params = [service, kind, number(entry.count), number(entry.at_ms), Param::Text(&entry.reason)];
            sql.exec(statement, &params)?;
        }
        Ok(())
    })
}

/// All counts.
pub fn all(sql: &impl Sql) -> Result<Vec<Entry>, SqlError> {
    let tables = sql.exec("SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'outcome'", &[])?;
    if tables.is_empty() {
        return Ok(Vec::new());
    }
    let rows = sql.exec("SELECT service, kind, count, at, reason FROM outcome", &[])?;
    Ok(rows.into_iter().filter_map(|row| entry(&row)).collect())
}

fn entry(row: &[Column]) -> Option<Entry> {
    let [Column::Text(service), Column::Text(kind), Column::Int(count), Column::Int(at), Column::Text(reason)] = row
    else {
        return None;
    };
    Some(Entry {
        service: Service::named(service)?,
        kind: Kind::named(kind)?,
        count: u64::try_from(*count).ok()?,
        at_ms: u64::try_from(*at).ok()?,
        reason: reason.clone(),
    })
}

/// The answer of `/healthz`. `counts`: `None` if they could not be had.
pub fn health(version: &str, credentials: &Credentials, counts: Option<&[Entry]>) -> String {
    let mut text = json::object(|health| {
        health.text("status", "ok");
        health.text("version", version);
        health.object("push", |push| {
            for service in Service::ALL {
                let setup = credentials.setup(service);
                let mine = counts.unwrap_or_default().iter().filter(|entry| entry.service == service);
                push.object(service.name(), |about| {
                    about.text("state", setup.name());
                    for entry in mine.filter(|_| setup == Setup::On) {
                        about.object(entry.kind.name(), |last| {
                            last.number("count", entry.count);
                            last.text("last", &date(entry.at_ms));
                            last.text("reason", &entry.reason);
                        });
                    }
                });
            }
            if counts.is_none() {
                push.text("counts", "unavailable");
            }
        });
    });
    text.push('\n');
    text
}

/// Whether there is anything to count.
pub fn counts(credentials: &Credentials) -> bool {
    Service::ALL.into_iter().any(|service| credentials.setup(service) == Setup::On)
}

/// RFC 3339, to the second, UTC.
fn date(at_ms: u64) -> String {
    let secs = at_ms.min(MAX_DATE_MS) / 1000;
    let (days, time) = (secs / 86_400, secs % 86_400);
    // Days from the civil calendar, with years that begin in March (Hinnant, days_from_civil).
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The end of the year 9999.
const MAX_DATE_MS: u64 = 253_402_300_799_000;

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::push::tests::{NOW_MS, credentials, credentials_with};
    use crate::store::native::NativeSql;

    fn sent(count: u64, at_ms: u64, reason: &str) -> Entry {
        Entry { service: Service::Fcm, kind: Kind::Sent, count, at_ms, reason: reason.to_owned() }
    }

    #[test]
    fn reports_add_up_and_the_latest_has_the_last_word() {
        let sql = NativeSql::new().unwrap();
        assert_eq!(all(&sql), Ok(Vec::new()), "nothing was ever written");
        add(&sql, &[sent(2, 5000, "accepted")]).unwrap();
        add(&sql, &[sent(1, 4000, "earlier")]).unwrap();
        assert_eq!(all(&sql), Ok(vec![sent(3, 5000, "accepted")]));
        add(&sql, &[sent(1, 6000, "later"), Entry { service: Service::Web, ..sent(7, 1, "x") }]).unwrap();
        assert_eq!(all(&sql).unwrap().len(), 2);
        assert!(all(&sql).unwrap().contains(&sent(4, 6000, "later")));
        add(&sql, &[sent(u64::MAX, u64::MAX, "huge")]).unwrap();
        add(&sql, &[sent(u64::MAX, u64::MAX, "huge")]).unwrap();
        assert!(all(&sql).unwrap().contains(&sent(MAX, MAX, "huge")), "no number overflows");
    }

    #[test]
    fn health_says_what_is_configured_and_what_came_last() {
        let off = Credentials::from_lookup(|_| None);
        let states = r#"{"apns":{"state":"off"},"fcm":{"state":"off"},"web":{"state":"off"}}"#;
        let expected = format!("{{\"status\":\"ok\",\"version\":\"1.2.3\",\"push\":{states}}}\n");
        assert_eq!(health("1.2.3", &off, Some(&[])), expected);
        assert!(!counts(&off) && counts(&credentials()));

        let counted = [sent(3, NOW_MS, "accepted")];
        let json = |credentials: &Credentials, counts: Option<&[Entry]>| -> Value {
            serde_json::from_str(&health("1.2.3", credentials, counts)).unwrap()
        };
        let fcm = json(&credentials(), Some(&counted))["push"]["fcm"].take();
        let last = json!({"count": 3, "last": "2025-12-01T03:04:05Z", "reason": "accepted"});
        assert_eq!(fcm, json!({"state": "on", "sent": last}));
        let wrong = json(&credentials_with(&[("APNS_KEY", "x")]), None);
        assert_eq!(wrong["push"]["apns"], json!({"state": "misconfigured"}));
        assert_eq!((&wrong["status"], &wrong["push"]["counts"]), (&json!("ok"), &json!("unavailable")));
    }

    #[test]
    fn dates_are_right() {
        for (secs, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (u64::MAX / 1000, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(date(secs * 1000), expected);
        }
    }
}
