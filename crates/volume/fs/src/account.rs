//! What inodes take: of memory, which is bounded, and of the volume, which quotas limit.
//!
//! **Problem.** Any user can make many inodes, and hold them: memory that they take would have no
//! bound, nor would the part of the volume.
//!
//! **Approach.** Each inode in memory notes what it was last counted with ([`Account`]), so a
//! change adds a difference to the sums of its owner, under the lock of its state. Where memory is
//! beyond its bound, or an owner beyond a part of it, inodes that nobody is using go, also those
//! that a kernel remembers: all that stays is how often ([`Away`]), and the next use reads them
//! again. Owners share 256 sums, so two may share a bound.
//!
//! The space of users and projects is counted while somebody has a limit, or asks. Counting begins
//! with a look at each inode, in the order of numbers, while others change the volume: what has a
//! number below the [`Counts::upto`] is counted, and changes of it are.
//!
//! **Limits.** What cannot be read again is not let go: files without a name, and what somebody is
//! using. Writers of one owner that find room at the same time may pass a limit by what
//! each of them writes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::error::{Error, Result};
use crate::format::Ino;
use crate::inode::{Inode, State};
use crate::volume::lock;

/// Sums of memory, which owners share.
const SUMS: usize = 256;
/// The part of the bound that one owner's inodes may take.
const PART: u64 = 4;
/// Changes of an inode's memory by less are not counted.
const GRAIN: u64 = 1024;

/// What an inode was last counted with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Account {
    memory: u64,
    owner: usize,
    used: Used,
}

/// Space of one inode, and whose it is. Nothing: it is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Used {
    uid: u32,
    project: u32,
    space: Space,
}

impl Used {
    fn of(state: &State) -> Self {
        if state.gone {
            return Self::default();
        }
        let blocks = state.extents.blocks() + state.log.pages.len() as u64;
        let (uid, project) = (state.attributes.uid, state.xattrs.project());
        Self { uid, project, space: Space { blocks, files: 1 } }
    }
}

impl Account {
    /// Of an inode that is on the medium, and counted there.
    pub(crate) fn of(state: &State) -> Self {
        Self { used: Used::of(state), ..Self::default() }
    }
}

/// What a kernel's memory of an inode takes here that is not in memory.
#[derive(Debug)]
pub(crate) struct Away {
    pub remembered: u64,
    pub opens: u32,
    pub named_in: u64,
}

/// Bytes of memory that inodes take.
#[derive(Debug)]
pub(crate) struct Memory {
    all: AtomicU64,
    owners: Box<[AtomicU64]>,
    /// 0: none.
    bound: AtomicU64,
    over: AtomicBool,
}

impl Default for Memory {
    fn default() -> Self {
        let owners = (0..SUMS).map(|_| AtomicU64::new(0)).collect();
        Self { all: AtomicU64::new(0), owners, bound: AtomicU64::new(0), over: AtomicBool::new(false) }
    }
}

impl Memory {
    pub(crate) fn set_bound(&self, bytes: u64) {
        self.bound.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    pub(crate) fn take_over(&self) -> bool {
        self.over.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn all(&self) -> u64 {
        self.all.load(Ordering::Relaxed)
    }

    /// Whether the memory of all, or of an inode's owner, is beyond so many quarters of its bound.
    pub(crate) fn exceeds(&self, inode: &Inode, quarters: u64) -> bool {
        let owner = lock(&inode.account).owner;
        self.is_beyond(owner, quarters)
    }

    fn is_beyond(&self, owner: usize, quarters: u64) -> bool {
        let bound = self.bound.load(Ordering::Relaxed);
        let own = self.owners.get(owner).map_or(0, |sum| sum.load(Ordering::Relaxed));
        bound > 0 && (self.all() > bound / 4 * quarters || own > bound / PART / 4 * quarters)
    }

    fn change(&self, owner: usize, from: u64, to: u64) {
        for sum in [Some(&self.all), self.owners.get(owner)].into_iter().flatten() {
            sum.fetch_add(to.wrapping_sub(from), Ordering::Relaxed);
        }
    }

    /// Counts what an inode takes now.
    fn count(&self, account: &mut Account, state: &State) {
        // What is gone has left already.
        let memory = if state.gone { 0 } else { state.memory() };
        let owner = state.attributes.uid.wrapping_mul(0x9e37_79b1) as usize >> 24 & (SUMS - 1);
        if owner == account.owner && memory.abs_diff(account.memory) < GRAIN && account.memory > 0 {
            return;
        }
        self.change(account.owner, account.memory, 0);
        self.change(owner, 0, memory);
        (account.memory, account.owner) = (memory, owner);
        if !self.is_over() && self.is_beyond(owner, 4) {
            self.over.store(true, Ordering::Relaxed);
        }
    }

    /// An inode is in memory no more: the bytes that it had.
    pub(crate) fn leaves(&self, inode: &Inode) -> u64 {
        let mut account = lock(&inode.account);
        let memory = std::mem::take(&mut account.memory);
        self.change(account.owner, memory, 0);
        memory
    }
}

/// Whose space is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// The owner of files.
    User(u32),
    /// A project: a number that files have from their directory.
    Project(u32),
}

/// Blocks of data and logs, and files: used, or a limit, of which 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Blocks of 4096 bytes.
    pub blocks: u64,
    /// Files, directories and others.
    pub files: u64,
}

/// What a user or a project uses, and may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    pub used: Space,
    pub limit: Space,
}

/// What users and projects use.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    on: AtomicBool,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Inodes with numbers below are counted.
    upto: u64,
    quotas: BTreeMap<Subject, Quota>,
}

impl Counts {
    fn change(&mut self, used: &Used, add: bool) {
        let sum = |sum: u64, by: u64| if add { sum + by } else { sum.saturating_sub(by) };
        let project = (used.project != 0).then_some(Subject::Project(used.project));
        for subject in [Some(Subject::User(used.uid)), project].into_iter().flatten() {
            let quota = self.quotas.entry(subject).or_default();
            quota.used.blocks = sum(quota.used.blocks, used.space.blocks);
            quota.used.files = sum(quota.used.files, used.space.files);
        }
    }

    /// Counts an inode as it is now, if it is among those that are counted.
    fn settle(&mut self, ino: Ino, account: &mut Account, now: Used) {
        if ino.raw() < self.upto {
            self.change(&account.used, false);
            self.change(&now, true);
            account.used = now;
        }
    }
}

impl Quotas {
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        lock(&self.counts)
    }

    pub(crate) fn set_limit(&self, subject: Subject, limit: Space) {
        self.counts().quotas.entry(subject).or_default().limit = limit;
    }

    /// Whether all is counted, and what everybody uses.
    pub(crate) fn all(&self) -> (bool, BTreeMap<Subject, Quota>) {
        let counts = self.counts();
        let all = counts.quotas.iter().filter(|(_, quota)| **quota != Quota::default());
        (counts.upto == u64::MAX, all.map(|(subject, quota)| (*subject, *quota)).collect())
    }

    /// From now on everything is to be counted. False: it is already, or being so.
    pub(crate) fn start(&self) -> bool {
        let mut counts = self.counts();
        if self.is_on() {
            return false;
        }
        counts.upto = 0;
        self.on.store(true, Ordering::Release);
        true
    }

    /// Counts one inode, of those up to `ino` the last one. False: it has come meanwhile.
    pub(crate) fn count(&self, ino: Ino, found: Option<&Inode>, is_known: impl FnOnce() -> bool) -> bool {
        let state = found.map(Inode::read);
        let mut account = found.map(|inode| lock(&inode.account));
        let mut counts = self.counts();
        match (&state, &mut account) {
            (Some(state), Some(account)) => {
                account.used = Used::of(state);
                counts.change(&account.used, true);
            }
            _ if is_known() => return false,
            _ => {}
        }
        counts.upto = ino.raw() + 1;
        true
    }

    /// All inodes are counted.
    pub(crate) fn end(&self) {
        self.counts().upto = u64::MAX;
    }

    /// Fails where an owner or a project would use more than it may.
    pub(crate) fn check(&self, (uid, project): (u32, u32), more: Space) -> Result<()> {
        if more == Space::default() || !self.is_on() {
            return Ok(());
        }
        let counts = self.counts();
        for subject in [Subject::User(uid), Subject::Project(project)] {
            let Some(Quota { used, limit }) = counts.quotas.get(&subject) else { continue };
            let beyond = |used: u64, more: u64, limit: u64| limit > 0 && more > 0 && used + more > limit;
            if beyond(used.blocks, more.blocks, limit.blocks) || beyond(used.files, more.files, limit.files) {
                return Err(Error::Quota);
            }
        }
        Ok(())
    }

    /// The same for an inode that takes so many blocks more.
    pub(crate) fn check_blocks(&self, state: &State, blocks: u64) -> Result<()> {
        let whose = (state.attributes.uid, state.xattrs.project());
        self.check(whose, Space { blocks, files: 0 })
    }
}

/// Counts an inode whose state has changed, or that is about to leave memory.
pub(crate) fn settle(memory: &Memory, quotas: &Quotas, inode: &Inode, state: &State) {
    let mut account = lock(&inode.account);
    memory.count(&mut account, state);
    if quotas.is_on() {
        let now = Used::of(state);
        if now != account.used {
            quotas.counts().settle(inode.ino, &mut account, now);
        }
    }
}

/// Counts an inode that memory has from now on, and has `insert` make it known.
pub(crate) fn begin(memory: &Memory, quotas: &Quotas, inode: &Inode, insert: impl FnOnce()) {
    let state = inode.read();
    let mut account = lock(&inode.account);
    memory.count(&mut account, &state);
    if !quotas.is_on() {
        drop((account, state));
        return insert();
    }
    let now = Used::of(&state);
    // Held until it is known, so that whoever counts all sees it, or has passed its number.
    let mut counts = quotas.counts();
    insert();
    if now != account.used {
        counts.settle(inode.ino, &mut account, now);
    }
}
