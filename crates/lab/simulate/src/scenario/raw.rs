//! The scenario file's form, before it is checked. Every value remembers where in the file it was.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;
use topology::NodeId;

use super::amount::Amount;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    pub name: Option<String>,
    pub duration_s: Spanned<f64>,
    pub warmup_s: Option<Spanned<f64>>,
    pub seed: Option<u64>,
    pub policy: Option<Spanned<String>>,
    pub autonuma: Option<bool>,
    pub machine: Spanned<RawMachine>,
    #[serde(default)]
    pub workload: Vec<Spanned<RawWorkload>>,
    #[serde(default)]
    pub nthread: placement::nthread::Settings,
    pub engine: Option<Spanned<engine::Settings>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMachine {
    pub topology: Option<Spanned<String>>,
    pub nodes: Option<Spanned<u32>>,
    pub cpus: Option<Spanned<u32>>,
    pub memory: Option<Spanned<Amount>>,
    pub distance: Option<Spanned<RawDistance>>,
    pub interconnect: Option<Spanned<Amount>>,
    pub optane_modules: Option<Spanned<u32>>,
    pub read_bw: Option<Spanned<Amount>>,
    pub write_bw: Option<Spanned<Amount>>,
    #[serde(default)]
    pub node: BTreeMap<NodeId, Spanned<RawNode>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum RawDistance {
    All(u32),
    Table(Vec<Vec<u32>>),
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNode {
    pub cpus: Option<Spanned<u32>>,
    pub memory: Option<Spanned<Amount>>,
    pub optane_modules: Option<Spanned<u32>>,
    pub read_bw: Option<Spanned<Amount>>,
    pub write_bw: Option<Spanned<Amount>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawWorkload {
    pub name: Option<String>,
    pub kind: Spanned<String>,
    pub fs: Option<Spanned<crate::filesystem::FileSystem>>,
    pub device: Option<Spanned<u32>>,
    pub data: Option<Spanned<RawPlace>>,
    pub start: Option<Spanned<u32>>,
    pub pin: Option<Spanned<u32>>,
    pub threads: Option<Spanned<u32>>,
    pub block: Option<Spanned<Amount>>,
    pub read: Option<Spanned<f64>>,
    pub file_size: Option<Spanned<Amount>>,
    pub files: Option<Spanned<f64>>,
    pub io_size: Option<Spanned<Amount>>,
    pub shared: Option<Spanned<bool>>,
    pub sequential: Option<Spanned<bool>>,
    pub think_s: Option<Spanned<f64>>,
    pub keys: Option<Spanned<f64>>,
    pub value: Option<Spanned<Amount>>,
    pub read_size: Option<Spanned<Amount>>,
    pub process_size: Option<Spanned<Amount>>,
    pub passes: Option<Spanned<f64>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum RawPlace {
    Node(u32),
    Shares(Vec<f64>),
    Word(String),
}
