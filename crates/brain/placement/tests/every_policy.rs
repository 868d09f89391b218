//! Properties that hold for every policy, on random workloads with files and processes.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{Case, Size, case, file};
use placement::{
    FileUse, MappedMemory, Move, NodeBytes, ObservedFile, POLICIES, Plan, Policy, Process, Snapshot, Subject, nthread,
    policy,
};
use proptest::prelude::*;
use proptest::test_runner::Config;
use topology::{NodeId, ProcessId, ThreadId, Topology};

const ANY: Size = Size { nodes: 4, threads: 9, odd_nodes: true };

fn names() -> Vec<&'static str> {
    POLICIES.iter().map(|p| p.0).collect()
}

fn new(name: &str) -> Box<dyn Policy> {
    policy(name, &nthread::Settings::default()).unwrap()
}

/// How the threads of a case use files, as bits of one number each.
#[derive(Clone, Copy, Debug)]
struct Files {
    /// Threads per file.
    sharing: usize,
    file_mb: u64,
    read_size: u64,
    sequential: bool,
    threads_per_process: usize,
    process_mb: u64,
    mapped: bool,
}

fn files() -> impl Strategy<Value = Files> {
    (
        1..4usize,
        prop::sample::select(vec![1, 300, 2_000, 40_000]),
        any::<bool>(),
        any::<bool>(),
        1..4usize,
        any::<bool>(),
    )
        .prop_map(|(sharing, file_mb, large, sequential, threads_per_process, mapped)| Files {
            sharing,
            file_mb,
            read_size: if large { 1 << 20 } else { 4096 },
            sequential,
            threads_per_process,
            process_mb: file_mb / 7 + 1,
            mapped,
        })
}

/// The case with matching files, processes and mapped memory.
fn complete(case: &Case, f: Files) -> Snapshot {
    let mut s = case.snapshot.clone();
    for node in &mut s.nodes {
        node.memory_free = 1 << 38;
    }
    for (i, t) in s.threads.iter_mut().enumerate() {
        t.pid = 1000 + (i / f.threads_per_process) as u32;
        t.files = vec![FileUse {
            file: file((i / f.sharing) as u64),
            read_bytes: t.read_bytes.clone(),
            write_bytes: t.write_bytes.clone(),
            read_size: Some(f.read_size),
            sequential: Some(f.sequential),
        }];
        t.shares_file = false;
    }
    let n = s.threads.len();
    for i in 0..n {
        let file = i / f.sharing;
        s.threads[i].shares_file = (0..n).any(|j| j != i && j / f.sharing == file);
    }
    for file in 0..n.div_ceil(f.sharing) {
        let users = || (0..n).filter(|i| i / f.sharing == file);
        let mut bytes = NodeBytes::default();
        let read: u64 = users().map(|i| s.threads[i].read_bytes.total()).sum();
        for i in users() {
            for (node, b) in s.threads[i].read_bytes.iter() {
                bytes.add(node, (f.file_mb as f64 * 1e6 * b as f64 / read as f64) as u64);
            }
        }
        s.files.push(ObservedFile {
            file: common::file(file as u64),
            size: Some(f.file_mb * 1_000_000),
            bytes,
            readers: users().map(|i| s.threads[i].tid).collect(),
            ..ObservedFile::default()
        });
    }
    for p in 0..n.div_ceil(f.threads_per_process) {
        let first = &s.threads[p * f.threads_per_process];
        let mapped = MappedMemory {
            node: s.nodes[p % s.nodes.len()].id,
            hot_bytes: 50_000_000,
            cold_bytes: 9,
            touched_bytes: None,
        };
        s.processes.push(Process {
            pid: 1000 + p as u32,
            resident: [(first.node, f.process_mb * 1_000_000)].into_iter().collect(),
            mapped: if f.mapped { vec![mapped] } else { vec![] },
            ..Process::default()
        });
    }
    s
}

/// The window after a plan whose moves are made at once: threads, processes and data are where it
/// put them, and continue as before.
fn next(topology: &Topology, before: &Snapshot, plan: &Plan) -> Snapshot {
    let mut s = before.clone();
    s.time_s += s.window_s;
    for mv in &plan.moves {
        let (from, to) = (mv.from, mv.to);
        match &mv.subject {
            Subject::Thread(ThreadId { tid, .. }) => s = seat(topology, &s, *tid, to),
            Subject::Process(ProcessId { pid, .. }) => {
                let tids: Vec<u32> =
                    s.threads.iter().filter(|t| t.pid == *pid && t.node != to).map(|t| t.tid).collect();
                for tid in tids {
                    s = seat(topology, &s, tid, to);
                }
                for p in s.processes.iter_mut().filter(|p| p.pid == *pid) {
                    p.resident = [(to, p.resident.total())].into_iter().collect();
                }
            }
            Subject::File(file) => {
                for f in s.files.iter_mut().filter(|f| f.file == *file) {
                    f.bytes = shifted(&f.bytes, from, to);
                }
                for t in &mut s.threads {
                    for used in t.files.iter_mut().filter(|u| u.file == *file) {
                        used.read_bytes = shifted(&used.read_bytes, from, to);
                        t.read_bytes = used.read_bytes.clone();
                    }
                }
            }
        }
    }
    for node in &mut s.nodes {
        let unlisted = |s: &Snapshot| {
            node.read_bytes - s.threads.iter().map(|t| t.read_bytes.get(node.id)).sum::<u64>().min(node.read_bytes)
        };
        node.read_bytes = unlisted(before) + s.threads.iter().map(|t| t.read_bytes.get(node.id)).sum::<u64>();
    }
    s
}

fn seat(topology: &Topology, s: &Snapshot, tid: u32, to: NodeId) -> Snapshot {
    let t = s.threads.iter().find(|t| t.tid == tid).unwrap();
    if t.node == to {
        return s.clone();
    }
    let mv = Move::thread(t, to, placement::Reason::ReadLocality, "");
    let mut next = common::next_window(topology, s, &Plan { moves: vec![mv], ..Plan::default() });
    for t in &mut next.threads {
        t.files[0].write_bytes = t.write_bytes.clone();
    }
    next
}

fn shifted(bytes: &NodeBytes, from: NodeId, to: NodeId) -> NodeBytes {
    bytes.iter().map(|(node, b)| (if node == from { to } else { node }, b)).collect()
}

fn check(topology: &Topology, s: &Snapshot, plan: &Plan) -> Result<(), TestCaseError> {
    let free = |t: &placement::Thread, to: NodeId| {
        prop_assert!(t.pinned.is_none(), "{} is pinned", t.tid);
        prop_assert!(t.allowed_nodes.contains(&to), "{} may not run on {to}", t.tid);
        prop_assert!(!topology.node(to).unwrap().cpus.is_empty(), "node {to} has no CPUs");
        Ok(())
    };
    for mv in &plan.moves {
        let (from, to) = (mv.from, mv.to);
        prop_assert!(!mv.why.text().is_empty());
        match &mv.subject {
            Subject::Thread(ThreadId { tid, .. }) => {
                let t = s.threads.iter().find(|t| t.tid == *tid).unwrap();
                prop_assert_eq!((t.pid, t.node, Subject::thread(t)), (mv.pid, from, mv.subject));
                prop_assert!(from != to);
                free(t, to)?;
            }
            Subject::Process(ProcessId { pid, .. }) => {
                prop_assert!(topology.node(from).is_some());
                for t in s.threads.iter().filter(|t| t.pid == *pid) {
                    free(t, to)?;
                }
            }
            Subject::File(file) => {
                let f = s.files.iter().find(|f| f.file == *file).unwrap();
                prop_assert!(from != to && topology.node(to).is_some());
                prop_assert!(f.bytes.get(from) > 0, "{file} has nothing on {from}");
            }
        }
    }
    prop_assert!(!serde_json::to_string(plan).unwrap().contains("NaN"));
    if let Some(p) = &plan.predicted {
        let fractions =
            p.nodes.iter().flat_map(|n| [n.controller_before, n.controller_after, n.cpu_before, n.cpu_after]);
        for f in fractions.chain([p.remote_share_before, p.remote_share_after]).flatten() {
            prop_assert!(f.is_finite() && f >= 0.0, "{p:?}");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(Config { cases: 300, failure_persistence: None, ..Config::default() })]

    #[test]
    fn plans_are_valid_and_the_same_for_the_same_windows(case in case(ANY), f in files(), name in prop::sample::select(names())) {
        let mut s = complete(&case, f);
        prop_assert!(s.validate().is_ok(), "{:?}", s.validate());
        let (mut a, mut b) = (new(name), new(name));
        for _ in 0..12 {
            let plan = a.decide(&case.topology, &s);
            prop_assert_eq!(&plan, &b.decide(&case.topology, &s));
            prop_assert_eq!(&plan.policy, name);
            check(&case.topology, &s, &plan)?;
            s = next(&case.topology, &s, &plan);
        }
    }

    #[test]
    fn moves_stop_when_the_load_stays(case in case(ANY), f in files(), name in prop::sample::select(names())) {
        let mut s = complete(&case, f);
        s.time_s = 100.0;
        let mut policy = new(name);
        let mut made = Vec::new();
        for window in 1..=60 {
            let plan = policy.decide(&case.topology, &s);
            let late = match name {
                // N-Policy decides every 10 s.
                "npolicy" => window > (12.0 / s.window_s) as u32,
                // These wait for late evidence: that a file is read again, that a load lasts.
                "dragonfly" | "arc-guarded" => false,
                _ => window > 10,
            };
            made.extend(plan.moves.iter().map(|mv| (window, mv.clone())));
            prop_assert!(!late || plan.moves.is_empty(), "{:#?}", made);
            s = next(&case.topology, &s, &plan);
        }
        // No thread starts or ends.
        for (_, mv) in &made {
            let same = |other: &Move| {
                mv.subject == other.subject && (!mv.subject.is_file() || mv.from == other.from)
            };
            prop_assert!(made.iter().filter(|(_, other)| same(other)).count() <= 3, "{made:#?}");
        }
    }

    #[test]
    fn no_file_moves_back_within_two_minutes(case in case(ANY), f in files(), name in prop::sample::select(names())) {
        let mut s = complete(&case, f);
        let mut policy = new(name);
        let mut left = std::collections::BTreeSet::new();
        for _ in 0..120 {
            let plan = policy.decide(&case.topology, &s);
            for mv in &plan.moves {
                if mv.subject.is_file() {
                    prop_assert!(!left.contains(&(mv.subject, mv.to)), "{mv:?} goes back");
                    left.insert((mv.subject, mv.from));
                }
            }
            s = next(&case.topology, &s, &plan);
        }
    }

    #[test]
    fn invalid_snapshots_do_no_harm(
        case in case(ANY), f in files(),
        wild in prop::sample::select(vec![f64::NAN, f64::INFINITY, -1.0, 0.0, f64::MIN_POSITIVE, 1e300, f64::MAX]), what in 0..11,
    ) {
        let mut s = complete(&case, f);
        let huge = || [(NodeId(0), u64::MAX), (NodeId(1), u64::MAX), (NodeId(999), 7)].into_iter().collect::<NodeBytes>();
        match what {
            0 => s.window_s = wild,
            1 => s.time_s = wild,
            2 => s.threads.iter_mut().for_each(|t| t.cpu_s = wild),
            3 => s.threads.iter_mut().for_each(|t| (t.read_bytes, t.files[0].read_bytes) = (huge(), huge())),
            4 => s.threads.iter_mut().for_each(|t| t.allowed_nodes = vec![NodeId(999)]),
            5 => s.nodes.iter_mut().for_each(|n| (n.cpu_s, n.read_bw_max) = (Some(wild), Some(wild))),
            6 => s.files.iter_mut().for_each(|f| (f.bytes, f.size) = (huge(), Some(0))),
            7 => s.processes.iter_mut().for_each(|p| p.resident = huge()),
            8 => s.nodes.iter_mut().for_each(|n| n.memory_free = u64::MAX),
            9 => s.processes.iter_mut().flat_map(|p| &mut p.mapped).for_each(|m| m.hot_bytes = u64::MAX),
            _ => s.threads.iter_mut().for_each(|t| t.node = NodeId(999)),
        }
        // NThread's own loads are tested with their own extremes.
        let mut policies: Vec<_> = names().into_iter().map(new).collect();
        for _ in 0..8 {
            for policy in &mut policies {
                let plan = policy.decide(&case.topology, &s);
                prop_assert!(plan.moves.iter().all(|mv| case.topology.node(mv.to).is_some()), "{:?}", plan);
            }
            s.time_s += 1.0;
        }
    }
}

#[test]
fn empty_snapshots_and_single_nodes_are_valid_input() {
    for name in names() {
        let mut policy = new(name);
        assert_eq!(policy.name(), name);
        for topology in
            [Topology::default(), Snapshot { nodes: vec![common::node(0, 4)], ..Snapshot::default() }.topology()]
        {
            for s in [
                Snapshot::default(),
                common::snapshot(vec![common::node(0, 4)], vec![common::thread(1, 0, &[(0, 500)], 9)]),
            ] {
                for _ in 0..12 {
                    assert!(policy.decide(&topology, &s).moves.is_empty(), "{name}");
                }
            }
        }
    }
}
