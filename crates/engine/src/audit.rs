//! What moves brought: the remote share of a moved thread before and after.
//!
//! The window right after a move is not judged: what was read between the end of the observation and the move counts
//! into it. The next [`JUDGED`] windows in which the thread reads are taken together, weighted by bytes.

use placement::{Snapshot, Thread};
use rustc_hash::FxHashMap;

use crate::journal::{About, Event};

/// Windows that are judged.
const JUDGED: u32 = 2;
/// Windows after which a thread that reads no more is judged by what there is.
const PATIENCE: u32 = 10;

/// Share of the file bytes a thread read from another node; `None` where it read nothing.
pub fn remote_share(thread: &Thread) -> Option<f64> {
    let total = thread.read_bytes.total();
    (total > 0).then(|| thread.remote_bytes() as f64 / total as f64)
}

#[derive(Debug)]
struct Watched {
    about: About,
    before: Option<f64>,
    windows: u32,
    judged: u32,
    read: u64,
    remote: u64,
}

/// Watches threads after their moves.
#[derive(Debug, Default)]
pub struct Audit {
    watched: FxHashMap<(u32, Option<u64>), Watched>,
}

impl Audit {
    /// A thread was moved. An earlier move of it that is still being watched is forgotten: its effect can no longer be seen.
    pub fn moved(&mut self, about: About, before: Option<f64>) {
        let watched = Watched { before, windows: 0, judged: 0, read: 0, remote: 0, about };
        self.watched.insert((watched.about.tid, watched.about.start_ns), watched);
    }

    /// A window later. Returns the moves that have been judged.
    pub fn window(&mut self, snapshot: &Snapshot) -> Vec<(About, Event)> {
        if self.watched.is_empty() {
            return Vec::new();
        }
        for watched in self.watched.values_mut() {
            watched.windows += 1;
        }
        for thread in &snapshot.threads {
            let Some(watched) = self.watched.get_mut(&(thread.tid, thread.start_ns)) else { continue };
            let read = thread.read_bytes.total();
            if watched.windows > 1 && watched.judged < JUDGED && read > 0 {
                watched.judged += 1;
                watched.read = watched.read.saturating_add(read);
                watched.remote = watched.remote.saturating_add(thread.remote_bytes());
            }
        }
        let finished = |_: &(u32, Option<u64>), w: &mut Watched| w.judged >= JUDGED || w.windows >= PATIENCE;
        let mut judged: Vec<_> = self
            .watched
            .extract_if(finished)
            .map(|(_, w)| {
                let after = (w.read > 0).then(|| w.remote as f64 / w.read as f64);
                (w.about, Event::Audited { before: w.before, after })
            })
            .collect();
        judged.sort_unstable_by_key(|j| j.0.tid);
        judged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(local: u64, remote: u64) -> Snapshot {
        let text = format!(
            r#"{{"tid":7,"pid":7,"start_ns":1,"node":0,"allowed_nodes":[0,1],"cpu_s":0,"read_bytes":{{"0":{local},"1":{remote}}}}}"#
        );
        let thread = serde_json::from_str(&text).unwrap();
        Snapshot { version: 1, window_s: 1.0, threads: vec![thread], ..Snapshot::default() }
    }

    fn watched() -> Audit {
        let mut audit = Audit::default();
        audit.moved(About { tid: 7, pid: 7, comm: "fio".into(), start_ns: Some(1) }, Some(0.98));
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
