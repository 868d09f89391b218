//! Keys to sort threads by.
//!
//! With 100,000 threads, sorting tuples is a noticeable part of deciding; one wide number compares in a few instructions.

/// Sorts by `first`, then by tid. For falling order give `!first`.
pub(super) fn key(first: u64, tid: u32) -> u128 {
    u128::from(first) << 32 | u128::from(tid)
}

/// Sorts by class before everything else.
pub(super) fn key_in_class(class: u8, first: u64, tid: u32) -> u128 {
    u128::from(class) << 96 | key(first, tid)
}
