//! Work in parallel, in results as if it was not.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Does all of some work, so many tasks at a time; the results are in the order of the tasks.
pub fn each<T: Sync, R: Send + Sync>(tasks: &[T], workers: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let results: Vec<OnceLock<R>> = tasks.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let worker = || {
        while let Some((task, result)) = {
            let i = next.fetch_add(1, Ordering::Relaxed);
            tasks.get(i).zip(results.get(i))
        } {
            // Each is taken by one thread only, so it is never set before.
            let _ = result.set(work(task));
        }
    };
    std::thread::scope(|scope| {
        (1..workers.min(tasks.len())).for_each(|_| drop(scope.spawn(worker)));
        worker();
    });
    results.into_iter().filter_map(OnceLock::into_inner).collect()
}

/// As many as there are CPUs.
pub fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
