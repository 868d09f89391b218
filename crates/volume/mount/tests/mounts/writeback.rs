//! The promise of `cache=writeback`, and what it saves.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};

use mount::Cache;
use testing::{Case, cases, mounting};

use crate::harness::{Mount, rings};

pub const CASES: &[Case] = cases![[mounting()]
    what_was_synced_or_closed_outlives_the_server,
    small_appends_go_to_the_server_together,
    a_server_that_ended_is_told_at_the_next_sync,
];

/// What ends a write: then it is durable.
type Ends = fn(File);

fn what_was_synced_or_closed_outlives_the_server() {
    // Not sync(2): the kernel starts the writing and waits for no file server.
    let ends: [(&str, Ends); 3] = [
        ("fsync", |file| file.sync_all().map(|()| std::mem::forget(file)).unwrap()),
        ("fdatasync", |file| file.sync_data().map(|()| std::mem::forget(file)).unwrap()),
        ("close", drop),
    ];
    for (name, end) in ends {
        let mut mount = Mount::new(Cache::Writeback, 16);
        let mut file = OpenOptions::new().create(true).append(true).open(mount.path("f")).unwrap();
        let line = |i: u32| format!("{i:99}\n").into_bytes();
        (0..1000).for_each(|i| file.write_all(&line(i)).unwrap());
        end(file);
        let modified = fs::metadata(mount.path("f")).unwrap().mtime();
        mount.kill();
        mount.recover();
        let kept = fs::read(mount.path("f")).unwrap();
        assert!(kept == (0..1000).flat_map(line).collect::<Vec<u8>>(), "{name}: {} bytes", kept.len());
        assert!(modified - fs::metadata(mount.path("f")).unwrap().mtime() <= 1, "{name}");
        mount.end();
    }
}

fn small_appends_go_to_the_server_together() {
    const WRITES: u32 = 2000;
    let mount = Mount::new(Cache::Writeback, 16);
    let mut file = OpenOptions::new().create(true).append(true).open(mount.path("f")).unwrap();
    file.write_all(&[0; 100]).unwrap();
    let before = mount.calls();
    (0..WRITES).for_each(|_| file.write_all(&[1; 100]).unwrap());
    assert_eq!(fs::metadata(mount.path("f")).unwrap().len(), 100 * (u64::from(WRITES) + 1));
    file.sync_all().unwrap();
    let calls = mount.calls().iter().zip(before).map(|(now, before)| now - before).sum::<u64>();
    // By io_uring they are no calls of these kinds. Without write-back there are two a write.
    assert!(rings() || calls < u64::from(WRITES) / 4, "{calls}");
    drop(file);
    mount.end();
}

/// The kernel drops what it cannot write back, and the program has to hear of it.
fn a_server_that_ended_is_told_at_the_next_sync() {
    let mut mount = Mount::new(Cache::Writeback, 16);
    let file = File::create(mount.path("f")).unwrap();
    file.write_all_at(&[1; 8192], 0).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(&[2; 100], 10).unwrap();
    mount.kill();
    assert!(file.sync_all().is_err());
    drop(file);
    mount.recover();
    assert_eq!(fs::read(mount.path("f")).unwrap(), [1; 8192]);
    mount.end();
}
