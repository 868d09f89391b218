//! Kinds of read calls, and how often files are open.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use observe::{Hooks, Observer};
use placement::FileUse;
use testing::{Tried, ensure};

use crate::common::*;
use crate::{Case, cases};

pub const CASES: &[Case] = cases![
    WithKernels: calls_are_told_apart, opens_are_counted;
    // What user space makes of the records.
    Never: calls_are_told_apart_in_a_sample, calls_without_a_position;
];

/// Of the file that is read.
const SIZE: u64 = 4 * MIB;

type Calls = fn(&Path) -> std::io::Result<()>;

/// Reads the file in an order that never goes on where it was.
fn scattered(path: &Path, size: usize, rounds: usize) -> std::io::Result<()> {
    let (file, mut buffer) = (File::open(path)?, vec![0; size]);
    let calls = SIZE / size as u64;
    for i in (0..calls).cycle().take(rounds * calls as usize) {
        // Odd, so that it visits every place; nowhere next to the one before.
        file.read_exact_at(&mut buffer, (i * 37) % calls * size as u64)?;
    }
    Ok(())
}

fn in_order(path: &Path, size: usize, rounds: usize) -> std::io::Result<()> {
    (0..rounds).try_for_each(|_| pread_all(path, size))
}

fn by_read(path: &Path) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    let mut buffer = [0; 3000];
    while std::io::Read::read(&mut file, &mut buffer)? > 0 {}
    Ok(())
}

fn used(path: &Path, observer: &mut Observer, job: impl FnOnce() -> std::io::Result<()> + Send) -> Tried<FileUse> {
    let (seen, _) = watch_one(observer, job)?;
    Ok(seen.of(id(path)?))
}

/// Each pattern with its mean size in bytes and whether it is sequential.
const PATTERNS: [(&str, Calls, u64, bool); 6] = [
    ("pages in order", |p| in_order(p, 4096, 1), 4096, true),
    ("128 KiB in order", |p| in_order(p, 128 << 10, 1), 128 << 10, true),
    ("1 MiB in order", |p| in_order(p, 1 << 20, 1), 1 << 20, true),
    ("3,000 bytes in order", by_read, 3000, true),
    ("pages scattered", |p| scattered(p, 4096, 1), 4096, false),
    ("32 KiB scattered", |p| scattered(p, 32 << 10, 1), 32 << 10, false),
];

fn calls_are_told_apart(hooks: Hooks) -> Tried {
    let directory = directory()?;
    let path = cached_file(directory.path(), "data", SIZE, 4096)?;
    let _held = hold(&path)?;
    for (what, job, size, sequential) in PATTERNS {
        let used = used(&path, exact_observer(hooks)?.observer()?, || job(&path))?;
        let close = used.read_size.is_some_and(|seen| close(seen, size, 0.01));
        ensure!(close, "{what}: {:?} bytes a call, {size} were asked for", used.read_size);
        ensure!(used.sequential == Some(sequential), "{what}: sequential is {:?}", used.sequential);
    }
    Ok(())
}

/// So many calls that only a part of them is counted.
fn calls_are_told_apart_in_a_sample(hooks: Hooks) -> Tried {
    let directory = directory()?;
    let path = cached_file(directory.path(), "data", SIZE, 4096)?;
    let patterns: [(&str, Calls, u64, bool); 3] = [
        ("pages in order", |p| in_order(p, 4096, 120), 4096, true),
        ("200 KiB in order", |p| in_order(p, 200 << 10, 1200), 199_728, true),
        ("pages scattered", |p| scattered(p, 4096, 120), 4096, false),
    ];
    for (what, job, size, sequential) in patterns {
        let used = used(&path, &mut open(&settings(false, hooks))?, || job(&path))?;
        let close = used.read_size.is_some_and(|seen| close(seen, size, 0.1));
        ensure!(close, "{what}: {:?} bytes a call, {size} were asked for", used.read_size);
        ensure!(used.sequential == Some(sequential), "{what}: sequential is {:?}", used.sequential);
    }
    Ok(())
}

/// Calls without a position in a register: the size is known, the order only with function hooks.
fn calls_without_a_position(hooks: Hooks) -> Tried {
    let directory = directory()?;
    let path = cached_file(directory.path(), "data", SIZE, 4096)?;
    let _held = hold(&path)?;
    let used = used(&path, exact_observer(hooks)?.observer()?, || {
        let file = File::open(&path)?;
        let mut parts = [[0; 8192]; 4];
        let mut at = 0;
        while at < SIZE {
            let mut parts: Vec<_> = parts.iter_mut().map(|part| std::io::IoSliceMut::new(part)).collect();
            at += rustix::io::preadv(&file, &mut parts, at)? as u64;
        }
        Ok(())
    })?;
    ensure!(used.read_size == Some(32 << 10), "{:?} bytes a call", used.read_size);
    let expected = (hooks == Hooks::Best).then_some(true);
    ensure!(used.sequential == expected, "sequential is {:?}", used.sequential);
    Ok(())
}

fn opens_are_counted(hooks: Hooks) -> Tried {
    let directory = directory()?;
    let path = cached_file(directory.path(), "data", MIB, 4096)?;
    // A second name, so that the inode has two dentries (i_count 2) while nobody has it open.
    std::fs::hard_link(&path, directory.path().join("other"))?;
    std::fs::metadata(directory.path().join("other"))?;
    let mut others: Vec<File> = Vec::new();
    for more in 0..4 {
        // The job opens it once; each of the others is open besides, the third of them for writing
        // too.
        let (_, observed) = watch_one(exact_observer(hooks)?.observer()?, || pread_all(&path, 4096))?;
        let file = id(&path)?;
        let opens = observed.files.iter().find(|f| f.file.file == file).map(|f| f.file.opens);
        ensure!(opens == Some(Some(1 + more)), "open {} times, seen as {opens:?}", 1 + more);
        others.push(OpenOptions::new().read(true).write(more == 2).open(&path)?);
        // A duplicate is the same open file.
        others.last().ok_or("no file")?.try_clone()?;
    }
    Ok(())
}
