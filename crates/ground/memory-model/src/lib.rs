//! What an access to memory costs: figures with their sources, distances, and queues.
//!
//! **Problem.** Policies predict what a placement costs, the laboratory and the emulated volume
//! make it cost that. Each needs the data sheet of the memory, the effect of distance, and the
//! waits of threads for each other.
//!
//! **Approach.** One table of [`figures`], one measure of distance ([`hops`]), one solver for the
//! [`queues`], and the [`Profile`]s of emulated memory and the [`Software`] of a file system that
//! are made of the figures.
//!
//! **Limits.** Policy `auto` and the laboratory share the figures, though not the equations: an
//! error of a figure misleads both in the same way.

#![warn(missing_docs)]

pub mod figures;
mod profile;
pub mod queues;
mod shares;
mod software;

pub use profile::{Cost, Direction, Memory, Profile};
pub use shares::{Shares, add, on, total};
pub use software::{Call, Software};

/// SLIT distance of a node to itself.
const LOCAL: u32 = 10;
/// SLIT distance of one hop: two sockets of an ordinary machine.
const ONE_HOP: u32 = 21;
/// Fewest hops between two nodes, for firmware that calls other nodes local.
const FEWEST_HOPS: f64 = 0.1;
/// Most hops: the largest SLIT distance is 255.
const MOST_HOPS: f64 = 245.0 / 11.0;

/// Hops between two different nodes of this SLIT distance: `(distance − 10) / 11`, and 1 if it is
/// unknown. The papers' figures are for one hop.
pub fn hops(distance: Option<u32>) -> f64 {
    distance.map_or(1.0, |d| {
        let hops = (f64::from(d) - f64::from(LOCAL)) / f64::from(ONE_HOP - LOCAL);
        hops.clamp(FEWEST_HOPS, MOST_HOPS)
    })
}

/// The factor at this many hops, if it is `one_hop` at one: the excess over 1 grows in proportion.
pub fn at_hops(one_hop: f64, hops: f64) -> f64 {
    1.0 + (one_hop - 1.0) * hops
}

/// Factor by which so many threads that write to one Optane module lengthen the write of a byte
/// ([`figures::OPTANE_CROWDED`], straight between its points): 1 for up to four.
pub fn crowded(writers: f64) -> f64 {
    let table = &figures::OPTANE_CROWDED;
    let above = table.partition_point(|point| point.0 <= writers).max(1);
    let (from, low) = table.get(above - 1).copied().unwrap_or((0.0, 1.0));
    let times = |(to, high): &(f64, f64)| low + (high - low) * (writers - from).max(0.0) / (to - from);
    table.get(above).map_or(low, times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sockets_are_one_hop_apart_and_no_distance_is_nothing_or_endless() {
        assert_eq!((hops(Some(21)), hops(None)), (1.0, 1.0));
        assert_eq!((hops(Some(0)), hops(Some(10)), hops(Some(u32::MAX))), (0.1, 0.1, 245.0 / 11.0));
        assert_eq!((at_hops(1.655, 0.0), at_hops(1.655, 1.0)), (1.0, 1.655));
    }

    #[test]
    fn more_than_four_writers_crowd_a_module() {
        assert_eq!([0.0, 1.0, 4.0].map(crowded), [1.0; 3]);
        assert_eq!((crowded(8.0), crowded(24.0), crowded(100.0)), (2.20 / 1.53, 2.20 / 0.80, 2.20 / 0.80));
        assert!((crowded(5.0) - (1.0 + 2.20 / 1.96) / 2.0).abs() < 1e-12);
    }

    #[test]
    fn six_modules_carry_six_times_as_much_and_crowd_as_one_does_with_a_sixth_of_the_writers() {
        let (one, six) = (Memory::OPTANE, Profile::named("optane-6").unwrap().memory);
        let bandwidths = |of: Memory| [of.read_bw, of.write_bw, of.read_peak.unwrap(), of.write_peak.unwrap()];
        assert_eq!(bandwidths(six), bandwidths(one).map(|bw| bw * 6.0));
        assert_eq!([24, 48, 144].map(|n| six.crowded(n)), [4, 8, 24].map(|n| one.crowded(n)));
        assert_eq!(one.modules(2.0).modules(3.0), six);
    }
}
