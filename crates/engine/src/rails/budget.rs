//! The limit on what homenode itself costs.

use crate::Cost;
use crate::settings::Budget;

/// Watches the cost of each window.
#[derive(Clone, Debug, Default)]
pub struct BudgetWatch {
    over: u32,
}

impl BudgetWatch {
    /// A window's cost. Returns what is too much, once it has been so for `budget.windows` windows on end; then counts
    /// anew.
    pub fn window(&mut self, cost: Cost, budget: &Budget) -> Option<String> {
        let cpu = cost.cpu > budget.cpu;
        let memory = cost.memory_bytes > budget.memory_bytes;
        if !cpu && !memory {
            self.over = 0;
            return None;
        }
        self.over += 1;
        if self.over < budget.windows {
            return None;
        }
        self.over = 0;
        let percent = |fraction: f64| fraction * 100.0;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let cpu_text = format!("{:.1} % of a CPU, {:.1} % allowed", percent(cost.cpu), percent(budget.cpu));
        let memory_text = format!("{:.1} MiB, {:.1} MiB allowed", mib(cost.memory_bytes), mib(budget.memory_bytes));
        Some(match (cpu, memory) {
            (true, true) => format!("homenode uses {cpu_text}, and {memory_text}"),
            (true, false) => format!("homenode uses {cpu_text}"),
            _ => format!("homenode uses {memory_text}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_windows_on_end_count() {
        let budget = Budget { cpu: 0.03, memory_bytes: 100, windows: 3 };
        let (low, high) = (Cost { cpu: 0.01, memory_bytes: 1 }, Cost { cpu: 0.05, memory_bytes: 1 });
        let mut watch = BudgetWatch::default();
        let said: Vec<bool> = [high, high, low, high, high, high, high, high, high]
            .into_iter()
            .map(|cost| watch.window(cost, &budget).is_some())
            .collect();
        assert_eq!(said, [false, false, false, false, false, true, false, false, true]);
    }

    #[test]
    fn memory_counts_too_and_is_named() {
        let budget = Budget { cpu: 0.03, memory_bytes: 1 << 20, windows: 1 };
        let text = BudgetWatch::default().window(Cost { cpu: 0.0, memory_bytes: 3 << 20 }, &budget).unwrap();
        assert_eq!(text, "homenode uses 3.0 MiB, 1.0 MiB allowed");
    }
}
