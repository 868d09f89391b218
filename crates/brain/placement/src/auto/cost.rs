//! The one-time cost of moves.
//!
//! **Problem.** A better placement is worth nothing if reaching it takes longer than it lasts.
//!
//! **Approach.** The cost is in bytes not read or written meanwhile: by a thread with cold caches,
//! by a process that stops while its memory is copied, and for files, Dragonfly's O_m.
//!
//! **Limits.** Copies are assumed to run one after the other, at the papers' speeds.

use super::assignment::{Assignment, Model};
use super::class::ThreadClass;

impl Model<'_> {
    /// Bytes that the moves of this assignment cost, once.
    pub fn cost(&self, assignment: &Assignment) -> f64 {
        let s = self.settings;
        let (mut cost, mut each, mut waiting, mut copies_s) = (0.0, 0.0, 0.0, 0.0);
        let mut file = |rate: f64, count: f64, bytes: f64| {
            let copy_s = self.file_copy_s(bytes);
            each += count * self.file_cost(rate, copy_s);
            waiting += count * rate;
            copies_s += count * copy_s;
        };
        for (class, threads) in self.classes.iter().zip(&assignment.threads) {
            for placed in threads {
                let count = placed.count as f64;
                if placed.node != class.node {
                    cost += count * class.work.rate * s.thread_move_s;
                }
                if placed.data.is_some() {
                    file(class.work.rate, count, class.file_bytes);
                }
            }
        }
        for (g, to) in assignment.groups.iter().enumerate() {
            if let Some(to) = to {
                file(self.group_rate(g), 1.0, self.group_bytes(g, *to));
            }
        }
        // A file that follows others waits for half of them on average.
        cost += f64::max(each, self.file_cost(waiting, copies_s / 2.0));
        for (p, to) in assignment.processes.iter().enumerate() {
            if let Some(to) = to {
                // Of processes of age T, the fraction T / (T + t) exists t later (Harchol-Balter
                // and Downey 1997). A process that must stop first must win that back in its
                // expected remaining time within the horizon h: T ln (1 + h / T).
                let age_s = self.demands.processes[p].age_s.max(f64::MIN_POSITIVE);
                let life_s = age_s * (s.horizon_s / age_s).ln_1p();
                cost += self.process_rate(p) * self.process_copy_s(p, *to) * s.horizon_s / life_s;
            }
        }
        cost
    }

    /// Dragonfly's O_m by its rule, (TH_l − TH_r) × T_m: the gain forgone until the copy ends.
    fn file_cost(&self, rate: f64, copy_s: f64) -> f64 {
        (self.settings.remote_load - 1.0) * rate * copy_s
    }

    /// T_m of this many bytes.
    pub fn file_copy_s(&self, bytes: f64) -> f64 {
        bytes / self.settings.file_copy_bw
    }

    /// Seconds that a process stops when it moves with its memory.
    pub fn process_copy_s(&self, process: usize, node: usize) -> f64 {
        let home = self.hardware.nodes[node].home;
        let away = self.demands.processes[process].memory.iter().filter(|m| m.0 != home);
        away.map(|m| m.1).sum::<f64>() / self.settings.process_copy_bw
    }

    /// Bytes of a group that are not on a node.
    pub fn group_bytes(&self, group: usize, node: usize) -> f64 {
        self.demands.groups.list[group].bytes.iter().filter(|b| b.0 != node).map(|b| b.1).sum()
    }

    /// Bytes/s of a group's data.
    fn group_rate(&self, group: usize) -> f64 {
        let share = |t: &ThreadClass| {
            let uses = t.work.shared.iter().filter(|s| s.group == group);
            uses.map(|s| s.read + s.written).sum::<f64>()
        };
        let classes = self.of_group[group].iter().map(|t| &self.classes[*t]);
        classes.map(|t| t.work.rate * t.members.len() as f64 * share(t)).sum()
    }

    /// Bytes/s of a process.
    pub fn process_rate(&self, process: usize) -> f64 {
        self.of_process[process]
            .iter()
            .map(|t| self.classes[*t].work.rate * self.classes[*t].members.len() as f64)
            .sum()
    }
}
