//! Attributes and extended attributes.

use crate::alloc::Purpose;
use crate::error::{Error, Result};
use crate::format::entry::{Attributes, Entry, Kind, MAX_XATTR};
use crate::format::{Ino, MAX_NAME};
use crate::ops::names::check_live;
use crate::store::Flushed;
use crate::volume::{Locked, Volume};

/// What `stat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Number of the inode.
    pub ino: Ino,
    /// Which life of the number this is.
    pub generation: u32,
    /// What it is.
    pub kind: Kind,
    /// Attributes, with the links that a directory has.
    pub attributes: Attributes,
    /// Size in bytes.
    pub size: u64,
    /// Blocks of 4096 bytes.
    pub blocks: u64,
}

/// Attributes to change.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttributes {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Time of the last access.
    pub atime: Option<i64>,
    /// Time of the last change.
    pub mtime: Option<i64>,
}

/// What to do with an extended attribute that exists, or does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    /// Set it in any case.
    Any,
    /// Fail when it exists.
    Create,
    /// Fail when it does not.
    Replace,
}

impl Volume {
    /// The attributes of an inode.
    pub fn stat(&self, ino: Ino) -> Result<Stat> {
        let inode = self.inode(ino)?;
        let state = inode.read();
        check_live(&state)?;
        let mut attributes = state.attributes;
        if let Some(dir) = state.dir.as_ref().filter(|_| state.unnamed.is_none()) {
            attributes.links = dir.links();
        }
        let (generation, kind) = (inode.generation, inode.kind);
        Ok(Stat { ino, generation, kind, attributes, size: state.size, blocks: state.extents.blocks() })
    }

    /// Changes attributes.
    pub fn set_attributes(&self, ino: Ino, set: SetAttributes) -> Result<Stat> {
        let inode = self.inode(ino)?;
        let mut locked = Locked::new(&[&inode]);
        let state = locked.get(ino)?;
        check_live(state)?;
        let was = state.attributes;
        let time = self.now();
        let attributes = Attributes {
            mode: set.mode.map_or(was.mode, |mode| inode.kind.mode_bits() | mode & 0o7777),
            uid: set.uid.unwrap_or(was.uid),
            gid: set.gid.unwrap_or(was.gid),
            atime: set.atime.unwrap_or(was.atime),
            mtime: set.mtime.unwrap_or(was.mtime),
            ctime: time,
            ..was
        };
        let next_cookie = state.dir.as_ref().map_or(0, |dir| dir.next_cookie());
        let entries = [(ino, Entry::Attributes(attributes, next_cookie))];
        self.commit(&mut locked, &entries, time, Flushed::nothing(), Purpose::Growth)?;
        drop(locked);
        self.stat(ino)
    }

    /// Sets an extended attribute. Name and value together have at most 4012 bytes.
    pub fn set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(Error::Invalid("the name of an attribute has 1 to 255 bytes"));
        }
        if name.len() + value.len() > MAX_XATTR {
            return Err(Error::AttributeTooLarge);
        }
        self.change_xattrs(ino, Entry::Xattr { name, value }, |exists| match how {
            SetXattr::Create if exists => Err(Error::Exists),
            SetXattr::Replace if !exists => Err(Error::NoAttribute),
            _ => Ok(()),
        })
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let check = |exists| if exists { Ok(()) } else { Err(Error::NoAttribute) };
        self.change_xattrs(ino, Entry::XattrGone(name), check)
    }

    fn change_xattrs(&self, ino: Ino, entry: Entry<'_>, check: impl Fn(bool) -> Result<()>) -> Result<()> {
        let inode = self.inode(ino)?;
        let mut locked = Locked::new(&[&inode]);
        let state = locked.get(ino)?;
        check_live(state)?;
        if let Entry::Xattr { name, .. } | Entry::XattrGone(name) = entry {
            check(state.xattrs.contains_key(name))?;
        }
        self.commit(&mut locked, &[(ino, entry)], self.now(), Flushed::nothing(), Purpose::Growth)?;
        Ok(())
    }

    /// The value of an extended attribute.
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        let state = inode.read();
        check_live(&state)?;
        state.xattrs.get(name).map(|value| value.to_vec()).ok_or(Error::NoAttribute)
    }

    /// The names of all extended attributes.
    pub fn xattrs(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let inode = self.inode(ino)?;
        let state = inode.read();
        check_live(&state)?;
        Ok(state.xattrs.keys().map(|name| name.to_vec()).collect())
    }
}
