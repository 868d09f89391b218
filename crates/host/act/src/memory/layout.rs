//! The nodes that pages were on before a move, small enough to be kept.
//!
//! **Approach.** Runs of consecutive pages on one node, each as three numbers: pages since the end
//! of the run before, pages in the run, node. A number takes a byte for each seven bits (LEB128),
//! so a run takes three bytes or a few more. Memory that came page by page from alternating nodes
//! costs 0.07 % of its size; memory in long runs costs nothing worth mentioning.
//!
//! **Limits.** Pages are added by rising address only. Whoever adds a page below the end of the
//! last run adds nothing.

use topology::NodeId;

/// Pages and the nodes they were on, by rising address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The runs that are complete.
    bytes: Vec<u8>,
    /// End of the last complete run: number of a page.
    end: u64,
    /// The run that may still grow.
    open: Option<Run>,
    pages: u64,
}

/// Consecutive pages on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Number of the first page: its address divided by the page size.
    pub first: u64,
    pub pages: u64,
    pub node: NodeId,
}

impl Run {
    pub fn end(&self) -> u64 {
        self.first.saturating_add(self.pages)
    }
}

impl Layout {
    /// Adds a page above all others.
    pub fn push(&mut self, page: u64, node: NodeId) {
        self.add(Run { first: page, pages: 1, node });
    }

    /// Adds a run above all others.
    pub fn add(&mut self, run: Run) {
        if run.pages == 0 {
            return;
        }
        match &mut self.open {
            Some(last) if last.node == run.node && last.end() == run.first => last.pages += run.pages,
            Some(last) if run.first < last.end() => return,
            _ if run.first < self.end => return,
            _ => {
                self.close();
                self.open = Some(run);
            }
        }
        self.pages += run.pages;
    }

    /// These pages, and those of a later layout that are not among them: where pages were before
    /// both moves.
    pub fn then(&self, later: &Self) -> Self {
        let mut all = Self::default();
        let mut later = later.runs();
        let mut next = later.next();
        for run in self.runs() {
            while let Some(other) = next.filter(|other| other.first < run.end()) {
                all.add(Run { pages: other.end().min(run.first).saturating_sub(other.first), ..other });
                next = match other.end().checked_sub(run.end()) {
                    Some(pages) if pages > 0 => Some(Run { first: run.end(), pages, ..other }),
                    _ => later.next(),
                };
            }
            all.add(run);
        }
        next.into_iter().chain(later).for_each(|run| all.add(run));
        all
    }

    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Bytes of memory that it takes.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    pub fn runs(&self) -> Runs<'_> {
        Runs { bytes: &self.bytes, end: 0, open: self.open }
    }

    fn close(&mut self) {
        let Some(run) = self.open.take() else { return };
        for number in [run.first - self.end, run.pages, u64::from(run.node.0)] {
            put(&mut self.bytes, number);
        }
        self.end = run.end();
    }
}

#[derive(Clone, Debug)]
pub struct Runs<'a> {
    bytes: &'a [u8],
    end: u64,
    open: Option<Run>,
}

impl Iterator for Runs<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        let mut rest = self.bytes;
        let mut number = || take(&mut rest);
        let Some((gap, pages, node)) = number().zip(number()).zip(number()).map(|((g, p), n)| (g, p, n)) else {
            return if self.bytes.is_empty() { self.open.take() } else { None };
        };
        let run = Run { first: self.end + gap, pages, node: NodeId(node as u32) };
        (self.bytes, self.end) = (rest, run.end());
        Some(run)
    }
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// The number that [`put`] wrote; `None` at the end.
fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layout(pages: &[(u64, u32)]) -> Layout {
        let mut layout = Layout::default();
        for (page, node) in pages {
            layout.push(*page, NodeId(*node));
        }
        layout
    }

    fn pages(layout: &Layout) -> Vec<(u64, u32)> {
        layout.runs().flat_map(|r| (r.first..r.first + r.pages).map(move |page| (page, r.node.0))).collect()
    }

    #[test]
    fn neighbours_on_one_node_are_one_run() {
        let layout = layout(&[(7, 0), (8, 0), (9, 1), (11, 1), (12, 1)]);
        let run = |first, pages, node| Run { first, pages, node: NodeId(node) };
        assert_eq!(layout.runs().collect::<Vec<_>>(), [run(7, 2, 0), run(9, 1, 1), run(11, 2, 1)]);
        assert_eq!((layout.pages(), layout.bytes), (5, vec![7, 2, 0, 0, 1, 1]));
    }

    #[test]
    fn a_page_below_the_last_is_not_taken() {
        assert_eq!(pages(&layout(&[(7, 0), (7, 1), (8, 1), (3, 1), (8, 0)])), [(7, 0), (8, 1)]);
    }

    proptest! {
        #[test]
        fn what_was_added_is_read(steps in proptest::collection::vec((1u64..1 << 40, 0u32..5), 0..200)) {
            let mut at = 0;
            let added: Vec<_> = steps.iter().map(|(gap, node)| {
                at += if gap % 3 == 0 { *gap } else { 1 };
                (at, *node)
            }).collect();
            let layout = layout(&added);
            prop_assert_eq!(pages(&layout), added.clone());
        }

        #[test]
        fn of_two_layouts_the_earlier_wins(
            earlier in proptest::collection::btree_map(0u64..60, 0u32..3, 0..40),
            later in proptest::collection::btree_map(0u64..60, 0u32..3, 0..40),
        ) {
            let of = |map: &std::collections::BTreeMap<u64, u32>| layout(&map.clone().into_iter().collect::<Vec<_>>());
            let both = of(&earlier).then(&of(&later));
            let mut expected = later;
            expected.extend(earlier);
            prop_assert_eq!(both, of(&expected));
        }
    }
}
