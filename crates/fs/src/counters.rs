//! Bytes read and written per region, cheap enough to stay on.

use std::sync::atomic::{AtomicU64, Ordering};

/// What went from and to the memory of one region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of file data read.
    pub read: u64,
    /// Bytes of file data written.
    pub written: u64,
    /// Blocks that went here because the region they were meant for was full.
    pub fallback_blocks: u64,
}

/// One set of counters per CPU, so that counting costs no other CPU a line.
#[derive(Debug)]
pub(crate) struct Counters {
    cpus: Vec<Cpu>,
}

#[derive(Debug)]
#[repr(align(128))]
struct Cpu(Box<[Cells]>);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Cells {
    read: AtomicU64,
    written: AtomicU64,
    fallback: AtomicU64,
}

impl Counters {
    pub(crate) fn new(cpus: usize, regions: usize) -> Self {
        let cpu = |_| Cpu((0..regions).map(|_| Cells::default()).collect());
        Self { cpus: (0..cpus.max(1)).map(cpu).collect() }
    }

    fn cells(&self, cpu: usize, region: usize) -> Option<&Cells> {
        self.cpus.get(cpu % self.cpus.len())?.0.get(region)
    }

    pub(crate) fn read(&self, cpu: usize, region: usize, bytes: u64) {
        if let Some(cells) = self.cells(cpu, region) {
            cells.read.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(crate) fn written(&self, cpu: usize, region: usize, bytes: u64) {
        if let Some(cells) = self.cells(cpu, region) {
            cells.written.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(crate) fn fell_back(&self, cpu: usize, region: usize, blocks: u64) {
        if let Some(cells) = self.cells(cpu, region) {
            cells.fallback.fetch_add(blocks, Ordering::Relaxed);
        }
    }

    pub(crate) fn total(&self, region: usize) -> Traffic {
        let cells = self.cpus.iter().filter_map(|cpu| cpu.0.get(region));
        cells.fold(Traffic::default(), |sum, cells| Traffic {
            read: sum.read + cells.read.load(Ordering::Relaxed),
            written: sum.written + cells.written.load(Ordering::Relaxed),
            fallback_blocks: sum.fallback_blocks + cells.fallback.load(Ordering::Relaxed),
        })
    }
}
