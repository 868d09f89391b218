//! Options that several sub-commands have: which threads to manage, and how to observe.

use std::path::PathBuf;

use clap::Args;
use command::args::{pid, seconds};
use command::rules::pattern;
use placement::rules::Pattern;

/// Which threads to manage.
#[derive(Debug, Clone, Default, Args)]
pub struct ScopeArgs {
    /// Only these processes (repeat the option, or separate ids with commas)
    #[arg(long, value_name = "PID", value_delimiter = ',', value_parser = pid)]
    pub pid: Vec<u32>,
    /// Only these services, as `homenode map` calls them, such as postgresql or
    /// user@1000.service/*; * and ? stand for others (repeat the option)
    #[arg(long, value_name = "NAME", value_parser = pattern)]
    pub unit: Vec<Pattern>,
    /// Not these services, whatever else is chosen (repeat the option)
    #[arg(long, value_name = "NAME", value_parser = pattern)]
    pub not_unit: Vec<Pattern>,
    /// Only processes in this control group and below: a directory under /sys/fs/cgroup (repeat the
    /// option)
    #[arg(long, value_name = "GROUP")]
    pub cgroup: Vec<PathBuf>,
    /// Also move threads with a custom affinity, within their cpuset; it is restored on exit
    #[arg(long)]
    pub touch_own_affinity: bool,
    /// Also bind threads while a sched_ext scheduler runs, which may treat them worse than others
    /// then
    #[arg(long)]
    pub beside_sched_ext: bool,
}

/// How to observe.
#[derive(Debug, Clone, Default, Args)]
pub struct ObserveArgs {
    /// Length of a window in seconds [default: 1]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub window: Option<f64>,
    /// Count every read instead of a sample; this slows the observed threads down more
    #[arg(long)]
    pub exact: bool,
    /// Keep the read hook attached: reads cost some 60 ns more, but no CPU is interrupted to attach
    /// it again [default with nohz_full]
    #[arg(long)]
    pub steady: bool,
    /// Which threads to manage.
    #[command(flatten)]
    pub scope: ScopeArgs,
}
