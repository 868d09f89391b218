//! Making a volume.

use crate::alloc::{Allocator, Purpose};
use crate::error::{Error, Result};
use crate::format::entry::{Attributes, Entry, Kind};
use crate::format::superblock::{self, MAX_REGION_NAME, NAMES_FROM, NAMES_PER_BLOCK, Region, Superblock};
use crate::format::{BLOCK, BLOCK_BYTES, Block, Ino, MAX_REGIONS, inode};
use crate::log::{self, NO_TAIL, Pages};
use crate::medium::Medium;
use crate::scan::{self, Use};
use crate::store::{Dirty, Store};

/// Parameters of a new volume.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Its id; random if possible.
    pub volume: [u8; 16],
    /// The time, ns since 1970.
    pub created: i64,
    /// The node of each region, where it is known.
    pub nodes: Vec<Option<u32>>,
    /// The name of each region: where the others are found. Empty where there is none.
    pub names: Vec<Vec<u8>>,
    /// One inode for this many bytes.
    pub bytes_per_inode: u64,
    /// Operations on several inodes that can commit at the same time, for each region: one per CPU
    /// of a node.
    pub journals: u32,
    /// Keep a checksum of every block of file data.
    pub data_checksums: bool,
    /// Keep all metadata in a second region, too: there is a page of a log for each inode, and the
    /// same again for the twin of the region before.
    pub logs_twice: bool,
    /// Owner and group of the root directory.
    pub owner: (u32, u32),
}

impl Default for Layout {
    /// Of nothing: an inode for 16 KiB, one journal a region, no checksums of data, logs once,
    /// root's.
    fn default() -> Self {
        Self {
            volume: [0; 16],
            created: 0,
            nodes: Vec::new(),
            names: Vec::new(),
            bytes_per_inode: 16 << 10,
            journals: 1,
            data_checksums: false,
            logs_twice: false,
            owner: (0, 0),
        }
    }
}

/// Makes a volume on the regions of `medium`. All that was on them is lost.
pub fn mkfs(medium: Box<dyn Medium>, layout: &Layout) -> Result<()> {
    if medium.regions() == 0 || medium.regions() > MAX_REGIONS {
        return Err(Error::Invalid("a volume has 1 to 64 regions"));
    }
    let region = |i: usize| {
        let len = medium.len(i);
        let inodes = (len / layout.bytes_per_inode.max(BLOCK_BYTES)).clamp(16, u64::from(u32::MAX));
        Region { blocks: len / BLOCK_BYTES, inodes, node: layout.nodes.get(i).copied().flatten() }
    };
    let regions: Vec<_> = (0..medium.regions()).map(region).collect();
    let superblock = Superblock {
        volume: layout.volume,
        index: 0,
        journals: layout.journals,
        created: layout.created,
        ro_features: if layout.data_checksums { superblock::DATA_CHECKSUMS } else { 0 },
        features: if layout.logs_twice { superblock::LOGS_TWICE } else { 0 },
        regions,
    };
    superblock.check().map_err(Error::Invalid)?;
    let store = Store::new(medium, superblock);

    let mut dirty = Dirty::default();
    for i in 0..store.superblock().regions.len() {
        for index in 0..store.superblock().data(i).start {
            dirty.and(store.write(Block::new(i, index), 0, &[0; BLOCK])?);
        }
    }
    for region in 0..store.superblock().regions.len() {
        for (i, name) in layout.names.iter().enumerate().filter(|(_, name)| name.len() <= MAX_REGION_NAME) {
            let block = Block::new(region, NAMES_FROM + (i / NAMES_PER_BLOCK) as u64);
            let record = superblock::encode_name(name);
            dirty.and(store.write(block, (i % NAMES_PER_BLOCK * record.len()) as u64, &record)?);
        }
    }
    dirty.and(make_root(&store, layout)?);
    dirty.and(store.store_word(scan::state_block(), 0, scan::state_word(Use::Clean))?);
    dirty.flush(&store)?.fence(&store)?;

    let mut dirty = Dirty::default();
    for index in 0..store.superblock().regions.len() {
        let block = Superblock { index, ..store.superblock().clone() }.encode();
        let blocks = store.superblock().regions.get(index).map_or(0, |region| region.blocks);
        for copy in superblock::copies(blocks) {
            dirty.and(store.write(Block::new(index, copy), 0, &block)?);
        }
    }
    dirty.flush(&store)?.fence(&store)?;
    Ok(())
}

fn make_root(store: &Store, layout: &Layout) -> Result<Dirty> {
    let pages = store.superblock().pages(0);
    let free = vec![(pages.start, pages.end.saturating_sub(pages.start))];
    let allocator = Allocator::new(store.superblock(), 1, &[free]);
    let pages = Pages { allocator: &allocator, regions: &[0], part: 0, purpose: Purpose::Growth };
    let time = layout.created;
    let attributes = Attributes {
        mode: Kind::Directory.mode_bits() | 0o755,
        uid: layout.owner.0,
        gid: layout.owner.1,
        links: 2,
        atime: time,
        mtime: time,
        ctime: time,
        rdev: 0,
    };
    let entry = (Entry::Attributes(attributes, 0), time);
    let mut log = log::append(store, pages, (Ino::ROOT, 1), (0, NO_TAIL), std::iter::once((&entry.0, entry.1)))?;
    let mut dirty = std::mem::take(&mut log.dirty);
    let (block, line) = store.inode_at(Ino::ROOT)?;
    dirty.and(store.write(block, line, &inode::encode(Ino::ROOT, 1, log.head(), log.tail))?);
    Ok(dirty)
}
