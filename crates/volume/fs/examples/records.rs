//! Threads append records to files of a volume without a mount, each to a file of its own, whose
//! blocks are near the thread. A second run goes on where the first one ended.
//!
//! ```text
//! truncate -s 64M /dev/shm/region && homenode-fs mkfs /dev/shm/region
//! cargo run --release -p homenode-fs --example records -- /dev/shm/region
//! homenode-fs fs ls /dev/shm/region /records
//! ```

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

use fs::{Error as FsError, Ino, NewFile, Options, Volume};

const RECORD: usize = 4096;
const RECORDS: u32 = 1000;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let path = std::env::args_os().nth(1).ok_or("usage: records REGION")?;
    // Any region names the others. The topology says which node is how far from which.
    let medium = fs::open_files(&[PathBuf::from(path)])?;
    let options = Options { topology: Some(topology::sysfs::read(Path::new("/sys"))?), ..Options::default() };
    let volume = Volume::mount(Box::new(medium), options)?;
    let directory = made(&volume, Ino::ROOT, "records", libc::S_IFDIR | 0o755)?;
    let threads = std::thread::available_parallelism()?.get();
    std::thread::scope(|scope| {
        let each = |thread| append(&volume, directory, &format!("{thread}"));
        let started: Vec<_> = (0..threads).map(|thread| scope.spawn(move || each(thread))).collect();
        started.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread has panicked")?)
    })?;
    // Without it the next mount reads all logs, as after a crash; nothing is lost.
    Ok(volume.unmount()?)
}

/// A name's inode, made if it is not there.
fn made(volume: &Volume, parent: Ino, name: &str, mode: u32) -> fs::Result<Ino> {
    match volume.create(parent, name.as_bytes(), NewFile { mode, ..NewFile::default() }) {
        Err(FsError::Exists) => Ok(volume.lookup(parent, name.as_bytes())?.ino),
        created => Ok(created?.ino),
    }
}

fn append(volume: &Volume, directory: Ino, name: &str) -> Result<()> {
    let file = made(volume, directory, name, 0o644)?;
    let before = volume.stat(file)?.size / RECORD as u64;
    let began = Instant::now();
    for record in 0..RECORDS {
        // On the medium when it returns: there is no fsync.
        volume.append(file, &[record as u8; RECORD])?;
    }
    let each = began.elapsed() / RECORDS;
    println!(
        "{name}: {before} records were there; {RECORDS} more, {each:?} each; bytes by node {:?}",
        volume.bytes_by_node(file)?
    );
    Ok(())
}
