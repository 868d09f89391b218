//! Emulated cores: what is charged, in times of clocks that only tests move.

use std::sync::{Arc, Barrier};

use fs::medium::{At, Call, Clock, CoreTime, Cores, Emulated, Medium, Software};

use crate::emulated::{Virtual, profile, two_nodes};
use crate::medium::{Ram, blank};

/// A clock that stands still: whoever asks for something arrives at 0, or when his last call ended.
struct Still;

impl Clock for Still {
    fn now_ns(&self) -> u64 {
        0
    }
    fn sleep_until_ns(&self, _: u64) {}
}

/// Two regions, on node 0 and node 1, and so many cores a node. A read takes 1 µs of software, and
/// 4,096 ns of a block's memory, times 10; other calls 2 µs, times 10.
fn emulated(cores: u32, clock: Arc<dyn Clock>) -> (Emulated<Ram>, Arc<Cores>) {
    let (profile, software) =
        (profile(10.0), Software { read_s: 1e-6, write_s: 2e-6, other_s: 2e-6, ..Software::NOVA });
    let topology = two_nodes(&profile);
    let ram = Ram::new(blank(&[200, 200]));
    let medium = Emulated::new(ram, &[Some(0), Some(1)], profile, topology, clock).with_cores(cores, software);
    medium.start();
    let cores = Arc::clone(medium.cores().unwrap());
    (medium, cores)
}

const BLOCK: usize = 4096;

fn start_of(region: usize) -> At {
    At { region, offset: 0 }
}

/// A call for a thread on a node.
fn call<T>(cores: &Cores, (tid, node): (u32, u32), call: Call, file: Option<u64>, work: impl FnOnce() -> T) -> T {
    fs::as_thread(tid, || fs::on_node(node, || cores.work(call, file, work)))
}

fn ns(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

#[test]
fn eight_threads_on_the_four_cores_of_a_node_do_half_as_much_as_on_eight() {
    // NThread Fig. 4 and 8: the time that they take for ten calls each, and how much of it they
    // wait.
    let run = |count: u32, nodes: u32| {
        let (_, cores) = emulated(count, Arc::new(Still));
        for _ in 0..10 {
            (0..8).for_each(|tid| call(&cores, (tid + 1, tid % nodes), Call::Other, None, || ()));
        }
        let of: Vec<CoreTime> = (0..8).map(|tid| cores.take(tid + 1)).collect();
        assert!(of.iter().all(|time| ns(time.busy_s) == 200_000), "{of:?}");
        assert_eq!(cores.take(1), CoreTime::default(), "told once");
        assert_eq!(ns(cores.busy_s(0) + cores.busy_s(1)), 8 * 200_000);
        of.iter().map(|time| ns(time.busy_s + time.waited_s)).max().unwrap()
    };
    assert_eq!((run(8, 1), run(4, 1), run(4, 2)), (200_000, 400_000, 200_000));
}

#[test]
fn an_access_occupies_its_core_and_begins_after_the_software() {
    let (medium, cores) = emulated(1, Arc::new(Still));
    let read = |tid| call(&cores, (tid, 0), Call::Read, None, || medium.read(start_of(0), &mut [0; BLOCK]).unwrap());
    read(1);
    assert_eq!(cores.take(1), CoreTime { busy_s: 50_960e-9, waited_s: 0.0 });
    // The only core was busy for all of that.
    read(2);
    assert_eq!(cores.take(2), CoreTime { busy_s: 50_960e-9, waited_s: 50_960e-9 });
    // Another node has a core, and a controller, of its own.
    call(&cores, (3, 1), Call::Read, None, || medium.read(start_of(1), &mut [0; BLOCK]).unwrap());
    assert_eq!(cores.take(3), CoreTime { busy_s: 50_960e-9, waited_s: 0.0 });
}

#[test]
fn software_comes_first_and_that_of_names_ends_with_their_accesses() {
    let clock = Arc::new(Virtual::default());
    let (medium, cores) = emulated(1, Arc::<Virtual>::clone(&clock));
    let far = || medium.read(start_of(0), &mut [0; BLOCK]).unwrap();
    call(&cores, (1, 1), Call::Read, None, || {
        assert_eq!(clock.now_ns(), 10_000);
        far();
    });
    assert_eq!((clock.now_ns(), clock.sleeps()), (10_000 + 67_788, 2));
    call(&cores, (1, 1), Call::Name, None, || assert_eq!(clock.now_ns(), 77_788));
    assert_eq!(clock.now_ns(), 77_788 + 24_258);
}

#[test]
fn real_time_between_calls_is_part_of_the_software_and_thinking_is_not() {
    let clock = Arc::new(Virtual::default());
    let (_, cores) = emulated(4, Arc::<Virtual>::clone(&clock));
    // 20 µs of software each.
    let one = || call(&cores, (1, 0), Call::Write, None, || ());
    one();
    assert_eq!(clock.now_ns(), 20_000);
    clock.sleep_until_ns(27_000);
    one();
    assert_eq!(clock.now_ns(), 40_000, "7 µs of the second one's 20 had passed");
    clock.sleep_until_ns(1_000_000);
    one();
    assert_eq!(clock.now_ns(), 1_000_000, "no more than its software");
    // A thread without an earlier call owes as much as any other.
    call(&cores, (2, 0), Call::Name, None, || ());
    assert!(clock.now_ns() < 1_000_000 + 24_260);
}

#[test]
fn readers_of_a_file_on_one_node_find_a_part_of_it_in_its_cache() {
    // III-D: bytes that a read takes of its controller while others read the file, by their nodes.
    let beside = |others: &[u32], file: u64| {
        let (medium, cores) = emulated(8, Arc::new(Still));
        let (begun, end) = (Barrier::new(others.len() + 1), Barrier::new(others.len() + 1));
        std::thread::scope(|scope| {
            for (i, node) in others.iter().enumerate() {
                let (cores, begun, end) = (&cores, &begun, &end);
                scope.spawn(move || {
                    call(cores, (10 + i as u32, *node), Call::Read, Some(7), || {
                        begun.wait();
                        end.wait();
                    });
                });
            }
            begun.wait();
            let read = || medium.read(start_of(0), &mut [0; BLOCK]).unwrap();
            call(&cores, (1, 0), Call::Read, Some(file), read);
            end.wait();
        });
        let read = medium.carried()[0].read;
        // Nobody is left: the next one is alone.
        call(&cores, (1, 0), Call::Read, Some(7), || medium.read(start_of(0), &mut [0; BLOCK]).unwrap());
        assert_eq!(medium.carried()[0].read, read + 4096);
        read
    };
    let shared = (4096.0 / 1.315) as u64;
    assert_eq!(
        (beside(&[], 7), beside(&[0, 0], 7), beside(&[1, 1], 7), beside(&[0, 0], 8)),
        (4096, shared, 4096, 4096)
    );
    assert_eq!(beside(&[0, 1], 7), (4096.0 + 4096.0 / 1.315) as u64 / 2);
}

#[test]
fn more_than_four_writers_take_longer_where_there_are_cores() {
    let busy = |writers: usize, crowds: bool| {
        let (medium, _) = emulated(8, Arc::new(Still));
        let profile = profile(10.0);
        let topology = two_nodes(&profile);
        let plain = Emulated::new(Ram::new(blank(&[200])), &[Some(0)], profile, topology, Arc::new(Still));
        plain.start();
        let medium = if crowds { &medium } else { &plain };
        let gate = Barrier::new(writers);
        std::thread::scope(|scope| {
            for _ in 0..writers {
                scope.spawn(|| {
                    fs::on_node(0, || medium.write_data(start_of(0), &[0; BLOCK])).unwrap();
                    gate.wait();
                    medium.fence().unwrap();
                });
            }
        });
        let carried = medium.carried()[0].busy.as_nanos() as u64;
        // They have gone.
        fs::on_node(0, || medium.write_data(start_of(0), &[0; BLOCK])).unwrap();
        medium.fence().unwrap();
        assert_eq!(medium.carried()[0].busy.as_nanos() as u64, carried + 20_480);
        carried
    };
    assert_eq!((busy(4, true), busy(8, false)), (4 * 20_480, 8 * 20_480));
    // The fifth to eighth, as OptaneStudy measured 6 and 8 threads.
    let six = 2.20 / 1.96;
    let eight = 2.20 / 1.53;
    let times = 4.0 + f64::midpoint(1.0, six) + six + f64::midpoint(six, eight) + eight;
    assert!(busy(8, true).abs_diff((times * 20_480.0) as u64) < 8);
}

#[test]
fn what_is_done_for_nobody_takes_no_core() {
    let (_, cores) = emulated(1, Arc::new(Still));
    assert_eq!(fs::on_node(0, || cores.work(Call::Name, None, || 5)), 5);
    assert_eq!(cores.busy_s(0), 0.0);
}
