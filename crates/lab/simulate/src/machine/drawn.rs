//! A machine with the same nodes as another one, and other numbers in its model.
//!
//! **Problem.** A policy that shares its constants with the simulator knows simulated machines
//! better than any real one.
//!
//! **Approach.** Latencies, bandwidths, the crowding of writers, the interconnect and the constants
//! that hold for the whole machine are each drawn evenly within a fraction of their value: once for
//! all nodes with the same memory, so that identical nodes stay identical. Of a ratio that stands
//! for an effect (a remote latency, say) the part above 1 is drawn. The topology, which is all that
//! policies are told, stays as it is, and with it the bandwidths that an administrator took from a
//! data sheet.
//!
//! **Limits.** Distances are those of the topology, and the model's equations are the same.

use rand::{Rng, RngExt};

use super::{Machine, Memory, NodeModel};
use crate::constants::Constants;

/// Constants that a running simulation uses.
const OF_MACHINE: [&str; 9] = [
    "cache_shared",
    "cross_lock",
    "dram_copy_s",
    "dram_remote_latency",
    "mapped_read_s",
    "mapped_remote_read",
    "move_stall_s",
    "own_memory",
    "time_slicing",
];

/// A memory like this one; `factor` draws.
fn like(memory: &Memory, factor: &mut impl FnMut() -> f64) -> Memory {
    let excess = |ratio: f64, factor: &mut dyn FnMut() -> f64| 1.0 + (ratio - 1.0) * factor();
    Memory {
        read_bw: memory.read_bw * factor(),
        write_bw: memory.write_bw * factor(),
        read_s: memory.read_s * factor(),
        write_s: memory.write_s * factor(),
        remote_read: excess(memory.remote_read, factor),
        remote_write: excess(memory.remote_write, factor),
        remote_load: excess(memory.remote_load, factor),
        copy_s: memory.copy_s * factor(),
        modules: memory.modules,
        crowding: memory.crowding * factor(),
    }
}

impl Machine {
    /// The same nodes with every number of the model drawn within `spread` of its value.
    #[must_use]
    pub fn drawn(&self, rng: &mut impl Rng, spread: f64) -> Self {
        let mut factor = || rng.random_range(1.0 - spread..=1.0 + spread);
        let mut known: Vec<(Memory, Memory)> = Vec::new();
        let mut nodes: Vec<NodeModel> = Vec::new();
        for node in &self.nodes {
            let memory = match known.iter().find(|(old, _)| *old == node.memory) {
                Some((_, new)) => *new,
                None => {
                    let new = like(&node.memory, &mut factor);
                    known.push((node.memory, new));
                    new
                }
            };
            nodes.push(NodeModel { memory, ..node.clone() });
        }
        let one = |all: Constants, name: &&str| all.scaled(name, factor()).unwrap_or(all);
        let constants = OF_MACHINE.iter().fold(self.constants, one);
        let port_bw = self.port_bw * factor();
        let reaches = super::reaches(&nodes, &self.hops);
        Self { nodes, reaches, port_bw, constants, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::ChaCha12Rng;

    use super::*;

    const C: Constants = Constants::CALIBRATED;

    fn machine() -> Machine {
        Machine::uniform(&C, (2, 4, 1 << 30), Memory::optane(&C, 1), 1e9).unwrap()
    }

    #[test]
    fn every_number_is_drawn_within_the_spread() {
        let machine = machine();
        let (mut all_low, mut all_high) = ([f64::INFINITY; 10], [0.0f64; 10]);
        let mut rng = ChaCha12Rng::seed_from_u64(1);
        for _ in 0..200 {
            let drawn = machine.drawn(&mut rng, 0.3);
            assert_eq!(drawn.topology(), machine.topology());
            assert_eq!(drawn.nodes[0].memory, drawn.nodes[1].memory);
            let (new, old) = (&drawn.nodes[0].memory, &machine.nodes[0].memory);
            let factors = [
                new.read_bw / old.read_bw,
                new.write_bw / old.write_bw,
                new.read_s / old.read_s,
                new.write_s / old.write_s,
                (new.remote_read - 1.0) / (old.remote_read - 1.0),
                (new.remote_write - 1.0) / (old.remote_write - 1.0),
                (new.remote_load - 1.0) / (old.remote_load - 1.0),
                new.copy_s / old.copy_s,
                new.crowding / old.crowding,
                drawn.port_bw / machine.port_bw,
            ];
            for (i, f) in factors.into_iter().enumerate() {
                (all_low[i], all_high[i]) = (all_low[i].min(f), all_high[i].max(f));
            }
            // What a thread sees follows from what the memory is.
            let reach = drawn.reach(0, 1);
            assert_eq!(reach.read_s, new.read_at(1.0));
        }
        assert!(all_low.iter().all(|f| (0.7 - 1e-9..0.72).contains(f)), "{all_low:?}");
        assert!(all_high.iter().all(|f| (1.28..1.3 + 1e-9).contains(f)), "{all_high:?}");
    }

    #[test]
    fn constants_of_the_machine_are_drawn_and_no_others() {
        let drawn = machine().drawn(&mut ChaCha12Rng::seed_from_u64(1), 0.3);
        for name in Constants::NAMES {
            let same = drawn.constants().get(name) == C.get(name);
            assert_eq!(same, !OF_MACHINE.contains(name), "{name}");
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_machine() {
        let draw = |seed| machine().drawn(&mut ChaCha12Rng::seed_from_u64(seed), 0.3);
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
    }
}
