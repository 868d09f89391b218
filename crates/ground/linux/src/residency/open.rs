//! Opens a file without side effects, and finds out which queries the kernel answers for it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use super::{ResidencyError, cached};

/// Kinds of file system that need different queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fs {
    /// `cachestat(2)` and a mapping use the same page cache, and its pages are whole: counts can be
    /// trusted.
    Plain,
    /// Huge pages, which `mincore(2)` does not know.
    Hugetlb,
    /// Any other, such as overlayfs, where the open file and the mapping have different page
    /// caches.
    Other,
}

#[derive(Debug)]
pub struct Opened {
    pub path: PathBuf,
    pub fd: File,
    /// Bytes, when it was opened.
    pub size: u64,
    /// Bytes of storage, in whole blocks.
    pub allocated: u64,
    /// Whether its data is accessed directly in persistent memory.
    pub dax: bool,
    pub fs: Fs,
    /// Preferred unit of the file system; on hugetlbfs the size of a huge page.
    pub block: u64,
    pub device: (u32, u32),
    owner: u32,
    /// `O_NOATIME` was granted: the caller owns the file or has CAP_FOWNER over its owner.
    owned: bool,
}

/// Opens a file without reading from it, without changing its access time, and without breaking a
/// lease.
pub fn open(path: &Path) -> Result<Opened, ResidencyError> {
    // Opening a device or a pipe can have effects, and the path's owner can replace the file at any
    // moment. So get a handle without opening the file, check the kind of file, and then open that
    // handle.
    let look = |e| ResidencyError::file("look at", path, e);
    let open = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| ResidencyError::file("open", path, e))?;
    let stat = rustix::fs::fstat(&open).map_err(look)?;
    regular(path, stat.st_mode)?;
    let dev = rustix::fs::major(stat.st_dev) << 20 | rustix::fs::minor(stat.st_dev);
    crate::leases::free(dev, stat.st_ino, true).map_err(|e| ResidencyError::file("open", path, e))?;
    let same = format!("/proc/self/fd/{}", open.as_raw_fd());
    // NONBLOCK: opening a file under a lease would otherwise wait for the lease's holder.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let open = |flags| rustix::fs::open(&same, flags, Mode::empty());
    let (fd, owned): (OwnedFd, bool) = match open(flags | OFlags::NOATIME) {
        Ok(fd) => (fd, true),
        Err(Errno::PERM) => (open(flags).map_err(|e| ResidencyError::file("open", path, e))?, false),
        Err(e) => return Err(ResidencyError::file("open", path, e)),
    };
    from_fd(path, fd.into(), owned)
}

/// A file that is open already. `owned` says whether it was opened with `O_NOATIME`.
pub fn from_fd(path: &Path, fd: File, owned: bool) -> Result<Opened, ResidencyError> {
    let look = |e| ResidencyError::file("look at", path, e);
    let stat = rustix::fs::fstat(&fd).map_err(look)?;
    let statx = rustix::fs::statx(&fd, "", rustix::fs::AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).map_err(look)?;
    let statfs = rustix::fs::fstatfs(&fd).map_err(look)?;
    Ok(Opened {
        path: path.to_owned(),
        fd,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        allocated: u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512),
        dax: statx.stx_attributes.contains(StatxAttributes::DAX),
        fs: file_system(statfs.f_type as i64, statfs.f_bsize as u64),
        block: u64::try_from(stat.st_blksize).unwrap_or(0),
        device: (statx.stx_dev_major, statx.stx_dev_minor),
        owner: stat.st_uid,
        owned,
    })
}

fn regular(path: &Path, mode: u32) -> Result<(), ResidencyError> {
    let kind = match FileType::from_raw_mode(mode) {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => "directory",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        FileType::CharacterDevice => "character device",
        FileType::BlockDevice => "block device",
        FileType::Symlink | FileType::Unknown => "special file",
    };
    Err(ResidencyError::NotAFile { path: path.to_owned(), kind })
}

/// The kind of a file system, by its magic number (`linux/magic.h`).
///
/// Blocks smaller than a page make it [`Fs::Other`]: a partly written page is then cached but
/// incomplete, and touching it would read the rest. `mincore` tells which pages are complete,
/// `cachestat` does not.
fn file_system(magic: i64, block: u64) -> Fs {
    let whole_pages = block >= rustix::param::page_size() as u64;
    match magic {
        libc::HUGETLBFS_MAGIC => Fs::Hugetlb,
        libc::EXT4_SUPER_MAGIC | libc::XFS_SUPER_MAGIC | libc::BTRFS_SUPER_MAGIC | libc::TMPFS_MAGIC if whole_pages => {
            Fs::Plain
        }
        _ => Fs::Other,
    }
}

impl Opened {
    /// Why `mincore` would not tell this caller the truth; `None` if it does.
    ///
    /// The kernel's rule (`mm/mincore.c`, `can_do_mincore`, and the same in `mm/filemap.c`,
    /// `can_do_cachestat`) is `inode_owner_or_capable() || MAY_WRITE`; for other callers every page
    /// looks resident. The kernel grants `O_NOATIME` by the first half of this rule; `faccessat2`
    /// answers the second.
    pub fn hidden_cause(&self) -> Result<Option<String>, ResidencyError> {
        if self.owned {
            return Ok(None);
        }
        // SAFETY: the path is a valid, empty C string and the descriptor is open.
        let refused = unsafe {
            libc::syscall(
                libc::SYS_faccessat2,
                self.fd.as_raw_fd(),
                c"".as_ptr(),
                libc::W_OK,
                libc::AT_EACCESS | libc::AT_EMPTY_PATH,
            )
        };
        if refused == 0 {
            return Ok(None);
        }
        match io::Error::last_os_error() {
            e if matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::EROFS | libc::ETXTBSY)) => {
                Ok(Some(format!(
                    "the file belongs to uid {} and the kernel shows residency only to the owner, to users who may write \
                     the file, and to root",
                    self.owner
                )))
            }
            e => Err(ResidencyError::file("ask for write permission on", &self.path, e)),
        }
    }

    /// Number of cached pages in a range; `None` if the kernel has no trustworthy answer.
    pub fn cached(&self, offset: u64, len: u64) -> Option<u64> {
        (self.fs == Fs::Plain).then(|| cached::count(&self.fd, offset, len))?
    }

    pub fn size_now(&self) -> Result<u64, ResidencyError> {
        self.fd.metadata().map(|m| m.len()).map_err(|e| ResidencyError::file("look at", &self.path, e))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// A path's owner can replace the file at any moment. A pipe or a device must not be opened
    /// even then.
    #[test]
    fn a_file_that_becomes_a_pipe_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("regular"), "text").unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, path("pipe"), Mode::RWXU).unwrap();
        let (done, woken) = (AtomicBool::new(false), AtomicBool::new(false));
        let (mut opened, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for target in ["regular", "pipe"].into_iter().cycle().take_while(|_| !done.load(Ordering::Relaxed)) {
                    std::os::unix::fs::symlink(path(target), path("next")).unwrap();
                    std::fs::rename(path("next"), path("asked")).unwrap();
                }
            });
            scope.spawn(|| {
                // An open for writing returns as soon as any reader opens the pipe.
                rustix::fs::open(path("pipe"), OFlags::WRONLY, Mode::empty()).unwrap();
                woken.store(!done.load(Ordering::Relaxed), Ordering::Relaxed);
            });
            while opened < 20_000 || refused < 20_000 {
                match open(&path("asked")) {
                    Ok(_) => opened += 1,
                    Err(ResidencyError::NotAFile { kind: "pipe", .. }) => refused += 1,
                    // The link does not exist yet.
                    Err(_) => {}
                }
            }
            done.store(true, Ordering::Relaxed);
            rustix::fs::open(path("pipe"), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
        });
        assert!(!woken.load(Ordering::Relaxed), "the pipe was open for reading");
    }

    #[test]
    fn counts_are_trusted_only_if_pages_are_whole() {
        assert_eq!(file_system(libc::EXT4_SUPER_MAGIC, 4096), Fs::Plain);
        assert_eq!(file_system(libc::EXT4_SUPER_MAGIC, 1024), Fs::Other);
        assert_eq!(file_system(libc::OVERLAYFS_SUPER_MAGIC, 4096), Fs::Other);
        assert_eq!(file_system(libc::HUGETLBFS_MAGIC, 2 << 20), Fs::Hugetlb);
    }
}
