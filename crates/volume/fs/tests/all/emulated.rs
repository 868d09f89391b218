//! Emulated memory, with a clock that only moves when somebody sleeps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fs::medium::{At, Clock, Direction, Emulated, Medium, Memory, Profile};
use fs::{Ino, Migration, NewFile, Placement, Volume};
use topology::Topology;

use crate::medium::{Ram, blank};
use crate::{format, options};

/// A clock that stands still but for sleeps, which are late by what was asked for.
#[derive(Default)]
pub struct Virtual {
    now: AtomicU64,
    late: AtomicU64,
    slept: Mutex<Vec<u64>>,
}

impl Clock for Virtual {
    fn now_ns(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }
    fn sleep_until_ns(&self, at: u64) {
        self.slept.lock().unwrap().push(at);
        self.now.fetch_max(at + self.late.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Figures that are easy to reckon with: a block takes 4,096 ns alone, of which its controller
/// needs 1,024 (read) or 2,048 (write).
const MEMORY: Memory = Memory {
    read_bw: 4e9,
    write_bw: 2e9,
    read_peak: None,
    write_peak: None,
    read_latency_s: 100e-9,
    write_latency_s: 100e-9,
    read_s: 1e-9,
    write_s: 1e-9,
    remote_read: 1.655,
    remote_write: 2.0,
    remote_load: 1.5,
    line: 64,
    modules: 1.0,
    crowding: 1.0,
};

pub fn profile(scale: f64) -> Profile {
    Profile { name: "test".into(), scale, memory: MEMORY }
}

pub fn two_nodes(profile: &Profile) -> Topology {
    profile.topology(&(0..2).collect(), 2, 1 << 30)
}

/// Two regions, on node 0 and node 1, of 200 blocks each.
fn emulated(scale: f64) -> (Emulated<Ram>, Arc<Virtual>) {
    let (profile, clock) = (profile(scale), Arc::new(Virtual::default()));
    let topology = two_nodes(&profile);
    let ram = Ram::new(blank(&[200, 200]));
    let medium = Emulated::new(ram, &[Some(0), Some(1)], profile, topology, Arc::<Virtual>::clone(&clock));
    medium.start();
    (medium, clock)
}

const BLOCK: usize = 4096;

fn read(medium: &dyn Medium, from: u32, region: usize) {
    fs::on_node(from, || medium.read(At { region, offset: 0 }, &mut [0; BLOCK])).unwrap();
}

/// Runs `work` in a thread of its own: what a thread owes is kept by thread.
fn apart(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap();
}

#[test]
fn a_remote_read_takes_1_655_times_as_long_and_everything_grows_with_the_scale() {
    for scale in [10.0, 50.0] {
        let (medium, clock) = emulated(scale);
        // 4,096 B × 1 ns, alone.
        read(&medium, 0, 0);
        let local = clock.now_ns();
        read(&medium, 1, 0);
        assert_eq!((local as f64, (clock.now_ns() - local) as f64), (4096.0 * scale, (4096.0 * 1.655 * scale).floor()));
    }
}

#[test]
fn readers_of_one_node_share_what_its_controller_carries_and_those_of_two_do_not() {
    // Forty readers at once, each in a thread of its own, all arriving at 0: the clock does not
    // move while they enter.
    let last = |regions: usize| {
        let (medium, clock) = emulated(10.0);
        let gate = std::sync::Barrier::new(40);
        std::thread::scope(|scope| {
            for reader in 0..40 {
                let (medium, gate) = (&medium, &gate);
                scope.spawn(move || {
                    // A store is posted, so it enters without waiting.
                    let region = reader % regions;
                    let at = At { region, offset: 0 };
                    fs::on_node(region as u32, || medium.write_data(at, &[0; BLOCK])).unwrap();
                    gate.wait();
                    medium.fence().unwrap();
                });
            }
        });
        let busy: Vec<u64> = medium.carried().iter().map(|c| c.busy.as_nanos() as u64).collect();
        (clock.now_ns(), busy)
    };
    // The 40th starts when 39 × 20,480 ns are over, and takes 40,960 ns.
    assert_eq!(last(1), (39 * 20_480 + 40_960, vec![40 * 20_480, 0]));
    assert_eq!(last(2), (19 * 20_480 + 40_960, vec![20 * 20_480; 2]));
}

#[test]
fn reads_and_writes_occupy_one_controller_by_their_own_bandwidths() {
    let (medium, clock) = emulated(10.0);
    let at = At { region: 0, offset: 0 };
    apart(|| {
        fs::on_node(0, || {
            (0..10).for_each(|_| medium.write_data(at, &[0; BLOCK]).unwrap());
            medium.read(at, &mut [0; BLOCK]).unwrap();
        });
    });
    // The reader, the same thread, arrives when its last write is done: 9 × 20,480 + 40,960; the
    // controller is free before that.
    assert_eq!(clock.now_ns(), 9 * 20_480 + 40_960 + 40_960);
    assert_eq!(medium.carried()[0].busy.as_nanos(), 10 * 20_480 + 10_240);
    assert_eq!((medium.carried()[0].read, medium.carried()[0].written), (4096, 40_960));
}

#[test]
fn a_store_is_posted_and_the_fence_waits_for_it() {
    let (medium, clock) = emulated(10.0);
    apart(|| {
        medium.write_data(At { region: 0, offset: 0 }, &[0; BLOCK]).unwrap();
        assert_eq!(clock.now_ns(), 0);
        medium.fence().unwrap();
        assert!(clock.now_ns() >= 40_960);
    });
    // Another thread has nothing to wait for.
    let before = clock.now_ns();
    apart(|| medium.fence().unwrap());
    assert_eq!(clock.now_ns(), before);
}

#[test]
fn a_late_sleep_is_made_up_for_and_short_waits_add_up() {
    let (medium, clock) = emulated(10.0);
    clock.late.store(3_000, Ordering::Relaxed);
    apart(|| {
        for _ in 0..100 {
            read(&medium, 0, 0);
        }
    });
    assert_eq!(clock.now_ns(), 100 * 40_960 + 3_000, "late once, not a hundred times");
    // 100 ns × 1: too short to sleep for, fifty times, then once for all.
    let (medium, clock) = emulated(1.0);
    apart(|| {
        for _ in 0..60 {
            fs::on_node(0, || medium.read(At { region: 0, offset: 0 }, &mut [0; 8])).unwrap();
        }
    });
    assert_eq!(*clock.slept.lock().unwrap(), [5_000]);
}

#[test]
fn nothing_takes_time_before_the_start() {
    let (profile, clock) = (profile(1.0), Arc::new(Virtual::default()));
    let topology = two_nodes(&profile);
    let ram = Ram::new(blank(&[1, 1]));
    let medium = Emulated::new(ram, &[Some(0), None], profile, topology, Arc::<Virtual>::clone(&clock));
    read(&medium, 1, 0);
    assert_eq!(clock.now_ns(), 0);
}

#[test]
fn small_accesses_cost_a_line_and_the_latency() {
    let optane = Memory::OPTANE;
    // 64 bytes are a line of 256: 256 / 2 GB/s = 128 ns, more than the 81 ns that a thread alone
    // waits.
    let cost = optane.cost(Direction::Write, 64, 0.0, 1.0);
    assert_eq!((cost.service_ns, cost.alone_ns), (128, 128));
    // 305 ns, and × 1.655 from afar.
    assert_eq!(optane.cost(Direction::Read, 64, 0.0, 1.0).alone_ns, 305);
    assert_eq!(optane.cost(Direction::Read, 64, 1.0, 1.0).alone_ns, 504);
    // 4,096 / 6 GB/s × 1.529, half a hop further × 1.265.
    assert_eq!(optane.cost(Direction::Read, 4096, 1.0, 1.0).service_ns, 1043);
    assert_eq!(optane.cost(Direction::Read, 4096, 0.5, 1.0).service_ns, 863);
}

#[test]
fn cpus_are_shared_out_in_groups_and_policies_see_the_scaled_peaks() {
    let optane = Profile::named("optane").unwrap();
    let topology = optane.topology(&[0, 1, 4, 6, 7].into_iter().collect(), 2, 1 << 20);
    let cpus: Vec<String> = topology.nodes.iter().map(|n| n.cpus.to_string()).collect();
    assert_eq!(cpus, ["0-1", "4,6-7"]);
    assert_eq!(topology.nodes[1].read_bw_max, Some(6.8e9 / optane.scale));
    assert_eq!(topology.distance(topology::NodeId(0), topology::NodeId(1)), Some(21));
    // More nodes than CPUs: some have none.
    let many = optane.topology(&(0..2).collect(), 3, 1);
    assert_eq!(many.nodes.iter().map(|n| n.cpus.len()).collect::<Vec<_>>(), [0, 1, 1]);
    assert!(!topology.has_slow_memory());
}

#[test]
fn impossible_profiles_are_refused_with_the_figure() {
    for name in Profile::NAMES {
        Profile::named(name).unwrap().check().unwrap();
    }
    let bad = |change: fn(&mut Profile)| {
        let mut profile = profile(1.0);
        change(&mut profile);
        profile.check().unwrap_err()
    };
    assert_eq!(bad(|p| p.scale = 0.0), "scale is 0, it must be 1 to 1000000");
    assert_eq!(bad(|p| p.memory.write_bw = 0.0), "write_bw is 0, it must be at least a million bytes per second");
    assert!(bad(|p| p.memory.modules = 0.5).starts_with("modules is 0.5"));
    assert!(bad(|p| p.memory.remote_read = f64::NAN).starts_with("remote_read is NaN"));
    assert!(bad(|p| p.memory.read_s = -1.0).starts_with("read_s is -1"));
}

/// What a policy judges by is what was read, from where, and by whom.
#[test]
fn what_is_read_of_each_range_is_told_once_by_node() {
    const B: u64 = BLOCK as u64;
    let ram = Ram::new(blank(&[200, 200]));
    format(Box::new(ram.clone()), 2);
    let volume = Volume::mount(Box::new(ram), options(2)).unwrap();
    let file = volume.create(Ino::ROOT, b"file", NewFile { mode: 0o644, ..NewFile::default() }).unwrap().ino;
    volume.write_to(file, 0, &[1; 6 * BLOCK], Placement::Node(0)).unwrap();
    volume.write_to(file, 6 * B, &[2; 14 * BLOCK], Placement::Node(1)).unwrap();
    let read = |offset: u64, bytes: usize| fs::on_node(1, || volume.read(file, offset, &mut vec![0; bytes]).unwrap());
    read(0, BLOCK);
    volume.watch_ranges(4 * B);
    read(2 * B + 100, 4 * BLOCK);
    read(3 * B, BLOCK);
    let range = Migration { to: 1, first: 4, end: Some(5), ..Migration::default() };
    assert_eq!(volume.migrate(file, range, |_| true).unwrap().moved, 1);
    let told = |range, region, bytes| fs::RangeUse { ino: file, range, region, by: Some(1), bytes };
    let all = vec![told(0, 0, 3 * B - 100), told(1, 0, 2 * B), told(1, 1, 100)];
    assert_eq!(volume.take_ranges(), (all, 0));
    assert_eq!(volume.take_ranges(), (Vec::new(), 0));
    // However many ranges are read, memory is bounded, and no byte is lost without a word.
    volume.watch_ranges(1);
    read(0, 20 * BLOCK);
    let (ranges, untold) = volume.take_ranges();
    assert!(ranges.len() <= 65_536 && untold > 0, "{} ranges", ranges.len());
    assert_eq!(ranges.iter().map(|range| range.bytes).sum::<u64>() + untold, 20 * B);
}

/// A write goes to the node of the thread that it is made for, and each thread's bytes of each file
/// are told, once.
#[test]
fn writes_land_beside_the_caller_and_uses_are_told_once() {
    let ram = Ram::new(blank(&[200, 200]));
    format(Box::new(ram.clone()), 2);
    let options = fs::Options { placement: Placement::Local, topology: Some(two_nodes(&profile(1.0))), ..options(2) };
    let volume = Volume::mount(Box::new(ram), options).unwrap();
    let file = volume.create(Ino::ROOT, b"file", NewFile { mode: 0o644, ..NewFile::default() }).unwrap().ino;
    volume.write(file, 0, &[1; BLOCK]).unwrap();
    volume.watch_files();
    for (tid, node) in [(11, 0), (12, 1)] {
        fs::as_thread(tid, || fs::on_node(node, || volume.write(file, 0, &[2; 2 * BLOCK]))).unwrap();
        assert_eq!(volume.bytes_by_node(file).unwrap(), [(Some(node), 2 * BLOCK as u64)].into());
    }
    let mut out = [0; BLOCK];
    for offset in [0, BLOCK as u64, 100] {
        fs::as_thread(11, || volume.read(file, offset, &mut out)).unwrap();
    }
    volume.migrate_file(file, 0, None, |_| true).unwrap();
    let (uses, untold) = volume.take_uses();
    let told: Vec<_> = uses
        .iter()
        .map(|u| (u.tid, u.regions[0].read, u.regions[1].read, u.regions[0].written, u.regions[1].written))
        .collect();
    assert_eq!(told, [(11, 0, 3 * 4096, 8192, 0), (12, 0, 0, 0, 8192)], "{untold}");
    assert_eq!((uses[0].ino, uses[0].reads, uses[0].sequential), (file, 3, 1));
    assert_eq!(volume.take_uses(), (Vec::new(), 0));
    fs::as_thread(12, || volume.read(file, 0, &mut out)).unwrap();
    assert_eq!(volume.take_uses().0.iter().map(|u| (u.tid, u.regions[0].read)).collect::<Vec<_>>(), [(12, 4096)]);
}
