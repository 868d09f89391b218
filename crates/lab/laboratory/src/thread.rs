//! What a load sees: threads that read, write and compute, and files.
//!
//! **Approach.** A load is a function of a [`Thread`] and whatever files it likes. Each call takes
//! a core, the software of the file system ([`memory_model::Software`]), the locks and the memory
//! that it takes there; the code below it is the shipped file system's.
//!
//! The software of a call that makes or removes a name is under the lock of the directory, as
//! NOVA's is. That of other calls is over before the volume takes a lock. A read of a file that
//! others read at this moment finds [`CACHE_SHARED`](memory_model::figures::CACHE_SHARED) of it in
//! the last-level cache, times the share of these others that are on its node (NThread III-D).
//!
//! Threads belong to a [`Program`]: it has a process, and where the paper gives each program a file
//! system of its own, the node that this one is on. A file that is open stays until it is closed,
//! whoever removes its name.
//!
//! **Limits.** Paths are not walked: a file is its number, as for a kernel that has it in its
//! cache. The kernel's locks of a mount are not taken: they changed no effect of NThread's Fig.
//! 6(a) by more than 0.01.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use fs::{Ino, NewFile, Placement, Volume};
use memory_model::figures::CACHE_SHARED;
use memory_model::{Call, Software};
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::machine::{Machine, ThreadId};
use crate::medium::Modelled;

/// What all threads have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Operations, as the load counts them.
    pub operations: u64,
    /// Calls of the file system.
    pub calls: u64,
    /// Bytes read by calls.
    pub read: u64,
    /// Bytes written by calls.
    pub written: u64,
}

/// What the threads of a program have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    pub process: u32,
    /// The node of its file system, where it has one of its own.
    pub device: Option<u32>,
    /// Where its threads start; else the kernel chooses.
    pub on: Option<usize>,
    /// They stay there.
    pub bound: bool,
    /// Its operations count.
    pub counts: bool,
}

impl Program {
    /// One whose threads start where the kernel puts them.
    pub const fn new(process: u32) -> Self {
        Self { process, device: None, on: None, bound: false, counts: true }
    }
}

/// The process of the first program: any number.
pub const PROCESS: u32 = 1000;

/// A volume on a machine, and what its threads have done.
pub struct Lab {
    pub machine: Arc<Machine>,
    pub volume: Arc<Volume>,
    /// How it places what is written.
    pub placement: Placement,
    /// What its calls cost.
    pub software: Software,
    /// How many times as short as the paper's all times are.
    pub factor: f64,
    /// When the run ends, in nanoseconds.
    pub end_ns: u64,
    /// The program whose threads start now.
    pub program: Cell<Program>,
    programs: RefCell<FxHashMap<ThreadId, Program>>,
    seed: u64,
    medium: Arc<Modelled>,
    done: RefCell<Done>,
    /// A write was refused for want of room: what is counted is no work.
    pub(crate) full: Cell<bool>,
    readers: RefCell<FxHashMap<Ino, SmallVec<[usize; 8]>>>,
}

/// A file: its number, and which life of that number it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File(pub Ino, pub u32);

impl From<fs::Stat> for File {
    fn from(stat: fs::Stat) -> Self {
        Self(stat.ino, stat.generation)
    }
}

impl Lab {
    /// A new volume with so many blocks on each node of the machine.
    ///
    /// # Errors
    ///
    /// There is no memory for it.
    pub fn new(machine: Arc<Machine>, blocks: u64, placement: Placement, seed: u64) -> fs::Result<Self> {
        let nodes: Vec<Option<u32>> = machine.topology().nodes.iter().map(|node| Some(node.id.0)).collect();
        let files = nodes.iter().map(|_| region(blocks)).collect::<Result<Vec<_>, _>>()?;
        let mapped = || {
            let of = |file: &std::fs::File| Ok(fs::medium::RegionFile { file: file.try_clone()?, bind: None });
            fs::medium::Mapped::new(&files.iter().map(of).collect::<fs::Result<Vec<_>>>()?)
        };
        let layout = fs::Layout { volume: *b"in virtual time.", nodes, ..fs::Layout::default() };
        fs::mkfs(Box::new(mapped()?), &layout)?;
        let medium = Arc::new(Modelled::new(mapped()?, Arc::clone(&machine)));
        let parts = machine.topology().cpus().len();
        // Any day: the same one each time.
        let clock = Arc::new(|| 1_700_000_000_000_000_000 + clock::now_ns() as i64);
        let topology = Some(machine.topology().clone());
        let options = fs::Options { placement, topology, parts, clock, ..fs::Options::default() };
        let volume = Arc::new(Volume::mount(Box::new(Arc::clone(&medium)), options)?);
        volume.watch_files();
        Ok(Self {
            machine,
            volume,
            placement,
            software: Software::NOVA,
            factor: 1.0,
            end_ns: 0,
            program: Cell::new(Program::new(PROCESS)),
            programs: RefCell::default(),
            seed,
            medium,
            done: RefCell::default(),
            full: Cell::default(),
            readers: RefCell::default(),
        })
    }

    /// Makes a file of so many bytes, in no time.
    ///
    /// # Errors
    ///
    /// The volume is full, or there is a file of this name.
    pub fn fill(&self, dir: Ino, name: &str, bytes: u64, placement: Placement) -> fs::Result<File> {
        let stat = self.volume.create(dir, name.as_bytes(), NewFile { mode: 0o644, ..NewFile::default() })?;
        let piece = vec![1; 1 << 20];
        for at in (0..bytes).step_by(piece.len()) {
            let part = piece.get(..(bytes - at).min(piece.len() as u64) as usize).unwrap_or(&piece);
            self.volume.write_to(stat.ino, at, part, placement)?;
        }
        Ok(stat.into())
    }

    /// Makes a directory, in no time.
    ///
    /// # Errors
    ///
    /// The volume is full, or there is one of this name.
    pub fn directory(&self, dir: Ino, name: &str) -> fs::Result<Ino> {
        let new = NewFile { mode: DIRECTORY | 0o755, ..NewFile::default() };
        Ok(self.volume.create(dir, name.as_bytes(), new)?.ino)
    }

    /// From now on accesses take their time, and bytes count.
    pub fn start(&self) {
        self.volume.take_uses();
        self.medium.start();
    }

    pub fn spawn(self: &Rc<Self>, work: impl FnOnce(&mut Thread) + 'static) {
        let (lab, program) = (Rc::clone(self), self.program.get());
        let thread = self.machine.spawn(program.on, move |index| {
            let seed = lab.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index as u64);
            let rng = ChaCha12Rng::seed_from_u64(seed);
            work(&mut Thread { lab, program, index, rng, buffer: Vec::new() });
        });
        if let Some(on) = program.on.filter(|_| program.bound) {
            self.machine.pin(thread, on);
        }
        self.programs.borrow_mut().insert(thread, program);
    }

    pub fn process_of(&self, thread: ThreadId) -> u32 {
        self.programs.borrow().get(&thread).map_or(PROCESS, |program| program.process)
    }

    pub fn done(&self) -> Done {
        *self.done.borrow()
    }
}

fn region(blocks: u64) -> std::io::Result<std::fs::File> {
    let file = std::fs::File::from(rustix::fs::memfd_create("homenode-lab", rustix::fs::MemfdFlags::CLOEXEC)?);
    file.set_len(blocks * 4096)?;
    Ok(file)
}

/// The number by which the file system and snapshots know a thread.
pub fn tid(thread: ThreadId) -> u32 {
    thread as u32 + 1
}

/// `S_IFDIR`.
const DIRECTORY: u32 = 0o040_000;

pub struct Thread {
    lab: Rc<Lab>,
    program: Program,
    index: ThreadId,
    rng: ChaCha12Rng,
    buffer: Vec<u8>,
}

impl Thread {
    /// Seconds since the start.
    pub fn now(&self) -> f64 {
        clock::now_ns() as f64 * 1e-9
    }

    pub fn is_over(&self) -> bool {
        clock::now_ns() >= self.lab.end_ns
    }

    pub fn random(&mut self, n: u64) -> u64 {
        self.rng.random_range(0..n.max(1))
    }

    /// A number from 0 to 1.
    pub fn unit(&mut self) -> f64 {
        self.rng.random()
    }

    /// Computes for so many seconds, on a core.
    pub fn cpu(&mut self, seconds: f64) {
        self.lab.machine.compute(self.index, (seconds * 1e9).round() as u64);
        self.lab.machine.end_call(self.index);
    }

    /// The same, with a lock of the program that should not be kept longer than that.
    pub fn hold(&mut self, seconds: f64) {
        self.lab.machine.compute(self.index, (seconds * 1e9).round() as u64);
    }

    pub fn sleep(&mut self, seconds: f64) {
        self.lab.machine.sleep(self.index, (seconds * 1e9).round() as u64);
    }

    pub fn count(&mut self, operations: u64) {
        self.lab.done.borrow_mut().operations += if self.program.counts { operations } else { 0 };
    }

    pub fn node(&self) -> usize {
        self.lab.machine.node_of(self.index)
    }

    /// Reads so many bytes; returns how many there were.
    pub fn read(&mut self, file: File, at: u64, len: usize) -> usize {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(buffer.len().max(len), 0);
        let read = self.call(Call::Read, |thread, volume| {
            thread.sharing(file.0, || volume.read(file.0, at, buffer.get_mut(..len).unwrap_or_default()))
        });
        self.buffer = buffer;
        let read = read.unwrap_or_default();
        self.lab.done.borrow_mut().read += read as u64;
        read
    }

    /// Writes so many bytes; whether there was room.
    pub fn write(&mut self, file: File, at: u64, len: usize) -> bool {
        self.store(len, |volume, data| volume.write(file.0, at, data))
    }

    /// Writes so many bytes at the end; whether there was room.
    pub fn append(&mut self, file: File, len: usize) -> bool {
        self.store(len, |volume, data| volume.append(file.0, data).map(drop))
    }

    fn store(&mut self, len: usize, write: impl FnOnce(&Volume, &[u8]) -> fs::Result<()>) -> bool {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(buffer.len().max(len), 7);
        let written = self.call(Call::Write, |_, volume| write(volume, buffer.get(..len).unwrap_or_default()));
        self.buffer = buffer;
        match &written {
            Ok(()) => self.lab.done.borrow_mut().written += len as u64,
            Err(fs::Error::NoSpace) => self.lab.full.set(true),
            Err(_) => {}
        }
        written.is_ok()
    }

    /// Opens a file; whether there is one still. The time of closing it is in that, too.
    pub fn open(&mut self, file: File) -> bool {
        self.call(Call::Open, |_, volume| {
            if volume.open(file.0).is_err() {
                return false;
            }
            let same = volume.stat(file.0).is_ok_and(|stat| stat.generation == file.1);
            if !same {
                _ = volume.close(file.0);
            }
            same
        })
    }

    pub fn close(&mut self, file: File) {
        self.call_in(None, |_, volume| _ = volume.close(file.0));
    }

    pub fn stat(&mut self) {
        self.call(Call::Other, |_, _| ());
    }

    /// Bytes of a file, without a call.
    pub fn size(&self, file: File) -> u64 {
        self.lab.volume.stat(file.0).map_or(0, |stat| stat.size)
    }

    /// Makes a file and opens it; `None` if there is one of this name.
    pub fn create(&mut self, dir: Ino, name: &str) -> Option<File> {
        let new = NewFile { mode: 0o644, ..NewFile::default() };
        let made: fs::Result<_> = self.call(Call::Name, |_, volume| {
            let stat = volume.create(dir, name.as_bytes(), new)?;
            volume.open(stat.ino)?;
            Ok(stat)
        });
        made.ok().map(File::from)
    }

    /// Removes a file; whether there was one.
    pub fn remove(&mut self, dir: Ino, name: &str) -> bool {
        self.call(Call::Name, |_, volume| volume.unlink(dir, name.as_bytes())).is_ok()
    }

    /// Cuts a file off; whether there was one.
    pub fn truncate(&mut self, file: File, size: u64) -> bool {
        self.call(Call::Write, |_, volume| volume.truncate(file.0, size)).is_ok()
    }

    /// A call of the file system, on a core.
    fn call<T>(&mut self, call: Call, work: impl FnOnce(&mut Self, &Volume) -> T) -> T {
        self.call_in(Some(call), work)
    }

    /// The same; without software where that was charged before.
    fn call_in<T>(&mut self, call: Option<Call>, work: impl FnOnce(&mut Self, &Volume) -> T) -> T {
        let machine = Arc::clone(&self.lab.machine);
        machine.take_core(self.index);
        let software = call.map_or(0, |call| (self.lab.software.of(call) * 1e9).round() as u64);
        match call {
            Some(Call::Name) => machine.owe(self.index, software),
            Some(_) => machine.compute(self.index, software),
            None => {}
        }
        let volume = Arc::clone(&self.lab.volume);
        let here = || machine.topology().nodes.get(machine.node_of(self.index)).map_or(0, |node| node.id.0);
        let node = self.program.device.unwrap_or_else(here);
        let index = self.index;
        let done = fs::as_thread(tid(index), || fs::on_node(node, || work(self, &volume)));
        machine.end_call(index);
        self.lab.done.borrow_mut().calls += u64::from(call.is_some());
        done
    }

    /// Reads a file that others may read at this moment.
    fn sharing<T>(&self, ino: Ino, read: impl FnOnce() -> T) -> T {
        let (machine, own) = (&self.lab.machine, self.node());
        let cached = {
            let mut all = self.lab.readers.borrow_mut();
            let readers = all.entry(ino).or_default();
            let here = readers.iter().filter(|node| **node == own).count();
            let of_all = readers.len();
            readers.push(own);
            if here > 0 { CACHE_SHARED * here as f64 / of_all as f64 } else { 0.0 }
        };
        machine.cached(self.index, cached);
        let done = read();
        machine.cached(self.index, 0.0);
        let mut all = self.lab.readers.borrow_mut();
        if let Some(readers) = all.get_mut(&ino) {
            if let Some(at) = readers.iter().position(|node| *node == own) {
                readers.swap_remove(at);
            }
            if readers.is_empty() {
                all.remove(&ino);
            }
        }
        done
    }
}
