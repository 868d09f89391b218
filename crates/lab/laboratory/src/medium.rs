//! The memory of a volume on the machine: each access takes the time that it takes there.
//!
//! **Approach.** As `fs`'s emulated memory: every access goes on to memory of this process, and its
//! thread waits as long as the [`Machine`] says. A read waits at once, a store at the next fence.
//! Loads and stores of single words take no time; an entry of a log does.
//!
//! **Limits.** What no thread of the machine does (the making of a volume) takes no time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fs::medium::{At, Mapped, Medium};
use memory_model::Direction;

use crate::machine::Machine;

/// Memory whose regions are on the nodes of the machine, one each.
pub struct Modelled {
    inner: Mapped,
    machine: Arc<Machine>,
    on: AtomicBool,
}

impl Modelled {
    /// Region `i` is on the node with index `i`.
    pub fn new(inner: Mapped, machine: Arc<Machine>) -> Self {
        Self { inner, machine, on: AtomicBool::new(false) }
    }

    /// From now on accesses take their time.
    pub fn start(&self) {
        self.on.store(true, Ordering::Relaxed);
    }

    fn charge(&self, direction: Direction, region: usize, bytes: usize) {
        if !self.on.load(Ordering::Relaxed) {
            return;
        }
        if let Some(thread) = self.machine.current() {
            self.machine.access(thread, region, direction, bytes);
        }
    }
}

impl Medium for Modelled {
    fn below(&self) -> Option<&dyn Medium> {
        Some(&self.inner)
    }

    fn read(&self, at: At, out: &mut [u8]) -> fs::Result<()> {
        self.inner.read(at, out)?;
        self.charge(Direction::Read, at.region, out.len());
        Ok(())
    }

    fn write(&self, at: At, data: &[u8]) -> fs::Result<()> {
        self.inner.write(at, data)?;
        self.charge(Direction::Write, at.region, data.len());
        Ok(())
    }

    fn write_data(&self, at: At, data: &[u8]) -> fs::Result<()> {
        self.inner.write_data(at, data)?;
        self.charge(Direction::Write, at.region, data.len());
        Ok(())
    }

    fn fence(&self) -> fs::Result<()> {
        self.inner.fence()?;
        if let Some(thread) = self.machine.current().filter(|_| self.on.load(Ordering::Relaxed)) {
            self.machine.fence(thread);
        }
        Ok(())
    }
}
