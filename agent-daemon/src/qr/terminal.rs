//! A picture as characters: two modules in each, one above the other.

use zeroize::Zeroizing;

use super::{Modules, Picture, TooLong};

/// Columns that a code should fit.
const COLUMNS: usize = 80;

/// Narrower than standard: a terminal's own margin helps, and 80 columns are few.
const QUIET_ZONE: usize = 2;

/// For a code that would not fit otherwise.
const NARROW_QUIET_ZONE: usize = 1;

/// How dark and light come about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paint {
    /// Black on white by escape sequences: right on any terminal.
    Ansi,
    /// Characters alone: right where text is light on dark, as on most terminals.
    Plain,
}

const BLACK_ON_WHITE: &str = "\x1b[38;5;16;48;5;231m";
const RESET: &str = "\x1b[0m";

/// Lines of characters, each ended by a newline.
pub fn terminal(picture: Picture<'_>, paint: Paint) -> Result<Zeroizing<String>, TooLong> {
    let modules = match picture {
        Picture::Code(text) => {
            let modules = Modules::new(text, QUIET_ZONE)?;
            if modules.width <= COLUMNS { modules } else { Modules::new(text, NARROW_QUIET_ZONE)? }
        }
        Picture::Words(words) => return Ok(Zeroizing::new(format!("{words}\n"))),
    };
    let rows = modules.width.div_ceil(2);
    let row_bytes = modules.width * '█'.len_utf8() + BLACK_ON_WHITE.len() + RESET.len() + 1;
    let mut text = Zeroizing::new(String::with_capacity(rows * row_bytes));
    for row in 0..rows {
        if paint == Paint::Ansi {
            text.push_str(BLACK_ON_WHITE);
        }
        for x in 0..modules.width {
            let (upper, lower) = (modules.is_dark(x, 2 * row), modules.is_dark(x, 2 * row + 1));
            // Without colours it is the light modules that are drawn; below the last row the background stays.
            let last = 2 * row + 1 == modules.width;
            text.push(match paint {
                Paint::Ansi => block(upper, lower),
                Paint::Plain => block(!upper, !lower && !last),
            });
        }
        if paint == Paint::Ansi {
            text.push_str(RESET);
        }
        text.push('\n');
    }
    Ok(text)
}

const fn block(upper: bool, lower: bool) -> char {
    match (upper, lower) {
        (false, false) => ' ',
        (true, false) => '▀',
        (false, true) => '▄',
        (true, true) => '█',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the characters back: is the drawn half dark?
    fn drawn(text: &str) -> Vec<Vec<bool>> {
        let mut rows = Vec::new();
        for line in text.lines() {
            rows.push(line.chars().map(|c| matches!(c, '▀' | '█')).collect());
            rows.push(line.chars().map(|c| matches!(c, '▄' | '█')).collect());
        }
        rows
    }

    #[test]
    fn both_paints_show_the_code() {
        let modules = Modules::new("hello", QUIET_ZONE).unwrap();
        let plain = drawn(&terminal(Picture::Code("hello"), Paint::Plain).unwrap());
        let ansi = terminal(Picture::Code("hello"), Paint::Ansi).unwrap();
        let ansi = drawn(&ansi.replace(BLACK_ON_WHITE, "").replace(RESET, ""));
        for y in 0..modules.width {
            for x in 0..modules.width {
                assert_eq!((plain[y][x], ansi[y][x]), (!modules.is_dark(x, y), modules.is_dark(x, y)), "{x},{y}");
            }
        }
    }

    #[test]
    fn a_pairing_code_fits_eighty_columns() {
        let code = "x".repeat(360 + "wss://relay.skald.example/v1/ws".len());
        let text = terminal(Picture::Code(&code), Paint::Plain).unwrap();
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{}",
            text.lines().next().unwrap().chars().count()
        );
    }
}
