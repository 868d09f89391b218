//! Each byte counts for the control group that its thread was in.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use observe::{Hooks, Observed, Observer};
use testing::{Tried, ensure, skip};
use topology::FileId;

use crate::common::*;
use crate::{Case, cases};

pub const CASES: &[Case] = cases![
    WithStructures: threads_that_ended_count_for_their_group, a_move_to_another_group_divides_what_a_thread_read;
    Never: a_group_that_came_and_went_within_a_window_has_its_name, in_a_namespace_paths_are_from_the_root;
];

/// A control group that is removed in the end.
struct Group {
    dir: PathBuf,
    path: String,
}

impl Group {
    /// Names it, below the group of this process.
    fn named(name: &str) -> Tried<Self> {
        let own = std::fs::read_to_string("/proc/self/cgroup")?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default().trim_end_matches('/');
        let table = std::fs::read("/proc/self/mountinfo")?;
        let Some(mount) = linux::mounts::list(&table).find(|mount| mount.fs_type == "cgroup2" && mount.whole()) else {
            return skip("no control groups of version 2 are mounted");
        };
        let path = format!("{own}/homenode-{name}-{}.service", std::process::id());
        Ok(Self { dir: mount.point.join(&path[1..]), path })
    }

    fn new(name: &str) -> Tried<Self> {
        let group = Self::named(name)?;
        std::fs::create_dir(&group.dir)?;
        Ok(group)
    }

    fn procs(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// Bytes that its threads read of a file: of those that are listed, and of the others.
    fn read(&self, observed: &Observed, file: FileId) -> [u64; 2] {
        let of = |threads: &mut dyn Iterator<Item = &placement::Thread>| {
            let own = threads.filter(|thread| thread.group.as_deref() == Some(&self.path));
            let used = own.flat_map(|thread| &thread.files).filter(|used| used.file == file);
            used.map(|used| used.read_bytes.total()).sum()
        };
        [of(&mut observed.threads.iter().map(|seen| &seen.thread)), of(&mut observed.ended.iter())]
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has ended leaves its group a moment later.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.dir).is_ok() || !self.dir.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A shell with these arguments.
fn shell(script: &str, arguments: &[&Path]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).args(arguments).stdout(Stdio::null());
    command
}

/// 94 % of the bytes of such a loop had no name.
fn threads_that_ended_count_for_their_group(hooks: Hooks) -> Tried {
    const TIMES: u64 = 100;
    let directory = directory()?;
    let path = cached_file(directory.path(), "data", MIB, 1 << 16)?;
    let _held = hold(&path)?;
    let file = id(&path)?;
    let group = Group::new("loop")?;
    let mut exact = exact_observer(hooks)?;
    let observer = exact.observer()?;
    let script = r#"echo $$ > "$1"; i=0; while [ $i -lt 100 ]; do cat "$2"; i=$((i + 1)); done"#;
    let mut child = shell(script, &[&group.procs(), &path]).spawn()?;
    let [mut listed, mut ended] = [0; 2];
    loop {
        let done = child.try_wait()?.is_some();
        let observed = observer.window(Duration::from_millis(100))?;
        let [of_listed, of_ended] = group.read(&observed, file);
        (listed, ended) = (listed + of_listed, ended + of_ended);
        if done {
            break;
        }
    }
    let all = TIMES * MIB;
    ensure!(listed + ended >= all / 100 * 99 && listed + ended <= all, "of {all} bytes: {listed} and {ended}");
    ensure!(ended > all / 2, "of {all} bytes, {ended} by threads that ended");
    Ok(())
}

/// A shell puts itself into a group and execs; systemd and runtimes move a process that has read.
fn a_move_to_another_group_divides_what_a_thread_read(hooks: Hooks) -> Tried {
    testing::installed("perl")?;
    let directory = directory()?;
    let path = cached_file(directory.path(), "data", MIB, 1 << 16)?;
    let _held = hold(&path)?;
    let file = id(&path)?;
    let (before, after) = (Group::new("before")?, Group::new("after")?);
    let mut exact = exact_observer(hooks)?;
    let observer = exact.observer()?;
    let program = r#"sub all { open(F, "<", $ARGV[0]); while (sysread(F, $b, 65536)) {} close(F) }
        all(); open(G, ">", $ARGV[1]); syswrite(G, "0"); close(G); all(); all(); syswrite(STDOUT, "done\n"); <STDIN>"#;
    let script = r#"echo $$ > "$1"; exec perl -e "$2" "$3" "$4""#;
    let mut command = shell(script, &[&before.procs(), Path::new(program), &path, &after.procs()]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    // Once it has read.
    let mut said = [0; 5];
    std::io::Read::read_exact(&mut child.stdout.take().ok_or("no output")?, &mut said)?;
    let observed = observer.window(Duration::from_millis(5))?;
    child.stdin.take().ok_or("no input")?.write_all(b"\n")?;
    child.wait()?;
    let read = [before.read(&observed, file), after.read(&observed, file)];
    ensure!(read == [[0, MIB], [2 * MIB, 0]], "listed and not, before and after: {read:?}");
    Ok(())
}

fn a_group_that_came_and_went_within_a_window_has_its_name(hooks: Hooks) -> Tried {
    let directory = directory()?;
    let path = cached_file(directory.path(), "data", MIB, 1 << 16)?;
    let _held = hold(&path)?;
    let group = Group::named("short")?;
    let mut exact = exact_observer(hooks)?;
    short_lived(exact.observer()?, &group, &path)
}

/// Makes a group, reads in it, and removes it, all in one window.
fn short_lived(observer: &mut Observer, group: &Group, path: &Path) -> Tried {
    let script = r#"mkdir "$1" && (echo 0 > "$1/cgroup.procs"; exec cat "$2")
        until rmdir "$1"; do sleep 0.01; done"#;
    let status = shell(script, &[&group.dir, path]).status()?;
    ensure!(status.success() && !group.dir.exists(), "{status}");
    let observed = observer.window(Duration::ZERO)?;
    let read = group.read(&observed, id(path)?);
    ensure!(read == [0, MIB], "{}: {read:?}, of {:?}", group.path, observed.ended);
    Ok(())
}

/// They were `/../../x.service`.
fn in_a_namespace_paths_are_from_the_root(hooks: Hooks) -> Tried {
    let directory = directory()?;
    let path = cached_file(directory.path(), "data", MIB, 1 << 16)?;
    let _held = hold(&path)?;
    let file = id(&path)?;
    // The namespace's root is beside the groups that are looked at.
    let (root, other, short) = (Group::new("root")?, Group::new("other")?, Group::named("later")?);
    let own = Group::named("")?;
    let own = own.dir.parent().ok_or("no group")?.join("cgroup.procs");
    std::fs::write(root.procs(), "0")?;
    let result = std::thread::scope(|scope| {
        let observed = scope.spawn(|| -> Result<(), String> {
            // SAFETY: of this thread alone.
            let unshared = unsafe { libc::unshare(libc::CLONE_NEWCGROUP) };
            if unshared != 0 {
                return Err(format!("unshare: {}", std::io::Error::last_os_error()));
            }
            let run = || -> Tried {
                let table = std::fs::read_to_string("/proc/thread-self/cgroup")?;
                ensure!(table.contains("0::/\n"), "not in a namespace: {table}");
                let mut observer = open(&settings(true, hooks))?;
                observer.window(Duration::ZERO)?;
                let script = r#"echo 0 > "$1"; exec cat "$2""#;
                shell(script, &[&other.procs(), &path]).status()?;
                let observed = observer.window(Duration::ZERO)?;
                ensure!(other.read(&observed, file) == [0, MIB], "{}: {:?}", other.path, observed.ended);
                short_lived(&mut observer, &short, &path)
            };
            run().map_err(|error| format!("{error:?}"))
        });
        observed.join()
    });
    std::fs::write(own, "0")?;
    Ok(result.map_err(|_| "it panicked")??)
}
