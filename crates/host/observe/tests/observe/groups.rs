//! Each byte counts for the control group that its thread was in.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use observe::{Hooks, Observed, Observer, Scope, Settings};
use placement::delegated;
use placement::rules::{Does, Of, Rule, Rules};
use testing::{Ends, Tried, ensure, need, skip};
use topology::FileId;

use crate::common::*;
use crate::{Case, cases};

pub const CASES: &[Case] = cases![
    WithKernels: a_move_to_another_group_divides_what_a_thread_read;
    // A hundred programs take an emulated machine 45 s.
    Never: threads_that_ended_count_for_their_group, backends_of_postgresql_that_ended_count_for_their_group,
        an_owner_chooses_for_his_own_processes_only,
        a_group_that_came_and_went_within_a_window_has_its_name, in_a_namespace_paths_are_from_the_root;
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
    // Other users may not search all directories of root's PATH.
    let mut command = Command::new("/bin/sh");
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
    // Often, because what others read meanwhile on this CPU would hide that an entry went on.
    let program = r#"sub all { open(F, "<", $ARGV[0]); while (sysread(F, $b, 65536)) {} close(F) }
        all(); open(A, ">", $ARGV[1]); open(B, ">", $ARGV[2]);
        for (1 .. 20) { for my $group (*B, *A, *B) { syswrite($group, "0"); all() } }
        syswrite(STDOUT, "done\n"); <STDIN>"#;
    let script = r#"echo $$ > "$1"; exec perl -e "$2" "$3" "$1" "$4""#;
    let mut command = shell(script, &[&before.procs(), Path::new(program), &path, &after.procs()]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    // Once it has read.
    let mut said = [0; 5];
    std::io::Read::read_exact(&mut child.stdout.take().ok_or("no output")?, &mut said)?;
    let observed = observer.window(Duration::from_millis(5))?;
    child.stdin.take().ok_or("no input")?.write_all(b"\n")?;
    child.wait()?;
    let read = [before.read(&observed, file), after.read(&observed, file)];
    ensure!(read == [[0, 21 * MIB], [40 * MIB, 0]], "listed and not, before and after: {read:?}");
    Ok(())
}

/// Without a pooler each query has a process of its own. PostgreSQL counts the blocks that it
/// reads.
fn backends_of_postgresql_that_ended_count_for_their_group(hooks: Hooks) -> Tried {
    const QUERIES: usize = 30;
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let Some(bin) = versions.map(|version| version.path().join("bin")).max() else {
        return skip("PostgreSQL is not installed");
    };
    let directory = directory()?;
    // Its own user has to get there.
    for above in directory.path().canonicalize()?.ancestors().skip(1) {
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(above)?);
        need(mode & 1 == 1, format!("other users cannot enter {}", above.display()))?;
    }
    let data = directory.path().join("data");
    std::fs::create_dir(&data)?;
    let group = Group::new("postgresql")?;
    let run = |name: &str, arguments: &[&str]| -> Tried<String> {
        let script = r#"echo $$ > "$1"; shift; exec setpriv --reuid=postgres --regid=postgres --init-groups "$@""#;
        let mut command = shell(script, &[&group.procs(), &bin.join(name)]);
        command.args(arguments).env("PGDATA", &data).env("PGHOST", &data).current_dir("/");
        // The server keeps the output of what starts it open.
        let said = directory.path().join("said");
        let status = command.env("PGDATABASE", "postgres").stdout(std::fs::File::create(&said)?).status()?;
        ensure!(status.success(), "{name}: {status}");
        Ok(std::fs::read_to_string(said)?.trim().to_owned())
    };
    let ours = Command::new("chown").arg("postgres").args([directory.path(), &data]).status()?;
    ensure!(ours.success(), "chown: {ours}");
    run("initdb", &["--no-sync", "--auth=trust"])?;
    // Its own cache is as small as it can be: it reads from the page cache.
    let options = format!("-c listen_addresses= -c shared_buffers=128kB -c unix_socket_directories={}", data.display());
    run("pg_ctl", &["--wait", "--silent", "--options", &options, "start"])?;
    let result = (|| -> Tried {
        let sql = |text: &str| run("psql", &["-X", "-q", "-t", "-A", "-c", text]);
        sql("create table t as select repeat('x', 1000) x from generate_series(1, 10000)")?;
        sql("vacuum freeze t")?;
        let path = data.join(sql("select pg_relation_filepath('t')")?);
        sql("checkpoint")?;
        let _held = hold(&path)?;
        let blocks = || -> Tried<u64> {
            Ok(sql("select heap_blks_read from pg_statio_user_tables where relname = 't'")?.parse()?)
        };
        let mut exact = exact_observer(hooks)?;
        let observer = exact.observer()?;
        let before = blocks()?;
        let [mut listed, mut ended] = [0; 2];
        for _ in 0..QUERIES {
            sql("set max_parallel_workers_per_gather = 0; select sum(length(x)) from t")?;
            let [of_listed, of_ended] = group.read(&observer.window(Duration::ZERO)?, id(&path)?);
            (listed, ended) = (listed + of_listed, ended + of_ended);
        }
        let all = 8192 * (blocks()? - before);
        ensure!(all > QUERIES as u64 * 8 * MIB, "PostgreSQL read {all} bytes");
        ensure!(listed + ended >= all / 100 * 99 && listed + ended <= all, "of {all}: {listed} and {ended}");
        Ok(())
    })();
    run("pg_ctl", &["--wait", "--silent", "--mode=fast", "stop"])?;
    result
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

/// The owner of the group's directory has a policy move his processes, until one of another user
/// is in the group, or he chooses what root has not listed.
fn an_owner_chooses_for_his_own_processes_only(hooks: Hooks) -> Tried {
    use std::os::unix::process::CommandExt;
    const USER: u32 = 54_321;
    let group = Group::new("owner")?;
    std::os::unix::fs::chown(&group.dir, Some(USER), None)?;
    let choose =
        |value: &[u8]| rustix::fs::setxattr(&group.dir, delegated::ATTRIBUTE, value, rustix::fs::XattrFlags::empty());
    if let Err(error) = choose(b"nthread") {
        return skip(format!("control groups have no attributes here: {error}"));
    }
    let start = |script: &str, user: u32| -> Tried<Ends> {
        let child = Ends(shell(script, &[]).uid(user).spawn()?);
        std::fs::write(group.procs(), child.0.id().to_string())?;
        Ok(child)
    };
    let busy = start("while :; do :; done", USER)?;
    let pid = busy.0.id();
    let name = delegated::rule("nthread");
    let of = Of { chosen: Some("nthread".into()), ..Of::default() };
    let rule = Rule { name: name.as_str().into(), of, does: Does::Move };
    let rules = Rules { list: vec![rule], rest: Does::Observe };
    let mut observer = open(&Settings { scope: Scope::Ruled(rules.clone()), ..settings(false, hooks) })?;
    // The rule of the process and why there is none, once the windows show what is waited for.
    let wait = |observer: &mut Observer, chosen: bool, why: &str| -> Tried {
        let mut last = None;
        for _ in 0..100 {
            let observed = observer.window(Duration::from_millis(50))?;
            let Some(seen) = observed.threads.iter().find(|seen| seen.thread.tid == pid) else { continue };
            let rule = seen.thread.rule.as_deref();
            let refused = observed.refused.iter().find(|line| line.starts_with(&group.path)).cloned();
            let moved = !seen.thread.only_observed && observer.allows(pid);
            ensure!(moved == (rule == Some(&name)), "{rule:?}, and moved: {moved}");
            if moved == chosen && refused.as_deref().unwrap_or_default().contains(why) {
                return Ok(());
            }
            last = Some((moved, refused));
        }
        ensure!(false, "waited for {chosen} {why}: {last:?}");
        Ok(())
    };
    wait(&mut observer, true, "")?;
    // The first window after a reload knows it still.
    observer.rule(rules.clone(), Default::default());
    let observed = observer.window(Duration::from_millis(200))?;
    let seen = observed.threads.iter().find(|seen| seen.thread.tid == pid);
    ensure!(seen.is_some_and(|seen| !seen.thread.only_observed), "{seen:?}");
    // Root lists another policy, and then this one again.
    let list = vec![Rule { of: Of { chosen: Some("arc".into()), ..Of::default() }, ..rules.list[0].clone() }];
    observer.rule(Rules { list, ..rules.clone() }, Default::default());
    wait(&mut observer, false, "[delegate] does not list policy nthread")?;
    observer.rule(rules, Default::default());
    wait(&mut observer, true, "")?;
    // It sleeps, so that no pass shows it.
    let foreign = start("exec sleep 1000", 0)?;
    wait(&mut observer, false, "is not of the user")?;
    drop(foreign);
    wait(&mut observer, true, "")?;
    // Its real user is another one; one that sleeps is looked at, one that runs is seen by a pass.
    for command in [&["sleep", "1000"][..], &["sh", "-pc", "while :; do :; done"]] {
        let ids = [format!("--ruid={}", USER + 1), format!("--euid={USER}")];
        let mut other = Command::new("setpriv");
        other.args(ids).args(["--clear-groups", "--"]).args(command).stdin(Stdio::null());
        let foreign = Ends(other.spawn()?);
        let comm = format!("/proc/{}/comm", foreign.0.id());
        while std::fs::read_to_string(&comm)?.trim() != command[0] {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::fs::write(group.procs(), foreign.0.id().to_string())?;
        wait(&mut observer, false, "is not of the user")?;
        // It may have run in that window.
        for _ in 0..5 {
            observer.window(Duration::from_millis(50))?;
        }
        wait(&mut observer, false, "is not of the user")?;
        drop(foreign);
        wait(&mut observer, true, "")?;
    }
    for (value, why) in [
        (&b"arc"[..], "[delegate] does not list policy arc"),
        (b"numad", "no policy is called numad"),
        (b"n\x1b[31m", "no name of a policy"),
        (&[b'n'; 1000], "no name of a policy"),
    ] {
        choose(value)?;
        wait(&mut observer, false, why)?;
        choose(b"nthread")?;
        wait(&mut observer, true, "")?;
    }
    std::os::unix::fs::chown(&group.dir, Some(USER + 1), None)?;
    wait(&mut observer, false, "is not of the user")?;
    std::os::unix::fs::chown(&group.dir, Some(USER), None)?;
    wait(&mut observer, true, "")?;
    rustix::fs::removexattr(&group.dir, delegated::ATTRIBUTE)?;
    wait(&mut observer, false, "")
}
