//! Order, time and locks of tasks.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use clock::sync::{Condvar, Mutex, RwLock};
use clock::{Seat, TaskLocal, now_ns, run, set_seat, sleep_until, spawn};

type Log = Rc<RefCell<Vec<(u64, usize)>>>;

fn logged(work: impl FnOnce(Log) + 'static) -> Vec<(u64, usize)> {
    let log = Log::default();
    let out = Rc::clone(&log);
    run(move || work(log)).unwrap();
    out.take()
}

fn note(log: &Log, who: usize) {
    log.borrow_mut().push((now_ns(), who));
}

#[test]
fn the_least_wake_time_runs_first_and_ties_go_by_number() {
    let log = logged(|log| {
        for (who, step) in [(1, 3), (2, 2), (3, 3)] {
            let log = Rc::clone(&log);
            spawn(move || {
                for i in 1..=2 {
                    sleep_until(i * step);
                    note(&log, who);
                }
            });
        }
    });
    assert_eq!(log, [(2, 2), (3, 1), (3, 3), (4, 2), (6, 1), (6, 3)]);
}

/// Five tasks draw from a generator of their own how long they work under one lock.
fn crowd(seed: u64) -> Vec<(u64, usize)> {
    logged(move |log| {
        let lock = Arc::new(Mutex::new(0));
        for who in 0..5 {
            let (log, lock) = (Rc::clone(&log), Arc::clone(&lock));
            spawn(move || {
                let mut random = seed + who as u64;
                for _ in 0..100 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let mut count = lock.lock().unwrap();
                    *count += 1;
                    sleep_until(now_ns() + (random >> 58));
                    note(&log, who);
                }
            });
        }
    })
}

#[test]
fn one_seed_gives_one_course() {
    assert_eq!(crowd(7), crowd(7));
    assert_ne!(crowd(7), crowd(8));
    assert_eq!(crowd(7).len(), 500);
}

#[test]
fn a_mutex_is_held_by_one_and_given_on_by_arrival() {
    let log = logged(|log| {
        let lock = Arc::new(Mutex::new(()));
        for who in 0..3 {
            let (log, lock) = (Rc::clone(&log), Arc::clone(&lock));
            spawn(move || {
                let guard = lock.lock().unwrap();
                note(&log, who);
                sleep_until(now_ns() + 10);
                drop(guard);
            });
        }
    });
    assert_eq!(log, [(0, 0), (10, 1), (20, 2)]);
}

#[test]
fn readers_share_and_do_not_overtake_a_writer_that_waits() {
    let log = logged(|log| {
        let lock = Arc::new(RwLock::new(()));
        for (who, writes, at) in [(0, false, 0), (1, false, 1), (2, true, 2), (3, false, 3)] {
            let (log, lock) = (Rc::clone(&log), Arc::clone(&lock));
            spawn(move || {
                sleep_until(at);
                if writes {
                    let _alone = lock.write().unwrap();
                    note(&log, who);
                    sleep_until(now_ns() + 10);
                } else {
                    let _shared = lock.read().unwrap();
                    note(&log, who);
                    sleep_until(now_ns() + 10);
                }
            });
        }
    });
    assert_eq!(log, [(0, 0), (1, 1), (11, 2), (21, 3)]);
}

#[test]
fn a_condition_wakes_who_waits_for_it() {
    let log = logged(|log| {
        let both = Arc::new((Mutex::new(false), Condvar::new()));
        let (other, log_) = (Arc::clone(&both), Rc::clone(&log));
        spawn(move || {
            let mut ready = other.0.lock().unwrap();
            while !*ready {
                ready = other.1.wait(ready).unwrap();
            }
            note(&log_, 1);
        });
        sleep_until(5);
        *both.0.lock().unwrap() = true;
        both.1.notify_all();
        note(&log, 0);
    });
    assert_eq!(log, [(5, 0), (5, 1)]);
}

#[test]
fn tasks_that_wait_for_each_other_are_named() {
    let stuck = run(|| {
        let locks = Arc::new([Mutex::new(()), Mutex::new(())]);
        for who in 0..2 {
            let locks = Arc::clone(&locks);
            spawn(move || {
                let _one = locks[who].lock().unwrap();
                sleep_until(5);
                let _other = locks[1 - who].lock().unwrap();
            });
        }
    });
    let stuck = stuck.unwrap_err();
    assert_eq!((stuck.at_ns, stuck.tasks), (5, vec![1, 2]));
}

#[test]
fn each_task_has_a_value_of_its_own() {
    static OWN: TaskLocal<Cell<u32>> = TaskLocal::new(|| Cell::new(7));
    OWN.set(1);
    let log = logged(|log| {
        for who in 0..2 {
            let log = Rc::clone(&log);
            spawn(move || {
                assert_eq!(OWN.replace(who), 7);
                sleep_until(5);
                note(&log, OWN.get() as usize);
            });
        }
    });
    assert_eq!(log, [(5, 0), (5, 1)]);
    assert_eq!(OWN.get(), 1, "that of this thread");
}

struct Counted(Rc<Cell<(u32, u32)>>);

impl Seat for Counted {
    fn leave(&self) {
        let (left, back) = self.0.get();
        self.0.set((left + 1, back));
    }
    fn come_back(&self) {
        let (left, back) = self.0.get();
        self.0.set((left, back + 1));
    }
}

#[test]
fn a_task_leaves_its_seat_for_a_lock_and_not_for_a_sleep() {
    let count = Rc::new(Cell::new((0, 0)));
    let out = Rc::clone(&count);
    run(move || {
        let lock = Arc::new(Mutex::new(()));
        for _ in 0..2 {
            let (lock, count) = (Arc::clone(&lock), Rc::clone(&count));
            spawn(move || {
                set_seat(Some(Rc::new(Counted(count))));
                let _held = lock.lock().unwrap();
                sleep_until(10);
            });
        }
    })
    .unwrap();
    assert_eq!(out.get(), (1, 1));
}

#[test]
fn a_panic_of_a_task_is_one_of_the_run_and_the_next_world_is_whole() {
    let panicked = std::panic::catch_unwind(|| {
        run(|| {
            spawn(|| sleep_until(10));
            spawn(|| panic!("as told"));
        })
    });
    assert!(panicked.is_err());
    assert_eq!(run(|| sleep_until(3)), Ok(()));
}

#[test]
fn a_task_may_take_much_with_it() {
    let large = [7u8; 1 << 16];
    assert_eq!(run(move || large.iter().map(|byte| u64::from(*byte)).sum::<u64>()), Ok(7 << 16));
}
