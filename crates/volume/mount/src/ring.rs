//! The connection to the kernel by io_uring (Linux 6.14, `fuse.enable_uring=1`): one queue for each
//! CPU.
//!
//! **Problem.** By `/dev/fuse` a request takes two system calls, and whichever worker waits longest
//! gets it, on whatever CPU.
//!
//! **Approach.** The kernel puts a request into the queue of the caller's CPU. The worker of a
//! queue is bound to its CPU, so a caller and its worker share caches, and a switch between them
//! wakes no other CPU. One call answers a request and waits for the next one. Data is where the
//! kernel was told to put it: an entry has a place for the headers and one for names and data.
//!
//! **Limits.** Interrupts, and what the kernel forgets, come by `/dev/fuse` all the same, and
//! notices go there. While a worker waits, so do the requests of its CPU: memory that is emulated,
//! where accesses sleep, is better served by `/dev/fuse`. Nothing else serves the requests of a CPU
//! whose worker ends early: then the mount ends, so that callers get an error.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use linux::affinity;
use linux::resident::Resident;

use crate::connection::{Answers, Transport, flush_for_others, memory, notify};
use crate::stale::Stale;
use crate::wire::{Answer, OUT_HEADER, REQUEST, Request};

/// Requests of a CPU that are with its worker at a time; others wait in the kernel.
const ENTRIES: u32 = 4;
/// Wait before the kernel is asked again for what it had no memory for.
const PAUSE: Duration = Duration::from_millis(1);
/// With more CPUs than these, only the memory of requests of usual size stays: all of it is 5 MiB
/// for each CPU.
const WHOLE: usize = 32;
/// A request of 128 KiB with its headers.
const COMMON: usize = (128 << 10) + 2 * PAGE;
/// Alignment of data.
const PAGE: usize = 4096;

/// `FUSE_IO_URING_CMD_REGISTER`.
const REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`.
const COMMIT_AND_FETCH: u32 = 2;
/// Pieces of memory of an entry: headers, and names and data.
const PIECES: u32 = 2;
/// `struct fuse_uring_req_header`: the header of a request or answer, the operation's own
/// structure, and the entry's.
const HEADERS: usize = 288;
const OPERATION: usize = 128;
const ENTRY: usize = 256;
/// In the entry's structure: `commit_id` and `payload_sz`.
const COMMIT_ID: std::ops::Range<usize> = ENTRY + 8..ENTRY + 16;
const PAYLOAD: std::ops::Range<usize> = ENTRY + 16..ENTRY + 20;

/// The file that says which CPUs there can ever be; the kernel has a queue for each.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// The queue of a CPU.
pub(crate) struct Queue {
    cpu: u16,
    /// Bytes of the memory of each of its requests that are there before the first.
    kept: usize,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
}

/// A queue that can be served.
pub(crate) struct Served {
    pub queue: Queue,
    pub connection: OwnedFd,
}

/// A queue for each CPU. Nothing is told to the kernel's FUSE yet.
pub(crate) fn queues() -> io::Result<Vec<Queue>> {
    let text = std::fs::read_to_string(POSSIBLE)?;
    let possible: topology::CpuSet = text.trim().parse().map_err(io::Error::other)?;
    let count = possible.iter().count();
    let kept = if count > WHOLE { COMMON } else { usize::MAX };
    let queue = |cpu| {
        let mut builder = IoUring::builder();
        // Completions wait until the worker looks for them; it is the only thread that uses the
        // ring.
        builder.setup_single_issuer().setup_defer_taskrun().setup_r_disabled();
        Ok(Queue { cpu, kept, ring: builder.build(ENTRIES)? })
    };
    (0..count as u16).map(queue).collect()
}

/// Memory that a request comes in and its answer goes out by.
struct Entry {
    headers: Box<[u8; HEADERS]>,
    memory: Resident,
    /// Where names and data begin in `memory`: on a page, after room for an answer's header.
    data: usize,
    pieces: Box<[libc::iovec; PIECES as usize]>,
}

impl Entry {
    fn new(kept: usize) -> Self {
        let (mut headers, mut memory) = (Box::new([0; HEADERS]), memory(REQUEST as usize + 2 * PAGE, kept));
        let data = memory.as_ptr().align_offset(PAGE) + PAGE;
        let pieces = Box::new([
            libc::iovec { iov_base: headers.as_mut_ptr().cast(), iov_len: HEADERS },
            libc::iovec { iov_base: memory.as_mut_ptr().wrapping_add(data).cast(), iov_len: REQUEST as usize },
        ]);
        Self { headers, memory, data, pieces }
    }

    fn number<const N: usize>(&self, at: std::ops::Range<usize>) -> Option<[u8; N]> {
        self.headers.get(at)?.try_into().ok()
    }

    /// Answers the request that is in the entry. `None`: it has no answer, or is not whole.
    fn answer(&mut self, to: &Side<'_>, spare: &mut [u8]) -> Option<()> {
        let (len, sent) = (u32::from_ne_bytes(self.number(0..4)?), u32::from_ne_bytes(self.number(PAYLOAD)?));
        let (len, sent) = (len as usize, sent as usize);
        let operation = len.checked_sub(Request::HEADER + sent)?;
        let operation = self.headers.get(OPERATION..OPERATION + operation)?;
        let request = Request::decode(self.headers.get(..Request::HEADER)?)?;
        let out = self.memory.get_mut(self.data - OUT_HEADER..self.data + REQUEST as usize)?;
        let len = if sent == 0 {
            respond(&request.with(operation, &[]), out, to)
        } else {
            // Names or data came where the answer shall be: it is small, and put together
            // elsewhere.
            let request = request.with(operation, out.get(OUT_HEADER..OUT_HEADER + sent)?);
            let len = respond(&request, spare, to);
            out.get_mut(..len)?.copy_from_slice(spare.get(..len)?);
            len
        };
        self.headers.get_mut(..OUT_HEADER)?.copy_from_slice(out.get(..OUT_HEADER)?);
        self.headers.get_mut(PAYLOAD)?.copy_from_slice(&((len - OUT_HEADER) as u32).to_ne_bytes());
        Some(())
    }
}

/// What a worker needs besides its queue.
struct Side<'a> {
    connection: &'a OwnedFd,
    server: &'a dyn Answers,
    stale: &'a Stale,
}

/// Puts the answer to a request together in `out`, and returns its length.
fn respond(request: &Request<'_>, out: &mut [u8], to: &Side<'_>) -> usize {
    let mut answer = Answer::new(out);
    // No request without an answer comes this way.
    let errno = to.server.answer(request, &mut answer).unwrap_or(libc::ENOSYS);
    notify(to.connection, &mut answer);
    if let Some(range) = answer.stale() {
        to.stale.put(range);
    }
    answer.finish(request.unique, errno).len()
}

impl Served {
    fn command(&self, number: usize, entry: &Entry, command: u32) -> squeue::Entry128 {
        // struct fuse_uring_cmd_req: flags, the number of the request that is answered, the queue.
        let mut body = [0; 80];
        if let (COMMIT_AND_FETCH, Some(commit)) = (command, entry.number::<8>(COMMIT_ID)) {
            body[8..16].copy_from_slice(&commit);
        }
        body[16..18].copy_from_slice(&self.queue.cpu.to_ne_bytes());
        let fd = types::Fd(self.connection.as_raw_fd());
        let built = opcode::UringCmd80::new(fd, command).cmd(body).addr(Some(entry.pieces.as_ptr().addr() as u64));
        let mut built = built.build().user_data(number as u64);
        // The crate sets all of `struct io_uring_sqe` but its length.
        const LEN: usize = 24;
        // SAFETY: the type is a C structure of 128 bytes that begins with io_uring_sqe, whose
        // 32-bit `len` is at byte 24.
        unsafe { (&raw mut built).cast::<u8>().add(LEN).cast::<u32>().write(PIECES) };
        built
    }

    fn push(&mut self, command: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: the memory of an entry lives until the ring is gone, and is used only between a
        // completion and the next command of the same entry.
        unsafe { self.queue.ring.submission().push(command) }.map_err(io::Error::other)
    }
}

impl Transport for Served {
    fn alone(&self) -> bool {
        true
    }

    fn serve(&mut self, server: &dyn Answers, stale: &Stale) -> io::Result<()> {
        flush_for_others();
        // A CPU that is not there now, or not ours, has no callers.
        const OWN: u32 = 0;
        if let Err(error) = affinity::set(OWN, &std::iter::once(u32::from(self.queue.cpu)).collect()) {
            tracing::debug!("the worker of CPU {} runs anywhere: {error}", self.queue.cpu);
        }
        // The kernel has their addresses until the ring is gone: after an error or a panic they are
        // never freed.
        let kept = self.queue.kept;
        let mut entries = ManuallyDrop::new((0..ENTRIES).map(|_| Entry::new(kept)).collect::<Vec<_>>());
        let mut spare = memory(OUT_HEADER + REQUEST as usize, kept);
        self.entries(&mut entries, &mut spare, server, stale)?;
        drop(ManuallyDrop::into_inner(entries));
        Ok(())
    }
}

impl Served {
    fn entries(
        &mut self,
        entries: &mut [Entry],
        spare: &mut [u8],
        server: &dyn Answers,
        stale: &Stale,
    ) -> io::Result<()> {
        self.queue.ring.submitter().register_enable_rings()?;
        for (number, entry) in entries.iter().enumerate() {
            let command = self.command(number, entry, REGISTER);
            self.push(&command)?;
        }
        let mut live = entries.len();
        let (mut ended, mut lost) = (false, None);
        let mut ready = Vec::with_capacity(entries.len());
        while live > 0 {
            match self.queue.ring.submit_and_wait(1).map_err(|error| (error.raw_os_error(), error)) {
                Ok(_) | Err((Some(libc::EINTR), _)) => {}
                // Memory is short for now.
                Err((Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM), _)) => std::thread::sleep(PAUSE),
                Err((_, error)) => return Err(error),
            }
            ready.extend(self.queue.ring.completion().map(|done| (done.user_data() as usize, done.result())));
            let mut left = ready.len();
            for (number, result) in ready.drain(..) {
                left -= 1;
                let Some(entry) = entries.get_mut(number) else { continue };
                if result < 0 {
                    live -= 1;
                    match -result {
                        libc::ENOTCONN | libc::ECONNABORTED => ended = true,
                        // The kernel uses the queue's other entries; it has nothing else for this
                        // CPU's requests.
                        errno => {
                            let error = io::Error::from_raw_os_error(errno);
                            tracing::warn!("CPU {}: an entry of its queue is lost: {error}", self.queue.cpu);
                            lost = Some(error);
                        }
                    }
                    continue;
                }
                let to = Side { connection: &self.connection, server, stale };
                if entry.answer(&to, spare).is_none() {
                    tracing::error!("the kernel sent a request that is not whole");
                }
                let command = self.command(number, entry, COMMIT_AND_FETCH);
                self.push(&command)?;
                // Nobody waits for what another request of the same batch takes. The next wait
                // repeats what fails here.
                if left > 0 {
                    let _ = self.queue.ring.submit();
                }
            }
        }
        // An entry whose answer and the mount's end cross each other is lost, too.
        lost.filter(|_| !ended).map_or(Ok(()), Err)
    }
}
