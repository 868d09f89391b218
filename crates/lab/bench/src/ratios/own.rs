//! Bare memory, and volumes over such memory.

use std::fs::File;
use std::path::PathBuf;

use fs::medium::{At, Mapped, Medium, RegionFile};
use fs::{Layout, NewFile, Options, Placement, Volume};

use crate::Result;

pub const BLOCK: usize = 4096;
pub const MIB: usize = 1 << 20;
pub const FILE: NewFile<'static> = NewFile { mode: 0o100_644, uid: 0, gid: 0, umask: 0, rdev: 0, target: &[] };

/// Where regions come from.
pub struct Memory {
    /// Files in this directory; memfd if there is none.
    pub dir: Option<PathBuf>,
}

impl Memory {
    fn region(&self, bytes: usize) -> Result<RegionFile> {
        let file = match &self.dir {
            None => File::from(rustix::fs::memfd_create("ratios", rustix::fs::MemfdFlags::CLOEXEC)?),
            Some(dir) => tempfile::tempfile_in(dir)?,
        };
        file.set_len(bytes.next_multiple_of(2 * MIB) as u64)?;
        Ok(RegionFile { file, bind: None })
    }

    /// Memory for copies; every page was touched.
    pub fn bare(&self, regions: &[usize]) -> Result<Mapped> {
        map(&regions.iter().map(|bytes| self.region(*bytes)).collect::<Result<Vec<_>>>()?)
    }

    /// A volume over regions of so many bytes, region `i` on node `i`, with or without checksums of
    /// data, and the same memory without it. Every page was touched.
    pub fn volume(&self, regions: &[usize], data_checksums: bool) -> Result<(Volume, Mapped)> {
        let files = regions.iter().map(|bytes| self.region(*bytes)).collect::<Result<Vec<_>>>()?;
        let nodes = (0..regions.len() as u32).map(Some).collect();
        let journals = std::thread::available_parallelism()?.get() as u32;
        let layout = Layout { nodes, bytes_per_inode: 4096, journals, data_checksums, ..Layout::default() };
        fs::mkfs(Box::new(map(&files)?), &layout)?;
        let options = Options { placement: Placement::Node(0), ..Options::default() };
        Ok((Volume::mount(Box::new(map(&files)?), options)?, map(&files)?))
    }
}

fn map(regions: &[RegionFile]) -> Result<Mapped> {
    let mut mapped = Mapped::new(regions)?;
    mapped.assume_persistent();
    // Touch every page, so that no batch pays for it.
    for region in 0..regions.len() {
        for page in 0..mapped.len(region) / BLOCK as u64 {
            let (at, mut byte) = (At { region, offset: page * BLOCK as u64 }, [0]);
            mapped.read(at, &mut byte)?;
            mapped.write(at, &byte)?;
        }
    }
    Ok(mapped)
}

/// Copies, writes back line by line, waits.
pub fn persist(bare: &Mapped, offset: usize, data: &[u8]) -> Result<()> {
    let at = At { region: 0, offset: offset as u64 };
    bare.write(at, data)?;
    bare.flush(at, data.len() as u64)?;
    Ok(bare.fence()?)
}

/// Copies past the caches, waits: as the file system does with data.
pub fn stream(bare: &Mapped, offset: usize, data: &[u8]) -> Result<()> {
    bare.write_data(At { region: 0, offset: offset as u64 }, data)?;
    Ok(bare.fence()?)
}
