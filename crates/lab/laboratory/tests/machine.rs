//! What the machine must get right before any figure is run, each with its formula beside it.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use clock::{now_ns, sleep_until};
use laboratory::machine::{Build, Machine, Wait};
use memory_model::{Direction, Memory, Profile};
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

/// Nodes of Optane with so many cores each, and a link of so many bytes a second.
fn machine(nodes: u32, cores: u32, link_bw: f64) -> Arc<Machine> {
    let profile = Profile { scale: 1.0, ..Profile::named("optane").unwrap() };
    let topology = profile.topology(&(0..nodes * cores).collect(), nodes, 1 << 30);
    let memory = vec![Memory::OPTANE; nodes as usize];
    Arc::new(Machine::new(Build { topology, memory, link_bw, slice_s: 3e-3, seed: 1 }))
}

/// Runs so many threads on these nodes.
fn run(machine: &Arc<Machine>, on: &[usize], work: impl Fn(&Machine, usize) + 'static) -> u64 {
    let (own, on, work) = (Arc::clone(machine), on.to_vec(), Rc::new(work));
    let end = Rc::new(Cell::new(0));
    let out = Rc::clone(&end);
    clock::run(move || {
        for node in on {
            let (machine, work, end) = (Arc::clone(&own), Rc::clone(&work), Rc::clone(&end));
            own.spawn(Some(node), move |thread| {
                work(&machine, thread);
                end.set(now_ns());
            });
        }
    })
    .unwrap();
    out.get()
}

fn kind(machine: &Machine, wait: Wait) -> f64 {
    machine.waits_s()[wait as usize]
}

#[test]
fn one_access_takes_its_latency_and_a_hop_its_factor() {
    // 4 KiB at 0.629 ns a byte; 1.655 times as long from one hop away.
    for (from, wanted) in [(0, 4096.0 * 0.629), (1, 4096.0 * 0.629 * 1.655)] {
        let end = run(&machine(2, 1, f64::INFINITY), &[from], |machine, thread| {
            machine.take_core(thread);
            machine.access(thread, 0, Direction::Read, 4096);
        });
        assert!((end as f64 - wanted).abs() <= 1.0, "{end} {wanted}");
    }
    // A byte costs the least latency, 305 ns; a store is posted and takes 256 bytes' time at the
    // fence: 256 / 2 GB/s.
    for (direction, wanted) in [(Direction::Read, 305), (Direction::Write, 128)] {
        let end = run(&machine(1, 1, f64::INFINITY), &[0], move |machine, thread| {
            machine.take_core(thread);
            machine.access(thread, 0, direction, 1);
            machine.fence(thread);
        });
        assert_eq!(end, wanted);
    }
}

#[test]
fn readers_fill_a_controller_to_its_bandwidth_and_not_beyond() {
    // One reads 1 / 0.629 GB/s = 1.59 GB/s; four would read 6.4 of 6.
    for (readers, wanted) in [(1, 1.0 / 0.629), (3, 3.0 / 0.629), (4, 6.0), (8, 6.0)] {
        let machine = machine(1, 8, f64::INFINITY);
        let end = run(&machine, &vec![0; readers], |machine, thread| {
            machine.take_core(thread);
            while now_ns() < 1_000_000 {
                machine.access(thread, 0, Direction::Read, 4096);
            }
        });
        let carried = machine.carried()[0];
        let rate = carried.read as f64 / end as f64;
        assert!((rate / wanted - 1.0).abs() < 0.01, "{readers}: {rate} {wanted}");
        assert!(carried.busy_s <= end as f64 * 1e-9, "never more than all of the time");
    }
}

#[test]
fn a_link_carries_its_bandwidth_and_no_more() {
    // Two readers from one hop away would read 2 × 4096 B / 2.67 µs = 3.07 GB/s; the link has 1.
    let machine = machine(2, 2, 1e9);
    let end = run(&machine, &[1, 1], |machine, thread| {
        machine.take_core(thread);
        while now_ns() < 1_000_000 {
            machine.access(thread, 0, Direction::Read, 4096);
        }
    });
    let rate = machine.carried()[0].read as f64 / end as f64;
    assert!((rate - 1.0).abs() < 0.01, "{rate}");
    assert!(kind(&machine, Wait::Link) > 0.5 * 2.0 * end as f64 * 1e-9 * (1.0 - 2.67 / 8.2));
    assert_eq!(kind(&machine, Wait::Core), 0.0);
}

#[test]
fn no_more_threads_work_than_there_are_cores_and_no_time_is_lost() {
    let machine = machine(2, 4, f64::INFINITY);
    let end = run(&machine, &[0; 40], |machine, thread| {
        for _ in 0..50 {
            machine.take_core(thread);
            machine.compute(thread, 700);
            machine.access(thread, 0, Direction::Read, 4096);
            machine.end_call(thread);
            machine.sleep(thread, 100);
        }
    });
    // What the threads had of cores is what the cores have worked, and bytes asked are carried.
    let of_threads: f64 = (0..40).map(|thread| machine.take(thread).core_s).sum();
    let busy = machine.busy_s();
    assert!((of_threads - busy.iter().sum::<f64>()).abs() < 1e-12);
    let of_node = |busy: &f64| busy / (4.0 * end as f64 * 1e-9);
    assert!(busy.iter().map(of_node).all(|share| (0.95..=1.0).contains(&share)), "{busy:?} of {end} ns");
    assert_eq!(machine.carried()[0].read, 40 * 50 * 4096);
    assert!(machine.pulls() > 0, "idle cores took threads that waited on the other node");
}

/// Poisson arrivals at a server that takes a constant time: the mean wait is ρ s / 2 (1 − ρ).
#[test]
fn a_queue_waits_as_its_formula_says() {
    for (rho, seed) in [(0.5, 1), (0.8, 2)] {
        let machine = machine(1, 256, f64::INFINITY);
        let (count, service) = (400_000, 4096.0 / 6e9);
        let arrivals = Rc::new(RefCell::new((0.0, 0, ChaCha12Rng::seed_from_u64(seed))));
        run(&machine, &[0; 256], move |machine, thread| {
            loop {
                let at: f64 = {
                    let (at, made, rng) = &mut *arrivals.borrow_mut();
                    if *made == count {
                        return;
                    }
                    *made += 1;
                    *at -= (1.0 - rng.random::<f64>()).ln() * service / rho;
                    *at
                };
                machine.take_core(thread);
                sleep_until((at * 1e9) as u64);
                machine.access(thread, 0, Direction::Read, 4096);
            }
        });
        let mean = kind(&machine, Wait::Controller) / f64::from(count);
        let formula = rho * service / (2.0 * (1.0 - rho));
        assert!((mean / formula - 1.0).abs() < 0.02, "ρ {rho}: {mean} {formula}");
    }
}

#[test]
fn who_waits_for_a_lock_leaves_its_core_and_who_sleeps_too() {
    // One core. The first sleeps with the lock, the second waits for it, the third computes.
    let machine = machine(1, 1, f64::INFINITY);
    let lock = clock::sync::Mutex::new(());
    let log = Rc::new(RefCell::new(Vec::new()));
    let out = Rc::clone(&log);
    run(&machine, &[0; 3], move |machine, thread| {
        machine.take_core(thread);
        if thread < 2 {
            let _held = lock.lock().unwrap();
            machine.sleep(thread, 1000);
        } else {
            machine.compute(thread, 500);
        }
        log.borrow_mut().push((thread, now_ns()));
    });
    assert_eq!(*out.borrow(), [(2, 500), (0, 1000), (1, 2000)]);
    let [core, lock, .., sleep] = machine.waits_s().map(|s| (s * 1e9).round());
    assert_eq!((core, lock, sleep), (0.0, 1000.0, 2000.0));
}

#[test]
fn a_slice_ends_at_the_end_of_a_call_if_another_thread_waits() {
    let machine = machine(1, 1, f64::INFINITY);
    let log = Rc::new(RefCell::new(Vec::new()));
    let out = Rc::clone(&log);
    run(&machine, &[0; 2], move |machine, thread| {
        for _ in 0..4 {
            machine.compute(thread, 2_000_000);
            machine.end_call(thread);
            log.borrow_mut().push(thread);
        }
    });
    // Calls of 2 ms, slices of 3.
    assert_eq!(*out.borrow(), [0, 0, 1, 1, 0, 0, 1, 1]);
}

#[test]
fn a_thread_that_is_bound_moves_at_its_next_dispatch_or_while_it_waits() {
    let machine = machine(2, 1, f64::INFINITY);
    let log = Rc::new(RefCell::new(Vec::new()));
    let out = Rc::clone(&log);
    run(&machine, &[0; 2], move |machine, thread| {
        machine.take_core(thread);
        if thread == 0 {
            machine.bind(0, Some(0));
            machine.compute(thread, 100);
            // The other one waits here: it goes on there at once.
            machine.bind(1, Some(1));
            machine.bind(0, Some(1));
            machine.compute(thread, 100);
            machine.end_call(thread);
        } else {
            machine.compute(thread, 100);
        }
        log.borrow_mut().push((thread, machine.node_of(thread), now_ns()));
    });
    assert_eq!(*out.borrow(), [(1, 1, 200), (0, 1, 300)]);
}
