//! Damaged media: an error or the right answer, never a panic.
//!
//! Random damage alone would only test the checksums: half of the images get right ones again
//! ([`reseal`]), so that every check behind them sees impossible values. Such an image may also be
//! a volume. So if `fsck` finds nothing, everything must work.
//!
//! HOMENODE_FS_IMAGES sets how many random images are tried (default 3,000), HOMENODE_FS_SEED which
//! ones; HOMENODE_FS_FIRST leaves out those before one, and HOMENODE_FS_MINUTES goes on for so many
//! minutes of processor time instead.

use std::sync::Arc;

use fs::Volume;
use fs::format::superblock::Superblock;
use fs::format::word::{Field, Owner, seal};
use fs::format::{Block, Ino};
use rand::rngs::ChaCha8Rng as StdRng;
use rand::{RngExt, SeedableRng};

use crate::medium::{Image, Ram, blank};
use crate::model::{Model, Tree, try_observe};
use crate::operations::Op;
use crate::{REGIONS, TWICE, create, format_with, fresh, log_pages, options, settled, sound};

/// A volume with some of everything, unmounted or not.
fn example(unmounted: bool) -> (Image, Tree) {
    example_with(unmounted, false)
}

fn example_with(unmounted: bool, data_checksums: bool) -> (Image, Tree) {
    let ram = Ram::new(blank(&REGIONS));
    format_with(Box::new(ram.clone()), 1, data_checksums);
    example_on(ram, unmounted)
}

/// The same with logs twice.
fn example_twice(unmounted: bool) -> (Image, Tree) {
    let (mut image, tree) = example_on(crate::twice().0, unmounted);
    // Which journal was used is a matter of the processor.
    let superblock = fs::superblock_of(&Ram::new(image.clone()), 0).unwrap();
    for journal in (0..2).flat_map(|region| superblock.journals_of(region)) {
        for at in crate::twins::both(&superblock, journal) {
            let block = &mut image[at.region][at.offset as usize..][..4096];
            block.fill(0);
            block[..8].copy_from_slice(&fs::format::journal::ended_word(journal).to_le_bytes());
        }
    }
    (image, tree)
}

fn example_on(ram: Ram, unmounted: bool) -> (Image, Tree) {
    let volume = Volume::mount(Box::new(ram.clone()), options(1)).unwrap();
    let mut model = Model::new();
    let s = String::from;
    let ops = [
        Op::Create(s("/a")),
        Op::Write(s("/a"), 0, 9000, 1),
        Op::Write(s("/a"), 4096, 100, 1),
        Op::Mkdir(s("/d")),
        Op::Link(s("/a"), s("/d/l")),
        Op::Symlink(s("/s"), s("a")),
        Op::Allocate(s("/a"), 10_000, 9000, false),
        Op::Punch(s("/a"), 0, 4096),
        Op::Create(s("/d/b")),
        Op::Unlink(s("/d/b")),
        Op::SetXattr(s("/d"), s("user.x"), 100),
        Op::Rename(s("/s"), s("/d/s"), fs::Rename::Replace),
        Op::Mkdir(s("/e")),
        Op::Mkdir(s("/d/f")),
    ];
    for op in ops {
        assert_eq!(op.on_volume(&volume), op.on_model(&mut model));
    }
    if unmounted {
        volume.unmount().unwrap();
    }
    let mut image = ram.image();
    // The number of its last mount is of the process: every run is to damage the same bytes.
    for (region, bytes) in image.iter_mut().enumerate() {
        let at = Block::new(region, 2).raw();
        let word = seal(Owner { id: at, generation: 0 }, Field::Mount, 0x0123_4567_89aa);
        bytes[2 * 4096 + 64..][..8].copy_from_slice(&word.to_le_bytes());
    }
    (image, model.tree())
}

/// Mounts, looks at everything, changes something if told so, checks. `None`: refused.
fn examine(image: Image, change: bool) -> Option<Tree> {
    let report = fs::fsck::check(Box::new(Ram::new(image.clone())));
    let whole = report.is_ok_and(|report| report.damage.is_empty());
    if change {
        let ram = Ram::new(image.clone());
        if fs::fsck::repair(Arc::new(ram.clone())).is_ok() {
            let report = fs::fsck::check(Box::new(ram.clone())).unwrap();
            let of_data = |damage: &fs::Damage| matches!(damage, fs::Damage::Data { .. });
            assert!(report.clean && report.orphans.is_empty() && report.damage.iter().all(of_data), "{report:?}");
            let volume = Volume::mount(Box::new(ram), options(1)).unwrap();
            assert!(!report.damage.is_empty() || try_observe(&volume).is_ok());
            let emptied = crate::crash::use_and_empty(&volume);
            assert!(!report.damage.is_empty() || emptied.is_ok(), "{emptied:?}");
        }
        let ram = Ram::new(image.clone());
        let looked = Volume::look(Box::new(ram.clone()), options(1)).map(|volume| try_observe(&volume));
        assert!(
            !whole || matches!(looked, Ok(Ok(_)) | Err(fs::Error::NotAVolume(_))),
            "fsck found nothing: {looked:?}"
        );
        assert!(ram.image() == image, "a look changed something");
    }
    let ram = Ram::new(image);
    let found = Volume::mount(Box::new(ram.clone()), options(1));
    let damaged = found.as_ref().is_ok_and(|volume| !volume.damage().is_empty());
    assert!(!whole || !damaged, "fsck found nothing");
    let (tree, volume) = match found.map(|volume| (try_observe(&volume), volume)) {
        Ok((Ok(tree), volume)) => (tree, volume),
        Ok((Err(_), volume)) if damaged => (Tree::default(), volume),
        Ok((Err(e), _)) => {
            assert!(!whole, "fsck found nothing: {e}");
            return None;
        }
        // Not damage: a feature of a later version.
        Err(fs::Error::NotAVolume(_)) => return None,
        Err(e) => {
            assert!(!whole, "fsck found nothing: {e}");
            return None;
        }
    };
    if change {
        // On a damaged volume that could be mounted, changes may fail, and that is all.
        if let (Ok(d), Ok(e)) = (volume.resolve(b"d"), volume.resolve(b"e")) {
            let _ = volume.rename((d, b"f"), (e, b"f"), fs::Rename::Replace);
        }
        let emptied = crate::crash::use_and_empty(&volume);
        assert!(!whole || emptied.is_ok(), "fsck found nothing: {emptied:?}");
        let unmounted = volume.unmount();
        assert!(!whole || unmounted.is_ok(), "fsck found nothing: {unmounted:?}");
        if whole {
            settled(Box::new(ram));
        }
    }
    (!damaged).then_some(tree)
}

/// Gives everything that has a checksum the right one for what it says now.
pub fn reseal(image: &mut Image) {
    reseal_with(image, &|region, index| (region, index));
}

/// The same; `first` says of which block one is the twin.
fn reseal_with(image: &mut Image, first: &dyn Fn(usize, usize) -> (usize, usize)) {
    let get = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let put = |bytes: &mut [u8], at: usize, crc: u32| bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    let word = |bytes: &mut [u8], at: usize, id: u64, generation: u32, field| {
        let payload = get(bytes, at) & ((1 << 48) - 1);
        let word = if payload == 0 { 0 } else { seal(Owner { id, generation }, field, payload) };
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    };
    let blocks: Vec<_> = image.iter().map(|bytes| bytes.len() / 4096).collect();
    for (region, index) in blocks.into_iter().enumerate().flat_map(|(r, blocks)| (0..blocks).map(move |i| (r, i))) {
        let block = &mut image[region][index * 4096..][..4096];
        let (region, index) = first(region, index);
        let at = Block::new(region, index as u64).raw();
        match index {
            0 | 1 => {
                put(block, 12, 0);
                let crc = crc32c::crc32c(block);
                put(block, 12, crc);
            }
            2 => {
                word(block, 0, 2, 0, Field::State);
                word(block, 64, at, 0, Field::Mount);
            }
            3..7 => block.chunks_mut(256).for_each(|name| put(name, 0, crc32c::crc32c(&name[4..]))),
            7 => {
                let count = (block[0] as usize).min(126);
                let crc = u64::from(crc32c::crc32c(&block[64..64 + 32 * count]));
                let commit = if count == 0 { 0 } else { crc << 8 | count as u64 };
                block[..8].copy_from_slice(&commit.to_le_bytes());
                word(block, 0, at, 0, Field::Journal);
            }
            8 => {
                for (slot, line) in block.chunks_mut(64).enumerate() {
                    let (ino, generation) = (Ino::new(region, slot as u32).raw(), get(line, 0) as u32);
                    word(line, 0, ino, 0, Field::State);
                    word(line, 8, ino, generation, Field::Head);
                    word(line, 16, ino, generation, Field::Tail);
                }
            }
            _ if block[4..8] == *b"HCKP" => put(block, 0, crc32c::crc32c(&block[4..])),
            _ if block[4..8] == *b"HLOG" => {
                put(block, 0, crc32c::crc32c(&block[4..32]));
                word(block, 32, at, get(block, 16) as u32, Field::Next);
                let whose: Vec<u8> = block[8..24].to_vec();
                let mut slot = 1;
                while slot < 64 {
                    let slots = usize::from(block[slot * 64 + 6]).clamp(1, 64 - slot);
                    let seal = crc32c::crc32c_append(crc32c::crc32c(&whose), &(slot as u32).to_le_bytes());
                    let entry = &mut block[slot * 64..][..slots * 64];
                    put(entry, 0, crc32c::crc32c_append(seal, &entry[4..]));
                    slot += slots;
                }
            }
            _ => {}
        }
    }
}

/// Offsets of all bytes that are not file data and not zero.
fn metadata(image: &Image) -> Vec<(usize, usize)> {
    let blocks = image.iter().enumerate().flat_map(|(region, bytes)| {
        bytes.chunks(4096).enumerate().filter_map(move |(index, block)| {
            let log = block[4..8] == *b"HLOG" || block[4..8] == *b"HCKP";
            // The twins of journals and tables come first behind the log pages.
            let twin = image.iter().map(|bytes| bytes.len() as u64 / 4096).eq(TWICE) && index < 40;
            (index < 10 || log || twin).then_some((region, index * 4096, block))
        })
    });
    blocks.flat_map(|(region, at, block)| (0..4096).filter(|i| block[*i] != 0).map(move |i| (region, at + i))).collect()
}

#[test]
fn every_byte_of_metadata_is_checked() {
    for unmounted in [false, true] {
        every_byte(unmounted);
    }
}

fn every_byte(unmounted: bool) {
    let (image, tree) = example(unmounted);
    let bytes = metadata(&image);
    let (mut refused, mut harmless) = (0, 0);
    for (region, at) in bytes {
        let mut damaged = image.clone();
        damaged[region][at] ^= 0x5b;
        match examine(damaged, false) {
            None => refused += 1,
            // Second copies, records of a finished journal, what is left behind a tail, free
            // inodes.
            Some(found) => {
                assert!(found == tree, "region {region}, byte {at}: another tree");
                harmless += 1;
            }
        }
    }
    println!("{refused} damaged bytes are found, {harmless} change nothing");
    assert!(refused > 450, "{refused}");
}

/// Damages one thing.
fn damage(image: &mut Image, bytes: &[(usize, usize)], rng: &mut StdRng) {
    let any = |rng: &mut StdRng| bytes[rng.random_range(0..bytes.len())];
    let ((region, at), from) = (any(rng), any(rng));
    match rng.random_range(0..7) {
        0 => image[region][at] = rng.random(),
        1 => image[region][at] = image[region][at].wrapping_add(if rng.random() { 1 } else { 255 }),
        2 => image[region][at] ^= 1 << rng.random_range(0..8),
        3 => image[region][at / 8 * 8..][..8].fill(if rng.random() { 0xff } else { 0 }),
        // A word, line or block that belongs elsewhere.
        way => {
            let len = [8, 64, 4096][way - 4];
            let copy: Vec<u8> = image[from.0][from.1 / len * len..][..len].to_vec();
            image[region][at / len * len..][..len].copy_from_slice(&copy);
        }
    }
}

/// Whole minutes of processor time that this process has used.
fn cpu_minutes() -> u64 {
    rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime).tv_sec as u64 / 60
}

#[test]
fn random_damage_never_panics() {
    let examples = [(false, false), (true, false), (false, true), (true, true)];
    damage_at_random(examples.map(|(unmounted, data_checksums)| example_with(unmounted, data_checksums).0), reseal);
}

#[test]
fn random_damage_of_logs_that_are_kept_twice_never_panics() {
    let examples = [false, true].map(|unmounted| example_twice(unmounted).0);
    let superblock = fs::superblock_of(&Ram::new(examples[0].clone()), 0).unwrap();
    damage_at_random(examples, |image| reseal_twice(image, &superblock));
}

fn reseal_twice(image: &mut Image, superblock: &Superblock) {
    let first = |region, index| {
        let of = |from| superblock.twin(from).map(|(area, other, twin)| (from, area, other, twin));
        let twin = (0..2).filter_map(of).find(|(_, area, other, twin)| {
            *other == region && (*twin..*twin + area.end - area.start).contains(&(index as u64))
        });
        twin.map_or((region, index), |(from, area, _, twin)| (from, (index as u64 - twin + area.start) as usize))
    };
    reseal_with(image, &first);
}

fn damage_at_random<const N: usize>(examples: [Image; N], reseal: impl Fn(&mut Image)) {
    let setting = |name: &str, default| std::env::var(name).map_or(default, |n| n.parse().unwrap());
    let images = setting("HOMENODE_FS_IMAGES", 3000);
    let seed = setting("HOMENODE_FS_SEED", 1);
    let examples = examples.map(|image| {
        let bytes = metadata(&image);
        (image, bytes)
    });
    let (mut done, mut mounted, mut resealed) = (0, 0, 0);
    let first = setting("HOMENODE_FS_FIRST", 0);
    let minutes = setting("HOMENODE_FS_MINUTES", 0);
    let more = |i: u64| if minutes > 0 { cpu_minutes() < minutes } else { i < first + images };
    for i in (first..).take_while(|i| more(*i)) {
        // Each image has a seed of its own, so that one that fails can be made again alone.
        let seed = seed << 32 | i;
        let mut rng = StdRng::seed_from_u64(seed);
        let (image, bytes) = &examples[i as usize % examples.len()];
        let mut damaged = image.clone();
        for _ in 0..rng.random_range(1..6) {
            damage(&mut damaged, bytes, &mut rng);
        }
        let sealed = rng.random();
        if sealed {
            reseal(&mut damaged);
        }
        let found = std::panic::catch_unwind(|| examine(damaged, true).is_some());
        let found = found.unwrap_or_else(|_| panic!("image {i}, seed {seed}"));
        (mounted, resealed) = (mounted + u64::from(found), resealed + u64::from(found && sealed));
        done += 1;
        if done % 100_000 == 0 {
            println!("{done} damaged images, {mounted} of them could be mounted, {} minutes", cpu_minutes());
        }
    }
    println!("{done} damaged images, {mounted} of them could be mounted, of these {resealed} with right checksums");
}

/// The checksums of an image that is whole are those that [`reseal`] makes.
#[test]
fn resealing_what_is_whole_changes_no_meaning() {
    for (unmounted, data_checksums) in [(false, false), (true, false), (false, true), (true, true)] {
        let (mut image, tree) = example_with(unmounted, data_checksums);
        reseal(&mut image);
        assert_eq!(examine(image, true), Some(tree));
    }
    for unmounted in [false, true] {
        let (mut image, tree) = example_twice(unmounted);
        let superblock = fs::superblock_of(&Ram::new(image.clone()), 0).unwrap();
        reseal_twice(&mut image, &superblock);
        assert!(fs::twins_agree(Box::new(Ram::new(image.clone()))).unwrap().is_empty());
        assert_eq!(examine(image, true), Some(tree));
    }
}

/// A checkpoint with right checksums that says what no directory says: there were a panic over a
/// used slot behind the end of the inode table, a loop without end over directories that are each
/// other's parents, and names whose places in listings had run out.
#[test]
fn impossible_values_with_right_checksums_are_errors() {
    let (image, _) = example(true);
    let chain =
        |image: &Image| (0..image[1].len() / 4096).rev().find(|i| image[1][i * 4096 + 4..][..4] == *b"HCKP").unwrap();
    let words = chain(&image) * 4096 + 40;
    let word = |image: &Image, at: usize| u64::from_le_bytes(image[1][words + at * 8..][..8].try_into().unwrap());
    let store = |image: &mut Image, at: usize, word: u64| {
        image[1][words + at * 8..][..8].copy_from_slice(&word.to_le_bytes());
    };
    // Region 0: its free runs, its bits.
    let (runs, bits) = (word(&image, 0) as usize, word(&image, 1) as usize);
    assert_eq!(bits, 1);
    let mut beyond = image.clone();
    store(&mut beyond, 2 + 2 * runs, word(&image, 2 + 2 * runs) | 1 << 60);
    reseal(&mut beyond);
    let report = fs::fsck::check(Box::new(Ram::new(beyond.clone()))).unwrap();
    assert_eq!(report.damage, [fs::Damage::Checkpoint("cannot be read")]);
    assert!(examine(beyond, true).is_some(), "a mount reads the logs instead");
    // Each directory is the parent of itself.
    let second = 2 + 2 * runs + bits;
    let parents = second + 2 + 2 * word(&image, second) as usize + word(&image, second + 1) as usize;
    let mut circle = image.clone();
    for dir in 0..word(&image, parents) as usize {
        store(&mut circle, parents + 2 + 2 * dir, word(&image, parents + 1 + 2 * dir));
    }
    reseal(&mut circle);
    let volume = Volume::mount(Box::new(Ram::new(circle.clone())), options(1)).unwrap();
    let place = |path: &[u8]| volume.resolve(path).unwrap();
    let moved = volume.rename((place(b"d"), b"f"), (place(b"e"), b"f"), fs::Rename::Replace);
    assert!(matches!(moved, Err(fs::Error::Damaged(fs::Damage::Inode { .. }))), "{moved:?}");
    let report = fs::fsck::check(Box::new(Ram::new(circle))).unwrap();
    assert_eq!(report.damage.len(), 1, "{report:?}");
}

/// Where the line of a slot is in the first page of a log: region and offset.
fn line_of(image: &Image, ino: Ino, slot: usize) -> (usize, usize) {
    let (_, region, page) = log_pages(image, ino)[0];
    (region, page + slot * 64)
}

/// Whether some of a log is lost for this reason.
fn is_lost(damage: &[fs::Damage], ino: Ino, why: &str) -> bool {
    damage
        .iter()
        .any(|damage| matches!(damage, fs::Damage::Lost { ino: lost, what, .. } if (*lost, *what) == (ino, why)))
}

/// Only files and symbolic links have data. A block that the log of the root directory mapped was
/// the root's for ever: `fsck` found nothing, and nobody could free it.
#[test]
fn data_of_a_directory_or_a_pipe_is_damage() {
    let (ram, volume) = fresh(&REGIONS);
    let make =
        |name: &[u8], mode| volume.create(Ino::ROOT, name, fs::NewFile { mode, ..Default::default() }).unwrap().ino;
    let (file, pipe) = (make(b"f", 0o100_600), make(b"p", 0o010_600));
    // The file gives the block back, so that it is free but for what the others are made to say.
    let s = String::from;
    let ops = [
        Op::Write(s("/f"), 0, 4096, 1),
        Op::Punch(s("/f"), 0, 4096),
        Op::Truncate(s("/f"), 100),
        Op::Chmod(s("/"), 0o700),
        Op::Chmod(s("/p"), 0o700),
    ];
    ops.iter().for_each(|op| op.on_volume(&volume).unwrap());
    volume.unmount().unwrap();
    let image = ram.image();
    let line = |ino, entry| line_of(&image, ino, entry);
    for (entry, kind) in [(2, 3), (3, 4), (4, 5)] {
        let (from, at) = line(file, entry);
        let said = &image[from][at..][..64];
        assert_eq!(said[4], kind, "an extent, a hole, a size");
        for (ino, last) in [(Ino::ROOT, 4), (pipe, 2)] {
            let (region, at) = line(ino, last);
            assert_eq!(image[region][at + 4], 2, "attributes");
            let mut damaged = image.clone();
            damaged[region][at..][..64].copy_from_slice(said);
            reseal(&mut damaged);
            let damage = fs::fsck::check(Box::new(Ram::new(damaged.clone()))).unwrap().damage;
            let what = "data in something that has none";
            assert!(is_lost(&damage, ino, what), "entry {kind} in {ino}: {damage:?}");
            examine(damaged, true);
        }
    }
}

/// The rest of a page that is unused, before the tail: nobody read what was appended behind it, so
/// that all changes of the file were lost at the next mount, those of a repair as well.
#[test]
fn a_tail_in_the_unused_rest_of_a_page_is_damage() {
    let (ram, volume) = fresh(&REGIONS);
    let s = String::from;
    let ops = [Op::Create(s("/a")), Op::Link(s("/a"), s("/b")), Op::Chmod(s("/a"), 0o700)];
    ops.iter().for_each(|op| op.on_volume(&volume).unwrap());
    let ino = volume.resolve(b"a").unwrap();
    volume.unmount().unwrap();
    // The file says that it has one name, then two, then its mode.
    for slot in [2, 3] {
        let mut image = ram.image();
        let (region, at) = line_of(&image, ino, slot);
        assert_eq!(image[region][at + 4], 2, "attributes");
        image[region][at + 4] = 1;
        reseal(&mut image);
        let damage = fs::fsck::check(Box::new(Ram::new(image.clone()))).unwrap().damage;
        let what = "the rest of a page is unused, and the tail is in it";
        assert!(is_lost(&damage, ino, what), "slot {slot}: {damage:?}");
        examine(image, true);
    }
}

/// A name that stands for the root directory. A mount was refused, as if the root itself was
/// damaged, and a repair made the root empty: the next mount freed all that it had named. After a
/// clean unmount, removing the name freed the root.
#[test]
fn a_name_for_the_root_directory_takes_nothing_else_along() {
    let (ram, volume) = fresh(&REGIONS);
    let s = String::from;
    let ops = [Op::Create(s("/f")), Op::Mkdir(s("/d")), Op::Create(s("/d/l"))];
    ops.iter().for_each(|op| op.on_volume(&volume).unwrap());
    let ino = volume.resolve(b"d").unwrap();
    let mounted = ram.image();
    volume.unmount().unwrap();
    for (mut image, kind) in [(mounted.clone(), 8), (mounted, 4), (ram.image(), 8), (ram.image(), 4)] {
        let (region, at) = line_of(&image, ino, 2);
        assert_eq!(image[region][at + 4], 6, "a name");
        image[region][at + 16..][..8].copy_from_slice(&Ino::ROOT.raw().to_le_bytes());
        image[region][at + 32] = kind;
        reseal(&mut image);
        let volume = Volume::mount(Box::new(Ram::new(image.clone())), options(1)).unwrap();
        volume.resolve(b"f").unwrap();
        let removed = if kind == 4 { volume.rmdir(ino, b"l") } else { volume.unlink(ino, b"l") };
        assert!(matches!(removed, Err(fs::Error::Damaged(_))), "{removed:?}");
        volume.resolve(b"f").unwrap();
        let repaired = Ram::new(image.clone());
        fs::fsck::repair(Arc::new(repaired.clone())).unwrap();
        let volume = crate::mount_whole(Box::new(repaired), options(1)).unwrap();
        assert!(volume.resolve(b"f").is_ok() && volume.names(ino, 0, 9).unwrap().is_empty());
        let found = volume.resolve(b"lost+found").unwrap();
        assert_eq!(volume.names(found, 0, 9).unwrap().len(), 1, "what the directory had named");
        examine(image, true);
    }
}

/// Two pages that follow each other, 2³¹ apart: each step looked like one forwards, and a mount
/// went round once for each block.
#[test]
fn a_log_that_leads_in_a_circle_is_left_at_once() {
    let (ram, volume) = fresh(&REGIONS);
    let s = String::from;
    Op::Create(s("/a")).on_volume(&volume).unwrap();
    (0..70).for_each(|i| Op::SetXattr(s("/a"), format!("user.{i}"), 100).on_volume(&volume).unwrap());
    let file = volume.resolve(b"a").unwrap();
    let mut image = ram.image();
    let [(sequence, region, first), (_, other, at), ..] = log_pages(&image, file)[..] else { panic!("one page") };
    image[other][at + 20..][..4].copy_from_slice(&sequence.wrapping_add(1 << 31).to_le_bytes());
    image[other][at + 32..][..8].copy_from_slice(&Block::new(region, first as u64 / 4096).raw().to_le_bytes());
    reseal(&mut image);
    let report = fs::fsck::check(Box::new(Ram::new(image))).unwrap();
    assert!(report.damage.iter().any(|damage| damage.to_string().contains("out of order")), "{report:?}");
}

/// The last name that a directory can have has the last cookie; one that is not a cookie is damage.
#[test]
fn a_directory_runs_out_of_cookies_with_an_error() {
    let (image, _) = example(false);
    let root = (9..REGIONS[0] as usize).find(|i| {
        let block = &image[0][i * 4096..][..4096];
        block[4..8] == *b"HLOG" && block[8..16] == Ino::ROOT.raw().to_le_bytes()
    });
    let attributes = root.unwrap() * 4096 + 64 + 56; // the first entry of its log: next cookie
    for (next, room) in [((1 << 48) - 1, 1), (1_u64 << 48, 0)] {
        let mut image = image.clone();
        image[0][attributes..][..8].copy_from_slice(&next.to_le_bytes());
        reseal(&mut image);
        let volume = Volume::mount(Box::new(Ram::new(image)), options(1)).unwrap();
        let made = (0..2).filter(|i| Op::Create(format!("/n{i}")).on_volume(&volume).is_ok()).count();
        assert_eq!(made, room);
        assert_eq!(Op::Create("/n".into()).on_volume(&volume), Err(libc::ENOSPC));
        crate::crash::use_and_empty(&volume).unwrap();
    }
    let mut image = image;
    image[0][attributes..][..8].fill(0xff);
    reseal(&mut image);
    let Err(error) = Volume::mount(Box::new(Ram::new(image)), options(1)) else { panic!("mounted") };
    assert!(error.to_string().contains("next cookie"), "{error}");
}

#[test]
fn one_damaged_copy_of_a_superblock_is_no_hindrance() {
    let (mut half, _) = example(true);
    half[0][..4096].fill(0);
    Volume::mount(Box::new(Ram::new(half.clone())), options(1)).unwrap();
    let report = fs::fsck::check(Box::new(Ram::new(half.clone()))).unwrap();
    assert_eq!(report.damage.len(), 1, "{report:?}");
    let ram = Ram::new(half);
    fs::fsck::repair(Arc::new(ram.clone())).unwrap();
    settled(Box::new(ram));
}

/// An inode that is read when it is first used may turn out to be damaged. Removing and renaming
/// looked for it without end.
#[test]
fn removing_or_renaming_what_is_damaged_is_an_error() {
    let (image, _) = example(true);
    let (mut removed, mut renamed) = (0, 0);
    for (region, at) in metadata(&image) {
        let mut image = image.clone();
        image[region][at] ^= 0x5b;
        let Ok(volume) = Volume::mount(Box::new(Ram::new(image)), options(1)) else { continue };
        let how = fs::Rename::Replace;
        let rename = volume.rename((fs::Ino::ROOT, b"a"), (fs::Ino::ROOT, b"z"), how);
        renamed += usize::from(matches!(rename, Err(fs::Error::Damaged(_))));
        removed += usize::from(matches!(volume.unlink(fs::Ino::ROOT, b"a"), Err(fs::Error::Damaged(_))));
    }
    assert!(removed > 0 && renamed > 0, "{removed} {renamed}");
}

/// `repair` kept a checkpoint that `fsck` had just found wrong, and the next mount wrote over what
/// it said was free.
#[test]
fn repair_writes_a_wrong_checkpoint_anew() {
    let (ram, volume) = fresh(&[2000]);
    let f = create(&volume, "f").unwrap();
    volume.write(f, 0, &[7; 40960]).unwrap();
    volume.unmount().unwrap();
    // It is in the last block for data. The only free run gets eight blocks in front of it, which
    // are the file's.
    let mut image = ram.image();
    let block = &mut image[0][1968 * 4096..][..4096];
    assert_eq!(&block[4..8], b"HCKP");
    for (at, change) in [(56, -8_i64), (64, 8)] {
        let word = u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
        block[at..at + 8].copy_from_slice(&word.wrapping_add_signed(change).to_le_bytes());
    }
    let sum = crc32c::crc32c(&block[4..]);
    block[..4].copy_from_slice(&sum.to_le_bytes());
    let ram = Ram::new(image);
    let damage = fs::fsck::check(Box::new(ram.clone())).unwrap().damage;
    assert_eq!(damage, [fs::Damage::Checkpoint("has other free blocks than the logs")]);
    fs::fsck::repair(Arc::new(ram.clone())).unwrap();
    sound(Box::new(ram.clone()));
    let volume = Volume::mount(Box::new(ram), options(1)).unwrap();
    let g = create(&volume, "g").unwrap();
    volume.write(g, 0, &[9; 199_000]).unwrap();
    let mut data = [0; 40960];
    volume.read(f, 0, &mut data).unwrap();
    assert!(data == [7; 40960]);
}

/// One free inode with a flipped bit stopped every create.
#[test]
fn a_damaged_free_inode_is_passed_over_and_repaired() {
    let (ram, volume) = fresh(&[400, 400]);
    let gone = [create(&volume, "a").unwrap(), create(&volume, "b").unwrap()][0];
    volume.unlink(Ino::ROOT, b"a").unwrap();
    volume.unmount().unwrap();
    let mut image = ram.image();
    let superblock = fs::superblock_of(&ram, gone.region()).unwrap();
    let (block, line) = superblock.inode_at(gone).unwrap();
    image[gone.region()][block.index() as usize * 4096 + line as usize] ^= 0x5b;
    let ram = Ram::new(image);
    let volume = Volume::mount(Box::new(ram.clone()), options(1)).unwrap();
    for name in ["c", "d", "e"] {
        assert_ne!(create(&volume, name).unwrap(), gone);
    }
    volume.unmount().unwrap();
    fs::fsck::repair(Arc::new(ram.clone())).unwrap();
    sound(Box::new(ram));
}

/// After a clean unmount, removing a name that says "file" freed the directory that it stood for.
#[test]
fn a_name_of_another_kind_is_damage_also_after_an_unmount() {
    let (ram, volume) = fresh(&REGIONS);
    let s = String::from;
    let ops = [Op::Mkdir(s("/e")), Op::Mkdir(s("/d")), Op::Create(s("/d/l")), Op::Create(s("/e/kept"))];
    ops.iter().for_each(|op| op.on_volume(&volume).unwrap());
    let (d, e) = (volume.resolve(b"d").unwrap(), volume.resolve(b"e").unwrap());
    volume.unmount().unwrap();
    let mut image = ram.image();
    let (region, at) = line_of(&image, d, 2);
    assert_eq!(image[region][at + 4], 6, "a name");
    image[region][at + 16..][..8].copy_from_slice(&e.raw().to_le_bytes());
    reseal(&mut image);
    let ram = Ram::new(image.clone());
    let volume = Volume::mount(Box::new(ram.clone()), options(1)).unwrap();
    let found = volume.lookup(d, b"l");
    assert!(matches!(found, Err(fs::Error::Damaged(fs::Damage::Name { ino, .. })) if ino == d), "{found:?}");
    volume.unlink(d, b"l").unwrap();
    volume.resolve(b"e/kept").unwrap();
    volume.unmount().unwrap();
    let volume = crate::mount_whole(Box::new(ram), options(1)).unwrap();
    volume.resolve(b"e/kept").unwrap();
    examine(image, true);
}
