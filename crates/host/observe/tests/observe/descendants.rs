//! Descendants of watched threads.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use linux::births::{Descendant, Origin};
use linux::threads::Threads;
use observe::{Hooks, Observer, Settings};
use testing::{Error, Tried, ensure};
use topology::ThreadId;

use crate::common::*;
use crate::{Case, cases};

pub const CASES: &[Case] = cases![
    WithKernels: children_of_watched_threads;
    // Forks are slow on emulated CPUs, and the programs are the same with every hook.
    Long: nobody_fills_the_table_of_watched_threads;
    Never: a_fork_storm_beside;
];

/// Living threads that were born of watched ones.
fn children(observer: &Observer) -> Tried<Vec<Descendant>> {
    Ok(observer.descendants()?.into_iter().filter(|d| d.origin == Origin::Born).collect())
}

/// A thread as procfs tells.
fn thread(tid: u32) -> Tried<ThreadId> {
    Ok(ThreadId::new(tid, Threads::new(Path::new("/proc")).started(tid)?))
}

fn children_of_watched_threads(hooks: Hooks) -> Tried {
    let observer = open(&settings(false, hooks))?;
    // Its first child is born before it is watched.
    let mut shell = Command::new("sh")
        .args(["-c", "sleep 100 & echo born; read go; sh -c 'sleep 200 & echo $!; wait' & wait"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let result = (|| -> Tried {
        let (mut input, output) = (shell.stdin.take().ok_or("stdin")?, shell.stdout.take().ok_or("stdout")?);
        let mut lines = BufReader::new(output).lines();
        let mut line = || lines.next().ok_or("the shell said nothing")?.map_err(Error::from);
        ensure!(line()? == "born", "the shell did not start");
        observer.watch(thread(shell.id())?)?;
        ensure!(children(&observer)?.is_empty(), "{:?}", children(&observer)?);
        std::io::Write::write_all(&mut input, b"go\n")?;
        let grandchild: u32 = line()?.parse()?;
        let children = children(&observer)?;
        let born =
            children.iter().find(|c| c.tid == grandchild).ok_or_else(|| format!("{grandchild}: {children:?}"))?;
        ensure!(children.len() == 2, "{children:?}");
        ensure!(children.iter().any(|c| c.tid == born.parent_tid && c.parent_tid == shell.id()), "{children:?}");
        ensure!(born.id() == thread(grandchild)?, "{born:?}, /proc says {:?}", thread(grandchild)?);
        ensure!(born.pid == grandchild, "{born:?}");
        Ok(())
    })();
    kill_group(&mut shell);
    result?;
    nobody_left(&observer)
}

/// Another user's watched process has more children than the table has entries, before a pass over
/// all threads and after it. Those of this user's are tracked all the same.
fn nobody_fills_the_table_of_watched_threads(hooks: Hooks) -> Tried {
    const ENTRIES: u32 = 64;
    let mut observer = open(&Settings { max_entries: Some(ENTRIES), ..settings(false, hooks) })?;
    let mut shells = Vec::new();
    let result = (|| -> Tried {
        for (user, more) in [(65_534, 2 * ENTRIES), (0, 4), (65_534, ENTRIES), (0, 4)] {
            let script = format!("read go; for i in $(seq {more}); do sleep 300 & done; echo born; wait");
            let shell = Command::new("/bin/sh")
                .args(["-c", &script])
                .current_dir("/")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .process_group(0)
                .uid(user)
                .spawn()?;
            shells.push(shell);
            let shell = shells.last_mut().ok_or("no shell")?;
            observer.watch(thread(shell.id())?)?;
            std::io::Write::write_all(shell.stdin.as_mut().ok_or("stdin")?, b"go\n")?;
            let mut line = String::new();
            BufReader::new(shell.stdout.as_mut().ok_or("stdout")?).read_line(&mut line)?;
            ensure!(line == "born\n", "{line}");
            let tracked = children(&observer)?.iter().filter(|child| child.parent_tid == shell.id()).count();
            println!("user {user}: {tracked} of {more} children");
            if user == 0 {
                ensure!(tracked as u32 == more, "{tracked} of {more}");
            }
            let seen = observer.window(Duration::ZERO)?;
            ensure!(seen.births_lost == (user != 0), "{:?}", seen.notes);
        }
        Ok(())
    })();
    shells.iter_mut().for_each(kill_group);
    result?;
    nobody_left(&observer)
}

/// Waits until all have ended. A killed process ends when it is scheduled next; a joined thread
/// ends a little later.
fn nobody_left(observer: &Observer) -> Tried {
    for _ in 0..3000 {
        if children(observer)?.is_empty() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(format!("still there: {:?}", children(observer)?).into())
}

/// While a thousand processes come and go, bytes stay exact and no thread is reported twice.
fn a_fork_storm_beside(hooks: Hooks) -> Tried {
    let directory = directory()?;
    let path = cached_file(directory.path(), "data", 16 * MIB, 4096)?;
    let mut observer = open(&settings(true, hooks))?;
    observer.watch(thread(std::process::id())?)?;
    let mut storm = Command::new("sh")
        .args(["-c", "i=0; while [ $i -lt 1000 ]; do (:); i=$((i+1)); done"])
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()?;
    let result = (|| -> Tried {
        while storm.try_wait()?.is_none() {
            let (seen, observed) = watch_one(&mut observer, || pread_all(&path, 4096))?;
            ensure!(seen.read(&path)? == 16 * MIB, "{} bytes", seen.read(&path)?);
            let tids: BTreeSet<u32> = observed.threads.iter().map(|t| t.thread.tid).collect();
            ensure!(tids.len() == observed.threads.len(), "a thread is reported twice");
        }
        Ok(())
    })();
    kill_group(&mut storm);
    result?;
    nobody_left(&observer)
}
