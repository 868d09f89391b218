//! Requests of the kernel, as operations of the volume.
//!
//! Locks are not asked for: the kernel keeps those of its own programs, and no other kernel uses
//! the volume. Nor are `flush` and `opendir`: everything is durable when it is answered, so ENOSYS
//! tells the kernel to not ask again (it still writes what programs changed in mapped pages). But
//! `fsync` is: the kernel drops what it cannot write to a server that has ended, and without this
//! request nobody would tell the program. Nor is `open`, where an answer would say nothing and
//! nobody counts: an inode lives as long as the kernel remembers it. Nor is where a file has holes:
//! only the kernel knows the pages that a mapping has changed and that are not written back, and it
//! does not look. It takes all for data then.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fs::{Error, Ino, Name, Named, NewFile, Rename, Result, SetAttributes, SetXattr, Volume, acl};

use crate::connection::Answers;
use crate::control::{self, Control};
use crate::listing::Place;
use crate::plane::Callers;
use crate::stale::Readers;
use crate::trim::Trim;
use crate::wire::{
    self, Answer, Args, REQUEST, Range, Request, SETXATTR_ACL_KILL_SGID, WRITE_KILL_SUIDGID, number, opcode, opened,
    set,
};
use crate::{Cache, Options, caller};

/// The user of requests that tell none, where mounts may be idmapped.
const NOBODY: u32 = u32::MAX;
/// Most bytes that one request copies from file to file.
const COPY: u64 = 16 << 20;
/// Names of a directory fetched at a time.
const NAMES: usize = 128;
/// Bytes that an answer of [`Control`] has room in.
const CONTROL: u64 = 64 << 10;
/// Cookies of `.` and `..`.
const DOTS: [(u64, &[u8]); 2] = [(1, b"."), (2, b"..")];

thread_local! {
    static COPIED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Milliseconds that a request without room waits for files that were just removed. On a busy
/// machine the kernel took more than 20 to say that it has forgotten one.
const WAITS: u32 = 100;
/// After a wait in vain nobody waits for so long: what keeps removed files without having them open
/// takes a tenth of a worker at most.
const PAUSE: Duration = Duration::from_secs(1);

/// Waits for removed files.
#[derive(Default)]
struct Waits {
    /// Files that the last one did not free.
    kept: u64,
    /// When that ended.
    ended: Option<Instant>,
}

/// Answers requests of a volume: one for all workers.
pub(crate) struct Server {
    volume: Arc<Volume>,
    cache: Cache,
    /// Opened and closed files are told, and counted.
    counts_opens: bool,
    callers: Option<Arc<Callers>>,
    /// Held by the one worker that waits.
    waits: Mutex<Waits>,
    readers: Readers,
    trim: Trim,
    control: Arc<Control>,
}

/// Whether flags of an open file have O_DIRECT.
fn direct(flags: u32) -> bool {
    flags & libc::O_DIRECT.cast_unsigned() != 0
}

impl Answers for Server {
    fn answer(&self, request: &Request<'_>, answer: &mut Answer<'_>) -> Option<i32> {
        if self.volume.is_over() {
            self.trim.over();
        }
        match request.opcode {
            opcode::FORGET | opcode::BATCH_FORGET => {
                let forget = || {
                    caller::enter(self.callers.as_deref(), request.tid, || self.forget(request))?;
                    self.trim.released(self.volume.released());
                    if self.volume.let_go_again(0) > 0 {
                        self.trim.left();
                    }
                    Ok::<_, Error>(())
                };
                match catch_unwind(AssertUnwindSafe(forget)) {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!("the kernel forgot inode {}: {error}", request.node),
                    Err(_) => tracing::error!("a fault of homenode in forgetting inode {}", request.node),
                }
                None
            }
            opcode::INTERRUPT => None, // no request waits for long
            _ => {
                let work = AssertUnwindSafe(|| {
                    caller::enter(self.callers.as_deref(), request.tid, || self.retry(request, answer))
                });
                let done = catch_unwind(work).unwrap_or_else(|_| Err(refused(libc::EIO)));
                Some(done.map_or_else(|error| error.errno(), |()| 0))
            }
        }
    }

    fn finish(&self, request: &Request<'_>, answer: &mut Answer<'_>) -> i32 {
        let work = AssertUnwindSafe(|| self.finish_committed(request, answer));
        let done = catch_unwind(work).unwrap_or_else(|_| Err(refused(libc::EIO)));
        done.map_or_else(|error| error.errno(), |()| 0)
    }

    fn came_again(&self, request: &Request<'_>, answer: &mut Answer<'_>) {
        let _ = self.tell_again(request, answer); // one that is too short
    }
}

impl Server {
    pub(crate) fn new(volume: Arc<Volume>, options: &Options) -> Self {
        let (cache, callers) = (options.cache, options.callers.clone());
        // Only an answer to it keeps a file out of the kernel's cache.
        let counts_opens = options.counts_opens || cache == Cache::Direct;
        let taken = options.held.as_ref().is_some_and(|held| held.is_mounted());
        let readers = if taken { Readers::of_another() } else { Readers::default() };
        let (waits, trim) = (Mutex::default(), Trim::new(Arc::clone(&volume)));
        let control = Arc::new(Control::new(options.held.clone()));
        Self { volume, cache, counts_opens, callers, waits, readers, trim, control }
    }

    /// What has to end with the mount.
    pub(crate) fn control(&self) -> Arc<Control> {
        Arc::clone(&self.control)
    }

    /// Where there is no room, waits once for files that were just removed and that nobody has
    /// open: the kernel says only after the removal that it has forgotten them. One worker waits at
    /// a time, as all others' requests are still to be answered.
    fn retry(&self, request: &Request<'_>, answer: &mut Answer<'_>) -> Result<()> {
        let done = self.done(request, answer);
        if !matches!(done, Err(Error::NoSpace)) || self.volume.leaving() == 0 {
            return done;
        }
        let Ok(mut waits) = self.waits.try_lock() else { return done };
        let due = self.volume.leaving();
        waits.kept = waits.kept.min(due);
        if due <= waits.kept || waits.ended.is_some_and(|at| at.elapsed() < PAUSE) {
            return done;
        }
        for _ in 0..WAITS {
            std::thread::sleep(Duration::from_millis(1));
            if self.volume.leaving() < due {
                drop(waits);
                return self.done(request, answer);
            }
        }
        let done = self.done(request, answer);
        if matches!(done, Err(Error::NoSpace)) {
            *waits = Waits { kept: due, ended: Some(Instant::now()) };
        }
        done
    }

    fn done(&self, request: &Request<'_>, answer: &mut Answer<'_>) -> Result<()> {
        answer.begin();
        let volume = &*self.volume;
        let (ino, mut args) = (request.ino()?, request.args);
        match request.opcode {
            opcode::LOOKUP => match volume.lookup_to_remember(ino, args.name()?) {
                Err(Error::NotFound) => answer.no_entry(),
                // Something that can be removed.
                Err(Error::Damaged(_)) => answer.entry(&volume.stub(ino, request.args.clone().name()?)?),
                found => answer.entry(&found?),
            },
            opcode::GETATTR => answer.attr(&volume.stat(ino).or_else(|e| volume.stub_again(ino).ok_or(e))?),
            opcode::SETATTR => self.set_attributes(request, answer)?,
            opcode::READLINK => answer.bytes(&volume.read_link(ino)?),
            opcode::SYMLINK => {
                let (name, target) = (args.name()?, args.name()?);
                let mode = libc::S_IFLNK | 0o777;
                self.make(request, name, NewFile { mode, target, ..NewFile::default() }, answer)?;
            }
            opcode::MKNOD => {
                let (mode, rdev, umask) = (args.u32()?, args.u32()?, args.u32()?);
                args.skip(4)?;
                let new = NewFile { mode, umask, rdev: u64::from(rdev), ..NewFile::default() };
                self.make(request, args.name()?, new, answer)?;
            }
            opcode::MKDIR => {
                let (mode, umask) = (args.u32()? & 0o7777 | libc::S_IFDIR, args.u32()?);
                self.make(request, args.name()?, NewFile { mode, umask, ..NewFile::default() }, answer)?;
            }
            opcode::CREATE => {
                args.skip(4)?;
                let (mode, umask) = (args.u32()?, args.u32()?);
                args.skip(4)?;
                let made = self.make(request, args.name()?, NewFile { mode, umask, ..NewFile::default() }, answer)?;
                if self.counts_opens {
                    volume.open(made)?;
                }
                answer.opened(self.opened());
            }
            opcode::TMPFILE => {
                args.skip(4)?;
                let (uid, gid, mode, umask) = (request.uid, request.gid, args.u32()?, args.u32()?);
                let made = volume.create_unnamed(ino, NewFile { mode, umask, uid, gid, ..NewFile::default() })?;
                volume.remember(made.ino)?;
                if !self.counts_opens {
                    volume.close(made.ino)?;
                }
                answer.entry(&made);
                answer.opened(self.opened());
            }
            opcode::UNLINK => volume.unlink(ino, args.name()?)?,
            opcode::RMDIR => volume.rmdir(ino, args.name()?)?,
            opcode::RENAME | opcode::RENAME2 => {
                let to = number(args.u64()?)?;
                let flags = if request.opcode == opcode::RENAME2 { (args.u32()?, args.u32()?).0 } else { 0 };
                let how = match flags {
                    0 => Rename::Replace,
                    libc::RENAME_NOREPLACE => Rename::NoReplace,
                    libc::RENAME_EXCHANGE => Rename::Exchange,
                    libc::RENAME_WHITEOUT => Rename::Whiteout { uid: request.uid, gid: request.gid },
                    _ => return Err(Error::Invalid("flags")),
                };
                volume.rename((ino, args.name()?), (to, args.name()?), how)?;
            }
            opcode::LINK => {
                let linked = volume.link(number(args.u64()?)?, ino, args.name()?)?;
                volume.remember(linked.ino)?;
                answer.entry(&linked);
            }
            // Until an open is answered with ENOSYS, files that were created are released.
            opcode::RELEASE if !self.counts_opens => {}
            opcode::OPEN if self.counts_opens => {
                volume.open(ino)?;
                answer.opened(self.opened());
            }
            opcode::RELEASE => volume.close(ino)?,
            opcode::READ => {
                args.skip(8)?;
                let (offset, size) = (args.u64()?, args.u32()?);
                args.skip(12)?;
                if self.cached() && !direct(args.u32()?) {
                    self.readers.read(ino);
                }
                answer.fill(size, |out| volume.read(ino, offset, out))?;
            }
            opcode::WRITE => {
                args.skip(8)?;
                let (offset, size, flags) = (args.u64()?, args.u32()?, args.u32()?);
                args.skip(8)?;
                let direct = direct(args.u32()?);
                args.skip(4)?;
                self.drop_privileges(ino, flags & WRITE_KILL_SUIDGID != 0, answer)?;
                let written = volume.write(ino, offset, args.bytes(size as usize)?);
                // Also if it failed: a part may be there.
                if direct && size > 0 && self.cached() && self.readers.lately(ino) {
                    answer.spoil(Range { ino, offset, len: u64::from(size) });
                }
                written?;
                answer.written(u64::from(size));
            }
            opcode::READDIR | opcode::READDIRPLUS => {
                args.skip(8)?;
                let place = (args.u64()?, args.u32()?);
                self.list(ino, place, request.opcode == opcode::READDIRPLUS, answer)?;
            }
            opcode::STATFS => self.usage(answer),
            opcode::SETXATTR => {
                let (size, flags, acl_flags) = (args.u32()?, args.u32()?, args.u32()?);
                args.skip(4)?;
                let how = match flags.cast_signed() {
                    0 => SetXattr::Any,
                    libc::XATTR_CREATE => SetXattr::Create,
                    libc::XATTR_REPLACE => SetXattr::Replace,
                    _ => return Err(Error::Invalid("flags")),
                };
                match attribute(&mut args)? {
                    Attribute::List(name) => {
                        let set_gid_ends = acl_flags & SETXATTR_ACL_KILL_SGID != 0;
                        volume.set_acl(ino, name, Some(args.bytes(size as usize)?), set_gid_ends)?;
                    }
                    Attribute::Other(name) => volume.set_xattr(ino, name, args.bytes(size as usize)?, how)?,
                    Attribute::Control(name) => {
                        self.control.set(&self.volume, ino, name, args.bytes(size as usize)?)?;
                    }
                }
            }
            opcode::GETXATTR => {
                let room = args.u32()?;
                args.skip(4)?;
                match attribute(&mut args)? {
                    Attribute::List(name) | Attribute::Other(name) => value(&volume.xattr(ino, name)?, room, answer)?,
                    // It may be longer by the time that it is asked for.
                    Attribute::Control(name) if room == 0 => {
                        self.control.get(&self.volume, ino, name)?;
                        answer.written(CONTROL);
                    }
                    Attribute::Control(name) => value(&self.control.get(&self.volume, ino, name)?, room, answer)?,
                }
            }
            opcode::LISTXATTR => {
                // Only root sees those of this kind on any file system.
                let shown = |name: &Vec<u8>| matches!(request.uid, 0 | NOBODY) || !name.starts_with(b"trusted.");
                let names = volume.xattrs(ino)?.into_iter().filter(shown);
                let names: Vec<u8> = names.flat_map(|name| name.into_iter().chain([0])).collect();
                value(&names, args.u32()?, answer)?;
            }
            opcode::REMOVEXATTR => match attribute(&mut args)? {
                Attribute::List(name) => volume.set_acl(ino, name, None, false)?,
                Attribute::Other(name) => volume.remove_xattr(ino, name)?,
                Attribute::Control(_) => return Err(refused(libc::EOPNOTSUPP)),
            },
            opcode::FALLOCATE => {
                args.skip(8)?;
                let (offset, len, mode) = (args.u64()?, args.u64()?, args.u32()?.cast_signed());
                // The kernel does not say whether the caller has CAP_FSETID, which root has.
                self.drop_privileges(ino, request.uid != 0, answer)?;
                let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
                match mode & !libc::FALLOC_FL_KEEP_SIZE {
                    0 => volume.allocate(ino, offset, len, keep_size)?,
                    libc::FALLOC_FL_PUNCH_HOLE => volume.punch_hole(ino, offset, len)?,
                    libc::FALLOC_FL_ZERO_RANGE => volume.zero_range(ino, offset, len, keep_size)?,
                    _ => return Err(refused(libc::EOPNOTSUPP)),
                }
            }
            // What the kernel had to write came before, in requests of its own.
            opcode::FSYNC | opcode::FSYNCDIR => {}
            opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
                args.skip(8)?;
                let (from, to) = (args.u64()?, number(args.u64()?)?);
                args.skip(8)?;
                let (at, len) = (args.u64()?, args.u64()?);
                self.drop_privileges(to, request.uid != 0, answer)?;
                let copied = copy(volume, (ino, from), (to, at), len.min(COPY))?;
                match request.opcode {
                    opcode::COPY_FILE_RANGE => answer.written(copied),
                    _ => answer.u64(copied),
                }
            }
            _ => return Err(refused(libc::ENOSYS)),
        }
        Ok(())
    }

    /// The answer to a request whose effect is there. Nothing else can have changed it since: until
    /// its answer the kernel keeps the directory to the caller.
    fn finish_committed(&self, request: &Request<'_>, answer: &mut Answer<'_>) -> Result<()> {
        answer.begin();
        let (ino, mut args) = (request.ino()?, request.args);
        match request.opcode {
            opcode::SYMLINK => {}
            opcode::MKDIR => args.skip(8)?,
            opcode::MKNOD | opcode::CREATE => args.skip(16)?,
            opcode::LINK => {
                let linked = number(args.u64()?)?;
                self.volume.remember(linked)?;
                answer.entry(&self.volume.stat(linked)?);
                return Ok(());
            }
            _ => return Ok(()), // nothing is said but that it is done
        }
        let made = self.volume.lookup_to_remember(ino, args.name()?)?;
        answer.entry(&made);
        if request.opcode == opcode::CREATE {
            if self.counts_opens {
                self.volume.open(made.ino)?;
            }
            answer.opened(self.opened());
        }
        Ok(())
    }

    /// What goes with the answer to a request may have been lost with the server before.
    fn tell_again(&self, request: &Request<'_>, answer: &mut Answer<'_>) -> Result<()> {
        let (ino, mut args) = (request.ino()?, request.args);
        match request.opcode {
            opcode::FALLOCATE => answer.outdate(ino),
            opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
                args.skip(16)?;
                answer.outdate(number(args.u64()?)?);
            }
            opcode::WRITE => {
                answer.outdate(ino);
                args.skip(8)?;
                let (offset, size) = (args.u64()?, args.u32()?);
                args.skip(12)?;
                if direct(args.u32()?) && size > 0 && self.cached() {
                    answer.spoil(Range { ino, offset, len: u64::from(size) });
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Before a change of a file's data. What that takes from the mode, the kernel is told: it
    /// executes by its own copy.
    fn drop_privileges(&self, ino: Ino, modes: bool, answer: &mut Answer<'_>) -> Result<()> {
        if self.volume.drop_privileges(ino, modes)? {
            answer.outdate(ino);
        }
        Ok(())
    }

    /// Whether the kernel caches data of files that are open without O_DIRECT.
    fn cached(&self) -> bool {
        self.cache != Cache::Direct
    }

    fn opened(&self) -> u32 {
        let cache = match self.cache {
            Cache::Kernel | Cache::Writeback => opened::KEEP_CACHE,
            Cache::Direct => opened::DIRECT_IO,
        };
        cache | opened::PARALLEL_DIRECT_WRITES
    }

    /// Makes something and answers with it.
    fn make(&self, request: &Request<'_>, name: &[u8], new: NewFile<'_>, answer: &mut Answer<'_>) -> Result<Ino> {
        let new = NewFile { uid: request.uid, gid: request.gid, ..new };
        let parent = request.ino()?;
        let mut made = self.volume.create(parent, name, new)?;
        match self.volume.remember(made.ino) {
            // A drain has given it another number already.
            Err(Error::NotFound) => made = self.volume.lookup_to_remember(parent, name)?,
            done => done?,
        }
        answer.entry(&made);
        Ok(made.ino)
    }

    fn forget(&self, request: &Request<'_>) -> Result<()> {
        let mut args = request.args;
        if request.opcode == opcode::FORGET {
            return self.volume.forget(request.ino()?, args.u64()?);
        }
        let count = args.u32()?;
        args.skip(4)?;
        let mut all = Ok(());
        for _ in 0..count {
            let (node, times) = (args.u64()?, args.u64()?);
            all = number(node).and_then(|ino| self.volume.forget(ino, times)).and(all);
        }
        all
    }

    fn set_attributes(&self, request: &Request<'_>, answer: &mut Answer<'_>) -> Result<()> {
        let (ino, mut args, volume) = (request.ino()?, request.args, &self.volume);
        let valid = args.u32()?;
        args.skip(12)?;
        let size = args.u64()?;
        args.skip(8)?;
        let (atime, mtime, _) = (args.u64()?, args.u64()?, args.u64()?);
        let (atime_ns, mtime_ns, _) = (args.u32()?, args.u32()?, args.u32()?);
        let (mode, _, uid, gid) = (args.u32()?, args.u32()?, args.u32()?, args.u32()?);
        let has = |bit| valid & bit != 0;
        let time = |(bit, now), (seconds, ns)| {
            let at = || if has(now) { volume.now() } else { wire::ns(seconds, ns) };
            has(bit).then(at)
        };
        let wanted = SetAttributes {
            mode: has(set::MODE).then_some(mode),
            uid: has(set::UID).then_some(uid),
            gid: has(set::GID).then_some(gid),
            atime: time((set::ATIME, set::ATIME_NOW), (atime, atime_ns)),
            mtime: time((set::MTIME, set::MTIME_NOW), (mtime, mtime_ns)),
        };
        if has(set::SIZE) {
            self.drop_privileges(ino, has(set::KILL_SUIDGID), answer)?;
            volume.truncate(ino, size)?;
        }
        let none = wanted == SetAttributes::default();
        if volume.is_look() {
            return Err(Error::ReadOnly); // also a change of nothing
        }
        if none && !has(set::SIZE) {
            // A change of the owner to the same one: the kernel leaves out both, and expects what
            // any other does. It asks for users who may not, too: those of others' files change
            // nothing.
            let owner = volume.stat(ino)?.attributes.uid;
            if request.uid == 0 || request.uid == owner {
                self.drop_privileges(ino, true, answer)?;
            }
        }
        answer.attr(&if none { volume.stat(ino) } else { volume.set_attributes(ino, wanted) }?);
        Ok(())
    }

    /// Lists a directory from an offset on, in up to `most` bytes. What was listed before an error
    /// is the answer: it is remembered, and the kernel forgets only what it was told. It asks for
    /// the rest, and gets the error then.
    fn list(&self, dir: Ino, place: (u64, u32), attributes: bool, answer: &mut Answer<'_>) -> Result<()> {
        match self.list_all(dir, place, attributes, answer) {
            Err(error) if !answer.is_empty() => {
                tracing::debug!("a listing of inode {} ends early: {error}", dir.raw());
                Ok(())
            }
            listed => listed,
        }
    }

    fn list_all(&self, dir: Ino, (offset, most): (u64, u32), attributes: bool, answer: &mut Answer<'_>) -> Result<()> {
        let volume = &self.volume;
        let next = volume.next_cookie(dir)?;
        let place = Place::of(offset, || next);
        for (cookie, name) in DOTS.into_iter().filter(|(cookie, _)| *cookie > place.after) {
            let found = volume.lookup(dir, name)?;
            let named = Named { ino: found.ino, kind: found.kind, cookie: place.behind(cookie) };
            if answer.name(most, name, named, attributes.then_some(Some(&found))).is_break() {
                return Ok(());
            }
        }
        let mut at = place.after;
        loop {
            let mut names = volume.names(dir, at, NAMES)?;
            for name in &mut names {
                at = name.named.cookie;
                if at >= place.end {
                    return Ok(());
                }
                name.named.cookie = place.behind(at);
                if self.list_one((dir, at, most), name, attributes, answer)?.is_break() {
                    return Ok(());
                }
            }
            if names.len() < NAMES {
                return Ok(());
            }
        }
    }

    fn list_one(
        &self,
        (dir, cookie, most): (Ino, u64, u32),
        name: &mut Name,
        attributes: bool,
        answer: &mut Answer<'_>,
    ) -> Result<ControlFlow<()>> {
        if !attributes {
            return Ok(answer.name(most, &name.name, name.named, None));
        }
        while let Err(error) = self.volume.remember(name.named.ino) {
            if !matches!(error, Error::NotFound) {
                // It is damaged: a name without attributes. What uses it gets the error.
                return Ok(answer.name(most, &name.name, name.named, Some(None)));
            }
            // It was removed meanwhile, or a drain has given it another number.
            let now = self.volume.names(dir, cookie - 1, 1)?.first().map(|now| now.named);
            match now.filter(|now| now.cookie == cookie && now.ino != name.named.ino) {
                Some(now) => name.named.ino = now.ino,
                None => return Ok(ControlFlow::Continue(())),
            }
        }
        let ino = name.named.ino;
        let stat = self.volume.stat(ino);
        let listed = stat.map(|stat| answer.name(most, &name.name, name.named, Some(Some(&stat))));
        if !matches!(listed, Ok(ControlFlow::Continue(()))) {
            // The kernel is not told of it.
            let forgotten = self.volume.forget(ino, 1);
            forgotten.unwrap_or_else(|error| tracing::debug!("the listing forgot inode {}: {error}", ino.raw()));
        }
        listed
    }

    fn usage(&self, answer: &mut Answer<'_>) {
        let usage = self.volume.usage();
        let sum = |of: fn(&fs::RegionUsage) -> u64| usage.regions.iter().map(of).sum::<u64>();
        answer.u64(sum(|r| r.blocks));
        answer.u64(sum(|r| r.free_blocks));
        answer.u64(sum(|r| r.free_blocks.saturating_sub(r.reserved_blocks)));
        answer.u64(sum(|r| r.inodes));
        answer.u64(sum(|r| r.free_inodes));
        let block = fs::format::BLOCK as u32;
        for value in [block, fs::format::MAX_NAME as u32, block, 0, 0, 0, 0, 0, 0, 0] {
            answer.u32(value);
        }
    }
}

pub(crate) fn refused(errno: i32) -> Error {
    std::io::Error::from_raw_os_error(errno).into()
}

/// The name of an extended attribute.
enum Attribute<'a> {
    /// An access control list, with which the mode changes.
    List(&'static [u8]),
    /// One that means nothing to the file system.
    Other(&'a [u8]),
    /// One that no file has.
    Control(control::Name),
}

/// Reads a name in one of the namespaces that mean something here.
fn attribute<'a>(args: &mut Args<'a>) -> Result<Attribute<'a>> {
    let name = args.name()?;
    if let Some(list) = [acl::ACCESS, acl::DEFAULT].into_iter().find(|list| *list == name) {
        return Ok(Attribute::List(list));
    }
    if let Some(name) = control::Name::of(name) {
        return Ok(Attribute::Control(name));
    }
    let rest = [&b"user."[..], b"trusted.", b"security."].iter().find_map(|space| name.strip_prefix(*space));
    match rest {
        None => Err(refused(libc::EOPNOTSUPP)),
        Some([]) => Err(Error::Invalid("an attribute without a name")),
        Some(_) => Ok(Attribute::Other(name)),
    }
}

/// Answers with an attribute's value, or says how long it is.
fn value(value: &[u8], room: u32, answer: &mut Answer<'_>) -> Result<()> {
    match room as usize {
        0 => answer.written(value.len() as u64),
        room if room < value.len() => return Err(refused(libc::ERANGE)),
        _ => answer.bytes(value),
    }
    Ok(())
}

/// Copies from file to file. Returns how much, which is less than asked for at the end of the first
/// file.
fn copy(volume: &Volume, (from, at): (Ino, u64), (to, to_at): (Ino, u64), len: u64) -> Result<u64> {
    COPIED.with_borrow_mut(|buffer| {
        buffer.resize(REQUEST as usize, 0);
        let mut done = 0;
        while done < len {
            let part = buffer.get_mut(..(len - done).min(u64::from(REQUEST)) as usize).unwrap_or_default();
            let got = match volume.read(from, at + done, part) {
                // What was copied is told, as the kernel has to forget the pages of it.
                Err(_) if done > 0 => break,
                got => got?,
            };
            match volume.write(to, to_at + done, part.get(..got).unwrap_or_default()) {
                Err(_) if done > 0 => break,
                written => written?,
            }
            done += got as u64;
            if got == 0 {
                break;
            }
        }
        Ok(done)
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::atomic::{AtomicBool, Ordering};

    use fs::medium::{At, Mapped, Medium, RegionFile};
    use fs::{Layout, NewFile};

    use super::*;
    use crate::wire::BUFFER;

    /// Memory that cannot be read while it is told so.
    struct Failing(Mapped, AtomicBool);

    impl Failing {
        fn check(&self) -> Result<()> {
            if self.1.load(Ordering::Relaxed) { Err(refused(libc::EIO)) } else { Ok(()) }
        }
    }

    impl Medium for Failing {
        fn below(&self) -> Option<&dyn Medium> {
            Some(&self.0)
        }
        fn read(&self, at: At, out: &mut [u8]) -> Result<()> {
            self.check()?;
            self.0.read(at, out)
        }
        fn load_u64(&self, at: At) -> Result<u64> {
            self.check()?;
            self.0.load_u64(at)
        }
    }

    fn server(nodes: u32) -> (Arc<Failing>, Server) {
        let region = |_| {
            let file = File::from(rustix::fs::memfd_create("homenode", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
            file.set_len(16 << 20).unwrap();
            RegionFile { file, bind: None }
        };
        let mapped = Mapped::new(&(0..nodes).map(region).collect::<Vec<_>>()).unwrap();
        let medium = Arc::new(Failing(mapped, AtomicBool::new(false)));
        let nodes = (0..nodes).map(Some).collect();
        let layout = Layout { volume: [7; 16], nodes, journals: 2, ..Layout::default() };
        fs::mkfs(Box::new(Arc::clone(&medium)), &layout).unwrap();
        let volume = Volume::mount(Box::new(Arc::clone(&medium)), fs::Options::default()).unwrap();
        (medium, Server::new(Arc::new(volume), &Options::default()))
    }

    /// The errno and the length of the answer to a listing with attributes from an offset on,
    /// without its header.
    fn list(server: &Server, dir: Ino, offset: u64) -> (Option<i32>, usize) {
        let (mut bytes, mut out) = ([0; Request::HEADER + 40], vec![0; BUFFER]);
        bytes[4..8].copy_from_slice(&opcode::READDIRPLUS.to_ne_bytes());
        bytes[16..24].copy_from_slice(&dir.raw().to_ne_bytes());
        bytes[Request::HEADER + 8..][..8].copy_from_slice(&offset.to_ne_bytes());
        bytes[Request::HEADER + 16..][..4].copy_from_slice(&REQUEST.to_ne_bytes());
        let mut answer = Answer::new(&mut out);
        let errno = server.answer(&Request::decode(&bytes).unwrap(), &mut answer);
        (errno, answer.finish(1, 0).len() - wire::OUT_HEADER)
    }

    /// The kernel was not told of names that were remembered for it, and never forgot them.
    #[test]
    fn a_listing_that_fails_midway_tells_what_it_has() {
        let (medium, server) = server(1);
        let make = |parent, name: &[u8]| {
            let mode = libc::S_IFDIR | 0o755;
            server.volume.create(parent, name, NewFile { mode, ..NewFile::default() }).unwrap().ino
        };
        let parent = make(Ino::ROOT, b"parent");
        let dir = make(parent, b"dir");
        make(dir, b"name");
        let whole = list(&server, dir, 0);
        assert_eq!(whole, (Some(0), 3 * (128 + 32)));
        // The parent has to be read again.
        server.volume.remember(parent).unwrap();
        server.volume.forget(parent, 1).unwrap();
        medium.1.store(true, Ordering::Relaxed);
        assert_eq!(list(&server, dir, 0), (Some(0), 128 + 32), "the directory itself");
        let behind = Place::of(0, || server.volume.next_cookie(dir).unwrap()).behind(1);
        assert_eq!(list(&server, dir, behind), (Some(libc::EUCLEAN), 0), "its parent");
        medium.1.store(false, Ordering::Relaxed);
        assert_eq!(list(&server, dir, behind), (Some(0), 2 * (128 + 32)));
    }

    /// A name whose target got another number between the look at the directory and that at the
    /// target looked as if it had been removed.
    #[test]
    fn a_listing_finds_what_a_drain_has_given_another_number() {
        let (_, server) = server(2);
        let volume = &server.volume;
        for name in [b"a", b"b"] {
            fs::on_node(1, || volume.create(Ino::ROOT, name, NewFile { mode: 0o644, ..NewFile::default() })).unwrap();
        }
        let mut names = volume.names(Ino::ROOT, 0, 2).unwrap();
        assert_eq!(volume.drain(1, |_| true).unwrap().stays, []);
        volume.unlink(Ino::ROOT, b"b").unwrap();
        let mut out = vec![0; BUFFER];
        for (name, found) in names.iter_mut().zip([true, false]) {
            let (cookie, old) = (name.named.cookie, name.named.ino);
            let mut answer = Answer::new(&mut out);
            answer.begin();
            let went = server.list_one((Ino::ROOT, cookie, REQUEST), name, true, &mut answer).unwrap();
            assert!(went.is_continue());
            assert_eq!((!answer.is_empty(), name.named.ino != old), (found, found));
            if found {
                volume.forget(name.named.ino, 1).unwrap();
            }
        }
    }
}
