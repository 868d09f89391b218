//! The tables for unbiased sampling (`bpf/sample.h`).
//!
//! The distance to the next page drawn is geometric with mean 2^k: `1 + floor(E / -ln(1 - 2^-k))`
//! for an exponentially distributed E (Devroye, Non-Uniform Random Variate Generation, X.2). E
//! comes from a table of its quantiles. An event of u pages is counted if any of them is drawn, and
//! weighs the inverse of that probability.

use super::records::intf::WEIGHT_ONE;

/// Largest k that the tables know.
const K: usize = 16;
/// Largest event in pages that the tables know.
const PAGES: usize = 32;

pub(super) struct Sampling {
    /// Quantiles of the exponential distribution, in 1/65,536ths.
    pub table: [u32; 1024],
    /// `-1 / ln(1 - 2^-k)`, in 1/65,536ths.
    pub scale: [u32; K],
    /// `1 / (1 - (1 - 2^-k)^u)` at `[k][u - 1]`, in 1/1,024ths.
    pub weights: [[u32; PAGES]; K],
}

impl Sampling {
    pub fn new() -> Self {
        let fixed = |x: f64| (x * 65_536.0).round() as u32;
        // Scaled to a mean of exactly 1: without the tail, the mean of the quantiles is a little
        // less.
        let quantile = |i: usize| -((i as f64 + 0.5) / 1024.0).ln();
        let mean = (0..1024).map(quantile).sum::<f64>() / 1024.0;
        let missed = |k: usize| 1.0 - 0.5f64.powi(k as i32);
        Self {
            table: std::array::from_fn(|i| fixed(quantile(i) / mean)),
            scale: std::array::from_fn(|k| if k == 0 { 0 } else { fixed(-1.0 / missed(k).ln()) }),
            weights: std::array::from_fn(|k| {
                std::array::from_fn(|u| (f64::from(WEIGHT_ONE) / (1.0 - missed(k).powi(u as i32 + 1))).round() as u32)
            }),
        }
    }
}

/// Whether a kernel release is this version or a later one. An unreadable release counts as later.
pub(super) fn at_least(release: &str, major: u32, minor: u32) -> bool {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(a), Some(b)) => (a, b) >= (major, minor),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The distance that the BPF program computes.
    fn distance(s: &Sampling, i: usize, k: usize) -> u64 {
        1 + ((u64::from(s.table[i]) * u64::from(s.scale[k])) >> 32)
    }

    #[test]
    fn the_mean_distance_is_two_to_the_k() {
        let s = Sampling::new();
        for k in 1..=10 {
            let mean = (0..1024).map(|i| distance(&s, i, k)).sum::<u64>() as f64 / 1024.0;
            let wanted = f64::from(1 << k);
            assert!((mean / wanted - 1.0).abs() < 0.003, "k {k}: {mean}");
        }
    }

    #[test]
    fn the_weight_of_an_event_is_the_inverse_of_its_probability() {
        let s = Sampling::new();
        for k in 0..=6 {
            for u in [1, 2, 7, 16, 32] {
                let counted = (0..1024).filter(|i| distance(&s, *i, k) <= u as u64).count() as f64 / 1024.0;
                let expected = counted * f64::from(s.weights[k][u - 1]) / 1024.0;
                assert!((expected - 1.0).abs() < 0.02, "k {k}, {u} pages: {expected}");
            }
        }
    }

    #[test]
    fn without_sampling_every_event_weighs_one() {
        assert_eq!(Sampling::new().weights[0], [1024; PAGES]);
    }

    #[test]
    fn releases_compare_by_number() {
        assert!(at_least("6.12.117+deb12-amd64", 6, 5) && at_least("6.5.0", 6, 5) && at_least("7.0-rc1", 6, 5));
        assert!(!at_least("6.1.0-42-amd64", 6, 5) && !at_least("5.15.0", 6, 5));
    }
}
