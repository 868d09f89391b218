//! Damage costs what it covers: what is kept, by damaged line.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fs::format::entry::Entry;
use fs::format::page::Seal;
use fs::{Damage, Ino, NewFile, Volume};

use crate::medium::{Image, Ram};
use crate::model::{Seen, Tree, observe};
use crate::{fresh, log_pages, options};

/// Files of one block in `/dir`: 70 names are two pages of a log.
const SMALL: u8 = 70;
/// Blocks of `/big`, each of its own entry: two pages.
const BIG: u64 = 80;

/// What is left of `/cut`, which was longer, `/over`, of which a block was overwritten, and
/// `/hole`, and what `/taker` has: by first byte. It has blocks that those gave up.
const CHANGED: [u8; 9] = [183, 193, 184, 187, 186, 188, 190, 191, 99];
const TAKEN: std::ops::Range<u8> = 200..220;

/// `/dir` with its files, `/big`, and `/deep/deeper/x`, which has an attribute; and what has been
/// changed since it was made.
fn example() -> (Ram, Tree) {
    let (ram, volume) = fresh(&[400, 400]);
    let make = |parent, name: &str, mode| {
        volume.create(parent, name.as_bytes(), NewFile { mode, ..NewFile::default() }).unwrap().ino
    };
    let (dir, file) = (libc::S_IFDIR | 0o755, libc::S_IFREG | 0o640);
    let names = make(Ino::ROOT, "dir", dir);
    for byte in 1..=SMALL {
        let ino = make(names, &format!("file {byte}"), file);
        volume.append(ino, &[byte; 4096]).unwrap();
    }
    let big = make(Ino::ROOT, "big", file);
    for block in 0..BIG {
        volume.append(big, &[100 + block as u8; 4096]).unwrap();
    }
    let deep = make(Ino::ROOT, "deep", dir);
    let x = make(make(deep, "deeper", dir), "x", file);
    volume.append(x, &[99; 4096]).unwrap();
    volume.set_xattr(x, b"user.a", b"value", fs::SetXattr::Any).unwrap();
    let filled = |name: &str, bytes: std::ops::Range<u8>| {
        let ino = make(Ino::ROOT, name, file);
        bytes.for_each(|byte| _ = volume.append(ino, &[byte; 4096]).unwrap());
        ino
    };
    let old =
        |ino| volume.map(ino).unwrap().into_iter().flat_map(|run| (0..run.count).map(move |i| run.block.offset(i)));
    let (cut, over, hole) = (filled("cut", 180..183), filled("over", 184..187), filled("hole", 188..191));
    let (named, gone) = (filled("old", 191..192), filled("gone", 192..193));
    let freed: BTreeSet<_> = [cut, over, hole, gone].into_iter().flat_map(old).collect();
    volume.truncate(cut, 0).unwrap();
    [183, 193].into_iter().for_each(|byte| _ = volume.append(cut, &[byte; 4096]).unwrap());
    volume.write(over, 4096, &[187; 4096]).unwrap();
    volume.punch_hole(hole, 4096, 4096).unwrap();
    volume.rename((Ino::ROOT, b"old"), (Ino::ROOT, b"new"), fs::Rename::Replace).unwrap();
    volume.unlink(Ino::ROOT, b"gone").unwrap();
    assert_eq!(volume.stat(named).unwrap().attributes.links, 1);
    drop(volume);
    // The first ones that are free come first.
    let volume = mount(&ram);
    let mut taken = Vec::new();
    for byte in TAKEN {
        let taker = crate::create(&volume, &format!("taker {byte}")).unwrap();
        volume.append(taker, &[byte; 4096]).unwrap();
        taken.push(volume.map(taker).unwrap()[0].block);
    }
    let again = taken.iter().filter(|block| freed.contains(block)).count();
    assert!(again > 0, "{again} blocks are used again");
    let tree = observe(&volume);
    drop(volume);
    (ram, tree)
}

/// Lines of logs, up to their tails, and those of inodes: region and offset; whether it is one of a
/// log.
fn lines(image: &Image) -> Vec<(usize, usize, bool)> {
    let mut lines = Vec::new();
    for (region, bytes) in image.iter().enumerate() {
        let superblock = fs::superblock_of(&Ram::new(image.clone()), region).unwrap();
        let table = superblock.inode_at(Ino::new(region, 1)).unwrap().0.index() as usize;
        let data = superblock.data_from(region).unwrap() as usize;
        for (index, block) in bytes.chunks(4096).enumerate() {
            let (is_table, is_log) = ((table..data).contains(&index), index >= data && block[4..8] == *b"HLOG");
            let live = |line: &[u8]| line.iter().any(|byte| *byte != 0);
            let found = block.chunks(64).enumerate().filter(|(_, line)| live(line) && (is_table || is_log));
            lines.extend(found.map(|(slot, _)| (region, index * 4096 + slot * 64, is_log)));
        }
    }
    lines
}

fn mount(ram: &Ram) -> Volume {
    Volume::mount(Box::new(ram.clone()), options(1)).unwrap()
}

fn look(ram: &Ram) -> Volume {
    Volume::look(Box::new(ram.clone()), options(1)).unwrap()
}

fn damage_of(ram: &Ram) -> Vec<Damage> {
    fs::fsck::check(Box::new(ram.clone())).unwrap().damage
}

/// One bit in one entry: 14 of 14 files of 10 MiB were empty after the repair, and of a directory
/// all names were gone.
#[test]
fn one_flipped_bit_costs_nothing() {
    let (ram, tree) = example();
    let image = ram.image();
    let lines = lines(&image);
    let mut named = 0;
    for (i, (region, at, _)) in lines.iter().enumerate() {
        // All bits by turns; what stands at a line's end may be unused.
        let (byte, bit) = (i * 7 % 64, i % 8);
        let mut damaged = image.clone();
        damaged[*region][at + byte] ^= 1 << bit;
        let ram = Ram::new(damaged.clone());
        assert_eq!(observe(&look(&ram)), tree, "region {region}, byte {}: a look", at + byte);
        assert!(ram.image() == damaged, "a look stores nothing");
        let volume = mount(&ram);
        assert_eq!(volume.damage(), []);
        assert_eq!(observe(&volume), tree, "region {region}, byte {}: a mount", at + byte);
        drop(volume);
        let found = damage_of(&ram);
        named += usize::from(!found.is_empty());
        fs::fsck::repair_if(Arc::new(ram.clone()), &mut |losses| panic!("{losses:?}")).unwrap().unwrap();
        assert_eq!(damage_of(&ram), []);
        assert_eq!(observe(&mount(&ram)), tree, "region {region}, byte {}: a repair", at + byte);
    }
    println!("{} lines, one flipped bit in each: nothing is lost, {named} are named", lines.len());
    assert!(lines.len() > 380 && named > 300, "{named} of {}", lines.len());
}

/// File blocks that differ from what they were, by path.
fn differ(tree: &Tree, after: &Tree) -> Vec<(String, usize)> {
    let blocks = |tree: &Tree, path: &String| tree.get(path).map_or_else(Vec::new, |seen| seen.data.clone());
    let count = |path: &String| {
        let (old, new) = (blocks(tree, path), blocks(after, path));
        let at = |data: &[u8], i: usize| data.get(i * 4096..).map(|rest| rest[..rest.len().min(4096)].to_vec());
        (0..old.len().max(new.len()).div_ceil(4096)).filter(|i| at(&old, *i) != at(&new, *i)).count()
    };
    tree.keys().map(|path| (path.clone(), count(path))).filter(|(_, count)| *count > 0).collect()
}

/// What a tree has: names of `/dir`, and different blocks of data.
fn kept(tree: &Tree) -> (usize, BTreeSet<u8>) {
    let names = tree.keys().filter(|path| path.contains("/file ")).count();
    let whole = |block: &&[u8]| block.len() == 4096 && block[0] != 0 && block.iter().all(|byte| *byte == block[0]);
    let blocks = tree.values().flat_map(|seen| seen.data.chunks(4096).filter(whole).map(|block| block[0]));
    (names, blocks.collect())
}

/// A whole line of 64 bytes: no more than the name, or the block, of which it said something.
#[test]
fn a_lost_line_costs_what_it_covers() {
    let (ram, tree) = example();
    let image = ram.image();
    let all = kept(&tree);
    let blocks: BTreeSet<u8> = (1..=SMALL).chain(100..100 + BIG as u8).chain(CHANGED).chain(TAKEN).collect();
    assert_eq!(all, (usize::from(SMALL), blocks));
    let (mut sum, mut most, mut table) = ([0; 3], [0; 3], 0);
    let lines = lines(&image);
    for (region, at, is_log) in &lines {
        let what = format!("region {region}, byte {at}, of a log: {is_log}");
        let mut damaged = image.clone();
        damaged[*region][*at..at + 64].fill(0xa5);
        let ram = Ram::new(damaged);
        let seen = kept(&try_all(&look(&ram)));
        let mut asked = 0;
        let agree = &mut |losses: &fs::fsck::Losses| {
            asked += losses.emptied.len() + losses.lines.len();
            true
        };
        fs::fsck::repair_if(Arc::new(ram.clone()), agree).unwrap().unwrap();
        assert_eq!(damage_of(&ram), [], "{what}");
        let volume = mount(&ram);
        let whole = observe(&volume);
        let (after, changed) = (kept(&whole), differ(&tree, &whole));
        crate::crash::use_and_empty(&volume).unwrap();
        let lost = [all.0 - after.0, all.1.difference(&after.1).count(), all.1.difference(&seen.1).count()];
        // Behind a tail a line says nothing, and so does the rest of a page.
        assert!(asked > 0 || lost[..2] == [0, 0], "{what}: {lost:?} without asking");
        if *is_log {
            assert!(lost[0] <= 1 && lost[1] <= 1, "{what}: {lost:?} names and blocks are lost");
            // A file whose name is lost is elsewhere.
            let changed: Vec<_> = changed.iter().filter(|(path, _)| whole.contains_key(path)).collect();
            assert!(changed.iter().map(|(_, blocks)| blocks).sum::<usize>() <= 1, "{what}: {changed:?} differ");
            for i in 0..3 {
                (sum[i], most[i]) = (sum[i] + lost[i], most[i].max(lost[i]));
            }
        } else {
            // One of the inode table, which cost its inode with all that it had: its log is found.
            assert_eq!((lost, whole == tree), ([0; 3], true), "{what}");
            table += 1;
        }
    }
    println!(
        "{} lines, each lost: of {table} of tables nothing, of those of logs {sum:?} names, blocks, blocks for a look, {most:?} at most",
        lines.len()
    );
}

/// What can be read of a damaged volume, in blocks where a whole file cannot.
fn try_all(volume: &Volume) -> Tree {
    let mut tree = Tree::default();
    walk(volume, Ino::ROOT, "", &mut tree);
    tree
}

fn walk(volume: &Volume, dir: Ino, path: &str, tree: &mut Tree) {
    for name in volume.names(dir, 0, usize::MAX).unwrap_or_default() {
        let (ino, below) = (name.named.ino, format!("{path}/{}", String::from_utf8_lossy(&name.name)));
        let Ok(stat) = volume.stat(ino) else { continue };
        walk(volume, ino, &below, tree);
        let mut data = Vec::new();
        for at in (0..stat.size).step_by(4096) {
            let mut block = [0; 4096];
            if volume.read(ino, at, &mut block).is_ok() {
                data.extend(block);
            }
        }
        tree.insert(below, Seen { mode: 0, links: 0, data, xattrs: BTreeMap::new(), accessed: None });
    }
}

/// The header of the only page of a log: slots behind its tail, of an earlier life of the block,
/// were believed instead; and sequences above 4096 were not tried.
#[test]
fn a_lost_header_of_a_page_with_older_entries_costs_nothing() {
    let (ram, volume) = fresh(&[120, 120]);
    let file = crate::create(&volume, "file").unwrap();
    volume.append(file, &[1; 4096]).unwrap();
    let mut most = 0;
    for round in 0..6000 {
        volume.write(file, 0, &[(1 + round % 200) as u8; 4096]).unwrap();
        volume.clean(file).unwrap();
        if ![0, 9, 5999].contains(&round) {
            continue;
        }
        let image = ram.image();
        let (sequence, region, at) = *log_pages(&image, file).last().unwrap();
        let generation = u32::from_le_bytes(image[region][at + 16..at + 20].try_into().unwrap());
        most = most.max(sequence);
        let own = Seal { ino: file, generation, sequence };
        let is_none = |slot: &usize| Entry::decode(&image[region][at..at + 4096], own, *slot).is_err();
        let tail = (1..64).find(is_none).unwrap();
        for older in [0, 1, 9] {
            let mut image = image.clone();
            image[region][at..at + 64].fill(0xa5);
            for slot in tail..tail + older {
                let seal = Seal { sequence: sequence - 1, ..own };
                image[region][at + slot * 64..][..64].copy_from_slice(&Entry::Size(0).encode(seal, slot, 1));
            }
            let volume = look(&Ram::new(image));
            volume.take_doubtful();
            let mut out = vec![0; 4096];
            let file = volume.lookup(Ino::ROOT, b"file").unwrap();
            assert_eq!((file.size, file.attributes.mode & 0o777), (4096, 0o644), "round {round}, older: {older}");
            volume.read(file.ino, 0, &mut out).unwrap();
            assert_eq!(out, [(1 + round % 200) as u8; 4096], "round {round}, sequence {sequence}, older: {older}");
        }
    }
    assert!(most > 4096, "{most}");
}

/// A directory of which the first line is lost was taken for a file when an attribute came next:
/// all names were lost.
#[test]
fn a_directory_with_an_attribute_and_without_its_first_line_keeps_its_names() {
    for later in [false, true] {
        let (ram, volume) = fresh(&[100, 100]);
        let dir = NewFile { mode: libc::S_IFDIR | 0o755, ..NewFile::default() };
        let dir = volume.create(Ino::ROOT, b"dir", dir).unwrap().ino;
        volume.set_xattr(dir, b"user.a", b"value", fs::SetXattr::Any).unwrap();
        for name in [b"a", b"b"] {
            volume.create(dir, name, NewFile { mode: 0o644, ..NewFile::default() }).unwrap();
        }
        if later {
            let set = fs::SetAttributes { mode: Some(0o711), ..fs::SetAttributes::default() };
            volume.set_attributes(dir, set).unwrap();
        }
        drop(volume);
        let mut image = ram.image();
        let (_, region, at) = log_pages(&image, dir)[0];
        image[region][at + 64..at + 128].fill(0xa5);
        let ram = Ram::new(image);
        let names = |volume: &Volume| volume.names(volume.resolve(b"dir").unwrap(), 0, 9).unwrap().len();
        assert_eq!(names(&look(&ram)), 2, "later attributes: {later}");
        let done = fs::fsck::repair(Arc::new(ram.clone())).unwrap();
        assert_eq!((done.kept, done.emptied, done.found, done.removed), (1, 0, 0, 0));
        assert_eq!(names(&mount(&ram)), 2);
    }
}
