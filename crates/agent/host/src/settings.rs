//! How the host is observed and acted on.

use std::path::PathBuf;

use observe::ObserveError;
use placement::Wish;

/// Settings of the host plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Settings of the observer. Acting uses the same procfs.
    pub observe: observe::Settings,
    /// The sysfs mount.
    pub sys_root: PathBuf,
    /// Also move threads with an affinity of their own. Default false.
    pub touch_own_affinity: bool,
    /// Also bind threads while a sched_ext scheduler runs. Default false.
    pub beside_sched_ext: bool,
    /// Also observe which pages of mapped files processes use. Default: no, as only some policies
    /// look at it. One that can do without looks at programs that read files by loads alone, and
    /// every [`observe::mapped::EPOCH`] after the first samples.
    pub mapped: Wish,
    /// List ranges of files that were not read, too ([`observe::Settings::ranges`]). Default false.
    pub idle: bool,
    /// Remember where data was that moves copy, so that it can be sent back at the end. Default
    /// false: it stays.
    pub move_back: bool,
    /// The nodes are made up, and stay as they are when CPUs of the machine come or go. Default
    /// false.
    pub fixed_nodes: bool,
    /// Thousandths of a CPU that homenode may use in all. Default 30. A third of it is for looking
    /// at files and processes.
    pub budget_milli_cpus: u32,
}

impl Default for Settings {
    fn default() -> Self {
        let observe = observe::Settings::default();
        Self {
            observe,
            sys_root: PathBuf::from("/sys"),
            touch_own_affinity: false,
            beside_sched_ext: false,
            mapped: Wish::No,
            idle: false,
            move_back: false,
            fixed_nodes: false,
            budget_milli_cpus: 30,
        }
    }
}

impl Settings {
    /// Those of the acting part.
    pub(crate) fn act(&self) -> act::Settings {
        act::Settings {
            proc_root: self.observe.proc_root.clone(),
            sys_root: self.sys_root.clone(),
            touch_own_affinity: self.touch_own_affinity,
            beside_sched_ext: self.beside_sched_ext,
            move_back: self.move_back,
            fixed_nodes: self.fixed_nodes,
        }
    }
}

/// Why the plane cannot work.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Observing is impossible.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// procfs or sysfs cannot be read.
    #[error("cannot act on threads: {0}")]
    Act(#[from] std::io::Error),
}
