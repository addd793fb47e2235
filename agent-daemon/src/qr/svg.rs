//! A picture as SVG.

use std::fmt::Write;

use zeroize::Zeroizing;

use super::{Modules, Picture, QUIET_ZONE, TooLong};

/// Side of a picture of words, user units.
const WORDS: usize = 220;

/// Height of a line of words, user units.
const LINE: usize = 24;

/// The text of an SVG file.
pub fn svg(picture: Picture<'_>) -> Result<Zeroizing<String>, TooLong> {
    match picture {
        Picture::Code(text) => Modules::new(text, QUIET_ZONE).map(|modules| code(&modules)),
        Picture::Words(text) => Ok(words(text)),
    }
}

fn code(modules: &Modules) -> Zeroizing<String> {
    // "M127 127h1v1h-1z" at most, for each dark module: enough that the text never moves and leaves a copy.
    let dark = modules.dark.iter().filter(|dark| **dark).count();
    let mut path = Zeroizing::new(String::with_capacity(dark * 20));
    for y in 0..modules.width {
        for x in (0..modules.width).filter(|&x| modules.is_dark(x, y)) {
            write!(path, "M{x} {y}h1v1h-1z").expect("writing to memory");
        }
    }
    let mut svg = document(modules.width, path.len());
    write!(svg, r##"<path d="{}" fill="#000"/></svg>"##, *path).expect("writing to memory");
    svg
}

fn words(text: &str) -> Zeroizing<String> {
    let mut svg = document(WORDS, text.len());
    let first = (WORDS - LINE * text.lines().count()) / 2 + LINE / 2;
    for (line, text) in text.lines().enumerate() {
        let (x, y) = (WORDS / 2, first + line * LINE);
        let style = r#"font-family="sans-serif" font-size="18" text-anchor="middle""#;
        write!(svg, r#"<text x="{x}" y="{y}" {style}>{text}</text>"#).expect("writing to memory");
    }
    svg.push_str("</svg>");
    svg
}

fn document(side: usize, content: usize) -> Zeroizing<String> {
    let mut svg = Zeroizing::new(String::with_capacity(content + 1024));
    write!(
        svg,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {side} {side}" shape-rendering="crispEdges"><rect width="{side}" height="{side}" fill="#fff"/>"##
    )
    .expect("writing to memory");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dark_module_is_a_square_and_words_are_text() {
        let modules = Modules::new("hello", QUIET_ZONE).unwrap();
        let file = svg(Picture::Code("hello")).unwrap();
        assert_eq!(file.matches("h1v1h-1z").count(), modules.dark.iter().filter(|dark| **dark).count());
        assert!(file.starts_with("<svg ") && file.ends_with("fill=\"#000\"/></svg>") && file.contains("0 0 29 29"));
        let file = svg(Picture::Words("code\nexpired")).unwrap();
        assert!(file.contains(">code</text>") && file.contains(">expired</text>") && !file.contains("<path"));
    }
}
