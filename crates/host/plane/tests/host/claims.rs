//! The owner of an affinity: us, an ancestor that we moved, or the program itself.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use act::Actor;
use act::watched::Unwatched;
use engine::{Finished, MoveEvent, Plane, StateDir, Undone, recover};
use host::Observe;
use linux::affinity;
use linux::births::{Descendant, Origin};
use linux::threads::own_tid;
use observe::{ObserveError, Observed};
use placement::{Move, Subject};
use testing::world::{Running, all, children, mask, node, second_of, tids, topology, wait_for};
use testing::{Case, Tried, any_kernel, cases, linux_from, two_cpus};
use topology::ThreadId;

use crate::forks::WithBirths;
use crate::world::{Scripted, engine, made, move_of, plane, step};

pub const CASES: &[Case] = cases![
    [two_cpus()]
        the_end_of_a_worker_leaves_its_first_thread_bound,
        exec_by_another_thread_is_restored_every_window,
        exec_by_another_thread_is_restored_after_a_crash,
        a_child_is_restored_once,
        an_affinity_set_by_a_sibling_of_a_moved_thread_is_its_own;
    [two_cpus(), any_kernel()]
        exec_by_another_thread_is_restored_at_the_end,
        an_exec_that_is_not_reported_yet_is_restored_at_the_end,
        exec_after_the_first_thread_was_moved_elsewhere_is_restored_after_a_crash,
        a_narrow_mask_that_nobody_asked_for_is_the_default;
    // Before, the kernel does not record which affinity was asked for.
    [two_cpus(), linux_from(6, 2)]
        an_affinity_set_by_the_program_is_its_own_even_if_it_equals_ours,
        an_affinity_seen_by_an_earlier_look_is_not_taken_for_the_present_one,
        an_affinity_set_just_before_the_end_is_kept;
];

/// A program whose second thread, once a file is there, becomes another program by exec. Its first
/// thread keeps to node 0 if there is a second argument.
pub fn be_exec(args: &[String]) {
    use std::os::unix::process::CommandExt;
    let go = Path::new(&args[0]).to_owned();
    affinity::set(std::process::id(), &all()).unwrap();
    let worker = std::thread::spawn(move || {
        wait_for(|| go.exists());
        panic!("{}", std::process::Command::new("sleep").arg("600").exec());
    });
    if args.len() > 1 {
        affinity::set(std::process::id(), &node(0)).unwrap();
    }
    println!("ready");
    worker.join().unwrap();
}

fn execs(go: &Path) -> Running {
    Running::role("exec", &[go.to_str().unwrap(), "bound"])
}

/// Whether the new program runs. It has its name before the kernel reports the exec, and sleeps
/// only after.
fn sleeps(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains("(sleep) S")
}

fn exec_by_another_thread_is_restored_every_window() -> Tried {
    let tmp = tempfile::tempdir().unwrap();
    let program = execs(&tmp.path().join("go"));
    let pid = program.pid();
    let worker = second_of(pid);
    let mut engine = engine(plane(Some(WithBirths::of(&[pid])?)), 1, None);
    engine.step().unwrap();
    assert_eq!((mask(pid), mask(worker)), (node(0), node(1)));
    std::fs::write(tmp.path().join("go"), "").unwrap();
    wait_for(|| sleeps(pid));
    // The moved thread now has the id and start time of the first one.
    assert_eq!((tids(pid), mask(pid)), (vec![pid], node(1)));
    let report = engine.step().unwrap();
    assert_eq!((report.inherited_restored, mask(pid)), (1, all()));
    // From now on it can be moved like any other.
    assert_eq!(step(&mut engine), [MoveEvent::Applied]);
    assert_eq!(mask(pid), node(1));
    let finished = engine.finish();
    assert_eq!((finished.restored, finished.failed), (1, 0), "{finished:?}");
    assert_eq!(mask(pid), all());
    Ok(())
}

fn exec_by_another_thread_is_restored_at_the_end() -> Tried {
    exec_then_finish(|births| births)
}

fn exec_then_finish(observer: impl FnOnce(Box<WithBirths>) -> Box<dyn Observe>) -> Tried {
    let tmp = tempfile::tempdir().unwrap();
    let program = execs(&tmp.path().join("go"));
    let pid = program.pid();
    let mut engine = engine(plane(Some(observer(WithBirths::of(&[pid])?))), 1, None);
    engine.step().unwrap();
    std::fs::write(tmp.path().join("go"), "").unwrap();
    wait_for(|| sleeps(pid));
    let finished = engine.finish();
    assert_eq!((finished.restored, finished.inherited, finished.gone), (1, 1, 1), "{finished:?}");
    assert_eq!(mask(pid), all());
    Ok(())
}

/// The kernel's report of births, but for what a look at it answers.
struct Altered<F>(Box<WithBirths>, F);

impl<F: FnMut(&mut WithBirths) -> Result<Vec<Descendant>, ObserveError>> Observe for Altered<F> {
    fn window(&mut self, length: Duration) -> Result<Observed, ObserveError> {
        self.0.window(length)
    }

    fn watch(&mut self, thread: ThreadId) -> Result<(), ObserveError> {
        self.0.watch(thread)
    }

    fn release(&mut self, tid: u32) -> Result<(), ObserveError> {
        self.0.release(tid)
    }

    fn descendants(&mut self) -> Result<Vec<Descendant>, ObserveError> {
        (self.1)(&mut self.0)
    }
}

fn an_exec_that_is_not_reported_yet_is_restored_at_the_end() -> Tried {
    let mut late = 4;
    exec_then_finish(|births| {
        Box::new(Altered(births, move |births: &mut WithBirths| {
            let mut descendants = births.descendants()?;
            if descendants.iter().any(|d| d.origin == Origin::Exec) && late > 0 {
                late -= 1;
                descendants.retain(|d| d.origin != Origin::Exec);
            }
            Ok(descendants)
        }))
    })
}

fn exec_by_another_thread_is_restored_after_a_crash() -> Tried {
    let tmp = tempfile::tempdir().unwrap();
    let (dir, go) = (tmp.path().join("state"), tmp.path().join("go"));
    let program = execs(&go);
    let pid = program.pid();
    let mut daemon = Running::role("daemon", &[dir.to_str().unwrap(), &pid.to_string()]);
    daemon.kill();
    std::fs::write(&go, "").unwrap();
    wait_for(|| sleeps(pid));
    assert_eq!(mask(pid), node(1));
    let finished = recover(&mut plane(None), &StateDir::open(&dir).unwrap()).unwrap();
    assert_eq!((finished.restored, finished.inherited, finished.gone), (1, 1, 1), "{finished:?}");
    assert_eq!(mask(pid), all());
    Ok(())
}

fn exec_after_the_first_thread_was_moved_elsewhere_is_restored_after_a_crash() -> Tried {
    let tmp = tempfile::tempdir().unwrap();
    let go = tmp.path().join("go");
    let program = Running::role("exec", &[go.to_str().unwrap()]);
    let pid = program.pid();
    let worker = second_of(pid);
    let mut crashed = plane(Some(Scripted::of(&[pid])));
    let mut made = |tid, to| {
        crashed.observe(Duration::ZERO).unwrap();
        // A policy may not know when the thread started.
        made(&mut crashed, &Move { pid, subject: Subject::Thread(ThreadId::new(tid, 0)), ..move_of(tid, to) }).remove(0)
    };
    // When the second thread is moved, the first has the same value.
    made(pid, 1);
    let owned = [made(worker, 1), made(pid, 0)];
    std::fs::write(&go, "").unwrap();
    wait_for(|| sleeps(pid));
    assert_eq!(mask(pid), node(1));
    let mut next = plane(None);
    assert_eq!(next.undo(&owned[1]).unwrap(), Undone::ChangedByOthers);
    let inherited = next.inherited(&owned).unwrap();
    assert_eq!(inherited.len(), 1);
    assert_eq!(next.undo(&inherited[0].undo).unwrap(), Undone::Restored);
    assert_eq!(mask(pid), all());
    Ok(())
}

/// A program whose second thread ends once a file is there.
pub fn be_ending(args: &[String]) {
    let go = Path::new(&args[0]).to_owned();
    let worker = std::thread::spawn(move || wait_for(|| go.exists()));
    println!("ready");
    worker.join().unwrap();
    std::thread::sleep(Duration::from_secs(600));
}

/// The plane of a volume watches no births. The end of a worker looked there like an exec of it
/// that made it the first thread, and the first thread was put back.
fn the_end_of_a_worker_leaves_its_first_thread_bound() -> Tried {
    let tmp = tempfile::tempdir().unwrap();
    let go = tmp.path().join("go");
    let program = Running::role("ending", &[go.to_str().unwrap()]);
    let pid = program.pid();
    let worker = second_of(pid);
    let mut actor = Actor::<Unwatched>::new(Default::default(), topology(), None).unwrap();
    actor.begin_window();
    // Both are prepared before one is bound, as the engine does.
    let of_process = |tid| Move { pid, ..move_of(tid, 1) };
    let moves = [of_process(worker), of_process(pid)];
    let owned: Vec<_> = moves.iter().flat_map(|mv| actor.prepare(mv).unwrap()).collect();
    for (mv, undo) in moves.iter().zip(&owned) {
        actor.start(mv, std::slice::from_ref(undo), &mut |_| Ok(())).unwrap();
    }
    std::fs::write(&go, "").unwrap();
    wait_for(|| tids(pid) == [pid]);
    actor.begin_window();
    assert_eq!(actor.inherited(&owned).unwrap().len(), 0);
    assert_eq!((actor.ended(&owned[0]), actor.ended(&owned[1])), (true, false));
    assert_eq!(actor.undo(&owned[1]).unwrap(), Undone::Restored);
    assert_eq!(mask(pid), all());
    Ok(())
}

/// A shell that starts a child once a file is there, and the child.
pub fn parent_of_one(go: &Path) -> Running {
    Running::shell_after(go, "sleep 600 & wait")
}

pub fn child_of(pid: u32) -> u32 {
    let is_it = |child: &u32| {
        std::fs::read_to_string(format!("/proc/{child}/cmdline")).is_ok_and(|line| line.starts_with("sleep\x00600"))
    };
    loop {
        if let Some(child) = children(pid).unwrap().into_iter().find(is_it) {
            return child;
        }
    }
}

fn a_child_is_restored_once() -> Tried {
    let tmp = tempfile::tempdir().unwrap();
    let shell = parent_of_one(&tmp.path().join("go"));
    let mut engine = engine(plane(Some(WithBirths::of(&[shell.pid()])?)), 1, None);
    assert_eq!(step(&mut engine), [MoveEvent::Applied]);
    std::fs::write(tmp.path().join("go"), "").unwrap();
    let child = child_of(shell.pid());
    engine.step().unwrap();
    assert_eq!(mask(child), all());
    // As numactl -N 1 does.
    affinity::set(child, &node(1)).unwrap();
    for _ in 0..3 {
        engine.step().unwrap();
        assert_eq!(mask(child), node(1));
    }
    engine.finish();
    assert_eq!((mask(child), mask(shell.pid())), (node(1), all()));
    Ok(())
}

fn an_affinity_set_by_the_program_is_its_own_even_if_it_equals_ours() -> Tried {
    let tmp = tempfile::tempdir().unwrap();
    let shell = parent_of_one(&tmp.path().join("go"));
    let threads = Running::role("threads", &["2"]);
    let moved = tids(threads.pid());
    let mut engine = engine(plane(Some(WithBirths::of(&[shell.pid(), threads.pid()])?)), 1, None);
    assert_eq!(step(&mut engine), [MoveEvent::Applied, MoveEvent::Applied, MoveEvent::Applied]);
    std::fs::write(tmp.path().join("go"), "").unwrap();
    // A child binds itself before the window ends; a moved thread asks for the affinity it already
    // has.
    let child = child_of(shell.pid());
    affinity::set(child, &node(1)).unwrap();
    let report = engine.step().unwrap();
    assert_eq!(mask(child), node(1));
    assert!(report.snapshot.threads.iter().all(|t| t.pinned.is_none()), "{:?}", report.snapshot.threads);
    affinity::set(moved[1], &node(1)).unwrap();
    engine.step().unwrap();
    let report = engine.step().unwrap();
    let pinned: Vec<u32> = report.snapshot.threads.iter().filter(|t| t.pinned.is_some()).map(|t| t.tid).collect();
    assert_eq!(pinned, [moved[1]]);
    engine.finish();
    assert_eq!((mask(child), mask(moved[1])), (node(1), node(1)));
    assert_eq!((mask(shell.pid()), mask(moved[0])), (all(), all()));
    Ok(())
}

fn an_affinity_seen_by_an_earlier_look_is_not_taken_for_the_present_one() -> Tried {
    let process = Running::role("threads", &["1"]);
    let pid = process.pid();
    let blind = Arc::new(AtomicBool::new(false));
    let blinded = Arc::clone(&blind);
    let observer = Box::new(Altered(WithBirths::of(&[pid])?, move |births: &mut WithBirths| {
        match blinded.load(Ordering::Relaxed) {
            true => Err(ObserveError::Missing { capability: "a look", cause: "the test says so".into() }),
            false => births.descendants(),
        }
    }));
    let mut engine = engine(plane(Some(observer)), 1, None);
    engine.step().unwrap();
    affinity::set(pid, &node(1)).unwrap();
    engine.step().unwrap();
    engine.step().unwrap(); // the affinity is its own now
    affinity::set(pid, &all()).unwrap();
    assert_eq!(step(&mut engine), [MoveEvent::Applied]);
    blind.store(true, Ordering::Relaxed);
    let finished = engine.finish();
    assert_eq!((finished.restored, finished.changed_by_others), (1, 0), "{finished:?}");
    assert_eq!(mask(pid), all());
    Ok(())
}

fn an_affinity_set_just_before_the_end_is_kept() -> Tried {
    let threads = Running::role("threads", &["2"]);
    let moved = tids(threads.pid());
    let mut engine = engine(plane(Some(WithBirths::of(&[threads.pid()])?)), 1, None);
    engine.step().unwrap();
    engine.step().unwrap();
    affinity::set(moved[1], &node(1)).unwrap();
    let finished = engine.finish();
    assert_eq!(finished, Finished { restored: 1, changed_by_others: 1, ..Finished::default() });
    assert_eq!((mask(moved[0]), mask(moved[1])), (all(), node(1)));
    Ok(())
}

/// A program whose second thread starts, once a file is there, a third one that binds itself to
/// node 1 and makes another file.
pub fn be_pinner(args: &[String]) {
    let (go, done) = (Path::new(&args[0]).to_owned(), Path::new(&args[1]).to_owned());
    let (first, second) = (node(0), node(1));
    let unmoved = std::thread::spawn(move || {
        affinity::set(own_tid(), &first).unwrap();
        println!("ready");
        wait_for(|| go.exists());
        let pinner = std::thread::spawn(move || {
            affinity::set(own_tid(), &second).unwrap();
            std::fs::write(done, own_tid().to_string()).unwrap();
            std::thread::sleep(std::time::Duration::from_secs(600));
        });
        pinner.join().unwrap();
    });
    unmoved.join().unwrap();
}

fn an_affinity_set_by_a_sibling_of_a_moved_thread_is_its_own() -> Tried {
    let tmp = tempfile::tempdir().unwrap();
    let (go, done) = (tmp.path().join("go"), tmp.path().join("done"));
    let program = Running::role("pinner", &[go.to_str().unwrap(), done.to_str().unwrap()]);
    let mut engine = engine(plane(Some(WithBirths::of(&[program.pid()])?)), 1, None);
    engine.step().unwrap(); // moves the first thread; the second has an affinity of its own
    assert_eq!(mask(program.pid()), node(1));
    std::fs::write(&go, "").unwrap();
    let third = || std::fs::read_to_string(&done).ok().and_then(|tid| tid.parse::<u32>().ok());
    wait_for(|| third().is_some());
    let finished = engine.finish();
    assert_eq!((finished.restored, finished.inherited), (1, 0), "{finished:?}");
    assert_eq!((mask(program.pid()), mask(third().unwrap())), (all(), node(1)));
    Ok(())
}

fn a_narrow_mask_that_nobody_asked_for_is_the_default() -> Tried {
    let process = Running::role("threads", &["1"]);
    affinity::set(process.pid(), &node(0)).unwrap();
    let mut scripted = Scripted::of(&[process.pid()]);
    scripted.asked = Some(false);
    let mut plane = plane(Some(scripted));
    // As after `isolcpus=`: fewer than all CPUs, and nobody asked for that.
    let snapshot = plane.observe(std::time::Duration::ZERO).unwrap();
    assert_eq!((snapshot.threads[0].pinned.as_deref(), snapshot.threads[0].allowed_nodes.len()), (None, 1));
    Ok(())
}
