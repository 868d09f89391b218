//! Whether a region's memory outlives the machine's power.
//!
//! **Problem.** A mapping does not say it. Device DAX is persistent memory as well as CXL memory
//! and HBM that forget, and `msync` succeeds on file systems that keep nothing.
//!
//! **Approach.** sysfs says what is below a DAX or block device, and statfs(2) what a file system
//! is.
//!
//! **Limits.** File systems of other machines or programs (NFS, FUSE, 9p), ZFS, and file systems
//! below which nothing is known are [`Durability::Unknown`]. A disk is taken to keep what it said
//! it has written.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxFlags};

/// What becomes of a region's memory when the machine loses power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// It keeps what was made durable.
    Durable,
    Unknown,
    Volatile,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Durable => "durable",
            Self::Unknown => "unknown",
            Self::Volatile => "volatile",
        })
    }
}

pub(super) const SYS: &str = "/sys";

// Of statfs(2).
const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;
const HUGETLBFS: i64 = 0x9584_58f6;
const OVERLAYFS: i64 = 0x794c_7630;
const BTRFS: i64 = 0x9123_683e;
const BCACHEFS: i64 = 0xca45_1a4e;

/// Devices on devices: more than this is a circle, or nothing a person made.
const DEEPEST: u32 = 16;

pub(super) fn of_dax(sys: &Path, device: u64) -> Durability {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let place = sys.join(format!("dev/char/{major}:{minor}")).canonicalize();
    place.ok().and_then(|place| of_bus(&place)).unwrap_or(Durability::Unknown)
}

pub(super) fn of_file(sys: &Path, file: &File) -> Durability {
    of_file_below(sys, file, DEEPEST)
}

fn of_file_below(sys: &Path, file: &File, deepest: u32) -> Durability {
    let (Ok(kind), Ok(metadata)) = (rustix::fs::fstatfs(file), file.metadata()) else { return Durability::Unknown };
    match kind.f_type {
        TMPFS | RAMFS | HUGETLBFS => Durability::Volatile,
        OVERLAYFS => {
            let upper = upper_file(file).ok().flatten().filter(|_| deepest > 0);
            upper.map_or(Durability::Unknown, |upper| of_file_below(sys, &upper, deepest - 1))
        }
        // Their files have a device number of no device.
        BTRFS | BCACHEFS => {
            let source = mount_of(file).ok().flatten().and_then(|mount| std::fs::metadata(mount.source).ok());
            source.map_or(Durability::Unknown, |source| of_block(sys, source.rdev(), deepest))
        }
        _ => of_block(sys, metadata.dev(), deepest),
    }
}

/// Of a block device, by the devices that it is on.
fn of_block(sys: &Path, device: u64, deepest: u32) -> Durability {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let place = sys.join(format!("dev/block/{major}:{minor}")).canonicalize();
    place.map_or(Durability::Unknown, |place| of_block_at(sys, &place, deepest))
}

fn of_block_at(sys: &Path, place: &Path, deepest: u32) -> Durability {
    let Some(deeper) = deepest.checked_sub(1) else { return Durability::Unknown };
    // A partition is below its disk, which knows the rest.
    let disk = if place.join("partition").exists() { place.parent().unwrap_or(place) } else { place };
    let name = disk.file_name().unwrap_or_default().to_string_lossy();
    let is = |driver| numbered(&name, driver);
    if let Ok(backing) = std::fs::read(disk.join("loop/backing_file")) {
        let path = PathBuf::from(OsString::from_vec(backing.trim_ascii_end().to_vec()));
        // Nothing is opened but a file: the path is somebody else's.
        let file = path.symlink_metadata().ok().filter(std::fs::Metadata::is_file).and_then(|_| File::open(path).ok());
        return file.map_or(Durability::Unknown, |file| of_file_below(sys, &file, deeper));
    }
    let slaves = std::fs::read_dir(disk.join("slaves")).into_iter().flatten().flatten();
    let below = slaves.map(|slave| {
        let place = slave.path().canonicalize();
        place.map_or(Durability::Unknown, |place| of_block_at(sys, &place, deeper))
    });
    // The worst of them.
    if let Some(worst) = below.max() {
        return worst;
    }
    if is("ram") || is("zram") {
        Durability::Volatile
    } else if is("nbd") || is("ublkb") {
        Durability::Unknown // a program is behind it
    } else {
        of_bus(disk).unwrap_or(Durability::Durable)
    }
}

/// What the buses above a device say, the nearest first. `None`: nothing of memory.
fn of_bus(place: &Path) -> Option<Durability> {
    place.ancestors().find_map(|above| {
        let name = above.file_name()?.to_string_lossy();
        if numbered(&name, "ndbus") {
            // Ranges that the kernel's command line may have made of plain memory; the host's page
            // cache.
            let provider = std::fs::read_to_string(above.join("provider")).unwrap_or_default();
            let guess = matches!(provider.trim(), "e820" | "virtio-pmem");
            Some(if guess { Durability::Unknown } else { Durability::Durable })
        } else if name.starts_with("hmem") {
            Some(Durability::Volatile) // soft-reserved memory, such as HBM
        } else if numbered(&name, "region") {
            // Only CXL regions have a mode.
            let mode = std::fs::read_to_string(above.join("mode")).ok()?;
            Some(match mode.trim() {
                "pmem" => Durability::Durable,
                "ram" => Durability::Volatile,
                _ => Durability::Unknown,
            })
        } else {
            None
        }
    })
}

/// Whether `name` is `stem` and a number.
fn numbered(name: &str, stem: &str) -> bool {
    name.strip_prefix(stem).is_some_and(|n| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The file that a file of an overlay is in the upper file system. `None` where the upper directory
/// is out of reach, as in a container.
fn upper_file(file: &File) -> io::Result<Option<File>> {
    let Some(mount) = mount_of(file)? else { return Ok(None) };
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let (Some(upper), Ok(inner)) = (mount.options.get("upperdir"), path.strip_prefix(&mount.point)) else {
        return Ok(None);
    };
    let root = mount.root.strip_prefix("/").unwrap_or(&mount.root);
    let path = Path::new(upper).join(root).join(inner);
    let (ours, theirs) = (file.metadata()?, path.symlink_metadata()?);
    // Another directory can have that path here.
    let same = theirs.is_file() && (ours.ino(), ours.len()) == (theirs.ino(), theirs.len());
    if same { File::open(path).map(Some) } else { Ok(None) }
}

/// A line of the table of mounts.
struct Mount {
    root: PathBuf,
    point: PathBuf,
    source: PathBuf,
    /// Those of the file system that have a value.
    options: BTreeMap<String, OsString>,
}

fn mount_of(file: &File) -> io::Result<Option<Mount>> {
    let id = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id.to_string();
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    let line = table.lines().find(|line| line.split(' ').next() == Some(id.as_str()));
    Ok(line.and_then(|line| {
        // `29 1 0:25 / /mnt rw,relatime shared:1 - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w`
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let mut file_system = file_system.split(' ').skip(1);
        let options = |text: &str| {
            let pairs = text.split(',').filter_map(|option| option.split_once('='));
            pairs.map(|(name, value)| (name.to_owned(), unescape(value))).collect()
        };
        Some(Mount {
            root: unescape(mount.next()?).into(),
            point: unescape(mount.next()?).into(),
            source: unescape(file_system.next()?).into(),
            options: options(file_system.next()?),
        })
    }))
}

/// Text of the table of mounts, where `\040` is a space.
fn unescape(text: &str) -> OsString {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    /// A sysfs with one device, its attributes, and the number that leads to it.
    fn sysfs(class: &str, number: &str, place: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        add(sys.path(), class, number, place, files);
        sys
    }

    fn add(sys: &Path, class: &str, number: &str, place: &str, files: &[(&str, &str)]) {
        let place = sys.join("devices").join(place);
        std::fs::create_dir_all(&place).unwrap();
        std::fs::create_dir_all(sys.join("dev").join(class)).unwrap();
        for (name, content) in files {
            let file = sys.join("devices").join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, content).unwrap();
        }
        symlink(place, sys.join("dev").join(class).join(number)).unwrap();
    }

    /// Every character device was called durable, and so was HBM.
    #[test]
    fn device_dax_is_durable_only_below_nvdimm_or_a_pmem_region_of_cxl() {
        let nd = "LNXSYSTM:00/ACPI0012:00/ndbus0";
        let cxl = "platform/ACPI0017:00/root0/decoder0.0/region0";
        let of = |place: &str, files: &[(&str, &str)]| {
            of_dax(sysfs("char", "251:3", place, files).path(), libc::makedev(251, 3))
        };
        let nvdimm = |provider: &str| {
            let provider = format!("{provider}\n");
            of(&format!("{nd}/region0/dax0.1/dax0.0"), &[(&format!("{nd}/provider"), &provider)])
        };
        assert_eq!(nvdimm("ACPI.NFIT"), Durability::Durable);
        assert_eq!(nvdimm("e820"), Durability::Unknown, "memmap= makes such a range of any memory");
        assert_eq!(nvdimm("virtio-pmem"), Durability::Unknown, "the host's page cache");
        let region = |mode: &str| of(&format!("{cxl}/dax_region0/dax0.0"), &[(&format!("{cxl}/mode"), mode)]);
        assert_eq!(region("pmem\n"), Durability::Durable);
        assert_eq!(region("ram\n"), Durability::Volatile);
        assert_eq!(region("none\n"), Durability::Unknown);
        assert_eq!(of("platform/hmem.0/dax0.0", &[]), Durability::Volatile);
        assert_eq!(of("virtual/dax/dax0.0", &[]), Durability::Unknown);
        assert_eq!(of_dax(Path::new("/nowhere"), libc::makedev(251, 3)), Durability::Unknown);
    }

    #[test]
    fn a_block_device_is_as_durable_as_the_worst_below_it() {
        let of = |sys: &Path, minor| of_block(sys, libc::makedev(8, minor), DEEPEST);
        let sys = sysfs("block", "8:1", "pci/block/sda/sda1", &[("pci/block/sda/sda1/partition", "1\n")]);
        let sys = sys.path();
        add(sys, "block", "8:2", "virtual/block/ram0", &[]);
        add(sys, "block", "8:3", "ndbus1/region1/pfn1.0/block/pmem1", &[("ndbus1/provider", "ACPI.NFIT\n")]);
        add(sys, "block", "8:4", "virtual/block/dm-0/slaves", &[]);
        add(sys, "block", "8:5", "virtual/block/dm-0", &[]);
        add(sys, "block", "8:6", "virtual/block/nbd0", &[]);
        assert_eq!([1, 2, 3, 6, 7].map(|minor| of(sys, minor)), {
            use Durability::{Durable, Unknown, Volatile};
            [Durable, Volatile, Durable, Unknown, Unknown]
        });
        let slave =
            |of: &str, name| symlink(sys.join("devices").join(of), sys.join("dev/block/8:4").join(name)).unwrap();
        slave("pci/block/sda/sda1", "sda1");
        assert_eq!(of(sys, 5), Durability::Durable);
        slave("virtual/block/ram0", "ram0");
        assert_eq!(of(sys, 5), Durability::Volatile, "one of two forgets");
        slave("virtual/block/dm-0", "circle");
        assert_eq!(of(sys, 5), Durability::Volatile, "and it ends");
    }

    /// ramfs and an overlay on tmpfs were said to keep what msync wrote.
    #[test]
    fn file_systems_in_memory_are_volatile() {
        let dir = tempfile::tempdir().unwrap();
        let mount = |kind: &str, options: &str, name: &str| {
            let point = dir.path().join(name);
            std::fs::create_dir_all(&point).unwrap();
            let mut command = Command::new("mount");
            command.args(["-t", kind, "none", "-o", options]).arg(&point);
            if command.output().is_ok_and(|done| done.status.success()) {
                return Some(Mounted(point));
            }
            eprintln!("skipped: cannot mount {kind} here");
            None
        };
        let of = |point: &Path| of_file(Path::new(SYS), &File::create(point.join("region")).unwrap());
        let Some(ramfs) = mount("ramfs", "mode=700", "ramfs") else { return };
        assert_eq!(of(&ramfs.0), Durability::Volatile);
        let Some(tmpfs) = mount("tmpfs", "mode=700", "tmpfs") else { return };
        assert_eq!(of(&tmpfs.0), Durability::Volatile);
        let [lower, upper, work] = ["lower", "upper a", "work"].map(|name| {
            let place = tmpfs.0.join(name);
            std::fs::create_dir(&place).unwrap();
            place.display().to_string()
        });
        let Some(overlay) = mount("overlay", &format!("lowerdir={lower},upperdir={upper},workdir={work}"), "overlay")
        else {
            return;
        };
        std::fs::create_dir(overlay.0.join("deep")).unwrap();
        assert_eq!(of(&overlay.0.join("deep")), Durability::Volatile);
    }

    struct Mounted(PathBuf);

    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
}
