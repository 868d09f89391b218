//! Reads and sets a thread's affinity.
//!
//! libc's `cpu_set_t`, and every wrapper around it, ends at 1,024 CPUs, and the kernel answers
//! EINVAL to a buffer smaller than its own mask. So this module makes the raw system calls, with a
//! buffer that grows until the kernel accepts it.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use topology::CpuSet;

const BITS: usize = u64::BITS as usize;
/// Largest mask to try, in words: 65,536 CPUs, eight times the kernel's own limit.
const MAX_WORDS: usize = 1024;

/// The size in words that the kernel last accepted. It never changes while the machine runs.
static WORDS: AtomicUsize = AtomicUsize::new(16);

/// The online CPUs that a thread may run on. ESRCH: there is no such thread.
pub fn get(tid: u32) -> io::Result<CpuSet> {
    let mut words = WORDS.load(Ordering::Relaxed);
    loop {
        let mut mask = vec![0u64; words];
        // SAFETY: the kernel writes at most the given number of bytes, the size of the buffer,
        // which outlives the call.
        let bytes =
            unsafe { libc::syscall(libc::SYS_sched_getaffinity, tid, size_of_val(&mask[..]), mask.as_mut_ptr()) };
        if bytes >= 0 {
            WORDS.store(words, Ordering::Relaxed);
            let cpus =
                mask.iter().enumerate().flat_map(|(w, bits)| ones(*bits).map(move |bit| (w * BITS + bit) as u32));
            return Ok(cpus.collect());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) || words >= MAX_WORDS {
            return Err(error);
        }
        words *= 2;
    }
}

/// Sets the CPUs that a thread may run on. The kernel drops CPUs outside of its cpuset. EINVAL:
/// none would be left; EPERM: the thread belongs to another user; ESRCH: there is no such thread.
pub fn set(tid: u32, cpus: &CpuSet) -> io::Result<()> {
    let last = cpus.iter().last().unwrap_or(0) as usize;
    // The kernel extends a mask shorter than its own with zeros.
    let mut mask = vec![0u64; last / BITS + 1];
    for cpu in cpus.iter() {
        mask[cpu as usize / BITS] |= 1 << (cpu as usize % BITS);
    }
    // SAFETY: the kernel reads the given number of bytes, the size of the buffer, which outlives
    // the call.
    match unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid, size_of_val(&mask[..]), mask.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Positions of the set bits.
fn ones(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = bits.trailing_zeros() as usize;
        bits &= bits.checked_sub(1)?;
        Some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::own_tid;

    #[test]
    fn ones_are_found() {
        assert_eq!(ones(0).count(), 0);
        assert_eq!(ones(0b1010).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(ones(1 << 63 | 1).collect::<Vec<_>>(), [0, 63]);
    }

    #[test]
    fn an_affinity_reads_back_and_absent_cpus_are_ignored() {
        std::thread::spawn(|| {
            // These tests themselves may be bound.
            set(own_tid(), &(0..5_000).collect()).unwrap();
            let all = get(own_tid()).unwrap();
            let first: CpuSet = all.iter().take(1).collect();
            set(own_tid(), &first).unwrap();
            assert_eq!(get(own_tid()).unwrap(), first);
            set(own_tid(), &(0..5_000).collect()).unwrap();
            assert_eq!(get(own_tid()).unwrap(), all);
            let error = set(own_tid(), &CpuSet::default()).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_buffer_that_is_too_small_grows() {
        WORDS.store(1, Ordering::Relaxed); // enough for up to 64 CPUs, so that this works on a small machine too
        assert!(!get(own_tid()).unwrap().is_empty());
        let error = get(u32::MAX >> 1).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}
