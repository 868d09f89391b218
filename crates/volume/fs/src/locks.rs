//! Advisory locks on files: `fcntl` record locks and `flock`, for the users of one mount.
//!
//! **Problem.** Programs ask each other for ranges of files. The rules are old: a new lock of the
//! same owner replaces what it overlaps, unlocking may split a lock in two, and waiting in a circle
//! is an error.
//!
//! **Approach.** For each file a list of ranges, under one mutex for all files: locks are asked for
//! rarely compared with data. An owner that waits says for whom, so a circle is found before it
//! closes.
//!
//! **Limits.** Locks end with the process, as they should. `flock` locks have no deadlock check, as
//! in Linux.

use std::sync::{Condvar, Mutex, PoisonError};

use rustc_hash::FxHashMap;

use crate::error::{Error, Result};
use crate::format::Ino;
use crate::volume::lock;

/// Which of the two kinds of locks. They do not see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockSpace {
    /// Ranges, owned by processes.
    Record,
    /// The whole file, owned by open files.
    Flock,
}

/// Kind of lock: which others it excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// From exclusive locks.
    Shared,
    /// From all locks.
    Exclusive,
}

/// A lock on the bytes `start..=last` of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLock {
    /// First byte.
    pub start: u64,
    /// Last byte; `u64::MAX` means "to the end, wherever that is".
    pub last: u64,
    /// Its mode.
    pub mode: LockMode,
    /// The owner, as the caller numbers them.
    pub owner: u64,
    /// The process, for telling others.
    pub pid: u32,
}

impl FileLock {
    fn overlaps(&self, other: &Self) -> bool {
        self.start <= other.last && other.start <= self.last
    }

    fn conflicts(&self, other: &Self) -> bool {
        let exclusive = self.mode == LockMode::Exclusive || other.mode == LockMode::Exclusive;
        self.owner != other.owner && exclusive && self.overlaps(other)
    }
}

type File = (Ino, LockSpace);

#[derive(Debug, Default)]
struct Table {
    /// For each file its locks; those of one owner do not overlap.
    held: FxHashMap<File, Vec<FileLock>>,
    /// Owners that wait for record locks, each with what it wants.
    waiting: Vec<(File, FileLock)>,
}

/// The locks of a mounted volume.
#[derive(Debug, Default)]
pub struct Locks {
    table: Mutex<Table>,
    changed: Condvar,
}

impl Locks {
    /// A lock that keeps `wanted` from being taken, if there is one.
    pub fn test(&self, ino: Ino, space: LockSpace, wanted: &FileLock) -> Option<FileLock> {
        lock(&self.table).conflict((ino, space), wanted)
    }

    /// Takes a lock, or changes one, or fails with EAGAIN and changes nothing. (A `flock` that
    /// cannot be changed is lost, as in Linux.)
    pub fn lock(&self, ino: Ino, space: LockSpace, wanted: FileLock) -> Result<()> {
        check(&wanted)?;
        let mut table = lock(&self.table);
        let done = self.try_lock(&mut table, (ino, space), wanted);
        if done { Ok(()) } else { Err(Error::WouldBlock) }
    }

    /// Waits for a lock. `give_up` is asked before each wait; [`Locks::wake`] makes it asked again.
    /// Fails with EDEADLK where the wait would never end.
    pub fn wait(&self, ino: Ino, space: LockSpace, wanted: FileLock, give_up: impl Fn() -> bool) -> Result<()> {
        check(&wanted)?;
        let file = (ino, space);
        let mut table = lock(&self.table);
        while !self.try_lock(&mut table, file, wanted) {
            if give_up() {
                return Err(Error::Interrupted);
            }
            if space == LockSpace::Record && table.closes_a_circle(file, &wanted) {
                return Err(Error::Deadlock);
            }
            table.waiting.push((file, wanted));
            table = self.changed.wait(table).unwrap_or_else(PoisonError::into_inner);
            if let Some(at) = table.waiting.iter().position(|w| *w == (file, wanted)) {
                table.waiting.swap_remove(at);
            }
        }
        Ok(())
    }

    /// Ends the locks of an owner on a range.
    pub fn unlock(&self, ino: Ino, space: LockSpace, owner: u64, start: u64, last: u64) {
        let mut table = lock(&self.table);
        table.clear((ino, space), owner, start, last);
        self.changed.notify_all();
    }

    /// Makes those that wait ask again whether to give up.
    pub fn wake(&self) {
        let _table = lock(&self.table);
        self.changed.notify_all();
    }

    fn try_lock(&self, table: &mut Table, file: File, wanted: FileLock) -> bool {
        let free = table.conflict(file, &wanted).is_none();
        if free || file.1 == LockSpace::Flock {
            // A weaker mode, or a lost lock, may let others in.
            if table.clear(file, wanted.owner, wanted.start, wanted.last) {
                self.changed.notify_all();
            }
        }
        if free {
            table.add(file, wanted);
        }
        free
    }
}

fn check(wanted: &FileLock) -> Result<()> {
    if wanted.start <= wanted.last { Ok(()) } else { Err(Error::Invalid("the range ends before it begins")) }
}

impl Table {
    fn conflict(&self, file: File, wanted: &FileLock) -> Option<FileLock> {
        self.held.get(&file)?.iter().find(|held| held.conflicts(wanted)).copied()
    }

    /// Takes a range away from an owner: what lies around it stays. False: it had nothing there.
    fn clear(&mut self, file: File, owner: u64, start: u64, last: u64) -> bool {
        let Some(held) = self.held.get_mut(&file) else { return false };
        let gap = FileLock { start, last, mode: LockMode::Exclusive, owner, pid: 0 };
        let (hit, mut rest): (Vec<_>, Vec<_>) = held.drain(..).partition(|l| l.owner == owner && l.overlaps(&gap));
        let had_some = !hit.is_empty();
        for old in hit {
            rest.extend(start.checked_sub(1).filter(|end| *end >= old.start).map(|last| FileLock { last, ..old }));
            rest.extend(last.checked_add(1).filter(|from| *from <= old.last).map(|start| FileLock { start, ..old }));
        }
        if rest.is_empty() {
            self.held.remove(&file);
        } else {
            *held = rest;
        }
        had_some
    }

    /// Adds a lock to a range that its owner has none on, and joins it with its neighbours.
    fn add(&mut self, file: File, mut new: FileLock) {
        let held = self.held.entry(file).or_default();
        let touches = |l: &FileLock| {
            let adjacent = l.last.checked_add(1) == Some(new.start) || new.last.checked_add(1) == Some(l.start);
            l.owner == new.owner && l.mode == new.mode && adjacent
        };
        let (near, mut rest): (Vec<_>, Vec<_>) = held.drain(..).partition(touches);
        for other in near {
            new = FileLock { start: new.start.min(other.start), last: new.last.max(other.last), ..new };
        }
        rest.push(new);
        *held = rest;
    }

    /// Whether somebody that `wanted` would wait for waits, directly or not, for its owner.
    fn closes_a_circle(&self, file: File, wanted: &FileLock) -> bool {
        let blockers = |file: &File, wanted: &FileLock| -> Vec<u64> {
            let held = self.held.get(file).map_or(&[][..], Vec::as_slice);
            held.iter().filter(|held| held.conflicts(wanted)).map(|held| held.owner).collect()
        };
        let (mut todo, mut seen) = (blockers(&file, wanted), Vec::new());
        while let Some(owner) = todo.pop() {
            if owner == wanted.owner {
                return true;
            }
            if !seen.contains(&owner) {
                seen.push(owner);
                let waits = self.waiting.iter().filter(|(f, w)| w.owner == owner && f.1 == LockSpace::Record);
                todo.extend(waits.flat_map(|(file, wanted)| blockers(file, wanted)));
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::ChaCha8Rng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    const BYTES: usize = 24;
    const OWNERS: usize = 3;

    fn wanted(owner: usize, start: usize, last: usize, mode: LockMode) -> FileLock {
        FileLock { start: start as u64, last: last as u64, mode, owner: owner as u64, pid: 7 }
    }

    /// The reference: what each owner has on each byte.
    #[test]
    fn random_locks_do_what_a_table_of_bytes_does() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let (locks, mut bytes) = (Locks::default(), [[None; BYTES]; OWNERS]);
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let owner = rng.random_range(0..OWNERS);
            let start = rng.random_range(0..BYTES);
            let last = rng.random_range(start..BYTES);
            let mode = if rng.random() { LockMode::Shared } else { LockMode::Exclusive };
            if rng.random_range(0..3) == 0 {
                locks.unlock(Ino::ROOT, LockSpace::Record, owner as u64, start as u64, last as u64);
                bytes[owner][start..=last].fill(None);
            } else {
                let blocked = (0..OWNERS).filter(|other| *other != owner).any(|other| {
                    bytes[other][start..=last]
                        .iter()
                        .flatten()
                        .any(|m| *m == LockMode::Exclusive || mode == LockMode::Exclusive)
                });
                let wanted = wanted(owner, start, last, mode);
                assert_eq!(locks.test(Ino::ROOT, LockSpace::Record, &wanted).is_some(), blocked);
                assert_eq!(locks.lock(Ino::ROOT, LockSpace::Record, wanted).is_err(), blocked);
                if blocked {
                    refused += 1;
                } else {
                    taken += 1;
                    bytes[owner][start..=last].fill(Some(mode));
                }
            }
            let table = lock(&locks.table);
            let held = table.held.get(&(Ino::ROOT, LockSpace::Record)).cloned().unwrap_or_default();
            let mut runs = 0;
            for (owner, own) in bytes.iter().enumerate() {
                for (at, mode) in own.iter().enumerate() {
                    let found: Vec<_> = held
                        .iter()
                        .filter(|l| l.owner == owner as u64 && (l.start..=l.last).contains(&(at as u64)))
                        .collect();
                    assert_eq!(
                        found.iter().map(|l| l.mode).collect::<Vec<_>>(),
                        mode.iter().copied().collect::<Vec<_>>()
                    );
                    runs += usize::from(mode.is_some() && (at == 0 || own[at - 1] != *mode));
                }
            }
            assert_eq!(held.len(), runs, "neighbours are joined");
        }
        assert!(taken > 1000 && refused > 1000, "{taken} {refused}");
    }

    #[test]
    fn flock_and_record_locks_do_not_meet_and_a_lost_conversion_drops_the_old_lock() {
        let locks = Locks::default();
        let whole = |owner, mode| FileLock { start: 0, last: u64::MAX, mode, owner, pid: 1 };
        locks.lock(Ino::ROOT, LockSpace::Record, whole(1, LockMode::Exclusive)).unwrap();
        locks.lock(Ino::ROOT, LockSpace::Flock, whole(2, LockMode::Shared)).unwrap();
        locks.lock(Ino::ROOT, LockSpace::Flock, whole(3, LockMode::Shared)).unwrap();
        let error = locks.lock(Ino::ROOT, LockSpace::Flock, whole(2, LockMode::Exclusive)).unwrap_err();
        assert_eq!(error.errno(), libc::EAGAIN);
        locks.lock(Ino::ROOT, LockSpace::Flock, whole(3, LockMode::Exclusive)).unwrap();
        let backwards = FileLock { start: 5, last: 4, ..whole(1, LockMode::Shared) };
        assert!(locks.lock(Ino::ROOT, LockSpace::Record, backwards).is_err());
    }

    /// Each look at a lock that was not free woke all others, which looked, and woke all others.
    #[test]
    fn those_that_wait_do_not_wake_each_other() {
        let locks = Locks::default();
        let whole = |owner| FileLock { start: 0, last: u64::MAX, mode: LockMode::Exclusive, owner, pid: 1 };
        locks.lock(Ino::ROOT, LockSpace::Flock, whole(1)).unwrap();
        let (looks, done) = (std::sync::atomic::AtomicU32::new(0), std::sync::atomic::AtomicBool::new(false));
        std::thread::scope(|scope| {
            for owner in [2, 3] {
                let give_up = || {
                    looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    done.load(std::sync::atomic::Ordering::Relaxed)
                };
                let locks = &locks;
                scope.spawn(move || locks.wait(Ino::ROOT, LockSpace::Flock, whole(owner), give_up).unwrap_err());
            }
            while lock(&locks.table).waiting.len() < 2 {
                std::thread::yield_now();
            }
            // What would go on for ever needs some time to show.
            std::thread::sleep(std::time::Duration::from_millis(20));
            let looked = looks.load(std::sync::atomic::Ordering::Relaxed);
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            locks.wake();
            assert!(looked <= 2, "{looked}");
        });
    }

    /// Owner 1 has byte 0 and waits for byte 1, owner 2 the other way round: the second one to wait
    /// is told.
    #[test]
    fn waiting_ends_with_the_lock_or_with_an_error() {
        let locks = Locks::default();
        let want = |owner, at| wanted(owner, at, at, LockMode::Exclusive);
        locks.lock(Ino::ROOT, LockSpace::Record, want(1, 0)).unwrap();
        locks.lock(Ino::ROOT, LockSpace::Record, want(2, 1)).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| locks.wait(Ino::ROOT, LockSpace::Record, want(1, 1), || false));
            while lock(&locks.table).waiting.is_empty() {
                std::thread::yield_now();
            }
            let error = locks.wait(Ino::ROOT, LockSpace::Record, want(2, 0), || false).unwrap_err();
            assert_eq!(error.errno(), libc::EDEADLK);
            let error = locks.wait(Ino::ROOT, LockSpace::Record, want(3, 0), || true).unwrap_err();
            assert_eq!(error.errno(), libc::EINTR);
            locks.unlock(Ino::ROOT, LockSpace::Record, 2, 0, u64::MAX);
            waiter.join().unwrap().unwrap();
        });
        assert_eq!(locks.test(Ino::ROOT, LockSpace::Record, &want(2, 1)).map(|l| l.owner), Some(1));
        assert!(lock(&locks.table).waiting.is_empty());
    }
}
