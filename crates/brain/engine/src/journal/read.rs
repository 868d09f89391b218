//! Reading the journal, also while a daemon writes it.

use std::io::ErrorKind;
use std::path::Path;

use rustc_hash::FxHashMap;

use super::{Entry, Event, JOURNAL, Kind, OLDER};
use crate::EngineError;

/// The entries, oldest first. `path` is a state directory or a journal file. Lines that are
/// damaged, or that a later build wrote, are left out.
pub fn read(path: &Path) -> Result<Vec<Entry>, EngineError> {
    let newest = if path.is_dir() { path.join(JOURNAL) } else { path.to_owned() };
    let mut entries = Vec::new();
    for (file, optional) in [(newest.with_file_name(OLDER), true), (newest, false)] {
        let bytes = match std::fs::read(&file) {
            Ok(bytes) => bytes,
            Err(error) if optional && error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(EngineError::io("read", &file)(error)),
        };
        entries.extend(bytes.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice::<Entry>(line).ok()));
    }
    Ok(entries)
}

/// An entry, and for a move what it brought.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub entry: Entry,
    /// Remote share before and after the move, where both are known.
    pub remote_share: Option<(f64, f64)>,
}

/// Joins each move with its audit; the audits themselves are left out.
pub fn history(entries: Vec<Entry>) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::with_capacity(entries.len());
    // A file has no thread id, so names are compared, too.
    let mut last_move: FxHashMap<(Kind, u32, Option<u64>, String), usize> = FxHashMap::default();
    for entry in entries {
        let key = entry.thread.as_ref().map(|t| (t.kind, t.tid, t.start_ns, t.comm.clone()));
        match (&entry.event, key) {
            (Event::Audited { before, after }, Some(key)) => {
                if let Some(line) = last_move.get(&key).and_then(|i| lines.get_mut(*i)) {
                    line.remote_share = before.zip(*after);
                }
                continue;
            }
            (Event::Moved(_) | Event::CopyEnded { .. }, Some(key)) => {
                last_move.insert(key, lines.len());
            }
            _ => {}
        }
        lines.push(Line { entry, remote_share: None });
    }
    lines
}

#[cfg(test)]
mod tests {
    use placement::{Reason, Subject};
    use topology::NodeId;
    use topology::ThreadId;

    use super::super::{About, Decided, Journal};
    use super::*;

    fn entry(time: f64, tid: u32, comm: &str, event: Event) -> Entry {
        Entry { time, thread: Some(About::new(&Subject::Thread(ThreadId::new(tid, 5)), tid / 10, comm)), event }
    }

    fn moved() -> Event {
        let (from, to, reason, why) = (NodeId(1), NodeId(0), Reason::ReadLocality, "812 MB of 830 MB".into());
        Event::Moved(Decided { from, to, reason, why, remote_share: Some(0.98), rule: None })
    }

    fn write(dir: &Path, entries: &[Entry]) {
        let mut journal = Journal::open(dir, 1 << 20);
        entries.iter().for_each(|e| journal.add(e));
        journal.flush().unwrap();
    }

    /// What `homenode move` adds beside a daemon took the file from under it.
    #[test]
    fn two_writers_lose_nothing_that_fits() {
        let tmp = tempfile::tempdir().unwrap();
        let mut daemon = Journal::open(tmp.path(), 1 << 16);
        let mut tids = 0..;
        for _ in 0..40 {
            daemon.add(&entry(1.0, tids.next().unwrap(), "fio", Event::Gone));
            daemon.flush().unwrap();
            let mut beside = Journal::beside(tmp.path());
            (0..20).for_each(|_| beside.add(&entry(1.0, tids.next().unwrap(), "fio", Event::Gone)));
            beside.flush().unwrap();
        }
        let kept: Vec<u32> = read(tmp.path()).unwrap().iter().map(|e| e.thread.as_ref().unwrap().tid).collect();
        // The last ones, without a gap: more than half of the limit.
        let first = tids.next().unwrap() - kept.len() as u32;
        assert!(kept.iter().copied().eq(first..first + kept.len() as u32), "{kept:?}");
        assert!(kept.len() > 300, "{}", kept.len());
    }

    /// They name everybody's threads, and the paths of moved files.
    #[test]
    fn nobody_else_may_read_what_was_moved() {
        use std::os::unix::fs::PermissionsExt;
        let tmp = tempfile::tempdir().unwrap();
        let dir = crate::StateDir::open(tmp.path()).unwrap();
        let files = [super::super::JOURNAL, super::super::OLDER, crate::state::STATE, "state.jsonl.new"];
        // As an earlier version made them.
        for file in files {
            std::fs::write(tmp.path().join(file), "").unwrap();
            std::fs::set_permissions(tmp.path().join(file), std::fs::Permissions::from_mode(0o644)).unwrap();
        }
        crate::state::file::StateFile::create(&dir, None, &[]).unwrap();
        let mut journal = Journal::open(tmp.path(), 1 << 20);
        journal.add(&entry(1.0, 7, "fio", Event::Gone));
        journal.flush().unwrap();
        for file in &files[..3] {
            assert_eq!(tmp.path().join(file).metadata().unwrap().permissions().mode() & 0o777, 0o600, "{file}");
        }
    }

    #[test]
    fn a_line_is_flat_and_reads_as_written() {
        let entry = entry(1.5, 41, "fio", moved());
        let text = serde_json::to_string(&entry).unwrap();
        assert_eq!(
            text,
            r#"{"time":1.5,"tid":41,"pid":4,"comm":"fio","start_ns":5,"event":"moved","from":1,"to":0,"reason":"read_locality","why":"812 MB of 830 MB","remote_share":0.98}"#
        );
        assert_eq!(serde_json::from_str::<Entry>(&text).unwrap(), entry);
        let note = Entry { time: 1.0, thread: None, event: Event::Note { text: "x".into() } };
        let text = serde_json::to_string(&note).unwrap();
        assert_eq!(serde_json::from_str::<Entry>(&text).unwrap(), note);
    }

    #[test]
    fn moves_are_joined_with_what_they_brought() {
        let audited = Event::Audited { before: Some(0.98), after: Some(0.01) };
        let lines = history(vec![
            entry(1.0, 41, "fio", moved()),
            entry(1.0, 42, "fio", moved()),
            entry(3.0, 41, "fio", audited.clone()),
            entry(4.0, 41, "fio", moved()),
        ]);
        let shares: Vec<_> = lines.iter().map(|l| l.remote_share).collect();
        assert_eq!(shares, [Some((0.98, 0.01)), None, None]);
    }

    #[test]
    fn size_is_bounded_and_the_newest_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let size = |name| std::fs::metadata(dir.path().join(name)).map_or(0, |m| m.len());
        let mut journal = Journal::open(dir.path(), 4_000);
        for window in 0..100 {
            for i in 0..7 {
                journal.add(&entry(f64::from(window * 7 + i), 1, "fio", moved()));
            }
            journal.flush().unwrap();
            assert!(size(JOURNAL) <= 2_000 && size(OLDER) <= 2_000);
        }
        let times: Vec<f64> = read(dir.path()).unwrap().iter().map(|e| e.time).collect();
        assert_eq!(*times.last().unwrap(), 699.0);
        assert!(times.len() >= 2_000 / 200 && times.windows(2).all(|t| t[1] == t[0] + 1.0), "{times:?}");
    }

    #[test]
    fn one_large_flush_keeps_whole_lines_and_the_bound() {
        let dir = tempfile::tempdir().unwrap();
        let entries: Vec<Entry> = (0..1000).map(|i| entry(f64::from(i), 1, "fio", moved())).collect();
        let mut journal = Journal::open(dir.path(), 10_000);
        entries.iter().for_each(|e| journal.add(e));
        journal.flush().unwrap();
        let read = read(dir.path()).unwrap();
        assert_eq!(read, entries[1000 - read.len()..]);
        assert!(std::fs::metadata(dir.path().join(JOURNAL)).unwrap().len() <= 5_000);
    }

    #[test]
    fn a_line_cut_short_by_a_crash_costs_only_itself() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &[entry(1.0, 41, "fio", moved())]);
        let path = dir.path().join(JOURNAL);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&whole[..], &whole[..whole.len() / 2]].concat()).unwrap();
        write(dir.path(), &[entry(2.0, 41, "fio", moved())]);
        let times: Vec<f64> = read(dir.path()).unwrap().iter().map(|e| e.time).collect();
        assert_eq!(times, [1.0, 2.0]);
    }

    #[test]
    fn a_missing_journal_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let error = read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("journal.jsonl: No such file"), "{error}");
    }
}
