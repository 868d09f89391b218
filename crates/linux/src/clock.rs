//! The kernel's clocks, each time as one number.

pub use rustix::time::ClockId;
use rustix::time::clock_gettime;

/// Nanoseconds on a clock.
pub fn ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// Seconds on a clock.
pub fn s(clock: ClockId) -> f64 {
    let now = clock_gettime(clock);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
