//! Threads in a cpuset that is smaller than the machine (control groups, version 1 or 2).

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use engine::{MoveEvent, Plane, PlaneError, Rail, Undone};
use host::{HostPlane, Settings};
use testing::world::{Running, all, mask, node, set, topology_of};
use testing::{Case, Tried, cases, skip, two_cpus};
use topology::CpuSet;

use crate::claims::{child_of, parent_of_one};
use crate::forks::WithBirths;
use crate::world::{Scripted, engine, made, move_of, plane, step};

pub const CASES: &[Case] = cases![[two_cpus()]
    targets_stay_inside_the_cpuset,
    a_cpuset_may_change_under_a_move,
    a_child_whose_cpuset_was_narrowed_is_restored,
];

/// A control group for one process, removed when dropped.
struct Group(PathBuf);

impl Group {
    fn new(cpus: &CpuSet) -> Tried<Self> {
        let v1 = PathBuf::from("/sys/fs/cgroup/cpuset");
        let v2 = PathBuf::from("/sys/fs/cgroup");
        let is_v1 = v1.join("cpuset.mems").exists();
        let controllers = std::fs::read_to_string(v2.join("cgroup.subtree_control")).unwrap_or_default();
        if !is_v1 && !controllers.contains("cpuset") {
            return skip("no cpuset control groups are mounted here");
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("homenode-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = if is_v1 { v1 } else { v2 }.join(name);
        std::fs::create_dir(&path).or_else(|e| skip(format!("{}: {e}", path.display())))?;
        let group = Self(path);
        if is_v1 {
            let mems = std::fs::read_to_string("/sys/fs/cgroup/cpuset/cpuset.mems").unwrap();
            std::fs::write(group.0.join("cpuset.mems"), mems).unwrap();
        }
        group.set(cpus);
        Ok(group)
    }

    fn set(&self, cpus: &CpuSet) {
        std::fs::write(self.0.join("cpuset.cpus"), cpus.to_string()).unwrap();
    }

    fn enter(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel needs a moment after the last process has ended.
        for _ in 0..200 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

fn targets_stay_inside_the_cpuset() -> Tried {
    let group = Group::new(&node(1))?;
    let process = Running::role("threads", &["1"]);
    group.enter(process.pid());
    assert_eq!(mask(process.pid()), node(1));
    let _kept = KeepOrder(process, group);
    let tid = _kept.0.pid();

    // Its mask is all of its cpuset, so it is not an affinity of its own.
    let mut narrow = plane(Some(Scripted::of(&[tid])));
    let snapshot = narrow.observe(std::time::Duration::ZERO).unwrap();
    assert_eq!((snapshot.threads[0].pinned.as_deref(), snapshot.threads[0].allowed_nodes.len()), (None, 1));
    let error = narrow.prepare(&move_of(tid, 0)).unwrap_err();
    assert!(matches!(error, PlaneError::Refused { reason: "no_cpu_on_node", .. }), "{error}");
    assert_eq!(error.to_string(), format!("may use no CPU of node 0: its cpuset is {}", node(1)));

    // The cpuset has part of the node: the move sets that part.
    let nodes = topology_of([all(), node(1)]);
    let mut wide = HostPlane::with_observer(Settings::default(), nodes, None).unwrap();
    let undo = made(&mut wide, &move_of(tid, 0));
    assert_eq!(mask(tid), node(1));
    assert_eq!(wide.undo(&undo[0]).unwrap(), Undone::Restored);
    assert_eq!(mask(tid), node(1));
    Ok(())
}

/// The process ends before its group is removed.
struct KeepOrder(Running, #[allow(dead_code)] Group);

fn a_cpuset_may_change_under_a_move() -> Tried {
    let group = Group::new(&all())?;
    let process = Running::role("threads", &["1"]);
    group.enter(process.pid());
    let kept = KeepOrder(process, group);
    let (tid, group) = (kept.0.pid(), &kept.1);

    // Moved to node 1, then the cpuset loses node 1: the kernel falls back to what is left, which
    // is still our doing.
    let mut first = engine(plane(Some(Scripted::of(&[tid]))), 1, None);
    assert_eq!(step(&mut first), [MoveEvent::Applied]);
    group.set(&node(0));
    assert_eq!(mask(tid), node(0));
    let report = first.step().unwrap();
    assert_eq!(
        (report.snapshot.threads[0].pinned.as_deref(), report.snapshot.threads[0].allowed_nodes.len()),
        (None, 1)
    );
    assert!(matches!(report.outcomes[0].result, MoveEvent::HeldBack { rail: Rail::Dwell, .. }));
    assert_eq!(first.finish().restored, 1);
    assert_eq!(mask(tid), node(0));
    // Once its cpuset is whole again, it may run everywhere.
    group.set(&all());
    assert_eq!(mask(tid), all());

    // Moved while the cpuset was narrow, undone when it is wide: all of it, not the one CPU it had
    // before.
    group.set(&node(1));
    let mut second = plane(None);
    let undo = made(&mut second, &move_of(tid, 1));
    group.set(&all());
    // Before 6.2 a thread got all of a cpuset that changed, whatever its affinity had been: nothing
    // of ours is left.
    let forgotten = mask(tid) == all();
    assert!(forgotten || mask(tid) == node(1));
    let undone = if forgotten { Undone::ChangedByOthers } else { Undone::Restored };
    assert_eq!(second.undo(&undo[0]).unwrap(), undone);
    assert_eq!(mask(tid), all());
    Ok(())
}

/// A child of a moved process, whose cpuset lost a CPU of the node since, has a mask that is ours
/// and not equal to it.
fn a_child_whose_cpuset_was_narrowed_is_restored() -> Tried {
    let cpus: Vec<u32> = all().iter().collect();
    let [first, second, third, ..] = cpus[..] else { return skip("needs three CPUs") };
    let group = Group::new(&all())?;
    let tmp = tempfile::tempdir().unwrap();
    let go = tmp.path().join("go");
    let shell = parent_of_one(&go);
    group.enter(shell.pid());
    let kept = KeepOrder(shell, group);
    let (pid, group) = (kept.0.pid(), &kept.1);
    // Node 1 has two CPUs.
    let nodes = topology_of([set([first]), set([second, third])]);
    let plane = HostPlane::with_observer(Settings::default(), nodes, Some(WithBirths::of(&[pid])?)).unwrap();
    let mut engine = engine(plane, 1, None);
    engine.step().unwrap();
    assert_eq!(mask(pid), set([second, third]));
    std::fs::write(&go, "").unwrap();
    let child = child_of(pid);
    group.set(&set([first, second]));
    if mask(child) != set([second]) {
        return skip("before Linux 6.2 a thread gets all of a cpuset that changed");
    }
    assert_eq!(engine.step().unwrap().inherited_restored, 1);
    assert_eq!(mask(child), set([first, second]));
    engine.finish();
    assert_eq!(mask(pid), set([first, second]));
    Ok(())
}
