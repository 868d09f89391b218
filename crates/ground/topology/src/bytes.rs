//! Bytes per node, small and sorted.
//!
//! A thread touches one or two nodes in a window, whatever the machine's size. A sorted inline
//! array therefore beats a map, and a snapshot of 100,000 threads needs no allocation per thread.

use std::collections::BTreeMap;

use crate::NodeId;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;

/// Bytes per node, by rising node id; absent nodes have 0. JSON: an object such as
/// `{"0":300000000}`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NodeBytes(SmallVec<[(NodeId, u64); 2]>);

impl Clone for NodeBytes {
    /// Copies memory; `SmallVec::clone` copies entry by entry.
    fn clone(&self) -> Self {
        Self(SmallVec::from_slice(&self.0))
    }
}

impl NodeBytes {
    /// Bytes of one node.
    pub fn get(&self, node: NodeId) -> u64 {
        self.0.binary_search_by_key(&node, |e| e.0).map_or(0, |i| self.0[i].1)
    }

    /// Adds bytes to a node (saturating).
    pub fn add(&mut self, node: NodeId, bytes: u64) {
        // Callers mostly add nodes by rising id.
        if self.0.last().is_none_or(|last| last.0 < node) {
            self.0.push((node, bytes));
            return;
        }
        match self.0.binary_search_by_key(&node, |e| e.0) {
            Ok(i) => self.0[i].1 = self.0[i].1.saturating_add(bytes),
            Err(i) => self.0.insert(i, (node, bytes)),
        }
    }

    /// Sum over all nodes (saturating).
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum: u64, e| sum.saturating_add(e.1))
    }

    /// Nodes with their bytes, by rising id.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, u64)> + '_ {
        self.0.iter().copied()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(NodeId, u64)> for NodeBytes {
    fn from_iter<I: IntoIterator<Item = (NodeId, u64)>>(entries: I) -> Self {
        let mut bytes = Self::default();
        for (node, n) in entries {
            bytes.add(node, n);
        }
        bytes
    }
}

impl Serialize for NodeBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for NodeBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(BTreeMap::<NodeId, u64>::deserialize(deserializer)?.into_iter().collect())
    }
}

impl JsonSchema for NodeBytes {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "NodeBytes".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        <BTreeMap<NodeId, u64>>::json_schema(generator)
    }
}
