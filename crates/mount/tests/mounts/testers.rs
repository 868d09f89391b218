//! Other people's testers of file systems, whole: `pjdfstest` for what POSIX says of names, attributes and
//! permissions, `fsx` for the content of a file under random changes. `HOMENODE_FSX_OPS` lengthens the latter.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use mount::Cache;

use crate::harness::Mount;

/// The testers, and their needs.
pub const TESTS: &[(&str, fn(), &str)] = &[
    ("pjdfstest_passes", pjdfstest_passes, "pjdfstest"),
    ("fsx_finds_the_bytes_that_were_written", fsx_finds_the_bytes_that_were_written, "fsx"),
];

fn tool(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin").join(name)
}

/// Why a test cannot run.
pub fn missing(name: &str) -> Option<String> {
    (!tool(name).exists()).then(|| format!("{name} is not installed: tools/setup testers"))
}

fn pjdfstest_passes() {
    let mount = Mount::new(Cache::Kernel, 128);
    std::fs::set_permissions(mount.dir(), PermissionsExt::from_mode(0o777)).unwrap();
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    // Left out: `rename_ctime`, because POSIX leaves open whether a rename changes the times of what it moves, and
    // ours does not (that would be one more inode in its journal); EROFS, because the mount would have to be idle for
    // a moment; LINK_MAX, which a FUSE file system cannot tell; what Linux does not have (chflags, NFSv4 ACLs).
    let config = place.path().join("config.toml");
    let text = "[features]\nposix_fallocate = {}\nutimensat = {}\nutime_now = {}\n\
                [settings]\nnaptime = 0.02\n\
                [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n";
    std::fs::write(&config, text).unwrap();
    let run = Command::new(tool("pjdfstest"))
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

fn fsx_finds_the_bytes_that_were_written() {
    let ops = std::env::var("HOMENODE_FSX_OPS").unwrap_or_else(|_| "10000".to_owned());
    for (cache, seed) in [(Cache::Kernel, "1"), (Cache::Direct, "2")] {
        let mount = Mount::new(cache, 128);
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        let config = place.path().join("fsx.toml");
        let weights = ["close_open", "invalidate", "fsync", "fdatasync", "posix_fallocate", "punch_hole", "sendfile"];
        let weights = weights.into_iter().chain(["posix_fadvise", "copy_file_range"]);
        let weights: String = weights.map(|name| format!("{name} = 1.0\n")).collect();
        std::fs::write(&config, format!("flen = 1048576\n[opsize]\nmax = 131072\n[weights]\n{weights}")).unwrap();
        let run = Command::new(tool("fsx"))
            .args(["-N", &ops, "-S", seed, "-q", "-f"])
            .args([config.as_os_str(), "-P".as_ref(), place.path().as_os_str(), mount.path("f").as_os_str()])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{cache:?}, seed {seed}: {said}");
        mount.end();
    }
}
