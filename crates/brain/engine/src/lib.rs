//! The loop: observe a window, decide, hold moves back where the safety rails say so, apply the
//! rest, record why.
//!
//! **Problem.** A policy that is right on average can still do harm: move a thread back and forth,
//! change affinities that others set, or leave its own behind after a crash.
//!
//! **Approach.** One loop ([`Engine`]) drives all planes. The undo record of a move is on disk
//! before the move is made ([`state`]). The journal gives a reason for each move ([`journal`]) and
//! later its effect ([`audit`]). The rails ([`rails`]) hold back moves that would oscillate or
//! flood the machine.
//!
//! **Limits.** The engine knows nothing of Linux: a [`Plane`] observes and acts. Rails count time
//! by the snapshots (`Snapshot::time_s`), so the same snapshots give the same moves; wall-clock
//! time appears only in the journal.

mod attempt;
pub mod audit;
mod carry;
mod copying;
mod engine;
mod error;
mod grown;
pub mod guardrail;
mod jobs;
pub mod journal;
mod owned;
mod plane;
pub mod rails;
mod report;
mod restore;
mod rollback;
pub mod settings;
pub mod state;
pub mod tally;

pub use attempt::{MoveEvent, word};
pub use engine::Engine;
pub use error::EngineError;
pub use jobs::{JobReport, Spent};
pub use placement::Subject;
pub use plane::{
    Cause, Copies, Cost, Inherited, JobId, JobState, Masks, Plane, PlaneError, Progress, Started, Thrift, Undo, Undone,
    Write,
};
pub use rails::Rail;
pub use report::{Finished, Outcome, WindowReport};
pub use restore::{recover, store};
pub use settings::Settings;
pub use state::StateDir;
pub use tally::Tally;
