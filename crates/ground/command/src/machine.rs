//! The machine as its firmware, `homenode nodes --measure` and the configuration tell it.
//!
//! The bandwidth of a node's memory is what homenode.toml says; else what was measured on this
//! machine; else what the firmware promises. A user who sets a figure means it, and a measured
//! figure is what programs get, while a promised one is a rate of the modules.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use topology::config::NodeConfig;
use topology::measured::Measured;
use topology::{Node, NodeId, Topology};

use crate::args::MEASURED_FILE;
use crate::config::Config;
use crate::exit::{Exit, Failure};

/// The kernel's sysfs.
pub const SYS: &str = "/sys";

pub const PROC: &str = "/proc";

pub struct Machine {
    pub topology: Topology,
    /// What was measured, if it is of this machine.
    pub measured: Option<Measured>,
    pub file: PathBuf,
    /// Why that file is not used, although it is there.
    pub unused: Option<String>,
    configured: BTreeMap<NodeId, NodeConfig>,
}

/// The machine under `sys`, with what was measured and what homenode.toml adds.
pub fn read(sys: &Path, config: &Config) -> Result<Topology, Failure> {
    let machine = Machine::read(sys, config)?;
    if let Some(why) = &machine.unused {
        tracing::warn!("{} is not used: {why}", machine.file.display());
    }
    Ok(machine.topology)
}

impl Machine {
    /// The machine under `sys`, or one that was saved. The usual file of measured figures counts
    /// for this machine only, not for one that was captured elsewhere; and if it cannot be used, it
    /// is left out.
    ///
    /// # Errors
    ///
    /// The machine cannot be read; homenode.toml does not fit it, or names measured figures that
    /// cannot be used.
    pub fn read(sys: &Path, config: &Config) -> Result<Self, Failure> {
        let mut topology = topology::sysfs::saved(sys)
            .map_err(|e| Failure::from_error(Exit::Unsupported, "cannot tell this machine's nodes", &e))?;
        let file = config.measured.clone().unwrap_or_else(|| MEASURED_FILE.into());
        let (measured, unused) = match (&config.measured, sys == Path::new(SYS)) {
            (Some(file), own) => (Some(fitting(file, &topology, own)?), None),
            // Not to know whether it is there is no reason to be silent.
            (None, true) if !matches!(file.try_exists(), Ok(false)) => match fitting(&file, &topology, true) {
                Ok(measured) => (Some(measured), None),
                Err(failure) => (None, Some(failure.line())),
            },
            (None, _) => (None, None),
        };
        if let Some(measured) = &measured {
            topology
                .configure(&measured.bandwidths())
                .map_err(|e| Failure::from_error(Exit::Usage, file.display().to_string(), &e))?;
        }
        topology.configure(&config.node).map_err(|e| {
            let absent = config.node.keys().find(|id| topology.node(**id).is_none());
            let key = absent.map_or("node".to_owned(), |id| format!("node.{id}"));
            Failure::from_error(Exit::Usage, config.place(&key), &e)
        })?;
        if let Some(measured) = &measured {
            topology::tiers::from_measured(&mut topology.nodes, |node| measured.latency_s(node));
        }
        Ok(Self { topology, measured, file, unused, configured: config.node.clone() })
    }

    /// Where the figure of a node's bandwidth is from: `configuration`, `measured` or `firmware`.
    pub fn source(&self, node: &Node, write: bool) -> Option<&'static str> {
        let of = |read: Option<f64>, written: Option<f64>| if write { written } else { read };
        of(node.read_bw_max, node.write_bw_max)?;
        let says = |figures: &NodeConfig| of(figures.read_bw_max, figures.write_bw_max).is_some();
        if self.configured.get(&node.id).is_some_and(says) {
            return Some("configuration");
        }
        let measured = self.measured.as_ref().map(Measured::bandwidths).unwrap_or_default();
        Some(if measured.get(&node.id).is_some_and(says) { "measured" } else { "firmware" })
    }
}

/// Measured figures of this machine. `own`: it is the one that this program runs on.
fn fitting(file: &Path, topology: &Topology, own: bool) -> Result<Measured, Failure> {
    let measured =
        Measured::read(file).map_err(|e| Failure::from_error(Exit::Usage, "cannot use measured figures", &e))?;
    let processor = if own { linux::processor::name(Path::new(PROC)) } else { None };
    match measured.why_not(topology, processor.as_deref()) {
        None => Ok(measured),
        Some(why) => Err(Failure::new(Exit::Usage, file.display().to_string(), why)
            .hint("`homenode nodes --measure` measures this machine")),
    }
}
