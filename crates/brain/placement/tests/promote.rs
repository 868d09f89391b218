//! Policy promote on a made-up machine whose moves come true: nodes 0 and 1 have CPUs, node 2 does
//! not, and holds files.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;

use placement::promote::{Promote, Settings};
use placement::testing::{self, node};
use placement::{
    FileRange, FileUse, IdleFile, IdleRange, Move, NodeLoad, ObservedFile, Outcome, OutcomeState, Plan, Policy,
    RANGE_BYTES, RangeHeat, Reason, Reclaim, Snapshot, Subject, Thread,
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
    read_s: Option<f64>,
    moved_s: Vec<f64>,
}

struct World {
    ranges: Vec<Range>,
    /// Free memory of each node.
    free: [u64; 3],
    /// Bytes that reclaim has looked at in this window, by node, and that were read in again.
    scanned: [u64; 3],
    refaulted: u64,
    now_s: f64,
    moved: u64,
    /// Pages are in use, and stay where they are.
    stuck: bool,
    /// Windows until what has left a node shows as free there, and what does not yet: when it will,
    /// and where.
    late: u32,
    hidden: Vec<(f64, NodeId)>,
    /// Free pages on lists of each CPU of node 0.
    on_lists: u64,
    /// Ranges of each file.
    per_file: usize,
    /// The service that reads each file; none: nobody is known to.
    services: Vec<&'static str>,
    policy: Promote,
}

impl World {
    fn new(ranges: usize, free: [u64; 2], settings: Settings) -> Self {
        let range = Range { on: NodeId(2), heat: BTreeMap::new(), read_s: None, moved_s: Vec::new() };
        Self {
            ranges: vec![range; ranges],
            free: [free[0], free[1], 1 << 40],
            scanned: [0; 3],
            refaulted: 0,
            now_s: 0.0,
            moved: 0,
            stuck: false,
            late: 0,
            hidden: Vec::new(),
            on_lists: 0,
            per_file: ranges,
            services: Vec::new(),
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
            load.memory_free = self.free[id];
            let scanned = self.scanned.get(id).copied().unwrap_or(0);
            let (refaulted, free_on_lists) = (self.refaulted, if id == 0 { self.on_lists } else { 0 });
            load.reclaim =
                Some(Reclaim { high_watermark: HIGH, free_on_lists, scanned, refaulted, ..Reclaim::default() });
        }
        nodes
    }

    fn snapshot(&self) -> Snapshot {
        let files = self.ranges.chunks(self.per_file).enumerate();
        let (files, idle) = files.map(|(number, ranges)| self.file(number, ranges)).unzip();
        let nodes = self.nodes();
        let threads = self.services.iter().enumerate().map(|(number, service)| {
            let used = FileUse {
                file: testing::file(number as u64),
                read_bytes: testing::bytes(&[(2, 1)]),
                ..FileUse::default()
            };
            let group = Some(format!("/system.slice/{service}/worker").into());
            let allowed_nodes = vec![NodeId(0), NodeId(1)];
            Thread { files: vec![used], group, allowed_nodes, ..testing::thread(number as u32 + 1, 0, &[(2, 1)], 0) }
        });
        let threads = threads.collect();
        Snapshot { version: 2, time_s: self.now_s, window_s: 1.0, nodes, threads, files, idle, ..Snapshot::default() }
    }

    /// The file of this number, as far as it was read in the last window, and as far as it was not.
    fn file(&self, number: usize, all: &[Range]) -> (ObservedFile, IdleFile) {
        let mut ranges = Vec::new();
        for (i, range) in all.iter().enumerate() {
            for ((on, by), (bytes, seen)) in &range.heat {
                let (start, windows) = (i as u64 * RANGE_BYTES, seen.count_ones());
                if seen & 1 == 1 {
                    ranges.push(RangeHeat { start, node: *on, by: *by, bytes: *bytes as u64, windows });
                }
            }
        }
        let idle = |(i, range): (usize, &Range)| {
            let windows = (self.now_s - range.read_s?) as u32;
            let bytes = range.heat.values().map(|(bytes, _)| *bytes).sum::<f64>() as u64;
            let start = i as u64 * RANGE_BYTES;
            (windows > 0 && range.on != NodeId(2)).then_some(IdleRange { start, node: range.on, bytes, windows })
        };
        let idle: Vec<_> = all.iter().enumerate().filter_map(idle).collect();
        let (file, size) = (testing::file(number as u64), Some(all.len() as u64 * RANGE_BYTES));
        let idle = IdleFile { file, generation: None, ranges: idle };
        (ObservedFile { file, size, ranges, ..ObservedFile::default() }, idle)
    }

    /// A window in which these bytes are read of these ranges, by CPUs of these nodes. The moves
    /// of the plan come true at once.
    fn window(&mut self, reads: &[(usize, u32, u64)]) -> Plan {
        self.now_s += 1.0;
        let now_s = self.now_s;
        for (_, node) in self.hidden.extract_if(.., |(at, _)| *at <= now_s) {
            self.free[node.0 as usize] += RANGE_BYTES;
        }
        for range in &mut self.ranges {
            for (bytes, seen) in range.heat.values_mut() {
                *bytes *= (-1.0f64 / 8.0).exp2();
                *seen <<= 1;
            }
        }
        for (range, by, bytes) in reads {
            let range = &mut self.ranges[*range];
            range.read_s = Some(self.now_s);
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
            subject: mv.subject,
            from: mv.from,
            to: mv.to,
            result: OutcomeState::Done { bytes: mv.range_bytes(), failed: 0 },
        });
        let told = Snapshot { outcomes: done.collect(), files: Vec::new(), ..snapshot };
        assert_eq!(self.policy.decide(&told.topology(), &told).moves, []);
        plan
    }

    /// So many windows of the same reads.
    fn windows(&mut self, count: usize, reads: &[(usize, u32, u64)]) {
        (0..count).for_each(|_| _ = self.window(reads));
    }

    fn make(&mut self, mv: &Move) {
        let reason = if mv.to == NodeId(2) { Reason::Demotion } else { Reason::Promotion };
        assert!(mv.subject.is_file() && mv.reason == reason && !mv.ranges.is_empty(), "{mv:?}");
        assert!(mv.ranges.windows(2).all(|pair| pair[0].end() < pair[1].start), "{:?}", mv.ranges);
        let Subject::File(file) = mv.subject else { panic!("{mv:?}") };
        let first = file.ino as usize * self.per_file;
        for part in &mv.ranges {
            assert!(part.start.is_multiple_of(RANGE_BYTES) && part.bytes.is_multiple_of(RANGE_BYTES));
            for range in part.start / RANGE_BYTES..part.end() / RANGE_BYTES {
                let range = &mut self.ranges[first + range as usize];
                if range.on == mv.from {
                    range.on = mv.to;
                    let heat = std::mem::take(&mut range.heat);
                    range.heat = heat.into_iter().map(|((_, by), heat)| ((mv.to, by), heat)).collect();
                    range.moved_s.push(self.now_s);
                    self.moved += RANGE_BYTES;
                    self.free[mv.to.0 as usize] = self.free[mv.to.0 as usize].checked_sub(RANGE_BYTES).unwrap();
                    match self.late {
                        0 => self.free[mv.from.0 as usize] += RANGE_BYTES,
                        late => self.hidden.push((self.now_s + f64::from(late), mv.from)),
                    }
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

    /// The most moves of one range within a minute.
    fn moves_in_a_minute(&self) -> usize {
        let most = |range: &Range| {
            let from = |at: f64| range.moved_s.iter().filter(|later| (at..at + 60.0).contains(*later)).count();
            range.moved_s.iter().map(|at| from(*at)).max().unwrap_or(0)
        };
        self.ranges.iter().map(most).max().unwrap_or(0)
    }

    /// Puts these ranges on node 0, each read once in a first window.
    fn cache(&mut self, ranges: std::ops::Range<usize>, bytes: u64) {
        self.ranges[ranges.clone()].iter_mut().for_each(|range| range.on = NodeId(0));
        let plan = self.window(&ranges.map(|range| (range, 0, bytes)).collect::<Vec<_>>());
        assert_eq!(plan.moves, []);
    }

    fn on(&self, node: u32, ranges: std::ops::Range<usize>) -> usize {
        self.ranges[ranges].iter().filter(|range| range.on == NodeId(node)).count()
    }
}

/// No more than this is free that may be used.
const FULL: u64 = HIGH + 64 * MIB;

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

/// One service's ranges are the hottest by far. Another one's come up as fast, and what it does not
/// want of its share goes to the first.
#[test]
fn each_service_has_a_share_of_the_rate() {
    let settings = Settings { rate: 8.0 * RANGE_BYTES as f64, ..settings() };
    let mut world = World::new(400, [1 << 40; 2], settings);
    world.per_file = 50;
    world.services = ["hog.service"; 6].into_iter().chain(["db.service"; 2]).collect();
    let mut reads: Vec<_> = (0..300).map(|range| (range, 0, 256 * MIB)).collect();
    // Of its two files one is the hotter by far, and rests after each move.
    reads.extend((300..350).map(|range| (range, 0, 16 * MIB)));
    reads.extend((350..360).map(|range| (range, 0, 8 * MIB)));
    // Three windows are asked for, and moves are made from the third on. A file has a dwell.
    world.windows(3, &reads);
    assert_eq!((world.on(0, 0..300), world.on(0, 300..350), world.on(0, 350..400)), (4, 4, 0));
    world.window(&reads);
    assert_eq!((world.on(0, 300..350), world.on(0, 350..400)), (4, 4));
    world.windows(60, &reads);
    assert_eq!(world.on(0, 300..400), 60);
    assert!(world.on(0, 0..300) >= 60, "{}", world.on(0, 0..300));
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

/// DRAM is full of what was read once. What is hot pushes it down, range for range, the oldest
/// first, and nothing else.
#[test]
fn colder_cache_makes_room() {
    let mut world = World::new(1000, [FULL, FULL], settings());
    world.cache(0..300, 2 * MIB);
    world.cache(300..500, 2 * MIB);
    let reads: Vec<_> = (900..950).map(|range| (range, 0, 16 * MIB)).collect();
    for window in 0..60 {
        let plan = world.window(&reads);
        // The youngest of them is as old as a promoted range stays.
        assert!(window >= 57 || plan.moves.is_empty(), "{window}: {:?}", plan.moves);
    }
    world.windows(20, &reads);
    assert_eq!((world.on(0, 900..950), world.on(2, 0..300), world.on(2, 300..500)), (50, 50, 0));
    assert_eq!((world.moved, world.moves_of_one()), (100 * RANGE_BYTES, 1));
    assert!(world.free[0] >= FULL);
    // Where all of it is cold by then, too, the oldest goes.
    let mut world = World::new(1000, [FULL, FULL], settings());
    world.cache(100..400, 2 * MIB);
    world.cache(0..100, 2 * MIB);
    world.cache(400..500, 2 * MIB);
    world.windows(70, &[]);
    world.windows(20, &reads);
    assert_eq!((world.on(0, 900..950), world.on(2, 100..400), world.on(2, 0..500)), (50, 50, 50));
}

/// What went down did not show as free at once, and window after window sent more. Now as much goes
/// as comes, however late it shows, and what turns hot later gets its own room.
#[test]
fn what_is_not_shown_as_free_yet_is_not_made_again() {
    for late in [0, 1, 2, 5, 20] {
        let mut world = World::new(1000, [FULL, FULL], settings());
        (world.late, world.per_file) = (late, 10);
        world.cache(0..500, 2 * MIB);
        world.windows(60, &[]);
        for (more, hot) in [(0, 900..910), (1, 900..950), (2, 850..950)] {
            let reads: Vec<_> = hot.clone().map(|range| (range, 0, 16 * MIB)).collect();
            for window in 0..60 {
                world.window(&reads);
                let (down, up) = (world.on(2, 0..500), hot.len());
                assert!(down <= up, "{late} windows late, {more}, {window}: {down} went down for {up}");
            }
            assert_eq!((world.on(0, hot.clone()), world.on(2, 0..500)), (hot.len(), hot.len()), "{late}, {more}");
        }
        assert!(world.free[0] >= FULL && world.moves_of_one() == 1);
    }
}

/// What went down stayed on lists of CPUs for good, and was never free by the kernel's count. It
/// counts in the reserve, but not for all of it.
#[test]
fn free_pages_on_lists_are_a_part_of_the_reserve() {
    for (on_lists, near) in [(0, 0), (20 * MIB, 10), (32 * MIB, 16), (100 * MIB, 16)] {
        let mut world = World::new(1000, [FULL, FULL], settings());
        world.on_lists = on_lists;
        let reads: Vec<_> = (900..950).map(|range| (range, 0, 16 * MIB)).collect();
        world.windows(3, &reads);
        assert_eq!(world.on(0, 900..950), near, "{on_lists}");
    }
}

/// Somebody else took what had become free: it is made again, after a while.
#[test]
fn room_that_others_take_is_made_again() {
    let mut world = World::new(1000, [FULL, FULL], settings());
    (world.late, world.per_file) = (5, 10);
    world.cache(0..500, 2 * MIB);
    world.windows(60, &[]);
    let reads: Vec<_> = (900..910).map(|range| (range, 0, 16 * MIB)).collect();
    while world.on(2, 0..500) == 0 {
        world.window(&reads);
    }
    world.hidden.clear();
    world.windows(90, &reads);
    assert_eq!((world.on(0, 900..910), world.on(2, 0..500)), (10, 20));
}

/// A node with less free than is to stay free gets that back first.
#[test]
fn what_is_to_stay_free_becomes_free_first() {
    let mut world = World::new(1000, [FULL - 20 * MIB, FULL], settings());
    world.cache(0..300, 2 * MIB);
    let reads: Vec<_> = (900..905).map(|range| (range, 0, 16 * MIB)).collect();
    world.windows(80, &reads);
    assert_eq!((world.on(0, 900..905), world.on(2, 0..300)), (5, 15));
    assert_eq!(world.free[0], FULL);
}

/// What is there was read as much: nothing moves, and the plan says so.
#[test]
fn what_is_not_colder_by_the_margin_stays() {
    // An eighth of a hot range is read lately after three half-lives.
    for (mib, stays) in [(30_000, true), (300, false)] {
        let mut world = World::new(1000, [FULL, FULL], settings());
        world.cache(0..300, mib * MIB);
        let reads: Vec<_> = (900..950).map(|range| (range, 0, MIB)).collect();
        let mut plan = Plan::default();
        for _ in 0..62 {
            plan = world.window(&reads);
        }
        assert_eq!(world.moved == 0, stays, "{mib}: {}", world.moved);
        let left = plan.notes.iter().find(|note| note.starts_with("left: ")).unwrap();
        let said = "; nothing that is known there is colder by the margin";
        assert_eq!(left.ends_with(said), stays, "{left}");
    }
    // Nor does anything that is read in each window.
    let mut world = World::new(1000, [FULL, FULL], settings());
    world.cache(0..300, 2 * MIB);
    let mut reads: Vec<_> = (900..950).map(|range| (range, 0, 64 * MIB)).collect();
    reads.extend((0..300).map(|range| (range, 0, MIB)));
    for _ in 0..200 {
        assert_eq!(world.window(&reads).moves, []);
    }
    // Nor goes anything where it has no room.
    let mut world = World::new(1000, [FULL, FULL], settings());
    world.free[2] = FULL;
    world.cache(0..300, 2 * MIB);
    let reads: Vec<_> = (900..950).map(|range| (range, 0, 16 * MIB)).collect();
    let plans: Vec<Plan> = (0..100).map(|_| world.window(&reads)).collect();
    assert!(plans.iter().all(|plan| plan.moves.is_empty()));
    let last = plans.last().unwrap();
    assert!(last.notes[0].contains("slower memory has no room"), "{:?}", last.notes);
}

/// The load moves on through the file. Where there is room, what it leaves stays; where there is
/// none, it goes down for what comes, never more than twice a minute.
#[test]
fn what_the_load_left_goes_down_only_when_room_is_wanted() {
    for (room, down) in [(1000, false), (50, true)] {
        let mut world = World::new(1000, [FULL + room * RANGE_BYTES, FULL], settings());
        for phase in 0..10 {
            let reads: Vec<_> = (phase * 50..phase * 50 + 50).map(|range| (range, 0, 16 * MIB)).collect();
            world.windows(100, &reads);
            assert_eq!(world.on(0, phase * 50..phase * 50 + 50), 50, "phase {phase}, room for {room}");
        }
        assert_eq!(world.on(0, 0..450), if down { 0 } else { 450 });
        assert!(world.moves_in_a_minute() <= 2 && world.free[0] >= FULL);
    }
}

/// Both loads want all that fits, in turns: a range goes up and down again, but seldom.
#[test]
fn a_load_that_goes_back_and_forth_moves_no_range_more_than_twice_a_minute() {
    for period in [5, 20, 45, 61, 70, 90] {
        let mut world = World::new(200, [FULL + 50 * RANGE_BYTES, FULL], settings());
        for window in 0..600 {
            let first = if window / period % 2 == 0 { 0 } else { 100 };
            world.window(&(first..first + 50).map(|range| (range, 0, 16 * MIB)).collect::<Vec<_>>());
        }
        assert!(world.moves_in_a_minute() <= 2, "{period}: {}", world.moves_in_a_minute());
        // Ten minutes: promotion and demotion at most once in each stay.
        assert!(world.moves_of_one() <= 20, "{period}: {}", world.moves_of_one());
    }
}

/// Each turn of a load that goes in circles copied all of it twice, for ever.
#[test]
fn what_goes_down_and_comes_back_stays_ever_longer() {
    for period in [70, 90] {
        let mut world = World::new(200, [FULL + 50 * RANGE_BYTES, FULL], settings());
        for window in 0..3600 {
            let first = if window / period % 2 == 0 { 0 } else { 100 };
            world.window(&(first..first + 50).map(|range| (range, 0, 16 * MIB)).collect::<Vec<_>>());
        }
        // 80 or so without it.
        assert!(world.moves_of_one() <= 24, "{period}: {}", world.moves_of_one());
    }
}

/// The oldest was read much and is not colder, and the rest hid behind it.
#[test]
fn one_that_is_not_colder_hides_no_other() {
    let mut world = World::new(1000, [FULL, FULL], settings());
    world.cache(0..1, 1 << 40);
    world.cache(1..300, 2 * MIB);
    world.ranges[0].on = NodeId(0);
    let reads: Vec<_> = (900..950).map(|range| (range, 0, 16 * MIB)).collect();
    world.windows(80, &reads);
    assert_eq!((world.on(0, 900..950), world.on(0, 0..1)), (50, 1));
}

/// It was said that slower memory has no room.
#[test]
fn pressure_below_is_told_apart_from_want_of_room() {
    let mut world = World::new(1000, [FULL, FULL], settings());
    world.cache(0..300, 2 * MIB);
    let reads: Vec<_> = (900..950).map(|range| (range, 0, 16 * MIB)).collect();
    world.scanned[2] = 9;
    let plans: Vec<Plan> = (0..100).map(|_| world.window(&reads)).collect();
    let last = plans.last().unwrap();
    assert!(last.notes[0].ends_with("; the kernel has just reclaimed memory of the slower nodes"), "{:?}", last.notes);
}

/// What comes up and what goes down share the rate.
#[test]
fn moves_down_count_in_the_rate() {
    let rate = 10.0 * RANGE_BYTES as f64;
    let mut world = World::new(1000, [FULL + 10 * RANGE_BYTES, FULL], Settings { rate, ..settings() });
    world.cache(0..500, 2 * MIB);
    let reads: Vec<_> = (900..960).map(|range| (range, 0, 16 * MIB)).collect();
    for _ in 0..150 {
        let before = world.moved;
        world.window(&reads);
        assert!((world.moved - before) as f64 <= rate, "{}", world.moved - before);
    }
    assert_eq!((world.on(0, 900..960), world.on(2, 0..500)), (60, 50));
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
    world.scanned = [4096, 0, 0];
    for _ in 0..10 {
        let plan = world.window(&reads);
        assert_eq!(plan.moves, []);
        assert!(
            plan.notes.iter().all(|note| note.contains("just reclaimed or demoted memory of node 0")),
            "{:?}",
            plan.notes
        );
    }
    world.scanned = [0; 3];
    for window in 0..10 {
        let plan = world.window(&reads);
        // Each window is told twice: once more with what became of its moves.
        assert_eq!(plan.moves.is_empty() && world.moved == 0, window < 2, "window {window}");
    }
}

/// A container at its limit reads in again what it had to give up, on a node with free memory: that
/// stopped promotion for everybody. After real reclaim it means that the node still lacks memory.
#[test]
fn refaults_count_only_where_the_node_was_short_of_memory() {
    let mut world = World::new(100, [1 << 40; 2], settings());
    let reads = zipf(0..10, 0, 64 * MIB);
    world.refaulted = 4096;
    world.windows(5, &reads);
    assert_eq!(world.moved, 10 * RANGE_BYTES);
    let mut world = World::new(100, [1 << 40; 2], settings());
    (world.refaulted, world.scanned) = (4096, [4096, 0, 0]);
    world.window(&reads);
    world.scanned = [0; 3];
    (0..20).for_each(|_| assert_eq!(world.window(&reads).moves, []));
    world.refaulted = 0;
    world.windows(5, &reads);
    assert_eq!(world.moved, 10 * RANGE_BYTES);
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
    world.windows(5, &zipf(0..4, 0, 64 * MIB));
    assert_eq!(world.moved, 0);
    let mut world = World::new(100, [1 << 40, spare], settings());
    world.windows(5, &zipf(0..4, 1, 64 * MIB));
    assert!(world.ranges[..4].iter().all(|range| range.on == NodeId(0)), "{:?}", &world.ranges[..4]);
}

#[test]
fn what_did_not_pay_or_was_refused_is_left_alone() {
    for result in [
        OutcomeState::RolledBack { why: "slower".into() },
        OutcomeState::Refused { reason: "dax".into(), why: "is on DAX".into() },
        // The engine leaves what did not pay alone for longer. Asked for in each window, it took
        // the rate of all others.
        OutcomeState::HeldBack { rail: "left_alone".into(), why: "it did not pay".into() },
        OutcomeState::HeldBack { rail: "guardrail".into(), why: "its service reads less".into() },
    ] {
        let mut world = World::new(10, [1 << 40; 2], settings());
        let reads = zipf(0..1, 0, 64 * MIB);
        while world.window(&reads).moves.is_empty() {}
        world.ranges[0].on = NodeId(2);
        let subject = Subject::File(testing::file(0));
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
    // A GPU's memory has no tier.
    snapshot.nodes[2].tier = None;
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
