//! How the host is observed and acted on.

use observe::ObserveError;
use placement::Wish;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub observe: observe::Settings,
    pub act: act::Settings,
    /// Also observe which pages of mapped files processes use. Default: no, as only some policies
    /// look at it. One that can do without looks at programs that read files by loads alone, and
    /// every [`observe::mapped::EPOCH`] after the first samples.
    pub mapped: Wish,
    /// List ranges of files that were not read, too ([`observe::Settings::ranges`]). Default false.
    pub idle: bool,
    /// Thousandths of a CPU that homenode may use in all. Default 30. A third of it is for looking
    /// at files and processes.
    pub budget_milli_cpus: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            observe: observe::Settings::default(),
            act: act::Settings::default(),
            mapped: Wish::No,
            idle: false,
            budget_milli_cpus: 30,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// procfs or sysfs cannot be read.
    #[error("cannot act on threads: {0}")]
    Act(#[from] std::io::Error),
}
