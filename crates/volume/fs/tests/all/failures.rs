//! Media that fail: a host file system without room, a broken disk.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use fs::medium::{At, Mapped, Medium, RegionFile};
use fs::{Error, Ino, NewFile, Rename, Result, Volume};

use crate::medium::{Access, Ram, Watched, counting};
use crate::{formatted, mount_whole, options};

/// Memory of which one fence fails or panics: that after so many others. None does below 0.
fn failing(ram: &Ram, fences: &Arc<AtomicI64>, panics: bool) -> Box<dyn Medium> {
    let fences = Arc::clone(fences);
    let fail = move |access: Access| {
        if matches!(access, Access::Fence) && fences.fetch_sub(1, Ordering::Relaxed) == 0 {
            assert!(!panics, "a fault, as this test wants it");
            return Err(std::io::Error::from_raw_os_error(libc::EIO).into());
        }
        Ok(())
    };
    Box::new(Watched(ram.clone(), Box::new(fail)))
}

fn new(mode: u32) -> NewFile<'static> {
    NewFile { mode, ..NewFile::default() }
}

/// What an operation does to a volume with files `f`, of ones, and `g`.
type Act = fn(&Volume, Ino, Ino) -> Result<()>;

const ACTS: [(&str, Act); 8] = [
    ("create", |v, _, _| v.create(Ino::ROOT, b"new", new(0o644)).map(drop)),
    ("mkdir", |v, _, _| v.create(Ino::ROOT, b"new", new(0o40755)).map(drop)),
    ("write", |v, f, _| v.write(f, 0, &[7; 8192])),
    ("append", |v, f, _| (0..80).try_for_each(|_| v.append(f, &[7; 4096]).map(drop))),
    ("rename", |v, _, _| v.rename((Ino::ROOT, b"f"), (Ino::ROOT, b"g"), Rename::Replace)),
    ("unlink", |v, _, _| v.unlink(Ino::ROOT, b"f")),
    ("clean", |v, _, g| v.clean(g)),
    ("migrate", |v, f, _| v.migrate_file(f, 1, None, |_| true).map(drop)),
];

/// Blocks of an operation whose fence failed were given to others and overwritten, though the
/// medium may name them; an inode whose name may be there was marked as free, and no later mount
/// was possible.
#[test]
fn after_a_failed_fence_nothing_is_stored_and_the_next_mount_finds_old_or_new() {
    for (name, act) in ACTS {
        let mut failed = 0;
        for nth in 0..6 {
            let ram = formatted(&[400, 400]);
            let fences = Arc::new(AtomicI64::new(-1));
            let volume = mount_whole(failing(&ram, &fences, false), options(1)).unwrap();
            let [f, g] = [b"f", b"g"].map(|name| volume.create(Ino::ROOT, name, new(0o644)).unwrap().ino);
            volume.write(f, 0, &[1; 40960]).unwrap();
            // A log that is worth cleaning.
            (0..70).for_each(|i| volume.write(g, i % 5 * 4096, &[2; 4096]).unwrap());
            fences.store(nth, Ordering::Relaxed);
            let done = act(&volume, f, g);
            if fences.load(Ordering::Relaxed) >= 0 {
                continue;
            }
            failed += 1;
            assert!(matches!(done, Err(Error::Io(_))), "{name}, fence {nth}: {done:?}");
            let then = ram.image();
            for change in [
                volume.write(g, 0, &[9; 4096 * 30]),
                volume.append(f, &[9; 4096 * 100]).map(drop),
                volume.create(Ino::ROOT, b"x", new(0o644)).map(drop),
                volume.unlink(Ino::ROOT, b"g"),
                volume.truncate(g, 0),
            ] {
                assert!(matches!(change, Err(Error::ReadOnly)), "{name}, fence {nth}: {change:?}");
            }
            assert!(matches!(volume.unmount(), Err(Error::ReadOnly)));
            assert!(ram.image() == then, "{name}, fence {nth}: something was stored");
            let report = fs::fsck::check(Box::new(ram.clone())).unwrap();
            assert_eq!(report.damage, [], "{name}, fence {nth}");
            let volume = mount_whole(Box::new(ram), options(2)).unwrap();
            let Ok(f) = volume.lookup(Ino::ROOT, b"f") else {
                assert!(["rename", "unlink"].contains(&name));
                continue;
            };
            let mut data = [0; 40960];
            assert_eq!(volume.read(f.ino, 0, &mut data).unwrap(), data.len());
            let (first, rest) = data.split_at(8192);
            assert!([1, 7].iter().any(|byte| first.iter().all(|b| b == byte)) && rest.iter().all(|b| *b == 1));
        }
        assert!(failed >= 2, "{name} has {failed} fences");
    }
}

/// Another thread's fence returned without a sync: its stores were acknowledged and not durable.
#[test]
fn a_failed_msync_is_not_forgotten() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = File::options().read(true).write(true).create_new(true).open(dir.path().join("region")).unwrap();
    file.set_len(1 << 20).unwrap();
    let mapped = Mapped::new(&[RegionFile { file: file.try_clone().unwrap(), bind: None }]).unwrap();
    let at = At { region: 0, offset: 0 };
    let fence = || {
        mapped.write(at, &[1; 64]).unwrap();
        mapped.flush(at, 64).unwrap();
        mapped.fence()
    };
    fence().unwrap();
    // Without its last page, msync of the mapping fails.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.ends_with(dir.path().join("region").to_str().unwrap())).unwrap();
    let end = usize::from_str_radix(line.split(['-', ' ']).nth(1).unwrap(), 16).unwrap();
    // SAFETY: nobody accesses this page.
    unsafe { rustix::mm::munmap((end - 4096) as *mut _, 4096) }.unwrap();
    let failed = fence().unwrap_err();
    assert_eq!(failed.errno(), libc::EIO, "{failed}");
    assert!(mapped.fence().is_err(), "what another thread has flushed before is not durable either");
    assert!(fence().is_err());
}

/// A fault of the code within a commit left tail and state apart, and the next write went to blocks
/// that the medium might name.
#[test]
fn after_a_panic_within_a_commit_nothing_is_stored() {
    let (ram, fences) = (formatted(&[400]), Arc::new(AtomicI64::new(-1)));
    let volume = mount_whole(failing(&ram, &fences, true), options(1)).unwrap();
    let file = volume.create(Ino::ROOT, b"f", new(0o644)).unwrap().ino;
    volume.write(file, 0, &[1; 8192]).unwrap();
    fences.store(1, Ordering::Relaxed);
    let write = || volume.write(file, 0, &[2; 8192]);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(write)).unwrap_err();
    let stored = ram.image();
    assert!(matches!(volume.write(file, 0, &[3; 8192]), Err(Error::ReadOnly)));
    assert!(matches!(volume.create(Ino::ROOT, b"g", new(0o644)), Err(Error::ReadOnly)));
    assert!(ram.image() == stored);
    drop(volume);
    let volume = mount_whole(Box::new(ram), options(1)).unwrap();
    let mut out = [0; 8192];
    volume.read(file, 0, &mut out).unwrap();
    assert!(out == [1; 8192] || out == [2; 8192]);
}

/// A checkpoint's chain that leads back to itself was read as often as the volume has blocks, with
/// memory for each time.
#[test]
fn a_checkpoint_that_leads_in_a_circle_is_read_once() {
    let ram = formatted(&[400]);
    mount_whole(Box::new(ram.clone()), options(1)).unwrap().unmount().unwrap();
    let mut image = ram.image();
    let block = image[0].chunks_mut(4096).rfind(|block| &block[4..8] == b"HCKP").unwrap();
    let reads = |image| {
        let bytes = Arc::default();
        drop(mount_whole(Box::new(counting(Ram::new(image), &bytes)), options(1)).unwrap());
        bytes.load(Ordering::Relaxed)
    };
    block.copy_within(8..16, 16);
    let unsealed = image.clone();
    let block = image[0].chunks_mut(4096).rfind(|block| &block[4..8] == b"HCKP").unwrap();
    let crc = crc32c::crc32c(&block[4..]);
    block[..4].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(reads(image), reads(unsealed));
}

/// A new inode of which the line was stored and could not be written back was in nobody's memory,
/// and an unmount said that there is none.
#[test]
fn an_inode_that_cannot_be_written_back_is_an_orphan() {
    let (ram, is_bad) = (formatted(&[400]), Arc::new(AtomicBool::new(false)));
    let (block, _) = fs::superblock_of(&ram, 0).unwrap().inode_at(Ino::ROOT).unwrap();
    let fails = Arc::clone(&is_bad);
    let check = move |access: Access| match access {
        Access::Flush(at) if at.offset / 4096 == block.index() && fails.swap(false, Ordering::Relaxed) => {
            Err(std::io::Error::from_raw_os_error(libc::EIO).into())
        }
        _ => Ok(()),
    };
    let volume = mount_whole(Box::new(Watched(ram.clone(), Box::new(check))), options(1)).unwrap();
    is_bad.store(true, Ordering::Relaxed);
    let made = volume.create(Ino::ROOT, b"f", new(0o644));
    assert!(matches!(made, Err(Error::Io(_))), "{made:?}");
    volume.create(Ino::ROOT, b"g", new(0o644)).unwrap();
    volume.unmount().unwrap();
    assert_eq!(crate::sound(Box::new(ram.clone())).orphans.len(), 1);
    mount_whole(Box::new(ram.clone()), options(1)).unwrap().unmount().unwrap();
    crate::settled(Box::new(ram));
}
