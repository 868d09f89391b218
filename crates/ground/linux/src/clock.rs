//! The kernel's clocks, each time as one number.

pub use rustix::time::ClockId;
use rustix::time::clock_gettime;

pub fn ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// Seconds since boot, suspended time included: the same in every time namespace.
pub fn boot_s() -> f64 {
    s(ClockId::Boottime) - time_namespace().unwrap_or(0) as f64
}

/// Seconds by which the time since boot is off in the time namespace of this process; `None` in the
/// machine's own.
pub fn time_namespace() -> Option<i64> {
    offset(&std::fs::read_to_string("/proc/self/timens_offsets").ok()?)
}

/// From lines such as `boottime  86400  0`: seconds, nanoseconds.
fn offset(text: &str) -> Option<i64> {
    let of = |line: &str| line.strip_prefix("boottime")?.split_whitespace().next()?.parse().ok();
    text.lines().find_map(of).filter(|seconds| *seconds != 0)
}

pub fn s(clock: ClockId) -> f64 {
    let now = clock_gettime(clock);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_namespace_is_told_from_the_machines_own() {
        assert_eq!(offset("monotonic           0         0\nboottime            0         0\n"), None);
        assert_eq!(offset("monotonic           0         0\nboottime       -86400         5\n"), Some(-86400));
        assert_eq!(offset(""), None);
        assert!(boot_s() > 0.0);
    }
}
