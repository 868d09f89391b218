//! The node of a physical page.
//!
//! **Problem.** A page table names frames. SysMon-N takes their nodes from the firmware's SRAT
//! table (section 2.1).
//!
//! **Approach.** The kernel's zones (`/proc/zoneinfo`) have the ranges of ordinary memory by node,
//! and `topology`'s regions those of persistent memory, which the kernel gives a node of its own
//! only where it is onlined as memory.
//!
//! **Limits.** Ranges are read once: memory that is plugged in later has no place. Where zones of
//! two nodes overlap (interleaved memory of old machines) the one that begins later wins.

use std::path::Path;

use topology::{NodeId, Topology};

use crate::types::ObserveError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u64,
    /// The first frame beyond it.
    end: u64,
    node: NodeId,
    /// Persistent memory of a region, not a zone.
    region: bool,
}

/// Frames of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frames {
    pub first: u64,
    /// The first frame beyond them.
    pub end: u64,
    pub node: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// By rising first frame.
    ranges: Vec<Range>,
}

const FRAME: u64 = 4096;

impl Places {
    /// From the text of `/proc/zoneinfo` and the machine's regions.
    pub fn new(zoneinfo: &str, topology: &Topology) -> Self {
        let mut ranges = zones(zoneinfo);
        for region in &topology.regions {
            if let (Some(start), Some(node)) = (region.start, region.node) {
                let end = start.saturating_add(region.size).div_ceil(FRAME);
                ranges.push(Range { first: start / FRAME, end, node, region: true });
            }
        }
        // Of ranges that begin together, a region comes last and wins: its zone is as wide as its
        // memory section.
        ranges.sort_by_key(|r| (r.first, r.region));
        Self { ranges }
    }

    /// From this machine's `/proc`.
    ///
    /// # Errors
    ///
    /// [`ObserveError::Io`] where it cannot be read.
    pub fn read(proc_root: &Path, topology: &Topology) -> Result<Self, ObserveError> {
        let zoneinfo = proc_root.join("zoneinfo");
        match std::fs::read_to_string(&zoneinfo) {
            Ok(text) => Ok(Self::new(&text, topology)),
            Err(source) => Err(ObserveError::Io { what: zoneinfo.display().to_string(), source }),
        }
    }

    /// All frames, in order and without overlaps. Neighbours on one node are one.
    pub(crate) fn frames(&self) -> Vec<Frames> {
        let mut all: Vec<Frames> = Vec::new();
        let mut at = 0;
        loop {
            let next = self.ranges.iter().map(|r| r.first).filter(|first| *first > at).min();
            let Some(range) = self.range(at) else {
                let Some(next) = next else { return all };
                at = next;
                continue;
            };
            match all.last_mut().filter(|last| last.end == at && last.node == range.node.0) {
                Some(last) => last.end = range.end,
                None => all.push(Frames { first: at, end: range.end, node: range.node.0 }),
            }
            at = range.end;
        }
    }

    /// The physical address at which known memory ends.
    pub fn end(&self) -> u64 {
        self.ranges.iter().map(|range| range.end).max().unwrap_or(0).saturating_mul(FRAME)
    }

    /// Looks up frames one after the other.
    pub fn finder(&self) -> Finder<'_> {
        Finder { places: self, last: None }
    }

    /// The range of a frame, without what a later range covers of it.
    fn range(&self, frame: u64) -> Option<Range> {
        let before = self.ranges.get(..self.ranges.partition_point(|r| r.first <= frame))?;
        let at = before.iter().rposition(|r| frame < r.end)?;
        let range = before.get(at)?;
        // Ranges that begin later win where they are.
        let over = before.iter().skip(at + 1).map(|r| r.end).max();
        let next = self.ranges.get(before.len()).map_or(range.end, |next| next.first.min(range.end));
        Some(Range { first: over.unwrap_or(range.first), end: next, ..*range })
    }
}

/// Remembers the range of the last frame: neighbours are likely on the same node.
#[derive(Debug)]
pub struct Finder<'a> {
    places: &'a Places,
    last: Option<Range>,
}

impl Finder<'_> {
    /// The node of a frame; `None` if no memory is known there.
    pub fn node(&mut self, frame: u64) -> Option<NodeId> {
        if !self.last.is_some_and(|r| (r.first..r.end).contains(&frame)) {
            self.last = self.places.range(frame);
        }
        self.last.map(|r| r.node)
    }
}

/// The zones with memory, of such blocks (mm/vmstat.c):
///
/// ```text
/// Node 0, zone   Normal
///   pages free     1
///         spanned  262144
///   ...
///   start_pfn:           1048576
/// ```
fn zones(text: &str) -> Vec<Range> {
    let mut ranges = Vec::new();
    let (mut node, mut spanned) = (None, 0);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("Node"), Some(id)) => {
                node = id.trim_end_matches(',').parse().ok().map(NodeId);
                spanned = 0;
            }
            (Some("spanned"), Some(pages)) => spanned = pages.parse().unwrap_or(0),
            (Some("start_pfn:"), Some(first)) => {
                if let (Some(node), Ok(first)) = (node, first.parse::<u64>())
                    && spanned > 0
                {
                    ranges.push(Range { first, end: first.saturating_add(spanned), node, region: false });
                }
            }
            _ => {}
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use topology::Region;

    use super::*;

    #[test]
    fn zones_and_regions_give_the_node() {
        let text = "\
Node 0, zone      DMA
  pages free     2816
        spanned  4095
        present  3998
  pagesets
    cpu: 0
  start_pfn:           1
Node 0, zone   Device
  pages free     0
        spanned  0
Node 1, zone   Normal
        spanned  262144
  start_pfn:           1048576
";
        let region = |start, node| Region { name: "r".into(), node, start, size: 1 << 30, devices: Vec::new() };
        let regions = vec![
            region(Some(0x2_4000_0000), Some(NodeId(3))),
            region(None, Some(NodeId(4))),
            region(Some(0x3_4000_0000), None),
        ];
        let places = Places::new(text, &Topology { regions, ..Topology::default() });
        let mut finder = places.finder();
        let mut node = |frame| finder.node(frame).map(|n| n.0);
        assert_eq!((node(0), node(1), node(4095), node(4096)), (None, Some(0), Some(0), None));
        assert_eq!((node(0x100000), node(0x13ffff), node(0x140000)), (Some(1), Some(1), None));
        assert_eq!((node(0x240000), node(0x27ffff), node(0x280000), node(0x340000)), (Some(3), Some(3), None, None));
    }

    #[test]
    fn frames_do_not_overlap() {
        let range = |first, end, node| Range { first, end, node: NodeId(node), region: false };
        let places = Places { ranges: vec![range(1, 10, 0), range(10, 20, 0), range(15, 17, 1), range(30, 40, 1)] };
        let frames = |first, end, node| Frames { first, end, node };
        assert_eq!(places.frames(), [frames(1, 15, 0), frames(15, 17, 1), frames(17, 20, 0), frames(30, 40, 1)]);
    }

    #[test]
    fn this_machine_has_memory() {
        let places = Places::new(&std::fs::read_to_string("/proc/zoneinfo").unwrap(), &Topology::default());
        assert!(!places.ranges.is_empty());
    }
}
