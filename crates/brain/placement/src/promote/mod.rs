//! Promotion: ranges of files that are read again and again move from slower memory to the node of
//! their readers, while that node has room.
//!
//! **Problem.** Cached file data on memory without CPUs (CXL, persistent memory) stays there when
//! it is read by `read()`: the kernel promotes mapped pages only. A program that promotes whatever
//! is hot does harm, too: what does not fit pushes out something else, which comes back, and so on.
//! In the author's measurements of kernel patches for the promotion of unmapped page cache (G.
//! Price, 2024 to 2025, not merged), a file that is hot everywhere and larger than DRAM *lost* a
//! quarter of its throughput: 47.6 GiB/s in place of 64.5.
//!
//! **Approach.** A range of 2 MiB is hot if it was read in several windows ([`Settings::windows`]:
//! a program that reads through a file is there once) and lately so many times over that a copy is
//! cheaper than that ([`Settings::reads`]). It goes to the node with CPUs that is nearest to its
//! readers, nearer than where it is, and has room. Room is what is free above the kernel's high
//! watermark and a reserve, so promotion itself causes no reclaim; free pages that the kernel keeps
//! on lists of each CPU count in up to half of the reserve; and a node where the kernel reclaimed
//! or demoted in the last windows has none. Swapping and reading in again prolong that, and mean
//! nothing else: a control group at its limit does both. The hottest come first, but each service
//! with hot ranges has an equal share of the rate, and only what it leaves is for others: heat is
//! what any program can make. A range stays for a time after its move ([`Settings::stay_s`]). A
//! file has one move at a time, its ranges in ascending order.
//!
//! When there is no more room, ranges that were not read for as long as that go down to slower
//! memory, those first that were not read for longest, and only if they were read four times more
//! rarely than what comes up for them. They are those that the plane knows
//! ([`Snapshot::idle`]): reads of them were counted, and where they were then. What goes down and
//! what comes up share one rate. A range that comes up again soon after it went down stays twice as
//! long, and each further time twice as long again: a load that goes in circles is not followed.
//! Where nothing is colder, promotion ends: what was promoted stays, and the plan says what is left
//! and why. What comes up waits until the node has the room, so a range that the kernel had
//! reclaimed before it could go down costs nothing but a look. What is to go down is bounded by
//! what was made already: the bytes on their way and those that have left the node count until
//! something comes up in their place, or until they must have shown (`cold::Made`).
//!
//! **Limits.** Heat comes from samples: a range that a slow reader passes once can look as if it
//! had been read twice. What programs reclaim themselves counts for every node, so promotion also
//! pauses where it need not. What was cached before homenode began to count, and not read since,
//! does not go down; nor do files and ends of files below 2 MiB, and pages that programs map. A
//! range that the kernel itself sends down again stays there for its stay, an hour at most. A plane
//! lists some of the ranges that nobody reads, and the oldest of all may have to wait for their
//! turn. Room that somebody else takes before it shows is made again after a minute only. Data
//! on the memory of another socket is no slower memory: there, threads go to their data. Ranges
//! that a window does not list are not known. Without a plane that tells what the kernel reclaims,
//! nothing moves.

mod cold;
mod nodes;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use topology::{FileId, NodeId, Topology};

use crate::numbers::{not_negative, positive};
use crate::processes::show;
use crate::services;
use crate::{
    FileRange, Move, ObservedFile, OutcomeState, Plan, Policy, RANGE_BYTES, RangeHeat, Reason, Reclaim, Snapshot,
    Subject, Traits, Wish,
};
use cold::{Down, Made, Wanted};
use nodes::Nodes;

/// The settings of promotion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// In how many of the last 32 windows a range must have been read. A program that reads through
    /// a file is at a range once, or twice if a window ends there.
    pub windows: u32,
    /// How many times over a range must have been read lately; half of what was read eight windows
    /// ago counts. One copy reads and writes it once, so from 2 on it has paid back after as many
    /// reads again. A single pass is 1 on average, of small reads more or less by chance.
    #[serde(deserialize_with = "positive")]
    pub reads: f64,
    /// Bytes of a node that stay free beside the high watermark: what programs on it can allocate
    /// until the kernel must reclaim. Chosen: a second of a program that touches new memory as fast
    /// as one thread can (about 1 GB/s).
    #[serde(deserialize_with = "topology::units::bytes_limit")]
    pub reserve_bytes: f64,
    /// Bytes promoted per second: half of `moves.rate`, so that other copies go on.
    #[serde(deserialize_with = "topology::units::rate_limit")]
    pub rate: f64,
    /// For how many windows after the kernel has reclaimed memory of a node nothing is promoted to
    /// it: as many as a plan is compared over (`moves.rollback`).
    pub quiet_windows: u32,
    /// Seconds for which a range stays after it was promoted, and for which a range must not have
    /// been read before it goes down.
    #[serde(deserialize_with = "not_negative")]
    pub stay_s: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { windows: 3, reads: 2.0, reserve_bytes: 1e9, rate: 2.5e8, quiet_windows: 5, stay_s: 60.0 }
    }
}

impl Settings {
    /// Seconds for which a range stays that went down so many times.
    fn stay_after(&self, times: u32) -> f64 {
        self.stay_s * f64::from(1_u32 << times.min(MOST_DOUBLED))
    }
}

/// Rails that hold a file back for longer than a few windows.
const LONG_RAILS: [&str; 4] = ["left_alone", "backoff", "bytes_per_day", "guardrail"];

/// How often the stay of a range is doubled: to about an hour.
const MOST_DOUBLED: u32 = 6;

/// A range that is hot and on slow memory.
#[derive(Clone, Copy, Debug)]
struct Hot {
    file: usize,
    start: u64,
    /// Its bytes: 2 MiB, or less at the end of the file.
    size: u64,
    from: NodeId,
    /// The node of those who read most of it.
    by: NodeId,
    /// Bytes read lately.
    heat: u64,
}

/// What was asked for and has not ended yet.
#[derive(Clone, Debug)]
struct Asked {
    from: NodeId,
    to: NodeId,
    starts: Vec<u64>,
    /// It makes room.
    down: bool,
    /// Bytes that are not there yet, and those that are by its last outcome.
    left: u64,
    done: u64,
    at_s: f64,
}

/// Why hot ranges stay, for the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Left {
    NoRoom,
    Pressure,
    Unknown,
    NotNearer,
    Later,
}

/// The policy; see the module.
#[derive(Default)]
pub struct Promote {
    settings: Settings,
    /// Windows since the kernel reclaimed memory of a node.
    quiet: FxHashMap<NodeId, u32>,
    asked: FxHashMap<Subject, Asked>,
    /// What left each node to make room there, and has not been used yet.
    made: Made,
    /// Until when each range stays that was promoted.
    moved: FxHashMap<Subject, BTreeMap<u64, f64>>,
    /// When each range last went down, and how often without a longer stay below.
    down: FxHashMap<Subject, BTreeMap<u64, (f64, u32)>>,
    last: FxHashMap<Subject, f64>,
    /// Until when files are left alone whose promotion did not pay or was refused.
    alone: FxHashMap<Subject, f64>,
}

impl Promote {
    /// Creates a policy without history.
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Learns what the kernel reclaims, and what became of earlier moves.
    pub(crate) fn follow(&mut self, snapshot: &Snapshot) {
        for node in &snapshot.nodes {
            let quiet = self.quiet.entry(node.id).or_insert(self.settings.quiet_windows);
            let lately = *quiet < self.settings.quiet_windows;
            let pressed = |reclaim: &Reclaim| reclaim.pressure() > 0 || lately && reclaim.after_pressure() > 0;
            let pressed = node.reclaim.as_ref().is_some_and(pressed);
            *quiet = if pressed { 0 } else { quiet.saturating_add(1) };
        }
        let now = snapshot.time_s;
        for outcome in snapshot.outcomes.iter().filter(|outcome| outcome.subject.is_file()) {
            let subject = &outcome.subject;
            match &outcome.result {
                OutcomeState::Queued | OutcomeState::Running { .. } => {
                    if let Some(asked) = self.asked.get_mut(subject) {
                        asked.at_s = now;
                        // The engine's dwell begins when the move does.
                        if matches!(outcome.result, OutcomeState::Running { .. }) {
                            self.last.insert(*subject, now);
                        }
                        // Until it has counted its bytes, a copy reports none.
                        if let OutcomeState::Running { bytes: bytes @ 1.., done } = &outcome.result {
                            asked.left = bytes.saturating_sub(*done);
                            self.made.arrived(asked, *done, now);
                        }
                    }
                }
                OutcomeState::HeldBack { rail, .. } => {
                    self.not_moved(subject);
                    // Asked for in each window, it would take the rate of all others.
                    if LONG_RAILS.contains(&rail.as_str()) {
                        self.alone.insert(*subject, now + snapshot.pace.again_s);
                    }
                }
                OutcomeState::Failed { bytes: 0, .. } => self.not_moved(subject),
                OutcomeState::Done { bytes, .. } | OutcomeState::Failed { bytes, .. } => {
                    if let Some(mut asked) = self.asked.remove(subject) {
                        self.made.arrived(&mut asked, *bytes, now);
                    }
                }
                OutcomeState::Refused { .. } | OutcomeState::RolledBack { .. } => {
                    self.not_moved(subject);
                    self.alone.insert(*subject, now + snapshot.pace.again_s);
                }
                OutcomeState::Gone => {
                    self.asked.remove(subject);
                    self.moved.remove(subject);
                    self.down.remove(subject);
                }
            }
        }
        let stay_s = self.settings.stay_s;
        // A recording does not say what became of moves.
        self.asked.retain(|_, asked| now - asked.at_s <= stay_s);
        self.made.forget(now, snapshot.window_s);
        self.moved.retain(|_, ranges| {
            ranges.retain(|_, until| now < *until);
            !ranges.is_empty()
        });
        self.down.retain(|_, ranges| {
            ranges.retain(|_, (at, times)| now - *at < 2.0 * self.settings.stay_after(*times));
            !ranges.is_empty()
        });
        self.last.retain(|_, at| now - *at < snapshot.pace.dwell_s);
        self.alone.retain(|_, until| now < *until);
    }

    /// A move that was asked for was not made.
    fn not_moved(&mut self, subject: &Subject) {
        let Some(asked) = self.asked.remove(subject) else { return };
        for start in &asked.starts {
            match asked.down {
                true => {
                    if let Some(down) = self.down.get_mut(subject)
                        && let Some((_, times)) = down.get_mut(start)
                    {
                        *times = times.saturating_sub(1);
                        if *times == 0 {
                            down.remove(start);
                        }
                    }
                }
                false => _ = self.moved.get_mut(subject).map(|moved| moved.remove(start)),
            }
        }
        self.last.remove(subject);
    }

    /// The hot ranges on slow memory, the hottest first.
    fn hot(&self, nodes: &Nodes, snapshot: &Snapshot) -> Vec<Hot> {
        let mut hot = Vec::new();
        for (file, observed) in snapshot.files.iter().enumerate() {
            if observed.movable == Some(false) || observed.ranges.is_empty() {
                continue;
            }
            let subject = Subject::file(observed);
            if self.alone.contains_key(&subject) {
                continue;
            }
            let moved = self.moved.get(&subject);
            for range in observed.ranges.chunk_by(|a, b| a.start == b.start) {
                let Some(found) = self.range(nodes, file, observed, range) else { continue };
                if !moved.is_some_and(|moved| moved.contains_key(&found.start)) {
                    hot.push(found);
                }
            }
        }
        hot.sort_by_key(|hot| (Reverse(hot.heat), hot.file, hot.start));
        hot
    }

    /// The range, if it is hot and on slow memory.
    fn range(&self, nodes: &Nodes, file: usize, observed: &ObservedFile, entries: &[RangeHeat]) -> Option<Hot> {
        let start = entries.first()?.start;
        let size = observed.size.map_or(RANGE_BYTES, |size| size.saturating_sub(start).min(RANGE_BYTES));
        let (mut on, mut readers) = (BTreeMap::<NodeId, u64>::new(), BTreeMap::<NodeId, u64>::new());
        for entry in entries.iter().filter(|entry| nodes.is_slow(entry.node)) {
            let sum = on.entry(entry.node).or_default();
            *sum = sum.saturating_add(entry.bytes);
        }
        let (&from, &heat) = on.iter().max_by_key(|(node, bytes)| (**bytes, Reverse(**node)))?;
        let mut windows = 0;
        for entry in entries.iter().filter(|entry| entry.node == from) {
            let sum = readers.entry(entry.by).or_default();
            *sum = sum.saturating_add(entry.bytes);
            windows = windows.max(entry.windows);
        }
        let (&by, _) = readers.iter().max_by_key(|(node, bytes)| (**bytes, Reverse(**node)))?;
        let hot = size > 0 && windows >= self.settings.windows && heat as f64 >= self.settings.reads * size as f64;
        hot.then_some(Hot { file, start, size, from, by, heat })
    }
}

impl Policy for Promote {
    fn name(&self) -> &'static str {
        "promote"
    }

    fn traits(&self) -> Traits {
        Traits { moves_files: true, wants_ranges: Wish::Needed, wants_idle: true, ..Traits::default() }
    }

    fn decide(&mut self, _: &Topology, snapshot: &Snapshot) -> Plan {
        self.follow(snapshot);
        self.choose(snapshot)
    }
}

impl Promote {
    /// What moves after a window that was [followed](Self::follow).
    pub(crate) fn choose(&mut self, snapshot: &Snapshot) -> Plan {
        let mut plan = Plan::new(self.name());
        let mut nodes = Nodes::new(snapshot, &self.settings, &self.quiet);
        for asked in self.asked.values() {
            nodes.take(asked.to, asked.left);
        }
        // What is hot, by file, with the nodes of its move, and the reasons for what is left. A
        // file has one move at a time: that of its hottest range.
        let mut chosen: BTreeMap<usize, ((NodeId, NodeId), Vec<Hot>)> = BTreeMap::new();
        let mut left: BTreeMap<(NodeId, NodeId, Left), (usize, u64)> = BTreeMap::new();
        let mut wanted: BTreeMap<NodeId, Wanted> = BTreeMap::new();
        let mut budget = self.settings.rate * snapshot.window_s;
        let can_move = |hot: &Hot| {
            let subject = snapshot.files.get(hot.file).map(Subject::file);
            !subject.is_some_and(|subject| self.is_busy(&subject)) && nodes.target(hot.by, hot.from, hot.size).is_ok()
        };
        let hot = by_service(self.hot(&nodes, snapshot), budget, snapshot, can_move);
        let all = hot.len();
        for one in hot {
            let subject = snapshot.files.get(one.file).map(Subject::file);
            let busy = subject.is_some_and(|subject| self.is_busy(&subject));
            let target = nodes.target(one.by, one.from, one.size);
            let (to, why) = match target {
                Ok(to) if !busy && budget > 0.0 => {
                    let (of, ranges) = chosen.entry(one.file).or_insert_with(|| ((one.from, to), Vec::new()));
                    if *of == (one.from, to) {
                        nodes.take(to, one.size);
                        budget -= one.size as f64;
                        ranges.push(one);
                        continue;
                    }
                    (to, Left::Later)
                }
                Ok(_) => (one.by, Left::Later),
                Err(Left::NoRoom) => {
                    let to = nodes.nearest(one.by, one.from).unwrap_or(one.by);
                    wanted.entry(to).or_default().push(&one);
                    (to, Left::NoRoom)
                }
                Err(why) => (one.by, why),
            };
            let sum = left.entry((one.from, to, why)).or_default();
            *sum = (sum.0 + 1, sum.1.saturating_add(one.size));
        }
        let comes_up: FxHashSet<Subject> =
            chosen.keys().filter_map(|file| snapshot.files.get(*file)).map(Subject::file).collect();
        let busy = |subject: &Subject| self.is_busy(subject) || comes_up.contains(subject);
        let mut downs = BTreeMap::new();
        let mut made = BTreeMap::new();
        for (node, wanted) in &wanted {
            let room = self.make_room((*node, wanted), snapshot, &mut nodes, &mut budget, &mut downs, &busy);
            made.insert(*node, room);
        }
        plan.moves.extend(downs.into_values().map(|down| self.send_down(down, snapshot)));
        let room_of: BTreeMap<NodeId, String> = wanted.keys().map(|node| (*node, nodes.room_of(*node))).collect();
        for (file, (nodes, mut ranges)) in chosen {
            ranges.sort_by_key(|hot| hot.start);
            let size = ranges.iter().fold(0u64, |sum, hot| sum.saturating_add(hot.size));
            if let Some(observed) = snapshot.files.get(file) {
                plan.moves.push(self.promote(observed, nodes, &ranges, size, snapshot));
            }
        }
        plan.notes.extend(left.into_iter().map(|((from, to, why), (ranges, bytes))| {
            let reason = match why {
                Left::NoRoom => {
                    let (room, more) = (room_of.get(&to).cloned().unwrap_or_default(), made.get(&to));
                    format!("node {to} has no more room: {room}{}", more.map_or("", |more| more.said()))
                }
                Left::Pressure => format!("the kernel has just reclaimed or demoted memory of node {to}"),
                Left::Unknown => format!("what the kernel reclaims on node {to} is not known"),
                Left::NotNearer => format!("no memory is nearer to its readers on node {to} and faster"),
                Left::Later => format!("for a later window (node {to})"),
            };
            format!("left: {ranges} of {all} hot ranges ({}) stay on node {from}: {reason}", show(bytes as f64))
        }));
        plan
    }

    /// Whether a file is being moved, or was just now.
    fn is_busy(&self, subject: &Subject) -> bool {
        self.asked.contains_key(subject) || self.last.contains_key(subject)
    }

    /// The move of ranges to slower memory.
    fn send_down(&mut self, down: Down, snapshot: &Snapshot) -> Move {
        let Down { subject, from, to, mut starts, windows } = down;
        starts.sort_unstable();
        let ranges = joined(starts.iter().map(|start| (*start, RANGE_BYTES)));
        let left = starts.len() as u64 * RANGE_BYTES;
        let why = format!(
            "{} ranges of 2 MiB ({}) were not read for {windows} windows, and what is read there wants their place",
            starts.len(),
            show(left as f64)
        );
        self.last.insert(subject, snapshot.time_s);
        let down = self.down.entry(subject).or_default();
        for start in &starts {
            let (at, times) = down.entry(*start).or_default();
            (*at, *times) = (snapshot.time_s, (*times + 1).min(MOST_DOUBLED));
        }
        let at_s = snapshot.time_s;
        self.asked.insert(subject, Asked { from, to, starts, down: true, left, done: 0, at_s });
        Move { subject, pid: 0, from, to, reason: Reason::Demotion, why: why.into(), ranges }
    }

    /// The move of these ranges, by rising start.
    fn promote(
        &mut self,
        file: &ObservedFile,
        (from, to): (NodeId, NodeId),
        ranges: &[Hot],
        size: u64,
        snapshot: &Snapshot,
    ) -> Move {
        let subject = Subject::file(file);
        let heat = ranges.iter().fold(0u64, |sum, hot| sum.saturating_add(hot.heat));
        let parts = joined(ranges.iter().map(|hot| (hot.start, hot.size)));
        let starts: Vec<u64> = ranges.iter().map(|hot| hot.start).collect();
        let down = self.down.get(&subject);
        let times = |start: &u64| down.and_then(|down| down.get(start)).map_or(0, |(_, times)| *times);
        let until = |start: &u64| snapshot.time_s + self.settings.stay_after(times(start));
        self.moved.entry(subject).or_default().extend(starts.iter().map(|start| (*start, until(start))));
        self.last.insert(subject, snapshot.time_s);
        let at_s = snapshot.time_s;
        self.asked.insert(subject, Asked { from, to, starts, down: false, left: size, done: 0, at_s });
        let why = format!(
            "{} ranges of 2 MiB ({}) were read {:.1} times over lately, from slower memory",
            ranges.len(),
            show(size as f64),
            heat as f64 / size.max(1) as f64
        );
        Move { subject, pid: 0, from, to, reason: Reason::Promotion, why: why.into(), ranges: parts }
    }
}

/// The hottest first that can move now and fit into their service's share of the budget, then the
/// others. A file is of the service that read most of it.
fn by_service(hot: Vec<Hot>, budget: f64, snapshot: &Snapshot, can_move: impl Fn(&Hot) -> bool) -> Vec<Hot> {
    let files: FxHashSet<usize> = hot.iter().map(|hot| hot.file).collect();
    let numbers: FxHashMap<FileId, usize> =
        files.iter().filter_map(|number| Some((snapshot.files.get(*number)?.file, *number))).collect();
    let mut readers: BTreeMap<(usize, &str), u64> = BTreeMap::new();
    for thread in snapshot.threads.iter().chain(&snapshot.ended) {
        for used in &thread.files {
            if let Some(number) = numbers.get(&used.file) {
                let service = thread.group.as_deref().map_or("", services::path);
                let sum = readers.entry((*number, service)).or_default();
                *sum = sum.saturating_add(used.read_bytes.total());
            }
        }
    }
    let mut service: FxHashMap<usize, (u64, &str)> = files.iter().map(|number| (*number, (0, ""))).collect();
    for ((number, name), bytes) in readers {
        if let Some(most) = service.get_mut(&number).filter(|most| bytes > most.0) {
            *most = (bytes, name);
        }
    }
    let of = |hot: &Hot| service.get(&hot.file).map_or("", |most| most.1);
    let mut shares: FxHashMap<&str, f64> = hot.iter().filter(|hot| can_move(hot)).map(|hot| (of(hot), 0.0)).collect();
    let share = budget / shares.len() as f64;
    let (first, others): (Vec<Hot>, Vec<Hot>) = hot.into_iter().partition(|hot| {
        let Some(taken) = shares.get_mut(of(hot)).filter(|_| can_move(hot)) else { return false };
        let fits = *taken < share;
        *taken += hot.size as f64;
        fits
    });
    first.into_iter().chain(others).collect()
}

/// Ranges by rising start as the parts of a file: those that touch are one.
fn joined(ranges: impl Iterator<Item = (u64, u64)>) -> Vec<FileRange> {
    let mut parts: Vec<FileRange> = Vec::new();
    for (start, bytes) in ranges {
        match parts.last_mut() {
            Some(last) if last.end() == start => last.bytes = last.bytes.saturating_add(bytes),
            _ => parts.push(FileRange { start, bytes }),
        }
    }
    parts
}
