//! fio: threads that read and overwrite blocks of private files, any block next.

use crate::thread::{File, Thread};

/// One job of a mix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// Bytes of a call.
    pub block: usize,
    /// Blocks of a file.
    pub blocks: u64,
    /// Share of calls that read.
    pub read: f64,
    /// Seconds asleep after each call.
    pub think_s: f64,
}

pub fn worker(t: &mut Thread, file: File, mix: Mix) {
    while !t.is_over() {
        let at = t.random(mix.blocks) * mix.block as u64;
        if t.unit() < mix.read {
            t.read(file, at, mix.block);
        } else {
            t.write(file, at, mix.block);
        }
        t.count(1);
        if mix.think_s > 0.0 {
            t.sleep(mix.think_s);
        }
    }
}
