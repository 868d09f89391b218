//! Lines of a volume that cannot be read: each harms what lies in it, and nobody else.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fs::format::journal::{RECORDS, Record, commit_word, encode};
use fs::format::word::Field;
use fs::medium::{At, Medium};
use fs::{Damage, Error, Ino, NewFile, Result, Volume};

use crate::medium::{Ram, Watched, blank, unreadable};
use crate::{create, format_with, log_pages, options};

/// Memory of which some lines fail. A store to one ends a process that has it mapped: here it is an
/// error that no test expects.
struct Holed {
    ram: Ram,
    bad: Arc<Mutex<Vec<At>>>,
}

impl Holed {
    fn new() -> Self {
        Self::with(false)
    }

    fn with(data_checksums: bool) -> Self {
        let ram = Ram::new(blank(&[400, 400]));
        format_with(Box::new(ram.clone()), 1, data_checksums);
        Self { ram, bad: Arc::default() }
    }

    fn fail(&self, region: usize, offset: u64) {
        self.bad.lock().unwrap().push(At { region, offset: offset / 64 * 64 });
    }

    /// The line of an inode.
    fn fail_inode(&self, ino: Ino) {
        let (block, line) = fs::superblock_of(&self.ram, ino.region()).unwrap().inode_at(ino).unwrap();
        self.fail(ino.region(), block.index() * 4096 + line);
    }

    fn medium(&self) -> Watched<Ram> {
        let bad = Arc::clone(&self.bad);
        let accesses = AtomicU64::new(0);
        unreadable(&self.ram, move |hits| {
            assert!(accesses.fetch_add(1, Ordering::Relaxed) < 1_000_000, "somebody reads for ever");
            bad.lock().unwrap().iter().any(|line| hits(*line))
        })
    }

    fn mount(&self) -> Result<Volume> {
        Volume::mount(Box::new(self.medium()), options(1))
    }
}

/// The number of a free inode that could not be read came back to the top of those to use: no file
/// could be made any more.
#[test]
fn a_free_inode_that_cannot_be_read_is_passed_over() {
    let holed = Holed::new();
    let volume = holed.mount().unwrap();
    let gone = create(&volume, "a").unwrap();
    create(&volume, "b").unwrap();
    volume.unlink(Ino::ROOT, b"a").unwrap();
    volume.unmount().unwrap();
    holed.fail_inode(gone);
    let volume = holed.mount().unwrap();
    for name in ["c", "d", "e"] {
        assert_ne!(create(&volume, name).unwrap(), gone);
    }
}

/// After a clean unmount it was an error of the medium, so that the name could not be removed.
#[test]
fn a_name_of_an_inode_that_cannot_be_read_can_be_removed() {
    let holed = Holed::new();
    let volume = holed.mount().unwrap();
    let lost = create(&volume, "lost").unwrap();
    volume.unmount().unwrap();
    holed.fail_inode(lost);
    let volume = holed.mount().unwrap();
    let found = volume.lookup(Ino::ROOT, b"lost");
    assert!(matches!(found, Err(Error::Damaged(Damage::Inode { .. }))), "{found:?}");
    assert_eq!(volume.stub(Ino::ROOT, b"lost").unwrap().ino, lost);
    volume.unlink(Ino::ROOT, b"lost").unwrap();
    assert!(matches!(volume.lookup(Ino::ROOT, b"lost"), Err(Error::NotFound)));
}

/// One line of a checkpoint, or of a journal, kept everybody out.
#[test]
fn a_checkpoint_or_a_journal_that_cannot_be_read_keeps_nobody_out() {
    for checkpoint in [true, false] {
        let holed = Holed::new();
        let volume = holed.mount().unwrap();
        let kept = create(&volume, "kept").unwrap();
        volume.unmount().unwrap();
        if checkpoint {
            holed.fail(1, 399 * 4096);
        } else {
            let journal = fs::superblock_of(&holed.ram, 0).unwrap().journals_of(0).next().unwrap();
            holed.fail(0, journal.index() * 4096);
        }
        for name in ["x", "y"] {
            let volume = holed.mount().unwrap();
            assert_eq!(volume.lookup(Ino::ROOT, b"kept").unwrap().ino, kept);
            // Two inodes change: that needs a journal.
            let new = create(&volume, name).unwrap();
            volume.link(new, Ino::ROOT, &[name.as_bytes(), b"2"].concat()).unwrap();
            if checkpoint {
                break; // it would write the next one to the same place
            }
            volume.unmount().unwrap();
        }
    }
}

/// Without the state nobody may change the volume, but everybody can look and check.
#[test]
fn a_state_that_cannot_be_read_is_damage() {
    let holed = Holed::new();
    let volume = holed.mount().unwrap();
    create(&volume, "kept").unwrap();
    volume.unmount().unwrap();
    holed.fail(0, 2 * 4096);
    let refused = holed.mount().map(drop);
    assert!(matches!(refused, Err(Error::Damaged(Damage::State))), "{refused:?}");
    Volume::look(Box::new(holed.medium()), options(1)).unwrap().lookup(Ino::ROOT, b"kept").unwrap();
    assert!(fs::fsck::check(Box::new(holed.medium())).unwrap().damage.contains(&Damage::State));
}

/// After a crash a free inode that could not be read was an orphan: mount and repair stored to its
/// line, and a look to its page.
#[test]
fn an_inode_without_a_name_that_cannot_be_read_is_left_alone() {
    let holed = Holed::new();
    let volume = holed.mount().unwrap();
    let gone = create(&volume, "a").unwrap();
    let kept = create(&volume, "kept").unwrap();
    // An orphan, in the same block or that of the other region.
    volume.create_unnamed(Ino::ROOT, NewFile { mode: 0o644, ..NewFile::default() }).unwrap();
    volume.unlink(Ino::ROOT, b"a").unwrap();
    drop(volume);
    holed.fail_inode(gone);
    let look = || Volume::look(Box::new(holed.medium()), options(1)).unwrap();
    assert_eq!(look().lookup(Ino::ROOT, b"kept").unwrap().ino, kept);
    let left = [Damage::Inode { ino: gone, what: "cannot be read" }];
    let check = || fs::fsck::check(Box::new(holed.medium())).unwrap();
    assert_eq!((&check().damage[..], check().orphans.len()), (&left[..], 1));
    let volume = holed.mount().unwrap();
    assert_eq!(volume.damage(), [], "nothing that has a name is damaged, so there is room");
    for name in ["c", "d", "e"] {
        let new = create(&volume, name).unwrap();
        assert_ne!(new, gone);
        volume.write(new, 0, b"new").unwrap();
    }
    drop(volume);
    fs::fsck::repair(Arc::new(holed.medium())).unwrap();
    let report = check();
    assert_eq!((&report.damage[..], report.clean, report.is_repairable()), (&left[..], true, false));
    holed.mount().unwrap().unmount().unwrap();
    assert_eq!(check(), report);
}

/// A repair stored to the line.
#[test]
fn a_repair_removes_the_name_of_an_inode_that_cannot_be_read() {
    for directory in [false, true] {
        let holed = Holed::new();
        let volume = holed.mount().unwrap();
        let mode = if directory { libc::S_IFDIR | 0o755 } else { 0o644 };
        let lost = volume.create(Ino::ROOT, b"lost", NewFile { mode, ..NewFile::default() }).unwrap().ino;
        let inner = directory.then(|| volume.create(lost, b"inner", NewFile::default()).unwrap().ino);
        drop(volume);
        holed.fail_inode(lost);
        let done = fs::fsck::repair(Arc::new(holed.medium())).unwrap();
        let found = usize::from(directory);
        assert_eq!(done, fs::fsck::Repaired { found, emptied: 0, removed: 1, ..fs::fsck::Repaired::default() });
        let report = fs::fsck::check(Box::new(holed.medium())).unwrap();
        assert_eq!(report.damage, [Damage::Inode { ino: lost, what: "cannot be read" }]);
        let volume = holed.mount().unwrap();
        assert!(matches!(volume.lookup(Ino::ROOT, b"lost"), Err(Error::NotFound)));
        if let Some(inner) = inner {
            volume.resolve(format!("/lost+found/#{inner}").as_bytes()).unwrap();
        }
    }
    let holed = Holed::new();
    holed.fail_inode(Ino::ROOT);
    let refused = fs::fsck::repair(Arc::new(holed.medium()));
    assert!(matches!(refused, Err(Error::Damaged(Damage::Inode { ino: Ino::ROOT, .. }))), "{refused:?}");
}

/// Recovery, also that of a look and of a repair, stored to the line that a record of a journal
/// names.
#[test]
fn a_journal_that_names_an_inode_that_cannot_be_read_is_finished_without_it() {
    let holed = Holed::new();
    let volume = holed.mount().unwrap();
    let lost = create(&volume, "lost").unwrap();
    let tail = |ino: Ino| {
        let (block, line) = fs::superblock_of(&holed.ram, ino.region()).unwrap().inode_at(ino).unwrap();
        let at = At { region: ino.region(), offset: block.index() * 4096 + line + 16 };
        (at, holed.ram.load_u64(at).unwrap())
    };
    let before = tail(Ino::ROOT).1;
    volume.link(lost, Ino::ROOT, b"second").unwrap();
    let records = [Ino::ROOT, lost].map(|ino| Record { ino, field: Field::Tail, word: tail(ino).1 });
    drop(volume);
    // As a crash leaves it right after the commit.
    holed.ram.store_u64(tail(Ino::ROOT).0, before).unwrap();
    let journal = fs::superblock_of(&holed.ram, 0).unwrap().journals_of(0).next().unwrap();
    let (at, bytes) = (At { region: 0, offset: journal.index() * 4096 }, encode(&records));
    holed.ram.write(at.plus(RECORDS as u64), &bytes).unwrap();
    holed.ram.store_u64(at, commit_word(journal, records.len(), &bytes)).unwrap();
    holed.fail_inode(lost);
    let image = holed.ram.image();
    let again = || Holed { ram: Ram::new(image.clone()), bad: Arc::clone(&holed.bad) };
    let check = |volume: &Volume| {
        for name in [b"lost".as_slice(), b"second"] {
            let found = volume.lookup(Ino::ROOT, name);
            assert!(matches!(found, Err(Error::Damaged(_))), "{found:?}");
        }
    };
    check(&Volume::look(Box::new(again().medium()), options(1)).unwrap());
    check(&again().mount().unwrap());
    let done = fs::fsck::repair(Arc::new(again().medium())).unwrap();
    assert_eq!(done, fs::fsck::Repaired { found: 0, emptied: 0, removed: 2, ..fs::fsck::Repaired::default() });
}

/// It was an error of the whole check, and of a repair.
#[test]
fn a_check_goes_past_a_superblock_and_data_that_cannot_be_read() {
    let holed = Holed::with(true);
    let volume = holed.mount().unwrap();
    let file = create(&volume, "file").unwrap();
    volume.write(file, 0, &[1; 9000]).unwrap();
    let block = volume.map(file).unwrap()[0].block;
    volume.unmount().unwrap();
    holed.fail(1, 4096);
    holed.fail(block.region(), block.index() * 4096 + 100);
    let check = || fs::fsck::check(Box::new(holed.medium())).unwrap();
    let all = [
        Damage::Superblock { region: 1, what: "cannot be read" },
        Damage::Data { block, path: Some("/file".to_owned()) },
    ];
    assert_eq!((&check().damage[..], check().is_repairable()), (&all[..], false));
    // The other copy, too.
    holed.ram.write(At { region: 0, offset: 5 }, &[0]).unwrap();
    assert_eq!(check().damage.len(), 3);
    fs::fsck::repair(Arc::new(holed.medium())).unwrap();
    assert_eq!(check().damage, all);
}

/// The page of a log of which the header can be read and another line cannot was found again and
/// again: a look, a check and a repair never ended.
#[test]
fn a_log_with_a_line_that_cannot_be_read_is_read_once() {
    let entries = |log: &[u8]| log.chunks(64).skip(1).take_while(|line| line.iter().any(|byte| *byte != 0)).count();
    for (blocks, tail_page) in [(3, false), (80, false), (80, true)] {
        for lost in [1, 2] {
            let holed = Holed::new();
            let volume = holed.mount().unwrap();
            let file = create(&volume, "file").unwrap();
            for block in 0..blocks {
                volume.append(file, &[1 + block; 4096]).unwrap();
            }
            drop(volume);
            let image = holed.ram.image();
            let pages = log_pages(&image, file);
            assert_eq!(pages.len(), if blocks > 60 { 2 } else { 1 });
            let (_, region, at) = pages[usize::from(tail_page)];
            assert!(entries(&image[region][at..at + 4096]) > lost);
            holed.fail(region, (at + 64 * lost) as u64);
            let what = format!("{blocks} blocks, the second page: {tail_page}, slot {lost}");
            let has = |volume: &Volume, medium: &str| {
                volume.take_doubtful();
                let stat = volume.stat(volume.lookup(Ino::ROOT, b"file").unwrap().ino).unwrap();
                assert_eq!(stat.size, 4096 * u64::from(blocks), "{what}: {medium}");
            };
            has(&Volume::look(Box::new(holed.medium()), options(1)).unwrap(), "a look");
            let found = fs::fsck::check(Box::new(holed.medium())).unwrap().damage;
            assert_eq!(found.len(), 1, "{what}: {found:?}");
            let done = fs::fsck::repair(Arc::new(holed.medium())).unwrap();
            assert_eq!((done.kept, done.emptied), (1, 0), "{what}");
            has(&holed.mount().unwrap(), "after a repair");
        }
    }
}

/// One bad line of a region without superblocks was an error of the whole look.
#[test]
fn a_bad_line_does_not_hide_which_region_it_is() {
    let holed = Holed::new();
    let volume = holed.mount().unwrap();
    let kept = create(&volume, "kept").unwrap();
    fs::on_node(1, || create(&volume, "other").unwrap());
    drop(volume);
    for copy in fs::format::superblock::copies(400) {
        holed.ram.write(At { region: 1, offset: copy * 4096 }, &[0; 4096]).unwrap();
    }
    // Pages of logs say it.
    holed.ram.write(At { region: 1, offset: 2 * 4096 + 64 }, &[0xa5; 8]).unwrap();
    holed.fail(1, 3 * 4096);
    fs::fsck::repair(Arc::new(holed.medium())).unwrap();
    let volume = Volume::look(Box::new(holed.medium()), options(1)).unwrap();
    assert_eq!(volume.lookup(Ino::ROOT, b"kept").unwrap().ino, kept);
}
