//! Programs on a [`Host`]: processes whose threads read, write, load and store.
//!
//! **Approach.** A program is data: what its threads use, in which shares, and how. `simpleread`
//! (thesis listing 5.1) is one that reads one file once through; fio with libpmem is one whose
//! file is persistent. A thread of one's own is a function of a [`Thread`].
//!
//! A read of a file takes [`CALL_S`]; from the ARC twice that and [`ARC_COPY_S`] for each byte.
//! Persistent memory is mapped: a load or store takes [`MAPPED_CALL_S`] of the program's own.

use std::rc::Rc;

use memory_model::Direction;
use memory_model::figures::{ARC_COPY_S, CALL_S, FILL_S, MAPPED_CALL_S};
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};
use serde::Deserialize;

use crate::host::{Host, Kind, ObjectId};
use crate::machine::ThreadId;

/// Bytes of a page where the kernel counts single ones, as of mappings.
pub const PAGE: u64 = 4096;
/// Bytes of a page where nobody looks closer: a record of ZFS.
pub const RECORD: u64 = 128 << 10;

/// Programs, and the files that they use.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Programs {
    /// Files, by number.
    pub file: Vec<FileSpec>,
    pub program: Vec<Program>,
    /// Seconds that a byte takes from the disk.
    #[serde(default)]
    pub disk_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSpec {
    /// Its length, in the paper.
    pub bytes: f64,
    #[serde(default)]
    pub cache: Kind,
    /// The node that has it from the beginning; none: where it is first touched.
    #[serde(default)]
    pub node: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    pub name: String,
    #[serde(default = "one")]
    pub threads: u32,
    /// The node that they start on; none: where the kernel puts them.
    #[serde(default)]
    pub on: Option<usize>,
    #[serde(default)]
    pub bound: bool,
    /// Seconds from its start to its first access.
    #[serde(default)]
    pub start_s: f64,
    /// Bytes of memory of its own, which it fills first, byte by byte.
    #[serde(default)]
    pub own_bytes: f64,
    /// Bytes of a call.
    pub block: u64,
    /// Share of calls that read.
    #[serde(default = "whole")]
    pub read: f64,
    /// Block after block, or any block next.
    #[serde(default)]
    pub random: bool,
    /// How often a thread reads its files before it ends; none: until the run is over.
    #[serde(default)]
    pub passes: Option<f64>,
    /// Seconds of its own for each call, on a core, and asleep.
    #[serde(default)]
    pub cpu_s: f64,
    #[serde(default)]
    pub sleep_s: f64,
    /// Files, each with its share of the calls.
    pub uses: Vec<Share>,
}

/// A file's share of a program's calls.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    pub file: usize,
    #[serde(default = "whole")]
    pub share: f64,
    /// Any block next, whatever the program does elsewhere.
    #[serde(default)]
    pub random: bool,
}

fn one() -> u32 {
    1
}

fn whole() -> f64 {
    1.0
}

/// The number of a node, with what is allowed on a machine of so many.
pub(crate) fn on_machine(what: &'static str, node: Option<usize>, nodes: u32) -> (&'static str, f64, f64, f64) {
    (what, node.unwrap_or_default() as f64, 0.0, f64::from(nodes) - 1.0)
}

impl Programs {
    /// Bytes of its files and of its programs.
    pub fn bytes(&self) -> f64 {
        let own = self.program.iter().map(|program| program.own_bytes);
        self.file.iter().map(|file| file.bytes).chain(own).sum()
    }

    /// Its numbers, each with what is allowed on a machine of so many nodes.
    pub fn numbers(&self, nodes: u32) -> impl Iterator<Item = (&'static str, f64, f64, f64)> + '_ {
        let node = move |what, node| on_machine(what, node, nodes);
        let bytes = |file: &FileSpec| ("file.bytes", file.bytes, 1.0, 1e15);
        let files = self.file.iter().flat_map(move |file| [bytes(file), node("file.node", file.node)]);
        let programs = self.program.iter().flat_map(move |program| {
            let uses = program.uses.iter().flat_map(|used| {
                [
                    ("uses.file", used.file as f64, 0.0, self.file.len() as f64 - 1.0),
                    ("uses.share", used.share, f64::MIN_POSITIVE, 1.0),
                ]
            });
            let numbers = [
                ("threads", f64::from(program.threads), 1.0, 10_000.0),
                node("program.on", program.on),
                ("start_s", program.start_s, 0.0, 3600.0),
                ("own_bytes", program.own_bytes, 0.0, 1e15),
                ("block", program.block as f64, 1.0, (1_u64 << 30) as f64),
                ("read", program.read, 0.0, 1.0),
                ("passes", program.passes.unwrap_or(1.0), f64::MIN_POSITIVE, 1e9),
                ("cpu_s", program.cpu_s, 0.0, 3600.0),
                ("sleep_s", program.sleep_s, 0.0, 3600.0),
                ("uses", program.uses.len() as f64, 1.0, 1000.0),
            ];
            numbers.into_iter().chain(uses)
        });
        files.chain(programs)
    }

    /// Puts the files where they are and starts the programs; all bytes are `less` times less.
    pub fn start(&self, host: &Rc<Host>, less: f64) {
        let pages = |file: &FileSpec| if file.cache == Kind::Persistent { PAGE } else { RECORD };
        let files: Vec<ObjectId> = self
            .file
            .iter()
            .map(|file| {
                let bytes = (file.bytes / less).max(1.0) as u64;
                let mut memory = host.memory.borrow_mut();
                let object = memory.add(file.cache, bytes, pages(file), file.node.unwrap_or_default());
                let there = file.node.filter(|_| file.cache != Kind::Persistent);
                for page in there.map_or(0..0, |_| 0..bytes.div_ceil(RECORD) as usize) {
                    memory.touch(object, page, file.node.unwrap_or_default());
                }
                object
            })
            .collect();
        for program in &self.program {
            program.start(host, &files, less);
        }
    }
}

impl Program {
    fn start(&self, host: &Rc<Host>, files: &[ObjectId], less: f64) {
        let own_bytes = (self.own_bytes / less) as u64;
        let own = (own_bytes > 0).then(|| host.memory.borrow_mut().add(Kind::Own, own_bytes, RECORD, 0));
        let uses: Vec<(ObjectId, Share)> =
            self.uses.iter().filter_map(|used| Some((*files.get(used.file)?, *used))).collect();
        let mapped = |object: &ObjectId| {
            let memory = host.memory.borrow();
            memory.object(*object).is_some_and(|object| object.kind == Kind::Persistent)
        };
        let process = host.start(own, uses.iter().map(|(object, _)| *object).filter(mapped).collect());
        for number in 0..self.threads {
            let (program, uses) = (self.clone(), uses.clone());
            let on = self.on.or(host.kernel.start);
            let thread = Thread::spawn(host, process, on, move |t| program.run(t, &uses, number == 0));
            if let Some(on) = on.filter(|_| self.bound) {
                host.machine.pin(thread, on);
            }
        }
    }

    fn run(&self, t: &mut Thread, uses: &[(ObjectId, Share)], first: bool) {
        if first {
            t.cpu(self.start_s / t.host.factor);
            t.fill();
        }
        let sizes: Vec<u64> = uses.iter().map(|(object, _)| t.size(*object)).collect();
        let mut next = vec![0_u64; uses.len()];
        let mut left = self.passes.map(|passes| passes * sizes.iter().sum::<u64>() as f64);
        let shares: f64 = uses.iter().map(|(_, used)| used.share).sum();
        while !t.is_over() && left.is_none_or(|left| left > 0.0) {
            let mut pick = if uses.len() > 1 { t.unit() * shares } else { 0.0 };
            let last = uses.len().saturating_sub(1);
            let which = uses.iter().position(|(_, used)| {
                pick -= used.share;
                pick < 0.0
            });
            let which = which.unwrap_or(last);
            let (Some((object, used)), Some(size), Some(next)) =
                (uses.get(which), sizes.get(which), next.get_mut(which))
            else {
                return;
            };
            let blocks = size.div_ceil(self.block).max(1);
            let block = if self.random || used.random { t.random(blocks) } else { *next % blocks };
            *next = block + 1;
            let at = block * self.block;
            let len = self.block.min(size.saturating_sub(at));
            let reads = self.read >= 1.0 || self.read > 0.0 && t.unit() < self.read;
            match reads {
                true => t.read(*object, at, len),
                false => t.write(*object, at, len),
            }
            t.count(1);
            left = left.map(|left| left - len as f64);
            if self.cpu_s > 0.0 {
                t.cpu(self.cpu_s);
            }
            if self.sleep_s > 0.0 {
                t.sleep(self.sleep_s);
            }
        }
    }
}

/// A thread of a program on a [`Host`].
pub struct Thread {
    host: Rc<Host>,
    process: usize,
    index: ThreadId,
    rng: ChaCha12Rng,
}

impl Thread {
    /// Starts one, where the kernel puts it, or on this node.
    pub fn spawn(
        host: &Rc<Host>,
        process: usize,
        on: Option<usize>,
        work: impl FnOnce(&mut Self) + 'static,
    ) -> ThreadId {
        let own = Rc::clone(host);
        let index = host.machine.spawn(on, move |index| {
            let rng =
                ChaCha12Rng::seed_from_u64(own.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index as u64));
            let mut thread = Self { host: Rc::clone(&own), process, index, rng };
            work(&mut thread);
            own.ended(process);
        });
        if let Some(process) = host.processes.borrow_mut().get_mut(process) {
            process.threads.push(index);
        }
        index
    }

    pub fn is_over(&self) -> bool {
        clock::now_ns() >= self.host.end_ns
    }

    pub fn random(&mut self, n: u64) -> u64 {
        self.rng.random_range(0..n.max(1))
    }

    /// A number from 0 to 1.
    pub fn unit(&mut self) -> f64 {
        self.rng.random()
    }

    pub fn size(&self, object: ObjectId) -> u64 {
        self.host.memory.borrow().object(object).map_or(0, |object| object.bytes)
    }

    /// Computes for so many seconds, on a core.
    pub fn cpu(&mut self, seconds: f64) {
        self.host.machine.compute(self.index, (seconds * 1e9).round() as u64);
        self.host.machine.end_call(self.index);
    }

    pub fn sleep(&mut self, seconds: f64) {
        self.host.machine.sleep(self.index, (seconds * 1e9).round() as u64);
    }

    pub fn count(&mut self, operations: u64) {
        self.host.done.borrow_mut().operations += operations;
    }

    /// Fills the memory of its process, byte by byte.
    pub fn fill(&mut self) {
        let own = self.host.processes.borrow().get(self.process).and_then(|process| process.own);
        let Some(own) = own else { return };
        let bytes = self.size(own);
        for at in (0..bytes).step_by(RECORD as usize) {
            let by = self.host.machine.node_of(self.index);
            self.host.memory.borrow_mut().touch(own, (at / RECORD) as usize, by);
            self.cpu(FILL_S * (bytes - at).min(RECORD) as f64);
        }
    }

    pub fn read(&mut self, object: ObjectId, at: u64, len: u64) {
        self.call(object, at, len, Direction::Read);
    }

    pub fn write(&mut self, object: ObjectId, at: u64, len: u64) {
        self.call(object, at, len, Direction::Write);
    }

    fn call(&mut self, object: ObjectId, at: u64, len: u64, direction: Direction) {
        let host = Rc::clone(&self.host);
        host.stand(self.index, self.process);
        let began = clock::now_ns();
        let kind = host.memory.borrow().object(object).map(|object| object.kind).unwrap_or_default();
        let software = match kind {
            Kind::PageCache => CALL_S,
            Kind::Arc => 2.0 * CALL_S + ARC_COPY_S * len as f64,
            Kind::Persistent => MAPPED_CALL_S,
            Kind::Own => 0.0,
        };
        host.machine.compute(self.index, (software * 1e9).round() as u64);
        host.access(self.index, object, at, len, direction);
        host.machine.end_call(self.index);
        host.note(self.index, object, at, len, direction, kind);
        if direction == Direction::Read {
            host.calls_ns.borrow_mut().push((clock::now_ns() - began).min(u64::from(u32::MAX)) as u32);
        }
    }
}
