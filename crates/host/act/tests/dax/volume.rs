//! The volume, and where its files are: an instrument of the tests' own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use act::copying::{Copied, Copying};
use act::dax::DaxMove;
use testing::{Tried, need};
use topology::NodeId;

pub const MIB: u64 = 1 << 20;
pub const MOUNT: &str = "/mnt/pmem";

/// A number from the environment: larger in a long run.
pub fn number(variable: &str, default: u32) -> u32 {
    std::env::var(variable).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// Why these tests cannot run here.
pub fn on_volume() -> Tried {
    need(Path::new(MOUNT).is_dir(), "no XFS over the persistent memory of two nodes is mounted as /mnt/pmem")
}

/// A directory for one test, removed with all in it.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(MOUNT).unwrap()
}

/// The first byte of the volume that is on node 1: device-mapper puts its device behind that of
/// node 0.
fn border() -> u64 {
    let table = Command::new("dmsetup").args(["table", "volume"]).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    let second: Vec<_> = table.lines().nth(1).unwrap().split(' ').collect();
    assert_eq!(second[2], "linear");
    let device = fs::canonicalize(format!("/sys/dev/block/{}/device", second[3])).unwrap();
    let node = device.ancestors().find_map(|dir| fs::read_to_string(dir.join("numa_node")).ok()).unwrap();
    assert_eq!(node.trim(), "1");
    second[0].parse::<u64>().unwrap() * 512
}

/// An extent of a file: offset, length, node, flags of fiemap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent(pub u64, pub u64, pub u32, pub u32);

/// The extents of a file up to its end. XFS may have allocated blocks beyond it.
pub fn extents(file: &File) -> Vec<Extent> {
    const MOST: usize = 4000;
    let mut map = vec![0_u64; 4 + 7 * MOST];
    (map[0], map[1], map[3]) = (0, u64::MAX, MOST as u64);
    // SAFETY: the kernel writes as many extents of 56 bytes as the structure, of 32 bytes, says
    // that there is room for.
    assert_eq!(unsafe { libc::ioctl(file.as_raw_fd(), 0xc020_660b_u32 as _, map.as_mut_ptr()) }, 0);
    let count = (map[2] >> 32) as usize;
    assert!(count < MOST, "too many extents for this test");
    let (border, size) = (border(), file.metadata().unwrap().len());
    map[4..4 + 7 * count]
        .chunks(7)
        .map(|e| {
            assert!(e[1] >= border || e[1] + e[2] <= border, "an extent crosses the border");
            Extent(e[0], e[2].min(size.saturating_sub(e[0])), u32::from(e[1] >= border), e[5] as u32 & !1)
        })
        .filter(|extent| extent.1 > 0)
        .collect()
}

/// Bytes of a file's blocks on each node.
pub fn nodes(file: &File) -> BTreeMap<u32, u64> {
    let mut nodes = BTreeMap::new();
    for Extent(_, len, node, _) in extents(file) {
        *nodes.entry(node).or_default() += len;
    }
    nodes
}

/// The word at an offset of a file that nobody has written since: tells every offset and every
/// file.
pub fn word(seed: u64, offset: u64) -> u64 {
    (offset ^ seed << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// Writes a range of a file with these words.
pub fn fill(file: &File, seed: u64, from: u64, to: u64) {
    let mut at = from;
    while at < to {
        let len = MIB.min(to - at);
        let words: Vec<u8> = (at..at + len).step_by(8).flat_map(|o| word(seed, o).to_ne_bytes()).collect();
        file.write_all_at(&words[..len as usize], at).unwrap();
        at += len;
    }
}

/// Fails unless a range has these words.
pub fn check(file: &File, seed: u64, from: u64, to: u64) {
    let mut bytes = vec![0; MIB as usize];
    let mut at = from;
    while at < to {
        let len = MIB.min(to - at) as usize;
        file.read_exact_at(&mut bytes[..len], at).unwrap();
        for (i, found) in bytes[..len].chunks(8).enumerate() {
            let offset = at + 8 * i as u64;
            assert_eq!(found, &word(seed, offset).to_ne_bytes()[..found.len()], "wrong bytes at {offset}");
        }
        at += len as u64;
    }
}

/// A new file, filled.
pub fn create(path: &Path, seed: u64, size: u64) -> File {
    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    fill(&file, seed, 0, size);
    file.sync_all().unwrap();
    file
}

/// Moves a file, to the end.
pub fn move_to(path: &PathBuf, node: u32) -> Copied {
    let mut moving = DaxMove::prepare(&File::open(path).unwrap(), NodeId(node)).unwrap();
    finish(&mut moving)
}

pub fn finish(moving: &mut DaxMove) -> Copied {
    while !moving.step(8 * MIB).unwrap() {}
    moving.copied()
}
