//! Threads in every order that chance draws: what real threads meet once in a million runs.
//!
//! shuttle runs the threads of a test one at a time and changes over at each lock and each atomic
//! (see `sync`). It finds deadlocks by itself. It does not model weak memory: everything happens in
//! some order that all threads agree on.
//!
//! HOMENODE_FS_ORDERS=N tries N times as many.

use std::fs::File;
use std::sync::Arc;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner, thread};

use crate::alloc::{Allocator, Purpose};
use crate::format::superblock::{Region, Superblock};
use crate::medium::{Mapped, Medium, RegionFile};
use crate::{Error, Ino, Layout, Migration, NewFile, Options, Placement, Rename, SetAttributes, Volume, mkfs};

const BLOCK: usize = 4096;

/// Runs `work`, which starts threads, in `times` orders, or more if the environment says so.
pub fn check(times: usize, work: impl Fn() + Send + Sync + 'static) {
    run(RandomScheduler::new(times * more()), work);
}

/// The same in orders in which a thread stands still at up to two places while others do much:
/// chance alone hardly draws these.
fn check_pauses(times: usize, work: impl Fn() + Send + Sync + 'static) {
    run(PctScheduler::new(2, times * more()), work);
}

fn more() -> usize {
    std::env::var("HOMENODE_FS_ORDERS").map_or(1, |n| n.parse().unwrap())
}

fn run(orders: impl Scheduler + 'static, work: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.silence_warnings = true; // it models no weak memory, and says so each time
    Runner::new(orders, config).run(work);
}

/// Runs what uses a volume and starts no threads.
pub fn once(work: impl Fn() + Send + Sync + 'static) {
    run(RandomScheduler::new(1), work);
}

/// Regions of so many blocks, on node 0 and node 1.
pub fn regions(blocks: [u64; 2]) -> impl Fn() -> Box<dyn Medium> {
    let files = blocks.map(|blocks| {
        let file = File::from(rustix::fs::memfd_create("homenode", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.set_len(blocks * BLOCK as u64).unwrap();
        file
    });
    move || {
        let files = files.iter().map(|file| RegionFile { file: file.try_clone().unwrap(), bind: None });
        Box::new(Mapped::new(&files.collect::<Vec<_>>()).unwrap())
    }
}

fn format(medium: Box<dyn Medium>) {
    let layout = Layout { volume: [1; 16], nodes: vec![Some(0), Some(1)], ..Layout::default() };
    mkfs(medium, &layout).unwrap();
}

fn mount(medium: Box<dyn Medium>) -> Volume {
    Volume::mount(medium, Options { parts: 2, ..Options::default() }).unwrap()
}

/// A new volume on two regions of so many blocks.
pub fn volume(blocks: [u64; 2]) -> Volume {
    let map = regions(blocks);
    format(map());
    mount(map())
}

fn create(volume: &Volume, dir: Ino, name: &[u8]) -> Ino {
    volume.create(dir, name, NewFile { mode: 0o644, ..NewFile::default() }).unwrap().ino
}

fn mkdir(volume: &Volume, name: &[u8]) -> Ino {
    volume.create(Ino::ROOT, name, NewFile { mode: 0o040_755, ..NewFile::default() }).unwrap().ino
}

fn used(volume: &Volume) -> u64 {
    volume.usage().regions.iter().map(|r| r.blocks - r.free_blocks).sum()
}

fn join<T>(threads: impl IntoIterator<Item = thread::JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn a_reader_a_writer_and_a_migration_of_one_file() {
    beside_a_reader_and_a_writer(&|volume, file| _ = volume.migrate_file(file, 1, None, |_| true).unwrap());
}

#[test]
fn a_reader_a_writer_and_a_migration_of_a_range() {
    beside_a_reader_and_a_writer(&|volume, file| {
        let (from, end) = (Some(0), Some(2));
        let range = Migration { to: 1, from, first: 1, end, leave_log: true, ..Migration::default() };
        assert!(volume.migrate(file, range, |_| true).unwrap().moved <= 1, "one block is in the range");
    });
}

fn beside_a_reader_and_a_writer(migrate: &'static (dyn Fn(&Volume, Ino) + Sync)) {
    check(800, move || {
        let volume = Arc::new(volume([40, 40]));
        let file = create(&volume, Ino::ROOT, b"f");
        volume.write_to(file, 0, &[1; 3 * BLOCK], Placement::Node(0)).unwrap();
        let (v, w, r) = (Arc::clone(&volume), Arc::clone(&volume), Arc::clone(&volume));
        let migration = thread::spawn(move || migrate(&v, file));
        let writer = thread::spawn(move || {
            for round in 2..5 {
                w.write_to(file, 0, &[round; 3 * BLOCK], Placement::Node(0)).unwrap();
            }
        });
        let reader = thread::spawn(move || {
            let mut last = 1;
            for _ in 0..3 {
                let mut out = [0; 3 * BLOCK];
                assert_eq!(r.read(file, 0, &mut out).unwrap(), out.len());
                let now = out[0];
                assert!(out.iter().all(|byte| *byte == now), "a part of a write");
                assert!(now >= last, "an older write after a newer one");
                last = now;
            }
        });
        migration.join().unwrap();
        join([writer, reader]);
        let mut out = [0; 3 * BLOCK];
        volume.read(file, 0, &mut out).unwrap();
        assert_eq!(out, [4; 3 * BLOCK], "the last write is lost");
        volume.unlink(Ino::ROOT, b"f").unwrap();
        assert_eq!(used(&volume), 1, "blocks are lost");
    });
}

/// Two threads, each with one block at a time, and two blocks: there is always one, and nobody else
/// has it.
#[test]
fn a_block_that_is_free_is_found_and_has_one_owner() {
    check(2000, || {
        let region = Region { blocks: 40, inodes: 16, node: None };
        let (volume, journals, created, ro_features, features) = ([1; 16], 1, 0, 0, 0);
        let superblock =
            Superblock { volume, index: 0, journals, created, ro_features, features, regions: vec![region] };
        let from = superblock.data_from(0).unwrap();
        let last = from + (40 - from).div_ceil(2); // in the second part
        let allocator = Arc::new(Allocator::new(&superblock, 2, &[vec![(from, 1), (last, 1)]]));
        let owned = Arc::new(std::sync::Mutex::new(Vec::new()));
        let threads = (0..2).map(|part| {
            let (allocator, owned) = (Arc::clone(&allocator), Arc::clone(&owned));
            thread::spawn(move || {
                for _ in 0..3 {
                    let mut fresh = allocator.fresh();
                    let got = allocator.allocate(&[0], 1, part, Purpose::Cleaning, &mut fresh);
                    let (block, _) = got.expect("there are as many blocks as threads");
                    assert!(!owned.lock().unwrap().contains(&block), "a second owner");
                    owned.lock().unwrap().push(block);
                    thread::yield_now();
                    owned.lock().unwrap().retain(|own| *own != block);
                    drop(fresh);
                }
            })
        });
        join(threads.collect::<Vec<_>>());
        assert_eq!(allocator.usage(0).0, 2);
        assert_eq!(allocator.free_runs(), [[(from, 1), (last, 1)]]);
    });
}

/// Two threads find a volume full of history at the same time: what cleaning gives back is enough
/// for both.
#[test]
fn threads_that_need_room_at_the_same_time_both_get_it() {
    check(100, || {
        let volume = Arc::new(volume([24, 24]));
        let files = [create(&volume, Ino::ROOT, b"a"), create(&volume, Ino::ROOT, b"b")];
        for (mode, file) in (0..70).flat_map(|mode| files.map(|file| (mode, file))) {
            volume.set_attributes(file, SetAttributes { mode: Some(mode), ..SetAttributes::default() }).unwrap();
        }
        let data = create(&volume, Ino::ROOT, b"data");
        let filled = used(&volume);
        let usable: u64 = volume.usage().regions.iter().map(|r| r.blocks - r.reserved_blocks).sum();
        for _ in filled..usable {
            volume.append(data, &[1; BLOCK]).unwrap();
        }
        assert_eq!(used(&volume), usable);
        let append = |file| {
            let volume = Arc::clone(&volume);
            thread::spawn(move || volume.append(file, &[2; BLOCK]).map(|_| ()))
        };
        let done = join(files.map(append));
        assert!(done.iter().all(Result::is_ok), "{done:?}");
        [&b"a"[..], b"b", b"data"].iter().for_each(|name| volume.unlink(Ino::ROOT, name).unwrap());
        assert_eq!(used(&volume), 1);
    });
}

/// A log is written anew in steps of a slot while a writer cuts the file off, writes and gives it
/// attributes, and names come and go: the new log says the same as the inode.
#[test]
fn a_log_that_is_cleaned_while_its_inode_changes() {
    check(600, || {
        let map = regions([40, 40]);
        format(map());
        let volume = Arc::new(mount(map()));
        let file = create(&volume, Ino::ROOT, b"f");
        (0..3).for_each(|i| volume.write(file, i * 8192, &[1; BLOCK]).unwrap());
        volume.set_xattr(file, b"user.a", b"1", crate::SetXattr::Any).unwrap();
        let dir = mkdir(&volume, b"d");
        [&b"a"[..], b"b", b"c"].iter().for_each(|name| _ = create(&volume, dir, name));
        let (cleans, writes) = (Arc::clone(&volume), Arc::clone(&volume));
        let cleaner = thread::spawn(move || {
            for ino in [file, dir] {
                cleans.clean_in_steps(ino, 1, || true).unwrap();
            }
        });
        let writer = thread::spawn(move || {
            writes.remove_xattr(file, b"user.a").unwrap();
            writes.rename((dir, b"a"), (dir, b"b"), Rename::Replace).unwrap();
            writes.write(file, 8192, &[2; BLOCK]).unwrap();
            writes.unlink(dir, b"c").unwrap();
            writes.truncate(file, 9000).unwrap();
            create(&writes, dir, b"c");
            writes.write(file, 30_000, &[3; BLOCK]).unwrap();
            writes.rename((dir, b"c"), (dir, b"b"), Rename::Exchange).unwrap();
        });
        join([cleaner, writer]);
        let seen = |volume: &Volume| {
            let names: Vec<_> = volume.names(dir, 0, 10).unwrap();
            let runs = volume.map(file).unwrap();
            (names, runs, volume.stat(file).unwrap(), volume.xattrs(file).unwrap(), volume.next_cookie(dir).unwrap())
        };
        let (now, taken) = (seen(&volume), used(&volume));
        drop(volume);
        let again = mount(map());
        assert_eq!(seen(&again), now);
        assert_eq!(used(&again), taken);
    });
}

/// The number of a file that was replaced is given to the next new one: nobody who asks for the
/// name gets that, or nothing.
#[test]
fn a_name_that_is_replaced_always_stands_for_its_file() {
    check_pauses(800, || {
        let volume = Arc::new(volume([40, 40]));
        let _inodes = [b"f", b"g", b"h"].map(|name| create(&volume, Ino::ROOT, name));
        let (looks, makes) = (Arc::clone(&volume), Arc::clone(&volume));
        let looker = thread::spawn(move || {
            for _ in 0..3 {
                let found = looks.lookup(Ino::ROOT, b"f").unwrap();
                assert_ne!(found.attributes.mode & 0o7777, 0o600, "another file");
            }
        });
        // A third file may get the number of the first, and its name.
        let saves = Arc::clone(&volume);
        let saver = thread::spawn(move || {
            for _ in 0..2 {
                create(&saves, Ino::ROOT, b"new");
                saves.rename((Ino::ROOT, b"new"), (Ino::ROOT, b"f"), Rename::Replace).unwrap();
            }
        });
        let maker = thread::spawn(move || {
            makes.create(Ino::ROOT, b"secret", NewFile { mode: 0o600, ..NewFile::default() }).unwrap();
        });
        for from in [b"g", b"h"] {
            volume.rename((Ino::ROOT, from), (Ino::ROOT, b"f"), Rename::Replace).unwrap();
        }
        join([looker, maker, saver]);
    });
}

/// An open file keeps its data; an unlinked one is gone; the last one out frees the blocks.
#[test]
fn a_file_that_is_opened_while_its_name_goes() {
    check(800, || {
        let volume = Arc::new(volume([40, 40]));
        let file = create(&volume, Ino::ROOT, b"f");
        volume.write(file, 0, &[7; BLOCK]).unwrap();
        let readers = [0, 1].map(|_| {
            let volume = Arc::clone(&volume);
            thread::spawn(move || match volume.open(file) {
                Ok(()) => {
                    let mut out = [0; BLOCK];
                    assert_eq!(volume.read(file, 0, &mut out).unwrap(), BLOCK);
                    assert_eq!(out, [7; BLOCK]);
                    volume.close(file).unwrap();
                }
                Err(error) => assert!(matches!(error, Error::NotFound), "{error}"),
            })
        });
        let other = Arc::clone(&volume);
        let remover = thread::spawn(move || other.unlink(Ino::ROOT, b"f").unwrap());
        join(readers.into_iter().chain([remover]));
        assert!(matches!(volume.stat(file), Err(Error::NotFound)));
        assert_eq!(used(&volume), 1);
    });
}

/// After a mount with a checkpoint nothing is read: three threads ask for the same inode first, one
/// removes it.
#[test]
fn threads_that_are_the_first_to_use_an_inode() {
    check(300, || {
        let map = regions([40, 40]);
        format(map());
        let made = mount(map());
        let dir = mkdir(&made, b"d");
        let file = create(&made, dir, b"f");
        made.write(file, 0, &[7; BLOCK]).unwrap();
        made.unmount().unwrap();
        let volume = Arc::new(mount(map()));
        let look = |_| {
            let volume = Arc::clone(&volume);
            thread::spawn(move || match volume.lookup(dir, b"f").and_then(|stat| volume.map(stat.ino)) {
                Ok(runs) => assert_eq!(runs.len(), 1),
                Err(error) => assert!(matches!(error, Error::NotFound), "{error}"),
            })
        };
        let other = Arc::clone(&volume);
        let remover = thread::spawn(move || other.unlink(dir, b"f").unwrap());
        join([0, 1].map(look).into_iter().chain([remover]));
        assert!(matches!(volume.stat(file), Err(Error::NotFound)));
        volume.rmdir(Ino::ROOT, b"d").unwrap();
        assert_eq!(used(&volume), 1);
    });
}

/// A kernel forgets a file and a directory while others look them up, change and remove them:
/// nobody misses them, and nobody's change.
#[test]
fn an_inode_that_is_forgotten_while_it_is_used() {
    check(400, || forgotten_while_used(false));
    check_pauses(400, || forgotten_while_used(false));
}

/// The same where memory is short, so that what the kernel remembers goes as well.
#[test]
fn an_inode_that_goes_while_a_kernel_remembers_it() {
    check(400, || forgotten_while_used(true));
    check_pauses(400, || forgotten_while_used(true));
}

fn forgotten_while_used(short: bool) {
    let map = regions([40, 40]);
    format(map());
    let volume = Arc::new(mount(map()));
    volume.bound_memory(u64::from(short));
    let dir = mkdir(&volume, b"d");
    let file = create(&volume, dir, b"f");
    volume.write(file, 0, &[7; BLOCK]).unwrap();
    let looks = [0, 1].map(|_| {
        let volume = Arc::clone(&volume);
        thread::spawn(move || {
            for _ in 0..2 {
                let found = volume.lookup_to_remember(Ino::ROOT, b"d").unwrap();
                let within = volume.lookup_to_remember(found.ino, b"f").unwrap();
                assert_eq!(volume.lookup(found.ino, b"..").unwrap().ino, Ino::ROOT);
                assert_eq!(volume.map(within.ino).unwrap().len(), 1);
                volume.forget(within.ino, 1).unwrap();
                volume.forget(found.ino, 1).unwrap();
            }
        })
    });
    let other = Arc::clone(&volume);
    let writer = thread::spawn(move || {
        for round in 1..3 {
            other.write(file, 0, &[round; BLOCK]).unwrap();
            create(&other, dir, &[b'a' + round]);
        }
    });
    let other = Arc::clone(&volume);
    let shrinker = thread::spawn(move || (0..3).for_each(|_| other.shrink()));
    join(looks.into_iter().chain([writer, shrinker]));
    volume.shrink();
    let mut out = [0; BLOCK];
    volume.read(file, 0, &mut out).unwrap();
    assert_eq!((out, volume.names(dir, 0, 10).unwrap().len()), ([2; BLOCK], 3));
    volume.remember(file).unwrap();
    volume.unlink(dir, b"f").unwrap();
    volume.stat(file).unwrap();
    volume.forget(file, 1).unwrap();
    assert!(matches!(volume.stat(file), Err(Error::NotFound)));
    [b"b", b"c"].iter().for_each(|name| volume.unlink(dir, *name).unwrap());
    volume.rmdir(Ino::ROOT, b"d").unwrap();
    assert_eq!(used(&volume), 1);
}

/// A kernel that was told another life of the number took the new file for a bad one.
#[test]
fn what_a_lookup_remembers_is_what_it_tells() {
    check_pauses(1000, || {
        let volume = Arc::new(volume([40, 40]));
        create(&volume, Ino::ROOT, b"f");
        let other = Arc::clone(&volume);
        let looks = thread::spawn(move || match other.lookup_to_remember(Ino::ROOT, b"f") {
            Ok(told) => {
                assert_eq!(other.stat(told.ino).unwrap().generation, told.generation);
                other.forget(told.ino, 1).unwrap();
            }
            Err(error) => assert!(matches!(error, Error::NotFound), "{error}"),
        });
        volume.unlink(Ino::ROOT, b"f").unwrap();
        create(&volume, Ino::ROOT, b"g");
        looks.join().unwrap();
    });
}

/// Renames across each other: no deadlock, no circle, nothing lost.
#[test]
fn directories_that_move_into_each_other() {
    check(800, || {
        let volume = Arc::new(volume([40, 40]));
        let (a, b) = (mkdir(&volume, b"a"), mkdir(&volume, b"b"));
        create(&volume, a, b"x");
        let rename = |from: (Ino, &'static [u8]), to: (Ino, &'static [u8])| {
            let volume = Arc::clone(&volume);
            thread::spawn(move || volume.rename(from, to, Rename::Replace).is_ok())
        };
        let threads =
            [rename((Ino::ROOT, b"a"), (b, b"a")), rename((Ino::ROOT, b"b"), (a, b"b")), rename((a, b"x"), (b, b"x"))];
        let done = join(threads);
        assert_eq!(done.iter().filter(|done| **done).count(), 2, "one directory moves, and the file: {done:?}");
        assert!(volume.lookup(b, b"x").is_ok());
        let (outer, inner) = if done[0] { (b, a) } else { (a, b) };
        assert_eq!(volume.lookup(inner, b"..").unwrap().ino, outer);
    });
}

/// One operation names the directories in one order, the other in the other: they lock them in the
/// same.
#[test]
fn a_directory_that_goes_while_a_file_leaves_it() {
    check(800, || {
        let volume = Arc::new(volume([40, 40]));
        let outer = mkdir(&volume, b"outer");
        let new = NewFile { mode: 0o040_755, ..NewFile::default() };
        let inner = volume.create(outer, b"inner", new).unwrap().ino;
        create(&volume, inner, b"x");
        let other = Arc::clone(&volume);
        let leaves = thread::spawn(move || other.rename((inner, b"x"), (outer, b"x"), Rename::Replace).unwrap());
        let other = Arc::clone(&volume);
        let goes = thread::spawn(move || match other.rmdir(outer, b"inner") {
            Ok(()) | Err(Error::NotEmpty) => {}
            Err(error) => panic!("{error}"),
        });
        join([leaves, goes]);
        assert!(volume.lookup(outer, b"x").is_ok());
    });
}
