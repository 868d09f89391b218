//! Crashes in the middle of moves. XFS is shut down at a random moment, as it is by a failed device: what is not in its log by
//! then is gone. Then it is mounted again, and recovers from its log.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::volume::{MIB, MOUNT, check, create, extents, move_to, nodes};

const SIZE: u64 = 16 * MIB;

/// `XFS_IOC_GOINGDOWN`, `_IOR('X', 125, __u32)`, and `XFS_FSOP_GOING_FLAGS_NOLOGFLUSH` (fs/xfs/libxfs/xfs_fs.h).
const GOING_DOWN: u32 = 0x8004_587d;
static NO_LOG_FLUSH: u32 = 2;

/// Crashes: more in a long run.
fn crashes() -> u32 {
    std::env::var("HOMENODE_DAX_CRASHES").ok().and_then(|n| n.parse().ok()).unwrap_or(3)
}

/// Writes a growing number to the file's first page, syncs it, and says so.
pub fn be_syncing_writer(args: &[String]) {
    let file = File::options().write(true).open(&args[0]).unwrap();
    for number in 1_u64.. {
        if file.write_all_at(&number.to_ne_bytes(), 0).and_then(|()| file.sync_data()).is_err() {
            return;
        }
        println!("{number}");
        // Some ticks, so that moves get their turn.
        std::thread::sleep(Duration::from_millis(number * 7919 % 60));
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
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/vm/xfs/bin/xfs_repair");
    if unpacked.exists() { unpacked } else { "xfs_repair".into() }
}

fn random(below: u64) -> u64 {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).unwrap();
    u64::from_ne_bytes(bytes) % below
}

pub fn crashed() {
    let path = Path::new(MOUNT).join("crash");
    drop(create(&path, 12, SIZE));
    let (device, options) = mounted();
    for _ in 0..crashes() {
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[0; 8], 0).and_then(|()| file.sync_all()).unwrap();
        drop(file);
        let role = |role: &str| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--role", role]).arg(&path).stdout(Stdio::piped()).stderr(Stdio::null());
            command.spawn().unwrap()
        };
        // The mover first: the writer's word comes when both are at work.
        let mut mover = role("mover");
        let mut moves = BufReader::new(mover.stdout.take().unwrap()).lines();
        moves.next().unwrap().unwrap();
        let mut writer = role("syncing-writer");
        let mut numbers = BufReader::new(writer.stdout.take().unwrap()).lines();
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

        let file = File::open(&path).unwrap();
        check(&file, 12, 8, SIZE);
        let mut number = [0; 8];
        file.read_exact_at(&mut number, 0).unwrap();
        let found = u64::from_ne_bytes(number);
        assert!(found >= synced, "{found} is older than {synced}, which was synced");
        // Each block is there once, on some node.
        let mut end = 0;
        for extent in extents(&file) {
            assert_eq!(extent.0, end);
            end += extent.1;
        }
        assert_eq!(end, SIZE);
        println!("after {synced} writes: {:?}", nodes(&file));
        drop(file);
        run("umount", &[MOUNT]);
        run(repair().to_str().unwrap(), &["-n", &device]);
        run("mount", &["-t", "xfs", "-o", &options, &device, MOUNT]);
    }
    assert_eq!(move_to(&path, 0).failed(), 0);
    assert_eq!(move_to(&path, 1).failed(), 0);
    check(&File::open(&path).unwrap(), 12, 8, SIZE);
    fs::remove_file(&path).unwrap();
}
