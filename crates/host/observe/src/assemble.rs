//! Turns what the programs counted into what a window showed. Pure.
//!
//! **Problem.** Bytes come per (thread, file, node) and times per thread; some threads have ended,
//! some ids are reused.
//!
//! **Approach.** Entries are sorted by thread and joined with the pass over all tasks by id *and*
//! start time. Node totals include every entry; only threads that still exist and are in scope are
//! listed.
//!
//! **Limits.** Of more than [`MOST_FILES`] files, those with the fewest bytes are not listed; their
//! bytes count for threads and nodes. A thread that ended within the window is not listed: it
//! cannot be moved. What it touched is, by its control group and node, as is what a listed thread
//! touched before it was moved to another group.

use std::collections::BTreeMap;

use linux::threads::as_shown;
use placement::rules::Does;
use placement::{FileUse, NodeBytes, ObservedFile, Thread};
use rustc_hash::{FxHashMap, FxHashSet};
use topology::{CpuSet, FileId, NodeId, Topology};

use super::groups::Groups;
use super::records::intf::{NO_NODE, WEIGHT_ONE};
use super::records::{Key, Pass, Task, Usage};
use super::scope::{Filter, Ruling};
use super::slices::Slices;

use super::types::{FileSeen, ObservedThread};

/// Most files of a window that are listed. Naming a file takes a microsecond and half a kilobyte or
/// so, and of so many hardly one has enough bytes to decide where a thread belongs.
pub(super) const MOST_FILES: usize = 16_384;

#[derive(Debug)]
pub(super) struct Places {
    node_of_cpu: Vec<Option<NodeId>>,
    nodes: Vec<NodeId>,
}

impl Places {
    pub fn knows(&self, node: u32) -> bool {
        self.nodes.binary_search(&NodeId(node)).is_ok()
    }

    pub fn new(topology: &Topology) -> Self {
        let mut node_of_cpu = Vec::new();
        for node in &topology.nodes {
            for cpu in node.cpus.iter().chain(node.offline_cpus.iter()) {
                let cpu = cpu as usize;
                if node_of_cpu.len() <= cpu {
                    node_of_cpu.resize(cpu + 1, None);
                }
                if let Some(place) = node_of_cpu.get_mut(cpu) {
                    *place = Some(node.id);
                }
            }
        }
        Self { node_of_cpu, nodes: topology.nodes.iter().map(|n| n.id).collect() }
    }

    pub fn node_of(&self, cpu: u32) -> Option<NodeId> {
        self.node_of_cpu.get(cpu as usize).copied().flatten()
    }
}

/// How threads in scope touched one file.
#[derive(Debug, Default)]
struct Touched {
    readers: Vec<u32>,
    bytes: u64,
    opens: u32,
    generation: u32,
}

impl Touched {
    fn add(&mut self, tid: u32, entries: &[(Key, Usage)]) {
        self.readers.push(tid);
        for (_, usage) in entries {
            self.bytes = self.bytes.saturating_add(bytes(usage.read)).saturating_add(bytes(usage.written));
            self.opens = usage.fewer_opens(self.opens);
            self.generation = usage.generation;
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Assembled {
    pub threads: Vec<ObservedThread>,
    pub ended: Vec<Thread>,
    pub files: Vec<FileSeen>,
    pub node_cpu_s: BTreeMap<NodeId, f64>,
    pub node_read: NodeBytes,
    pub node_write: NodeBytes,
    pub handed_bytes: u64,
    /// Bytes on nodes that the machine does not have.
    pub odd_node_bytes: u64,
    /// Bytes of DAX files whose node is not known.
    pub no_node_bytes: u64,
    /// Files that are not listed.
    pub unlisted: usize,
}

/// Of entries for all files of a thread that had no room.
const NO_FILE: FileId = FileId { dev: 0, ino: 0, generation: 0 };

pub(super) fn assemble(
    pass: &Pass,
    mut entries: Vec<(Key, Usage)>,
    filter: &Filter,
    groups: &mut Groups,
    places: &Places,
    exited_cpu_ns: &[u64],
) -> Assembled {
    let mut out = Assembled::default();
    entries.sort_unstable_by_key(|e| e.0.order());
    totals(&entries, places, &mut out);
    cpu_totals(pass, places, exited_cpu_ns, &mut out);

    let (shared, unlisted) = sort_files(&entries, MOST_FILES);
    out.unlisted = unlisted.len();
    let mut readers: BTreeMap<FileId, Touched> = BTreeMap::new();
    let mut masks = Masks::default();
    let mut tasks: Vec<(&Task, Ruling)> = pass.tasks.iter().map(|task| (task, filter.of(task))).collect();
    tasks.retain(|(_, ruling)| ruling.does != Does::Ignore);
    tasks.sort_unstable_by_key(|(task, _)| task.tid);
    let mut listed = FxHashSet::default();
    for (task, ruling) in tasks {
        // A thread on a CPU that the topology does not know (plugged in since) has no known node.
        let Some(node) = places.node_of(task.cpu) else { continue };
        let own = entries_of(&entries, task);
        // The pass also shows those that ran before the window.
        if task.cpu_ns == 0 && own.is_empty() {
            continue;
        }
        let mut thread = Thread {
            tid: task.tid,
            pid: task.tgid,
            comm: task.comm(),
            // In whole ticks, as procfs has it: one name for a thread in snapshots and in undo
            // records.
            start_ns: Some(as_shown(task.start_ns)),
            process_start_ns: task.process().start_ns(),
            group: groups.path(task.cgroup_id),
            rule: ruling.rule,
            only_observed: ruling.does == Does::Observe,
            node,
            cpu_s: task.cpu_ns as f64 / 1e9,
            wait_s: Some(task.wait_ns as f64 / 1e9),
            remote_read_bytes: Some(0),
            ..Thread::default()
        };
        for file in own.chunk_by(|a, b| a.0.file() == b.0.file()) {
            let Some((first, _)) = file.first() else { continue };
            let id = first.file();
            let mut used = add_bytes(&mut thread, file);
            // A thread that only hands a file on does not read it.
            if id == NO_FILE || !file.iter().any(|(_, usage)| usage.touched()) {
                continue;
            }
            thread.shares_file |= shared.contains(&id);
            if unlisted.is_empty() || !unlisted.contains(&id) {
                used.file = id;
                thread.files.push(used);
                readers.entry(id).or_default().add(task.tid, file);
            }
        }
        listed.insert(task.owner());
        let (mask, allowed) = masks.of(pass.mask(task), places);
        thread.allowed_nodes = allowed;
        out.threads.push(ObservedThread { thread, mask, asked: task.asked(), kernel_thread: task.kernel_thread() });
    }
    entries.retain(|(key, usage)| key.tid != 0 && !listed.contains(&key.owner()) && places.knows(usage.here));
    let touched = entries.iter().filter(|(_, usage)| usage.touched());
    let others: FxHashSet<FileId> = touched.map(|(key, _)| key.file()).collect();
    out.ended = ended(entries, filter, groups, &unlisted);
    out.files = readers
        .into_iter()
        .map(|(id, touched)| FileSeen {
            id: FileId { generation: touched.generation, ..id },
            bytes: touched.bytes,
            file: ObservedFile {
                file: id,
                opens: (touched.opens > 0).then_some(touched.opens),
                readers: touched.readers,
                touched_by_others: others.contains(&id),
                ..ObservedFile::default()
            },
        })
        .collect();
    out
}

/// What is of no listed thread, by the control group and node where it was counted.
fn ended(
    mut entries: Vec<(Key, Usage)>,
    filter: &Filter,
    groups: &mut Groups,
    unlisted: &FxHashSet<FileId>,
) -> Vec<Thread> {
    let place = |(key, usage): &(Key, Usage)| (key.group, usage.here);
    entries.sort_unstable_by_key(|entry| (place(entry), entry.0.dev, entry.0.ino));
    let mut all = Vec::new();
    for entries in entries.chunk_by(|a, b| place(a) == place(b)) {
        let Some((key, usage)) = entries.first() else { continue };
        let Some(group) = groups.path(key.group).filter(|group| filter.has(group)) else { continue };
        let mut thread = Thread { group: Some(group), node: NodeId(usage.here), ..Thread::default() };
        thread.remote_read_bytes = Some(0);
        for file in entries.chunk_by(|a, b| a.0.file() == b.0.file()) {
            let mut used = add_bytes(&mut thread, file);
            used.file = file.first().map_or(NO_FILE, |(key, _)| key.file());
            if used.file != NO_FILE && used.file_bytes() > 0 && !unlisted.contains(&used.file) {
                thread.files.push(used);
            }
        }
        if thread.file_bytes() > 0 || !thread.handed_bytes.is_empty() {
            all.push(thread);
        }
    }
    all
}

/// CPU times are read some time after the end of a window, and how long after differs: on a busy
/// machine this thread waits for a CPU, too. `scale` is the length of the window over the time
/// between the readings.
pub(super) fn of_window(tasks: &mut [Task], exited_cpu_ns: &mut [u64], scale: f64) {
    if !scale.is_finite() {
        return;
    }
    let times = tasks.iter_mut().map(|task| &mut task.record).flat_map(|task| [&mut task.cpu_ns, &mut task.wait_ns]);
    times.chain(exited_cpu_ns).for_each(|ns| *ns = (*ns as f64 * scale).round() as u64);
}

/// Adds what slices stand for to what each thread read.
pub(super) fn unslice(slices: &Slices, pass: &Pass, entries: &mut [(Key, Usage)]) {
    if !slices.sliced() {
        entries.iter_mut().for_each(|(_, usage)| usage.unslice(1.0));
        return;
    }
    let cpu_ns: FxHashMap<(u32, u32), u64> = pass.tasks.iter().map(|task| (task.key(), task.cpu_ns)).collect();
    entries.sort_unstable_by_key(|e| e.0.order());
    for thread in entries.chunk_by_mut(|a, b| a.0.thread() == b.0.thread()) {
        let Some((key, _)) = thread.first() else { continue };
        let cpu_s = cpu_ns.get(&key.thread()).copied().unwrap_or(0) as f64 / 1e9;
        let reads = thread.iter().map(|(_, usage)| usage.sliced_reads).sum::<i64>() as f64 / f64::from(WEIGHT_ONE);
        let scale = slices.scale(reads, cpu_s);
        thread.iter_mut().for_each(|(_, usage)| usage.unslice(scale));
    }
}

/// Counts what was read from and written to DAX files that the kernel told no node for where they
/// are, as far as it is known. Returns these files.
pub(super) fn place(
    entries: &mut [(Key, Usage)],
    located: &FxHashMap<FileId, NodeId>,
    pass: &Pass,
    places: &Places,
) -> FxHashSet<FileId> {
    let mut files = FxHashSet::default();
    if entries.iter().all(|(key, _)| key.node != NO_NODE) {
        return files;
    }
    let cpus: FxHashMap<_, _> = pass.tasks.iter().map(|task| (task.key(), task.cpu)).collect();
    for (key, usage) in entries.iter_mut().filter(|(key, _)| key.node == NO_NODE) {
        let file = key.file();
        files.insert(file);
        let Some(node) = located.get(&file) else { continue };
        let here = cpus.get(&key.thread()).and_then(|cpu| places.node_of(*cpu));
        key.node = node.0;
        usage.remote = if here == Some(*node) { 0 } else { usage.read };
    }
    files
}

/// A sum can be negative when a window ends between a count and its correction.
fn bytes(n: i64) -> u64 {
    n.max(0) as u64
}

fn totals(entries: &[(Key, Usage)], places: &Places, out: &mut Assembled) {
    for (key, usage) in entries {
        let node = NodeId(key.node);
        if !places.knows(key.node) {
            let sum = if key.node == NO_NODE { &mut out.no_node_bytes } else { &mut out.odd_node_bytes };
            *sum = sum.saturating_add(bytes(usage.read).saturating_add(bytes(usage.written)));
            continue;
        }
        out.handed_bytes = out.handed_bytes.saturating_add(bytes(usage.handed));
        for (total, n) in [(&mut out.node_read, usage.read), (&mut out.node_write, usage.written)] {
            if n > 0 {
                total.add(node, bytes(n));
            }
        }
    }
}

fn cpu_totals(pass: &Pass, places: &Places, exited_cpu_ns: &[u64], out: &mut Assembled) {
    let exited = exited_cpu_ns.iter().enumerate().map(|(cpu, ns)| (cpu as u32, *ns));
    for (cpu, ns) in pass.tasks.iter().map(|task| (task.cpu, task.cpu_ns)).chain(exited) {
        if let Some(node) = places.node_of(cpu) {
            *out.node_cpu_s.entry(node).or_default() += ns as f64 / 1e9;
        }
    }
}

/// The entries of one thread in its control group, without those of an earlier thread with its id.
fn entries_of<'a>(entries: &'a [(Key, Usage)], task: &Task) -> &'a [(Key, Usage)] {
    let owner = task.owner();
    let from = entries.partition_point(|(key, _)| key.owner() < owner);
    let rest = entries.get(from..).unwrap_or_default();
    let len = rest.iter().take_while(|(key, _)| key.owner() == owner).count();
    rest.get(..len).unwrap_or_default()
}

/// Files that several threads touched, whether in scope or not; and of more than `most` files those
/// with the fewest bytes.
fn sort_files(entries: &[(Key, Usage)], most: usize) -> (FxHashSet<FileId>, FxHashSet<FileId>) {
    let mut first: FxHashMap<FileId, ((u32, u32), u64)> = FxHashMap::default();
    let mut shared = FxHashSet::default();
    let named = |(key, usage): &&(Key, Usage)| key.tid != 0 && key.file() != NO_FILE && usage.touched();
    for (key, usage) in entries.iter().filter(named) {
        let (thread, file) = (key.thread(), key.file());
        let (by, sum) = first.entry(file).or_insert((thread, 0));
        *sum = sum.saturating_add(bytes(usage.read)).saturating_add(bytes(usage.written));
        if *by != thread {
            shared.insert(file);
        }
    }
    if first.len() <= most {
        return (shared, FxHashSet::default());
    }
    let mut files: Vec<(u64, FileId)> = first.into_iter().map(|(file, (_, bytes))| (bytes, file)).collect();
    files.select_nth_unstable_by(most, |a, b| b.cmp(a));
    (shared, files.split_off(most).into_iter().map(|(_, file)| file).collect())
}

/// Adds what a thread read from and wrote to one file, and returns that for the file, which has no
/// name yet.
fn add_bytes(thread: &mut Thread, entries: &[(Key, Usage)]) -> FileUse {
    let (read_size, sequential) = calls(entries);
    let mut used = FileUse { read_size, sequential, ..FileUse::default() };
    for (key, usage) in entries.iter().filter(|(key, _)| key.node != NO_NODE) {
        let node = NodeId(key.node);
        if usage.read > 0 {
            used.read_bytes.add(node, bytes(usage.read));
            thread.read_bytes.add(node, bytes(usage.read));
        }
        if usage.written > 0 {
            used.write_bytes.add(node, bytes(usage.written));
            thread.write_bytes.add(node, bytes(usage.written));
        }
        if usage.handed > 0 {
            thread.handed_bytes.add(node, bytes(usage.handed));
        }
        let remote = thread.remote_read_bytes.unwrap_or(0);
        thread.remote_read_bytes = Some(remote.saturating_add(bytes(usage.remote.min(usage.read))));
    }
    used
}

/// Mean bytes per read call, and whether most calls began where the last one ended, as far as that
/// is known for half of them.
fn calls(entries: &[(Key, Usage)]) -> (Option<u64>, Option<bool>) {
    let sum = |of: fn(&Usage) -> i64| entries.iter().map(|(_, usage)| of(usage)).sum::<i64>();
    let (calls, placed, called) = (sum(|u| u.calls), sum(|u| u.placed), sum(|u| u.called));
    // In 1/1024ths.
    if calls < i64::from(WEIGHT_ONE) || called <= 0 {
        return (None, None);
    }
    let mean = (called as f64 * f64::from(WEIGHT_ONE) / calls as f64).round() as u64;
    (Some(mean), (2 * placed >= calls).then(|| 2 * sum(|u| u.continued) > placed))
}

/// Affinities: most threads share a few values.
#[derive(Default)]
struct Masks(FxHashMap<Vec<u64>, (CpuSet, Vec<NodeId>)>);

impl Masks {
    fn of(&mut self, words: &[u64], places: &Places) -> (CpuSet, Vec<NodeId>) {
        if let Some(known) = self.0.get(words) {
            return known.clone();
        }
        let bits = |(i, word): (usize, &u64)| {
            let word = *word;
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| i as u32 * 64 + bit)
        };
        let mask: CpuSet = words.iter().enumerate().flat_map(bits).collect();
        let mut nodes: Vec<NodeId> = mask.iter().filter_map(|cpu| places.node_of(cpu)).collect();
        nodes.sort_unstable();
        nodes.dedup();
        self.0.insert(words.to_vec(), (mask.clone(), nodes.clone()));
        (mask, nodes)
    }
}

#[cfg(test)]
mod tests {
    use crate::records::intf::task_record;
    use placement::rules::{Of, Pattern, Rule, Rules};
    use std::path::Path;

    use super::*;
    use crate::types::Scope;
    use linux::threads::Threads;
    use topology::Node;

    /// Two nodes of two CPUs: 0 and 1 on node 0, 2 and 3 on node 8.
    fn places() -> Places {
        let node = |id: u32, cpus: &str| Node::new(NodeId(id), cpus.parse().unwrap(), 1 << 30);
        Places::new(&[node(0, "0-1"), node(8, "2-3")].into_iter().collect())
    }

    fn pass(tasks: &[(u32, u32, u64)]) -> Pass {
        let tasks: Vec<Task> = tasks
            .iter()
            .copied()
            .map(|(tid, cpu, start_ns)| Task {
                record: task_record { tid, tgid: tid, cpu, start_ns, cpu_ns: 500_000_000, ..task_record::default() },
                mask: 0..1,
            })
            .collect();
        Pass { tasks, masks: vec![0b1101], cut: false }
    }

    fn entry(tid: u32, start_ns: u64, ino: u64, node: u32, read: i64, written: i64) -> (Key, Usage) {
        let start_lo = (start_ns >> 16) as u32;
        let remote = if node == 8 { read } else { 0 };
        (Key { tid, start_lo, dev: DEV, ino, node, group: 0 }, Usage { read, remote, written, ..Usage::default() })
    }

    fn all(pass: &Pass, entries: Vec<(Key, Usage)>) -> Assembled {
        assemble(pass, entries, &everything(), &mut no_groups(), &places(), &[])
    }

    fn below(group: &str) -> Filter {
        let of = Of { groups: vec![Pattern::new(group).unwrap()], ..Of::default() };
        let rules = Rules { list: vec![Rule { name: group.into(), of, does: Does::Move }], rest: Does::Ignore };
        Filter::new(&Scope::Ruled(rules), Path::new("/proc")).unwrap()
    }

    fn everything() -> Filter {
        Filter::new(&Scope::default(), Path::new("/proc")).unwrap()
    }

    fn no_groups() -> Groups {
        Groups::new(Path::new("/nowhere"))
    }

    const DEV: u32 = 8 << 20 | 1;
    fn file(ino: u64) -> FileId {
        FileId { dev: DEV, ino, generation: 0 }
    }

    const EARLY: u64 = 1 << 30;
    const LATE: u64 = 1 << 40;

    #[test]
    fn bytes_count_for_the_thread_its_files_and_the_nodes() {
        let entries =
            vec![entry(7, EARLY, 2, 8, 4096, 0), entry(7, EARLY, 1, 0, 100, 50), entry(7, EARLY, 1, 8, 200, 0)];
        let out = all(&pass(&[(7, 1, EARLY)]), entries);
        let thread = &out.threads[0].thread;
        assert_eq!((thread.node, thread.remote_read_bytes, thread.cpu_s), (NodeId(0), Some(4296), 0.5));
        assert_eq!((thread.read_bytes.get(NodeId(0)), thread.read_bytes.get(NodeId(8))), (100, 4296));
        assert_eq!(thread.write_bytes.get(NodeId(0)), 50);
        assert_eq!(thread.files.iter().map(|f| f.file).collect::<Vec<_>>(), [file(1), file(2)]);
        assert_eq!((out.node_read.get(NodeId(8)), out.node_write.get(NodeId(0))), (4296, 50));
        // Mask 0b1101: CPUs 0, 2, 3.
        assert_eq!(out.threads[0].mask, "0,2-3".parse().unwrap());
        assert_eq!(thread.allowed_nodes, [NodeId(0), NodeId(8)]);
    }

    #[test]
    fn a_reused_tid_does_not_inherit_bytes() {
        let out = all(&pass(&[(7, 0, LATE)]), vec![entry(7, EARLY, 1, 0, 100, 0), entry(7, LATE, 2, 0, 5, 0)]);
        assert_eq!(out.threads[0].thread.read_bytes.total(), 5);
        assert_eq!(out.node_read.total(), 105);
    }

    /// Thread 7 is in group 2 at the end of the window, and was in group 1 before; 9 and 10 have
    /// ended, 11 is of a group that nobody knows.
    #[test]
    fn what_is_of_no_listed_thread_counts_by_group_and_node() {
        let of = |tid, group, here, (key, usage): (Key, Usage)| (Key { tid, group, ..key }, Usage { here, ..usage });
        let read = |node, bytes| entry(7, EARLY, 1, node, bytes, 0);
        let entries = || {
            vec![
                of(7, 1, 0, read(0, 1)),
                of(7, 2, 0, read(0, 20)),
                of(9, 2, 0, read(8, 300)),
                of(10, 2, 0, entry(10, EARLY, 2, 0, 4000, 50)),
                of(10, 2, 8, read(8, 60_000)),
                of(11, 3, 0, read(0, 700_000)),
                of(0, 0, 0, read(0, 8_000_000)),
            ]
        };
        let mut pass = pass(&[(7, 0, EARLY)]);
        (pass.tasks[0].cgroup_id, pass.tasks[0].process_cgroup_id) = (2, 2);
        let of_scope = |mut filter: Filter| {
            let mut groups = no_groups();
            groups.window(Ok((vec![(1, Some("/a".to_owned())), (2, Some("/a/b".to_owned()))], false)));
            filter.learn(&pass.tasks, &mut groups);
            let out = assemble(&pass, entries(), &filter, &mut groups, &places(), &[]);
            let thread = &out.threads[0].thread;
            assert_eq!((thread.group.as_deref(), thread.read_bytes.total()), (Some("/a/b"), 20));
            let ended = out.ended.iter().map(|of| {
                let files: Vec<u64> = of.files.iter().map(FileUse::file_bytes).collect();
                (of.group.clone().unwrap().to_string(), of.node.0, of.read_bytes.total(), of.remote_bytes(), files)
            });
            ended.collect::<Vec<_>>()
        };
        let before = ("/a".to_owned(), 0, 1, 0, vec![1]);
        let there = ("/a/b".to_owned(), 0, 4300, 300, vec![300, 4050]);
        let away = ("/a/b".to_owned(), 8, 60_000, 60_000, vec![60_000]);
        assert_eq!(of_scope(everything()), [before, there.clone(), away.clone()]);
        assert_eq!(of_scope(below("/a/b")), [there, away]);
    }

    #[test]
    fn a_file_is_shared_also_with_threads_that_ended_or_are_out_of_scope() {
        let entries = vec![entry(7, EARLY, 1, 0, 1, 0), entry(9, EARLY, 1, 0, 1, 0), entry(7, EARLY, 2, 0, 1, 0)];
        assert!(all(&pass(&[(7, 0, EARLY)]), entries).threads[0].thread.shares_file);
        let alone = vec![entry(7, EARLY, 1, 0, 1, 0), entry(7, EARLY, 1, 8, 1, 0), entry(0, 0, 1, 0, 1, 0)];
        assert!(!all(&pass(&[(7, 0, EARLY)]), alone).threads[0].thread.shares_file);
    }

    /// Homenode itself does, to find out where a file is.
    #[test]
    fn a_file_that_somebody_opens_for_a_moment_is_not_open_twice() {
        let with = |tid, node, opens| {
            let (key, usage) = entry(tid, EARLY, 1, node, 1, 0);
            (key, Usage { opens, ..usage })
        };
        let opens = |entries| all(&pass(&[(7, 0, EARLY), (9, 0, EARLY)]), entries).files[0].file.opens;
        assert_eq!(opens(vec![with(7, 0, 2), with(7, 8, 1), with(9, 0, 2)]), Some(1));
        assert_eq!(opens(vec![with(7, 0, 2), with(7, 8, 0), with(9, 0, 3)]), Some(2));
        assert_eq!(opens(vec![with(7, 0, 0)]), None);
        let mut twice = with(7, 0, 2).1;
        twice.add(with(7, 0, 1).1);
        assert_eq!(twice.opens, 1);
    }

    #[test]
    fn of_too_many_files_those_with_the_most_bytes_are_listed_and_all_count() {
        // One file more than are listed. The last has two readers, and the most bytes of all.
        let files = MOST_FILES as u64 + 1;
        let mut entries: Vec<_> = (1..=files).map(|ino| entry(7, EARLY, ino, 0, 10 + i64::from(ino != 5), 0)).collect();
        entries.push(entry(9, EARLY, files, 0, 1, 0));
        let out = all(&pass(&[(7, 0, EARLY), (9, 0, EARLY)]), entries);
        let (one, two) = (&out.threads[0].thread, &out.threads[1].thread);
        assert_eq!((out.files.len(), one.files.len(), out.unlisted), (MOST_FILES, MOST_FILES, 1));
        assert!(out.files.iter().all(|file| file.id.ino != 5) && one.files.iter().all(|file| file.file.ino != 5));
        assert_eq!((one.read_bytes.total(), two.files.len()), (11 * files - 1, 1));
        assert!(one.shares_file && two.shares_file);
    }

    #[test]
    fn read_calls_have_a_size_and_an_order() {
        // One file on two nodes: three calls of 4,096 bytes, of which two begin where the last one
        // ended; 40 bytes by faults.
        let usage = |sliced, calls, placed, continued| {
            let mut usage = Usage { sliced, calls, placed, continued, read: 20, ..Usage::default() };
            usage.unslice(1.0);
            usage
        };
        let key = |node| Key { tid: 7, node, ..Key::default() };
        let of = |entries: &[(Key, Usage)]| super::calls(entries);
        let both = [(key(0), usage(8192, 2048, 2048, 2048)), (key(8), usage(4096, 1024, 1024, 0))];
        assert_eq!(of(&both), (Some(4096), Some(true)));
        // Scaled alike.
        let mut half = Usage { sliced: 8192, calls: 2048, placed: 2048, continued: 1024, ..Usage::default() };
        half.unslice(3.0);
        assert_eq!((half.calls, of(&[(key(0), half)])), (6144, (Some(4096), Some(false))));
        // Of less than half of the calls the beginning is known.
        assert_eq!(of(&[(key(0), usage(8192, 2048, 1023, 1023))]), (Some(4096), None));
        // Faults are no calls; tmpfs has calls outside the slices.
        assert_eq!(of(&[(key(0), usage(0, 0, 0, 0))]), (None, None));
        let mut tmpfs = Usage { read: 300, called: 300, calls: 3072, ..Usage::default() };
        tmpfs.unslice(2.0);
        assert_eq!(of(&[(key(0), tmpfs)]), (Some(100), None));
    }

    /// A sender of files at 455 MB/s, with 8 % of a CPU, would have been moved.
    #[test]
    fn what_is_handed_on_counts_apart_and_makes_nobody_a_reader() {
        let handed = |tid, ino, node, bytes| {
            let (key, usage) = entry(tid, EARLY, ino, node, 0, 0);
            (key, Usage { handed: bytes, ..usage })
        };
        let entries = vec![
            entry(7, EARLY, 1, 0, 10, 0),
            handed(7, 1, 8, 20),
            handed(8, 1, 8, 300),
            handed(8, 2, 0, 4),
            handed(8, 2, 8, -1),
        ];
        let out = all(&pass(&[(7, 0, EARLY), (8, 0, EARLY)]), entries);
        let of = |i: usize| {
            let thread = &out.threads[i].thread;
            let handed = [NodeId(0), NodeId(8)].map(|node| thread.handed_bytes.get(node));
            (thread.file_bytes(), handed, thread.files.len(), thread.shares_file)
        };
        assert_eq!((of(0), of(1)), ((10, [0, 20], 1, false), (0, [4, 300], 0, false)));
        assert_eq!((out.node_read.total(), out.handed_bytes), (10, 324));
        assert_eq!(out.files.iter().map(|f| (f.id, f.bytes)).collect::<Vec<_>>(), [(file(1), 10)]);
        let mut sliced = Usage { handed: 100, ..Usage::default() };
        sliced.unslice(1.5);
        assert_eq!(sliced.handed, 150);
    }

    #[test]
    fn a_late_correction_makes_no_sum_negative() {
        let out = all(&pass(&[(7, 0, EARLY)]), vec![entry(7, EARLY, 1, 8, -4096, 0), entry(7, EARLY, 2, 0, 10, 0)]);
        assert_eq!((out.threads[0].thread.read_bytes.total(), out.node_read.total()), (10, 10));
        assert_eq!(out.threads[0].thread.remote_read_bytes, Some(0));
    }

    #[test]
    fn bytes_on_a_missing_node_are_counted_apart() {
        let out = all(&pass(&[]), vec![entry(7, EARLY, 1, 3, 100, 7), entry(7, EARLY, 1, 0, 1, 0)]);
        assert_eq!((out.odd_node_bytes, out.node_read.total()), (107, 1));
    }

    #[test]
    fn a_dax_file_that_the_kernel_told_no_node_for_counts_where_it_is() {
        let pass = pass(&[(7, 0, EARLY)]);
        let mut entries = vec![
            entry(7, EARLY, 1, NO_NODE, 400, 40),
            entry(7, EARLY, 2, NO_NODE, 5, 0),
            entry(7, EARLY, 3, 8, 10, 0),
            entry(7, EARLY, 4, NO_NODE, 50, 0),
        ];
        let located = FxHashMap::from_iter([(file(1), NodeId(8)), (file(4), NodeId(0))]);
        let files = place(&mut entries, &located, &pass, &places());
        assert_eq!(files, FxHashSet::from_iter([file(1), file(2), file(4)]));
        let out = all(&pass, entries);
        let thread = &out.threads[0].thread;
        // The thread runs on node 0.
        assert_eq!((thread.read_bytes.get(NodeId(0)), thread.read_bytes.get(NodeId(8))), (50, 410));
        assert_eq!((thread.write_bytes.get(NodeId(0)), thread.write_bytes.get(NodeId(8))), (0, 40));
        assert_eq!((thread.remote_read_bytes, out.node_read.total()), (Some(410), 460));
        // Of the second, nothing is known yet. It is listed, so that somebody looks where it is.
        assert_eq!((out.no_node_bytes, out.odd_node_bytes, out.files.len()), (5, 0, 4));
        assert!(out.files.iter().any(|of| (of.id, of.bytes) == (file(2), 5)));
        let mut none = vec![entry(7, EARLY, 3, 8, 10, 0)];
        assert!(place(&mut none, &located, &pass, &places()).is_empty() && none[0].0.node == 8);
    }

    /// `top` showed nodes that were 124 % busy: threads were read later after the second window's
    /// end than after the first one's.
    #[test]
    fn cpu_time_is_that_of_the_window_whenever_it_was_read() {
        let mut pass = pass(&[(7, 0, EARLY), (8, 1, EARLY)]);
        pass.tasks.iter_mut().for_each(|task| (task.cpu_ns, task.wait_ns) = (1_250_000_000, 250_000_000));
        let mut exited = [0, 0, 0, 625_000_000];
        // Two windows of 1 s, of which the threads were read 1.25 s apart.
        of_window(&mut pass.tasks, &mut exited, 1.0 / 1.25);
        let out = assemble(&pass, Vec::new(), &everything(), &mut no_groups(), &places(), &exited);
        let threads: Vec<_> = out.threads.iter().map(|t| (t.thread.cpu_s, t.thread.wait_s)).collect();
        assert_eq!(threads, [(1.0, Some(0.2)); 2]);
        assert_eq!(out.node_cpu_s.values().sum::<f64>(), 2.5);
        // Two readings at once tell nothing.
        of_window(&mut pass.tasks, &mut exited, f64::INFINITY);
        assert_eq!(exited[3], 500_000_000);
    }

    #[test]
    fn node_cpu_time_includes_threads_that_ended_or_are_out_of_scope() {
        let pid = std::process::id();
        let mut filter = Filter::new(&Scope::of(&[pid], Path::new("/proc")).unwrap(), Path::new("/proc")).unwrap();
        let mut pass = pass(&[(pid, 0, EARLY), (pid + 1, 3, EARLY)]);
        pass.tasks[0].leader_start_ns = Threads::new(Path::new("/proc")).started(pid).unwrap();
        filter.learn(&pass.tasks, &mut no_groups());
        let out =
            assemble(&pass, Vec::new(), &filter, &mut no_groups(), &places(), &[0, 250_000_000, 0, 1_000_000_000]);
        assert_eq!(out.node_cpu_s, BTreeMap::from([(NodeId(0), 0.75), (NodeId(8), 1.5)]));
        assert_eq!(out.threads.iter().map(|t| t.thread.tid).collect::<Vec<_>>(), [pid]);
    }
}
