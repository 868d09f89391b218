//! A world in the state of a recorded machine, and the rates of its threads.

use memory_model::queues::Rate;

use super::{Shares, World};

impl World {
    /// Puts a thread where it was seen; `own_affinity`: bound there, and not by homenode.
    pub fn seat_recorded(&mut self, thread: usize, node: usize, own_affinity: bool) {
        let mask = own_affinity.then(|| self.machine.cpus_of(node).clone());
        let thread = &mut self.threads[thread];
        (thread.node, thread.mask, thread.own_affinity) = (node, mask, own_affinity);
    }

    /// Puts the memory of a process, by its number, where it was seen.
    pub fn set_resident(&mut self, process: usize, resident: Shares) {
        self.processes[process].resident = resident;
    }

    /// How fast every thread is at this moment.
    pub fn rates(&mut self) -> Vec<Rate> {
        self.build();
        self.solver.solve(&self.system);
        let mut rates = vec![Rate::default(); self.threads.len()];
        for (class, threads) in self.network.threads.iter().enumerate() {
            for thread in threads {
                rates[*thread as usize] = self.solver.rates()[class];
            }
        }
        rates
    }

    /// Changes what one round of a thread costs: seconds of CPU, seconds asleep.
    pub fn set_cost(&mut self, thread: usize, cpu_s: f64, off_s: f64) {
        let thread = &self.threads[thread];
        let op = &mut self.jobs[thread.job].roles[thread.role].op;
        (op.cpu_s, op.off_s) = (cpu_s, off_s);
    }

    /// Cost of one round of a thread: seconds of CPU, seconds asleep.
    pub fn cost(&self, thread: usize) -> (f64, f64) {
        let thread = &self.threads[thread];
        let op = &self.jobs[thread.job].roles[thread.role].op;
        (op.cpu_s, op.off_s)
    }
}
