//! A toy machine that reacts to moves, for policies that learn from the effects of their moves.
//!
//! It is deliberately not the model that `auto` uses: it has no queues. Controllers and CPUs serve
//! all users at full speed until they are full. Then they slow all their users down by one factor,
//! until the load fits.
#![allow(dead_code, reason = "each test target uses a part of this")]
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::collections::BTreeMap;

use placement::{
    FileUse, Move, NodeBytes, NodeLoad, ObservedFile, Outcome, OutcomeState, Plan, Policy, Process, Snapshot, Subject,
    Thread, Writes, testing,
};
use topology::{NodeId, ProcessId, ThreadId, Topology};

#[derive(Clone, Debug)]
pub struct ToyNode {
    pub cpus: f64,
    pub read_bw: f64,
    pub write_bw: f64,
}

#[derive(Clone, Debug)]
pub struct ToyThread {
    pub tid: u32,
    pub pid: u32,
    pub node: usize,
    /// Seconds per byte.
    pub soft_s: f64,
    pub off_s: f64,
    /// Fractions of bytes read, by file.
    pub reads: Vec<(usize, f64)>,
    /// Fraction of bytes written, on the node where it runs.
    pub writes: f64,
    pub pinned: bool,
}

#[derive(Clone, Debug)]
pub struct ToyFile {
    pub node: usize,
    pub bytes: f64,
    /// The node it is moving to, and the bytes that are not there yet.
    pub moving: Option<(usize, f64)>,
}

#[derive(Clone, Debug)]
pub struct Toy {
    pub nodes: Vec<ToyNode>,
    /// SLIT distances.
    pub distance: Vec<Vec<u32>>,
    pub threads: Vec<ToyThread>,
    pub files: Vec<ToyFile>,
    /// Seconds per byte of one thread, local and alone.
    pub read_s: f64,
    pub write_s: f64,
    /// Bytes/s of a file copy.
    pub copy_bw: f64,
    /// Whether files can be moved.
    pub files_move: bool,
    /// Whether the file system spreads writes over all nodes; otherwise they land where the writer
    /// runs.
    pub writes_spread: bool,
    /// How many times as long software takes on each node, which no snapshot shows.
    pub slow: Vec<f64>,
    /// Bytes of memory of each process, on the node where its first thread starts.
    pub memory: u64,
    pub time_s: f64,
    pub moves: Vec<(u32, Move)>,
    pub window: u32,
}

pub struct Rates {
    /// Bytes/s by thread.
    pub rate: Vec<f64>,
    stretch: Vec<f64>,
}

impl Rates {
    pub fn total(&self) -> f64 {
        self.rate.iter().sum()
    }
}

impl Toy {
    /// Nodes one hop apart, of one Optane module each.
    pub fn new(nodes: usize, cpus: f64) -> Self {
        let node = ToyNode { cpus, read_bw: 6.8e9, write_bw: 1.85e9 };
        Self {
            nodes: vec![node; nodes],
            distance: (0..nodes).map(|a| (0..nodes).map(|b| if a == b { 10 } else { 21 }).collect()).collect(),
            threads: Vec::new(),
            files: Vec::new(),
            read_s: 0.5e-9,
            write_s: 0.55e-9,
            copy_bw: 468e6,
            files_move: true,
            writes_spread: false,
            slow: vec![1.0; nodes],
            memory: 16_000_000,
            time_s: 0.0,
            moves: Vec::new(),
            window: 0,
        }
    }

    /// A file of `mb` on a node.
    pub fn file(&mut self, node: usize, mb: f64) -> usize {
        self.files.push(ToyFile { node, bytes: mb * 1e6, moving: None });
        self.files.len() - 1
    }

    /// A thread, with a process of its own, that reads one file.
    pub fn reader(&mut self, node: usize, file: usize, soft_s: f64) {
        let tid = self.threads.len() as u32 + 1;
        let reads = vec![(file, 1.0)];
        self.threads.push(ToyThread { tid, pid: tid, node, soft_s, off_s: 0.0, reads, writes: 0.0, pinned: false });
    }

    fn hops(&self, a: usize, b: usize) -> f64 {
        (f64::from(self.distance[a][b]) - 10.0) / 11.0
    }

    /// Fractions of a file by node.
    fn places(&self, file: usize) -> Vec<(usize, f64)> {
        let f = &self.files[file];
        match f.moving {
            Some((to, left)) => vec![(f.node, left / f.bytes), (to, 1.0 - left / f.bytes)],
            None => vec![(f.node, 1.0)],
        }
    }

    /// The nodes where a thread's writes land.
    fn lands(&self, t: &ToyThread) -> Vec<(usize, f64)> {
        let n = self.nodes.len();
        if self.writes_spread { (0..n).map(|m| (m, 1.0 / n as f64)).collect() } else { vec![(t.node, 1.0)] }
    }

    pub fn rates(&self) -> Rates {
        let n = self.nodes.len();
        let (mut stretch, mut full) = (vec![1.0f64; n], vec![1.0f64; n]);
        let mut rate = vec![0.0; self.threads.len()];
        for _ in 0..400 {
            let before = rate.clone();
            let (mut cpu, mut controller) = (vec![0.0; n], vec![0.0; n]);
            for (t, rate) in self.threads.iter().zip(&mut rate) {
                let mut on = t.soft_s * self.slow[t.node];
                let mut work = vec![0.0; n];
                for (file, fraction) in &t.reads {
                    for (m, share) in self.places(*file) {
                        let hops = self.hops(t.node, m);
                        on += fraction * share * self.read_s * (1.0 + 0.655 * hops) * full[m];
                        work[m] += fraction * share / self.nodes[m].read_bw * (1.0 + 0.53 * hops);
                    }
                }
                for (m, share) in self.lands(t) {
                    let hops = self.hops(t.node, m);
                    on += t.writes * share * self.write_s * (1.0 + 1.9 * hops) * full[m];
                    work[m] += t.writes * share / self.nodes[m].write_bw * (1.0 + 0.53 * hops);
                }
                *rate = 1.0 / (stretch[t.node] * on + t.off_s);
                cpu[t.node] += *rate * on;
                controller.iter_mut().zip(&work).for_each(|(sum, w)| *sum += *rate * w);
            }
            for m in 0..n {
                let step = |factor: f64, used: f64| (factor * used.sqrt()).max(1.0);
                full[m] = step(full[m], controller[m]);
                stretch[m] = step(stretch[m], cpu[m] / self.nodes[m].cpus.max(1e-9));
            }
            if rate.iter().zip(&before).all(|(now, then): (&f64, &f64)| (now - then).abs() < 1e-7 * now) {
                break;
            }
        }
        Rates { rate, stretch }
    }

    pub fn topology(&self) -> Topology {
        self.observe(&self.rates()).topology()
    }

    pub fn observe(&self, rates: &Rates) -> Snapshot {
        let seats: Vec<NodeId> =
            (0..self.nodes.len()).filter(|n| self.nodes[*n].cpus > 0.0).map(|n| NodeId(n as u32)).collect();
        let mut readers: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        let mut nodes: Vec<NodeLoad> = (0..self.nodes.len())
            .map(|n| NodeLoad {
                id: NodeId(n as u32),
                cpus: (0..self.nodes[n].cpus as u32).map(|c| n as u32 * 1000 + c).collect(),
                distance: self.distance[n].iter().enumerate().map(|(m, d)| (NodeId(m as u32), *d)).collect(),
                read_bw_max: Some(self.nodes[n].read_bw),
                write_bw_max: Some(self.nodes[n].write_bw),
                cpu_s: Some(0.0),
                memory_free: 1 << 40,
                ..NodeLoad::default()
            })
            .collect();
        let mut threads = Vec::new();
        for (t, rate) in self.threads.iter().zip(&rates.rate) {
            let mut files = Vec::new();
            let mut read_bytes = NodeBytes::default();
            for (file, fraction) in &t.reads {
                let placed = self.places(*file).into_iter();
                let read: NodeBytes =
                    placed.map(|(m, share)| (NodeId(m as u32), (rate * fraction * share) as u64)).collect();
                read.iter().for_each(|(m, b)| {
                    read_bytes.add(m, b);
                    nodes[m.0 as usize].read_bytes += b;
                });
                readers.entry(*file).or_default().push(t.tid);
                files.push(FileUse { file: testing::file(*file as u64), read_bytes: read, ..FileUse::default() });
            }
            let lands = self.lands(t).into_iter();
            let written: NodeBytes =
                lands.map(|(m, share)| (NodeId(m as u32), (rate * t.writes * share) as u64)).collect();
            written.iter().for_each(|(m, b)| nodes[m.0 as usize].write_bytes += b);
            let on = (1.0 - rate * t.off_s) / rates.stretch[t.node];
            *nodes[t.node].cpu_s.as_mut().unwrap() += on;
            threads.push(Thread {
                tid: t.tid,
                pid: t.pid,
                comm: "toy".into(),
                node: NodeId(t.node as u32),
                allowed_nodes: seats.clone(),
                pinned: t.pinned.then(|| "held".into()),
                cpu_s: on.max(0.0),
                wait_s: Some((1.0 - rate * t.off_s - on).max(0.0)),
                read_bytes,
                write_bytes: written,
                files,
                ..Thread::default()
            });
        }
        for t in &mut threads {
            t.shares_file = t.files.iter().any(|f| readers[&(f.file.ino as usize)].len() > 1);
        }
        let files = readers.into_iter().map(|(file, readers)| ObservedFile {
            file: testing::file(file as u64),
            size: Some(self.files[file].bytes as u64),
            bytes: (self.places(file).into_iter())
                .map(|(m, share)| (NodeId(m as u32), (share * self.files[file].bytes) as u64))
                .collect(),
            writes: Some(if self.writes_spread { Writes::Spread } else { Writes::Follow }),
            movable: Some(self.files_move),
            readers,
            ..ObservedFile::default()
        });
        let copying = self.files.iter().enumerate().filter_map(|(file, f)| {
            let (to, left) = f.moving?;
            Some(Outcome {
                subject: Subject::File(testing::file(file as u64)),
                from: NodeId(f.node as u32),
                to: NodeId(to as u32),
                result: OutcomeState::Running { bytes: f.bytes as u64, done: (f.bytes - left) as u64 },
            })
        });
        let processes = self.threads.iter().map(|t| Process {
            pid: t.pid,
            resident: [(NodeId(t.node as u32), self.memory)].into_iter().collect(),
            ..Process::default()
        });
        let mut processes: Vec<Process> = processes.collect();
        processes.dedup_by_key(|p| p.pid);
        Snapshot {
            version: 2,
            time_s: self.time_s,
            window_s: 1.0,
            nodes,
            threads,
            files: files.collect(),
            processes,
            outcomes: copying.collect(),
            notes: Vec::new(),
            ..Snapshot::default()
        }
    }

    /// Runs one window: observe, decide, move. Returns the plan and the bytes served.
    pub fn step(&mut self, policy: &mut dyn Policy) -> (Plan, f64) {
        self.window += 1;
        self.time_s += 1.0;
        let rates = self.rates();
        let snapshot = self.observe(&rates);
        let plan = policy.decide(&snapshot.topology(), &snapshot);
        for mv in &plan.moves {
            self.apply(mv);
        }
        let mut left = self.copy_bw;
        for f in &mut self.files {
            if let Some((to, bytes)) = &mut f.moving {
                let now = bytes.min(left);
                (*bytes, left) = (*bytes - now, left - now);
                if *bytes < 1.0 {
                    (f.node, f.moving) = (*to, None);
                }
            }
        }
        (plan, rates.total())
    }

    fn apply(&mut self, mv: &Move) {
        self.moves.push((self.window, mv.clone()));
        let (from, to) = (mv.from, mv.to);
        match &mv.subject {
            Subject::Thread(ThreadId { tid, .. }) => {
                let t = self.threads.iter_mut().find(|t| t.tid == *tid).unwrap();
                assert!(!t.pinned, "{mv:?}");
                assert_eq!(t.node, from.0 as usize, "{mv:?}");
                assert!(self.nodes[to.0 as usize].cpus > 0.0, "{mv:?}");
                t.node = to.0 as usize;
            }
            Subject::Process(ProcessId { pid, .. }) => {
                for t in self.threads.iter_mut().filter(|t| t.pid == *pid) {
                    assert!(!t.pinned, "{mv:?}");
                    t.node = to.0 as usize;
                }
            }
            Subject::File(file) if self.files_move => {
                let f = &mut self.files[file.ino as usize];
                if f.node != to.0 as usize && f.moving.is_none() {
                    f.moving = Some((to.0 as usize, f.bytes));
                }
            }
            Subject::File(_) => {}
        }
    }

    /// Runs this many windows; returns bytes/s at the end.
    pub fn run(&mut self, policy: &mut dyn Policy, windows: u32) -> f64 {
        for _ in 0..windows {
            self.step(policy);
        }
        self.rates().total()
    }

    /// The best bytes/s of all placements of the threads, with the data in place.
    pub fn best(&self) -> f64 {
        let seats: Vec<usize> = (0..self.nodes.len()).filter(|n| self.nodes[*n].cpus > 0.0).collect();
        let mut toy = self.clone();
        let mut best = 0.0f64;
        for mut code in 0..seats.len().pow(self.threads.len() as u32) {
            for (t, before) in toy.threads.iter_mut().zip(&self.threads) {
                t.node = if before.pinned { before.node } else { seats[code % seats.len()] };
                code /= seats.len();
            }
            best = best.max(toy.rates().total());
        }
        best
    }
}
