//! `pread` of a file whose cached pages are on a given node.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use linux::clock::{self, ClockId};
use rustix::fs::MemfdFlags;
use topology::NodeId;
use topology::measured::Cached;

use crate::MeasureError;
use crate::buffer::{PIECE, bind_thread};
use crate::load::bind;

/// Bytes of the calls that are timed.
pub const SIZES: [u64; 2] = [4 << 10, 1 << 20];

/// Calls between two looks at the clock.
const CALLS: u64 = 8;

/// A file in memory, with all pages on a node. No file where `go_on`, asked after each 2 MiB, says
/// no.
pub fn file(node: NodeId, bytes: u64, go_on: &dyn Fn() -> Result<(), MeasureError>) -> Result<File, MeasureError> {
    let failed = |e| MeasureError::failed(format!("cannot cache a file on node {node}"))(e);
    let file = rustix::fs::memfd_create("homenode-measure", MemfdFlags::CLOEXEC);
    let mut file = File::from(file.map_err(|e| failed(e.into()))?);
    let block = vec![1; PIECE];
    // A thread's policy says where pages go that it writes first.
    let _bound = bind_thread(node).map_err(failed)?;
    for _ in 0..bytes.div_ceil(PIECE as u64) {
        file.write_all(&block).map_err(failed)?;
        go_on()?;
    }
    Ok(file)
}

/// Times calls on one CPU, at random places of the file.
pub fn run(file: &File, cpu: u32, bytes: u64, length: Duration) -> io::Result<Cached> {
    let places = (file.metadata()?.len() / bytes).max(1);
    thread::scope(|scope| {
        let timed = scope.spawn(move || {
            bind(cpu)?;
            // First written here, it is on the node of this CPU.
            let mut into = vec![1; bytes as usize];
            let cpu_s = || clock::s(ClockId::ThreadCPUTime);
            let (start, begun_s, mut calls, mut state) = (Instant::now(), cpu_s(), 0, 0x5eed_u64);
            loop {
                for _ in 0..CALLS {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let place = ((u128::from(state) * u128::from(places)) >> 64) as u64;
                    file.read_exact_at(&mut into, place * bytes)?;
                }
                calls += CALLS;
                if start.elapsed() >= length {
                    // Without the time that others had the CPU.
                    return Ok(Cached { bytes, call_s: (cpu_s() - begun_s) / calls as f64 });
                }
            }
        });
        timed.join().map_err(|_| io::Error::other("a thread that measures has panicked"))?
    })
}
