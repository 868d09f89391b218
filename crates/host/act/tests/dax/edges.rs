//! Attributes of files, sizes that change, and a node without room.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use act::dax::{DaxMove, NO_ROOM};
use rustix::fs::{FallocateFlags, fallocate};
use testing::{Case, cases};
use topology::NodeId;

use super::volume::{Extent, MIB, check, create, directory, extents, fill, finish, move_to, nodes, on_volume};

pub const CASES: &[Case] = cases![[on_volume()]
    a_file_moves_and_keeps_all_else,
    a_file_that_grows_and_shrinks_stays_right,
    a_full_node_is_said,
];

/// Flag of an extent that is allocated and not written (`linux/fiemap.h`).
const UNWRITTEN: u32 = 0x800;

/// Runs of holes, of written and of unwritten blocks: offset, length, unwritten.
fn shape(file: &File) -> Vec<(u64, u64, bool)> {
    let mut runs: Vec<(u64, u64, bool)> = Vec::new();
    for Extent(offset, len, _, flags) in extents(file) {
        let unwritten = flags & UNWRITTEN != 0;
        match runs.last_mut() {
            Some(last) if last.0 + last.1 == offset && last.2 == unwritten => last.1 += len,
            _ => runs.push((offset, len, unwritten)),
        }
    }
    runs
}

fn a_file_moves_and_keeps_all_else() {
    let dir = directory();
    let path = dir.path().join("file");
    let size = 9 * MIB + 4096 + 5;
    let file = create(&path, 1, 3 * MIB + 4096);
    // A hole, a written page in the middle of a chunk, preallocated blocks, and a last block in
    // part.
    fill(&file, 1, 4 * MIB + 8192, 4 * MIB + 12288);
    fallocate(&file, FallocateFlags::empty(), 6 * MIB, MIB).unwrap();
    fill(&file, 1, 9 * MIB, size);
    file.sync_all().unwrap();
    let (before, kept) = (file.metadata().unwrap(), shape(&file));
    assert!(kept.iter().any(|run| run.2), "{kept:?}");

    let written: u64 = kept.iter().filter(|run| !run.2).map(|run| run.1).sum();
    let other = 1 - *nodes(&file).keys().next().unwrap();
    for to in [other, 1 - other, other] {
        let copied = move_to(&path, to);
        let total = nodes(&file).values().sum::<u64>();
        assert_eq!(nodes(&file), BTreeMap::from([(to, total)]), "{copied:?}");
        assert_eq!((copied.moved, copied.total, copied.failed()), (total, total, 0));
        assert_eq!(shape(&file), kept);
        let found = linux::residency::of(&path, &mut |_, _| ()).unwrap();
        assert_eq!((found.dax, found.nodes.get(NodeId(to)), found.notes.len()), (true, written, 0), "{found:?}");
    }
    let after = file.metadata().unwrap();
    let times = |m: &fs::Metadata| (m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec(), m.atime(), m.atime_nsec());
    assert_eq!((times(&before), before.len(), before.ino()), (times(&after), after.len(), after.ino()));
    check(&file, 1, 0, 3 * MIB + 4096);
    check(&file, 1, 4 * MIB + 8192, 4 * MIB + 12288);
    check(&file, 1, 9 * MIB, size);
    let mut zeroes = vec![1; MIB as usize];
    file.read_exact_at(&mut zeroes, 6 * MIB).unwrap();
    assert!(zeroes.iter().all(|b| *b == 0));
    // Nothing is left of the donor.
    let names: Vec<_> = fs::read_dir("/mnt/pmem").unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(names.iter().all(|n| !n.to_string_lossy().starts_with(".homenode")), "{names:?}");
}

/// A file grows, byte by byte and block by block, and is cut, while it moves.
fn a_file_that_grows_and_shrinks_stays_right() {
    let dir = directory();
    let path = dir.path().join("file");
    let file = create(&path, 2, 8 * MIB);
    let (done, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let round = rounds.fetch_add(1, Ordering::Relaxed);
                let to = 4 * MIB + round * 123_461 % (6 * MIB);
                let size = file.metadata().unwrap().len();
                if to < size {
                    file.set_len(to).unwrap();
                } else {
                    fill(&file, 2, size & !7, to);
                }
                std::thread::sleep(std::time::Duration::from_millis(250));
            }
        });
        // Also when a move fails.
        let _over = testing::Over(&done);
        let mut moves = 0;
        let resized = || rounds.load(Ordering::Relaxed) > 4;
        while moves < 4 || !resized() && moves < 500 {
            move_to(&path, moves % 2);
            moves += 1;
        }
        assert!(resized());
    });
    check(&file, 2, 0, file.metadata().unwrap().len());
    // At rest, all of it moves.
    let copied = move_to(&path, 1);
    assert_eq!((copied.failed(), nodes(&file).len()), (0, 1), "{copied:?}");
}

/// Takes all blocks of the file system; returns the file that has them.
fn take_all(path: &Path) -> File {
    let file = File::create_new(path).unwrap();
    let mut len = 64 * MIB;
    let mut at = 0;
    while len >= 4096 {
        match fallocate(&file, FallocateFlags::empty(), at, len) {
            Ok(()) => at += len,
            Err(_) => len /= 2,
        }
    }
    file
}

fn a_full_node_is_said() {
    let dir = directory();
    let path = dir.path().join("file");
    let file = create(&path, 3, 4 * MIB);
    let before = nodes(&file);
    let here = *before.keys().next().unwrap();
    let hog = take_all(&dir.path().join("hog"));
    // Room on the file's own node only.
    for Extent(offset, len, node, _) in extents(&hog) {
        if node == here {
            fallocate(&hog, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len).unwrap();
        }
    }
    let copied = move_to(&path, 1 - here);
    // What little room a node keeps back may take a part.
    let left = copied.left.get(NO_ROOM).copied().unwrap_or(0);
    assert!(left > 0 && copied.moved + left == 4 * MIB, "{copied:?}");
    assert_eq!(nodes(&file).get(&here), Some(&left));
    check(&file, 3, 0, 4 * MIB);
    drop(hog);
    fs::remove_file(dir.path().join("hog")).unwrap();
    let mut moving = DaxMove::prepare(&file, NodeId(1 - here)).unwrap();
    assert_eq!((finish(&mut moving).failed(), nodes(&file)), (0, BTreeMap::from([(1 - here, 4 * MIB)])));
}
