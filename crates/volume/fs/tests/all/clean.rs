//! Unmounting and mounting again without reading the logs.

use std::sync::{Arc, Mutex};

use fs::{Damage, Error, Ino, Volume};

use crate::crash::{prelude, states, use_and_empty, with};
use crate::medium::{Image, Ram, Recorder, Sabotage};
use crate::model::{Tree, observe};
use crate::{REGIONS, formatted, log_pages, mount_whole, options, seal, settled};

/// A volume with a bit of everything, and what is in it.
fn example() -> (Image, Tree) {
    let ram = formatted(&REGIONS);
    let volume = Volume::mount(Box::new(ram.clone()), options(2)).unwrap();
    for op in prelude() {
        op.on_volume(&volume).unwrap();
    }
    let tree = observe(&volume);
    volume.unmount().unwrap();
    (ram.image(), tree)
}

#[test]
fn a_clean_mount_reads_an_inode_when_it_is_asked_for() {
    let (mut image, tree) = example();
    let ram = Ram::new(image.clone());
    let volume = Volume::mount(Box::new(ram.clone()), options(3)).unwrap();
    let free =
        |volume: &Volume| -> Vec<_> { volume.usage().regions.iter().map(|r| (r.free_blocks, r.free_inodes)).collect() };
    let checkpointed = free(&volume);
    assert_eq!(observe(&volume), tree);
    // The same volume, now that it says "mounted": the logs are read.
    let scanned = Volume::mount(Box::new(Ram::new(ram.image())), options(1)).unwrap();
    assert_eq!(checkpointed, free(&scanned));
    let file = volume.resolve(b"/a").unwrap();
    let parent = volume.resolve(b"/d").unwrap();
    assert_eq!(volume.lookup(parent, b"..").unwrap().ino, Ino::ROOT);
    drop(volume);
    // Damage in one log: a mount does not see it, a use of the file does, and so does fsck.
    damage(&mut image, file);
    let volume = Volume::mount(Box::new(Ram::new(image.clone())), options(1)).unwrap();
    assert!(matches!(volume.stat(file), Err(Error::Damaged(Damage::Inode { ino, .. })) if ino == file));
    assert!(volume.resolve(b"/b").is_ok());
    let report = fs::fsck::check(Box::new(Ram::new(image))).unwrap();
    assert!(report.damage.iter().any(|d| matches!(d, Damage::Inode { ino, .. } if *ino == file)), "{report:?}");
}

/// Damages the log of a file.
fn damage(image: &mut Image, file: Ino) {
    let (_, region, at) = log_pages(image, file)[0];
    image[region][at + 64..at + 4096].iter_mut().for_each(|byte| *byte ^= 0xa5);
}

/// `repair` threw the checkpoint away and then could not read the logs: no mount succeeded ever
/// again.
#[test]
fn repair_leaves_a_volume_with_a_damaged_file_that_can_be_mounted_and_emptied() {
    for unmounted in [true, false] {
        let (mut image, _) = example();
        let ram = Ram::new(image.clone());
        let volume = Volume::mount(Box::new(ram.clone()), options(1)).unwrap();
        let (file, whole) = (volume.resolve(b"/a").unwrap(), volume.resolve(b"/b").unwrap());
        drop(volume);
        if !unmounted {
            image = ram.image();
        }
        damage(&mut image, file);
        let ram = Ram::new(image);
        let mount = || Volume::mount(Box::new(ram.clone()), options(1)).unwrap();
        assert_eq!(mount().damage().is_empty(), unmounted, "the logs are not read after an unmount");
        fs::fsck::repair(Arc::new(ram.clone())).unwrap();
        let report = fs::fsck::check(Box::new(ram.clone())).unwrap();
        assert!(report.clean && !report.is_repairable(), "{report:?}");
        // The bad bit was one of memory, and the blocks are others' by now: the file stays lost.
        let mut healed = ram.image();
        damage(&mut healed, file);
        for ram in [Ram::new(healed), ram.clone()] {
            let volume = Volume::mount(Box::new(ram), options(1)).unwrap();
            assert_eq!(volume.stat(whole).unwrap().size, 5100);
            assert!(volume.stat(file).is_ok_and(|stat| stat.size == 0) || volume.stat(file).is_err());
        }
        // It has two names.
        let volume = mount();
        volume.unlink(Ino::ROOT, b"a").unwrap();
        volume.unlink(volume.resolve(b"d").unwrap(), b"l").unwrap();
        volume.unmount().unwrap();
        settled(Box::new(ram.clone()));
        use_and_empty(&mount()).unwrap();
    }
}

/// A later version may keep something in the bits of a superblock that this one does not know.
#[test]
fn repair_copies_a_superblock_as_it_is_and_leaves_later_versions_alone() {
    let (mut image, _) = example();
    image[0][16] |= 0x80; // a compatible feature
    seal(&mut image[0][..4096]);
    image[0][4096..8192].fill(0);
    let ram = Ram::new(image.clone());
    fs::fsck::repair(Arc::new(ram.clone())).unwrap();
    assert_eq!(ram.image()[0][4096..8192], image[0][..4096]);
    image[0][24] |= 0x80; // one that forbids to write
    seal(&mut image[0][..4096]);
    let ram = Ram::new(image.clone());
    assert!(matches!(fs::fsck::repair(Arc::new(ram.clone())), Err(Error::NotAVolume(_))));
    assert!(ram.image() == image, "it was written to");
}

#[test]
fn a_check_tells_how_far_it_is_and_stops_when_asked() {
    let (image, _) = example();
    let told = Mutex::new(Vec::new());
    let watch = |done, all| {
        told.lock().unwrap().push((done, all));
        true
    };
    fs::fsck::check_with(Box::new(Ram::new(image.clone())), &watch).unwrap();
    assert_eq!(*told.lock().unwrap(), [(0, 2), (1, 2)], "one step for the table of each region");
    let stopped = fs::fsck::check_with(Box::new(Ram::new(image)), &|_, _| false);
    assert!(matches!(stopped, Err(Error::Interrupted)), "{stopped:?}");
}

/// Crashes at every fence of an unmount, of the mount after it, and of a change after that.
/// Returned are the states that were wrong.
fn crash_around_an_unmount(sabotage: Option<Sabotage>) -> (u64, u64, (u64, u64)) {
    let (image, tree) = example();
    let recorder = Recorder::new(image);
    let counts = Arc::new(Mutex::new((0, 0)));
    let allowed = Arc::new(Mutex::new(vec![tree]));
    let (count, trees) = (Arc::clone(&counts), Arc::clone(&allowed));
    let check = move |point: &crate::medium::CrashPoint<'_>| {
        for change in states(point) {
            let ram = Ram::new(with(point.durable, &change));
            let found = mount_whole(Box::new(ram), options(1)).and_then(|volume| {
                let tree = crate::model::try_observe(&volume)?;
                // A checkpoint that is out of date gives blocks away that are in use.
                volume.write(volume.resolve(b"/a")?, 0, &[9; 5100])?; // takes the same blocks as the write to /b below
                volume.truncate(volume.resolve(b"/a")?, 0)?;
                let mut after = crate::model::try_observe(&volume)?;
                let mut before = tree.clone();
                for tree in [&mut after, &mut before] {
                    tree.retain(|path, _| path != "/a" && path != "/d/l");
                }
                Ok((tree, after == before))
            });
            let mut count = count.lock().unwrap();
            count.0 += 1;
            count.1 += u64::from(!matches!(found, Ok((tree, true)) if trees.lock().unwrap().contains(&tree)));
        }
    };
    recorder.on_fence(Some(Box::new(check)));
    recorder.sabotage(sabotage);
    let volume = Volume::mount(Box::new(recorder.clone()), options(1)).unwrap();
    let mut after = allowed.lock().unwrap()[0].clone();
    after.get_mut("/b").unwrap().data = vec![3; 5100];
    allowed.lock().unwrap().push(after);
    volume.write(volume.resolve(b"/b").unwrap(), 0, &[3; 5100]).unwrap();
    volume.unmount().unwrap();
    let flushes = recorder.counts();
    recorder.on_fence(None);
    let (checked, wrong) = *counts.lock().unwrap();
    (checked, wrong, flushes)
}

#[test]
fn an_unmount_and_a_mount_survive_a_crash_at_every_fence() {
    let (checked, wrong, (flushes, _)) = crash_around_an_unmount(None);
    println!("{checked} crash states around an unmount; {flushes} flushes");
    assert!(checked > 50 && wrong == 0, "{wrong} of {checked}");
    // The first flush is that of the word that says "mounted".
    assert!(crash_around_an_unmount(Some(Sabotage::Flush(1))).1 > 0);
}
