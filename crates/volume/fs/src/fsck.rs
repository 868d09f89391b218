//! Checking a volume that is not mounted.
//!
//! The check believes nothing and changes nothing. What a crash leaves behind (journals, orphans)
//! is no damage: mount takes care of it.

use std::sync::Arc;

use crate::checkpoint::Checkpoint;
use crate::error::{Damage, Error, Result, UNREADABLE};
use crate::format::BLOCK;
use crate::format::superblock::{STATE_BLOCK, Superblock, copies as places};
use crate::format::word::{self, Field, Owner};
use crate::format::{BLOCK_BYTES, Block, Ino, LINE, get_u32, get_u64, page};
use crate::medium::{At, Medium, Overlay};
use crate::mount;
use crate::repair;
pub use crate::repair::{Losses, Repaired};
use crate::scan::{self, Found, Inodes, Long, Use};
use crate::store::Store;
use crate::twins;

/// What a flipped bit is called.
pub(crate) const FLIPPED: &str = "a bit of its log has flipped; nothing is lost";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub damage: Vec<Damage>,
    /// Inodes that no directory names: the next mount frees them.
    pub orphans: Vec<Ino>,
    /// Journals that the next mount finishes.
    pub journals: usize,
    pub inodes: u64,
    pub clean: bool,
    /// Its metadata is kept twice, and both copies were read.
    pub logs_twice: bool,
}

/// Checks a volume. Fails when it cannot be read as one at all.
pub fn check(medium: Box<dyn Medium>) -> Result<Report> {
    check_with(medium, &|_, _| true)
}

/// The same, telling `watch` how far it is: steps done, of how many. Ends with
/// [`Error::Interrupted`] when that says no.
pub fn check_with(medium: Box<dyn Medium>, watch: &(dyn Fn(u64, u64) -> bool + Sync)) -> Result<Report> {
    let mut report = Report { damage: copies(&*medium)?, ..Report::default() };
    let store = mount::open_lacking(medium)?;
    report.logs_twice = store.superblock().has_twins();
    let note = |report: &mut Report, e: Error| match e {
        Error::Damaged(damage) => {
            report.damage.push(damage);
            Ok(())
        }
        e => Err(e),
    };
    let state = match scan::state(&store) {
        Ok(state) => state,
        Err(e) => {
            note(&mut report, e)?;
            Use::Mounted
        }
    };
    if state == Use::Repairing {
        report.damage.push(Damage::State);
    }
    report.clean = !matches!(state, Use::Mounted | Use::Repairing);
    if scan::mount_numbers(&store)?.contains(&None) && !report.damage.contains(&Damage::State) {
        report.damage.push(Damage::State);
    }
    let (journals, damage) = scan::journals(&store)?;
    report.damage.extend(damage);
    report.journals = journals.len();
    let mut found = scan::inodes(&store, &journals, watch)?;
    report.inodes = found.len() as u64;
    let tree = scan::walk(&store, &mut found);
    let broken = found.iter().filter(|(ino, _)| tree.orphans.binary_search(ino).is_err());
    for (_, inode) in broken {
        if let Err(Error::Damaged(damage)) = &inode.state
            && !tree.damage.contains(damage)
        {
            report.damage.push(damage.clone());
        }
    }
    report.damage.extend(tree.damage);
    report.damage.extend(tree.flipped.iter().map(|ino| Damage::Inode { ino: *ino, what: FLIPPED }));
    let blocks = scan::blocks(&store, &found, &tree.orphans);
    report.damage.extend(blocks.damage);
    if let Use::Checkpoint(at) = state {
        report.damage.extend(checkpoint(&store, at, &found, blocks.free)?);
    }
    if store.superblock().has_checksums() {
        report.damage.extend(scan::data(&store, &found, &tree.orphans)?);
    }
    let parts = twins::tables(&store).chain(twins::pages(&found));
    report.damage.extend(twins::damage(&store, parts, report.clean)?);
    report.orphans = tree.orphans;
    Ok(report)
}

impl Report {
    /// Whether [`repair`] has something to do: it cannot mend file data, nor memory.
    pub fn is_repairable(&self) -> bool {
        let memory = |d: &Damage| {
            matches!(
                d,
                Damage::Superblock { what: UNREADABLE, .. }
                    | Damage::Inode { what: UNREADABLE, .. }
                    | Damage::Copy { what: UNREADABLE, .. }
            )
        };
        let mends = |d: &Damage| !matches!(d, Damage::Data { .. }) && !memory(d);
        !self.clean || !self.orphans.is_empty() || self.damage.iter().any(mends)
    }
}

/// Copies the good superblock of a region over one that is unusable, and mends what the logs show
/// to be damaged, whatever the state word and a checkpoint say. A file or directory whose log is
/// damaged is empty afterwards. What only a damaged directory named is in `lost+found`, called `#`
/// and its number. Names that stand for nothing go. File data stays as it is.
pub fn repair(medium: Arc<dyn Medium>) -> Result<Repaired> {
    repair_if(medium, &mut |_| true)?.ok_or(Error::Interrupted)
}

/// The same, if `agree` says so to what will be lost; it is not asked where nothing is. `None`: it
/// does not, and nothing has changed.
pub fn repair_if(medium: Arc<dyn Medium>, agree: &mut dyn FnMut(&Losses) -> bool) -> Result<Option<Repaired>> {
    // First in memory.
    let mut losses = None;
    let tried = repair_to(Arc::new(Overlay::new(Arc::clone(&medium))), &mut |lost| {
        losses = Some(lost.clone());
        false
    })?;
    match losses {
        Some(losses) if tried.is_none() && !agree(&losses) => Ok(None),
        _ => repair_to(medium, &mut |_| true),
    }
}

fn repair_to(medium: Arc<dyn Medium>, agree: &mut dyn FnMut(&Losses) -> bool) -> Result<Option<Repaired>> {
    let known = |region| mount::superblock_of(&*medium, region);
    let Some(from) = (0..medium.regions()).find(|region| known(*region).is_ok()) else {
        return Err(known(0).map_or_else(|e| e, |_| Error::Interrupted));
    };
    mount::check_features(&known(from)?)?;
    let other = good_copy(&*medium, from)?;
    for region in 0..medium.regions() {
        let mut copies = Vec::new();
        for copy in places(medium.len(region) / BLOCK_BYTES) {
            let (at, mut block) = (At { region, offset: copy * BLOCK_BYTES }, [0; BLOCK]);
            match medium.read(at, &mut block) {
                // Nor can it be stored to.
                Err(Error::Io(_)) => {}
                read => read.map(|()| copies.push((at, block)))?,
            }
        }
        // As it is: it may have bits that only a later version knows.
        let good = copies.iter().map(|(_, block)| *block).find(|block| Superblock::decode(block).is_ok());
        let good = match (good, other) {
            (Some(good), _) => good,
            (None, Some(other)) if is_region(&*medium, region)? => Superblock::of_other(other, region),
            _ => {
                let why =
                    format!("region {region} has no superblock, and nothing else on it says that it is that region");
                return Err(Error::NotAVolume(why));
            }
        };
        for (at, block) in copies {
            if Superblock::decode(&block).is_err() {
                medium.write(at, &good)?;
                medium.flush(at, BLOCK_BYTES)?;
                medium.fence()?;
            }
        }
    }
    repair::repair(mount::open(Box::new(medium))?, agree)
}

/// The first copy of a region's superblock that is valid, as it is.
fn good_copy(medium: &dyn Medium, region: usize) -> Result<Option<[u8; BLOCK]>> {
    for copy in places(medium.len(region) / BLOCK_BYTES) {
        let mut block = [0; BLOCK];
        match medium.read(At { region, offset: copy * BLOCK_BYTES }, &mut block) {
            Err(Error::Io(_)) => continue,
            read => read?,
        }
        if Superblock::decode(&block).is_ok() {
            return Ok(Some(block));
        }
    }
    Ok(None)
}

/// Whether something that is sealed with its place says which region this is: the number of the
/// last mount, or a page of a log. What cannot be read says nothing.
pub(crate) fn is_region(medium: &dyn Medium, region: usize) -> Result<bool> {
    let state = Block::new(region, STATE_BLOCK);
    let number = match medium.load_u64(At { region, offset: state.index() * BLOCK_BYTES + scan::MOUNT_NUMBER }) {
        Err(Error::Io(_)) => 0,
        number => number?,
    };
    if word::unseal(Owner { id: state.raw(), generation: 0 }, Field::Mount, number).is_some_and(|number| number != 0) {
        return Ok(true);
    }
    for index in 0..medium.len(region) / BLOCK_BYTES {
        let mut line = [0; LINE];
        match medium.read(At { region, offset: index * BLOCK_BYTES }, &mut line) {
            Err(Error::Io(_)) => continue,
            read => read?,
        }
        let owner = Ino::from_raw(get_u64(&line, 8)).filter(|_| line.get(4..8) == Some(b"HLOG"));
        if let Some(ino) = owner
            && page::decode_whole(&line, ino, get_u32(&line, 16), Block::new(region, index)).is_ok()
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Compares a checkpoint with what the logs say.
fn checkpoint(store: &Store, at: Block, found: &Inodes, free: Vec<Vec<(u64, u64)>>) -> Result<Option<Damage>> {
    let Some(mut written) = Checkpoint::read(store, at)? else {
        return Ok(Some(Damage::Checkpoint("cannot be read")));
    };
    let is = |damage| Ok(Some(Damage::Checkpoint(damage)));
    if written.free != free {
        return is("has other free blocks than the logs");
    }
    if written.inodes != scan::used_inodes(free.len(), found.keys()) {
        return is("has other inodes than the tables");
    }
    let dir = |(ino, f): (&Ino, &Found)| Some((*ino, f.state.as_ref().ok()?.dir.as_ref()?.parent));
    written.parents.sort_unstable();
    if !written.parents.iter().copied().eq(found.iter().filter_map(dir)) {
        return is("has other directories than the logs");
    }
    let differs = |(ino, written): &(Ino, Long)| {
        let known = found.get(ino).and_then(|f| f.state.as_ref().ok()).filter(|known| !known.flipped);
        let is_other = |own: &Long| own.blocks != written.blocks || own.runs < written.runs;
        known.is_some_and(|known| known.long.as_deref().is_none_or(is_other))
    };
    if written.long.iter().any(differs) {
        return is("has other extents than the logs");
    }
    Ok(None)
}

/// Superblocks of which one copy is unusable.
fn copies(medium: &dyn Medium) -> Result<Vec<Damage>> {
    let mut damage = Vec::new();
    for region in 0..medium.regions() {
        for copy in places(medium.len(region) / BLOCK_BYTES) {
            let mut block = [0; BLOCK];
            let decoded = match medium.read(At { region, offset: copy * BLOCK_BYTES }, &mut block) {
                Err(Error::Io(_)) => Err(UNREADABLE),
                read => read.map(|()| Superblock::decode(&block))?,
            };
            if let Err(what) = decoded {
                damage.push(Damage::Superblock { region, what });
            }
        }
    }
    Ok(damage)
}
