//! Real memory: two memfds, and two files found by their names.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use fs::medium::{At, Mapped, Medium, RegionFile};
use fs::{Error, Ino, Layout, NewFile, Options, Volume};
use rustix::fs::MemfdFlags;

use crate::{format, format_twice, layout, log_pages, options, settled};

fn memfd(len: u64) -> File {
    let file = File::from(rustix::fs::memfd_create("homenode", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(len).unwrap();
    file
}

fn map(files: &[File]) -> Box<dyn Medium> {
    let files: Vec<_> = files.iter().map(|f| RegionFile { file: f.try_clone().unwrap(), bind: None }).collect();
    let mut mapped = Mapped::new(&files).unwrap();
    mapped.assume_persistent(); // so that the instructions run
    Box::new(mapped)
}

/// The whole way: mkfs, create, write, crash, recover, read, where, migrate, check.
#[test]
fn a_volume_on_two_memfds() {
    let files = [memfd(1 << 20), memfd(2 << 20)];
    format(map(&files), 2);
    let data: Vec<u8> = (0..300_000).map(|i| (i / 7) as u8).collect();

    let volume = Volume::mount(map(&files), options(2)).unwrap();
    let file = volume.create(Ino::ROOT, b"file", NewFile { mode: 0o644, ..NewFile::default() }).unwrap().ino;
    volume.write(file, 0, &data).unwrap();
    drop(volume); // no unmount

    let volume = Volume::mount(map(&files), options(2)).unwrap();
    let read = |volume: &Volume| {
        let mut out = vec![0; data.len() + 10];
        let len = volume.read(file, 0, &mut out).unwrap();
        out.truncate(len);
        out
    };
    assert!(read(&volume) == data);
    let nodes = volume.bytes_by_node(file).unwrap();
    assert_eq!(nodes.values().sum::<u64>(), 74 * 4096);
    assert_eq!(nodes[&Some(0)], 42 * 4096, "stripes of 16 blocks: 0–15, 32–47 and 64–73 are on node 0");

    let mut asked = 0;
    let migrated = volume
        .migrate_file(file, 1, None, |progress| {
            asked += 1;
            assert_eq!(progress.blocks, 74);
            true
        })
        .unwrap();
    assert_eq!((migrated.moved, migrated.overtaken, migrated.cancelled), (42, 0, false));
    assert_eq!(asked, 5, "before each of three runs, at their end, and before the log");
    assert_eq!(volume.bytes_by_node(file).unwrap().keys().collect::<Vec<_>>(), [&Some(1)]);
    assert!(read(&volume) == data);
    volume.unmount().unwrap();

    settled(map(&files));
    assert!(read(&Volume::mount(map(&files), options(2)).unwrap()) == data);
}

/// Makes a volume whose regions have names.
fn mkfs_named(regions: &[RegionFile], paths: &[impl AsRef<Path>]) {
    let names = paths.iter().map(|path| path.as_ref().to_str().unwrap().as_bytes().to_vec()).collect();
    fs::mkfs(Box::new(Mapped::new(regions).unwrap()), &Layout { volume: [9; 16], names, ..layout() }).unwrap();
}

#[test]
fn the_regions_of_a_volume_are_found_from_any_one_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<_> = ["one", "two", "three"].iter().map(|name| dir.path().join(name)).collect();
    let mut files = Vec::new();
    for path in &paths {
        let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
        file.set_len(1 << 18).unwrap();
        files.push(RegionFile { file, bind: None });
    }
    mkfs_named(&files, &paths);

    let error = fs::open_files(&paths[..1]).unwrap_err();
    assert!(matches!(error, Error::InUse), "{error}: `files` still has them");
    drop(files);
    for path in &paths {
        let mapped = fs::open_files(std::slice::from_ref(path)).unwrap();
        Volume::mount(Box::new(mapped), options(1)).unwrap().unmount().unwrap();
    }
    let moved = dir.path().join("moved");
    std::fs::rename(&paths[1], &moved).unwrap();
    let error = fs::open_files(&paths[..1]).unwrap_err();
    assert!(matches!(&error, Error::RegionMissing(1, path) if *path == paths[1]), "{error}");
    let mapped = fs::open_files(&[paths[0].clone(), moved.clone()]).unwrap();
    Volume::mount(Box::new(mapped), options(1)).unwrap();
    let error = fs::open_files(&[moved.clone(), moved]).unwrap_err();
    assert!(matches!(&error, Error::NotAVolume(why) if why.contains("twice")), "{error}");
}

/// Mounted by one of its copied regions, a copy took the other region of the original, wrote to it,
/// and made both useless without a word.
#[test]
fn a_copy_of_a_volume_does_not_write_to_the_original() {
    let dir = tempfile::tempdir().unwrap();
    let [paths, copies] = ["", "copy-"].map(|of| ["one", "two"].map(|name| dir.path().join(format!("{of}{name}"))));
    let files = paths.each_ref().map(|path| {
        let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
        file.set_len(1 << 18).unwrap();
        RegionFile { file, bind: None }
    });
    mkfs_named(&files, &paths);
    drop(files);
    let mount = |paths: &[std::path::PathBuf]| {
        let options = Options { clock: Arc::new(clock_ns), ..options(1) };
        Volume::mount(Box::new(fs::open_files(paths).unwrap()), options)
    };
    mount(&paths).unwrap().unmount().unwrap();
    for (path, copy) in paths.iter().zip(&copies) {
        std::fs::copy(path, copy).unwrap();
    }
    for copy in &copies {
        let refused = fs::open_files(std::slice::from_ref(copy)).unwrap_err().to_string();
        assert!(refused.contains("is a copy of it: give all regions"), "{refused}");
    }
    // All of them are a volume of their own, which has a life of its own from then on.
    mount(&copies).unwrap().unmount().unwrap();
    mount(&paths).unwrap().unmount().unwrap();
    for mixed in [[&paths[0], &copies[1]], [&copies[0], &paths[1]]] {
        let mixed = mixed.map(Clone::clone);
        let refused = mount(&mixed).err().unwrap().to_string();
        assert!(refused.contains("mounted apart"), "{refused}");
        assert!(fs::fsck::check(Box::new(fs::open_files(&mixed).unwrap())).is_err());
    }
    // So is a region that was put back from a backup.
    std::fs::copy(&paths[1], &copies[1]).unwrap();
    mount(&paths).unwrap().unmount().unwrap();
    std::fs::copy(&copies[1], &paths[1]).unwrap();
    assert!(mount(&paths).err().unwrap().to_string().contains("region 1 and region 0 were last mounted apart"));
}

/// Another time at each call.
fn clock_ns() -> i64 {
    static NOW: AtomicI64 = AtomicI64::new(1 << 40);
    NOW.fetch_add(1 << 30, Ordering::Relaxed)
}

#[test]
fn an_access_outside_of_a_region_fails() {
    let mapped = map(&[memfd(8192)]);
    let at = |offset| fs::medium::At { region: 0, offset };
    assert!(mapped.read(at(8190), &mut [0; 4]).is_err());
    assert!(mapped.write(at(u64::MAX), &[0; 4]).is_err());
    assert!(mapped.flush(at(8192), 1).is_err());
    assert!(mapped.load_u64(at(4)).is_err(), "not aligned");
    assert!(mapped.store_u64(fs::medium::At { region: 1, offset: 0 }, 1).is_err());
    assert!(mapped.write(at(8188), &[0; 4]).is_ok());
}

/// An image names its other regions, and root opened whatever that was, as a tape or a watchdog.
#[test]
fn names_in_an_image_lead_to_files_only() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (dir.path().join("one"), dir.path().join("other"));
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&one).unwrap();
    file.set_len(1 << 20).unwrap();
    let regions = [file, memfd(1 << 20)].map(|file| RegionFile { file, bind: None });
    mkfs_named(&regions, &[&one, &other]);
    drop(regions);
    rustix::fs::mknodat(rustix::fs::CWD, &other, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let refused = fs::open_files(&[one]).unwrap_err().to_string();
    assert!(refused.contains("neither a file nor device DAX"), "{refused}");
    assert!(fs::open_files(&["/dev/null".into()]).is_err());
}

/// A mount filled any sparse file that an image named, such as /var/log/lastlog, before it saw that
/// it was no region.
#[test]
fn only_regions_of_the_volume_get_all_their_blocks() {
    const LEN: u64 = 1 << 23;
    let dir = tempfile::tempdir().unwrap();
    let paths = ["one", "two"].map(|name| dir.path().join(name));
    let sparse = |path| {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap();
        file.set_len(LEN).unwrap();
        file
    };
    let files = paths.each_ref().map(|path| RegionFile { file: sparse(path), bind: None });
    mkfs_named(&files, &paths);
    drop(files);
    let blocks = |path| std::fs::metadata(path).unwrap().blocks() * 512;
    let open = || fs::open_files(&paths[..1]).unwrap();
    let region = std::fs::read(&paths[1]).unwrap();
    drop(sparse(&paths[1]));
    let error = fs::open_files(&paths[..1]).map(drop).unwrap_err();
    assert!(matches!(&error, Error::NotAVolume(why) if why.contains("region 1")), "{error}");
    assert!(blocks(&paths[0]) >= LEN && blocks(&paths[1]) < LEN / 2, "{}", blocks(&paths[1]));
    std::fs::write(&paths[1], &region[..1 << 18]).unwrap();
    File::options().write(true).open(&paths[1]).unwrap().set_len(LEN).unwrap();
    Volume::mount(Box::new(open()), options(1)).unwrap();
    assert!(blocks(&paths[0]) >= LEN && blocks(&paths[1]) >= LEN);
}

/// A line that cannot be read ended the server of all users.
#[test]
fn memory_that_cannot_be_read_is_an_error_of_its_file_alone() {
    if !cfg!(target_arch = "x86_64") {
        return;
    }
    let file = memfd(4 << 20);
    let files = [file.try_clone().unwrap()];
    let new = NewFile { mode: 0o644, ..NewFile::default() };
    format(map(&files), 1);
    let volume = Volume::mount(map(&files), options(1)).unwrap();
    let [good, data] = [&b"good"[..], b"data"].map(|name| {
        let ino = volume.create(Ino::ROOT, name, new).unwrap().ino;
        volume.write(ino, 0, &[7; 4096]).unwrap();
        ino
    });
    // The end of one file comes last, and then its memory goes.
    volume.write(data, 0, &vec![8; 3_500_000]).unwrap();
    let end = volume.map(data).unwrap().last().map(|run| run.block.index() + run.count).unwrap() - 2;
    file.set_len(end * 4096).unwrap();
    let mut out = [0; 4096];
    let failed = volume.read(data, 3_495_000, &mut out).map_err(|e| e.errno());
    assert_eq!(failed, Err(libc::EIO));
    assert_eq!((volume.read(good, 0, &mut out).unwrap(), out), (4096, [7; 4096]));
}

/// The first page of an inode's log.
#[cfg(target_arch = "x86_64")]
fn log(files: &[File], ino: Ino) -> fs::Block {
    let bytes = |file: &File| {
        let mut bytes = vec![0; 4 << 20];
        std::os::unix::fs::FileExt::read_exact_at(file, &mut bytes, 0).unwrap();
        bytes
    };
    let pages = log_pages(&files.iter().map(bytes).collect(), ino);
    // The other copy is elsewhere.
    let (_, region, at) = *pages.iter().find(|page| page.1 == ino.region()).unwrap();
    fs::Block::new(region, at as u64 / 4096)
}

/// From now on this page of a mapped region fails as memory does: an access is a SIGBUS.
#[cfg(target_arch = "x86_64")]
fn fail(region: &File, page: u64) {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ino = region.metadata().unwrap().ino().to_string();
    let line = maps.lines().find(|line| line.split_ascii_whitespace().nth(4) == Some(&ino)).unwrap();
    let base = usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    let place = std::ptr::with_exposed_provenance_mut(base + page as usize * 4096);
    let (empty, access) = (memfd(0), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: one page of a mapping that this test has made, and whose memory only the volume uses.
    let mapped = unsafe { mmap(place, 4096, access, MapFlags::SHARED | MapFlags::FIXED, &empty, 0) };
    assert_eq!(mapped.unwrap(), place);
}

/// Stores to it ended the process, with the mount of all others.
#[cfg(target_arch = "x86_64")]
#[test]
fn memory_that_fails_is_an_error_for_who_uses_it_and_nobody_gets_it_again() {
    use fs::Placement::Node;
    for persistent in [false, true] {
        let files = [memfd(4 << 20), memfd(4 << 20)];
        format(map(&files), 2);
        let regions = files.each_ref().map(|file| RegionFile { file: file.try_clone().unwrap(), bind: None });
        let mut medium = Mapped::new(&regions).unwrap();
        if persistent {
            medium.assume_persistent();
        }
        let superblock = fs::superblock_of(&medium, 0).unwrap();
        let volume = Volume::mount(Box::new(medium), options(1)).unwrap();
        let create = |name: &str| {
            volume.create(Ino::ROOT, name.as_bytes(), NewFile { mode: 0o644, ..NewFile::default() }).unwrap().ino
        };
        let eio = |done: fs::Result<()>| match done {
            Err(Error::Io(error)) => assert_eq!(error.raw_os_error(), Some(libc::EIO)),
            done => panic!("{done:?}"),
        };
        let block = |ino: Ino, at: u64| {
            let run = *volume.map(ino).unwrap().iter().find(|run| (run.file_block..run.end()).contains(&at)).unwrap();
            run.block.offset(at - run.file_block)
        };
        let fail = |block: fs::Block| fail(&files[block.region()], block.index());

        // File data: a read, a migration, and none of what lies beside it.
        let (data, other) = (create("data"), create("other"));
        volume.write_to(data, 0, &[1; 40 * 4096], Node(0)).unwrap();
        volume.write_to(other, 0, &[2; 4096], Node(1)).unwrap();
        fail(block(data, 3));
        let mut out = [0; 4096];
        eio(volume.read(data, 3 * 4096, &mut out).map(drop));
        assert_eq!(volume.read(data, 4 * 4096, &mut out).unwrap(), 4096);
        eio(volume.migrate_file(data, 1, None, |_| true).map(drop));
        assert_eq!(volume.failed_count(), 1);
        volume.write(data, 3 * 4096, &[3; 4096]).unwrap();
        assert!(!volume.migrate_file(data, 1, None, |_| true).unwrap().cancelled);
        assert_eq!(volume.bytes_by_node(data).unwrap().keys().collect::<Vec<_>>(), [&Some(1)]);

        // Memory that is free, and is given to somebody.
        let gone = create("gone");
        volume.write_to(gone, 0, &[4; 20 * 4096], Node(0)).unwrap();
        let bad: Vec<fs::Block> = (5..10).map(|at| block(gone, at)).collect();
        volume.unlink(Ino::ROOT, b"gone").unwrap();
        bad.iter().for_each(|block| fail(*block));
        let new = create("new");
        let (mut written, mut errors) = (0, 0);
        while written < 200 {
            match volume.write_to(new, written * 4096, &[5; 4096], Node(0)) {
                Ok(()) => written += 1,
                failed => {
                    eio(failed);
                    errors += 1;
                }
            }
        }
        assert!((1..=5).contains(&errors), "each is met once: {errors}");
        assert_eq!(volume.failed_count(), 1 + errors);

        // The page where a log goes on: the next change has another one.
        fail(log(&files, other));
        eio(volume.write(other, 0, &[6; 4096]));
        volume.write(other, 0, &[7; 4096]).unwrap();

        // The line of an inode: only those that lie beside it cannot be changed either.
        let table = |ino: Ino| superblock.inode_at(ino).unwrap().0;
        let used = [Ino::ROOT, data, other, new].map(table);
        let apart = (0..200).map(|i| create(&format!("many{i}"))).find(|ino| !used.contains(&table(*ino))).unwrap();
        fail(table(apart));
        eio(volume.write(apart, 0, &[8; 4096]));
        // What changes several lines went on until one had failed, and the volume was in doubt.
        eio(volume.link(apart, Ino::ROOT, b"second").map(drop));
        assert!(!volume.in_doubt());
        volume.write(other, 0, &[7; 4096]).unwrap();

        volume.unmount().unwrap();
        settled(map(&files));
        let volume = Volume::mount(map(&files), options(1)).unwrap();
        for (ino, len, bytes) in [(data, 40, [1, 3]), (other, 1, [7, 7]), (new, 200, [5, 5])] {
            let mut out = vec![0; len * 4096 + 1];
            assert_eq!(volume.read(ino, 0, &mut out).unwrap(), len * 4096);
            let right = |(at, byte): (usize, &u8)| *byte == bytes[usize::from(at / 4096 == 3 && len == 40)];
            assert!(out[..len * 4096].iter().enumerate().all(right));
        }
    }
}

/// It ended the process where memory had failed since the store.
#[cfg(target_arch = "x86_64")]
#[test]
fn memory_that_cannot_be_written_back_is_an_error() {
    let file = memfd(1 << 20);
    let medium = map(std::slice::from_ref(&file));
    let at = |offset| At { region: 0, offset };
    medium.write(at(4096 - 32), &[1; 128]).unwrap();
    fail(&file, 1);
    assert_eq!(medium.flush(at(4096 - 32), 128).map_err(|error| error.errno()), Err(libc::EIO));
    medium.flush(at(4096 - 32), 32).unwrap();
    medium.fence().unwrap();
}

/// A store to a line that had failed in one copy was made in the other alone. The flush of that
/// line then ended the server, and that of an orphan each later mount.
#[cfg(target_arch = "x86_64")]
#[test]
fn memory_that_fails_in_one_copy_is_an_error_and_ends_no_server() {
    use crate::model::observe;
    let new = NewFile { mode: 0o644, ..NewFile::default() };
    let mut refused = 0;
    for (persistent, in_twin, what) in [true, false]
        .into_iter()
        .flat_map(|p| [true, false].map(|t| (p, t)))
        .flat_map(|(p, t)| ["table", "other table", "log", "journal", "other journal"].map(|what| (p, t, what)))
    {
        let files = [memfd(4 << 20), memfd(4 << 20)];
        format_twice(map(&files), false);
        let open = || {
            let regions = files.each_ref().map(|file| RegionFile { file: file.try_clone().unwrap(), bind: None });
            let mut medium = Mapped::new(&regions).unwrap();
            if persistent {
                medium.assume_persistent();
            }
            Box::new(medium)
        };
        let superblock = fs::superblock_of(&*open(), 0).unwrap();
        let volume = Volume::mount(open(), options(1)).unwrap();
        let create = |name: &str| volume.create(Ino::ROOT, name.as_bytes(), new).unwrap().ino;
        let on = |node: u32, name: &str| fs::on_node(node, || create(name));
        let (file, other) = (on(0, "file"), on(1, "other"));
        let unnamed = fs::on_node(1, || volume.create_unnamed(Ino::ROOT, new).unwrap().ino);
        assert_eq!((file.region(), other.region(), unnamed.region()), (0, 1, 1));
        volume.write(file, 0, &[1; 9000]).unwrap();
        volume.write(other, 0, &[2; 9000]).unwrap();
        let first = match what {
            "table" => superblock.inode_at(file).unwrap().0,
            "other table" => superblock.inode_at(other).unwrap().0,
            "log" => log(&files, other),
            "journal" => superblock.journals_of(0).next().unwrap(),
            _ => superblock.journals_of(1).next().unwrap(),
        };
        let (area, twin, from) = superblock.twin(first.region()).unwrap();
        let (region, page) = match in_twin {
            true => (twin, from + first.index() - area.start),
            false => (first.region(), first.index()),
        };
        let case = format!("{what}, twin: {in_twin}, persistent: {persistent}");
        fail(&files[region], page);
        let change = |volume: &Volume, again: u8| {
            let name = |of: &str| format!("{of}{again}").into_bytes();
            let done = [
                volume.write(file, 4096, &[again; 5000]),
                volume.write(other, 4096, &[again; 5000]),
                volume.link(other, Ino::ROOT, &name("link")).map(drop),
                fs::on_node(1, || volume.create(Ino::ROOT, &name("new"), new)).map(drop),
                volume.set_xattr(other, b"user.a", &[again; 100], fs::SetXattr::Any),
                volume.rename((Ino::ROOT, &name("new")), (Ino::ROOT, &name("to")), fs::Rename::Replace),
                volume.unlink(Ino::ROOT, &name("link")),
                volume.clean(other).map(drop),
            ];
            let mut errors = 0;
            for done in done {
                match done.map_err(|error| error.errno()) {
                    Ok(()) => {}
                    Err(libc::EIO | libc::ENOENT) => errors += 1,
                    Err(errno) => panic!("{case}: errno {errno}"),
                }
            }
            assert!(!volume.in_doubt(), "{case}");
            errors
        };
        let errors = change(&volume, 3);
        refused += usize::from(errors > 0);
        assert!(errors > 0 || what.contains("journal"), "{case}");
        let tree = observe(&volume);
        drop(volume);
        for again in [4, 5] {
            let (medium, tree) = (open(), &tree);
            fail(&files[region], page);
            let look = Volume::look(medium, options(1)).unwrap();
            assert!(look.damage().is_empty() && observe(&look) == *tree, "{case}: {:?}", look.damage());
            drop(look);
            let medium = open();
            fail(&files[region], page);
            let volume = Volume::mount(medium, options(1)).unwrap();
            assert!(volume.damage().is_empty() && observe(&volume) == *tree, "{case}: {:?}", volume.damage());
            let made = fs::on_node(1, || volume.create_unnamed(Ino::ROOT, new));
            assert!(made.is_ok() || !what.contains("journal"), "{case}: {made:?}");
            match again {
                4 => volume.unmount().unwrap(),
                _ => drop(volume),
            }
        }
        // It can be read again, and says what it said before.
        let volume = Volume::mount(open(), options(1)).unwrap();
        assert!(volume.damage().is_empty() && observe(&volume) == tree, "{case}: {:?}", volume.damage());
        assert_eq!(change(&volume, 6), 0, "{case}");
        let tree = observe(&volume);
        volume.unmount().unwrap();
        let report = fs::fsck::check(open()).unwrap();
        assert!(report.clean && report.damage.is_empty() && report.orphans.is_empty(), "{case}: {report:?}");
        assert_eq!(observe(&Volume::mount(open(), options(1)).unwrap()), tree);
    }
    assert!(refused > 10, "{refused}");
}
