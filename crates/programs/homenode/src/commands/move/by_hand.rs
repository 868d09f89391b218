//! Moves by hand stand in the journal, so that `homenode explain` knows them.

use std::path::Path;
use std::time::SystemTime;

use engine::journal::{About, Entry, Event, Journal, unix_s};
use engine::{StateDir, Subject};
use observe::inode::Inodes;

use super::Done;

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
    Entry { time: unix_s(SystemTime::now()), thread: about(one), event }
}

fn about(one: &Done) -> Option<About> {
    if let Some(process) = &one.process {
        return Some(About::new(&Subject::Process(process.id), process.id.pid, &process.comm));
    }
    let path = one.subject.1.as_str()?;
    // A file that is gone has its path alone.
    let file = Inodes::new().of(Path::new(path)).ok();
    Some(About { file, ..About::new(&Subject::File(file.unwrap_or_default()), 0, path) })
}
