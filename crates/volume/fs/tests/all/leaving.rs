//! Blocks that are given back in steps.

use std::sync::Arc;

use fs::{Background, Error, Ino, Volume};

use crate::crash::use_and_empty;
use crate::model::observe;
use crate::{create, free, fresh, mount_whole, options};

/// A file of so many extents of a block, with holes between them.
fn scattered(volume: &Volume, extents: u64) -> Ino {
    let file = create(volume, "f").unwrap();
    (0..extents).for_each(|i| volume.write(file, i * 2 * 4096, &[i as u8; 4096]).unwrap());
    assert_eq!(volume.extents(file).unwrap() as u64, extents);
    file
}

/// Removing or cutting off a file of 180,000 extents took 82 ms, in one request.
#[test]
fn no_operation_gives_back_more_than_a_step() {
    for to in [None, Some(0), Some(100 * 8192 - 5)] {
        let (ram, volume) = fresh(&[500, 500]);
        let before = free(&volume);
        let file = scattered(&volume, 300);
        volume.leave_logs(Some(64));
        let log = before - free(&volume) - 300;
        match to {
            None => volume.unlink(Ino::ROOT, b"f").unwrap(),
            Some(size) => volume.truncate(file, size).unwrap(),
        }
        // It counts as free, and is not yet.
        let (blocks, kept) = (to.map_or(0, |size| size.div_ceil(8192)), before - free(&volume));
        assert!((blocks..=blocks + log).contains(&kept) && (to.is_some() || kept == 0), "{to:?}: {kept}");
        assert_eq!(volume.stat(file).map_or(0, |stat| stat.blocks), blocks);
        let mut steps = 0;
        while volume.give_back() {
            steps += 1;
        }
        let extents = 300 - blocks + if to.is_none() { log } else { 0 };
        assert_eq!(steps, extents.div_ceil(64), "{to:?}");
        assert_eq!(before - free(&volume), kept, "{to:?}");
        // A crash, an unmount and a full volume in between find all of it free.
        let seen = observe(&volume);
        for how in ["crash", "unmount", "full"] {
            let other = mount_whole(Box::new(crate::medium::Ram::new(ram.image())), options(1)).unwrap();
            let file = create(&other, "g").unwrap();
            other.leave_logs(Some(8));
            (0..20).for_each(|i| other.write(file, i * 8192, &[1; 4096]).unwrap());
            let before = free(&other);
            other.unlink(Ino::ROOT, b"g").unwrap();
            assert!(other.give_back(), "the first step");
            assert_eq!(free(&other), before + 21, "{how}");
            match how {
                "full" => {
                    let all = create(&other, "all").unwrap();
                    let full = (0..).find_map(|i| other.write(all, i * 4096, &[2; 4096]).err()).unwrap();
                    assert!(matches!(full, Error::NoSpace) && !other.give_back(), "{full}");
                    let reserve: u64 = other.usage().regions.iter().map(|region| region.reserved_blocks).sum();
                    assert!(free(&other) <= reserve, "{} {reserve}", free(&other));
                    other.unlink(Ino::ROOT, b"all").unwrap();
                    other.leave_logs(None);
                    use_and_empty(&other).unwrap();
                }
                "unmount" => other.unmount().unwrap(),
                _ => drop(other),
            }
        }
        drop(volume);
        let volume = mount_whole(Box::new(ram), options(2)).unwrap();
        assert_eq!(observe(&volume), seen);
        use_and_empty(&volume).unwrap();
    }
}

/// The thread gives back all, also while others use the volume.
#[test]
fn the_thread_that_cleans_gives_blocks_back() {
    let (ram, volume) = fresh(&[3000, 3000]);
    let volume = Arc::new(volume);
    let thread = Background::start(Arc::clone(&volume)).unwrap();
    for round in 0..3 {
        scattered(&volume, 1500);
        volume.unlink(Ino::ROOT, b"f").unwrap();
        let large = create(&volume, "large").unwrap();
        let most = free(&volume) - volume.usage().regions.iter().map(|r| r.reserved_blocks).sum::<u64>() - 40;
        volume.write(large, 0, &vec![round; most as usize * 4096]).unwrap();
        volume.unlink(Ino::ROOT, b"large").unwrap();
    }
    drop(thread);
    Arc::into_inner(volume).unwrap().unmount().unwrap();
    use_and_empty(&mount_whole(Box::new(ram), options(1)).unwrap()).unwrap();
}
