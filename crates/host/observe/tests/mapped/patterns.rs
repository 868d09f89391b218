//! Hotness of known access patterns, by node, within a tenth of what the program counted itself.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use observe::mapped::{Mapped, RULE, Sums, Watcher};
use testing::files::directory;
use testing::{Case, Tried, any_kernel, cases, ensure, skip};

use crate::program::{Program, Truth, cached_file};
use crate::{observing, open};

pub const CASES: &[Case] = cases![
    // How accessed bits are read and cleared differs from kernel to kernel.
    [observing()] hot_tenth = || cached("hot"), each_mapping_of_many_is_seen_once;
    [any_kernel(), observing()]
        uniform = || cached("uniform"),
        sequential = || cached("sequential"),
        persistent_memory,
        in_a_thread_of_its_own,
        a_process_of_another_user,
        a_process_that_does_not_answer_keeps_no_other_from_being_sampled,
        a_process_that_ended_or_maps_nothing;
];

/// Of the file: 3,276 pages in its hot tenth, more than processors remember translations for.
const BYTES: u64 = 128 << 20;

/// Of a file in the small persistent memory of a test machine.
const PMEM_BYTES: u64 = 32 << 20;

/// Phases after the first clearing: more than the rule looks at.
const PHASES: u32 = 6;

fn cached(pattern: &str) -> Tried {
    let directory = directory()?;
    let file = directory.path().join("data");
    cached_file(&file, BYTES)?;
    let (truth, seen, notes) = phases(&file, pattern, true)?;
    ensure!(notes.is_empty(), "{notes:?}");
    println!("{pattern}: {truth:?}, seen {seen:?}");
    let expected = |node: &Truth| match pattern {
        // The program's own count is as the pattern says: all is not equal to nothing.
        "hot" => node.hot * 20 < node.all * 3 && node.touched < node.all,
        "uniform" => node.hot * 10 > node.all * 6,
        _ => node.hot == 0,
    };
    let sum = truth.values().fold(Truth::default(), |a, b| Truth {
        hot: a.hot + b.hot,
        touched: a.touched + b.touched,
        all: a.all + b.all,
    });
    ensure!(expected(&sum) && sum.touched > 0 && sum.all == BYTES / 4096, "the load is not {pattern}: {sum:?}");
    agree(&truth, &seen)
}

/// Each figure of each node is within a tenth, or a hundredth of the node's pages where it is
/// small.
fn agree(truth: &BTreeMap<i32, Truth>, seen: &BTreeMap<i32, Truth>) -> Tried {
    ensure!(truth.keys().eq(seen.keys()), "nodes {truth:?}, seen {seen:?}");
    for (node, truth) in truth {
        let seen = seen.get(node).copied().unwrap_or_default();
        for (what, is, said) in [("hot", truth.hot, seen.hot), ("touched", truth.touched, seen.touched)] {
            let slack = (is / 10).max(truth.all / 100);
            ensure!(is.abs_diff(said) <= slack, "node {node}: {said} pages {what}, not {is}: {truth:?}, seen {seen:?}");
        }
        ensure!(seen.all == truth.all, "node {node}: {} pages, not {}", seen.all, truth.all);
    }
    Ok(())
}

type Nodes = BTreeMap<i32, Truth>;

/// Counts of the program, figures of homenode, and its notes. `map`: all pages are mapped before.
fn phases(file: &Path, pattern: &str, map: bool) -> Tried<(Nodes, Nodes, Vec<String>)> {
    let mut program = Program::start(file)?;
    if map {
        program.tell("map")?;
    }
    let mut mapped = open()?;
    let pid = program.pid();
    sample(&mut mapped, pid)?;
    for phase in 0..PHASES {
        program.tell(&format!("{pattern} {phase}"))?;
        sample(&mut mapped, pid)?;
    }
    let mut sums = Sums::default();
    for region in mapped.regions(pid) {
        region.add_to(&mut sums, RULE);
    }
    let seen = sums.listed().into_iter().map(|m| {
        let truth = Truth {
            hot: m.hot_bytes / 4096,
            touched: m.touched_bytes.unwrap_or(0) / 4096,
            all: (m.hot_bytes + m.cold_bytes) / 4096,
        };
        (m.node.0 as i32, truth)
    });
    let seen = seen.collect();
    Ok((program.truth()?, seen, mapped.notes(pid)))
}

fn sample(mapped: &mut Mapped, pid: u32) -> Tried {
    ensure!(mapped.sample_one(pid)?.is_some(), "the program has ended");
    Ok(())
}

/// From some 150 mappings on, the kernel gave the last of them again and again: 400,000 records of
/// 300 mappings, until the command gave up. What has no room is known, too.
fn each_mapping_of_many_is_seen_once() -> Tried {
    const PIECE: u64 = 1 << 20;
    let directory = directory()?;
    let file = directory.path().join("data");
    cached_file(&file, 2 * PIECE)?;
    // Those of an old kernel's machine are where the repetition began.
    let of_any: &[u64] = if any_kernel().is_ok() { &[10, 65_000] } else { &[] };
    for pieces in [&[300, 3_000], of_any].concat() {
        let mut program = Program::start(&file)?;
        program.tell(&format!("pieces {pieces}"))?;
        let (mut mapped, pid, before) = (open()?, program.pid(), resident()?);
        let (mut samples, mut all) = (0, 0);
        // A sample has time for a part of many.
        while samples < 200 && all < (pieces + 1).min(3_001) {
            sample(&mut mapped, pid)?;
            samples += 1;
            all = mapped.regions(pid).len() as u64;
        }
        let notes = mapped.notes(pid);
        let beyond = notes.iter().find_map(|note| note.split_once("mappings of ")?.1.split_once(" MB"));
        let beyond = beyond.map_or(Ok(0.0), |(mb, _)| mb.parse::<f64>())? * 1e6 / PIECE as f64;
        let kept = resident()?.saturating_sub(before) >> 20;
        println!("{pieces} mappings: {all} seen in {samples} samples, {beyond:.0} more, {kept} MiB: {notes:?}");
        // An emulated machine has no time for all of the list.
        let listed = notes.iter().find_map(|note| note.split_once("beyond the first ")?.1.split_once(" that"));
        let listed = listed.map_or(Ok(pieces), |(listed, _)| listed.parse())?;
        ensure!(listed == pieces || pieces > 3_000, "{listed} of {pieces} mappings were listed: {notes:?}");
        // In pieces: the first mapping has two, and is in a list that was cut or is not.
        let seen: u64 = mapped.regions(pid).iter().map(|seen| (seen.mapping.end - seen.mapping.start) / PIECE).sum();
        let expected = if listed == pieces { [pieces + 2; 2] } else { [listed, listed + 1] };
        let sum = seen as f64 + beyond;
        let [least, most] = expected.map(|pieces| pieces as f64);
        ensure!(least - 1.0 < sum && sum < most + 1.0, "{sum:.1} of {expected:?} pieces: {notes:?}");
        ensure!(beyond < 1.0 || pieces > 3_000, "{all} of {pieces} mappings: {notes:?}");
        ensure!(kept < 64, "{kept} MiB are kept for {pieces} mappings");
    }
    Ok(())
}

/// Resident memory of this program.
fn resident() -> Tried<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    Ok(statm.split(' ').nth(1).ok_or("no second field")?.parse::<u64>()? * 4096)
}

/// Files on the persistent memory of each node: hot where the kernel clears the bits, else only
/// touched.
fn persistent_memory() -> Tried {
    if !Path::new("/mnt/pmem0").exists() {
        return skip("there is no /mnt/pmem0");
    }
    for number in 0.. {
        let mount = format!("/mnt/pmem{number}");
        if !Path::new(&mount).exists() {
            break;
        }
        let directory = tempfile::Builder::new().prefix("mapped-").tempdir_in(&mount)?;
        let file = directory.path().join("data");
        std::fs::write(&file, vec![1; PMEM_BYTES as usize])?;
        File::open(&file)?.sync_all()?;
        // Devices are numbered in another order than the nodes they are on.
        let dev = std::fs::metadata(&mount)?.dev();
        let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
        let node = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/device/numa_node"))?;
        let node: i32 = node.trim().parse()?;
        let (truth, seen, notes) = phases(&file, "sequential", false)?;
        println!("{mount}: node {node}, {truth:?}, seen {seen:?}, {notes:?}");
        let counted = truth.get(&-1).copied().unwrap_or_default();
        let seen = seen.get(&node).copied().unwrap_or_default();
        match notes.iter().any(|note| note.contains("before Linux 6.16")) {
            // Six of eight parts were ever touched, and only those are mapped.
            true => ensure!(
                (seen.hot, seen.touched, seen.all) == (0, counted.all / 8 * 6, counted.all / 8 * 6),
                "{seen:?}, {counted:?}"
            ),
            false => ensure!((seen.hot, seen.touched) == (counted.hot, counted.touched), "{seen:?}, {counted:?}"),
        }
    }
    Ok(())
}

/// As the plane uses it: the figures come in a later window, name the process with its start, and
/// end with it.
fn in_a_thread_of_its_own() -> Tried {
    let directory = directory()?;
    let file = directory.path().join("data");
    cached_file(&file, 4 << 20)?;
    let mut program = Program::start(&file)?;
    program.tell("map")?;
    let pid = program.pid();
    let watcher = Watcher::start(Path::new("/proc"), &topology::sysfs::read(Path::new("/sys"))?, 0.03, Duration::ZERO)?;
    let until = |there: bool| loop {
        let (seen, notes) = watcher.window(vec![pid]);
        if seen.is_empty() != there {
            return (seen, notes);
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let (seen, notes) = until(true);
    let [process] = seen.as_slice() else { return Err(format!("{seen:?}").into()) };
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let start = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)?.parse::<u64>().ok());
    ensure!((process.pid, Some(process.start_ns / 10_000_000)) == (pid, start), "{process:?}, {start:?}");
    let all: u64 = process.mapped.iter().map(|m| m.hot_bytes + m.cold_bytes).sum();
    ensure!(all == 4 << 20 && notes.is_empty(), "{process:?}, {notes:?}");
    drop(program);
    until(false);
    Ok(())
}

/// The daemon samples with few of root's powers, and most processes are not root's.
fn a_process_of_another_user() -> Tried {
    const NOBODY: u32 = 65_534;
    // Where nobody may go, unlike cargo's directories.
    let file = tempfile::NamedTempFile::new()?;
    cached_file(file.path(), 4 << 20)?;
    std::fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    let name = format!("--filename={}", file.path().display());
    let fio = Command::new("/usr/bin/fio")
        .args(["--name=map", "--ioengine=mmap", "--rw=read", "--size=4m", "--allow_file_create=0", "--thread", &name])
        .args(["--time_based", "--runtime=120", "--invalidate=0", "--output=/dev/null"])
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .spawn();
    let mut fio = match fio {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return skip("fio is not installed");
        }
        started => started?,
    };
    let watcher = Watcher::start(Path::new("/proc"), &topology::sysfs::read(Path::new("/sys"))?, 0.03, Duration::ZERO)?;
    let patience = Instant::now() + Duration::from_secs(60);
    let all = |seen: &[observe::mapped::MappedProcess]| -> u64 {
        seen.iter().flat_map(|p| &p.mapped).map(|m| m.hot_bytes + m.cold_bytes).sum()
    };
    let seen = loop {
        // It may not have touched all of it yet.
        let (seen, notes) = watcher.window(vec![fio.id()]);
        if all(&seen) == 4 << 20 || Instant::now() > patience {
            break (seen, notes);
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    fio.kill().and_then(|()| fio.wait())?;
    ensure!(all(&seen.0) == 4 << 20 && seen.1.is_empty(), "{seen:?}");
    Ok(())
}

/// A procfs with one process whose `clear_refs` waits for ever, as it does while something holds
/// the lock of its memory.
fn a_process_that_does_not_answer_keeps_no_other_from_being_sampled() -> Tried {
    let directory = directory()?;
    let file = directory.path().join("data");
    cached_file(&file, 4 << 20)?;
    let mut programs = [Program::start(&file)?, Program::start(&file)?];
    for program in &mut programs {
        program.tell("map")?;
    }
    let [silent, other] = [programs[0].pid(), programs[1].pid()];
    let proc = directory.path().join("proc");
    std::fs::create_dir_all(proc.join(silent.to_string()))?;
    for name in ["zoneinfo", "self", &other.to_string()] {
        std::os::unix::fs::symlink(Path::new("/proc").join(name), proc.join(name))?;
    }
    // Nobody reads from it, so that it cannot be opened.
    let made = Command::new("mkfifo").arg(proc.join(format!("{silent}/clear_refs"))).status()?;
    ensure!(made.success(), "mkfifo: {made}");
    let watcher = Watcher::start(&proc, &topology::sysfs::read(Path::new("/sys"))?, 0.03, Duration::ZERO)?;
    let patience = Instant::now() + Duration::from_secs(20);
    let notes = loop {
        let (seen, notes) = watcher.window(vec![silent, other]);
        if [silent, other].iter().all(|pid| seen.iter().any(|process| process.pid == *pid)) {
            break notes;
        }
        ensure!(Instant::now() < patience, "sampled {seen:?}, {notes:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let why = "clear_refs cannot be written: the process does not answer";
    let of = |pid: u32| notes.iter().any(|note| note.starts_with(&format!("process {pid}: ")) && note.ends_with(why));
    ensure!(of(silent) && !of(other), "{notes:?}");
    Ok(())
}

fn a_process_that_ended_or_maps_nothing() -> Tried {
    let mut mapped = open()?;
    let directory = directory()?;
    let file = directory.path().join("small");
    cached_file(&file, 64 << 10)?;
    let mut program = Program::start(&file)?;
    program.tell("map")?;
    let pid = program.pid();
    // Too small a file, and the program's own.
    sample(&mut mapped, pid)?;
    let seen: Vec<_> = mapped.regions(pid).iter().map(|region| region.mapping.clone()).collect();
    ensure!(seen.is_empty(), "{seen:?}");
    drop(program);
    ensure!(mapped.sample_one(pid)?.is_none(), "it was waited for");
    // A process of the kernel has no memory.
    ensure!(mapped.sample_one(2)?.is_none(), "a kernel thread");
    Ok(())
}
