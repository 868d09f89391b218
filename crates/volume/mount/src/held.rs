//! A mount that outlives its server: what is kept of it, and how the next server goes on.
//!
//! **Problem.** When a server dies, every file of `/dev/fuse` that it had is closed, and the kernel
//! gives the connection up: every program on the mount gets ENOTCONN, also if the next server comes
//! within a moment.
//!
//! **Approach.** Another process, the holder, opens these files before it starts the server, which
//! inherits them ([`Held`]): one connection, and one file for each worker. While the holder lives,
//! requests wait. It starts the next server, which gets the same files and begins without the
//! kernel's first request (what that agreed is kept, too), recovers the volume, and has the kernel
//! send again what was not answered (`FUSE_NOTIFY_RESEND`, Linux 6.9).
//!
//! **Once.** A request that came again must not be done again if the server before had committed
//! it. So workers note their requests in memory that the holder keeps: its number before it is
//! done, how far it is ([`fs::Note`]), and the answer before that is sent. The next server takes
//! the notes into a list of its own ([`Held::known`]) and answers what comes again from there; what
//! was committed but not answered yet gets its answer from the volume ([`Answers::finish`]). A
//! request that nobody noted was not begun.
//!
//! **Limits.** Requests that are not noted ([`changes`]) have no effect that a second time could
//! spoil. The list has the last [`LISTED`] notes: more servers than that in a row cannot die within
//! one request's time.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fs::{Note, Word};
use rustc_hash::FxHashMap;
use rustix::fs::{MemfdFlags, Mode, OFlags, ftruncate, memfd_create, open};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::connection::{Answers, DEVICE, clone_to};
use crate::mountpoint::Mountpoint;
use crate::wire::{Answer, Request, opcode, resend_notice};

/// The form of the memory: another one's mounts are not taken over.
const FORM: u64 = u64::from_ne_bytes(*b"homehld1");

/// Words of the header, by what they say.
const IS_FORM: usize = 0;
/// The kernel and a server have agreed on this, and the next server may go on; 0: not yet.
const AGREED: usize = 1;
const MOUNT_ID: usize = 2;
const DEVICE_NUMBER: usize = 3;
/// How many notes were ever put on the list.
const LISTED_EVER: usize = 4;
const DIR_LEN: usize = 5;
/// A bit for each region that gets nothing new.
const AVOIDED: usize = 6;
const DIR: usize = 8;
/// A path has at most 4096 bytes.
const HEADER: usize = DIR + 4096 / 8;

/// Words of a note.
const STATE: usize = 0;
const UNIQUE: usize = 1;
const WORD: usize = 2;
const ERRNO: usize = 5;
const LEN: usize = 6;
const ANSWER: usize = 7;
const NOTE: usize = 32;
/// Bytes of the longest answer that is noted: more than that to any request that changes something.
const LONGEST: usize = (NOTE - ANSWER) * 8;

/// States of a request.
const BEGUN: u64 = 1;
const COMMITS: u64 = 2;
const COMMITTED: u64 = 3;
const DONE: u64 = 4;

/// Notes of servers that are gone.
pub(crate) const LISTED: usize = 2048;

/// Files besides those of workers: the mount's own, and that of notices.
const OTHERS: usize = 2;

/// What outlives a server.
#[derive(Debug)]
pub struct Held {
    memory: OwnedFd,
    files: Vec<OwnedFd>,
    /// `memory`, for as long as this process lives.
    words: &'static [AtomicU64],
}

/// What became of a request that a server did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Committed,
    /// Its errno and its answer.
    Done(i32, Vec<u8>),
}

impl Held {
    /// Files for a server with so many workers, which its process inherits.
    ///
    /// # Errors
    ///
    /// `/dev/fuse` cannot be opened, or memory is short.
    pub fn new(workers: usize) -> io::Result<Self> {
        let memory = memfd_create("homenode-held", MemfdFlags::empty())?;
        ftruncate(&memory, ((HEADER + (LISTED + workers) * NOTE) * 8) as u64)?;
        let device = || open(DEVICE, OFlags::RDWR, Mode::empty()).map_err(io::Error::from);
        let files = (0..OTHERS + workers).map(|_| device()).collect::<io::Result<_>>()?;
        let this = Self::of(memory, files)?;
        this.store(IS_FORM, FORM);
        Ok(this)
    }

    /// The numbers of its files, for [`Held::inherited`].
    pub fn told(&self) -> String {
        let all = std::iter::once(&self.memory).chain(&self.files);
        all.map(|file| file.as_raw_fd().to_string()).collect::<Vec<_>>().join(",")
    }

    /// What the process that started this one has [told](Held::told), and holds.
    ///
    /// # Errors
    ///
    /// It is not in the form of this version, or cannot be mapped.
    pub fn inherited(told: &str) -> io::Result<Self> {
        let mut files = told.split(',').map(inherited_file).collect::<io::Result<Vec<_>>>()?;
        if files.len() <= 1 + OTHERS {
            return Err(wrong("too few files"));
        }
        let this = Self::of(files.remove(0), files)?;
        if this.load(IS_FORM) != FORM || this.words.len() < HEADER + (LISTED + this.workers()) * NOTE {
            return Err(wrong("another version keeps the mount"));
        }
        Ok(this)
    }

    fn of(memory: OwnedFd, files: Vec<OwnedFd>) -> io::Result<Self> {
        let len = rustix::fs::fstat(&memory)?.st_size as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, where the kernel likes, of a file that nobody cuts off.
        let at = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, &memory, 0) }?;
        // SAFETY: the range is mapped for reading and writing, aligned to a page, and never
        // unmapped; it has whole words, of which any value is one, and all access is atomic.
        let words = unsafe { std::slice::from_raw_parts(at.cast::<AtomicU64>(), len / 8) };
        Ok(Self { memory, files, words })
    }

    /// Whether a mount is kept that the next server can take over.
    pub fn is_mounted(&self) -> bool {
        self.load(AGREED) != 0
    }

    pub(crate) fn workers(&self) -> usize {
        self.files.len().saturating_sub(OTHERS)
    }

    /// Notes which regions get nothing new: the next server is to know.
    pub(crate) fn set_avoided(&self, regions: impl Iterator<Item = usize>) {
        self.store(AVOIDED, regions.filter(|region| *region < 64).fold(0, |all, region| all | 1 << region));
    }

    /// The regions that the server before gave nothing new.
    pub(crate) fn avoided(&self) -> impl Iterator<Item = usize> {
        let all = self.load(AVOIDED);
        (0..64).filter(move |region| all >> region & 1 == 1)
    }

    fn load(&self, word: usize) -> u64 {
        self.words.get(word).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Stores come in order: who is killed leaves all up to some one.
    fn store(&self, word: usize, value: u64) {
        if let Some(word) = self.words.get(word) {
            word.store(value, Ordering::Release);
        }
    }

    fn store_bytes(&self, first: usize, bytes: &[u8]) {
        for (at, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            self.store(first + at, u64::from_ne_bytes(word));
        }
    }

    fn load_bytes(&self, first: usize, len: usize) -> Vec<u8> {
        let words = (first..first + len.div_ceil(8)).flat_map(|word| self.load(word).to_ne_bytes());
        words.take(len).collect()
    }

    /// The file that is mounted.
    pub(crate) fn connection(&self) -> io::Result<OwnedFd> {
        self.files.first().ok_or(Errno::BADF)?.try_clone()
    }

    /// The file of a worker, or, with its number, of notices: of the same connection.
    pub(crate) fn file(&self, number: usize) -> io::Result<OwnedFd> {
        let (first, file) = self.files.first().zip(self.files.get(number + 1)).ok_or(Errno::BADF)?;
        if !self.is_mounted() {
            clone_to(file, first)?;
        }
        file.try_clone()
    }

    /// The mount works, and the kernel can send requests again.
    pub(crate) fn mounted(&self, agreed: u64, at: &Mountpoint) {
        let dir = at.dir.as_os_str().as_bytes();
        self.store_bytes(DIR, dir);
        self.store(DIR_LEN, dir.len() as u64);
        self.store(MOUNT_ID, at.id);
        self.store(DEVICE_NUMBER, at.device.into());
        self.store(AGREED, agreed);
    }

    /// The mount's place, without asking anybody who would ask its server.
    pub(crate) fn mountpoint(&self) -> Mountpoint {
        Mountpoint { dir: self.dir(), id: self.load(MOUNT_ID), device: self.load(DEVICE_NUMBER) as u32 }
    }

    pub fn dir(&self) -> PathBuf {
        let len = (self.load(DIR_LEN) as usize).min((HEADER - DIR) * 8);
        PathBuf::from(OsString::from_vec(self.load_bytes(DIR, len)))
    }

    /// Where the note `number` of the list begins, or that of a worker.
    fn listed(number: u64) -> usize {
        HEADER + (number % LISTED as u64) as usize * NOTE
    }

    fn seat_at(worker: usize) -> usize {
        HEADER + (LISTED + worker) * NOTE
    }

    /// What is known of requests that servers before this one did not answer, by their numbers.
    /// `has_stored` looks on the medium, which has not changed since.
    pub(crate) fn known(&self, has_stored: impl Fn(Word) -> fs::Result<bool>) -> fs::Result<FxHashMap<u64, Known>> {
        for worker in 0..self.workers() {
            let seat = Self::seat_at(worker);
            let state = match self.load(seat + STATE) {
                COMMITS if has_stored(Word([0, 1, 2].map(|i| self.load(seat + WORD + i))))? => COMMITTED,
                state @ (COMMITTED | DONE) => state,
                // Nobody has done it, and the next server could not tell any more.
                _ => {
                    self.store(seat + STATE, 0);
                    continue;
                }
            };
            // A server that is killed here finds the same again.
            let (ever, at) = (self.load(LISTED_EVER), Self::listed(self.load(LISTED_EVER)));
            (UNIQUE..NOTE).for_each(|word| self.store(at + word, self.load(seat + word)));
            self.store(at + STATE, state);
            self.store(LISTED_EVER, ever + 1);
            self.store(seat + STATE, 0);
        }
        let ever = self.load(LISTED_EVER);
        let note = |number: u64| {
            let at = Self::listed(number);
            let known = match self.load(at + STATE) {
                DONE => {
                    let len = (self.load(at + LEN) as usize).min(LONGEST);
                    Known::Done(self.load(at + ERRNO) as i32, self.load_bytes(at + ANSWER, len))
                }
                _ => Known::Committed,
            };
            (self.load(at + UNIQUE), known)
        };
        Ok((ever.saturating_sub(LISTED as u64)..ever).map(note).collect())
    }

    /// Has the kernel send again what no server has answered.
    pub(crate) fn resend(connection: &OwnedFd) -> io::Result<()> {
        match rustix::io::write(connection, &resend_notice()) {
            Ok(_) | Err(Errno::NODEV | Errno::NOTCONN) => Ok(()), // or the mount has ended meanwhile
            Err(errno) => Err(errno.into()),
        }
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A file that the process that started this one opened for it, by its number. To be asked once of
/// each.
pub fn inherited_file(number: &str) -> io::Result<OwnedFd> {
    let number: RawFd = number.parse().map_err(|_| wrong("not the number of a file"))?;
    // SAFETY: nobody else here knows the number; one that is not open is an error in the next line,
    // and closing it does nothing.
    let file = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&file, FdFlags::CLOEXEC)?;
    Ok(file)
}

/// Whether a request changes something, so that it is noted.
fn changes(request: u32) -> bool {
    once(request)
        || matches!(
            request,
            opcode::SETATTR
                | opcode::WRITE
                | opcode::FALLOCATE
                | opcode::TMPFILE
                | opcode::COPY_FILE_RANGE
                | opcode::COPY_FILE_RANGE_64
        )
}

/// Whether it would find its own effect, and is committed at one moment.
fn once(request: u32) -> bool {
    matches!(
        request,
        opcode::MKNOD
            | opcode::MKDIR
            | opcode::SYMLINK
            | opcode::CREATE
            | opcode::LINK
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::RENAME
            | opcode::RENAME2
            | opcode::SETXATTR
            | opcode::REMOVEXATTR
    )
}

/// The note of a worker, and what it knows of requests that come again.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    held: Arc<Held>,
    at: usize,
    known: Arc<FxHashMap<u64, Known>>,
}

impl Note for Seat {
    fn commits_by(&self, word: Word) {
        word.0.into_iter().enumerate().for_each(|(at, word)| self.held.store(self.at + WORD + at, word));
        self.held.store(self.at + STATE, COMMITS);
    }

    fn committed(&self) {
        self.held.store(self.at + STATE, COMMITTED);
    }
}

impl Seat {
    pub(crate) fn new(held: Arc<Held>, worker: usize, known: Arc<FxHashMap<u64, Known>>) -> Self {
        Self { held, at: Held::seat_at(worker), known }
    }

    /// Answers a request as [`Answers::answer`] does, but one that a server before has done already
    /// without doing it again.
    pub(crate) fn answer(&self, server: &dyn Answers, request: &Request<'_>, answer: &mut Answer<'_>) -> Option<i32> {
        if !changes(request.opcode) {
            return server.answer(request, answer);
        }
        let known = if request.again { self.known.get(&request.number()) } else { None };
        let errno = match known {
            Some(Known::Done(errno, bytes)) => {
                answer.begin();
                answer.bytes(bytes);
                *errno
            }
            known => {
                self.held.store(self.at + STATE, 0);
                self.held.store(self.at + UNIQUE, request.number());
                self.held.store(self.at + STATE, BEGUN);
                let errno = match known {
                    Some(_) if once(request.opcode) => server.finish(request, answer),
                    _ => server.answer(request, answer)?,
                };
                self.done(errno, if errno == 0 { answer.body() } else { &[] });
                errno
            }
        };
        if request.again {
            server.came_again(request, answer);
        }
        Some(errno)
    }

    fn done(&self, errno: i32, answer: &[u8]) {
        if answer.len() > LONGEST {
            return;
        }
        self.held.store_bytes(self.at + ANSWER, answer);
        self.held.store(self.at + LEN, answer.len() as u64);
        self.held.store(self.at + ERRNO, errno as u64);
        self.held.store(self.at + STATE, DONE);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use ::fs::medium::{Mapped, RegionFile};
    use ::fs::{Ino, Layout, NewFile, Volume};

    use super::*;
    use crate::Options;
    use crate::server::Server;
    use crate::wire::BUFFER;

    fn volume() -> Arc<Volume> {
        let file = File::from(memfd_create("homenode", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(16 << 20).unwrap();
        let medium = Arc::new(Mapped::new(&[RegionFile { file, bind: None }]).unwrap());
        let layout = Layout { volume: [7; 16], nodes: vec![Some(0)], journals: 2, ..Layout::default() };
        ::fs::mkfs(Box::new(Arc::clone(&medium)), &layout).unwrap();
        Arc::new(Volume::mount(Box::new(medium), ::fs::Options::default()).unwrap())
    }

    fn held() -> Arc<Held> {
        let memory = memfd_create("held", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, ((HEADER + (LISTED + 1) * NOTE) * 8) as u64).unwrap();
        let null = || File::open("/dev/null").unwrap().into();
        Arc::new(Held::of(memory, vec![null(), null(), null()]).unwrap())
    }

    fn known(held: &Held, volume: &Volume) -> Arc<FxHashMap<u64, Known>> {
        Arc::new(held.known(|word| volume.has_stored(word)).unwrap())
    }

    /// The errno and the body of the answer.
    fn ask(seat: &Seat, server: &Server, (opcode, node): (u32, Ino), unique: u64, body: &[u8]) -> (i32, Vec<u8>) {
        let header = [(Request::HEADER + body.len()) as u32, opcode].into_iter().flat_map(u32::to_ne_bytes);
        let header = header.chain([unique, node.raw()].into_iter().flat_map(u64::to_ne_bytes)).chain([0; 16]);
        let bytes: Vec<u8> = header.chain(body.iter().copied()).collect();
        let mut out = vec![0; BUFFER];
        let mut answer = Answer::new(&mut out);
        fs::note_in(Arc::new(seat.clone()));
        let errno = seat.answer(server, &Request::decode(&bytes).unwrap(), &mut answer).unwrap();
        (errno, if errno == 0 { answer.body().to_vec() } else { Vec::new() })
    }

    /// Whichever moment after its commit a server is killed at, the next one gives the answer that
    /// it would have given.
    #[test]
    fn a_request_that_comes_again_takes_effect_once() {
        const AGAIN: u64 = 1 << 63;
        let file = volume();
        let make =
            |name: &[u8], mode| file.create(Ino::ROOT, name, NewFile { mode, ..NewFile::default() }).unwrap().ino;
        let linked = make(b"linked", 0o644);
        make(b"gone", 0o644);
        make(b"empty", libc::S_IFDIR | 0o755);
        make(b"from", 0o644);
        make(b"from2", 0o644);
        let words = |words: &[u32], rest: &[u8]| {
            words.iter().flat_map(|word| word.to_ne_bytes()).chain(rest.iter().copied()).collect::<Vec<u8>>()
        };
        let root = Ino::ROOT.raw().to_ne_bytes();
        let number = linked.raw().to_ne_bytes();
        let requests = [
            (opcode::MKDIR, Ino::ROOT, words(&[0o755, 0], b"dir\0")),
            (opcode::MKNOD, Ino::ROOT, words(&[libc::S_IFIFO | 0o600, 0, 0, 0], b"fifo\0")),
            (opcode::SYMLINK, Ino::ROOT, b"symlink\0target\0".to_vec()),
            (opcode::CREATE, Ino::ROOT, words(&[0, libc::S_IFREG | 0o600, 0, 0], b"file\0")),
            (opcode::LINK, Ino::ROOT, [&number[..], b"link\0"].concat()),
            (opcode::UNLINK, Ino::ROOT, b"gone\0".to_vec()),
            (opcode::RMDIR, Ino::ROOT, b"empty\0".to_vec()),
            (opcode::RENAME, Ino::ROOT, [&root[..], b"from\0to\0"].concat()),
            (opcode::RENAME2, Ino::ROOT, [&root[..], &words(&[libc::RENAME_NOREPLACE, 0], b"from2\0to2\0")].concat()),
            (opcode::SETXATTR, linked, words(&[1, libc::XATTR_CREATE as u32, 0, 0], b"user.a\0x")),
            (opcode::REMOVEXATTR, linked, b"user.a\0".to_vec()),
        ];
        let (held, server) = (held(), Server::new(Arc::clone(&file), &Options::default()));
        let mut unique = 0;
        for (opcode, node, body) in requests {
            unique += 2;
            let first = Seat::new(Arc::clone(&held), 0, known(&held, &file));
            let done = ask(&first, &server, (opcode, node), unique, &body);
            assert_eq!(done.0, 0, "{opcode}");
            let seat = Held::seat_at(0);
            assert_eq!(held.load(seat + STATE), DONE);
            let ever = held.load(LISTED_EVER);
            for state in [COMMITS, COMMITTED, DONE] {
                held.store(LISTED_EVER, ever);
                held.store(seat + UNIQUE, unique);
                held.store(seat + STATE, state);
                // A server may be killed before it answers what it knows.
                let next = [known(&held, &file), known(&held, &file)];
                for known in next {
                    let next = Seat::new(Arc::clone(&held), 0, known);
                    assert_eq!(ask(&next, &server, (opcode, node), unique | AGAIN, &body), done, "{opcode} {state}");
                }
                held.store(seat + STATE, state);
            }
            held.store(seat + STATE, 0);
            // The test knows an effect that comes twice.
            let twice = ask(&first, &server, (opcode, node), unique | AGAIN, &body);
            assert_ne!(twice.0, 0, "{opcode}");
        }
        // What was not committed is done.
        let seat = Held::seat_at(0);
        held.store(seat + UNIQUE, 1000);
        held.store(seat + STATE, COMMITS);
        let at = held.load(seat + WORD + 2);
        held.store(seat + WORD + 2, at ^ 1);
        let next = Seat::new(Arc::clone(&held), 0, known(&held, &file));
        let made = ask(&next, &server, (opcode::MKDIR, Ino::ROOT), 1000 | AGAIN, &words(&[0o755, 0], b"new\0"));
        assert_eq!(made.0, 0);
        assert!(file.lookup(Ino::ROOT, b"new").is_ok());
    }

    #[test]
    fn the_next_server_finds_the_mount_where_it_was() {
        let held = held();
        assert!(!held.is_mounted());
        let dir = PathBuf::from(format!("/{}", "long/".repeat(800)));
        held.mounted(5, &Mountpoint { dir: dir.clone(), id: 7, device: 9 });
        let at = held.mountpoint();
        assert!(held.is_mounted());
        assert_eq!((at.dir, at.id, at.device), (dir, 7, 9));
    }
}
