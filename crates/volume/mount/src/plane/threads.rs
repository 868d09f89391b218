//! Facts from `/proc` about the threads that use a volume.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// More than the longest line of `/proc/<tid>/stat`: 52 numbers and a name.
const STAT_BYTES: usize = 2048;
/// Nanoseconds in a unit of `/proc/<tid>/stat`.
const NS_PER_TICK: u64 = 10_000_000;

/// A thread by its open files in procfs, which never show a later thread with its id.
#[derive(Debug)]
pub(crate) struct Watched {
    stat: File,
    /// Only where its CPU time is wanted.
    schedstat: Option<File>,
    /// Its process.
    pub pid: u32,
    /// When it started, in nanoseconds since boot, in whole ticks.
    pub start_ns: u64,
    /// The same of its process, where its CPU time is wanted; `None` if that cannot be read.
    pub process_start_ns: Option<u64>,
}

/// A thread at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Now {
    /// Its name.
    pub comm: String,
    /// The CPU it runs on, or ran on last.
    pub cpu: u32,
    start_ns: u64,
}

/// CPU time of a thread since its start, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Time {
    /// On a CPU.
    pub ran_ns: u64,
    /// Ready to run, without a CPU.
    pub waited_ns: u64,
}

impl Watched {
    /// The thread with this id, with its CPU time if `timed`; `None` if there is none.
    pub fn open(proc_root: &Path, tid: u32, timed: bool) -> io::Result<Option<Self>> {
        let dir = proc_root.join(tid.to_string());
        let open = |name: &str| File::open(dir.join(name)).map_err(|e| named(&dir.join(name), &e));
        let opened = || -> io::Result<Option<Self>> {
            let (stat, schedstat) = (open("stat")?, timed.then(|| open("schedstat")).transpose()?);
            let path = dir.join("status");
            let status = std::fs::read(&path).map_err(|e| named(&path, &e))?;
            let unknown = || io::Error::new(io::ErrorKind::InvalidData, format!("{} has no Tgid", path.display()));
            let pid = tgid(&status).ok_or_else(unknown)?;
            // Looked at before the thread: if that is still there, so was its process, and no later
            // one had the id.
            let process = (timed && pid != tid).then(|| started(proc_root, pid)).flatten();
            let mut watched = Self { stat, schedstat, pid, start_ns: 0, process_start_ns: None };
            let Some(now) = watched.now()? else { return Ok(None) };
            watched.start_ns = now.start_ns;
            watched.process_start_ns = process.or_else(|| (timed && pid == tid).then_some(now.start_ns));
            Ok(Some(watched))
        };
        match opened() {
            Err(error) if is_gone(&error) => Ok(None),
            opened => opened,
        }
    }

    /// The thread as it is now; `None` if it has ended.
    pub fn now(&self) -> io::Result<Option<Now>> {
        let mut bytes = [0; STAT_BYTES];
        match read(&self.stat, &mut bytes)? {
            None => Ok(None),
            Some(stat) => {
                let unknown = || io::Error::new(io::ErrorKind::InvalidData, "/proc/<tid>/stat has an unknown form");
                parse_stat(stat).map(Some).ok_or_else(unknown)
            }
        }
    }

    /// Its CPU time; `None` if it has ended, or the kernel does not count it, or it was not wanted.
    pub fn time(&self) -> io::Result<Option<Time>> {
        let mut bytes = [0; 128];
        let Some(schedstat) = &self.schedstat else { return Ok(None) };
        Ok(read(schedstat, &mut bytes)?.and_then(parse_schedstat))
    }
}

/// When a process started. Its first thread is shown even after that has ended, until the last one
/// has.
fn started(proc_root: &Path, pid: u32) -> Option<u64> {
    let stat = std::fs::read(proc_root.join(pid.to_string()).join("stat")).ok()?;
    Some(parse_stat(&stat)?.start_ns)
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => io::Error::from_raw_os_error(libc::ESRCH),
        _ => io::Error::new(error.kind(), format!("cannot read {}: {error}", PathBuf::from(path).display())),
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT))
}

/// Contents of a short file of procfs; `None` if its thread has ended.
fn read<'a>(file: &File, into: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
    loop {
        match file.read_at(into, 0) {
            Ok(len) => return Ok(into.get(..len).filter(|text| !text.is_empty())),
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn tgid(status: &[u8]) -> Option<u32> {
    let line = status.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(b"Tgid:"))?;
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// `pid (comm) state ppid …`: field 22 is the start, 39 the CPU (proc_pid_stat(5)). A name may hold
/// any bytes.
fn parse_stat(bytes: &[u8]) -> Option<Now> {
    let open = bytes.iter().position(|b| *b == b'(')?;
    let close = bytes.iter().rposition(|b| *b == b')')?;
    let comm = String::from_utf8_lossy(bytes.get(open + 1..close)?).into_owned();
    let mut fields = std::str::from_utf8(bytes.get(close + 1..)?).ok()?.split_ascii_whitespace();
    // The first field here is the third.
    let start: u64 = fields.nth(22 - 3)?.parse().ok()?;
    let cpu = fields.nth(39 - 22 - 1)?.parse().ok()?;
    Some(Now { comm, cpu, start_ns: start.saturating_mul(NS_PER_TICK) })
}

fn parse_schedstat(bytes: &[u8]) -> Option<Time> {
    let mut fields = std::str::from_utf8(bytes).ok()?.split_ascii_whitespace();
    Some(Time { ran_ns: fields.next()?.parse().ok()?, waited_ns: fields.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_tid() -> u32 {
        rustix::thread::gettid().as_raw_nonzero().get() as u32
    }

    #[test]
    fn odd_names_are_read_and_a_cut_line_never_panics() {
        let line = b"4121 (a) b (c)) S 990 4121 870 0 -1 4194368 1 2 3 4 5 6 7 8 20 0 1 0 123456 9 9 9 0 0 0 0 0 0 0 0 0 0 0 0 17 1 0\n";
        let now = parse_stat(line).unwrap();
        assert_eq!((now.comm.as_str(), now.start_ns, now.cpu), ("a) b (c)", 1_234_560_000_000, 1));
        for end in 0..line.len() {
            let _ = parse_stat(&line[..end]);
        }
        assert_eq!(parse_stat(b")("), None);
    }

    #[test]
    fn a_thread_tells_when_its_process_started() {
        let root = Path::new("/proc");
        let pid = std::process::id();
        let first = Watched::open(root, pid, true).unwrap().unwrap();
        assert_eq!(first.process_start_ns, Some(first.start_ns));
        loop {
            let later = std::thread::spawn(move || Watched::open(root, own_tid(), true).unwrap().unwrap());
            let later = later.join().unwrap();
            assert_eq!((later.pid, later.process_start_ns), (pid, Some(first.start_ns)));
            // Until their times differ.
            if later.start_ns > first.start_ns {
                return;
            }
        }
    }

    #[test]
    fn this_thread_is_found_and_one_that_has_ended_is_not() {
        let root = Path::new("/proc");
        let (watched, tid) = std::thread::spawn(|| {
            let watched = Watched::open(Path::new("/proc"), own_tid(), true).unwrap().unwrap();
            assert_eq!(watched.pid, std::process::id());
            let before = watched.time().unwrap().unwrap();
            while watched.time().unwrap().unwrap() == before {
                std::hint::spin_loop();
            }
            assert!(watched.now().unwrap().is_some());
            (watched, own_tid())
        })
        .join()
        .unwrap();
        // The kernel takes it away a little after join returns.
        while watched.now().unwrap().is_some() {
            std::thread::yield_now();
        }
        assert_eq!(watched.time().unwrap(), None);
        assert!(
            Watched::open(root, tid, true)
                .unwrap()
                .is_none_or(|other| other.start_ns != watched.start_ns || other.pid != watched.pid)
        );
        assert!(Watched::open(root, u32::MAX >> 1, false).unwrap().is_none());
    }
}
