//! A volume, or one region of it, that is full.

use fs::{Error, Ino, NewFile, Placement, SetAttributes, SetXattr, Volume};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::crash::use_and_empty;
use crate::medium::{Ram, Sparse, blank};
use crate::{REGIONS, create, formatted, fresh, layout, options, used};

fn volume() -> Volume {
    Volume::mount(Box::new(formatted(&REGIONS)), options(2)).unwrap()
}

#[test]
fn a_full_region_hands_over_to_the_next_and_counts_it() {
    let volume = volume();
    let file = create(&volume, "file").unwrap();
    for block in 0..50 {
        volume.write_to(file, block * 4096, &[1; 4096], Placement::Node(0)).unwrap();
    }
    let usage = volume.usage();
    assert_eq!(usage.regions[0].free_blocks, usage.regions[0].reserved_blocks);
    let nodes = volume.bytes_by_node(file).unwrap();
    assert_eq!(nodes[&Some(0)] + nodes[&Some(1)], 50 * 4096);
    assert_eq!(usage.regions[1].traffic.fallback_blocks * 4096, nodes[&Some(1)]);
    assert!(matches!(volume.write_to(file, 0, &[1], Placement::Node(7)), Err(Error::NoRegionOnNode(7))));
    let moved = volume.migrate_file(file, 0, None, |_| true);
    assert!(matches!(moved, Err(Error::NoSpace)), "{moved:?}");
    use_and_empty(&volume).unwrap();
}

#[test]
fn a_full_volume_refuses_growth_keeps_its_data_and_can_be_emptied() {
    let volume = volume();
    let mut files = Vec::new();
    let full = loop {
        match create(&volume, &format!("file {}", files.len())).and_then(|ino| {
            files.push(ino);
            volume.write(ino, 0, &[files.len() as u8; 9000])
        }) {
            Ok(()) => {}
            Err(e) => break e,
        }
    };
    assert!(matches!(full, Error::NoSpace), "{full}");
    let last = files.pop().unwrap();
    let mut data = [0; 9000];
    for (i, ino) in files.iter().enumerate() {
        assert_eq!(volume.read(*ino, 0, &mut data).unwrap(), 9000);
        assert!(data.iter().all(|byte| *byte == i as u8 + 1), "file {i}");
    }
    assert!(matches!(volume.write(files[0], 0, &[0; 1 << 20]), Err(Error::NoSpace)));
    assert_eq!(volume.stat(files[0]).unwrap().size, 9000);
    volume.truncate(last, 0).unwrap();
    use_and_empty(&volume).unwrap();
}

/// HOMENODE_FS_FILES files on a volume that has room for half of them: those that fit are made, the
/// rest are refused, and when all are deleted each block and each inode is free again.
#[test]
fn more_files_than_fit_are_refused_and_give_everything_back() {
    let files = std::env::var("HOMENODE_FS_FILES").map_or(4000, |n| n.parse().unwrap());
    // Of 4 KiB of log and 64 bytes of inode for each file, once the blocks run out and once the
    // inodes.
    for bytes_per_inode in [4096, 16384] {
        let memfd = std::fs::File::from(rustix::fs::memfd_create("files", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        memfd.set_len(files / 2 * (4096 + 64)).unwrap();
        let map = || {
            let region = fs::medium::RegionFile { file: memfd.try_clone().unwrap(), bind: None };
            Box::new(fs::medium::Mapped::new(&[region]).unwrap())
        };
        fs::mkfs(map(), &fs::Layout { bytes_per_inode, ..layout() }).unwrap();
        let volume = Volume::mount(map(), options(2)).unwrap();
        let free = |volume: &Volume| {
            let region = &volume.usage().regions[0];
            (region.free_blocks, region.free_inodes)
        };
        let before = free(&volume);
        let made = (0..files).take_while(|i| create(&volume, &i.to_string()).is_ok()).count() as u64;
        let Err(error) = create(&volume, "one more") else { panic!("{made} files") };
        assert_eq!(error.errno(), libc::ENOSPC);
        assert!(made < files && made >= files / 2 * 4096 / bytes_per_inode.max(4350), "{made}");
        println!("{made} of {files} files fit, {:?} blocks and inodes left", free(&volume));
        drop(volume);
        let volume = Volume::mount(map(), options(2)).unwrap();
        (0..made).for_each(|i| volume.unlink(Ino::ROOT, i.to_string().as_bytes()).unwrap());
        volume.clean(Ino::ROOT).unwrap();
        assert_eq!(free(&volume), before);
    }
}

fn change_mode(volume: &Volume, ino: Ino, times: u32) {
    for mode in 0..times {
        volume.set_attributes(ino, SetAttributes { mode: Some(mode & 0o777), ..SetAttributes::default() }).unwrap();
    }
}

/// Appends blocks until there is no room: how many.
fn fill(volume: &Volume, ino: Ino) -> u64 {
    (0..).map_while(|i| volume.append(ino, &[i as u8; 4096]).ok()).count() as u64
}

/// Logs of two pages of which one is history, too short to be cleaned before there is need.
#[test]
fn a_full_volume_first_cleans_logs_that_are_half_history() {
    for unmounted in [false, true] {
        let ram = formatted(&REGIONS);
        let volume = Volume::mount(Box::new(ram.clone()), options(2)).unwrap();
        let names: Vec<String> = (0..15).map(|i| i.to_string()).collect();
        let data = create(&volume, "data").unwrap();
        for name in &names {
            change_mode(&volume, create(&volume, name).unwrap(), 70);
        }
        assert_eq!(used(&volume), 1 + 1 + 2 * 15, "the root, the empty file, and two pages for each other one");
        let volume = if unmounted {
            volume.unmount().unwrap();
            Volume::mount(Box::new(ram), options(2)).unwrap()
        } else {
            volume
        };
        let room: u64 = volume.usage().regions.iter().map(|r| r.blocks - r.reserved_blocks).sum();
        assert_eq!(fill(&volume, data), room - (1 + 1 + 15), "unmounted: {unmounted}");
        // What frees nothing by itself has room as well: each of these takes a slot of a log, and
        // its pages come back.
        for round in 0..10 {
            for name in &names {
                let to = format!("{name}-{round}");
                let _ = volume.link(volume.resolve(name.as_bytes()).unwrap(), Ino::ROOT, to.as_bytes());
                let _ = volume.unlink(Ino::ROOT, to.as_bytes());
            }
        }
        for name in &names {
            volume.unlink(Ino::ROOT, name.as_bytes()).unwrap();
        }
        assert!(fill(&volume, data) >= 14, "what the files had");
        use_and_empty(&volume).unwrap();
    }
}

/// Whatever happened before: when a volume says that it is full, cleaning every log gives nothing
/// back.
#[test]
fn a_volume_is_full_only_when_no_log_can_give_a_block() {
    let mut full = 0;
    for seed in 0..40 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let volume = volume();
        let mut files: Vec<(String, Ino)> = Vec::new();
        for i in 0..600 {
            let which = rng.random_range(0..files.len().max(1));
            let Some((name, ino)) = files.get(which).cloned() else {
                files.push((i.to_string(), create(&volume, &i.to_string()).unwrap()));
                continue;
            };
            let done = match rng.random_range(0..12) {
                // A create without inodes is no reason to clean logs.
                0 | 1 if volume.usage().regions.iter().all(|region| region.free_inodes == 0) => continue,
                0 | 1 => create(&volume, &i.to_string()).map(|ino| files.push((i.to_string(), ino))),
                2 => volume.unlink(Ino::ROOT, name.as_bytes()).map(|()| drop(files.remove(which))),
                3 => volume.truncate(ino, rng.random_range(0..20_000)),
                4..8 => volume.write(ino, rng.random_range(0..8) * 4096, &vec![1; rng.random_range(1..3) * 4096]),
                8 => volume.punch_hole(ino, rng.random_range(0..8) * 4096, 4096),
                9 => volume.set_xattr(ino, b"user.x", &vec![1; rng.random_range(0..2000)], SetXattr::Any),
                _ => {
                    let mode = SetAttributes { mode: Some(rng.random_range(0..512)), ..SetAttributes::default() };
                    (0..30).try_for_each(|_| volume.set_attributes(ino, mode).map(|_| ()))
                }
            };
            match done {
                Ok(()) => {}
                Err(Error::NoSpace) => {
                    full += 1;
                    let before = used(&volume);
                    for ino in files.iter().map(|file| file.1).chain([Ino::ROOT]) {
                        volume.clean(ino).unwrap();
                    }
                    assert_eq!(used(&volume), before, "seed {seed}, {i}");
                }
                Err(e) => panic!("seed {seed}, {i}: {e}"),
            }
        }
        files.iter().for_each(|(name, _)| volume.unlink(Ino::ROOT, name.as_bytes()).unwrap());
        use_and_empty(&volume).unwrap();
    }
    println!("full {full} times");
    assert!(full > 100, "{full}");
}

#[test]
fn threads_that_fill_a_volume_together_leave_no_room() {
    for _ in 0..20 {
        let volume = volume();
        let files: Vec<Ino> = (0..4).map(|i| create(&volume, &i.to_string()).unwrap()).collect();
        std::thread::scope(|scope| {
            for ino in &files {
                let volume = &volume;
                scope.spawn(move || {
                    for mode in 0..200 {
                        let mode = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
                        volume.set_attributes(*ino, mode).and_then(|_| volume.append(*ino, &[1; 4096])).ok();
                    }
                });
            }
        });
        let room: u64 = volume.usage().regions.iter().map(|r| r.blocks - r.reserved_blocks).sum();
        assert!(used(&volume) >= room - 1, "{} of {room}", used(&volume));
        use_and_empty(&volume).unwrap();
    }
}

/// Files in each directory of [`many_files_take_a_block_each_and_give_everything_back`].
const PER_DIRECTORY: u64 = 1_000;

/// HOMENODE_FS_NAMES files (20,000), with a crash after half of them. Prints what a mount takes.
#[test]
fn many_files_take_a_block_each_and_give_everything_back() {
    let files = std::env::var("HOMENODE_FS_NAMES").map_or(20_000, |n| n.parse::<u64>().unwrap());
    let directories = files.div_ceil(PER_DIRECTORY);
    // A log page each; an inode each, 64 to a block; two names in three lines of a log, at most.
    let medium = Sparse::new(files + files / 20 + 8 * directories + 1000);
    let layout = fs::Layout { nodes: vec![Some(0)], bytes_per_inode: 4096, ..layout() };
    fs::mkfs(Box::new(medium.clone()), &layout).unwrap();
    let mount = |what: &str| {
        // In a thread of its own: else the C library sorts the memory that the volume before had,
        // for seconds.
        let mounted = || {
            let begin = std::time::Instant::now();
            (Volume::mount(Box::new(medium.clone()), options(2)).unwrap(), begin.elapsed())
        };
        let (volume, took) = std::thread::scope(|scope| scope.spawn(mounted).join().unwrap());
        let used = volume.usage().regions[0].inodes - volume.usage().regions[0].free_inodes;
        println!("{what}: mounted with {used} inodes in {took:?}; the medium keeps {} bytes", medium.kept());
        volume
    };
    let name = |directory: u64, file: u64| format!("{directory}/{file}").into_bytes();
    let free = |volume: &Volume| (volume.usage().regions[0].free_inodes, volume.usage().regions[0].free_blocks);

    let mut volume = mount("new");
    let empty = free(&volume);
    for directory in 0..directories {
        let new = NewFile { mode: 0o040_755, ..NewFile::default() };
        let dir = volume.create(Ino::ROOT, format!("{directory}").as_bytes(), new).unwrap().ino;
        for file in 0..PER_DIRECTORY {
            volume.create(dir, format!("{file}").as_bytes(), NewFile { mode: 0o644, ..NewFile::default() }).unwrap();
        }
        // What was used is in memory until then.
        if directory + 1 == directories / 2 {
            let before = free(&volume);
            drop(volume);
            volume = mount("after a crash");
            assert_eq!(free(&volume), before);
        } else if (directory + 1) % 500 == 0 {
            volume.unmount().unwrap();
            volume = mount("after an unmount");
        }
    }
    let full = free(&volume);
    volume.unmount().unwrap();
    volume = mount("all, after an unmount");
    assert_eq!(free(&volume), full);
    assert_eq!(empty.0 - full.0, directories * (PER_DIRECTORY + 1));
    for i in 0..1000 {
        let directory = i * 7919 % directories;
        let ino = volume.resolve(&name(directory, i)).unwrap();
        assert_eq!((volume.stat(ino).unwrap().size, volume.stat(ino).unwrap().blocks), (0, 0));
        assert!(matches!(volume.resolve(&name(directory, PER_DIRECTORY)), Err(Error::NotFound)));
    }
    for directory in 0..directories {
        let dir = volume.resolve(format!("{directory}").as_bytes()).unwrap();
        for file in 0..PER_DIRECTORY {
            volume.unlink(dir, format!("{file}").as_bytes()).unwrap();
        }
        volume.rmdir(Ino::ROOT, format!("{directory}").as_bytes()).unwrap();
    }
    volume.clean(Ino::ROOT).unwrap();
    assert_eq!(free(&volume), empty);
}

/// A request for more than there is took all free blocks one run after the other, and others found
/// none meanwhile.
#[test]
fn who_asks_for_too_much_takes_nothing() {
    let volume = volume();
    let file = create(&volume, "file").unwrap();
    for keep_size in [true, false] {
        assert!(matches!(volume.allocate(file, 0, 1 << 50, keep_size), Err(Error::NoSpace)));
        assert!(matches!(volume.zero_range(file, 0, 1 << 50, keep_size), Err(Error::NoSpace)));
    }
    // Interleaved blocks would have come from the other region when the first was full.
    let fell_back: u64 = volume.usage().regions.iter().map(|r| r.traffic.fallback_blocks).sum();
    assert_eq!(fell_back, 0);
}

/// Any user could use up the blocks that are kept for emptying a full volume, with holes where
/// there are none, or by a byte of the size: then nobody could remove a file any more.
#[test]
fn what_frees_no_block_leaves_the_reserve_alone() {
    type Change = fn(&Volume, Ino, u64) -> Result<(), Error>;
    let changes: [Change; 2] =
        [|v, file, n| v.punch_hole(file, 8192 * (n % 7), 4096), |v, file, n| v.truncate(file, (1 << 30) - n - 1)];
    for change in changes {
        let (_, volume) = fresh(&[1500]);
        let other = create(&volume, "other").unwrap();
        // With every number of names in the last page of the log.
        let dirs: Vec<Ino> = (0..64)
            .map(|i| {
                let new = NewFile { mode: 0o40755, ..NewFile::default() };
                let dir = volume.create(Ino::ROOT, format!("d{i}").as_bytes(), new).unwrap().ino;
                (0..=i).for_each(|j| _ = volume.link(other, dir, format!("n{j}").as_bytes()).unwrap());
                dir
            })
            .collect();
        let files: Vec<Ino> = (0..200).map(|i| create(&volume, &format!("f{i}")).unwrap()).collect();
        files.iter().for_each(|file| volume.truncate(*file, 1 << 30).unwrap());
        let big = create(&volume, "big").unwrap();
        while volume.append(big, &[1; 4096]).is_ok() {}
        for n in 0..400 {
            if files.iter().filter(|file| change(&volume, **file, n).is_ok()).count() == 0 {
                break;
            }
        }
        let usage = volume.usage().regions[0];
        assert!(usage.free_blocks >= usage.reserved_blocks, "{usage:?}");
        dirs.iter().for_each(|dir| volume.unlink(*dir, b"n0").unwrap());
    }
}

/// A write over blocks of a file takes as many as it gives back. It failed for want of room, and
/// what programs had stored in mapped pages was lost when the kernel wrote it.
#[test]
fn a_full_volume_takes_writes_over_what_files_have() {
    const BLOCKS: u64 = 300;
    for (size, step) in [(20_000, 256), (2_000, 256), (2_000, 1), (2_000, 7)] {
        let (ram, volume) = fresh(&[size]);
        let file = create(&volume, "file").unwrap();
        let write = |volume: &Volume, with: u8| {
            for at in (0..BLOCKS).step_by(step) {
                let blocks = (step as u64).min(BLOCKS - at);
                volume.write(file, at * 4096, &vec![with; blocks as usize * 4096]).unwrap();
            }
        };
        write(&volume, 1);
        let filler = create(&volume, "filler").unwrap();
        fill(&volume, filler);
        for with in 2..6 {
            write(&volume, with);
        }
        assert!(matches!(volume.write(file, (BLOCKS - 1) * 4096, &[9; 8192]), Err(Error::NoSpace)), "it would grow");
        let volume = Volume::mount(Box::new(ram), options(1)).unwrap();
        let mut all = vec![0; BLOCKS as usize * 4096];
        assert_eq!(volume.read(file, 0, &mut all).unwrap(), all.len());
        assert!(all.iter().all(|byte| *byte == 5), "{size} {step}");
        volume.unlink(Ino::ROOT, b"filler").unwrap();
        use_and_empty(&volume).unwrap();
    }
}

/// What `fallocate` promises (xfstests, generic/274).
#[test]
fn blocks_that_were_allocated_are_written_also_when_the_volume_is_full() {
    for (checksums, keep_size) in [(false, false), (true, true)] {
        let ram = Ram::new(blank(&[3000]));
        crate::format_with(Box::new(ram.clone()), 1, checksums);
        let volume = Volume::mount(Box::new(ram.clone()), options(1)).unwrap();
        let file = create(&volume, "file").unwrap();
        volume.write(file, 0, &[1; 5000]).unwrap();
        volume.allocate(file, 0, 1200 * 4096, keep_size).unwrap();
        let filler = create(&volume, "filler").unwrap();
        fill(&volume, filler);
        let mut expected = vec![0; 1200 * 4096];
        expected[..5000].fill(1);
        // Here and there, so that hardly any two join.
        for i in 0..1200_u64 {
            let at = (i * 487 % 1200 * 4096 + 100) as usize;
            let len = if i % 3 == 0 { 3000 } else { 3996 };
            expected[at..at + len].fill(i as u8 | 1);
            volume.write(file, at as u64, &vec![i as u8 | 1; len]).unwrap();
        }
        let volume = Volume::mount(Box::new(ram), options(1)).unwrap();
        let size = volume.stat(file).unwrap().size as usize;
        let mut all = vec![0; size];
        assert_eq!(volume.read(file, 0, &mut all).unwrap(), size);
        assert!(all == expected[..size] && size >= 1199 * 4096, "{size}");
        volume.unlink(Ino::ROOT, b"filler").unwrap();
        use_and_empty(&volume).unwrap();
    }
}

/// Changes that take nothing for long have room: they failed when the page of a log was full.
#[test]
fn a_full_volume_changes_attributes_and_names() {
    let (_, volume) = fresh(&[2000]);
    let file = create(&volume, "file").unwrap();
    volume.set_xattr(file, b"user.a", b"value", SetXattr::Any).unwrap();
    let filler = create(&volume, "filler").unwrap();
    fill(&volume, filler);
    for i in 0..1000 {
        change_mode(&volume, file, 1);
        let time = SetAttributes { mtime: Some(i), ..SetAttributes::default() };
        volume.set_attributes(file, time).unwrap();
        volume.rename((Ino::ROOT, b"file"), (Ino::ROOT, b"other"), fs::Rename::Replace).unwrap();
        volume.rename((Ino::ROOT, b"other"), (Ino::ROOT, b"file"), fs::Rename::Replace).unwrap();
        volume.set_xattr(file, b"user.a", &i.to_string().into_bytes()[..1], SetXattr::Replace).unwrap();
    }
    volume.remove_xattr(file, b"user.a").unwrap();
    volume.unlink(Ino::ROOT, b"filler").unwrap();
    use_and_empty(&volume).unwrap();
}

/// Each failing operation read the logs of all files that had changed, and of others beside them.
#[test]
fn a_write_that_finds_no_room_looks_at_no_log_that_has_nothing_to_give() {
    let (_, volume) = fresh(&[20_000]);
    let file = create(&volume, "fragments").unwrap();
    (0..4000).for_each(|i| volume.allocate(file, i * 8192, 4096, false).unwrap());
    let filler = create(&volume, "filler").unwrap();
    fill(&volume, filler);
    let rounds = 300;
    let before = volume.looks();
    for _ in 0..rounds {
        change_mode(&volume, file, 1);
        assert!(matches!(volume.append(filler, &[1; 4096]), Err(Error::NoSpace)));
    }
    assert!(volume.looks() - before <= rounds / 16 + 2, "{} of {rounds}", volume.looks() - before);
}

/// Any user could have the server read every long log into memory for good, and write logs of
/// others anew, by asking for more than there is, on a volume that was not full.
#[test]
fn who_asks_for_too_much_has_no_log_cleaned_and_keeps_none_in_memory() {
    let (ram, volume) = fresh(&[4000]);
    let mine = create(&volume, "mine").unwrap();
    let names: Vec<String> = (0..20).map(|i| i.to_string()).collect();
    names.iter().for_each(|name| change_mode(&volume, create(&volume, name).unwrap(), 70));
    volume.unmount().unwrap();
    let volume = Volume::mount(Box::new(ram), options(1)).unwrap();
    volume.stat(mine).unwrap();
    let (in_memory, before) = (volume.inodes_in_memory(), used(&volume));
    let ask = |blocks: u64| assert!(matches!(volume.allocate(mine, 0, blocks * 4096, false), Err(Error::NoSpace)));
    ask(1 << 30);
    assert_eq!((volume.inodes_in_memory(), used(&volume), volume.looks()), (in_memory, before, 0));
    // More than there is room for, and fewer than the region has: what nobody uses is read and
    // cleaned, once.
    let most = 3900;
    assert!(most < volume.usage().regions[0].blocks);
    ask(most);
    assert_eq!((volume.inodes_in_memory(), used(&volume)), (in_memory, before - 20));
    let file = volume.resolve(b"3").unwrap();
    change_mode(&volume, file, 70);
    let (before, looks) = (used(&volume), volume.looks());
    ask(most);
    assert_eq!((used(&volume), volume.looks()), (before, looks), "all logs together have less than is missing");
    // Nor does it help where no inode is left.
    while create(&volume, &format!("more {}", used(&volume))).is_ok() {}
    let inodes: u64 = volume.usage().regions.iter().map(|region| region.free_inodes).sum();
    assert_eq!((inodes, volume.looks()), (0, looks));
    // But what is there to win is won where it is enough.
    let room = volume.usage().regions[0].free_blocks - volume.usage().regions[0].reserved_blocks;
    volume.allocate(mine, 0, (room + 1) * 4096, false).unwrap();
    volume.unlink(Ino::ROOT, b"mine").unwrap();
    use_and_empty(&volume).unwrap();
}

/// It was written anew in one piece, while others waited for the file, and again after each page of
/// new history.
#[test]
fn a_full_volume_cleans_a_long_log_in_steps_and_not_for_each_page() {
    let (ram, volume) = fresh(&[8000]);
    let file = create(&volume, "fragments").unwrap();
    (0..4000).for_each(|i| volume.allocate(file, i * 8192, 4096, false).unwrap());
    change_mode(&volume, file, 150);
    let filler = create(&volume, "filler").unwrap();
    fill(&volume, filler);
    let map = volume.map(file).unwrap();
    let before = used(&volume);
    volume.clean(file).unwrap();
    assert_eq!(used(&volume), before, "it is as short as can be");
    change_mode(&volume, file, 130);
    fill(&volume, filler);
    assert_eq!(used(&volume), before);
    let looks = volume.looks();
    change_mode(&volume, file, 55);
    fill(&volume, filler);
    assert_eq!(volume.looks(), looks, "a page is less than a 64th of it");
    drop(volume);
    let volume = Volume::mount(Box::new(ram), options(1)).unwrap();
    assert!(volume.damage().is_empty());
    assert_eq!(volume.map(file).unwrap(), map);
    assert_eq!(volume.stat(file).unwrap().attributes.mode & 0o777, 54);
    use_and_empty(&volume).unwrap();
}

/// A user could use up all that is kept by removing names of a file that stays, or by writes to
/// set-user-ID files. Then no log could be cleaned, and nobody could remove or overwrite a file.
#[test]
fn what_frees_nothing_at_once_leaves_a_block_for_cleaning() {
    type Drain = fn(&Volume, Ino, Ino);
    type Least = fn(u64) -> u64;
    let drains: [(Drain, Least); 3] = [
        (|volume, dir, _| volume.unlink(dir, b"n0").unwrap(), |reserve| reserve / 2),
        (|volume, _, own| _ = volume.drop_privileges(own, true).unwrap(), |reserve| reserve / 2),
        (|volume, dir, _| volume.unlink(dir, b"own").unwrap(), |_| 1), // its blocks come back later, as it is open
    ];
    for (drain, least) in drains {
        let (_, volume) = fresh(&[4000]);
        let reserve = volume.usage().regions[0].reserved_blocks;
        let other = create(&volume, "other").unwrap();
        // The page of each log is full.
        let make = |i| {
            let new = NewFile { mode: 0o40755, ..NewFile::default() };
            let dir = volume.create(Ino::ROOT, format!("d{i}").as_bytes(), new).unwrap().ino;
            let own = volume.create(dir, b"own", NewFile { mode: 0o644, ..NewFile::default() }).unwrap().ino;
            change_mode(&volume, own, 61);
            let mode = SetAttributes { mode: Some(0o4755), ..SetAttributes::default() };
            volume.set_attributes(own, mode).unwrap();
            volume.open(own).unwrap();
            (0..61).for_each(|j| _ = volume.link(other, dir, format!("n{j}").as_bytes()).unwrap());
            (dir, own)
        };
        let all: Vec<_> = (0..reserve + 20).map(make).collect();
        let filler = create(&volume, "filler").unwrap();
        fill(&volume, filler);
        let free = || volume.usage().regions[0].free_blocks;
        let left = all.iter().map(|(dir, own)| {
            drain(&volume, *dir, *own);
            free()
        });
        let left = left.min().unwrap();
        assert!((least(reserve)..reserve).contains(&left), "{left} of {reserve}");
        all.iter().for_each(|(_, own)| volume.close(*own).unwrap());
        use_and_empty(&volume).unwrap();
    }
}
