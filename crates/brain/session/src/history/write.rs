//! Writes the history: a ring of files, each with an hour of summaries.
//!
//! **Problem.** A disk can be full, slow or silent, and the loop that undoes moves must not notice.
//! A crash can cut the last summary short. The clock can be set.
//!
//! **Approach.** [`Recorder`] adds windows up and hands summaries to a thread through a channel
//! that holds few; what does not fit is dropped and counted. Each start, each hour and each step of
//! the clock begins a file of its own, named by a rising number and the time of its beginning, so
//! nothing is ever added behind what a crash cut short, and the times in a file rise. With each new
//! file the thread makes one of minutes of those that are older than a day, and removes those older
//! than a week, and the oldest of more than the settings allow. What cannot be removed stays, and
//! what cannot be read stays for its week.
//!
//! **Limits.** A clock that runs a week ahead for a moment costs what is older.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use command::exit;
use engine::StateDir;
use linux::clock::boot_s;
use placement::{Plan, Snapshot, Thread};
use rustix::thread::CapabilitySet;
use topology::NodeId;

use super::form::{HOUR, MAGIC, Texts, each, encode};
use super::read::{Segment, segments};
use super::{LENGTHS, Summary};
use crate::status::now_s;

/// Summaries that wait for the disk.
const WAITING: usize = 6;
/// How long the end of the daemon waits for the disk.
const LAST: Duration = Duration::from_millis(500);
/// Length of the part with ten seconds each, and of all, seconds.
const DAY: f64 = 24.0 * HOUR;
const WEEK: f64 = 7.0 * DAY;
/// Seconds by which a clock must be set to begin another file. Slewing changes the clock since the
/// boot by as much, so their difference stays; a leap second changes it by one.
const STEP: f64 = 5.0;
/// Files that are kept at most, whatever their sizes: a week has 168 hours, and each start, in a
/// crash loop too, makes one more.
const MOST_FILES: usize = 1000;
/// What a small file takes on a disk, bytes.
const BLOCK: u64 = 4096;
/// The extension of a file that is to take the place of another.
const NEW: &str = "new";
/// A file is at most this part of all.
const PARTS: u64 = 8;

/// Adds windows up for the thread that writes.
#[derive(Debug)]
pub struct Recorder {
    now: Summary,
    to: Option<SyncSender<(Summary, f64)>>,
    ended: Receiver<()>,
    lost: u64,
}

impl Recorder {
    /// Keeps at most so many bytes in this directory, which is made if it is missing.
    pub fn start(dir: &Path, most_bytes: u64) -> Self {
        let (to, from) = sync_channel(WAITING);
        let (end, ended) = channel();
        let writer = Writer::new(dir, most_bytes);
        let begun = thread::Builder::new().name("history".into()).spawn(move || writer.run(&from, end));
        if let Err(error) = begun {
            tracing::warn!("no history is kept: cannot start a thread: {error}");
        }
        Self { now: Summary::default(), to: Some(to), ended, lost: 0 }
    }

    /// See [`Summary::add_thread`].
    pub fn thread(&mut self, row: &str, service: &str, thread: &Thread) {
        self.now.add_thread(row, service, thread);
    }

    /// See [`Summary::add_unlisted`].
    pub fn unlisted(&mut self, node: NodeId, bytes: u64) {
        self.now.add_unlisted(node, bytes);
    }

    /// Ends a window, and a summary that is long enough.
    pub fn window(&mut self, snapshot: &Snapshot, plan: &Plan) {
        self.now.add_window(snapshot, plan, now_s());
        let [length, _] = LENGTHS;
        // As near as windows come.
        if self.now.seconds + snapshot.window_s / 2.0 >= length {
            self.put();
        }
    }

    fn put(&mut self) {
        let mut summary = std::mem::take(&mut self.now);
        summary.end();
        summary.lost = self.lost;
        let Some(to) = &self.to else { return };
        if to.try_send((summary, boot_s())).is_ok() {
            self.lost = 0;
            return;
        }
        if self.lost == 0 {
            tracing::warn!("the disk of the history does not answer: summaries are lost until it does");
        }
        self.lost += 1;
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.now.windows > 0 {
            self.put();
        }
        self.to = None;
        let _ = self.ended.recv_timeout(LAST);
    }
}

#[derive(Debug)]
pub(super) struct Writer {
    dir: PathBuf,
    most_bytes: u64,
    open: Option<Open>,
    /// Bytes of all other files.
    others: u64,
    lost: u64,
}

#[derive(Debug)]
struct Open {
    path: PathBuf,
    file: File,
    len: u64,
    texts: Texts,
    boot_s: f64,
    /// What the clock shows more than the time since boot.
    ahead_s: f64,
}

impl Writer {
    pub fn new(dir: &Path, most_bytes: u64) -> Self {
        Self { dir: dir.to_owned(), most_bytes, open: None, others: 0, lost: 0 }
    }

    /// `_end`: closed when it is over.
    fn run(mut self, from: &Receiver<(Summary, f64)>, _end: Sender<()>) {
        if let Err(error) = linux::privileges::keep_only(CapabilitySet::empty()) {
            tracing::warn!("the thread that writes the history keeps its privileges: {error}");
        }
        for (summary, boot_s) in from {
            self.take(summary, boot_s);
        }
    }

    /// Writes a summary, or counts it as lost, and says so once.
    pub fn take(&mut self, mut summary: Summary, boot_s: f64) {
        let before = self.lost;
        summary.lost += before;
        self.lost = match self.write(&mut summary, boot_s) {
            Ok(()) => 0,
            Err(error) => {
                if before == 0 {
                    let dir = self.dir.display();
                    tracing::warn!("{dir}: {error}: the history lacks what happens until it can be written again");
                }
                self.open = None;
                summary.lost + 1
            }
        };
    }

    fn write(&mut self, summary: &mut Summary, boot_s: f64) -> io::Result<()> {
        let ahead_s = summary.unix_s - boot_s;
        let most = self.most_bytes / PARTS;
        let removed = |o: &Open| o.file.metadata().is_ok_and(|meta| meta.nlink() == 0);
        let ends = |o: &Open| {
            boot_s - o.boot_s >= HOUR || (ahead_s - o.ahead_s).abs() > STEP || o.len > most.max(BLOCK) || removed(o)
        };
        let open = match self.open.take().filter(|open| !ends(open)) {
            Some(mut open) => {
                let frame = encode(summary, &mut open.texts)?;
                if let Err(error) = open.file.write_all(&frame).and_then(|()| open.file.sync_data()) {
                    // What follows goes into a file of its own: this one lacks texts.
                    let _ = open.file.set_len(open.len);
                    return Err(error);
                }
                Open { len: open.len + frame.len() as u64, ..open }
            }
            None => {
                let number = self.tidy(summary.unix_s)?;
                let path = self.dir.join(Segment::name(number, summary.begin_s(), false));
                let mut texts = Texts::default();
                let bytes = [MAGIC.as_slice(), encode(summary, &mut texts)?.as_slice()].concat();
                let file = create(&path, &bytes)?;
                Open { path, file, len: bytes.len() as u64, texts, boot_s: boot_s - summary.seconds, ahead_s }
            }
        };
        let sum = self.others.saturating_add(open.len);
        self.open = Some(open);
        if sum > self.most_bytes
            && let Err(error) = self.bound()
        {
            tracing::debug!("{}: {error}", self.dir.display());
        }
        Ok(())
    }

    /// Makes the directory, folds files that are a day old, and removes those that are too old or
    /// too many. Returns the number of the next file.
    fn tidy(&mut self, now_s: f64) -> io::Result<u64> {
        StateDir::make(&self.dir).map_err(|e| io::Error::other(exit::chain(&e)))?;
        std::fs::set_permissions(&self.dir, Permissions::from_mode(0o700))?;
        let all = segments(&self.dir)?;
        let next = all.last().map_or(0, |last| last.number.saturating_add(1));
        remove_begun(&self.dir)?;
        let (mut before, mut folds, mut full): (Option<&Segment>, bool, bool) = (None, false, false);
        for segment in &all {
            // A crash came between the two steps of folding: minutes come first.
            let folded = before.replace(segment).is_some_and(|before| before.replaces(segment));
            if folded || now_s > segment.begin_s + HOUR + WEEK {
                remove(&segment.path);
            } else if !segment.minutes && !full && now_s > segment.begin_s + HOUR + DAY {
                let path = self.dir.join(Segment::name(segment.number, segment.begin_s, true));
                // On a full disk, or if nothing in it can be read, it stays until its week is over.
                match fold(segment, &path) {
                    Ok(()) => _ = remove(&segment.path),
                    Err(error) => {
                        // The others would find the disk as full.
                        full = error.raw_os_error().is_some();
                        tracing::debug!("{}: {error}", path.display());
                    }
                }
                folds = true;
            }
        }
        if folds {
            linux::heap::trim();
        }
        self.bound()?;
        Ok(next)
    }

    /// Removes the oldest of too many bytes or files.
    fn bound(&mut self) -> io::Result<()> {
        let all = segments(&self.dir)?;
        let open = self.open.as_ref().map(|open| &open.path);
        let (mut bytes, mut files) = (all.iter().map(|s| s.bytes.max(BLOCK)).sum::<u64>(), all.len());
        for segment in all.iter().filter(|segment| Some(&segment.path) != open) {
            if bytes <= self.most_bytes && files < MOST_FILES {
                break;
            }
            if remove(&segment.path) {
                (bytes, files) = (bytes - segment.bytes.max(BLOCK), files - 1);
            }
        }
        self.others = bytes.saturating_sub(self.open.as_ref().map_or(0, |open| open.len));
        Ok(())
    }
}

/// Removes a file, if it is still there. One that cannot be removed keeps nobody from going on.
fn remove(path: &Path) -> bool {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            tracing::debug!("{}: {error}", path.display());
            false
        }
        _ => true,
    }
}

/// What a crash or a full disk left of files that were to take another's place.
fn remove_begun(dir: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == NEW) {
            remove(&path);
        }
    }
    Ok(())
}

/// A new file that only its owner may read, with all of these bytes; or none.
fn create(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let mut file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes).and_then(|()| file.sync_data()).inspect_err(|_| _ = remove(path))?;
    Ok(file)
}

/// The summaries of a file, a minute each, as another file.
fn fold(segment: &Segment, path: &Path) -> io::Result<()> {
    let (mut texts, mut folded) = (Texts::default(), MAGIC.to_vec());
    let mut put = |mut summary: Summary| {
        summary.cut();
        encode(&mut summary, &mut texts).map(|frame| folded.extend(frame))
    };
    let [short, length] = LENGTHS;
    let (mut minute, mut wrote) = (Summary::default(), Ok(()));
    let damaged = each(&segment.read()?, false, |summary| {
        let apart = summary.begin_s() > minute.unix_s + short;
        if minute.windows > 0 && (apart || minute.seconds + summary.seconds / 2.0 > length) && wrote.is_ok() {
            wrote = put(std::mem::take(&mut minute));
        }
        minute.add(summary);
    });
    wrote?;
    if minute.windows == 0 {
        return Err(io::Error::new(ErrorKind::InvalidData, "no summary in it can be read"));
    }
    minute.lost = minute.lost.saturating_add(damaged);
    put(minute)?;
    let new = path.with_extension(NEW);
    create(&new, &folded)?;
    std::fs::rename(&new, path).inspect_err(|_| _ = remove(&new))
}

/// Removes all that was kept, for who keeps nothing any more; in a thread of its own, so no disk
/// keeps the start waiting.
///
/// # Errors
///
/// A thread cannot be started.
pub fn forget(dir: &Path) -> io::Result<thread::JoinHandle<()>> {
    let dir = dir.to_owned();
    let clear = move || -> io::Result<()> {
        // Where it is missing, it need not be made; in a directory of somebody else's nothing is
        // removed.
        if !dir.is_dir() {
            return Ok(());
        }
        StateDir::make(&dir).map_err(|e| io::Error::other(exit::chain(&e)))?;
        remove_begun(&dir)?;
        segments(&dir)?.iter().for_each(|segment| _ = remove(&segment.path));
        Ok(())
    };
    thread::Builder::new().name("history".into()).spawn(move || {
        let _ = linux::privileges::keep_only(CapabilitySet::empty());
        if let Err(error) = clear() {
            tracing::warn!("the history stays: {error}");
        }
    })
}
