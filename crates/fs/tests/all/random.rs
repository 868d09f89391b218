//! Random operations against the reference, with crashes in between.
//!
//! HOMENODE_FS_OPS sets how many (default 4,000 for each test); HOMENODE_FS_SEED which ones.

use std::sync::{Arc, Mutex};

use fs::{Rename, Volume};
use rand::rngs::ChaCha8Rng as StdRng;
use rand::{RngExt, SeedableRng};

use crate::medium::{CrashPoint, Image, LINE, Ram, Recorder, blank};
use crate::model::{Model, observe};
use crate::operations::Op;
use crate::{format, options};

fn setting(name: &str, default: u64) -> u64 {
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
    let at = if rng.random() { rng.random_range(0..40_000) } else { rng.random_range(0..10) * 4096 };
    let len = if rng.random() { rng.random_range(1..9000) } else { rng.random_range(1..4) * 4096 };
    match rng.random_range(0..10) {
        0..4 => Op::Write(path, at, len, rng.random()),
        4 => Op::Append(path, len.min(5000), rng.random()),
        5 => Op::Truncate(path, at),
        6 => Op::Allocate(path, at, len as u64, rng.random()),
        7 => Op::Punch(path, at, len as u64),
        8 => Op::Zero(path, at, len as u64, rng.random()),
        _ => Op::Migrate(path, rng.random_range(0..2)),
    }
}

fn any_op(rng: &mut StdRng) -> Op {
    let how = [Rename::Replace, Rename::NoReplace, Rename::Exchange][rng.random_range(0..3)];
    match rng.random_range(0..20) {
        0..3 => Op::Create(path(rng)),
        3 => Op::Mkdir(path(rng)),
        4 => Op::Symlink(path(rng), path(rng)),
        5 => Op::Link(path(rng), path(rng)),
        6..8 => Op::Unlink(path(rng)),
        8 => Op::Rmdir(path(rng)),
        9..12 => Op::Rename(path(rng), path(rng), how),
        12 => Op::Chmod(path(rng), rng.random_range(0..0o10000)),
        13 => Op::SetXattr(path(rng), format!("user.{}", rng.random_range(0..3)), rng.random_range(0..500)),
        14 => Op::RemoveXattr(path(rng), format!("user.{}", rng.random_range(0..3))),
        15 if rng.random() => Op::CleanAll,
        15 => Op::Clean(path(rng)),
        _ => data_op(path(rng), rng),
    }
}

/// Some of what is in flight.
fn some_crash(point: &CrashPoint<'_>, rng: &mut StdRng) -> Image {
    let mut image = point.durable.clone();
    let share = rng.random_range(0..=4);
    for ((region, line), state) in point.in_flight {
        if rng.random_range(0..4) < share {
            let version = rng.random_range(0..state.versions.len());
            image[*region][*line as usize * LINE..][..LINE].copy_from_slice(&state.versions[version]);
        }
    }
    image
}

fn run(count: u64, mut next: impl FnMut(&mut StdRng) -> Op, first: &[Op]) {
    let seed = setting("HOMENODE_FS_SEED", 1);
    let mut rng = StdRng::seed_from_u64(seed);
    let ram = Ram::new(blank(&[700, 900]));
    format(Box::new(ram.clone()), 2);
    let mut recorder = Recorder::new(ram.image());
    let mut volume = Volume::mount(Box::new(recorder.clone()), options(2)).unwrap();
    let mut model = Model::new();
    let (mut crashes, mut succeeded) = (0, 0);
    for i in 0..count {
        let op = first.get(i as usize).cloned().unwrap_or_else(|| next(&mut rng));
        let old = model.tree();
        let expected = op.on_model(&mut model);
        let new = model.tree();
        let caught: Arc<Mutex<Vec<Image>>> = Arc::default();
        let (catch, mut crash_rng) = (Arc::clone(&caught), StdRng::seed_from_u64(rng.random()));
        recorder.on_fence(Some(Box::new(move |point| {
            if crash_rng.random_range(0..40) == 0 {
                catch.lock().unwrap().push(some_crash(point, &mut crash_rng));
            }
        })));
        assert_eq!(op.on_volume(&volume), expected, "seed {seed}, {i}: {op:?}");
        recorder.on_fence(None);
        succeeded += u64::from(expected.is_ok());
        assert!(observe(&volume) == new, "seed {seed}, {i}: {op:?}");
        for image in std::mem::take(&mut *caught.lock().unwrap()) {
            crashes += 1;
            let after =
                Volume::mount(Box::new(Ram::new(image)), options(1)).unwrap_or_else(|e| panic!("{i}: {op:?}: {e}"));
            let tree = observe(&after);
            assert!(tree == old || tree == new, "seed {seed}, crash in {i}: {op:?}");
        }
        if rng.random_range(0..100) == 0 {
            // The machine stops and starts again, with some of what was in flight, or after an unmount.
            let mut image = Image::new();
            if rng.random() {
                volume.unmount().unwrap();
            }
            recorder.look(|point| image = some_crash(point, &mut rng));
            let check = fs::fsck::check(Box::new(Ram::new(image.clone()))).unwrap();
            assert!(check.damage.is_empty(), "seed {seed}, after {i}: {check:?}");
            recorder = Recorder::new(image);
            volume = Volume::mount(Box::new(recorder.clone()), options(rng.random_range(1..4))).unwrap();
            assert!(observe(&volume) == new, "seed {seed}, restart after {i}");
        }
    }
    println!("{count} operations, {succeeded} without an error, {crashes} crashes within one");
    crate::crash::use_and_empty(&volume).unwrap();
}

#[test]
fn random_operations_do_what_the_reference_does() {
    run(setting("HOMENODE_FS_OPS", 4000), any_op, &[]);
}

/// As fsx does: one file, all kinds of changes to its data.
#[test]
fn random_changes_of_one_file_do_what_the_reference_does() {
    let next = |rng: &mut StdRng| data_op("/f".into(), rng);
    run(setting("HOMENODE_FS_OPS", 4000), next, &[Op::Create("/f".into())]);
}
