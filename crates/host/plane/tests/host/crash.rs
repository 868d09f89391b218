//! `kill -9`, then the next start.

use std::path::Path;

use engine::journal::{Event, read};
use engine::{StateDir, Undone, recover};
use host::HostPlane;
use linux::affinity;
use testing::world::{Running, all, mask, node, tids};
use testing::{Case, Tried, any_kernel, cases, two_cpus};

use crate::claims::{child_of, parent_of_one};
use crate::world::{Scripted, engine, plane};

pub const CASES: &[Case] = cases![
    [two_cpus()] killed_and_recovered;
    [two_cpus(), any_kernel()] killed_and_started_again;
];

/// Moves all threads of the given processes and then waits to be killed.
pub fn be_daemon(args: &[String]) {
    let pids: Vec<u32> = args[1..].iter().map(|a| a.parse().unwrap()).collect();
    let state = StateDir::open(Path::new(&args[0])).unwrap();
    let mut engine = engine(plane(Some(Scripted::of(&pids))), 1, Some(state));
    engine.step().unwrap();
    println!("ready");
    loop {
        engine.step().unwrap();
    }
}

fn killed_and_recovered() -> Tried {
    recovered_by(|| plane(None))
}

fn killed_and_started_again() -> Tried {
    recovered_by(|| plane(Some(Scripted::of(&[]))))
}

/// `restore` with a plane that can only act, and the next start with one that observes.
fn recovered_by(plane_of: fn() -> HostPlane) -> Tried {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("state");
    let go = tmp.path().join("go");
    let program = Running::role("threads", &["4"]);
    let own = *tids(program.pid()).last().unwrap();
    affinity::set(own, &node(0)).unwrap();
    let parent = parent_of_one(&go);
    let mut ended = Running::role("threads", &["1"]);
    let taken = Running::role("threads", &["1"]);

    let pids: Vec<String> = [&program, &parent, &ended, &taken].iter().map(|r| r.pid().to_string()).collect();
    let args: Vec<&str> = [dir.to_str().unwrap()].into_iter().chain(pids.iter().map(String::as_str)).collect();
    let mut daemon = Running::role("daemon", &args);
    assert_eq!(mask(program.pid()), node(1));
    let error = StateDir::open(&dir).unwrap_err().to_string();
    assert!(error.contains(&format!("(pid {})", daemon.pid())), "{error}");
    daemon.kill();

    // Without the daemon, a child is born, a thread ends, and another program binds a third.
    std::fs::write(&go, "").unwrap();
    let child = child_of(parent.pid());
    assert_eq!(mask(child), node(1));
    ended.kill();
    affinity::set(taken.pid(), &node(0)).unwrap();

    let mut plane = plane_of();
    let finished = recover(&mut plane, &StateDir::open(&dir).unwrap()).unwrap();
    assert_eq!((finished.restored, finished.inherited), (5, 1), "{finished:?}"); // 3 threads, the shell, its child
    assert_eq!((finished.changed_by_others, finished.gone, finished.failed), (1, 1, 0), "{finished:?}");
    for tid in tids(program.pid()) {
        assert_eq!(mask(tid), if tid == own { node(0) } else { all() });
    }
    assert_eq!((mask(parent.pid()), mask(child), mask(taken.pid())), (all(), all(), node(0)));

    // A second recovery finds nothing, and the journal tells of the first.
    let again = recover(&mut plane, &StateDir::open(&dir).unwrap()).unwrap();
    assert_eq!(again, engine::Finished::default());
    let mut entries = read(&dir).unwrap();
    entries.retain(|e| e.thread.as_ref().is_some_and(|about| about.tid == parent.pid()));
    let Event::Undone { result, affinity, occasion } = &entries.last().unwrap().event else { panic!("{entries:?}") };
    assert_eq!((*result, affinity, occasion.as_str()), (Undone::Restored, &all().to_string(), "after a crash"));
    assert!(entries.iter().any(|e| matches!(e.event, Event::Moved(_))));
    Ok(())
}
