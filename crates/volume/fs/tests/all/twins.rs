//! Metadata that is kept twice: what a lost region, or a damaged line, costs then.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fs::format::journal::{RECORDS, Record, commit_word, encode};
use fs::format::superblock::{LOGS_TWICE, Superblock};
use fs::format::word::Field;
use fs::format::{Block, Ino};
use fs::medium::{At, Mapped, Medium, RegionFile};
use fs::{Damage, Error, Fault, Layout, NewFile, Placement, Result, ScrubPlace, SetXattr, Volume, Word};

use crate::medium::{Image, Ram, blank, unreadable};
use crate::model::{Tree, observe};
use crate::operations::Op;
use crate::{TWICE, create, format_twice, free, layout, log_pages, mount_whole, options, seal, settled, twice};

const BLOCK: usize = 4096;
const LINE: usize = 64;

/// A volume without the metadata of a region, which is said to be missing: its data can be read, so
/// that the whole tree can be compared.
pub struct LostMetadata {
    ram: Ram,
    lost: usize,
    data: std::ops::Range<u64>,
}

impl LostMetadata {
    pub fn new(image: Image, lost: usize) -> Self {
        let ram = Ram::new(image);
        let superblock = fs::superblock_of(&ram, 0).unwrap();
        let sums = superblock.sum_at(Block::new(lost, superblock.data(lost).start)).map(|(block, _)| block.index());
        let from = sums.unwrap_or(superblock.data(lost).start);
        Self { ram, lost, data: from * BLOCK as u64..superblock.data(lost).end * BLOCK as u64 }
    }

    fn check(&self, at: At) -> Result<()> {
        match at.region == self.lost && !self.data.contains(&at.offset) {
            true => Err(std::io::Error::from_raw_os_error(libc::EIO).into()),
            false => Ok(()),
        }
    }
}

impl Medium for LostMetadata {
    fn below(&self) -> Option<&dyn Medium> {
        Some(&self.ram)
    }
    fn is_missing(&self, region: usize) -> bool {
        region == self.lost
    }
    fn read(&self, at: At, out: &mut [u8]) -> Result<()> {
        self.check(at)?;
        self.ram.read(at, out)
    }
    fn write(&self, _: At, _: &[u8]) -> Result<()> {
        unreachable!("a look stores nothing")
    }
    fn write_data(&self, _: At, _: &[u8]) -> Result<()> {
        unreachable!("a look stores nothing")
    }
    fn load_u64(&self, at: At) -> Result<u64> {
        self.check(at)?;
        self.ram.load_u64(at)
    }
    fn store_u64(&self, _: At, _: u64) -> Result<()> {
        unreachable!("a look stores nothing")
    }
    fn flush(&self, _: At, _: u64) -> Result<()> {
        Ok(())
    }
    fn fence(&self) -> Result<()> {
        Ok(())
    }
}

/// Three regions of 8 MiB in files, each on a node of its own, that keep their logs twice.
pub fn on_files_twice(place: &std::path::Path) -> (Vec<PathBuf>, Volume) {
    let paths: Vec<_> = (0..3).map(|i| place.join(format!("r{i}"))).collect();
    let files = paths.iter().map(|path| {
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(path).unwrap();
        file.set_len(8 << 20).unwrap();
        RegionFile { file, bind: None }
    });
    let mapped = Mapped::new(&files.collect::<Vec<_>>()).unwrap();
    let names = paths.iter().map(|path| path.as_os_str().as_encoded_bytes().to_vec()).collect();
    let layout = Layout { nodes: (0..3).map(Some).collect(), names, logs_twice: true, ..layout() };
    fs::mkfs(Box::new(mapped), &layout).unwrap();
    let volume = Volume::mount(Box::new(fs::open_files(&paths).unwrap()), options(1)).unwrap();
    (paths, volume)
}

/// A volume of a few files with logs of one page and of several, links and attributes, and what it
/// says.
fn example(unmounted: bool) -> (Image, Tree) {
    let (ram, volume) = twice();
    let dir = NewFile { mode: libc::S_IFDIR | 0o755, ..NewFile::default() };
    let dir = volume.create(Ino::ROOT, b"d", dir).unwrap().ino;
    let a = create(&volume, "a").unwrap();
    volume.write(a, 0, &[1; 9000]).unwrap();
    volume.link(a, dir, b"again").unwrap();
    let b = volume.create(dir, b"b", NewFile { mode: 0o600, ..NewFile::default() }).unwrap().ino;
    // Of several pages.
    for i in 0..70_u8 {
        volume.set_xattr(b, format!("user.{i}").as_bytes(), &[i; 40], SetXattr::Any).unwrap();
    }
    volume.unlink(Ino::ROOT, b"a").unwrap();
    volume.rename((dir, b"b"), (Ino::ROOT, b"c"), fs::Rename::Replace).unwrap();
    let tree = observe(&volume);
    if unmounted {
        volume.unmount().unwrap();
    } else {
        drop(volume);
    }
    (ram.image(), tree)
}

/// The blocks of metadata of both copies, as region and block.
fn metadata(image: &Image) -> Vec<(usize, u64)> {
    let superblock = fs::superblock_of(&Ram::new(image.clone()), 0).unwrap();
    let both = (0..image.len()).flat_map(|region| {
        let (area, other, first) = superblock.twin(region).unwrap();
        let twin = first..first + area.end - area.start;
        area.map(move |block| (region, block)).chain(twin.map(move |block| (other, block)))
    });
    both.collect()
}

/// Where a block is, and its twin.
pub fn both(superblock: &Superblock, block: Block) -> [At; 2] {
    let (area, region, first) = superblock.twin(block.region()).unwrap();
    let at = |region, index: u64| At { region, offset: index * BLOCK as u64 };
    [at(block.region(), block.index()), at(region, first + block.index() - area.start)]
}

/// The ways in which a line is damaged.
fn damages(line: &[u8]) -> Vec<Vec<u8>> {
    let mut flipped = line.to_vec();
    flipped[9] ^= 4;
    vec![flipped, vec![0; LINE], (0..LINE as u8).collect()]
}

#[test]
fn damage_of_any_line_costs_nothing_and_a_repair_puts_it_right() {
    let (mut reported, mut tried) = (0, 0);
    for unmounted in [true, false] {
        let (image, tree) = example(unmounted);
        for (region, block) in metadata(&image) {
            for line in 0..BLOCK / LINE {
                let at = block as usize * BLOCK + line * LINE;
                for (way, bytes) in damages(&image[region][at..at + LINE]).into_iter().enumerate() {
                    // Two lines of three are of free blocks: of these a share will do.
                    if image[region][at..at + LINE] == [0; LINE] && (line + way) % 16 != 0 {
                        continue;
                    }
                    let what = || format!("region {region}, block {block}, line {line}, way {way}, {unmounted}");
                    let mut damaged = image.clone();
                    damaged[region][at..at + LINE].copy_from_slice(&bytes);
                    let ram = Ram::new(damaged);
                    let look = Volume::look(Box::new(ram.clone()), options(1)).unwrap();
                    assert!(look.damage().is_empty() && observe(&look) == tree, "{}: {:?}", what(), look.damage());
                    let report = fs::fsck::check(Box::new(ram.clone())).unwrap();
                    let of_copy = |damage: &Damage| matches!(damage, Damage::Copy { .. });
                    assert!(report.damage.len() <= 1 && report.damage.iter().all(of_copy), "{}: {report:?}", what());
                    reported += usize::from(!report.damage.is_empty());
                    tried += 1;
                    if tried % 3 == 0 {
                        fs::fsck::repair(Arc::new(ram.clone())).unwrap();
                    }
                    let volume = mount_whole(Box::new(ram.clone()), options(1)).unwrap();
                    assert_eq!(observe(&volume), tree, "{}", what());
                    if tried % 3 == 0 || !unmounted {
                        let agree = fs::twins_agree(Box::new(ram.clone())).unwrap();
                        assert!(agree.is_empty(), "{}: {agree:?}", what());
                    }
                }
            }
        }
    }
    println!("{tried} damaged lines, {reported} of them reported");
    assert!(reported > 300, "{reported} of {tried}");
}

#[test]
fn a_scrub_mends_a_damaged_copy_of_a_line_while_it_is_mounted() {
    let (image, tree) = example(true);
    let mut mended = 0;
    for (region, block) in metadata(&image) {
        for line in 0..BLOCK / LINE {
            let at = block as usize * BLOCK + line * LINE;
            let ram = Ram::new(image.clone());
            let volume = mount_whole(Box::new(ram.clone()), options(1)).unwrap();
            ram.0.lock().unwrap()[region][at..at + LINE].fill(0x5a);
            let before = !fs::twins_agree(Box::new(ram.clone())).unwrap().is_empty();
            if !before {
                continue; // nothing uses it
            }
            let mut faults: Vec<Fault> = Vec::new();
            volume.scrub(ScrubPlace::default(), None, &mut |fault| faults.push(fault), &mut |_| true).unwrap();
            let of_copy = |fault: &Fault| fault.mended && matches!(fault.damage, Damage::Copy { .. });
            // Lines of free inodes are not looked at.
            if !faults.is_empty() {
                assert!(faults.len() == 1 && faults.iter().all(of_copy), "{region} {block} {line}: {faults:?}");
                mended += 1;
                assert!(fs::twins_agree(Box::new(ram)).unwrap().is_empty(), "{region} {block} {line}");
            }
            assert_eq!(observe(&volume), tree);
        }
    }
    assert!(mended > 180, "{mended}");
}

/// Where both copies of a line were damaged, each in another word, neither was whole.
#[test]
fn what_one_copy_lacks_the_other_one_has() {
    let (image, tree) = example(true);
    let superblock = fs::superblock_of(&Ram::new(image.clone()), 0).unwrap();
    let lines = [Ino::ROOT, Ino::new(0, 2)].map(|ino| superblock.inode_at(ino).unwrap());
    for (block, line) in lines {
        for (first, twin) in (0..3).flat_map(|first| (0..3).map(move |twin| (first, twin))) {
            let ram = Ram::new(image.clone());
            for (copy, word) in both(&superblock, block).into_iter().zip([first, twin]) {
                ram.store_u64(copy.plus(line + word * 8), 0x5a5a_1111_2222_3333).unwrap();
            }
            let look = Volume::look(Box::new(ram.clone()), options(1)).unwrap();
            let is_whole = look.damage().is_empty() && crate::model::try_observe(&look).is_ok_and(|seen| seen == tree);
            assert_eq!(is_whole, first != twin, "{first} {twin}: {:?}", look.damage());
            if is_whole {
                fs::fsck::repair(Arc::new(ram.clone())).unwrap();
                assert_eq!(fs::twins_agree(Box::new(ram.clone())).unwrap(), []);
                assert_eq!(observe(&mount_whole(Box::new(ram), options(1)).unwrap()), tree);
            }
        }
    }
}

/// A scrub of what is left read the superblocks of a region that is not there.
#[test]
fn a_scrub_without_a_region_finds_no_fault_in_its_superblock() {
    let (image, _) = example(true);
    for lost in [0, 1] {
        let look = Volume::look(Box::new(LostMetadata::new(image.clone(), lost)), options(1)).unwrap();
        let mut faults: Vec<Fault> = Vec::new();
        look.scrub(ScrubPlace::default(), None, &mut |fault| faults.push(fault), &mut |_| true).unwrap();
        assert_eq!(faults, []);
    }
}

/// Where data had no room, logs were cleaned, which gave back no block for data.
#[test]
fn no_log_is_read_or_cleaned_for_want_of_data_blocks() {
    let (_, volume) = twice();
    let (history, large) = (create(&volume, "history").unwrap(), create(&volume, "large").unwrap());
    for i in 0..80 {
        volume.write(history, 0, &[i; 4096]).unwrap();
    }
    let full = (0..).find_map(|block| volume.write(large, block * 4096, &[1; 4096]).err());
    assert!(matches!(full, Some(Error::NoSpace)), "{full:?}");
    assert_eq!(volume.looks(), 0);
    // What was removed makes room at once.
    volume.unlink(Ino::ROOT, b"history").unwrap();
    volume.append(large, &[1; 4096]).unwrap();
}

/// A file that grew found no page for its log. That it had nothing to write over hid this, and no
/// log was cleaned for it.
#[test]
fn a_file_that_grows_gets_a_page_that_cleaning_gives() {
    let (_, volume) = twice();
    let (history, grows) = (create(&volume, "history").unwrap(), create(&volume, "grows").unwrap());
    for (file, times) in [(history, 100), (grows, 55)] {
        (0..times).for_each(|i| volume.write(file, 0, &[i; 4096]).unwrap());
    }
    let is_free = || volume.usage().regions.iter().any(|region| region.free_inodes > 0);
    for i in (0..).take_while(|_| is_free()) {
        create(&volume, &format!("{i}")).unwrap();
    }
    assert_eq!(volume.looks(), 0);
    for block in 1..12 {
        volume.write(grows, block * 4096, &[1; 4096]).unwrap();
    }
    assert!(volume.looks() > 0, "there was a page");
}

/// Memory of which a line fails as long as that is said: what it held stays there.
fn failing(ram: &Ram, (region, line): (usize, usize), is_bad: &Arc<AtomicBool>) -> Box<dyn Medium> {
    let is_bad = Arc::clone(is_bad);
    let line = At { region, offset: line as u64 };
    Box::new(unreadable(ram, move |hits| is_bad.load(Ordering::Relaxed) && hits(line)))
}

/// Does what changes lines of all kinds: how much of it was an error. A line that fails makes that
/// of what would be stored there, and nothing but that.
fn change(volume: &Volume) -> usize {
    let path = |name: &str| format!("/{name}");
    let ops = [
        Op::Append(path("d/again"), 5000, 7),
        Op::Create(path("d/new")),
        Op::Write(path("d/new"), 100, 9000, 8),
        Op::Rename(path("d/new"), path("moved"), fs::Rename::Replace),
        Op::Link(path("c"), path("d/second")),
        Op::SetXattr(path("c"), "user.1".into(), 70),
        Op::Mkdir(path("e")),
        Op::Create(path("e/in")),
        Op::Unlink(path("d/second")),
        Op::Truncate(path("d/again"), 100),
        Op::Clean(path("c")),
        Op::Chmod(path("c"), 0o640),
        Op::Unlink(path("e/in")),
        Op::Rmdir(path("e")),
    ];
    let mut errors = 0;
    for op in ops {
        match op.on_volume(volume) {
            Ok(()) => {}
            // What came before it has failed.
            Err(libc::EIO | libc::ENOENT | libc::ENOTEMPTY) => errors += 1,
            Err(errno) => panic!("{op:?}: {errno}"),
        }
    }
    errors
}

/// The lines of both copies, or what counts of them.
fn lines(image: &Image) -> impl Iterator<Item = (usize, usize)> + '_ {
    let all = metadata(image)
        .into_iter()
        .flat_map(|(region, block)| (0..BLOCK / LINE).map(move |line| (region, block as usize * BLOCK + line * LINE)));
    all.filter(|(region, at)| (at % BLOCK / LINE).is_multiple_of(16) || image[*region][*at..at + LINE] != [0; LINE])
}

/// Memory that fails under a line of either copy, before a mount and under one.
#[test]
fn a_line_that_cannot_be_read_costs_no_name_and_no_data() {
    let mut refused = 0;
    for unmounted in [true, false] {
        let (image, tree) = example(unmounted);
        for line in lines(&image) {
            let (ram, is_bad) = (Ram::new(image.clone()), Arc::new(AtomicBool::new(true)));
            let mount = || mount_whole(failing(&ram, line, &is_bad), options(1)).unwrap();
            let volume = mount();
            assert_eq!(observe(&volume), tree, "{line:?}");
            let errors = change(&volume);
            refused += usize::from(errors > 0);
            let tree = observe(&volume);
            assert!(!volume.in_doubt(), "{line:?}");
            match line.1 / LINE % 2 {
                0 => volume.unmount().unwrap(),
                _ => drop(volume),
            }
            // It is still so.
            let look = Volume::look(failing(&ram, line, &is_bad), options(1)).unwrap();
            assert!(look.damage().is_empty() && observe(&look) == tree, "{line:?}: {:?}", look.damage());
            let volume = mount();
            assert_eq!(observe(&volume), tree, "{line:?}");
            volume.unmount().unwrap();
            let report = fs::fsck::check(failing(&ram, line, &is_bad)).unwrap();
            let of_copy = |damage: &Damage| matches!(damage, Damage::Copy { what: "cannot be read", .. });
            assert!(report.damage.iter().all(of_copy) && report.orphans.len() <= 1, "{line:?}: {report:?}");
        }
    }
    assert!(refused > 30, "{refused}");
}

/// A store to a line that failed in one copy was made in the other alone. The first, with what it
/// had missed, counted as good as soon as it could be read again.
#[test]
fn a_copy_that_missed_stores_is_never_believed() {
    let mut refused = 0;
    for unmounted in [true, false] {
        let (image, _) = example(false);
        for line in lines(&image) {
            let (ram, is_bad) = (Ram::new(image.clone()), Arc::new(AtomicBool::new(false)));
            let volume = mount_whole(failing(&ram, line, &is_bad), options(1)).unwrap();
            // What is read once is in memory.
            observe(&volume);
            is_bad.store(true, Ordering::Relaxed);
            refused += usize::from(change(&volume) > 0);
            let tree = observe(&volume);
            match unmounted {
                true => volume.unmount().unwrap(),
                false => drop(volume),
            }
            // Once more, after a mount.
            let volume = mount_whole(failing(&ram, line, &is_bad), options(1)).unwrap();
            assert_eq!(observe(&volume), tree, "{line:?}");
            match unmounted {
                true => volume.unmount().unwrap(),
                false => drop(volume),
            }
            let again = || Ram::new(ram.image());
            let look = Volume::look(Box::new(again()), options(1)).unwrap();
            assert!(look.damage().is_empty() && observe(&look) == tree, "{line:?}: {:?}", look.damage());
            crate::sound(Box::new(again()));
            let repaired = again();
            let done = fs::fsck::repair(Arc::new(repaired.clone())).unwrap();
            assert_eq!(done, fs::fsck::Repaired::default(), "{line:?}");
            for ram in [again(), repaired] {
                let volume = mount_whole(Box::new(ram.clone()), options(1)).unwrap();
                assert_eq!(observe(&volume), tree, "{line:?}");
                crate::crash::use_and_empty(&volume).unwrap_or_else(|what| panic!("{line:?}: {what}"));
                drop(volume);
                let volume = mount_whole(Box::new(ram.clone()), options(1)).unwrap();
                assert_eq!(observe(&volume).len(), 1);
                volume.unmount().unwrap();
                settled(Box::new(ram));
            }
        }
    }
    assert!(refused > 30, "{refused}");
}

/// A journal that was committed, in one copy of which the memory lost its first line, counted as
/// empty where that was the first one: half of the operation was there.
#[test]
fn of_a_journal_the_copy_that_is_sealed_counts() {
    let (ram, volume) = twice();
    let file = create(&volume, "one").unwrap();
    let superblock = fs::superblock_of(&ram, 0).unwrap();
    let tail = |ino: Ino| {
        let (block, line) = superblock.inode_at(ino).unwrap();
        both(&superblock, block).map(|at| at.plus(line + 16))
    };
    let before = ram.load_u64(tail(Ino::ROOT)[0]).unwrap();
    volume.link(file, Ino::ROOT, b"two").unwrap();
    let tree = observe(&volume);
    drop(volume);
    let journal = superblock.journals_of(0).next().unwrap();
    let record = |ino| Record { ino, field: Field::Tail, word: ram.load_u64(tail(ino)[0]).unwrap() };
    let bytes = encode(&[Ino::ROOT, file].map(record));
    let committed = commit_word(journal, 2, &bytes);
    let zero = |at: At| ram.write(at, &[0; LINE]).unwrap();
    let has_ended = |region| {
        let journal = superblock.journals_of(region).next().unwrap();
        both(&superblock, journal).map(|at| ram.load_u64(at).unwrap()) == [commit_word(journal, 0, &[]); 2]
    };
    assert!(has_ended(0) || has_ended(1), "one that has ended is sealed, too");
    // As one that was used.
    for at in both(&superblock, journal) {
        ram.store_u64(at, commit_word(journal, 0, &[])).unwrap();
    }
    let image = ram.image();
    for which in [0, 1] {
        *ram.0.lock().unwrap() = image.clone();
        // As a crash leaves it when one of two tails is stored; and of the journal a line is lost.
        for at in tail(Ino::ROOT) {
            ram.store_u64(at, before).unwrap();
        }
        for at in both(&superblock, journal) {
            ram.write(at.plus(RECORDS as u64), &bytes).unwrap();
            ram.store_u64(at, committed).unwrap();
        }
        let [one, other] = [which, 1 - which].map(|which| both(&superblock, journal)[which]);
        zero(one);
        // Each has what the other one lacks.
        zero(other.plus(RECORDS as u64));
        let look = Volume::look(Box::new(ram.clone()), options(1)).unwrap();
        assert!(look.damage().is_empty() && observe(&look) == tree, "{which}: {:?}", look.damage());
        let volume = mount_whole(Box::new(ram.clone()), options(1)).unwrap();
        assert_eq!(observe(&volume), tree, "{which}");
        // It has ended in one copy alone, as the other could not be stored to.
        *ram.0.lock().unwrap() = image.clone();
        let stale = encode(&[Record { word: before, ..record(Ino::ROOT) }]);
        ram.write(other.plus(RECORDS as u64), &stale).unwrap();
        ram.store_u64(other, commit_word(journal, 1, &stale)).unwrap();
        let volume = mount_whole(Box::new(ram.clone()), options(1)).unwrap();
        assert_eq!(observe(&volume), tree, "{which}");
        drop(volume);
        assert_eq!(fs::twins_agree(Box::new(ram.clone())).unwrap(), []);
    }
}

/// A journal that is committed when its memory fails in one copy, or that of a line that it names:
/// it happens as a whole or not at all, and never again.
#[test]
fn a_committed_journal_of_which_a_line_fails_happens_once_or_not() {
    let (ram, volume) = twice();
    let file = create(&volume, "one").unwrap();
    let superblock = fs::superblock_of(&ram, 0).unwrap();
    let line = |ino: Ino| {
        let (block, line) = superblock.inode_at(ino).unwrap();
        both(&superblock, block).map(|at| at.plus(line))
    };
    let all = [Ino::ROOT, file];
    let tails = || all.map(|ino| ram.load_u64(line(ino)[0].plus(16)).unwrap());
    let (old, without) = (tails(), observe(&volume));
    volume.link(file, Ino::ROOT, b"two").unwrap();
    let (new, with) = (tails(), observe(&volume));
    drop(volume);
    let journal = superblock.journals_of(0).next().unwrap();
    let record = |(ino, word): (Ino, u64)| Record { ino, field: Field::Tail, word };
    let bytes = encode(&[(Ino::ROOT, new[0]), (file, new[1])].map(record));
    for copy in both(&superblock, journal) {
        ram.write(copy.plus(RECORDS as u64), &bytes).unwrap();
        ram.store_u64(copy, commit_word(journal, 2, &bytes)).unwrap();
    }
    // None of the tails is stored, or the first one.
    let image = ram.image();
    let places = [both(&superblock, journal), line(Ino::ROOT), line(file)];
    for (stored, (what, bad)) in [0, 1].into_iter().flat_map(|stored| {
        let bad = places.iter().enumerate().flat_map(|(what, copies)| copies.map(|copy| (what, copy)));
        bad.map(move |bad| (stored, bad))
    }) {
        let ram = Ram::new(image.clone());
        for (ino, word) in all.into_iter().zip(old).skip(stored) {
            line(ino).iter().for_each(|at| ram.store_u64(at.plus(16), word).unwrap());
        }
        let is_bad = Arc::new(AtomicBool::new(true));
        let medium = || failing(&ram, (bad.region, bad.offset as usize), &is_bad);
        let look = Volume::look(medium(), options(1)).unwrap();
        let case = format!("{what}, {bad:?}, {stored} stored");
        assert!(look.damage().is_empty() && observe(&look) == with, "{case}: {:?}", look.damage());
        // Half of it is there already, and the other half cannot be stored: nobody changes anything
        // until it can, and who looks sees all of it.
        if stored == 1 && what == 2 {
            let half = |error| matches!(error, Error::Damaged(Damage::Journal { .. }));
            let refused = Volume::mount(medium(), options(1)).map(drop).unwrap_err();
            assert!(refused.to_string().lines().count() == 1 && half(refused), "{case}");
            assert!(half(fs::fsck::repair(Arc::from(medium())).unwrap_err()), "{case}");
            let look = Volume::look(medium(), options(1)).unwrap();
            assert!(look.damage().is_empty() && observe(&look) == with, "{case}: {:?}", look.damage());
            let report = fs::fsck::check(medium()).unwrap();
            assert!(report.journals == 1 && report.orphans.is_empty(), "{case}: {report:?}");
            is_bad.store(false, Ordering::Relaxed);
            assert_eq!(observe(&mount_whole(medium(), options(1)).unwrap()), with, "{case}");
            continue;
        }
        let volume = mount_whole(medium(), options(1)).unwrap();
        let tree = observe(&volume);
        assert!(tree == with || what > 0 && stored == 0 && tree == without, "{case}");
        let changed = Op::Chmod("/one".into(), 0o600).on_volume(&volume).is_ok();
        let tree = observe(&volume);
        assert!(changed || what > 0, "{case}");
        drop(volume);
        for bad in [true, false] {
            is_bad.store(bad, Ordering::Relaxed);
            let volume = mount_whole(medium(), options(1)).unwrap();
            assert_eq!(observe(&volume), tree, "{case}");
        }
    }
}

/// Everything that moves logs leaves both copies alike.
#[test]
fn migrations_drains_and_cleaning_keep_the_twins_alike() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let (paths, volume) = on_files_twice(place.path());
    crate::drain::fill(&volume, 3);
    let file = volume.resolve(b"d0/file").unwrap();
    volume.migrate_file(file, 2, None, |_| true).unwrap();
    for i in 0..300 {
        volume.write(file, (i % 7) * 8192, &[i as u8; 100]).unwrap();
    }
    volume.clean(file).unwrap();
    volume.clean(Ino::ROOT).unwrap();
    volume.drain(1, |_| true).unwrap();
    let tree = observe(&volume);
    drop(volume);
    let open = || Box::new(fs::open_files(&paths).unwrap());
    assert_eq!(fs::twins_agree(open()).unwrap(), []);
    let volume = mount_whole(open(), options(2)).unwrap();
    assert_eq!(observe(&volume), tree);
    volume.unmount().unwrap();
    settled(open());
    let volume = mount_whole(open(), options(1)).unwrap();
    crate::crash::use_and_empty(&volume).unwrap();
    drop(volume);
    assert_eq!(fs::twins_agree(open()).unwrap(), []);
}

/// A log page for each inode: what finds none fails as on a full volume, data goes on, and what is
/// removed makes room.
#[test]
fn a_full_area_for_logs_is_a_full_volume_for_new_files_only() {
    let (ram, volume) = twice();
    let large = create(&volume, "large").unwrap();
    let mut made = 0;
    let full = loop {
        match create(&volume, &format!("{made}")) {
            Ok(_) => made += 1,
            Err(full) => break full,
        }
    };
    assert!(matches!(full, Error::NoSpace));
    let usage = volume.usage();
    let free: u64 = usage.regions.iter().map(|region| region.free_inodes).sum();
    assert!(free == 0 && made > 25, "{free} {made}");
    // There is room for data, as much as is said.
    let left: u64 = usage.regions.iter().map(|region| region.free_blocks - region.reserved_blocks).sum();
    assert!(left > 20, "{left}");
    for block in 0..left {
        volume.write_to(large, block * 4096, &[1; 4096], Placement::Node(0)).unwrap();
    }
    assert!(matches!(volume.append(large, &[1; 4096]), Err(Error::NoSpace)));
    for i in 0..made {
        volume.unlink(Ino::ROOT, format!("{i}").as_bytes()).unwrap();
    }
    create(&volume, "again").unwrap();
    crate::crash::use_and_empty(&volume).unwrap();
    volume.unmount().unwrap();
    settled(Box::new(ram));
}

#[test]
fn one_region_has_no_twin_and_a_feature_nobody_knows_is_refused_in_one_line() {
    let one = Layout { logs_twice: true, ..layout() };
    let said = fs::mkfs(Box::new(Ram::new(blank(&[400]))), &one).unwrap_err().to_string();
    assert!(said.contains("two regions or more") && said.lines().count() == 1, "{said}");
    let ram = Ram::new(blank(&TWICE));
    format_twice(Box::new(ram.clone()), true);
    assert_eq!(fs::superblock_of(&ram, 1).unwrap().features, LOGS_TWICE);
    for feature in [2, 1 << 63] {
        let mut image = ram.image();
        for (region, copy) in [0, 1].into_iter().flat_map(|region| [0, 1, 2].map(|copy| (region, copy))) {
            let blocks = image[region].len() as u64 / BLOCK as u64;
            let at = fs::format::superblock::copies(blocks)[copy] as usize * BLOCK;
            let block = &mut image[region][at..at + BLOCK];
            block[32..40].copy_from_slice(&(LOGS_TWICE | feature).to_le_bytes());
            seal(block);
        }
        let said = Volume::mount(Box::new(Ram::new(image.clone())), options(1)).map(drop).unwrap_err().to_string();
        assert!(said.contains("later version") && said.lines().count() == 1, "{said}");
        assert!(Volume::look(Box::new(Ram::new(image)), options(1)).is_err());
    }
}

/// The link past a page of history was stored in one copy, and left the volume in doubt.
#[test]
fn a_page_of_history_stays_where_the_link_past_it_cannot_be_stored() {
    let make = |line: (usize, usize), is_bad: &Arc<AtomicBool>| {
        let ram = Ram::new(blank(&TWICE));
        format_twice(Box::new(ram.clone()), false);
        let volume = mount_whole(failing(&ram, line, is_bad), options(1)).unwrap();
        crate::crash::history().into_iter().for_each(|op| op.on_volume(&volume).unwrap());
        let file = volume.resolve(b"/h").unwrap();
        (ram, volume, file)
    };
    let (ram, volume, file) = make((0, 0), &Arc::default());
    let before = free(&volume);
    assert_eq!((volume.drop_history(file).unwrap(), free(&volume)), (1, before + 1));
    let (mut dropped, mut stayed) = (0, 0);
    for (_, region, at) in log_pages(&ram.image(), file) {
        let line = (region, at);
        let is_bad = Arc::default();
        let (_, volume, file) = make(line, &is_bad);
        let tree = observe(&volume);
        is_bad.store(true, Ordering::Relaxed);
        match volume.drop_history(file).unwrap() {
            0 => stayed += 1,
            _ => dropped += 1,
        }
        assert!(!volume.in_doubt(), "{line:?}");
        assert_eq!(observe(&volume), tree);
    }
    assert!(stayed == 2 && dropped > 1, "{stayed} {dropped}");
}

/// A line that is to be mended, and of which one of two copies cannot be stored to, ended each
/// scrub.
#[test]
fn a_scrub_goes_past_a_line_that_it_cannot_mend() {
    let (image, tree) = example(true);
    let superblock = fs::superblock_of(&Ram::new(image.clone()), 0).unwrap();
    let (block, line) = superblock.inode_at(Ino::ROOT).unwrap();
    for which in [0, 1] {
        let (ram, is_bad) = (Ram::new(image.clone()), Arc::default());
        let [bad, other] = [which, 1 - which].map(|which| both(&superblock, block)[which].plus(line));
        let volume = mount_whole(failing(&ram, (bad.region, bad.offset as usize), &is_bad), options(1)).unwrap();
        observe(&volume);
        is_bad.store(true, Ordering::Relaxed);
        ram.store_u64(other.plus(8), 0x5a5a_1111_2222_3333).unwrap();
        let mut faults: Vec<Fault> = Vec::new();
        let done = volume.scrub(ScrubPlace::default(), None, &mut |fault| faults.push(fault), &mut |_| true).unwrap();
        assert!(done.done && !faults.is_empty() && faults.iter().all(|fault| !fault.mended), "{faults:?}");
        assert!(!volume.in_doubt());
        is_bad.store(false, Ordering::Relaxed);
        faults.clear();
        volume.scrub(ScrubPlace::default(), None, &mut |fault| faults.push(fault), &mut |_| true).unwrap();
        assert!(faults.iter().all(|fault| fault.mended), "{faults:?}");
        assert_eq!(observe(&volume), tree);
    }
}

/// The next server asks which request of the last one is committed, where one of two copies has
/// failed: that left the volume in doubt.
#[test]
fn a_word_that_one_of_two_copies_has_is_stored() {
    let (image, _) = example(false);
    let superblock = fs::superblock_of(&Ram::new(image.clone()), 0).unwrap();
    let (block, line) = superblock.inode_at(Ino::ROOT).unwrap();
    for copy in both(&superblock, block).map(|at| at.plus(line)) {
        let (ram, is_bad) = (Ram::new(image.clone()), Arc::new(AtomicBool::new(true)));
        let volume = mount_whole(failing(&ram, (copy.region, copy.offset as usize), &is_bad), options(1)).unwrap();
        let word = ram.load_u64(copy.plus(16)).unwrap();
        assert!(volume.has_stored(Word([block.raw(), line + 16, word])).unwrap());
        assert!(!volume.has_stored(Word([block.raw(), line + 16, word ^ 1])).unwrap());
        assert!(!volume.in_doubt());
    }
}

/// An unmount said that all is as the logs say, where a mount had not made both copies alike: the
/// next one would believe the other copy, once it can be read again.
#[test]
fn an_unmount_vouches_for_nothing_that_one_copy_may_say_otherwise() {
    let (image, tree) = example(false);
    let superblock = fs::superblock_of(&Ram::new(image.clone()), 0).unwrap();
    let (block, line) = superblock.inode_at(Ino::ROOT).unwrap();
    for copy in both(&superblock, block).map(|at| at.plus(line)) {
        let (ram, is_bad) = (Ram::new(image.clone()), Arc::default());
        for bad in [false, true, false] {
            AtomicBool::store(&is_bad, bad, Ordering::Relaxed);
            if bad {
                drop(mount_whole(Box::new(ram.clone()), options(1)).unwrap());
            }
            let medium = failing(&ram, (copy.region, copy.offset as usize), &is_bad);
            let volume = mount_whole(medium, options(1)).unwrap();
            assert_eq!(observe(&volume), tree);
            volume.unmount().unwrap();
            assert_eq!(fs::fsck::check(Box::new(ram.clone())).unwrap().clean, !bad);
        }
    }
}

/// A repair that could not store to a line of which one of two copies has failed ended after it had
/// said that it is under way: nobody could mount the volume any more.
#[test]
fn a_repair_leaves_alone_what_one_of_two_copies_refuses() {
    let (ram, volume) = twice();
    create(&volume, "whole").unwrap();
    let tree = observe(&volume);
    let file = create(&volume, "file").unwrap();
    volume.write(file, 0, &[1; 9000]).unwrap();
    drop(volume);
    let superblock = fs::superblock_of(&ram, 0).unwrap();
    let (block, line) = superblock.inode_at(file).unwrap();
    // Nothing of its log is left, or not all, or a bit of it has flipped.
    type Damage<'a> = (&'a str, &'a dyn Fn(&mut [u8]));
    let damages: [Damage<'_>; 3] = [
        ("all", &|page| page[64..].iter_mut().for_each(|byte| *byte ^= 0xa5)),
        ("a line", &|page| page[128..192].fill(0xa5)),
        ("a bit", &|page| page[140] ^= 4),
    ];
    for (what, damage) in damages {
        for copy in both(&superblock, block).map(|at| at.plus(line)) {
            let (damaged, is_bad) = (Ram::new(ram.image()), Arc::new(AtomicBool::new(true)));
            for (_, region, at) in log_pages(&damaged.image(), file) {
                damage(&mut damaged.0.lock().unwrap()[region][at..at + BLOCK]);
            }
            let medium = || failing(&damaged, (copy.region, copy.offset as usize), &is_bad);
            let case = format!("{what}, {copy:?}");
            let done = fs::fsck::repair(Arc::from(medium())).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert_eq!((done.emptied, done.kept, done.mended), (0, 0, 0), "{case}");
            assert_eq!(done.removed, usize::from(what == "all"), "{case}");
            for bad in [true, false] {
                is_bad.store(bad, Ordering::Relaxed);
                let volume = Volume::mount(medium(), options(1)).unwrap();
                assert!(volume.lookup(Ino::ROOT, b"whole").is_ok(), "{case}");
                if what == "all" {
                    assert_eq!(observe(&volume), tree, "{case}");
                } else {
                    assert_eq!(volume.damage().is_empty(), what == "a bit", "{case}: {:?}", volume.damage());
                }
            }
            let done = fs::fsck::repair(Arc::from(medium())).unwrap();
            assert_eq!(done.kept + done.mended, usize::from(what != "all"), "{case}");
            mount_whole(medium(), options(1)).unwrap().unmount().unwrap();
            settled(medium());
        }
    }
}
