//! Files that are under a write lease.
//!
//! **Problem.** To open a file for reading breaks a write lease on it, even with `O_NONBLOCK`: its holder (Samba's oplocks, an NFS
//! client's delegation, a program with `fcntl(F_SETLEASE)`) gets a signal and must give up what it has cached. Looking must not do that.
//!
//! **Approach.** `/proc/locks` lists leases by device and inode. Such files are not opened. Read leases are not broken by readers.
//!
//! **Limits.** The kernel holds up all file locks of the machine while it makes the list, so it is read ten times a second at most. A
//! lease that is taken within that time, or between the look and the open, is broken as before: Linux has no way to open a file
//! only if it is not leased. A file of a btrfs subvolume that was found by its path has another device than its lease shows. Leases of holders in other PID namespaces than the reader's own and its descendants are not listed.

use std::collections::HashSet;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// For how long the list is believed.
const AGE: Duration = Duration::from_millis(100);

/// When the list was read, and the inodes in it.
type Known = Option<(Instant, HashSet<(u32, u64)>)>;

static KNOWN: Mutex<Known> = Mutex::new(None);

/// The error for a file that must not be opened: somebody has a write lease on it. `dev` as the kernel numbers devices inside:
/// `major << 20 | minor`.
///
/// # Errors
///
/// `ResourceBusy` for such a file. A list that cannot be read has no leases: a kernel without file locks has neither.
pub(crate) fn free(dev: u32, ino: u64) -> io::Result<()> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if known.as_ref().is_none_or(|(read, _)| read.elapsed() > AGE) {
        let text = std::fs::read_to_string("/proc/locks").unwrap_or_default();
        *known = Some((Instant::now(), parse(&text)));
    }
    match known.as_ref().is_some_and(|(_, leased)| leased.contains(&(dev, ino))) {
        true => Err(io::Error::new(io::ErrorKind::ResourceBusy, "another program has a write lease on it")),
        false => Ok(()),
    }
}

/// Inodes under a write lease, or one that is being broken: `3: LEASE  ACTIVE    WRITE 1234 08:01:5678 0 EOF`.
fn parse(locks: &str) -> HashSet<(u32, u64)> {
    let leased = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, state, mode, place) = (words.next()?, words.next()?, words.next()?, words.nth(1)?);
        let broken_by_reading = matches!(kind, "LEASE" | "DELEG") && (mode == "WRITE" || state == "BREAKING");
        let mut place = place.split(':');
        let major = u32::from_str_radix(place.next()?, 16).ok()?;
        let minor = u32::from_str_radix(place.next()?, 16).ok()?;
        broken_by_reading.then_some((major << 20 | minor, place.next()?.parse().ok()?))
    };
    locks.lines().filter_map(leased).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_leases_that_a_reader_would_break_count() {
        let locks = "\
1: POSIX  ADVISORY  WRITE 10 08:01:11 0 EOF
2: LEASE  ACTIVE    WRITE 10 08:11:12 0 EOF
3: LEASE  ACTIVE    READ  10 08:01:13 0 EOF
4: DELEG  ACTIVE    WRITE 10 103:0a:14 0 EOF
5: LEASE  BREAKING  READ  10 08:01:15 0 EOF
5: -> FLOCK  ADVISORY  WRITE 10 08:01:16 0 EOF
torn
";
        let wanted = [(8 << 20 | 0x11, 12), (0x103 << 20 | 0xa, 14), (8 << 20 | 1, 15)];
        assert_eq!(parse(locks), wanted.into_iter().collect());
    }
}
