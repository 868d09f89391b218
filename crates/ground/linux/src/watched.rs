//! A thread whose place and CPU time are asked for again and again.
//!
//! Its files in procfs stay open, so that a look takes one system call. Who must not wait for a
//! thread that does not answer (see [`patient`](crate::patient)) looks on a thread of its own.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::threads::{Open, Stat, field, is_gone, read_again};

/// A thread by its open files in procfs, which never show a later thread with its id.
#[derive(Debug)]
pub struct Watched {
    stat: Open,
    /// Only where its CPU time is wanted.
    schedstat: Option<File>,
    pub pid: u32,
    /// When it started, as in [`Stat::id`].
    pub start_ns: Option<u64>,
    /// The same of its process, where its CPU time is wanted; `None` if that cannot be read.
    pub process_start_ns: Option<u64>,
}

/// CPU time of a thread since its start, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// On a CPU.
    pub ran_ns: u64,
    /// Ready to run, without a CPU.
    pub waited_ns: u64,
}

impl Watched {
    /// The thread with this id, with its CPU time if `timed`; `None` if there is none.
    ///
    /// # Errors
    ///
    /// A file of it cannot be read: the error names it.
    pub fn open(proc_root: &Path, tid: u32, timed: bool) -> io::Result<Option<Self>> {
        let dir = proc_root.join(tid.to_string());
        let open = |name: &str| File::open(dir.join(name)).map_err(|e| named(&dir.join(name), e));
        let opened = || -> io::Result<Option<Self>> {
            let stat = Open::new(tid, open("stat")?);
            let schedstat = timed.then(|| open("schedstat")).transpose()?;
            let path = dir.join("status");
            let status = std::fs::read(&path).map_err(|e| named(&path, e))?;
            let unknown = || io::Error::new(io::ErrorKind::InvalidData, format!("{} has no Tgid", path.display()));
            let tgid = field(&String::from_utf8_lossy(&status), "Tgid").and_then(|pid| pid.parse().ok());
            let pid = tgid.ok_or_else(unknown)?;
            // Looked at before the thread: if that is still there, so was its process, and no later
            // one had the id. A first thread is shown even after it has ended, until the last one
            // has.
            let process =
                || Open::new(pid, File::open(proc_root.join(pid.to_string()).join("stat")).ok()?).read().ok()?;
            let process = (timed && pid != tid).then(process).flatten();
            let Some((_, now)) = stat.read()? else { return Ok(None) };
            let start_ns = now.id.start_ns();
            let own = start_ns.filter(|_| timed && pid == tid);
            let process_start_ns = process.and_then(|(_, process)| process.id.start_ns()).or(own);
            Ok(Some(Self { stat, schedstat, pid, start_ns, process_start_ns }))
        };
        match opened() {
            Err(error) if is_gone(&error) => Ok(None),
            opened => opened,
        }
    }

    /// The thread as it is now; `None` if it has ended. A zombie has not.
    pub fn now(&self) -> io::Result<Option<Stat>> {
        Ok(self.stat.read()?.map(|(_, stat)| stat))
    }

    /// Its CPU time; `None` if it has ended, or the kernel does not count it, or it was not wanted.
    pub fn time(&self) -> io::Result<Option<Time>> {
        let mut bytes = [0; 128];
        let Some(schedstat) = &self.schedstat else { return Ok(None) };
        Ok(read_again(schedstat, &mut bytes)?.and_then(parse_schedstat))
    }
}

/// An error with the file's name, but for those that say that there is no such thread.
fn named(path: &Path, error: io::Error) -> io::Error {
    match is_gone(&error) {
        true => error,
        false => crate::named(format_args!("cannot read {}", path.display()), error),
    }
}

fn parse_schedstat(bytes: &[u8]) -> Option<Time> {
    let mut fields = std::str::from_utf8(bytes).ok()?.split_ascii_whitespace();
    Some(Time { ran_ns: fields.next()?.parse().ok()?, waited_ns: fields.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::own_tid;

    #[test]
    fn a_thread_tells_when_its_process_started() {
        let root = Path::new("/proc");
        let pid = std::process::id();
        let first = Watched::open(root, pid, true).unwrap().unwrap();
        assert_eq!(first.process_start_ns, first.start_ns);
        loop {
            let later = std::thread::spawn(move || Watched::open(root, own_tid(), true).unwrap().unwrap());
            let later = later.join().unwrap();
            assert_eq!((later.pid, later.process_start_ns), (pid, first.start_ns));
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
