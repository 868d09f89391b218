//! The memory policies of a process's mappings, from `/proc/PID/numa_maps`.
//!
//! A line is `7f3c00000000 bind:0 anon=512 dirty=512 N0=512 kernelpagesize_kB=4`. A mapping without
//! a policy of its own shows the one of the process's first thread. Formats: `mpol_to_str` in
//! mm/mempolicy.c.
//!
//! A program that chose nodes keeps them: a mapping bound to other nodes, one that prefers others,
//! and one that is spread over nodes (interleaved) stay where they are.
//!
//! **Limits.** The kernel walks the mapping's page table for each line. The file is read once for a
//! move. Policies that threads other than the first set for themselves are not shown.

use std::io::{self, BufRead};

use topology::{CpuSet, NodeId};

/// Starts of mappings, by rising address, and whether the policy keeps the memory there away from
/// the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies(Vec<(u64, bool)>);

impl Policies {
    /// Reads the lines of `numa_maps` with regard to moving to this node.
    pub fn read(maps: impl BufRead, to: NodeId) -> io::Result<Self> {
        let mut found = Vec::new();
        for line in maps.split(b'\n') {
            found.extend(parse(&line?, to));
        }
        // The kernel's order; a process that maps and unmaps while the file is read cannot disturb
        // the search below.
        found.sort_unstable();
        Ok(Self(found))
    }

    /// Whether the policy at this address keeps its memory away from the node.
    pub fn keep_away(&self, address: u64) -> bool {
        let after = self.0.partition_point(|(start, _)| *start <= address);
        after.checked_sub(1).and_then(|i| self.0.get(i)).is_some_and(|(_, away)| *away)
    }
}

/// The start of the mapping, and whether its policy keeps memory away from the node.
fn parse(line: &[u8], to: NodeId) -> Option<(u64, bool)> {
    let line = String::from_utf8_lossy(line);
    let (start, rest) = line.split_once(' ')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    // Two names contain a blank.
    let names = ["prefer (many)", "weighted interleave", "default", "local", "prefer", "bind", "interleave"];
    let name = names.into_iter().find(|name| rest.starts_with(name));
    let away = match name {
        Some("default" | "local") => false,
        Some(name @ ("prefer" | "prefer (many)" | "bind")) => {
            // `bind=static:0-1`; the list ends at a blank. A list that cannot be read may exclude
            // the node.
            let list = rest.get(name.len()..)?.split(' ').next()?.split_once(':').map_or("", |(_, list)| list);
            !list.parse::<CpuSet>().is_ok_and(|nodes| nodes.contains(to.0))
        }
        // Spread on purpose, or a policy that we do not know.
        _ => true,
    };
    Some((start, away))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn away(policy: &str, to: u32) -> bool {
        let line = format!("7f00 {policy} anon=4 N0=4 kernelpagesize_kB=4");
        let (start, away) = parse(line.as_bytes(), NodeId(to)).unwrap();
        assert_eq!(start, 0x7f00);
        away
    }

    #[test]
    fn memory_without_a_policy_is_free_to_go() {
        assert!(!away("default", 1) && !away("local", 1));
        assert_eq!(parse(b"7f00 default file=/bind:0", NodeId(1)), Some((0x7f00, false)));
        assert_eq!(parse(b"", NodeId(1)), None);
    }

    #[test]
    fn nodes_that_the_program_chose_are_kept() {
        for policy in ["bind:0", "bind=static:0", "prefer:0", "prefer (many):0,2-3", "prefer=relative:0"] {
            assert!(away(policy, 1) && !away(policy, 0), "{policy}");
        }
        assert!(!away("bind:0-1", 1) && !away("bind=balancing:1", 1));
        // Spread on purpose; unknown.
        for policy in ["interleave:0-1", "weighted interleave:0-1", "interleave=static:1", "newer:1"] {
            assert!(away(policy, 1), "{policy}");
        }
    }

    #[test]
    fn a_part_of_a_mapping_has_its_policy() {
        let maps = b"1000 default\n3000 bind:0 file=/x\n5000 default\n";
        let policies = Policies::read(&maps[..], NodeId(1)).unwrap();
        let asked = [0, 0x1000, 0x2fff, 0x3000, 0x4000, 0x5000, u64::MAX];
        assert_eq!(asked.map(|a| policies.keep_away(a)), [false, false, false, true, true, false, false]);
    }
}
