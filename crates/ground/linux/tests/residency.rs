//! Finds out where the bytes of real files are, on this machine's file systems, and compares with
//! `mincore` and `move_pages` page by page.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

use linux::residency::{self, Residency};
use testing::{Case, Tried, any_kernel, cases, need, root, skip};
use topology::NodeBytes;
use topology::NodeId;

const MIB: usize = 1 << 20;

fn page() -> usize {
    rustix::param::page_size()
}

fn of(path: &Path) -> Residency {
    residency::of(path, &mut |_, _| ()).unwrap()
}

fn error(path: &Path) -> String {
    residency::of(path, &mut |_, _| ()).unwrap_err().to_string()
}

/// A directory that every user may enter, on a disk file system, where pages can be evicted: below
/// `$HOMENODE_TEST_DIR`, or /tmp.
fn dir() -> tempfile::TempDir {
    let base = std::env::var_os("HOMENODE_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(base).unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    dir
}

/// A directory on tmpfs.
fn tmpfs() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// A file with `len` bytes, written through to disk and cached.
fn written(dir: &Path, len: usize) -> PathBuf {
    let path = dir.join("file");
    let mut file = File::create(&path).unwrap();
    file.write_all(&vec![7; len]).unwrap();
    file.sync_all().unwrap();
    path
}

/// Drops the file from the page cache.
fn evict(path: &Path) {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    // SAFETY: advice on an open descriptor.
    assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
    assert_eq!(cached(path).iter().filter(|c| **c).count(), 0, "the file system does not evict");
}

/// Caches the page at each offset and no other. Repeats the reads if the kernel drops pages while
/// it looks for huge pages (kswapd, after `huge_pages`).
fn cache(path: &Path, offsets: impl Iterator<Item = usize> + Clone) {
    let file = File::open(path).unwrap();
    // SAFETY: advice on an open descriptor.
    assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) }, 0);
    for _ in 0..10 {
        for offset in offsets.clone() {
            file.read_at(&mut [0], offset as u64).unwrap();
        }
        let there = cached(path);
        if offsets.clone().all(|offset| there[offset / page()]) {
            return;
        }
    }
    panic!("the kernel does not keep what was read");
}

/// Maps the whole file and calls `f` with the address and the length.
fn mapped<T>(path: &Path, f: impl FnOnce(*mut libc::c_void, usize) -> T) -> T {
    let file = File::open(path).unwrap();
    let len = file.metadata().unwrap().len() as usize;
    // SAFETY: a new mapping of an open file, unmapped below.
    unsafe {
        let at = libc::mmap(null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(at, libc::MAP_FAILED);
        let result = f(at, len);
        libc::munmap(at, len);
        result
    }
}

/// Which pages of a file are cached.
fn cached(path: &Path) -> Vec<bool> {
    mapped(path, |at, len| {
        let mut resident = vec![0_u8; len.div_ceil(page())];
        // SAFETY: the vector has a byte for each page.
        assert_eq!(unsafe { libc::mincore(at, len, resident.as_mut_ptr()) }, 0);
        resident.into_iter().map(|r| r & 1 == 1).collect()
    })
}

/// Bytes per node of the cached pages of a file, asked page by page.
fn by_page(path: &Path) -> NodeBytes {
    let cached = cached(path);
    mapped(path, |at, len| {
        let mut nodes = NodeBytes::default();
        for (i, _) in cached.iter().enumerate().filter(|(_, c)| **c) {
            let address = at.wrapping_byte_add(i * page());
            let mut node = -1;
            // SAFETY: one page, one status; nothing moves. The page is cached, so that populating
            // reads nothing.
            unsafe {
                assert_eq!(libc::madvise(address, page(), libc::MADV_POPULATE_READ), 0);
                libc::syscall(libc::SYS_move_pages, 0, 1_usize, &raw const address, 0_usize, &raw mut node, 0);
            }
            let bytes = page().min(len - i * page());
            nodes.add(NodeId(u32::try_from(node).unwrap()), bytes as u64);
        }
        nodes
    })
}

/// Locates the file, checks the answer page by page, and checks that no page was read in or
/// evicted.
fn checked(path: &Path) -> Residency {
    let (before, blocks) = (cached(path), fs::metadata(path).unwrap().blocks());
    let found = of(path);
    assert!(cached(path) == before, "what is cached has changed");
    assert_eq!(fs::metadata(path).unwrap().blocks(), blocks, "a hole was filled");
    assert_eq!(found.nodes, by_page(path));
    assert_eq!(found.resident, found.nodes.total());
    assert_eq!((&found.hidden, found.notes.as_slice(), found.dax), (&None, &[][..], false));
    found
}

fn all_cached() {
    let dir = dir();
    let path = written(dir.path(), 32 * MIB + 123);
    let found = checked(&path);
    assert_eq!((found.size, found.resident), (32 * MIB as u64 + 123, found.size));
}

fn a_few_bytes() {
    let dir = dir();
    assert_eq!(checked(&written(dir.path(), 5)).resident, 5);
}

fn evicted() {
    let dir = dir();
    let path = written(dir.path(), 40 * MIB);
    evict(&path);
    assert_eq!(checked(&path).resident, 0);
}

fn half_cached() {
    let dir = dir();
    let path = written(dir.path(), 80 * MIB);
    evict(&path);
    // From the middle of one chunk to the middle of the third.
    cache(&path, (20 * MIB..60 * MIB).step_by(page()));
    assert_eq!(checked(&path).resident, 40 * MIB as u64);
}

fn scattered() {
    let dir = dir();
    let path = written(dir.path(), 40 * MIB + 1);
    evict(&path);
    // Never the first page of sixteen twice in a row; and the last page, with its one byte.
    cache(&path, (0..40 * MIB).step_by(7 * page()).chain([40 * MIB]));
    let pages = (40 * MIB).div_ceil(7 * page());
    assert_eq!(checked(&path).resident, (pages * page() + 1) as u64);
}

fn asking_twice_changes_nothing() {
    let dir = dir();
    let path = written(dir.path(), 40 * MIB);
    evict(&path);
    cache(&path, (0..40 * MIB).step_by(100 * page()));
    assert_eq!(checked(&path), checked(&path));
    // And nothing of ours keeps the pages: they can go.
    evict(&path);
}

/// A file of `size` with two pages of data, one at the start and one near the end.
fn sparse(dir: &Path, size: u64) -> PathBuf {
    let path = dir.join("sparse");
    let file = File::create(&path).unwrap();
    file.set_len(size).unwrap();
    for at in [0, size - 10 * page() as u64] {
        file.write_all_at(&vec![7; page()], at).unwrap();
    }
    file.sync_all().unwrap();
    path
}

/// Whether this kernel counts the cached pages of a whole range in one call.
fn counts_at_once(path: &Path) -> bool {
    const CACHESTAT: libc::c_long = 451;
    let file = File::open(path).unwrap();
    let (range, mut counts) = ([0_u64; 2], [0_u64; 5]);
    // SAFETY: both arrays are as large as the structures of the call and outlive it.
    unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0) == 0 }
}

fn holes_on_disk() {
    let dir = dir();
    let path = sparse(dir.path(), 64 * MIB as u64);
    assert_eq!(checked(&path).resident, 2 * page() as u64);
    // Page by page this would be 268 million questions. Without cachestat(2), before Linux 6.5,
    // each page is asked about.
    let size = if counts_at_once(&path) { 1 << 40 } else { 1 << 28 };
    let path = sparse(dir.path(), size);
    let blocks = fs::metadata(&path).unwrap().blocks();
    let found = of(&path);
    assert_eq!((found.size, found.resident), (size, 2 * page() as u64));
    assert_eq!(fs::metadata(&path).unwrap().blocks(), blocks);
}

fn holes_in_tmpfs() {
    let dir = tmpfs();
    assert_eq!(checked(&sparse(dir.path(), 64 * MIB as u64)).resident, 2 * page() as u64);
    assert_eq!(checked(&written(dir.path(), 33 * MIB + 9)).resident, 33 * MIB as u64 + 9);
}

fn empty() {
    let dir = dir();
    let path = dir.path().join("empty");
    File::create(&path).unwrap();
    let found = of(&path);
    assert_eq!((found.size, found.resident, found.nodes.is_empty()), (0, 0, true));
}

fn shrinking() {
    let dir = dir();
    let path = written(dir.path(), 200 * MIB);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let mut size = 200 * MIB as u64;
    let found = residency::of(&path, &mut |_, _| {
        size /= 3;
        file.set_len(size).unwrap();
    })
    .unwrap();
    assert_eq!(found.size, 200 * MIB as u64);
    assert!(found.resident < found.size);
    assert!(found.notes[0].contains("shrank from 209715200 to"), "{:?}", found.notes);
}

fn progress() {
    let dir = dir();
    let path = written(dir.path(), 100 * MIB + 5);
    let mut calls = Vec::new();
    residency::of(&path, &mut |done, all| calls.push((done, all))).unwrap();
    let size = 100 * MIB as u64 + 5;
    assert!(calls.is_sorted() && calls.iter().all(|c| c.1 == size), "{calls:?}");
    assert_eq!(calls.last(), Some(&(size, size)));
    assert!(calls.len() >= 2, "{calls:?}");
}

fn access_time_stays() {
    let dir = dir();
    let path = written(dir.path(), MIB);
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    File::open(&path).unwrap().set_times(fs::FileTimes::new().set_accessed(long_ago)).unwrap();
    of(&path);
    assert_eq!(fs::metadata(&path).unwrap().accessed().unwrap(), long_ago);
}

fn not_a_file() {
    let dir = dir();
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let socket = dir.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for (path, kind) in [
        (pipe.as_path(), "pipe"),
        (&socket, "socket"),
        (dir.path(), "directory"),
        (Path::new("/dev/null"), "character device"),
    ] {
        let error = error(path);
        assert!(error.contains(&format!("{} is a {kind}", path.display())), "{error}");
    }
}

fn links() {
    let dir = dir();
    let path = written(dir.path(), MIB);
    let (good, dangling) = (dir.path().join("good"), dir.path().join("dangling"));
    symlink(&path, &good).unwrap();
    symlink("nowhere", &dangling).unwrap();
    let found = of(&good);
    assert_eq!((found.path, found.resident), (good, MIB as u64));
    let error = error(&dangling);
    assert!(error.contains("dangling: No such file or directory (os error 2)"), "{error}");
}

/// Runs `f` in a thread of an ordinary user who does not own this test's files.
fn as_nobody<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let nobody = rustix::process::Uid::from_raw(65_534);
    std::thread::spawn(move || {
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        f()
    })
    .join()
    .unwrap()
}

fn unreadable() {
    let dir = dir();
    let path = written(dir.path(), MIB);
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let shown = path.display().to_string();
    let error = as_nobody(move || error(&path));
    assert_eq!(error, format!("cannot open {shown}: Permission denied (os error 13)"));
}

fn hidden_from_strangers() {
    let dir = dir();
    let path = written(dir.path(), MIB);
    evict(&path);
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    // The kernel tells a stranger that every page is cached.
    let (stranger, said) = as_nobody({
        let path = path.clone();
        move || (of(&path), cached(&path).iter().all(|c| *c))
    });
    assert!(said, "this kernel shows residency to everybody");
    assert_eq!((stranger.size, stranger.resident, stranger.nodes.is_empty()), (MIB as u64, 0, true));
    assert!(stranger.hidden.unwrap().contains("belongs to uid 0"));
    assert_eq!(of(&path).hidden, None);
}

fn shown_to_who_may_write() {
    let dir = dir();
    let path = written(dir.path(), MIB);
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    let writer = as_nobody(move || of(&path));
    assert_eq!((writer.hidden, writer.resident), (None, MIB as u64));
}

fn each_node() -> Tried {
    let machine = topology::sysfs::read(Path::new("/sys")).unwrap();
    let nodes: Vec<_> = machine.nodes.iter().filter(|n| n.memory_bytes > 0).map(|n| n.id).collect();
    need(nodes.len() > 1, "this machine has memory on one node only")?;
    for place in [dir(), tmpfs()] {
        let path = place.path().join("file");
        let mut expected = NodeBytes::default();
        for (i, node) in nodes.iter().enumerate() {
            // A part of odd size on each node, appended by a thread that may allocate nowhere else.
            let part = vec![7; (10 * i + 33) * page()];
            expected.add(*node, part.len() as u64);
            on_node(*node, || {
                let mut file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
                file.write_all(&part).unwrap();
            });
        }
        assert_eq!(checked(&path).nodes, expected);
    }
    Ok(())
}

/// Runs `f` in a thread whose memory comes from one node.
fn on_node(node: NodeId, f: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let bound = move || {
            let mut mask = [0_u64; 16];
            mask[node.0 as usize / 64] |= 1 << (node.0 % 64);
            // SAFETY: the mask has the stated number of bits; MPOL_BIND of this thread only.
            let rc =
                unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_BIND, mask.as_ptr(), 64 * mask.len() + 1) };
            assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
            f();
        };
        scope.spawn(bound).join().unwrap();
    });
}

/// Mounts an overlay over a directory.
struct Overlay(tempfile::TempDir);

impl Overlay {
    fn mount() -> Tried<Self> {
        let dir = dir();
        for part in ["lower", "upper", "work", "merged"] {
            fs::create_dir(dir.path().join(part)).unwrap();
        }
        written(&dir.path().join("lower"), 40 * MIB);
        let at = |part: &str| dir.path().join(part).display().to_string();
        let options = format!("lowerdir={},upperdir={},workdir={}", at("lower"), at("upper"), at("work"));
        let mounted = std::process::Command::new("mount")
            .args(["-t", "overlay", "overlay", "-o", &options, &at("merged")])
            .output()
            .or_else(|e| skip(format!("no mount command: {e}")))?;
        let said = String::from_utf8_lossy(&mounted.stderr);
        need(mounted.status.success(), format!("overlayfs is refused: {}", said.trim()))?;
        Ok(Self(dir))
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(self.0.path().join("merged")).status();
    }
}

/// On overlayfs an open file's own page cache is empty; its mapping has that of the file below.
fn overlay() -> Tried {
    let mounted = Overlay::mount()?;
    let path = mounted.0.path().join("merged/file");
    assert_eq!(checked(&path).resident, 40 * MIB as u64);
    evict(&mounted.0.path().join("lower/file"));
    cache(&path, (0..40 * MIB).step_by(3 * page()));
    assert_eq!(checked(&path).resident, ((40 * MIB).div_ceil(3 * page()) * page()) as u64);
    Ok(())
}

/// Huge pages reserved for a test, released when dropped.
struct HugePages(u64);

const NR_HUGEPAGES: &str = "/proc/sys/vm/nr_hugepages";

impl HugePages {
    fn lend(n: u64) -> Tried<Self> {
        fn no<T>(error: std::io::Error) -> Tried<T> {
            skip(format!("{NR_HUGEPAGES}: {error}"))
        }
        let read = || fs::read_to_string(NR_HUGEPAGES).or_else(no);
        let before: u64 = read()?.trim().parse()?;
        fs::write(NR_HUGEPAGES, (before + n).to_string()).or_else(no)?;
        let lent = Self(before);
        need(read()?.trim() == (before + n).to_string(), format!("this machine has no {n} huge pages to spare"))?;
        Ok(lent)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = fs::write(NR_HUGEPAGES, self.0.to_string());
    }
}

fn huge_pages() -> Tried {
    let _lent = HugePages::lend(3)?;
    let flags = rustix::fs::MemfdFlags::HUGETLB | rustix::fs::MemfdFlags::CLOEXEC;
    let file = File::from(rustix::fs::memfd_create("huge", flags).unwrap());
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let huge = file.metadata().unwrap().blksize();
    file.set_len(3 * huge).unwrap();
    assert_eq!(of(&path).resident, 0);
    let fill = |pages: u64| {
        let len = (pages * huge) as usize;
        // SAFETY: a new mapping of our own file, unmapped below; every touched byte is inside the
        // file.
        unsafe {
            let at = libc::mmap(null_mut(), len, libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd(), 0);
            assert_ne!(at, libc::MAP_FAILED);
            (0..pages).for_each(|p| at.cast::<u8>().add((p * huge) as usize).write_volatile(1));
            libc::munmap(at, len);
        }
    };
    fill(2);
    let part = of(&path);
    assert_eq!((part.resident, part.nodes.total()), (2 * huge, 0));
    assert!(part.notes[0].contains("holes"), "{:?}", part.notes);
    assert_eq!(file.metadata().unwrap().blocks() * 512, 2 * huge, "a hole was filled");
    fill(3);
    let whole = of(&path);
    assert_eq!((whole.resident, whole.nodes.total(), whole.notes.len()), (3 * huge, 3 * huge, 0));
    Ok(())
}

/// Mounts of persistent memory with DAX in the virtual machine, and their nodes (`vm/run --pmem`).
fn pmem() -> Vec<(PathBuf, NodeId)> {
    let mount = |n: u32| (PathBuf::from(format!("/mnt/pmem{n}")), NodeId(n));
    (0..8).map(mount).filter(|(path, _)| path.is_dir()).collect()
}

fn dax() -> Tried {
    let mounts = pmem();
    need(!mounts.is_empty(), "no persistent memory is mounted as /mnt/pmemN")?;
    for (mount, node) in mounts {
        let path = mount.join("file");
        let mut file = File::create(&path).unwrap();
        file.write_all(&vec![7; 4 * MIB + 5]).unwrap();
        // A hole, and a page behind it.
        file.write_all_at(&[1; 4096], 8 * MIB as u64).unwrap();
        file.sync_all().unwrap();
        let found = of(&path);
        let there = (4 * MIB + 2 * 4096) as u64;
        let mut expected = NodeBytes::default();
        expected.add(node, there);
        assert!(found.dax, "{found:?}");
        assert_eq!((found.size, found.resident, &found.nodes), (8 * MIB as u64 + 4096, there, &expected), "{found:?}");
        assert_eq!((&found.hidden, found.notes.as_slice()), (&None, &[][..]));
        fs::remove_file(&path).unwrap();
    }
    Ok(())
}

const CASES: &[Case] = cases![
    []
        all_cached,
        half_cached,
        scattered,
        holes_on_disk,
        holes_in_tmpfs,
        each_node,
        dax,
        overlay,
        huge_pages;
    [any_kernel()]
        a_few_bytes,
        evicted,
        asking_twice_changes_nothing,
        empty,
        shrinking,
        progress,
        access_time_stays,
        not_a_file,
        links;
    [root()] hidden_from_strangers;
    [any_kernel(), root()] unreadable, shown_to_who_may_write;
];

fn main() {
    // To find huge pages, the kernel drops cached pages that other tests need.
    testing::run_one_by_one(&[], CASES.to_vec());
}
