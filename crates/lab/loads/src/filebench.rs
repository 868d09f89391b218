//! filebench's personalities on any file system.
//!
//! **Problem.** The papers measure with filebench's fileserver, webserver, webproxy, varmail and
//! videoserver, and Debian has no filebench.
//!
//! **Approach.** The rounds of operations are those published with filebench 1.4.9. [`fill`] makes the files, [`run`] lets threads go through the rounds. A thread picks a file at
//! random under the lock of the file set. As in filebench, an append draws its bytes, and a thread
//! of videoserver opens the next file of the set once and streams it for ever. simpleread of the
//! ARC thesis is a videoserver of one thread and one file.
//!
//! **Limits.** Files are as large as the mean when they are made, and grow by appends, in one
//! directory. webserver's log grows.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};

use crate::hot_set::Random;

/// A personality.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Personality {
    /// Create, write, append, read, delete whole files.
    Fileserver,
    /// Ten whole-file reads, then an append to the log.
    Webserver,
    /// Delete, create, append, then five whole-file reads.
    Webproxy,
    /// Mail: delete; create, append, fsync; read, append, fsync; read.
    Varmail,
    /// Each thread streams one video, again and again.
    Videoserver,
}

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Filebench {
    /// Which.
    pub personality: Personality,
    /// Threads.
    pub threads: u32,
    /// Files.
    pub files: f64,
    /// Mean bytes of a file.
    pub file_size: f64,
    /// Bytes per call.
    pub io_size: f64,
}

/// One step of a round; each counts as one operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FlowOp {
    /// Opens a file that exists, picked at random.
    Open,
    /// Closes the file that was opened or created last.
    Close,
    /// Creates a file that does not exist.
    Create,
    /// Deletes a file, picked at random.
    Delete,
    /// Asks for a file's attributes.
    Stat,
    /// Reads the whole file.
    Read,
    /// Writes the whole file.
    Write,
    /// Goes on reading the thread's one file, in a call of the I/O size, and from its beginning at
    /// its end.
    Stream,
    /// Appends less than so many bytes: any number is as likely, half of it is the mean.
    Append(f64),
    /// Appends as many to the log, a separate file that is never read.
    Log(f64),
    /// Makes the file's data durable.
    Fsync,
}

/// `iosize` of `appendfilerand` in every personality: it draws the bytes from 0 to this.
const APPEND: f64 = 16.0 * 1024.0;

impl Personality {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Fileserver, Self::Webserver, Self::Webproxy, Self::Varmail, Self::Videoserver];

    /// Name as filebench knows it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fileserver => "fileserver",
            Self::Webserver => "webserver",
            Self::Webproxy => "webproxy",
            Self::Varmail => "varmail",
            Self::Videoserver => "videoserver",
        }
    }

    /// The loop of a thread.
    pub fn round(self) -> Vec<FlowOp> {
        use FlowOp::{Append, Close, Create, Delete, Fsync, Log, Open, Read, Stat, Stream, Write};
        let reads = |n: usize| [Open, Read, Close].repeat(n);
        match self {
            Self::Fileserver => {
                vec![Create, Write, Close, Open, Append(APPEND), Close, Open, Read, Close, Delete, Stat]
            }
            Self::Webserver => [reads(10), vec![Log(APPEND)]].concat(),
            Self::Webproxy => [vec![Delete, Create, Append(APPEND), Close], reads(5)].concat(),
            Self::Varmail => {
                let create = [Delete, Create, Append(APPEND), Fsync, Close];
                let update = [Open, Read, Append(APPEND), Fsync, Close];
                [&create[..], &update, &[Open, Read, Close]].concat()
            }
            Self::Videoserver => vec![Stream],
        }
    }

    /// Bytes of a call where nothing else is said: filebench's `iosize`.
    pub const fn io_size(self) -> f64 {
        match self {
            Self::Videoserver => 256.0 * KB,
            _ => KB * KB,
        }
    }

    /// The personality of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|personality| personality.name() == name)
    }
}

const KB: f64 = 1024.0;
/// Bytes of webserver's log that are kept.
const LOG: f64 = 16e6;

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Operations, as filebench counts them.
    pub operations: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// The numbers of files that exist, those that are free, and the first one that never was a file.
struct Set {
    existing: Vec<u64>,
    free: Vec<u64>,
    next: u64,
}

impl Set {
    fn filled(files: u64) -> Mutex<Self> {
        let (existing, free) = ((0..files).collect(), Vec::new());
        Mutex::new(Self { existing, free, next: files })
    }
}

/// Makes the files.
pub fn fill(dir: &Path, what: &Filebench) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let piece: Vec<u8> = (0..1 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for number in 0..what.files as u64 {
        let path = path(dir, number);
        let mut left = what.file_size as u64;
        let mut file = File::create(&path).with_context(|| path.display().to_string())?;
        while left > 0 {
            let part = &piece[..left.min(piece.len() as u64) as usize];
            file.write_all(part).with_context(|| path.display().to_string())?;
            left -= part.len() as u64;
        }
    }
    Ok(())
}

/// Lets the threads work on files that [`fill`] made, for a time; `ready` is called when all of
/// them have started.
pub fn run(dir: &Path, what: &Filebench, time: Duration, ready: impl FnOnce() -> Result<()>) -> Result<Done> {
    let set = Set::filled(what.files as u64);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let start = |i: u32| {
            let seed = u64::from(i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut one = Worker::new(dir, what, (&set, &stop), (u64::from(i), seed));
            scope.spawn(move || one.work().map(|()| one.done))
        };
        let workers: Vec<_> = (0..what.threads).map(start).collect();
        let began = ready();
        if began.is_ok() {
            thread::sleep(time);
        }
        stop.store(true, Ordering::Relaxed);
        let mut all = Done::default();
        for worker in workers {
            let done = worker.join().map_err(|_| anyhow!("a thread of filebench panicked"))??;
            all.operations += done.operations;
            all.read_bytes += done.read_bytes;
            all.written_bytes += done.written_bytes;
        }
        began.map(|()| all)
    })
}

fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("file{number}"))
}

struct Worker<'a> {
    dir: &'a Path,
    what: &'a Filebench,
    set: &'a Mutex<Set>,
    stop: &'a AtomicBool,
    open: Option<File>,
    /// The number of the file that it streams.
    own: u64,
    random: Random,
    done: Done,
}

impl<'a> Worker<'a> {
    fn new(
        dir: &'a Path,
        what: &'a Filebench,
        (set, stop): (&'a Mutex<Set>, &'a AtomicBool),
        (thread, seed): (u64, u64),
    ) -> Self {
        let (own, random) = (thread % (what.files as u64).max(1), Random::new(seed));
        Self { dir, what, set, stop, open: None, own, random, done: Done::default() }
    }

    fn work(&mut self) -> Result<()> {
        let round = self.what.personality.round();
        let mut buffer = vec![7; self.what.io_size as usize];
        loop {
            for op in &round {
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                if self.step(*op, &mut buffer).with_context(|| format!("{op:?} in {}", self.dir.display()))? {
                    self.done.operations += 1;
                }
            }
        }
    }

    /// Does one operation; says whether there was a file for it.
    fn step(&mut self, op: FlowOp, buffer: &mut [u8]) -> Result<bool> {
        match op {
            FlowOp::Open => self.open_one()?,
            FlowOp::Create => {
                let number = self.with(|set, _| {
                    set.free.pop().unwrap_or_else(|| {
                        set.next += 1;
                        set.next - 1
                    })
                });
                let mut options = OpenOptions::new();
                self.open = Some(options.read(true).append(true).create_new(true).open(path(self.dir, number))?);
                self.with(|set, _| set.existing.push(number));
            }
            FlowOp::Delete => {
                let picked = self.with(|set, random| {
                    let at = (!set.existing.is_empty()).then(|| random as usize % set.existing.len())?;
                    Some(set.existing.swap_remove(at))
                });
                let Some(number) = picked else { return Ok(false) };
                fs::remove_file(path(self.dir, number))?;
                self.with(|set, _| set.free.push(number));
            }
            FlowOp::Stat => {
                let Some(path) = self.pick() else { return Ok(false) };
                match fs::metadata(path) {
                    Err(e) if e.kind() != ErrorKind::NotFound => return Err(e.into()),
                    _ => {}
                }
            }
            FlowOp::Stream => {
                if self.open.is_none() {
                    self.open = Some(File::open(path(self.dir, self.own))?);
                }
                let Some(file) = &mut self.open else { return Ok(false) };
                let mut read = file.read(buffer)?;
                if read == 0 {
                    file.rewind()?;
                    read = file.read(buffer)?;
                }
                self.done.read_bytes += read as u64;
                return Ok(read > 0);
            }
            FlowOp::Read => {
                if let Some(file) = &mut self.open {
                    file.rewind()?;
                    while !self.stop.load(Ordering::Relaxed) {
                        let n = file.read(buffer)?;
                        self.done.read_bytes += n as u64;
                        if n == 0 {
                            break;
                        }
                    }
                }
            }
            FlowOp::Write => self.append(self.what.file_size as u64, buffer)?,
            FlowOp::Append(most) => self.append_some(most, buffer)?,
            FlowOp::Log(most) => {
                let log = self.dir.join("log");
                let file = OpenOptions::new().read(true).append(true).create(true).open(log)?;
                if file.metadata()?.len() as f64 > LOG {
                    file.set_len(0)?;
                }
                self.open = Some(file);
                self.append_some(most, buffer)?;
                self.open = None;
            }
            FlowOp::Fsync => {
                if let Some(file) = &self.open {
                    file.sync_all()?;
                }
            }
            FlowOp::Close => self.open = None,
        }
        Ok(true)
    }

    /// Opens a file at random; none if there is none, or at the end of the run.
    fn open_one(&mut self) -> Result<()> {
        self.open = None;
        while let Some(path) = self.pick().filter(|_| !self.stop.load(Ordering::Relaxed)) {
            match OpenOptions::new().read(true).append(true).open(path) {
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                opened => {
                    self.open = Some(opened?);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Appends less than `most` bytes: `appendfilerand`.
    fn append_some(&mut self, most: f64, buffer: &[u8]) -> Result<()> {
        let bytes = self.with(|_, random| random % (most as u64).max(1));
        self.append(bytes, buffer)
    }

    fn append(&mut self, bytes: u64, buffer: &[u8]) -> Result<()> {
        let Some(file) = &mut self.open else { return Ok(()) };
        let mut left = bytes;
        while left > 0 {
            let part = &buffer[..left.min(buffer.len() as u64) as usize];
            file.write_all(part)?;
            self.done.written_bytes += part.len() as u64;
            left -= part.len() as u64;
        }
        Ok(())
    }

    /// A file that exists.
    fn pick(&mut self) -> Option<PathBuf> {
        let number = self.with(|set, random| set.existing.get(random as usize % set.existing.len().max(1)).copied());
        number.map(|number| path(self.dir, number))
    }

    /// Under the lock of the file set, with a random number.
    fn with<T>(&mut self, act: impl FnOnce(&mut Set, u64) -> T) -> T {
        let random = self.random.draw() >> 8;
        act(&mut self.set.lock().unwrap_or_else(PoisonError::into_inner), random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_personality_reads_and_writes_as_its_round_says() {
        for personality in Personality::ALL {
            let dir = tempfile::tempdir().unwrap();
            let what = Filebench { personality, threads: 3, files: 4.0, file_size: 8192.0, io_size: 4096.0 };
            fill(dir.path(), &what).unwrap();
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4);
            assert_eq!(fs::metadata(path(dir.path(), 3)).unwrap().len(), 8192);
            let set = Set::filled(4);
            let stop = AtomicBool::new(false);
            let (dir, what) = (dir.path(), &what);
            let mut one = Worker::new(dir, what, (&set, &stop), (0, 1));
            let mut buffer = vec![1; 4096];
            for op in personality.round() {
                assert!(one.step(op, &mut buffer).unwrap(), "{op:?}");
            }
            let (written, appends) = match personality {
                Personality::Fileserver => (8192, 1),
                Personality::Webserver | Personality::Webproxy => (0, 1),
                Personality::Varmail => (0, 2),
                Personality::Videoserver => (0, 0),
            };
            let less = written + appends * 16384;
            assert!(one.done.read_bytes >= 4096, "{personality:?}: {:?}", one.done);
            let writes = one.done.written_bytes;
            assert!(written <= writes && (writes < less || appends == 0), "{personality:?}: {:?}", one.done);
            let files = set.lock().unwrap().existing.len();
            assert_eq!(files, 4, "as many are created as deleted: {personality:?}");
        }
    }

    /// Every append had 16 KiB, twice the mean of filebench's `appendfilerand`.
    #[test]
    fn an_append_draws_its_bytes_and_has_eight_kilobytes_on_average() {
        let dir = tempfile::tempdir().unwrap();
        let personality = Personality::Varmail;
        let what = Filebench { personality, threads: 1, files: 1.0, file_size: 1.0, io_size: 65536.0 };
        let (set, stop) = (Set::filled(1), AtomicBool::new(false));
        let mut one = Worker::new(dir.path(), &what, (&set, &stop), (0, 1));
        one.open = Some(File::create(dir.path().join("log")).unwrap());
        let mut sizes = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            let before = one.done.written_bytes;
            one.step(FlowOp::Append(16384.0), &mut vec![1; 65536]).unwrap();
            sizes.insert(one.done.written_bytes - before);
        }
        assert!(sizes.len() > 900 && sizes.last() < Some(&16384), "{} sizes, {:?}", sizes.len(), sizes.last());
        let mean = one.done.written_bytes / 1000;
        assert!((7700..8700).contains(&mean), "{mean}");
    }

    /// A thread picked another file at random after each.
    #[test]
    fn a_thread_of_videoserver_streams_one_file_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let personality = Personality::Videoserver;
        let what = Filebench { personality, threads: 2, files: 3.0, file_size: 10000.0, io_size: 4096.0 };
        fill(dir.path(), &what).unwrap();
        let (set, stop) = (Set::filled(3), AtomicBool::new(false));
        for thread in [0, 1, 5] {
            let mut one = Worker::new(dir.path(), &what, (&set, &stop), (thread, 1));
            for _ in 0..7 {
                assert!(one.step(FlowOp::Stream, &mut [0; 4096]).unwrap());
            }
            // 4096, 4096, 1808, and again; then the seventh call.
            assert_eq!(one.done.read_bytes, 24096, "calls of the I/O size, from the beginning at the end");
            let open = one.open.as_ref().unwrap();
            let name = fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(open))).unwrap();
            assert_eq!(name, path(dir.path(), thread % 3), "the descriptor stays");
        }
    }

    #[test]
    fn threads_share_the_files_without_an_error() {
        for personality in Personality::ALL {
            let dir = tempfile::tempdir().unwrap();
            // Fewer files than threads, so that all of them can be deleted at once.
            let what = Filebench { personality, threads: 6, files: 2.0, file_size: 4096.0, io_size: 4096.0 };
            fill(dir.path(), &what).unwrap();
            let done = run(dir.path(), &what, Duration::from_millis(50), || Ok(())).unwrap();
            assert!(done.operations > 0, "{personality:?}");
            assert!(run(dir.path(), &what, Duration::ZERO, || Err(anyhow!("no"))).is_err());
        }
    }

    /// It looked for a file of its set for ever.
    #[test]
    fn a_run_ends_although_its_files_were_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        let personality = Personality::named("webserver").unwrap();
        let what = Filebench { personality, threads: 2, files: 4.0, file_size: 4096.0, io_size: 4096.0 };
        fill(dir.path(), &what).unwrap();
        let take_away = || Ok((0..4).try_for_each(|number| fs::remove_file(path(dir.path(), number)))?);
        run(dir.path(), &what, Duration::from_millis(50), take_away).unwrap();
    }
}
