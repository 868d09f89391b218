//! The loop: observe a window, decide, keep what the safety rails let through, apply, write down why.
//!
//! **Problem.** A policy may be right on average and still do harm: move a thread back and forth, touch what is not ours,
//! or leave affinities behind when it dies.
//!
//! **Approach.** One loop ([`Engine`]) for all planes. Nothing is applied before what undoes it is on disk ([`state`]);
//! every move is journalled with its reason ([`journal`]) and judged afterwards by what it brought ([`audit`]); rails
//! ([`rails`]) hold back what would oscillate or flood.
//!
//! **Limits.** The engine knows nothing of Linux: a [`Plane`] observes and acts. Rails count time by the snapshots
//! (`Snapshot::time_s`), so the same snapshots give the same moves; wall-clock time appears only in the journal.

pub mod audit;
mod engine;
mod error;
mod held;
pub mod journal;
mod plane;
pub mod rails;
mod report;
mod restore;
pub mod settings;
pub mod state;
mod subject;

pub use engine::Engine;
pub use error::EngineError;
pub use plane::{Cost, Family, Plane, PlaneError, Undo, Undone};
pub use rails::Rail;
pub use report::{Finished, Outcome, Verdict, WindowReport};
pub use restore::recover;
pub use settings::Settings;
pub use state::StateDir;
pub use subject::Subject;
