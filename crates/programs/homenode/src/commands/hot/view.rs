//! A mapping as a row of cells, each with how often its pages were accessed and on which node they
//! are.

use std::collections::BTreeMap;

use observe::mapped::{Region, Row, Rule, Sums};
use serde_json::{Value, json};
use topology::NodeId;

/// Cells of a mapping: a multiple of the widths that terminals get.
pub const CELLS: usize = 1440;

/// Some neighbouring addresses of a mapping.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    pub nodes: BTreeMap<NodeId, u64>,
    /// Bytes times the samples in which they were accessed.
    pub accessed: u64,
}

impl Cell {
    /// Mean share of the samples in which a byte was accessed; `None` where nothing is mapped.
    pub fn heat(&self, samples: u32) -> Option<f64> {
        let mapped: u64 = self.nodes.values().sum();
        (mapped > 0).then(|| self.accessed as f64 / (mapped as f64 * f64::from(samples.max(1))))
    }

    /// The node of most of its bytes.
    pub fn node(&self) -> Option<NodeId> {
        self.nodes.iter().max_by_key(|(node, bytes)| (**bytes, std::cmp::Reverse(**node))).map(|(node, _)| *node)
    }

    fn add(&mut self, other: &Self) {
        for (node, bytes) in &other.nodes {
            *self.nodes.entry(*node).or_default() += bytes;
        }
        self.accessed += other.accessed;
    }
}

#[derive(Clone, Debug)]
pub struct View {
    pub start: u64,
    pub end: u64,
    pub path: String,
    /// Samples that count.
    pub samples: u32,
    /// Whether the accessed bits were cleared; otherwise they say "ever".
    pub cleared: bool,
    pub cells: Vec<Cell>,
    pub sums: Sums,
}

impl View {
    pub fn new(region: &Region, path: String) -> Self {
        let (start, end) = (region.mapping.start, region.mapping.end);
        let cleared = region.row == Row::Cleared;
        let samples = if cleared { region.samples } else { 1 };
        let rule = rule(samples);
        let mut sums = Sums::default();
        region.add_to(&mut sums, rule);
        let mut cells = vec![Cell::default(); CELLS];
        let width = (end - start).max(1) as f64 / CELLS as f64;
        for (address, bytes, node, history) in region.heat.pages() {
            let times = u64::from(rule.times(history));
            let (from, to) = (address.max(start), (address + bytes).min(end));
            let first = ((from - start) as f64 / width) as usize;
            let last = (((to - start) as f64 / width).ceil() as usize).clamp(first + 1, CELLS.max(first + 1));
            // A large page is in many cells, many small pages are in one.
            let part = (to - from) / (last - first) as u64;
            for cell in cells.get_mut(first..last.min(CELLS)).unwrap_or_default() {
                *cell.nodes.entry(node).or_default() += part;
                cell.accessed += part * times;
            }
        }
        Self { start, end, path, samples, cleared, cells, sums }
    }

    pub fn columns(&self, columns: usize) -> Vec<Cell> {
        let mut all = vec![Cell::default(); columns];
        for (i, cell) in self.cells.iter().enumerate() {
            if let Some(column) = all.get_mut(i * columns / CELLS) {
                column.add(cell);
            }
        }
        all
    }

    pub fn json(&self) -> Value {
        let nodes: serde_json::Map<String, Value> = self
            .sums
            .listed()
            .into_iter()
            .map(|m| {
                let bytes = json!({
                    "hot_bytes": m.hot_bytes,
                    "cold_bytes": m.cold_bytes,
                    "touched_bytes": m.touched_bytes,
                });
                (m.node.to_string(), bytes)
            })
            .collect();
        json!({"start": self.start, "end": self.end, "path": self.path, "samples": self.samples,
            "cleared": self.cleared, "nodes": nodes})
    }
}

/// Hot is accessed in at least half of the samples, and more than once.
pub fn rule(samples: u32) -> Rule {
    Rule { least: samples.div_ceil(2).max(2), of: samples.clamp(1, 8) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_is_half_of_the_samples() {
        for (samples, least) in [(0, 2), (1, 2), (2, 2), (3, 2), (7, 4), (8, 4)] {
            assert_eq!(rule(samples).least, least, "{samples}");
        }
    }

    #[test]
    fn a_cell_is_where_most_of_it_is() {
        let cell = Cell { nodes: [(NodeId(0), 4096), (NodeId(1), 8192)].into(), accessed: 4 * 12288 };
        assert_eq!((cell.node(), cell.heat(8)), (Some(NodeId(1)), Some(0.5)));
        assert_eq!((Cell::default().node(), Cell::default().heat(8)), (None, None));
    }
}
