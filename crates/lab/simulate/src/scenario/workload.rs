//! The `[[workload]]` tables.

use toml::Spanned;
use topology::NodeId;

use super::ScenarioError;
use super::amount::Amount;
use super::check::Checker;
use super::raw::{RawPlace, RawWorkload};
use crate::constants::Constants;
use crate::filesystem::{FileSystem, Layout};
use crate::machine::Machine;
use crate::workload::filebench::{Filebench, Personality, filebench};
use crate::workload::fio::{Fio, fio};
use crate::workload::rocksdb::{Benchmark, RocksDb, rocksdb};
use crate::workload::simpleread::{SimpleRead, simpleread};
use crate::workload::{Job, Place};
use crate::world::{Launch, Start};

/// Kinds of workload.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Fio,
    Filebench(Personality),
    RocksDb(Benchmark),
    SimpleRead,
}

const BENCHMARKS: [Benchmark; 3] = [Benchmark::FillSeq, Benchmark::ReadRandom, Benchmark::ReadWhileWriting];

impl Kind {
    fn of(name: &str) -> Option<Self> {
        match name {
            "fio" => Some(Self::Fio),
            "simpleread" => Some(Self::SimpleRead),
            _ => Personality::named(name)
                .map(Self::Filebench)
                .or_else(|| BENCHMARKS.into_iter().find(|b| b.name() == name).map(Self::RocksDb)),
        }
    }

    fn names() -> String {
        let names = Personality::ALL.iter().map(|p| p.name()).chain(BENCHMARKS.iter().map(|b| b.name()));
        ["fio", "simpleread"].into_iter().chain(names).collect::<Vec<_>>().join(", ")
    }

    /// The keys that this kind uses.
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Fio => &["threads", "block", "read", "file_size", "shared", "sequential", "think_s"],
            Self::Filebench(_) => &["threads", "files", "file_size", "io_size"],
            Self::RocksDb(_) => &["threads", "keys", "value"],
            Self::SimpleRead => &["file_size", "read_size", "process_size", "passes"],
        }
    }
}

/// A workload's table with its place in the file.
struct Table<'a> {
    checker: &'a Checker<'a>,
    raw: &'a RawWorkload,
    index: usize,
}

impl Checker<'_> {
    pub fn workload(
        &self,
        machine: &Machine,
        raw: &Spanned<RawWorkload>,
        index: usize,
    ) -> Result<Launch, ScenarioError> {
        let table = Table { checker: self, raw: raw.get_ref(), index };
        let w = table.raw;
        let kind = Kind::of(w.kind.get_ref()).ok_or_else(|| {
            table.error(&w.kind, "kind", format!("`{}` is not one of {}", w.kind.get_ref(), Kind::names()))
        })?;
        table.only(kind)?;
        let fs = w.fs.as_ref().map_or(FileSystem::PageCache, |fs| *fs.get_ref());
        let device = table.node(machine, w.device.as_ref(), "device")?;
        if let (Some(device), false) = (&w.device, fs.layout() == Layout::Device) {
            return Err(table.error(device, "device", "this file system is not on one device".to_owned()));
        }
        let device = device.unwrap_or_else(|| machine.homes().next().unwrap_or(0));
        if machine.nodes()[device].capacity == 0.0 {
            let why = "a node without memory holds no file system".to_owned();
            return Err(table.error(w.device.as_ref().unwrap_or(&Spanned::new(0..0, 0)), "device", why));
        }
        let place = table.place(machine, fs, device)?;
        let start = table.start(machine)?;
        let name = w.name.clone().unwrap_or_else(|| format!("{}{index}", w.kind.get_ref()));
        let job = table.job(machine.constants(), kind, &name, (fs, device, place))?;
        Ok(Launch { job, start })
    }
}

impl Table<'_> {
    fn job(
        &self,
        c: &Constants,
        kind: Kind,
        name: &str,
        (fs, device, place): (FileSystem, usize, Place),
    ) -> Result<Job, ScenarioError> {
        let w = self.raw;
        let within = |value: Option<&Spanned<f64>>, key: &str, default: f64, most: f64| {
            value.map_or(Ok(default), |value| self.checker.within(value, &self.key(key), 0.0, most))
        };
        Ok(match kind {
            Kind::Fio => {
                let p = Fio {
                    threads: self.threads(1)?,
                    block: self.amount(w.block.as_ref(), "block", 4096.0)?,
                    read: within(w.read.as_ref(), "read", 1.0, 1.0)?,
                    file_size: self.needed(w.file_size.as_ref(), "file_size")?,
                    shared: w.shared.as_ref().is_some_and(|s| *s.get_ref()),
                    sequential: w.sequential.as_ref().is_some_and(|s| *s.get_ref()),
                    think_s: within(w.think_s.as_ref(), "think_s", 0.0, 1e3)?,
                };
                fio(c, name, fs, device, place, &p)
            }
            Kind::Filebench(personality) => {
                let p = Filebench {
                    personality,
                    threads: self.threads(1)?,
                    files: self.count(w.files.as_ref(), "files", 1000.0)?,
                    file_size: self.needed(w.file_size.as_ref(), "file_size")?,
                    io_size: self.amount(w.io_size.as_ref(), "io_size", personality.io_size())?,
                };
                filebench(c, name, fs, device, place, &p)
            }
            Kind::RocksDb(benchmark) => {
                let p = RocksDb {
                    benchmark,
                    threads: self.threads(1)?,
                    keys: self.count(w.keys.as_ref(), "keys", 1e6)?,
                    value: self.amount(w.value.as_ref(), "value", 100.0)?,
                };
                rocksdb(c, name, fs, device, place, &p)
            }
            Kind::SimpleRead => {
                let p = SimpleRead {
                    file_size: self.needed(w.file_size.as_ref(), "file_size")?,
                    read_size: self.amount(w.read_size.as_ref(), "read_size", 1048576.0)?,
                    process_size: w.process_size.as_ref().map_or(1e6, |s| s.get_ref().0),
                    passes: self.count(w.passes.as_ref(), "passes", 1.0)?,
                };
                simpleread(c, name, fs, device, place, &p)
            }
        })
    }

    /// Refuses keys that this kind does not use.
    fn only(&self, kind: Kind) -> Result<(), ScenarioError> {
        let w = self.raw;
        let given = [
            ("threads", w.threads.as_ref().map(Spanned::span)),
            ("block", w.block.as_ref().map(Spanned::span)),
            ("read", w.read.as_ref().map(Spanned::span)),
            ("file_size", w.file_size.as_ref().map(Spanned::span)),
            ("files", w.files.as_ref().map(Spanned::span)),
            ("io_size", w.io_size.as_ref().map(Spanned::span)),
            ("shared", w.shared.as_ref().map(Spanned::span)),
            ("sequential", w.sequential.as_ref().map(Spanned::span)),
            ("think_s", w.think_s.as_ref().map(Spanned::span)),
            ("keys", w.keys.as_ref().map(Spanned::span)),
            ("value", w.value.as_ref().map(Spanned::span)),
            ("read_size", w.read_size.as_ref().map(Spanned::span)),
            ("process_size", w.process_size.as_ref().map(Spanned::span)),
            ("passes", w.passes.as_ref().map(Spanned::span)),
        ];
        for (key, span) in given {
            if let (Some(span), false) = (span, kind.keys().contains(&key)) {
                let why = format!("does not apply to `{}`, which takes {}", w.kind.get_ref(), kind.keys().join(", "));
                return Err(self.checker.error_at(span, self.key(key), why));
            }
        }
        Ok(())
    }

    fn place(&self, machine: &Machine, fs: FileSystem, device: usize) -> Result<Place, ScenarioError> {
        let Some(data) = &self.raw.data else {
            return Ok(match fs.layout() {
                Layout::Device => Place::Node(device),
                Layout::Random => Place::Spread,
                Layout::InPlace | Layout::Local => Place::Threads,
            });
        };
        if fs.layout() == Layout::Device {
            return Err(self.error(data, "data", "the data of this file system is on its `device`".to_owned()));
        }
        match data.get_ref() {
            RawPlace::Node(id) => {
                let node = self.index(machine, data, *id, "data")?;
                match machine.nodes()[node].capacity > 0.0 {
                    true => Ok(Place::Node(node)),
                    false => Err(self.error(data, "data", format!("node {id} has no memory"))),
                }
            }
            RawPlace::Word(word) if word == "spread" => Ok(Place::Spread),
            RawPlace::Word(word) if word == "threads" => Ok(Place::Threads),
            RawPlace::Word(word) => Err(self.error(
                data,
                "data",
                format!("`{word}` is not a node, \"spread\", \"threads\" or a list of shares"),
            )),
            RawPlace::Shares(shares) => {
                let sum: f64 = shares.iter().sum();
                let bad = shares.iter().any(|s| !(*s >= 0.0 && s.is_finite())) || !(sum > 0.0 && sum.is_finite());
                if bad || shares.len() != machine.nodes().len() {
                    let why = format!("shares are {} numbers, none negative, not all 0", machine.nodes().len());
                    return Err(self.error(data, "data", why));
                }
                if shares.iter().zip(machine.nodes()).any(|(s, n)| *s > 0.0 && n.capacity == 0.0) {
                    return Err(self.error(data, "data", "a share is on a node without memory".to_owned()));
                }
                Ok(Place::Shares(shares.iter().map(|s| s / sum).collect()))
            }
        }
    }

    fn start(&self, machine: &Machine) -> Result<Start, ScenarioError> {
        let seat = |value: &Spanned<u32>, key: &str| {
            let node = self.index(machine, value, *value.get_ref(), key)?;
            match machine.nodes()[node].cpus > 0.0 {
                true => Ok(node),
                false => Err(self.error(value, key, format!("node {} has no CPUs", value.get_ref()))),
            }
        };
        match (&self.raw.start, &self.raw.pin) {
            (Some(start), Some(_)) => Err(self.error(start, "start", "`pin` says where it starts already".to_owned())),
            (Some(start), None) => Ok(Start::On(seat(start, "start")?)),
            (None, Some(pin)) => Ok(Start::Pinned(seat(pin, "pin")?)),
            (None, None) => Ok(Start::Kernel),
        }
    }

    fn threads(&self, default: u32) -> Result<u32, ScenarioError> {
        match &self.raw.threads {
            Some(threads) if *threads.get_ref() == 0 => {
                Err(self.error(threads, "threads", "0 threads do nothing".to_owned()))
            }
            Some(threads) => Ok(*threads.get_ref()),
            None => Ok(default),
        }
    }

    fn amount(&self, value: Option<&Spanned<Amount>>, key: &str, default: f64) -> Result<f64, ScenarioError> {
        value.map_or(Ok(default), |v| self.checker.positive(v, &self.key(key)))
    }

    fn needed(&self, value: Option<&Spanned<Amount>>, key: &str) -> Result<f64, ScenarioError> {
        match value {
            Some(value) => self.checker.positive(value, &self.key(key)),
            None => Err(self.error(&self.raw.kind, key, format!("is missing: `{}` needs it", self.raw.kind.get_ref()))),
        }
    }

    fn count(&self, value: Option<&Spanned<f64>>, key: &str, default: f64) -> Result<f64, ScenarioError> {
        value.map_or(Ok(default), |v| self.checker.within(v, &self.key(key), 1.0, 1e15))
    }

    fn node(&self, machine: &Machine, value: Option<&Spanned<u32>>, key: &str) -> Result<Option<usize>, ScenarioError> {
        value.map(|v| self.index(machine, v, *v.get_ref(), key)).transpose()
    }

    fn index<T>(&self, machine: &Machine, at: &Spanned<T>, id: u32, key: &str) -> Result<usize, ScenarioError> {
        machine.index(NodeId(id)).ok_or_else(|| self.error(at, key, format!("there is no node {id}")))
    }

    fn key(&self, key: &str) -> String {
        format!("workload[{}].{key}", self.index)
    }

    fn error<T>(&self, value: &Spanned<T>, key: &str, why: String) -> ScenarioError {
        self.checker.error(value, &self.key(key), why)
    }
}
