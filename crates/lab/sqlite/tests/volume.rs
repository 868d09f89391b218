//! A database on a volume: as on the kernel's file systems, with several connections, after power
//! cuts, and on a full volume.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fs::medium::{At, Medium};
use fs::{Ino, Layout, Options, Volume, fsck};
use rusqlite::{Connection, ErrorCode, OpenFlags};

/// Memory that loses what was not flushed and fenced. `rows` is what is committed; every so many
/// fences, what a power cut before it leaves is put away, with the rows until then.
#[derive(Default)]
struct Memory {
    now: Mutex<Vec<u8>>,
    durable: Mutex<Vec<u8>>,
    flushed: Mutex<BTreeMap<u64, Vec<u8>>>,
    fences: AtomicU64,
    rows: AtomicI64,
    cuts: Mutex<Option<Vec<Cut>>>,
}

/// Rows that were committed, and the image of the volume.
type Cut = (i64, Vec<u8>);

/// One cut in so many fences: no multiple of those of a transaction.
const EVERY: u64 = 29;

impl Memory {
    fn new(image: Vec<u8>) -> Arc<Self> {
        Arc::new(Self { now: Mutex::new(image.clone()), durable: Mutex::new(image), ..Self::default() })
    }
}

impl Medium for Memory {
    fn regions(&self) -> usize {
        1
    }
    fn len(&self, _: usize) -> u64 {
        self.now.lock().unwrap().len() as u64
    }
    fn read(&self, at: At, out: &mut [u8]) -> fs::Result<()> {
        let now = self.now.lock().unwrap();
        let from = at.within(out.len(), now.len() as u64)?;
        out.copy_from_slice(&now[from..from + out.len()]);
        Ok(())
    }
    fn write(&self, at: At, data: &[u8]) -> fs::Result<()> {
        let mut now = self.now.lock().unwrap();
        let from = at.within(data.len(), now.len() as u64)?;
        now[from..from + data.len()].copy_from_slice(data);
        Ok(())
    }
    fn write_data(&self, at: At, data: &[u8]) -> fs::Result<()> {
        self.write(at, data)?;
        self.flush(at, data.len() as u64)
    }
    fn load_u64(&self, at: At) -> fs::Result<u64> {
        let mut word = [0; 8];
        self.read(at, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }
    fn store_u64(&self, at: At, word: u64) -> fs::Result<()> {
        self.write(at, &word.to_le_bytes())
    }
    fn flush(&self, at: At, len: u64) -> fs::Result<()> {
        let (first, last) = (at.offset / 64 * 64, (at.offset + len).next_multiple_of(64));
        let mut lines = vec![0; (last - first) as usize];
        self.read(At { offset: first, ..at }, &mut lines)?;
        let mut flushed = self.flushed.lock().unwrap();
        flushed.extend((first..).step_by(64).zip(lines.chunks(64).map(<[u8]>::to_vec)));
        Ok(())
    }
    fn fence(&self) -> fs::Result<()> {
        let mut durable = self.durable.lock().unwrap();
        if let Some(cuts) = &mut *self.cuts.lock().unwrap()
            && self.fences.fetch_add(1, Ordering::Relaxed) % EVERY == EVERY - 1
        {
            cuts.push((self.rows.load(Ordering::Relaxed), durable.clone()));
        }
        for (at, line) in std::mem::take(&mut *self.flushed.lock().unwrap()) {
            durable[at as usize..at as usize + 64].copy_from_slice(&line);
        }
        Ok(())
    }
}

fn blank(mib: usize) -> Arc<Memory> {
    let memory = Memory::new(vec![0; mib << 20]);
    fs::mkfs(Box::new(memory.clone()), &Layout { nodes: vec![Some(0)], ..Layout::default() }).unwrap();
    memory
}

/// A volume in it, and the name of the VFS for it.
fn mount(memory: &Arc<Memory>) -> (Arc<Volume>, String) {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    let volume = Arc::new(Volume::mount(Box::new(memory.clone()), Options::default()).unwrap());
    let name = format!("volume{}", NAMES.fetch_add(1, Ordering::Relaxed));
    sqlite::register(&name, &volume).unwrap();
    (volume, name)
}

fn connect(vfs: &str) -> Connection {
    let database = Connection::open_with_flags_and_vfs("db", OpenFlags::default(), vfs).unwrap();
    database.busy_timeout(std::time::Duration::ZERO).unwrap();
    database
}

fn integrity(database: &Connection) -> String {
    database.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap()
}

fn count(database: &Connection) -> i64 {
    database.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap()
}

/// Rows, an index, changes, a rollback, a sort that takes a temporary file, and a smaller database.
fn use_it(database: &Connection) {
    database.execute_batch("PRAGMA temp_store = FILE; PRAGMA cache_size = 10; PRAGMA temp.cache_size = 10").unwrap();
    database
        .execute_batch("CREATE TABLE t (key INTEGER PRIMARY KEY, value TEXT); CREATE INDEX i ON t (value)")
        .unwrap();
    let numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)";
    let insert = format!("INSERT INTO t {numbers} SELECT i, hex(i * 7919 % 3001) || printf('%.200c', 'x') FROM n");
    database.execute_batch(&insert).unwrap();
    database.execute_batch("BEGIN; UPDATE t SET value = 'lost'; ROLLBACK").unwrap();
    database.execute_batch("UPDATE t SET value = value || 'y' WHERE key % 3 = 0").unwrap();
    database.execute_batch("CREATE TABLE sorted AS SELECT value || key FROM t ORDER BY 1 DESC").unwrap();
    database.execute_batch("DELETE FROM t WHERE key % 2 = 0; VACUUM").unwrap();
    assert_eq!(integrity(database), "ok");
}

#[test]
fn a_database_has_the_bytes_that_it_has_on_the_kernels_file_systems() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let kernels = Connection::open(&path).unwrap();
    use_it(&kernels);
    kernels.close().unwrap();
    let expected = std::fs::read(path).unwrap();

    let memory = blank(16);
    let (volume, vfs) = mount(&memory);
    let database = connect(&vfs);
    use_it(&database);
    database.close().unwrap();
    let stat = volume.lookup(Ino::ROOT, b"db").unwrap();
    let mut found = vec![0; stat.size as usize];
    volume.read(stat.ino, 0, &mut found).unwrap();
    assert!(found == expected, "{} and {} bytes differ", found.len(), expected.len());
    let names = volume.names(Ino::ROOT, 0, 100).unwrap().into_iter().map(|name| name.name);
    let names: Vec<_> = names.filter(|name| !name.starts_with(b".")).collect();
    assert_eq!(names, [b"db"], "a journal or a temporary file is left");
    unmount(volume, &memory);
}

/// All files are closed: nothing is lost, and nothing is left over.
fn unmount(volume: Arc<Volume>, memory: &Arc<Memory>) {
    Arc::into_inner(volume).expect("a file is open").unmount().unwrap();
    let report = fsck::check(Box::new(memory.clone())).unwrap();
    assert!(report.damage.is_empty() && report.orphans.is_empty() && report.clean, "{report:?}");
}

#[test]
fn connections_keep_off_each_other() {
    let memory = blank(8);
    let (volume, vfs) = mount(&memory);
    let (one, two) = (connect(&vfs), connect(&vfs));
    one.execute_batch("CREATE TABLE t (key)").unwrap();
    let busy = |database: &Connection, sql: &str| {
        database.execute_batch(sql).unwrap_err().sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
    };

    one.execute_batch("BEGIN IMMEDIATE; INSERT INTO t VALUES (1)").unwrap();
    assert_eq!(count(&two), 0, "what is not committed is not seen");
    assert!(busy(&two, "INSERT INTO t VALUES (2)"), "there is one writer");
    one.execute_batch("COMMIT").unwrap();

    two.execute_batch("BEGIN").unwrap();
    assert_eq!(count(&two), 1);
    one.execute_batch("BEGIN; INSERT INTO t VALUES (3)").unwrap();
    assert!(busy(&one, "COMMIT"), "a reader is in the middle");
    let late = connect(&vfs);
    assert!(busy(&late, "SELECT * FROM t"), "no reader joins those that a writer waits for");
    two.execute_batch("COMMIT").unwrap();
    one.execute_batch("COMMIT").unwrap();
    assert_eq!((count(&two), count(&late)), (2, 2));

    [one, two, late].into_iter().for_each(|database| database.close().unwrap());
    unmount(volume, &memory);
}

/// Commits rows, each in a transaction that touches several pages, and notes each before the next.
fn commit_rows(memory: &Memory, database: &Connection, rows: i64) {
    for row in 1..=rows {
        let value = format!("{row:0300}");
        database.execute_batch("BEGIN").unwrap();
        database.execute("INSERT INTO t VALUES (?1, ?2)", (row * 7919 % 10007, value)).unwrap();
        database.execute("UPDATE rows SET count = ?1", [row]).unwrap();
        database.execute_batch("COMMIT").unwrap();
        memory.rows.store(row, Ordering::Relaxed);
    }
}

/// After each power cut all that was committed is there, and nothing of what was not.
fn survives_power_cuts(pragmas: &str) {
    let memory = blank(4);
    let (_volume, vfs) = mount(&memory);
    let database = connect(&vfs);
    database.execute_batch(pragmas).unwrap();
    let schema = "CREATE TABLE rows (count); INSERT INTO rows VALUES (0);
        CREATE TABLE t (key INTEGER PRIMARY KEY, value TEXT); CREATE INDEX i ON t (value)";
    database.execute_batch(schema).unwrap();
    *memory.cuts.lock().unwrap() = Some(Vec::new());
    commit_rows(&memory, &database, 60);
    let cuts = memory.cuts.lock().unwrap().take().unwrap();
    assert!(cuts.len() >= 20, "{} power cuts", cuts.len());
    let mut rolled_back = 0;
    for (cut, (rows, image)) in cuts.into_iter().enumerate() {
        let memory = Memory::new(image);
        let (volume, vfs) = mount(&memory);
        rolled_back += usize::from(volume.lookup(Ino::ROOT, b"db-journal").is_ok_and(|stat| stat.size > 0));
        let database = connect(&vfs);
        database.execute_batch(pragmas).unwrap();
        assert_eq!(integrity(&database), "ok", "cut {cut}, {rows} rows");
        let found = count(&database);
        let counted: i64 = database.query_row("SELECT count FROM rows", [], |row| row.get(0)).unwrap();
        assert!((rows..=rows + 1).contains(&found), "cut {cut}: {found} rows, {rows} were committed");
        assert_eq!(counted, found, "cut {cut}: a part of a transaction");
        database.close().unwrap();
        unmount(volume, &memory);
    }
    assert_eq!(rolled_back > 0, pragmas.contains("DELETE"), "{rolled_back} cuts in the middle of a transaction");
}

#[test]
fn what_was_committed_survives_power_cuts() {
    survives_power_cuts("PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL");
}

#[test]
fn what_was_committed_to_a_write_ahead_log_survives_power_cuts() {
    survives_power_cuts("PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL");
}

#[test]
fn a_full_volume_is_an_error_and_the_database_stays_whole() {
    let memory = blank(4);
    let (volume, vfs) = mount(&memory);
    let database = connect(&vfs);
    database.execute_batch("CREATE TABLE t (value)").unwrap();
    let mut rows = 0;
    let error = loop {
        match database.execute("INSERT INTO t VALUES (zeroblob(100000))", []) {
            Ok(_) => rows += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.sqlite_error_code(), Some(ErrorCode::DiskFull), "{error}");
    assert!(rows > 10);
    assert_eq!((count(&database), integrity(&database)), (rows, "ok".to_owned()));
    database.close().unwrap();
    unmount(volume, &memory);
}

#[test]
fn a_name_that_is_taken_and_a_volume_that_is_gone_are_errors() {
    let memory = blank(4);
    let (volume, vfs) = mount(&memory);
    let error = sqlite::register(&vfs, &volume).unwrap_err();
    assert!(matches!(error, sqlite::RegisterVfsError::NameConflict(_)), "{error}");
    unmount(volume, &memory);
    let error = Connection::open_with_flags_and_vfs("db", OpenFlags::default(), vfs.as_str()).unwrap_err();
    assert_eq!(error.sqlite_error_code(), Some(ErrorCode::CannotOpen), "{error}");
}

/// A program that dies before it has changed the database's mode leaves an empty write-ahead log:
/// the database could not be opened any more.
#[test]
fn an_empty_log_is_none_and_a_link_is_no_database() {
    let memory = blank(4);
    let (volume, vfs) = mount(&memory);
    let open = |name: &str| Connection::open_with_flags_and_vfs(name, OpenFlags::default(), vfs.as_str());
    open("db").unwrap().execute_batch("CREATE TABLE t (v); INSERT INTO t VALUES (7)").unwrap();
    let new = fs::NewFile { mode: 0o644, ..fs::NewFile::default() };
    volume.create(Ino::ROOT, b"db-wal", new).unwrap();
    let db = open("db").unwrap();
    assert_eq!(db.query_row("SELECT v FROM t", [], |row| row.get::<_, i64>(0)).unwrap(), 7);
    drop(db);
    let link = fs::NewFile { mode: 0o120_777, target: b"db", ..new };
    volume.create(Ino::ROOT, b"link", link).unwrap();
    let error = open("link").unwrap_err();
    assert_eq!(error.sqlite_error_code(), Some(ErrorCode::CannotOpen), "{error}");
    unmount(volume, &memory);
}
