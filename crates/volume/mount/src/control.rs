//! Extended attributes by which users look where a file is, and move it.
//!
//! **Problem.** A migration takes up to hours. A request that waited for it would take a worker
//! from everybody, and could not say how far it is.
//!
//! **Approach.** Setting [`linux::volume::MIGRATE`] starts a thread that copies, and is answered at
//! once; reading [`linux::volume::MIGRATION`] says how far it is, or how it ended. The file's inode
//! number is remembered until then, as if the kernel knew it: no other file gets it meanwhile. At
//! the end of the mount all that still copy are stopped. The kernel has checked permissions before
//! it asks.
//!
//! **Limits.** [`MOST`] files move at a time, one migration a file. How the last [`KEPT`] ended is
//! known. A policy may move a file back: it decides by itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fs::format::BLOCK_BYTES;
use fs::{Error, Ino, Kind, Migrated, Result, Volume};
use linux::affinity;
use linux::quota::{self, Limit, MOST as MOST_QUOTAS, Quota, Quotas};
use linux::volume::{self, Migration, Order, State};
use topology::CpuSet;

use crate::draining::Draining;
use crate::held::Held;
use crate::scrubs::Scrubs;
use crate::server::refused;

/// Migrations that run at a time.
const MOST: usize = 4;
/// Migrations that are known, those that run included.
const KEPT: usize = 64;
/// How often, and after which pause, a migration tries again that finds the file being moved by a
/// policy: in steps, which each take less than a second also on emulated memory.
const TRIES: (u32, Duration) = (100, Duration::from_millis(20));

/// Attributes that no file has, by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Nodes,
    /// Starts and stops.
    Migrate,
    Migration,
    /// Starts, stops and tells of a scrub, with the places of faults or without.
    Scrub(bool),
    /// Who serves the mount.
    Server,
    /// Empties a region: of the root directory.
    Drain,
    /// What users and projects use and may.
    Quota,
    /// The project of the file.
    Project,
    /// A name that may mean something to a later version.
    Reserved,
}

impl Name {
    /// The one that a name stands for; `None`: it is an attribute like any other, or none at all.
    pub(crate) fn of(name: &[u8]) -> Option<Self> {
        let spaces = [&b"homenode."[..], b"trusted.homenode."];
        match std::str::from_utf8(name) {
            Ok(volume::NODES) => Some(Self::Nodes),
            Ok(volume::MIGRATE) => Some(Self::Migrate),
            Ok(volume::MIGRATION) => Some(Self::Migration),
            Ok(volume::SCRUB) => Some(Self::Scrub(true)),
            Ok(volume::SCRUBBED) => Some(Self::Scrub(false)),
            Ok(volume::SERVER) => Some(Self::Server),
            Ok(volume::DRAIN) => Some(Self::Drain),
            Ok(quota::QUOTA) => Some(Self::Quota),
            Ok(quota::PROJECT) => Some(Self::Project),
            _ => spaces.iter().any(|space| name.starts_with(space)).then_some(Self::Reserved),
        }
    }
}

/// Migrations of a mount that users have asked for.
#[derive(Debug, Default)]
pub(crate) struct Control {
    known: Mutex<Known>,
    scrubs: Scrubs,
    stop: Arc<AtomicBool>,
    /// Where migrations and scrubs may run; `None`: where they are asked for.
    cpus: Option<CpuSet>,
    /// The process that holds the mount.
    holder: Option<i32>,
    held: Option<Arc<Held>>,
    draining: Draining,
}

#[derive(Debug, Default)]
struct Known {
    /// Oldest first.
    jobs: Vec<(Arc<Job>, Option<JoinHandle<()>>)>,
    /// The thread that counts what users and projects use.
    counting: Option<JoinHandle<()>>,
    ended: bool,
}

#[derive(Debug)]
struct Job {
    ino: Ino,
    /// Which life of the number.
    generation: u32,
    to: u32,
    rate: Option<u64>,
    /// Bytes elsewhere and there when it began.
    bytes: u64,
    there: u64,
    moved: AtomicU64,
    stop: AtomicBool,
    began: Instant,
    ended: OnceLock<(Duration, State, Option<Error>)>,
}

impl Control {
    /// No migrations yet. They run where the calling thread may.
    pub(crate) fn new(held: Option<Arc<Held>>) -> Self {
        let parent = rustix::process::getppid().filter(|_| held.is_some());
        let holder = parent.map(|parent| parent.as_raw_nonzero().get());
        Self { cpus: affinity::get(0).ok(), holder, held, ..Self::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, volume: &Arc<Volume>, ino: Ino, name: Name) -> Result<Vec<u8>> {
        match name {
            Name::Nodes => Ok(volume::nodes_to_json(volume.bytes_by_node(ino)?).into_bytes()),
            Name::Migration => {
                let generation = volume.stat(ino)?.generation;
                let known = self.known();
                let mut jobs = known.jobs.iter().rev().map(|(job, _)| job);
                let job = jobs.find(|job| (job.ino, job.generation) == (ino, generation));
                Ok(job.ok_or(Error::NoAttribute)?.told().to_json().into_bytes())
            }
            Name::Scrub(all) => Ok(self.scrubs.told(volume, all).into_bytes()),
            Name::Server => Ok(volume::Server::own(self.holder).to_json().into_bytes()),
            Name::Drain if ino == Ino::ROOT => Ok(self.draining.told().ok_or(Error::NoAttribute)?.into_bytes()),
            Name::Quota => {
                self.count(volume)?;
                Ok(told(volume).to_json().into_bytes())
            }
            Name::Project => Ok(volume.project(ino)?.to_string().into_bytes()),
            Name::Migrate | Name::Drain | Name::Reserved => Err(Error::NoAttribute),
        }
    }

    /// Starts to count what users and projects use, if nobody has yet.
    fn count(&self, volume: &Arc<Volume>) -> Result<()> {
        let mut known = self.known();
        if !known.ended && volume.start_counting() {
            let (volume, stop) = (Arc::clone(volume), Arc::clone(&self.stop));
            let count = move || volume.count_all(|| !stop.load(Ordering::Acquire));
            let thread = thread::Builder::new().name("mount-quota".to_owned()).spawn(count);
            known.counting = Some(thread.map_err(|_| refused(libc::ENOMEM))?);
        }
        Ok(())
    }

    /// Does what setting an attribute asks for.
    pub(crate) fn set(&self, volume: &Arc<Volume>, ino: Ino, name: Name, value: &[u8]) -> Result<()> {
        match name {
            Name::Migrate => {}
            Name::Scrub(true) => return self.scrubs.order(volume, value, self.cpus.clone()),
            Name::Drain if ino == Ino::ROOT => {
                let done = self.draining.order(volume, value, self.cpus.clone());
                self.held.iter().for_each(|held| held.set_avoided(volume.avoided()));
                return done;
            }
            Name::Project => {
                let id = std::str::from_utf8(value).ok().and_then(|id| id.trim().parse().ok());
                return volume.set_project(ino, id.ok_or(Error::Invalid("a number"))?);
            }
            Name::Quota => {
                let limit = Limit::parse(value).ok_or(Error::Invalid("user or project, number, bytes, files"))?;
                let blocks = limit.bytes.div_ceil(BLOCK_BYTES);
                let subject = match limit.subject {
                    quota::Subject::User(id) => fs::Subject::User(id),
                    quota::Subject::Project(id) => fs::Subject::Project(id),
                };
                volume.set_quota(subject, fs::Space { blocks, files: limit.files })?;
                return self.count(volume);
            }
            _ => return Err(refused(libc::EOPNOTSUPP)),
        }
        match Order::parse(value).ok_or(Error::Invalid("a node, or `cancel`"))? {
            Order::To(to, rate) => self.start(volume, ino, to.0, rate),
            Order::Cancel => {
                let known = self.known();
                let job = known.jobs.iter().find(|(job, _)| job.ino == ino && job.runs());
                job.ok_or(Error::NoAttribute)?.0.stop.store(true, Ordering::Release);
                Ok(())
            }
        }
    }

    fn start(&self, volume: &Arc<Volume>, ino: Ino, to: u32, rate: Option<u64>) -> Result<()> {
        if volume.is_look() || volume.in_doubt() {
            return Err(Error::ReadOnly);
        }
        let stat = volume.stat(ino)?;
        match stat.kind {
            Kind::File => {}
            Kind::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid("only files move")),
        }
        if !volume.usage().regions.iter().any(|region| region.node == Some(to)) {
            return Err(Error::NoRegionOnNode(to));
        }
        let nodes = volume.bytes_by_node(ino)?;
        let there = nodes.get(&Some(to)).copied().unwrap_or(0);
        let mut known = self.known();
        if known.jobs.iter().any(|(job, _)| job.ino == ino && job.runs()) {
            return Err(Error::Busy);
        }
        if known.ended || known.jobs.iter().filter(|(job, _)| job.runs()).count() >= MOST {
            return Err(refused(libc::EUSERS)); // the kernel makes EOPNOTSUPP of EAGAIN
        }
        let job = Arc::new(Job {
            ino,
            generation: stat.generation,
            to,
            rate,
            bytes: nodes.values().sum::<u64>() - there,
            there,
            moved: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            began: Instant::now(),
            ended: OnceLock::new(),
        });
        // Its number stays its own until the end.
        volume.remember(ino)?;
        let (own, volume_of_it) = (Arc::clone(&job), Arc::clone(volume));
        let cpus = self.cpus.clone();
        let run = move || {
            // A worker of io_uring, which starts it, has one CPU.
            if let Some(Err(error)) = cpus.map(|cpus| affinity::set(0, &cpus)) {
                tracing::debug!("a migration runs where it was asked for: {error}");
            }
            own.run(&volume_of_it);
        };
        let spawned = thread::Builder::new().name("mount-migrate".to_owned()).spawn(run);
        // The kernel makes EOPNOTSUPP of EAGAIN here, too.
        let handle = spawned.map_err(|_| refused(libc::ENOMEM)).inspect_err(|_| forget(volume, ino))?;
        known.jobs.push((job, Some(handle)));
        let spare = known.jobs.len().saturating_sub(KEPT);
        let mut old = 0..spare;
        known.jobs.retain(|(job, _)| job.runs() || old.next().is_none());
        Ok(())
    }

    /// Stops all, and waits for them: the mount has ended.
    pub(crate) fn end(&self) {
        self.scrubs.end();
        self.draining.end();
        let jobs = {
            let mut known = self.known();
            known.ended = true;
            known.jobs.iter().for_each(|(job, _)| job.stop.store(true, Ordering::Release));
            self.stop.store(true, Ordering::Release);
            let counting = known.counting.take();
            let jobs = known.jobs.iter_mut().filter_map(|(_, handle)| handle.take());
            jobs.chain(counting).collect::<Vec<_>>()
        };
        for handle in jobs {
            // It catches its panics.
            let _ = handle.join();
        }
    }
}

impl Job {
    fn runs(&self) -> bool {
        self.ended.get().is_none()
    }

    fn told(&self) -> Migration {
        let ended = self.ended.get();
        let (took, state) = ended.map_or((self.began.elapsed(), State::Running), |(took, state, _)| (*took, *state));
        let error = ended.and_then(|(.., error)| error.as_ref());
        let why = |error: &Error| match error {
            Error::NoSpace | Error::Lacks(_) => format!("node {} has no room for more of it", self.to),
            error => error.to_string(),
        };
        Migration {
            to: self.to,
            state,
            bytes: self.bytes,
            moved_bytes: self.moved.load(Ordering::Acquire),
            already_bytes: self.there,
            seconds: took.as_secs_f64(),
            errno: error.map(Error::errno),
            why: error.map(why),
        }
    }

    fn run(&self, volume: &Volume) {
        let done = catch_unwind(AssertUnwindSafe(|| self.migrate(volume)));
        let (state, error) = match done {
            Ok(Ok(Migrated { cancelled: true, .. })) => (State::Stopped, None),
            Ok(Ok(_)) => (State::Done, None),
            Ok(Err(error)) => (State::Failed, Some(error)),
            Err(_) => (State::Failed, Some(refused(libc::EIO))),
        };
        forget(volume, self.ino);
        let _ = self.ended.set((self.began.elapsed(), state, error));
    }

    fn migrate(&self, volume: &Volume) -> Result<Migrated> {
        let (mut tries, pause) = TRIES;
        loop {
            let done = volume.migrate_file(self.ino, self.to, self.rate, |progress| {
                self.moved.store(progress.moved * BLOCK_BYTES, Ordering::Release);
                !self.stop.load(Ordering::Acquire) && !volume.is_abandoned(self.ino)
            });
            if !matches!(done, Err(Error::Busy)) || tries == 0 {
                return done;
            }
            if self.stop.load(Ordering::Acquire) {
                return Ok(Migrated { cancelled: true, ..Migrated::default() });
            }
            tries -= 1;
            thread::sleep(pause);
        }
    }
}

/// What users and projects use and may.
fn told(volume: &Volume) -> Quotas {
    let (whole, all) = volume.quotas();
    let quota = |(subject, quota): (fs::Subject, fs::Quota)| Quota {
        subject: match subject {
            fs::Subject::User(id) => quota::Subject::User(id),
            fs::Subject::Project(id) => quota::Subject::Project(id),
        },
        bytes: quota.used.blocks * BLOCK_BYTES,
        bytes_limit: quota.limit.blocks * BLOCK_BYTES,
        files: quota.used.files,
        files_limit: quota.limit.files,
    };
    let mut quotas: Vec<Quota> = all.into_iter().map(quota).collect();
    quotas.sort_by_key(|quota| quota.bytes_limit == 0 && quota.files_limit == 0);
    let more = quotas.len() > MOST_QUOTAS;
    quotas.truncate(MOST_QUOTAS);
    Quotas { counting: !whole, quotas, more }
}

fn forget(volume: &Volume, ino: Ino) {
    if let Err(error) = volume.forget(ino, 1) {
        tracing::debug!("a migration of inode {} forgot it: {error}", ino.raw());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_attributes_stand_for_what_they_say() {
        let of = |name: &str| Name::of(name.as_bytes());
        assert_eq!(of("homenode.nodes"), Some(Name::Nodes));
        assert_eq!(of("trusted.homenode.migrate"), Some(Name::Migrate));
        assert_eq!(of("trusted.homenode.migration"), Some(Name::Migration));
        assert_eq!((of("trusted.homenode.x"), of("homenode.")), (Some(Name::Reserved), Some(Name::Reserved)));
        assert_eq!((of("user.homenode.nodes"), of("trusted.homenode"), of("trusted.b")), (None, None, None));
    }
}
