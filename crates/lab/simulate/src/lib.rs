//! The simulated plane: machines of any size in virtual time, and the papers' experiments on them.
pub mod calibration;
pub mod constants;
pub mod filesystem;
pub mod machine;
pub mod papers;
pub mod parallel;
mod plane;
pub mod random;
pub mod regret;
pub mod reproduce;
pub mod run;
pub mod scenario;
pub mod whatif;
pub mod workload;
mod world;

pub use plane::SimulatedPlane;
pub use run::{Outcome, Scenario, run};
pub use scenario::{ScenarioError, ScenarioFile};
pub use whatif::WhatIf;
