//! Traces left after the engine stops: none.

use engine::{Engine, Settings, StateDir, recover};

use crate::fake::{Fake, LATE, go_home, mv, process, script, set};
use crate::kept;

#[test]
fn masks_that_hold_our_value_are_as_before_and_others_untouched() {
    let plane = Fake::new([(1, 0, 1), (2, 0, 1), (3, 0, 1), (4, 0, 0), (5, 0, 1), (6, 0, 1)]);
    plane.world().taskset(5, "0"); // an affinity of its own from the beginning
    let mut engine = Engine::new(plane.clone(), go_home(), Settings::default(), None).unwrap();
    engine.step().unwrap();
    assert_eq!(plane.world().mask(1), set("2-3"));
    plane.world().taskset(2, "4-5");
    plane.world().tasks.remove(&3);
    plane.world().tasks.get_mut(&6).unwrap().refuse = Some("eperm");
    let finished = engine.finish();
    let counts = (finished.restored, finished.changed_by_others, finished.gone, finished.failed);
    assert_eq!(counts, (1, 1, 1, 1));
    assert_eq!(finished.notes, ["cannot restore affinity 0-5 of thread 6: the kernel says no"]);
    let masks: Vec<_> = [1, 2, 4, 5].iter().map(|tid| plane.world().mask(*tid).to_string()).collect();
    assert_eq!(masks, ["0-5", "4-5", "0-5", "0"]);
}

/// A thread that a busy machine kept from answering in time stayed bound until the next start.
#[test]
fn an_undo_of_a_thread_that_answers_late_is_tried_once_more() {
    let plane = Fake::new([(1, 0, 1), (2, 0, 1)]);
    let mut engine = Engine::new(plane.clone(), go_home(), Settings::default(), None).unwrap();
    engine.step().unwrap();
    plane.world().tasks.get_mut(&1).unwrap().refuse = Some(LATE);
    let finished = engine.finish();
    assert_eq!((finished.restored, finished.failed, finished.notes), (2, 0, vec![]));
    assert!(plane.world().tasks.values().all(|t| t.mask == set("0-5")));
}

/// So did a thread that a moved one had started.
#[test]
fn a_child_that_answers_late_is_put_back_too() {
    let plane = Fake::new([(1, 0, 1)]);
    let mut engine = Engine::new(plane.clone(), go_home(), Settings::default(), None).unwrap();
    engine.step().unwrap();
    plane.world().fork(1, 101);
    plane.world().tasks.get_mut(&101).unwrap().refuse = Some(LATE);
    let finished = engine.finish();
    assert_eq!((finished.restored, finished.inherited, finished.failed), (2, 1, 0), "{:?}", finished.notes);
    assert!(plane.world().tasks.values().all(|t| t.mask == set("0-5")));
}

#[test]
fn a_second_move_is_undone_to_what_was_before_the_first() {
    let plane = Fake::new([(1, 0, 1)]);
    let plan = script(|s| match s.threads[0].node.0 {
        0 => vec![mv(1, None, 0, 1)],
        1 => vec![mv(1, None, 1, 2)],
        _ => vec![],
    });
    let (_tmp, mut engine) = kept(plane.clone(), plan, Settings::default());
    for _ in 0..15 {
        engine.step().unwrap();
    }
    assert_eq!(plane.world().mask(1), set("4-5"));
    // Somebody sets what had been our first value: that is not ours any more.
    plane.world().taskset(1, "2-3");
    assert_eq!(engine.finish().changed_by_others, 1);
    assert_eq!(plane.world().mask(1), set("2-3"));
}

#[test]
fn children_are_put_back_every_window_and_at_the_end_until_none_is_left() {
    let plane = Fake::new([(1, 0, 1)]);
    let mut engine = Engine::new(plane.clone(), go_home(), Settings::default(), None).unwrap();
    engine.step().unwrap();
    plane.world().births = vec![(1, 100)];
    assert_eq!(engine.step().unwrap().inherited_restored, 1);
    assert_eq!(plane.world().mask(100), set("0-5"));
    plane.world().births.clear();
    // Born just before the parent is put back, and one of theirs during each pass.
    plane.world().fork(1, 101);
    plane.world().fork(1, 102);
    let finished = engine.finish();
    assert_eq!((finished.restored, finished.inherited, finished.failed), (3, 2, 0));
    assert!(plane.world().tasks.values().all(|t| t.mask == set("0-5")));
}

/// A policy decided on the whole process, so the threads that it starts later stay with it. Each
/// has a record.
#[test]
fn threads_that_a_moved_process_starts_have_records() {
    let plane = Fake::new([(1, 0, 1)]);
    plane.world().adopts = true;
    let mut plan = Some(vec![process(1, 0, 1)]);
    let policy = script(move |_| plan.take().unwrap_or_default());
    let (tmp, mut engine) = kept(plane.clone(), policy, Settings::default());
    engine.step().unwrap();
    plane.world().spawn_thread(1, 100);
    plane.world().fork(1, 101);
    // It reads elsewhere, so it is not bound where it is.
    plane.world().tasks.get_mut(&101).unwrap().home = 0;
    let report = engine.step().unwrap();
    assert_eq!((report.inherited_restored, report.owned_threads), (1, 2));
    assert_eq!([100, 101].map(|tid| plane.world().mask(tid)), [set("2-3"), set("0-5")]);
    // Killed here, the record alone puts it back.
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(tmp.path().join("state.jsonl"), copy.path().join("state.jsonl")).unwrap();
    let mut after = Fake::of(plane.world().tasks.clone());
    after.world().tasks.get_mut(&100).unwrap().parent = None;
    recover(&mut after, &StateDir::open(copy.path()).unwrap()).unwrap();
    assert_eq!(after.world().mask(100), set("0-5"));
    // A thousand short ones a window leave no records behind.
    let mut most = 0;
    for window in 0..20 {
        for tid in 1000..2000 {
            plane.world().spawn_thread(1, window * 1000 + tid);
        }
        most = most.max(engine.step().unwrap().owned_threads);
        plane.world().tasks.retain(|tid, _| *tid < 1000);
    }
    assert!(most <= 3002, "{most}");
    let finished = engine.finish();
    assert_eq!((finished.inherited, finished.failed), (0, 0));
    assert!(plane.world().tasks.values().all(|t| t.mask == set("0-5")));
}

#[test]
fn what_could_not_be_undone_stays_on_disk_for_the_next_start() {
    let tmp = tempfile::tempdir().unwrap();
    let open = || StateDir::open(tmp.path()).unwrap();
    let plane = Fake::new([(1, 0, 1), (2, 0, 1)]);
    let mut engine = Engine::new(plane.clone(), go_home(), Settings::default(), Some(open())).unwrap();
    engine.step().unwrap();
    plane.world().tasks.get_mut(&1).unwrap().refuse = Some("eperm");
    assert_eq!(engine.finish().failed, 1);
    drop(engine);
    // The next start fails at it too, and keeps it; its end then succeeds.
    let mut engine = Engine::new(plane.clone(), script(|_| vec![]), Settings::default(), Some(open())).unwrap();
    assert_eq!((engine.recovered().failed, engine.recovered().restored), (1, 0));
    engine.step().unwrap();
    plane.world().tasks.get_mut(&1).unwrap().refuse = None;
    assert_eq!(engine.finish().restored, 1);
    assert_eq!(plane.world().mask(1), set("0-5"));
    drop(engine);
    assert!(!tmp.path().join("state.jsonl").exists());
}

#[test]
fn records_of_another_boot_are_void() {
    let plane = Fake::new([(1, 0, 1)]);
    plane.world().epoch = Some("boot 1".into());
    let (tmp, mut engine) = kept(plane.clone(), go_home(), Settings::default());
    engine.step().unwrap();
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(tmp.path().join("state.jsonl"), copy.path().join("state.jsonl")).unwrap();
    plane.world().epoch = Some("boot 2".into()); // the same ids and masks by chance
    let finished = recover(&mut plane.clone(), &StateDir::open(copy.path()).unwrap()).unwrap();
    assert_eq!(finished, engine::Finished::default());
    assert_eq!(plane.world().mask(1), set("2-3"));
}

#[test]
fn records_of_ended_threads_do_not_pile_up() {
    let plane = Fake::new([]);
    let (tmp, mut engine) = kept(plane.clone(), go_home(), Settings::default());
    let mut most = 0;
    for round in 0..400 {
        for i in 0..20 {
            plane.world().spawn(round * 20 + i + 1, 0, 1);
        }
        plane.world().tasks.retain(|tid, _| *tid > round * 20);
        most = most.max(engine.step().unwrap().owned_threads);
    }
    assert_eq!(plane.world().made.len(), 8_000);
    assert!(most <= 40, "{most}");
    let size = std::fs::metadata(tmp.path().join("state.jsonl")).unwrap().len();
    assert!(size < 150_000, "{size}");
}

#[test]
fn a_second_daemon_is_refused_and_the_first_one_is_named() {
    let plane = Fake::new([(1, 0, 1)]);
    let (tmp, mut engine) = kept(plane.clone(), go_home(), Settings::default());
    engine.step().unwrap();
    let error = StateDir::open(tmp.path()).unwrap_err().to_string();
    assert!(error.contains(&format!("in use by homenode (pid {})", std::process::id())), "{error}");
    engine.finish();
    drop(engine);
    StateDir::open(tmp.path()).unwrap();
}

/// A parent and a child that was started by it since the last window.
fn a_parent_and_its_child(state: StateDir) -> (Fake, Engine<Fake>) {
    let plane = Fake::new([(1, 0, 1)]);
    let mut engine = Engine::new(plane.clone(), go_home(), Settings::default(), Some(state)).unwrap();
    engine.step().unwrap();
    plane.world().fork(1, 100);
    (plane, engine)
}

#[test]
fn records_outlive_a_failed_search_for_children() {
    let tmp = tempfile::tempdir().unwrap();
    let (plane, mut engine) = a_parent_and_its_child(StateDir::open(tmp.path()).unwrap());
    plane.world().blind = true;
    assert_eq!(engine.finish().failed, 1);
    drop(engine);
    assert_eq!(plane.world().mask(100), set("2-3"));
    plane.world().blind = false;
    let finished = recover(&mut plane.clone(), &StateDir::open(tmp.path()).unwrap()).unwrap();
    assert_eq!((finished.inherited, finished.failed), (1, 0));
    assert_eq!(plane.world().mask(100), set("0-5"));
}

#[test]
fn a_child_that_could_not_be_restored_stays_on_record() {
    let tmp = tempfile::tempdir().unwrap();
    let (plane, mut engine) = a_parent_and_its_child(StateDir::open(tmp.path()).unwrap());
    plane.world().tasks.get_mut(&100).unwrap().refuse = Some("enomem");
    assert_eq!(engine.finish().failed, 1);
    drop(engine);
    plane.world().tasks.get_mut(&100).unwrap().refuse = None;
    let finished = recover(&mut plane.clone(), &StateDir::open(tmp.path()).unwrap()).unwrap();
    assert_eq!((finished.restored, finished.failed), (1, 0));
    assert_eq!(plane.world().mask(100), set("0-5"));
}

#[test]
fn the_parents_record_outlives_a_window_without_a_look_at_children() {
    let tmp = tempfile::tempdir().unwrap();
    let (plane, mut engine) = a_parent_and_its_child(StateDir::open(tmp.path()).unwrap());
    plane.world().tasks.remove(&1);
    plane.world().blind = true;
    assert_eq!(engine.step().unwrap().owned_threads, 1);
    plane.world().blind = false;
    assert_eq!(engine.step().unwrap().inherited_restored, 1);
}

#[test]
fn a_child_whose_fork_was_under_way_is_put_back() {
    let (plane, mut engine) = a_parent_and_its_child(StateDir::open(tempfile::tempdir().unwrap().path()).unwrap());
    let inherited = plane.world().mask(1);
    plane.world().forks_under_way.push((1, 200, inherited));
    let finished = engine.finish();
    assert_eq!((finished.inherited, finished.failed), (2, 0));
    assert_eq!(plane.world().mask(200), set("0-5"));
}
