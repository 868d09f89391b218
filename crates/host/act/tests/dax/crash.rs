//! Crashes in the middle of moves.
//!
//! In the test, XFS is shut down at a random moment, as it is by a failed device: what is not in
//! its log by then is gone. Then it is mounted again, and recovers from its log.
//!
//! `tools/test-power-cuts` kills the whole machine instead, whose persistent memory is in files.
//! Each life of the machine ([`be_killed`]) looks at what the last one left. What a processor's
//! caches had not written back yet is not lost there.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Lines};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;
use testing::{Case, cases};

use super::volume::{MIB, MOUNT, check, create, extents, move_to, nodes, number, on_volume};

pub const CASES: &[Case] = cases![[on_volume()] a_crash_leaves_old_or_new_blocks];

const SIZE: u64 = 8 * MIB;

/// `XFS_IOC_GOINGDOWN`, `_IOR('X', 125, __u32)`, and `XFS_FSOP_GOING_FLAGS_NOLOGFLUSH`
/// (fs/xfs/libxfs/xfs_fs.h).
const GOING_DOWN: u32 = 0x8004_587d;
static NO_LOG_FLUSH: u32 = 2;

/// The writer's words, each at the start of a page; nobody writes the rest of the file.
const WORDS: u64 = 64;

/// Writes growing numbers to these words in turn, from the largest that is there; syncs each, and
/// says so.
pub fn be_syncing_writer(args: &[String]) {
    let file = File::options().read(true).write(true).open(&args[0]).unwrap();
    let last = words(&file).into_iter().max().unwrap();
    for number in last + 1.. {
        if file.write_all_at(&number.to_ne_bytes(), number % WORDS * 4096).and_then(|()| file.sync_data()).is_err() {
            return;
        }
        println!("{number}");
        // Some ticks, so that moves get their turn.
        std::thread::sleep(Duration::from_millis(number * 7919 % 60));
    }
}

fn words(file: &File) -> Vec<u64> {
    let word = |i: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, i * 4096).unwrap();
        u64::from_ne_bytes(bytes)
    };
    (0..WORDS).map(word).collect()
}

/// A new file, with zeroes where the writer writes.
fn begin(path: &Path) {
    let file = create(path, 12, SIZE);
    (0..WORDS).for_each(|i| file.write_all_at(&[0; 8], i * 4096).unwrap());
    file.sync_all().unwrap();
}

/// Fails unless the file has all its bytes, each synced number or one that is newer, and each block
/// once.
fn whole(path: &Path, synced: u64) {
    let file = File::open(path).unwrap();
    for (i, found) in (0..WORDS).zip(words(&file)) {
        // The last number up to `synced` whose place this is.
        let last = synced.saturating_sub((synced + WORDS - i) % WORDS);
        assert!(
            found >= last && (found == 0 || found % WORDS == i),
            "{found} is in the place of {last}, which was synced"
        );
        check(&file, 12, i * 4096 + 8, (i + 1) * 4096);
    }
    check(&file, 12, WORDS * 4096, SIZE);
    let mut end = 0;
    for extent in extents(&file) {
        assert_eq!(extent.0, end);
        end += extent.1;
    }
    assert_eq!(end, SIZE);
    println!("after {synced} writes: {:?}", nodes(&file));
}

/// Starts this program in a role of its own. Returns it and the lines that it prints.
fn start(role: &str, path: &Path) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut command = testing::myself(role);
    command.arg(path).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

/// Has xfs_repair look at the volume; it must find nothing.
fn repaired() {
    let (device, options) = mounted();
    run("umount", &[MOUNT]);
    run(repair().to_str().unwrap(), &["-n", &device]);
    run("mount", &["-t", "xfs", "-o", &options, &device, MOUNT]);
}

/// One life of a machine that will be killed: the file of its last life must be whole, with all
/// numbers up to the given one. Then it moves and is written. Prints `whole`, or `made` in the
/// first life, and then each synced number.
pub fn be_killed(args: &[String]) {
    let path = Path::new(MOUNT).join("killed");
    if path.exists() {
        whole(&path, args[0].parse().unwrap());
        repaired();
        println!("whole");
    } else {
        begin(&path);
        println!("made");
    }
    let (_mover, mut moves) = start("mover", &path);
    moves.next().unwrap().unwrap();
    let (_writer, numbers) = start("syncing-writer", &path);
    std::thread::spawn(move || moves.for_each(drop));
    for number in numbers {
        println!("synced {}", number.unwrap());
    }
}

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The device of the mounted volume, and its options.
fn mounted() -> (String, String) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.split(' ').nth(1) == Some(MOUNT)).unwrap();
    let mut fields = line.split(' ');
    let (device, options) = (fields.next().unwrap(), fields.nth(2).unwrap());
    let dax = if options.contains("dax=always") { "dax=always" } else { "rw" };
    (device.to_owned(), dax.to_owned())
}

/// That of tools/setup xfs, which knows the volume's features; else the machine's.
fn repair() -> PathBuf {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/vm/xfs/bin/xfs_repair");
    if unpacked.exists() { unpacked } else { "xfs_repair".into() }
}

fn random(below: u64) -> u64 {
    linux::random::secret().unwrap() % below
}

/// A process that moves a file back and forth and counts the moves, until it is killed.
pub fn be_mover(args: &[String]) {
    for round in 0.. {
        move_to(&PathBuf::from(&args[0]), round % 2);
        println!("{round}");
    }
}

fn a_crash_leaves_old_or_new_blocks() {
    let path = Path::new(MOUNT).join("crash");
    begin(&path);
    let (device, options) = mounted();
    for _ in 0..number("HOMENODE_DAX_CRASHES", if testing::long() { 5 } else { 1 }) {
        // The mover first: the writer's word comes when both are at work.
        let (mut mover, mut moves) = start("mover", &path);
        moves.next().unwrap().unwrap();
        let (mut writer, mut numbers) = start("syncing-writer", &path);
        let mut synced = 0_u64;
        for _ in 0..1 + random(20) {
            synced = numbers.next().unwrap().unwrap().parse().unwrap();
        }
        std::thread::sleep(Duration::from_micros(random(20_000)));
        let root = File::open(MOUNT).unwrap();
        // SAFETY: the kernel reads a 32-bit number.
        let down = unsafe { libc::ioctl(root.as_raw_fd(), GOING_DOWN as _, &raw const NO_LOG_FLUSH) };
        assert_eq!(down, 0, "{}", std::io::Error::last_os_error());
        drop(root);
        synced = numbers.last().map_or(synced, |line| line.unwrap().parse().unwrap());
        mover.kill().unwrap();
        mover.wait().unwrap();
        writer.wait().unwrap();
        run("umount", &[MOUNT]);
        run("mount", &["-t", "xfs", "-o", &options, &device, MOUNT]);
        whole(&path, synced);
        repaired();
    }
    assert_eq!(move_to(&path, 0).failed(), 0);
    assert_eq!(move_to(&path, 1).failed(), 0);
    check(&File::open(&path).unwrap(), 12, WORDS * 4096, SIZE);
    fs::remove_file(&path).unwrap();
}
