//! Moves by hand stand in the journal, so that `homenode explain` knows them.

use std::num::NonZeroU64;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use engine::StateDir;
use engine::journal::{About, Entry, Event, Journal, Kind};
use observe::inode::Inodes;

use super::{Done, Process};

/// Adds what has moved to the journal of this state directory. The move is made: a journal that
/// cannot be written is a warning.
pub(super) fn write(state_dir: &Path, done: &[Done]) {
    let made: Vec<_> = done
        .iter()
        .filter(|one| one.moved > 0 || one.process.as_ref().is_some_and(|process| process.bound > 0))
        .collect();
    if made.is_empty() {
        return;
    }
    let result = StateDir::make(state_dir).and_then(|()| {
        let mut journal = Journal::beside(state_dir);
        made.iter().for_each(|one| journal.add(&entry(one)));
        journal.flush()
    });
    if let Err(error) = result {
        // The directory is root's; others may move files of their own.
        match rustix::process::geteuid().is_root() {
            true => tracing::warn!(%error, "`homenode explain` will not know of this move"),
            false => tracing::debug!(%error, "`homenode explain` will not know of this move"),
        }
    }
}

fn entry(one: &Done) -> Entry {
    let event = Event::MovedByHand {
        to: one.to,
        bytes: one.bytes,
        done: one.moved,
        threads: one.process.as_ref().map(|process| process.bound),
        seconds: one.seconds,
        user: rustix::process::getuid().as_raw(),
        why: one.why.clone(),
    };
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    Entry { time, thread: about(one), event }
}

fn about(one: &Done) -> Option<About> {
    let none = || About { tid: 0, pid: 0, comm: String::new(), start_ns: None, kind: Kind::File, file: None };
    if let Some(Process { id, comm, .. }) = &one.process {
        let start_ns = id.start_ns.map(NonZeroU64::get);
        let (tid, pid, comm) = (id.pid, id.pid, comm.clone());
        return Some(About { tid, pid, comm, start_ns, kind: Kind::Process, ..none() });
    }
    let path = one.subject.1.as_str()?;
    Some(About { comm: path.to_owned(), file: Inodes::new().of(Path::new(path)).ok(), ..none() })
}
