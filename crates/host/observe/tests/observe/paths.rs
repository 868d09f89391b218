//! Every way to read and write a file, each counted exactly.

use std::fs::{File, OpenOptions};
use std::io::{IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use observe::Hooks;
use placement::NodeBytes;
use testing::{Tried, ensure, skip};
use topology::NodeId;

use crate::common::*;
use crate::{Case, cases};

pub const CASES: &[Case] = cases![
    WithStructures:
        pread_of_pages,
        large_folios,
        cold_file,
        mapped_pages,
        mapped_cold_pages,
        writes,
        tmpfs,
        dax;
    WithKernels:
        readv_of_pages,
        holes,
        sendfile_to_nowhere,
        splice_to_a_pipe,
        copy_file_range_reads,
        mapped_holes,
        direct_reads_count_nothing,
        pipes_and_sockets_count_nothing,
        overwrites_and_appends,
        files_of_different_subvolumes;
    WithHooks:
        pread_of_parts_of_pages,
        read_of_parts_of_pages,
        pread_over_the_end,
        requests_larger_than_a_batch,
        requests_that_start_within_a_page,
        cold_file_by_parts;
];

/// Counts one job's bytes exactly.
fn exact(hooks: Hooks, bytes: u64, chunk: usize, job: impl FnOnce(&Path) -> std::io::Result<u64> + Send) -> Tried {
    within(0.0, hooks, bytes, chunk, job)
}

/// Counts one job's bytes exactly: they are handed on, and not read.
fn handed(hooks: Hooks, bytes: u64, job: impl FnOnce(&Path) -> std::io::Result<u64> + Send) -> Tried {
    let directory = directory()?;
    let path = cached_file(directory.path(), "data", bytes, 4096)?;
    let _held = hold(&path)?;
    let mut exact = exact_observer(hooks)?;
    let mut said = 0;
    let (seen, observed) = watch_one(exact.observer()?, || {
        said = job(&path)?;
        Ok(())
    })?;
    let thread = seen.thread.as_ref().ok_or("the thread was not reported")?;
    let handed = thread.thread.handed_bytes.total();
    ensure!(handed == said, "saw {handed} bytes handed on, not {said}; {:?}", observed.notes);
    ensure!(seen.of(id(&path)?).file_bytes() == 0, "{:?}", thread.thread);
    let file = id(&path)?;
    let read = observed.files.iter().any(|of| of.file.file == file && of.file.readers.contains(&seen.tid));
    ensure!(!read, "it is a reader");
    Ok(())
}

fn within(
    error: f64,
    hooks: Hooks,
    bytes: u64,
    chunk: usize,
    job: impl FnOnce(&Path) -> std::io::Result<u64> + Send,
) -> Tried {
    let directory = directory()?;
    let path = cached_file(directory.path(), "data", bytes, chunk)?;
    let _held = if error == 0.0 && bytes > 0 { Some(hold(&path)?) } else { None };
    let mut exact = exact_observer(hooks)?;
    let mut said = 0;
    let (seen, observed) = watch_one(exact.observer()?, || {
        said = job(&path)?;
        Ok(())
    })?;
    let read = seen.read(&path)?;
    ensure!(close(read, said, error), "saw {read} bytes, {said} were read; {:?}", observed.notes);
    Ok(())
}

fn pread_of_pages(hooks: Hooks) -> Tried {
    exact(hooks, 16 * MIB, 4096, |path| pread_all(path, 4096).map(|()| 16 * MIB))
}

fn pread_of_parts_of_pages(hooks: Hooks) -> Tried {
    exact(hooks, MIB, 4096, |path| {
        let file = File::open(path)?;
        let mut buffer = [0; 512];
        let mut said = 0;
        for i in 0..1000u64 {
            // Some cross the boundary of two pages.
            said += file.read_at(&mut buffer, i * 1000)? as u64;
        }
        Ok(said)
    })
}

fn read_of_parts_of_pages(hooks: Hooks) -> Tried {
    exact(hooks, MIB, 4096, |path| {
        let mut file = File::open(path)?;
        let mut buffer = [0; 700];
        let mut said = 0;
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(said),
                n => said += n as u64,
            }
        }
    })
}

fn pread_over_the_end(hooks: Hooks) -> Tried {
    exact(hooks, 8192 + 100, 4096, |path| {
        let file = File::open(path)?;
        let mut buffer = vec![0; 65_536];
        let mut said = 0;
        for at in [8192, 8200, 4096, 0, 8292, 1 << 40] {
            said += file.read_at(&mut buffer, at)? as u64;
        }
        Ok(said)
    })
}

fn readv_of_pages(hooks: Hooks) -> Tried {
    exact(hooks, 4 * MIB, 4096, |path| {
        let mut file = File::open(path)?;
        let (mut a, mut b) = (vec![0; 4096], vec![0; 12_288]);
        let mut said = 0;
        loop {
            match file.read_vectored(&mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)])? {
                0 => return Ok(said),
                n => said += n as u64,
            }
        }
    })
}

fn requests_larger_than_a_batch(hooks: Hooks) -> Tried {
    exact(hooks, 64 * MIB, 4096, |path| pread_all(path, MIB as usize).map(|()| 64 * MIB))
}

fn requests_that_start_within_a_page(hooks: Hooks) -> Tried {
    exact(hooks, 8 * MIB, 4096, |path| {
        let file = File::open(path)?;
        let mut buffer = vec![0; 300_001];
        let mut said = 0;
        for at in (77..8 * MIB).step_by(500_009) {
            said += file.read_at(&mut buffer, at)? as u64;
        }
        Ok(said)
    })
}

fn large_folios(hooks: Hooks) -> Tried {
    for size in [4096, 100_000, MIB as usize] {
        exact(hooks, 8 * MIB + 5, 4 * MIB as usize, move |path| pread_all(path, size).map(|()| 8 * MIB + 5))?;
    }
    Ok(())
}

fn holes(hooks: Hooks) -> Tried {
    exact(hooks, 0, 4096, |path| {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(4 * MIB)?;
        file.write_all_at(&[1; 4096], 2 * MIB)?;
        // Reading a hole puts pages of zeros into the page cache, which are on a node like any
        // others.
        pread_all(path, 65_536).map(|()| 4 * MIB)
    })
}

/// Reads an uncached file: the kernel ends its batches at pages that are not cached yet or start
/// the next readahead. Within 1 %, as a page can be missing when the program inspects it.
fn cold(hooks: Hooks, size: usize) -> Tried {
    within(0.01, hooks, 32 * MIB, 4096, |path| {
        evict(path).map_err(|e| std::io::Error::other(format!("{e:?}")))?;
        pread_all(path, size).map(|()| 32 * MIB)
    })
}

fn cold_file(hooks: Hooks) -> Tried {
    cold(hooks, MIB as usize)?;
    cold(hooks, 65_536)?;
    cold(hooks, 4096)
}

fn cold_file_by_parts(hooks: Hooks) -> Tried {
    cold(hooks, 10_000)
}

fn sendfile_to_nowhere(hooks: Hooks) -> Tried {
    handed(hooks, 16 * MIB + 11, |path| {
        let (file, null) = (File::open(path)?, OpenOptions::new().write(true).open("/dev/null")?);
        let mut said = 0;
        loop {
            match rustix::fs::sendfile(&null, &file, None, MIB as usize)? {
                0 => return Ok(said),
                n => said += n as u64,
            }
        }
    })
}

/// The kernel copies the bytes: the caller has read them. Where files share blocks, it reads none.
fn copy_file_range_reads(hooks: Hooks) -> Tried {
    if rustix::fs::statfs(directory()?.path())?.f_type as u64 != 0xEF53 {
        return skip("the files are not on ext4");
    }
    exact(hooks, 4 * MIB, 4096, |path| {
        let to = tempfile::tempfile_in(path.parent().unwrap_or(path))?;
        let (file, mut said) = (File::open(path)?, 0);
        loop {
            match rustix::fs::copy_file_range(&file, None, &to, None, MIB as usize)? {
                0 => return Ok(said),
                n => said += n as u64,
            }
        }
    })
}

fn splice_to_a_pipe(hooks: Hooks) -> Tried {
    handed(hooks, 4 * MIB, |path| {
        let file = File::open(path)?;
        let (mut reader, writer) = std::io::pipe()?;
        let mut buffer = vec![0; 65_536];
        let mut said = 0;
        loop {
            let flags = rustix::pipe::SpliceFlags::empty();
            let n = rustix::pipe::splice(&file, None, &writer, None, 65_536, flags)?;
            if n == 0 {
                return Ok(said);
            }
            said += n as u64;
            let mut left = n;
            while left > 0 {
                left -= reader.read(&mut buffer)?;
            }
        }
    })
}

/// Each subvolume has inode numbers of its own: all three files had one name.
fn files_of_different_subvolumes(hooks: Hooks) -> Tried {
    let directory = directory()?;
    let (image, at) = (directory.path().join("image"), directory.path().join("mounted"));
    File::create(&image)?.set_len(256 * MIB)?;
    std::fs::create_dir(&at)?;
    // Where it is a module, it is loaded by the mount.
    let run = |program: &str, arguments: &[&str], path: &Path| {
        let done = std::process::Command::new(program).args(arguments).arg(path).output();
        done.is_ok_and(|done| done.status.success())
    };
    _ = run("modprobe", &["-a", "-q", "loop"], Path::new("btrfs"));
    let image = image.display().to_string();
    let made = run("mkfs.btrfs", &["-q"], Path::new(&image));
    if !made || !run("mount", &["-o", "loop", "-t", "btrfs", &image], &at) {
        return skip("no btrfs can be made and mounted here");
    }
    struct Unmount<'a>(&'a Path);
    impl Drop for Unmount<'_> {
        fn drop(&mut self) {
            _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
        }
    }
    let _mounted = Unmount(&at);
    let mut files = Vec::new();
    for (i, name) in [".", "a", "a/b"].iter().enumerate() {
        let place = at.join(name);
        ensure!(i == 0 || run("btrfs", &["-q", "subvolume", "create"], &place), "no subvolume {name}");
        files.push((cached_file(&place, "data", (i as u64 + 1) * MIB, 4096)?, (i as u64 + 1) * MIB));
    }
    // Not one that was opened before the module was there.
    let mut observer = open(&settings(true, hooks))?;
    let ids = files.iter().map(|(path, _)| id(path)).collect::<Result<Vec<_>, _>>()?;
    ensure!(ids.iter().all(|id| id.ino == ids[1].ino || id.ino == ids[0].ino), "inodes {ids:?}");
    ensure!(ids[1].ino == ids[2].ino, "inodes {ids:?}");
    let (seen, observed) = watch_one(&mut observer, || files.iter().try_for_each(|(path, _)| pread_all(path, 65_536)))?;
    for ((path, bytes), id) in files.iter().zip(&ids) {
        ensure!(seen.read(path)? == *bytes, "saw {} of {bytes} read of {id}; {:?}", seen.read(path)?, seen.thread);
        ensure!(observed.files.iter().any(|file| file.file.file == *id), "{id} is not listed");
    }
    Ok(())
}

/// A mapping of a file.
struct Mapped {
    at: *mut libc::c_void,
    len: usize,
}

impl Mapped {
    fn new(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        let len = file.metadata()?.len() as usize;
        let flags = rustix::mm::MapFlags::SHARED;
        // SAFETY: a new read-only mapping of a file that nothing truncates.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, rustix::mm::ProtFlags::READ, flags, &file, 0)? };
        Ok(Self { at, len })
    }

    /// Reads a byte of each of these pages. Returns the pages' bytes.
    fn touch(&self, pages: impl Iterator<Item = usize>) -> u64 {
        // SAFETY: readable for `len` bytes until it is unmapped.
        let bytes = unsafe { std::slice::from_raw_parts(self.at.cast::<u8>(), self.len) };
        let read = |page: usize| {
            std::hint::black_box(bytes[page * 4096]);
            4096
        };
        pages.map(read).sum()
    }

    fn pages(&self) -> usize {
        self.len / 4096
    }

    /// Unmaps a page; the mapping stays.
    fn forget(&self, page: usize) -> std::io::Result<()> {
        assert!(page < self.pages());
        // SAFETY: inside a mapping of a file, whose bytes stay.
        unsafe { rustix::mm::madvise(self.at.byte_add(page * 4096), 4096, rustix::mm::Advice::LinuxDontNeed)? };
        Ok(())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        let _ = unsafe { rustix::mm::munmap(self.at, self.len) };
    }
}

/// Touches every page of a mapping once.
fn touch(path: &Path) -> std::io::Result<u64> {
    let mapped = Mapped::new(path)?;
    Ok(mapped.touch(0..mapped.pages()))
}

fn mapped_pages(hooks: Hooks) -> Tried {
    exact(hooks, 16 * MIB, 4096, touch)
}

/// A fault among mapped pages maps, and counts, only the pages that were not mapped yet.
fn mapped_holes(hooks: Hooks) -> Tried {
    exact(hooks, 4 * MIB, 4096, |path| {
        let mapped = Mapped::new(path)?;
        let mut said = mapped.touch(0..mapped.pages());
        // One page of each window of fault-around, then two of each.
        let (one, two) = ((5..mapped.pages()).step_by(16), (0..mapped.pages()).step_by(8));
        one.clone().try_for_each(|page| mapped.forget(page))?;
        said += mapped.touch(one);
        two.clone().try_for_each(|page| mapped.forget(page))?;
        said += mapped.touch(two);
        Ok(said)
    })
}

/// Pages are mapped as they come from the disk: some by a fault that waits for them and begins
/// anew. Each counts once.
fn mapped_cold_pages(hooks: Hooks) -> Tried {
    exact(hooks, 16 * MIB, 4096, |path| {
        evict(path).map_err(|e| std::io::Error::other(format!("{e:?}")))?;
        touch(path)
    })
}

fn direct_reads_count_nothing(hooks: Hooks) -> Tried {
    let directory = directory()?;
    let path = cached_file(directory.path(), "data", MIB, 4096)?;
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
    let Ok(file) = direct else { return skip("this file system has no O_DIRECT") };
    let mut exact = exact_observer(hooks)?;
    let (seen, _) = watch_one(exact.observer()?, || {
        let mut buffer = vec![0; 8192];
        let skip = buffer.as_ptr().align_offset(4096);
        let aligned = buffer.get_mut(skip..skip + 4096).ok_or(std::io::ErrorKind::Other)?;
        for at in (0..MIB).step_by(4096) {
            file.read_exact_at(aligned, at)?;
        }
        Ok(())
    })?;
    let read = seen.read(&path)?;
    ensure!(read == 0, "saw {read} bytes");
    Ok(())
}

fn pipes_and_sockets_count_nothing(hooks: Hooks) -> Tried {
    let (mut reader, mut writer) = std::io::pipe()?;
    let (mut a, mut b) = std::os::unix::net::UnixStream::pair()?;
    let mut talk = move || -> std::io::Result<()> {
        let mut buffer = [0; 4096];
        for _ in 0..200 {
            writer.write_all(&buffer)?;
            reader.read_exact(&mut buffer)?;
            a.write_all(&buffer)?;
            b.read_exact(&mut buffer)?;
        }
        Ok(())
    };
    // This program is a mapped file, too; the first round maps the code that the second needs.
    talk()?;
    let mut exact = exact_observer(hooks)?;
    let (seen, _) = watch_one(exact.observer()?, talk)?;
    let own = id(&std::env::current_exe()?)?;
    let thread = seen.thread.ok_or("the thread was not reported")?.thread;
    let others: Vec<_> = thread.files.iter().filter(|f| f.file != own).collect();
    ensure!(others.is_empty(), "saw {thread:?}");
    Ok(())
}

fn writes(hooks: Hooks) -> Tried {
    let directory = directory()?;
    let path = directory.path().join("new");
    let mut exact = exact_observer(hooks)?;
    let (seen, observed) = watch_one(exact.observer()?, || {
        let mut file = File::create(&path)?;
        let block = vec![7; 65_536];
        for _ in 0..128 {
            file.write_all(&block)?;
        }
        file.write_all(&block[..1000])
    })?;
    let (written, read) = (seen.written(&path)?, seen.read(&path)?);
    let slack = if file_system_is_exact(&path)? { 0.0 } else { 0.01 };
    ensure!(close(written, 8 * MIB + 1000, slack), "saw {written} written; {:?}", observed.notes);
    ensure!(read == 0, "saw {read} read");
    Ok(())
}

fn overwrites_and_appends(hooks: Hooks) -> Tried {
    let directory = directory()?;
    let path = cached_file(directory.path(), "data", MIB, 4096)?;
    if !file_system_is_exact(&path)? {
        return skip("writes of this file system are counted once per page");
    }
    let mut exact = exact_observer(hooks)?;
    let (seen, _) = watch_one(exact.observer()?, || {
        let mut file = OpenOptions::new().write(true).open(&path)?;
        for i in 0..100 {
            file.write_all_at(&[1; 300], i * 7000)?;
            file.write_all_at(&[2; 300], i * 7000)?;
        }
        file.seek(SeekFrom::End(0))?;
        file.write_all(&[3; 5000])
    })?;
    let written = seen.written(&path)?;
    ensure!(written == 100 * 600 + 5000, "saw {written} written");
    Ok(())
}

/// Reads and writes of persistent memory count on the node of its device, wherever the thread runs
/// (`vm/run --pmem`).
fn dax(hooks: Hooks) -> Tried {
    let mounts: Vec<_> = (0..8).map(|n| (n, format!("/mnt/pmem{n}"))).filter(|(_, m)| Path::new(m).is_dir()).collect();
    if mounts.is_empty() {
        return skip("no persistent memory is mounted as /mnt/pmemN");
    }
    let mut exact = exact_observer(hooks)?;
    for (node, mount) in mounts {
        let path = Path::new(&mount).join("data");
        let (seen, observed) = watch_one(exact.observer()?, || {
            let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
            for at in (0..4 * MIB).step_by(10_000) {
                file.write_all_at(&[5; 10_000], at)?;
            }
            pread_all(&path, 50_000)
        })?;
        let (bytes, used) = (path.metadata()?.len(), seen.of(id(&path)?));
        std::fs::remove_file(&path)?;
        let (read, written) = (used.read_bytes, used.write_bytes);
        let hidden = observed.notes.iter().any(|note| note.starts_with("reads and writes of DAX files are not seen"));
        if hidden {
            ensure!((read.total(), written.total()) == (0, 0), "hidden, yet {read:?} and {written:?} were seen");
            continue;
        }
        let expected = NodeBytes::from_iter([(NodeId(node), bytes)]);
        ensure!((&read, &written) == (&expected, &expected), "saw {read:?} and {written:?}, not {expected:?}");
    }
    Ok(())
}

fn tmpfs(hooks: Hooks) -> Tried {
    let shm = Path::new("/dev/shm");
    if !shm.is_dir() {
        return skip("/dev/shm is not there");
    }
    let mut exact = exact_observer(hooks)?;
    let directory = tempfile::Builder::new().prefix("observe-").tempdir_in(shm)?;
    let path = cached_file(directory.path(), "data", 0, 4096)?;
    let (seen, observed) = watch_one(exact.observer()?, || {
        let file = OpenOptions::new().write(true).open(&path)?;
        for at in (0..4 * MIB).step_by(10_000) {
            file.write_all_at(&[5; 10_000], at)?;
        }
        pread_all(&path, 50_000)?;
        let null = OpenOptions::new().write(true).open("/dev/null")?;
        let file = File::open(&path)?;
        while rustix::fs::sendfile(null.as_fd(), file.as_fd(), None, 1 << 20)? > 0 {}
        Ok(())
    })?;
    let bytes = path.metadata()?.len();
    let (read, written) = (seen.read(&path)?, seen.written(&path)?);
    let handed = seen.thread.map_or(0, |t| t.thread.handed_bytes.total());
    let hidden = observed.notes.iter().any(|note| note.starts_with("tmpfs reads are not seen"));
    let expected = if hidden { (0, 0, 0) } else { (bytes, bytes, bytes) };
    ensure!(
        (read, written, handed) == expected,
        "saw {read} read, {written} written and {handed} handed on of {bytes}; {:?}",
        observed.notes
    );
    Ok(())
}
