//! What sysfs does not tell of nodes, from `homenode.toml`: the bandwidth of their memory (most
//! firmware does not tell it, and what it tells is rated, not measured), and what it is there for.
//!
//! ```toml
//! [node.0]
//! read_bw_max = "6.8 GB/s"
//! write_bw_max = 1.85e9
//! ```

use std::collections::BTreeMap;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{NodeId, Topology, TopologyError};

/// The settings of one node.
///
/// A bandwidth is a number of bytes per second, or text with a unit: `"6.8 GB/s"`, `"900 MiB/s"`
/// (decimal kB, MB, GB, TB and binary KiB, MiB, GiB, TiB). Zero, negative and non-finite values are
/// refused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// Highest read bandwidth of the node's memory, bytes/s.
    #[serde(default, deserialize_with = "bandwidth", skip_serializing_if = "Option::is_none")]
    pub read_bw_max: Option<f64>,
    /// Highest write bandwidth of the node's memory, bytes/s.
    #[serde(default, deserialize_with = "bandwidth", skip_serializing_if = "Option::is_none")]
    pub write_bw_max: Option<f64>,
    /// Whether policies may put file data on the node. It says something of nodes without CPUs
    /// only, whose memory can be a GPU's: without it those that a DAX device or a region names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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

/// `6.8 GB/s` in bytes per second.
fn parse_bandwidth(text: &str) -> Option<f64> {
    let text = text.trim();
    let digits = text.find(|c: char| c.is_ascii_alphabetic() && !matches!(c, 'e' | 'E')).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let factor = match unit {
        "" | "B/s" => 1.0,
        "kB/s" | "KB/s" => 1e3,
        "MB/s" => 1e6,
        "GB/s" => 1e9,
        "TB/s" => 1e12,
        "KiB/s" => 1024.0,
        "MiB/s" => 1024.0 * 1024.0,
        "GiB/s" => 1024.0 * 1024.0 * 1024.0,
        "TiB/s" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    Some(number.trim().parse::<f64>().ok()? * factor)
}

/// What a bandwidth can be written as.
#[derive(Deserialize)]
#[serde(untagged, expecting = "not a number of bytes per second, nor text such as \"6.8 GB/s\"")]
enum Written {
    Number(f64),
    Text(String),
}

fn bandwidth<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let (value, shown) = match Written::deserialize(deserializer)? {
        Written::Number(value) => (Some(value), value.to_string()),
        Written::Text(text) => (parse_bandwidth(&text), text),
    };
    match value.filter(|value| is_bandwidth(*value)) {
        None => Err(D::Error::custom(format!(
            "`{shown}` is not a bandwidth: a positive number of bytes per second, or text such as \"6.8 GB/s\""
        ))),
        known => Ok(known),
    }
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
    fn bandwidth_in_every_form() {
        for (text, bytes) in [
            ("6800000000", 6.8e9),
            ("6.8e9", 6.8e9),
            ("\"6.8 GB/s\"", 6.8e9),
            ("\"6.8GB/s\"", 6.8e9),
            ("\"6.8e9\"", 6.8e9),
            ("\"1.5e3 MB/s\"", 1.5e9),
            ("\"900 kB/s\"", 9e5),
            ("\"2 GiB/s\"", 2147483648.0),
            ("\"1 TiB/s\"", 1099511627776.0),
            ("\"12 B/s\"", 12.0),
        ] {
            assert_eq!(one(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn an_invalid_bandwidth_is_refused_with_key_and_line() {
        for text in [
            "0",
            "-1",
            "-0.0",
            "nan",
            "inf",
            "\"\"",
            "\"-6 GB/s\"",
            "\"6 GB\"",
            "\"6 gb/s\"",
            "\"NaN GB/s\"",
            "\"1e999 GB/s\"",
        ] {
            let error = one(text).unwrap_err();
            assert!(
                error.contains("line 2") && error.contains("read_bw_max") && error.contains("is not a bandwidth"),
                "{error}"
            );
        }
        assert!(one("true").unwrap_err().contains("bytes per second"));
    }

    #[test]
    fn unknown_keys_and_odd_nodes_are_refused() {
        let refused = |text: &str| toml::from_str::<File>(text).unwrap_err().to_string();
        assert!(refused("[node.0]\nread_bw = 1").contains("unknown field `read_bw`"));
        let error = refused("[node.x]\n");
        assert!(error.contains("line 1") && error.contains("node.x"), "{error}");
    }
}
