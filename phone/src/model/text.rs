//! Making text from an agent safe to show.
//!
//! What a phone shows was written by a language model, and what it leaves unseen can be approved unseen. Control
//! characters, bidirectional overrides and invisible characters are therefore shown as escapes (`\u{202e}`) instead of being
//! obeyed; everything else stays as it is.

use std::fmt::Write as _;

/// Text as safe lines: broken at line feeds alone, with everything that hides or moves text escaped.
pub fn lines(text: &str) -> Vec<String> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.split('\n').map(|line| escape(line.strip_suffix('\r').unwrap_or(line), true)).collect()
}

/// Text as one safe line: line feeds and tabs are escaped too.
pub fn line(text: &str) -> String {
    escape(text, false)
}

/// One safe line of at most `max` characters.
pub fn short_line(text: &str, max: usize) -> String {
    let line = line(text);
    if line.chars().count() <= max {
        return line;
    }
    line.chars().take(max.saturating_sub(1)).chain(['…']).collect()
}

/// JSON text on one line with the same characters escaped, which leaves its meaning as it was: they stand only inside
/// strings, and the line feeds that JSON allows stand only outside.
pub fn json_line(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut before = None;
    for character in json.chars() {
        match character {
            '\n' | '\r' | '\t' => out.push(' '),
            _ if hides(character, before) => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            _ => out.push(character),
        }
        before = Some(character);
    }
    out
}

fn escape(text: &str, tabs: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut before = None;
    for character in text.chars() {
        match character {
            '\t' if tabs => out.push_str("    "),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if hides(character, before) => out.extend(character.escape_unicode()),
            _ => out.push(character),
        }
        before = Some(character);
    }
    out
}

/// Whether a character is obeyed rather than seen. The two joiners belong to emoji and to several scripts, so they pass
/// after a character that is not ASCII, and nowhere else.
fn hides(character: char, before: Option<char>) -> bool {
    match character {
        '\u{200c}' | '\u{200d}' => before.is_none_or(|before| before.is_ascii()),
        '\u{00ad}'
        | '\u{034f}'
        | '\u{061c}'
        | '\u{115f}'
        | '\u{1160}'
        | '\u{17b4}'
        | '\u{17b5}'
        | '\u{180e}'
        | '\u{200b}'
        | '\u{200e}'
        | '\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}' => true,
        _ => character.is_control(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_or_hides_text_is_shown_as_an_escape() {
        assert_eq!(line("rm \u{202e}gpj.exe\u{2069}"), "rm \\u{202e}gpj.exe\\u{2069}");
        assert_eq!(line("a\u{1b}[2Jb\u{7f}\u{9b}c"), "a\\u{1b}[2Jb\\u{7f}\\u{9b}c");
        assert_eq!(line("a\nb\tc\r"), "a\\nb\\tc\\r");
        assert_eq!(line("curl\u{200b} x\u{e0041}"), "curl\\u{200b} x\\u{e0041}");
        assert_eq!(lines("one\r\ntwo\tx\rthree\n"), ["one", "two    x\\rthree"]);
        assert_eq!(lines("a\u{2028}b"), ["a\\u{2028}b"]);
    }

    #[test]
    fn ordinary_text_of_any_script_stays() {
        for text in ["Überweisung 240 €?", "日本語 한국어 العربية עברית", "👩‍💻 🇮🇹 é", "नमस्ते \\u{41}"]
        {
            assert_eq!(line(text), text);
        }
        assert_eq!(line("rm\u{200d} -rf"), "rm\\u{200d} -rf");
    }

    #[test]
    fn json_keeps_its_meaning_on_one_harmless_line() {
        let json = "{\"a\":\n\t\"x\u{202e}\u{e0041}\u{7f}é\"}";
        let safe = json_line(json);
        assert!(safe.is_ascii() || safe.contains('é'));
        assert!(!safe.contains(['\n', '\u{202e}', '\u{e0041}', '\u{7f}']));
        let (was, is): (serde_json::Value, serde_json::Value) =
            (serde_json::from_str(json).unwrap(), serde_json::from_str(&safe).unwrap());
        assert_eq!(was, is);
    }

    #[test]
    fn long_lines_end_in_a_mark() {
        assert_eq!(short_line("abcdef", 6), "abcdef");
        assert_eq!(short_line("abcdefg", 6), "abcde…");
    }
}
