//! The journal, as a person reads it later.

use std::time::UNIX_EPOCH;

use engine::journal::{Counts, Decided, Event, history, read};
use engine::{Rail, Settings};

use placement::{Move, Reason, Subject};
use topology::NodeId;

use crate::fake::{Fake, file_of, go_home, mv, restless, script};
use crate::kept;

#[test]
fn a_move_is_told_with_reason_figures_and_what_it_brought() {
    let plane = Fake::new([(1, 0, 1), (2, 1, 1)]);
    let (tmp, mut engine) = kept(plane, go_home(), Settings::default());
    let now = || UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    let before = now();
    for _ in 0..5 {
        engine.step().unwrap();
    }
    engine.finish();
    let all = read(tmp.path()).unwrap();
    let of_one = all.iter().filter(|e| e.thread.as_ref().is_some_and(|about| about.tid == 1));
    let lines = history(of_one.cloned().collect());
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0].remote_share, Some((1.0, 0.0)));
    // To the millisecond.
    let times = [before - 0.001, lines[0].entry.time, lines[1].entry.time, now() + 0.001];
    assert!(times.is_sorted(), "{times:?}");
    let Event::Moved(Decided { why, remote_share, rule, .. }) = &lines[0].entry.event else { panic!("{lines:?}") };
    assert_eq!((why.as_str(), *remote_share), ("1.0 MB of 1.0 MB read there", Some(1.0)));
    assert_eq!(rule.as_deref(), Some("db"));
    let Event::Undone { affinity, occasion, .. } = &lines[1].entry.event else { panic!("{lines:?}") };
    assert_eq!((affinity.as_str(), occasion.as_str()), ("0-5", "on exit"));
    assert!(matches!(&all[0].event, Event::Started { policy, .. } if policy == "script"));
    // Thread 2 was at home and was bound there.
    assert!(matches!(all.last().unwrap().event, Event::Stopped(Counts { restored: 2, .. })));
}

#[test]
fn a_move_that_is_held_back_every_window_is_told_once() {
    let plane = Fake::new([(1, 0, 1)]);
    let flutter = script(|s| vec![mv(1, None, s.threads[0].node.0, 1 - s.threads[0].node.0)]);
    let (tmp, mut engine) = kept(plane.clone(), flutter, restless());
    for _ in 0..500 {
        engine.step().unwrap();
    }
    engine.finish();
    let rails: Vec<Rail> = read(tmp.path())
        .unwrap()
        .iter()
        .filter_map(|e| match e.event {
            Event::HeldBack { rail, .. } => Some(rail),
            _ => None,
        })
        .collect();
    use Rail::*;
    assert_eq!(rails, [Dwell, Dwell, Cooldown, Dwell, Cooldown, LeftAlone]);
}

#[test]
fn refusals_and_ends_are_told() {
    let plane = Fake::new([(1, 0, 1), (2, 0, 1)]);
    plane.world().taskset(1, "0");
    plane.world().die_before_apply.push(2);
    let (tmp, mut engine) = kept(plane.clone(), go_home(), Settings::default());
    engine.step().unwrap();
    let events: Vec<Event> = read(tmp.path()).unwrap().into_iter().map(|e| e.event).collect();
    assert!(matches!(&events[1], Event::Refused { reason, .. } if reason == "own_affinity"), "{events:?}");
    assert_eq!(events[2], Event::Gone);
}

#[test]
fn moved_files_and_processes_are_each_judged_by_what_their_readers_read() {
    // Each thread is a process of its own, reads a file of its own, and runs on another node than
    // the file.
    let plane = Fake::new([(1, 0, 1), (2, 0, 1), (3, 0, 1)]);
    let (reason, why) = (Reason::CacheAffinity, || "read from there".into());
    let file = move |tid| {
        let subject = Subject::File(file_of(tid));
        Move { subject, pid: 0, from: NodeId(1), to: NodeId(0), reason, why: why(), ranges: Vec::new() }
    };
    let subject = Subject::process(3, None);
    let process = Move { subject, pid: 3, from: NodeId(0), to: NodeId(1), reason, why: why(), ranges: Vec::new() };
    let mut moves = vec![file(1), file(2), process];
    let once = script(move |_| std::mem::take(&mut moves));
    let (tmp, mut engine) = kept(plane.clone(), once, Settings::default());
    engine.step().unwrap();
    // The first file is carried off again: the audit of one file must not speak for the other.
    plane.world().tasks.get_mut(&1).unwrap().home = 2;
    for _ in 0..12 {
        engine.step().unwrap();
    }
    let lines = history(read(tmp.path()).unwrap());
    let moved = lines.iter().filter(|l| matches!(l.entry.event, Event::Moved(_)));
    let shares: Vec<_> = moved.map(|l| l.remote_share).collect();
    assert_eq!(shares, [Some((1.0, 1.0)), Some((1.0, 0.0)), Some((1.0, 0.0))]);
}
