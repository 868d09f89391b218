//! Kinds of file systems: how they place the data of their files. Pure.
//!
//! | file system | written bytes | data can be moved |
//! |---|---|---|
//! | ext2, ext3, ext4, XFS, btrfs, f2fs, FAT, NTFS: page cache | in place: new pages where the writer runs | yes, page by page |
//! | squashfs, erofs, ISO 9660, UDF, bcachefs, JFS: page cache | the same, or nobody writes | yes, page by page |
//! | tmpfs | the same; spread with `mpol=interleave` | yes |
//! | ext4 on DAX | stay: on the device | no |
//! | XFS on DAX | stay | by `homenode move` only, because it takes CAP_SYS_ADMIN |
//! | hugetlbfs | in place | no: its pages are reserved |
//! | ZFS | – | no: its cache is its own |
//! | network file systems, FUSE, 9p, virtiofs | in place | yes, but homenode opens none of their files: their servers could make it wait |
//!
//! A program's own memory policy and a cpuset with `memory_spread_page` spread its pages whatever
//! the file system; they are not looked at.

use placement::Writes;

use linux::mounts::Mount;

/// How an inode can be opened without a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handle {
    /// `FILEID_INO32_GEN`: 32 bits of number, generation (`include/linux/exportfs.h`).
    Ino32,
    /// XFS's with 64 bits of number (`fs/xfs/xfs_export.h`).
    Xfs,
    /// The handle has more in it than is known here (btrfs: the subvolume), or the file system
    /// forgets inodes that it gave no handle for (tmpfs).
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub handle: Handle,
    /// Whether opening a file waits for nobody but the kernel.
    pub local: bool,
}

/// The kind of a file system by its name; `None` if it is not known here.
pub(super) fn kind(fs_type: &str) -> Option<Kind> {
    let (handle, local) = match fs_type {
        "ext2" | "ext3" | "ext4" | "f2fs" => (Handle::Ino32, true),
        "xfs" => (Handle::Xfs, true),
        "btrfs" | "tmpfs" | "devtmpfs" | "vfat" | "msdos" | "exfat" | "ntfs3" | "hugetlbfs" | "zfs" | "squashfs"
        | "erofs" | "iso9660" | "udf" | "bcachefs" | "jfs" => (Handle::None, true),
        "nfs" | "nfs4" | "cifs" | "smb3" | "ceph" | "9p" | "virtiofs" | "fuse" | "fuseblk" => (Handle::None, false),
        other if other.starts_with("fuse.") => (Handle::None, false),
        _ => return None,
    };
    Some(Kind { handle, local })
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Data {
    pub writes: Option<Writes>,
    /// Whether it can be moved; `None` if that is not known.
    pub movable: Option<bool>,
    /// Why not.
    pub pinned: Option<&'static str>,
}

impl Data {
    fn pinned(writes: Option<Writes>, why: &'static str) -> Self {
        Self { writes, movable: Some(false), pinned: Some(why) }
    }
}

/// Placement of the data of a file on this mount; `dax` is the file's own attribute, `None` if it
/// was not opened.
pub fn data(mount: &Mount, dax: Option<bool>) -> Data {
    let option = |wanted: &str| mount.options.split(',').any(|option| option == wanted);
    // A file on such a mount may still be cached (`dax=inode`), so nothing is known before it was
    // opened.
    let may_be_dax = option("dax") || option("dax=always") || option("dax=inode");
    let cached = |writes| Data { writes: Some(writes), movable: Some(true), pinned: None };
    match (mount.fs_type.as_str(), dax.unwrap_or(false)) {
        ("xfs", true) => Data::pinned(Some(Writes::Stay), "is on DAX, where only `homenode move` moves data"),
        (_, true) => {
            Data::pinned(Some(Writes::Stay), "is on DAX, and its file system cannot exchange the blocks of such files")
        }
        _ if dax.is_none() && may_be_dax => Data::default(),
        ("tmpfs", _) if mount.options.split(',').any(|option| option.starts_with("mpol=interleave")) => {
            cached(Writes::Spread)
        }
        ("hugetlbfs", _) => {
            Data::pinned(Some(Writes::InPlace), "is on hugetlbfs, whose pages are reserved where they are")
        }
        ("zfs", _) => Data::pinned(None, "is on ZFS, whose cache is not the page cache"),
        (fs_type, _) if kind(fs_type).is_some() => cached(Writes::InPlace),
        _ => Data::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_file_systems() {
        use Writes::{InPlace, Spread, Stay};
        let yes = Some(true);
        for (fs_type, options, dax, writes, movable) in [
            ("ext4", "rw", Some(false), Some(InPlace), yes),
            ("ext4", "rw", None, Some(InPlace), yes),
            ("ext4", "rw,dax=always", Some(true), Some(Stay), Some(false)),
            ("ext2", "rw,dax", Some(true), Some(Stay), Some(false)),
            ("ext4", "rw,dax=inode", Some(false), Some(InPlace), yes),
            ("ext4", "rw,dax=always", None, None, None),
            ("xfs", "rw,dax=always", Some(true), Some(Stay), Some(false)),
            ("xfs", "rw", Some(false), Some(InPlace), yes),
            ("btrfs", "rw,subvol=/@", Some(false), Some(InPlace), yes),
            ("tmpfs", "rw,size=4k", Some(false), Some(InPlace), yes),
            ("tmpfs", "rw,mpol=interleave:0-1", Some(false), Some(Spread), yes),
            ("tmpfs", "rw,mpol=prefer:0", Some(false), Some(InPlace), yes),
            ("hugetlbfs", "rw,pagesize=2M", Some(false), Some(InPlace), Some(false)),
            ("squashfs", "ro", Some(false), Some(InPlace), yes),
            ("erofs", "ro", Some(false), Some(InPlace), yes),
            ("zfs", "rw", None, None, Some(false)),
            ("nfs4", "rw", None, Some(InPlace), yes),
            ("fuse.sshfs", "rw", None, Some(InPlace), yes),
            ("unheardof", "rw", Some(false), None, None),
        ] {
            let (fs_type, options) = (fs_type.to_owned(), options.to_owned());
            let mount = Mount { id: 1, dev: 1, root: "/".into(), point: "/".into(), writable: true, fs_type, options };
            let data = data(&mount, dax);
            assert_eq!((data.writes, data.movable), (writes, movable), "{mount:?}, dax {dax:?}");
            assert_eq!(data.pinned.is_some(), movable == Some(false), "{mount:?}");
        }
    }

    #[test]
    fn files_of_servers_are_not_opened() {
        let local = |fs_type| kind(fs_type).map(|kind| kind.local);
        assert_eq!(
            (local("ext4"), local("fuse"), local("fuse.x"), local("9p")),
            (Some(true), Some(false), Some(false), Some(false))
        );
        assert_eq!(local("unheardof"), None);
        // A handle that is misread opens another file.
        for fs_type in ["btrfs", "tmpfs", "vfat", "nfs"] {
            assert_eq!(kind(fs_type).map(|kind| kind.handle), Some(Handle::None), "{fs_type}");
        }
    }
}
