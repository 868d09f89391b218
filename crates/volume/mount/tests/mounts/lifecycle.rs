//! Ends of a mount, wanted and not: whatever was acknowledged is there afterwards.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ::fs::medium::Mapped;
use mount::{Cache, Options};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;

use crate::Tests;
use crate::harness::{Mount, PATIENCE, rings};

pub const TESTS: Tests = &[
    ("open_files_are_served_after_the_unmount", open_files_are_served_after_the_unmount),
    ("umount_ends_the_server", umount_ends_the_server),
    ("a_mount_that_somebody_detached_is_left_alone", a_mount_that_somebody_detached_is_left_alone),
    ("a_dead_mount_is_told_and_recovered", a_dead_mount_is_told_and_recovered),
    ("a_mounted_volume_is_in_use", a_mounted_volume_is_in_use),
    ("a_killed_client_leaves_the_mount_working", a_killed_client_leaves_the_mount_working),
    ("a_full_volume_says_so_and_can_be_emptied", a_full_volume_says_so_and_can_be_emptied),
    ("a_stopped_server_only_delays", a_stopped_server_only_delays),
    ("acknowledged_changes_survive_kills_of_the_server", acknowledged_changes_survive_kills_of_the_server),
    ("places_that_cannot_be_mounted_on", places_that_cannot_be_mounted_on),
    (
        "without_a_policy_a_request_takes_one_call_in_and_one_out",
        without_a_policy_a_request_takes_one_call_in_and_one_out,
    ),
    ("opening_a_file_that_is_cached_asks_the_server_nothing", opening_a_file_that_is_cached_asks_the_server_nothing),
    ("the_kernel_reads_ahead_by_a_whole_request", the_kernel_reads_ahead_by_a_whole_request),
    ("memory_of_forgotten_files_goes_back_to_the_system", memory_of_forgotten_files_goes_back_to_the_system),
];

/// A server that had forgotten 50,000 files and 50,000 links still held 42 of the 44 MiB that they
/// took.
fn memory_of_forgotten_files_goes_back_to_the_system() {
    const FILES: u64 = 12_000;
    let mount = Mount::new(Cache::Kernel, 128);
    // The root directory is never forgotten, and its names would lie between what is.
    fs::create_dir(mount.path("d")).unwrap();
    let before = mount.memory();
    for i in 0..FILES {
        File::create(mount.path(&format!("d/a file with a name of some length, number {i}"))).unwrap();
    }
    let full = mount.memory();
    assert!(full > before + FILES * 100, "{before}, then {full} bytes");
    let begin = Instant::now();
    loop {
        // The kernel forgets only what it has not used since the last time.
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        let left = mount.memory();
        // Some of it shares pages with what stays. The fault kept 95 of 100 bytes.
        if left < before + (full - before) * 17 / 20 {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{before}, then {full}, at last {left} bytes");
        thread::sleep(Duration::from_millis(100));
    }
    mount.end();
}

/// A server that looked at its caller within each request once took three times as long for a small
/// read.
fn without_a_policy_a_request_takes_one_call_in_and_one_out() {
    const READS: u64 = 2000;
    let mount = Mount::new(Cache::Direct, 16);
    fs::write(mount.path("f"), vec![1; 4096]).unwrap();
    let file = File::open(mount.path("f")).unwrap();
    let before = mount.calls();
    for _ in 0..READS {
        file.read_exact_at(&mut [0; 4096], 0).unwrap();
    }
    let after = mount.calls();
    // The kernel may have a little more to say meanwhile. By io_uring there are no such calls at
    // all.
    let most = if rings() { READS / 100 } else { READS + READS / 100 };
    for (before, after) in before.into_iter().zip(after) {
        assert!(after - before <= most, "{} calls", after - before);
        assert!(rings() || after - before >= READS, "{} calls", after - before);
    }
    drop(file);
    mount.end();
}

/// Each open took a round trip and each close another one: 28 µs, where tmpfs takes 2.
fn opening_a_file_that_is_cached_asks_the_server_nothing() {
    const OPENS: u64 = 1000;
    let mount = Mount::new(Cache::Kernel, 16);
    fs::write(mount.path("f"), vec![1; 4096]).unwrap();
    fs::read(mount.path("f")).unwrap(); // the kernel learns here that opens need not be told
    let before = mount.calls();
    for _ in 0..OPENS {
        assert_eq!(fs::read(mount.path("f")).unwrap().len(), 4096);
    }
    let after = mount.calls();
    for (before, after) in before.into_iter().zip(after) {
        // The kernel may have a little more to say meanwhile.
        assert!(after - before <= OPENS / 100, "{} calls", after - before);
    }
    // A file lives while it is open all the same.
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(mount.path("g")).unwrap();
    file.write_all_at(b"there", 0).unwrap();
    fs::remove_file(mount.path("g")).unwrap();
    fs::write(mount.path("h"), b"another").unwrap();
    let mut found = [0; 5];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"there");
    drop(file);
    mount.end();
}

fn the_kernel_reads_ahead_by_a_whole_request() {
    let mount = Mount::new(Cache::Kernel, 8);
    let device = fs::metadata(mount.dir()).unwrap().dev();
    let of = format!("/sys/class/bdi/{}:{}/read_ahead_kb", libc::major(device), libc::minor(device));
    assert_eq!(fs::read_to_string(of).unwrap().trim(), "1024");
    mount.end();
}

fn open_files_are_served_after_the_unmount() {
    let mut mount = Mount::new(Cache::Kernel, 16);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(mount.path("f")).unwrap();
    mount.ask_to_unmount();
    assert_eq!(mount.says(), "busy");
    assert_eq!(fs::read_dir(mount.dir()).unwrap().count(), 0, "the directory is free");
    file.write_all_at(b"late", 0).unwrap();
    drop(file);
    mount.ended();
    mount.start();
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"late");
    mount.end();
}

fn umount_ends_the_server() {
    let mut mount = Mount::new(Cache::Kernel, 16);
    fs::write(mount.path("f"), b"x").unwrap();
    while !Command::new("umount").arg(mount.dir()).stderr(Stdio::null()).status().unwrap().success() {
        thread::yield_now(); // a process that another test forks has our files until it execs
    }
    mount.ended();
}

/// Asking once more to unmount once ended the server under its open files.
fn a_mount_that_somebody_detached_is_left_alone() {
    let mut mount = Mount::new(Cache::Kernel, 16);
    let file = File::create(mount.path("f")).unwrap();
    assert!(Command::new("umount").arg("-l").arg(mount.dir()).status().unwrap().success());
    mount.ask_to_unmount();
    assert_eq!(mount.says(), "busy");
    file.write_all_at(b"x", 0).unwrap();
    drop(file);
    mount.ended();
}

fn a_dead_mount_is_told_and_recovered() {
    let mut mount = Mount::new(Cache::Kernel, 16);
    fs::write(mount.path("f"), b"before").unwrap();
    let file = File::open(mount.path("f")).unwrap();
    mount.kill();
    // The kernel ends the queues of io_uring a little later than the process: what came meanwhile
    // was under way.
    let under_way = [libc::ECONNABORTED, libc::ECANCELED];
    for error in [fs::metadata(mount.path("g")).unwrap_err(), file.metadata().unwrap_err()] {
        let errno = error.raw_os_error().unwrap();
        assert!(errno == libc::ENOTCONN || rings() && under_way.contains(&errno), "{error}");
    }
    let volume = ::fs::Volume::mount(Box::new(Mapped::new(&mount.regions()).unwrap()), Default::default());
    let volume = Arc::new(volume.unwrap());
    let served = mount::serve(Arc::clone(&volume), mount.dir(), &Options::default());
    assert!(matches!(served, Err(mount::Error::Dead(_))), "{served:?}");
    drop(volume);
    mount.recover();
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"before");
    mount.end();
}

fn a_mounted_volume_is_in_use() {
    let mount = Mount::new(Cache::Kernel, 16);
    let second = Mapped::new(&mount.regions());
    assert_eq!(second.err().unwrap().errno(), libc::EBUSY);
    fs::write(mount.path("f"), b"x").unwrap();
    mount.end();
}

fn a_killed_client_leaves_the_mount_working() {
    for cache in [Cache::Kernel, Cache::Direct] {
        let mount = Mount::new(cache, 64);
        for _ in 0..10 {
            let mut client = Command::new("dd");
            client.args(["if=/dev/zero", "of=f", "bs=1M", "count=1000000", "seek=3", "conv=notrunc", "status=none"]);
            client.args(["oflag=append"]).current_dir(mount.dir()).stderr(Stdio::null());
            let mut client = client.spawn().unwrap();
            while fs::metadata(mount.path("f")).map_or(0, |f| f.len()) < 8 << 20 {
                thread::yield_now();
            }
            client.kill().unwrap();
            client.wait().unwrap();
            fs::remove_file(mount.path("f")).unwrap();
        }
        fs::write(mount.path("g"), b"works").unwrap();
        mount.end();
    }
}

fn a_full_volume_says_so_and_can_be_emptied() {
    for cache in [Cache::Kernel, Cache::Direct] {
        let mount = Mount::new(cache, 16);
        let fill = |name: &str| {
            let mut file = File::create(mount.path(name)).unwrap();
            let mut len = 0;
            loop {
                match file.write(&[(len as u8).wrapping_add(1); 65536]) {
                    Ok(written) => len += written / 65536,
                    Err(error) => break (error.raw_os_error(), len),
                }
            }
        };
        let (why, first) = fill("f");
        assert_eq!(why, Some(libc::ENOSPC));
        assert!(first > 300, "{first}");
        for round in 0..5 {
            fs::remove_file(mount.path("f")).unwrap();
            let begin = Instant::now();
            loop {
                let (why, len) = fill("f");
                assert_eq!(why, Some(libc::ENOSPC));
                if len + 4 >= first {
                    break;
                }
                // A request waits for the kernel to forget the file, but on a busy machine not long
                // enough.
                assert!(begin.elapsed() < PATIENCE, "round {round}: {len} of {first}: what was removed is free");
                fs::remove_file(mount.path("f")).unwrap();
            }
        }
        let data = fs::read(mount.path("f")).unwrap();
        assert!(
            data.chunks(65536).enumerate().all(|(i, part)| part.iter().all(|byte| *byte == (i as u8).wrapping_add(1)))
        );
        fs::remove_file(mount.path("f")).unwrap();
        mount.end();
    }
}

fn a_stopped_server_only_delays() {
    let mount = Mount::new(Cache::Direct, 16);
    fs::write(mount.path("f"), b"content").unwrap();
    mount.stop();
    let started = AtomicU64::new(0);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            started.store(1, Ordering::Release);
            fs::read(mount.path("f")).unwrap()
        });
        // A client that waits for the device can be killed.
        let mut client = Command::new("cat").arg(mount.path("f")).stdout(Stdio::null()).spawn().unwrap();
        while started.load(Ordering::Acquire) == 0 {
            thread::yield_now();
        }
        client.kill().unwrap();
        if rings() {
            // The kernel has put its request where the server will find it, and takes it back no
            // more.
            mount.signal(Signal::CONT);
        }
        assert_eq!(client.wait().unwrap().signal(), Some(libc::SIGKILL));
        assert!(rings() || !reader.is_finished());
        mount.signal(Signal::CONT);
        assert_eq!(reader.join().unwrap(), b"content");
    });
    mount.end();
}

/// A client, which is a process of its own, makes changes one after the other and says which ones
/// were acknowledged. The server is killed at some moment; then every acknowledged change is there,
/// and the one after them whole or not at all.
fn acknowledged_changes_survive_kills_of_the_server() {
    let mut rng = ChaCha8Rng::seed_from_u64(6);
    for round in 0..12 {
        let mut mount = Mount::new(if round % 2 == 0 { Cache::Kernel } else { Cache::Direct }, 64);
        // Each step i: write 10,000 bytes of i to a file, rename it to its name, append a line to
        // the log.
        let script = "i=0; while :; do i=$((i+1)); yes $i | head -c 10000 > new; mv new f$((i % 50)); echo $i >> log; \
                      echo $i; done";
        let mut client = Command::new("sh");
        client.args(["-ec", script]).current_dir(mount.dir()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut client = client.spawn().unwrap();
        let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
        let until = rng.random_range(1..150);
        let mut acknowledged = 0;
        while acknowledged < until {
            acknowledged = lines.next().unwrap().unwrap().parse().unwrap();
        }
        mount.kill();
        acknowledged = lines.map_while(Result::ok).last().map_or(acknowledged, |line| line.parse().unwrap());
        client.wait().unwrap();
        mount.recover();
        let log = fs::read_to_string(mount.path("log")).unwrap();
        let logged: Vec<u64> = log.lines().map(|line| line.parse().unwrap()).collect();
        let last = *logged.last().unwrap();
        assert!(logged.iter().enumerate().all(|(i, line)| *line == i as u64 + 1), "{log}");
        assert!((acknowledged..=acknowledged + 1).contains(&last), "{acknowledged} of {last}");
        for i in acknowledged.saturating_sub(48).max(1)..=acknowledged {
            let content = fs::read_to_string(mount.path(&format!("f{}", i % 50))).unwrap();
            let newer = format!("{}\n", i + 50);
            assert_eq!(content.len(), 10000);
            assert!(content.starts_with(&format!("{i}\n")) || content.starts_with(&newer), "round {round}, file {i}");
        }
        let mut new = String::new();
        if let Ok(mut file) = File::open(mount.path("new")) {
            file.read_to_string(&mut new).unwrap();
        }
        assert!(new.is_empty() || new.starts_with(&format!("{}\n", last + 1)), "a write is whole");
        mount.end();
    }
}

fn places_that_cannot_be_mounted_on() {
    let volume = {
        let mut mount = Mount::new(Cache::Kernel, 8);
        mount.ask_to_unmount();
        mount.ended();
        let mapped = Mapped::new(&mount.regions()).unwrap();
        let volume = ::fs::Volume::mount(Box::new(mapped), Default::default()).unwrap();
        let volume = Arc::new(volume);
        let none = mount::serve(Arc::clone(&volume), &mount.path("none"), &Options::default()).unwrap_err();
        assert!(none.to_string().contains("none"), "{none}");
        let region = mount.dir().parent().unwrap().join("region0");
        let file = mount::serve(Arc::clone(&volume), &region, &Options::default());
        assert!(matches!(file, Err(mount::Error::NotADirectory(_))), "{file:?}");
        volume
    };
    assert_eq!(Arc::strong_count(&volume), 1, "nobody serves it");
}
