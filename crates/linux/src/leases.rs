//! Files that are under a write lease.
//!
//! **Problem.** To open a file for reading breaks a write lease on it, even with `O_NONBLOCK`: its
//! holder (Samba's oplocks, an NFS client's delegation, a program with `fcntl(F_SETLEASE)`) gets a
//! signal and must give up what it has cached. Looking must not do that.
//!
//! **Approach.** `/proc/locks` lists leases by device and inode. Such files are not opened. Read
//! leases are not broken by readers.
//!
//! **Limits.** The kernel holds up all file locks of the machine while it makes the list, so it is
//! read ten times a second at most. Any user can make it as long as he likes: of a list longer than
//! [`MOST`] nothing is believed, and it is read once a minute. A lease that is taken within that
//! time, or between the look and the open, is broken as before: Linux has no way to open a file
//! only if it is not leased. A file of a btrfs subvolume that was found by its path has another
//! device than its lease shows. Leases of holders in other PID namespaces than the reader's own and
//! its descendants are not listed.

use std::collections::HashSet;
use std::io::{self, Read};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use crate::locks::Lock;

/// For how long the list is believed.
const AGE: Duration = Duration::from_millis(100);

/// Bytes that are read of the list: some 4,000 locks, more than a busy file server has. 100,000
/// take seconds of the kernel's time.
const MOST: u64 = 256 << 10;

/// For how long a longer list is not read again.
const PAUSE: Duration = Duration::from_secs(60);

/// When the list is to be read again, and the inodes in it.
type Known = Option<(Instant, HashSet<(u32, u64)>)>;

static KNOWN: Mutex<Known> = Mutex::new(None);

/// The error for a file that must not be opened: somebody has a write lease on it. `dev` as the
/// kernel numbers devices inside: `major << 20 | minor`.
///
/// # Errors
///
/// `ResourceBusy` for such a file. A list that cannot be read has no leases: a kernel without file
/// locks has neither. Nor has one that is too long.
pub fn free(dev: u32, ino: u64) -> io::Result<()> {
    static TOLD: Once = Once::new();
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if known.as_ref().is_none_or(|(again, _)| Instant::now() >= *again) {
        let list = std::fs::File::open("/proc/locks").ok().map(read);
        *known = Some(match list {
            Some(None) => {
                TOLD.call_once(|| {
                    tracing::warn!(
                        "/proc/locks has more than {MOST} bytes: files under a lease are not told from others"
                    );
                });
                (Instant::now() + PAUSE, HashSet::new())
            }
            list => (Instant::now() + AGE, list.flatten().unwrap_or_default()),
        });
    }
    match known.as_ref().is_some_and(|(_, leased)| leased.contains(&(dev, ino))) {
        true => Err(io::Error::new(io::ErrorKind::ResourceBusy, "another program has a write lease on it")),
        false => Ok(()),
    }
}

/// The inodes in a list; `None` if it is too long. One that cannot be read has none.
fn read(list: impl Read) -> Option<HashSet<(u32, u64)>> {
    let mut text = String::new();
    let read = list.take(MOST + 1).read_to_string(&mut text);
    (text.len() as u64 <= MOST).then(|| read.map(|_| parse(&text)).unwrap_or_default())
}

/// Inodes under a write lease, or one that is being broken.
fn parse(locks: &str) -> HashSet<(u32, u64)> {
    let broken_by_reading =
        |lock: &Lock<'_>| matches!(lock.kind, "LEASE" | "DELEG") && (lock.mode == "WRITE" || lock.state == "BREAKING");
    let leased = locks.lines().filter_map(Lock::parse).filter(broken_by_reading);
    leased.map(|lock| (lock.dev.0 << 20 | lock.dev.1, lock.ino)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100,000 locks of one user cost seconds of the kernel's time at each look.
    #[test]
    fn a_list_that_is_too_long_is_not_read_to_its_end() {
        let line = "2: LEASE  ACTIVE    WRITE 10 08:11:12 0 EOF\n".to_owned();
        assert_eq!(read(line.as_bytes()), Some([(8 << 20 | 0x11, 12)].into()));
        let mut long = std::io::Cursor::new(line.repeat(1 + MOST as usize));
        assert_eq!(read(&mut long), None);
        assert_eq!(long.position(), MOST + 1);
    }

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
