//! A mount with nothing behind it: what the kernel and the transport cost alone.
//!
//! **Problem.** How much of the time of an operation on a mount is the file system's?
//!
//! **Approach.** The same transport and the same form of answers, but constant ones: no data is
//! copied, nothing is looked up or kept. The root directory has [`ENTRIES`] files named `file00000`
//! and so on, each of [`FILE_BYTES`] bytes that read as they happen to be. A name that begins with
//! `new` does not exist when it is looked up, so it can be created, asked for and removed by
//! programs for as long as the kernel remembers it.
//!
//! **Limits.** For measurements alone (feature `null`). What is written is lost, and no operation
//! is refused that a volume refuses.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fs::{Attributes, Ino, Kind, Named, Stat};

use crate::connection::Answers;
use crate::session::{Session, answered};
use crate::wire::{Answer, Request, number, opcode, opened};
use crate::{Error, Options};

/// Files in the root directory.
pub const ENTRIES: usize = 1000;
pub const FILE_BYTES: u64 = 64 << 20;

/// The first number of files that are created.
const NEW: u64 = 1 << 24;

/// Mounts it on `dir`.
///
/// # Errors
///
/// The same as those of [`crate::serve`].
pub fn serve(dir: &Path, options: &Options) -> Result<Session, Error> {
    answered(Arc::new(Null::default()), dir, options, Default::default())
}

/// The number of the files that were created.
#[derive(Default)]
struct Null(AtomicU64);

/// Attributes of every file.
fn stat(ino: Ino) -> Stat {
    let (kind, links) = if ino == Ino::ROOT { (Kind::Directory, 2) } else { (Kind::File, 1) };
    let mode = kind.mode_bits() | 0o755;
    let attributes = Attributes { mode, uid: 0, gid: 0, links, atime: 0, mtime: 0, ctime: 0, rdev: 0 };
    Stat { ino, generation: 0, kind, attributes, size: FILE_BYTES, blocks: FILE_BYTES / fs::format::BLOCK_BYTES }
}

/// The number of the n-th file in the root directory.
fn nth(n: usize) -> fs::Result<Ino> {
    number(n as u64 + 2)
}

impl Null {
    fn done(&self, request: &Request<'_>, answer: &mut Answer<'_>) -> fs::Result<()> {
        answer.begin();
        let mut args = request.args;
        let mut make = || number(NEW + self.0.fetch_add(1, Ordering::Relaxed)).map(|ino| answer.entry(&stat(ino)));
        match request.opcode {
            opcode::LOOKUP => match args.name()? {
                name if name.starts_with(b"new") => answer.no_entry(),
                name => {
                    let n = std::str::from_utf8(name).ok().and_then(|name| name.strip_prefix("file")?.parse().ok());
                    answer.entry(&stat(nth(n.ok_or(fs::Error::NotFound)?)?));
                }
            },
            opcode::GETATTR | opcode::SETATTR => answer.attr(&stat(request.ino()?)),
            opcode::MKNOD => make()?,
            opcode::CREATE => {
                make()?;
                answer.opened(opened::KEEP_CACHE | opened::PARALLEL_DIRECT_WRITES);
            }
            opcode::UNLINK => {}
            opcode::READ => {
                args.skip(16)?;
                answer.fill(args.u32()?, |out| Ok(out.len()))?;
            }
            opcode::WRITE => {
                args.skip(16)?;
                answer.written(u64::from(args.u32()?));
            }
            opcode::READDIR | opcode::READDIRPLUS => {
                args.skip(8)?;
                let (after, most) = (args.u64()?, args.u32()?);
                for n in after as usize..ENTRIES {
                    let (name, ino) = (format!("file{n:05}"), nth(n)?);
                    let named = Named { ino, kind: Kind::File, cookie: n as u64 + 1 };
                    let found = (request.opcode == opcode::READDIRPLUS).then(|| stat(ino));
                    if answer.name(most, name.as_bytes(), named, found.as_ref().map(Some)).is_break() {
                        break;
                    }
                }
            }
            opcode::STATFS => answer.bytes(&[0; 80]),
            _ => return Err(std::io::Error::from_raw_os_error(libc::ENOSYS).into()),
        }
        Ok(())
    }
}

impl Answers for Null {
    fn answer(&self, request: &Request<'_>, answer: &mut Answer<'_>) -> Option<i32> {
        match request.opcode {
            opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT => None,
            _ => Some(self.done(request, answer).map_or_else(|error| error.errno(), |()| 0)),
        }
    }
}
