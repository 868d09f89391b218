//! The plane of a volume, driven by threads of this process, without a mount: threads and files are
//! really where a plan puts them.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use engine::Copies;
use engine::settings::Moves;
use engine::{Engine, JobState, Plane, PlaneError, Settings as Rails, Started};
use fs::medium::{Mapped, Medium, Profile, RegionFile};
use fs::{Ino, Layout, NewFile, Placement, Volume};
use linux::affinity;
use linux::threads::Threads;
use mount::plane::{Callers, Settings, VolumePlane};
use placement::{FileRange, Move, RANGE_BYTES, Reason, Snapshot, Subject, nthread, promote};
use testing::{Case, cases, two_cpus};
use topology::{CpuSet, FileId, NodeId, Topology, tiers};

const FILE_BYTES: usize = 1 << 20;
const DEVICE: u32 = FileId::device(0, 77);

/// Two nodes are emulated. Readers that may not use all CPUs have an affinity of their own, and
/// stay.
const CASES: &[Case] = cases![[two_cpus()]
    a_reader_moves_to_its_data_and_back_at_the_end,
    a_recorded_window_gives_the_plan_that_was_made,
    a_file_is_where_its_move_ended,
    only_what_a_move_has_moved_is_taken_back,
    only_the_ranges_of_a_move_go_and_come_back,
    what_is_read_on_slow_memory_comes_to_its_readers,
    what_is_not_on_the_volume_is_refused,
    what_a_server_does_counts_for_its_caller,
    the_servers_own_threads_share_no_file,
    ended_threads_keep_no_counters,
    files_that_the_kernel_has_forgotten_stay_so,
];

fn main() {
    testing::run(&[], CASES.to_vec());
}

fn own_tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

fn machine() -> Topology {
    let cpus = topology::sysfs::read(&PathBuf::from("/sys")).unwrap().cpus();
    Profile::named("optane").unwrap().topology(&cpus, 2, 1 << 30)
}

/// A volume with a region on each of two nodes.
fn volume() -> Arc<Volume> {
    let mapped = regions();
    mounted(Box::new(mapped))
}

fn mounted(medium: Box<dyn Medium>) -> Arc<Volume> {
    mounted_on(machine(), medium)
}

fn mounted_on(machine: Topology, medium: Box<dyn Medium>) -> Arc<Volume> {
    let options = fs::Options { topology: Some(machine), ..fs::Options::default() };
    Arc::new(Volume::mount(medium, options).unwrap())
}

/// Its regions.
fn regions() -> Arc<Mapped> {
    regions_of(&[16, 16])
}

/// Regions of so many MiB, each on a node of its own.
fn regions_of(mib: &[u64]) -> Arc<Mapped> {
    let region = |mib: &u64| {
        let file = File::from(rustix::fs::memfd_create("homenode", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.set_len(mib << 20).unwrap();
        RegionFile { file, bind: None }
    };
    let files: Vec<RegionFile> = mib.iter().map(region).collect();
    let nodes = (0..mib.len() as u32).map(Some).collect();
    let layout = Layout { volume: [7; 16], nodes, journals: 2, ..Layout::default() };
    let mapped = Arc::new(Mapped::new(&files).unwrap());
    fs::mkfs(Box::new(Arc::clone(&mapped)), &layout).unwrap();
    mapped
}

fn file_on(volume: &Volume, name: &str, node: u32) -> Ino {
    let new = NewFile { mode: 0o100_644, ..NewFile::default() };
    let ino = volume.create(Ino::ROOT, name.as_bytes(), new).unwrap().ino;
    volume.write_to(ino, 0, &vec![7; FILE_BYTES], Placement::Node(node)).unwrap();
    ino
}

fn plane(volume: &Arc<Volume>) -> VolumePlane {
    let settings = Settings { device: DEVICE, emulated: true, own_threads: true, ..Settings::default() };
    VolumePlane::open(Arc::clone(volume), Callers::start(machine()).unwrap(), settings).unwrap()
}

fn id(ino: Ino) -> FileId {
    FileId { dev: DEVICE, ino: ino.raw(), generation: 0 }
}

fn eager() -> nthread::Settings {
    nthread::Settings { min_bytes: 1, locality_margin: 1.0, ..nthread::Settings::default() }
}

/// DRAM on the two nodes, and an expander as node 2.
fn machine_with_slow_memory() -> Topology {
    let cpus = topology::sysfs::read(&PathBuf::from("/sys")).unwrap().cpus();
    let mut machine = Profile::named("dram").unwrap().topology(&cpus, 2, 1 << 30);
    let expander = topology::Node::new(NodeId(2), CpuSet::default(), 1 << 30);
    let distance = [(NodeId(0), 14), (NodeId(1), 24), (NodeId(2), 10)];
    machine.nodes.push(topology::Node { distance: distance.into(), ..expander });
    tiers::from_latencies(
        &mut machine.nodes,
        (0..3).map(|node| (NodeId(node), [1.0, 1.0, 3.0][node as usize])).collect(),
    );
    machine
}

/// A volume on it with a file of so many ranges on the slow node, and a plane that looks at ranges.
fn slow_file(ranges: u64) -> (Arc<Volume>, Ino, VolumePlane) {
    let volume = mounted_on(machine_with_slow_memory(), Box::new(regions_of(&[16, 16, 32])));
    let new = NewFile { mode: 0o100_644, ..NewFile::default() };
    // With its log.
    let ino = fs::on_node(2, || volume.create(Ino::ROOT, b"slow", new)).unwrap().ino;
    for range in 0..ranges {
        let data = vec![range as u8; RANGE_BYTES as usize];
        volume.write_to(ino, range * RANGE_BYTES, &data, Placement::Node(2)).unwrap();
    }
    let settings =
        Settings { device: DEVICE, emulated: true, own_threads: true, ranges: true, idle: true, ..Settings::default() };
    let callers = Callers::start(machine_with_slow_memory()).unwrap();
    let plane = VolumePlane::open(Arc::clone(&volume), callers, settings).unwrap();
    (volume, ino, plane)
}

/// Bytes of a range of a file on a node.
fn on(volume: &Volume, ino: Ino, range: u64, node: u32) -> u64 {
    let blocks = RANGE_BYTES / fs::format::BLOCK_BYTES;
    volume.bytes_on_node(ino, (range * blocks, (range + 1) * blocks), node).unwrap()
}

/// Waits for the end of a move: its state, the bytes that were there before, that are there now,
/// and all.
fn end(plane: &mut VolumePlane, started: Started) -> (JobState, u64, u64, u64) {
    let job = started.job.unwrap();
    loop {
        let progress = plane.poll().into_iter().find(|p| p.job == job).unwrap();
        if progress.state != JobState::Running {
            return (progress.state, progress.there, progress.done, progress.bytes);
        }
        std::thread::yield_now();
    }
}

/// A plane moved whole files only: a promotion of two ranges took the file, and there was no room.
fn only_the_ranges_of_a_move_go_and_come_back() {
    let (volume, ino, mut plane) = slow_file(6);
    let generation = volume.stat(ino).unwrap().generation;
    // Half of one of them is on another node already, and stays there.
    let half = RANGE_BYTES / 2;
    volume.write_to(ino, 4 * RANGE_BYTES, &vec![4; half as usize], Placement::Node(1)).unwrap();
    let ranges = [1, 4].map(|range| FileRange { start: range * RANGE_BYTES, bytes: RANGE_BYTES }).to_vec();
    let subject = Subject::File(FileId { generation, ..id(ino) });
    let (from, to, reason, why) = (NodeId(2), NodeId(0), Reason::Promotion, "".into());
    let up = Move { subject, pid: 0, from, to, reason, why, ranges };
    let back = Move { from: up.to, to: up.from, ..up.clone() };
    let all = |node| (0..6).map(|range| on(&volume, ino, range, node)).collect::<Vec<_>>();
    let free = || [0, 1, 2].map(|region| volume.usage().regions[region].free_blocks);
    let before = (free(), all(2));
    plane.prepare(&up).unwrap();
    let started = plane.start(&up, &[], &mut |_| Ok(())).unwrap();
    assert_eq!(end(&mut plane, started), (JobState::Done, 0, RANGE_BYTES + half, RANGE_BYTES + half));
    assert_eq!(all(0), [0, RANGE_BYTES, 0, 0, half, 0]);
    assert_eq!(all(1), [0, 0, 0, 0, half, 0]);
    let moved = (RANGE_BYTES + half) / fs::format::BLOCK_BYTES;
    assert_eq!(free(), [before.0[0] - moved, before.0[1], before.0[2] + moved], "the log stays");
    // All of the range is there: nothing is left of it to come.
    plane.prepare(&back).unwrap();
    let started = plane.take_back(&back).unwrap();
    assert_eq!(end(&mut plane, started), (JobState::Done, 0, RANGE_BYTES + half, RANGE_BYTES + half));
    assert_eq!((free(), all(2)), before);
    let mut out = vec![0; RANGE_BYTES as usize];
    for range in 0..6 {
        volume.read(ino, range * RANGE_BYTES, &mut out).unwrap();
        assert!(out.iter().all(|byte| *byte == range as u8), "range {range}");
    }
}

/// No range was ever hot, as the plane told of none.
fn what_is_read_on_slow_memory_comes_to_its_readers() {
    let (volume, ino, plane) = slow_file(6);
    let settings = placement::Settings {
        promote: promote::Settings { windows: 2, reserve_bytes: 1e6, stay_s: 0.5, ..promote::Settings::default() },
        ..placement::Settings::default()
    };
    let policy = placement::policy_with("promote", &settings).unwrap();
    let moves = Moves { rollback: 0, ..Moves::default() };
    let rails = Rails { window_s: 0.05, dwell_s: 0.0, moves, ..Rails::default() };
    let mut engine = Engine::new(plane, policy, rails, None).unwrap();
    let stop = AtomicBool::new(false);
    let read = |node: u32, range: u64| {
        affinity::set(own_tid(), &cpus_of(node)).unwrap();
        let mut out = vec![0; RANGE_BYTES as usize];
        while !stop.load(Ordering::Relaxed) {
            volume.read(ino, range * RANGE_BYTES, &mut out).unwrap();
            assert!(out.iter().all(|byte| *byte == range as u8), "range {range}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| read(0, 1));
        scope.spawn(|| read(1, 3));
        let _stop = testing::Over(&stop);
        for windows in 0.. {
            engine.step().unwrap();
            if on(&volume, ino, 1, 0) + on(&volume, ino, 3, 1) == 2 * RANGE_BYTES {
                break;
            }
            assert!(windows < 400, "what is hot is on slow memory still");
        }
    });
    for range in [0, 2, 4, 5] {
        assert_eq!(on(&volume, ino, range, 2), RANGE_BYTES, "range {range} was not read");
    }
    // Then nobody reads it, and the plane says so: it may go down for others.
    let hot = [(RANGE_BYTES, NodeId(0)), (3 * RANGE_BYTES, NodeId(1))];
    let mut idle = || -> Vec<(u64, NodeId)> {
        let idle = engine.step().unwrap().snapshot.idle;
        idle.iter().flat_map(|file| &file.ranges).map(|range| (range.start, range.node)).collect()
    };
    assert!((0..100).any(|_| idle() == hot), "{:?}", idle());
    // Mostly a hole it makes no room: by such ranges a user kept others' from coming up.
    volume.punch_hole(ino, RANGE_BYTES, RANGE_BYTES / 4 * 3).unwrap();
    assert_eq!(idle(), hot[1..]);
}

/// Runs `work` beside a thread that reads a file over and over; `work` gets that thread's id.
fn beside_a_reader(volume: &Volume, ino: Ino, work: impl FnOnce(u32)) {
    let (stop, tid) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut out = vec![0; 65_536];
            tid.store(own_tid(), Ordering::Release);
            while !stop.load(Ordering::Relaxed) {
                for offset in (0..FILE_BYTES as u64).step_by(out.len()) {
                    assert_eq!(volume.read(ino, offset, &mut out).unwrap(), out.len());
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let _stop = testing::Over(&stop);
        while tid.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        work(tid.load(Ordering::Acquire));
    });
}

fn cpus_of(node: u32) -> CpuSet {
    machine().node(NodeId(node)).unwrap().cpus.clone()
}

/// What the kernel writes back has no caller: the worker that served it made the file of a single
/// program a shared one, whose threads stay.
fn the_servers_own_threads_share_no_file() {
    let volume = volume();
    let ino = file_on(&volume, "f", 0);
    let settings = Settings { device: DEVICE, emulated: true, ..Settings::default() };
    let callers = Callers::start(machine()).unwrap();
    let mut plane = VolumePlane::open(Arc::clone(&volume), Arc::clone(&callers), settings).unwrap();
    let mut program = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    callers.enter(program.id(), || volume.read(ino, 0, &mut [0; 65_536]).unwrap());
    callers.enter(0, || volume.write(ino, 0, &[1; 4096]).unwrap());
    let window = plane.observe(Duration::from_millis(1)).unwrap();
    program.kill().unwrap();
    program.wait().unwrap();
    let seen: Vec<_> = window.threads.iter().map(|t| (t.tid, t.shares_file)).collect();
    assert_eq!(seen, [(program.id(), false)]);
    assert_eq!(window.files[0].readers, [program.id()]);
}

fn a_reader_moves_to_its_data_and_back_at_the_end() {
    let volume = volume();
    // One node after the other: from one of them it has to move.
    for node in [1, 0] {
        let ino = file_on(&volume, &format!("file{node}"), node);
        beside_a_reader(&volume, ino, |tid| {
            let before = affinity::get(tid).unwrap();
            let policy = placement::policy("nthread-rl", &eager()).unwrap();
            let settings = Rails { window_s: 0.05, dwell_s: 0.0, ..Rails::default() };
            let mut engine = Engine::new(plane(&volume), policy, settings, None).unwrap();
            let mut windows = 0;
            while affinity::get(tid).unwrap() == before {
                // One that runs on its home node by chance is left there.
                affinity::set(tid, &cpus_of(1 - node)).unwrap();
                affinity::set(tid, &before).unwrap();
                engine.step().unwrap();
                windows += 1;
                assert!(windows < 400, "the reader has not moved");
            }
            assert_eq!(affinity::get(tid).unwrap(), cpus_of(node));
            let report = engine.step().unwrap();
            let thread = report.snapshot.threads.iter().find(|t| t.tid == tid).unwrap();
            assert_eq!((thread.node, thread.read_bytes.total() > 0), (NodeId(node), true));
            assert_eq!(thread.remote_bytes(), 0);
            assert_eq!(engine.finish().restored, 1);
            assert_eq!(affinity::get(tid).unwrap(), before);
        });
    }
}

fn a_recorded_window_gives_the_plan_that_was_made() {
    let volume = volume();
    let ino = file_on(&volume, "file", 1);
    beside_a_reader(&volume, ino, |tid| {
        let policy = placement::policy("nthread", &eager()).unwrap();
        let settings = Rails { window_s: 0.05, dry_run: true, ..Rails::default() };
        let mut engine = Engine::new(plane(&volume), policy, settings, None).unwrap();
        for _ in 0..20 {
            let report = engine.step().unwrap();
            let recorded = Snapshot::from_json(&report.snapshot.to_json().unwrap()).unwrap();
            assert_eq!(recorded, report.snapshot);
            let mut again = placement::policy("nthread", &eager()).unwrap();
            let plan = again.decide(&recorded.topology(), &recorded);
            assert_eq!((plan.moves, plan.declined), (report.plan.moves, report.plan.declined));
        }
        // Exact: every byte is of this thread and file, and of node 1.
        let mut plane = plane(&volume);
        let window = plane.observe(Duration::from_millis(50)).unwrap();
        let thread = window.threads.iter().find(|t| t.tid == tid).unwrap();
        assert_eq!(thread.pid, std::process::id());
        // A policy that knows processes by id and start takes the same one from any of its threads.
        let process = Threads::new(Path::new("/proc")).stat(thread.pid).unwrap().unwrap();
        assert_eq!(thread.of_process_since(), process.id.start_ns());
        assert_eq!(thread.read_bytes.total(), thread.read_bytes.get(NodeId(1)));
        assert_eq!((thread.files.len(), thread.files[0].file), (1, id(ino)));
        assert_eq!((thread.files[0].read_size, thread.shares_file), (Some(65_536), false));
        let file = &window.files[0];
        assert_eq!(
            (file.size, file.bytes.get(NodeId(1)), file.readers.as_slice()),
            (Some(1 << 20), 1 << 20, &[tid][..])
        );
        assert_eq!((file.movable, file.opens), (Some(true), Some(0)));
    });
}

fn mv(file: FileId, generation: Option<u32>, to: u32) -> Move {
    let (from, to) = (NodeId(u32::from(to == 0)), NodeId(to));
    let subject = Subject::File(FileId { generation: generation.unwrap_or(0), ..file });
    Move { subject, pid: 0, from, to, reason: Reason::OverloadedHome, why: "".into(), ranges: Vec::new() }
}

fn a_file_is_where_its_move_ended() {
    let volume = volume();
    let ino = file_on(&volume, "file", 0);
    let generation = Some(volume.stat(ino).unwrap().generation);
    beside_a_reader(&volume, ino, |_| {
        let mut plane = plane(&volume);
        for to in [1, 0] {
            let mv = mv(id(ino), generation, to);
            assert!(plane.prepare(&mv).unwrap().is_empty());
            let started = plane.start(&mv, &[], &mut |_| Ok(())).unwrap();
            assert_eq!(end(&mut plane, started), (JobState::Done, 0, FILE_BYTES as u64, FILE_BYTES as u64));
            assert_eq!(volume.bytes_by_node(ino).unwrap(), [(Some(to), FILE_BYTES as u64)].into());
        }
        // What it has on other nodes than the move names stays.
        let other = Move { from: NodeId(7), ..mv(id(ino), generation, 1) };
        assert!(plane.prepare(&other).unwrap().is_empty());
        let started = plane.start(&other, &[], &mut |_| Ok(())).unwrap();
        assert_eq!(end(&mut plane, started), (JobState::Done, 0, 0, 0));
        assert_eq!(volume.bytes_by_node(ino).unwrap(), [(Some(0), FILE_BYTES as u64)].into());
        // At one byte a second it would take days.
        plane.pace(1.0);
        let mv = mv(id(ino), generation, 1);
        plane.prepare(&mv).unwrap();
        let job = plane.start(&mv, &[], &mut |_| Ok(())).unwrap().job.unwrap();
        plane.cancel(job);
        while plane.poll().into_iter().any(|p| p.state == JobState::Running) {
            std::thread::yield_now();
        }
        assert_eq!(volume.open_count(ino).unwrap(), 0);
    });
}

/// All that the file had on the node went back with what had been moved there.
fn only_what_a_move_has_moved_is_taken_back() {
    const PART: usize = FILE_BYTES / 4;
    let volume = volume();
    let ino = file_on(&volume, "file", 0);
    // The second quarter is on node 1 before, and so is the last one.
    for part in [1, 3] {
        volume.write_to(ino, (part * PART) as u64, &[8; PART], Placement::Node(1)).unwrap();
    }
    let half = FILE_BYTES as u64 / 2;
    assert_eq!(volume.bytes_by_node(ino).unwrap(), [(Some(0), half), (Some(1), half)].into());
    let generation = Some(volume.stat(ino).unwrap().generation);
    let mut plane = plane(&volume);
    let there = mv(id(ino), generation, 1);
    plane.prepare(&there).unwrap();
    let started = plane.start(&there, &[], &mut |_| Ok(())).unwrap();
    assert_eq!(end(&mut plane, started), (JobState::Done, half, 2 * half, 2 * half));
    assert_eq!(volume.bytes_by_node(ino).unwrap(), [(Some(1), 2 * half)].into());
    let back = mv(id(ino), generation, 0);
    plane.prepare(&back).unwrap();
    let started = plane.take_back(&back).unwrap();
    assert_eq!(end(&mut plane, started), (JobState::Done, 0, half, half));
    assert_eq!(volume.bytes_by_node(ino).unwrap(), [(Some(0), half), (Some(1), half)].into());
    for part in 0..4 {
        let mut out = vec![0; PART];
        volume.read(ino, (part * PART) as u64, &mut out).unwrap();
        assert_eq!(out, vec![7 + (part % 2) as u8; PART]);
    }
    for (parts, node) in [(3, 1), (2, 0), (1, 1)] {
        let of = |node: u32| volume.bytes_by_node(ino).unwrap().get(&Some(node)).copied().unwrap_or(0);
        let before = of(node);
        volume.truncate(ino, (parts * PART) as u64).unwrap();
        assert_eq!(before - of(node), PART as u64, "part {parts} was not on node {node}");
    }
    // What nobody knows to have moved stays.
    plane.prepare(&back).unwrap();
    let error = plane.take_back(&back).unwrap_err();
    assert!(matches!(error, PlaneError::Refused { reason: "not_known", .. }), "{error}");
}

fn what_is_not_on_the_volume_is_refused() {
    let volume = volume();
    let ino = file_on(&volume, "file", 0);
    let generation = volume.stat(ino).unwrap().generation;
    let mut plane = plane(&volume);
    let mut why = |mv: &Move| match plane.prepare(mv).unwrap_err() {
        PlaneError::Refused { reason, .. } => reason,
        PlaneError::Gone { .. } => "gone",
        PlaneError::Broken(error) => panic!("{error}"),
    };
    assert_eq!(why(&mv(FileId { dev: DEVICE + 1, ..id(ino) }, None, 1)), "not_of_this_volume");
    assert_eq!(why(&mv(FileId { ino: 0, ..id(ino) }, None, 1)), "not_of_this_volume");
    assert_eq!(why(&mv(id(ino), Some(generation + 1), 1)), "gone");
    assert_eq!(why(&mv(id(ino), Some(generation), 5)), "no_region_on_node");
    volume.unlink(Ino::ROOT, b"file").unwrap();
    assert_eq!(why(&mv(id(ino), Some(generation), 1)), "gone");
    // A move that nobody prepared.
    let unprepared = mv(id(ino), None, 1);
    let error = plane.start(&unprepared, &[], &mut |_| Ok(())).unwrap_err();
    assert!(matches!(error, PlaneError::Refused { reason: "not_prepared", .. }), "{error} {}", unprepared.subject);
}

/// A thread works for another one: bytes count for that one, and what it writes lands where that
/// one runs.
fn what_a_server_does_counts_for_its_caller() {
    let volume = volume();
    let ino = file_on(&volume, "file", 0);
    let callers = Callers::start(machine()).unwrap();
    let settings =
        Settings { device: DEVICE, emulated: true, directory: "/mnt".into(), own_threads: true, ..Settings::default() };
    let mut plane = VolumePlane::open(Arc::clone(&volume), Arc::clone(&callers), settings).unwrap();
    let (asked, done) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    let tid = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            affinity::set(own_tid(), &cpus_of(1)).unwrap();
            tid.store(own_tid(), Ordering::Release);
            asked.wait();
            done.wait();
        });
        asked.wait();
        let tid = tid.load(Ordering::Acquire);
        // The first request makes the thread known; its node is known after a look.
        callers.enter(tid, || volume.stat(ino)).unwrap();
        callers.look();
        callers.enter(tid, || volume.write(ino, 0, &[1; 4096])).unwrap();
        let window = plane.observe(Duration::ZERO).unwrap();
        let thread = &window.threads[0];
        assert_eq!((window.threads.len(), thread.tid, thread.node), (1, tid, NodeId(1)));
        assert_eq!(window.files[0].path.as_deref(), Some("/mnt/file"));
        assert_eq!((thread.write_bytes.get(NodeId(1)), thread.write_bytes.total()), (4096, 4096));
        assert!(thread.pinned.as_ref().is_some_and(|why| why.contains("affinity of its own")), "{:?}", thread.pinned);
        done.wait();
    });
    assert_eq!(volume.bytes_by_node(ino).unwrap()[&Some(1)], 4096);
}

/// A server that runs for weeks sees any number of threads; their bytes stay in the sum.
fn ended_threads_keep_no_counters() {
    const THREADS: u64 = 200;
    let volume = volume();
    let ino = file_on(&volume, "file", 0);
    let mut plane = plane(&volume);
    let read = || volume.usage().regions.iter().map(|region| region.traffic.read).sum::<u64>();
    let before = read();
    for _ in 0..THREADS {
        std::thread::scope(|scope| {
            scope.spawn(|| volume.read(ino, 0, &mut [0; 4096]).unwrap());
        });
    }
    // The kernel takes a thread away a little after it has ended.
    for _ in 0..20 {
        plane.observe(Duration::from_millis(10)).unwrap();
    }
    let known = volume.traffic_by_thread(|_| true);
    assert!(known.len() < 20, "{} threads have counters", known.len());
    assert_eq!(read() - before, THREADS * 4096);
}

/// With a policy a server kept each file in memory that was ever used: it looked at them after the
/// kernel had forgotten them.
fn files_that_the_kernel_has_forgotten_stay_so() {
    let volume = volume();
    let mut plane = plane(&volume);
    let files: Vec<Ino> = (0..8).map(|i| file_on(&volume, &format!("f{i}"), 0)).collect();
    for ino in &files {
        volume.read(*ino, 0, &mut [0; 4096]).unwrap();
        volume.remember(*ino).unwrap();
        volume.forget(*ino, 1).unwrap();
    }
    let window = plane.observe(Duration::from_millis(1)).unwrap();
    assert_eq!((window.files.len(), volume.inodes_in_memory()), (files.len(), 1));
    for ino in &files {
        let mv = mv(id(*ino), None, 1);
        plane.prepare(&mv).unwrap();
        plane.start(&mv, &[], &mut |_| Ok(())).unwrap();
        while plane.poll().into_iter().any(|p| p.state == JobState::Running) {
            std::thread::yield_now();
        }
        assert_eq!(volume.bytes_by_node(*ino).unwrap(), [(Some(1), FILE_BYTES as u64)].into());
        // What the test itself has read.
        volume.remember(*ino).unwrap();
        volume.forget(*ino, 1).unwrap();
    }
    drop(plane);
    volume.let_go_again(usize::MAX);
    assert_eq!(volume.inodes_in_memory(), 1);
}
