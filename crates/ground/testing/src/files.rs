//! Files whose pages are where a test wants them, and processes that read them.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use topology::{CpuSet, FileId, Topology};

use crate::{Ends, Tried, myself};

/// One megabyte is 2^20 bytes here: file sizes are powers of two.
pub const MIB: u64 = 1 << 20;

/// A directory for one test's files.
pub fn directory() -> Tried<tempfile::TempDir> {
    Ok(tempfile::Builder::new().prefix("homenode-").tempdir_in(crate::disk())?)
}

pub fn topology() -> Tried<Topology> {
    Ok(topology::sysfs::read(Path::new("/sys"))?)
}

/// A file of this size whose pages are all in the page cache and clean. Written `chunk` bytes at a
/// time: file systems with large folios make them about as large as the writes.
pub fn cached_file(directory: &Path, name: &str, bytes: u64, chunk: usize) -> Tried<PathBuf> {
    let path = directory.join(name);
    let mut file = File::create(&path)?;
    let block: Vec<u8> = (0..chunk).map(|i| ((i * 31) >> 5) as u8).collect();
    let mut left = bytes;
    while left > 0 {
        let n = left.min(chunk as u64);
        file.write_all(&block[..n as usize])?;
        left -= n;
    }
    file.sync_all()?;
    Ok(path)
}

/// Drops a file's pages from the page cache.
pub fn evict(path: &Path) -> Tried {
    let file = File::open(path)?;
    file.sync_all()?;
    rustix::fs::fadvise(file.as_fd(), 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

/// A file's id as observations name it.
pub fn id(path: &Path) -> Tried<FileId> {
    let stat = std::fs::metadata(path)?;
    let dev = stat.dev();
    Ok(FileId { dev: FileId::device(rustix::fs::major(dev), rustix::fs::minor(dev)), ino: stat.ino(), generation: 0 })
}

/// Whether `seen` is within `share` of `said`.
pub fn close(seen: u64, said: u64, share: f64) -> bool {
    (seen as f64 - said as f64).abs() <= said as f64 * share
}

/// Pins the calling thread.
pub fn pin(cpus: &CpuSet) -> std::io::Result<()> {
    linux::affinity::set(linux::threads::own_tid(), cpus)
}

/// Runs a job on these CPUs.
pub fn on_node<T: Send>(cpus: &CpuSet, job: impl FnOnce() -> T + Send) -> Tried<T> {
    let pinned = || pin(cpus).map(|()| job());
    Ok(std::thread::scope(|scope| scope.spawn(pinned).join()).map_err(|_| "a job panicked")??)
}

/// Bytes of a file on each node, according to move_pages(2) for a mapping of it.
pub fn host_nodes(path: &Path) -> Tried<BTreeMap<u32, u64>> {
    let file = File::open(path)?;
    let len = file.metadata()?.len() as usize;
    // SAFETY: a new mapping of a file that nothing truncates, populated so that every page can be
    // queried.
    let map = unsafe {
        let flags = rustix::mm::MapFlags::SHARED | rustix::mm::MapFlags::POPULATE;
        rustix::mm::mmap(std::ptr::null_mut(), len, rustix::mm::ProtFlags::READ, flags, &file, 0)?
    };
    let pages: Vec<usize> = (0..len).step_by(4096).map(|at| map.wrapping_byte_add(at).addr()).collect();
    let (status, asked) = linux::pages::move_pages(0, &pages, None, 0);
    // SAFETY: nothing refers to the mapping any more.
    unsafe { rustix::mm::munmap(map, len)? };
    asked.map_err(|error| format!("move_pages: {error}"))?;
    let mut nodes = BTreeMap::new();
    for (i, node) in status.iter().enumerate() {
        let node = u32::try_from(*node).map_err(|_| format!("page {i}: status {node}"))?;
        *nodes.entry(node).or_default() += 4096.min(len as u64 - i as u64 * 4096);
    }
    Ok(nodes)
}

/// Bytes of memory of its own that a reader uses.
pub const OWN: u64 = 48 * MIB;
/// Bytes that a reader asks for in one call.
pub const CALL: usize = 256 << 10;

/// Set: a reader is another user, and reads only the first page of each file.
const NOBODY: &str = "HOMENODE_TEST_NOBODY";

/// The role `reader`: reads the first 4 MiB of each file, over and over, until it is killed.
pub fn be_reader(paths: &[String]) -> Tried {
    let own = vec![7u8; OWN as usize];
    // Reading changes no access time, so that a change of it is homenode's doing.
    let open = |path: &String| OpenOptions::new().read(true).custom_flags(libc::O_NOATIME).open(path);
    let files: Vec<File> = paths.iter().map(open).collect::<Result<_, _>>()?;
    for file in &files {
        rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random)?;
    }
    let mut buffer = vec![0; CALL];
    if std::env::var_os(NOBODY).is_some() {
        // This process has one thread.
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65_534))?;
        loop {
            files.iter().try_for_each(|file| file.read_at(&mut buffer, 0).map(drop))?;
        }
    }
    loop {
        for file in &files {
            for at in (0..4 * MIB).step_by(CALL) {
                file.read_at(&mut buffer, at)?;
            }
        }
        std::hint::black_box(&own);
    }
}

/// A process that reads files; killed when dropped.
pub struct Reader(Ends);

impl Reader {
    /// What this program itself reads counts for nobody: the reader is a copy of it.
    pub fn of(paths: &[&Path]) -> Tried<Self> {
        let copy = directory()?;
        let program = copy.path().join("reader");
        std::fs::copy(std::env::current_exe()?, &program)?;
        Self::start(Command::new(&program).args(["--role", "reader"]).args(paths))
    }

    /// This program itself.
    pub fn of_ours(paths: &[&Path]) -> Tried<Self> {
        Self::start(myself("reader").args(paths))
    }

    /// A process of another user that reads all of these files, which are small.
    pub fn of_nobody(paths: &[PathBuf]) -> Tried<Self> {
        Self::start(myself("reader").env(NOBODY, "1").args(paths))
    }

    fn start(program: &mut Command) -> Tried<Self> {
        Ok(Self(Ends(program.stdout(Stdio::null()).spawn()?)))
    }

    pub fn pid(&self) -> u32 {
        self.0.0.id()
    }
}
