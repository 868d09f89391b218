//! Files in persistent memory: every allocated byte is in memory, on the node of its part of the
//! file system's device.
//!
//! `move_pages(2)` and `numa_maps` do not report DAX pages (they are `ZONE_DEVICE`).
//! [`crate::block`] knows the node of each part of a device; where there are several, the file's
//! extents say which parts it is on.

use std::path::Path;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::open::Opened;
use super::{Residency, ResidencyError};
use crate::block::{Layout, fiemap};

pub(super) fn locate(file: &Opened, sys: &Path, residency: &mut Residency) -> Result<(), ResidencyError> {
    let (major, minor) = file.device;
    let layout = match Layout::of(sys, file.device) {
        Ok(layout) => layout,
        Err(e) => {
            residency.resident = data(file)?;
            residency.notes.push(format!("cannot tell the nodes of device {major}:{minor} of this DAX file: {e}"));
            return Ok(());
        }
    };
    let nodes = layout.nodes();
    if nodes.len() > 1 {
        return by_extent(file, &layout, residency);
    }
    residency.resident = data(file)?;
    match nodes.into_iter().next().flatten() {
        Some(node) => residency.nodes.add(node, residency.resident),
        None => {
            residency.notes.push(format!("the kernel knows no node for device {major}:{minor} of this DAX file"));
        }
    }
    Ok(())
}

/// Counts the bytes of each extent on its node.
fn by_extent(file: &Opened, layout: &Layout, residency: &mut Residency) -> Result<(), ResidencyError> {
    let mut unknown = 0;
    let mut add = |extent: fiemap::Extent| {
        if extent.unwritten {
            return;
        }
        residency.resident += extent.len;
        if extent.unknown {
            unknown += extent.len;
            return;
        }
        for (bytes, node) in layout.split(extent.physical, extent.len) {
            match node {
                Some(node) => residency.nodes.add(node, bytes),
                None => unknown += bytes,
            }
        }
    };
    fiemap::walk(&file.fd, 0, file.size, &mut add)
        .map_err(|e| ResidencyError::file("list the extents of", &file.path, e))?;
    if unknown > 0 {
        residency.notes.push(format!("{unknown} bytes are on parts of the device without a known node"));
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

#[cfg(test)]
mod tests {
    use std::fs;

    use topology::NodeId;

    use super::*;
    use crate::block::tests::sys;

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
            // Several nodes; the fake device has no table.
            ((254, 0), "cannot tell the nodes of device 254:0"),
            ((99, 0), "No such file or directory"),
        ] {
            let residency = on(device);
            assert_eq!((residency.resident, residency.nodes.total()), (8192, 0));
            assert!(residency.notes[0].contains(note), "{:?}", residency.notes);
        }
    }
}
