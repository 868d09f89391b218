//! An obstacle for which a move must not wait: a page that somebody holds.

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use act::dax::PINNED;
use testing::{Case, cases, is_long};

use super::load::Mapping;
use super::volume::{MIB, check, create, directory, move_to, nodes, on_volume};

pub const CASES: &[Case] = cases![[on_volume(), is_long()] a_pinned_page_is_not_waited_for];

/// A page in a pipe (`vmsplice`) is held until somebody reads the pipe. The kernel waits for it in
/// two ways: so that a signal ends the wait where the file's inode number is below the donor's,
/// else spinning. Files at both ends of the volume meet both.
fn a_pinned_page_is_not_waited_for() {
    let dirs: Vec<_> = (0..8).map(|_| directory()).collect();
    let mut files: Vec<(u64, PathBuf)> = dirs
        .iter()
        .map(|dir| {
            let path = dir.path().join("file");
            (create(&path, 13, MIB).metadata().unwrap().ino(), path)
        })
        .collect();
    files.sort();
    for (file, to) in [(0, 1), (7, 0), (7, 1), (0, 0)] {
        let path = &files[file].1;
        assert_eq!(move_to(path, 1 - to).failed(), 0);
        let file = File::open(path).unwrap();
        let mapping = Mapping::new(&file, false);
        let (out, into) = rustix::pipe::pipe().unwrap();
        let page = libc::iovec { iov_base: mapping.at.cast::<c_void>(), iov_len: 4096 };
        // SAFETY: the first page of a mapping that outlives the pipe.
        assert_eq!(unsafe { libc::vmsplice(into.as_raw_fd(), &raw const page, 1, 0) }, 4096);
        let copied = move_to(path, to);
        assert_eq!((copied.moved, copied.left.get(PINNED)), (0, Some(&MIB)), "{copied:?}");
        assert_eq!(nodes(&file).get(&to), None);
        drop((out, into));
        let copied = move_to(path, to);
        assert_eq!((copied.moved, copied.failed()), (MIB, 0), "{copied:?}");
        check(&file, 13, 0, MIB);
    }
}
