//! Damage costs what it covers: what is kept, by damaged line.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fs::{Damage, Ino, NewFile, Volume};

use crate::medium::{Image, Ram};
use crate::model::{Seen, Tree, observe};
use crate::{fresh, options};

/// Files of one block in `/dir`: 70 names are two pages of a log.
const SMALL: u8 = 70;
/// Blocks of `/big`, each of its own entry: two pages.
const BIG: u64 = 80;

/// `/dir` with its files, `/big`, and `/deep/deeper/x`, which has an attribute.
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
    assert_eq!((all.0, all.1.len()), (usize::from(SMALL), usize::from(SMALL) + BIG as usize + 1));
    let (mut sum, mut most) = ([0; 3], [0; 3]);
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
        let after = kept(&observe(&volume));
        crate::crash::use_and_empty(&volume).unwrap();
        let lost = [all.0 - after.0, all.1.len() - after.1.len(), all.1.len().saturating_sub(seen.1.len())];
        // Behind a tail a line says nothing, and so does the rest of a page.
        assert!(asked > 0 || lost[..2] == [0, 0], "{what}: {lost:?} without asking");
        if *is_log {
            assert!(lost[0] <= 1 && lost[1] <= 1, "{what}: {lost:?} names and blocks are lost");
            for i in 0..3 {
                (sum[i], most[i]) = (sum[i] + lost[i], most[i].max(lost[i]));
            }
        }
    }
    println!(
        "{} lines, each lost: of those of logs {sum:?} names, blocks, blocks for a look, {most:?} at most",
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
