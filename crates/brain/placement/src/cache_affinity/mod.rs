//! ARC task migration: moves a process, with its memory, to the node that caches the file it reads
//! (Adams, "Automatic Task Migration Based on Data Location in a Non-Uniform Memory Access-Aware
//! ZFS Filesystem Cache", 2021).
//!
//! **Problem.** The ZFS ARC is kernel memory. AutoNUMA does not see it (Fig. 6.1), so a reader on
//! the wrong node stays there and loses 10 to 15 % (Fig. 5.2).
//!
//! **Approach.** There are two policies. `arc` is the thesis's: "greedy, considering only one block
//! at a time" (section 9.1.6). The first remote block of a file moves the process. `arc-guarded` is
//! what the thesis's future work asks for. It requires reads of 128 KiB or more (8.2), a sequential
//! reader with much left to read or one that starts over, a file of 1 GiB or more, and a gain by
//! `I = M − (P / F) × R` (8.1), where R follows from the speed of the copy ([`Settings`]). M counts
//! only as far as the process reads more there than here. A process whose memory costs more than
//! its threads lose without it moves without it: `why` says which, and what the other would bring.
//!
//! **Limits.** A snapshot is a window, not a block: if a process reads from several remote nodes in
//! one window, the node with most bytes wins. The thesis's prototype would follow files on two
//! nodes back and forth with every block. Here, a moved process goes back only to where it reads
//! more, and after two moves it stays until its reading has changed. Like the thesis, neither
//! policy considers the load of CPUs or controllers.

mod copies;
mod history;
mod model;

use std::collections::BTreeMap;

use copies::Copies;
use history::{History, Profile};
pub use model::Settings;
use topology::{FileId, NodeId, Topology};

use crate::processes::{by_pid, has_cpus, node_of, sane, show, starts};
use crate::{Declined, FileUse, Move, Plan, Policy, Process, Reason, Snapshot, Subject, Thread, Traits};

/// Selects one of the two policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// The first remote block moves the process.
    Greedy,
    /// A process moves only if it pays.
    Guarded,
}

/// Largest number of moves of a process whose reading does not change: there, and back if that was
/// worse.
const MAX_TRIPS: u32 = 2;

/// The policy; see the module.
#[derive(Debug)]
pub struct CacheAffinity {
    variant: Variant,
    settings: Settings,
    histories: BTreeMap<u32, History>,
    copies: Copies,
}

struct Verdict {
    to: NodeId,
    why: String,
    memory: bool,
}

/// The reads of one process in one window.
struct Reads<'a> {
    home: NodeId,
    threads: &'a [&'a Thread],
    /// Bytes by file, then by node.
    files: BTreeMap<FileId, BTreeMap<NodeId, f64>>,
    uses: BTreeMap<FileId, Vec<&'a FileUse>>,
    nodes: BTreeMap<NodeId, f64>,
    total: f64,
    window_s: f64,
}

impl<'a> Reads<'a> {
    fn of(threads: &'a [&'a Thread], window_s: f64) -> Option<Self> {
        let home = node_of(threads)?;
        let (files, uses, nodes) = Default::default();
        let mut reads = Self { home, threads, files, uses, nodes, total: 0.0, window_s };
        for used in threads.iter().flat_map(|t| &t.files) {
            for (node, bytes) in used.read_bytes.iter().filter(|(_, bytes)| *bytes > 0) {
                let bytes = bytes as f64;
                *reads.files.entry(used.file).or_default().entry(node).or_default() += bytes;
                *reads.nodes.entry(node).or_default() += bytes;
                reads.total += bytes;
            }
            reads.uses.entry(used.file).or_default().push(used);
        }
        (reads.total > 0.0).then_some(reads)
    }

    fn on(&self, node: NodeId) -> f64 {
        self.nodes.get(&node).copied().unwrap_or(0.0)
    }

    fn most_remote(&self) -> Option<(NodeId, f64)> {
        let remote = self.nodes.iter().filter(|(node, _)| **node != self.home);
        remote.max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(a.0))).map(|(node, bytes)| (*node, *bytes))
    }

    /// Bytes/s that it reads. In the first window of a process only the time of its busiest thread
    /// counts, as it may have begun in the middle.
    fn rate(&self, first: bool) -> f64 {
        let busy_s = self.threads.iter().map(|t| sane(t.cpu_s) + sane(t.served_s.unwrap_or(0.0))).fold(0.0, f64::max);
        let seconds = if first && busy_s > 0.0 { busy_s.min(self.window_s) } else { self.window_s };
        if seconds > 0.0 { self.total / seconds } else { f64::INFINITY }
    }

    fn profile(&self) -> Profile {
        self.nodes.iter().map(|(node, bytes)| (*node, bytes / self.total)).collect()
    }
}

/// `+3.5 %`
fn gain(fraction: f64) -> String {
    format!("{:+.1} %", 100.0 * fraction)
}

enum Guard {
    Passed { remaining: f64 },
    Failed { reason: &'static str, why: String },
}

impl CacheAffinity {
    /// Creates a policy without history.
    pub fn new(variant: Variant, settings: Settings) -> Self {
        Self { variant, settings, histories: BTreeMap::new(), copies: Copies::default() }
    }

    /// Greedy: any remote block suffices; of several remote nodes, the one with most bytes wins.
    fn greedy(reads: &Reads) -> Option<Verdict> {
        let (to, bytes) = reads.most_remote()?;
        let why = format!("reads {} of {} from node {to}", show(bytes), show(reads.total));
        Some(Verdict { to, why, memory: true })
    }

    /// Guarded: the node whose large files, with much left to read, outweigh moving the process's
    /// memory, or leaving it behind.
    fn guarded(
        &self,
        reads: &Reads,
        history: &History,
        sizes: &BTreeMap<FileId, f64>,
        memory: Option<&Process>,
    ) -> Result<Verdict, Option<(&'static str, String)>> {
        let here = reads.on(reads.home);
        let (to, bytes) = reads.most_remote().ok_or(None)?;
        let (share, all) = (show(bytes), show(reads.total));
        if bytes <= here * self.settings.margin {
            return Err(Some((
                "below_margin",
                format!("{share} of {all} from node {to}, {} from its own node", show(here)),
            )));
        }
        let mut failed = None;
        let mut remaining = 0.0;
        for (file, nodes) in &reads.files {
            let on_target = nodes.get(&to).copied().unwrap_or(0.0);
            if on_target <= 0.0 {
                continue;
            }
            match self.guard(reads, history, *file, sizes.get(file).copied()) {
                Guard::Passed { remaining: r } => remaining += r * on_target / nodes.values().sum::<f64>(),
                Guard::Failed { reason, why } => {
                    failed.get_or_insert((reason, why));
                }
            }
        }
        if remaining <= 0.0 {
            return Err(failed);
        }
        let Some(memory) = memory else {
            return Err(Some(("process_size_unknown", "the size of its memory was not observed".into())));
        };
        let process = memory.resident.total().saturating_sub(memory.resident.get(to)) as f64;
        // The thesis's M is for a reader with all its data there; what is local now would become
        // remote.
        let weight = ((bytes - here) / reads.total).clamp(0.0, 1.0);
        let mut model = self.settings.clone();
        model.max_improvement *= weight;
        let reduction = model.reduction(reads.rate(history.windows() < 2), self.copies.bandwidth());
        // Memory that is away from the process costs it something, wherever the file is.
        let share_on = |node| memory.resident.get(node) as f64 / memory.resident.total().max(1) as f64;
        let (own, here, there) = (self.settings.own_memory(), share_on(reads.home), share_on(to));
        let with = model.improvement(process, remaining, reduction) + own * (1.0 - here);
        let alone = model.max_improvement + own * (there - here);
        let figures = format!("{share} of {all} from node {to}, {} still to be read", show(remaining));
        let (own, with_gain, alone_gain) = (show(process), gain(with), gain(alone));
        match () {
            () if with.max(alone) <= 0.0 => {
                let why = format!("{figures}: {with_gain} with its {own} of memory, {alone_gain} without");
                Err(Some(("no_gain", why)))
            }
            () if with >= alone => {
                let why = format!("{figures}: moves with its {own} of memory, {with_gain} (without: {alone_gain})");
                Ok(Verdict { to, why, memory: true })
            }
            () => {
                let why = format!("{figures}: moves without its {own} of memory, {alone_gain} (with: {with_gain})");
                Ok(Verdict { to, why, memory: false })
            }
        }
    }

    fn guard(&self, reads: &Reads, history: &History, file: FileId, size: Option<f64>) -> Guard {
        let failed = |reason, why| Guard::Failed { reason, why };
        let uses = reads.uses.get(&file).map_or(&[][..], Vec::as_slice);
        let Some(read_size) = uses.iter().filter_map(|u| u.read_size).max() else {
            return failed("read_size_unknown", format!("the read size on {file} was not observed"));
        };
        if read_size < self.settings.min_read_size {
            return failed("small_reads", format!("reads {read_size} B of {file} at a time"));
        }
        let Some(size) = size.filter(|s| *s > 0.0) else {
            return failed("file_size_unknown", format!("the length of {file} is unknown"));
        };
        if size < self.settings.min_file as f64 {
            return failed("small_file", format!("{file} has only {}", show(size)));
        }
        let Some(reading) = history.files.get(&file) else {
            return failed("not_read", format!("{file} is not being read"));
        };
        let sequential = uses.iter().any(|u| u.sequential == Some(true));
        if !sequential && !reading.repeated(size) {
            return failed("not_sequential", format!("reads {file} neither sequentially nor repeatedly"));
        }
        Guard::Passed { remaining: reading.remaining(size) }
    }

    fn decide_one(
        &mut self,
        topology: &Topology,
        now_s: f64,
        (pid, start): (u32, Option<u64>),
        reads: &Reads,
        sizes: &BTreeMap<FileId, f64>,
        memory: Option<&Process>,
    ) -> Option<Result<Vec<Move>, Declined>> {
        let mut history = self.histories.remove(&pid).unwrap_or_default();
        history.of(start);
        let files = reads.files.iter().map(|(file, nodes)| (*file, nodes.values().sum())).collect();
        history.observe(now_s, &files, &reads.profile(), reads.home);
        let decided = self.choose(topology, reads, &mut history, sizes, memory);
        self.histories.insert(pid, history);
        match decided {
            Ok(Verdict { to, why, memory: true }) => {
                let (subject, reason, why) = (Subject::process(pid, start), Reason::CacheAffinity, why.into());
                Some(Ok(vec![Move { subject, pid, from: reads.home, to, reason, why, ranges: Vec::new() }]))
            }
            Ok(Verdict { to, why, memory: false }) => {
                let threads = reads.threads.iter().filter(|thread| thread.node != to);
                Some(Ok(threads.map(|thread| Move::thread(thread, to, Reason::CacheAffinity, why.as_str())).collect()))
            }
            Err(Some((reason, why))) => {
                let tid = reads.threads.first()?.tid;
                Some(Err(Declined { tid, reason: reason.into(), why }))
            }
            Err(None) => None,
        }
    }

    fn choose(
        &self,
        topology: &Topology,
        reads: &Reads,
        history: &mut History,
        sizes: &BTreeMap<FileId, f64>,
        memory: Option<&Process>,
    ) -> Result<Verdict, Option<(&'static str, String)>> {
        let Verdict { to, why, memory } = match self.variant {
            Variant::Greedy => Self::greedy(reads).ok_or(None)?,
            Variant::Guarded => self.guarded(reads, history, sizes, memory)?,
        };
        if let Some(pinned) = reads.threads.iter().find_map(|t| t.pinned.as_ref()) {
            return Err(Some(("pinned", pinned.clone())));
        }
        if !has_cpus(topology, to) {
            return Err(Some(("no_cpus", format!("{why}, but node {to} has no CPUs"))));
        }
        if reads.threads.iter().any(|t| !t.allowed_nodes.contains(&to)) {
            return Err(Some(("not_allowed", format!("{why}, but it may not run there"))));
        }
        if history.trips() >= MAX_TRIPS {
            return Err(Some((
                "settled",
                format!("{why}, but it moved {} times and its reading has not changed", history.trips()),
            )));
        }
        if history.trips() > 0 && reads.on(to) <= self.settings.margin * reads.on(reads.home) {
            return Err(Some(("below_margin", format!("{why}, {} from its own node", show(reads.on(reads.home))))));
        }
        if history.ask(to) {
            Ok(Verdict { to, why, memory })
        } else {
            Err(Some(("not_made", format!("{why}, but the move was not made"))))
        }
    }
}

impl Policy for CacheAffinity {
    fn name(&self) -> &'static str {
        match self.variant {
            Variant::Greedy => "arc",
            Variant::Guarded => "arc-guarded",
        }
    }

    fn traits(&self) -> Traits {
        Traits { moves_processes: true, ..Traits::default() }
    }

    fn decide(&mut self, topology: &Topology, snapshot: &Snapshot) -> Plan {
        let now_s = sane(snapshot.time_s);
        let mut plan = Plan::new(self.name());
        self.copies.observe(now_s, &snapshot.outcomes);
        let sizes: BTreeMap<FileId, f64> =
            (snapshot.files.iter()).map(|f| (f.file, f.size.unwrap_or_else(|| f.bytes.total()) as f64)).collect();
        let memory: BTreeMap<u32, &Process> = snapshot.processes.iter().map(|p| (p.pid, p)).collect();
        let starts = starts(snapshot);
        for (pid, threads) in &by_pid(snapshot) {
            let Some(reads) = Reads::of(threads, sane(snapshot.window_s)) else { continue };
            let process = (*pid, starts.get(pid).copied());
            match self.decide_one(topology, now_s, process, &reads, &sizes, memory.get(pid).copied()) {
                Some(Ok(moves)) => plan.moves.extend(moves),
                Some(Err(declined)) => plan.declined.push(declined),
                None => {}
            }
        }
        self.histories.retain(|_, h| !h.forgotten(now_s));
        plan
    }
}
