//! Obstacles for which a move must not wait: a page that somebody holds, and a process that cannot
//! be stopped.

use std::ffi::c_void;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use act::dax::{DaxMove, PINNED, UNSTOPPABLE};
use rustix::fs::inotify;
use topology::NodeId;

use super::load::{Group, Mapping};
use super::volume::{MIB, check, create, directory, finish, move_to, nodes};

/// A page in a pipe (`vmsplice`) is held until somebody reads the pipe. The kernel waits for it in
/// two ways: so that a signal ends the wait where the file's inode number is below the donor's,
/// else spinning. Files at both ends of the volume meet both.
pub fn pinned() {
    let dirs: Vec<_> = (0..8).map(|_| directory()).collect();
    let mut files: Vec<(u64, PathBuf)> = dirs
        .iter()
        .map(|dir| {
            let path = dir.path().join("file");
            (create(&path, 13, MIB).metadata().unwrap().ino(), path)
        })
        .collect();
    files.sort();
    for (path, to) in [(&files[0].1, 1), (&files[7].1, 1), (&files[7].1, 0), (&files[0].1, 0)] {
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

/// `FIFREEZE` and `FITHAW` (linux/fs.h).
const FREEZE: u32 = 0xc004_5877;
const THAW: u32 = 0xc004_5878;

/// A file system in which writers wait, deaf to signals and freezers, until this is dropped.
struct FrozenFs(File);

impl FrozenFs {
    fn new(dir: &Path) -> Self {
        let file = File::open(dir).unwrap();
        // SAFETY: no argument is read.
        assert_eq!(unsafe { libc::ioctl(file.as_raw_fd(), FREEZE as _, 0) }, 0, "{}", std::io::Error::last_os_error());
        Self(file)
    }
}

impl Drop for FrozenFs {
    fn drop(&mut self) {
        // SAFETY: no argument is read.
        unsafe { libc::ioctl(self.0.as_raw_fd(), THAW as _, 0) };
    }
}

/// A process that maps a file and, once it is told to, writes to another.
pub fn be_stuck(args: &[String]) {
    let file = File::options().read(true).write(true).open(&args[0]).unwrap();
    let mapping = Mapping::new(&file, true);
    mapping.write(0, mapping.read(0));
    let mut other = File::create(&args[1]).unwrap();
    println!("mapped");
    std::io::stdin().read_exact(&mut [0]).unwrap();
    other.write_all(b"waits").unwrap();
}

/// The group of a process that waits in the kernel does not freeze. Others in it would be stopped
/// for nothing again and again.
pub fn not_frozen() {
    let Some(disk) = std::env::var_os("HOMENODE_TEST_DIR") else {
        println!("skipped: there is no file system of ours to freeze");
        return;
    };
    let dir = directory();
    let path = dir.path().join("file");
    let file = create(&path, 14, 16 * MIB);
    let here = *nodes(&file).keys().next().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--role", "stuck"])
        .args([&path, &Path::new(&disk).join("stuck")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 7]).unwrap();
    let group = Group::new(&child);
    let frozen = FrozenFs::new(Path::new(&disk));
    child.stdin.take().unwrap().write_all(b"!").unwrap();
    let state = || fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    while !state().contains(") D ") {
        std::thread::yield_now();
    }
    let opens = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    // Equal events in a row are told once: with the writes between them, no two opens are.
    let what = inotify::WatchFlags::OPEN | inotify::WatchFlags::MODIFY;
    inotify::add_watch(&opens, group.0.join("cgroup.freeze"), what).unwrap();
    let mut moving = DaxMove::prepare(&file, NodeId(1 - here), true).unwrap();
    let copied = finish(&mut moving);
    drop(frozen);
    assert_eq!((copied.moved, copied.left.get(UNSTOPPABLE)), (0, Some(&(16 * MIB))), "{copied:?}");
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(&opens, &mut buffer);
    let events = std::iter::from_fn(|| events.next().ok().map(|event| event.events()));
    assert_eq!(events.filter(|event| event.contains(inotify::ReadFlags::OPEN)).count(), 3);
    assert!(child.wait().unwrap().success());
    let copied = finish(&mut DaxMove::prepare(&file, NodeId(1 - here), true).unwrap());
    assert_eq!((copied.moved, copied.failed()), (16 * MIB, 0), "{copied:?}");
}
