//! Scrubs of volumes that are in use.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use fs::{Damage, Fault, Ino, NewFile, Placement, ScrubPlace, Scrubbed, Volume};

use crate::medium::{Ram, blank};
use crate::{create, format_with, options};

const BLOCK: usize = 4096;

/// A volume with checksums of data, and 20 files of three blocks, each full of its own number.
fn example() -> (Ram, Volume, Vec<Ino>) {
    let ram = Ram::new(blank(&[400, 400]));
    format_with(Box::new(ram.clone()), 2, true);
    let volume = Volume::mount(Box::new(ram.clone()), options(2)).unwrap();
    let file = |i: u8| {
        let ino = create(&volume, &format!("f{i}")).unwrap();
        volume.write_to(ino, 0, &[i; 3 * BLOCK], Placement::Node(u32::from(i) % 2)).unwrap();
        ino
    };
    let files = (1..=20).map(file).collect();
    (ram, volume, files)
}

fn scrub(volume: &Volume, from: ScrubPlace) -> (Vec<Fault>, Scrubbed) {
    let mut faults = Vec::new();
    let done = volume.scrub(from, None, &mut |fault| faults.push(fault), &mut |_| true).unwrap();
    assert!(done.done);
    (faults, done)
}

/// Flips a bit of what a medium has under a mounted volume.
fn flip(ram: &Ram, region: usize, at: usize) {
    ram.0.lock().unwrap()[region][at] ^= 4;
}

#[test]
fn a_flipped_bit_of_data_is_found_and_named_and_a_read_of_it_fails() {
    let (ram, volume, files) = example();
    let (faults, done) = scrub(&volume, ScrubPlace::default());
    assert_eq!((faults, done.inodes, done.bytes), (vec![], 21, 60 * BLOCK as u64), "the root is an inode, too");
    let run = volume.map(files[6]).unwrap()[0];
    let second = run.block.offset(1);
    flip(&ram, second.region(), second.index() as usize * BLOCK + 77);
    let (faults, done) = scrub(&volume, ScrubPlace::default());
    let (ino, bytes) = (Some(files[6]), Some(4096..8192));
    let damage = Damage::Data { block: second, path: None };
    assert_eq!(faults, [Fault { ino, bytes, damage, mended: false }]);
    assert_eq!(done.bytes, 60 * BLOCK as u64, "it went on behind it");
    let paths = volume.paths_of(&BTreeSet::from([files[6]]), &|| true);
    assert_eq!(paths.get(&files[6]).unwrap(), b"/f7");
    let mut out = [0; BLOCK];
    assert_eq!(volume.read(files[6], 5000, &mut out).unwrap_err().errno(), libc::EIO);
    assert_eq!(volume.read(files[6], 0, &mut out).unwrap(), BLOCK);
    // Once it is written anew it is whole.
    volume.write(files[6], 4096, &[1; BLOCK]).unwrap();
    assert_eq!(scrub(&volume, ScrubPlace::default()).0, []);
}

/// Bits that have a second copy: of a superblock, of a line of the inode table, of each line of a
/// log that says something.
#[test]
fn what_has_a_second_copy_is_mended_while_the_volume_is_used() {
    let (ram, volume, files) = example();
    let image = ram.image();
    let lines = |region: usize, wanted: &[u8], at: usize| -> Vec<usize> {
        let lines = image[region].chunks_exact(64).enumerate();
        lines.filter(|(_, line)| line[at..].starts_with(wanted)).map(|(i, _)| i * 64).collect()
    };
    let mut places = vec![(0, 8), (1, BLOCK + 40)];
    // The inodes of region 0: the root and ten files; the words of each that say something.
    let table = (0..image[0].len() / 64).find(|i| {
        let line = &image[0][i * 64..i * 64 + 64];
        line[..24].iter().all(|byte| *byte != 0xff) && line[8..16] != [0; 8] && line[24..] == [0; 40] && line[0] == 1
    });
    places.extend([0, 8, 16].map(|word| (0, table.unwrap() * 64 + word)));
    for region in 0..2 {
        for page in lines(region, b"HLOG", 4) {
            places.extend((0..3).map(|slot| (region, page + slot * 64 + 17)));
        }
    }
    assert!(places.len() > 40, "{}", places.len());
    drop(volume);
    let mut mended = 0;
    for (region, at) in places {
        let ram = Ram::new(image.clone());
        let volume = Volume::mount(Box::new(ram.clone()), options(2)).unwrap();
        files.iter().chain([&Ino::ROOT]).for_each(|ino| _ = volume.stat(*ino).unwrap()); // memory knows them
        flip(&ram, region, at);
        let (faults, _) = scrub(&volume, ScrubPlace::default());
        match &faults[..] {
            [fault] => {
                assert!(fault.mended && fault.bytes.is_none(), "region {region}, byte {at}: {fault:?}");
                mended += 1;
            }
            [] => {} // behind a tail nobody reads
            _ => panic!("region {region}, byte {at}: {faults:?}"),
        }
        assert_eq!(scrub(&volume, ScrubPlace::default()).0, [], "region {region}, byte {at}: once is enough");
        volume.unmount().unwrap();
        crate::sound(Box::new(ram));
    }
    assert!(mended > 60, "{mended}");
}

/// Four writers, one of whom makes and removes files, and one migration: nothing is damaged.
#[test]
fn a_scrub_beside_writers_reports_nothing_false() {
    let (ram, volume, files) = example();
    let (stop, started) = (AtomicBool::new(false), std::sync::Barrier::new(6));
    let scrubbed = std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let (volume, stop, files, started) = (&volume, &stop, &files, &started);
            scope.spawn(move || {
                started.wait();
                for round in 0..usize::MAX {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let ino = files[(round * 4 + thread) % files.len()];
                    volume.write(ino, (round * 1237 % 9000) as u64, &[round as u8; 3000]).unwrap();
                    if thread == 0 {
                        let name = format!("g{}", round % 3);
                        let new = create(volume, &name).unwrap();
                        volume.append(new, &[3; 5000]).unwrap();
                        volume.unlink(Ino::ROOT, name.as_bytes()).unwrap();
                    }
                }
            });
        }
        scope.spawn(|| {
            started.wait();
            for round in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                volume
                    .migrate_file(files[round % files.len()], (round / files.len()) as u32 % 2, None, |_| true)
                    .unwrap();
            }
        });
        started.wait();
        let (mut bytes, mut faults) = (0, Vec::new());
        for _ in 0..40 {
            let (found, done) = scrub(&volume, ScrubPlace::default());
            faults.extend(found);
            bytes += done.bytes;
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(faults, []);
        bytes
    });
    assert!(scrubbed > 40 * 40 * BLOCK as u64, "{scrubbed}");
    drop(volume);
    crate::sound(Box::new(ram));
}

/// It goes on where it was stopped: in the middle of a file, and after another mount with the file.
#[test]
fn a_stopped_scrub_goes_on_where_it_was() {
    let (ram, volume, files) = example();
    volume.write(files[9], 0, &vec![9; 200 * BLOCK]).unwrap();
    let all = scrub(&volume, ScrubPlace::default()).1;
    assert_eq!(volume.scrub_place(), ScrubPlace::default(), "it came to the end");
    let upto = |from: ScrubPlace, most: u64| {
        volume.scrub(from, None, &mut |fault| panic!("{fault:?}"), &mut |now| now.bytes < most).unwrap()
    };
    let first = upto(ScrubPlace::default(), 100 * BLOCK as u64);
    assert!(!first.done && first.place.ino == files[9].raw() && first.place.file_block >= 64, "{first:?}");
    let second = upto(first.place, u64::MAX);
    assert!(second.done);
    assert_eq!((first.bytes + second.bytes, first.inodes + second.inodes), (all.bytes, all.inodes));
    let again = upto(ScrubPlace::default(), 100 * BLOCK as u64);
    assert_eq!(again.place, first.place);
    drop(volume);
    let volume = Volume::mount(Box::new(ram), options(2)).unwrap();
    assert_eq!(volume.scrub_place(), ScrubPlace { ino: files[9].raw(), ..ScrubPlace::default() });
    let (faults, rest) = scrub(&volume, volume.scrub_place());
    assert!(faults.is_empty() && rest.inodes < all.inodes, "{rest:?}");
    assert_eq!(volume.scrub_place(), ScrubPlace::default());
}

/// The search for names of what is damaged ends when it is asked to, in a directory of many names,
/// too: an unmount waited for all of it.
#[test]
fn the_search_for_names_of_damaged_files_ends_when_asked() {
    let (_, volume, files) = example();
    for dir in 0..30 {
        volume
            .create(Ino::ROOT, format!("d{dir}").as_bytes(), NewFile { mode: 0o040_755, ..NewFile::default() })
            .unwrap();
    }
    let wanted = BTreeSet::from([*files.last().unwrap(), Ino::new(0, 3999)]);
    let asked = Cell::new(0);
    let looked = |most: u32| {
        asked.set(0);
        let go_on = || {
            asked.set(asked.get() + 1);
            asked.get() <= most
        };
        volume.paths_of(&wanted, &go_on).len()
    };
    assert_eq!(looked(0), 0);
    assert_eq!(asked.get(), 1);
    assert_eq!(looked(3), 1);
    assert_eq!(asked.get(), 4);
    assert_eq!(looked(u32::MAX), 1);
    assert!(asked.get() > 30);
}

/// A scrub that goes on after damage, and is stopped again: only this mount knows of the damage, so
/// the next one begins anew. It went on behind the damage, and said that all was well.
#[test]
fn a_scrub_that_went_on_after_damage_is_not_gone_on_with_by_another_mount() {
    let (ram, volume, files) = example();
    volume.write(files[9], 0, &vec![9; 200 * BLOCK]).unwrap();
    let run = volume.map(files[2]).unwrap()[0];
    flip(&ram, run.block.region(), run.block.index() as usize * BLOCK + 7);
    let mut faults = 0;
    let mut upto = |from: ScrubPlace, most: u64| {
        volume.scrub(from, None, &mut |_| faults += 1, &mut |now| now.bytes < most).unwrap()
    };
    let first = upto(ScrubPlace::default(), 100 * BLOCK as u64);
    let second = upto(first.place, 1);
    assert!(first.place.damaged && second.place.damaged && !second.done);
    assert_eq!(faults, 1);
    drop(volume);
    let volume = Volume::mount(Box::new(ram), options(2)).unwrap();
    assert_eq!(volume.scrub_place(), ScrubPlace::default());
    assert_eq!(scrub(&volume, volume.scrub_place()).0.len(), 1);
}
