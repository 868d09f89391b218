//! Moving the blocks of a file on DAX to a node, on XFS.
//!
//! **Problem.** A DAX file's bytes are where its blocks are, and its users read, write and map them
//! while they move. The kernel has no call that moves blocks to a node.
//!
//! **Approach.** XFS exchanges the blocks of two files in one transaction (`XFS_IOC_COMMIT_RANGE`,
//! Linux 6.12), if the file has not changed since a look at it. [`donor`] is an unnamed file with
//! blocks on the target node. For each [`CHUNK`]:
//!
//! 1. Note the file's times (`XFS_IOC_START_COMMIT`). They are as coarse as a tick: a second change
//!    within a tick does not show. So look again until the last change is older than a clock that
//!    was read before.
//! 2. `fdatasync`: write-protects all mappings, so that a store from now on faults, and thereby
//!    changes the times.
//! 3. Look which blocks the file has, and copy them to the donor.
//! 4. Exchange the blocks, unless the times have changed; else start again.
//!
//! Any write to the file, wherever it is, makes a try void. So a try that failed is followed by one
//! of half as many bytes, which is over sooner, after a longer pause; a try that succeeded by one
//! of twice as many. The donor keeps its blocks for the whole chunk meanwhile, so that the chunk
//! stays in one piece. The move gives up after [`PATIENCE`] tries in a row.
//!
//! After a crash the file has the old or the new blocks of each chunk: the exchange is in XFS's log
//! as a whole. Holes stay holes, preallocated blocks stay preallocated, and the file's times stay
//! as they are. The file grows, shrinks or is deleted as its users like; a chunk that changed its
//! size is looked at anew.
//!
//! **Limits.**
//! - A file that is written in each tick never gets its turn.
//! - While somebody holds a page of the file pinned (direct I/O from or into a mapping of it,
//!   `vmsplice`), the exchange waits, and with it every read and write of the file: at most
//!   [`PINNED_MOST`], then the try counts as failed. If the donor's inode number is the lower one,
//!   the kernel would spin instead, deaf to signals
//!   (`xfs_mmaplock_two_inodes_and_break_dax_layout`), so the move looks for such pages first. A
//!   page that is pinned between the look and the exchange makes the kernel spin all the same,
//!   until it is let go.
//! - While somebody maps the file shared and writable, nothing is moved: see [`mappers`] for the
//!   store that could be lost. Only processes that `/proc` shows are seen.
//! - The exchange takes setuid bits and file capabilities from a file, as a write does. Files that
//!   have them are refused.
//! - Blocks that several files share (reflinks) are left: a copy would take more room.
//! - During the move, the file is open for writing: `execve` of it fails with ETXTBSY. inotify
//!   reports a modification.
//! - It needs CAP_SYS_ADMIN (to leave the times alone), and CAP_SYS_PTRACE (to see who maps the
//!   file).

mod bounded;
mod donor;
mod mappers;
mod xfs;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use linux::block::fiemap::{self, Extent};
use linux::block::{self, Layout};
use linux::residency::open::Opened;
use rustix::fs::{FileType, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::time::ClockId;
use topology::NodeId;

use self::donor::Donor;
use super::copying::{Copied, Copying};
use super::pages::FileMoveError;

/// Bytes of one exchange: what one entry of a page table's second level maps, so that a file of
/// aligned huge pages keeps them.
pub const CHUNK: u64 = 2 << 20;

/// Bytes of the shortest try. A shorter one would take as long: a tick, and a look at all
/// processes, are its fixed cost.
const LEAST: u64 = 128 << 10;

/// How often the move tries in a row while the file is changed each time: the pauses sum up to 14
/// s. In an emulated machine on a busy host, where a try takes a tenth of a second, 60 were too few
/// for a file that was written every 75 ms.
const PATIENCE: u32 = 240;

/// The same while the file is pinned, because all its users wait with each try.
const PINNED_PATIENCE: u32 = 60;

/// The first pause after a failed try, and the longest. Every fourth pause is twice as long as
/// those before.
const PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(64);

/// How long a step may pause in all, so that a move stops soon when it is told to.
const TURN: Duration = Duration::from_millis(100);

/// After this many pieces in a row that stay for a reason which concerns the whole file, the rest
/// is left untried. Each piece costs a look at all processes.
const STUCK: u32 = 3;

/// How long an exchange may wait for pinned pages: all users of the file wait with it.
const PINNED_MOST: Duration = Duration::from_millis(20);

/// Why data stays: its file was written in each tick.
pub const WRITTEN: &str = "written all the time";
/// Why data stays: of a mapping.
pub const MAPPED: &str = "mapped shared and writable by a process";
/// Why data stays: somebody holds pages of the file.
pub const PINNED: &str = "pinned in memory by a process (direct I/O, vmsplice)";
/// Why data stays: other files have the same blocks.
pub const SHARED: &str = "blocks shared with another file (reflink)";
/// Why data stays: the node's part of the file system is full.
pub const NO_ROOM: &str = "no free blocks on the target node";
/// Why data stays: its last name is gone.
pub const DELETED: &str = "the file was deleted";

/// Why the blocks of a file are not moved: a stable word for programs, and the rest of a sentence.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct DaxRefused {
    pub reason: &'static str,
    pub why: String,
}

fn refused<T>(reason: &'static str, why: impl Into<String>) -> Result<T, DaxRefused> {
    Err(DaxRefused { reason, why: why.into() })
}

/// A failed system call, as a refusal.
fn failed<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> DaxRefused {
    move |e| DaxRefused { reason: "error", why: format!("cannot {what}: {e}") }
}

/// A move of a DAX file's blocks, prepared and not finished.
#[derive(Debug)]
pub struct DaxMove {
    /// Open so that no time of the file changes.
    file: File,
    /// A directory of the file system, by the same mount as `file`.
    root: File,
    device: (u32, u32),
    inode: u64,
    layout: Layout,
    to: NodeId,
    /// Allocation groups of the file system.
    groups: u32,
    donor: Option<Donor>,
    buffer: Vec<u8>,
    /// Where the move has come to, and the file's size when it began.
    next: u64,
    end: u64,
    /// Bytes of the next try.
    piece: u64,
    /// Tries in a row that failed because of the file's users.
    busy: u32,
    /// Pieces in a row that stay for the same reason.
    stuck: u32,
    copied: Copied,
    over: bool,
}

enum Tried {
    Arrived(u64),
    /// The file was in use, as the reason says: it can be tried again.
    Busy(&'static str),
    /// This many bytes stay.
    Left(&'static str, u64),
}

impl DaxMove {
    /// As [`prepare`](Self::prepare), with an error that names the file.
    pub fn of_opened(file: &Opened, to: NodeId) -> Result<Self, FileMoveError> {
        Self::prepare(&file.fd, to).map_err(|refused| FileMoveError::Refused {
            path: file.path.clone(),
            to,
            reason: refused.reason,
            why: refused.why,
        })
    }

    /// Looks at an open file and prepares the move of its blocks. Moves nothing.
    pub fn prepare(file: &File, to: NodeId) -> Result<Self, DaxRefused> {
        let stat = rustix::fs::fstat(file).map_err(failed("look at the file"))?;
        let statx = rustix::fs::statx(file, "", rustix::fs::AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
            .map_err(failed("look at the file"))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return refused("not_a_file", "it is not a regular file");
        }
        if !statx.stx_attributes.contains(StatxAttributes::DAX) {
            return refused("not_dax", "it is not accessed directly in persistent memory (DAX)");
        }
        match rustix::fs::fstatfs(file).map_err(failed("look at the file system"))?.f_type as i64 {
            libc::XFS_SUPER_MAGIC => {}
            libc::EXT4_SUPER_MAGIC => return refused("ext4", "ext4 does not exchange the blocks of DAX files"),
            _ => return refused("file_system", "only XFS exchanges the blocks of DAX files"),
        }
        // `st_dev` of XFS is its block device's number.
        let device = (statx.stx_dev_major, statx.stx_dev_minor);
        let layout =
            Layout::of(Path::new("/sys"), device).map_err(failed("tell which node each part of its device is on"))?;
        if !layout.nodes().contains(&Some(to)) {
            return refused("no_memory", format!("its file system has no memory on node {to}"));
        }
        may_be_exchanged(file, stat.st_mode)?;
        let root = block::mount::directory(device).map_err(failed("find where its file system is mounted"))?;
        let (groups, exchange) = xfs::geometry(&root).map_err(failed("ask for the file system's geometry"))?;
        if !exchange {
            return refused("no_exchange", "its file system was made without exchange=1 (mkfs.xfs -i exchange=1)");
        }
        let open = xfs::open_without_times(file, &root).map_err(failed("open it for an exchange of blocks"))?;
        if let Err(e) = xfs::start(&open) {
            return match e.raw_os_error() {
                Some(libc::ENOTTY | libc::EOPNOTSUPP) => {
                    refused("kernel", "this kernel does not exchange blocks of open files (Linux 6.12 does)")
                }
                _ => Err(failed("note its times")(e)),
            };
        }
        mappers::writable(device, stat.st_ino).map_err(failed("see which processes map it"))?;
        let mut copied = Copied::default();
        fiemap::walk(&open, 0, stat.st_size as u64, &mut |extent| {
            let there = extent.len - away(&[extent], &layout, to);
            copied.there += there;
            copied.total += extent.len;
        })
        .map_err(failed("list its extents"))?;
        copied.moved = copied.there;
        Ok(Self {
            file: open,
            root,
            device,
            inode: stat.st_ino,
            layout,
            to,
            groups,
            donor: None,
            buffer: vec![0; CHUNK as usize],
            next: 0,
            end: stat.st_size as u64,
            piece: CHUNK,
            busy: 0,
            stuck: 0,
            copied,
            over: false,
        })
    }

    /// Tries once to exchange a piece that lies within one chunk.
    fn try_piece(&mut self, at: u64, len: u64) -> io::Result<Tried> {
        let size = self.size()?;
        let len = len.min(size.saturating_sub(at));
        let extents = fiemap::extents(&self.file, at, len)?;
        let rest = away(&extents, &self.layout, self.to);
        if rest == 0 {
            return Ok(Tried::Arrived(0));
        }
        if extents.iter().any(|e| e.shared) {
            return Ok(Tried::Left(SHARED, rest));
        }
        // What is left of the chunk, so that its blocks lie side by side.
        let to_end = (CHUNK - at % CHUNK).min(size.saturating_sub(at));
        let chunk = fiemap::extents(&self.file, at, to_end)?;
        if !self.reserve(&chunk, size)? {
            return Ok(Tried::Left(NO_ROOM, rest));
        }
        match self.exchange(at, len, &extents) {
            Ok(None) => {
                // The blocks that the file had.
                if let Some(donor) = &self.donor {
                    donor.give_back(at, len)?;
                }
                Ok(Tried::Arrived(rest))
            }
            Ok(Some(reason)) => Ok(Tried::Left(reason, rest)),
            // EINVAL: the file was truncated, or grew within its last block.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EBUSY | libc::EINVAL)) => Ok(Tried::Busy(WRITTEN)),
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => Ok(Tried::Busy(PINNED)),
            Err(e) => Err(e),
        }
    }

    /// Allocates the chunk's blocks on the target. False if there are none.
    fn reserve(&mut self, extents: &[Extent], size: u64) -> io::Result<bool> {
        // Others make directories, too: a group can be missed once.
        for _ in 0..=2 * self.groups {
            let mut donor = match self.donor.take() {
                Some(donor) => donor,
                None => match Donor::new(&self.root) {
                    Ok(donor) => donor,
                    Err(e) if full(&e) => return Ok(false),
                    Err(e) => return Err(e),
                },
            };
            match donor.reserve(extents, size, &self.layout, self.to) {
                Ok(true) => {
                    self.donor = Some(donor);
                    return Ok(true);
                }
                Ok(false) => {}
                Err(e) if full(&e) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(false)
    }

    /// Exchanges the chunk's blocks with the donor's. EBUSY if the file changes meanwhile; `Some`
    /// says why the blocks must stay.
    fn exchange(&mut self, at: u64, len: u64, extents: &[Extent]) -> io::Result<Option<&'static str>> {
        if mappers::writable(self.device, self.inode)? {
            return Ok(Some(MAPPED));
        }
        let Some(donor) = &self.donor else { return Err(Errno::BADF.into()) };
        // What is dirty now need not be written while the times must stand still.
        rustix::fs::fdatasync(&self.file)?;
        if donor.inode < self.inode {
            bounded::call(PINNED_MOST, || donor::wait_for_pinned(&self.file))?;
        }
        let started = self.start()?;
        // Once more, after the look at the times: a mapping that is made from now on has not been
        // stored to before.
        if mappers::writable(self.device, self.inode)? {
            return Err(Errno::BUSY.into());
        }
        rustix::fs::fdatasync(&self.file)?;
        if fiemap::extents(&self.file, at, len)? != extents {
            return Err(Errno::BUSY.into());
        }
        for extent in extents.iter().filter(|e| !e.unwritten) {
            let Some(buffer) = self.buffer.get_mut(..extent.len as usize) else { return Err(Errno::OVERFLOW.into()) };
            match self.file.read_exact_at(buffer, extent.offset) {
                // Truncated.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Err(Errno::BUSY.into()),
                other => other?,
            }
            donor.file.write_all_at(buffer, extent.offset)?;
        }
        bounded::call(PINNED_MOST, || xfs::commit(&self.file, &started, &donor.file, at, len))?;
        Ok(None)
    }

    /// Notes the file's times, once they are older than a clock that was read before. EBUSY if they
    /// are not.
    fn start(&self) -> io::Result<xfs::Started> {
        let clock = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
        let started = xfs::start(&self.file)?;
        let stat = rustix::fs::fstat(&self.file)?;
        if (stat.st_ctime, stat.st_ctime_nsec as i64) < (clock.tv_sec, clock.tv_nsec) {
            return Ok(started);
        }
        Err(Errno::BUSY.into())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.file)?.st_size as u64)
    }

    fn leave(&mut self, reason: &'static str, bytes: u64) {
        if bytes > 0 {
            *self.copied.left.entry(reason).or_default() += bytes;
        }
    }

    /// Ends the move; what has not been tried stays.
    fn leave_rest(&mut self, reason: &'static str) {
        self.leave(reason, self.copied.total.saturating_sub(self.copied.moved + self.copied.failed()));
        self.over = true;
    }
}

impl Copying for DaxMove {
    fn step(&mut self, bytes: u64) -> io::Result<bool> {
        let (mut tried, mut paused) = (0, Duration::ZERO);
        while !self.over && tried < bytes.max(1) && paused < TURN {
            // An open file keeps its blocks: one that nobody can open any more is let go.
            if rustix::fs::fstat(&self.file)?.st_nlink == 0 {
                self.leave_rest(DELETED);
                break;
            }
            if self.next >= self.end {
                self.over = true;
                break;
            }
            let (at, len) = (self.next, self.piece.min(CHUNK - self.next % CHUNK));
            match self.try_piece(at, len)? {
                Tried::Busy(why) => {
                    self.busy += 1;
                    self.piece = (len / 2).max(LEAST);
                    if self.busy >= if why == PINNED { PINNED_PATIENCE } else { PATIENCE } {
                        self.leave_rest(why);
                        break;
                    }
                    let pause = PAUSE.saturating_mul(1 << (self.busy / 4).min(6)).min(LONGEST_PAUSE);
                    std::thread::sleep(pause);
                    paused += pause;
                    continue;
                }
                Tried::Arrived(0) => {}
                Tried::Arrived(bytes) => {
                    self.copied.moved += bytes;
                    (self.busy, self.stuck) = (0, 0);
                    self.piece = (len * 2).min(CHUNK);
                }
                Tried::Left(SHARED, bytes) => self.leave(SHARED, bytes),
                Tried::Left(reason, bytes) => {
                    self.leave(reason, bytes);
                    self.stuck += 1;
                    if self.stuck == STUCK {
                        self.leave_rest(reason);
                        break;
                    }
                }
            }
            self.next += len;
            tried += len;
        }
        if self.over {
            self.donor = None;
        }
        Ok(self.over)
    }

    fn copied(&self) -> Copied {
        self.copied.clone()
    }
}

/// Refuses files whose blocks the kernel does not exchange, or to which an exchange does harm.
fn may_be_exchanged(file: &File, mode: u32) -> Result<(), DaxRefused> {
    let flags = xfs::flags(file).map_err(failed("ask for its flags"))?;
    if flags & xfs::IMMUTABLE != 0 {
        return refused("immutable", "it is immutable (chattr +i)");
    }
    if flags & xfs::APPEND != 0 {
        return refused("append_only", "it can only be appended to (chattr +a)");
    }
    if flags & xfs::REALTIME != 0 {
        return refused("realtime", "it is on the file system's realtime device");
    }
    if mode & (libc::S_ISUID | libc::S_ISGID) != 0 {
        return refused("setuid", "it is setuid or setgid, which the exchange would take from it");
    }
    match rustix::fs::fgetxattr(file, "security.capability", &mut [0_u8; 0]) {
        Ok(_) => refused("capabilities", "it has file capabilities, which the exchange would take from it"),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        Err(e) => Err(failed("ask for its capabilities")(e)),
    }
}

/// Bytes that are not on the node, or may not be.
fn away(extents: &[Extent], layout: &Layout, to: NodeId) -> u64 {
    extents.iter().filter(|e| e.unknown || !layout.is_on(e.physical, e.len, to)).map(|e| e.len).sum()
}

fn full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}
