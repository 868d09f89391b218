//! Scenario files: a machine, what runs on it, and for how long.
//!
//! **Problem.** Trying a policy on a four-socket machine should not require writing a program.
//!
//! **Approach.** A scenario is a TOML file (`docs/simulate.md` lists every key) with an inline or
//! captured machine, and workloads described by the parameters of their benchmarks. The whole file
//! is checked before anything runs, and every error names file, line and key.
//!
//! **Limits.** A captured machine does not state its bandwidths. Unless the file does, its memory
//! is assumed to be DRAM with [`DRAM_READ_BW`](crate::calibration::DRAM_READ_BW) per node.

mod amount;
mod check;
mod machine;
mod raw;
mod workload;

use std::path::{Path, PathBuf};

use placement::nthread;

use crate::run::Scenario;

/// A scenario file, checked.
#[derive(Clone, Debug)]
pub struct ScenarioFile {
    /// The scenario to simulate.
    pub scenario: Scenario,
    /// Name of the policy that the file asks for; `none`: the kernel alone.
    pub policy: String,
    /// Seed that the file asks for.
    pub seed: u64,
    /// Settings of NThread.
    pub nthread: nthread::Settings,
}

/// A scenario file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It is not TOML.
    #[error("{}:{line}: {why}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, counting from 1.
        line: usize,
        /// The parser's reason.
        why: String,
    },
    /// The machine to run it on instead of its own cannot be read.
    #[error("cannot tell the nodes of {}: {source}", path.display())]
    Topology {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: topology::TopologyError,
    },
    /// A key that is not known, or a value that cannot be.
    #[error("{}:{line}: {key}: {why}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Line, counting from 1.
        line: usize,
        /// Key, such as `workload[0].threads`.
        key: String,
        /// The fault.
        why: String,
    },
}

impl ScenarioFile {
    /// Reads and checks a file. Paths in it are relative to the directory it is in.
    ///
    /// # Errors
    ///
    /// [`ScenarioError`].
    pub fn read(path: &Path) -> Result<Self, ScenarioError> {
        Self::parse(&text_of(path)?, path)
    }

    /// Reads a file but takes the nodes from another machine: a directory written by
    /// `homenode nodes --capture`, or a file of `homenode nodes --measure`. The file's nodes, CPUs,
    /// memory and distances are ignored; its bandwidths are used.
    ///
    /// # Errors
    ///
    /// [`ScenarioError`]; also where a workload names a node that the other machine does not have.
    pub fn read_on(path: &Path, topology: &Path) -> Result<Self, ScenarioError> {
        let nodes = topology::measured::saved(topology)
            .map_err(|source| ScenarioError::Topology { path: topology.to_owned(), source })?;
        Self::check(&text_of(path)?, path, Some(nodes))
    }

    /// Checks the text of a file that is named `path`.
    ///
    /// # Errors
    ///
    /// [`ScenarioError`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, ScenarioError> {
        Self::check(text, path, None)
    }

    fn check(text: &str, path: &Path, topology: Option<topology::Topology>) -> Result<Self, ScenarioError> {
        let checker = check::Checker { text, path, topology };
        let raw = checker.raw()?;
        checker.file(raw)
    }

    /// The policy that the file asks for.
    pub fn policy(&self) -> Option<Box<dyn placement::Policy>> {
        placement::policy(&self.policy, &self.nthread)
    }
}

fn text_of(path: &Path) -> Result<String, ScenarioError> {
    std::fs::read_to_string(path).map_err(|source| ScenarioError::Read { path: path.to_owned(), source })
}
