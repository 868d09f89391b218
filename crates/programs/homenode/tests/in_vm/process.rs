//! A process moves with its memory, and back, as `numa_maps`, `move_pages(2)` and
//! `/proc/PID/status` show it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Output, Stdio};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use act::copying::Copying;
use act::memory::MemoryMove;
use act::mover::{Mover, Rules};
use act::process;
use anyhow::{Context, Result, bail, ensure};
use engine::PlaneError;
use linux::threads::Threads;
use rustix::process::Signal;
use testing::{Case, cases};
use topology::NodeId;

use crate::lab_bench::{Bench, Ends, NoBalancing, Outcome, cpus, homenode, masks, set_mask};
use crate::{nodes, say};

pub const CASES: &[Case] = cases![[nodes([2])]
    moves_with_its_memory,
    memory_goes_back_page_by_page,
    killed_in_the_middle,
];

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;
/// Threads that store without pause.
const THREADS: usize = 8;
/// The kinds of memory, and whether the holder has the size that was asked for, or a few MiB.
const KINDS: [(&str, bool); 5] =
    [("small", true), ("huge", true), ("shared", true), ("mixed", false), ("bound", false)];
const FEW: usize = 4 * MIB;
/// The first so many small pages are in a pipe and cannot move: as many as a pipe holds.
const PINNED: usize = 16;

/// A program with memory on node 0 that checks its own stores.
struct Holder {
    child: Ends,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// Address and length by kind.
    parts: BTreeMap<String, (usize, usize)>,
    /// AutoNUMA moves pages to the threads that have masks of their own.
    _quiet: NoBalancing,
}

impl Holder {
    /// Starts it with `mib` of each of the large kinds.
    fn start(mib: usize) -> Result<Self> {
        let quiet = NoBalancing::set()?;
        let mut child =
            testing::myself("holder").arg(mib.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take().context("stdin")?;
        let stdout = BufReader::new(child.stdout.take().context("stdout")?);
        let mut holder = Self { child: Ends(child), stdin, stdout, parts: BTreeMap::new(), _quiet: quiet };
        let line = holder.line()?;
        for part in line.split_ascii_whitespace() {
            let [name, start, len] = part.split(':').collect::<Vec<_>>()[..] else { bail!("{line}") };
            holder.parts.insert(name.to_owned(), (start.parse()?, len.parse()?));
        }
        Ok(holder)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.stdout.read_line(&mut line)? > 0, "the holder has ended");
        Ok(line.trim().to_owned())
    }

    fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Lets the program compare all of its memory with what it has stored there.
    fn check(&mut self) -> Result<()> {
        writeln!(self.stdin, "check")?;
        let answer = self.line()?;
        ensure!(answer == "right", "the memory of the process: {answer}");
        Ok(())
    }

    /// Node of each page of a part, by `move_pages`.
    fn nodes(&self, part: &str) -> Result<Vec<i32>> {
        let (start, len) = *self.parts.get(part).context("no such part")?;
        let pages: Vec<usize> = (start..start + len).step_by(PAGE).collect();
        let mut status = vec![-1i32; pages.len()];
        // SAFETY: both arrays have `pages.len()` elements; without nodes nothing moves.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                self.pid(),
                pages.len(),
                pages.as_ptr(),
                null::<i32>(),
                status.as_mut_ptr(),
                0,
            )
        };
        ensure!(result == 0, "move_pages: {}", std::io::Error::last_os_error());
        Ok(status)
    }

    fn layout(&self) -> Result<BTreeMap<String, Vec<i32>>> {
        self.parts.keys().map(|name| Ok((name.clone(), self.nodes(name)?))).collect()
    }

    /// Bytes in transparent huge pages.
    fn huge_pages(&self) -> Result<usize> {
        let smaps = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid()))?;
        let line = smaps.lines().find_map(|l| l.strip_prefix("AnonHugePages:")).context("AnonHugePages")?;
        Ok(line.trim().trim_end_matches("kB").trim().parse::<usize>()? * 1024)
    }

    /// Policies by start of mapping, for the parts.
    fn policies(&self) -> Result<BTreeMap<usize, String>> {
        let maps = std::fs::read_to_string(format!("/proc/{}/numa_maps", self.pid()))?;
        let policy = |line: &str| {
            let (start, rest) = line.split_once(' ')?;
            Some((usize::from_str_radix(start, 16).ok()?, rest.split(' ').next()?.to_owned()))
        };
        let within = |start: &usize| self.parts.values().any(|(at, len)| (*at..at + len).contains(start));
        Ok(maps.lines().filter_map(policy).filter(|(start, _)| within(start)).collect())
    }
}

/// The program: fills its memory, starts threads that store into it and check each store, and
/// answers on stdin.
pub fn be_holder(args: &[String]) -> Result<()> {
    let large = args[0].parse::<usize>()? * MIB;
    // One more huge page, to align the part.
    let map = |len: usize, flags: i32, fd: i32| -> Result<usize> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { libc::mmap(null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
        ensure!(at != libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        Ok(at.expose_provenance())
    };
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let mut parts = Vec::new();
    let policy = |mode: i32, node: usize| -> Result<()> {
        let mask = 1usize << node;
        let mask = if mode == libc::MPOL_DEFAULT { null() } else { &raw const mask };
        // SAFETY: the mask outlives the call.
        let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask, if mask.is_null() { 0 } else { 64 }) };
        ensure!(result == 0, "set_mempolicy: {}", std::io::Error::last_os_error());
        Ok(())
    };
    for (name, is_large) in KINDS {
        let len = if is_large { large } else { FEW };
        let huge = 2 * MIB;
        let at = match name {
            "shared" => {
                let file = rustix::fs::memfd_create("holder", rustix::fs::MemfdFlags::CLOEXEC)?;
                rustix::fs::ftruncate(&file, len as u64)?;
                map(len, libc::MAP_SHARED, std::os::fd::AsRawFd::as_raw_fd(&file))?
            }
            _ => map(len + huge, private, -1)?.next_multiple_of(huge),
        };
        let advice = if name == "huge" { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        // SAFETY: advice on our mapping.
        unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(at), len, advice) };
        if name == "bound" {
            let mask = 1usize;
            // SAFETY: a policy for our mapping; the mask outlives the call.
            let result = unsafe { libc::syscall(libc::SYS_mbind, at, len, libc::MPOL_BIND, &raw const mask, 64, 0) };
            ensure!(result == 0, "mbind: {}", std::io::Error::last_os_error());
        }
        for page in 0..len / PAGE {
            if page == 0 || name == "mixed" {
                // Runs of one, two and three pages on alternate nodes.
                policy(libc::MPOL_BIND, if name == "mixed" { [0, 1, 0, 1, 1, 0][page % 6] } else { 0 })?;
            }
            word(at, page, 0).store(expected(page), Ordering::Relaxed);
        }
        parts.push((name, at, len));
    }
    policy(libc::MPOL_DEFAULT, 0)?;
    let (_, small, _) = parts[0];
    let pages = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(small), iov_len: PINNED * PAGE };
    let pipe = rustix::pipe::pipe()?;
    // SAFETY: the pages are ours, and the pipe keeps them.
    let spliced = unsafe { libc::vmsplice(std::os::fd::AsRawFd::as_raw_fd(&pipe.1), &raw const pages, 1, 0) };
    ensure!(spliced == (PINNED * PAGE) as isize, "vmsplice: {spliced}");
    let lost: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(0)));
    for thread in 0..THREADS {
        let parts = parts.clone();
        std::thread::spawn(move || store(&parts, thread, lost));
    }
    let words: Vec<String> = parts.iter().map(|(name, at, len)| format!("{name}:{at}:{len}")).collect();
    println!("{}", words.join(" "));
    for line in std::io::stdin().lines() {
        line?;
        let wrong: usize = parts
            .iter()
            .map(|(_, at, len)| {
                (0..len / PAGE).filter(|p| word(*at, *p, 0).load(Ordering::Relaxed) != expected(*p)).count()
            })
            .sum();
        match (wrong, lost.load(Ordering::Relaxed)) {
            (0, 0) => println!("right"),
            (wrong, lost) => println!("{wrong} pages are wrong, {lost} stores were lost"),
        }
    }
    Ok(())
}

/// A word of a page.
fn word(at: usize, page: usize, index: usize) -> &'static AtomicU64 {
    // SAFETY: the callers stay inside their mappings, which last until the process ends; atomics
    // may be shared.
    unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>(at + page * PAGE + index * 8) }
}

/// The first word of a page.
fn expected(page: usize) -> u64 {
    (page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Stores a rising number into a word of its own on each page that is its turn, and counts the
/// stores that are not there when it comes back.
fn store(parts: &[(&str, usize, usize)], thread: usize, lost: &AtomicU64) {
    for turn in 0u64.. {
        for (_, at, len) in parts {
            // A part of the memory in each turn, so that turns are short.
            for page in (0..len / PAGE).skip(thread).step_by(8 * THREADS) {
                let word = word(*at, page, 1 + thread);
                if word.load(Ordering::Relaxed) != turn {
                    lost.fetch_add(1, Ordering::Relaxed);
                }
                word.store(turn + 1, Ordering::Relaxed);
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// `homenode move --pid`.
fn mv(bench: &Bench, pid: u32, to: u32, options: &[&str]) -> Command {
    let mut command = Command::new(homenode());
    command.args(["--json", "move", "--pid", &pid.to_string(), "--to", &to.to_string(), "--state-dir"]);
    command.arg(bench.state_dir()).args(options);
    command
}

fn moved(output: Output) -> Result<serde_json::Value> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let json: serde_json::Value =
        serde_json::from_str(&text).with_context(|| format!("{text}{}", String::from_utf8_lossy(&output.stderr)))?;
    Ok(json["moved"][0].clone())
}

fn pages_on(nodes: &[i32], node: i32) -> usize {
    nodes.iter().filter(|n| **n == node).count()
}

/// Two threads have masks of their own: a holder and these threads, with the masks of all.
fn with_own_masks(bench: &Bench, mib: usize) -> Result<(Holder, [u32; 2], BTreeMap<u32, String>)> {
    let holder = Holder::start(mib)?;
    let tids: Vec<u32> = masks(holder.pid()).into_keys().filter(|tid| *tid != holder.pid()).collect();
    ensure!(tids.len() == THREADS, "{tids:?}");
    let [.., one, two] = tids[..] else { bail!("{tids:?}") };
    set_mask(one, cpus(&bench.machine, 0)?.get(..1).context("a CPU")?)?;
    set_mask(two, cpus(&bench.machine, 1)?)?;
    let before = masks(holder.pid());
    Ok((holder, [one, two], before))
}

fn moves_with_its_memory() -> Outcome {
    let bench = Bench::new()?;
    let (mut holder, own, before) = with_own_masks(&bench, 24)?;
    let layout = holder.layout()?;
    for (name, nodes) in &layout {
        let (wanted, there) = (if name == "mixed" { nodes.len() / 2 } else { 0 }, pages_on(nodes, 1));
        ensure!(there == wanted, "{name}: {there} pages on node 1 at the start");
    }
    let huge_pages = holder.huge_pages()?;
    ensure!(huge_pages >= 24 * MIB, "{huge_pages} bytes in huge pages");
    let policies = holder.policies()?;
    ensure!(policies.values().any(|p| p == "bind:0"), "{policies:?}");

    let output = mv(&bench, holder.pid(), 1, &[]).output()?;
    let told = moved(output)?;
    say!("{told}");
    holder.check()?;
    for (name, nodes) in holder.layout()? {
        let stay = match name.as_str() {
            "bound" => nodes.len(),
            "small" => PINNED,
            _ => 0,
        };
        let stayed = pages_on(&nodes, 0);
        ensure!(stayed == stay && pages_on(&nodes, 1) == nodes.len() - stay, "{name}: {stayed} pages stayed");
    }
    ensure!(told["failed_bytes"] == FEW + PINNED * PAGE, "{told}");
    let why = told["why"].as_str().unwrap_or_default();
    ensure!(why.contains("4.0 MiB stayed: kept") && why.contains("64.0 KiB stayed: pinned"), "{why}");
    ensure!(holder.policies()? == policies, "{policies:?}, now {:?}", holder.policies()?);
    let node_1 = bench.machine.list_of(1);
    for (tid, mask) in masks(holder.pid()) {
        let wanted = if own.contains(&tid) { &before[&tid] } else { &node_1 };
        ensure!(mask == *wanted, "thread {tid}: {mask}, not {wanted}");
    }

    // Back: the memory by a second move, the affinities by the commands that the output gave.
    let back = moved(mv(&bench, holder.pid(), 0, &["--no-memory"]).output()?)?;
    ensure!(back["threads"] == 0, "threads that are bound by hand have affinities of their own: {back}");
    for command in told["undo"].as_array().context("undo")? {
        let command = command.as_str().context("a command")?;
        ensure!(Command::new("sh").args(["-c", command]).stdout(Stdio::null()).status()?.success(), "{command}");
    }
    ensure!(masks(holder.pid()) == before, "before {before:?}, now {:?}", masks(holder.pid()));
    let told = moved(mv(&bench, holder.pid(), 0, &[]).output()?)?;
    holder.check()?;
    for (name, nodes) in holder.layout()? {
        ensure!(pages_on(&nodes, 0) == nodes.len(), "{name}: {} pages came back: {told}", pages_on(&nodes, 0));
    }
    Ok(())
}

/// Moves the memory with the library, and sends it back by the layout that the move has kept.
fn memory_goes_back_page_by_page() -> Outcome {
    let mut holder = Holder::start(20)?;
    let proc = Path::new("/proc");
    let process = Threads::new(proc).stat(holder.pid())?.context("the holder")?.process();
    refused_without_room(holder.pid())?;
    let before = holder.layout()?;
    let mut there = MemoryMove::new(proc, process, NodeId(1))?.context("the holder")?;
    while !there.step(16 << 20)? {}
    let during = holder.layout()?;
    let mixed = during.get("mixed").context("mixed")?;
    ensure!(pages_on(mixed, 1) == mixed.len(), "{} of {} mixed pages moved", pages_on(mixed, 1), mixed.len());
    let copied = there.copied();
    let own: u64 = during.values().map(|nodes| (nodes.len() * PAGE) as u64).sum();
    ensure!(copied.moved + copied.failed() == copied.total && copied.total >= own, "{copied:?}, {own} bytes");

    // What is resident where, by a sample.
    let sampled = linux::memory::resident(proc, holder.pid())?.context("the holder")?;
    let on_1: usize = during.values().map(|nodes| pages_on(nodes, 1) * PAGE).sum();
    let share = sampled.get(NodeId(1)) as f64 / sampled.total() as f64;
    // More than five standard deviations of a share this far from one half.
    let truth = on_1 as f64 / own as f64;
    ensure!((share - truth).abs() < 0.05, "sampled share {share:.3} of node 1, truth {truth:.3}");

    let layout = there.before().clone();
    let mut back = MemoryMove::back(proc, process, layout)?.context("the holder")?;
    while !back.step(16 << 20)? {}
    for (name, nodes) in holder.layout()? {
        let wrong = nodes.iter().zip(&before[&name]).filter(|(now, then)| now != then).count();
        ensure!(wrong == 0, "{name}: {wrong} of {} pages are not where they were", nodes.len());
    }
    holder.check()
}

/// A node whose sysfs shows little free memory takes no process.
fn refused_without_room(pid: u32) -> Result<()> {
    let sys = tempfile::tempdir()?;
    let devices = sys.path().join("devices/system");
    std::fs::create_dir_all(devices.join("node/node1"))?;
    std::fs::create_dir_all(devices.join("cpu"))?;
    for list in ["online", "possible"] {
        std::fs::copy(format!("/sys/devices/system/cpu/{list}"), devices.join("cpu").join(list))?;
    }
    let meminfo = "Node 1 MemFree: 20000 kB\nNode 1 Inactive(file): 1000 kB\n";
    std::fs::write(devices.join("node/node1/meminfo"), meminfo)?;
    let mut mover = Mover::new(Path::new("/proc"), sys.path(), Rules::default())?;
    let topology = topology::sysfs::read(Path::new("/sys"))?;
    match process::prepare(&mut mover, &topology, topology::ProcessId::new(pid, None), NodeId(1), true) {
        Err(PlaneError::Refused { reason: "no_free_memory", .. }) => Ok(()),
        other => bail!("{:?}", other.map(|process| process.id())),
    }
}

/// homenode is killed while the memory moves.
fn killed_in_the_middle() -> Outcome {
    let bench = Bench::new()?;
    let (mut holder, _, before) = with_own_masks(&bench, 10)?;
    // Slow enough to be caught before its end.
    let mut running = mv(&bench, holder.pid(), 1, &["--rate", "5MB/s"]).stdout(Stdio::null()).spawn()?;
    loop {
        ensure!(running.try_wait()?.is_none(), "the move ended too soon");
        let small = holder.nodes("small")?;
        if pages_on(&small, 1) > 0 {
            break;
        }
    }
    let pid = rustix::process::Pid::from_child(&running);
    rustix::process::kill_process(pid, Signal::KILL)?;
    running.wait()?;
    let node_1 = bench.machine.list_of(1);
    let left = masks(holder.pid());
    let bound = left.iter().filter(|(tid, mask)| before[tid] != **mask && **mask == node_1).count();
    ensure!(bound == THREADS - 1, "{bound} threads are bound: {left:?}"); // the first thread and six more
    let output = Command::new(homenode()).args(["restore", "--state-dir"]).arg(bench.state_dir()).output()?;
    ensure!(output.status.success(), "{output:?}");
    ensure!(masks(holder.pid()) == before, "before {before:?}, now {:?}", masks(holder.pid()));
    holder.check()
}
