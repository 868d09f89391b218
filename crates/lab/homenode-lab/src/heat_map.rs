//! The heat map as a picture: a band for each mapping, the colour its node, the strength how often
//! it was accessed.

use command::heat_map::{CELLS, HeatMap};
use plotters::prelude::*;
use topology::NodeId;

use crate::page::{Area, Drawn, LINE, PlotError, WIDTH, png, text};

/// Colours of the nodes, by turns: those that people with colour blindness can tell apart (Okabe
/// and Ito).
const COLORS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// Height of a band, and the room between two.
const BAND: i32 = 70;
const GAP: i32 = 40;
const MARGIN: i32 = (WIDTH as i32 - CELLS as i32) / 2;

/// The picture as a PNG file's bytes.
pub fn draw(map: &HeatMap) -> Result<Vec<u8>, PlotError> {
    let rows = map.bands.len().max(1) as i32;
    let height = 3 * LINE + rows * (LINE + BAND + GAP);
    png("heat map", height.cast_unsigned(), |page| page_of(page, map).map_err(|e| e.to_string()))
}

fn color_of(node: NodeId) -> RGBColor {
    COLORS[node.0 as usize % COLORS.len()]
}

fn page_of<'a>(page: &Area<'a>, map: &HeatMap) -> Drawn<'a> {
    page.draw_text(&map.title, &text(30), (MARGIN, 20))?;
    legend(page, map)?;
    let mut y = 3 * LINE;
    for band in &map.bands {
        page.draw_text(&band.name, &text(24), (MARGIN, y))?;
        let top = y + LINE - 8;
        for (i, cell) in band.cells.iter().enumerate() {
            let Some((node, heat)) = *cell else { continue };
            // Mapped but never accessed is pale, not white.
            let color = color_of(node).mix(0.10 + 0.90 * heat);
            let x = MARGIN + i as i32;
            page.draw(&Rectangle::new([(x, top), (x + 1, top + BAND)], color.filled()))?;
        }
        let frame = [(MARGIN - 1, top - 1), (MARGIN + CELLS as i32, top + BAND)];
        page.draw(&Rectangle::new(frame, RGBColor(150, 150, 150).stroke_width(1)))?;
        y += LINE + BAND + GAP;
    }
    Ok(())
}

/// Each node's colour from never accessed to accessed in each sample.
fn legend<'a>(page: &Area<'a>, map: &HeatMap) -> Drawn<'a> {
    let mut nodes: Vec<NodeId> =
        map.bands.iter().flat_map(|band| band.cells.iter().flatten()).map(|(node, _)| *node).collect();
    nodes.sort();
    nodes.dedup();
    let y = 20 + LINE;
    for (i, node) in nodes.iter().enumerate() {
        let x = MARGIN + i as i32 * 280;
        for step in 0..100 {
            let color = color_of(*node).mix(0.10 + 0.009 * f64::from(step));
            page.draw(&Rectangle::new([(x + step, y), (x + step + 1, y + 26)], color.filled()))?;
        }
        page.draw_text(&format!("node {node}"), &text(24), (x + 112, y))?;
    }
    let words = "pale: mapped, not accessed; full: accessed in each sample";
    page.draw_text(words, &text(24), (MARGIN + nodes.len() as i32 * 280, y))
}
