//! Counters of the kernel's perf events: opening and reading.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::FromRawFd;

/// The first version of `struct perf_event_attr` (include/uapi/linux/perf_event.h), which every
/// kernel takes.
#[repr(C)]
#[derive(Default)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

/// PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING.
const TIMES: u64 = 3;
/// PERF_FLAG_FD_CLOEXEC.
const CLOEXEC: libc::c_ulong = 8;

/// An event that a PMU counts: its type and its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: u32,
    pub config: u64,
}

/// Opens a counter of this event on one CPU, of all processes.
pub fn open(event: Event, cpu: u32) -> io::Result<Counter> {
    let size = size_of::<PerfEventAttr>() as u32;
    let Event { kind, config } = event;
    let attr = PerfEventAttr { kind, size, config, read_format: TIMES, ..PerfEventAttr::default() };
    // SAFETY: the structure is as long as it says and outlives the call; -1 stands for all
    // processes, and for no group of events.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, -1, cpu, -1, CLOEXEC) };
    match i32::try_from(fd) {
        // SAFETY: a new descriptor that nothing else owns.
        Ok(fd) if fd >= 0 => Ok(Counter::new(unsafe { File::from_raw_fd(fd) })),
        _ => Err(io::Error::last_os_error()),
    }
}

pub struct Counter {
    file: File,
    /// The last reading: count, time enabled, time running.
    last: [u64; 3],
}

impl Counter {
    pub fn new(file: File) -> Self {
        Self { file, last: [0; 3] }
    }

    /// Events since the last call, or since it was opened; `None` if it was to count and never ran,
    /// because others had the hardware.
    pub fn take(&mut self) -> io::Result<Option<f64>> {
        let mut bytes = [0u8; 24];
        self.file.read_exact(&mut bytes)?;
        let mut now = [0u64; 3];
        for (word, bytes) in now.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = bytes.try_into().map_or(0, u64::from_ne_bytes);
        }
        let events = scaled(self.last, now);
        self.last = now;
        Ok(events)
    }
}

/// Events between two readings, as if the counter had run all the time.
fn scaled(last: [u64; 3], now: [u64; 3]) -> Option<f64> {
    match [0, 1, 2].map(|i| now[i].wrapping_sub(last[i]) as f64) {
        // No time has passed.
        [_, 0.0, _] => Some(0.0),
        [_, _, 0.0] => None,
        [count, enabled, running] => Some(count * (enabled / running).max(1.0)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use super::*;

    /// A counter that gives these readings one after the other.
    fn readings(of: &[[u64; 3]]) -> Counter {
        let mut file = tempfile::tempfile().unwrap();
        of.iter().flatten().for_each(|word| file.write_all(&word.to_ne_bytes()).unwrap());
        file.rewind().unwrap();
        Counter::new(file)
    }

    #[test]
    fn counters_that_share_hardware_are_scaled() {
        // Ran for half of the time.
        assert_eq!(scaled([100, 1000, 1000], [150, 3000, 2000]), Some(100.0));
        assert_eq!(scaled([100, 1000, 1000], [150, 2000, 2000]), Some(50.0));
        // Was to count and never ran; had nothing to count.
        assert_eq!(scaled([0; 3], [0, 1000, 0]), None);
        assert_eq!(scaled([7, 1000, 1000], [7, 1000, 1000]), Some(0.0));
    }

    #[test]
    fn events_are_those_since_the_last_reading() {
        let mut counter = readings(&[[100, 10, 10], [160, 20, 20]]);
        assert_eq!((counter.take().unwrap(), counter.take().unwrap()), (Some(100.0), Some(60.0)));
        // Its CPU has gone.
        assert!(counter.take().is_err());
    }
}
