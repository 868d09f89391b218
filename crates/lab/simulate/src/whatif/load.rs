//! Turns a snapshot into programs: their reads and writes, and where everything starts.

use std::collections::BTreeMap;

use placement::{NodeBytes, Snapshot, Thread};
use topology::{FileId, NodeId, Topology};

use crate::filesystem::FileSystem;
use crate::machine::Machine;
use crate::workload::{FileSet, Job, Operation, Part, Place, Role};
use crate::world::{Launch, Shares, Start, World, add};

/// Rounds of a thread in one second.
const ROUNDS_PER_S: f64 = 1000.0;
/// Seconds of a round, as recorded.
pub(super) const CYCLE_S: f64 = 1.0 / ROUNDS_PER_S;
/// Bytes of a read call where the snapshot does not say.
const CALL: f64 = 65536.0;
/// Bytes of a process whose memory was not looked at.
const PROCESS: f64 = 16e6;

/// Programs with their places on one machine.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// One per process, in the order of their pids.
    pub launches: Vec<Launch>,
    /// Node of each thread, in the order in which a world numbers them; none: where the kernel puts
    /// it.
    seats: Vec<Option<usize>>,
    /// Whether each has an affinity of its own.
    bound: Vec<bool>,
    /// Memory of each process.
    resident: Vec<Shares>,
}

/// The snapshot's machine, with room for all that was in its memory when `memory_free` was what was
/// left.
pub(super) fn roomy(snapshot: &Snapshot) -> Topology {
    let mut topology = snapshot.topology();
    let all: u64 = snapshot
        .files
        .iter()
        .map(|f| &f.bytes)
        .chain(snapshot.processes.iter().map(|p| &p.resident))
        .chain(snapshot.threads.iter().flat_map(|t| [&t.read_bytes, &t.write_bytes]))
        .fold(0, |sum, bytes| sum.saturating_add(bytes.total()));
    for node in &mut topology.nodes {
        node.memory_bytes = node.memory_bytes.saturating_add(all).max(1 << 30);
    }
    topology
}

/// A file, or what a thread touched without a file's id, which is a file of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Data {
    File(FileId),
    Unnamed(u32),
}

impl Data {
    fn name(self) -> String {
        match self {
            Self::File(id) => id.to_string().replace(':', "-"),
            Self::Unnamed(tid) => format!("files of thread {tid}"),
        }
    }
}

/// A file, as far as all threads together tell.
#[derive(Default)]
struct Known {
    /// Bytes, by source node, in proportion to which it is read.
    shares: BTreeMap<NodeId, f64>,
    size: f64,
    /// Job and file set that have it.
    owner: Option<(usize, usize)>,
}

/// From nodes of the recorded machine to indices of another one.
struct Map<'a> {
    source: &'a Machine,
    homes: Vec<usize>,
    seats: Vec<usize>,
    /// Whether threads keep their nodes.
    keeps: bool,
}

impl<'a> Map<'a> {
    fn new(source: &'a Machine, target: &Machine) -> Self {
        let (homes, seats): (Vec<_>, Vec<_>) = (target.homes().collect(), target.seats().collect());
        let keeps = seats.len() == source.seats().count();
        Self { source, homes, seats, keeps }
    }

    /// The place of the i-th of some nodes among others, from the first again where there are
    /// fewer.
    fn ith(&self, node: NodeId, from: impl Iterator<Item = usize>, to: &[usize]) -> usize {
        let index = self.source.index(node);
        let i = from.into_iter().position(|n| Some(n) == index).unwrap_or(0);
        to.get(i % to.len().max(1)).copied().unwrap_or(0)
    }

    fn home(&self, node: NodeId) -> usize {
        self.ith(node, self.source.homes(), &self.homes)
    }

    fn seat(&self, node: NodeId) -> usize {
        self.ith(node, self.source.seats(), &self.seats)
    }
}

impl Load {
    /// The snapshot's load, recorded on `source`, on `target`.
    pub fn of(snapshot: &Snapshot, source: &Machine, target: &Machine) -> Self {
        let map = Map::new(source, target);
        let nodes = target.nodes().len();
        let mut known = files(snapshot);
        let mut load = Self { launches: Vec::new(), seats: Vec::new(), bound: Vec::new(), resident: Vec::new() };
        let mut processes: BTreeMap<u32, Vec<&Thread>> = BTreeMap::new();
        for thread in snapshot.threads.iter().filter(|t| t.cpu_s > 0.0 || t.file_bytes() > 0) {
            processes.entry(thread.pid).or_default().push(thread);
        }
        for (pid, threads) in processes {
            let job = load.launches.len();
            let mut sets: Vec<FileSet> = Vec::new();
            let mut of_file: BTreeMap<Data, usize> = BTreeMap::new();
            let mut roles = Vec::new();
            for thread in &threads {
                let op = operation(thread, snapshot.window_s, |data| {
                    *of_file.entry(data).or_insert_with(|| {
                        let file = known.entry(data).or_default();
                        let place = match file.owner {
                            Some((job, set)) => Place::Same(job, set),
                            None => Place::Shares(file.on(&map, nodes)),
                        };
                        file.owner.get_or_insert((job, sets.len()));
                        sets.push(FileSet::new(data.name(), file.size, place));
                        sets.len() - 1
                    })
                });
                let comm = if thread.comm.is_empty() { format!("thread {}", thread.tid) } else { thread.comm.clone() };
                roles.push(Role { comm, threads: 1, op, counts: true, limit: None });
                let pinned = thread.pinned.is_some();
                load.bound.push(pinned);
                load.seats.push((pinned || map.keeps).then(|| map.seat(thread.node)));
            }
            let resident = snapshot.processes.iter().find(|p| p.pid == pid).map(|p| &p.resident);
            let resident = on_homes(resident, &map, load.seats.last().copied().flatten(), target);
            let leader = threads.iter().find(|t| t.tid == pid).or(threads.first()).map_or("", |t| t.comm.as_str());
            let job = Job {
                name: if leader.is_empty() { format!("process {pid}") } else { format!("{leader} ({pid})") },
                fs: FileSystem::PageCache,
                device: map.homes.first().copied().unwrap_or(0),
                roles,
                files: sets,
                process_bytes: resident.iter().map(|s| s.1).sum(),
                start_s: 0.0,
            };
            load.launches.push(Launch { job, start: Start::Kernel });
            load.resident.push(resident);
        }
        load
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.seats.len()
    }

    /// Bytes of files and processes.
    pub fn bytes(&self) -> f64 {
        let files = self.launches.iter().flat_map(|l| &l.job.files).filter(|f| !matches!(f.place, Place::Same(..)));
        files.map(|f| f.size).sum::<f64>() + self.launches.iter().map(|l| l.job.process_bytes).sum::<f64>()
    }

    /// File bytes that a round of every thread reads and writes.
    pub fn bytes_per_round(&self) -> Vec<f64> {
        let roles = self.launches.iter().flat_map(|l| &l.job.roles);
        roles.map(|r| r.op.parts.iter().map(|p| p.read + p.write).sum()).collect()
    }

    /// Sets what a round of every thread costs: seconds of CPU, seconds asleep.
    pub fn set_costs(&mut self, costs: &[(f64, f64)]) {
        let roles = self.launches.iter_mut().flat_map(|l| &mut l.job.roles);
        for (role, (cpu_s, off_s)) in roles.zip(costs) {
            (role.op.cpu_s, role.op.off_s) = (*cpu_s, *off_s);
        }
    }

    /// Puts threads and processes of a world that has just been started with this load where they
    /// belong.
    pub fn place(&self, world: &mut World) {
        for (thread, (seat, bound)) in self.seats.iter().zip(&self.bound).enumerate() {
            if let Some(node) = seat {
                world.seat_recorded(thread, *node, *bound);
            }
        }
        for (process, resident) in self.resident.iter().enumerate() {
            world.set_resident(process, resident.clone());
        }
    }
}

impl Known {
    /// Its shares by index of the other machine.
    fn on(&self, map: &Map<'_>, nodes: usize) -> Vec<f64> {
        let mut shares = vec![0.0; nodes];
        let all: f64 = self.shares.values().sum();
        for (node, bytes) in &self.shares {
            shares[map.home(*node)] += bytes / all;
        }
        shares
    }
}

fn files(snapshot: &Snapshot) -> BTreeMap<Data, Known> {
    let mut known: BTreeMap<Data, Known> = BTreeMap::new();
    let mut see = |data: Data, bytes: &NodeBytes| {
        let file = known.entry(data).or_default();
        bytes.iter().for_each(|(node, bytes)| *file.shares.entry(node).or_default() += bytes as f64);
    };
    for thread in &snapshot.threads {
        for used in &thread.files {
            see(Data::File(used.file), &used.read_bytes);
        }
        if thread.files.is_empty() {
            see(Data::Unnamed(thread.tid), &thread.read_bytes);
            if thread.read_bytes.is_empty() {
                see(Data::Unnamed(thread.tid), &thread.write_bytes);
            }
        }
    }
    for file in &snapshot.files {
        let known = known.entry(Data::File(file.file)).or_default();
        known.size = file.bytes.total() as f64;
        if known.shares.values().all(|b| *b == 0.0) {
            known.shares = file.bytes.iter().map(|(n, b)| (n, b as f64)).collect();
        }
    }
    // A file without reads or counted bytes is where it was written.
    for thread in &snapshot.threads {
        for used in &thread.files {
            if let Some(file) = known.get_mut(&Data::File(used.file)).filter(|f| f.shares.values().all(|b| *b == 0.0)) {
                file.shares = used.write_bytes.iter().map(|(n, b)| (n, b as f64)).collect();
            }
        }
    }
    for file in known.values_mut() {
        file.shares.retain(|_, bytes| *bytes > 0.0);
        if file.shares.is_empty() {
            let first = snapshot.nodes.first().map_or(NodeId(0), |n| n.id);
            file.shares.insert(first, 1.0);
        }
        let seen: f64 = file.shares.values().sum();
        file.size = if file.size > 0.0 { file.size } else { seen.max(1.0) };
    }
    known
}

/// One round of a thread; `set` gives the number of a file in its process.
fn operation(thread: &Thread, window_s: f64, mut set: impl FnMut(Data) -> usize) -> Operation {
    let rounds = window_s * ROUNDS_PER_S;
    let mut parts = Vec::new();
    let mut part = |files: usize, read: u64, write: u64, call: Option<u64>, sequential: Option<bool>| {
        if read > 0 || write > 0 {
            parts.push(Part {
                files,
                read: read as f64 / rounds,
                write: write as f64 / rounds,
                own: 0.0,
                call: call.map_or(CALL, |c| c.max(1) as f64),
                sequential: sequential.unwrap_or(false),
                picks: 0.0,
            });
        }
    };
    for used in &thread.files {
        let (read, write) = (used.read_bytes.total(), used.write_bytes.total());
        part(set(Data::File(used.file)), read, write, used.read_size, used.sequential);
    }
    if thread.files.is_empty() {
        part(set(Data::Unnamed(thread.tid)), thread.read_bytes.total(), thread.write_bytes.total(), None, None);
    }
    let cpu_s = (thread.cpu_s / rounds).clamp(0.0, CYCLE_S);
    // Waiting for a CPU is the model's to say; what it does not explain the fit turns into sleep.
    let off_s = (CYCLE_S - cpu_s - thread.wait_s.unwrap_or(0.0) / rounds).max(0.0);
    Operation { cpu_s, off_s, counted: 1.0, parts, ..Operation::default() }
}

/// A process's memory on the other machine; one that was not looked at is where its last thread
/// starts, or on the first node.
fn on_homes(resident: Option<&NodeBytes>, map: &Map<'_>, seat: Option<usize>, target: &Machine) -> Shares {
    let mut shares = Shares::new();
    for (node, bytes) in resident.into_iter().flat_map(NodeBytes::iter) {
        add(&mut shares, map.home(node), bytes as f64);
    }
    if shares.is_empty() {
        add(&mut shares, target.nearest_home(seat.unwrap_or(0)), PROCESS);
    }
    shares
}
