//! A load runs as recorded on the machine where it was recorded, and differently on
//! another one.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::Plane;
use placement::{NodeBytes, Snapshot};
use simulate::whatif::WhatIfError;
use simulate::{ScenarioFile, SimulatedPlane, WhatIf, random};
use topology::{NodeId, Topology};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../topology/tests/fixtures").join(name)
}

fn machine(name: &str) -> Topology {
    topology::sysfs::read(&fixture(name)).unwrap()
}

/// The third window of a scenario, with nobody deciding, through JSON as a recording would have it.
fn record(file: &ScenarioFile) -> (Snapshot, Topology) {
    let mut plane = SimulatedPlane::start(&file.scenario, file.seed);
    for _ in 0..2 {
        plane.observe(Duration::from_secs(1)).unwrap();
    }
    let snapshot = plane.observe(Duration::from_secs(1)).unwrap();
    (Snapshot::from_json(&snapshot.to_json().unwrap()).unwrap(), plane.topology().clone())
}

fn scenario(text: &str) -> ScenarioFile {
    ScenarioFile::parse(text, &fixture("x.toml")).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn load(extra: &str) -> ScenarioFile {
    scenario(&format!(
        "duration_s = 10\n[machine]\ntopology = \"two-sockets\"\n\
         [[workload]]\nname = \"db\"\nkind = \"readrandom\"\nthreads = 6\nkeys = 1000000\nvalue = \"4 KiB\"\ndata = 1\n\
         [[workload]]\nname = \"copy\"\nkind = \"fio\"\nthreads = 2\nblock = \"1 MiB\"\nread = 0.5\nfile_size = \"2 GiB\"\ndata = 0\n{extra}"
    ))
}

fn close(a: f64, b: f64, within: f64) -> bool {
    (a / b - 1.0).abs() <= within
}

#[test]
fn on_the_same_machine_the_observed_throughput_comes_out_again() {
    let (snapshot, machine) = record(&load(""));
    let whatif = WhatIf::new(&snapshot, machine, "again").unwrap();
    let recorded = whatif.recorded();
    assert!(close(recorded.fit, 1.0, 0.001), "{recorded:?}");
    let again = whatif.run(None, 1, |_| {}).unwrap();
    assert!(close(again.bytes_per_s(), recorded.read_bw + recorded.write_bw, 0.02), "{recorded:?}");
    assert!(close(again.remote_share.unwrap(), recorded.remote_share.unwrap(), 0.02), "{recorded:?}");
    for (workload, threads) in again.workloads.iter().zip([0..6, 6..8]) {
        let bytes: u64 = snapshot.threads[threads].iter().map(placement::Thread::file_bytes).sum();
        assert!(close(workload.read_bw + workload.write_bw, bytes as f64, 0.02), "{workload:?}");
    }
}

#[test]
fn waiting_for_a_cpu_is_not_taken_for_sleep() {
    // Three times as many threads as CPUs: what they waited there for, they wait for again.
    let (snapshot, machine) = record(&scenario(
        "duration_s = 10\n[machine]\nnodes = 2\ncpus = 4\nmemory = \"16 GiB\"\n\
         [[workload]]\nkind = \"fio\"\nthreads = 24\nblock = \"64 KiB\"\nfile_size = \"256 MiB\"\ndata = 0\n",
    ));
    assert!(snapshot.threads.iter().all(|t| t.wait_s.unwrap() > 0.5));
    let on = |machine: Topology| {
        let whatif = WhatIf::new(&snapshot, machine, "again").unwrap();
        whatif.run(None, 1, |_| {}).unwrap().bytes_per_s() / whatif.recorded().read_bw
    };
    assert!(close(on(machine.clone()), 1.0, 0.02), "{}", on(machine));
    // Enough CPUs for all: three times as much, were it not for the remote half of them.
    let mut large = machine;
    large.nodes.iter_mut().zip([0..16, 16..32]).for_each(|(n, cpus)| n.cpus = cpus.collect());
    assert!(on(large.clone()) > 2.0, "{}", on(large));
}

/// Random loads of kinds that a snapshot can tell: one copy of every file, nothing mapped, nothing
/// that changes by being written.
#[test]
fn random_loads_come_out_again_on_their_machine() {
    let mut seen = 0;
    for index in 0..60 {
        let text = random::text(5, index);
        if !["homenode", "mapped", "nova", "fillseq", "simpleread"]
            .iter()
            .all(|word| !text.contains(&format!("\"{word}")))
        {
            continue;
        }
        let (snapshot, machine) = record(&scenario(&text));
        let whatif = WhatIf::new(&snapshot, machine, "again").unwrap();
        let recorded = whatif.recorded();
        let again = whatif.run(None, 1, |_| {}).unwrap();
        let observed = recorded.read_bw + recorded.write_bw;
        assert!(
            close(again.bytes_per_s(), observed * recorded.fit, 0.05),
            "{text}\n{recorded:?} {}",
            again.bytes_per_s()
        );
        assert!(close(recorded.fit, 1.0, 0.05), "{text}\n{recorded:?}");
        seen += 1;
    }
    assert!(seen >= 5, "{seen}");
}

#[test]
fn a_policy_gains_there_what_it_would_have_gained_here() {
    let file = load("start = 1\n");
    let (snapshot, machine) = record(&file);
    let whatif = WhatIf::new(&snapshot, machine, "again").unwrap();
    let policy = |name| placement::policy(name, &file.nthread);
    let real = simulate::run(&file.scenario, policy("nthread"), file.seed).unwrap();
    let guessed = whatif.run(policy("nthread"), 1, |_| {}).unwrap();
    assert!(real.moves.threads > 0 && guessed.moves.threads == real.moves.threads, "{:?}", guessed.moves);
    let last =
        |o: &simulate::Outcome| o.windows.last().unwrap().nodes.iter().map(|n| n.read_bw + n.write_bw).sum::<f64>();
    // The get's software is a hundredth of its reads, which fill a controller: what a thread waits
    // for and what it does are hard to tell apart.
    assert!(close(last(&guessed), last(&real), 0.08), "{} {}", last(&guessed), last(&real));
}

#[test]
fn another_machine_has_its_own_nodes() {
    let (snapshot, _) = record(&load(""));
    // Data of the second node with memory goes to the second, whatever its number.
    let sparse = WhatIf::new(&snapshot, machine("sparse-ids"), "there").unwrap();
    let outcome = sparse.run(None, 1, |_| {}).unwrap();
    let nodes: Vec<NodeId> = outcome.windows[0].nodes.iter().map(|n| n.node).collect();
    assert_eq!(nodes, [NodeId(0), NodeId(8)]);
    assert!(outcome.windows[0].nodes.iter().all(|n| n.read_bw > 0.0));
    // One node has it all, and nothing is remote.
    let one = WhatIf::new(&snapshot, machine("one-node"), "there").unwrap().run(None, 1, |_| {}).unwrap();
    assert_eq!((one.windows[0].nodes.len(), one.remote_share), (1, Some(0.0)));
    // On more nodes the kernel spreads the threads: the seed matters.
    let many = WhatIf::new(&snapshot, machine("epyc-nps4"), "there").unwrap();
    let shares: std::collections::BTreeSet<String> =
        (0..8).map(|seed| format!("{:?}", many.run(None, seed, |_| {}).unwrap().remote_share)).collect();
    assert!(shares.len() > 1);
}

#[test]
fn a_thread_that_must_not_be_moved_is_not_moved_there_either() {
    let (mut snapshot, machine) = record(&load("start = 1\n"));
    let free = WhatIf::new(&snapshot, machine.clone(), "free").unwrap();
    let moved =
        |w: &WhatIf| w.run(placement::policy("nthread-rl", &Default::default()), 1, |_| {}).unwrap().moves.threads;
    assert!(moved(&free) > 0);
    snapshot.threads.iter_mut().for_each(|t| t.pinned = Some("has an affinity of its own: 0-3".to_owned()));
    assert_eq!(moved(&WhatIf::new(&snapshot, machine, "held").unwrap()), 0);
}

#[test]
fn what_two_processes_share_is_one_file_there() {
    let (mut snapshot, machine) = record(&scenario(
        "duration_s = 10\n[machine]\ntopology = \"two-sockets\"\n\
         [[workload]]\nkind = \"fio\"\nthreads = 2\nblock = \"1 MiB\"\nfile_size = \"2 GiB\"\nshared = true\ndata = 0\n",
    ));
    let second = snapshot.threads[1].tid;
    snapshot.threads[1].pid = second;
    let whatif = WhatIf::new(&snapshot, machine, "shared").unwrap();
    let mut plane = whatif.plane(1);
    let seen = plane.observe(Duration::from_secs(1)).unwrap();
    assert_eq!((seen.files.len(), seen.files[0].readers.len()), (1, 2));
    assert!(seen.threads.iter().all(|t| t.shares_file) && seen.threads[0].pid != seen.threads[1].pid);
}

#[test]
fn what_is_no_load_is_refused() {
    let (snapshot, machine) = record(&load(""));
    let refused = |snapshot: &Snapshot, machine: &Topology| WhatIf::new(snapshot, machine.clone(), "x").unwrap_err();
    let mut empty = snapshot.clone();
    empty.threads.clear();
    assert!(matches!(refused(&empty, &machine), WhatIfError::Nothing));
    let mut timeless = snapshot.clone();
    timeless.window_s = 0.0;
    assert!(refused(&timeless, &machine).to_string().contains("window_s"));
    let mut no_cpus = machine.clone();
    no_cpus.nodes.iter_mut().for_each(|n| n.cpus = Default::default());
    assert!(refused(&snapshot, &no_cpus).to_string().contains("no CPUs"));
    let mut small = machine.clone();
    small.nodes.iter_mut().for_each(|n| n.memory_bytes = 1 << 20);
    assert!(matches!(refused(&snapshot, &small), WhatIfError::Memory { .. }));
    // Without files' names, and without anything but bytes, it is still a load.
    let mut bare = snapshot.clone();
    (bare.files, bare.processes) = (Vec::new(), Vec::new());
    for thread in &mut bare.threads {
        thread.files = Vec::new();
        thread.write_bytes = NodeBytes::default();
    }
    let bare = WhatIf::new(&bare, machine, "bare").unwrap();
    assert!(close(bare.run(None, 1, |_| {}).unwrap().bytes_per_s(), bare.recorded().read_bw, 0.05));
}
