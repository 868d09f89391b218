//! One thread at a time.

use std::process::Command;

use engine::{Finished, MoveEvent, Plane, PlaneError, Rail, Subject, Undo, Undone};
use host::{HostPlane, Settings};
use linux::affinity;
use placement::{Move, Reason};
use testing::world::{Running, all, mask, node, tids, topology, wait_for};
use testing::{Case, Tried, any_kernel, cases, root, skip, two_cpus};
use topology::{NodeId, ThreadId};

use crate::world::{Scripted, a_move, engine, made, move_of, plane, step};

pub const CASES: &[Case] = cases![
    [two_cpus()]
        threads_are_moved_and_restored,
        own_affinities_are_pinned_and_untouched,
        affinities_changed_by_others_are_kept,
        exec_keeps_the_move;
    [two_cpus(), any_kernel()]
        a_second_move_leads_back_to_the_first_affinity,
        own_affinities_are_moved_if_the_user_asks,
        ended_threads_and_reused_ids_are_recognised,
        kernel_threads_are_refused,
        homenode_does_not_move_itself,
        eperm_is_reported,
        moves_of_files_without_a_known_path_are_refused;
];

fn threads_are_moved_and_restored() -> Tried {
    let process = Running::role("threads", &["3"]);
    let tids = tids(process.pid());
    assert_eq!(tids.len(), 3);
    let mut engine = engine(plane(Some(Scripted::of(&[process.pid()]))), 1, None);
    let report = engine.step().unwrap();
    assert!(report.outcomes.iter().all(|o| o.result == MoveEvent::Applied), "{:?}", report.outcomes);
    assert!(report.snapshot.threads.iter().all(|t| t.pinned.is_none() && t.allowed_nodes.len() == 2));
    assert_eq!((report.outcomes.len(), report.owned_threads), (3, 3));
    assert!(tids.iter().all(|tid| mask(*tid) == node(1)));
    // A thread that we moved is shown as before: free to move to both nodes.
    let report = engine.step().unwrap();
    assert!(report.snapshot.threads.iter().all(|t| t.pinned.is_none() && t.allowed_nodes.len() == 2 && t.node.0 == 1));
    let finished = engine.finish();
    assert_eq!(finished, Finished { restored: 3, ..Finished::default() });
    assert!(tids.iter().all(|tid| mask(*tid) == all()));
    Ok(())
}

fn a_second_move_leads_back_to_the_first_affinity() -> Tried {
    let process = Running::role("threads", &["1"]);
    let mut plane = plane(Some(Scripted::of(&[])));
    let mut undos = Vec::new();
    for to in [1, 0, 1, 0] {
        undos.extend(made(&mut plane, &move_of(process.pid(), to)));
        assert_eq!(mask(process.pid()), node(to));
    }
    for undo in &undos {
        let masks = undo.masks.as_ref().unwrap();
        assert_eq!((&masks.before, masks.unbound), (&all(), true));
    }
    // The value before the last is no longer ours.
    assert_eq!(plane.undo(&undos[2]).unwrap(), Undone::ChangedByOthers);
    assert_eq!(plane.undo(&undos[3]).unwrap(), Undone::Restored);
    assert_eq!(mask(process.pid()), all());
    Ok(())
}

fn own_affinities_are_pinned_and_untouched() -> Tried {
    let process = Running::role("threads", &["2"]);
    let own = *tids(process.pid()).last().unwrap();
    affinity::set(own, &node(0)).unwrap();
    let mut engine = engine(plane(Some(Scripted::of(&[process.pid()]))), 1, None);
    let report = engine.step().unwrap();
    let why = format!("has an affinity of its own: {}", node(0));
    for outcome in report.outcomes {
        let expected = match outcome.mv.tid() == Some(own) {
            true => MoveEvent::HeldBack { rail: Rail::Pinned, why: why.clone() },
            false => MoveEvent::Applied,
        };
        assert_eq!(outcome.result, expected);
    }
    // A direct request is refused, too.
    let error = engine.plane_mut().prepare(&move_of(own, 1)).unwrap_err();
    assert!(matches!(&error, PlaneError::Refused { reason: "own_affinity", .. }) && error.to_string() == why);
    assert_eq!(engine.finish().restored, 1);
    assert_eq!(mask(own), node(0));
    Ok(())
}

fn own_affinities_are_moved_if_the_user_asks() -> Tried {
    let process = Running::role("threads", &["1"]);
    affinity::set(process.pid(), &node(0)).unwrap();
    let settings =
        Settings { act: act::Settings { touch_own_affinity: true, ..act::Settings::default() }, ..Settings::default() };
    let observer = Scripted::of(&[process.pid()]);
    let plane = HostPlane::with_observer(settings, topology(), Some(observer)).unwrap();
    let mut engine = engine(plane, 1, None);
    assert_eq!(step(&mut engine), [MoveEvent::Applied]);
    assert_eq!(mask(process.pid()), node(1));
    // It is not kept on the nodes that it had: one that was moved back would stay there for good.
    assert_eq!(engine.step().unwrap().snapshot.threads[0].allowed_nodes, [NodeId(0), NodeId(1)]);
    assert_eq!(engine.finish().restored, 1);
    assert_eq!(mask(process.pid()), node(0));
    Ok(())
}

fn affinities_changed_by_others_are_kept() -> Tried {
    let process = Running::role("threads", &["2"]);
    let tids = tids(process.pid());
    let mut engine = engine(plane(Some(Scripted::of(&[process.pid()]))), 1, None);
    engine.step().unwrap();
    affinity::set(tids[0], &node(0)).unwrap();
    // From the next window on, the thread counts as bound by others.
    let report = engine.step().unwrap();
    let pinned: Vec<_> = report.snapshot.threads.iter().map(|t| (t.tid, t.pinned.is_some())).collect();
    assert_eq!(pinned, [(tids[0], true), (tids[1], false)]);
    let finished = engine.finish();
    assert_eq!((finished.restored, finished.changed_by_others), (1, 1));
    assert_eq!((mask(tids[0]), mask(tids[1])), (node(0), all()));

    // Changed between the decision and the move.
    let mut plane = plane(Some(Scripted::of(&[])));
    let mv = move_of(tids[1], 1);
    let undo = plane.prepare(&mv).unwrap();
    affinity::set(tids[1], &node(0)).unwrap();
    let error = plane.start(&mv, &undo, &mut |_| Ok(())).unwrap_err();
    assert!(matches!(error, PlaneError::Refused { reason: "own_affinity", .. }), "{error}");
    assert_eq!(mask(tids[1]), node(0));
    Ok(())
}

fn exec_keeps_the_move() -> Tried {
    // The shell waits for the file, then becomes another program: same thread, same start, same
    // mask.
    let tmp = tempfile::tempdir().unwrap();
    let go = tmp.path().join("go");
    let process = Running::shell_after(&go, "exec sleep 600");
    let mut engine = engine(plane(Some(Scripted::of(&[process.pid()]))), 1, None);
    assert_eq!(step(&mut engine), [MoveEvent::Applied]);
    std::fs::write(&go, "").unwrap();
    wait_for(|| std::fs::read_to_string(format!("/proc/{}/comm", process.pid())).unwrap() == "sleep\n");
    assert_eq!(mask(process.pid()), node(1));
    let finished = engine.finish();
    assert_eq!(finished.restored - finished.inherited, 1); // a pause of the shell's may have inherited it too
    assert_eq!(mask(process.pid()), all());
    Ok(())
}

fn ended_threads_and_reused_ids_are_recognised() -> Tried {
    let mut process = Running::role("threads", &["1"]);
    let tid = process.pid();
    let mut plane = plane(Some(Scripted::of(&[])));
    let mv = move_of(tid, 1);
    // A later thread with the same id: nothing is set, nothing is undone.
    let Subject::Thread(id) = mv.subject else { panic!() };
    let next = ThreadId::new(tid, id.start_ns().unwrap() + 10_000_000);
    let later = Move { subject: Subject::Thread(next), ..mv.clone() };
    assert!(matches!(plane.prepare(&later), Err(PlaneError::Gone { .. })));
    let undo = plane.prepare(&mv).unwrap();
    let undos = undo;
    let undo = undos[0].clone();
    assert_eq!(undo.subject, mv.subject);
    let other = Undo { subject: Subject::Thread(next), ..undo.clone() };
    // A thread without our value is not asked for its identity.
    assert_eq!(plane.undo(&other).unwrap(), Undone::ChangedByOthers);
    let ours = undo.masks.clone().unwrap().ours;
    affinity::set(tid, &ours).unwrap();
    assert_eq!(plane.undo(&other).unwrap(), Undone::Gone);
    assert_eq!(mask(tid), ours);
    affinity::set(tid, &all()).unwrap();
    assert!(!plane.ended(&undo) && plane.ended(&other));
    // Ends between decision and move, while it is still a zombie and when it is not.
    process.0.kill().unwrap();
    while plane.prepare(&mv).is_ok() {}
    assert!(matches!(plane.prepare(&mv), Err(PlaneError::Gone { .. })));
    assert!(matches!(
        plane.start(&mv, &undos, &mut |_| Ok(())),
        Err(PlaneError::Gone { .. } | PlaneError::Refused { .. })
    ));
    process.kill();
    let error = plane.prepare(&mv).unwrap_err();
    assert_eq!(error.to_string(), format!("thread {tid} has ended"));
    assert_eq!(plane.undo(&undo).unwrap(), Undone::Gone);
    assert!(plane.ended(&undo));
    Ok(())
}

fn kernel_threads_are_refused() -> Tried {
    if std::fs::read_to_string("/proc/2/comm").ok().as_deref() != Some("kthreadd\n") {
        return skip("kernel threads are not visible here");
    }
    let mut plane = plane(Some(Scripted::of(&[2])));
    let error = plane.prepare(&move_of(2, 1)).unwrap_err();
    assert!(matches!(error, PlaneError::Refused { reason: "kernel_thread", .. }), "{error}");
    let snapshot = plane.observe(std::time::Duration::ZERO).unwrap();
    assert_eq!(snapshot.threads[0].pinned.as_deref(), Some("is a kernel thread"));
    Ok(())
}

fn homenode_does_not_move_itself() -> Tried {
    let mut plane = plane(Some(Scripted::of(&[std::process::id()])));
    let snapshot = plane.observe(std::time::Duration::ZERO).unwrap();
    assert!(!snapshot.threads.is_empty());
    assert!(
        snapshot.threads.iter().all(|t| t.pinned.as_deref() == Some("is homenode itself")),
        "{:?}",
        snapshot.threads
    );
    Ok(())
}

fn eperm_is_reported() -> Tried {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    root()?;
    let process = Running::role("threads", &["1"]);
    // A copy: nobody may be unable to enter the directory that this program is in.
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("act");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut nobody = Command::new(&program);
    nobody.args(["--role", "nobody", &process.pid().to_string()]).uid(65_534).gid(65_534);
    let said = match nobody.output() {
        Ok(said) => String::from_utf8(said.stdout).unwrap(),
        // The temporary directory may be private, or mounted without execution.
        Err(error) => return skip(format!("nobody cannot run {}: {error}", program.display())),
    };
    assert_eq!(
        said,
        format!(
            "eperm: the affinity of thread {} cannot be set: Operation not permitted (os error 1)\n",
            process.pid()
        )
    );
    assert_eq!(mask(process.pid()), all());
    Ok(())
}

/// Tries to move a thread that belongs to somebody else.
pub fn be_nobody(args: &[String]) {
    let mv = move_of(args[0].parse().unwrap(), 1);
    let mut plane = plane(None);
    let undo = plane.prepare(&mv).unwrap();
    match plane.start(&mv, &undo, &mut |_| Ok(())) {
        Err(PlaneError::Refused { reason, why, cause }) => println!("{reason}: {why}: {}", cause.unwrap()),
        other => println!("{other:?}"),
    }
}

fn moves_of_files_without_a_known_path_are_refused() -> Tried {
    let mut plane = plane(None);
    let subject = Subject::File(placement::testing::file(2));
    let file = a_move(subject, 0, 1, Reason::OverloadedHome);
    let error = plane.prepare(&file).unwrap_err();
    assert!(matches!(error, PlaneError::Refused { reason: "file_unknown", .. }), "{error}");
    let error = plane.observe(std::time::Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("cannot observe"), "{error}");
    assert!(plane.epoch().is_some_and(|id| id.len() == 36));
    Ok(())
}
