//! The CPU and affinity of threads, from `/proc/PID/task/TID`.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};

use crate::machine::Machine;

/// One thread at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    pub tid: u32,
    pub comm: String,
    /// CPU it last ran on.
    pub cpu: u32,
    /// CPU time so far, in ticks of 10 ms.
    pub ticks: u64,
    /// CPUs it may run on, in the kernel's format (`Cpus_allowed_list`).
    pub allowed: String,
}

/// The threads of a process in order of their ids, without those that end meanwhile.
pub fn of(pid: u32) -> Result<Vec<Thread>> {
    let dir = format!("/proc/{pid}/task");
    let mut threads = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| dir.clone())? {
        let Ok(entry) = entry else { continue };
        let Some(tid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else { continue };
        let (Ok(stat), Ok(status)) =
            (fs::read_to_string(entry.path().join("stat")), fs::read_to_string(entry.path().join("status")))
        else {
            continue;
        };
        threads.extend(parse(tid, &stat, &status));
    }
    threads.sort_unstable_by_key(|t| t.tid);
    Ok(threads)
}

/// CPU time of a process so far, that of its ended threads included, in ticks of 10 ms.
pub fn cpu_ticks(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| path.clone())?;
    // After the name, which may contain blanks: the 14th and 15th field.
    let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').skip(11).take(2));
    let ticks: Vec<u64> = fields.into_iter().flatten().filter_map(|ticks| ticks.parse().ok()).collect();
    ensure!(ticks.len() == 2, "{path}: no CPU time in {stat:?}");
    Ok(ticks.iter().sum())
}

/// The process `pid` and all its descendants.
pub fn tree(pid: u32) -> Vec<u32> {
    let mut parents: BTreeMap<u32, u32> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(child) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // After the name, which may contain blanks: state, parent.
        if let Some(parent) = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok()) {
            parents.insert(child, parent);
        }
    }
    let mut tree = vec![pid];
    let mut next = 0;
    while let Some(&parent) = tree.get(next) {
        tree.extend(parents.iter().filter(|(_, p)| **p == parent).map(|(child, _)| *child));
        next += 1;
    }
    tree
}

/// Affinity of each thread of these processes, by thread id.
pub fn affinities(pids: &[u32]) -> BTreeMap<u32, String> {
    pids.iter().filter_map(|pid| of(*pid).ok()).flatten().map(|t| (t.tid, t.allowed)).collect()
}

/// The CPUs on which the calling thread may run.
pub fn affinity() -> Result<Vec<u32>> {
    let set = rustix::thread::sched_getaffinity(None).context("sched_getaffinity")?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).map(|cpu| cpu as u32).collect())
}

/// Sets the CPUs on which a thread may run; 0 is the calling thread.
pub fn set_affinity(tid: u32, cpus: &[u32]) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu as usize));
    let pid = i32::try_from(tid).ok().and_then(rustix::process::Pid::from_raw);
    rustix::thread::sched_setaffinity(pid, &set).with_context(|| format!("the affinity of thread {tid}"))
}

/// Pages of a process's own memory (not of files) by node, from `/proc/PID/numa_maps`.
pub fn memory(pid: u32) -> Result<BTreeMap<u32, u64>> {
    let path = format!("/proc/{pid}/numa_maps");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let mut nodes = BTreeMap::new();
    for line in text.lines().filter(|line| line.split(' ').any(|field| field.starts_with("anon="))) {
        for (node, pages) in line.split(' ').filter_map(|field| field.strip_prefix('N')?.split_once('=')) {
            if let (Ok(node), Ok(pages)) = (node.parse(), pages.parse::<u64>()) {
                *nodes.entry(node).or_default() += pages;
            }
        }
    }
    Ok(nodes)
}

/// Counts over several samplings how many threads run at home.
#[derive(Clone, Copy, Debug, Default)]
pub struct Whereabouts {
    /// Threads seen, summed over samplings.
    pub seen: u64,
    /// Of these, threads on the node in question.
    pub at_home: u64,
}

impl Whereabouts {
    /// Adds one sampling: the threads that are in `tids`, and those of them that last ran on
    /// `node`.
    pub fn sample(&mut self, threads: &[Thread], tids: &[u32], machine: &Machine, node: u32) {
        for thread in threads.iter().filter(|t| tids.contains(&t.tid)) {
            self.seen += 1;
            self.at_home += u64::from(machine.node_of(thread.cpu) == Some(node));
        }
    }

    /// Share that ran on another node; `None` if none was seen.
    pub fn away(&self) -> Option<f64> {
        (self.seen > 0).then(|| 1.0 - self.at_home as f64 / self.seen as f64)
    }
}

fn parse(tid: u32, stat: &str, status: &str) -> Option<Thread> {
    let (head, rest) = stat.rsplit_once(") ")?;
    let comm = head.split_once('(')?.1.to_owned();
    // proc(5): the field after the name is number 3; utime and stime are 14 and 15, processor is
    // 39.
    let field = |n: usize| rest.split_ascii_whitespace().nth(n - 3)?.parse::<u64>().ok();
    let allowed = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?.trim().to_owned();
    Some(Thread { tid, comm, cpu: field(39)?.try_into().ok()?, ticks: field(14)? + field(15)?, allowed })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What copies cost was missing: their threads had ended.
    #[test]
    fn ended_threads_count() {
        let pid = std::process::id();
        let before = cpu_ticks(pid).unwrap();
        let work = || {
            let mine = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            while mine().tv_nsec < 200_000_000 && mine().tv_sec == 0 {}
        };
        std::thread::spawn(work).join().unwrap();
        let after = cpu_ticks(pid).unwrap();
        assert!(after >= before + 15, "{before} to {after}");
    }

    #[test]
    fn a_name_with_blanks_and_brackets_does_not_shift_fields() {
        let numbers: Vec<String> = (4..=52).map(|n| n.to_string()).collect();
        let stat = format!("17 (a) b (c) R {}", numbers.join(" "));
        let thread = parse(17, &stat, "Name:\tx\nCpus_allowed:\t3\nCpus_allowed_list:\t0-1,4\n").unwrap();
        assert_eq!(
            thread,
            Thread { tid: 17, comm: "a) b (c".into(), cpu: 39, ticks: 14 + 15, allowed: "0-1,4".into() }
        );
    }

    #[test]
    fn this_process_finds_its_own_threads_and_tree() {
        let pid = std::process::id();
        assert!(of(pid).unwrap().iter().any(|t| t.tid == pid && !t.allowed.is_empty()));
        assert_eq!(tree(pid).first(), Some(&pid));
        assert!(tree(1).contains(&pid));
    }

    #[test]
    fn counts_only_the_given_threads() {
        let machine = Machine { nodes: [(0, vec![0, 1]), (1, vec![2, 3])].into() };
        let thread = |tid, cpu| Thread { tid, comm: String::new(), cpu, ticks: 0, allowed: String::new() };
        let mut whereabouts = Whereabouts::default();
        assert_eq!(whereabouts.away(), None);
        whereabouts.sample(&[thread(1, 1), thread(2, 3), thread(3, 0)], &[1, 2, 4], &machine, 0);
        // Thread 1 is at home, 2 is away; 3 was not asked for and 4 is gone.
        assert_eq!((whereabouts.seen, whereabouts.away()), (2, Some(0.5)));
    }
}
