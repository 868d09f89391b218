//! Finding the regions of a volume from any one of them.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::format::superblock::{self, NAMES_FROM, NAMES_PER_BLOCK};
use crate::format::{BLOCK, BLOCK_BYTES};
use crate::medium::{At, Mapped, Medium, RegionFile};
use crate::mount::superblock_of;

/// Maps a volume. `paths` are one or more of its regions; the others are where their names say, unless one of `paths` is
/// the region that moved from there.
pub fn open_files(paths: &[PathBuf]) -> Result<Mapped> {
    let Some(first) = paths.first() else { return Err(Error::Invalid("no region is given")) };
    let found = Mapped::new(&[region_file(first)?])?;
    let layout = superblock_of(&found, 0)?;
    let names = names(&found, layout.regions.len())?;
    drop(found);

    let mut files: Vec<Option<PathBuf>> = vec![None; layout.regions.len()];
    for path in paths {
        let own = superblock_of(&Mapped::new(&[region_file(path)?])?, 0)?;
        if own.volume != layout.volume {
            let (path, first) = (path.display(), first.display());
            return Err(Error::NotAVolume(format!("{path} and {first} belong to different volumes")));
        }
        match files.get_mut(own.index) {
            Some(place @ None) => *place = Some(path.clone()),
            _ => return Err(Error::NotAVolume(format!("region {} is given twice", own.index))),
        }
    }
    let mut regions = Vec::new();
    for (index, (given, name)) in files.into_iter().zip(names).enumerate() {
        let Some(path) = given.or(name) else {
            return Err(Error::NotAVolume(format!("region {index} has no name: give its path")));
        };
        let file = region_file(&path);
        regions.push(file.map_err(|e| Error::NotAVolume(format!("region {index}, {}: {e}", path.display())))?);
    }
    Mapped::new(&regions)
}

fn region_file(path: &Path) -> Result<RegionFile> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    Ok(RegionFile { file, bind: None })
}

/// Where the regions of a volume are, as one of them says.
fn names(medium: &dyn Medium, count: usize) -> Result<Vec<Option<PathBuf>>> {
    let mut names = Vec::new();
    for first in (0..count).step_by(NAMES_PER_BLOCK) {
        let offset = (NAMES_FROM + (first / NAMES_PER_BLOCK) as u64) * BLOCK_BYTES;
        let mut block = [0; BLOCK];
        medium.read(At { region: 0, offset }, &mut block)?;
        let records = block.chunks_exact(BLOCK / NAMES_PER_BLOCK).take(count - first);
        names.extend(records.map(|record| {
            let name = superblock::decode_name(record).filter(|name| !name.is_empty())?;
            Some(PathBuf::from(OsStr::from_bytes(name)))
        }));
    }
    Ok(names)
}
