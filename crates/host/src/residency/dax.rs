//! Files in persistent memory: every allocated byte is in memory, on the node of the file system's
//! device.
//!
//! `move_pages(2)` and `numa_maps` do not report DAX pages (they are `ZONE_DEVICE`). sysfs has the
//! device's node: in `numa_node` of the nearest directory above the device that has one, which for
//! `pmem0` is its namespace or region; for a device-mapper device, that of its slaves.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use topology::NodeId;

use super::open::Opened;
use super::{Residency, ResidencyError};

/// Deepest stack of device-mapper devices; no real one is deeper.
const DEPTH: usize = 8;

pub(super) fn locate(file: &Opened, sys: &Path, residency: &mut Residency) -> Result<(), ResidencyError> {
    residency.resident = data(file)?;
    let (major, minor) = file.device;
    let mut nodes = BTreeSet::new();
    let found = nodes_of(&sys.join(format!("dev/block/{major}:{minor}")), DEPTH, &mut nodes);
    match (found, nodes.iter().collect::<Vec<_>>().as_slice()) {
        (Ok(()), [Some(node)]) => residency.nodes.add(*node, residency.resident),
        (Ok(()), [] | [None]) => {
            residency.notes.push(format!("the kernel knows no node for device {major}:{minor} of this DAX file"));
        }
        (Ok(()), several) => {
            let several: Vec<_> = several.iter().map(|n| n.map_or("?".to_owned(), |n| n.to_string())).collect();
            let several = several.join(", ");
            residency.notes.push(format!(
                "device {major}:{minor} of this DAX file spans nodes {several}: the bytes of each are unknown"
            ));
        }
        (Err(e), _) => {
            residency.notes.push(format!("no node for device {major}:{minor} of this DAX file in sysfs: {e}"));
        }
    }
    Ok(())
}

/// Bytes of a file that are not in holes.
fn data(file: &Opened) -> Result<u64, ResidencyError> {
    let (mut data, mut at) = (0, 0);
    while at < file.size {
        let start = match seek(&file.fd, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(e) => return Err(ResidencyError::file("look for holes in", &file.path, e)),
        };
        match seek(&file.fd, SeekFrom::Hole(start)) {
            Ok(end) => (data, at) = (data + end.min(file.size).saturating_sub(start), end),
            // The file was truncated in between.
            Err(Errno::NXIO) => break,
            Err(e) => return Err(ResidencyError::file("look for holes in", &file.path, e)),
        }
    }
    Ok(data)
}

/// Adds the nodes of a block device's memory; `None` for a device without a known node.
fn nodes_of(device: &Path, depth: usize, nodes: &mut BTreeSet<Option<NodeId>>) -> io::Result<()> {
    let device = fs::canonicalize(device)?;
    let slaves: Vec<_> = match fs::read_dir(device.join("slaves")) {
        Ok(entries) => entries.collect::<Result<_, _>>()?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(e) => return Err(e),
    };
    if depth > 0 && !slaves.is_empty() {
        return slaves.iter().try_for_each(|slave| nodes_of(&slave.path(), depth - 1, nodes));
    }
    for dir in device.ancestors() {
        match fs::read_to_string(dir.join("numa_node")) {
            Ok(text) => {
                nodes.insert(text.trim().parse().ok().map(NodeId));
                return Ok(());
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            // A directory above may belong to another node.
            Err(e) => return Err(e),
        }
    }
    nodes.insert(None);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// pmem0 on node 0 (raw, with a partition), pmem1 on node 1 (fsdax), pmem9 on no node, dm-0
    /// across both, dm-1 on one.
    fn sys() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for (path, node) in [("ndbus0/region0", "0\n"), ("ndbus0/region1", "1\n"), ("ndbus0/region9", "-1\n")] {
            fs::create_dir_all(root.join("devices").join(path)).unwrap();
            fs::write(root.join("devices").join(path).join("numa_node"), node).unwrap();
        }
        fs::create_dir_all(root.join("dev/block")).unwrap();
        for (number, path, slaves) in [
            ("259:0", "devices/ndbus0/region0/namespace0.0/block/pmem0", &[][..]),
            ("259:1", "devices/ndbus0/region1/pfn1.0/block/pmem1", &[]),
            ("259:2", "devices/ndbus0/region0/namespace0.0/block/pmem0/pmem0p1", &[]),
            ("259:9", "devices/ndbus0/region9/pfn9.0/block/pmem9", &[]),
            ("254:0", "devices/virtual/block/dm-0", &["259:0", "259:1"]),
            ("254:1", "devices/virtual/block/dm-1", &["259:2", "259:0"]),
            ("8:0", "devices/virtual/block/zram0", &[]),
        ] {
            fs::create_dir_all(root.join(path).join("slaves")).unwrap();
            symlink(root.join(path), root.join("dev/block").join(number)).unwrap();
            for slave in slaves {
                symlink(root.join("dev/block").join(slave), root.join(path).join("slaves").join(slave)).unwrap();
            }
        }
        dir
    }

    #[test]
    fn a_device_is_on_the_node_of_its_region() {
        let sys = sys();
        let nodes = |device: &str| {
            let mut nodes = BTreeSet::new();
            nodes_of(&sys.path().join("dev/block").join(device), DEPTH, &mut nodes).unwrap();
            nodes.into_iter().map(|n| n.map(|n| n.0)).collect::<Vec<_>>()
        };
        assert_eq!(nodes("259:0"), [Some(0)]);
        assert_eq!(nodes("259:1"), [Some(1)]);
        assert_eq!(nodes("259:2"), [Some(0)]);
        assert_eq!(nodes("259:9"), [None]);
        assert_eq!(nodes("254:0"), [Some(0), Some(1)]);
        assert_eq!(nodes("254:1"), [Some(0)]);
        assert_eq!(nodes("8:0"), [None]);
    }

    #[test]
    fn an_unreadable_node_is_not_that_of_the_device_above() {
        let sys = sys();
        // A directory cannot be read as a file, yet it exists.
        fs::create_dir(sys.path().join("devices/ndbus0/region0/namespace0.0/numa_node")).unwrap();
        let mut nodes = BTreeSet::new();
        assert!(nodes_of(&sys.path().join("dev/block/259:0"), DEPTH, &mut nodes).is_err(), "{nodes:?}");
    }

    /// The result of `locate` for a file with 8 KiB of data and a hole, as if it were on the
    /// device.
    fn on(device: (u32, u32)) -> Residency {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), vec![1; 8192]).unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let mut opened = super::super::open::open(file.path()).unwrap();
        opened.device = device;
        let mut residency = super::super::of(file.path(), &mut |_, _| ()).unwrap();
        residency.nodes = Default::default();
        locate(&opened, sys().path(), &mut residency).unwrap();
        residency
    }

    #[test]
    fn every_allocated_byte_is_resident() {
        let one = on((259, 1));
        assert_eq!((one.size, one.resident, one.nodes.get(NodeId(1))), (1 << 20, 8192, 8192));
        assert!(one.notes.is_empty());
    }

    #[test]
    fn a_note_reports_an_unknown_node() {
        for (device, note) in [
            ((259, 9), "knows no node for device 259:9"),
            ((254, 0), "spans nodes 0, 1"),
            ((99, 0), "No such file or directory"),
        ] {
            let residency = on(device);
            assert_eq!((residency.resident, residency.nodes.total()), (8192, 0));
            assert!(residency.notes[0].contains(note), "{:?}", residency.notes);
        }
    }
}
