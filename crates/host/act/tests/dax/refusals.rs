//! Files that must not be moved, or cannot be.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use act::copying::Copying;
use act::dax::{DELETED, DaxMove, SHARED};
use testing::{Case, cases};
use topology::NodeId;

use super::volume::{MIB, check, create, directory, finish, nodes, on_volume};

pub const CASES: &[Case] = cases![[on_volume()]
    shared_blocks_stay,
    a_deleted_file_is_let_go,
    what_must_not_be_moved_is_refused,
];

fn why(file: &File, to: u32) -> &'static str {
    DaxMove::prepare(file, NodeId(to)).map(drop).expect_err("it was not refused").reason
}

fn what_must_not_be_moved_is_refused() {
    let dir = directory();
    let path = dir.path().join("file");
    let file = create(&path, 4, MIB);
    let before = nodes(&file);
    assert_eq!(why(&file, 7), "no_memory");
    for (flag, reason) in [("i", "immutable"), ("a", "append_only")] {
        let chattr = |sign: &str| {
            let done = Command::new("chattr").arg(format!("{sign}{flag}")).arg(&path).status().unwrap();
            assert!(done.success());
        };
        chattr("+");
        let found = why(&file, 0);
        chattr("-");
        assert_eq!(found, reason);
    }
    fs::set_permissions(&path, PermissionsExt::from_mode(0o4755)).unwrap();
    assert_eq!(why(&file, 0), "setuid");
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    // `struct vfs_cap_data`, revision 2, without any capability (linux/capability.h).
    let mut capability = [0_u8; 20];
    capability[3] = 2;
    rustix::fs::fsetxattr(&file, "security.capability", &capability, rustix::fs::XattrFlags::empty()).unwrap();
    assert_eq!(why(&file, 0), "capabilities");
    rustix::fs::fremovexattr(&file, "security.capability").unwrap();
    assert!(DaxMove::prepare(&file, NodeId(0)).is_ok());
    assert_eq!(nodes(&file), before);

    assert_eq!(why(&File::open("/dev/null").unwrap(), 0), "not_a_file");
    assert_eq!(why(&tempfile::tempfile_in("/run").unwrap(), 0), "not_dax");
    if Path::new("/mnt/pmem0").is_dir() {
        assert_eq!(why(&tempfile::tempfile_in("/mnt/pmem0").unwrap(), 0), "ext4");
    }
}

fn shared_blocks_stay() {
    let dir = directory();
    let file = create(&dir.path().join("file"), 5, 4 * MIB);
    let copy = File::create_new(dir.path().join("copy")).unwrap();
    let range = libc::file_clone_range {
        src_fd: file.as_raw_fd().into(),
        src_offset: 2 * MIB,
        src_length: MIB,
        dest_offset: 0,
    };
    // SAFETY: the kernel reads the structure.
    let done = unsafe { libc::ioctl(copy.as_raw_fd(), libc::FICLONERANGE as _, &raw const range) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    let here = *nodes(&file).keys().next().unwrap();
    let mut moving = DaxMove::prepare(&file, NodeId(1 - here)).unwrap();
    let copied = finish(&mut moving);
    // The chunk with the shared blocks stays, the other one does not.
    assert_eq!((copied.moved, copied.left.get(SHARED)), (2 * MIB, Some(&(2 * MIB))), "{copied:?}");
    assert_eq!(nodes(&file).get(&here), Some(&(2 * MIB)));
    check(&file, 5, 0, 4 * MIB);
}

fn a_deleted_file_is_let_go() {
    let dir = directory();
    let path = dir.path().join("file");
    let file = create(&path, 6, 6 * MIB);
    let here = *nodes(&file).keys().next().unwrap();
    let mut moving = DaxMove::prepare(&file, NodeId(1 - here)).unwrap();
    assert!(!moving.step(2 * MIB).unwrap());
    fs::remove_file(&path).unwrap();
    assert!(moving.step(2 * MIB).unwrap());
    assert_eq!(moving.copied().left.get(DELETED), Some(&(4 * MIB)));
    assert_eq!(nodes(&file).get(&here), Some(&(4 * MIB)));
}
