//! The loops that are timed.
//!
//! Each works on a slice and returns something that depends on every access, so that no compiler
//! leaves one out.

use topology::measured::Writes;

/// How [`store`] writes on this processor.
pub const WRITES: Writes = if cfg!(target_arch = "x86_64") { Writes::NonTemporal } else { Writes::Cached };

/// Words of a cache line.
pub const LINE: usize = 8;

/// A walk through memory of zeros: each load waits for the one before.
///
/// The places are random, so that nothing can be fetched ahead. They come from a generator that
/// waits for no load; what was loaded (zero) is added, which costs a cycle and makes the next load
/// wait.
pub struct Chase {
    state: u64,
    loaded: u64,
}

impl Chase {
    /// A walk with its own order.
    pub fn new(seed: u64) -> Self {
        Self { state: seed | 1, loaded: 0 }
    }

    /// Makes `loads` loads of lines of `words`.
    pub fn walk(&mut self, words: &[u64], loads: u32) -> u64 {
        let lines = (words.len() / LINE) as u64;
        for _ in 0..loads {
            // xorshift64; its upper bits, as a share of all lines.
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            let line = ((u128::from(self.state) * u128::from(lines)) >> 64) as usize;
            self.loaded = words.get(line * LINE + self.loaded as usize).copied().unwrap_or(0);
        }
        self.loaded
    }
}

/// Reads all words, two at a time: what this takes is the memory's time however much the optimizer
/// does.
#[cfg(target_arch = "x86_64")]
pub fn load(words: &[u64]) -> u64 {
    use std::arch::x86_64::{__m128i, _mm_add_epi64, _mm_setzero_si128};

    // SAFETY: two words of any value are 16 bytes of any value.
    let (head, pairs, tail) = unsafe { words.align_to::<__m128i>() };
    let (lines, rest) = pairs.as_chunks::<8>();
    // Four sums of two words each, so that no addition waits for the one before.
    // SAFETY: every x86-64 processor has SSE2.
    let sums = unsafe {
        let [mut a, mut b, mut c, mut d] = [_mm_setzero_si128(); 4];
        for [p, q, r, s, t, u, v, w] in lines {
            (a, b) = (_mm_add_epi64(a, *p), _mm_add_epi64(b, *q));
            (c, d) = (_mm_add_epi64(c, *r), _mm_add_epi64(d, *s));
            (a, b) = (_mm_add_epi64(a, *t), _mm_add_epi64(b, *u));
            (c, d) = (_mm_add_epi64(c, *v), _mm_add_epi64(d, *w));
        }
        for pair in rest {
            a = _mm_add_epi64(a, *pair);
        }
        [a, b, c, d]
    };
    // SAFETY: as above.
    let (_, sums, _) = unsafe { sums.align_to::<u64>() };
    head.iter().chain(sums).chain(tail).fold(0, |sum, word| sum.wrapping_add(*word))
}

#[cfg(not(target_arch = "x86_64"))]
pub fn load(words: &[u64]) -> u64 {
    // Eight sums, so that no addition waits for the one before.
    let mut sums = [0_u64; 8];
    let (lines, rest) = words.as_chunks::<8>();
    for line in lines {
        for (sum, word) in sums.iter_mut().zip(line) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().chain(rest).fold(0, |sum, word| sum.wrapping_add(*word))
}

/// Writes all words, past the cache.
#[cfg(target_arch = "x86_64")]
pub fn store(words: &mut [u64], value: u64) {
    use std::arch::x86_64::{__m128i, _mm_set1_epi64x, _mm_stream_si128};

    // SAFETY: two words of any value are 16 bytes of any value, and the other way round.
    let (head, pairs, tail) = unsafe { words.align_to_mut::<__m128i>() };
    head.fill(value);
    tail.fill(value);
    // SAFETY: every x86-64 processor has SSE2; each store is to an aligned element of a slice that
    // is borrowed uniquely. `fence` orders the stores before others may read.
    unsafe {
        let value = _mm_set1_epi64x(value.cast_signed());
        for pair in pairs {
            _mm_stream_si128(pair, value);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub fn store(words: &mut [u64], value: u64) {
    std::hint::black_box(words).fill(value);
}

/// Writes the sums of two slices, past the cache: two words are read for each word that is written.
/// All three are as long as the shortest.
#[cfg(target_arch = "x86_64")]
pub fn combine(a: &[u64], b: &[u64], to: &mut [u64]) {
    use std::arch::x86_64::{__m128i, _mm_set_epi64x, _mm_stream_si128};

    // SAFETY: as in `store`.
    let (head, pairs, _) = unsafe { to.align_to_mut::<__m128i>() };
    let skip = head.len();
    head.iter_mut().zip(a.iter().zip(b)).for_each(|(to, (a, b))| *to = a.wrapping_add(*b));
    let (a, b) = (a.get(skip..).unwrap_or_default(), b.get(skip..).unwrap_or_default());
    for (pair, (a, b)) in pairs.iter_mut().zip(a.as_chunks::<2>().0.iter().zip(b.as_chunks::<2>().0)) {
        // SAFETY: as in `store`.
        unsafe {
            let sum = |n: usize| a[n].wrapping_add(b[n]).cast_signed();
            _mm_stream_si128(pair, _mm_set_epi64x(sum(1), sum(0)));
        }
    }
}

/// Writes the sums of two slices: two words are read for each word that is written.
#[cfg(not(target_arch = "x86_64"))]
pub fn combine(a: &[u64], b: &[u64], to: &mut [u64]) {
    let to = std::hint::black_box(to);
    to.iter_mut().zip(a.iter().zip(b)).for_each(|(to, (a, b))| *to = a.wrapping_add(*b));
}

/// All stores of this thread are made.
pub fn fence() {
    // SAFETY: every x86-64 processor has it; it changes nothing.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_and_written() {
        for len in [0, 1, 2, 7, 8, 9, 64, 1000] {
            let mut words = vec![0_u64; len + 1];
            store(&mut words[..len], 3);
            fence();
            assert_eq!(load(&words), 3 * len as u64);
            // Also from an address that is no multiple of 16.
            store(&mut words[1..], 5);
            fence();
            assert_eq!(load(&words[1..]), 5 * len as u64);
        }
    }

    #[test]
    fn sums_of_two_slices_are_written() {
        let (a, b): (Vec<u64>, Vec<u64>) = ((0..100).collect(), (0..100).map(|n| n * 1000).collect());
        for from in [0, 1] {
            // Of an odd number of words the last may be left out.
            let mut to = vec![0; 100];
            combine(&a[from..], &b[from..], &mut to[from..]);
            fence();
            let wrong = (from..99).find(|n| to[*n] != *n as u64 * 1001);
            assert_eq!(wrong, None, "{to:?}");
        }
    }

    #[test]
    fn a_walk_comes_to_most_lines_and_each_step_waits() {
        let lines = 512;
        let words = vec![0_u64; lines * LINE];
        let mut chase = Chase::new(7);
        assert_eq!(chase.walk(&words, 10_000), 0);
        // A word that is not zero leads elsewhere: to the end of the slice at most.
        let words = vec![1_u64; lines * LINE];
        assert_eq!(Chase::new(7).walk(&words, 10), 1);
        let mut seen = vec![false; lines];
        let mut chase = Chase::new(9);
        for _ in 0..8 * lines {
            chase.walk(&[0; LINE], 1);
            seen[((u128::from(chase.state) * lines as u128) >> 64) as usize] = true;
        }
        assert!(seen.iter().filter(|seen| **seen).count() > lines * 99 / 100);
    }
}
