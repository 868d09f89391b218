//! Moves that copy: at once, in the queue, limited, stopped, interrupted; and plans that do not
//! pay.

use engine::journal::{Entry, Event, Kind, history, read};
use engine::settings::Moves;
use engine::{Engine, JobState, MoveEvent, Rail, Settings, StateDir, recover};
use placement::{Move, OutcomeState, Snapshot};

use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::fake::{Fake, all_cpus, file, file_of, mv, node_cpus, process, restless, script};
use crate::{Shown, kept};

/// Makes these moves in the given windows, and keeps what the policy is told in each.
type Told = Arc<Mutex<Vec<Vec<OutcomeState>>>>;

fn at(mut plan: Vec<(usize, Vec<Move>)>) -> (Box<dyn placement::Policy>, Told) {
    let told = Told::default();
    let tell = Arc::clone(&told);
    let mut window = 0;
    let policy = script(move |s: &Snapshot| {
        window += 1;
        tell.lock().unwrap().push(s.outcomes.iter().map(|o| o.result.clone()).collect());
        let due = plan.iter().position(|p| p.0 == window);
        due.map(|i| plan.swap_remove(i).1).unwrap_or_default()
    });
    (policy, told)
}

fn limits(moves: Moves) -> Settings {
    Settings { moves, ..Settings::default() }
}

fn copying(bytes: u64, step: u64, tasks: impl IntoIterator<Item = (u32, u32, u32)>) -> Fake {
    let plane = Fake::new(tasks);
    (plane.world().copy_bytes, plane.world().copy_step) = (0, step);
    plane.world().copy_bytes = bytes;
    plane
}

/// What the journal in `dir` says about the file that this thread reads.
fn about_file_of(tid: u32, dir: &Path) -> Vec<Entry> {
    let name = file_of(tid).to_string();
    let mut entries = read(dir).unwrap();
    entries.retain(|e| e.thread.as_ref().is_some_and(|about| about.comm.contains(&name)));
    entries
}

#[test]
fn a_copy_goes_on_while_windows_do_and_the_policy_is_told() {
    let plane = copying(1_000, 300, [(1, 0, 1)]);
    let (policy, told) = at(vec![(1, vec![file(1, 1, 0)])]);
    let (tmp, mut engine) = kept(plane.clone(), policy, limits(Moves::default()));
    let report = engine.step().unwrap();
    assert_eq!(report.outcomes[0].result, MoveEvent::Started);
    let done: Vec<Vec<u64>> =
        (0..5).map(|_| engine.step().unwrap().jobs.iter().map(|j| (j.done, j.rate as u64).0).collect()).collect();
    assert_eq!(done, [vec![300], vec![600], vec![900], vec![], vec![]]);
    assert_eq!(plane.world().tasks[&1].home, 0);
    assert_eq!(plane.world().pace, Moves::default().rate);
    for _ in 0..4 {
        engine.step().unwrap();
    }
    engine.finish();
    let told = told.lock().unwrap();
    let running = |done| vec![OutcomeState::Running { bytes: 1_000, done }];
    let end = vec![OutcomeState::Done { bytes: 1_000, failed: 7 }];
    assert_eq!(told[..6], [vec![], running(300), running(600), running(900), end, vec![]]);
    let lines = history(about_file_of(1, tmp.path()));
    let said: Vec<String> = lines
        .iter()
        .map(|l| match &l.entry.event {
            Event::CopyStarted(decided) => format!("started {:?}", decided.remote_share),
            Event::CopyProgress { done, .. } => format!("{done}"),
            Event::CopyEnded { done, left, why: None, .. } => format!("ended {done} {left:?} {:?}", l.remote_share),
            other => panic!("{other:?}"),
        })
        .collect();
    // What it brought: all of what its reader read came from another node, then nothing.
    assert_eq!(said, ["started Some(1.0)", "300", "600", "900", "ended 1000 {\"pinned\": 7} Some((1.0, 0.0))"]);
    assert!(lines.iter().all(|l| l.entry.thread.as_ref().unwrap().kind == Kind::File));
    assert!(!tmp.path().join("state.jsonl").exists());
}

/// With two files and a process moved, and one file moved twice: what the plane remembers goes
/// back, newest first.
#[test]
fn data_goes_back_at_the_end_if_the_plane_remembers_where_it_was() {
    for (moves_back, stop_at, home) in [(true, usize::MAX, [1, 1]), (true, 1, [1, 0]), (false, usize::MAX, [2, 0])] {
        let plane = copying(1_000, 500, [(1, 0, 1), (2, 1, 1)]);
        (plane.world().moves_back, plane.world().remembers) = (moves_back, moves_back);
        let (policy, _) = at(vec![(1, vec![file(2, 1, 0)]), (5, vec![file(1, 1, 2)])]);
        let (tmp, mut engine) = kept(plane.clone(), policy, limits(Moves::default()));
        for _ in 0..10 {
            engine.step().unwrap();
        }
        assert_eq!([1, 2].map(|tid| plane.world().tasks[&tid].home), [2, 0]);
        let begun = plane.world().started.len();
        let finished = engine.finish_until(&|| plane.world().started.len() - begun >= stop_at);
        // The copy that runs when the stop comes is cancelled.
        let back = if stop_at == 1 { [2, 0] } else { home };
        assert_eq!([1, 2].map(|tid| plane.world().tasks[&tid].home), back);
        let order: Vec<String> = plane.world().started[begun..].iter().map(|s| s.1.clone()).collect();
        match (moves_back, stop_at) {
            (false, _) => {
                assert_eq!((order.len(), finished.moved_back, finished.complete()), (0, 0, true));
                assert_eq!(finished.notes, ["2 moves of a file: what was moved stays where it is"]);
            }
            (true, 1) => {
                assert_eq!((order.len(), finished.complete()), (1, false));
                assert!(finished.notes.iter().any(|n| n.contains("what else was moved stays")), "{finished:?}");
            }
            (true, _) => {
                assert!(order[0].contains("8:1:1") && order[1].contains("8:1:2"), "{order:?}");
                // Of each, seven bytes are pinned.
                assert_eq!((finished.moved_back, finished.not_moved_back), (2_000, 14));
                assert!(finished.notes.iter().all(|n| !n.contains("stays where it is")), "{finished:?}");
                let lines = about_file_of(1, tmp.path());
                let told = |e: &Event| matches!(e, Event::Note { text } if text.contains("back to where they were"));
                assert!(lines.iter().any(|l| told(&l.event)), "{lines:?}");
            }
        }
    }
}

#[test]
fn a_few_run_at_once_and_the_rest_waits_its_turn() {
    let plane = copying(200, 100, (1..=5).map(|tid| (tid, 0, 1)));
    let (policy, told) = at(vec![(1, (1..=5).map(|tid| file(tid, 1, 0)).collect()), (2, vec![file(5, 1, 0)])]);
    let mut engine = Engine::new(plane.clone(), policy, limits(Moves::default()), None).unwrap();
    let first: Vec<MoveEvent> = engine.step().unwrap().outcomes.into_iter().map(|o| o.result).collect();
    use MoveEvent::*;
    assert_eq!(first, [Started, Started, Queued, Queued, Queued]);
    assert_eq!(told.lock().unwrap().len(), 1);
    // Asked for again, it waits once.
    let report = engine.step().unwrap();
    assert_eq!((report.outcomes[0].result.clone(), report.queued), (Queued, 3));
    let queued: Vec<usize> = (0..8).map(|_| engine.step().unwrap().queued).collect();
    assert_eq!(queued, [1, 1, 0, 0, 0, 0, 0, 0]);
    let world = plane.world();
    let times: Vec<f64> = world.started.iter().map(|s| s.0).collect();
    assert_eq!((times, world.most_copies), (vec![1.0, 1.0, 3.0, 3.0, 5.0], 2));
    assert!((1..=5).all(|tid| world.tasks[&tid].home == 0));
    assert!(told.lock().unwrap()[1].contains(&OutcomeState::Queued));
}

/// Both requests used to wait, and to be made in one window: the process was bound by one and
/// recorded by the other, so that its undo was given up as somebody else's value.
#[test]
fn a_process_asked_for_twice_while_it_waits_goes_once_to_where_it_was_asked_for_last() {
    let plane = copying(1_000, 500, (1..=5).map(|tid| (tid, 0, 1)));
    let first = (1..=5).map(|pid| process(pid, 0, 1)).collect();
    let (policy, told) = at(vec![(1, first), (2, vec![process(5, 1, 2)])]);
    let (_tmp, mut engine) = kept(plane.clone(), policy, limits(Moves::default()));
    let queued: Vec<usize> = (0..9).map(|_| engine.step().unwrap().queued).collect();
    assert_eq!(queued, [3, 3, 1, 1, 0, 0, 0, 0, 0]);
    assert_eq!(plane.world().started.iter().filter(|s| s.1 == "process 5").count(), 1);
    assert_eq!(plane.world().mask(5), node_cpus(2));
    let replaced =
        |o: &&OutcomeState| matches!(o, OutcomeState::Failed { bytes: 0, why } if why.contains("later move"));
    assert_eq!(told.lock().unwrap().iter().flatten().filter(replaced).count(), 1);
    let finished = engine.finish();
    assert_eq!((finished.restored, finished.changed_by_others), (5, 0));
    assert_eq!(plane.world().mask(5), all_cpus());
}

/// Two jobs would each walk the same file, and the place of a page would be a matter of luck.
#[test]
fn parts_of_a_file_on_several_nodes_are_copied_one_after_the_other() {
    let plane = copying(200, 100, [(1, 0, 1), (2, 0, 1)]);
    let parts = || vec![file(1, 1, 0), file(1, 2, 0)];
    let (policy, _) = at(vec![(1, parts()), (2, parts())]);
    let mut engine = Engine::new(plane.clone(), policy, limits(Moves::default()), None).unwrap();
    for _ in 0..8 {
        engine.step().unwrap();
        assert!(plane.world().copies.len() <= 1);
    }
    assert_eq!(plane.world().started.iter().map(|s| s.0).collect::<Vec<_>>(), [1.0, 3.0]);
}

/// A thread that sets its affinity between the look at it and its move is left out of the move of
/// its process.
#[test]
fn a_thread_that_a_move_of_its_process_does_not_bind_keeps_the_record_of_its_earlier_move() {
    let plane = copying(1_000, 500, [(1, 0, 1)]);
    plane.world().unbindable = vec![1];
    let (policy, _) = at(vec![(1, vec![mv(1, None, 0, 1)]), (2, vec![process(1, 1, 2)])]);
    let (tmp, mut engine) = kept(plane.clone(), policy, limits(Moves::default()));
    for _ in 0..4 {
        engine.step().unwrap();
    }
    assert_eq!(plane.world().started.len(), 1);
    assert_eq!(plane.world().mask(1), node_cpus(1));
    // The same after a crash: the records of the state file say so, too.
    let wreck = tempfile::tempdir().unwrap();
    std::fs::copy(tmp.path().join("state.jsonl"), wreck.path().join("state.jsonl")).unwrap();
    let mut crashed = Fake::of(plane.world().tasks.clone());
    recover(&mut crashed, &StateDir::open(wreck.path()).unwrap()).unwrap();
    assert_eq!(crashed.world().mask(1), all_cpus());
    assert_eq!(engine.finish().restored, 1);
    assert_eq!(plane.world().mask(1), all_cpus());
}

/// Each took a token that nobody gave back, so that moves that could have been made had to wait for
/// the rate.
#[test]
fn a_move_that_finds_the_queue_full_gives_its_token_back() {
    const QUEUE: u32 = 12_000;
    let plane = copying(1_000_000, 1, [(1, 0, 1)]);
    let many = (1..QUEUE + 20).map(|tid| file(tid, 1, 0)).chain([mv(1, None, 0, 1)]).collect();
    let (policy, _) = at(vec![(1, many)]);
    let settings = Settings { burst: QUEUE + 3, moves_per_s: 0.001, ..limits(Moves::default()) };
    let mut engine = Engine::new(plane.clone(), policy, settings, None).unwrap();
    let outcomes = engine.step().unwrap().outcomes;
    let full = |o: &&engine::Outcome| matches!(&o.result, MoveEvent::HeldBack { rail: Rail::Full, .. });
    assert_eq!(outcomes.iter().filter(full).count(), 17);
    assert_eq!(outcomes.last().unwrap().result, MoveEvent::Applied);
}

/// Two long copies of no rule's files run, and more of such moves than have places wait. Those of a
/// rule find places, and begin at once beside them, one at a time.
#[test]
fn a_rule_does_not_wait_for_the_copies_of_another() {
    const MANY: u32 = 20_000;
    let plane = copying(1_000, 100, (MANY + 1..=MANY + 3).map(|tid| (tid, 0, 1)));
    let files = |tids: std::ops::RangeInclusive<u32>| tids.map(|tid| file(tid, 1, 0)).collect::<Vec<_>>();
    let (policy, _) = at(vec![(1, files(1..=MANY)), (2, files(MANY + 1..=MANY + 3))]);
    let settings = Settings { burst: MANY + 3, ..limits(Moves::default()) };
    let mut engine = Engine::new(plane.clone(), policy, settings, None).unwrap();
    let full = |o: &&engine::Outcome| matches!(&o.result, MoveEvent::HeldBack { rail: Rail::Full, .. });
    assert_eq!(engine.step().unwrap().outcomes.iter().filter(full).count(), MANY as usize - 12_002);
    let second: Vec<MoveEvent> = engine.step().unwrap().outcomes.into_iter().map(|o| o.result).collect();
    assert_eq!(second, [MoveEvent::Queued, MoveEvent::Queued, MoveEvent::Queued]);
    (0..40).for_each(|_| _ = engine.step().unwrap());
    assert_eq!([MANY + 1, MANY + 2, MANY + 3].map(|tid| plane.world().tasks[&tid].home), [0; 3]);
    assert_eq!(plane.world().most_copies, 3);
}

#[test]
fn what_waited_too_long_is_dropped() {
    let plane = copying(1_000_000, 1, (1..=3).map(|tid| (tid, 0, 1)));
    let (policy, told) = at(vec![(1, (1..=3).map(|tid| file(tid, 1, 0)).collect())]);
    let mut settings = limits(Moves::default());
    settings.settle.again_s = 20.0;
    let mut engine = Engine::new(plane.clone(), policy, settings, None).unwrap();
    for _ in 0..30 {
        engine.step().unwrap();
    }
    // Two slots are busy for good, so it is still in the queue; when one is free, it is too old.
    plane.world().copies_fail = Some("the file was deleted");
    engine.step().unwrap();
    engine.step().unwrap();
    assert_eq!(plane.world().started.len(), 2);
    let told = told.lock().unwrap();
    let last = told.last().unwrap();
    assert!(matches!(&last[..], [OutcomeState::Failed { bytes: 0, why }] if why.contains("out of date")), "{last:?}");
    let failed = &told[told.len() - 2];
    let why = |o: &&OutcomeState| matches!(o, OutcomeState::Failed { why, .. } if why == "the file was deleted");
    assert_eq!(failed.iter().filter(why).count(), 2, "{failed:?}");
}

#[test]
fn bytes_per_day_stop_copies_and_hold_back_more() {
    let plane = copying(1_000, 100, [(1, 0, 1), (2, 0, 1)]);
    let (policy, told) = at(vec![(1, vec![file(1, 1, 0)]), (8, vec![file(2, 1, 0)]), (9 + 24 * 3600, vec![])]);
    let settings = limits(Moves { bytes_per_day: 350.0, ..Moves::default() });
    let (_tmp, mut engine) = kept(plane.clone(), policy, settings);
    let reports: Vec<_> = (0..8).map(|_| engine.step().unwrap()).collect();
    assert!(plane.world().copies.is_empty());
    // 100 a window: the fourth is the first beyond 350, and the next poll finds the copy stopped.
    assert_eq!(reports.iter().map(|r| r.jobs.len()).collect::<Vec<_>>(), [1, 1, 1, 1, 1, 0, 0, 0]);
    assert_eq!(plane.world().tasks[&1].home, 1); // not all of it arrived
    let MoveEvent::HeldBack { rail, why } = &reports[7].outcomes[0].result else { panic!("{:?}", reports[7].outcomes) };
    assert_eq!(*rail, Rail::BytesPerDay, "{why}");
    let told = told.lock().unwrap();
    let stopped = |o: &OutcomeState| matches!(o, OutcomeState::Failed { bytes: 500, why } if why.contains("24 hours"));
    assert!(told[5].iter().any(stopped), "{:?}", told[5]);
    // The next engine goes on with the same day.
    let spent = engine.spent();
    drop(engine);
    let (policy, _) = at(vec![(1, vec![file(2, 1, 0)])]);
    let settings = limits(Moves { bytes_per_day: 350.0, ..Moves::default() });
    let mut next = Engine::new(plane.clone(), policy, settings, None).unwrap().with_spent(spent);
    let outcomes = next.step().unwrap().outcomes;
    assert!(matches!(&outcomes[0].result, MoveEvent::HeldBack { rail: Rail::BytesPerDay, .. }), "{outcomes:?}");
}

/// A file whose pages are where they should be takes nothing of the day's bytes, and does not count
/// as copied.
#[test]
fn bytes_in_place_count_in_no_limit() {
    let plane = copying(1_000, 500, [(1, 0, 1), (2, 0, 1)]);
    plane.world().copies_there = 900;
    let (policy, told) = at(vec![(1, vec![file(1, 1, 0)]), (4, vec![file(2, 1, 0)])]);
    let settings = limits(Moves { bytes_per_day: 250.0, ..Moves::default() });
    let mut engine = Engine::new(plane.clone(), policy, settings, None).unwrap();
    let rates: Vec<f64> = (0..8).flat_map(|_| engine.step().unwrap().jobs).map(|j| j.rate).collect();
    // 500 in place, then 400 more and 100 copied; twice.
    assert_eq!(rates, [0.0, 0.0, 0.0, 0.0]);
    let told = told.lock().unwrap();
    let done = |o: &&OutcomeState| matches!(o, OutcomeState::Done { bytes: 1_000, .. });
    assert_eq!(told.iter().flatten().filter(done).count(), 2, "{told:?}");
}

/// A refusal that only the copy can find out: the copy was not made, is not tried again at once,
/// and nothing stays behind.
#[test]
fn a_copy_that_is_refused_before_its_first_byte_was_not_made() {
    let why = "it is accessed directly in persistent memory (DAX)";
    let refused = JobState::Refused { reason: "dax", why: why.into() };
    let (refused_as, gone_as) = (OutcomeState::Refused { reason: "dax".into(), why: why.into() }, OutcomeState::Gone);
    for (state, told_as) in [(refused, refused_as), (JobState::Gone, gone_as)] {
        let plane = copying(1_000, 0, [(1, 0, 1)]);
        plane.world().copies_refused = Some(state);
        let again = if told_as == OutcomeState::Gone { vec![] } else { vec![file(1, 1, 0)] };
        let (policy, told) = at(vec![(1, vec![file(1, 1, 0)]), (2, again)]);
        let (tmp, mut engine) = kept(plane.clone(), policy, limits(Moves::default()));
        assert_eq!(engine.step().unwrap().outcomes[0].result, MoveEvent::Started);
        let again = engine.step().unwrap().outcomes;
        assert_eq!(told.lock().unwrap()[1], [told_as]);
        assert!(again.iter().all(|o| matches!(o.result, MoveEvent::HeldBack { .. })), "{again:?}");
        plane.world().copies_refused = None;
        let finished = engine.finish();
        assert!(finished.notes.iter().all(|n| !n.contains("stays where it is")), "{:?}", finished.notes);
        let entries = read(tmp.path()).unwrap();
        assert!(!entries.iter().any(|e| matches!(e.event, Event::CopyEnded { .. })), "{entries:?}");
    }
}

#[test]
fn copies_are_stopped_on_exit_and_affinities_restored() {
    let plane = copying(1_000, 100, [(1, 0, 1), (2, 0, 1), (3, 0, 1)]);
    let (policy, _) = at(vec![(1, vec![process(1, 0, 1), file(2, 1, 0), file(3, 1, 0)])]);
    let (tmp, mut engine) = kept(plane.clone(), policy, limits(Moves::default()));
    engine.step().unwrap();
    let report = engine.step().unwrap();
    assert_eq!((report.jobs.len(), report.queued, report.owned_threads), (2, 1, 1));
    assert_eq!(plane.world().mask(1), node_cpus(1));
    let finished = engine.finish();
    assert_eq!((finished.restored, finished.copies, finished.failed), (1, 2, 0));
    let text = finished.notes.join("\n");
    assert!(text.contains("the move of process 1 from node 0 to 1 was stopped: 0.0 of 0.0 MB moved"), "{text}");
    assert!(text.contains("1 move of a process's memory: what was moved stays where it is"), "{text}");
    assert_eq!(plane.world().mask(1), all_cpus());
    assert!(plane.world().copies.is_empty() && !tmp.path().join("state.jsonl").exists());
    let ends = read(tmp.path()).unwrap();
    let ended = |why: &str| why == "homenode ends";
    let ended = ends.iter().filter(|e| matches!(&e.event, Event::CopyEnded { why: Some(why), .. } if ended(why)));
    assert_eq!(ended.count(), 2);
}

#[test]
fn a_copy_that_does_not_stop_does_not_keep_homenode() {
    let plane = copying(1_000_000_000, 1, [(1, 0, 1)]);
    plane.world().deaf = true;
    let (policy, _) = at(vec![(1, vec![file(1, 1, 0)])]);
    let mut engine = Engine::new(plane.clone(), policy, limits(Moves::default()), None).unwrap();
    engine.step().unwrap();
    let finished = engine.finish();
    assert_eq!((finished.copies, finished.complete()), (1, true));
    assert!(finished.notes[0].contains("did not stop in time"), "{:?}", finished.notes);
}

/// What was to go back and does not is said and counted, whether the copy does not stop or the way
/// back.
#[test]
fn what_does_not_stop_in_time_stays_and_is_counted() {
    for way_back in [false, true] {
        let plane = copying(1_000, 500, [(1, 0, 1)]);
        (plane.world().moves_back, plane.world().remembers) = (true, true);
        let (policy, _) = at(vec![(1, vec![file(1, 1, 0)])]);
        let mut engine = Engine::new(plane.clone(), policy, limits(Moves::default()), None).unwrap();
        for _ in 0..if way_back { 5 } else { 2 } {
            engine.step().unwrap();
        }
        // From now on no copy goes on, nor stops.
        (plane.world().copy_step, plane.world().deaf) = (0, true);
        let begun = plane.world().started.len();
        let finished = engine.finish_until(&|| plane.world().started.len() > begun);
        let note = finished.notes.iter().find(|n| n.contains("did not stop in time")).expect("a note");
        assert_eq!(note.contains("what was moved stays"), !way_back, "{note}");
        assert_eq!((finished.copies, finished.complete()), (usize::from(!way_back), false));
        // The copy had told of half its bytes; the way back has moved none of them.
        assert_eq!(finished.not_moved_back, if way_back { 1_000 } else { 500 });
    }
}

/// Killed at any step: what the next start finds bound is restored, and it says which copies were
/// interrupted.
#[test]
fn killed_at_any_step_of_a_copy() {
    let tmp = tempfile::tempdir().unwrap();
    let plane = copying(1_000, 400, [(1, 0, 1), (2, 0, 1)]);
    plane.world().state = Some(tmp.path().join("state.jsonl"));
    let (policy, _) = at(vec![(1, vec![process(1, 0, 1)]), (2, vec![file(2, 1, 0)])]);
    let state = StateDir::open(tmp.path()).unwrap();
    let mut engine = Engine::new(plane.clone(), policy, limits(Moves::default()), Some(state)).unwrap();
    for _ in 0..7 {
        engine.step().unwrap();
    }
    engine.finish();
    drop(engine);
    let wrecks = std::mem::take(&mut plane.world().wrecks);
    let mut seen = std::collections::BTreeSet::new();
    for (state, tasks) in wrecks {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("state.jsonl"), state.unwrap()).unwrap();
        let mut plane = Fake::of(tasks.clone());
        let finished = recover(&mut plane, &StateDir::open(dir.path()).unwrap()).unwrap();
        assert_eq!(finished.failed, 0);
        seen.insert(finished.copies);
        assert!(plane.world().tasks.values().all(|t| t.mask == all_cpus()), "{tasks:?}");
        assert!(!dir.path().join("state.jsonl").exists());
        let told = read(dir.path()).unwrap_or_default();
        let interrupted = told.iter().filter(|e| matches!(&e.event, Event::CopyEnded { why: Some(_), .. }));
        assert_eq!(interrupted.count(), finished.copies);
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
}

/// Makes the work of moved threads dearer by a factor.
fn dear(dearer: f64) -> impl FnMut(&Fake, &mut Snapshot) {
    move |fake, snapshot| {
        let moved = fake.world().mask(1) == node_cpus(1) || fake.world().tasks[&1].home == 0;
        snapshot.threads.iter_mut().filter(|_| moved).for_each(|t| t.cpu_s *= dearer);
    }
}

/// Outcome of moves on such a machine.
fn tried(dearer: f64) -> (Fake, Vec<String>, Vec<Vec<OutcomeState>>, Vec<MoveEvent>) {
    let plane = Fake::new([(1, 0, 1)]);
    let again = |window| (window, vec![mv(1, None, 1, 0)]);
    let (policy, told) = at(vec![(6, vec![mv(1, None, 0, 1)]), again(14)]);
    let settings = Settings { moves: Moves::default(), dwell_s: 3.0, ..restless() };
    let mut engine = Engine::new(Shown(plane.clone(), dear(dearer)), policy, settings, None).unwrap();
    let (mut notes, mut verdicts) = (Vec::new(), Vec::new());
    for _ in 0..16 {
        let report = engine.step().unwrap();
        notes.extend(report.notes);
        verdicts.extend(report.outcomes.into_iter().map(|o| o.result));
    }
    drop(engine);
    let told = told.lock().unwrap().clone();
    (plane, notes, told, verdicts)
}

#[test]
fn a_plan_that_does_not_pay_is_taken_back_once() {
    let (plane, notes, told, verdicts) = tried(1.5);
    // Moved in window 6. Windows 8 to 12 are compared with 2 to 6.
    let why = "10.0 MB of file data per CPU second in 5 windows before, 6.7 MB in 5 after (remote share 100 % → 0 %)";
    assert_eq!(notes, [format!("1 move did not pay and was taken back: {why}")]);
    assert_eq!(told[11], [OutcomeState::RolledBack { why: why.into() }]);
    assert_eq!(plane.world().mask(1), all_cpus());
    let MoveEvent::HeldBack { rail: Rail::LeftAlone, why } = &verdicts[1] else { panic!("{verdicts:?}") };
    assert!(why.starts_with("its last move did not pay: left alone for"), "{why}");
    // One that pays, or costs little, stays.
    for fine in [0.5, 1.0, 1.03] {
        let (_, notes, told, verdicts) = tried(fine);
        assert_eq!((notes, &told[11]), (vec![], &vec![]));
        assert_eq!(verdicts, [MoveEvent::Applied, MoveEvent::Applied]);
    }
}

/// Not as a move of all that the file has there: the plane knows what of it has come.
#[test]
fn a_file_goes_back_by_the_move_that_brought_it() {
    let plane = Fake::new([(1, 0, 1)]);
    let (policy, _) = at(vec![(6, vec![file(1, 1, 0)])]);
    let settings = Settings { moves: Moves::default(), ..restless() };
    let mut engine = Engine::new(Shown(plane.clone(), dear(1.5)), policy, settings, None).unwrap();
    for _ in 0..13 {
        engine.step().unwrap();
    }
    let world = plane.world();
    let nodes = |mv: &Move| (mv.from.0, mv.to.0);
    assert_eq!(world.taken_back.iter().map(nodes).collect::<Vec<_>>(), [(0, 1)]);
    assert_eq!((world.tasks[&1].home, world.started.len()), (1, 2));
}

/// What has gone up may have come down since, so it stays; but it is not moved again.
#[test]
fn parts_of_a_file_that_did_not_pay_stay() {
    let plane = Fake::new([(1, 0, 1)]);
    let part = |n: u64| {
        let range = placement::FileRange { start: n << 21, bytes: 1 << 21 };
        Move { ranges: vec![range], reason: placement::Reason::Promotion, ..file(1, 1, 0) }
    };
    let (policy, told) = at(vec![(6, vec![part(0)]), (14, vec![part(3)])]);
    let settings = Settings { moves: Moves::default(), dwell_s: 0.0, ..restless() };
    let mut engine = Engine::new(Shown(plane.clone(), dear(1.5)), policy, settings, None).unwrap();
    let (mut notes, mut held) = (Vec::new(), Vec::new());
    for _ in 0..16 {
        let report = engine.step().unwrap();
        notes.extend(report.notes);
        held.extend(report.outcomes.into_iter().map(|o| o.result));
    }
    let world = plane.world();
    assert_eq!((world.taken_back.len(), world.started.len()), (0, 1), "{notes:?}");
    assert!(notes[0].starts_with("1 move of parts of files did not pay, what was moved stays: 10.0 MB"), "{notes:?}");
    let left_alone = |event: &MoveEvent| matches!(event, MoveEvent::HeldBack { rail: Rail::LeftAlone, .. });
    assert!(held.iter().any(left_alone), "{held:?}");
    let failed = |o: &OutcomeState| matches!(o, OutcomeState::Failed { bytes: 0, .. });
    assert!(told.lock().unwrap().iter().flatten().any(failed));
}

/// Other parts of a file that is being copied wait; of two that wait, the later one is made, as it
/// was asked for.
#[test]
fn parts_of_a_file_wait_for_each_other() {
    let plane = copying(400, 100, [(1, 0, 1), (2, 0, 1)]);
    let part = |n: u64| {
        let range = placement::FileRange { start: n << 21, bytes: 1 << 21 };
        Move { ranges: vec![range], ..file(1, 1, 0) }
    };
    let (policy, told) = at(vec![
        (1, vec![file(2, 1, 0), part(0)]),
        (2, vec![part(1)]),
        (6, vec![file(2, 0, 1), file(3, 1, 0), part(2)]),
        (7, vec![part(3)]),
    ]);
    let moves = Moves { at_once: 2, ..Moves::default() };
    let settings = Settings { moves, dwell_s: 0.0, ..restless() };
    let mut engine = Engine::new(plane.clone(), policy, settings, None).unwrap();
    let mut held = Vec::new();
    for _ in 0..16 {
        let report = engine.step().unwrap();
        held.extend(report.outcomes.into_iter().map(|o| o.result));
        let world = plane.world();
        let of_one = world.started.iter().filter(|started| started.1.contains("8:1:1")).count();
        assert!(of_one <= 2, "{:?}", world.started);
    }
    let copied = |event: &&MoveEvent| matches!(event, MoveEvent::HeldBack { why, .. } if why.contains("being copied"));
    assert_eq!(held.iter().filter(copied).count(), 1, "{held:?}");
    let replaced =
        |o: &&OutcomeState| matches!(o, OutcomeState::Failed { bytes: 0, why } if why.contains("later move"));
    assert_eq!(told.lock().unwrap().iter().flatten().filter(replaced).count(), 1);
}

/// A file that is to go back and finds the queue full stays, and that is said, in the journal too.
#[test]
fn a_file_that_cannot_be_taken_back_is_told() {
    let plane = Fake::new([(1, 0, 1)]);
    let fill = (2..13_000).map(|tid| file(tid, 1, 0)).collect();
    let (policy, told) = at(vec![(6, vec![file(1, 1, 0)]), (8, fill)]);
    let settings = Settings { moves: Moves::default(), moves_per_s: 1e6, burst: 1_000_000, ..restless() };
    let mut engine = Engine::new(Shown(plane.clone(), dear(1.5)), policy, settings, None).unwrap();
    let mut notes = Vec::new();
    for window in 1..=13 {
        // The first move is made at once, and the others never end.
        (plane.world().copy_bytes, plane.world().copy_step) = (0, 1);
        plane.world().copy_bytes = if window < 8 { 0 } else { u64::MAX };
        notes.extend(engine.step().unwrap().notes);
    }
    assert!(notes.iter().any(|n| n == "file 8:1:1 stays on node 0: too many moves wait already"), "{notes:?}");
    let told = told.lock().unwrap();
    let failed = |o: &OutcomeState| matches!(o, OutcomeState::Failed { why, .. } if why.contains("too many moves"));
    assert!(told.iter().flatten().any(failed));
    assert_eq!(plane.world().tasks[&1].home, 0);
}
