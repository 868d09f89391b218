//! Facts of the plane about files and processes beside their bytes, against mincore, move_pages and
//! procfs.
//!
//! Each test runs twice: with the best hooks that the kernel accepts, and with tracepoints only.
//! None runs in the virtual machines of `make test`: homenode's budget is small for an emulated
//! machine to look at a file.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::{Plane, Thrift};
use host::{HostPlane, Settings as HostSettings};
use observe::{Capabilities, Hooks, Scope, Settings, choose};
use placement::{ObservedFile, Snapshot, Writes};
use testing::files::*;
use testing::{Tried, ensure, roles, skip};

/// Their names, and they.
macro_rules! named {
    ($($name:ident),+ $(,)?) => { [$((stringify!($name), $name as fn(Hooks) -> Tried)),+] };
}

fn main() {
    let mut trials = Vec::new();
    for (way, hooks) in [("functions", Hooks::Best), ("tracepoints", Hooks::Tracepoints)] {
        let cases = named![
            a_file_and_its_reader_are_described,
            looking_reads_nothing_in,
            looking_is_shed_before_windows_are_stretched,
            of_many_files_those_that_matter_are_looked_at,
        ];
        trials.extend(cases.map(|(name, run)| {
            testing::trial(format!("{way}::{name}"), move || {
                observing(hooks)?;
                run(hooks)
            })
        }));
    }
    // They count what happens on the machine.
    testing::run_one_by_one(roles!["reader": be_reader], trials);
}

/// Needs a kernel that takes these hooks.
fn observing(hooks: Hooks) -> Tried {
    let capabilities = Capabilities::probe();
    let blocked = choose(&capabilities, &Settings { hooks, ..Settings::default() }).blocked;
    blocked.map_or(Ok(()), |(what, cause)| skip(format!("{what} is missing: {cause}")))?;
    capabilities.functions.cause().filter(|_| hooks == Hooks::Best).map_or(Ok(()), skip)
}

fn plane(hooks: Hooks, reader: &Reader) -> Tried<HostPlane> {
    let observe = Settings { scope: Scope::of(&[reader.pid()], Path::new("/proc"))?, hooks, ..Settings::default() };
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
    let pid = reader.pid();
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
