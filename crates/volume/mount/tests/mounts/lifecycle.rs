//! Ends of a mount, wanted and not: whatever was acknowledged is there afterwards.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mount::Cache;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use testing::{Case, cases, mounting};

use crate::harness::{Mount, PATIENCE, rings};

pub const CASES: &[Case] = cases![[mounting()]
    open_files_are_served_after_the_unmount,
    each_call_that_makes_durable_fails_on_a_dead_server,
    first_copies_at_once_stay_copies_by_the_server,
    a_record_across_a_page_may_be_halved_and_one_within_is_not,
    a_killed_client_leaves_the_mount_working,
    a_full_volume_says_so_and_can_be_emptied,
    a_stopped_server_only_delays,
    acknowledged_changes_survive_kills_of_the_server,
    without_a_policy_a_request_takes_one_call_in_and_one_out,
    opening_a_file_that_is_cached_asks_the_server_nothing,
    the_kernel_reads_ahead_by_a_whole_request,
    memory_of_forgotten_files_goes_back_to_the_system,
    attributes_of_files_that_are_held_stay_on_the_medium,
];

/// Files that somebody holds are not forgotten, and a server kept 64 KiB of attributes of each: an
/// unprivileged user who watched 6,000 files pinned 383 MB, and as much again for each 6,000.
fn attributes_of_files_that_are_held_stay_on_the_medium() {
    const FILES: u64 = 500;
    let mut mount = Mount::new(Cache::Kernel, 64);
    let value = [7; 3900];
    let open =
        |mount: &Mount, i| OpenOptions::new().append(true).create(true).open(mount.path(&format!("f{i}"))).unwrap();
    let before = mount.memory();
    let held: Vec<File> = (0..FILES).map(|i| open(&mount, i)).collect();
    for file in &held {
        for a in 0..16 {
            rustix::fs::fsetxattr(file, format!("user.{a}"), &value, rustix::fs::XattrFlags::empty()).unwrap();
        }
    }
    let full = mount.memory();
    // 62,400 bytes of values each; what a file and the workers take is less than 4,000, and by
    // io_uring the queues' buffers are used for the first time.
    let most = before + if rings() { 24 << 20 } else { 8 << 20 };
    assert!(full < most, "{before}, then {full} bytes");
    let mut got = [0; 4000];
    let check = |file: &File, got: &mut [u8]| {
        assert_eq!(rustix::fs::flistxattr(file, &mut [0_u8; 1000]).unwrap(), 16 * 7 + 6);
        let len = rustix::fs::fgetxattr(file, "user.15", &mut *got).unwrap();
        assert_eq!(got[..len], value);
    };
    check(&held[7], &mut got);
    drop(held);
    mount.kill();
    mount.recover();
    let file = open(&mount, 7);
    check(&file, &mut got);
    drop(file);
    assert!(mount.memory() < most);
    mount.end();
}

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

/// A call with an open file and what is mapped of it: 0, or the errno.
type Call = fn(&File, &mut Mapping) -> i32;

/// The first page of a file, shared.
struct Mapping(*mut libc::c_void);

impl Mapping {
    fn new(file: &File) -> Self {
        let (all, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping touches no other memory.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, all, shared, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at)
    }

    fn store(&mut self, byte: u8) {
        // SAFETY: the page is mapped, and nobody else has the address.
        unsafe { self.0.cast::<u8>().write_volatile(byte) };
    }

    fn load(&self) -> u8 {
        // SAFETY: as in `store`.
        unsafe { self.0.cast::<u8>().read_volatile() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody uses the address afterwards.
        unsafe { libc::munmap(self.0, 4096) };
    }
}

fn errno(returned: libc::c_int) -> i32 {
    if returned == 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap() }
}

/// msync and fsync returned 0 on a dead server, and the store was lost.
fn each_call_that_makes_durable_fails_on_a_dead_server() {
    // SAFETY: of all of these: the descriptor is open, and the page mapped.
    let calls: [(&str, Call); 7] = [
        ("msync", |_, map| errno(unsafe { libc::msync(map.0, 4096, libc::MS_SYNC) })),
        ("fsync", |file, _| errno(unsafe { libc::fsync(file.as_raw_fd()) })),
        ("fdatasync", |file, _| errno(unsafe { libc::fdatasync(file.as_raw_fd()) })),
        ("write", |file, _| file.write_all_at(b"LOST", 100).map_or_else(|e| e.raw_os_error().unwrap(), |()| 0)),
        ("truncate", |file, _| file.set_len(1).map_or_else(|e| e.raw_os_error().unwrap(), |()| 0)),
        ("fsync of another descriptor", |file, _| errno(unsafe { libc::fsync(file.try_clone().unwrap().as_raw_fd()) })),
        ("fsync of its directory", |file, _| {
            let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
            let dir = DIRECTORY.with(|dir| dir.borrow_mut().take()).unwrap_or_else(|| panic!("{}", path.display()));
            // SAFETY: as above.
            errno(unsafe { libc::fsync(dir.as_raw_fd()) })
        }),
    ];
    for (name, call) in calls {
        for cache in [Cache::Kernel, Cache::Direct] {
            let mut mount = Mount::new(cache, 8);
            fs::write(mount.path("f"), [b'A'; 8192]).unwrap();
            let dir = File::open(mount.dir()).unwrap();
            let file = OpenOptions::new().read(true).write(true).open(mount.path("f")).unwrap();
            let mut mapping = Mapping::new(&file);
            assert_eq!(mapping.load(), b'A');
            file.sync_all().unwrap(); // the kernel learns here that it is asked for
            dir.sync_all().unwrap();
            DIRECTORY.with(|place| *place.borrow_mut() = Some(dir));
            mapping.store(b'B');
            mount.kill();
            mapping.store(b'L');
            let failed = call(&file, &mut mapping);
            DIRECTORY.with(|place| drop(place.borrow_mut().take()));
            assert!(
                [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED, libc::EIO].contains(&failed),
                "{name}: {failed}"
            );
            drop((mapping, file));
            mount.recover();
            assert_eq!(fs::read(mount.path("f")).unwrap().len(), 8192);
            mount.end();
        }
    }
}

thread_local! {
    static DIRECTORY: std::cell::RefCell<Option<File>> = const { std::cell::RefCell::new(None) };
}

/// Two first copies at once took the ENOSYS of one another's first try: from then on the kernel
/// copied by reads and writes, on 23 of 25 mounts.
fn first_copies_at_once_stay_copies_by_the_server() {
    const COPIERS: u64 = 8;
    for _ in 0..5 {
        let mount = Mount::new(Cache::Direct, 16);
        fs::write(mount.path("from"), vec![7; 1 << 20]).unwrap();
        let files: Vec<_> = (0..COPIERS)
            .map(|i| (File::open(mount.path("from")).unwrap(), File::create_new(mount.path(&format!("{i}"))).unwrap()))
            .collect();
        let copy = |from: &File, to: &File| {
            let copied = rustix::fs::copy_file_range(from, Some(&mut 0), to, Some(&mut 0), 1 << 20).unwrap();
            assert_eq!(copied, 1 << 20);
        };
        let start = std::sync::Barrier::new(files.len());
        thread::scope(|scope| {
            for (from, to) in &files {
                scope.spawn(|| {
                    start.wait();
                    copy(from, to);
                });
            }
        });
        // One request each; by reads and writes there would be more. By io_uring no calls tell.
        let before = mount.calls();
        files.iter().for_each(|(from, to)| copy(from, to));
        let calls = mount.calls()[1] - before[1];
        assert!(rings() || (COPIERS..2 * COPIERS).contains(&calls), "{calls} answers to {COPIERS} copies");
        for i in 0..COPIERS {
            assert!(fs::read(mount.path(&format!("{i}"))).unwrap() == vec![7; 1 << 20]);
        }
        drop(files);
        mount.end();
    }
}

/// docs/SEMANTICS.md said that any write of less than 1 MiB was one request: appended records of
/// 3,000 bytes were halved by 10 of 27 kills.
fn a_record_across_a_page_may_be_halved_and_one_within_is_not() {
    // Requests of a write, as the server's calls say.
    let mount = Mount::new(Cache::Kernel, 16);
    let file = File::create_new(mount.path("f")).unwrap();
    // Page by page: what is written at once may share a larger piece of the page cache.
    (0..16).for_each(|page| file.write_all_at(&[1; 4096], page * 4096).unwrap());
    // The kernel counts a call of the server a little after it has woken the writer.
    const WRITES: u64 = 50;
    let requests = |offset: u64, len: usize| {
        let before = mount.calls()[1];
        (0..WRITES).for_each(|_| file.write_all_at(&vec![2; len], offset).unwrap());
        (mount.calls()[1] - before + WRITES / 2) / WRITES
    };
    if !rings() {
        assert_eq!(requests(4000, 100), 1, "across pages that are cached");
        fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
        assert_eq!(requests(4096, 100), 1, "within a page");
        assert_eq!(requests(8192, 32 << 10), 1, "whole pages");
        fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
        assert_eq!(requests(4000, 100), 2, "across a page");
        fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
        assert!((2..=3).contains(&requests(8193, 32 << 10)), "parts of pages at both ends");
    }
    drop(file);
    mount.end();

    // Killed at any time: of records that no page divides none is halved.
    const ROUNDS: u64 = 12;
    for (cache, len, halves) in
        [(Cache::Kernel, 2048, false), (Cache::Kernel, 3000, true), (Cache::Direct, 3000, false)]
    {
        let mut halved = 0;
        for round in 0..ROUNDS {
            let mut mount = Mount::new(cache, 64);
            let mut file = File::options().append(true).create_new(true).open(mount.path("f")).unwrap();
            let done = Arc::new(AtomicU64::new(0));
            let told = Arc::clone(&done);
            let writer = thread::spawn(move || {
                while file.write_all(&vec![7; len]).is_ok() {
                    told.fetch_add(1, Ordering::Release);
                }
            });
            while done.load(Ordering::Acquire) < 200 + 37 * round {
                thread::yield_now();
            }
            mount.kill();
            writer.join().unwrap();
            mount.recover();
            let size = fs::metadata(mount.path("f")).unwrap().len();
            let whole = done.load(Ordering::Acquire) * len as u64;
            assert!(size >= whole && size <= whole + len as u64, "{size} of {whole} bytes that were acknowledged");
            halved += u64::from(!size.is_multiple_of(len as u64));
            mount.end();
        }
        println!("{cache:?}, records of {len} bytes: {halved} of {ROUNDS} kills left half of one");
        assert!(halves || halved == 0, "{cache:?}, {len}: {halved} halves");
    }
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
