//! The mappings of a process that hold memory of its own.
//!
//! Its own are anonymous pages, which any private mapping may have, and pages of shared memory:
//! `memfd_create`, System V segments, `MAP_SHARED | MAP_ANONYMOUS`, `shm_open`, and huge pages
//! (hugetlb). Pages of files belong to all who read the file.
//!
//! The file system behind a mapping says whether it is shared memory, and `/proc/PID/maps` has its
//! device number. The kernel keeps shared memory without a name on devices of its own, whose
//! numbers a descriptor of ours shows. Named shared memory is on the tmpfs at `/dev/shm` and on
//! mounts of hugetlbfs, which the process's own `mountinfo` lists.
//!
//! **Limits.** A file on another tmpfs counts as a file. Of a process with some million mappings
//! the first [`MOST_MAPS`] bytes of the table count, and of its mounts the first
//! [`MOST_MOUNTINFO`].

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;
use std::path::Path;

use rustix::fs::{MemfdFlags, fstat, major, memfd_create, minor};
use rustix::io::Errno;
use topology::FileId;

use crate::mounts::{self, Mount};

/// `MFD_HUGE_SHIFT` (include/uapi/linux/memfd.h): the size of huge pages as a power of two, in the
/// upper bits.
const HUGE_SHIFT: u32 = 26;

/// Any user can make a hundred thousand mounts with long names, and as many mappings as
/// `vm.max_map_count` allows: 65,530 take 5 MiB.
const MOST_MOUNTINFO: u64 = 1 << 20;
const MOST_MAPS: u64 = 64 << 20;

/// A mapping, or the adjoining parts of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    pub range: Range<u64>,
    /// Pages that are not anonymous are shared memory.
    pub shared_memory: bool,
    /// The process may read it. The rest is mostly reserved address space without pages.
    pub readable: bool,
}

/// The regions of a process by rising address, and the devices of shared memory.
pub fn read(process: &Path) -> io::Result<Vec<Region>> {
    let mut devices = of_kernel()?;
    let mut mounts = Vec::new();
    File::open(process.join("mountinfo"))?.take(MOST_MOUNTINFO).read_to_end(&mut mounts)?;
    devices.extend(mounted(&mounts));
    parse(BufReader::new(File::open(process.join("maps"))?.take(MOST_MAPS)), &devices)
}

/// Devices of shared memory without a name, as [`FileId::dev`].
fn of_kernel() -> io::Result<Vec<u32>> {
    let mut flags = vec![MemfdFlags::empty()];
    // A kernel without huge pages lacks the directory.
    for entry in fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let kib = name.to_str().and_then(|n| n.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok());
        if let Some(power) = kib.and_then(|kib| kib.checked_mul(1024)?.checked_ilog2()) {
            flags.push(MemfdFlags::HUGETLB | MemfdFlags::from_bits_retain(power << HUGE_SHIFT));
        }
    }
    let mut devices = Vec::new();
    for flags in flags {
        match memfd_create("homenode-device", flags | MemfdFlags::CLOEXEC) {
            Ok(file) => {
                let device = fstat(&file)?.st_dev;
                devices.push(FileId::device(major(device), minor(device)));
            }
            // This size has no memory files.
            Err(Errno::NODEV | Errno::INVAL | Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(devices)
}

/// Devices of named shared memory in a table of mounts.
fn mounted(table: &[u8]) -> Vec<u32> {
    let shared = |mount: &Mount| {
        mount.fs_type == "hugetlbfs" || mount.fs_type == "tmpfs" && mount.point == Path::new("/dev/shm")
    };
    mounts::list(table).filter(shared).map(|mount| mount.dev).collect()
}

/// The mappings with memory of the process, from lines such as
/// `7f3c00000000-7f3c00200000 rw-s 00000000 00:01 1026 /memfd:x (deleted)`.
fn parse(maps: impl BufRead, devices: &[u32]) -> io::Result<Vec<Region>> {
    let mut regions: Vec<Region> = Vec::new();
    for line in maps.split(b'\n') {
        let Some((region, private)) = region(&String::from_utf8_lossy(&line?), devices) else { continue };
        if !private && !region.shared_memory {
            continue;
        }
        match regions.last_mut() {
            // Programs split a mapping in many by protection.
            Some(last)
                if last.range.end == region.range.start
                    && (last.shared_memory, last.readable) == (region.shared_memory, region.readable) =>
            {
                last.range.end = region.range.end;
            }
            _ => regions.push(region),
        }
    }
    Ok(regions)
}

/// The region of a line, and whether the mapping is private.
fn region(line: &str, devices: &[u32]) -> Option<(Region, bool)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let range = hex(start)?..hex(end)?;
    let mode = fields.next()?.as_bytes();
    let (major, minor) = fields.nth(1)?.split_once(':')?; // after the offset
    let device = FileId::device(u32::try_from(hex(major)?).ok()?, u32::try_from(hex(minor)?).ok()?);
    let shared_memory = devices.contains(&device);
    // The kernel's half of the address space (`[vsyscall]`) has no pagemap.
    let valid = range.start < range.end && range.end <= 1 << 63;
    valid
        .then_some((Region { range, shared_memory, readable: mode.first() == Some(&b'r') }, mode.get(3) == Some(&b'p')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_mapped_shared_are_left_out() {
        let maps = b"\
1000-3000 r-xp 00000000 08:01 77 /usr/bin/x\n\
3000-4000 rw-p 00000000 00:00 0 [heap]\n\
4000-5000 rw-s 00000000 08:01 78 /var/db\n\
5000-6000 rw-s 00000000 00:01 1026 /memfd:x (deleted)\n\
6000-8000 ---p 00000000 00:00 0 \n\
8000-9000 rw-s 00000000 00:1e 5 /dev/shm/a b\n\
9000-a000 rw-s 00000000 00:05 6 /dev/nvidia0\n";
        let regions: Vec<_> = parse(&maps[..], &[1, 30])
            .unwrap()
            .into_iter()
            .map(|r| (r.range.start, r.range.end, r.shared_memory, r.readable))
            .collect();
        assert_eq!(
            regions,
            [
                (0x1000, 0x4000, false, true), // adjoining
                (0x5000, 0x6000, true, true),
                (0x6000, 0x8000, false, false),
                (0x8000, 0x9000, true, true),
            ]
        );
    }

    #[test]
    fn lines_of_another_form_are_left_out() {
        for line in ["", "1000", "1000-x rw-p 0 0:0", "2000-1000 rw-p 0 0:0", "1000-2000 rw-p", "1000-2000 rw-p 0 zz"] {
            assert_eq!(parse(line.as_bytes(), &[1]).unwrap(), [], "{line}");
        }
    }

    #[test]
    fn named_shared_memory_is_found_by_its_mounts() {
        let mounts = b"\
23 28 0:21 / /dev/shm rw,nosuid - tmpfs tmpfs rw\n\
24 28 0:22 / /tmp rw - tmpfs tmpfs rw\n\
25 28 0:23 / /dev/hugepages rw - hugetlbfs hugetlbfs rw,pagesize=2M\n\
26 28 8:1 / /dev/shm rw - ext4 /dev/sda1 rw\n";
        assert_eq!(mounted(mounts), [21, 23]);
    }

    #[test]
    fn shared_memory_of_this_process_is_found() {
        let size = rustix::param::page_size();
        // SAFETY: a new mapping at an address that the kernel chooses; nothing uses it.
        let at = unsafe {
            let (protection, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), size, protection, flags).unwrap()
        };
        let at = at.addr() as u64;
        let regions = read(Path::new("/proc/self")).unwrap();
        let of = |address: u64| regions.iter().find(|r| r.range.contains(&address));
        assert!(of(at).is_some_and(|r| r.shared_memory && r.readable));
        let own = std::ptr::from_ref(&size).addr() as u64;
        assert!(of(own).is_some_and(|r| !r.shared_memory));
    }
}
