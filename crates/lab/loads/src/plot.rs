//! Plots a figure over time as a PNG, one line for each way of running.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

/// One line of a plot.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Seconds since its start, and the figure then: a remote share, 0 to 1, or bytes per second.
    pub points: Vec<(f64, f64)>,
}

/// The points of a line from spans of time, each with its length in seconds and the figure, which
/// stands at its end.
pub fn over_time(spans: impl IntoIterator<Item = (f64, Option<f64>)>) -> Vec<(f64, f64)> {
    let mut time = 0.0;
    let point = |(seconds, value): (f64, Option<f64>)| {
        time += seconds;
        value.map(|value| (time, value))
    };
    spans.into_iter().filter_map(point).collect()
}

/// Colours that are distinct in print and for colour-blind readers (Okabe and Ito).
const COLORS: [RGBColor; 5] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
];

const INK: RGBColor = RGBColor(60, 60, 60);

/// Draws remote shares to a PNG file.
pub fn remote_share(path: &Path, title: &str, series: &[Series]) -> Result<()> {
    one(path, title, &share("file bytes read from another node", SeriesLabelPosition::UpperRight), series)
}

/// Draws bytes per second to a PNG file.
pub fn throughput(path: &Path, title: &str, series: &[Series]) -> Result<()> {
    let most = series.iter().flat_map(|s| &s.points).fold(0.0, |most: f64, p| most.max(p.1));
    let (end, label) = ((most * 1.2).max(1.0), |y| format!("{:.0}", y / 1e6));
    one(path, title, &Axis { name: "MB/s", end, label, legend: SeriesLabelPosition::UpperRight }, series)
}

/// Draws shares of several loads to a PNG file, two beside each other, each with its title. A line
/// is wider than the next, so that those that coincide can be told.
pub fn shares(path: &Path, what: &'static str, loads: &[(String, Vec<Series>)]) -> Result<()> {
    let rows = loads.len().div_ceil(2).max(1);
    let axis = share(what, SeriesLabelPosition::MiddleRight);
    let draw_all = || -> Result<()> {
        let root = BitMapBackend::new(path, (1500, 470 * u32::try_from(rows)?)).into_drawing_area();
        root.fill(&WHITE)?;
        for (area, (title, series)) in root.split_evenly((rows, 2)).iter().zip(loads) {
            draw(area, title, &axis, series, &|n| 3 + 3 * u32::try_from(series.len() - 1 - n).unwrap_or(0))?;
        }
        root.present()?;
        Ok(())
    };
    draw_all().with_context(|| format!("plot {}", path.display()))
}

/// The vertical axis, and where the legend is.
struct Axis {
    name: &'static str,
    end: f64,
    label: fn(f64) -> String,
    legend: SeriesLabelPosition,
}

fn share(name: &'static str, legend: SeriesLabelPosition) -> Axis {
    Axis { name, end: 1.05, label: |y| format!("{:.0} %", y * 100.0), legend }
}

fn one(path: &Path, title: &str, axis: &Axis, series: &[Series]) -> Result<()> {
    let draw_it = || -> Result<()> {
        let root = BitMapBackend::new(path, (1100, 560)).into_drawing_area();
        root.fill(&WHITE)?;
        draw(&root, title, axis, series, &|_| 3)?;
        root.present()?;
        Ok(())
    };
    draw_it().with_context(|| format!("plot {}", path.display()))
}

type Area<'a> = DrawingArea<BitMapBackend<'a>, Shift>;

/// Draws one chart; `width` tells that of each line, in pixels.
fn draw(area: &Area, title: &str, axis: &Axis, series: &[Series], width: &dyn Fn(usize) -> u32) -> Result<()> {
    // The machine may have no fonts. Registering the same one twice is harmless.
    register_font("sans-serif", FontStyle::Normal, dejavu::sans::regular())
        .map_err(|_| anyhow!("the built-in font cannot be read"))?;
    let end = series.iter().flat_map(|s| &s.points).fold(1.0, |end: f64, p| end.max(p.0));
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 24).into_font().color(&INK))
        .margin(20)
        .x_label_area_size(52)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..end, 0.0..axis.end)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(RGBColor(225, 225, 225))
        .axis_style(INK)
        .y_labels(6)
        .y_label_formatter(&|y| (axis.label)(*y))
        .x_label_formatter(&|s| format!("{s:.0}"))
        .x_desc("seconds")
        .y_desc(axis.name)
        .label_style(("sans-serif", 17).into_font().color(&INK))
        .draw()?;
    for (n, (line, color)) in series.iter().zip(COLORS.iter().cycle()).enumerate() {
        let style = color.stroke_width(width(n));
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), style).point_size(4))?
            .label(&line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], style));
    }
    chart
        .configure_series_labels()
        .position(axis.legend.clone())
        .background_style(WHITE.mix(0.9))
        .border_style(RGBColor(200, 200, 200))
        .legend_area_size(32)
        .margin(12)
        .label_font(("sans-serif", 17).into_font().color(&INK))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_is_a_png_with_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plot.png");
        let series = ["without homenode", "with homenode"]
            .map(|name| Series { name: name.to_owned(), points: vec![(1.0, 0.5), (2.0, 0.5), (3.0, 0.0)] });
        remote_share(&path, "Remote share", &series).unwrap();
        let png = std::fs::read(&path).unwrap();
        assert!(png.starts_with(b"\x89PNG") && png.len() > 5_000, "{} bytes", png.len());
        let fast = [Series { name: "off".to_owned(), points: vec![(1.0, 2e8), (2.0, 3e8)] }];
        throughput(&path, "Throughput", &fast).unwrap();
        assert!(std::fs::read(&path).unwrap().starts_with(b"\x89PNG"));
        shares(&path, "reads from the slow node", &[("one".to_owned(), series.to_vec()), ("two".to_owned(), vec![])])
            .unwrap();
        assert!(std::fs::read(&path).unwrap().len() > png.len() / 2);
        remote_share(&path, "Nothing", &[]).unwrap();
        assert!(std::fs::read(&path).unwrap().len() < png.len(), "lines and legend add to the picture");
        assert!(remote_share(&dir.path().join("no/such/dir.png"), "", &[]).is_err());
    }
}
