//! What readers of two nodes read of a file, range by range.
//!
//! **Problem.** A policy that moves ranges of files is judged by a load with a hot part whose heat
//! differs, of which each node reads its own share.
//!
//! **Approach.** Every so many ranges one is read, in turn by the readers of one node and of the
//! other, by Zipf's law: a reader's second range half as often as its first, the third a third as
//! often, and so on. Of a file that is hot as a whole both read all ranges, alike.
//!
//! **Limits.** The hottest ranges are at the start of the file.

/// The ranges that the readers of one node read.
pub struct HotSet {
    ranges: Vec<u64>,
    /// The sums of the weights up to each range.
    sums: Vec<f64>,
}

impl HotSet {
    /// Of a file of so many ranges, those whose numbers leave `rest` when divided by `one_in`, as
    /// far as they are `reader`'s, which is 0 or 1; all, if `one_in` is 1.
    pub fn new(ranges: u64, (one_in, rest): (u64, u64), reader: usize) -> Self {
        let all = one_in == 1;
        let read = (0..ranges).filter(|range| range % one_in == rest);
        let ranges: Vec<u64> =
            read.enumerate().filter(|(k, _)| all || k % 2 == reader).map(|(_, range)| range).collect();
        let mut sum = 0.0;
        let add = |rank| {
            sum += if all { 1.0 } else { 1.0 / (rank + 1) as f64 };
            sum
        };
        let sums = (0..ranges.len()).map(add).collect();
        Self { ranges, sums }
    }

    /// The numbers of the ranges, in order.
    pub fn ranges(&self) -> &[u64] {
        &self.ranges
    }

    /// The range to read, by a random number; `None` if there is none.
    pub fn pick(&self, random: u64) -> Option<u64> {
        let at = (random >> 11) as f64 / (1u64 << 53) as f64 * self.sums.last()?;
        self.ranges.get(self.sums.partition_point(|sum| *sum <= at)).copied()
    }
}

/// Random numbers of a reader (xorshift64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(88_172_645_463_325_252 ^ seed)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reader_has_its_own_ranges_by_zipf_or_all_alike() {
        let own = [0, 1].map(|reader| HotSet::new(40, (10, 5), reader));
        assert_eq!(own.each_ref().map(HotSet::ranges), [&[5, 25][..], &[15, 35]]);
        let all = HotSet::new(4, (1, 0), 1);
        assert_eq!(all.ranges(), [0, 1, 2, 3]);
        let mut random = Random::new(1);
        let (mut zipf, mut alike) = ([0; 40], [0; 4]);
        for _ in 0..30_000 {
            zipf[own[0].pick(random.draw()).unwrap() as usize] += 1;
            alike[all.pick(random.draw()).unwrap() as usize] += 1;
        }
        assert!((19_000..21_000).contains(&zipf[5]) && zipf[5] + zipf[25] == 30_000, "{zipf:?}");
        assert!(alike.iter().all(|reads| (7_000..8_000).contains(reads)), "{alike:?}");
        assert_eq!(HotSet::new(3, (10, 5), 0).pick(7), None);
    }
}
