//! XFS's requests for exchanging blocks between files: `fs/xfs/libxfs/xfs_fs.h`, also in
//! `<xfs/xfs_fs.h>`.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{null, null_mut};

use rustix::ioctl::{Opcode, opcode};

/// `struct xfs_commit_range`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Range {
    file1_fd: i32,
    pad: u32,
    file1_offset: u64,
    file2_offset: u64,
    length: u64,
    flags: u64,
    freshness: [u64; 6],
}

/// `struct xfs_fsop_handlereq`.
#[repr(C)]
struct HandleRequest {
    fd: u32,
    path: *const u8,
    oflags: u32,
    ihandle: *const u8,
    ihandlen: u32,
    ohandle: *mut u8,
    ohandlen: *mut u32,
}

/// `struct xfs_fsop_geom`, up to the fields that are used.
#[repr(C)]
#[derive(Clone, Copy)]
struct Geometry {
    blocksize: u32,
    rtextsize: u32,
    agblocks: u32,
    agcount: u32,
    to_version: [u32; 18],
    version: u32,
    flags: u32,
    rest: [u32; 40],
}

/// `struct fsxattr`, `linux/fs.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attributes {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}

const FD_TO_HANDLE: Opcode = opcode::read_write::<HandleRequest>(b'X', 106);
const OPEN_BY_HANDLE: Opcode = opcode::read_write::<HandleRequest>(b'X', 107);
const GEOMETRY: Opcode = opcode::read::<Geometry>(b'X', 126);
const START_COMMIT: Opcode = opcode::read::<Range>(b'X', 130);
const COMMIT_RANGE: Opcode = opcode::write::<Range>(b'X', 131);
const GET_ATTRIBUTES: Opcode = opcode::read::<Attributes>(b'X', 31);

/// `XFS_FSOP_GEOM_FLAGS_EXCHANGE_RANGE`.
const EXCHANGE_RANGE: u32 = 1 << 24;

/// `FS_XFLAG_REALTIME`, `FS_XFLAG_IMMUTABLE`, `FS_XFLAG_APPEND`, `linux/fs.h`.
pub(super) const REALTIME: u32 = 0x1;
pub(super) const IMMUTABLE: u32 = 0x8;
pub(super) const APPEND: u32 = 0x10;

/// Room for a handle: `struct xfs_handle` has 24 bytes.
const HANDLE: usize = 64;

fn ioctl<T>(file: &File, request: Opcode, argument: &mut T) -> io::Result<i32> {
    // SAFETY: each request above names the structure that the kernel reads or writes, and callers
    // pass that structure.
    match unsafe { libc::ioctl(file.as_raw_fd(), request as _, std::ptr::from_mut(argument)) } {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

/// Number of allocation groups, and whether blocks can be exchanged (`mkfs.xfs -i exchange=1`).
pub(super) fn geometry(file: &File) -> io::Result<(u32, bool)> {
    let mut geometry = Geometry {
        blocksize: 0,
        rtextsize: 0,
        agblocks: 0,
        agcount: 0,
        to_version: [0; 18],
        version: 0,
        flags: 0,
        rest: [0; 40],
    };
    ioctl(file, GEOMETRY, &mut geometry)?;
    Ok((geometry.agcount, geometry.flags & EXCHANGE_RANGE != 0))
}

pub(super) fn flags(file: &File) -> io::Result<u32> {
    let mut attributes = Attributes::default();
    ioctl(file, GET_ATTRIBUTES, &mut attributes)?;
    Ok(attributes.xflags)
}

/// Opens the same file for reading and writing through which no time of the file changes.
/// `directory` is one of the file system. Needs CAP_SYS_ADMIN.
pub(super) fn open_without_times(file: &File, directory: &File) -> io::Result<File> {
    let mut handle = [0_u8; HANDLE];
    let mut len = HANDLE as u32;
    let mut ask = HandleRequest {
        fd: file.as_raw_fd() as u32,
        path: null(),
        oflags: 0,
        ihandle: null(),
        ihandlen: 0,
        ohandle: handle.as_mut_ptr(),
        ohandlen: &raw mut len,
    };
    ioctl(directory, FD_TO_HANDLE, &mut ask)?;
    let mut open = HandleRequest {
        fd: 0,
        path: null(),
        oflags: libc::O_RDWR as u32,
        ihandle: handle.as_ptr(),
        ihandlen: len,
        ohandle: null_mut(),
        ohandlen: null_mut(),
    };
    let fd = ioctl(directory, OPEN_BY_HANDLE, &mut open)?;
    // SAFETY: the kernel has just made this descriptor for us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // The kernel ignores O_CLOEXEC here.
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    Ok(fd.into())
}

/// A look at a file's times, against which an exchange is checked.
pub(super) struct Started(Range);

/// Notes the file's times.
pub(super) fn start(file: &File) -> io::Result<Started> {
    let mut range = Range::default();
    ioctl(file, START_COMMIT, &mut range)?;
    Ok(Started(range))
}

/// Exchanges the blocks of a range of both files, unless `file` has changed since `started`: EBUSY.
pub(super) fn commit(file: &File, started: &Started, donor: &File, at: u64, len: u64) -> io::Result<()> {
    let mut range =
        Range { file1_fd: donor.as_raw_fd(), file1_offset: at, file2_offset: at, length: len, flags: 0, ..started.0 };
    ioctl(file, COMMIT_RANGE, &mut range).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::size_of;

    #[test]
    fn layouts_are_the_kernels() {
        let sizes = [size_of::<Range>(), size_of::<Geometry>(), size_of::<Attributes>()];
        assert_eq!(sizes, [88, 256, 28]);
        assert_eq!(
            [START_COMMIT, COMMIT_RANGE, GEOMETRY, GET_ATTRIBUTES].map(|o| o as u64),
            [0x8058_5882, 0x4058_5883, 0x8100_587e, 0x801c_581f]
        );
    }
}
