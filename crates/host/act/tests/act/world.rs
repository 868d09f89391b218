//! Moves of processes and threads, and the actor that makes them.

use std::path::Path;

use act::Actor;
use act::watched::Unwatched;
use engine::{Plane, Undo};
use linux::threads::Threads;
use placement::{Move, Reason, Subject};
use testing::world::topology;
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
pub fn made(plane: &mut Actor<Unwatched>, mv: &Move) -> Vec<Undo> {
    let undo = plane.prepare(mv).unwrap();
    plane.start(mv, &undo, &mut |_| Ok(())).unwrap();
    undo
}

pub fn process_to(pid: u32, to: u32) -> Move {
    a_move(Subject::process(pid, None), pid, to, Reason::CacheAffinity)
}

pub fn actor() -> Actor<Unwatched> {
    Actor::new(Default::default(), topology(), None).unwrap()
}
