//! The way back from the live view into what the daemon has kept, a summary at a time.

use std::path::PathBuf;

use chrono::Local;
use placement::Snapshot;
use session::history::Cursor;

use super::Seen;
use crate::commands::explain;
use crate::exit::Failure;

pub struct Past {
    dir: PathBuf,
    /// `None` is now.
    cursor: Option<Cursor>,
}

impl Past {
    /// At this time, in seconds since 1970, or now.
    pub fn new(dir: PathBuf, at: Option<f64>) -> Result<Self, Failure> {
        let cursor = at.map(|at| Cursor::at(&dir, at)).transpose()?.flatten();
        Ok(Self { dir, cursor })
    }

    /// Goes so many summaries back or on; beyond the last one is now. Returns why that cannot be.
    pub fn step(&mut self, back: bool) -> Option<String> {
        let stepped = match (&mut self.cursor, back) {
            (None, false) => Ok(true),
            (None, true) => Cursor::at(&self.dir, f64::INFINITY).map(|newest| {
                self.cursor = newest;
                self.cursor.is_some()
            }),
            (Some(cursor), true) => cursor.step(true),
            (Some(cursor), false) => cursor
                .step(false)
                .inspect(|stepped| {
                    if !stepped {
                        self.cursor = None;
                    }
                })
                .map(|_| true),
        };
        match stepped {
            Ok(true) => None,
            Ok(false) => Some("no earlier history".to_owned()),
            Err(failure) => Some(failure.line()),
        }
    }

    /// What is shown; `None` is now. Of a summary there is no snapshot.
    pub fn seen(&self) -> Option<Seen> {
        let summary = self.cursor.as_ref()?.summary()?;
        let window = summary.window(explain::time(summary.unix_s, Local::now()));
        Some(Seen { window, snapshot: Snapshot::default(), journals: Vec::new() })
    }
}
