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

use super::figure::Kind;

/// Width of a drawing in pixels: twice the width in the report.
pub const WIDTH: u32 = 1720;
pub const INK: RGBColor = RGBColor(50, 50, 50);
pub const SOFT: RGBColor = RGBColor(120, 120, 120);
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
    Draw {
        /// Which figure.
        figure: String,
        /// The library's words.
        why: String,
    },
    /// The picture was not encoded.
    #[error(transparent)]
    Encode(#[from] png::EncodingError),
}

/// A page, or a part of one.
pub type Area<'a> = DrawingArea<BitMapBackend<'a>, Shift>;
pub type Failed<'a> = DrawingAreaErrorKind<<BitMapBackend<'a> as DrawingBackend>::ErrorType>;
/// What drawing returns.
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

pub fn diamond((x, y): (i32, i32), r: i32) -> Polygon<(i32, i32)> {
    Polygon::new(vec![(x, y - r), (x + r, y), (x, y + r), (x - r, y)], BLACK.filled())
}

/// The colour of a kind, here and in the report's style sheet.
pub const fn color(kind: Kind) -> RGBColor {
    match kind {
        Kind::Predicted => RGBColor(0, 114, 178),
        Kind::Dependent => RGBColor(230, 159, 0),
        Kind::Structural => RGBColor(153, 153, 153),
        Kind::Calibrated => RGBColor(107, 79, 160),
    }
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

/// A logarithmic axis of ratios on pixels.
pub struct Ratios {
    low: f64,
    high: f64,
    pixels: (i32, i32),
}

impl Ratios {
    /// An axis that has room for these ratios and for 1.
    pub fn new(values: impl Iterator<Item = f64>, pixels: (i32, i32)) -> Self {
        let (low, high) = values.filter(|v| *v > 0.0).fold((0.9f64, 1.1f64), |(l, h), v| (l.min(v), h.max(v)));
        let room = (high / low).powf(0.04);
        Self { low: low / room, high: high * room, pixels }
    }

    /// The pixel of a ratio; the end of the axis for one beyond it.
    pub fn at(&self, ratio: f64) -> i32 {
        let part = (ratio.clamp(self.low, self.high) / self.low).ln() / (self.high / self.low).ln();
        self.pixels.0 + (part * f64::from(self.pixels.1 - self.pixels.0)).round() as i32
    }

    /// So many steps of equal length from end to end.
    pub fn steps(&self, n: u32) -> impl Iterator<Item = f64> + '_ {
        (0..=n).map(move |i| self.low * (self.high / self.low).powf(f64::from(i) / f64::from(n)))
    }

    /// Round ratios at least so many pixels apart, 1 among them.
    pub fn ticks(&self, apart: i32) -> Vec<f64> {
        const ROUND: [f64; 20] =
            [1.0, 10.0, 2.0, 0.5, 5.0, 1.5, 3.0, 0.7, 0.25, 0.1, 7.0, 1.2, 0.8, 0.9, 1.1, 4.0, 0.6, 2.5, 0.95, 1.05];
        let mut ticks: Vec<f64> = Vec::new();
        for ratio in ROUND.into_iter().filter(|r| (self.low..=self.high).contains(r)) {
            if ticks.iter().all(|t| (self.at(*t) - self.at(ratio)).abs() >= apart) {
                ticks.push(ratio);
            }
        }
        ticks
    }
}
