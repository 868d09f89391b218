//! Regions that are mapped into this process.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use rustix::fs::{FileType, FlockOperation, OFlags};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

use super::group::Group;
use super::persist::{self, Instruction};
use super::{At, Durability, Medium, Persistence, durability, exclusive, fault};
use crate::error::{Error, Result};
use crate::format::LINE;

const PAGE: u64 = 4096;
/// Of `mbind(2)`; the libc crate does not have it.
const MPOL_MF_MOVE: u32 = 2;

/// One region's file or device, and the node its memory shall be on.
#[derive(Debug)]
pub struct RegionFile {
    /// Opened for reading and writing; or for reading only, which makes the region one that is only
    /// looked at, together with others who look.
    pub file: File,
    /// Binds the memory to this node; only for memory that is allocated page by page (tmpfs,
    /// hugetlbfs, memfd).
    pub bind: Option<u32>,
}

#[derive(Debug)]
pub struct Mapped {
    regions: Vec<Region>,
}

/// Whether a region's file is open for reading only.
fn only_read(file: &File) -> io::Result<bool> {
    Ok(rustix::fs::fcntl_getfl(file)? & OFlags::RWMODE == OFlags::RDONLY)
}

#[derive(Debug)]
struct Region {
    base: NonNull<u8>,
    len: usize,
    persistence: Persistence,
    durability: Durability,
    synced: Group,
    only_read: bool,
    /// Why there is no such region.
    missing: Option<String>,
    /// Keep the locks.
    _held: (File, Option<OwnedFd>),
}

// SAFETY: the mapping lives as long as the value, and all access goes through raw copies and
// atomics; the file system's locks keep one thread from copying what another one changes.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Mapped {
    /// Maps the regions in the given order. They are locked as long as they are mapped, a device by
    /// all of its nodes.
    pub fn new(files: &[RegionFile]) -> Result<Self> {
        Self::of(files.iter().map(Region::new).collect::<Result<_>>()?)
    }

    /// The same, to look at what is there: a region without a file, for a reason, has so many
    /// bytes, and each access to it is EIO.
    pub fn lacking(files: &[(std::result::Result<RegionFile, String>, u64)]) -> Result<Self> {
        let region = |(file, len): &(std::result::Result<RegionFile, String>, u64)| {
            let why = match file {
                Ok(file) => return Region::new(file),
                Err(why) => why.clone(),
            };
            let file = rustix::fs::memfd_create("missing", rustix::fs::MemfdFlags::CLOEXEC).map_err(io::Error::from)?;
            let file = File::from(file);
            file.set_len(*len)?;
            let mut region = Region::map(&RegionFile { file, bind: None }, None)?;
            region.missing = Some(why);
            Ok(region)
        };
        Self::of(files.iter().map(region).collect::<Result<_>>()?)
    }

    fn of(regions: Vec<Region>) -> Result<Self> {
        for (index, region) in regions.iter().enumerate() {
            fault::watch(region.base.as_ptr(), region.len, index);
        }
        Ok(Self { regions })
    }

    /// Takes a region for missing: what is there is not of the volume.
    pub(crate) fn give_up(&mut self, region: usize, why: String) {
        if let Some(region) = self.regions.get_mut(region) {
            region.missing = Some(why);
        }
    }

    /// Why regions are missing.
    pub fn missing(&self) -> impl Iterator<Item = &str> {
        self.regions.iter().filter_map(|region| region.missing.as_deref())
    }

    /// How stores to a region become durable.
    pub fn persistence(&self, region: usize) -> Option<Persistence> {
        self.regions.get(region).map(|r| r.persistence)
    }

    /// What becomes of a region when the machine loses power.
    pub fn durability(&self, region: usize) -> Option<Durability> {
        self.regions.get(region).map(|r| r.durability)
    }

    /// Writes lines back also where the memory is lost with the machine: for measuring what it
    /// costs.
    pub fn assume_persistent(&mut self) {
        if let Some(instruction) = Instruction::detect() {
            for region in &mut self.regions {
                if region.persistence == Persistence::Volatile {
                    region.persistence = Persistence::Lines(instruction);
                }
            }
        }
    }

    fn place(&self, at: At, len: usize) -> Result<(&Region, *mut u8)> {
        let region = self.regions.get(at.region).ok_or_else(|| at.outside())?;
        let offset = at.within(len, region.len as u64)?;
        if region.missing.is_some() {
            return Err(io::Error::from_raw_os_error(libc::EIO).into());
        }
        // SAFETY: offset ≤ len of the mapping, checked above.
        Ok((region, unsafe { region.base.as_ptr().add(offset) }))
    }

    fn place_to_change(&self, at: At, len: usize) -> Result<(&Region, *mut u8)> {
        let (region, place) = self.place(at, len)?;
        if region.only_read { Err(Error::ReadOnly) } else { Ok((region, place)) }
    }

    /// Flushes what [`Region::store_data`] did not store past the caches.
    fn flush_rest(&self, at: At, len: usize) -> Result<()> {
        let (region, _) = self.place(at, len)?;
        if region.streams(at.offset as usize, len) { Ok(()) } else { self.flush(at, len as u64) }
    }

    fn word(&self, at: At) -> Result<&AtomicU64> {
        let (_, place) = self.place(at, 8)?;
        if !at.offset.is_multiple_of(8) {
            return Err(Error::Invalid("a word is not aligned"));
        }
        // SAFETY: eight bytes inside the mapping, aligned (the mapping is page-aligned), and words
        // are only ever accessed as atomics while a volume is mounted.
        Ok(unsafe { AtomicU64::from_ptr(place.cast()) })
    }
}

impl Region {
    /// Whether data of `len` bytes goes past the caches: whole lines, where lines would have to be
    /// written back.
    fn streams(&self, offset: usize, len: usize) -> bool {
        let lines = matches!(self.persistence, Persistence::Lines(_));
        cfg!(target_arch = "x86_64") && lines && offset.is_multiple_of(LINE) && len.is_multiple_of(LINE)
    }

    /// Copies data into the mapping, past the caches if it [`Region::streams`]. False: its memory
    /// has failed.
    ///
    /// # Safety
    /// Both places have `len` bytes and do not overlap, and `to` is in this mapping.
    unsafe fn store_data(&self, from: *const u8, to: *mut u8, len: usize) -> bool {
        #[cfg(target_arch = "x86_64")]
        if self.streams(to.addr() - self.base.addr().get(), len) {
            // SAFETY: the caller's promise; a mapping begins at a line.
            return unsafe { fault::stream(from, to, len) };
        }
        // SAFETY: the caller's promise.
        unsafe { fault::copy(from, to, len) }
    }

    fn new(region: &RegionFile) -> Result<Self> {
        let operation = if only_read(&region.file)? {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        let held = exclusive::lock(&region.file, operation)?;
        Ok(Self::map(region, held)?)
    }

    fn map(region: &RegionFile, held: Option<OwnedFd>) -> io::Result<Self> {
        let fd = region.file.as_fd();
        let stat = rustix::fs::fstat(fd)?;
        let device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
        let len = if device { device_size(stat.st_rdev)? } else { stat.st_size as u64 };
        let len = usize::try_from(len / PAGE * PAGE).map_err(io::Error::other)?;
        if len == 0 {
            return Err(io::Error::other("the region is empty"));
        }
        let only_read = only_read(&region.file)?;
        let map = |flags| {
            let access = if only_read { ProtFlags::READ } else { ProtFlags::READ | ProtFlags::WRITE };
            // SAFETY: a new mapping at an address of the kernel's choice.
            unsafe { rustix::mm::mmap(ptr::null_mut(), len, access, flags, fd, 0) }
        };
        let sync = MapFlags::SHARED_VALIDATE | MapFlags::from_bits_retain(libc::MAP_SYNC as u32);
        let (base, direct) = match map(sync) {
            Ok(base) => (base, true),
            Err(_) => (map(MapFlags::SHARED)?, device),
        };
        let sys = Path::new(durability::SYS);
        let durability =
            if device { durability::of_dax(sys, stat.st_rdev) } else { durability::of_file(sys, &region.file) };
        let (persistence, durability) = primitive(durability, direct.then(Instruction::detect), device);
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap returned no address"))?;
        let held = (region.file.try_clone()?, held);
        let (synced, missing) = (Group::default(), None);
        let mapped = Self { base, len, persistence, durability, only_read, missing, synced, _held: held };
        if let Some(node) = region.bind {
            mapped.bind(node)?;
        }
        Ok(mapped)
    }

    fn bind(&self, node: u32) -> io::Result<()> {
        let mut mask = [0_u64; 16];
        let Some(word) = mask.get_mut(node as usize / 64) else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        };
        *word = 1 << (node % 64);
        // SAFETY: the range is this value's own mapping, and the mask is as long as it says.
        let done = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.len,
                libc::MPOL_BIND,
                mask.as_ptr(),
                mask.len() * 64,
                MPOL_MF_MOVE,
            )
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        fault::forget(self.base.as_ptr());
        // SAFETY: the mapping is this value's own, and nothing borrows from it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// How stores become durable, and whether they do. `instruction` is that of this processor for
/// memory that is mapped directly.
fn primitive(
    durability: Durability,
    instruction: Option<Option<Instruction>>,
    device: bool,
) -> (Persistence, Durability) {
    match instruction.flatten() {
        _ if durability == Durability::Volatile => (Persistence::Volatile, durability),
        Some(instruction) => (Persistence::Lines(instruction), durability),
        // No instruction writes its lines back, and it has no msync: its last stores can be lost.
        None if device => (Persistence::Volatile, Durability::Volatile),
        None => (Persistence::Msync, durability),
    }
}

/// Size of a DAX device, which `fstat` does not say.
fn device_size(rdev: u64) -> io::Result<u64> {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let text = std::fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/size"))?;
    text.trim().parse().map_err(io::Error::other)
}

/// Memory that has failed is EIO.
fn worked(done: bool) -> Result<()> {
    if done { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EIO).into()) }
}

impl Medium for Mapped {
    fn regions(&self) -> usize {
        self.regions.len()
    }

    fn len(&self, region: usize) -> u64 {
        self.regions.get(region).map_or(0, |r| r.len as u64)
    }

    fn is_missing(&self, region: usize) -> bool {
        self.regions.get(region).is_some_and(|region| region.missing.is_some())
    }

    fn read(&self, at: At, out: &mut [u8]) -> Result<()> {
        let (_, place) = self.place(at, out.len())?;
        // SAFETY: `place` has `out.len()` bytes, and `out` is no part of the mapping.
        worked(unsafe { fault::copy(place, out.as_mut_ptr(), out.len()) })
    }

    fn write(&self, at: At, data: &[u8]) -> Result<()> {
        let (_, place) = self.place_to_change(at, data.len())?;
        // SAFETY: `place` has `data.len()` bytes, and `data` is no part of the mapping.
        worked(unsafe { fault::copy(data.as_ptr(), place, data.len()) })
    }

    fn write_data(&self, at: At, data: &[u8]) -> Result<()> {
        let (region, place) = self.place_to_change(at, data.len())?;
        // SAFETY: `place` has `data.len()` bytes, and `data` is no part of the mapping.
        worked(unsafe { region.store_data(data.as_ptr(), place, data.len()) })?;
        self.flush_rest(at, data.len())
    }

    fn copy_data(&self, from: At, to: At, len: usize) -> Result<()> {
        self.place(from, len)?;
        self.place_to_change(to, len)?;
        if from.region == to.region && from.offset.abs_diff(to.offset) < len as u64 {
            return Err(Error::Invalid("a copy onto itself"));
        }
        // By way of a buffer: each half knows which memory has failed.
        let mut buffer = [0; PAGE as usize];
        for done in (0..len).step_by(PAGE as usize) {
            let part = buffer.get_mut(..(PAGE as usize).min(len - done)).unwrap_or_default();
            self.read(from.plus(done as u64), part)?;
            self.write_data(to.plus(done as u64), part)?;
        }
        Ok(())
    }

    fn load_u64(&self, at: At) -> Result<u64> {
        let place = self.word(at)?.as_ptr();
        // SAFETY: it is aligned and an atomic, as `word` says.
        let (word, done) = unsafe { fault::load(place) };
        worked(done).map(|()| u64::from_le(word))
    }

    fn store_u64(&self, at: At, word: u64) -> Result<()> {
        self.place_to_change(at, 8)?;
        let place = self.word(at)?.as_ptr();
        // SAFETY: it is aligned and an atomic, as `word` says.
        worked(unsafe { fault::store(place, word.to_le()) })
    }

    fn flush(&self, at: At, len: u64) -> Result<()> {
        let (region, place) = self.place(at, usize::try_from(len).unwrap_or(usize::MAX))?;
        match region.persistence {
            Persistence::Volatile => {}
            Persistence::Msync => region.synced.flush(),
            Persistence::Lines(instruction) => {
                let lead = at.offset as usize % LINE;
                let lines = (len as usize + lead).div_ceil(LINE);
                // SAFETY: each line begins inside the mapping (which begins at a line), and the
                // processor has the instruction: `detect` said so.
                worked(lines == 0 || unsafe { fault::write_back(instruction, place.sub(lead), lines) })?;
            }
        }
        Ok(())
    }

    fn fence(&self) -> Result<()> {
        persist::store_fence();
        for region in &self.regions {
            if region.persistence != Persistence::Msync {
                continue;
            }
            region.synced.fence(|| {
                // SAFETY: the range is this value's own mapping.
                let done = unsafe { rustix::mm::msync(region.base.as_ptr().cast(), region.len, MsyncFlags::SYNC) };
                // EIO for the program, whatever the errno: ENOSPC would tell it of a full volume.
                done.map_err(|error| io::Error::other(format!("msync of a region: {error}")))
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Device DAX has no msync. Where no instruction was known, the first commit failed with
    /// EINVAL.
    #[test]
    fn device_dax_never_takes_msync() {
        use Durability::{Durable, Unknown, Volatile};
        let lines = Persistence::Lines(Instruction::Clwb);
        let clwb = Some(Some(Instruction::Clwb));
        assert_eq!(primitive(Durable, clwb, true), (lines, Durable));
        assert_eq!(primitive(Unknown, clwb, true), (lines, Unknown), "as if it were durable");
        assert_eq!(primitive(Volatile, clwb, true), (Persistence::Volatile, Volatile));
        assert_eq!(primitive(Durable, Some(None), true), (Persistence::Volatile, Volatile));
        assert_eq!(primitive(Durable, Some(None), false), (Persistence::Msync, Durable), "a file on DAX has one");
        assert_eq!(primitive(Unknown, None, false), (Persistence::Msync, Unknown));
    }
}
