//! Homenode's moves: threads by affinity, processes with their memory, files.

use std::collections::BTreeMap;
use std::fmt::Display;

use engine::{JobId, JobState, Masks, PlaneError, Progress, Started, Subject, Undo, Undone};
use placement::Move;
use topology::{CpuSet, FileId, NodeId};

use super::{Copied, Copy, Moving, World, on, total};

/// Why a file does not move.
pub(super) const IMMOVABLE: &str = "its file system cannot move data between nodes";

impl World {
    pub fn prepare(&self, mv: &Move) -> Result<Vec<Undo>, PlaneError> {
        let (from, to) = (mv.from, mv.to);
        match &mv.subject {
            Subject::Thread { tid, .. } => {
                let to = self.with_cpus(to)?;
                let thread = self.alive(*tid)?;
                self.untouched(thread)?;
                let subject = Subject::Thread { tid: *tid, start: self.threads[thread].start_ns };
                Ok(vec![self.undo_of(thread, subject, mv.pid, to)])
            }
            Subject::Process { pid, .. } => {
                let to = self.with_cpus(to)?;
                let process = self.process(*pid)?;
                let mut threads = (0..self.threads.len()).filter(|t| self.threads[*t].pid == *pid);
                let first =
                    threads.find(|t| self.threads[*t].ended_s.is_none()).ok_or_else(|| gone("process", *pid))?;
                threads.try_for_each(|t| self.untouched(t))?;
                self.untouched(first)?;
                let home = self.machine.nearest_home(to);
                self.roomy(home, total(&self.processes[process].resident), format_args!("process {pid}"))?;
                let subject = Subject::Process { pid: *pid, start: self.processes[process].start_ns };
                Ok(vec![self.undo_of(first, subject, *pid, to)])
            }
            Subject::File { file, .. } => {
                let (from, to) = (self.index(from)?, self.index(to)?);
                let f = self.file_of(file)?;
                let job = &self.jobs[self.files[f].job];
                if !job.fs.moves_files() {
                    return Err(PlaneError::refused("not_supported", IMMOVABLE));
                }
                if self.copies.iter().any(|c| c.what == Copied::File(f)) {
                    return Err(PlaneError::refused("busy", format!("file {file} is being moved")));
                }
                self.roomy(to, on(&self.files[f].bytes, from), format_args!("file {file}"))?;
                Ok(Vec::new())
            }
        }
    }

    pub fn start(&mut self, mv: &Move) -> Result<Started, PlaneError> {
        self.start_at_most(mv, f64::INFINITY)
    }

    /// Moves back what an earlier move of a file has moved, as far as it is there still.
    pub fn take_back(&mut self, mv: &Move) -> Result<Started, PlaneError> {
        let Subject::File { file, .. } = &mv.subject else { return Err(PlaneError::not_known(mv)) };
        let (from, to) = (self.index(mv.from)?, self.index(mv.to)?);
        let f = self.file_of(file)?;
        let moved = self.moved.remove(&(f, to, from)).ok_or_else(|| PlaneError::not_known(mv))?;
        self.start_at_most(mv, moved)
    }

    /// `most`: bytes of a file.
    fn start_at_most(&mut self, mv: &Move, most: f64) -> Result<Started, PlaneError> {
        let mut of_file = None;
        let job = JobId(self.next_job);
        let before = self.copies.len();
        let (from, to) = (mv.from, mv.to);
        match &mv.subject {
            Subject::Thread { tid, .. } => {
                let to = self.with_cpus(to)?;
                let thread = self.alive(*tid)?;
                self.seat_thread(thread, to);
            }
            Subject::Process { pid, .. } => {
                let to = self.with_cpus(to)?;
                let process = self.process(*pid)?;
                let home = self.machine.nearest_home(to);
                let mut waits = false;
                let resident = self.processes[process].resident.clone();
                for (node, bytes) in resident.into_iter().filter(|s| s.0 != home && s.1 > 0.0) {
                    self.copies.push(Copy { what: Copied::Process(process), from: node, to: home, left: bytes, job });
                    waits = true;
                }
                for t in 0..self.threads.len() {
                    if self.threads[t].pid == *pid && self.threads[t].ended_s.is_none() {
                        self.seat_thread(t, to);
                        if waits {
                            // Pages are locked while they are copied: the process stands still.
                            self.threads[t].from_s = f64::INFINITY;
                        }
                    }
                }
            }
            Subject::File { file, .. } => {
                let (from, to) = (self.index(from)?, self.index(to)?);
                let f = self.file_of(file)?;
                let left = on(&self.files[f].bytes, from).min(most);
                of_file = Some((f, from, to));
                if left > 0.0 && from != to {
                    self.copies.push(Copy { what: Copied::File(f), from, to, left, job });
                }
            }
        }
        self.changed = true;
        let bytes: f64 = self.copies.iter().skip(before).map(|c| c.left).sum();
        if self.copies.len() == before {
            return Ok(Started::done());
        }
        self.next_job += 1;
        self.moving.push(Moving { job, bytes, cancelled: false, kept: 0.0, file: of_file });
        Ok(Started::job(job))
    }

    /// How far each move is that copies; the end of each is told once.
    pub fn poll(&mut self) -> Vec<Progress> {
        let (copies, moved) = (&self.copies, &mut self.moved);
        let mut all = Vec::with_capacity(self.moving.len());
        self.moving.retain(|moving| {
            let mut mine = copies.iter().filter(|c| c.job == moving.job).peekable();
            let state = match (mine.peek(), moving.cancelled) {
                (Some(_), _) => JobState::Running,
                (None, true) => JobState::Cancelled,
                (None, false) => JobState::Done,
            };
            let goes_on = state == JobState::Running;
            let left = moving.kept + mine.map(|c| c.left).sum::<f64>();
            if let Some(file) = moving.file.filter(|_| !goes_on) {
                moved.insert(file, (moving.bytes - left).max(0.0));
            }
            let (bytes, done) = (moving.bytes as u64, (moving.bytes - left).max(0.0) as u64);
            all.push(Progress { job: moving.job, bytes, done, there: 0, left: BTreeMap::new(), state });
            goes_on
        });
        all
    }

    /// Stops a move that copies. What was copied stays, and a process that stood still goes on.
    pub fn cancel(&mut self, job: JobId) {
        let Some(moving) = self.moving.iter_mut().find(|m| m.job == job) else { return };
        moving.cancelled = true;
        for i in (0..self.copies.len()).rev().filter(|i| self.copies[*i].job == job).collect::<Vec<_>>() {
            let copy = self.copies.remove(i);
            moving.kept += copy.left;
            if let Copied::Process(p) = copy.what {
                let (pid, now) = (self.processes[p].pid, self.now);
                let stands = self.threads.iter_mut().filter(|t| t.pid == pid && t.from_s == f64::INFINITY);
                stands.for_each(|t| t.from_s = now);
            }
        }
        self.changed = true;
    }

    pub fn undo(&mut self, undo: &Undo) -> Undone {
        let Some(Masks { before, ours, unbound }) = &undo.masks else { return Undone::Restored };
        let of: Vec<usize> = match &undo.subject {
            Subject::Thread { tid, .. } => self.thread(*tid).into_iter().collect(),
            _ => (0..self.threads.len()).filter(|t| self.threads[*t].pid == undo.pid).collect(),
        };
        let mut result = Undone::Gone;
        for t in of {
            let thread = &mut self.threads[t];
            if thread.ended_s.is_some() {
                continue;
            }
            if thread.mask.as_ref() != Some(ours) {
                result = Undone::ChangedByOthers;
                continue;
            }
            thread.mask = if *unbound { None } else { Some(before.clone()) };
            result = Undone::Restored;
        }
        result
    }

    /// Whether what the record undoes has ended.
    pub fn ended(&self, undo: &Undo) -> bool {
        let alive = |t: &&super::Thread| t.ended_s.is_none();
        match &undo.subject {
            Subject::Thread { tid, .. } => self.alive(*tid).is_err(),
            Subject::Process { pid, .. } => !self.threads.iter().filter(alive).any(|t| t.pid == *pid),
            Subject::File { .. } => true,
        }
    }

    /// Undo record of a binding: of a thread, or of the threads of a process like this one.
    fn undo_of(&self, thread: usize, subject: Subject, pid: u32, to: usize) -> Undo {
        let (before, unbound) = (self.mask(thread), self.threads[thread].mask.is_none());
        let masks = Masks { before, ours: self.machine.cpus_of(to).clone(), unbound };
        Undo { subject, pid, masks: Some(masks), payload: None }
    }

    fn seat_thread(&mut self, thread: usize, to: usize) {
        let (mask, stall_s) = (self.machine.cpus_of(to).clone(), self.machine.constants().move_stall_s);
        let thread = &mut self.threads[thread];
        thread.mask = Some(mask);
        if thread.node != to {
            thread.node = to;
            thread.debt_s += stall_s;
        }
    }

    fn mask(&self, thread: usize) -> CpuSet {
        self.threads[thread].mask.clone().unwrap_or_else(|| self.machine.topology().cpus())
    }

    fn alive(&self, tid: u32) -> Result<usize, PlaneError> {
        self.thread(tid).filter(|t| self.threads[*t].ended_s.is_none()).ok_or_else(|| gone("thread", tid))
    }

    fn process(&self, pid: u32) -> Result<usize, PlaneError> {
        self.processes.binary_search_by_key(&pid, |p| p.pid).map_err(|_| gone("process", pid))
    }

    fn file_of(&self, id: &FileId) -> Result<usize, PlaneError> {
        self.files.iter().position(|f| f.id == *id).ok_or_else(|| gone("file", id))
    }

    fn roomy(&self, node: usize, bytes: f64, what: impl Display) -> Result<(), PlaneError> {
        match self.free(node) < bytes {
            true => {
                let id = self.machine.nodes()[node].id;
                Err(PlaneError::refused("no_memory", format!("node {id} has no room for {what}")))
            }
            false => Ok(()),
        }
    }

    fn untouched(&self, thread: usize) -> Result<(), PlaneError> {
        match self.threads[thread].own_affinity {
            true => {
                Err(PlaneError::refused("own_affinity", format!("has an affinity of its own: {}", self.mask(thread))))
            }
            false => Ok(()),
        }
    }

    fn index(&self, node: NodeId) -> Result<usize, PlaneError> {
        self.machine.index(node).ok_or_else(|| PlaneError::refused("no_node", format!("there is no node {node}")))
    }

    fn with_cpus(&self, node: NodeId) -> Result<usize, PlaneError> {
        let index = self.index(node)?;
        match self.machine.nodes()[index].cpus > 0.0 {
            true => Ok(index),
            false => Err(PlaneError::refused("no_cpus", format!("node {node} has no CPUs"))),
        }
    }
}

fn gone(what: &str, id: impl Display) -> PlaneError {
    PlaneError::Gone { what: format!("{what} {id}") }
}
