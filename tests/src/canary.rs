//! Finding out where a text went: a word that stands nowhere else in the world, and a search for it in every form in which
//! a program might have written it down.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use memchr::memmem;

use crate::random;

/// A word that stands nowhere else in the world.
pub fn canary(what: &str) -> String {
    format!("canary-{what}-{:016x}", u64::from_le_bytes(random()))
}

/// The forms in which `content` holds `text`: none, if it does not.
pub fn traces(content: &[u8], text: &str) -> Vec<&'static str> {
    let found = |(form, needle): (&'static str, Vec<u8>)| memmem::find(content, &needle).map(|_| form);
    forms(text).into_iter().filter_map(found).collect()
}

/// What to look for. Of a canary its random end alone: it is found where the rest was cut off.
fn forms(text: &str) -> Vec<(&'static str, Vec<u8>)> {
    let word = text.rsplit('-').next().filter(|end| end.len() == 16).unwrap_or(text);
    let bytes = word.as_bytes();
    let each = |write: fn(u8) -> String| bytes.iter().map(|&byte| write(byte)).collect::<Vec<_>>();
    let mut forms = vec![
        ("as it is", bytes.to_vec()),
        ("in capitals", word.to_uppercase().into_bytes()),
        ("as hex", each(|byte| format!("{byte:02x}")).concat().into_bytes()),
        ("as capital hex", each(|byte| format!("{byte:02X}")).concat().into_bytes()),
        ("as numbers", each(|byte| byte.to_string()).join(", ").into_bytes()),
        ("as dense numbers", each(|byte| byte.to_string()).join(",").into_bytes()),
        ("escaped for JSON", each(|byte| format!("\\u{byte:04x}")).concat().into_bytes()),
        ("escaped for Rust", each(|byte| format!("\\x{byte:02x}")).concat().into_bytes()),
        ("escaped for addresses", each(|byte| format!("%{byte:02X}")).concat().into_bytes()),
        // Without its last zero: then it is the same in both byte orders.
        ("as UTF-16", bytes.iter().flat_map(|&byte| [byte, 0]).take(bytes.len() * 2 - 1).collect()),
        ("reversed", bytes.iter().rev().copied().collect()),
    ];
    // The characters of base64 that depend on the word alone, wherever it begins among three bytes.
    for skipped in 0..3 {
        let padded = [&[0; 2][..skipped], bytes].concat();
        let whole = padded.len() / 3 * 4;
        let (first, last) = (if skipped == 0 { 0 } else { 4 }, whole);
        forms.push(("as base64", STANDARD.encode(&padded).as_bytes()[first..last].to_vec()));
        forms.push(("as base64 for addresses", URL_SAFE.encode(&padded).as_bytes()[first..last].to_vec()));
    }
    if let Some(raw) = unhex(word).filter(|raw| raw.len() >= 16) {
        forms.push(("as bytes", raw));
    }
    forms
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canary_is_found_in_every_form_and_only_where_it_is() {
        let text = canary("sought");
        let around = |text: &str| format!("before {text} after");
        let utf16 = |swap: bool| {
            let whole = around(&text);
            let units = whole.encode_utf16().map(|unit| if swap { unit.swap_bytes() } else { unit });
            units.flat_map(u16::to_ne_bytes).collect::<Vec<u8>>()
        };
        let token = "00112233445566778899aabbccddeeff";
        let escaped = |write: fn(char) -> String| text.chars().map(write).collect::<String>().into_bytes();
        let mut written = vec![
            around(&text).into_bytes(),
            text.to_uppercase().into_bytes(),
            text.as_bytes()[12..].to_vec(),
            format!("{:?}", text.as_bytes()).into_bytes(),
            serde_json::to_vec(text.as_bytes()).expect("JSON"),
            escaped(|c| format!("\\u{:04x}", u32::from(c))),
            escaped(|c| format!("\\x{:02x}", u32::from(c))),
            escaped(|c| format!("%{:02X}", u32::from(c))),
            escaped(|c| format!("{:02x}", u32::from(c))),
            escaped(|c| format!("{:02X}", u32::from(c))),
            text.chars().rev().collect::<String>().into_bytes(),
            utf16(false),
            utf16(true),
        ];
        for before in ["", "x", "xx"] {
            written.push(STANDARD.encode(format!("{before}{text} after")).into_bytes());
            written.push(URL_SAFE.encode(format!("{before}{text}")).into_bytes());
        }
        for content in &written {
            assert_ne!(traces(content, &text), [""; 0], "{}", String::from_utf8_lossy(content));
            assert_eq!(traces(content, &canary("sought")), [""; 0], "another one");
        }
        let raw = [&[1, 2], &unhex(token).expect("hex")[..]].concat();
        assert_eq!(traces(&raw, token), ["as bytes"]);
    }
}
