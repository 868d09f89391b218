//! Known facts about files and processes, and the next ones to look at. Pure.

use std::collections::HashMap;
use std::hash::Hash;
use std::path::PathBuf;

use placement::{NodeBytes, ObservedFile};

use act::files::Data;
use topology::{FileId, ProcessId};

/// Rounds after which figures are too old to be given. At a round a second, a file of 1 GiB moves,
/// and readers end, within a minute.
const MOST_AGE: u64 = 60;
/// Subjects that are remembered: what matters in a window, ten times over, in some 300 KB.
const MOST: usize = 1024;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FileFacts {
    pub path: Option<PathBuf>,
    pub size: Option<u64>,
    /// Bytes per node and the share of the file that was looked at.
    pub bytes: Option<(NodeBytes, f64)>,
    pub data: Data,
    /// Why it could not be looked at.
    pub trouble: Option<String>,
}

impl FileFacts {
    /// Adds the facts to what the programs saw. Old counts are left out.
    pub fn fill(&self, age: u64, file: &mut ObservedFile) {
        file.path = self.path.as_ref().map(|path| linux::shown(path.as_os_str()));
        file.size = self.size;
        if let Some((bytes, looked)) = self.bytes.as_ref().filter(|_| age <= MOST_AGE) {
            file.bytes = bytes.clone();
            file.sampled = (*looked < 1.0).then_some(*looked);
        }
        file.writes = self.data.writes;
        file.movable = self.data.movable;
        file.pinned = self.data.pinned.map(str::to_owned);
    }
}

/// Resident bytes of a process per node; `None` if they could not be read.
pub(super) type Resident = Option<NodeBytes>;

/// Facts with the round in which each was found.
#[derive(Clone, Debug)]
pub(super) struct Known<K, F>(HashMap<K, (F, u64)>);

impl<K, F> Default for Known<K, F> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Copy + Eq + Hash, F> Known<K, F> {
    /// The facts and their age in rounds.
    pub fn get(&self, key: K, round: u64) -> Option<(&F, u64)> {
        self.0.get(&key).map(|(facts, found)| (facts, round.saturating_sub(*found)))
    }

    /// Records facts; beyond [`MOST`], the oldest are forgotten.
    pub fn put(&mut self, key: K, facts: F, round: u64) {
        self.0.insert(key, (facts, round));
        if self.0.len() > MOST
            && let Some(oldest) = self.0.iter().min_by_key(|(_, (_, found))| *found).map(|(key, _)| *key)
        {
            self.0.remove(&oldest);
        }
    }

    pub fn forget(&mut self, key: K) {
        self.0.remove(&key);
    }

    /// When the facts about it were found; 0 if never.
    pub fn found(&self, key: K) -> u64 {
        self.0.get(&key).map_or(0, |(_, found)| *found)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Index in the list of wanted files.
    File(usize),
    /// Index in the list of wanted processes.
    Process(usize),
}

/// The order in which to look: those never seen first, then the oldest; of equally old ones those
/// with most bytes.
pub(super) fn order(
    files: &[FileId],
    processes: &[ProcessId],
    of_files: &Known<FileId, FileFacts>,
    of_processes: &Known<ProcessId, Resident>,
) -> Vec<Look> {
    let files = files.iter().enumerate().map(|(i, id)| (of_files.found(*id), i, Look::File(i)));
    let processes = processes.iter().enumerate().map(|(i, id)| (of_processes.found(*id), i, Look::Process(i)));
    let mut all: Vec<_> = files.chain(processes).collect();
    all.sort_by_key(|(found, rank, _)| (*found, *rank));
    all.into_iter().map(|(_, _, look)| look).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use placement::Writes;
    use topology::NodeId;

    fn inode(ino: u64) -> FileId {
        FileId { ino, ..FileId::default() }
    }

    #[test]
    fn the_oldest_are_looked_at_first() {
        let (mut files, mut processes) = (Known::default(), Known::default());
        files.put(inode(1), FileFacts::default(), 5);
        files.put(inode(2), FileFacts::default(), 3);
        let [known, new] = [9, 8].map(|pid| ProcessId::new(pid, 1));
        processes.put(known, None, 4);
        let order = order(&[inode(1), inode(2), inode(3)], &[known, new], &files, &processes);
        assert_eq!(order, [Look::Process(1), Look::File(2), Look::File(1), Look::Process(0), Look::File(0)]);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut known = Known::default();
        for ino in 0..5 * MOST as u64 {
            known.put(inode(ino), FileFacts::default(), ino);
        }
        assert_eq!(known.len(), MOST);
        assert!(known.get(inode(5 * MOST as u64 - 1), 0).is_some());
        assert!(known.get(inode(0), 0).is_none());
    }

    #[test]
    fn old_counts_are_not_given_but_facts_that_last_are() {
        let bytes: NodeBytes = [(NodeId(1), 4096)].into_iter().collect();
        let data = Data { writes: Some(Writes::InPlace), movable: Some(false), pinned: Some("why") };
        let facts = FileFacts { size: Some(9), bytes: Some((bytes.clone(), 0.5)), data, ..FileFacts::default() };
        let filled = |age| {
            let mut file = ObservedFile::default();
            facts.fill(age, &mut file);
            assert_eq!((file.size, file.writes, file.pinned.as_deref()), (Some(9), Some(Writes::InPlace), Some("why")));
            (file.bytes, file.sampled)
        };
        assert_eq!(filled(60), (bytes, Some(0.5)));
        assert_eq!(filled(61), (NodeBytes::default(), None));
    }
}
