//! The directory: mounting on it, and knowing later whether the mount there is still the same.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

use crate::Options;
use crate::connection::{DEVICE, connect};
use crate::wire::REQUEST;

/// Type in the table of mounts.
pub const KIND: &str = "fuse.homenode";

/// Data that the kernel reads ahead of a sequential reader: a request of the largest size.
const READ_AHEAD_KIB: u32 = REQUEST >> 10;

/// Limits for users of a mount: read only, without programs, …
pub type Flags = MountFlags;

/// Why a volume could not be mounted, served or unmounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A server that mounted here has ended without unmounting.
    #[error("{0} is a mount whose server has ended")]
    Dead(PathBuf),
    #[error("{0} is not a directory")]
    NotADirectory(PathBuf),
    #[error("cannot {doing} {path}")]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
}

#[derive(Debug)]
pub(crate) struct Mountpoint {
    pub(crate) dir: PathBuf,
    pub(crate) id: u64,
    /// Minor number of its device, by which the kernel knows the connection.
    pub(crate) device: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// Nobody used it.
    Done,
    /// Files are open: the directory is free, but they are served until the last one is closed.
    Busy,
}

/// Whether an error says that the server has ended: before the request, or while it was under way.
fn ended(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED)
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(Errno) -> Error {
    let path = path.to_owned();
    move |errno| Error::Io { doing, path, source: errno.into() }
}

/// Checks that a directory can be mounted on, before the volume is touched.
///
/// # Errors
///
/// It is none, cannot be used, or has a mount whose server has ended.
pub fn check(dir: &Path) -> Result<(), Error> {
    Mountpoint::check(dir).map(drop)
}

impl Mountpoint {
    /// Checks that `dir` can be mounted on.
    pub(crate) fn check(dir: &Path) -> Result<PathBuf, Error> {
        // What the kernel remembers of a dead mount looks alive.
        match statx(CWD, dir, AtFlags::STATX_FORCE_SYNC, StatxFlags::TYPE) {
            Err(errno) if ended(errno) => Err(Error::Dead(dir.to_owned())),
            Err(errno) => Err(failed("use", dir)(errno)),
            Ok(found) if u32::from(found.stx_mode) & libc::S_IFMT != libc::S_IFDIR => {
                Err(Error::NotADirectory(dir.to_owned()))
            }
            Ok(_) => {
                let path = dir.canonicalize();
                path.map_err(|source| Error::Io { doing: "use", path: dir.to_owned(), source })
            }
        }
    }

    /// Mounts on `dir`, and returns the connection to the kernel. Nothing answers it yet.
    pub(crate) fn mount(dir: PathBuf, options: &Options) -> Result<(Self, OwnedFd), Error> {
        let fd = match &options.held {
            Some(held) => held.connection(),
            None => connect().map_err(io::Error::from),
        };
        let fd = fd.map_err(|source| Error::Io { doing: "open", path: DEVICE.into(), source })?;
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let mut data = format!(
            "fd={},rootmode={:o},user_id={uid},group_id={gid},default_permissions,allow_other",
            fd.as_raw_fd(),
            libc::S_IFDIR
        );
        for label in &options.labels {
            data += &format!(",{label}");
        }
        let data = CString::new(data).unwrap_or_default();
        mount(options.source.as_str(), &dir, KIND, options.flags, data.as_c_str()).map_err(failed("mount on", &dir))?;
        let found = statx(CWD, &dir, AtFlags::STATX_DONT_SYNC, StatxFlags::MNT_ID).map_err(failed("use", &dir));
        let (id, device) = found.as_ref().map_or((0, 0), |found| (found.stx_mnt_id, found.stx_dev_minor));
        let this = Self { dir, id, device };
        found.inspect_err(|_| this.detach())?;
        Ok((this, fd))
    }

    /// Ends the mount, at once or, where it is in use, as soon as it no longer is.
    ///
    /// # Errors
    ///
    /// Something else is mounted on it (EBUSY), or the operating system refuses.
    pub(crate) fn unmount(&self) -> Result<Unmounted, Error> {
        if mount_id(&self.dir) != Ok(self.id) {
            return match entry(self.id) {
                Ok(None) => Ok(Unmounted::Busy), // somebody detached it
                Ok(Some(_)) => Err(failed("unmount", &self.dir)(Errno::BUSY)),
                Err(source) => Err(Error::Io { doing: "read", path: PathBuf::from(MOUNTS), source }),
            };
        }
        let gently = unmount(&self.dir, UnmountFlags::NOFOLLOW);
        match gently {
            Ok(()) => Ok(Unmounted::Done),
            Err(Errno::BUSY) => {
                let detached = unmount(&self.dir, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH);
                detached.map(|()| Unmounted::Busy).map_err(failed("unmount", &self.dir))
            }
            Err(errno) => Err(failed("unmount", &self.dir)(errno)),
        }
    }

    /// Takes the mount away if it is still there although its connection has ended, as when it was
    /// aborted. A mount that has got its number since answers, or is of another kind.
    pub(crate) fn clear(&self) {
        let dead = || statx(CWD, &self.dir, AtFlags::STATX_FORCE_SYNC, StatxFlags::TYPE).is_err_and(ended);
        if mount_id(&self.dir) == Ok(self.id) && dead() {
            self.detach();
        }
    }

    /// Makes the kernel read ahead by more than its default of 128 KiB, which an answer of ours can
    /// only lessen.
    pub(crate) fn read_ahead(&self) {
        let file = format!("/sys/class/bdi/0:{}/read_ahead_kb", self.device);
        if let Err(error) = std::fs::write(&file, READ_AHEAD_KIB.to_string()) {
            tracing::debug!("{file}: {error}: the kernel reads ahead by its default");
        }
    }

    /// Ends the connection of a mount that cannot be served any more, and takes it away if it is
    /// still there.
    pub(crate) fn abort(&self) {
        if mount_id(&self.dir) == Ok(self.id) {
            return self.detach();
        }
        // It was detached, or another one is on top of it.
        let abort = format!("/sys/fs/fuse/connections/{}/abort", self.device);
        if let Err(error) = std::fs::write(&abort, "1") {
            tracing::error!("{abort}: {error}: what uses the mount waits until this process ends");
        }
    }

    /// Takes back a mount that nothing can answer. Whoever waits for an answer gets ECONNABORTED.
    pub(crate) fn detach(&self) {
        let lazily = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
        // Only the root of the first user namespace may force.
        if let Err(errno) = unmount(&self.dir, lazily | UnmountFlags::FORCE).or_else(|_| unmount(&self.dir, lazily)) {
            tracing::warn!("cannot unmount {}: {errno}", self.dir.display());
        }
    }
}

/// The options that the kernel shows for the mount of homenode on `dir`, separated by commas: those
/// of the mount, then those of the file system.
///
/// # Errors
///
/// No mount of homenode is exactly there.
pub fn shown(dir: &Path) -> Result<String, Error> {
    let refused = |source| Error::Io { doing: "remount", path: dir.to_owned(), source };
    let path = dir.canonicalize().map_err(refused)?;
    let id = mount_id(&path).map_err(failed("remount", dir))?;
    let line = entry(id).map_err(refused)?.unwrap_or_default();
    let (mount, file_system) = line.split_once(" - ").unwrap_or_default();
    let (mut mount, mut file_system) = (mount.split(' ').skip(4), file_system.split(' '));
    let place = path.as_os_str().as_bytes().iter().fold(Vec::new(), |mut place, byte| {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => place.extend(format!("\\{byte:03o}").into_bytes()),
            _ => place.push(*byte),
        }
        place
    });
    let there = mount.next().is_some_and(|shown| shown == String::from_utf8_lossy(&place));
    match (there && file_system.next() == Some(KIND), mount.next(), file_system.nth(1)) {
        (true, Some(of_mount), Some(of_file_system)) => Ok(format!("{of_mount},{of_file_system}")),
        _ => Err(refused(io::Error::new(io::ErrorKind::InvalidInput, "no mount of homenode is there"))),
    }
}

/// Changes what users may do with a mount: these flags, and no others.
pub fn remount(dir: &Path, flags: Flags) -> Result<(), Error> {
    mount_remount(dir, flags, "").map_err(failed("remount", dir))
}

const MOUNTS: &str = "/proc/self/mountinfo";

/// The line of the mount with this number in the table of mounts.
fn entry(id: u64) -> io::Result<Option<String>> {
    let table = std::fs::read(MOUNTS)?;
    let is = |line: &&str| line.split(' ').next().and_then(|first| first.parse().ok()) == Some(id);
    Ok(String::from_utf8_lossy(&table).lines().find(is).map(str::to_owned))
}

/// The number of the mount that a path is on, without asking its server.
fn mount_id(dir: &Path) -> Result<u64, Errno> {
    Ok(statx(CWD, dir, AtFlags::STATX_DONT_SYNC, StatxFlags::MNT_ID)?.stx_mnt_id)
}
