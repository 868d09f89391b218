//! Emptying a region of a mounted volume, as a job: one at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fs::format::BLOCK_BYTES;
use fs::{Drained, Error, Held, Result, Volume};
use linux::affinity;
use linux::volume::{Drain, State, Stays};
use topology::CpuSet;

use crate::server::refused;

/// Bytes of names in an answer, which has 64 KiB at most; as JSON a byte can take six.
const ROOM: usize = 8 << 10;

/// The last drain of a mount.
#[derive(Debug, Default)]
pub(crate) struct Draining(Mutex<Last>);

#[derive(Debug, Default)]
struct Last {
    job: Option<(Arc<Job>, Option<JoinHandle<()>>)>,
    ended: bool,
}

#[derive(Debug)]
struct Job {
    region: usize,
    first: Held,
    blocks: AtomicU64,
    inodes: AtomicU64,
    stop: AtomicBool,
    began: Instant,
    ended: OnceLock<(Duration, Result<Drained>)>,
}

impl Draining {
    fn last(&self) -> std::sync::MutexGuard<'_, Last> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far it is, as JSON; `None`: nothing was drained since the mount.
    pub(crate) fn told(&self) -> Option<String> {
        let job = self.last().job.as_ref().map(|(job, _)| Arc::clone(job))?;
        Some(job.told().to_json())
    }

    /// Does what setting the attribute asks for.
    pub(crate) fn order(&self, volume: &Arc<Volume>, order: &[u8], cpus: Option<CpuSet>) -> Result<()> {
        if volume.is_look() || volume.in_doubt() {
            return Err(Error::ReadOnly);
        }
        let words: Vec<_> = std::str::from_utf8(order).unwrap_or_default().split_ascii_whitespace().collect();
        let region = words.last().and_then(|word| word.parse().ok());
        let mut last = self.last();
        let running = last.job.as_ref().filter(|(job, _)| job.ended.get().is_none());
        match (words.as_slice(), running, region) {
            (["cancel"], None, _) => Err(Error::NoAttribute),
            (["cancel"], Some((job, _)), _) => {
                job.stop.store(true, Ordering::Release);
                Ok(())
            }
            (_, Some(_), _) => Err(Error::Busy),
            (["use", _], None, Some(region)) => volume.avoid(region, false),
            ([_], None, Some(region)) if !last.ended => {
                volume.avoid(region, true)?;
                let first = volume.held(region);
                let job = Arc::new(Job {
                    region,
                    first,
                    blocks: AtomicU64::new(first.blocks),
                    inodes: AtomicU64::new(first.inodes),
                    stop: AtomicBool::new(false),
                    began: Instant::now(),
                    ended: OnceLock::new(),
                });
                let (own, volume) = (Arc::clone(&job), Arc::clone(volume));
                let run = move || {
                    // A worker of io_uring, which starts it, has one CPU.
                    if let Some(Err(error)) = cpus.map(|cpus| affinity::set(0, &cpus)) {
                        tracing::debug!("a drain runs where it was asked for: {error}");
                    }
                    own.run(&volume);
                };
                let spawned = thread::Builder::new().name("mount-drain".to_owned()).spawn(run);
                // The kernel makes EOPNOTSUPP of EAGAIN.
                let handle = spawned.map_err(|_| refused(libc::ENOMEM))?;
                last.job = Some((job, Some(handle)));
                Ok(())
            }
            _ => Err(Error::Invalid("a region, `use` and a region, or `cancel`")),
        }
    }

    /// Stops it, and waits for it: the mount has ended.
    pub(crate) fn end(&self) {
        let handle = {
            let mut last = self.last();
            last.ended = true;
            last.job.as_mut().and_then(|(job, handle)| {
                job.stop.store(true, Ordering::Release);
                handle.take()
            })
        };
        if let Some(handle) = handle {
            // It catches its panics.
            let _ = handle.join();
        }
    }
}

impl Job {
    fn note(&self, left: Held) {
        self.blocks.store(left.blocks, Ordering::Release);
        self.inodes.store(left.inodes, Ordering::Release);
    }

    fn run(&self, volume: &Volume) {
        let go_on = |left| {
            self.note(left);
            !self.stop.load(Ordering::Acquire)
        };
        let done = catch_unwind(AssertUnwindSafe(|| volume.drain(self.region, go_on)));
        self.note(volume.held(self.region));
        let _ = self.ended.set((self.began.elapsed(), done.unwrap_or_else(|_| Err(refused(libc::EIO)))));
    }

    fn told(&self) -> Drain {
        let left = Held { blocks: self.blocks.load(Ordering::Acquire), inodes: self.inodes.load(Ordering::Acquire) };
        let ended = self.ended.get();
        let took = ended.map_or_else(|| self.began.elapsed(), |(took, _)| *took);
        told(self.region, (self.first, left), ended.map(|(_, done)| done), took)
    }
}

/// How far a drain is that began and goes on, or ended, with so much in its region.
pub fn told(region: usize, (first, left): (Held, Held), ended: Option<&Result<Drained>>, took: Duration) -> Drain {
    let (done, error) = (ended.and_then(|done| done.as_ref().ok()), ended.and_then(|done| done.as_ref().err()));
    let all = done.map_or(&[][..], |done| done.stays.as_slice());
    let mut room = ROOM;
    let fits = all.iter().map_while(|stays| {
        let path = stays.path.as_ref().map(|path| String::from_utf8_lossy(path).into_owned());
        let why = stays.why.to_string();
        room = room.checked_sub(64 + path.as_ref().map_or(0, String::len) + why.len())?;
        Some(Stays { inode: stays.ino.raw(), path, why })
    });
    let stays: Vec<_> = fits.collect();
    let state = match (ended, done) {
        (None, _) => State::Running,
        (_, None) => State::Failed,
        (_, Some(done)) if done.cancelled => State::Stopped,
        _ => State::Done,
    };
    Drain {
        region,
        state,
        bytes: first.blocks * BLOCK_BYTES,
        left_bytes: left.blocks * BLOCK_BYTES,
        left_inodes: left.inodes,
        more: all.len() - stays.len(),
        stays,
        seconds: took.as_secs_f64(),
        errno: error.map(Error::errno),
        why: error.map(ToString::to_string),
    }
}
