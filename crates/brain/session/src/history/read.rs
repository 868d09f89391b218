//! Finds times in the history, also while a daemon writes it.
//!
//! **Limits.** The daemon may make minutes of a file between the look at the directory and the look
//! at the file: then those are read.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use command::exit::Failure;
use rustix::fs::OFlags;

use super::Summary;
use super::form::{HOUR, decode};

/// More than this is read of no file: it is not ours.
const LONGEST: u64 = 256 << 20;
/// From the beginning of a file to its end, at most: an hour, and a window as long as they can be.
const SPAN: f64 = 2.0 * HOUR + 60.0;

/// A file of the history.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub path: PathBuf,
    pub number: u64,
    /// Seconds since 1970.
    pub begin_s: f64,
    /// Whether its summaries are a minute each, and not ten seconds.
    pub minutes: bool,
    pub bytes: u64,
}

impl Segment {
    pub fn name(number: u64, begin_s: f64, minutes: bool) -> String {
        format!("{number:010}-{}.{}", begin_s.round() as u32, if minutes { "60s" } else { "10s" })
    }

    fn of(path: PathBuf, bytes: u64) -> Option<Self> {
        let (number, begin) = path.file_stem()?.to_str()?.split_once('-')?;
        let (number, begin_s) = (number.parse().ok()?, begin.parse::<u32>().ok()?.into());
        let minutes = match path.extension()?.to_str()? {
            "10s" => false,
            "60s" => true,
            _ => return None,
        };
        Some(Self { path, number, begin_s, minutes, bytes })
    }

    fn hour(&self) -> (u64, u64) {
        (self.number, self.begin_s as u64)
    }

    /// Whether this one has the minutes of the other.
    pub fn replaces(&self, other: &Self) -> bool {
        self.hour() == other.hour() && self.minutes && !other.minutes
    }

    pub fn read(&self) -> io::Result<Vec<u8>> {
        let (mut bytes, longer) = (Vec::new(), self.path.with_extension("60s"));
        // No link, and no pipe that was put in its place.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let open = |path: &Path| OpenOptions::new().read(true).custom_flags(flags).open(path);
        let file = open(&self.path).or_else(|error| match error.kind() {
            ErrorKind::NotFound => open(&longer),
            _ => Err(error),
        });
        file?.take(LONGEST).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// The files, the oldest first; of one that was just folded, minutes before seconds.
pub(super) fn segments(dir: &Path) -> io::Result<Vec<Segment>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        // The daemon may have removed it.
        let Ok(meta) = entry.metadata() else { continue };
        all.extend(Segment::of(entry.path(), meta.len()).filter(|_| meta.is_file()));
    }
    all.sort_by_key(|segment| (segment.hour(), !segment.minutes));
    Ok(all)
}

/// The files to read; none where nothing is kept.
fn readable(dir: &Path) -> Result<Vec<Segment>, Failure> {
    match segments(dir) {
        Ok(mut all) => {
            all.dedup_by(|segment, before| before.replaces(segment));
            Ok(all)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Failure::io("read", dir, &error)),
    }
}

/// The summaries of a file; none if the daemon has just removed it.
fn load(segment: &Segment) -> Result<(Vec<Summary>, u64), Failure> {
    match segment.read() {
        Ok(bytes) => Ok(decode(&bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok((Vec::new(), 0)),
        Err(error) => Err(Failure::io("read", &segment.path, &error)),
    }
}

/// From one time to another, seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    pub since_s: f64,
    pub until_s: f64,
}

/// What was found in a range.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Found {
    pub summaries: u64,
    /// Summaries that were not written in time, and those that are damaged or cut short; these
    /// may be of other times of the same files.
    pub lost: u64,
    pub damaged: u64,
    /// When the first one began and the last one ended, seconds since 1970.
    pub between_s: Option<(f64, f64)>,
}

impl Found {
    pub fn of(summary: &Summary) -> Self {
        let between_s = Some((summary.begin_s(), summary.unix_s));
        Self { summaries: 1, between_s, ..Self::default() }
    }
}

/// Passes on the summaries that ended in a range, in the order in which they were written.
///
/// # Errors
///
/// The directory may not be read.
pub fn read(dir: &Path, range: Range, mut each: impl FnMut(&Summary)) -> Result<Found, Failure> {
    let mut found = Found::default();
    for segment in readable(dir)? {
        if segment.begin_s > range.until_s || segment.begin_s + SPAN < range.since_s {
            continue;
        }
        let (summaries, damaged) = load(&segment)?;
        found.damaged += damaged;
        for summary in summaries.iter().filter(|s| s.unix_s > range.since_s && s.unix_s <= range.until_s) {
            found.summaries += 1;
            found.lost = found.lost.saturating_add(summary.lost);
            let (begin, end) = found.between_s.unwrap_or((summary.begin_s(), summary.unix_s));
            found.between_s = Some((begin.min(summary.begin_s()), end.max(summary.unix_s)));
            each(summary);
        }
    }
    Ok(found)
}

/// A place in the history, to go back and forth from.
#[derive(Debug)]
pub struct Cursor {
    segments: Vec<Segment>,
    /// Which of them, and which of its summaries.
    segment: usize,
    summaries: Vec<Summary>,
    at: usize,
}

impl Cursor {
    /// The summary of this time, seconds since 1970; or the last one that began before it, or else
    /// the first. `None` if there is none at all.
    ///
    /// # Errors
    ///
    /// The directory may not be read.
    pub fn at(dir: &Path, unix_s: f64) -> Result<Option<Self>, Failure> {
        let segments = readable(dir)?;
        let mut best: Option<Self> = None;
        for (segment, of) in segments.iter().enumerate().rev() {
            // Names have whole seconds.
            let began = of.begin_s <= unix_s + 1.0;
            // Without a step of the clock it is the first that began before.
            if !began || best.is_some() && unix_s > of.begin_s + SPAN {
                continue;
            }
            let (summaries, _) = load(of)?;
            let Some(at) = summaries.iter().rposition(|s| s.begin_s() <= unix_s) else { continue };
            let covers = summaries.get(at).is_some_and(|s| s.has(unix_s));
            if covers || best.is_none() {
                best = Some(Self { segments: segments.clone(), segment, summaries, at });
            }
            if covers {
                break;
            }
        }
        if best.is_some() {
            return Ok(best);
        }
        for (segment, of) in segments.iter().enumerate() {
            let (summaries, _) = load(of)?;
            if !summaries.is_empty() {
                return Ok(Some(Self { segments, segment, summaries, at: 0 }));
            }
        }
        Ok(None)
    }

    pub fn summary(&self) -> Option<&Summary> {
        self.summaries.get(self.at)
    }

    /// Goes to the summary before, or after; stays where there is none, and says so.
    ///
    /// # Errors
    ///
    /// The directory may not be read.
    pub fn step(&mut self, back: bool) -> Result<bool, Failure> {
        let by = |at: usize| if back { at.checked_sub(1) } else { at.checked_add(1) };
        if let Some(at) = by(self.at).filter(|at| *at < self.summaries.len()) {
            self.at = at;
            return Ok(true);
        }
        let mut next = by(self.segment);
        while let Some((segment, of)) = next.and_then(|at| Some((at, self.segments.get(at)?))) {
            let (summaries, _) = load(of)?;
            if let Some(last) = summaries.len().checked_sub(1) {
                (self.segment, self.at, self.summaries) = (segment, if back { last } else { 0 }, summaries);
                return Ok(true);
            }
            next = by(segment);
        }
        Ok(false)
    }
}
