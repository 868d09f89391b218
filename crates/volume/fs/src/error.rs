//! Errors, each with the errno that a mount answers with.

use std::io;
use std::path::PathBuf;

use crate::format::{Block, Ino};
use crate::scan::ELSEWHERE;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name is not in the directory, or the inode is free.
    #[error("no such file or directory")]
    NotFound,
    #[error("the name exists")]
    Exists,
    /// A path component, or the operation's inode, is not a directory.
    #[error("not a directory")]
    NotDirectory,
    /// The operation is not for directories.
    #[error("is a directory")]
    IsDirectory,
    #[error("the directory is not empty")]
    NotEmpty,
    /// A directory would become its own descendant, or an argument makes no sense.
    #[error("invalid: {0}")]
    Invalid(&'static str),
    /// The name is longer than 255 bytes.
    #[error("the name is too long")]
    NameTooLong,
    /// The file would be larger than the format allows.
    #[error("the file would be too large")]
    TooLarge,
    /// No block or no inode is free.
    #[error("the volume is full")]
    NoSpace,
    /// Within the volume: so many blocks are missing. With `u64::MAX` it is something else, of
    /// which cleaning logs gives none.
    #[error("the volume is full")]
    Lacks(u64),
    #[error("too many links")]
    TooManyLinks,
    /// The extended attribute does not exist.
    #[error("no such attribute")]
    NoAttribute,
    /// The extended attribute is too large for one log page.
    #[error("the attribute is too large")]
    AttributeTooLarge,
    /// The operation is not permitted on this kind of inode.
    #[error("operation not permitted")]
    NotPermitted,
    #[error("the file is being migrated already")]
    Busy,
    /// The caller gave up waiting.
    #[error("interrupted")]
    Interrupted,
    #[error("a region is in use by another process")]
    InUse,
    #[error("no region of the volume is on node {0}")]
    NoRegionOnNode(u32),
    /// The owner or the project of a file has all that its quota allows.
    #[error("the quota of its owner or project is used up")]
    Quota,
    /// This region is not where it was when the volume was made.
    #[error("region {} is missing, {}", .0, .1.display())]
    RegionMissing(usize, PathBuf),
    /// The regions do not make a volume: not formatted, or from another one.
    #[error("not a volume: {0}")]
    NotAVolume(String),
    #[error("damaged: {0}")]
    Damaged(Damage),
    /// An access outside of a region. Only damaged media or a fault of this crate lead here.
    #[error("block {0} is outside of its region")]
    OutOfRange(Block),
    /// An earlier error left a commit in doubt; the volume only reads until it is mounted again.
    #[error("the volume is read-only after an earlier error")]
    ReadOnly,
    /// An error of one of several regions.
    #[error("{}: {error}", .0.display(), error = .1)]
    Region(PathBuf, #[source] Box<Error>),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What is wrong with what lies in memory that has failed.
pub(crate) const UNREADABLE: &str = "cannot be read";

/// Where a volume is damaged, and how.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// A superblock: both copies are unusable.
    #[error("superblock of region {region}: {what}")]
    Superblock { region: usize, what: &'static str },
    /// An inode or its log.
    #[error("inode {ino}: {what}")]
    Inode { ino: Ino, what: &'static str },
    /// Entries of an inode's log.
    #[error("inode {ino}: {what}; what {slots} lines of its log said is lost, the rest is there")]
    Lost {
        ino: Ino,
        /// The first fault.
        what: &'static str,
        /// How many lines, at least.
        slots: usize,
    },
    #[error("journal at block {block}: {what}")]
    Journal { block: Block, what: &'static str },
    /// Two owners of one block, or an owner of a block that cannot be owned.
    #[error("inode {ino}: block {block} {what}")]
    Block {
        /// The inode that claims the block.
        ino: Ino,
        block: Block,
        what: &'static str,
    },
    /// A name that points nowhere, or a count of names that is wrong.
    #[error("directory {ino}: name {name:?} {what}")]
    Name {
        ino: Ino,
        /// The name, with anything that is not UTF-8 replaced.
        name: String,
        what: &'static str,
    },
    /// One of the two copies of a block of metadata; the other one says what it should.
    #[error("one of two copies of block {block} {what}; the other one is whole")]
    Copy { block: Block, what: &'static str },
    /// The state word, or the number of the last mount.
    #[error("state word, or a region's number of the last mount: check failed")]
    State,
    /// The checkpoint of a clean unmount. A mount reads the logs instead, where it notices.
    #[error("the checkpoint {0}")]
    Checkpoint(&'static str),
    /// A block of file data.
    #[error("{}data in block {block}: the checksum is wrong, or it cannot be read",
        .path.as_ref().map_or_else(String::new, |path| format!("{path}: ")))]
    Data {
        block: Block,
        /// A path of the file, where a check has looked for it.
        path: Option<String>,
    },
}

impl Error {
    /// The errno that stands for this error on a mount.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotFound | Self::RegionMissing(..) => libc::ENOENT,
            Self::Exists => libc::EEXIST,
            Self::NotDirectory => libc::ENOTDIR,
            Self::IsDirectory => libc::EISDIR,
            Self::NotEmpty => libc::ENOTEMPTY,
            Self::Invalid(_) | Self::NotAVolume(_) => libc::EINVAL,
            Self::NameTooLong => libc::ENAMETOOLONG,
            Self::TooLarge => libc::EFBIG,
            Self::NoSpace | Self::Lacks(_) => libc::ENOSPC,
            Self::Quota => libc::EDQUOT,
            Self::TooManyLinks => libc::EMLINK,
            Self::NoAttribute => libc::ENODATA,
            Self::AttributeTooLarge => libc::E2BIG,
            Self::NotPermitted => libc::EPERM,
            Self::Busy | Self::InUse => libc::EBUSY,
            Self::Interrupted => libc::EINTR,
            Self::NoRegionOnNode(_) => libc::ENXIO,
            Self::Damaged(Damage::Data { .. } | Damage::Name { what: ELSEWHERE, .. }) => libc::EIO,
            Self::Damaged(_) | Self::OutOfRange(_) => libc::EUCLEAN,
            Self::ReadOnly => libc::EROFS,
            Self::Region(_, error) => error.errno(),
            Self::Io(e) => e.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

impl Error {
    /// The same, but memory that cannot be read is damage.
    pub(crate) fn unread_is(self, damage: Damage) -> Self {
        if matches!(self, Self::Io(_)) { damage.into() } else { self }
    }
}

impl From<Damage> for Error {
    fn from(damage: Damage) -> Self {
        Self::Damaged(damage)
    }
}

pub type Result<T> = std::result::Result<T, Error>;
