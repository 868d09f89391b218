//! Users with too many threads.
//!
//! **Problem.** A pass pays for each thread that ran, some 3 µs with what follows from it. Any user
//! can have thousands that run for a moment, and all others would be observed less for it.
//!
//! **Approach.** When observing costs too much, the user with the most threads gets a floor: those
//! of his threads that ran and waited for less than it since the last pass are not shown. A floor
//! leaves a quarter of them, the busiest. What the others touch still counts for their service and
//! nodes, as does what ended threads touched; their CPU time counts for its node. Threads whose
//! affinity is homenode's are always shown.
//!
//! **Limits.** Users with fewer than [`MANY`] threads in a window get none. Who has ranges of user
//! ids is as many users; and containers without user namespaces are all user 0, so that one of them
//! can have the least busy threads of all hidden. A floor is a time a window, however long windows
//! are. Files that hidden threads touch, too, are used by others to the rules that see them. Where
//! processes are chosen by their ids, there are no floors: hidden threads would count for nobody.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::records::Task;
use super::records::intf::USERS_CROWDED;

/// Threads of one user in a window from which on they may be too many. So many cost some 3 ms.
const MANY: usize = 1024;
/// A floor leaves this part of the threads.
const LEFT: usize = 4;
/// Floors below this are no more: a thread that reads a page runs for some microseconds.
const LEAST_NS: u64 = 10_000;

#[derive(Debug, Default)]
pub(super) struct Crowd {
    /// By user, ns.
    floors: BTreeMap<u32, u64>,
    /// The user with the most threads in the last window.
    most: Option<Most>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Most {
    user: u32,
    threads: usize,
    /// Which leaves a quarter of the threads, ns.
    floor: u64,
}

/// A change of one floor; `None`: the user has none any more.
pub(super) type Change = (u32, Option<u64>);

impl Crowd {
    /// Takes in a pass.
    pub fn window(&mut self, tasks: &[Task]) {
        self.most = None;
        if tasks.len() < MANY {
            return;
        }
        let spent = |task: &Task| task.cpu_ns.saturating_add(task.wait_ns);
        let tasks = || tasks.iter().filter(|task| !task.kept() && spent(task) > 0);
        let mut threads: FxHashMap<u32, usize> = FxHashMap::default();
        tasks().for_each(|task| *threads.entry(task.real_uid).or_default() += 1);
        let most = threads.into_iter().map(|(user, threads)| (threads, user)).max();
        let Some((threads, user)) = most.filter(|(threads, _)| *threads >= MANY) else { return };
        let mut times: Vec<u64> = tasks().filter(|task| task.real_uid == user).map(spent).collect();
        let left = threads / LEFT;
        let (.., time, _) = times.select_nth_unstable_by(left, |a, b| b.cmp(a));
        // Of threads with equal times none is left, rather than all.
        let floor = time.saturating_add(1).max(LEAST_NS);
        self.most = Some(Most { user, threads, floor });
    }

    /// The floor that the user with the most threads is to get, if it is a higher one than he has.
    pub fn shed(&mut self) -> Option<(Change, String)> {
        let Most { user, threads, floor } = self.most.take()?;
        let allowed = match self.floors.get(&user) {
            Some(before) => floor > *before,
            None => self.floors.len() < USERS_CROWDED as usize,
        };
        if !allowed {
            return None;
        }
        let text = format!(
            "user {user} has {threads} threads that run: those with less than {:.2} ms of it a window count for their \
             services and nodes only",
            floor as f64 / 1e6
        );
        Some(((user, Some(floor)), text))
    }

    /// The highest floor is to sink to a quarter.
    pub fn relax(&self) -> Option<(Change, String)> {
        let (&user, floor) = self.floors.iter().max_by_key(|(_, floor)| **floor)?;
        let floor = floor / LEFT as u64;
        if floor >= LEAST_NS {
            return Some(((user, Some(floor)), format!("more of the threads of user {user} are looked at again")));
        }
        Some(((user, None), format!("all threads of user {user} are looked at again")))
    }

    pub fn changed(&mut self, (user, floor): Change) {
        match floor {
            Some(floor) => _ = self.floors.insert(user, floor),
            None => _ = self.floors.remove(&user),
        }
    }

    pub fn notes(&self) -> impl Iterator<Item = String> {
        self.floors.iter().map(|(user, floor)| {
            format!(
                "threads of user {user} that ran less than {:.2} ms count for their services and nodes only: he has too many",
                *floor as f64 / 1e6
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::intf::{TASK_KEPT, task_record};

    fn tasks(user: u32, number: usize, ns: impl Fn(usize) -> u64) -> impl Iterator<Item = Task> {
        (0..number).map(move |n| {
            let record = task_record { real_uid: user, cpu_ns: ns(n), wait_ns: ns(n), ..task_record::default() };
            Task { record, mask: 0..0 }
        })
    }

    fn shed(crowd: &mut Crowd) -> Option<(Change, String)> {
        let done = crowd.shed()?;
        crowd.changed(done.0);
        Some(done)
    }

    #[test]
    fn the_user_with_the_most_threads_keeps_the_busiest_quarter() {
        let mut crowd = Crowd::default();
        let others = tasks(7, 1000, |_| 1);
        let all: Vec<Task> = others.chain(tasks(65534, 4000, |n| 1_000 * (n as u64 + 1))).collect();
        crowd.window(&all);
        let ((user, floor), text) = shed(&mut crowd).unwrap();
        assert_eq!(user, 65534);
        let left =
            tasks(user, 4000, |n| 1_000 * (n as u64 + 1)).filter(|task| task.cpu_ns + task.wait_ns >= floor.unwrap());
        assert_eq!(left.count(), 1000);
        assert!(text.starts_with("user 65534 has 4000 threads that run: those with less than 6.00 ms"), "{text}");
        // What is too much now is known after the next window.
        assert_eq!(shed(&mut crowd), None);
    }

    /// A service of 9,000 moved threads kept homenode over its budget for ever.
    #[test]
    fn threads_that_are_always_shown_and_those_that_did_not_run_are_no_crowd() {
        let mut crowd = Crowd::default();
        let mut moved: Vec<Task> = tasks(3, 9000, |_| 20_000).collect();
        moved.iter_mut().for_each(|task| task.flags |= TASK_KEPT);
        crowd.window(&moved);
        assert_eq!(shed(&mut crowd), None);
        crowd.window(&tasks(3, 9000, |_| 0).collect::<Vec<_>>());
        assert_eq!(shed(&mut crowd), None);
    }

    #[test]
    fn users_with_few_threads_and_windows_with_few_have_no_floor() {
        let mut crowd = Crowd::default();
        let many_users: Vec<Task> = (0..10).flat_map(|user| tasks(user, 1000, |_| 1 << 30)).collect();
        crowd.window(&many_users);
        assert_eq!(shed(&mut crowd), None);
    }

    #[test]
    fn threads_of_equal_times_are_all_below_the_floor() {
        let mut crowd = Crowd::default();
        crowd.window(&tasks(3, 9000, |_| 20_000).collect::<Vec<_>>());
        assert_eq!(shed(&mut crowd).unwrap().0, (3, Some(40_001)));
        // They run longer to get in again: the floor rises. It never sinks by what is shed.
        crowd.window(&tasks(3, 9000, |_| 30_000).collect::<Vec<_>>());
        assert_eq!(shed(&mut crowd).unwrap().0, (3, Some(60_001)));
        crowd.window(&tasks(3, 9000, |_| 1_000).collect::<Vec<_>>());
        assert_eq!(shed(&mut crowd), None, "other savings come next");
        assert_eq!(crowd.notes().count(), 1);
    }

    #[test]
    fn floors_sink_until_there_are_none() {
        let mut crowd = Crowd::default();
        crowd.window(&tasks(3, 2000, |_| 500_000).collect::<Vec<_>>());
        shed(&mut crowd).unwrap();
        let changes: Vec<Change> = std::iter::from_fn(|| {
            let (change, _) = crowd.relax()?;
            crowd.changed(change);
            Some(change)
        })
        .collect();
        assert_eq!(changes, [(3, Some(250_000)), (3, Some(62_500)), (3, Some(15_625)), (3, None)]);
        assert_eq!(crowd.notes().count(), 0);
    }

    #[test]
    fn the_number_of_floors_is_bounded() {
        let mut crowd = Crowd::default();
        for user in 0..2 * USERS_CROWDED {
            crowd.window(&tasks(user, 2000, |_| 500_000).collect::<Vec<_>>());
            assert_eq!(shed(&mut crowd).is_some(), user < USERS_CROWDED, "{user}");
        }
    }
}
