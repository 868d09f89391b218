//! Attributes and extended attributes.

use crate::acl::{self, Acl};
use crate::alloc::Purpose;
use crate::error::{Error, Result};
use crate::format::entry::{Attributes, Entry, Kind, MAX_XATTR};
use crate::format::{Ino, MAX_NAME};
use crate::inode::{Inode, State};
use crate::ops::names::check_live;
use crate::ops::quota::is_own;
use crate::store::Flushed;
use crate::volume::{Locked, Volume};
use crate::xattrs::Xattrs;

/// The extended attribute that gives an executable file capabilities.
const CAPABILITIES: &[u8] = b"security.capability";

/// Most bytes of all names and values of an inode's extended attributes: what `listxattr` can
/// return of names alone (XATTR_LIST_MAX). Without a limit one file could fill the memory of the
/// server.
const MAX_XATTRS: usize = 1 << 16;

/// Attributes as `stat` gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub ino: Ino,
    /// Which life of the number this is.
    pub generation: u32,
    pub kind: Kind,
    /// Attributes, with the links that a directory has.
    pub attributes: Attributes,
    /// Size in bytes.
    pub size: u64,
    /// Blocks of 4096 bytes.
    pub blocks: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub atime: Option<i64>,
    pub mtime: Option<i64>,
}

/// Treatment of an extended attribute that exists, or does not.
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
    pub fn stat(&self, ino: Ino) -> Result<Stat> {
        Self::stat_of(&*self.inode_partly(ino)?)
    }

    pub(crate) fn stat_of(inode: &Inode) -> Result<Stat> {
        let state = inode.read();
        check_live(&state)?;
        let mut attributes = state.attributes;
        if let Some(dir) = state.dir.as_ref().filter(|_| state.unnamed.is_none()) {
            attributes.links = dir.links();
        }
        let (generation, kind) = (inode.generation, inode.kind);
        Ok(Stat { ino: inode.ino, generation, kind, attributes, size: state.size, blocks: state.extents.blocks() })
    }

    /// Changes attributes. Another owner or group takes the set-user-ID and set-group-ID bits and
    /// the capabilities of a file, unless `set` has a mode.
    pub fn set_attributes(&self, ino: Ino, set: SetAttributes) -> Result<Stat> {
        let inode = self.inode_partly(ino)?;
        self.with_room(|| {
            let mut locked = Locked::new(&[&inode]);
            let state = locked.get(ino)?;
            check_live(state)?;
            let was = state.attributes;
            let time = self.now();
            let owned = set.uid.is_some() || set.gid.is_some();
            let strip = owned && inode.kind != Kind::Directory;
            let kept = if strip { without_privileges(was.mode) } else { was.mode };
            let attributes = Attributes {
                mode: set.mode.map_or(kept, |mode| inode.kind.mode_bits() | mode & 0o7777),
                uid: set.uid.unwrap_or(was.uid),
                gid: set.gid.unwrap_or(was.gid),
                atime: set.atime.unwrap_or(was.atime),
                mtime: set.mtime.unwrap_or(was.mtime),
                ctime: time,
                ..was
            };
            let mut entries = vec![(ino, state.with_attributes(attributes))];
            let list = set.mode.map_or(Ok(None), |_| state.xattr(&self.store, inode.whose(), acl::ACCESS))?;
            let list = list.and_then(|list| Some(Acl::parse(&list)?.with_mode(attributes.mode).to_bytes()));
            if let Some(value) = &list {
                entries.push((ino, Entry::Xattr { name: acl::ACCESS, value }));
            }
            if strip && state.xattrs.has(CAPABILITIES) {
                entries.push((ino, Entry::XattrGone(CAPABILITIES)));
            }
            self.commit(&mut locked, &entries, time, Flushed::nothing(), Purpose::Replacing)
        })?;
        self.stat(ino)
    }

    /// Before a file's data changes: its capabilities end and, if `modes`, its set-user-ID and
    /// set-group-ID bits. True: it had some.
    pub fn drop_privileges(&self, ino: Ino, modes: bool) -> Result<bool> {
        let inode = self.inode_partly(ino)?;
        if inode.kind == Kind::Directory {
            return Ok(false);
        }
        let kept = |mode| if modes { without_privileges(mode) } else { mode };
        let has_some =
            |state: &State| kept(state.attributes.mode) != state.attributes.mode || state.xattrs.has(CAPABILITIES);
        if !has_some(&inode.read()) {
            return Ok(false);
        }
        self.with_room(|| {
            let mut locked = Locked::new(&[&inode]);
            let state = locked.get(ino)?;
            check_live(state)?;
            let time = self.now();
            let mut entries = Vec::new();
            if kept(state.attributes.mode) != state.attributes.mode {
                let mode = kept(state.attributes.mode);
                let attributes = Attributes { mode, ctime: time, ..state.attributes };
                entries.push((ino, state.with_attributes(attributes)));
            }
            if state.xattrs.has(CAPABILITIES) {
                entries.push((ino, Entry::XattrGone(CAPABILITIES)));
            }
            if !entries.is_empty() {
                self.commit(&mut locked, &entries, time, Flushed::nothing(), Purpose::Replacing)?;
            }
            Ok(())
        })?;
        Ok(true)
    }

    /// Sets an extended attribute. Name and value together have at most 4012 bytes, all of an inode
    /// 64 KiB.
    pub fn set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(Error::Invalid("the name of an attribute has 1 to 255 bytes"));
        }
        if name.len() + value.len() > MAX_XATTR {
            return Err(Error::AttributeTooLarge);
        }
        self.change_xattrs(ino, Entry::Xattr { name, value }, |xattrs| {
            // A zero ends each name in a list.
            let own = if is_own(name) { None } else { xattrs.bytes_of(name) };
            let others = xattrs.bytes() - own.map_or(0, |bytes| bytes + 1);
            match how {
                SetXattr::Create if xattrs.has(name) => Err(Error::Exists),
                SetXattr::Replace if !xattrs.has(name) => Err(Error::NoAttribute),
                _ if others + name.len() + 1 + value.len() > MAX_XATTRS && !is_own(name) => {
                    Err(Error::AttributeTooLarge)
                }
                _ => Ok(()),
            }
        })
    }

    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.change_xattrs(
            ino,
            Entry::XattrGone(name),
            |xattrs| {
                if xattrs.has(name) { Ok(()) } else { Err(Error::NoAttribute) }
            },
        )
    }

    /// Sets, or without a value removes, the access control list of a file ([`acl::ACCESS`]) or the
    /// one for new files of a directory ([`acl::DEFAULT`]). The mode follows the first in the same
    /// commit. `set_gid_ends`: the caller may not keep the set-group-ID bit.
    pub fn set_acl(&self, ino: Ino, name: &'static [u8], value: Option<&[u8]>, set_gid_ends: bool) -> Result<()> {
        let list = match value {
            Some(value) if value.len() + name.len() > MAX_XATTR => return Err(Error::AttributeTooLarge),
            Some(value) => Some(Acl::parse(value).ok_or(Error::Invalid("not an access control list"))?),
            None => None,
        };
        let inode = self.inode_partly(ino)?;
        let access = name == acl::ACCESS;
        if inode.kind == Kind::Symlink || (!access && list.is_some() && inode.kind != Kind::Directory) {
            return Err(Error::NotPermitted);
        }
        let kept = list.as_ref().filter(|list| !access || !list.is_mode()).map(Acl::to_bytes);
        self.with_room(|| {
            let mut locked = Locked::new(&[&inode]);
            let state = locked.get(ino)?;
            check_live(state)?;
            let time = self.now();
            let mut entries = Vec::new();
            match &kept {
                Some(value) => entries.push((ino, Entry::Xattr { name, value })),
                None if state.xattrs.has(name) => entries.push((ino, Entry::XattrGone(name))),
                None => {}
            }
            if let Some(list) = list.as_ref().filter(|_| access) {
                let bits = if set_gid_ends { 0o777 | libc::S_ISGID } else { 0o777 };
                let mode = state.attributes.mode & !bits | list.mode();
                let attributes = Attributes { mode, ctime: time, ..state.attributes };
                entries.push((ino, state.with_attributes(attributes)));
            }
            if entries.is_empty() {
                return Ok(());
            }
            let purpose = purpose(&state.xattrs, &entries);
            self.commit(&mut locked, &entries, time, Flushed::nothing(), purpose)?;
            Ok(())
        })
    }

    fn change_xattrs(&self, ino: Ino, entry: Entry<'_>, check: impl Fn(&Xattrs) -> Result<()>) -> Result<()> {
        let inode = self.inode_partly(ino)?;
        let entries = [(ino, entry)];
        self.with_room(|| {
            let mut locked = Locked::new(&[&inode]);
            let state = locked.get(ino)?;
            check_live(state)?;
            check(&state.xattrs)?;
            let purpose = purpose(&state.xattrs, &entries);
            self.commit(&mut locked, &entries, self.now(), Flushed::nothing(), purpose)?;
            Ok(())
        })
    }

    /// The value of an extended attribute.
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.inode_partly(ino)?;
        let state = inode.read();
        check_live(&state)?;
        state.xattr(&self.store, inode.whose(), name)?.map(Vec::from).ok_or(Error::NoAttribute)
    }

    /// The names of all extended attributes.
    pub fn xattrs(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let inode = self.inode_partly(ino)?;
        let state = inode.read();
        check_live(&state)?;
        let names = state.all_xattrs(&self.store, inode.whose())?.into_keys();
        Ok(names.filter(|name| !is_own(name)).map(Vec::from).collect())
    }
}

/// Values that are new, or longer than what they replace, take room.
fn purpose(old: &Xattrs, entries: &[(Ino, Entry<'_>)]) -> Purpose {
    let grows = |entry: &Entry<'_>| match entry {
        Entry::Xattr { name, value } => old.bytes_of(name).is_none_or(|old| old < name.len() + value.len()),
        _ => false,
    };
    if entries.iter().any(|(_, entry)| grows(entry)) { Purpose::Growth } else { Purpose::Replacing }
}

/// A mode without the bits that let a file run as its owner or group. Without execution by the
/// group, the latter means something else and stays.
fn without_privileges(mode: u32) -> u32 {
    let group = if mode & libc::S_IXGRP == 0 { 0 } else { libc::S_ISGID };
    mode & !(libc::S_ISUID | group)
}
