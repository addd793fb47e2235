//! Pairing codes as pictures: PNG, SVG, and characters for a terminal (socket API, `pairing.qr`).
//!
//! A picture shows either the code or, once the window is closed, words that say so. The code holds the pairing token:
//! pictures of it are as secret as the token, and every buffer here is wiped. The QR code's error correction is the lowest
//! level: screens do not get dirty, and a smaller code fits a terminal of 80 columns.

mod png;
mod svg;
mod terminal;

use qrcode::{Color, EcLevel, QrCode};

pub use png::png;
pub use svg::svg;
pub use terminal::{Paint, terminal};

/// Light modules around a code, as readers want it.
const QUIET_ZONE: usize = 4;

/// What a picture shows.
#[derive(Debug, Clone, Copy)]
pub enum Picture<'a> {
    /// This text as a QR code.
    Code(&'a str),
    /// Words instead, ASCII, a few lines of at most 20 characters.
    Words(&'a str),
}

/// The text does not fit a QR code (2,953 bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the pairing code is too long for a QR code: shorten qr_url")]
pub struct TooLong;

/// A square of dark and light modules, quiet zone included.
struct Modules {
    width: usize,
    dark: zeroize::Zeroizing<Vec<bool>>,
}

impl Modules {
    fn new(text: &str, quiet_zone: usize) -> Result<Self, TooLong> {
        let code = QrCode::with_error_correction_level(text, EcLevel::L).map_err(|_| TooLong)?;
        let inner = code.width();
        let width = inner + 2 * quiet_zone;
        let mut dark = zeroize::Zeroizing::new(vec![false; width * width]);
        for (at, color) in code.into_colors().into_iter().enumerate() {
            let (x, y) = (at % inner + quiet_zone, at / inner + quiet_zone);
            dark[y * width + x] = color == Color::Dark;
        }
        Ok(Self { width, dark })
    }

    /// Light outside.
    fn is_dark(&self, x: usize, y: usize) -> bool {
        x < self.width && self.dark.get(y * self.width + x).copied().unwrap_or(false)
    }
}
