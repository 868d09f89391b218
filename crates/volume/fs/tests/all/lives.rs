//! Crashes at any instant of many threads' work.
//!
//! Four writers, each with names of its own in one directory that all share, two threads that move
//! files and rewrite logs, and the cleaner use one volume on three regions. A flush makes nothing
//! durable before a fence of the same thread. All the time an image is taken of what a crash would
//! leave, with some of the lines in flight, half of the images with some of the *words* of these
//! lines. A volume on it has of each writer what it was told is done, and the operation under way
//! completely or not at all. The next life begins with what the last one left.
//!
//! HOMENODE_FS_LIVES sets for how many seconds (default: a few lives), HOMENODE_FS_SEED which.

use std::hash::{Hash, Hasher};
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fs::{Background, Error, Ino, Kind, Migration, NewFile, Volume};
use rand::rngs::ChaCha8Rng as StdRng;
use rand::{RngExt, SeedableRng};

use crate::crash::use_and_empty;
use crate::medium::{CrashPoint, Image, LINE, Ram, Recorder, Sabotage, blank};
use crate::model::{Model, Tree, observe};
use crate::random::{any_op, prune, setting};
use crate::{format_with, mount_whole, options};

const WRITERS: usize = 4;
/// Names that a writer has at most, about.
const NAMES: usize = 16;
/// Operations of a writer in a life.
const OPS: u64 = 600;

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    lives: u64,
    ops: u64,
    /// Blocks moved.
    moved: u64,
    images: u64,
    /// Images of an instant at which two operations or more were under way.
    crowded: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.lives += other.lives;
        self.ops += other.ops;
        self.moved += other.moved;
        self.images += other.images;
        self.crowded += other.crowded;
    }
}

/// Where a path of a writer's model is on the volume.
fn place(writer: usize, path: &str) -> String {
    format!("/shared/{writer}-{}", &path[1..])
}

fn hash(tree: &Tree) -> u64 {
    let mut hasher = rustc_hash::FxHasher::default();
    tree.iter().filter(|(path, _)| *path != "/").for_each(|one| one.hash(&mut hasher));
    hasher.finish()
}

/// What of a volume's tree is a writer's, as in its model.
fn of_writer(tree: &Tree, writer: usize) -> u64 {
    let prefix = place(writer, "/");
    let own = tree.iter().filter_map(|(path, seen)| Some((format!("/{}", path.strip_prefix(&prefix)?), seen.clone())));
    hash(&own.collect())
}

/// What a volume may have of a writer: what is done, and with the operation under way.
#[derive(Clone, Copy)]
struct Progress {
    done: u64,
    under_way: Option<u64>,
}

/// What a crash leaves: some of the lines in flight, or some of their words.
pub fn some(point: &CrashPoint<'_>, rng: &mut StdRng) -> Image {
    let mut image = point.durable.clone();
    let (share, torn) = (rng.random_range(0..=4), rng.random::<bool>());
    for ((region, line), state) in point.in_flight {
        if rng.random_range(0..4) >= share {
            continue;
        }
        let unit = if torn && rng.random::<bool>() { 8 } else { LINE };
        for from in (0..LINE).step_by(unit) {
            // The durable one is one of them where words are torn.
            let version = rng.random_range(0..=state.versions.len());
            let at = *line as usize * LINE + from;
            match state.versions.get(version) {
                Some(version) => image[*region][at..at + unit].copy_from_slice(&version[from..from + unit]),
                None if unit == 8 => {}
                None => image[*region][at..at + unit].copy_from_slice(&state.versions[version - 1][from..from + unit]),
            }
        }
    }
    image
}

/// Whether a volume on an image has what it may have of each writer: which trees that are.
fn check(image: Image, may: &[Progress], rng: &mut StdRng) -> Result<Vec<u64>, String> {
    let ram = Ram::new(image);
    let volume = mount_whole(Box::new(ram.clone()), options(1)).map_err(|e| format!("mount: {e}"))?;
    let tree = observe(&volume);
    let mut found = Vec::new();
    for (writer, may) in may.iter().enumerate() {
        let own = of_writer(&tree, writer);
        if own != may.done && Some(own) != may.under_way {
            let under_way = if may.under_way.is_some() { "old nor new" } else { "what was done" };
            return Err(format!("writer {writer}: not {under_way}"));
        }
        found.push(own);
    }
    if rng.random_range(0..4) == 0 {
        drop(volume);
        let report = fs::fsck::check(Box::new(ram.clone())).map_err(|e| format!("fsck: {e}"))?;
        if !report.damage.is_empty() || !report.orphans.is_empty() || report.journals > 0 {
            return Err(format!("fsck after recovery: {report:?}"));
        }
        let volume = mount_whole(Box::new(ram), options(2)).map_err(|e| format!("second mount: {e}"))?;
        if rng.random_range(0..4) == 0 {
            use_and_empty(&volume)?;
        }
    }
    Ok(found)
}

/// Uses the volume as one writer does, and waits for an image after each so many operations.
fn write(
    volume: &Volume,
    writer: usize,
    model: &mut Model,
    progress: &Mutex<Progress>,
    (images, per): (&AtomicU64, u64),
    seed: u64,
) -> u64 {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut tree = model.tree();
    for done in 0..OPS {
        while images.load(Ordering::Relaxed) < done / per {
            std::thread::yield_now();
        }
        let op = prune(&tree, NAMES).unwrap_or_else(|| any_op(&mut rng));
        let mut next = model.clone();
        let expected = op.on_model(&mut next);
        let next_tree = next.tree();
        let new = hash(&next_tree);
        progress.lock().unwrap().under_way = Some(new);
        let done = op.at(&|path| place(writer, path)).on_volume(volume);
        match done {
            // Another thread moves the file, or there was no room for a while.
            Err(libc::EBUSY | libc::ENOSPC) if expected.is_ok() => {
                *progress.lock().unwrap() = Progress { done: hash(&tree), under_way: None };
                continue;
            }
            _ => assert_eq!(done, expected, "writer {writer}: {op:?}"),
        }
        *progress.lock().unwrap() = Progress { done: new, under_way: None };
        (*model, tree) = (next, next_tree);
    }
    OPS
}

/// Moves files and parts of files, and writes logs anew: how many blocks.
fn move_about(volume: &Volume, stop: &AtomicBool, seed: u64) -> u64 {
    let (mut rng, mut moved) = (StdRng::seed_from_u64(seed), 0);
    while !stop.load(Ordering::Relaxed) {
        let dir = volume.resolve(b"/shared").unwrap();
        let names = volume.names(dir, 0, usize::MAX).unwrap();
        if names.is_empty() {
            std::thread::yield_now();
            continue;
        }
        let named = names[rng.random_range(0..names.len())].named;
        let ino = if rng.random_range(0..8) == 0 { dir } else { named.ino };
        let step = 1 << rng.random_range(0..=10);
        let done = match rng.random_range(0..8) {
            0 => volume.clean(ino),
            1 => volume.drop_history(ino).map(drop),
            2 | 3 => volume.clean_in_steps(ino, step, || true).map(drop),
            _ if named.kind != Kind::File || ino == dir => Ok(()),
            4 | 5 => volume.migrate_file(ino, rng.random_range(0..3), None, |_| true).map(|done| moved += done.moved),
            _ => {
                let (first, to) = (rng.random_range(0..10), rng.random_range(0..3));
                let end = Some(first + rng.random_range(1..8));
                let range = Migration { to, first, end, leave_log: rng.random(), ..Migration::default() };
                volume.migrate(ino, range, |_| true).map(|done| moved += done.moved)
            }
        };
        match done {
            // It is gone, or another file has the number, or another thread moves it.
            Ok(()) | Err(Error::NotFound | Error::Busy | Error::NoSpace | Error::Invalid(_) | Error::IsDirectory) => {}
            Err(error) => panic!("{error}"),
        }
    }
    moved
}

/// One life of a volume: what it leaves, and what the writers have then. There is an image for each
/// `per` operations of a writer at least.
fn life(
    image: Image,
    models: &mut [Model],
    rng: &mut StdRng,
    (per, sabotage): (u64, Option<Sabotage>),
) -> Result<(Image, Counts), String> {
    let recorder = Recorder::new(image);
    let volume = mount_whole(Box::new(recorder.clone()), options(3)).map_err(|e| format!("mount: {e}"))?;
    let (volume, trees) = (Arc::new(volume), models.iter().map(|model| hash(&model.tree())));
    let progress: Vec<_> = trees.map(|done| Mutex::new(Progress { done, under_way: None })).collect();
    recorder.sabotage(sabotage);
    let (stop, moved, images) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut counts = Counts { lives: 1, ..Counts::default() };
    let cleaner = Background::start(Arc::clone(&volume)).unwrap();
    volume.leave_logs(Some(8));
    let look = |rng: &mut StdRng| {
        // No writer begins or ends anything meanwhile.
        let held: Vec<_> = progress.iter().map(|progress| progress.lock().unwrap()).collect();
        let mut image = Image::new();
        recorder.look(|point| image = some(point, rng));
        (image, held.iter().map(|progress| **progress).collect::<Vec<_>>())
    };
    let seeds: Vec<u64> = (0..WRITERS + 2).map(|_| rng.random()).collect();
    let lived = std::thread::scope(|scope| {
        for seed in &seeds[WRITERS..] {
            let (volume, stop, moved) = (&volume, &stop, &moved);
            scope.spawn(move || {
                moved.fetch_add(move_about(volume, stop, *seed), Ordering::Relaxed);
            });
        }
        let writers: Vec<_> = (models.iter_mut().zip(&progress).zip(&seeds).enumerate())
            .map(|(writer, ((model, progress), seed))| {
                let (volume, images) = (&volume, &images);
                scope.spawn(move || write(volume, writer, model, progress, (images, per), *seed))
            })
            .collect();
        let mut failed = Ok(());
        while failed.is_ok() && !writers.iter().all(|writer| writer.is_finished()) {
            let (image, may) = look(rng);
            counts.images += 1;
            images.store(counts.images, Ordering::Relaxed);
            counts.crowded += u64::from(may.iter().filter(|may| may.under_way.is_some()).count() >= 2);
            let checked = catch_unwind(AssertUnwindSafe(|| check(image, &may, rng)));
            failed = checked.unwrap_or_else(|_| Err("a panic".into())).map(drop);
        }
        images.store(u64::MAX, Ordering::Relaxed);
        let ops = writers.into_iter().map(|writer| writer.join().map_err(|_| "a writer stopped".to_owned()));
        let ops = ops.sum::<Result<u64, String>>();
        stop.store(true, Ordering::Relaxed);
        counts.ops = ops?;
        failed
    });
    drop(cleaner);
    counts.moved = moved.load(Ordering::Relaxed);
    lived?;
    let tree = observe(&volume);
    for (writer, model) in models.iter().enumerate() {
        assert_eq!(of_writer(&tree, writer), hash(&model.tree()), "writer {writer}: without a crash");
    }
    let volume = Arc::into_inner(volume).unwrap();
    if rng.random_range(0..4) == 0 {
        volume.unmount().map_err(|e| format!("unmount: {e}"))?;
    }
    let (image, may) = look(rng);
    check(image.clone(), &may, rng)?;
    Ok((image, counts))
}

/// A new volume for the writers.
fn new_volume(data_checksums: bool) -> (Image, Vec<Model>) {
    let ram = Ram::new(blank(&[500, 600, 500]));
    format_with(Box::new(ram.clone()), 3, data_checksums);
    let volume = mount_whole(Box::new(ram.clone()), options(1)).unwrap();
    volume.create(Ino::ROOT, b"shared", NewFile { mode: 0o040_755, ..NewFile::default() }).unwrap();
    (ram.image(), (0..WRITERS).map(|_| Model::new()).collect())
}

#[test]
fn concurrent_use_survives_a_crash_at_any_instant() {
    let (seconds, seed) = (setting("HOMENODE_FS_LIVES", 0), setting("HOMENODE_FS_SEED", 1));
    let (mut rng, began, mut all, mut told) = (StdRng::seed_from_u64(seed), Instant::now(), Counts::default(), 0);
    while all.lives < 2 || began.elapsed() < Duration::from_secs(seconds) {
        // A line of history, with checksums of data or without.
        let (mut image, mut models) = new_volume(all.lives.is_multiple_of(2));
        for _ in 0..if seconds > 0 { 10 } else { 1 } {
            let lived = life(image, &mut models, &mut rng, (40, None));
            let (left, counts) = lived.unwrap_or_else(|why| panic!("{why}, in life {} of seed {seed}", all.lives + 1));
            image = left;
            all += counts;
        }
        if all.lives >= told + 50 {
            told = all.lives;
            println!("{} s: {all:?}", began.elapsed().as_secs());
        }
    }
    println!("{all:?}, no failure");
    assert!(all.moved > 0 && all.images > 0 && all.crowded > 0, "{all:?}");
}

/// A fence waits for the flushes of its own thread: whoever unmounts has to flush what others have
/// freed. Otherwise the checkpoint said that the number was free, the medium that it was in use,
/// and fsck found an orphan that no mount freed.
#[test]
fn an_unmount_makes_durable_what_another_thread_has_freed() {
    let (image, _) = new_volume(true);
    let recorder = Recorder::new(image);
    let volume = mount_whole(Box::new(recorder.clone()), options(1)).unwrap();
    crate::create(&volume, "a").unwrap();
    std::thread::scope(|scope| scope.spawn(|| volume.unlink(Ino::ROOT, b"a").unwrap()).join().unwrap());
    volume.unmount().unwrap();
    let mut left = Image::new();
    recorder.look(|point| left.clone_from(point.durable));
    let report = fs::fsck::check(Box::new(Ram::new(left))).unwrap();
    assert_eq!((report.clean, report.orphans, report.damage), (true, vec![], vec![]));
}

/// The harness finds a flush or a fence that is left out now and then.
#[test]
fn a_lost_flush_or_fence_is_found_in_the_first_life() {
    for sabotage in [Sabotage::Flushes(97), Sabotage::Fences(3)] {
        let (image, mut models) = new_volume(true);
        let lived = life(image, &mut models, &mut StdRng::seed_from_u64(1), (4, Some(sabotage)));
        match lived {
            Err(why) => println!("{sabotage:?}: {why}"),
            Ok((_, counts)) => panic!("{sabotage:?} was not noticed: {counts:?}"),
        }
    }
}
