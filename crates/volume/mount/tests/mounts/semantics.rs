//! Every operation, through the kernel.

use std::fs::{self, File, OpenOptions};
use std::io::{Error, Read, Result, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use mount::Cache;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid,
    XattrFlags, fallocate, renameat_with, utimensat,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use testing::{Case, cases, mounting};

use crate::harness::{Mount, rings};

pub const CASES: &[Case] = cases![[mounting()]
    files_without_a_name_get_one_or_none,
    times_that_users_set_are_kept_or_taken_to_the_nearest,
    directories_of_many_names_are_listed_whole,
    renames_replace_refuse_or_exchange,
    overlayfs_writes_its_upper_layer_to_a_volume,
    extended_attributes,
    holes_and_preallocation,
    what_another_process_wrote_through_a_mapping_is_copied_by_programs_that_skip_holes,
    appends_of_several_processes_do_not_overlap,
    direct_input_and_output_of_several_threads,
    a_buffered_read_after_an_asynchronous_direct_write_is_new,
    a_full_volume_takes_stores_to_mapped_pages,
    a_full_volume_takes_writes_into_preallocated_space,
    a_write_of_one_request_is_whole_for_readers_past_the_cache,
    locks_wait_and_end_with_their_process,
    writing_and_owners_take_privileges,
    a_program_that_was_written_runs_without_its_owners_rights,
    usage_is_told,
    a_removed_directory_is_still_somebodys_place,
];

const CACHES: [Cache; 3] = [Cache::Kernel, Cache::Direct, Cache::Writeback];
/// Some user and group that own nothing.
pub const USER: u32 = 12345;

fn errno<T>(result: Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// Runs a shell script as [`USER`], in a directory; the errors of its programs are in English. The
/// tests' own links to programs can be below a home that no other user enters.
pub fn as_user(dir: &Path, script: &str) -> std::process::Output {
    let user = USER.to_string();
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--reuid", &user, "--regid", &user, "--clear-groups", "sh", "-ec", script]);
    setpriv.current_dir(dir).env("PATH", "/usr/bin:/bin").env("LC_ALL", "C").output().unwrap()
}

fn files_without_a_name_get_one_or_none() {
    for cache in CACHES {
        let mount = Mount::new(cache, 32);
        let data: Vec<u8> = (0..3_000_000_u32).map(|i| (i / 7) as u8).collect();
        // Linux 6.2 and later ask for one.
        let unnamed = OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open(mount.dir());
        match unnamed {
            Ok(file) => {
                file.write_all_at(&data, 0).unwrap();
                assert_eq!((file.metadata().unwrap().nlink(), fs::read_dir(mount.dir()).unwrap().count()), (0, 0));
                let (old, follow) = (format!("/proc/self/fd/{}", file.as_raw_fd()), AtFlags::SYMLINK_FOLLOW);
                rustix::fs::linkat(CWD, &old, CWD, mount.path("named"), follow).unwrap();
                assert!(fs::read(mount.path("named")).unwrap() == data && file.metadata().unwrap().nlink() == 1);
                fs::remove_file(mount.path("named")).unwrap();
                let exclusive = libc::O_TMPFILE | libc::O_EXCL;
                let file = OpenOptions::new().write(true).custom_flags(exclusive).open(mount.dir()).unwrap();
                let old = format!("/proc/self/fd/{}", file.as_raw_fd());
                let refused = rustix::fs::linkat(CWD, &old, CWD, mount.path("named"), follow);
                assert_eq!(refused, Err(rustix::io::Errno::NOENT), "it was asked for a file that never has a name");
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP)),
        }
        // What makes it durable works on a directory, too.
        File::open(mount.dir()).unwrap().sync_all().unwrap();
        mount.end();
    }
}

fn times_that_users_set_are_kept_or_taken_to_the_nearest() {
    let mount = Mount::new(Cache::Kernel, 8);
    File::create(mount.path("f")).unwrap();
    let set = |tv_sec, tv_nsec| {
        let time = Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, mount.path("f"), &times, AtFlags::empty()).unwrap();
        let found = fs::metadata(mount.path("f")).unwrap();
        assert_eq!((found.atime(), found.atime_nsec()), (found.mtime(), found.mtime_nsec()));
        (found.mtime(), found.mtime_nsec())
    };
    assert_eq!(set(5, 6), (5, 6));
    assert_eq!(set(-2, 700_000_000), (-2, 700_000_000));
    assert_eq!(set(i64::MIN, 5), (-9_223_372_037, 145_224_192), "1677");
    assert_eq!(set(i64::MAX, 999_999_999), (9_223_372_036, 854_775_807), "2262");
    // Reading changes nothing.
    fs::write(mount.path("f"), b"x").unwrap();
    let before = fs::metadata(mount.path("f")).unwrap();
    fs::read(mount.path("f")).unwrap();
    assert_eq!(fs::metadata(mount.path("f")).unwrap().atime_nsec(), before.atime_nsec());
    mount.end();
}

fn directories_of_many_names_are_listed_whole() {
    let mount = Mount::new(Cache::Kernel, 32);
    let names: Vec<String> = (0..3000).map(|i| format!("{i:0>width$}", width = 1 + i % 200)).collect();
    let expected: std::collections::BTreeSet<_> = names.iter().cloned().collect();
    expected.iter().for_each(|name| drop(File::create(mount.path(name)).unwrap()));
    for _ in 0..2 {
        let mut found = std::collections::BTreeSet::new();
        for entry in fs::read_dir(mount.dir()).unwrap() {
            let entry = entry.unwrap();
            assert!(entry.metadata().unwrap().is_file());
            assert!(found.insert(entry.file_name().into_string().unwrap()), "listed twice");
        }
        assert!(found == expected, "{} of {}", found.len(), expected.len());
    }
    // A program that renames what it lists comes to an end, and one that lists again sees all.
    let renamed = fs::read_dir(mount.dir()).unwrap().zip(0..).inspect(|(entry, i)| {
        assert!(*i < 2 * names.len(), "the listing has no end");
        fs::rename(entry.as_ref().unwrap().path(), mount.path(&format!("renamed{i}"))).unwrap();
    });
    assert!(renamed.count() >= expected.len());
    assert_eq!(fs::read_dir(mount.dir()).unwrap().count(), expected.len());
    // Removing while listing leaves nothing behind.
    for entry in fs::read_dir(mount.dir()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert_eq!(fs::read_dir(mount.dir()).unwrap().count(), 0);
    mount.end();
}

fn renames_replace_refuse_or_exchange() {
    let mount = Mount::new(Cache::Kernel, 16);
    let content = |name: &str| fs::read_to_string(mount.path(name)).unwrap();
    let rename = |from: &str, to: &str, flags| {
        renameat_with(CWD, mount.path(from), CWD, mount.path(to), flags).map_err(Error::from)
    };
    fs::create_dir(mount.path("d")).unwrap();
    fs::write(mount.path("a"), "a").unwrap();
    fs::write(mount.path("d/b"), "b").unwrap();
    assert_eq!(errno(rename("a", "d/b", RenameFlags::NOREPLACE)), Some(libc::EEXIST));
    rename("a", "d/b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!((content("a"), content("d/b")), ("b".into(), "a".into()));
    rename("a", "d/b", RenameFlags::empty()).unwrap();
    assert_eq!((content("d/b"), mount.path("a").exists()), ("b".into(), false));
    assert_eq!(errno(rename("d", "d/e", RenameFlags::empty())), Some(libc::EINVAL));
    rename("d/b", "x", RenameFlags::WHITEOUT).unwrap();
    let left = fs::symlink_metadata(mount.path("d/b")).unwrap();
    assert!(left.file_type().is_char_device() && left.rdev() == 0, "a whiteout");
    rename("x", "d/b", RenameFlags::empty()).unwrap();
    fs::create_dir(mount.path("e")).unwrap();
    assert_eq!(errno(rename("e", "d", RenameFlags::empty())), Some(libc::ENOTEMPTY));
    rename("d", "e", RenameFlags::empty()).unwrap();
    assert_eq!(content("e/b"), "b");
    assert_eq!(fs::metadata(mount.dir()).unwrap().nlink(), 3);
    mount.end();
}

fn overlayfs_writes_its_upper_layer_to_a_volume() {
    let mount = Mount::new(Cache::Kernel, 16);
    let lower = tempfile::tempdir().unwrap();
    for name in ["kept", "removed", "moved"] {
        fs::write(lower.path().join(name), name).unwrap();
    }
    fs::create_dir(mount.path("upper")).unwrap();
    fs::create_dir(mount.path("work")).unwrap();
    let all = tempfile::tempdir().unwrap();
    let path = |name: &str| mount.path(name).display().to_string();
    let data = format!("lowerdir={},upperdir={},workdir={}", lower.path().display(), path("upper"), path("work"));
    let data = std::ffi::CString::new(data).unwrap();
    rustix::mount::mount("overlay", all.path(), "overlay", rustix::mount::MountFlags::empty(), data.as_c_str())
        .unwrap();
    let tried = std::panic::catch_unwind(|| {
        fs::remove_file(all.path().join("removed")).unwrap();
        fs::rename(all.path().join("moved"), all.path().join("there")).unwrap();
        fs::write(all.path().join("kept"), "changed").unwrap();
        let mut names: Vec<_> = fs::read_dir(all.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["kept", "there"]);
        assert_eq!(fs::read_to_string(all.path().join("there")).unwrap(), "moved");
    });
    rustix::mount::unmount(all.path(), rustix::mount::UnmountFlags::empty()).unwrap();
    tried.unwrap();
    assert_eq!(fs::read_to_string(mount.path("upper/kept")).unwrap(), "changed");
    assert!(fs::symlink_metadata(mount.path("upper/moved")).unwrap().file_type().is_char_device());
    mount.end();
}

fn extended_attributes() {
    let mount = Mount::new(Cache::Kernel, 16);
    let file = mount.path("f");
    File::create(&file).unwrap();
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&file, name, value, flags).map_err(Error::from);
    let mut buffer = [0; 8192];
    set("user.a", b"1", XattrFlags::CREATE).unwrap();
    assert_eq!(errno(set("user.a", b"2", XattrFlags::CREATE)), Some(libc::EEXIST));
    assert_eq!(errno(set("user.b", b"2", XattrFlags::REPLACE)), Some(libc::ENODATA));
    set("trusted.b", &[7; 3000], XattrFlags::empty()).unwrap();
    assert_eq!(errno(set("user.c", &[7; 5000], XattrFlags::empty())), Some(libc::E2BIG));
    assert_eq!(rustix::fs::getxattr_query(&file, "trusted.b").unwrap(), 3000);
    let short = rustix::fs::getxattr(&file, "trusted.b", &mut buffer[..10]);
    assert_eq!(errno(short.map_err(Error::from)), Some(libc::ERANGE));
    assert_eq!(rustix::fs::getxattr(&file, "trusted.b", &mut buffer).unwrap(), 3000);
    let len = rustix::fs::listxattr(&file, &mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"trusted.b\0user.a\0");
    rustix::fs::removexattr(&file, "user.a").unwrap();
    assert_eq!(errno(rustix::fs::removexattr(&file, "user.a").map_err(Error::from)), Some(libc::ENODATA));
    // As on ext4.
    assert_eq!(errno(set("other.a", b"1", XattrFlags::empty())), Some(libc::EOPNOTSUPP));
    assert_eq!(errno(set("user.", b"1", XattrFlags::empty())), Some(libc::EINVAL));
    mount.end();
}

fn holes_and_preallocation() {
    for cache in CACHES {
        let mount = Mount::new(cache, 32);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(mount.path("f")).unwrap();
        file.write_all_at(&[1; 8192], 1 << 20).unwrap();
        file.write_all_at(&[2; 100], 3 << 20).unwrap();
        // All of a file is data, as a mapping may have written to a hole.
        assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(10)).unwrap(), 10);
        assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap(), (3 << 20) + 100);
        let end = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(4 << 20));
        assert_eq!(errno(end.map_err(Error::from)), Some(libc::ENXIO));
        assert_eq!((&file).seek(SeekFrom::End(0)).unwrap(), (3 << 20) + 100);
        drop(file.try_clone().unwrap()); // with write-back the kernel asks for the blocks after a close
        assert_eq!(file.metadata().unwrap().blocks(), 3 * 8);

        fallocate(&file, FallocateFlags::KEEP_SIZE, 4 << 20, 1 << 20).unwrap();
        assert_eq!(file.metadata().unwrap().len(), (3 << 20) + 100);
        assert_eq!(file.metadata().unwrap().blocks(), (3 + 256) * 8);
        fallocate(&file, FallocateFlags::empty(), 4 << 20, 1 << 20).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 5 << 20);
        fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, (1 << 20) + 10, 4096).unwrap();
        fallocate(&file, FallocateFlags::ZERO_RANGE, (1 << 20) + 8000, 50).unwrap();
        let mut found = [9; 8192];
        file.read_exact_at(&mut found, 1 << 20).unwrap();
        let expected = |i: usize| u8::from(!(10..4106).contains(&i) && !(8000..8050).contains(&i));
        assert!(found.iter().enumerate().all(|(i, byte)| *byte == expected(i)));
        let collapse = fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
        assert_eq!(errno(collapse.map_err(Error::from)), Some(libc::EOPNOTSUPP));
        drop(file);
        mount.end();
    }
}

fn what_another_process_wrote_through_a_mapping_is_copied_by_programs_that_skip_holes() {
    // It keeps its mapping: the kernel writes back when a mapping ends.
    let python = "import mmap,os,sys\nf=os.open(sys.argv[1],os.O_RDWR|os.O_CREAT)\nos.ftruncate(f,1<<20)\n\
        os.posix_fallocate(f,0,1<<18)\nm=mmap.mmap(f,1<<20)\nm[1<<16]=m[1<<19]=7\nprint('written',flush=True)\nsys.stdin.read()";
    for cache in CACHES {
        for copy in ["cp a b", "tar -cSf t a && mkdir d && tar -xSf t -C d && mv d/a b", "rsync -S a b"] {
            let tool = copy.split(' ').next().unwrap();
            if Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
                continue;
            }
            let mount = Mount::new(cache, 32);
            let mut writer = Command::new("python3");
            writer.args(["-c", python, "a"]).current_dir(mount.dir()).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut writer = writer.spawn().unwrap();
            writer.stdout.as_mut().unwrap().read_exact(&mut [0; 8]).unwrap();
            let copied = Command::new("sh").args(["-ec", copy]).current_dir(mount.dir()).status().unwrap();
            assert!(copied.success(), "{copy}");
            let found = fs::read(mount.path("b")).unwrap();
            let written: Vec<_> = (0..found.len()).filter(|i| found[*i] != 0).collect();
            assert_eq!((written, found.len()), (vec![1 << 16, 1 << 19], 1 << 20), "{cache:?}: {copy}");
            drop(writer.stdin.take());
            assert!(writer.wait().unwrap().success());
            mount.end();
        }
    }
}

fn appends_of_several_processes_do_not_overlap() {
    for cache in CACHES {
        let mount = Mount::new(cache, 32);
        let script = "i=0; while [ $i -lt 200 ]; do echo $0-$i >> f; i=$((i+1)); done";
        let start = |name| Command::new("sh").args(["-ec", script, name]).current_dir(mount.dir()).spawn().unwrap();
        let writers = ["a", "b", "c"].map(start);
        writers.into_iter().for_each(|mut writer| assert!(writer.wait().unwrap().success()));
        let text = fs::read_to_string(mount.path("f")).unwrap();
        for name in ["a", "b", "c"] {
            let own: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(&format!("{name}-"))).collect();
            assert!(own.iter().enumerate().all(|(i, line)| *line == i.to_string()) && own.len() == 200, "{text}");
        }
        mount.end();
    }
}

fn direct_input_and_output_of_several_threads() {
    for cache in CACHES {
        let mount = Mount::new(cache, 64);
        let open = || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).custom_flags(libc::O_DIRECT);
            options.open(mount.path("f")).unwrap()
        };
        thread::scope(|scope| {
            for writer in 0..4_u64 {
                scope.spawn(move || {
                    let file = open();
                    let mut aligned = vec![0_u8; 12288];
                    let at = aligned.as_ptr().align_offset(4096);
                    for round in 0..64 {
                        let block = &mut aligned[at..at + 4096];
                        block.fill((writer * 64 + round) as u8);
                        file.write_all_at(block, (round * 4 + writer) * 4096).unwrap();
                    }
                });
            }
        });
        let data = fs::read(mount.path("f")).unwrap();
        assert_eq!(data.len(), 256 * 4096);
        let block = |i: usize| (i % 4 * 64 + i / 4) as u8;
        assert!(data.chunks(4096).enumerate().all(|(i, bytes)| bytes.iter().all(|byte| *byte == block(i))));
        mount.end();
    }
}

/// Readers beside the write cached what it was about to replace, and the kernel kept that.
fn a_buffered_read_after_an_asynchronous_direct_write_is_new() {
    const PART: usize = 64 << 10;
    const PARTS: usize = 10;
    const LEN: usize = PART * PARTS;
    const ROUNDS: usize = 300;
    let mount = Mount::new(Cache::Kernel, 32);
    let path = mount.path("f");
    fs::write(&path, [0; LEN]).unwrap();
    let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let mut ring = io_uring::IoUring::new(PARTS as u32).unwrap();
    let mut memory = vec![0_u8; LEN + 4096];
    let at = memory.as_ptr().align_offset(4096);
    let done = std::sync::atomic::AtomicBool::new(false);
    let old = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    fs::read(&path).unwrap();
                }
            });
        }
        let old = (1..=ROUNDS).filter(|round| {
            let round = *round as u8;
            let data = &mut memory[at..at + LEN];
            data.fill(round);
            for (i, part) in data.chunks(PART).enumerate() {
                let write =
                    io_uring::opcode::Write::new(io_uring::types::Fd(file.as_raw_fd()), part.as_ptr(), PART as u32)
                        .offset((i * PART) as u64)
                        .build();
                // SAFETY: the memory stays and does not change until the writes have ended, below.
                unsafe { ring.submission().push(&write).unwrap() };
            }
            ring.submit_and_wait(PARTS).unwrap();
            assert!(ring.completion().all(|ended| ended.result() == PART as i32));
            let is_old = || fs::read(&path).unwrap().iter().any(|byte| *byte != round);
            // By io_uring the kernel is told just after the answer.
            let patience = std::time::Instant::now() + std::time::Duration::from_secs(if rings() { 10 } else { 0 });
            while std::time::Instant::now() < patience && is_old() {}
            is_old()
        });
        let old = old.count();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        old
    });
    assert_eq!(old, 0, "of {ROUNDS} writes readers saw old bytes after the end");
    drop(file);
    mount.end();
}

/// Writes to a new file until nothing fits.
fn fill(path: &Path) {
    let mut filler = File::create(path).unwrap();
    for size in [1 << 20, 4096] {
        while filler.write_all(&vec![b'x'; size]).is_ok() {}
    }
    assert_eq!(errno(filler.write_all(&[b'x'; 4096])), Some(libc::ENOSPC));
}

fn a_full_volume_takes_stores_to_mapped_pages() {
    const LEN: usize = 8 << 20;
    let mount = Mount::new(Cache::Kernel, 24);
    let path = mount.path("db");
    fs::write(&path, vec![b'A'; LEN]).unwrap();
    fill(&mount.path("filler"));
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let pages = map(&file, LEN, MapFlags::SHARED);
    pages.iter_mut().step_by(4096).for_each(|byte| *byte = b'B');
    // SAFETY: the mapping is used no more.
    unsafe { munmap(pages.as_mut_ptr().cast(), LEN).unwrap() };
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let found = fs::read(&path).unwrap();
    assert_eq!(found.iter().step_by(4096).filter(|byte| **byte != b'B').count(), 0, "of {} pages", LEN / 4096);
    drop(file);
    mount.end();
}

/// First every other part, then those between them: the extents become as many as they can.
fn a_full_volume_takes_writes_into_preallocated_space() {
    const PART: u64 = 64 << 10;
    const PARTS: u64 = 128;
    // With write-back a volume is full only when it is asked to be synced.
    for cache in [Cache::Kernel, Cache::Direct] {
        let mount = Mount::new(cache, 24);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(mount.path("f")).unwrap();
        file.write_all_at(&[1; PART as usize], 0).unwrap();
        fallocate(&file, FallocateFlags::KEEP_SIZE, PART, PARTS * PART).unwrap();
        fill(&mount.path("filler"));
        for i in (1..=PARTS).step_by(2).chain((2..=PARTS).step_by(2)) {
            file.write_all_at(&[i as u8; PART as usize], i * PART).unwrap();
        }
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let found = fs::read(mount.path("f")).unwrap();
        assert_eq!(found.len() as u64, (PARTS + 1) * PART);
        let value = |i: usize| if i == 0 { 1 } else { i as u8 };
        assert!(found.chunks(PART as usize).enumerate().all(|(i, part)| part.iter().all(|byte| *byte == value(i))));
        drop(file);
        mount.end();
    }
}

/// 1 MiB at a multiple of 4 KiB, in memory and in the file, is one request.
fn a_write_of_one_request_is_whole_for_readers_past_the_cache() {
    const LEN: usize = 1 << 20;
    const READS: usize = 300;
    let mount = Mount::new(Cache::Direct, 32);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(mount.path("f")).unwrap();
    let mut memory = vec![0_u8; LEN + 4096];
    let at = memory.as_ptr().align_offset(4096);
    let done = std::sync::atomic::AtomicBool::new(false);
    file.write_all_at(&memory[at..at + LEN], 0).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut own = vec![0_u8; LEN + 4096];
            let at = own.as_ptr().align_offset(4096);
            for round in (0..=u8::MAX).cycle() {
                own[at..at + LEN].fill(round);
                assert_eq!(file.write_at(&own[at..at + LEN], 0).unwrap(), LEN);
                if done.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mixed = (0..READS).filter(|_| {
            let found = &mut memory[at..at + LEN];
            assert_eq!(file.read_at(found, 0).unwrap(), LEN);
            found.iter().any(|byte| *byte != found[0])
        });
        let mixed = mixed.count();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(mixed, 0, "of {READS} reads");
    });
    drop(file);
    mount.end();
}

/// A mapping of a file.
fn map(file: &File, len: usize, flags: MapFlags) -> &'static mut [u8] {
    // SAFETY: a new mapping, which is used within the file's size and unmapped after its last use.
    unsafe {
        let at = mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0).unwrap();
        std::slice::from_raw_parts_mut(at.cast(), len)
    }
}

fn locks_wait_and_end_with_their_process() {
    let mount = Mount::new(Cache::Kernel, 8);
    let file = File::create(mount.path("f")).unwrap();
    let script = "exec 9<f; flock 9; echo locked; exec sleep 1000";
    let mut holder = Command::new("sh");
    holder.args(["-ec", script]).current_dir(mount.dir()).stdout(Stdio::piped());
    let mut holder = holder.spawn().unwrap();
    let mut said = [0; 7];
    holder.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    let busy = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(errno(busy.map_err(Error::from)), Some(libc::EAGAIN));
    // More that wait than there are workers, and the mount works on.
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..8)
            .map(|_| {
                let file = File::open(mount.path("f")).unwrap();
                scope.spawn(move || rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap())
            })
            .collect();
        fs::write(mount.path("g"), b"works").unwrap();
        holder.kill().unwrap();
        holder.wait().unwrap();
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
    let python = "import fcntl,os,sys\nf=open('f','r+b')\nfcntl.lockf(f,fcntl.LOCK_EX,10,5)\n\
        g=open('f','r+b')\npid=os.fork()\nif pid==0:\n  try:\n    fcntl.lockf(g,fcntl.LOCK_EX|fcntl.LOCK_NB,1,14)\n\
        \x20 except BlockingIOError:\n    os._exit(7)\n  os._exit(0)\n\
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid,0)[1]))";
    let ended = Command::new("python3").args(["-c", python]).current_dir(mount.dir()).status().unwrap();
    assert_eq!(ended.code(), Some(7), "another process has the record");
    drop(file);
    mount.end();
}

fn writing_and_owners_take_privileges() {
    for cache in CACHES {
        let mount = Mount::new(cache, 16);
        let file = mount.path("f");
        let mode = || fs::metadata(&file).unwrap().mode() & 0o7777;
        let capable = || rustix::fs::getxattr_query(&file, "security.capability").is_ok();
        let begin = || {
            fs::write(&file, [1; 10000]).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o6777)).unwrap();
            assert_eq!(mode(), 0o6777);
        };
        let cases = [
            ("printf x > f", 0o777),
            ("printf x >> f", 0o777),
            ("truncate -s 5 f", 0o777),
            ("fallocate -l 20000 f", 0o777),
            ("cp --reflink=never /etc/hostname f", 0o777),
            ("cat f", 0o6777),
        ];
        for (script, after) in cases {
            begin();
            let done = as_user(mount.dir(), script);
            assert!(done.status.success(), "{script}: {done:?}");
            assert_eq!(mode(), after, "{cache:?}: {script}");
        }
        begin();
        fs::write(&file, b"root keeps them").unwrap();
        assert_eq!(mode(), 0o6777, "{cache:?}");
        rustix::fs::chown(&file, Some(Uid::from_raw(USER)), None).unwrap();
        assert_eq!(mode(), 0o777, "another owner");
        begin();
        rustix::fs::chown(&file, None, None).unwrap();
        assert_eq!(mode(), 0o777, "the same owner");
        rustix::fs::chown(&file, Some(Uid::from_raw(0)), None).unwrap();
        begin();
        // Any user could take them from any file, as the kernel asks for a change that changes
        // nothing.
        let dir = mount.path("d");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o2777)).unwrap();
        as_user(mount.dir(), r#"perl -e 'chown -1, -1, "f"; chown -1, -1, "d"'"#);
        assert_eq!(mode(), 0o6777, "{cache:?}: another user");
        rustix::fs::chown(&dir, None, None).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o7777, 0o2777, "a directory's bit means something else");
        let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        rustix::fs::setxattr(&file, "security.capability", &capability, XattrFlags::empty()).unwrap();
        assert!(capable());
        fs::write(&file, b"even root").unwrap();
        assert!(!capable());
        mount.end();
    }
}

/// The kernel executed by its own copy of the mode, which a write left as it was.
fn a_program_that_was_written_runs_without_its_owners_rights() {
    for cache in CACHES {
        let mount = Mount::new(cache, 32);
        let program = mount.path("id");
        for change in ["printf x >> id", "dd if=id of=id conv=notrunc bs=1k count=1 2>&1", "fallocate -l 1M id"] {
            fs::copy("/usr/bin/id", &program).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o4777)).unwrap();
            let runs_as = |script: &str| String::from_utf8(as_user(mount.dir(), script).stdout).unwrap();
            assert!(runs_as("./id").contains("euid=0"), "{cache:?}: the program does not take its owner's rights");
            let after = runs_as(&format!("{change}; ./id"));
            assert!(after.contains("uid=12345") && !after.contains("euid"), "{cache:?}: {change}: {after}");
        }
        mount.end();
    }
}

fn usage_is_told() {
    let mount = Mount::new(Cache::Kernel, 16);
    let before = rustix::fs::statvfs(mount.dir()).unwrap();
    assert_eq!((before.f_bsize, before.f_namemax), (4096, 255));
    assert!(before.f_bavail < before.f_bfree && before.f_bfree < before.f_blocks && before.f_ffree < before.f_files);
    fs::write(mount.path("f"), vec![1; 1 << 20]).unwrap();
    let after = rustix::fs::statvfs(mount.dir()).unwrap();
    assert_eq!(before.f_ffree - after.f_ffree, 1);
    assert!((256..270).contains(&(before.f_bfree - after.f_bfree)));
    fs::remove_file(mount.path("f")).unwrap();
    // The kernel says later that it has forgotten the file.
    while rustix::fs::statvfs(mount.dir()).unwrap().f_ffree != before.f_ffree {
        thread::yield_now();
    }
    mount.end();
}

fn a_removed_directory_is_still_somebodys_place() {
    let mount = Mount::new(Cache::Kernel, 8);
    fs::create_dir(mount.path("d")).unwrap();
    let place = rustix::fs::open(mount.path("d"), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    fs::remove_dir(mount.path("d")).unwrap();
    // Its number is not given to something else.
    fs::write(mount.path("f"), b"x").unwrap();
    let found = rustix::fs::fstat(&place).unwrap();
    assert_eq!((found.st_nlink, FileType::from_raw_mode(found.st_mode)), (0, FileType::Directory));
    assert_ne!(found.st_ino, fs::metadata(mount.path("f")).unwrap().ino());
    let made = rustix::fs::mkdirat(&place, "e", Mode::from_raw_mode(0o755));
    assert_eq!(errno(made.map_err(Error::from)), Some(libc::ENOENT));
    drop(place);
    mount.end();
}
