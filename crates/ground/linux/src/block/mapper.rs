//! Reads the table of a device-mapper device by ioctl (`linux/dm-ioctl.h`): what `dmsetup table`
//! prints.

use std::fs::File;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::AsRawFd;

use rustix::ioctl::opcode;

/// One range of a device-mapper device. Units: sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub start: u64,
    pub end: u64,
    /// Device and offset under a `linear` target; `None` for any other type.
    pub linear: Option<((u32, u32), u64)>,
}

const CONTROL: &str = "/dev/mapper/control";

/// `struct dm_ioctl`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    version: [u32; 3],
    data_size: u32,
    data_start: u32,
    target_count: u32,
    open_count: i32,
    flags: u32,
    event_nr: u32,
    padding: u32,
    dev: u64,
    name: [u8; 128],
    uuid: [u8; 129],
    data: [u8; 7],
}

/// `struct dm_target_spec`; its parameters follow, as a string that ends with a zero byte.
#[repr(C)]
struct Spec {
    sector_start: u64,
    length: u64,
    status: i32,
    /// Offset of the next one from the start of the first.
    next: u32,
    target_type: [u8; 16],
}

/// `DM_TABLE_STATUS`, command 12 of ioctl type 0xfd.
const TABLE_STATUS: rustix::ioctl::Opcode = opcode::read_write::<Header>(0xfd, 12);
/// `DM_STATUS_TABLE_FLAG`: the parameters of the table, not its state.
const STATUS_TABLE: u32 = 1 << 4;
/// `DM_BUFFER_FULL_FLAG`: not all targets fitted.
const BUFFER_FULL: u32 = 1 << 8;

/// The first buffer: some hundred targets.
const BUFFER: usize = 16 << 10;
/// The last buffer: a table of ten thousand targets; larger ones are refused.
const LARGEST: usize = 1 << 20;

pub(super) fn table(device: (u32, u32)) -> io::Result<Vec<Target>> {
    let control = File::options().read(true).write(true).open(CONTROL)?;
    let mut size = BUFFER;
    loop {
        // As words, so that the structures in it are aligned.
        let mut buffer = vec![0_u64; size / size_of::<u64>()];
        let (flags, count, data) = ask(&control, device, &mut buffer)?;
        if flags & BUFFER_FULL == 0 {
            return parse(data, count)
                .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "odd device-mapper table"));
        }
        if size >= LARGEST {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "device-mapper table with too many targets"));
        }
        size *= 4;
    }
}

/// Has the kernel fill the buffer. Returns the flags, the number of targets and their data.
fn ask<'a>(control: &File, device: (u32, u32), buffer: &'a mut [u64]) -> io::Result<(u32, u32, &'a [u8])> {
    let size = size_of_val(buffer);
    let header = Header {
        version: [4, 0, 0],
        data_size: u32::try_from(size).map_err(io::Error::other)?,
        data_start: size_of::<Header>() as u32,
        target_count: 0,
        open_count: 0,
        flags: STATUS_TABLE,
        event_nr: 0,
        padding: 0,
        // `huge_encode_dev`, linux/kdev_t.h, which is glibc's for numbers this small.
        dev: rustix::fs::makedev(device.0, device.1),
        name: [0; 128],
        uuid: [0; 129],
        data: [0; 7],
    };
    let at = buffer.as_mut_ptr();
    // SAFETY: the buffer is aligned for the header and larger than it. The kernel reads the header
    // and writes at most `data_size` bytes, which is the size of the buffer.
    let (rc, header) = unsafe {
        at.cast::<Header>().write(header);
        let rc = libc::ioctl(control.as_raw_fd(), TABLE_STATUS as _, at);
        (rc, at.cast::<Header>().read())
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the bytes of the buffer, all of which are initialised.
    let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>().cast_const(), size) };
    let data = bytes.get(header.data_start as usize..).unwrap_or_default();
    Ok((header.flags, header.target_count, data))
}

/// The targets in the data area. `None` if it is not as documented.
fn parse(data: &[u8], count: u32) -> Option<Vec<Target>> {
    let mut targets = Vec::new();
    let mut at = 0;
    for _ in 0..count {
        let spec = data.get(at..)?;
        let word = |offset: usize| Some(u64::from_ne_bytes(spec.get(offset..offset + 8)?.try_into().ok()?));
        let start = word(offset_of!(Spec, sector_start))?;
        let end = start.checked_add(word(offset_of!(Spec, length))?)?;
        let next = u32::from_ne_bytes(spec.get(offset_of!(Spec, next)..)?.get(..4)?.try_into().ok()?);
        let kind = text(spec.get(offset_of!(Spec, target_type)..size_of::<Spec>())?)?;
        let parameters = text(spec.get(size_of::<Spec>()..)?)?;
        targets.push(Target { start, end, linear: (kind == "linear").then(|| linear(parameters)).flatten() });
        at = usize::try_from(next).ok()?;
    }
    Some(targets)
}

/// The string before the first zero byte.
fn text(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    std::str::from_utf8(bytes.get(..end)?).ok()
}

/// The parameters of a linear target, as in `259:1 2048`.
fn linear(parameters: &str) -> Option<((u32, u32), u64)> {
    let (device, offset) = parameters.trim().split_once(' ')?;
    let (major, minor) = device.split_once(':')?;
    Some(((major.parse().ok()?, minor.parse().ok()?), offset.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_the_kernels() {
        // `_IOWR(0xfd, 12, struct dm_ioctl)` as strace shows it.
        assert_eq!((size_of::<Header>(), size_of::<Spec>(), TABLE_STATUS as u64), (312, 40, 0xc138_fd0c));
    }

    /// A data area as the kernel fills it (`retrieve_status`, drivers/md/dm-ioctl.c).
    fn area(targets: &[(u64, u64, &str, &str)]) -> Vec<u8> {
        let mut data = Vec::new();
        for (start, len, kind, parameters) in targets {
            let size = (size_of::<Spec>() + parameters.len() + 1).next_multiple_of(8);
            let next = (data.len() + size) as u32;
            let mut name = [0; 16];
            name[..kind.len()].copy_from_slice(kind.as_bytes());
            let mut one = [&start.to_ne_bytes()[..], &len.to_ne_bytes(), &[0; 4], &next.to_ne_bytes(), &name].concat();
            one.extend(parameters.as_bytes());
            one.resize(size, 0);
            data.extend(one);
        }
        data
    }

    #[test]
    fn tables_are_read() {
        let data = area(&[
            (0, 8, "linear", "259:0 2048"),
            (8, 16, "striped", "2 64 259:0 0 259:1 0"),
            (24, 8, "linear", "259:1 0"),
        ]);
        let target = |start, end, linear| Target { start, end, linear };
        let expected =
            vec![target(0, 8, Some(((259, 0), 2048))), target(8, 24, None), target(24, 32, Some(((259, 1), 0)))];
        assert_eq!(parse(&data, 3), Some(expected));
        assert_eq!(parse(&[], 0), Some(vec![]));
    }

    #[test]
    fn odd_tables_are_refused() {
        let data = area(&[(0, 8, "linear", "259:0 2048")]);
        assert_eq!(parse(&data, 2), None);
        assert_eq!(parse(&data[..30], 1), None);
        assert_eq!(parse(&area(&[(u64::MAX, 8, "linear", "259:0 0")]), 1), None);
    }
}
