//! The connection to the kernel: its beginning, and by `/dev/fuse` all of it, with one file for
//! each worker.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use linux::resident::{self, Resident};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::held::Seat;
use crate::stale::{Stale, Waiting};
use crate::wire::{Answer, BUFFER, REQUEST, Request, VERSION, init, opcode};
use crate::{Cache, Options};

pub(crate) const DEVICE: &str = "/dev/fuse";

/// Read-ahead and asynchronous requests under way, at most; and how many are many.
pub(crate) const BACKGROUND: (u16, u16) = (64, 48);

/// Wait of a worker for memory that the kernel lacks.
const PAUSE: Duration = Duration::from_millis(10);

/// `FUSE_DEV_IOC_CLONE`.
const CLONE: libc::Ioctl = 0x8004_e500_u32 as libc::Ioctl;

/// Handler of requests: one for all workers.
pub(crate) trait Answers: Send + Sync {
    /// Does what a request asks for. `Some`: the errno to answer with, or 0 and the answer; `None`:
    /// nothing is to be said.
    fn answer(&self, request: &Request<'_>, answer: &mut Answer<'_>) -> Option<i32>;

    /// Answers a request that a server before this one has committed, and not answered.
    fn finish(&self, request: &Request<'_>, answer: &mut Answer<'_>) -> i32 {
        self.answer(request, answer).unwrap_or(0)
    }

    /// Adds what the kernel has to be told of a request that it sent again.
    fn came_again(&self, _request: &Request<'_>, _answer: &mut Answer<'_>) {}
}

/// A worker's way to the kernel.
pub(crate) trait Transport: Send {
    /// Answers requests until the mount ends.
    fn serve(&mut self, server: &dyn Answers, stale: &Stale) -> io::Result<()>;

    /// Whether what comes this way comes no other: without its worker it would wait for ever.
    fn alone(&self) -> bool;
}

/// Opens a connection that is not mounted yet.
pub(crate) fn connect() -> Result<OwnedFd, Errno> {
    open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Another file of the same connection: two workers with files of their own do not wait for each
/// other.
pub(crate) fn another(connection: &OwnedFd) -> Result<OwnedFd, Errno> {
    let new = connect()?;
    clone_to(&new, connection)?;
    Ok(new)
}

/// Makes a file that has no connection yet one of this connection.
pub(crate) fn clone_to(new: &OwnedFd, connection: &OwnedFd) -> Result<(), Errno> {
    let old = connection.as_raw_fd();
    // SAFETY: the ioctl reads one 32-bit number, which lives through the call.
    if unsafe { libc::ioctl(new.as_raw_fd(), CLONE, &raw const old) } == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

/// Answers the kernel's first request: what both sides can do. `more`: bits of [`init`] for which
/// not every server is made. Returns what was agreed.
pub(crate) fn handshake(connection: &OwnedFd, options: &Options, more: u64) -> io::Result<u64> {
    let (mut buffer, mut out) = (vec![0; BUFFER], vec![0; BUFFER]);
    let mut answer = Answer::new(&mut out);
    loop {
        let len = rustix::io::retry_on_intr(|| rustix::io::read(connection, &mut *buffer))?;
        let request = Request::decode(buffer.get(..len).unwrap_or_default()).filter(|r| r.opcode == opcode::INIT);
        let Some(request) = request else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel does not introduce itself"));
        };
        let mut args = request.args;
        let mut next = || args.u32().unwrap_or_default();
        let (major, _minor, readahead, flags, flags2) = (next(), next(), next(), next(), next());
        let flags2 = if u64::from(flags) & init::INIT_EXT == 0 { 0 } else { flags2 };
        let offered = u64::from(flags) | u64::from(flags2) << 32;
        // Without ATOMIC_O_TRUNC: truncating what is being executed would not fail with ETXTBSY.
        let mut wanted = init::ASYNC_READ
            | init::EXPORT_SUPPORT
            | init::BIG_WRITES
            | init::DO_READDIRPLUS
            | init::READDIRPLUS_AUTO
            | init::ASYNC_DIO
            | init::PARALLEL_DIROPS
            | init::MAX_PAGES
            | init::CACHE_SYMLINKS
            | init::NO_OPENDIR_SUPPORT
            | init::EXPLICIT_INVAL_DATA
            | init::HANDLE_KILLPRIV_V2
            | init::DONT_MASK
            | init::POSIX_ACL
            | init::SETXATTR_EXT
            | init::INIT_EXT
            | more;
        match options.cache {
            Cache::Direct => wanted |= init::DIRECT_IO_ALLOW_MMAP,
            Cache::Writeback => wanted |= init::WRITEBACK_CACHE,
            Cache::Kernel => {}
        }
        if options.idmap {
            wanted |= init::ALLOW_IDMAP;
        }
        let agreed = offered & wanted;
        if options.idmap && agreed & init::ALLOW_IDMAP == 0 {
            tracing::warn!("the kernel does not let this mount be idmapped: that takes Linux 6.12");
        }
        answer.begin();
        answer.u32(VERSION.0);
        answer.u32(VERSION.1);
        if major <= VERSION.0 {
            let pages = REQUEST / rustix::param::page_size() as u32;
            answer.u32(readahead);
            answer.u32(agreed as u32);
            answer.u32(u32::from(BACKGROUND.0) | u32::from(BACKGROUND.1) << 16);
            answer.u32(REQUEST);
            answer.u32(1); // the unit of times, in ns
            answer.u32(pages); // and, above it, no alignment of mappings
            answer.u32((agreed >> 32) as u32);
            answer.bytes(&[0; 28]);
        }
        rustix::io::write(connection, answer.finish(request.unique, 0))?;
        if major < VERSION.0 {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel's FUSE is too old"));
        }
        if major == VERSION.0 {
            return Ok(agreed);
        }
    }
}

/// Sends what has to be told before the answer.
pub(crate) fn notify(connection: &OwnedFd, answer: &mut Answer<'_>) {
    if let Some(notice) = answer.notice() {
        match rustix::io::write(connection, &notice) {
            Ok(_) | Err(Errno::NOENT | Errno::NODEV) => {} // the kernel does not know the inode any more
            Err(errno) => tracing::warn!("the kernel does not take a notice: {errno}"),
        }
    }
}

/// Says once for each process that something is missing.
fn say(said: &AtomicBool, what: &str, error: &io::Error) {
    if !said.swap(true, Ordering::Relaxed) {
        tracing::info!(
            "{what}: {error}: in a memory group with a limit the mount may hang with a program whose pages it writes \
             back, such as a loop device"
        );
    }
}

/// Keeps the kernel from letting this worker wait for pages that only workers can write back.
pub(crate) fn flush_for_others() {
    static SAID: AtomicBool = AtomicBool::new(false);
    if let Err(error) = resident::write_back_for_others() {
        say(&SAID, "the kernel does not take a worker for one that writes back (CAP_SYS_RESOURCE)", &error);
    }
}

/// Memory for requests or answers, of which so many bytes are there before the first request.
pub(crate) fn memory(len: usize, kept: usize) -> Resident {
    static SAID: AtomicBool = AtomicBool::new(false);
    let (memory, locked) = Resident::new(len, kept);
    if let Err(error) = locked {
        say(&SAID, "the memory of requests is not locked (CAP_IPC_LOCK)", &error);
    }
    memory
}

/// A file of `/dev/fuse`.
pub(crate) struct Device(pub Arc<OwnedFd>, pub Option<Seat>);

impl Transport for Device {
    fn alone(&self) -> bool {
        false
    }

    fn serve(&mut self, server: &dyn Answers, stale: &Stale) -> io::Result<()> {
        let connection = &self.0;
        flush_for_others();
        if let Some(seat) = &self.1 {
            fs::note_in(Arc::new(seat.clone()));
        }
        let (mut buffer, mut out) = (memory(BUFFER, BUFFER), memory(BUFFER, BUFFER));
        loop {
            let mut answer = Answer::new(&mut out);
            let len = match rustix::io::read(connection, &mut *buffer) {
                Ok(len) => len,
                // ECONNABORTED: the mount ended while this request was on its way.
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(()),
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue, // the caller gave up
                // The request is still there, or has failed by itself.
                Err(Errno::NOMEM | Errno::FAULT | Errno::IO) => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Err(errno) => return Err(errno.into()),
            };
            let Some(request) = Request::decode(buffer.get(..len).unwrap_or_default()) else { continue };
            let errno = match &self.1 {
                Some(seat) => seat.answer(server, &request, &mut answer),
                None => server.answer(&request, &mut answer),
            };
            let Some(errno) = errno else { continue };
            notify(connection, &mut answer);
            if let Some(range) = answer.stale() {
                let waiting = || Waiting(Arc::clone(connection), answer.finish(request.unique, errno).to_vec());
                if stale.put_and_answer(range, waiting) {
                    continue;
                }
            }
            match rustix::io::write(connection, answer.finish(request.unique, errno)) {
                Ok(_) | Err(Errno::NOENT | Errno::NODEV) => {} // the caller, or the mount, is gone
                Err(errno) => {
                    tracing::warn!("the kernel does not take the answer to request {}: {errno}", request.opcode);
                    let _ = rustix::io::write(connection, answer.finish(request.unique, libc::EIO));
                }
            }
        }
    }
}
