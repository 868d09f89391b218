//! The three conditions of N-Policy's Fig. 2, each by a program of its own whose hot pages are not
//! the ones that decide.
//!
//! The program maps files in the page cache of two nodes. Of some it reads every page again and
//! again: those are hot. Of others it reads each page once in [`ROUND`], so that in any four
//! samples some of them are touched, and hardly one twice: those are touched and cold. It is bound
//! to a node until homenode moves it, and each case counts only if the reason in the journal is the
//! condition's own, and `/proc` shows the affinity.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::cache;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
use testing::{Case, cases, is_long};

use crate::lab_bench::{Bench, Outcome, cpus, masks, play, restores, set_mask, windows_until};
use crate::{nodes, say};

pub const CASES: &[Case] = cases![
    [is_long(), nodes([2])]
        nothing_touched_is_near,
        most_touched_is_on_one_node,
        hotter_pages_are_on_another_node;
    [nodes([2])] auto_moves_a_program_to_the_file_that_it_maps;
];

/// In which the program reads each cold page once. Samples are 1 to 10 s apart, the longer the
/// slower the machine: a round has more than four of the short ones, and two reads of a page are
/// never in four of the long ones.
const ROUND: Duration = Duration::from_secs(40);
/// In which the program reads its hot pages, and sleeps.
const TURN: Duration = Duration::from_millis(40);
const MIB: u64 = 1 << 20;
const PAGE: usize = 4096;

/// (a) It touches pages of node 1 only, hot and cold, and runs on node 0.
fn nothing_touched_is_near() -> Outcome {
    moves("remote_only", &[("hot", 1, 1), ("cold", 1, 56)])
}

/// (b) Its hot pages are beside it, on node 0, but most of what it touches is cold and on node 1:
/// coverage comes before hotness.
fn most_touched_is_on_one_node() -> Outcome {
    moves("coverage", &[("hot", 0, 1), ("cold", 1, 64)])
}

/// (c) It touches pages of both nodes, and neither has four fifths of them. All that are hot are on
/// node 1.
fn hotter_pages_are_on_another_node() -> Outcome {
    moves("hotness", &[("hot", 1, 16), ("cold", 0, 56)])
}

/// Starts the program on node 0 with these files (kind, node, MiB); homenode must bind it to node
/// 1, for this reason.
fn moves(reason: &str, files: &[(&str, u32, u64)]) -> Outcome {
    let moved = moved("npolicy", files)?;
    ensure!(moved["reason"] == reason, "{moved}");
    Ok(())
}

/// It reads the file by loads alone, which no call shows: `auto` asks for accessed bits.
fn auto_moves_a_program_to_the_file_that_it_maps() -> Outcome {
    let moved = moved("auto", &[("hot", 1, 32)])?;
    // Near to its data, with its memory or without.
    ensure!(moved["reason"] == "read_locality" || moved["reason"] == "cache_affinity", "{moved}");
    Ok(())
}

/// Starts the program on node 0 with these files, and waits until the policy has bound it to node
/// 1. Returns the line of the journal.
fn moved(policy: &str, files: &[(&str, u32, u64)]) -> Result<serde_json::Value> {
    let bench = Bench::new()?;
    let file = |(kind, node, mib): &(&str, u32, u64)| -> Result<String> {
        let path = bench.dir().join(format!("{kind}-{node}"));
        cache::put(&path, mib * MIB, *node)?;
        Ok(format!("{kind}={}", path.display()))
    };
    let files = files.iter().map(file).collect::<Result<Vec<_>>>()?;
    let program = play("hot-and-cold", &files)?;
    let pid = program.0.id();
    set_mask(pid, cpus(&bench.machine, 0)?)?;
    let before = masks(pid);
    let mut daemon = bench.daemon_for(&[pid], &["--policy", policy, "--touch-own-affinity"])?;
    let target = bench.machine.list_of(1);
    windows_until(&mut daemon, 90, "process on node 1", |_| Ok(masks(pid).get(&pid) == Some(&target)))?;
    restores(daemon, pid, &before)?;
    let journal = fs::read_to_string(bench.state_dir().join("journal.jsonl")).context("the journal")?;
    let lines = journal.lines().map(serde_json::from_str).collect::<Result<Vec<serde_json::Value>, _>>()?;
    // A process that takes its memory along is copied.
    let is_move = |line: &&serde_json::Value| line["event"] == "moved" || line["event"] == "copy_started";
    let moved: Vec<_> = lines.iter().filter(is_move).collect();
    let [moved] = moved[..] else { anyhow::bail!("{} moves: {journal}", moved.len()) };
    say!("{}: {}", moved["reason"], moved["why"]);
    let whose = if moved["kind"] == "process" { &moved["pid"] } else { &moved["tid"] };
    ensure!(moved["to"] == 1 && *whose == pid, "{moved}");
    Ok((*moved).clone())
}

/// A mapped file.
struct Mapped {
    at: *mut u8,
    pages: usize,
    /// Each page is read again and again.
    hot: bool,
    /// Cold pages that were read in this round.
    read: usize,
}

impl Mapped {
    fn new(argument: &str) -> Result<Self> {
        let (kind, path) = argument.split_once('=').context("KIND=PATH")?;
        let file = File::open(PathBuf::from(path))?;
        let len = usize::try_from(file.metadata()?.len())?;
        // SAFETY: a new mapping, which stays until the process ends.
        let at = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, &file, 0) }?;
        // SAFETY: advice on our mapping. A fault that reads around a page would enter pages that
        // were not touched.
        unsafe {
            madvise(at, len, Advice::Random)?;
            madvise(at, len, Advice::LinuxPopulateRead)?;
        }
        Ok(Self { at: at.cast(), pages: len / PAGE, hot: kind == "hot", read: 0 })
    }

    fn touch(&mut self, round: f64) {
        let until = if self.hot { self.pages } else { (self.pages as f64 * round) as usize };
        if self.hot || until < self.read {
            self.read = 0;
        }
        for page in self.read..until {
            // SAFETY: within the mapping.
            unsafe { self.at.add(page * PAGE).read_volatile() };
        }
        self.read = until;
    }
}

/// The program: reads its files until it is killed, for an hour at most.
pub fn be_hot_and_cold(files: &[String]) -> Result<()> {
    let mut files = files.iter().map(|file| Mapped::new(file)).collect::<Result<Vec<_>>>()?;
    println!("ready");
    std::io::stdout().flush()?;
    let (began, mut scratch) = (Instant::now(), vec![0u8; 64 * PAGE]);
    while began.elapsed() < Duration::from_secs(3600) {
        let rounds = began.elapsed().as_secs_f64() / ROUND.as_secs_f64();
        // Half of a CPU: what uses less than a hundredth is not sampled.
        let turn = Instant::now();
        while turn.elapsed() < TURN / 2 {
            files.iter_mut().for_each(|file| file.touch(rounds.fract()));
        }
        // The kernel clears the bits of pages and leaves what processors remember of them: giving
        // back more than 33 pages makes this one forget all (`tlb_single_page_flush_ceiling`), as
        // the switches between programs do on a busy machine.
        scratch.iter_mut().step_by(PAGE).for_each(|byte| *byte = byte.wrapping_add(1));
        let pages = scratch.as_mut_ptr().wrapping_add(PAGE - scratch.as_ptr().addr() % PAGE);
        // SAFETY: whole pages of our own, whose content nobody needs.
        unsafe { madvise(pages.cast(), 60 * PAGE, Advice::LinuxDontNeed)? };
        std::thread::sleep(TURN / 2);
    }
    Ok(())
}
