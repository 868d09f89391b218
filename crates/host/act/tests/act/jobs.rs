//! Moves of processes and files as the plane makes them: bound thread by thread, copied in the
//! background, refused by identity.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use act::data::DataMoves;
use act::mover::Rules;
use act::watched::Unwatched;
use act::{Actor, Mover, Settings};
use engine::{Copies as _, JobState, Plane, PlaneError, Progress, Subject, Undone};
use placement::{Move, ObservedFile, Reason, Thread};
use testing::world::{Running, all, mask, node, tids, topology};
use testing::{Case, Tried, any_kernel, cases, skip, two_cpus};
use topology::{CpuSet, FileId};

use crate::actor;
use crate::moves::a_move;

pub const CASES: &[Case] = cases![
    [two_cpus(), any_kernel()]
        a_process_is_a_job_of_the_plane,
        a_process_prepared_for_two_nodes_goes_where_its_start_says;
    [two_cpus()] a_file_is_a_job_of_the_plane_if_it_is_the_one_that_is_meant;
];

fn process_to(pid: u32, to: u32) -> Move {
    a_move(Subject::process(pid, None), pid, to, Reason::CacheAffinity)
}

/// The last word about a job.
fn end(mut poll: impl FnMut() -> Vec<Progress>) -> Progress {
    loop {
        if let Some(over) = poll().into_iter().find(|p| p.state != JobState::Running) {
            assert_eq!(poll(), []);
            return over;
        }
        std::thread::yield_now();
    }
}

/// All threads but the one with an affinity of its own have a record each and are bound; the
/// memory, which is on node 0, stays.
fn a_process_is_a_job_of_the_plane() -> Tried {
    let process = Running::role("threads", &["5"]);
    let pid = process.pid();
    let own = *tids(pid).last().unwrap();
    linux::affinity::set(own, &node(1)).unwrap();
    let mut plane = actor();
    let mv = process_to(pid, 0);
    let undo = plane.prepare(&mv).unwrap();
    let masks = || tids(pid).into_iter().map(|tid| (tid, mask(tid))).collect::<BTreeMap<u32, CpuSet>>();
    let expected = |bound: &CpuSet| -> BTreeMap<u32, CpuSet> {
        tids(pid).into_iter().map(|tid| (tid, if tid == own { node(1) } else { bound.clone() })).collect()
    };
    assert_eq!(masks(), expected(&all()));
    assert_eq!(undo.len(), 4);
    // The kernel's own sum of its memory: it may grow while its threads begin to run.
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let anonymous = rollup.lines().find_map(|l| l.strip_prefix("Anonymous:")?.trim().strip_suffix(" kB")).unwrap();
    assert!(plane.start(&mv, &undo, &mut |more| panic!("{more:?}")).unwrap().job.is_some());
    assert_eq!(masks(), expected(&node(0)));
    let over = end(|| plane.copies().unwrap().poll());
    assert_eq!((over.state, over.done + over.left.values().sum::<u64>()), (JobState::Done, over.bytes));
    assert!(over.bytes >= 1024 * anonymous.trim().parse::<u64>().unwrap(), "{} of {anonymous} kB", over.bytes);
    for undo in &undo {
        assert_eq!(plane.undo(undo).unwrap(), Undone::Restored);
    }
    assert_eq!(masks(), expected(&all()));
    // What was not prepared in this window is not started.
    assert!(matches!(
        plane.start(&mv, &undo, &mut |_| Ok(())),
        Err(PlaneError::Refused { reason: "not_prepared", .. })
    ));
    Ok(())
}

/// A procfs of some processes, on whose machine memory of nodes 0 and 1 may be used.
fn procfs_with_two_nodes(pids: &[u32]) -> tempfile::TempDir {
    use std::os::unix::fs::symlink;
    let root = tempfile::tempdir().unwrap();
    for name in ["self", "sys"] {
        symlink(Path::new("/proc").join(name), root.path().join(name)).unwrap();
    }
    for pid in pids {
        let (real, dir) = (PathBuf::from(format!("/proc/{pid}")), root.path().join(pid.to_string()));
        std::fs::create_dir(&dir).unwrap();
        for name in ["task", "stat", "cgroup", "pagemap", "maps", "numa_maps", "mountinfo"] {
            symlink(real.join(name), dir.join(name)).unwrap();
        }
        let status = std::fs::read_to_string(real.join("status")).unwrap();
        let both = |line: &str| {
            if line.starts_with("Mems_allowed_list:") { "Mems_allowed_list:\t0-1".into() } else { line.to_owned() }
        };
        std::fs::write(dir.join("status"), status.lines().map(|line| both(line) + "\n").collect::<String>()).unwrap();
    }
    root
}

/// The second took the place of the first: the process went where the second said, under the first
/// one's record.
fn a_process_prepared_for_two_nodes_goes_where_its_start_says() -> Tried {
    let process = Running::role("threads", &["1"]);
    let pid = process.pid();
    let procfs = procfs_with_two_nodes(&[pid]);
    let settings = Settings { proc_root: procfs.path().to_owned(), ..Settings::default() };
    let mut plane = Actor::<Unwatched>::new(settings, topology(), None).unwrap();
    let moves = [process_to(pid, 1), process_to(pid, 0)];
    let prepared = moves.each_ref().map(|mv| plane.prepare(mv).unwrap());
    let started = plane.start(&moves[0], &prepared[0], &mut |more| panic!("{more:?}")).unwrap();
    assert_eq!(started.not_bound, []);
    assert_eq!(mask(pid), node(1));
    // The other one was prepared for a thread with another affinity: it does not bind it, and says
    // so.
    let started = plane.start(&moves[1], &prepared[1], &mut |more| panic!("{more:?}")).unwrap();
    assert_eq!(started.not_bound, [prepared[1][0].subject]);
    assert_eq!(mask(pid), node(1));
    for undo in &prepared[0] {
        assert_eq!(plane.undo(undo).unwrap(), Undone::Restored);
    }
    assert_eq!(mask(pid), all());
    Ok(())
}

/// A window in which this process read a file, whose inode it returns.
fn seen(moves: &mut DataMoves, path: &Path, file: &File) -> FileId {
    let meta = file.metadata().unwrap();
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let mut generation: libc::c_long = 0;
    // SAFETY: the kernel writes at most a long.
    unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETVERSION, &raw mut generation) };
    let inode = FileId { dev: major << 20 | minor, ino: meta.ino(), generation: generation as u32 };
    let me = std::process::id();
    let path = Some(path.to_string_lossy().into_owned());
    let file = ObservedFile { file: inode.any_generation(), path, readers: vec![me], ..ObservedFile::default() };
    let reader = Thread { tid: me, pid: me, ..Thread::default() };
    moves.seen([(inode, &file)].into_iter(), &[reader]);
    inode
}

fn file_to(id: FileId, generation: Option<u32>) -> Move {
    let subject = Subject::File(FileId { generation: generation.unwrap_or(0), ..id.any_generation() });
    a_move(subject, 0, 0, Reason::OverloadedHome)
}

/// A file is moved if it is the one that the move names, whatever is at its path by then; nothing
/// else is opened.
fn a_file_is_a_job_of_the_plane_if_it_is_the_one_that_is_meant() -> Tried {
    // On a file system that has generations, and on one without handles.
    for dir in [super::pages::dir(), tempfile::tempdir_in("/dev/shm").unwrap()] {
        let path: PathBuf = dir.path().join("data");
        std::fs::write(&path, vec![7; 8 << 20]).unwrap();
        let file = File::open(&path).unwrap();
        let mut mover = Mover::new(Path::new("/proc"), Path::new("/sys"), Rules::default()).unwrap();
        let mut moves = DataMoves::new(Path::new("/proc"), false);
        let topology = topology();
        let reason = |error: PlaneError| match error {
            PlaneError::Refused { reason, .. } => reason,
            PlaneError::Gone { .. } => "gone",
            PlaneError::Broken(_) => "broken",
        };
        let mut prepare = |moves: &mut DataMoves, mv: &Move| moves.prepare(&mut mover, &topology, mv).map_err(reason);
        assert_eq!(prepare(&mut moves, &file_to(FileId::default(), None)), Err("file_unknown"));
        let id = seen(&mut moves, &path, &file);
        match prepare(&mut moves, &file_to(id, None)) {
            Err("eperm" | "no_numa") => return skip("this kernel, or this user, may not move pages"),
            prepared => assert_eq!(prepared, Ok(Vec::new())),
        }
        // A later file with its inode number.
        assert_eq!(prepare(&mut moves, &file_to(id, Some(id.generation + 1))), Err("gone"));
        // Another file takes its place: the one that was read moves, by its inode.
        std::fs::write(dir.path().join("other"), "x").unwrap();
        std::fs::rename(&path, dir.path().join("moved")).unwrap();
        std::fs::rename(dir.path().join("other"), &path).unwrap();
        moves.start_file(&file_to(id, None)).unwrap();
        let over = end(|| moves.poll());
        // All of it was written a moment ago, so it is cached.
        assert_eq!((over.state, over.bytes, over.done), (JobState::Done, 8 << 20, 8 << 20));
        assert_eq!(std::fs::read(dir.path().join("moved")).unwrap(), vec![7; 8 << 20]);
        // It is gone, and a pipe has its place: opening that would wait.
        std::fs::remove_file(dir.path().join("moved")).unwrap();
        std::fs::remove_file(&path).unwrap();
        drop(file);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o666.into(), 0).unwrap();
        assert_eq!(prepare(&mut moves, &file_to(id, None)), Ok(Vec::new()));
        moves.start_file(&file_to(id, None)).unwrap();
        let over = end(|| moves.poll());
        assert_eq!((over.state, over.bytes), (JobState::Gone, 0));
        let subject = file_to(id, None).subject;
        let error = moves.start_file(&file_to(id, None)).unwrap_err();
        assert!(error.to_string().contains(&format!("{subject} was not prepared")), "{error}");
    }
    Ok(())
}
