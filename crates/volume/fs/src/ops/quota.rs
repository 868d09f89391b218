//! Quotas: limits of users and projects, and what they use.
//!
//! Limits are attributes of the root that nobody sees, so they need no place of their own. What is
//! used is counted at the mount where there are limits.

use std::collections::BTreeMap;

use crate::account::{Quota, Space, Subject};
use crate::error::{Error, Result};
use crate::format::Ino;
use crate::format::get_u64;
use crate::ops::SetXattr;
use crate::volume::Volume;
use crate::xattrs::{OWN, PROJECT};

/// Attributes of the root that have limits begin so.
const LIMIT: &str = "homenode.quota.";

fn name_of(subject: Subject) -> String {
    match subject {
        Subject::User(uid) => format!("{LIMIT}user.{uid}"),
        Subject::Project(id) => format!("{LIMIT}project.{id}"),
    }
}

fn subject_of(name: &[u8]) -> Option<Subject> {
    match std::str::from_utf8(name).ok()?.strip_prefix(LIMIT)?.split_once('.')? {
        ("user", uid) => uid.parse().ok().map(Subject::User),
        ("project", id) => id.parse().ok().map(Subject::Project),
        _ => None,
    }
}

impl Volume {
    /// Takes the limits from the medium, and counts what they limit, if there are any. A root that
    /// is damaged keeps nobody from what can be used without it.
    pub(crate) fn load_quotas(&self) {
        let limits = self.inode(Ino::ROOT).and_then(|root| root.read().all_xattrs(&self.store, root.whose()));
        let Ok(limits) = limits else { return };
        let mut some = false;
        for (name, value) in &limits {
            if let Some(subject) = subject_of(name) {
                some = true;
                self.quotas.set_limit(subject, Space { blocks: get_u64(value, 0), files: get_u64(value, 8) });
            }
        }
        if some && self.start_counting() {
            self.count_all(|| true);
        }
    }

    /// Limits a user or a project from now on; a limit of nothing ends that. Root has no limit.
    pub fn set_quota(&self, subject: Subject, limit: Space) -> Result<()> {
        if matches!(subject, Subject::User(0) | Subject::Project(0)) {
            return Err(Error::Invalid("root has no limit, and 0 is no project"));
        }
        let (name, value) = (name_of(subject), [limit.blocks, limit.files].map(u64::to_le_bytes).concat());
        if limit == Space::default() {
            match self.remove_xattr(Ino::ROOT, name.as_bytes()) {
                Err(Error::NoAttribute) => {}
                removed => removed?,
            }
        } else {
            self.set_xattr(Ino::ROOT, name.as_bytes(), &value, SetXattr::Any)?;
        }
        self.quotas.set_limit(subject, limit);
        Ok(())
    }

    /// Whether everything is counted, and what each user and project uses and may.
    pub fn quotas(&self) -> (bool, BTreeMap<Subject, Quota>) {
        self.quotas.all()
    }

    /// From now on changes are counted. True: [`Volume::count_all`] is to count what there is.
    pub fn start_counting(&self) -> bool {
        self.quotas.start()
    }

    /// Counts every inode, while others use the volume, as long as `go_on` says so.
    pub fn count_all(&self, mut go_on: impl FnMut() -> bool) {
        for (region, layout) in self.store.superblock().regions.iter().enumerate() {
            for ino in (1..layout.inodes).map(|slot| Ino::new(region, slot as u32)) {
                if ino.slot().is_multiple_of(1024) && !go_on() {
                    return;
                }
                loop {
                    let known = self.known_inode(ino);
                    let read = known.is_none();
                    let inode = known.or_else(|| self.inode_partly(ino).ok()); // what is damaged counts nothing
                    let counted = self.quotas.count(ino, inode.as_deref(), || self.known_inode(ino).is_some());
                    if let Some(inode) = inode.filter(|_| read) {
                        self.let_go(inode);
                    }
                    if counted {
                        break;
                    }
                }
            }
        }
        self.quotas.end();
    }

    /// Makes an inode one of a project, or of none (0), and so what is made in it, if it is a
    /// directory.
    pub fn set_project(&self, ino: Ino, project: u32) -> Result<()> {
        match project {
            0 => match self.remove_xattr(ino, PROJECT) {
                Err(Error::NoAttribute) => Ok(()),
                removed => removed,
            },
            project => self.set_xattr(ino, PROJECT, &project.to_le_bytes(), SetXattr::Any),
        }
    }

    /// The project of an inode; 0: none.
    pub fn project(&self, ino: Ino) -> Result<u32> {
        Ok(self.inode_partly(ino)?.read().xattrs.project())
    }
}

/// Whether an attribute is the volume's own.
pub(super) fn is_own(name: &[u8]) -> bool {
    name.starts_with(OWN)
}
