//! The effect of moves: the remote share before and after, of a moved thread, of a moved process's
//! threads, or of a moved file's readers.
//!
//! The window right after a move is not judged, because it includes reads from before the move. The
//! next [`JUDGED`] windows in which something is read are taken together, weighted by bytes.

use placement::Snapshot;
pub(crate) use placement::flow::Sums as Bytes;
use rustc_hash::{FxHashMap, FxHashSet};
use topology::{FileId, ProcessId};

use crate::Subject;
use crate::journal::{About, Event};

const JUDGED: u32 = 2;
/// Windows after which a move is judged by the data so far, even if there is none.
const PATIENCE: u32 = 10;

/// Share of the file bytes that a thread, the threads of a process, or the readers of a file read
/// from another node; `None` where nothing was read.
pub fn remote_share(subject: &Subject, snapshot: &Snapshot) -> Option<f64> {
    let wanted = FxHashSet::from_iter([subject]);
    bytes(&wanted, snapshot).remove(subject)?.remote_share()
}

/// File bytes read by each of these threads and processes, or of each of these files.
fn bytes(subjects: &FxHashSet<&Subject>, snapshot: &Snapshot) -> FxHashMap<Subject, Bytes> {
    // A thread names its process by the id, and a use its file.
    let mut processes: FxHashMap<u32, Subject> = FxHashMap::default();
    let mut files: FxHashMap<FileId, Subject> = FxHashMap::default();
    for subject in subjects.iter().copied() {
        match subject {
            Subject::Thread(_) => {}
            Subject::Process(ProcessId { pid, .. }) => _ = processes.insert(*pid, *subject),
            Subject::File(file) => _ = files.insert(file.any_generation(), *subject),
        }
    }
    let mut sums: FxHashMap<Subject, Bytes> = FxHashMap::default();
    let mut add = |subject: Subject, more: Bytes| {
        if subjects.contains(&subject) {
            sums.entry(subject).or_default().add(more);
        }
    };
    for thread in &snapshot.threads {
        add(Subject::thread(thread), Bytes::of_thread(thread));
        if let Some(process) = processes.get(&thread.pid) {
            add(*process, Bytes::of_thread(thread));
        }
        for used in thread.files.iter().filter(|_| !files.is_empty()) {
            if let Some(file) = files.get(&used.file) {
                add(*file, Bytes::of_use(thread, used));
            }
        }
    }
    sums
}

#[derive(Debug)]
struct Watched {
    about: About,
    before: Option<f64>,
    windows: u32,
    judged: u32,
    after: Bytes,
}

#[derive(Debug, Default)]
pub struct Audit {
    watched: FxHashMap<Subject, Watched>,
}

impl Audit {
    /// Something was moved. An earlier move of it that is still being watched is forgotten: its
    /// effect can no longer be seen.
    pub fn moved(&mut self, subject: Subject, about: About, before: Option<f64>) {
        let watched = Watched { about, before, windows: 0, judged: 0, after: Bytes::default() };
        self.watched.insert(subject, watched);
    }

    #[cfg(test)]
    pub(crate) fn watched(&self) -> usize {
        self.watched.len()
    }

    /// A window later. Returns the moves that have been judged.
    pub fn window(&mut self, snapshot: &Snapshot) -> Vec<(About, Event)> {
        if self.watched.is_empty() {
            return Vec::new();
        }
        let seen = bytes(&self.watched.keys().collect(), snapshot);
        for (subject, watched) in &mut self.watched {
            watched.windows += 1;
            let bytes = seen.get(subject).copied().unwrap_or_default();
            if watched.windows > 1 && watched.judged < JUDGED && bytes.read_bytes > 0 {
                watched.judged += 1;
                watched.after.add(bytes);
            }
        }
        let finished = |_: &Subject, w: &mut Watched| w.judged >= JUDGED || w.windows >= PATIENCE;
        let judged = self.watched.extract_if(finished);
        let event = |w: &Watched| Event::Audited { before: w.before, after: w.after.remote_share() };
        let mut judged: Vec<_> = judged.map(|(_, w)| (event(&w), w.about)).map(|(e, a)| (a, e)).collect();
        judged.sort_unstable_by(|a, b| (a.0.tid, &a.0.comm).cmp(&(b.0.tid, &b.0.comm)));
        judged
    }
}

#[cfg(test)]
mod tests {
    use placement::testing;

    use super::*;

    fn snapshot(local: u64, remote: u64) -> Snapshot {
        let threads = vec![testing::thread(7, 0, &[(0, local), (1, remote)], 0)];
        Snapshot { window_s: 1.0, threads, ..Snapshot::default() }
    }

    fn watched() -> Audit {
        let mut audit = Audit::default();
        let thread = testing::subject(7, 7);
        let about = About::new(&thread, 7, "fio");
        audit.moved(thread, about, Some(0.98));
        audit
    }

    #[test]
    fn the_window_after_next_and_one_more_are_judged_by_bytes() {
        let mut audit = watched();
        assert_eq!(audit.window(&snapshot(50, 50)), []); // partly before the move
        assert_eq!(audit.window(&snapshot(290, 10)), []);
        assert_eq!(audit.window(&snapshot(0, 0)), []); // reads nothing: not judged
        let judged = audit.window(&snapshot(100, 0)); // 10 of 400 bytes remote
        assert_eq!(judged[0].1, Event::Audited { before: Some(0.98), after: Some(0.025) });
        assert_eq!(audit.window(&snapshot(0, 9)), []);
    }

    #[test]
    fn a_thread_that_reads_no_more_is_forgotten() {
        let mut audit = watched();
        let judged: Vec<_> = (0..20).flat_map(|_| audit.window(&Snapshot::default())).collect();
        assert_eq!(judged.len(), 1);
        assert_eq!(judged[0].1, Event::Audited { before: Some(0.98), after: None });
    }
}
