//! What sysfs does not tell of nodes, from `homenode.toml`: the bandwidth of their memory (most
//! firmware does not tell it, and what it tells is rated, not measured), and what it is there for.
//!
//! ```toml
//! [node.0]
//! read_bw_max = "6.8 GB/s"
//! write_bw_max = "1.85 GB/s"
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use crate::{NodeId, Topology, TopologyError, units};

/// The settings of one node. A bandwidth is text with a unit: `"6.8 GB/s"`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// Highest read bandwidth of the node's memory, bytes/s.
    #[serde(default, deserialize_with = "bandwidth")]
    pub read_bw_max: Option<f64>,
    /// Highest write bandwidth of the node's memory, bytes/s.
    #[serde(default, deserialize_with = "bandwidth")]
    pub write_bw_max: Option<f64>,
    /// Whether policies may put file data on the node. It says something of nodes without CPUs
    /// only, whose memory can be a GPU's: without it those that a DAX device or a region names.
    #[serde(default)]
    pub file_data: Option<bool>,
}

impl Topology {
    /// Sets the values that the user configured; other values stay as they were.
    ///
    /// # Errors
    ///
    /// [`TopologyError::NoSuchNode`] for a node this machine does not have,
    /// [`TopologyError::Bandwidth`] for a value that is not positive and finite. Then the topology
    /// is unchanged.
    pub fn configure(&mut self, nodes: &BTreeMap<NodeId, NodeConfig>) -> Result<(), TopologyError> {
        for (&id, config) in nodes {
            if self.node(id).is_none() {
                let ids: Vec<_> = self.nodes.iter().map(|n| n.id.to_string()).collect();
                return Err(TopologyError::NoSuchNode { node: id, present: format!("node {}", ids.join(", ")) });
            }
            for (key, value) in [("read_bw_max", config.read_bw_max), ("write_bw_max", config.write_bw_max)] {
                if let Some(value) = value.filter(|v| !is_bandwidth(*v)) {
                    return Err(TopologyError::Bandwidth { node: id, key, value });
                }
            }
        }
        for node in &mut self.nodes {
            if let Some(config) = nodes.get(&node.id) {
                node.read_bw_max = config.read_bw_max.or(node.read_bw_max);
                node.write_bw_max = config.write_bw_max.or(node.write_bw_max);
            }
        }
        let named = nodes.iter().filter_map(|(id, config)| Some((*id, config.file_data?))).collect();
        crate::tiers::named(&mut self.nodes, &named);
        Ok(())
    }
}

fn is_bandwidth(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

fn bandwidth<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    units::positive_rate(from).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct File {
        #[serde(default)]
        node: BTreeMap<NodeId, NodeConfig>,
    }

    fn one(value: &str) -> Result<f64, String> {
        let file: File = toml::from_str(&format!("[node.0]\nread_bw_max = {value}")).map_err(|e| e.to_string())?;
        Ok(file.node[&NodeId(0)].read_bw_max.unwrap())
    }

    #[test]
    fn an_invalid_bandwidth_is_refused_with_key_and_line() {
        assert_eq!(one("\"6.8 GB/s\""), Ok(6.8e9));
        for text in
            ["6", "6.8e9", "0", "-1", "nan", "inf", "\"\"", "\"-6 GB/s\"", "\"6.8e9\"", "\"1e999 GB/s\"", "true"]
        {
            let error = one(text).unwrap_err();
            assert!(error.contains("line 2") && error.contains("read_bw_max"), "{error}");
        }
        assert!(one("6").unwrap_err().contains("the unit is missing, as in \"6MB/s\""));
    }

    #[test]
    fn unknown_keys_and_odd_nodes_are_refused() {
        let refused = |text: &str| toml::from_str::<File>(text).unwrap_err().to_string();
        assert!(refused("[node.0]\nread_bw = 1").contains("unknown field `read_bw`"));
        let error = refused("[node.x]\n");
        assert!(error.contains("line 1") && error.contains("node.x"), "{error}");
    }
}
