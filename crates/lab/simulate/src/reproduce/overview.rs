//! All stated effects in one picture: the paper's across, ours up.
//!
//! **Approach.** Logarithmic axes of ratios. The diagonal is agreement, the grey band counts as
//! met, the horizontal line is a model without any effect. Levels have no ratio and are left out.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::canvas::{Area, Drawn, GRID, INK, LINE, PlotError, Ratios, SOFT, WIDTH, anchored, color, png as page, tick};
use super::effect::{Effect, band};
use super::figure::{Figure, Kind};

const HEIGHT: u32 = 1240;
/// A ratio this many times too large or too small has its figure's name beside it.
const NAMED: f64 = 1.33;

/// The picture as a PNG file's bytes.
///
/// # Errors
///
/// [`PlotError`] when the plotting library fails.
pub(super) fn png(figures: &[Figure]) -> Result<Vec<u8>, PlotError> {
    page("overview", HEIGHT, |area| draw(area, figures).map_err(|e| e.to_string()))
}

/// One dot.
struct Dot {
    name: String,
    effect: Effect,
    range: Option<[f64; 2]>,
    kind: Kind,
}

fn dots(figures: &[Figure]) -> Vec<Dot> {
    let of = |f: &'_ Figure, p: &'_ super::Point| {
        let name = format!("{} {}", f.paper.name(), f.id);
        f.effect(p).map(|effect| Dot { name, effect, range: f.effect_range(p), kind: p.kind })
    };
    let mut dots: Vec<Dot> = figures.iter().flat_map(|f| f.stated().filter_map(move |p| of(f, p))).collect();
    // Predicted numbers lie on top, and calibrated ones above those that restate them.
    dots.sort_by_key(|d| {
        [Kind::Dependent, Kind::Structural, Kind::Calibrated].iter().position(|k| *k == d.kind).unwrap_or(3)
    });
    dots
}

fn draw<'a>(area: &Area<'a>, figures: &[Figure]) -> Drawn<'a> {
    let dots = dots(figures);
    let all = || dots.iter().flat_map(|d| [d.effect.paper, d.effect.homenode]);
    let (left, right, top, bottom) = (150, WIDTH as i32 - 60, 2 * LINE + 10, HEIGHT as i32 - 110);
    let (x, y) = (Ratios::new(all(), (left, right)), Ratios::new(all(), (bottom, top)));
    let low = x.steps(200).map(|r| (x.at(r), y.at(r - band(r))));
    let high: Vec<(i32, i32)> = x.steps(200).map(|r| (x.at(r), y.at(r + band(r)))).collect();
    let outline: Vec<(i32, i32)> = low.chain(high.into_iter().rev()).collect();
    area.draw(&Polygon::new(outline, GRID.filled()))?;
    for ratio in x.ticks(90) {
        let (px, py) = (x.at(ratio), y.at(ratio));
        area.draw(&PathElement::new([(px, bottom), (px, bottom + 8)], INK))?;
        area.draw(&PathElement::new([(left - 8, py), (left, py)], INK))?;
        area.draw_text(&tick(&ratio), &anchored(HPos::Center, VPos::Top), (px, bottom + 14))?;
        area.draw_text(&tick(&ratio), &anchored(HPos::Right, VPos::Center), (left - 16, py))?;
    }
    let diagonal: Vec<(i32, i32)> = x.steps(2).map(|r| (x.at(r), y.at(r))).collect();
    area.draw(&PathElement::new(diagonal, SOFT.stroke_width(2)))?;
    area.draw(&PathElement::new([(left, y.at(1.0)), (right, y.at(1.0))], BLACK.stroke_width(3)))?;
    area.draw(&PathElement::new([(left, top), (left, bottom), (right, bottom)], INK.stroke_width(2)))?;
    area.draw_text("paper, ratio", &anchored(HPos::Center, VPos::Top), ((left + right) / 2, bottom + 56))?;
    let null = "null model: no effect anywhere";
    area.draw_text(null, &anchored(HPos::Right, VPos::Bottom), (right, y.at(1.0) - 14))?;
    area.draw_text("homenode, ratio", &anchored(HPos::Left, VPos::Bottom), (left - 120, top - 8))?;
    for Dot { name, effect, range, kind } in &dots {
        let (px, py) = (x.at(effect.paper), y.at(effect.homenode));
        if let Some([low, high]) = range {
            area.draw(&PathElement::new([(px, y.at(*low)), (px, y.at(*high))], color(*kind).stroke_width(3)))?;
        }
        area.draw(&Circle::new((px, py), 9, color(*kind).filled()))?;
        area.draw(&Circle::new((px, py), 9, WHITE.stroke_width(1)))?;
        let off = effect.homenode / effect.paper;
        if kind.counts() && !(1.0 / NAMED..=NAMED).contains(&off) {
            let at = if off > 1.0 { (VPos::Bottom, -12) } else { (VPos::Top, 14) };
            area.draw_text(name, &anchored(HPos::Center, at.0).color(&SOFT), (px, py + at.1))?;
        }
    }
    legend(area, left)
}

fn legend<'a>(area: &Area<'a>, left: i32) -> Drawn<'a> {
    let style = anchored(HPos::Left, VPos::Center);
    let mut x = left;
    for kind in Kind::ALL {
        area.draw(&Circle::new((x + 10, LINE / 2), 9, color(kind).filled()))?;
        area.draw_text(kind.name(), &style, (x + 28, LINE / 2))?;
        x += area.estimate_text_size(kind.name(), &style)?.0 as i32 + 70;
    }
    area.draw(&Rectangle::new([(x, LINE / 2 - 10), (x + 36, LINE / 2 + 10)], GRID.filled()))?;
    area.draw_text("counts as met", &style, (x + 46, LINE / 2))
}
