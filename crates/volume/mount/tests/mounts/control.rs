//! Looking at and moving files of a mount by extended attributes.

use std::fs::{self, File, OpenOptions};
use std::io::Error;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use linux::volume::{self, Migration, Order, State};
use mount::Cache;
use rustix::fs::{Uid, XattrFlags, fsetxattr};
use rustix::mount::{MountFlags, mount_remount};
use rustix::thread::set_thread_res_uid;
use testing::{Case, cases, mounting};
use topology::NodeId;

use crate::harness::{Mount, PATIENCE};
use crate::semantics::USER;

pub const CASES: &[Case] = cases![[mounting()]
    a_file_moves_while_it_is_read_and_written,
    a_migration_can_be_stopped_and_ends_with_the_mount,
    a_region_is_emptied_under_a_mount,
    migrations_are_refused_with_a_reason,
    only_root_moves_files_and_readers_look_at_them,
];

const BLOCK: usize = 4096;
const BLOCKS: u64 = 1024;

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// A file of [`BLOCKS`] blocks, each full of its own number.
fn file(path: &Path) -> File {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
    for at in 0..BLOCKS {
        file.write_all_at(&[at as u8; BLOCK], at * BLOCK as u64).unwrap();
    }
    file
}

fn to(node: u32) -> Order {
    Order::To(NodeId(node), None)
}

fn slowly(node: u32) -> Order {
    Order::To(NodeId(node), Some(500_000))
}

/// Bytes on nodes 0 and 1.
fn nodes(file: &File) -> [u64; 2] {
    let place = volume::place(file).unwrap().unwrap();
    assert_eq!(place.unknown, 0);
    [0, 1].map(|node| place.nodes.get(NodeId(node)))
}

/// Waits for the end of a migration.
fn ended(file: &File) -> Migration {
    let began = Instant::now();
    volume::follow(file, |_| {
        assert!(began.elapsed() < PATIENCE);
        true
    })
    .unwrap()
}

fn a_file_moves_while_it_is_read_and_written() {
    for cache in [Cache::Direct, Cache::Kernel] {
        let mount = Mount::new(cache, 32);
        let file = file(&mount.path("f"));
        assert_eq!(nodes(&file).iter().sum::<u64>(), BLOCKS * BLOCK as u64);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            // Even blocks are written anew all the time; odd ones stay what they are.
            scope.spawn(|| {
                for round in 0_u64.. {
                    for at in (0..BLOCKS).step_by(2) {
                        file.write_all_at(&[(at + round) as u8; BLOCK], at * BLOCK as u64).unwrap();
                        if over.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                }
            });
            scope.spawn(|| {
                let mut block = [0; BLOCK];
                for at in (0..BLOCKS).cycle().take_while(|_| !over.load(Ordering::Relaxed)) {
                    file.read_exact_at(&mut block, at * BLOCK as u64).unwrap();
                    let whole = block.iter().all(|byte| *byte == block[0]);
                    // Reads from the kernel's cache see half of a write, on any file system.
                    let right =
                        if at % 2 == 0 { whole || cache == Cache::Kernel } else { whole && block[0] == at as u8 };
                    assert!(right, "{cache:?} block {at}: {}", block[0]);
                }
            });
            for node in [1, 0, 1] {
                volume::order(&file, to(node)).unwrap();
                let done = ended(&file);
                assert_eq!((done.to, done.state, done.why), (node, State::Done, None));
            }
            over.store(true, Ordering::Relaxed);
        });
        // The writer's latest blocks are wherever it wrote them.
        volume::order(&file, to(1)).unwrap();
        let done = ended(&file);
        assert_eq!((done.state, done.bytes, done.bytes + done.already_bytes), (State::Done, done.moved_bytes, 4 << 20));
        assert_eq!(nodes(&file), [0, BLOCKS * BLOCK as u64]);
        let mut block = [0; BLOCK];
        for at in (1..BLOCKS).step_by(2) {
            file.read_exact_at(&mut block, at * BLOCK as u64).unwrap();
            assert!(block.iter().all(|byte| *byte == at as u8), "block {at}");
        }
        // Nothing of it is an attribute that a copy of the file would take along.
        assert_eq!(rustix::fs::flistxattr(&file, &mut [0_u8; 100]).unwrap(), 0);
        drop(file);
        mount.end();
    }
}

fn a_migration_can_be_stopped_and_ends_with_the_mount() {
    let mount = Mount::new(Cache::Direct, 32);
    let file = file(&mount.path("f"));
    volume::order(&file, to(1)).unwrap();
    ended(&file);
    volume::order(&file, slowly(0)).unwrap();
    assert_eq!(errno(volume::order(&file, to(1))), Some(libc::EBUSY));
    let mut looks = 0;
    let stopped = volume::follow(&file, |now| {
        looks += 1;
        now.moved_bytes == 0
    });
    let stopped = stopped.unwrap();
    assert!(looks > 1 && stopped.state == State::Stopped && stopped.moved_bytes > 0, "{looks}: {stopped:?}");
    assert_eq!(nodes(&file), [stopped.moved_bytes, (4 << 20) - stopped.moved_bytes]);
    assert_eq!(errno(volume::order(&file, Order::Cancel)), Some(libc::ENODATA));
    // What is left goes on from there.
    volume::order(&file, to(0)).unwrap();
    let rest = ended(&file);
    assert_eq!((rest.state, rest.already_bytes, rest.bytes), (State::Done, stopped.moved_bytes, rest.moved_bytes));
    assert_eq!(nodes(&file), [4 << 20, 0]);
    volume::order(&file, slowly(1)).unwrap();
    drop(file);
    let began = Instant::now();
    mount.end();
    assert!(began.elapsed().as_secs() < 8, "it would have taken so long");
}

fn a_region_is_emptied_under_a_mount() {
    let mount = Mount::new(Cache::Kernel, 32);
    let file = file(&mount.path("f"));
    volume::order(&file, to(1)).unwrap();
    ended(&file);
    let root = File::open(mount.path("")).unwrap();
    assert_eq!(errno(volume::drain(&file, "1")), Some(libc::EOPNOTSUPP));
    assert_eq!(errno(volume::draining(&root)), Some(libc::ENODATA));
    assert_eq!(errno(volume::drain(&root, "cancel")), Some(libc::ENODATA));
    for wrong in ["2", "x", "", "-1", "use", "use x", "1 2", "use 1 2"] {
        assert_eq!(errno(volume::drain(&root, wrong)), Some(libc::EINVAL), "{wrong}");
    }
    let drain = || {
        volume::drain(&root, "1").unwrap();
        let began = Instant::now();
        let done = volume::follow_drain(&root, |_| {
            assert!(began.elapsed() < PATIENCE);
            true
        });
        done.unwrap()
    };
    let done = drain();
    assert_eq!((done.state, done.left_bytes, done.why), (State::Done, 0, None));
    assert!(done.bytes >= 4 << 20, "{}", done.bytes);
    assert_eq!(nodes(&file), [4 << 20, 0]);
    // A file that is open keeps its number, and works.
    let in_region_1 = std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap()) >> 32 == 1;
    assert_eq!(done.left_inodes, u64::from(in_region_1), "{:?}", done.stays);
    assert_eq!(
        done.stays.iter().map(|stays| stays.path.as_deref()).collect::<Vec<_>>(),
        vec![Some("/f"); usize::from(in_region_1)]
    );
    file.write_all_at(&[7; BLOCK], 0).unwrap();
    assert_eq!(nodes(&file), [4 << 20, 0], "nothing new goes there");
    assert_eq!(
        errno(volume::order(&file, to(1)).and_then(|()| match ended(&file).errno {
            Some(errno) => Err(Error::from_raw_os_error(errno)),
            None => Ok(()),
        })),
        Some(libc::ENOSPC)
    );
    volume::drain(&root, "use 1").unwrap();
    volume::order(&file, to(1)).unwrap();
    assert_eq!((ended(&file).state, nodes(&file)), (State::Done, [0, 4 << 20]));
    drop((file, root));
    mount.end();
}

fn migrations_are_refused_with_a_reason() {
    let mount = Mount::new(Cache::Direct, 32);
    let one = file(&mount.path("f"));
    volume::order(&one, to(1)).unwrap();
    ended(&one);
    assert_eq!(errno(volume::order(&one, to(7))), Some(libc::ENXIO));
    let set = |file: &File, name: &str, value: &[u8]| {
        errno(fsetxattr(file, name, value, XattrFlags::empty()).map_err(Error::from))
    };
    assert_eq!(set(&one, volume::MIGRATE, b"fast"), Some(libc::EINVAL));
    for name in [volume::NODES, volume::MIGRATION, "trusted.homenode.other"] {
        assert_eq!(set(&one, name, b"1"), Some(libc::EOPNOTSUPP), "{name}");
    }
    let other = file(&mount.path("g"));
    assert_eq!(errno(volume::migration(&other)), Some(libc::ENODATA));
    assert_eq!(errno(volume::order(&other, Order::Cancel)), Some(libc::ENODATA));
    assert_eq!(errno(volume::order(&File::open(mount.dir()).unwrap(), to(1))), Some(libc::EISDIR));

    // So many at a time.
    let many: Vec<File> = (0..4)
        .map(|i| {
            let file = File::create_new(mount.path(&format!("m{i}"))).unwrap();
            file.write_all_at(&[1; 1 << 20], 0).unwrap();
            volume::order(&file, to(1)).unwrap();
            ended(&file);
            file
        })
        .collect();
    for file in &many {
        volume::order(file, Order::To(NodeId(0), Some(1))).unwrap();
    }
    assert_eq!(errno(volume::order(&one, to(0))), Some(libc::EUSERS));
    for file in &many {
        volume::cancel(file).unwrap();
        assert_eq!(ended(file).state, State::Stopped);
    }
    volume::order(&one, to(0)).unwrap();
    ended(&one);

    // A removed file's number may become another's, which has not been moved.
    drop(many);
    fs::remove_file(mount.path("m0")).unwrap();
    let new = File::create_new(mount.path("new")).unwrap();
    assert_eq!(errno(volume::migration(&new)), Some(libc::ENODATA));

    mount_remount(mount.dir(), MountFlags::RDONLY, c"").unwrap_err(); // files are open for writing
    drop((one, other, new));
    mount_remount(mount.dir(), MountFlags::RDONLY, c"").unwrap();
    let file = File::open(mount.path("f")).unwrap();
    assert_eq!(errno(volume::order(&file, to(1))), Some(libc::EROFS));
    assert_eq!(nodes(&file), [4 << 20, 0]);
    drop(file);
    mount.end();
}

fn only_root_moves_files_and_readers_look_at_them() {
    let mount = Mount::new(Cache::Direct, 32);
    let open = file(&mount.path("f"));
    let user = |work: &(dyn Fn() + Sync)| {
        thread::scope(|scope| {
            scope.spawn(|| {
                // Of this thread alone; the capabilities go with it.
                let id = Uid::from_raw(USER);
                set_thread_res_uid(id, id, id).unwrap();
                work();
            });
        });
    };
    let set_mode = |mode| fs::set_permissions(mount.path("f"), fs::Permissions::from_mode(mode)).unwrap();
    volume::order(&open, slowly(0)).unwrap();
    set_mode(0o666);
    user(&|| {
        assert_eq!(errno(volume::order(&open, to(1))), Some(libc::EPERM));
        assert_eq!(errno(volume::cancel(&open)), Some(libc::EPERM));
        assert_eq!(errno(volume::migration(&open)), Some(libc::ENODATA));
        nodes(&open);
    });
    set_mode(0o600);
    user(&|| assert_eq!(errno(volume::place(&open)), Some(libc::EACCES)));
    volume::cancel(&open).unwrap();
    ended(&open);
    drop(open);
    mount.end();
}
