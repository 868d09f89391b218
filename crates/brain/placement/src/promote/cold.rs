//! Room for what is hot: which cold ranges go down for it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use topology::NodeId;

use super::nodes::Nodes;
use super::{Asked, Hot, Promote};
use crate::{RANGE_BYTES, Snapshot, Subject};

/// What comes up must have been read so many times as often as what goes down for it: an exchange
/// copies twice what a promotion does, and of two ranges that are nearly alike the other may be the
/// hotter one in the next window.
pub(super) const COLDER: f64 = 4.0;

/// What is hot and has no room on a node, the hottest first.
#[derive(Debug, Default)]
pub(super) struct Wanted(Vec<(f64, u64)>);

impl Wanted {
    pub(super) fn push(&mut self, hot: &Hot) {
        self.0.push((hot.heat as f64 / hot.size.max(1) as f64, hot.size));
    }

    fn bytes(&self) -> u64 {
        self.0.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// How many times over that was read for which the byte at this place becomes free. What a node
    /// lacks before anything may come up is for the hottest.
    fn heat_at(&self, mut place: u64, lacking: u64) -> Option<f64> {
        place = place.saturating_sub(lacking);
        self.0.iter().find_map(|(heat, bytes)| {
            let within = place < *bytes;
            place = place.saturating_sub(*bytes);
            within.then_some(*heat)
        })
    }
}

/// Seconds until what has left a node shows as free there. The kernel keeps freed pages on lists of
/// each CPU, which may hold an eighth of a zone's memory together. Each second it lowers the limits
/// of the lists by an eighth (Linux 6.7 and later), and frees what is above them: 0.03 % of a limit
/// is left after so long.
const SHOWS_S: f64 = 60.0;
/// And windows: where these take longer than that, the kernel's own work is late, too.
const SHOWS_WINDOWS: f64 = 10.0;

/// What left each node to make room, and may not show as free there yet: bytes and when, the oldest
/// first.
#[derive(Debug, Default)]
pub(super) struct Made(BTreeMap<NodeId, VecDeque<(f64, u64)>>);

impl Made {
    /// Of a move, so many bytes are where they should be by now.
    pub(super) fn arrived(&mut self, asked: &mut Asked, done: u64, now: f64) {
        let more = done.saturating_sub(asked.done);
        asked.done = asked.done.max(done);
        match asked.down {
            true if more > 0 => self.0.entry(asked.from).or_default().push_back((now, more)),
            true => {}
            false => self.used(asked.to, more),
        }
    }

    /// So many bytes have come to a node: there was room for them, and the oldest was it.
    fn used(&mut self, node: NodeId, mut bytes: u64) {
        let Some(made) = self.0.get_mut(&node) else { return };
        while let Some((_, first)) = made.front_mut()
            && bytes > 0
        {
            let part = bytes.min(*first);
            (*first, bytes) = (*first - part, bytes - part);
            if *first == 0 {
                made.pop_front();
            }
        }
    }

    /// Forgets what shows by now, or was taken by others.
    pub(super) fn forget(&mut self, now: f64, window_s: f64) {
        let shows_s = SHOWS_S.max(SHOWS_WINDOWS * window_s);
        self.0.retain(|_, made| {
            made.retain(|(at, _)| now - *at < shows_s);
            !made.is_empty()
        });
    }

    fn on(&self, node: NodeId) -> u64 {
        self.0.get(&node).into_iter().flatten().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Enough is on its way down.
    Made,
    /// What else is known there is not colder by the margin, or was not cold for long enough.
    NoneColder,
    /// No slower memory has room.
    NoneBelow,
    /// The kernel makes room on slower memory itself just now.
    BelowPressed,
    /// The rate is used up, or the files that hold what is cold have a move already.
    Later,
}

impl Room {
    /// As the end of a sentence.
    pub(super) fn said(self) -> &'static str {
        match self {
            Self::Made => "; colder ranges go down for it",
            Self::NoneColder => "; nothing that is known there is colder by the margin",
            Self::BelowPressed => "; the kernel has just reclaimed memory of the slower nodes",
            Self::NoneBelow => "; slower memory has no room for what is colder there",
            Self::Later => "; colder ranges go down for it in a later window",
        }
    }
}

/// Ranges of one file that go down together.
#[derive(Debug)]
pub(super) struct Down {
    pub subject: Subject,
    pub from: NodeId,
    pub to: NodeId,
    pub starts: Vec<u64>,
    /// The fewest windows for which one of them was not read.
    pub windows: u32,
}

/// A range that was not read for long.
struct Cold {
    subject: Subject,
    start: u64,
    windows: u32,
    bytes: u64,
}

impl Promote {
    /// Chooses what goes down from a node for what is wanted there: what was not read for longest
    /// first, as long as it is colder by the margin.
    pub(super) fn make_room(
        &self,
        (node, wanted): (NodeId, &Wanted),
        snapshot: &Snapshot,
        nodes: &mut Nodes,
        budget: &mut f64,
        downs: &mut BTreeMap<Subject, Down>,
        busy: &dyn Fn(&Subject) -> bool,
    ) -> Room {
        let lacking = nodes.missing(node, 0);
        let going = self.asked.values().filter(|asked| asked.from == node);
        // And what has just gone, which may not show as free yet.
        let going = going.fold(self.made.on(node), |sum, asked| sum.saturating_add(asked.left));
        let needed = nodes.missing(node, wanted.bytes());
        // Why no more is made, if not for want of cold ranges.
        let (mut made, mut why) = (going, Room::NoneColder);
        for cold in self.cold(node, snapshot) {
            if made >= needed {
                break;
            }
            let Some(hot) = wanted.heat_at(made, lacking) else { break };
            if cold.bytes as f64 / RANGE_BYTES as f64 * COLDER > hot {
                continue;
            }
            let Some(to) = nodes.below(node, RANGE_BYTES) else {
                why = if nodes.below_is_pressed(node) { Room::BelowPressed } else { Room::NoneBelow };
                break;
            };
            let other = downs.get(&cold.subject).is_some_and(|down| (down.from, down.to) != (node, to));
            if other || *budget <= 0.0 || busy(&cold.subject) {
                why = Room::Later;
                continue;
            }
            nodes.take(to, RANGE_BYTES);
            *budget -= RANGE_BYTES as f64;
            made = made.saturating_add(RANGE_BYTES);
            let new = || Down { subject: cold.subject, from: node, to, starts: Vec::new(), windows: cold.windows };
            let down = downs.entry(cold.subject).or_insert_with(new);
            down.starts.push(cold.start);
            down.windows = down.windows.min(cold.windows);
        }
        if made >= needed || made > going { Room::Made } else { why }
    }

    /// The ranges of a node that were not read for as long as a promoted range stays, the oldest
    /// first. Without those of files that are left alone, and of what was promoted lately.
    fn cold(&self, node: NodeId, snapshot: &Snapshot) -> Vec<Cold> {
        let mut cold = Vec::new();
        for file in &snapshot.idle {
            let subject = Subject::idle_file(file);
            if self.alone.contains_key(&subject) {
                continue;
            }
            let moved = self.moved.get(&subject);
            for range in file.ranges.iter().filter(|range| range.node == node) {
                let idle_s = f64::from(range.windows) * snapshot.window_s;
                if idle_s >= self.settings.stay_s && !moved.is_some_and(|moved| moved.contains_key(&range.start)) {
                    cold.push(Cold { subject, start: range.start, windows: range.windows, bytes: range.bytes });
                }
            }
        }
        cold.sort_by_key(|cold| (Reverse(cold.windows), cold.bytes, cold.subject, cold.start));
        cold
    }
}
