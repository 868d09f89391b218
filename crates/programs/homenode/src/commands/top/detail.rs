//! One row of the live view alone: its threads, its files, and its last moves.

use std::collections::{BTreeMap, BTreeSet};

use chrono::Local;
use engine::journal::{About, Kind, Line};
use placement::Thread;
use session::services::Names;
use session::window::{self, ThreadRow, Window};
use topology::FileId;

use super::model::{self, THREAD_COLUMNS, Who};
use super::{Seen, table};
use crate::commands::explain;
use crate::output::units::count;
use crate::output::{escape, words};

/// Threads, files and moves of what is opened, at most, each.
const MOST: usize = 20;

/// The lines of what is opened. `shown` is the window with its row, sorted; `place` which of the
/// host (0) and the volumes (from 1) it is of.
pub fn lines(who: &Who, shown: &Window, seen: &Seen, place: usize) -> Vec<String> {
    let mut names = Names::default();
    let mut is_of = |thread: &Thread| match who {
        Who::Thread { tid, start_ns, .. } => thread.tid == *tid && thread.start_ns == *start_ns,
        Who::Process { pid, .. } => thread.pid == *pid && thread.tid != 0,
        Who::Service(name) => thread.group.as_ref().map_or("".into(), |group| names.of(group)) == name.as_str().into(),
    };
    // Of a volume, only its server has the snapshot.
    let snapshot = (place == 0).then_some(&seen.snapshot);
    let all = snapshot.into_iter().flat_map(|snapshot| snapshot.threads.iter().chain(&snapshot.ended));
    let of: Vec<&Thread> = all.filter(|thread| is_of(thread)).collect();
    let tids: BTreeSet<u32> = of.iter().map(|thread| thread.tid).collect();
    let is_row = |row: &&ThreadRow| match who {
        Who::Thread { tid, start_ns, .. } => row.tid == *tid && row.start_ns == *start_ns,
        Who::Process { pid, .. } => row.pid == *pid,
        Who::Service(_) => tids.contains(&row.tid),
    };
    let threads: Vec<ThreadRow> = shown.threads.iter().filter(is_row).cloned().collect();
    let files = snapshot.map(|snapshot| window::file_rows(snapshot, of.iter().copied()));

    let head = match who {
        Who::Thread { tid, comm, .. } => format!("thread {}", words::thread(comm, *tid)),
        Who::Process { pid, comm } => format!("process {}", words::process(comm, *pid)),
        Who::Service(name) if name.is_empty() => "threads of no known service".to_owned(),
        Who::Service(name) => format!("service {name}"),
    };
    let mut text = escape(&head) + "\n\n";
    text += &match threads.is_empty() {
        true => "no thread of it touched file data in this window\n".to_owned(),
        false => table(&THREAD_COLUMNS, first(&threads)) + &more(threads.len(), "thread"),
    };
    text.push('\n');
    text += &match &files {
        None => "only the server of the volume knows which thread read which file\n".to_owned(),
        Some(files) if files.is_empty() => "no files\n".to_owned(),
        Some(files) => model::files(first(files), shown.window_s) + &more(files.len(), "file"),
    };
    text.push('\n');
    // Of a volume, the files of the whole window.
    let touched: BTreeSet<FileId> = files.as_deref().unwrap_or(&shown.files).iter().map(|file| file.file).collect();
    // Each process, if idle too, and when its first thread started, where that is known.
    let mut begun: BTreeMap<u32, Option<u64>> = BTreeMap::new();
    if let Who::Process { pid, .. } = who {
        begun.insert(*pid, None);
    }
    let known = of.iter().map(|thread| (thread.pid, thread.tid, thread.start_ns));
    for (pid, tid, start_ns) in known.chain(threads.iter().map(|row| (row.pid, row.tid, row.start_ns))) {
        let first = begun.entry(pid).or_default();
        *first = first.or(start_ns.filter(|_| tid == pid));
    }
    // What started before was of an earlier process with this id.
    let is_of_process = |about: &About| {
        begun.get(&about.pid).is_some_and(|begun| begun.zip(about.start_ns).is_none_or(|(begun, start)| start >= begun))
    };
    let is_about = |line: &&Line| {
        let Some(about) = &line.entry.thread else { return false };
        match (about.kind, who) {
            (Kind::File, _) => about.file.is_some_and(|file| touched.contains(&file)),
            (Kind::Thread, Who::Thread { tid, start_ns, .. }) => {
                about.tid == *tid && (about.start_ns.is_none() || about.start_ns == *start_ns)
            }
            _ => is_of_process(about),
        }
    };
    let journal = seen.journals.get(place).map_or(&[][..], |lines| lines);
    let moves: Vec<(Option<String>, Line)> =
        journal.iter().rev().filter(is_about).take(MOST).map(|line| (None, line.clone())).collect();
    text += &match moves.is_empty() {
        true if shown.ended_unix_s.is_some() => "its moves are in the journal: homenode explain\n".to_owned(),
        true => "no moves of what it touched in this window\n".to_owned(),
        false => explain::text(&moves, matches!(who, Who::Thread { .. }), Local::now()),
    };
    text.lines().map(str::to_owned).collect()
}

fn first<R>(rows: &[R]) -> &[R] {
    rows.get(..MOST).unwrap_or(rows)
}

/// What is not shown of so many.
fn more(rows: usize, what: &str) -> String {
    rows.checked_sub(MOST + 1).map_or_else(String::new, |left| format!("and {} more\n", count(left + 1, what)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use engine::journal;
    use placement::testing;
    use session::window::FileRow;
    use topology::NodeBytes;

    use super::*;

    const NO_MOVES: &str = "no moves of what it touched in this window";

    fn shown(who: &Who, lines: &[&str], threads: Vec<Thread>, files: Vec<FileRow>, place: usize) -> String {
        let entries = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let snapshot = testing::snapshot(vec![testing::node(0, 1), testing::node(1, 1)], threads);
        let journal: Arc<[Line]> = journal::history(entries).into();
        let mut journals = vec![Arc::from([]); place];
        journals.push(journal);
        let window = Window { files, ..Window::default() };
        let seen = Seen { window: window.clone(), snapshot, journals };
        super::lines(who, &window, &seen, place).join("\n")
    }

    /// An idle one had no moves, and one with the id of an earlier process had the moves of that.
    #[test]
    fn a_process_has_its_own_moves_even_when_idle() {
        let line = r#"{"time":1.0,"tid":101,"pid":100,"comm":"db","start_ns":7,"event":"moved","from":0,"to":1,"reason":"read_locality","why":"x"}"#;
        let who = Who::Process { pid: 100, comm: "db".to_owned() };
        let first =
            |start_ns| Thread { pid: 100, start_ns: Some(start_ns), ..testing::thread(100, 1, &[(0, 0), (1, 0)], 0) };
        for (threads, has) in [(vec![], true), (vec![first(7)], true), (vec![first(8)], false)] {
            let text = shown(&who, &[line], threads, Vec::new(), 0);
            assert_eq!(!text.contains(NO_MOVES), has, "{text}");
        }
        let other = Who::Process { pid: 9, comm: "db".to_owned() };
        assert!(shown(&other, &[line], Vec::new(), Vec::new(), 0).contains(NO_MOVES));
    }

    #[test]
    fn moves_of_a_volumes_files_are_listed() {
        let line = r#"{"time":1.0,"tid":0,"pid":0,"comm":"/x","kind":"file","file":"8:1:9","event":"moved","from":0,"to":1,"reason":"read_locality","why":"x"}"#;
        let file = |file: &str| FileRow {
            file: serde_json::from_value(file.into()).unwrap(),
            path: None,
            bytes: NodeBytes::default(),
            read: NodeBytes::default(),
            threads: 1,
            rates: window::Rates::default(),
        };
        let who = Who::Process { pid: 100, comm: "db".to_owned() };
        assert!(!shown(&who, &[line], Vec::new(), vec![file("8:1:9")], 1).contains(NO_MOVES));
        assert!(shown(&who, &[line], Vec::new(), vec![file("8:1:10")], 1).contains(NO_MOVES));
    }
}
