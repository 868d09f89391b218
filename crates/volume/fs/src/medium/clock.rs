//! Time of emulated media: clocks, and what a thread still has to wait for.

use std::cell::Cell;
use std::num::NonZeroU64;

use rustix::thread::{ClockId, Timespec, clock_nanosleep_absolute};

use crate::sync::task_local;

/// Waits below this are carried over to the next: a sleep of the kernel takes about as long.
const LEAST_SLEEP_NS: u64 = 5_000;
/// Most of a sleep's lateness that is taken off the next access: a timer is late by less; more is
/// the CPU's being busy.
const MOST_LATE_NS: u64 = 200_000;

pub trait Clock: Send + Sync {
    /// Nanoseconds since any moment that stays the same.
    fn now_ns(&self) -> u64;
    /// Returns at this time or later.
    fn sleep_until_ns(&self, at: u64);
    /// Waits below this are carried over to the next. A clock that jumps has none.
    fn least_sleep_ns(&self) -> u64 {
        LEAST_SLEEP_NS
    }
}

/// `CLOCK_MONOTONIC`, with timers as precise as the kernel has them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Monotonic;

impl Clock for Monotonic {
    fn now_ns(&self) -> u64 {
        let now = rustix::time::clock_gettime(ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }

    fn sleep_until_ns(&self, at: u64) {
        thread_local! {
            static PRECISE: Cell<bool> = const { Cell::new(false) };
        }
        if !PRECISE.replace(true) {
            // By default the kernel delays timers by up to 50 µs to save wake-ups. A refusal costs
            // precision only.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        }
        let at = Timespec { tv_sec: (at / 1_000_000_000) as i64, tv_nsec: (at % 1_000_000_000) as _ };
        while matches!(clock_nanosleep_absolute(ClockId::Monotonic, &at), Err(rustix::io::Errno::INTR)) {}
    }
}

/// Sleeps if that is worth it. Returns how late it woke up.
pub(super) fn sleep_until(clock: &dyn Clock, at: u64) -> u64 {
    if at < clock.now_ns() + clock.least_sleep_ns() {
        return 0;
    }
    clock.sleep_until_ns(at);
    clock.now_ns().saturating_sub(at).min(MOST_LATE_NS)
}

/// What a thread still owes an emulated medium.
#[derive(Clone, Copy, Default)]
pub(super) struct Owed {
    pub instance: u64,
    /// When all its accesses are done.
    pub due: u64,
    /// By how much its last sleep was late.
    pub late: u64,
}

task_local! {
    static OWED: Cell<Owed> = Cell::new(Owed { instance: 0, due: 0, late: 0 });
}

impl Owed {
    /// What the calling thread owes this medium: nothing if it has used another one since.
    pub fn to(instance: u64) -> Self {
        let owed = OWED.get();
        if owed.instance == instance { owed } else { Self { instance, ..Self::default() } }
    }

    /// Remembers it for the calling thread.
    pub fn keep(self) {
        OWED.set(self);
    }

    /// Waits until all is done, if that is worth a sleep, and remembers it.
    pub fn wait(mut self, clock: &dyn Clock) {
        if self.due >= clock.now_ns() + clock.least_sleep_ns() {
            self.late = sleep_until(clock, self.due);
        }
        self.keep();
    }
}
