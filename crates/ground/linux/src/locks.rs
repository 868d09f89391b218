//! The kernel's list of file locks and leases, `/proc/locks`.
//!
//! The kernel holds up all file locks of the machine while it makes the list, and any user can make
//! it long: a reader takes a part of it only.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};

/// Bytes of the list in which [`flocks`] looks: some 60,000 locks.
const MOST: u64 = 4 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock<'a> {
    /// `FLOCK`, `POSIX`, `OFDLCK`, `LEASE` or `DELEG`.
    pub kind: &'a str,
    /// `ADVISORY`, or of a lease `ACTIVE`, `BREAKING` or `BREAKER`.
    pub state: &'a str,
    /// `READ`, `WRITE` or, of a lease that is given up, `UNLCK`.
    pub mode: &'a str,
    /// Its holder; 0 for one of another PID namespace, -1 for an open file's lock.
    pub pid: i32,
    /// Major and minor number of the file system's device. Of btrfs, `stat(2)` says another one.
    pub dev: (u32, u32),
    pub ino: u64,
}

impl<'a> Lock<'a> {
    /// A lock by its line, such as `3: LEASE  ACTIVE    WRITE 1234 08:01:5678 0 EOF`. `None` for
    /// lines of another form: among them those of waiters, which hold nothing.
    pub fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (kind, state, mode, pid) = (words.next()?, words.next()?, words.next()?, words.next()?.parse().ok()?);
        let mut file = words.next()?.split(':');
        let mut device = || u32::from_str_radix(file.next()?, 16).ok();
        let dev = (device()?, device()?);
        Some(Self { kind, state, mode, pid, dev, ino: file.next()?.parse().ok()? })
    }
}

/// The process that holds a `flock(2)` for writing for which `wanted` holds. `None`, too, where the
/// list cannot be read, or has it beyond the first 4 MiB.
pub fn flock(wanted: impl Fn(&Lock<'_>) -> bool) -> Option<u32> {
    let list = BufReader::new(File::open("/proc/locks").ok()?.take(MOST));
    list.lines().map_while(Result::ok).find_map(|line| {
        let lock = Lock::parse(&line)?;
        let is_it = lock.kind == "FLOCK" && lock.mode == "WRITE" && wanted(&lock);
        is_it.then(|| u32::try_from(lock.pid).ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_holders_are_read_and_others_are_not() {
        let lock = Lock { kind: "DELEG", state: "ACTIVE", mode: "WRITE", pid: 10, dev: (0x103, 10), ino: 14 };
        assert_eq!(Lock::parse("4: DELEG  ACTIVE    WRITE 10 103:0a:14 0 EOF"), Some(lock));
        assert_eq!(Lock::parse("5: -> FLOCK  ADVISORY  WRITE 10 08:01:16 0 EOF"), None);
        assert_eq!(Lock::parse("torn"), None);
        assert_eq!(Lock::parse("1: FLOCK  ADVISORY  WRITE 10 08:01"), None);
    }

    #[test]
    fn a_locked_file_has_its_holder() {
        use std::os::unix::fs::MetadataExt;
        let file = tempfile::tempfile().unwrap();
        let ino = file.metadata().unwrap().ino();
        assert_eq!(flock(|lock| lock.ino == ino), None);
        file.lock().unwrap();
        assert_eq!(flock(|lock| lock.ino == ino), Some(std::process::id()));
    }
}
