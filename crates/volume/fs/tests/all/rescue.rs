//! Damaged volumes: what can be reached, what can be mended, and what a look changes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use fs::fsck::Repaired;
use fs::{Damage, Error, Ino, Kind, NewFile, Volume};

use crate::crash::{states, with};
use crate::medium::{CrashPoint, Image, Ram, Recorder};
use crate::{REGIONS, formatted, free, fresh, log_pages, options};

/// Directories and files that a test needs: `/important/data`, `/junk/j`, `/junk/sub/deep`, and
/// `/both`, which is `/junk/both` too.
fn example() -> Ram {
    example_on(&REGIONS)
}

fn example_on(regions: &[u64]) -> Ram {
    let (ram, volume) = fresh(regions);
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

/// Where the log of an inode begins: region and offset.
fn log_of(image: &Image, ino: Ino) -> (usize, usize) {
    let (_, region, at) = log_pages(image, ino)[0];
    (region, at)
}

/// Nothing of an inode's log can be read any more.
fn damage(ram: &Ram, ino: Ino) {
    let image: &mut Image = &mut ram.0.lock().unwrap();
    let (region, at) = log_of(image, ino);
    image[region][at..at + 4096].fill(0xa5);
}

fn is_damaged<T: std::fmt::Debug>(found: fs::Result<T>) {
    assert!(matches!(found, Err(Error::Damaged(_))), "{found:?}");
}

/// Looking into a volume gave its regions new numbers and stored a state: a backup did not fit its
/// originals any more.
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

/// One bit in the log of one directory, and a crash: nothing of the volume could be reached any
/// more.
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
        assert_eq!(free(&volume), 0);
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
    assert_eq!(done, Repaired { found: 2, emptied: 1, removed: 0, ..Repaired::default() });
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
    assert_eq!(read(&look(&ram), &format!("/#{important}/data")).unwrap(), [1; 5000], "by its number");
    let unmounted = example();
    mount(&unmounted).unwrap().unmount().unwrap();
    damage(&unmounted, Ino::ROOT);
    assert_eq!(read(&look(&unmounted), &format!("/#{important}/data")).unwrap(), [1; 5000], "also with a checkpoint");
    let done = fs::fsck::repair(Arc::new(ram.clone())).unwrap();
    assert_eq!(done, Repaired { found: 2, emptied: 1, removed: 0, ..Repaired::default() }, "/both is in /junk, too");
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
    assert_eq!(done, Repaired { found: 0, emptied: 1, removed: 0, ..Repaired::default() });
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
    let ram = formatted(&[400]);
    let volume = mount(&ram).unwrap();
    let ino = volume.create_unnamed(Ino::ROOT, NewFile { mode: 0o644, ..NewFile::default() }).unwrap().ino;
    volume.write(ino, 0, &[9; 5000]).unwrap();
    drop(volume);
    damage_journals(&ram);
    let done = fs::fsck::repair(Arc::new(ram.clone())).unwrap();
    assert_eq!(done, Repaired { found: 1, emptied: 0, removed: 0, ..Repaired::default() });
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

/// Damage, and what its repair must keep.
#[derive(Clone)]
struct Case {
    what: &'static str,
    ram: Ram,
    /// Bytes that whole files are filled with.
    kept: Vec<u8>,
    /// What can be read before, by its path.
    before: BTreeMap<String, Vec<u8>>,
    /// Files of which one loses what it has, so that nobody can say what is in them afterwards.
    either: &'static [&'static str],
}

/// A file of [9; 5000] without a name, as a crash leaves it.
fn orphan(ram: &Ram) {
    let volume = mount(ram).unwrap();
    let ino = volume.create_unnamed(Ino::ROOT, NewFile { mode: 0o644, ..NewFile::default() }).unwrap().ino;
    volume.write(ino, 0, &[9; 5000]).unwrap();
}

/// What a crash may leave of moving `/junk/j` to `/important/j`.
fn moved(ram: Ram, fits: impl Fn(&Ram) -> bool + Send + 'static) -> Ram {
    let recorder = Recorder::new(ram.image());
    let volume = Volume::mount(Box::new(recorder.clone()), options(1)).unwrap();
    let dirs = ["/junk", "/important"].map(|path| ino(&volume, path));
    let found = Arc::new(Mutex::new(None));
    let put = Arc::clone(&found);
    recorder.on_fence(Some(Box::new(move |point| {
        let images = states(point).into_iter().map(|change| Ram::new(with(point.durable, &change)));
        if let Some(fitting) = images.into_iter().find(&fits) {
            put.lock().unwrap().get_or_insert(fitting);
        }
    })));
    volume.rename((dirs[0], b"j"), (dirs[1], b"j"), fs::Rename::Replace).unwrap();
    let found = found.lock().unwrap().take();
    found.unwrap()
}

/// The second entry of the log of `to`, which says where its data is, becomes that of `from`; or
/// says that it is in a log.
fn second_owner(ram: &Ram, from: Ino, to: Ino, in_log: Option<Ino>) {
    let image: &mut Image = &mut ram.0.lock().unwrap();
    let ((from_region, from), (region, at)) = (log_of(image, from), log_of(image, to));
    let mut entry = image[from_region][from + 128..][..64].to_vec();
    if let Some(log) = in_log {
        let (log_region, log) = log_of(image, log);
        let block = fs::Block::new(log_region, log as u64 / 4096).raw();
        entry[24..32].copy_from_slice(&block.to_le_bytes());
    }
    image[region][at + 128..][..64].copy_from_slice(&entry);
    crate::damage::reseal(image);
}

/// Several kinds of damage.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |what, kept: &[u8], either, ram: Ram| {
        let mut before = BTreeMap::new();
        readable(&look(&ram), Ino::ROOT, "", &mut before);
        before.retain(|path, _| !path.starts_with("/#")); // what has lost its name gets another one
        cases.push(Case { what, ram, kept: kept.to_vec(), before, either });
    };
    let with_damage = |ram: Ram, paths: &[&str]| {
        let volume = look(&ram);
        let inos: Vec<Ino> = paths.iter().map(|path| ino(&volume, path)).collect();
        inos.iter().for_each(|ino| damage(&ram, *ino));
        ram
    };
    let damaged = |paths: &[&str]| with_damage(example(), paths);
    let flip = |ram: Ram, region: usize, at: usize| {
        ram.0.lock().unwrap()[region][at] ^= 1;
        ram
    };
    let unmounted = || {
        let ram = example();
        mount(&ram).unwrap().unmount().unwrap();
        ram
    };
    let orphaned = |ram: Ram| {
        orphan(&ram);
        ram
    };
    let checkpoint = |ram: Ram| {
        let image = ram.image();
        let last = image[1].chunks(4096).rposition(|block| block[4..8] == *b"HCKP").unwrap();
        flip(ram, 1, last * 4096 + 50)
    };
    let all = &[1, 2, 3, 4];

    add("a directory", all, &[], damaged(&["/junk"]));
    add("a directory in that", all, &[], damaged(&["/junk/sub"]));
    add("both directories", all, &[], damaged(&["/junk", "/junk/sub"]));
    add("the root", all, &[], damaged(&["/"]));
    add("the root and a directory", all, &[], damaged(&["/", "/junk"]));
    add("a file with two names", &[1, 2, 3], &[], damaged(&["/both"]));
    add("a directory and a file in it", &[1, 3, 4], &[], damaged(&["/junk", "/junk/j"]));
    add("a directory, and a file without a name", &[1, 2, 3, 4, 9], &[], with_damage(orphaned(example()), &["/junk"]));
    add("a file without a name", all, &[], orphaned(example()));
    add("the checkpoint", all, &[], checkpoint(unmounted()));
    add("the checkpoint and a directory", all, &[], with_damage(checkpoint(unmounted()), &["/junk"]));
    add("the state", all, &[], flip(unmounted(), 0, 2 * 4096));
    add("the number of the mount", all, &[], flip(unmounted(), 1, 2 * 4096 + 64));
    add("a superblock", all, &[], flip(example(), 1, 5));
    add("the other copy, and a file", &[2, 3, 4], &[], flip(damaged(&["/important/data"]), 0, 4096 + 20));

    // A line of the inode table.
    let ram = example();
    let j = ino(&look(&ram), "/junk/j");
    let (block, line) = fs::superblock_of(&ram, j.region()).unwrap().inode_at(j).unwrap();
    let line = block.index() as usize * 4096 + line as usize;
    ram.0.lock().unwrap()[j.region()][line..line + 64].fill(0);
    add("a name that stands for nothing", &[1, 3, 4], &[], ram);
    add("an inode", &[1, 3, 4], &[], flip(example(), j.region(), line + 9));

    // Something that is neither file nor directory.
    let ram = example();
    let volume = mount(&ram).unwrap();
    let link = NewFile { mode: libc::S_IFLNK | 0o777, target: b"both", ..NewFile::default() };
    let link = volume.create(Ino::ROOT, b"link", link).unwrap().ino;
    drop(volume);
    damage(&ram, link);
    add("a symbolic link", all, &[], ram);

    // Journals: with a move under way, and after one that nothing is left of but the journal.
    let committed = |ram: &Ram| fs::fsck::check(Box::new(ram.clone())).unwrap().journals == 1;
    add("a directory, with a move under way", all, &[], with_damage(moved(example(), committed), &["/important"]));
    let nameless = |ram: &Ram| {
        let ram = Ram::new(ram.image());
        let committed = fs::fsck::check(Box::new(ram.clone())).unwrap().journals == 1;
        damage_journals(&ram);
        let volume = look(&ram);
        committed && ["/junk/j", "/important/j"].iter().all(|path| volume.resolve(path.as_bytes()).is_err())
    };
    for (what, regions) in [("the only journal", &[92][..]), ("both journals", &REGIONS)] {
        let ram = moved(example_on(regions), nameless);
        damage_journals(&ram);
        add(what, all, &[], ram);
    }
    let ram = moved(example(), nameless);
    damage_journals(&ram);
    add("both journals and a directory", all, &[], with_damage(ram, &["/important"]));

    // Blocks with two owners.
    let twice = ["/important/data", "/junk/j", "/junk/sub", "/junk/sub/deep"];
    let twice_of = |paths: [usize; 2], in_log: Option<usize>| {
        let ram = example();
        let volume = look(&ram);
        let inos = twice.map(|path| ino(&volume, path));
        second_owner(&ram, inos[paths[0]], inos[paths[1]], in_log.map(|log| inos[log]));
        ram
    };
    add("two files with the same blocks", &[1, 3, 4], &["/important/data", "/junk/j"], twice_of([0, 1], None));
    add("the other of two files", &[2, 3, 4], &["/important/data", "/junk/j"], twice_of([1, 0], None));
    add("a file in the log of a directory", &[2, 3, 4], &["/important/data"], twice_of([0, 0], Some(2)));
    let ram = twice_of([0, 3], None);
    add(
        "two files, and a directory",
        &[1, 2, 4],
        &["/important/data", "/junk/sub/deep"],
        with_damage(ram, &["/junk/sub"]),
    );
    cases
}

/// The files that can be read by their names.
fn readable(volume: &Volume, dir: Ino, path: &str, found: &mut BTreeMap<String, Vec<u8>>) {
    for name in volume.names(dir, 0, usize::MAX).unwrap_or_default() {
        let below = format!("{path}/{}", String::from_utf8_lossy(&name.name));
        if name.named.kind == Kind::Directory {
            readable(volume, name.named.ino, &below, found);
        } else if let Ok(data) = read(volume, &below) {
            found.insert(below, data);
        }
    }
}

/// A volume after its repair: without damage, and with what it must have.
fn check_repaired(case: &Case, ram: &Ram) -> Result<(), String> {
    let found = fs::fsck::check(Box::new(ram.clone())).map_err(|e| format!("check: {e}"))?;
    if !found.clean || !found.damage.is_empty() || !found.orphans.is_empty() {
        return Err(format!("{found:?}"));
    }
    let volume = mount(ram).map_err(|e| format!("mount: {e}"))?;
    let tree = crate::model::observe(&volume);
    if let Some(byte) = case.kept.iter().find(|byte| !tree.values().any(|seen| seen.data == [**byte; 5000])) {
        return Err(format!("{byte} is lost: {:?}", tree.keys()));
    }
    let same = |path: &str, data: &[u8]| tree.get(path).is_some_and(|seen| seen.data == data);
    match case.before.iter().find(|(path, data)| !same(path, data) && !case.either.contains(&path.as_str())) {
        Some((path, _)) => Err(format!("{path} was readable")),
        None => crate::crash::use_and_empty(&volume),
    }
}

/// Repairs again what a crash in a repair left; in some states somebody mounted it meanwhile, in
/// others it crashes once more.
fn repair_again(case: &Case, image: Image, state: u64) -> Result<(), String> {
    let ram = Ram::new(image);
    if state % 2 == 1
        && let Ok(volume) = mount(&ram)
    {
        let new = NewFile { mode: 0o644, ..NewFile::default() };
        let _ = volume.create(Ino::ROOT, b"new", new).and_then(|new| volume.append(new.ino, &[7; 5000]));
        volume.unmount().map_err(|e| format!("unmount: {e}"))?;
    }
    let crashed = Arc::new(Mutex::new(Vec::new()));
    if state % 16 < 2 {
        let recorder = Recorder::new(ram.image());
        let put = Arc::clone(&crashed);
        recorder.on_fence(Some(Box::new(move |point| put.lock().unwrap().push(point.durable.clone()))));
        fs::fsck::repair(Arc::new(recorder)).map_err(|e| format!("second repair: {e}"))?;
    }
    crashed.lock().unwrap().push(ram.image());
    for image in crashed.lock().unwrap().drain(..) {
        let ram = Ram::new(image);
        fs::fsck::repair(Arc::new(ram.clone())).map_err(|e| format!("repair: {e}"))?;
        check_repaired(case, &ram)?;
    }
    Ok(())
}

/// Crashes at every fence of a repair: how many states there are, and what is wrong with some.
fn crashes(case: &Case) -> (u64, Vec<String>) {
    let recorder = Recorder::new(case.ram.image());
    let found = Arc::new(Mutex::new((0, Vec::new())));
    let (put, crashed) = (Arc::clone(&found), case.clone());
    recorder.on_fence(Some(Box::new(move |point: &CrashPoint<'_>| {
        let (count, failures) = &mut *put.lock().unwrap();
        for change in states(point) {
            failures.extend(repair_again(&crashed, with(point.durable, &change), *count).err());
            *count += 1;
        }
    })));
    fs::fsck::repair(Arc::new(recorder.clone())).unwrap();
    recorder.on_fence(None);
    let (states, mut failures) = std::mem::take(&mut *found.lock().unwrap());
    // Durable on return.
    recorder.look(|point| failures.extend(check_repaired(case, &Ram::new(point.durable.clone())).err()));
    (states, failures)
}

/// A crash in a repair must not make orphans of what it had not named yet, nor of what a damaged
/// journal may have been about.
#[test]
fn a_repair_survives_a_crash_at_every_fence() {
    let (mut all, mut failed, mut some) = (0, 0, Vec::new());
    for case in cases() {
        let (_, damage, orphans) = report(&case.ram);
        assert!(!damage.is_empty() || orphans > 0, "{}", case.what);
        let (states, failures) = crashes(&case);
        println!("{}: {states} crash states of a repair, {} failures", case.what, failures.len());
        assert!(states > 10, "{states}");
        (all, failed) = (all + states, failed + failures.len());
        some.extend(failures.into_iter().take(2).map(|why| format!("{}: {why}", case.what)));
    }
    println!("{all} crash states of repairs");
    assert!(some.is_empty(), "{failed} failures:\n{}", some.join("\n"));
}

/// An unmount wrote a checkpoint without the blocks of what had been removed: they never came back.
#[test]
fn what_a_removed_damaged_file_or_directory_held_is_free_at_the_next_mount() {
    for (path, dir, name, held) in [("/junk/j", "/junk", "j", 3), ("/junk/sub", "/junk", "sub", 4)] {
        let ram = example();
        let volume = mount(&ram).unwrap();
        let (damaged, parent) = (ino(&volume, path), ino(&volume, dir));
        volume.unmount().unwrap();
        damage(&ram, damaged);
        let volume = mount(&ram).unwrap();
        assert_eq!(volume.damage(), []);
        let before = free(&volume);
        match name {
            "sub" => volume.rmdir(parent, name.as_bytes()).unwrap(),
            _ => volume.unlink(parent, name.as_bytes()).unwrap(),
        }
        volume.unmount().unwrap();
        for _ in 0..2 {
            let volume = mount(&ram).unwrap();
            assert_eq!(volume.damage(), []);
            assert_eq!(free(&volume), before + held, "{path}: its log and data, and those below it");
            volume.unmount().unwrap();
            assert_eq!(report(&ram), (true, vec![], 0));
        }
    }
}

/// A file with a second name in a damaged directory was refused by its first one, too.
#[test]
fn a_file_that_a_damaged_directory_names_too_can_be_used() {
    let ram = example();
    let junk = ino(&look(&ram), "/junk");
    damage(&ram, junk);
    let volume = mount(&ram).unwrap();
    let both = ino(&volume, "/both");
    let fewer = Damage::Inode { ino: both, what: "it has fewer names than it says" };
    assert!(volume.damage().contains(&fewer), "{:?}", volume.damage());
    assert_eq!(read(&volume, "/both").unwrap(), [4; 5000]);
    // The directory may name it still.
    volume.unlink(Ino::ROOT, b"both").unwrap();
    volume.unmount().unwrap();
    fs::fsck::repair(Arc::new(ram.clone())).unwrap();
    assert_eq!(report(&ram), (true, vec![], 0));
    let found = read(&mount(&ram).unwrap(), &format!("/lost+found/#{both}"));
    assert_eq!(found.unwrap(), [4; 5000]);
}

/// The volume was mounted, and each use of its root refused.
#[test]
fn a_root_that_shares_a_block_is_not_mounted_for_changes() {
    let ram = example();
    let data = ino(&look(&ram), "/important/data");
    second_owner(&ram, data, data, Some(Ino::ROOT));
    is_damaged(mount(&ram).map(drop));
    assert_eq!(read(&look(&ram), "/junk/j").unwrap(), [2; 5000]);
    let done = fs::fsck::repair(Arc::new(ram.clone())).unwrap();
    assert_eq!(done, Repaired { found: 0, emptied: 1, removed: 0, ..Repaired::default() }, "the page is the root's");
    assert_eq!(report(&ram), (true, vec![], 0));
    assert_eq!(read(&mount(&ram).unwrap(), "/junk/j").unwrap(), [2; 5000]);
}
