//! Policy promote on a made-up machine whose moves come true: nodes 0 and 1 have CPUs, node 2 does
//! not, and holds files.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;

use placement::promote::{Promote, Settings};
use placement::testing::node;
use placement::{
    FileRange, Move, NodeLoad, ObservedFile, Outcome, OutcomeState, Plan, Policy, RANGE_BYTES, RangeHeat, Reason,
    Reclaim, Snapshot, Subject,
};
use proptest::prelude::*;
use topology::NodeId;

const MIB: u64 = 1 << 20;
const HIGH: u64 = 64 * MIB;

/// One range: where it is, and what its heat was by each reader's node.
#[derive(Clone, Debug)]
struct Range {
    on: NodeId,
    /// Bytes and windows (a bit each), by node of the data and of the readers.
    heat: BTreeMap<(NodeId, NodeId), (f64, u32)>,
    moved_s: Vec<f64>,
}

struct World {
    ranges: Vec<Range>,
    /// Free memory of nodes 0 and 1.
    free: [u64; 2],
    /// Bytes that reclaim has looked at in this window, by node.
    scanned: [u64; 2],
    now_s: f64,
    moved: u64,
    /// Pages are in use, and stay where they are.
    stuck: bool,
    policy: Promote,
}

impl World {
    fn new(ranges: usize, free: [u64; 2], settings: Settings) -> Self {
        let range = Range { on: NodeId(2), heat: BTreeMap::new(), moved_s: Vec::new() };
        Self {
            ranges: vec![range; ranges],
            free,
            scanned: [0; 2],
            now_s: 0.0,
            moved: 0,
            stuck: false,
            policy: Promote::new(settings),
        }
    }

    fn nodes(&self) -> Vec<NodeLoad> {
        let mut nodes: Vec<NodeLoad> = (0..3).map(|id| node(id, if id < 2 { 4 } else { 0 })).collect();
        for (id, load) in nodes.iter_mut().enumerate() {
            load.distance = match id {
                0 => [(0, 10), (1, 21), (2, 17)],
                1 => [(0, 21), (1, 10), (2, 40)],
                _ => [(0, 17), (1, 40), (2, 10)],
            }
            .map(|(node, distance)| (NodeId(node), distance))
            .into();
            load.tier = Some(u32::from(id == 2));
            load.memory_free = self.free.get(id).copied().unwrap_or(1 << 40);
            let scanned = self.scanned.get(id).copied().unwrap_or(0);
            load.reclaim = Some(Reclaim { high_watermark: HIGH, scanned, ..Reclaim::default() });
        }
        nodes
    }

    fn snapshot(&self) -> Snapshot {
        let mut ranges = Vec::new();
        for (i, range) in self.ranges.iter().enumerate() {
            for ((on, by), (bytes, seen)) in &range.heat {
                let (start, windows) = (i as u64 * RANGE_BYTES, seen.count_ones());
                if seen & 1 == 1 {
                    ranges.push(RangeHeat { start, node: *on, by: *by, bytes: *bytes as u64, windows });
                }
            }
        }
        let size = Some(self.ranges.len() as u64 * RANGE_BYTES);
        let file = ObservedFile { file: "8:1:9".into(), size, ranges, ..ObservedFile::default() };
        Snapshot {
            version: 1,
            time_s: self.now_s,
            window_s: 1.0,
            nodes: self.nodes(),
            files: vec![file],
            ..Snapshot::default()
        }
    }

    /// A window in which these bytes are read of these ranges, by CPUs of these nodes. The moves
    /// of the plan come true at once.
    fn window(&mut self, reads: &[(usize, u32, u64)]) -> Plan {
        self.now_s += 1.0;
        for range in &mut self.ranges {
            for (bytes, seen) in range.heat.values_mut() {
                *bytes *= (-1.0f64 / 8.0).exp2();
                *seen <<= 1;
            }
            range.heat.retain(|_, heat| heat.1 != 0);
        }
        for (range, by, bytes) in reads {
            let range = &mut self.ranges[*range];
            let heat = range.heat.entry((range.on, NodeId(*by))).or_default();
            *heat = (heat.0 + *bytes as f64, heat.1 | 1);
        }
        let snapshot = self.snapshot();
        snapshot.validate().unwrap();
        let plan = self.policy.decide(&snapshot.topology(), &snapshot);
        if !self.stuck {
            plan.moves.iter().for_each(|mv| self.make(mv));
        }
        let done = plan.moves.iter().map(|mv| Outcome {
            subject: mv.subject.clone(),
            from: mv.from,
            to: mv.to,
            result: OutcomeState::Done { bytes: mv.range_bytes(), failed: 0 },
        });
        let told = Snapshot { outcomes: done.collect(), files: Vec::new(), ..snapshot };
        assert_eq!(self.policy.decide(&told.topology(), &told).moves, []);
        plan
    }

    fn make(&mut self, mv: &Move) {
        assert!(mv.subject.is_file() && mv.reason == Reason::Promotion && !mv.ranges.is_empty(), "{mv:?}");
        assert!(mv.ranges.windows(2).all(|pair| pair[0].end() < pair[1].start), "{:?}", mv.ranges);
        for part in &mv.ranges {
            assert!(part.start.is_multiple_of(RANGE_BYTES) && part.bytes.is_multiple_of(RANGE_BYTES));
            for range in part.start / RANGE_BYTES..part.end() / RANGE_BYTES {
                let range = &mut self.ranges[range as usize];
                if range.on == mv.from {
                    range.on = mv.to;
                    range.moved_s.push(self.now_s);
                    self.moved += RANGE_BYTES;
                    self.free[mv.to.0 as usize] = self.free[mv.to.0 as usize].checked_sub(RANGE_BYTES).unwrap();
                }
            }
        }
    }

    fn share_moved(&self) -> f64 {
        self.moved as f64 / (self.ranges.len() as u64 * RANGE_BYTES) as f64
    }

    fn moves_of_one(&self) -> usize {
        self.ranges.iter().map(|range| range.moved_s.len()).max().unwrap_or(0)
    }
}

/// As the defaults, with little memory to spare and no limit of the rate.
fn settings() -> Settings {
    Settings { reserve_bytes: 64.0 * MIB as f64, rate: f64::INFINITY, ..Settings::default() }
}

/// Reads of these ranges, the first most often: `bytes` for the first, half for the second, and so
/// on.
fn zipf(ranges: impl Iterator<Item = usize>, by: u32, bytes: u64) -> Vec<(usize, u32, u64)> {
    ranges.enumerate().map(|(rank, range)| (range, by, bytes / (rank as u64 + 1))).collect()
}

#[test]
fn a_hot_tenth_goes_to_its_readers_and_nothing_else() {
    let mut world = World::new(1000, [1 << 40; 2], settings());
    let mut reads = zipf((0..500).step_by(10), 0, 256 * MIB);
    reads.extend(zipf((505..1000).step_by(10), 1, 256 * MIB));
    for window in 0..30 {
        // And each window somebody looks at something else, once.
        let mut all = reads.clone();
        all.push((window * 30 + 1, 0, 2 * MIB));
        let plan = world.window(&all);
        assert!(window >= 2 || plan.moves.is_empty(), "three windows are asked for: {:?}", plan.moves);
    }
    let (near, all) = reads.iter().fold((0, 0), |(near, all), (range, by, bytes)| {
        let here = world.ranges[*range].on == NodeId(*by);
        (near + if here { *bytes } else { 0 }, all + bytes)
    });
    assert!(near as f64 >= 0.9 * all as f64, "{near} of {all}");
    assert!(world.share_moved() <= 0.15, "{}", world.share_moved());
    assert_eq!(world.moves_of_one(), 1);
}

/// The thrash control: everything is hot, and a quarter of it fits. What has become room meanwhile
/// is all that moves later.
#[test]
fn what_is_hot_and_does_not_fit_stays_and_is_named() {
    let room = 250 * RANGE_BYTES;
    let mut world = World::new(1000, [room + HIGH + 64 * MIB; 2], settings());
    let read = |world: &mut World, window: u64| {
        // The order of heat changes from window to window.
        let reads: Vec<_> = (0..1000).map(|i| (i, 0, (20 + (i as u64 * 7 + window * 13) % 11) * MIB)).collect();
        world.window(&reads)
    };
    for window in 0..60 {
        read(&mut world, window);
    }
    assert_eq!(world.moved, room);
    assert!(world.free[0] >= HIGH + 64 * MIB);
    let mut plan = Plan::default();
    for window in 60..120 {
        plan = read(&mut world, window);
    }
    assert_eq!((world.moved, world.moves_of_one()), (room, 1));
    let left = plan.notes.iter().find(|note| note.starts_with("left: ")).unwrap();
    assert!(left.contains("stay on node 2: node 0 has no more room"), "{left}");
}

/// Its blocks are read once, quickly or slowly, or twice because a window ends there.
#[test]
fn a_scan_promotes_nothing() {
    for ranges_a_window in [0.1, 0.4, 1.5, 100.0] {
        let mut world = World::new(1000, [1 << 40; 2], settings());
        let mut at = 0.0f64;
        for _ in 0..200 {
            let mut reads = Vec::new();
            let end = (at + ranges_a_window).min(1000.0);
            while at < end {
                let part = (at.floor() + 1.0).min(end) - at;
                reads.push((at as usize, 0, (part * RANGE_BYTES as f64) as u64));
                at += part;
            }
            let plan = world.window(&reads);
            assert_eq!((plan.moves, plan.notes), (vec![], vec![]), "{ranges_a_window} ranges a window");
        }
    }
}

#[test]
fn nothing_goes_where_the_kernel_has_just_made_room() {
    let mut world = World::new(100, [1 << 40; 2], settings());
    let reads = zipf(0..10, 0, 64 * MIB);
    world.scanned = [4096, 0];
    for _ in 0..10 {
        let plan = world.window(&reads);
        assert_eq!(plan.moves, []);
        assert!(plan.notes.iter().all(|note| note.contains("just reclaimed memory, of node 0")), "{:?}", plan.notes);
    }
    world.scanned = [0; 2];
    for window in 0..10 {
        let plan = world.window(&reads);
        // Each window is told twice: once more with what became of its moves.
        assert_eq!(plan.moves.is_empty() && world.moved == 0, window < 2, "window {window}");
    }
}

#[test]
fn the_rate_is_kept_and_files_rest_between_moves() {
    let rate = 20.0 * RANGE_BYTES as f64;
    let mut world = World::new(1000, [1 << 40; 2], Settings { rate, ..settings() });
    let reads: Vec<_> = (0..1000).map(|i| (i, 0, 16 * MIB)).collect();
    for _ in 0..12 {
        let before = world.moved;
        world.window(&reads);
        assert!((world.moved - before) as f64 <= rate, "{}", world.moved - before);
    }
    // Windows 3, 6, 9, 12: the engine lets a file rest for 3 s.
    assert_eq!(world.moved as f64, 4.0 * rate);
}

/// Pages that are in use were tried again in window after window.
#[test]
fn what_did_not_move_is_left_for_a_minute() {
    let mut world = World::new(10, [1 << 40; 2], settings());
    world.stuck = true;
    let reads = zipf(0..2, 0, 64 * MIB);
    let asked: Vec<usize> = (0..130).filter(|_| !world.window(&reads).moves.is_empty()).collect();
    assert_eq!(asked, [2, 62, 122]);
}

/// A node without room sends to the next only if that is nearer to the readers than where the data
/// is: memory on CXL at 17 is nearer than the other socket at 21.
#[test]
fn the_nearest_with_room_is_the_target() {
    let spare = HIGH + 64 * MIB;
    let mut world = World::new(100, [spare, 1 << 40], settings());
    for _ in 0..5 {
        world.window(&zipf(0..4, 0, 64 * MIB));
    }
    assert_eq!(world.moved, 0);
    let mut world = World::new(100, [1 << 40, spare], settings());
    for _ in 0..5 {
        world.window(&zipf(0..4, 1, 64 * MIB));
    }
    assert!(world.ranges[..4].iter().all(|range| range.on == NodeId(0)), "{:?}", &world.ranges[..4]);
}

#[test]
fn what_did_not_pay_or_was_refused_is_left_alone() {
    for result in [
        OutcomeState::RolledBack { why: "slower".into() },
        OutcomeState::Refused { reason: "dax".into(), why: "is on DAX".into() },
    ] {
        let mut world = World::new(10, [1 << 40; 2], settings());
        let reads = zipf(0..1, 0, 64 * MIB);
        while world.window(&reads).moves.is_empty() {}
        world.ranges[0].on = NodeId(2);
        let subject = Subject::File { file: "8:1:9".into(), generation: 0 };
        let outcome = Outcome { subject, from: NodeId(2), to: NodeId(0), result };
        let told = Snapshot { outcomes: vec![outcome], ..world.snapshot() };
        world.policy.decide(&told.topology(), &told);
        for _ in 0..100 {
            assert_eq!(world.window(&reads).moves, []);
        }
    }
}

/// Memory whose watermarks are not known, or of which no node with CPUs is faster, moves nothing.
#[test]
fn what_is_not_known_does_not_move() {
    let world = || World::new(10, [1 << 40; 2], settings());
    let mut one = world();
    let reads = zipf(0..4, 0, 64 * MIB);
    while one.window(&reads).moves.is_empty() {}
    let heat = |world: &mut World| {
        let mut snapshot = world.snapshot();
        let ranges = (0..4).map(|i| RangeHeat {
            start: i * RANGE_BYTES,
            node: NodeId(2),
            by: NodeId(0),
            bytes: 64 * MIB,
            windows: 9,
        });
        snapshot.files[0].ranges = ranges.collect();
        snapshot
    };
    let moves = |snapshot: &Snapshot| {
        let plan = Promote::new(settings()).decide(&snapshot.topology(), snapshot);
        (plan.moves.first().map(|mv| mv.ranges.clone()), plan.notes)
    };
    let mut snapshot = heat(&mut world());
    assert_eq!(moves(&snapshot).0, Some(vec![FileRange { start: 0, bytes: 4 * RANGE_BYTES }]));
    snapshot.nodes[0].reclaim = None;
    let (none, notes) = moves(&snapshot);
    assert!(none.is_none() && notes[0].contains("what the kernel reclaims on node 0 is not known"), "{notes:?}");
    let mut snapshot = heat(&mut world());
    // High-bandwidth memory has no CPUs either.
    snapshot.nodes.iter_mut().for_each(|node| node.tier = Some(u32::from(node.id != NodeId(2))));
    assert_eq!(moves(&snapshot), (None, vec![]));
    snapshot = heat(&mut world());
    snapshot.files[0].movable = Some(false);
    assert_eq!(moves(&snapshot), (None, vec![]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is read: nothing moves twice in a minute, nor beyond what a node can spare, and
    /// only what was read in three windows.
    #[test]
    fn promotion_is_bounded_for_any_load(
        loads in prop::collection::vec((0usize..40, 0u32..2, 0u64..96, 1usize..20), 1..40),
        room in [0u64..40, 0..40],
    ) {
        let free = room.map(|ranges| ranges * RANGE_BYTES + HIGH + 64 * MIB);
        let mut world = World::new(40, free, settings());
        let mut windows = vec![0u32; 40];
        for (first, by, mib, ranges) in loads {
            let reads: Vec<_> = (first..40).step_by(ranges).map(|range| (range, by, mib * MIB)).collect();
            reads.iter().filter(|read| read.2 > 0).for_each(|read| windows[read.0] += 1);
            let reads: Vec<_> = reads.into_iter().filter(|read| read.2 > 0).collect();
            world.window(&reads);
        }
        prop_assert!(world.moves_of_one() <= 1);
        prop_assert!(world.free.iter().all(|free| *free >= HIGH + 64 * MIB));
        for (range, windows) in world.ranges.iter().zip(windows) {
            prop_assert!(range.moved_s.is_empty() || windows >= 3);
        }
    }
}
