//! How much a mount reads, after a crash and after an unmount. HOMENODE_FS_EXTENTS sets of how many
//! extents (default 20,000), HOMENODE_FS_FILES of how many files (16); the times and the memory are
//! printed, and asserted is what was read.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fs::medium::{Mapped, RegionFile};
use fs::{Ino, NewFile, Volume};

use crate::medium::counting;
use crate::{format, free, fresh, mount_whole, options};

/// kB of this process's own memory that are in use.
fn in_use() -> u64 {
    // SAFETY: gives free memory back to the system, and that is all.
    unsafe { libc::malloc_trim(0) };
    memory()
}

fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_mount_after_an_unmount_reads_the_checkpoint_and_no_logs() {
    let setting = |name, default| std::env::var(name).map_or(default, |n| n.parse().unwrap());
    let (extents, files): (u64, u64) = (setting("HOMENODE_FS_EXTENTS", 20_000), setting("HOMENODE_FS_FILES", 16));
    let memfd = File::from(rustix::fs::memfd_create("recovery", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    memfd.set_len((extents + extents / 32 + 4096) * 4096 + files * (16_384 + 128)).unwrap(); // an inode per 16 KiB
    let bytes = Arc::new(AtomicU64::new(0));
    let map = || {
        let region = RegionFile { file: memfd.try_clone().unwrap(), bind: None };
        Box::new(counting(Mapped::new(&[region]).unwrap(), &bytes))
    };
    format(map(), 1);
    let volume = mount_whole(map(), options(2)).unwrap();
    let (empty, began) = (in_use(), Instant::now());
    for file in 0..files {
        let new = NewFile { mode: 0o644, ..NewFile::default() };
        let ino = volume.create(Ino::ROOT, format!("{file}").as_bytes(), new).unwrap().ino;
        for i in 0..extents / files {
            volume.allocate(ino, i * 8192, 4096, true).unwrap(); // every other block: no two extents join
        }
        assert_eq!(volume.map(ino).unwrap().len() as u64, extents / files);
    }
    let touched = std::os::unix::fs::MetadataExt::blocks(&memfd.metadata().unwrap()) * 512;
    println!("{extents} extents in {files} files: {:?}, {touched} bytes of the region", began.elapsed());
    println!("all used since the mount: {} kB", in_use().saturating_sub(empty));
    drop(volume);
    let mount = |what: &str| {
        bytes.store(0, Ordering::Relaxed);
        let (done, before) = (AtomicU64::new(0), in_use());
        let (volume, took, most) = std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut most = 0;
                while done.load(Ordering::Relaxed) == 0 {
                    most = most.max(memory());
                    std::thread::sleep(Duration::from_millis(1));
                }
                most
            });
            let begin = Instant::now();
            let volume = mount_whole(map(), options(2)).unwrap();
            let took = begin.elapsed();
            done.store(1, Ordering::Relaxed);
            (volume, took, watch.join().unwrap())
        });
        let read = bytes.load(Ordering::Relaxed);
        let (most, left) = (most.saturating_sub(before), in_use().saturating_sub(before));
        println!("{what}: {took:?}, {read} bytes read, {most} kB meanwhile, {left} kB afterwards");
        (volume, read)
    };
    let (volume, recovery) = mount("after a crash");
    let free = volume.usage().regions[0].free_blocks;
    volume.unmount().unwrap();
    let (volume, clean) = mount("after an unmount");
    assert_eq!(volume.usage().regions[0].free_blocks, free);
    assert!(recovery > extents * 64, "each extent is an entry of 64 bytes");
    // A bit for each inode, and few free runs: a checkpoint block has 507 words.
    assert!(clean < 100_000 + files / 4, "{clean}");
    assert_eq!(volume.map(volume.resolve(b"3").unwrap()).unwrap().len() as u64, extents / files);
}

/// A server that took over freed what programs had open, and gave its number away.
#[test]
fn what_a_kernel_may_know_outlives_its_server() {
    let inheriting = || fs::Options { inherits: true, ..options(1) };
    let (ram, volume) = fresh(&[400, 400]);
    let before = free(&volume);
    let make = |volume: &Volume, name: &[u8]| {
        let stat = volume.create(Ino::ROOT, name, NewFile { mode: 0o644, ..NewFile::default() }).unwrap();
        volume.write(stat.ino, 0, &[7; 9000]).unwrap();
        volume.remember(stat.ino).unwrap();
        stat.ino
    };
    let removed = make(&volume, b"removed");
    volume.unlink(Ino::ROOT, b"removed").unwrap();
    let named = make(&volume, b"named");
    let read = |volume: &Volume, ino: Ino| {
        let mut data = [0; 9000];
        assert_eq!(volume.read(ino, 0, &mut data).unwrap(), 9000);
        assert_eq!((data, volume.stat(ino).unwrap().attributes.links), ([7; 9000], 0));
    };
    drop(volume); // as a crash
    let volume = mount_whole(Box::new(ram.clone()), inheriting()).unwrap();
    read(&volume, removed);
    assert_eq!(volume.leaving(), 1);
    // This server never told of it, and the kernel knows it all the same.
    volume.unlink(Ino::ROOT, b"named").unwrap();
    read(&volume, named);
    assert_eq!(volume.leaving(), 2);
    drop(volume);
    let volume = mount_whole(Box::new(ram.clone()), inheriting()).unwrap();
    [removed, named].iter().for_each(|ino| read(&volume, *ino));
    let mut numbers: Vec<Ino> = (0..9).map(|i| make(&volume, &[b'a' + i])).collect();
    assert!(!numbers.contains(&removed) && !numbers.contains(&named));
    let asked = volume.take_forgotten();
    assert_eq!(asked, [(removed.min(named), 0), (removed.max(named), 0)], "nobody knows who has them open");
    // The kernel says that it does not know one of them, and forgets the other later.
    volume.is_unknown(removed, 0).unwrap();
    assert!(volume.stat(removed).is_err());
    read(&volume, named);
    // Told once more by this server, which the kernel does not know by the time it forgets.
    volume.remember(named).unwrap();
    volume.forget(named, 3).unwrap();
    volume.remember(named).unwrap();
    let asked = volume.take_forgotten();
    assert_eq!(asked, [(named, 0)]);
    volume.is_unknown(named, 0).unwrap();
    read(&volume, named);
    volume.forget(named, 1).unwrap();
    assert!(volume.stat(named).is_err(), "it counts as any other from here on");
    for (i, ino) in numbers.drain(..).enumerate() {
        volume.unlink(Ino::ROOT, &[b'a' + i as u8]).unwrap();
        volume.forget(ino, 1).unwrap();
    }
    assert!(free(&volume) >= before - 1, "the root directory's log may have grown");
    drop(volume);
    // In order; and what somebody else has used since is not taken over.
    mount_whole(Box::new(ram.clone()), inheriting()).unwrap().unmount().unwrap();
    crate::settled(Box::new(ram.clone()));
    assert!(Volume::mount(Box::new(ram), inheriting()).is_err());
}

/// A kernel that ends a mount need not close each file: of files that were removed while they were
/// open, the next mount knew nothing, and read all logs.
#[test]
fn an_unmount_closes_what_is_open() {
    let (ram, volume) = fresh(&[400, 400]);
    let before = free(&volume);
    for i in 0..9 {
        let ino = volume.create(Ino::ROOT, b"file", NewFile { mode: 0o644, ..NewFile::default() }).unwrap().ino;
        volume.write(ino, 0, &[i; 9000]).unwrap();
        match i % 2 {
            0 => volume.open(ino).unwrap(),
            _ => volume.remember(ino).unwrap(),
        }
        volume.unlink(Ino::ROOT, b"file").unwrap();
    }
    assert_eq!(volume.leaving(), 4, "those that are not open");
    volume.unmount().unwrap();
    crate::settled(Box::new(ram.clone()));
    let volume = mount_whole(Box::new(ram), options(1)).unwrap();
    assert!(free(&volume) >= before - 1, "the root directory's log may have grown");
}
