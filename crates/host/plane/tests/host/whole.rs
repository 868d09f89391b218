//! Everything together: real readers, the real observer, NThread, the engine with its state
//! directory.

use std::path::Path;

use engine::journal::{Decided, Event, history, read};
use engine::{Engine, Settings, StateDir};
use host::{HostPlane, Settings as HostSettings};
use testing::world::{Running, all, mask, node, set, tids, topology_of};
use testing::{Case, Tried, cases, skip, two_cpus};
use topology::NodeId;

pub const CASES: &[Case] = cases![[two_cpus()]
    readers_go_home_to_their_files,
];

/// Threads that read a cached file over and over.
pub fn be_readers(args: &[String]) {
    use std::os::unix::fs::FileExt;
    let files: Vec<std::fs::File> = args.iter().map(|path| std::fs::File::open(path).unwrap()).collect();
    println!("ready");
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(move || {
                let mut block = vec![0; 64 << 10];
                for i in 0.. {
                    file.read_exact_at(&mut block, (i % 128) * (64 << 10)).unwrap();
                }
            });
        }
    });
}

/// All memory of a machine with one node is on node 0: readers that the scheduler puts on the other
/// made-up node go home.
fn readers_go_home_to_their_files() -> Tried {
    if Path::new("/sys/devices/system/node/node1").exists() {
        return skip("needs a machine with one node, so that it is known where the file is");
    }
    let tmp = tempfile::tempdir().unwrap();
    let files = ["a", "b", "c"].map(|name| tmp.path().join(name));
    for file in &files {
        std::fs::write(file, vec![1u8; 8 << 20]).unwrap();
    }
    let names = files.each_ref().map(|f| f.to_str().unwrap());
    let readers = Running::role_of_another("readers", &names);
    // Only these readers: no test moves other programs of this machine.
    let scope = observe::Scope::of(&[readers.pid()], Path::new("/proc"))?;
    let observe = observe::Settings { scope, ..observe::Settings::default() };
    // A thread on a CPU of no node is not placed, and where nothing else runs a reader stays on its
    // CPU: each has a node.
    let topology = topology_of([node(0), set(all().iter().skip(1))]);
    let plane = HostPlane::open(HostSettings { observe, ..HostSettings::default() }, topology)
        .or_else(|e| skip(e.to_string()))?;
    let policy = placement::policy("nthread-rl", &Default::default()).unwrap();
    let state = StateDir::open(&tmp.path().join("state")).unwrap();
    let settings = Settings { window_s: 0.3, ..Settings::default() };
    let mut engine = Engine::new(plane, policy, settings, Some(state)).unwrap();
    let threads = || tids(readers.pid()).into_iter().filter(|tid| *tid != readers.pid()).collect::<Vec<_>>();
    // The kernel knows nothing of the invented nodes, so the test looks at where the threads run.
    for _ in 0..100 {
        engine.step().unwrap();
        if threads().len() == 3 && threads().iter().all(|tid| mask(*tid) == node(0)) {
            break;
        }
    }
    assert!(threads().iter().all(|tid| mask(*tid) == node(0)));
    for _ in 0..4 {
        let report = engine.step().unwrap();
        let own: Vec<_> = report.snapshot.threads.iter().filter(|t| t.pid == readers.pid()).collect();
        assert!(own.iter().map(|t| t.read_bytes.get(NodeId(0))).sum::<u64>() > 1_000_000);
        assert!(own.iter().all(|t| t.node == NodeId(0) && t.pinned.is_none() && t.allowed_nodes.len() == 2));
        assert!(report.outcomes.is_empty(), "{:?}", report.outcomes);
    }
    let finished = engine.finish();
    assert_eq!((finished.restored, finished.failed), (3, 0), "{finished:?}");
    assert!(threads().iter().all(|tid| mask(*tid) == all()));
    let mut entries = read(&tmp.path().join("state")).unwrap();
    entries.retain(|e| e.thread.as_ref().is_some_and(|about| about.pid == readers.pid()));
    let lines = history(entries);
    let moved: Vec<_> = lines.iter().filter(|l| matches!(l.entry.event, Event::Moved(_))).collect();
    assert_eq!(moved.len(), 3);
    for line in &moved {
        let Event::Moved(Decided { from, to, why, .. }) = &line.entry.event else { panic!("{line:?}") };
        // From node 1, or bound on node 0 where it already was when others came.
        assert!(from.0 <= 1 && *to == NodeId(0), "{line:?}");
        assert!(why.contains("read from node 0") && line.remote_share.is_some(), "{line:?}");
    }
    Ok(())
}
