//! File systems that are measured beside each other: volumes, mounts that a process of its own
//! serves, tmpfs, and ext4 on a loop device.
#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first surprise")]

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;

use ::fs::medium::{Mapped, RegionFile};
use ::fs::{Layout, Volume};
use rustix::mount::{UnmountFlags, unmount};

use crate::Part;

/// The file that has the memory of a system.
pub fn region(place: &Path, name: &str) -> PathBuf {
    place.join(format!("{name}.region"))
}

fn medium(region: &Path) -> Box<Mapped> {
    let file = OpenOptions::new().read(true).write(true).open(region).unwrap();
    Box::new(Mapped::new(&[RegionFile { file, bind: None }]).unwrap())
}

/// A new volume of so many bytes.
pub fn volume(region: &Path, bytes: u64) -> Volume {
    File::create(region).unwrap().set_len(bytes).unwrap();
    let layout = Layout { nodes: vec![Some(0)], journals: 4, ..Layout::default() };
    ::fs::mkfs(medium(region), &layout).unwrap();
    Volume::mount(medium(region), ::fs::Options::default()).unwrap()
}

pub struct Mount {
    pub dir: PathBuf,
    server: Option<Part>,
}

impl Mount {
    /// Mounts `tmpfs`, `ext4` of so many bytes, or what a process serves that is started as
    /// `homenode-bench mount --serve NAME PLACE`, on a directory of this name.
    pub fn new(name: &str, place: &Path, bytes: u64) -> Self {
        let dir = place.join(name);
        fs::create_dir(&dir).unwrap();
        let run = |program: &str, args: &[&str]| assert!(Command::new(program).args(args).status().unwrap().success());
        let path = dir.to_str().unwrap();
        let mut server = None;
        match name {
            "tmpfs" => run("mount", &["-t", "tmpfs", "none", path]),
            "ext4" => {
                let image = region(place, name);
                File::create(&image).unwrap().set_len(bytes).unwrap();
                let image = image.to_str().unwrap();
                run("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image]);
                run("mount", &["-o", "loop", image, path]);
            }
            _ => {
                let part = Part::start("mount", ["--serve", name, place.to_str().unwrap()]).unwrap();
                assert_eq!(part.said, "mounted\n");
                server = Some(part);
            }
        }
        Self { dir, server }
    }

    /// CPU time of this process and of the server until now, ns.
    pub fn cpu_ns(&self) -> u64 {
        cpu_ns(None) + self.server.as_ref().map_or(0, |server| cpu_ns(Some(server.child.id())))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Files of it may be open.
        let _ = unmount(&self.dir, UnmountFlags::DETACH);
    }
}

/// CPU time of this process or another one until now, ns.
fn cpu_ns(pid: Option<u32>) -> u64 {
    // The clock of another process, as clock_getcpuclockid(3) makes it.
    let clock = pid.map_or(libc::CLOCK_PROCESS_CPUTIME_ID, |pid| (!(pid as i32) << 3) | 2);
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec, which lives through it.
    assert_eq!(unsafe { libc::clock_gettime(clock, &raw mut time) }, 0, "{pid:?}");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
