//! The stated numbers of one figure beside ours, one row each.
//!
//! **Approach.** Effects are drawn as ratios on a logarithmic axis: the paper's number with the
//! band around it, ours in the colour of its kind, a line from the lowest to the highest seed. A
//! level is drawn relative to the paper's number.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::canvas::{Area, Drawn, GRID, INK, LINE, Ratios, SOFT, WIDTH, anchored, color, diamond, tick};
use super::effect::{BAND, band};
use super::figure::{Figure, Kind, Point};

/// One stated number.
struct Row {
    label: String,
    paper: f64,
    half_band: f64,
    here: f64,
    range: Option<[f64; 2]>,
    kind: Kind,
}

fn rows(figure: &Figure) -> Vec<Row> {
    let row = |point: &Point| {
        let Point { series, point: at, kind, paper_value, homenode_value, range, .. } = point;
        let (effect, label) = (figure.effect(point), format!("{series}, {at}"));
        let kind = *kind;
        Some(match effect {
            Some(effect) => {
                let range = figure.effect_range(point);
                Row { label, paper: effect.paper, half_band: band(effect.paper), here: effect.homenode, range, kind }
            }
            None => {
                let of = |value: f64| Some(value / (*paper_value)?);
                let range = range.and_then(|[low, high]| Some([of(low)?, of(high)?]));
                let label = format!("{label} (level)");
                Row { label, paper: 1.0, half_band: BAND, here: of(*homenode_value)?, range, kind }
            }
        })
    };
    figure.stated().filter_map(row).collect()
}

/// Pixels that the rows of a figure take.
pub(super) fn height(figure: &Figure) -> u32 {
    match rows(figure).len() {
        0 => 0,
        n => (n as u32 + 3) * LINE as u32,
    }
}

/// Draws the rows.
pub(super) fn draw<'a>(area: &Area<'a>, figure: &Figure) -> Drawn<'a> {
    let rows = rows(figure);
    let all = rows.iter().flat_map(|r| {
        let [low, high] = r.range.unwrap_or([r.here, r.here]);
        [r.here, low, high, r.paper - r.half_band, r.paper + r.half_band]
    });
    let (left, right) = (720, WIDTH as i32 - 40);
    let axis = Ratios::new(all, (left, right));
    let (top, bottom) = (LINE, LINE * (rows.len() as i32 + 1));
    let caption = "stated numbers: paper (diamond, with its band), homenode (dot)";
    area.draw_text(caption, &anchored(HPos::Left, VPos::Center), (30, LINE / 2))?;
    for ratio in axis.ticks(90) {
        let x = axis.at(ratio);
        area.draw(&PathElement::new([(x, top), (x, bottom)], if ratio == 1.0 { SOFT } else { GRID }))?;
        area.draw_text(&tick(&ratio), &anchored(HPos::Center, VPos::Top), (x, bottom + 8))?;
    }
    let name = "ratio (1 = no effect)";
    area.draw_text(name, &anchored(HPos::Center, VPos::Top), ((left + right) / 2, bottom + 40))?;
    for (i, row) in rows.iter().enumerate() {
        let y = top + LINE * i as i32 + LINE / 2;
        let [from, to] = [row.paper - row.half_band, row.paper + row.half_band].map(|ratio| axis.at(ratio));
        area.draw(&Rectangle::new([(from, y - 13), (to, y + 13)], GRID.filled()))?;
        area.draw_text(&row.label, &anchored(HPos::Right, VPos::Center), (left - 20, y))?;
        area.draw(&diamond((axis.at(row.paper), y), 11))?;
        if let Some([low, high]) = row.range {
            area.draw(&PathElement::new([(axis.at(low), y), (axis.at(high), y)], INK.stroke_width(3)))?;
        }
        area.draw(&Circle::new((axis.at(row.here), y), 9, color(row.kind).filled()))?;
    }
    Ok(())
}
