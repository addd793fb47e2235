//! Text for people: one line for the card, escapes for what would mislead, names of devices, times.

use std::fmt::Write as _;

use unicode_segmentation::UnicodeSegmentation;

/// Longest `summary`, characters.
pub(crate) const MAX_SUMMARY: usize = 120;

/// Control and bidirectional-override characters as visible escapes, so that no text can pretend to be another.
pub(crate) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => safe.push_str("\\n"),
            '\t' => safe.push_str("\\t"),
            c if is_misleading(c) => {
                // Writing to a string cannot fail.
                let _ = write!(safe, "\\u{:04x}", u32::from(c));
            }
            c => safe.push(c),
        }
    }
    safe
}

fn is_misleading(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// At most `max` characters, the ellipsis included, cut between graphemes.
pub(crate) fn cut(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    let mut left = max.saturating_sub(1);
    let mut short = String::new();
    for grapheme in text.graphemes(true) {
        let Some(rest) = left.checked_sub(grapheme.chars().count()) else { break };
        left = rest;
        short.push_str(grapheme);
    }
    short.push('…');
    short
}

/// One line that is safe to show: escaped, then cut.
pub(crate) fn line(text: &str, max: usize) -> String {
    cut(&escape(text.trim()), max)
}

/// A time as hosts give it: Unix milliseconds, or RFC 3339 text. In Unix milliseconds, not before 1970.
pub(crate) fn unix_ms(json: &str) -> Option<u64> {
    if let Ok(ms) = json.parse::<u64>() {
        return Some(ms);
    }
    let text: String = serde_json::from_str(json).ok()?;
    let time = time::OffsetDateTime::parse(&text, &time::format_description::well_known::Rfc3339).ok()?;
    u64::try_from(time.unix_timestamp_nanos() / 1_000_000).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_and_controls_are_shown_as_escapes() {
        assert_eq!(escape("a\u{202e}b\u{0}c\nd\u{2066}e\u{7f}"), "a\\u202eb\\u0000c\\nd\\u2066e\\u007f");
        assert_eq!(escape("Grüße 👩‍👩‍👧 ok"), "Grüße 👩‍👩‍👧 ok", "joiners inside emoji stay");
    }

    #[test]
    fn a_cut_keeps_graphemes_whole_and_counts_the_ellipsis() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcd", 3), "ab…");
        let families = "👩‍👩‍👧".repeat(30);
        let short = cut(&families, 120);
        assert_eq!(short.chars().count(), 116, "23 families of 5 characters, and the ellipsis");
        assert!(short.starts_with(&"👩‍👩‍👧".repeat(23)) && short.ends_with('…'));
        assert_eq!(cut(&"e\u{301}".repeat(3), 4), "e\u{301}…");
    }

    #[test]
    fn times_are_read_in_both_forms() {
        assert_eq!(unix_ms("1750000000000"), Some(1_750_000_000_000));
        assert_eq!(unix_ms(r#""2025-06-15T15:06:40Z""#), Some(1_750_000_000_000));
        assert_eq!(unix_ms(r#""2025-06-15T17:06:40.5+02:00""#), Some(1_750_000_000_500));
        for bad in ["-1", "1.5", "null", r#""yesterday""#, r#""1900-01-01T00:00:00Z""#, "18446744073709551616"] {
            assert_eq!(unix_ms(bad), None, "{bad}");
        }
    }
}
