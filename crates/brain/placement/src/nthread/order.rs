//! Keys to sort threads by.
//!
//! **Problem.** With 100,000 threads, sorting is a noticeable part of deciding.
//!
//! **Approach.** One wide number holds both the sort criteria and the thread: it compares in a few
//! instructions and takes the least memory.
//!
//! **Limits.** Indices below 2^32.

/// Sorts by `first`, then by tid; carries an index. For falling order, pass `!first`.
pub(super) fn key(first: u64, tid: u32, index: usize) -> u128 {
    u128::from(first) << 64 | u128::from(tid) << 32 | u128::from(index as u32)
}

pub(super) fn index(key: u128) -> usize {
    key as u32 as usize
}

/// Sorts by class (0 to 3), then by falling `amount`; amounts above 2^62 count as 2^62.
pub(super) fn class_and_falling(class: u8, amount: u64) -> u64 {
    const MOST: u64 = (1 << 62) - 1;
    u64::from(class) << 62 | (MOST - amount.min(MOST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_then_amount_then_tid() {
        let all = [(2, u64::MAX, 9), (0, 5, 3), (0, 7, 4), (0, 7, 1), (3, 1, 1), (1, 0, 2), (0, 0, 8)];
        let mut keys: Vec<u128> =
            all.iter().enumerate().map(|(i, (class, n, tid))| key(class_and_falling(*class, *n), *tid, i)).collect();
        keys.sort_unstable();
        assert_eq!(keys.into_iter().map(index).collect::<Vec<_>>(), [3, 2, 1, 6, 5, 0, 4]);
    }
}
