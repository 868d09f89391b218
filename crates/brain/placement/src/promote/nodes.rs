//! The nodes of a window: how fast their memory is, and how much room is left.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use topology::NodeId;

use super::{Left, Settings};
use crate::processes::show;
use crate::{NodeLoad, Snapshot};

#[derive(Debug)]
struct Place {
    /// 0 is the fastest memory. `None`: of a node without CPUs whose memory is of unknown kind.
    tier: Option<u32>,
    has_cpus: bool,
    distance: BTreeMap<NodeId, u32>,
    /// Bytes that may still be promoted to it, or why none may be.
    room: Result<u64, Left>,
    free: u64,
    kept: u64,
}

#[derive(Debug)]
pub(super) struct Nodes {
    all: BTreeMap<NodeId, Place>,
    /// The fastest tier of a node with CPUs.
    best: u32,
}

/// Whether memory of a tier is known to be slower than that of another.
fn is_slower(tier: Option<u32>, than: Option<u32>) -> bool {
    tier.zip(than).is_some_and(|(tier, than)| tier > than)
}

impl Nodes {
    pub(super) fn new(snapshot: &Snapshot, settings: &Settings, quiet: &FxHashMap<NodeId, u32>) -> Self {
        let place = |node: &NodeLoad| {
            let kept = node.reclaim.as_ref().map(|reclaim| reclaim.high_watermark);
            let kept = kept.map(|high| high.saturating_add(settings.reserve_bytes as u64));
            // What is on lists is part of the reserve, of half of it at most: the kernel reclaims
            // by what is free beside them.
            let on_lists = node.reclaim.as_ref().map_or(0, |reclaim| reclaim.free_on_lists);
            let free = node.memory_free.saturating_add(on_lists.min(settings.reserve_bytes as u64 / 2));
            let is_quiet = quiet.get(&node.id).is_none_or(|windows| *windows >= settings.quiet_windows);
            let room = match kept {
                None => Err(Left::Unknown),
                Some(_) if !is_quiet => Err(Left::Pressure),
                Some(kept) => Ok(free.saturating_sub(kept)),
            };
            let has_cpus = !node.cpus.is_empty();
            let kept = kept.unwrap_or(0);
            let tier = node.tier.or(has_cpus.then_some(0));
            (node.id, Place { tier, has_cpus, distance: node.distance.clone(), room, free, kept })
        };
        let all: BTreeMap<NodeId, Place> = snapshot.nodes.iter().map(place).collect();
        let best = all.values().filter(|place| place.has_cpus).filter_map(|place| place.tier).min().unwrap_or(0);
        Self { all, best }
    }

    /// Whether a node's memory is slower than that of some node with CPUs.
    pub(super) fn is_slow(&self, node: NodeId) -> bool {
        self.all.get(&node).is_some_and(|place| is_slower(place.tier, Some(self.best)))
    }

    /// The nodes with CPUs that are faster than `from` and nearer to these readers, the nearest
    /// first.
    fn targets(&self, by: NodeId, from: NodeId) -> Vec<(&NodeId, &Place)> {
        let (Some(source), Some(reader)) = (self.all.get(&from), self.all.get(&by)) else { return Vec::new() };
        let distance = |to: &NodeId| reader.distance.get(to).copied();
        let nearer = |to: &NodeId| match (distance(to), distance(&from)) {
            (Some(to), Some(from)) => to < from,
            // Without distances, only their own node is known to be near.
            _ => *to == by,
        };
        let fits = |(id, place): &(&NodeId, &Place)| place.has_cpus && is_slower(source.tier, place.tier) && nearer(id);
        let mut targets: Vec<(&NodeId, &Place)> = self.all.iter().filter(fits).collect();
        targets.sort_by_key(|(id, _)| (**id != by, distance(id), **id));
        targets
    }

    /// The node for so many bytes that are read by CPUs of `by` and are on `from` now.
    pub(super) fn target(&self, by: NodeId, from: NodeId, bytes: u64) -> Result<NodeId, Left> {
        let mut why = Left::NotNearer;
        for (n, (id, place)) in self.targets(by, from).into_iter().enumerate() {
            match place.room {
                Ok(room) if room >= bytes => return Ok(*id),
                // What is said is about the nearest.
                Ok(_) if n == 0 => why = Left::NoRoom,
                Err(cause) if n == 0 => why = cause,
                _ => {}
            }
        }
        Err(why)
    }

    /// The node nearest to these readers that is faster than `from`, with room or without.
    pub(super) fn nearest(&self, by: NodeId, from: NodeId) -> Option<NodeId> {
        self.targets(by, from).first().map(|(id, _)| **id)
    }

    /// The nearest node with slower memory and room for so many bytes of this node.
    pub(super) fn below(&self, node: NodeId, bytes: u64) -> Option<NodeId> {
        let own = self.all.get(&node)?;
        let fits =
            |place: &Place| is_slower(place.tier, own.tier) && place.room.as_ref().is_ok_and(|room| *room >= bytes);
        let slower = self.all.iter().filter(|(_, place)| fits(place)).map(|(id, _)| *id);
        slower.min_by_key(|id| (own.distance.get(id).copied().unwrap_or(u32::MAX), *id))
    }

    /// Whether nothing goes below this node because the kernel makes room there itself.
    pub(super) fn below_is_pressed(&self, node: NodeId) -> bool {
        let own = self.all.get(&node).and_then(|place| place.tier);
        self.all.values().any(|place| is_slower(place.tier, own) && matches!(place.room, Err(Left::Pressure)))
    }

    /// Bytes that must become free on a node until so many more can be promoted to it.
    pub(super) fn missing(&self, node: NodeId, more: u64) -> u64 {
        let Some(Place { free, kept, room: Ok(room), .. }) = self.all.get(&node) else { return 0 };
        kept.saturating_sub(*free).saturating_add(more).saturating_sub(*room)
    }

    /// Bytes go to a node, or are on the way.
    pub(super) fn take(&mut self, node: NodeId, bytes: u64) {
        if let Some(Ok(room)) = self.all.get_mut(&node).map(|place| place.room.as_mut()) {
            *room = room.saturating_sub(bytes);
        }
    }

    /// What a node has free, and what of it stays free.
    pub(super) fn room_of(&self, node: NodeId) -> String {
        let (free, kept) = self.all.get(&node).map_or((0, 0), |place| (place.free, place.kept));
        format!("{} are free, of which {} stay free", show(free as f64), show(kept as f64))
    }
}
