//! System calls that fail for lack of file descriptors, although the thread is alive.

use engine::{Plane, PlaneError, Undone};
use linux::affinity;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use testing::world::{Running, all, mask};
use testing::{Case, Tried, any_kernel, cases, two_cpus};

use crate::actor;
use crate::moves::{made, move_of};

pub const CASES: &[Case] = cases![[two_cpus(), any_kernel()]
    a_failed_look_at_a_thread_is_not_its_end,
    a_failed_move_changes_nothing,
];

/// Makes every open fail with EMFILE, or lets it succeed again.
fn starve(hungry: bool, limit: &Rlimit) {
    let current = if hungry { Some(0) } else { limit.current };
    setrlimit(Resource::Nofile, Rlimit { current, ..*limit }).unwrap();
}

/// Moves a thread, then runs out of file descriptors.
pub fn be_starved(args: &[String]) {
    let mv = move_of(args[0].parse().unwrap(), 1);
    let mut plane = actor();
    let undo = made(&mut plane, &mv);
    let limit = getrlimit(Resource::Nofile);
    starve(true, &limit);
    let (ended, undone, moved) = (plane.ended(&undo[0]), plane.undo(&undo[0]), plane.prepare(&mv));
    starve(false, &limit);
    assert!(!ended, "a thread that could not be examined was taken for ended");
    assert!(matches!(&undone, Err(PlaneError::Refused { reason: "unreadable", .. })), "{undone:?}");
    assert!(matches!(&moved, Err(PlaneError::Refused { reason: "unreadable", .. })), "{moved:?}");
    assert_eq!(plane.undo(&undo[0]).unwrap(), Undone::Restored);
    println!("ready");
}

fn a_failed_look_at_a_thread_is_not_its_end() -> Tried {
    let process = Running::role("threads", &["1"]);
    Running::role("starved", &[&process.pid().to_string()]);
    assert_eq!(mask(process.pid()), all());
    Ok(())
}

/// Moves a thread again and again while file descriptors run out at any moment.
pub fn be_flickering(args: &[String]) {
    let tid: u32 = args[0].parse().unwrap();
    let mv = move_of(tid, 1);
    let (mut plane, all) = (actor(), all());
    let limit = getrlimit(Resource::Nofile);
    let over = std::sync::atomic::AtomicBool::new(false);
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(relaxed) {
                starve(true, &limit);
                std::hint::spin_loop();
                starve(false, &limit);
            }
        });
        let mut failed = 0;
        while failed < 60 {
            let Ok(undo) = plane.prepare(&mv) else { continue };
            if plane.start(&mv, &undo, &mut |_| Ok(())).is_err() {
                failed += 1;
                let left = affinity::get(tid).unwrap();
                if left != all {
                    println!("a move that failed left {left}");
                    over.store(true, relaxed);
                    return;
                }
                continue;
            }
            while plane.undo(&undo[0]).is_err() {}
            let left = affinity::get(tid).unwrap();
            if left != all {
                println!("a move that was undone left {left}");
                over.store(true, relaxed);
                return;
            }
        }
        over.store(true, relaxed);
        println!("ready");
    });
}

fn a_failed_move_changes_nothing() -> Tried {
    let process = Running::role("threads", &["1"]);
    Running::role("flickering", &[&process.pid().to_string()]);
    assert_eq!(mask(process.pid()), all());
    Ok(())
}
