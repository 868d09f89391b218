//! The kernel's table of mounts (`/proc/PID/mountinfo`, proc(5)).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use topology::FileId;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its id, as `statx` gives it.
    pub id: u64,
    /// The superblock's device, as [`FileId::dev`]. `stat` shows another one for a btrfs subvolume.
    pub dev: u32,
    /// The directory of the file system that is visible there; `/`: the whole of it.
    pub root: PathBuf,
    pub point: PathBuf,
    /// Whether files can be written through this mount.
    pub writable: bool,
    pub fs_type: String,
    /// Options of the superblock, such as `dax=always`.
    pub options: String,
}

impl Mount {
    /// Whether the whole file system is visible there.
    pub fn whole(&self) -> bool {
        self.root == Path::new("/")
    }
}

/// The mounts in a table, in its order. Lines that are not understood are left out.
pub fn list(table: &[u8]) -> impl Iterator<Item = Mount> {
    table.split(|b| *b == b'\n').filter_map(line)
}

/// All mounts of one mount namespace.
#[derive(Clone, Debug, Default)]
pub struct Mounts {
    by_id: BTreeMap<u64, Mount>,
    /// For each device its mounts' ids, those of the whole file system first.
    by_dev: BTreeMap<u32, Vec<u64>>,
}

impl Mounts {
    pub fn parse(table: &[u8]) -> Self {
        let mut mounts = Self::default();
        for mount in list(table) {
            mounts.by_dev.entry(mount.dev).or_default().push(mount.id);
            mounts.by_id.insert(mount.id, mount);
        }
        for ids in mounts.by_dev.values_mut() {
            ids.sort_by_key(|id| mounts.by_id.get(id).is_none_or(|mount| !mount.whole()));
        }
        mounts
    }

    pub fn of_dev(&self, dev: u32) -> impl Iterator<Item = &Mount> {
        self.by_dev.get(&dev).into_iter().flatten().filter_map(|id| self.by_id.get(id))
    }

    pub fn of_id(&self, id: u64) -> Option<&Mount> {
        self.by_id.get(&id)
    }
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let mut next = || fields.next().and_then(|field| std::str::from_utf8(field).ok());
    let id = next()?.parse().ok()?;
    let _parent = next()?;
    let (major, minor) = next()?.split_once(':')?;
    let dev = FileId::device(major.parse().ok()?, minor.parse().ok()?);
    let root = PathBuf::from(unescape(fields.next()?));
    let point = PathBuf::from(unescape(fields.next()?));
    let writable = fields.next()?.split(|b| *b == b',').any(|option| option == b"rw");
    // Any number of optional fields end with a hyphen.
    fields.find(|field| *field == b"-")?;
    let fs_type = String::from_utf8_lossy(fields.next()?).into_owned();
    let _source = fields.next()?;
    let options = String::from_utf8_lossy(fields.next()?).into_owned();
    Some(Mount { id, dev, root, point, writable, fs_type, options })
}

/// Spaces and such are written as three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| *first == b'\\').and_then(|digits| {
            digits.iter().try_fold(0u8, |n, digit| {
                let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
                n.checked_mul(8)?.checked_add(digit)
            })
        });
        match octal {
            Some(byte) => (bytes.push(byte), rest = tail.get(3..).unwrap_or_default()).1,
            None => (bytes.push(*first), rest = tail).1,
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read() {
        let table = b"27 1 254:0 /sub /data rw - ext4 /dev/vda rw,discard\n\
            28 1 254:0 / /with\\040space rw shared:1 master:2 - ext4 /dev/vda rw\n\
            31 1 0:40 / /tmp/\xff rw - tmpfs x rw,mpol=interleave:0-1\n\
            broken\n99 1 nonsense / / rw - x y z\n30 1 8:1 / /cut rw - ext4\n";
        let mounts = Mounts::parse(table);
        assert_eq!(mounts.by_id.len(), 3);
        let of: Vec<_> = mounts.of_dev(254 << 20).map(|m| (m.id, m.whole(), m.point.to_string_lossy())).collect();
        assert_eq!(of, [(28, true, "/with space".into()), (27, false, "/data".into())]);
        let tmpfs = mounts.of_id(31).unwrap();
        assert_eq!(
            (tmpfs.dev, tmpfs.options.as_str(), tmpfs.fs_type.as_str()),
            (40, "rw,mpol=interleave:0-1", "tmpfs")
        );
        assert_eq!(mounts.of_dev(7).count(), 0);
    }

    #[test]
    fn odd_escapes_stay_as_they_are() {
        for (field, path) in
            [("a\\040b", "a b"), ("a\\04", "a\\04"), ("a\\999", "a\\999"), ("\\134", "\\"), ("\\777", "\\777")]
        {
            assert_eq!(unescape(field.as_bytes()), path);
        }
    }
}
