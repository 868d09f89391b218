//! The two copies of the metadata of a volume that has twins, all of them at once: made alike after
//! a crash, and compared.
//!
//! What differs after a crash is what no fence had waited for. What comes later waits for it, so a
//! mount makes all that counts alike before it stores anything else: the twin of a journal that was
//! not committed may say that it was.

use crate::error::{Damage, Result, UNREADABLE};
use crate::format::{BLOCK, Block};
use crate::medium::Medium;
use crate::mount;
use crate::scan::{self, Inodes};
use crate::store::{Flushed, Store};

/// What is wrong with a copy.
pub(crate) const DAMAGED: &str = "is damaged";

/// The blocks of all journals and inode tables; none where there are no twins.
pub(crate) fn tables(store: &Store) -> impl Iterator<Item = (Block, usize)> {
    let superblock = store.superblock();
    let all = (0..superblock.regions.len()).filter_map(|region| Some((region, superblock.twin(region)?.0)));
    let before_pages = |(region, area): (usize, std::ops::Range<u64>)| {
        (area.start..superblock.pages(region).start).map(move |index| (Block::new(region, index), BLOCK))
    };
    all.flat_map(before_pages)
}

/// The pages of the logs of whole inodes, each as far as it is used.
pub(crate) fn pages(inodes: &Inodes) -> impl Iterator<Item = (Block, usize)> {
    inodes.values().filter_map(|found| found.state.as_ref().ok()).flat_map(|known| known.pages())
}

/// Writes the copies of these anew that are not what they should be.
pub(crate) fn mend(store: &Store, parts: impl Iterator<Item = (Block, usize)>) -> Result<()> {
    if !store.superblock().has_twins() {
        return Ok(());
    }
    for (block, len) in parts {
        store.compare(block, 0, len, true)?;
    }
    Flushed::nothing().fence(store).map(drop)
}

/// What is wrong with the copies of these. Where the volume was not unmounted, only what cannot be
/// read: they may differ.
pub(crate) fn damage(store: &Store, parts: impl Iterator<Item = (Block, usize)>, clean: bool) -> Result<Vec<Damage>> {
    let mut damage = Vec::new();
    for (block, len) in parts.filter(|_| store.superblock().has_twins()) {
        let found = store.compare(block, 0, len, false)?;
        if found.unreadable || clean && (found.first || found.twin) {
            let what = if found.unreadable { UNREADABLE } else { DAMAGED };
            damage.push(Damage::Copy { block, what });
        }
    }
    Ok(damage)
}

/// Whether both copies of all metadata that counts say the same, where nothing is under way: the
/// first ones that do not. For tests.
pub fn twins_agree(medium: Box<dyn Medium>) -> Result<Vec<Damage>> {
    let store = mount::open(medium)?;
    let inodes = scan::inodes(&store, &scan::journals(&store)?.0, &|_, _| true)?;
    damage(&store, tables(&store).chain(pages(&inodes)), true)
}
