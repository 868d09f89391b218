//! Memory of a host by node and touch, and the engine on it.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use engine::{Copies, JobState, Plane, PlaneError, Subject};
use laboratory::experiment::{Case, Experiment, FIGURES, Outcome};
use laboratory::host::{Heat, Host, Kernel, Kind, Memory, Moving};
use laboratory::host_plane::HostPlane;
use laboratory::loads::programs::{FileSpec, Program, Programs, RECORD, Share};
use laboratory::machine::{Build, Machine};
use laboratory::report::Results;
use memory_model::Profile;
use memory_model::figures::DRAM_COPY_S;
use placement::{Move, Reason};
use topology::{NodeId, Topology};

/// Nodes with two cores and so many bytes each.
fn topology(nodes: u32, bytes: u64) -> Topology {
    let profile = Profile { scale: 1.0, ..Profile::named("dram").unwrap() };
    profile.topology(&(0..2 * nodes).collect(), nodes, bytes)
}

fn host(bytes: u64, kernel: Kernel) -> Host {
    let profile = Profile { scale: 1.0, ..Profile::named("dram").unwrap() };
    let (topology, memory) = (topology(2, bytes), vec![profile.memory; 2]);
    Host::new(Arc::new(Machine::new(Build { topology, memory, link_bw: 40e9, slice_s: 3e-3, seed: 1 })), kernel, 1)
}

/// Three nodes of four pages each.
#[test]
fn pages_come_by_first_touch_spill_to_the_nearest_and_give_way_as_in_this_table() {
    let mut memory = Memory::new(&topology(3, 4 * 4096));
    let file = memory.add(Kind::PageCache, 32 * 4096, 4096, 0);
    let own = memory.add(Kind::Own, 32 * 4096, 4096, 0);
    // Object, pages, node of the toucher, where they are then.
    let table: [(usize, &[usize], usize, &[usize]); 5] = [
        (file, &[0, 1, 2], 0, &[0, 0, 0]), // at the toucher
        (file, &[0, 1], 2, &[0, 0]),       // and they stay there
        (file, &[3, 4], 1, &[1, 1]),
        (own, &[0, 1, 2], 0, &[0, 1, 1]), // one page was left: the next ones on the nearest node with room
        (own, &[3, 4, 5, 6], 2, &[2; 4]),
    ];
    for (object, pages, by, wanted) in table {
        let on: Vec<usize> = pages.iter().map(|page| memory.touch(object, *page, by).0).collect();
        assert_eq!(on, wanted, "pages {pages:?} of {object}, touched on {by}");
    }
    assert_eq!([0, 1, 2].map(|node| memory.free(node)), [0; 3]);
    assert_eq!(memory.resident(file), [3 * 4096, 2 * 4096, 0]);
    // All are full: the oldest page of a file on the node gives way. All have been touched, so the
    // first round takes that from them, and the second one the page that came first.
    assert_eq!(memory.touch(own, 7, 0), (0, true));
    assert_eq!(memory.object(file).unwrap().node(0), None);
    // Page 1 is touched again: page 2 goes before it.
    memory.touch(file, 1, 0);
    assert_eq!(memory.touch(file, 9, 0), (0, true));
    let nodes: Vec<_> = (0..3).map(|page| memory.object(file).unwrap().node(page)).collect();
    assert_eq!(nodes, [None, Some(0), None]);
    assert_eq!(memory.evicted(), 2 * 4096);
    // Node 2 has pages of a process only, which do not give way: the nearest node's page does.
    assert_eq!(memory.touch(own, 8, 2).0, 0);
}

#[test]
fn pages_move_where_there_is_room_and_only_those_that_the_kernel_can_move() {
    let mut memory = Memory::new(&topology(2, 2 * 4096));
    let kinds = [Kind::PageCache, Kind::Own, Kind::Arc, Kind::Persistent];
    let objects = kinds.map(|kind| memory.add(kind, 4096, 4096, 0));
    for object in &objects[..2] {
        memory.touch(*object, 0, 0);
    }
    assert_eq!(objects.map(|object| memory.move_page(object, 0, 1)), [true, true, false, false]);
    assert_eq!([memory.free(0), memory.free(1)], [2 * 4096, 0]);
    memory.touch(objects[2], 0, 0);
    // Persistent memory takes none of the nodes' frames.
    assert_eq!((memory.object(objects[3]).unwrap().node(0), memory.free(0)), (Some(0), 4096));
    let more = memory.add(Kind::Own, 4096, 4096, 0);
    memory.touch(more, 0, 0);
    assert!(!memory.move_page(more, 0, 1), "node 1 is full");
}

#[test]
fn a_page_is_hot_if_two_of_four_scans_found_it() {
    let mut memory = Memory::new(&topology(2, 1 << 20));
    let file = memory.add(Kind::Persistent, 3 * 4096, 4096, 1);
    for touched in [&[0, 1][..], &[1], &[], &[]] {
        touched.iter().for_each(|page| _ = memory.touch(file, *page, 0));
        memory.scan();
    }
    assert_eq!(memory.heat(file)[1], Heat { touched: 2 * 4096, hot: 4096, all: 3 * 4096 });
    assert_eq!(memory.heat(file)[0], Heat::default());
    memory.scan();
    assert_eq!(memory.heat(file)[1], Heat { touched: 4096, hot: 0, all: 3 * 4096 });
}

fn program(own_bytes: f64, file: FileSpec) -> Programs {
    let program = Program {
        name: "reader".into(),
        threads: 1,
        on: Some(1),
        bound: false,
        start_s: 0.0,
        own_bytes,
        block: 1 << 20,
        read: 1.0,
        random: false,
        passes: None,
        cpu_s: 0.0,
        sleep_s: 0.0,
        uses: vec![Share { file: 0, share: 1.0, random: false }],
    };
    Programs { file: vec![file], program: vec![program], disk_s: 0.0 }
}

/// Moves a process of 8 MiB, and a file: both arrive, the copy takes what NThread measured, and a
/// file in the ARC is refused.
#[test]
fn a_process_takes_its_memory_with_it_and_a_file_goes_page_by_page() {
    const BYTES: u64 = 8 << 20;
    for (moving, cache) in [(Moving::Stands, Kind::PageCache), (Moving::GoesOn, Kind::Arc)] {
        let mut host = host(1 << 30, Kernel { moving, ..Kernel::default() });
        host.end_ns = 200_000_000;
        let host = Rc::new(host);
        let (own, seen) = (Rc::clone(&host), Rc::new(RefCell::new(Vec::new())));
        let put = Rc::clone(&seen);
        clock::run(move || {
            program(BYTES as f64, FileSpec { bytes: BYTES as f64, cache, node: Some(0) }).start(&own, 1.0);
            clock::spawn(move || {
                let mut plane = HostPlane::new(Rc::clone(&own));
                let snapshot = plane.observe(Duration::from_millis(50)).unwrap();
                let (thread, file) = (snapshot.threads[0].clone(), snapshot.files[0].clone());
                assert_eq!((thread.node, thread.read_bytes.get(NodeId(1))), (NodeId(1), 0));
                assert!(thread.read_bytes.get(NodeId(0)) > 0 && thread.files[0].sequential == Some(true));
                assert_eq!(snapshot.processes[0].resident.get(NodeId(1)), BYTES);
                assert_eq!((file.bytes.get(NodeId(0)), file.movable), (BYTES, Some(cache == Kind::PageCache)));
                let subject = Subject::process(thread.pid, thread.process_start_ns);
                let mv = |subject, from, to| Move {
                    subject,
                    pid: thread.pid,
                    from: NodeId(from),
                    to: NodeId(to),
                    reason: Reason::CacheAffinity,
                    why: "of the test".into(),
                    ranges: Vec::new(),
                };
                let (went, read) = (mv(subject, 1, 0), own.done().read);
                let began = clock::now_ns();
                let undo = plane.prepare(&went).unwrap();
                plane.start(&went, &undo, &mut |_| Ok(())).unwrap();
                let mut progress = plane.poll();
                while progress[0].state == JobState::Running {
                    clock::sleep_until(clock::now_ns() + 10_000);
                    progress = plane.poll();
                }
                let took = (clock::now_ns() - began) as f64 * 1e-9;
                assert_eq!((progress[0].done, &progress[0].state), (BYTES, &JobState::Done));
                let alone = BYTES as f64 * DRAM_COPY_S;
                assert!((alone..1.05 * alone).contains(&took), "{took} s, alone {alone} s");
                // A process that stands still ends the call that it was in.
                let calls = (own.done().read - read) >> 20;
                assert!(if moving == Moving::Stands { calls <= 1 } else { calls > 10 }, "{moving:?}: {calls}");
                let snapshot = plane.observe(Duration::from_millis(20)).unwrap();
                assert_eq!(snapshot.processes[0].resident.get(NodeId(0)), BYTES);
                assert_eq!(snapshot.threads[0].node, NodeId(0));
                assert_eq!(plane.undo(&undo[0]).unwrap(), engine::Undone::Restored);
                let went = mv(Subject::file(&file), 0, 1);
                match (cache, plane.prepare(&went)) {
                    (Kind::Arc, Err(PlaneError::Refused { reason, .. })) => assert_eq!(reason, "not_supported"),
                    (Kind::PageCache, Ok(undo)) => {
                        plane.start(&went, &undo, &mut |_| Ok(())).unwrap();
                        plane.settle();
                        let snapshot = plane.observe(Duration::from_millis(1)).unwrap();
                        assert_eq!(snapshot.files[0].bytes.get(NodeId(1)), BYTES);
                    }
                    (_, other) => panic!("{cache:?}: {other:?}"),
                }
                put.borrow_mut().push(true);
            });
        })
        .unwrap();
        assert_eq!(seen.borrow().len(), 1, "the plane's task ended early");
        assert_eq!(host.memory.borrow().resident(0).iter().sum::<u64>(), BYTES / RECORD * RECORD);
    }
}

fn run(experiment: &Experiment, point: &str, series: &str) -> Outcome {
    let point = experiment.point.iter().position(|known| known.name == point).unwrap();
    let series = experiment.series.iter().position(|known| known.name == series).unwrap();
    experiment.run(Case { point, series }, 1).unwrap()
}

fn figure(name: &str) -> Experiment {
    Experiment::parse(FIGURES.iter().find(|(known, _)| *known == name).unwrap().1).unwrap()
}

/// By hand: the start, and each byte's time in the ARC's software and in the memory.
#[test]
fn simpleread_takes_what_its_bytes_take_and_task_migration_regains_the_hop() {
    let experiment = figure("thesis-8.1");
    let bytes = f64::from(1 << 30);
    let of = |hop: f64| 0.359 + bytes * (0.362e-9 + 0.15e-9 * hop) + 1074.0 * 1e-6;
    let (near, far) = (run(&experiment, "1 GB", "same node"), run(&experiment, "1 GB", "different node"));
    assert!((near.value / of(1.0) - 1.0).abs() < 0.001, "{} {}", near.value, of(1.0));
    assert!((far.value / of(108.8 / 66.8) - 1.0).abs() < 0.001, "{} {}", far.value, of(108.8 / 66.8));
    let moved = run(&experiment, "1 GB", "task migration");
    assert_eq!(moved.moves, (1, 0));
    assert!(moved.value < 1.01 * near.value, "{} {}", moved.value, near.value);
}

#[test]
fn memory_of_a_process_costs_its_move_and_numa_balancing_never_moves_the_arc() {
    let experiment = figure("thesis-8.5");
    let small = [("small, 4 GB", true), ("1 GB, 1 GB", false)];
    for (point, gains) in small {
        let [stays, moves] = ["different node", "task migration"].map(|series| run(&experiment, point, series).value);
        assert_eq!(moves < stays, gains, "{point}: {moves} {stays}");
    }
    let mut experiment = figure("thesis-6.2");
    experiment.seconds = 3.0;
    experiment.paper_seconds = 3.0;
    let [off, on] = ["different node", "different node, NUMA balancing"].map(|of| run(&experiment, "100 reads", of));
    assert_eq!(off.value, on.value);
}

#[test]
fn npolicy_moves_once_to_what_is_touched_or_hot_and_gains_most_from_writes() {
    let gain = |name: &str, point: &str| {
        let experiment = figure(name);
        let [stays, moved] = ["unmanaged", "N-Policy"].map(|series| run(&experiment, point, series));
        assert_eq!((stays.moves.0, moved.moves.0), (0, 1), "{name}, {point}");
        moved.value / stays.value
    };
    let [reads, writes, hot] =
        [gain("npolicy-3a", "2 MiB"), gain("npolicy-3b", "2 MiB"), gain("npolicy-2", "scan and cache")];
    assert!(reads > 1.05 && writes > reads && hot > 1.05, "{reads} {writes} {hot}");
}

#[test]
fn the_same_run_twice_is_the_same_to_the_byte_on_a_host_too() {
    let mut experiment = figure("npolicy-2");
    (experiment.seconds, experiment.paper_seconds, experiment.count_from) = (12.0, 12.0, 0.0);
    let case = Case { point: 0, series: 1 };
    let csv = |seed: u64| {
        let mut results = Results::default();
        results.add(case, 1, experiment.run(case, seed).unwrap());
        results.csv(&experiment)
    };
    assert_eq!(csv(1), csv(1));
    assert_ne!(csv(1), csv(2));
}

/// A thread that read 300 MB/s from node 1 with three tenths of a core does so here, and where the
/// other machine has one node only, too.
#[test]
fn a_recorded_window_moves_as_many_bytes_on_a_machine_like_its_own() {
    let window = r#"{"version": 2, "window_s": 1.0, "nodes": [{"id": 0, "cpus": [0, 1]}, {"id": 3, "cpus": [2, 3]}],
        "threads": [{"tid": 5, "pid": 5, "node": 3, "allowed_nodes": [0, 3], "pinned": "by its owner", "cpu_s": 0.3,
            "read_bytes": {"3": 300000000}, "write_bytes": {}, "files": [{"file": "0:7:1", "read_size": 65536,
            "sequential": true, "read_bytes": {"3": 300000000}, "write_bytes": {}}]}],
        "files": [{"file": "0:7:1", "bytes": {"3": 900000000}}]}"#;
    let path = std::env::temp_dir().join(format!("homenode-recorded-{}.jsonl", std::process::id()));
    std::fs::write(&path, window.replace('\n', " ")).unwrap();
    for nodes in [2, 1] {
        let text = format!(
            "paper = \"\"\nfigure = \"\"\ntitle = \"\"\nvalue = \"mb_s\"\nseconds = 10.0\npaper_seconds = 10.0\n\
             factor = 10.0\neffect = []\n[machine]\nnodes = {nodes}\ncores = 2\nmemory = \"dram\"\n[[point]]\n\
             name = \"window\"\nload = {{ kind = \"recorded\", path = \"{}\" }}\n[[series]]\nname = \"none\"\n",
            path.display()
        );
        let outcome = run(&Experiment::parse(&text).unwrap(), "window", "none");
        assert!((outcome.value / 300.0 - 1.0).abs() < 0.01, "{outcome:?}");
        assert!((outcome.cores[nodes - 1] - 0.3).abs() < 0.003, "{outcome:?}");
        let missing = Experiment::parse(&text.replace("jsonl\"", "jsonl\", window = 2")).unwrap();
        let error = missing.run(Case { point: 0, series: 0 }, 1).unwrap_err();
        assert!(error.to_string().ends_with("has no window 2"), "{error}");
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn copies_of_a_host_share_the_pace_that_the_engine_gives() {
    const RATE: f64 = 100e6;
    for copies in [1_u32, 4] {
        let bytes = u64::from(8 / copies) << 20;
        let mut host = host(1 << 30, Kernel::default());
        host.end_ns = 10_000_000_000;
        let host = Rc::new(host);
        let own = Rc::clone(&host);
        let took = clock::run(move || {
            for object in 0..copies as usize {
                let mut memory = own.memory.borrow_mut();
                memory.add(Kind::PageCache, bytes, RECORD, 0);
                (0..(bytes / RECORD) as usize).for_each(|page| _ = memory.touch(object, page, 0));
            }
            let took = Rc::new(RefCell::new(0.0));
            let put = Rc::clone(&took);
            clock::spawn(move || {
                let mut plane = HostPlane::new(own);
                plane.pace(RATE);
                for ino in 1..=u64::from(copies) {
                    let subject = Subject::File(topology::FileId { dev: 7, ino, generation: 0 });
                    let (pid, from, to, ranges) = (0, NodeId(0), NodeId(1), Vec::new());
                    let mv = Move { subject, pid, from, to, reason: Reason::OverloadedHome, why: "".into(), ranges };
                    plane.start(&mv, &[], &mut |_| Ok(())).unwrap();
                }
                plane.settle();
                *put.borrow_mut() = clock::now_ns() as f64 * 1e-9;
            });
            took
        });
        let (took, wanted) = (*took.unwrap().borrow(), f64::from(8 << 20) / RATE);
        assert!((took / wanted - 1.0).abs() < 0.05, "{copies} copies: {took} s, {wanted} s");
    }
}
