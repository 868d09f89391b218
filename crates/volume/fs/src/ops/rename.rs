//! Rename: replace, keep, exchange, or leave a whiteout.

use crate::alloc::Purpose;
use crate::dir::Named;
use crate::error::{Damage, Error, Result};
use crate::format::Ino;
use crate::format::entry::{Entry, Kind};
use crate::inode::Inode;
use crate::ops::names::{NewFile, check_empty, check_name, names_of, names_to_change, project_of};
use crate::store::Flushed;
use crate::sync::lock;
use crate::volume::{Locked, Volume};

/// A directory and a name in it.
type Place<'a> = (Ino, &'a [u8]);
/// Target of a name.
type Found<'a> = (Named, &'a Inode);

/// Treatment of a name that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rename {
    Replace,
    /// Fail.
    NoReplace,
    Exchange,
    /// Replace it, and leave a whiteout at the old place: device 0:0, by which overlayfs hides what
    /// lower layers have there.
    Whiteout {
        /// The whiteout's owner.
        uid: u32,
        gid: u32,
    },
}

impl Volume {
    /// Moves a name. At every moment, also after a crash, each of the two names stands for what it
    /// did before or for what it does afterwards, and the two change together.
    pub fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), how: Rename) -> Result<()> {
        check_name(from.1)?;
        check_name(to.1)?;
        let (old_dir, new_dir) = (self.inode(from.0)?, self.inode(to.0)?);
        names_of(&new_dir.read())?;
        self.with_room(|| self.rename_in((&old_dir, from.1), (&new_dir, to.1), how))
    }

    fn rename_in(
        &self,
        (old_dir, old_name): (&Inode, &[u8]),
        (new_dir, new_name): (&Inode, &[u8]),
        how: Rename,
    ) -> Result<()> {
        let (from, to) = ((old_dir.ino, old_name), (new_dir.ino, new_name));
        // Only a directory that gets another parent can make a circle, and only one at a time may.
        let _guard = (from.0 != to.0).then(|| lock(&self.moving_directories));
        loop {
            let (moved, inode) = self.named_inode(old_dir, from.1)?.ok_or(Error::NotFound)?;
            let inode = inode?;
            let target = self.named_inode(new_dir, to.1)?;
            let target = target.map(|(named, inode)| inode.map(|inode| (named, inode))).transpose()?;
            let target_inode = target.as_ref().map(|t| &*t.1);
            if from.0 != to.0 {
                self.check_no_circle(&inode, to.0)?;
                if let Some(target) = target_inode.filter(|_| how == Rename::Exchange) {
                    self.check_no_circle(target, from.0)?;
                }
            }
            let mut all: Vec<&Inode> = vec![old_dir, new_dir, &inode];
            all.extend(target_inode);
            let mut locked = Locked::new(&all);
            let target = target.as_ref().map(|(named, inode)| (*named, &**inode));
            let still = (names_of(locked.get(from.0)?)?.get(from.1), names_of(locked.get(to.0)?)?.get(to.1));
            // A name that was replaced twice can stand for the same number again, of another file.
            let gone =
                [Some(moved), target.map(|t| t.0)].iter().flatten().any(|n| locked.get(n.ino).is_ok_and(|s| s.gone));
            if still != (Some(moved), target.map(|t| t.0)) || gone {
                continue;
            }
            return self.rename_locked(&mut locked, (from, (moved, &inode)), (to, target), how);
        }
    }

    fn rename_locked(
        &self,
        locked: &mut Locked<'_>,
        (from, (moved, inode)): (Place<'_>, Found<'_>),
        (to, target): (Place<'_>, Option<Found<'_>>),
        how: Rename,
    ) -> Result<()> {
        names_to_change(locked.get(from.0)?)?;
        let names = names_to_change(locked.get(to.0)?)?;
        // A name that is replaced stays where it is in listings.
        let cookie = target.map_or_else(|| names.new_cookie(), |(named, _)| Ok(named.cookie))?;
        match (how, target) {
            (Rename::NoReplace, Some(_)) => return Err(Error::Exists),
            (Rename::Exchange, None) => return Err(Error::NotFound),
            (_, Some((named, _))) if named.ino == moved.ino => return Ok(()),
            (Rename::Replace | Rename::Whiteout { .. }, Some((named, _))) => match (moved.kind, named.kind) {
                (Kind::Directory, Kind::Directory) => check_empty(locked.get(named.ino)?)?,
                (Kind::Directory, _) => return Err(Error::NotDirectory),
                (_, Kind::Directory) => return Err(Error::IsDirectory),
                _ => {}
            },
            _ => {}
        }
        let time = self.now();
        let link = |(_, name), named: Named, cookie| Entry::Link { ino: named.ino, cookie, kind: named.kind, name };
        let mut entries = vec![(from.0, Entry::Unlink { ino: moved.ino, name: from.1 })];
        let mut last = false;
        if let Some((named, victim)) = target {
            entries.push((to.0, Entry::Unlink { ino: named.ino, name: to.1 }));
            if how == Rename::Exchange {
                entries.push((from.0, link(from, named, moved.cookie)));
                entries.push((to.0, link(to, moved, named.cookie)));
            } else {
                last = self.drop_name(victim, locked.get(named.ino)?, time, &mut entries);
            }
        }
        if how != Rename::Exchange {
            entries.push((to.0, link(to, moved, cookie)));
        }
        let mut left = None;
        let mut flushed = Flushed::nothing();
        if let Rename::Whiteout { uid, gid } = how {
            let new = NewFile { mode: libc::S_IFCHR, uid, gid, ..NewFile::default() };
            let project = project_of(locked.get(from.0)?);
            let (inode, with) = self.new_inode(Kind::CharDevice, (new, &project), 1, time)?;
            entries.push((from.0, link(from, Named { ino: inode.ino, kind: Kind::CharDevice, ..moved }, moved.cookie)));
            (left, flushed) = (Some(inode), with);
        }
        let purpose = if last && left.is_none() {
            Purpose::Freeing
        } else if left.is_some() {
            Purpose::Growth
        } else {
            Purpose::Replacing
        };
        let durable = self.commit(locked, &entries, time, flushed, purpose);
        let durable = durable.inspect_err(|_| left.iter().for_each(|left| self.unmake_inode(left)))?;
        if let Some(left) = left {
            left.note_directory(from.0);
            self.add_inode(left);
        }
        inode.note_directory(to.0);
        if let Some(dir) = &mut locked.get_mut(inode.ino)?.dir {
            dir.parent = to.0;
        }
        match target {
            Some((_, victim)) if how == Rename::Exchange => {
                victim.note_directory(from.0);
                if let Some(dir) = &mut locked.get_mut(victim.ino)?.dir {
                    dir.parent = from.0;
                }
            }
            Some((_, victim)) if last => self.lost_last_name(victim, locked.get_mut(victim.ino)?, time, durable)?,
            _ => {}
        }
        Ok(())
    }

    /// Fails when `parent` is `inode` or below it. The caller holds `moving_directories`.
    fn check_no_circle(&self, inode: &Inode, parent: Ino) -> Result<()> {
        if inode.kind != Kind::Directory {
            return Ok(());
        }
        let most: u64 = self.store.superblock().regions.iter().map(|region| region.inodes).sum();
        let mut at = parent;
        for _ in 0..most {
            if at == inode.ino {
                return Err(Error::Invalid("a directory cannot move into itself"));
            }
            if at == Ino::ROOT {
                return Ok(());
            }
            at = names_of(&self.inode(at)?.read())?.parent;
        }
        Err(Damage::Inode { ino: parent, what: "its parents make a circle" }.into())
    }
}
