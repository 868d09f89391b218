//! Readers of cached files that use a given share of a CPU each.
//!
//! **Problem.** A test of crowded CPUs needs readers of a known CPU use. fio paces itself by bytes,
//! and on a slow or shared machine, such as an emulated one, the same bytes take more CPU time.
//!
//! **Approach.** Each thread reads until its CPU clock has advanced by its share of a period, then
//! sleeps until the next one.
//!
//! **Limits.** On an overloaded CPU a thread gets less than its share and does not catch up.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;
use rustix::time::{ClockId, clock_gettime};

/// Bytes of one read.
const BLOCK: usize = 64 << 10;
/// Much longer than a scheduler tick, much shorter than a window.
const PERIOD: Duration = Duration::from_millis(100);

/// A thread that reads one file again and again.
#[derive(Clone, Debug)]
pub struct Reader {
    pub file: PathBuf,
    /// Share of a CPU it uses, 0 to 1.
    pub duty: f64,
    /// It maps the file and loads from each page, instead of calling `read`.
    pub mapped: bool,
}

/// A file mapped for reading.
struct Mapped {
    base: *mut std::ffi::c_void,
    len: usize,
}

impl Mapped {
    fn new(file: &File, len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0) }?;
        Ok(Self { base, len })
    }

    /// Loads a byte of each page from `offset` on, and returns the bytes these pages hold.
    fn touch(&self, offset: usize, bytes: usize) -> u64 {
        let end = self.len.min(offset + bytes);
        for at in (offset..end).step_by(page_size()) {
            // SAFETY: `at` is inside the mapping. The file is the laboratory's own and keeps its
            // length.
            unsafe { std::ptr::read_volatile(self.base.cast::<u8>().add(at)) };
        }
        end.saturating_sub(offset) as u64
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; nothing refers to it any more.
        if let Err(error) = unsafe { munmap(self.base, self.len) } {
            eprintln!("munmap: {error}");
        }
    }
}

/// Memory whose release makes the kernel flush all of a process's translations: more than 33 pages
/// (`tlb_single_page_flush_ceiling` of x86).
const FLUSHED: usize = 1 << 20;

/// Drops the processor's cached translations, as programs do that release memory. A page whose
/// translation is cached is accessed without setting its bit in the page table. A real processor
/// has room for a few thousand pages; an emulated one keeps all of them.
fn flush_translations() -> io::Result<()> {
    // SAFETY: a new mapping at an address that the kernel chooses; only this function knows it.
    unsafe {
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        let base =
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), FLUSHED, ProtFlags::READ | ProtFlags::WRITE, flags)?;
        Ok(munmap(base, FLUSHED)?)
    }
}

/// Reads until `stop` is set; returns the bytes read.
pub fn read(reader: &Reader, stop: &AtomicBool) -> Result<u64> {
    let what = || reader.file.display().to_string();
    ensure!((0.0..=1.0).contains(&reader.duty), "a share of a CPU is 0 to 1, not {}", reader.duty);
    let file = File::open(&reader.file).with_context(what)?;
    let len = file.metadata().with_context(what)?.len();
    ensure!(len > 0, "{} is empty", reader.file.display());
    let mut block = vec![0; BLOCK];
    let mapped = reader.mapped.then(|| Mapped::new(&file, usize::try_from(len).unwrap_or(usize::MAX)));
    let mapped = mapped.transpose().with_context(what)?;
    let (mut offset, mut total) = (0, 0);
    let share = PERIOD.mul_f64(reader.duty);
    while !stop.load(Ordering::Relaxed) {
        let (began, used) = (Instant::now(), cpu_time());
        while cpu_time() - used < share && began.elapsed() < PERIOD {
            let n = match &mapped {
                Some(mapped) => mapped.touch(usize::try_from(offset).unwrap_or(0), BLOCK),
                None => file.read_at(&mut block, offset).with_context(what)? as u64,
            };
            total += n;
            offset = if n == 0 { 0 } else { (offset + n) % len };
        }
        if mapped.is_some() {
            flush_translations().context("releasing memory")?;
        }
        thread::sleep(PERIOD.saturating_sub(began.elapsed()));
    }
    Ok(total)
}

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_runs_until_stopped_and_rejects_bad_input() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, vec![7; 3 * BLOCK + 5]).unwrap();
        let stop = AtomicBool::new(false);
        let reader = Reader { file: file.clone(), duty: 0.5, mapped: false };
        for reader in [reader.clone(), Reader { mapped: true, ..reader.clone() }] {
            let total = thread::scope(|scope| {
                let reading = scope.spawn(|| read(&reader, &stop));
                thread::sleep(PERIOD / 2);
                stop.store(true, Ordering::Relaxed);
                reading.join().unwrap()
            });
            assert!(total.unwrap() > 0);
            stop.store(false, Ordering::Relaxed);
        }
        assert!(read(&Reader { duty: 2.0, ..reader.clone() }, &stop).is_err());
        std::fs::write(&file, []).unwrap();
        assert!(read(&reader, &stop).is_err());
    }
}
