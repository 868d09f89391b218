//! `homenode move FILE…` of a file on a mounted volume: its server moves the blocks.

use std::io;
use std::thread;
use std::time::Duration;

use crate::mounted;
use act::copying::{Copied, Copying};
use act::pages::{self, FileMove};
use linux::residency::cached;
use linux::residency::open::Opened;
use linux::volume::{self, Migration, State};
use serde_json::{Value, json};

use super::{Done, Job, drive};
use crate::exit::{Exit, Failure};

/// Pause between two looks at a migration.
const PAUSE: Duration = Duration::from_millis(20);

/// A file of a mounted volume on its way.
pub(super) struct VolumeMove {
    file: Opened,
    now: Migration,
}

impl VolumeMove {
    pub fn start(file: Opened, job: &Job) -> Result<Self, Failure> {
        if job.range.is_some() {
            let what = format!("cannot move a range of {}", file.path.display());
            return Err(Failure::new(Exit::Partly, what, "a volume moves whole files"));
        }
        mounted::start(&file, job.to, job.rate)?;
        let now = volume::migration(&file.fd).map_err(|e| Failure::io("ask the mount about", &file.path, &e))?;
        Ok(Self { file, now })
    }

    /// Follows it to its end. What the kernel has in its own cache moves, too, where it can.
    pub fn make(mut self, job: &Job, name: &str, subject: &(&'static str, Value)) -> Done {
        let mut done = drive(job, name, subject.clone(), &mut self);
        if done.why.is_none()
            && cached::count(&self.file.fd, 0, self.file.size.max(1)).is_some_and(|pages| pages > 0)
            && pages::target(&job.topology, job.to).is_ok()
            && let Ok(mut cached) = FileMove::of_opened(self.file, &(0..u64::MAX), job.to)
        {
            let cached = drive(job, name, subject.clone(), &mut cached);
            done.more.push(("cached_bytes", json!(cached.moved)));
        }
        done
    }
}

impl Copying for VolumeMove {
    fn step(&mut self, _: u64) -> io::Result<bool> {
        // A signal unparks.
        thread::park_timeout(PAUSE);
        self.now = volume::migration(&self.file.fd)?;
        match self.now.state {
            State::Running => Ok(false),
            State::Done => Ok(true),
            State::Stopped => Err(io::Error::other("somebody else stopped it, or the mount ends")),
            State::Failed => {
                let failure = mounted::failure(&self.file.path.display().to_string(), &self.now);
                Err(io::Error::other(
                    failure.map_or_else(|| "it failed".to_owned(), |failure| failure.why().to_owned()),
                ))
            }
        }
    }

    fn stop(&mut self) {
        let stopped = volume::follow(&self.file.fd, |now| {
            self.now = now.clone();
            false
        });
        if let Err(error) = stopped {
            tracing::warn!("{}: the mount does not say what became of it: {error}", self.file.path.display());
        }
    }

    fn copied(&self) -> Copied {
        let Migration { bytes, moved_bytes, already_bytes, .. } = self.now;
        // What was removed meanwhile, or written on the node, needs no move any more.
        let all = if self.now.state == State::Done { moved_bytes } else { bytes.max(moved_bytes) };
        Copied {
            total: already_bytes + all,
            moved: already_bytes + moved_bytes,
            there: already_bytes,
            ..Copied::default()
        }
    }
}
