//! Crash enumeration: at every fence of every operation, what may be left is mounted and compared.
//!
//! A crash leaves the durable image and any of the lines in flight. Checked are: none of them; all;
//! every subset of up to three (a write of file data counts as one, beyond [`FEW`] of them a random
//! choice); all but one; each half torn. Whatever is left, recovery must find the tree as it was
//! before the operation or as it is after it, the blocks must add up, a second recovery must find
//! the same, and everything can be deleted afterwards.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};

use fs::{Ino, Kind, NewFile, Options, Rename, Volume};

use crate::medium::{CrashPoint, Image, LINE, Line, Ram, Recorder, Sabotage, blank};
use crate::model::{Model, Tree, observe};
use crate::operations::Op;
use crate::twins::LostMetadata;
use crate::{REGIONS, TWICE, format_twice, format_with, mount_whole, options};

/// With more lines in flight than this, subsets of two and three are drawn.
const FEW: usize = 7;

/// Lines that may be persistent together.
type Change = Vec<((usize, u64), Line)>;

/// State common to all checks.
#[derive(Default)]
pub struct Checker {
    /// Images that were checked, and the hash of the tree that recovery found.
    seen: HashMap<u64, u64>,
    /// Whether the volumes have checksums of file data.
    pub data_checksums: bool,
    /// Whether the volumes are full when the crashes begin.
    pub full: bool,
    /// Whether a write may be found done up to the end of any of its blocks.
    pub in_parts: bool,
    /// Whether the volumes keep their logs twice: then the metadata of each region is lost in its
    /// turn, too.
    pub twice: bool,
    /// Whether a server that inherits what a kernel knows takes over what a killed one has stored.
    pub inherited: bool,
    pub checked: u64,
    pub recoveries: u64,
    pub failures: Vec<String>,
}

fn hash(what: &impl Hash) -> u64 {
    let mut hasher = rustc_hash::FxHasher::default();
    what.hash(&mut hasher);
    hasher.finish()
}

pub fn with(durable: &Image, change: &Change) -> Image {
    let mut image = durable.clone();
    for ((region, line), contents) in change {
        image[*region][*line as usize * LINE..][..LINE].copy_from_slice(contents);
    }
    image
}

/// Half of a change: every other word of a line, every other line of a write.
fn torn(durable: &Image, change: &Change, odd: usize) -> Change {
    if change.len() > 1 {
        return change.iter().skip(odd).step_by(2).copied().collect();
    }
    let tear = |((region, line), new): &((usize, u64), Line)| {
        let mut half: Line = durable[*region][*line as usize * LINE..][..LINE].try_into().unwrap();
        for word in (0..LINE / 8).filter(|word| word % 2 == odd) {
            half[word * 8..][..8].copy_from_slice(&new[word * 8..][..8]);
        }
        ((*region, *line), half)
    };
    change.iter().map(tear).collect()
}

/// All crash states of a point.
pub fn states(point: &CrashPoint<'_>) -> Vec<Change> {
    let mut units: Vec<Change> = Vec::new();
    let mut by_call: HashMap<u64, usize> = HashMap::new();
    let mut states: Vec<Change> = vec![Vec::new()];
    for (at, line) in point.in_flight {
        let last = (*at, *line.versions.last().unwrap());
        match line.data.map(|call| by_call.entry(call).or_insert(units.len())) {
            Some(unit) if *unit < units.len() => units[*unit].push(last),
            _ => units.push(vec![last]),
        }
        let earlier = line.versions.iter().rev().skip(1).take(3);
        states.extend(earlier.map(|version| vec![(*at, *version)]));
    }
    let union = |which: &[usize]| which.iter().flat_map(|i| units[*i].iter().copied()).collect::<Change>();
    let all: Vec<usize> = (0..units.len()).collect();
    states.push(union(&all));
    let few = units.len() <= FEW;
    let mut random = 0x2545_f491_4f6c_dd1d_u64 ^ units.len() as u64;
    let mut drawn = |one_in: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        few || (random >> 33).is_multiple_of(one_in)
    };
    let n = units.len();
    let (pairs, triples) = ((n * n / 40).max(1) as u64, (n * n * n / 120).max(1) as u64);
    for (i, unit) in units.iter().enumerate() {
        states.push(union(&[i]));
        let others: Vec<_> = all.iter().copied().filter(|other| *other != i).collect();
        states.push(union(&others));
        for odd in 0..2 {
            let half = torn(point.durable, unit, odd);
            states.push(half.clone());
            states.push(union(&others).into_iter().chain(half).collect());
        }
        for j in i + 1..n {
            if drawn(pairs) {
                states.push(union(&[i, j]));
            }
            for k in j + 1..n {
                if drawn(triples) {
                    states.push(union(&[i, j, k]));
                }
            }
        }
    }
    states
}

impl Checker {
    /// Checks all states of a crash point: recovery must find one of `allowed`.
    pub fn point(&mut self, point: &CrashPoint<'_>, allowed: &[u64], what: &str) {
        let durable = hash(point.durable);
        if self.inherited {
            let stored = point.in_flight.iter().map(|(at, line)| (*at, *line.versions.last().unwrap())).collect();
            let inherits = Options { inherits: true, ..options(1) };
            let taken = mount_whole(Box::new(Ram::new(with(point.durable, &stored))), inherits);
            match taken.map(|volume| hash(&observe(&volume))) {
                Ok(tree) if allowed.contains(&tree) => {}
                Ok(_) => self.failures.push(format!("{what}: a takeover finds neither old nor new")),
                Err(why) => self.failures.push(format!("{what}: takeover: {why}")),
            }
        }
        for change in states(point) {
            let mut sorted = change.clone();
            sorted.sort_by_key(|(at, _)| *at);
            for lost in (0..REGIONS.len()).filter(|_| self.twice) {
                let key = hash(&(durable, &sorted, lost));
                let image = || with(point.durable, &sorted);
                let found = self.seen.get(&key).copied().map_or_else(|| without(image(), lost), Ok);
                match found {
                    Ok(tree) if allowed.contains(&tree) => _ = self.seen.insert(key, tree),
                    Ok(_) => self.failures.push(format!("{what}, without region {lost}: neither old nor new")),
                    Err(why) => self.failures.push(format!("{what}, without region {lost}: {why}")),
                }
            }
            sorted.retain(|((region, line), new)| point.durable[*region][*line as usize * LINE..][..LINE] != *new);
            let key = hash(&(durable, &sorted));
            let found = self.seen.get(&key).copied().map_or_else(|| self.state(with(point.durable, &sorted), key), Ok);
            match found {
                Ok(tree) if allowed.contains(&tree) => {}
                Ok(_) => self.failures.push(format!("{what}: neither old nor new, with {} lines", sorted.len())),
                Err(why) => self.failures.push(format!("{what}: {why}, with {} lines", sorted.len())),
            }
        }
    }

    /// Recovers an image; the hash of the tree that is found.
    fn state(&mut self, image: Image, key: u64) -> Result<u64, String> {
        self.checked += 1;
        let recovery = key.is_multiple_of(4).then(|| image.clone());
        let ram = Ram::new(image);
        let volume = mount_whole(Box::new(ram.clone()), options(1)).map_err(|e| format!("mount: {e}"))?;
        let tree = hash(&observe(&volume));
        drop(volume);
        if self.twice {
            match fs::twins_agree(Box::new(ram.clone())) {
                Ok(damage) if damage.is_empty() => {}
                other => return Err(format!("the twins after recovery: {other:?}")),
            }
        }
        if let Some(image) = recovery {
            self.recoveries += 1;
            check_recovery(image, tree)?;
        }
        if key % 8 == 1 {
            let report = fs::fsck::check(Box::new(ram.clone())).map_err(|e| format!("fsck: {e}"))?;
            if !report.damage.is_empty() || !report.orphans.is_empty() || report.journals > 0 {
                return Err(format!("fsck after recovery: {report:?}"));
            }
            let again = mount_whole(Box::new(ram), options(2)).map_err(|e| format!("second mount: {e}"))?;
            if hash(&observe(&again)) != tree {
                return Err("the second recovery finds another tree".into());
            }
            use_and_empty(&again)?;
        }
        self.seen.insert(key, tree);
        Ok(tree)
    }
}

/// What a look finds without the metadata of a region: the hash of its tree.
fn without(image: Image, lost: usize) -> Result<u64, String> {
    let volume =
        Volume::look(Box::new(LostMetadata::new(image, lost)), options(1)).map_err(|e| format!("look: {e}"))?;
    let damage = volume.damage().iter().filter(|damage| !matches!(damage, fs::Damage::Superblock { .. }));
    let damage: Vec<_> = damage.map(ToString::to_string).collect();
    if damage.is_empty() { Ok(hash(&observe(&volume))) } else { Err(damage.join(", ")) }
}

/// Crashes at every fence of a recovery: another recovery finds the same.
fn check_recovery(image: Image, tree: u64) -> Result<(), String> {
    let recorder = Recorder::new(image);
    let failure = Arc::new(Mutex::new(None));
    let note = Arc::clone(&failure);
    recorder.on_fence(Some(Box::new(move |point| {
        for change in states(point) {
            let ram = Ram::new(with(point.durable, &change));
            let found = mount_whole(Box::new(ram), options(1)).map(|volume| hash(&observe(&volume)));
            if !matches!(&found, Ok(found) if *found == tree) {
                *note.lock().unwrap() = Some(format!("crash in recovery: {:?}", found.map_err(|e| e.to_string())));
            }
        }
    })));
    drop(mount_whole(Box::new(recorder.clone()), options(1)).map_err(|e| format!("mount: {e}"))?);
    recorder.on_fence(None);
    failure.lock().unwrap().take().map_or(Ok(()), Err)
}

/// Writes and makes something, then deletes everything: each block must come back.
pub fn use_and_empty(volume: &Volume) -> Result<(), String> {
    let say = |what: &'static str| move |e: fs::Error| format!("{what} after recovery: {e}");
    let file = volume.create(Ino::ROOT, b"zz", NewFile { mode: 0o100_600, ..NewFile::default() });
    if let Ok(file) = file {
        match volume.write(file.ino, 1000, &[1; 4000]) {
            Err(fs::Error::NoSpace) => {}
            written => written.map_err(say("write"))?,
        }
    }
    empty(volume, Ino::ROOT).map_err(say("delete"))?;
    volume.clean(Ino::ROOT).map_err(say("clean"))?;
    if crate::used(volume) == 1 { Ok(()) } else { Err(format!("{} blocks are lost", crate::used(volume) - 1)) }
}

fn empty(volume: &Volume, dir: Ino) -> fs::Result<()> {
    for name in volume.names(dir, 0, usize::MAX)? {
        if name.named.kind == Kind::Directory {
            empty(volume, name.named.ino)?;
            volume.rmdir(dir, &name.name)?;
        } else {
            volume.unlink(dir, &name.name)?;
        }
    }
    Ok(())
}

/// Does `before`, then enumerates the crashes of `op`.
pub fn enumerate(checker: &Arc<Mutex<Checker>>, before: &[Op], op: &Op) {
    enumerate_with(checker, before, std::slice::from_ref(op), None);
}

/// Does `before`, then enumerates the crashes of `ops`, until one fails. The first one runs with
/// the sabotage; returned is how many flushes and fences it made.
fn enumerate_with(checker: &Arc<Mutex<Checker>>, before: &[Op], ops: &[Op], sabotage: Option<Sabotage>) -> (u64, u64) {
    let twice = checker.lock().unwrap().twice;
    let data_checksums = checker.lock().unwrap().data_checksums;
    let ram = Ram::new(blank(if twice { &TWICE } else { &REGIONS }));
    match twice {
        true => format_twice(Box::new(ram.clone()), data_checksums),
        false => format_with(Box::new(ram.clone()), 1, data_checksums),
    }
    let mut model = Model::new();
    let volume = mount_whole(Box::new(ram.clone()), options(1)).unwrap();
    for op in before {
        assert_eq!(op.on_volume(&volume), op.on_model(&mut model), "{op:?} after {before:?}");
    }
    if checker.lock().unwrap().full {
        fill(&volume, &mut model);
    }
    drop(volume);
    let recorder = Recorder::new(ram.image());
    let volume = mount_whole(Box::new(recorder.clone()), options(1)).unwrap();
    observe(&volume); // reads every inode: only logs of those that were used are cleaned
    recorder.sabotage(sabotage);
    let mut counts = None;
    for op in ops {
        let mut allowed = vec![hash(&model.tree())];
        if checker.lock().unwrap().in_parts {
            allowed.extend(parts(op, &model));
        }
        let expected = op.on_model(&mut model);
        let tree: Tree = model.tree();
        let new = hash(&tree);
        allowed.push(new);
        let what = format!("{op:?} after {before:?}");
        let (hook_checker, hook_what) = (Arc::clone(checker), what.clone());
        recorder.on_fence(Some(Box::new(move |point| {
            hook_checker.lock().unwrap().point(point, &allowed, &hook_what);
        })));
        // A thread of its own: a fence waits only for the flushes of its own thread.
        let done = std::thread::scope(|scope| scope.spawn(|| op.on_volume(&volume)).join().unwrap());
        assert_eq!(done, expected, "{what}");
        recorder.on_fence(None);
        assert_eq!(observe(&volume), tree, "{what}");
        // Durable on return: whatever else is in flight, the operation happened.
        recorder.look(|point| checker.lock().unwrap().point(point, &[new], &format!("{what}, returned")));
        counts.get_or_insert_with(|| recorder.counts());
        if !checker.lock().unwrap().failures.is_empty() {
            break;
        }
    }
    counts.unwrap()
}

/// Takes all blocks that a volume gives for growth.
fn fill(volume: &Volume, model: &mut Model) {
    let create = Op::Create("/filler".into());
    let append = Op::Append("/filler".into(), 4096, 7);
    assert_eq!(create.on_volume(volume), create.on_model(model));
    let full = loop {
        match append.on_volume(volume) {
            Ok(()) => append.on_model(model).unwrap(),
            full => break full,
        }
    };
    assert_eq!(full, Err(libc::ENOSPC));
}

/// The trees in which the first blocks of a write are written, and not all.
fn parts(op: &Op, model: &Model) -> Vec<u64> {
    let Op::Write(path, at, len, with) = op else { return Vec::new() };
    let part = |block| {
        let mut model = model.clone();
        Op::Write(path.clone(), *at, (block * 4096 - at) as usize, *with).on_model(&mut model).unwrap();
        hash(&model.tree())
    };
    (at / 4096 + 1..(at + *len as u64).div_ceil(4096)).map(part).collect()
}

/// A file with a name in two directories, one over several blocks, and an empty directory.
pub fn prelude() -> Vec<Op> {
    vec![
        Op::Create("/a".into()),
        Op::Write("/a".into(), 0, 6000, 1),
        Op::Mkdir("/d".into()),
        Op::Link("/a".into(), "/d/l".into()),
        Op::Create("/b".into()),
        Op::Write("/b".into(), 5000, 100, 2),
        Op::SetXattr("/b".into(), "user.x".into(), 5),
        Op::Mkdir("/e".into()),
    ]
}

/// Every operation, on names that make it do something.
fn operations() -> Vec<Op> {
    let s = String::from;
    vec![
        Op::Create(s("/c")),
        Op::Create(s("/d/c")),
        Op::Mkdir(s("/d/f")),
        Op::Symlink(s("/s"), s("a/target")),
        Op::Write(s("/a"), 100, 200, 3),
        Op::Write(s("/a"), 3000, 9000, 4),
        Op::Write(s("/b"), 20_000, 10, 5),
        Op::Append(s("/a"), 5000, 6),
        Op::Truncate(s("/a"), 4500),
        Op::Truncate(s("/a"), 9000),
        Op::Truncate(s("/b"), 0),
        Op::Allocate(s("/b"), 0, 12_000, false),
        Op::Allocate(s("/a"), 8192, 8192, true),
        Op::Punch(s("/a"), 1000, 4000),
        Op::Punch(s("/b"), 4096, 4096),
        Op::Zero(s("/a"), 3000, 6000, false),
        Op::Link(s("/a"), s("/e/m")),
        Op::Unnamed(s("/d/u"), 5000, 7),
        Op::Unlink(s("/a")),
        Op::Unlink(s("/b")),
        Op::Unlink(s("/d/l")),
        Op::Rmdir(s("/e")),
        Op::Rename(s("/a"), s("/n"), Rename::NoReplace),
        Op::Rename(s("/a"), s("/b"), Rename::Replace),
        Op::Rename(s("/b"), s("/a"), Rename::Replace),
        Op::Rename(s("/b"), s("/e/b"), Rename::Replace),
        Op::Rename(s("/d"), s("/e"), Rename::Replace),
        Op::Rename(s("/d"), s("/e/d"), Rename::Replace),
        Op::Rename(s("/b"), s("/d/l"), Rename::Replace),
        Op::Rename(s("/b"), s("/d/l"), Rename::Exchange),
        Op::Rename(s("/d/l"), s("/e"), Rename::Exchange),
        Op::Rename(s("/a"), s("/n"), Rename::Whiteout { uid: 0, gid: 0 }),
        Op::Rename(s("/b"), s("/e/b"), Rename::Whiteout { uid: 0, gid: 0 }),
        Op::Rename(s("/b"), s("/d/l"), Rename::Whiteout { uid: 0, gid: 0 }),
        Op::Chmod(s("/a"), 0o600),
        Op::SetXattr(s("/a"), s("user.y"), 300),
        Op::RemoveXattr(s("/b"), s("user.x")),
        Op::Migrate(s("/a"), 1),
        Op::Migrate(s("/b"), 0),
        Op::MigrateRange(s("/a"), 1, 1, 2),
        Op::MigrateRange(s("/a"), 0, 0, 9),
        Op::Clean(s("/a")),
        Op::Clean(s("/")),
        Op::CleanAround(s("/a"), 1, Box::new(Op::Append(s("/a"), 5000, 8))),
    ]
}

fn report(checker: &Checker, what: &str) {
    println!(
        "{what}: {} distinct crash states, {} of them also crashed in recovery",
        checker.checked, checker.recoveries
    );
    let first = checker.failures.iter().take(10).cloned().collect::<Vec<_>>();
    assert!(first.is_empty(), "{} failures, the first:\n{}", checker.failures.len(), first.join("\n"));
}

#[test]
fn every_operation_survives_a_crash_at_every_fence() {
    let checker = Arc::new(Mutex::new(Checker::default()));
    for op in operations() {
        enumerate(&checker, &[], &op);
        enumerate(&checker, &prelude(), &op);
    }
    report(&checker.lock().unwrap(), "one operation");
}

/// Each store to metadata is two: what a crash leaves of both is such that the twin of a region
/// that is lost then is as good as the region, and that both are alike after the next mount.
#[test]
fn twins_survive_a_crash_at_every_fence_and_the_loss_of_a_region() {
    let checker = Arc::new(Mutex::new(Checker { twice: true, ..Checker::default() }));
    for op in operations() {
        enumerate(&checker, &[], &op);
        enumerate(&checker, &prelude(), &op);
    }
    enumerate(&checker, &history(), &Op::DropHistory("/h".into()));
    report(&checker.lock().unwrap(), "one operation, with twins");
    let mut unnoticed = Vec::new();
    let mut removed = 0;
    let s = String::from;
    let ops = [
        Op::Create(s("/c")),
        Op::Write(s("/a"), 3000, 9000, 4),
        Op::Link(s("/a"), s("/e/m")),
        Op::Rename(s("/a"), s("/n"), Rename::NoReplace),
        Op::RemoveXattr(s("/b"), s("user.x")),
    ];
    for op in ops {
        let new = || Arc::new(Mutex::new(Checker { twice: true, ..Checker::default() }));
        let (flushes, _) = enumerate_with(&new(), &prelude(), std::slice::from_ref(&op), None);
        for flush in 1..=flushes {
            let checker = new();
            enumerate_with(&checker, &prelude(), &followed(op.clone()), Some(Sabotage::Flush(flush)));
            removed += 1;
            if checker.lock().unwrap().failures.is_empty() {
                unnoticed.push(format!("{op:?}: flush {flush} of {flushes}"));
            }
        }
    }
    println!("{removed} flushes left out, one at a time, of both copies; {} unnoticed", unnoticed.len());
    assert!(unnoticed.is_empty(), "{}", unnoticed.join("\n"));
}

/// The same with checksums of file data: each is durable with its block, or recovery would read an
/// error.
#[test]
fn data_with_checksums_survives_a_crash_at_every_fence() {
    let checker = Arc::new(Mutex::new(Checker { data_checksums: true, ..Checker::default() }));
    for op in operations() {
        enumerate(&checker, &prelude(), &op);
    }
    report(&checker.lock().unwrap(), "one operation, with checksums");
    let mut unnoticed = 0;
    let op = Op::Write("/a".into(), 3000, 9000, 4);
    let (flushes, _) = enumerate_with(&checker, &prelude(), std::slice::from_ref(&op), None);
    for flush in 1..=flushes {
        let checker = Arc::new(Mutex::new(Checker { data_checksums: true, ..Checker::default() }));
        enumerate_with(&checker, &prelude(), &followed(op.clone()), Some(Sabotage::Flush(flush)));
        unnoticed += u64::from(checker.lock().unwrap().failures.is_empty());
    }
    assert!(flushes > 3 && unnoticed == 0, "{unnoticed} of {flushes}");
}

/// A file with two names in a directory with another one: all that changes its number.
#[test]
fn a_drain_survives_a_crash_at_every_fence() {
    let s = String::from;
    let link = Op::Link(s("/d/a"), s("/n"));
    let prelude =
        [Op::Mkdir(s("/d")), Op::Create(s("/d/a")), Op::Write(s("/d/a"), 0, 100, 1), link, Op::Mkdir(s("/d/e"))];
    let run = |sabotage| {
        let checker = Arc::new(Mutex::new(Checker { inherited: true, ..Checker::default() }));
        let counts = enumerate_with(&checker, &prelude, &[Op::Drain(0)], sabotage);
        (checker, counts)
    };
    let (checker, (flushes, _)) = run(None);
    report(&checker.lock().unwrap(), "a drain");
    assert!(flushes > 33, "{flushes}");
    for flush in [1, 6, 17, 25, 33] {
        let found = !run(Some(Sabotage::Flush(flush))).0.lock().unwrap().failures.is_empty();
        assert!(found, "nobody misses flush {flush}");
    }
}

/// Blocks go in steps, and others get them in between; what is left of them is given away where a
/// later operation finds no room.
#[test]
fn giving_back_in_steps_survives_a_crash_at_every_fence() {
    let s = String::from;
    let write = |at: u64| Op::Write(s("/a"), at * 8192, 4096, at as u8);
    let prelude: Vec<Op> = [Op::Mkdir(s("/d")), Op::Mkdir(s("/e")), Op::Create(s("/a")), Op::Create(s("/b"))]
        .into_iter()
        .chain((0..6).map(write))
        .collect();
    let checker = Arc::new(Mutex::new(Checker::default()));
    for op in [Op::Unlink(s("/a")), Op::Truncate(s("/a"), 0), Op::Truncate(s("/a"), 9000)] {
        for steps in [0, 1] {
            let ops = followed(Op::Leaving(steps, Box::new(op.clone())));
            enumerate_with(&checker, &prelude, &ops, None);
        }
    }
    report(&checker.lock().unwrap(), "giving back in steps");
    let ops = followed(Op::Leaving(1, Box::new(Op::Truncate(s("/a"), 0))));
    let checker = Arc::new(Mutex::new(Checker::default()));
    enumerate_with(&checker, &prelude, &ops, Some(Sabotage::Flush(1)));
    assert!(!checker.lock().unwrap().failures.is_empty(), "blocks are given back that the file still has");
}

/// A log of three pages, of which the middle one is history: what happens to it, and how to get
/// there.
pub fn history() -> Vec<Op> {
    let xattrs = (0..60).map(|i| Op::SetXattr("/h".into(), format!("user.{i}"), 9));
    // 60 entries of attributes and 67 of one block: 2 pages are full, and nobody finds it worth
    // rewriting.
    let writes = (0..67).map(|i| Op::Write("/h".into(), 4096, 4096, i));
    [Op::Create("/h".into())].into_iter().chain(xattrs).chain(writes).collect()
}

#[test]
fn dropping_pages_of_a_log_survives_a_crash_at_every_fence() {
    let checker = Arc::new(Mutex::new(Checker::default()));
    enumerate(&checker, &history(), &Op::DropHistory("/h".into()));
    let after: Vec<Op> = history().into_iter().chain([Op::DropHistory("/h".into())]).collect();
    enumerate(&checker, &after, &Op::Write("/h".into(), 0, 9000, 7));
    let mut ops = vec![Op::DropHistory("/h".into()), Op::Append("/h".into(), 10, 9), Op::Create("/q".into())];
    ops.push(Op::Write("/q".into(), 0, 15 * 4096, 8));
    let (flushes, fences) = enumerate_with(&checker, &history(), &ops, None);
    report(&checker.lock().unwrap(), "dropping pages");
    assert_eq!((flushes, fences), (1, 2), "one word");
    let checker = Arc::new(Mutex::new(Checker::default()));
    enumerate_with(&checker, &history(), &ops, Some(Sabotage::Flush(1)));
    assert!(!checker.lock().unwrap().failures.is_empty(), "a page that is used again is still in the log");
}

/// A log is written anew in steps, and between two of them something else happens, to the same
/// inode or beside it.
#[test]
fn cleaning_a_log_in_steps_survives_a_crash_at_every_fence() {
    let checker = Arc::new(Mutex::new(Checker::default()));
    let mut before = prelude();
    // Several extents and several names, so that there is something behind the place and something
    // before it.
    before.extend((0..4).map(|i| Op::Write("/a".into(), 12_288 + 8192 * i, 4096, 5)));
    for op in operations().into_iter().filter(|op| !matches!(op, Op::CleanAround(..))) {
        for path in ["/a", "/", "/d"] {
            enumerate(&checker, &before, &Op::CleanAround(path.into(), 1, Box::new(op.clone())));
        }
    }
    report(&checker.lock().unwrap(), "one operation while a log is cleaned");
    // Without any one flush or fence it is noticed, but for the last of the write: the new log has
    // what that tail commits.
    let op = Op::CleanAround("/a".into(), 1, Box::new(Op::Write("/a".into(), 12_288, 4096, 6)));
    let (flushes, fences) = enumerate_with(&checker, &before, std::slice::from_ref(&op), None);
    let all = (1..=flushes).map(Sabotage::Flush).chain((1..=fences).map(Sabotage::Fence));
    let unnoticed = all.filter(|sabotage| {
        let checker = Arc::new(Mutex::new(Checker::default()));
        enumerate_with(&checker, &before, &followed(op.clone()), Some(*sabotage));
        checker.lock().unwrap().failures.is_empty()
    });
    assert_eq!(unnoticed.collect::<Vec<_>>(), [Sabotage::Flush(4), Sabotage::Fence(2)]);
    assert!(flushes > 8 && fences > 4, "{flushes} {fences}");
}

/// All pairs of operations, some of them with one operation more; with HOMENODE_FS_LONG set, each
/// with every operation more.
#[test]
fn sequences_of_operations_survive_a_crash_at_every_fence() {
    let checker = Arc::new(Mutex::new(Checker::default()));
    let operations = operations();
    let long = std::env::var_os("HOMENODE_FS_LONG").is_some();
    for (i, first) in operations.iter().enumerate() {
        for (j, second) in operations.iter().enumerate() {
            let mut before = prelude();
            before.push(first.clone());
            enumerate(&checker, &before, second);
            before.push(second.clone());
            let (skip, take) = match long {
                true => (0, usize::MAX),
                false => ((7 * i + 3 * j) % operations.len(), usize::from((i + j) % 3 == 0)),
            };
            for third in operations.iter().skip(skip).take(take) {
                enumerate(&checker, &before, third);
            }
            let mut checker = checker.lock().unwrap();
            if checker.seen.len() > 4_000_000 {
                checker.seen.clear(); // bounds the memory; an image that returns is checked and counted again
            }
            if long && j == 0 {
                println!(
                    "{i} of {}: {} states, {} of them also crashed in recovery",
                    operations.len(),
                    checker.checked,
                    checker.recoveries
                );
            }
        }
    }
    report(&checker.lock().unwrap(), "two and three operations");
}

/// A second operation, which shows that something of the one before was not durable: the same logs
/// grow, its free blocks are used.
fn followed(op: Op) -> Vec<Op> {
    let appends = ["/a", "/n", "/b", "/d/l"].map(|path| Op::Append(path.into(), 10, 9));
    let creates = ["/q", "/d/q", "/e/q"].map(|path| Op::Create(path.into()));
    let fill = [Op::Write("/q".into(), 0, 15 * 4096, 8), Op::Write("/d/q".into(), 17 * 4096, 15 * 4096, 7)];
    [op].into_iter().chain(appends).chain(creates).chain(fill).collect()
}

/// Flushes and fences that may be missing, and why.
fn not_needed(op: &Op, sabotage: Sabotage, (flushes, _): (u64, u64)) -> Option<&'static str> {
    let frees = matches!(op, Op::Unlink(_) | Op::Rmdir(_) | Op::Rename(_, _, Rename::Replace));
    match sabotage {
        Sabotage::Flush(n) if frees && n == flushes => Some("an inode that is not durably free is an orphan"),
        _ if matches!(op, Op::Allocate(_, _, _, true)) => Some("blocks beyond the end cannot be seen"),
        Sabotage::Flush(3) | Sabotage::Fence(2) if matches!(op, Op::Migrate(_, 1)) => {
            Some("the log follows the data right away, and that commits a new tail")
        }
        Sabotage::Flush(3) | Sabotage::Fence(2) if matches!(op, Op::MigrateRange(_, 1, ..)) => {
            Some("the file reads the same, and the append that follows commits a new tail")
        }
        Sabotage::Fence(4) if matches!(op, Op::CleanAround(..)) => Some("what follows has a fence before its commit"),
        // Flushes: the inode's line, and its tail after the write.
        Sabotage::Flush(2 | 6) | Sabotage::Fence(1..=3) if matches!(op, Op::Unnamed(..)) => {
            Some("a file without a name cannot be seen; naming it stores a new tail in that line, and waits")
        }
        _ => None,
    }
}

/// Mutation: without any one flush or fence of any one operation, the enumeration fails.
#[test]
fn every_flush_and_every_fence_is_needed() {
    let mut unnoticed = Vec::new();
    let mut removed = 0;
    for op in operations() {
        let checker = Arc::new(Mutex::new(Checker::default()));
        let ops = followed(op.clone());
        let counts = enumerate_with(&checker, &prelude(), &ops[..1], None);
        let all = (1..=counts.0).map(Sabotage::Flush).chain((1..=counts.1).map(Sabotage::Fence));
        for sabotage in all.filter(|sabotage| not_needed(&op, *sabotage, counts).is_none()) {
            removed += 1;
            let checker = Arc::new(Mutex::new(Checker::default()));
            enumerate_with(&checker, &prelude(), &ops, Some(sabotage));
            if checker.lock().unwrap().failures.is_empty() {
                unnoticed.push(format!("{op:?}: {sabotage:?}"));
            }
        }
    }
    println!("{removed} flushes and fences left out, one at a time; {} unnoticed", unnoticed.len());
    assert!(unnoticed.is_empty(), "{}", unnoticed.join("\n"));
}

/// What a full volume has: files with blocks, in one piece and in pieces, and files with blocks
/// that were never written.
fn full_prelude() -> Vec<Op> {
    let s = String::from;
    // What a block has that was never written may not be seen.
    let mut ops = vec![Op::Create(s("/z")), Op::Write(s("/z"), 0, 60 * 4096, 5), Op::Unlink(s("/z"))];
    ops.extend(prelude());
    ops.extend([
        // Never written, beyond the size.
        Op::Create(s("/p")),
        Op::Allocate(s("/p"), 0, 5 * 4096, true),
        // The same within the size, behind a block that is written.
        Op::Create(s("/q")),
        Op::Write(s("/q"), 0, 3000, 1),
        Op::Allocate(s("/q"), 0, 5 * 4096, false),
        // Beyond the size, in the middle of which a block begins; the end of that has bytes that
        // the file had before.
        Op::Create(s("/r")),
        Op::Write(s("/r"), 0, 8192, 2),
        Op::Truncate(s("/r"), 5000),
        Op::Allocate(s("/r"), 0, 5 * 4096, true),
        Op::Create(s("/w")),
        Op::Write(s("/w"), 0, 4 * 4096 + 10, 3),
        Op::Create(s("/pieces")),
    ]);
    // Each block is a run of its own.
    ops.extend([0, 2, 1, 3].map(|block| Op::Write(s("/pieces"), block * 4096, 4096, 4)));
    ops
}

/// Writes on a full volume that are done completely or not at all.
fn full_writes() -> Vec<Op> {
    let write = |path: &str, at, len| Op::Write(path.into(), at, len, 9);
    vec![
        // Over a block of the file.
        write("/a", 0, 4096),
        write("/a", 100, 200),
        write("/a", 5000, 3000),
        write("/w", 4 * 4096, 4096),
        // In place.
        write("/p", 0, 4096),
        write("/p", 100, 200),
        write("/p", 2 * 4096 + 10, 100),
        write("/p", 3000, 3000),
        write("/p", 0, 5 * 4096),
        write("/p", 5 * 4096 - 1, 1),
        write("/q", 5000, 100),
        write("/q", 4096, 4 * 4096),
        write("/r", 2 * 4096, 4096),
        write("/r", 9000, 100),
        write("/r", 3 * 4096 - 1, 2),
    ]
}

/// Writes over two blocks, which is as many as the reserve has for them.
fn full_writes_of_two() -> Vec<Op> {
    let write = |path: &str, at, len| Op::Write(path.into(), at, len, 9);
    vec![write("/a", 3000, 3000), write("/w", 100, 8000), write("/pieces", 4096, 8192), write("/r", 4000, 1000)]
}

/// Writes on a full volume that are done in parts: more than the reserve has, or partly in place.
fn full_writes_in_parts() -> Vec<Op> {
    let write = |path: &str, at, len| Op::Write(path.into(), at, len, 9);
    vec![
        write("/w", 0, 4 * 4096),
        write("/w", 100, 4 * 4096),
        write("/pieces", 10, 4 * 4096 - 20),
        write("/q", 0, 3 * 4096),
        write("/q", 4000, 5000),
        write("/r", 4096, 3 * 4096),
        write("/r", 100, 5 * 4096 - 100),
    ]
}

/// Other changes that take no block for long, or free some.
fn full_changes() -> Vec<Op> {
    let s = String::from;
    vec![
        Op::Chmod(s("/a"), 0o600),
        Op::Chmod(s("/d"), 0o700),
        Op::AccessTime(s("/a"), -77),
        Op::AccessTime(s("/"), -78),
        Op::SetXattr(s("/b"), s("user.x"), 3),
        Op::RemoveXattr(s("/b"), s("user.x")),
        Op::Rename(s("/a"), s("/n"), Rename::NoReplace),
        Op::Rename(s("/p"), s("/d/n"), Rename::NoReplace),
        Op::Rename(s("/e"), s("/d/e"), Rename::NoReplace),
        Op::Rename(s("/q"), s("/r"), Rename::Replace),
        Op::Rename(s("/b"), s("/d/l"), Rename::Replace),
        Op::Rename(s("/b"), s("/d/l"), Rename::Exchange),
        Op::Rename(s("/d/l"), s("/e"), Rename::Exchange),
        Op::Truncate(s("/w"), 5000),
        Op::Punch(s("/w"), 4096, 8192),
        Op::Unlink(s("/p")),
        Op::Unlink(s("/a")),
        Op::Rmdir(s("/e")),
    ]
}

/// The same where the page of each log has room for so many more entries.
fn full_prelude_with_logs(room: usize) -> Vec<Op> {
    let mut ops = full_prelude();
    // A rename changes three logs, and the reserve has no pages for all of them.
    let logs = [("/a", 3), ("/b", 3), ("/p", 2), ("/q", 4), ("/r", 4), ("/w", 3), ("/pieces", 5), ("/d", 2), ("/e", 1)];
    for (path, room, entries) in logs.map(|(path, n)| (path, room, n)).into_iter().chain([("/", 1 - room, 13)]) {
        ops.extend((entries + room..63).map(|i| Op::Chmod(path.into(), 0o500 + i as u32)));
    }
    ops
}

/// Checkers of what a full volume does completely or not at all, and of what it may do in parts.
fn full_checkers(data_checksums: bool) -> [Arc<Mutex<Checker>>; 2] {
    let checker = |in_parts| Checker { data_checksums, full: true, in_parts, ..Checker::default() };
    [false, true].map(|in_parts| Arc::new(Mutex::new(checker(in_parts))))
}

#[test]
fn a_full_volume_survives_a_crash_at_every_fence() {
    for data_checksums in [false, true] {
        let [whole, in_parts] = full_checkers(data_checksums);
        for before in [full_prelude(), full_prelude_with_logs(0), full_prelude_with_logs(1)] {
            full_writes().iter().chain(&full_changes()).for_each(|op| enumerate(&whole, &before, op));
            // With a new page of the log the reserve has room for one block.
            let two = if before == full_prelude() { &whole } else { &in_parts };
            full_writes_of_two().iter().for_each(|op| enumerate(two, &before, op));
            full_writes_in_parts().iter().for_each(|op| enumerate(&in_parts, &before, op));
        }
        report(&whole.lock().unwrap(), "one operation on a full volume");
        report(&in_parts.lock().unwrap(), "one write in parts on a full volume");
    }
}

/// Flushes and fences of a write on a full volume that may be missing, and why.
fn not_needed_when_full(op: &Op, sabotage: Sabotage, flushes: u64) -> Option<&'static str> {
    let Op::Write(path, at, len, _) = op else { return None };
    // The end of the file becomes zeros before a write beyond it.
    let beyond = path == "/r" && *at >= 8192;
    // The flushes of the other parts, where those use no block that the first one freed.
    let others = match path.as_str() {
        "/w" if *len == 4 * 4096 && *at > 0 => 4,
        "/q" if *at <= 4000 => 3,
        "/r" if *at < 8192 && *len > 8192 || beyond => 3,
        _ => 0,
    };
    match sabotage {
        Sabotage::Flush(1 | 2) if beyond => Some("the try that found no room stored the same there"),
        Sabotage::Flush(n) if others > 0 && n == flushes - others => Some("the next part stores a later tail"),
        Sabotage::Fence(2) if others > 0 => Some("the next part stores a later tail, and waits"),
        _ => None,
    }
}

/// Mutation: without any one flush or fence of a write on a full volume, the enumeration fails.
#[test]
fn every_flush_and_every_fence_of_a_write_on_a_full_volume_is_needed() {
    let (mut unnoticed, mut removed) = (Vec::new(), 0);
    let whole = full_writes().into_iter().chain(full_writes_of_two()).map(|op| (op, 0));
    let parts = full_writes_in_parts().into_iter().map(|op| (op, 1));
    for (op, checker) in whole.chain(parts) {
        let enumerate = |ops: &[Op], sabotage| {
            let checker = &full_checkers(false)[checker];
            let counts = enumerate_with(checker, &full_prelude(), ops, sabotage);
            let noticed = !checker.lock().unwrap().failures.is_empty();
            (counts, noticed)
        };
        let path = if let Op::Write(path, ..) = &op { path.clone() } else { unreachable!() };
        // The log grows, and the blocks that were freed are used.
        let ops =
            [op.clone(), Op::Chmod(path, 0o600), Op::Write("/w".into(), 0, 8192, 8), Op::Unlink("/filler".into())];
        let ops: Vec<Op> = ops.into_iter().chain(followed(op.clone()).into_iter().skip(1)).collect();
        let ((flushes, fences), _) = enumerate(&ops[..1], None);
        let all = (1..=flushes).map(Sabotage::Flush).chain((1..=fences).map(Sabotage::Fence));
        for sabotage in all.filter(|sabotage| not_needed_when_full(&op, *sabotage, flushes).is_none()) {
            removed += 1;
            if !enumerate(&ops, Some(sabotage)).1 {
                unnoticed.push(format!("{op:?}: {sabotage:?} of {flushes}, {fences}"));
            }
        }
    }
    println!("{removed} flushes and fences left out, one at a time; {} unnoticed", unnoticed.len());
    assert!(unnoticed.is_empty(), "{}", unnoticed.join("\n"));
}
