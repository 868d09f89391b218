//! Plots, as PNG: groups of bars and lines, like the papers'.
//!
//! **Problem.** A plot is drawn on machines without fonts and without a screen, and the same figures must give the same bytes.
//!
//! **Approach.** plotters on a buffer, with DejaVu Sans built in; bars are rectangles in a plane whose x axis counts groups. A black
//! diamond is what the paper states for a bar.
//!
//! **Limits.** Linear axes that begin at 0.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, register_font};

use super::{Figure, Plot};

/// Width of a plot in pixels: twice what the report shows it at.
pub const WIDTH: u32 = 1720;
/// Height of a plot in pixels.
pub const HEIGHT: u32 = 760;

/// Colours that stay apart in print and for colour-blind readers (Okabe and Ito), and greys.
const COLORS: [RGBColor; 9] = [
    RGBColor(153, 153, 153),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 114, 178),
    RGBColor(240, 228, 66),
    RGBColor(204, 121, 167),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(60, 60, 60),
];
const INK: RGBColor = RGBColor(50, 50, 50);
const GRID: RGBColor = RGBColor(225, 225, 225);
const FONT: &str = "sans-serif";
const LABEL: i32 = 25;
/// Pixels of one line of the legend.
const LINE: i32 = 44;

/// Why a plot could not be drawn.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// The font that is built in was refused.
    #[error("the built-in font cannot be read")]
    Font,
    /// The drawing library gave up.
    #[error("figure {figure} cannot be drawn: {why}")]
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

type Area<'a> = DrawingArea<BitMapBackend<'a>, Shift>;

/// A figure's plot as a PNG file's bytes.
///
/// # Errors
///
/// [`PlotError`] when the plotting library fails.
pub fn png(figure: &Figure) -> Result<Vec<u8>, PlotError> {
    // A second registration of the same font is harmless.
    register_font(FONT, FontStyle::Normal, dejavu::sans::regular()).map_err(|_| PlotError::Font)?;
    let mut pixels = vec![255u8; (WIDTH * HEIGHT * 3) as usize];
    {
        let root = BitMapBackend::with_buffer(&mut pixels, (WIDTH, HEIGHT)).into_drawing_area();
        draw(&root, figure).map_err(|e| PlotError::Draw { figure: figure.id.to_owned(), why: e.to_string() })?;
    }
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, WIDTH, HEIGHT);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::Best);
    encoder.set_filter(png::FilterType::NoFilter);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels)?;
    writer.finish()?;
    Ok(bytes)
}

type Drawn<'a> = Result<(), DrawingAreaErrorKind<<BitMapBackend<'a> as DrawingBackend>::ErrorType>>;

fn draw<'a>(root: &Area<'a>, figure: &Figure) -> Drawn<'a> {
    root.fill(&WHITE)?;
    let names: Vec<&str> = match &figure.plot {
        Plot::Bars { series, .. } => series.iter().map(|s| s.0.as_str()).collect(),
        Plot::Lines { series, .. } => series.iter().map(|s| s.0.as_str()).collect(),
    };
    let stated = matches!(figure.plot, Plot::Bars { .. }) && marks(figure).next().is_some();
    let lines = legend(root, &names, stated)?;
    let (_, chart) = root.split_vertically(lines * LINE + 10);
    match &figure.plot {
        Plot::Bars { y, groups, series } => bars(&chart, figure, y, groups, series)?,
        Plot::Lines { x, y, series } => curves(&chart, x, y, series)?,
    }
    root.present()
}

fn text(size: i32) -> TextStyle<'static> {
    (FONT, size).into_font().color(&INK)
}

/// A number at an axis.
fn tick(value: &f64) -> String {
    let decimals = if value.fract().abs() < 1e-9 { 0 } else { 2 };
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').to_owned(),
        false => text,
    }
}

/// The legend above the plot; returns how many lines it took.
fn legend<'a>(
    root: &Area<'a>,
    names: &[&str],
    stated: bool,
) -> Result<i32, DrawingAreaErrorKind<<BitMapBackend<'a> as DrawingBackend>::ErrorType>> {
    let style = text(LABEL).pos(Pos::new(HPos::Left, VPos::Center));
    let (mut x, mut line) = (110, 0);
    let paper = stated.then_some("stated in the paper");
    for (i, name) in names.iter().copied().chain(paper).enumerate() {
        let width = root.estimate_text_size(name, &style)?.0 as i32 + 70;
        if x + width > WIDTH as i32 - 20 && x > 110 {
            (x, line) = (110, line + 1);
        }
        let y = line * LINE + LINE / 2 + 8;
        if i < names.len() {
            root.draw(&Rectangle::new([(x, y - 10), (x + 26, y + 10)], COLORS[i % COLORS.len()].filled()))?;
        } else {
            root.draw(&diamond((x + 13, y), 11))?;
        }
        root.draw_text(name, &style, (x + 36, y))?;
        x += width;
    }
    Ok(line + 1)
}

fn diamond((x, y): (i32, i32), r: i32) -> Polygon<(i32, i32)> {
    Polygon::new(vec![(x, y - r), (x + r, y), (x, y + r), (x - r, y)], BLACK.filled())
}

/// What the paper states for single bars: index of the series and of the group, value.
fn marks(figure: &Figure) -> impl Iterator<Item = (usize, usize, f64)> {
    let (groups, series) = match &figure.plot {
        Plot::Bars { groups, series, .. } => (&groups[..], &series[..]),
        Plot::Lines { .. } => (&[][..], &[][..]),
    };
    figure.points.iter().filter_map(move |point| {
        let series = series.iter().position(|s| s.0 == point.series)?;
        let group = groups.iter().position(|g| *g == point.point)?;
        Some((series, group, point.paper_value?))
    })
}

fn bars<'a>(area: &Area<'a>, figure: &Figure, y: &str, groups: &[String], series: &[(String, Vec<f64>)]) -> Drawn<'a> {
    let values = series.iter().flat_map(|s| &s.1).copied().chain(marks(figure).map(|m| m.2));
    let (low, high) = values.fold((0.0f64, 0.0f64), |(low, high), v| (low.min(v), high.max(v)));
    let margin = if high > low { (high - low) * 0.06 } else { 1.0 };
    let low = if low < 0.0 { low - margin } else { 0.0 };
    let mut chart = ChartBuilder::on(area)
        .margin_right(30)
        .margin_left(24)
        .margin_top(10)
        .x_label_area_size(60)
        .y_label_area_size(110)
        .build_cartesian_2d(0.0..groups.len().max(1) as f64, low..high + margin)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(INK)
        .y_labels(6)
        .y_label_formatter(&tick)
        .y_desc(y)
        .label_style(text(LABEL))
        .axis_desc_style(text(LABEL))
        .draw()?;
    let width = 0.8 / series.len().max(1) as f64;
    let left = |s: usize, g: usize| g as f64 + 0.1 + s as f64 * width;
    for (s, (_, values)) in series.iter().enumerate() {
        let style = COLORS[s % COLORS.len()].filled();
        chart.draw_series(values.iter().enumerate().map(|(g, value)| {
            let x = left(s, g);
            Rectangle::new([(x + 0.04 * width, 0.0), (x + 0.96 * width, *value)], style)
        }))?;
    }
    chart.draw_series([PathElement::new([(0.0, 0.0), (groups.len() as f64, 0.0)], INK)])?;
    let (plane, name) = (chart.plotting_area(), text(LABEL).pos(Pos::new(HPos::Center, VPos::Top)));
    let bottom = plane.get_pixel_range().1.end;
    let origin = area.get_base_pixel();
    for (g, group) in groups.iter().enumerate() {
        let x = plane.map_coordinate(&(g as f64 + 0.5, 0.0)).0;
        area.draw_text(group, &name, (x - origin.0, bottom - origin.1 + 12))?;
    }
    for (s, g, value) in marks(figure) {
        let (x, y) = plane.map_coordinate(&(left(s, g) + width / 2.0, value));
        area.draw(&diamond((x - origin.0, y - origin.1), 11))?;
    }
    Ok(())
}

fn curves<'a>(area: &Area<'a>, x: &str, y: &str, series: &[(String, Vec<(f64, f64)>)]) -> Drawn<'a> {
    let points = || series.iter().flat_map(|s| &s.1);
    let (from, to) = points().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), p| (a.min(p.0), b.max(p.0)));
    let (low, high) = points().fold((0.0f64, 0.0f64), |(a, b), p| (a.min(p.1), b.max(p.1)));
    let (from, to) = if from < to { (from, to) } else { (0.0, 1.0) };
    let high = if high > low { high + 0.06 * (high - low) } else { low + 1.0 };
    let mut chart = ChartBuilder::on(area)
        .margin_right(30)
        .margin_left(24)
        .margin_top(10)
        .x_label_area_size(90)
        .y_label_area_size(110)
        .build_cartesian_2d(from..to, low..high)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(INK)
        .y_labels(6)
        .x_label_formatter(&tick)
        .y_label_formatter(&tick)
        .x_desc(x)
        .y_desc(y)
        .label_style(text(LABEL))
        .axis_desc_style(text(LABEL))
        .draw()?;
    for (s, (_, points)) in series.iter().enumerate() {
        let style = COLORS[s % COLORS.len()].stroke_width(4);
        chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
        let dots = if points.len() <= 40 { points.as_slice() } else { &[] };
        chart.draw_series(dots.iter().map(|p| Circle::new(*p, 6, COLORS[s % COLORS.len()].filled())))?;
    }
    Ok(())
}
