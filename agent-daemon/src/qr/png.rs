//! A picture as PNG, black on white, one bit a pixel.

use embedded_graphics::Drawable;
use embedded_graphics::draw_target::DrawTarget;
use embedded_graphics::geometry::{OriginDimensions, Point, Size};
use embedded_graphics::mono_font::MonoTextStyle;
use embedded_graphics::mono_font::ascii::FONT_10X20;
use embedded_graphics::pixelcolor::BinaryColor;
use embedded_graphics::prelude::Pixel;
use embedded_graphics::text::{Alignment, Baseline, Text, TextStyleBuilder};
use zeroize::Zeroizing;

use super::{Modules, Picture, QUIET_ZONE, TooLong};

/// Pixels per module of a code.
const MODULE: usize = 6;

/// Width and height of a picture of words before it is enlarged, pixels.
const WORDS: usize = 220;

/// How much a picture of words is enlarged.
const ENLARGE: usize = 2;

/// The bytes of a PNG file.
pub fn png(picture: Picture<'_>) -> Result<Zeroizing<Vec<u8>>, TooLong> {
    match picture {
        Picture::Code(text) => {
            let modules = Modules::new(text, QUIET_ZONE)?;
            Ok(encode(modules.width * MODULE, |x, y| modules.is_dark(x / MODULE, y / MODULE)))
        }
        Picture::Words(words) => {
            let canvas = draw(words);
            Ok(encode(WORDS * ENLARGE, |x, y| canvas.is_dark(x / ENLARGE, y / ENLARGE)))
        }
    }
}

fn encode(width: usize, is_dark: impl Fn(usize, usize) -> bool) -> Zeroizing<Vec<u8>> {
    const CANNOT_FAIL: &str = "a PNG of fixed format, written to memory";
    let row_bytes = width.div_ceil(8);
    let mut bits = Zeroizing::new(vec![0_u8; row_bytes * width]);
    for y in 0..width {
        for x in (0..width).filter(|&x| !is_dark(x, y)) {
            bits[y * row_bytes + x / 8] |= 0x80 >> (x % 8);
        }
    }
    let side = u32::try_from(width).expect("a picture is small");
    let mut file = crate::rpc::SecretBuf::new();
    let mut encoder = ::png::Encoder::new(&mut file, side, side);
    encoder.set_color(::png::ColorType::Grayscale);
    encoder.set_depth(::png::BitDepth::One);
    let mut writer = encoder.write_header().expect(CANNOT_FAIL);
    writer.write_image_data(&bits).expect(CANNOT_FAIL);
    writer.finish().expect(CANNOT_FAIL);
    Zeroizing::new(file.to_vec())
}

/// A square for `embedded-graphics` to draw on.
struct Canvas(Vec<bool>);

impl Canvas {
    fn is_dark(&self, x: usize, y: usize) -> bool {
        self.0.get(y * WORDS + x).copied().unwrap_or(false)
    }
}

impl OriginDimensions for Canvas {
    fn size(&self) -> Size {
        let side = u32::try_from(WORDS).expect("a picture is small");
        Size::new(side, side)
    }
}

impl DrawTarget for Canvas {
    type Color = BinaryColor;
    type Error = std::convert::Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<BinaryColor>>>(&mut self, pixels: I) -> Result<(), Self::Error> {
        for Pixel(point, color) in pixels {
            let (Ok(x), Ok(y)) = (usize::try_from(point.x), usize::try_from(point.y)) else { continue };
            if x < WORDS && y < WORDS {
                self.0[y * WORDS + x] = color.is_on();
            }
        }
        Ok(())
    }
}

fn draw(words: &str) -> Canvas {
    let mut canvas = Canvas(vec![false; WORDS * WORDS]);
    let middle = i32::try_from(WORDS / 2).expect("a picture is small");
    let lines = i32::try_from(words.lines().count()).unwrap_or(1);
    let height = i32::try_from(FONT_10X20.character_size.height).expect("a character is small");
    let top = Point::new(middle, middle - lines * height / 2);
    let centred = TextStyleBuilder::new().alignment(Alignment::Center).baseline(Baseline::Top).build();
    let black = MonoTextStyle::new(&FONT_10X20, BinaryColor::On);
    let Ok(_) = Text::with_text_style(words, top, black, centred).draw(&mut canvas);
    canvas
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pixels(file: &[u8]) -> (usize, Vec<bool>) {
        let mut decoder = ::png::Decoder::new(std::io::Cursor::new(file));
        decoder.set_transformations(::png::Transformations::EXPAND);
        let mut reader = decoder.read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut bytes).unwrap();
        (usize::try_from(info.width).unwrap(), bytes.into_iter().map(|byte| byte < 128).collect())
    }

    #[test]
    fn a_code_is_drawn_module_by_module_with_a_light_border() {
        let (width, dark) = pixels(&png(Picture::Code("hello")).unwrap());
        let modules = Modules::new("hello", QUIET_ZONE).unwrap();
        assert_eq!((width, modules.width), (29 * MODULE, 21 + 2 * QUIET_ZONE));
        for y in 0..width {
            for x in 0..width {
                assert_eq!(dark[y * width + x], modules.is_dark(x / MODULE, y / MODULE), "{x},{y}");
            }
        }
        assert!(modules.is_dark(QUIET_ZONE, QUIET_ZONE) && !modules.is_dark(QUIET_ZONE - 1, QUIET_ZONE));
    }

    #[test]
    fn words_are_drawn_in_the_middle_and_differ() {
        let (width, dark) = pixels(&png(Picture::Words("expired")).unwrap());
        let rows: Vec<usize> = (0..width).filter(|y| dark[y * width..(y + 1) * width].contains(&true)).collect();
        assert!(rows.first() > Some(&(width / 3)) && rows.last() < Some(&(2 * width / 3)), "{rows:?}");
        assert_ne!(pixels(&png(Picture::Words("replaced")).unwrap()).1, dark);
    }

    #[test]
    fn what_fits_no_code_is_an_error() {
        assert_eq!(png(Picture::Code(&"x".repeat(3000))).unwrap_err(), TooLong);
    }
}
