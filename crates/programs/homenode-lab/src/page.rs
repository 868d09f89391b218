//! A white page to draw on, as a PNG, and what all drawings share.
//!
//! **Problem.** A plot is drawn on machines without fonts and without a screen, and the same
//! figures must give the same bytes.
//!
//! **Approach.** plotters on a buffer, with DejaVu Sans built in.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, register_font};

/// Width of a drawing in pixels.
pub const WIDTH: u32 = 1720;
pub const INK: RGBColor = RGBColor(50, 50, 50);
pub const GRID: RGBColor = RGBColor(225, 225, 225);
pub const FONT: &str = "sans-serif";
pub const LABEL: i32 = 25;
/// Pixels of one line of text.
pub const LINE: i32 = 44;

/// Why a plot could not be drawn.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// The font that is built in was refused.
    #[error("cannot read the built-in font")]
    Font,
    /// The drawing library gave up.
    #[error("cannot draw {figure}: {why}")]
    Draw { figure: String, why: String },
    #[error(transparent)]
    Encode(#[from] png::EncodingError),
}

/// A page, or a part of one.
pub type Area<'a> = DrawingArea<BitMapBackend<'a>, Shift>;
pub type Failed<'a> = DrawingAreaErrorKind<<BitMapBackend<'a> as DrawingBackend>::ErrorType>;
pub type Drawn<'a> = Result<(), Failed<'a>>;

/// A page of [`WIDTH`] by `height` as a PNG file's bytes.
///
/// # Errors
///
/// [`PlotError`] when the plotting library fails.
pub fn png(name: &str, height: u32, draw: impl Fn(&Area<'_>) -> Result<(), String>) -> Result<Vec<u8>, PlotError> {
    // A second registration of the same font is harmless.
    register_font(FONT, FontStyle::Normal, dejavu::sans::regular()).map_err(|_| PlotError::Font)?;
    let mut pixels = vec![255u8; (WIDTH * height * 3) as usize];
    {
        let page = BitMapBackend::with_buffer(&mut pixels, (WIDTH, height)).into_drawing_area();
        let drawn = draw(&page).and_then(|()| page.present().map_err(|e| e.to_string()));
        drawn.map_err(|why| PlotError::Draw { figure: name.to_owned(), why })?;
    }
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, WIDTH, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::Best);
    encoder.set_filter(png::FilterType::NoFilter);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels)?;
    writer.finish()?;
    Ok(bytes)
}

/// Text of this height in pixels.
pub fn text(size: i32) -> TextStyle<'static> {
    (FONT, size).into_font().color(&INK)
}

pub fn anchored(h: HPos, v: VPos) -> TextStyle<'static> {
    text(LABEL).pos(Pos::new(h, v))
}

/// A number at an axis.
pub fn tick(value: &f64) -> String {
    let decimals = if value.fract().abs() < 1e-9 { 0 } else { 2 };
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').to_owned(),
        false => text,
    }
}
