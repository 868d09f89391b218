//! Whether a policy helps a live load: the design of a trial, and its statistics. Pure.
//!
//! **Problem.** A live load drifts, comes in bursts, and remembers: values of one minute resemble
//! those of the minute before. Before and after, or a t-test over seconds, find effects where there
//! are none.
//!
//! **Approach.** *Randomised blocks.* A trial has rounds; in each one every arm (homenode off, and
//! each policy) has one period, in an order that is drawn by lot ([`order`]). Only the difference
//! within a round counts, so slow drift cancels.
//!
//! *Randomisation inference.* If a policy does nothing, a round would have given the same values in
//! either order, so the lot alone gave the difference its sign. [`judge`] compares the mean
//! difference with those of all other signs. That assumes nothing about the load: not its
//! distribution, not independence. A block bootstrap would need both long series and a block length
//! beyond the load's memory, and is only right for many blocks; a trial has 6 to 60 rounds. The
//! interval has the effects that the same test does not reject.
//!
//! *Early stop.* After each round [`Harm`] multiplies a stake that grows when the policy was worse
//! and shrinks when it was better. Under no effect each sign is a fair coin, so the stake is a
//! martingale, and by Ville's inequality it exceeds `1/α` at any time with probability α at most:
//! one may look after each round. A spending function would do the same for looks that are planned
//! before; a trial on a live load may end at any time.
//!
//! The error rates add up: 1 % for the early stop, 4 % for the verdict at the end, shared by all
//! policies.
//!
//! **Limits.** The first claim is about *no effect at all*. The interval also assumes that the
//! effect is the same in each round. What a policy leaves behind for the next period must be gone
//! after the wash-out, which the caller sees to. Fewer than [`FEWEST`] rounds decide nothing.

mod harm;
mod judge;
mod lot;
mod quantiles;

pub use harm::Harm;
pub use judge::{Better, Effect, Verdict, judge};
pub use lot::{Arm, order};

/// Fewest rounds that can show an effect of one policy: 2 of 64 signs are as extreme.
pub const FEWEST: usize = 6;

/// Error rates and effort.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Probability of *helps* or *hurts* at the end, for any policy, if none does anything.
    pub alpha: f64,
    /// Probability of an early stop for harm, for any policy, if none does anything.
    pub harm: f64,
    /// Probability with which the smallest effect is seen.
    pub power: f64,
    /// Signs that are drawn where there are too many to try all.
    pub draws: usize,
    /// Policies of the trial, which share the error rates.
    pub policies: usize,
}

impl Settings {
    pub fn of(policies: usize) -> Self {
        Self { alpha: 0.04, harm: 0.01, power: 0.8, draws: 19_999, policies: policies.max(1) }
    }

    pub(crate) fn each(&self, alpha: f64) -> f64 {
        alpha / self.policies.max(1) as f64
    }
}
