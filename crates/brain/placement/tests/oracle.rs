//! Compares NThread with a second, naive implementation of its rules, on small cases.
//!
//! The oracle follows the rules alone. It uses maps by node id, counts everything from scratch for
//! each question, and calculates with exact integers: a load is `reads + 3 × writes`, so that the
//! weight of a third needs no division, and CPU time is in milliseconds. It applies the rules
//! literally, window after window, to a machine that makes all moves, until they decide nothing
//! new. One plan must lead to the same placement.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use std::collections::BTreeMap;

use common::{Case, MB, Size, VARIANTS, case, decide_with, memory_of, moves, next_window};
use placement::nthread::Settings;
use placement::{Move, Plan, Reason, Snapshot, Thread};
use proptest::prelude::*;
use proptest::test_runner::Config;
use topology::{NodeId, Topology};

type Places = BTreeMap<u32, NodeId>;

struct Oracle<'a> {
    topology: &'a Topology,
    snapshot: &'a Snapshot,
    name: &'a str,
}

struct Load {
    /// Three times Eq. 1, bytes per window.
    controller: i128,
    cpu_ms: i128,
}

impl Oracle<'_> {
    fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.topology.nodes.iter().map(|n| n.id)
    }

    fn controllers(&self) -> Vec<NodeId> {
        self.nodes().filter(|n| memory_of(self.topology, *n) == *n).collect()
    }

    fn cores(&self, node: NodeId) -> i128 {
        self.topology.node(node).map_or(0, |n| n.cpus.len() as i128)
    }

    fn distance(&self, from: NodeId, to: NodeId) -> u32 {
        self.topology.distance(from, to).unwrap_or(u32::MAX)
    }

    /// Threads that the policy may move.
    fn threads(&self) -> impl Iterator<Item = &Thread> + '_ {
        self.snapshot.threads.iter().filter(|t| {
            let bytes = t.read_bytes.total() + t.write_bytes.total();
            bytes >= 4 * 1024 * 1024 && t.pinned.is_none()
        })
    }

    /// Step 1.
    fn target(&self, t: &Thread) -> Option<NodeId> {
        let margin = (200.0 * self.snapshot.window_s) as u64 * MB;
        let leads = |n: &NodeId| {
            let bytes = t.read_bytes.get(*n);
            bytes > 0 && self.nodes().all(|m| m == *n || bytes >= t.read_bytes.get(m) + margin)
        };
        let home = self.nodes().find(leads)?;
        if self.cores(home) > 0 {
            return t.allowed_nodes.contains(&home).then_some(home);
        }
        let near: Vec<_> = t.allowed_nodes.iter().copied().filter(|n| self.cores(*n) > 0).collect();
        let least = near.iter().map(|n| self.distance(*n, home)).min()?;
        let nearest: Vec<_> = near.into_iter().filter(|n| self.distance(*n, home) == least).collect();
        (nearest.len() == 1).then(|| nearest[0])
    }

    /// Step 2: the load of a node with every thread on its node in `places`.
    fn load(&self, places: &Places, node: NodeId) -> Load {
        let all = &self.snapshot.threads;
        let ms = |t: &Thread| (t.cpu_s * 1000.0).round() as i128;
        let total = self.snapshot.nodes.iter().find(|n| n.id == node).unwrap();
        let reads = i128::from(total.read_bytes).max(all.iter().map(|t| i128::from(t.read_bytes.get(node))).sum());
        let mut writes =
            i128::from(total.write_bytes).max(all.iter().map(|t| i128::from(t.write_bytes.get(node))).sum());
        let listed: i128 = all.iter().filter(|t| t.node == node).map(ms).sum();
        let mut cpu_ms = total.cpu_s.map_or(listed, |s| listed.max((s * 1000.0).round() as i128));
        for t in self.threads() {
            writes -= i128::from(t.write_bytes.get(node));
            if memory_of(self.topology, places[&t.tid]) == node {
                writes += i128::from(t.write_bytes.total());
            }
            cpu_ms -= if t.node == node { ms(t) } else { 0 };
            cpu_ms += if places[&t.tid] == node { ms(t) } else { 0 };
        }
        Load { controller: reads + 3 * writes, cpu_ms }
    }

    /// Step 3's condition.
    fn overloaded_controller(&self, places: &Places) -> Option<NodeId> {
        let controllers = self.controllers();
        let load = |n: NodeId| self.load(places, n).controller;
        controllers.iter().copied().find(|h| {
            let node = self.topology.node(*h).unwrap();
            let (Some(read), Some(write)) = (node.read_bw_max, node.write_bw_max) else { return false };
            // Three times min(write, read / 3), per window; windows are whole halves of a second.
            let capacity_of_two =
                (read.round() as i128).min(3 * write.round() as i128) * (2.0 * self.snapshot.window_s) as i128;
            controllers.len() > 1
                && 20 * load(*h) > 8 * capacity_of_two
                && controllers.iter().all(|n| n == h || 2 * load(*n) < load(*h))
        })
    }

    fn cpu_limit_ms_of_ten(&self, node: NodeId) -> i128 {
        9 * (1000.0 * self.snapshot.window_s) as i128 * self.cores(node)
    }

    /// Step 4's condition.
    fn overloaded_cpus(&self, places: &Places) -> Option<NodeId> {
        let with_cpus: Vec<_> = self.nodes().filter(|n| self.cores(*n) > 0).collect();
        let cpu = |n: NodeId| self.load(places, n).cpu_ms;
        with_cpus.iter().copied().find(|h| {
            with_cpus.len() > 1
                && 10 * cpu(*h) > self.cpu_limit_ms_of_ten(*h)
                && with_cpus.iter().all(|n| n == h || cpu(*h) * self.cores(*n) >= 2 * cpu(*n) * self.cores(*h))
        })
    }

    /// The node of each thread after one window's rules, and the steps that decided it.
    fn window(&self) -> (Places, BTreeMap<u32, Reason>) {
        let mut reasons = BTreeMap::new();
        let mut places: Places = self.threads().map(|t| (t.tid, self.target(t).unwrap_or(t.node))).collect();
        for t in self.threads().filter(|t| self.target(t).is_some()) {
            reasons.insert(t.tid, Reason::ReadLocality);
        }
        if ["nthread-nm", "nthread"].contains(&self.name)
            && let Some(h) = self.overloaded_controller(&places)
        {
            self.step_3(h, &mut places, &mut reasons);
        } else if self.name != "nthread-rl"
            && let Some(h) = self.overloaded_cpus(&places)
        {
            self.step_4(h, &mut places, &mut reasons);
        }
        (places, reasons)
    }

    fn step_3(&self, h: NodeId, places: &mut Places, reasons: &mut BTreeMap<u32, Reason>) {
        let controllers = self.controllers();
        let nodes = controllers.len() as i128;
        let total: i128 = controllers.iter().map(|n| self.load(places, *n).controller).sum();
        // Eq. 3, times three and times the number of nodes.
        let d_migrate = |places: &Places, n: NodeId| nodes * self.load(places, n).controller - total;
        let mut threads: Vec<_> = self.threads().filter(|t| memory_of(self.topology, places[&t.tid]) == h).collect();
        // Eq. 2 without dividing: a/b > c/d.
        threads.sort_by(|a, b| {
            let of = |t: &Thread| (u128::from(t.write_bytes.total()), u128::from(t.file_bytes()));
            let ((aw, a_all), (bw, b_all)) = (of(a), of(b));
            (bw * a_all).cmp(&(aw * b_all)).then(a.tid.cmp(&b.tid))
        });
        for t in threads {
            if d_migrate(places, h) <= 0 || t.write_bytes.total() == 0 {
                break;
            }
            if self.name == "nthread" && t.shares_file {
                continue;
            }
            let mut to: Vec<_> = controllers.iter().copied().filter(|n| *n != h && self.cores(*n) > 0).collect();
            to.retain(|n| t.allowed_nodes.contains(n));
            to.sort_by_key(|n| (d_migrate(places, *n), self.distance(h, *n), *n));
            // Eq. 4.
            let writes = 3 * nodes * i128::from(t.write_bytes.total());
            if let Some(to) = to.first().filter(|n| d_migrate(places, **n) + writes <= 0) {
                places.insert(t.tid, *to);
                reasons.insert(t.tid, Reason::ControllerContention);
            }
        }
    }

    fn step_4(&self, h: NodeId, places: &mut Places, reasons: &mut BTreeMap<u32, Reason>) {
        let cpu = |places: &Places, n: NodeId| self.load(places, n).cpu_ms;
        let mut threads: Vec<_> = self.threads().filter(|t| places[&t.tid] == h && t.cpu_s > 0.0).collect();
        threads.sort_by_key(|t| (t.read_bytes.get(h), t.tid));
        for t in threads {
            if 10 * cpu(places, h) <= self.cpu_limit_ms_of_ten(h) {
                break;
            }
            if self.name == "nthread" && t.shares_file {
                continue;
            }
            let mut to: Vec<_> = self.nodes().filter(|n| *n != h && self.cores(*n) > 0).collect();
            to.retain(|n| t.allowed_nodes.contains(n));
            let used = |n: NodeId| cpu(places, n) as f64 / self.cores(n) as f64;
            to.sort_by(|a, b| {
                used(*a).total_cmp(&used(*b)).then(self.distance(h, *a).cmp(&self.distance(h, *b))).then(a.cmp(b))
            });
            let Some(to) = to.first().copied() else { continue };
            let mut moved = places.clone();
            moved.insert(t.tid, to);
            // Eq. 5.
            if 10 * cpu(&moved, to) > self.cpu_limit_ms_of_ten(to) {
                continue;
            }
            // This makes no work for step 3, neither now nor in the next window, in which threads
            // with a target start from it again.
            let mut next = moved.clone();
            for (tid, target) in self.threads().filter_map(|t| Some((t.tid, self.target(t)?))) {
                next.insert(tid, target);
            }
            let spare = ["nthread-nm", "nthread"].contains(&self.name);
            if spare && (self.overloaded_controller(&moved).is_some() || self.overloaded_controller(&next).is_some()) {
                continue;
            }
            *places = moved;
            reasons.insert(t.tid, Reason::CpuContention);
        }
    }
}

/// The final placement by the rules, window after window, as moves from the first placement.
fn settle(name: &str, case: &Case) -> Vec<(u32, u32, Reason)> {
    let mut now = case.snapshot.clone();
    let mut why: BTreeMap<u32, Reason> = BTreeMap::new();
    for _ in 0..50 {
        let oracle = Oracle { topology: &case.topology, snapshot: &now, name };
        let (places, reasons) = oracle.window();
        for t in oracle.threads() {
            match reasons.get(&t.tid) {
                Some(reason) => why.insert(t.tid, *reason),
                None if oracle.target(t).is_some() => why.remove(&t.tid),
                None => None,
            };
        }
        let change: Vec<_> = now
            .threads
            .iter()
            .filter(|t| places.get(&t.tid).is_some_and(|to| *to != t.node))
            .map(|t| Move::thread(t, places[&t.tid], Reason::ReadLocality, ""))
            .collect();
        if change.is_empty() {
            let ended = now.threads.iter().zip(&case.snapshot.threads).filter(|(now, then)| now.node != then.node);
            return ended.map(|(t, _)| (t.tid, t.node.0, why[&t.tid])).collect();
        }
        now = next_window(&case.topology, &now, &Plan { moves: change, ..Plan::default() });
    }
    panic!("the rules go round in circles: {case:#?}");
}

proptest! {
    #![proptest_config(Config { cases: 6000, failure_persistence: None, ..Config::default() })]

    #[test]
    fn a_plan_equals_the_fixed_point_of_the_rules(
        case in case(Size { nodes: 4, threads: 5, odd_nodes: true }),
        name in prop::sample::select(&VARIANTS),
    ) {
        let plan = decide_with(name, &Settings::default(), &case.topology, &case.snapshot);
        prop_assert_eq!(moves(&plan), settle(name, &case), "{}", name);
    }

    #[test]
    fn a_plan_equals_the_fixed_point_of_the_rules_on_ordinary_machines(
        case in case(Size { nodes: 4, threads: 5, odd_nodes: false }),
    ) {
        let plan = decide_with("nthread-nm", &Settings::default(), &case.topology, &case.snapshot);
        prop_assert_eq!(moves(&plan), settle("nthread-nm", &case));
    }
}
