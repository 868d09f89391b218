//! Scrubs of a mount's volume, which users start, stop and follow by an extended attribute
//! ([`linux::volume::SCRUB`]).
//!
//! **Approach.** One thread reads ([`Volume::scrub`]); what it finds is kept for whoever asks, and
//! named once it has ended. A scrub that is started again after it was stopped goes on, with what
//! it had found; one that a mount before this one was stopped in goes on with nothing.
//!
//! **Limits.** The first [`KEPT`] faults are told one by one, the others are counted.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fs::format::BLOCK_BYTES;
use fs::{Error, Fault, Ino, Result, ScrubPlace, Scrubbed, Volume};
use linux::affinity;
use linux::volume::{Scrub, ScrubFault, ScrubOrder, State};
use topology::CpuSet;

use crate::server::refused;

/// Faults that are told one by one.
const KEPT: usize = 100;
/// Longest path that is told.
const LONGEST: usize = 400;

#[derive(Debug, Default)]
pub(crate) struct Scrubs {
    known: Arc<Mutex<Known>>,
    stop: Arc<AtomicBool>,
    /// When one came to the end, s since 1970; 0: never.
    completed: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Known {
    state: Option<State>,
    /// Before it was stopped last.
    before: Scrubbed,
    now: Scrubbed,
    faults: Vec<Fault>,
    paths: Vec<(Ino, String)>,
    damaged: u64,
    mended: u64,
    began: Option<Instant>,
    took: Duration,
    errno: Option<i32>,
    thread: Option<JoinHandle<()>>,
    ended: bool,
}

impl Scrubs {
    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }

    /// What is known of the last one, as JSON.
    pub(crate) fn told(&self, volume: &Volume, all: bool) -> String {
        let usage = volume.usage();
        let used = usage.regions.iter().map(|region| region.blocks - region.free_blocks).sum::<u64>();
        let (known, completed) = (self.known(), self.completed.load(Ordering::Acquire));
        let path = |ino: Option<Ino>| known.paths.iter().find(|(of, _)| Some(*of) == ino).map(|(_, path)| path.clone());
        let fault = |fault: &Fault| ScrubFault {
            ino: fault.ino.map(Ino::raw),
            path: path(fault.ino),
            bytes: fault.bytes.as_ref().map(|bytes| (bytes.start, bytes.end)),
            what: fault.damage.to_string(),
            mended: fault.mended,
        };
        let took = if known.state == Some(State::Running) { known.began.map(|began| began.elapsed()) } else { None };
        let scrub = Scrub {
            state: known.state,
            bytes: known.before.bytes + known.now.bytes,
            used_bytes: used * BLOCK_BYTES,
            inodes: known.before.inodes + known.now.inodes,
            damaged: known.damaged,
            mended: known.mended,
            seconds: took.unwrap_or(known.took).as_secs_f64(),
            completed: Some(completed).filter(|at| *at > 0),
            data_checksums: volume.has_data_checksums(),
            errno: known.errno,
            faults: known.faults.iter().filter(|_| all).map(fault).collect(),
        };
        scrub.to_json()
    }

    /// Does what setting the attribute asks for.
    pub(crate) fn order(&self, volume: &Arc<Volume>, value: &[u8], cpus: Option<CpuSet>) -> Result<()> {
        let order = ScrubOrder::parse(value).ok_or(Error::Invalid("`start`, with a rate or without, or `cancel`"))?;
        let mut known = self.known();
        match order {
            ScrubOrder::Cancel if known.state == Some(State::Running) => self.stop.store(true, Ordering::Release),
            ScrubOrder::Cancel => return Err(Error::NoAttribute),
            ScrubOrder::Start(_) if known.ended || known.state == Some(State::Running) => return Err(Error::Busy),
            ScrubOrder::Start(rate) => {
                let from = if known.state == Some(State::Stopped) {
                    known.before.bytes += known.now.bytes;
                    known.before.inodes += known.now.inodes;
                    known.now.place
                } else {
                    *known = Known::default();
                    volume.scrub_place()
                };
                known.now = Scrubbed { place: from, ..Scrubbed::default() };
                self.stop.store(false, Ordering::Release);
                let run = Run {
                    volume: Arc::clone(volume),
                    known: Arc::clone(&self.known),
                    stop: Arc::clone(&self.stop),
                    completed: Arc::clone(&self.completed),
                };
                let work = move || {
                    if let Some(Err(error)) = cpus.map(|cpus| affinity::set(0, &cpus)) {
                        tracing::debug!("a scrub runs where it was asked for: {error}");
                    }
                    run.run(from, rate);
                };
                let spawned = thread::Builder::new().name("mount-scrub".to_owned()).spawn(work);
                known.thread = Some(spawned.map_err(|_| refused(libc::ENOMEM))?);
                (known.state, known.began) = (Some(State::Running), Some(Instant::now()));
            }
        }
        Ok(())
    }

    /// Stops it, and waits for it: the mount has ended.
    pub(crate) fn end(&self) {
        let thread = {
            let mut known = self.known();
            known.ended = true;
            known.thread.take()
        };
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = thread {
            // It catches its panics.
            let _ = thread.join();
        }
    }
}

struct Run {
    volume: Arc<Volume>,
    known: Arc<Mutex<Known>>,
    stop: Arc<AtomicBool>,
    completed: Arc<AtomicU64>,
}

impl Run {
    fn run(&self, from: ScrubPlace, rate: Option<u64>) {
        let done = catch_unwind(AssertUnwindSafe(|| self.scrub(from, rate)));
        let done = done.unwrap_or_else(|_| Err(refused(libc::EIO)));
        let inos: BTreeSet<Ino> = lock(&self.known).faults.iter().filter_map(|fault| fault.ino).collect();
        // The end of the mount waits for this.
        let go_on = || !lock(&self.known).ended;
        let paths =
            if inos.is_empty() { Vec::new() } else { self.volume.paths_of(&inos, &go_on).into_iter().collect() };
        let shown = |path: Vec<u8>| String::from_utf8_lossy(&path).chars().take(LONGEST).collect();
        let mut known = lock(&self.known);
        known.paths = paths.into_iter().map(|(ino, path)| (ino, shown(path))).collect();
        for fault in &known.faults {
            let path = known.paths.iter().find(|(ino, _)| Some(*ino) == fault.ino).map_or("", |(_, path)| path);
            tracing::warn!("{path}: {:?}: {}, mended: {}", fault.bytes, fault.damage, fault.mended);
        }
        known.took = known.began.map_or(Duration::ZERO, |began| began.elapsed());
        known.state = Some(match done {
            Ok(done) => {
                known.now = done;
                if done.done { State::Done } else { State::Stopped }
            }
            Err(error) => {
                known.errno = Some(error.errno());
                State::Failed
            }
        });
        if known.state == Some(State::Done) {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_secs());
            self.completed.store(now, Ordering::Release);
        }
    }

    fn scrub(&self, from: ScrubPlace, rate: Option<u64>) -> Result<Scrubbed> {
        let mut found = |fault: Fault| {
            let mut known = lock(&self.known);
            *(if fault.mended { &mut known.mended } else { &mut known.damaged }) += 1;
            if known.faults.len() < KEPT {
                known.faults.push(fault);
            }
        };
        self.volume.scrub(from, rate, &mut found, &mut |now| {
            lock(&self.known).now = *now;
            !self.stop.load(Ordering::Acquire)
        })
    }
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}
