//! Which part of a file belongs on which node, by who reads it (`homenode warm --to-readers`).
//! Pure.
//!
//! **Approach.** A range of 2 MiB goes to the node whose CPUs read most of it, and one
//! without reads to the node of most of the file's reads.
//!
//! **Limits.** Of a file that all nodes read alike, chance gives each range its node, so it is
//! spread as evenly as its readers are.

use std::collections::BTreeMap;
use std::ops::Range;

use placement::{RANGE_BYTES, RangeHeat};
use topology::NodeId;

/// The parts of `bytes` of a file by rising offset, each with its node; neighbours differ. `None`:
/// the file had no reads.
pub(super) fn parts(heat: &[RangeHeat], bytes: Range<u64>) -> Option<Vec<(Range<u64>, NodeId)>> {
    let mut all: BTreeMap<NodeId, u64> = BTreeMap::new();
    let mut ranges: BTreeMap<u64, BTreeMap<NodeId, u64>> = BTreeMap::new();
    for range in heat.iter().filter(|range| range.bytes > 0) {
        for sums in [&mut all, ranges.entry(range.start).or_default()] {
            let sum = sums.entry(range.by).or_default();
            *sum = sum.saturating_add(range.bytes);
        }
    }
    let rest = most(&all)?;
    let mut parts: Vec<(Range<u64>, NodeId)> = Vec::new();
    let mut add = |until: u64, node: NodeId| {
        let until = until.clamp(bytes.start, bytes.end.max(bytes.start));
        let from = parts.last().map_or(bytes.start, |(range, _)| range.end);
        match parts.last_mut() {
            _ if until <= from => {}
            Some((range, last)) if *last == node => range.end = until,
            _ => parts.push((from..until, node)),
        }
    };
    for (start, sums) in &ranges {
        add(*start, rest);
        add(start.saturating_add(RANGE_BYTES), most(sums).unwrap_or(rest));
    }
    add(bytes.end, rest);
    Some(parts)
}

/// The node with most bytes, of equal ones the lowest.
fn most(sums: &BTreeMap<NodeId, u64>) -> Option<NodeId> {
    sums.iter().rev().max_by_key(|(_, bytes)| **bytes).map(|(node, _)| *node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heat(range: u64, by: u32, bytes: u64) -> RangeHeat {
        RangeHeat { start: range * RANGE_BYTES, node: NodeId(0), by: NodeId(by), bytes, windows: 1 }
    }

    fn chosen(heat: &[RangeHeat], bytes: Range<u64>) -> Vec<(u64, u64, u32)> {
        parts(heat, bytes).unwrap().into_iter().map(|(range, node)| (range.start, range.end, node.0)).collect()
    }

    const R: u64 = RANGE_BYTES;

    #[test]
    fn ranges_go_to_those_who_read_most_of_them_and_the_rest_to_those_who_read_most() {
        let read = [heat(1, 0, 10), heat(1, 1, 11), heat(2, 1, 5), heat(4, 0, 90), heat(9, 1, 7)];
        let end = 10 * R - 5;
        // The last range ends with the file.
        assert_eq!(chosen(&read, 0..end), [(0, R, 0), (R, 3 * R, 1), (3 * R, 9 * R, 0), (9 * R, end, 1)]);
        assert_eq!(chosen(&read, R + 7..2 * R), [(R + 7, 2 * R, 1)]);
        assert_eq!(chosen(&read, 3 * R..9 * R), [(3 * R, 9 * R, 0)]);
        assert_eq!(chosen(&[heat(0, 3, 1)], 0..R / 2), [(0, R / 2, 3)]);
    }

    #[test]
    fn what_nobody_reads_has_no_node_and_nothing_has_no_parts() {
        assert_eq!(parts(&[], 0..R), None);
        assert_eq!(parts(&[heat(0, 1, 0)], 0..R), None);
        assert_eq!(parts(&[heat(0, 1, 5)], R..R), Some(vec![]));
        // It has become shorter meanwhile.
        assert_eq!(parts(&[heat(9, 1, 5)], 0..R), Some(vec![(0..R, NodeId(1))]));
    }
}
