//! Killed at any point: what the next start finds is put back, and nothing else.

use std::collections::BTreeMap;
use std::path::Path;

use engine::{Engine, Settings, StateDir, recover};

use crate::fake::{Fake, Task, Wreck, mv, node_cpus, script, set};

/// Runs a busy scenario (first moves, second moves, refusals, deaths, foreign changes) and returns
/// what a crash would have left at every step of it.
fn wrecks() -> Vec<Wreck> {
    let tmp = tempfile::tempdir().unwrap();
    let state = StateDir::open(tmp.path()).unwrap();
    let plane = Fake::new((1..=6).map(|tid| (tid, 0, 1)));
    plane.world().state = Some(tmp.path().join("state.jsonl"));
    plane.world().die_before_apply.push(4);
    plane.world().tasks.get_mut(&5).unwrap().refuse = Some("eperm");
    let settings = Settings { dwell_s: 2.0, cooldown_s: 2.0, ..Settings::default() };
    let policy = script(|s| {
        let to = (s.time_s as u32 / 2) % 3;
        s.threads.iter().filter(|t| t.node.0 != to).map(|t| mv(t.tid, t.start_ns, t.node.0, to)).collect()
    });
    let mut engine = Engine::new(plane.clone(), policy, settings, Some(state)).unwrap();
    for window in 0..12 {
        engine.step().unwrap();
        if window == 5 {
            plane.world().taskset(3, "1,3");
        }
    }
    engine.finish();
    let wrecks = std::mem::take(&mut plane.world().wrecks);
    assert!(wrecks.len() > 60, "{}", wrecks.len());
    wrecks
}

/// Starts again from what is left and checks that every mask that is ours is put back and no other
/// is touched.
fn start_again(dir: &Path, state: &[u8], tasks: &BTreeMap<u32, Task>) {
    std::fs::write(dir.join("state.jsonl"), state).unwrap();
    let mut plane = Fake::of(tasks.clone());
    plane.world().tasks.values_mut().for_each(|t| t.refuse = None);
    let finished = recover(&mut plane, &StateDir::open(dir).unwrap()).unwrap();
    assert_eq!(finished.failed, 0);
    for (tid, task) in &plane.world().tasks {
        let before = &tasks[tid].mask;
        let ours = (0..3).any(|n| *before == node_cpus(n));
        assert_eq!(task.mask, if ours { set("0-5") } else { before.clone() }, "thread {tid} after {before}");
    }
    assert!(!dir.join("state.jsonl").exists());
    // Twice is the same as once.
    let masks: Vec<_> = plane.world().tasks.values().cloned().collect();
    recover(&mut plane, &StateDir::open(dir).unwrap()).unwrap();
    assert_eq!(plane.world().tasks.values().cloned().collect::<Vec<_>>(), masks);
}

#[test]
fn killed_between_any_two_steps() {
    let tmp = tempfile::tempdir().unwrap();
    for (state, tasks) in wrecks() {
        start_again(tmp.path(), &state.unwrap(), &tasks);
    }
}

#[test]
fn killed_at_any_byte_of_a_write() {
    let tmp = tempfile::tempdir().unwrap();
    let wrecks = wrecks();
    let mut checked = 0;
    for pair in wrecks.windows(2) {
        let ((Some(old), before), (Some(new), _)) = (&pair[0], &pair[1]) else { panic!("no state file") };
        if !new.starts_with(old) || new.len() == old.len() {
            continue;
        }
        // While these bytes were being written the masks were those of the earlier step.
        for cut in old.len()..new.len() {
            start_again(tmp.path(), &new[..cut], before);
            checked += 1;
        }
    }
    assert!(checked > 2_000, "{checked}");
}

#[test]
fn a_file_that_is_damaged_anywhere_is_no_fault_and_touches_nothing_foreign() {
    let tmp = tempfile::tempdir().unwrap();
    let (state, tasks) = wrecks().into_iter().rfind(|w| w.0.as_ref().is_some_and(|s| s.len() > 2_000)).unwrap();
    let state = state.unwrap();
    for i in (0..state.len()).step_by(7) {
        let mut damaged = state.clone();
        damaged[i] ^= 0x15;
        std::fs::write(tmp.path().join("state.jsonl"), &damaged).unwrap();
        let mut plane = Fake::of(tasks.clone());
        // A version that is not ours is an error; everything else is survived.
        let _ = recover(&mut plane, &StateDir::open(tmp.path()).unwrap());
        for (tid, task) in &plane.world().tasks {
            let before = &tasks[tid].mask;
            let ours = (0..3).any(|n| *before == node_cpus(n));
            assert!(ours || task.mask == *before, "thread {tid}");
        }
    }
}

/// A thread moves from node to node; just before each change it has a child that no look has seen.
#[test]
fn a_child_born_just_before_its_parent_changes_is_found() {
    let tmp = tempfile::tempdir().unwrap();
    let state = StateDir::open(tmp.path()).unwrap();
    let plane = Fake::new([(1, 0, 1)]);
    plane.world().state = Some(tmp.path().join("state.jsonl"));
    plane.world().late_births = (10..16).map(|child| (1, child)).collect();
    let settings = Settings { dwell_s: 0.0, cooldown_s: 0.0, ..Settings::default() };
    let policy = script(|s| {
        let to = (s.time_s as u32) % 3;
        s.threads.iter().filter(|t| t.tid == 1 && t.node.0 != to).map(|t| mv(1, t.start_ns, t.node.0, to)).collect()
    });
    let mut engine = Engine::new(plane.clone(), policy, settings, Some(state)).unwrap();
    for _ in 0..6 {
        engine.step().unwrap();
    }
    drop(engine);
    let wrecks = std::mem::take(&mut plane.world().wrecks);
    let late = |wreck: &Wreck| wreck.1.iter().any(|(tid, task)| *tid >= 10 && task.mask != wreck.1[&1].mask);
    assert!(wrecks.iter().filter(|wreck| late(wreck)).count() >= 5, "{wrecks:?}");
    for (state, tasks) in wrecks {
        start_again(tmp.path(), &state.unwrap(), &tasks);
    }
}

#[test]
fn the_last_child_of_a_thread_that_ended_is_found() {
    let (tmp, again) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let plane = Fake::new([(1, 0, 1)]);
    plane.world().last_births.push((1, 10));
    let policy = script(|s| s.threads.iter().filter(|t| t.node.0 != 1).map(|t| mv(t.tid, t.start_ns, 0, 1)).collect());
    let state = StateDir::open(tmp.path()).unwrap();
    let mut engine = Engine::new(plane.clone(), policy, Settings::default(), Some(state)).unwrap();
    engine.step().unwrap();
    engine.step().unwrap();
    let tasks = plane.world().tasks.clone();
    assert!(!tasks.contains_key(&1) && tasks[&10].mask == node_cpus(1), "{tasks:?}");
    start_again(again.path(), &std::fs::read(tmp.path().join("state.jsonl")).unwrap(), &tasks);
}
