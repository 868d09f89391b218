//! Other people's testers of file systems, whole: `pjdfstest` for what POSIX says of names,
//! attributes and permissions, `fsx` for the content of a file under random changes, `fio --verify`
//! for what a killed server has acknowledged, stress-ng's file-system class for calls that nobody
//! else makes. `HOMENODE_FSX_OPS`, `HOMENODE_FIO_KILLS` and `HOMENODE_STRESS_SECONDS` lengthen the
//! last three.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use mount::Cache;
use testing::{Case, Skip, Tried, cases, installed, mounting, need};

use crate::harness::Mount;

/// The testers, and their needs.
pub const CASES: &[Case] = cases![
    [mounting(), tool("pjdfstest").map(drop)] pjdfstest_passes;
    [mounting(), tool("fsx").map(drop)] fsx_finds_the_bytes_that_were_written;
    [mounting(), tool_of("fio", "programs")] fio_finds_what_a_killed_server_acknowledged;
    [mounting(), tool_of("stress-ng", "testers")] stress_ng_leaves_a_sound_volume;
];

fn tool(name: &str) -> Tried<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/tools/bin").join(name);
    need(path.exists(), format!("{name} is not installed: tools/setup testers"))?;
    Ok(path)
}

/// Needs a program that a part of tools/setup installs.
pub fn tool_of(name: &str, setup: &str) -> Tried {
    installed(name).map_err(|missing| Skip(format!("{missing}: tools/setup {setup}")).into())
}

fn pjdfstest_passes() {
    let mount = Mount::new(Cache::Kernel, 128);
    std::fs::set_permissions(mount.dir(), PermissionsExt::from_mode(0o777)).unwrap();
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    // Left out: `rename_ctime`, because POSIX leaves open whether a rename changes the times of
    // what it moves, and ours does not (that would be one more inode in its journal); EROFS,
    // because the mount would have to be idle for a moment; LINK_MAX, which a FUSE file system
    // cannot tell; what Linux does not have (chflags, NFSv4 ACLs).
    let config = place.path().join("config.toml");
    let text = "[features]\nposix_fallocate = {}\nutimensat = {}\nutime_now = {}\n\
                [settings]\nnaptime = 0.02\n\
                [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n";
    std::fs::write(&config, text).unwrap();
    let run = Command::new(tool("pjdfstest").unwrap())
        .args(["-c".as_ref(), config.as_os_str(), "-p".as_ref(), mount.dir().as_os_str()])
        .args(["-s".as_ref(), place.path().as_os_str()])
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    let count = |end: &str| said.lines().filter(|line| line.trim_end().ends_with(end)).count();
    assert!(run.status.success() && count("FAILED") == 0, "{said}");
    assert!(count(" ok") > 350, "{said}");
    mount.end();
}

/// Operations of one process of fsx. Version 0.3.2 never unmaps what it has read through a mapping,
/// and each truncation walks all mappings of the file: half an hour was not enough for a process to
/// do 1,000,000.
const FSX_PART: u64 = 4000;

fn fsx_finds_the_bytes_that_were_written() {
    let ops: u64 = std::env::var("HOMENODE_FSX_OPS").map_or(10_000, |ops| ops.parse().unwrap());
    for (cache, first) in [(Cache::Kernel, 1_000_000), (Cache::Direct, 2_000_000)] {
        let mount = Mount::new(cache, 128);
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        let config = place.path().join("fsx.toml");
        let weights = ["close_open", "invalidate", "fsync", "fdatasync", "posix_fallocate", "punch_hole", "sendfile"];
        let weights = weights.into_iter().chain(["posix_fadvise", "copy_file_range"]);
        let weights: String = weights.map(|name| format!("{name} = 1.0\n")).collect();
        std::fs::write(&config, format!("flen = 1048576\n[opsize]\nmax = 131072\n[weights]\n{weights}")).unwrap();
        for (seed, begun) in (first..).zip((0..ops).step_by(FSX_PART as usize)) {
            let run = Command::new(tool("fsx").unwrap())
                .args(["-N", &FSX_PART.min(ops - begun).to_string(), "-S", &seed.to_string(), "-q", "-f"])
                .args([config.as_os_str(), "-P".as_ref(), place.path().as_os_str(), mount.path("f").as_os_str()])
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
            assert!(run.status.success(), "{cache:?}, seed {seed}: {said}");
        }
        mount.end();
    }
}

/// fio writes blocks that hold their own offset and checksum. After a second it notes how many were
/// acknowledged, and kills the server. The next server recovers the volume, and fio reads these
/// blocks. Each pass overwrites what the one before left.
fn fio_finds_what_a_killed_server_acknowledged() {
    let kills: u32 = std::env::var("HOMENODE_FIO_KILLS").map_or(3, |kills| kills.parse().unwrap());
    for cache in [Cache::Kernel, Cache::Direct] {
        let mut mount = Mount::new(cache, 128);
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        let (file, report) = (mount.path("f"), place.path().join("report"));
        let fio = |seed: u32, more: &[&str]| {
            let mut fio = Command::new("fio");
            fio.args([
                "--name=v",
                "--rw=randwrite",
                "--bsrange=4k-32k",
                "--size=64M",
                "--verify=crc32c",
                "--output-format=json",
            ]);
            fio.args([format!("--filename={}", file.display()), format!("--aux-path={}", place.path().display())]);
            fio.args([format!("--randseed={seed}"), format!("--output={}", report.display())]).args(more);
            let run = fio.output().unwrap();
            let said = std::fs::read_to_string(&report).unwrap_or_default();
            let ios = |kind: &str| {
                let of_kind =
                    said.split_once(&format!("\"{kind}\" :")).unwrap().1.split_once("\"total_ios\" : ").unwrap().1;
                of_kind.split_once(',').unwrap().0.parse::<u64>().unwrap()
            };
            (run.status.success(), ios("read"), ios("write"), format!("{run:?} {said}"))
        };
        for seed in 1..=kills {
            let kill = format!("--trigger=kill -9 {}", mount.pid().as_raw_nonzero());
            // The rate keeps a quick machine from ending before the second is over.
            let options = ["--do_verify=0", "--rate=30m", "--verify_state_save=1", "--trigger-timeout=1", &kill];
            let (_, _, written, said) = fio(seed, &options);
            mount.kill();
            mount.recover();
            let (sound, read, _, verified) = fio(seed, &["--verify_only", "--verify_state_load=1"]);
            assert!(sound, "{cache:?}, kill {seed}: {verified}");
            // The last ones were under way when fio took its note.
            assert!(read > 0 && read <= written && read + 16 >= written, "{read} of {written}: {said} {verified}");
        }
        mount.end();
    }
}

/// Those of the class `filesystem` of stress-ng 0.15 that use the directory that they are given,
/// but for those that this file system does not offer (`fiemap`, `verity`; `chattr` and
/// `inode-flags` set attributes of ext4).
const STRESSORS: &[&str] = &[
    "access",
    "chdir",
    "chmod",
    "chown",
    "copy-file",
    "dentry",
    "dir",
    "dirdeep",
    "dirmany",
    "dnotify",
    "dup",
    "fallocate",
    "fcntl",
    "file-ioctl",
    "filename",
    "flock",
    "fpunch",
    "fsize",
    "fstat",
    "getdent",
    "hdd",
    "inotify",
    "io",
    "iomix",
    "lease",
    "link",
    "locka",
    "lockf",
    "lockofd",
    "open",
    "rename",
    "symlink",
    "sync-file",
    "touch",
    "utime",
    "xattr",
];

/// Each stressor checks what its calls answer (`--verify`). After a quarter of them the mount is
/// taken away, checked and made again.
fn stress_ng_leaves_a_sound_volume() {
    let seconds = std::env::var("HOMENODE_STRESS_SECONDS").unwrap_or_else(|_| "1".to_owned());
    let mut mount = Mount::new(Cache::Kernel, 256);
    // Some stressors leave files where they were started.
    let beside = tempfile::tempdir().unwrap();
    for some in STRESSORS.chunks(STRESSORS.len() / 4) {
        for stressor in some {
            let run = Command::new("stress-ng")
                .args([format!("--{stressor}"), "1".to_owned(), "--timeout".to_owned(), seconds.clone()])
                // Its own size, a GiB, is more than the volume.
                .args(["--iomix-bytes", "16M", "--verify", "--temp-path"])
                .arg(mount.dir())
                .current_dir(&beside)
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
            assert!(run.status.success() && said.contains("successful run completed"), "{stressor}: {said}");
        }
        let left: Vec<_> = std::fs::read_dir(mount.dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.is_empty(), "{left:?} after {some:?}");
        mount.ask_to_unmount();
        mount.ended();
        mount.start();
    }
    mount.end();
}
