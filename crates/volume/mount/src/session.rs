//! A mount that is being served.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use fs::{Background, Volume};

use rustc_hash::FxHashMap;

use crate::Options;
use crate::asker::Asker;
use crate::connection::{Answers, Device, Transport, another, handshake};
use crate::control::Control;
use crate::held::{Held, Known, Seat};
use crate::mountpoint::{Error, Mountpoint, Unmounted};
use crate::ring::{self, Served};
use crate::server::Server;
use crate::stale::Stale;
use crate::wire::init;

/// A volume that is mounted. Dropping it unmounts, and waits until nobody uses the mount.
#[derive(Debug)]
pub struct Session {
    mountpoint: Arc<Mountpoint>,
    workers: Mutex<Vec<JoinHandle<io::Result<()>>>>,
    /// Cleans the volume's logs until the mount has ended.
    cleaner: Mutex<Option<Background>>,
    asker: Mutex<Option<Asker>>,
    /// Migrations that users have asked for.
    control: Arc<Control>,
    ended: AtomicBool,
    ring: bool,
    stale: Arc<Stale>,
}

/// Mounts a volume on `dir`. The mount works when this returns. Take care that the volume has no
/// other user: the kernel remembers what it was told.
pub fn serve(volume: Arc<Volume>, dir: &Path, options: &Options) -> Result<Session, Error> {
    let server = Arc::new(Server::new(Arc::clone(&volume), options));
    let control = server.control();
    let held = options.held.as_ref().filter(|held| held.is_mounted());
    for region in held.iter().flat_map(|held| held.avoided()) {
        let avoided = volume.avoid(region, true);
        avoided.unwrap_or_else(|error| tracing::warn!("region {region} gets new blocks again: {error}"));
    }
    // Before anything changes the volume.
    let known = held.map(|held| held.known(|word| volume.has_stored(word))).transpose();
    let known = known.map_err(|error| Error::Io {
        doing: "take over",
        path: dir.to_owned(),
        source: io::Error::other(error),
    })?;
    let mut session = answered(server, dir, options, known.unwrap_or_default())?;
    session.control = control;
    if let Some(held) = held {
        let asker = held.file(held.workers()).and_then(|file| Asker::start(Arc::clone(&volume), file));
        let asker = asker.inspect_err(|error| tracing::warn!("what removed files held stays in use: {error}"));
        *session.asker.lock().unwrap_or_else(PoisonError::into_inner) = asker.ok();
    }
    if !volume.is_look() {
        // Without it operations clean by themselves.
        let cleaner = Background::start(volume).inspect_err(|error| tracing::warn!("no thread cleans logs: {error}"));
        *session.cleaner.lock().unwrap_or_else(PoisonError::into_inner) = cleaner.ok();
    }
    Ok(session)
}

/// Mounts on `dir` what `server` answers.
pub(crate) fn answered(
    server: Arc<dyn Answers>,
    dir: &Path,
    options: &Options,
    known: FxHashMap<u64, Known>,
) -> Result<Session, Error> {
    let held = options.held.as_ref();
    let taken = held.filter(|held| held.is_mounted());
    let (mountpoint, connection) = match taken {
        Some(held) => {
            let failed = |source| Error::Io { doing: "take over", path: held.dir(), source };
            (held.mountpoint(), held.connection().map_err(failed)?)
        }
        None => Mountpoint::mount(Mountpoint::check(dir)?, options)?,
    };
    let known = Arc::new(known);
    let mountpoint = Arc::new(mountpoint);
    let stale = Arc::new(Stale::default());
    let start = || {
        let mut ways: Vec<(String, Box<dyn Transport>)> = Vec::new();
        let file = |number| match held {
            Some(held) => held.file(number),
            None => another(&connection).map_err(io::Error::from),
        };
        let workers = held.map_or(options.workers.max(1), |held| held.workers());
        for number in 0..workers {
            let seat = held.map(|held| Seat::new(Arc::clone(held), number, Arc::clone(&known)));
            ways.push((format!("mount-{number}"), Box::new(Device(Arc::new(file(number)?), seat))));
        }
        let notices = file(workers)?;
        // Before the kernel is told: once it waits for the queues there is no way back.
        let queues = if options.ring && held.is_none() { ring::queues() } else { Ok(Vec::new()) };
        let queues = queues.and_then(|queues| {
            let serve = |queue| Ok(Served { queue, connection: another(&connection)? });
            queues.into_iter().map(serve).collect::<io::Result<Vec<_>>>()
        });
        let queues = queues.inspect_err(|error| tracing::debug!("no io_uring: {error}")).unwrap_or_default();
        let agreed = match taken {
            Some(_) => Held::resend(&connection).map(|()| 0)?,
            None => {
                let ring = if queues.is_empty() { 0 } else { init::OVER_IO_URING };
                let more = ring | if held.is_some() { init::HAS_RESEND } else { 0 };
                let agreed = handshake(&connection, options, more)?;
                mountpoint.read_ahead();
                agreed
            }
        };
        if let Some(held) = held.filter(|_| agreed & init::HAS_RESEND != 0) {
            held.mounted(agreed, &mountpoint);
        }
        let ring = agreed & init::OVER_IO_URING != 0;
        for (cpu, queue) in queues.into_iter().enumerate().filter(|_| ring) {
            ways.push((format!("mount-cpu{cpu}"), Box::new(queue)));
        }
        let start = |(name, mut way): (String, Box<dyn Transport>)| {
            let (server, mountpoint, stale) = (Arc::clone(&server), Arc::clone(&mountpoint), Arc::clone(&stale));
            std::thread::Builder::new().name(name).spawn(move || {
                let served = catch_unwind(AssertUnwindSafe(|| way.serve(&*server, &stale)));
                let served = served.unwrap_or_else(|_| Err(io::Error::other("a worker panicked")));
                match &served {
                    Err(error) if way.alone() => {
                        tracing::error!("{}: the mount ends: {error}", mountpoint.dir.display());
                        mountpoint.abort();
                    }
                    Err(error) => tracing::error!("{}: a worker ends: {error}", mountpoint.dir.display()),
                    Ok(()) => {}
                }
                served
            })
        };
        let own = Arc::clone(&stale);
        std::thread::Builder::new().name("mount-stale".to_owned()).spawn(move || own.serve(&notices))?;
        Ok((ways.into_iter().map(start).collect::<io::Result<Vec<_>>>()?, ring))
    };
    match start() {
        Ok((workers, ring)) => {
            let (workers, ended) = (Mutex::new(workers), AtomicBool::new(false));
            let (cleaner, asker, control) = (Mutex::default(), Mutex::default(), Arc::default());
            Ok(Session { mountpoint, workers, cleaner, asker, control, ended, ring, stale })
        }
        Err(source) => {
            stale.end();
            // The next server may have more luck with one that is held.
            if taken.is_none() {
                mountpoint.detach();
            }
            Err(Error::Io { doing: "serve", path: mountpoint.dir.clone(), source })
        }
    }
}

impl Session {
    pub fn by_ring(&self) -> bool {
        self.ring
    }

    /// Waits until the mount has ended: somebody unmounted it, and nobody uses it any more.
    pub fn wait(&self) -> Result<(), Error> {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Ok(());
        for worker in workers.drain(..) {
            let ended = worker.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked")));
            all = all.and(ended);
        }
        self.control.end();
        drop(self.cleaner.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(self.asker.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.stale.end();
        if !self.ended.swap(true, Ordering::AcqRel) {
            self.mountpoint.clear();
        }
        all.map_err(|source| Error::Io { doing: "serve", path: self.mountpoint.dir.clone(), source })
    }

    /// Takes the mount away from its directory. [`Session::wait`] says when it has ended.
    pub fn unmount(&self) -> Result<Unmounted, Error> {
        if self.ended.load(Ordering::Acquire) { Ok(Unmounted::Done) } else { self.mountpoint.unmount() }
    }

    /// Takes the mount away, and waits only if nobody uses it: what is open fails when this process
    /// ends. Returns whether the mount has ended.
    pub fn give_up(self) -> bool {
        let ended = matches!(self.unmount(), Ok(Unmounted::Done)) && self.wait().is_ok();
        if !ended {
            // Dropping it would wait.
            std::mem::forget(self);
        }
        ended
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.ended.load(Ordering::Acquire) {
            return;
        }
        match self.unmount().and_then(|_| self.wait()) {
            Ok(()) => {}
            // The workers end with the process.
            Err(error) => tracing::warn!("{error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Answer, Request};

    /// Fails at the first request.
    struct Faulty;

    impl Answers for Faulty {
        fn answer(&self, _: &Request<'_>, _: &mut Answer<'_>) -> Option<i32> {
            panic!("a worker's fault, as this test wants it")
        }
    }

    /// Without `fuse.enable_uring`, or not as root, there is nothing to test.
    #[test]
    fn a_mount_ends_with_the_worker_of_a_cpu() {
        let on = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
        if !rustix::process::geteuid().is_root() || !on.is_ok_and(|on| on.trim() == "Y") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let options = Options { ring: true, ..Options::default() };
        let session = answered(Arc::new(Faulty), dir.path(), &options, FxHashMap::default()).unwrap();
        assert!(session.by_ring());
        let error = rustix::fs::statvfs(dir.path()).err();
        assert_eq!(error, Some(rustix::io::Errno::CONNABORTED));
        session.wait().unwrap_err();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the mount is gone");
    }
}
