//! Moves the memory of a process to a node, and back.
//!
//! **Problem.** A process that moves leaves its memory behind: the kernel moves pages only when it
//! is told to. `migrate_pages(2)` also moves the file pages that others use, ignores the target's
//! cpuset, and cannot be undone.
//!
//! **Approach.** [`MemoryMove`] goes through the process's own memory ([`regions`]: anonymous
//! pages, shared memory and huge pages) batch by batch: it asks where the pages are, remembers that
//! ([`layout`]), sends them with `move_pages(2)` ([`Space`]), and asks again. It believes only that
//! second answer. What a memory policy keeps elsewhere ([`Policies`]), and what other processes map
//! too, stays and is counted. [`MemoryMove::back`] sends the pages of a layout to where they were.
//!
//! **Limits.** Swapped pages are not there to be moved; they come back where the thread runs that
//! needs them. Memory that is mapped after the move began is not moved: bind the threads first,
//! then it is allocated on the right node. If a process's first thread has ended while others run,
//! none of its pages are moved. Between the look at a process and the call, another process may get
//! its id: pages of that one may then be moved, which changes where they are and nothing else.

pub mod layout;

pub use layout::Layout;

use std::fs::File;
use std::io::{self, BufReader, ErrorKind};
use std::path::Path;
use std::time::Duration;

use linux::memory::policy::Policies;
use linux::memory::regions::{self, Region};
use linux::memory::space::{Sent, Space};
use linux::pages::UNKNOWN;
use linux::patient::{self, MEMORY};
use linux::threads::{Threads, is_gone};
use rustix::io::Errno;
use topology::{NodeId, ProcessId};

use super::copying::{Back, Copied, Copying};
use layout::Run;

/// How long the list of a process's mappings is awaited: the kernel walks all its page tables for
/// their policies.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pages in a call: as many as a 2 MiB page has, so that a call moves at least one of those. While
/// the kernel moves a batch, a thread that touches one of its pages waits: about 20 ms emulated
/// with 64 pages, 56 ms with 512, 655 ms with 4,096.
const BATCH: usize = 512;

/// Calls for one batch. Of pages that some thread is using, the second call moves most; what five
/// leave is pinned.
const TRIES: usize = 5;

/// Pages looked up at a time: 256 KiB of `pagemap`, 128 MiB of address space.
const WINDOW: u64 = 32_768;

/// Most look-ups of a step: 8 GiB of address space take about 20 ms if nothing is there.
const WINDOWS: u32 = 64;

/// Reasons for which pages stay.
const POLICY: &str = "kept elsewhere by its memory policy";
const SHARED: &str = "mapped by other processes too";
const BUSY: &str = "pinned, or in use by the kernel";
const FULL: &str = "no free memory on the node";
const FORBIDDEN: &str = "its cpuset forbids the node";
const NO_MEMORY: &str = "the node has no memory";

/// The memory of a process on its way to a node, or back.
#[derive(Debug)]
pub struct MemoryMove {
    space: Space,
    work: Work,
    /// Addresses found and not sent yet, highest first.
    pending: Vec<u64>,
    /// Nothing more can be sent, and why.
    stopped: Option<&'static str>,
    copied: Copied,
    /// The first estimate of what is to be moved.
    estimate: u64,
    /// Bytes found so far.
    seen: u64,
    before: Layout,
    ended: bool,
    /// Bytes that earlier steps have moved beyond what they were asked for.
    ahead: u64,
}

/// Pages that are still to be looked up.
#[derive(Debug)]
enum Work {
    /// All regions are still to be found.
    Begin(NodeId),
    /// These regions, last first; the page from which on the last one is to be looked at.
    Regions {
        to: NodeId,
        left: Vec<Region>,
        next: u64,
        policies: Policies,
    },
    /// These runs, last first.
    Runs(Vec<Run>),
    Done,
}

/// Pages to be sent, and what is to become of them.
struct Batch {
    pages: Vec<u64>,
    to: NodeId,
    /// They are on other nodes by the program's choice.
    kept: bool,
}

impl MemoryMove {
    /// A move of the memory of a process to a node. Changes nothing yet. `None` if the process has
    /// ended.
    pub fn new(proc_root: &Path, process: ProcessId, to: NodeId) -> io::Result<Option<Self>> {
        let threads = Threads::new(proc_root);
        let Some(space) = Space::open(&threads, process)? else { return Ok(None) };
        let Some(estimate) = linux::memory::own_bytes(&threads, process.pid)? else { return Ok(None) };
        Ok(Some(Self::with(space, Work::Begin(to), estimate)))
    }

    /// A move of the pages of a layout to the nodes they were on. `None` if the process has ended.
    /// The process must not have called exec since.
    pub fn back(proc_root: &Path, process: ProcessId, layout: Layout) -> io::Result<Option<Self>> {
        let Some(space) = Space::open(&Threads::new(proc_root), process)? else { return Ok(None) };
        let mut work = Self::with(space, Work::Done, 0);
        work.before = layout;
        Ok(Some(work.reversed()))
    }

    /// The way back of what this move has sent so far. Of a program that was started meanwhile,
    /// nothing moves.
    pub fn reversed(self) -> Self {
        let mut runs: Vec<Run> = self.before.runs().collect();
        runs.reverse();
        let estimate = self.before.pages().saturating_mul(self.space.page_size());
        Self::with(self.space, Work::Runs(runs), estimate)
    }

    fn with(space: Space, work: Work, estimate: u64) -> Self {
        let copied = Copied { total: estimate, ..Copied::default() };
        let before = Layout::default();
        Self {
            space,
            work,
            pending: Vec::new(),
            stopped: None,
            copied,
            estimate,
            seen: 0,
            before,
            ended: false,
            ahead: 0,
        }
    }

    /// Where the pages were that this move has sent so far.
    pub fn before(&self) -> &Layout {
        &self.before
    }

    /// Takes in where the pages were before an earlier move of the same process: the way back leads
    /// there.
    pub fn follows(&mut self, earlier: &Self) {
        self.before = earlier.before.then(&self.before);
    }

    /// Whether every page has had its turn.
    pub fn complete(&self) -> bool {
        matches!(self.work, Work::Done)
    }

    /// Whether the process ended, or started another program, before the move was over.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Whether the process has ended, or runs another program, by now. `false` where that is not
    /// certain.
    pub fn gone(&self) -> bool {
        matches!(self.space.alive(), Ok(false))
    }

    /// The next pages; `None` when there are no more. An empty batch: none in this part of the
    /// address space.
    fn next_batch(&mut self) -> io::Result<Option<Batch>> {
        loop {
            match &mut self.work {
                Work::Begin(to) => {
                    let to = *to;
                    let (mut left, policies) = match own(&self.space, to) {
                        Err(error) if is_gone(&error) => (Vec::new(), Policies::default()),
                        own => own?,
                    };
                    left.reverse();
                    let next = left.last().map_or(0, |r| r.range.start / self.space.page_size());
                    self.work = Work::Regions { to, left, next, policies };
                }
                Work::Regions { to, left, next, policies } => {
                    let page = self.space.page_size();
                    let Some(region) = left.last() else {
                        self.work = Work::Done;
                        continue;
                    };
                    if !self.pending.is_empty() {
                        let mut pages = cut(&mut self.pending);
                        let kept = pages.first().is_some_and(|first| policies.keep_away(*first));
                        // Adjoining mappings may have different policies.
                        let same = pages.iter().take_while(|page| policies.keep_away(**page) == kept).count();
                        self.pending.extend(pages.drain(same..).rev());
                        return Ok(Some(Batch { pages, to: *to, kept }));
                    }
                    let end = region.range.end / page;
                    if *next >= end {
                        left.pop();
                        // Huge pages come from a pool of their own.
                        self.stopped = None;
                        *next = left.last().map_or(0, |r| r.range.start / page);
                        continue;
                    }
                    let count = WINDOW.min(end - *next);
                    let there = self.space.present(*next, count, region.shared_memory, &mut self.pending)?;
                    self.ended |= !there;
                    self.pending.reverse();
                    *next += count;
                    return Ok(Some(Batch { pages: Vec::new(), to: *to, kept: false }));
                }
                Work::Runs(runs) => {
                    let page = self.space.page_size();
                    let Some(run) = runs.last_mut() else {
                        self.work = Work::Done;
                        continue;
                    };
                    if run.pages == 0 {
                        runs.pop();
                        // The next run may be for another node, or for huge pages, which come from
                        // a pool of their own.
                        self.stopped = None;
                        continue;
                    }
                    let count = run.pages.min(BATCH as u64);
                    let (first, to) = (run.first, run.node);
                    (run.first, run.pages) = (first + count, run.pages - count);
                    let pages = (first..first + count).map(|n| n.saturating_mul(page)).collect();
                    return Ok(Some(Batch { pages, to, kept: false }));
                }
                Work::Done => return Ok(None),
            }
        }
    }

    /// Moves the pages of a batch; returns how many bytes it tried to move.
    fn send(&mut self, batch: Batch) -> io::Result<u64> {
        let Batch { mut pages, to, kept } = batch;
        let page = self.space.page_size();
        let Some(nodes) = self.nodes(&pages)? else { return Ok(0) };
        let bytes = nodes.iter().filter(|n| **n >= 0).count() as u64 * page;
        let target = i32::try_from(to.0).unwrap_or(i32::MAX);
        let mut nodes = nodes.into_iter();
        let mut old = Vec::new();
        // Without those that are there already, or that are no memory of the process.
        pages.retain(|_| {
            let node = nodes.next().unwrap_or(-1);
            let sent = node >= 0 && node != target;
            old.extend(sent.then(|| NodeId(node.unsigned_abs())));
            sent
        });
        let away = pages.len() as u64 * page;
        self.seen += bytes;
        self.copied.moved += bytes - away;
        self.copied.there += bytes - away;
        if kept {
            self.stay(POLICY, away);
            return Ok(0);
        }
        if self.stopped.is_none() {
            for (address, node) in pages.iter().zip(&old) {
                self.before.push(address / page, *node);
            }
        }
        let (mut reason, mut shared) = (BUSY, 0);
        for _ in 0..TRIES {
            let count = pages.len();
            if count == shared || self.stopped.is_some() {
                break;
            }
            let status;
            (status, reason) = match self.space.send(&pages, to)? {
                Sent::Tried(status) => (status, BUSY),
                Sent::Refused(Errno::PERM) => return Err(Errno::PERM.into()),
                Sent::Refused(error) => (Vec::new(), refusal(error)),
                Sent::Ended => {
                    self.ended = true;
                    return Ok(away);
                }
            };
            let Some(nodes) = self.nodes(&pages)? else { return Ok(away) };
            let mut now = nodes.into_iter().zip(status.into_iter().chain(std::iter::repeat(UNKNOWN)));
            shared = 0;
            pages.retain(|_| {
                let (node, status) = now.next().unwrap_or((-1, UNKNOWN));
                let stays = node >= 0 && node != target;
                shared += usize::from(stays && status == -libc::EACCES);
                match node {
                    // The program gave it back meanwhile.
                    ..0 => self.seen = self.seen.saturating_sub(page),
                    _ if !stays => self.copied.moved += page,
                    _ => {}
                }
                stays
            });
            if reason != BUSY && pages.len() == count {
                self.stopped = Some(reason);
            }
        }
        self.stay(SHARED, shared as u64 * page);
        self.stay(self.stopped.unwrap_or(reason), pages.len().saturating_sub(shared) as u64 * page);
        Ok(away)
    }

    fn nodes(&mut self, pages: &[u64]) -> io::Result<Option<Vec<i32>>> {
        let nodes = self.space.nodes(pages)?;
        self.ended |= nodes.is_none();
        Ok(nodes)
    }

    fn stay(&mut self, why: &'static str, bytes: u64) {
        if bytes > 0 {
            *self.copied.left.entry(why).or_default() += bytes;
        }
    }
}

impl Copying for MemoryMove {
    fn step(&mut self, bytes: u64) -> io::Result<bool> {
        // A batch may be larger than a step: the next steps wait for it.
        let wanted = bytes.max(1).saturating_sub(self.ahead);
        let (mut done, mut looked) = (0, 0);
        while done < wanted && looked < WINDOWS && !self.ended {
            match self.next_batch()? {
                Some(batch) if batch.pages.is_empty() => looked += 1,
                // A batch with nothing to move takes time, too.
                Some(batch) => done += self.send(batch)?.max(1),
                None => {
                    self.copied.total = self.seen;
                    return Ok(true);
                }
            }
        }
        self.ahead = (self.ahead + done).saturating_sub(bytes.max(1));
        self.copied.total = if self.ended { self.seen } else { self.estimate.max(self.seen) };
        Ok(self.ended)
    }

    fn copied(&self) -> Copied {
        self.copied.clone()
    }

    fn back(self: Box<Self>) -> Option<Back> {
        Some(Back::Memory(self))
    }
}

/// The regions of a process, and their policies with regard to this node.
fn own(space: &Space, to: NodeId) -> io::Result<(Vec<Region>, Policies)> {
    let dir = space.dir().to_owned();
    patient::ask_for(PATIENCE, space.pid(), MEMORY, move || {
        let regions = regions::read(&dir)?;
        let policies = match File::open(dir.join("numa_maps")) {
            Ok(maps) => Policies::read(BufReader::new(maps), to)?,
            // A kernel without NUMA has no policies.
            Err(error) if error.kind() == ErrorKind::NotFound => Policies::default(),
            Err(error) => return Err(error),
        };
        Ok((regions, policies))
    })
}

/// Why the kernel refuses to move any page.
fn refusal(error: Errno) -> &'static str {
    match error {
        Errno::NOMEM => FULL,
        Errno::ACCESS => FORBIDDEN,
        Errno::NODEV => NO_MEMORY,
        _ => BUSY,
    }
}

/// Takes the pages of a batch from the end of the list, whose addresses fall. Does not cut between
/// two pages of the same 2 MiB: they may be one page.
fn cut(pending: &mut Vec<u64>) -> Vec<u64> {
    const HUGE: u64 = 2 << 20;
    let at_most = pending.len().saturating_sub(BATCH);
    let tail = pending.get(at_most..).unwrap_or_default();
    let same = match (at_most.checked_sub(1).and_then(|i| pending.get(i)), tail.first()) {
        (Some(next), Some(last)) if next / HUGE == last / HUGE => {
            // The pages of the last 2 MiB wait for the next batch, unless they are all there is.
            let part = tail.iter().take_while(|p| **p / HUGE == last / HUGE).count();
            if part < tail.len() { part } else { 0 }
        }
        _ => 0,
    };
    let mut batch = pending.split_off(at_most + same);
    batch.reverse();
    batch
}
