//! Children of moved threads, one and thousands.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use engine::{Engine, MoveEvent, StateDir};
use host::Observe;
use linux::affinity;
use linux::births::Descendant;
use linux::threads::Threads;
use observe::{ObserveError, Observed, Observer};
use placement::{Plan, Reason, Subject};
use testing::world::{Running, all, children, mask, node, tids, topology, wait_for};
use testing::{Case, Tried, any_kernel, cases, skip, two_cpus};
use topology::{CpuSet, ThreadId};

use crate::claims::child_of;
use crate::world::{Scripted, a_move, all_to, engine, plane, script, settings, step};

pub const CASES: &[Case] = cases![
    [two_cpus()] children_are_restored_at_the_end, children_are_restored_every_window_with_bpf;
    [two_cpus(), any_kernel()]
        threads_that_a_moved_process_starts_later_stay_with_it,
        restores_among_thousands_of_forks,
        restores_among_thousands_of_forks_with_bpf;
];

/// The scripted observer with the kernel's real report of births.
pub struct WithBirths(Box<Scripted>, Observer);

impl WithBirths {
    pub fn of(pids: &[u32]) -> Tried<Box<Self>> {
        let observer = Observer::open(&observe::Settings::default(), &topology()).or_else(|e| skip(e.to_string()))?;
        Ok(Box::new(Self(Scripted::of(pids), observer)))
    }
}

impl Observe for WithBirths {
    fn window(&mut self, length: std::time::Duration) -> Result<Observed, ObserveError> {
        Ok(Observed { births_lost: false, ..self.0.window(length)? })
    }

    fn watch(&mut self, thread: ThreadId) -> Result<(), ObserveError> {
        self.1.watch(thread)
    }

    fn release(&mut self, tid: u32) -> Result<(), ObserveError> {
        self.1.release(tid)
    }

    fn descendants(&mut self) -> Result<Vec<Descendant>, ObserveError> {
        self.1.descendants()
    }
}

/// Processes below `pid`, over all generations that still have their parents. One that has just
/// ended has no file of children (ENOENT, ESRCH), and none.
fn below(pid: u32) -> Vec<u32> {
    children(pid).unwrap_or_default().into_iter().flat_map(|child| [vec![child], below(child)].concat()).collect()
}

/// A shell that, once a file is there, starts a child that starts a grandchild; both stay.
fn parent_of_two(go: &Path) -> Running {
    Running::shell_after(go, "(sleep 600 & exec sleep 601) & while :; do sleep 0.05; done")
}

/// Waits until child and grandchild (and not only the shell's own pauses) are there.
fn grown(pid: u32) -> Vec<u32> {
    loop {
        let lasting = |pid: &u32| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.starts_with("sleep\x0060")
        };
        let all: Vec<u32> = below(pid).into_iter().filter(lasting).collect();
        if all.len() == 2 {
            return all;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn children_are_restored_at_the_end() -> Tried {
    let tmp = tempfile::tempdir().unwrap();
    let shell = parent_of_two(&tmp.path().join("go"));
    // Started before the move, and bound by another program to the value we will use: not ours.
    let stranger = Running::shell("echo ready; exec sleep 600");
    affinity::set(stranger.pid(), &node(1)).unwrap();
    let mut engine = engine(plane(Some(Scripted::of(&[shell.pid()]))), 1, None);
    assert_eq!(step(&mut engine), [MoveEvent::Applied]);
    std::fs::write(tmp.path().join("go"), "").unwrap();
    let born = grown(shell.pid());
    assert!(born.iter().all(|pid| mask(*pid) == node(1)));
    // Bound to our value after the move, but not a descendant of the shell.
    let late = Running::shell("echo ready; exec sleep 600");
    affinity::set(late.pid(), &node(1)).unwrap();
    let finished = engine.finish();
    assert!(finished.inherited >= 2 && finished.failed == 0, "{finished:?}");
    assert_eq!(mask(shell.pid()), all());
    assert!(born.iter().all(|pid| mask(*pid) == all()));
    assert_eq!((mask(stranger.pid()), mask(late.pid())), (node(1), node(1)));
    Ok(())
}

fn children_are_restored_every_window_with_bpf() -> Tried {
    let tmp = tempfile::tempdir().unwrap();
    let shell = parent_of_two(&tmp.path().join("go"));
    let mut engine = engine(plane(Some(WithBirths::of(&[shell.pid()])?)), 1, None);
    assert_eq!(step(&mut engine), [MoveEvent::Applied]);
    std::fs::write(tmp.path().join("go"), "").unwrap();
    let born = grown(shell.pid());
    let restored = engine.step().unwrap().inherited_restored;
    assert!(restored >= 2, "{restored}");
    assert!(born.iter().all(|pid| mask(*pid) == all()));
    assert_eq!(mask(shell.pid()), node(1));
    let finished = engine.finish();
    assert_eq!(finished.restored - finished.inherited, 1); // a pause of the shell's may have inherited it again
    Ok(())
}

/// How many processes are born and end while the engine runs, where the machine is fast.
const FORKS: usize = 12_000;

/// A shell that, once a file is there, forks without pause; every 200th child stays. After
/// [`FORKS`] it writes their number to a file and goes on, so that everything is put back while it
/// forks. Once another file is there, fewer are enough.
fn forker(go: &Path, done: &Path, enough: &Path) -> Running {
    let (done, enough) = (done.display(), enough.display());
    let script = format!(
        "n=0; while :; do n=$((n+1)); ( : ); \
         if [ $((n % 200)) = 0 ]; then sleep 600 & if [ ! -e {done} ] && {{ [ $n = {FORKS} ] || [ -e {enough} ]; }}; then \
         echo $n > {done}.new; mv {done}.new {done}; fi; fi; \
         if [ $n = {} ]; then break; fi; done; while :; do sleep 1; done",
        2 * FORKS
    );
    Running::shell_after(go, &script)
}

/// Masks of every thread of these processes.
fn masks(pids: &[u32]) -> BTreeMap<u32, CpuSet> {
    pids.iter().map(|pid| (*pid, mask(*pid))).collect()
}

fn restores_among_thousands_of_forks() -> Tried {
    forks(|pids| Ok(Scripted::of(pids)))
}

fn restores_among_thousands_of_forks_with_bpf() -> Tried {
    forks(|pids| Ok(WithBirths::of(pids)?))
}

fn forks(observer: impl Fn(&[u32]) -> Tried<Box<dyn Observe>>) -> Tried {
    let tmp = tempfile::tempdir().unwrap();
    let (go, done, enough) = (tmp.path().join("go"), tmp.path().join("done"), tmp.path().join("enough"));
    // Bystanders that must stay as they are: one is free, one is bound to our value, one to the
    // other node.
    let witnesses: Vec<Running> = (0..3).map(|_| Running::shell("echo ready; exec sleep 600")).collect();
    let pids: Vec<u32> = witnesses.iter().map(Running::pid).collect();
    affinity::set(pids[1], &node(1)).unwrap();
    affinity::set(pids[2], &node(0)).unwrap();
    let before = masks(&pids);
    // Two shells that fork; only the first is moved.
    let moved = forker(&go, &done, &enough);
    let other = forker(&go, &tmp.path().join("other"), &enough);
    let mut engine = Engine::new(
        plane(Some(observer(&[moved.pid()])?)),
        all_to(1),
        engine::Settings { dwell_s: 0.0, ..settings() },
        None,
    )
    .unwrap();
    let (mut windows, mut applied, mut inherited) = (0, 0, 0);
    // An emulated machine forks a hundred times as slowly.
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !done.exists() {
        if std::time::Instant::now() > patience {
            std::fs::write(&enough, "").unwrap();
        }
        let report = engine.step().unwrap();
        windows += 1;
        std::fs::write(&go, "").unwrap(); // from now on: every child inherits
        inherited += report.inherited_restored;
        assert!(report.notes.is_empty(), "{:?}", report.notes);
        for outcome in report.outcomes {
            assert!(matches!(outcome.result, MoveEvent::Applied), "{outcome:?}");
            applied += 1;
        }
    }
    assert_eq!(applied, 1);
    let finished = engine.finish();
    let stayed = below(moved.pid());
    let forks: usize = std::fs::read_to_string(&done).unwrap().trim().parse().unwrap();
    println!(
        "{forks} forks beside {windows} windows: {inherited} descendants put back on the way, {} at the end",
        finished.inherited
    );
    assert!(stayed.len() >= forks / 200, "{}", stayed.len());
    assert_eq!((finished.failed, finished.changed_by_others, &finished.notes), (0, 0, &Vec::new()));
    assert!(inherited + finished.inherited >= forks / 200);
    let threads = Threads::new(Path::new("/proc"));
    for pid in stayed.iter().chain(&below(other.pid())).chain([&moved.pid(), &other.pid()]) {
        match affinity::get(*pid) {
            Ok(mask) => assert_eq!(mask, all(), "process {pid}"),
            Err(_) => assert_eq!(threads.stat(*pid).unwrap(), None), // a pause of the shell's that is over
        }
    }
    assert_eq!(masks(&pids), before);
    Ok(())
}

/// A process that, once a file is there, starts three threads and a child.
pub fn be_late(args: &[String]) {
    let rest = || std::thread::sleep(Duration::from_secs(600));
    println!("ready");
    wait_for(|| Path::new(&args[0]).exists());
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    (0..3).for_each(|_| _ = std::thread::spawn(rest));
    child.wait().unwrap();
}

/// A thread that a moved process starts in a later window stays with it, has a record of its own,
/// and is put back at the end. A child of it is put back at once.
fn threads_that_a_moved_process_starts_later_stay_with_it() -> Tried {
    let tmp = tempfile::tempdir().unwrap();
    let go = tmp.path().join("go");
    let program = Running::role("late", &[go.to_str().unwrap()]);
    let pid = program.pid();
    let state = StateDir::open(&tmp.path().join("state")).unwrap();
    let plane = plane(Some(WithBirths::of(&[pid])?));
    let mut once = vec![a_move(Subject::process(pid, None), pid, 0, Reason::CacheAffinity)];
    let policy = script(move |_| Plan { moves: std::mem::take(&mut once), ..Plan::default() });
    let mut engine = Engine::new(plane, policy, settings(), Some(state)).unwrap();
    assert_eq!(engine.step().unwrap().owned_threads, 1);
    std::fs::write(&go, "").unwrap();
    wait_for(|| tids(pid).len() == 4);
    let child = child_of(pid);
    assert_eq!(mask(child), node(0));
    for restored in [1, 0] {
        let report = engine.step().unwrap();
        assert_eq!((report.inherited_restored, report.owned_threads), (restored, 4), "{report:?}");
        assert!(masks(&tids(pid)).values().all(|mask| *mask == node(0)), "{:?}", masks(&tids(pid)));
        assert_eq!(mask(child), all());
    }
    let records = std::fs::read_to_string(tmp.path().join("state/state.jsonl")).unwrap();
    assert_eq!(records.matches(r#""record":"hold""#).count(), 4, "{records}");
    let finished = engine.finish();
    assert_eq!((finished.restored, finished.inherited, finished.failed), (4, 0, 0), "{finished:?}");
    assert!(masks(&tids(pid)).values().all(|mask| *mask == all()), "{:?}", masks(&tids(pid)));
    Ok(())
}
