//! CPUs that come online or are isolated, and a sched_ext scheduler that starts: real threads, a
//! made-up sysfs.

use std::fs;
use std::path::Path;
use std::time::Duration;

use engine::{Engine, Finished, MoveEvent, Plane, PlaneError, Settings, Undone};
use host::{HostPlane, Settings as HostSettings};
use linux::affinity;
use placement::Plan;
use testing::world::{Running, all, first_two, mask, set};
use testing::{Case, Tried, any_kernel, cases, two_cpus};
use topology::config::NodeConfig;
use topology::{CpuSet, NodeId, Topology};

use crate::world::{Scripted, made, move_of, script, settings};

pub const CASES: &[Case] = cases![[two_cpus(), any_kernel()]
    threads_bound_to_half_a_node_get_the_rest_when_it_comes_online,
    made_up_nodes_stay_when_cpus_come,
    the_affinity_of_a_machine_with_isolated_cpus_is_nobodys_own,
    no_thread_is_bound_beside_a_sched_ext_scheduler_that_came_later,
];

fn write(sys: &Path, file: &str, text: &str) {
    let path = sys.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("{text}\n")).unwrap();
}

/// Node 0 has these CPUs online, node 1 has memory only.
fn sysfs(sys: &Path, online: &CpuSet, isolated: &CpuSet) {
    let online = online.to_string();
    let possible = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap();
    for (file, text) in [
        ("cpu/online", online.as_str()),
        ("cpu/possible", possible.trim()),
        ("cpu/isolated", &isolated.to_string()),
        ("node/online", "0-1"),
        ("node/has_cpu", "0"),
        ("node/has_memory", "0-1"),
        ("node/node0/cpulist", &online),
        ("node/node0/meminfo", "Node 0 MemTotal: 1024 kB"),
        ("node/node0/distance", "10 21"),
        ("node/node1/cpulist", ""),
        ("node/node1/meminfo", "Node 1 MemTotal: 1024 kB"),
        ("node/node1/distance", "21 10"),
    ] {
        write(sys, &format!("devices/system/{file}"), text);
    }
}

fn plane(sys: &Path, topology: Topology, pid: u32) -> HostPlane {
    let settings = HostSettings {
        act: act::Settings { sys_root: sys.to_owned(), ..act::Settings::default() },
        ..HostSettings::default()
    };
    HostPlane::with_observer(settings, topology, Some(Scripted::of(&[pid]))).unwrap()
}

fn threads_bound_to_half_a_node_get_the_rest_when_it_comes_online() -> Tried {
    let (all, [a, _]) = (all(), first_two());
    let (sys, process) = (tempfile::tempdir().unwrap(), Running::role("threads", &["1"]));
    let half = set([a]);
    sysfs(sys.path(), &half, &CpuSet::default());
    // What the kernel would show while the others are offline.
    affinity::set(process.pid(), &half).unwrap();
    let mut topology = topology::sysfs::read(sys.path()).unwrap();
    let configured = NodeConfig { read_bw_max: Some(3e9), write_bw_max: None, ..NodeConfig::default() };
    topology.configure(&[(NodeId(0), configured)].into()).unwrap();
    let plane = plane(sys.path(), topology, process.pid());
    let settings = Settings { dwell_s: 0.0, ..settings() };
    // Binds every thread once where it is.
    let mut first = true;
    let policy = script(move |snapshot| {
        let keeps = snapshot.threads.iter().filter(|_| first).map(|t| t.tid).collect();
        first = false;
        Plan { keeps, ..Plan::default() }
    });
    let mut engine = Engine::new(plane, policy, settings, None).unwrap();
    let applied = |report: engine::WindowReport| report.outcomes.into_iter().map(|o| o.result).collect::<Vec<_>>();
    assert_eq!(applied(engine.step().unwrap()), [MoveEvent::Applied]);
    assert_eq!(mask(process.pid()), half);

    sysfs(sys.path(), &all, &CpuSet::default());
    let report = engine.step().unwrap();
    assert!(report.snapshot.notes.iter().any(|note| note.contains("came or went")), "{:?}", report.snapshot.notes);
    assert_eq!(engine.plane().topology().cpus(), all);
    assert_eq!(engine.plane().topology().nodes[0].read_bw_max, Some(3e9), "what is configured stays");
    assert_eq!(report.snapshot.nodes[0].cpus.len(), all.len());
    assert_eq!(applied(report), [MoveEvent::Applied], "bound to the whole node");
    assert_eq!(mask(process.pid()), all);

    sysfs(sys.path(), &half, &CpuSet::default());
    let report = engine.step().unwrap();
    assert_eq!(report.snapshot.nodes[0].cpus, [a], "offline CPUs are no capacity");
    assert_eq!(engine.finish(), Finished { restored: 1, ..Finished::default() });
    Ok(())
}

/// An emulated machine became the real one when a CPU of that came.
fn made_up_nodes_stay_when_cpus_come() -> Tried {
    let (all, [a, _]) = (all(), first_two());
    let (sys, process) = (tempfile::tempdir().unwrap(), Running::role("threads", &["1"]));
    sysfs(sys.path(), &set([a]), &CpuSet::default());
    let topology = topology::sysfs::read(sys.path()).unwrap();
    let settings = HostSettings {
        act: act::Settings { sys_root: sys.path().to_owned(), fixed_nodes: true, ..act::Settings::default() },
        ..HostSettings::default()
    };
    let mut plane = HostPlane::with_observer(settings, topology.clone(), Some(Scripted::of(&[process.pid()]))).unwrap();
    sysfs(sys.path(), &all, &CpuSet::default());
    plane.observe(Duration::ZERO).unwrap();
    assert_eq!(*plane.topology(), topology);
    Ok(())
}

fn the_affinity_of_a_machine_with_isolated_cpus_is_nobodys_own() -> Tried {
    let (all, [a, b]) = (all(), first_two());
    let (sys, process) = (tempfile::tempdir().unwrap(), Running::role("threads", &["1"]));
    // All but one, however many CPUs the machine has.
    sysfs(sys.path(), &all, &all.difference(&set([a])));
    // Somebody has set it: homenode's undo, or that of a parent, before it was born.
    affinity::set(process.pid(), &set([a])).unwrap();
    let mut plane = plane(sys.path(), topology::sysfs::read(sys.path()).unwrap(), process.pid());
    let pinned = |plane: &mut HostPlane| plane.observe(Duration::ZERO).unwrap().threads.remove(0).pinned;
    assert_eq!(pinned(&mut plane), None);
    let undo = made(&mut plane, &move_of(process.pid(), 0));
    let masks = undo[0].masks.clone().unwrap();
    assert_eq!((masks.before, masks.ours), (set([a]), set([a])), "it stays off the isolated CPU");
    assert_eq!(plane.undo(&undo[0]).unwrap(), Undone::Restored);
    assert_eq!(mask(process.pid()), set([a]));
    assert_eq!(pinned(&mut plane), None, "put back, it can be moved again");
    // An isolated CPU is given only to those that ask for it.
    affinity::set(process.pid(), &set([b])).unwrap();
    assert!(pinned(&mut plane).unwrap().contains("an affinity of its own"));
    Ok(())
}

fn no_thread_is_bound_beside_a_sched_ext_scheduler_that_came_later() -> Tried {
    let all = all();
    let (sys, process) = (tempfile::tempdir().unwrap(), Running::role("threads", &["1"]));
    sysfs(sys.path(), &all, &CpuSet::default());
    let topology = topology::sysfs::read(sys.path()).unwrap();
    let mut plane = plane(sys.path(), topology.clone(), process.pid());
    let mut pinned = || {
        let snapshot = plane.observe(Duration::ZERO).unwrap();
        let said = snapshot.notes.iter().any(|note| note.contains("scheduler layered, enabled"));
        (snapshot.threads[0].pinned.clone(), said, plane.prepare(&move_of(process.pid(), 0)).map(|_| ()))
    };
    assert!(matches!(pinned(), (None, false, Ok(()))));
    write(sys.path(), "kernel/sched_ext/state", "enabled");
    write(sys.path(), "kernel/sched_ext/root/ops", "layered");
    let (why, said, prepared) = pinned();
    assert!(why.unwrap().contains("scheduler layered") && said);
    assert!(matches!(prepared, Err(PlaneError::Refused { reason: "sched_ext", .. })), "{prepared:?}");
    write(sys.path(), "kernel/sched_ext/state", "disabled");
    assert!(matches!(pinned(), (None, false, Ok(()))));
    // The user may ask for it.
    write(sys.path(), "kernel/sched_ext/state", "enabled");
    let told = HostSettings {
        act: act::Settings { sys_root: sys.path().to_owned(), beside_sched_ext: true, ..act::Settings::default() },
        ..HostSettings::default()
    };
    let mut plane = HostPlane::with_observer(told, topology, Some(Scripted::of(&[process.pid()]))).unwrap();
    assert_eq!(plane.observe(Duration::ZERO).unwrap().threads[0].pinned, None);
    Ok(())
}
