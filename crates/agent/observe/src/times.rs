//! How long reads take.
//!
//! **Problem.** A remote read is slower; means hide by how much, and whether the slowest suffer.
//!
//! **Approach.** Two BPF programs at the beginning and the return of `filemap_read`, which reads
//! file data from the page cache, time one read in [`READS_PER_TIMED`]. They count by process and
//! time, in sixteen buckets for each power of two: a quantile is known to 6 %. They are loaded only
//! where somebody asks, and stay attached; their tables take some 3 MB of the kernel's memory.
//!
//! Reads of processes, or of a control group, are chosen in the kernel: those of others take no
//! room.
//!
//! **Limits.** Of a process tree, the reads of all processes are timed. A call to `filemap_read` is
//! a read of the kernel's, as a program makes it by `read`, `pread`, libaio or io_uring; splice,
//! sendfile (since Linux 6.5) and mapped files are not timed, nor are tmpfs, DAX and OpenZFS. A
//! read that waits for a disk counts, too, with its wait; but of a buffered read of io_uring, only
//! what comes after the wait. It needs function hooks. While it is attached, each read takes some
//! 0.1 µs more (an estimate: one such program takes 60 ns).

use std::collections::BTreeMap;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags};

use crate::programs::silence_libbpf;
use crate::records::intf::{self, TIME_BITS};
use crate::{Scope, cause, drain};

skeleton!(mod skel = "times.skel.rs");

use skel::{TimesSkel, TimesSkelBuilder};

/// Of so many reads one is timed.
pub const READS_PER_TIMED: u32 = intf::READS_PER_TIMED;

/// Times reads until dropped.
pub struct ReadTimes {
    skel: TimesSkel<'static>,
    _links: [Link; 2],
    drain: drain::Buffer,
    /// Of `times_lost`, those that are told already.
    lost: u64,
}

/// Bytes of a key: process and bucket.
const KEY: usize = size_of::<skel::types::time_key>();

impl ReadTimes {
    /// Loads and attaches. Of a process tree, the reads of all processes are timed.
    ///
    /// # Errors
    ///
    /// Why this kernel does not let it, or why the control group cannot be opened.
    pub fn open(scope: &Scope) -> Result<Self, String> {
        silence_libbpf();
        // As in `programs`: the skeleton borrows the size of one pointer for its whole life.
        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = TimesSkelBuilder::default().open(storage).map_err(|e| cause::of_bpf(&e))?;
        let scoped = |e| format!("choosing whose reads: {}", cause::of_bpf(&e));
        if let Scope::Pids(pids) = scope {
            open.maps.pids.set_max_entries(u32::try_from(pids.len()).unwrap_or(u32::MAX).max(1)).map_err(scoped)?;
        }
        if let Some(tunables) = open.maps.rodata_data.as_mut() {
            tunables.times_of = match scope {
                Scope::All | Scope::Tree(_) => intf::TIMES_OF_ALL,
                Scope::Pids(_) => intf::TIMES_OF_PIDS,
                Scope::Cgroup(_) => intf::TIMES_OF_CGROUP,
            };
        }
        let skel = open.load().map_err(|e| format!("loading: {}", cause::of_bpf(&e)))?;
        match scope {
            Scope::All | Scope::Tree(_) => {}
            Scope::Pids(pids) => pids.iter().try_for_each(|pid| {
                skel.maps.pids.update(&pid.to_ne_bytes(), &1u32.to_ne_bytes(), MapFlags::ANY).map_err(scoped)
            })?,
            Scope::Cgroup(path) => {
                let group = File::open(path).map_err(|e| format!("control group {}: {e}", path.display()))?;
                let group = group.as_raw_fd().to_ne_bytes();
                skel.maps.cgroup.update(&0u32.to_ne_bytes(), &group, MapFlags::ANY).map_err(scoped)?;
            }
        }
        let attaching = |e| format!("attaching to filemap_read: {}", cause::of_bpf(&e));
        // A read that begins before the other is attached is not timed.
        let ends = skel.progs.read_ends.attach().map_err(attaching)?;
        let begins = skel.progs.read_begins.attach().map_err(attaching)?;
        Ok(Self { skel, _links: [begins, ends], drain: drain::Buffer::default(), lost: 0 })
    }

    /// The reads that have ended since the last call, by process. A read that ends at that moment
    /// may be lost.
    ///
    /// # Errors
    ///
    /// The table cannot be emptied.
    pub fn take(&mut self) -> std::io::Result<BTreeMap<u32, Times>> {
        let fd = self.skel.maps.times.as_fd().as_raw_fd();
        let word = |bytes: &[u8], at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let all = self.drain.all(fd, (KEY, size_of::<u64>()), |key, value| {
            Some((word(key, 0)?, word(key, 4)?, u64::from_ne_bytes(value.try_into().ok()?)))
        })?;
        let mut by_process: BTreeMap<u32, Times> = BTreeMap::new();
        for (pid, bucket, count) in all {
            *by_process.entry(pid).or_default().0.entry(bucket).or_default() += count;
        }
        Ok(by_process)
    }

    /// Timed reads since the last call that found no room in the tables, which have room for 8,192
    /// reads at once, and for 32,768 pairs of a process and a bucket. Long times are rare and find
    /// no room first, so where any was lost the quantiles are too low.
    pub fn take_lost(&mut self) -> u64 {
        let all = self.skel.maps.bss_data.as_ref().map_or(0, |bss| bss.times_lost);
        all - std::mem::replace(&mut self.lost, all).min(all)
    }
}

/// How many reads took how long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times(BTreeMap<u32, u64>);

impl Times {
    /// Adds those of another.
    pub fn add(&mut self, other: &Self) {
        other.0.iter().for_each(|(bucket, count)| *self.0.entry(*bucket).or_default() += count);
    }

    /// How many reads.
    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// The time in seconds that this share of the reads did not exceed; `None` without reads.
    /// Within a bucket, times are taken to be spread evenly.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = share.clamp(0.0, 1.0) * self.count() as f64;
        let mut before = 0.0;
        for (bucket, count) in self.0.iter().filter(|(_, count)| **count > 0) {
            let count = *count as f64;
            if before + count >= wanted {
                let (from, to) = (begin_ns(*bucket), begin_ns(bucket + 1));
                return Some((from + (to - from) * ((wanted - before) / count)) / 1e9);
            }
            before += count;
        }
        None
    }
}

impl FromIterator<(u32, u64)> for Times {
    /// From buckets and how many reads are in each; the first 16 are of one nanosecond each.
    fn from_iter<I: IntoIterator<Item = (u32, u64)>>(all: I) -> Self {
        Self(all.into_iter().collect())
    }
}

/// The shortest time of a bucket, in nanoseconds: `bucket_of` of times.bpf.c, turned round.
fn begin_ns(bucket: u32) -> f64 {
    let (power, rest) = (bucket >> TIME_BITS, bucket & ((1 << TIME_BITS) - 1));
    match power {
        0 => f64::from(rest),
        _ => f64::from((1 << TIME_BITS) + rest) * 2f64.powi(power as i32 - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As times.bpf.c has it.
    fn bucket_of(ns: u64) -> u32 {
        let high = 63 - (ns | 1).leading_zeros();
        match high < TIME_BITS {
            true => ns as u32,
            false => ((high - TIME_BITS) << TIME_BITS) + (ns >> (high - TIME_BITS)) as u32,
        }
    }

    #[test]
    fn a_bucket_begins_where_the_last_one_ends() {
        for bucket in 0..900 {
            let begin = begin_ns(bucket);
            assert!(begin < begin_ns(bucket + 1), "{bucket}");
            if bucket < 500 {
                assert_eq!(bucket_of(begin as u64), bucket);
                assert_eq!(bucket_of((begin_ns(bucket + 1) as u64) - 1), bucket);
            }
        }
        for ns in [0, 1, 15, 16, 17, 31, 32, 1000, 123_456_789] {
            let bucket = bucket_of(ns);
            assert!(begin_ns(bucket) <= ns as f64 && (ns as f64) < begin_ns(bucket + 1), "{ns}");
            assert!(ns < 16 || begin_ns(bucket + 1) / begin_ns(bucket) <= 17.0 / 16.0, "{ns}");
        }
    }

    #[test]
    fn quantiles_are_those_of_the_reads() {
        let of = |reads: &[(u64, u64)]| Times(reads.iter().map(|(ns, count)| (bucket_of(*ns), *count)).collect());
        let near = |a: Option<f64>, ns: f64| a.is_some_and(|a| (a * 1e9 / ns - 1.0).abs() < 1.0 / 16.0);
        let mut times = of(&[(1_000, 98), (50_000, 1)]);
        times.add(&of(&[(50_000, 1)]));
        assert_eq!(times.count(), 100);
        assert!(near(times.quantile(0.5), 1_000.0) && near(times.quantile(0.99), 50_000.0), "{times:?}");
        assert!(near(times.quantile(0.97), 1_000.0) && near(times.quantile(1.0), 50_000.0));
        assert_eq!(Times::default().quantile(0.5), None);
        // Half way through the only bucket.
        assert_eq!(of(&[(16, 2)]).quantile(0.5), Some(16.5e-9));
    }
}
