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
//! read ten times a second at most. Any user can make it as long as he likes: a list longer than
//! [`MOST`] is not believed, and it is read once a minute. As long as it is not, the daemon opens
//! no file on a machine with a file server; whoever asks by hand is told. A lease that is taken
//! between the look and the open is broken as before: Linux has no way to open a file only if it is
//! not leased. A file of a btrfs subvolume that was found by its path has another device than its
//! lease shows. Leases of holders in other PID namespaces than the reader's own and its descendants
//! are not listed.

use std::collections::HashSet;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use crate::locks::Lock;

/// For how long the list is believed.
const AGE: Duration = Duration::from_millis(100);

/// Bytes that are read of the list: some 4,000 locks, more than a busy file server has. 100,000
/// take seconds of the kernel's time.
const MOST: u64 = 256 << 10;

/// For how long a longer list is not read again.
const PAUSE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Leases {
    /// The inodes in it.
    Of(HashSet<(u32, u64)>),
    /// It is too long: the file server that may have leases, if one runs.
    Unknown(Option<String>),
}

/// When the list is to be read again, and what it says.
static KNOWN: Mutex<Option<(Instant, Arc<Leases>)>> = Mutex::new(None);

/// Programs, and threads of the kernel, that serve files and lease them: knfsd, ksmbd, Samba,
/// NFS-Ganesha. The kernel cuts names to 15 bytes.
const SERVERS: [&str; 5] = ["nfsd", "ksmbd", "smbd", "ganesha.nfsd", "nfs-ganesha"];

/// The error for a file that must not be opened: somebody has a write lease on it, or may have.
/// `dev` as the kernel numbers devices inside: `major << 20 | minor`. `by_hand`: it is no daemon
/// that asks, and what is not known is said.
///
/// # Errors
///
/// `ResourceBusy` for such a file, and for the daemon for all files where the list is too long and
/// a file server runs. A list that cannot be read has no leases: a kernel without file locks has
/// none.
pub fn free(dev: u32, ino: u64, by_hand: bool) -> io::Result<()> {
    refuse(&known(), dev, ino, by_hand)
}

fn refuse(leases: &Leases, dev: u32, ino: u64, by_hand: bool) -> io::Result<()> {
    static TOLD: Once = Once::new();
    let why = match leases {
        Leases::Of(leased) if leased.contains(&(dev, ino)) => "another program has a write lease on it".to_owned(),
        Leases::Unknown(_) if by_hand => {
            let unknown = "files under a lease are not told from others: opening one breaks its lease";
            TOLD.call_once(|| tracing::warn!("/proc/locks has more than {MOST} bytes, so {unknown}"));
            return Ok(());
        }
        Leases::Unknown(Some(server)) => {
            format!("{server} may have a lease on it: /proc/locks is too long to tell ({MOST} bytes)")
        }
        _ => return Ok(()),
    };
    Err(io::Error::new(io::ErrorKind::ResourceBusy, why))
}

fn known() -> Arc<Leases> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    match &*known {
        Some((again, leases)) if Instant::now() < *again => leases.clone(),
        _ => {
            let (age, leases) = match std::fs::File::open("/proc/locks").ok().map(read) {
                Some(None) => (PAUSE, Leases::Unknown(server(Path::new("/proc")))),
                list => (AGE, Leases::Of(list.flatten().unwrap_or_default())),
            };
            let leases = Arc::new(leases);
            *known = Some((Instant::now() + age, leases.clone()));
            leases
        }
    }
}

/// A file server that runs here.
fn server(proc_root: &Path) -> Option<String> {
    // These servers all run as root; any user can give a process of his own such a name.
    let roots =
        |status: &str| status.lines().any(|line| line.strip_prefix("Uid:\t").is_some_and(|of| of.starts_with("0\t")));
    let comm = |entry: std::fs::DirEntry| {
        let of = |name: &str| std::fs::read_to_string(entry.path().join(name)).ok();
        of("comm").filter(|name| {
            SERVERS.iter().any(|server| name.starts_with(server)) && of("status").is_some_and(|s| roots(&s))
        })
    };
    let names = std::fs::read_dir(proc_root).ok()?.flatten().filter_map(comm);
    // Threads of the kernel have numbers: `ksmbd:eth0`, `ksmbd-io`.
    names.map(|name| name.trim_end().to_owned()).next()
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

    /// 6,000 locks of anybody, and the daemon broke leases again.
    #[test]
    fn what_may_be_leased_is_not_opened_by_the_daemon() {
        let proc_root = tempfile::tempdir().unwrap();
        let owned = |pid: &str, comm: &str, uid: u32| {
            std::fs::create_dir(proc_root.path().join(pid)).unwrap();
            std::fs::write(proc_root.path().join(pid).join("comm"), comm).unwrap();
            let status = format!("Name:\t{comm}Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n");
            std::fs::write(proc_root.path().join(pid).join("status"), status).unwrap();
        };
        let process = |pid: &str, comm: &str| owned(pid, comm, 0);
        process("1", "init\n");
        // With this name alone, any user would keep the daemon from every file.
        owned("2", "smbd\n", 1000);
        std::fs::write(proc_root.path().join("locks"), "").unwrap();
        assert_eq!(server(proc_root.path()), None);
        assert!(refuse(&Leases::Unknown(None), 1, 2, false).is_ok(), "nobody here leases files");
        for (pid, comm) in [("7", "nfsd\n"), ("8", "ksmbd:eth0\n"), ("9", "smbd\n"), ("10", "ganesha.nfsd\n")] {
            process(pid, comm);
            assert_eq!(server(proc_root.path()).as_deref(), Some(comm.trim_end()));
            let error = refuse(&Leases::Unknown(server(proc_root.path())), 1, 2, false).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
            assert!(error.to_string().contains(comm.trim_end()), "{error}");
            std::fs::remove_dir_all(proc_root.path().join(pid)).unwrap();
        }
        for by_hand in [false, true] {
            assert!(refuse(&Leases::Of([(1, 2)].into()), 1, 2, by_hand).is_err());
            assert!(refuse(&Leases::Of([(1, 2)].into()), 1, 3, by_hand).is_ok());
        }
        assert!(refuse(&Leases::Unknown(Some("smbd".to_owned())), 1, 2, true).is_ok(), "it is said");
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
