//! The simulated machine while it runs: threads, files and processes in virtual time.
//!
//! **Problem.** A policy sees windows; between two windows threads write data to new places,
//! copies proceed and threads end.
//!
//! **Approach.** The state advances in steps: [`demand`] turns it into a network of classes,
//! [`memory_model::queues`] finds the rates, and [`advance`] applies them to threads and files
//! until the next step or event. The network is solved again only after a change, or when more
//! than a few thousandths of a file have moved. [`kernel`] does what Linux does by itself,
//! [`observe`] makes homenode's snapshot, and [`moves`] carries out homenode's moves.
//!
//! **Limits.** Nothing changes within a step: a file that is rewritten by 1 % in 100 ms changes at
//! the end of them.

mod advance;
mod demand;
mod fixed;
mod flows;
mod kernel;
mod mapped;
mod moves;
mod observe;
mod recorded;

use std::collections::BTreeMap;

use engine::JobId;
use memory_model::queues::{Solver, System};
pub(crate) use memory_model::{Shares, add, on, total};
use rand::SeedableRng;
use rand::rngs::ChaCha12Rng;
use smallvec::SmallVec;
use topology::{CpuSet, FileId};

use crate::machine::Machine;
use crate::workload::{FileSet, Job, Place};

use flows::FlowSums;
pub(crate) use kernel::Start;

/// A job with the way its threads start.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub job: Job,
    pub start: Start,
}

/// A thread. The fields that every step changes come first: ten thousand threads do not fit into a
/// cache.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Thread {
    /// Work lost to a move, in seconds.
    pub debt_s: f64,
    /// Operations left; none: it never ends.
    pub left: Option<f64>,
    /// Operations that are in `window` but for their flows, which are those of the network that is
    /// still valid.
    pub pending: f64,
    pub window: Tally,
    pub tid: u32,
    pub pid: u32,
    pub job: usize,
    pub role: usize,
    pub node: usize,
    /// Affinity; none: every CPU.
    pub mask: Option<CpuSet>,
    /// Whether the affinity is its own, not homenode's.
    pub own_affinity: bool,
    pub start_ns: u64,
    /// Not running before this time.
    pub from_s: f64,
    pub ended_s: Option<f64>,
    /// Index of the first of its files; the part's file set counts from there.
    pub files: SmallVec<[usize; 1]>,
}

impl File {
    /// How much of it is elsewhere than when the network was last built, as a fraction of it.
    fn drift(&self) -> f64 {
        let (now, then) = (total(&self.bytes), total(&self.built));
        if !self.touched || now <= 0.0 {
            return 0.0;
        }
        if then <= 0.0 {
            return 1.0;
        }
        apart(&self.bytes, &self.built).max((now - then).abs() / now)
    }
}

/// Fraction of two non-empty sets of bytes that is on different nodes.
fn apart(a: &Shares, b: &Shares) -> f64 {
    let (all_a, all_b) = (total(a), total(b));
    // Both add up to one: what is more here is less there.
    let more = |s: &(usize, f64)| (s.1 / all_a - on(b, s.0) / all_b).max(0.0);
    a.iter().map(more).sum()
}

impl Thread {
    fn runs(&self, now: f64) -> bool {
        self.ended_s.is_none() && self.from_s <= now
    }
}

/// A thread's work since the window began.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(crate) struct Tally {
    pub ops: f64,
    pub cpu_s: f64,
    pub wait_s: f64,
    pub remote_read: f64,
    /// Bytes read, and written (without the file system's own), that are not among those booked for
    /// the whole class.
    pub read: FlowSums,
    pub written: FlowSums,
}

#[derive(Clone, Debug)]
pub(crate) struct File {
    pub id: FileId,
    pub path: String,
    pub job: usize,
    pub set: usize,
    pub size: f64,
    pub bytes: Shares,
    /// Where its bytes were when the network was last built.
    pub built: Shares,
    /// Whether bytes were written or moved since.
    pub touched: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub pid: u32,
    pub start_ns: u64,
    pub resident: Shares,
}

/// A copy in the background.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    pub what: Copied,
    pub from: usize,
    pub to: usize,
    pub left: f64,
    /// The job that it is part of.
    pub job: JobId,
}

/// A move that copies, as the engine knows it.
#[derive(Clone, Debug)]
pub(crate) struct Moving {
    pub job: JobId,
    pub bytes: f64,
    pub cancelled: bool,
    /// Bytes that were not copied when it was cancelled.
    pub kept: f64,
    /// Of a file: which, and the nodes.
    pub file: Option<(usize, usize, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copied {
    File(usize),
    Process(usize),
}

/// Sums over the whole run, per job.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobTally {
    pub ops: f64,
    pub read: f64,
    pub written: f64,
    pub remote_read: f64,
    pub cpu_s: f64,
}

pub(crate) struct World {
    pub machine: Machine,
    pub jobs: Vec<Job>,
    pub threads: Vec<Thread>,
    pub files: Vec<File>,
    pub processes: Vec<Process>,
    pub copies: Vec<Copy>,
    /// Moves whose end the engine has not asked for yet.
    pub moving: Vec<Moving>,
    /// Bytes that the last move of a file from a node to another has moved.
    pub moved: BTreeMap<(usize, usize, usize), f64>,
    next_job: u64,
    /// Virtual time in seconds.
    pub now: f64,
    pub window_began: f64,
    pub totals: Vec<JobTally>,
    /// Bytes read and written per node since the window began, the file systems' own and copies
    /// included.
    pub node_read: Vec<f64>,
    pub node_written: Vec<f64>,
    pub node_cpu_s: Vec<f64>,
    /// Decides which threads share a file of a file set.
    chance: ChaCha12Rng,
    /// Whether AutoNUMA lets the memory of processes follow their threads.
    pub autonuma: bool,
    network: demand::Network,
    /// The written part of the work of each visit.
    written: Vec<f64>,
    /// Unused lists of classes and flows, kept for their memory.
    spare: Vec<Vec<u32>>,
    spare_flows: (flows::Flows, flows::Flows),
    system: System,
    solver: Solver,
    changed: bool,
}

impl World {
    /// A machine on which these jobs have just been started.
    pub fn new(machine: Machine, launches: Vec<Launch>, seed: u64) -> Self {
        let n = machine.nodes().len();
        let mut world = Self {
            jobs: Vec::new(),
            threads: Vec::new(),
            files: Vec::new(),
            processes: Vec::new(),
            copies: Vec::new(),
            moving: Vec::new(),
            moved: BTreeMap::new(),
            next_job: 0,
            now: 0.0,
            window_began: 0.0,
            totals: vec![JobTally::default(); launches.len()],
            node_read: vec![0.0; n],
            node_written: vec![0.0; n],
            node_cpu_s: vec![0.0; n],
            chance: ChaCha12Rng::seed_from_u64(seed),
            autonuma: false,
            network: demand::Network::default(),
            written: Vec::new(),
            spare: Vec::new(),
            spare_flows: Default::default(),
            system: System::default(),
            solver: Solver::default(),
            changed: true,
            machine,
        };
        // The threads' first places are drawn from the seed's first stream.
        world.chance.set_stream(1);
        let mut placer = kernel::Placer::new(&world.machine, ChaCha12Rng::seed_from_u64(seed));
        let mut id = 1000;
        for launch in launches {
            world.launch(launch, &mut placer, &mut id);
        }
        world
    }

    fn launch(&mut self, launch: Launch, placer: &mut kernel::Placer, id: &mut u32) {
        let Launch { job, start } = launch;
        let index = self.jobs.len();
        let first = self.threads.len();
        let shared: Vec<usize> = job
            .files
            .iter()
            .enumerate()
            .map(|(set, files)| match files.place {
                Place::Same(job, set) => self.shared(job, set),
                _ if files.private => usize::MAX,
                _ => self.file(index, set, files, ""),
            })
            .collect();
        let pid = *id;
        for (r, role) in job.roles.iter().enumerate() {
            for _ in 0..role.threads {
                let tid = *id;
                *id += 1;
                let node = placer.place(&self.machine, start);
                let files = job.files.iter().enumerate().map(|(set, files)| match shared[set] {
                    usize::MAX => self.file(index, set, files, &format!(".{}", tid - pid)),
                    file => file,
                });
                let files = files.collect();
                let mask = start.pinned().map(|node| self.machine.cpus_of(node).clone());
                self.threads.push(Thread {
                    tid,
                    pid,
                    job: index,
                    role: r,
                    node,
                    own_affinity: mask.is_some(),
                    mask,
                    start_ns: (job.start_s * 1e9) as u64 + u64::from(tid),
                    from_s: job.start_s,
                    left: role.limit,
                    ended_s: None,
                    debt_s: 0.0,
                    files,
                    window: Tally::default(),
                    pending: 0.0,
                });
            }
        }
        let nodes: Vec<usize> = self.threads[first..].iter().map(|t| t.node).collect();
        if let Some(Thread { start_ns, node, .. }) = self.threads.get(first) {
            let home = self.machine.nearest_home(*node);
            let resident = Shares::from_slice(&[(home, job.process_bytes)]);
            self.processes.push(Process { pid, start_ns: *start_ns, resident });
        }
        self.jobs.push(job);
        self.fill(index, first, &nodes);
    }

    /// The file that a job that was started before has for one of its file sets.
    fn shared(&self, job: usize, set: usize) -> usize {
        self.files.iter().position(|f| (f.job, f.set) == (job, set)).unwrap_or(usize::MAX)
    }

    /// A new, empty file.
    fn file(&mut self, job: usize, set: usize, files: &FileSet, suffix: &str) -> usize {
        let inode = self.files.len();
        self.files.push(File {
            id: FileId { dev: FileId::device(259, job as u32), ino: inode as u64, generation: 0 },
            path: format!("/sim/{}{suffix}", files.name),
            job,
            set,
            size: files.size,
            bytes: Shares::new(),
            built: Shares::new(),
            touched: false,
        });
        inode
    }

    /// Puts the bytes of a job's files where its file sets say.
    fn fill(&mut self, job: usize, first: usize, nodes: &[usize]) {
        let homes: Vec<usize> = self.machine.homes().collect();
        for file in 0..self.files.len() {
            if self.files[file].job != job {
                continue;
            }
            let set = &self.jobs[job].files[self.files[file].set];
            let bytes = set.size * set.filled;
            let threads = self.threads[first..].iter().filter(|t| t.files.contains(&file));
            let mut wanted = Shares::new();
            match &set.place {
                Place::Same(..) => {}
                Place::Node(node) => add(&mut wanted, *node, bytes),
                Place::Spread => homes.iter().for_each(|n| add(&mut wanted, *n, bytes / homes.len() as f64)),
                Place::Shares(shares) => shares
                    .iter()
                    .enumerate()
                    .filter(|(_, s)| **s > 0.0)
                    .for_each(|(n, s)| add(&mut wanted, n, bytes * s)),
                Place::Threads => {
                    let of: Vec<usize> = threads.map(|t| self.machine.nearest_home(t.node)).collect();
                    let of = if of.is_empty() { nodes.to_vec() } else { of };
                    of.iter().for_each(|n| add(&mut wanted, *n, bytes / of.len() as f64));
                }
            }
            for (node, bytes) in wanted {
                self.put(file, node, bytes);
            }
        }
    }

    /// Puts bytes of a file on a node, and what does not fit there on the nearest nodes that have
    /// room.
    fn put(&mut self, file: usize, node: usize, mut bytes: f64) {
        let mut order: Vec<usize> = self.machine.homes().collect();
        order.sort_by(|a, b| {
            (*a != node)
                .cmp(&(*b != node))
                .then(self.machine.hops(node, *a).total_cmp(&self.machine.hops(node, *b)))
                .then(a.cmp(b))
        });
        for n in order {
            if bytes <= 0.0 {
                break;
            }
            let fits = bytes.min(self.free(n).max(0.0));
            if fits > 0.0 {
                add(&mut self.files[file].bytes, n, fits);
                bytes -= fits;
            }
        }
    }

    /// Free bytes of a node.
    pub fn free(&self, node: usize) -> f64 {
        let files: f64 = self.files.iter().map(|f| on(&f.bytes, node)).sum();
        let processes: f64 = self.processes.iter().map(|p| on(&p.resident, node)).sum();
        self.machine.nodes()[node].capacity - files - processes
    }

    /// The thread with this id.
    pub fn thread(&self, tid: u32) -> Option<usize> {
        self.threads.binary_search_by_key(&tid, |t| t.tid).ok()
    }
}

impl World {
    /// Whether all threads have ended.
    pub fn over(&self) -> bool {
        self.threads.iter().all(|t| t.ended_s.is_some())
    }

    /// When the last thread of a job ended, if all have.
    pub fn job_ended(&self, job: usize) -> Option<f64> {
        self.threads.iter().filter(|t| t.job == job).try_fold(0.0, |last: f64, t| t.ended_s.map(|e| last.max(e)))
    }
}
