//! The machine as the configuration completes it.

use std::path::Path;

use topology::Topology;

use crate::config::Config;
use crate::exit::{Exit, Failure};

/// The kernel's sysfs.
pub const SYS: &str = "/sys";

/// The machine under `sys`, with what homenode.toml adds.
///
/// # Errors
///
/// The machine cannot be read, or homenode.toml does not fit it.
pub fn read(sys: &Path, config: &Config) -> Result<Topology, Failure> {
    let mut topology = topology::sysfs::read(sys)
        .map_err(|e| Failure::from_error(Exit::Unsupported, "cannot tell this machine's nodes", &e))?;
    topology.configure(&config.node).map_err(|e| Failure::from_error(Exit::Usage, config.place(), &e))?;
    Ok(topology)
}
