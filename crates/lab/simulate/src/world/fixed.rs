//! Threads fixed on nodes: what the search for the best placement compares.

use super::World;

/// Properties that distinguish threads: job, role, nodes of their files and of their process's
/// memory.
#[derive(PartialEq)]
struct Kind {
    job: usize,
    role: usize,
    places: Vec<Vec<(usize, f64)>>,
}

impl World {
    /// Threads in groups of those that can change places without changing anything else; none of
    /// those with an affinity of their own.
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

    /// Puts a thread on a node for good.
    pub fn fix(&mut self, thread: usize, node: usize) {
        self.threads[thread].mask = Some(self.machine.cpus_of(node).clone());
        self.threads[thread].node = node;
        self.changed = true;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::ScenarioFile;
    use crate::run::{drive, start};

    const FOUR: &str = "duration_s = 5\n[machine]\nnodes = 2\ncpus = 8\nmemory = \"16 GiB\"\n\
                        [[workload]]\nkind = \"fio\"\nthreads = 4\nfile_size = \"1 GiB\"\nblock = \"1 MiB\"\n";

    #[test]
    fn threads_are_alike_where_their_files_are_in_the_same_places() {
        let groups = |data: &str| {
            let file = ScenarioFile::parse(&format!("{FOUR}{data}"), Path::new("x.toml")).unwrap();
            let mut sizes: Vec<usize> = start(&file.scenario, 1).alike().iter().map(Vec::len).collect();
            sizes.sort_unstable();
            sizes
        };
        assert_eq!(groups("data = 0"), [4]);
        assert_eq!(groups("data = \"threads\""), [2, 2]); // the kernel starts two on either node, and so their files
        assert_eq!(groups("data = 0\npin = 1"), [0usize; 0]);
    }

    #[test]
    fn threads_on_one_node_with_files_on_two_are_not_one_class() {
        let text = format!("{FOUR}data = \"threads\"");
        let file = ScenarioFile::parse(&text, Path::new("x.toml")).unwrap();
        let mut world = start(&file.scenario, 1);
        (0..4).for_each(|thread| world.fix(thread, 0));
        let outcome = drive(&file.scenario, world, None, 1, &mut |_| {}).unwrap();
        let share = outcome.remote_share.unwrap();
        assert!(share > 0.3 && share < 0.5, "{share}"); // two of four read from the other node, and are slower
    }

    #[test]
    fn what_a_window_shows_of_each_thread_adds_up_to_what_the_nodes_show() {
        // Files that keep moving, threads that are moved: classes change all the time.
        let text = FOUR.replace("threads = 4", "threads = 24").replace("1 MiB", "16 KiB");
        let text = format!("{text}fs = \"homenode\"\nread = 0.5\ndata = 0\nshared = true\n");
        let file = ScenarioFile::parse(&text, Path::new("x.toml")).unwrap();
        let mut world = start(&file.scenario, 1);
        for window in 0..6 {
            world.run(0.35);
            (0..3).for_each(|i| world.fix(3 * window + i, i % 2));
            world.run(0.65);
            let seen = world.observe();
            for node in &seen.nodes {
                let read: u64 = seen.threads.iter().map(|t| t.read_bytes.get(node.id)).sum();
                let written: u64 = seen.threads.iter().map(|t| t.write_bytes.get(node.id)).sum();
                let close = |a: u64, b: u64| (a as f64 - b as f64).abs() <= 1e-6 * b as f64 + 100.0;
                assert!(close(read, node.read_bytes) && close(written, node.write_bytes), "{node:?} {read} {written}");
            }
        }
    }
}
