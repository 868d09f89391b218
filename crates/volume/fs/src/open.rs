//! Finding the regions of a volume from any one of them.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::format::superblock::{self, NAMES_FROM, NAMES_PER_BLOCK, STATE_BLOCK, Superblock};
use crate::format::{BLOCK, BLOCK_BYTES};
use crate::fsck::is_region;
use crate::medium::{At, Mapped, Medium, RegionFile};
use crate::mount::{first_valid, superblock_of};
use crate::scan;

/// Maps a volume. `paths` are one or more of its regions; the others are where their names say,
/// unless one of `paths` is the region that moved from there. A copy of a region leads nowhere: the
/// others would be those of the original.
pub fn open_files(paths: &[PathBuf]) -> Result<Mapped> {
    open_to(paths, To::Change)
}

/// The same for a repair: also regions that have no superblock any more.
pub fn open_files_to_repair(paths: &[PathBuf]) -> Result<Mapped> {
    open_to(paths, To::Repair)
}

/// The same for looking only: the files need not be writable, nothing can be stored, and others may
/// look too. What is missing gives EIO.
pub fn open_files_to_look(paths: &[PathBuf]) -> Result<Mapped> {
    open_to(paths, To::Look)
}

/// What the volume is mapped for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Change,
    Repair,
    Look,
}

fn open_to(paths: &[PathBuf], to: To) -> Result<Mapped> {
    let Some(first) = paths.first() else { return Err(Error::Invalid("no region is given")) };
    let change = to != To::Look;
    let mut known = None;
    let mut owns = Vec::new();
    for path in paths {
        let found = Mapped::new(&[region_file(path, change)?])?;
        let own = superblock_of(&found, 0);
        if let (Ok(own), None) = (&own, &known) {
            known = Some((own.clone(), names(&found, own.regions.len())?));
        }
        owns.push((path, own));
    }
    let Some((layout, names)) = known else {
        let own = owns.into_iter().next().map(|(_, own)| own);
        return Err(own.and_then(Result::err).unwrap_or(Error::Invalid("no region is given")));
    };
    let mut files: Vec<Option<PathBuf>> = vec![None; layout.regions.len()];
    for (path, own) in owns {
        let index = match own {
            Err(e) if to == To::Change => return Err(Error::Region(path.clone(), Box::new(e))),
            // Its name says which one it is.
            Err(e) => {
                let place = path.canonicalize().unwrap_or_else(|_| path.clone());
                let index = names.iter().position(|name| name.as_ref() == Some(&place));
                index.ok_or_else(|| Error::Region(path.clone(), Box::new(e)))?
            }
            Ok(own) if own.volume != layout.volume => {
                let (path, first) = (path.display(), first.display());
                return Err(Error::NotAVolume(format!("{path} and {first} belong to different volumes")));
            }
            Ok(own) => {
                let original = names.get(own.index).and_then(Option::as_ref);
                if let Some(original) = original.filter(|_| paths.len() < layout.regions.len())
                    && is_copy(path, original, &own)
                {
                    let original = original.display();
                    return Err(Error::NotAVolume(format!(
                        "region {} of this volume is {original}, and {} is a copy of it: give all regions of the copy",
                        own.index,
                        path.display()
                    )));
                }
                own.index
            }
        };
        match files.get_mut(index) {
            Some(place @ None) => *place = Some(path.clone()),
            _ => return Err(Error::NotAVolume(format!("region {index} is given twice"))),
        }
    }
    let (mut at, mut regions) = (Vec::new(), Vec::new());
    for (index, (given, name)) in files.into_iter().zip(names).enumerate() {
        let path = given.or(name);
        let unnamed = || Error::NotAVolume(format!("region {index} has no name: give its path"));
        let file = path.as_ref().ok_or_else(unnamed).and_then(|path| {
            let file = region_file(path, change).map_err(|e| unfit(index, path, e))?;
            // One that is empty, or no medium of a volume.
            match Mapped::new(std::slice::from_ref(&file)) {
                Err(e @ Error::Io(_)) if to == To::Look => Err(unfit(index, path, e)),
                _ => Ok(file),
            }
        });
        let file = match file {
            Err(e) if to == To::Look => Err(e.to_string()),
            file => Ok(file?),
        };
        let len = layout.regions.get(index).map_or(0, |region| region.blocks * BLOCK_BYTES);
        regions.push((file, len));
        at.push(path.unwrap_or_default());
    }
    let mut mapped = Mapped::lacking(&regions)?;
    // A name may lead anywhere. What is no region of the volume stays as it is.
    let fits = |index| superblock_of(&mapped, index).is_ok_and(|own| (own.volume, own.index) == (layout.volume, index));
    for (index, (path, (file, _))) in at.iter().zip(&regions).enumerate().filter(|(index, _)| change && fits(*index)) {
        if let Ok(region) = file {
            reserve(&region.file).map_err(|e| unfit(index, path, e.into()))?;
        }
    }
    for (index, path) in at.iter().enumerate() {
        let found = if mapped.is_missing(index) { continue } else { superblock_of(&mapped, index) };
        if let Err(Error::NotAVolume(why)) = found
            && (to == To::Change || !is_region(&mapped, index)?)
        {
            let why = why.strip_prefix(&format!("region {index}: ")).unwrap_or(&why);
            let why = format!("region {index}, {}: {why}", path.display());
            match to {
                To::Look => mapped.give_up(index, why),
                To::Change | To::Repair => return Err(Error::NotAVolume(why)),
            }
        }
    }
    Ok(mapped)
}

/// Why the volume cannot have a file as its region.
fn unfit(index: usize, path: &Path, error: Error) -> Error {
    match error {
        Error::Io(e) if e.kind() == std::io::ErrorKind::NotFound => Error::RegionMissing(index, path.to_owned()),
        Error::Io(e) if e.kind() == std::io::ErrorKind::StorageFull => {
            let why = format!("region {index}, {}, is sparse, and there is no room for all of it: {e}", path.display());
            Error::Io(std::io::Error::new(e.kind(), why))
        }
        e => Error::NotAVolume(format!("region {index}, {}: {e}", path.display())),
    }
}

/// Makes sure that there is memory, or there are blocks, for all of a file: a store to what is not
/// there would end the process. Devices, and file systems that cannot say, are left alone.
///
/// # Errors
///
/// There is no room for all of it, or the operating system refuses.
pub fn reserve(file: &File) -> std::io::Result<()> {
    /// The unit of `st_blocks`.
    const SECTOR: u64 = 512;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.blocks() * SECTOR >= metadata.len() {
        return Ok(());
    }
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, metadata.len()) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether `path` is another file than the region that is at `original`.
fn is_copy(path: &Path, original: &Path, own: &Superblock) -> bool {
    let id = |path: &Path| std::fs::metadata(path).map(|m| (m.dev(), m.ino(), m.rdev()));
    let (Ok(given), Ok(there)) = (id(path), id(original)) else { return false };
    // One device can have several names.
    let same = given == there || given.2 != 0 && given.2 == there.2;
    !same && look_at(original).is_ok_and(|found| (found.volume, found.index) == (own.volume, own.index))
}

/// Whether region 0 is among these, not where it was when the volume was made, and says that it was
/// mounted then: perhaps a copy of a volume in use. What cannot be read now is none.
///
/// # Errors
///
/// [`Error::InUse`]: somebody has one of them, perhaps a server that ends just now.
pub fn is_copied_while_mounted(paths: &[PathBuf]) -> Result<bool> {
    let copied = |path: &PathBuf, found: &Mapped| {
        let own = superblock_of(found, 0).ok().filter(|own| own.index == 0)?;
        let names = names(found, own.regions.len()).ok()?;
        let moved = names.first()?.as_ref()? != &path.canonicalize().ok()?;
        let state = found.load_u64(At { region: 0, offset: STATE_BLOCK * BLOCK_BYTES }).ok()?;
        Some(moved && state == scan::state_word(scan::Use::Mounted))
    };
    for path in paths {
        match region_file(path, false).and_then(|region| Mapped::new(&[region])) {
            Err(Error::InUse) => return Err(Error::InUse),
            Ok(found) if copied(path, &found) == Some(true) => return Ok(true),
            _ => {}
        }
    }
    Ok(false)
}

/// The superblock of a region that may be in use, without its lock where it is a file.
fn look_at(path: &Path) -> Result<Superblock> {
    let region = region_file(path, false)?;
    if !region.file.metadata()?.is_file() {
        return superblock_of(&Mapped::new(&[region])?, 0);
    }
    first_valid(region.file.metadata()?.len(), |offset, block| region.file.read_exact_at(block, offset).is_ok())
        .map_err(|why| Error::NotAVolume(why.into()))
}

/// Opens a region. Its name may come from an image that anybody made: nothing is opened but a file
/// or device DAX, as to open a FIFO, a tape or a watchdog does something already.
fn region_file(path: &Path, change: bool) -> Result<RegionFile> {
    let found = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    let metadata = found.metadata()?;
    let kind = metadata.file_type();
    let is_region = kind.is_file() || kind.is_char_device() && is_dax(metadata.rdev());
    if !is_region {
        return Err(Error::NotAVolume("it is neither a file nor device DAX".into()));
    }
    let same = format!("/proc/self/fd/{}", found.as_raw_fd());
    let file = OpenOptions::new().read(true).write(change).custom_flags(libc::O_NOCTTY).open(same)?;
    Ok(RegionFile { file, bind: None })
}

/// Whether a character device is device DAX, as sysfs says.
fn is_dax(device: u64) -> bool {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let bus = std::fs::read_link(format!("/sys/dev/char/{major}:{minor}/subsystem"));
    bus.is_ok_and(|bus| bus.ends_with("dax"))
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
