//! Which files and processes of a window are worth a look. Pure.

use placement::Thread;
use rustc_hash::{FxHashMap, FxHashSet};

use observe::FileSeen;
use topology::{FileId, ProcessId};

/// A file matters, and a process, with at least this share of the file bytes of a window. What is
/// left out can change a remote share, or a node's load of file bytes, by at most a hundredth for
/// each file; and no more than a hundred files matter at a time, whatever the machine does.
const MATTERS: f64 = 0.01;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WantedFile {
    pub id: FileId,
    pub bytes: u64,
    /// Processes that touched it, by falling number of threads that did.
    pub readers: Vec<u32>,
}

/// Files and processes to look at after a window, most bytes first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub files: Vec<WantedFile>,
    pub processes: Vec<ProcessId>,
}

impl Wanted {
    /// The relevant ones of these files and threads, and the processes whose `mapped` files were
    /// sampled: what else they have in memory says how much that means. A process that a policy
    /// must not move is left out.
    pub fn new(files: &[FileSeen], threads: &[Thread], mapped: &FxHashSet<u32>) -> Self {
        let all: u64 = files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes));
        let matters = |bytes: u64| bytes > 0 && bytes as f64 >= MATTERS * all as f64;
        let mut seen: Vec<&FileSeen> = files.iter().filter(|file| matters(file.bytes)).collect();
        seen.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.id.cmp(&b.id)));
        let pids: FxHashMap<u32, u32> = threads.iter().map(|thread| (thread.tid, thread.pid)).collect();
        let readers = |file: &FileSeen| {
            let mut counts: Vec<(u32, u32)> = Vec::new();
            for pid in file.file.readers.iter().filter_map(|tid| pids.get(tid)) {
                match counts.iter_mut().find(|count| count.0 == *pid) {
                    Some(count) => count.1 += 1,
                    None => counts.push((*pid, 1)),
                }
            }
            counts.sort_by_key(|count| std::cmp::Reverse(count.1));
            counts.into_iter().map(|count| count.0).collect()
        };
        let wanted = |file: &&FileSeen| WantedFile { id: file.id, bytes: file.bytes, readers: readers(file) };

        let mut sums: FxHashMap<ProcessId, (u64, bool)> = FxHashMap::default();
        for thread in threads {
            let id = thread.process_id();
            let sum = sums.entry(id).or_default();
            *sum = (sum.0.saturating_add(thread.file_bytes()), sum.1 || thread.pinned.is_some());
        }
        let wants = |id: &ProcessId, bytes| matters(bytes) || mapped.contains(&id.pid);
        let mut processes: Vec<(u64, ProcessId)> =
            sums.iter().filter(|(id, sum)| wants(id, sum.0) && !sum.1).map(|(id, sum)| (sum.0, *id)).collect();
        processes.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        Self { files: seen.iter().map(wanted).collect(), processes: processes.into_iter().map(|(_, id)| id).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use placement::ObservedFile;
    use topology::NodeId;

    fn file(ino: u64, bytes: u64, readers: &[u32]) -> FileSeen {
        let file = ObservedFile { readers: readers.to_vec(), ..ObservedFile::default() };
        FileSeen { id: FileId { dev: 1, ino, generation: 7 }, bytes, file }
    }

    fn thread(tid: u32, pid: u32, bytes: u64, pinned: bool) -> Thread {
        let pinned = pinned.then(|| "has a custom affinity".to_owned());
        Thread { tid, pid, pinned, read_bytes: [(NodeId(0), bytes)].into_iter().collect(), ..Thread::default() }
    }

    fn mapped(pids: &[u32]) -> FxHashSet<u32> {
        pids.iter().copied().collect()
    }

    /// The own memory of a program that makes no calls was unknown, and taken for none.
    #[test]
    fn a_process_with_sampled_mapped_files_matters_without_bytes() {
        let threads = [thread(11, 10, 5_000, false), thread(21, 20, 0, false), thread(31, 30, 0, true)];
        let files = [file(1, 5_000, &[11])];
        let wanted = Wanted::new(&files, &threads, &mapped(&[20, 30, 40]));
        assert_eq!(wanted.processes.iter().map(|process| process.pid).collect::<Vec<_>>(), [10, 20]);
    }

    #[test]
    fn what_matters_has_a_hundredth_of_the_bytes() {
        let files = [file(1, 99, &[11]), file(2, 9_801, &[11, 21, 22]), file(3, 100, &[31, 99])];
        let threads = [
            thread(11, 10, 5_000, false),
            thread(21, 20, 2_000, false),
            thread(22, 20, 2_900, true),
            thread(31, 30, 100, false),
            thread(41, 40, 99, false),
            thread(51, 50, 0, false),
        ];
        let wanted = Wanted::new(&files, &threads, &mapped(&[]));
        // 10,000 bytes in all.
        assert_eq!(wanted.files.iter().map(|f| f.id.ino).collect::<Vec<_>>(), [2, 3]);
        assert_eq!((&*wanted.files[0].readers, &*wanted.files[1].readers), (&[20, 10][..], &[30][..]));
        // Of process 20 one thread must not be moved.
        assert_eq!(wanted.processes.iter().map(|process| process.pid).collect::<Vec<_>>(), [10, 30]);
    }

    #[test]
    fn few_files_matter_on_any_machine() {
        let files: Vec<_> = (0..100_000).map(|ino| file(ino, 1 + ino % 3, &[])).collect();
        assert_eq!(Wanted::new(&files, &[], &mapped(&[])).files.len(), 0);
        let files: Vec<_> = (0..100).map(|ino| file(ino, 5, &[])).collect();
        assert_eq!(Wanted::new(&files, &[], &mapped(&[])).files.len(), 100);
        assert_eq!(Wanted::new(&[], &[], &mapped(&[])), Wanted::default());
        assert_eq!(Wanted::new(&[file(1, 0, &[])], &[], &mapped(&[])), Wanted::default());
    }
}
