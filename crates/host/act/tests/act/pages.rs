//! Cached pages of files, on this machine's own nodes. Where pages are is asked page by page, not
//! of homenode.

use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io::Write;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use act::copying::{Back, Copied, Copying};
use act::pages::{self, FileMove, FileMoveError};
use rustix::fs::{Advice, fadvise};
use testing::{Case, Tried, any_kernel, cases, skip};
use topology::{NodeId, Topology};

pub const CASES: &[Case] = cases![
    []
        file_moves_to_each_node_and_absent_pages_stay_absent,
        file_moves_leave_pages_in_a_pipe_and_count_them,
        file_moves_go_on_while_the_file_shrinks_and_grows,
        file_moves_end_when_the_file_loses_its_name,
        parts_of_a_file_move_and_go_back_page_by_page,
        demotions_leave_what_other_processes_map,
        parts_of_a_file_that_is_cut_written_or_deleted_move_meanwhile,
        file_moves_end_when_the_node_is_full;
    [any_kernel()]
        file_moves_of_other_things_are_refused,
        file_moves_by_strangers_are_refused,
        file_moves_to_nodes_without_memory_are_refused;
];

const MIB: usize = 1 << 20;

fn page() -> usize {
    rustix::param::page_size()
}

fn machine() -> Topology {
    topology::sysfs::read(Path::new("/sys")).unwrap()
}

/// The nodes that have memory.
fn nodes() -> Vec<NodeId> {
    machine().nodes.iter().filter(|n| n.memory_bytes > 0).map(|n| n.id).collect()
}

fn two_nodes() -> Tried<(NodeId, NodeId)> {
    match nodes()[..] {
        [a, b, ..] => Ok((a, b)),
        _ => skip("needs two NUMA nodes with memory"),
    }
}

/// A directory that every user may enter, on a disk.
pub fn dir() -> tempfile::TempDir {
    let base = std::env::var_os("HOMENODE_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(base).unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    dir
}

/// Bytes that differ from page to page.
fn content(len: usize) -> Vec<u8> {
    let mut content = vec![7; len];
    for (i, page) in content.chunks_mut(page()).enumerate() {
        let number = i.to_le_bytes();
        let len = page.len().min(number.len());
        page[..len].copy_from_slice(&number[..len]);
    }
    content
}

/// A cached file, written through to disk.
fn written(dir: &Path, len: usize) -> PathBuf {
    let path = dir.join("file");
    let mut file = File::create(&path).unwrap();
    file.write_all(&content(len)).unwrap();
    file.sync_all().unwrap();
    path
}

fn evict(path: &Path) {
    fadvise(File::open(path).unwrap(), 0, None, Advice::DontNeed).unwrap();
    assert_eq!(cached(path).len(), 0, "the file system does not evict");
}

/// The cached pages of a file, each with its node, by `mincore` and `move_pages`.
fn cached(path: &Path) -> BTreeMap<usize, i32> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOATIME).open(path).unwrap();
    let len = file.metadata().unwrap().len() as usize;
    let mut resident = vec![0_u8; len.div_ceil(page())];
    // SAFETY: a new mapping of an open file, unmapped below; the vector has a byte for each page. A
    // populated page is cached.
    unsafe {
        let at = libc::mmap(null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(at, libc::MAP_FAILED);
        libc::madvise(at, len, libc::MADV_RANDOM);
        assert_eq!(libc::mincore(at, len, resident.as_mut_ptr()), 0);
        let pages: Vec<usize> = (0..resident.len()).filter(|i| resident[*i] & 1 == 1).collect();
        let addresses: Vec<_> = pages.iter().map(|i| at.wrapping_byte_add(i * page())).collect();
        for address in &addresses {
            assert_eq!(libc::madvise(*address, page(), libc::MADV_POPULATE_READ), 0);
        }
        let addresses: Vec<usize> = addresses.iter().map(|address| address.addr()).collect();
        let (status, asked) = linux::pages::move_pages(0, &addresses, None, 0);
        asked.unwrap();
        libc::munmap(at, len);
        pages.into_iter().zip(status).collect()
    }
}

fn bytes_on(path: &Path, node: NodeId) -> u64 {
    let size = fs::metadata(path).unwrap().len();
    let bytes = |i: &usize| (size - (i * page()) as u64).min(page() as u64);
    cached(path).iter().filter(|(_, n)| **n == node.0 as i32).map(|(i, _)| bytes(i)).sum()
}

/// Makes a move in steps of so many bytes.
fn finish(work: &mut FileMove, step: u64) -> Copied {
    for _ in 0..100_000 {
        if work.step(step).unwrap() {
            assert!(work.step(step).unwrap(), "over is over");
            return work.copied();
        }
    }
    panic!("the move does not end: {:?}", work.copied());
}

fn file_moves_to_each_node_and_absent_pages_stay_absent() -> Tried {
    let dir = dir();
    let path = written(dir.path(), 20 * MIB + 123);
    evict(&path);
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let file = File::open(&path).unwrap();
    fadvise(&file, 0, None, Advice::Random).unwrap();
    // Pieces before, across and behind the border of two windows, and the file's last page.
    let pieces = [(MIB, 3 * MIB), (15 * MIB, 2 * MIB), (20 * MIB, 123)];
    for (at, len) in pieces {
        file.read_exact_at(&mut vec![0; len], at as u64).unwrap();
    }
    file.set_times(FileTimes::new().set_accessed(long_ago)).unwrap();
    let before: Vec<_> = cached(&path).into_keys().collect();
    assert_eq!(before.len(), 5 * MIB / page() + 1);
    let bytes = (5 * MIB + 123) as u64;

    // Twice around, so that the file comes back to its first node.
    for to in nodes().iter().chain(&nodes()) {
        let mut work = FileMove::prepare(&path, *to).unwrap();
        let start = work.copied();
        assert_eq!((start.total, start.moved), (bytes, bytes_on(&path, *to)));
        let done = finish(&mut work, 100_000);
        let there = start.moved;
        assert_eq!(done, Copied { total: bytes, moved: bytes, there, left: BTreeMap::new() });
        assert_eq!(bytes_on(&path, *to), bytes);
    }
    assert_eq!(cached(&path).into_keys().collect::<Vec<_>>(), before, "what is cached has changed");
    assert_eq!(fs::metadata(&path).unwrap().accessed().unwrap(), long_ago);
    assert!(fs::read(&path).unwrap() == content(20 * MIB + 123), "the content has changed");
    // Nothing of ours keeps the pages.
    evict(&path);
    Ok(())
}

fn file_moves_leave_pages_in_a_pipe_and_count_them() -> Tried {
    let (a, b) = two_nodes()?;
    let dir = dir();
    let path = written(dir.path(), 4 * MIB);
    for to in [a, b] {
        let other = if to == a { b } else { a };
        finish(&mut FileMove::prepare(&path, other).unwrap(), u64::MAX);
        // Sixteen pages in a pipe, of which each has a reference.
        let (out, into) = rustix::pipe::pipe().unwrap();
        let file = File::open(&path).unwrap();
        let mut at = 0x10_0000;
        let mut held = 0;
        while held < 16 * page() {
            held += rustix::pipe::splice(
                &file,
                Some(&mut at),
                &into,
                None,
                16 * page() - held,
                rustix::pipe::SpliceFlags::empty(),
            )
            .unwrap();
        }
        let mut work = FileMove::prepare(&path, to).unwrap();
        let done = finish(&mut work, MIB as u64);
        let stayed = bytes_on(&path, other);
        // A large folio stays whole.
        assert!((16 * page()..=2 * MIB).contains(&(stayed as usize)), "{stayed} bytes stayed");
        assert_eq!(done.left, BTreeMap::from([(pages::IN_USE, stayed)]));
        assert_eq!((done.moved, done.moved + stayed), (bytes_on(&path, to), 4 * MIB as u64));
        drop((out, into));
        assert_eq!(finish(&mut FileMove::prepare(&path, to).unwrap(), u64::MAX).failed(), 0);
        assert_eq!(bytes_on(&path, to), 4 * MIB as u64);
    }
    Ok(())
}

fn file_moves_go_on_while_the_file_shrinks_and_grows() -> Tried {
    let dir = dir();
    let path = written(dir.path(), 40 * MIB);
    let changer = OpenOptions::new().write(true).open(&path).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for len in [17 * MIB, 0, 40 * MIB] {
                    changer.set_len(len as u64).unwrap();
                    changer.write_all_at(&[1; 4096], len as u64 / 2).unwrap();
                }
            }
        });
        let nodes = nodes();
        for to in nodes.iter().cycle().take(6) {
            let mut work = FileMove::prepare(&path, *to).unwrap();
            let done = finish(&mut work, 4 * MIB as u64);
            assert!(done.moved + done.failed() <= done.total, "{done:?}");
        }
        over.store(true, Ordering::Relaxed);
    });
    // All of it goes between the count and the move.
    fs::write(&path, content(40 * MIB)).unwrap();
    let mut work = FileMove::prepare(&path, nodes()[0]).unwrap();
    changer.set_len(0).unwrap();
    assert_eq!(finish(&mut work, 1), Copied { total: 40 * MIB as u64, ..Copied::default() });
    Ok(())
}

fn file_moves_end_when_the_file_loses_its_name() -> Tried {
    let dir = dir();
    let path = written(dir.path(), 4 * MIB);
    let link = dir.path().join("link");
    fs::hard_link(&path, &link).unwrap();
    let nodes = nodes();
    finish(&mut FileMove::prepare(&path, nodes[0]).unwrap(), u64::MAX);
    let prepare = |to| FileMove::prepare(&link, to).unwrap();
    let (mut first, mut second) = (prepare(nodes[0]), prepare(nodes[nodes.len() - 1]));
    fs::remove_file(&path).unwrap();
    assert_eq!(finish(&mut first, u64::MAX).moved, 4 * MIB as u64);
    fs::remove_file(&link).unwrap();
    let left: Vec<_> = finish(&mut second, u64::MAX).left.into_iter().collect();
    // With one node, nothing was to be moved.
    let expected = [(pages::DELETED, 4 * MIB as u64)];
    assert_eq!(left, if nodes.len() > 1 { &expected[..] } else { &[] });
    Ok(())
}

/// A move of these parts from one node to another.
fn of_parts(path: &Path, parts: &[(usize, usize)], (from, to): (NodeId, NodeId)) -> FileMove {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOATIME).open(path).unwrap();
    let parts: Vec<_> = parts.iter().map(|(start, end)| *start as u64..*end as u64).collect();
    FileMove::of(file, path, &parts, Some(from), to).unwrap()
}

/// The cached pages on a node.
fn pages_on(path: &Path, node: NodeId) -> Vec<usize> {
    if fs::metadata(path).unwrap().len() == 0 {
        return Vec::new();
    }
    cached(path).into_iter().filter(|(_, on)| *on == node.0 as i32).map(|(page, _)| page).collect()
}

fn numbers(start: usize, end: usize) -> std::ops::Range<usize> {
    start / page()..end.div_ceil(page())
}

/// Parts that have a hole, end beyond the file, or are in part where they are to go: what was asked
/// for moves and nothing else, and the way back leaves each page where it was before.
fn parts_of_a_file_move_and_go_back_page_by_page() -> Tried {
    let (a, b) = two_nodes()?;
    let dir = dir();
    let path = written(dir.path(), 20 * MIB + 123);
    evict(&path);
    // Bytes 4 to 6 MiB are not cached.
    let file = File::open(&path).unwrap();
    fadvise(&file, 0, None, Advice::Random).unwrap();
    for (at, len) in [(0, 4 * MIB), (6 * MIB, 14 * MIB + 123)] {
        file.read_exact_at(&mut vec![0; len], at as u64).unwrap();
    }
    finish(&mut FileMove::prepare(&path, a).unwrap(), u64::MAX);
    finish(&mut of_parts(&path, &[(2 * MIB, 3 * MIB)], (a, b)), u64::MAX);
    assert_eq!(pages_on(&path, b), numbers(2 * MIB, 3 * MIB).collect::<Vec<_>>());
    let before = cached(&path);

    // One page of a part is asked for as a whole.
    let asked = [(MIB + 1, 5 * MIB), (7 * MIB, 7 * MIB + 1), (19 * MIB, 64 * MIB), (65 * MIB, 66 * MIB)];
    let mut work = of_parts(&path, &asked, (a, b));
    let done = finish(&mut work, 100_000);
    let wanted: Vec<usize> =
        asked.iter().flat_map(|(start, end)| numbers(*start, *end)).filter(|page| before.contains_key(page)).collect();
    assert_eq!(pages_on(&path, b), wanted);
    let bytes = (wanted.len() * page()) as u64 - (page() - 123) as u64;
    assert_eq!((done.total, done.moved, done.there, done.failed()), (bytes, bytes, MIB as u64, 0));
    assert_eq!(cached(&path).into_keys().collect::<Vec<_>>(), before.keys().copied().collect::<Vec<_>>());
    assert!(fs::read(&path).unwrap() == content(20 * MIB + 123), "the content has changed");
    evict_part(&path, 5 * MIB / 4, MIB / 4);
    let kept: Vec<(usize, i32)> =
        cached(&path).into_keys().map(|page| (page, before.get(&page).copied().unwrap_or(-1))).collect();
    assert!(kept.len() + MIB / 4 / page() == before.len() + 2 * MIB / page(), "reading has filled the hole");

    // The part that was on the target before stays there.
    let Some(Back::Pages(layout)) = Box::new(work).back() else { panic!("no way back") };
    // What is written meanwhile is not undone.
    OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"new", 19 * MIB as u64).unwrap();
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOATIME).open(&path).unwrap();
    let mut back = FileMove::back(&file, &path, &layout).unwrap();
    while !back.step(u64::MAX).unwrap() {}
    let mut written = [0; 3];
    file.read_exact_at(&mut written, 19 * MIB as u64).unwrap();
    assert_eq!(&written, b"new");
    let after = cached(&path);
    let differ: Vec<_> = kept.iter().filter(|(page, on)| *on >= 0 && after.get(page) != Some(on)).collect();
    assert!(differ.is_empty(), "{differ:?}");
    Ok(())
}

fn evict_part(path: &Path, start: usize, len: usize) {
    fadvise(File::open(path).unwrap(), start as u64, NonZeroU64::new(len as u64), Advice::DontNeed).unwrap();
}

/// A process that maps a part of a file, until it is dropped.
struct Mapper(libc::pid_t);

impl Mapper {
    fn of(path: &Path, start: usize, len: usize) -> Self {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NOATIME).open(path).unwrap();
        let (ready, tell) = rustix::pipe::pipe().unwrap();
        // SAFETY: the child only makes system calls; it maps, says so and sleeps until it is
        // killed.
        let pid = unsafe {
            let pid = libc::fork();
            if pid == 0 {
                let (shared, start) = (libc::MAP_SHARED, start as libc::off_t);
                let at = libc::mmap(null_mut(), len, libc::PROT_READ, shared, file.as_raw_fd(), start);
                if at == libc::MAP_FAILED || libc::madvise(at, len, libc::MADV_POPULATE_READ) != 0 {
                    libc::_exit(1);
                }
                libc::write(tell.as_raw_fd(), [1_u8].as_ptr().cast(), 1);
                loop {
                    libc::pause();
                }
            }
            pid
        };
        assert!(pid > 0);
        drop(tell);
        assert_eq!(rustix::io::read(&ready, &mut [0; 1]).unwrap(), 1, "the child has not mapped it");
        Self(pid)
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        // SAFETY: our own child, not waited for yet.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, null_mut(), 0);
        }
    }
}

/// The head of a library that every program maps was never read by a call, and went down first.
fn demotions_leave_what_other_processes_map() -> Tried {
    let (a, b) = two_nodes()?;
    let dir = dir();
    let path = written(dir.path(), 8 * MIB);
    finish(&mut FileMove::prepare(&path, a).unwrap(), u64::MAX);
    let mapper = Mapper::of(&path, 2 * MIB, MIB);
    let down = || of_parts(&path, &[(0, 4 * MIB)], (a, b)).leave_mapped();
    let done = finish(&mut down(), u64::MAX);
    let on = pages_on(&path, a);
    let end = 4 * MIB / page();
    let kept: Vec<usize> = on.into_iter().filter(|number| *number < end).collect();
    let mapped: Vec<usize> = numbers(2 * MIB, 3 * MIB).collect();
    // A large folio stays whole.
    assert!(mapped.iter().all(|page| kept.contains(page)) && kept.len() <= 2 * MIB / page(), "{kept:?}");
    let bytes = (kept.len() * page()) as u64;
    assert_eq!((done.moved, done.left), (4 * MIB as u64 - bytes, BTreeMap::from([(pages::MAPPED, bytes)])));
    // Once nobody maps them, they go; and other moves take them along all the same.
    finish(&mut of_parts(&path, &[(2 * MIB, 5 * MIB / 2)], (a, b)), u64::MAX);
    assert!(numbers(2 * MIB, 5 * MIB / 2).all(|page| pages_on(&path, b).contains(&page)));
    drop(mapper);
    assert_eq!(finish(&mut down(), u64::MAX).left, BTreeMap::new());
    assert_eq!(pages_on(&path, b).len(), 4 * MIB / page());
    Ok(())
}

/// The file is cut within and before the part, grows again, is written to and loses its name.
fn parts_of_a_file_that_is_cut_written_or_deleted_move_meanwhile() -> Tried {
    let (a, b) = two_nodes()?;
    let dir = dir();
    let path = written(dir.path(), 8 * MIB);
    let changer = OpenOptions::new().write(true).open(&path).unwrap();
    let part = [(4 * MIB, 8 * MIB)];
    for len in [5 * MIB, MIB, 0] {
        fs::write(&path, content(8 * MIB)).unwrap();
        changer.sync_all().unwrap();
        finish(&mut FileMove::prepare(&path, a).unwrap(), u64::MAX);
        let mut work = of_parts(&path, &part, (a, b));
        changer.set_len(len as u64).unwrap();
        let done = finish(&mut work, 1 << 20);
        let left = len.saturating_sub(4 * MIB);
        assert_eq!((done.moved, done.failed()), (left as u64, 0), "cut to {len}");
        assert_eq!(pages_on(&path, b), numbers(4 * MIB, 4 * MIB + left).collect::<Vec<_>>());
        assert!(fs::read(&path).unwrap() == content(8 * MIB)[..len]);
        // Shorter than the part before it was opened: there is nothing to move.
        let none = finish(&mut of_parts(&path, &[(6 * MIB, 8 * MIB)], (a, b)), u64::MAX);
        assert_eq!(none, Copied::default());
    }
    // What is written meanwhile is there afterwards.
    fs::write(&path, content(8 * MIB)).unwrap();
    changer.sync_all().unwrap();
    finish(&mut FileMove::prepare(&path, a).unwrap(), u64::MAX);
    let over = AtomicBool::new(false);
    let mut written = 0_u64;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut rounds = 0_u64;
            while !over.load(Ordering::Relaxed) || rounds == 0 {
                rounds += 1;
                for at in (4 * MIB..8 * MIB).step_by(MIB / 4) {
                    changer.write_all_at(&rounds.to_le_bytes(), at as u64).unwrap();
                }
            }
            rounds
        });
        for (from, to) in [(a, b), (b, a), (a, b)] {
            finish(&mut of_parts(&path, &part, (from, to)), 1 << 20);
        }
        over.store(true, Ordering::Relaxed);
        written = writer.join().unwrap();
    });
    let found = fs::read(&path).unwrap();
    for at in (4 * MIB..8 * MIB).step_by(MIB / 4) {
        assert_eq!(found[at..at + 8], written.to_le_bytes());
    }
    // Nobody can open it any more.
    let mut work = of_parts(&path, &part, (b, a));
    let left = bytes_on(&path, b);
    fs::remove_file(&path).unwrap();
    let done = finish(&mut work, u64::MAX);
    assert_eq!((done.moved, done.left.get(pages::DELETED).copied().unwrap_or(0)), (4 * MIB as u64 - left, left));
    Ok(())
}

/// Takes a node's memory for huge pages until it is dropped.
struct Taken(PathBuf);

impl Taken {
    fn all_of(node: NodeId) -> Tried<Self> {
        let sys = format!("/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages");
        if fs::read_to_string(&sys).ok().is_none_or(|n| n.trim() != "0") {
            return skip("needs huge pages of 2 MiB, and none in use");
        }
        fs::write(&sys, "1000000").unwrap();
        Ok(Self(sys.into()))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        fs::write(&self.0, "0").unwrap();
    }
}

/// The node had room when the move began.
fn file_moves_end_when_the_node_is_full() -> Tried {
    let (a, b) = two_nodes()?;
    let dir = dir();
    // Cached pages of other files would be room.
    fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
    let path = written(dir.path(), 32 * MIB);
    finish(&mut FileMove::prepare(&path, a).unwrap(), u64::MAX);
    let mut work = FileMove::prepare(&path, b).unwrap();
    let taken = Taken::all_of(b)?;
    let before = bytes_on(&path, a);
    let done = finish(&mut work, u64::MAX);
    drop(taken);
    let left = bytes_on(&path, a);
    if left == 0 {
        return skip("the node still had room: huge pages did not take all of it");
    }
    assert!(left <= before, "{left} of {before} bytes stayed: {done:?}");
    assert!(done.left.get(pages::NO_MEMORY).is_some_and(|n| *n >= left), "{left} bytes stayed: {done:?}");
    Ok(())
}

fn why(path: &Path, to: NodeId) -> String {
    FileMove::prepare(path, to).unwrap_err().to_string()
}

fn file_moves_of_other_things_are_refused() -> Tried {
    let (dir, to) = (dir(), nodes()[0]);
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for (path, kind) in
        [(pipe.as_path(), "pipe"), (dir.path(), "directory"), (Path::new("/dev/zero"), "character device")]
    {
        let why = why(path, to);
        assert!(why.contains(&format!("{} is a {kind}", path.display())), "{why}");
    }
    assert!(why(&dir.path().join("none"), to).contains("No such file"));
    // Larger than any file can be cached; where the kernel cannot count cached pages (cachestat,
    // Linux 6.5), each window of the file is looked at.
    let sparse = written(dir.path(), 5);
    if counts() && OpenOptions::new().write(true).open(&sparse).unwrap().set_len(15 << 40).is_ok() {
        assert_eq!(finish(&mut FileMove::prepare(&sparse, to).unwrap(), 1).moved, 4096);
    }
    // Nothing to move is no error.
    for empty in [written(dir.path(), 0), "/proc/self/status".into()] {
        assert_eq!(finish(&mut FileMove::prepare(&empty, to).unwrap(), 1), Copied::default());
    }
    Ok(())
}

/// Whether this kernel has cachestat(2).
fn counts() -> bool {
    // SAFETY: an invalid descriptor and null pointers; the kernel checks them.
    let rc = unsafe { libc::syscall(451, -1, std::ptr::null::<u8>(), std::ptr::null::<u8>(), 0) };
    rc >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS)
}

fn file_moves_by_strangers_are_refused() -> Tried {
    let (dir, to) = (dir(), nodes()[0]);
    let path = written(dir.path(), MIB);
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let nobody = rustix::process::Uid::from_raw(65_534);
    let asked = std::thread::spawn(move || {
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        (pages::target(&machine(), to).unwrap_err(), FileMove::prepare(&path, to).unwrap_err())
    });
    let (target, file) = asked.join().unwrap();
    assert!(matches!(target, FileMoveError::Target { reason: "eperm", .. }), "{target}");
    assert!(target.to_string().contains("CAP_SYS_NICE"), "{target}");
    assert!(matches!(file, FileMoveError::Refused { reason: "hidden", .. }), "{file}");
    Ok(())
}

fn file_moves_to_nodes_without_memory_are_refused() -> Tried {
    let mut machine = machine();
    let to = nodes()[0];
    pages::target(&machine, to).unwrap();
    let reason = |machine: &Topology, to| match pages::target(machine, to) {
        Err(FileMoveError::Target { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(reason(&machine, NodeId(1023)), "no_such_node");
    machine.nodes[0].memory_bytes = 0;
    assert_eq!(reason(&machine, machine.nodes[0].id), "no_memory");
    Ok(())
}
