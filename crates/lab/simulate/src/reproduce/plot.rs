//! Plots of figures: groups of bars and lines, like the papers', above the stated numbers.
//!
//! **Approach.** Bars are rectangles in a plane whose x axis counts groups. A black diamond is the
//! number that the paper states for a bar; a thin line is the range over the seeds. Below the plot
//! come all stated numbers of the figure ([`stated`]).
//!
//! **Limits.** Linear axes that begin at 0.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::canvas::{
    Area, Drawn, Failed, GRID, INK, LABEL, LINE, PlotError, WIDTH, anchored, diamond, png as page, text, tick,
};
use super::{Figure, Plot, stated};

/// Height of a plot in pixels, without the stated numbers.
const HEIGHT: u32 = 760;

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

/// A figure's plot as a PNG file's bytes.
///
/// # Errors
///
/// [`PlotError`] when the plotting library fails.
pub fn png(figure: &Figure) -> Result<Vec<u8>, PlotError> {
    let height = HEIGHT + stated::height(figure);
    page(&figure.png_name(), height, |area| draw(area, figure).map_err(|e| e.to_string()))
}

fn draw<'a>(root: &Area<'a>, figure: &Figure) -> Drawn<'a> {
    let names: Vec<&str> = match &figure.plot {
        Plot::Bars { series, .. } => series.iter().map(|s| s.0.as_str()).collect(),
        Plot::Lines { series, .. } => series.iter().map(|s| s.0.as_str()).collect(),
    };
    let marked = matches!(figure.plot, Plot::Bars { .. }) && marks(figure).next().is_some();
    let lines = legend(root, &names, marked)?;
    let (root, below) = root.split_vertically(HEIGHT);
    let (_, chart) = root.split_vertically(lines * LINE + 10);
    match &figure.plot {
        Plot::Bars { y, groups, series } => bars(&chart, figure, y, groups, series)?,
        Plot::Lines { x, y, series } => curves(&chart, x, y, series)?,
    }
    match stated::height(figure) {
        0 => Ok(()),
        _ => stated::draw(&below, figure),
    }
}

/// The legend above the plot; returns how many lines it took.
fn legend<'a>(root: &Area<'a>, names: &[&str], marked: bool) -> Result<i32, Failed<'a>> {
    let style = anchored(HPos::Left, VPos::Center);
    let (mut x, mut line) = (110, 0);
    let paper = marked.then_some("stated in the paper");
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

/// The numbers that the paper states for single bars: index of the series and of the group, value.
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

/// The lowest and the highest value of each bar over the seeds, where they differ: index of the
/// series and of the group, values.
fn ranges(figure: &Figure) -> Vec<(usize, usize, f64, f64)> {
    let Plot::Bars { series, .. } = &figure.plot else { return Vec::new() };
    let places = series.iter().enumerate().flat_map(|(s, (_, values))| (0..values.len()).map(move |g| (s, g)));
    let range = |(s, g): (usize, usize)| {
        let value = |plot: &Plot| match plot {
            Plot::Bars { series, .. } => series.get(s)?.1.get(g).copied(),
            Plot::Lines { .. } => None,
        };
        let values: Vec<f64> = figure.by_seed.iter().filter_map(value).collect();
        let (low, high) = (values.iter().copied().reduce(f64::min)?, values.iter().copied().reduce(f64::max)?);
        (high > low).then_some((s, g, low, high))
    };
    places.filter_map(range).collect()
}

fn bars<'a>(area: &Area<'a>, figure: &Figure, y: &str, groups: &[String], series: &[(String, Vec<f64>)]) -> Drawn<'a> {
    let ranges = ranges(figure);
    let ends = ranges.iter().flat_map(|r| [r.2, r.3]);
    let values = series.iter().flat_map(|s| &s.1).copied().chain(marks(figure).map(|m| m.2)).chain(ends);
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
    let (plane, name) = (chart.plotting_area(), anchored(HPos::Center, VPos::Top));
    let bottom = plane.get_pixel_range().1.end;
    let origin = area.get_base_pixel();
    for (g, group) in groups.iter().enumerate() {
        let x = plane.map_coordinate(&(g as f64 + 0.5, 0.0)).0;
        area.draw_text(group, &name, (x - origin.0, bottom - origin.1 + 12))?;
    }
    for (s, g, low, high) in ranges {
        let [low, high] = [low, high].map(|v| plane.map_coordinate(&(left(s, g) + width / 2.0, v)));
        let line = [low, high].map(|p| (p.0 - origin.0, p.1 - origin.1));
        area.draw(&PathElement::new(line, INK.stroke_width(3)))?;
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
