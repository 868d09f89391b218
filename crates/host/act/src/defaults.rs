//! The default affinity of a thread: the one it has if nobody sets one.
//!
//! With `isolcpus`, or an isolated cpuset partition, there are two: a thread gets the CPUs that are
//! not isolated, and only a thread that is told to runs on the others. A thread that has just the
//! first was given nothing of its own, even if somebody, for example homenode's undo, set that
//! value.

use std::io;
use std::path::{Path, PathBuf};

use linux::cpuset::{Cpusets, Group};
use linux::named;
use linux::threads::Threads;
use rustc_hash::FxHashMap;
use topology::{CpuSet, ThreadId};

/// For how many windows a thread's control group is remembered. Preparing a move reads it again.
const REMEMBERED: u64 = 8;

/// Default affinities as the kernel would show them, with online CPUs only.
#[derive(Debug)]
pub struct Defaults {
    threads: Threads,
    cpusets: Cpusets,
    sys_root: PathBuf,
    online: CpuSet,
    /// Fixed at boot.
    possible: CpuSet,
    /// CPUs that threads do not get by themselves.
    isolated: CpuSet,
    window: u64,
    /// Groups of threads, and the window in which each was read.
    groups: FxHashMap<ThreadId, (Group, u64)>,
    /// CPUs of the groups, read in this window.
    cpus: FxHashMap<Group, Result<CpuSet, String>>,
}

impl Defaults {
    /// Defaults on the machine whose procfs and sysfs are mounted here.
    pub fn new(proc_root: &Path, sys_root: &Path) -> io::Result<Self> {
        let mut defaults = Self {
            threads: Threads::new(proc_root),
            cpusets: Cpusets::new(proc_root)?,
            sys_root: sys_root.to_owned(),
            online: CpuSet::default(),
            possible: CpuSet::default(),
            isolated: CpuSet::default(),
            window: 0,
            groups: FxHashMap::default(),
            cpus: FxHashMap::default(),
        };
        defaults.online = defaults.cpu_list("online")?;
        defaults.possible = defaults.cpu_list("possible")?;
        defaults.isolated = defaults.isolated()?;
        Ok(defaults)
    }

    pub fn sys_root(&self) -> &Path {
        &self.sys_root
    }

    pub fn online(&self) -> &CpuSet {
        &self.online
    }

    /// Every CPU that can ever be online: a thread without an affinity of its own may use them all,
    /// within its cpuset.
    pub fn possible(&self) -> &CpuSet {
        &self.possible
    }

    /// Whether a mask is what a thread of this default has where some CPUs are isolated: all of it
    /// but those.
    pub fn spares_isolated(&self, mask: &CpuSet, default: &CpuSet) -> bool {
        !self.isolated.is_empty() && !mask.is_empty() && *mask == default.difference(&self.isolated)
    }

    /// Reads the online and the isolated CPUs again and forgets the CPUs of groups. Call it once a
    /// window.
    pub fn refresh(&mut self) {
        self.window += 1;
        self.cpus.clear();
        if let Ok(online) = self.cpu_list("online") {
            self.online = online;
        }
        if let Ok(isolated) = self.isolated() {
            self.isolated = isolated;
        }
        let oldest = self.window.saturating_sub(REMEMBERED);
        self.groups.retain(|_, (_, read)| *read > oldest);
    }

    /// The default of a thread, read now. [`ErrorKind::NotFound`] where its group is hidden from us
    /// or has vanished.
    pub fn of(&self, tid: u32) -> io::Result<CpuSet> {
        let cgroups = self.threads.cgroups(tid)?;
        self.of_group(&self.cpusets.group(&cgroups))
    }

    /// The default of a thread, using its control group as read in the last few windows.
    pub fn remembered(&mut self, key: ThreadId) -> Result<CpuSet, String> {
        let group = match self.groups.get(&key) {
            Some((group, _)) => group.clone(),
            None => {
                let cgroups = self.threads.cgroups(key.tid).map_err(|e| e.to_string())?;
                let group = self.cpusets.group(&cgroups);
                self.groups.insert(key, (group.clone(), self.window));
                group
            }
        };
        if let Some(known) = self.cpus.get(&group) {
            return known.clone();
        }
        let cpus = self.of_group(&group).map_err(|e| e.to_string());
        self.cpus.insert(group, cpus.clone());
        cpus
    }

    fn of_group(&self, group: &Group) -> io::Result<CpuSet> {
        Ok(match self.cpusets.cpus(group)? {
            Some(cpus) => cpus.intersection(&self.online),
            None => self.online.clone(),
        })
    }

    /// Isolated CPUs, at boot or since. Kernels before 4.2 do not tell.
    fn isolated(&self) -> io::Result<CpuSet> {
        match self.cpu_list("isolated") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(CpuSet::default()),
            isolated => isolated,
        }
    }

    fn cpu_list(&self, name: &str) -> io::Result<CpuSet> {
        let path = self.sys_root.join("devices/system/cpu").join(name);
        let named = |error| named(path.display(), error);
        let text = std::fs::read_to_string(&path).map_err(named)?;
        text.parse().map_err(|e: topology::ParseCpuSetError| named(io::Error::new(io::ErrorKind::InvalidData, e)))
    }
}
