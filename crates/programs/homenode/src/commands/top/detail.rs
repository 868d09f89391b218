//! One row of the live view alone: its threads, its files, and its last moves.

use std::collections::BTreeSet;

use chrono::Local;
use engine::journal::{Kind, Line};
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
    let touched: BTreeSet<FileId> = files.iter().flatten().map(|file| file.file).collect();
    let is_about = |line: &&Line| {
        let Some(about) = &line.entry.thread else { return false };
        match (about.kind, who) {
            (Kind::File, _) => about.file.is_some_and(|file| touched.contains(&file)),
            (Kind::Thread, Who::Thread { tid, start_ns, .. }) => {
                about.tid == *tid && (about.start_ns.is_none() || about.start_ns == *start_ns)
            }
            _ => threads.iter().any(|thread| thread.pid == about.pid),
        }
    };
    let journal = seen.journals.get(place).map_or(&[][..], |lines| lines);
    let moves: Vec<(Option<String>, Line)> =
        journal.iter().rev().filter(is_about).take(MOST).map(|line| (None, line.clone())).collect();
    text += &match moves.is_empty() {
        true => "no moves in the journal\n".to_owned(),
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
