//! Fits the cost of each thread's round, so that the model of the recorded machine reproduces its
//! throughput.
//!
//! **Problem.** A snapshot has a thread's CPU time, which mixes its software, its memory's latency
//! and its waits for memory.
//!
//! **Approach.** The model knows the latter two. With everything where it was observed, the CPU
//! seconds of software are corrected by the error of the modelled CPU time, and the seconds asleep
//! by the error of the whole round, until both errors vanish. All threads are corrected together,
//! because one thread's rate is another one's queue.
//!
//! **Limits.** Neither can be below 0: a thread that was faster than the modelled memory remains
//! too slow.

use super::load::{CYCLE_S, Load};
use super::world;
use crate::run::Scenario;

/// Rounds of the fit, and the relative error at which it ends.
const PASSES: usize = 200;
const TOLERANCE: f64 = 1e-4;
/// How much of an error is mended in one pass.
const STEP: f64 = 0.7;

/// CPU seconds and seconds asleep of each thread's round, and modelled throughput / observed
/// throughput.
pub(super) fn costs(load: &Load, scenario: &Scenario) -> (Vec<(f64, f64)>, f64) {
    let mut world = world(scenario, load, 1);
    let observed = load.bytes_per_round();
    let wanted: Vec<(f64, f64)> = (0..load.threads()).map(|t| world.cost(t)).map(|(on, _)| (on, CYCLE_S)).collect();
    let mut rates = world.rates();
    for _ in 0..PASSES {
        let mut worst: f64 = 0.0;
        for (t, ((on, cycle), rate)) in wanted.iter().zip(&rates).enumerate() {
            let (cpu_s, off_s) = world.cost(t);
            let (is_on, is_cycle) = (rate.on / rate.ops, 1.0 / rate.ops);
            worst = worst.max((is_cycle / cycle - 1.0).abs());
            // What is added to the time on a CPU is not missing from the round any more.
            let more = (cpu_s + STEP * (on - is_on)).max(0.0) - cpu_s;
            let asleep = (off_s + STEP * (cycle - is_cycle) - more).max(0.0);
            world.set_cost(t, cpu_s + more, asleep);
        }
        if worst < TOLERANCE {
            break;
        }
        rates = world.rates();
    }
    let bytes = |per_thread: &dyn Fn(usize) -> f64| -> f64 {
        observed.iter().enumerate().map(|(t, bytes)| bytes * per_thread(t)).sum()
    };
    let all = bytes(&|_| 1.0);
    let modelled = bytes(&|t| rates[t].ops * wanted[t].1);
    let fit = if all > 0.0 { modelled / all } else { 1.0 };
    ((0..load.threads()).map(|t| world.cost(t)).collect(), fit)
}
