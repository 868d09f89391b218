//! Output that nobody waits for.
//!
//! **Problem.** A write to a pipe that nobody reads, or to a stopped terminal, takes for ever. A
//! program that holds moves must undo them on a signal all the same, and windows must go on.
//!
//! **Approach.** A thread of its own writes what is queued. While the queue is full, lines are
//! dropped and counted. At the end the rest is waited for as long as the reader reads
//! ([`Stream::drain`]).
//!
//! **Limits.** An error of a write is seen by the next line, or at the end.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::CapabilitySet;

/// Bytes that wait at most, or one line of any length: a few windows of a machine with thousands of
/// threads.
const MOST: usize = 4 << 20;

/// How long the reader may take for one line at the end, before the rest is dropped.
const LAST: Duration = Duration::from_millis(500);

/// The same for all lines together.
const LAST_OF_ALL: Duration = Duration::from_secs(2);

type Open = fn() -> Box<dyn Write>;

/// stdout or stderr.
pub struct Stream {
    open: Open,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    on: bool,
    /// Lines are not dropped any more.
    last: bool,
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    /// The thread has a line in hand.
    writing: bool,
    /// Lines written so far, and lines dropped.
    written: u64,
    dropped: u64,
    /// The errno of a failed write; -1 for a failure that has none.
    failed: Option<i32>,
}

pub static OUT: Stream = Stream::new(|| Box::new(io::stdout().lock()));

pub static ERR: Stream = Stream::new(|| Box::new(io::stderr().lock()));

impl Stream {
    const fn new(open: Open) -> Self {
        let state = State {
            on: false,
            last: false,
            waiting: VecDeque::new(),
            bytes: 0,
            writing: false,
            written: 0,
            dropped: 0,
            failed: None,
        };
        Self { open, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on nobody waits for what is written. If no thread can be started, writes go on as
    /// before.
    pub fn detach(&'static self) {
        let mut state = self.lock();
        if !state.on {
            state.on = std::thread::Builder::new().name("output".into()).spawn(|| self.write_on()).is_ok();
        }
    }

    /// Writes bytes, whole lines. Detached, it queues them.
    ///
    /// # Errors
    ///
    /// A write failed: this one, or if it is detached an earlier one.
    pub fn put(&self, line: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        if !state.on {
            drop(state);
            let mut stream = (self.open)();
            return stream.write_all(line).and_then(|()| stream.flush());
        }
        state.result()?;
        if !state.last && !state.waiting.is_empty() && state.bytes + line.len() > MOST {
            state.dropped += 1;
            return Ok(());
        }
        state.bytes += line.len();
        state.waiting.push_back(line.to_vec());
        self.changed.notify_all();
        Ok(())
    }

    /// Waits a moment until all is written.
    ///
    /// # Errors
    ///
    /// A write failed.
    pub fn settle(&self) -> io::Result<()> {
        let waited = self.changed.wait_timeout_while(self.lock(), LAST, |state| state.under_way());
        waited.unwrap_or_else(PoisonError::into_inner).0.result()
    }

    /// Waits until all is written, or the reader has stopped to read or is too slow. What is put
    /// from now on is not dropped. Returns how many lines were dropped before.
    ///
    /// # Errors
    ///
    /// A write failed.
    pub fn drain(&self) -> io::Result<u64> {
        let mut state = self.lock();
        state.last = true;
        let began = Instant::now();
        while state.under_way() {
            let before = state.written;
            let patience = LAST.min(LAST_OF_ALL.saturating_sub(began.elapsed()));
            let waited = self
                .changed
                .wait_timeout_while(state, patience, |state| state.written == before && state.failed.is_none());
            let (now, out_of_time) = waited.unwrap_or_else(PoisonError::into_inner);
            state = now;
            if out_of_time.timed_out() {
                state.dropped += state.waiting.len() as u64 + u64::from(state.writing);
                state.waiting.clear();
                state.bytes = 0;
                break;
            }
        }
        state.result()?;
        Ok(std::mem::take(&mut state.dropped))
    }

    fn write_on(&self) {
        if let Err(error) = linux::privileges::keep_only(CapabilitySet::empty()) {
            tracing::warn!("a thread that writes output keeps its privileges: {error}");
        }
        loop {
            let state = self.lock();
            let waited = self.changed.wait_while(state, |state| state.waiting.is_empty());
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            let Some(line) = state.waiting.pop_front() else { continue };
            state.bytes = state.bytes.saturating_sub(line.len());
            state.writing = true;
            drop(state);
            let mut stream = (self.open)();
            let wrote = stream.write_all(&line).and_then(|()| stream.flush());
            drop(stream);
            let mut state = self.lock();
            state.writing = false;
            state.written += 1;
            if let Err(error) = wrote {
                state.failed = Some(error.raw_os_error().unwrap_or(-1));
                state.waiting.clear();
                state.bytes = 0;
            }
            self.changed.notify_all();
        }
    }
}

impl State {
    fn under_way(&self) -> bool {
        self.on && self.failed.is_none() && (self.writing || !self.waiting.is_empty())
    }

    fn result(&self) -> io::Result<()> {
        match self.failed {
            None => Ok(()),
            Some(-1) => Err(io::Error::other("an earlier write failed")),
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

pub struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        ERR.put(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A window of a machine with very many threads never came out.
    #[test]
    fn a_line_longer_than_the_queue_is_written_if_nothing_waits() {
        static WRITTEN: AtomicUsize = AtomicUsize::new(0);
        struct Count;
        impl Write for Count {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                WRITTEN.fetch_add(bytes.len(), Ordering::Relaxed);
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        static LONG: Stream = Stream::new(|| Box::new(Count));
        LONG.detach();
        LONG.put(&vec![b'x'; MOST + 1]).unwrap();
        assert_eq!((LONG.drain().unwrap(), WRITTEN.load(Ordering::Relaxed)), (0, MOST + 1));
    }

    /// A reader that took each line just in time held up the end for as long as it liked.
    #[test]
    fn a_slow_reader_does_not_hold_up_the_end() {
        struct Slow;
        impl Write for Slow {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                std::thread::sleep(LAST / 2);
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        static SLOW: Stream = Stream::new(|| Box::new(Slow));
        SLOW.detach();
        (0..1000).for_each(|_| SLOW.put(b"line").unwrap());
        // Not all: that takes four minutes.
        assert!(SLOW.drain().unwrap() > 500);
    }
}
