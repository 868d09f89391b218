//! A figure's picture: groups of bars, like the papers'. A thin line is the range over the seeds.

use laboratory::experiment::Experiment;
use laboratory::report::Results;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use crate::page::{Area, Drawn, Failed, GRID, INK, LABEL, LINE, PlotError, WIDTH, anchored, png, text, tick};

/// Height of a picture in pixels.
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

/// One bar: its group, its place in it, its mean and its range over the seeds.
struct Bar {
    group: usize,
    at: usize,
    mean: f64,
    range: (f64, f64),
}

/// The picture as a PNG file's bytes.
pub fn draw(experiment: &Experiment, results: &Results) -> Result<Vec<u8>, PlotError> {
    let run = |series: &usize| (0..experiment.point.len()).any(|point| results.mean(point, *series).is_some());
    let series: Vec<usize> = (0..experiment.series.len()).filter(run).collect();
    let bar = |group, at, series| {
        Some(Bar { group, at, mean: results.mean(group, series)?, range: results.range(group, series)? })
    };
    let places = (0..experiment.point.len())
        .flat_map(|group| series.iter().enumerate().map(move |(at, series)| (group, at, *series)));
    let bars: Vec<Bar> = places.filter_map(|(group, at, series)| bar(group, at, series)).collect();
    let names = series.iter().filter_map(|at| experiment.series.get(*at)).map(|series| series.name.as_str());
    let names: Vec<&str> = names.collect();
    png(&experiment.figure, HEIGHT, |page| {
        let lines = legend(page, &names).map_err(|error| error.to_string())?;
        let (_, chart) = page.split_vertically(lines * LINE + 10);
        chart_of(&chart, experiment, names.len().max(1), &bars).map_err(|error| error.to_string())
    })
}

fn color(at: usize) -> RGBColor {
    COLORS[at % COLORS.len()]
}

/// The legend above the chart; returns how many lines it took.
fn legend<'a>(page: &Area<'a>, names: &[&str]) -> Result<i32, Failed<'a>> {
    let style = anchored(HPos::Left, VPos::Center);
    let (mut x, mut line) = (110, 0);
    for (at, name) in names.iter().enumerate() {
        let width = page.estimate_text_size(name, &style)?.0 as i32 + 70;
        if x + width > WIDTH as i32 - 20 && x > 110 {
            (x, line) = (110, line + 1);
        }
        let y = line * LINE + LINE / 2 + 8;
        page.draw(&Rectangle::new([(x, y - 10), (x + 26, y + 10)], color(at).filled()))?;
        page.draw_text(name, &style, (x + 36, y))?;
        x += width;
    }
    Ok(line + 1)
}

fn chart_of<'a>(area: &Area<'a>, experiment: &Experiment, series: usize, bars: &[Bar]) -> Drawn<'a> {
    let groups = experiment.point.len();
    let high = bars.iter().map(|bar| bar.range.1).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin_right(30)
        .margin_left(24)
        .margin_top(10)
        .x_label_area_size(60)
        .y_label_area_size(130)
        .build_cartesian_2d(0.0..groups.max(1) as f64, 0.0..if high > 0.0 { 1.06 * high } else { 1.0 })?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(INK)
        .y_labels(6)
        .y_label_formatter(&tick)
        .y_desc(experiment.value.unit())
        .label_style(text(LABEL))
        .axis_desc_style(text(LABEL))
        .draw()?;
    let width = 0.8 / series as f64;
    let left = |bar: &Bar| bar.group as f64 + 0.1 + bar.at as f64 * width;
    chart.draw_series(bars.iter().map(|bar| {
        let x = left(bar);
        Rectangle::new([(x + 0.04 * width, 0.0), (x + 0.96 * width, bar.mean)], color(bar.at).filled())
    }))?;
    chart.draw_series(bars.iter().filter(|bar| bar.range.1 > bar.range.0).map(|bar| {
        let x = left(bar) + width / 2.0;
        PathElement::new([(x, bar.range.0), (x, bar.range.1)], INK.stroke_width(3))
    }))?;
    let (plane, name) = (chart.plotting_area(), anchored(HPos::Center, VPos::Top));
    let (bottom, origin) = (plane.get_pixel_range().1.end, area.get_base_pixel());
    for (at, group) in experiment.point.iter().enumerate() {
        let x = plane.map_coordinate(&(at as f64 + 0.5, 0.0)).0;
        area.draw_text(&group.name, &name, (x - origin.0, bottom - origin.1 + 12))?;
    }
    Ok(())
}
