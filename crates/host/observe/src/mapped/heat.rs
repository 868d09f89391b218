//! How often each page was seen accessed, and what is hot.
//!
//! **The rule.** Each page remembers its last samples, one bit each: was it accessed since the
//! sample before? A page is *hot* if it was accessed in at least [`Rule::least`] of the last
//! [`Rule::of`] samples, *touched* if in any, and *cold* if it is mapped and not hot. homenode uses
//! 2 of 4, and 4 of 8 by hand: half of them. SysMon-N says "hotness (i.e., access times within a
//! sampling interval)" (section 1) and names no threshold.
//!
//! **Limits.** A bit says accessed, not how often: a page read once a second is as hot as one read
//! a million times. A page that came into the page table since the last sample counts as accessed,
//! as the kernel enters it with the bit set; one fault can enter 16 pages.

use std::collections::BTreeMap;

use placement::MappedMemory;
use rustc_hash::FxHashMap;
use topology::NodeId;

use super::entry::Piece;
use super::places::Places;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Samples in which it was accessed, at least.
    pub least: u32,
    /// Of so many, at most 8.
    pub of: u32,
}

impl Rule {
    fn last(self, history: u8) -> u8 {
        history & (u8::MAX >> (8 - self.of.clamp(1, 8)))
    }

    /// In how many of the last samples it was accessed.
    pub fn times(self, history: u8) -> u32 {
        self.last(history).count_ones()
    }

    pub fn hot(self, history: u8) -> bool {
        self.times(history) >= self.least
    }
}

/// One page, or one large page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Whether it was accessed in the last samples; the latest is bit 0.
    pub history: u8,
    /// Its node, as an index of [`Heat::nodes`].
    node: u8,
}

pub const SLOT_BYTES: u64 = size_of::<Page>() as u64;

/// Not mapped.
const NOWHERE: u8 = u8::MAX;
const ABSENT: Page = Page { history: 0, node: NOWHERE };

/// Pages that one last-level table maps, or one large page.
#[derive(Clone, Debug)]
struct Block {
    page_bytes: u64,
    sample: u32,
    pages: Box<[Page]>,
}

#[derive(Clone, Debug, Default)]
pub struct Heat {
    blocks: BTreeMap<u64, Block>,
    nodes: Vec<NodeId>,
    sample: u32,
    /// Entries of the page table in this sample, and the bytes that they map.
    entries: u64,
    bytes: u64,
    /// Entries whose bit has been set since it was cleared.
    set_again: u64,
    /// Bytes of pages whose frames are no memory that we know.
    elsewhere: u64,
    /// Pages for which this sample has room, mapped or not.
    slots: u64,
}

impl Heat {
    /// Begins a sample: [`Heat::see`] gets its entries, then [`Heat::end`] ends it.
    pub fn begin(&mut self) {
        self.sample = self.sample.wrapping_add(1);
        (self.entries, self.bytes, self.set_again, self.elsewhere, self.slots) = (0, 0, 0, 0, 0);
    }

    /// A piece of the page table, of which only what is within the mapping counts. `cleared`:
    /// whether the bits were cleared at the last sample; otherwise they say "ever", which is not
    /// added up.
    pub fn see(&mut self, piece: Piece<'_>, within: (u64, u64), places: &Places, cleared: bool) {
        // A table that maps nothing here takes no room.
        if !piece.entries(within).any(|(_, entry)| entry.present()) {
            return;
        }
        let Self { blocks, nodes, sample, entries, bytes, set_again, elsewhere, slots } = self;
        *slots += piece.raw.len() as u64;
        let fresh = || Block { page_bytes: piece.bytes, sample: *sample, pages: vec![ABSENT; piece.raw.len()].into() };
        let block = blocks.entry(piece.address).or_insert_with(fresh);
        if block.page_bytes != piece.bytes {
            // The kernel has split or joined a large page.
            *block = fresh();
        }
        block.sample = *sample;
        // Pages that this piece does not have have been unmapped.
        block.pages.iter_mut().for_each(|page| page.node |= UNSEEN);
        let mut place = places.finder();
        for (i, entry) in piece.entries(within).filter(|(_, entry)| entry.present()) {
            let (Some(node), Some(page)) = (place.node(entry.frame()), block.pages.get_mut(i)) else {
                *elsewhere += entry.bytes;
                continue;
            };
            let accessed = u8::from(entry.accessed());
            page.history = match cleared {
                true => page.history << 1 | accessed,
                false => accessed,
            };
            page.node = index(nodes, node);
            *entries += 1;
            *set_again += u64::from(cleared && entry.accessed());
            *bytes += entry.bytes;
        }
        for page in block.pages.iter_mut().filter(|page| page.node & UNSEEN != 0) {
            *page = ABSENT;
        }
    }

    /// Ends a sample: forgets what is not mapped any more.
    pub fn end(&mut self) {
        let sample = self.sample;
        self.blocks.retain(|_, block| block.sample == sample);
    }

    /// Forgets what was accessed: what bits say that were never cleared is no sample.
    pub fn forget(&mut self) {
        self.blocks.values_mut().flat_map(|block| &mut block.pages).for_each(|page| page.history = 0);
    }

    /// The mapped pages in order: address, bytes, node, history.
    pub fn pages(&self) -> impl Iterator<Item = (u64, u64, NodeId, u8)> + '_ {
        self.blocks.iter().flat_map(move |(start, block)| {
            block.pages.iter().enumerate().filter_map(move |(i, page)| {
                let node = self.nodes.get(page.node as usize)?;
                Some((start + i as u64 * block.page_bytes, block.page_bytes, *node, page.history))
            })
        })
    }

    /// Entries of the page table, and bytes that they map.
    pub fn mapped(&self) -> (u64, u64) {
        (self.entries, self.bytes)
    }

    /// Pages that this sample remembers, mapped or not: [`SLOT_BYTES`] each.
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// Entries whose accessed bit the processor has set since it was cleared.
    pub fn set_again(&self) -> u64 {
        self.set_again
    }

    /// Bytes of pages on memory that no node is known for.
    pub fn elsewhere(&self) -> u64 {
        self.elsewhere
    }

    /// Adds up what is hot, cold and touched on each node. `within`: only bytes between these
    /// addresses count. With `ever`, the bits were never cleared, and nothing counts as hot.
    pub fn add_to(&self, sums: &mut Sums, rule: Rule, within: (u64, u64), ever: bool) {
        for (address, bytes, node, history) in self.pages() {
            let bytes = (address + bytes).min(within.1).saturating_sub(address.max(within.0));
            let sum = sums.0.entry(node).or_default();
            let hot = !ever && rule.hot(history);
            *(if hot { &mut sum.hot } else { &mut sum.cold }) += bytes;
            if rule.times(history) > 0 {
                sum.touched += bytes;
            }
        }
    }
}

/// Marks the node of a page that this sample has not seen yet.
const UNSEEN: u8 = 0x80;

fn index(nodes: &mut Vec<NodeId>, node: NodeId) -> u8 {
    let at = nodes.iter().position(|n| *n == node).unwrap_or_else(|| {
        nodes.push(node);
        nodes.len() - 1
    });
    // The pages of one mapping on more than 127 nodes: the last of them stands for the rest.
    (at as u8).min(UNSEEN - 1)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub hot: u64,
    /// In other mapped pages.
    pub cold: u64,
    /// In pages accessed in any of the last samples.
    pub touched: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums(pub FxHashMap<NodeId, Sum>);

impl Sums {
    /// As a snapshot lists them, by rising node.
    pub fn listed(&self) -> Vec<MappedMemory> {
        let mut listed: Vec<_> = self
            .0
            .iter()
            .map(|(node, sum)| MappedMemory {
                node: *node,
                hot_bytes: sum.hot,
                cold_bytes: sum.cold,
                touched_bytes: Some(sum.touched),
            })
            .collect();
        listed.sort_by_key(|memory| memory.node);
        listed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule { least: 2, of: 4 };

    /// Frames 0–511 on node 0, 512–1023 on node 1.
    fn places() -> Places {
        let zone = |node, first| format!("Node {node}, zone Normal\n  spanned 512\n  start_pfn: {first}\n");
        Places::new(&(zone(0, 0) + &zone(1, 512)), &topology::Topology::default())
    }

    const ALL: (u64, u64) = (0, u64::MAX);

    fn raw(frame: u64, accessed: bool) -> u64 {
        frame << 12 | 1 | u64::from(accessed) << 5
    }

    fn sums(heat: &Heat) -> Vec<(u32, u64, u64, u64)> {
        let mut sums = Sums::default();
        heat.add_to(&mut sums, RULE, (0, u64::MAX), false);
        let listed = sums.listed().into_iter();
        listed.map(|m| (m.node.0, m.hot_bytes / 4096, m.cold_bytes / 4096, m.touched_bytes.unwrap() / 4096)).collect()
    }

    /// One sample of these pages: address, frame, accessed.
    fn sample(heat: &mut Heat, pages: &[(u64, u64, bool)]) {
        heat.begin();
        let mut tables: BTreeMap<u64, [u64; 512]> = BTreeMap::new();
        for (at, frame, accessed) in pages {
            tables.entry(at / 512).or_insert([0; 512])[(at % 512) as usize] = raw(*frame, *accessed);
        }
        for (table, raw) in tables {
            heat.see(Piece { address: table << 21, bytes: 4096, raw: &raw }, ALL, &places(), true);
        }
        heat.end();
    }

    #[test]
    fn hot_is_accessed_in_two_of_the_last_four_samples() {
        assert!(RULE.hot(0b1001) && !RULE.hot(0b1000) && !RULE.hot(0b11_0001));
        assert_eq!((RULE.times(0b11_0001), Rule { least: 4, of: 8 }.times(0b1111_0001)), (1, 5));
        let mut heat = Heat::default();
        sample(&mut heat, &[(0, 1, true), (1, 2, true), (600, 512, false)]);
        assert_eq!(sums(&heat), [(0, 0, 2, 2), (1, 0, 1, 0)]);
        sample(&mut heat, &[(0, 1, true), (1, 2, false), (600, 512, true)]);
        assert_eq!(sums(&heat), [(0, 1, 1, 2), (1, 0, 1, 1)]);
        for _ in 0..3 {
            sample(&mut heat, &[(0, 1, false), (1, 2, false), (600, 512, true)]);
        }
        assert_eq!(sums(&heat), [(0, 0, 2, 1), (1, 1, 0, 1)]);
        assert_eq!((heat.mapped(), heat.set_again()), ((3, 3 * 4096), 1));
    }

    #[test]
    fn a_page_that_is_unmapped_or_moves_is_where_it_is_now() {
        let mut heat = Heat::default();
        sample(&mut heat, &[(0, 1, true), (1, 2, true), (513, 3, true)]);
        sample(&mut heat, &[(0, 513, true)]);
        assert_eq!(sums(&heat), [(1, 1, 0, 1)]);
        // Back again, it begins anew.
        sample(&mut heat, &[(0, 513, true), (1, 2, true)]);
        assert_eq!(sums(&heat), [(0, 0, 1, 1), (1, 1, 0, 1)]);
    }

    /// One page in each table takes the room of a whole table, and a table without pages takes
    /// none.
    #[test]
    fn the_room_that_pages_take_is_counted_by_tables() {
        let mut heat = Heat::default();
        sample(&mut heat, &[(0, 1, true), (512, 2, true), (1024, 3, true)]);
        assert_eq!((heat.mapped().0, heat.slots()), (3, 3 * 512));
        sample(&mut heat, &[(0, 1, true)]);
        assert_eq!((heat.slots(), heat.blocks.len()), (512, 1));
        heat.begin();
        heat.see(Piece { address: 1 << 30, bytes: 4096, raw: &[0; 512] }, ALL, &places(), true);
        assert_eq!((heat.slots(), heat.blocks.len()), (0, 1));
        heat.end();
        assert!(heat.blocks.is_empty());
    }

    #[test]
    fn large_pages_count_whole_and_within_their_mapping() {
        let mut heat = Heat::default();
        let large = Piece { address: 4 << 20, bytes: 2 << 20, raw: &[0xa1] };
        for _ in 0..2 {
            heat.begin();
            heat.see(large, ALL, &places(), true);
            heat.end();
        }
        assert_eq!(sums(&heat), [(0, 512, 0, 512)]);
        let mut part = Sums::default();
        heat.add_to(&mut part, RULE, (4 << 20, 5 << 20), false);
        assert_eq!(part.listed()[0].hot_bytes, 1 << 20);
        // The kernel splits it.
        sample(&mut heat, &[(1024, 1, true)]);
        assert_eq!(sums(&heat), [(0, 0, 1, 1)]);
    }

    #[test]
    fn what_was_never_cleared_is_touched_but_not_hot() {
        let mut heat = Heat::default();
        for _ in 0..4 {
            heat.begin();
            let raw = [raw(1, true), raw(9999, true)];
            heat.see(Piece { address: 0, bytes: 4096, raw: &raw }, ALL, &places(), false);
            heat.end();
        }
        assert_eq!((sums(&heat), heat.elsewhere()), (vec![(0, 0, 1, 1)], 4096));
        heat.forget();
        assert_eq!(sums(&heat), [(0, 0, 1, 0)]);
        let mut ever = Sums::default();
        heat.begin();
        heat.see(Piece { address: 0, bytes: 4096, raw: &[raw(1, true)] }, ALL, &places(), false);
        heat.end();
        heat.add_to(&mut ever, Rule { least: 1, of: 4 }, (0, u64::MAX), true);
        assert_eq!((ever.listed()[0].hot_bytes, ever.listed()[0].touched_bytes), (0, Some(4096)));
    }
}
