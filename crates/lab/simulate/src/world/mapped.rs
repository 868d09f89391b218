//! Mapped files as access bits show them.
//!
//! **Problem.** N-Policy tells hot pages from touched ones: a scan touches every page once, a
//! cache touches its pages again and again.
//!
//! **Approach.** If a window reads `A` bytes at random in a file of `S` bytes, the number of
//! accesses to a page has a Poisson distribution of mean `λ = A / S`: `1 − e^−λ` of the pages are
//! touched, and `1 − e^−λ (1 + λ)` more than once. A sequential reader touches a page once in each
//! pass. A page is hot if it was accessed more than once in the window.
//!
//! **Limits.** All pages of a file are equally likely. A real monitor sees a second access only
//! after it has cleared the bit.

use std::collections::BTreeMap;

use placement::MappedMemory;

use super::{World, on};

/// Bytes accessed in a window in one file on one node.
#[derive(Clone, Copy, Debug, Default)]
struct Accessed {
    random: f64,
    sequential: f64,
}

/// Bytes accessed by one process, by file and node.
#[derive(Clone, Debug, Default)]
pub(super) struct Accesses(BTreeMap<(usize, usize), Accessed>);

impl Accesses {
    pub fn add(&mut self, file: usize, node: usize, bytes: f64, sequential: bool) {
        let sum = self.0.entry((file, node)).or_default();
        *(if sequential { &mut sum.sequential } else { &mut sum.random }) += bytes;
    }
}

/// Bytes in pages that were touched, and in pages that were touched more than once, of `there`
/// bytes.
fn pages(accessed: Accessed, there: f64) -> (f64, f64) {
    if there <= 0.0 {
        return (0.0, 0.0);
    }
    let Accessed { random, sequential } = accessed;
    // Passes of the sequential readers: all pages had the whole ones, the last one reached `part`
    // of them.
    let (passes, part) = ((sequential / there).floor(), (sequential / there).fract());
    let rate = random / there;
    let (never, once) = ((-rate).exp(), rate * (-rate).exp());
    // Touched, and touched more than once, of pages that a sequential reader touched so often.
    let of = |times: f64| match times {
        0.0 => (1.0 - never, 1.0 - never - once),
        1.0 => (1.0, 1.0 - never),
        _ => (1.0, 1.0),
    };
    let ((touched, hot), (touched_more, hot_more)) = (of(passes), of(passes + 1.0));
    let mean = |rest: f64, reached: f64| there * ((1.0 - part) * rest + part * reached);
    (mean(touched, touched_more), mean(hot, hot_more))
}

impl World {
    /// A process's mapped memory by node.
    pub(super) fn mapped(&self, accesses: Accesses) -> Vec<MappedMemory> {
        let mut nodes: BTreeMap<usize, [f64; 3]> = BTreeMap::new();
        for ((file, node), accessed) in accesses.0 {
            let there = on(&self.files[file].bytes, node);
            let (touched, hot) = pages(accessed, there);
            let sums = nodes.entry(node).or_default();
            sums.iter_mut().zip([there, touched, hot]).for_each(|(sum, bytes)| *sum += bytes);
        }
        let listed = nodes.into_iter().map(|(node, [there, touched, hot])| MappedMemory {
            node: self.machine.nodes()[node].id,
            hot_bytes: hot as u64,
            cold_bytes: (there - hot).max(0.0) as u64,
            touched_bytes: Some(touched as u64),
        });
        listed.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_touches_much_and_heats_nothing() {
        let scan = |bytes: f64| pages(Accessed { random: 0.0, sequential: bytes }, 100.0);
        assert_eq!(scan(0.0), (0.0, 0.0));
        assert_eq!(scan(70.0), (70.0, 0.0));
        assert_eq!(scan(100.0), (100.0, 0.0));
        // A quarter of the file for the second time.
        assert_eq!(scan(125.0), (100.0, 25.0));
        assert_eq!(scan(250.0), (100.0, 100.0));
    }

    #[test]
    fn random_reads_heat_what_they_come_back_to() {
        let random = |bytes: f64| pages(Accessed { random: bytes, sequential: 0.0 }, 100.0);
        // λ = 0.1: 9.5 % touched, 0.47 % more than once; λ = 3: 95 % and 80 %.
        let (touched, hot) = random(10.0);
        assert!((touched - 9.516).abs() < 1e-3 && (hot - 0.468).abs() < 1e-3, "{touched} {hot}");
        let (touched, hot) = random(300.0);
        assert!((touched - 95.02).abs() < 1e-2 && (hot - 80.09).abs() < 1e-2, "{touched} {hot}");
        // Random reads beside one pass of a scan: what they touch is hot.
        let (touched, hot) = pages(Accessed { random: 10.0, sequential: 100.0 }, 100.0);
        assert!(touched == 100.0 && (hot - 9.516).abs() < 1e-3, "{hot}");
        assert_eq!(pages(Accessed { random: 10.0, sequential: 10.0 }, 0.0), (0.0, 0.0));
    }
}
