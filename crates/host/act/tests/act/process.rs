//! Whole processes: every thread with a record of its own, whatever happens meanwhile; refusals;
//! memory on one node.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use act::copying::Copying;
use act::memory::{Layout, MemoryMove};
use act::mover::{Mover, Rules};
use act::process::{self, ProcessMove};
use engine::state::file::StateFile;
use engine::state::records::Record;
use engine::{PlaneError, StateDir, Subject, Undo, Undone, recover};
use linux::affinity;
use linux::privileges;
use linux::threads::Threads;
use testing::world::{Running, all, children, mask, node, tids, topology, wait_for};
use testing::{Case, Tried, any_kernel, cases, root, skip, two_cpus};
use topology::{CpuSet, NodeId, ProcessId, ThreadId};

use crate::actor;

pub const CASES: &[Case] = cases![
    [two_cpus(), any_kernel()]
        a_process_is_bound_thread_by_thread,
        threads_born_while_a_process_is_bound_are_bound,
        killed_while_a_process_is_bound,
        processes_that_must_not_be_moved_are_refused;
    [two_cpus()]
        a_process_of_another_user_can_be_moved_with_what_is_kept,
        a_thread_that_the_kernel_does_not_bind_is_left,
        only_a_processs_own_memory_moves,
        exec_ends_a_move_of_memory,
        a_node_that_takes_nothing_stops_no_other_on_the_way_back;
];

fn mover() -> Mover {
    Mover::new(Path::new("/proc"), Path::new("/sys"), Rules::default()).unwrap()
}

fn prepare(mover: &mut Mover, pid: u32, to: u32, with_memory: bool) -> Result<ProcessMove, PlaneError> {
    process::prepare(mover, &topology(), ProcessId::new(pid, None), NodeId(to), with_memory)
}

fn masks(pid: u32) -> BTreeMap<u32, CpuSet> {
    tids(pid).into_iter().filter_map(|tid| Some((tid, affinity::get(tid).ok()?))).collect()
}

fn tid_of(undo: &Undo) -> u32 {
    let Subject::Thread(ThreadId { tid, .. }) = undo.subject else { panic!("{undo:?}") };
    tid
}

/// A process that starts a thread every millisecond, 200 in all, and two of these start one each.
pub fn be_spawner(_: &[String]) {
    let rest = || std::thread::sleep(Duration::from_secs(600));
    println!("ready");
    for n in 0..200 {
        std::thread::spawn(move || {
            if n % 100 == 99 {
                std::thread::spawn(rest);
            }
            rest();
        });
        std::thread::sleep(Duration::from_millis(1));
    }
    rest();
}

/// Binds a process to node 1, and writes each record down first. Its parent traces it.
pub fn be_binder(args: &[String]) {
    // SAFETY: asks to be traced by the parent, and stops until it goes on.
    unsafe {
        assert_eq!(libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0), 0);
        libc::raise(libc::SIGSTOP);
    }
    let state = StateDir::open(Path::new(&args[0])).unwrap();
    let mut file = StateFile::create(&state, engine::Plane::epoch(&actor()).as_deref(), &[]).unwrap();
    let mut mover = mover();
    let mut process = prepare(&mut mover, args[1].parse().unwrap(), 1, false).unwrap();
    let mut write = |undos: &[Undo]| {
        let hold = |undo: &Undo| Record::Hold { comm: String::new(), undo: undo.clone() };
        file.append(&undos.iter().map(hold).collect::<Vec<_>>(), true).unwrap();
        Ok(())
    };
    process.bind(&mut mover, &topology(), &mut write).unwrap();
}

/// Starts the binder and kills it before its `n`-th system call that changes something. Returns
/// whether there was one.
#[allow(clippy::zombie_processes, reason = "waitpid waits for it")]
fn killed_before(n: usize, dir: &Path, pid: u32) -> bool {
    const STEPS: [i64; 4] = [libc::SYS_sched_setaffinity, libc::SYS_write, libc::SYS_fdatasync, libc::SYS_rename];
    let args = ["--role", "binder", dir.to_str().unwrap(), &pid.to_string()];
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut binder = command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let child = binder.id() as i32;
    let mut steps = 0;
    let mut status = 0;
    loop {
        // SAFETY: waits for our child and fills one integer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        if libc::WIFEXITED(status) {
            assert_eq!(libc::WEXITSTATUS(status), 0);
            return false;
        }
        assert!(libc::WIFSTOPPED(status), "{status:#x}");
        if libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80 {
            // struct ptrace_syscall_info (include/uapi/linux/ptrace.h): what stopped it in byte 0,
            // the call's number in word 3.
            let mut info = [0u64; 16];
            // SAFETY: the kernel writes at most the given number of bytes, the size of the buffer.
            let length =
                unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, child, size_of_val(&info), info.as_mut_ptr()) };
            assert!(length > 0, "{}", std::io::Error::last_os_error());
            let entry = info[0] & 0xff == u64::from(libc::PTRACE_SYSCALL_INFO_ENTRY);
            if entry && STEPS.contains(&(info[3] as i64)) {
                if steps == n {
                    binder.kill().unwrap();
                    binder.wait().unwrap();
                    return true;
                }
                steps += 1;
            }
        } else {
            let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
            // SAFETY: our child has stopped, and these are options for tracing it.
            assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, child, 0, options) }, 0);
        }
        // SAFETY: our child has stopped.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SYSCALL, child, 0, 0) }, 0);
    }
}

fn a_process_is_bound_thread_by_thread() -> Tried {
    let program = Running::role("threads", &["8"]);
    let tids = tids(program.pid());
    affinity::set(tids[3], &node(0)).unwrap();
    affinity::set(tids[5], &node(1)).unwrap();
    let before = masks(program.pid());
    let mut mover = mover();
    let mut process = prepare(&mut mover, program.pid(), 1, false).unwrap();
    assert_eq!(masks(program.pid()), before, "preparing changes nothing");
    let mut written = Vec::new();
    let mut write = |undos: &[Undo]| {
        assert!(undos.iter().all(|undo| mask(tid_of(undo)) == all()), "bound before its record was written");
        written.extend(undos.to_vec());
        Ok(())
    };
    assert_eq!(process.bind(&mut mover, &topology(), &mut write).unwrap(), 6);
    assert_eq!(written, process.bound());
    let left: Vec<u32> = process.left().iter().map(|l| l.0).collect();
    assert_eq!(left, [tids[3], tids[5]]);
    for (tid, now) in masks(program.pid()) {
        assert_eq!(now, if left.contains(&tid) { before[&tid].clone() } else { node(1) });
    }
    for undo in process.bound() {
        assert_eq!(mover.undo(undo).unwrap(), Undone::Restored);
    }
    assert_eq!(masks(program.pid()), before);
    Ok(())
}

/// A process with a thread that the kernel binds to no CPU: SCHED_DEADLINE (sched(7)).
pub fn be_deadline(_: &[String]) {
    std::thread::spawn(|| {
        // struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period in ns.
        let attributes: [u64; 6] = [48 | 6 << 32, 0, 0, 1_000_000, 100_000_000, 100_000_000];
        // SAFETY: the kernel reads 48 bytes. The test looks whether it did as asked.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, attributes.as_ptr(), 0) };
        println!("ready");
        std::thread::sleep(Duration::from_secs(600));
    });
    std::thread::sleep(Duration::from_secs(600));
}

fn a_thread_that_the_kernel_does_not_bind_is_left() -> Tried {
    let program = Running::role("deadline", &[]);
    let second = tids(program.pid())[1];
    // SAFETY: takes a number.
    if unsafe { libc::sched_getscheduler(second as libc::pid_t) } != libc::SCHED_DEADLINE {
        return skip("this kernel refuses SCHED_DEADLINE");
    }
    let mut mover = mover();
    let mut process = prepare(&mut mover, program.pid(), 1, false).unwrap();
    assert_eq!(process.bind(&mut mover, &topology(), &mut |_| Ok(())).unwrap(), 1);
    let left: Vec<_> = process.left().iter().map(|(tid, why)| (*tid, why.contains("busy"))).collect();
    assert_eq!(left, [(second, true)], "{:?}", process.left());
    assert_eq!(mask(program.pid()), node(1));
    Ok(())
}

fn threads_born_while_a_process_is_bound_are_bound() -> Tried {
    let program = Running::role("spawner", &[]);
    let mut mover = mover();
    let mut process = prepare(&mut mover, program.pid(), 1, false).unwrap();
    let early = tids(program.pid()).len();
    // The first look is over; more threads are there before the first is bound.
    wait_for(|| tids(program.pid()).len() > early + 20);
    let mut records = Vec::new();
    process
        .bind(&mut mover, &topology(), &mut |undos| {
            records.extend(undos.to_vec());
            Ok(())
        })
        .unwrap();
    assert!(records.len() > early + 20, "{} records, {early} threads at first", records.len());
    wait_for(|| tids(program.pid()).len() == 203); // the first, 200, and two that these have started
    assert!(masks(program.pid()).values().all(|mask| *mask == node(1)), "{:?}", masks(program.pid()));
    // All is found again by the records alone, as after a crash.
    let tmp = tempfile::tempdir().unwrap();
    let state = StateDir::open(&tmp.path().join("state")).unwrap();
    let mut plane = actor();
    let mut file = StateFile::create(&state, engine::Plane::epoch(&plane).as_deref(), &[]).unwrap();
    let holds: Vec<Record> = records.into_iter().map(|undo| Record::Hold { comm: String::new(), undo }).collect();
    file.append(&holds, true).unwrap();
    let finished = recover(&mut plane, &state).unwrap();
    assert_eq!((finished.restored, finished.failed), (203, 0), "{finished:?}");
    assert!(masks(program.pid()).values().all(|mask| *mask == all()), "{:?}", masks(program.pid()));
    Ok(())
}

fn killed_while_a_process_is_bound() -> Tried {
    let program = Running::role("threads", &["8"]);
    let tids = tids(program.pid());
    affinity::set(tids[3], &node(0)).unwrap();
    let before = masks(program.pid());
    let tmp = tempfile::tempdir().unwrap();
    let mut bound = Vec::new();
    for n in 0.. {
        let dir = tmp.path().join(format!("state{n}"));
        let killed = killed_before(n, &dir, program.pid());
        bound.push(masks(program.pid()).values().filter(|mask| **mask == node(1)).count());
        let finished = recover(&mut actor(), &StateDir::open(&dir).unwrap()).unwrap();
        assert_eq!(finished.failed, 0, "{finished:?}");
        assert_eq!(masks(program.pid()), before, "killed before step {n}: {bound:?} were bound");
        if !killed {
            break;
        }
    }
    // It was killed with each number of threads bound.
    bound.dedup();
    assert_eq!(bound, (0..=7).collect::<Vec<_>>());
    Ok(())
}

/// Seen with PostgreSQL: `/proc/PID/pagemap` belongs to the process's user, and without
/// CAP_DAC_READ_SEARCH root may not open it.
fn a_process_of_another_user_can_be_moved_with_what_is_kept() -> Tried {
    const NOBODY: u32 = 65_534;
    root()?;
    // Not by the PATH: the user has no way into a home of root's.
    let mut sleeper = Command::new("/bin/sleep").arg("600").uid(NOBODY).gid(NOBODY).spawn().unwrap();
    let pid = sleeper.id();
    let kept = privileges::to_move(Path::new("/proc")) | privileges::to_move_memory();
    let examined = std::thread::spawn(move || {
        privileges::keep_only(kept).unwrap();
        prepare(&mut mover(), pid, 0, true).map(|process| process.memory.is_some())
    });
    let examined = examined.join().unwrap();
    sleeper.kill().and_then(|()| sleeper.wait()).unwrap();
    assert!(examined.unwrap());
    Ok(())
}

fn processes_that_must_not_be_moved_are_refused() -> Tried {
    let mut mover = mover();
    let mut refused = |pid: u32, to: u32, with_memory| match prepare(&mut mover, pid, to, with_memory) {
        Err(PlaneError::Refused { reason, .. }) => reason,
        Err(PlaneError::Gone { .. }) => "gone",
        other => panic!("{:?}", other.map(|p| p.id())),
    };
    let program = Running::role("threads", &["2"]);
    assert_eq!(refused(std::process::id(), 1, false), "itself");
    assert_eq!(refused(2, 1, false), "kernel_thread");
    assert_eq!(refused(program.pid(), 7, false), "no_such_node");
    assert_eq!(refused(u32::MAX >> 1, 1, false), "gone");
    let thread = *tids(program.pid()).last().unwrap();
    assert_eq!(refused(thread, 1, false), "not_a_process");
    let nodes = std::fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_default();
    if nodes.trim() == "0" {
        // The node is made up, so the kernel's own list does not have it.
        assert_eq!(refused(program.pid(), 1, true), "mems_forbid_node");
    }
    // A child that nobody waits for.
    let zombie = Running::shell("sleep 0.01 & echo ready; exec sleep 600");
    let child = || children(zombie.pid()).unwrap().pop();
    wait_for(|| {
        child().is_some_and(|c| std::fs::read_to_string(format!("/proc/{c}/stat")).is_ok_and(|s| s.contains(") Z ")))
    });
    assert_eq!(refused(child().unwrap(), 1, false), "gone");
    // All of its threads have affinities of their own on another node. On the node itself, only
    // memory is to be moved.
    for tid in tids(program.pid()) {
        affinity::set(tid, &node(0)).unwrap();
    }
    assert_eq!(refused(program.pid(), 1, false), "own_affinity");
    assert_eq!(prepare(&mut self::mover(), program.pid(), 0, false).unwrap().left().len(), 2);
    // A later process with this id.
    let start_ns = Threads::new(Path::new("/proc")).started(program.pid()).unwrap();
    let later = Some(start_ns + 10_000_000);
    let error =
        process::prepare(&mut self::mover(), &topology(), ProcessId::new(program.pid(), later), NodeId(1), false)
            .unwrap_err();
    assert!(matches!(error, PlaneError::Gone { .. }), "{error}");
    let mut no_memory = topology();
    no_memory.nodes.iter_mut().for_each(|n| n.memory_bytes = 0);
    let error = process::prepare(&mut self::mover(), &no_memory, ProcessId::new(program.pid(), None), NodeId(0), true)
        .unwrap_err();
    assert!(matches!(error, PlaneError::Refused { reason: "no_memory_on_node", .. }), "{error}");
    Ok(())
}

const PAGES: usize = 3000;

/// A process with anonymous memory, shared memory, a private page of a file, and file pages that
/// are not its own. Prints their addresses to the file that it is given.
pub fn be_owner(args: &[String]) {
    let page = rustix::param::page_size();
    let map = |len: usize, flags: i32, fd: i32| {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at
    };
    let touch = |at: *mut libc::c_void, len: usize| {
        // SAFETY: the mapping has this length.
        unsafe { at.write_bytes(1, len) };
        at.addr()
    };
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&args[0]).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    let own = touch(map(PAGES * page, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1), PAGES * page);
    let shared = touch(map(PAGES * page, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1), PAGES * page);
    touch(map(PAGES * page, libc::MAP_SHARED, fd), PAGES * page); // pages of the file
    let copied = touch(map(PAGES * page, libc::MAP_PRIVATE, fd), page); // one page of it becomes its own
    std::fs::write(&args[1], format!("{own} {shared} {copied}")).unwrap();
    println!("ready");
    std::thread::sleep(Duration::from_secs(600));
}

fn owner(dir: &Path) -> (Running, [u64; 3]) {
    let (file, out) = (dir.join("file"), dir.join("out"));
    let page = rustix::param::page_size();
    std::fs::write(&file, vec![0; PAGES * page]).unwrap();
    let program = Running::role("owner", &[file.to_str().unwrap(), out.to_str().unwrap()]);
    let text = std::fs::read_to_string(out).unwrap();
    let parts: Vec<u64> = text.split(' ').map(|n| n.parse().unwrap()).collect();
    (program, parts.try_into().unwrap())
}

/// `RssAnon` and `RssShmem` in bytes, and the present pages among these in bytes, from `pagemap`.
fn own_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
    };
    field("RssAnon:") + field("RssShmem:")
}

fn only_a_processs_own_memory_moves() -> Tried {
    if !Path::new("/proc/self/numa_maps").exists() {
        return skip("this kernel has no NUMA");
    }
    let dir = tempfile::tempdir_in(std::env::var_os("HOMENODE_TEST_DIR").map_or_else(std::env::temp_dir, Into::into));
    let dir = dir.unwrap();
    let (mut program, parts) = owner(dir.path());
    let (proc, page) = (Path::new("/proc"), rustix::param::page_size() as u64);
    let process = Threads::new(proc).stat(program.pid()).unwrap().unwrap().process();
    let mut work = MemoryMove::new(proc, process, NodeId(0)).unwrap().unwrap();
    let own = own_bytes(program.pid());
    assert_eq!(work.copied().total, own);
    assert!(!work.step(1).unwrap(), "one step cannot be all of it");
    assert!(work.copied().moved + work.copied().failed() <= 512 * page, "{:?}", work.copied());
    while !work.step(1 << 20).unwrap() {}
    // The file's pages are not among them: the kernel counts them as RssFile.
    let copied = work.copied();
    assert_eq!(copied.total, copied.moved + copied.failed(), "{copied:?}");
    // Before Linux 6.2 a thread counts up to 64 pages for itself (TASK_RSS_EVENTS_THRESH), so
    // `status` lags behind.
    assert!(copied.total.abs_diff(own) <= 64 * page, "{own} bytes by status: {copied:?}");
    assert!(work.complete() && !work.ended());
    // Where a page is absent or given back, nothing is counted, and pages of others stay out of it.
    let pagemap = std::fs::File::open(format!("/proc/{}/pagemap", program.pid())).unwrap();
    for part in parts {
        let mut entry = [0; 8];
        pagemap.read_exact_at(&mut entry, part / page * 8).unwrap();
        assert_eq!(entry[7] >> 7, 1, "a page that was touched is present");
    }
    // A sample shares out the same sum.
    let sampled = linux::memory::resident(proc, program.pid()).unwrap().unwrap();
    assert!(own - sampled.total() < page && !sampled.is_empty(), "{sampled:?} of {own}");

    // The process ends in the middle: a fact, not an error.
    let mut work = MemoryMove::new(proc, process, NodeId(0)).unwrap().unwrap();
    assert!(!work.step(1).unwrap());
    program.kill();
    assert!(work.step(1 << 30).unwrap() && work.ended() && !work.complete());
    assert!(MemoryMove::new(proc, process, NodeId(0)).unwrap().is_none());
    assert_eq!(linux::memory::resident(proc, program.pid()).unwrap(), None);
    Ok(())
}

/// Pages that were on a node without memory stay; pages of another node are tried all the same.
fn a_node_that_takes_nothing_stops_no_other_on_the_way_back() -> Tried {
    let program = Running::shell("echo ready; sleep 600");
    let proc = Path::new("/proc");
    let process = Threads::new(proc).stat(program.pid()).unwrap().unwrap().process();
    let nowhere = [NodeId(1022), NodeId(1023)];
    let mut work = MemoryMove::new(proc, process, nowhere[0]).unwrap().unwrap();
    while !work.step(1 << 30).unwrap() {}
    let found: Vec<u64> = work.before().runs().map(|run| run.first).collect();
    let mut layout = Layout::default();
    for (page, node) in found.iter().take(2).zip(nowhere) {
        layout.push(*page, node);
    }
    assert_eq!(layout.pages(), 2, "{found:?}");
    let mut back = MemoryMove::back(proc, process, layout).unwrap().unwrap();
    while !back.step(1 << 30).unwrap() {}
    assert_eq!((back.before().pages(), back.copied().moved), (2, 0), "{:?}", back.copied());
    Ok(())
}

fn exec_ends_a_move_of_memory() -> Tried {
    let tmp = tempfile::tempdir().unwrap();
    let go = tmp.path().join("go");
    let program = Running::shell_after(&go, "exec sleep 600");
    let proc = Path::new("/proc");
    let process = Threads::new(proc).stat(program.pid()).unwrap().unwrap().process();
    let mut work = MemoryMove::new(proc, process, NodeId(0)).unwrap().unwrap();
    std::fs::write(&go, "").unwrap();
    let name = format!("/proc/{}/comm", program.pid());
    wait_for(|| std::fs::read_to_string(&name).is_ok_and(|comm| comm == "sleep\n"));
    assert!(work.step(1 << 30).unwrap() && work.ended());
    assert_eq!(work.copied().moved, 0);
    assert!(work.reversed().step(1 << 30).unwrap(), "nothing was sent");
    Ok(())
}
