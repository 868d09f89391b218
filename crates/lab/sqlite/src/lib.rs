//! SQLite on a volume without a mount: its files are those of a volume of this process.
//!
//! **Problem.** A database on a mount asks the server for each page that no cache has, and several
//! times for each transaction. A program that has the volume itself needs no server.
//!
//! **Approach.** SQLite reaches its files through a *VFS*, a table of functions; [`register`] gives
//! it one that calls the volume. The crate `rsqlite-vfs` has the C side of it. An operation of a
//! volume is durable when it returns, so a sync has nothing to do, and SQLite is told that writes
//! reach the medium in their order and that a file grows with its data: its journal then takes
//! fewer writes. Connections keep off each other by the volume's record locks, on the bytes that
//! SQLite's own VFS locks; the owner of a lock is an open file.
//!
//! **Limits.** One process has the volume, so it has all connections. There is no shared memory: a
//! write-ahead log needs `PRAGMA locking_mode = EXCLUSIVE` before `PRAGMA journal_mode = WAL`, and
//! so does each later connection to such a database. Symbolic links are not followed. Reads copy:
//! no page is mapped.
//!
//! ```
//! use std::fs::File;
//! use std::sync::Arc;
//!
//! use fs::medium::{Mapped, RegionFile};
//! use fs::{Layout, Options, Volume};
//! use rusqlite::{Connection, OpenFlags};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("region");
//! # let file = File::options().read(true).write(true).create_new(true).open(&path)?;
//! # file.set_len(8 << 20)?;
//! # fs::reserve(&file)?;
//! # let layout = Layout {
//! #     nodes: vec![Some(0)],
//! #     names: vec![path.as_os_str().as_encoded_bytes().to_vec()],
//! #     ..Layout::default()
//! # };
//! # fs::mkfs(Box::new(Mapped::new(&[RegionFile { file, bind: None }])?), &layout)?;
//! // A volume that `homenode mkfs` made in the file `path`.
//! let volume = Arc::new(Volume::mount(Box::new(fs::open_files(&[path])?), Options::default())?);
//! sqlite::register("volume", &volume)?;
//!
//! // `/db` is a file of the volume.
//! let database = Connection::open_with_flags_and_vfs("/db", OpenFlags::default(), "volume")?;
//! database.execute("CREATE TABLE t (key INTEGER PRIMARY KEY, value TEXT)", [])?;
//! database.execute("INSERT INTO t VALUES (1, 'durable when this returns')", [])?;
//! assert!(volume.lookup(fs::Ino::ROOT, b"db")?.size > 0);
//!
//! database.close().map_err(|(_, error)| error)?;
//! Arc::into_inner(volume).ok_or("a connection is open")?.unmount()?;
//! # Ok(())
//! # }
//! ```

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fs::{Error, FileLock, Ino, Kind, LockMode, LockSpace, NewFile, Volume};
pub use rsqlite_vfs::RegisterVfsError;
use rsqlite_vfs::{
    AccessMode, DeviceCharacteristics, LockLevel, OpenOptions, OpenRequest, OpenedFile, OsCallback, SQLiteIoMethods,
    SQLiteVfs, SyncOptions, SystemErrorCode, VfsError, VfsErrorCode, VfsFile, VfsResult, VfsStore, register_vfs,
};
// The bundled SQLite is linked by it.
use rusqlite as _;

/// The bytes that SQLite's own VFS locks, beyond what a database has there.
const PENDING: RangeInclusive<u64> = 0x4000_0000..=0x4000_0000;
const RESERVED: RangeInclusive<u64> = 0x4000_0001..=0x4000_0001;
const SHARED: RangeInclusive<u64> = 0x4000_0002..=0x4000_01ff;

/// Gives SQLite a VFS of this name, whose files are those of the volume. It stays for the life of
/// the process and keeps no volume mounted: files can be opened as long as others have it.
///
/// # Errors
///
/// The name is empty, has a zero byte or is taken, or SQLite has no memory.
pub fn register(name: &str, volume: &Arc<Volume>) -> Result<(), RegisterVfsError> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: nothing of the file layout, the table of functions and the constructor is overridden,
    // and all of them are those of `Files`, with its data. The data can be shared between threads,
    // and stays, as nothing unregisters the VFS. SQLite is built to be used by several threads. No
    // other registration is under way.
    let registration = unsafe { register_vfs::<Calls, Services>(name, Arc::downgrade(volume), false)? };
    registration.into_raw();
    Ok(())
}

/// What is SQLite's name for the files of a volume.
struct Files;
struct Calls;
struct Services;

impl SQLiteIoMethods for Calls {
    type Store = Files;
}

impl SQLiteVfs<Calls> for Services {
    type Os = Self;

    fn os(_: &Weak<Volume>) -> &Self {
        &Self
    }
}

impl OsCallback for Services {
    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn random(&self, buffer: &mut [u8]) -> usize {
        rustix::rand::getrandom(buffer, rustix::rand::GetRandomFlags::empty()).unwrap_or(0)
    }

    fn epoch_timestamp_in_ms(&self) -> VfsResult<i64> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).ok();
        let ms = since.and_then(|since| i64::try_from(since.as_millis()).ok());
        ms.ok_or_else(|| VfsError::new(VfsErrorCode::Error, "the clock is out of range".into()))
    }
}

thread_local! {
    static LAST_ERROR: RefCell<Option<VfsError>> = const { RefCell::new(None) };
}

/// An error of the volume as SQLite has it; `otherwise` is for those that say only what failed.
fn failed(otherwise: VfsErrorCode) -> impl Fn(Error) -> VfsError {
    move |error| {
        let code = match error {
            Error::NoSpace | Error::Lacks(_) => VfsErrorCode::Full,
            Error::WouldBlock => VfsErrorCode::Busy,
            Error::ReadOnly => VfsErrorCode::ReadOnly,
            _ => otherwise,
        };
        let errno = SystemErrorCode::from_raw(error.errno());
        let told = VfsError::new(code, error.to_string().into());
        errno.into_iter().fold(told, VfsError::with_system_error)
    }
}

fn mounted(volume: &Weak<Volume>) -> VfsResult<Arc<Volume>> {
    let unmounted = || VfsError::new(VfsErrorCode::CantOpen, "the volume is not mounted any more".into());
    volume.upgrade().ok_or_else(unmounted)
}

/// The directory of a file, and its name there.
fn place<'a>(volume: &Volume, path: &'a str) -> fs::Result<(Ino, &'a [u8])> {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    Ok((volume.resolve(dir.as_bytes())?, name.as_bytes()))
}

fn open(volume: &Volume, path: &str, options: OpenOptions, new: NewFile<'_>) -> fs::Result<Ino> {
    let (dir, name) = place(volume, path)?;
    let found = || volume.lookup(dir, name);
    let opened = if options.create() { volume.create(dir, name, new) } else { found() };
    let stat = match opened {
        Err(Error::Exists) if !options.exclusive() => found()?,
        opened => opened?,
    };
    if stat.kind != Kind::File {
        return Err(Error::Invalid("not a regular file"));
    }
    volume.open(stat.ino)?;
    if options.delete_on_close() {
        volume.unlink(dir, name).inspect_err(|_| drop(volume.close(stat.ino)))?;
    }
    Ok(stat.ino)
}

impl VfsStore for Files {
    type File = File;
    type AppData = Weak<Volume>;

    fn record_error(_: &Weak<Volume>, error: VfsError) {
        LAST_ERROR.set(Some(error));
    }

    fn last_error(_: &Weak<Volume>) -> Option<VfsError> {
        LAST_ERROR.with_borrow(Clone::clone)
    }

    fn open_file(volume: &Weak<Volume>, request: OpenRequest<'_>) -> VfsResult<OpenedFile<File>> {
        static OWNERS: AtomicU64 = AtomicU64::new(1);
        let volume = mounted(volume)?;
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let new = NewFile { mode: 0o644, uid, gid, ..NewFile::default() };
        let ino = match request.filename {
            Some(name) => open(&volume, name.path(), request.options, new),
            None => volume.create_unnamed(Ino::ROOT, new).map(|stat| stat.ino),
        };
        let ino = ino.map_err(failed(VfsErrorCode::CantOpen))?;
        let file = File { volume, ino, owner: OWNERS.fetch_add(1, Ordering::Relaxed), level: LockLevel::None };
        Ok(OpenedFile { file, access: request.options.access() })
    }

    fn close_file(_: &Weak<Volume>, _: Option<&str>, mut file: File, _: OpenOptions) -> VfsResult<()> {
        file.unlock(LockLevel::None)?;
        file.volume.close(file.ino).map_err(failed(VfsErrorCode::IoClose))
    }

    fn access(volume: &Weak<Volume>, path: &str, _: AccessMode) -> VfsResult<bool> {
        let volume = mounted(volume)?;
        match place(&volume, path).and_then(|(dir, name)| volume.lookup(dir, name)) {
            // As for SQLite's own VFS: an empty log of a program that has died is no log.
            Ok(stat) => Ok(stat.kind != Kind::File || stat.size > 0),
            Err(Error::NotFound) => Ok(false),
            Err(error) => Err(failed(VfsErrorCode::IoAccess)(error)),
        }
    }

    fn full_pathname(_: &Weak<Volume>, path: &str) -> VfsResult<String> {
        Ok(if path.starts_with('/') { path.to_owned() } else { format!("/{path}") })
    }

    fn delete_file(volume: &Weak<Volume>, path: &str, _: bool) -> VfsResult<()> {
        let volume = mounted(volume)?;
        place(&volume, path).and_then(|(dir, name)| volume.unlink(dir, name)).map_err(|error| {
            let absent = matches!(error, Error::NotFound);
            failed(if absent { VfsErrorCode::IoDeleteNoEntry } else { VfsErrorCode::IoDelete })(error)
        })
    }
}

/// An open file of a volume.
struct File {
    volume: Arc<Volume>,
    ino: Ino,
    owner: u64,
    level: LockLevel,
}

impl File {
    fn wanted(&self, range: RangeInclusive<u64>, mode: LockMode) -> FileLock {
        FileLock { start: *range.start(), last: *range.end(), mode, owner: self.owner, pid: std::process::id() }
    }

    fn take(&self, range: RangeInclusive<u64>, mode: LockMode) -> VfsResult<()> {
        let wanted = self.wanted(range, mode);
        self.volume.locks().lock(self.ino, LockSpace::Record, wanted).map_err(failed(VfsErrorCode::IoLock))
    }

    fn give(&self, first: u64, last: u64) {
        self.volume.locks().unlock(self.ino, LockSpace::Record, self.owner, first, last);
    }
}

impl VfsFile for File {
    fn device_characteristics(&self) -> DeviceCharacteristics {
        // Not ATOMIC: a full volume may write in parts.
        DeviceCharacteristics::POWERSAFE_OVERWRITE
            | DeviceCharacteristics::SAFE_APPEND
            | DeviceCharacteristics::SEQUENTIAL
            | DeviceCharacteristics::SUBPAGE_READ
    }

    fn read(&mut self, out: &mut [u8], offset: u64) -> VfsResult<usize> {
        self.volume.read(self.ino, offset, out).map_err(failed(VfsErrorCode::IoRead))
    }

    fn write(&mut self, data: &[u8], offset: u64) -> VfsResult<()> {
        self.volume.write(self.ino, offset, data).map_err(failed(VfsErrorCode::IoWrite))
    }

    fn truncate(&mut self, size: u64) -> VfsResult<()> {
        self.volume.truncate(self.ino, size).map_err(failed(VfsErrorCode::IoTruncate))
    }

    fn sync(&mut self, _: SyncOptions) -> VfsResult<()> {
        Ok(()) // every operation is durable when it returns
    }

    fn size(&self) -> VfsResult<u64> {
        Ok(self.volume.stat(self.ino).map_err(failed(VfsErrorCode::IoStat))?.size)
    }

    fn lock(&mut self, level: LockLevel) -> VfsResult<()> {
        if level <= self.level {
            return Ok(());
        }
        match level {
            // A writer that waits has the first byte, so no reader joins those that it waits for.
            LockLevel::None | LockLevel::Shared => {
                self.take(PENDING, LockMode::Shared)?;
                let taken = self.take(SHARED, LockMode::Shared);
                self.give(*PENDING.start(), *PENDING.end());
                taken?;
            }
            LockLevel::Reserved => self.take(RESERVED, LockMode::Exclusive)?,
            LockLevel::Pending | LockLevel::Exclusive => {
                self.take(PENDING, LockMode::Exclusive)?;
                self.level = LockLevel::Pending;
                if level == LockLevel::Exclusive {
                    self.take(SHARED, LockMode::Exclusive)?;
                }
            }
        }
        self.level = level;
        Ok(())
    }

    fn unlock(&mut self, level: LockLevel) -> VfsResult<()> {
        if level >= self.level {
            return Ok(());
        }
        if level == LockLevel::None {
            self.give(0, u64::MAX);
        } else {
            self.take(SHARED, LockMode::Shared)?;
            self.give(*PENDING.start(), *RESERVED.end());
        }
        self.level = level;
        Ok(())
    }

    fn check_reserved_lock(&self) -> VfsResult<bool> {
        let anybody = FileLock { owner: 0, ..self.wanted(RESERVED, LockMode::Shared) };
        Ok(self.volume.locks().test(self.ino, LockSpace::Record, &anybody).is_some())
    }
}
