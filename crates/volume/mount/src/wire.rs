//! The FUSE protocol: what the kernel asks, and how it is answered. Encoding and decoding only, no
//! I/O.
//!
//! The structures are those of `linux/fuse.h`, protocol 7.42; numbers are in the machine's byte
//! order.

use std::ops::ControlFlow;
use std::time::Duration;

use fs::{Error, Ino, Kind, Named, Result, Stat};

/// Protocol version that is spoken.
pub(crate) const VERSION: (u32, u32) = (7, 42);
/// Most bytes of a read or write.
pub(crate) const REQUEST: u32 = 1 << 20;
/// Bytes that a buffer for requests or answers needs.
pub(crate) const BUFFER: usize = REQUEST as usize + 4096;
/// How long the kernel may remember a name or attributes: nobody else changes them.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);

const IN_HEADER: usize = 40;
/// Bytes of the header of an answer.
pub(crate) const OUT_HEADER: usize = 16;
/// Bytes of what `stat` calls a block.
const SECTOR: u64 = 512;

/// Kinds of requests.
#[rustfmt::skip]
pub(crate) mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const INIT: u32 = 26;
    pub const READDIR: u32 = 28;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const TMPFILE: u32 = 51;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// Features of both sides: bits of the first request and its answer.
#[rustfmt::skip]
pub(crate) mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const HAS_RESEND: u64 = 1 << 39;
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// How an open file is used: bits of the answer to an open.
pub(crate) mod opened {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Which attributes a request sets.
#[rustfmt::skip]
pub(crate) mod set {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// In a write: it takes the set-user-ID and set-group-ID bits.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// In the setting of an access control list: it takes the set-group-ID bit.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// In a request's number: it was sent before (`FUSE_UNIQUE_RESEND`).
const AGAIN: u64 = 1 << 63;

#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// See [`opcode`].
    pub opcode: u32,
    /// Its number, to answer it by.
    pub unique: u64,
    /// It was sent to another server before.
    pub again: bool,
    /// The inode it is about.
    pub node: u64,
    /// File system user and group of the caller.
    pub uid: u32,
    /// See `uid`.
    pub gid: u32,
    /// The calling thread; 0 for the kernel itself.
    pub tid: u32,
    pub args: Args<'a>,
}

impl<'a> Request<'a> {
    /// Bytes of its header.
    pub(crate) const HEADER: usize = IN_HEADER;

    /// Reads a request. `None`: it is not whole.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (header, body) = bytes.split_at_checked(IN_HEADER)?;
        let mut header = Args(header, &[]);
        let (_len, opcode) = (header.u32().ok()?, header.u32().ok()?);
        let (unique, node) = (header.u64().ok()?, header.u64().ok()?);
        let (uid, gid, tid) = (header.u32().ok()?, header.u32().ok()?, header.u32().ok()?);
        let again = unique & AGAIN != 0;
        Some(Self { opcode, unique, again, node, uid, gid, tid, args: Args(body, &[]) })
    }

    /// Its number, whoever it was sent to.
    pub(crate) fn number(&self) -> u64 {
        self.unique & !AGAIN
    }

    /// The same request with these arguments.
    pub(crate) fn with(self, operation: &'a [u8], rest: &'a [u8]) -> Self {
        Self { args: Args(operation, rest), ..self }
    }

    pub(crate) fn ino(&self) -> Result<Ino> {
        number(self.node)
    }
}

/// An inode by the number that the kernel was told.
pub(crate) fn number(raw: u64) -> Result<Ino> {
    Ino::from_raw(raw).ok_or(Error::NotFound)
}

/// The arguments of a request, read from front to back: two pieces, of which io_uring fills the
/// first with the operation's own structure and the second with names and data. No argument is in
/// both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Args<'a>(&'a [u8], &'a [u8]);

const SHORT: Error = Error::Invalid("the request is too short");

impl<'a> Args<'a> {
    /// Goes on with the second piece where the first one is used up.
    fn rest(&mut self) -> &mut &'a [u8] {
        if self.0.is_empty() {
            self.0 = std::mem::take(&mut self.1);
        }
        &mut self.0
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let all = self.rest();
        let (value, rest) = all.split_first_chunk().ok_or(SHORT)?;
        *all = rest;
        Ok(*value)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_ne_bytes)
    }

    pub(crate) fn skip(&mut self, len: usize) -> Result<()> {
        self.bytes(len).map(|_| ())
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let all = self.rest();
        let (bytes, rest) = all.split_at_checked(len).ok_or(SHORT)?;
        *all = rest;
        Ok(bytes)
    }

    /// A name, which ends with a zero.
    pub(crate) fn name(&mut self) -> Result<&'a [u8]> {
        let len = self.rest().iter().position(|byte| *byte == 0).ok_or(SHORT)?;
        let name = self.bytes(len)?;
        self.skip(1)?;
        Ok(name)
    }
}

/// A time, ns since 1970; the nearest one that a volume can keep.
pub(crate) fn ns(seconds: u64, nanoseconds: u32) -> i64 {
    let ns = i128::from(seconds.cast_signed()) * 1_000_000_000 + i128::from(nanoseconds);
    i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
}

/// Seconds, and the nanoseconds after them.
fn time(ns: i64) -> (u64, u32) {
    (ns.div_euclid(1_000_000_000).cast_unsigned(), ns.rem_euclid(1_000_000_000) as u32)
}

/// Bytes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub ino: Ino,
    pub offset: u64,
    /// In bytes, at least 1.
    pub len: u64,
}

/// Bytes of a notice about an inode.
const NOTICE: usize = 40;

/// A message that makes the kernel drop a range of an inode from its cache
/// (`FUSE_NOTIFY_INVAL_INODE`), and ask for the inode's attributes again. The kernel waits for the
/// pages that are being read or written back, so no worker may send it.
pub(crate) fn range_notice(range: &Range) -> [u8; NOTICE] {
    inode_notice(range.ino, range.offset, range.len)
}

fn inode_notice(ino: Ino, offset: u64, len: u64) -> [u8; NOTICE] {
    const INVAL_INODE: u32 = 2;
    let mut notice = [0; NOTICE];
    let header = [NOTICE as u32, INVAL_INODE].into_iter().flat_map(u32::to_ne_bytes).chain([0; 8]);
    let body = [ino.raw(), offset, len].into_iter().flat_map(u64::to_ne_bytes);
    notice.iter_mut().zip(header.chain(body)).for_each(|(place, byte)| *place = byte);
    notice
}

/// A message that makes the kernel ask for the attributes of an inode again, or say that it does
/// not know it (ENOENT).
pub(crate) fn attributes_notice(ino: Ino) -> [u8; NOTICE] {
    const ATTRIBUTES_ALONE: i64 = -1;
    inode_notice(ino, ATTRIBUTES_ALONE.cast_unsigned(), 0)
}

/// A message that makes the kernel send again what is not answered (`FUSE_NOTIFY_RESEND`).
pub(crate) fn resend_notice() -> [u8; OUT_HEADER] {
    const RESEND: u32 = 7;
    let mut notice = [0; OUT_HEADER];
    let words = [OUT_HEADER as u32, RESEND].into_iter().flat_map(u32::to_ne_bytes);
    notice.iter_mut().zip(words).for_each(|(place, byte)| *place = byte);
    notice
}

/// An answer in the making.
#[derive(Debug)]
pub(crate) struct Answer<'a> {
    buffer: &'a mut [u8],
    len: usize,
    outdated: Option<Ino>,
    stale: Option<Range>,
}

impl<'a> Answer<'a> {
    /// An answer that is put together in `buffer`, of [`BUFFER`] bytes.
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, len: OUT_HEADER, outdated: None, stale: None }
    }

    /// The kernel's copy of an inode's mode is no longer right: a write took set-user-ID bits, and
    /// the answer to it has no room for attributes.
    pub(crate) fn outdate(&mut self, ino: Ino) {
        self.outdated = Some(ino);
    }

    /// A message that makes the kernel ask for the attributes of an inode again
    /// (`FUSE_NOTIFY_INVAL_INODE`), to be sent before the answer: the caller may execute the file
    /// next. The kernel takes no lock for it that a request could hold.
    pub(crate) fn notice(&mut self) -> Option<[u8; NOTICE]> {
        self.outdated.take().map(attributes_notice)
    }

    /// The kernel's cache of a range may be older than what was written there.
    pub(crate) fn spoil(&mut self, range: Range) {
        self.stale = Some(range);
    }

    /// What [`Answer::spoil`] was told, once.
    pub(crate) fn stale(&mut self) -> Option<Range> {
        self.stale.take()
    }

    /// Forgets the answer before.
    pub(crate) fn begin(&mut self) {
        self.len = OUT_HEADER;
    }

    /// What it says, without its header.
    pub(crate) fn body(&self) -> &[u8] {
        self.buffer.get(OUT_HEADER..self.len).unwrap_or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == OUT_HEADER
    }

    /// The answer, whole; or an errno instead of it.
    pub(crate) fn finish(&mut self, unique: u64, errno: i32) -> &[u8] {
        if errno != 0 {
            self.len = OUT_HEADER;
        }
        let end = self.len;
        self.len = 0;
        self.u32(end as u32);
        self.u32((-errno).cast_unsigned());
        self.u64(unique);
        self.buffer.get(..end).unwrap_or_default()
    }

    /// How many bytes there are by now.
    fn room(&self) -> usize {
        self.buffer.len() - self.len
    }

    /// Adds bytes; too many for the buffer, which no caller adds, are left out.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        if let Some(place) = self.buffer.get_mut(self.len..self.len + bytes.len()) {
            place.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_ne_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_ne_bytes());
    }

    fn zeros(&mut self, count: usize) {
        let place = self.buffer.get_mut(self.len..self.len + count);
        place.into_iter().for_each(|place| place.fill(0));
        self.len += count;
    }

    /// Lets `fill` write up to `most` bytes and say how many it wrote.
    pub(crate) fn fill(&mut self, most: u32, fill: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<()> {
        let most = self.room().min(most as usize);
        let place = self.buffer.get_mut(self.len..self.len + most).unwrap_or_default();
        self.len += fill(place)?.min(most);
        Ok(())
    }

    fn attributes(&mut self, stat: &Stat) {
        let a = &stat.attributes;
        let times = [a.atime, a.mtime, a.ctime].map(time);
        self.u64(stat.ino.raw());
        self.u64(stat.size);
        self.u64(stat.blocks * (fs::format::BLOCK_BYTES / SECTOR));
        times.iter().for_each(|(seconds, _)| self.u64(*seconds));
        times.iter().for_each(|(_, nanoseconds)| self.u32(*nanoseconds));
        for value in [a.mode, a.links, a.uid, a.gid, a.rdev as u32, fs::format::BLOCK as u32, 0] {
            self.u32(value);
        }
    }

    /// The answer to a request for attributes.
    pub(crate) fn attr(&mut self, stat: &Stat) {
        self.u64(LONG.as_secs());
        self.u64(0);
        self.attributes(stat);
    }

    /// Target of a name.
    pub(crate) fn entry(&mut self, stat: &Stat) {
        self.u64(stat.ino.raw());
        self.u64(u64::from(stat.generation));
        self.u64(LONG.as_secs());
        self.u64(LONG.as_secs());
        self.u64(0);
        self.attributes(stat);
    }

    /// That a name stands for nothing, which the kernel may remember too.
    pub(crate) fn no_entry(&mut self) {
        self.zeros(16);
        self.u64(LONG.as_secs());
        self.zeros(16 + 88);
    }

    pub(crate) fn opened(&mut self, flags: u32) {
        self.u64(0);
        self.u32(flags);
        self.u32(0);
    }

    pub(crate) fn written(&mut self, bytes: u64) {
        self.u32(bytes as u32);
        self.u32(0);
    }

    /// Adds a name of a directory to a listing of up to `most` bytes; in a listing with attributes
    /// with those of its inode, if they are known. `Break`: it is full.
    pub(crate) fn name(
        &mut self,
        most: u32,
        name: &[u8],
        named: Named,
        stat: Option<Option<&Stat>>,
    ) -> ControlFlow<()> {
        let len = stat.map_or(0, |_| 128) + 24 + name.len().next_multiple_of(8);
        if self.len - OUT_HEADER + len > most as usize || self.room() < len {
            return ControlFlow::Break(());
        }
        match stat {
            Some(Some(stat)) => self.entry(stat),
            Some(None) => self.zeros(128),
            None => {}
        }
        self.u64(named.ino.raw());
        self.u64(named.cookie);
        self.u32(name.len() as u32);
        self.u32(kind(named.kind));
        self.bytes(name);
        self.zeros(name.len().next_multiple_of(8) - name.len());
        ControlFlow::Continue(())
    }
}

fn kind(kind: Kind) -> u32 {
    kind.mode_bits() >> 12
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A library for this protocol panicked on the times of the last lines.
    #[test]
    fn every_time_is_taken_to_the_nearest_that_can_be_kept() {
        assert_eq!(ns(3, 5), 3_000_000_005);
        assert_eq!(ns((-2_i64).cast_unsigned(), 700_000_000), -1_300_000_000);
        assert_eq!(time(-1_300_000_000), ((-2_i64).cast_unsigned(), 700_000_000));
        assert_eq!(ns(i64::MIN.cast_unsigned(), 0), i64::MIN);
        assert_eq!(ns(i64::MIN.cast_unsigned(), u32::MAX), i64::MIN);
        assert_eq!(ns(i64::MAX.cast_unsigned(), u32::MAX), i64::MAX);
    }

    #[test]
    fn arguments_go_on_in_the_second_piece() {
        let mut args = Args(&[1, 0, 0, 0], b"name\0data");
        assert_eq!(args.u32().unwrap(), u32::from_le(1));
        assert_eq!((args.name().unwrap(), args.bytes(4).unwrap()), (&b"name"[..], &b"data"[..]));
        assert!(args.skip(1).is_err());
        assert_eq!(Args(&[], b"name\0").name().unwrap(), b"name", "the first piece may be empty");
    }

    #[test]
    fn a_notice_is_sent_once() {
        let mut buffer = [0; OUT_HEADER];
        let mut answer = Answer::new(&mut buffer);
        answer.outdate(Ino::ROOT);
        answer.begin(); // a second try does not forget it
        let notice = answer.notice().unwrap();
        assert_eq!((&notice[..4], &notice[4..8]), (&40_u32.to_ne_bytes()[..], &2_u32.to_ne_bytes()[..]));
        assert_eq!((&notice[16..24], &notice[24..32]), (&Ino::ROOT.raw().to_ne_bytes()[..], &[0xff; 8][..]));
        assert!(answer.notice().is_none());
    }

    #[test]
    fn a_request_that_is_cut_short_is_an_error() {
        assert!(Request::decode(&[0; IN_HEADER - 1]).is_none());
        let bytes = [0; IN_HEADER + 6];
        let mut args = Request::decode(&bytes).unwrap().args;
        assert_eq!(args.u32().unwrap(), 0);
        assert!(args.u64().is_err());
        assert_eq!(args.name().unwrap(), b"");
        assert!(Args(b"abc", &[]).name().is_err(), "a name ends with a zero");
    }
}
