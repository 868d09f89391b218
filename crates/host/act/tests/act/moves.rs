//! Moves of processes and threads by hand. The tests of the host's plane make them, too.

use std::path::Path;

use engine::{Plane, Undo};
use linux::threads::Threads;
use placement::{Move, Reason, Subject};
use topology::{NodeId, ThreadId};

/// A move to one node from the other.
pub fn a_move(subject: Subject, pid: u32, to: u32, reason: Reason) -> Move {
    Move { subject, pid, from: NodeId(1 - to), to: NodeId(to), reason, why: "".into(), ranges: Vec::new() }
}

pub fn move_of(tid: u32, to: u32) -> Move {
    let start = Threads::new(Path::new("/proc")).stat(tid).unwrap().map_or(ThreadId::new(tid, None), |s| s.id);
    a_move(Subject::Thread(start), tid, to, Reason::ReadLocality)
}

/// Prepares and makes a move.
pub fn made(plane: &mut impl Plane, mv: &Move) -> Vec<Undo> {
    let undo = plane.prepare(mv).unwrap();
    plane.start(mv, &undo, &mut |_| Ok(())).unwrap();
    undo
}
