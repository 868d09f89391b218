//! One step: threads that load the memory of a node, and one that measures the latency beside them.

use std::hint::black_box;
use std::io;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use topology::CpuSet;

use crate::kernels::{Chase, combine, fence, load, store};

/// Words that are read or written between two looks at the clock.
const PIECE: usize = 4096;

/// Loads of the chain between two looks at the clock.
const LOADS: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    Reads,
    Writes,
    Reads2Writes1,
}

impl Mix {
    pub const ALL: [Self; 3] = [Self::Reads, Self::Writes, Self::Reads2Writes1];
}

pub struct Memory<'a> {
    pub read: &'a [u64],
    pub write: &'a mut [u64],
}

#[derive(Clone, Copy)]
pub struct Step<'a> {
    pub mix: Mix,
    /// One thread each.
    pub cpus: &'a [u32],
    /// Where the latency is measured, if it is.
    pub latency: Option<u32>,
    /// Bytes/s of all threads together; as fast as they can, if absent.
    pub rate: Option<f64>,
    pub length: Duration,
    /// Number of the step: each begins elsewhere, not with what the caches still have.
    pub turn: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub bytes_per_s: f64,
    pub latency_s: Option<f64>,
}

pub fn bind(cpu: u32) -> io::Result<()> {
    linux::affinity::set(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(), &CpuSet::from_iter([cpu]))
}

/// Where threads wait for each other, or hear that not all of them could be started.
struct Gate {
    all: usize,
    /// How many wait, and whether they may go on, once that is known.
    state: Mutex<(usize, Option<bool>)>,
    known: Condvar,
}

impl Gate {
    fn of(all: usize) -> Self {
        Self { all, state: Mutex::default(), known: Condvar::new() }
    }

    /// Waits until all wait. False: they will never be all.
    fn wait(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 += 1;
        if state.0 == self.all {
            state.1.get_or_insert(true);
            self.known.notify_all();
        }
        let known = self.known.wait_while(state, |state| state.1.is_none());
        known.unwrap_or_else(PoisonError::into_inner).1 == Some(true)
    }

    fn give_up(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1 = Some(false);
        self.known.notify_all();
    }
}

/// Starts a thread that binds itself, waits for all others, and works.
fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    gate: &'scope Gate,
    cpu: u32,
    work: impl FnOnce() -> f64 + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, io::Result<f64>>> {
    let begin = move || {
        let bound = bind(cpu);
        if gate.wait() { bound.map(|()| work()) } else { Err(io::Error::other("not all threads could be started")) }
    };
    thread::Builder::new().spawn_scoped(scope, begin).map_err(|e| {
        gate.give_up();
        io::Error::new(e.kind(), format!("cannot start a thread for CPU {cpu}: {e}"))
    })
}

pub fn run(step: &Step<'_>, memory: &mut Memory<'_>) -> io::Result<Found> {
    let n = step.cpus.len().max(1);
    let (read, write) = (memory.read, &mut *memory.write);
    let parts = read.chunks((read.len() / n).max(PIECE)).zip(write.chunks_mut((write.len() / n).max(PIECE)));
    let parts: Vec<_> = step.cpus.iter().zip(parts).collect();
    let gate = Gate::of(parts.len() + usize::from(step.latency.is_some()));
    thread::scope(|scope| {
        let chain = step.latency.map(|cpu| start(scope, &gate, cpu, move || latency(read, step.length, step.turn)));
        let chain = chain.transpose()?;
        let loads = parts.into_iter().map(|(&cpu, (read, write))| {
            start(scope, &gate, cpu, move || one(step, step.rate.map(|rate| rate / n as f64), read, write))
        });
        let loads = loads.collect::<io::Result<Vec<_>>>()?;
        let panicked = |_| io::Error::other("a thread that measures has panicked");
        let mut bytes_per_s = 0.0;
        for load in loads {
            bytes_per_s += load.join().map_err(panicked)??;
        }
        let latency_s = chain.map(|chain| chain.join().map_err(panicked)?).transpose()?;
        Ok(Found { bytes_per_s, latency_s })
    })
}

/// Seconds of a load of the chain.
pub fn latency(words: &[u64], length: Duration, seed: u64) -> f64 {
    let mut chase = Chase::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed);
    // The page table and the generator are warm.
    black_box(chase.walk(words, LOADS));
    let (start, mut loads) = (Instant::now(), 0_u64);
    loop {
        black_box(chase.walk(words, LOADS));
        loads += u64::from(LOADS);
        let elapsed = start.elapsed();
        if elapsed >= length {
            return elapsed.as_secs_f64() / loads as f64;
        }
    }
}

/// Bytes/s of one thread.
fn one(step: &Step<'_>, rate: Option<f64>, read: &[u64], write: &mut [u64]) -> f64 {
    // Two parts that are read at once.
    let (left, right) = read.split_at(read.len() / 2);
    let longest = match step.mix {
        Mix::Reads => read.len(),
        Mix::Writes => write.len(),
        Mix::Reads2Writes1 => left.len().min(right.len()).min(write.len()),
    };
    let pieces = (longest / PIECE).max(1);
    // The golden ratio leads to another part of the memory in each step.
    let mut at = (step.turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) % pieces as u64) as usize;
    let (start, mut bytes) = (Instant::now(), 0_u64);
    loop {
        let words = at * PIECE..((at + 1) * PIECE).min(longest);
        at = if at + 1 < pieces { at + 1 } else { 0 };
        let piece = 8 * words.len() as u64;
        bytes += match step.mix {
            Mix::Reads => {
                black_box(load(read.get(words).unwrap_or_default()));
                piece
            }
            Mix::Writes => {
                store(write.get_mut(words).unwrap_or_default(), step.turn);
                piece
            }
            Mix::Reads2Writes1 => {
                let (a, b) = (left.get(words.clone()), right.get(words.clone()));
                combine(a.unwrap_or_default(), b.unwrap_or_default(), write.get_mut(words).unwrap_or_default());
                3 * piece
            }
        };
        let mut elapsed = start.elapsed();
        while rate.is_some_and(|rate| bytes as f64 > rate * elapsed.as_secs_f64()) && elapsed < step.length {
            std::hint::spin_loop();
            elapsed = start.elapsed();
        }
        if elapsed >= step.length {
            fence();
            return bytes as f64 / start.elapsed().as_secs_f64();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_wait_for_one_that_never_came_give_up() {
        let gate = Gate::of(3);
        thread::scope(|scope| {
            let waiting: Vec<_> = (0..2).map(|_| scope.spawn(|| gate.wait())).collect();
            gate.give_up();
            assert!(waiting.into_iter().all(|thread| !thread.join().unwrap()));
        });
        let gate = Gate::of(2);
        thread::scope(|scope| {
            let other = scope.spawn(|| gate.wait());
            assert!(gate.wait() && other.join().unwrap());
        });
    }

    #[test]
    fn a_load_writes_its_memory_and_no_more_than_its_rate() {
        let (read, mut write) = (vec![0; 4 * PIECE], vec![0; 4 * PIECE]);
        let cpu = linux::affinity::get(0).unwrap().iter().next().unwrap();
        let mut step = Step {
            mix: Mix::Writes,
            cpus: &[cpu],
            latency: None,
            rate: None,
            length: Duration::from_millis(5),
            turn: 3,
        };
        let mut memory = Memory { read: &read, write: &mut write };
        let fast = run(&step, &mut memory).unwrap();
        assert!(fast.bytes_per_s > 0.0 && fast.latency_s.is_none());
        assert!(memory.write.iter().all(|word| *word == 3));
        // The first pieces come at once; a clock that stands still between two looks adds no more.
        step.rate = Some(1e6);
        step.latency = Some(cpu);
        let slow = run(&step, &mut memory).unwrap();
        let most = (PIECE * 8) as f64 / step.length.as_secs_f64() + 1e6;
        assert!(slow.bytes_per_s <= most, "{} of {most}", slow.bytes_per_s);
        assert!(slow.latency_s.is_some_and(|s| s > 0.0));
        for mix in Mix::ALL {
            assert!(run(&Step { mix, rate: None, ..step }, &mut memory).unwrap().bytes_per_s > 0.0);
        }
        // A CPU that is not there.
        assert!(run(&Step { cpus: &[60_000], ..step }, &mut memory).is_err());
    }
}
