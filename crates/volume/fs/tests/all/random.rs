//! Random operations against the reference, with crashes in between.
//!
//! The volume stops and starts again all the time. A quarter of its lives are on memory that loses
//! what was not made durable: there, crashes are tried within operations, and a stop loses what is
//! in flight. The other lives are on plain memory, which is much faster; most of them, too, end
//! without an unmount.
//!
//! HOMENODE_FS_OPS sets how many (default 4,000), HOMENODE_FSX_OPS how many of those on one file;
//! HOMENODE_FS_SEED which ones.

use std::sync::{Arc, Mutex};

use fs::medium::Medium;
use fs::{Ino, Kind, Rename, Volume};
use rand::rngs::ChaCha8Rng as StdRng;
use rand::{RngExt, SeedableRng};

use crate::lives::some;
use crate::medium::{Image, LINE, Ram, Recorder, blank};
use crate::model::{DIR, Model, Tree, observe};
use crate::operations::Op;
use crate::{format, mount_whole, options};

pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

fn path(rng: &mut StdRng) -> String {
    let name =
        |rng: &mut StdRng| ["a", "b", "c", "a-name-of-more-than-thirty-two-bytes-in-all"][rng.random_range(0..4)];
    let mut path = format!("/{}", name(rng));
    for _ in 0..2 {
        if path.len() < 6 && rng.random_range(0..3) == 0 {
            path = format!("{path}/{}", name(rng));
        }
    }
    path
}

fn data_op(path: String, rng: &mut StdRng) -> Op {
    // Round numbers, so that a range often begins or ends where another one or the file does.
    let round = |rng: &mut StdRng, unit: u64, most: u64| rng.random_range(1..=most) * unit;
    let at = match rng.random_range(0..3) {
        0 => rng.random_range(0..40_000),
        1 => round(rng, 4096, 10) - 4096,
        _ => round(rng, 1000, 40) - 1000,
    };
    let len = match rng.random_range(0..3) {
        0 => rng.random_range(1..9000),
        1 => round(rng, 4096, 3) as usize,
        _ => round(rng, 1000, 9) as usize,
    };
    match rng.random_range(0..11) {
        0..4 => Op::Write(path, at, len, rng.random()),
        4 => Op::Append(path, len.min(5000), rng.random()),
        5 => Op::Truncate(path, at),
        6 => Op::Allocate(path, at, len as u64, rng.random()),
        7 => Op::Punch(path, at, len as u64),
        8 => Op::Zero(path, at, len as u64, rng.random()),
        9 => Op::MigrateRange(path, rng.random_range(0..2), at / 4096, (at + len as u64) / 4096),
        _ => Op::Migrate(path, rng.random_range(0..2)),
    }
}

pub fn any_op(rng: &mut StdRng) -> Op {
    let whiteout = Rename::Whiteout { uid: 0, gid: 0 };
    let how = [Rename::Replace, Rename::NoReplace, Rename::Exchange, whiteout][rng.random_range(0..4)];
    match rng.random_range(0..20) {
        0..2 => Op::Create(path(rng)),
        2 => Op::Unnamed(path(rng), rng.random_range(0..9000), rng.random()),
        3 => Op::Mkdir(path(rng)),
        4 => Op::Symlink(path(rng), path(rng)),
        5 => Op::Link(path(rng), path(rng)),
        6..8 => Op::Unlink(path(rng)),
        8 => Op::Rmdir(path(rng)),
        9..12 => Op::Rename(path(rng), path(rng), how),
        12 => Op::Chmod(path(rng), rng.random_range(0..0o10000)),
        13 => Op::SetXattr(path(rng), format!("user.{}", rng.random_range(0..3)), rng.random_range(0..500)),
        14 => Op::RemoveXattr(path(rng), format!("user.{}", rng.random_range(0..3))),
        15 => match rng.random_range(0..6) {
            3.. => Op::Forget(path(rng)),
            0 => Op::DropHistory(path(rng)),
            1 => Op::Clean(path(rng)),
            _ => {
                let (path, slots) = (path(rng), rng.random_range(1..4));
                let between = std::iter::repeat_with(|| any_op(rng)).find(|op| !matches!(op, Op::CleanAround(..)));
                Op::CleanAround(path, slots, Box::new(between.unwrap()))
            }
        },
        _ => data_op(path(rng), rng),
    }
}

/// The memory of one life of the volume.
enum Memory {
    Plain(Ram),
    Recorded(Recorder),
}

impl Memory {
    fn new(image: Image, recorded: bool) -> Self {
        if recorded { Self::Recorded(Recorder::new(image)) } else { Self::Plain(Ram::new(image)) }
    }

    fn mount(&self, parts: usize) -> Volume {
        let medium: Box<dyn Medium> = match self {
            Self::Plain(ram) => Box::new(ram.clone()),
            Self::Recorded(recorder) => Box::new(recorder.clone()),
        };
        mount_whole(medium, options(parts)).unwrap()
    }

    /// Durable contents, and all stores to plain memory.
    fn durable(&self) -> Image {
        match self {
            Self::Plain(ram) => ram.image(),
            Self::Recorded(recorder) => {
                let mut image = Image::new();
                recorder.look(|point| image.clone_from(point.durable));
                image
            }
        }
    }

    /// Contents that are left when the machine stops.
    fn stop(self, rng: &mut StdRng) -> Image {
        match self {
            Self::Plain(ram) => ram.image(),
            Self::Recorded(recorder) => {
                let mut image = Image::new();
                recorder.look(|point| image = some(point, rng));
                image
            }
        }
    }

    /// Collects crashes of the next operation.
    fn catch(&self, mut rng: StdRng) -> Arc<Mutex<Vec<Image>>> {
        let caught: Arc<Mutex<Vec<Image>>> = Arc::default();
        if let Self::Recorded(recorder) = self {
            let catch = Arc::clone(&caught);
            recorder.on_fence(Some(Box::new(move |point| {
                if rng.random_range(0..10) == 0 {
                    catch.lock().unwrap().push(some(point, &mut rng));
                }
            })));
        }
        caught
    }

    fn catch_no_more(&self) {
        if let Self::Recorded(recorder) = self {
            recorder.on_fence(None);
        }
    }
}

/// Directories that move into others take names where no path of [`any_op`] leads. Removes one if
/// there are many.
pub fn prune(tree: &Tree, most: usize) -> Option<Op> {
    let deepest = tree.iter().filter(|_| tree.len() > most).max_by_key(|(path, _)| path.matches('/').count());
    deepest.map(|(path, seen)| {
        let remove = if seen.mode & 0o170_000 == DIR { Op::Rmdir } else { Op::Unlink };
        remove(path.clone())
    })
}

/// Counts inodes and blocks three ways: as the volume does in DRAM, as its logs say, and as the
/// reference does. True: the third was possible, which takes room for cleaning every log.
fn audit(volume: &Volume, image: Image, model: &Model, what: &str) -> bool {
    let free = |volume: &Volume| -> Vec<_> {
        volume.usage().regions.iter().map(|region| (region.free_blocks, region.free_inodes)).collect()
    };
    let again = mount_whole(Box::new(Ram::new(image)), options(1)).unwrap();
    assert_eq!(free(volume), free(&again), "{what}: free blocks and inodes in DRAM and on the medium");
    let regions = again.usage().regions;
    let inodes: u64 = regions.iter().map(|region| region.inodes - 1 - region.free_inodes).sum();
    let all = model.inodes();
    assert_eq!(inodes, all.len() as u64, "{what}: inodes");
    // A log that was just cleaned has no more pages than its live entries need.
    let mut blocks = 0;
    for path in all.values() {
        let ino = again.resolve(path.as_bytes()).unwrap();
        if again.clean(ino).is_err() {
            return false;
        }
        let runs = again.map(ino).unwrap();
        blocks += runs.iter().map(|run| run.count).sum::<u64>() + log_pages(&again, ino, runs.len());
    }
    let used: u64 = again.usage().regions.iter().map(|region| region.blocks - region.free_blocks).sum();
    assert_eq!(used, blocks, "{what}: blocks that no inode has");
    true
}

/// Pages of a log that says only what is true now: docs/FORMAT.md.
fn log_pages(volume: &Volume, ino: Ino, runs: usize) -> u64 {
    let stat = volume.stat(ino).unwrap();
    let lines = |bytes: usize| (16 + bytes).div_ceil(LINE);
    let mut entries = vec![1; usize::from(stat.size > 0)];
    for name in volume.xattrs(ino).unwrap() {
        entries.push(lines(4 + name.len() + volume.xattr(ino, &name).unwrap().len()));
    }
    entries.extend(std::iter::repeat_n(1, runs));
    if stat.kind == Kind::Directory {
        entries.extend(volume.names(ino, 0, usize::MAX).unwrap().iter().map(|name| lines(18 + name.name.len())));
    }
    let attributes = std::iter::repeat_n(1, 1 + usize::from(!entries.is_empty()));
    let (mut pages, mut at) = (0, 64);
    for lines in attributes.clone().take(1).chain(entries).chain(attributes.skip(1)) {
        (pages, at) = if at + lines > 64 { (pages + 1, 1 + lines) } else { (pages, at + lines) };
    }
    pages
}

/// Operations between two audits.
const AUDIT: u64 = 1000;
/// Operations between two lines that say how far a long run is.
const PROGRESS: u64 = 50_000;

fn run(count: u64, regions: &[u64], next: impl FnMut(&mut StdRng) -> Op, first: &[Op]) {
    run_seed((setting("HOMENODE_FS_SEED", 1), true), count, regions, next, first);
}

/// Regions with room for the tree that [`prune`] keeps, in blocks.
const REGIONS: [u64; 2] = [700, 900];

/// Returns how many operations were done. Without `pruned` the tree grows, and the first operation
/// that finds no room ends the run.
fn run_seed(
    (seed, pruned): (u64, bool),
    count: u64,
    regions: &[u64],
    mut next: impl FnMut(&mut StdRng) -> Op,
    first: &[Op],
) -> u64 {
    let mut rng = StdRng::seed_from_u64(seed);
    let ram = Ram::new(blank(regions));
    format(Box::new(ram.clone()), 2);
    let mut memory = Memory::new(ram.image(), true);
    let mut volume = memory.mount(2);
    let mut model = Model::new();
    let mut tree = model.tree();
    let (mut crashes, mut succeeded, mut lives, mut audits, mut done) = (0, 0, 1, 0, 0);
    for i in 0..count {
        let remove = if pruned { prune(&tree, 120) } else { None };
        let op = first.get(i as usize).cloned().or(remove).unwrap_or_else(|| next(&mut rng));
        let caught = memory.catch(StdRng::seed_from_u64(rng.random()));
        let result = op.on_volume(&volume);
        memory.catch_no_more();
        if !pruned && result == Err(libc::ENOSPC) {
            println!("full at {i}: {op:?}; {} names", tree.len());
            break;
        }
        let expected = op.on_model(&mut model);
        let new = model.tree();
        assert_eq!(result, expected, "seed {seed}, {i}: {op:?}; {:?}", volume.usage());
        done += 1;
        succeeded += u64::from(expected.is_ok());
        assert!(observe(&volume) == new, "seed {seed}, {i}: {op:?}");
        for image in std::mem::take(&mut *caught.lock().unwrap()) {
            crashes += 1;
            let after =
                mount_whole(Box::new(Ram::new(image)), options(1)).unwrap_or_else(|e| panic!("{i}: {op:?}: {e}"));
            let found = observe(&after);
            assert!(found == tree || found == new, "seed {seed}, crash in {i}: {op:?}");
        }
        tree = new;
        if (i + 1) % PROGRESS == 0 {
            println!("{done} operations, {crashes} crashes within one, {lives} lives, {audits} audits");
        }
        if (i + 1) % AUDIT == 0 {
            audits += u64::from(audit(&volume, memory.durable(), &model, &format!("seed {seed}, after {i}")));
        }
        if rng.random_range(0..200) == 0 {
            // The machine stops and starts again, with some of what was in flight, or after an
            // unmount.
            if rng.random() {
                volume.unmount().unwrap();
            }
            let image = memory.stop(&mut rng);
            let check = fs::fsck::check(Box::new(Ram::new(image.clone()))).unwrap();
            assert!(check.damage.is_empty(), "seed {seed}, after {i}: {check:?}");
            memory = Memory::new(image, rng.random_range(0..4) == 0);
            volume = memory.mount(rng.random_range(1..4));
            lives += 1;
            assert!(observe(&volume) == tree, "seed {seed}, restart after {i}");
        }
    }
    audits += u64::from(audit(&volume, memory.durable(), &model, &format!("seed {seed}, at the end")));
    println!(
        "{done} operations, {succeeded} without an error, {crashes} crashes within one, {lives} lives, {audits} audits"
    );
    crate::crash::use_and_empty(&volume).unwrap();
    done
}

#[test]
fn random_operations_do_what_the_reference_does() {
    run(setting("HOMENODE_FS_OPS", 4000), &REGIONS, any_op, &[]);
}

/// Without [`prune`] a run fills the volume: directories move to where no path leads, and what they
/// hold stays. No inode and no block is lost on the way, and emptying the volume gives all of them
/// back.
#[test]
fn seed_1001_fills_the_volume_with_what_has_names() {
    let done = run_seed((1001, false), 40_000, &[100, 140], any_op, &[]);
    assert!(done < 40_000, "the volume never filled up");
}

/// As fsx does: one file, all kinds of changes to its data.
#[test]
fn random_changes_of_one_file_do_what_the_reference_does() {
    let next = |rng: &mut StdRng| data_op("/f".into(), rng);
    // Small regions: most of the time would go into copying images.
    run(setting("HOMENODE_FSX_OPS", 4000), &[50, 70], next, &[Op::Create("/f".into())]);
}
