//! Dragonfly: the model of III-C, and the policy on a machine that reacts to its moves.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use std::collections::BTreeMap;

use common::{MB, declined, file, node_with_bandwidth, snapshot, thread};
use placement::dragonfly::mtp::Mtp;
use placement::dragonfly::{Dragonfly, Settings};
use placement::{FileUse, Move, ObservedFile, Outcome, OutcomeState, Plan, Policy, Snapshot, Subject, Thread, nthread};
use proptest::prelude::*;
use topology::{FileId, NodeId, ThreadId};

/// IV-B, Webserver heavy, with O_m as printed.
const PRINTED: Mtp = Mtp { local_bw: 20.7e9, remote_bw: 13.5e9, overhead: 30.6e9, migration_s: 3.5 };

/// Bytes served in a window that begins with the migration, by Eq. 4: while the data moves, bytes/s
/// go up in a straight line (Eq. 2 and 3), and what is left of the window is local (Eq. 1). Without
/// the migration it is `TH_r × T_window` (Eq. 5).
fn served_with(mtp: Mtp, window_s: f64) -> f64 {
    let during = (mtp.remote_bw + mtp.local_bw) / 2.0 * mtp.migration_s - mtp.overhead;
    during + mtp.local_bw * (window_s - mtp.migration_s)
}

#[test]
fn the_papers_example_as_printed() {
    // K = 30.6 / (20.7 − 13.5) = 30.6 / 7.2 = 4.25 s.
    assert!((PRINTED.k() - 4.25).abs() < 1e-12);
    // K + T_m / 2 = 4.25 + 1.75 = 6.0 s: the printed T_window is the break-even, which neither wins
    // nor loses.
    assert!((PRINTED.break_even_s() - 6.0).abs() < 1e-12);
    let won = |window_s| served_with(PRINTED, window_s) - PRINTED.remote_bw * window_s;
    assert!(won(6.0).abs() < 1.0 && won(6.1) > 0.7e9 && won(5.9) < -0.7e9);
    assert!(!PRINTED.pays(5.99) && PRINTED.pays(6.01));
}

#[test]
fn the_papers_example_by_its_text() {
    // TH_l × T_m − TH_r × T_m = 72.45 − 47.25 = 25.2 GB, not 30.6: then K = T_m = 3.5 s,
    let overhead = Mtp::overhead_by_rule(20.7e9, 13.5e9, 3.5);
    assert!((overhead - 25.2e9).abs() < 1.0);
    let mtp = Mtp { overhead, ..PRINTED };
    assert!((mtp.k() - 3.5).abs() < 1e-9);
    // the break-even is 3.5 + 1.75 = 5.25 s, the first whole second after it 6 s, and Eq. 9 holds:
    // 3.5 < 2 × (6 − 3.5) = 5.
    assert!((mtp.break_even_s() - 5.25).abs() < 1e-9);
    assert_eq!(mtp.window_s(1.0), 6.0);
    assert!(mtp.pays(6.0) && !mtp.pays(5.0));
}

#[test]
fn without_a_gain_no_window_pays() {
    let none = Mtp { local_bw: 13.5e9, ..PRINTED };
    assert!(none.k().is_infinite() && !none.pays(1e9));
}

proptest! {
    /// Eq. 9 agrees with Eq. 6: the window with the migration serves more than the window without.
    #[test]
    fn equation_9_is_equation_6(
        remote in 1e6f64..1e11, gain in 1.001f64..10.0, migration_s in 0.01f64..1e3, factor in 0.0f64..3.0, window in 1.0f64..5.0,
    ) {
        let local_bw = remote * gain;
        let overhead = factor * Mtp::overhead_by_rule(local_bw, remote, migration_s);
        let mtp = Mtp { local_bw, remote_bw: remote, overhead, migration_s };
        let window_s = window * migration_s;
        let (with, without) = (served_with(mtp, window_s), remote * window_s);
        if (with - without).abs() > 1e-9 * with.abs() {
            prop_assert_eq!(mtp.pays(window_s), with > without);
        }
        prop_assert!(mtp.pays(mtp.window_s(1.0)));
        prop_assert!(mtp.window_s(1.0) - mtp.break_even_s() <= 1.0 + 1e-9);
    }
}

/// A thread that reads `mb` of its own file on `data` per window.
fn reader(tid: u32, node: u32, data: u32, mb: u64) -> Thread {
    let used = FileUse { file: file(tid.into()), read_bytes: common::bytes(&[(data, mb)]), ..FileUse::default() };
    let allowed_nodes = (0..2).map(NodeId).collect();
    Thread { pid: tid, files: vec![used], cpu_s: 0.1, allowed_nodes, ..thread(tid, node, &[(data, mb)], 0) }
}

/// A machine that reacts to moves: files move at `copy_bw`, and local readers are 1.5 times as
/// fast.
struct World {
    snapshot: Snapshot,
    copy_bw: f64,
    moving: BTreeMap<FileId, NodeId>,
    made: Vec<(u32, Move)>,
    windows: u32,
}

impl World {
    /// Two nodes of 2 GB/s (Eq. 1 units; 6 GB/s of reads). One holds all the files, of `file_mb`
    /// each.
    fn new(threads: Vec<Thread>, file_mb: u64, copy_bw: f64) -> Self {
        let mut nodes = vec![node_with_bandwidth(0, 8, 2000.0), node_with_bandwidth(1, 8, 2000.0)];
        nodes.iter_mut().for_each(|n| n.memory_free = 1 << 40);
        let files = (threads.iter())
            .map(|t| ObservedFile {
                file: file(t.tid.into()),
                bytes: t.read_bytes.iter().map(|(node, _)| (node, file_mb * MB)).collect(),
                readers: vec![t.tid],
                ..ObservedFile::default()
            })
            .collect();
        let snapshot = Snapshot { files, ..snapshot(nodes, threads) };
        Self { snapshot, copy_bw, moving: BTreeMap::new(), made: Vec::new(), windows: 0 }
    }

    fn run(&mut self, policy: &mut Dragonfly, windows: u32) {
        (0..windows).for_each(|_| _ = self.step(policy));
    }

    fn step(&mut self, policy: &mut Dragonfly) -> Plan {
        self.windows += 1;
        self.snapshot.time_s += 1.0;
        for n in &mut self.snapshot.nodes {
            n.read_bytes = self.snapshot.threads.iter().map(|t| t.read_bytes.get(n.id)).sum();
        }
        self.snapshot.validate().unwrap();
        let plan = policy.decide(&self.snapshot.topology(), &self.snapshot);
        for mv in &plan.moves {
            self.made.push((self.windows, mv.clone()));
            match &mv.subject {
                Subject::Thread(ThreadId { tid, .. }) => {
                    self.snapshot.threads.iter_mut().find(|t| t.tid == *tid).unwrap().node = mv.to;
                }
                Subject::File(file) => {
                    self.moving.insert(*file, mv.to);
                }
                Subject::Process(_) => panic!("no process moves"),
            }
        }
        self.copy();
        self.read();
        plan
    }

    fn copy(&mut self) {
        let mut left = self.copy_bw;
        for (file, to) in &self.moving {
            let observed = self.snapshot.files.iter_mut().find(|f| f.file == *file).unwrap();
            let away: u64 = observed.bytes.total() - observed.bytes.get(*to);
            let now = (away as f64).min(left) as u64;
            left -= now as f64;
            let from = NodeId(1 - to.0);
            observed.bytes = [(from, away - now), (*to, observed.bytes.get(*to) + now)].into_iter().collect();
        }
    }

    fn read(&mut self) {
        for t in &mut self.snapshot.threads {
            let resident = &self.snapshot.files.iter().find(|f| f.file == t.files[0].file).unwrap().bytes;
            let local = resident.get(t.node) as f64 / resident.total() as f64;
            let bytes = if t.tid < 100 { 1e9 } else { 1e6 } * (1.0 + 0.5 * local);
            let read = resident.iter().map(|(node, b)| (node, (bytes * b as f64 / resident.total() as f64) as u64));
            t.read_bytes = read.collect();
            t.files[0].read_bytes = t.read_bytes.clone();
        }
    }

    fn files_moved(&self) -> Vec<(u32, u64, u32)> {
        let one = |(window, mv): &(u32, Move)| match mv.subject {
            Subject::File(file) => Some((*window, file.ino, mv.to.0)),
            _ => None,
        };
        let mut moved: Vec<_> = self.made.iter().filter_map(one).collect();
        moved.sort();
        moved
    }
}

fn policy() -> Dragonfly {
    Dragonfly::new(Settings::default(), nthread::Settings::default())
}

/// Threads 1 to 4 on node 0, and 5 and 6 on node 1, each read their own file on node 0.
fn overloaded(file_mb: u64, copy_bw: f64) -> World {
    // 4 × 1.5 + 2 × 1.0 = 8 GB/s, weighted 2.67 of 2.0 GB/s: overloaded; node 1 has no load.
    let threads = (1..=4).map(|tid| reader(tid, 0, 0, 1500)).chain((5..=6).map(|tid| reader(tid, 1, 0, 1000)));
    World::new(threads.collect(), file_mb, copy_bw)
}

#[test]
fn data_of_threads_that_cannot_go_home_moves_to_them() {
    let mut world = overloaded(500, 468e6);
    let mut policy = policy();
    let plan = world.step(&mut policy);
    assert_eq!(plan.moves, []);
    assert_eq!(declined(&plan, 5).unwrap().0, "overloaded_home");
    // 1 GB at 468 MB/s: T_m 2.1 s, K = T_m, break-even 1.5 × T_m = 3.2 s, well within the T_window
    // of 6 s.
    assert_eq!(
        plan.notes,
        [
            "2 queued files, 1.0 GB, have waited 1.0 s of T_window 6.0 s (K 2.1 s, T_m 2.1 s, TH_l 3.1 GB/s, TH_r 2.0 GB/s, O_m 2.3 GB)"
        ]
    );
    world.run(&mut policy, 30);
    assert_eq!(world.files_moved(), [(6, 5, 1), (6, 6, 1)]);
    assert_eq!(world.made.len(), 2, "{:?}", world.made);
    assert!(world.snapshot.threads.iter().all(|t| t.read_bytes.get(t.node) == t.read_bytes.total()));
}

#[test]
fn a_home_node_that_is_not_overloaded_gets_the_threads() {
    // 2 × 1.5 + 1 = 4 GB/s, weighted 1.33 of 2.0: 67 %.
    let threads = vec![reader(1, 0, 0, 1500), reader(2, 0, 0, 1500), reader(5, 1, 0, 1000)];
    let mut world = World::new(threads, 500, 468e6);
    let plan = world.step(&mut policy());
    assert_eq!(plan.policy, "dragonfly");
    let moves: Vec<_> = plan.moves.iter().map(|mv| (mv.tid(), mv.to)).collect();
    assert_eq!(moves, [(Some(5), NodeId(0))]);
}

#[test]
fn files_that_do_not_pay_back_within_the_longest_window_stay() {
    // 2 × 10 GB at 468 MB/s: the first file has T_m 21 s and T_window 33 s, in which both together
    // (43 s) do not pay.
    let mut world = overloaded(10_000, 468e6);
    let mut policy = policy();
    world.run(&mut policy, 40);
    assert_eq!(world.files_moved(), [(33, 5, 1)]);
    // 40 GB: no file pays back.
    let mut world = overloaded(40_000, 468e6);
    let mut policy = self::policy();
    world.run(&mut policy, 100);
    assert_eq!(world.made, []);
}

#[test]
fn a_long_queue_is_emptied_a_window_at_a_time() {
    // 6 files of 1 GB at 468 MB/s, 2.1 s each: T_window 6 s takes one (3.2 s); two would need 6.4
    // s.
    let threads = (1..=6).map(|tid| reader(tid, 0, 0, 1500)).chain((11..=16).map(|tid| reader(tid, 1, 0, 500)));
    let mut world = World::new(threads.collect(), 1000, 468e6);
    let mut policy = policy();
    world.run(&mut policy, 26);
    let windows: Vec<u32> = world.files_moved().iter().map(|m| m.0).collect();
    // A moving file loses less than the rule in the text says, so later windows take two files.
    assert_eq!(windows[..2], [6, 12], "{windows:?}");
    assert!(windows.windows(2).all(|w| w[1] == w[0] || w[1] - w[0] >= 6), "{windows:?}");
}

#[test]
fn after_a_slow_copy_the_next_one_waits_longer() {
    // Files move at 100 MB/s, not 468. f5 and f6 (1 GB) take 10 s; then a third thread comes.
    let mut world = overloaded(500, 100e6);
    let mut policy = policy();
    world.run(&mut policy, 20);
    assert_eq!(world.files_moved().len(), 2);
    world.snapshot.threads.push(reader(7, 1, 0, 1000));
    let bytes = common::bytes(&[(0, 500)]);
    world.snapshot.files.push(ObservedFile { file: file(7), bytes, readers: vec![7], ..ObservedFile::default() });
    // Node 0 counts as overloaded only if node 1 is below half of it, so node 1's readers slow
    // down.
    let quiet = |w: &mut World| {
        for t in w.snapshot.threads.iter_mut().filter(|t| t.tid == 5 || t.tid == 6) {
            t.tid += 100;
        }
    };
    quiet(&mut world);
    world.read();
    let plan = world.step(&mut policy);
    // (468 + 100) / 2 = 284 MB/s: 500 MB take 1.8 s instead of 1.1 s.
    assert!(plan.notes[0].contains("T_m 1.8 s"), "{:?}", plan.notes);
}

#[test]
fn files_with_equal_local_reads_stay() {
    let mut world = overloaded(500, 468e6);
    // Threads 1 and 2 read the files of 5 and 6, too.
    for (tid, ino) in [(1, 5), (2, 6)] {
        let t = world.snapshot.threads.iter_mut().find(|t| t.tid == tid).unwrap();
        t.files[0].file = file(ino);
    }
    let mut policy = policy();
    world.run(&mut policy, 30);
    assert_eq!(world.made, []);
}

#[test]
fn data_that_cannot_move_is_not_asked_to() {
    let mut world = overloaded(500, 468e6);
    for file in world.snapshot.files.iter_mut().filter(|f| f.file == self::file(5)) {
        (file.movable, file.pinned) = (Some(false), Some("is on DAX".into()));
    }
    let mut policy = policy();
    let notes: Vec<_> = (0..30).flat_map(|_| world.step(&mut policy).notes).collect();
    let moved: Vec<_> = world.files_moved().into_iter().map(|(_, file, _)| file).collect();
    assert_eq!(moved, [6]);
    assert!(notes.iter().any(|note| note == "1 files on node 0 cannot be moved"), "{notes:?}");
}

/// Seen on a host, which looks at a file only now and then: the file had moved, and was asked to
/// move again.
#[test]
fn a_moved_file_that_was_not_looked_at_since_is_not_moved_again() {
    let mut world = overloaded(500, 468e6);
    let mut policy = policy();
    let before = world.snapshot.files.clone();
    for _ in 0..30 {
        world.step(&mut policy);
        let made = |mv: &(u32, Move)| Outcome {
            subject: mv.1.subject,
            from: NodeId(0),
            to: NodeId(1),
            result: OutcomeState::Done { bytes: 500 * MB, failed: 0 },
        };
        let now = world.windows;
        world.snapshot.outcomes = world.made.iter().filter(|mv| mv.0 == now).map(made).collect();
        world.snapshot.files = before.clone();
    }
    assert_eq!(world.files_moved(), [(6, 5, 1), (6, 6, 1)]);
}

#[test]
fn no_time_to_pay_back_and_the_targets_memory_are_limits() {
    let settings = Settings { max_window_s: 0.0, ..Settings::default() };
    let mut world = overloaded(500, 468e6);
    let mut policy = Dragonfly::new(settings, nthread::Settings::default());
    world.run(&mut policy, 60);
    assert_eq!(world.made, [], "no file pays back at once");
    let mut world = overloaded(500, 468e6);
    world.snapshot.nodes[1].memory_free = 540 * MB;
    let mut policy = self::policy();
    world.run(&mut policy, 60);
    assert_eq!(world.made, [], "500 MB and a tenth to spare do not fit into 540 MB");
}

#[test]
fn rarely_read_files_and_files_of_unknown_size_stay() {
    // 1 MB/s of 500 MB: each byte is read less than once in 60 s.
    let mut world = overloaded(500, 468e6);
    world.snapshot.threads.truncate(4);
    world.snapshot.files.truncate(4);
    let few = reader(105, 1, 0, 5);
    world.snapshot.files.push(ObservedFile {
        file: file(105),
        bytes: common::bytes(&[(0, 500)]),
        ..ObservedFile::default()
    });
    world.snapshot.threads.push(few);
    let mut policy = policy();
    world.run(&mut policy, 30);
    assert_eq!(world.files_moved(), []);
    let mut world = overloaded(500, 468e6);
    let plan = (0..10).map(|_| {
        let files = std::mem::take(&mut world.snapshot.files);
        world.snapshot.time_s += 1.0;
        let plan = policy.decide(&world.snapshot.topology(), &world.snapshot);
        world.snapshot.files = files;
        plan
    });
    let last = plan.last().unwrap();
    assert_eq!((last.moves, last.notes), (vec![], vec!["2 queued files of unknown size are not moved".into()]));
}

#[test]
fn a_move_that_is_not_made_is_requested_three_times() {
    let mut world = overloaded(500, 0.0);
    let mut policy = policy();
    world.run(&mut policy, 60);
    // At 6 s, 8 s and 10 s. Then the policy believes that the files have moved, and they cool down
    // for 60 s.
    let windows: Vec<u32> = world.files_moved().iter().map(|m| m.0).collect();
    assert_eq!(windows, [6, 6, 8, 8, 10, 10]);
}

#[test]
fn a_file_is_not_moved_back_at_once_when_the_load_turns() {
    let mut world = overloaded(500, 468e6);
    let mut policy = policy();
    world.run(&mut policy, 10);
    assert_eq!(world.files_moved().len(), 2);
    // Now four more threads read files 5 and 6 from node 0, and none reads from node 1: remote
    // readers overload node 1.
    for t in &mut world.snapshot.threads {
        t.node = NodeId(0);
        t.files[0].file = file(if t.tid % 2 == 0 { 6 } else { 5 });
        t.pinned = Some("has an affinity of its own".into());
    }
    world.read();
    let before = world.windows;
    world.run(&mut policy, 120);
    let back: Vec<u32> = world.files_moved().iter().skip(2).map(|m| m.0 - before).collect();
    assert!(!back.is_empty() && back.len() <= 2, "{back:?}");
    assert!(back.iter().all(|w| *w >= 56), "moved back after {back:?} s: cool-down is 60 s from second 6");
}

/// Four heavy webservers: a controller of 9.25 GB/s by Eq. 1 is overloaded above 7.4. Read from
/// afar it is full at 9.25 × 0.654 = 6.0 GB/s.
#[test]
fn a_controller_that_is_read_from_afar_is_overloaded_at_fewer_bytes() {
    for (gb, remote_share, overloaded) in [(7.5, 0.64, true), (6.7, 0.94, true), (6.7, 0.0, false), (4.0, 1.0, false)] {
        let read_mb = 3.0 * gb * 1000.0; // Eq. 1: reads count a third.
        let remote = (read_mb * remote_share) as u64;
        let threads =
            [reader(1, 0, 0, read_mb as u64 - remote), reader(2, 1, 0, remote / 2), reader(3, 1, 0, remote / 2)];
        let mut world = World::new(threads.to_vec(), 500, 468e6);
        for node in &mut world.snapshot.nodes {
            (node.read_bw_max, node.write_bw_max) = (Some(3.0 * 9.25e9), Some(9.25e9));
        }
        let plan = policy().decide(&world.snapshot.topology(), &world.snapshot);
        let declined = plan.declined.iter().any(|declined| declined.reason == "overloaded_home");
        assert_eq!(declined, overloaded && remote > 0, "{gb} GB/s, {remote_share} remote: {plan:?}");
        // 7.5 × (1 + 0.64 × 0.53) = 10.0 GB/s, of 9.25.
        assert_eq!(plan.notes.iter().any(|note| note.contains("queued files")), declined, "{plan:?}");
    }
}
