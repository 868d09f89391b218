//! The extents of a file, as `FS_IOC_FIEMAP` lists them (`linux/fiemap.h`).

use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::AsRawFd;

use rustix::ioctl::opcode;

/// A run of file bytes that lie one after the other on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub offset: u64,
    /// Offset on the file system's device.
    pub physical: u64,
    pub len: u64,
    /// Allocated but never written: reads as zeroes.
    pub unwritten: bool,
    /// Other files have the same blocks (reflink).
    pub shared: bool,
    /// The file system does not say where it is, or does not store it as it is (compressed,
    /// inline).
    pub unknown: bool,
}

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Raw {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

const BATCH: usize = 64;

/// `struct fiemap` with its extents.
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [Raw; BATCH],
}

/// `FS_IOC_FIEMAP`: the size in it is that of the structure without extents.
const FIEMAP: rustix::ioctl::Opcode = opcode::from_components(
    rustix::ioctl::Direction::ReadWrite,
    b'f',
    11,
    size_of::<Fiemap>() - BATCH * size_of::<Raw>(),
);

const LAST: u32 = 0x1;
const UNWRITTEN: u32 = 0x800;
const SHARED: u32 = 0x2000;
/// `UNKNOWN`, `DELALLOC`, `ENCODED`, `DATA_ENCRYPTED`, `NOT_ALIGNED`, `DATA_INLINE`, `DATA_TAIL`.
const ELSEWHERE: u32 = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400;

/// Calls `each` with the extents in a range of the file, cut at its ends, in order.
pub fn walk(file: &File, start: u64, len: u64, each: &mut dyn FnMut(Extent)) -> io::Result<()> {
    let end = start.saturating_add(len);
    let mut at = start;
    while at < end {
        let empty = Raw { logical: 0, physical: 0, length: 0, reserved64: [0; 2], flags: 0, reserved: [0; 3] };
        let mut map = Fiemap {
            start: at,
            length: end - at,
            flags: 0,
            mapped_extents: 0,
            extent_count: BATCH as u32,
            reserved: 0,
            extents: [empty; BATCH],
        };
        // SAFETY: the kernel reads and writes the structure, with room for as many extents as it
        // says.
        if unsafe { libc::ioctl(file.as_raw_fd(), FIEMAP as _, &raw mut map) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let found = map.extents.iter().take(map.mapped_extents as usize);
        let Some(last) = found.clone().next_back() else { return Ok(()) };
        let next = last.logical.saturating_add(last.length);
        for raw in found {
            let offset = raw.logical.max(at);
            let stop = raw.logical.saturating_add(raw.length).min(end);
            if offset < stop {
                each(Extent {
                    offset,
                    physical: raw.physical.saturating_add(offset - raw.logical),
                    len: stop - offset,
                    unwritten: raw.flags & UNWRITTEN != 0,
                    shared: raw.flags & SHARED != 0,
                    unknown: raw.flags & ELSEWHERE != 0,
                });
            }
        }
        if last.flags & LAST != 0 || next <= at {
            return Ok(());
        }
        at = next;
    }
    Ok(())
}

/// The extents in a range of the file, cut at its ends.
pub fn extents(file: &File, start: u64, len: u64) -> io::Result<Vec<Extent>> {
    let mut found = Vec::new();
    walk(file, start, len, &mut |extent| found.push(extent))?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_the_kernels() {
        assert_eq!((size_of::<Raw>(), FIEMAP as u64), (56, 0xc020_660b));
    }
}
