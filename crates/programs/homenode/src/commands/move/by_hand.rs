//! Moves by hand stand in the journal, so that `homenode explain` knows them.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use engine::StateDir;
use engine::journal::{About, Entry, Event, Journal, Kind};
use observe::inode::Inodes;

use super::Done;

/// Adds what has moved to the journal of this state directory. The move is made: a journal that
/// cannot be written is a warning.
pub(super) fn write(state_dir: &Path, done: &[Done]) {
    let made: Vec<_> = done.iter().filter(|one| one.moved > 0 || one.threads.is_some_and(|n| n > 0)).collect();
    if made.is_empty() {
        return;
    }
    let result = StateDir::make(state_dir).and_then(|()| {
        let mut journal = Journal::open(state_dir, engine::Settings::default().journal_bytes);
        made.iter().for_each(|one| journal.add(&entry(one)));
        journal.flush()
    });
    if let Err(error) = result {
        tracing::warn!(%error, "`homenode explain` will not know of this move");
    }
}

fn entry(one: &Done) -> Entry {
    let event = Event::MovedByHand {
        to: one.to,
        bytes: one.bytes,
        done: one.moved,
        threads: one.threads,
        seconds: one.seconds,
        user: rustix::process::getuid().as_raw(),
        why: one.why.clone(),
    };
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    Entry { time, thread: about(one), event }
}

fn about(one: &Done) -> Option<About> {
    let of = |id: u32, comm: String, kind| About { tid: id, pid: id, comm, start_ns: None, kind, file: None };
    if let Some(path) = one.subject.1.as_str() {
        let file = Inodes::new().of(Path::new(path)).ok();
        return Some(About { file, ..of(0, path.to_owned(), Kind::File) });
    }
    let pid = u32::try_from(one.subject.1.as_u64()?).ok()?;
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(of(pid, comm.trim_end().to_owned(), Kind::Process))
}
