//! Threads fixed on nodes: what the search for the best placement compares.

use super::World;

/// What tells threads apart: job, role, where their files and the memory of their process are.
#[derive(PartialEq)]
struct Kind {
    job: usize,
    role: usize,
    places: Vec<Vec<(usize, f64)>>,
}

impl World {
    /// Threads in groups of those that can change places without changing anything else; none of those with an affinity of
    /// their own.
    pub fn alike(&self) -> Vec<Vec<usize>> {
        let mut groups: Vec<(Kind, Vec<usize>)> = Vec::new();
        for thread in (0..self.threads.len()).filter(|t| !self.threads[*t].own_affinity) {
            let kind = self.kind(thread);
            match groups.iter_mut().find(|g| g.0 == kind) {
                Some(group) => group.1.push(thread),
                None => groups.push((kind, vec![thread])),
            }
        }
        groups.into_iter().map(|g| g.1).collect()
    }

    fn kind(&self, thread: usize) -> Kind {
        let t = &self.threads[thread];
        let files = t.files.iter().map(|f| &self.files[*f].bytes);
        let process = self.processes.iter().filter(|p| p.pid == t.pid).map(|p| &p.resident);
        let sorted = |shares: &super::Shares| {
            let mut shares = shares.to_vec();
            shares.sort_by_key(|s| s.0);
            shares
        };
        Kind { job: t.job, role: t.role, places: files.chain(process).map(sorted).collect() }
    }

    /// Puts a thread on a node for good, as if it had started there.
    pub fn fix(&mut self, thread: usize, node: usize) {
        self.threads[thread].mask = Some(self.machine.cpus_of(node).clone());
        self.threads[thread].node = node;
    }
}
