//! Damaged volumes: what can be reached, what can be mended, and what a look changes.

use std::sync::{Arc, Mutex};

use fs::fsck::Repaired;
use fs::{Damage, Error, Ino, Kind, NewFile, Volume};

use crate::crash::{states, with};
use crate::medium::{CrashPoint, Image, Ram, Recorder, blank};
use crate::{format, options};

/// Directories and files that a test needs: `/important/data`, `/junk/j`, `/junk/sub/deep`, and `/both`, which is `/junk/both` too.
fn example() -> Ram {
    let ram = Ram::new(blank(&[200, 200]));
    format(Box::new(ram.clone()), 1);
    let volume = Volume::mount(Box::new(ram.clone()), options(1)).unwrap();
    let new = NewFile { mode: 0o644, ..NewFile::default() };
    let dir = |parent, name: &[u8]| {
        let mode = libc::S_IFDIR | 0o755;
        volume.create(parent, name, NewFile { mode, ..NewFile::default() }).unwrap().ino
    };
    let file = |parent, name: &[u8], byte| {
        let ino = volume.create(parent, name, new).unwrap().ino;
        volume.write(ino, 0, &[byte; 5000]).unwrap();
        ino
    };
    let (important, junk) = (dir(Ino::ROOT, b"important"), dir(Ino::ROOT, b"junk"));
    file(important, b"data", 1);
    file(junk, b"j", 2);
    file(dir(junk, b"sub"), b"deep", 3);
    let both = file(Ino::ROOT, b"both", 4);
    volume.link(both, junk, b"both").unwrap();
    ram
}

fn mount(ram: &Ram) -> fs::Result<Volume> {
    Volume::mount(Box::new(ram.clone()), options(1))
}

fn look(ram: &Ram) -> Volume {
    Volume::look(Box::new(ram.clone()), options(1)).unwrap()
}

fn ino(volume: &Volume, path: &str) -> Ino {
    volume.resolve(path.as_bytes()).unwrap()
}

fn read(volume: &Volume, path: &str) -> fs::Result<Vec<u8>> {
    let mut out = vec![0; 10_000];
    let len = volume.read(volume.resolve(path.as_bytes())?, 0, &mut out)?;
    out.truncate(len);
    Ok(out)
}

/// Flips a bit of the first entry of an inode's log.
fn damage(ram: &Ram, ino: Ino) {
    let image: &mut Image = &mut ram.0.lock().unwrap();
    let page = |block: &[u8]| block[4..8] == *b"HLOG" && block[8..16] == ino.raw().to_le_bytes();
    let places = image.iter().enumerate();
    let mut found = places.filter_map(|(region, bytes)| Some((region, bytes.chunks(4096).position(page)? * 4096)));
    let (region, at) = found.next_back().unwrap();
    image[region][at + 84] ^= 1;
}

fn is_damaged<T: std::fmt::Debug>(found: fs::Result<T>) {
    assert!(matches!(found, Err(Error::Damaged(_))), "{found:?}");
}

/// Looking into a volume gave its regions new numbers and stored a state: a backup did not fit its originals any more.
#[test]
fn looking_changes_nothing() {
    for unmounted in [false, true] {
        let ram = example();
        if unmounted {
            mount(&ram).unwrap().unmount().unwrap();
        } else {
            // A file without a name that recovery frees.
            let volume = mount(&ram).unwrap();
            volume.create_unnamed(Ino::ROOT, NewFile { mode: 0o644, ..NewFile::default() }).unwrap();
        }
        let before = ram.image();
        let volume = look(&ram);
        assert_eq!(volume.damage(), []);
        assert_eq!(read(&volume, "/important/data").unwrap(), [1; 5000]);
        let new = NewFile { mode: 0o644, ..NewFile::default() };
        let refused = [
            volume.create(Ino::ROOT, b"new", new).map(drop),
            volume.write(ino(&volume, "/both"), 0, b"new"),
            volume.truncate(ino(&volume, "/both"), 1),
            volume.unlink(Ino::ROOT, b"both"),
        ];
        assert!(refused.iter().all(|refused| matches!(refused, Err(Error::ReadOnly))), "{refused:?}");
        assert!(!volume.in_doubt());
        volume.unmount().unwrap();
        fs::fsck::check(Box::new(ram.clone())).unwrap();
        assert!(ram.image() == before, "unmounted: {unmounted}");
    }
}

/// One bit in the log of one directory, and a crash: nothing of the volume could be reached any more.
#[test]
fn a_damaged_directory_keeps_nobody_from_the_rest() {
    let ram = example();
    let junk = ino(&look(&ram), "/junk");
    damage(&ram, junk);
    let before = ram.image();
    let volume = look(&ram);
    assert!(!volume.damage().is_empty());
    assert_eq!(read(&volume, "/important/data").unwrap(), [1; 5000]);
    assert_eq!(read(&volume, "/both").unwrap(), [4; 5000]);
    is_damaged(read(&volume, "/junk/j"));
    drop(volume);
    assert!(ram.image() == before, "it was stored to");

    // Also for changes: what is below the directory keeps its blocks, as long as nobody repairs it.
    for round in 0..2 {
        let volume = mount(&ram).unwrap();
        assert!(!volume.damage().is_empty());
        assert_eq!(volume.usage().regions.iter().map(|region| region.free_blocks).sum::<u64>(), 0);
        let data = ino(&volume, "/important/data");
        assert_eq!(volume.stat(data).unwrap().attributes.mode & 0o777, if round == 0 { 0o644 } else { 0o600 });
        volume.set_attributes(data, fs::SetAttributes { mode: Some(0o600), ..Default::default() }).unwrap();
        let full = volume.write(data, 0, &[5; 5000]);
        assert!(matches!(full, Err(Error::NoSpace)), "{full:?}");
        is_damaged(read(&volume, "/junk/j"));
        volume.unmount().unwrap();
    }
    let report = fs::fsck::check(Box::new(ram.clone())).unwrap();
    assert_eq!(report.orphans.len(), 3, "{report:?}");
}

fn report(ram: &Ram) -> (bool, Vec<Damage>, usize) {
    let report = fs::fsck::check(Box::new(ram.clone())).unwrap();
    (report.clean, report.damage, report.orphans.len())
}

/// What a damaged directory named had no other way back, and the repair changed nothing.
#[test]
fn a_repair_puts_what_lost_its_name_into_lost_and_found() {
    let ram = example();
    let volume = look(&ram);
    let (junk, j, sub) = (ino(&volume, "/junk"), ino(&volume, "/junk/j"), ino(&volume, "/junk/sub"));
    drop(volume);
    damage(&ram, junk);
    let done = fs::fsck::repair(Arc::new(ram.clone())).unwrap();
    assert_eq!(done, Repaired { found: 2, emptied: 1, removed: 0 });
    assert_eq!(report(&ram), (true, vec![], 0));
    let volume = mount(&ram).unwrap();
    assert_eq!(read(&volume, &format!("/lost+found/#{j}")).unwrap(), [2; 5000]);
    assert_eq!(read(&volume, &format!("/lost+found/#{sub}/deep")).unwrap(), [3; 5000]);
    let parent = volume.lookup(ino(&volume, &format!("/lost+found/#{sub}")), b"..").unwrap().ino;
    assert_eq!(parent, ino(&volume, "/lost+found"));
    assert_eq!(volume.names(ino(&volume, "/junk"), 0, 10).unwrap(), []);
    assert_eq!(volume.stat(ino(&volume, "/both")).unwrap().attributes.links, 1);
    crate::crash::use_and_empty(&volume).unwrap();
}

#[test]
fn a_damaged_root_is_made_anew() {
    let ram = example();
    let important = ino(&look(&ram), "/important");
    damage(&ram, Ino::ROOT);
    is_damaged(mount(&ram).map(drop));
    is_damaged(look(&ram).resolve(b"/important"));
    let done = fs::fsck::repair(Arc::new(ram.clone())).unwrap();
    assert_eq!(done, Repaired { found: 2, emptied: 1, removed: 0 }, "/both is in /junk, too");
    assert_eq!(report(&ram), (true, vec![], 0));
    let volume = mount(&ram).unwrap();
    assert_eq!(read(&volume, &format!("/lost+found/#{important}/data")).unwrap(), [1; 5000]);
    crate::crash::use_and_empty(&volume).unwrap();
}

/// A damaged file stayed one for ever: no later check passed.
#[test]
fn a_repair_ends_the_damage_of_a_file() {
    let ram = example();
    let both = ino(&look(&ram), "/both");
    damage(&ram, both);
    let volume = mount(&ram).unwrap();
    assert_eq!(read(&volume, "/important/data").unwrap(), [1; 5000]);
    is_damaged(volume.stat(both));
    drop(volume);
    let done = fs::fsck::repair(Arc::new(ram.clone())).unwrap();
    assert_eq!(done, Repaired { found: 0, emptied: 1, removed: 0 });
    assert_eq!(report(&ram), (true, vec![], 0));
    let volume = mount(&ram).unwrap();
    let stat = volume.stat(both).unwrap();
    assert_eq!((stat.kind, stat.size, stat.attributes.links), (Kind::File, 0, 2));
    crate::crash::use_and_empty(&volume).unwrap();
}

/// A name that leads to an inode that is free could not be removed.
#[test]
fn a_name_that_stands_for_nothing_goes() {
    let ram = example();
    let j = ino(&look(&ram), "/junk/j");
    let superblock = fs::superblock_of(&ram, j.region()).unwrap();
    let (block, line) = superblock.inode_at(j).unwrap();
    let at = block.index() as usize * 4096 + line as usize;
    ram.0.lock().unwrap()[j.region()][at..at + 64].fill(0);
    let volume = mount(&ram).unwrap();
    is_damaged(read(&volume, "/junk/j"));
    volume.unlink(ino(&volume, "/junk"), b"j").unwrap();
    drop(volume);
    let ram = example();
    ram.0.lock().unwrap()[j.region()][at..at + 64].fill(0);
    fs::fsck::repair(Arc::new(ram.clone())).unwrap();
    let state = report(&ram);
    assert_eq!(state, (true, vec![], 0));
    assert!(matches!(mount(&ram).unwrap().resolve(b"/junk/j"), Err(Error::NotFound)));
}

/// Flips a bit of each journal.
fn damage_journals(ram: &Ram) {
    let superblock = fs::superblock_of(ram, 0).unwrap();
    for block in (0..superblock.regions.len()).flat_map(|region| superblock.journals_of(region)) {
        ram.0.lock().unwrap()[block.region()][block.index() as usize * 4096] ^= 1;
    }
}

/// Looking needs no journal, and was refused where all were damaged.
#[test]
fn a_volume_without_a_whole_journal_can_be_looked_at() {
    let ram = example();
    damage_journals(&ram);
    is_damaged(mount(&ram).map(drop));
    let volume = look(&ram);
    assert_eq!(read(&volume, "/important/data").unwrap(), [1; 5000]);
    let refused = volume.rename((Ino::ROOT, b"both"), (ino(&volume, "/important"), b"both"), fs::Rename::Replace);
    assert!(matches!(refused, Err(Error::ReadOnly)), "{refused:?}");
}

/// A rename under way may have been in the only journal: what has no name then was freed.
#[test]
fn a_repair_of_the_only_journal_keeps_what_has_no_name() {
    let ram = Ram::new(blank(&[400]));
    format(Box::new(ram.clone()), 1);
    let volume = mount(&ram).unwrap();
    let ino = volume.create_unnamed(Ino::ROOT, NewFile { mode: 0o644, ..NewFile::default() }).unwrap().ino;
    volume.write(ino, 0, &[9; 5000]).unwrap();
    drop(volume);
    damage_journals(&ram);
    let done = fs::fsck::repair(Arc::new(ram.clone())).unwrap();
    assert_eq!(done, Repaired { found: 1, emptied: 0, removed: 0 });
    assert_eq!(read(&mount(&ram).unwrap(), &format!("/lost+found/#{ino}")).unwrap(), [9; 5000]);
}

/// The repair failed each time, as the name was there and led nowhere.
#[test]
fn a_lost_and_found_that_stands_for_nothing_stops_no_repair() {
    let ram = example();
    let volume = mount(&ram).unwrap();
    let place = volume.create(Ino::ROOT, b"lost+found", NewFile { mode: 0o40700, ..NewFile::default() }).unwrap().ino;
    let (junk, j) = (ino(&volume, "/junk"), ino(&volume, "/junk/j"));
    drop(volume);
    let superblock = fs::superblock_of(&ram, 0).unwrap();
    let (block, line) = superblock.inode_at(place).unwrap();
    let at = block.index() as usize * 4096 + line as usize;
    ram.0.lock().unwrap()[place.region()][at..at + 64].fill(0);
    damage(&ram, junk);
    fs::fsck::repair(Arc::new(ram.clone())).unwrap();
    assert_eq!(report(&ram), (true, vec![], 0));
    let volume = mount(&ram).unwrap();
    assert_eq!(read(&volume, &format!("/lost+found.1/#{j}")).unwrap(), [2; 5000]);
}

/// A crash in a repair must not make orphans of what it had not named yet.
#[test]
fn a_repair_survives_a_crash_at_every_fence() {
    for damaged in ["/junk", "/", "/both"] {
        let ram = example();
        let lost = ino(&look(&ram), damaged);
        damage(&ram, lost);
        let recorder = Recorder::new(ram.image());
        let checked = Arc::new(Mutex::new(0));
        let count = Arc::clone(&checked);
        let check = move |point: &CrashPoint<'_>| {
            for change in states(point) {
                let ram = Ram::new(with(point.durable, &change));
                fs::fsck::repair(Arc::new(ram.clone())).unwrap();
                assert_eq!(report(&ram), (true, vec![], 0), "{damaged}");
                let tree = crate::model::observe(&mount(&ram).unwrap());
                let kept = |byte: &u8| damaged != "/both" || *byte != 4;
                for byte in (1..=4).filter(kept) {
                    assert!(
                        tree.values().any(|seen| seen.data == [byte; 5000]),
                        "{damaged}: {byte}: {:?}",
                        tree.keys()
                    );
                }
                *count.lock().unwrap() += 1;
            }
        };
        recorder.on_fence(Some(Box::new(check)));
        fs::fsck::repair(Arc::new(recorder.clone())).unwrap();
        recorder.on_fence(None);
        let checked = *checked.lock().unwrap();
        println!("{damaged}: {checked} crash states of a repair");
        assert!(checked > 10, "{checked}");
    }
}
