//! Recordings: one JSON snapshot per line.
//!
//! **Problem.** Recordings are made on busy servers, where disks fill up, terminals close and two
//! recorders start at once.
//!
//! **Approach.** A line is written with one call after it is complete; when that fails half way,
//! the file is cut back to the line before. A file that is not a recording, or another user's, is
//! never appended to, and two recorders never share one. A new one is for its owner to read.
//!
//! **Limits.** Pipes and devices cannot be cut back or locked. Only the first line of a file is
//! looked at before appending.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use placement::Snapshot;

use crate::exit::{Exit, Failure};

/// Longest line that is read: a snapshot of 100,000 threads is below it.
const LONGEST_LINE: u64 = 1 << 30;

/// Largest snapshot that is read: 100,000 threads with ten files each are below it.
const LARGEST: u64 = 1 << 30;

pub struct Writer {
    path: PathBuf,
    out: File,
    /// Length of the whole lines, for a regular file; `None` for a pipe or a device.
    whole: Option<u64>,
}

impl Writer {
    /// Opens or creates the file for appending; `-` is stdout.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let io = |action: &'static str| move |e: io::Error| Failure::io(action, path, &e);
        if path == Path::new("-") {
            let out = File::from(rustix::io::dup(io::stdout()).map_err(|e| Failure::io("open", path, &e.into()))?);
            return Ok(Self { path: PathBuf::from("stdout"), out, whole: None });
        }
        let regular = path.metadata().map_or(true, |meta| meta.is_file());
        let mut options = OpenOptions::new();
        // It has the names and paths of everybody.
        options.append(true).read(regular).mode(0o600);
        // A new file is ours, whomever its file system says it belongs to.
        let (out, new) = match options.clone().create_new(true).open(path) {
            Ok(out) => (out, true),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => (options.open(path).map_err(io("open"))?, false),
            Err(e) => return Err(io("open")(e)),
        };
        let mut writer = Self { path: path.to_owned(), out, whole: None };
        if regular {
            match writer.out.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let what = format!("cannot write {}", path.display());
                    return Err(Failure::new(Exit::Busy, what, "another homenode is recording to it"));
                }
                Err(TryLockError::Error(e)) => return Err(io("lock")(e)),
            }
            writer.whole = Some(if new { 0 } else { writer.check()? });
        }
        Ok(writer)
    }

    /// Checks that the file is a recording of ours and cuts off an incomplete last line. Returns
    /// the length of the rest.
    fn check(&mut self) -> Result<u64, Failure> {
        let path = self.path.clone();
        let io = |action: &'static str| move |e: io::Error| Failure::io(action, &path, &e);
        let meta = self.out.metadata().map_err(io.clone()("look at"))?;
        let sudo = std::env::var("SUDO_UID").ok().and_then(|id| id.parse().ok());
        if !owned(meta.uid(), rustix::process::geteuid().as_raw(), sudo) {
            let why = format!("it belongs to another user ({})", meta.uid());
            let failure = Failure::new(Exit::Usage, format!("cannot append to {}", self.path.display()), why);
            return Err(failure.hint("name a new file"));
        }
        let length = meta.len();
        if length == 0 {
            return Ok(0);
        }
        let mut first = Vec::new();
        let mut reader = BufReader::new(&self.out);
        reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut first).map_err(io.clone()("read"))?;
        let snapshot = std::str::from_utf8(&first).ok().filter(|line| Snapshot::from_json(line).is_ok());
        if snapshot.is_none() {
            let what = format!("cannot append to {}", self.path.display());
            let why = "it is not empty and its first line is not a snapshot";
            return Err(
                Failure::new(Exit::Usage, what, why).hint("name a new file, or one that homenode record has written")
            );
        }
        // A recorder that was killed may have left half a line.
        let whole = end_of_last_line(&mut self.out, length).map_err(io.clone()("read"))?;
        if whole < length {
            tracing::warn!("{}: its last line is cut short and was removed", self.path.display());
            self.out.set_len(whole).map_err(io("shorten"))?;
        }
        Ok(whole)
    }

    pub fn append(&mut self, snapshot: &Snapshot) -> Result<(), Failure> {
        let failure = |e: &io::Error| Failure::io("write", &self.path, e);
        let line = serde_json::to_string(snapshot).map_err(|e| failure(&e.into()))?;
        let mut line = crate::output::json_escape(&line).into_bytes();
        line.push(b'\n');
        if let Err(error) = self.out.write_all(&line) {
            let failure = failure(&error);
            return Err(match self.whole.map(|whole| self.out.set_len(whole)) {
                Some(Ok(())) => failure.hint(format!("{} holds every window before", self.path.display())),
                Some(Err(_)) => failure.hint(format!("the last line of {} is cut short", self.path.display())),
                None => failure,
            });
        }
        self.whole = self.whole.map(|whole| whole + line.len() as u64);
        Ok(())
    }

    /// Makes sure that it is on disk.
    pub fn finish(self) -> Result<(), Failure> {
        match self.whole {
            Some(_) => self.out.sync_all().map_err(|e| Failure::io("write", &self.path, &e)),
            None => Ok(()),
        }
    }
}

/// Whether a file of this owner is this process's: its user's, or of who called sudo.
fn owned(owner: u32, user: u32, sudo: Option<u32>) -> bool {
    owner == user || user == 0 && sudo == Some(owner)
}

/// Where the last newline is, from the end of the file backwards.
fn end_of_last_line(file: &mut File, length: u64) -> io::Result<u64> {
    const BLOCK: u64 = 64 * 1024;
    let mut end = length;
    let mut block = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        file.seek(SeekFrom::Start(start))?;
        block.clear();
        Read::by_ref(file).take(end - start).read_to_end(&mut block)?;
        if let Some(at) = block.iter().rposition(|b| *b == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

pub struct Reader {
    name: String,
    lines: BufReader<Box<dyn Read>>,
    line: u64,
}

/// What is read, with its name; `-` is stdin.
fn input(path: &Path) -> Result<(String, Box<dyn Read>), Failure> {
    if path == Path::new("-") {
        return Ok(("stdin".to_owned(), Box::new(io::stdin())));
    }
    let file = File::open(path).map_err(|e| Failure::io("read", path, &e))?;
    Ok((path.display().to_string(), Box::new(file)))
}

impl Reader {
    /// Opens the file; `-` is stdin.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let (name, input) = input(path)?;
        Ok(Self { name, lines: BufReader::new(input), line: 0 })
    }

    /// The next snapshot; `None` at the end.
    pub fn next_snapshot(&mut self) -> Result<Option<Snapshot>, Failure> {
        let mut line = Vec::new();
        loop {
            line.clear();
            self.line += 1;
            let read = self.lines.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line);
            read.map_err(|e| Failure::from_error(Exit::Io, format!("cannot read {}", self.name), &e))?;
            if line.is_empty() {
                return Ok(None);
            }
            if !line.iter().all(u8::is_ascii_whitespace) {
                break;
            }
        }
        let place = format!("{}:{}", self.name, self.line);
        let parsed = match std::str::from_utf8(&line) {
            // JSON over several lines, as a person or jq writes it.
            Ok(text) if text.trim() == "{" => {
                let hint = "`homenode plan --snapshot FILE` reads a single snapshot";
                Err(Failure::new(Exit::Usage, place, "not a recording: a snapshot is one line").hint(hint))
            }
            Ok(text) => Snapshot::from_json(text).map_err(|e| Failure::from_error(Exit::Usage, place, &e)),
            Err(_) => Err(Failure::new(Exit::Usage, place, "not a recording: no UTF-8 text")),
        };
        match parsed {
            Ok(snapshot) => Ok(Some(snapshot)),
            Err(_) if self.line > 1 && !line.ends_with(b"\n") => {
                tracing::warn!("{}:{}: cut short, left out", self.name, self.line);
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }
}

/// The snapshot in a file, `-` being stdin.
pub fn read_snapshot(path: &Path) -> Result<Snapshot, Failure> {
    let (name, input) = input(path)?;
    let mut text = String::new();
    let several = |text: &str| {
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        lines.next().is_some_and(|first| Snapshot::from_json(first).is_ok()) && lines.next().is_some()
    };
    match input.take(LARGEST).read_to_string(&mut text) {
        Ok(_) => Snapshot::from_json(&text).map_err(|e| match several(&text) {
            true => Failure::new(Exit::Usage, name, "not a snapshot, but a recording of several windows")
                .hint("`homenode replay` plans for each of them; `head -1` gives the first"),
            false => Failure::from_error(Exit::Usage, name, &e),
        }),
        Err(e) if e.kind() == io::ErrorKind::InvalidData => {
            Err(Failure::new(Exit::Usage, name, "not a snapshot: no UTF-8 text"))
        }
        Err(e) => Err(Failure::from_error(Exit::Usage, format!("cannot read {name}"), &e)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use placement::testing;

    use super::*;

    fn snapshot(time_s: f64) -> Snapshot {
        Snapshot { time_s, ..testing::snapshot(vec![testing::node(0, 1)], Vec::new()) }
    }

    fn times(path: &Path) -> Vec<f64> {
        let mut reader = Reader::open(path).unwrap();
        std::iter::from_fn(|| reader.next_snapshot().unwrap()).map(|s| s.time_s).collect()
    }

    #[test]
    fn a_recording_goes_on_where_a_killed_recorder_left_half_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.jsonl");
        let mut writer = Writer::open(&path).unwrap();
        writer.append(&snapshot(1.0)).unwrap();
        writer.finish().unwrap();
        let whole = fs::read(&path).unwrap();
        let half = [whole.as_slice(), &whole[..whole.len() / 2]].concat();
        fs::write(&path, half).unwrap();
        assert_eq!(times(&path), [1.0]);
        let mut writer = Writer::open(&path).unwrap();
        writer.append(&snapshot(2.0)).unwrap();
        writer.finish().unwrap();
        assert_eq!(times(&path), [1.0, 2.0]);
    }

    #[test]
    fn a_file_other_than_a_recording_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("passwd");
        fs::write(&path, "root:x:0:0\n").unwrap();
        let failure = Writer::open(&path).err().unwrap();
        assert_eq!(failure.exit(), Exit::Usage);
        assert_eq!(fs::read(&path).unwrap(), b"root:x:0:0\n");
    }

    /// It has the names and paths of everybody, and was for all to read.
    #[test]
    fn nobody_else_may_read_a_new_recording() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.jsonl");
        let mode = || path.metadata().unwrap().permissions().mode() & 0o777;
        Writer::open(&path).unwrap();
        assert_eq!(mode(), 0o600);
        // Who wants others to read it says so once.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        Writer::open(&path).unwrap();
        assert_eq!(mode(), 0o644);
    }

    /// Its owner would read what root records.
    #[test]
    fn a_file_of_another_user_is_not_recorded_to() {
        assert!(owned(0, 0, None) && owned(7, 7, None) && owned(7, 0, Some(7)));
        assert!(!owned(7, 0, None) && !owned(7, 0, Some(8)) && !owned(0, 7, None));
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.jsonl");
        fs::write(&path, "").unwrap();
        std::os::unix::fs::chown(&path, Some(65_533), None).unwrap();
        let failure = Writer::open(&path).err().unwrap();
        assert!(failure.to_string().contains("r.jsonl: it belongs to another user (65533)"), "{failure}");
        assert_eq!(failure.exit(), Exit::Usage);
    }

    #[test]
    fn two_recorders_do_not_share_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.jsonl");
        let _first = Writer::open(&path).unwrap();
        assert_eq!(Writer::open(&path).err().unwrap().exit(), Exit::Busy);
    }

    #[test]
    fn a_bad_line_in_the_middle_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.jsonl");
        let good = serde_json::to_string(&snapshot(1.0)).unwrap();
        fs::write(&path, format!("{good}\n\n{{\"version\":9}}\n{good}\n")).unwrap();
        let mut reader = Reader::open(&path).unwrap();
        reader.next_snapshot().unwrap();
        let failure = reader.next_snapshot().unwrap_err();
        assert!(failure.to_string().contains("r.jsonl:3: "), "{failure}");
        assert_eq!(failure.exit(), Exit::Usage);
    }
}
