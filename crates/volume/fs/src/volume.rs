//! A mounted volume: what its operations (`ops`) share.

use std::collections::BTreeSet;
use std::iter;
use std::ops::Deref;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError};

use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};
use topology::Topology;

use crate::account::{self, Away, Memory, Quotas};
use crate::alloc::{Allocator, Purpose};
use crate::checkpoint::Checkpoint;
use crate::clean::Room;
use crate::counters::Counters;
use crate::error::{Damage, Error, Result};
use crate::format::entry::Kind;
use crate::format::{Block, Ino};
use crate::inherited::Inherited;
use crate::inode::{Inode, State};
use crate::log::Pages;
use crate::mount::Recovered;
use crate::placement::{Placement, Regions};
use crate::scan::{self, Long};
use crate::store::Store;
use crate::sync::{self, Apart, AtomicBool, AtomicU64, Mutex, RwLock, RwLockWriteGuard};
use crate::unread::Unread;

/// Parts of the table of inodes.
const SHARDS: usize = 64;
/// Pieces of extents that are read at a time: 1,008 extents.
const PIECES: usize = 16;
/// Places that such a part keeps in any case: 16 KiB.
const SPARE: usize = 1024;

/// How a volume is mounted.
#[derive(Clone)]
pub struct Options {
    /// Where blocks go when a call does not say.
    pub placement: Placement,
    /// The machine, for distances and for the node of a CPU.
    pub topology: Option<Topology>,
    /// Parts of each region that allocate apart from each other: one per CPU.
    pub parts: usize,
    /// The time, ns since 1970.
    pub clock: Arc<dyn Fn() -> i64 + Send + Sync>,
    /// A kernel may know inodes from a server that was killed: see [`Volume::take_forgotten`].
    pub inherits: bool,
}

impl Default for Options {
    fn default() -> Self {
        // The clock of the kernel's own file systems: it moves with the tick, and reading it costs
        // a quarter.
        let clock = || {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
            now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
        };
        let parts = std::thread::available_parallelism().map_or(1, usize::from);
        Self { placement: Placement::Local, topology: None, parts, clock: Arc::new(clock), inherits: false }
    }
}

/// Inodes that were read or made since the mount, and not forgotten.
type Shard = RwLock<Table>;

#[derive(Default)]
struct Table {
    /// Those in memory.
    known: FxHashMap<Ino, Arc<Inode>>,
    /// Those that a kernel remembers, and that are on the medium only.
    away: FxHashMap<Ino, Away>,
}

/// A mounted volume. All methods may be called from any number of threads.
pub struct Volume {
    pub(crate) store: Store,
    pub(crate) allocator: Allocator,
    pub(crate) regions: Regions,
    pub(crate) counters: Counters,
    pub(crate) journals: Vec<Mutex<Block>>,
    pub(crate) slots: Vec<Mutex<Slots>>,
    pub(crate) options: Options,
    /// Held while a directory moves to another one: nothing else can make a circle.
    pub(crate) moving_directories: Mutex<()>,
    pub(crate) room: Room,
    inodes: Vec<Apart<Shard>>,
    unread: Unread,
    pub(crate) memory: Memory,
    pub(crate) quotas: Quotas,
    /// A kernel remembers inodes: those that it does not are to be let go. Without one, whoever has
    /// the volume uses them by number.
    pub(crate) kernel: AtomicBool,
    pub(crate) inherited: Inherited,
    /// Inodes to let go that somebody was at when it was tried.
    busy: Mutex<BTreeSet<Ino>>,
    /// Inodes without a name that are not open, and that a kernel remembers.
    pub(crate) leaving: AtomicU64,
    random: AtomicU64,
    damage: Vec<Damage>,
    /// The name of something damaged was removed: the next mount has orphans to free.
    pub(crate) orphaned: AtomicBool,
    /// Damaged inodes that a kernel knows, and what it takes them for.
    pub(crate) stubs: Mutex<FxHashMap<Ino, Kind>>,
    /// See [`Volume::take_doubtful`].
    doubtful: AtomicBool,
    /// See [`Volume::released`].
    released: AtomicU64,
}

/// Free slots of a region's inode table.
#[derive(Debug, Default)]
pub struct Slots {
    /// Slots that were used and are free.
    pub free: Vec<u32>,
    /// All from here on are free.
    pub next: u32,
    /// Size of the table.
    pub end: u32,
}

impl Slots {
    fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let slot = (self.next < self.end).then_some(self.next)?;
            self.next += 1;
            Some(slot)
        })
    }

    /// How many are free.
    pub fn count(&self) -> u64 {
        self.free.len() as u64 + u64::from(self.end - self.next)
    }
}

impl Volume {
    /// Puts together what `mount` found.
    pub(crate) fn new(
        store: Store,
        allocator: Allocator,
        slots: Vec<Slots>,
        found: Recovered,
        options: Options,
    ) -> Self {
        let superblock = store.superblock();
        let count = superblock.regions.len();
        let is = |d: &Damage, block: &Block| matches!(d, Damage::Journal { block: b, .. } if b == block);
        let damaged = |block: &Block| found.damage.iter().chain(&found.unused).any(|d| is(d, block));
        let all = (0..count).flat_map(|r| superblock.journals_of(r));
        let mut journals: Vec<_> = all.filter(|block| !damaged(block)).collect();
        journals.sort_by_key(|block| (block.index(), block.region()));
        Self {
            regions: Regions::new(superblock, options.topology.as_ref()),
            counters: Counters::new(count),
            journals: journals.into_iter().map(Mutex::new).collect(),
            slots: slots.into_iter().map(Mutex::new).collect(),
            inodes: (0..SHARDS).map(|_| Apart::default()).collect(),
            random: AtomicU64::new(superblock.created as u64),
            moving_directories: Mutex::new(()),
            room: Room::default(),
            leaving: AtomicU64::new(0),
            kernel: AtomicBool::new(false),
            inherited: Inherited::default(),
            busy: Mutex::default(),
            unread: Unread::new(
                found.checkpoint,
                superblock.regions.iter().map(|region| region.inodes),
                SHARDS,
                found.damaged,
            ),
            damage: found.damage,
            orphaned: AtomicBool::new(found.stuck),
            stubs: Mutex::default(),
            doubtful: AtomicBool::default(),
            memory: Memory::default(),
            quotas: Quotas::default(),
            released: AtomicU64::new(0),
            store,
            allocator,
            options,
        }
    }

    /// An inode that is in use.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        let inode = self.inode_partly(ino)?;
        self.read_all(&inode)?;
        Ok(inode)
    }

    /// Reads all pieces of an inode's extents, in steps: others use what is read.
    pub(crate) fn read_all(&self, inode: &Inode) -> Result<()> {
        while inode.partly.load(Ordering::Acquire) {
            self.read_extents(inode, &mut inode.write(), (0, u64::MAX), PIECES)?;
        }
        Ok(())
    }

    /// Reads pieces of an inode's extents in front of a use of file blocks, as many as there are or
    /// `most`.
    pub(crate) fn read_extents(&self, inode: &Inode, state: &mut State, blocks: (u64, u64), most: usize) -> Result<()> {
        let mut read = Ok(true);
        if !state.extents.is_whole() {
            read = scan::read_pieces(&self.store, inode.whose(), &mut state.extents, blocks, most);
            self.settle(inode, state); // what was read takes memory, also before an error
        }
        inode.partly.store(!state.extents.is_whole(), Ordering::Release);
        read.map(drop)
    }

    /// An inode that is in use, for what asks for none of its extents, or reads them first.
    pub(crate) fn inode_partly(&self, ino: Ino) -> Result<Arc<Inode>> {
        if let Some(known) = self.known_inode(ino) {
            return Ok(known);
        }
        let (known, add) = (|| self.known_inode(ino), |inode| self.add_inode(inode));
        self.unread.read(&self.store, ino, shard(ino), known, add)?.ok_or(Error::NotFound)
    }

    /// Forgets what memory has of an inode that has a name, and that nobody has open or remembers:
    /// the next use reads it again. Where somebody is at it right now, that is tried
    /// [again](Volume::let_go_again). It stays where the medium may say something else
    /// ([`Volume::in_doubt`]).
    pub(crate) fn let_go(&self, inode: Arc<Inode>) {
        let ino = inode.ino;
        if self.try_let_go(inode, false) {
            sync::lock(&self.busy).insert(ino);
        }
    }

    /// Tries to let go of up to `most` inodes that somebody was at before. Returns how many are
    /// left.
    pub fn let_go_again(&self, most: usize) -> usize {
        let tried: Vec<Ino> = {
            let mut busy = sync::lock(&self.busy);
            let tried = iter::from_fn(|| busy.pop_first()).take(most).collect();
            if busy.is_empty() && Vec::is_empty(&tried) {
                return 0; // as a rule
            }
            tried
        };
        let stays = |ino: &Ino| self.known_inode(*ino).is_some_and(|inode| self.try_let_go(inode, false));
        let still: Vec<Ino> = tried.into_iter().filter(stays).collect();
        let mut busy = sync::lock(&self.busy);
        busy.extend(still);
        busy.len()
    }

    /// Forgets an inode, unless it is to stay in memory; `away`: also one that a kernel remembers.
    /// True: it is to go, but stays for now, as somebody is at it.
    fn try_let_go(&self, inode: Arc<Inode>, away: bool) -> bool {
        let Some(known) = self.inodes.get(shard(inode.ino)).filter(|_| !self.in_doubt()) else { return false };
        // That another inode of its part of the table is being read says nothing of this one.
        let (mut busy, mut unsorted) = (true, false);
        self.unread.let_go(inode.ino, shard(inode.ino), || {
            let mut table = known.write().unwrap_or_else(PoisonError::into_inner);
            let known = table.known.get(&inode.ino).is_some_and(|known| Arc::ptr_eq(known, &inode));
            // This one and that of the table: nobody else has it, nor can get it. Only then what it
            // says of its use stands still.
            let alone = known && Arc::strong_count(&inode) == 2;
            fence(Ordering::Acquire);
            let (remembered, opens) = (inode.remembered.load(Ordering::Acquire), inode.opens.load(Ordering::Acquire));
            busy = known && (away || remembered == 0);
            let unused = alone && busy && (away || opens == 0);
            let state = unused.then(|| inode.read())?;
            busy = false;
            if state.gone || state.unnamed.is_some() {
                return None; // it goes with its last use
            }
            let left = (state.dir.as_ref().map(|dir| dir.parent), Long::of(&state));
            unsorted = state.is_unsorted();
            drop(state);
            self.released.fetch_add(self.memory.leaves(&inode), Ordering::Relaxed);
            table.known.remove(&inode.ino);
            if remembered > 0 || opens > 0 {
                let named_in = inode.named_in.load(Ordering::Relaxed);
                table.away.insert(inode.ino, Away { remembered, opens, named_in });
            }
            shrink(&mut table.known);
            Some(left)
        });
        if unsorted {
            self.room.leave_unsorted(inode.ino);
        }
        busy
    }

    /// From now on inodes in memory are to take so many bytes at most, and those of one owner a
    /// quarter of that: [`Volume::is_over`] says that they take more.
    pub fn bound_memory(&self, bytes: u64) {
        self.memory.set_bound(bytes);
    }

    /// Whether inodes take more memory than they should: [`Volume::shrink`] is due.
    pub fn is_over(&self) -> bool {
        self.memory.is_over()
    }

    /// Bytes that inodes take in memory, about.
    pub fn memory(&self) -> u64 {
        self.memory.all()
    }

    /// Lets go of inodes that nobody is using right now, also of those that a kernel remembers,
    /// where all or those of their owner take more memory than they should: down to three quarters
    /// of that.
    pub fn shrink(&self) {
        if !self.memory.take_over() {
            return;
        }
        // A look has given it names that are on no medium.
        let inodes = self.known_inodes().filter(|inode| inode.ino != Ino::ROOT || !self.is_look());
        inodes.filter(|inode| self.memory.exceeds(inode, 3)).for_each(|inode| _ = self.try_let_go(inode, true));
    }

    /// An inode that a kernel forgets so many times: where it is in memory, it is forgotten there;
    /// else it is forgotten now, which is `None`.
    pub(crate) fn forget_away(&self, ino: Ino, times: u64) -> Result<Option<Arc<Inode>>> {
        if let Some(known) = self.known_inode(ino) {
            return Ok(Some(known));
        }
        let table = self.inodes.get(shard(ino)).ok_or(Error::NotFound)?;
        let mut table = table.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = table.known.get(&ino) {
            return Ok(Some(Arc::clone(known)));
        }
        let away = table.away.get_mut(&ino).ok_or(Error::NotFound)?;
        let left = away.remembered.checked_sub(times);
        away.remembered = left.ok_or(Error::Invalid("the inode is not remembered so many times"))?;
        if away.remembered == 0 && away.opens == 0 {
            table.away.remove(&ino);
            shrink(&mut table.away);
        }
        Ok(None)
    }

    /// An inode that is in memory, or was let go of while a kernel remembers it.
    pub(crate) fn brought_back(&self, ino: Ino) -> Option<Arc<Inode>> {
        let is_away =
            |table: &Apart<Shard>| table.read().unwrap_or_else(PoisonError::into_inner).away.contains_key(&ino);
        let away = || self.inodes.get(shard(ino)).is_some_and(is_away);
        // Another thread may bring it back between the two looks.
        self.known_inode(ino).or_else(|| if away() { self.inode_partly(ino).ok() } else { self.known_inode(ino) })
    }

    /// Keeps an inode in memory for a use that no kernel asked for. At the end nothing of it stays
    /// that the kernel does not know.
    pub fn visit<V: Deref<Target = Self>>(volume: V, ino: Ino) -> Visit<V> {
        let inode = volume.inode_partly(ino).ok();
        Visit { volume, inode }
    }

    /// How many inodes are in memory, for tests.
    #[doc(hidden)]
    pub fn inodes_in_memory(&self) -> usize {
        let len = |table: &Apart<Shard>| table.read().unwrap_or_else(PoisonError::into_inner).known.len();
        self.inodes.iter().map(len).sum()
    }

    /// Whether a file has no name, and only one who remembers it, such as a migration, knows it.
    pub fn is_abandoned(&self, ino: Ino) -> bool {
        self.known_inode(ino)
            .is_some_and(|inode| inode.remembered.load(Ordering::Acquire) <= 1 && inode.read().unnamed.is_some())
    }

    pub(crate) fn known_inode(&self, ino: Ino) -> Option<Arc<Inode>> {
        let shard = self.inodes.get(shard(ino))?;
        shard.read().unwrap_or_else(PoisonError::into_inner).known.get(&ino).cloned()
    }

    /// The inodes that are in memory.
    pub(crate) fn known_inodes(&self) -> impl Iterator<Item = Arc<Inode>> + '_ {
        self.inodes.iter().flat_map(|shard| {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            shard.known.values().cloned().collect::<Vec<_>>()
        })
    }

    /// The inodes that are not in memory.
    pub(crate) fn unread_inodes(&self) -> Vec<Ino> {
        self.unread.inodes()
    }

    /// Checkpoint for the next mount, when nothing is [open](Self::close_all).
    pub(crate) fn checkpoint(&self) -> Checkpoint {
        let mut rest = self.unread.rest();
        let inodes = &mut rest.inodes;
        inodes.resize(self.slots.len(), Vec::new());
        let mut known = Vec::new();
        for inode in self.known_inodes() {
            let state = inode.read();
            known.push(inode.ino);
            rest.parents.extend(state.dir.as_ref().map(|dir| (inode.ino, dir.parent)));
            rest.long.extend(Long::of(&state).map(|long| (inode.ino, long)));
        }
        for (all, known) in inodes.iter_mut().zip(scan::used_inodes(self.slots.len(), known.iter())) {
            all.resize(all.len().max(known.len()), 0);
            all.iter_mut().zip(known).for_each(|(word, known)| *word |= known);
            all.truncate(all.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1));
        }
        Checkpoint { free: self.allocator.free_runs(), ..rest }
    }

    pub(crate) fn add_inode(&self, inode: Inode) -> Arc<Inode> {
        let inode = Arc::new(inode);
        self.room.changed(&inode, &inode.read());
        let insert = || {
            let Some(table) = self.inodes.get(shard(inode.ino)) else { return };
            let mut table = table.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(away) = table.away.remove(&inode.ino) {
                inode.remembered.fetch_add(away.remembered, Ordering::AcqRel);
                inode.opens.fetch_add(away.opens, Ordering::AcqRel);
                inode.named_in.store(away.named_in, Ordering::Relaxed);
            }
            table.known.insert(inode.ino, Arc::clone(&inode));
        };
        account::begin(&self.memory, &self.quotas, &inode, insert);
        inode
    }

    /// The same for an inode that is in use, and was not read as others are.
    pub(crate) fn add_read(&self, inode: Inode) {
        self.unread.was_read(inode.ino);
        self.add_inode(inode);
    }

    /// Notes that the parent of a directory has another number, if that still is its parent.
    pub(crate) fn change_parent(&self, ino: Ino, (from, to): (Ino, Ino)) {
        let known = self.unread.change_parent(ino, shard(ino), (from, to), || self.known_inode(ino));
        if let Some(inode) = known {
            inode.write().dir.iter_mut().filter(|dir| dir.parent == from).for_each(|dir| dir.parent = to);
        }
    }

    pub(crate) fn forget_inode(&self, ino: Ino) {
        if let Some(shard) = self.inodes.get(shard(ino)) {
            let gone = shard.write().unwrap_or_else(PoisonError::into_inner).known.remove(&ino);
            let bytes = gone.map_or(0, |inode| self.memory.leaves(&inode));
            self.released.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Bytes of memory that inodes had which are in memory no more, about.
    pub fn released(&self) -> u64 {
        self.released.load(Ordering::Relaxed)
    }

    /// A free slot in the inode table of the first of `regions` that has one and is not avoided.
    pub(crate) fn take_slot(&self, regions: &[usize]) -> Result<Ino> {
        let regions = regions.iter().filter(|region| !self.allocator.avoids(**region));
        let take = |&region: &usize| Some(Ino::new(region, sync::lock(self.slots.get(region)?).take()?));
        { regions }.find_map(take).ok_or(Error::Lacks(u64::MAX))
    }

    pub(crate) fn give_slot(&self, ino: Ino) {
        if let Some(slots) = self.slots.get(ino.region()) {
            sync::lock(slots).free.push(ino.slot());
        }
    }

    /// Whether its memory has failed, so that it only reads until it is mounted again.
    pub fn in_doubt(&self) -> bool {
        self.store.in_doubt()
    }

    /// How many blocks have failed since the mount: an access to one was an error, and nobody gets
    /// it again before the next mount.
    pub fn failed_count(&self) -> usize {
        self.store.failed().count()
    }

    pub fn has_data_checksums(&self) -> bool {
        self.store.superblock().has_checksums()
    }

    /// Whether metadata is kept in two regions each.
    pub fn has_logs_twice(&self) -> bool {
        self.store.superblock().has_twins()
    }

    /// Whether it is only looked at: every change gives [`Error::ReadOnly`].
    pub fn is_look(&self) -> bool {
        self.store.is_frozen()
    }

    /// After a repair.
    pub(crate) fn forget_damage(&mut self) {
        self.damage.clear();
    }

    /// What recovery found damaged and went past: what is damaged gives [`Error::Damaged`] when it
    /// is used.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// From here on a read also gives what may be lost or older than it should be, as entries of a
    /// file's log cannot be read; otherwise it is an error (EIO).
    pub fn take_doubtful(&self) {
        self.doubtful.store(true, Ordering::Relaxed);
    }

    pub(crate) fn takes_doubtful(&self) -> bool {
        self.doubtful.load(Ordering::Relaxed)
    }

    /// Bytes of a file that may be lost or older than it should be: from and to.
    pub fn doubtful(&self, ino: Ino) -> Result<Vec<(u64, u64)>> {
        let inode = self.inode(ino)?;
        let state = inode.read();
        Ok(state.gaps.as_ref().map_or_else(Vec::new, |gaps| gaps.ranges(state.size)))
    }

    /// Counts what an inode takes, after a change of it.
    pub(crate) fn settle(&self, inode: &Inode, state: &State) {
        account::settle(&self.memory, &self.quotas, inode, state);
    }

    /// The time of the volume's clock, ns since 1970.
    pub fn now(&self) -> i64 {
        (self.options.clock)()
    }

    /// The CPU of the calling thread, as an index of what is kept per CPU.
    pub(crate) fn cpu(&self) -> usize {
        crate::caller::cpu()
    }

    /// A number that nobody needs to be good.
    pub(crate) fn random(&self) -> u64 {
        let step = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        (step ^ step >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
    }

    /// Where pages of a log come from: the first of these regions that has one.
    pub(crate) fn log_pages<'a>(&'a self, regions: &'a [usize], purpose: Purpose) -> Pages<'a, 'a> {
        Pages { allocator: &self.allocator, regions, part: self.cpu(), purpose }
    }
}

/// A table does not become smaller by itself.
fn shrink<T>(table: &mut FxHashMap<Ino, T>) {
    let len = table.len();
    if table.capacity() > SPARE && table.capacity() / 4 > len {
        table.shrink_to(2 * len);
    }
}

/// A [visit](Volume::visit) of an inode, which may be one that cannot be read.
pub struct Visit<V: Deref<Target = Volume>> {
    volume: V,
    inode: Option<Arc<Inode>>,
}

impl<V: Deref<Target = Volume>> Drop for Visit<V> {
    fn drop(&mut self) {
        if let Some(inode) = self.inode.take().filter(|_| self.volume.kernel.load(Ordering::Relaxed)) {
            self.volume.let_go(inode);
        }
    }
}

pub(crate) fn shard(ino: Ino) -> usize {
    (ino.slot() as usize + ino.region()) % SHARDS
}

/// Locks what `sync` leaves to the standard library, also after a panic elsewhere.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Inodes that one operation changes, locked in the order of their numbers: that is why operations
/// never deadlock.
pub(crate) struct Locked<'a>(pub(crate) SmallVec<[(&'a Inode, RwLockWriteGuard<'a, State>); 2]>);

impl<'a> Locked<'a> {
    /// Locks inodes; one that is named twice is locked once.
    pub(crate) fn new(inodes: &[&'a Inode]) -> Self {
        if let [only] = inodes {
            return Self(smallvec![(*only, only.write())]);
        }
        let mut sorted: SmallVec<[&Inode; 4]> = SmallVec::from_slice(inodes);
        sorted.sort_by_key(|inode| inode.ino);
        sorted.dedup_by_key(|inode| inode.ino);
        Self(sorted.into_iter().map(|inode| (inode, inode.write())).collect())
    }

    pub(crate) fn get(&self, ino: Ino) -> Result<&State> {
        self.0.iter().find(|(inode, _)| inode.ino == ino).map(|(_, state)| &**state).ok_or(Error::NotFound)
    }

    /// One of them, and its state for changing what is not in the log.
    pub(crate) fn get_both(&mut self, ino: Ino) -> Result<(&'a Inode, &mut State)> {
        let found = self.0.iter_mut().find(|(inode, _)| inode.ino == ino);
        found.map(|(inode, state)| (*inode, &mut **state)).ok_or(Error::NotFound)
    }

    /// The state of one of them, for changing what is not in the log.
    pub(crate) fn get_mut(&mut self, ino: Ino) -> Result<&mut State> {
        self.get_both(ino).map(|(_, state)| state)
    }
}
