//! The limit on what homenode itself costs.

use crate::Cost;
use crate::settings::Budget;

/// Windows that are on average far below the budget, after which observing may cost more again. On
/// average, because a look at all processes once a minute makes one of them dearer.
const CALM_WINDOWS: u32 = 60;
/// Meaning of "far below": after doubling, the cost must still be within the budget with room to
/// spare.
const CALM: f64 = 0.4;

#[derive(Clone, Debug, Default)]
pub struct BudgetWatch {
    over_cpu: u32,
    over_memory: u32,
    calm: u32,
    /// The cost of these windows together.
    calm_cpu: f64,
}

/// The response to the cost of the last windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Too much CPU time, in a sentence: observe less.
    TooMuchCpu(String),
    /// Too much memory, in a sentence. Tables are bounded when they are made, so this can only be
    /// said.
    TooMuchMemory(String),
    /// So little for so long that homenode may observe more again.
    Calm,
}

impl BudgetWatch {
    /// Takes one window's cost. Returns a response once enough consecutive windows call for it,
    /// then counts from zero.
    pub fn window(&mut self, cost: Cost, budget: &Budget) -> Option<Verdict> {
        let reached = |count: &mut u32, now: bool, windows: u32| {
            *count = if now { *count + 1 } else { 0 };
            let reached = *count >= windows;
            if reached {
                *count = 0;
            }
            reached
        };
        if reached(&mut self.over_cpu, cost.cpu > budget.cpu, budget.windows) {
            (self.calm, self.calm_cpu) = (0, 0.0);
            let (is, may) = (cost.cpu * 100.0, budget.cpu * 100.0);
            return Some(Verdict::TooMuchCpu(format!("homenode uses {is:.1} % of a CPU, {may:.1} % allowed")));
        }
        if reached(&mut self.over_memory, cost.memory_bytes > budget.memory_bytes, budget.windows) {
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            let (is, may) = (mib(cost.memory_bytes), mib(budget.memory_bytes));
            return Some(Verdict::TooMuchMemory(format!("homenode uses {is:.1} MiB of memory, {may:.1} MiB allowed")));
        }
        self.calm_cpu += cost.cpu;
        if !reached(&mut self.calm, true, CALM_WINDOWS) {
            return None;
        }
        let mean = std::mem::take(&mut self.calm_cpu) / f64::from(CALM_WINDOWS);
        (mean < budget.cpu * CALM).then_some(Verdict::Calm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Budget = Budget { cpu: 0.03, memory_bytes: 1 << 20, windows: 3 };

    fn said(costs: impl IntoIterator<Item = (f64, u64)>) -> Vec<(usize, Verdict)> {
        let mut watch = BudgetWatch::default();
        let windows = costs.into_iter().enumerate();
        windows
            .filter_map(|(i, (cpu, memory_bytes))| Some((i, watch.window(Cost { cpu, memory_bytes }, &BUDGET)?)))
            .collect()
    }

    #[test]
    fn only_windows_on_end_count() {
        let (low, high) = ((0.02, 1), (0.05, 1));
        let text = Verdict::TooMuchCpu("homenode uses 5.0 % of a CPU, 3.0 % allowed".into());
        let said = said([high, high, low, high, high, high, high, high, high]);
        assert_eq!(said, [(5, text.clone()), (8, text)]);
    }

    #[test]
    fn memory_counts_for_itself() {
        let text = Verdict::TooMuchMemory("homenode uses 3.0 MiB of memory, 1.0 MiB allowed".into());
        assert_eq!(said([(0.02, 3 << 20); 4]), [(2, text)]);
    }

    #[test]
    fn long_far_below_is_calm() {
        assert_eq!(said([(0.011, 1); 120]), [(59, Verdict::Calm), (119, Verdict::Calm)]);
        assert_eq!(said([(0.013, 1); 120]), []);
        // Each minute one window is dearer, by a search for other programs.
        let with = |search: f64| (0..120).map(move |n| (if n % 60 == 7 { search } else { 0.01 }, 1));
        assert_eq!(said(with(0.1)), [(59, Verdict::Calm), (119, Verdict::Calm)]);
        assert_eq!(said(with(0.2)), []);
        assert_eq!(said([(BUDGET.cpu * CALM, 1 << 20); 120]), [], "at a bound is not beyond it");
        assert_eq!(said([(BUDGET.cpu, 1 << 20); 120]), []);
    }
}
