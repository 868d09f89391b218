//! Moves that the loop lets through.

use std::sync::{Arc, Mutex};

use engine::journal::{Event, read};
use engine::settings::{Budget, Guardrail, Moves, Oscillation, Settle};
use engine::state::records::Record;
use engine::{Cost, Engine, EngineError, MoveEvent, Rail, Settings, StateDir, Subject};
use placement::{Move, OutcomeState, Pace, Snapshot};
use proptest::prelude::*;

use crate::fake::{Fake, NODES, all_cpus, file_of, go_home, mv, node_cpus, process, restless, script, set};
use crate::{Shown, kept};

fn results(engine: &mut Engine<Fake>) -> Vec<MoveEvent> {
    engine.step().unwrap().outcomes.into_iter().map(|o| o.result).collect()
}

fn rail(verdict: &MoveEvent) -> Option<Rail> {
    match verdict {
        MoveEvent::HeldBack { rail, .. } => Some(*rail),
        _ => None,
    }
}

#[test]
fn threads_go_home_at_once_and_stay() {
    // Thread 2 is on node 1 already and is bound there, because thread 1 comes.
    let plane = Fake::new([(1, 0, 1), (2, 1, 1), (3, 2, 0)]);
    let mut engine = Engine::new(plane.clone(), go_home(), Settings::default(), None).unwrap();
    let report = engine.step().unwrap();
    assert!(report.outcomes.iter().all(|o| o.result == MoveEvent::Applied));
    assert_eq!((report.remote_share, report.owned_threads), (Some(2.0 / 3.0), 3));
    for _ in 0..50 {
        let report = engine.step().unwrap();
        assert_eq!((report.remote_share, report.outcomes.len(), report.owned_threads), (Some(0.0), 0, 3));
    }
    assert_eq!(plane.world().made, [(1.0, 1, 1), (1.0, 3, 0), (1.0, 2, 1)]);
}

#[test]
fn a_load_that_stays_the_same_is_moved_about_for_ten_windows_and_no_more() {
    let plane = Fake::new([(1, 0, 1), (2, 0, 1)]);
    let flutter = script(|s| s.threads.iter().map(|t| mv(t.tid, None, t.node.0, 1 - t.node.0)).collect());
    let oscillation = Oscillation { reversals: 16, ..Oscillation::default() };
    let settings = Settings { dwell_s: 0.0, cooldown_s: 0.0, oscillation, ..Settings::default() };
    let mut engine = Engine::new(plane.clone(), flutter, settings, None).unwrap();
    for _ in 0..100 {
        engine.step().unwrap();
    }
    let times: Vec<f64> = plane.world().made.iter().map(|m| m.0).collect();
    let each: Vec<f64> = (1..=10).flat_map(|window| [f64::from(window); 2]).collect();
    assert_eq!(times, each);
    assert_eq!(rail(&results(&mut engine)[0]), Some(Rail::Settled));
}

/// `auto` had copies of these settings, which stayed as they were when they were configured.
#[test]
fn a_policy_is_told_the_pace_of_the_engine() {
    let settle = Settle { windows: 4, again_s: 50.0 };
    let settings = Settings { dwell_s: 7.0, settle, ..Settings::default() };
    let told = Arc::new(Mutex::new(None));
    let tell = Arc::clone(&told);
    let policy = script(move |s| {
        *tell.lock().unwrap() = Some(s.pace);
        Vec::new()
    });
    Engine::new(Fake::new([(1, 0, 1)]), policy, settings, None).unwrap().step().unwrap();
    let expected = Pace { dwell_s: 7.0, settle_windows: 4, again_s: 50.0 };
    assert_eq!(*told.lock().unwrap(), Some(expected));
    assert_eq!(Settings::default().pace(), Pace::default());
}

#[test]
fn a_policy_that_goes_back_and_forth_is_stopped() {
    let plane = Fake::new([(1, 0, 1)]);
    let flutter = script(|s| vec![mv(1, None, s.threads[0].node.0, 1 - s.threads[0].node.0)]);
    let mut engine = Engine::new(plane.clone(), flutter, restless(), None).unwrap();
    let mut notes = Vec::new();
    for _ in 0..3_000 {
        notes.extend(engine.step().unwrap().notes);
    }
    // 0→1 at 1 s; dwell 10: back at 11 (reversal 1); cool-down 60: 71 (2), 131 (3): left alone
    // until 3731.
    let times: Vec<f64> = plane.world().made.iter().map(|m| m.0).collect();
    assert_eq!(times, [1.0, 11.0, 71.0, 131.0]);
    assert_eq!(notes, ["thread 1 (t1) went back and forth 3 times within 300 s: left alone for 3600 s"]);
    let last = results(&mut engine);
    assert_eq!(rail(&last[0]), Some(Rail::LeftAlone));
}

#[test]
fn ten_thousand_moves_in_one_window_are_spread_over_time_in_plan_order() {
    let plane = Fake::new((1..=10_000).map(|tid| (tid, 0, 1)));
    let settings = Settings { moves_per_s: 50.0, burst: 100, ..Settings::default() };
    // The policy's order: highest tid first.
    let plan = script(|s| {
        let away = s.threads.iter().rev().filter(|t| t.node.0 == 0);
        away.map(|t| mv(t.tid, t.start_ns, 0, 1)).collect()
    });
    let mut engine = Engine::new(plane.clone(), plan, settings, None).unwrap();
    let report = engine.step().unwrap();
    assert_eq!(report.outcomes.len(), 10_000);
    assert_eq!(report.outcomes.iter().filter(|o| o.result == MoveEvent::Applied).count(), 100);
    assert_eq!(report.notes, ["9900 moves wait: more than 50 moves per second"]);
    engine.step().unwrap();
    let moved: Vec<u32> = plane.world().made.iter().map(|m| m.1).collect();
    assert_eq!(moved, (9_851..=10_000).rev().collect::<Vec<u32>>());
}

#[test]
fn plans_that_do_not_fit_the_snapshot_are_held_back() {
    let plane = Fake::new([(1, 0, 1), (2, 0, 1), (3, 0, 1), (4, 0, 1), (5, 0, 1)]);
    let plan = script(|_| {
        vec![
            mv(1, None, 2, 1),     // is on node 0
            mv(2, Some(99), 0, 1), // a later thread with this id
            mv(77, None, 0, 1),    // not seen
            mv(3, None, 0, 9),     // no such node
            mv(4, None, 0, 0),     // to itself
            mv(5, None, 0, 1),     // fits
            mv(5, None, 0, 2),     // named twice
        ]
    });
    let mut engine = Engine::new(plane.clone(), plan, Settings::default(), None).unwrap();
    let report = engine.step().unwrap();
    let rails: Vec<_> = report.outcomes.iter().map(|o| rail(&o.result)).collect();
    use Rail::*;
    let expected = [Some(Stale), Some(NotObserved), Some(NotObserved), Some(BadPlan), Some(BadPlan), None, Some(Dwell)];
    assert_eq!(rails, expected);
    assert_eq!(plane.world().made, [(1.0, 5, 1)]);
}

#[test]
fn what_the_snapshot_holds_is_not_moved_whatever_the_policy_says() {
    let plane = Fake::new([(1, 0, 1)]);
    let pinned = |_: &Fake, s: &mut Snapshot| s.threads[0].pinned = Some("has an affinity of its own: 0-3".into());
    let mut engine = Engine::new(Shown(plane.clone(), pinned), go_home(), Settings::default(), None).unwrap();
    let report = engine.step().unwrap();
    let why = "has an affinity of its own: 0-3".to_owned();
    assert_eq!(report.outcomes[0].result, MoveEvent::HeldBack { rail: Rail::Pinned, why });
    // The plane was not even asked.
    assert!(plane.world().asked.is_empty());
    assert_eq!(plane.world().mask(1), all_cpus());
}

#[test]
fn refused_threads_are_not_asked_every_window() {
    let plane = Fake::new([(1, 0, 1), (2, 0, 1)]);
    plane.world().tasks.get_mut(&1).unwrap().refuse = Some("eperm"); // refused by the kernel when it is set
    plane.world().taskset(2, "0-2"); // refused when it is prepared
    let mut engine = Engine::new(plane.clone(), go_home(), Settings::default(), None).unwrap();
    let first = results(&mut engine);
    assert_eq!(first[0], MoveEvent::Refused { reason: "eperm".into(), why: "the kernel says no".into() });
    let why = "has an affinity of its own: 0-2".to_owned();
    assert_eq!(first[1], MoveEvent::Refused { reason: "own_affinity".into(), why });
    for _ in 0..100 {
        engine.step().unwrap();
    }
    for tid in [1, 2] {
        let asked: Vec<f64> = plane.world().asked.iter().filter(|a| a.1 == tid).map(|a| a.0).collect();
        assert_eq!(asked, [1.0, 11.0, 31.0, 71.0]);
    }
    plane.world().tasks.get_mut(&1).unwrap().refuse = None;
    for _ in 0..60 {
        engine.step().unwrap();
    }
    assert_eq!(plane.world().made, [(151.0, 1, 1)]);
    assert_eq!(engine.finish().restored, 1);
}

/// A thread is in one move of a window, whichever comes first: after a crash two records of it
/// could not be told apart.
#[test]
fn a_thread_is_in_one_move_of_a_window() {
    let thread = Move { pid: 1, ..mv(100, None, 0, 2) };
    for plan in [vec![process(1, 0, 1), thread.clone()], vec![thread, process(1, 0, 1)]] {
        let name = format!("{plan:?}");
        let plane = Fake::new([(1, 0, 1)]);
        plane.world().spawn_thread(1, 100);
        let mut plan = Some(plan);
        let policy = script(move |_| plan.take().unwrap_or_default());
        let (tmp, mut engine) = kept(plane.clone(), policy, restless());
        let report = engine.step().unwrap();
        let held = |verdict: &MoveEvent| matches!(verdict, MoveEvent::HeldBack { rail: Rail::Dwell, why } if why.contains("another move"));
        assert_eq!(report.outcomes.iter().map(|o| held(&o.result)).collect::<Vec<_>>(), [false, true], "{name}");
        let records = std::fs::read_to_string(tmp.path().join("state.jsonl")).unwrap();
        let of = |line: &str| match serde_json::from_str(line).unwrap() {
            Record::Hold { undo, .. } => Some(undo.subject),
            _ => None,
        };
        let mut bound: Vec<Subject> = records.lines().filter_map(of).collect();
        let all = bound.len();
        bound.dedup();
        assert!(all > 0 && bound.len() == all, "{name}: {records}");
        engine.finish();
        assert!(plane.world().tasks.values().all(|task| task.mask == all_cpus()), "{name}");
    }
}

#[test]
fn a_thread_that_ends_between_decision_and_move_is_a_fact() {
    let plane = Fake::new([(1, 0, 1), (2, 0, 1)]);
    plane.world().die_before_apply.push(1);
    let mut engine = Engine::new(plane.clone(), go_home(), Settings::default(), None).unwrap();
    assert_eq!(results(&mut engine), [MoveEvent::Gone, MoveEvent::Applied]);
    let finished = engine.finish();
    assert_eq!((finished.restored, finished.gone, finished.failed), (1, 0, 0));
}

#[test]
fn a_reused_tid_is_another_thread() {
    let plane = Fake::new([(1, 0, 1)]);
    let mut engine = Engine::new(plane.clone(), go_home(), Settings::default(), None).unwrap();
    engine.step().unwrap();
    plane.world().spawn(1, 0, 2); // ends, and another one starts with its id, with the default mask
    let report = engine.step().unwrap(); // no dwell for it; its record replaces nothing
    assert_eq!(report.outcomes[0].result, MoveEvent::Applied);
    assert_eq!(report.owned_threads, 1);
    let finished = engine.finish();
    assert_eq!((finished.restored, finished.gone, finished.changed_by_others), (1, 0, 0));
    assert_eq!(plane.world().mask(1), set("0-5"));
}

#[test]
fn a_dry_run_changes_and_writes_nothing() {
    let tmp = tempfile::tempdir().unwrap();
    let before = "{\"record\":\"run\",\"version\":1}\n";
    std::fs::write(tmp.path().join("state.jsonl"), before).unwrap();
    let plane = Fake::new([(1, 0, 1), (2, 0, 1)]);
    plane.world().taskset(2, "0-2");
    let settings = Settings { dry_run: true, ..Settings::default() };
    let state = StateDir::open(tmp.path()).unwrap();
    let mut engine = Engine::new(plane.clone(), go_home(), settings, Some(state)).unwrap();
    let said: Vec<_> = results(&mut engine);
    assert_eq!(rail(&said[0]), Some(Rail::DryRun));
    assert!(matches!(&said[1], MoveEvent::Refused { reason, .. } if reason == "own_affinity"));
    // The same move is not announced again every window.
    assert_eq!(rail(&results(&mut engine)[0]), Some(Rail::Dwell));
    engine.finish();
    assert!(plane.world().made.is_empty());
    assert_eq!(std::fs::read_to_string(tmp.path().join("state.jsonl")).unwrap(), before);
    assert!(!tmp.path().join("journal.jsonl").exists());
}

#[test]
fn over_budget_means_observing_less_and_saying_so() {
    let plane = Fake::new([]);
    plane.world().sheds_left = 1;
    plane.world().cost = Some(Cost { cpu: 0.25, memory_bytes: 10 << 20 });
    let budget = Budget { cpu: 0.05, windows: 3, ..Budget::default() };
    let mut engine = Engine::new(plane.clone(), go_home(), Settings { budget, ..Settings::default() }, None).unwrap();
    let notes: Vec<String> = (0..6).flat_map(|_| engine.step().unwrap().notes).collect();
    assert_eq!(
        notes,
        [
            "homenode uses 25.0 % of a CPU, 5.0 % allowed: sampling half as much",
            "homenode uses 25.0 % of a CPU, 5.0 % allowed: there is nothing left to save",
        ]
    );
    assert_eq!(plane.world().sheds, 2);
    // Far below for a minute: back to what it was, once for each time.
    plane.world().cost = Some(Cost { cpu: 0.01, memory_bytes: 10 << 20 });
    let notes: Vec<String> = (0..300).flat_map(|_| engine.step().unwrap().notes).collect();
    assert_eq!(notes, ["sampling as before", "sampling as before"]);
}

#[test]
fn a_broken_plane_ends_the_loop_and_everything_is_put_back() {
    let plane = Fake::new([(1, 0, 1)]);
    let mut engine = Engine::new(plane.clone(), go_home(), Settings::default(), None).unwrap();
    engine.step().unwrap();
    plane.world().broken = true;
    let error = engine.step().unwrap_err();
    assert!(matches!(&error, EngineError::Plane(_)) && error.to_string().contains("on fire"), "{error}");
    assert_eq!(engine.finish().restored, 1);
    assert_eq!(plane.world().mask(1), set("0-5"));
}

#[test]
fn a_plane_whose_clock_stands_still_is_held_to_its_windows() {
    let plane = Fake::new([(1, 0, 1)]);
    let flutter = script(|s| vec![mv(1, None, s.threads[0].node.0, 1 - s.threads[0].node.0)]);
    let mut engine =
        Engine::new(Shown(plane.clone(), |_: &Fake, s: &mut Snapshot| s.time_s = 0.0), flutter, restless(), None)
            .unwrap();
    for _ in 0..80 {
        engine.step().unwrap();
    }
    let times: Vec<f64> = plane.world().made.iter().map(|m| m.0).collect();
    assert_eq!(times, [1.0, 11.0, 71.0]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever a policy names, threads end, or others set: dwell and rate hold, and afterwards
    /// every mask that had our value is as before and every other one is untouched.
    #[test]
    fn any_policy_stays_on_the_rails_and_leaves_nothing_behind(
        windows in prop::collection::vec(prop::collection::vec((1u32..9, 0..NODES, 0u32..12), 0..12), 1..60),
        dwell in 0u32..6, rate in 1u32..4, burst in 1u32..6,
    ) {
        let plane = Fake::new((1..9).map(|tid| (tid, tid % NODES, 0)));
        let settings = Settings {
            dwell_s: dwell.into(), cooldown_s: 3.0, moves_per_s: rate.into(), burst, ..Settings::default()
        };
        let mut plans = windows.clone().into_iter();
        let policy = script(move |s| {
            let node = |tid| s.threads.iter().find(|t| t.tid == tid).map_or(0, |t| t.node.0);
            plans.next().unwrap_or_default().iter().map(|(tid, to, _)| mv(*tid, None, node(*tid), *to)).collect()
        });
        let (_tmp, mut engine) = kept(plane.clone(), policy, settings);
        let mut foreign = std::collections::BTreeMap::new();
        for moves in &windows {
            engine.step().unwrap();
            for (tid, _, event) in moves {
                let mut world = plane.world();
                match event {
                    0 => { world.tasks.remove(tid); foreign.remove(tid); }
                    1 => { world.spawn(*tid, 0, 0); foreign.remove(tid); }
                    2 if world.tasks.contains_key(tid) => { world.taskset(tid.to_owned(), "1,3"); foreign.insert(*tid, set("1,3")); }
                    _ => {}
                }
            }
        }
        let finished = engine.finish();
        prop_assert_eq!(finished.failed, 0);
        let world = plane.world();
        for (tid, task) in &world.tasks {
            let expected = foreign.get(tid).cloned().unwrap_or_else(|| set("0-5"));
            prop_assert_eq!(&task.mask, &expected, "thread {}", tid);
        }
        for (i, first) in world.made.iter().enumerate() {
            let n = world.made[i..].iter().filter(|m| m.0 < first.0 + 10.0).count();
            prop_assert!(n as u32 <= burst + rate * 10);
        }
    }
}

/// The review's case: threads of a service that share the CPUs of one node read more for each
/// second of CPU time, and half as much in all. Nobody but the guardrail sees that.
#[test]
fn a_service_whose_reads_fall_after_a_move_is_put_back_at_once_and_left_alone() {
    let plane = Fake::new([(1, 0, 1), (2, 0, 1), (3, 0, 1)]);
    let crowded = |fake: &Fake, snapshot: &mut Snapshot| {
        for thread in &mut snapshot.threads {
            let service = if thread.tid == 3 { "b" } else { "a" };
            let bound = fake.world().mask(thread.tid) == node_cpus(1);
            let share = if bound && service == "a" { 0.5 } else { 1.0 };
            (thread.cpu_s, thread.wait_s) = (0.9 * share, Some(0.9 * (1.0 - share)));
            let bytes = (share * 1.2 * thread.read_bytes.total() as f64) as u64;
            thread.read_bytes = [(topology::NodeId(1), bytes)].into_iter().collect();
            thread.group = Some(format!("/system.slice/{service}.service/worker").into());
        }
    };
    let told: Arc<Mutex<Vec<OutcomeState>>> = Arc::default();
    let tell = Arc::clone(&told);
    let policy = script(move |s| {
        tell.lock().unwrap().extend(s.outcomes.iter().map(|o| o.result.clone()));
        s.threads.iter().filter(|t| t.node.0 == 0 && s.time_s >= 12.0).map(|t| mv(t.tid, t.start_ns, 0, 1)).collect()
    });
    let settings = Settings { guardrail: Guardrail::default(), moves: Moves::default(), ..restless() };
    let (state, mut engine) = kept(Shown(plane.clone(), crowded), policy, settings);
    let masks = || [1, 2, 3].map(|tid| plane.world().mask(tid));
    let mut notes = Vec::new();
    (0..14).for_each(|_| notes.extend(engine.step().unwrap().notes));
    assert_eq!((masks(), &notes), ([1; 3].map(node_cpus), &vec![]));
    notes.extend(engine.step().unwrap().notes);
    assert_eq!(masks(), [all_cpus(), all_cpus(), node_cpus(1)]);
    let waited = "its threads waited for a CPU for 0 % of the time they wanted one before, 50 % after, for 3 windows";
    let said = format!(
        "guardrail: /system.slice/a.service went worse after a move: {waited}; 2 threads were put back, and it is left alone for 600 s"
    );
    assert_eq!(notes, [said]);
    let why = waited.to_owned();
    let back = |result: &&OutcomeState| **result == OutcomeState::RolledBack { why: why.clone() };
    assert_eq!(told.lock().unwrap().iter().filter(back).count(), 2);
    assert!(engine.tally().iter().any(|count| count == ("thread", "guardrail", 2)), "{:?}", engine.tally());
    // They are on node 1 still; the kernel takes them where there is room.
    plane.world().tasks.values_mut().for_each(|task| task.node = 0);
    let mut held = 0;
    let again = loop {
        let outcomes = engine.step().unwrap().outcomes;
        let of = |tid| outcomes.iter().find(|o| o.mv.tid() == Some(tid)).map(|o| o.result.clone());
        match of(1).unwrap() {
            MoveEvent::HeldBack { rail: Rail::Guardrail, why } if held == 0 => {
                assert!(why.contains("left alone for 599 s more"), "{why}");
            }
            MoveEvent::HeldBack { rail: Rail::Guardrail, .. } => {}
            other => break other,
        }
        held += 1;
    };
    assert_eq!((again, held), (MoveEvent::Applied, 599));
    drop(engine);
    let entries = read(state.path()).unwrap();
    let guarded = entries.iter().filter(|e| e.event == Event::Guardrail { why: waited.to_owned() });
    assert_eq!(guarded.filter_map(|e| e.thread.as_ref()).map(|t| t.tid).collect::<Vec<_>>(), [1, 2]);
    let held = |e: &&engine::journal::Entry| matches!(e.event, Event::HeldBack { rail: Rail::Guardrail, .. });
    assert_eq!(entries.iter().filter(held).count(), 2, "once for each thread");
    assert_eq!(masks(), [(); 3].map(|()| all_cpus()));
}

/// The copy of what harms is stopped, and what it has copied stays.
#[test]
fn a_copy_that_harms_is_stopped_and_others_wait() {
    let plane = Fake::new([(1, 0, 1)]);
    plane.world().copy_bytes = 1000;
    plane.world().copy_step = 1;
    let slow = |fake: &Fake, snapshot: &mut Snapshot| {
        if !fake.world().copies.is_empty() {
            snapshot.threads.iter_mut().for_each(|t| t.read_bytes = [(topology::NodeId(1), 100)].into_iter().collect());
        }
    };
    let policy = script(|s| if s.time_s >= 5.0 { vec![crate::fake::file(1, 1, 0)] } else { Vec::new() });
    let settings = Settings { guardrail: Guardrail::default(), ..restless() };
    let mut engine = Engine::new(Shown(plane.clone(), slow), policy, settings, None).unwrap();
    (0..9).for_each(|_| _ = engine.step().unwrap());
    let started = vec![(5.0, Subject::File(file_of(1)).to_string())];
    assert_eq!(plane.world().copies.len(), 0);
    assert_eq!(plane.world().started, started);
    let held = engine.step().unwrap().outcomes.remove(0).result;
    assert_eq!(rail(&held), Some(Rail::Guardrail));
    assert_eq!(plane.world().started, started);
}
