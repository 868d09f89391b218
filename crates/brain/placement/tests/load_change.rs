//! When a load is another one: `placement::load_change`.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use placement::load_change::{Changes, Detector};
use placement::testing::file;
use placement::{FileUse, NodeBytes, NodeLoad, Snapshot, Subject, Thread};
use topology::{NodeId, ProcessId, ThreadId};

/// A thread on `node` that reads so many MiB of file `ino` from nodes 0 and 1, and writes as many.
fn thread(tid: u32, node: u32, ino: u64, [read, far]: [u64; 2], written: u64) -> Thread {
    let bytes = |of: &[(u32, u64)]| of.iter().map(|(n, mib)| (NodeId(*n), mib << 20)).collect::<NodeBytes>();
    let read_bytes = bytes(&[(0, read), (1, far)]);
    let files = vec![FileUse { file: file(ino), read_bytes: read_bytes.clone(), ..FileUse::default() }];
    let (node, write_bytes) = (NodeId(node), bytes(&[(0, written)]));
    Thread { tid, pid: tid, node, cpu_s: 0.5, read_bytes, write_bytes, files, ..Thread::default() }
}

/// One that reads so many MiB from node 0.
fn reader(tid: u32, mib: u64) -> Thread {
    thread(tid, 0, 1, [mib, 0], 0)
}

fn window(detector: &mut Detector, threads: &[Thread]) -> Vec<(Subject, NodeId)> {
    let snapshot = Snapshot { window_s: 1.0, threads: threads.to_vec(), ..Snapshot::default() };
    detector.window(&snapshot, |_| true)
}

/// A load that began some windows ago.
fn begun(threads: &[Thread]) -> Detector {
    let mut detector = Detector::default();
    (0..5).for_each(|_| _ = window(&mut detector, threads));
    detector.begin();
    window(&mut detector, threads);
    assert!(!detector.changes().any());
    detector
}

/// The changes after so many windows of another load.
fn after(windows: usize, before: &[Thread], now: &[Thread]) -> Changes {
    let mut detector = begun(before);
    (0..windows).for_each(|_| _ = window(&mut detector, now));
    detector.changes()
}

const NONE: Changes = Changes { machine: false, came: 0, gone: 0, other: 0, of: 2 };

#[test]
fn threads_come_go_and_do_something_else() {
    let load = [reader(1, 100), reader(2, 100)];
    let [one, two] = load.clone();
    let with = |other: Thread| [one.clone(), other];
    assert_eq!(after(1, &load, &[one.clone(), two.clone(), reader(3, 1)]), Changes { came: 1, of: 3, ..NONE });
    assert_eq!(after(9, &load, std::slice::from_ref(&one)), NONE);
    assert_eq!(after(10, &load, std::slice::from_ref(&one)), Changes { gone: 1, ..NONE });
    let other = Changes { other: 1, ..NONE };
    assert_eq!(after(1, &load, &with(reader(2, 799))), NONE);
    assert_eq!(after(1, &load, &with(reader(2, 800))), other);
    assert_eq!(after(1, &load, &with(reader(2, 12))), other);
    assert_eq!(after(1, &load, &with(reader(2, 0))), other);
    // As much as before, but from another node, or written.
    assert_eq!(after(1, &load, &with(thread(2, 0, 1, [0, 100], 0))), other);
    assert_eq!(after(1, &load, &with(thread(2, 0, 1, [50, 0], 50))), other);
    // Half of it from elsewhere is no other node.
    assert_eq!(after(1, &load, &with(thread(2, 0, 1, [50, 50], 0))), NONE);
}

#[test]
fn little_is_like_nothing() {
    let least = |bytes: u64| Thread { read_bytes: NodeBytes::from_iter([(NodeId(0), bytes)]), ..reader(2, 0) };
    assert_eq!(after(1, &[reader(1, 100), least(9)], &[reader(1, 100), least(1 << 20)]).other, 1);
    assert_eq!(after(1, &[reader(1, 100), least(9)], &[reader(1, 100), least((1 << 20) - 1)]), NONE);
}

/// On emulated memory that is 200 times as slow, threads are as much slower.
#[test]
fn what_is_little_depends_on_the_machine() {
    let turned = |mut detector: Detector| {
        for home in [0, 0, 0, 0, 1] {
            detector.begin();
            let read_bytes = NodeBytes::from_iter([(NodeId(home), 100_000)]);
            window(&mut detector, &[Thread { read_bytes, ..reader(1, 0) }]);
        }
        detector.changes().other
    };
    assert_eq!([turned(Detector::default()), turned(Detector::new(5e3))], [0, 1]);
}

#[test]
fn what_drifts_is_no_change_and_what_grows_is_one_in_the_end() {
    let mut detector = begun(&[reader(1, 100), reader(2, 100)]);
    for share in 0..=100 {
        window(&mut detector, &[reader(1, 100), thread(2, 0, 1, [100 - share, share], 0)]);
        assert!(!detector.changes().any(), "{share} % on node 1");
    }
    window(&mut detector, &[reader(1, 100), thread(2, 0, 2, [0, 100], 0)]);
    assert_eq!(detector.changes().other, 1, "another file, on another node");
    let mut detector = begun(&[reader(1, 100), reader(2, 100)]);
    for mib in 100..1600 {
        window(&mut detector, &[reader(1, 100), reader(2, mib)]);
        assert!(!detector.changes().any(), "{mib} MiB");
    }
    window(&mut detector, &[reader(1, 100), reader(2, 1600)]);
    assert_eq!(detector.changes().other, 1);
}

#[test]
fn a_change_counts_until_it_is_undone_or_another_load_begins() {
    let load: Vec<Thread> = (1..=5).map(|tid| reader(tid, 100)).collect();
    let with = |changed: &[u32]| -> Vec<Thread> {
        (1..=5).map(|tid| reader(tid, if changed.contains(&tid) { 1_000 } else { 100 })).collect()
    };
    let mut detector = begun(&load);
    (0..20).for_each(|_| _ = window(&mut detector, &with(&[1])));
    assert!(detector.changes().other == 1 && !detector.changes().exceed(0.2), "one of five is a fifth");
    window(&mut detector, &with(&[2]));
    assert!(!detector.changes().exceed(0.2), "one is as before");
    window(&mut detector, &with(&[1, 2]));
    assert!(detector.changes().exceed(0.2));
    detector.begin();
    (0..20).for_each(|_| _ = window(&mut detector, &with(&[1, 2])));
    assert!(!detector.changes().any());
    window(&mut detector, &load);
    assert_eq!(detector.changes().other, 2);
}

#[test]
fn a_thread_that_takes_the_place_of_another_is_one_change() {
    let load: Vec<Thread> = (1..=5).map(|tid| reader(tid, 100)).collect();
    let later: Vec<Thread> = (2..=6).map(|tid| reader(tid, 100)).collect();
    let changes = after(10, &load, &later);
    assert_eq!(changes, Changes { came: 1, gone: 1, of: 6, ..NONE });
    assert!(!changes.exceed(0.2) && changes.exceed(0.1));
}

/// Each of them counted as gone for ever, and in the end the load was another one.
#[test]
fn threads_that_come_and_go_do_not_add_up() {
    let load: Vec<Thread> = (1..=100).map(|tid| reader(tid, 100)).collect();
    let mut detector = begun(&load);
    for tid in 101..500 {
        window(&mut detector, &[&load[..], &[reader(tid, 100)]].concat());
        assert_eq!((detector.changes().came, detector.changes().gone), (1, 0));
        assert!(!detector.changes().exceed(0.2));
    }
}

/// A policy that does not hear of the end of its threads took them for standing still.
#[test]
fn what_stands_still_is_gone_when_nothing_copies() {
    let load = [reader(1, 100), reader(2, 100)];
    let mut detector = begun(&load);
    detector.moved(Subject::Thread(ThreadId::new(2, 0)));
    (0..20).for_each(|_| _ = window(&mut detector, &load[..1]));
    assert_eq!(detector.changes().gone, 0);
    detector.resumed();
    (0..10).for_each(|_| _ = window(&mut detector, &load[..1]));
    assert_eq!(detector.changes().gone, 1);
}

/// A file whose move was refused hid what its readers turned to.
#[test]
fn a_file_that_was_not_moved_hides_no_change() {
    let load = [reader(1, 100), reader(2, 100)];
    let file = Subject::File(file(1));
    let mut detector = begun(&load);
    detector.moved(file);
    window(&mut detector, &load);
    detector.not_moved(&file);
    (0..20).for_each(|_| _ = window(&mut detector, &load));
    window(&mut detector, &[thread(1, 0, 2, [0, 100], 0), reader(2, 100)]);
    assert_eq!(detector.changes().other, 1);
}

#[test]
fn threads_that_no_policy_may_move_or_that_do_not_count_are_no_load() {
    let load = [reader(1, 100), reader(2, 100)];
    let mut detector = begun(&load);
    let copy = Thread { pinned: Some("is homenode itself".into()), ..reader(3, 900) };
    for _ in 0..20 {
        // Thread 2 is there, but does not count.
        let snapshot = Snapshot {
            window_s: 1.0,
            threads: [&load[..], std::slice::from_ref(&copy)].concat(),
            ..Snapshot::default()
        };
        detector.window(&snapshot, |t| t.tid != 2);
    }
    assert_eq!(detector.changes(), NONE);
}

#[test]
fn effects_of_our_own_moves_are_no_changes() {
    let load = [reader(1, 100), reader(2, 100)];
    let faster = [reader(1, 100), reader(2, 5_000)];
    let mut detector = begun(&load);
    detector.moved(Subject::Thread(ThreadId::new(1, 0)));
    (0..20).for_each(|_| _ = window(&mut detector, &faster));
    assert!(!detector.changes().any(), "which it brought about is what it is compared with");
    window(&mut detector, &load);
    assert_eq!(detector.changes().other, 1);

    // A process stands still while its memory is copied, and is slow in the window in which it goes
    // on.
    let mut detector = begun(&load);
    detector.moved(Subject::Process(ProcessId::new(2, 0)));
    (0..40).for_each(|_| _ = window(&mut detector, &load[..1]));
    window(&mut detector, &[reader(1, 100), reader(2, 3)]);
    (0..9).for_each(|_| _ = window(&mut detector, &load));
    assert!(!detector.changes().any());
    // One that has ended does not.
    detector.moved(Subject::Thread(ThreadId::new(2, 0)));
    window(&mut detector, &load[..1]);
    detector.ended(&Subject::Thread(ThreadId::new(2, 0)));
    (0..10).for_each(|_| _ = window(&mut detector, &load[..1]));
    assert_eq!(detector.changes().gone, 1);

    // The data of a file that we move comes from elsewhere when its copy is done.
    for ours in [true, false] {
        let mut detector = begun(&load);
        detector.moved(Subject::File(file(if ours { 1 } else { 2 })));
        (0..20).for_each(|_| _ = window(&mut detector, &load));
        window(&mut detector, &[thread(1, 0, 1, [0, 100], 0), reader(2, 100)]);
        assert_eq!(detector.changes().any(), !ours);
    }
}

#[test]
fn threads_that_something_else_moves_are_named_once() {
    let (load, there) = ([reader(1, 100), reader(2, 100)], thread(2, 1, 1, [100, 0], 0));
    let mut detector = begun(&load);
    let subject = Subject::Thread(ThreadId::new(2, 0));
    let moved = [load[0].clone(), there];
    assert_eq!(window(&mut detector, &moved), [(subject, NodeId(0))]);
    assert_eq!(window(&mut detector, &moved), []);
    detector.moved(subject);
    assert_eq!(window(&mut detector, &load), []);
    assert!(!detector.changes().any());
}

#[test]
fn cpus_that_come_or_go_are_a_change() {
    let mut detector = begun(&[]);
    let mut with = |cpus: &[u32]| {
        let nodes = vec![NodeLoad { cpus: cpus.to_vec(), ..NodeLoad::default() }];
        detector.window(&Snapshot { window_s: 1.0, nodes, ..Snapshot::default() }, |_| true);
        let changes = detector.changes();
        detector.begin();
        changes.machine && changes.exceed(0.2)
    };
    assert_eq!([with(&[0, 1]), with(&[0, 1]), with(&[0]), with(&[0]), with(&[0, 1])], [true, false, true, false, true]);
}
