//! Names of a directory: the index in DRAM.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::Ino;
use crate::format::entry::{Entry, Kind};

/// Cookies of `.` and `..`; names begin after them.
pub const FIRST_COOKIE: u64 = 3;
/// The largest cookie. Kernels take a place in a listing for a signed offset: this leaves 15 bits
/// of it to say where the listing ends.
pub const LAST_COOKIE: u64 = (1 << 48) - 1;

/// Target of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    pub ino: Ino,
    pub kind: Kind,
    /// The place of the name in listings: never given to another name of this directory.
    pub cookie: u64,
}

#[derive(Clone, Debug)]
pub struct Dir {
    by_name: HashMap<Arc<[u8]>, Named>,
    /// With the target: a listing that looked each name up again took three times as long.
    by_cookie: BTreeMap<u64, (Arc<[u8]>, Ino, Kind)>,
    next_cookie: u64,
    subdirs: u32,
    slots: usize,
    /// The directory that names this one; the root names itself.
    pub parent: Ino,
}

impl Dir {
    pub fn new(parent: Ino) -> Self {
        let (by_name, by_cookie) = (HashMap::new(), BTreeMap::new());
        Self { by_name, by_cookie, next_cookie: FIRST_COOKIE, subdirs: 0, slots: 0, parent }
    }

    pub fn get(&self, name: &[u8]) -> Option<Named> {
        self.by_name.get(name).copied()
    }

    /// Adds a name. False: the name or the cookie exists, or no name can have the cookie.
    pub fn insert(&mut self, name: &[u8], named: Named) -> bool {
        let possible = (FIRST_COOKIE..=LAST_COOKIE).contains(&named.cookie);
        if !possible || self.by_name.contains_key(name) || self.by_cookie.contains_key(&named.cookie) {
            return false;
        }
        self.slots += link_slots(name);
        let name: Arc<[u8]> = name.into();
        self.by_cookie.insert(named.cookie, (Arc::clone(&name), named.ino, named.kind));
        self.by_name.insert(name, named);
        self.raise_next_cookie(named.cookie + 1);
        self.subdirs += u32::from(named.kind == Kind::Directory);
        true
    }

    pub fn remove(&mut self, name: &[u8]) -> Option<Named> {
        let named = self.by_name.remove(name)?;
        self.by_cookie.remove(&named.cookie);
        self.slots -= link_slots(name);
        self.subdirs -= u32::from(named.kind == Kind::Directory);
        Some(named)
    }

    /// The cookie that the next new name gets; [`LAST_COOKIE`] + 1: none is left.
    pub fn next_cookie(&self) -> u64 {
        self.next_cookie
    }

    pub fn new_cookie(&self) -> Result<u64> {
        if self.next_cookie > LAST_COOKIE { Err(Error::Lacks(u64::MAX)) } else { Ok(self.next_cookie) }
    }

    /// Gives no cookie below `least` again.
    pub fn raise_next_cookie(&mut self, least: u64) {
        self.next_cookie = self.next_cookie.max(least);
    }

    /// Names after a cookie, in the order in which they were added.
    pub fn after(&self, cookie: u64) -> impl Iterator<Item = (&[u8], Named)> {
        let after = (std::ops::Bound::Excluded(cookie), std::ops::Bound::Unbounded);
        self.by_cookie
            .range(after)
            .map(|(&cookie, (name, ino, kind))| (&**name, Named { ino: *ino, kind: *kind, cookie }))
    }

    /// Slots of a log that the names take.
    pub fn slots(&self) -> usize {
        self.slots
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Links of the directory itself: its name, its `.`, and the `..` of each subdirectory.
    pub fn links(&self) -> u32 {
        2 + self.subdirs
    }
}
fn link_slots(name: &[u8]) -> usize {
    Entry::Link { ino: Ino::ROOT, cookie: FIRST_COOKIE, kind: Kind::File, name }.slots()
}
