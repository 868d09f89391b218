//! Extended attributes of an inode.
//!
//! **Problem.** An inode may have 64 KiB of attributes, and stays in memory as long as somebody
//! holds the file: any user could fill the server's memory with what nobody reads.
//!
//! **Approach.** Memory has which attributes there are, by a hash of the name with a key of this
//! process, and how long each is. Short ones, which the kernel and access control lists need often,
//! it has whole; the others are read from the log when they are asked for.
//!
//! A sum of the value in memory tells the right one from an earlier one.
//!
//! **Limits.** Reading one goes through the pages of the log from the last one back. Where entries
//! of the log are lost, all attributes are in memory.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use crate::error::{Damage, Result};
use crate::format::entry::Entry;
use crate::format::page::SLOTS;
use crate::format::{Ino, LogPos};
use crate::log::{self, Log};
use crate::store::Store;

/// Most bytes of a name and its value that are kept in memory, and of all that are.
const KEPT: (usize, usize) = (128, 512);
/// Bytes that an attribute takes in memory beside its name and value, about.
const ONE: usize = 48;

/// Attributes of these names are the volume's own: nobody sees them.
pub const OWN: &[u8] = b"homenode.";
/// The project of an inode: 4 bytes.
pub const PROJECT: &[u8] = b"homenode.project";

static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);

type Pair = (Box<[u8]>, Box<[u8]>);

pub type Values = BTreeMap<Box<[u8]>, Box<[u8]>>;

#[derive(Debug, Default)]
pub struct Xattrs {
    all: BTreeMap<u64, One>,
    /// Bytes of all names and values, of those in memory, and slots of a log.
    bytes: usize,
    /// Of these, with the zeros that end names, those of the volume's own.
    own: usize,
    kept: usize,
    slots: usize,
    project: u32,
    keeps_all: bool,
}

#[derive(Debug)]
struct One {
    /// Bytes of name and value.
    bytes: u16,
    /// Of the value, with the same key: what cannot be read must not bring back an earlier one.
    sum: u32,
    /// What they are, if they are in memory.
    kept: Option<Box<Pair>>,
}

fn hash(name: &[u8]) -> u64 {
    KEY.hash_one(name)
}

fn sum(value: &[u8]) -> u32 {
    KEY.hash_one(value) as u32
}

impl Xattrs {
    /// From here on all that are set are kept in memory.
    pub fn keep_all(&mut self) {
        self.keeps_all = true;
    }

    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        self.remove(name);
        let bytes = name.len() + value.len();
        if name == PROJECT {
            self.project = value.try_into().map_or(0, u32::from_le_bytes);
        }
        let keeps = self.keeps_all || bytes <= KEPT.0 && self.kept + bytes <= KEPT.1;
        let kept = keeps.then(|| Box::new((name.into(), value.into())));
        self.kept += if keeps { bytes } else { 0 };
        self.bytes += bytes;
        self.own += if name.starts_with(OWN) { bytes + 1 } else { 0 };
        self.slots += Entry::xattr_slots(bytes);
        self.all.insert(hash(name), One { bytes: bytes as u16, sum: sum(value), kept });
    }

    /// Removes one. False: there is none of this name.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let Some(one) = self.all.remove(&hash(name)) else { return false };
        if name == PROJECT {
            self.project = 0;
        }
        let bytes = usize::from(one.bytes);
        self.kept -= if one.kept.is_some() { bytes } else { 0 };
        self.bytes -= bytes;
        self.own -= if name.starts_with(OWN) { bytes + 1 } else { 0 };
        self.slots -= Entry::xattr_slots(bytes);
        true
    }

    /// The project that the inode belongs to; 0: none.
    pub fn project(&self) -> u32 {
        self.project
    }

    pub fn has(&self, name: &[u8]) -> bool {
        self.all.contains_key(&hash(name))
    }

    /// Bytes of a name and its value, if it is there.
    pub fn bytes_of(&self, name: &[u8]) -> Option<usize> {
        self.all.get(&hash(name)).map(|one| usize::from(one.bytes))
    }

    /// Bytes of all names that are not the volume's own, each with a zero that ends it in a list,
    /// and values.
    pub fn bytes(&self) -> usize {
        self.bytes + self.all.len() - self.own
    }

    /// Slots that they take in a log.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Bytes that they take in memory, about.
    pub fn memory(&self) -> usize {
        self.kept + ONE * self.all.len()
    }

    /// Whether these are the same, as far as memory says.
    pub fn are(&self, others: &Self) -> bool {
        let list =
            |xattrs: &Self| -> Vec<(u64, u16)> { xattrs.all.iter().map(|(hash, one)| (*hash, one.bytes)).collect() };
        list(self) == list(others)
    }

    /// The value of one; `None`: there is none of this name.
    pub fn value(&self, store: &Store, whose: (Ino, u32), log: &Log, name: &[u8]) -> Result<Option<Box<[u8]>>> {
        let hash = hash(name);
        match self.all.get(&hash) {
            None => Ok(None),
            Some(One { kept: Some(kept), .. }) => Ok(Some(kept.1.clone())),
            Some(one) => Ok(read(store, whose, log, BTreeMap::from([(hash, one.sum)]))?.remove(name)),
        }
    }

    pub fn values(&self, store: &Store, whose: (Ino, u32), log: &Log) -> Result<Values> {
        let kept = self.all.values().filter_map(|one| one.kept.as_deref());
        let mut values: Values = kept.cloned().collect();
        let lacking = self.all.iter().filter(|(_, one)| one.kept.is_none()).map(|(hash, one)| (*hash, one.sum));
        values.extend(read(store, whose, log, lacking.collect())?);
        Ok(values)
    }
}

/// Reads the values with these sums, by the hashes of their names, from the last page of a log
/// back. A page of which a bit has flipped, or that cannot be read, may have none of them: so each
/// page is read where one is not found by a look.
fn read(store: &Store, whose: (Ino, u32), log: &Log, mut lacking: BTreeMap<u64, u32>) -> Result<Values> {
    let mut values = Values::new();
    for each in [false, true] {
        if log.flipped && !each {
            continue;
        }
        for at in log.pages.iter().rev() {
            if lacking.is_empty() {
                return Ok(values);
            }
            let Ok(page) = store.read_block(*at) else { continue };
            if !each && !Entry::may_have_xattrs(page.as_slice()) {
                continue;
            }
            let (end, from) = (if *at == log.tail.page { log.tail.slot } else { SLOTS }, LogPos { page: *at, slot: 1 });
            let mut found = Values::new();
            let _ = log::read_page(page.as_slice(), whose, from, end, |entry, _| {
                if let Entry::Xattr { name, value } = entry
                    && lacking.get(&hash(name)) == Some(&sum(value))
                {
                    found.insert((*name).into(), (*value).into());
                }
                Ok(())
            });
            found.keys().for_each(|name| _ = lacking.remove(&hash(name)));
            values.append(&mut found);
        }
    }
    let what = "its log has lost an attribute";
    if lacking.is_empty() { Ok(values) } else { Err(Damage::Inode { ino: whose.0, what }.into()) }
}
