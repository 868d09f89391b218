//! A held mount whose server dies, or is replaced: programs wait, and see nothing else.
//!
//! `HOMENODE_PAUSE_KILLS` kills the server so often (5), `HOMENODE_PAUSE_FILES` makes so many files
//! before (100), and `HOMENODE_PAUSE_PROGRAM` is the program, where it is not the one built here.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, XattrFlags};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testing::{Case, Over, cases, linux_from, mounting};

/// Before Linux 6.9 no request is sent again.
const CASES: &[Case] = cases![[mounting(), linux_from(6, 9)]
    nobody_on_a_mount_notices_that_its_server_is_killed,
    what_removed_files_hold_is_free_after_a_takeover,
    a_number_that_the_kernel_knows_goes_to_no_other_file,
    an_upgrade_replaces_the_program,
    a_program_that_does_not_work_is_no_upgrade,
    a_holder_lets_go_after_three_failed_starts,
    a_mount_without_a_holder_cannot_be_upgraded,
    a_held_mount_ends_by_umount_and_by_a_signal,
];

/// Longest time that something can be thought to take.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() {
    testing::run(&[], CASES.to_vec());
}

fn of_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |number| number.parse().unwrap())
}

fn program() -> PathBuf {
    std::env::var_os("HOMENODE_PAUSE_PROGRAM").map_or_else(|| env!("CARGO_BIN_EXE_homenode-fs").into(), PathBuf::from)
}

fn homenode(args: &[&str]) -> Output {
    Command::new(program()).args(args).stdin(Stdio::null()).output().unwrap()
}

/// A volume and its mount, which is held.
struct Mount {
    volume: String,
    dir: String,
    /// The program that is mounted with.
    program: PathBuf,
    _place: TempDir,
}

impl Mount {
    fn new(mib: u64, options: &str) -> Self {
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
        let (volume, dir) = (path("volume"), path("dir"));
        fs::create_dir(&dir).unwrap();
        let made = homenode(&["mkfs", "--size", &format!("{mib}MiB"), &volume]);
        assert!(made.status.success(), "{made:?}");
        // A program of its own, to replace.
        let program_here = place.path().join("homenode-fs");
        fs::copy(program(), &program_here).unwrap();
        let this = Self { volume, dir, program: program_here, _place: place };
        let mount = || Command::new(&this.program).args(["mount", "-o", options, &this.volume, &this.dir]).output();
        let busy = |e: &std::io::Error| e.kind() == std::io::ErrorKind::ExecutableFileBusy;
        // A process that another test forks has the copy open for writing until it execs.
        let mounted = std::iter::repeat_with(mount).find(|done| !done.as_ref().is_err_and(busy));
        let mounted = mounted.unwrap().unwrap();
        assert!(mounted.status.success(), "{mounted:?}");
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new(&self.dir).join(name)
    }

    fn server(&self) -> linux::volume::Server {
        linux::volume::server(&File::open(&self.dir).unwrap()).unwrap()
    }

    fn holder(&self) -> Pid {
        Pid::from_raw(self.server().holder.unwrap()).unwrap()
    }

    /// Kills the server; the next one is there when this returns.
    fn kill(&self) {
        let before = self.server().pid;
        kill_process(Pid::from_raw(before).unwrap(), Signal::KILL).unwrap();
        wait(|| self.server().pid != before);
    }

    /// Unmounts, and checks that nothing is left behind and nothing is damaged.
    fn end(self) {
        let unmounted = Command::new("umount").arg(&self.dir).output().unwrap();
        assert!(unmounted.status.success(), "{unmounted:?}");
        self.ended();
    }

    fn ended(&self) {
        wait(|| {
            let checked = homenode(&["fsck", &self.volume]);
            let said = String::from_utf8_lossy(&checked.stdout).into_owned();
            match checked.status.code() {
                Some(8) => false, // still in use
                code => {
                    assert!(code == Some(0) && said.contains("unmounted cleanly"), "{checked:?}");
                    true
                }
            }
        });
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", &self.dir]).stderr(Stdio::null()).status();
    }
}

fn wait(until: impl Fn() -> bool) {
    let begin = Instant::now();
    while !until() {
        assert!(begin.elapsed() < PATIENCE, "nothing happens");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A load's rounds, and its longest one in microseconds.
#[derive(Default)]
struct Told {
    rounds: AtomicU64,
    longest: AtomicU64,
}

/// Repeats `round` until the end.
fn repeat(told: &Told, ended: &AtomicBool, mut round: impl FnMut(u64)) {
    let mut number = 0;
    while !ended.load(Ordering::Relaxed) {
        let begin = Instant::now();
        round(number);
        number += 1;
        told.longest.fetch_max(begin.elapsed().as_micros() as u64, Ordering::Relaxed);
        told.rounds.fetch_add(1, Ordering::Relaxed);
    }
}

/// All operations on names that find their own effect when they are done twice.
fn names(dir: &Path, number: u64) {
    let dir = dir.join(number.to_string());
    let path = |name: &str| dir.join(name);
    fs::create_dir(&dir).unwrap();
    let content = number.to_string();
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(path("f")).unwrap();
    file.write_all(content.as_bytes()).unwrap();
    rustix::fs::setxattr(path("f"), "user.once", content.as_bytes(), XattrFlags::CREATE).unwrap();
    fs::hard_link(path("f"), path("link")).unwrap();
    rustix::fs::renameat_with(CWD, path("f"), CWD, path("g"), rustix::fs::RenameFlags::NOREPLACE).unwrap();
    symlink("target", path("symlink")).unwrap();
    rustix::fs::mknodat(CWD, path("fifo"), rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
    rustix::fs::removexattr(path("g"), "user.once").unwrap();
    assert_eq!(fs::read_link(path("symlink")).unwrap(), Path::new("target"));
    assert_eq!(fs::metadata(path("g")).unwrap().nlink(), 2);
    fs::rename(path("symlink"), path("fifo")).unwrap();
    for name in ["g", "fifo", "link"] {
        fs::remove_file(path(name)).unwrap();
    }
    // Without a name, but open.
    let mut got = vec![0; content.len()];
    file.read_exact_at(&mut got, 0).unwrap();
    assert_eq!(got, content.as_bytes());
    file.set_len(3).unwrap();
    assert_eq!((file.metadata().unwrap().nlink(), file.metadata().unwrap().len()), (0, 3));
    let unnamed = rustix::fs::open(&dir, OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR).unwrap();
    rustix::io::write(&unnamed, b"tmp").unwrap();
    let own = CString::new(format!("/proc/self/fd/{}", unnamed.as_raw_fd())).unwrap();
    rustix::fs::linkat(CWD, &*own, CWD, path("tmp"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(fs::read(path("tmp")).unwrap(), b"tmp");
    fs::remove_file(path("tmp")).unwrap();
    fs::remove_dir(&dir).unwrap();
}

/// Lines of a log before it is empty again.
const LINES: u64 = 1000;

/// The line `number` of a log.
fn line(number: u64) -> String {
    format!("{number:020} {}\n", "x".repeat((number * 37 % 3000) as usize))
}

/// A mapping of a whole file, shared.
struct Mapping(*mut std::ffi::c_void, usize);

impl Mapping {
    fn new(file: &File) -> Self {
        let len = file.metadata().unwrap().len() as usize;
        let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        // SAFETY: a new mapping, where the kernel likes.
        let at =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, rustix::mm::MapFlags::SHARED, file, 0) };
        Self(at.unwrap(), len)
    }

    /// Stores a number in each page and makes it durable.
    fn store(&self, number: u64) {
        for page in (0..self.1).step_by(4096) {
            // SAFETY: the place is within the mapping, which nobody else here uses, and aligned.
            unsafe { self.0.byte_add(page).cast::<u64>().write_volatile(number) };
        }
        // SAFETY: the range is that of the mapping.
        unsafe { rustix::mm::msync(self.0, self.1, rustix::mm::MsyncFlags::SYNC) }.unwrap();
    }
}

/// Loops of all kinds while the server is killed again and again: none gets an error, finds an
/// effect twice or not at all, or loses what was acknowledged.
fn nobody_on_a_mount_notices_that_its_server_is_killed() {
    let (kills, files) = (of_env("HOMENODE_PAUSE_KILLS", 5), of_env("HOMENODE_PAUSE_FILES", 100));
    for cache in ["kernel", "direct"] {
        let mount = Mount::new(96 + files * 24 / 1024, &format!("hold,cache={cache}"));
        let dir = |name: &str| {
            fs::create_dir(mount.path(name)).unwrap();
            mount.path(name)
        };
        let (made, renamed, listed, many) = (dir("made"), dir("renamed"), dir("listed"), dir("many"));
        for i in 0..files {
            let dir = many.join((i / 1000).to_string());
            if i % 1000 == 0 {
                fs::create_dir(&dir).unwrap();
            }
            fs::write(dir.join(i.to_string()), b"x").unwrap();
        }
        (0..300).for_each(|i| fs::write(listed.join(format!("stays {i}")), b"").unwrap());
        let locked = File::create(mount.path("locked")).unwrap();
        rustix::fs::flock(&locked, FlockOperation::NonBlockingLockExclusive).unwrap();
        let gone = OpenOptions::new().read(true).write(true).create_new(true).open(mount.path("gone")).unwrap();
        gone.write_all_at(b"content", 5000).unwrap();
        fs::remove_file(mount.path("gone")).unwrap();
        let (ended, told) = (AtomicBool::new(false), [(); 7].map(|()| Told::default()));
        let pauses = AtomicU64::new(0);
        thread::scope(|scope| {
            let end = Over(&ended);
            let mut loads: Vec<Box<dyn FnMut(u64) + Send>> = Vec::new();
            loads.push(Box::new(|number| names(&made, number)));
            let (mut from, mut to) = (renamed.join("a"), renamed.join("b"));
            File::create_new(&from).unwrap();
            loads.push(Box::new(move |_| {
                fs::rename(&from, &to).unwrap();
                std::mem::swap(&mut from, &mut to);
            }));
            let mut log = OpenOptions::new().append(true).create_new(true).open(mount.path("log")).unwrap();
            loads.push(Box::new(move |number| {
                if number % LINES == 0 {
                    log.set_len(0).unwrap();
                }
                log.write_all(line(number).as_bytes()).unwrap();
            }));
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).custom_flags(libc::O_DIRECT);
            let direct = options.open(mount.path("direct")).unwrap();
            let mut page = Page([0; 4096]);
            loads.push(Box::new(move |number| {
                page.0.fill(number as u8);
                let at = number % 64 * 4096;
                direct.write_all_at(&page.0, at).unwrap();
                page.0.fill(0xee);
                direct.read_exact_at(&mut page.0, at).unwrap();
                assert!(page.0.iter().all(|byte| *byte == number as u8));
            }));
            let mapped = OpenOptions::new().read(true).write(true).create_new(true).open(mount.path("mapped")).unwrap();
            mapped.set_len(64 << 10).unwrap();
            loads.push(Box::new({
                let mut mapping = None;
                move |number| mapping.get_or_insert_with(|| Mapping::new(&mapped)).store(number)
            }));
            loads.push(Box::new(|number| {
                let came = listed.join(format!("comes {number}"));
                File::create_new(&came).unwrap();
                let names =
                    fs::read_dir(&listed).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
                assert_eq!(names.filter(|name| name.starts_with("stays")).count(), 300);
                fs::remove_file(&came).unwrap();
            }));
            loads.push(Box::new(|_| {
                let other = File::open(mount.path("locked")).unwrap();
                let refused = rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive);
                assert_eq!(refused, Err(rustix::io::Errno::WOULDBLOCK));
                let mut got = [0; 7];
                gone.read_exact_at(&mut got, 5000).unwrap();
                assert_eq!(&got, b"content");
            }));
            let loads: Vec<_> = loads
                .into_iter()
                .zip(&told)
                .map(|(load, told)| {
                    let (ended, own) = (&ended, Over(&ended));
                    scope.spawn(move || {
                        let _own = own; // a failure ends all
                        repeat(told, ended, load);
                    })
                })
                .collect();
            for kill in 0..kills {
                // Each time in the middle of something else.
                let renames = &told[1].rounds;
                let due = renames.load(Ordering::Relaxed) + 1 + kill * 7919 % 500;
                wait(|| renames.load(Ordering::Relaxed) >= due || ended.load(Ordering::Relaxed));
                if ended.load(Ordering::Relaxed) {
                    break;
                }
                let begin = Instant::now();
                mount.kill();
                pauses.fetch_max(begin.elapsed().as_micros() as u64, Ordering::Relaxed);
            }
            drop(end);
            loads.into_iter().for_each(|load| load.join().unwrap());
        });
        let rounds = told.each_ref().map(|told| told.rounds.load(Ordering::Relaxed));
        let longest = told.iter().map(|told| told.longest.load(Ordering::Relaxed)).max().unwrap();
        println!(
            "cache={cache}: {kills} kills, rounds {rounds:?}, the longest pause {:.3} s, the longest round {:.3} s",
            pauses.load(Ordering::Relaxed) as f64 / 1e6,
            longest as f64 / 1e6,
        );
        let log: String = (rounds[2].saturating_sub(1) / LINES * LINES..rounds[2]).map(line).collect();
        assert!(fs::read(mount.path("log")).unwrap() == log.as_bytes(), "each line is there once");
        let mapped = fs::read(mount.path("mapped")).unwrap();
        let last = (rounds[4] - 1).to_ne_bytes();
        assert!(mapped.chunks(4096).all(|page| page[..8] == last), "{rounds:?}");
        assert_eq!(fs::read_dir(&made).unwrap().count(), 0);
        drop((locked, gone));
        mount.end();
    }
}

/// Aligned, as O_DIRECT wants it.
#[repr(align(4096))]
struct Page([u8; 4096]);

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is that of the mapping, which ends with this value.
        unsafe { rustix::mm::munmap(self.0, self.1) }.unwrap();
    }
}

// SAFETY: the thread that makes it is the only one that uses it.
unsafe impl Send for Mapping {}

fn free(mount: &Mount) -> u64 {
    rustix::fs::statvfs(&mount.dir).unwrap().f_bfree
}

/// Inherited files without a name, one that is open and some whose server died before it could say
/// so, keep nothing once nobody has them.
fn what_removed_files_hold_is_free_after_a_takeover() {
    let mount = Mount::new(32, "hold");
    let before = free(&mount);
    let make = |name: &str| {
        fs::write(mount.path(name), vec![1; 1 << 20]).unwrap();
        File::open(mount.path(name)).unwrap()
    };
    let open = make("open");
    fs::remove_file(mount.path("open")).unwrap();
    let named = make("named");
    mount.kill();
    assert!(free(&mount) + 512 <= before, "what is open stays");
    // It was made by one server, loses its name in the next, and is open in the one after that.
    fs::remove_file(mount.path("named")).unwrap();
    mount.kill();
    for file in [&open, &named] {
        let mut got = vec![0; 1 << 20];
        file.read_exact_at(&mut got, 0).unwrap();
        assert!(got.iter().all(|byte| *byte == 1));
    }
    drop((open, named));
    // A log page or two of the root may be new.
    wait(|| free(&mount) + 8 >= before);
    mount.end();
}

/// While a file without a name is open, its number is its own, whoever serves.
fn a_number_that_the_kernel_knows_goes_to_no_other_file() {
    let mount = Mount::new(16, "hold");
    let open = File::create_new(mount.path("open")).unwrap();
    let number = open.metadata().unwrap().ino();
    mount.kill();
    fs::remove_file(mount.path("open")).unwrap();
    mount.kill();
    for i in 0..100 {
        let other = File::create_new(mount.path(&i.to_string())).unwrap();
        assert_ne!(other.metadata().unwrap().ino(), number);
    }
    drop(open);
    mount.end();
}

fn an_upgrade_replaces_the_program() {
    let mount = Mount::new(16, "hold");
    let open = File::create_new(mount.path("open")).unwrap();
    open.write_all_at(b"content", 0).unwrap();
    let before = mount.server();
    let upgrade = || Command::new(&mount.program).args(["upgrade", &mount.dir]).output().unwrap();
    // As packages do it: another file by the same name.
    let newer = mount.program.with_extension("newer");
    fs::copy(program(), &newer).unwrap();
    fs::rename(&newer, &mount.program).unwrap();
    let upgraded = upgrade();
    assert!(upgraded.status.success() && upgraded.stderr.is_empty(), "{upgraded:?}");
    let after = mount.server();
    assert_ne!(after.program, before.program);
    assert_eq!((after.program.1, after.holder), (fs::metadata(&mount.program).unwrap().ino(), before.holder));
    // The newer one is also what goes on after a crash.
    mount.kill();
    assert_eq!(mount.server().program, after.program);
    let mut got = [0; 7];
    open.read_exact_at(&mut got, 0).unwrap();
    assert_eq!(&got, b"content");
    drop(open);
    mount.end();
}

fn a_program_that_does_not_work_is_no_upgrade() {
    let mount = Mount::new(16, "hold");
    fs::write(mount.path("f"), b"content").unwrap();
    let before = mount.server();
    let working = mount.program.with_extension("works");
    fs::copy(&mount.program, &working).unwrap();
    let broken = mount.program.with_extension("broken");
    fs::copy("/bin/false", &broken).unwrap();
    fs::rename(&broken, &mount.program).unwrap();
    let upgraded = Command::new(working).args(["upgrade", &mount.dir]).output().unwrap();
    let said = String::from_utf8_lossy(&upgraded.stderr).into_owned();
    assert!(!upgraded.status.success() && said.contains("the program that served before goes on"), "{said}");
    let after = mount.server();
    assert_ne!(after.pid, before.pid);
    assert_eq!(after.program, before.program);
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"content");
    mount.end();
}

fn a_holder_lets_go_after_three_failed_starts() {
    let mount = Mount::new(16, "hold");
    let server = mount.server();
    let away = format!("{}.away", mount.volume);
    fs::rename(&mount.volume, &away).unwrap();
    kill_process(Pid::from_raw(server.pid).unwrap(), Signal::KILL).unwrap();
    let error = fs::create_dir(mount.path("new")).unwrap_err();
    assert!(matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)), "{error}");
    let holder = Pid::from_raw(server.holder.unwrap()).unwrap();
    wait(|| kill_process(holder, Signal::CONT).is_err());
    let unmounted = Command::new("umount").args(["-l", &mount.dir]).status().unwrap();
    assert!(unmounted.success());
    fs::rename(&away, &mount.volume).unwrap();
    assert_eq!(homenode(&["fsck", "-y", &mount.volume]).status.code(), Some(1), "it was in use");
}

fn a_mount_without_a_holder_cannot_be_upgraded() {
    let mount = Mount::new(16, "nohold");
    assert_eq!(mount.server().holder, None);
    let upgraded = homenode(&["upgrade", &mount.dir]);
    let said = String::from_utf8_lossy(&upgraded.stderr).into_owned();
    assert!(!upgraded.status.success() && said.contains("nothing holds this mount"), "{said}");
    let nowhere = homenode(&["upgrade", "/proc"]);
    assert!(!nowhere.status.success() && String::from_utf8_lossy(&nowhere.stderr).contains("no mount of homenode"));
    mount.end();
}

fn a_held_mount_ends_by_umount_and_by_a_signal() {
    let mount = Mount::new(16, "hold");
    let (holder, server) = (mount.holder(), Pid::from_raw(mount.server().pid).unwrap());
    mount.end();
    wait(|| [holder, server].iter().all(|pid| kill_process(*pid, Signal::CONT).is_err()));
    let mount = Mount::new(16, "hold");
    mount.kill();
    kill_process(mount.holder(), Signal::TERM).unwrap();
    wait(|| !fs::read_to_string("/proc/mounts").unwrap().contains(&mount.dir));
    mount.ended();
    // In the foreground, as a service.
    let socket = mount.program.with_extension("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    let mut service = Command::new(&mount.program);
    service.args(["mount", "--foreground", "-o", "hold", &mount.volume, &mount.dir]);
    let mut service = service.env("NOTIFY_SOCKET", &socket).stdout(Stdio::null()).process_group(0).spawn().unwrap();
    let hears = || {
        let mut said = [0; 64];
        let len = manager.recv(&mut said).unwrap();
        String::from_utf8_lossy(&said[..len]).into_owned()
    };
    assert_eq!(hears(), "READY=1");
    assert_eq!(mount.holder(), Pid::from_child(&service));
    mount.kill();
    kill_process(Pid::from_child(&service), Signal::TERM).unwrap();
    assert_eq!(hears(), "STOPPING=1");
    assert_eq!(service.wait().unwrap().code(), Some(0));
    mount.ended();
}
