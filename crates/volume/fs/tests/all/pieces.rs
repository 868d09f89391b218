//! Files of many extents, of which the first use reads no more than it needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use fs::{Damage, Error, Ino, SetAttributes, Volume};
use rand::rngs::ChaCha8Rng as StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::medium::{Image, Ram, Recorder, blank, counting};
use crate::random::setting;
use crate::{create, format_with, mount_whole, options};

const BLOCK: u64 = 4096;

/// Memory with a volume that has one file, with a run at every second block, in a log in order;
/// unmounted.
fn fragmented(extents: u64) -> Ram {
    let blocks = extents + 4 * extents.div_ceil(63) + extents / 50 + 500;
    let ram = Ram::new(blank(&[blocks]));
    format_with(Box::new(ram.clone()), 1, false);
    let volume = mount_whole(Box::new(ram.clone()), options(1)).unwrap();
    let file = create(&volume, "f").unwrap();
    (0..extents).for_each(|i| volume.allocate(file, 2 * i * BLOCK, BLOCK, false).unwrap());
    volume.write(file, 8 * BLOCK, &[1; 10]).unwrap();
    volume.clean(file).unwrap();
    volume.unmount().unwrap();
    ram
}

/// Lets go of an inode as a kernel does.
fn forget(volume: &Volume, ino: Ino) {
    volume.remember(ino).unwrap();
    volume.forget(ino, 1).unwrap();
}

/// HOMENODE_FS_EXTENTS says how many there are.
#[test]
fn a_first_use_of_many_extents_reads_what_it_asks_for() {
    let extents = setting("HOMENODE_FS_EXTENTS", 20_000);
    let ram = fragmented(extents);
    let bytes = Arc::new(AtomicU64::new(0));
    let volume = mount_whole(Box::new(counting(ram.clone(), &bytes)), options(1)).unwrap();
    let log = extents * 64;
    let timed = |what: &str, most: u64, work: &dyn Fn(&Volume, Ino)| {
        let file = volume.resolve(b"/f").unwrap();
        forget(&volume, file);
        bytes.store(0, Ordering::Relaxed);
        let begin = Instant::now();
        work(&volume, file);
        let (took, read) = (begin.elapsed(), bytes.load(Ordering::Relaxed));
        println!("{what}: {:.2} ms, {read} bytes of a log of {log}", took.as_secs_f64() * 1e3);
        assert!(read <= most, "{what}: {read} bytes of {log}");
    };
    let some = 2 * log.div_ceil(63) + 16 * BLOCK;
    let mut out = [0; 4096];
    timed("stat", some, &|volume, file| assert_eq!(volume.stat(file).unwrap().blocks, extents));
    timed("open, close", some, &|volume, file| volume.open(file).and_then(|()| volume.close(file)).unwrap());
    timed("chmod", some, &|volume, file| {
        volume.set_attributes(file, SetAttributes { mode: Some(0o600), ..SetAttributes::default() }).map(drop).unwrap()
    });
    timed("read", some + BLOCK, &|volume, file| {
        assert_eq!(volume.read(file, 8 * BLOCK, &mut [0; 4096]).unwrap(), 4096)
    });
    timed("write", some + 2 * BLOCK, &|volume, file| volume.write(file, extents * BLOCK, &[2; 4096]).unwrap());
    timed("append", some + 16 * BLOCK, &|volume, file| volume.append(file, &[3; 4096]).map(drop).unwrap());
    timed("all of it", 2 * log, &|volume, file| assert!(volume.map(file).unwrap().len() as u64 >= extents));
    let file = volume.resolve(b"/f").unwrap();
    volume.read(file, 8 * BLOCK, &mut out).unwrap();
    assert_eq!((out[9], out[10]), (1, 0));
    // The cleaner gives back what nobody has read.
    volume.leave_logs(Some(64));
    timed("unlink", some + 16 * BLOCK, &|volume, _| volume.unlink(Ino::ROOT, b"f").unwrap());
    while volume.give_back() {}
    volume.leave_logs(None);
    let free = volume.usage().regions[0].free_blocks;
    volume.unmount().unwrap();
    crate::settled(Box::new(ram.clone()));
    assert_eq!(free, mount_whole(Box::new(ram), options(1)).unwrap().usage().regions[0].free_blocks);
}

#[test]
fn a_file_of_many_extents_that_nobody_read_is_emptied_and_removed_after_a_crash_too() {
    for crash in [false, true] {
        let ram = fragmented(1000);
        if crash {
            drop(mount_whole(Box::new(ram.clone()), options(1)).unwrap());
        }
        let volume = mount_whole(Box::new(ram.clone()), options(1)).unwrap();
        let (file, free) = (volume.resolve(b"/f").unwrap(), volume.usage().regions[0].free_blocks);
        volume.truncate(file, 5 * BLOCK).unwrap();
        assert_eq!(volume.stat(file).unwrap().blocks, 3);
        assert!(volume.usage().regions[0].free_blocks >= free + 997);
        forget(&volume, file);
        volume.truncate(file, 0).unwrap();
        assert_eq!(volume.stat(file).unwrap().blocks, 0);
        volume.unlink(Ino::ROOT, b"f").unwrap();
        volume.unmount().unwrap();
        crate::settled(Box::new(ram));
    }
}

/// A log in no order that cannot be written anew, as the volume is full: the thread that cleans was
/// given it again each time that it had let go of the file.
#[test]
fn a_log_that_cannot_be_put_in_order_is_left_to_the_cleaner_once() {
    let ram = Ram::new(blank(&[1500]));
    format_with(Box::new(ram.clone()), 1, false);
    let volume = mount_whole(Box::new(ram), options(1)).unwrap();
    let (file, filler) = (create(&volume, "f").unwrap(), create(&volume, "filler").unwrap());
    volume.remember(Ino::ROOT).unwrap();
    (0..700).for_each(|i| volume.allocate(file, i * 37 % 700 * 2 * BLOCK, BLOCK, false).unwrap());
    while volume.append(filler, &[1; 4096]).is_ok() {}
    volume.leave_logs(Some(64));
    forget(&volume, file);
    let cleaned = (0..10).take_while(|_| volume.clean_left()).count();
    assert_eq!(cleaned, 1);
    // With room it is put in order.
    volume.truncate(filler, 0).unwrap();
    while volume.give_back() {}
    forget(&volume, file);
    assert_eq!((0..10).take_while(|_| volume.clean_left()).count(), 1);
    forget(&volume, file);
    assert_eq!((0..10).take_while(|_| volume.clean_left()).count(), 0);
    assert_eq!(volume.stat(file).unwrap().blocks, 700);
}

/// Damage in a page of extents that nobody has read yet: it is that page's extents that are lost,
/// and no block of them goes to others.
#[test]
fn damage_in_a_piece_is_an_error_where_it_is_used() {
    const WANTED: u64 = 600;
    let mut image = fragmented(1000).image();
    // Two bits of an entry that is not the first one. Pages of the log before are free, and not
    // zero.
    let first = |page: &[u8]| u64::from_le_bytes(page[80..88].try_into().unwrap());
    let is_wanted =
        |page: &&mut [u8]| page[4..8] == *b"HLOG" && page[68] == 3 && (WANTED..WANTED + 300).contains(&first(page));
    let damaged = image[0].chunks_mut(4096).filter(is_wanted).map(|page| {
        page[5 * 64 + 20..][..2].iter_mut().for_each(|byte| *byte ^= 1);
    });
    assert!(damaged.count() > 2);
    let ram = Ram::new(image);
    let volume = mount_whole(Box::new(ram.clone()), options(1)).unwrap();
    let file = volume.resolve(b"/f").unwrap();
    assert_eq!(volume.stat(file).unwrap().blocks, 1000);
    let mut out = [0; 4096];
    volume.read(file, 8 * BLOCK, &mut out).unwrap();
    assert_eq!(out[9], 1);
    let is_damage =
        |error: fs::Result<()>| matches!(error, Err(Error::Damaged(Damage::Inode { ino, .. })) if ino == file);
    let mut all = vec![0; 300 * 4096];
    assert!(is_damage(volume.read(file, WANTED * BLOCK, &mut all).map(drop)));
    assert!(is_damage(volume.write(file, WANTED * BLOCK, &all)));
    assert!(is_damage(volume.truncate(file, 0)));
    volume.write(file, 8 * BLOCK, &[7; 10]).unwrap();
    volume.unlink(Ino::ROOT, b"f").unwrap();
    volume.unmount().unwrap();
    // The next mount reads the logs: the file is gone, so everything is free.
    let volume = Volume::mount(Box::new(ram.clone()), options(1)).unwrap();
    assert!(volume.usage().regions[0].free_blocks > 1000, "{:?}", volume.usage());
    volume.unmount().unwrap();
    crate::settled(Box::new(ram));
}

/// What the file should have: a byte for each block, 0 for zeros.
struct Model(Vec<u8>);

impl Model {
    fn check(&self, volume: &Volume, file: Ino, (from, to): (usize, usize), why: &str) {
        let mut out = vec![9; (to - from) * 4096];
        let size = volume.stat(file).unwrap().size;
        assert_eq!(size, self.0.len() as u64 * BLOCK, "{why}");
        let got = volume.read(file, from as u64 * BLOCK, &mut out).unwrap();
        assert_eq!(got, (to.min(self.0.len()).saturating_sub(from)) * 4096, "{why}");
        for (i, block) in out[..got].chunks(4096).enumerate() {
            assert!(block.iter().all(|byte| *byte == self.0[from + i]), "{why}: block {}", from + i);
        }
    }
}

/// Random uses of a file that is forgotten, unmounted, crashed and cleaned all the time, also in
/// steps with changes between: what is read, and which blocks are free, is as it should be.
/// HOMENODE_FS_PIECES says how many uses there are.
#[test]
fn any_use_of_a_file_that_is_read_in_part_does_what_a_table_of_blocks_does() {
    const BLOCKS: usize = 900;
    let (uses, seed) = (setting("HOMENODE_FS_PIECES", 600), setting("HOMENODE_FS_SEED", 1));
    let mut rng = StdRng::seed_from_u64(seed);
    let ram = Ram::new(blank(&[1200, 1100]));
    format_with(Box::new(ram.clone()), 1, true);
    let mount = |ram: &Ram| {
        let volume = mount_whole(Box::new(ram.clone()), options(2)).unwrap();
        volume.leave_logs(Some(64));
        volume
    };
    let mut volume = mount(&ram);
    let file = create(&volume, "f").unwrap();
    // Many extents from the beginning, in no order.
    let mut model = Model(vec![0; BLOCKS]);
    let mut order: Vec<usize> = (0..BLOCKS).step_by(2).collect();
    order.shuffle(&mut rng);
    volume.truncate(file, BLOCKS as u64 * BLOCK).unwrap();
    for at in order {
        volume.write(file, at as u64 * BLOCK, &[1; 4096]).unwrap();
        model.0[at] = 1;
    }
    let (mut forgotten, mut parts) = (0, 0);
    for i in 0..uses {
        let (at, many) = (rng.random_range(0..BLOCKS), rng.random_range(1..4));
        let (to, len, tag) = (at + many, model.0.len(), rng.random_range(1..=255_u8));
        let why = format!("use {i} of seed {seed}");
        match rng.random_range(0..40) {
            // Short files have no pieces: most of the time it grows again.
            0..20 => {
                let (at, to) = if rng.random_range(0..3) > 0 { (at, at + 1) } else { (at, to) };
                volume.write(file, at as u64 * BLOCK, &vec![tag; (to - at) * 4096]).unwrap();
                model.0.resize(len.max(to), 0);
                model.0[at..to].fill(tag);
            }
            20 => {
                volume.append(file, &[tag; 4096]).unwrap();
                model.0.push(tag);
                if model.0.len() > BLOCKS {
                    volume.truncate(file, BLOCKS as u64 * BLOCK).unwrap();
                    model.0.truncate(BLOCKS);
                }
            }
            21 => {
                let size = if rng.random_range(0..60) == 0 { rng.random_range(0..BLOCKS) } else { len.max(at) };
                volume.truncate(file, size as u64 * BLOCK).unwrap();
                model.0.resize(size, 0);
            }
            22 if at < len => {
                volume.punch_hole(file, at as u64 * BLOCK, many as u64 * BLOCK).unwrap();
                model.0[at..to.min(len)].fill(0);
            }
            23 => {
                volume.migrate_file(file, rng.random_range(0..2), Some(4), |_| rng.random_range(0..30) > 0).unwrap();
            }
            24 => _ = volume.drop_history(file).unwrap(),
            25 => {
                let mut writes = rng.random_range(0..6);
                let done = volume.clean_in_steps(file, 64, || {
                    if writes > 0 && !model.0.is_empty() {
                        writes -= 1;
                        let at = rng.random_range(0..model.0.len());
                        volume.write(file, at as u64 * BLOCK, &[tag; 4096]).unwrap();
                        model.0[at] = tag;
                    }
                    true
                });
                done.unwrap();
            }
            26 => while volume.clean_left() || volume.give_back() {},
            27..32 => {
                forget(&volume, file);
                forgotten += 1;
            }
            32 if rng.random_range(0..4) == 0 => {
                // Without an unmount half of the time.
                if rng.random() {
                    volume.unmount().unwrap();
                    crate::settled(Box::new(ram.clone()));
                } else {
                    drop(volume);
                }
                volume = mount(&ram);
            }
            33 if rng.random_range(0..4) == 0 => {
                let stat = volume.stat(file).unwrap();
                let mapped = volume.map(file).unwrap().iter().map(|run| run.count).sum::<u64>();
                assert_eq!(stat.blocks, mapped, "{why}");
                model.check(&volume, file, (0, BLOCKS + 8), &why);
            }
            _ => {
                parts += u64::from(volume.extents(file).unwrap() > 300);
                model.check(&volume, file, (at, to), &why);
            }
        }
    }
    model.check(&volume, file, (0, BLOCKS + 8), "at the end");
    volume.unlink(Ino::ROOT, b"f").unwrap();
    volume.unmount().unwrap();
    let volume = mount(&ram);
    assert_eq!(crate::used(&volume), 1, "the root's log");
    println!("{uses} uses, {forgotten} times forgotten, {parts} looks at more than 300 extents");
    assert!(parts > 0);
}

/// A crash at each fence of uses of a file that is read in part: it is as before the use or after
/// it, whole, and no block is lost.
#[test]
fn a_crash_in_a_use_of_a_file_that_is_read_in_part_leaves_the_old_or_the_new() {
    use std::sync::Mutex;
    let before = fragmented(400).image();
    let blocks_of = |image: Image| {
        let ram = Ram::new(image);
        let volume = mount_whole(Box::new(ram.clone()), options(1)).unwrap();
        let file = volume.resolve(b"/f").ok();
        let map = file.map(|file| (volume.stat(file).unwrap().size, volume.map(file).unwrap()));
        // What was unread at the crash is read again, and the same.
        volume.unmount().unwrap();
        crate::settled(Box::new(ram));
        map
    };
    type Use = fn(&Volume, Ino);
    let uses: [(&str, Use); 6] = [
        ("write", |volume, file| volume.write(file, 300 * BLOCK, &[5; 4096]).unwrap()),
        ("append", |volume, file| volume.append(file, &[5; 4096]).map(drop).unwrap()),
        ("truncate", |volume, file| volume.truncate(file, 201 * BLOCK).unwrap()),
        ("chmod", |volume, file| {
            volume.set_attributes(file, SetAttributes { mode: Some(0o600), ..SetAttributes::default() }).unwrap();
        }),
        ("clean", |volume, file| _ = volume.clean_in_steps(file, 64, || true).unwrap()),
        ("unlink", |volume, _| volume.unlink(Ino::ROOT, b"f").unwrap()),
    ];
    for (what, work) in uses {
        let recorder = Recorder::new(before.clone());
        let volume = mount_whole(Box::new(recorder.clone()), options(1)).unwrap();
        let file = volume.resolve(b"/f").unwrap();
        let images = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&images);
        recorder.on_fence(Some(Box::new(move |point: &crate::medium::CrashPoint<'_>| {
            // None of what is in flight, and all of it.
            let mut all = point.durable.clone();
            for ((region, line), state) in point.in_flight {
                all[*region][*line as usize * 64..][..64].copy_from_slice(state.versions.last().unwrap());
            }
            keep.lock().unwrap().extend([point.durable.clone(), all]);
        })));
        work(&volume, file);
        recorder.on_fence(None);
        let mut last = Image::new();
        recorder.look(|point| last.clone_from(point.durable));
        let (old, new) = (blocks_of(before.clone()), blocks_of(last));
        let images = std::mem::take(&mut *images.lock().unwrap());
        assert!(!images.is_empty(), "{what}");
        for image in images {
            let found = blocks_of(image);
            assert!(found == old || found == new, "{what}: neither old nor new");
        }
    }
}
