//! Facts of the plane about files and processes beside their bytes, against mincore, move_pages and
//! procfs.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use engine::{Plane, Thrift};
use host::{HostPlane, Settings as HostSettings};
use observe::{Hooks, Scope, Settings};
use placement::{ObservedFile, Snapshot, Writes};
use testing::{Tried, ensure};

use crate::common::*;
use crate::{Case, cases};

pub const CASES: &[Case] = cases![
    WithStructures: our_own_copies_count_for_nobody;
    // homenode's budget is small for an emulated machine to look at a file.
    Never:
        a_file_and_its_reader_are_described,
        looking_reads_nothing_in,
        looking_is_shed_before_windows_are_stretched,
        of_many_files_those_that_matter_are_looked_at;
];

/// Copies within the daemon, and those of a `homenode move` beside it, make no file shared and
/// nobody a reader.
fn our_own_copies_count_for_nobody(hooks: Hooks) -> Tried {
    let directory = directory()?;
    let path = cached_file(directory.path(), "data", 4 * MIB, 4096)?;
    let file = id(&path)?;
    let mut observer = open(&settings(true, hooks))?;
    let copy = || -> std::io::Result<()> {
        pread_all(&path, 65_536)?;
        drop(hold(&path).map_err(|_| std::io::ErrorKind::Other)?);
        Ok(())
    };
    let (seen, _) = watch_one(&mut observer, copy)?;
    ensure!(seen.read(&path)? >= 4 * MIB, "{seen:?}");
    observer.ignore_own_program();
    let mover = Reader::start(&std::env::current_exe()?, &[&path])?;
    let reader = Reader::of(&[&path])?;
    let mut mover_s = 0.0;
    for _ in 0..200 {
        let (seen, observed) = watch_one(&mut observer, copy)?;
        ensure!(seen.thread.iter().all(|t| t.thread.file_bytes() == 0), "{seen:?}");
        let of = |pid| observed.threads.iter().filter(move |t| t.thread.pid == pid).map(|t| &t.thread);
        ensure!(of(mover.0.id()).all(|t| t.file_bytes() == 0), "{:?}", of(mover.0.id()).collect::<Vec<_>>());
        let (here, others): (Vec<_>, Vec<_>) =
            observed.threads.iter().map(|t| &t.thread).partition(|t| t.pid == reader.0.id());
        ensure!(others.iter().all(|t| t.files.iter().all(|used| used.file != file)), "{others:?}");
        mover_s += of(mover.0.id()).map(|t| t.cpu_s).sum::<f64>();
        // By then it has read the file some times.
        if mover_s > 0.05 && here.iter().any(|t| t.files.iter().any(|used| used.file == file)) {
            ensure!(here.iter().all(|t| !t.shares_file), "{here:?}");
            return Ok(());
        }
    }
    Err("the readers did not read".into())
}

/// Bytes of memory of its own that the reader uses meanwhile.
const OWN: u64 = 48 * MIB;
const CALL: usize = 256 << 10;

/// Set: a reader is another user, and reads only the first page of each file.
const NOBODY: &str = "HOMENODE_TEST_NOBODY";

/// Reads the first 4 MiB of each file, over and over, until it is killed.
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

pub struct Reader(Child);

impl Reader {
    /// What this program itself reads counts for nobody: the reader is a copy of it.
    fn of(paths: &[&Path]) -> Tried<Self> {
        let copy = directory()?;
        let program = copy.path().join("reader");
        std::fs::copy(std::env::current_exe()?, &program)?;
        Self::start(&program, paths)
    }

    fn start(program: &Path, paths: &[&Path]) -> Tried<Self> {
        Self::spawn(&mut Command::new(program), paths)
    }

    fn spawn(program: &mut Command, paths: &[impl AsRef<Path>]) -> Tried<Self> {
        let paths = paths.iter().map(AsRef::as_ref);
        Ok(Self(program.args(["--role", "read"]).args(paths).stdout(Stdio::null()).spawn()?))
    }

    /// A process of another user that reads all of these files, which are small.
    pub fn of_nobody(paths: &[PathBuf]) -> Tried<Self> {
        Self::spawn(Command::new(std::env::current_exe()?).env(NOBODY, "1"), paths)
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        kill_group(&mut self.0);
    }
}

fn plane(hooks: Hooks, reader: &Reader) -> Tried<HostPlane> {
    let observe = Settings { scope: Scope::Pids(vec![reader.0.id()]), hooks, ..Settings::default() };
    Ok(HostPlane::open(HostSettings { observe, ..HostSettings::default() }, topology()?)?)
}

/// Observes windows until one shows this of the file.
fn until(
    plane: &mut HostPlane,
    path: &Path,
    shows: impl Fn(&Snapshot, &ObservedFile) -> bool,
) -> Tried<(Snapshot, ObservedFile)> {
    let id = id(path)?;
    let mut last = None;
    for _ in 0..200 {
        let snapshot = plane.observe(Duration::from_millis(100))?;
        let file = snapshot.files.iter().find(|file| file.file == id).cloned();
        match file {
            Some(file) if shows(&snapshot, &file) => return Ok((snapshot, file)),
            file => last = Some((file, snapshot.processes, snapshot.notes)),
        }
    }
    Err(format!("never seen of {}: {last:?}", path.display()).into())
}

/// Cached bytes of a file, by mincore(2).
fn cached(path: &Path) -> Tried<u64> {
    // Mapping counts as access too.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOATIME).open(path)?;
    let len = file.metadata()?.len() as usize;
    // SAFETY: a new mapping of a file that nothing truncates; it is not touched.
    let map = unsafe {
        let flags = rustix::mm::MapFlags::SHARED;
        rustix::mm::mmap(std::ptr::null_mut(), len, rustix::mm::ProtFlags::READ, flags, &file, 0)?
    };
    let mut pages = vec![0u8; len.div_ceil(4096)];
    // SAFETY: the vector has a byte for each page of the mapping.
    let result = unsafe { libc::mincore(map, len, pages.as_mut_ptr()) };
    // SAFETY: nothing refers to the mapping any more.
    unsafe { rustix::mm::munmap(map, len)? };
    ensure!(result == 0, "mincore: {}", std::io::Error::last_os_error());
    Ok(pages.iter().filter(|page| **page & 1 == 1).count() as u64 * 4096)
}

/// Anonymous memory of a process, by procfs.
fn anonymous(pid: u32) -> Tried<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).ok_or("no RssAnon")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}

/// A file half of which each of two nodes holds, where there are two.
fn spread_file(directory: &Path, bytes: u64) -> Tried<PathBuf> {
    let path = directory.join("spread");
    let file = File::create(&path)?;
    let topology = topology()?;
    let nodes: Vec<_> = topology.nodes.iter().filter(|node| !node.cpus.is_empty() && node.memory_bytes > 0).collect();
    let block = vec![7; MIB as usize];
    for part in 0..2 {
        let node = nodes.get(part).or(nodes.first()).ok_or("no node")?;
        let half = part as u64 * bytes / 2..(part as u64 + 1) * bytes / 2;
        let write = || half.step_by(MIB as usize).try_for_each(|at| file.write_all_at(&block, at));
        on_node(&node.cpus, write)??;
    }
    file.sync_all()?;
    Ok(path)
}

fn a_file_and_its_reader_are_described(hooks: Hooks) -> Tried {
    const SIZE: u64 = 96 * MIB;
    let directory = directory()?;
    let path = spread_file(directory.path(), SIZE)?;
    let reader = Reader::of(&[&path])?;
    let mut plane = plane(hooks, &reader)?;
    let pid = reader.0.id();
    // The first windows can be those in which the reader starts.
    let (snapshot, file) = until(&mut plane, &path, |snapshot, file| {
        let whole = snapshot.processes.iter().any(|p| p.pid == pid && p.resident.total() >= OWN);
        !file.bytes.is_empty() && file.opens == Some(1) && whole && snapshot.threads.iter().any(|t| t.pid == pid)
    })?;
    snapshot.validate()?;
    let seen = (file.size, file.path.as_deref().map(Path::new), file.writes, file.movable, file.pinned.as_deref());
    let canonical = path.canonicalize()?;
    let expected = (Some(SIZE), Some(canonical.as_path()), Some(Writes::InPlace), Some(true), None);
    ensure!(seen == expected, "{seen:?}, not {expected:?}");
    let looked = file.sampled.ok_or("not sampled")?;
    ensure!((looked - 64.0 / 96.0).abs() < 0.01, "{looked} was looked at");
    // 64 places: three standard deviations of a half.
    for (node, bytes) in host_nodes(&path)? {
        let seen = file.bytes.get(topology::NodeId(node));
        ensure!(seen.abs_diff(bytes) < SIZE / 5, "node {node}: {seen} bytes, {bytes} by move_pages");
    }
    ensure!(close(file.bytes.total(), SIZE, 0.01), "{:?} of {SIZE}", file.bytes);
    let process = snapshot.processes.iter().find(|p| p.pid == pid).ok_or("no process")?;
    let own = anonymous(pid)?;
    ensure!(close(process.resident.total(), own, 0.05), "{:?}, {own} by /proc", process.resident);
    let uses: Vec<_> = snapshot.threads.iter().flat_map(|t| &t.files).filter(|used| used.file == file.file).collect();
    let [used] = uses[..] else { return Err(format!("{uses:?}").into()) };
    ensure!(used.read_size.is_some_and(|size| close(size, CALL as u64, 0.25)), "{used:?}");
    ensure!(used.sequential == Some(true), "{used:?}");
    Ok(())
}

fn looking_reads_nothing_in(hooks: Hooks) -> Tried {
    let directory = directory()?;
    let path = cached_file(directory.path(), "data", 32 * MIB, 4096)?;
    evict(&path)?;
    // So long ago that any access would change it (`relatime`).
    let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000);
    File::options().write(true).open(&path)?.set_times(std::fs::FileTimes::new().set_accessed(long_ago))?;
    let reader = Reader::of(&[&path])?;
    let mut plane = plane(hooks, &reader)?;
    // The reader gets through its part within the first windows.
    until(&mut plane, &path, |_, file| file.bytes.total() >= 4 * MIB)?;
    let cached = cached(&path)?;
    ensure!(cached < 16 * MIB, "{cached} of 32 MiB are cached: the reader read 4");
    until(&mut plane, &path, |_, file| file.bytes.total() == cached)?;
    let after = self::cached(&path)?;
    ensure!(after == cached, "{cached} bytes were cached, then {after}");
    let accessed = std::fs::metadata(&path)?.accessed()?;
    ensure!(accessed == long_ago, "the access time changed to {accessed:?}");
    Ok(())
}

fn looking_is_shed_before_windows_are_stretched(hooks: Hooks) -> Tried {
    let directory = directory()?;
    let path = cached_file(directory.path(), "data", 8 * MIB, 4096)?;
    let reader = Reader::of(&[&path])?;
    let mut plane = plane(hooks, &reader)?;
    let shed: Vec<String> = (0..3).filter_map(|_| plane.shed()).collect();
    let words = ["may take 0.25 %", "no longer looked at", "windows are now 2 times"];
    let said = |all: &[String], words: &[&str]| all.len() == 3 && all.iter().zip(words).all(|(s, w)| s.contains(w));
    ensure!(said(&shed, &words), "{shed:?}");
    let (snapshot, file) = until(&mut plane, &path, |_, file| !file.readers.is_empty())?;
    ensure!(file.size.is_none() && file.bytes.is_empty() && snapshot.processes.is_empty(), "{file:?}");
    ensure!(snapshot.notes.iter().any(|note| note.contains("not looked at: over the budget")), "{:?}", snapshot.notes);
    let relaxed: Vec<String> = (0..3).filter_map(|_| plane.relax()).collect();
    ensure!(said(&relaxed, &["set length", "may take 0.25 %", "may take 1 %"]), "{relaxed:?}");
    ensure!(plane.relax().is_none(), "nothing was left to take back");
    until(&mut plane, &path, |_, file| file.size == Some(8 * MIB))?;
    Ok(())
}

/// 1,000 files with a thousandth of the bytes each matter to nobody; the one with as many as a
/// hundred of them does.
fn of_many_files_those_that_matter_are_looked_at(hooks: Hooks) -> Tried {
    const FEW: usize = 1000;
    let directory = directory()?;
    let small: Vec<PathBuf> =
        (0..FEW).map(|i| cached_file(directory.path(), &i.to_string(), 4096, 4096)).collect::<Result<_, _>>()?;
    let large = cached_file(directory.path(), "large", 4 * MIB, 4096)?;
    let all: Vec<&Path> = small.iter().chain([&large]).map(PathBuf::as_path).collect();
    let reader = Reader::of(&all)?;
    let mut plane = plane(hooks, &reader)?;
    let (snapshot, _) = until(&mut plane, &large, |snapshot, file| file.size.is_some() && snapshot.files.len() > FEW)?;
    let described = snapshot.files.iter().filter(|file| file.size.is_some() || file.path.is_some()).count();
    ensure!(described < 20, "{described} of {} files were looked at", snapshot.files.len());
    Ok(())
}
