//! Damaged media: an error or the right answer, never a panic.
//!
//! HOMENODE_FS_IMAGES sets how many random images are tried (default 3,000), HOMENODE_FS_SEED which ones.

use std::sync::Arc;

use fs::Volume;
use rand::rngs::ChaCha8Rng as StdRng;
use rand::{RngExt, SeedableRng};

use crate::medium::{Image, Ram, blank};
use crate::model::{Model, Tree, try_observe};
use crate::operations::Op;
use crate::{REGIONS, format, options};

/// A volume with some of everything, unmounted or not.
fn example(unmounted: bool) -> (Image, Tree) {
    let ram = Ram::new(blank(&REGIONS));
    format(Box::new(ram.clone()), 1);
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
    ];
    for op in ops {
        assert_eq!(op.on_volume(&volume), op.on_model(&mut model));
    }
    if unmounted {
        volume.unmount().unwrap();
    }
    (ram.image(), model.tree())
}

/// Mounts, looks at everything, changes something if told so, checks. `None`: refused.
fn examine(image: Image, change: bool) -> Option<Tree> {
    let _ = fs::fsck::check(Box::new(Ram::new(image.clone())));
    let volume = Volume::mount(Box::new(Ram::new(image)), options(1)).ok()?;
    let tree = try_observe(&volume).ok()?;
    if change {
        // On a damaged volume that could be mounted, changes may fail, and that is all.
        let _ = crate::crash::use_and_empty(&volume);
        let _ = volume.unmount();
    }
    Some(tree)
}

/// Offsets of all bytes that are not file data and not zero.
fn metadata(image: &Image) -> Vec<(usize, usize)> {
    let blocks = image.iter().enumerate().flat_map(|(region, bytes)| {
        bytes.chunks(4096).enumerate().filter_map(move |(index, block)| {
            let log = block[4..8] == *b"HLOG" || block[4..8] == *b"HCKP";
            (index < 9 || log).then_some((region, index * 4096, block))
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
        damaged[region][at] ^= 0x10;
        match examine(damaged, false) {
            None => refused += 1,
            // Second copies, records of a finished journal, what is left behind a tail, free inodes.
            Some(found) => {
                assert!(found == tree, "region {region}, byte {at}: another tree");
                harmless += 1;
            }
        }
    }
    println!("{refused} damaged bytes are found, {harmless} change nothing");
    assert!(refused > 450, "{refused}");
}

#[test]
fn random_damage_never_panics() {
    let setting = |name: &str, default| std::env::var(name).map_or(default, |n| n.parse().unwrap());
    let images = setting("HOMENODE_FS_IMAGES", 3000);
    let examples = [false, true].map(|unmounted| example(unmounted).0);
    let mut rng = StdRng::seed_from_u64(setting("HOMENODE_FS_SEED", 1));
    let mut mounted = 0;
    for i in 0..images {
        let image = &examples[i as usize % 2];
        let bytes = metadata(image);
        let mut damaged = image.clone();
        for _ in 0..rng.random_range(1..6) {
            let (region, at) = bytes[rng.random_range(0..bytes.len())];
            let (from, to) = (bytes[rng.random_range(0..bytes.len())], bytes[rng.random_range(0..bytes.len())]);
            match rng.random_range(0..4) {
                0 => damaged[region][at] = rng.random(),
                1 => damaged[region][at / 8 * 8..][..8].fill(if rng.random() { 0xff } else { 0 }),
                2 => {
                    // A line that belongs elsewhere.
                    let line: Vec<u8> = damaged[from.0][from.1 / 64 * 64..][..64].to_vec();
                    damaged[to.0][to.1 / 64 * 64..][..64].copy_from_slice(&line);
                }
                _ => {
                    let block: Vec<u8> = damaged[from.0][from.1 / 4096 * 4096..][..4096].to_vec();
                    damaged[to.0][to.1 / 4096 * 4096..][..4096].copy_from_slice(&block);
                }
            }
        }
        mounted += u64::from(examine(damaged, true).is_some());
    }
    println!("{images} damaged images, {mounted} of them could be mounted");
}

#[test]
fn regions_that_do_not_belong_together_are_refused() {
    let (image, _) = example(true);
    let mount = |image: Image| match Volume::mount(Box::new(Ram::new(image)), options(1)) {
        Ok(_) => panic!("mounted"),
        Err(e) => e.to_string(),
    };
    assert_eq!(mount(vec![image[0].clone()]), "not a volume: 1 of its 2 regions were given");
    assert_eq!(mount(vec![image[1].clone(), image[0].clone()]), "not a volume: region 1 was given as region 0");
    let mut other = image.clone();
    crate::format(Box::new(Ram::new(blank(&REGIONS))), 1);
    other[1] = vec![0; other[1].len()];
    assert_eq!(mount(other), "not a volume: region 1: not a homenode region");
    let mut short = image.clone();
    short[1].truncate(100_000);
    assert_eq!(mount(short), "not a volume: region 1 has 100000 of 212992 bytes");
    // One damaged copy of a superblock is no hindrance.
    let mut half = image;
    half[0][..4096].fill(0);
    Volume::mount(Box::new(Ram::new(half.clone())), options(1)).unwrap();
    let report = fs::fsck::check(Box::new(Ram::new(half.clone()))).unwrap();
    assert_eq!(report.damage.len(), 1, "{report:?}");
    let ram = Ram::new(half);
    fs::fsck::repair(Arc::new(ram.clone())).unwrap();
    let report = fs::fsck::check(Box::new(ram)).unwrap();
    assert!(report.damage.is_empty() && report.clean, "{report:?}");
}

/// An inode that is read when it is first used may turn out to be damaged. Removing and renaming looked for it without end.
#[test]
fn removing_or_renaming_what_is_damaged_is_an_error() {
    let (image, _) = example(true);
    let (mut removed, mut renamed) = (0, 0);
    for (region, at) in metadata(&image) {
        let mut image = image.clone();
        image[region][at] ^= 1;
        let Ok(volume) = Volume::mount(Box::new(Ram::new(image)), options(1)) else { continue };
        let how = fs::Rename::Replace;
        let rename = volume.rename((fs::Ino::ROOT, b"a"), (fs::Ino::ROOT, b"z"), how);
        renamed += usize::from(matches!(rename, Err(fs::Error::Damaged(_))));
        removed += usize::from(matches!(volume.unlink(fs::Ino::ROOT, b"a"), Err(fs::Error::Damaged(_))));
    }
    assert!(removed > 0 && renamed > 0, "{removed} {renamed}");
}
