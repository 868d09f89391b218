//! Users with too many threads.
//!
//! **Problem.** A pass pays for each thread that ran, some 3 µs with what follows from it. Any user
//! can have thousands that run for a moment, and all others would be observed less for it.
//!
//! **Approach.** When observing costs too much, the user with the most threads gets a floor: those
//! of his threads that ran and waited for less than it since the last pass are not shown. A floor
//! leaves a quarter of them, the busiest. What the others touch still counts for their service and
//! nodes, as does what ended threads touched; their CPU time counts for its node. Threads that were
//! moved are always shown.
//!
//! **Limits.** Users with fewer than [`MANY`] threads in a window get none. Who has ranges of user
//! ids is as many users.

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
        let mut threads: FxHashMap<u32, usize> = FxHashMap::default();
        tasks.iter().for_each(|task| *threads.entry(task.real_uid).or_default() += 1);
        let most = threads.into_iter().map(|(user, threads)| (threads, user)).max();
        let Some((threads, user)) = most.filter(|(threads, _)| *threads >= MANY) else { return };
        let spent = |task: &Task| task.cpu_ns.saturating_add(task.wait_ns);
        let mut times: Vec<u64> = tasks.iter().filter(|task| task.real_uid == user).map(spent).collect();
        let left = threads / LEFT;
        let (.., time, _) = times.select_nth_unstable_by(left, |a, b| b.cmp(a));
        // Of threads with equal times none is left, rather than all.
        let floor = time.saturating_add(1).max(LEAST_NS);
        self.most = Some(Most { user, threads, floor });
    }

    /// The user with the most threads gets a floor, or a higher one.
    pub fn shed(&mut self) -> Option<(Change, String)> {
        let Most { user, threads, floor } = self.most.take()?;
        let room = self.floors.len() < USERS_CROWDED as usize;
        let before = self.floors.get(&user).copied();
        if before.is_none() && !room {
            return None;
        }
        let floor = floor.max(before.unwrap_or(0));
        self.floors.insert(user, floor);
        let text = format!(
            "user {user} has {threads} threads that run: those with less than {:.2} ms of it a window count for their \
             services and nodes only",
            floor as f64 / 1e6
        );
        Some(((user, Some(floor)), text))
    }

    /// The highest floor sinks to a quarter.
    pub fn relax(&mut self) -> Option<(Change, String)> {
        let (&user, floor) = self.floors.iter_mut().max_by_key(|(_, floor)| **floor)?;
        *floor /= LEFT as u64;
        if *floor >= LEAST_NS {
            return Some(((user, Some(*floor)), format!("more of the threads of user {user} are looked at again")));
        }
        self.floors.remove(&user);
        Some(((user, None), format!("all threads of user {user} are looked at again")))
    }

    /// What a window says.
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
    use crate::records::intf::task_record;

    fn tasks(user: u32, number: usize, ns: impl Fn(usize) -> u64) -> impl Iterator<Item = Task> {
        (0..number).map(move |n| {
            let record = task_record { real_uid: user, cpu_ns: ns(n), wait_ns: ns(n), ..task_record::default() };
            Task { record, mask: 0..0 }
        })
    }

    #[test]
    fn the_user_with_the_most_threads_keeps_the_busiest_quarter() {
        let mut crowd = Crowd::default();
        let others = tasks(7, 1000, |_| 1);
        let all: Vec<Task> = others.chain(tasks(65534, 4000, |n| 1_000 * n as u64)).collect();
        crowd.window(&all);
        let ((user, floor), text) = crowd.shed().unwrap();
        assert_eq!(user, 65534);
        let left = tasks(user, 4000, |n| 1_000 * n as u64).filter(|task| task.cpu_ns + task.wait_ns >= floor.unwrap());
        assert_eq!(left.count(), 1000);
        assert!(text.starts_with("user 65534 has 4000 threads that run: those with less than 6.00 ms"), "{text}");
        // What is too much now is known after the next window.
        assert_eq!(crowd.shed(), None);
    }

    #[test]
    fn users_with_few_threads_and_windows_with_few_have_no_floor() {
        let mut crowd = Crowd::default();
        let many_users: Vec<Task> = (0..10).flat_map(|user| tasks(user, 1000, |_| 1 << 30)).collect();
        crowd.window(&many_users);
        assert_eq!(crowd.shed(), None);
    }

    #[test]
    fn threads_of_equal_times_are_all_below_the_floor() {
        let mut crowd = Crowd::default();
        crowd.window(&tasks(3, 9000, |_| 20_000).collect::<Vec<_>>());
        assert_eq!(crowd.shed().unwrap().0, (3, Some(40_001)));
        // They run longer to get in again: the floor rises. It never sinks by what is shed.
        crowd.window(&tasks(3, 9000, |_| 30_000).collect::<Vec<_>>());
        assert_eq!(crowd.shed().unwrap().0, (3, Some(60_001)));
        crowd.window(&tasks(3, 9000, |_| 1_000).collect::<Vec<_>>());
        assert_eq!(crowd.shed().unwrap().0, (3, Some(60_001)));
        assert_eq!(crowd.notes().count(), 1);
    }

    #[test]
    fn floors_sink_until_there_are_none() {
        let mut crowd = Crowd::default();
        crowd.window(&tasks(3, 2000, |_| 500_000).collect::<Vec<_>>());
        crowd.shed().unwrap();
        let changes: Vec<Change> = std::iter::from_fn(|| Some(crowd.relax()?.0)).collect();
        assert_eq!(changes, [(3, Some(250_000)), (3, Some(62_500)), (3, Some(15_625)), (3, None)]);
        assert_eq!(crowd.notes().count(), 0);
    }

    #[test]
    fn the_number_of_floors_is_bounded() {
        let mut crowd = Crowd::default();
        for user in 0..2 * USERS_CROWDED {
            crowd.window(&tasks(user, 2000, |_| 500_000).collect::<Vec<_>>());
            assert_eq!(crowd.shed().is_some(), user < USERS_CROWDED, "{user}");
        }
    }
}
