//! Opens a file of which only the inode is known.
//!
//! **Problem.** The programs in the kernel name a file by its superblock's device, inode number and
//! generation. Its names belong to users, who may change them at any moment and give them to a pipe
//! or to another file.
//!
//! **Approach.** Where the file system takes file handles made of number and generation,
//! `open_by_handle_at(2)` opens that inode and no other: no name is looked at. Elsewhere (btrfs,
//! tmpfs, mounts that only a container sees) the files that its readers have open or mapped are
//! searched (`/proc/PID/fd`, `/proc/PID/map_files`): a handle without access (`O_PATH`) to one is
//! compared, and only the very inode is then opened through it. No file is opened on a file system
//! whose server could make that wait.
//!
//! **Limits.** A reader that closed the file before it was searched, or that has it beyond the
//! first [`MOST_LINKS`] links, does not lead to it. The path is the one that the kernel has cached,
//! for people to read. Only [`Inodes::by_path`] opens a file by a path, and then compares its
//! identity.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use linux::leases;
use linux::mounts::{Mount, Mounts};
use linux::patient;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::kinds::{self, Handle};
use topology::FileId;

/// Links of one reader that are searched: a database has some hundreds of files open. One takes 2
/// µs.
const MOST_LINKS: usize = 1024;
/// Readers of one file whose links are searched. Most files have one, and readers of a shared one
/// have it open alike.
pub const MOST_READERS: usize = 4;

#[derive(Debug)]
pub struct Opened {
    /// Open for reading.
    pub fd: File,
    pub mount: Mount,
}

/// Largest table of mounts that is read of a process: some thousand mounts.
const MOST_MOUNTINFO: u64 = 1 << 20;

/// Opens inodes; keeps a descriptor for each file system.
#[derive(Debug)]
pub struct Inodes {
    proc_root: PathBuf,
    mounts: Mounts,
    /// Directories of mounted file systems, by mount id.
    roots: HashMap<u64, OwnedFd>,
}

impl Inodes {
    /// None is open yet, on the machine whose procfs is mounted here.
    pub fn new(proc_root: &Path) -> Self {
        Self { proc_root: proc_root.to_owned(), mounts: Mounts::default(), roots: HashMap::new() }
    }

    /// Reads the table of mounts again.
    pub fn refresh(&mut self) {
        let table = std::fs::read(self.proc_root.join("self/mountinfo")).unwrap_or_default();
        self.mounts = Mounts::parse(&table);
        let mounts = &self.mounts;
        self.roots.retain(|id, _| mounts.of_id(*id).is_some());
    }

    /// The mount of a device that shows most of it.
    pub fn mount(&self, dev: u32) -> Option<&Mount> {
        self.mounts.of_dev(dev).next()
    }

    /// Lets go of all file systems, so that they can be unmounted.
    pub fn let_go(&mut self) {
        self.roots.clear();
    }

    /// Opens an inode for reading, without any effect on it. `readers` are processes that may have
    /// it open.
    ///
    /// # Errors
    ///
    /// `NotFound` if it is gone, or every way was tried and none leads to it; `ResourceBusy` if
    /// somebody has a write lease on it; others as the kernel gives them, if a way could not be
    /// tried.
    pub fn open(&mut self, inode: FileId, readers: &[u32]) -> io::Result<Opened> {
        leases::free(inode.dev, inode.ino, false)?;
        let mut untried = None;
        let mount = self.mount(inode.dev).cloned();
        if let Some(mount) = mount {
            let kind = kinds::kind(&mount.fs_type).filter(|kind| kind.local).ok_or_else(|| foreign(&mount))?;
            if let Some(handle) = handle(kind.handle, inode) {
                match self.root(&mount).and_then(|root| by_handle(root, handle)) {
                    Ok(fd) => return Ok(Opened { fd: regular(fd)?, mount }),
                    Err(error) => untried = Some(error).filter(untriable),
                }
            }
        }
        match (self.by_reader(inode, readers), untried) {
            (Err(error), Some(untried)) if error.kind() == io::ErrorKind::NotFound => Err(untried),
            (opened, _) => opened,
        }
    }

    /// A directory on this mount, open.
    fn root(&mut self, mount: &Mount) -> io::Result<&OwnedFd> {
        let root = match self.roots.remove(&mount.id) {
            Some(root) => root,
            None => {
                // Another file system may be mounted over it, and its server may never answer: only
                // look first.
                let path = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let place = rustix::fs::open(&mount.point, path, Mode::empty())?;
                let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
                if rustix::fs::statx(&place, "", how, StatxFlags::MNT_ID)?.stx_mnt_id != mount.id {
                    return Err(io::ErrorKind::NotFound.into());
                }
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOATIME;
                rustix::fs::openat(&place, ".", flags, Mode::empty())?
            }
        };
        Ok(self.roots.entry(mount.id).or_insert(root))
    }

    /// Opens an inode by a path that it had, if it still has it. Where handles and readers do not
    /// lead to it, a path may.
    ///
    /// # Errors
    ///
    /// `NotFound` if the path leads to another file or to none; others as the kernel gives them.
    pub fn by_path(&self, inode: FileId, path: &Path) -> io::Result<Opened> {
        leases::free(inode.dev, inode.ino, false)?;
        through(path, inode, &self.mounts)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn by_reader(&self, inode: FileId, readers: &[u32]) -> io::Result<Opened> {
        let mut untried = None;
        for reader in readers.iter().take(MOST_READERS) {
            let process = self.proc_root.join(reader.to_string());
            match patient::ask(*reader, "fd", move || of_reader(&process, inode)) {
                Ok(Some(opened)) => return Ok(opened),
                Ok(None) => {}
                // Another one may.
                Err(error) => untried = Some(error),
            }
        }
        Err(untried.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
    }
}

/// Opens an inode by what a process has open or mapped. An error: there is none, as far as could be
/// looked.
fn of_reader(process: &Path, inode: FileId) -> io::Result<Option<Opened>> {
    // Any user can make a hundred thousand mounts with long names.
    let mut table = Vec::new();
    let read =
        File::open(process.join("mountinfo")).and_then(|file| file.take(MOST_MOUNTINFO + 1).read_to_end(&mut table));
    if read.is_err() || table.len() as u64 > MOST_MOUNTINFO {
        return read.err().filter(untriable).map_or(Ok(None), Err);
    }
    let mounts = Mounts::parse(&table);
    let mut untried = None;
    for links in ["fd", "map_files"] {
        let entries = match std::fs::read_dir(process.join(links)) {
            Ok(entries) => entries,
            Err(error) => {
                untried = Some(error).filter(untriable).or(untried);
                continue;
            }
        };
        for link in entries.take(MOST_LINKS).flatten() {
            match through(&link.path(), inode, &mounts) {
                Ok(Some(opened)) => return Ok(Some(opened)),
                Ok(None) => {}
                Err(error) => untried = Some(error),
            }
        }
    }
    untried.map_or(Ok(None), Err)
}

/// Whether an error says that a way could not be tried. Others say that it leads nowhere: what it
/// leads to is gone (ENOENT, ESRCH, ESTALE, ENOTDIR), or there is no such way here (EOPNOTSUPP,
/// EINVAL).
fn untriable(error: &io::Error) -> bool {
    let nowhere = [Errno::NOENT, Errno::SRCH, Errno::STALE, Errno::NOTDIR, Errno::OPNOTSUPP, Errno::INVAL];
    error.kind() != io::ErrorKind::NotFound && Errno::from_io_error(error).is_none_or(|errno| !nowhere.contains(&errno))
}

fn foreign(mount: &Mount) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("files of {} are not opened", mount.fs_type))
}

/// Opens what a path or a link in procfs leads to, if that is this inode.
fn through(link: &Path, inode: FileId, mounts: &Mounts) -> io::Result<Option<Opened>> {
    // `DONT_SYNC`: a network file system answers from memory.
    let same = |fd: &dyn Fn() -> rustix::io::Result<rustix::fs::Statx>| -> Option<Mount> {
        let stat = fd().ok()?;
        let mount = mounts.of_id(stat.stx_mnt_id)?;
        let regular = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile;
        // What names a file of btrfs is its subvolume's device, not that of the mount.
        let devices = [mount.dev, FileId::device(stat.stx_dev_major, stat.stx_dev_minor)];
        (regular && stat.stx_ino == inode.ino && devices.contains(&inode.dev)).then(|| mount.clone())
    };
    let wanted = StatxFlags::INO | StatxFlags::TYPE | StatxFlags::MNT_ID;
    let first = rustix::fs::statx(CWD, link, AtFlags::STATX_DONT_SYNC, wanted);
    if let Some(error) = first.as_ref().err().map(|errno| io::Error::from(*errno)).filter(untriable) {
        return Err(error);
    }
    if same(&|| first).is_none() {
        return Ok(None);
    }
    // The link may lead elsewhere by now, so the same is asked of what is open.
    let open = match rustix::fs::open(link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(io::Error::from) {
        Ok(open) => open,
        Err(error) if untriable(&error) => return Err(error),
        Err(_) => return Ok(None),
    };
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let Some(mount) = same(&|| rustix::fs::statx(&open, "", flags, wanted)) else { return Ok(None) };
    if !kinds::kind(&mount.fs_type).is_some_and(|kind| kind.local) {
        return Err(foreign(&mount));
    }
    leases::free(mount.dev, inode.ino, false)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOATIME | OFlags::CLOEXEC;
    let fd = rustix::fs::open(format!("/proc/self/fd/{}", open.as_raw_fd()), flags, Mode::empty())?;
    // Where the file system tells the generation, it must be that of the inode which was read.
    match generation(&fd) {
        Ok(generation) if generation != inode.generation => Ok(None),
        _ => Ok(Some(Opened { fd: fd.into(), mount })),
    }
}

/// An open file's generation (`FS_IOC_GETVERSION`), where the file system tells it.
fn generation(file: &impl AsFd) -> io::Result<u32> {
    // The number says long, the kernel writes an int.
    let mut generation: [u32; 2] = [0; 2];
    // SAFETY: the kernel writes at most a long, for which there is room.
    let rc = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), libc::FS_IOC_GETVERSION, generation.as_mut_ptr()) };
    if rc == 0 { Ok(generation[0]) } else { Err(io::Error::last_os_error()) }
}

/// `struct file_handle` with the longest handle used here.
#[repr(C)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    words: [u32; 3],
}

fn handle(kind: Handle, inode: FileId) -> Option<FileHandle> {
    let (low, high) = (inode.ino as u32, (inode.ino >> 32) as u32);
    match kind {
        Handle::Ino32 if high == 0 => Some(FileHandle { bytes: 8, kind: 1, words: [low, inode.generation, 0] }),
        // A packed structure: the 64-bit number first, in the machine's order.
        Handle::Xfs => {
            let words = if cfg!(target_endian = "big") { [high, low] } else { [low, high] };
            Some(FileHandle { bytes: 12, kind: 0x81, words: [words[0], words[1], inode.generation] })
        }
        Handle::Ino32 | Handle::None => None,
    }
}

fn by_handle(root: &OwnedFd, handle: FileHandle) -> io::Result<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOATIME | libc::O_CLOEXEC;
    // SAFETY: the handle says how many of its bytes count, all of them its own; both outlive the
    // call.
    let fd = unsafe { libc::syscall(libc::SYS_open_by_handle_at, root.as_raw_fd(), &raw const handle, flags) };
    match i32::try_from(fd) {
        // SAFETY: a new descriptor that nothing else owns.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn regular(fd: OwnedFd) -> io::Result<File> {
    match FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) {
        FileType::RegularFile => Ok(fd.into()),
        _ => Err(io::Error::new(io::ErrorKind::Unsupported, "not a regular file")),
    }
}

/// The name that the kernel has cached for an open file; `None` if it has none, or the file was
/// deleted.
pub fn path(fd: &File) -> Option<PathBuf> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    // An inode without a cached name is shown as the root of its file system.
    let named = path.is_absolute() && path.file_name().is_some();
    (named && !path.as_os_str().as_bytes().ends_with(b" (deleted)")).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn file(dir: &Path) -> (PathBuf, File, FileId) {
        let path = dir.join("file");
        std::fs::write(&path, "text").unwrap();
        let file = File::open(&path).unwrap();
        let (dev, ino) = (file.metadata().unwrap().dev(), file.metadata().unwrap().ino());
        let generation = super::generation(&file).unwrap_or(0);
        (path, file, FileId { dev: rustix::fs::major(dev) << 20 | rustix::fs::minor(dev), ino, generation })
    }

    fn inodes() -> Inodes {
        let mut inodes = Inodes::new(Path::new("/proc"));
        inodes.refresh();
        inodes
    }

    fn root() -> bool {
        let root = rustix::process::geteuid().is_root();
        if !root {
            println!("skipped: opening by handle takes CAP_DAC_READ_SEARCH");
        }
        root
    }

    /// On the file system of the working directory, and on tmpfs.
    #[test]
    fn an_inode_is_opened_without_its_name() {
        for dir in [tempfile::tempdir_in(".").unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()] {
            let (path, open, inode) = file(dir.path());
            let kind = inodes().mount(inode.dev).and_then(|mount| kinds::kind(&mount.fs_type)).map(|kind| kind.handle);
            if !root() && kind != Some(Handle::None) {
                continue;
            }
            // No reader is named, and the name is gone: only the inode is left to go by.
            let readers = if kind == Some(Handle::None) { vec![std::process::id()] } else { Vec::new() };
            let opened = inodes().open(inode, &readers).unwrap();
            assert_eq!(opened.fd.metadata().unwrap().ino(), inode.ino);
            assert_eq!(super::path(&opened.fd), Some(path.canonicalize().unwrap()));
            std::fs::remove_file(&path).unwrap();
            assert_eq!(super::path(&open), None);
            assert_eq!(inodes().open(inode, &readers).unwrap().fd.metadata().unwrap().ino(), inode.ino);
        }
    }

    #[test]
    fn a_file_that_cannot_be_opened_now_is_not_gone() {
        let untried = |errno: Errno| untriable(&io::Error::from(errno));
        assert!(
            [Errno::MFILE, Errno::NFILE, Errno::ACCESS, Errno::PERM, Errno::IO, Errno::NOMEM].map(untried) == [true; 6]
        );
        assert!([Errno::NOENT, Errno::SRCH, Errno::STALE].map(untried) == [false; 3]);
        // A reader whose table of mounts cannot be read may have it: nothing says that it is gone.
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("7/mountinfo")).unwrap();
        let inode = FileId { dev: 1 << 19, ino: 1, generation: 0 };
        let error = Inodes::new(dir.path()).open(inode, &[7]).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::ISDIR), "{error}");
        // One that has ended has nothing.
        assert_eq!(Inodes::new(dir.path()).open(inode, &[8]).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_look_leaves_a_write_lease_alone() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let (path, open, inode) = file(dir.path());
        drop(open);
        let holder = File::options().write(true).open(&path).unwrap();
        // SAFETY: commands without pointers, on an open descriptor. The break is signalled by
        // SIGURG, which nobody heeds.
        let lease = |command, value: libc::c_int| unsafe { libc::fcntl(holder.as_raw_fd(), command, value) };
        // F_SETSIG (include/uapi/asm-generic/fcntl.h), which libc has not.
        assert_eq!(lease(10, libc::SIGURG), 0);
        assert_eq!(lease(libc::F_SETLEASE, libc::F_WRLCK), 0);
        // The list may be a moment old.
        while leases::free(inode.dev, inode.ino, false).is_ok() {
            std::thread::yield_now();
        }
        let mut inodes = inodes();
        let busy = |result: io::Result<Opened>| result.unwrap_err().kind() == io::ErrorKind::ResourceBusy;
        assert!(busy(inodes.open(inode, &[std::process::id()])));
        assert!(busy(inodes.by_path(inode, &path)));
        assert!(linux::residency::of(&path, &mut |_, _| ()).is_err());
        assert_eq!(lease(libc::F_GETLEASE, 0), libc::F_WRLCK, "the lease is being broken");
    }

    #[test]
    fn another_generation_is_another_file() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let (_, _open, inode) = file(dir.path());
        let other = FileId { generation: inode.generation.wrapping_add(1), ..inode };
        assert!(inodes().open(other, &[std::process::id()]).is_err());
        let other = FileId { ino: inode.ino + (1 << 33), ..inode };
        assert!(inodes().open(other, &[std::process::id()]).is_err());
        let other = FileId { dev: 1 << 19, ..inode };
        assert!(inodes().open(other, &[std::process::id()]).is_err());
    }

    #[test]
    fn pipes_and_files_of_servers_are_not_opened() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("pipe");
        rustix::fs::mkfifoat(CWD, &path, Mode::RWXU).unwrap();
        let pipe = rustix::fs::open(&path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
        let stat = rustix::fs::fstat(&pipe).unwrap();
        let dev = rustix::fs::major(stat.st_dev) << 20 | rustix::fs::minor(stat.st_dev);
        let inode = FileId { dev, ino: stat.st_ino, generation: 0 };
        assert_eq!(inodes().open(inode, &[std::process::id()]).unwrap_err().kind(), io::ErrorKind::NotFound);
        // The same file system under the name of one with a server.
        let mut inodes = inodes();
        let table = format!("1 0 {}:{} / /dev/shm rw - fuse.x x rw\n", dev >> 20, dev & 0xf_ffff);
        inodes.mounts = Mounts::parse(table.as_bytes());
        assert_eq!(inodes.open(inode, &[]).unwrap_err().kind(), io::ErrorKind::Unsupported);
    }
}
