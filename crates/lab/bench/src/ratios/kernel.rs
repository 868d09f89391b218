//! The same operations on a file system of the kernel.

use std::fs::{File, OpenOptions};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, RawDir};

use crate::Result;

/// A directory of ours on it, which goes with the value.
pub struct Kernel {
    /// Type of the file system, and whether it maps its memory (DAX).
    pub name: String,
    /// Whether it is for more than this life of the machine: then a change lasts only after a sync.
    pub lasts: bool,
    pub data: File,
    pub log: File,
    path: PathBuf,
    /// For creating and deleting.
    pub work: File,
    /// Has many names.
    pub names: File,
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            eprintln!("{}: {error}", self.path.display());
        }
    }
}

impl Kernel {
    pub fn new(dir: &Path, file: usize, names: usize) -> Result<Self> {
        let name = name_of(dir)?;
        let path = dir.join(format!("homenode-ratios-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        let open = |name: &str| OpenOptions::new().read(true).write(true).create_new(true).open(path.join(name));
        let sub = |name: &str| std::fs::create_dir(path.join(name)).and_then(|()| File::open(path.join(name)));
        let (data, log, work, many) = (open("data")?, open("log")?, sub("work")?, sub("names")?);
        let made = Self { lasts: name != "tmpfs", name, data, log, work, names: many, path };
        let mib = vec![1; 1 << 20];
        (0..file as u64).step_by(mib.len()).try_for_each(|at| made.data.write_all_at(&mib, at))?;
        (0..names).try_for_each(|i| create(&made.names, &super::name(i)))?;
        rustix::fs::syncfs(&made.data)?;
        Ok(made)
    }
}

pub fn create(dir: &File, name: &str) -> Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o644)).map(drop)?)
}

pub fn unlink(dir: &File, name: &str) -> Result<()> {
    Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?)
}

pub fn rename(dir: &File, from: &str, to: &str) -> Result<()> {
    Ok(rustix::fs::renameat(dir, from, dir, to)?)
}

pub fn stat(dir: &File, name: &str) -> Result<()> {
    std::hint::black_box(rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?);
    Ok(())
}

/// How many names a directory has.
pub fn list(dir: &File) -> Result<usize> {
    rustix::fs::seek(dir, rustix::fs::SeekFrom::Start(0))?;
    let mut buffer = vec![MaybeUninit::uninit(); 32 << 10]; // as the C library's
    let (mut entries, mut count) = (RawDir::new(dir, &mut buffer), 0);
    while let Some(entry) = entries.next() {
        count += usize::from(!entry?.file_name().to_bytes().starts_with(b"."));
    }
    Ok(count)
}

fn name_of(dir: &Path) -> Result<String> {
    let dir = dir.canonicalize()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let over = fields.filter(|fields| fields.get(1).is_some_and(|at| dir.starts_with(at)));
    let longest = over.max_by_key(|fields| fields.get(1).map_or(0, |at| at.len())).ok_or("no mount")?;
    let (kind, options) = (longest.get(2).copied().unwrap_or("?"), longest.get(3).copied().unwrap_or_default());
    let dax = options.split(',').any(|option| option == "dax" || option == "dax=always");
    Ok(if dax { format!("{kind}, DAX") } else { kind.to_owned() })
}
